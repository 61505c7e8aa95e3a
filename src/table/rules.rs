//! What decides on single keys before their level does: bans, overrides and lists.
//!
//! Rules lie in a map of their own, bounded by themselves, and a key under one needs no cell. A key that has a cell is
//! marked in it, so that its checks leave the short way; a key without one is looked up before it is taken in. So a
//! check of any other key costs what it would cost without rules.
//!
//! A mark only says that there may be a rule: where there is none any more, it is taken off at the next check.
//!
//! An override that gives a key another quota is no rule of this kind: the level decides, by the quota that the cell names.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{Decision, Key, Now, SHARED_KEY, Table, slab::Cell};
use crate::{
    decision::{Reason, Waits},
    error::{CostError, RuleError},
    key::KeyHasher,
    limit::Quota,
    lists::Override,
    notice::{Kind, MAX_BAN, Notice, Notices, RESET_REMEMBERED, Said, Subject, Unsaid},
    time::{Timestamp, saturating_nanos},
};

/// Subjects looked at for what has ended with each new notice, and where there is no room.
const SWEPT_PER_NOTICE: usize = 4;
const SWEPT_WITHOUT_ROOM: usize = 16;
/// Subjects that wait for the gossip to tell of them. What is beyond, the next comparison with a peer brings to light.
const MAX_NEWS: usize = 1 << 16;

/// The rules of one table.
#[derive(Default)]
pub(super) struct Rules {
    /// Whether a key may be under a rule.
    any: AtomicBool,
    /// Apart from what every check reads, since whoever asks for a rule writes to its lock.
    held: Box<Held>,
}

#[derive(Default)]
struct Held {
    /// Keys that the limit's own lists name.
    listed: RwLock<Arc<BTreeMap<Key, Override>>>,
    notices: RwLock<Notices>,
    /// What was said here since the gossip last asked.
    news: Mutex<Vec<Subject>>,
    /// Who writes notices here.
    writer: AtomicU64,
}

/// What applies to a key in place of its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ruling {
    Allowed,
    Denied,
    Banned(Timestamp),
}

impl Rules {
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn read(&self) -> RwLockReadGuard<'_, Notices> {
        self.held.notices.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Notices> {
        self.held.notices.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> u64 {
        self.held.writer.load(Ordering::Relaxed)
    }

    /// What applies to a key in place of its level: a denial before a ban, a ban before an admission.
    fn ruling(&self, notices: &Notices, key: Key, now: Timestamp) -> Option<Ruling> {
        let listed = self.listed().get(&key).copied();
        let overridden = notices.overridden(key);
        if listed == Some(Override::Deny) || overridden == Some(Said::Denied) {
            return Some(Ruling::Denied);
        }
        if let Some(until) = notices.banned_until(key, now) {
            return Some(Ruling::Banned(until));
        }
        let allowed = match overridden {
            None => listed == Some(Override::Allow),
            Some(said) => said == Said::Allowed,
        };
        allowed.then_some(Ruling::Allowed)
    }

    /// The quota that an override gives to a key, and its burst: one set at run time before one of the limit's own.
    fn quota(&self, notices: &Notices, key: Key) -> Option<(Quota, u64)> {
        match notices.overridden(key) {
            Some(Said::Quota { units, period, burst }) => {
                Some((Quota::new(units, Duration::from_nanos(period)), burst))
            }
            Some(_) => None,
            None => match self.listed().get(&key) {
                Some(Override::Quota { quota, burst }) => Some((*quota, *burst)),
                _ => None,
            },
        }
    }

    fn listed(&self) -> Arc<BTreeMap<Key, Override>> {
        Arc::clone(&self.held.listed.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn renew_any(&self, notices: &Notices) {
        self.any.store(!self.listed().is_empty() || !notices.is_empty(), Ordering::Relaxed);
    }

    fn tell(&self, subject: Subject) {
        let mut news = self.held.news.lock().unwrap_or_else(PoisonError::into_inner);
        if news.len() < MAX_NEWS {
            news.push(subject);
        }
    }
}

/// Decisions by rule.
impl Table {
    /// Decides by the rule that `key` is under; `None` where it is under none. A mark that its cell has, if it is `marked`, is
    /// then taken off.
    #[cold]
    pub(super) fn decide_by_rule(
        &self,
        marked: bool,
        key: Key,
        cost: u64,
        mut now: Now,
        precise: impl Fn() -> Now,
    ) -> Option<Decision<'_>> {
        let mut ruling = self.ruling(key, now);
        if let Some(Ruling::Banned(_)) = ruling {
            // It may have ended since the coarse clock's last step, and the rest of it is told to the millisecond.
            now = precise();
            ruling = self.ruling(key, now);
        }
        if ruling.is_none() && marked {
            // Looked at again under the lock, where no rule can come meanwhile.
            let notices = self.rules.write();
            self.mark(&notices, key, now);
        }
        Some(self.ruled(ruling?, key, cost, now, true))
    }

    /// What [`decide_by_rule`](Self::decide_by_rule) would answer.
    #[cold]
    pub(super) fn peek_rule(&self, key: Key, cost: u64, now: Now) -> Option<Decision<'_>> {
        Some(self.ruled(self.ruling(key, now)?, key, cost, now, false))
    }

    fn ruling(&self, key: Key, now: Now) -> Option<Ruling> {
        if self.rules.is_any() { self.rules.ruling(&self.rules.read(), key, now.mono) } else { None }
    }

    /// Decides by what a list says of the network of the address that `key` is, unless something is said of `key` itself.
    #[cold]
    pub(crate) fn decide_listed(
        &self,
        listed: Override,
        key: Key,
        cost: u64,
        now: Now,
        counts: bool,
    ) -> Decision<'_> {
        if counts {
            self.lanes.count_check();
        }
        let by_network = if listed == Override::Allow { Ruling::Allowed } else { Ruling::Denied };
        self.ruled(self.ruling(key, now).unwrap_or(by_network), key, cost, now, counts)
    }

    /// Whether an override gives the key a quota of its own, so that what is said of its network does not apply.
    pub(crate) fn has_own_quota(&self, key: Key) -> bool {
        self.rules.is_any() && self.rules.quota(&self.rules.read(), key).is_some()
    }

    /// The number of the quota that the key should have.
    pub(super) fn quota_of(&self, key: Key) -> u8 {
        if self.rules.is_any() { self.quota_by(&self.rules.read(), key) } else { self.current() }
    }

    fn quota_by(&self, notices: &Notices, key: Key) -> u8 {
        let own = self.rules.quota(notices, key).filter(|_| key != SHARED_KEY);
        // What cannot stand here, because a peer's limit is another, does not apply here.
        own.and_then(|(quota, burst)| self.quota_of_key(quota, burst).ok()).unwrap_or_else(|| self.current())
    }

    /// For how many units requests may wait at a time for a key.
    #[cfg(feature = "acquire")]
    pub(crate) fn queue_of(&self, key: Key) -> u64 {
        self.limit_at(self.quota_of(key)).queue()
    }

    /// Whether `cost` can ever pass for a key.
    #[inline]
    pub(crate) fn check_fits(&self, key: Key, cost: u64) -> Result<(), CostError> {
        if self.has_quotas_of_keys() {
            self.check_fits_by_rule(key, cost)
        } else {
            self.limit().check_fits(cost)
        }
    }

    #[cold]
    fn check_fits_by_rule(&self, key: Key, cost: u64) -> Result<(), CostError> {
        // The cell of a key that is held says it without a lock.
        let cell = self.find(key).and_then(|slot| self.slab.get(slot));
        let held = cell.filter(|cell| !self.is_outdated(cell) && !cell.level.is_marked() && cell.holds(key));
        held.map_or_else(|| self.limit_at(self.quota_of(key)), |cell| self.limit_of(cell)).check_fits(cost)
    }

    fn ruled(&self, ruling: Ruling, key: Key, cost: u64, now: Now, counts: bool) -> Decision<'_> {
        let mut limit = self.limit();
        let (allowed, reason, level) = match ruling {
            Ruling::Allowed => {
                let level = match self.find(key).and_then(|slot| self.slab.get(slot)) {
                    Some(cell) => {
                        limit = self.limit_of(cell);
                        self.level_of(cell, now)
                    }
                    None => self.initial_level(limit.meter()),
                };
                (true, Reason::Exempt, level)
            }
            Ruling::Denied => (false, Reason::Denied, 0),
            Ruling::Banned(until) => (false, Reason::Banned, nanos_until(until, now)),
        };
        if counts && !allowed {
            self.lanes.count_denial();
        }
        let basis = self.stance().basis;
        Decision { reason, ..Decision::by_meter(limit, allowed, basis, level, cost, now) }
    }

    /// What a refusal by level entails for its key, as the limit says; returns the decision.
    #[cold]
    #[allow(clippy::too_many_arguments, reason = "a refusal, and whose it is")]
    pub(super) fn punish(
        &self,
        slot: u32,
        cell: &Cell,
        key: Key,
        cost: u64,
        mut level: i64,
        mut waits: Waits,
        now: Now,
    ) -> Decision<'_> {
        let (limit, basis) = (self.limit_of(cell), self.stance().basis);
        let meter = limit.meter();
        if limit.counts_denied() {
            let (earned, drawn, floor) = (self.earned(cell, now), self.drawn(cell, now), -meter.max_debt());
            let spent = cell.level.spend_into_debt(meter, earned, drawn, cost, floor, || cell.holds(key));
            if let Some((after, spent)) = spent {
                level = after;
                self.note_spent(slot, cell, spent, now);
                if waits != Waits::BY_METER {
                    (level, waits) = self.look_at(slot, cell, cost, now);
                }
            }
        }
        if let Some(ban) = limit.ban_on_exceed().filter(|_| key != SHARED_KEY)
            && self.ban(key, ban, now).is_ok()
        {
            let level = i64::try_from(saturating_nanos(ban)).unwrap_or(i64::MAX);
            return Decision {
                reason: Reason::Banned,
                ..Decision::by_meter(limit, false, basis, level, cost, now)
            };
        }
        Decision { waits, ..Decision::by_meter(limit, false, basis, level, cost, now) }
    }

    /// Marks the key's cell, or takes its mark off, as its rules say, and gives it the quota that it should have. The lock
    /// must be held for writing, so that rules and marks change together; a key that is taken in meanwhile looks for its
    /// rules afterwards.
    pub(super) fn mark(&self, notices: &Notices, key: Key, now: Now) {
        // Whoever is taking the key in meanwhile has been waited for, or will see what is said of it.
        let found = self.find_in_index(key);
        if let Some((slot, cell)) = found.and_then(|slot| Some((slot, self.slab.get(slot)?))) {
            let quota = self.quota_by(notices, key);
            if cell.quota() != quota {
                self.change_quota(slot, cell, key, quota, now);
            }
            let special = self.rules.ruling(notices, key, now.mono).is_some();
            cell.level.mark(special, || cell.holds(key));
        }
    }

    /// Marks a key that has just been taken in, if it is under a rule.
    #[cold]
    pub(super) fn mark_new(&self, slot: u32, key: Key, now: Now) {
        // What is said from now on finds the key's cell by itself.
        let quota = self.slab.get(slot).map(Cell::quota);
        if self.ruling(key, now).is_some() || quota != Some(self.quota_of(key)) {
            let notices = self.rules.write();
            self.mark(&notices, key, now);
        }
    }
}

/// Saying something of a key.
impl Table {
    /// Bans `key` for `duration`, unless it is banned for longer already.
    pub(crate) fn ban(&self, key: Key, duration: Duration, now: Now) -> Result<(), RuleError> {
        if duration.is_zero() || duration > MAX_BAN {
            return Err(RuleError::Duration(duration));
        }
        let until = now.mono.after(duration);
        self.say(Subject { kind: Kind::Ban, key }, now, |notices, subject, writer| {
            if notices.banned_until(key, now.mono).is_some_and(|banned| banned >= until) {
                return Ok(false);
            }
            notices.say(subject, Said::Banned, until, writer, now.mono)
        })
        .map(|_| ())
    }

    /// Ends the ban of `key`; returns whether it was banned.
    pub(crate) fn unban(&self, key: Key, now: Now) -> Result<bool, RuleError> {
        self.clear(Subject { kind: Kind::Ban, key }, now)
    }

    /// Sets what applies to `key` whatever its level.
    pub(crate) fn set_override(&self, key: Key, says: Override, now: Now) -> Result<(), RuleError> {
        let said = match says {
            Override::Allow => Said::Allowed,
            Override::Deny => Said::Denied,
            Override::Quota { quota, burst } => {
                self.quota_of_key(quota, burst)?;
                Said::Quota { units: quota.units(), period: saturating_nanos(quota.period()), burst }
            }
        };
        self.say(Subject { kind: Kind::Override, key }, now, |notices, subject, writer| {
            if notices.overridden(key) == Some(said) {
                return Ok(false);
            }
            notices.say(subject, said, FOR_GOOD, writer, now.mono)
        })
        .map(|_| ())
    }

    /// Lets the level decide on `key` again; returns whether it had an override.
    pub(crate) fn clear_override(&self, key: Key, now: Now) -> Result<bool, RuleError> {
        self.clear(Subject { kind: Kind::Override, key }, now)
    }

    fn clear(&self, subject: Subject, now: Now) -> Result<bool, RuleError> {
        self.say(subject, now, |notices, subject, writer| notices.clear(subject, writer, now.mono))
    }

    /// Gives `key` its full capacity again, and says so.
    pub(crate) fn reset(&self, key: Key, now: Now) -> Result<(), RuleError> {
        let remembered = now.mono.after(RESET_REMEMBERED);
        self.say(Subject { kind: Kind::Reset, key }, now, |notices, subject, writer| {
            notices.say(subject, Said::Reset, remembered, writer, now.mono)
        })?;
        self.restore(key, now);
        Ok(())
    }

    /// Fills the key's level, and gives back what this node spent on it in the current epoch, so that its peers hear of
    /// it as a refund. Returns its slot.
    pub(crate) fn restore(&self, key: Key, now: Now) -> Option<u32> {
        let slot = self.find(key)?;
        let cell = self.slab.get(slot)?;
        self.give_all_back(slot, cell, now);
        self.note_changed(slot, cell, now);
        Some(slot)
    }

    fn say(
        &self,
        subject: Subject,
        now: Now,
        change: impl Fn(&mut Notices, Subject, u64) -> Result<bool, Unsaid>,
    ) -> Result<bool, RuleError> {
        let changed = {
            let mut notices = self.rules.write();
            notices.sweep(SWEPT_PER_NOTICE, now.mono);
            let mut changed = change(&mut notices, subject, self.rules.writer());
            if changed == Err(Unsaid::NoRoom) {
                notices.sweep(SWEPT_WITHOUT_ROOM, now.mono);
                changed = change(&mut notices, subject, self.rules.writer());
            }
            self.rules.renew_any(&notices);
            self.mark(&notices, subject.key, now);
            changed
        };
        match changed {
            Ok(true) if self.marks.is_heard() => {
                self.rules.tell(subject);
                self.marks.wake();
                Ok(true)
            }
            Ok(changed) => Ok(changed),
            Err(Unsaid::NoRoom) => Err(RuleError::NoRoom),
            Err(Unsaid::NoVersions) => Err(RuleError::NoVersions),
        }
    }

    /// The banned keys, and for how long each is banned still.
    pub(crate) fn bans(&self, now: Now) -> Vec<(Key, Duration)> {
        self.rules.read().bans(now.mono).map(|(key, until)| (key, until.since(now.mono))).collect()
    }

    /// The keys with an override that was set at run time.
    pub(crate) fn overrides(&self) -> Vec<(Key, Override)> {
        let notices = self.rules.read();
        let overrides = notices.overrides().filter_map(|(key, said)| match said {
            Said::Allowed => Some((key, Override::Allow)),
            Said::Denied => Some((key, Override::Deny)),
            Said::Quota { units, period, burst } => {
                let quota = Quota::new(units, Duration::from_nanos(period));
                Some((key, Override::Quota { quota, burst }))
            }
            _ => None,
        });
        overrides.collect()
    }

    /// How many keys are banned, and how many have an override.
    pub(crate) fn count_rules(&self, now: Now) -> (usize, usize) {
        let notices = self.rules.read();
        (notices.bans(now.mono).count(), notices.overrides().count())
    }

    /// Digests the keys that the limit's own lists name.
    pub(crate) fn list_keys(&self, hasher: &KeyHasher, now: Now) {
        let mut listed = BTreeMap::new();
        for (key, says) in self.limit().lists().iter().flat_map(|lists| lists.keys()) {
            let is_quota = matches!(says, Override::Quota { .. });
            let says = match says {
                // It takes the place of all the limit's quotas, of which this is a further one.
                Override::Quota { .. } if self.limit().band() > 0 => Override::Allow,
                says => says,
            };
            let mut say = |key| {
                let said = listed.entry(key).or_insert(says);
                *said = says.max(*said);
            };
            say(hasher.key(key));
            // Addresses are digested as such, and the lists of networks give no quotas.
            if let Some(address) = key.parse::<IpAddr>().ok().filter(|_| is_quota) {
                say(hasher.key(address));
            }
        }
        if listed.values().any(|says| matches!(says, Override::Quota { .. })) {
            self.quotas.note_of_keys();
        }
        let listed = Arc::new(listed);
        let former = {
            let mut held = self.rules.held.listed.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *held, Arc::clone(&listed))
        };
        self.rules.renew_any(&self.rules.write());
        // One after the other, so that checks need not wait for all of them.
        for key in former.keys().chain(listed.keys()) {
            let notices = self.rules.write();
            self.mark(&notices, *key, now);
        }
    }

    /// How many different quotas keys were given at run time.
    #[cfg(any(feature = "net", feature = "sim"))]
    pub(super) fn quotas_set(&self) -> usize {
        let notices = self.rules.read();
        let quotas = notices.overrides().filter(|(_, said)| matches!(said, Said::Quota { .. }));
        quotas.map(|(_, said)| said).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// From now on the limit is `next`, also for keys that it names. Returns whether that could be noted: a table can have so
    /// many quotas in its life. Keys without rules go over when they are next asked for, or by
    /// [`bring_up_to_date`](Self::bring_up_to_date).
    #[cfg(any(feature = "net", feature = "sim"))]
    pub(crate) fn change(&self, next: crate::limit::Limit, hasher: &KeyHasher, now: Now) -> bool {
        if !self.change_own(next) {
            return false;
        }
        let stance = self.stance();
        self.set_stance(stance);
        self.list_keys(hasher, now);
        let given = self.rules.read().overrides().map(|(key, _)| key).collect::<Vec<_>>();
        for key in given {
            let notices = self.rules.write();
            self.mark(&notices, key, now);
        }
        true
    }
}

/// What the gossip does with the rules.
impl Table {
    /// Who writes notices here from now on; no two nodes, nor two runs of one, are the same.
    pub(crate) fn set_writer(&self, writer: u64) {
        self.rules.held.writer.store(writer, Ordering::Relaxed);
    }

    /// Takes in what a peer has said; returns whether it is news.
    pub(crate) fn take_notice(&self, subject: Subject, notice: Notice, now: Now) -> Result<bool, Unsaid> {
        let mut notices = self.rules.write();
        let taken = notices.take(subject, notice, now.mono);
        self.rules.renew_any(&notices);
        if taken == Ok(true) {
            if matches!(notices.overridden(subject.key), Some(Said::Quota { .. })) {
                self.quotas.note_of_keys();
            }
            self.mark(&notices, subject.key, now);
        }
        taken
    }

    /// Whether what a notice says can be held to here: a peer's limit may be another, or there have been too many quotas.
    #[cfg(feature = "gossip")]
    pub(crate) fn can_apply(&self, said: Said) -> bool {
        let Said::Quota { units, period, burst } = said else { return true };
        self.has_room_for(Quota::new(units, Duration::from_nanos(period)), burst)
    }

    /// Looks at what is held.
    pub(crate) fn with_notices<T>(&self, look: impl FnOnce(&Notices) -> T) -> T {
        look(&self.rules.read())
    }

    /// Looks at the next `count` subjects for what has ended.
    pub(crate) fn sweep_notices(&self, count: usize, now: Now) {
        if self.rules.is_any() {
            let mut notices = self.rules.write();
            notices.sweep(count, now.mono);
            self.rules.renew_any(&notices);
        }
    }

    /// Moves what was said here since the last time into `into`.
    pub(crate) fn take_news(&self, into: &mut Vec<Subject>) {
        if self.rules.is_any() {
            into.append(&mut self.rules.held.news.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// The end of what is said for good.
pub(crate) const FOR_GOOD: Timestamp = Timestamp::from_nanos(u64::MAX);

fn nanos_until(until: Timestamp, now: Now) -> i64 {
    i64::try_from(saturating_nanos(until.since(now.mono))).unwrap_or(i64::MAX)
}
