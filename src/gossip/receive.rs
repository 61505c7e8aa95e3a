//! Taking in what peers send.

use std::time::Duration;

use super::{
    Channel, Event, Gossip, NodeIndex, ProtocolError,
    actors::Change,
    book::{Allowance, Refusal},
    message::{self, Beat, FrameReader, Hello, Item, Malformed, Message, Part, Progress, WireActor},
    round::wire_micros,
};
use crate::{
    ledger::ActorIndex,
    time::{Now, saturating_nanos},
};

/// A peer whose clock is off by more is worth a word.
const WORRYING_SKEW_MS: u64 = 500;
/// Versions that a share may be ahead of what is known of its actor: more than any log holds.
const MAX_AHEAD: u64 = 4 * super::actors::MAX_LOG as u64;
/// Mismatches kept of a peer, to show.
const MAX_MISMATCHES: usize = 16;

/// Where in a frame the reader is.
struct Group {
    actor: ActorIndex,
    /// Whether this node has every change up to the group's first.
    contiguous: bool,
}

impl Gossip {
    /// A datagram or a whole stream has come from `from`, whose name the transport has verified.
    ///
    /// # Errors
    /// The payload was malformed; the connection should be closed. Nothing panics or grows, whatever was sent.
    pub(crate) fn handle_payload(
        &mut self,
        now: Now,
        from: NodeIndex,
        _channel: Channel,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        let Some(peer) = self.peer_mut(from) else { return Ok(()) };
        peer.traffic.bytes_received += payload.len() as u64;
        peer.traffic.messages_received += 1;
        for book in &mut self.books {
            book.turn(self.me, now);
        }
        let taken = message::decode(payload).and_then(|message| self.take(from, message, now));
        taken.map_err(|error| {
            self.refused.malformed += 1;
            ProtocolError(error.to_string())
        })
    }

    fn take(&mut self, from: NodeIndex, message: Message<'_>, now: Now) -> Result<(), Malformed> {
        match message {
            Message::Hello(hello) => {
                self.take_hello(from, hello, now);
                Ok(())
            }
            Message::Frame(frame) => self.take_frame(from, frame, now),
            Message::SyncRequest(request) => {
                self.start_sync(from, request, now);
                Ok(())
            }
            Message::Sync(sync) => {
                self.take_sync(from, sync, now);
                Ok(())
            }
            Message::Leave => {
                self.take_leave(from, now);
                Ok(())
            }
        }
    }

    fn take_hello(&mut self, from: NodeIndex, hello: Hello, now: Now) {
        let nodes =
            hello.nodes.iter().map(|name| self.nodes.binary_search_by(|node| node.as_str().cmp(name)).ok());
        let nodes: Vec<Option<NodeIndex>> =
            nodes.map(|index| index.map(|index| NodeIndex(index as u16))).collect();
        let limits = hello.limits.iter().map(|(name, _)| self.limit_named(name)).collect();
        let mismatches = self.compare(&hello, &nodes);
        if hello.cluster != self.config.cluster {
            // Another cluster's node with a certificate of this one: it may talk, but is not listened to.
            self.note_mismatches(from, mismatches);
            return;
        }
        let Some(peer) = self.peer_mut(from) else { return };
        peer.set_numbering(nodes, limits);
        peer.incarnation = hello.incarnation;
        peer.synced = Some(hello.synced);
        let local_ms = (now.wall.as_unix_nanos() / 1_000_000) as i64;
        let transit_ms = peer.delay().as_millis() as i64;
        peer.skew_ms = Some((hello.wall_ms as i64).saturating_add(transit_ms).saturating_sub(local_ms));
        self.note_mismatches(from, mismatches);
        self.heard_of(from, hello.incarnation, now);
        // The actor is known from its hello on, even if it never spends.
        let actor = self.actors.find_or_add(from, hello.incarnation, now.mono);
        if let Some(state) = actor.and_then(|actor| self.actors.get_mut(actor)) {
            state.heard = now.mono;
        }
        self.take_progress(from, &hello.progress, now);
        if self.joining.is_some() && !hello.synced {
            // It has just started too: all it knows comes change by change, and there is nothing to wait for.
            self.answered(from, false, now);
        } else {
            self.ask_for_sync_if_needed(from, &hello.progress, now);
        }
    }

    fn limit_named(&self, name: &str) -> Option<u16> {
        self.books.iter().position(|book| book.table.limit().name() == name).map(|limit| limit as u16)
    }

    /// In what a peer's configuration parts from this node's.
    fn compare(&self, hello: &Hello, nodes: &[Option<NodeIndex>]) -> Vec<String> {
        let mut mismatches = Vec::new();
        if hello.cluster != self.config.cluster {
            mismatches.push(format!(
                "its cluster is {:?}, not {:?}",
                clipped(&hello.cluster),
                self.config.cluster
            ));
        }
        for (name, fingerprint) in &hello.limits {
            match self.limit_named(name).and_then(|limit| self.books.get(usize::from(limit))) {
                None => mismatches
                    .push(format!("it has a limit {:?} that this node does not have", clipped(name))),
                Some(book) if book.table.limit().fingerprint() != *fingerprint => {
                    mismatches.push(format!("it defines the limit {:?} otherwise", clipped(name)));
                }
                Some(_) => {}
            }
        }
        for book in &self.books {
            let name = book.table.limit().name();
            if !hello.limits.iter().any(|(other, _)| other == name) {
                mismatches.push(format!("it does not have the limit {name:?}"));
            }
        }
        for node in self.nodes.iter().filter(|node| !hello.nodes.iter().any(|name| name == node.as_str())) {
            mismatches.push(format!("it does not list the node {:?}", node.as_str()));
        }
        for (name, _) in hello.nodes.iter().zip(nodes).filter(|(_, node)| node.is_none()) {
            mismatches.push(format!("it lists a node {:?} that this node does not", clipped(name)));
        }
        mismatches.truncate(MAX_MISMATCHES);
        mismatches
    }

    fn note_mismatches(&mut self, from: NodeIndex, mismatches: Vec<String>) {
        let Some(peer) = self.peers.get_mut(usize::from(from.0)) else { return };
        for text in mismatches.iter().filter(|text| !peer.mismatches.contains(text)) {
            self.events.push_back(Event::Mismatch(from, text.clone()));
        }
        let skewed = peer.skew_ms.filter(|skew| skew.unsigned_abs() > WORRYING_SKEW_MS);
        let wall = self.books.iter().any(|book| book.table.meter().needs_wall());
        peer.mismatches = mismatches;
        if let (Some(skew), true) = (skewed, wall) {
            let text = format!("its wall clock differs by {skew} ms, so windows do not begin together");
            if !peer.skew_noted {
                self.events.push_back(Event::Mismatch(from, text.clone()));
            }
            peer.mismatches.push(text);
        }
        peer.skew_noted = skewed.is_some();
    }

    fn take_frame(&mut self, from: NodeIndex, mut frame: FrameReader<'_>, now: Now) -> Result<(), Malformed> {
        let Some(peer) = self.peer_mut(from) else { return Ok(()) };
        if !peer.is_ready() {
            // Its hello, which says what its numbers mean, is still under way.
            return Ok(());
        }
        peer.echo = Some((frame.header.sent_at, now.mono));
        peer.note_transit(frame.header.sent_at, wire_micros(now.mono));
        if let Some((sent_at, held)) = frame.header.echo {
            let round_trip = wire_micros(now.mono).wrapping_sub(sent_at).wrapping_sub(held);
            if (round_trip as i32) >= 0 {
                peer.measure(Duration::from_micros(round_trip.into()));
            }
        }
        let incarnation = self.peer(from).map_or(0, |peer| peer.incarnation);
        self.heard_of(from, incarnation, now);
        let read = self.take_parts(from, &mut frame, now);
        self.books.iter_mut().for_each(|book| book.expect_anew(now));
        read
    }

    fn take_parts(
        &mut self,
        from: NodeIndex,
        frame: &mut FrameReader<'_>,
        now: Now,
    ) -> Result<(), Malformed> {
        let mut group = None;
        while let Some(part) = frame.next()? {
            match part {
                Part::Beat(beat) => self.take_beat(from, beat, now),
                Part::Group { actor, from: version } => group = self.open_group(from, actor, version, now),
                Part::Item(item) => {
                    if let Some(group) = &group {
                        self.take_item(from, group.actor, item, now);
                    }
                }
                Part::GroupEnd { to } => {
                    if let Some(group) = group.take().filter(|_| to > 0) {
                        self.close_group(from, &group, to);
                    }
                }
            }
        }
        Ok(())
    }

    /// The actor that a peer's wire form names, taken in if its node is listed.
    pub(super) fn actor(&mut self, from: NodeIndex, wire: WireActor, now: Now) -> Option<ActorIndex> {
        let node = self.peer(from)?.node(wire.node)?;
        if node == self.here && wire.incarnation == self.incarnation {
            return Some(self.me);
        }
        self.actors.find_or_add(node, wire.incarnation, now.mono)
    }

    fn take_beat(&mut self, from: NodeIndex, beat: Beat, now: Now) {
        let known = self.actors.len();
        let Some(actor) = self.actor(from, beat.actor, now) else { return };
        let new = self.actors.len() > known || self.actors.get(actor).is_some_and(|state| state.beat == 0);
        self.acknowledge(from, actor, beat.version);
        let Some(state) = self.actors.get_mut(actor) else { return };
        if beat.version > state.clock && actor != self.me {
            state.behind_since.get_or_insert(now.mono);
        }
        if beat.beat > state.beat && actor != self.me {
            state.beat = beat.beat;
            let (node, incarnation) = (state.node, state.incarnation);
            // The first beat heard of an actor may be its last, long ago; the next one is a sign of life.
            if !new {
                state.heard = now.mono;
                self.heard_of(node, incarnation, now);
            }
        }
    }

    /// A peer says how far it has come with an actor's changes; with this node's own it cannot have come further than
    /// they go.
    fn acknowledge(&mut self, from: NodeIndex, actor: ActorIndex, version: u64) {
        let own = self.actors.get(self.me).map_or(0, |state| state.clock);
        let version = if actor == self.me { version.min(own) } else { version.min(message::MAX_VERSION) };
        if let Some(peer) = self.peer_mut(from) {
            peer.acknowledge(actor, version);
        }
    }

    pub(super) fn take_progress(&mut self, from: NodeIndex, progress: &[Progress], now: Now) {
        for progress in progress {
            if let Some(actor) = self.actor(from, progress.actor, now) {
                self.acknowledge(from, actor, progress.version);
            }
        }
    }

    fn open_group(&mut self, from: NodeIndex, wire: WireActor, version: u64, now: Now) -> Option<Group> {
        let Some(actor) = self.actor(from, wire, now) else {
            self.refused.unknown += 1;
            return None;
        };
        let contiguous = self.actors.get(actor).is_some_and(|state| version <= state.clock);
        Some(Group { actor, contiguous })
    }

    fn close_group(&mut self, from: NodeIndex, group: &Group, to: u64) {
        self.acknowledge(from, group.actor, to);
        if group.actor != self.me
            && group.contiguous
            && let Some(state) = self.actors.get_mut(group.actor)
            && to > state.clock
        {
            state.clock = to;
            state.behind_since = None;
        }
    }

    fn take_item(&mut self, from: NodeIndex, actor: ActorIndex, item: Item, now: Now) {
        let Some(limit) = self.peer(from).and_then(|peer| peer.limit(item.limit)) else {
            self.refused.unknown += 1;
            return;
        };
        if actor == self.me {
            self.take_echo(usize::from(limit), &item, now);
            return;
        }
        if self.actors.get(actor).is_none_or(|state| item.version.saturating_sub(state.clock) > MAX_AHEAD) {
            self.refused.out_of_epoch += 1;
            return;
        }
        let allow = self.allowance(from, actor, now);
        let Some(book) = self.books.get_mut(usize::from(limit)) else { return };
        match book.take(actor, &item, allow, now) {
            Ok(taken) => {
                if let (true, Some(state)) = (taken.first, self.actors.get_mut(actor)) {
                    state.shares += 1;
                }
                if taken.news && self.nodes.len() > 2 {
                    if let Some(state) = self.actors.get_mut(actor) {
                        state.note(Change {
                            version: item.version,
                            limit,
                            epoch: item.epoch,
                            slot: taken.slot,
                            span_ms: item.span_ms,
                        });
                    }
                    self.timers.round_wanted |= taken.urgent && !self.is_direct();
                }
            }
            Err(Refusal::OutOfEpoch) => self.refused.out_of_epoch += 1,
            Err(Refusal::NoRoom) => self.refused.no_room += 1,
        }
    }

    /// How news of `actor` that came from `from` is to be judged.
    pub(super) fn allowance(&self, from: NodeIndex, actor: ActorIndex, now: Now) -> Allowance {
        let delay = self.peer(from).map_or(Duration::ZERO, |peer| peer.delay());
        let node = self.actors.get(actor).map(|state| state.node);
        let outage = node.and_then(|node| self.peer(node)?.outage);
        // News of a node can come before its first sign of life.
        let outage = outage.map(|outage| (outage.from, outage.until.unwrap_or(now.mono)));
        Allowance { delay: saturating_nanos(delay), outage }
    }

    /// Somebody tells this node of its own share. If it is more than was written, another has written as this actor, or
    /// this node has lost what it wrote: it goes on as another actor.
    fn take_echo(&mut self, limit: usize, item: &Item, now: Now) {
        let Some(book) = self.books.get(limit) else { return };
        if book.wrote_less_than(self.me, item, now) {
            self.renew_incarnation(now);
        }
    }

    fn renew_incarnation(&mut self, now: Now) {
        let former = self.me;
        let Some(me) = (0..8).find_map(|_| {
            let number = self.rng.u32(..);
            self.actors
                .find(self.here, number)
                .is_none()
                .then(|| self.actors.find_or_add(self.here, number, now.mono))?
        }) else {
            return;
        };
        self.incarnation = self.actors.get(me).map_or(self.incarnation, |state| state.incarnation);
        self.me = me;
        for book in &mut self.books {
            book.close_own(former);
        }
        self.events.push_back(Event::NewIncarnation);
        for peer in self.others() {
            self.send_hello(peer, now);
        }
    }
}

/// A peer's text, short enough to show.
fn clipped(text: &str) -> String {
    text.chars().take(80).collect()
}
