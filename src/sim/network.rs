//! What lies between the nodes.

use std::time::Duration;

use crate::time::saturating_nanos;

/// How messages fare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// The shortest time that a message takes, one way.
    pub min_delay: Duration,
    /// The longest; delays are spread evenly between the two, so messages overtake each other.
    pub max_delay: Duration,
    /// Which part of the datagrams is lost. Streams are sent again, and come later instead.
    pub loss: f64,
    /// Which part of the datagrams comes twice.
    pub duplication: f64,
    /// Which part of the datagrams is held back by up to `hold`, so that many others overtake it.
    pub reordering: f64,
    /// How long a datagram is held back at most.
    pub hold: Duration,
    /// What a datagram can carry, in bytes.
    pub datagram_bytes: usize,
    /// A connection over which nothing comes for so long is given up.
    pub idle_timeout: Duration,
    /// After a connection was given up, the next attempt succeeds at most so long after the network allows it.
    pub max_reconnect: Duration,
}

impl Default for Network {
    /// A local network: 1 to 2 ms one way, nothing lost.
    fn default() -> Self {
        Self {
            min_delay: Duration::from_millis(1),
            max_delay: Duration::from_millis(2),
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            hold: Duration::from_millis(50),
            datagram_bytes: 1_200,
            idle_timeout: Duration::from_secs(5),
            max_reconnect: Duration::from_secs(1),
        }
    }
}

impl Network {
    /// A wide-area network: 40 to 60 ms one way.
    pub fn wide_area() -> Self {
        Self { min_delay: Duration::from_millis(40), max_delay: Duration::from_millis(60), ..Self::default() }
    }

    pub(super) fn delay(&self, rng: &mut fastrand::Rng) -> u64 {
        let (least, most) = (saturating_nanos(self.min_delay), saturating_nanos(self.max_delay));
        rng.u64(least..=most.max(least))
    }

    /// After how many nanoseconds each copy of a datagram arrives.
    pub(super) fn datagram(&self, rng: &mut fastrand::Rng) -> impl Iterator<Item = u64> + use<> {
        let first = (rng.f64() >= self.loss).then(|| self.held(rng));
        let second = (first.is_some() && rng.f64() < self.duplication).then(|| self.held(rng));
        first.into_iter().chain(second)
    }

    fn held(&self, rng: &mut fastrand::Rng) -> u64 {
        let held = rng.f64() < self.reordering;
        self.delay(rng) + if held { rng.u64(0..=saturating_nanos(self.hold)) } else { 0 }
    }

    /// After how many nanoseconds a stream's last byte arrives: each loss costs a round trip and the timer's margin.
    pub(super) fn stream(&self, rng: &mut fastrand::Rng) -> u64 {
        let mut nanos = self.delay(rng);
        for _ in 0..MAX_RESENDS {
            if rng.f64() >= self.loss {
                break;
            }
            nanos += saturating_nanos(3 * self.max_delay + RESEND);
        }
        nanos
    }
}

const MAX_RESENDS: usize = 20;
/// What a stream's sender waits beyond three delays before it sends again.
pub(super) const RESEND: Duration = Duration::from_millis(10);
