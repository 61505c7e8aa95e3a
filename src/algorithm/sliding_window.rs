//! The quota's units in any window of the quota's period, wherever it begins.
//!
//! The period is cut into `precision` sub-windows, and each unit is counted until the sub-window that it was spent in has
//! left the window. Bounds, for one node:
//!
//! - With a precision above 1, what was spent in the current sub-window and in as many whole ones as the period has is
//!   counted in full. That is at least everything spent within the last period, so no window of that length ever
//!   admits more than the quota. In return a unit comes back up to one sub-window later than it could.
//! - With a precision of 1 there are two windows, of which the former counts by the part of it that is still within the
//!   period, as if it had been spent evenly. That is right on average and smooth, but an estimate: where all of the
//!   former window was spent at its very end, nearly twice the quota can pass within one period.
//!
//! Sub-windows are counted by each node on its own monotonic clock. Nobody has to agree on when they begin, so
//! neither a wall clock that jumps nor clocks that differ touch them; what other nodes spent is counted in the sub-window
//! in which they spent it, by the age of the news.

use std::collections::VecDeque;

use crate::time::Timestamp;

/// How the period is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    width_nanos: u64,
    precision: u64,
}

impl Cut {
    pub(crate) fn new(period_nanos: u64, precision: u16) -> Self {
        let precision = u64::from(precision.max(1));
        // Rounded up, so that the sub-windows are never less than the period.
        Self { width_nanos: period_nanos.div_ceil(precision).max(1), precision }
    }

    fn number(self, at: Timestamp) -> u64 {
        at.as_nanos() / self.width_nanos
    }

    /// The first sub-window that does not leave before `current` begins.
    fn oldest(self, current: u64) -> u64 {
        current.saturating_sub(self.precision)
    }

    /// When the sub-window of this number leaves the window.
    fn leaves_at(self, number: u64) -> u64 {
        (number + self.precision + 1).saturating_mul(self.width_nanos)
    }
}

/// What was spent in one sub-window, in the meter's fixed point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spent {
    number: u64,
    amount: i64,
}

/// What was spent within the window, sparse: only sub-windows in which something was.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// By number, oldest first.
    spent: VecDeque<Spent>,
    /// The current sub-window; never steps back.
    current: u64,
}

impl History {
    /// Goes on to `now`, and returns what has left the window since.
    pub(crate) fn advance(&mut self, cut: Cut, now: Timestamp) -> i64 {
        self.current = self.current.max(cut.number(now));
        let oldest = cut.oldest(self.current);
        let mut left = 0;
        while let Some(front) = self.spent.front().filter(|spent| spent.number < oldest) {
            left += front.amount;
            self.spent.pop_front();
        }
        left
    }

    /// Whether what was spent at `at` is still within the window.
    pub(crate) fn counts(&self, cut: Cut, at: Timestamp) -> bool {
        cut.number(at) >= cut.oldest(self.current)
    }

    /// Counts an amount that was spent at `at`. Returns what of it is still within the window: all or nothing.
    pub(crate) fn add(&mut self, cut: Cut, at: Timestamp, amount: i64) -> i64 {
        let number = cut.number(at).min(self.current);
        if number < cut.oldest(self.current) || amount <= 0 {
            return 0;
        }
        let place = self.spent.partition_point(|spent| spent.number < number);
        match self.spent.get_mut(place) {
            Some(spent) if spent.number == number => spent.amount = spent.amount.saturating_add(amount),
            _ => self.spent.insert(place, Spent { number, amount }),
        }
        amount
    }

    /// Takes back up to `amount`, the oldest first; returns what there was to take.
    ///
    /// Where it was not the oldest units that are given back, the younger ones stay in their place and are counted for
    /// longer than they need be, never for less long.
    pub(crate) fn take_back(&mut self, amount: i64) -> i64 {
        let mut left = amount.max(0);
        while let Some(front) = self.spent.front_mut().filter(|_| left > 0) {
            let taken = front.amount.min(left);
            front.amount -= taken;
            left -= taken;
            if front.amount == 0 {
                self.spent.pop_front();
            }
        }
        amount.max(0) - left
    }

    /// Goes over to another fixed point; returns what is within the window, in that.
    pub(crate) fn rescale(&mut self, rescale: impl Fn(i64) -> i64) -> i64 {
        self.spent.iter_mut().for_each(|spent| spent.amount = rescale(spent.amount));
        self.spent.iter().fold(0, |sum, spent| sum.saturating_add(spent.amount))
    }

    /// What of the former sub-window has left the window already, where there are only two.
    pub(crate) fn faded(&self, cut: Cut, now: Timestamp) -> i64 {
        if cut.precision > 1 {
            return 0;
        }
        match self.spent.front() {
            Some(former) if former.number < self.current => {
                scaled(former.amount, self.into(cut, now), cut.width_nanos)
            }
            _ => 0,
        }
    }

    /// Nanoseconds into the current sub-window.
    fn into(&self, cut: Cut, now: Timestamp) -> u64 {
        // A reading from before the current sub-window, by a clock that stood still, is its beginning.
        now.as_nanos().saturating_sub(self.current * cut.width_nanos).min(cut.width_nanos)
    }

    /// Nanoseconds until `amount` more than by `now` has left the window, if nothing more is spent; until all has left
    /// where there is less.
    pub(crate) fn nanos_until(&self, cut: Cut, amount: i64, now: Timestamp) -> u64 {
        if amount <= 0 {
            return 0;
        }
        if cut.precision == 1 {
            return self.nanos_until_faded(cut, amount, now);
        }
        let mut missing = amount;
        let mut at = now.as_nanos();
        for spent in &self.spent {
            missing = missing.saturating_sub(spent.amount);
            at = cut.leaves_at(spent.number);
            if missing <= 0 {
                break;
            }
        }
        at.saturating_sub(now.as_nanos())
    }

    /// The same where the former of two windows fades.
    fn nanos_until_faded(&self, cut: Cut, amount: i64, now: Timestamp) -> u64 {
        let already = self.faded(cut, now);
        let mut missing = amount.saturating_add(already);
        for spent in &self.spent {
            // It fades while the window after its own lasts.
            let begins = (spent.number + 1).saturating_mul(cut.width_nanos);
            if missing <= spent.amount {
                let after = inverse(missing, cut.width_nanos, spent.amount);
                return begins.saturating_add(after).saturating_sub(now.as_nanos());
            }
            missing -= spent.amount;
        }
        self.spent.back().map_or(0, |spent| cut.leaves_at(spent.number).saturating_sub(now.as_nanos()))
    }

    /// Nanoseconds until everything has left.
    pub(crate) fn nanos_until_empty(&self, cut: Cut, now: Timestamp) -> u64 {
        self.spent.back().map_or(0, |spent| cut.leaves_at(spent.number).saturating_sub(now.as_nanos()))
    }

    /// Each sub-window's amount, and how long ago it began, oldest first.
    pub(crate) fn parts(&self, cut: Cut, now: Timestamp) -> impl Iterator<Item = (u64, i64)> + '_ {
        self.spent.iter().map(move |spent| {
            (now.as_nanos().saturating_sub(spent.number.saturating_mul(cut.width_nanos)), spent.amount)
        })
    }
}

/// `amount × part ÷ whole`, rounded down, so that nothing comes back too early.
fn scaled(amount: i64, part: u64, whole: u64) -> i64 {
    (i128::from(amount) * i128::from(part) / i128::from(whole.max(1))) as i64
}

/// The least `part` for which [`scaled`] is at least `wanted`.
fn inverse(wanted: i64, whole: u64, amount: i64) -> u64 {
    let product = u128::from(wanted.max(0) as u64) * u128::from(whole);
    u64::try_from(product.div_ceil(u128::from(amount.max(1) as u64))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    #[test]
    fn a_unit_is_counted_for_at_least_the_period() {
        let cut = Cut::new(1_000, 10);
        let mut history = History::default();
        history.advance(cut, at(5_050));
        assert_eq!(history.add(cut, at(5_050), 7), 7);
        assert_eq!(history.advance(cut, at(6_099)), 0);
        assert_eq!(history.nanos_until(cut, 7, at(6_050)), 50);
        assert_eq!(history.nanos_until_empty(cut, at(6_050)), 50);
        assert_eq!(history.advance(cut, at(6_100)), 7);
        assert_eq!(history.advance(cut, at(9_999)), 0);
    }

    #[test]
    fn news_of_what_has_left_already_counts_nothing() {
        let cut = Cut::new(1_000, 10);
        let mut history = History::default();
        history.advance(cut, at(9_000));
        assert_eq!(history.add(cut, at(7_999), 3), 0);
        assert_eq!(history.add(cut, at(8_000), 3), 3);
        assert_eq!(history.add(cut, at(8_500), 2), 2);
        // A clock that is ahead of the current sub-window counts in the current one.
        assert_eq!(history.add(cut, at(99_000), 1), 1);
        assert_eq!(history.nanos_until(cut, 4, at(9_000)), 600);
        assert_eq!(history.advance(cut, at(9_100)), 3);
        assert_eq!(history.take_back(10), 3);
        assert_eq!(history.take_back(10), 0);
    }

    #[test]
    fn of_two_windows_the_former_fades() {
        let cut = Cut::new(1_000, 1);
        let mut history = History::default();
        history.advance(cut, at(1_900));
        history.add(cut, at(1_900), 100);
        assert_eq!(history.advance(cut, at(2_250)), 0);
        assert_eq!(history.faded(cut, at(2_250)), 25);
        history.add(cut, at(2_250), 10);
        for (wanted, nanos) in [(1, 10), (75, 750), (76, 850), (85, 1_750), (99, 1_750)] {
            assert_eq!(history.nanos_until(cut, wanted, at(2_250)), nanos, "{wanted}");
        }
        assert_eq!(history.advance(cut, at(3_000)), 100);
        assert_eq!(history.faded(cut, at(3_500)), 5);
        // A reading from an earlier time takes nothing back that has faded, and adds nothing.
        assert_eq!(history.advance(cut, at(100)), 0);
        assert_eq!(history.faded(cut, at(100)), 0);
    }
}
