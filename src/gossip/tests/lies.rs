//! One lie a test, and what becomes of it.

use super::*;
use crate::gossip::{
    PeerState,
    actors::MAX_INCARNATIONS,
    hot::Heat,
    message::{Message, Statement, Sync, SyncKey, SyncShare},
};

/// Long enough for a node to be shown what others have of it, and for its answer to be heard.
const HEALING: u64 = 5_000;

#[test]
fn a_claim_to_have_changes_that_do_not_exist_costs_their_writer_no_loss() {
    let mut fleet = Fleet::new(2, &slow(1_000));
    for (round, ahead) in [1_000, 1 << 40].into_iter().enumerate() {
        let actor = fleet.actor(2);
        fleet.ask(2, KEY, 10);
        fleet.pass(500);
        // The victim believes that it has versions which are still to come; what it loses now, it does not miss.
        let have = fleet.node(2).own_version();
        fleet.tell(1, &group(actor, have, &[], Some(have + ahead.min(1 << 22)))).unwrap();
        fleet.tell(2, &beats(&[Beat { actor, beat: 1, version: have + ahead }])).unwrap();
        fleet.cut.push((2, 1));
        fleet.ask(2, KEY, 10);
        fleet.pass(500);
        fleet.cut.clear();
        fleet.pass(HEALING);
        let spent = 20 * (round as u64 + 1);
        assert_eq!(fleet.known(1, 2), Share { spent, refunded: 0 }, "{ahead} ahead");
        assert_eq!(fleet.status(2).renewals, round as u64, "{ahead} ahead");
        fleet.pass(20_000);
    }
}

#[test]
fn a_made_up_share_does_not_hide_what_its_node_spends() {
    let mut fleet = Fleet::new(2, &slow(1_000));
    let actor = fleet.actor(2);
    let forged = group(actor, 0, &[item(1, KEY, 0, u64::MAX, u64::MAX)], None);
    fleet.tell(1, &forged).unwrap();
    fleet.ask(2, KEY, 10);
    fleet.pass(HEALING);
    fleet.ask(2, KEY, 40);
    fleet.pass(HEALING);
    assert_eq!(fleet.status(2).renewals, 1);
    assert!(fleet.known(1, 2).net() >= 40, "{:?}", fleet.known(1, 2));
    assert!(fleet.remaining(1, KEY) <= 960);
    let status = fleet.status(1);
    assert_eq!((status.refused.implausible, status.peers[0].refused, status.peers[1].refused), (1, 1, 0));
    // Said again and again, also of the new incarnation, it makes the node change no faster.
    for _ in 0..100 {
        let actor = fleet.actor(2);
        fleet.tell(1, &group(actor, 0, &[item(1, KEY, 0, 1 << 20, 1 << 20)], None)).unwrap();
        fleet.tell(2, &group(actor, 0, &[item(1, KEY, 0, 1 << 20, 1 << 20)], None)).unwrap();
        fleet.pass(100);
    }
    assert!(fleet.status(2).renewals <= 2);
}

#[test]
fn a_small_lie_about_a_share_is_found_out_too() {
    let mut fleet = Fleet::new(2, &slow(1_000));
    fleet.ask(2, KEY, 10);
    fleet.pass(300);
    let actor = fleet.actor(2);
    fleet.tell(1, &group(actor, 0, &[item(1, KEY, 0, 30, 30)], None)).unwrap();
    fleet.pass(HEALING);
    fleet.ask(2, KEY, 20);
    fleet.pass(HEALING);
    assert!(fleet.known(1, 2).net() >= 20, "{:?}", fleet.known(1, 2));
}

#[test]
fn a_new_incarnation_lives_beside_its_former_one() {
    let mut fleet = Fleet::new(2, &slow(1_000));
    fleet.ask(2, KEY, 10);
    fleet.pass(300);
    let former = fleet.actor(2);
    fleet.tell(2, &group(former, 0, &[item(1, KEY, 0, 30, 0)], None)).unwrap();
    assert_ne!(fleet.actor(2), former);
    // The former shares still lie there long after nobody has heard of their writer, and keep its place, also once nobody
    // needs to be told of them any more.
    for node in [1, 2] {
        let now = fleet.now;
        fleet.node(node).handle_disconnected(now, LIAR);
    }
    fleet.pass(200_000);
    fleet.ask(2, KEY, 5);
    fleet.pass(500);
    for node in [1, 2] {
        assert_eq!(fleet.known(node, 2), Share { spent: 15, refunded: 0 }, "at node {node}");
        assert_eq!(fleet.remaining(node, KEY), 985, "at node {node}");
    }
    // What is told of the former one is not debited by who wrote it.
    fleet.tell(2, &group(former, 0, &[item(2, KEY, 0, 500, 0)], None)).unwrap();
    assert_eq!(fleet.remaining(2, KEY), 985);
}

#[test]
fn what_was_never_debited_does_not_come_back() {
    let mut fleet = Fleet::new(1, &slow(100));
    fleet.ask(1, KEY, 1);
    fleet.tell(1, &group(liar(), 0, &[item(1, KEY, 0, 1_000, 0)], Some(1))).unwrap();
    assert_eq!(fleet.remaining(1, KEY), 0);
    // The debt is at most a bucket, so of a thousand units eight hundred were forgiven.
    fleet.tell(1, &group(liar(), 1, &[item(2, KEY, 0, 1_000, 900)], Some(2))).unwrap();
    assert_eq!(fleet.ask(1, KEY, 100), 0);
    fleet.tell(1, &group(liar(), 2, &[item(3, KEY, 0, 1_000, 1_000)], Some(3))).unwrap();
    assert_eq!(fleet.ask(1, KEY, 200), 99, "what this node had spent, it had spent");
}

#[test]
fn what_comes_back_of_a_window_that_is_over_is_no_credit_in_the_next() {
    let window = Limit::fixed_window("a", Quota::new(100, Duration::from_secs(10))).build().unwrap();
    let mut fleet = Fleet::new(1, &window);
    let epoch = fleet.tables[1].meter().window(fleet.now).unwrap() as u16;
    fleet.tell(1, &group(liar(), 0, &[item(1, KEY, epoch, 50, 0)], Some(1))).unwrap();
    assert_eq!(fleet.remaining(1, KEY), 50);
    fleet.pass(10_000);
    assert_eq!(fleet.ask(1, KEY, 200), 100);
    fleet.tell(1, &group(liar(), 1, &[item(2, KEY, epoch, 50, 50)], Some(2))).unwrap();
    assert_eq!(fleet.ask(1, KEY, 200), 0);
}

/// The number of the sync that the node has asked the liar for.
fn asked(fleet: &Fleet) -> u32 {
    let mut requests = fleet.heard.iter().rev().filter_map(|payload| match message::decode(payload) {
        Ok(Message::SyncRequest(request)) => Some(request.number),
        _ => None,
    });
    requests.next().expect("the node asks")
}

#[test]
fn what_a_sync_plants_is_no_credit_later() {
    let mut fleet = Fleet::start(1, &slow(100), true);
    let share = SyncShare { actor: liar(), epoch: 0, spent: u64::MAX, refunded: 0, age_ms: 0 };
    let key =
        SyncKey { limit: 0, digest: KEY.digest(), missing: 20 * 256, parts: Vec::new(), shares: vec![share] };
    let number = asked(&fleet);
    let sync = Sync { number, part: 0, synced: true, keys: vec![key], end: Some(Vec::new()) };
    fleet.tell(1, &message::sync(&sync)).unwrap();
    assert_eq!(fleet.status(1).refused.implausible, 1);
    let mut admitted = fleet.ask(1, KEY, 200);
    assert_eq!(admitted, 80);
    for round in 1..=50 {
        let back = item(round, KEY, 0, u64::MAX, 100 * round);
        fleet.tell(1, &group(liar(), round - 1, &[back], Some(round))).unwrap();
        admitted += fleet.ask(1, KEY, 200);
    }
    assert!(admitted <= 100, "a bucket of 100 admitted {admitted}");
}

#[test]
fn a_node_gets_its_place_whatever_was_said_in_its_name() {
    let mut fleet = Fleet::new(2, &slow(1_000));
    let invented: Vec<Beat> = (0..100)
        .map(|incarnation| Beat { actor: WireActor { node: 2, incarnation }, beat: 1, version: 1 })
        .collect();
    fleet.tell(1, &beats(&invented)).unwrap();
    let of_node = fleet.node(1).actors.of_node(NodeIndex(2)).count();
    assert!(of_node <= 1 + MAX_INCARNATIONS / 2, "{of_node}");
    // Another run of the node, and another, each with shares of its own, more often than they retire.
    for run in 0..2 * MAX_INCARNATIONS as u32 {
        let hello = fleet.hello(10_000 + run, Vec::new());
        fleet.tell(1, &hello).unwrap();
        let actor = WireActor { node: LIAR.0, incarnation: 10_000 + run };
        fleet.tell(1, &group(actor, 0, &[item(1, KEY, 0, 1, 0)], Some(1))).unwrap();
        assert_eq!(fleet.node(1).clock_of(LIAR, Incarnation::new(10_000 + run)), 1, "run {run}");
        fleet.pass(1_100);
    }
    let of_liar = fleet.node(1).actors.of_node(LIAR).count();
    assert!(of_liar <= MAX_INCARNATIONS, "{of_liar}");
    fleet.ask(2, KEY, 10);
    fleet.pass(500);
    assert_eq!(fleet.known(1, 2), Share { spent: 10, refunded: 0 });
}

#[test]
fn no_beat_is_the_last() {
    let mut fleet = Fleet::new(3, &slow(1_000));
    // Node 1 cannot hear node 3; node 2 passes on that it lives.
    fleet.cut.push((3, 1));
    let actor = fleet.actor(3);
    for beat in [u32::MAX, u32::MAX / 2, 1 << 20] {
        fleet.tell(1, &beats(&[Beat { actor, beat, version: 0 }])).unwrap();
        for _ in 0..50 {
            fleet.pass(100);
            let state = fleet.status(1).peers[2].state;
            assert_eq!(state, PeerState::Up, "after beat {beat}");
        }
    }
}

#[test]
fn nobody_tells_of_more_actors_than_there_can_be() {
    let mut fleet = Fleet::new(1, &slow(1_000));
    let progress = |count: u32| -> Vec<Progress> {
        let actor = |incarnation| WireActor { node: 1, incarnation };
        (0..count).map(|number| Progress { actor: actor(number), version: 1, floor: 0 }).collect()
    };
    let most = 2 * MAX_INCARNATIONS as u32;
    for (count, fits) in [(most, true), (most + 1, false), (50_000, false)] {
        let hello = fleet.hello(LIARS, progress(count));
        assert_eq!(fleet.tell(1, &hello).is_ok(), fits, "{count} in a hello");
        let request = message::SyncRequest { number: 1, joining: false, progress: progress(count) };
        assert_eq!(fleet.tell(1, &message::sync_request(&request)).is_ok(), fits, "{count} in a request");
        let end = Some(progress(count));
        let sync = Sync { number: 1, part: 0, synced: true, keys: Vec::new(), end };
        assert_eq!(fleet.tell(1, &message::sync(&sync)).is_ok(), fits, "{count} in a sync");
    }
}

#[test]
fn half_of_the_forecasts_are_kept_for_keys_that_are_hot_here() {
    let fast = Limit::token_bucket("a", Quota::per_second(1_000)).max_keys(2_000).build().unwrap();
    let mut fleet = Fleet::new(1, &fast);
    let statement = Some(Statement { demand: 1e9, level: -1e9 });
    let claims: Vec<Item> = (1..=1_000_u64)
        .map(|key| Item { statement, ..item(key, Key::from_digest(key.into()), 0, 1, 0) })
        .collect();
    fleet.tell(1, &group(liar(), 0, &claims, Some(1_000))).unwrap();
    let now = fleet.now;
    let table = fleet.tables[1].clone();
    let hot = &mut fleet.node(1).books[0].hot;
    assert_eq!(hot.slots().count(), crate::table::MAX_FORECASTS / 2);
    for digest in 1_001..1_100 {
        let slot = table.insert(Key::from_digest(digest), now).unwrap();
        assert!(hot.heat(&table, slot, Heat::Here, now), "key {digest}");
    }
}
