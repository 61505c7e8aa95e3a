//! Goes through a plan: offers the load, does the faults on time, and prints each second.

use std::{
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use ratemesh::Clock;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    fleet::{Fleet, name},
    load::{Client, Load, SharedTally, Tally, Target, lock},
    measure::{Answers, SECOND, Second},
    node::Status,
    plan::{Fault, Phase, Plan},
    report::{self, Verdict},
};

/// Answers to a second's last requests come in until so long after its end.
const GRACE: Duration = Duration::from_millis(150);

/// Runs a plan on a fleet of so many nodes, and returns the exit code.
pub(crate) async fn run(nodes: usize, plan: Plan) -> Result<u8, Box<dyn Error>> {
    let client = Client::new();
    println!("starting {nodes} processes ...");
    let fleet = Fleet::start(nodes, plan.rule, client.clone()).await?;
    let tally: SharedTally = Arc::new(Mutex::new(Tally::new(wall_micros())));
    let load = Load::start(nodes, &client, &tally);
    let mut run = Run { fleet, load, began: Instant::now(), tally, traffic: Traffic::default() };
    report::headings(&plan, nodes);
    run.go_through(&plan).await?;
    let Run { fleet, load, tally, traffic, .. } = run;
    drop(load);
    fleet.stop().await?;

    let mut tally = lock(&tally);
    let answers = Answers::new(plan.rule, std::mem::take(&mut tally.answers));
    let verdict = match plan.scenario {
        None => report::story(&plan, nodes, &answers),
        Some((measured, targets)) => {
            report::scenario(&plan, measured, &targets, &answers, traffic.per_node(nodes))
        }
    };
    if tally.failed > 0 {
        println!(
            "{} requests were not answered; those on their way to a node that is killed are among them.",
            tally.failed
        );
    }
    Ok(match verdict {
        Verdict::Held => 0,
        Verdict::Missed => 1,
        Verdict::NotOffered => 3,
    })
}

fn wall_micros() -> u64 {
    Clock::system().precise().wall.as_unix_nanos() / 1_000
}

struct Run {
    fleet: Fleet,
    load: Load,
    began: Instant,
    tally: SharedTally,
    traffic: Traffic,
}

impl Run {
    async fn go_through(&mut self, plan: &Plan) -> Result<(), Box<dyn Error>> {
        let measured_from = plan.scenario.map_or(0, |(first, _)| first);
        let mut second = 0;
        for (index, phase) in plan.phases.iter().enumerate() {
            let before = self.fleet.statuses().await;
            if index == measured_from {
                self.traffic.since(&before, second);
            }
            self.begin(phase).await?;
            if index > 0 {
                self.print(second - 1, &before).await;
            }
            report::phase(phase);
            for last in 1..=phase.seconds {
                second += 1;
                sleep_until(self.began + Duration::from_secs(second)).await;
                if last < phase.seconds {
                    self.print(second - 1, &self.fleet.statuses().await).await;
                }
            }
        }
        let after = self.fleet.statuses().await;
        self.traffic.until(&after, second);
        self.print(second - 1, &after).await;
        Ok(())
    }

    async fn begin(&mut self, phase: &Phase) -> Result<(), Box<dyn Error>> {
        match phase.fault.clone() {
            None => {}
            Some(Fault::Kill(node)) => {
                self.load.aim(node, Target::default());
                self.fleet.kill(node).await?;
            }
            Some(Fault::Restart(node)) => self.fleet.restart(node).await?,
            Some(Fault::Cut(nodes)) => self.cut_off(nodes, true).await?,
            Some(Fault::Join(nodes)) => self.cut_off(nodes, false).await?,
        }
        for (node, rate) in phase.offered.iter().enumerate() {
            self.load.aim(node, Target { address: self.fleet.http(node), rate: *rate });
        }
        Ok(())
    }

    async fn cut_off(&self, nodes: std::ops::Range<usize>, cut: bool) -> Result<(), Box<dyn Error>> {
        for node in nodes {
            self.fleet.cut_off(node, cut).await?;
        }
        Ok(())
    }

    /// Prints a second that is over, and what the nodes said at its end.
    async fn print(&self, second: u64, statuses: &[Option<Status>]) {
        sleep(GRACE).await;
        let mut counted = Second::new(statuses.len());
        let answers = &lock(&self.tally).answers;
        // They are nearly in order, and a second's are among the latest.
        let recent = answers.iter().rev().take_while(|answer| answer.micros / SECOND + 2 > second);
        recent.filter(|answer| answer.micros / SECOND == second).for_each(|answer| counted.count(answer));
        report::second(second, &counted, statuses);
    }
}

/// What the nodes sent in the part that is measured.
#[derive(Default)]
struct Traffic {
    messages: f64,
    bytes: f64,
    seconds: f64,
    before: Vec<(String, f64, f64)>,
}

impl Traffic {
    fn since(&mut self, statuses: &[Option<Status>], second: u64) {
        self.seconds = -(second as f64);
        self.before = sent(statuses).collect();
    }

    fn until(&mut self, statuses: &[Option<Status>], second: u64) {
        self.seconds += second as f64;
        for (node, messages, bytes) in sent(statuses) {
            let (_, messages_before, bytes_before) =
                self.before.iter().find(|(other, ..)| *other == node).cloned().unwrap_or_default();
            // A node that was restarted has counted from zero since.
            self.messages += if messages < messages_before { messages } else { messages - messages_before };
            self.bytes += if bytes < bytes_before { bytes } else { bytes - bytes_before };
        }
    }

    /// Messages and bytes per node and second.
    fn per_node(&self, nodes: usize) -> (f64, f64) {
        let node_seconds = nodes as f64 * self.seconds.max(1.0);
        (self.messages / node_seconds, self.bytes / node_seconds)
    }
}

fn sent(statuses: &[Option<Status>]) -> impl Iterator<Item = (String, f64, f64)> + '_ {
    let one = |(node, status): (usize, &Option<Status>)| {
        let status = status.as_ref()?;
        Some((name(node), status.messages_sent as f64, status.bytes_sent as f64))
    };
    statuses.iter().enumerate().filter_map(one)
}
