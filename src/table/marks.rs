//! Which keys the gossip has to look at: those that changed since they were published, and those that cannot wait.
//!
//! A key is noted at most once in each list between two looks, so the lists are bounded by the live keys.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use super::give_back::Late;

/// Called when a key cannot wait for the next heartbeat.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// Refunds of ended epochs that wait for the gossip; those beyond are not given back.
const MAX_LATE: usize = 65_536;

/// Notes of changed keys.
pub(crate) struct Marks {
    /// Unpublished units at which a key cannot wait; 0 while nobody listens.
    pub(super) threshold: AtomicU64,
    changed: List,
    urgent: List,
    late: Mutex<Vec<Late>>,
    wake: OnceLock<Wake>,
}

/// Slots; on a cache line of their own, since what lies beside them is read by every check.
#[derive(Default)]
#[repr(align(64))]
struct List(Mutex<Vec<u32>>);

impl List {
    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Marks {
    pub(super) fn new() -> Self {
        Self {
            threshold: AtomicU64::new(0),
            changed: List::default(),
            urgent: List::default(),
            late: Mutex::default(),
            wake: OnceLock::new(),
        }
    }

    /// Sets how many units may be unpublished before a key is urgent.
    pub(crate) fn set_threshold(&self, units: u64) {
        self.threshold.store(units.max(1), Ordering::Relaxed);
    }

    /// Whether there is gossip to tell.
    pub(super) fn is_heard(&self) -> bool {
        self.threshold.load(Ordering::Relaxed) != 0
    }

    /// Notes that the key in `slot` has changed.
    #[cold]
    pub(super) fn note_changed(&self, slot: u32) {
        self.changed.lock().push(slot);
    }

    /// Notes that the key in `slot` cannot wait, and wakes the gossip if it may be asleep.
    #[cold]
    pub(super) fn note_urgent(&self, slot: u32) {
        let first = {
            let mut urgent = self.urgent.lock();
            urgent.push(slot);
            urgent.len() == 1
        };
        if first {
            self.wake();
        }
    }

    /// Wakes the gossip.
    #[cold]
    pub(super) fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Hands units of an ended epoch over to the gossip; `false` where there are too many already.
    pub(super) fn hand_over(&self, late: Late) -> bool {
        let mut waiting = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let room = waiting.len() < MAX_LATE;
        if room {
            waiting.push(late);
        }
        room
    }

    /// Takes what was handed over.
    pub(crate) fn take_late(&self) -> Vec<Late> {
        std::mem::take(&mut self.late.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_wake(&self, wake: Wake) {
        // A table keeps its first listener: gossip that starts again goes through the same driver.
        let _ = self.wake.set(wake);
    }

    /// Moves the changed keys into `into`, oldest first, `most` at most; the others stay for the next time.
    pub(crate) fn take_changed(&self, into: &mut Vec<u32>, most: usize) {
        let mut changed = self.changed.lock();
        if changed.len() <= most && into.is_empty() {
            std::mem::swap(&mut *changed, into);
        } else {
            let count = most.min(changed.len());
            into.extend(changed.drain(..count));
        }
    }

    /// Moves the urgent keys into `into`.
    pub(crate) fn take_urgent(&self, into: &mut Vec<u32>) {
        into.append(&mut self.urgent.lock());
    }
}
