//! Which slot a key gets, and where to look for it first.
//!
//! A key's digest names a bucket with room for sixteen keys, and says by which of 255 tags its key is known in there. So
//! what tells where a key is takes two bytes a key, which lie in the processor's caches where the cells themselves do not, and is
//! read without a lock. It may be wrong, since a tag may be another key's: what is in the slot says whose it is.
//!
//! Cells never move, so there is not one array of buckets that grows, but one segment after another, each as large as all
//! before it. A key is taken in where there is room in one of its buckets, and looked for from the newest segment on. Slots
//! are numbered as they are needed: a bucket gets them four at a time. Where all its buckets are full before the segments are,
//! a key gets a slot that belongs to none, and is known by no tag; the table's index knows it.
//!
//! Tags in buckets are those of a Swiss table (Kulukundis, CppCon 2017); segments are for cells that stay where they are.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use super::NO_SLOT;
use crate::key::Key;

/// Keys for which a bucket has room.
const BUCKET: usize = 16;
/// Slots that a bucket gets at a time.
const BLOCK: usize = 4;
const BLOCKS: usize = BUCKET / BLOCK;
/// Buckets in the first segment.
const FIRST: usize = 256;
/// There are places for one key more for each so many, so that few keys of a full table find all their buckets full.
const SPARE_PART: usize = 4;
/// What part of the places is taken before there are more.
const FULL_PART: usize = 2;
/// A bucket gets further slots where there are more keys than ever, or where no more than this part of the slots is free.
const LOOSE_PART: usize = 8;

/// Segments that hold nearly all keys.
#[cfg(feature = "gossip")]
const NEAR: usize = 2;

/// The tag of a place that nobody has.
const FREE: u8 = 0;
/// The least tag of a key.
const LEAST: u8 = 1;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = ONES << 7;

/// The highest bits of the bytes that are zero. The lowest one is right; above it there may be some of bytes that are one.
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH_BITS
}

/// The places of sixteen keys: their tags, and their slots, of which each word names the first of four.
#[repr(align(32))]
struct Bucket {
    tags: [AtomicU64; 2],
    blocks: [AtomicU32; BLOCKS],
}

impl Bucket {
    fn new() -> Self {
        Self { tags: Default::default(), blocks: [const { AtomicU32::new(NO_SLOT) }; BLOCKS] }
    }

    /// Bits of the places with this tag: eight times a place's number in its half, and the half. The least one is right;
    /// others may be of places with another tag.
    #[inline(always)]
    fn matches(&self, tag: u8) -> u64 {
        let wanted = u64::from(tag) * ONES;
        let [low, high] = &self.tags;
        zero_bytes(low.load(Ordering::Relaxed) ^ wanted) >> 7
            | zero_bytes(high.load(Ordering::Relaxed) ^ wanted) >> 6
    }

    /// The slot of the place that the least of these bits stands for.
    #[inline(always)]
    fn first(&self, matches: u64) -> u32 {
        let bit = matches.trailing_zeros() as usize;
        self.slot(bit / 8 + bit % 8 * (BUCKET / 2))
    }

    /// The slot of this place; none of the table's where it has none.
    #[inline(always)]
    fn slot(&self, place: usize) -> u32 {
        self.blocks[place / BLOCK % BLOCKS].load(Ordering::Relaxed) | (place % BLOCK) as u32
    }

    /// Sets the tag of a place. Only one thread at a time does.
    fn set(&self, place: usize, tag: u8) {
        let word = &self.tags[place / 8];
        let shift = place % 8 * 8;
        let rest = word.load(Ordering::Relaxed) & !(0xff << shift);
        word.store(rest | u64::from(tag) << shift, Ordering::Release);
    }

    /// The first place that nobody has.
    fn free(&self) -> Option<usize> {
        let [low, high] = &self.tags;
        let first = |word: &AtomicU64| zero_bytes(word.load(Ordering::Relaxed)).trailing_zeros() as usize / 8;
        match (first(low), first(high)) {
            (place @ 0..8, _) => Some(place),
            (_, place @ 0..8) => Some(8 + place),
            _ => None,
        }
    }

    fn has_slots(&self, place: usize) -> bool {
        self.blocks[place / BLOCK].load(Ordering::Relaxed) != NO_SLOT
    }

    /// The place with this slot.
    fn place_of(&self, slot: u32) -> Option<usize> {
        let at = slot as usize % BLOCK;
        let is_block = |block: &AtomicU32| block.load(Ordering::Relaxed) == slot - at as u32;
        self.blocks.iter().position(is_block).map(|block| block * BLOCK + at)
    }
}

/// Buckets that were opened at one time.
struct Segment {
    size: usize,
    buckets: OnceLock<Box<[Bucket]>>,
}

impl Segment {
    /// The bucket that these bits name.
    #[inline(always)]
    fn bucket(&self, spread: u64) -> Option<&Bucket> {
        let buckets = self.buckets.get()?;
        buckets.get(((spread * buckets.len() as u64) >> 32) as usize)
    }
}

/// The slots of a table's keys.
pub(super) struct Places {
    segments: Box<[Segment]>,
    /// How many segments are open.
    open: AtomicUsize,
    /// How many slots have a number.
    numbered: AtomicU32,
    /// How many there can be.
    slots: u32,
    /// How many keys are known by no tag.
    strays: AtomicUsize,
}

/// What taking and giving up slots goes by, for one thread at a time.
#[derive(Default)]
pub(super) struct FreeSlots {
    /// Slots that hold a key.
    pub(super) used: usize,
    /// The most that ever did.
    peak: usize,
    /// Slots that belong to no bucket and hold nothing.
    strays: Vec<u32>,
    /// All that belong to none.
    outside: usize,
}

/// What of a key's digest names its buckets, as 32 bits, and its tag.
#[inline(always)]
fn parts(key: Key) -> (u64, u8) {
    let high = (key.digest() >> 64) as u64;
    (high & 0xffff_ffff, ((high >> 32) as u8).max(LEAST))
}

impl Places {
    /// Room for so many keys.
    pub(super) fn new(max_keys: usize) -> Self {
        let buckets = (max_keys + max_keys / SPARE_PART).div_ceil(BUCKET).max(1);
        let mut segments = Vec::new();
        let mut before = 0;
        while before < buckets {
            let size = before.max(FIRST).min(buckets - before);
            segments.push(Segment { size, buckets: OnceLock::new() });
            before += size;
        }
        // However keys come and go, each finds a slot: in the end, outside all buckets.
        let strays = max_keys.next_multiple_of(BLOCK);
        Self {
            segments: segments.into(),
            open: AtomicUsize::new(0),
            numbered: AtomicU32::new(0),
            slots: (buckets * BUCKET + strays) as u32,
            strays: AtomicUsize::new(0),
        }
    }

    #[inline(always)]
    fn open(&self) -> &[Segment] {
        self.segments.get(..self.open.load(Ordering::Acquire)).unwrap_or_default()
    }

    /// The buckets in which `key` may be, those of the newest segment first.
    #[inline(always)]
    fn buckets(&self, spread: u64) -> impl Iterator<Item = &Bucket> {
        self.open().iter().rev().filter_map(move |segment| segment.bucket(spread))
    }

    /// How many slots there can be.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// The slots that may have been used: 0 up to this.
    pub(super) fn numbered(&self) -> u32 {
        self.numbered.load(Ordering::Acquire)
    }

    /// The first slot in which `key` may be; or one that no table has.
    #[inline(always)]
    pub(super) fn guess(&self, key: Key) -> u32 {
        let (spread, tag) = parts(key);
        for segment in self.open().iter().rev() {
            let Some(bucket) = segment.bucket(spread) else { break };
            let matches = bucket.matches(tag);
            if matches != 0 {
                return bucket.first(matches);
            }
        }
        NO_SLOT
    }

    /// The slots in which `key` may be, the likeliest first.
    pub(super) fn guesses(&self, key: Key) -> impl Iterator<Item = u32> {
        let (spread, tag) = parts(key);
        self.buckets(spread).flat_map(move |bucket| {
            let mut matches = bucket.matches(tag);
            std::iter::from_fn(move || {
                let slot = (matches != 0).then(|| bucket.first(matches));
                matches &= matches.wrapping_sub(1);
                slot
            })
        })
    }

    /// Whether there are keys that no guess finds.
    #[inline]
    pub(super) fn has_strays(&self) -> bool {
        self.strays.load(Ordering::Acquire) != 0
    }

    /// Has the memory brought near that says where `key` is, but for keys of the older segments.
    #[cfg(feature = "gossip")]
    #[inline]
    pub(super) fn approach(&self, key: Key) -> u64 {
        let buckets = self.buckets(parts(key).0).take(NEAR);
        buckets.fold(0, |sum, bucket| sum ^ bucket.tags[0].load(Ordering::Relaxed))
    }

    /// A slot for `key` that holds nothing. There is one as long as fewer hold a key than there is room for.
    pub(super) fn take(&self, key: Key, free: &mut FreeSlots) -> Option<u32> {
        let slot = match self.take_at_home(key, free) {
            Some(slot) => slot,
            None => {
                let opened = self.is_full(free) && self.open_next();
                let at_home = if opened { self.take_at_home(key, free) } else { None };
                at_home.or_else(|| self.take_any(free))?
            }
        };
        free.used += 1;
        free.peak = free.peak.max(free.used);
        Some(slot)
    }

    /// Whether it is time for another segment.
    fn is_full(&self, free: &FreeSlots) -> bool {
        let room: usize = self.open().iter().map(|segment| segment.size * BUCKET).sum();
        free.used * FULL_PART >= room
    }

    /// A slot in one of the key's own buckets: one that has a number, if there is such a one. Where keys come and go without
    /// end, there is an end of numbers.
    fn take_at_home(&self, key: Key, free: &FreeSlots) -> Option<u32> {
        let (spread, tag) = parts(key);
        let numbered = |bucket: &Bucket| bucket.free().filter(|place| bucket.has_slots(*place));
        let mut places = self.buckets(spread).filter_map(|bucket| Some((bucket, numbered(bucket)?)));
        let enough = free.used + free.used / LOOSE_PART + FIRST * BLOCK;
        let may_number = free.used >= free.peak || self.numbered() as usize - free.outside < enough;
        let any = || self.buckets(spread).find_map(|bucket| Some((bucket, bucket.free()?)));
        let (bucket, place) = places.next().or_else(|| any().filter(|_| may_number))?;
        if !bucket.has_slots(place) {
            bucket.blocks[place / BLOCK].store(self.number_block()?, Ordering::Release);
        }
        bucket.set(place, tag);
        Some(bucket.slot(place))
    }

    /// Numbers another few slots; returns the first of them.
    fn number_block(&self) -> Option<u32> {
        let first = self.numbered.load(Ordering::Acquire);
        let next = first + BLOCK as u32;
        (next <= self.slots).then(|| self.numbered.store(next, Ordering::Release)).map(|()| first)
    }

    /// Opens another segment, if there is one.
    fn open_next(&self) -> bool {
        let open = self.open.load(Ordering::Acquire);
        let Some(next) = self.segments.get(open) else { return false };
        next.buckets.get_or_init(|| (0..next.size).map(|_| Bucket::new()).collect());
        self.open.store(open + 1, Ordering::Release);
        true
    }

    /// A slot that belongs to no bucket.
    fn take_any(&self, free: &mut FreeSlots) -> Option<u32> {
        if free.strays.is_empty() {
            let first = self.number_block()?;
            free.strays.extend((first..first + BLOCK as u32).rev());
            free.outside += BLOCK;
        }
        let slot = free.strays.pop()?;
        self.strays.fetch_add(1, Ordering::Release);
        Some(slot)
    }

    /// Says that `key` is not in the slot any more, nor any other.
    pub(super) fn give_up(&self, key: Key, slot: u32, free: &mut FreeSlots) {
        let home = self.buckets(parts(key).0).find_map(|bucket| Some((bucket, bucket.place_of(slot)?)));
        match home {
            Some((bucket, place)) => bucket.set(place, FREE),
            None => {
                free.strays.push(slot);
                self.strays.fetch_sub(1, Ordering::Release);
            }
        }
        free.used = free.used.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn key(number: usize) -> Key {
        Key::from_digest((number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    fn fill(places: &Places, free: &mut FreeSlots, keys: std::ops::Range<usize>) -> Vec<u32> {
        keys.map(|number| places.take(key(number), free).unwrap()).collect()
    }

    #[test]
    fn as_many_keys_as_there_is_room_for_have_slots_of_their_own() {
        for max_keys in [1, 15, 16, 17, 1_000, 4_096, 4_097, 40_000, 65_536] {
            let (places, mut free) = (Places::new(max_keys), FreeSlots::default());
            assert_eq!((places.numbered(), places.guess(key(0))), (0, NO_SLOT));
            let slots = fill(&places, &mut free, 0..max_keys);
            assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), max_keys);
            assert!(
                slots.iter().all(|slot| *slot < places.numbered()) && places.numbered() <= places.slots()
            );
            let is_guessed =
                |(number, slot): &(usize, &u32)| places.guesses(key(*number)).any(|guess| guess == **slot);
            let guessed = slots.iter().enumerate().filter(is_guessed).count();
            assert_eq!(max_keys - guessed, places.strays.load(Ordering::Relaxed));
            assert!(guessed * 100 >= max_keys * 95, "{guessed} of {max_keys}");
        }
    }

    #[test]
    fn few_slots_get_a_number_before_there_are_keys_for_them() {
        let (places, mut free) = (Places::new(1 << 20), FreeSlots::default());
        for step in 0..300 {
            fill(&places, &mut free, step * 1_000..(step + 1) * 1_000);
            let most = free.used * 4 / 3 + FIRST * (BLOCK - 1);
            assert!(places.numbered() as usize <= most, "{} for {}", places.numbered(), free.used);
        }
        assert_eq!(places.strays.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn slots_come_back_and_nothing_is_lost() {
        let (places, mut free) = (Places::new(5_000), FreeSlots::default());
        let mut held = BTreeMap::new();
        for number in 0..100_000 {
            let any = (key(number).digest() >> 40) as u32 % places.numbered().max(1);
            let next = held.range(any..).chain(&held).next().map(|(slot, number)| (*slot, *number));
            let goes = held.len() == 5_000 || held.len() > 4_000 && any.is_multiple_of(2);
            if let Some((slot, number)) = next.filter(|_| goes) {
                held.remove(&slot);
                places.give_up(key(number), slot, &mut free);
            } else {
                let slot = places.take(key(number), &mut free).unwrap();
                assert!(held.insert(slot, number).is_none());
            }
            assert_eq!(free.used, held.len());
        }
        let is_guessed =
            |(slot, number): &(&u32, &usize)| places.guesses(key(**number)).any(|guess| guess == **slot);
        let strays = held.len() - held.iter().filter(is_guessed).count();
        assert_eq!(strays, places.strays.load(Ordering::Relaxed));
        assert!(held.len() > 3_999 && strays * 10 <= held.len(), "{strays} of {}", held.len());
    }

    #[test]
    fn slots_of_keys_that_went_are_used_before_new_ones_are() {
        let (places, mut free) = (Places::new(1 << 20), FreeSlots::default());
        let mut slots: BTreeMap<usize, u32> = (0..).zip(fill(&places, &mut free, 0..50_000)).collect();
        for number in 50_000..1_000_000 {
            let (gone, slot) = slots.pop_first().unwrap();
            places.give_up(key(gone), slot, &mut free);
            slots.insert(number, places.take(key(number), &mut free).unwrap());
        }
        assert!(places.numbered() < 80_000, "{}", places.numbered());
    }

    #[test]
    fn a_tag_is_found_wherever_it_is() {
        let bucket = Bucket::new();
        for (at, block) in (0..).zip(&bucket.blocks) {
            block.store(at * BLOCK as u32, Ordering::Relaxed);
        }
        for place in 0..BUCKET {
            bucket.set(place, 0x80);
            assert_eq!(bucket.first(bucket.matches(0x80)), place as u32);
            assert_eq!(bucket.place_of(place as u32), Some(place));
            assert!(bucket.free() != Some(place));
            bucket.set(place, FREE);
        }
        assert_eq!((bucket.matches(0x80), bucket.free()), (0, Some(0)));
    }
}
