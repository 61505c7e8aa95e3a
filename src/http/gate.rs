//! One limit that requests have to pass, and how they are counted by it.

use std::{fmt, net::IpAddr, sync::Arc};

use http::{HeaderMap, Response, StatusCode};

use super::{KeyExtractor, MissingKey, RequestHead, log::RefusalLog};
use crate::{
    decision::Decision,
    key::{Key, KeyHasher, KeySource},
    limiter::Limiter,
    lists::Override,
    together::Receipt,
};

/// Which requests a limit counts.
///
/// All but [`All`](Self::All) spend before the request is handled and give back afterwards, so that requests in
/// flight at the same time cannot slip through together. Only an outcome that is known is given back: where the
/// client hangs up before there is a response, the units stay spent, or hanging up would be free of charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Count {
    /// Every request that is let through.
    #[default]
    All,
    /// Those that fail: the response's status says so ([`Gate::failure_if`]), the service returns an error, or the
    /// handler panics.
    Failures,
    /// Those that do not fail.
    Successes,
    /// Those in flight: the units come back when the response body ends or is dropped, whatever became of the
    /// request. A [limit on concurrency](crate::Limit::concurrency) is always counted so, and is meant for it; one that
    /// refills by itself fills up twice. An upgraded connection outlives its response;
    /// [`InFlight`](super::InFlight) holds on for it.
    InFlight,
}

/// What happens to a request that its extractor finds no key in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// It is refused with this status.
    Reject(StatusCode),
    /// It is counted by a key that all such requests share, told from others by this name.
    Shared(&'static str),
    /// This limit does not apply to it.
    Skip,
}

/// One limit that requests have to pass: a limiter, the key to check, and how requests are counted.
///
/// ```
/// use std::time::Duration;
/// use http::HeaderName;
/// use ratemesh::{Limit, Limiter, Quota, http::{Count, Gate, Header}};
///
/// let limit = Limit::token_bucket("reports", Quota::per_hour(100)).burst(20).build()?;
/// let gate = Gate::new(Limiter::new(limit), Header::new(HeaderName::from_static("x-api-key")))
///     .cost(|request| if request.uri().path().ends_with("/full") { 10 } else { 1 })
///     .count(Count::Successes);
/// # Ok::<(), ratemesh::LimitError>(())
/// ```
#[derive(Clone)]
#[must_use = "a gate does nothing outside a layer"]
pub struct Gate {
    limiter: Limiter,
    key: Arc<dyn KeyExtractor>,
    cost: Option<Arc<CostOf>>,
    skip: Option<Arc<SkipIf>>,
    failure: Option<Arc<FailureIf>>,
    on_missing_key: Option<OnMissingKey>,
    status: Option<StatusCode>,
    count: Count,
    shadow: bool,
    unit: Option<Arc<str>>,
    partition_key: Option<Arc<PartitionKeyOf>>,
    refusals: Arc<RefusalLog>,
    keyless: Arc<RefusalLog>,
}

type CostOf = dyn Fn(&RequestHead<'_>) -> u64 + Send + Sync;
type SkipIf = dyn Fn(&RequestHead<'_>) -> bool + Send + Sync;
type FailureIf = dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync;
type PartitionKeyOf = dyn Fn(&RequestHead<'_>) -> Option<Vec<u8>> + Send + Sync;

impl Gate {
    /// A gate that counts every request, at a cost of 1, by the key that is found in it.
    pub fn new(limiter: Limiter, key: impl KeyExtractor + 'static) -> Self {
        Self {
            limiter,
            key: Arc::new(key),
            cost: None,
            skip: None,
            failure: None,
            on_missing_key: None,
            status: None,
            count: Count::default(),
            shadow: false,
            unit: None,
            partition_key: None,
            refusals: Arc::default(),
            keyless: Arc::default(),
        }
    }

    /// Sets what a request costs, in units; 1 unless set.
    ///
    /// A request that costs 0 passes without being counted. One that costs more than the limit ever holds is
    /// refused without a time to retry at.
    pub fn cost(mut self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// Sets which requests this limit does not apply to; none unless set.
    pub fn skip(mut self, skip: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.skip = Some(Arc::new(skip));
        self
    }

    /// Sets which requests are counted; all unless set. Under a limit on concurrency it is always those
    /// [in flight](Count::InFlight), whatever is set: its permits come back in no other way.
    pub fn count(mut self, count: Count) -> Self {
        self.count = count;
        self
    }

    /// Sets which responses are failures, by their status and header fields.
    ///
    /// Unless set, a status of 400 or above is one, and so is a gRPC response whose header says that it failed.
    pub fn failure_if(
        mut self,
        failure: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.failure = Some(Arc::new(failure));
        self
    }

    /// Sets what happens to requests without a key; unless set, they are refused with the status that the
    /// extractor finds suitable ([`MissingKey::status`]).
    pub fn on_missing_key(mut self, then: OnMissingKey) -> Self {
        self.on_missing_key = Some(then);
        self
    }

    /// Sets the status that this limit's refusals are answered with; the layer's unless set.
    ///
    /// It goes before the layer's [`ban_status`](super::RateLimitLayer::ban_status), too.
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// Sets whether the limit is only tried out here: counted and logged, but neither enforced nor shown to clients. One that
    /// [is tried out](crate::LimitBuilder::shadow) everywhere is, whatever is set.
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// Sets the unit of the quota, for `RateLimit-Policy`; clients take it to be `requests` unless set.
    pub fn unit(mut self, unit: &str) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// Sets the partition key that `RateLimit-Policy` and `RateLimit` show for a request; none unless set.
    ///
    /// It should be something that the client knows itself by; the limiter's own digest never leaves the fleet.
    pub fn partition_key<F>(mut self, key: F) -> Self
    where
        F: Fn(&RequestHead<'_>) -> Option<Vec<u8>> + Send + Sync + 'static,
    {
        self.partition_key = Some(Arc::new(key));
        self
    }
}

/// How a request stands to a gate before it is checked.
pub(super) enum Approach {
    /// It is to be checked by this key at this cost; `listed` is what the limit's lists say of the client's network.
    Check { key: Key, cost: u64, listed: Option<Override> },
    /// The limit does not apply to it.
    Skip,
    /// It is to be refused, for want of a key.
    Keyless { missing: MissingKey, status: StatusCode },
}

/// What a gate says to a request.
#[derive(Clone, Copy)]
pub(super) enum Verdict<'a> {
    /// The request passes, and its cost is spent.
    Spent(Decision<'a>),
    /// It passes, since it costs nothing, or is not counted.
    Free(Decision<'a>),
    /// It does not pass now; nothing was spent that could be given back.
    Refused(Decision<'a>),
    /// It never will, since its cost is above what the limit holds; nothing was spent.
    NeverPasses(Decision<'a>),
}

impl Verdict<'_> {
    pub(super) fn is_allowed(&self) -> bool {
        matches!(self, Self::Spent(_) | Self::Free(_))
    }
}

impl Gate {
    /// Finds out what to check the request for; spends nothing.
    #[inline]
    pub(super) fn approach(&self, request: &RequestHead<'_>) -> Approach {
        if self.skip.as_ref().is_some_and(|skip| skip(request)) {
            return Approach::Skip;
        }
        let (key, address) = match (self.find_key(request), &self.on_missing_key) {
            (Ok(found), _) => found,
            (Err(_), Some(OnMissingKey::Skip)) => return Approach::Skip,
            (Err(_), Some(OnMissingKey::Shared(name))) => {
                (SharedKey(name).to_key(self.limiter.hasher()), None)
            }
            // What is only tried out must not refuse, so it does not apply either.
            (Err(missing), _) if self.is_shadow() => {
                self.log_keyless(&missing);
                return Approach::Skip;
            }
            (Err(missing), then) => {
                self.log_keyless(&missing);
                let status = match then {
                    Some(OnMissingKey::Reject(status)) => *status,
                    _ => missing.status(),
                };
                return Approach::Keyless { missing, status };
            }
        };
        let listed = address.and_then(|address| self.limiter.listed(address, key));
        Approach::Check { key, cost: self.cost.as_ref().map_or(1, |cost| cost(request)), listed }
    }

    /// The request's key, and its client's address where the limit lists networks.
    #[inline]
    fn find_key(&self, request: &RequestHead<'_>) -> Result<(Key, Option<IpAddr>), MissingKey> {
        let hasher = self.limiter.hasher();
        match self.limiter.limit().lists() {
            None => self.key.key(request, hasher).map(|key| (key, None)),
            Some(_) => self.key.key_and_address(request, hasher),
        }
    }

    fn log_keyless(&self, missing: &MissingKey) {
        if let Some(requests) = self.keyless.note(self.limiter.clock().precise().mono) {
            tracing::warn!(limit = self.limiter.limit().name(), requests, %missing, "requests without a key");
        }
    }

    pub(super) fn is_failure<B>(&self, response: &Response<B>) -> bool {
        match &self.failure {
            Some(failure) => failure(response.status(), response.headers()),
            None => {
                let grpc = response.headers().get("grpc-status");
                response.status().as_u16() >= 400 || grpc.is_some_and(|status| status != "0")
            }
        }
    }

    /// Checks, spends what passes, and logs what does not.
    #[inline]
    pub(super) fn check(&self, key: Key, cost: u64, listed: Option<Override>) -> (Verdict<'_>, Receipt) {
        let (decision, spent) = match listed {
            Some(listed) => (self.limiter.decide_listed(listed, key, cost), Receipt::default()),
            None if cost == 0 => self.free(key),
            None => self.limiter.spend(key, cost),
        };
        (self.judge(decision, cost), spent)
    }

    /// Checks where nothing is done about what passes; a refusal is the error.
    #[inline]
    pub(super) fn let_pass(&self, key: Key, cost: u64, listed: Option<Override>) -> Result<(), Verdict<'_>> {
        let fits = self.limiter.bands().check_fits(key, cost).is_ok();
        let verdict = if cost == 0 || listed.is_some() || !fits {
            self.check(key, cost, listed).0
        } else {
            let decision = self.limiter.decide(key, cost);
            if decision.has_spent() && self.refusals.is_quiet() {
                return Ok(());
            }
            self.judge(decision, cost)
        };
        if verdict.is_allowed() || self.is_shadow() { Ok(()) } else { Err(verdict) }
    }

    /// What a request that costs nothing finds.
    pub(super) fn free(&self, key: Key) -> (Decision<'_>, Receipt) {
        (self.limiter.peek(key), Receipt::default())
    }

    /// What a decision comes to; logs what does not pass.
    #[inline]
    pub(super) fn judge<'a>(&self, decision: Decision<'a>, cost: u64) -> Verdict<'a> {
        let verdict = match decision.is_allowed() {
            _ if decision.is_exempt() => Verdict::Free(decision),
            // What costs nothing passes whatever is left, but not for who is kept out.
            _ if cost == 0 && !decision.is_kept_out() => return Verdict::Free(decision),
            _ if decision.is_kept_out() => Verdict::Refused(decision),
            _ if self.never_passes(&decision, cost) => Verdict::NeverPasses(decision),
            // What is allowed only because the limit is tried out has spent nothing.
            true if !decision.is_shadow_refusal() => Verdict::Spent(decision),
            _ => Verdict::Refused(decision),
        };
        let refusals = match verdict {
            Verdict::Spent(_) | Verdict::Free(_) => self.refusals.due(decision.now.mono),
            Verdict::Refused(_) | Verdict::NeverPasses(_) => self.refusals.note(decision.now.mono),
        };
        if let Some(requests) = refusals {
            let limit = self.limiter.limit().name();
            tracing::warn!(limit, requests, shadow = self.is_shadow(), "requests over the limit");
        }
        verdict
    }

    /// Whether a cost is above what the limit can ever hold, or the quota that the decision's key has of its own.
    fn never_passes(&self, decision: &Decision<'_>, cost: u64) -> bool {
        let limit = if decision.limit().band() == 0 { decision.limit() } else { self.limiter.limit() };
        limit.check_fits(cost).is_err()
    }

    pub(super) fn partition_key_of(&self, request: &RequestHead<'_>) -> Option<Box<[u8]>> {
        let key = self.partition_key.as_ref().and_then(|key| key(request));
        key.map(Vec::into_boxed_slice)
    }

    pub(super) fn has_partition_key(&self) -> bool {
        self.partition_key.is_some()
    }

    pub(super) fn quota_unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(super) fn refusal_status(&self) -> Option<StatusCode> {
        self.status
    }

    pub(super) fn counts(&self) -> Count {
        if self.limiter.limit().permit_returns_on_drop() { Count::InFlight } else { self.count }
    }

    pub(super) fn is_shadow(&self) -> bool {
        self.shadow || self.limiter.limit().is_shadow()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("limit", &self.limiter.limit().name())
            .field("count", &self.counts())
            .field("on_missing_key", &self.on_missing_key)
            .field("shadow", &self.shadow)
            .finish_non_exhaustive()
    }
}

/// The key of all requests without one. No extractor makes a tuple that starts with a tuple of nothing twice.
struct SharedKey<'a>(&'a str);

impl KeySource for SharedKey<'_> {
    fn to_key(&self, hasher: &KeyHasher) -> Key {
        hasher.key(((), (), self.0))
    }
}
