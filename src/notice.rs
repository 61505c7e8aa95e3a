//! What is said of single keys beside their counts: bans, overrides and resets, the same on all nodes.
//!
//! Each *subject*, a key and what is said about it, holds *notices*. A notice has a version and a writer, which together
//! name it for good: who says something new of a subject numbers it one above all that it knows of the subject (a
//! Lamport clock). Nodes that have heard the same notices hold the same, in whatever order and however often they came:
//!
//! - Of an override or a reset, the notice with the greatest (version, writer, content) stands: last writer wins.
//! - Of a ban, each writer's newest stands, and the key is banned until the last of them ends. A clearing voids the bans
//!   up to its version, also those that come later. So two nodes that ban one key at once make the longer ban, and an
//!   unban undoes all that its node had heard of.
//!
//! Merging is thus the join of a semilattice: commutative, associative, idempotent. Times travel as durations, and
//! each node keeps its own idea of when a notice ends. News can only be late, so of two ideas of one ban's end the
//! earlier is the better one; a ban may last longer on a node by as long as the message was under way.
//!
//! What has ended is dropped. What is cleared stays as long as what it cleared could come back from a node that has
//! not heard of it. All is bounded: subjects of each kind, bans of one key, versions and durations.

use std::{
    collections::{BTreeMap, btree_map},
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use crate::{
    key::Key,
    time::{Timestamp, saturating_nanos},
};

/// The longest ban.
pub const MAX_BAN: Duration = Duration::from_secs(400 * 86_400);
/// The most keys of one limit that are banned at a time.
pub const MAX_BANS: usize = 100_000;
/// The most keys of one limit that have an override at a time.
pub const MAX_OVERRIDES: usize = 10_000;
/// The most keys of one limit whose reset is remembered at a time.
pub(crate) const MAX_RESETS: usize = 10_000;
/// No subject is written about so often; a higher version is not believed.
pub(crate) const MAX_VERSION: u64 = 1 << 48;
/// Writers whose bans of one key are told apart; of more, the newest are.
pub(crate) const MAX_BANS_OF_KEY: usize = 8;
/// How much longer than what it cleared a clearing is kept, for messages that are under way.
pub(crate) const UNDER_WAY: Duration = Duration::from_secs(60);
/// How long it is kept that an override was cleared.
pub(crate) const CLEARED_OVERRIDE: Duration = Duration::from_secs(3_600);
/// How long after it was made a reset is still carried out, and how long it is remembered that it was.
pub(crate) const RESET_FOR: Duration = Duration::from_secs(600);
pub(crate) const RESET_REMEMBERED: Duration = Duration::from_secs(1_200);

/// What a subject is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Ban,
    Override,
    Reset,
}

const KINDS: usize = 3;

impl Kind {
    fn most(self) -> usize {
        match self {
            Self::Ban => MAX_BANS,
            Self::Override => MAX_OVERRIDES,
            Self::Reset => MAX_RESETS,
        }
    }
}

/// A key, and what is said about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    pub(crate) key: Key,
}

/// What a notice says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Said {
    /// What was said before holds no longer.
    Cleared,
    Banned,
    Allowed,
    Denied,
    /// The key has a quota of its own: so many units in so many nanoseconds, and so many at once.
    Quota {
        units: u64,
        period: u64,
        burst: u64,
    },
    Reset,
}

impl Said {
    /// Whether a notice of this kind can say this.
    pub(crate) fn suits(self, kind: Kind) -> bool {
        match self {
            Self::Cleared => kind != Kind::Reset,
            Self::Banned => kind == Kind::Ban,
            Self::Allowed | Self::Denied | Self::Quota { .. } => kind == Kind::Override,
            Self::Reset => kind == Kind::Reset,
        }
    }
}

/// Something said of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) version: u64,
    pub(crate) writer: u64,
    pub(crate) said: Said,
    /// When it ends, or need not be remembered any more, by this node's clock.
    pub(crate) until: Timestamp,
}

impl Notice {
    fn order(&self) -> (u64, u64, Said) {
        (self.version, self.writer, self.said)
    }
}

/// All that stands of one subject, in the order of versions and writers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry(Vec<Notice>);

impl Entry {
    pub(crate) fn notices(&self) -> &[Notice] {
        &self.0
    }

    /// Takes a notice in; returns whether it changed what stands.
    fn merge(&mut self, notice: Notice) -> bool {
        if let Some(same) = self.0.iter_mut().find(|other| other.order() == notice.order()) {
            same.until = match notice.said {
                // What must not come back too early is kept for longer.
                Said::Cleared | Said::Reset => same.until.max(notice.until),
                _ => same.until.min(notice.until),
            };
            return false;
        }
        let by_ban = |said: Said| said == Said::Banned;
        if self.0.iter().any(|other| {
            // Bans stand beside each other; all else stands alone.
            let beside = by_ban(other.said) && by_ban(notice.said) && other.writer != notice.writer;
            let voided =
                notice.version <= other.version && other.said == Said::Cleared && by_ban(notice.said);
            let above_ban = by_ban(other.said) && notice.said == Said::Cleared;
            voided || (!beside && !above_ban && other.order() > notice.order())
        }) {
            return false;
        }
        self.0.retain(|other| match (other.said, notice.said) {
            (Said::Banned, Said::Banned) => other.writer != notice.writer,
            (Said::Banned, Said::Cleared) => other.version > notice.version,
            (Said::Cleared, Said::Banned) => true,
            _ => false,
        });
        let place = self.0.partition_point(|other| other.order() < notice.order());
        self.0.insert(place, notice);
        let bans = self.0.iter().filter(|other| by_ban(other.said)).count();
        if bans > MAX_BANS_OF_KEY
            && let Some(oldest) = self.0.iter().position(|other| by_ban(other.said))
        {
            return self.0.remove(oldest) != notice;
        }
        true
    }

    fn newest(&self) -> u64 {
        self.0.last().map_or(0, |notice| notice.version)
    }

    fn drop_ended(&mut self, now: Timestamp) {
        self.0.retain(|notice| notice.until > now);
    }

    /// When the key's ban ends, if it is banned.
    fn banned_until(&self) -> Option<Timestamp> {
        self.0.iter().filter(|notice| notice.said == Said::Banned).map(|notice| notice.until).max()
    }
}

/// Why something cannot be said of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsaid {
    /// As many subjects of the kind are held as there may be.
    NoRoom,
    /// The subject has been written about as often as it can be.
    NoVersions,
}

/// All notices about one limit's keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notices {
    entries: BTreeMap<Subject, Entry>,
    counts: [usize; KINDS],
    /// Where the sweep for what has ended goes on.
    hand: Option<Subject>,
}

impl Notices {
    /// Whether nothing is held, ended things included.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes a notice in; returns whether it is news.
    pub(crate) fn take(&mut self, subject: Subject, notice: Notice, now: Timestamp) -> Result<bool, Unsaid> {
        if notice.until <= now || !notice.said.suits(subject.kind) {
            return Ok(false);
        }
        if notice.version == 0 || notice.version > MAX_VERSION {
            return Err(Unsaid::NoVersions);
        }
        let count = &mut self.counts[subject.kind as usize];
        match self.entries.entry(subject) {
            btree_map::Entry::Occupied(mut entry) => {
                entry.get_mut().drop_ended(now);
                Ok(entry.get_mut().merge(notice))
            }
            btree_map::Entry::Vacant(_) if *count >= subject.kind.most() => Err(Unsaid::NoRoom),
            btree_map::Entry::Vacant(entry) => {
                *count += 1;
                entry.insert(Entry(vec![notice]));
                Ok(true)
            }
        }
    }

    /// Says something new of a subject, above all that is known of it.
    pub(crate) fn say(
        &mut self,
        subject: Subject,
        said: Said,
        until: Timestamp,
        writer: u64,
        now: Timestamp,
    ) -> Result<bool, Unsaid> {
        let version = self.entries.get(&subject).map_or(0, Entry::newest) + 1;
        self.take(subject, Notice { version, writer, said, until }, now)
    }

    /// Clears what is said of a subject. Returns whether there was anything to clear.
    pub(crate) fn clear(&mut self, subject: Subject, writer: u64, now: Timestamp) -> Result<bool, Unsaid> {
        let Some(entry) = self.entries.get(&subject) else { return Ok(false) };
        let standing = entry.0.iter().filter(|notice| notice.said != Said::Cleared && notice.until > now);
        let Some(last) = standing.map(|notice| notice.until).max() else { return Ok(false) };
        let until = match subject.kind {
            Kind::Ban => last.after(UNDER_WAY),
            Kind::Override | Kind::Reset => now.after(CLEARED_OVERRIDE),
        };
        self.say(subject, Said::Cleared, until, writer, now)
    }

    /// What stands of a subject.
    pub(crate) fn entry(&self, subject: Subject) -> Option<&Entry> {
        self.entries.get(&subject)
    }

    /// When the key's ban ends, if it is banned.
    pub(crate) fn banned_until(&self, key: Key, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(&Subject { kind: Kind::Ban, key })?;
        entry.banned_until().filter(|until| *until > now)
    }

    /// The key's override.
    pub(crate) fn overridden(&self, key: Key) -> Option<Said> {
        let entry = self.entries.get(&Subject { kind: Kind::Override, key })?;
        entry.0.last().map(|notice| notice.said).filter(|said| *said != Said::Cleared)
    }

    /// The banned keys, and when their bans end.
    pub(crate) fn bans(&self, now: Timestamp) -> impl Iterator<Item = (Key, Timestamp)> {
        let bans =
            self.entries.iter().filter_map(|(subject, entry)| Some((subject.key, entry.banned_until()?)));
        bans.filter(move |(_, until)| *until > now)
    }

    /// The keys with an override.
    pub(crate) fn overrides(&self) -> impl Iterator<Item = (Key, Said)> {
        let overrides = self.entries.iter().filter(|(subject, _)| subject.kind == Kind::Override);
        overrides
            .filter_map(|(subject, entry)| Some((subject.key, entry.0.last()?.said)))
            .filter(|(_, said)| *said != Said::Cleared)
    }

    /// The notices of the next `most` subjects beyond `after`, and the last of them; `None` where there are no more.
    pub(crate) fn part(
        &self,
        after: Option<Subject>,
        most: usize,
    ) -> Option<(Vec<(Subject, Notice)>, Subject)> {
        let start = after.map_or(Unbounded, Excluded);
        let mut notices = Vec::new();
        let mut last = None;
        for (subject, entry) in self.entries.range((start, Unbounded)).take(most) {
            notices.extend(entry.0.iter().map(|notice| (*subject, *notice)));
            last = Some(*subject);
        }
        last.map(|last| (notices, last))
    }

    /// A number that two nodes agree on when they hold the same, whatever the order it came in. What has ended does not
    /// count: nodes drop it each in its own time.
    pub(crate) fn digest(&self, now: Timestamp) -> u64 {
        let mut digest = 0;
        for (subject, entry) in &self.entries {
            for notice in entry.0.iter().filter(|notice| notice.until > now) {
                digest ^= fingerprint(*subject, notice);
            }
        }
        digest
    }

    /// Looks at the next `count` subjects, and drops what has ended.
    pub(crate) fn sweep(&mut self, count: usize, now: Timestamp) {
        let start = self.hand.map_or(Unbounded, Excluded);
        let next: Vec<Subject> =
            self.entries.range((start, Unbounded)).take(count).map(|(subject, _)| *subject).collect();
        self.hand = if next.len() < count { None } else { next.last().copied() };
        for subject in next {
            self.drop_ended(subject, now);
        }
    }

    /// Drops what has ended of one subject.
    pub(crate) fn drop_ended(&mut self, subject: Subject, now: Timestamp) {
        if let btree_map::Entry::Occupied(mut entry) = self.entries.entry(subject) {
            entry.get_mut().drop_ended(now);
            if entry.get().0.is_empty() {
                entry.remove();
                self.counts[subject.kind as usize] -= 1;
            }
        }
    }
}

/// What remains of a notice, in milliseconds, rounded up.
pub(crate) fn remaining_ms(until: Timestamp, now: Timestamp) -> u64 {
    saturating_nanos(until.since(now)).div_ceil(1_000_000)
}

fn fingerprint(subject: Subject, notice: &Notice) -> u64 {
    let (said, units, period, burst) = match notice.said {
        Said::Cleared => (0, 0, 0, 0),
        Said::Banned => (1, 0, 0, 0),
        Said::Allowed => (2, 0, 0, 0),
        Said::Denied => (3, 0, 0, 0),
        Said::Quota { units, period, burst } => (4, units, period, burst),
        Said::Reset => (5, 0, 0, 0),
    };
    let fields = [subject.kind as u64, said, notice.version, notice.writer, units, period, burst];
    let mut bytes = [0; 16 + 8 * 7];
    bytes[..16].copy_from_slice(&subject.key.digest().to_le_bytes());
    for (place, field) in bytes[16..].chunks_exact_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn at(seconds: u64) -> Timestamp {
        NOW.after(Duration::from_secs(seconds))
    }

    fn said(kind: Kind) -> impl Strategy<Value = Said> {
        match kind {
            Kind::Ban => prop_oneof![2 => Just(Said::Banned), 1 => Just(Said::Cleared)].boxed(),
            Kind::Reset => Just(Said::Reset).boxed(),
            Kind::Override => prop_oneof![
                Just(Said::Allowed),
                Just(Said::Denied),
                Just(Said::Cleared),
                Just(Said::Quota { units: 5, period: 7, burst: 9 }),
            ]
            .boxed(),
        }
    }

    fn notice(kind: Kind) -> impl Strategy<Value = Notice> {
        (1_u64..6, 0_u64..12, said(kind), 1_u64..50).prop_map(|(version, writer, said, seconds)| Notice {
            version,
            writer,
            said,
            until: at(seconds),
        })
    }

    fn entries() -> impl Strategy<Value = [Entry; 3]> {
        let kind = prop_oneof![4 => Just(Kind::Ban), 1 => Just(Kind::Override), 1 => Just(Kind::Reset)];
        kind.prop_flat_map(|kind| {
            let one = || {
                prop::collection::vec(notice(kind), 0..14).prop_map(|notices| {
                    let mut entry = Entry::default();
                    for notice in notices {
                        entry.merge(notice);
                    }
                    entry
                })
            };
            [one(), one(), one()]
        })
    }

    fn merged(one: &Entry, other: &Entry) -> Entry {
        let mut both = one.clone();
        for notice in &other.0 {
            both.merge(*notice);
        }
        both
    }

    proptest! {
        #[test]
        fn merging_is_commutative_associative_and_idempotent([a, b, c] in entries()) {
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&a, &a), a.clone());
            prop_assert_eq!(merged(&merged(&a, &b), &b), merged(&a, &b));
        }

        #[test]
        fn news_is_what_changes_the_digest([a, b, _c] in entries()) {
            let subject = Subject { kind: Kind::Ban, key: Key::from_digest(7) };
            let mut notices = Notices::default();
            notices.entries.insert(subject, a.clone());
            notices.counts = [1, 0, 0];
            for notice in b.0.iter().filter(|notice| notice.said.suits(Kind::Ban)) {
                let before = notices.digest(NOW);
                let news = notices.take(subject, *notice, NOW).unwrap();
                prop_assert_eq!(news, notices.digest(NOW) != before);
            }
        }
    }

    fn ban(key: u128) -> Subject {
        Subject { kind: Kind::Ban, key: Key::from_digest(key) }
    }

    #[test]
    fn two_bans_at_once_make_the_longer_one() {
        let (mut one, mut other) = (Notices::default(), Notices::default());
        one.say(ban(1), Said::Banned, at(3_600), 1, NOW).unwrap();
        other.say(ban(1), Said::Banned, at(60), 2, NOW).unwrap();
        let (from_one, _) = one.part(None, 10).unwrap();
        let (from_other, _) = other.part(None, 10).unwrap();
        for (subject, notice) in from_other {
            one.take(subject, notice, NOW).unwrap();
        }
        for (subject, notice) in from_one {
            other.take(subject, notice, NOW).unwrap();
        }
        assert_eq!(one.banned_until(ban(1).key, NOW), Some(at(3_600)));
        assert_eq!(other.banned_until(ban(1).key, NOW), Some(at(3_600)));
        assert_eq!(one.digest(NOW), other.digest(NOW));
    }

    #[test]
    fn a_clearing_voids_bans_that_come_after_it_and_not_the_next_ban() {
        let mut notices = Notices::default();
        notices.say(ban(1), Said::Banned, at(60), 1, NOW).unwrap();
        assert_eq!(notices.clear(ban(1), 2, NOW), Ok(true));
        assert_eq!(notices.banned_until(ban(1).key, NOW), None);
        let late = Notice { version: 1, writer: 1, said: Said::Banned, until: at(60) };
        assert_eq!(notices.take(ban(1), late, NOW), Ok(false));
        assert_eq!(notices.clear(ban(1), 2, NOW), Ok(false), "there is nothing to clear any more");
        assert_eq!(notices.say(ban(1), Said::Banned, at(5), 1, NOW), Ok(true));
        assert_eq!(notices.banned_until(ban(1).key, NOW), Some(at(5)));
        assert_eq!(notices.banned_until(ban(1).key, at(5)), None, "it lapses by itself");
    }

    #[test]
    fn what_was_heard_late_does_not_lengthen_a_ban() {
        let mut notices = Notices::default();
        notices.say(ban(1), Said::Banned, at(60), 1, NOW).unwrap();
        let echo = Notice { version: 1, writer: 1, said: Said::Banned, until: at(65) };
        assert_eq!(notices.take(ban(1), echo, NOW), Ok(false));
        assert_eq!(notices.banned_until(ban(1).key, NOW), Some(at(60)));
    }

    #[test]
    fn everything_is_bounded_and_what_has_ended_makes_room() {
        let mut notices = Notices::default();
        for key in 0..MAX_BANS as u128 {
            notices.say(ban(key), Said::Banned, at(1 + key as u64 % 2), 1, NOW).unwrap();
        }
        let one_more = ban(u128::MAX);
        assert_eq!(notices.say(one_more, Said::Banned, at(9), 1, NOW), Err(Unsaid::NoRoom));
        notices.say(Subject { kind: Kind::Override, ..one_more }, Said::Denied, at(9), 1, NOW).unwrap();
        for writer in 0..100 {
            let notice = Notice { version: 1 + writer, writer, said: Said::Banned, until: at(9) };
            notices.take(ban(3), notice, NOW).unwrap();
        }
        assert_eq!(notices.entry(ban(3)).unwrap().notices().len(), MAX_BANS_OF_KEY);
        notices.sweep(MAX_BANS + 2, at(1));
        assert_eq!(notices.say(one_more, Said::Banned, at(9), 1, at(1)), Ok(true));
        notices.sweep(MAX_BANS + 2, at(10));
        assert!(notices.is_empty());
        assert_eq!(notices.counts, [0; KINDS]);
    }

    #[test]
    fn a_version_that_nobody_reaches_is_not_believed() {
        let mut notices = Notices::default();
        let notice = Notice { version: MAX_VERSION + 1, writer: 1, said: Said::Banned, until: at(9) };
        assert_eq!(notices.take(ban(1), notice, NOW), Err(Unsaid::NoVersions));
        notices.take(ban(1), Notice { version: MAX_VERSION, ..notice }, NOW).unwrap();
        assert_eq!(notices.say(ban(1), Said::Banned, at(20), 2, NOW), Err(Unsaid::NoVersions));
    }

    #[test]
    fn parts_hold_everything_once() {
        let mut notices = Notices::default();
        for key in 0..25 {
            notices.say(ban(key), Said::Banned, at(9), 1, NOW).unwrap();
        }
        let (mut after, mut seen) = (None, 0);
        while let Some((part, last)) = notices.part(after, 10) {
            (after, seen) = (Some(last), seen + part.len());
        }
        assert_eq!(seen, 25);
    }
}
