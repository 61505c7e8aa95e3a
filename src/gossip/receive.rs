//! Taking in what peers send.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Channel, Event, Gossip, NodeIndex, ProtocolError, RefusedStatus,
    actors::{Change, MAX_INCARNATIONS},
    book::{Allowance, Refusal, Taken},
    message::{self, Beat, FrameReader, Hello, Item, Malformed, Message, Part, Progress, WireActor},
    peer::{Echo, Numbering},
    round::wire_micros,
};
use crate::{
    ledger::ActorIndex,
    node::NodeId,
    table::NO_SLOT,
    time::{Now, saturating_nanos},
};

/// A peer whose clock is off by more is worth a word.
const WORRYING_SKEW_MS: u64 = 500;
/// Versions that a share may be ahead of what is known of its actor: more than any log holds.
const MAX_AHEAD: u64 = 4 * super::actors::MAX_LOG as u64;
/// Mismatches kept of a peer, to show.
const MAX_MISMATCHES: usize = 16;
/// How far this node moves its own versions ahead because somebody claims to have come so far; for more, it begins anew.
const MAX_JUMP: u64 = 1 << 16;
/// A node moves its versions, or goes on as another incarnation, once in so long: what a peer makes it do costs all.
const RENEW_AGAIN_AFTER: Duration = Duration::from_secs(20);
/// A node whose places are all taken gives one up for a hello once in so long: it means a walk through all ledgers.
const GIVE_UP_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Actors of which one frame's changes are acknowledged at once.
const MAX_CONFIRMED: usize = 8;
/// Shares that are taken in together: what they are about fits into the processor's nearest memory.
const TOGETHER: usize = 64;

/// Where in a frame the reader is.
struct Group {
    actor: ActorIndex,
    /// Whether this node has every change up to the group's first.
    contiguous: bool,
    /// Whether this process writes, or wrote, as the actor.
    own: bool,
    allow: Allowance,
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
        channel: Channel,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        let Some(peer) = self.peer_mut(from) else { return Ok(()) };
        peer.traffic.bytes_received += payload.len() as u64;
        peer.traffic.messages_received += 1;
        for book in &mut self.books {
            book.turn(self.me, now);
        }
        let taken = message::decode(payload).and_then(|message| self.take(from, channel, message, now));
        taken.map_err(|error| {
            self.refused.malformed += 1;
            ProtocolError(error.to_string())
        })
    }

    fn take(
        &mut self,
        from: NodeIndex,
        channel: Channel,
        message: Message<'_>,
        now: Now,
    ) -> Result<(), Malformed> {
        match message {
            Message::Hello(hello) => {
                check_progress(&hello.progress, hello.nodes.len())?;
                self.take_hello(from, hello, now);
                Ok(())
            }
            Message::Frame(frame) => {
                let actors = self.take_frame(from, frame, now)?;
                if channel == Channel::Stream && !actors.is_empty() {
                    self.confirm(from, &actors, now);
                }
                Ok(())
            }
            Message::SyncRequest(request) => {
                check_progress(&request.progress, self.numbered(from))?;
                self.start_sync(from, request, now);
                Ok(())
            }
            Message::Sync(sync) => {
                let progress = sync.end.as_deref().unwrap_or_default();
                check_progress(progress, self.numbered(from))?;
                self.take_sync(from, sync, now);
                Ok(())
            }
            Message::Notices(notices) => {
                self.take_notices(from, &notices, now);
                Ok(())
            }
            Message::Leave => {
                self.take_leave(from, now);
                Ok(())
            }
        }
    }

    /// How many nodes a peer may speak of: those that its hello listed. Before that has come, nothing of it is taken in.
    fn numbered(&self, from: NodeIndex) -> usize {
        self.peer(from).and_then(|peer| peer.numbered()).unwrap_or(message::MAX_NODES)
    }

    fn take_hello(&mut self, from: NodeIndex, hello: Hello, now: Now) {
        let nodes = self.numbering(&hello);
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
        let actor = self.meet(from, hello.incarnation, now);
        if let Some(state) = actor.and_then(|actor| self.actors.get_mut(actor)) {
            state.heard = now.mono;
        }
        self.take_progress(from, &hello.progress, now);
        self.compare_notices(from, &hello.notices, now);
        if self.joining.is_some() && !hello.synced {
            // It has just started too: all it knows comes change by change, and there is nothing to wait for.
            self.answered(from, false, now);
        } else {
            self.ask_for_sync_if_needed(from, &hello.progress, now);
        }
    }

    /// How the sender of a hello numbers nodes: all nodes of a fleet sort one list.
    fn numbering(&self, hello: &Hello) -> Numbering {
        if self.nodes.iter().map(NodeId::as_str).eq(hello.nodes.iter().map(String::as_str)) {
            return Numbering::Same(self.nodes.len());
        }
        let index = |name: &String| self.nodes.binary_search_by(|node| node.as_str().cmp(name)).ok();
        let index = |name| index(name).map(|index| NodeIndex(index as u16));
        Numbering::Other(hello.nodes.iter().map(index).collect())
    }

    fn limit_named(&self, name: &str) -> Option<u16> {
        self.books.iter().position(|book| book.table.limit().wire_name() == name).map(|limit| limit as u16)
    }

    /// In what a peer's configuration parts from this node's.
    fn compare(&self, hello: &Hello, nodes: &Numbering) -> Vec<String> {
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
            let name = book.table.limit().wire_name();
            if !hello.limits.iter().any(|(other, _)| *other == name) {
                mismatches.push(format!("it does not have the limit {name:?}"));
            }
        }
        let Numbering::Other(nodes) = nodes else { return mismatches };
        let listed: BTreeSet<NodeIndex> = nodes.iter().copied().flatten().collect();
        for (node, _) in self.nodes.iter().zip(0..).filter(|(_, index)| !listed.contains(&NodeIndex(*index)))
        {
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

    /// Takes in a frame, and returns of which actors it told changes.
    fn take_frame(
        &mut self,
        from: NodeIndex,
        mut frame: FrameReader<'_>,
        now: Now,
    ) -> Result<Vec<ActorIndex>, Malformed> {
        let Some(peer) = self.peer_mut(from) else { return Ok(Vec::new()) };
        if !peer.is_ready() {
            // Its hello, which says what its numbers mean, is still under way.
            return Ok(Vec::new());
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
    ) -> Result<Vec<ActorIndex>, Malformed> {
        let (mut group, mut actors) = (None, Vec::new());
        let mut items = std::mem::take(&mut self.items);
        let read = loop {
            let part = match frame.next() {
                Ok(Some(part)) => part,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            let same = |item: &Item| items.first().is_none_or(|first| first.limit == item.limit);
            let fits = items.len() < TOGETHER && matches!(&part, Part::Item(item) if same(item));
            if !fits {
                self.take_items(from, group.as_ref(), &mut items, now);
            }
            match part {
                Part::Item(item) => items.push(item),
                Part::Beat(beat) => self.take_beat(from, beat, now),
                Part::Group { actor, from: version } => group = self.open_group(from, actor, version, now),
                Part::GroupEnd { to } => {
                    if let Some(group) = group.take().filter(|_| to > 0) {
                        self.close_group(from, &group, to, now);
                        if actors.len() < MAX_CONFIRMED && actors.last() != Some(&group.actor) {
                            actors.push(group.actor);
                        }
                    }
                }
            }
        };
        self.take_items(from, group.as_ref(), &mut items, now);
        self.items = items;
        read.map(|()| actors)
    }

    /// Takes in a few shares of one group and limit. Each is merged in somewhere else in memory, so that is asked for first,
    /// for all of them: it takes longer to come than to change.
    fn take_items(&mut self, from: NodeIndex, group: Option<&Group>, items: &mut Vec<Item>, now: Now) {
        let (Some(group), Some(first)) = (group, items.first()) else {
            items.clear();
            return;
        };
        let limit = self.peer(from).and_then(|peer| peer.limit(first.limit));
        let Some(book) = limit.and_then(|limit| self.books.get(usize::from(limit))) else {
            items.drain(..).for_each(|_| self.refuse(from, |refused| &mut refused.unknown));
            return;
        };
        let mut slots = [NO_SLOT; TOGETHER];
        let mut near = items.iter().fold(0, |sum, item| sum ^ book.approach_key(item.key));
        for (item, slot) in items.iter().zip(&mut slots) {
            *slot = book.guess(item.key);
        }
        for slot in slots {
            near ^= book.approach(slot);
        }
        std::hint::black_box(near);
        let limit = limit.unwrap_or(0);
        for (item, slot) in items.iter().zip(slots) {
            self.take_item(from, group, limit, item, slot, now);
        }
        items.clear();
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
        let Some(actor) = self.actor(from, beat.actor, now) else { return };
        self.acknowledge(from, actor, beat.version, now);
        if actor == self.me {
            // Somebody has made up a beat of this node. The next one follows on it, or nobody would hear it any more.
            if is_later(beat.beat, self.beat) {
                self.beat = beat.beat;
            }
            return;
        }
        let Some(state) = self.actors.get_mut(actor) else { return };
        if beat.version > state.clock {
            state.behind_since.get_or_insert(now.mono);
        }
        // Where one has come itself, what it says of its beat is so, whatever others have said of it.
        let direct = state.node == from && state.met;
        let before = state.beat;
        if beat.beat == 0 || before.is_some_and(|before| !direct && !is_later(beat.beat, before)) {
            return;
        }
        state.beat = Some(beat.beat);
        let (node, incarnation) = (state.node, state.incarnation);
        // The first beat heard of an actor may be its last, long ago; the next one is a sign of life.
        if before.is_some_and(|before| is_later(beat.beat, before)) {
            state.heard = now.mono;
            self.heard_of(node, incarnation, now);
        }
    }

    /// A peer says how far it has come with an actor's changes.
    fn acknowledge(&mut self, from: NodeIndex, actor: ActorIndex, version: u64, now: Now) {
        let own = self.actors.get(self.me).map_or(0, |state| state.clock);
        if actor == self.me && version > own {
            // It cannot have come further with this node's own changes than they go, so this says nothing of it.
            self.outrun(version, now);
            return;
        }
        // In a large fleet there is no room for how far each has come with everyone: only where there is something to tell, or to
        // ask for.
        let state = self.actors.get(actor);
        let wanted = state.is_some_and(|state| state.log_len() > 0 || version > state.clock);
        let wanted = wanted || actor == self.me || self.is_direct();
        if let Some(peer) = self.peer_mut(from) {
            peer.acknowledge(actor, version.min(message::MAX_VERSION), wanted, now.mono);
        }
    }

    /// Somebody has been made to believe that this node's changes go further than they do, and would take what comes next
    /// for old. So they go on from there, and what is not acknowledged is told again.
    fn outrun(&mut self, version: u64, now: Now) {
        let own = self.actors.get(self.me).map_or(0, |state| state.clock);
        if version - own > MAX_JUMP || version > message::MAX_VERSION / 2 {
            self.renew_incarnation(now);
        } else if self.may_renew(now)
            && let Some(me) = self.actors.get_mut(self.me)
        {
            me.renumber_beyond(version);
            for change in me.log() {
                if let Some(book) = self.books.get_mut(usize::from(change.limit)) {
                    book.ledger.renumber(change.slot, self.me, change.epoch, change.version);
                }
            }
        }
    }

    pub(super) fn take_progress(&mut self, from: NodeIndex, progress: &[Progress], now: Now) {
        for progress in progress {
            if let Some(actor) = self.actor(from, progress.actor, now) {
                self.acknowledge(from, actor, progress.version, now);
            }
        }
    }

    fn open_group(&mut self, from: NodeIndex, wire: WireActor, version: u64, now: Now) -> Option<Group> {
        let Some(actor) = self.actor(from, wire, now) else {
            self.refuse(from, |refused| &mut refused.unknown);
            return None;
        };
        let contiguous = self.actors.get(actor).is_some_and(|state| version <= state.clock);
        let (own, allow) = (self.is_own(actor), self.allowance(from, actor, now));
        Some(Group { actor, contiguous, own, allow })
    }

    fn close_group(&mut self, from: NodeIndex, group: &Group, to: u64, now: Now) {
        self.acknowledge(from, group.actor, to, now);
        if group.contiguous
            && let Some(state) = self.actors.get_mut(group.actor).filter(|state| !state.own)
            && to > state.clock
            && to - state.clock <= MAX_AHEAD
        {
            state.clock = to;
            state.behind_since = None;
        }
    }

    fn take_item(&mut self, from: NodeIndex, group: &Group, limit: u16, item: &Item, guess: u32, now: Now) {
        let Group { actor, own, allow, .. } = *group;
        if own {
            self.take_echo(usize::from(limit), actor, item, now);
            return;
        }
        if self.actors.get(actor).is_none_or(|state| item.version.saturating_sub(state.clock) > MAX_AHEAD) {
            self.refuse(from, |refused| &mut refused.out_of_epoch);
            return;
        }
        let Some(book) = self.books.get_mut(usize::from(limit)) else { return };
        match book.take(actor, item, guess, allow, now) {
            Ok(taken) => {
                self.note_taken(from, usize::from(limit), actor, item.epoch, &taken, now);
                if taken.news && self.nodes.len() > 2 {
                    let Item { version, epoch, span_ms, .. } = *item;
                    self.log(actor, Change { version, limit, epoch, slot: taken.slot, span_ms });
                    self.timers.round_wanted |= taken.urgent && !self.is_direct();
                }
            }
            Err(refusal) => self.refuse_share(from, refusal),
        }
    }

    /// Counts a share that was taken in, and has its actor hear of it where somebody else told of it.
    pub(super) fn note_taken(
        &mut self,
        from: NodeIndex,
        limit: usize,
        actor: ActorIndex,
        epoch: u16,
        taken: &Taken,
        now: Now,
    ) {
        if taken.cut {
            self.refuse(from, |refused| &mut refused.implausible);
        }
        let Some(state) = self.actors.get_mut(actor) else { return };
        if taken.first {
            state.shares += 1;
        }
        let node = state.node;
        if taken.grown > 0
            && node != from
            && node != self.here
            && let Some(peer) = self.peer_mut(node)
        {
            peer.echoes.note(Echo {
                limit,
                slot: taken.slot,
                epoch,
                actor,
                grown: taken.grown,
                at: now.mono,
            });
        }
    }

    pub(super) fn refuse_share(&mut self, from: NodeIndex, refusal: Refusal) {
        self.refuse(from, |refused| match refusal {
            Refusal::OutOfEpoch => &mut refused.out_of_epoch,
            Refusal::NoRoom => &mut refused.no_room,
        });
    }

    /// Counts what was not taken in of what a peer sent.
    pub(super) fn refuse(&mut self, from: NodeIndex, count: impl FnOnce(&mut RefusedStatus) -> &mut u64) {
        *count(&mut self.refused) += 1;
        if let Some(peer) = self.peer_mut(from) {
            peer.refused += 1;
        }
    }

    /// Whether this process writes, or wrote, as this actor.
    pub(super) fn is_own(&self, actor: ActorIndex) -> bool {
        self.actors.get(actor).is_some_and(|state| state.own)
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
    pub(super) fn take_echo(&mut self, limit: usize, actor: ActorIndex, item: &Item, now: Now) {
        let Some(book) = self.books.get(limit) else { return };
        if actor == self.me && book.wrote_less_than(self.me, item, now) {
            self.renew_incarnation(now);
        }
    }

    /// Whether this node may go on as another now, or move its versions; if so, not again for a while.
    fn may_renew(&mut self, now: Now) -> bool {
        let may = self.renewed_at.is_none_or(|at| now.mono.since(at) >= RENEW_AGAIN_AFTER);
        if may {
            self.renewed_at = Some(now.mono);
        }
        may
    }

    fn renew_incarnation(&mut self, now: Now) {
        if !self.may_renew(now) {
            return;
        }
        // Nobody asks the former actor for anything any more, so what it has to say is said now.
        self.publish_changed(usize::MAX, now);
        for peer in self.others() {
            if self.peer(peer).is_some_and(|peer| peer.is_ready()) {
                self.tell(peer, false, true, &mut Vec::new(), now);
            }
        }
        let former = self.me;
        // Where shares live long and this has happened often, no place is left, and the node stays who it is.
        let Some(me) = (0..8).find_map(|_| {
            let number = self.rng.u32(..);
            let free = self.actors.find(self.here, number).is_none();
            free.then(|| self.actors.meet(self.here, number, now.mono))?
        }) else {
            return;
        };
        if let Some(state) = self.actors.get_mut(me) {
            state.own = true;
            self.incarnation = state.incarnation;
        }
        self.me = me;
        self.renewals += 1;
        self.sign_notices();
        for book in &mut self.books {
            book.close_own(former);
        }
        self.events.push_back(Event::NewIncarnation);
        for peer in self.others() {
            self.send_hello(peer, now);
        }
    }
}

impl Gossip {
    /// The actor that a node says it is: it always gets a place, if need be that of an earlier incarnation.
    fn meet(&mut self, node: NodeIndex, incarnation: u32, now: Now) -> Option<ActorIndex> {
        if let Some(actor) = self.actors.meet(node, incarnation, now.mono) {
            return Some(actor);
        }
        let oldest = self.actors.oldest_met(node)?;
        if self.actors.get(oldest).is_some_and(|state| state.shares > 0) {
            let peer = self.peer_mut(node)?;
            if peer.given_up.is_some_and(|at| now.mono.since(at) < GIVE_UP_AGAIN_AFTER) {
                return None;
            }
            peer.given_up = Some(now.mono);
            self.books.iter_mut().for_each(|book| book.drop_actor(oldest));
        }
        self.forget_actor(oldest);
        self.actors.meet(node, incarnation, now.mono)
    }

    /// Forgets an actor of which no ledger holds shares any more.
    pub(super) fn forget_actor(&mut self, actor: ActorIndex) {
        self.actors.remove(actor);
        self.peers.iter_mut().for_each(|peer| peer.forget_actor(actor));
        self.books.iter_mut().for_each(|book| book.hot.forget_actor(actor));
        self.jobs.iter_mut().for_each(|job| job.forget_actor(actor));
    }
}

/// Whether one beat comes after another. Beats are counted modulo 2³² (serial numbers, RFC 1982), so that there is none
/// which no other can follow.
fn is_later(beat: u32, than: u32) -> bool {
    (beat.wrapping_sub(than) as i32) > 0
}

/// A peer speaks of no more actors than the nodes it lists can have.
fn check_progress(progress: &[Progress], nodes: usize) -> Result<(), Malformed> {
    if progress.len() > nodes * MAX_INCARNATIONS {
        return Err(Malformed::Bounds("it tells of more actors than the nodes that it lists can have"));
    }
    Ok(())
}

/// A peer's text, short enough to show.
fn clipped(text: &str) -> String {
    text.chars().take(80).collect()
}
