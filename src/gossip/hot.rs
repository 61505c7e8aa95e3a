//! Keys that are spent on so fast that news of them is old when it comes: what the peers are expected to be spending.
//!
//! For such a key each node states, with its share, its *demand*: how many units per second it is asked for, refusals
//! included, as an exponentially weighted average. Everyone can then work out what everyone else spends meanwhile: the
//! demand itself while there are units left, and afterwards the demand's part of the quota,
//! `demand × min(1, rate ÷ Σ demand)`. The level is debited continuously by what is expected, and when a real count
//! comes the difference is put right:
//!
//! ```text
//! correction = real − (expected so far − expected since the count was made)
//! ```
//!
//! A node follows the same expectation of itself, and speaks up before its heartbeat when what it really spent parts
//! from it by the threshold θ. So the message rate falls to the heartbeat's where demand is steady, and rises where it
//! changes. (A remote count extrapolated in the way of dead reckoning, as in IEEE 1278.1.)

use std::{collections::BTreeMap, time::Duration};

use super::{DIRECT_NODES, message::Statement};
use crate::{
    algorithm::Meter,
    ledger::{ActorIndex, Ledger},
    limit::OnPartition,
    table::{
        MAX_FORECASTS, Table,
        flow::{Flow, Rate},
        slab::Cell,
    },
    time::{Now, Timestamp, saturating_nanos},
};

/// The time constant of the demand's average.
const DEMAND_TAU: Duration = Duration::from_millis(200);
/// Shorter samples are put together, or single requests would look like bursts.
const MIN_SAMPLE: Duration = Duration::from_millis(2);
/// A key is worth expecting something of when it is asked for so many units in a heartbeat.
const WORTHWHILE: f64 = 2.0;
/// An expectation that nobody has looked at for so long ends: the gossip has stalled.
const HORIZON: Duration = Duration::from_millis(500);
/// An actor that has not been heard of the key for so many heartbeats is expected to spend nothing more, and what was
/// debited for it since is given back: it is more likely dead than cut off, and if it lives its next count puts that right.
/// Were it to wait for the peer to be declared unreachable, the fleet would leave a dead node's part unspent until then.
const PATIENCE_HEARTBEATS: f64 = 3.5;
/// Which part of the way to the mean of all views a view moves in a heartbeat, where everyone talks to everyone and in larger
/// fleets, whose views part further; and for how many heartbeats a view counts.
const DRAWN_TOGETHER_DIRECTLY: f64 = 0.25;
const DRAWN_TOGETHER: f64 = 0.5;
const FRESH_HEARTBEATS: u32 = 3;
/// How long a key stays hot after its demand fell.
const COOLING: Duration = Duration::from_millis(600);

/// What is expected of one peer's actor.
#[derive(Clone, Copy, Debug)]
struct Expected {
    actor: ActorIndex,
    /// The version of its last statement.
    version: u64,
    /// As stated, in units per second.
    demand: f64,
    /// The level that it saw then, in units.
    level: f64,
    /// When its last statement came.
    heard: Timestamp,
    /// Debited for it already, and not yet put right by a count.
    debited: i64,
    rate: Rate,
    later_rate: Rate,
}

/// What this node has last said of a key.
#[derive(Clone, Copy, Debug)]
struct Stated {
    spent: u64,
    demand: f64,
    level: f64,
    /// What peers expect since, in the meter's fixed point.
    flow: Flow,
}

/// Who says that a key is hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heat {
    /// It is asked for here.
    Here,
    /// A peer says so.
    There,
}

/// Forecasts that go to keys only because peers say that they are hot. The others are kept for those that are asked for
/// here, or one peer could take them all by what it claims.
const MAX_TOLD: usize = MAX_FORECASTS / 2;

/// A key for which expectations are kept.
#[derive(Debug)]
struct HotKey {
    forecast: u16,
    heat: Heat,
    sampled: Timestamp,
    spent: u64,
    denied: u32,
    /// Sum and weight of the average; their quotient is not biased towards the zero it started from.
    sum: f64,
    weight: f64,
    stated: Option<Stated>,
    peers: Vec<Expected>,
    /// Up to when expectations have been debited.
    folded: Timestamp,
    bend: Timestamp,
    /// Since when nothing is asked for here or by peers.
    cool_since: Option<Timestamp>,
}

/// What a look at a hot key found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Peers' expectation holds.
    Holds,
    /// What was spent has parted from it by the threshold.
    Parted,
    /// The key is hot no more.
    Cooled,
}

/// The hot keys of one limit.
pub(super) struct HotKeys {
    keys: BTreeMap<u32, HotKey>,
    free: Vec<u16>,
    /// Keys that are hot only because peers say so.
    told: usize,
    supply: Supply,
    /// The least demand that is worth expecting something of, in units per second; infinite for slow limits.
    least: f64,
    threshold: f64,
    patience: Duration,
    /// How long a stated level counts.
    fresh: Duration,
    drawn_together: f64,
}

/// What units come from.
#[derive(Clone, Copy, Debug)]
struct Supply {
    /// The quota in units per second.
    rate: f64,
    /// Whether units come back continuously, or at the boundaries of windows.
    continuous: bool,
    /// How near to zero a level is as good as none; see [`remnant`].
    remnant: f64,
}

impl HotKeys {
    pub(super) fn new(table: &Table, heartbeat: Duration, threshold: f64, nodes: usize) -> Self {
        let limit = table.limit();
        let least = WORTHWHILE / heartbeat.as_secs_f64();
        let rate = limit.quota().units_per_second();
        Self {
            keys: BTreeMap::new(),
            told: 0,
            free: (1..=MAX_FORECASTS as u16).rev().collect(),
            supply: Supply { rate, continuous: limit.meter().is_continuous(), remnant: remnant(nodes) },
            // Where units do not come back with time, there is nothing to expect them against; where a bucket holds one unit, what
            // is expected of peers would keep it from ever being full.
            least: if rate >= least && !limit.meter().is_stock() && limit.capacity() > 1 {
                least
            } else {
                f64::INFINITY
            },
            threshold,
            fresh: heartbeat * FRESH_HEARTBEATS,
            drawn_together: if nodes <= DIRECT_NODES { DRAWN_TOGETHER_DIRECTLY } else { DRAWN_TOGETHER },
            // Where something is assumed of nodes that cannot be heard, expectations last until then.
            patience: match limit.on_partition() {
                OnPartition::LastDemand | OnPartition::Share => Duration::MAX,
                _ => heartbeat.mul_f64(PATIENCE_HEARTBEATS),
            },
        }
    }

    /// What the units of a key come from.
    fn supply_of(&self, table: &Table, slot: u32) -> Supply {
        match table.cell(slot) {
            Some(cell) if table.has_other_quota(cell) => {
                Supply { rate: table.limit_of(cell).quota().units_per_second(), ..self.supply }
            }
            _ => self.supply,
        }
    }

    pub(super) fn contains(&self, slot: u32) -> bool {
        self.keys.contains_key(&slot)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.keys.keys().copied()
    }

    /// Starts keeping expectations of a key, unless the limit is too slow for them or there are too many already.
    pub(super) fn heat(&mut self, table: &Table, slot: u32, heat: Heat, now: Now) -> bool {
        if let Some(key) = self.keys.get_mut(&slot) {
            if heat == Heat::Here && key.heat == Heat::There {
                key.heat = heat;
                self.told -= 1;
            }
            return true;
        }
        if heat == Heat::There && self.told >= MAX_TOLD {
            return false;
        }
        let (true, Some(cell)) = (self.least.is_finite(), table.cell(slot)) else { return false };
        let Some(forecast) = self.free.pop() else { return false };
        self.told += usize::from(heat == Heat::There);
        let key = HotKey {
            forecast,
            heat,
            sampled: now.mono,
            spent: cell.level.spent(),
            denied: cell.denied.load(std::sync::atomic::Ordering::Relaxed),
            sum: 0.0,
            weight: 0.0,
            stated: None,
            peers: Vec::new(),
            folded: now.mono,
            bend: now.mono,
            cool_since: None,
        };
        if let Some(flow) = table.forecasts.get(usize::from(forecast)) {
            flow.store(Flow::default());
        }
        cell.set_forecast(forecast);
        self.keys.insert(slot, key);
        true
    }

    /// Stops keeping expectations of a key; what was debited for them stays debited.
    pub(super) fn cool(&mut self, table: &Table, ledger: &mut Ledger, slot: u32, now: Now) {
        let Some(mut key) = self.keys.remove(&slot) else { return };
        self.told -= usize::from(key.heat == Heat::There);
        if table.cell(slot).is_some_and(|cell| key.is_of(cell)) {
            key.fold(table, ledger, slot, now);
        }
        if let Some(flow) = table.forecasts.get(usize::from(key.forecast)) {
            flow.store(Flow::default());
        }
        if let Some(cell) = table.cell(slot) {
            cell.set_forecast(0);
        }
        self.free.push(key.forecast);
    }

    /// Brings the expectations up to now, and says whether peers need to hear of the key. With `sample`, also measures the
    /// demand; it must not be set where it was a request that led to the look: just after a request every average is
    /// too high.
    pub(super) fn look(
        &mut self,
        table: &Table,
        ledger: &mut Ledger,
        slot: u32,
        sample: bool,
        now: Now,
    ) -> Look {
        let (least, threshold, patience) = (self.least, self.threshold, self.patience);
        let supply = self.supply_of(table, slot);
        let (Some(key), Some(cell)) = (self.keys.get_mut(&slot), table.cell(slot)) else {
            return Look::Cooled;
        };
        if !key.is_of(cell) {
            // It has been given another quota, and what was expected by the former one says nothing any more.
            return Look::Cooled;
        }
        if sample {
            key.sample(cell, now.mono);
        }
        key.fold(table, ledger, slot, now);
        key.give_up_on_silent(table, ledger, slot, patience, now);
        key.expect(table, cell, supply, now);
        let wanted = key.demand() >= least / 2.0 || key.peers.iter().any(|peer| peer.demand >= least / 2.0);
        let since = if wanted { None } else { Some(key.cool_since.unwrap_or(now.mono)) };
        key.cool_since = since;
        if since.is_some_and(|since| now.mono.since(since) > COOLING) {
            return Look::Cooled;
        }
        let parted = key.parted(table, cell, now.mono).abs() >= threshold;
        if parted { Look::Parted } else { Look::Holds }
    }

    /// How many more units may be spent before peers need to hear of the key.
    pub(super) fn allowance(&self, table: &Table, slot: u32, now: Now) -> u64 {
        let (Some(key), Some(cell)) = (self.keys.get(&slot), table.cell(slot)) else { return 1 };
        (self.threshold - key.parted(table, cell, now.mono)).max(1.0) as u64
    }

    /// Whether a heartbeat has to state the key again: somebody was told of demand, and would go on expecting it.
    pub(super) fn is_stated(&self, slot: u32) -> bool {
        self.keys
            .get(&slot)
            .is_some_and(|key| key.stated.is_some_and(|stated| stated.demand > 0.0) || key.demand() > 0.0)
    }

    /// Notes what is stated with a share that has `spent` units in all, and what peers then expect.
    pub(super) fn state(&mut self, table: &Table, slot: u32, spent: u64, now: Now) {
        let (supply, least) = (self.supply_of(table, slot), self.least);
        let (Some(key), Some(cell)) = (self.keys.get_mut(&slot), table.cell(slot)) else { return };
        let meter = table.meter_of(cell);
        let demand = key.demand();
        let demand = if demand < least / 8.0 { 0.0 } else { demand };
        let level = table.level_of(cell, now);
        let others: f64 = key.peers.iter().map(|peer| peer.demand).sum();
        let pace = Pace::new(meter, supply, demand + others, level, now.mono);
        let (first, later) = pace.of(meter, demand);
        let flow = Flow {
            base: 0,
            from: now.mono,
            rate: first,
            bend: pace.bend,
            later_rate: later,
            end: Timestamp::from_nanos(u64::MAX),
        };
        let level = meter.as_units(level);
        key.stated = Some(Stated { spent, demand, level, flow });
    }

    /// What this node has last stated.
    pub(super) fn own_statement(&self, slot: u32) -> Option<Statement> {
        let stated = self.keys.get(&slot)?.stated?;
        Some(Statement { demand: stated.demand as f32, level: stated.level as f32 })
    }

    /// What this node knows an actor to have stated, to pass on with its share.
    pub(super) fn statement_of(&self, slot: u32, actor: ActorIndex) -> Option<Statement> {
        let key = self.keys.get(&slot)?;
        let peer = key.peers.iter().find(|peer| peer.actor == actor)?;
        Some(Statement { demand: peer.demand as f32, level: peer.level as f32 })
    }

    /// Moves this node's view of the level a part of the way to the mean of all nodes' views.
    ///
    /// Under overload every view moves by what comes in less what is really spent, so a difference between two views
    /// would last: the node with the lower one would starve, however exact the sum is. All views are of the same
    /// level, and what each node moves adds up to nothing. Views that still have units to spend are left alone, for
    /// there the statements are older than the spending.
    pub(super) fn draw_together(&mut self, table: &Table, ledger: &mut Ledger, slot: u32, now: Now) {
        let (Some(key), Some(cell)) = (self.keys.get(&slot), table.cell(slot)) else { return };
        if !key.is_of(cell) {
            return;
        }
        let (meter, rate) = (table.meter_of(cell), self.supply_of(table, slot).rate);
        let level = meter.as_units(table.level_of(cell, now));
        let fresh = |peer: &&Expected| peer.demand > 0.0 && now.mono.since(peer.heard) <= self.fresh;
        let (mut sum, mut views, mut demands) = (level, 1.0, key.demand());
        for peer in key.peers.iter().filter(fresh) {
            demands += peer.demand;
            if peer.level <= self.supply.remnant {
                sum += peer.level;
                views += 1.0;
            }
        }
        if !self.supply.continuous || level > self.supply.remnant || demands <= rate {
            return;
        }
        let step = meter.amount_of(self.drawn_together * (sum / views - level));
        ledger.settle(table, slot, -step, 0, -meter.max_debt(), now);
    }

    /// Whether a statement is newer than the last one of its actor.
    pub(super) fn is_newer(&self, slot: u32, actor: ActorIndex, version: u64) -> bool {
        let known = self.keys.get(&slot).and_then(|key| key.peers.iter().find(|peer| peer.actor == actor));
        known.is_none_or(|peer| version > peer.version)
    }

    /// Takes in an actor's count, which grew by `amount` and was made `age` ago, and puts right what was expected.
    /// Returns the correction: what is still to be debited, or given back where it is negative.
    #[allow(clippy::too_many_arguments, reason = "one piece of news")]
    pub(super) fn news(
        &mut self,
        table: &Table,
        ledger: &mut Ledger,
        slot: u32,
        actor: ActorIndex,
        statement: Option<(Statement, u64)>,
        amount: i64,
        age: Duration,
        now: Now,
    ) -> i64 {
        let (Some(key), Some(cell)) = (self.keys.get_mut(&slot), table.cell(slot)) else { return amount };
        if !key.is_of(cell) {
            return amount;
        }
        key.fold(table, ledger, slot, now);
        let full = now.mono < key.bend;
        let Some(peer) = key.peer(actor) else { return amount };
        let under_way = if full { peer.rate } else { peer.later_rate };
        let since = under_way.over(saturating_nanos(age)).min(peer.debited);
        let correction = amount.saturating_sub(peer.debited - since);
        peer.debited = since;
        if let Some((Statement { demand, level }, version)) = statement {
            // What is no number is nothing.
            let number = |said: f32, least: f64| {
                if said.is_nan() { 0.0 } else { f64::from(said).clamp(least, MAX_DEMAND) }
            };
            peer.demand = number(demand, 0.0);
            // No view is lower than the deepest debt, so none can draw others lower.
            let meter = table.meter_of(cell);
            peer.level = number(level, -meter.as_units(meter.max_debt()));
            peer.version = version;
            peer.heard = now.mono;
        }
        correction
    }

    /// Works the expectations out anew, after news has been taken in.
    pub(super) fn expect(&mut self, table: &Table, slot: u32, now: Now) {
        let supply = self.supply_of(table, slot);
        if let (Some(key), Some(cell)) = (self.keys.get_mut(&slot), table.cell(slot))
            && key.is_of(cell)
        {
            key.expect(table, cell, supply, now);
        }
    }

    /// Nothing more is expected of an actor that has stopped or cannot be heard; what was debited waits for its count.
    pub(super) fn silence(&mut self, table: &Table, ledger: &mut Ledger, actor: ActorIndex, now: Now) {
        let slots: Vec<u32> = self.slots().collect();
        for slot in slots {
            if let (Some(key), Some(cell)) = (self.keys.get_mut(&slot), table.cell(slot))
                && key.is_of(cell)
            {
                key.fold(table, ledger, slot, now);
                key.peers.iter_mut().filter(|peer| peer.actor == actor).for_each(|peer| peer.demand = 0.0);
            }
            self.expect(table, slot, now);
        }
    }

    /// Forgets an actor whose index goes to another.
    pub(super) fn forget_actor(&mut self, actor: ActorIndex) {
        self.keys.values_mut().for_each(|key| key.peers.retain(|peer| peer.actor != actor));
    }
}

/// No node is believed to be asked for more, in units per second.
const MAX_DEMAND: f64 = 1e12;
/// Actors that one key has expectations of.
const MAX_EXPECTED: usize = 2_048;

/// How spending goes on from now, if everyone sees the level that this node sees: nothing while a debt is repaid, the
/// demands while there are units left, and the demands' parts of the quota after either.
struct Pace {
    bend: Timestamp,
    /// Which part of a demand is spent until the bend, and afterwards.
    part: f64,
    later_part: f64,
}

impl Pace {
    fn new(meter: &Meter, supply: Supply, demands: f64, level: i64, now: Timestamp) -> Self {
        let Supply { rate, continuous, remnant } = supply;
        let level = meter.as_units(level);
        // What lies between two units is nobody's to spend, nor owed.
        let level = level - level.clamp(-remnant, remnant);
        let later_part = match continuous {
            // A bucket that is empty gives as much as comes in; a window that is used up gives nothing until the next.
            true if demands > rate => rate / demands,
            true => 1.0,
            false => 0.0,
        };
        let outflow = if continuous { demands - rate } else { demands };
        let (seconds, part) = match level < 0.0 {
            true if continuous => (-level / rate, 0.0),
            true => (f64::INFINITY, 0.0),
            false if level == 0.0 => (0.0, 1.0),
            false if outflow > 0.0 => (level / outflow, 1.0),
            false => (f64::INFINITY, 1.0),
        };
        let lasts = Duration::try_from_secs_f64(seconds).unwrap_or(FOREVER).min(FOREVER);
        Self { bend: now.after(lasts), part, later_part }
    }

    fn of(&self, meter: &Meter, demand: f64) -> (Rate, Rate) {
        let per_second = |units: f64| Rate::per_second(meter.amount_of(units) as f64);
        (per_second(demand * self.part), per_second(demand * self.later_part))
    }
}

/// A level this near to zero is what a bucket that gives as much as comes in looks like, in units: of so many in a large
/// fleet, and of more in a small one, whose nodes spend more between two looks. Everyone acts on the same level: a wider
/// band lets it drift, and a narrower one makes a unit that is there by chance the whole fleet's to spend.
const REMNANT: f64 = 0.7;
const REMNANT_OF_NODES: f64 = 2.4;
const MOST_REMNANT: f64 = 1.5;

fn remnant(nodes: usize) -> f64 {
    (REMNANT + REMNANT_OF_NODES / nodes.max(1) as f64).min(MOST_REMNANT)
}

const FOREVER: Duration = Duration::from_secs(1 << 20);

impl HotKey {
    /// Whether what is expected of the key is drawn on this cell; not where its quota has changed since.
    fn is_of(&self, cell: &Cell) -> bool {
        cell.forecast() == self.forecast
    }

    fn demand(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }

    fn sample(&mut self, cell: &Cell, now: Timestamp) {
        let elapsed = now.since(self.sampled);
        if elapsed < MIN_SAMPLE {
            return;
        }
        let spent = cell.level.spent();
        let denied = cell.denied.load(std::sync::atomic::Ordering::Relaxed);
        let asked = spent.saturating_sub(self.spent) as f64 + f64::from(denied.wrapping_sub(self.denied));
        let gain = 1.0 - (-elapsed.as_secs_f64() / DEMAND_TAU.as_secs_f64()).exp();
        self.sum += gain * (asked / elapsed.as_secs_f64() - self.sum);
        self.weight += gain * (1.0 - self.weight);
        (self.sampled, self.spent, self.denied) = (now, spent, denied);
    }

    /// Debits what was expected since the last time.
    fn fold(&mut self, table: &Table, ledger: &mut Ledger, slot: u32, now: Now) {
        let (from, bend) = (self.folded.as_nanos(), self.bend.as_nanos());
        let until = now.mono.min(self.folded.after(HORIZON)).as_nanos();
        let before = until.min(bend).saturating_sub(from);
        let after = until.saturating_sub(bend.max(from));
        let amount = |peer: &Expected| peer.rate.over(before).saturating_add(peer.later_rate.over(after));
        let total = match until > from {
            true => self.peers.iter().map(amount).fold(0, i64::saturating_add),
            false => 0,
        };
        self.folded = now.mono.max(self.folded);
        if total == 0 {
            return;
        }
        let drain = table.cell(slot).map_or(0, |cell| table.drained(cell, now));
        let taken = ledger.draw(table, slot, total, drain, now);
        // A debt that is as deep as it may be takes no more; then the expectation was debited in part only.
        let part = taken as f64 / total as f64;
        for peer in &mut self.peers {
            let debited = amount(peer);
            peer.debited += if taken == total { debited } else { (debited as f64 * part) as i64 };
        }
        if let Some(flow) = table.forecasts.get(usize::from(self.forecast)) {
            let flow_now = flow.load();
            flow.store(Flow { from: now.mono, ..flow_now });
        }
    }

    /// Works out what peers will be spending, from a level that has just been brought up to now.
    fn expect(&mut self, table: &Table, cell: &Cell, supply: Supply, now: Now) {
        let others: f64 = self.peers.iter().map(|peer| peer.demand).sum();
        let meter = table.meter_of(cell);
        let pace = Pace::new(meter, supply, self.demand() + others, table.level_of(cell, now), now.mono);
        self.bend = pace.bend;
        for peer in &mut self.peers {
            (peer.rate, peer.later_rate) = pace.of(meter, peer.demand);
        }
        let (rate, later_rate) = pace.of(meter, others);
        if let Some(flow) = table.forecasts.get(usize::from(self.forecast)) {
            flow.store(Flow {
                base: 0,
                from: now.mono,
                rate,
                bend: pace.bend,
                later_rate,
                end: now.mono.after(HORIZON),
            });
        }
    }

    /// Takes back what was expected of actors that say nothing any more.
    fn give_up_on_silent(
        &mut self,
        table: &Table,
        ledger: &mut Ledger,
        slot: u32,
        patience: Duration,
        now: Now,
    ) {
        let mut unfounded = 0_i64;
        for peer in self.peers.iter_mut().filter(|peer| peer.demand > 0.0) {
            if now.mono.since(peer.heard) > patience {
                unfounded = unfounded.saturating_add(std::mem::take(&mut peer.debited));
                peer.demand = 0.0;
            }
        }
        if unfounded > 0 {
            ledger.settle(table, slot, -unfounded, 0, 0, now);
        }
    }

    /// By how many units more than peers expect this node has spent.
    fn parted(&self, table: &Table, cell: &Cell, now: Timestamp) -> f64 {
        let Some(stated) = self.stated else { return f64::INFINITY };
        let spent = cell.level.spent().saturating_sub(stated.spent) as f64;
        spent - table.meter_of(cell).as_units(stated.flow.at(now))
    }

    fn peer(&mut self, actor: ActorIndex) -> Option<&mut Expected> {
        let at = match self.peers.iter().position(|peer| peer.actor == actor) {
            Some(at) => at,
            None if self.peers.len() >= MAX_EXPECTED => return None,
            None => {
                let expected = Expected {
                    actor,
                    version: 0,
                    demand: 0.0,
                    level: 0.0,
                    heard: Timestamp::ZERO,
                    debited: 0,
                    rate: Rate::default(),
                    later_rate: Rate::default(),
                };
                self.peers.push(expected);
                self.peers.len() - 1
            }
        };
        self.peers.get_mut(at)
    }
}
