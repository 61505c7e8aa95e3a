//! What a peer with a valid certificate can do by lying: a fleet whose messages are carried by hand, and one node of which
//! says whatever a test wants.

mod lies;
mod noise;
mod slow;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    Channel, Gossip, GossipConfig, NodeIndex, ProtocolError, Status, Transmit,
    message::{self, Beat, FrameWriter, Header, Hello, Item, Progress, WireActor},
};
use crate::{
    counter::Share,
    key::Key,
    limit::{Limit, Quota},
    node::{Incarnation, NodeId},
    table::Table,
    time::{Now, Timestamp, WallTime},
};

/// The liar's node, and its incarnation unless it says otherwise.
const LIAR: NodeIndex = NodeIndex(0);
const LIARS: u32 = 666;
const KEY: Key = Key::from_digest(7);

/// Honest nodes, numbered from 1 on, and the liar, which only tells.
struct Fleet {
    nodes: Vec<Option<Gossip>>,
    tables: Vec<Arc<Table>>,
    now: Now,
    /// Ways on which nothing arrives, from one node to another.
    cut: Vec<(usize, usize)>,
    /// What honest nodes have sent to the liar.
    heard: Vec<Vec<u8>>,
    /// Whether the liar says that it has its peers' state.
    synced: bool,
    /// A node that takes in what it is sent only when a test says so, and what waits for it.
    slow: Option<usize>,
    waiting: VecDeque<(usize, Transmit)>,
}

fn name(node: usize) -> NodeId {
    NodeId::new(&format!("n{node}")).unwrap()
}

impl Fleet {
    /// A fleet of so many honest nodes, each connected to all others and to the liar, that have started together.
    fn new(honest: usize, limit: &Limit) -> Self {
        Self::start(honest, limit, false)
    }

    fn start(honest: usize, limit: &Limit, synced: bool) -> Self {
        let mono = Timestamp::from_millis(1_000_000);
        let now = Now { mono, wall: WallTime::from_unix_nanos(1_900_000_000_000_000_000) };
        let mut fleet = Self {
            nodes: vec![None],
            tables: vec![Arc::new(Table::new(limit.clone()))],
            now,
            cut: Vec::new(),
            heard: Vec::new(),
            synced,
            slow: None,
            waiting: VecDeque::new(),
        };
        for node in 1..=honest {
            let peers = (0..=honest).filter(|other| *other != node).map(name).collect();
            let config = GossipConfig::new(name(node), Incarnation::new(100 + node as u32), peers);
            let table = Arc::new(Table::new(limit.clone()));
            let wake: crate::table::marks::Wake = Arc::new(|| ());
            fleet.nodes.push(Some(Gossip::new(config, vec![table.clone()], node as u64, &wake, now)));
            fleet.tables.push(table);
        }
        for (one, other) in (1..=honest).flat_map(|one| (0..=honest).map(move |other| (one, other))) {
            fleet.connect(one, other);
        }
        fleet.tell_all(&fleet.hello(LIARS, Vec::new()));
        fleet.pass(1_000);
        fleet
    }

    fn connect(&mut self, at: usize, to: usize) {
        let now = self.now;
        self.node(at).handle_connected(now, NodeIndex(to as u16), 1_200);
    }

    fn node(&mut self, node: usize) -> &mut Gossip {
        self.nodes[node].as_mut().unwrap()
    }

    fn status(&self, node: usize) -> Status {
        self.nodes[node].as_ref().unwrap().status(self.now)
    }

    /// Lets time pass, ten milliseconds at a time.
    fn pass(&mut self, millis: u64) {
        for _ in 0..millis / 10 {
            let step = Duration::from_millis(10);
            self.now.mono = self.now.mono.after(step);
            self.now.wall = WallTime::from_unix_nanos(self.now.wall.as_unix_nanos() + 10_000_000);
            let now = self.now;
            self.nodes.iter_mut().flatten().for_each(|node| node.handle_timeout(now));
            self.carry();
        }
    }

    /// Delivers what the honest nodes have sent, and what they answer.
    fn carry(&mut self) {
        let mut silent = false;
        while !silent {
            silent = true;
            for from in 1..self.nodes.len() {
                while let Some(transmit) = self.node(from).poll_transmit() {
                    silent = false;
                    let to = usize::from(transmit.to.0);
                    if to == usize::from(LIAR.0) {
                        self.heard.push(transmit.payload);
                    } else if self.slow == Some(to) {
                        self.waiting.push_back((from, transmit));
                    } else if !self.cut.contains(&(from, to)) {
                        self.deliver(from, &transmit);
                    }
                }
                while self.node(from).poll_event().is_some() {}
            }
        }
    }

    fn deliver(&mut self, from: usize, transmit: &Transmit) {
        let (now, to, from) = (self.now, usize::from(transmit.to.0), NodeIndex(from as u16));
        let taken = self.node(to).handle_payload(now, from, transmit.channel, &transmit.payload);
        taken.expect("honest nodes understand each other");
    }

    /// The slow node takes in the oldest of what waits for it.
    fn take_in_one(&mut self) {
        if let Some((from, transmit)) = self.waiting.pop_front() {
            self.deliver(from, &transmit);
            self.carry();
        }
    }

    fn take_in_all(&mut self) {
        while !self.waiting.is_empty() {
            self.take_in_one();
        }
    }

    /// Of all that waits, streams go on waiting.
    fn take_in_datagrams(&mut self) {
        let (datagrams, streams) =
            self.waiting.drain(..).partition(|(_, transmit)| transmit.channel == Channel::Datagram);
        self.waiting = datagrams;
        self.take_in_all();
        self.waiting = streams;
    }

    /// The liar says something to one node.
    fn tell(&mut self, to: usize, payload: &[u8]) -> Result<(), ProtocolError> {
        let now = self.now;
        let taken = self.node(to).handle_payload(now, LIAR, Channel::Stream, payload);
        self.carry();
        taken
    }

    fn tell_all(&mut self, payload: &[u8]) {
        (1..self.nodes.len()).for_each(|node| self.tell(node, payload).unwrap());
    }

    /// The liar's hello.
    fn hello(&self, incarnation: u32, progress: Vec<Progress>) -> Vec<u8> {
        let limit = self.tables[0].limit();
        message::hello(&Hello {
            cluster: "ratemesh".to_owned(),
            incarnation,
            nodes: (0..self.nodes.len()).map(|node| name(node).to_string()).collect(),
            limits: vec![(limit.name().to_owned(), limit.fingerprint())],
            synced: self.synced,
            wall_ms: self.now.wall.as_unix_nanos() / 1_000_000,
            progress,
            notices: Vec::new(),
        })
    }

    /// The actor as which an honest node writes now.
    fn actor(&mut self, node: usize) -> WireActor {
        WireActor { node: node as u16, incarnation: self.node(node).incarnation }
    }

    /// So many requests at a node; how many pass.
    fn ask(&self, node: usize, key: Key, requests: u64) -> u64 {
        let now = self.now;
        (0..requests).filter(|_| self.tables[node].check(key, 1, now, || now).is_allowed()).count() as u64
    }

    fn remaining(&self, node: usize, key: Key) -> u64 {
        self.tables[node].peek(key, 1, self.now).remaining()
    }

    /// What a node has written down of its own spending on the key, over all incarnations of this run.
    fn wrote(&mut self, node: usize) -> Share {
        let table = self.tables[node].clone();
        let gossip = self.node(node);
        let Some(slot) = table.find(KEY) else { return Share::default() };
        let own = gossip.books[0].ledger.entries(slot).filter(|entry| gossip.is_own(entry.actor));
        own.fold(Share::default(), |sum, entry| Share {
            spent: sum.spent + entry.share.spent,
            refunded: sum.refunded + entry.share.refunded,
        })
    }

    /// What a node knows another to have spent on the key, over all its incarnations.
    fn known(&mut self, at: usize, of: usize) -> Share {
        let of = name(of);
        let counter = self.node(at).counter(0, KEY);
        let shares = counter.shares().filter(|(actor, _)| actor.node == of);
        shares.fold(Share::default(), |sum, (_, share)| Share {
            spent: sum.spent.saturating_add(share.spent),
            refunded: sum.refunded.saturating_add(share.refunded),
        })
    }
}

/// A limit at which nothing comes back while a test runs, and nothing is forecast.
fn slow(capacity: u64) -> Limit {
    Limit::token_bucket("a", Quota::per_day(1)).burst(capacity).max_keys(100).build().unwrap()
}

fn liar() -> WireActor {
    WireActor { node: LIAR.0, incarnation: LIARS }
}

/// A share as it is told, right after it was written.
fn item(version: u64, key: Key, epoch: u16, spent: u64, refunded: u64) -> Item {
    let share = Share { spent, refunded };
    Item { version, limit: 0, epoch, key, share, age: 0, span_ms: 0, statement: None }
}

/// A frame with one group, complete up to `to`.
fn group(actor: WireActor, from: u64, items: &[Item], to: Option<u64>) -> Vec<u8> {
    let mut writer = FrameWriter::new(Header::default(), &[], 0);
    writer.start_group(actor, from);
    items.iter().for_each(|item| writer.item(item));
    writer.end_group(to);
    writer.finish()
}

fn beats(beats: &[Beat]) -> Vec<u8> {
    FrameWriter::new(Header::default(), beats, 0).finish()
}
