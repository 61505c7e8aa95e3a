//! A bucket of `burst` units that refills continuously at the quota's rate.
//!
//! Bound, for one node: in any interval of length t it admits at most `burst + rate × t` units, and it refuses
//! nothing that this allows. It is the Generic Cell Rate Algorithm with the state kept in units instead of time.

use crate::time::Timestamp;

/// Earning in proportion to monotonic time: `(nanos × rate) >> 64`.
///
/// A meter's scale leaves room for 300 years of earning, so less than a half is earned a nanosecond; and it is so fine that
/// even one unit in 400 days is a rate of over 40 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Linear {
    /// What is earned in 2⁶⁴ nanoseconds.
    rate: u64,
}

impl Linear {
    /// `units << scale` per `period_nanos`, with all the precision that 64 bits hold.
    pub(super) fn new(units: u64, period_nanos: u64, scale: u32) -> Self {
        let per_period = u128::from(units) << scale;
        let period = u128::from(period_nanos.max(1));
        // Below 2^127, since it is less than a half a nanosecond; in two steps, since a period's earnings have up to 96 bits.
        let (whole, rest) = (per_period / period, per_period % period);
        debug_assert_eq!(whole, 0, "more than one in a nanosecond");
        Self { rate: u64::try_from((rest << 64) / period).unwrap_or(u64::MAX) }
    }

    #[inline]
    pub(super) fn earned(self, now: Timestamp) -> u64 {
        self.earned_in(now.as_nanos())
    }

    #[inline]
    pub(super) fn earned_in(self, nanos: u64) -> u64 {
        ((u128::from(nanos) * u128::from(self.rate)) >> 64) as u64
    }

    pub(super) fn nanos_to_earn(self, amount: u64) -> u64 {
        // One more than the product's floor can hide, so that a retry at that time does pass.
        let wanted = (u128::from(amount) + 1) << 64;
        u64::try_from(wanted.div_ceil(u128::from(self.rate.max(1)))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_as_long_as_told_earns_what_was_asked() {
        for (units, period, scale) in [
            (1000, 1_000_000_000, 18),
            (5, 60_000_000_000, 32),
            (1, 34_560_000_000_000_000, 32),
            (10_000_000, 1_000_000_000, 5),
        ] {
            let linear = Linear::new(units, period, scale);
            for amount in [1, 1 << scale, (1 << scale) + 1, 37 << scale] {
                let nanos = linear.nanos_to_earn(amount);
                for start in [0, 12_345, 1 << 60] {
                    let gained = linear.earned_in(start + nanos) - linear.earned_in(start);
                    assert!(gained >= amount, "{units}/{period}: {gained} < {amount} after {nanos} ns");
                }
            }
        }
    }
}
