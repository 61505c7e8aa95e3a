//! The quotas that a table's keys have: the limit's own, those of single keys, and those that the limit had before it was
//! changed.
//!
//! Which quota a key has is written in its cell, beside the level, and is what the level is to be read by. A quota never
//! goes away while the table lives, so whoever has looked one up may go on using it. When a key gets another quota, its
//! level is carried over: what is missing to the capacity, in units, is missing to the new one, too, as far as debts may go. So
//! nothing that was counted is lost, a lowered quota holds at once, and a raised one gives at once what it gives more.
//!
//! A change marks the cell first, as a rule would: who finds the mark decides on nothing, and waits for the lock of the
//! rules, which the change holds. Then it names the new quota, and then moves the offset. Who read the former quota just
//! before may still spend by it, once; since the count is one of units, nothing else comes of it.

use std::{
    cell::Cell as LocalCell,
    collections::HashMap,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use super::{
    Table,
    slab::{Cell, MAX_LATER_QUOTAS},
};
#[cfg(any(feature = "net", feature = "sim"))]
use crate::limit::LimitError;
use crate::{
    algorithm::{Meter, level::DEAD},
    decision::Waits,
    error::RuleError,
    key::Key,
    limit::{Limit, Quota},
    time::Now,
};

/// The quota that a table was made with.
pub(super) const FIRST: u8 = 0;

/// A table's quotas but for the first.
pub(super) struct Quotas {
    later: Box<[OnceLock<Box<Later>>]>,
    /// How many there are; held while one is added.
    count: Mutex<u8>,
    /// The limit's own quota now.
    current: AtomicU8,
    /// Whether any key has ever been given a quota of its own, seen yet or not.
    of_keys: AtomicBool,
    /// What keys had spent in a window beyond the quota that it was lowered to, by slot.
    beyond: Mutex<HashMap<u32, Beyond>>,
}

/// Units that were spent beyond what a quota was lowered to. They are missing again when it is raised in the same window, and
/// not to the next one, which begins with its whole quota.
struct Beyond {
    key: Key,
    window: u64,
    units: u64,
}

/// Of so many keys at a time; of more, it is forgotten.
const MAX_BEYOND: usize = 1 << 16;

struct Later {
    limit: Limit,
    /// The limit's own, or a single key's.
    kind: Kind,
    /// An amount of the same part of the quota, by this quota's meter, as a multiple of the one by the meter of the limit's
    /// own.
    ratio: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Own,
    /// Made from the limit's own quota of this number.
    OfKey(u8),
}

impl Quotas {
    pub(super) fn new() -> Self {
        Self {
            later: (0..MAX_LATER_QUOTAS).map(|_| OnceLock::new()).collect(),
            count: Mutex::new(0),
            current: AtomicU8::new(FIRST),
            of_keys: AtomicBool::new(false),
            beyond: Mutex::default(),
        }
    }

    /// What the key had spent beyond its quota in this window, which is forgotten.
    fn take_beyond(&self, slot: u32, key: Key, window: u64) -> u64 {
        let mut beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = beyond.remove(&slot).filter(|beyond| beyond.key == key && beyond.window == window);
        taken.map_or(0, |beyond| beyond.units)
    }

    fn note_beyond(&self, slot: u32, key: Key, window: u64, units: u64) {
        let mut beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
        if beyond.len() >= MAX_BEYOND {
            beyond.retain(|_, beyond| beyond.window == window);
        }
        if units > 0 && beyond.len() < MAX_BEYOND {
            beyond.insert(slot, Beyond { key, window, units });
        }
    }

    fn get(&self, quota: u8) -> Option<&Later> {
        self.later.get(usize::from(quota.checked_sub(1)?))?.get().map(|later| &**later)
    }

    /// The number of this quota, if it is one of the first `count`.
    fn known(&self, count: u8, limit: &Limit, kind: Kind) -> Option<u8> {
        let same =
            |quota: &u8| self.get(*quota).is_some_and(|later| later.kind == kind && later.limit == *limit);
        (1..=count).find(same)
    }

    /// The number of this quota, which is taken in if it is new; `None` where there is no more room.
    fn number(&self, limit: Limit, kind: Kind, ratio: f64) -> Option<u8> {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known(*count, &limit, kind) {
            return Some(known);
        }
        let _ = self.later.get(usize::from(*count))?.set(Box::new(Later { limit, kind, ratio }));
        *count += 1;
        if kind != Kind::Own {
            self.note_of_keys();
        }
        Some(*count)
    }

    /// From now on, what a key can have has to be asked of its own rules.
    pub(super) fn note_of_keys(&self) {
        self.of_keys.store(true, Ordering::Release);
    }
}

/// Looking up quotas.
impl Table {
    /// The limit, as it is now.
    #[inline]
    pub(crate) fn limit(&self) -> &Limit {
        match self.current() {
            FIRST => &self.limit,
            later => self.limit_at(later),
        }
    }

    /// The number of the limit's own quota.
    #[inline]
    pub(super) fn current(&self) -> u8 {
        self.quotas.current.load(Ordering::Acquire)
    }

    /// Whether any key has ever been given a quota of its own.
    #[inline]
    pub(super) fn has_quotas_of_keys(&self) -> bool {
        self.quotas.of_keys.load(Ordering::Acquire)
    }

    /// The limit as it is for the cell's key.
    #[inline]
    pub(crate) fn limit_of(&self, cell: &Cell) -> &Limit {
        match cell.quota() {
            FIRST => &self.limit,
            later => self.limit_at(later),
        }
    }

    #[inline]
    pub(super) fn limit_at(&self, quota: u8) -> &Limit {
        self.quotas.get(quota).map_or(&self.limit, |later| &later.limit)
    }

    /// What the level of the cell is to be read by.
    #[inline]
    pub(crate) fn meter_of(&self, cell: &Cell) -> &Meter {
        self.limit_of(cell).meter()
    }

    /// How much an amount of the limit's own quota is of the quota of the cell's key, as the same part of it.
    pub(crate) fn ratio(&self, cell: &Cell) -> f64 {
        self.quotas.get(cell.quota()).map_or(1.0, |later| later.ratio)
    }

    /// Whether the cell's key has another quota than the limit's own.
    #[cfg(feature = "gossip")]
    pub(crate) fn has_other_quota(&self, cell: &Cell) -> bool {
        cell.quota() != self.current()
    }

    /// Whether the cell's key still has a quota that the limit had before.
    #[inline]
    pub(super) fn is_outdated(&self, cell: &Cell) -> bool {
        let (quota, current) = (cell.quota(), self.current());
        quota != current && self.quotas.get(quota).is_none_or(|later| later.kind != Kind::OfKey(current))
    }

    /// The number of the quota that an override gives to a key.
    ///
    /// # Errors
    /// It cannot stand, or there have been too many.
    pub(super) fn quota_of_key(&self, quota: Quota, burst: u64) -> Result<u8, RuleError> {
        let current = self.current();
        let own = self.limit_at(current);
        let limit = own.with_quota(quota, burst).map_err(|error| RuleError::Quota(Box::new(error)))?;
        let ratio = part(&limit) / part(own);
        self.quotas.number(limit, Kind::OfKey(current), ratio).ok_or(RuleError::TooManyQuotas)
    }

    /// Whether a key could be given this quota now.
    #[cfg(feature = "gossip")]
    pub(super) fn has_room_for(&self, quota: Quota, burst: u64) -> bool {
        let current = self.current();
        let Ok(limit) = self.limit_at(current).with_quota(quota, burst) else { return false };
        let count = *self.quotas.count.lock().unwrap_or_else(PoisonError::into_inner);
        usize::from(count) < MAX_LATER_QUOTAS
            || self.quotas.known(count, &limit, Kind::OfKey(current)).is_some()
    }

    /// Whether there is room for a change of the limit to `next`, with the quotas that keys then have.
    ///
    /// # Errors
    /// There have been too many quotas.
    #[cfg(any(feature = "net", feature = "sim"))]
    pub(crate) fn check_room(&self, next: &Limit) -> Result<(), LimitError> {
        let held = usize::from(*self.quotas.count.lock().unwrap_or_else(PoisonError::into_inner));
        let of_keys = next.lists().map_or(0, |lists| lists.quotas()) + self.quotas_set();
        if *next == *self.limit() || held + 1 + of_keys <= MAX_LATER_QUOTAS {
            Ok(())
        } else {
            Err(next.changed_too_often())
        }
    }

    /// From now on the limit is `next`, for all keys without a quota of their own. Returns whether that could be noted.
    ///
    /// Keys go over when they are next asked for, or when [`bring_up_to_date`](Self::bring_up_to_date) comes to them.
    pub(super) fn change_own(&self, next: Limit) -> bool {
        let quota = if next == self.limit { Some(FIRST) } else { self.quotas.number(next, Kind::Own, 1.0) };
        if let Some(quota) = quota {
            self.quotas.current.store(quota, Ordering::Release);
        }
        quota.is_some()
    }
}

/// Changing the quotas of keys.
impl Table {
    /// Gives the cell's key another quota, and carries its level over. The lock of the rules must be held for writing.
    pub(super) fn change_quota(&self, slot: u32, cell: &Cell, key: Key, quota: u8, now: Now) {
        let alive = || cell.holds(key);
        cell.level.mark(true, alive);
        let _held = self.stripes.hold(slot);
        if cell.level.spent() & DEAD != 0 || !alive() || cell.quota() == quota {
            return;
        }
        let (old, new) = (self.meter_of(cell), self.limit_at(quota).meter());
        let rescale = |amount: i64| rescale(amount, old.scale(), new.scale());
        let own_time = self.own_time(key, now);
        // Before the quota changes, and after: what is drawn on the level is so by the quota.
        let before = |table: &Self| (old, old.earned(own_time), table.drawn(cell, now));
        let after = |table: &Self| (new, new.earned(own_time), table.drawn(cell, now));
        let window = new.window(own_time);
        let (known, beyond) =
            (window.map_or(0, |window| self.quotas.take_beyond(slot, key, window)), LocalCell::new(0));
        // What does not come back with time is given back as a whole, so it has to be missing as a whole.
        let deepest = match (new.is_stock(), window) {
            (true, _) => i64::MIN,
            (_, Some(_)) => 0,
            _ => -new.max_debt(),
        };
        let carry = |missing: i64| {
            let level = new.capacity().saturating_sub(missing);
            beyond.set(new.whole(level.saturating_neg()));
            level.max(deepest)
        };
        let change = |table: &Self, within: Option<i64>| {
            let from = before(table);
            cell.set_quota(quota);
            cell.level.convert(from, after(table), |level| {
                let missing = || old.capacity().saturating_sub(level).saturating_add(old.fixed(known));
                carry(within.unwrap_or_else(|| rescale(missing())))
            });
        };
        if !self.rescale_history(slot, cell, now, rescale, |within| change(self, Some(within))) {
            change(self, None);
        }
        if let Some(window) = window {
            self.quotas.note_beyond(slot, key, window, beyond.get());
        }
    }

    /// The limit of the cell's key, the level of the key by it, and when that will be restored.
    pub(super) fn look_by_quota(&self, slot: u32, cell: &Cell, cost: u64, now: Now) -> (&Limit, i64, Waits) {
        let quota = cell.quota();
        let (level, waits) = self.look_at(slot, cell, cost, now);
        if self.has_still(cell, quota) {
            return (self.limit_at(quota), level, waits);
        }
        // While this is held, the quota and the level are of each other.
        let _held = self.stripes.hold(slot);
        let (level, waits) = self.look_at(slot, cell, cost, now);
        (self.limit_of(cell), level, waits)
    }

    /// Keeps the key in `slot` from being given another quota, or given up, for as long as the answer lives.
    #[cfg(feature = "gossip")]
    pub(crate) fn hold(&self, slot: u32) -> std::sync::MutexGuard<'_, ()> {
        self.stripes.hold(slot)
    }

    /// Whether nobody has given the cell's key another quota since `quota` was read, nor is about to.
    #[inline]
    pub(super) fn has_still(&self, cell: &Cell, quota: u8) -> bool {
        cell.quota() == quota && !cell.level.is_marked()
    }

    /// Gives the next `count` keys from `slot` on the quotas that they should have; returns where to go on.
    pub(crate) fn bring_up_to_date(&self, slot: u32, count: u32, now: Now) -> Option<u32> {
        let end = slot.saturating_add(count).min(self.used_slots());
        for slot in slot..end {
            self.renew_terms(slot, now);
        }
        if end < self.used_slots() {
            return Some(end);
        }
        self.renew_terms(self.shared_slot(), now);
        None
    }

    /// Gives the key in `slot` the quota that it should have.
    #[cold]
    pub(super) fn renew_terms(&self, slot: u32, now: Now) {
        if let Some(cell) = self.slab.get(slot).filter(|cell| self.is_outdated(cell)) {
            let notices = self.rules.write();
            self.mark(&notices, cell.key(), now);
        }
    }
}

/// What a quota gives in a second, or at once where nothing comes back by itself, by its own meter.
fn part(limit: &Limit) -> f64 {
    let meter = limit.meter();
    if meter.is_stock() {
        return meter.capacity() as f64;
    }
    meter.amount_of(1.0) as f64 * limit.quota().units_per_second()
}

/// An amount in another fixed point; saturates.
fn rescale(amount: i64, from: u32, to: u32) -> i64 {
    if to >= from {
        let room = i64::MAX >> (to - from).min(62);
        amount.clamp(-room, room) << (to - from).min(62)
    } else {
        // Rounded up: what is missing stays missing.
        let lost = (from - to).min(62);
        amount.saturating_add((1 << lost) - 1) >> lost
    }
}
