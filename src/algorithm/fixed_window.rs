//! The quota's units in each window, windows aligned to the Unix epoch.
//!
//! A window is a bucket whose capacity is the quota and that earns the whole quota at each boundary. Bound, for one
//! node: no window admits more than the quota; two windows' worth can pass within one period across a boundary, which
//! is in the nature of fixed windows. What a fleet overshoots in one window is a debt of the next.

use super::calendar;
use crate::time::WallTime;

/// Earning a whole step at each boundary of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    step: u64,
    windows: Windows,
}

/// Where the boundaries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Windows {
    Even(Even),
    Months,
}

/// Windows of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Even {
    period_nanos: u64,
    /// `2^(64 + shift) ÷ period`, rounded down, with which a division becomes a multiplication.
    reciprocal: u64,
    shift: u32,
}

impl Even {
    fn new(period_nanos: u64) -> Self {
        let period_nanos = period_nanos.max(1);
        let shift = period_nanos.ilog2();
        let reciprocal = (1_u128 << (64 + shift)) / u128::from(period_nanos);
        // A power of two would need one bit more; the largest number that fits does as well.
        let reciprocal = u64::try_from(reciprocal).unwrap_or(u64::MAX);
        Self { period_nanos, reciprocal, shift }
    }

    /// The number of the window: the time divided by the period. Every check of a window asks for it, and a division
    /// can take as long as all else that a check does.
    #[inline]
    fn number(self, nanos: u64) -> u64 {
        let product = u128::from(nanos) * u128::from(self.reciprocal);
        // The reciprocal is too small by less than one, and the time is below 2^64, so at most one is missing.
        let window = (product >> 64) as u64 >> self.shift;
        let rest = nanos - window * self.period_nanos;
        window + u64::from(rest >= self.period_nanos)
    }
}

impl Steps {
    pub(super) fn new(period_nanos: u64, step: u64) -> Self {
        Self { step, windows: Windows::Even(Even::new(period_nanos)) }
    }

    pub(super) fn months(step: u64) -> Self {
        Self { step, windows: Windows::Months }
    }

    #[inline]
    pub(super) fn window(self, now: WallTime) -> u64 {
        match self.windows {
            Windows::Even(even) => even.number(now.as_unix_nanos()),
            Windows::Months => calendar::month(now.as_unix_nanos()),
        }
    }

    /// When a window begins, in nanoseconds of Unix time; saturates.
    fn beginning(self, window: u64) -> u64 {
        match self.windows {
            Windows::Even(even) => window.saturating_mul(even.period_nanos),
            Windows::Months => calendar::beginning(window),
        }
    }

    #[inline]
    pub(super) fn earned(self, now: WallTime) -> u64 {
        self.window(now).wrapping_mul(self.step)
    }

    pub(super) fn earned_within(self, nanos: u64, now: WallTime) -> u64 {
        let before = WallTime::from_unix_nanos(now.as_unix_nanos().saturating_sub(nanos));
        self.window(now).saturating_sub(self.window(before)).saturating_mul(self.step)
    }

    /// Nanoseconds since the current window began.
    pub(super) fn nanos_into(self, now: WallTime) -> u64 {
        now.as_unix_nanos().saturating_sub(self.beginning(self.window(now)))
    }

    pub(super) fn nanos_to_earn(self, amount: u64, now: WallTime) -> u64 {
        let windows = amount.div_ceil(self.step.max(1));
        self.beginning(self.window(now).saturating_add(windows)).saturating_sub(now.as_unix_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_numbered_as_a_division_would_number_them() {
        let near = |number: u64| [number.saturating_sub(1), number, number.saturating_add(1)];
        let powers = (0..64).map(|bit| 1_u64 << bit);
        let round =
            [7, 1_000, 60_000_000_000, 86_400_000_000_000, 34_560_000_000_000_000, 1_577_836_800_000_000_000];
        let numbers: Vec<u64> = powers.chain(round).chain([u64::MAX]).flat_map(near).collect();
        for period in numbers.iter().copied().filter(|period| *period > 0) {
            let steps = Steps::new(period, 1);
            let times =
                numbers.iter().flat_map(|time| near(time - time % period)).chain(numbers.iter().copied());
            for time in times {
                assert_eq!(
                    steps.window(WallTime::from_unix_nanos(time)),
                    time / period,
                    "{time} by {period}"
                );
            }
        }
    }

    #[test]
    fn a_step_comes_at_each_boundary_and_the_wait_ends_there() {
        let steps = Steps::new(1_000, 10);
        let at = WallTime::from_unix_nanos;
        assert_eq!(steps.earned(at(999)), 0);
        assert_eq!(steps.earned(at(1_000)), 10);
        assert_eq!(steps.nanos_to_earn(1, at(1_250)), 750);
        assert_eq!(steps.nanos_to_earn(11, at(1_250)), 1_750);
        assert_eq!(steps.earned_within(251, at(1_250)), 10);
        assert_eq!(steps.earned_within(250, at(1_250)), 0);
    }
}
