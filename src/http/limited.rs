//! What the limits said of a request, for handlers and outer layers.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use super::{
    few::Few,
    gate::{Gate, Verdict},
    settings::Settings,
};
use crate::{
    decision::{Basis, Decision, Refused},
    key::Key,
    limit::{Limit, Quota},
    together::Receipt,
};

/// What the limits said of a request.
///
/// A layer that is told to ([`attach_to_request`](super::RateLimitLayer::attach_to_request),
/// [`attach_to_response`](super::RateLimitLayer::attach_to_response)) attaches it to the request for handlers, and to
/// the response for outer layers. The figures are those of the moment at which it was attached: on a response, after
/// what does not count was given back. Cloning is cheap.
///
/// ```
/// use ratemesh::http::RateLimited;
///
/// fn remaining(request: &http::request::Parts) -> Option<u64> {
///     let limited = request.extensions.get::<RateLimited>()?;
///     Some(limited.limit("api")?.remaining())
/// }
/// ```
#[derive(Clone)]
pub struct RateLimited(Arc<Outcome>);

#[derive(Clone)]
struct Outcome {
    settings: Arc<Settings>,
    checks: Few<Checked>,
}

impl RateLimited {
    pub(super) fn new(settings: Arc<Settings>, checks: Few<Checked>) -> Self {
        Self(Arc::new(Outcome { settings, checks }))
    }

    /// Every limit that the request was checked against, in the layer's order.
    pub fn limits(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let gates = self.settings().gates.as_slice();
        self.0
            .checks
            .iter()
            .filter_map(|checked| Some(LimitStatus { gate: gates.get(checked.gate)?, checked }))
    }

    /// The limit of this name, if the request was checked against it.
    pub fn limit(&self, name: &str) -> Option<LimitStatus<'_>> {
        self.limits().find(|status| status.limit().name() == name)
    }

    pub(super) fn settings(&self) -> &Arc<Settings> {
        &self.0.settings
    }

    pub(super) fn checks(&self) -> impl Iterator<Item = &Checked> {
        self.0.checks.iter()
    }

    /// Gives back what was spent at the gates that `which` names. Clones keep the figures that they had.
    pub(super) fn give_back(&mut self, which: impl Fn(&Gate) -> bool) {
        let gives = |gates: &[Gate], checked: &Checked| gates.get(checked.gate).is_some_and(&which);
        if self.checks().any(|checked| gives(&self.settings().gates, checked)) {
            let Outcome { settings, checks } = Arc::make_mut(&mut self.0);
            for checked in checks.iter_mut().filter(|checked| gives(&settings.gates, checked)) {
                checked.give_back(&settings.gates);
            }
        }
    }
}

impl fmt::Debug for RateLimited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits()).finish()
    }
}

/// A request's stand with one gate.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    /// The place of the gate in the layer.
    pub(super) gate: usize,
    pub(super) key: Key,
    /// Units that were spent and not given back.
    pub(super) spent: u64,
    /// Where.
    pub(super) receipt: Receipt,
    cost: u64,
    allowed: bool,
    refused: Option<Refused>,
    retry_after: Option<Duration>,
    reading: Reading,
    /// Which of the limit's quotas decided.
    band: usize,
    /// Of each quota, where there are several.
    bands: Box<[Reading]>,
    partition_key: Option<Box<[u8]>>,
}

/// The least time after which it is worth asking for what nobody knows the return of.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What is left, as of some moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    remaining: u64,
    reset_after: Duration,
    basis: Basis,
    /// The quota that the key has, and its capacity.
    quota: Quota,
    capacity: u64,
    /// Whether the quota does not apply to the key.
    exempt: bool,
}

impl From<Decision<'_>> for Reading {
    fn from(decision: Decision<'_>) -> Self {
        Self {
            remaining: decision.remaining(),
            reset_after: decision.reset_after(),
            basis: decision.basis(),
            quota: decision.quota(),
            capacity: decision.limit().capacity(),
            exempt: decision.is_exempt(),
        }
    }
}

impl Reading {
    /// Of each quota of a limit that has several.
    fn of_bands(gate: &Gate, key: Key) -> Box<[Self]> {
        let bands = gate.limiter().bands();
        if bands.is_single() {
            return Box::default();
        }
        let now = gate.limiter().clock().precise();
        bands.tables().map(|table| table.peek(key, 1, now).into()).collect()
    }

    /// When all is back, unless nobody knows.
    fn known_reset(&self, limit: &Limit) -> Option<Duration> {
        let unknown = limit.permit_returns_on_drop() && self.reset_after.is_zero();
        Some(self.reset_after).filter(|reset| *reset != Duration::MAX && !unknown)
    }
}

impl Checked {
    pub(super) fn new(
        gate: &Gate,
        place: usize,
        key: Key,
        cost: u64,
        verdict: Verdict<'_>,
        receipt: Receipt,
        partition_key: Option<Box<[u8]>>,
    ) -> Self {
        let (spent, decision, refused, retry_after) = match verdict {
            Verdict::Spent(decision) => (if receipt.is_empty() { 0 } else { cost }, decision, None, None),
            Verdict::Refused(decision) => {
                let refused = decision.own_refusal();
                let permits = decision.limit().permit_returns_on_drop();
                let wait = match decision.retry_after() {
                    None if permits && refused == Some(Refused::Level) => Some(ASK_AGAIN),
                    // Nobody knows when a denial ends.
                    wait => wait.filter(|wait| *wait != Duration::MAX),
                };
                (0, decision, refused, wait)
            }
            Verdict::Free(decision) => (0, decision, None, None),
            Verdict::NeverPasses(decision) => (0, decision, Some(Refused::Level), None),
        };
        Self {
            gate: place,
            key,
            spent,
            receipt,
            cost,
            allowed: verdict.is_allowed(),
            refused,
            retry_after,
            reading: decision.into(),
            band: decision.limit().band(),
            bands: Reading::of_bands(gate, key),
            partition_key,
        }
    }

    /// Gives back what was spent, and looks again at what is left.
    pub(super) fn give_back(&mut self, gates: &[Gate]) {
        if let (1.., Some(gate)) = (self.spent, gates.get(self.gate)) {
            gate.limiter().give_back(&self.receipt, self.spent);
            self.spent = 0;
            let decision = gate.limiter().peek(self.key);
            (self.band, self.reading) = (decision.limit().band(), decision.into());
            self.bands = Reading::of_bands(gate, self.key);
        }
    }
}

/// What one limit said of a request.
#[derive(Clone, Copy)]
pub struct LimitStatus<'a> {
    gate: &'a Gate,
    checked: &'a Checked,
}

impl<'a> LimitStatus<'a> {
    /// The limit.
    pub fn limit(&self) -> &'a Limit {
        self.gate.limiter().limit()
    }

    /// The key that the request was counted by, for further checks of the same limiter.
    pub fn key(&self) -> Key {
        self.checked.key
    }

    /// What the request costs, in units.
    pub fn cost(&self) -> u64 {
        self.checked.cost
    }

    /// Whether the limit let the request through. Where it did not, it is only tried out, or the request was
    /// refused.
    pub fn is_allowed(&self) -> bool {
        self.checked.allowed
    }

    /// Why the limit did not let the request through; `None` where it did.
    pub fn refused(&self) -> Option<Refused> {
        self.checked.refused
    }

    /// Whether the limit is only tried out ([`Gate::shadow`], [`LimitBuilder::shadow`](crate::LimitBuilder::shadow)).
    pub fn is_shadow(&self) -> bool {
        self.gate.is_shadow()
    }

    /// Whole units that are left.
    pub fn remaining(&self) -> u64 {
        self.checked.reading.remaining
    }

    /// How long until the full capacity is there again if nothing more is spent; zero also where nobody knows, because
    /// permits have to be given back.
    pub fn reset_after(&self) -> Duration {
        self.checked.reading.reset_after
    }

    /// The earliest time at which the request would pass if nothing else is spent; `None` when it was let through,
    /// when its cost is above what the limit ever holds, and when its key is denied. For a banned key it is the rest of the ban;
    /// for a limit on concurrency, of which nobody knows, one second.
    pub fn retry_after(&self) -> Option<Duration> {
        self.checked.retry_after
    }

    /// What the decision was based on.
    pub fn basis(&self) -> Basis {
        self.checked.reading.basis
    }

    /// Which of the limit's quotas decided, from 0.
    pub(super) fn band(&self) -> usize {
        self.checked.band
    }

    /// The name of the policy that decided, as `RateLimit-Policy` has it.
    pub(super) fn policy(&self) -> Cow<'a, str> {
        let table = self.gate.limiter().bands().tables().nth(self.band());
        table.map_or(Cow::Borrowed(self.limit().name()), |table| table.limit().wire_name())
    }

    /// What is left of one of the limit's quotas, and when all of it is back, unless nobody knows.
    pub(super) fn standing(&self, band: usize) -> (u64, Option<Duration>) {
        let reading = self.reading(band);
        (reading.remaining, reading.known_reset(self.limit()))
    }

    /// The quota that the key has in place of one of the limit's, or that one, and its capacity.
    pub(super) fn quota(&self, band: usize) -> (Quota, u64) {
        let reading = self.reading(band);
        (reading.quota, reading.capacity)
    }

    /// Whether one of the limit's quotas says anything of the key: a quota of its own stands in the place of all.
    pub(super) fn has_quota(&self, band: usize) -> bool {
        let bands = &self.checked.bands;
        !self.reading(band).exempt || bands.iter().all(|reading| reading.exempt)
    }

    fn reading(&self, band: usize) -> &'a Reading {
        self.checked.bands.get(band).unwrap_or(&self.checked.reading)
    }

    pub(super) fn gate(&self) -> &'a Gate {
        self.gate
    }

    pub(super) fn partition_key(&self) -> Option<&'a [u8]> {
        self.checked.partition_key.as_deref()
    }
}

impl fmt::Debug for LimitStatus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key: it stands for a client.
        f.debug_struct("LimitStatus")
            .field("limit", &self.limit().name())
            .field("allowed", &self.is_allowed())
            .field("remaining", &self.remaining())
            .field("reset_after", &self.reset_after())
            .field("retry_after", &self.retry_after())
            .finish_non_exhaustive()
    }
}
