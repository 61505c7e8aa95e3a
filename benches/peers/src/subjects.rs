//! The limiters under comparison, behind one trait.

use std::{
    future::{Future, pending},
    hash::Hash,
    io,
    net::SocketAddr,
    num::NonZeroU32,
    time::Duration,
};

use governor::{
    RateLimiter,
    clock::{Clock, QuantaUpkeepClock},
    middleware::NoOpMiddleware,
    state::keyed::DashMapStateStore,
};
use ratemesh::{KeyHandle, KeySource, Limit, Limiter, Quota};

use crate::Failure;

/// A limiter with keys of one type.
pub trait Subject<K>: Send + Sync {
    /// Whether one more request for the key is admitted.
    fn admits(&self, key: &K) -> bool;
}

/// What the limit of a case does with the case's requests.
///
/// The quotas are chosen so that a check never changes how the next one goes: nothing comes back between two checks of
/// a key, or far more than was taken. So each limiter is measured on one path, and the counts are asserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Every request is admitted: one unit an hour comes back, and the bucket holds more than a run can spend. Since no
    /// bucket is ever full again, no limiter has reason to give up a key, and all keys stay live.
    Ample,
    /// Every request but a key's first is refused: its bucket holds one unit, and takes an hour to refill.
    Scarce,
    /// A thousand units a second, asked for much faster: nearly every request is refused, and each refusal depends on
    /// the exact time.
    Fast,
    /// Every request is admitted, and finds its key's bucket full again, as with most keys of a service under no attack:
    /// a million units a second, and a second's burst.
    Full,
}

/// Live keys that a limiter has to have room for: those of the largest case.
pub const MAX_KEYS: usize = 1 << 20;

impl Plan {
    /// The share of `checks` that has to be admitted, as a range of counts.
    pub fn expected(self, checks: usize) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Ample | Self::Full => checks..=checks,
            Self::Scarce => 0..=0,
            Self::Fast => 0..=checks / 10,
        }
    }

    /// The limit's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ample => "ample",
            Self::Scarce => "scarce",
            Self::Fast => "fast",
            Self::Full => "full",
        }
    }

    /// The limit as ratemesh takes it.
    pub fn limit(self) -> Result<Limit, Failure> {
        self.limit_named(self.name())
    }

    /// The same under another name.
    pub fn limit_named(self, name: &str) -> Result<Limit, Failure> {
        let (quota, burst) = match self {
            Self::Ample => (Quota::per_hour(1), 1 << 40),
            Self::Scarce => (Quota::per_hour(1), 1),
            Self::Fast => (Quota::per_second(1_000), 1),
            Self::Full => (Quota::per_second(1_000_000), 1_000_000),
        };
        Ok(Limit::token_bucket(name, quota).burst(burst).max_keys(MAX_KEYS).build()?)
    }

    fn governors(self) -> governor::Quota {
        let (period, burst) = self.governors_terms();
        let quota =
            governor::Quota::with_period(period).unwrap_or(governor::Quota::per_second(NonZeroU32::MIN));
        quota.allow_burst(NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN))
    }

    /// How often governor gives a unit back, and how many it lets come together.
    pub fn governors_terms(self) -> (Duration, u32) {
        match self {
            // A second, since an hour times so large a burst is more nanoseconds than 64 bits count.
            Self::Ample => (Duration::from_secs(1), u32::MAX),
            Self::Scarce => (Duration::from_secs(3_600), 1),
            Self::Fast => (Duration::from_millis(1), 1),
            Self::Full => (Duration::from_micros(1), 1_000_000),
        }
    }

    fn rateguards(self) -> rateguard::Limit {
        match self {
            // Its burst holds four million at most, so it has to refill: one unit a nanosecond, the most it knows.
            Self::Ample => rateguard::Limit::per_second(u32::MAX),
            Self::Scarce => rateguard::Limit::per_hour(1).burst(1),
            Self::Fast => rateguard::Limit::per_second(1_000).burst(1),
            Self::Full => rateguard::Limit::per_second(1_000_000).burst(1_000_000),
        }
    }
}

impl<K: KeySource + Send + Sync> Subject<K> for Limiter {
    #[inline]
    fn admits(&self, key: &K) -> bool {
        self.check(key).is_allowed()
    }
}

impl<K> Subject<K> for KeyHandle {
    #[inline]
    fn admits(&self, _: &K) -> bool {
        self.check().is_allowed()
    }
}

/// governor's keyed limiter over a `DashMap` with std's hasher: its default.
pub type Governor<K, C> = RateLimiter<K, DashMapStateStore<K>, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// governor with a clock.
pub fn governor<K: Hash + Eq + Clone, C: Clock>(plan: Plan, clock: C) -> Governor<K, C> {
    RateLimiter::dashmap_with_clock(plan.governors(), clock)
}

/// governor's cached clock: a thread reads the time once a millisecond. There can be one in a process.
pub fn cached_clock() -> Result<QuantaUpkeepClock, Failure> {
    QuantaUpkeepClock::from_interval(Duration::from_millis(1)).map_err(|error| error.to_string().into())
}

impl<K, C> Subject<K> for Governor<K, C>
where
    K: Hash + Eq + Clone + Send + Sync,
    C: Clock + Send + Sync,
    C::Instant: Send + Sync,
{
    #[inline]
    fn admits(&self, key: &K) -> bool {
        self.check_key(key).is_ok()
    }
}

/// rateguard's guard. Its background task never runs, so that only its checks are measured, and it has no network.
pub struct Guard {
    guard: rateguard::Guard,
    /// Never driven, but the guard's task lives in it.
    _runtime: tokio::runtime::Runtime,
}

struct NoNetwork;

impl rateguard::Transport for NoNetwork {
    fn send_to(&self, _: &[u8], _: SocketAddr) -> impl Future<Output = io::Result<usize>> + Send {
        pending()
    }

    fn recv_from(&self, _: &mut [u8]) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + Send {
        pending()
    }
}

impl Guard {
    /// A guard that is the whole cluster, with room for so many keys.
    pub fn new(plan: Plan, keys: usize) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let context = runtime.enter();
        let guard = rateguard::Guard::builder()
            .bind("127.0.0.1:7946")
            .default_limit(plan.rateguards())
            .tracked_keys(keys.clamp(4_096, MAX_KEYS))
            .spawn_on(NoNetwork)?;
        drop(context);
        Ok(Self { guard, _runtime: runtime })
    }
}

impl Subject<String> for Guard {
    #[inline]
    fn admits(&self, key: &String) -> bool {
        self.guard.check(key).is_allowed()
    }
}

/// One reading of std's clock, as a measure of time. It admits everything.
pub struct ClockReading;

impl<K> Subject<K> for ClockReading {
    #[inline]
    fn admits(&self, _: &K) -> bool {
        std::hint::black_box(std::time::Instant::now());
        true
    }
}
