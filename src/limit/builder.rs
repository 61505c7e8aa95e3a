//! Putting a limit together, and checking it.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use super::{
    Algorithm, DEFAULT_MAX_KEYS, Limit, LimitError, MAX_BANDS, MAX_KEYS, MAX_NAME_BYTES, MAX_PERIOD,
    MAX_PRECISION, MAX_QUOTAS, MAX_UNITS, MAX_UNITS_PER_SECOND, MIN_PERIOD, OnFull, OnPartition, Quota, Rule,
    Windows,
};
use crate::{
    algorithm::Meter,
    lists::{ENTRY, Lists, Override},
    notice::MAX_BAN,
    time::saturating_nanos,
};

/// What the names of further quotas on the wire have more than the limit's: a mark that no name has, and a digit.
const BAND_SUFFIX_BYTES: usize = 2;

/// A [`Limit`] being put together.
#[derive(Clone, Debug)]
#[must_use = "a limit comes out of `build`"]
pub struct LimitBuilder {
    pub(super) rule: Rule,
    burst: Option<u64>,
    precision: Option<u16>,
    queue: Option<u64>,
    staggered: bool,
    /// Further quotas and their bursts.
    further: Vec<(Quota, Option<u64>)>,
    listed: Vec<(String, Override)>,
    /// What is said of single keys.
    overrides: Vec<(String, Override)>,
}

impl LimitBuilder {
    pub(super) fn new(name: &str, quota: Quota, algorithm: Algorithm) -> Self {
        let rule = Rule {
            name: name.into(),
            band: 0,
            quota,
            algorithm,
            windows: Windows::default(),
            on_partition: OnPartition::default(),
            on_full: OnFull::default(),
            max_keys: DEFAULT_MAX_KEYS,
            ban: None,
            count_denied: false,
            shadow: false,
            lists: None,
        };
        Self {
            rule,
            burst: None,
            precision: None,
            queue: None,
            staggered: false,
            further: Vec::new(),
            listed: Vec::new(),
            overrides: Vec::new(),
        }
    }

    /// Sets how many sub-windows a sliding window is cut into, 1 to [`MAX_PRECISION`]; 1 is an estimate, see
    /// [`Algorithm::SlidingWindow`].
    pub fn precision(mut self, sub_windows: u16) -> Self {
        self.precision = Some(sub_windows);
        self
    }

    /// Lets each key's fixed windows begin at a time of its own; see [`Windows::Staggered`].
    pub fn staggered(mut self) -> Self {
        self.staggered = true;
        self
    }

    /// Adds a quota that requests have to pass as well, by the same algorithm: "10 a second, and 1,000 an hour". All
    /// quotas are spent on, or none. There can be [`MAX_BANDS`] of them, and each takes as much memory as a limit of
    /// its own.
    ///
    /// ```
    /// use ratemesh::{Limit, Limiter, Quota};
    ///
    /// let limit = Limit::token_bucket("api", Quota::per_second(10)).and(Quota::per_hour(1_000)).burst(15).build()?;
    /// let limiter = Limiter::new(limit);
    /// assert!(limiter.check_cost("alice", 10).unwrap().is_allowed());
    /// let refused = limiter.check_cost("alice", 10).unwrap();
    /// // Both refuse, and the hour's takes longer to have the units again.
    /// assert_eq!(refused.quota(), Quota::per_hour(1_000));
    /// # Ok::<(), ratemesh::LimitError>(())
    /// ```
    pub fn and(mut self, quota: Quota) -> Self {
        self.further.push((quota, None));
        self
    }

    /// Sets how many units a bucket holds: what can be spent at once after a pause. Unless set, it is the quota's units.
    /// After [`and`](Self::and), it is the bucket of the quota that was added last.
    pub fn burst(mut self, units: u64) -> Self {
        match self.further.last_mut() {
            Some((_, burst)) => *burst = Some(units),
            None => self.burst = Some(units),
        }
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

    /// Sets for how many units requests may wait at a time, for each key: those that would wait beyond are refused at
    /// once. 0 has none wait. Unless set, it is the largest cost that can pass. Of a leaky bucket, it is also the largest cost
    /// that can pass, and as many units as one period of the quota brings unless set.
    pub fn queue(mut self, units: u64) -> Self {
        self.queue = Some(units);
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

    /// Sets what applies to one key in place of what the limit says: most of all, a quota of its own.
    ///
    /// It holds as long as nothing else is said of the key at run time
    /// ([`set_override`](crate::Limiter::set_override)). A quota for the text of an address holds for the address, too, where
    /// that is the key (`IpAddr`); a network cannot have one. With the allow and deny lists, there can be
    /// [`MAX_LISTED`](crate::MAX_LISTED) entries, of keys of up to 1,024 bytes; and up to
    /// [`MAX_QUOTAS`](crate::MAX_QUOTAS) different quotas.
    ///
    /// ```
    /// use ratemesh::{Limit, Limiter, Override, Quota};
    ///
    /// let limit = Limit::token_bucket("api", Quota::per_second(10))
    ///     .override_key("premium", Override::quota(Quota::per_second(1_000)))
    ///     .build()?;
    /// let limiter = Limiter::new(limit);
    /// assert_eq!(limiter.check("premium").remaining(), 999);
    /// assert_eq!(limiter.check("anyone").remaining(), 9);
    /// # Ok::<(), ratemesh::LimitError>(())
    /// ```
    pub fn override_key(mut self, key: &str, says: Override) -> Self {
        self.overrides.push((key.to_owned(), says));
        self
    }

    /// The period of the first quota.
    #[cfg(feature = "config")]
    pub(crate) fn period(&self) -> Duration {
        self.rule.quota.period
    }

    /// Checks the limit.
    ///
    /// # Errors
    /// Names the field that cannot stand, its value, and what would do.
    pub fn build(self) -> Result<Limit, LimitError> {
        let Self { mut rule, burst, queue, precision, staggered, further, listed, overrides } = self;
        check_name(&rule.name)?;
        match &mut rule.algorithm {
            Algorithm::LeakyBucket { queue: units } => *units = queue.unwrap_or(*units),
            Algorithm::SlidingWindow { precision: parts } => *parts = precision.unwrap_or(*parts),
            Algorithm::FixedWindow if staggered && rule.windows == Windows::Aligned => {
                rule.windows = Windows::Staggered;
            }
            _ => {}
        }
        match precision {
            Some(parts) if !matches!(rule.algorithm, Algorithm::SlidingWindow { .. }) => {
                return Err(rule.error(
                    "precision",
                    parts,
                    "nothing: only a sliding window is cut into parts",
                ));
            }
            _ => {}
        }
        if staggered && rule.windows != Windows::Staggered {
            let wanted = "nothing: only fixed windows of one length can begin at each key's own time";
            return Err(rule.error("windows", "staggered", wanted));
        }
        if let Some(ban) = rule.ban.filter(|ban| ban.is_zero() || *ban > MAX_BAN) {
            let wanted = "a ban of more than zero and at most 400 days";
            return Err(rule.error("on_exceed", format!("{ban:?}"), wanted));
        }
        rule.lists = lists(&rule, &listed, &overrides)?;
        rule.check_bands(&further)?;
        let bands = further.into_iter().zip(1..).map(|((quota, burst), band)| {
            let algorithm = match rule.algorithm {
                Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst: quota.units },
                Algorithm::LeakyBucket { .. } => {
                    Algorithm::LeakyBucket { queue: queue.unwrap_or(quota.units) }
                }
                algorithm => algorithm,
            };
            Rule { quota, algorithm, band, ..rule.clone() }.build(burst)
        });
        let bands = bands.collect::<Result<Vec<_>, _>>()?;
        let mut limit = rule.build(burst)?;
        limit.largest_cost = bands.iter().map(Limit::largest_cost).fold(limit.largest_cost, u64::min);
        limit.queue = queue.unwrap_or(limit.largest_cost);
        limit.further = (!bands.is_empty()).then(|| bands.into());
        limit.check_overrides(&overrides)?;
        Ok(limit)
    }
}

fn check_precision(rule: &Rule, precision: u16) -> Result<(), LimitError> {
    if precision == 0 || precision > MAX_PRECISION {
        return Err(rule.error("precision", precision, "1 to 1,000 sub-windows"));
    }
    if rule.quota.period < MIN_PERIOD * u32::from(precision) {
        return Err(rule.error("precision", precision, "so few sub-windows that each is 1 µs or longer"));
    }
    Ok(())
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
    if rule.algorithm == Algorithm::Concurrency {
        return Ok(());
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

fn lists(
    rule: &Rule,
    listed: &[(String, Override)],
    overrides: &[(String, Override)],
) -> Result<Option<Arc<Lists>>, LimitError> {
    let mut lists = Lists::default();
    for (entry, says) in listed {
        if !lists.add(entry, *says) {
            let field = if *says == Override::Allow { "allow" } else { "deny" };
            return Err(rule.error(field, format!("{entry:?}"), ENTRY));
        }
    }
    for (key, says) in overrides {
        if !lists.add_key(key, *says) {
            let wanted = "keys of 1 to 1,024 bytes; 10,000 entries a limit at most";
            return Err(rule.error("overrides", format!("{key:?}"), wanted));
        }
    }
    Ok((!lists.is_empty()).then(|| Arc::new(lists)))
}

impl Limit {
    /// Whether the quotas of single keys can stand.
    fn check_overrides(&self, overrides: &[(String, Override)]) -> Result<(), LimitError> {
        let mut quotas = BTreeSet::new();
        for (key, says) in overrides {
            let Override::Quota { quota, burst } = *says else { continue };
            self.with_quota(quota, burst).map_err(|error| {
                let value = format!("{key:?} with a {} of {}", error.field, error.value);
                LimitError { field: "overrides", value, ..error }
            })?;
            quotas.insert((quota, burst));
        }
        if quotas.len() > MAX_QUOTAS {
            return Err(self.rule.error("overrides", quotas.len(), "at most 50 different quotas of keys"));
        }
        Ok(())
    }
}

impl Rule {
    /// Whether further quotas can stand beside the first.
    fn check_bands(&self, further: &[(Quota, Option<u64>)]) -> Result<(), LimitError> {
        if further.len() >= MAX_BANDS {
            return Err(self.error("quota", further.len() + 1, "at most 8 quotas"));
        }
        if further.is_empty() {
            return Ok(());
        }
        if self.name.len() > MAX_NAME_BYTES - BAND_SUFFIX_BYTES {
            let value = format!("\"{}\"", self.name);
            return Err(self.error("name", value, "1 to 62 bytes where there are several quotas"));
        }
        if self.algorithm == Algorithm::Concurrency || self.windows == Windows::Months {
            let wanted = "one quota: permits and months cannot stand beside others; use several limits";
            return Err(self.error("quota", further.len() + 1, wanted));
        }
        Ok(())
    }

    /// Checks one quota.
    pub(super) fn build(self, burst: Option<u64>) -> Result<Limit, LimitError> {
        let mut rule = self;
        check_quota(&rule)?;
        match (&mut rule.algorithm, burst) {
            (Algorithm::TokenBucket { burst }, Some(units)) => *burst = units,
            (_, Some(units)) => {
                return Err(rule.error("burst", units, "nothing: only a token bucket has a burst"));
            }
            (_, None) => {}
        }
        let capacity = rule.capacity();
        if capacity == 0 || capacity > MAX_UNITS {
            return Err(rule.error("burst", capacity, "1 to 2^40 units"));
        }
        if rule.max_keys == 0 || rule.max_keys > MAX_KEYS {
            return Err(rule.error("max_keys", rule.max_keys, "1 to 2^28 keys"));
        }
        let Quota { units, period } = rule.quota;
        let mut largest_cost = capacity;
        let meter = match rule.algorithm {
            Algorithm::TokenBucket { burst } => Meter::token_bucket(units, period, burst),
            Algorithm::LeakyBucket { queue } if queue == 0 || queue > MAX_UNITS => {
                return Err(rule.error("queue", queue, "1 to 2^40 units"));
            }
            Algorithm::LeakyBucket { queue } => {
                largest_cost = queue;
                Meter::leaky_bucket(units, period, queue)
            }
            Algorithm::FixedWindow if rule.windows == Windows::Months => Meter::months(units),
            Algorithm::FixedWindow => Meter::fixed_window(units, period),
            Algorithm::SlidingWindow { precision } => {
                check_precision(&rule, precision)?;
                Meter::stock(units)
            }
            Algorithm::Concurrency => Meter::stock(units),
        };
        Ok(Limit { largest_cost, queue: largest_cost, rule, meter, further: None })
    }

    /// What parts limits beside algorithm and quota, for the fingerprint; nothing where nothing of it is set.
    pub(super) fn penalties(&self, bytes: &mut Vec<u8>) {
        if self.count_denied || self.shadow || self.ban.is_some() {
            bytes.extend([0xff, u8::from(self.count_denied), u8::from(self.shadow)]);
            bytes.extend(self.ban.map_or(0, saturating_nanos).to_le_bytes());
        }
        if let Some(lists) = &self.lists {
            bytes.push(0xfe);
            lists.bytes(bytes);
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket { burst } => burst,
            Algorithm::LeakyBucket { .. } => 1,
            Algorithm::FixedWindow | Algorithm::SlidingWindow { .. } | Algorithm::Concurrency => {
                self.quota.units
            }
        }
    }

    pub(super) fn error(
        &self,
        field: &'static str,
        value: impl fmt::Display,
        wanted: &'static str,
    ) -> LimitError {
        LimitError { limit: self.name.clone(), field, value: value.to_string(), wanted }
    }
}
