//! The two numbers of a key that decide, and the compare-and-swap on them.
//!
//! `spent` is what this node admitted, in whole units; it only grows while the slot lives, also across the keys that
//! use the slot in turn, so a stale compare-and-swap can never succeed on another key's count. `offset` is all else,
//! in fixed point (see the [module above](super)). A check changes `spent` alone, and `offset` only when the level
//! would exceed the capacity: what is above it is then gone for good.
//!
//! When exactly a lid is put on matters. At a time that lies some milliseconds back, the bucket would begin to fill
//! again from there, and admit as much more than its capacity in an instant. So a check that finds the bucket full, or
//! [so near to it](Meter::near) that it may have filled meanwhile, is told so, and looks at the precise time.

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU64, Ordering},
};

use super::Meter;

/// Set in `spent` while no key uses the slot.
pub(crate) const DEAD: u64 = 1 << 63;
/// Set in `spent` while a rule of its own may apply to the key of the slot: a ban, or an override.
const SPECIAL: u64 = 1 << 62;
/// Whoever finds one of these set does not decide by the level; one test for both, so that neither costs a check anything.
const MARKS: u64 = DEAD | SPECIAL;
/// `spent` is refused beyond this, long before it could reach a mark.
const MOST_SPENT: u64 = 1 << 61;

/// What a key's decisions rest on.
#[derive(Debug)]
pub(crate) struct Level {
    spent: AtomicU64,
    offset: AtomicU64,
}

/// What came of trying to spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Spent; `level` is what is left, `spent` the count afterwards.
    Allowed { level: i64, spent: u64 },
    /// Not spent: the level was too low.
    Denied { level: i64 },
    /// Not spent: the level is above the capacity, or near to it, and may need its [lid](Level::put_lid_on).
    Full,
    /// The slot holds no key, or another one, or a key that a rule of its own may apply to.
    Gone,
    /// Another thread was faster.
    Contended,
}

impl Level {
    /// A slot that holds no key.
    pub(crate) const fn dead() -> Self {
        Self { spent: AtomicU64::new(DEAD), offset: AtomicU64::new(0) }
    }

    /// Brings a dead slot to life at `level`; what it spent goes on from where it was, and is returned.
    pub(crate) fn revive(&self, meter: &Meter, earned: u64, level: i64) -> u64 {
        let spent = (self.spent.load(Ordering::Relaxed) & !MARKS) + 1;
        let missing = meter.capacity.wrapping_sub(level) as u64;
        let offset = earned.wrapping_sub(spent.wrapping_shl(meter.scale)).wrapping_add(missing);
        self.offset.store(offset, Ordering::Relaxed);
        // Whoever reads this count also reads the digest and the offset written before it.
        self.spent.store(spent, Ordering::Release);
        spent
    }

    /// Marks the slot dead if it has spent exactly `spent`.
    pub(crate) fn kill(&self, spent: u64) -> bool {
        let mut seen = self.spent.load(Ordering::Acquire);
        while seen & !SPECIAL == spent {
            match self.spent.compare_exchange_weak(seen, seen | DEAD, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => seen = other,
            }
        }
        false
    }

    /// Marks, or unmarks, the slot's key as one that a rule of its own may apply to, as long as it is alive.
    pub(crate) fn mark(&self, special: bool, alive: impl Fn() -> bool) {
        let mut seen = self.spent.load(Ordering::Acquire);
        while seen & DEAD == 0 && alive() {
            let marked = if special { seen | SPECIAL } else { seen & !SPECIAL };
            match self.spent.compare_exchange_weak(seen, marked, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(other) => seen = other,
            }
        }
    }

    /// Whether a rule of its own may apply to the slot's key.
    pub(crate) fn is_marked(&self) -> bool {
        self.spent.load(Ordering::Acquire) & SPECIAL != 0
    }

    /// The count of units spent, [`DEAD`] included.
    #[inline]
    pub(crate) fn spent(&self) -> u64 {
        self.spent.load(Ordering::Acquire) & !SPECIAL
    }

    /// The offset, whose growth between two looks is what was earned in vain.
    pub(crate) fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    /// Spends `cost` units if the level, less what is `drawn` on it from elsewhere, allows it; tries once. A cost above the
    /// capacity, which only a leaky bucket lets through, needs a full bucket, and the level goes below zero.
    ///
    /// A level that comes as `near` to the capacity as this is taken to be full. `alive` says whether the slot still holds
    /// the caller's key; it is asked after the look at the count.
    #[inline(always)]
    pub(crate) fn try_to_spend(
        &self,
        meter: &Meter,
        earned: u64,
        drawn: i64,
        near: i64,
        cost: u64,
        alive: impl Fn() -> bool,
    ) -> Outcome {
        let amount = meter.fixed(cost);
        let need = amount.min(meter.capacity);
        let spent = self.spent.load(Ordering::Acquire);
        if spent & MARKS != 0 || !alive() {
            return Outcome::Gone;
        }
        let above = above(meter, earned, drawn, spent, self.offset.load(Ordering::Acquire));
        if above > -near {
            return Outcome::Full;
        }
        let level = above + meter.capacity;
        if level < need || spent > MOST_SPENT {
            return Outcome::Denied { level };
        }
        match self.spent.compare_exchange(spent, spent + cost, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Outcome::Allowed { level: level - amount, spent: spent + cost },
            Err(_) => Outcome::Contended,
        }
    }

    /// Spends as many of so many units as leave the level at `floor` or above, if that is the least of them; says how
    /// many, too.
    pub(crate) fn spend_down_to(
        &self,
        meter: &Meter,
        earned: u64,
        drawn: i64,
        units: RangeInclusive<u64>,
        floor: i64,
        alive: impl Fn() -> bool,
    ) -> (u64, Outcome) {
        let mut spent = self.spent.load(Ordering::Acquire);
        loop {
            if spent & DEAD != 0 || !alive() {
                return (0, Outcome::Gone);
            }
            let above = above(meter, earned, drawn, spent, self.offset.load(Ordering::Acquire));
            if above > 0 {
                return (0, Outcome::Full);
            }
            let level = above.saturating_add(meter.capacity);
            let cost = meter.whole(level.saturating_sub(floor)).min(*units.end());
            if level < floor || cost < *units.start() || spent > MOST_SPENT {
                return (0, Outcome::Denied { level });
            }
            match self.spent.compare_exchange_weak(spent, spent + cost, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let level = level - meter.fixed(cost);
                    return (cost, Outcome::Allowed { level, spent: spent + cost });
                }
                Err(seen) => spent = seen,
            }
        }
    }

    /// Spends `cost` units whatever the level, which may go below zero.
    pub(crate) fn spend_anyway(&self, cost: u64, alive: impl Fn() -> bool) -> Option<u64> {
        let mut spent = self.spent.load(Ordering::Acquire);
        loop {
            if spent & DEAD != 0 || !alive() {
                return None;
            }
            if spent & !MARKS > MOST_SPENT {
                // There is no more to count with; what is open stays open.
                return Some(spent & !MARKS);
            }
            match self.spent.compare_exchange_weak(spent, spent + cost, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((spent + cost) & !MARKS),
                Err(seen) => spent = seen,
            }
        }
    }

    /// Spends up to `cost` units whatever the level, but not below `floor`. Returns the level and the count afterwards.
    pub(crate) fn spend_into_debt(
        &self,
        meter: &Meter,
        earned: u64,
        drawn: i64,
        cost: u64,
        floor: i64,
        alive: impl Fn() -> bool,
    ) -> Option<(i64, u64)> {
        let mut spent = self.spent.load(Ordering::Acquire);
        loop {
            if spent & DEAD != 0 || !alive() {
                return None;
            }
            let count = spent & !MARKS;
            let level = self.raw(meter, earned, drawn, count, self.offset.load(Ordering::Acquire));
            let room = if count > MOST_SPENT { 0 } else { meter.whole(level.saturating_sub(floor)) };
            let cost = cost.min(room);
            match self.spent.compare_exchange_weak(spent, spent + cost, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((level.saturating_sub(meter.fixed(cost)), count + cost)),
                Err(seen) => spent = seen,
            }
        }
    }

    /// The level, without changing anything. It may be above the capacity, where nobody looked since it filled.
    #[inline]
    pub(crate) fn read(&self, meter: &Meter, earned: u64, drawn: i64) -> i64 {
        let spent = self.spent.load(Ordering::Acquire) & !MARKS;
        self.raw(meter, earned, drawn, spent, self.offset.load(Ordering::Acquire))
    }

    /// Brings a level that is above the capacity down to it; what was above is gone for good. Does nothing where
    /// somebody else moves the level meanwhile, or the meter is not the key's any more, as `still` says.
    pub(crate) fn put_lid_on(&self, meter: &Meter, earned: u64, drawn: i64, still: impl Fn() -> bool) {
        let spent = self.spent.load(Ordering::Acquire);
        let offset = self.offset.load(Ordering::Acquire);
        let above = above(meter, earned, drawn, spent & !MARKS, offset).max(0);
        // The two belong together only if the count has not gone on, perhaps to another key of the slot.
        if spent & DEAD == 0 && still() && self.spent.load(Ordering::Acquire) == spent {
            let lid = offset.wrapping_add(above as u64);
            let _ = self.offset.compare_exchange(offset, lid, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    #[inline]
    fn raw(&self, meter: &Meter, earned: u64, drawn: i64, spent: u64, offset: u64) -> i64 {
        above(meter, earned, drawn, spent, offset).saturating_add(meter.capacity)
    }

    /// Takes `amount` off the level, but not below `floor`; what is below already stays there. Returns what was taken.
    pub(crate) fn debit(&self, meter: &Meter, earned: u64, drawn: i64, amount: i64, floor: i64) -> i64 {
        loop {
            let spent = self.spent.load(Ordering::Acquire) & !MARKS;
            let offset = self.offset.load(Ordering::Acquire);
            let raw = self.raw(meter, earned, drawn, spent, offset);
            let level = raw.min(meter.capacity);
            let taken = amount.min(level.saturating_sub(floor)).max(0);
            let moved = offset.wrapping_add((raw - level) as u64).wrapping_add(taken as u64);
            if self.offset.compare_exchange(offset, moved, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return taken;
            }
        }
    }

    /// Gives `amount` back to the level; the lid is put on at the next look.
    pub(crate) fn credit(&self, amount: i64) {
        self.offset.fetch_sub(amount.max(0) as u64, Ordering::AcqRel);
    }

    /// Takes `amount` off the level, or gives it back where it is negative, without a floor or a lid.
    pub(crate) fn shift(&self, amount: i64) {
        self.offset.fetch_add(amount as u64, Ordering::AcqRel);
    }

    /// Gives `amount` back to the level, but nothing above the capacity; returns what was given.
    pub(crate) fn credit_to_capacity(&self, meter: &Meter, earned: u64, drawn: i64, amount: i64) -> i64 {
        loop {
            let spent = self.spent.load(Ordering::Acquire) & !DEAD;
            let offset = self.offset.load(Ordering::Acquire);
            let level = self.raw(meter, earned, drawn, spent, offset);
            let given = amount.min(meter.capacity.saturating_sub(level)).max(0);
            let moved = offset.wrapping_sub(given as u64);
            if self.offset.compare_exchange(offset, moved, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return given;
            }
        }
    }

    /// Goes over to another meter, by which the level is then what `convert` makes of the one before.
    ///
    /// Nobody else may decide by either meter meanwhile. Who still holds the former one, from a moment ago, either finds the
    /// offset changed or makes another turn of this loop necessary.
    pub(crate) fn convert(
        &self,
        from: (&Meter, u64, i64),
        to: (&Meter, u64, i64),
        convert: impl Fn(i64) -> i64,
    ) {
        loop {
            let spent = self.spent.load(Ordering::Acquire) & !MARKS;
            let offset = self.offset.load(Ordering::Acquire);
            let (meter, earned, drawn) = from;
            let level = convert(self.raw(meter, earned, drawn, spent, offset).min(meter.capacity));
            let (meter, earned, drawn) = to;
            let moved = earned
                .wrapping_add(meter.capacity.wrapping_sub(level) as u64)
                .wrapping_sub(drawn as u64)
                .wrapping_sub(spent.wrapping_shl(meter.scale));
            // What is spent meanwhile is spent by the new meter: the count is one of units.
            if self.offset.compare_exchange(offset, moved, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Puts the level at `level`, whatever it was.
    pub(crate) fn set(&self, meter: &Meter, earned: u64, drawn: i64, level: i64) {
        let now = self.read(meter, earned, drawn);
        self.offset.fetch_add(now.wrapping_sub(level) as u64, Ordering::AcqRel);
    }

    /// Mends a level that no debt explains: the clock has jumped back. The level is then taken to be zero, so that
    /// the key neither starves until the clock has caught up nor starts full once more.
    ///
    /// Returns whether there was anything to mend. Does nothing where the meter is not the key's any more, as `still` says.
    #[cold]
    pub(crate) fn mend(&self, meter: &Meter, earned: u64, drawn: i64, still: impl Fn() -> bool) -> bool {
        if meter.is_stock() {
            // No clock has a part in it.
            return false;
        }
        let offset = self.offset.load(Ordering::Acquire);
        let level = self.raw(meter, earned, drawn, self.spent.load(Ordering::Acquire) & !MARKS, offset);
        // Beyond the deepest debt lies what a check in flight may have spent, at most the capacity.
        if level >= -meter.max_debt.saturating_add(meter.capacity) || !still() {
            return false;
        }
        let mended = offset.wrapping_sub(level.unsigned_abs());
        self.offset.compare_exchange(offset, mended, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// How far the level is above the capacity; negative where units are missing to it.
#[inline]
fn above(meter: &Meter, earned: u64, drawn: i64, spent: u64, offset: u64) -> i64 {
    let used = offset.wrapping_add(spent.wrapping_shl(meter.scale));
    let above = earned.wrapping_sub(used) as i64;
    // Seldom anything is drawn, and the difference would saturate for nothing.
    if drawn == 0 { above } else { above.saturating_sub(drawn) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn alive() -> bool {
        true
    }

    #[test]
    fn a_late_debit_does_not_take_the_level_below_its_floor() {
        let meter = Meter::token_bucket(1_000, Duration::from_secs(1), 100);
        let level = Level::dead();
        level.revive(&meter, 0, meter.capacity());
        assert_eq!(level.debit(&meter, 0, 0, meter.fixed(150), -meter.fixed(20)), meter.fixed(120));
        assert_eq!(level.debit(&meter, 0, 0, meter.fixed(150), 0), 0);
        assert_eq!(level.read(&meter, 0, 0), -meter.fixed(20));
    }

    #[test]
    fn a_stale_count_never_spends_on_the_next_key_of_the_slot() {
        let meter = Meter::token_bucket(1_000, Duration::from_secs(1), 100);
        let level = Level::dead();
        let first = level.revive(&meter, 0, meter.capacity());
        assert!(level.kill(first));
        assert_eq!(level.try_to_spend(&meter, 0, 0, 0, 1, alive), Outcome::Gone);
        let second = level.revive(&meter, 0, meter.capacity());
        assert!(second > first);
    }

    #[test]
    fn a_clock_that_jumps_back_costs_the_level_but_does_not_starve_the_key() {
        let meter = Meter::token_bucket(1_000, Duration::from_secs(1), 100);
        let level = Level::dead();
        let hour = meter.fixed(3_600_000) as u64;
        level.revive(&meter, hour, meter.capacity());
        assert!(matches!(level.try_to_spend(&meter, 0, 0, 0, 1, alive), Outcome::Denied { .. }));
        assert!(level.mend(&meter, 0, 0, alive));
        assert_eq!(level.read(&meter, 0, 0), 0);
        let later = meter.fixed(5) as u64;
        assert!(matches!(level.try_to_spend(&meter, later, 0, 0, 5, alive), Outcome::Allowed { .. }));
    }
}
