//! The quota's units in each window, windows aligned to the Unix epoch.
//!
//! A window is a bucket whose capacity is the quota and that earns the whole quota at each boundary. Bound, for one
//! node: no window admits more than the quota; two windows' worth can pass within one period across a boundary, which
//! is in the nature of fixed windows. What a fleet overshoots in one window is a debt of the next.

use crate::time::WallTime;

/// Earning a whole step at each boundary of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    period_nanos: u64,
    step: u64,
}

impl Steps {
    pub(super) fn new(period_nanos: u64, step: u64) -> Self {
        Self { period_nanos: period_nanos.max(1), step }
    }

    #[inline]
    pub(super) fn window(self, now: WallTime) -> u64 {
        now.as_unix_nanos() / self.period_nanos
    }

    #[inline]
    pub(super) fn earned(self, now: WallTime) -> u64 {
        self.window(now).wrapping_mul(self.step)
    }

    pub(super) fn earned_within(self, nanos: u64, now: WallTime) -> u64 {
        let before = WallTime::from_unix_nanos(now.as_unix_nanos().saturating_sub(nanos));
        self.window(now).saturating_sub(self.window(before)).saturating_mul(self.step)
    }

    pub(super) fn nanos_to_earn(self, amount: u64, now: WallTime) -> u64 {
        let windows = amount.div_ceil(self.step.max(1));
        let into = now.as_unix_nanos() % self.period_nanos;
        windows.saturating_mul(self.period_nanos).saturating_sub(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
