//! What a layer is set to, shared by all its services.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};

use super::{
    LimitStatus, MissingKey, Refusal, RequestHead,
    admit::{self, Admission},
    answer::Answer,
    gate::{Count, Gate, Verdict},
    headers::{HeaderFields, Shown},
    limited::RateLimited,
};
use crate::{
    key::Key,
    limit::{Limit, Quota},
};

/// Everything that is set on a layer.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) gates: Vec<Gate>,
    pub(super) fields: HeaderFields,
    pub(super) answer: Answer,
    pub(super) on_refusal: Option<Arc<OnRefusal>>,
    pub(super) attach: Attach,
    settles: bool,
    keeps_outcome: bool,
    counts_in_flight: bool,
    /// Whether there is but one gate, which is plain, and nothing is done about a request after it has passed.
    plain: bool,
    /// `RateLimit-Policy` with all the limits that are shown, and the quotas that it names; unless it differs from request
    /// to request.
    policy: Option<(HeaderValue, Vec<(Quota, u64)>)>,
}

type OnRefusal = dyn Fn(&Refusal<'_>) + Send + Sync;

/// Where a [`RateLimited`] is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attach {
    pub(super) request: bool,
    pub(super) response: bool,
}

/// Whether a request goes on to the service.
pub(super) enum Passage {
    /// It does, and nothing more is to be done about it.
    Free,
    /// It does, and its response is to be looked at.
    Limited(RateLimited),
    /// It does not, and this is its answer. Boxed, since it is the largest and the rarest.
    Refused(Box<Response<Bytes>>),
}

impl Settings {
    /// One gate, and all else as it is unless set.
    pub(super) fn new(gate: Gate) -> Self {
        let mut settings = Self {
            gates: vec![gate],
            fields: HeaderFields::new(),
            answer: Answer::default(),
            on_refusal: None,
            attach: Attach { request: false, response: false },
            settles: false,
            keeps_outcome: false,
            counts_in_flight: false,
            plain: false,
            policy: None,
        };
        settings.derive();
        settings
    }

    /// Finds out whether the request goes on to the service.
    pub(super) fn pass(self: &Arc<Self>, request: &RequestHead<'_>) -> Passage {
        match self.gates.as_slice() {
            // What most requests go through; it leaves out all that the settings do not ask for.
            [gate] if self.plain && !gate.has_lists() => match gate.approach_plainly(request) {
                Ok(key) => match gate.let_fitting_pass(key, 1) {
                    Ok(()) => Passage::Free,
                    Err(verdict) => self.turn_away(gate, key, verdict, request),
                },
                Err(missing) => self.pass_without_key(gate, missing, request),
            },
            _ => self.passage(request, admit::admit(self, request)),
        }
    }

    #[inline(never)]
    fn turn_away(
        self: &Arc<Self>,
        gate: &Gate,
        key: Key,
        verdict: Verdict<'_>,
        request: &RequestHead<'_>,
    ) -> Passage {
        self.passage(request, admit::refuse(self, gate, (key, 1), verdict, None))
    }

    #[cold]
    fn pass_without_key(
        self: &Arc<Self>,
        gate: &Gate,
        missing: MissingKey,
        request: &RequestHead<'_>,
    ) -> Passage {
        let approach = gate.approach_without_key(request, missing);
        self.passage(request, admit::go_on(self, gate, request, approach))
    }

    #[inline(never)]
    fn passage(&self, request: &RequestHead<'_>, admission: Admission) -> Passage {
        match admission {
            Admission::Free => Passage::Free,
            Admission::Limited(limited) => Passage::Limited(limited),
            Admission::Refused(limited) => Passage::Refused(Box::new(self.refuse(*request, limited))),
            Admission::Keyless { missing, status } => {
                Passage::Refused(Box::new(self.answer.keyless(request, &missing, status)))
            }
        }
    }

    /// Whether anything is done about a request after it has passed.
    pub(super) fn keeps_outcome(&self) -> bool {
        self.keeps_outcome
    }

    /// Whether anything may be given back of what a request has spent.
    pub(super) fn settles(&self) -> bool {
        self.settles
    }

    /// Whether a limit counts requests in flight.
    pub(super) fn counts_in_flight(&self) -> bool {
        self.counts_in_flight
    }

    /// Works out what follows from the other settings.
    pub(super) fn derive(&mut self) {
        self.counts_in_flight = self.gates.iter().any(|gate| gate.counts() == Count::InFlight);
        self.settles = self.gates.iter().any(Gate::settles);
        let attaches = self.attach.request || self.attach.response;
        self.keeps_outcome = self.settles || attaches || self.fields.on_all_responses();
        self.plain = !self.keeps_outcome && matches!(self.gates.as_slice(), [gate] if gate.is_plain());
        let shown: Vec<_> = self.gates.iter().filter(|gate| !gate.is_shadow()).collect();
        let fixed = shown.iter().all(|gate| !gate.has_partition_key());
        let policies = |gate| quotas(gate).map(move |quota| show_policy(gate, quota));
        let policies: Vec<_> = shown.into_iter().flat_map(policies).collect();
        let policy = self.fields.policy(&policies).filter(|_| fixed);
        self.policy = policy.map(|policy| (policy, policies.iter().map(quota_of).collect()));
    }

    fn refuse(&self, request: RequestHead<'_>, limited: RateLimited) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        if let Some(limit) = limited.limits().last() {
            let status =
                limit.gate().refusal_status().unwrap_or_else(|| self.answer.status_of(limit.refused()));
            let refusal = Refusal { request, limited: &limited, limit, status };
            if let Some(on_refusal) = &self.on_refusal {
                on_refusal(&refusal);
            }
            response = self.answer.refuse(&refusal);
        }
        self.write_fields(response.headers_mut(), &limited);
        if self.attach.response {
            response.extensions_mut().insert(limited);
        }
        response
    }

    /// Finishes a response that the service gave.
    pub(super) fn finish<B>(response: &mut Response<B>, limited: RateLimited) {
        let settings = limited.settings();
        if settings.fields.on_all_responses() {
            settings.write_fields(response.headers_mut(), &limited);
        }
        if settings.attach.response {
            response.extensions_mut().insert(limited);
        }
    }

    fn write_fields(&self, headers: &mut HeaderMap, limited: &RateLimited) {
        let shown = limited.limits().filter(|status| !status.is_shadow());
        let mut shown = shown.flat_map(|status| {
            let quotas = quotas(status.gate()).filter(move |quota| status.has_quota(quota.band()));
            quotas.map(move |quota| (status, quota))
        });
        let now =
            || self.gates.first().map_or_else(Default::default, |gate| gate.limiter().clock().precise().wall);
        match (shown.next(), shown.next()) {
            (None, _) => {}
            (Some(only), None) => {
                let only = [show(only)];
                self.fields.write(headers, &only, self.policy_of(&only), now);
            }
            (Some(first), Some(second)) => {
                let all: Vec<_> = [first, second].into_iter().chain(shown).map(show).collect();
                self.fields.write(headers, &all, self.policy_of(&all), now);
            }
        }
    }

    /// The policies, written in advance, where they are those of what is shown: a key may have a quota of its own, and limits
    /// may have changed.
    fn policy_of(&self, shown: &[Shown<'_>]) -> Option<&HeaderValue> {
        let same = |quotas: &[(Quota, u64)]| quotas.iter().copied().eq(shown.iter().map(quota_of));
        self.policy.as_ref().filter(|(_, quotas)| same(quotas)).map(|(policy, _)| policy)
    }
}

fn quota_of(shown: &Shown<'_>) -> (Quota, u64) {
    (shown.quota, shown.capacity)
}

/// Each of the limit's quotas, as a limit of its own.
fn quotas(gate: &Gate) -> impl Iterator<Item = &Limit> {
    gate.limiter().bands().tables().map(|table| table.limit())
}

/// What does not change from request to request, of one of the limit's quotas.
fn show_policy<'a>(gate: &'a Gate, quota: &'a Limit) -> Shown<'a> {
    Shown {
        name: quota.name(),
        band: quota.band(),
        quota: quota.quota(),
        capacity: quota.capacity(),
        unit: gate.quota_unit(),
        remaining: 0,
        reset_after: None,
        refused: false,
        retry_after: None,
        partition_key: None,
    }
}

fn show<'a>((status, quota): (LimitStatus<'a>, &'a Limit)) -> Shown<'a> {
    let policy = show_policy(status.gate(), quota);
    let (remaining, reset_after) = status.standing(policy.band);
    let (quota, capacity) = status.quota(policy.band);
    // Of several quotas, the one that takes longest has refused.
    let decided = policy.band == status.band();
    Shown {
        quota,
        capacity,
        remaining,
        reset_after,
        refused: decided && !status.is_allowed(),
        retry_after: status.retry_after().filter(|_| decided),
        partition_key: status.partition_key(),
        ..policy
    }
}
