//! A key known in advance.

use std::{
    fmt,
    net::IpAddr,
    sync::atomic::{AtomicU32, Ordering},
};

#[cfg(feature = "acquire")]
use std::{sync::Arc, time::Duration};

#[cfg(feature = "acquire")]
use crate::acquire::{Acquire, Lines, Wanted};
use crate::{
    bands::Bands,
    clock::Clock,
    decision::Decision,
    error::{CostError, Refusal},
    key::Key,
    limit::Limit,
    lists::Override,
    permit::Permit,
    table::NO_SLOT,
};

/// One key of a limiter, for a caller that knows it in advance: a global limit, a tenant's connection.
///
/// A check through a handle neither digests the key nor looks it up, and costs less than half of what reading
/// `Instant::now` does. It counts together with all other checks of the key. Made by
/// [`Limiter::handle`](crate::Limiter::handle).
///
/// The handle keeps no room for its key: a key that is not spent on for so long that its bucket is full again may be
/// given up, and is taken in anew at the next check, like any other. A handle may be shared between threads, and a
/// clone decides on the same key.
///
/// ```
/// use ratemesh::{Limit, Limiter, Quota};
///
/// let limiter = Limiter::new(Limit::token_bucket("outbound", Quota::per_second(100)).burst(2).build()?);
/// let everyone = limiter.handle(());
/// assert!(everyone.check().is_allowed());
/// assert!(limiter.check(()).is_allowed());
/// assert!(!everyone.check().is_allowed());
/// # Ok::<(), ratemesh::LimitError>(())
/// ```
pub struct KeyHandle {
    bands: Bands,
    clock: Clock,
    key: Key,
    /// Where the key was last, which its cell confirms or denies.
    slot: AtomicU32,
    /// The address that the key is, if it is one: the limit's lists may say something of its network.
    address: Option<IpAddr>,
    #[cfg(feature = "acquire")]
    lines: Arc<Lines>,
}

impl KeyHandle {
    pub(crate) fn new(
        bands: Bands,
        clock: Clock,
        key: Key,
        address: Option<IpAddr>,
        #[cfg(feature = "acquire")] lines: Arc<Lines>,
    ) -> Self {
        Self {
            bands,
            clock,
            key,
            slot: AtomicU32::new(NO_SLOT),
            address,
            #[cfg(feature = "acquire")]
            lines,
        }
    }

    /// Decides a request of one unit, like [`Limiter::check`](crate::Limiter::check).
    #[inline]
    pub fn check(&self) -> Decision<'_> {
        self.decide(1)
    }

    /// Decides a request of `cost` units, like [`Limiter::check_cost`](crate::Limiter::check_cost).
    ///
    /// # Errors
    /// A cost above the limit's capacity could never pass; nothing is spent.
    #[inline]
    pub fn check_cost(&self, cost: u64) -> Result<Decision<'_>, CostError> {
        self.bands.check_fits(self.key, cost)?;
        Ok(self.decide(cost))
    }

    /// What the limit's lists say of the network of the address that the key is.
    #[inline]
    fn listed(&self) -> Option<Override> {
        self.bands.listed(self.address?, self.key)
    }

    // Compiled here, once, and not again in each crate that checks.
    fn decide(&self, cost: u64) -> Decision<'_> {
        if let Some(listed) = self.listed() {
            return self.bands.first().decide_listed(listed, self.key, cost, self.clock.precise(), true);
        }
        if !self.bands.is_single() {
            return self.bands.check(self.key, cost, self.clock.precise());
        }
        let table = self.bands.first();
        let wall = table.needs_wall();
        table.check_at(&self.slot, self.key, cost, self.clock.coarse(wall), move || self.clock.exact(wall))
    }

    /// Spends units in advance, like [`Limiter::reserve`](crate::Limiter::reserve).
    ///
    /// # Errors
    /// What was refused, and until when. Nothing is spent.
    pub fn reserve(&self, cost: u64) -> Result<Permit, Refusal<'_>> {
        self.bands.check_fits(self.key, cost)?;
        Permit::reserve(&self.bands, &self.clock, self.key, self.listed(), cost)
    }

    /// Waits for units, like [`Limiter::acquire`](crate::Limiter::acquire), in the same line.
    ///
    /// # Errors
    /// Where the cost could never pass, or the line is full.
    #[cfg(feature = "acquire")]
    pub fn acquire(&self, cost: u64) -> Acquire<'_> {
        self.wanted(cost, None).acquire()
    }

    /// Waits for units no longer than `timeout`, like [`Limiter::acquire_timeout`](crate::Limiter::acquire_timeout).
    ///
    /// # Errors
    /// Also where the units could not come in time, or have not.
    #[cfg(feature = "acquire")]
    pub fn acquire_timeout(&self, cost: u64, timeout: Duration) -> Acquire<'_> {
        self.wanted(cost, Some(timeout)).acquire()
    }

    #[cfg(feature = "acquire")]
    fn wanted(&self, cost: u64, timeout: Option<Duration>) -> Wanted<'_> {
        let Self { bands, clock, lines, key, .. } = self;
        Wanted { bands, clock, lines, key: *key, listed: self.listed(), cost, timeout }
    }

    /// What [`check`](Self::check) would answer now; spends nothing, and takes no room for a new key.
    pub fn peek(&self) -> Decision<'_> {
        self.bands.look(self.key, self.listed(), 1, self.clock.precise())
    }

    /// Gives units back, like [`Limiter::refund`](crate::Limiter::refund).
    pub fn refund(&self, units: u64) -> u64 {
        self.bands.refund(self.key, units, self.clock.precise())
    }

    /// The key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        self.bands.limit()
    }
}

impl Clone for KeyHandle {
    fn clone(&self) -> Self {
        let slot = AtomicU32::new(self.slot.load(Ordering::Relaxed));
        Self {
            bands: self.bands.clone(),
            clock: self.clock.clone(),
            key: self.key,
            slot,
            address: self.address,
            #[cfg(feature = "acquire")]
            lines: Arc::clone(&self.lines),
        }
    }
}

impl fmt::Debug for KeyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHandle")
            .field("limit", self.limit())
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{Limit, Limiter, ManualClock, OnFull, Quota};

    fn limiter(max_keys: usize) -> (Limiter, ManualClock) {
        let clock = ManualClock::new();
        let limit = Limit::token_bucket("a", Quota::per_second(10))
            .burst(10)
            .max_keys(max_keys)
            .on_full(OnFull::Closed);
        (Limiter::with_clock(limit.build().unwrap(), clock.clone()), clock)
    }

    #[test]
    fn a_handle_and_the_limiter_count_together() {
        let (limiter, _) = limiter(100);
        let handle = limiter.handle("alice");
        let other = handle.clone();
        for left in (0..3).rev() {
            assert!(handle.check().is_allowed());
            assert!(other.check().is_allowed());
            let decision = limiter.check("alice");
            assert!(decision.is_allowed());
            assert_eq!(decision.remaining(), 3 * left + 1);
        }
        assert_eq!(handle.peek().remaining(), 1);
        assert!(handle.check().is_allowed());
        assert!(!handle.check().is_allowed());
        assert!(!limiter.check("alice").is_allowed());
        assert_eq!(handle.refund(4), 4);
        assert!(handle.check_cost(4).unwrap().is_allowed());
        assert!(handle.check_cost(11).is_err());
        assert_eq!(limiter.live_keys(), 1);
    }

    #[test]
    fn a_handle_takes_no_room_before_its_first_check() {
        let (limiter, _) = limiter(100);
        let handle = limiter.handle("alice");
        assert!(handle.peek().is_allowed());
        assert_eq!(handle.refund(1), 0);
        assert_eq!(limiter.live_keys(), 0);
    }

    #[test]
    fn a_handle_never_spends_on_the_key_that_took_its_slot() {
        let (limiter, clock) = limiter(1);
        let handle = limiter.handle("alice");
        assert!(handle.check().is_allowed());
        clock.advance(Duration::from_secs(1));
        // Alice's bucket is full again, so she gives up the only slot.
        assert_eq!(limiter.check("bob").remaining(), 9);
        assert!(!handle.check().is_allowed(), "there is no room for alice");
        assert_eq!(limiter.check("bob").remaining(), 8);
        clock.advance(Duration::from_secs(1));
        // And now Bob gives it up.
        assert_eq!(handle.check().remaining(), 9);
        assert_eq!(handle.check().remaining(), 8);
        assert!(!limiter.check("bob").is_allowed(), "there is no room for bob");
    }

    #[test]
    fn a_handle_finds_its_key_again_wherever_it_went() {
        let (limiter, clock) = limiter(2);
        let handle = limiter.handle("alice");
        assert!(handle.check().is_allowed());
        clock.advance(Duration::from_secs(1));
        assert_eq!(limiter.check_cost("bob", 10).unwrap().remaining(), 0);
        clock.advance(Duration::from_millis(100));
        // Alice's former slot is Bob's or free; a clone made meanwhile knows the old place too.
        let clone = handle.clone();
        assert_eq!(limiter.check_cost("alice", 3).unwrap().remaining(), 7);
        assert_eq!(handle.check().remaining(), 6);
        assert_eq!(clone.check().remaining(), 5);
    }

    #[test]
    fn threads_that_share_a_handle_spend_the_burst_once() {
        let (limiter, clock) = limiter(2);
        let handle = limiter.handle("alice");
        for round in 0..200_u64 {
            let admitted: usize = std::thread::scope(|scope| {
                let check = || (0..8).filter(|_| handle.check().is_allowed()).count();
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(check)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(admitted, 10, "round {round}");
            clock.advance(Duration::from_secs(1));
            // Passers-by push the key out of its slot between the rounds.
            for passer_by in 0..2_u64 {
                let _ = limiter.check((round, passer_by));
            }
            clock.advance(Duration::from_secs(1));
        }
    }
}
