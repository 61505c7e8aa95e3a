//! Every node comes to the exact total, of every actor, whatever was lost, repeated or reordered.

use std::{collections::BTreeMap, time::Duration};

use ratemesh::{
    Limit, Quota, Share,
    sim::{Cluster, Network},
};

const KEY: &str = "key";
const NODES: usize = 3;
/// How long the nodes may take to agree once nothing more is spent: three repairs.
const PATIENCE: Duration = Duration::from_secs(40);

/// A limit whose epochs are so long that nothing retires, and so large that nothing but a joining node refuses.
fn ample() -> Limit {
    Limit::token_bucket("ample", Quota::per_hour(3_600_000)).burst(1_000_000).build().unwrap()
}

fn rough() -> Network {
    Network { loss: 0.2, duplication: 0.1, reordering: 0.1, ..Network::default() }
}

/// A fleet, and what each node has spent and given back in truth.
struct Fleet {
    cluster: Cluster,
    seed: u64,
    refunded: [u64; NODES],
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let cluster = Cluster::with_network(NODES, vec![ample()], seed, rough());
        Self { cluster, seed, refunded: [0; NODES] }
    }

    fn offer_all(&mut self, rate: f64) {
        (0..NODES).for_each(|node| self.cluster.offer(node, KEY, rate));
    }

    /// Lets time pass, and looks at the invariants on the way.
    fn pass(&mut self, millis: u64) {
        for _ in 0..millis / 100 {
            self.cluster.advance(Duration::from_millis(100));
            self.cluster.assert_invariants();
        }
    }

    fn refund(&mut self, node: usize, units: u64) {
        self.refunded[node] += self.cluster.refund(0, node, KEY, units);
    }

    /// What each node has spent and given back, over all its runs.
    fn truth(&self) -> BTreeMap<usize, Share> {
        let mut truth = BTreeMap::new();
        for nodes in self.cluster.record(KEY).unwrap().seconds() {
            for (node, spent) in nodes.iter().enumerate().filter(|(_, spent)| **spent > 0) {
                truth.entry(node).or_insert_with(Share::default).spent += spent;
            }
        }
        for (node, share) in &mut truth {
            share.refunded = self.refunded[*node];
        }
        truth
    }

    /// The same as one node knows it.
    fn view(&self, node: usize) -> Option<BTreeMap<usize, Share>> {
        let mut known = BTreeMap::new();
        for (actor, share) in self.cluster.view(node, KEY)?.shares() {
            let number: usize = actor.node.as_str().trim_start_matches("node-").parse().unwrap();
            let sum: &mut Share = known.entry(number).or_default();
            sum.spent += share.spent;
            sum.refunded += share.refunded;
        }
        Some(known)
    }

    /// Waits until all nodes that are up know the truth of the given nodes.
    fn eventually_agree_on(&mut self, nodes: &[usize]) {
        let step = Duration::from_millis(250);
        let mut waited = Duration::ZERO;
        loop {
            let truth = self.truth();
            let told =
                |view: &BTreeMap<usize, Share>| nodes.iter().all(|node| view.get(node) == truth.get(node));
            let unaware: Vec<usize> =
                (0..NODES).filter(|node| self.view(*node).is_some_and(|view| !told(&view))).collect();
            if unaware.is_empty() {
                return;
            }
            let views: Vec<_> = (0..NODES).map(|node| self.view(node)).collect();
            let seed = self.seed;
            assert!(waited < PATIENCE, "seed {seed}: nodes {unaware:?} know not {truth:?} but {views:?}");
            self.cluster.advance(step);
            self.cluster.assert_invariants();
            waited += step;
        }
    }

    fn eventually_agree(&mut self) {
        self.eventually_agree_on(&[0, 1, 2]);
        let net: u64 = self.truth().values().map(|share| share.net()).sum();
        for node in 0..NODES {
            assert_eq!(
                self.cluster.view(node, KEY).map(|view| view.value()),
                Some(net),
                "seed {}",
                self.seed
            );
        }
    }
}

#[test]
fn loss_a_partition_and_a_restart_lose_no_unit() {
    for seed in 0..200 {
        let victim = seed as usize % NODES;
        let other = (victim + 1 + seed as usize / 3 % 2) % NODES;
        let mut fleet = Fleet::new(seed);
        fleet.offer_all(40.0);
        fleet.pass(1_000);
        let rest: Vec<usize> = (0..NODES).filter(|node| *node != other).collect();
        fleet.cluster.partition(&[other], &rest);
        fleet.pass(1_500);
        fleet.cluster.heal();
        fleet.pass(500);
        // What was spent since the last round dies with a node that is killed, so the others must have heard first.
        fleet.cluster.offer(victim, KEY, 0.0);
        fleet.eventually_agree_on(&[victim]);
        let before = fleet.truth();
        fleet.cluster.crash(victim);
        fleet.pass(1_000);
        fleet.cluster.restart(victim);
        fleet.cluster.offer(victim, KEY, 40.0);
        fleet.pass(2_000);
        fleet.offer_all(0.0);
        fleet.eventually_agree();
        let runs = fleet.cluster.view(other, KEY).unwrap();
        let runs =
            runs.shares().filter(|(actor, _)| actor.node.as_str() == format!("node-{victim:04}")).count();
        assert!(
            before.contains_key(&victim) && runs == 2,
            "seed {seed}: {runs} runs of node {victim} are known"
        );
    }
}

#[test]
fn refunds_reach_every_node_too() {
    for seed in 0..60 {
        let mut fleet = Fleet::new(1_000 + seed);
        fleet.offer_all(40.0);
        for round in 0..6 {
            fleet.pass(300);
            let node = (seed as usize + round) % NODES;
            fleet.refund(node, 1 + seed % 7);
            if round == 2 {
                fleet.cluster.partition(&[0], &[1, 2]);
            }
        }
        // More than was ever spent comes back in part.
        fleet.refund(2, 1_000_000);
        fleet.cluster.heal();
        fleet.pass(300);
        fleet.offer_all(0.0);
        fleet.eventually_agree();
        let share = fleet.truth()[&2];
        assert!(share.refunded > 0 && share.refunded <= share.spent, "seed {seed}: {share:?}");
    }
}

#[test]
fn news_finds_a_way_round_a_one_way_cut() {
    for seed in 0..60 {
        let (from, to) = (seed as usize % NODES, (seed as usize + 1) % NODES);
        let mut fleet = Fleet::new(2_000 + seed);
        fleet.offer_all(30.0);
        fleet.pass(700);
        fleet.cluster.cut(from, to);
        fleet.pass(1_000);
        fleet.offer_all(0.0);
        fleet.eventually_agree();
        fleet.offer_all(30.0);
        fleet.pass(500);
        fleet.cluster.heal();
        fleet.pass(500);
        fleet.offer_all(0.0);
        fleet.eventually_agree();
    }
}

/// Keys that are refused while an epoch of theirs begins keep telling what they spend, epoch after epoch.
#[test]
fn a_slow_limit_holds_through_many_epochs_of_refusals() {
    for seed in 1..=5 {
        // Too slow to be expected anything of: every unit is told.
        let limit = Limit::token_bucket("a", Quota::per_second(15)).build().unwrap();
        let mut cluster = Cluster::new(3, vec![limit], seed);
        cluster.advance(Duration::from_secs(2));
        for node in 0..3 {
            cluster.offer(node, "key", 20.0);
        }
        cluster.advance(Duration::from_secs(60));
        let record = cluster.record("key").unwrap();
        assert!(record.excess() <= 5.0, "seed {seed}: {} units too many", record.excess());
        assert!(record.admitted() >= 60 * 15, "seed {seed}: {} admitted", record.admitted());
    }
}
