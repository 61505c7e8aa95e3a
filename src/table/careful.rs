//! What is not a function of the time alone: windows that slide, and windows that begin at each key's own time.
//!
//! Where windows begin at each key's own time, it is only the time that differs by key. Where a window slides, what comes
//! back is not a function of time alone but of what the key spent and when. Its history lies beside its cell behind a
//! lock, which a check holds while it lets go of what has left the window and spends. The cell's level is what the history
//! says: the capacity less all that is within the window.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{Cell, Table, Witness};
use crate::{
    algorithm::{
        Meter,
        level::{DEAD, Outcome},
        sliding_window::{Cut, History},
    },
    decision::{Decision, Waits},
    key::Key,
    time::{Now, Timestamp},
};

/// Locks among which the keys' histories are parted.
const SHARDS: usize = 64;
/// At the time of this reading everything is in the current sub-window.
const CURRENT: Timestamp = Timestamp::from_nanos(u64::MAX);

/// The histories of a sliding window's keys, by slot.
pub(super) struct Histories {
    cut: Cut,
    shards: Box<[Mutex<HashMap<u32, Kept>>]>,
}

/// One key's history, and how much of what its cell counts it holds.
#[derive(Debug)]
struct Kept {
    history: History,
    seen: u64,
}

impl Histories {
    pub(super) fn new(cut: Cut) -> Self {
        Self { cut, shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, slot: u32) -> MutexGuard<'_, HashMap<u32, Kept>> {
        self.shards[slot as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The history of the key in `slot`, if that is still this key and alive.
    fn kept<'a>(
        &self,
        shard: &'a mut HashMap<u32, Kept>,
        slot: u32,
        cell: &Cell,
        key: Key,
    ) -> Option<&'a mut Kept> {
        let spent = cell.level.spent();
        (spent & DEAD == 0 && cell.holds(key))
            .then(|| shard.entry(slot).or_insert_with(|| Kept { history: History::default(), seen: spent }))
    }

    /// Forgets the key that was in `slot`.
    pub(super) fn forget(&self, slot: u32) {
        self.shard(slot).remove(&slot);
    }
}

impl Kept {
    /// Takes in what the cell spent since the last look, lets go of what has left the window, and gives that back.
    fn advance(&mut self, table: &Table, cut: Cut, cell: &Cell, now: Now) {
        let spent = cell.level.spent() & !DEAD;
        let new = spent.saturating_sub(self.seen);
        self.seen = spent;
        self.history.add(cut, CURRENT, table.meter_of(cell).fixed(new));
        let left = self.history.advance(cut, now.mono);
        if left > 0 {
            cell.level.credit(left);
        }
    }
}

impl Table {
    /// What a key has earned since the clock's origin, where windows may begin at a time of its own.
    #[inline]
    pub(crate) fn earned(&self, cell: &Cell, now: Now) -> u64 {
        let meter = self.meter_of(cell);
        match self.stagger_nanos {
            0 => meter.earned(now),
            _ => meter.earned(self.own_time(cell.key(), now)),
        }
    }

    /// The time by which a key's windows begin.
    pub(crate) fn own_time(&self, key: Key, now: Now) -> Now {
        if self.stagger_nanos == 0 { now } else { self.limit.own_time(key, now) }
    }

    /// How long until a level is restored, where that does not follow from the meter and the time alone.
    pub(super) fn waits(&self, meter: &Meter, key: Key, level: i64, cost: u64, now: Now) -> Waits {
        if self.stagger_nanos == 0 {
            return Waits::BY_METER;
        }
        let now = self.own_time(key, now);
        let until = |wanted: i64| meter.nanos_to_earn(wanted.saturating_sub(level), now);
        Waits { retry: until(meter.need(cost)), reset: until(meter.capacity()) }
    }

    /// Decides by what is within the window of the cell's key; `None` where it is another key's by now.
    #[allow(clippy::too_many_arguments, reason = "the arguments of one decision, handed on")]
    #[inline(never)]
    pub(super) fn decide_by_history(
        &self,
        histories: &Histories,
        slot: u32,
        cell: &Cell,
        key: Key,
        cost: u64,
        now: Now,
        witness: &dyn Witness,
    ) -> Option<Decision<'_>> {
        let (basis, cut) = (self.stance().basis, histories.cut);
        // The quota does not change while this is held.
        let mut shard = histories.shard(slot);
        let limit = self.limit_of(cell);
        let meter = limit.meter();
        let kept = histories.kept(&mut shard, slot, cell, key)?;
        loop {
            kept.advance(self, cut, cell, now);
            let drawn = self.drawn(cell, now).saturating_sub(kept.history.faded(cut, now.mono));
            match cell.level.try_to_spend(meter, 0, drawn, 0, cost, || cell.holds(key)) {
                Outcome::Allowed { level, spent } => {
                    kept.advance(self, cut, cell, now);
                    let waits = Waits { retry: 0, reset: kept.history.nanos_until_empty(cut, now.mono) };
                    drop(shard);
                    self.note_spent(slot, cell, spent, now);
                    witness.spent(slot, key, spent);
                    return Some(Decision {
                        waits,
                        ..Decision::by_meter(limit, true, basis, level, cost, now)
                    });
                }
                Outcome::Denied { level } => {
                    let missing = meter.need(cost).saturating_sub(level);
                    let waits = Waits {
                        retry: kept.history.nanos_until(cut, missing, now.mono),
                        reset: kept.history.nanos_until_empty(cut, now.mono),
                    };
                    drop(shard);
                    self.count_denied(slot, cell, cost, now);
                    if limit.punishes() {
                        return Some(self.punish(slot, cell, key, cost, level, waits, now));
                    }
                    return Some(Decision {
                        waits,
                        ..Decision::by_meter(limit, false, basis, level, cost, now)
                    });
                }
                Outcome::Full => cell.level.put_lid_on(meter, 0, drawn, || true),
                Outcome::Contended => {}
                Outcome::Gone => return None,
            }
        }
    }

    /// The level of the key in `slot`, between the deepest debt and the capacity, and when it will be restored.
    pub(crate) fn look_at(&self, slot: u32, cell: &Cell, cost: u64, now: Now) -> (i64, Waits) {
        let Some(histories) = &self.histories else {
            let level = self.level_of(cell, now);
            return (level, self.waits(self.meter_of(cell), cell.key(), level, cost, now));
        };
        let cut = histories.cut;
        let mut shard = histories.shard(slot);
        let Some(kept) = histories.kept(&mut shard, slot, cell, cell.key()) else {
            return (self.initial_level(self.meter_of(cell)), Waits { retry: 0, reset: 0 });
        };
        let meter = self.meter_of(cell);
        kept.advance(self, cut, cell, now);
        let drawn = self.drawn(cell, now).saturating_sub(kept.history.faded(cut, now.mono));
        let level = cell.level.read(meter, 0, drawn).min(meter.capacity());
        let missing = meter.need(cost).saturating_sub(level);
        let retry = kept.history.nanos_until(cut, missing, now.mono);
        (level, Waits { retry, reset: kept.history.nanos_until_empty(cut, now.mono) })
    }

    /// Lets go of what has left the window of the key in `slot`, where it slides.
    pub(crate) fn advance(&self, slot: u32, cell: &Cell, now: Now) {
        if let Some(histories) = &self.histories {
            let mut shard = histories.shard(slot);
            if let Some(kept) = histories.kept(&mut shard, slot, cell, cell.key()) {
                kept.advance(self, histories.cut, cell, now);
            }
        }
    }

    /// Counts what was spent elsewhere `age` nanoseconds ago in a window that slides, down to the deepest debt; a
    /// negative amount is given back. Returns what was not counted, since the debt was as deep as it may be or the window has
    /// gone on.
    pub(crate) fn settle_in_history(&self, slot: u32, cell: &Cell, amount: i64, age: u64, now: Now) -> i64 {
        let Some(histories) = &self.histories else { return 0 };
        let cut = histories.cut;
        let mut shard = histories.shard(slot);
        let meter = self.meter_of(cell);
        let Some(kept) = histories.kept(&mut shard, slot, cell, cell.key()) else { return 0 };
        kept.advance(self, cut, cell, now);
        if amount < 0 {
            cell.level.credit(kept.history.take_back(amount.saturating_neg()));
            return 0;
        }
        let written = now.mono.before(std::time::Duration::from_nanos(age));
        if !kept.history.counts(cut, written) {
            return amount;
        }
        let taken = cell.level.debit(meter, 0, self.drawn(cell, now), amount, -meter.max_debt());
        kept.history.add(cut, written, taken);
        amount - taken
    }

    /// Takes in what was spent elsewhere within the window, of which `included` is known already, and puts the level where
    /// the history then says that it is.
    pub(crate) fn take_in_parts(
        &self,
        slot: u32,
        cell: &Cell,
        parts: impl Iterator<Item = (u64, i64)>,
        included: i64,
        now: Now,
    ) {
        let Some(histories) = &self.histories else { return };
        let cut = histories.cut;
        let mut shard = histories.shard(slot);
        let meter = self.meter_of(cell);
        let Some(kept) = histories.kept(&mut shard, slot, cell, cell.key()) else { return };
        kept.advance(self, cut, cell, now);
        kept.history.take_back(included);
        for (age, amount) in parts {
            let at = now.mono.before(std::time::Duration::from_nanos(age));
            kept.history.add(cut, at, amount.min(meter.capacity().saturating_mul(2)));
        }
        let spent = kept.history.parts(cut, now.mono).fold(0_i64, |sum, (_, part)| sum.saturating_add(part));
        let level = meter.capacity().saturating_sub(spent).max(-meter.max_debt());
        cell.level.set(meter, 0, self.drawn(cell, now), level);
    }

    /// Puts what is within the window of the key in `slot` into another fixed point, where it slides, and tells `change` how
    /// much that is before anybody else can look. Returns whether it did.
    pub(super) fn rescale_history(
        &self,
        slot: u32,
        cell: &Cell,
        now: Now,
        rescale: impl Fn(i64) -> i64,
        change: impl Fn(i64),
    ) -> bool {
        let Some(histories) = &self.histories else { return false };
        let mut shard = histories.shard(slot);
        let Some(kept) = histories.kept(&mut shard, slot, cell, cell.key()) else { return false };
        kept.advance(self, histories.cut, cell, now);
        change(kept.history.rescale(rescale));
        true
    }

    /// Forgets what is within the window of a key, where it slides; returns whether it does.
    pub(super) fn empty_history(&self, slot: u32, cell: &Cell, now: Now) -> bool {
        if self.histories.is_some() {
            self.settle_in_history(slot, cell, -i64::MAX, 0, now);
        }
        self.histories.is_some()
    }

    /// Puts `amount` that was spent here back into the level, but nothing above the capacity.
    pub(super) fn put_back(&self, slot: u32, cell: &Cell, amount: i64, now: Now) {
        if self.histories.is_some() {
            self.settle_in_history(slot, cell, -amount, 0, now);
        } else {
            let (earned, drawn) = (self.earned(cell, now), self.drawn(cell, now));
            cell.level.credit_to_capacity(self.meter_of(cell), earned, drawn, amount);
        }
    }

    /// What is within the window of the key in `slot`: how many nanoseconds ago each part of it was spent at the
    /// earliest, and how much it is. Empty where the window does not slide.
    pub(crate) fn parts(&self, slot: u32, cell: &Cell, now: Now) -> Vec<(u64, i64)> {
        let Some(histories) = &self.histories else { return Vec::new() };
        let mut shard = histories.shard(slot);
        let Some(kept) = histories.kept(&mut shard, slot, cell, cell.key()) else { return Vec::new() };
        kept.advance(self, histories.cut, cell, now);
        kept.history.parts(histories.cut, now.mono).collect()
    }
}
