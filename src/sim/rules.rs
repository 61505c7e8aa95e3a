//! Bans, overrides and resets in the simulated fleet.

use std::time::Duration;

use super::Cluster;
use crate::{
    error::RuleError,
    key::{Key, KeySource},
    lists::Override,
    table::Table,
    time::Now,
};

/// What is said of single keys, on one node, now. Nothing is said on a node that is down.
impl Cluster {
    /// Bans a key under a limit on a node, as [`Limiter::ban`](crate::Limiter::ban) does.
    pub fn ban(
        &mut self,
        limit: usize,
        node: usize,
        key: impl KeySource,
        duration: Duration,
    ) -> Result<(), RuleError> {
        self.say(limit, node, key, |table, key, now| table.ban(key, duration, now)).unwrap_or(Ok(()))
    }

    /// Ends a key's ban on a node; returns whether it was banned there.
    pub fn unban(&mut self, limit: usize, node: usize, key: impl KeySource) -> Result<bool, RuleError> {
        self.say(limit, node, key, |table, key, now| table.unban(key, now)).unwrap_or(Ok(false))
    }

    /// Sets an override on a node.
    pub fn set_override(
        &mut self,
        limit: usize,
        node: usize,
        key: impl KeySource,
        says: Override,
    ) -> Result<(), RuleError> {
        self.say(limit, node, key, |table, key, now| table.set_override(key, says, now)).unwrap_or(Ok(()))
    }

    /// Ends an override on a node; returns whether there was one.
    pub fn clear_override(
        &mut self,
        limit: usize,
        node: usize,
        key: impl KeySource,
    ) -> Result<bool, RuleError> {
        self.say(limit, node, key, |table, key, now| table.clear_override(key, now)).unwrap_or(Ok(false))
    }

    /// Resets a key on a node.
    pub fn reset(&mut self, limit: usize, node: usize, key: impl KeySource) -> Result<(), RuleError> {
        self.say(limit, node, key, |table, key, now| table.reset(key, now)).unwrap_or(Ok(()))
    }

    /// The bans that a node knows of under a limit; `None` when it is down.
    pub fn bans(&self, limit: usize, node: usize) -> Option<Vec<(Key, Duration)>> {
        let state = &self.nodes[node];
        Some(state.running()?.limits[limit].first().bans(state.time(self.now)))
    }

    /// The overrides that a node knows of under a limit; `None` when it is down.
    pub fn overrides(&self, limit: usize, node: usize) -> Option<Vec<(Key, Override)>> {
        Some(self.nodes[node].running()?.limits[limit].first().overrides())
    }

    fn say<T>(
        &mut self,
        limit: usize,
        node: usize,
        key: impl KeySource,
        say: impl FnOnce(&Table, Key, Now) -> T,
    ) -> Option<T> {
        let key = self.hasher.key(key);
        let state = &self.nodes[node];
        let said = say(state.running()?.limits[limit].first(), key, state.time(self.now));
        self.after_check(node);
        Some(said)
    }
}
