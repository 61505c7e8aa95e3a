//! Reloads of real nodes that come thick and fast, are given up half-way, or are told to some nodes alone.
#![cfg(feature = "net")]

mod fleet;

use std::time::Duration;

use fleet::{Fleet, admitted, bucket, eventually, limits};
use ratemesh::{Limit, PeerState, ReloadError, config::MAX_LIMITS};
use tokio::time::timeout;

const KEY: &str = "alice";

#[tokio::test(flavor = "multi_thread")]
async fn reloads_given_up_half_way_leave_a_fleet_that_counts_right() {
    let mut fleet = Fleet::start(3, &limits(&[bucket("api", 1_000)])).await;
    let mut spent = 0;
    for round in 0..24_usize {
        let units = [900, 1_000, 800][round % 3];
        fleet.set_limits(&limits(&[bucket("api", units), bucket(["one", "other"][round % 2], 5)]));
        let patience = Duration::from_millis(round as u64 % 6 * 3);
        // Each with certificates of its own, and some by two callers at once.
        let [first, second, third, again] =
            [round, round + 1, round + 2, round].map(|node| timeout(patience, fleet.reload(node % 3)));
        let _ = tokio::join!(first, second, third, again);
        spent += admitted(&fleet.limiter(round % 3), KEY, 10);
    }
    fleet.set_limits(&limits(&[bucket("api", 1_000)]));
    for node in 0..3 {
        fleet.reload(node).await.expect("it can be changed");
    }
    fleet.whole().await;
    fleet.agrees(KEY, 1_000 - spent).await;
    assert_eq!(spent, 240);
    assert!((0..3).all(|node| fleet.mesh(node).status().restarts == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_while_it_is_changed_ends_both() {
    for delay in [0, 1, 5, 20] {
        let mut fleet = Fleet::start(2, &limits(&[bucket("api", 100)])).await;
        assert_eq!(admitted(&fleet.limiter(0), KEY, 30), 30);
        fleet.agrees(KEY, 70).await;
        fleet.set_limits(&limits(&[bucket("api", 90)]));
        let reload = timeout(Duration::from_millis(delay), fleet.reload(0)).await;
        drop(reload);
        fleet.shut_down(0).await;
        fleet.restart(0).await;
        fleet.reload(1).await.expect("it can be changed");
        fleet.whole().await;
        fleet.agrees(KEY, 60).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_are_renamed_without_end_are_refused_and_the_last_ones_stay() {
    let mut fleet = Fleet::start(1, &limits(&[bucket("api", 100).max_keys(16)])).await;
    assert_eq!(admitted(&fleet.limiter(0), KEY, 30), 30);
    let mut refused = None;
    for round in 0..6 {
        let named = |number: usize| bucket(&format!("{round}-{number}"), 5).max_keys(16);
        let mut next: Vec<_> = (1..MAX_LIMITS).map(named).collect();
        next.push(bucket("api", 100).max_keys(16));
        fleet.set_limits(&limits(&next));
        if let Err(error) = fleet.reload(0).await {
            refused = Some((round, error));
            break;
        }
    }
    let (round, error) = refused.expect("there is an end");
    assert_eq!((round, &error), (4, &ReloadError::TooManyLimits), "{error}");
    assert!(fleet.mesh(0).limiter("4-1").is_none() && fleet.mesh(0).limiter("3-1").is_some());
    // What it had before it can have again.
    fleet.set_limits(&limits(&[bucket("api", 100).max_keys(16), bucket("0-1", 7).max_keys(16)]));
    fleet.reload(0).await.expect("it has had them");
    assert_eq!(fleet.limiter(0).peek(KEY).remaining(), 70);
    assert_eq!(admitted(&fleet.mesh(0).limiter("0-1").expect("the limit"), KEY, 30), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_one_node_drops_and_takes_up_again_is_counted_all_the_while() {
    let fleet = Fleet::start(3, &limits(&[bucket("api", 300)])).await;
    assert_eq!(admitted(&fleet.limiter(2), KEY, 50), 50);
    fleet.agrees(KEY, 250).await;
    let mut left = 250;
    for _ in 0..2 {
        fleet.reload_among(0, &[0, 1]).await.expect("it can be changed");
        assert_eq!(fleet.limiter(0).peek(KEY).remaining(), left);
        // Between the two that are left to each other everything is told, and the third is heard through the second.
        left -= 20;
        assert_eq!(admitted(&fleet.limiter(0), KEY, 10) + admitted(&fleet.limiter(2), KEY, 10), 20);
        eventually("the one between to hear both", || fleet.limiter(1).peek(KEY).remaining() == left).await;
        fleet.reload_among(0, &[0, 1, 2]).await.expect("it can be changed");
        eventually("the peer to be up", || {
            fleet.sees(0, 2) == PeerState::Up && fleet.sees(2, 0) == PeerState::Up
        })
        .await;
        fleet.agrees(KEY, left).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_of_a_peer_that_is_dropped_come_back_and_are_gone_again_with_it() {
    let fleet = Fleet::start(2, &limits(&[Limit::concurrency("api", 5)])).await;
    let (here, there) = (fleet.limiter(0), fleet.limiter(1));
    let held = [1, 2].map(|cost| there.reserve(KEY, cost).expect("there are some"));
    eventually("the permits to be heard of", || here.peek(KEY).remaining() == 2).await;
    for _ in 0..2 {
        fleet.reload_among(0, &[0]).await.expect("it can be changed");
        assert_eq!(here.peek(KEY).remaining(), 5);
        fleet.reload_among(0, &[0, 1]).await.expect("it can be changed");
        eventually("the permits to be heard of again", || here.peek(KEY).remaining() == 2).await;
    }
    drop(held);
    eventually("them to come back", || here.peek(KEY).remaining() == 5).await;
}
