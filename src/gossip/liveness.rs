//! Who is heard, and what this node's decisions rest on.
//!
//! A node counts as heard when it sends anything, and when anybody passes on a sign of life of it that is newer than the
//! last. One threshold, `suspect_after`, ends both: the peer being up, and anything being expected of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Event, Gossip, LimitStatus, NodeIndex, PeerState, PeerStatus, Status, peer::Outage, sync::Joined,
};
use crate::{
    decision::Basis,
    ledger::ActorIndex,
    limit::OnPartition,
    table::{Stance, Verdict},
    time::{Now, Timestamp},
};

/// How long after an outage its actor's first news is taken to be of the outage.
const HEALING: Duration = Duration::from_secs(3);

impl Gossip {
    /// A node has given a sign of life, in the incarnation that is named.
    pub(super) fn heard_of(&mut self, node: NodeIndex, incarnation: u32, now: Now) {
        let here = self.here;
        let Some(peer) = self.peers.get_mut(usize::from(node.0)).filter(|_| node != here) else { return };
        // What one that has left said before it left may still be on its way.
        if peer.state == PeerState::Left && peer.left == Some(incarnation) {
            return;
        }
        peer.heard = now.mono;
        if peer.state == PeerState::Up {
            return;
        }
        if peer.state == PeerState::Unreachable
            && let Some(outage) = &mut peer.outage
        {
            outage.until = Some(now.mono);
        }
        let first = peer.state == PeerState::Unheard;
        peer.state = PeerState::Up;
        self.events.push_back(Event::PeerUp(node));
        // Who is heard for the first time was not missed, and nothing hangs on it but whose permits count.
        if !first || self.books.iter().any(|book| book.table.limit().permit_returns_on_drop()) {
            self.update_stance(now);
        }
    }

    /// Notices who has not been heard for too long.
    pub(super) fn check_peers(&mut self, now: Now) {
        for node in self.others() {
            let suspect_after = self.config.suspect_after;
            let Some(peer) = self.peer_mut(node) else { continue };
            if peer
                .outage
                .is_some_and(|outage| outage.until.is_some_and(|until| now.mono.since(until) > HEALING))
            {
                peer.outage = None;
            }
            let silent = now.mono.since(peer.heard) > suspect_after;
            if silent && matches!(peer.state, PeerState::Up | PeerState::Unheard) {
                peer.state = PeerState::Unreachable;
                // Until now it was expected to spend; from now on its share is assumed.
                peer.outage = Some(Outage { from: now.mono, until: None });
                self.events.push_back(Event::PeerUnreachable(node));
                self.silence(node, false, now);
            }
        }
        if self.joining.is_some() && self.unheard() == self.nodes.len() - 1 {
            // There is nobody to wait for.
            self.finish_joining(Joined::TimedOut, now);
        }
        self.update_stance(now);
    }

    pub(super) fn take_leave(&mut self, from: NodeIndex, now: Now) {
        let Some(peer) = self.peer_mut(from) else { return };
        if peer.state == PeerState::Left {
            return;
        }
        peer.state = PeerState::Left;
        peer.left = Some(peer.incarnation);
        peer.outage = None;
        self.events.push_back(Event::PeerLeft(from));
        self.silence(from, true, now);
        self.update_stance(now);
    }

    /// Nothing more is expected of a node; where a limit goes by the last demand of a node that cannot be heard, it is.
    fn silence(&mut self, node: NodeIndex, left: bool, now: Now) {
        let actors: Vec<_> = self.actors.of_node(node).map(|(actor, _)| actor).collect();
        for book in &mut self.books {
            if !left && book.table.limit().on_partition() == OnPartition::LastDemand {
                continue;
            }
            for &actor in &actors {
                book.hot.silence(&book.table, &mut book.ledger, actor, now);
            }
        }
    }

    /// For how long the peer has not been heard that has been unreachable for longest.
    fn longest_silence(&self, now: Now) -> Duration {
        let unreachable = self.peers.iter().filter(|peer| peer.state == PeerState::Unreachable);
        unreachable.map(|peer| now.mono.since(peer.heard)).max().unwrap_or_default()
    }

    fn unheard(&self) -> usize {
        self.others()
            .filter(|node| self.peer(*node).is_some_and(|peer| peer.state == PeerState::Unreachable))
            .count()
    }

    /// The gossip ends, and the tables go on without it: nothing more is assumed or expected of anybody.
    pub(crate) fn stand_alone(&mut self, now: Now) {
        self.alone = true;
        self.joining = None;
        self.set_initial_levels();
        self.books.iter_mut().for_each(|book| book.stand_alone(now));
    }

    /// Tells the tables what decisions rest on.
    pub(super) fn update_stance(&mut self, now: Now) {
        if self.alone {
            return;
        }
        let unheard = self.unheard();
        let longest = self.longest_silence(now);
        let basis = |joining: bool| match (joining, unheard) {
            (true, _) => Basis::Joining,
            (false, 0) => Basis::Cluster,
            (false, unheard) => {
                Basis::LocalOnly { unheard: u16::try_from(unheard).unwrap_or(u16::MAX), longest }
            }
        };
        let nodes = self.nodes.len();
        let permits = self.books.iter().any(|book| book.table.limit().permit_returns_on_drop());
        let gone =
            [false, true].map(|last_demand| if permits { self.gone(last_demand) } else { BTreeSet::new() });
        for (limit, book) in (0..).zip(&mut self.books) {
            let joining = Self::is_joining(&self.joining, limit);
            let last_demand = book.table.limit().on_partition() == OnPartition::LastDemand;
            book.set_gone(&gone[usize::from(last_demand)]);
            let verdict = match book.table.limit().on_partition() {
                OnPartition::Open if unheard > 0 => Verdict::Open,
                OnPartition::Closed if unheard > 0 => Verdict::Closed,
                _ => Verdict::Level,
            };
            book.table.set_stance(Stance { basis: basis(joining).into(), verdict });
            book.assume(unheard, nodes, joining, now);
        }
    }

    /// Actors that hold no permits any more as far as others are concerned: this node's own, those that have been followed by
    /// another incarnation, and those of nodes that have left or cannot be heard, unless `last_demand` keeps theirs.
    fn gone(&self, last_demand: bool) -> BTreeSet<ActorIndex> {
        let is_gone = |node: NodeIndex| match self.peer(node).map(|peer| peer.state) {
            Some(PeerState::Unreachable) => !last_demand,
            Some(PeerState::Left) => true,
            _ => node == self.here,
        };
        let mut newest: BTreeMap<NodeIndex, (Timestamp, ActorIndex)> = BTreeMap::new();
        for (actor, state) in self.actors.iter().filter(|(_, state)| !is_gone(state.node)) {
            let last = newest.entry(state.node).or_insert((state.heard, actor));
            *last = (*last).max((state.heard, actor));
        }
        let counts = |actor| newest.values().any(|(_, newest)| *newest == actor);
        self.actors.iter().map(|(actor, _)| actor).filter(|actor| !counts(*actor)).collect()
    }

    /// What the node knows of itself and its fleet.
    pub(crate) fn status(&self, now: Now) -> Status {
        Status {
            node: self.config.node.clone(),
            synced: self.joining.is_none(),
            local_only: self.unheard() > 0,
            peers: self.others().filter_map(|node| self.peer_status(node, now)).collect(),
            limits: self
                .books
                .iter()
                .map(|book| {
                    let (checks, denials) = book.table.checks_and_denials();
                    let (bans, overrides) = book.table.count_rules(now);
                    LimitStatus {
                        name: book.table.limit().name().to_owned(),
                        quota: book.table.limit().quota(),
                        band: book.table.limit().band(),
                        live_keys: book.table.live_keys(),
                        checks,
                        denials,
                        shadow: book.table.limit().is_shadow(),
                        bans,
                        overrides,
                    }
                })
                .collect(),
            refused: self.refused,
            renewals: self.renewals,
        }
    }

    fn peer_status(&self, node: NodeIndex, now: Now) -> Option<PeerStatus> {
        let peer = self.peer(node)?;
        let head = self.actors.get(self.me).map_or(0, |state| state.clock);
        Some(PeerStatus {
            node: self.node(node)?.clone(),
            state: peer.state,
            news_age: (peer.state != PeerState::Unheard).then(|| now.mono.since(peer.heard)),
            rtt: peer.rtt,
            skew_ms: peer.skew_ms,
            versions_behind: head.saturating_sub(peer.known(self.me).acked),
            bytes_sent: peer.traffic.bytes_sent,
            bytes_received: peer.traffic.bytes_received,
            messages_sent: peer.traffic.messages_sent,
            messages_received: peer.traffic.messages_received,
            refused: peer.refused,
            mismatches: peer.mismatches.clone(),
        })
    }
}
