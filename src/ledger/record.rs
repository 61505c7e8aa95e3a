//! Where a key's shares lie: three of them in place, in one cache line with what the ledger keeps of the key itself, and the
//! others in a list of their own.

use super::{ActorIndex, Entry, FREE, SPILLED, vain::Vain};
use crate::counter::Share;

/// Shares in place.
pub(super) const IN_PLACE: usize = 3;
/// Records that are allocated at once.
const CHUNK: usize = 1_024;

/// What is kept of one key. A share lies in place while its numbers are small enough, which nearly all are.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Record {
    spent: [u32; IN_PLACE],
    stamps: [u32; IN_PLACE],
    versions: [u32; IN_PLACE],
    actors: [ActorIndex; IN_PLACE],
    epochs: [u16; IN_PLACE],
    refunded: [u16; IN_PLACE],
    /// The cell's offset when the gossip last looked, in sixteenths of a unit.
    pub(super) seen: u32,
    pub(super) vain: Vain,
}

impl Record {
    pub(super) const EMPTY: Self = Self {
        spent: [0; IN_PLACE],
        stamps: [0; IN_PLACE],
        versions: [0; IN_PLACE],
        actors: [FREE; IN_PLACE],
        epochs: [0; IN_PLACE],
        refunded: [0; IN_PLACE],
        seen: 0,
        vain: Vain::UNKNOWN,
    };

    /// The place of an actor's share of an epoch.
    #[inline]
    pub(super) fn position(&self, actor: ActorIndex, epoch: u16) -> Option<usize> {
        (0..IN_PLACE).find(|&at| self.actors[at] == actor && self.epochs[at] == epoch)
    }

    #[inline]
    pub(super) fn entry(&self, at: usize) -> Entry {
        Entry {
            share: Share { spent: self.spent[at].into(), refunded: self.refunded[at].into() },
            actor: self.actors[at],
            epoch: self.epochs[at],
            stamp: self.stamps[at],
            version: self.versions[at],
        }
    }

    /// The shares in place.
    #[inline]
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..IN_PLACE).filter(|&at| self.actors[at] < SPILLED).map(|at| self.entry(at))
    }

    /// Whether nothing lies here, nor in a list.
    pub(super) fn is_empty(&self) -> bool {
        self.actors == [FREE; IN_PLACE]
    }

    /// A place that nothing lies in.
    pub(super) fn free(&self) -> Option<usize> {
        self.actors.iter().position(|actor| *actor == FREE)
    }

    /// Puts a share in this place; `false` where its numbers are too large for one.
    #[inline]
    pub(super) fn set(&mut self, at: usize, entry: Entry) -> bool {
        let (Ok(spent), Ok(refunded)) =
            (u32::try_from(entry.share.spent), u16::try_from(entry.share.refunded))
        else {
            return false;
        };
        (self.spent[at], self.refunded[at]) = (spent, refunded);
        (self.actors[at], self.epochs[at]) = (entry.actor, entry.epoch);
        (self.stamps[at], self.versions[at]) = (entry.stamp, entry.version);
        true
    }

    pub(super) fn clear(&mut self, at: usize) {
        self.actors[at] = FREE;
    }

    /// The number of the list that holds further shares.
    #[inline]
    pub(super) fn list(&self) -> Option<usize> {
        (self.actors[IN_PLACE - 1] == SPILLED).then(|| self.spent[IN_PLACE - 1] as usize)
    }

    /// Names the list for further shares; returns what lay in its place.
    pub(super) fn set_list(&mut self, list: u32) -> Option<Entry> {
        let last = IN_PLACE - 1;
        let moved = (self.actors[last] < SPILLED).then(|| self.entry(last));
        (self.actors[last], self.spent[last]) = (SPILLED, list);
        moved
    }
}

/// All records of a ledger, by slot, in chunks that never move.
#[derive(Default)]
pub(super) struct Records(Vec<Option<Box<[Record]>>>);

impl Records {
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&Record> {
        self.0.get(slot as usize / CHUNK)?.as_ref()?.get(slot as usize % CHUNK)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Record> {
        self.0.get_mut(slot as usize / CHUNK)?.as_mut()?.get_mut(slot as usize % CHUNK)
    }

    /// The record of this slot, allocated if need be.
    #[inline]
    pub(super) fn allocated(&mut self, slot: u32) -> &mut Record {
        let (chunk, at) = (slot as usize / CHUNK, slot as usize % CHUNK);
        if self.0.len() <= chunk {
            self.0.resize_with(chunk + 1, || None);
        }
        let chunk = self.0[chunk].get_or_insert_with(|| vec![Record::EMPTY; CHUNK].into_boxed_slice());
        &mut chunk[at]
    }

    /// The slots of the records that have been allocated.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        0..(self.0.len() * CHUNK) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_cache_line() {
        assert_eq!(size_of::<Record>(), 64);
        assert_eq!(align_of::<Record>(), 64);
    }

    #[test]
    fn a_share_is_in_place_as_it_was_put_there() {
        let mut record = Record::EMPTY;
        let entry = Entry {
            share: Share { spent: u32::MAX.into(), refunded: u16::MAX.into() },
            actor: 7,
            epoch: 9,
            stamp: u32::MAX,
            version: 1,
        };
        assert!(record.set(1, entry) && record.entry(1) == entry && record.position(7, 9) == Some(1));
        let large = [(u64::from(u32::MAX) + 1, 0), (u64::MAX, u64::from(u16::MAX) + 1)];
        for (spent, refunded) in large {
            assert!(!record.set(1, Entry { share: Share { spent, refunded }, ..entry }));
        }
        assert_eq!(record.entries().collect::<Vec<_>>(), [entry]);
    }
}
