//! Where keys of which peers tell were last found.
//!
//! The table's own index is guarded by locks, and a processor that takes one waits for all it has asked the memory for
//! before. These hints belong to the gossip alone, so that the memory of many keys can be waited for at one time. A hint may
//! be wrong: what is in the slot now says whose it is.

use crate::key::Key;

/// Hints that lie together, in one cache line.
const TOGETHER: usize = 16;
/// The fewest lines, and how full they get before there are twice as many.
const MIN_LINES: usize = 64;
const FULL_PARTS: (usize, usize) = (3, 4);

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u32; TOGETHER]);

/// Slots of keys: each word is a slot's number and one, and above it as many of the key's bits as there is room for.
pub(super) struct Hints {
    lines: Vec<Line>,
    slot_mask: u32,
    held: usize,
}

impl Hints {
    /// For slots up to and with this one.
    pub(super) fn new(last_slot: u32) -> Self {
        let bits = u32::BITS - last_slot.saturating_add(1).leading_zeros();
        let slot_mask = u32::MAX >> (u32::BITS - bits);
        Self { lines: vec![Line([0; TOGETHER]); MIN_LINES], slot_mask, held: 0 }
    }

    fn at(&self, key: Key) -> (usize, u32) {
        let high = (key.digest() >> 64) as u64;
        (high as usize & (self.lines.len() - 1), (high >> 32) as u32 & !self.slot_mask)
    }

    /// Has the memory brought near that [`find`](Self::find) reads.
    #[inline]
    pub(super) fn approach(&self, key: Key) -> u32 {
        let (line, _) = self.at(key);
        self.lines.get(line).map_or(0, |line| line.0[0])
    }

    /// The slot in which the key may be.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<u32> {
        let (line, tag) = self.at(key);
        let words = &self.lines.get(line)?.0;
        // A word that is free has no slot, whatever its tag.
        let word = words.iter().find(|word| *word & !self.slot_mask == tag)?;
        (word & self.slot_mask).checked_sub(1)
    }

    /// Notes where a key is. `used` is how many slots are in use: there is no need for many more hints than that.
    pub(super) fn note(&mut self, key: Key, slot: u32, used: u32) {
        let (parts, of) = FULL_PARTS;
        let room = self.lines.len() * TOGETHER;
        if self.held >= room / of * parts && room < 2 * used as usize {
            // They come back as their keys are told of.
            self.lines = vec![Line([0; TOGETHER]); self.lines.len() * 2];
            self.held = 0;
        }
        let (line, tag) = self.at(key);
        let Some(Line(words)) = self.lines.get_mut(line) else { return };
        // The former slot of the same key, or of one like it, makes room first.
        let fits = |word: &u32| *word == 0 || word & !self.slot_mask == tag;
        let victim = (key.digest() >> 60) as usize % TOGETHER;
        let place = words.iter().position(fits).unwrap_or(victim);
        self.held += usize::from(words[place] == 0);
        words[place] = tag | (slot + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        Key::from_digest(u128::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    #[test]
    fn keys_are_found_again_wherever_slots_end() {
        for last in [1_000, 100_000, u32::MAX - 1] {
            let mut hints = Hints::new(last);
            let slots: Vec<u32> = (0..900).chain([last]).collect();
            slots.iter().for_each(|slot| hints.note(key(*slot), *slot, 1_000));
            // Again, for there are more hints meanwhile than there were at first.
            slots.iter().for_each(|slot| hints.note(key(*slot), *slot, 1_000));
            let found = slots.iter().filter(|slot| hints.find(key(**slot)) == Some(**slot)).count();
            // Where slots take up all bits of a word, one key may be taken for another.
            assert!(found == slots.len() || last == u32::MAX - 1, "{found} of {}", slots.len());
        }
    }

    #[test]
    fn hints_grow_with_the_slots_in_use_alone() {
        let mut hints = Hints::new(1 << 20);
        (0..100_000).for_each(|number| hints.note(key(number), number % 1_000, 1_000));
        assert_eq!(hints.lines.len() * TOGETHER, 2_048);
    }
}
