//! Units that were spent, and may be corrected.

use std::{fmt, mem};

use crate::{
    bands::{Bands, Receipt},
    clock::Clock,
    error::Refusal,
    key::Key,
    limit::Limit,
    lists::Override,
};

/// Units that are spent in advance, for work whose price is known only afterwards, or that may not count in the end.
///
/// [`settle`](Self::settle) corrects the cost when it is known, up or down, [`refund`](Self::refund) gives all back, and
/// dropping the permit keeps the cost: what became of the work is then unknown. (Where a limit
/// [says so](Limit::permit_returns_on_drop), dropping gives the units back.) Made by
/// [`Limiter::reserve`](crate::Limiter::reserve).
///
/// ```
/// use ratemesh::{Limit, Limiter, Quota};
///
/// let limiter = Limiter::new(Limit::token_bucket("tokens", Quota::per_minute(1_000)).build()?);
/// let permit = limiter.reserve("alice", 400).unwrap();
/// assert_eq!(limiter.peek("alice").remaining(), 600);
/// // The answer came out shorter than feared.
/// let settled = permit.settle(150);
/// assert_eq!(settled.given_back(), 250);
/// assert_eq!(limiter.peek("alice").remaining(), 850);
/// # Ok::<(), ratemesh::LimitError>(())
/// ```
///
/// # What comes back
///
/// The units come back where they were spent: to this node's share of the key, in the epoch that it was then, and so on all
/// nodes. Nothing comes back once that is past, for there is nothing left that it could be set against: of a
/// window, when the window is over; of a bucket, when the epoch has retired, which is one to two of
/// [`epoch_length`](Limit::epoch_length) after the units were spent, or when the bucket was full and the key was given up. (A
/// bucket that belongs to no fleet has no epochs.) A level never rises above its capacity for it, and no other
/// key gets anything of it.
#[must_use = "dropped, a permit keeps what it has cost"]
pub struct Permit {
    bands: Bands,
    clock: Clock,
    receipt: Receipt,
    cost: u64,
    on_drop: OnDrop,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OnDrop {
    Keep,
    Return,
}

/// What came of settling a [`Permit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    reserved: u64,
    spent: u64,
    given_back: u64,
    waived: u64,
}

impl Settled {
    /// Units that are spent in the end.
    pub fn cost(&self) -> u64 {
        (self.reserved + self.spent).saturating_sub(self.given_back)
    }

    /// Units that were spent beyond those reserved. They may have left a debt, which is repaid before more is admitted.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Units that were given back.
    pub fn given_back(&self) -> u64 {
        self.given_back
    }

    /// Units of the actual cost that are not counted, since debts go only so deep: at most the capacity, or one
    /// second of the quota where that is more.
    pub fn waived(&self) -> u64 {
        self.waived
    }
}

impl Permit {
    pub(crate) fn new(bands: Bands, clock: Clock, receipt: Receipt, cost: u64) -> Self {
        let returns = bands.limit().permit_returns_on_drop();
        let on_drop = if returns { OnDrop::Return } else { OnDrop::Keep };
        Self { bands, clock, receipt, cost, on_drop }
    }

    /// Spends a cost that can pass, if it does now.
    pub(crate) fn reserve<'a>(
        bands: &'a Bands,
        clock: &Clock,
        key: Key,
        listed: Option<Override>,
        cost: u64,
    ) -> Result<Self, Refusal<'a>> {
        if let Some(listed) = listed {
            let decision = bands.first().decide_listed(listed, key, cost, clock.precise(), true);
            return match decision.is_allowed() {
                true => Ok(Self::new(bands.clone(), clock.clone(), Receipt::default(), cost)),
                false => Err(Refusal::Denied(decision)),
            };
        }
        let wall = bands.first().needs_wall();
        let (decision, receipt) =
            bands.take(key, cost, clock.coarse(wall), || clock.exact(wall || !bands.is_single()));
        if decision.is_allowed() {
            Ok(Self::new(bands.clone(), clock.clone(), receipt, cost))
        } else {
            Err(Refusal::Denied(decision))
        }
    }

    /// Has dropping the permit give the units back, or leaves it to the limit.
    #[cfg(feature = "acquire")]
    pub(crate) fn return_on_drop(&mut self, returns: bool) {
        let returns = returns || self.limit().permit_returns_on_drop();
        self.on_drop = if returns { OnDrop::Return } else { OnDrop::Keep };
    }

    /// The units that were reserved.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        self.bands.limit()
    }

    /// Corrects the cost to what it really was.
    ///
    /// If it was less, the difference is given back. If it was more, the difference is spent all the same, whatever is
    /// left: the key then owes it. The debt is bounded, and [`Settled`] says what is beyond.
    pub fn settle(mut self, actual: u64) -> Settled {
        self.on_drop = OnDrop::Keep;
        let corrected = self.bands.correct(&self.receipt, self.cost, actual, self.clock.precise());
        let missing = actual.saturating_sub(self.cost).saturating_sub(corrected.spent);
        Settled {
            reserved: self.cost,
            spent: corrected.spent,
            given_back: corrected.given_back,
            waived: missing,
        }
    }

    /// Gives all units back; returns how many there still were to give.
    pub fn refund(mut self) -> u64 {
        self.give_back()
    }

    /// Keeps the cost, whatever the limit says of dropped permits.
    pub fn keep(mut self) {
        self.on_drop = OnDrop::Keep;
    }

    fn give_back(&mut self) -> u64 {
        self.on_drop = OnDrop::Keep;
        let receipt = mem::take(&mut self.receipt);
        self.bands.give_back(&receipt, self.cost, self.clock.precise())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.on_drop == OnDrop::Return {
            self.give_back();
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("limit", self.limit())
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

/// Permits of several limits, which were given all or none; see [`reserve_all`](crate::reserve_all).
#[derive(Debug)]
#[must_use = "dropped, permits keep what they have cost"]
pub struct Permits(pub(crate) Vec<Permit>);

impl Permits {
    /// Gives all units of all limits back.
    pub fn refund(self) {
        self.0.into_iter().for_each(|permit| {
            permit.refund();
        });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One by one, in the order they were asked for.
impl IntoIterator for Permits {
    type Item = Permit;
    type IntoIter = std::vec::IntoIter<Permit>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
