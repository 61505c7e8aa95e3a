//! One limit's side of the gossip: publishing this node's shares, and taking in those of others.

mod own;
mod permits;

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    actors::Change,
    hot::{Heat, HotKeys, Look},
    message::Item,
};
use crate::{
    algorithm::level::DEAD,
    counter::Share,
    decision::Basis,
    key::Key,
    ledger::{ActorIndex, Entry, Ledger, Merged},
    limit::{Limit, OnPartition},
    table::{
        NO_SLOT, Stance, Table, Verdict,
        flow::{Flow, Rate},
        slab::CLEAN,
    },
    time::{Now, Timestamp, saturating_nanos},
};

/// Part of the quota that may be unpublished before a key cannot wait for the heartbeat.
const THRESHOLD_PART: f64 = 0.01;

/// How much more than a key admits in an epoch a share may say is spent, net of what came back: a peer may define the limit
/// otherwise for a while, or its gossip may have slept through some epochs.
const PLAUSIBLE_EPOCHS: u64 = 16;
/// How much may be spent and given back again: as good as no bound, but far from where numbers end.
const PLAUSIBLE_TURNOVER: u64 = 1 << 48;

/// Epochs of one actor's share that are kept at a time.
const MAX_EPOCHS: usize = 4;

/// What is unpublished adds up over the nodes, so that in larger fleets each may have less of it; but never less than this,
/// where the quota allows that much.
const THRESHOLD_NODES: f64 = 3.0;
const LEAST_URGENT: f64 = 2.0;

/// The more nodes there are, the closer each keeps to what is expected of it: its threshold is the others' ÷ (1 + nodes ÷
/// this), for errors add up over the nodes.
const HOT_NODES: f64 = 2.0;

/// One limit's ledger, hot keys and epochs.
pub(super) struct Book {
    pub(super) table: Arc<Table>,
    pub(super) ledger: Ledger,
    pub(super) hot: HotKeys,
    /// Since when epochs of this length are counted, and the number of the first of them.
    started: Timestamp,
    first_epoch: u16,
    epoch_nanos: u64,
    /// The window that shares are taken in for; never steps back by one.
    window: Option<u64>,
    /// Shares of the next window, whose units count from its beginning on.
    ahead: Vec<(u32, ActorIndex)>,
    threshold: u64,
    /// Units in a heartbeat from which on a key is a hot one.
    heats_at: u64,
    /// Hot keys of which there has been news since expectations were worked out.
    touched: Vec<u32>,
    /// Own shares of ended epochs that have changed, by slot, and that peers need to hear of.
    ended: Vec<(u32, Published)>,
    /// The next slot to look at for what has retired.
    hand: u32,
    /// What each unreachable node is assumed to spend, in fixed point per second.
    assumed: f64,
    /// The most that one share can plausibly say, in units, net of what came back.
    plausible: u64,
    /// Slots whose permits have to be carried into a new epoch.
    renewals: Vec<u32>,
    /// Whose permits do not count among those of others.
    gone: BTreeSet<ActorIndex>,
}

/// A share of this node's that has been written down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    pub(super) epoch: u16,
    /// Milliseconds since the first of the units that it makes known was spent.
    pub(super) span_ms: u16,
    /// Whether it is the first of its epoch for the key.
    pub(super) first: bool,
    /// The units by which more is spent than before.
    pub(super) spent: u64,
}

/// Why a share was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    OutOfEpoch,
    NoRoom,
}

/// A share that was taken in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) slot: u32,
    /// Whether it said anything new.
    pub(super) news: bool,
    /// Whether it is the first of its actor and epoch for the key.
    pub(super) first: bool,
    /// Whether others should hear of it before the next heartbeat.
    pub(super) urgent: bool,
    /// Whether more was said than anyone can have spent, so that it was not taken in full.
    pub(super) cut: bool,
    /// Units by which more is spent than was known, net.
    pub(super) spent: u64,
    /// Units by which the share has grown, spent and given back.
    pub(super) grown: u64,
}

impl Taken {
    fn new(slot: u32, merged: &Merged, cut: bool) -> Self {
        Self {
            slot,
            news: merged.news,
            first: merged.previous.is_none(),
            urgent: false,
            cut,
            spent: u64::try_from(merged.units).unwrap_or(0),
            grown: merged.grown,
        }
    }
}

/// What is to be allowed for in taking in a share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowance {
    /// How long the news has been under way, in nanoseconds.
    pub(super) delay: u64,
    /// The actor could not be heard from the first of these moments to the second, and has just been heard again.
    pub(super) outage: Option<(Timestamp, Timestamp)>,
}

impl Book {
    pub(super) fn new(table: Arc<Table>, heartbeat: Duration, nodes: usize, now: Now) -> Self {
        let limit = table.limit();
        let threshold = threshold(limit.quota().units(), nodes);
        Self {
            ledger: Ledger::new(limit),
            hot: hot_keys(&table, heartbeat, nodes),
            threshold,
            heats_at: heats_at(limit, threshold),
            started: now.mono,
            first_epoch: 0,
            epoch_nanos: saturating_nanos(limit.epoch_length()).max(1),
            window: table.meter().window(now).filter(|_| limit.has_common_epochs()),
            ahead: Vec::new(),
            touched: Vec::new(),
            ended: Vec::new(),
            hand: 0,
            assumed: 0.0,
            plausible: most_plausible(limit),
            renewals: Vec::new(),
            gone: BTreeSet::new(),
            table,
        }
    }

    /// Goes on with a limit, a pace or a fleet that may have changed; what is written down stays.
    pub(super) fn adjust(&mut self, heartbeat: Duration, nodes: usize, now: Now) {
        let table = Arc::clone(&self.table);
        self.cool_all(now);
        let limit = table.limit();
        self.ledger.adjust(limit);
        self.hot = hot_keys(&table, heartbeat, nodes);
        self.threshold = threshold(limit.quota().units(), nodes);
        self.heats_at = heats_at(limit, self.threshold);
        // What was spent by a larger quota is told of still.
        self.plausible = self.plausible.max(most_plausible(limit));
        // Epochs are numbered on, from a new beginning.
        self.first_epoch = self.epoch(now);
        self.started = now.mono;
        self.epoch_nanos = saturating_nanos(limit.epoch_length()).max(1);
        table.marks.set_threshold(self.threshold);
    }

    /// Nothing more is expected or assumed of anybody: the table decides for itself.
    pub(super) fn stand_alone(&mut self, now: Now) {
        self.cool_all(now);
        self.assume(0, 1, false, now);
        self.table.set_stance(Stance { basis: Basis::Alone.into(), verdict: Verdict::Level });
    }

    fn cool_all(&mut self, now: Now) {
        for slot in self.hot.slots().collect::<Vec<_>>() {
            self.hot.cool(&self.table, &mut self.ledger, slot, now);
        }
    }

    /// Units that may be unpublished before a key cannot wait.
    pub(super) fn threshold(&self) -> u64 {
        self.threshold
    }

    /// The epoch of this node's own shares, modulo 2¹⁶.
    pub(super) fn epoch(&self, now: Now) -> u16 {
        match self.window {
            Some(window) => window as u16,
            None => {
                let since = saturating_nanos(now.mono.since(self.started)) / self.epoch_nanos;
                self.first_epoch.wrapping_add(since as u16)
            }
        }
    }

    /// Notices that a window has ended, and counts what was spent elsewhere in the one that began.
    pub(super) fn turn(&mut self, me: ActorIndex, now: Now) {
        let (Some(current), Some(clock)) = (self.window, self.table.meter().window(now)) else { return };
        // A clock that was set back a little must not reopen a window that has ended; one that was set back a long way
        // was wrong before.
        if clock == current || clock + 1 == current {
            return;
        }
        self.window = Some(clock);
        for (slot, actor) in std::mem::take(&mut self.ahead) {
            let Some(entry) = self.ledger.entry(slot, actor, clock as u16) else { continue };
            let Some(cell) = self.table.cell(slot) else { continue };
            let meter = self.table.meter_of(cell);
            let amount = meter.fixed(entry.share.net());
            if actor != me {
                let floor = -meter.max_debt();
                let left = self.ledger.settle(&self.table, slot, amount, 0, floor, now);
                self.ledger.forgive(slot, left);
            }
        }
    }

    /// When a window with shares waiting for it begins.
    pub(super) fn next_turn(&self, now: Now) -> Option<Timestamp> {
        (!self.ahead.is_empty())
            .then(|| now.mono.after(Duration::from_nanos(self.table.meter().nanos_to_earn(1, now))))
    }

    /// Takes in a share whose units are in the level already.
    pub(super) fn take_baseline(
        &mut self,
        actor: ActorIndex,
        item: &Item,
        now: Now,
    ) -> Result<Taken, Refusal> {
        let age = u64::from(item.age).saturating_mul(500_000);
        self.check_epoch(item.epoch, age, now)?;
        let (slot, _) = self.place(item, NO_SLOT, now).ok_or(Refusal::NoRoom)?;
        self.check_epochs(slot, actor, item.epoch)?;
        let stamp = self.ledger.stamp(now.mono.before(Duration::from_nanos(age)));
        let (share, cut) = self.plausible(slot, item.share);
        let merged = self.ledger.merge(slot, actor, item.epoch, share, stamp);
        Ok(Taken::new(slot, &merged, cut))
    }

    /// As much of a share as can have been spent, and whether that is less than was said. A share only grows, and so does
    /// what is left of it here.
    fn plausible(&self, slot: u32, said: Share) -> (Share, bool) {
        let refunded = said.refunded.min(PLAUSIBLE_TURNOVER);
        // Before the key had a quota of its own, it had the limit's.
        let most = match self.table.cell(slot) {
            Some(cell) if self.table.has_other_quota(cell) => {
                most_plausible(self.table.limit_of(cell)).max(self.plausible)
            }
            _ => self.plausible,
        };
        let share = Share { spent: said.spent.min(refunded.saturating_add(most)), refunded };
        (share, share != said)
    }

    /// Puts the level where a peer says it is, which lacks `missing` units to the capacity, less what this node has
    /// spent beyond the `included` units that the peer knew of. Of the `others` units of which the peer also told, what the
    /// level does not lack has been earned back, and is not given back once more.
    pub(super) fn set_level(&mut self, slot: u32, missing: f64, included: u64, others: u64, now: Now) {
        let table = Arc::clone(&self.table);
        let Some(cell) = table.cell(slot) else { return };
        let meter = table.meter_of(cell);
        let own = (cell.level.spent() & !DEAD).saturating_sub(cell.base.load(Ordering::Acquire));
        let own = own.saturating_sub(self.refunded(cell, self.epoch(now))).saturating_sub(included);
        let level =
            meter.capacity().saturating_sub(meter.amount_of(missing)).saturating_sub(meter.fixed(own));
        self.ledger.set_level(&table, slot, level, now);
        let owed = meter.amount_of(missing).clamp(0, meter.capacity().saturating_add(meter.max_debt()));
        self.ledger.forgive(slot, meter.fixed(others).saturating_sub(owed));
    }

    /// Drops all shares of an actor whose index goes to another.
    pub(super) fn drop_actor(&mut self, actor: ActorIndex) {
        self.ahead.retain(|(_, other)| *other != actor);
        for slot in (0..self.table.used_slots()).chain([self.table.shared_slot()]) {
            self.ledger.retain(slot, |entry| entry.actor != actor, |_| ());
            if self.table.limit().permit_returns_on_drop() {
                self.recount(slot);
            }
        }
    }

    /// The same where the window slides: `parts` says how many milliseconds ago how much of it was spent, of which this
    /// node has `included` units in its own history already.
    pub(super) fn set_parts(
        &mut self,
        slot: u32,
        parts: impl Iterator<Item = (u64, f64)>,
        included: u64,
        now: Now,
    ) {
        let Some(cell) = self.table.cell(slot) else { return };
        let meter = self.table.meter_of(cell);
        let parts = parts.map(|(age_ms, units)| (age_ms.saturating_mul(1_000_000), meter.amount_of(units)));
        self.table.take_in_parts(slot, cell, parts, meter.fixed(included), now);
    }

    /// Sets the count at which a hot key has to be looked at before its time.
    pub(super) fn rearm(&mut self, slot: u32, now: Now) {
        if let Some(cell) = self.table.cell(slot) {
            let at = (cell.level.spent() & !DEAD).saturating_add(self.hot.allowance(&self.table, slot, now));
            cell.flush_at.store(at.max(1), Ordering::SeqCst);
        }
    }

    /// Brings the views of a hot key's level together; see [`HotKeys::draw_together`].
    pub(super) fn draw_together(&mut self, slot: u32, now: Now) {
        self.hot.draw_together(&self.table, &mut self.ledger, slot, now);
    }

    /// Looks at a hot key; see [`HotKeys::look`].
    pub(super) fn look(&mut self, slot: u32, sample: bool, now: Now) -> Look {
        let look = self.hot.look(&self.table, &mut self.ledger, slot, sample, now);
        match look {
            Look::Cooled => {
                self.hot.cool(&self.table, &mut self.ledger, slot, now);
            }
            Look::Holds => self.rearm(slot, now),
            Look::Parted => {}
        }
        look
    }

    /// Has the memory brought near that says where a key is.
    #[inline]
    pub(super) fn approach_key(&self, key: Key) -> u64 {
        self.table.approach(key)
    }

    /// Where a key probably is.
    #[inline]
    pub(super) fn guess(&self, key: Key) -> u32 {
        self.table.guess(key)
    }

    /// Takes in a share that a peer sent; `item.age` is in half milliseconds.
    pub(super) fn take(
        &mut self,
        actor: ActorIndex,
        item: &Item,
        guess: u32,
        allow: Allowance,
        now: Now,
    ) -> Result<Taken, Refusal> {
        let age = u64::from(item.age).saturating_mul(500_000).saturating_add(allow.delay);
        let ahead = self.check_epoch(item.epoch, age, now)?;
        let (slot, new_key) = self.place(item, guess, now).ok_or(Refusal::NoRoom)?;
        self.check_epochs(slot, actor, item.epoch)?;
        if new_key {
            self.ledger.start(&self.table, slot, now);
        }
        let written = now.mono.before(Duration::from_nanos(age));
        let stamp = self.ledger.stamp(written);
        let (share, cut) = self.plausible(slot, item.share);
        let merged = self.ledger.merge(slot, actor, item.epoch, share, stamp);
        let taken = Taken::new(slot, &merged, cut);
        if ahead {
            if taken.first {
                self.ahead.push((slot, actor));
            }
            return Ok(taken);
        }
        // What comes back of a window that is over, comes back to that window.
        let is_over = self.window.is_some_and(|window| item.epoch != window as u16);
        let units = if is_over { merged.units.max(0) } else { merged.units };
        let mut amount = self.ledger.refundable(slot, fixed(&self.table, slot, units));
        let hot = item.statement.is_some_and(|said| said.demand > 0.0)
            && self.hot.heat(&self.table, slot, Heat::There, now);
        let expected = hot || self.table.cell(slot).is_some_and(|cell| cell.forecast() != 0);
        let restated = expected && item.statement.is_some() && self.hot.is_newer(slot, actor, item.version);
        if restated {
            self.ledger.touch(slot, actor, item.epoch, stamp);
        }
        if expected && (restated || merged.news) {
            let statement = item.statement.filter(|_| restated).map(|said| (said, item.version));
            let age = Duration::from_nanos(age);
            amount = self.hot.news(&self.table, &mut self.ledger, slot, actor, statement, amount, age, now);
        }
        let (amount, floor) = self.excuse(slot, amount, merged.previous, allow.outage);
        if self.table.limit().permit_returns_on_drop() {
            self.recount(slot);
        } else if amount != 0 {
            let mut spent_within = age.saturating_add(u64::from(item.span_ms) * 1_000_000);
            if let Some(into) =
                self.table.meter().nanos_into_window(now).filter(|_| !is_over && self.window.is_some())
            {
                // What a share of the current window holds was spent in it, however long before its key had changed.
                spent_within = spent_within.min(into);
            }
            let left = self.ledger.settle(&self.table, slot, amount, spent_within, floor, now);
            self.ledger.forgive(slot, left);
        }
        if expected && self.touched.last() != Some(&slot) {
            self.touched.push(slot);
        }
        let urgent = merged.units.unsigned_abs() >= self.threshold() || restated;
        Ok(Taken { news: merged.news || restated, urgent, ..taken })
    }

    /// Works out anew what is expected of peers, once all of a frame's news has been taken in.
    pub(super) fn expect_anew(&mut self, now: Now) {
        self.touched.sort_unstable();
        self.touched.dedup();
        for slot in self.touched.drain(..) {
            self.hot.expect(&self.table, slot, now);
        }
    }

    /// What is left to debit of units spent while their actor could not be heard, and how far down. What was assumed of
    /// it has been debited already, and a debt would only be a silence now.
    fn excuse(
        &self,
        slot: u32,
        amount: i64,
        previous: Option<u32>,
        outage: Option<(Timestamp, Timestamp)>,
    ) -> (i64, i64) {
        let cell = self.table.cell(slot);
        let deepest = -cell.map_or(self.table.meter(), |cell| self.table.meter_of(cell)).max_debt();
        let Some((from, until)) = outage else { return (amount, deepest) };
        let heard_since =
            previous.is_some_and(|previous| (previous.wrapping_sub(self.ledger.stamp(until)) as i32) >= 0);
        if heard_since {
            return (amount, deepest);
        }
        let floor = if self.table.needs_wall() { deepest } else { 0 };
        let ratio = cell.map_or(1.0, |cell| self.table.ratio(cell));
        let assumed = ratio * self.assumed * until.since(from).as_secs_f64();
        ((amount.saturating_sub(assumed as i64)).max(amount.min(0)), floor)
    }

    fn check_epoch(&mut self, epoch: u16, age: u64, now: Now) -> Result<bool, Refusal> {
        if let Some(oldest) = self.ledger.oldest() {
            return if age < oldest { Ok(false) } else { Err(Refusal::OutOfEpoch) };
        }
        let current = self.epoch(now);
        match epoch.wrapping_sub(current) as i16 {
            0 | -1 => Ok(false),
            1 => Ok(true),
            _ => Err(Refusal::OutOfEpoch),
        }
    }

    /// An actor has shares of a few epochs at a time; one that claims more is not believed.
    fn check_epochs(&self, slot: u32, actor: ActorIndex, epoch: u16) -> Result<(), Refusal> {
        let own = || self.ledger.entries(slot).filter(|entry| entry.actor == actor).count();
        let few = self.ledger.entry(slot, actor, epoch).is_some() || own() < MAX_EPOCHS;
        if few { Ok(()) } else { Err(Refusal::OutOfEpoch) }
    }

    /// The slot of the item's key, taking it in if need be; and whether it was new. `guess` is where it may be.
    fn place(&mut self, item: &Item, guess: u32, now: Now) -> Option<(u32, bool)> {
        if self.table.is_at(guess, item.key) {
            return Some((guess, false));
        }
        let held = self.table.find(item.key);
        let slot = held.or_else(|| self.table.insert(item.key, now))?;
        Some((slot, held.is_none()))
    }

    /// Whether no later change of the same share is to be told of.
    pub(super) fn is_newest(&self, actor: ActorIndex, change: &Change) -> bool {
        let entry = self.ledger.entry(change.slot, actor, change.epoch);
        entry.is_some_and(|entry| entry.version == change.version as u32)
    }

    /// What to send of a change: the newest state of its share, unless a later change is that.
    pub(super) fn changed(
        &self,
        me: ActorIndex,
        actor: ActorIndex,
        change: &Change,
        now: Now,
    ) -> Option<Item> {
        let Change { version, limit, span_ms, .. } = *change;
        let entry = self.ledger.entry(change.slot, actor, change.epoch)?;
        let is_newest = entry.version == version as u32;
        let item = if is_newest { self.item(me, change.slot, &entry, now) } else { None };
        Some(Item { version, limit, span_ms, ..item? })
    }

    /// The newest state of a share, to send.
    pub(super) fn item(&self, me: ActorIndex, slot: u32, entry: &Entry, now: Now) -> Option<Item> {
        let cell = self.table.cell(slot)?;
        // Own shares, too: they wait for their round after they were written.
        let age = u32::try_from(self.ledger.age(entry.stamp, now.mono) / 500_000).unwrap_or(u32::MAX);
        let statement = match cell.forecast() {
            0 => None,
            _ if entry.actor == me => self.hot.own_statement(slot),
            _ => self.hot.statement_of(slot, entry.actor),
        };
        let (epoch, share) = (entry.epoch, entry.share);
        Some(Item { version: 0, limit: 0, epoch, key: cell.key(), share, age, span_ms: 0, statement })
    }

    /// Has the memory brought near that [`changed`](Self::changed) reads.
    pub(super) fn approach(&self, slot: u32) -> u64 {
        let cell = self.table.cell(slot).map_or(0, |cell| cell.flush_at.load(Ordering::Relaxed));
        cell ^ u64::from(self.ledger.approach(slot))
    }

    /// Looks at the next `count` slots: drops the shares that have retired, and gives up the keys that have drained.
    /// `dropped` is told of each share's actor.
    pub(super) fn sweep(
        &mut self,
        me: ActorIndex,
        count: u32,
        now: Now,
        mut dropped: impl FnMut(ActorIndex),
    ) {
        let used = self.table.used_slots();
        for _ in 0..count.min(used) {
            self.hand = if self.hand + 1 >= used { 0 } else { self.hand + 1 };
            self.sweep_slot(me, self.hand, now, &mut dropped);
        }
        let shared = self.table.shared_slot();
        self.sweep_slot(me, shared, now, &mut dropped);
    }

    fn sweep_slot(&mut self, me: ActorIndex, slot: u32, now: Now, dropped: &mut impl FnMut(ActorIndex)) {
        let table = Arc::clone(&self.table);
        let Some(cell) = table.cell(slot) else { return };
        let spent = cell.level.spent();
        if spent & DEAD != 0 {
            return;
        }
        let epoch = self.epoch(now);
        let retired =
            |ledger: &Ledger, entry: &Entry| ledger.is_retired(entry, entry.actor == me, epoch, now.mono);
        if self.ledger.entries(slot).any(|entry| retired(&self.ledger, &entry)) {
            let over: Vec<Entry> =
                self.ledger.entries(slot).filter(|entry| retired(&self.ledger, entry)).collect();
            let newest = self.newest_own(me, slot);
            self.ledger.retain(
                slot,
                |entry| !over.iter().any(|gone| gone.actor == entry.actor && gone.epoch == entry.epoch),
                |entry| dropped(entry.actor),
            );
            if table.limit().permit_returns_on_drop() {
                self.recount(slot);
            }
            if let Some(newest) =
                newest.filter(|newest| over.iter().any(|gone| gone.actor == me && gone.epoch == newest.epoch))
            {
                let window = self.window.map(|window| window as u16);
                table.end_epoch(slot, cell, newest.share, window.map(|_| newest.epoch), window);
            }
        }
        if table.limit().permit_returns_on_drop()
            && Self::in_hand(cell) > 0
            && self.newest_own(me, slot).is_none_or(|newest| newest.epoch != epoch)
        {
            self.renewals.push(slot);
        }
        let quiet =
            cell.flush_at.load(Ordering::SeqCst) == CLEAN && spent == cell.base.load(Ordering::Acquire);
        if quiet
            && !self.hot.contains(slot)
            && self.ledger.entries(slot).next().is_none()
            && table.evict_if_full(slot, now)
        {
            self.ledger.forget(slot);
        }
    }

    /// Sets what is assumed of nodes that cannot be heard, `missing` of `nodes`, and of all others while joining.
    pub(super) fn assume(&mut self, missing: usize, nodes: usize, joining: bool, now: Now) {
        let quota = self.table.meter().amount_of(self.table.limit().quota().units_per_second()) as f64;
        let each = quota / nodes.max(1) as f64;
        if self.table.meter().is_stock() {
            self.assume_held(missing, nodes, now);
            return;
        }
        let shared = self.table.limit().on_partition() == OnPartition::Share;
        self.assumed = if shared { each } else { 0.0 };
        let assumed = match (joining, shared) {
            (true, _) => each * nodes.saturating_sub(1) as f64,
            (false, true) => each * missing as f64,
            (false, false) => 0.0,
        };
        let drain = &self.table.drain;
        if assumed == 0.0 && drain.is_unset() {
            return;
        }
        let rate = Rate::per_second(assumed);
        let so_far = drain.load();
        if so_far.rate != rate || so_far.later_rate != rate {
            let forever = Timestamp::from_nanos(u64::MAX);
            self.table.set_drain(Flow {
                base: so_far.at(now.mono),
                from: now.mono,
                rate,
                bend: now.mono,
                later_rate: rate,
                end: forever,
            });
        }
    }
}

fn hot_keys(table: &Table, heartbeat: Duration, nodes: usize) -> HotKeys {
    let units = table.limit().quota().units() as f64;
    let threshold = units * THRESHOLD_PART * HOT_NODES / (nodes as f64 + HOT_NODES);
    HotKeys::new(table, heartbeat, threshold.max(1.0), nodes)
}

/// Units in a heartbeat from which on a key is a hot one.
fn heats_at(limit: &Limit, threshold: u64) -> u64 {
    // By what a second brings: where the quota is one of minutes, its part would hardly ever be spent in a heartbeat, and
    // however long it lasts, one node could starve beside another.
    let of_second = (limit.quota().units_per_second() * THRESHOLD_PART) as u64;
    threshold.min(of_second).max(LEAST_URGENT as u64)
}

/// The most that a share of a key with this limit can plausibly say, net.
fn most_plausible(limit: &Limit) -> u64 {
    PLAUSIBLE_EPOCHS.saturating_mul(admitted_in_an_epoch(limit))
}

/// The most that one key admits in an epoch, in units.
fn admitted_in_an_epoch(limit: &Limit) -> u64 {
    let earned = limit.quota().units_per_second() * limit.epoch_length().as_secs_f64();
    limit.capacity().saturating_add(earned.ceil() as u64)
}

/// Units that may be unpublished before a key cannot wait, for a quota of so many in a fleet of so many nodes.
pub(crate) fn threshold(units: u64, nodes: usize) -> u64 {
    let part = units as f64 * THRESHOLD_PART;
    let least = part.clamp(1.0, LEAST_URGENT);
    (part * (THRESHOLD_NODES / nodes as f64).min(1.0)).max(least) as u64
}

fn fixed(table: &Table, slot: u32, units: i64) -> i64 {
    let meter = table.cell(slot).map_or(table.meter(), |cell| table.meter_of(cell));
    let amount = meter.fixed(units.unsigned_abs());
    if units < 0 { -amount } else { amount }
}
