//! What a check answers.

use std::time::Duration;

use crate::{limit::Limit, time::Now};

/// What a decision was based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Basis {
    /// A limiter that belongs to no fleet.
    Alone,
    /// The whole fleet's spending, as last heard.
    Cluster,
    /// This node has not synced with its peers yet, and admits its share of the quota. Its buckets start empty; a `peek` at
    /// a key that it does not hold finds what such a bucket starts with.
    Joining,
    /// Some peers are unheard; the limit's `on_partition` decides what is assumed of them.
    LocalOnly {
        /// How many peers are unreachable.
        unheard: u16,
    },
}

/// The answer to a check.
///
/// It borrows the limiter's definition of the limit; nothing is allocated for it, and its waits are worked out only
/// when they are asked for.
#[derive(Clone, Copy, Debug)]
#[must_use = "a refused request must not go ahead"]
pub struct Decision<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) allowed: bool,
    pub(crate) basis: Basis,
    /// The level afterwards, in the meter's fixed point.
    pub(crate) level: i64,
    /// The units that were asked for.
    pub(crate) cost: u64,
    pub(crate) now: Now,
}

impl<'a> Decision<'a> {
    /// Whether the request may go ahead; its cost has then been spent (not by a `peek`).
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// The limit that decided.
    pub fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// Whole units that are left after this decision; 0 while a debt is being repaid.
    pub fn remaining(&self) -> u64 {
        self.limit.meter().whole(self.level)
    }

    /// How long until the full capacity is there again if nothing more is spent; zero when it is there. Like
    /// [`retry_after`](Self::retry_after), it is worked out at the limit's full rate.
    pub fn reset_after(&self) -> Duration {
        self.wait_for(self.limit.meter().capacity())
    }

    /// The earliest time after which the refused cost would pass if nobody else spends; `None` when it was allowed.
    ///
    /// Rounded up to the nanosecond, at least one: a retry at that time finds the units there.
    ///
    /// It is worked out at the limit's full rate. While something is taken to be spent elsewhere, units come back to this
    /// node more slowly, and the wait that is named is the least there can be, not the one that suffices: while the node is
    /// [`Basis::Joining`], it has quota ÷ nodes to give, so the units may be there only after as many times the wait as there
    /// are nodes; so it is under [`OnPartition::Share`](crate::OnPartition::Share), by nodes ÷ nodes heard. A caller that
    /// comes back too early is told the rest.
    pub fn retry_after(&self) -> Option<Duration> {
        let cost = self.limit.meter().fixed(self.cost);
        (!self.allowed).then(|| self.wait_for(cost).max(Duration::from_nanos(1)))
    }

    fn wait_for(&self, level: i64) -> Duration {
        Duration::from_nanos(self.limit.meter().nanos_to_earn(level.saturating_sub(self.level), self.now))
    }

    /// What the decision was based on.
    pub fn basis(&self) -> Basis {
        self.basis
    }
}
