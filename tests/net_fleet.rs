//! Nodes over real QUIC on loopback: what they know of each other, and what outlives whom.
#![cfg(feature = "net")]

mod fleet;

use std::time::Duration;

use fleet::{Fleet, admitted, eventually};
use ratemesh::{Basis, Limit, PeerState, Quota, Refusal};

const KEY: &str = "alice";

/// A bucket of so many units that all but never refills.
fn bucket(units: u64) -> Limit {
    Limit::token_bucket("api", Quota::per_day(units)).burst(units).build().expect("a limit")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_admits_the_others_count() {
    let fleet = Fleet::start(3, &[bucket(100)]).await;
    assert_eq!(admitted(&fleet.limiter(0), KEY, 30), 30);
    fleet.agrees(KEY, 70).await;
    assert_eq!(fleet.limiter(1).peek(KEY).basis(), Basis::Cluster);
    fleet.agrees("bob", 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_in_turn_admit_the_quota_once() {
    let fleet = Fleet::start(3, &[bucket(300)]).await;
    assert_eq!(admitted(&fleet.limiter(0), KEY, 100), 100);
    fleet.agrees(KEY, 200).await;
    assert_eq!(admitted(&fleet.limiter(1), KEY, 100), 100);
    fleet.agrees(KEY, 100).await;
    assert_eq!(admitted(&fleet.limiter(2), KEY, 300), 100);
    fleet.agrees(KEY, 0).await;
    assert_eq!(admitted(&fleet.limiter(0), KEY, 10), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_reaches_the_others() {
    let fleet = Fleet::start(3, &[bucket(100)]).await;
    assert_eq!(admitted(&fleet.limiter(0), KEY, 30), 30);
    fleet.agrees(KEY, 70).await;
    assert_eq!(fleet.limiter(0).refund(KEY, 10), 10);
    fleet.agrees(KEY, 80).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_limits_and_quotas_are_asked_together_and_settled_for_the_fleet() {
    let other =
        Limit::token_bucket("other", Quota::per_day(50)).and(Quota::per_hour(40)).build().expect("a limit");
    let fleet = Fleet::start(2, &[bucket(100), other]).await;
    let mesh = fleet.mesh(0);
    let refused = mesh.check_all([("api", KEY, 10), ("other", KEY, 41)]).unwrap_err();
    assert!(matches!((refused.index, refused.refusal), (1, Refusal::Cost(error)) if error.capacity() == 40));
    let unknown = mesh.check_all([("api", KEY, 10), ("none", KEY, 1)]).unwrap_err();
    assert!(matches!((unknown.index, unknown.refusal), (1, Refusal::NoSuchLimit)));
    mesh.check_all([("api", KEY, 10), ("other", KEY, 35)]).expect("both have the units");
    let api = fleet.limiter(0);
    let other = mesh.limiter("other").expect("the limit");
    assert_eq!(mesh.check_all([(&api, KEY, 10), (&other, KEY, 6)]).unwrap_err().index, 1);
    let permits = mesh.reserve_all([("api", KEY, 20), ("other", KEY, 5)]).expect("both have the units");
    fleet.agrees(KEY, 70).await;
    permits.refund();
    fleet.agrees(KEY, 90).await;
    let elsewhere = fleet.mesh(1).limiter("other").expect("the limit");
    eventually("the shorter quota", || elsewhere.peek(KEY).remaining() == 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_admits_its_share_until_it_has_the_totals_back() {
    let mut fleet = Fleet::start(3, &[bucket(90)]).await;
    assert_eq!(admitted(&fleet.limiter(0), KEY, 60), 60);
    fleet.agrees(KEY, 30).await;
    fleet.kill(0);
    fleet.restart(0).await;
    let limiter = fleet.limiter(0);
    let mut before = 0;
    eventually("the sync", || {
        before += admitted(&limiter, KEY, 10);
        fleet.mesh(0).status().gossip.synced
    })
    .await;
    assert!(before <= 30, "{before} units were admitted, more than the share of 30");
    fleet.whole().await;
    fleet.agrees(KEY, 30 - before).await;
    assert_eq!(before + admitted(&limiter, KEY, 90), 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_forgets_nothing() {
    let mut fleet = Fleet::start(3, &[bucket(100)]).await;
    assert_eq!(admitted(&fleet.limiter(0), KEY, 40), 40);
    fleet.agrees(KEY, 60).await;
    for index in 0..3 {
        if index % 2 == 0 {
            fleet.shut_down(index).await;
        } else {
            fleet.kill(index);
        }
        fleet.restart(index).await;
        fleet.whole().await;
        fleet.agrees(KEY, 60).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_is_told_of_every_key_there_is() {
    // More than can wait at once to be sent.
    const KEYS: usize = 300_000;
    let mut fleet = Fleet::start(3, &[bucket(100)]).await;
    let limiter = fleet.limiter(0);
    for key in 0..KEYS {
        assert!(limiter.check(key as u64).is_allowed());
    }
    eventually("the keys", || [1, 2].iter().all(|index| fleet.limiter(*index).live_keys() == KEYS)).await;
    fleet.kill(2);
    fleet.restart(2).await;
    fleet.whole().await;
    let limiter = fleet.limiter(2);
    assert_eq!(limiter.live_keys(), KEYS);
    assert!((0..KEYS).all(|key| limiter.peek(key as u64).remaining() == 99));
    for index in 0..3 {
        let status = fleet.mesh(index).status();
        assert!(status.links.iter().all(|link| link.streams_dropped == 0), "{:?}", status.links);
        assert_eq!(status.refused.total(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_says_so() {
    let mut fleet = Fleet::start(3, &[bucket(100)]).await;
    let limiter = fleet.limiter(0);
    fleet.shut_down(0).await;
    for index in [1, 2] {
        eventually("the goodbye", || fleet.sees(index, 0) == PeerState::Left).await;
    }
    // The limiter goes on without its mesh.
    assert_eq!(admitted(&limiter, "bob", 100), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cut_off_is_missed_and_catches_up() {
    let fleet = Fleet::start(3, &[bucket(100)]).await;
    fleet.mesh(2).cut_off(true);
    assert!(fleet.mesh(2).status().cut_off);
    let lost = |index, peer| fleet.sees(index, peer) == PeerState::Unreachable;
    eventually("the loss", || lost(0, 2) && lost(1, 2) && lost(2, 0) && lost(2, 1)).await;
    assert!(fleet.mesh(2).status().gossip.local_only);
    let silence = || match fleet.limiter(2).peek(KEY).basis() {
        Basis::LocalOnly { unheard: 2, longest } => longest,
        basis => panic!("{basis:?}"),
    };
    // It is unreachable after a second, and the silence goes on.
    assert!(silence() >= Duration::from_millis(990), "{:?}", silence());
    eventually("the silence to last", || silence() > Duration::from_millis(1_300)).await;
    assert!(fleet.mesh(2).status().links.iter().all(|link| link.address.is_none()));
    assert_eq!(admitted(&fleet.limiter(0), KEY, 20), 20);
    assert_eq!(admitted(&fleet.limiter(2), KEY, 10), 10);
    fleet.mesh(2).cut_off(false);
    fleet.whole().await;
    fleet.agrees(KEY, 70).await;
    assert_eq!(fleet.mesh(0).status().links[1].reconnects, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_gone_leaves_its_limiters_and_no_task() {
    let before = alive_tasks();
    let mut fleet = Fleet::start(3, &[bucket(100)]).await;
    let limiter = fleet.limiter(0);
    assert_eq!(admitted(&limiter, KEY, 30), 30);
    for index in 0..3 {
        fleet.kill(index);
    }
    eventually("the end of all tasks", || alive_tasks() <= before).await;
    assert_eq!(admitted(&limiter, KEY, 100), 70);
}

fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}
