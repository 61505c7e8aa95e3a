//! This node's own shares: writing down what it spent, epoch by epoch, for peers to hear of.

use std::sync::{Arc, atomic::Ordering};

use super::{Book, Published};
use crate::{
    algorithm::level::DEAD,
    counter::Share,
    gossip::{hot::Heat, message::Item},
    ledger::{ActorIndex, Entry},
    table::{
        give_back::{Late, refunds_in},
        slab::{CLEAN, Cell},
    },
    time::Now,
};

impl Book {
    /// Writes down what this node spent on the key in `slot`. Returns what peers need to hear of, if
    /// anything.
    pub(in crate::gossip) fn publish(
        &mut self,
        me: ActorIndex,
        slot: u32,
        restate: bool,
        now: Now,
    ) -> Option<Published> {
        let table = Arc::clone(&self.table);
        let cell = table.cell(slot)?;
        // Before the counts are read, so that whatever comes after them is noted again.
        let changed = cell.flush_at.swap(CLEAN, Ordering::SeqCst) != CLEAN;
        let span_ms = if changed { cell.changed_since(now.mono) } else { 0 };
        let spent = cell.level.spent();
        if spent & DEAD != 0 {
            return None;
        }
        self.ledger.begin(&table, slot, span_ms, now);
        let epoch = self.epoch(now);
        let before = self.ledger.entry(slot, me, epoch).map(|entry| entry.share.spent);
        if before.is_none() {
            // An epoch begins with the first change in it, or a key that is only asked for would begin it again each time.
            let held = self.table.limit().permit_returns_on_drop() && Self::in_hand(cell) > 0;
            if !restate && !held && !self.has_unpublished(me, slot) {
                return None;
            }
            self.roll(me, slot, cell, now);
        }
        let in_epoch = spent.saturating_sub(cell.base.load(Ordering::Relaxed));
        let share = Share { spent: in_epoch, refunded: self.refunded(cell, epoch) };
        let stamp = self.ledger.stamp(now.mono);
        let merged = self.ledger.write(slot, me, epoch, share, stamp);
        let (first, spent) = (merged.previous.is_none(), in_epoch.saturating_sub(before.unwrap_or(0)));
        (merged.news || restate).then_some(Published { epoch, span_ms, first, spent })
    }

    /// Begins a new epoch of this node's share: what the last one holds stays in it, but for permits that are still held.
    fn roll(&mut self, me: ActorIndex, slot: u32, cell: &Cell, now: Now) {
        let Some(last) = self.newest_own(me, slot) else { return };
        let window = self.window.map(|window| window as u16);
        let share = self.table.end_epoch(slot, cell, last.share, window.map(|_| last.epoch), window);
        self.note_ended(me, slot, last.epoch, share, now);
    }

    /// Writes down a share of an ended epoch, for peers to hear of if there is anything new in it.
    fn note_ended(&mut self, me: ActorIndex, slot: u32, epoch: u16, share: Share, now: Now) {
        let stamp = self.ledger.stamp(now.mono);
        if self.ledger.merge(slot, me, epoch, share, stamp).news {
            self.ended.push((slot, Published { epoch, span_ms: 0, first: false, spent: 0 }));
        }
    }

    /// Takes the shares of ended epochs that peers need to hear of.
    pub(in crate::gossip) fn take_ended(&mut self) -> Vec<(u32, Published)> {
        std::mem::take(&mut self.ended)
    }

    /// Gives back units of ended epochs that were handed over: to their own epoch's share while there is one, and to the
    /// level. Of those that have retired, or whose key was given up, nothing comes back.
    pub(in crate::gossip) fn return_late(&mut self, me: ActorIndex, now: Now) {
        let table = Arc::clone(&self.table);
        for Late { slot, key, end, units } in table.marks.take_late() {
            let Some(cell) = table.cell(slot).filter(|cell| cell.holds(key)) else { continue };
            let Some(entry) = self.own_of(me, slot, cell, end) else { continue };
            if cell.level.spent() & DEAD != 0
                || self.ledger.is_retired(&entry, true, self.epoch(now), now.mono)
            {
                continue;
            }
            let given = units.min(entry.share.net());
            if given > 0 {
                let share = Share { refunded: entry.share.refunded + given, ..entry.share };
                self.note_ended(me, slot, entry.epoch, share, now);
                self.ledger.settle(&table, slot, -table.meter_of(cell).fixed(given), 0, 0, now);
            }
        }
    }

    /// This node's share of an ended epoch that holds the unit up to which a slot's count came to `end`: the newest begins
    /// at the cell's base, and each earlier one ends where the next begins.
    fn own_of(&self, me: ActorIndex, slot: u32, cell: &Cell, end: u64) -> Option<Entry> {
        let mut own: Vec<Entry> = self.ledger.entries(slot).filter(|entry| entry.actor == me).collect();
        own.sort_by(|a, b| (b.epoch.wrapping_sub(a.epoch) as i16).cmp(&0));
        let mut until = cell.base.load(Ordering::Acquire);
        own.into_iter().skip(1).find(|entry| {
            let from = until.saturating_sub(entry.share.spent);
            let holds = from < end && end <= until;
            until = from;
            holds
        })
    }

    /// Units given back in an epoch of this node's.
    pub(super) fn refunded(&self, cell: &Cell, epoch: u16) -> u64 {
        refunds_in(cell.refunded.load(Ordering::Acquire), self.window.map(|_| epoch))
    }

    pub(super) fn newest_own(&self, me: ActorIndex, slot: u32) -> Option<Entry> {
        let own = self.ledger.entries(slot).filter(|entry| entry.actor == me);
        own.reduce(|a, b| if (b.epoch.wrapping_sub(a.epoch) as i16) > 0 { b } else { a })
    }

    /// Publishes a key that has changed; one that changes fast becomes a hot one.
    pub(in crate::gossip) fn publish_changed(
        &mut self,
        me: ActorIndex,
        slot: u32,
        now: Now,
    ) -> Option<Published> {
        let published = self.publish(me, slot, false, now)?;
        if published.spent >= self.heats_at {
            let table = Arc::clone(&self.table);
            self.hot.heat(&table, slot, Heat::Here, now);
        }
        Some(published)
    }

    /// Publishes a hot key: with its demand, and with the count at which it has to be looked at again.
    pub(in crate::gossip) fn publish_hot(
        &mut self,
        me: ActorIndex,
        slot: u32,
        now: Now,
    ) -> Option<Published> {
        let published = self.publish(me, slot, true, now)?;
        let table = Arc::clone(&self.table);
        let cell = table.cell(slot)?;
        // What was published, so that units spent since then still part from it.
        let spent =
            self.ledger.entry(slot, me, published.epoch)?.share.spent + cell.base.load(Ordering::Relaxed);
        self.hot.state(&table, slot, spent, now);
        cell.set_changed(now.mono);
        self.rearm(slot, now);
        Some(published)
    }

    /// Publishes the key in `slot` if anything of it is unpublished, hot or not.
    pub(in crate::gossip) fn publish_unpublished(
        &mut self,
        me: ActorIndex,
        slot: u32,
        now: Now,
    ) -> Option<Published> {
        match (self.has_unpublished(me, slot), self.hot.contains(slot)) {
            (false, _) => None,
            (true, true) => self.publish_hot(me, slot, now),
            (true, false) => self.publish(me, slot, false, now),
        }
    }

    /// Whether this node has spent or given back units of which its share does not say.
    pub(in crate::gossip) fn has_unpublished(&self, me: ActorIndex, slot: u32) -> bool {
        let Some(cell) = self.table.cell(slot) else { return false };
        let newest = self.newest_own(me, slot);
        let published = newest.map_or(Share::default(), |entry| entry.share);
        let spent = cell.level.spent();
        let window = self.window.map(|window| window as u16);
        let epoch = newest.map(|entry| entry.epoch).or(window).unwrap_or(0);
        let later = window.filter(|window| *window != epoch).map_or(0, |window| self.refunded(cell, window));
        let refunded = self.refunded(cell, epoch).saturating_add(later);
        let in_epoch = spent.saturating_sub(cell.base.load(Ordering::Acquire));
        spent & DEAD == 0 && (in_epoch != published.spent || refunded > published.refunded)
    }

    /// Whether somebody attributes more to this node than it has written.
    pub(in crate::gossip) fn wrote_less_than(&self, me: ActorIndex, item: &Item, now: Now) -> bool {
        if (self.epoch(now).wrapping_sub(item.epoch) as i16) >= 2 {
            return false;
        }
        let written = self.table.find(item.key).and_then(|slot| self.ledger.entry(slot, me, item.epoch));
        let written = written.map_or(Share::default(), |entry| entry.share);
        item.share.spent > written.spent || item.share.refunded > written.refunded
    }

    /// Ends all shares of this node's former incarnation: what they hold is published, and the next begins at zero.
    pub(in crate::gossip) fn close_own(&mut self, former: ActorIndex) {
        for slot in (0..self.table.used_slots()).chain([self.table.shared_slot()]) {
            if let (Some(newest), Some(cell)) = (self.newest_own(former, slot), self.table.cell(slot)) {
                self.table.end_epoch(slot, cell, newest.share, None, None);
                if !self.table.limit().permit_returns_on_drop() {
                    cell.refunded.store(0, Ordering::Release);
                } else if Self::in_hand(cell) > 0 {
                    // Permits that are still held go over to the next.
                    self.renewals.push(slot);
                }
            }
        }
    }
}
