//! What a limit is for a single key that has a quota of its own, and what it may become while it is enforced.

use super::{Algorithm, Limit, LimitError, Quota, Rule};

impl Limit {
    /// The same limit with another quota in place of all that it has: that of a key with an override.
    ///
    /// # Errors
    /// The quota or the burst cannot stand, or the period is not the limit's where its windows have one length.
    pub(crate) fn with_quota(&self, quota: Quota, burst: u64) -> Result<Self, LimitError> {
        let mut rule = Rule { quota, ..self.rule.clone() };
        let is_bucket = match &mut rule.algorithm {
            Algorithm::TokenBucket { burst: units } | Algorithm::LeakyBucket { queue: units } => {
                *units = burst;
                true
            }
            _ => false,
        };
        if !is_bucket && burst != quota.units() {
            return Err(rule.error("burst", burst, "nothing: only a token bucket has a burst"));
        }
        if !is_bucket && quota.period() != self.rule.quota.period() {
            let wanted = if rule.algorithm == Algorithm::Concurrency { NO_PERIOD } else { SAME_PERIOD };
            return Err(rule.error("period", format!("{:?}", quota.period()), wanted));
        }
        // The burst is in the algorithm already.
        let mut limit = rule.build(None)?;
        if self.queue != self.largest_cost {
            limit.queue = self.queue;
        }
        Ok(limit)
    }

    /// The limits of all its quotas, the first quota's first.
    #[cfg(any(feature = "net", feature = "sim"))]
    pub(crate) fn bands(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.further())
    }

    /// Whether a limit that is being enforced may become `next`: what counts of it are kept by has to stay.
    ///
    /// # Errors
    /// Names the field that cannot change without a restart, and what it has to be.
    #[cfg(any(feature = "net", feature = "sim"))]
    pub(crate) fn check_change(&self, next: &Self) -> Result<(), LimitError> {
        let (old, new) = (&self.rule, &next.rule);
        let kind = |rule: &Rule| std::mem::discriminant(&rule.algorithm);
        if kind(old) != kind(new) {
            return Err(new.error("algorithm", new.algorithm.name(), SAME));
        }
        if old.windows != new.windows {
            return Err(new.error("windows", new.windows.name(), SAME));
        }
        if let (Algorithm::SlidingWindow { precision: old }, Algorithm::SlidingWindow { precision }) =
            (old.algorithm, new.algorithm)
            && old != precision
        {
            return Err(new.error("precision", precision, SAME));
        }
        let fixed_period = matches!(new.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow { .. });
        if fixed_period && old.windows != super::Windows::Months && old.quota.period() != new.quota.period() {
            return Err(new.error("period", format!("{:?}", new.quota.period()), SAME));
        }
        if old.max_keys != new.max_keys {
            return Err(new.error("max_keys", new.max_keys, SAME));
        }
        if self.further().len() != next.further().len() {
            return Err(new.error(
                "quota",
                next.further().len() + 1,
                "as many quotas as before, without a restart",
            ));
        }
        self.further().iter().zip(next.further()).try_for_each(|(old, new)| old.check_change(new))
    }

    /// That this limit cannot follow another, of which there have been too many.
    #[cfg(any(feature = "net", feature = "sim"))]
    pub(crate) fn changed_too_often(&self) -> LimitError {
        let wanted = "one of those that it has had already, or a restart: it has been changed too often";
        self.rule.error("quota", format!("{:?}", self.rule.quota), wanted)
    }
}

#[cfg(any(feature = "net", feature = "sim"))]
const SAME: &str = "what it was before, without a restart";
const SAME_PERIOD: &str = "units in the limit's own period: its windows have one length";
const NO_PERIOD: &str = "so many at a time, without a period";
