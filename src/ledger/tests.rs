use super::*;
use crate::limit::Quota;

fn ledger() -> Ledger {
    Ledger::new(&Limit::token_bucket("a", Quota::per_second(1_000)).burst(100).build().unwrap())
}

fn share(spent: u64, refunded: u64) -> Share {
    Share { spent, refunded }
}

#[test]
fn each_unit_counts_once_however_often_it_is_heard_of() {
    let mut ledger = ledger();
    assert_eq!(ledger.merge(7, 1, 0, share(5, 0), 1).units, 5);
    assert_eq!(ledger.merge(7, 1, 0, share(5, 0), 2).units, 0);
    assert_eq!(ledger.merge(7, 1, 0, share(3, 0), 2).units, 0);
    assert_eq!(ledger.merge(7, 1, 0, share(9, 2), 3).units, 2);
    assert_eq!(ledger.merge(7, 1, 0, share(9, 99), 3).units, -7);
    assert_eq!(ledger.merge(7, 1, 1, share(4, 0), 4).units, 4);
}

#[test]
fn more_actors_than_fit_in_place_are_kept_and_given_up_again() {
    let mut ledger = ledger();
    for actor in 0..40 {
        ledger.merge(0, actor, 0, share(u64::from(actor) + 1, 0), 1);
    }
    assert_eq!(ledger.entries(0).count(), 40);
    assert_eq!(ledger.entries(0).map(|entry| entry.share.spent).sum::<u64>(), (1..=40).sum::<u64>());
    assert_eq!(ledger.merge(0, 33, 0, share(35, 0), 1).units, 1);
    let mut dropped = 0;
    ledger.retain(0, |entry| entry.actor < 2, |_| dropped += 1);
    assert_eq!((dropped, ledger.entries(0).count(), ledger.shares()), (38, 2, 2));
    ledger.forget(0);
    assert_eq!(ledger.shares(), 0);
}

#[test]
fn a_share_that_outgrows_its_place_is_kept_in_full() {
    let mut ledger = ledger();
    let large = u64::from(u32::MAX) + 7;
    ledger.merge(3, 1, 0, share(5, 0), 1);
    ledger.merge(3, 2, 0, share(6, 0), 1);
    assert_eq!(ledger.merge(3, 1, 0, share(large, 70_000), 2).units, large as i64 - 70_005);
    assert_eq!(ledger.entry(3, 1, 0).unwrap().share, share(large, 70_000));
    assert_eq!(ledger.merge(3, 1, 0, share(large + 1, 0), 3).units, 1);
    // One that is large from the beginning, and more of them than have a place.
    ledger.merge(3, 9, 0, share(u64::MAX, u64::MAX), 1);
    for actor in 10..13 {
        ledger.merge(3, actor, 0, share(1, 0), 1);
    }
    let mut actors: Vec<ActorIndex> = ledger.entries(3).map(|entry| entry.actor).collect();
    actors.sort_unstable();
    assert_eq!((actors, ledger.shares()), (vec![1, 2, 9, 10, 11, 12], 6));
    ledger.forget(3);
    assert_eq!((ledger.entries(3).count(), ledger.shares()), (0, 0));
}

#[test]
fn of_a_shares_changes_the_newest_is_remembered() {
    let mut ledger = ledger();
    ledger.merge(0, 1, 0, share(5, 0), 1);
    let version = |ledger: &Ledger| ledger.entry(0, 1, 0).unwrap().version;
    for (noted, newest) in [(u64::from(u32::MAX), u32::MAX), (7, 7), (3, 7), (1 << 32 | 9, 9)] {
        ledger.note_version(0, 1, 0, noted);
        assert_eq!(version(&ledger), newest);
    }
    ledger.renumber(0, 1, 0, 4);
    assert_eq!(version(&ledger), 4);
}

#[test]
fn a_stamp_outlasts_the_longest_epochs() {
    let year = Limit::token_bucket("a", Quota::new(1, crate::limit::MAX_PERIOD)).burst(1).build().unwrap();
    let ledger = Ledger::new(&year);
    let day = 86_400_000_000_000_u64;
    let old = ledger.stamp(Timestamp::from_nanos(day));
    let entry = Entry { share: share(1, 0), actor: 1, epoch: 0, stamp: old, version: 0 };
    let late = Timestamp::from_nanos(1_500 * day);
    assert!(!ledger.is_retired(&entry, false, 0, late));
    assert!(ledger.is_retired(&entry, false, 0, Timestamp::from_nanos(1_700 * day)));
}

proptest::proptest! {
    /// Whatever was lost, repeated or reordered on the way, one full exchange makes ledgers equal, and each has been
    /// debited by exactly what was spent.
    #[test]
    fn ledgers_are_equal_after_one_full_exchange(
        growth in proptest::collection::vec((0_u16..6, 0_u16..2, 0_u32..4, 0_u64..50, 0_u64..20), 1..60),
        lost_here: u64,
        lost_there: u64,
        shuffle: u64,
    ) {
        // Each actor writes its shares one state after the other.
        let mut newest = std::collections::BTreeMap::<(u16, u16, u32), Share>::new();
        let mut states = Vec::new();
        for (actor, epoch, slot, spent, refunded) in growth {
            let share = newest.entry((actor, epoch, slot)).or_default();
            *share = Share { spent: share.spent + spent, refunded: share.refunded + refunded }.clamped();
            states.push(((actor, epoch, slot), *share));
        }
        let hear = |lost: u64, turn: usize| {
            let (mut ledger, mut debited) = (ledger(), std::collections::BTreeMap::<u32, i64>::new());
            let mut order: Vec<usize> = (0..states.len()).chain(0..states.len()).collect();
            order.rotate_left(turn % states.len());
            order.reverse();
            for at in order.into_iter().filter(|at| lost >> (at % 64) & 1 == 0) {
                let ((actor, epoch, slot), share) = states[at];
                *debited.entry(slot).or_default() += ledger.merge(slot, actor, epoch, share, 1).units;
            }
            for ((actor, epoch, slot), share) in &newest {
                *debited.entry(*slot).or_default() += ledger.merge(*slot, *actor, *epoch, *share, 1).units;
            }
            (ledger, debited)
        };
        let (here, debited_here) = hear(lost_here, shuffle as usize);
        let (there, debited_there) = hear(lost_there, (shuffle >> 32) as usize);
        let content = |ledger: &Ledger, slot| {
            let mut all: Vec<_> =
                ledger.entries(slot).map(|entry| (entry.actor, entry.epoch, entry.share.spent, entry.share.refunded)).collect();
            all.sort_unstable();
            all
        };
        for slot in 0..4 {
            proptest::prop_assert_eq!(content(&here, slot), content(&there, slot));
            let total: i64 = here.entries(slot).map(|entry| entry.share.net() as i64).sum();
            proptest::prop_assert_eq!(debited_here.get(&slot).copied().unwrap_or(0), total);
            proptest::prop_assert_eq!(debited_there.get(&slot).copied().unwrap_or(0), total);
        }
    }
}
