//! What was spent and given back, as conflict-free replicated data.
//!
//! A [`Share`] has one writer, and both its numbers only grow, so the larger is always the later: merging is the
//! component-wise maximum, which is commutative, associative and idempotent. A [`PnCounter`] is a share an actor, its
//! value the sum of what was spent less the sum of what was given back (Shapiro, Preguiça, Baquero, Zawirski,
//! *A comprehensive study of Convergent and Commutative Replicated Data Types*, 2011, specification 7).

use std::{collections::BTreeMap, convert::Infallible};

use crdts::{CmRDT, CvRDT};

use crate::node::Actor;

/// One actor's contribution: units spent and units given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Share {
    /// Units spent.
    pub spent: u64,
    /// Units of those that were given back; never more than were spent.
    pub refunded: u64,
}

impl Share {
    /// What remains spent.
    pub fn net(self) -> u64 {
        self.spent.saturating_sub(self.refunded)
    }

    /// The same share with the invariant `refunded ≤ spent` put right, for what comes from outside.
    pub fn clamped(self) -> Self {
        Self { spent: self.spent, refunded: self.refunded.min(self.spent) }
    }

    /// The later of two states of one share.
    pub fn merged(self, other: Self) -> Self {
        Self { spent: self.spent.max(other.spent), refunded: self.refunded.max(other.refunded) }
    }
}

impl CvRDT for Share {
    type Validation = Infallible;

    fn validate_merge(&self, _: &Self) -> Result<(), Infallible> {
        Ok(())
    }

    fn merge(&mut self, other: Self) {
        *self = self.merged(other);
    }
}

/// A later state of one actor's share: what a delta carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareOp {
    /// Whose.
    pub actor: Actor,
    /// The state, not a difference, so that it may be applied more than once.
    pub share: Share,
}

/// All actors' shares of one key in one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PnCounter {
    shares: BTreeMap<Actor, Share>,
}

impl PnCounter {
    /// A counter that nobody has written to.
    pub fn new() -> Self {
        Self::default()
    }

    /// One actor's share; zero where it has none.
    pub fn share(&self, actor: &Actor) -> Share {
        self.shares.get(actor).copied().unwrap_or_default()
    }

    /// The actors and their shares, in order of the actors.
    pub fn shares(&self) -> impl Iterator<Item = (&Actor, Share)> {
        self.shares.iter().map(|(actor, share)| (actor, *share))
    }

    /// What remains spent over all actors; saturates.
    pub fn value(&self) -> u64 {
        self.shares.values().fold(0, |sum: u64, share| sum.saturating_add(share.net()))
    }

    /// The operation that adds `units` to what `actor` has spent.
    pub fn spend(&self, actor: Actor, units: u64) -> ShareOp {
        let share = self.share(&actor);
        ShareOp { share: Share { spent: share.spent.saturating_add(units), ..share }, actor }
    }

    /// The operation that gives back up to `units` of what `actor` has spent.
    pub fn refund(&self, actor: Actor, units: u64) -> ShareOp {
        let share = self.share(&actor);
        let refunded = share.refunded.saturating_add(units).min(share.spent);
        ShareOp { share: Share { refunded, ..share }, actor }
    }
}

impl CvRDT for PnCounter {
    type Validation = Infallible;

    fn validate_merge(&self, _: &Self) -> Result<(), Infallible> {
        Ok(())
    }

    fn merge(&mut self, other: Self) {
        for (actor, share) in other.shares {
            self.apply(ShareOp { actor, share });
        }
    }
}

impl CmRDT for PnCounter {
    type Op = ShareOp;
    type Validation = Infallible;

    fn validate_op(&self, _: &ShareOp) -> Result<(), Infallible> {
        Ok(())
    }

    fn apply(&mut self, op: ShareOp) {
        self.shares.entry(op.actor).or_default().merge(op.share);
    }
}
