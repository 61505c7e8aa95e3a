//! What a limiter is told about single keys: bans, overrides and resets.

use std::time::Duration;

use super::Limiter;
use crate::{
    decision::Decision,
    error::RuleError,
    key::{Key, KeySource},
    lists::Override,
    table::Table,
    time::Now,
};

/// Bans, overrides and resets. What is said on one node of a fleet holds on all as soon as they hear of it; it survives a
/// node's restart as long as one of its peers is up, and ends with the last of them.
impl Limiter {
    /// Bans `key` for `duration`, up to [`MAX_BAN`](crate::MAX_BAN): its requests are refused, whatever is left to it,
    /// and `retry_after` is the rest of the ban.
    ///
    /// A ban of a banned key only ever lengthens it, also where two nodes ban one key at once. It ends by itself, or by
    /// [`unban`](Self::unban). On other nodes it may last longer by as long as the message was under way.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratemesh::{Limit, Limiter, Quota};
    ///
    /// let logins = Limiter::new(Limit::token_bucket("logins", Quota::per_minute(5)).build()?);
    /// logins.ban("mallory", Duration::from_secs(3_600))?;
    /// let decision = logins.check("mallory");
    /// assert!(decision.is_banned() && !decision.is_allowed());
    /// assert!(decision.retry_after().unwrap() > Duration::from_secs(3_599));
    /// assert!(logins.unban("mallory")?);
    /// assert!(logins.check("mallory").is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The duration will not do, or as many keys are banned as can be ([`MAX_BANS`](crate::MAX_BANS)).
    pub fn ban(&self, key: impl KeySource, duration: Duration) -> Result<(), RuleError> {
        let (key, now) = (self.hasher.key(key), self.clock.precise());
        self.bands.tables().try_for_each(|table| table.ban(key, duration, now))
    }

    /// Ends the ban of `key`; returns whether it was banned, as far as this node had heard. Its level is what it would
    /// have been without the ban.
    ///
    /// # Errors
    /// Bans of the key cannot be numbered any further, which takes a peer that lies.
    pub fn unban(&self, key: impl KeySource) -> Result<bool, RuleError> {
        let key = self.hasher.key(key);
        self.clear_each(|table, now| table.unban(key, now))
    }

    /// The banned keys, in the order of their digests, and for how long each is banned still.
    pub fn bans(&self) -> Vec<(Key, Duration)> {
        let now = self.clock.precise();
        let mut bans = std::collections::BTreeMap::new();
        for (key, left) in self.bands.tables().flat_map(|table| table.bans(now)) {
            let longest: &mut Duration = bans.entry(key).or_default();
            *longest = left.max(*longest);
        }
        bans.into_iter().collect()
    }

    /// Sets what applies to `key` in place of what the limit says, until it is [cleared](Self::clear_override) or set
    /// otherwise: that it is admitted, refused, or has a quota of its own in place of all the limit's quotas.
    ///
    /// A quota holds at once, and what has been spent counts on: what was missing to the former capacity is missing to the
    /// new one, as far as debts may go: a bucket owes at most its burst or what a second brings, a fixed window nothing, so that
    /// the next one begins with its whole quota, permits and sliding windows whatever is in use. So a key that has a tiny quota for a
    /// while owes no more than that when it has its former one again. A node that has not heard of it yet decides by the
    /// former quota; what it admits is counted by all.
    ///
    /// Of a key's own rules a denial goes first, be it set here or listed in the limit, then a ban, then an admission or a
    /// quota, of which the one set here goes before the one in the limit; and all of them before what is said of the network
    /// of an address. Where two nodes set it at once, one of the two holds on all nodes.
    ///
    /// ```
    /// use ratemesh::{Limit, Limiter, ManualClock, Override, Quota};
    ///
    /// let limit = Limit::token_bucket("api", Quota::per_second(10)).build()?;
    /// let api = Limiter::with_clock(limit, ManualClock::new());
    /// assert_eq!(api.check("alice").remaining(), 9);
    /// api.set_override("alice", Override::quota(Quota::per_second(500)))?;
    /// assert_eq!(api.check("alice").remaining(), 498);
    /// api.clear_override("alice")?;
    /// assert_eq!(api.check("alice").remaining(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The quota cannot stand, or is of other periods than the limit's windows; there have been too many different ones; or
    /// as many keys have an override as can have one ([`MAX_OVERRIDES`](crate::MAX_OVERRIDES)).
    pub fn set_override(&self, key: impl KeySource, says: Override) -> Result<(), RuleError> {
        let (key, now) = (self.hasher.key(key), self.clock.precise());
        let exempt = match says {
            // It takes the place of all the limit's quotas.
            Override::Quota { .. } => Override::Allow,
            says => says,
        };
        self.bands.first().set_override(key, says, now)?;
        self.bands.tables().skip(1).try_for_each(|table| table.set_override(key, exempt, now))
    }

    /// Ends what [`set_override`](Self::set_override) set; returns whether there was anything, as far as this node had
    /// heard. The limit's own lists stay.
    ///
    /// A node that has been cut off for more than an hour when it hears of it may bring the override back.
    ///
    /// # Errors
    /// Overrides of the key cannot be numbered any further, which takes a peer that lies.
    pub fn clear_override(&self, key: impl KeySource) -> Result<bool, RuleError> {
        let key = self.hasher.key(key);
        self.clear_each(|table, now| table.clear_override(key, now))
    }

    /// The keys with an override that was set at run time, in the order of their digests.
    pub fn overrides(&self) -> Vec<(Key, Override)> {
        self.bands.first().overrides()
    }

    /// Lets `key` start anew, with its full capacity, on all nodes. What was spent on it before counts no more, wherever
    /// and whenever it is heard of. A ban is not ended by it.
    ///
    /// A node that cannot be heard for ten minutes misses it.
    ///
    /// # Errors
    /// Ten thousand keys have been reset within twenty minutes.
    pub fn reset(&self, key: impl KeySource) -> Result<(), RuleError> {
        let (key, now) = (self.hasher.key(key), self.clock.precise());
        self.bands.tables().try_for_each(|table| table.reset(key, now))
    }

    /// What the limit's lists say of the network of an address, for the key that stands for it.
    #[cfg(feature = "http")]
    #[inline]
    pub(crate) fn listed(&self, address: std::net::IpAddr, key: Key) -> Option<Override> {
        self.bands.listed(address, key)
    }

    /// What the limit's lists say of the network of the address that `key` is, if it is one.
    #[inline]
    pub(crate) fn listed_network(&self, key: &impl KeySource) -> Option<Override> {
        let address = key.address().filter(|_| self.limit().lists().is_some())?;
        self.bands.listed(address, self.hasher.key(key))
    }

    /// Decides by the network of the address that `key` is, where the limit's lists say something of it.
    #[inline]
    pub(super) fn by_network(&self, key: &impl KeySource, cost: u64) -> Option<Decision<'_>> {
        let listed = self.listed_network(key)?;
        Some(self.decide_listed(listed, self.hasher.key(key), cost))
    }

    /// Decides by what a list says of the network of the address that `key` is.
    pub(crate) fn decide_listed(&self, listed: Override, key: Key, cost: u64) -> Decision<'_> {
        self.bands.first().decide_listed(listed, key, cost, self.clock.precise(), true)
    }

    /// Ends something at each of the limit's quotas; returns whether there was anything.
    fn clear_each(&self, clear: impl Fn(&Table, Now) -> Result<bool, RuleError>) -> Result<bool, RuleError> {
        let now = self.clock.precise();
        self.bands.tables().try_fold(false, |any, table| Ok(clear(table, now)? || any))
    }
}
