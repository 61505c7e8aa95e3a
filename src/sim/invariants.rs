//! What must hold at every moment of a simulation.

use super::Cluster;
use crate::{counter::Share, key::Key, node::Actor};

impl Cluster {
    /// Checks what must hold at every moment: nothing is given back that was not spent, and no node knows more of an
    /// actor's share than that actor has spent.
    ///
    /// # Panics
    /// When it does not hold; the message names the nodes and the key's digest.
    pub fn assert_invariants(&self) {
        for (limit, key) in self.records.keys() {
            for (number, node) in self.nodes.iter().enumerate() {
                let Some(running) = node.running() else { continue };
                for (actor, share) in running.gossip.counter(running.book(*limit), *key).shares() {
                    self.assert_share(number, *limit, *key, actor, share);
                }
            }
        }
    }

    fn assert_share(&self, number: usize, limit: usize, key: Key, actor: &Actor, share: Share) {
        assert!(
            share.refunded <= share.spent,
            "node {number}: more refunded than spent in the share of {actor:?} of {key:?}"
        );
        // Of those that have stopped there is nobody left to ask.
        let writer = self.names.iter().position(|name| *name == actor.node);
        let Some((writer, running)) = writer.and_then(|writer| Some((writer, self.nodes[writer].running()?)))
        else {
            return;
        };
        let spent =
            running.limits[limit].first().spent_on(key).filter(|_| running.incarnation == actor.incarnation);
        if let Some(spent) = spent {
            assert!(
                share.spent <= spent,
                "node {number} knows of {} units that node {writer} spent on {key:?}, of {spent}",
                share.spent
            );
        }
    }
}
