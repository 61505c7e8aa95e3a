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
    let verdict = gate.check(key, cost, listed);
    let passes = verdict.is_allowed() || gate.is_shadow();
    if passes && !settings.keeps_outcome() {
        return Admission::Free;
    }
    let checked = Checked::new(gate, 0, key, cost, verdict, request);
    let limited = RateLimited::new(Arc::clone(settings), Few::one(checked));
    if passes { Admission::Limited(limited) } else { Admission::Refused(limited) }
}

/// Passes all the gates that apply, or none.
///
/// All keys are found before anything is spent. Then the gates are asked in order, and the first that refuses has
/// what the earlier ones spent given back. Until then another request may find those units spent, and be refused
/// for it; none can be let through too many.
fn pass_all(settings: &Arc<Settings>, gates: &[Gate], request: &RequestHead<'_>) -> Admission {
    let mut plan = Vec::with_capacity(gates.len());
    for (place, gate) in gates.iter().enumerate() {
        match gate.approach(request) {
            Approach::Check { key, cost, listed } => plan.push((place, gate, key, cost, listed)),
            Approach::Skip => {}
            Approach::Keyless { missing, status } => return Admission::Keyless { missing, status },
        }
    }
    let mut checks = Few::new();
    let mut passes = true;
    for (place, gate, key, cost, listed) in plan {
        let verdict = gate.check(key, cost, listed);
        passes = verdict.is_allowed() || gate.is_shadow();
        checks.push(Checked::new(gate, place, key, cost, verdict, request));
        if !passes {
            break;
        }
    }
    if !passes {
        for checked in checks.iter_mut() {
            checked.give_back(gates);
        }
        Admission::Refused(RateLimited::new(Arc::clone(settings), checks))
    } else if checks.is_empty() || !settings.keeps_outcome() {
        Admission::Free
    } else {
        Admission::Limited(RateLimited::new(Arc::clone(settings), checks))
    }
}
