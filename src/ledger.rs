//! All actors' shares of a limit's keys, and what earlier spending of theirs may still be covered by.
//!
//! A record lies beside each cell of the table, under the same slot number, and is touched by the gossip alone. It
//! holds the shares of the actors that spent on the key: three of them in place, more in a list of their own. Merging
//! is the component-wise maximum of [`Share`]; the number of units by which a merge raises the sum is what the key's
//! level has to be debited by, so each unit is debited once, however often and in whatever order it is heard of.
//!
//! # Earnings in vain
//!
//! News of spending comes in lumps, after the fact. A bucket that was full meanwhile has thrown away earnings that
//! would have paid for it, had it been known in time; debiting the whole lump would then refuse requests that one
//! global bucket would have admitted. So a record keeps what was earned in vain lately, and a lump is paid out of that
//! first, up to what can have been earned since its actor was last heard of.

use std::collections::BTreeMap;

mod record;
#[cfg(test)]
mod tests;
mod vain;

use crate::{
    algorithm::Meter,
    counter::Share,
    limit::{Limit, MAX_UNITS},
    table::{Table, slab::Cell},
    time::{Now, Timestamp, saturating_nanos},
};
use record::{Record, Records};
use vain::{GRAIN_MICROS, MOST_GRAINS, VAIN_MICROS, Vain, full_grains, micros};

/// An actor's place in the gossip's list of actors.
pub(crate) type ActorIndex = u16;

/// No actor: the entry is free.
const FREE: ActorIndex = u16::MAX;
/// Not an actor: `spent` is the number of a list of further entries.
const SPILLED: ActorIndex = u16::MAX - 1;
/// The most actors there can be.
pub(crate) const MAX_ACTORS: usize = SPILLED as usize;
/// A cell's offset is remembered in sixteenths of a unit.
const SEEN_BITS: u32 = 4;

/// One actor's share of a key in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) share: Share,
    pub(crate) actor: ActorIndex,
    /// The epoch, modulo 2¹⁶.
    pub(crate) epoch: u16,
    /// When the actor wrote it, by this node's clock; see [`Ledger::stamp`].
    pub(crate) stamp: u32,
    /// The last change of it that peers are to be told of, modulo 2³²; 0 before there is one.
    pub(crate) version: u32,
}

impl Entry {
    /// Takes in a state of the same share, and the time that it was written.
    fn take_in(&mut self, said: Share, stamp: u32) -> Merged {
        let (before, previous) = (self.share, Some(self.stamp));
        self.share = before.merged(said).clamped();
        let news = self.share != before;
        // Only with a change: an old state that comes back by a longer way must not keep the share alive.
        if news {
            self.touch(stamp);
        }
        let grown = growth(self.share, before);
        Merged { units: difference(self.share, before), previous, news, grown }
    }

    fn touch(&mut self, stamp: u32) {
        if stamp.wrapping_sub(self.stamp) as i32 > 0 {
            self.stamp = stamp;
        }
    }
}

/// What a merge changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    /// Units by which the key's sum has grown; negative where more came back than was spent.
    pub(crate) units: i64,
    /// The stamp of what was known of the share before, if anything was.
    pub(crate) previous: Option<u32>,
    /// Whether there was anything new.
    pub(crate) news: bool,
    /// Units by which the share has grown, spent and given back.
    pub(crate) grown: u64,
}

/// The shares of one limit's keys.
pub(crate) struct Ledger {
    records: Records,
    spilled: Vec<Vec<Entry>>,
    spare: Vec<u32>,
    /// Nanoseconds that one step of a stamp is.
    stamp_nanos: u64,
    /// How long a bucket's share lives after it was last written, in steps of a stamp; `None` for windows.
    idle_steps: Option<u32>,
    /// A grain of earnings in the meter's fixed point.
    grain: f64,
    shares: usize,
    /// What was not debited of the shares of a key, by slot, in the meter's fixed point: a debt was as deep as it may be.
    /// What comes back comes back from that first. Most keys never get there, so it has no place in each record.
    forgiven: BTreeMap<u32, i64>,
    /// Permits that other nodes are taken to hold, by slot; only where permits are counted.
    held: Vec<u64>,
}

impl Ledger {
    pub(crate) fn new(limit: &Limit) -> Self {
        let epoch = saturating_nanos(limit.epoch_length());
        // Half a millisecond, or coarser where epochs are so long that 2³² steps would not hold a hundred of them.
        let stamp_nanos = (epoch >> 24).max(500_000);
        let idle = u32::try_from(2 * (epoch / stamp_nanos)).unwrap_or(u32::MAX / 2);
        Self {
            records: Records::default(),
            spilled: Vec::new(),
            spare: Vec::new(),
            stamp_nanos,
            grain: grain(limit),
            idle_steps: (!limit.has_common_epochs()).then_some(idle),
            shares: 0,
            forgiven: BTreeMap::new(),
            held: Vec::new(),
        }
    }

    /// Goes on with a limit that has another quota.
    pub(crate) fn adjust(&mut self, limit: &Limit) {
        self.grain = grain(limit);
        let epoch = saturating_nanos(limit.epoch_length());
        let idle = u32::try_from(2 * (epoch / self.stamp_nanos)).unwrap_or(u32::MAX / 2);
        // Never for less long than before: what was written by the former quota lives as long as it would have.
        self.idle_steps = self.idle_steps.map(|former| former.max(idle).min(u32::MAX / 2));
    }

    /// A moment as a stamp: steps of this node's clock, modulo 2³².
    pub(crate) fn stamp(&self, at: Timestamp) -> u32 {
        (at.as_nanos() / self.stamp_nanos) as u32
    }

    /// Nanoseconds from a stamp to `now`; 0 for a stamp in the future.
    pub(crate) fn age(&self, stamp: u32, now: Timestamp) -> u64 {
        let steps = self.stamp(now).wrapping_sub(stamp) as i32;
        u64::try_from(steps).unwrap_or(0) * self.stamp_nanos
    }

    /// Shares held.
    #[cfg(test)]
    pub(crate) fn shares(&self) -> usize {
        self.shares
    }

    /// Adds to each actor's count the shares held of it.
    pub(crate) fn count_shares(&self, counts: &mut [usize]) {
        for entry in self.records.slots().flat_map(|slot| self.entries(slot)) {
            if let Some(count) = counts.get_mut(usize::from(entry.actor)) {
                *count += 1;
            }
        }
    }

    /// Shares held of one actor.
    #[cfg(test)]
    pub(crate) fn count_of(&self, actor: ActorIndex) -> usize {
        let entries = self.records.slots().flat_map(|slot| self.entries(slot));
        entries.filter(|entry| entry.actor == actor).count()
    }

    /// The entries of the key in `slot`.
    #[inline]
    pub(crate) fn entries(&self, slot: u32) -> impl Iterator<Item = Entry> {
        let record = self.records.get(slot);
        let more = record.and_then(Record::list).and_then(|list| self.spilled.get(list));
        let more = more.map_or(&[][..], Vec::as_slice).iter().copied();
        record.into_iter().flat_map(Record::entries).chain(more)
    }

    /// The share of one actor in one epoch.
    #[inline]
    pub(crate) fn entry(&self, slot: u32, actor: ActorIndex, epoch: u16) -> Option<Entry> {
        let record = self.records.get(slot)?;
        if let Some(at) = record.position(actor, epoch) {
            return Some(record.entry(at));
        }
        let list = self.spilled.get(record.list()?)?;
        list.iter().find(|entry| entry.actor == actor && entry.epoch == epoch).copied()
    }

    /// Changes the share of one actor in one epoch, if there is one.
    #[inline]
    fn change<T>(
        &mut self,
        slot: u32,
        actor: ActorIndex,
        epoch: u16,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        let record = self.records.get_mut(slot)?;
        let Some(at) = record.position(actor, epoch) else {
            let list = self.spilled.get_mut(record.list()?)?;
            return list.iter_mut().find(|entry| entry.actor == actor && entry.epoch == epoch).map(change);
        };
        let mut entry = record.entry(at);
        let changed = change(&mut entry);
        if !record.set(at, entry) {
            record.clear(at);
            self.push_listed(slot, entry);
        }
        Some(changed)
    }

    /// Takes in a state of a share: the component-wise maximum of what is known and what is said.
    #[inline]
    pub(crate) fn merge(
        &mut self,
        slot: u32,
        actor: ActorIndex,
        epoch: u16,
        said: Share,
        stamp: u32,
    ) -> Merged {
        let said = said.clamped();
        match self.change(slot, actor, epoch, |entry| entry.take_in(said, stamp)) {
            Some(merged) => merged,
            None => self.begin_share(slot, Entry { share: said, actor, epoch, stamp, version: 0 }),
        }
    }

    /// The same of a share that is written here: that it is still the same is noted too.
    #[inline]
    pub(crate) fn write(
        &mut self,
        slot: u32,
        actor: ActorIndex,
        epoch: u16,
        share: Share,
        stamp: u32,
    ) -> Merged {
        let share = share.clamped();
        let written = self.change(slot, actor, epoch, |entry| {
            let merged = entry.take_in(share, stamp);
            entry.touch(stamp);
            merged
        });
        written.unwrap_or_else(|| self.begin_share(slot, Entry { share, actor, epoch, stamp, version: 0 }))
    }

    fn begin_share(&mut self, slot: u32, entry: Entry) -> Merged {
        self.push(slot, entry);
        let none = Share::default();
        Merged {
            units: difference(entry.share, none),
            previous: None,
            news: true,
            grown: growth(entry.share, none),
        }
    }

    /// Notes that a share was still the same at a later time, as its actor has said.
    pub(crate) fn touch(&mut self, slot: u32, actor: ActorIndex, epoch: u16, stamp: u32) {
        self.change(slot, actor, epoch, |entry| entry.touch(stamp));
    }

    /// Notes that peers are to be told of a share's change with this version: of its earlier ones they need not hear any
    /// more, for what they are sent is its newest state.
    pub(crate) fn note_version(&mut self, slot: u32, actor: ActorIndex, epoch: u16, version: u64) {
        self.change(slot, actor, epoch, |entry| {
            let later = (version as u32).wrapping_sub(entry.version) as i32 > 0;
            if later || entry.version == 0 {
                entry.version = version as u32;
            }
        });
    }

    /// The same where changes are numbered anew: whatever it was before.
    pub(crate) fn renumber(&mut self, slot: u32, actor: ActorIndex, epoch: u16, version: u64) {
        self.change(slot, actor, epoch, |entry| entry.version = version as u32);
    }

    /// Has a key's record brought near.
    pub(crate) fn approach(&self, slot: u32) -> u32 {
        self.records.get(slot).map_or(0, |record| record.seen)
    }

    fn push(&mut self, slot: u32, entry: Entry) {
        self.shares += 1;
        let record = self.records.allocated(slot);
        if record.free().is_none_or(|free| !record.set(free, entry)) {
            self.push_listed(slot, entry);
        }
    }

    /// Adds a share that has no place in the record.
    fn push_listed(&mut self, slot: u32, entry: Entry) {
        let Some(record) = self.records.get_mut(slot) else { return };
        let list = match record.list() {
            Some(list) => list,
            None => {
                let list = self.spare.pop().unwrap_or_else(|| {
                    self.spilled.push(Vec::new());
                    (self.spilled.len() - 1) as u32
                });
                let moved = record.set_list(list);
                if let Some(list) = self.spilled.get_mut(list as usize) {
                    list.extend(moved);
                }
                list as usize
            }
        };
        if let Some(list) = self.spilled.get_mut(list) {
            list.push(entry);
        }
    }

    /// Drops the entries that `keep` turns down; `dropped` is told of each.
    pub(crate) fn retain(
        &mut self,
        slot: u32,
        keep: impl Fn(&Entry) -> bool,
        mut dropped: impl FnMut(&Entry),
    ) {
        self.retain_listed(slot, &keep, &mut dropped);
        let Some(record) = self.records.get_mut(slot) else { return };
        for at in 0..record::IN_PLACE {
            let entry = record.entry(at);
            if entry.actor < SPILLED && !keep(&entry) {
                dropped(&entry);
                record.clear(at);
                self.shares -= 1;
            }
        }
        if record.is_empty() {
            self.forgiven.remove(&slot);
        }
    }

    /// The same for the entries that are not in place.
    fn retain_listed(&mut self, slot: u32, keep: &impl Fn(&Entry) -> bool, dropped: &mut impl FnMut(&Entry)) {
        let Some(record) = self.records.get_mut(slot) else { return };
        let Some(number) = record.list() else { return };
        let Some(list) = self.spilled.get_mut(number) else { return };
        let before = list.len();
        list.retain(|entry| {
            let stays = keep(entry);
            if !stays {
                dropped(entry);
            }
            stays
        });
        self.shares -= before - list.len();
        if list.is_empty() {
            *list = Vec::new();
            self.spare.push(number as u32);
            record.clear(record::IN_PLACE - 1);
        }
    }

    /// Notes that `amount` of the shares of a key was not debited.
    pub(crate) fn forgive(&mut self, slot: u32, amount: i64) {
        if amount > 0 {
            let forgiven = self.forgiven.entry(slot).or_default();
            *forgiven = forgiven.saturating_add(amount);
        }
    }

    /// What there is to settle of an amount that the sum of a key's shares has grown by. Of what came back, that is only
    /// what has been debited.
    pub(crate) fn refundable(&mut self, slot: u32, amount: i64) -> i64 {
        if amount >= 0 {
            return amount;
        }
        let Some(forgiven) = self.forgiven.get_mut(&slot) else { return amount };
        let eaten = amount.saturating_neg().min(*forgiven);
        *forgiven -= eaten;
        if *forgiven == 0 {
            self.forgiven.remove(&slot);
        }
        amount + eaten
    }

    /// Whether a share is over: its epoch by `own_epoch` for the node's own and for windows, its idle time for others'.
    pub(crate) fn is_retired(&self, entry: &Entry, own: bool, epoch: u16, now: Timestamp) -> bool {
        match self.idle_steps {
            Some(idle) if !own => self.stamp(now).wrapping_sub(entry.stamp) as i32 >= idle as i32,
            _ => (epoch.wrapping_sub(entry.epoch) as i16) >= 2,
        }
    }

    /// How old a share may be to be taken in still, in nanoseconds; nothing older can be told from a retired one.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.idle_steps.map(|steps| u64::from(steps) * self.stamp_nanos)
    }

    /// Forgets everything about the key in `slot`, which has been given up.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.retain(slot, |_| false, |_| ());
        if let Some(record) = self.records.get_mut(slot) {
            *record = Record::EMPTY;
        }
        if let Some(held) = self.held.get_mut(slot as usize) {
            *held = 0;
        }
    }

    /// Brings the level of the key in `slot` in line with the permits that other actors hold, as `counts` says whose count.
    ///
    /// What is claimed beyond twice what any quota can be is not believed: the key is closed as it is, and opens again when
    /// its holders let go. What is claimed beyond the key's own quota may have been given out by a larger one, which the key
    /// had before and may have again.
    pub(crate) fn recount(&mut self, table: &Table, slot: u32, counts: impl Fn(ActorIndex) -> bool) {
        let Some(cell) = table.cell(slot) else { return };
        let claimed = self.entries(slot).filter(|entry| counts(entry.actor));
        let claimed = claimed.fold(0_u64, |sum, entry| sum.saturating_add(entry.share.net()));
        let _held = table.hold(slot);
        let meter = table.meter_of(cell);
        let held = claimed.min(2 * MAX_UNITS);
        if self.held.len() <= slot as usize {
            self.held.resize(slot as usize + 1, 0);
        }
        let Some(before) = self.held.get_mut(slot as usize) else { return };
        cell.level.shift(meter.fixed(held).saturating_sub(meter.fixed(*before)));
        *before = held;
    }
}

/// What a grain of earnings is by a limit's own quota.
fn grain(limit: &Limit) -> f64 {
    let meter = limit.meter();
    match meter.is_continuous() {
        false => meter.capacity() as f64 / f64::from(MOST_GRAINS),
        true => meter.amount_of(limit.quota().units_per_second()) as f64 * GRAIN_MICROS as f64 / 1e6,
    }
}

/// By how much a share has grown from one state to a later one, spent and given back.
fn growth(after: Share, before: Share) -> u64 {
    (after.spent - before.spent).saturating_add(after.refunded.saturating_sub(before.refunded))
}

/// By how much the sum grows from one state of a share to a later one.
fn difference(after: Share, before: Share) -> i64 {
    let net = |share: Share| i64::try_from(share.net()).unwrap_or(i64::MAX);
    net(after).saturating_sub(net(before))
}

/// Levels and earnings in vain.
impl Ledger {
    /// Notes that a key that was taken in here was full until its first request, `span_ms` ago.
    pub(crate) fn begin(&mut self, table: &Table, slot: u32, span_ms: u16, now: Now) {
        let Some(cell) = table.cell(slot) else { return };
        let meter = table.meter_of(cell);
        if meter.is_stock() {
            // It earns nothing, and so nothing in vain.
            return;
        }
        let record = self.records.allocated(slot);
        if record.vain == Vain::UNKNOWN {
            let first = micros(now.mono).wrapping_sub(u64::from(span_ms) * 1_000);
            let full = full_grains(meter);
            record.vain = match meter.window(table.own_time(cell.key(), now)) {
                Some(window) => Vain::of_window(full, window),
                None => Vain::ending(full, first),
            };
            record.seen = seen(meter, cell.level.offset());
        }
    }

    /// Notes what `cell` has earned in vain since the last look. Returns all that it has earned by now, and what is drawn on it.
    fn look(&mut self, table: &Table, slot: u32, cell: &Cell, now: Now) -> (u64, i64) {
        if self.records.get(slot).is_none_or(|record| record.vain == Vain::UNKNOWN) {
            self.begin(table, slot, cell.changed_since(now.mono), now);
        }
        let meter = table.meter_of(cell);
        let (earned, drawn) = (table.earned(cell, now), table.drawn(cell, now));
        if meter.is_stock() {
            return (earned, drawn);
        }
        let grain = self.grain(table, cell);
        let Some(record) = self.records.get_mut(slot) else { return (earned, drawn) };
        let seen = seen(meter, cell.level.offset());
        let raw = cell.level.read(meter, earned, drawn);
        let lifted = i64::from(seen.wrapping_sub(record.seen) as i32).max(0) << seen_shift(meter);
        let gained = lifted.saturating_add((raw - meter.capacity()).max(0));
        record.seen = seen;
        let gained = if gained > 0 { (gained as f64 / grain) as u32 } else { 0 };
        let now = table.own_time(cell.key(), now);
        let kept = match meter.window(now) {
            Some(window) if Vain::of_window(record.vain.grains(), window) == record.vain => {
                record.vain.grains()
            }
            // What an earlier window lost pays for nothing that is spent in this one or the last.
            Some(_) => 0,
            None => record.vain.within(VAIN_MICROS, micros(now.mono)),
        };
        // Once all is over, so that it does not seem to be of today again when the count of steps has gone round.
        if gained > 0 || kept == 0 {
            record.vain = Vain::of(meter, kept.saturating_add(gained).min(full_grains(meter)), now);
        }
        (earned, drawn)
    }

    /// A grain of earnings by the quota of the cell's key.
    fn grain(&self, table: &Table, cell: &Cell) -> f64 {
        self.grain * table.ratio(cell)
    }

    /// How much the earnings in vain may pay of `amount` units, spent within the last `age` nanoseconds, in the fixed point.
    fn payable(&self, vain: Vain, grain: f64, meter: &Meter, amount: i64, age: u64, now: Now) -> i64 {
        let grains =
            if meter.needs_wall() { vain.grains() } else { vain.within(age / 1_000, micros(now.mono)) };
        let earned = (f64::from(grains) * grain) as i64;
        if !meter.needs_wall() {
            return amount.min(earned);
        }
        // Only what was spent in the last window, in which the rest of the quota was lost; evenly, for all that is known.
        let turned = meter.nanos_into_window(now).unwrap_or(u64::MAX);
        let before = age.saturating_sub(turned) as f64 / age.max(1) as f64;
        earned.min((amount as f64 * before) as i64)
    }

    /// Ends a change of `cell`'s offset that the gossip made itself: the change was not earned in vain.
    fn looked(&mut self, meter: &Meter, slot: u32, cell: &Cell) {
        if let Some(record) = self.records.get_mut(slot) {
            record.seen = seen(meter, cell.level.offset());
        }
    }

    /// Starts the record of a key that has just been taken in: full for so long as anyone knows.
    pub(crate) fn start(&mut self, table: &Table, slot: u32, now: Now) {
        let Some(cell) = table.cell(slot) else { return };
        self.forget(slot);
        self.look(table, slot, cell, now);
        let meter = table.meter_of(cell);
        if let Some(record) = self.records.get_mut(slot) {
            record.vain = Vain::of(meter, full_grains(meter), table.own_time(cell.key(), now));
        }
    }

    /// Debits `amount` that was spent elsewhere within the last `age` nanoseconds: first from what was earned in vain
    /// in that time, then from the level, but not below `floor`. A negative amount is given back. Returns what of the
    /// amount was not debited, since the floor was reached.
    pub(crate) fn settle(
        &mut self,
        table: &Table,
        slot: u32,
        amount: i64,
        age: u64,
        floor: i64,
        now: Now,
    ) -> i64 {
        let Some(cell) = table.cell(slot) else { return 0 };
        let mut left = 0;
        if table.meter().is_stock() {
            return table.settle_in_history(slot, cell, amount, age, now);
        }
        // The quota does not change while this is held.
        let _held = table.hold(slot);
        let meter = table.meter_of(cell);
        let (earned, drawn) = self.look(table, slot, cell, now);
        let now = table.own_time(cell.key(), now);
        if amount < 0 {
            cell.level.credit(-amount);
            // The lid goes on at once, so that what comes back time and again adds up to no more than one bucket.
            cell.level.debit(meter, earned, drawn, 0, floor);
        } else if let Some(vain) = self.records.get(slot).map(|record| record.vain) {
            let grain = self.grain(table, cell);
            let paid = self.payable(vain, grain, meter, amount, age, now);
            if let Some(record) = self.records.get_mut(slot).filter(|_| paid > 0) {
                record.vain = vain.less((paid as f64 / grain).ceil() as u32);
            }
            left = amount - paid - cell.level.debit(meter, earned, drawn, amount - paid, floor);
        }
        self.looked(meter, slot, cell);
        left
    }

    /// Debits an amount that is expected to have been spent, whatever was earned in vain; returns what was taken.
    pub(crate) fn draw(&mut self, table: &Table, slot: u32, amount: i64, drawn: i64, now: Now) -> i64 {
        let Some(cell) = table.cell(slot) else { return 0 };
        let _held = table.hold(slot);
        let meter = table.meter_of(cell);
        let (earned, _) = self.look(table, slot, cell, now);
        let taken = cell.level.debit(meter, earned, drawn, amount, -meter.max_debt());
        self.looked(meter, slot, cell);
        taken
    }

    /// Puts the level of the key in `slot` where a peer says it is.
    pub(crate) fn set_level(&mut self, table: &Table, slot: u32, level: i64, now: Now) {
        let Some(cell) = table.cell(slot) else { return };
        let _held = table.hold(slot);
        let meter = table.meter_of(cell);
        cell.level.set(
            meter,
            table.earned(cell, now),
            table.drawn(cell, now),
            level.clamp(-meter.max_debt(), meter.capacity()),
        );
        self.looked(meter, slot, cell);
        if let Some(record) = self.records.get_mut(slot) {
            record.vain = Vain::of(meter, 0, table.own_time(cell.key(), now));
        }
    }
}

fn seen_shift(meter: &Meter) -> u32 {
    meter.scale().saturating_sub(SEEN_BITS)
}

fn seen(meter: &Meter, offset: u64) -> u32 {
    (offset >> seen_shift(meter)) as u32
}
