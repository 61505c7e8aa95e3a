//! The writers of shares that this node has heard of, and the latest changes of each.
//!
//! Each actor numbers its changes. A node's *clock* of an actor is the version up to which it has every change that
//! still matters, so two nodes compare a number an actor to know what one can tell the other (van Renesse et al.,
//! *Efficient Reconciliation and Flow Control for Anti-Entropy Protocols*, 2008). The latest changes are kept in a log
//! of slots, in the order of versions, until every connected peer has them; what is older is told by a sync.

use std::collections::{BTreeMap, VecDeque};

use super::NodeIndex;
use crate::{
    ledger::{ActorIndex, MAX_ACTORS},
    time::Timestamp,
};

/// Incarnations of one node that are kept at a time; a node that restarts more often than its shares retire loses its
/// oldest.
const MAX_INCARNATIONS: usize = 16;
/// Changes that one actor's log keeps for peers that lag, before it leaves them to a sync.
pub(super) const MAX_LOG: usize = 1 << 20;

/// One change of a share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) limit: u16,
    pub(super) epoch: u16,
    pub(super) slot: u32,
    /// Milliseconds in which the units were spent that it made known.
    pub(super) span_ms: u16,
}

/// One incarnation of one node.
#[derive(Debug)]
pub(super) struct ActorState {
    pub(super) node: NodeIndex,
    pub(super) incarnation: u32,
    /// Every change up to this version has been taken in.
    pub(super) clock: u64,
    /// The highest heartbeat heard of.
    pub(super) beat: u32,
    /// When that was heard.
    pub(super) heard: Timestamp,
    /// Shares of this actor in the ledgers.
    pub(super) shares: usize,
    /// Since when somebody is known to have more of its changes.
    pub(super) behind_since: Option<Timestamp>,
    log: VecDeque<Change>,
    /// Changes up to this version are in the log no more.
    pub(super) floor: u64,
}

impl ActorState {
    /// The highest version in the log, or the clock.
    pub(super) fn head(&self) -> u64 {
        self.log.back().map_or(self.clock, |change| change.version.max(self.clock))
    }

    /// Notes a change; changes of others may come out of order, and more than once.
    pub(super) fn note(&mut self, change: Change) {
        if change.version <= self.floor {
            return;
        }
        match self.log.back() {
            Some(last) if last.version >= change.version => {
                let at = self.log.partition_point(|other| other.version < change.version);
                // A version names one change, however many ways it comes by.
                if self.log.get(at).is_none_or(|other| other.version != change.version) {
                    self.log.insert(at, change);
                }
            }
            _ => self.log.push_back(change),
        }
        if self.log.len() > MAX_LOG {
            self.floor = self.log.pop_front().map_or(self.floor, |change| change.version);
        }
    }

    /// The changes beyond `version`, oldest first.
    pub(super) fn since(&self, version: u64) -> impl DoubleEndedIterator<Item = &Change> + ExactSizeIterator {
        self.log.range(self.log.partition_point(|change| change.version <= version)..)
    }

    /// Forgets changes up to `version`, which everyone has.
    pub(super) fn trim(&mut self, version: u64) {
        while self.log.front().is_some_and(|change| change.version <= version) {
            self.log.pop_front();
        }
        self.floor = self.floor.max(version);
        if self.log.is_empty() && self.log.capacity() > 4_096 {
            self.log.shrink_to(1_024);
        }
    }

    pub(super) fn log_len(&self) -> usize {
        self.log.len()
    }
}

/// All actors, by their index.
#[derive(Debug, Default)]
pub(super) struct Actors {
    list: Vec<Option<ActorState>>,
    index: BTreeMap<(NodeIndex, u32), ActorIndex>,
}

impl Actors {
    pub(super) fn get(&self, actor: ActorIndex) -> Option<&ActorState> {
        self.list.get(usize::from(actor))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, actor: ActorIndex) -> Option<&mut ActorState> {
        self.list.get_mut(usize::from(actor))?.as_mut()
    }

    pub(super) fn find(&self, node: NodeIndex, incarnation: u32) -> Option<ActorIndex> {
        self.index.get(&(node, incarnation)).copied()
    }

    /// The actor's index, taking it in if it is new. `None` when its node has too many incarnations already.
    pub(super) fn find_or_add(
        &mut self,
        node: NodeIndex,
        incarnation: u32,
        now: Timestamp,
    ) -> Option<ActorIndex> {
        if let Some(actor) = self.find(node, incarnation) {
            return Some(actor);
        }
        if self.of_node(node).count() >= MAX_INCARNATIONS {
            return None;
        }
        let free = self.list.iter().position(Option::is_none).unwrap_or(self.list.len());
        if free >= MAX_ACTORS {
            return None;
        }
        let actor = ActorState {
            node,
            incarnation,
            clock: 0,
            beat: 0,
            heard: now,
            shares: 0,
            behind_since: None,
            log: VecDeque::new(),
            floor: 0,
        };
        if free == self.list.len() {
            self.list.push(None);
        }
        self.list[free] = Some(actor);
        self.index.insert((node, incarnation), free as ActorIndex);
        Some(free as ActorIndex)
    }

    /// Forgets an actor that has no shares any more.
    pub(super) fn remove(&mut self, actor: ActorIndex) {
        if let Some(state) = self.list.get_mut(usize::from(actor)).and_then(Option::take) {
            self.index.remove(&(state.node, state.incarnation));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ActorIndex, &ActorState)> {
        (0..).zip(&self.list).filter_map(|(actor, state)| Some((actor, state.as_ref()?)))
    }

    pub(super) fn of_node(&self, node: NodeIndex) -> impl Iterator<Item = (ActorIndex, &ActorState)> {
        self.index
            .range((node, 0)..=(node, u32::MAX))
            .filter_map(|(_, &actor)| Some((actor, self.get(actor)?)))
    }

    /// One more than the highest index in use.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(version: u64) -> Change {
        Change { version, limit: 0, epoch: 0, slot: version as u32, span_ms: 0 }
    }

    #[test]
    fn a_log_is_in_the_order_of_versions_however_it_was_filled() {
        let mut actors = Actors::default();
        let actor = actors.find_or_add(NodeIndex(1), 7, Timestamp::ZERO).unwrap();
        let state = actors.get_mut(actor).unwrap();
        for version in [1, 2, 5, 3, 9, 4, 5, 9, 1] {
            state.note(change(version));
        }
        assert_eq!(state.since(2).map(|change| change.version).collect::<Vec<_>>(), [3, 4, 5, 9]);
        state.trim(4);
        assert_eq!((state.floor, state.log_len(), state.head()), (4, 2, 9));
    }

    #[test]
    fn a_node_has_a_bounded_number_of_incarnations() {
        let mut actors = Actors::default();
        let added =
            (0..100).filter_map(|number| actors.find_or_add(NodeIndex(0), number, Timestamp::ZERO)).count();
        assert_eq!(added, MAX_INCARNATIONS);
        actors.remove(3);
        assert!(actors.find_or_add(NodeIndex(0), 500, Timestamp::ZERO).is_some());
    }
}
