//! Lets a request through all of its gates, or none.

use std::sync::Arc;

use http::StatusCode;

use super::{
    MissingKey, RequestHead,
    few::Few,
    gate::{Approach, Gate, Verdict},
    limited::{Checked, RateLimited},
    settings::Settings,
};
use crate::{
    decision::Decision,
    key::Key,
    lists::Override,
    together::{self, Ask, Decided, Receipt},
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
#[inline(never)]
pub(super) fn admit(settings: &Arc<Settings>, request: &RequestHead<'_>) -> Admission {
    match settings.gates.as_slice() {
        [gate] => go_on(settings, gate, request, gate.approach(request)),
        gates => pass_all(settings, gates, request),
    }
}

/// Passes the only gate from where it has been approached. Where the outcome need not be kept, nothing is allocated.
pub(super) fn go_on(
    settings: &Arc<Settings>,
    gate: &Gate,
    request: &RequestHead<'_>,
    approach: Approach,
) -> Admission {
    let (key, cost, listed) = match approach {
        Approach::Check { key, cost, listed } => (key, cost, listed),
        Approach::Skip => return Admission::Free,
        Approach::Keyless { missing, status } => return Admission::Keyless { missing, status },
    };
    // Whatever the application's own code does, it does before anything is spent.
    let partition_key = gate.partition_key_of(request);
    if !settings.keeps_outcome() {
        return match gate.let_pass(key, cost, listed) {
            Ok(()) => Admission::Free,
            Err(verdict) => refuse(settings, gate, (key, cost), verdict, partition_key),
        };
    }
    let (verdict, spent) = gate.check(key, cost, listed);
    let passes = verdict.is_allowed() || gate.is_shadow();
    let checked = Checked::new(gate, 0, key, cost, verdict, spent, partition_key);
    let limited = RateLimited::new(Arc::clone(settings), Few::one(checked));
    if passes { Admission::Limited(limited) } else { Admission::Refused(limited) }
}

/// The only gate has refused this key this cost.
pub(super) fn refuse(
    settings: &Arc<Settings>,
    gate: &Gate,
    (key, cost): (Key, u64),
    verdict: Verdict<'_>,
    partition_key: Option<Box<[u8]>>,
) -> Admission {
    let checked = Checked::new(gate, 0, key, cost, verdict, Receipt::default(), partition_key);
    Admission::Refused(RateLimited::new(Arc::clone(settings), Few::one(checked)))
}

/// Passes all the gates that apply, or none.
///
/// All keys are found before anything is spent, and all limits are asked together: they are spent on when none of those
/// that are enforced refuses. See [`check_all`](crate::check_all) for what holds under concurrent requests.
fn pass_all(settings: &Arc<Settings>, gates: &[Gate], request: &RequestHead<'_>) -> Admission {
    let mut plan = Vec::with_capacity(gates.len());
    for (place, gate) in gates.iter().enumerate() {
        match gate.approach(request) {
            Approach::Check { key, cost, listed } => {
                plan.push(Planned {
                    place,
                    gate,
                    key,
                    cost,
                    listed,
                    partition_key: gate.partition_key_of(request),
                });
            }
            Approach::Skip => {}
            Approach::Keyless { missing, status } => return Admission::Keyless { missing, status },
        }
    }
    // What costs nothing is not asked for, but who is kept out is not let through.
    if let Some(index) = plan.iter().position(Planned::is_kept_out_for_free) {
        let refused = plan.swap_remove(index);
        let answer = refused.gate.free(refused.key);
        let checks = Few::one(refused.checked(answer));
        return Admission::Refused(RateLimited::new(Arc::clone(settings), checks));
    }
    let asks: Vec<_> = plan.iter().filter(|planned| planned.is_asked()).map(Planned::ask).collect();
    let Decided { refused, answers } = together::decide(&asks);
    // The limits after one that refused are not heard.
    let mut answers = answers.into_iter().take(refused.map_or(usize::MAX, |place| place + 1));
    let mut checks = Few::new();
    for planned in plan {
        let answer = if planned.is_asked() { answers.next() } else { Some(planned.gate.free(planned.key)) };
        let Some(answer) = answer else { break };
        checks.push(planned.checked(answer));
    }
    if refused.is_some() {
        Admission::Refused(RateLimited::new(Arc::clone(settings), checks))
    } else if checks.is_empty() || !settings.keeps_outcome() {
        Admission::Free
    } else {
        Admission::Limited(RateLimited::new(Arc::clone(settings), checks))
    }
}

/// A gate that a request is to pass.
struct Planned<'a> {
    place: usize,
    gate: &'a Gate,
    key: Key,
    cost: u64,
    listed: Option<Override>,
    /// Found out beforehand: whatever the application's own code does, it does before anything is spent.
    partition_key: Option<Box<[u8]>>,
}

impl<'a> Planned<'a> {
    fn is_asked(&self) -> bool {
        self.cost > 0 || self.listed.is_some()
    }

    fn is_kept_out_for_free(&self) -> bool {
        !self.is_asked() && !self.gate.is_shadow() && self.gate.free(self.key).0.is_kept_out()
    }

    fn ask(&self) -> Ask<'a> {
        let Self { gate, key, cost, listed, .. } = *self;
        Ask { limiter: gate.limiter(), key, listed, cost, enforced: !gate.is_shadow() }
    }

    fn checked(self, (decision, receipt): (Decision<'a>, Receipt)) -> Checked {
        let Self { place, gate, key, cost, partition_key, .. } = self;
        Checked::new(gate, place, key, cost, gate.judge(decision, cost), receipt, partition_key)
    }
}
