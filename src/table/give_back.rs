//! Giving back what was spent, and spending more on it afterwards.
//!
//! A slot's count of spent units only grows, whatever keys use the slot in turn, so the place of units in that count says
//! what they are: whose, of which life of the key, and of which epoch. A [`Spending`] keeps that place. Units of the epoch that
//! this node's share is in now come back at once. Those of an earlier one have to go into that epoch's share, which only
//! the gossip touches, so they are handed over to it. Those of a key that was given up meanwhile come back to nobody.
//!
//! Whoever gives back holds the slot's stripe, and so does whoever ends the key's life or its epoch: what was found out about
//! the slot stands until the units are there.

use std::{
    cell::Cell as LocalCell,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::*;
use crate::counter::Share;

/// Locks that slots share, so that seldom two threads want the same one.
const STRIPES: usize = 32;
/// In a window limit's count of refunds, what is left of the number of the window that they belong to.
const WINDOW_SHIFT: u32 = 48;

/// Units that were spent, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spending {
    slot: u32,
    key: Key,
    units: u64,
    /// The slot's count afterwards: it is the units below this one.
    end: u64,
    at: Now,
}

impl Spending {
    /// How many.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }
}

/// Units of an epoch that is over, to be given back by the gossip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    pub(crate) slot: u32,
    pub(crate) key: Key,
    pub(crate) end: u64,
    pub(crate) units: u64,
}

/// Is told of what a decision comes across.
pub(super) trait Witness {
    /// The key is in this slot.
    fn found(&self, slot: u32);
    /// The slot's count is `end` after units were spent on `key`.
    fn spent(&self, _slot: u32, _key: Key, _end: u64) {}
}

impl<F: Fn(u32)> Witness for F {
    #[inline(always)]
    fn found(&self, slot: u32) {
        self(slot);
    }
}

/// Keeps what was spent.
struct Recorder<'a> {
    table: &'a Table,
    key: Key,
    spent: LocalCell<Option<(u32, Key, u64)>>,
}

impl Witness for &Recorder<'_> {
    fn found(&self, slot: u32) {
        self.table.remember(self.key, slot);
    }

    fn spent(&self, slot: u32, key: Key, end: u64) {
        self.spent.set(Some((slot, key, end)));
    }
}

/// Hears of what is spent on the bucket that keys without room share, but not where it is.
#[derive(Clone, Copy)]
pub(super) struct Elsewhere<'a>(pub(super) &'a dyn Witness);

impl Witness for Elsewhere<'_> {
    fn found(&self, _slot: u32) {}

    fn spent(&self, slot: u32, key: Key, end: u64) {
        self.0.spent(slot, key, end);
    }
}

/// Locks on slots.
pub(super) struct Stripes([Mutex<()>; STRIPES]);

impl Stripes {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| Mutex::new(())))
    }

    pub(super) fn hold(&self, slot: u32) -> MutexGuard<'_, ()> {
        self.0[slot as usize % STRIPES].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refunds counted in `word` that belong to `window`, or all of them where there are no windows.
pub(crate) fn refunds_in(word: u64, window: Option<u16>) -> u64 {
    match window {
        None => word,
        Some(window) if word >> WINDOW_SHIFT == u64::from(window) => word & ((1 << WINDOW_SHIFT) - 1),
        Some(_) => 0,
    }
}

fn refunds_word(units: u64, window: Option<u16>) -> u64 {
    match window {
        None => units,
        Some(window) => u64::from(window) << WINDOW_SHIFT | units.min((1 << WINDOW_SHIFT) - 1),
    }
}

impl Table {
    /// Decides like [`check`](Table::check), and says where it spent what it did.
    pub(crate) fn take(
        &self,
        key: Key,
        cost: u64,
        now: Now,
        precise: impl Fn() -> Now + Copy,
    ) -> (Decision<'_>, Option<Spending>) {
        self.lanes.count_check();
        let recorder = Recorder { table: self, key, spent: LocalCell::new(None) };
        let decision = self.decide(self.slot_of(key), key, cost, now, precise, &recorder);
        let spending = recorder.spent.get().filter(|_| decision.allowed);
        let at = decision.now;
        (decision, spending.map(|(slot, key, end)| Spending { slot, key, units: cost, end, at }))
    }

    /// The same at the precise time `now`, where units that come back in the next `ahead` nanoseconds may be spent
    /// already. The level of the decision is below zero by what is still to come.
    pub(crate) fn take_ahead(
        &self,
        key: Key,
        cost: u64,
        ahead: u64,
        now: Now,
    ) -> (Decision<'_>, Option<Spending>) {
        let basis = self.stance().basis;
        // Refusals, and what the level does not decide, take the usual way.
        if self.stance().verdict == Verdict::Level
            && ahead > 0
            && self.meter().is_continuous()
            && let Some(slot) = self.find(key).or_else(|| self.insert(key, now))
            && let Some(cell) = self.slab.get(slot)
        {
            let limit = self.limit_of(cell);
            let meter = limit.meter();
            // What a leaky bucket lets through may take it below zero as it is.
            let floor = (meter.need(cost) - meter.fixed(cost)).saturating_sub_unsigned(meter.earned_ahead(ahead));
            if let (_, Outcome::Allowed { level, spent }) =
                self.spend_down_to(slot, key, cost..=cost, |_| floor, now)
            {
                self.lanes.count_check();
                self.note_spent(slot, cell, spent, now);
                let spending = Spending { slot, key, units: cost, end: spent, at: now };
                let decision = Decision::by_meter(limit, true, basis, level, cost, now);
                return (decision, Some(spending));
            }
        }
        self.take(key, cost, now, || now)
    }

    /// Spends between so many units on the key in `slot` as far as the level stays at `floor` or above.
    fn spend_down_to(
        &self,
        slot: u32,
        key: Key,
        units: std::ops::RangeInclusive<u64>,
        floor: impl Fn(&Meter) -> i64,
        now: Now,
    ) -> (u64, Outcome) {
        let Some(cell) = self.slab.get(slot) else { return (0, Outcome::Gone) };
        // The quota does not change while this is held.
        let _held = self.stripes.hold(slot);
        let (meter, drawn) = (self.meter_of(cell), self.drawn(cell, now));
        let (earned, floor) = (self.earned(cell, now), floor(meter));
        loop {
            let units = units.clone();
            let (spent, outcome) =
                cell.level.spend_down_to(meter, earned, drawn, units, floor, || cell.holds(key));
            if outcome != Outcome::Full {
                return (spent, outcome);
            }
            cell.level.put_lid_on(meter, earned, drawn, || true);
        }
    }

    /// Spends up to `units` more on what `spending` was spent on, whatever the level, but never deeper than debts may go;
    /// returns how many. They count for the epoch and the window that it is now.
    pub(crate) fn spend_more(&self, spending: &Spending, units: u64, now: Now) -> u64 {
        let (key, floor) = (spending.key, |meter: &Meter| -meter.max_debt());
        let mut slot = spending.slot;
        // Somebody may take the slot away between looking and spending, but not every time.
        for _ in 0..4 {
            let (spent, outcome) = self.spend_down_to(slot, key, 1..=units, floor, now);
            match outcome {
                Outcome::Allowed { spent: count, .. } => {
                    if let Some(cell) = self.slab.get(slot) {
                        self.note_spent(slot, cell, count, now);
                    }
                    return spent;
                }
                Outcome::Gone => match self.find(key).or_else(|| self.insert(key, now)) {
                    Some(found) => slot = found,
                    None => return 0,
                },
                _ => return 0,
            }
        }
        0
    }

    /// Gives back up to `units` of a spending, unless they may not come back any more; returns how many. Those of an
    /// epoch that is over come back with the next heartbeat.
    pub(crate) fn give_back(&self, spending: &Spending, units: u64, now: Now) -> u64 {
        let Spending { slot, key, end, at, .. } = *spending;
        let units = units.min(spending.units);
        let in_time = self.meter().is_returnable(self.own_time(key, at), self.own_time(key, now));
        let Some(cell) = self.slab.get(slot).filter(|_| units > 0 && in_time) else {
            return 0;
        };
        let _held = self.stripes.hold(slot);
        let spent = cell.level.spent();
        if spent & DEAD != 0 || !cell.holds(key) || end > spent {
            return 0;
        }
        // Permits that are held go over from epoch to epoch.
        if end > cell.base.load(Ordering::Acquire) || self.limit.permit_returns_on_drop() {
            return self.give_back_held(slot, cell, spent, units, now);
        }
        let retired = now.mono.since(at.mono) >= 2 * self.limit().epoch_length();
        if self.limit.has_common_epochs() || retired || !self.marks.is_heard() {
            return 0;
        }
        if self.marks.hand_over(Late { slot, key, end, units }) { units } else { 0 }
    }

    /// Gives back up to `units` of what this node spent on `key` in the current epoch; returns how many.
    pub(crate) fn refund(&self, key: Key, units: u64, now: Now) -> u64 {
        let Some((slot, cell)) = self.find(key).and_then(|slot| Some((slot, self.slab.get(slot)?))) else {
            return 0;
        };
        let _held = self.stripes.hold(slot);
        let spent = cell.level.spent();
        if spent & DEAD != 0 || !cell.holds(key) {
            return 0;
        }
        // What is missing to a window's quota is what was spent in it; the rest is of windows that are over.
        let meter = self.meter_of(cell);
        let missing = meter.capacity().saturating_sub(self.level_of(cell, now));
        let units = if meter.needs_wall() { units.min(meter.whole(missing)) } else { units };
        self.give_back_held(slot, cell, spent, units, now)
    }

    /// Gives back units of the current epoch, as far as they have not been given back, in a slot that is held.
    fn give_back_held(&self, slot: u32, cell: &Cell, spent: u64, units: u64, now: Now) -> u64 {
        let meter = self.meter_of(cell);
        let window = meter.window(now).filter(|_| self.limit.has_common_epochs());
        let window = window.map(|window| window as u16);
        let refunded = refunds_in(cell.refunded.load(Ordering::Acquire), window);
        let in_epoch = spent.saturating_sub(cell.base.load(Ordering::Acquire));
        let given = units.min(in_epoch.saturating_sub(refunded));
        if given > 0 {
            cell.refunded.store(refunds_word(refunded + given, window), Ordering::Release);
            self.put_back(slot, cell, meter.fixed(given), now);
            self.note_changed(slot, cell, now);
        }
        given
    }

    /// Gives back all that this node spent on the key in the current epoch, and fills its level.
    pub(super) fn give_all_back(&self, slot: u32, cell: &Cell, now: Now) {
        let _held = self.stripes.hold(slot);
        self.give_back_held(slot, cell, cell.level.spent(), u64::MAX, now);
        let meter = self.meter_of(cell);
        if self.empty_history(slot, cell, now) {
            return;
        }
        cell.level.set(meter, self.earned(cell, now), self.drawn(cell, now), meter.capacity());
    }

    /// Ends the epoch of this node's share, which holds `last`, of the window `last_window`: later units are of the next
    /// epoch, and so are refunds of the window `window`, and those for which `last` has no room. Returns what `last` comes to.
    pub(crate) fn end_epoch(
        &self,
        slot: u32,
        cell: &Cell,
        last: Share,
        last_window: Option<u16>,
        window: Option<u16>,
    ) -> Share {
        let _held = self.stripes.hold(slot);
        let word = cell.refunded.load(Ordering::Acquire);
        if self.limit.permit_returns_on_drop() {
            // Those that are still held are of the next epoch, and the last one has none left.
            cell.refunded.store(0, Ordering::Release);
            cell.base.fetch_add(word, Ordering::AcqRel);
            return Share { refunded: last.spent, ..last };
        }
        let refunded = refunds_in(word, last_window).min(last.spent);
        let left = match window {
            None => word.saturating_sub(refunded),
            Some(_) if refunds_in(word, window) > 0 => word,
            Some(_) => 0,
        };
        cell.refunded.store(left, Ordering::Release);
        cell.base.fetch_add(last.spent, Ordering::AcqRel);
        Share { refunded: refunded.max(last.refunded), ..last }
    }
}
