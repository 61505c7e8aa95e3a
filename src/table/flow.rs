//! Amounts that run off with time: what peers are expected to be spending.
//!
//! A flow is written by the gossip alone, now and then, and read by checks. Its numbers belong together, so they
//! are guarded by a sequence number: odd while they are being written, and another one afterwards (a seqlock). A
//! reader never waits; after a few torn looks it takes what it sees, which is wrong by one step of the writer at most.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};

use crate::time::Timestamp;

/// Rates are amounts in the meter's fixed point per 2³² nanoseconds.
const RATE_SHIFT: u32 = 32;
/// Torn looks before a reader takes what it sees.
const LOOKS: usize = 16;

/// A line with one bend: `base`, and from `from` on `rate` until `bend`, `later_rate` until `end`, nothing afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// What has run off before `from`.
    pub(crate) base: i64,
    /// Where the line starts.
    pub(crate) from: Timestamp,
    /// What runs off at first.
    pub(crate) rate: Rate,
    /// Where the rate changes.
    pub(crate) bend: Timestamp,
    /// What runs off then.
    pub(crate) later_rate: Rate,
    /// Where it stops.
    pub(crate) end: Timestamp,
}

/// An amount a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate(u64);

impl Rate {
    /// From an amount in the meter's fixed point per second.
    pub(crate) fn per_second(amount: f64) -> Self {
        Self((amount.max(0.0) * (1_u64 << RATE_SHIFT) as f64 / 1e9) as u64)
    }

    /// What runs off in so many nanoseconds.
    #[inline]
    pub(crate) fn over(self, nanos: u64) -> i64 {
        if self.0 == 0 {
            return 0;
        }
        ((u128::from(self.0) * u128::from(nanos)) >> RATE_SHIFT).min(i64::MAX as u128 / 4) as i64
    }
}

impl Flow {
    /// What has run off, where it stays that.
    pub(crate) fn at_rest(&self) -> Option<i64> {
        (self.rate == Rate::default() && self.later_rate == Rate::default()).then_some(self.base)
    }

    /// What has run off by `now`.
    #[inline]
    pub(crate) fn at(&self, now: Timestamp) -> i64 {
        let now = now.min(self.end).as_nanos();
        let bend = self.bend.as_nanos().max(self.from.as_nanos());
        let before = now.min(bend).saturating_sub(self.from.as_nanos());
        let after = now.saturating_sub(bend);
        self.base.saturating_add(self.rate.over(before)).saturating_add(self.later_rate.over(after))
    }
}

/// A flow that one thread writes and all read.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct SharedFlow {
    sequence: AtomicU64,
    base: AtomicI64,
    from: AtomicU64,
    rate: AtomicU64,
    bend: AtomicU64,
    later_rate: AtomicU64,
    end: AtomicU64,
}

impl SharedFlow {
    /// Whether nothing was ever written: the flow is nothing at all times.
    #[inline]
    pub(crate) fn is_unset(&self) -> bool {
        self.sequence.load(Ordering::Relaxed) == 0
    }

    /// Sets the flow. Only the gossip writes, one call at a time.
    pub(crate) fn store(&self, flow: Flow) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.base.store(flow.base, Ordering::Relaxed);
        self.from.store(flow.from.as_nanos(), Ordering::Relaxed);
        self.rate.store(flow.rate.0, Ordering::Relaxed);
        self.bend.store(flow.bend.as_nanos(), Ordering::Relaxed);
        self.later_rate.store(flow.later_rate.0, Ordering::Relaxed);
        self.end.store(flow.end.as_nanos(), Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// The flow as last stored.
    #[inline]
    pub(crate) fn load(&self) -> Flow {
        let mut flow = Flow::default();
        for _ in 0..LOOKS {
            let before = self.sequence.load(Ordering::Acquire);
            flow = Flow {
                base: self.base.load(Ordering::Relaxed),
                from: Timestamp::from_nanos(self.from.load(Ordering::Relaxed)),
                rate: Rate(self.rate.load(Ordering::Relaxed)),
                bend: Timestamp::from_nanos(self.bend.load(Ordering::Relaxed)),
                later_rate: Rate(self.later_rate.load(Ordering::Relaxed)),
                end: Timestamp::from_nanos(self.end.load(Ordering::Relaxed)),
            };
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before {
                break;
            }
        }
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_bends_and_ends() {
        let at = Timestamp::from_millis;
        let flow = Flow {
            base: 5_000_000,
            from: at(1_000),
            rate: Rate::per_second(1e9),
            bend: at(1_010),
            later_rate: Rate::per_second(1e8),
            end: at(2_010),
        };
        let near = |now, wanted: i64| {
            assert!((flow.at(at(now)) - wanted).abs() <= wanted / 1_000, "{}", flow.at(at(now)))
        };
        near(0, 5_000_000);
        near(1_005, 10_000_000);
        near(1_010, 15_000_000);
        near(2_010, 115_000_000);
        near(9_999, 115_000_000);
    }
}
