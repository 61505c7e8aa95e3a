//! What is settled or given back on one node holds on all, in its own epoch, whatever the network does.

use std::{collections::BTreeMap, time::Duration};

use ratemesh::{
    Limit, Quota, Share,
    sim::{Cluster, Network, Reserved},
};

const KEY: &str = "key";
const NODES: usize = 3;

fn rough() -> Network {
    Network { loss: 0.2, duplication: 0.1, reordering: 0.1, ..Network::default() }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a node knows each node to have spent and given back.
fn known(cluster: &Cluster, node: usize, band: usize) -> BTreeMap<usize, Share> {
    let mut known = BTreeMap::new();
    for (actor, share) in cluster.view_of(0, band, node, KEY).unwrap().shares() {
        let number: usize = actor.node.as_str().trim_start_matches("node-").parse().unwrap();
        let sum: &mut Share = known.entry(number).or_default();
        sum.spent += share.spent;
        sum.refunded += share.refunded;
    }
    known
}

/// Waits until all nodes know the truth.
fn agree(cluster: &mut Cluster, truth: &BTreeMap<usize, Share>, seed: u64) {
    for _ in 0..160 {
        if (0..NODES).all(|node| known(cluster, node, 0) == *truth) {
            return;
        }
        cluster.advance(millis(250));
        cluster.assert_invariants();
    }
    let views: Vec<_> = (0..NODES).map(|node| known(cluster, node, 0)).collect();
    panic!("seed {seed}: {truth:?}, but the nodes know {views:?}");
}

#[test]
fn what_is_settled_reaches_every_node_through_loss_a_partition_and_a_restart() {
    for seed in 0..60 {
        let limit = Limit::token_bucket("ample", Quota::per_hour(3_600_000)).burst(1_000_000);
        let mut cluster = Cluster::with_network(NODES, vec![limit.build().unwrap()], seed, rough());
        cluster.advance(Duration::from_secs(1));
        let mut truth: BTreeMap<usize, Share> = BTreeMap::new();
        let mut open: Vec<(usize, u64, Reserved)> = Vec::new();
        let mut rng = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |most: u64| {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            rng % most
        };
        for round in 0..60 {
            let (node, cost) = (draw(NODES as u64) as usize, draw(20));
            if let Some(reserved) = cluster.reserve(0, node, KEY, cost) {
                truth.entry(node).or_default().spent += cost;
                open.push((node, cost, reserved));
            }
            if round % 3 > 0 && !open.is_empty() {
                let (node, cost, reserved) = open.swap_remove(draw(open.len() as u64) as usize);
                let actual = draw(30);
                let (spent, given_back) = cluster.settle(reserved, actual);
                assert_eq!((spent, given_back), (actual.saturating_sub(cost), cost.saturating_sub(actual)));
                let share = truth.entry(node).or_default();
                share.spent += spent;
                share.refunded += given_back;
            }
            match round {
                15 => cluster.partition(&[0], &[1, 2]),
                30 => cluster.heal(),
                45 => {
                    // What is not settled before its node starts anew stays spent.
                    agree(&mut cluster, &truth, seed);
                    cluster.crash(1);
                    cluster.advance(millis(300));
                    cluster.restart(1);
                    cluster.advance(Duration::from_secs(3));
                    let (lost, kept): (Vec<_>, Vec<_>) = open.into_iter().partition(|(node, ..)| *node == 1);
                    lost.into_iter().for_each(|(.., held)| assert_eq!(cluster.settle(held, 0), (0, 0)));
                    open = kept;
                }
                _ => cluster.advance(millis(40)),
            }
            cluster.assert_invariants();
        }
        agree(&mut cluster, &truth, seed);
    }
}

/// One unit a second and a hundred at once: epochs are 200 s long.
fn slow() -> Cluster {
    let limit = Limit::token_bucket("slow", Quota::per_hour(3_600)).burst(100).build().unwrap();
    let mut cluster = Cluster::with_network(NODES, vec![limit], 7, rough());
    cluster.advance(Duration::from_secs(1));
    cluster
}

fn near(cluster: &Cluster, node: usize, wanted: f64) {
    let level = cluster.level(node, KEY).unwrap();
    assert!((level - wanted).abs() < 1.0, "node {node}: {level}, not {wanted}");
}

#[test]
fn units_of_the_last_epoch_come_back_to_its_share_and_to_every_level() {
    let mut cluster = slow();
    cluster.advance(Duration::from_secs(180));
    let reserved = cluster.reserve(0, 0, KEY, 80).unwrap();
    cluster.advance(Duration::from_secs(15));
    assert!(cluster.check_cost(0, 0, KEY, 30).unwrap().allowed);
    cluster.advance(Duration::from_secs(10));
    // The next epoch has begun, and its share.
    assert!(cluster.check_cost(0, 0, KEY, 10).unwrap().allowed);
    cluster.advance(Duration::from_secs(2));
    (0..NODES).for_each(|node| near(&cluster, node, 7.0));
    assert_eq!(cluster.settle(reserved, 20), (0, 60));
    cluster.advance(Duration::from_secs(3));
    for node in 0..NODES {
        near(&cluster, node, 70.0);
        assert_eq!(known(&cluster, node, 0)[&0], Share { spent: 120, refunded: 60 });
    }
    // When the last epoch retires, so does what came back to it: it was no share of the next one.
    cluster.advance(Duration::from_secs(10));
    assert!(cluster.check_cost(0, 0, KEY, 1).unwrap().allowed);
    cluster.advance(Duration::from_secs(195));
    assert_eq!(known(&cluster, 0, 0)[&0], Share { spent: 11, refunded: 0 });
}

#[test]
fn units_of_a_retired_epoch_do_not_come_back() {
    let mut cluster = slow();
    let reserved = cluster.reserve(0, 0, KEY, 60).unwrap();
    for _ in 0..42 {
        assert!(cluster.check_cost(0, 0, KEY, 10).unwrap().allowed);
        cluster.advance(Duration::from_secs(10));
    }
    assert_eq!(cluster.settle(reserved, 0), (0, 0));
    cluster.advance(Duration::from_secs(1));
    (0..NODES).for_each(|node| assert_eq!(known(&cluster, node, 0)[&0].refunded, 0));
}

#[test]
fn a_look_without_spending_at_the_turn_of_an_epoch_loses_nothing_that_is_spent_after() {
    let mut cluster = slow();
    cluster.advance(Duration::from_secs(190));
    assert!(cluster.check_cost(0, 0, KEY, 50).unwrap().allowed);
    cluster.advance(Duration::from_secs(12));
    // Refused, or given back: the first thing in the new epoch is published without any unit spent in it.
    assert!(!cluster.check_cost(0, 0, KEY, 100).unwrap().allowed);
    assert_eq!(cluster.refund(0, 0, KEY, 5), 5);
    cluster.advance(Duration::from_secs(1));
    assert!(cluster.check_cost(0, 0, KEY, 20).unwrap().allowed);
    cluster.advance(Duration::from_secs(1));
    for node in 0..NODES {
        assert_eq!(known(&cluster, node, 0)[&0], Share { spent: 70, refunded: 5 }, "node {node}");
        near(&cluster, node, 49.0);
    }
}

#[test]
fn what_comes_back_to_a_window_is_not_credited_to_the_next() {
    for seed in 0..20 {
        let limit = Limit::fixed_window("window", Quota::new(100, Duration::from_secs(10))).build().unwrap();
        let mut cluster = Cluster::with_network(NODES, vec![limit], seed, rough());
        cluster.advance(millis(8_000));
        let (early, late) =
            (cluster.reserve(0, 0, KEY, 40).unwrap(), cluster.reserve(0, 0, KEY, 40).unwrap());
        cluster.advance(millis(1_970));
        // Peers hear of it after the window has turned.
        assert_eq!(cluster.settle(early, 0), (0, 40));
        cluster.advance(millis(40));
        assert!((1..NODES).all(|node| cluster.check_cost(0, node, KEY, 10).unwrap().allowed));
        assert_eq!(cluster.settle(late, 0), (0, 0));
        cluster.advance(millis(1_000));
        for node in 0..NODES {
            assert_eq!(cluster.remaining(node, KEY), Some(80), "seed {seed}, node {node}");
        }
        // And within the window it comes back on every node, also right after the turn.
        let reserved = cluster.reserve(0, 0, KEY, 50).unwrap();
        cluster.advance(millis(500));
        assert_eq!(cluster.settle(reserved, 0), (0, 50));
        cluster.advance(millis(8_540));
        let reserved = cluster.reserve(0, 0, KEY, 50).unwrap();
        assert_eq!(cluster.settle(reserved, 10), (0, 40));
        cluster.advance(millis(1_500));
        for node in 0..NODES {
            assert_eq!(cluster.remaining(node, KEY), Some(90), "seed {seed}, node {node}");
        }
    }
}
