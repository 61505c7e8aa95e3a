//! What gossip costs: its processor time, its bytes, its memory, and what checks feel of it.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use ratemesh::{Limit, Limiter, Quota};
use serde_json::{Value, json};

use crate::{
    Failure,
    live::{Fleet, run_time, this_task},
    memory::held_by,
};

const LIMIT: &str = "gossip";
/// Keys that are live on every node while anything is measured.
const LIVE_KEYS: usize = 1_000_000;
/// Keys that change in each tick.
const CHANGED: [usize; 3] = [1_000, 10_000, 100_000];
const TICK: Duration = Duration::from_millis(100);
/// Targets: bytes of gossip a changed share, with digests of 128 bits; the part of a core that 100,000 changed shares a
/// tick take to send and to merge; how much slower the slowest thousandth of checks may be meanwhile; the longest pause;
/// and bytes a key on each of three nodes that all spend on it.
const MOST_BYTES: f64 = 22.0;
const MOST_OF_A_CORE: f64 = 0.25;
const MOST_SLOWER: f64 = 3.0;
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
const MOST_BYTES_A_KEY: f64 = 160.0;

/// How long the ticks and the checks of one case are watched.
pub struct Watch {
    pub ticks: u32,
    pub seconds: u32,
}

/// Measures, prints, and returns the figures and whether all targets were met.
pub fn run(watch: &Watch) -> Result<(Value, bool), Failure> {
    let peer_bytes = bytes_a_peer()?;
    let mut keys: Vec<String> =
        (0..LIVE_KEYS).map(|number| format!("tenant-{number:06}/api/v1/orders/new")).collect();
    let fleet = Fleet::start(3, &[limit()?])?;
    let (bytes, filled) = held_by(|| fill(&fleet, &keys));
    filled?;
    // Those that change are not those that came one after the other.
    fastrand::Rng::with_seed(7).shuffle(&mut keys);
    let key_bytes = bytes as f64 / 3.0 / LIVE_KEYS as f64;
    let mut met = key_bytes <= MOST_BYTES_A_KEY;
    println!(
        "{}bytes a live key and node, {LIVE_KEYS} keys, three nodes spending on each: {key_bytes:.0} (target: ≤ {MOST_BYTES_A_KEY})",
        missed(met)
    );
    println!("bytes a connected peer, on each side: {peer_bytes:.0}\n");
    println!(
        "| keys changed a tick | bytes a share | sender, ns a share | receiver, ns a share | both, part of a core | targets |"
    );
    println!("|---|---|---|---|---|---|");
    let mut costs = Vec::new();
    for changed in CHANGED {
        let cost = cost(&fleet, &keys[..changed], watch.ticks)?;
        met &= cost.print();
        costs.push(cost.json());
    }
    println!("\n| keys that change | gossip | p50 ns | p99 | p99.9 | longest | p99.9 ÷ idle's | targets |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut latencies = Vec::new();
    for changed in CHANGED {
        let (row, held) = latency(&fleet, &keys[..changed], watch.seconds)?;
        met &= held;
        latencies.push(row);
    }
    let figures = json!({
        "bytes_a_key": key_bytes, "bytes_a_peer": peer_bytes, "costs": costs, "latencies": latencies,
    });
    Ok((figures, met))
}

fn missed(met: bool) -> &'static str {
    if met { "" } else { "MISSED: " }
}

/// A bucket that never refuses here, never fills up again, and of which no single unit is urgent.
fn limit() -> Result<Limit, Failure> {
    let quota = Quota::per_hour(360_000);
    Ok(Limit::token_bucket(LIMIT, quota).burst(1 << 40).max_keys(1 << 20).build()?)
}

/// Spends a unit of every key on every node, no faster than the gossip follows.
fn fill(fleet: &Fleet, keys: &[String]) -> Result<(), Failure> {
    let limiters: Vec<Limiter> =
        (0..3).map(|node| fleet.limiter_of(node, LIMIT)).collect::<Result<_, _>>()?;
    for keys in keys.chunks(100_000) {
        for limiter in &limiters {
            keys.iter().for_each(|key| {
                black_box(limiter.check(key).is_allowed());
            });
        }
        settle(fleet)?;
    }
    Ok(())
}

/// Waits until every node's changes have been published and acknowledged.
fn settle(fleet: &Fleet) -> Result<(), Failure> {
    // What has changed is published with the next heartbeat.
    thread::sleep(3 * TICK);
    fleet.wait_until("the peers have acknowledged all changes", |fleet| {
        (0..3).all(|node| fleet.sent(node).behind == 0)
    })
}

/// What one connected peer adds to a node, in bytes: from fleets of three and of six, of which each node has two peers
/// and five.
fn bytes_a_peer() -> Result<f64, Failure> {
    let held = |nodes: usize| -> Result<f64, Failure> {
        let (bytes, fleet) = held_by(|| -> Result<Fleet, Failure> {
            let fleet = Fleet::start(nodes, &[limit()?])?;
            thread::sleep(10 * TICK);
            Ok(fleet)
        });
        drop(fleet?);
        Ok(bytes as f64 / nodes as f64)
    };
    Ok((held(6)? - held(3)?) / 3.0)
}

/// What it costs that so many keys change in each tick.
struct Cost {
    changed: usize,
    bytes_a_share: f64,
    sender_nanos: f64,
    receiver_nanos: f64,
    of_a_core: f64,
}

/// Lets all of `keys` change on the first node in each tick. Its two peers are each sent every change, and a share sent
/// counts for each of them.
fn cost(fleet: &Fleet, keys: &[String], ticks: u32) -> Result<Cost, Failure> {
    let limiter = fleet.limiter_of(0, LIMIT)?;
    settle(fleet)?;
    let state = || (fleet.processor_time(0), fleet.processor_time(1), fleet.sent(0).bytes);
    // What gossip costs when nothing changes is not the changes' cost.
    let begin = state();
    thread::sleep(ticks * TICK);
    let idle = state();
    let start = Instant::now();
    for tick in 1..=ticks {
        keys.iter().for_each(|key| {
            black_box(limiter.check(key).is_allowed());
        });
        thread::sleep((tick * TICK).saturating_sub(start.elapsed()));
    }
    settle(fleet)?;
    let end = state();
    let changes = (keys.len() * ticks as usize) as f64;
    let time = |before: Duration, idle: Duration, after: Duration| {
        ((after - idle).as_secs_f64() - (idle - before).as_secs_f64()).max(0.0)
    };
    let (sender, receiver) = (time(begin.0, idle.0, end.0), time(begin.1, idle.1, end.1));
    let bytes = (end.2 - idle.2) as f64 - (idle.2 - begin.2) as f64;
    Ok(Cost {
        changed: keys.len(),
        bytes_a_share: bytes / 2.0 / changes,
        sender_nanos: sender / 2.0 / changes * 1e9,
        receiver_nanos: receiver / changes * 1e9,
        of_a_core: (sender + receiver) / (ticks * TICK).as_secs_f64(),
    })
}

impl Cost {
    fn print(&self) -> bool {
        let Self { changed, bytes_a_share, sender_nanos, receiver_nanos, of_a_core } = self;
        // A target is for batches of a thousand, and one for a hundred thousand.
        let small = *changed > 1_000 || *bytes_a_share <= MOST_BYTES;
        let large = *changed < 100_000 || *of_a_core <= MOST_OF_A_CORE;
        let targets = match changed {
            1_000 => format!("{}bytes ≤ {MOST_BYTES}", missed(small)),
            100_000 => format!("{}part of a core ≤ {MOST_OF_A_CORE}", missed(large)),
            _ => String::new(),
        };
        println!(
            "| {changed} | {bytes_a_share:.1} | {sender_nanos:.0} | {receiver_nanos:.0} | {of_a_core:.3} | {targets} |"
        );
        small && large
    }

    fn json(&self) -> Value {
        json!({
            "changed": self.changed, "bytes_a_share": self.bytes_a_share, "sender_nanos": self.sender_nanos,
            "receiver_nanos": self.receiver_nanos, "of_a_core": self.of_a_core,
        })
    }
}

/// How long single checks took.
#[derive(Default)]
struct Latencies {
    nanos: Vec<u32>,
    /// The longest, without the time for which the thread had no processor.
    longest: Duration,
}

/// Checks between two looks at what the thread had to wait for a processor.
const LOOK: usize = 4_096;
/// A check that took longer is looked into at once.
const SUSPICIOUS: Duration = Duration::from_micros(200);

impl Latencies {
    /// Times each check of the keys in turn for so long, going on from `cursor`.
    fn watch(&mut self, limiter: &Limiter, keys: &[String], cursor: &mut usize, time: Duration) {
        let task = this_task();
        let begin = Instant::now();
        let mut waited = run_time(task).1;
        while begin.elapsed() < time {
            for _ in 0..LOOK {
                let start = Instant::now();
                black_box(limiter.check(&keys[*cursor]).is_allowed());
                let elapsed = start.elapsed();
                *cursor = (*cursor + 1) % keys.len();
                self.nanos.push(u32::try_from(elapsed.as_nanos()).unwrap_or(u32::MAX));
                if elapsed > SUSPICIOUS {
                    let now = run_time(task).1;
                    self.longest = self.longest.max(elapsed.saturating_sub(now - waited));
                    waited = now;
                } else {
                    self.longest = self.longest.max(elapsed);
                }
            }
            waited = run_time(task).1;
        }
    }

    fn quantile(&mut self, part: f64) -> f64 {
        let at = ((self.nanos.len() - 1) as f64 * part) as usize;
        f64::from(*self.nanos.select_nth_unstable(at).1)
    }

    fn print(&mut self, changed: usize, gossip: &str, rest: &str) -> Value {
        let [half, most, nearly_all] = [0.5, 0.99, 0.999].map(|part| self.quantile(part));
        let longest = self.longest.as_micros();
        println!(
            "| {changed} | {gossip} | {half:.0} | {most:.0} | {nearly_all:.0} | {longest} µs | {rest} |"
        );
        json!({
            "changed": changed, "gossip": gossip, "p50": half, "p99": most, "p99.9": nearly_all,
            "longest_nanos": self.longest.as_nanos() as u64,
        })
    }
}

/// Checks so many keys over and over, so that all of them change in each tick: of a limiter without gossip while the
/// fleet's is idle, and of the fleet's first node, by turns.
fn latency(fleet: &Fleet, keys: &[String], seconds: u32) -> Result<(Value, bool), Failure> {
    let (alone, live) = (Limiter::new(limit()?), fleet.limiter_of(0, LIMIT)?);
    keys.iter().for_each(|key| {
        black_box(alone.check(key).is_allowed());
    });
    let (mut idle, mut busy) = (Latencies::default(), Latencies::default());
    let (mut cursor, mut other) = (0, 0);
    for _ in 0..seconds {
        settle(fleet)?;
        idle.watch(&alone, keys, &mut cursor, Duration::from_secs(1));
        busy.watch(&live, keys, &mut other, Duration::from_secs(1));
    }
    let ratio = busy.quantile(0.999) / idle.quantile(0.999);
    let (slower, pause) = (keys.len() < 100_000 || ratio <= MOST_SLOWER, busy.longest <= LONGEST_PAUSE);
    let mut targets = format!("{}longest ≤ {} µs", missed(pause), LONGEST_PAUSE.as_micros());
    if keys.len() >= 100_000 {
        targets = format!("{}ratio ≤ {MOST_SLOWER}; {targets}", missed(slower));
    }
    let idle_row = idle.print(keys.len(), "idle", "| ");
    let busy_row = busy.print(keys.len(), "busy", &format!("{ratio:.2} | {targets}"));
    Ok((json!([idle_row, busy_row]), slower && pause))
}
