//! Going on with other peers, limits or paces.
//!
//! What this node has written and heard stays: the ledgers, the actors and how far it has come with each, under the numbers
//! that nodes and limits have from now on. Connections do not, since a hello says for a whole connection what its
//! numbers mean; the caller ends them before, and makes new ones afterwards. So nothing has to be learnt again, but of
//! limits that are new here, of which peers may know something.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Gossip, GossipConfig, NodeIndex, Peer, all_nodes, book::Book, names, sync::Joining};
use crate::{
    counter::Share,
    key::Key,
    ledger::ActorIndex,
    node::NodeId,
    table::{Table, marks::Wake},
    time::Now,
};

/// Shares of nodes that are no peers any more, that are remembered. Of what is beyond, the units count twice should the node
/// become a peer again while the shares last.
const MAX_REMEMBERED: usize = 1 << 16;

/// What nodes had said that are no peers any more, by node and incarnation. It is in the levels, and must not be counted once
/// more should the node become a peer again.
#[derive(Default)]
pub(super) struct Departed {
    by_actor: BTreeMap<(NodeId, u32), Vec<Remembered>>,
    count: usize,
}

struct Remembered {
    table: Arc<Table>,
    key: Key,
    epoch: u16,
    share: Share,
}

impl Departed {
    /// Keeps in mind what actors have said whose nodes are no peers any more. Permits are not: they come back when their holder
    /// goes.
    fn remember(&mut self, books: &[Book], leaving: &BTreeMap<ActorIndex, (NodeId, u32)>) {
        for book in books.iter().filter(|book| !book.table.limit().permit_returns_on_drop()) {
            for slot in (0..book.table.used_slots()).chain([book.table.shared_slot()]) {
                let Some(cell) = book.table.cell(slot) else { continue };
                for entry in book.ledger.entries(slot) {
                    let Some(actor) = leaving.get(&entry.actor).filter(|_| self.count < MAX_REMEMBERED)
                    else {
                        continue;
                    };
                    let (table, key) = (Arc::clone(&book.table), cell.key());
                    let said = Remembered { table, key, epoch: entry.epoch, share: entry.share };
                    self.by_actor.entry(actor.clone()).or_default().push(said);
                    self.count += 1;
                }
            }
        }
    }
}

impl Gossip {
    /// Tells peers all that they have not heard, since the connections are about to end.
    pub(crate) fn tell_all(&mut self, now: Now) {
        self.publish_changed(usize::MAX, now);
        self.spread_notices(now);
        for peer in self.others() {
            if self.peer(peer).is_some_and(Peer::is_ready) {
                self.tell(peer, false, true, &mut Vec::new(), now);
            }
        }
    }

    /// Goes on with another configuration, of which only the node and the incarnation are not made use of. Limits that are
    /// new get a book, and the tables of those that are gone go on alone. Nobody is connected any more.
    pub(crate) fn reload(&mut self, config: GossipConfig, tables: Vec<Arc<Table>>, wake: &Wake, now: Now) {
        for node in self.others() {
            self.handle_disconnected(now, node);
        }
        (self.jobs, self.out, self.events) = Default::default();
        self.urgent.clear();
        self.renumber_nodes(&config, now);
        self.config = GossipConfig { incarnation: self.config.incarnation, ..config };
        self.renumber_limits(tables, wake, now);
        self.recall_departed(now);
        self.count_shares();
        self.spreading.restart(now);
        self.sign_notices();
        self.set_initial_levels();
        self.update_stance(now);
    }

    fn renumber_nodes(&mut self, config: &GossipConfig, now: Now) {
        let (nodes, here) = all_nodes(config);
        let new_index = |old: NodeIndex| {
            let place = nodes.binary_search(self.nodes.get(usize::from(old.0))?).ok()?;
            Some(NodeIndex(place as u16))
        };
        let mut peers: Vec<_> = nodes.iter().map(|_| Peer::new(now.mono)).collect();
        for (old, peer) in (0..).map(NodeIndex).zip(std::mem::take(&mut self.peers)) {
            if let Some(place) = new_index(old).and_then(|new| peers.get_mut(usize::from(new.0))) {
                *place = peer;
            }
        }
        let leaving = self.actors.iter().filter(|(_, state)| new_index(state.node).is_none());
        let leaving = leaving.filter_map(|(actor, state)| {
            Some((actor, (self.nodes.get(usize::from(state.node.0))?.clone(), state.incarnation)))
        });
        let leaving = leaving.collect();
        let gone = self.actors.renumber(new_index);
        self.departed.remember(&self.books, &leaving);
        if let Some(joining) = &mut self.joining {
            joining.renumber_nodes(new_index);
        }
        self.peers = peers;
        self.peers.iter_mut().for_each(Peer::forget_numbers);
        for actor in gone {
            for book in &mut self.books {
                book.hot.forget_actor(actor);
                book.drop_actor(actor);
            }
        }
        self.names = names(&nodes);
        (self.nodes, self.here) = (nodes, here);
    }

    /// Writes down what nodes had said that are peers again.
    fn recall_departed(&mut self, now: Now) {
        let departed = std::mem::take(&mut self.departed.by_actor);
        self.departed.count = 0;
        for ((node, incarnation), said) in departed {
            let Ok(place) = self.nodes.binary_search(&node) else {
                self.departed.count += said.len();
                self.departed.by_actor.insert((node, incarnation), said);
                continue;
            };
            let known = self.actors.find_or_add(NodeIndex(place as u16), incarnation, now.mono);
            let Some(actor) = known else { continue };
            for Remembered { table, key, epoch, share } in said {
                let same = self.books.iter_mut().find(|book| Arc::ptr_eq(&book.table, &table));
                if let Some(book) = same
                    && let Some(slot) = table.find(key)
                {
                    let stamp = book.ledger.stamp(now.mono);
                    book.ledger.merge(slot, actor, epoch, share, stamp);
                }
            }
        }
    }

    fn renumber_limits(&mut self, tables: Vec<Arc<Table>>, wake: &Wake, now: Now) {
        let (heartbeat, nodes) = (self.config.heartbeat, self.nodes.len());
        // The logs name limits by their numbers. What peers lack of them they ask for.
        self.actors.end_logs();
        let former = std::mem::take(&mut self.books).into_iter().enumerate();
        let mut former: Vec<_> = former.map(|(number, book)| (number as u16, Some(book))).collect();
        let mut kept = Vec::new();
        for table in tables {
            let same = former
                .iter_mut()
                .find(|(_, book)| book.as_ref().is_some_and(|book| Arc::ptr_eq(&book.table, &table)));
            let book = match same.and_then(|(number, book)| Some((*number, book.take()?))) {
                Some((number, mut book)) => {
                    book.adjust(heartbeat, nodes, now);
                    kept.push(Some(number));
                    book
                }
                None => {
                    let book = Book::new(table, heartbeat, nodes, now);
                    book.table.listen(book.threshold(), Arc::clone(wake));
                    kept.push(None);
                    book
                }
            };
            self.books.push(book);
        }
        for book in former.iter_mut().filter_map(|(_, book)| book.as_mut()) {
            book.stand_alone(now);
            book.table.set_initial(1.0);
        }
        let is_new = kept.contains(&None) && nodes > 1;
        let until = now.mono.after(self.config.sync_timeout);
        self.joining = match self.joining.take() {
            Some(joining) => Some(joining.renumber_limits(&kept)),
            None if is_new => {
                // What there was is known; only of the new ones peers may know more.
                let known = (0_u16..).zip(&kept).filter(|(_, kept)| kept.is_some());
                let known = known.map(|(limit, _)| limit).collect::<BTreeSet<_>>();
                // A limit that has been here before comes with keys; those of known ones are not asked for.
                let held_by = |(limit, book): (u16, &Book)| {
                    if known.contains(&limit) { Vec::new() } else { book.table.held_slots() }
                };
                let held = (0_u16..).zip(&self.books).map(held_by).collect();
                Some(Joining::of_new(until, known, held))
            }
            None => None,
        };
    }

    /// Counts each actor's shares anew, where books came or went.
    fn count_shares(&mut self) {
        let mut counts = vec![0; self.actors.len()];
        self.books.iter().for_each(|book| book.ledger.count_shares(&mut counts));
        for (actor, count) in (0..).zip(counts) {
            if let Some(state) = self.actors.get_mut(actor) {
                state.shares = count;
            }
        }
    }
}
