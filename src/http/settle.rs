//! Gives back what does not count in the end.

use std::{fmt, sync::Arc};

use http::Response;

use super::{
    few::Few,
    gate::{Count, Gate},
    limited::RateLimited,
    settings::Settings,
};
use crate::together::Receipt;

/// What a request has spent and may yet get back.
///
/// Dropped unsettled, the outcome is unknown and counts, unless the handler is seen to have panicked.
pub(super) struct Reservation {
    /// Taken when it is settled.
    limited: Option<RateLimited>,
    /// Whether the service is being called or polled: dropped meanwhile, it has panicked.
    handling: bool,
}

impl Reservation {
    pub(super) fn new(limited: RateLimited) -> Self {
        Self { limited: Some(limited), handling: false }
    }

    /// Runs the handler's code, and remembers if it does not return.
    pub(super) fn handle<T>(&mut self, run: impl FnOnce() -> T) -> T {
        self.handling = true;
        let returned = run();
        self.handling = false;
        returned
    }

    /// Settles by the response.
    pub(super) fn respond<B>(&mut self, response: &Response<B>) -> Option<RateLimited> {
        self.settle(|gate| gate.is_failure(response))
    }

    /// Settles for a service that failed without a response.
    pub(super) fn fail(&mut self) {
        self.settle(|_| true);
    }

    fn settle(&mut self, failed: impl Fn(&Gate) -> bool) -> Option<RateLimited> {
        let mut limited = self.limited.take()?;
        if !limited.settings().settles() {
            return Some(limited);
        }
        limited.give_back(|gate| match gate.counts() {
            Count::All | Count::InFlight => false,
            Count::Failures => !failed(gate),
            Count::Successes => failed(gate),
        });
        Some(limited)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // A panic that is caught in an outer layer drops this later, when the thread no longer panics; so the flag,
        // and not the thread, is asked.
        if self.handling {
            self.settle(|_| true);
        }
    }
}

/// The units of a request in flight, under a limit with [`Count::InFlight`].
///
/// They are given back when the last clone is dropped. The response body holds one to its end. The layer attaches
/// another to the request, from where the handler of an upgraded connection takes it along: the response to a
/// WebSocket handshake ends at once, the connection does not.
#[derive(Clone)]
pub struct InFlight(#[expect(dead_code, reason = "what counts is when it is dropped")] Arc<Held>);

impl InFlight {
    /// What the request holds while it is in flight, if any of its limits counts that.
    pub(super) fn of(limited: &RateLimited) -> Option<Self> {
        let settings = limited.settings();
        if !settings.counts_in_flight() {
            return None;
        }
        let counts =
            |place: usize| settings.gates.get(place).is_some_and(|gate| gate.counts() == Count::InFlight);
        let mut spent = Few::new();
        for checked in limited.checks().filter(|checked| checked.spent > 0 && counts(checked.gate)) {
            spent.push((checked.gate, checked.receipt.clone(), checked.spent));
        }
        (!spent.is_empty()).then(|| Self(Arc::new(Held { settings: Arc::clone(settings), spent })))
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InFlight")
    }
}

struct Held {
    settings: Arc<Settings>,
    /// Place of the gate, where the units were spent, how many.
    spent: Few<(usize, Receipt, u64)>,
}

impl Drop for Held {
    fn drop(&mut self) {
        for (place, receipt, units) in self.spent.iter() {
            if let Some(gate) = self.settings.gates.get(*place) {
                gate.limiter().give_back(receipt, *units);
            }
        }
    }
}
