//! Every algorithm in a fleet, through loss, partitions and restarts.
#![cfg(feature = "sim")]

use std::time::Duration;

use ratemesh::{
    Limit, LimitBuilder, OnPartition, Quota,
    sim::{Cluster, Network},
};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;
const NODES: usize = 3;
/// What two peers, asked for 40 units a second each, can have spent that one has not heard of: in 300 ms, after which one of the
/// messages that each change and each heartbeat sends has come, however many were lost.
const UNDER_WAY: f64 = 24.0;

fn lossy() -> Network {
    Network { loss: 0.2, ..Network::default() }
}

fn second(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Limits that count units over time, all of 40 units a second.
fn over_time() -> Vec<(&'static str, LimitBuilder)> {
    let quota = Quota::per_second(40);
    vec![
        ("token bucket", Limit::token_bucket("a", quota)),
        ("leaky bucket", Limit::leaky_bucket("a", quota)),
        ("fixed window", Limit::fixed_window("a", quota)),
        ("staggered windows", Limit::fixed_window("a", quota).staggered()),
        ("sliding window", Limit::sliding_window("a", quota)),
        ("two windows", Limit::sliding_window("a", quota).precision(1)),
    ]
}

/// Asks every node for the key, in turn, so often a second in all, and returns how many requests passed.
fn ask(cluster: &mut Cluster, per_second: u64, for_seconds: u64) -> u64 {
    let step = Duration::from_secs(1) / u32::try_from(per_second).unwrap();
    let mut admitted = 0;
    for request in 0..per_second * for_seconds {
        cluster.advance(step);
        let node = request as usize % NODES;
        admitted += u64::from(cluster.check(node, "key").is_some_and(|answer| answer.allowed));
    }
    admitted
}

#[test]
fn every_algorithm_holds_the_sum_under_loss_and_through_a_restart() {
    for (name, limit) in over_time() {
        for seed in SEEDS {
            let mut cluster =
                Cluster::with_network(NODES, vec![limit.clone().build().unwrap()], seed, lossy());
            cluster.advance(second(3));
            let steady = ask(&mut cluster, 120, 5);
            // What a bucket or a window holds at the beginning, and the part of a window that is under way at the end.
            assert!((5 * 40 - 20..=6 * 40 + 12).contains(&steady), "{name}, seed {seed}: {steady} in 5 s");
            cluster.crash(2);
            ask(&mut cluster, 120, 2);
            cluster.restart(2);
            ask(&mut cluster, 120, 3);
            let after = ask(&mut cluster, 120, 5);
            assert!((5 * 40 - 45..=6 * 40 + 12).contains(&after), "{name}, seed {seed}: {after} in 5 s");
            // Of two windows, nearly the quota again can pass: that is in their nature, not in the fleet's.
            let worst = if name == "two windows" { 40.0 } else { 0.0 } + UNDER_WAY;
            let excess = cluster.record("key").unwrap().excess();
            assert!(excess <= worst, "{name}, seed {seed}: {excess} units too many");
            cluster.assert_invariants();
        }
    }
}

#[test]
fn a_partition_admits_the_quota_on_each_side_or_once_as_was_chosen() {
    for (name, limit) in over_time() {
        for (behaviour, most) in [(OnPartition::Local, 2), (OnPartition::Share, 1)] {
            for seed in SEEDS {
                let limit = limit.clone().on_partition(behaviour).build().unwrap();
                let mut cluster = Cluster::with_network(NODES, vec![limit], seed, lossy());
                cluster.advance(second(3));
                ask(&mut cluster, 120, 3);
                cluster.partition(&[0, 1], &[2]);
                ask(&mut cluster, 120, 2);
                let apart = ask(&mut cluster, 120, 6);
                let bound = most * 6 * 40 + 40 + 24;
                assert!(
                    apart <= bound,
                    "{name}, {behaviour:?}, seed {seed}: {apart} in 6 s, at most {bound}"
                );
                let least = match behaviour {
                    OnPartition::Local => 6 * 40,
                    _ => 6 * 40 * 3 / 4,
                };
                assert!(apart >= least, "{name}, {behaviour:?}, seed {seed}: {apart} in 6 s");
                cluster.heal();
                ask(&mut cluster, 120, 4);
                let together = ask(&mut cluster, 120, 5);
                assert!(
                    (5 * 40 - 45..=6 * 40 + 12).contains(&together),
                    "{name}, {behaviour:?}, seed {seed}: {together} in 5 s, {:?}",
                    cluster.record("key").unwrap().seconds()
                );
            }
        }
    }
}

#[test]
fn every_node_knows_of_what_a_sliding_window_holds_also_after_a_restart() {
    for seed in SEEDS {
        let limit = Limit::sliding_window("a", Quota::new(30, second(60))).build().unwrap();
        let mut cluster = Cluster::with_network(NODES, vec![limit], seed, lossy());
        cluster.advance(second(3));
        for node in 0..NODES {
            assert_eq!((0..5).filter(|_| cluster.check(node, "key").unwrap().allowed).count(), 5);
        }
        cluster.advance(second(20));
        assert!((0..9).all(|_| cluster.check(0, "key").unwrap().allowed));
        cluster.advance(second(5));
        for node in 0..NODES {
            cluster.crash(node);
            cluster.advance(second(2));
            cluster.restart(node);
            cluster.advance(second(3));
        }
        for node in 0..NODES {
            assert_eq!(cluster.remaining(node, "key"), Some(6), "seed {seed}, node {node}");
        }
        // 40 s later, what was spent first has left the window, and what was spent later has not.
        cluster.advance(second(27));
        for node in 0..NODES {
            assert_eq!(cluster.remaining(node, "key"), Some(21), "seed {seed}, node {node}");
        }
        cluster.advance(second(20));
        for node in 0..NODES {
            assert_eq!(cluster.remaining(node, "key"), Some(30), "seed {seed}, node {node}");
        }
    }
}

#[test]
fn refunds_reach_a_sliding_window_everywhere() {
    for seed in SEEDS {
        let limit = Limit::sliding_window("a", Quota::new(10, second(60))).build().unwrap();
        let mut cluster = Cluster::with_network(NODES, vec![limit], seed, lossy());
        cluster.advance(second(3));
        assert!((0..8).all(|_| cluster.check(0, "key").unwrap().allowed));
        cluster.advance(second(5));
        assert_eq!(cluster.refund(0, 0, "key", 3), 3);
        cluster.advance(second(15));
        for node in 0..NODES {
            assert_eq!(cluster.remaining(node, "key"), Some(5), "seed {seed}, node {node}");
        }
        cluster.advance(second(60));
        for node in 0..NODES {
            assert_eq!(cluster.remaining(node, "key"), Some(10), "seed {seed}, node {node}");
        }
    }
}

fn permits(behaviour: OnPartition, seed: u64) -> Cluster {
    let limit = Limit::concurrency("a", 12).on_partition(behaviour).build().unwrap();
    let mut cluster = Cluster::with_network(NODES, vec![limit], seed, lossy());
    cluster.advance(second(3));
    cluster
}

fn take(cluster: &mut Cluster, node: usize, most: usize) -> usize {
    let taken = (0..most).filter(|_| cluster.check(node, "key").unwrap().allowed).count();
    cluster.advance(second(2));
    taken
}

#[test]
fn permits_are_counted_on_all_nodes_for_as_long_as_they_are_held() {
    for seed in SEEDS {
        let mut cluster = permits(OnPartition::Local, seed);
        assert_eq!(take(&mut cluster, 0, 5), 5);
        assert_eq!(take(&mut cluster, 1, 6), 6);
        assert_eq!(take(&mut cluster, 2, 9), 1);
        // Through many epochs.
        for _ in 0..8 {
            cluster.advance(second(7));
            for node in 0..NODES {
                assert_eq!(cluster.remaining(node, "key"), Some(0), "seed {seed}, node {node}");
            }
        }
        assert_eq!(cluster.refund(0, 1, "key", 4), 4);
        cluster.advance(second(2));
        for node in 0..NODES {
            assert_eq!(cluster.remaining(node, "key"), Some(4), "seed {seed}, node {node}");
        }
        cluster.advance(second(35));
        assert_eq!(cluster.refund(0, 0, "key", 9), 5);
        assert_eq!(cluster.refund(0, 1, "key", 9), 2);
        assert_eq!(cluster.refund(0, 2, "key", 9), 1);
        cluster.advance(second(35));
        for node in 0..NODES {
            assert_eq!(cluster.remaining(node, "key"), Some(12), "seed {seed}, node {node}");
        }
        assert!(cluster.record("key").unwrap().excess() <= 0.0);
    }
}

#[test]
fn a_dead_nodes_permits_stop_counting_and_a_restarted_one_knows_of_those_of_others() {
    for seed in SEEDS {
        let mut cluster = permits(OnPartition::Local, seed);
        assert_eq!(take(&mut cluster, 0, 5), 5);
        assert_eq!(take(&mut cluster, 1, 4), 4);
        cluster.crash(0);
        cluster.advance(second(4));
        for node in 1..NODES {
            assert_eq!(cluster.remaining(node, "key"), Some(8), "seed {seed}, node {node}");
        }
        cluster.restart(0);
        cluster.advance(second(4));
        for node in 0..NODES {
            assert_eq!(cluster.remaining(node, "key"), Some(8), "seed {seed}, node {node}");
        }
        cluster.leave(1);
        cluster.advance(second(1));
        assert_eq!(cluster.remaining(0, "key"), Some(12));
    }
}

#[test]
fn permits_of_a_node_that_is_cut_off_count_as_was_chosen_and_again_when_it_is_back() {
    for (behaviour, apart) in
        [(OnPartition::Local, 12), (OnPartition::Share, 8), (OnPartition::LastDemand, 7)]
    {
        for seed in SEEDS {
            let mut cluster = permits(behaviour, seed);
            assert_eq!(take(&mut cluster, 2, 5), 5);
            cluster.partition(&[0, 1], &[2]);
            cluster.advance(second(4));
            assert_eq!(cluster.remaining(0, "key"), Some(apart), "{behaviour:?}, seed {seed}");
            cluster.heal();
            cluster.advance(second(15));
            for node in 0..NODES {
                assert_eq!(
                    cluster.remaining(node, "key"),
                    Some(7),
                    "{behaviour:?}, seed {seed}, node {node}"
                );
            }
        }
    }
}
