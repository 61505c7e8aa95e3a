//! The gossip protocol as a state machine without input or output of its own.
//!
//! Time, payloads and randomness go in through `handle_*` and `new`, payloads and events come out of `poll_*`; the same
//! machine runs over QUIC and in the simulator. After each call to a `handle_*` method the caller drains
//! [`Gossip::poll_transmit`] and [`Gossip::poll_event`], and asks [`Gossip::poll_timeout`] when to call again.
//!
//! # The protocol
//!
//! A node that is connected to another sends a *hello* over a stream: who it is, how it numbers nodes and limits, and how
//! far it has come with each actor's changes. From then on it sends *frames*: signs of life, first- and second-hand, and
//! changed shares in their newest state. Each actor numbers its changes; a frame says of each group of changes from which
//! version to which it is complete, so a receiver knows what it has, and its own signs of life tell everyone
//! else (acknowledgement, and at the same time the digest that finds what slipped through). Up to four nodes
//! everyone sends to everyone; in larger fleets a round goes to a few random peers, and news is passed on, but never
//! to where it came from, and only while it is news there (the BP and RR optimisations of Enes, Almeida, Baquero and
//! Leitão, *Efficient Synchronization of State-based CRDTs*, 2019).
//!
//! Rounds come with each heartbeat, and before it when a key's unpublished units reach a threshold. A node that cannot
//! be told of changes one by one any more, because it has just started or was away, asks for a *sync*.
//!
//! What is too much for a few datagrams goes in streams, one lot at a time: a peer acknowledges each as soon as it has taken it
//! in, and is sent no more of the kind before. What changes meanwhile is sent afterwards, once, in its newest state; only what
//! cannot wait goes past, in datagrams. What is not acknowledged in time is sent again, and waited for twice as long each
//! time. So a peer that takes in less than it is told hears of each share less often, and is not sent more for it.
//!
//! What is said of single keys (bans, overrides, resets) goes to peers at once, over streams; a hello's digests find what
//! slipped through.
//!
//! The invariant that merging keeps: a share has one writer and only grows, and what a node has debited of it is exactly
//! what its ledger says; so each unit is debited once on each node, whatever is lost, repeated or reordered.
//!
//! # Peers that lie
//!
//! A peer with a valid certificate can say what it likes. What it says of others is taken for relayed, and each lie has an
//! end: shares are cut to what can have been spent; what comes back of a share is credited only as far as it was debited;
//! hearsay takes at most half of the places that a node's incarnations have, and half of the forecasts. A node is shown the
//! shares that others have told in its name, and hears how far others think that its changes and its beats go. Where that is
//! more than it wrote, it moves its versions on, lets its beats follow, or goes on as another incarnation, which nothing
//! was said of yet. What is left to a liar is to keep a key at its debt cap, and to hide its own spending.

mod actors;
mod book;
mod bulk;
mod hot;
mod liveness;
pub(crate) mod message;
mod notices;
mod peer;
mod receive;
mod reload;
mod round;
mod status;
mod sync;
#[cfg(all(test, feature = "sim"))]
mod tests;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::{
    ledger::ActorIndex,
    node::{Incarnation, NodeId},
    table::{Table, marks::Wake},
    time::{Now, Timestamp},
};
use actors::{Actors, Change};
use book::{Book, Published};
use message::Item;
use notices::Spreading;
use peer::Peer;
use reload::Departed;
pub(crate) use status::Event;
pub use status::{LimitStatus, PeerState, PeerStatus, RefusedStatus, Status};
use sync::{Joining, SyncJob};

/// Fleets up to this many nodes talk directly, everyone to everyone.
pub(crate) const DIRECT_NODES: usize = 4;

/// How long a node that stood still reads before it speaks.
const READING: Duration = Duration::from_millis(2);

/// Changes between two rounds that are kept apart because they cannot wait.
const MAX_URGENT: usize = 4_096;

/// Random peers a round in larger ones, unless set otherwise.
const FANOUT: usize = 3;

/// A node's place in the sorted list of all nodes of the cluster, this one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeIndex(pub(crate) u16);

/// How a payload travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// An unreliable datagram.
    Datagram,
    /// A one-way stream of its own: whole, or not at all.
    Stream,
}

/// A payload for a peer.
#[derive(Clone, Debug)]
pub(crate) struct Transmit {
    /// To whom.
    pub(crate) to: NodeIndex,
    /// How.
    pub(crate) channel: Channel,
    /// What.
    pub(crate) payload: Vec<u8>,
}

/// What the state machine is told at its start.
#[derive(Clone, Debug)]
pub(crate) struct GossipConfig {
    /// The cluster's name; nodes of other clusters are not listened to.
    pub(crate) cluster: String,
    /// This node.
    pub(crate) node: NodeId,
    /// This run of it: a random number, drawn anew at each start.
    pub(crate) incarnation: Incarnation,
    /// All other nodes.
    pub(crate) peers: Vec<NodeId>,
    /// Time between heartbeats.
    pub(crate) heartbeat: Duration,
    /// The least time between two rounds; by the size of the fleet where it is `None`.
    pub(crate) min_interval: Option<Duration>,
    /// A peer unheard for this long is unreachable.
    pub(crate) suspect_after: Duration,
    /// How long a starting node waits for a sync.
    pub(crate) sync_timeout: Duration,
    /// Random peers a round in fleets of more than [`DIRECT_NODES`].
    pub(crate) fanout: usize,
    /// Time between the hellos that repair what slipped through.
    pub(crate) repair_interval: Duration,
}

impl GossipConfig {
    /// The defaults, for a node and its peers.
    pub(crate) fn new(node: NodeId, incarnation: Incarnation, peers: Vec<NodeId>) -> Self {
        Self {
            cluster: "ratemesh".to_owned(),
            node,
            incarnation,
            peers,
            heartbeat: Duration::from_millis(100),
            min_interval: None,
            suspect_after: Duration::from_secs(1),
            sync_timeout: Duration::from_secs(2),
            fanout: FANOUT,
            repair_interval: Duration::from_secs(10),
        }
    }
}

/// A peer's message could not be taken, and its connection should be closed. What was read of the message before the
/// fault has been taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolError(pub(crate) String);

impl std::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProtocolError {}

/// The gossip protocol's state machine.
pub(crate) struct Gossip {
    config: GossipConfig,
    /// All nodes, sorted; and as a hello lists them.
    nodes: Vec<NodeId>,
    names: Arc<[String]>,
    here: NodeIndex,
    me: ActorIndex,
    incarnation: u32,
    beat: u32,
    actors: Actors,
    /// By node; this node's own is not used.
    peers: Vec<Peer>,
    books: Vec<Book>,
    rng: fastrand::Rng,
    out: VecDeque<Transmit>,
    events: VecDeque<Event>,
    refused: RefusedStatus,
    joining: Option<Joining>,
    jobs: Vec<SyncJob>,
    spreading: Spreading,
    departed: Departed,
    timers: Timers,
    /// The node has left its fleet; its tables decide for themselves.
    alone: bool,
    /// How often this node has gone on as another incarnation, and when it last did that or moved its versions.
    renewals: u64,
    renewed_at: Option<Timestamp>,
    slots: Vec<u32>,
    items: Vec<Item>,
    /// This node's latest changes that could not wait for a heartbeat.
    urgent: Vec<Change>,
}

struct Timers {
    heartbeat: Timestamp,
    /// When the next round may be at the earliest.
    round: Timestamp,
    round_wanted: bool,
    /// When hot keys are looked at next.
    look: Timestamp,
    repair: Timestamp,
    /// What came while this node stood still is being read.
    reading: bool,
}

impl Gossip {
    /// A node that has heard nothing yet. `seed` drives its choice of peers and the jitter of its timers; `wake` is
    /// called, from whatever thread checks, when [`handle_timeout`](Self::handle_timeout) should be called at once.
    pub(crate) fn new(
        config: GossipConfig,
        tables: Vec<Arc<Table>>,
        seed: u64,
        wake: &Wake,
        now: Now,
    ) -> Self {
        let (nodes, here) = all_nodes(&config);
        let incarnation = config.incarnation.get();
        let mut actors = Actors::default();
        let me = actors.meet(here, incarnation, now.mono).unwrap_or(0);
        if let Some(state) = actors.get_mut(me) {
            state.own = true;
        }
        let books: Vec<Book> =
            tables.into_iter().map(|table| Book::new(table, config.heartbeat, nodes.len(), now)).collect();
        let held = books.iter().map(|book| book.table.held_slots()).collect();
        for book in &books {
            book.table.listen(book.threshold(), Arc::clone(wake));
        }
        let mut rng = fastrand::Rng::with_seed(seed);
        let first_beat = now.mono.after(config.heartbeat.mul_f64(rng.f64()));
        let mut gossip = Self {
            peers: nodes.iter().map(|_| Peer::new(now.mono)).collect(),
            timers: Timers {
                heartbeat: first_beat,
                round: now.mono,
                round_wanted: false,
                look: now.mono,
                repair: now.mono.after(config.repair_interval.mul_f64(0.5 + rng.f64())),
                reading: false,
            },
            here,
            me,
            incarnation,
            beat: 0,
            actors,
            books,
            rng,
            out: VecDeque::new(),
            events: VecDeque::new(),
            refused: RefusedStatus::default(),
            joining: (nodes.len() > 1).then(|| Joining::new(now.mono.after(config.sync_timeout), held)),
            jobs: Vec::new(),
            spreading: Spreading::new(now),
            departed: Departed::default(),
            alone: false,
            renewals: 0,
            renewed_at: None,
            slots: Vec::new(),
            items: Vec::new(),
            urgent: Vec::new(),
            names: names(&nodes),
            nodes,
            config,
        };
        gossip.sign_notices();
        gossip.set_initial_levels();
        gossip.update_stance(now);
        gossip
    }

    /// A node's index.
    pub(crate) fn index_of(&self, node: &NodeId) -> Option<NodeIndex> {
        self.nodes.binary_search(node).ok().map(|index| NodeIndex(index as u16))
    }

    /// The node with this index.
    pub(crate) fn node(&self, index: NodeIndex) -> Option<&NodeId> {
        self.nodes.get(usize::from(index.0))
    }

    /// A connection to `peer` is there; `datagram_bytes` is what one datagram can carry.
    pub(crate) fn handle_connected(&mut self, now: Now, peer: NodeIndex, datagram_bytes: usize) {
        if peer == self.here {
            return;
        }
        if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
            state.connect(datagram_bytes);
            self.send_hello(peer, now);
        }
    }

    /// The connection is gone.
    pub(crate) fn handle_disconnected(&mut self, _now: Now, peer: NodeIndex) {
        if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
            state.disconnect();
        }
        self.jobs.retain(|job| job.peer != peer);
        self.end_tours(peer);
    }

    /// Whether streams to `peer` wait to be sent. While they do, it is sent signs of life, and what fits beside them into a
    /// datagram; the rest follows when the transport says that it has sent what it had.
    pub(crate) fn set_congested(&mut self, peer: NodeIndex, congested: bool) {
        if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
            state.congested = congested;
        }
    }

    /// The time that [`poll_timeout`](Self::poll_timeout) named has come, or a table asked to be looked at.
    pub(crate) fn handle_timeout(&mut self, now: Now) {
        for book in &mut self.books {
            book.turn(self.me, now);
        }
        if self.is_to_read_first(now) {
            return;
        }
        self.look_at_urgent(now);
        if now.mono >= self.timers.look {
            self.look_at_hot(now);
        }
        if now.mono >= self.timers.heartbeat {
            self.heartbeat(now);
        } else if self.timers.round_wanted && now.mono >= self.timers.round {
            self.round(false, now);
        }
        self.continue_syncs(now);
        self.spread_notices(now);
        self.finish_joining_if_due(now);
    }

    /// Whether the timers went off so late that this node must have stood still: what peers said meanwhile is to be read
    /// before anything is concluded from their silence, or said of a level that lacks it.
    fn is_to_read_first(&mut self, now: Now) -> bool {
        let stood_still = now.mono.since(self.timers.heartbeat) > self.config.heartbeat / 2;
        self.timers.reading = stood_still && !self.timers.reading;
        if self.timers.reading {
            let soon = now.mono.after(READING);
            (self.timers.heartbeat, self.timers.look, self.timers.round) = (soon, soon, soon);
        }
        self.timers.reading
    }

    /// The next payload to send.
    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.pop_front()
    }

    /// The next change of state, to log.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called next.
    pub(crate) fn poll_timeout(&self, now: Now) -> Timestamp {
        let timers = &self.timers;
        let mut next = timers.heartbeat;
        if timers.round_wanted {
            next = next.min(timers.round);
        }
        if self.books.iter().any(|book| !book.hot.is_empty()) {
            next = next.min(timers.look);
        }
        if let Some(joining) = &self.joining {
            next = next.min(joining.until);
        }
        if self.jobs.iter().any(|job| !self.is_congested(job.peer)) {
            next = now.mono;
        }
        next = next.min(self.next_notices(now).unwrap_or(next));
        self.books.iter().filter_map(|book| book.next_turn(now)).fold(next, Timestamp::min)
    }

    /// Notes a change of one of this node's own shares.
    fn note_own(&mut self, limit: usize, slot: u32, published: Published) {
        let ended = self.books.get_mut(limit).map(Book::take_ended).unwrap_or_default();
        for (slot, published) in ended {
            self.note_change(limit, slot, published);
        }
        self.note_change(limit, slot, published);
    }

    /// The same of one that cannot wait.
    fn note_urgent(&mut self, limit: usize, slot: u32, published: Published) {
        self.note_own(limit, slot, published);
        if self.urgent.len() < MAX_URGENT {
            self.urgent.extend(self.actors.get(self.me).and_then(|me| me.log().next_back()).copied());
        }
    }

    fn note_change(&mut self, limit: usize, slot: u32, published: Published) {
        let Some(me) = self.actors.get_mut(self.me) else { return };
        me.clock += 1;
        let version = me.clock;
        let Published { epoch, span_ms, first, .. } = published;
        me.shares += usize::from(first);
        self.log(self.me, Change { version, limit: limit as u16, epoch, slot, span_ms });
    }

    /// Puts a change into its actor's log.
    fn log(&mut self, actor: ActorIndex, change: Change) {
        let Some(state) = self.actors.get_mut(actor) else { return };
        state.note(change);
        if let Some(book) = self.books.get_mut(usize::from(change.limit)) {
            book.ledger.note_version(change.slot, actor, change.epoch, change.version);
        }
        if state.is_long() {
            let books = &self.books;
            state.compact(|change| {
                let book = books.get(usize::from(change.limit));
                book.is_some_and(|book| book.is_newest(actor, change))
            });
        }
    }

    fn push(&mut self, to: NodeIndex, channel: Channel, payload: Vec<u8>) {
        if let Some(peer) = self.peers.get_mut(usize::from(to.0)) {
            peer.traffic.bytes_sent += payload.len() as u64;
            peer.traffic.messages_sent += 1;
            self.out.push_back(Transmit { to, channel, payload });
        }
    }

    fn is_congested(&self, node: NodeIndex) -> bool {
        self.peer(node).is_some_and(|peer| peer.congested)
    }

    fn peer(&self, node: NodeIndex) -> Option<&Peer> {
        self.peers.get(usize::from(node.0))
    }

    fn peer_mut(&mut self, node: NodeIndex) -> Option<&mut Peer> {
        self.peers.get_mut(usize::from(node.0))
    }

    /// The other nodes.
    fn others(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        let here = self.here;
        (0..self.nodes.len() as u16).map(NodeIndex).filter(move |node| *node != here)
    }

    fn is_direct(&self) -> bool {
        self.nodes.len() <= DIRECT_NODES
    }
}

/// All nodes of a fleet in order, and the place of this one among them.
fn all_nodes(config: &GossipConfig) -> (Vec<NodeId>, NodeIndex) {
    let mut nodes = config.peers.clone();
    nodes.push(config.node.clone());
    nodes.sort();
    nodes.dedup();
    let here = nodes.iter().position(|node| *node == config.node).unwrap_or(0);
    (nodes, NodeIndex(here as u16))
}

/// Nodes as a hello lists them.
fn names(nodes: &[NodeId]) -> Arc<[String]> {
    nodes.iter().map(|node| node.as_str().to_owned()).collect()
}

/// What the bound on the excess follows from.
#[cfg(feature = "sim")]
pub(crate) mod pace {
    pub(crate) use super::{
        book::threshold,
        round::{DIRECT_INTERVAL, RELAY_INTERVAL},
    };
    pub(crate) const FANOUT: usize = super::FANOUT;
}

/// What tests and simulations look at.
#[cfg(feature = "sim")]
impl Gossip {
    /// All that this node knows was spent on a key, over the epochs it keeps.
    pub(crate) fn counter(&self, limit: usize, key: crate::key::Key) -> crate::counter::PnCounter {
        use crdts::CmRDT as _;
        let mut counter = crate::counter::PnCounter::new();
        let Some(book) = self.books.get(limit) else { return counter };
        let Some(slot) = book.table.find(key) else { return counter };
        for entry in book.ledger.entries(slot) {
            let Some(state) = self.actors.get(entry.actor) else { continue };
            let Some(node) = self.node(state.node).cloned() else { continue };
            let actor = crate::node::Actor { node, incarnation: Incarnation::new(state.incarnation) };
            // Shares of two epochs add up.
            let spent = counter.spend(actor.clone(), entry.share.spent);
            counter.apply(spent);
            let refund = counter.refund(actor, entry.share.refunded);
            counter.apply(refund);
        }
        counter
    }

    /// The version of this node's latest change.
    pub(crate) fn own_version(&self) -> u64 {
        self.actors.get(self.me).map_or(0, |state| state.clock)
    }

    /// How far this node has come with an actor's changes.
    pub(crate) fn clock_of(&self, node: NodeIndex, incarnation: Incarnation) -> u64 {
        let actor = self.actors.find(node, incarnation.get());
        actor.and_then(|actor| self.actors.get(actor)).map_or(0, |state| state.clock)
    }
}
