//! A whole fleet in one thread, on virtual time, driven by one seed.
//!
//! The nodes are real: the same tables decide and the same gossip runs as over QUIC, with encoded messages; only the
//! network, the clocks and the requests are made up. The same seed gives the same run to the last byte. Use it to try
//! your limits before production: under your load, your network's delays, and the faults you fear.
//!
//! ```
//! use std::time::Duration;
//! use ratemesh::{Limit, Quota, sim::Cluster};
//!
//! let limit = Limit::token_bucket("api", Quota::per_second(1_000)).burst(100).build()?;
//! let mut cluster = Cluster::new(3, vec![limit], 42);
//! for node in 0..3 {
//!     cluster.offer(node, "alice", 1_000.0);
//! }
//! cluster.advance(Duration::from_secs(3));
//! let record = cluster.record("alice").unwrap();
//! // In the third second the fleet admits its limit, though each node alone was offered as much.
//! assert!((970..=1_030).contains(&record.in_second(2)));
//! # Ok::<(), ratemesh::LimitError>(())
//! ```

mod bound;
mod invariants;
mod keys;
mod machine;
mod measure;
mod network;
mod node;
mod queue;
mod reload;
mod rules;
pub mod scenario;
mod spread;
mod summary;
mod timeline;

use std::{collections::BTreeMap, time::Duration};

use crate::{
    bands::Receipt,
    counter::PnCounter,
    decision::{Basis, Refused},
    gossip::{Channel, GossipConfig, NodeIndex, Status, Transmit},
    key::{Key, KeyHasher, KeySource},
    limit::Limit,
    node::{Incarnation, NodeId},
    time::{Now, Timestamp, WallTime, saturating_nanos},
};
pub use keys::Keys;
pub use measure::{Record, Spread, Traffic};
pub use network::Network;
use node::Node;
use queue::{Event, Queue};
use spread::SpreadLog;
pub use summary::{Failure, MEASURES, Measure, Miss, Run, Summary};
pub use timeline::Timeline;

/// The virtual clock's start: two minutes after each node's origin, so that nothing is near zero.
const START: u64 = 120_000_000_000;
/// The wall clock's start: 2030-01-01T00:00:00Z.
const WALL_START: u64 = 1_893_456_000_000_000_000;
/// How long it takes until a gossip task that was woken runs.
const WAKE_NANOS: u64 = 50_000;
/// Datagrams that wait for a stalled node; the oldest are dropped beyond.
const STALLED_DATAGRAMS: usize = 64;

/// What one request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether it was admitted.
    pub allowed: bool,
    /// Units left on that node's view.
    pub remaining: u64,
    /// What the decision was based on.
    pub basis: Basis,
    /// Why it was refused, or would have been by a limit that is only tried out.
    pub refused: Option<Refused>,
}

/// Units that a node has reserved.
#[derive(Debug)]
#[must_use = "dropped, it keeps what it has cost"]
pub struct Reserved {
    limit: usize,
    node: usize,
    incarnation: Incarnation,
    receipt: Receipt,
    cost: u64,
}

/// A stream of requests to one node.
#[derive(Clone, Debug)]
struct Offer {
    node: usize,
    limit: usize,
    name: String,
    keys: Keys,
    /// Requests per second; their gaps are exponentially distributed.
    rate: f64,
    cost: u64,
    /// Arrivals scheduled under an earlier rate are dropped.
    generation: u64,
}

/// The state of the way from one node to another.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    cut: bool,
}

/// The connection between two nodes, kept under the lower index first.
#[derive(Clone, Debug, Default)]
struct Connection {
    up: bool,
    /// Counts connections, so that messages and timers of an earlier one are known.
    number: u64,
    /// Streams that wait for the network: the direction's first node, and the payload.
    waiting: Vec<(usize, Vec<u8>)>,
    /// Whether a timer to give it up, or to set it up, runs.
    expiring: bool,
    dialling: bool,
}

/// A fleet under simulation.
pub struct Cluster {
    now: u64,
    queue: Queue,
    nodes: Vec<Node>,
    names: Vec<NodeId>,
    limits: Vec<Limit>,
    template: GossipConfig,
    network: Network,
    links: Vec<Link>,
    connections: BTreeMap<(usize, usize), Connection>,
    offers: Vec<Offer>,
    records: BTreeMap<(usize, Key), Record>,
    detailed: bool,
    hasher: KeyHasher,
    rng: fastrand::Rng,
    trace: u64,
    spread: Option<SpreadLog>,
    timeline: Option<Timeline>,
}

impl Cluster {
    /// A fleet of `nodes` with these limits, which has just started. `seed` decides everything that is left to chance.
    pub fn new(nodes: usize, limits: Vec<Limit>, seed: u64) -> Self {
        Self::with_network(nodes, limits, seed, Network::default())
    }

    /// The same on another network.
    pub fn with_network(nodes: usize, limits: Vec<Limit>, seed: u64, network: Network) -> Self {
        // Names in the order of their numbers, so that a node's number is its index in the gossip too.
        let names: Vec<NodeId> =
            (0..nodes).filter_map(|number| NodeId::new(&format!("node-{number:04}")).ok()).collect();
        let mut rng = fastrand::Rng::with_seed(seed);
        let template = GossipConfig::new(names[0].clone(), Incarnation::new(0), Vec::new());
        let mut cluster = Self {
            now: START,
            queue: Queue::default(),
            nodes: (0..nodes).map(|_| Node::new(rng.u64(0..START / 2))).collect(),
            names,
            limits,
            template,
            network,
            links: vec![Link::default(); nodes * nodes],
            connections: BTreeMap::new(),
            offers: Vec::new(),
            records: BTreeMap::new(),
            detailed: true,
            hasher: KeyHasher::default(),
            rng,
            trace: seed,
            spread: None,
            timeline: None,
        };
        (0..nodes).for_each(|node| cluster.start(node));
        cluster
    }

    /// Changes the gossip's settings; nodes take them over when they start again, so call it first and then
    /// [`restart_all`](Self::restart_all), or build on [`Cluster::new`]'s defaults.
    pub fn configure(&mut self, heartbeat: Duration, min_interval: Option<Duration>, fanout: usize) {
        self.template.heartbeat = heartbeat;
        self.template.min_interval = min_interval;
        self.template.fanout = fanout.max(1);
        self.restart_all();
    }

    /// Starts the whole fleet anew, without any memory, and forgets all records.
    pub fn restart_all(&mut self) {
        self.connections.clear();
        self.queue.clear();
        self.records.clear();
        (0..self.nodes.len()).for_each(|node| self.start(node));
    }

    /// Also measures how long news takes to spread; see [`spread`](Self::spread).
    pub fn measure_spread(&mut self) {
        let nodes = self.nodes.len();
        self.spread = Some(SpreadLog::new(nodes));
    }

    /// Also keeps what each node admits under the first limit, in steps of this length; see [`timeline`](Self::timeline).
    pub fn keep_timeline(&mut self, step: Duration) {
        self.timeline = Some(Timeline::new(self.nodes.len(), step));
    }

    /// What each node admitted over time, if it was kept.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    /// Keeps less of each key: no sliding second, for runs with very many keys.
    pub fn keep_less(&mut self) {
        self.detailed = false;
    }

    /// Offers `node` requests of one unit for `key` under the first limit, at `rate` per second on average, until it is
    /// called again for the same node and key; a rate of 0 ends them.
    pub fn offer(&mut self, node: usize, key: &str, rate: f64) {
        self.offer_on(0, node, key, rate, 1);
    }

    /// Offers `node` requests for keys that are drawn anew each time; `name` tells this stream from others.
    pub fn offer_many(&mut self, limit: usize, node: usize, name: &str, keys: Keys, rate: f64) {
        let at = self.offer_place(limit, node, name, |_| keys);
        self.set_rate(at, rate, 1);
    }

    /// The same under another limit, and at another cost.
    pub fn offer_on(&mut self, limit: usize, node: usize, key: &str, rate: f64, cost: u64) {
        let at = self.offer_place(limit, node, key, |hasher| Keys::One(hasher.key(key)));
        self.set_rate(at, rate, cost);
    }

    fn offer_place(
        &mut self,
        limit: usize,
        node: usize,
        name: &str,
        keys: impl FnOnce(&KeyHasher) -> Keys,
    ) -> usize {
        let at = self
            .offers
            .iter()
            .position(|offer| offer.node == node && offer.limit == limit && offer.name == name);
        at.unwrap_or_else(|| {
            let keys = keys(&self.hasher);
            let name = name.to_owned();
            self.offers.push(Offer { node, limit, name, keys, rate: 0.0, cost: 1, generation: 0 });
            self.offers.len() - 1
        })
    }

    fn set_rate(&mut self, at: usize, rate: f64, cost: u64) {
        let offer = &mut self.offers[at];
        (offer.rate, offer.cost) = (rate, cost);
        offer.generation += 1;
        self.schedule_arrival(at);
    }

    fn schedule_arrival(&mut self, at: usize) {
        let Offer { rate, generation, .. } = self.offers[at];
        if rate > 0.0 {
            let gap = -(1.0 - self.rng.f64()).ln() / rate * 1e9;
            self.queue.push(self.now + gap as u64, Event::Arrival { offer: at, generation });
        }
    }

    /// Sends one request of one unit to a node, now. `None` when the node is down.
    pub fn check(&mut self, node: usize, key: &str) -> Option<Answer> {
        self.check_cost(0, node, key, 1)
    }

    /// Sends one request of `cost` units under a limit to a node, now.
    pub fn check_cost(&mut self, limit: usize, node: usize, key: &str, cost: u64) -> Option<Answer> {
        let key = self.hasher.key(key);
        self.request(limit, node, key, cost).map(|(answer, _)| answer)
    }

    /// Reserves units on a node, now, to be settled on later; `None` when it refuses, or is down.
    pub fn reserve(&mut self, limit: usize, node: usize, key: &str, cost: u64) -> Option<Reserved> {
        let key = self.hasher.key(key);
        let (answer, receipt) = self.request(limit, node, key, cost)?;
        let incarnation = self.nodes[node].running()?.incarnation;
        answer.allowed.then_some(Reserved { limit, node, incarnation, receipt, cost })
    }

    /// Corrects a reservation on its node, now, to what the work really cost; returns how many units were spent beside it,
    /// and how many given back. Nothing happens where the node has stopped meanwhile.
    pub fn settle(&mut self, reserved: Reserved, actual: u64) -> (u64, u64) {
        let Reserved { limit, node, incarnation, receipt, cost } = reserved;
        let state = &self.nodes[node];
        let running = state.running().filter(|running| running.incarnation == incarnation);
        let corrected = running
            .map(|running| running.limits[limit].correct(&receipt, cost, actual, state.time(self.now)))
            .unwrap_or_default();
        self.after_check(node);
        (corrected.spent, corrected.given_back)
    }

    /// Gives units back on a node, now; returns how many it took back.
    pub fn refund(&mut self, limit: usize, node: usize, key: &str, units: u64) -> u64 {
        let key = self.hasher.key(key);
        let given = self.nodes[node]
            .running()
            .map_or(0, |running| running.limits[limit].refund(key, units, self.nodes[node].time(self.now)));
        let level_at = self.level_at(limit, key);
        if let Some(record) = self.records.get_mut(&(limit, key)) {
            record.give_back(level_at, given);
        }
        self.after_check(node);
        given
    }

    fn request(&mut self, limit: usize, node: usize, key: Key, cost: u64) -> Option<(Answer, Receipt)> {
        let now = self.now;
        let state = &self.nodes[node];
        let running = state.running()?;
        let (coarse, precise) = (state.coarse(now), state.time(now));
        let (decision, receipt) = running.limits[limit].take(key, cost, coarse, || precise);
        let answer = Answer {
            allowed: decision.is_allowed(),
            remaining: decision.remaining(),
            basis: decision.basis(),
            refused: decision.refused().or(decision.would_have_been()),
        };
        let definition = &self.limits[limit];
        let level_at = self.level_at(limit, key);
        let record = self
            .records
            .entry((limit, key))
            .or_insert_with(|| Record::new(definition, now, level_at, self.detailed));
        record.take(node, now, level_at, cost, answer.allowed);
        if let Some(timeline) = self.timeline.as_mut().filter(|_| answer.allowed && limit == 0) {
            timeline.note(node, now - START, cost);
        }
        self.after_check(node);
        Some((answer, receipt))
    }

    /// The time that one global limiter would go by: the wall clock's for windows, each key's own where they are staggered.
    fn level_at(&self, limit: usize, key: Key) -> u64 {
        let definition = &self.limits[limit];
        let wall = WallTime::from_unix_nanos(WALL_START + (self.now - START));
        let now = Now { mono: Timestamp::from_nanos(self.now), wall };
        if definition.meter().needs_wall() {
            definition.own_time(key, now).wall.as_unix_nanos()
        } else {
            self.now
        }
    }

    fn after_check(&mut self, node: usize) {
        if self.nodes[node].was_woken() {
            self.queue.push(self.now + WAKE_NANOS, Event::Wake { node });
        }
    }

    /// Cuts the network between two groups of nodes, both ways.
    pub fn partition(&mut self, one: &[usize], other: &[usize]) {
        for &a in one {
            for &b in other {
                self.cut(a, b);
                self.cut(b, a);
            }
        }
    }

    /// Cuts the way from one node to another; the way back stays.
    pub fn cut(&mut self, from: usize, to: usize) {
        let nodes = self.nodes.len();
        self.links[from * nodes + to].cut = true;
        self.watch(from, to);
    }

    /// Mends all cuts.
    pub fn heal(&mut self) {
        self.links.iter_mut().for_each(|link| link.cut = false);
        let pairs: Vec<(usize, usize)> = self.connections.keys().copied().collect();
        for (a, b) in pairs {
            let waiting =
                self.connections.get_mut(&(a, b)).map(|connection| std::mem::take(&mut connection.waiting));
            for (from, payload) in waiting.unwrap_or_default() {
                let to = if from == a { b } else { a };
                self.carry(from, to, Channel::Stream, payload);
            }
            self.dial(a, b, false);
        }
    }

    /// Kills a node: its memory is gone, and nobody is told.
    pub fn crash(&mut self, node: usize) {
        self.nodes[node].stop();
        for other in 0..self.nodes.len() {
            self.watch(node, other);
        }
    }

    /// Stops a node that says so to its peers; what it said arrives.
    pub fn leave(&mut self, node: usize) {
        let now = self.nodes[node].time(self.now);
        if let Some(running) = self.nodes[node].running_mut() {
            running.gossip.leave(now);
            self.drain(node);
        }
        self.crash(node);
    }

    /// Starts a node that was killed or has left, as a new incarnation without memory.
    pub fn restart(&mut self, node: usize) {
        self.start(node);
    }

    /// Stops a node's gossip for a while: it neither sends nor takes in anything, but goes on deciding.
    pub fn stall(&mut self, node: usize, duration: Duration) {
        self.nodes[node].stalled_until = self.now + saturating_nanos(duration);
        self.queue.push(self.nodes[node].stalled_until, Event::Wake { node });
    }

    /// Sets a node's wall clock ahead by so many milliseconds (behind: negative).
    pub fn skew(&mut self, node: usize, millis: i64) {
        self.nodes[node].skew_millis = millis;
    }

    /// Changes the network under the running fleet.
    pub fn set_network(&mut self, network: Network) {
        self.network = network;
    }

    /// Lets time pass, and everything happen that falls in it.
    pub fn advance(&mut self, duration: Duration) {
        let until = self.now + saturating_nanos(duration);
        while let Some((at, event)) = self.queue.pop_until(until) {
            self.now = at;
            self.happen(event);
        }
        self.now = until;
    }

    /// Counts everything from now on; the ideal limiter starts from where the fleet is.
    pub fn restart_records(&mut self) {
        let now = self.now;
        self.records.values_mut().for_each(|record| record.restart(now));
        self.nodes.iter_mut().for_each(|node| node.traffic = Traffic::default());
        if let Some(log) = &mut self.spread {
            log.spread = Spread::default();
        }
    }

    /// What happened to a key under the first limit; `None` before its first request.
    pub fn record(&self, key: &str) -> Option<&Record> {
        self.record_on(0, key)
    }

    /// What happened to a key under a limit.
    pub fn record_on(&self, limit: usize, key: &str) -> Option<&Record> {
        self.records.get(&(limit, self.hasher.key(key)))
    }

    /// All keys' records.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// What a node knows of all actors' spending on a key under the first limit, over the epochs it keeps; `None` when
    /// the node is down.
    pub fn view(&self, node: usize, key: impl KeySource) -> Option<PnCounter> {
        self.view_of(0, 0, node, key)
    }

    /// The same under one quota of a limit, both counted from 0.
    pub fn view_of(&self, limit: usize, band: usize, node: usize, key: impl KeySource) -> Option<PnCounter> {
        let running = self.nodes[node].running()?;
        Some(running.gossip.counter(running.book(limit) + band, self.hasher.key(key)))
    }

    /// Units left for a key on a node's view, under the first limit.
    pub fn remaining(&self, node: usize, key: impl KeySource) -> Option<u64> {
        let state = &self.nodes[node];
        let decision = state.running()?.limits[0].peek(self.hasher.key(key), 1, state.time(self.now));
        Some(decision.remaining())
    }

    /// The level of a key on a node's view, under the first limit, in units; negative while a debt is repaid.
    pub fn level(&self, node: usize, key: impl KeySource) -> Option<f64> {
        let state = &self.nodes[node];
        let table = state.running()?.limits[0].first();
        let decision = table.peek(self.hasher.key(key), 1, state.time(self.now));
        Some(table.meter().as_units(decision.level))
    }

    /// A node's own status; `None` when it is down.
    pub fn status(&self, node: usize) -> Option<Status> {
        let state = &self.nodes[node];
        Some(state.running()?.gossip.status(state.time(self.now)))
    }

    /// What a node has sent since the start or the last [`restart_records`](Self::restart_records).
    pub fn traffic(&self, node: usize) -> Traffic {
        self.nodes[node].traffic
    }

    /// How long news took, if it was measured.
    pub fn spread(&mut self) -> Option<&mut Spread> {
        self.spread.as_mut().map(|log| &mut log.spread)
    }

    /// A digest of everything that happened, in order.
    pub fn trace_hash(&self) -> u64 {
        self.trace
    }

    /// Virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.now - START)
    }

    /// How many nodes there are, up or down.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether the node is up.
    pub fn is_up(&self, node: usize) -> bool {
        self.nodes[node].running().is_some()
    }
}

#[cfg(test)]
mod tests;
