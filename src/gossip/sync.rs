//! Telling a peer everything at once: when it has just started, when it was away, and when this node leaves.
//!
//! A node that starts knows nothing of what the fleet has spent. Its buckets start empty, its windows with its share of
//! the quota, and it admits at most its share of the rate, quota ÷ nodes, until a peer has told it all live shares and
//! levels, or every peer has said that it has nothing either, or `sync_timeout` has passed. The levels come from a
//! peer that holds them; the shares beside them are baselines, which are not debited again.
//!
//! Nothing walks a table in one go: an answer is written a few thousand keys at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Channel, Event, Gossip, NodeIndex,
    book::Book,
    message::{self, Hello, Item, Progress, Sync, SyncKey, SyncPart, SyncRequest, SyncShare, WireActor},
};
use crate::{
    algorithm::level::DEAD,
    counter::Share,
    key::Key,
    ledger::ActorIndex,
    table::{NO_SLOT, slab::Cell},
    time::{Now, Timestamp},
};

/// Slots looked at before anything else gets its turn.
const SLOTS_PER_STEP: u32 = 4_096;
/// Keys and shares in one part of an answer, which keeps it well below what a stream may carry.
const KEYS_PER_PART: usize = 2_048;
const SHARES_PER_PART: usize = 6_144;
/// A node that is behind for so long asks for a sync.
const BEHIND_FOR: Duration = Duration::from_secs(1);
/// A peer is asked again after so long at the earliest.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A peer is answered again after so long at the earliest: an answer is dear.
const ANSWER_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Levels are sent in 1/256 units.
const LEVEL_STEPS: f64 = 256.0;

/// A node that does not know yet what the fleet has spent.
#[derive(Debug)]
pub(super) struct Joining {
    /// When it stops waiting.
    pub(super) until: Timestamp,
    /// Keys whose level a peer has told, by limit and slot.
    told: BTreeSet<(u16, u32)>,
    /// Peers that have nothing to tell.
    empty: BTreeSet<NodeIndex>,
    /// Which slots were in use already, limit by limit, where the gossip has started anew over a table that lives on.
    held: Vec<Vec<bool>>,
    /// Limits of which this node knows what the fleet has spent.
    known: BTreeSet<u16>,
}

impl Joining {
    pub(super) fn new(until: Timestamp, held: Vec<Vec<bool>>) -> Self {
        Self { until, told: BTreeSet::new(), empty: BTreeSet::new(), held, known: BTreeSet::new() }
    }

    /// A node that knows about some limits, and not about those that have just come in.
    pub(super) fn of_new(until: Timestamp, known: BTreeSet<u16>, held: Vec<Vec<bool>>) -> Self {
        Self { known, ..Self::new(until, held) }
    }

    /// Nodes have other numbers now.
    pub(super) fn renumber_nodes(&mut self, number: impl Fn(NodeIndex) -> Option<NodeIndex>) {
        self.empty = self.empty.iter().filter_map(|node| number(*node)).collect();
    }

    /// Limits have other numbers now; `former` says which one each had.
    pub(super) fn renumber_limits(mut self, former: &[Option<u16>]) -> Self {
        let numbers: BTreeMap<u16, u16> =
            (0..).zip(former).filter_map(|(new, former)| Some(((*former)?, new))).collect();
        let told = self.told.iter().filter_map(|(limit, slot)| Some((*numbers.get(limit)?, *slot)));
        self.told = told.collect();
        let mut held_of = |former: u16| self.held.get_mut(usize::from(former)).map(std::mem::take);
        self.held =
            former.iter().map(|former| (*former).and_then(&mut held_of).unwrap_or_default()).collect();
        self.known = self.known.iter().filter_map(|limit| numbers.get(limit).copied()).collect();
        self
    }
}

/// How a node stopped joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// A peer told it everything.
    Told,
    /// Every peer said that there is nothing to tell.
    NothingThere,
    /// Nobody told it in time.
    TimedOut,
}

/// An answer being written.
#[derive(Debug)]
pub(super) struct SyncJob {
    pub(super) peer: NodeIndex,
    number: u32,
    /// Whose shares the peer is behind on.
    wanted: BTreeSet<ActorIndex>,
    limit: usize,
    slot: u32,
    parts: u32,
    /// How far this node had come when it began.
    progress: Vec<Progress>,
}

impl SyncJob {
    /// Forgets an actor whose index goes to another.
    pub(super) fn forget_actor(&mut self, actor: ActorIndex) {
        self.wanted.remove(&actor);
    }
}

impl Gossip {
    pub(super) fn send_hello(&mut self, to: NodeIndex, now: Now) {
        if !self.peer(to).is_some_and(|peer| peer.connected) {
            return;
        }
        let notices = self.notice_digests(now);
        let limits = self
            .books
            .iter()
            .map(|book| (book.table.limit().wire_name().into_owned(), book.table.limit().fingerprint()));
        let hello = Hello {
            cluster: self.config.cluster.clone(),
            incarnation: self.incarnation,
            nodes: Arc::clone(&self.names),
            limits: limits.collect(),
            synced: self.joining.is_none(),
            wall_ms: now.wall.as_unix_nanos() / 1_000_000,
            progress: self.progress(),
            notices,
        };
        self.push(to, Channel::Stream, message::hello(&hello));
    }

    /// How far this node has come with each actor; of those that have changed nothing there is nothing to say.
    fn progress(&self) -> Vec<Progress> {
        let wire = |actor: ActorIndex| {
            self.actors
                .get(actor)
                .map(|state| WireActor { node: state.node.0, incarnation: state.incarnation })
        };
        self.actors
            .iter()
            .filter(|(_, state)| state.clock > 0 || state.floor > 0)
            .filter_map(|(actor, state)| {
                Some(Progress { actor: wire(actor)?, version: state.clock, floor: state.floor })
            })
            .collect()
    }

    /// Says hello to some peers again: what they have, and have not, comes out of it.
    pub(super) fn repair(&mut self, now: Now) {
        let jitter = 0.75 + 0.5 * self.rng.f64();
        self.timers.repair = now.mono.after(self.config.repair_interval.mul_f64(jitter));
        for peer in self.choose_peers() {
            self.send_hello(peer, now);
        }
    }

    /// After a hello: asks for what the peer cannot tell change by change any more.
    pub(super) fn ask_for_sync_if_needed(&mut self, from: NodeIndex, progress: &[Progress], now: Now) {
        let joining = self.joining.is_some();
        let lost = progress.iter().any(|progress| {
            let Some(actor) = self.actor(from, progress.actor, now).filter(|actor| *actor != self.me) else {
                return false;
            };
            self.actors.get(actor).is_some_and(|state| state.clock < progress.floor)
        });
        if joining || lost {
            self.ask_for_sync(from, now);
        }
    }

    /// Asks where others have had for some time what this node has not.
    pub(super) fn ask_where_behind(&mut self, now: Now) {
        let overdue =
            |since: Option<Timestamp>| since.is_some_and(|since| now.mono.since(since) > BEHIND_FOR);
        let behind: Vec<(ActorIndex, u64)> = self
            .actors
            .iter()
            .filter(|(_, state)| overdue(state.behind_since))
            .map(|(actor, state)| (actor, state.clock))
            .collect();
        let ahead = |gossip: &Self, node: NodeIndex| {
            gossip.peer(node).is_some_and(|peer| {
                peer.is_ready() && behind.iter().any(|(actor, clock)| peer.known(*actor).acked > *clock)
            })
        };
        let ready: Vec<NodeIndex> = self.others().filter(|node| ahead(self, *node)).collect();
        if let Some(at) = (!ready.is_empty()).then(|| self.rng.usize(0..ready.len())) {
            self.ask_for_sync(ready[at], now);
        }
        for (actor, _) in behind {
            // Until the answer has come, or nobody is ahead any more.
            if let Some(state) = self.actors.get_mut(actor) {
                state.behind_since = None;
            }
        }
    }

    fn ask_for_sync(&mut self, from: NodeIndex, now: Now) {
        let number = self.rng.u32(..);
        let Some(peer) = self.peer_mut(from) else { return };
        if peer.asked.is_some_and(|(_, at)| now.mono.since(at) < ASK_AGAIN_AFTER) {
            return;
        }
        peer.asked = Some((number, now.mono));
        peer.parts = 0;
        let request = SyncRequest { number, joining: self.joining.is_some(), progress: self.progress() };
        self.push(from, Channel::Stream, message::sync_request(&request));
    }

    pub(super) fn start_sync(&mut self, from: NodeIndex, request: SyncRequest, now: Now) {
        if !self.peer(from).is_some_and(|peer| peer.is_ready()) {
            return;
        }
        let Some(peer) = self.peer_mut(from) else { return };
        if peer.answered.is_some_and(|at| now.mono.since(at) < ANSWER_AGAIN_AFTER) {
            return;
        }
        peer.answered = Some(now.mono);
        self.take_progress(from, &request.progress, now);
        self.publish_changed(usize::MAX, now);
        let said = request.progress.iter();
        let has: BTreeMap<ActorIndex, u64> = said
            .filter_map(|progress| Some((self.actor(from, progress.actor, now)?, progress.version)))
            .collect();
        let has = |actor| has.get(&actor).copied().unwrap_or(0);
        let wanted = self.actors.iter().filter(|(actor, state)| request.joining || has(*actor) < state.clock);
        let wanted = wanted.map(|(actor, _)| actor).collect();
        let job = SyncJob {
            peer: from,
            number: request.number,
            wanted,
            limit: 0,
            slot: 0,
            parts: 0,
            progress: self.progress(),
        };
        // A peer that asks again has given up on the former answer.
        self.jobs.retain(|job| job.peer != from);
        self.jobs.push(job);
        self.continue_syncs(now);
    }

    /// Writes the next part of each answer.
    pub(super) fn continue_syncs(&mut self, now: Now) {
        for mut job in std::mem::take(&mut self.jobs) {
            if self.is_congested(job.peer) || !self.write_part(&mut job, now) {
                self.jobs.push(job);
            }
        }
    }

    /// Writes one part of an answer; returns whether it was the last.
    fn write_part(&mut self, job: &mut SyncJob, now: Now) -> bool {
        let mut keys: Vec<SyncKey> = Vec::new();
        let (mut looked_at, mut shares) = (0, 0);
        while looked_at < SLOTS_PER_STEP && keys.len() < KEYS_PER_PART && shares < SHARES_PER_PART {
            let Some(book) = self.books.get(job.limit) else { break };
            if job.slot >= book.table.used_slots() {
                (job.limit, job.slot) = (job.limit + 1, 0);
                continue;
            }
            if let Some(key) = self.sync_key(job, now) {
                shares += key.shares.len();
                keys.push(key);
            }
            job.slot += 1;
            looked_at += 1;
        }
        let done = job.limit >= self.books.len();
        if keys.is_empty() && !done {
            return false;
        }
        let end = done.then(|| std::mem::take(&mut job.progress));
        let part = Sync { number: job.number, part: job.parts, synced: self.joining.is_none(), keys, end };
        job.parts += 1;
        self.push(job.peer, Channel::Stream, message::sync(&part));
        done
    }

    fn sync_key(&mut self, job: &SyncJob, now: Now) -> Option<SyncKey> {
        let me = self.me;
        let (limit, slot) = (job.limit, job.slot);
        if let Some(published) = self.books.get_mut(limit)?.publish_unpublished(me, slot, now) {
            // What was spent since the last round goes with the level, so it must be in the shares too.
            self.note_own(limit, slot, published);
        }
        let book = self.books.get(limit)?;
        let mut shares = Vec::new();
        for entry in book.ledger.entries(slot).filter(|entry| job.wanted.contains(&entry.actor)) {
            let Some(state) = self.actors.get(entry.actor) else { continue };
            shares.push(SyncShare {
                actor: WireActor { node: state.node.0, incarnation: state.incarnation },
                epoch: entry.epoch,
                spent: entry.share.spent,
                refunded: entry.share.refunded,
                age_ms: if entry.actor == me {
                    0
                } else {
                    book.ledger.age(entry.stamp, now.mono) / 1_000_000
                },
            });
        }
        let cell = book.table.cell(slot)?;
        let meter = book.table.meter_of(cell);
        let level = book.table.look_at(slot, cell, 0, now).0;
        let missing = meter.as_units(meter.capacity().saturating_sub(level));
        // Whose shares are gone with their node is told of by its level, where that is believed.
        let is_told = !shares.is_empty()
            || (missing >= 1.0 && Self::goes_by_level(book) && cell.level.spent() & DEAD == 0);
        if !is_told {
            return None;
        }
        let parts = book.table.parts(slot, cell, now).into_iter().map(|(age, amount)| SyncPart {
            age_ms: age / 1_000_000,
            amount: (meter.as_units(amount).max(0.0) * LEVEL_STEPS) as u64,
        });
        Some(SyncKey {
            limit: limit as u16,
            digest: cell.key().digest(),
            missing: (missing * LEVEL_STEPS) as u64,
            parts: parts.collect(),
            shares,
        })
    }

    /// Whether a node that starts takes levels over. Permits are counted anew from their shares, and windows that all begin
    /// at once are too.
    fn goes_by_level(book: &Book) -> bool {
        book.table.meter().is_continuous() || book.table.limit().cut().is_some()
    }

    pub(super) fn take_sync(&mut self, from: NodeIndex, sync: Sync, now: Now) {
        let Some(peer) = self.peer(from) else { return };
        if peer.asked.map(|(number, _)| number) != Some(sync.number) || !peer.is_ready() {
            return;
        }
        for key in &sync.keys {
            self.take_sync_key(from, key, sync.synced, now);
        }
        let Some(peer) = self.peer_mut(from) else { return };
        peer.parts += 1;
        let Some(progress) = sync.end else { return };
        if sync.part.checked_add(1) != Some(peer.parts) {
            // A part is missing: what came is taken in, but this node has not got all of it, and asks again.
            peer.asked = None;
            self.ask_for_sync(from, now);
            return;
        }
        self.take_progress(from, &progress, now);
        for progress in progress {
            let actor = self.actor(from, progress.actor, now);
            if let Some(state) = actor.and_then(|actor| self.actors.get_mut(actor)).filter(|state| !state.own)
                && progress.version.min(message::MAX_VERSION) > state.clock
            {
                state.clock = progress.version.min(message::MAX_VERSION);
                state.trim(state.clock);
                state.behind_since = None;
            }
        }
        self.answered(from, sync.synced, now);
    }

    /// A peer has told all it had.
    pub(super) fn answered(&mut self, from: NodeIndex, synced: bool, now: Now) {
        if let Some(peer) = self.peer_mut(from) {
            peer.synced = Some(synced);
        }
        let others = self.nodes.len() - 1;
        let Some(joining) = &mut self.joining else { return };
        if synced {
            self.finish_joining(Joined::Told, now);
            return;
        }
        joining.empty.insert(from);
        if joining.empty.len() >= others {
            self.finish_joining(Joined::NothingThere, now);
        }
    }

    fn take_sync_key(&mut self, from: NodeIndex, key: &SyncKey, synced: bool, now: Now) {
        let Some(limit) = self.peer(from).and_then(|peer| peer.limit(key.limit)) else {
            self.refuse(from, |refused| &mut refused.unknown);
            return;
        };
        let Some(book) = self.books.get_mut(usize::from(limit)) else { return };
        let digest = Key::from_digest(key.digest);
        let held = book.table.find(digest);
        let by_level = Self::goes_by_level(book);
        let is_told = |slot| match &self.joining {
            Some(joining) => joining.known.contains(&limit) || joining.told.contains(&(limit, slot)),
            None => true,
        };
        // The level of a peer that has just started itself says nothing.
        let baseline = synced && by_level && held.is_none_or(|slot| !is_told(slot));
        let Some(slot) = held.or_else(|| book.table.insert(digest, now)) else {
            self.refuse(from, |refused| &mut refused.no_room);
            return;
        };
        if held.is_none() {
            book.ledger.start(&book.table, slot, now);
        }
        let (mut included, mut others) = (0_u64, 0_u64);
        for share in &key.shares {
            let Some(actor) = self.actor(from, share.actor, now) else {
                self.refuse(from, |refused| &mut refused.unknown);
                continue;
            };
            if self.is_own(actor) {
                let share = Share { spent: share.spent, refunded: share.refunded };
                included = share.net().saturating_add(included);
            }
            let grown = self.take_sync_share(from, usize::from(limit), digest, actor, share, baseline, now);
            others = others.saturating_add(grown);
        }
        if baseline {
            let Some(book) = self.books.get_mut(usize::from(limit)) else { return };
            if book.table.limit().cut().is_some() {
                let parts = key.parts.iter().map(|part| (part.age_ms, part.amount as f64 / LEVEL_STEPS));
                book.set_parts(slot, parts, included, now);
            } else {
                book.set_level(slot, key.missing as f64 / LEVEL_STEPS, included, others, now);
            }
            if let Some(joining) = &mut self.joining {
                joining.told.insert((limit, slot));
            }
        }
    }

    /// Takes in a share; returns the units by which others have spent more than was known.
    #[allow(clippy::too_many_arguments, reason = "one share, and how to take it")]
    fn take_sync_share(
        &mut self,
        from: NodeIndex,
        limit: usize,
        key: Key,
        actor: ActorIndex,
        share: &SyncShare,
        baseline: bool,
        now: Now,
    ) -> u64 {
        let item = Item {
            version: 0,
            limit: limit as u16,
            epoch: share.epoch,
            key,
            share: Share { spent: share.spent, refunded: share.refunded },
            age: u32::try_from(share.age_ms.saturating_mul(2)).unwrap_or(u32::MAX),
            span_ms: 0,
            statement: None,
        };
        if self.is_own(actor) {
            self.take_echo(limit, actor, &item, now);
            return 0;
        }
        let allow = self.allowance(from, actor, now);
        let Some(book) = self.books.get_mut(limit) else { return 0 };
        let taken = match baseline {
            true => book.take_baseline(actor, &item, now),
            false => book.take(actor, &item, NO_SLOT, allow, now),
        };
        match taken {
            Ok(taken) => {
                self.note_taken(from, limit, actor, item.epoch, &taken, now);
                taken.spent
            }
            Err(refusal) => {
                self.refuse_share(from, refusal);
                0
            }
        }
    }

    /// Whether this node does not know yet what the fleet has spent of a limit.
    pub(super) fn is_joining(joining: &Option<Joining>, limit: u16) -> bool {
        joining.as_ref().is_some_and(|joining| !joining.known.contains(&limit))
    }

    /// While joining, new buckets start empty and new windows with this node's share.
    pub(super) fn set_initial_levels(&mut self) {
        let nodes = self.nodes.len().max(1) as f64;
        for (limit, book) in (0..).zip(&self.books) {
            let joining = Self::is_joining(&self.joining, limit);
            let part = match (joining, book.table.meter().is_continuous()) {
                (false, _) => 1.0,
                (true, true) => 0.0,
                (true, false) => 1.0 / nodes,
            };
            book.table.set_initial(part);
        }
    }

    pub(super) fn finish_joining_if_due(&mut self, now: Now) {
        if self.joining.as_ref().is_some_and(|joining| now.mono >= joining.until) {
            self.finish_joining(Joined::TimedOut, now);
        }
    }

    pub(super) fn finish_joining(&mut self, how: Joined, now: Now) {
        let Some(joining) = self.joining.take() else { return };
        for (limit, book) in (0_u16..).zip(&self.books).filter(|(limit, _)| !joining.known.contains(limit)) {
            // An empty bucket that nobody told of stays empty where nobody could be asked: it refills at its rate.
            let stays = how == Joined::TimedOut && book.table.meter().is_continuous();
            let held = joining.held.get(usize::from(limit)).map_or(&[][..], |held| held);
            let is_held = |slot: u32| held.get(slot as usize).copied().unwrap_or(false);
            for slot in (0..book.table.used_slots())
                .filter(|slot| !is_held(*slot) && !joining.told.contains(&(limit, *slot)))
            {
                let _held = book.table.hold(slot);
                let lives = |cell: &&Cell| cell.level.spent() & DEAD == 0;
                if let Some(cell) = book.table.cell(slot).filter(lives).filter(|_| !stays) {
                    let meter = book.table.meter_of(cell);
                    cell.level.credit(meter.capacity() - book.table.initial_level(meter));
                }
            }
        }
        self.set_initial_levels();
        self.update_stance(now);
        self.events.push_back(Event::Synced(how != Joined::TimedOut));
    }

    /// This node stops: tells its peers everything it has not told, and that it goes.
    pub(crate) fn leave(&mut self, now: Now) {
        self.publish_changed(usize::MAX, now);
        self.spread_notices(now);
        for peer in self.others() {
            if self.peer(peer).is_some_and(|peer| peer.is_ready()) {
                self.tell(peer, false, true, &mut Vec::new(), now);
                self.push(peer, Channel::Stream, message::leave());
            }
        }
    }
}
