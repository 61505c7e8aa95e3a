//! How things happen to the simulated fleet: requests, messages, connections and timers.

use super::*;

/// Fleets of more nodes take a while to dial each other: for each node so many nanoseconds.
const MANY_NODES: usize = 64;
const DIAL_NANOS: u64 = 500_000;

/// The machinery.
impl Cluster {
    pub(super) fn start(&mut self, node: usize) {
        let incarnation = Incarnation::new(self.rng.u32(..));
        let config = GossipConfig { incarnation, ..self.config_of(node) };
        let seed = self.rng.u64(..);
        self.nodes[node].start(config, &self.limits, seed, self.now);
        if let Some(log) = &mut self.spread {
            log.published[node].clear();
            log.clocks[node].fill(0);
            log.clocks.iter_mut().for_each(|clocks| clocks[node] = 0);
        }
        self.connect_anew(node);
    }

    /// What a node's gossip is told, whatever its incarnation.
    pub(super) fn config_of(&self, node: usize) -> GossipConfig {
        let others = self.names.iter().enumerate().filter(|(other, _)| *other != node);
        let peers = others.map(|(_, name)| name.clone()).collect();
        GossipConfig { node: self.names[node].clone(), peers, ..self.template.clone() }
    }

    /// Connects a node whose gossip has just started, or goes on with other numbers.
    pub(super) fn connect_anew(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let pair = (node.min(other), node.max(other));
            // The new process is another connection; the old one is gone with the old process.
            self.disconnect(pair);
            self.dial(pair.0, pair.1, true);
        }
        self.drain(node);
    }

    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Arrival { offer, generation } => self.arrive(offer, generation),
            Event::Wake { node } | Event::Timer { node } => self.run(node),
            Event::Delivery { from, to, connection, channel, payload } => {
                self.deliver(from, to, connection, channel, payload);
            }
            Event::Connected { pair, number } => self.connect(pair, number),
            Event::Expired { pair, number } => self.expire(pair, number),
        }
    }

    pub(super) fn arrive(&mut self, at: usize, generation: u64) {
        let Offer { node, limit, cost, generation: current, .. } = self.offers[at];
        if generation == current {
            let key = self.offers[at].keys.draw(self.now - START, &mut self.rng);
            let answer = self.request(limit, node, key, cost);
            self.note(0, &[u8::from(answer.is_some_and(|(answer, _)| answer.allowed))]);
            self.schedule_arrival(at);
        }
    }

    pub(super) fn run(&mut self, node: usize) {
        let now = self.now;
        let state = &mut self.nodes[node];
        if state.stalled_until > now {
            return;
        }
        let time = state.time(now);
        let waiting = std::mem::take(&mut state.waiting);
        let Some(running) = state.running_mut() else { return };
        running.gossip.handle_timeout(time);
        for (from, connection, channel, payload) in waiting {
            self.deliver(from, node, connection, channel, payload);
        }
        self.drain(node);
    }

    pub(super) fn deliver(
        &mut self,
        from: usize,
        to: usize,
        number: u64,
        channel: Channel,
        payload: Vec<u8>,
    ) {
        let pair = (from.min(to), from.max(to));
        if self.connections.get(&pair).is_none_or(|connection| !connection.up || connection.number != number)
        {
            return;
        }
        let now = self.now;
        let state = &mut self.nodes[to];
        if state.stalled_until > now {
            if channel == Channel::Datagram && state.waiting.len() >= STALLED_DATAGRAMS {
                state.waiting.remove(0);
            }
            state.waiting.push((from, number, channel, payload));
            return;
        }
        let time = state.time(now);
        self.trace = xxhash_rust::xxh3::xxh3_64_with_seed(&payload, self.trace ^ now ^ (to as u64) << 48);
        let Some(running) = self.nodes[to].running_mut() else { return };
        if let Err(error) = running.gossip.handle_payload(time, NodeIndex(from as u16), channel, &payload) {
            // The nodes speak the same protocol: a malformed message is a fault of this crate.
            panic!("node {to} could not read what node {from} sent: {error}");
        }
        self.drain(to);
        self.measure_news(to);
    }

    /// Sends what a node has to send, and sets its timer.
    pub(super) fn drain(&mut self, node: usize) {
        let now = self.now;
        let mut sent = Vec::new();
        {
            let state = &mut self.nodes[node];
            let time = state.time(now);
            let Some(running) = state.running_mut() else { return };
            while let Some(transmit) = running.gossip.poll_transmit() {
                sent.push(transmit);
            }
            while running.gossip.poll_event().is_some() {}
            let wanted = running.gossip.poll_timeout(time);
            let at = now + saturating_nanos(wanted.since(time.mono));
            if state.timer != Some(at) {
                state.timer = Some(at);
                self.queue.push(at, Event::Timer { node });
            }
        }
        self.note_published(node);
        for Transmit { to, channel, payload } in sent {
            self.nodes[node].traffic.messages += 1;
            self.nodes[node].traffic.bytes += payload.len() as u64;
            self.carry(node, usize::from(to.0), channel, payload);
        }
    }

    /// Puts a message on its way.
    pub(super) fn carry(&mut self, from: usize, to: usize, channel: Channel, payload: Vec<u8>) {
        let pair = (from.min(to), from.max(to));
        let cut = self.links[from * self.nodes.len() + to].cut;
        let Some(connection) = self.connections.get_mut(&pair).filter(|connection| connection.up) else {
            return;
        };
        let number = connection.number;
        match channel {
            Channel::Datagram if cut => {}
            Channel::Datagram => {
                for nanos in self.network.datagram(&mut self.rng) {
                    let event =
                        Event::Delivery { from, to, connection: number, channel, payload: payload.clone() };
                    self.queue.push(self.now + nanos, event);
                }
            }
            Channel::Stream if cut => connection.waiting.push((from, payload)),
            Channel::Stream => {
                let nanos = self.network.stream(&mut self.rng);
                self.queue.push(
                    self.now + nanos,
                    Event::Delivery { from, to, connection: number, channel, payload },
                );
            }
        }
    }

    pub(super) fn is_passable(&self, (a, b): (usize, usize)) -> bool {
        let nodes = self.nodes.len();
        let open = !self.links[a * nodes + b].cut && !self.links[b * nodes + a].cut;
        open && self.nodes[a].running().is_some() && self.nodes[b].running().is_some()
    }

    /// Starts the timer that gives a broken connection up.
    pub(super) fn watch(&mut self, a: usize, b: usize) {
        let pair = (a.min(b), a.max(b));
        if let Some(connection) =
            self.connections.get_mut(&pair).filter(|connection| connection.up && !connection.expiring)
        {
            connection.expiring = true;
            let at = self.now + saturating_nanos(self.network.idle_timeout);
            self.queue.push(at, Event::Expired { pair, number: connection.number });
        }
    }

    pub(super) fn expire(&mut self, pair: (usize, usize), number: u64) {
        let passable = self.is_passable(pair);
        let Some(connection) =
            self.connections.get_mut(&pair).filter(|connection| connection.number == number)
        else {
            return;
        };
        connection.expiring = false;
        if !passable {
            self.disconnect(pair);
        }
    }

    pub(super) fn disconnect(&mut self, pair: (usize, usize)) {
        let Some(connection) = self.connections.get_mut(&pair) else { return };
        let was_up = std::mem::take(&mut connection.up);
        connection.number += 1;
        connection.waiting.clear();
        (connection.expiring, connection.dialling) = (false, false);
        if !was_up {
            return;
        }
        for (node, other) in [(pair.0, pair.1), (pair.1, pair.0)] {
            let time = self.nodes[node].time(self.now);
            if let Some(running) = self.nodes[node].running_mut() {
                running.gossip.handle_disconnected(time, NodeIndex(other as u16));
                self.drain(node);
            }
        }
    }

    /// Sets up a connection, if the network allows one and there is none. A node that starts dials all its peers at once;
    /// after a cut, the dialler may be in the middle of a back-off.
    pub(super) fn dial(&mut self, a: usize, b: usize, at_once: bool) {
        let pair = (a.min(b), a.max(b));
        let passable = self.is_passable(pair);
        let handshake = 2 * self.network.delay(&mut self.rng) + self.network.delay(&mut self.rng);
        let connection = self.connections.entry(pair).or_default();
        if connection.up || connection.dialling || !passable {
            return;
        }
        let most = match at_once {
            // A node with very many peers does not come to all of them at the same moment.
            true if self.nodes.len() > MANY_NODES => DIAL_NANOS * self.nodes.len() as u64,
            true => 0,
            false => saturating_nanos(self.network.max_reconnect),
        };
        let backoff = self.rng.u64(0..=most);
        connection.dialling = true;
        connection.number += 1;
        self.queue.push(self.now + backoff + handshake, Event::Connected { pair, number: connection.number });
    }

    pub(super) fn connect(&mut self, pair: (usize, usize), number: u64) {
        let passable = self.is_passable(pair);
        let bytes = self.network.datagram_bytes;
        let Some(connection) =
            self.connections.get_mut(&pair).filter(|connection| connection.number == number)
        else {
            return;
        };
        connection.dialling = false;
        if !passable {
            return;
        }
        connection.up = true;
        for (node, other) in [(pair.0, pair.1), (pair.1, pair.0)] {
            let time = self.nodes[node].time(self.now);
            if let Some(running) = self.nodes[node].running_mut() {
                running.gossip.handle_connected(time, NodeIndex(other as u16), bytes);
                self.drain(node);
            }
        }
    }

    pub(super) fn note(&mut self, salt: u64, bytes: &[u8]) {
        self.trace = xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.trace ^ self.now ^ salt);
    }
}
