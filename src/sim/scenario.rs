//! Loads and faults with a name, what they are measured by, and what is expected of them.

use std::time::Duration;

use super::{Cluster, Keys, Network, Record, bound::LONG_RUN};
use crate::limit::{Limit, OnPartition, Quota};

/// The key that scenarios with one key use.
pub const KEY: &str = "key";

/// Something that is done to the fleet at a moment.
#[derive(Clone, Debug)]
pub enum Action {
    /// Offers a node requests for the one key, at this rate per second.
    Offer(usize, f64),
    /// Offers a node requests for other keys.
    OfferMany(usize, Keys, f64),
    /// Sends so many requests to a node at once.
    Burst(usize, u64),
    /// Cuts the network between two groups, both ways.
    Partition(Vec<usize>, Vec<usize>),
    /// Cuts one way.
    Cut(usize, usize),
    /// Mends all cuts.
    Heal,
    /// Kills a node.
    Crash(usize),
    /// Stops a node that says so.
    Leave(usize),
    /// Starts a node.
    Restart(usize),
    /// Stalls a node's gossip.
    Stall(usize, Duration),
    /// Sets a node's wall clock off, in milliseconds.
    Skew(usize, i64),
    /// Begins to count anew.
    Measure,
}

/// A load, and faults, on a fleet of a given size.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it is, in a line.
    pub about: String,
    /// How many nodes.
    pub nodes: usize,
    /// The limits; the first is measured.
    pub limits: Vec<Limit>,
    /// The network.
    pub network: Network,
    /// What is done when, in order; the time runs from the fleet's start.
    pub steps: Vec<(Duration, Action)>,
    /// How long it runs in all.
    pub length: Duration,
    /// What is expected.
    pub targets: Targets,
}

/// Bounds on the means over all seeds; `None` where nothing is promised.
#[derive(Clone, Copy, Debug, Default)]
pub struct Targets {
    /// Most units over the ideal limiter.
    pub excess: Option<f64>,
    /// Least part of what the ideal limiter admits.
    pub admitted_ratio: Option<f64>,
    /// Most part of the quota in any second.
    pub worst_second: Option<f64>,
    /// Least part of the quota in any second.
    pub quietest_second: Option<f64>,
    /// Bounds on the first second's admissions as a part of the ideal's.
    pub first_second: Option<(f64, f64)>,
    /// Bounds on all admissions as a part of the quota.
    pub total_ratio: Option<(f64, f64)>,
    /// Most false denials.
    pub false_denials: Option<f64>,
    /// Most messages per node and second.
    pub messages: Option<f64>,
}

/// What came of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Units over the ideal limiter; with many keys, of the worst of them.
    pub excess: f64,
    /// Admitted by the fleet ÷ admitted by the ideal limiter from the same arrivals.
    pub admitted_ratio: f64,
    /// The most in any second ÷ the quota.
    pub worst_second: f64,
    /// The least in any second ÷ the quota.
    pub quietest_second: f64,
    /// Admitted in the first second ÷ what the ideal limiter admits in it from an abundance of requests.
    pub first_second: f64,
    /// Admitted in all ÷ quota × time.
    pub total_ratio: f64,
    /// Refusals while there were units.
    pub false_denials: f64,
    /// Messages per node and second.
    pub messages: f64,
    /// Bytes per node and second.
    pub bytes: f64,
    /// Median time of news from node to node, in milliseconds.
    pub spread_p50_ms: f64,
    /// Its 99th percentile.
    pub spread_p99_ms: f64,
    /// What the excess may be at most, infinite where nothing is promised; see [`Scenario::bound`].
    pub bound: f64,
    /// Whether it was no more.
    pub within_bound: bool,
    /// Whether no key admitted more than quota × 60 s × 1.001 + burst in any minute, nor, over the run, a thousandth of a minute's
    /// quota more than quota × time + burst. What comes to several nodes in one instant is allowed for.
    pub within_long_run: bool,
}

impl Scenario {
    /// Runs it once.
    pub fn run(&self, seed: u64) -> (Outcome, Cluster) {
        self.run_with(seed, |_| ())
    }

    /// The same, on a cluster that was `prepared` for it: to keep its timeline, for one.
    pub fn run_with(&self, seed: u64, prepared: impl FnOnce(&mut Cluster)) -> (Outcome, Cluster) {
        let mut cluster = Cluster::with_network(self.nodes, self.limits.clone(), seed, self.network);
        cluster.measure_spread();
        prepared(&mut cluster);
        let mut at = Duration::ZERO;
        let mut measured_from = Duration::ZERO;
        for (when, action) in &self.steps {
            if *when > at {
                cluster.advance(*when - at);
                cluster.assert_invariants();
                at = *when;
            }
            if matches!(action, Action::Measure) {
                measured_from = at;
            }
            act(&mut cluster, action);
        }
        cluster.advance(self.length.saturating_sub(at));
        cluster.assert_invariants();
        let outcome = self.outcome(&mut cluster, self.length.saturating_sub(measured_from));
        (outcome, cluster)
    }

    fn outcome(&self, cluster: &mut Cluster, measured: Duration) -> Outcome {
        let seconds = measured.as_secs_f64();
        let nodes = self.nodes as f64;
        let limit = &self.limits[0];
        let per_second = limit.quota().units_per_second();
        let traffic = (0..self.nodes).map(|node| cluster.traffic(node));
        let (messages, bytes) =
            traffic.fold((0, 0), |(messages, bytes), one| (messages + one.messages, bytes + one.bytes));
        let (p50, p99) = cluster.spread().map_or((0.0, 0.0), |spread| {
            (spread.quantile(0.5).as_secs_f64() * 1e3, spread.quantile(0.99).as_secs_f64() * 1e3)
        });
        let sum = |of: fn(&Record) -> u64| cluster.records().map(of).sum::<u64>() as f64;
        let excess = cluster.records().map(Record::excess).fold(0.0, f64::max);
        let bound = self.bound().unwrap_or(f64::INFINITY);
        let mut outcome = Outcome {
            excess,
            bound,
            within_bound: excess <= bound,
            admitted_ratio: sum(Record::admitted) / sum(Record::ideal_admitted).max(1.0),
            total_ratio: sum(Record::admitted) / (per_second * seconds),
            false_denials: sum(Record::false_denials),
            messages: messages as f64 / nodes / seconds,
            bytes: bytes as f64 / nodes / seconds,
            spread_p50_ms: p50,
            spread_p99_ms: p99,
            within_long_run: cluster.records().all(|record| {
                record.admitted() as f64 <= self.long_run(seconds)
                    && record.worst_minute() as f64 <= self.long_run(LONG_RUN.as_secs_f64())
            }),
            ..Outcome::default()
        };
        if let Some(record) = cluster.record(KEY) {
            outcome.worst_second = record.worst_second() as f64 / per_second;
            outcome.quietest_second = if record.quietest_second() == usize::MAX {
                0.0
            } else {
                record.quietest_second() as f64 / per_second
            };
            outcome.first_second = record.in_second(0) as f64 / (per_second + limit.capacity() as f64);
        }
        outcome
    }
}

fn act(cluster: &mut Cluster, action: &Action) {
    match action {
        Action::Offer(node, rate) => cluster.offer(*node, KEY, *rate),
        Action::OfferMany(node, keys, rate) => cluster.offer_many(0, *node, "many", keys.clone(), *rate),
        Action::Burst(node, requests) => (0..*requests).for_each(|_| {
            cluster.check(*node, KEY);
        }),
        Action::Partition(one, other) => cluster.partition(one, other),
        Action::Cut(from, to) => cluster.cut(*from, *to),
        Action::Heal => cluster.heal(),
        Action::Crash(node) => cluster.crash(*node),
        Action::Leave(node) => cluster.leave(*node),
        Action::Restart(node) => cluster.restart(*node),
        Action::Stall(node, duration) => cluster.stall(*node, *duration),
        Action::Skew(node, millis) => cluster.skew(*node, *millis),
        Action::Measure => cluster.restart_records(),
    }
}

/// The names of the built-in scenarios, and what each is.
pub const NAMED: &[(&str, &str)] = &[
    ("under", "0.9 x the quota, evenly over the nodes: nothing may be refused"),
    ("steady", "3 x the quota, evenly, after three seconds"),
    ("minute", "3 x the quota, evenly, from a full bucket on for 65 seconds"),
    ("steady10", "10 x the quota, evenly, after three seconds"),
    ("burst-one", "10 x the quota on one node for a second, out of the blue; burst of one second's quota"),
    ("burst-all", "10 x the quota over all nodes for a second, out of the blue; burst of one second's quota"),
    ("skew", "1.5 x the quota, 90 % of it on one node"),
    ("hop", "1.5 x the quota on one node, another one each second"),
    ("cold", "3 x the quota from the moment the fleet starts"),
    ("loss30", "3 x the quota, evenly, 30 % of the datagrams lost"),
    ("wan", "3 x the quota, evenly, 40 to 60 ms one way"),
    ("partition-majority", "a third of the nodes cut off for ten seconds; load on the larger side"),
    ("partition-minority", "a third of the nodes cut off for ten seconds; load on the smaller side"),
    ("partition-both", "a third of the nodes cut off for ten seconds; load on both sides"),
    ("heal", "the same, measured from two seconds before the network is whole again"),
    ("crash", "1.5 x the quota; one node is killed, and starts again five seconds later"),
    (
        "rolling-restart",
        "1.5 x the quota; one node after the other leaves and starts again, two seconds each",
    ),
    ("slow-node", "3 x the quota; one node's gossip stalls for 300 ms at a time"),
    ("skewed-clocks", "3 x the quota; wall clocks two seconds ahead and behind"),
    ("low-rate", "5 per minute; ten requests at once on every node"),
    ("many-keys", "100,000 keys by Zipf's law, 20,000 requests a second"),
    ("churn", "3 x the quota on a key that gives way to the next after a second"),
];

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn bucket(burst: u64, on_partition: OnPartition) -> Limit {
    bucket_of(Quota::per_second(1_000), burst, on_partition)
}

fn bucket_of(quota: Quota, burst: u64, on_partition: OnPartition) -> Limit {
    // The figures are within the bounds that `build` checks.
    match Limit::token_bucket("limit", quota).burst(burst).on_partition(on_partition).build() {
        Ok(limit) => limit,
        Err(error) => unreachable!("{error}"),
    }
}

/// A built-in scenario for a fleet of `nodes`.
pub fn named(name: &str, nodes: usize) -> Option<Scenario> {
    let (_, about) = NAMED.iter().find(|(other, _)| *other == name)?;
    let mut scenario = Scenario {
        name: name.to_owned(),
        about: (*about).to_owned(),
        nodes,
        limits: vec![bucket(100, OnPartition::Local)],
        network: Network::default(),
        steps: Vec::new(),
        length: seconds(13),
        targets: Targets::default(),
    };
    fill(name, &mut scenario);
    scenario.steps.sort_by_key(|(at, _)| *at);
    Some(scenario)
}

/// One of three values, for up to three nodes, up to eight, and more.
fn by_size(nodes: usize, three: f64, eight: f64, many: f64) -> Option<f64> {
    Some(if nodes <= 3 {
        three
    } else if nodes <= 8 {
        eight
    } else {
        many
    })
}

fn fill(name: &str, scenario: &mut Scenario) {
    let nodes = scenario.nodes;
    match name {
        "under" => {
            scenario.even(seconds(1), 900.0);
            scenario.length = seconds(21);
            scenario.targets.false_denials = Some(0.0);
        }
        "steady" | "steady10" | "loss30" | "wan" | "skewed-clocks" | "slow-node" => overload(name, scenario),
        "minute" => {
            scenario.even(seconds(1), 3_000.0);
            scenario.length = seconds(66);
            scenario.targets.messages = by_size(nodes, 80.0, 200.0, 250.0);
        }
        "burst-one" | "burst-all" => burst(name, scenario),
        "skew" => {
            let others = 1_500.0 * 0.1 / (nodes - 1).max(1) as f64;
            (1..nodes).for_each(|node| scenario.at(seconds(1), Action::Offer(node, others)));
            scenario.at(seconds(1), Action::Offer(0, 1_350.0));
            scenario.targets.admitted_ratio = Some(0.99);
            scenario.targets.messages = by_size(nodes, 80.0, 200.0, 250.0);
        }
        "hop" => {
            // What nodes say to each other when they start is none of it; in a large fleet that is most of what they say.
            scenario.at(seconds(1), Action::Measure);
            for second in 1..13_usize {
                let node = second % nodes;
                scenario.at(seconds(second as u64), Action::Offer((second + nodes - 1) % nodes, 0.0));
                scenario.at(seconds(second as u64), Action::Offer(node, 1_500.0));
            }
            scenario.targets.admitted_ratio = Some(0.99);
            scenario.targets.messages = by_size(nodes, 80.0, 200.0, 250.0);
        }
        "cold" => {
            scenario.even(Duration::ZERO, 3_000.0);
            scenario.length = seconds(1);
            scenario.targets.first_second = Some((0.99, by_size(nodes, 1.04, 1.09, 1.15).unwrap_or(1.0)));
        }
        "partition-majority" | "partition-minority" | "partition-both" | "heal" => partition(name, scenario),
        "crash" => {
            scenario.even(seconds(1), 1_500.0);
            scenario.at(seconds(4), Action::Measure);
            scenario.at(seconds(5), Action::Crash(nodes - 1));
            scenario.at(seconds(10), Action::Restart(nodes - 1));
            scenario.length = seconds(14);
            scenario.targets.total_ratio = Some((0.99, 1.03));
        }
        "rolling-restart" => {
            scenario.even(seconds(1), 1_500.0);
            scenario.at(seconds(4), Action::Measure);
            for node in 0..nodes {
                let at = seconds(5 + 2 * node as u64);
                scenario.at(at, Action::Leave(node));
                scenario.at(at + seconds(1), Action::Restart(node));
            }
            scenario.length = seconds(8 + 2 * nodes as u64);
            scenario.targets.excess = Some(40.0);
        }
        "low-rate" => {
            scenario.limits = vec![bucket_of(Quota::per_minute(5), 5, OnPartition::Local)];
            (0..nodes).for_each(|node| scenario.at(seconds(2), Action::Burst(node, 10)));
            scenario.length = seconds(240);
            (1..4).for_each(|round| {
                (0..nodes).for_each(|node| scenario.at(seconds(2 + 60 * round), Action::Burst(node, 10)));
            });
        }
        "many-keys" => {
            let keys = Keys::zipf(100_000);
            let each = 20_000.0 / nodes as f64;
            (0..nodes).for_each(|node| scenario.at(seconds(1), Action::OfferMany(node, keys.clone(), each)));
            scenario.length = seconds(6);
        }
        "churn" => {
            let each = 3_000.0 / nodes as f64;
            (0..nodes).for_each(|node| {
                scenario.at(seconds(1), Action::OfferMany(node, Keys::Churn(1_000_000_000), each))
            });
            scenario.length = seconds(11);
        }
        _ => {}
    }
}

fn overload(name: &str, scenario: &mut Scenario) {
    let nodes = scenario.nodes;
    let rate = if name == "steady10" { 10_000.0 } else { 3_000.0 };
    scenario.even(seconds(1), rate);
    scenario.at(seconds(4), Action::Measure);
    scenario.length = seconds(14);
    scenario.targets.messages = by_size(nodes, 80.0, 200.0, 250.0);
    match name {
        "steady" => {
            scenario.targets.excess = by_size(nodes, 20.0, 35.0, 20.0);
            scenario.targets.worst_second = by_size(nodes, 1.03, 1.06, 1.10);
        }
        "loss30" => {
            scenario.network.loss = 0.3;
            scenario.targets.excess = Some(40.0);
        }
        "wan" => scenario.network = Network::wide_area(),
        "skewed-clocks" => {
            for node in 0..nodes {
                scenario.at(Duration::ZERO, Action::Skew(node, [0, 2_000, -2_000][node % 3]));
            }
        }
        "slow-node" => {
            for step in 0..21 {
                scenario.at(
                    seconds(3) + Duration::from_millis(500 * step),
                    Action::Stall(0, Duration::from_millis(300)),
                );
            }
        }
        _ => {}
    }
}

fn burst(name: &str, scenario: &mut Scenario) {
    let nodes = scenario.nodes;
    scenario.limits = vec![bucket(1_000, OnPartition::Local)];
    scenario.length = seconds(5);
    if name == "burst-one" {
        scenario.at(seconds(2), Action::Offer(0, 10_000.0));
        scenario.at(seconds(3), Action::Offer(0, 0.0));
        scenario.targets.admitted_ratio = Some(0.999);
    } else {
        scenario.even(seconds(2), 10_000.0);
        scenario.even(seconds(3), 0.0);
        scenario.targets.excess = by_size(nodes, 30.0, 85.0, 180.0);
    }
}

fn partition(name: &str, scenario: &mut Scenario) {
    let nodes = scenario.nodes;
    let cut = nodes.div_ceil(3);
    let (minority, majority): (Vec<usize>, Vec<usize>) = (0..nodes).partition(|node| *node < cut);
    scenario.limits = vec![bucket(100, OnPartition::Share)];
    let loaded: Vec<usize> = match name {
        "partition-majority" => majority.clone(),
        "partition-minority" => minority.clone(),
        _ => (0..nodes).collect(),
    };
    let each = 3_000.0 / loaded.len() as f64;
    loaded.iter().for_each(|node| scenario.at(seconds(1), Action::Offer(*node, each)));
    scenario.at(seconds(if name == "heal" { 13 } else { 4 }), Action::Measure);
    scenario.at(seconds(5), Action::Partition(minority, majority));
    scenario.at(seconds(15), Action::Heal);
    scenario.length = seconds(22);
    if name != "heal" {
        // Of eighteen seconds, the loaded side has ten for itself, and leaves the other what it would spend.
        let side = loaded.len() as f64 / nodes as f64;
        let least = 0.95 * (8.0 + 10.0 * side) / 18.0;
        scenario.targets.total_ratio = Some(((least * 1e3).round() / 1e3, 1.03));
    }
    if name == "heal" {
        scenario.targets.quietest_second = Some(0.95);
        scenario.targets.worst_second = Some(1.05);
    }
}

impl Scenario {
    fn at(&mut self, at: Duration, action: Action) {
        self.steps.push((at, action));
    }

    /// Offers the fleet so many requests per second, the same to every node.
    fn even(&mut self, at: Duration, rate: f64) {
        let each = rate / self.nodes as f64;
        (0..self.nodes).for_each(|node| self.at(at, Action::Offer(node, each)));
    }
}
