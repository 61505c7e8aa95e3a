//! Lets a request through all of its gates, or none.

use std::sync::Arc;

use http::StatusCode;

use super::{
    MissingKey, RequestHead,
    few::Few,
    gate::{Approach, Gate},
    limited::{Checked, RateLimited},
    settings::Settings,
};
use crate::together::{self, Ask, Decided};

/// What became of a request at the gates.
pub(super) enum Admission {
    /// It may go ahead, and nothing more is to be done about it.
    Free,
    /// It may go ahead, and its response is to be looked at.
    Limited(RateLimited),
    /// The last gate that is listed refused it, and nothing is spent. Gates beyond were not asked.
    Refused(RateLimited),
    /// A gate found no key in it; nothing is spent.
    Keyless { missing: MissingKey, status: StatusCode },
}

/// Checks the request at each gate that applies to it.
#[inline]
pub(super) fn admit(settings: &Arc<Settings>, request: &RequestHead<'_>) -> Admission {
    match settings.gates.as_slice() {
        [gate] => pass_one(settings, gate, request),
        gates => pass_all(settings, gates, request),
    }
}

/// Passes the only gate. Where the outcome need not be kept, nothing is allocated.
#[inline]
fn pass_one(settings: &Arc<Settings>, gate: &Gate, request: &RequestHead<'_>) -> Admission {
    let (key, cost, listed) = match gate.approach(request) {
        Approach::Check { key, cost, listed } => (key, cost, listed),
        Approach::Skip => return Admission::Free,
        Approach::Keyless { missing, status } => return Admission::Keyless { missing, status },
    };
    let (verdict, spent) = gate.check(key, cost, listed);
    let passes = verdict.is_allowed() || gate.is_shadow();
    if passes && !settings.keeps_outcome() {
        return Admission::Free;
    }
    let checked = Checked::new(gate, 0, key, cost, verdict, spent, request);
    let limited = RateLimited::new(Arc::clone(settings), Few::one(checked));
    if passes { Admission::Limited(limited) } else { Admission::Refused(limited) }
}

/// Passes all the gates that apply, or none.
///
/// All keys are found before anything is spent, and all limits are asked together: they are spent on when none of those
/// that are enforced refuses. See [`check_all`](crate::check_all) for what holds under concurrent requests.
fn pass_all(settings: &Arc<Settings>, gates: &[Gate], request: &RequestHead<'_>) -> Admission {
    let mut plan = Vec::with_capacity(gates.len());
    for (place, gate) in gates.iter().enumerate() {
        match gate.approach(request) {
            Approach::Check { key, cost, listed } => plan.push((place, gate, key, cost, listed)),
            Approach::Skip => {}
            Approach::Keyless { missing, status } => return Admission::Keyless { missing, status },
        }
    }
    // What costs nothing passes without being counted.
    // What costs nothing is not asked for, but who is kept out is not let through.
    for &(place, gate, key, cost, listed) in &plan {
        if cost == 0 && listed.is_none() && !gate.is_shadow() {
            let (decision, spent) = gate.free(key);
            if decision.is_kept_out() {
                let verdict = gate.judge(decision, cost);
                let checked = Checked::new(gate, place, key, cost, verdict, spent, request);
                return Admission::Refused(RateLimited::new(Arc::clone(settings), Few::one(checked)));
            }
        }
    }
    let asks = plan.iter().filter(|(.., cost, listed)| *cost > 0 || listed.is_some());
    let asks = asks.map(|&(_, gate, key, cost, listed)| {
        let gate: &Gate = gate;
        Ask { limiter: gate.limiter(), key, listed, cost, enforced: !gate.is_shadow() }
    });
    let asks: Vec<Ask<'_>> = asks.collect();
    let Decided { refused, answers } = together::decide(&asks);
    // The limits after one that refused are not heard.
    let mut answers = answers.into_iter().take(refused.map_or(usize::MAX, |place| place + 1));
    let mut checks = Few::new();
    for (place, gate, key, cost, listed) in plan {
        let asked = cost > 0 || listed.is_some();
        let answer = if asked { answers.next() } else { Some(gate.free(key)) };
        let Some((decision, spent)) = answer else { break };
        let verdict = gate.judge(decision, cost);
        checks.push(Checked::new(gate, place, key, cost, verdict, spent, request));
    }
    if refused.is_some() {
        Admission::Refused(RateLimited::new(Arc::clone(settings), checks))
    } else if checks.is_empty() || !settings.keeps_outcome() {
        Admission::Free
    } else {
        Admission::Limited(RateLimited::new(Arc::clone(settings), checks))
    }
}
