//! Publishing what changed, and telling it to peers.

use std::time::Duration;

use super::{
    Channel, Gossip, NodeIndex,
    actors::ActorState,
    book::Book,
    bulk::Chunk,
    hot::{Heat, Look},
    message::{BEAT_BYTES, Beat, FrameWriter, GROUP_BYTES, Header, ITEM_BYTES, WireActor},
};
use crate::{
    ledger::ActorIndex,
    time::{Now, Timestamp},
};

/// The least time between two rounds in fleets in which everyone talks to everyone, and in larger ones.
pub(crate) const DIRECT_INTERVAL: Duration = Duration::from_millis(5);
pub(crate) const RELAY_INTERVAL: Duration = Duration::from_millis(20);
/// Keys published in one round; the others wait for the next.
const MAX_PUBLISHED: usize = 250_000;
/// Datagrams that one round sends to a peer before it takes to streams.
pub(super) const MAX_DATAGRAMS: usize = 4;
/// Bytes of a frame that travels in a stream, and how many of them one round sends to a peer.
pub(super) const STREAM_FRAME_BYTES: usize = 256 << 10;
const MAX_STREAM_FRAMES: usize = 24;
/// Shares under way in streams from which on no more are sent. Where many nodes spend on one key, each has a share or two of it,
/// and they are not acknowledged all at once.
const HELD_BACK: usize = 512;
/// The least slots looked at in a heartbeat for what has retired, and the most.
const MIN_SWEEP: u32 = 256;
const MAX_SWEEP: u32 = 16_384;
/// Heartbeats in which a sweep goes once round the table, unless that were more than the most.
const SWEEP_HEARTBEATS: u32 = 64;
/// Heartbeats after which a node in a small fleet passes on what a peer should have heard directly.
const PATIENCE_HEARTBEATS: u32 = 3;
/// How long it then does so at once: the two may have no connection, and would act on old news of each other.
const RELAYING: Duration = Duration::from_secs(1);
/// An actor with nothing left in the ledgers is forgotten after it has not been heard for so long.
const FORGET_ACTOR_AFTER: Duration = Duration::from_secs(60);

/// What one peer is to be told of one actor.
pub(super) struct Telling {
    pub(super) actor: ActorIndex,
    pub(super) from: u64,
}

impl Gossip {
    /// Publishes the keys that cannot wait.
    pub(super) fn look_at_urgent(&mut self, now: Now) {
        for limit in 0..self.books.len() {
            let mut slots = std::mem::take(&mut self.slots);
            self.books[limit].table.marks.take_urgent(&mut slots);
            for slot in slots.drain(..) {
                self.publish_urgent(limit, slot, now);
            }
            self.slots = slots;
        }
    }

    fn publish_urgent(&mut self, limit: usize, slot: u32, now: Now) {
        let me = self.me;
        let table = std::sync::Arc::clone(&self.books[limit].table);
        let book = &mut self.books[limit];
        if !book.hot.heat(&table, slot, Heat::Here, now) {
            if let Some(published) = book.publish(me, slot, false, now) {
                self.note_urgent(limit, slot, published);
                self.timers.round_wanted = true;
            }
            return;
        }
        self.timers.look = self.timers.look.min(now.mono.after(self.min_interval()));
        self.look_at_key(limit, slot, false, now);
    }

    fn look_at_key(&mut self, limit: usize, slot: u32, sample: bool, now: Now) {
        let me = self.me;
        let book = &mut self.books[limit];
        match book.look(slot, sample, now) {
            Look::Holds => {}
            Look::Parted => {
                // A key that nobody asks this node for has nothing to state.
                if (book.hot.is_stated(slot) || book.has_unpublished(me, slot))
                    && let Some(published) = book.publish_hot(me, slot, now)
                {
                    self.note_urgent(limit, slot, published);
                    self.timers.round_wanted = true;
                }
            }
            Look::Cooled => {
                if let Some(published) = book.publish(me, slot, false, now) {
                    self.note_own(limit, slot, published);
                }
            }
        }
    }

    /// Looks at all hot keys.
    pub(super) fn look_at_hot(&mut self, now: Now) {
        for limit in 0..self.books.len() {
            let slots: Vec<u32> = self.books[limit].hot.slots().collect();
            for slot in slots {
                self.look_at_key(limit, slot, true, now);
            }
        }
        self.timers.look = now.mono.after(self.min_interval());
    }

    pub(super) fn min_interval(&self) -> Duration {
        let default = if self.is_direct() { DIRECT_INTERVAL } else { RELAY_INTERVAL };
        self.config.min_interval.unwrap_or(default)
    }

    /// Publishes all that has changed, looks after the ledgers and the peers, and sends a round to say so.
    pub(super) fn heartbeat(&mut self, now: Now) {
        // 0 is that of one who has not been heard.
        self.beat = self.beat.wrapping_add(1).max(1);
        self.publish_changed(MAX_PUBLISHED, now);
        self.sweep(now);
        self.sweep_notices(now);
        self.check_peers(now);
        self.ask_where_behind(now);
        if now.mono >= self.timers.repair {
            self.repair(now);
        }
        self.round(true, now);
        self.trim_logs();
        let jitter = 0.9 + 0.2 * self.rng.f64();
        self.timers.heartbeat = now.mono.after(self.config.heartbeat.mul_f64(jitter));
    }

    /// Publishes up to `most` changed keys of each limit, and states the hot ones again.
    pub(super) fn publish_changed(&mut self, most: usize, now: Now) {
        let me = self.me;
        for limit in 0..self.books.len() {
            self.books[limit].return_late(me, now);
            let mut slots = std::mem::take(&mut self.slots);
            self.books[limit].table.marks.take_changed(&mut slots, most);
            for (number, &slot) in slots.iter().enumerate() {
                let book = &mut self.books[limit];
                if number % APPROACHED == 0 {
                    let near = slots.iter().skip(number).take(APPROACHED);
                    std::hint::black_box(near.fold(0, |sum, slot| sum ^ book.approach(*slot)));
                }
                if !book.hot.contains(slot)
                    && let Some(published) = book.publish_changed(me, slot, now)
                {
                    self.note_own(limit, slot, published);
                }
            }
            slots.clear();
            self.slots = slots;
            let hot: Vec<u32> = self.books[limit].hot.slots().collect();
            for slot in hot {
                let book = &mut self.books[limit];
                book.draw_together(slot, now);
                if book.look(slot, true, now) != Look::Cooled && book.hot.is_stated(slot) {
                    if let Some(published) = book.publish_hot(me, slot, now) {
                        self.note_urgent(limit, slot, published);
                    }
                } else if let Some(published) = book.publish(me, slot, false, now) {
                    self.note_own(limit, slot, published);
                }
            }
        }
    }

    fn sweep(&mut self, now: Now) {
        let actors = &mut self.actors;
        for book in &mut self.books {
            let slots = (book.table.used_slots() / SWEEP_HEARTBEATS).clamp(MIN_SWEEP, MAX_SWEEP);
            book.sweep(self.me, slots, now, |actor| {
                if let Some(state) = actors.get_mut(actor) {
                    state.shares = state.shares.saturating_sub(1);
                }
            });
        }
        for limit in 0..self.books.len() {
            for slot in self.books[limit].take_renewals() {
                if let Some(published) = self.books[limit].publish(self.me, slot, false, now) {
                    self.note_own(limit, slot, published);
                }
            }
        }
        let idle = |actor: ActorIndex, state: &ActorState| {
            actor != self.me
                && state.shares == 0
                && state.log_len() == 0
                && now.mono.since(state.heard) > FORGET_ACTOR_AFTER
        };
        let gone: Vec<ActorIndex> =
            self.actors.iter().filter(|(actor, state)| idle(*actor, state)).map(|(actor, _)| actor).collect();
        for actor in gone {
            self.forget_actor(actor);
        }
    }

    /// Drops from the logs what every connected peer has.
    fn trim_logs(&mut self) {
        for actor in 0..self.actors.len() as ActorIndex {
            let Some(state) = self.actors.get_mut(actor) else { continue };
            if state.log_len() == 0 {
                state.trim(state.clock);
                continue;
            }
            let (node, mut everyone_has, floor) = (state.node, state.clock, state.floor);
            // In a large fleet somebody nearly always lags behind, and it is mostly the one that did so before.
            let laggard = state.laggard.filter(|peer| *peer != node);
            let mut lags = None;
            for peer in laggard.into_iter().chain(self.others()).filter(|peer| *peer != node) {
                let Some(peer_state) = self.peer(peer).filter(|peer| peer.is_ready()) else { continue };
                everyone_has = everyone_has.min(peer_state.known(actor).acked);
                if everyone_has <= floor {
                    lags = Some(peer);
                    break;
                }
            }
            let Some(state) = self.actors.get_mut(actor) else { continue };
            state.laggard = lags;
            if lags.is_none() {
                state.trim(everyone_has);
                if state.log_len() == 0 && !self.is_direct() && actor != self.me {
                    self.peers.iter_mut().for_each(|peer| peer.forget_progress(actor));
                }
            }
        }
    }

    /// Sends a round: to everyone in a small fleet, to a few random peers in a larger one.
    pub(super) fn round(&mut self, heartbeat: bool, now: Now) {
        self.timers.round_wanted = false;
        self.timers.round = now.mono.after(self.min_interval());
        for limit in 0..self.books.len() {
            for (slot, published) in self.books[limit].take_ended() {
                self.note_own(limit, slot, published);
            }
        }
        let mut chunks = Vec::new();
        for peer in self.choose_peers() {
            self.tell(peer, heartbeat, false, &mut chunks, now);
        }
        self.urgent.clear();
    }

    pub(super) fn choose_peers(&mut self) -> Vec<NodeIndex> {
        let mut ready: Vec<NodeIndex> =
            self.others().filter(|peer| self.peer(*peer).is_some_and(|peer| peer.is_ready())).collect();
        if !self.is_direct() && ready.len() > self.config.fanout {
            for place in 0..self.config.fanout {
                let other = self.rng.usize(place..ready.len());
                ready.swap(place, other);
            }
            ready.truncate(self.config.fanout);
        }
        ready
    }

    /// Sends a peer what it does not have, with a heartbeat also when that is nothing; in streams where it must arrive.
    ///
    /// What is too much for a few datagrams goes in streams, and nothing more of that kind before the peer has acknowledged
    /// them: what changes meanwhile is sent afterwards, once, in its newest state. So a peer that takes in less than it is
    /// told hears of each share less often, and of those that cannot wait all the same.
    pub(super) fn tell(
        &mut self,
        to: NodeIndex,
        heartbeat: bool,
        reliably: bool,
        chunks: &mut Vec<Chunk>,
        now: Now,
    ) {
        let (mut tellings, streaming) = self.plan(to, now);
        if tellings.is_empty() && !heartbeat {
            return;
        }
        if heartbeat {
            self.show_echoes(to, now);
        }
        let pending: usize = tellings
            .iter()
            .filter_map(|telling| {
                let state = self.actors.get(telling.actor)?;
                // Of each share only the newest state is sent.
                Some(state.since(telling.from).len().min(state.shares.max(1)))
            })
            .sum();
        let datagram = self.peer(to).map_or(0, |peer| peer.datagram_bytes);
        let few = pending * TYPICAL_ITEM_BYTES < MAX_DATAGRAMS * datagram.max(MIN_DATAGRAM_BYTES);
        let congested = self.is_congested(to);
        if !few && !reliably && (streaming >= HELD_BACK || congested) {
            self.tell_urgent(to, heartbeat, now);
            return;
        }
        let small = few && !reliably && datagram > MIN_DATAGRAM_BYTES;
        let frames = match small {
            _ if congested && !reliably => 1,
            // Between heartbeats one datagram a peer: what finds no room goes with the next round, to others.
            true if !heartbeat && !self.is_direct() => 1,
            true => 2 * MAX_DATAGRAMS,
            false => MAX_STREAM_FRAMES,
        };
        for number in 0..frames {
            let (channel, payload) = match small || (congested && !reliably) {
                true => {
                    let frame = self.write_frame(to, &mut tellings, number == 0, datagram, now);
                    (Channel::Datagram, frame)
                }
                false => (Channel::Stream, self.write_bulk(to, &mut tellings, number == 0, chunks, now)),
            };
            self.push(to, channel, payload);
            if tellings.is_empty() {
                break;
            }
        }
    }

    /// Shows a peer shares of its own of which this node has from others.
    fn show_echoes(&mut self, to: NodeIndex, now: Now) {
        let (here, datagram) = (self.here, self.peer(to).map_or(0, |peer| peer.datagram_bytes));
        let echoes = self.peer_mut(to).map_or(Vec::new(), |peer| peer.echoes.due(now.mono).to_vec());
        if echoes.is_empty() || to == here || datagram <= MIN_DATAGRAM_BYTES {
            return;
        }
        let mut writer = FrameWriter::new(self.header(to, now), &[], datagram);
        for echo in echoes {
            let (Some(state), Some(book)) = (self.actors.get(echo.actor), self.books.get(echo.limit)) else {
                continue;
            };
            let entry = book.ledger.entry(echo.slot, echo.actor, echo.epoch);
            let Some(item) = entry.and_then(|entry| book.item(self.me, echo.slot, &entry, now)) else {
                continue;
            };
            // The version says nothing here, and a group of one that does not say how far it goes is no news of that.
            writer.start_group(WireActor { node: state.node.0, incarnation: state.incarnation }, 0);
            writer.item(&super::message::Item {
                version: 1,
                limit: echo.limit as u16,
                statement: None,
                ..item
            });
            writer.end_group(None);
        }
        let payload = writer.finish();
        self.push(to, Channel::Datagram, payload);
    }

    /// What a peer has not been told, actor by actor; this node's own changes first. And what it has to acknowledge of what
    /// was sent in streams: how many shares of it are not acknowledged.
    fn plan(&mut self, to: NodeIndex, now: Now) -> (Vec<Telling>, usize) {
        let (me, direct) = (self.me, self.is_direct());
        let usual = self.retry_after();
        let patience = self.config.heartbeat * PATIENCE_HEARTBEATS;
        let (mut tellings, mut streaming) = (Vec::new(), 0);
        let Some(peer) = self.peers.get_mut(usize::from(to.0)) else { return (tellings, streaming) };
        let usual = usual + 2 * peer.rtt.unwrap_or_default();
        for (actor, state) in self.actors.iter() {
            if state.node == to || (state.log_len() == 0 && !direct) {
                continue;
            }
            let known = peer.known_mut(actor);
            if known.acked >= state.clock {
                known.level_at = now.mono;
            }
            known.give_up_overdue(usual, now.mono);
            streaming += known.streaming(state.shares.max(1));
            let from = known.told();
            let relayed = actor != me && direct;
            let missed = now.mono.since(known.level_at) >= patience;
            if from < state.head()
                && (!relayed || missed || now.mono < known.relayed_until)
                && state.since(from).len() > 0
            {
                if relayed && missed {
                    known.relayed_until = now.mono.after(RELAYING);
                }
                tellings.push(Telling { actor, from });
            }
        }
        if tellings.len() > 1 {
            // So that nobody's changes are always those that find no room.
            let start = self.rng.usize(0..tellings.len());
            tellings.rotate_left(start);
        }
        let own = tellings.iter().position(|telling| telling.actor == me);
        if let Some(own) = own {
            tellings.swap(0, own);
        }
        (tellings, streaming)
    }

    /// After how long what was sent and not acknowledged is sent again: when an acknowledgement should have come.
    fn retry_after(&self) -> Duration {
        if self.is_direct() {
            return self.config.heartbeat.mul_f64(1.5);
        }
        let rounds = self.nodes.len() as f64 / self.config.fanout.max(1) as f64;
        self.config.heartbeat.mul_f64(1.0 + rounds / 2.0)
    }

    fn write_frame(
        &mut self,
        to: NodeIndex,
        tellings: &mut Vec<Telling>,
        first: bool,
        capacity: usize,
        now: Now,
    ) -> Vec<u8> {
        let mut writer = self.start_frame(to, first, capacity, now);
        while let Some(telling) = tellings.first_mut() {
            if writer.len() + GROUP_BYTES + ITEM_BYTES > capacity {
                break;
            }
            let Some(state) = self.actors.get(telling.actor) else { break };
            let done = write_group(&mut writer, state, &self.books, self.me, telling, capacity, now);
            let (actor, told) = (telling.actor, telling.from.min(state.clock));
            if let Some(peer) = self.peers.get_mut(usize::from(to.0)) {
                peer.known_mut(actor).note_sent(told, false, now.mono);
            }
            if !done {
                break;
            }
            tellings.remove(0);
        }
        writer.finish()
    }

    /// Begins a frame, with the first of a round's signs of life.
    pub(super) fn start_frame(
        &mut self,
        to: NodeIndex,
        first: bool,
        capacity: usize,
        now: Now,
    ) -> FrameWriter {
        let most = if first { (capacity / 2 / BEAT_BYTES).min(MAX_BEATS) } else { 0 };
        let beats = self.beats(to, most);
        FrameWriter::new(self.header(to, now), &beats, capacity.min(4_096))
    }

    pub(super) fn header(&self, to: NodeIndex, now: Now) -> Header {
        let micros = |since: Duration| u32::try_from(since.as_micros()).unwrap_or(u32::MAX);
        let echo = self.peer(to).and_then(|peer| peer.echo);
        Header {
            sent_at: wire_micros(now.mono),
            echo: echo.map(|(sent_at, came)| (sent_at, micros(now.mono.since(came)))),
        }
    }

    /// Signs of life: this node's own first, then the receiver's, which acknowledges its changes, then those of others, another
    /// part each time where there are too many.
    fn beats(&mut self, to: NodeIndex, most: usize) -> Vec<Beat> {
        let theirs = self.peer(to).and_then(|peer| self.actors.find(to, peer.incarnation));
        let mut beats: Vec<Beat> = [Some(self.me), theirs]
            .into_iter()
            .flatten()
            .take(most)
            .filter_map(|actor| self.beat(actor))
            .collect();
        let first = if self.actors.len() > most { self.rng.usize(0..self.actors.len()) } else { 0 };
        let others = (first..self.actors.len()).chain(0..first).map(|actor| actor as ActorIndex);
        let others = others.filter(|actor| *actor != self.me && Some(*actor) != theirs);
        let room = most.saturating_sub(beats.len());
        beats.extend(others.filter_map(|actor| self.beat(actor)).take(room));
        beats
    }

    pub(super) fn beat(&self, actor: ActorIndex) -> Option<Beat> {
        let state = self.actors.get(actor)?;
        let wire = WireActor { node: state.node.0, incarnation: state.incarnation };
        let beat = if actor == self.me { self.beat } else { state.beat.unwrap_or(0) };
        Some(Beat { actor: wire, beat, version: state.clock })
    }
}

/// Signs of life in one frame. In a large fleet each frame has another part of them, so that shares find room beside.
const MAX_BEATS: usize = 12;
/// What a share takes in a frame as a rule, to choose how a round travels.
const TYPICAL_ITEM_BYTES: usize = 22;
/// A datagram smaller than this is not worth filling.
pub(super) const MIN_DATAGRAM_BYTES: usize = 256;

/// A clock reading as it is written in a header.
pub(super) fn wire_micros(at: Timestamp) -> u32 {
    (at.as_nanos() / 1_000) as u32
}

/// Writes a group of an actor's changes until the frame is full; moves `telling.from` to the last version written. Returns
/// whether all were written.
pub(super) fn write_group(
    writer: &mut FrameWriter,
    state: &ActorState,
    books: &[Book],
    me: ActorIndex,
    telling: &mut Telling,
    capacity: usize,
    now: Now,
) -> bool {
    let start = telling.from.max(state.floor);
    writer.start_group(WireActor { node: state.node.0, incarnation: state.incarnation }, start);
    let done = write_changes(writer, state, books, me, telling, capacity, now);
    let to = telling.from.min(state.clock);
    writer.end_group((to >= start).then_some(to));
    done
}

/// Changes whose shares are brought near before the first of them is written: each lies somewhere else in memory.
const APPROACHED: usize = 32;

fn write_changes(
    writer: &mut FrameWriter,
    state: &ActorState,
    books: &[Book],
    me: ActorIndex,
    telling: &mut Telling,
    capacity: usize,
    now: Now,
) -> bool {
    let mut ahead = state.since(telling.from);
    for (number, change) in state.since(telling.from).enumerate() {
        if number % APPROACHED == 0 && ahead.len() > 1 {
            let near = ahead.by_ref().take(APPROACHED);
            let books =
                near.filter_map(|change| Some(books.get(usize::from(change.limit))?.approach(change.slot)));
            std::hint::black_box(books.fold(0, |sum, part| sum ^ part));
        }
        if writer.len() + ITEM_BYTES + GROUP_BYTES > capacity {
            return false;
        }
        let book = books.get(usize::from(change.limit));
        if let Some(item) = book.and_then(|book| book.changed(me, telling.actor, change, now)) {
            writer.item(&item);
        }
        telling.from = change.version;
    }
    telling.from = state.head();
    true
}
