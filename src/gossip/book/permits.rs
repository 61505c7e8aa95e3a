//! Units that come back when they are given back, and not with time: permits in use, here and elsewhere.
//!
//! Permits that are in use go over from epoch to epoch of their actor's share, so that each epoch's share retires like any
//! other, and a node that is gone takes its permits with it.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use super::Book;
use crate::{
    algorithm::level::DEAD,
    ledger::ActorIndex,
    limit::OnPartition,
    table::{flow::Flow, slab::Cell},
    time::Now,
};

impl Book {
    /// What this node spent in its current epoch and did not give back; of permits, those that are in use.
    pub(super) fn in_hand(cell: &Cell) -> u64 {
        let spent = (cell.level.spent() & !DEAD).saturating_sub(cell.base.load(Ordering::Acquire));
        spent.saturating_sub(cell.refunded.load(Ordering::Acquire))
    }

    /// Sets whose permits do not count among those of others, because they are this node's or their node is gone, and counts
    /// anew where that changes anything.
    pub(in crate::gossip) fn set_gone(&mut self, gone: &BTreeSet<ActorIndex>) {
        if !self.table.limit().permit_returns_on_drop() || self.gone == *gone {
            return;
        }
        self.gone.clone_from(gone);
        for slot in (0..self.table.used_slots()).chain([self.table.shared_slot()]) {
            self.recount(slot);
        }
    }

    pub(super) fn recount(&mut self, slot: u32) {
        let Self { ledger, table, gone, .. } = self;
        ledger.recount(table, slot, |actor| !gone.contains(&actor));
    }

    /// The same where nothing comes back with time: a part of the quota is held for them.
    pub(super) fn assume_held(&mut self, missing: usize, nodes: usize, now: Now) {
        let shared = self.table.limit().on_partition() == OnPartition::Share;
        let part = self.table.meter().capacity() / nodes.max(1) as i64;
        let base = if shared { part.saturating_mul(missing as i64) } else { 0 };
        let drain = &self.table.drain;
        if base != 0 || !drain.is_unset() {
            self.table.set_drain(Flow { base, from: now.mono, ..Flow::default() });
        }
    }

    /// Slots whose permits have to be carried into a new epoch.
    pub(in crate::gossip) fn take_renewals(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.renewals)
    }
}
