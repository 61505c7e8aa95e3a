//! Quotas that change while the fleet runs: for single keys, and for all at a reload.

use std::time::Duration;

use ratemesh::{
    Limit, LimitBuilder, Override, Quota,
    sim::{Cluster, Network, Record},
};

const NODES: usize = 3;
const KEY: &str = "alice";
const SECOND: Duration = Duration::from_secs(1);

fn rough() -> Network {
    Network { loss: 0.2, duplication: 0.05, reordering: 0.2, ..Network::default() }
}

fn start(builder: LimitBuilder, network: Network, seed: u64) -> Cluster {
    let mut cluster = Cluster::with_network(NODES, vec![builder.build().unwrap()], seed, network);
    cluster.advance(SECOND);
    cluster
}

/// One limit of each algorithm that has a rate, of so many units a second.
fn algorithms(units: u64) -> [LimitBuilder; 5] {
    let quota = Quota::per_second(units);
    [
        Limit::token_bucket("api", quota),
        Limit::leaky_bucket("api", quota),
        Limit::fixed_window("api", quota),
        Limit::fixed_window("api", quota).staggered(),
        Limit::sliding_window("api", quota),
    ]
}

fn admitted(cluster: &Cluster) -> u64 {
    cluster.record(KEY).map_or(0, Record::admitted)
}

/// What all nodes admit in a second under overload, on average over some.
fn rate(cluster: &mut Cluster, seconds: u32) -> f64 {
    let before = admitted(cluster);
    cluster.advance(SECOND * seconds);
    cluster.assert_invariants();
    (admitted(cluster) - before) as f64 / f64::from(seconds)
}

fn offer(cluster: &mut Cluster, rate: f64) {
    (0..NODES).for_each(|node| cluster.offer(node, KEY, rate));
}

#[test]
fn an_override_set_on_one_node_holds_on_all_with_every_algorithm() {
    for builder in algorithms(100) {
        for seed in 0..4 {
            let mut cluster = start(builder.clone(), rough(), seed);
            offer(&mut cluster, 1_000.0);
            cluster.advance(2 * SECOND);
            let base = rate(&mut cluster, 5);
            cluster.set_override(0, 1, KEY, Override::quota(Quota::per_second(500))).unwrap();
            cluster.advance(2 * SECOND);
            let raised = rate(&mut cluster, 5);
            cluster.set_override(0, 2, KEY, Override::quota(Quota::per_second(20))).unwrap();
            cluster.advance(3 * SECOND);
            let lowered = rate(&mut cluster, 5);
            cluster.clear_override(0, 0, KEY).unwrap();
            cluster.advance(2 * SECOND);
            let cleared = rate(&mut cluster, 5);
            for (what, rate, wanted) in [
                ("base", base, 100.0),
                ("raised", raised, 500.0),
                ("lowered", lowered, 20.0),
                ("cleared", cleared, 100.0),
            ] {
                let off = rate / wanted;
                assert!((0.75..=1.15).contains(&off), "{builder:?}, seed {seed}, {what}: {rate} a second");
            }
        }
    }
}

#[test]
fn permits_follow_their_override_on_all_nodes() {
    let mut cluster = start(Limit::concurrency("api", 3), Network::default(), 7);
    let reserve = |cluster: &mut Cluster, most: usize| {
        let mut held = Vec::new();
        for turn in 0..most {
            held.extend(cluster.reserve(0, turn % NODES, KEY, 1));
            cluster.advance(SECOND / 5);
        }
        held
    };
    let mut held = reserve(&mut cluster, 9);
    assert_eq!(held.len(), 3);
    let quota = |permits| Override::quota(Quota::at_a_time(permits));
    cluster.set_override(0, 1, KEY, quota(5)).unwrap();
    cluster.advance(SECOND);
    held.extend(reserve(&mut cluster, 9));
    assert_eq!(held.len(), 5);
    cluster.set_override(0, 2, KEY, quota(1)).unwrap();
    cluster.advance(SECOND);
    for reserved in held {
        assert!(reserve(&mut cluster, 3).is_empty(), "more than one is in use");
        assert_eq!(cluster.settle(reserved, 0), (0, 1));
        cluster.advance(SECOND);
    }
    assert_eq!(reserve(&mut cluster, 9).len(), 1);
}

#[test]
fn an_override_outlasts_a_partition_and_the_restart_of_every_node() {
    for seed in 0..6 {
        let mut cluster = start(Limit::token_bucket("api", Quota::per_second(50)), rough(), seed);
        offer(&mut cluster, 500.0);
        cluster.advance(SECOND);
        cluster.partition(&[0], &[1, 2]);
        cluster.set_override(0, 0, KEY, Override::quota(Quota::per_second(200))).unwrap();
        cluster.advance(5 * SECOND);
        cluster.heal();
        cluster.advance(12 * SECOND);
        let healed = rate(&mut cluster, 5);
        assert!((180.0..=220.0).contains(&healed), "seed {seed}: {healed}");
        for node in 0..NODES {
            cluster.crash(node);
            cluster.advance(2 * SECOND);
            cluster.restart(node);
            cluster.advance(3 * SECOND);
        }
        cluster.advance(5 * SECOND);
        let restarted = rate(&mut cluster, 5);
        assert!((180.0..=220.0).contains(&restarted), "seed {seed}: {restarted}");
    }
}

/// Reloads all nodes one after the other, so far apart.
fn roll(cluster: &mut Cluster, limit: &LimitBuilder, apart: Duration) {
    for node in 0..NODES {
        cluster.reload(node, &[limit.clone().build().unwrap()]).unwrap();
        cluster.advance(apart);
    }
}

#[test]
fn a_reloaded_quota_holds_with_every_algorithm() {
    let changed = algorithms(400).into_iter().zip(algorithms(25));
    for (builder, (raised, lowered)) in algorithms(100).into_iter().zip(changed) {
        for seed in 0..3 {
            let mut cluster = start(builder.clone(), rough(), seed);
            offer(&mut cluster, 1_000.0);
            cluster.advance(2 * SECOND);
            for (what, limit) in [("raised", &raised), ("lowered", &lowered)] {
                roll(&mut cluster, limit, SECOND);
                cluster.advance(3 * SECOND);
                let reloaded = rate(&mut cluster, 10);
                // What a fleet admits that had this quota from the start.
                let mut other = start(limit.clone(), rough(), seed);
                offer(&mut other, 1_000.0);
                other.advance(3 * SECOND);
                let wanted = rate(&mut other, 10);
                let off = reloaded / wanted;
                assert!(
                    (0.9..=1.1).contains(&off),
                    "{builder:?}, seed {seed}, {what}: {reloaded} of {wanted}"
                );
            }
        }
    }
}

#[test]
fn a_reload_loses_no_count_and_gives_no_second_burst() {
    // Buckets and windows that bring nothing while the test runs: all that is ever admitted is the quota, once.
    let quota = |units| Quota::new(units, Duration::from_secs(100 * 86_400));
    let kinds: [fn(&str, Quota) -> LimitBuilder; 3] =
        [Limit::token_bucket, Limit::fixed_window, Limit::sliding_window];
    for kind in kinds {
        for seed in 0..5 {
            let mut cluster = start(kind("api", quota(1_000)), Network::default(), seed);
            offer(&mut cluster, 30.0);
            cluster.advance(4 * SECOND);
            let spent = admitted(&cluster);
            assert!((300..=420).contains(&spent), "{spent}");
            roll(&mut cluster, &kind("api", quota(800)), SECOND / 2);
            roll(&mut cluster, &kind("api", quota(900)), SECOND / 2);
            cluster.advance(20 * SECOND);
            cluster.assert_invariants();
            let all = admitted(&cluster);
            assert!((890..=930).contains(&all), "seed {seed}: {all} of 900");
        }
    }
}

#[test]
fn a_lowered_quota_holds_at_once_while_the_others_have_the_former() {
    for seed in 0..5 {
        let mut cluster = start(Limit::token_bucket("api", Quota::per_second(300)), Network::default(), seed);
        offer(&mut cluster, 1_000.0);
        cluster.advance(3 * SECOND);
        let lowered = Limit::token_bucket("api", Quota::per_second(30)).build().unwrap();
        cluster.reload(0, std::slice::from_ref(&lowered)).unwrap();
        cluster.advance(SECOND);
        cluster.restart_records();
        cluster.advance(5 * SECOND);
        let seconds = cluster.record(KEY).unwrap().seconds().to_vec();
        let by_node: Vec<u64> = (0..NODES)
            .map(|node| seconds.iter().map(|second| second.get(node).copied().unwrap_or(0)).sum())
            .collect();
        // The two others spend far more than its quota, of which it hears: it has nothing to give.
        assert!(by_node[0] <= 30, "seed {seed}: {by_node:?}");
        let all: u64 = by_node.iter().sum();
        assert!(all <= 5 * 300 * 103 / 100, "seed {seed}: {by_node:?}");
    }
}

#[test]
fn a_limit_does_not_become_what_its_counts_are_not_kept_for() {
    let mut cluster = start(Limit::token_bucket("api", Quota::per_second(10)), Network::default(), 1);
    let quota = Quota::per_second(20);
    let cases = [
        (Limit::fixed_window("api", quota), "algorithm"),
        (Limit::token_bucket("api", quota).max_keys(5), "max_keys"),
        (Limit::token_bucket("api", quota).and(Quota::per_hour(100)), "quota"),
    ];
    for (builder, field) in cases {
        let error = cluster.reload(0, &[builder.build().unwrap()]).unwrap_err();
        assert_eq!(error.field(), field, "{error}");
    }
    assert_eq!(cluster.remaining(0, KEY), Some(10));
}

#[test]
fn permits_in_use_elsewhere_stay_so_while_their_quota_goes_down_and_up_again() {
    for reloads in [false, true] {
        let mut cluster = start(Limit::concurrency("api", 5), Network::default(), 3);
        let held: Vec<_> = (0..5).filter_map(|_| cluster.reserve(0, 1, KEY, 1)).collect();
        assert_eq!(held.len(), 5);
        cluster.advance(SECOND);
        let to = |cluster: &mut Cluster, permits: u64| {
            if reloads {
                roll(cluster, &Limit::concurrency("api", permits), SECOND / 10);
            } else {
                let quota = Quota::new(permits, Duration::ZERO);
                cluster.set_override(0, 0, KEY, Override::quota(quota)).unwrap();
            }
        };
        to(&mut cluster, 1);
        cluster.advance(SECOND);
        // Something changes while the quota is lower than what is in use.
        let mut held = held.into_iter();
        cluster.settle(held.next().unwrap(), 0);
        cluster.advance(3 * SECOND);
        to(&mut cluster, 5);
        let more = (0..9).filter_map(|_| cluster.reserve(0, 0, KEY, 1)).count();
        assert_eq!(more, 1, "four are in use, reloads {reloads}");
    }
}

#[test]
fn quotas_that_change_without_end_under_faults_add_up() {
    // Buckets and windows that bring nothing while the test runs, and changes on all nodes, by overrides and by reloads.
    let quota = |units| Quota::new(units, Duration::from_secs(100 * 86_400));
    let kinds: [fn(&str, Quota) -> LimitBuilder; 3] =
        [Limit::token_bucket, Limit::fixed_window, Limit::sliding_window];
    for kind in kinds {
        for seed in 0..4_u64 {
            let mut cluster = start(kind("api", quota(1_000)), rough(), seed);
            offer(&mut cluster, 10.0);
            let sizes = [1_000, 800, 1_200, 700, 1_100];
            for round in 0..10_usize {
                let (node, units) = ((round + seed as usize) % NODES, sizes[round % sizes.len()]);
                match (round + seed as usize) % 5 {
                    0 => cluster.set_override(0, node, KEY, Override::quota(quota(units))).unwrap(),
                    1 => assert!(cluster.clear_override(0, node, KEY).is_ok()),
                    2 => cluster.partition(&[node], &[(node + 1) % NODES, (node + 2) % NODES]),
                    3 => cluster.heal(),
                    _ => {}
                }
                for _ in 0..2 {
                    cluster.reload(node, &[kind("api", quota(units)).build().unwrap()]).unwrap();
                }
                cluster.assert_invariants();
                cluster.advance(2 * SECOND);
                cluster.assert_invariants();
            }
            cluster.heal();
            cluster.clear_override(0, 0, KEY).unwrap();
            roll(&mut cluster, &kind("api", quota(1_200)), SECOND / 2);
            cluster.advance(60 * SECOND);
            cluster.assert_invariants();
            let all = admitted(&cluster);
            assert!((1_190..=1_260).contains(&all), "seed {seed}: {all} of 1200");
        }
    }
}

#[test]
fn a_node_that_crashes_between_reloads_and_overrides_comes_back_to_what_holds() {
    for seed in 0..4 {
        let builder = Limit::token_bucket("api", Quota::per_second(50)).and(Quota::per_minute(2_000));
        let mut cluster = start(builder, rough(), seed);
        offer(&mut cluster, 300.0);
        cluster.advance(SECOND);
        let next = Limit::token_bucket("api", Quota::per_second(100)).and(Quota::per_minute(6_000));
        cluster.reload(0, &[next.clone().build().unwrap()]).unwrap();
        cluster.crash(1);
        cluster.set_override(0, 2, KEY, Override::quota(Quota::per_second(200))).unwrap();
        cluster.advance(SECOND);
        cluster.restart(1);
        // It starts with what it had before, and is changed while it joins.
        cluster.reload(1, &[next.clone().build().unwrap()]).unwrap();
        cluster.reload(2, &[next.clone().build().unwrap()]).unwrap();
        cluster.advance(10 * SECOND);
        let own = rate(&mut cluster, 5);
        assert!((180.0..=220.0).contains(&own), "seed {seed}: {own}");
        cluster.clear_override(0, 0, KEY).unwrap();
        cluster.advance(5 * SECOND);
        let cleared = rate(&mut cluster, 5);
        assert!((80.0..=115.0).contains(&cleared), "seed {seed}: {cleared}");
    }
}
