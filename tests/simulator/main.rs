//! What the simulator must be, and what a fleet must come to whatever happens on the way.

mod bands;
mod convergence;
mod permits;
mod reload;
mod rules;

use std::time::Duration;

use ratemesh::{
    Limit, Quota,
    sim::{
        Cluster, Network, Summary,
        scenario::{Action, named},
    },
};

fn trace(seed: u64) -> u64 {
    let scenario = named("crash", 3).unwrap();
    scenario.run(seed).1.trace_hash()
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let first: Vec<u64> = (0..3).map(trace).collect();
    let again: Vec<u64> = (0..3).map(trace).collect();
    assert_eq!(first, again);
}

#[test]
fn another_seed_gives_another_run() {
    let traces: std::collections::BTreeSet<u64> = (0..5).map(trace).collect();
    assert_eq!(traces.len(), 5);
}

#[test]
fn light_load_refuses_nothing_under_any_seed() {
    let limit = Limit::token_bucket("api", Quota::per_second(100)).build().unwrap();
    for seed in 0..100 {
        let mut cluster = Cluster::new(3, vec![limit.clone()], seed);
        // A node that has just started holds nothing until its peers have said that they hold nothing either.
        cluster.advance(Duration::from_secs(1));
        (0..3).for_each(|node| cluster.offer(node, "key", 5.0));
        for _ in 0..30 {
            cluster.advance(Duration::from_secs(1));
            cluster.assert_invariants();
        }
        let record = cluster.record("key").unwrap();
        assert_eq!(record.admitted(), record.asked(), "seed {seed}");
    }
}

/// In a fleet that relays, every node is shown its own shares all the time.
#[test]
fn no_node_takes_honest_news_of_its_own_for_made_up() {
    let limit = Limit::token_bucket("api", Quota::per_second(1_000)).burst(100).build().unwrap();
    for (nodes, seed) in [(3, 1), (8, 2), (12, 3)] {
        let network = Network { loss: 0.1, duplication: 0.1, reordering: 0.2, ..Network::default() };
        let mut cluster = Cluster::with_network(nodes, vec![limit.clone()], seed, network);
        cluster.advance(Duration::from_secs(1));
        (0..nodes).for_each(|node| cluster.offer(node, "key", 2_000.0 / nodes as f64));
        for round in 0..25 {
            cluster.advance(Duration::from_secs(1));
            cluster.refund(0, round % nodes, "key", 3);
        }
        for node in 0..nodes {
            let status = cluster.status(node).unwrap();
            assert_eq!((status.renewals, status.refused.implausible), (0, 0), "node {node} of {nodes}");
        }
    }
}

#[test]
fn a_run_that_fails_names_its_seed() {
    let mut scenario = named("cold", 3).unwrap();
    scenario.steps.push((Duration::from_millis(500), Action::Crash(7)));
    let failure = Summary::of(&scenario, 41..=42).unwrap_err();
    assert_eq!((failure.seed, failure.nodes), (41, 3));
    assert!(failure.to_string().contains("cold with 3 nodes failed under seed 41"), "{failure}");
}
