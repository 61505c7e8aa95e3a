//! Finding keys, taking them in, and giving them up.

use super::*;

/// Finding, taking in and giving up keys.
impl Table {
    /// The slot in which this thread last saw `key`, or [`NO_SLOT`].
    #[inline]
    pub(crate) fn recall(&self, key: Key) -> u32 {
        u32::try_from(self.recall_at_once(key)).unwrap_or(NO_SLOT)
    }

    /// The slot in which this thread last saw `key`, or some number beyond all slots.
    #[inline(always)]
    pub(crate) fn recall_at_once(&self, key: Key) -> u64 {
        let (place, tag) = self.place(key);
        RECENT_SLOTS.try_with(|slots| slots[place].get()).map_or(u64::MAX, |word| word ^ tag)
    }

    /// The slot that holds `key`, which the thread remembers; or [`NO_SLOT`].
    #[inline(never)]
    pub(crate) fn look_up(&self, key: Key) -> u32 {
        self.find(key).inspect(|slot| self.remember(key, *slot)).unwrap_or(NO_SLOT)
    }

    /// The slot in which `key` may be, by its digest, which the thread remembers; or [`NO_SLOT`].
    // A call of its own, that needs few of the processor's registers and so has none to save.
    #[inline(never)]
    pub(crate) fn guess_anew(&self, key: Key) -> u64 {
        let slot = self.places.guess(key);
        if slot != NO_SLOT {
            self.remember(key, slot);
        }
        slot.into()
    }

    /// The slot in which `key` may be, by its digest; or [`NO_SLOT`].
    #[cfg(feature = "gossip")]
    #[inline(always)]
    pub(crate) fn guess(&self, key: Key) -> u32 {
        self.places.guess(key)
    }

    /// Has the memory brought near that says where `key` is.
    #[cfg(feature = "gossip")]
    #[inline]
    pub(crate) fn approach(&self, key: Key) -> u64 {
        self.places.approach(key)
    }

    /// Where `key` is, as far as this thread remembers, or else as it is found.
    #[inline]
    pub(crate) fn slot_of(&self, key: Key) -> u32 {
        match self.recall(key) {
            NO_SLOT => self.look_up(key),
            slot => slot,
        }
    }

    #[inline(always)]
    pub(crate) fn remember(&self, key: Key, slot: u32) {
        let (place, tag) = self.place(key);
        let _ = RECENT_SLOTS.try_with(|slots| slots[place].set(tag ^ u64::from(slot)));
    }

    /// Where a thread remembers the key's slot, and what it is remembered under: the lower half of the word is of the slot too, so
    /// that what remains of both where they are of one key is the slot.
    #[inline]
    fn place(&self, key: Key) -> (usize, u64) {
        let digest = key.digest();
        ((digest as u64 ^ self.id) as usize % RECENT, (digest >> 64) as u64 ^ self.id)
    }

    /// Whether `key` is in this slot.
    #[inline]
    pub(crate) fn is_at(&self, slot: u32, key: Key) -> bool {
        self.slab.get(slot).is_some_and(|cell| cell.level.spent() & DEAD == 0 && cell.holds(key))
    }

    /// The slot that holds `key`.
    pub(crate) fn find(&self, key: Key) -> Option<u32> {
        // Who finds it here takes no lock of the index, for which threads that check other keys would have to wait.
        let guessed = self.places.guesses(key).find(|slot| self.is_at(*slot, key));
        guessed.or_else(|| self.find_in_index(key))
    }

    /// The slot of a key that no guess has found; or [`NO_SLOT`], also where it is just being taken in.
    #[inline]
    pub(crate) fn look_for_stray(&self, key: Key) -> u32 {
        if self.places.has_strays() { self.find_in_index(key).unwrap_or(NO_SLOT) } else { NO_SLOT }
    }

    /// The same; whoever is taking the key in, or giving it up, has been waited for.
    #[cold]
    pub(super) fn find_in_index(&self, key: Key) -> Option<u32> {
        let hash = hash_of(key);
        let shard = self.index.shards().get(self.index.determine_shard(hash as usize))?;
        shard
            .read()
            .get(hash, |(slot, _)| self.slab.get(*slot).is_some_and(|cell| cell.holds(key)))
            .map(|(slot, _)| *slot)
    }

    pub(crate) fn cell(&self, slot: u32) -> Option<&Cell> {
        self.slab.get(slot)
    }

    /// Takes `key` in, at the initial level; `None` when there is no room. Returns its slot also where it was there.
    pub(crate) fn insert(&self, key: Key, now: Now) -> Option<u32> {
        if !self.marks.is_heard() {
            self.sweep(now);
        }
        // Before the index is locked: who changes rules looks keys up.
        let quota = self.quota_of(key);
        let hash = hash_of(key);
        let shard = self.index.shards().get(self.index.determine_shard(hash as usize))?;
        let mut shard = shard.write();
        let holds = |slot: u32| self.slab.get(slot).is_some_and(|cell| cell.holds(key));
        if let Some((slot, _)) = shard.get(hash, |(slot, _)| holds(*slot)) {
            return Some(*slot);
        }
        let slot = if key == SHARED_KEY { self.shared_slot() } else { self.free_slot(key)? };
        let cell = self.slab.allocated(slot)?;
        if let Some(histories) = &self.histories {
            histories.forget(slot);
        }
        cell.assign(key, quota, if self.marks.is_heard() { CLEAN } else { SILENT });
        // Before the cell lives, so that nobody takes what an earlier key spent for this one's.
        cell.base.store((cell.level.spent() & !DEAD) + 1, Ordering::Release);
        let meter = self.meter_of(cell);
        cell.level.revive(meter, self.start(cell, now), self.initial_level(meter));
        if key != SHARED_KEY {
            self.room.live.fetch_add(1, Ordering::Relaxed);
        }
        shard.insert(hash, (slot, SharedValue::new(())), |(slot, _)| {
            self.slab.get(*slot).map_or(0, |cell| hash_of(cell.key()))
        });
        drop(shard);
        if self.rules.is_any() || quota != self.current() {
            self.mark_new(slot, key, now);
        }
        Some(slot)
    }

    /// What a new cell is taken to have earned: as much as everyone, less what is drawn on every key already.
    pub(super) fn start(&self, cell: &Cell, now: Now) -> u64 {
        if self.meter().is_stock() {
            // What is drawn is not a flow that this key has no part in so far, but a part of every key's stock.
            return 0;
        }
        self.earned(cell, now).wrapping_sub(self.drawn(cell, now) as u64)
    }

    pub(super) fn free_slot(&self, key: Key) -> Option<u32> {
        let mut free = self.free_slots();
        if free.used >= self.limit.max_keys() {
            return None;
        }
        self.places.take(key, &mut free)
    }

    pub(super) fn free_slots(&self) -> std::sync::MutexGuard<'_, FreeSlots> {
        self.room.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slots that may have been used: 0 up to this.
    pub(crate) fn used_slots(&self) -> u32 {
        self.places.numbered()
    }

    /// Which of them hold a key now.
    #[cfg(feature = "gossip")]
    pub(crate) fn held_slots(&self) -> Vec<bool> {
        let lives = |cell: &Cell| cell.level.spent() & DEAD == 0;
        (0..self.used_slots()).map(|slot| self.slab.get(slot).is_some_and(lives)).collect()
    }

    /// The slot of the bucket that keys without room share, in use or not.
    pub(crate) fn shared_slot(&self) -> u32 {
        self.places.slots()
    }

    /// Looks at the next few cells and gives up those whose keys have drained: some time ago, or where room is short,
    /// just now.
    pub(super) fn sweep(&self, now: Now) {
        let (most, slots) = (self.limit.max_keys(), self.used_slots());
        let spare = most.saturating_sub(self.live_keys());
        let idle = if spare <= most / SHORT_PART { 0 } else { IDLE_NANOS };
        // Where the hand comes by, keys are of any age: where room is short, it goes on until one has gone.
        let (least, most) = if idle == 0 { SWEPT_WHEN_SHORT } else { SWEPT };
        let mut gone = false;
        for step in 0..most.min(slots) {
            if gone && step >= least {
                break;
            }
            let slot = self.room.hand.fetch_add(1, Ordering::Relaxed) % slots;
            gone |= self.evict_if_idle(slot, idle, now);
        }
    }

    /// Gives up the key in `slot` if its level is back at the capacity: it then differs in nothing from a new one.
    pub(crate) fn evict_if_full(&self, slot: u32, now: Now) -> bool {
        self.evict_if_idle(slot, 0, now)
    }

    /// The same if it has been back at the capacity for so long.
    pub(super) fn evict_if_idle(&self, slot: u32, nanos: u64, now: Now) -> bool {
        let Some(cell) = self.slab.get(slot) else { return false };
        self.advance(slot, cell, now);
        let spent = cell.level.spent();
        let quota = cell.quota();
        let meter = self.limit_at(quota).meter();
        let level = cell.level.read(meter, self.earned(cell, now), self.drawn(cell, now));
        let idle_level = meter.capacity().saturating_add_unsigned(meter.earned_within(nanos, now));
        // A key whose quota is being changed has no level to go by.
        spent & DEAD == 0 && level >= idle_level && cell.quota() == quota && self.evict(slot, cell, spent)
    }

    /// Gives up the key in `slot` if it has spent exactly `spent`.
    pub(super) fn evict(&self, slot: u32, cell: &Cell, spent: u64) -> bool {
        let key = cell.key();
        let hash = hash_of(key);
        let Some(shard) = self.index.shards().get(self.index.determine_shard(hash as usize)) else {
            return false;
        };
        let mut shard = shard.write();
        // The count only grows, so that it still stands says that the key is the same and nothing was spent meanwhile.
        let held = self.stripes.hold(slot);
        if !cell.level.kill(spent) {
            return false;
        }
        drop(held);
        shard.remove_entry(hash, |(other, _)| *other == slot);
        if let Some(histories) = &self.histories {
            histories.forget(slot);
        }
        drop(shard);
        if slot != self.shared_slot() {
            self.room.live.fetch_sub(1, Ordering::Relaxed);
            self.places.give_up(key, slot, &mut self.free_slots());
        }
        true
    }

    /// Starts telling the gossip of changed keys: each when first changed, and as urgent once `threshold` units are
    /// unpublished. `wake` is called from checking threads, so it must neither block nor take long.
    pub(crate) fn listen(&self, threshold: u64, wake: Wake) {
        self.marks.set_wake(wake);
        self.marks.set_threshold(threshold);
        for slot in (0..self.used_slots()).chain([self.shared_slot()]) {
            if let Some(cell) = self.slab.get(slot) {
                let _held = self.stripes.hold(slot);
                // What earlier gossip published stays published: the next share begins at zero, or with the permits that
                // are in use.
                let refunded = cell.refunded.swap(0, Ordering::Relaxed);
                let spent = cell.level.spent() & !DEAD;
                if self.limit.permit_returns_on_drop() {
                    cell.base.fetch_add(refunded, Ordering::Relaxed);
                } else {
                    cell.base.store(spent, Ordering::Relaxed);
                }
                cell.flush_at.store(CLEAN, Ordering::Relaxed);
                // Earlier gossip's forecasts are nobody's any more.
                cell.set_forecast(0);
                if spent != cell.base.load(Ordering::Relaxed) {
                    self.marks.note_changed(slot);
                }
            }
        }
    }
}

#[inline]
fn hash_of(key: Key) -> u64 {
    key.digest() as u64
}
