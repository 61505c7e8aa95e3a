//! What the machine can do: the least work that a limiter with a cache line a key has to do.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use ratemesh::KeyHasher;
use rustix::time::{ClockId, clock_gettime};

use crate::subjects::Subject;

/// A key's line.
#[derive(Default)]
#[repr(align(64))]
struct Line {
    count: AtomicU64,
    /// The key's digest, or in its first word where the next line is.
    digest: [AtomicU64; 2],
}

impl Line {
    fn count_one(&self) -> bool {
        let count = self.count.load(Ordering::Acquire);
        self.count.compare_exchange(count, count + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

fn read_coarse_clock() {
    black_box(clock_gettime(ClockId::MonotonicCoarse));
}

/// One line after the other: a coarse clock, the line that another line names, and a compare-and-swap in it. No line can be
/// fetched before the last one is there. It knows no keys and admits everything.
pub struct BareLines {
    lines: Vec<Line>,
    at: AtomicUsize,
}

impl BareLines {
    /// So many lines, in a random ring.
    pub fn new(count: usize) -> Self {
        let mut ring: Vec<usize> = (0..count).collect();
        fastrand::Rng::with_seed(11).shuffle(&mut ring);
        let lines: Vec<Line> = (0..count).map(|_| Line::default()).collect();
        for (at, line) in ring.iter().enumerate() {
            lines[*line].digest[0].store(ring[(at + 1) % count] as u64, Ordering::Relaxed);
        }
        Self { lines, at: AtomicUsize::new(0) }
    }
}

impl<K> Subject<K> for BareLines {
    #[inline]
    fn admits(&self, _: &K) -> bool {
        read_coarse_clock();
        let line = &self.lines[self.at.load(Ordering::Relaxed)];
        let admitted = line.count_one();
        self.at.store(line.digest[0].load(Ordering::Relaxed) as usize, Ordering::Relaxed);
        admitted
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
/// Lines in a bucket.
const BUCKET: usize = 16;

/// The least that finds a key: a coarse clock, a digest, one of sixteen tags, and a compare-and-swap in the line that the tag stands
/// for. All has its room from the beginning, and there is nothing to decide. The few keys for which there is no room are
/// admitted as they come.
pub struct BareTags {
    hasher: KeyHasher,
    tags: Vec<[AtomicU64; 2]>,
    lines: Vec<Line>,
}

impl BareTags {
    /// Room for so many keys.
    pub fn new(keys: usize) -> Self {
        let buckets = (keys + keys / 8).div_ceil(BUCKET);
        Self {
            hasher: KeyHasher::default(),
            tags: (0..buckets).map(|_| Default::default()).collect(),
            lines: (0..buckets * BUCKET).map(|_| Line::default()).collect(),
        }
    }

    /// Takes a key in, if its bucket has room; for one thread.
    #[cold]
    #[inline(never)]
    fn insert(&self, bucket: usize, tag: u64, digest: [u64; 2]) -> bool {
        for place in 0..BUCKET {
            let (word, shift) = (&self.tags[bucket][place / 8], place % 8 * 8);
            if word.load(Ordering::Relaxed) >> shift & 0xff == 0 {
                word.fetch_or(tag << shift, Ordering::Relaxed);
                let line = &self.lines[bucket * BUCKET + place];
                line.digest.iter().zip(digest).for_each(|(at, half)| at.store(half, Ordering::Relaxed));
                return line.count_one();
            }
        }
        true
    }
}

impl Subject<String> for BareTags {
    #[inline]
    fn admits(&self, key: &String) -> bool {
        read_coarse_clock();
        let digest = self.hasher.key(key).digest();
        let digest = [digest as u64, (digest >> 64) as u64];
        let bucket = (((digest[0] >> 32) * self.tags.len() as u64) >> 32) as usize;
        let tag = (digest[1] & 0xff).max(1);
        let [low, high] = &self.tags[bucket];
        let matches = |word: &AtomicU64| {
            let word = word.load(Ordering::Relaxed) ^ (tag * ONES);
            word.wrapping_sub(ONES) & !word & (ONES << 7)
        };
        let mut found = matches(low) >> 7 | matches(high) >> 6;
        while found != 0 {
            let bit = found.trailing_zeros() as usize;
            let line = &self.lines[bucket * BUCKET + bit / 8 + bit % 8 * 8];
            if line.digest[0].load(Ordering::Relaxed) == digest[0]
                && line.digest[1].load(Ordering::Relaxed) == digest[1]
            {
                return line.count_one();
            }
            found &= found - 1;
        }
        self.insert(bucket, tag, digest)
    }
}
