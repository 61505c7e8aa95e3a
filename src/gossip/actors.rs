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

/// Incarnations of one node that are kept at a time: half of them such as have said hello themselves, half such as are
/// only known from others. Where the first half is full, a hello takes the place of the one that was heard longest ago;
/// where the second is, what others tell of one more is not taken in.
pub(super) const MAX_INCARNATIONS: usize = 16;
const MAX_BY_HEARSAY: usize = MAX_INCARNATIONS / 2;
/// Changes that one actor's log keeps for peers that lag, before it leaves them to a sync.
pub(super) const MAX_LOG: usize = 1 << 20;

/// A shorter log is not worth a look for changes that later ones have overtaken.
const MIN_COMPACTED: usize = 4_096;

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
    /// The latest heartbeat heard of, modulo 2³²; `None` before the first.
    pub(super) beat: Option<u32>,
    /// When that was heard.
    pub(super) heard: Timestamp,
    /// Whether it has said hello itself, or is this node; others may only be somebody's word.
    pub(super) met: bool,
    /// Whether it writes, or wrote, in this process: then nobody knows its shares better.
    pub(super) own: bool,
    /// Shares of this actor in the ledgers.
    pub(super) shares: usize,
    /// Since when somebody is known to have more of its changes.
    pub(super) behind_since: Option<Timestamp>,
    /// The peer that was last seen to have none of what is in the log.
    pub(super) laggard: Option<NodeIndex>,
    log: VecDeque<Change>,
    /// The length at which the log is looked through for changes that later ones have overtaken.
    compact_at: usize,
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

    /// Whether the log has grown so long that it is worth a [look](Self::compact).
    pub(super) fn is_long(&self) -> bool {
        self.log.len() >= self.compact_at
    }

    /// Drops the changes that are not the newest of their shares: who is told of the newest need not hear of them. So a log
    /// holds no more than twice as many changes as there are shares, or a few.
    pub(super) fn compact(&mut self, is_newest: impl Fn(&Change) -> bool) {
        self.log.retain(is_newest);
        self.compact_at = match self.log.len() * 2 {
            // There is little to gain: let the oldest go, and leave them to a sync.
            double if double > MAX_LOG * 3 / 2 => usize::MAX,
            double => double.clamp(MIN_COMPACTED, MAX_LOG),
        };
    }

    /// Forgets changes up to `version`, which everyone has.
    pub(super) fn trim(&mut self, version: u64) {
        let known = self.log.partition_point(|change| change.version <= version);
        if known > 0 {
            self.log.drain(..known);
            self.compact_at = self.compact_at.min(MAX_LOG);
        }
        self.floor = self.floor.max(version);
        if self.log.is_empty() && self.log.capacity() > 4_096 {
            self.log.shrink_to(1_024);
        }
    }

    pub(super) fn log_len(&self) -> usize {
        self.log.len()
    }

    /// All changes in the log, oldest first.
    pub(super) fn log(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.log.iter()
    }

    /// Numbers what is in the log anew, from beyond `version` on: everyone is told of it again.
    pub(super) fn renumber_beyond(&mut self, version: u64) {
        for (change, version) in self.log.iter_mut().zip(version + 1..) {
            change.version = version;
        }
        self.clock = version + self.log.len() as u64;
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

    /// The actor's index, taking it in if it is new, on somebody's word. `None` when too many incarnations of its node
    /// are known in this way already.
    pub(super) fn find_or_add(
        &mut self,
        node: NodeIndex,
        incarnation: u32,
        now: Timestamp,
    ) -> Option<ActorIndex> {
        if let Some(actor) = self.find(node, incarnation) {
            return Some(actor);
        }
        if self.of_node(node).filter(|(_, state)| !state.met).count() >= MAX_BY_HEARSAY {
            return None;
        }
        self.add(node, incarnation, now)
    }

    /// The index of an actor that says hello itself, or is this node; `None` where all places of its kind are taken.
    pub(super) fn meet(&mut self, node: NodeIndex, incarnation: u32, now: Timestamp) -> Option<ActorIndex> {
        let known = self.find(node, incarnation);
        if known.and_then(|actor| self.get(actor)).is_some_and(|state| state.met) {
            return known;
        }
        let met = self.of_node(node).filter(|(_, state)| state.met).count();
        if met >= MAX_INCARNATIONS - MAX_BY_HEARSAY {
            return None;
        }
        let actor = known.or_else(|| self.add(node, incarnation, now))?;
        self.get_mut(actor)?.met = true;
        Some(actor)
    }

    /// Of the incarnations that have said hello, the one that was heard longest ago; one without shares, if there is any.
    pub(super) fn oldest_met(&self, node: NodeIndex) -> Option<ActorIndex> {
        let met = self.of_node(node).filter(|(_, state)| state.met && !state.own);
        met.min_by_key(|(_, state)| (state.shares > 0, state.heard)).map(|(actor, _)| actor)
    }

    fn add(&mut self, node: NodeIndex, incarnation: u32, now: Timestamp) -> Option<ActorIndex> {
        let free = self.list.iter().position(Option::is_none).unwrap_or(self.list.len());
        if free >= MAX_ACTORS {
            return None;
        }
        let actor = ActorState {
            node,
            incarnation,
            clock: 0,
            beat: None,
            heard: now,
            met: false,
            own: false,
            shares: 0,
            behind_since: None,
            laggard: None,
            log: VecDeque::new(),
            compact_at: MIN_COMPACTED,
            floor: 0,
        };
        if free == self.list.len() {
            self.list.push(None);
        }
        self.list[free] = Some(actor);
        self.index.insert((node, incarnation), free as ActorIndex);
        Some(free as ActorIndex)
    }

    /// Gives the actors' nodes other numbers, and forgets the actors of nodes without one; returns which.
    pub(super) fn renumber(&mut self, number: impl Fn(NodeIndex) -> Option<NodeIndex>) -> Vec<ActorIndex> {
        let mut gone = Vec::new();
        self.index.clear();
        for (actor, place) in (0..).zip(&mut self.list) {
            let Some(state) = place else { continue };
            state.laggard = None;
            match number(state.node) {
                Some(node) => {
                    state.node = node;
                    self.index.insert((node, state.incarnation), actor);
                }
                None => {
                    *place = None;
                    gone.push(actor);
                }
            }
        }
        gone
    }

    /// Forgets the latest changes of all: who lacks some asks for a sync.
    pub(super) fn end_logs(&mut self) {
        self.list.iter_mut().flatten().for_each(|state| state.trim(state.head()));
    }

    /// Forgets an actor, of which no ledger may hold shares any more.
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
        let (mut actors, node) = (Actors::default(), NodeIndex(0));
        let at = Timestamp::from_millis;
        let told = (0..100).filter_map(|number| actors.find_or_add(node, number, at(0))).count();
        assert_eq!(told, MAX_BY_HEARSAY);
        actors.remove(3);
        assert!(actors.find_or_add(node, 500, at(0)).is_some());
        // What is told takes no place from those who come themselves, nor the other way round.
        let came = (1_000..1_100).filter_map(|number| actors.meet(node, number, at(number.into()))).count();
        assert_eq!(
            (came, actors.of_node(node).count()),
            (MAX_INCARNATIONS - MAX_BY_HEARSAY, MAX_INCARNATIONS)
        );
        let oldest = actors.oldest_met(node).unwrap();
        assert_eq!(actors.get(oldest).unwrap().incarnation, 1_000);
        actors.remove(oldest);
        // One that was known from others until now leaves its place to the next of them.
        assert!(actors.meet(node, 500, at(2_000)).is_some());
        assert!(actors.find_or_add(node, 501, at(2_000)).is_some());
        assert_eq!(actors.of_node(node).count(), MAX_INCARNATIONS);
    }

    #[test]
    fn a_log_that_is_numbered_anew_is_told_to_all_again() {
        let mut actors = Actors::default();
        let actor = actors.find_or_add(NodeIndex(1), 7, Timestamp::ZERO).unwrap();
        let state = actors.get_mut(actor).unwrap();
        (1..=5).for_each(|version| state.note(change(version)));
        (state.clock, state.floor) = (5, 0);
        state.trim(2);
        state.renumber_beyond(1_000);
        assert_eq!((state.clock, state.head(), state.floor), (1_003, 1_003, 2));
        assert_eq!(state.since(5).map(|change| change.slot).collect::<Vec<_>>(), [3, 4, 5]);
    }
}
