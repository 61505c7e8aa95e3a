//! A limit with several quotas, in a fleet.

use std::time::Duration;

use ratemesh::{
    Limit, Quota,
    sim::{Cluster, Network},
};

const KEY: &str = "key";

#[test]
fn every_quota_holds_over_the_fleet_through_loss_a_partition_and_a_restart() {
    for seed in 0..10 {
        let network = Network { loss: 0.2, ..Network::default() };
        let bands =
            Limit::token_bucket("api", Quota::per_second(200)).burst(20).and(Quota::per_minute(3_000));
        // Beside another limit, so that places among limits and among quotas differ.
        let limits = vec![
            Limit::token_bucket("a", Quota::per_second(10)).and(Quota::per_hour(20)).build().unwrap(),
            bands.burst(600).build().unwrap(),
        ];
        let mut cluster = Cluster::with_network(3, limits, seed, network);
        cluster.advance(Duration::from_secs(1));
        (0..3).for_each(|node| cluster.offer_on(1, node, KEY, 150.0, 1));
        for second in 0..20 {
            match second {
                8 => cluster.partition(&[2], &[0, 1]),
                9 => cluster.heal(),
                // What was spent since the last round dies with a node that is killed.
                12 => cluster.offer_on(1, 1, KEY, 0.0, 1),
                13 => cluster.crash(1),
                14 => {
                    cluster.restart(1);
                    cluster.offer_on(1, 1, KEY, 150.0, 1);
                }
                _ => {}
            }
            cluster.advance(Duration::from_secs(1));
            cluster.assert_invariants();
        }
        let record = cluster.record_on(1, KEY).unwrap();
        // First 200 a second, until the minute's 600 are spent with the 50 a second that come in.
        for second in [1, 2] {
            assert!(
                (185..=225).contains(&record.in_second(second)),
                "seed {seed}: {}",
                record.in_second(second)
            );
        }
        for second in [6, 7, 11, 12, 17, 18] {
            let admitted = record.in_second(second);
            assert!((40..=65).contains(&admitted), "seed {seed}, second {second}: {admitted}");
        }
        // For the second of the partition each side goes on by itself, and a node that starts has its third.
        assert!(record.admitted() <= 600 + 50 * 20 + 200, "seed {seed}: {}", record.admitted());
        (0..3).for_each(|node| cluster.offer_on(1, node, KEY, 0.0, 1));
        // All nodes come to know the same of the longer quota, before its first epoch of 24 s retires.
        let mut views = Vec::new();
        for _ in 0..100 {
            cluster.advance(Duration::from_millis(250));
            views = (0..3).map(|node| cluster.view_of(1, 1, node, KEY).unwrap()).collect();
            if views[0] == views[1] && views[1] == views[2] {
                break;
            }
        }
        assert_eq!((&views[0], &views[1]), (&views[1], &views[2]), "seed {seed}");
        assert!(views[0].value() >= 600, "seed {seed}: {:?}", views[0]);
        assert!(cluster.view_of(0, 0, 0, KEY).unwrap().value() == 0);
    }
}

#[test]
fn a_status_has_a_row_for_each_quota_and_nodes_that_differ_say_so() {
    let bands = Limit::token_bucket("api", Quota::per_second(10)).and(Quota::per_hour(100));
    let mut cluster = Cluster::new(2, vec![bands.build().unwrap()], 1);
    cluster.advance(Duration::from_secs(1));
    assert!(cluster.check(0, KEY).unwrap().allowed);
    assert_eq!(cluster.refund(0, 0, KEY, 1), 1);
    let rows: Vec<_> = cluster
        .status(0)
        .unwrap()
        .limits
        .into_iter()
        .map(|limit| (limit.name, limit.quota, limit.band))
        .collect();
    let name = || "api".to_owned();
    assert_eq!(rows, [(name(), Quota::per_second(10), 0), (name(), Quota::per_hour(100), 1)]);
    assert!(cluster.status(0).unwrap().peers[0].mismatches.is_empty());
    assert_eq!(cluster.remaining(1, KEY), Some(10));
}
