//! The short way, which nearly every check goes.
//!
//! It is open where the level alone decides and the key's slot is known; what would keep all checks of a table from it is
//! in one word. What is here is compiled into its callers, which do nothing else: whatever is seldom is a function of its own,
//! that is handed what the check was asked, and begins anew. Each answer is made where it is returned, and what is handed on
//! are numbers: what is copied through memory in pieces of another size than it was written in costs more than the decision.

use super::*;
use crate::{table::flow::Flow, time::Timestamp};

/// What keeps checks from the short way, in the word of the [`Stance`]: a verdict that is not the level's, and these.
const OPEN: u32 = 0xff00;
/// The meter goes by the wall clock.
pub(super) const BY_WALL: u32 = 1 << 15;
/// The table decides together with others.
const WITH_OTHERS: u32 = 1 << 14;
/// What is drawn on every key's level changes with time.
const DRAINING: u32 = 1 << 13;
/// What may be drawn on every key's level for the short way to mind it: what is far from where differences wrap.
const MOST_RESTING: i64 = 1 << 60;

/// How far a check came on the short way.
pub(crate) enum Plain {
    /// The units are spent.
    Allowed { level: i64, basis: BasisWord },
    /// The units are spent, and the gossip wants to hear of it.
    Due { level: i64 },
    /// The level is too low, or so high that its lid may have to be put on.
    Unsure { full: bool },
    /// Another thread was faster.
    Contended,
    /// The key is not in the slot, or has to be decided on at length.
    Elsewhere,
    /// The way is closed, or the thread has no lane to count in: nothing is counted yet.
    Closed,
}

impl Table {
    /// Spends `cost` units of what is left at the coarse time `mono` to the key that may be in
    /// `slot`, if there is such a slot.
    #[inline(always)]
    pub(crate) fn try_plainly(&self, slot: u64, key: Key, cost: u64, mono: Timestamp) -> Plain {
        // Counted early, where the thread's own memory is at hand.
        if self.stance.load(Ordering::Acquire) & OPEN != 0 || !self.lanes.count_check_alone() {
            return Plain::Closed;
        }
        self.try_in(slot as usize, key, cost, |meter| meter.earned_steadily(mono))
    }

    /// The same for a check that is counted, where the way was open a moment ago.
    #[inline(always)]
    pub(crate) fn try_found(&self, slot: u32, key: Key, cost: u64, mono: Timestamp) -> Plain {
        self.try_in(slot as usize, key, cost, |meter| meter.earned_steadily(mono))
    }

    /// The same where windows are gone by.
    #[inline(always)]
    pub(crate) fn try_by_window(&self, slot: u32, key: Key, cost: u64, now: Now) -> Plain {
        if self.stance.load(Ordering::Acquire) & OPEN != BY_WALL {
            return Plain::Elsewhere;
        }
        self.try_in(slot as usize, key, cost, |meter| meter.earned(now))
    }

    #[inline(always)]
    fn try_in(&self, slot: usize, key: Key, cost: u64, earned: impl Fn(&Meter) -> u64) -> Plain {
        let Some(cell) = self.slab.get_at(slot) else { return Plain::Elsewhere };
        if !cell.is_plain() {
            return Plain::Elsewhere;
        }
        // Such a cell has the first quota. Where that is not the limit's any more, the way is closed.
        let meter = self.limit.meter();
        let earned = earned(meter).wrapping_sub(self.resting.load(Ordering::Relaxed) as u64);
        match cell.level.try_plainly(meter, earned, cost, || cell.holds(key)) {
            Outcome::Allowed { level, spent } if spent >= cell.flush_at.load(Ordering::Relaxed) => {
                Plain::Due { level }
            }
            Outcome::Allowed { level, .. } => {
                // Read again, since to keep it all the way takes a register.
                Plain::Allowed { level, basis: BasisWord(self.stance.load(Ordering::Relaxed)) }
            }
            Outcome::Denied { .. } => Plain::Unsure { full: false },
            Outcome::Full => Plain::Unsure { full: true },
            Outcome::Contended => Plain::Contended,
            Outcome::Gone => Plain::Elsewhere,
        }
    }

    /// The answer to a check that has spent.
    #[inline(always)]
    pub(crate) fn allowed(&self, level: i64, cost: u64, now: Now, basis: BasisWord) -> Decision<'_> {
        Decision::by_meter(&self.limit, true, basis, level, cost, now)
    }

    /// The answer to a check that has spent in `slot`, of which the gossip wants to hear.
    #[inline]
    pub(crate) fn allowed_when_due(&self, slot: u32, level: i64, cost: u64, now: Now) -> Decision<'_> {
        if let Some(cell) = self.slab.get(slot) {
            self.note_spent(slot, cell, cell.level.spent() & !DEAD, now);
        }
        self.allowed(level, cost, now, self.stance().basis)
    }

    /// Says that the table is one of several that decide together.
    pub(crate) fn decides_with_others(&self) {
        self.set_plain(WITH_OTHERS, false);
    }

    /// Sets what is drawn on every key's level. Only the gossip does, one call at a time.
    pub(crate) fn set_drain(&self, flow: Flow) {
        self.drain.store(flow);
        let resting = flow.at_rest().filter(|base| (0..MOST_RESTING).contains(base));
        if let Some(base) = resting {
            self.resting.store(base, Ordering::Relaxed);
        }
        // Whoever finds the way open reads what rests now.
        self.set_plain(DRAINING, resting.is_some());
    }

    /// Opens the short way as far as `mark` goes, or closes it.
    pub(super) fn set_plain(&self, mark: u32, open: bool) {
        self.change_stance(mark, if open { 0 } else { mark });
    }

    /// Sets these bits of the word.
    pub(super) fn change_stance(&self, bits: u32, to: u32) {
        let mut word = self.stance.load(Ordering::Relaxed);
        while let Err(other) =
            self.stance.compare_exchange_weak(word, word & !bits | to, Ordering::Release, Ordering::Relaxed)
        {
            word = other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        limit::{Limit, Quota},
        table::flow::Rate,
    };

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn table(limit: crate::limit::LimitBuilder) -> (Table, Key, u64) {
        let table = Table::new(limit.build().unwrap());
        let (key, now) = (Key::from_digest(7), Now::by_mono(NOW));
        // Below the brim, so that the coarse time will do.
        assert!(table.check(key, 50, now, || now).is_allowed());
        let slot = table.find(key).unwrap().into();
        (table, key, slot)
    }

    fn bucket() -> (Table, Key, u64) {
        table(Limit::token_bucket("a", Quota::per_second(10)).burst(100))
    }

    #[test]
    fn what_rests_is_drawn_on_the_short_way_and_what_runs_off_closes_it() {
        let (table, key, slot) = bucket();
        let unit = table.meter().fixed(1);
        let left = |plain| if let Plain::Allowed { level, .. } = plain { Some(level / unit) } else { None };
        assert_eq!(left(table.try_plainly(slot, key, 1, NOW)), Some(49));
        table.set_drain(Flow { base: 20 * unit, ..Flow::default() });
        assert_eq!(left(table.try_plainly(slot, key, 1, NOW)), Some(28));
        assert!(matches!(table.try_plainly(slot, key, 29, NOW), Plain::Unsure { full: false }));
        let rate = Rate::per_second(1.0);
        table.set_drain(Flow { base: 20 * unit, rate, ..Flow::default() });
        assert!(matches!(table.try_plainly(slot, key, 1, NOW), Plain::Closed));
        table.set_drain(Flow { base: MOST_RESTING, ..Flow::default() });
        assert!(matches!(table.try_plainly(slot, key, 1, NOW), Plain::Closed));
        table.set_drain(Flow::default());
        assert_eq!(left(table.try_plainly(slot, key, 1, NOW)), Some(47));
    }

    #[test]
    fn a_new_stance_opens_nothing_that_is_closed_for_another_reason() {
        let (table, key, slot) = bucket();
        let alone = |verdict| Stance { basis: Basis::Alone.into(), verdict };
        let goes = || matches!(table.try_plainly(slot, key, 1, NOW), Plain::Allowed { .. });
        assert!(goes());
        for verdict in [Verdict::Open, Verdict::Closed, Verdict::Careful] {
            table.set_stance(alone(verdict));
            assert!(!goes());
        }
        table.set_stance(alone(Verdict::Level));
        assert!(goes());
        table.decides_with_others();
        table.set_stance(alone(Verdict::Level));
        assert!(!goes());
    }

    #[test]
    fn windows_and_costs_without_room_do_not_go_the_short_way() {
        let (windows, key, slot) = table(Limit::fixed_window("a", Quota::per_day(100)));
        assert!(matches!(windows.try_plainly(slot, key, 1, NOW), Plain::Closed));
        assert!(matches!(
            windows.try_by_window(slot as u32, key, 1, Now::by_mono(NOW)),
            Plain::Allowed { .. }
        ));
        let (table, key, slot) = bucket();
        // In fixed point this would come to nothing.
        assert!(matches!(table.try_plainly(slot, key, 1 << 62, NOW), Plain::Unsure { .. }));
    }

    #[test]
    fn each_check_is_counted_once_whichever_way_it_goes() {
        let (table, key, slot) = bucket();
        let checks = || table.checks_and_denials().0;
        let before = checks();
        assert!(matches!(table.try_plainly(slot, key, 1, NOW), Plain::Allowed { .. }));
        assert!(matches!(table.try_plainly(slot, key, 1_000, NOW), Plain::Unsure { .. }));
        assert_eq!(checks(), before + 2);
        table.decides_with_others();
        assert!(matches!(table.try_plainly(slot, key, 1, NOW), Plain::Closed));
        assert_eq!(checks(), before + 2);
    }
}
