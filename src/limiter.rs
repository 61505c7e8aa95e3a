//! The handle that users hold.

mod rules;

use std::sync::Arc;

use crate::{
    clock::Clock,
    decision::Decision,
    error::CostError,
    handle::KeyHandle,
    key::{Key, KeyHasher, KeySource},
    limit::Limit,
    table::Table,
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
    table: Arc<Table>,
    clock: Clock,
    hasher: KeyHasher,
}

impl Limiter {
    /// A limiter that belongs to no fleet.
    pub fn new(limit: Limit) -> Self {
        Self::with_clock(limit, Clock::system())
    }

    /// A limiter that belongs to no fleet and reads another clock, such as a [`ManualClock`](crate::ManualClock).
    pub fn with_clock(limit: Limit, clock: impl Into<Clock>) -> Self {
        Self::from_parts(Arc::new(Table::new(limit)), clock.into(), KeyHasher::default())
    }

    /// A limiter over a table that gossip tells of the fleet.
    pub(crate) fn from_parts(table: Arc<Table>, clock: Clock, hasher: KeyHasher) -> Self {
        table.list_keys(&hasher);
        Self { table, clock, hasher }
    }

    /// Decides a request of one unit, and spends the unit if it is allowed. A refused request costs nothing.
    #[inline]
    pub fn check(&self, key: impl KeySource) -> Decision<'_> {
        if let Some(decision) = self.by_network(&key, 1) {
            return decision;
        }
        self.decide(self.hasher.key(key), 1)
    }

    /// Decides a request of `cost` units, and spends them all if it is allowed, none otherwise. A cost of 0 is
    /// allowed whenever nothing is owed.
    ///
    /// # Errors
    /// A cost above the limit's capacity could never pass; nothing is spent.
    #[inline]
    pub fn check_cost(&self, key: impl KeySource, cost: u64) -> Result<Decision<'_>, CostError> {
        self.limit().check_fits(cost)?;
        if let Some(decision) = self.by_network(&key, cost) {
            return Ok(decision);
        }
        Ok(self.decide(self.hasher.key(key), cost))
    }

    // Compiled here, once, and not again in each crate that checks.
    fn decide(&self, key: Key, cost: u64) -> Decision<'_> {
        let wall = self.table.meter().needs_wall();
        self.table.check(key, cost, self.clock.coarse(wall), move || self.clock.exact(wall))
    }

    /// What [`check`](Self::check) would answer now; spends nothing, and takes no room for a new key.
    pub fn peek(&self, key: impl KeySource) -> Decision<'_> {
        let now = self.clock.precise();
        match key.address().and_then(|address| self.listed(address)) {
            Some(listed) => self.table.decide_listed(listed, self.hasher.key(key), 1, now, false),
            None => self.table.peek(self.hasher.key(key), 1, now),
        }
    }

    /// Gives back up to `units` that this node spent on `key` in the current epoch, and returns how many it took back.
    ///
    /// Never mints credit: the level stays at or below the capacity, and units that another node spent, that were
    /// given back already, or whose epoch is over, are not given back.
    pub fn refund(&self, key: impl KeySource, units: u64) -> u64 {
        self.table.refund(self.hasher.key(key), units, self.clock.precise())
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

    /// The clock that this limiter decides by.
    #[cfg(feature = "http")]
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A handle for a key that is known in advance, which saves its checks the digest and the look-up.
    pub fn handle(&self, key: impl KeySource) -> KeyHandle {
        let listed = key.address().and_then(|address| self.listed(address));
        KeyHandle::new(Arc::clone(&self.table), self.clock.clone(), self.hasher.key(key), listed)
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        self.table.limit()
    }

    /// How many keys are held now.
    pub fn live_keys(&self) -> usize {
        self.table.live_keys()
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").field("limit", self.limit()).field("live_keys", &self.live_keys()).finish()
    }
}
