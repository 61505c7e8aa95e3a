//! A named rule, checked when it is built and immutable afterwards.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    algorithm::Meter,
    error::CostError,
    lists::{ENTRY, Lists, Override},
    notice::MAX_BAN,
    time::saturating_nanos,
};

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
/// The live keys that a limit holds unless told otherwise.
pub const DEFAULT_MAX_KEYS: usize = 1_000_000;
/// The most live keys that a limit can be told to hold.
pub const MAX_KEYS: usize = 1 << 28;

/// So many units per so much time.
///
/// The constructors name their unit of time; none of them takes a bare interval. A quota is checked when a
/// [`Limit`] is built with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// How many units one period brings.
    pub const fn units(self) -> u64 {
        self.units
    }

    /// The length of a period.
    pub const fn period(self) -> Duration {
        self.period
    }

    /// Units per second, as a fraction.
    pub fn units_per_second(self) -> f64 {
        self.units as f64 / self.period.as_secs_f64()
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
    /// The quota's units in each window of the quota's period, windows aligned to the Unix epoch.
    FixedWindow,
}

/// What a node does about peers that it cannot hear.
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
}

/// What a limit says, in the user's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    name: Arc<str>,
    quota: Quota,
    algorithm: Algorithm,
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
    pub fn token_bucket(name: &str, quota: Quota) -> LimitBuilder {
        LimitBuilder::new(name, quota, Algorithm::TokenBucket { burst: quota.units })
    }

    /// Starts a limit of `quota.units()` in each window of `quota.period()`.
    pub fn fixed_window(name: &str, quota: Quota) -> LimitBuilder {
        LimitBuilder::new(name, quota, Algorithm::FixedWindow)
    }

    /// The name, which all nodes know the limit by.
    pub fn name(&self) -> &str {
        &self.rule.name
    }

    /// The quota.
    pub fn quota(&self) -> Quota {
        self.rule.quota
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.rule.algorithm
    }

    /// The most units that can be spent at once: the burst of a bucket, the quota of a window.
    pub fn capacity(&self) -> u64 {
        self.rule.capacity()
    }

    /// What the limit does about peers it cannot hear.
    pub fn on_partition(&self) -> OnPartition {
        self.rule.on_partition
    }

    /// What happens to a key that finds no room.
    pub fn on_full(&self) -> OnFull {
        self.rule.on_full
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

    /// The allow and deny lists, where there are any.
    #[inline]
    pub(crate) fn lists(&self) -> Option<&Lists> {
        self.rule.lists.as_deref()
    }

    /// How long one epoch of a share lasts: a window, or `max(10 s, 2 × burst ÷ rate)` for a bucket.
    pub fn epoch_length(&self) -> Duration {
        match self.rule.algorithm {
            Algorithm::TokenBucket { burst } => {
                let drain =
                    self.rule.quota.period.as_secs_f64() * 2.0 * burst as f64 / self.rule.quota.units as f64;
                Duration::try_from_secs_f64(drain)
                    .unwrap_or(MAX_PERIOD)
                    .clamp(MIN_BUCKET_EPOCH, 2 * MAX_PERIOD)
            }
            Algorithm::FixedWindow => self.rule.quota.period,
        }
    }

    /// Whether `cost` can ever pass.
    #[inline]
    pub(crate) fn check_fits(&self, cost: u64) -> Result<(), CostError> {
        let capacity = self.capacity();
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
        let (algorithm, burst) = match self.rule.algorithm {
            Algorithm::TokenBucket { burst } => (1, burst),
            Algorithm::FixedWindow => (2, 0),
        };
        let fields = [algorithm, burst, self.rule.quota.units, saturating_nanos(self.rule.quota.period)];
        let mut bytes = Vec::with_capacity(fields.len() * 8 + self.rule.name.len());
        bytes.extend(fields.iter().flat_map(|field: &u64| field.to_le_bytes()));
        bytes.extend(self.rule.name.as_bytes());
        self.rule.penalties(&mut bytes);
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

/// No epoch of a bucket is shorter, so that a share outlives any delay in the spreading of its last change.
const MIN_BUCKET_EPOCH: Duration = Duration::from_secs(10);

/// A [`Limit`] being put together.
#[derive(Clone, Debug)]
#[must_use = "a limit comes out of `build`"]
pub struct LimitBuilder {
    rule: Rule,
    burst: Option<u64>,
    listed: Vec<(String, Override)>,
}

impl LimitBuilder {
    fn new(name: &str, quota: Quota, algorithm: Algorithm) -> Self {
        let rule = Rule {
            name: name.into(),
            quota,
            algorithm,
            on_partition: OnPartition::default(),
            on_full: OnFull::default(),
            max_keys: DEFAULT_MAX_KEYS,
            ban: None,
            count_denied: false,
            shadow: false,
            lists: None,
        };
        Self { rule, burst: None, listed: Vec::new() }
    }

    /// Sets how many units a bucket holds: what can be spent at once after a pause.
    pub fn burst(mut self, units: u64) -> Self {
        self.burst = Some(units);
        self
    }

    /// Sets what the limit does about peers it cannot hear; [`OnPartition::Local`] unless set.
    pub fn on_partition(mut self, behaviour: OnPartition) -> Self {
        self.rule.on_partition = behaviour;
        self
    }

    /// Sets what happens to keys beyond `max_keys`; [`OnFull::SharedBucket`] unless set.
    pub fn on_full(mut self, behaviour: OnFull) -> Self {
        self.rule.on_full = behaviour;
        self
    }

    /// Sets how many live keys the limit holds at most; [`DEFAULT_MAX_KEYS`] unless set.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.rule.max_keys = keys;
        self
    }

    /// Bans a key for `duration`, up to [`MAX_BAN`](crate::MAX_BAN), as soon as it asks for more than is left to it; not
    /// unless set. "100 refused logins in a day: out for a day" is a limit of 100 a day that bans for a day.
    ///
    /// The ban starts with the request that is refused, and is not lengthened by those that follow. It spreads to the
    /// fleet like any other ([`Limiter::ban`](crate::Limiter::ban)). Keys that find no room are not banned, nor those that
    /// are refused because a peer cannot be heard.
    pub fn ban_on_exceed(mut self, duration: Duration) -> Self {
        self.rule.ban = Some(duration);
        self
    }

    /// Sets whether refused requests cost their units too, so that a key that keeps asking stays out; not unless set.
    ///
    /// The level goes into debt, at most max(burst, one second of the rate), or the quota of a window, so a key that
    /// gives up has what it asked for after the time that `retry_after` says. A cost above the burst is refused as ever, and costs nothing.
    pub fn count_denied(mut self, count: bool) -> Self {
        self.rule.count_denied = count;
        self
    }

    /// Sets whether the limit is only tried out; not unless set. It decides, counts and is told of in the status like any
    /// other, but its decisions are all allowed, and say what [would have been](crate::Decision::would_have_been).
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.rule.shadow = shadow;
        self
    }

    /// Puts an entry on the allow list: requests of these keys are admitted, and not counted.
    ///
    /// An entry is an address (`192.0.2.1`) or a network (`10.0.0.0/8`, `2001:db8::/32`), for keys that are addresses, or
    /// `key:` and the text of a key (`key:internal-batch`). What is said of a key itself goes before what is said of its
    /// network, and a smaller network, with a longer prefix, before a larger one; where two of the same size
    /// disagree, the denial stands. Up to [`MAX_LISTED`](crate::MAX_LISTED) entries on both lists together.
    pub fn allow(mut self, entry: &str) -> Self {
        self.listed.push((entry.to_owned(), Override::Allow));
        self
    }

    /// Puts an entry on the deny list: requests of these keys are refused. Entries are those of [`allow`](Self::allow).
    pub fn deny(mut self, entry: &str) -> Self {
        self.listed.push((entry.to_owned(), Override::Deny));
        self
    }

    /// Checks the limit.
    ///
    /// # Errors
    /// Names the field that cannot stand, its value, and what would do.
    pub fn build(self) -> Result<Limit, LimitError> {
        let Self { mut rule, burst, listed } = self;
        check_name(&rule.name)?;
        check_quota(&rule)?;
        match (&mut rule.algorithm, burst) {
            (Algorithm::TokenBucket { burst }, Some(units)) => *burst = units,
            (Algorithm::TokenBucket { .. }, None) => {}
            (Algorithm::FixedWindow, Some(units)) => {
                return Err(rule.error(
                    "burst",
                    units,
                    "nothing: a fixed window has no burst; use a token bucket",
                ));
            }
            (Algorithm::FixedWindow, None) => {}
        }
        let capacity = rule.capacity();
        if capacity == 0 || capacity > MAX_UNITS {
            return Err(rule.error("burst", capacity, "1 to 2^40 units"));
        }
        if rule.max_keys == 0 || rule.max_keys > MAX_KEYS {
            return Err(rule.error("max_keys", rule.max_keys, "1 to 2^28 keys"));
        }
        if let Some(ban) = rule.ban.filter(|ban| ban.is_zero() || *ban > MAX_BAN) {
            return Err(rule.error(
                "on_exceed",
                format!("{ban:?}"),
                "a ban of more than zero and at most 400 days",
            ));
        }
        rule.lists = lists(&rule, &listed)?;
        let Quota { units, period } = rule.quota;
        let meter = match rule.algorithm {
            Algorithm::TokenBucket { burst } => Meter::token_bucket(units, period, burst),
            Algorithm::FixedWindow => Meter::fixed_window(units, period),
        };
        Ok(Limit { rule, meter })
    }
}

fn check_name(name: &str) -> Result<(), LimitError> {
    let legible = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(legible) {
        let wanted = "1 to 64 ASCII letters, digits, '-', '_', '.', ':' or '/'";
        return Err(LimitError { limit: name.into(), field: "name", value: format!("\"{name}\""), wanted });
    }
    Ok(())
}

fn check_quota(rule: &Rule) -> Result<(), LimitError> {
    let Quota { units, period } = rule.quota;
    if units == 0 || units > MAX_UNITS {
        return Err(rule.error("quota", units, "1 to 2^40 units"));
    }
    if period < MIN_PERIOD || period > MAX_PERIOD {
        return Err(rule.error("period", format!("{period:?}"), "1 µs to 400 days"));
    }
    if u128::from(units) * 1_000_000_000 > u128::from(MAX_UNITS_PER_SECOND) * period.as_nanos() {
        return Err(rule.error(
            "quota",
            format!("{units} per {period:?}"),
            "at most 100,000,000 units per second",
        ));
    }
    Ok(())
}

fn lists(rule: &Rule, listed: &[(String, Override)]) -> Result<Option<Arc<Lists>>, LimitError> {
    let mut lists = Lists::default();
    for (entry, says) in listed {
        if !lists.add(entry, *says) {
            let field = if *says == Override::Allow { "allow" } else { "deny" };
            return Err(rule.error(field, format!("{entry:?}"), ENTRY));
        }
    }
    Ok((!lists.is_empty()).then(|| Arc::new(lists)))
}

impl Rule {
    /// What parts limits beside algorithm and quota, for the fingerprint; nothing where nothing of it is set.
    fn penalties(&self, bytes: &mut Vec<u8>) {
        if self.count_denied || self.shadow || self.ban.is_some() {
            bytes.extend([0xff, u8::from(self.count_denied), u8::from(self.shadow)]);
            bytes.extend(self.ban.map_or(0, saturating_nanos).to_le_bytes());
        }
        if let Some(lists) = &self.lists {
            bytes.push(0xfe);
            lists.bytes(bytes);
        }
    }

    fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket { burst } => burst,
            Algorithm::FixedWindow => self.quota.units,
        }
    }

    fn error(&self, field: &'static str, value: impl fmt::Display, wanted: &'static str) -> LimitError {
        LimitError { limit: self.name.clone(), field, value: value.to_string(), wanted }
    }
}

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

    /// The field that cannot stand: `name`, `quota`, `period`, `burst`, `max_keys`, `on_exceed`, `allow` or `deny`.
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
