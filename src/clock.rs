//! The only reader of time.
//!
//! Two readings are offered. The coarse one costs about 6 ns and steps every 1 to 10 ms, as the kernel was built; it
//! is never ahead of the precise one, so a decision made with it can refuse too much but never admit too much. The
//! precise one costs about 30 ns; a limiter takes it only to look again before it refuses.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::time::{Now, Timestamp, WallTime};

/// Where a limiter reads the time: the system, or a clock that a test sets by hand.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Manual(ManualClock),
}

impl Clock {
    /// The system's clocks.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A cheap reading, up to one step of the kernel's tick behind [`Clock::precise`]. The wall clock is read only
    /// where `wall` asks for it, and is the epoch itself elsewhere.
    #[inline]
    pub(crate) fn coarse(&self, wall: bool) -> Now {
        match &self.0 {
            Source::System => Now {
                mono: system::monotonic_coarse(),
                wall: if wall { system::wall_coarse() } else { WallTime::default() },
            },
            Source::Manual(clock) => clock.now(),
        }
    }

    /// The [coarse](Self::coarse) reading of the monotonic clock alone. Compiled here, once, and a call of its own, so that what
    /// comes after it has the processor's registers to itself.
    #[inline(never)]
    pub(crate) fn tick(&self) -> Timestamp {
        match &self.0 {
            Source::System => system::monotonic_coarse(),
            Source::Manual(clock) => clock.now().mono,
        }
    }

    /// The same of the wall clock.
    #[inline(never)]
    pub(crate) fn wall_tick(&self) -> WallTime {
        match &self.0 {
            Source::System => system::wall_coarse(),
            Source::Manual(clock) => clock.now().wall,
        }
    }

    /// An exact reading, of the wall clock only where `wall` asks for it.
    #[inline]
    pub(crate) fn exact(&self, wall: bool) -> Now {
        match &self.0 {
            Source::System => Now {
                mono: system::monotonic(),
                wall: if wall { system::wall() } else { WallTime::default() },
            },
            Source::Manual(clock) => clock.now(),
        }
    }

    /// An exact reading of both clocks.
    pub fn precise(&self) -> Now {
        self.exact(true)
    }

    /// Waits until so much time has passed on this clock: for the system's, by tokio's timer, which needs a runtime that has
    /// one.
    #[cfg(feature = "acquire")]
    pub(crate) async fn sleep(&self, duration: Duration) {
        match &self.0 {
            _ if duration.is_zero() => {}
            Source::System => tokio::time::sleep(duration).await,
            Source::Manual(clock) => clock.sleep(duration).await,
        }
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Self {
        Self(Source::Manual(clock))
    }
}

/// A clock that stands still until it is told to move, for tests of code that limits.
///
/// ```
/// use std::time::Duration;
/// use ratemesh::{Limit, Limiter, ManualClock, Quota};
///
/// let clock = ManualClock::new();
/// let limit = Limit::token_bucket("logins", Quota::per_minute(1)).build()?;
/// let limiter = Limiter::with_clock(limit, clock.clone());
/// assert!(limiter.check("alice").is_allowed());
/// assert!(!limiter.check("alice").is_allowed());
/// clock.advance(Duration::from_secs(60));
/// assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), ratemesh::LimitError>(())
/// ```
///
/// With the feature `acquire`, who waits for units waits by this clock too: moving it forward wakes those whose time has
/// come.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Hands>);

#[derive(Debug)]
struct Hands {
    now: Mutex<Now>,
    #[cfg(feature = "acquire")]
    moved: tokio::sync::Notify,
}

impl ManualClock {
    /// A clock that stands at 2020-01-01T00:00:00Z.
    pub fn new() -> Self {
        const NANOS_2020: u64 = 1_577_836_800_000_000_000;
        let start = Now { mono: Timestamp::from_millis(1_000), wall: WallTime::from_unix_nanos(NANOS_2020) };
        Self(Arc::new(Hands {
            now: Mutex::new(start),
            #[cfg(feature = "acquire")]
            moved: tokio::sync::Notify::new(),
        }))
    }

    /// Moves both clocks forward.
    pub fn advance(&self, duration: Duration) {
        let now = self.now().after(duration);
        self.set(now);
    }

    /// Sets both clocks, also backwards.
    pub fn set(&self, now: Now) {
        *self.lock() = now;
        #[cfg(feature = "acquire")]
        self.0.moved.notify_waiters();
    }

    #[cfg(feature = "acquire")]
    async fn sleep(&self, duration: Duration) {
        let until = self.now().mono.after(duration);
        loop {
            let mut moved = std::pin::pin!(self.0.moved.notified());
            // Before the clock is read, so that no move of it is missed.
            moved.as_mut().enable();
            if self.now().mono >= until {
                return;
            }
            moved.await;
        }
    }

    /// What the clock shows.
    #[cold]
    pub fn now(&self) -> Now {
        *self.lock()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Now> {
        self.0.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    use super::{Timestamp, WallTime};

    #[inline]
    fn nanos(time: Timespec) -> u64 {
        // Neither clock is before its origin on a machine that keeps time at all.
        (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
    }

    #[inline]
    pub(super) fn monotonic_coarse() -> Timestamp {
        Timestamp::from_nanos(nanos(clock_gettime(ClockId::MonotonicCoarse)))
    }

    #[inline]
    pub(super) fn wall_coarse() -> WallTime {
        WallTime::from_unix_nanos(nanos(clock_gettime(ClockId::RealtimeCoarse)))
    }

    pub(super) fn monotonic() -> Timestamp {
        Timestamp::from_nanos(nanos(clock_gettime(ClockId::Monotonic)))
    }

    pub(super) fn wall() -> WallTime {
        WallTime::from_unix_nanos(nanos(clock_gettime(ClockId::Realtime)))
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    #![allow(clippy::disallowed_methods, reason = "this is clock.rs")]
    use std::{
        sync::OnceLock,
        time::{Instant, SystemTime, UNIX_EPOCH},
    };

    use super::{Timestamp, WallTime};
    use crate::time::saturating_nanos;

    static ORIGIN: OnceLock<Instant> = OnceLock::new();

    pub(super) fn monotonic() -> Timestamp {
        // One second on, so that readings before the origin can be told from it.
        Timestamp::from_nanos(1_000_000_000 + saturating_nanos(ORIGIN.get_or_init(Instant::now).elapsed()))
    }

    pub(super) fn wall() -> WallTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallTime::from_unix_nanos(saturating_nanos(since))
    }

    pub(super) fn monotonic_coarse() -> Timestamp {
        monotonic()
    }

    pub(super) fn wall_coarse() -> WallTime {
        wall()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarse_clock_is_never_ahead_of_the_precise_one() {
        let clock = Clock::system();
        for _ in 0..10_000 {
            let coarse = clock.coarse(true);
            let precise = clock.precise();
            assert!(coarse.mono <= precise.mono);
            assert!(precise.mono.since(coarse.mono) < Duration::from_secs(5));
        }
    }
}
