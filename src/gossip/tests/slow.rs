//! Peers that take in less than they are told.

use super::*;

const KEYS: u64 = 30_000;
/// What a share takes at most on the way to one peer, and what signs of life take in a second.
const SHARE_BYTES: u64 = 21;
const LIFE_BYTES: u64 = 6_000;

fn limit() -> Limit {
    // A thousand units cannot wait.
    let quota = Quota::per_day(100_000);
    Limit::token_bucket("a", quota).burst(1 << 40).max_keys(2 * KEYS as usize).build().unwrap()
}

fn key(number: u64) -> Key {
    Key::from_digest(u128::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// Spends a unit of every key on the first node.
fn spend(fleet: &Fleet) {
    (0..KEYS).for_each(|number| assert_eq!(fleet.ask(1, key(number), 1), 1));
}

/// What the first node has sent to another, in bytes.
fn sent(fleet: &Fleet, to: usize) -> u64 {
    fleet.status(1).peers.iter().find(|peer| peer.node == name(to)).unwrap().bytes_sent
}

fn spent_at(fleet: &mut Fleet, node: usize, number: u64) -> u64 {
    let book = &fleet.node(node).books[0];
    let slot = book.table.find(key(number)).unwrap();
    book.ledger.entries(slot).map(|entry| entry.share.spent).sum()
}

#[test]
fn a_peer_that_takes_its_time_is_sent_each_share_once() {
    let mut fleet = Fleet::new(2, &limit());
    fleet.slow = Some(2);
    let before = sent(&fleet, 2);
    spend(&fleet);
    // It takes in one payload in 200 milliseconds, and so needs seconds for what it is told at once.
    for _ in 0..60 {
        fleet.pass(200);
        fleet.take_in_one();
    }
    fleet.take_in_all();
    let bytes = sent(&fleet, 2) - before;
    assert!(bytes <= KEYS * SHARE_BYTES + 13 * LIFE_BYTES, "{bytes} bytes of {KEYS} changed shares");
    assert!((0..KEYS).all(|number| spent_at(&mut fleet, 2, number) == 1));
}

#[test]
fn what_changes_while_a_peer_is_busy_is_sent_once_with_its_newest_state() {
    let mut fleet = Fleet::new(2, &limit());
    fleet.slow = Some(2);
    let before = sent(&fleet, 2);
    // All keys change ten times a second for three seconds, and the peer takes in nothing of it for two.
    for tick in 0..30 {
        spend(&fleet);
        fleet.pass(100);
        if tick > 20 {
            fleet.take_in_all();
        }
    }
    fleet.take_in_all();
    fleet.pass(500);
    fleet.take_in_all();
    fleet.pass(500);
    fleet.take_in_all();
    assert!((0..KEYS).all(|number| spent_at(&mut fleet, 2, number) == 30));
    let bytes = sent(&fleet, 2) - before;
    // What it was told first, once more since it did not acknowledge that for two seconds, and once for each tick in which
    // it took in all.
    let most = (2 + 9 + 1) * KEYS * SHARE_BYTES + 4 * LIFE_BYTES;
    assert!(bytes <= most, "{bytes} bytes, which are {} for each key", bytes / KEYS);
}

#[test]
fn a_peer_that_acknowledges_nothing_is_told_less_and_less_often() {
    let mut fleet = Fleet::new(1, &limit());
    spend(&fleet);
    let before = sent(&fleet, 0);
    fleet.pass(60_000);
    let bytes = sent(&fleet, 0) - before;
    assert!(bytes <= 6 * KEYS * SHARE_BYTES + 60 * LIFE_BYTES, "{bytes} bytes");
}

#[test]
fn a_key_that_cannot_wait_does_not_wait_behind_a_bulk() {
    let mut fleet = Fleet::new(2, &limit());
    fleet.slow = Some(2);
    spend(&fleet);
    fleet.pass(200);
    let urgent = KEYS + 7;
    // The second round of changes waits for the first to be acknowledged, but not this one.
    spend(&fleet);
    assert_eq!(fleet.ask(1, key(urgent), 1_000), 1_000);
    fleet.pass(20);
    fleet.take_in_datagrams();
    assert_eq!(spent_at(&mut fleet, 2, urgent), 1_000);
}

#[test]
fn a_log_holds_what_is_newest_of_each_share() {
    let mut fleet = Fleet::new(1, &limit());
    for _ in 0..40 {
        spend(&fleet);
        fleet.pass(200);
    }
    let gossip = fleet.node(1);
    let log = gossip.actors.get(gossip.me).unwrap().log_len() as u64;
    assert!((KEYS..=3 * KEYS).contains(&log), "{log} changes of {KEYS} shares");
}
