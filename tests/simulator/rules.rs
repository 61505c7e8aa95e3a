//! Bans, overrides and resets hold on every node, whatever the network and the nodes do.

use std::{collections::BTreeSet, time::Duration};

use ratemesh::{
    Key, KeyHasher, Limit, LimitBuilder, Override, Quota, Refused,
    sim::{Cluster, Network},
};

const NODES: usize = 3;
const KEY: &str = "mallory";
const HOUR: Duration = Duration::from_secs(3_600);
/// The next hello, and then some.
const PATIENCE: Duration = Duration::from_secs(60);

fn rough() -> Network {
    Network { loss: 0.2, duplication: 0.05, reordering: 0.2, ..Network::default() }
}

fn bucket() -> LimitBuilder {
    Limit::token_bucket("api", Quota::per_second(10)).burst(20)
}

fn cluster(nodes: usize, builder: LimitBuilder, seed: u64) -> Cluster {
    let mut cluster = Cluster::with_network(nodes, vec![builder.build().unwrap()], seed, rough());
    cluster.advance(Duration::from_secs(1));
    cluster
}

fn eventually(cluster: &mut Cluster, what: &str, seed: u64, holds: impl Fn(&mut Cluster) -> bool) {
    let mut waited = Duration::ZERO;
    while !holds(cluster) {
        assert!(waited < PATIENCE, "seed {seed}: {what}");
        cluster.advance(Duration::from_millis(100));
        cluster.assert_invariants();
        waited += Duration::from_millis(100);
    }
}

fn is_banned(cluster: &mut Cluster, node: usize, key: &str) -> bool {
    cluster.check(node, key).is_some_and(|answer| answer.refused == Some(Refused::Banned))
}

fn banned_on(cluster: &mut Cluster, key: &str) -> Vec<usize> {
    (0..cluster.len()).filter(|node| is_banned(cluster, *node, key)).collect()
}

type Knowledge = (Vec<(Key, u64)>, Vec<(Key, Override)>);

/// Everything that a node knows of: who is banned and for how many seconds, and the overrides.
fn knowledge(cluster: &Cluster, node: usize) -> Option<Knowledge> {
    // Nodes know the end to within what the message took.
    let seconds = |rest: Duration| (rest.as_secs_f64() / 60.0).round() as u64;
    let bans = cluster.bans(0, node)?.into_iter().map(|(key, rest)| (key, seconds(rest))).collect();
    Some((bans, cluster.overrides(0, node)?))
}

#[test]
fn a_ban_reaches_every_node_at_once_and_lapses_on_all() {
    for (nodes, seed) in (0..30).map(|seed| (if seed % 3 == 0 { 9 } else { NODES }, seed)) {
        let mut cluster = cluster(nodes, bucket(), seed);
        // Some nodes know the key already, and others do not.
        (0..nodes).step_by(2).for_each(|node| assert!(cluster.check(node, KEY).unwrap().allowed));
        cluster.ban(0, seed as usize % nodes, KEY, Duration::from_secs(20)).unwrap();
        cluster.advance(Duration::from_millis(300));
        assert_eq!(banned_on(&mut cluster, KEY), (0..nodes).collect::<Vec<_>>(), "seed {seed}");
        cluster.advance(Duration::from_secs(20));
        assert!(banned_on(&mut cluster, KEY).is_empty(), "seed {seed}");
        assert_eq!(cluster.status(0).unwrap().limits[0].bans, 0);
    }
}

#[test]
fn bans_survive_the_restart_of_each_node_in_turn() {
    for seed in 0..20 {
        let mut cluster = cluster(NODES, bucket(), seed);
        cluster.ban(0, 0, KEY, HOUR).unwrap();
        cluster.set_override(0, 1, "friend", Override::Allow).unwrap();
        for node in 0..NODES {
            cluster.advance(Duration::from_secs(1));
            cluster.crash(node);
            cluster.advance(Duration::from_millis(700));
            cluster.restart(node);
            cluster.advance(Duration::from_secs(1));
        }
        assert_eq!(banned_on(&mut cluster, KEY), [0, 1, 2], "seed {seed}");
        let status = cluster.status(2).unwrap();
        assert_eq!((status.limits[0].bans, status.limits[0].overrides), (1, 1), "seed {seed}");
        // Its end is what it was, within what the messages took.
        let rest = cluster.bans(0, 2).unwrap()[0].1;
        let passed = cluster.elapsed() - Duration::from_secs(1);
        assert!(
            rest + passed >= HOUR && rest + passed <= HOUR + Duration::from_secs(1),
            "seed {seed}: {rest:?}"
        );
    }
}

#[test]
fn what_was_said_on_both_sides_of_a_cut_comes_together() {
    for seed in 0..30 {
        let mut cluster = cluster(NODES, bucket(), seed);
        cluster.ban(0, 0, "lifted", HOUR).unwrap();
        cluster.set_override(0, 0, "changed", Override::Allow).unwrap();
        cluster.advance(Duration::from_secs(1));
        cluster.partition(&[2], &[0, 1]);
        cluster.ban(0, 0, KEY, HOUR).unwrap();
        cluster.ban(0, 2, KEY, 2 * HOUR).unwrap();
        assert_eq!(cluster.unban(0, 2, "lifted"), Ok(true));
        cluster.set_override(0, 2, "changed", Override::Deny).unwrap();
        cluster.advance(Duration::from_secs(20));
        assert!(is_banned(&mut cluster, 1, KEY) && is_banned(&mut cluster, 1, "lifted"));
        cluster.heal();
        eventually(&mut cluster, "the sides did not agree", seed, |cluster| {
            let first = knowledge(cluster, 0);
            (1..NODES).all(|node| knowledge(cluster, node) == first)
        });
        for node in 0..NODES {
            assert_eq!(cluster.bans(0, node).unwrap().len(), 1, "seed {seed}");
            let rest = cluster.bans(0, node).unwrap()[0].1;
            assert!(rest > HOUR, "seed {seed}: the longer ban holds, not {rest:?}");
            assert_eq!(cluster.check(node, "changed").unwrap().refused, Some(Refused::Denied), "seed {seed}");
        }
    }
}

#[test]
fn nodes_come_to_know_the_same_under_loss_cuts_and_restarts() {
    for seed in 0..60 {
        let nodes = if seed % 4 == 0 { 7 } else { NODES };
        let mut cluster = cluster(nodes, bucket(), seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..60 {
            let (node, key) = (rng.usize(0..nodes), format!("key-{}", rng.u8(0..6)));
            match rng.u8(0..10) {
                0..=2 => cluster.ban(0, node, &*key, HOUR * rng.u32(1..5)).unwrap(),
                3 => drop(cluster.unban(0, node, &*key)),
                4 => cluster.set_override(0, node, &*key, Override::Deny).unwrap(),
                5 => cluster.set_override(0, node, &*key, Override::Allow).unwrap(),
                6 => drop(cluster.clear_override(0, node, &*key)),
                7 => cluster.reset(0, node, &*key).unwrap(),
                8 => {
                    cluster.partition(&[node], &(0..nodes).filter(|other| *other != node).collect::<Vec<_>>())
                }
                _ if rng.bool() => cluster.heal(),
                _ => {
                    cluster.crash(node);
                    cluster.restart(node);
                }
            }
            assert!((0..nodes).all(|node| cluster.check(node, &key).is_some()));
            cluster.advance(Duration::from_millis(rng.u64(1..400)));
            cluster.assert_invariants();
        }
        cluster.heal();
        eventually(&mut cluster, "the nodes did not agree", seed, |cluster| {
            let first = knowledge(cluster, 0);
            (1..nodes).all(|node| knowledge(cluster, node) == first)
        });
        let refused: Vec<u64> =
            (0..nodes).map(|node| cluster.status(node).unwrap().refused.notices).collect();
        assert_eq!(refused, vec![0; nodes], "seed {seed}");
    }
}

#[test]
fn a_node_cut_off_from_the_one_that_bans_hears_of_it_through_another() {
    let mut cluster = cluster(NODES, bucket(), 7);
    cluster.partition(&[0], &[2]);
    cluster.advance(Duration::from_secs(15));
    cluster.ban(0, 0, KEY, HOUR).unwrap();
    cluster.advance(Duration::from_millis(300));
    assert_eq!(banned_on(&mut cluster, KEY), [0, 1, 2]);
}

#[test]
fn who_exceeds_a_limit_on_one_node_is_banned_on_all() {
    for seed in 0..20 {
        let mut cluster = cluster(NODES, bucket().ban_on_exceed(HOUR), seed);
        cluster.offer(0, KEY, 60.0);
        cluster.advance(Duration::from_secs(3));
        cluster.offer(0, KEY, 0.0);
        assert_eq!(banned_on(&mut cluster, KEY), [0, 1, 2], "seed {seed}");
        assert!(cluster.check(1, "somebody else").unwrap().allowed);
        let admitted = cluster.record(KEY).unwrap().admitted();
        assert!((20..=60).contains(&admitted), "seed {seed}: {admitted}");
        cluster.unban(0, 2, KEY).unwrap();
        cluster.advance(Duration::from_secs(3));
        assert!(cluster.check(0, KEY).unwrap().allowed, "seed {seed}");
    }
}

#[test]
fn who_hammers_one_node_is_kept_out_on_the_others_where_refusals_cost() {
    for counted in [true, false] {
        let mut cluster = cluster(NODES, bucket().count_denied(counted), 3);
        cluster.offer(0, KEY, 100.0);
        cluster.advance(Duration::from_secs(3));
        cluster.restart_records();
        cluster.advance(Duration::from_secs(10));
        let admitted = cluster.record(KEY).unwrap().admitted();
        assert!(if counted { admitted <= 2 } else { admitted >= 90 }, "{admitted}");
        assert_eq!(cluster.level(1, KEY).unwrap() < -5.0, counted, "{:?}", cluster.level(1, KEY));
        cluster.offer(0, KEY, 0.0);
        // The debt is bounded, so it is paid in time.
        cluster.advance(Duration::from_secs(4));
        assert!(cluster.check(1, KEY).unwrap().allowed);
    }
}

#[test]
fn a_limit_that_is_tried_out_counts_for_the_fleet_and_refuses_nobody() {
    let mut cluster = cluster(NODES, bucket().shadow(true), 5);
    (0..NODES).for_each(|node| cluster.offer(node, KEY, 30.0));
    cluster.advance(Duration::from_secs(5));
    let record = cluster.record(KEY).unwrap();
    assert_eq!(record.admitted(), record.asked());
    let denials: u64 = (0..NODES).map(|node| cluster.status(node).unwrap().limits[0].denials).sum();
    // 90 a second are asked for, of which 10 would pass.
    assert!((300..400).contains(&denials), "{denials}");
    assert!(cluster.status(0).unwrap().limits[0].shadow);
}

#[test]
fn listed_keys_are_exempt_on_every_node() {
    let mut cluster = cluster(NODES, bucket().allow("key:friend").deny("key:foe"), 5);
    for node in 0..NODES {
        for _ in 0..50 {
            assert!(cluster.check(node, "friend").unwrap().allowed);
            assert_eq!(cluster.check(node, "foe").unwrap().refused, Some(Refused::Denied));
        }
    }
}

#[test]
fn a_reset_key_starts_anew_on_all_nodes_and_late_news_does_not_undo_it() {
    for seed in 0..30 {
        // What comes back by itself does not blur the picture.
        let slow = Limit::token_bucket("api", Quota::per_hour(100)).burst(100);
        let mut cluster = cluster(NODES, slow, seed);
        (0..NODES).for_each(|node| cluster.offer(node, KEY, 30.0));
        cluster.advance(Duration::from_secs(3));
        // Spent on a node that nobody hears at the moment, and on one that will be gone.
        cluster.partition(&[2], &[0, 1]);
        (0..NODES).for_each(|node| cluster.offer(node, KEY, 0.0));
        // What it has given back is spent again, and only its own share tells.
        cluster.refund(0, 2, KEY, 1_000);
        assert!((0..20).all(|_| cluster.check(2, KEY).is_some()));
        cluster.advance(Duration::from_secs(2));
        if seed % 2 == 0 {
            cluster.crash(1);
        }
        cluster.reset(0, 0, KEY).unwrap();
        assert_eq!(cluster.remaining(0, KEY), Some(100), "seed {seed}");
        cluster.advance(Duration::from_secs(1));
        cluster.heal();
        eventually(&mut cluster, "the key is not full on all nodes", seed, |cluster| {
            (0..NODES).all(|node| cluster.remaining(node, KEY).is_none_or(|left| left >= 100))
        });
        // And it stays so: nothing that was spent before comes back.
        for _ in 0..100 {
            cluster.advance(Duration::from_millis(200));
            cluster.assert_invariants();
            for node in (0..NODES).filter(|node| cluster.is_up(*node)) {
                assert_eq!(cluster.remaining(node, KEY), Some(100), "seed {seed}, node {node}");
            }
        }
        // One reset gives the key one bucket, not one for each node.
        cluster.restart_records();
        (0..NODES).for_each(|node| cluster.offer(node, KEY, 30.0));
        cluster.advance(Duration::from_secs(6));
        let admitted = cluster.record(KEY).unwrap().admitted();
        assert!((95..=112).contains(&admitted), "seed {seed}: {admitted}");
    }
}

#[test]
fn what_is_given_back_late_for_a_reset_is_not_credited_twice() {
    for seed in 0..30 {
        let slow = Limit::token_bucket("api", Quota::per_hour(100)).burst(100);
        let mut cluster = cluster(NODES, slow, seed);
        for node in [1, 2] {
            assert!((0..40).all(|_| cluster.check(node, KEY).unwrap().allowed));
        }
        cluster.advance(Duration::from_secs(1));
        assert_eq!(cluster.remaining(0, KEY), Some(20), "seed {seed}");
        cluster.partition(&[0], &[1, 2]);
        cluster.advance(Duration::from_secs(12));
        cluster.reset(0, 0, KEY).unwrap();
        assert!((0..60).all(|_| cluster.check(0, KEY).unwrap().allowed), "seed {seed}");
        cluster.advance(Duration::from_secs(1));
        cluster.heal();
        // The others hear of the reset, and say what they give back; the node that reset the key has had that already.
        cluster.advance(Duration::from_secs(15));
        for node in 0..NODES {
            assert!(cluster.remaining(node, KEY).unwrap() >= 40, "seed {seed}, node {node}");
        }
        assert!(cluster.remaining(0, KEY).unwrap() <= 41, "seed {seed}: {:?}", cluster.remaining(0, KEY));
    }
}

#[test]
fn a_reset_is_carried_out_once_also_where_a_node_starts_anew() {
    for seed in 0..20 {
        let slow = Limit::token_bucket("api", Quota::per_hour(100)).burst(100);
        let mut cluster = cluster(NODES, slow, seed);
        for _ in 0..40 {
            cluster.check(0, KEY);
        }
        cluster.advance(Duration::from_secs(1));
        cluster.reset(0, 1, KEY).unwrap();
        cluster.advance(Duration::from_secs(1));
        for _ in 0..60 {
            cluster.check(0, KEY);
        }
        cluster.advance(Duration::from_secs(1));
        // What a node finds of the reset when it comes back is history.
        cluster.crash(2);
        cluster.restart(2);
        cluster.partition(&[0], &[1, 2]);
        cluster.advance(Duration::from_secs(15));
        cluster.heal();
        cluster.advance(Duration::from_secs(15));
        let left: BTreeSet<_> = (0..NODES).map(|node| cluster.remaining(node, KEY).unwrap()).collect();
        assert!(left.iter().all(|left| (40..=42).contains(left)), "seed {seed}: {left:?}");
    }
}

#[test]
fn digests_of_what_was_said_are_those_of_the_keys() {
    let mut cluster = cluster(NODES, bucket(), 1);
    cluster.ban(0, 0, KEY, HOUR).unwrap();
    assert_eq!(cluster.bans(0, 0).unwrap(), [(KeyHasher::default().key(KEY), HOUR)]);
}
