//! Counters and shares obey the laws of convergent data, and agree with the `crdts` crate's own counter.

use crdts::{CmRDT, CvRDT};
use proptest::prelude::*;
use ratemesh::{Actor, Incarnation, NodeId, PnCounter, Share};

fn actor(number: u8) -> Actor {
    Actor {
        node: NodeId::new(&format!("node-{number}x")).unwrap(),
        incarnation: Incarnation::new(number.into()),
    }
}

/// Who does what: an actor, spending or giving back, and how much.
type Step = (u8, bool, u64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0_u8..4, any::<bool>(), 0_u64..1_000), 0..40)
}

fn counter(steps: &[Step]) -> PnCounter {
    let mut counter = PnCounter::new();
    for (who, spends, units) in steps {
        let op =
            if *spends { counter.spend(actor(*who), *units) } else { counter.refund(actor(*who), *units) };
        counter.apply(op);
    }
    counter
}

fn merged(mut one: PnCounter, other: &PnCounter) -> PnCounter {
    one.merge(other.clone());
    one
}

proptest! {
    #[test]
    fn merging_is_commutative_associative_and_idempotent(a in steps(), b in steps(), c in steps()) {
        let (a, b, c) = (counter(&a), counter(&b), counter(&c));
        prop_assert_eq!(merged(a.clone(), &b), merged(b.clone(), &a));
        prop_assert_eq!(merged(merged(a.clone(), &b), &c), merged(a.clone(), &merged(b.clone(), &c)));
        prop_assert_eq!(merged(a.clone(), &a), a);
    }

    #[test]
    fn merging_never_loses_and_never_exceeds(a in steps(), b in steps()) {
        let (a, b) = (counter(&a), counter(&b));
        let both = merged(a.clone(), &b);
        for (who, share) in both.shares() {
            let (left, right) = (a.share(who), b.share(who));
            prop_assert_eq!(share.spent, left.spent.max(right.spent));
            prop_assert_eq!(share.refunded, left.refunded.max(right.refunded));
        }
    }

    #[test]
    fn no_more_comes_back_than_was_spent(steps in steps()) {
        for (_, share) in counter(&steps).shares() {
            prop_assert!(share.refunded <= share.spent);
        }
    }

    /// The oracle: `crdts::PNCounter`, told the same steps of each actor, in replicas that merge at random.
    #[test]
    fn the_value_is_that_of_the_crdts_crate(replicas in prop::collection::vec(steps(), 1..4), order in any::<u64>()) {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for (number, steps) in replicas.iter().enumerate() {
            // Each replica has actors of its own, for a share has one writer.
            let own = |who: u8| number as u8 * 4 + who;
            let (mut our, mut their) = (PnCounter::new(), crdts::PNCounter::new());
            for (who, spends, units) in steps {
                let before = our.share(&actor(own(*who)));
                let op = match spends {
                    true => our.spend(actor(own(*who)), *units),
                    false => our.refund(actor(own(*who)), *units),
                };
                our.apply(op);
                let after = our.share(&actor(own(*who)));
                let their_actor = actor(own(*who));
                their.apply(their.inc_many(their_actor.clone(), after.spent - before.spent));
                their.apply(their.dec_many(their_actor, after.refunded - before.refunded));
            }
            ours.push(our);
            theirs.push(their);
        }
        let start = order as usize % ours.len();
        let (mut our, mut their) = (ours[start].clone(), theirs[start].clone());
        for (one, other) in ours.iter().zip(&theirs) {
            our.merge(one.clone());
            their.merge(other.clone());
        }
        prop_assert_eq!(their.read().to_string(), our.value().to_string());
    }

    #[test]
    fn operations_may_come_in_any_order_and_more_than_once(steps in steps(), picks in prop::collection::vec(any::<prop::sample::Index>(), 0..80)) {
        let mut counter = PnCounter::new();
        let mut ops = Vec::new();
        for (who, spends, units) in &steps {
            let op = if *spends { counter.spend(actor(*who), *units) } else { counter.refund(actor(*who), *units) };
            counter.apply(op.clone());
            ops.push(op);
        }
        let mut other = PnCounter::new();
        if !ops.is_empty() {
            picks.iter().for_each(|pick| other.apply(ops[pick.index(ops.len())].clone()));
        }
        ops.into_iter().rev().for_each(|op| other.apply(op));
        prop_assert_eq!(other, counter);
    }

    #[test]
    fn shares_saturate_and_never_panic(spent: u64, refunded: u64, units: u64) {
        let share = Share { spent, refunded }.clamped();
        prop_assert!(share.refunded <= share.spent);
        prop_assert_eq!(share.net(), share.spent - share.refunded);
        let mut counter = PnCounter::new();
        for _ in 0..3 {
            let op = counter.spend(actor(1), units);
            counter.apply(op);
            let op = counter.spend(actor(2), spent);
            counter.apply(op);
        }
        prop_assert!(counter.value() >= units.max(spent));
    }
}
