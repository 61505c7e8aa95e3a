//! Telling peers what is said of single keys: bans, overrides and resets.
//!
//! What is new goes out at once, in streams: what was said here to every peer that can be reached, what was heard from a
//! peer to all others in a small fleet and to a few random ones in a larger one; never back, and only while it is
//! news. What slips through comes to light with the next hello: it carries a digest of all notices a limit, and where two
//! differ, each tells the other all it has, a part at a time. So a node that starts hears of everything too.
//!
//! A peer can say whatever it likes of a key, as far as it is plausible; it cannot make this node hold more than
//! [`Notices`](crate::notice::Notices) does.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Channel, Gossip, NodeIndex,
    message::{self, MAX_LIMITS, WireKind, WireNotice, WireSaid},
};
use crate::{
    counter::Share,
    key::Key,
    limit::{MAX_PERIOD, MAX_UNITS},
    node::NodeId,
    notice::{
        CLEARED_OVERRIDE, Kind, MAX_BAN, Notice, RESET_FOR, RESET_REMEMBERED, Said, Subject, UNDER_WAY,
        remaining_ms,
    },
    table::rules::FOR_GOOD,
    time::{Now, Timestamp, saturating_nanos},
};

/// Subjects in one message.
const SUBJECTS_PER_PART: usize = 1_024;
/// Subjects that wait to be passed on; what is beyond, the next comparison brings to light.
const MAX_PENDING: usize = 1 << 16;
/// Subjects of each limit that a heartbeat looks at for what has ended.
const SWEPT_PER_HEARTBEAT: usize = 1_024;
/// A peer is told everything about a limit again after so long at the earliest, however often it asks.
const TELL_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How long a digest is good for: it takes a look at everything.
const DIGEST_FOR: Duration = Duration::from_millis(50);

/// What is to be told of notices.
pub(super) struct Spreading {
    /// By limit and subject: which peer it came from; `None` where it was said here, or came from several.
    pending: BTreeMap<(u16, Subject), Option<NodeIndex>>,
    /// When the next news may go out at the earliest.
    next: Timestamp,
    /// Peers that are being told everything.
    tours: Vec<Tour>,
    /// When a tour last began, by peer and limit, as an answer or not.
    begun: BTreeMap<(NodeIndex, u16, bool), Timestamp>,
    /// When this node started: what was made before is part of what its peers tell it.
    started: Timestamp,
    digests: Option<(Timestamp, Vec<u64>)>,
}

/// Everything about one limit, on its way to a peer.
struct Tour {
    peer: NodeIndex,
    limit: u16,
    after: Option<Subject>,
    ask: bool,
}

impl Spreading {
    /// Starts over with other numbers of peers and limits; what slips through, hellos bring to light.
    pub(super) fn restart(&mut self, now: Now) {
        *self = Self { started: self.started, ..Self::new(now) };
    }

    pub(super) fn new(now: Now) -> Self {
        Self {
            pending: BTreeMap::new(),
            next: now.mono,
            tours: Vec::new(),
            begun: BTreeMap::new(),
            started: now.mono,
            digests: None,
        }
    }

    fn add(&mut self, limit: u16, subject: Subject, from: Option<NodeIndex>) {
        if self.pending.len() < MAX_PENDING {
            self.pending
                .entry((limit, subject))
                .and_modify(|source| {
                    if *source != from {
                        *source = None;
                    }
                })
                .or_insert(from);
        }
    }
}

/// A number for whoever writes notices as this run of this node.
fn writer(node: &NodeId, incarnation: u32) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(node.as_str().as_bytes(), incarnation.into())
}

impl Gossip {
    /// Tells the tables who writes their notices.
    pub(super) fn sign_notices(&self) {
        let writer = writer(&self.config.node, self.incarnation);
        self.books.iter().for_each(|book| book.table.set_writer(writer));
    }

    /// When notices are to be told next.
    pub(super) fn next_notices(&self, now: Now) -> Option<Timestamp> {
        if self.spreading.tours.iter().any(|tour| !self.is_congested(tour.peer)) {
            return Some(now.mono);
        }
        (!self.spreading.pending.is_empty()).then_some(self.spreading.next)
    }

    /// Tells what is new, and goes on with telling everything to those who lack something.
    pub(super) fn spread_notices(&mut self, now: Now) {
        self.collect_notices(now);
        if !self.spreading.pending.is_empty() && now.mono >= self.spreading.next {
            self.spreading.next = now.mono.after(self.min_interval());
            let pending = std::mem::take(&mut self.spreading.pending);
            let some = self.choose_peers();
            for peer in self.others() {
                if !self.is_congested(peer) && self.peer(peer).is_some_and(|peer| peer.is_ready()) {
                    let chosen = self.is_direct() || some.contains(&peer);
                    let told = |from: &Option<NodeIndex>| from.is_none_or(|from| chosen && from != peer);
                    let subjects = pending.iter().filter(|(_, from)| told(from)).map(|(place, _)| *place);
                    self.tell_notices(peer, &subjects.collect::<Vec<_>>(), now);
                }
            }
        }
        for mut tour in std::mem::take(&mut self.spreading.tours) {
            if self.is_congested(tour.peer) || !self.go_on(&mut tour, now) {
                self.spreading.tours.push(tour);
            }
        }
    }

    /// Takes over what was said on this node.
    fn collect_notices(&mut self, now: Now) {
        let mut news = Vec::new();
        for limit in 0..self.books.len() {
            self.books[limit].table.take_news(&mut news);
            for subject in news.drain(..) {
                if subject.kind == Kind::Reset {
                    self.forgive(limit, subject.key, now);
                }
                self.spreading.add(limit as u16, subject, None);
            }
        }
    }

    /// Sends a peer what stands of these subjects, which are in the order of their limits.
    fn tell_notices(&mut self, to: NodeIndex, subjects: &[(u16, Subject)], now: Now) {
        for of_limit in subjects.chunk_by(|(one, _), (other, _)| one == other) {
            for part in of_limit.chunks(SUBJECTS_PER_PART) {
                let Some((limit, _)) = part.first().copied() else { continue };
                let Some(book) = self.books.get(usize::from(limit)) else { continue };
                let notices = book.table.with_notices(|held| {
                    let entries =
                        part.iter().filter_map(|(_, subject)| Some((subject, held.entry(*subject)?)));
                    let notices = entries.flat_map(|(subject, entry)| {
                        entry.notices().iter().map(|notice| (*subject, *notice))
                    });
                    notices.filter_map(|(subject, notice)| write(subject, &notice, now)).collect::<Vec<_>>()
                });
                self.push_notices(to, message::Notices { limit, digest: 0, ask: false, notices });
            }
        }
    }

    fn push_notices(&mut self, to: NodeIndex, notices: message::Notices) {
        self.push(to, Channel::Stream, message::notices(&notices));
    }

    /// Writes the next part of everything about a limit; returns whether it was the last.
    fn go_on(&mut self, tour: &mut Tour, now: Now) -> bool {
        let Some(book) = self.books.get(usize::from(tour.limit)) else { return true };
        if !self.peer(tour.peer).is_some_and(|peer| peer.is_ready()) {
            return true;
        }
        let part = book.table.with_notices(|held| held.part(tour.after, SUBJECTS_PER_PART));
        let (notices, done) = match part {
            Some((notices, last)) => {
                tour.after = Some(last);
                (notices, false)
            }
            None => (Vec::new(), true),
        };
        if done && !tour.ask {
            return true;
        }
        let notices: Vec<WireNotice> =
            notices.iter().filter_map(|(subject, notice)| write(*subject, notice, now)).collect();
        let digest = if done { self.digest_of(tour.limit, now) } else { 0 };
        self.push_notices(tour.peer, message::Notices { limit: tour.limit, digest, ask: done, notices });
        done
    }

    fn digest_of(&self, limit: u16, now: Now) -> u64 {
        let book = self.books.get(usize::from(limit));
        book.map_or(0, |book| book.table.with_notices(|held| held.digest(now.mono)))
    }

    /// What the notices about each limit come to, for a hello.
    pub(super) fn notice_digests(&mut self, now: Now) -> Vec<u64> {
        if let Some((at, digests)) = &self.spreading.digests
            && now.mono.since(*at) < DIGEST_FOR
        {
            return digests.clone();
        }
        let digests: Vec<u64> =
            (0..self.books.len().min(MAX_LIMITS)).map(|limit| self.digest_of(limit as u16, now)).collect();
        self.spreading.digests = Some((now.mono, digests.clone()));
        digests
    }

    /// Compares a peer's digests with this node's, and tells it everything where they differ.
    pub(super) fn compare_notices(&mut self, from: NodeIndex, digests: &[u64], now: Now) {
        let own = self.notice_digests(now);
        for (number, digest) in digests.iter().enumerate().take(MAX_LIMITS) {
            let Some(limit) = self.peer(from).and_then(|peer| peer.limit(number as u16)) else { continue };
            if own.get(usize::from(limit)) != Some(digest) {
                self.start_tour(from, limit, true, now);
            }
        }
    }

    fn start_tour(&mut self, peer: NodeIndex, limit: u16, ask: bool, now: Now) {
        let begun = self.spreading.begun.get(&(peer, limit, ask));
        if begun.is_some_and(|begun| now.mono.since(*begun) < TELL_AGAIN_AFTER) {
            return;
        }
        self.spreading.begun.insert((peer, limit, ask), now.mono);
        let tours = &mut self.spreading.tours;
        match tours.iter_mut().find(|tour| tour.peer == peer && tour.limit == limit) {
            // What has been told of it already is told again only if it changed, as news.
            Some(tour) => tour.ask |= ask,
            None => tours.push(Tour { peer, limit, after: None, ask }),
        }
    }

    /// A connection is gone, and with it what was being told over it.
    pub(super) fn end_tours(&mut self, peer: NodeIndex) {
        self.spreading.tours.retain(|tour| tour.peer != peer);
        self.spreading.begun.retain(|(other, ..), _| *other != peer);
    }

    pub(super) fn take_notices(&mut self, from: NodeIndex, told: &message::Notices, now: Now) {
        if !self.peer(from).is_some_and(|peer| peer.is_ready()) {
            // Its hello, which says what its numbers mean, is still under way.
            return;
        }
        let Some(limit) = self.peer(from).and_then(|peer| peer.limit(told.limit)) else {
            self.refused.unknown += 1;
            return;
        };
        let Some(table) = self.books.get(usize::from(limit)).map(|book| std::sync::Arc::clone(&book.table))
        else {
            return;
        };
        for wire in &told.notices {
            let Some((subject, notice)) = read(wire, now) else {
                self.refused.notices += 1;
                continue;
            };
            match table.take_notice(subject, notice, now) {
                Ok(true) => {
                    // Others may be able to: it is passed on.
                    self.refused.notices += u64::from(!table.can_apply(notice.said));
                    if subject.kind == Kind::Reset && self.is_to_be_carried_out(&notice, now) {
                        self.carry_out(usize::from(limit), subject.key, now);
                    }
                    // A node that joins is told what everybody else knows.
                    if self.joining.is_none() {
                        self.spreading.add(limit, subject, Some(from));
                    }
                }
                Ok(false) => {}
                Err(_) => self.refused.notices += 1,
            }
        }
        if told.ask && self.digest_of(limit, now) != told.digest {
            self.start_tour(from, limit, false, now);
        }
    }

    /// A reset that was made long ago, or before this node started, says nothing of what this node has counted.
    fn is_to_be_carried_out(&self, notice: &Notice, now: Now) -> bool {
        let age = RESET_REMEMBERED.saturating_sub(notice.until.since(now.mono));
        age <= RESET_FOR && age <= now.mono.since(self.spreading.started)
    }

    /// Carries out a reset that was made elsewhere.
    fn carry_out(&mut self, limit: usize, key: Key, now: Now) {
        let me = self.me;
        let Some(book) = self.books.get_mut(limit) else { return };
        let Some(slot) = book.table.find(key) else { return };
        // What is not in the share yet would count as spent after the reset, if an epoch ends before it is.
        if let Some(published) = book.publish(me, slot, false, now) {
            self.note_own(limit, slot, published);
        }
        self.books[limit].table.restore(key, now);
        self.forgive(limit, key, now);
    }

    /// Takes all that is known to have been spent on a key to be given back, as its actors will say when they hear of
    /// the reset, so that nothing is credited twice; the level is full already. An actor that is gone cannot say so
    /// any more. What an actor spent after the reset and is heard of before it is forgiven with the rest: no more than
    /// was spent while the notice was under way.
    fn forgive(&mut self, limit: usize, key: Key, now: Now) {
        let me = self.me;
        let Some(book) = self.books.get_mut(limit) else { return };
        let Some(slot) = book.table.find(key) else { return };
        let epoch = book.epoch(now);
        let entries: Vec<_> = book.ledger.entries(slot).collect();
        let mut own = Vec::new();
        for entry in entries {
            // This node's share of the current epoch goes by its cell.
            if entry.actor == me && entry.epoch == epoch {
                continue;
            }
            let given_back = Share { spent: entry.share.spent, refunded: entry.share.spent };
            let merged = book.ledger.merge(slot, entry.actor, entry.epoch, given_back, entry.stamp);
            if merged.news && entry.actor == me {
                own.push(entry.epoch);
            }
        }
        for epoch in own {
            self.note_own(limit, slot, super::book::Published { epoch, span_ms: 0, first: false, spent: 0 });
        }
    }

    /// Drops some of what has ended.
    pub(super) fn sweep_notices(&self, now: Now) {
        self.books.iter().for_each(|book| book.table.sweep_notices(SWEPT_PER_HEARTBEAT, now));
    }
}

/// A notice as it is sent; `None` for one that has ended.
fn write(subject: Subject, notice: &Notice, now: Now) -> Option<WireNotice> {
    let remaining_ms = match notice.until {
        FOR_GOOD => 0,
        until => Some(remaining_ms(until, now.mono)).filter(|remaining| *remaining > 0)?,
    };
    Some(WireNotice {
        digest: subject.key.digest().to_le_bytes(),
        kind: match subject.kind {
            Kind::Ban => WireKind::Ban,
            Kind::Override => WireKind::Override,
            Kind::Reset => WireKind::Reset,
        },
        version: notice.version,
        writer: notice.writer.to_le_bytes(),
        said: match notice.said {
            Said::Cleared => WireSaid::Cleared,
            Said::Banned => WireSaid::Banned,
            Said::Allowed => WireSaid::Allowed,
            Said::Denied => WireSaid::Denied,
            Said::Quota { units, period, burst } => WireSaid::Quota(units, period, burst),
            Said::Reset => WireSaid::Reset,
        },
        remaining_ms,
    })
}

/// A notice that was received; `None` for one that nobody who keeps to the protocol sends.
fn read(wire: &WireNotice, now: Now) -> Option<(Subject, Notice)> {
    let kind = match wire.kind {
        WireKind::Ban => Kind::Ban,
        WireKind::Override => Kind::Override,
        WireKind::Reset => Kind::Reset,
    };
    let said = match wire.said {
        WireSaid::Cleared => Said::Cleared,
        WireSaid::Banned => Said::Banned,
        WireSaid::Allowed => Said::Allowed,
        WireSaid::Denied => Said::Denied,
        WireSaid::Quota(units, period, burst) => {
            let units_fit = (1..=MAX_UNITS).contains(&units) && (1..=MAX_UNITS).contains(&burst);
            // Permits have no period. What a limit cannot make use of, it does not.
            let fits = units_fit && period <= saturating_nanos(MAX_PERIOD);
            fits.then_some(Said::Quota { units, period, burst })?
        }
        WireSaid::Reset => Said::Reset,
    };
    let longest = match (kind, said) {
        (Kind::Ban, Said::Cleared) => MAX_BAN.saturating_add(UNDER_WAY),
        (Kind::Ban, _) => MAX_BAN,
        (Kind::Override, Said::Cleared) => CLEARED_OVERRIDE,
        (Kind::Override, _) => Duration::ZERO,
        (Kind::Reset, _) => RESET_REMEMBERED,
    };
    // Each node rounds up.
    let longest_ms = longest.as_millis() as u64 + u64::from(!longest.is_zero());
    let plausible =
        said.suits(kind) && wire.remaining_ms <= longest_ms && (wire.remaining_ms == 0) == longest.is_zero();
    let until = match wire.remaining_ms {
        0 => FOR_GOOD,
        remaining => now.mono.after(Duration::from_millis(remaining).min(longest)),
    };
    let notice = Notice { version: wire.version, writer: u64::from_le_bytes(wire.writer), said, until };
    plausible.then_some((Subject { kind, key: Key::from_digest(u128::from_le_bytes(wire.digest)) }, notice))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        error::RuleError,
        gossip::{GossipConfig, message::Hello},
        limit::{Limit, Quota},
        lists::Override,
        node::Incarnation,
        notice::MAX_BANS,
        table::Table,
    };

    fn now() -> Now {
        Now { mono: Timestamp::from_millis(1_000_000), ..Now::default() }
    }

    /// A node whose peer has said hello.
    fn node() -> (Gossip, Arc<Table>, NodeIndex) {
        let name = |name| NodeId::new(name).unwrap();
        let config = GossipConfig::new(name("a"), Incarnation::new(1), vec![name("b")]);
        let limit = Limit::token_bucket("api", Quota::per_second(10)).build().unwrap();
        let table = Arc::new(Table::new(limit));
        let wake: crate::table::marks::Wake = Arc::new(|| ());
        let mut gossip = Gossip::new(config, vec![Arc::clone(&table)], 7, &wake, now());
        let peer = gossip.index_of(&name("b")).unwrap();
        gossip.handle_connected(now(), peer, 1_200);
        hello(&mut gossip, peer, 0, now());
        while gossip.poll_transmit().is_some() {}
        (gossip, table, peer)
    }

    fn hello(gossip: &mut Gossip, from: NodeIndex, digest: u64, now: Now) {
        let hello = Hello {
            cluster: "ratemesh".to_owned(),
            incarnation: 2,
            nodes: ["a".to_owned(), "b".to_owned()].into(),
            limits: vec![("api".to_owned(), 0)],
            synced: false,
            wall_ms: 0,
            progress: Vec::new(),
            notices: vec![digest],
        };
        gossip.handle_payload(now, from, Channel::Stream, &message::hello(&hello)).unwrap();
    }

    fn bans(range: std::ops::Range<u128>) -> Vec<u8> {
        let notices = range.map(|key| WireNotice {
            digest: key.to_le_bytes(),
            kind: WireKind::Ban,
            version: 1,
            writer: [9; 8],
            said: WireSaid::Banned,
            remaining_ms: 60_000,
        });
        message::notices(&message::Notices { limit: 0, digest: 1, ask: true, notices: notices.collect() })
    }

    #[test]
    fn a_peer_that_bans_everybody_fills_no_more_than_there_is_room_for() {
        let (mut gossip, table, peer) = node();
        for part in 0..11_u128 {
            gossip
                .handle_payload(now(), peer, Channel::Stream, &bans(part * 10_000..(part + 1) * 10_000))
                .unwrap();
        }
        assert_eq!(table.count_rules(now()).0, MAX_BANS);
        assert_eq!(gossip.status(now()).refused.notices, 10_000);
        assert!(gossip.spreading.pending.len() <= MAX_PENDING);
        let unknown =
            message::notices(&message::Notices { limit: 7, digest: 0, ask: true, notices: Vec::new() });
        gossip.handle_payload(now(), peer, Channel::Stream, &unknown).unwrap();
        assert_eq!(gossip.status(now()).refused.unknown, 1);
    }

    #[test]
    fn a_peer_that_gives_every_key_another_quota_takes_no_key_the_one_that_it_has() {
        let (mut gossip, table, peer) = node();
        gossip.finish_joining(super::super::sync::Joined::NothingThere, now());
        let own = |units| Override::quota(Quota::per_second(units));
        table.set_override(Key::from_digest(1), own(77), now()).unwrap();
        let spend = |key: u128| table.check(Key::from_digest(key), 1, now(), now).quota().units();
        assert_eq!(spend(1), 77);
        let told = |keys: std::ops::Range<u128>| {
            let notices = keys.map(|key| WireNotice {
                digest: key.to_le_bytes(),
                kind: WireKind::Override,
                version: 1,
                writer: [9; 8],
                // Every other cannot stand with any limit.
                said: WireSaid::Quota(1 + key as u64, [1_000_000_000, 1][key as usize % 2], 1),
                remaining_ms: 0,
            });
            let notices = notices.collect();
            message::notices(&message::Notices { limit: 0, digest: 1, ask: true, notices })
        };
        for part in 0..12_u128 {
            (part * 1_000..(part + 1) * 1_000)
                .filter(|key| key % 7 == 0)
                .for_each(|key| assert!(spend(key + 100) > 0));
            let keys = 100 + part * 1_000..100 + (part + 1) * 1_000;
            gossip.handle_payload(now(), peer, Channel::Stream, &told(keys)).unwrap();
        }
        assert_eq!(table.count_rules(now()).1, crate::notice::MAX_OVERRIDES);
        let refused = gossip.status(now()).refused.notices;
        assert!((2_000 + 5_000..12_000).contains(&refused), "{refused}");
        // Keys beyond have the limit's own quota, and what this node says holds as long as it is nothing new.
        assert_eq!((spend(1), spend(10_004), spend(50_000)), (77, 10, 10));
        assert_eq!(table.set_override(Key::from_digest(1), own(78), now()), Err(RuleError::TooManyQuotas));
        assert_eq!(spend(1), 77);
        table.clear_override(Key::from_digest(102), now()).unwrap();
        table.set_override(Key::from_digest(102), own(77), now()).unwrap();
        assert_eq!((spend(102), spend(1)), (77, 77));
    }

    #[test]
    fn a_peer_that_always_differs_is_told_everything_now_and_then_and_no_more() {
        let (mut gossip, table, peer) = node();
        for key in 0..5_000_u128 {
            table.ban(Key::from_digest(key), Duration::from_secs(60), now()).unwrap();
        }
        let mut parts = 0;
        for step in 0..100 {
            let now = now().after(Duration::from_millis(10 * step));
            hello(&mut gossip, peer, 12_345, now);
            gossip.handle_payload(now, peer, Channel::Stream, &bans(0..0)).unwrap();
            for _ in 0..20 {
                gossip.spread_notices(now);
            }
            while let Some(transmit) = gossip.poll_transmit() {
                parts += usize::from(transmit.payload.len() > 10_000);
            }
        }
        // Five parts a tour, at most five tours a second of each sort, and the news once.
        assert!((5..=5 * 10 + 5).contains(&parts), "{parts}");
    }

    #[test]
    fn a_reset_is_carried_out_once_and_not_where_it_was_made_before_the_node_started() {
        let reset_of_age = |version: u64, age: Duration| {
            message::notices(&message::Notices {
                limit: 0,
                digest: 0,
                ask: false,
                notices: vec![WireNotice {
                    digest: 5_u128.to_le_bytes(),
                    kind: WireKind::Reset,
                    version,
                    writer: [9; 8],
                    said: WireSaid::Reset,
                    remaining_ms: (RESET_REMEMBERED - age).as_millis() as u64,
                }],
            })
        };
        let (mut gossip, table, peer) = node();
        let key = Key::from_digest(5);
        gossip.finish_joining(super::super::sync::Joined::NothingThere, now());
        let spend = |at: Now| (0..3).for_each(|_| assert!(table.check(key, 1, at, || at).is_allowed()));
        let left = |at: Now| table.peek(key, 1, at).remaining();
        spend(now());
        let later = now().after(Duration::from_millis(50));
        for (version, age, carried_out) in [
            (1, Duration::from_secs(5), false),
            (2, Duration::from_millis(20), true),
            (2, Duration::from_millis(20), false),
            (1, Duration::from_millis(20), false),
            (3, Duration::from_millis(10), true),
        ] {
            gossip.handle_payload(later, peer, Channel::Stream, &reset_of_age(version, age)).unwrap();
            assert_eq!(left(later) == 10, carried_out, "version {version} of age {age:?}");
            if carried_out {
                spend(later);
            }
        }
        // Long after the start, one that is too old is history too.
        let hours_later = now().after(Duration::from_secs(7_200));
        spend(hours_later);
        let old = reset_of_age(4, RESET_FOR + Duration::from_secs(1));
        gossip.handle_payload(hours_later, peer, Channel::Stream, &old).unwrap();
        assert_eq!(left(hours_later), 7);
    }

    #[test]
    fn what_nobody_sends_is_not_taken_in() {
        let now = Now { mono: Timestamp::from_millis(1_000_000), ..Now::default() };
        let ban = WireNotice {
            digest: [7; 16],
            kind: WireKind::Ban,
            version: 1,
            writer: [1; 8],
            said: WireSaid::Banned,
            remaining_ms: MAX_BAN.as_millis() as u64,
        };
        assert!(read(&ban, now).is_some());
        let allowed =
            WireNotice { kind: WireKind::Override, said: WireSaid::Allowed, remaining_ms: 0, ..ban };
        assert_eq!(read(&allowed, now).map(|(_, notice)| notice.until), Some(FOR_GOOD));
        let lies = [
            WireNotice { remaining_ms: ban.remaining_ms + 2, ..ban },
            WireNotice { remaining_ms: u64::MAX, ..ban },
            WireNotice { remaining_ms: 0, ..ban },
            WireNotice { said: WireSaid::Allowed, ..ban },
            WireNotice { said: WireSaid::Reset, ..ban },
            WireNotice { kind: WireKind::Override, ..ban },
            WireNotice { remaining_ms: 5, ..allowed },
            WireNotice { said: WireSaid::Cleared, ..allowed },
            WireNotice { said: WireSaid::Quota(0, 1, 1), ..allowed },
            WireNotice { said: WireSaid::Quota(1, u64::MAX, 1), ..allowed },
            WireNotice { kind: WireKind::Reset, said: WireSaid::Cleared, remaining_ms: 5, ..ban },
            WireNotice { kind: WireKind::Reset, said: WireSaid::Reset, remaining_ms: 1_200_002, ..ban },
        ];
        for lie in lies {
            assert_eq!(read(&lie, now), None, "{lie:?}");
        }
        let quota = WireNotice { said: WireSaid::Quota(5, 7, 9), ..allowed };
        for wire in [ban, allowed, quota] {
            let (subject, notice) = read(&wire, now).unwrap();
            assert_eq!(write(subject, &notice, now), Some(wire));
        }
    }
}
