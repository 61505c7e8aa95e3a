//! The live keys of one limit.
//!
//! A check finds its key's cell, does one compare-and-swap in it, and touches nothing that the network holds. Cells
//! lie in a slab and are found through a `DashMap` of slot numbers, which compares keys in the cells themselves, so an
//! entry of the map is four bytes. Each thread remembers the slots it used last, and looks there first, then where the
//! key's digest says; the map is for taking keys in, and for the few that are elsewhere.
//!
//! The number of live keys is bounded. A key whose bucket is full again holds nothing worth keeping, and gives up its
//! cell to the next; where there is no such cell, a new key is treated as the limit's
//! [`OnFull`](crate::OnFull) says. A key that is over its limit is never forgotten for a fresh one.

mod careful;
pub(crate) mod flow;
pub(crate) mod give_back;
mod keys;
mod lanes;
pub(crate) mod marks;
mod places;
pub(crate) mod plain;
mod quotas;
pub(crate) mod rules;
pub(crate) mod slab;
mod stance;

use std::{
    cell::Cell as LocalCell,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

use dashmap::{DashMap, SharedValue};

use crate::{
    algorithm::{
        Meter,
        level::{DEAD, Outcome},
    },
    decision::{Basis, BasisWord, Decision, Reason},
    key::Key,
    limit::{Limit, OnFull, Windows},
    time::{Now, saturating_nanos},
};
use careful::Histories;
use flow::SharedFlow;
use give_back::{Elsewhere, Stripes, Witness};
use lanes::Lanes;
use marks::{Marks, Wake};
use places::{FreeSlots, Places};
use quotas::{FIRST, Quotas};
use rules::Rules;
pub(crate) use slab::MAX_FORECASTS;
use slab::{CLEAN, Cell, SILENT, Slab};
pub(crate) use stance::{Stance, Verdict};

/// The key of the bucket that all keys share which find no room.
const SHARED_KEY: Key = Key::from_digest(0);
/// Slots looked at for each new key in a table without gossip, at the least and at the most, so that drained keys go as fast as new
/// ones come; and where room is short.
const SWEPT: (u32, u32) = (3, 3);
const SWEPT_WHEN_SHORT: (u32, u32) = (8, 24);
/// How long a key's bucket has been full when its cell is taken from it, while there is room: a key that is asked for
/// now and then would be taken in anew each time.
const IDLE_NANOS: u64 = 10_000_000_000;
/// Room is short when no more than this part of the slots is free.
const SHORT_PART: usize = 8;
/// No slot of any table: tables hold fewer cells.
pub(crate) const NO_SLOT: u32 = u32::MAX;
/// Slots that a thread remembers: 64 kB of a thread that checks so many keys, and nothing of one that checks none, since what
/// begins as zero takes no memory until it is written.
const RECENT: usize = 8192;

thread_local! {
    /// Tag and slot of the keys that this thread checked last, over all tables.
    static RECENT_SLOTS: [LocalCell<u64>; RECENT] = const { [const { LocalCell::new(0) }; RECENT] };
}

/// Distinguishes the tables in the threads' memories.
static NEXT_TABLE: AtomicU64 = AtomicU64::new(1);

/// The live keys of one limit, and all that a check needs.
pub(crate) struct Table {
    /// As it was when the table was made; see [`Table::limit`] for what it is now.
    limit: Limit,
    id: u64,
    stance: AtomicU32,
    /// What is drawn on every key's level: the share of nodes that cannot be heard.
    pub(crate) drain: SharedFlow,
    /// The same, where it does not change with time.
    resting: AtomicI64,
    slab: Slab,
    places: Places,
    index: DashMap<u32, ()>,
    room: Room,
    lanes: Lanes,
    rules: Rules,
    quotas: Quotas,
    pub(crate) marks: Marks,
    /// Held by who gives back in a slot, ends a key's life or epoch there, changes its quota, or settles what was spent elsewhere.
    stripes: Stripes,
    /// What peers are expected to spend on the hottest keys; the first is never used.
    pub(crate) forecasts: Box<[SharedFlow]>,
    /// Whether new keys start at nothing, in millionths of the capacity.
    initial: AtomicU32,
    /// What was spent when, where the window slides.
    histories: Option<Histories>,
    /// The time over which the beginnings of the keys' windows are spread; 0 where all begin at once.
    stagger_nanos: u64,
}

/// What changes with each key taken in or given up; on a line that checks of known keys do not read.
#[derive(Default)]
#[repr(align(64))]
struct Room {
    free: Mutex<FreeSlots>,
    /// How many slots the sweep for drained keys has looked at.
    hand: AtomicU32,
    /// Keys held, the shared bucket apart.
    live: AtomicUsize,
}

const MILLION: u32 = 1_000_000;

impl Table {
    /// An empty table.
    pub(crate) fn new(limit: Limit) -> Self {
        let keys = limit.max_keys();
        // Enough shards that two threads on different keys seldom meet, and that growing one of them takes well below a
        // millisecond; few enough that a small table stays small.
        let shards = (keys / 512).next_power_of_two().clamp(4, 512);
        let places = Places::new(keys);
        let table = Self {
            id: NEXT_TABLE.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            stance: AtomicU32::new(Stance::ALONE),
            drain: SharedFlow::default(),
            resting: AtomicI64::new(0),
            // One more than the places, for the keys that find no room.
            slab: Slab::new(places.slots() as usize + 1),
            places,
            index: DashMap::with_shard_amount(shards),
            room: Room::default(),
            lanes: Lanes::new(),
            rules: Rules::default(),
            quotas: Quotas::new(),
            marks: Marks::new(),
            stripes: Stripes::new(),
            forecasts: (0..=MAX_FORECASTS).map(|_| SharedFlow::default()).collect(),
            initial: AtomicU32::new(MILLION),
            histories: limit.cut().map(Histories::new),
            stagger_nanos: match limit.windows() {
                Windows::Staggered => saturating_nanos(limit.quota().period()),
                _ => 0,
            },
            limit,
        };
        table.set_stance(Stance { basis: Basis::Alone.into(), verdict: Verdict::Level });
        table.set_plain(plain::BY_WALL, !table.meter().needs_wall());
        table
    }

    /// The arithmetic of the limit's own quota.
    #[inline]
    pub(crate) fn meter(&self) -> &Meter {
        self.limit().meter()
    }

    /// Whether decisions need the wall clock.
    #[inline]
    pub(crate) fn needs_wall(&self) -> bool {
        self.limit.meter().needs_wall()
    }

    /// Keys held now.
    pub(crate) fn live_keys(&self) -> usize {
        self.room.live.load(Ordering::Relaxed)
    }

    /// Checks decided and refused so far.
    pub(crate) fn checks_and_denials(&self) -> (u64, u64) {
        self.lanes.sums()
    }

    /// Counts a check.
    #[inline]
    pub(crate) fn count_check(&self) {
        self.lanes.count_check();
    }

    /// Decides on `cost` units, at most the capacity, for `key` at the coarse time `now`, and spends them if it allows
    /// them. Before it refuses, it asks for the precise time if that could change its mind. `slot` is where the key is taken to
    /// be, or [`NO_SLOT`]. The check is counted already.
    pub(crate) fn check_in(
        &self,
        slot: u32,
        key: Key,
        cost: u64,
        now: Now,
        precise: impl Fn() -> Now + Copy,
    ) -> Decision<'_> {
        self.decide(slot, key, cost, now, precise, move |slot| self.remember(key, slot))
    }

    /// The same where a look at the coarse time found the level too low, or the bucket `full`.
    pub(crate) fn check_again(
        &self,
        slot: u32,
        key: Key,
        cost: u64,
        coarse: Now,
        full: bool,
        precise: impl Fn() -> Now + Copy,
    ) -> Decision<'_> {
        self.look_again(slot, key, cost, coarse, full, precise, move |slot| self.remember(key, slot))
    }

    /// The same for a caller that keeps the key's slot itself: `known` is where it was last, or [`NO_SLOT`], and is set
    /// right if it is elsewhere now.
    pub(crate) fn check_at(
        &self,
        known: &AtomicU32,
        key: Key,
        cost: u64,
        now: Now,
        precise: impl Fn() -> Now + Copy,
    ) -> Decision<'_> {
        let remember = move |slot| known.store(slot, Ordering::Relaxed);
        self.decide(known.load(Ordering::Relaxed), key, cost, now, precise, remember)
    }

    /// Counts a check and decides it, wherever the key is.
    #[cfg(test)]
    pub(crate) fn check(
        &self,
        key: Key,
        cost: u64,
        now: Now,
        precise: impl Fn() -> Now + Copy,
    ) -> Decision<'_> {
        self.count_check();
        self.check_in(self.slot_of(key), key, cost, now, precise)
    }

    /// Decides on the cell in `slot` if it is `key`'s, and otherwise where the key is found, which `witness` is told.
    #[inline]
    fn decide(
        &self,
        slot: u32,
        key: Key,
        cost: u64,
        now: Now,
        precise: impl Fn() -> Now + Copy,
        witness: impl Witness + Copy,
    ) -> Decision<'_> {
        let Stance { basis, verdict } = self.stance();
        if verdict == Verdict::Level
            && let Some(cell) = self.slab.get(slot)
            && cell.is_plain()
            && self.drain.is_unset()
        {
            // A plain cell has the first quota; where that is not the limit's any more, the verdict is another.
            let meter = self.limit.meter();
            let holds = || cell.holds(key);
            match cell.level.try_to_spend(meter, meter.earned(now), 0, meter.near(), cost, holds) {
                Outcome::Allowed { level, spent } => {
                    self.note_spent(slot, cell, spent, now);
                    witness.spent(slot, key, spent);
                    return Decision::by_meter(&self.limit, true, basis, level, cost, now);
                }
                Outcome::Denied { .. } => {
                    return self.look_again(slot, key, cost, now, false, precise, witness);
                }
                Outcome::Full => return self.look_again(slot, key, cost, now, true, precise, witness),
                Outcome::Gone | Outcome::Contended => {}
            }
        }
        self.decide_at_length(slot, key, cost, now, precise, witness)
    }

    /// The same whatever is in the way.
    #[inline(never)]
    fn decide_at_length(
        &self,
        mut slot: u32,
        key: Key,
        cost: u64,
        mut now: Now,
        precise: impl Fn() -> Now + Copy,
        witness: impl Witness + Copy,
    ) -> Decision<'_> {
        let mut fresh = false;
        loop {
            if let Some(cell) = self.slab.get(slot) {
                // Also where there are no rules any more: whoever finds a mark takes it off.
                if cell.level.is_marked()
                    && cell.holds(key)
                    && let Some(decision) = self.decide_by_rule(true, key, cost, now, precise)
                {
                    return decision;
                }
                if self.is_outdated(cell) && cell.holds(key) {
                    self.renew_terms(slot, now);
                }
                let stance = self.stance();
                let careful = stance.verdict == Verdict::Careful;
                if let Some(histories) = self.histories.as_ref().filter(|_| careful) {
                    if let Some(decision) =
                        self.decide_by_history(histories, slot, cell, key, cost, precise(), &witness)
                    {
                        return decision;
                    }
                } else if !careful && stance.verdict != Verdict::Level {
                    if let Some(decision) =
                        self.decide_regardless(slot, cell, key, cost, now, stance, &witness)
                    {
                        return decision;
                    }
                } else {
                    let limit = self.limit_of(cell);
                    let near = if fresh { 0 } else { limit.meter().near() };
                    match self.spend(limit, cell, key, cost, now, near) {
                        Outcome::Allowed { level, spent } => {
                            self.note_spent(slot, cell, spent, now);
                            witness.spent(slot, key, spent);
                            let waits = self.waits(limit.meter(), key, level, cost, now);
                            let decision = Decision::by_meter(limit, true, stance.basis, level, cost, now);
                            return Decision { waits, ..decision };
                        }
                        Outcome::Denied { .. } => {
                            return self.look_again(slot, key, cost, now, false, precise, witness);
                        }
                        Outcome::Full => {
                            return self.look_again(slot, key, cost, now, true, precise, witness);
                        }
                        Outcome::Gone | Outcome::Contended => {}
                    }
                }
            }
            // A key without a slot was looked for already, or will be where it is taken in.
            let known = if slot == NO_SLOT { None } else { self.find(key) };
            if known.is_none()
                && self.rules.is_any()
                && let Some(decision) = self.decide_by_rule(false, key, cost, now, precise)
            {
                return decision;
            }
            let insert = || {
                // A new bucket is full now, not some milliseconds ago.
                (now, fresh) = (precise(), true);
                self.insert(key, now)
            };
            let Some(found) = known.or_else(insert) else {
                return self.check_without_room(cost, now, precise, &witness);
            };
            slot = found;
            witness.found(slot);
        }
    }

    /// Spends from a cell, against whatever other threads do with it.
    #[inline]
    fn spend(&self, limit: &Limit, cell: &Cell, key: Key, cost: u64, now: Now, near: i64) -> Outcome {
        let meter = limit.meter();
        let (earned, drawn) = (meter.earned(self.own_time(key, now)), self.drawn(cell, now));
        // Whose limit it is no more is told that the key is gone, and looks for it again.
        let holds = || cell.holds(key) && std::ptr::eq(self.limit_of(cell), limit);
        loop {
            match cell.level.try_to_spend(meter, earned, drawn, near, cost, holds) {
                Outcome::Contended => {}
                outcome => return outcome,
            }
        }
    }

    #[cold]
    fn check_without_room(
        &self,
        cost: u64,
        now: Now,
        precise: impl Fn() -> Now + Copy,
        witness: &dyn Witness,
    ) -> Decision<'_> {
        let (limit, basis) = (self.limit(), self.stance().basis);
        match limit.on_full() {
            OnFull::Open => {
                let level = limit.meter().capacity();
                Decision::by_meter(limit, true, basis, level, cost, now)
            }
            OnFull::Closed => {
                self.lanes.count_denial();
                Decision { reason: Reason::Closed, ..Decision::by_meter(limit, false, basis, 0, cost, now) }
            }
            // Its slot is its own, so there is always room for it.
            OnFull::SharedBucket => {
                let witness = Elsewhere(witness);
                self.decide(self.shared_slot(), SHARED_KEY, cost, now, precise, witness)
            }
        }
    }

    /// Looks once more, at the precise time if it matters, where a look at the coarse time found the level too low, or the
    /// bucket `full`: before refusing, and before putting the lid on a full bucket.
    #[allow(clippy::too_many_arguments, reason = "the arguments of one decision, handed on")]
    #[inline(never)]
    fn look_again(
        &self,
        slot: u32,
        key: Key,
        cost: u64,
        coarse: Now,
        full: bool,
        precise: impl Fn() -> Now + Copy,
        witness: impl Witness + Copy,
    ) -> Decision<'_> {
        let basis = self.stance().basis;
        let Some(cell) = self.slab.get(slot) else {
            return self.decide_at_length(slot, key, cost, coarse, precise, witness);
        };
        let quota = cell.quota();
        let limit = self.limit_at(quota);
        let (meter, still) = (limit.meter(), || self.has_still(cell, quota));
        let holds = || cell.holds(key) && cell.quota() == quota;
        // A window is full from its beginning on; there is no other time to put its lid on. But a refusal says when to try
        // again, to the millisecond.
        let mut exact = !(full && meter.needs_wall());
        let mut now = if exact { precise() } else { coarse };
        loop {
            let (earned, drawn) = (meter.earned(self.own_time(key, now)), self.drawn(cell, now));
            match cell.level.try_to_spend(meter, earned, drawn, 0, cost, holds) {
                Outcome::Allowed { level, spent } => {
                    self.note_spent(slot, cell, spent, now);
                    witness.spent(slot, key, spent);
                    let waits = self.waits(meter, key, level, cost, now);
                    return Decision { waits, ..Decision::by_meter(limit, true, basis, level, cost, now) };
                }
                Outcome::Full => cell.level.put_lid_on(meter, earned, drawn, still),
                Outcome::Denied { .. } if !exact => (now, exact) = (precise(), true),
                Outcome::Denied { level } if cell.level.mend(meter, earned, drawn, level, still) => {}
                Outcome::Denied { level } => {
                    self.count_denied(slot, cell, cost, now);
                    let waits = self.waits(meter, key, level, cost, now);
                    if limit.punishes() {
                        return self.punish(slot, cell, key, cost, level, waits, now);
                    }
                    return Decision { waits, ..Decision::by_meter(limit, false, basis, level, cost, now) };
                }
                Outcome::Contended => {}
                Outcome::Gone => return self.decide_at_length(slot, key, cost, coarse, precise, witness),
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the arguments of one decision, handed on")]
    #[cold]
    fn decide_regardless(
        &self,
        slot: u32,
        cell: &Cell,
        key: Key,
        cost: u64,
        now: Now,
        stance: Stance,
        witness: &dyn Witness,
    ) -> Option<Decision<'_>> {
        let Stance { basis, verdict } = stance;
        let allowed = verdict == Verdict::Open;
        if allowed {
            let spent = cell.level.spend_anyway(cost, || cell.holds(key))?;
            self.note_spent(slot, cell, spent, now);
            witness.spent(slot, key, spent);
        } else if cell.holds(key) {
            self.count_denied(slot, cell, cost, now);
        } else {
            return None;
        }
        let (level, waits) = self.look_at(slot, cell, cost, now);
        let reason = if allowed { Reason::Level } else { Reason::Closed };
        Some(Decision { limit: self.limit_of(cell), allowed, reason, basis, level, cost, now, waits })
    }

    fn count_denied(&self, slot: u32, cell: &Cell, cost: u64, now: Now) {
        self.lanes.count_denial();
        if self.marks.is_heard() {
            cell.denied.fetch_add(u32::try_from(cost).unwrap_or(u32::MAX), Ordering::Relaxed);
            // Demand that is refused must be heard of too, or a node that starves could never claim its part.
            self.note_changed(slot, cell, now);
        }
    }

    /// Tells the gossip if the key's count has reached `flush_at`.
    #[inline]
    fn note_spent(&self, slot: u32, cell: &Cell, spent: u64, now: Now) {
        if spent >= cell.flush_at.load(Ordering::Relaxed) {
            self.note(slot, cell, spent, now);
        }
    }

    /// Tells the gossip of a key whose count has reached `flush_at`.
    #[cold]
    fn note(&self, slot: u32, cell: &Cell, spent: u64, now: Now) {
        let mut at = cell.flush_at.load(Ordering::Relaxed);
        if at == CLEAN {
            at = self.note_clean(slot, cell, now);
        }
        if at != SILENT
            && spent >= at
            && cell.flush_at.compare_exchange(at, SILENT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.marks.note_urgent(slot);
        }
    }

    /// Notes the first change since a key was published; returns the count at which it becomes urgent.
    fn note_clean(&self, slot: u32, cell: &Cell, now: Now) -> u64 {
        let threshold = self.marks.threshold.load(Ordering::Relaxed);
        let urgent_at = (cell.level.spent() & !DEAD).saturating_add(threshold.saturating_sub(1)).max(1);
        match cell.flush_at.compare_exchange(CLEAN, urgent_at, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                cell.set_changed(now.mono);
                self.marks.note_changed(slot);
                urgent_at
            }
            Err(at) => at,
        }
    }

    /// What the level of `key` is at the precise time `now`, without spending.
    pub(crate) fn peek(&self, key: Key, cost: u64, now: Now) -> Decision<'_> {
        if self.rules.is_any()
            && let Some(decision) = self.peek_rule(key, cost, now)
        {
            return decision;
        }
        let (limit, level, waits) = match self.find(key).and_then(|slot| Some((slot, self.slab.get(slot)?))) {
            Some((slot, cell)) => {
                if self.is_outdated(cell) {
                    self.renew_terms(slot, now);
                }
                self.look_by_quota(slot, cell, cost, now)
            }
            None => {
                let limit = self.limit_at(self.quota_of(key));
                let level = self.initial_level(limit.meter());
                (limit, level, self.waits(limit.meter(), key, level, cost, now))
            }
        };
        let stance = self.stance();
        let allowed = match stance.verdict {
            Verdict::Level | Verdict::Careful => level >= limit.meter().need(cost),
            Verdict::Open => true,
            Verdict::Closed => false,
        };
        let reason = if stance.verdict == Verdict::Closed { Reason::Closed } else { Reason::Level };
        Decision { limit, allowed, reason, basis: stance.basis, level, cost, now, waits }
    }

    /// Notes that something of the key has changed that peers should hear of with the next heartbeat.
    fn note_changed(&self, slot: u32, cell: &Cell, now: Now) {
        if cell.flush_at.load(Ordering::Relaxed) == CLEAN {
            self.note_clean(slot, cell, now);
        }
    }

    /// Units that this node has ever spent in the slot that holds `key`.
    #[cfg(feature = "sim")]
    pub(crate) fn spent_on(&self, key: Key) -> Option<u64> {
        self.find(key).and_then(|slot| self.slab.get(slot)).map(|cell| cell.level.spent() & !DEAD)
    }

    /// A cell's level, between the deepest debt and the capacity.
    pub(crate) fn level_of(&self, cell: &Cell, now: Now) -> i64 {
        let meter = self.meter_of(cell);
        cell.level.read(meter, self.earned(cell, now), self.drawn(cell, now)).min(meter.capacity())
    }

    /// What peers are taken to have spent of which this node has not heard.
    #[inline]
    pub(crate) fn drawn(&self, cell: &Cell, now: Now) -> i64 {
        if cell.forecast() != 0 || !self.drain.is_unset() { self.drawn_by_flows(cell, now) } else { 0 }
    }

    #[cold]
    fn drawn_by_flows(&self, cell: &Cell, now: Now) -> i64 {
        let expected = match (cell.forecast(), self.forecasts.get(usize::from(cell.forecast()))) {
            (1.., Some(flow)) => flow.load().at(now.mono),
            _ => 0,
        };
        expected.saturating_add(self.drained(cell, now))
    }

    /// What of that nodes are taken to have spent that cannot be heard.
    pub(crate) fn drained(&self, cell: &Cell, now: Now) -> i64 {
        let drained = self.drain.load().at(now.mono);
        match self.ratio(cell) {
            1.0 => drained,
            ratio => (drained as f64 * ratio) as i64,
        }
    }

    #[inline]
    fn stance(&self) -> Stance {
        Stance::decode(self.stance.load(Ordering::Relaxed))
    }

    /// Tells the table how the node stands to its fleet.
    pub(crate) fn set_stance(&self, mut stance: Stance) {
        let careful = self.histories.is_some() || self.stagger_nanos != 0 || self.current() != FIRST;
        if stance.verdict == Verdict::Level && careful {
            stance.verdict = Verdict::Careful;
        }
        self.change_stance(BasisWord::BITS | Stance::VERDICT, stance.encode());
    }

    /// Sets what part of the capacity a new key starts with, from 0 to 1.
    pub(crate) fn set_initial(&self, part: f64) {
        self.initial.store((part.clamp(0.0, 1.0) * f64::from(MILLION)) as u32, Ordering::Relaxed);
    }

    /// Where the level of a new key starts that has a quota with this meter.
    pub(crate) fn initial_level(&self, meter: &Meter) -> i64 {
        match self.initial.load(Ordering::Relaxed) {
            MILLION => meter.capacity(),
            part => (i128::from(meter.capacity()) * i128::from(part) / i128::from(MILLION)) as i64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{limit::Quota, time::Timestamp};

    fn at(micros: u64) -> Now {
        Now { mono: Timestamp::from_nanos(1_000_000_000_000 + micros * 1_000), ..Now::default() }
    }

    fn table(burst: u64) -> Table {
        Table::new(
            Limit::token_bucket("a", Quota::per_second(1_000)).burst(burst).max_keys(10).build().unwrap(),
        )
    }

    /// How many of a hundred checks pass while the coarse clock and the precise one show these times.
    fn admitted(table: &Table, coarse: Now, precise: Now) -> usize {
        let key = Key::from_digest(7);
        (0..100).filter(|_| table.check(key, 1, coarse, || precise).is_allowed()).count()
    }

    #[test]
    fn a_stale_clock_admits_no_more_than_the_burst_at_once() {
        let table = table(10);
        // First for a key that is taken in, then for a bucket that was full long since.
        assert_eq!(admitted(&table, at(0), at(3_900)), 10);
        assert_eq!(admitted(&table, at(100_000), at(103_900)), 10);
        assert_eq!(admitted(&table, at(104_000), at(104_900)), 1);
    }

    #[test]
    fn a_stale_clock_refuses_nothing_that_has_come_back() {
        let table = table(10);
        assert_eq!(admitted(&table, at(0), at(0)), 10);
        assert_eq!(admitted(&table, at(0), at(3_900)), 3);
        assert_eq!(admitted(&table, at(0), at(4_000)), 1);
    }

    #[test]
    fn a_key_keeps_its_cell_for_a_while_where_there_is_room() {
        let table = table(10);
        let take_in = |digest: u128, now: Now| {
            let _ = table.check(Key::from_digest(digest), 1, now, || now);
        };
        take_in(1, at(0));
        take_in(2, at(1_000_000));
        take_in(3, at(2_000_000));
        assert_eq!(table.live_keys(), 3);
        take_in(4, at(0).after(Duration::from_secs(60)));
        take_in(5, at(0).after(Duration::from_secs(60)));
        assert_eq!(table.live_keys(), 2);
    }
}
