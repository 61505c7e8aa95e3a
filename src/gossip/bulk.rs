//! What is too much for datagrams, and what must not wait behind it.

use super::{
    Channel, Gossip, NodeIndex,
    message::{FrameWriter, GROUP_BYTES, ITEM_BYTES, WireActor},
    round::{MAX_DATAGRAMS, MIN_DATAGRAM_BYTES, STREAM_FRAME_BYTES, Telling, write_group},
};
use crate::{ledger::ActorIndex, time::Now};

/// Room for a frame's header and signs of life, beside the groups of changes.
const PREFIX_BYTES: usize = 1_024;

/// A group of changes, encoded. All peers that have come equally far are sent the same bytes.
pub(super) struct Chunk {
    actor: ActorIndex,
    from: u64,
    /// The last version in it.
    to: u64,
    /// Whether that is the actor's last.
    done: bool,
    bytes: Vec<u8>,
}

impl Gossip {
    /// Writes a frame that travels in a stream.
    pub(super) fn write_bulk(
        &mut self,
        to: NodeIndex,
        tellings: &mut Vec<Telling>,
        first: bool,
        chunks: &mut Vec<Chunk>,
        now: Now,
    ) -> Vec<u8> {
        let mut writer = self.start_frame(to, first, PREFIX_BYTES, now);
        while let Some(telling) = tellings.first_mut() {
            let Some(chunk) = self.chunk(telling, chunks, now) else { break };
            if writer.len() + chunk.bytes.len() > STREAM_FRAME_BYTES {
                break;
            }
            writer.append(&chunk.bytes);
            telling.from = chunk.to;
            let told = self.actors.get(telling.actor).map_or(0, |state| chunk.to.min(state.clock));
            if let Some(peer) = self.peers.get_mut(usize::from(to.0)) {
                peer.known_mut(telling.actor).note_sent(told, true, now.mono);
            }
            if !chunk.done {
                break;
            }
            tellings.remove(0);
        }
        writer.finish()
    }

    /// The next group of what is to be told, which may have been encoded for another peer already.
    fn chunk<'a>(&self, telling: &Telling, chunks: &'a mut Vec<Chunk>, now: Now) -> Option<&'a Chunk> {
        let Telling { actor, from } = *telling;
        let known = chunks.iter().position(|chunk| (chunk.actor, chunk.from) == (actor, from));
        let at = match known {
            Some(at) => at,
            None => {
                let state = self.actors.get(actor)?;
                let (mut rest, capacity) = (Telling { actor, from }, STREAM_FRAME_BYTES - PREFIX_BYTES);
                let mut writer = FrameWriter::of_groups(capacity.min(state.since(from).len() * ITEM_BYTES));
                let done = write_group(&mut writer, state, &self.books, self.me, &mut rest, capacity, now);
                chunks.push(Chunk { actor, from, to: rest.from, done, bytes: writer.into_groups() });
                chunks.len() - 1
            }
        };
        chunks.get(at)
    }

    /// Sends a peer that has much to take in only what cannot wait: this node's changes that peers should hear of between
    /// heartbeats, those first of which most is asked. They say nothing of what lies before them, and go with the rest again.
    pub(super) fn tell_urgent(&mut self, to: NodeIndex, heartbeat: bool, now: Now) {
        let datagram = self.peer(to).map_or(0, |peer| peer.datagram_bytes);
        let mut items = self.urgent_items(MAX_DATAGRAMS * datagram / ITEM_BYTES, now);
        if datagram <= MIN_DATAGRAM_BYTES || (items.is_empty() && !heartbeat) {
            return;
        }
        let mut first = true;
        while first || !items.is_empty() {
            let mut writer = self.start_frame(to, first && heartbeat, datagram, now);
            let fitting = datagram.saturating_sub(writer.len() + GROUP_BYTES) / ITEM_BYTES;
            let fitting = fitting.max(1);
            let rest = items.split_off(fitting.min(items.len()));
            if let Some(state) = self.actors.get(self.me).filter(|_| !items.is_empty()) {
                let me = WireActor { node: state.node.0, incarnation: state.incarnation };
                writer.start_group(me, state.floor);
                items.iter().for_each(|item| writer.item(item));
                writer.end_group(None);
            }
            self.push(to, Channel::Datagram, writer.finish());
            (items, first) = (rest, false);
        }
    }

    /// Up to so many of the changes that cannot wait, in the order of their versions.
    fn urgent_items(&self, most: usize, now: Now) -> Vec<super::message::Item> {
        let floor = self.actors.get(self.me).map_or(0, |state| state.floor);
        let changes = self.urgent.iter().filter(|change| change.version > floor);
        let mut items: Vec<_> = changes
            .filter_map(|change| {
                self.books.get(usize::from(change.limit))?.changed(self.me, self.me, change, now)
            })
            .collect();
        if items.len() > most {
            let demand = |item: &super::message::Item| item.statement.map_or(0.0, |said| said.demand);
            items.sort_by(|a, b| demand(b).total_cmp(&demand(a)));
            items.truncate(most);
            items.sort_by_key(|item| item.version);
        }
        items
    }

    /// Acknowledges at once what has come in a stream: the peer waits for that before it sends more.
    pub(super) fn confirm(&mut self, to: NodeIndex, actors: &[ActorIndex], now: Now) {
        let beats: Vec<_> = [self.me].iter().chain(actors).filter_map(|actor| self.beat(*actor)).collect();
        let frame = FrameWriter::new(self.header(to, now), &beats, MIN_DATAGRAM_BYTES).finish();
        let datagrams = self.peer(to).is_some_and(|peer| peer.datagram_bytes > MIN_DATAGRAM_BYTES);
        self.push(to, if datagrams { Channel::Datagram } else { Channel::Stream }, frame);
    }
}
