//! Refusals, counted rather than told one by one: a flood of them must not flood the log.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::time::Timestamp;

/// How long refusals are gathered into one event.
const INTERVAL: Duration = Duration::from_secs(1);

/// Tells when to log: the first at once, then how many there were, at most once a second.
///
/// What was gathered when a flood ends is due with the next request through the gate, whether it is refused or not.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    gathered: AtomicU64,
    /// When the last event was due, in nanoseconds, plus one; 0 before the first.
    last: AtomicU64,
}

impl RefusalLog {
    /// Counts a refusal; returns how many to log now.
    pub(super) fn note(&self, now: Timestamp) -> Option<u64> {
        self.gathered.fetch_add(1, Relaxed);
        self.due(now)
    }

    /// Whether no refusals wait to be logged.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.gathered.load(Relaxed) == 0
    }

    /// Returns how many refusals are still to be logged, if it is time to.
    pub(super) fn due(&self, now: Timestamp) -> Option<u64> {
        if self.is_quiet() {
            return None;
        }
        let last = self.last.load(Relaxed);
        let waited = last == 0 || now.since(Timestamp::from_nanos(last - 1)) >= INTERVAL;
        let next = now.as_nanos().saturating_add(1);
        // Of several threads that find it time, one gets to log.
        if !waited || self.last.compare_exchange(last, next, Relaxed, Relaxed).is_err() {
            return None;
        }
        Some(self.gathered.swap(0, Relaxed)).filter(|refusals| *refusals > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_logged_at_once_and_the_rest_by_the_second() {
        let log = RefusalLog::default();
        let at = Timestamp::from_millis;
        assert_eq!(log.due(at(0)), None);
        assert_eq!(log.note(at(0)), Some(1));
        assert_eq!(log.note(at(1)), None);
        assert_eq!(log.note(at(999)), None);
        assert_eq!(log.note(at(1_000)), Some(3));
        assert_eq!(log.note(at(1_500)), None);
        assert_eq!(log.due(at(1_900)), None);
        assert_eq!(log.due(at(60_000)), Some(1));
        assert_eq!(log.due(at(70_000)), None);
        assert_eq!(log.note(at(70_000)), Some(1));
    }

    #[test]
    fn no_refusal_is_lost_or_told_twice() {
        const EACH: u64 = 10_000;
        let log = RefusalLog::default();
        let told: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let log = &log;
                    let tell = move |i| log.note(Timestamp::from_millis(i * 7)).unwrap_or(0);
                    scope.spawn(move || (0..EACH).map(tell).sum::<u64>())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let left = log.due(Timestamp::from_millis(u64::MAX)).unwrap_or(0);
        assert_eq!(told + left, 4 * EACH);
    }
}
