//! Counts that many threads add to, without any of them waiting for another.
//!
//! Each thread has a lane of its own, on a cache line of its own, which it alone writes: adding is a load and a store,
//! no locked instruction. Threads beyond the lanes share the last one and do lock. A lane is given back when its
//! thread ends.

use std::{
    cell::Cell,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Lanes that have one thread at a time.
const OWN_LANES: usize = 64;
const SHARED_LANE: usize = OWN_LANES;
const UNASSIGNED: usize = usize::MAX;

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(UNASSIGNED) };
    static RETURN: Cell<Option<Lease>> = const { Cell::new(None) };
}

/// Lanes that no thread has now: those never given out, from `next` on, and those given back.
struct Pool {
    next: usize,
    returned: Vec<usize>,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { next: 0, returned: Vec::new() });

/// Gives its lane back when its thread ends.
struct Lease(usize);

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = LANE.try_with(|lane| lane.set(SHARED_LANE));
        if self.0 < OWN_LANES {
            POOL.lock().unwrap_or_else(PoisonError::into_inner).returned.push(self.0);
        }
    }
}

#[inline]
fn lane() -> usize {
    // A thread that is ending has no lane any more.
    LANE.try_with(Cell::get).unwrap_or(SHARED_LANE)
}

/// The lane of a thread that has none of its own: the shared one, or a new one at the thread's first call.
#[cold]
fn assigned() -> usize {
    if lane() != UNASSIGNED {
        return SHARED_LANE;
    }
    let lane = {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        match pool.returned.pop() {
            Some(lane) => lane,
            None => {
                let lane = pool.next.min(SHARED_LANE);
                pool.next += 1;
                lane
            }
        }
    };
    let lease = Some(Lease(lane));
    if RETURN.try_with(|returned| returned.set(lease)).is_err() {
        return SHARED_LANE;
    }
    let _ = LANE.try_with(|place| place.set(lane));
    lane
}

#[derive(Default)]
#[repr(align(64))]
struct Lane {
    checks: AtomicU64,
    denials: AtomicU64,
}

/// How many checks a table has decided, and how many of them it refused.
pub(super) struct Lanes(Box<[Lane; OWN_LANES + 1]>);

impl Lanes {
    pub(super) fn new() -> Self {
        Self(Box::new(std::array::from_fn(|_| Lane::default())))
    }

    #[inline]
    pub(super) fn count_check(&self) {
        self.add_one(|lane| &lane.checks);
    }

    /// The same for a thread that has a lane of its own; `false` where it has none, or not yet, and nothing is counted.
    #[inline(always)]
    pub(super) fn count_check_alone(&self) -> bool {
        let [own @ .., _] = &*self.0;
        own.get(lane()).map(|lane| add_alone(&lane.checks)).is_some()
    }

    #[inline]
    pub(super) fn count_denial(&self) {
        self.add_one(|lane| &lane.denials);
    }

    #[inline]
    fn add_one(&self, count: impl Fn(&Lane) -> &AtomicU64) {
        let [own @ .., shared] = &*self.0;
        match own.get(lane()) {
            Some(lane) => add_alone(count(lane)),
            None => add_in_company(own.get(assigned()).map_or(count(shared), count)),
        }
    }

    /// Checks and denials so far.
    pub(super) fn sums(&self) -> (u64, u64) {
        self.0.iter().fold((0, 0), |(checks, denials), lane| {
            (checks + lane.checks.load(Ordering::Relaxed), denials + lane.denials.load(Ordering::Relaxed))
        })
    }
}

/// Adds to a count that no other thread writes.
#[inline]
fn add_alone(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

#[cold]
fn add_in_company(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_between_threads_also_beyond_the_lanes() {
        let lanes = Lanes::new();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..OWN_LANES + 20 {
                    scope.spawn(|| (0..100).for_each(|_| lanes.count_check()));
                }
            });
        }
        assert_eq!(lanes.sums().0, 3 * 100 * (OWN_LANES as u64 + 20));
    }
}
