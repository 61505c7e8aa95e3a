//! A named rule, checked when it is built and immutable afterwards.

mod builder;
mod variant;

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use crate::{
    algorithm::{Meter, sliding_window::Cut},
    error::CostError,
    key::Key,
    lists::Lists,
    time::{Now, WallTime, saturating_nanos},
};
pub use builder::LimitBuilder;

/// The highest rate a quota may have, in units per second.
pub const MAX_UNITS_PER_SECOND: u64 = 100_000_000;
/// The largest number of units that a quota or a burst may have.
pub const MAX_UNITS: u64 = 1 << 40;
/// The shortest period of a quota.
pub const MIN_PERIOD: Duration = Duration::from_micros(1);
/// The longest period of a quota: 400 days.
pub const MAX_PERIOD: Duration = Duration::from_secs(400 * 86_400);
/// The longest name of a limit, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The most quotas that one limit can have.
pub const MAX_BANDS: usize = 8;
/// The most different quotas that a limit can give to single keys. In the life of a process there can be two and a half times as
/// many, those that were changed at run time included.
pub const MAX_QUOTAS: usize = 50;
/// The live keys that a limit holds unless told otherwise.
pub const DEFAULT_MAX_KEYS: usize = 1_000_000;
/// The most live keys that a limit can be told to hold.
pub const MAX_KEYS: usize = 1 << 28;

/// The finest cut of a sliding window.
pub const MAX_PRECISION: u16 = 1_000;
/// How a sliding window is cut unless told otherwise.
pub const DEFAULT_PRECISION: u16 = 10;

/// A month of the Gregorian calendar on average, which is what a quota per month says its period is.
const MONTH: Duration = Duration::from_secs(31_556_952 / 12);

/// So many units per so much time.
///
/// The constructors name their unit of time; none of them takes a bare interval. A quota is checked when a
/// [`Limit`] is built with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quota {
    units: u64,
    period: Duration,
}

impl Quota {
    /// `units` in each period of this length.
    pub const fn new(units: u64, period: Duration) -> Self {
        Self { units, period }
    }

    /// `units` per second.
    pub const fn per_second(units: u64) -> Self {
        Self::new(units, Duration::from_secs(1))
    }

    /// `units` per minute.
    pub const fn per_minute(units: u64) -> Self {
        Self::new(units, Duration::from_secs(60))
    }

    /// `units` per hour.
    pub const fn per_hour(units: u64) -> Self {
        Self::new(units, Duration::from_secs(3_600))
    }

    /// `units` per day of 24 hours.
    pub const fn per_day(units: u64) -> Self {
        Self::new(units, Duration::from_secs(86_400))
    }

    /// `units` per month, of 30.4 days on average.
    pub const fn per_month(units: u64) -> Self {
        Self::new(units, MONTH)
    }

    /// So many units at a time, which is what a limit on [concurrency](Limit::concurrency) has for a quota: there is no period.
    pub const fn at_a_time(units: u64) -> Self {
        Self::new(units, Duration::ZERO)
    }

    /// How many units one period brings.
    pub const fn units(self) -> u64 {
        self.units
    }

    /// The length of a period.
    pub const fn period(self) -> Duration {
        self.period
    }

    /// Units per second, as a fraction; 0 where there is no period.
    pub fn units_per_second(self) -> f64 {
        if self.period.is_zero() { 0.0 } else { self.units as f64 / self.period.as_secs_f64() }
    }
}

/// How a limit decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// A bucket of `burst` units that refills continuously at the quota's rate.
    TokenBucket {
        /// The most units that can be spent at once.
        burst: u64,
    },
    /// A bucket that runs out at the quota's rate and takes the next request only when it is empty: a request's units
    /// pass one by one, evenly, and there is no burst.
    LeakyBucket {
        /// The most units that one request may have, and that may wait to pass.
        queue: u64,
    },
    /// The quota's units in each window of the quota's period; see [`Windows`] for when they begin.
    FixedWindow,
    /// The quota's units in any window of the quota's period, wherever it begins.
    SlidingWindow {
        /// How many sub-windows the period is cut into. 1 is an estimate from two windows, which up to twice the quota
        /// can pass in the worst case; above 1, no window of the period's length ever admits more than the quota, and a
        /// unit comes back up to one sub-window late.
        precision: u16,
    },
    /// So many units at a time, each until it is given back. There is no period.
    Concurrency,
}

/// When fixed windows begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Windows {
    /// At whole multiples of the period since 1970-01-01T00:00:00Z: minutes, hours and days begin when clocks say so.
    #[default]
    Aligned,
    /// At a time of each key's own, the same on all nodes, so that a million keys do not begin anew in one instant.
    Staggered,
    /// On the first of each month, in UTC.
    Months,
}

#[cfg(any(feature = "net", feature = "sim"))]
impl Algorithm {
    /// What a configuration calls it.
    fn name(self) -> &'static str {
        match self {
            Self::TokenBucket { .. } => "token_bucket",
            Self::LeakyBucket { .. } => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow { .. } => "sliding_window",
            Self::Concurrency => "concurrency",
        }
    }
}

#[cfg(any(feature = "net", feature = "sim"))]
impl Windows {
    /// What a configuration calls them.
    fn name(self) -> &'static str {
        match self {
            Self::Aligned => "aligned",
            Self::Staggered => "staggered",
            Self::Months => "months",
        }
    }
}

/// What a node does about peers that it cannot hear.
///
/// A peer that has said that it stops is not one of them. It spends nothing, so nothing is assumed of it and its part of
/// the quota is free; `Open` and `Closed` do not apply for its sake. When it is started again it is heard again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnPartition {
    /// Each side admits the full quota: available, and at most k times the quota in k parts.
    #[default]
    Local,
    /// Each unreachable node is taken to be spending its share, quota ÷ nodes: the fleet keeps to the quota.
    Share,
    /// Each unreachable node is taken to go on spending as it last said it would.
    LastDemand,
    /// Everything is admitted while a peer is unreachable.
    Open,
    /// Everything is refused while a peer is unreachable.
    Closed,
}

/// What happens to a key that finds no room among the limit's live keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// All keys that find no room share one bucket of the limit's size.
    #[default]
    SharedBucket,
    /// They are admitted, uncounted.
    Open,
    /// They are refused.
    Closed,
}

/// A named rule: an algorithm, its quota, and what happens at the edges.
///
/// ```
/// use ratemesh::{Limit, Quota};
///
/// let limit = Limit::token_bucket("api", Quota::per_second(1_000)).burst(100).build()?;
/// assert_eq!(limit.name(), "api");
/// # Ok::<(), ratemesh::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    rule: Rule,
    meter: Meter,
    /// The most that all quotas hold.
    largest_cost: u64,
    /// Units that may be waited for.
    queue: u64,
    /// What the limit's quotas after the first would be as limits of their own.
    further: Option<Arc<[Limit]>>,
}

/// What a limit says, in the user's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    name: Arc<str>,
    /// Which of the limit's quotas it is, from 0.
    band: u8,
    quota: Quota,
    algorithm: Algorithm,
    windows: Windows,
    on_partition: OnPartition,
    on_full: OnFull,
    max_keys: usize,
    /// How long a key is banned that the limit refuses.
    ban: Option<Duration>,
    count_denied: bool,
    shadow: bool,
    /// Allowed and denied keys and networks, where there are any.
    lists: Option<Arc<Lists>>,
}

impl Limit {
    /// Starts a limit whose bucket refills at `quota`; its burst is the quota's units until
    /// [`burst`](LimitBuilder::burst) says otherwise.
    ///
    /// One node admits at most `burst + rate × t` in any interval of length t, and refuses nothing that this allows.
    pub fn token_bucket(name: &str, quota: Quota) -> LimitBuilder {
        LimitBuilder::new(name, quota, Algorithm::TokenBucket { burst: quota.units })
    }

    /// Starts a limit of `quota.units()` in each window of `quota.period()`.
    pub fn fixed_window(name: &str, quota: Quota) -> LimitBuilder {
        LimitBuilder::new(name, quota, Algorithm::FixedWindow)
    }

    /// Starts a limit of `units` in each month of the calendar, in UTC.
    pub fn monthly(name: &str, units: u64) -> LimitBuilder {
        let mut builder = LimitBuilder::new(name, Quota::per_month(units), Algorithm::FixedWindow);
        builder.rule.windows = Windows::Months;
        builder
    }

    /// Starts a limit through which units pass evenly, at the quota's rate and without a burst. A check passes when
    /// the last one's units have run out; what is asked for meanwhile is refused, or waits.
    pub fn leaky_bucket(name: &str, quota: Quota) -> LimitBuilder {
        LimitBuilder::new(name, quota, Algorithm::LeakyBucket { queue: quota.units })
    }

    /// Starts a limit of `quota.units()` in any window of `quota.period()`, cut into [`DEFAULT_PRECISION`] sub-windows
    /// until [`precision`](LimitBuilder::precision) says otherwise.
    pub fn sliding_window(name: &str, quota: Quota) -> LimitBuilder {
        LimitBuilder::new(name, quota, Algorithm::SlidingWindow { precision: DEFAULT_PRECISION })
    }

    /// Starts a limit of `permits` at a time: what is spent comes back when it is given back, and not before.
    ///
    /// Ask with [`reserve`](crate::Limiter::reserve), or `acquire`: their [`Permit`](crate::Permit) gives back what it holds when
    /// it is dropped. What a plain `check` spends comes back by [`refund`](crate::Limiter::refund) alone.
    pub fn concurrency(name: &str, permits: u64) -> LimitBuilder {
        LimitBuilder::new(name, Quota::at_a_time(permits), Algorithm::Concurrency)
    }

    /// The name, which all nodes know the limit by.
    pub fn name(&self) -> &str {
        &self.rule.name
    }

    /// The name that peers know this quota by: further ones of a limit have a number after a mark that no limit's own
    /// name can have.
    #[cfg_attr(
        not(any(feature = "gossip", feature = "http")),
        allow(dead_code, reason = "only peers and header fields show it")
    )]
    pub(crate) fn wire_name(&self) -> Cow<'_, str> {
        match self.rule.band {
            0 => Cow::Borrowed(self.name()),
            band => Cow::Owned(format!("{}~{}", self.name(), band + 1)),
        }
    }

    /// The quota; the first, where there are several.
    pub fn quota(&self) -> Quota {
        self.rule.quota
    }

    /// Which of its limit's quotas this is, from 0.
    #[cfg_attr(
        not(any(feature = "gossip", feature = "http")),
        allow(dead_code, reason = "only a status or a header field tells")
    )]
    pub(crate) fn band(&self) -> usize {
        self.rule.band.into()
    }

    /// All quotas, in the order they were given; a request has to pass every one.
    pub fn quotas(&self) -> impl Iterator<Item = Quota> {
        std::iter::once(self.quota()).chain(self.further().iter().map(Limit::quota))
    }

    /// The quotas after the first, as limits of their own.
    pub(crate) fn further(&self) -> &[Limit] {
        self.further.as_deref().unwrap_or_default()
    }

    /// The largest cost that can ever pass: the smallest capacity of all quotas.
    pub fn largest_cost(&self) -> u64 {
        self.largest_cost
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.rule.algorithm
    }

    /// When the limit's windows begin, if it has fixed ones.
    pub fn windows(&self) -> Windows {
        self.rule.windows
    }

    /// The most units that are ever left: the burst of a bucket, the quota of a window, all permits; one unit of a leaky
    /// bucket. Where there are several quotas, this is the first one's, and [`largest_cost`](Self::largest_cost) is what can
    /// pass them all.
    pub fn capacity(&self) -> u64 {
        self.rule.capacity()
    }

    /// How the period is cut, where the window slides.
    pub(crate) fn cut(&self) -> Option<Cut> {
        match self.rule.algorithm {
            Algorithm::SlidingWindow { precision } => {
                Some(Cut::new(saturating_nanos(self.rule.quota.period), precision))
            }
            _ => None,
        }
    }

    /// The time by which a key's windows begin, where each has its own.
    pub(crate) fn own_time(&self, key: Key, now: Now) -> Now {
        if self.rule.windows != Windows::Staggered {
            return now;
        }
        let period = saturating_nanos(self.rule.quota.period).max(1);
        let shift = (key.digest() >> 64) as u64 % period;
        Now { wall: WallTime::from_unix_nanos(now.wall.as_unix_nanos().saturating_add(shift)), ..now }
    }

    /// Whether the window's number is the epoch of a share, which all nodes then agree on. Otherwise each actor counts
    /// its epochs by itself.
    pub(crate) fn has_common_epochs(&self) -> bool {
        self.meter.needs_wall() && self.rule.windows != Windows::Staggered
    }

    /// What the limit does about peers it cannot hear.
    pub fn on_partition(&self) -> OnPartition {
        self.rule.on_partition
    }

    /// What happens to a key that finds no room.
    pub fn on_full(&self) -> OnFull {
        self.rule.on_full
    }

    /// For how many units requests may wait at a time, for each key; [`largest_cost`](Self::largest_cost) unless set.
    pub fn queue(&self) -> u64 {
        self.queue
    }

    /// How many live keys the limit holds at most.
    pub fn max_keys(&self) -> usize {
        self.rule.max_keys
    }

    /// How long a key is banned that asks for more than the limit holds; `None` where it is not.
    pub fn ban_on_exceed(&self) -> Option<Duration> {
        self.rule.ban
    }

    /// Whether refused requests cost their units too.
    #[inline]
    pub fn counts_denied(&self) -> bool {
        self.rule.count_denied
    }

    /// Whether the limit is only tried out: it decides and counts, and refuses nothing.
    #[inline]
    pub fn is_shadow(&self) -> bool {
        self.rule.shadow
    }

    /// Whether a refusal has consequences for its key.
    #[inline]
    pub(crate) fn punishes(&self) -> bool {
        self.rule.count_denied || self.rule.ban.is_some()
    }

    /// The allow and deny lists and the keys' own quotas, where there are any.
    #[inline]
    pub(crate) fn lists(&self) -> Option<&Lists> {
        self.rule.lists.as_deref()
    }

    /// How long one epoch of a share lasts: an aligned window, `max(10 s, 2 × burst ÷ rate)` for a bucket, 10 seconds for
    /// permits, and `max(10 s, period)` for other windows.
    pub fn epoch_length(&self) -> Duration {
        match self.rule.algorithm {
            Algorithm::TokenBucket { burst } => self.epoch_of_bucket(burst),
            Algorithm::LeakyBucket { queue } => self.epoch_of_bucket(queue),
            Algorithm::FixedWindow if self.rule.windows == Windows::Staggered => self.epoch_of_windows(),
            Algorithm::FixedWindow => self.rule.quota.period,
            Algorithm::SlidingWindow { .. } => self.epoch_of_windows(),
            Algorithm::Concurrency => MIN_BUCKET_EPOCH,
        }
    }

    fn epoch_of_bucket(&self, burst: u64) -> Duration {
        let drain = self.rule.quota.period.as_secs_f64() * 2.0 * burst as f64 / self.rule.quota.units as f64;
        Duration::try_from_secs_f64(drain).unwrap_or(MAX_PERIOD).clamp(MIN_BUCKET_EPOCH, 2 * MAX_PERIOD)
    }

    /// Long enough that what an epoch holds has left every window when the epoch after the next begins.
    fn epoch_of_windows(&self) -> Duration {
        self.rule.quota.period.clamp(MIN_BUCKET_EPOCH, MAX_PERIOD)
    }

    /// Whether a [`Permit`](crate::Permit) that is dropped gives its units back: where they stand for something in hand,
    /// not for something done.
    pub fn permit_returns_on_drop(&self) -> bool {
        self.rule.algorithm == Algorithm::Concurrency
    }

    /// Whether `cost` can ever pass.
    #[inline]
    pub(crate) fn check_fits(&self, cost: u64) -> Result<(), CostError> {
        let capacity = self.largest_cost;
        if cost > capacity { Err(CostError { cost, capacity }) } else { Ok(()) }
    }

    /// The arithmetic that decides.
    #[inline]
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// A number that differs between limits that would decide differently, the same on every build. Nodes
    /// compare it to find out that their configurations have parted.
    pub fn fingerprint(&self) -> u64 {
        let (algorithm, burst) = match (self.rule.algorithm, self.rule.windows) {
            (Algorithm::TokenBucket { burst }, _) => (1, burst),
            (Algorithm::FixedWindow, Windows::Aligned) => (2, 0),
            (Algorithm::FixedWindow, Windows::Staggered) => (2, 1),
            (Algorithm::FixedWindow, Windows::Months) => (2, 2),
            (Algorithm::LeakyBucket { queue }, _) => (3, queue),
            (Algorithm::SlidingWindow { precision }, _) => (4, precision.into()),
            (Algorithm::Concurrency, _) => (5, 0),
        };
        let fields = [algorithm, burst, self.rule.quota.units, saturating_nanos(self.rule.quota.period)];
        let name = self.wire_name();
        let mut bytes = Vec::with_capacity(fields.len() * 8 + name.len());
        bytes.extend(fields.iter().flat_map(|field: &u64| field.to_le_bytes()));
        bytes.extend(name.as_bytes());
        self.rule.penalties(&mut bytes);
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

/// No epoch of a bucket is shorter, so that a share outlives any delay in the spreading of its last change.
const MIN_BUCKET_EPOCH: Duration = Duration::from_secs(10);

/// Why a limit could not be built: a field holds what it cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    limit: Arc<str>,
    field: &'static str,
    value: String,
    wanted: &'static str,
}

impl LimitError {
    /// The name of the limit.
    pub fn limit(&self) -> &str {
        &self.limit
    }

    /// The field that cannot stand: `name`, `quota`, `period`, `burst`, `queue`, `precision`, `windows`, `max_keys`, `on_exceed`,
    /// `allow`, `deny` or `overrides`; and `algorithm`, where a limit in use cannot change to it.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// What the field held.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What would do.
    pub fn wanted(&self) -> &'static str {
        self.wanted
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, field, value, wanted } = self;
        write!(f, "limit \"{limit}\": {field} = {value} will not do; it takes {wanted}")
    }
}

impl std::error::Error for LimitError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_field_the_value_and_what_would_do() {
        let cases = [
            (Limit::token_bucket("", Quota::per_second(1)), "name"),
            (Limit::token_bucket("a b", Quota::per_second(1)), "name"),
            (Limit::token_bucket("a", Quota::per_second(0)), "quota"),
            (Limit::token_bucket("a", Quota::per_second(MAX_UNITS_PER_SECOND + 1)), "quota"),
            (Limit::token_bucket("a", Quota::new(1, Duration::ZERO)), "period"),
            (Limit::token_bucket("a", Quota::new(1, Duration::MAX)), "period"),
            (Limit::token_bucket("a", Quota::per_second(1)).burst(0), "burst"),
            (Limit::fixed_window("a", Quota::per_second(1)).burst(5), "burst"),
            (Limit::token_bucket("a", Quota::per_second(1)).max_keys(0), "max_keys"),
            (Limit::token_bucket("a", Quota::per_second(1)).precision(5), "precision"),
            (Limit::concurrency("a", 5).and(Quota::per_second(1)), "quota"),
            (Limit::monthly("a", 5).and(Quota::per_second(1)), "quota"),
            (Limit::leaky_bucket("a", Quota::per_second(1)).queue(0), "queue"),
            (Limit::leaky_bucket("a", Quota::per_second(1)).burst(5), "burst"),
            (Limit::sliding_window("a", Quota::per_second(1)).precision(0), "precision"),
            (Limit::sliding_window("a", Quota::per_second(1)).precision(MAX_PRECISION + 1), "precision"),
            (Limit::sliding_window("a", Quota::new(1, Duration::from_micros(10))).precision(11), "precision"),
            (Limit::sliding_window("a", Quota::per_second(1)).staggered(), "windows"),
            (Limit::monthly("a", 5).staggered(), "windows"),
            (Limit::concurrency("a", 0), "quota"),
            (Limit::concurrency("a", 5).burst(5), "burst"),
            (Limit::token_bucket("a", Quota::per_second(1)).ban_on_exceed(Duration::ZERO), "on_exceed"),
            (Limit::token_bucket("a", Quota::per_second(1)).ban_on_exceed(Duration::MAX), "on_exceed"),
            (Limit::token_bucket("a", Quota::per_second(1)).allow("10.0.0.1/8"), "allow"),
            (Limit::token_bucket("a", Quota::per_second(1)).deny("alice"), "deny"),
        ];
        for (builder, field) in cases {
            let error = builder.build().unwrap_err();
            assert_eq!(error.field(), field);
            let text = error.to_string();
            assert!(text.contains(error.value()) && text.contains(error.wanted()), "{text}");
        }
    }

    #[test]
    fn constructors_name_their_unit() {
        assert_eq!(Quota::per_second(4_000).units_per_second(), 4_000.0);
        assert_eq!(Quota::per_minute(60).units_per_second(), 1.0);
        assert_eq!(Quota::per_hour(3_600).units_per_second(), 1.0);
        assert_eq!(Quota::per_day(86_400).units_per_second(), 1.0);
    }

    #[test]
    fn limits_that_decide_differently_have_other_fingerprints() {
        let base = || Limit::token_bucket("a", Quota::per_second(10));
        let prints = [
            base().build(),
            base().burst(11).build(),
            Limit::token_bucket("b", Quota::per_second(10)).build(),
            Limit::token_bucket("a", Quota::per_minute(10)).build(),
            Limit::fixed_window("a", Quota::per_second(10)).build(),
            Limit::fixed_window("a", Quota::per_second(10)).staggered().build(),
            Limit::monthly("a", 10).build(),
            Limit::leaky_bucket("a", Quota::per_second(10)).build(),
            Limit::leaky_bucket("a", Quota::per_second(10)).queue(1).build(),
            Limit::sliding_window("a", Quota::per_second(10)).build(),
            Limit::sliding_window("a", Quota::per_second(10)).precision(1).build(),
            Limit::concurrency("a", 10).build(),
            base().shadow(true).build(),
            base().count_denied(true).build(),
            base().ban_on_exceed(Duration::from_secs(1)).build(),
            base().allow("10.0.0.0/8").build(),
            base().deny("10.0.0.0/8").build(),
            base().deny("key:10.0.0.0/8").build(),
        ]
        .map(|limit| limit.unwrap().fingerprint());
        let distinct: std::collections::BTreeSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
    }
}
