//! The handle that users hold.

mod rules;

#[cfg(feature = "acquire")]
use std::{sync::Arc, time::Duration};

#[cfg(feature = "acquire")]
use crate::acquire::{Acquire, Lines, Wanted};
#[cfg(feature = "http")]
use crate::bands::Receipt;
use crate::{
    bands::Bands,
    clock::Clock,
    decision::Decision,
    error::{CostError, Refusal},
    handle::KeyHandle,
    key::{Key, KeyHasher, KeySource},
    limit::Limit,
    permit::Permit,
    table::{NO_SLOT, plain::Plain},
    time::{Now, Timestamp},
};

/// One limit, ready to decide.
///
/// Cloning is cheap, and all clones count together. Every method may be called from any thread, blocks on nothing
/// and needs no runtime. A limiter made by [`Limiter::new`] counts for itself alone; one that a mesh hands out
/// counts for the fleet.
///
/// ```
/// use ratemesh::{Limit, Limiter, Quota};
///
/// let limiter = Limiter::new(Limit::token_bucket("api", Quota::per_second(100)).burst(2).build()?);
/// assert!(limiter.check("alice").is_allowed());
/// assert!(limiter.check("alice").is_allowed());
/// let refused = limiter.check("alice");
/// assert!(!refused.is_allowed());
/// assert!(refused.retry_after().unwrap().as_millis() <= 10);
/// # Ok::<(), ratemesh::LimitError>(())
/// ```
#[derive(Clone)]
pub struct Limiter {
    bands: Bands,
    clock: Clock,
    hasher: KeyHasher,
    #[cfg(feature = "acquire")]
    lines: Arc<Lines>,
}

impl Limiter {
    /// A limiter that belongs to no fleet.
    pub fn new(limit: Limit) -> Self {
        Self::with_clock(limit, Clock::system())
    }

    /// A limiter that belongs to no fleet and reads another clock, such as a [`ManualClock`](crate::ManualClock).
    pub fn with_clock(limit: Limit, clock: impl Into<Clock>) -> Self {
        Self::from_parts(Bands::new(limit), clock.into(), KeyHasher::default())
    }

    /// A limiter over tables that gossip tells of the fleet.
    pub(crate) fn from_parts(bands: Bands, clock: Clock, hasher: KeyHasher) -> Self {
        let now = clock.precise();
        bands.tables().for_each(|table| table.list_keys(&hasher, now));
        Self {
            bands,
            clock,
            hasher,
            #[cfg(feature = "acquire")]
            lines: Arc::default(),
        }
    }

    /// Decides a request of one unit, and spends the unit if it is allowed. A refused request costs nothing.
    #[inline]
    pub fn check(&self, key: impl KeySource) -> Decision<'_> {
        if let Some(decision) = self.by_network(&key, 1) {
            return decision;
        }
        let mono = self.clock.tick();
        self.decide_at(self.hasher.key(key), 1, mono)
    }

    /// Decides a request of `cost` units, and spends them all if it is allowed, none otherwise. A cost of 0 is
    /// allowed whenever nothing is owed.
    ///
    /// # Errors
    /// A cost above the limit's capacity could never pass; nothing is spent.
    #[inline]
    pub fn check_cost(&self, key: impl KeySource, cost: u64) -> Result<Decision<'_>, CostError> {
        if let Some(decision) = self.by_network(&key, cost) {
            self.limit().check_fits(cost)?;
            return Ok(decision);
        }
        let key = self.hasher.key(key);
        self.bands.check_fits(key, cost)?;
        let mono = self.clock.tick();
        Ok(self.decide_at(key, cost, mono))
    }

    #[cfg(feature = "http")]
    pub(crate) fn decide(&self, key: Key, cost: u64) -> Decision<'_> {
        let mono = self.clock.tick();
        self.decide_at(key, cost, mono)
    }

    // Compiled here, once, and not again in each crate that checks.
    fn decide_at(&self, key: Key, cost: u64, mono: Timestamp) -> Decision<'_> {
        let table = self.bands.first();
        let mut slot = table.recall_at_once(key);
        if slot > u64::from(NO_SLOT) {
            slot = table.guess_anew(key);
        }
        match table.try_plainly(slot, key, cost, mono) {
            Plain::Allowed { level, basis } => table.allowed(level, cost, Now::by_mono(mono), basis),
            Plain::Due { level } => self.allowed_when_due(key, level, cost, mono),
            Plain::Unsure { .. } => self.look_again(key, cost, mono),
            Plain::Contended => self.decide_in_company(key, cost, mono),
            Plain::Elsewhere => self.decide_elsewhere(key, cost, mono),
            Plain::Closed => self.decide_otherwise(key, cost, mono),
        }
    }

    #[inline(never)]
    fn allowed_when_due(&self, key: Key, level: i64, cost: u64, mono: Timestamp) -> Decision<'_> {
        let table = self.bands.first();
        table.allowed_when_due(table.slot_of(key), level, cost, Now::by_mono(mono))
    }

    #[inline(never)]
    fn look_again(&self, key: Key, cost: u64, mono: Timestamp) -> Decision<'_> {
        let (table, now) = (self.bands.first(), Now::by_mono(mono));
        let slot = table.slot_of(key);
        table.check_again(slot, key, cost, now, false, move || self.clock.exact(false))
    }

    /// The same for a key that others check at this moment.
    #[inline(never)]
    fn decide_in_company(&self, key: Key, cost: u64, mono: Timestamp) -> Decision<'_> {
        let (table, now) = (self.bands.first(), Now::by_mono(mono));
        let slot = table.slot_of(key);
        loop {
            // Where another thread was faster, the line is this processor's now, and a try at once is likely to be the last.
            break match table.try_found(slot, key, cost, mono) {
                Plain::Allowed { level, basis } => table.allowed(level, cost, now, basis),
                Plain::Due { level } => table.allowed_when_due(slot, level, cost, now),
                Plain::Unsure { .. } => return self.look_again(key, cost, mono),
                Plain::Contended => continue,
                Plain::Elsewhere | Plain::Closed => return self.decide_elsewhere(key, cost, mono),
            };
        }
    }

    /// The same for a key that is not where it was taken to be, is decided on at length, or is new.
    #[inline(never)]
    fn decide_elsewhere(&self, key: Key, cost: u64, mono: Timestamp) -> Decision<'_> {
        let (table, now) = (self.bands.first(), Now::by_mono(mono));
        let slot = match table.recall(key) {
            // No place has its tag.
            NO_SLOT => table.look_for_stray(key),
            slot if table.is_at(slot, key) => slot,
            _ => table.look_up(key),
        };
        table.check_in(slot, key, cost, now, move || self.clock.exact(false))
    }

    /// The same where the short way is closed.
    #[inline(never)]
    fn decide_otherwise(&self, key: Key, cost: u64, mono: Timestamp) -> Decision<'_> {
        if !self.bands.is_single() {
            return self.bands.check(key, cost, self.clock.precise());
        }
        let table = self.bands.first();
        table.count_check();
        let slot = table.slot_of(key);
        if !table.needs_wall() {
            let precise = move || self.clock.exact(false);
            return table.check_in(slot, key, cost, Now::by_mono(mono), precise);
        }
        let precise = move || self.clock.exact(true);
        let now = Now { mono, wall: self.clock.wall_tick() };
        match table.try_by_window(slot, key, cost, now) {
            Plain::Allowed { level, basis } => table.allowed(level, cost, now, basis),
            Plain::Due { level } => table.allowed_when_due(slot, level, cost, now),
            Plain::Unsure { full } => table.check_again(slot, key, cost, now, full, precise),
            Plain::Contended | Plain::Elsewhere | Plain::Closed => {
                table.check_in(slot, key, cost, now, precise)
            }
        }
    }

    /// Spends `cost` units in advance, for work that may turn out dearer, cheaper or free: the [`Permit`] corrects the
    /// cost, or gives it back.
    ///
    /// # Errors
    /// What was refused, and until when. Nothing is spent.
    pub fn reserve(&self, key: impl KeySource, cost: u64) -> Result<Permit, Refusal<'_>> {
        let listed = self.listed_network(&key);
        let key = self.hasher.key(key);
        self.bands.check_fits(key, cost)?;
        Permit::reserve(&self.bands, &self.clock, key, listed, cost)
    }

    /// Waits until `cost` units are there, and spends them; the [`Permit`](crate::Permit) can correct the cost.
    ///
    /// Those who wait for a key are served in the order they came, by the first poll of their futures. [`check`](Self::check)
    /// and [`reserve`](Self::reserve) do not stand in line, and may take what is there in between. Dropping the future gives up its
    /// place, and gives back what was spent for it. Units that come back within 5 ms may be spent at once; the future is
    /// ready when they have come.
    ///
    /// It waits in a task of a tokio runtime with time enabled, or, where the limiter was given a
    /// [`ManualClock`](crate::ManualClock), in a task of any runtime until that clock has been moved far enough. (The
    /// system's clock does not follow `tokio::time::pause`; such tests take a manual clock.)
    ///
    /// # Errors
    /// At once, where the cost could never pass, or where requests for [`Limit::queue`] units wait already.
    #[cfg(feature = "acquire")]
    pub fn acquire(&self, key: impl KeySource, cost: u64) -> Acquire<'_> {
        self.wanted(key, cost, None).acquire()
    }

    /// The same, but waits no longer than `timeout`.
    ///
    /// # Errors
    /// At once, also where the units could not come in time, even if nobody else spends; and otherwise when the time has
    /// passed.
    #[cfg(feature = "acquire")]
    pub fn acquire_timeout(&self, key: impl KeySource, cost: u64, timeout: Duration) -> Acquire<'_> {
        self.wanted(key, cost, Some(timeout)).acquire()
    }

    #[cfg(feature = "acquire")]
    fn wanted(&self, key: impl KeySource, cost: u64, timeout: Option<Duration>) -> Wanted<'_> {
        let listed = self.listed_network(&key);
        let key = self.hasher.key(key);
        Wanted { bands: &self.bands, clock: &self.clock, lines: &self.lines, key, listed, cost, timeout }
    }

    /// What [`check`](Self::check) would answer now; spends nothing, and takes no room for a new key.
    pub fn peek(&self, key: impl KeySource) -> Decision<'_> {
        self.look(&key, 1)
    }

    /// What [`check_cost`](Self::check_cost) would answer now; spends nothing, and takes no room for a new key.
    ///
    /// # Errors
    /// A cost above the limit's capacity could never pass.
    pub fn peek_cost(&self, key: impl KeySource, cost: u64) -> Result<Decision<'_>, CostError> {
        self.bands.check_fits(self.hasher.key(&key), cost)?;
        Ok(self.look(&key, cost))
    }

    fn look(&self, key: &impl KeySource, cost: u64) -> Decision<'_> {
        self.bands.look(self.hasher.key(key), self.listed_network(key), cost, self.clock.precise())
    }

    /// Gives back up to `units` that this node spent on `key` in the current epoch, and returns how many it took back.
    ///
    /// Never mints credit: the level stays at or below the capacity, and units that another node spent, that were
    /// given back already, or whose epoch is over, are not given back.
    ///
    /// Which units it were, nobody says; where that matters, [`reserve`](Self::reserve) them. Right after the turn of a
    /// window, until the next heartbeat, units of the last one may come back in place of what peers have spent in
    /// this one.
    pub fn refund(&self, key: impl KeySource, units: u64) -> u64 {
        self.bands.refund(self.hasher.key(key), units, self.clock.precise())
    }

    /// Digests a key once, for a caller that checks it often or against several limits of one mesh.
    #[inline]
    pub fn key(&self, key: impl KeySource) -> Key {
        self.hasher.key(key)
    }

    /// Digests keys for this limiter.
    #[cfg(feature = "http")]
    pub(crate) fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// Spends `cost` units if they are there, and says where. A cost that can never pass is refused.
    #[cfg(feature = "http")]
    pub(crate) fn spend(&self, key: Key, cost: u64) -> (Decision<'_>, Receipt) {
        if self.bands.check_fits(key, cost).is_err() {
            return (self.bands.peek(key, cost, self.clock.precise()), Receipt::default());
        }
        let wall = self.bands.first().needs_wall();
        self.bands.take(key, cost, self.clock.coarse(wall), || self.clock.exact(wall))
    }

    /// Gives back units that were spent there.
    #[cfg(feature = "http")]
    pub(crate) fn give_back(&self, receipt: &Receipt, units: u64) {
        self.bands.give_back(receipt, units, self.clock.precise());
    }

    pub(crate) fn bands(&self) -> &Bands {
        &self.bands
    }

    /// Whether the two share one state.
    #[cfg(feature = "net")]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(&**self.bands.first(), &**other.bands.first())
    }

    /// The clock that this limiter decides by.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A handle for a key that is known in advance, which saves its checks the digest and the look-up.
    pub fn handle(&self, key: impl KeySource) -> KeyHandle {
        let address = key.address();
        KeyHandle::new(
            self.bands.clone(),
            self.clock.clone(),
            self.hasher.key(key),
            address,
            #[cfg(feature = "acquire")]
            Arc::clone(&self.lines),
        )
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        self.bands.limit()
    }

    /// How many keys are held now.
    pub fn live_keys(&self) -> usize {
        self.bands.first().live_keys()
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").field("limit", self.limit()).field("live_keys", &self.live_keys()).finish()
    }
}
