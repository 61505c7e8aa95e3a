//! Changing the limits of simulated nodes while they run.

use std::time::Duration;

use super::Cluster;
use crate::{
    key::KeyHasher,
    limit::{Limit, LimitError},
};

/// What a node's last words take to arrive, on networks that are not slow.
const LAST_WORDS: Duration = Duration::from_millis(20);

impl Cluster {
    /// Changes the limits of a node that runs, as [`Mesh::reload`](crate::Mesh::reload) does: it tells its peers what
    /// they have not heard, and is connected to them anew. Takes 20 ms of virtual time. A node that is down
    /// stays as it is, and so does what the fleet is measured against.
    ///
    /// # Errors
    /// A limit cannot become what it should, or there are not as many as before; then nothing has changed.
    pub fn reload(&mut self, node: usize, limits: &[Limit]) -> Result<(), LimitError> {
        let Some(running) = self.nodes[node].running() else { return Ok(()) };
        let pairs = running.limits.iter().zip(limits);
        pairs.clone().try_for_each(|(bands, next)| bands.check_change(next))?;
        let now = self.nodes[node].time(self.now);
        for (bands, next) in pairs {
            bands.change(next, &KeyHasher::default(), now);
            for table in bands.tables() {
                let mut slot = Some(0);
                while let Some(next) = slot {
                    slot = table.bring_up_to_date(next, 1_000, now);
                }
            }
        }
        if let Some(running) = self.nodes[node].running_mut() {
            running.gossip.tell_all(now);
        }
        self.drain(node);
        self.stall(node, LAST_WORDS);
        self.advance(LAST_WORDS);
        self.go_on(node);
        Ok(())
    }

    fn go_on(&mut self, node: usize) {
        let config = self.config_of(node);
        let state = &mut self.nodes[node];
        let now = state.time(self.now);
        state.waiting.clear();
        if let Some(running) = state.running_mut() {
            let tables = running.limits.iter().flat_map(|bands| bands.tables().cloned()).collect();
            let wake = running.wake();
            running.gossip.reload(config, tables, &wake, now);
        }
        self.connect_anew(node);
    }
}
