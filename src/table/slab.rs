//! Where the live keys' cells lie: in chunks that are allocated as they are needed and never move.
//!
//! A cell is addressed by its slot number. It can be read at any time without a lock, also by a thread that kept the
//! number from earlier: whether the cell still holds that thread's key is written in the cell itself.

use std::sync::{
    OnceLock,
    atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering},
};

use crate::{algorithm::level::Level, key::Key, time::Timestamp};

/// Cells a chunk: 64 kB.
const CHUNK: usize = 1024;

/// How many bits of a cell's terms name a forecast; the rest names a quota.
const FORECAST_BITS: u32 = 9;
const FORECAST_MASK: u16 = (1 << FORECAST_BITS) - 1;
/// Forecasts that a table holds at once, for its hottest keys.
pub(crate) const MAX_FORECASTS: usize = FORECAST_MASK as usize;
/// Quotas that a table can have beside its first.
pub(crate) const MAX_LATER_QUOTAS: usize = (1 << (u16::BITS - FORECAST_BITS)) - 1;

/// One live key's hot state, in one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Cell {
    /// What decides.
    pub(crate) level: Level,
    /// Units given back in the current epoch.
    pub(crate) refunded: AtomicU64,
    /// The count of spent units at which the gossip wants to hear of this key: [`CLEAN`] or [`SILENT`] or a count.
    pub(crate) flush_at: AtomicU64,
    /// The count of spent units at the start of the current epoch.
    pub(crate) base: AtomicU64,
    digest: [AtomicU64; 2],
    /// Units refused; wraps.
    pub(crate) denied: AtomicU32,
    /// Which forecast of the peers' spending is drawn on the level, and above it which of the table's quotas the key has; 0
    /// where it has the table's first quota and no forecast, as most keys do.
    terms: AtomicU16,
    /// When the first unpublished unit was spent: milliseconds of the node's clock, modulo 2¹⁶.
    changed_ms: AtomicU16,
}

/// `flush_at` of a cell in which nothing has changed since it was last published.
pub(crate) const CLEAN: u64 = 0;
/// `flush_at` of a cell that has nobody to tell, or has told already.
pub(crate) const SILENT: u64 = u64::MAX;

impl Cell {
    fn empty() -> Self {
        Self {
            level: Level::dead(),
            refunded: AtomicU64::new(0),
            flush_at: AtomicU64::new(SILENT),
            base: AtomicU64::new(0),
            digest: [AtomicU64::new(0), AtomicU64::new(0)],
            denied: AtomicU32::new(0),
            terms: AtomicU16::new(0),
            changed_ms: AtomicU16::new(0),
        }
    }

    /// Whether the cell is, or last was, this key's.
    #[inline]
    pub(crate) fn holds(&self, key: Key) -> bool {
        let [low, high] = halves(key);
        self.digest[0].load(Ordering::Relaxed) == low && self.digest[1].load(Ordering::Relaxed) == high
    }

    /// The key that the cell holds or last held.
    pub(crate) fn key(&self) -> Key {
        let low = u128::from(self.digest[0].load(Ordering::Relaxed));
        let high = u128::from(self.digest[1].load(Ordering::Relaxed));
        Key::from_digest(high << 64 | low)
    }

    /// Notes when the first unpublished unit was spent.
    pub(crate) fn set_changed(&self, now: Timestamp) {
        self.changed_ms.store(millis(now), Ordering::Relaxed);
    }

    /// Milliseconds since the first unpublished unit was spent, up to a minute or so.
    pub(crate) fn changed_since(&self, now: Timestamp) -> u16 {
        let since = millis(now).wrapping_sub(self.changed_ms.load(Ordering::Relaxed));
        // The coarse clock may have been read later than `now`.
        if since > u16::MAX - 100 { 0 } else { since }
    }

    /// Whether the key has the table's first quota, and nothing is forecast for it.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.terms.load(Ordering::Relaxed) == 0
    }

    /// Which forecast is drawn on the level; 0 for none.
    #[inline]
    pub(crate) fn forecast(&self) -> u16 {
        self.terms.load(Ordering::Relaxed) & FORECAST_MASK
    }

    /// Sets it.
    pub(crate) fn set_forecast(&self, forecast: u16) {
        let set = |terms: u16| Some(terms & !FORECAST_MASK | forecast & FORECAST_MASK);
        let _ = self.terms.fetch_update(Ordering::AcqRel, Ordering::Acquire, set);
    }

    /// Which of the table's quotas the key has.
    #[inline]
    pub(crate) fn quota(&self) -> u8 {
        (self.terms.load(Ordering::Acquire) >> FORECAST_BITS) as u8
    }

    /// Gives the key another quota, for which nothing is forecast yet.
    pub(super) fn set_quota(&self, quota: u8) {
        self.terms.store(u16::from(quota) << FORECAST_BITS, Ordering::Release);
    }

    /// Gives the dead cell to `key`; whoever brings it to life afterwards publishes this.
    pub(super) fn assign(&self, key: Key, quota: u8, flush_at: u64) {
        let [low, high] = halves(key);
        self.digest[0].store(low, Ordering::Relaxed);
        self.digest[1].store(high, Ordering::Relaxed);
        self.refunded.store(0, Ordering::Relaxed);
        self.flush_at.store(flush_at, Ordering::Relaxed);
        self.denied.store(0, Ordering::Relaxed);
        self.set_quota(quota);
    }
}

fn millis(at: Timestamp) -> u16 {
    (at.as_nanos() / 1_000_000) as u16
}

fn halves(key: Key) -> [u64; 2] {
    [key.digest() as u64, (key.digest() >> 64) as u64]
}

/// Cells that are allocated at once. Their number is part of the type, so that a slot needs no check against it.
type Chunk = Box<[Cell; CHUNK]>;

/// All cells of a table.
pub(crate) struct Slab {
    /// The first cells. Where they lie does not have to be looked up by the slot's number first, which a check of one of
    /// the first keys, often the hottest, would have to wait for.
    first: OnceLock<Chunk>,
    others: Box<[OnceLock<Chunk>]>,
}

impl Slab {
    /// Room for `cells` cells, none of them allocated yet.
    pub(super) fn new(cells: usize) -> Self {
        let others = cells.div_ceil(CHUNK).saturating_sub(1);
        Self { first: OnceLock::new(), others: (0..others).map(|_| OnceLock::new()).collect() }
    }

    /// The cell in this slot, if its chunk has been allocated.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&Cell> {
        let slot = slot as usize;
        if slot < CHUNK {
            return Some(&self.first.get()?[slot]);
        }
        Some(&self.others.get(slot / CHUNK - 1)?.get()?[slot % CHUNK])
    }

    /// The cell in this slot, allocated if need be; `None` beyond the slab's end.
    pub(super) fn allocated(&self, slot: u32) -> Option<&Cell> {
        let slot = slot as usize;
        let chunk = if slot < CHUNK { &self.first } else { self.others.get(slot / CHUNK - 1)? };
        Some(&chunk.get_or_init(new_chunk)[slot % CHUNK])
    }
}

#[cold]
fn new_chunk() -> Chunk {
    // Collected, since an array would be made on the stack first.
    let cells: Vec<Cell> = (0..CHUNK).map(|_| Cell::empty()).collect();
    match cells.try_into() {
        Ok(chunk) => chunk,
        Err(_) => unreachable!("there are as many cells as a chunk has"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_one_cache_line() {
        assert_eq!(size_of::<Cell>(), 64);
        assert_eq!(align_of::<Cell>(), 64);
    }

    #[test]
    fn each_slot_has_a_cell_of_its_own_that_stays_where_it_is() {
        let slab = Slab::new(3 * CHUNK - 1);
        let slots = [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK, 3 * CHUNK - 2].map(|slot| slot as u32);
        let address = |cell: &Cell| std::ptr::from_ref(cell).addr();
        let mut places: Vec<usize> =
            slots.iter().map(|slot| address(slab.allocated(*slot).unwrap())).collect();
        for (slot, place) in slots.iter().zip(&places) {
            assert_eq!(slab.get(*slot).map(address), Some(*place));
        }
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), slots.len());
        assert!(slab.allocated(3 * CHUNK as u32).is_none() && slab.get(u32::MAX).is_none());
    }
}
