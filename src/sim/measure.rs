//! What a fleet admitted, held against one global limiter that sees every arrival at once.

use std::{collections::VecDeque, time::Duration};

use crate::limit::{Algorithm, Limit};

const SECOND: u64 = 1_000_000_000;
/// A minute is counted in steps of ten milliseconds.
const STEP: u64 = 10_000_000;
const STEPS_PER_MINUTE: u64 = 60 * SECOND / STEP;

/// One global limiter: exact, instant, and the same for all nodes.
#[derive(Clone, Debug)]
pub(super) struct Ideal(Vec<IdealBand>);

/// One of its quotas.
#[derive(Clone, Debug)]
struct IdealBand {
    capacity: f64,
    regain: Regain,
    level: f64,
    at: u64,
}

/// How units come back to the ideal limiter.
#[derive(Clone, Debug)]
enum Regain {
    /// So many a nanosecond.
    Steadily(f64),
    /// All of them at each boundary of windows that are so many nanoseconds long.
    AtOnce(u64),
    /// Each so many nanoseconds after it was spent; when what was spent, oldest first.
    After(u64, VecDeque<(u64, f64)>),
    /// When they are given back.
    ByHand,
}

impl Ideal {
    pub(super) fn new(limit: &Limit, at: u64) -> Self {
        Self(std::iter::once(limit).chain(limit.further()).map(|limit| IdealBand::new(limit, at)).collect())
    }

    /// Brings the level up to `at`, wall time in nanoseconds for windows.
    pub(super) fn advance(&mut self, at: u64) {
        self.0.iter_mut().for_each(|band| band.advance(at));
    }

    /// What it would decide.
    pub(super) fn admit(&mut self, cost: f64) -> bool {
        // A millionth of a unit for the rounding of sums. A leaky bucket lets through what is more than it holds.
        let admitted = self.0.iter().all(|band| band.level + 1e-6 >= cost.min(band.capacity));
        if admitted {
            self.charge(cost);
        }
        admitted
    }

    /// Charges it with what the fleet admitted, whatever its level.
    fn charge(&mut self, cost: f64) {
        self.0.iter_mut().for_each(|band| band.charge(cost));
    }

    /// Gives back what was admitted.
    fn release(&mut self, cost: f64) {
        self.0.iter_mut().for_each(|band| band.release(cost));
    }

    /// The lowest level of all quotas.
    fn level(&self) -> f64 {
        self.0.iter().map(|band| band.level).fold(f64::INFINITY, f64::min)
    }

    /// The same without its debts.
    fn without_debts(mut self) -> Self {
        self.0.iter_mut().for_each(|band| band.level = band.level.max(0.0));
        self
    }
}

impl IdealBand {
    fn new(limit: &Limit, at: u64) -> Self {
        let quota = limit.quota();
        let nanos = u64::try_from(quota.period().as_nanos()).unwrap_or(u64::MAX);
        let capacity = limit.capacity() as f64;
        let regain = match limit.algorithm() {
            Algorithm::FixedWindow => Regain::AtOnce(nanos),
            Algorithm::SlidingWindow { .. } => Regain::After(nanos, VecDeque::new()),
            Algorithm::Concurrency => Regain::ByHand,
            _ => Regain::Steadily(quota.units() as f64 / nanos as f64),
        };
        Self { capacity, regain, level: capacity, at }
    }

    fn advance(&mut self, at: u64) {
        let earned = match &mut self.regain {
            Regain::Steadily(rate) => *rate * at.saturating_sub(self.at) as f64,
            Regain::AtOnce(window) => {
                self.capacity * ((at / *window).saturating_sub(self.at / *window)) as f64
            }
            Regain::After(period, spent) => {
                let mut back = 0.0;
                while let Some((_, cost)) = spent.front().filter(|(then, _)| at - then >= *period) {
                    back += cost;
                    spent.pop_front();
                }
                back
            }
            Regain::ByHand => 0.0,
        };
        self.level = (self.level + earned).min(self.capacity);
        self.at = self.at.max(at);
    }

    /// Charges it with what the fleet admitted, whatever its level.
    fn charge(&mut self, cost: f64) {
        self.level -= cost;
        if let Regain::After(_, spent) = &mut self.regain {
            spent.push_back((self.at, cost));
        }
    }

    /// Gives back what was admitted.
    fn release(&mut self, cost: f64) {
        let mut left = cost;
        if let Regain::After(_, spent) = &mut self.regain {
            while let Some((_, cost)) = spent.front_mut().filter(|_| left > 0.0) {
                let taken = left.min(*cost);
                *cost -= taken;
                left -= taken;
                if *cost <= 0.0 {
                    spent.pop_front();
                }
            }
        }
        self.level = (self.level + cost).min(self.capacity);
    }
}

/// The record of one key.
#[derive(Clone, Debug)]
pub struct Record {
    ideal: Ideal,
    charged: Ideal,
    asked: u64,
    admitted: u64,
    ideal_admitted: u64,
    false_denials: u64,
    deepest: f64,
    recent: Option<VecDeque<u64>>,
    worst_second: usize,
    quietest_second: usize,
    /// Units of the last minute, by step, and their sum; and the largest that it ever was.
    minute: VecDeque<(u64, u64)>,
    in_minute: u64,
    worst_minute: u64,
    measured_from: u64,
    /// Admitted in each second since the record began, by node.
    seconds: Vec<Vec<u64>>,
}

impl Record {
    pub(super) fn new(limit: &Limit, start: u64, level_at: u64, detailed: bool) -> Self {
        let ideal = Ideal::new(limit, level_at);
        Self {
            charged: ideal.clone(),
            ideal,
            asked: 0,
            admitted: 0,
            ideal_admitted: 0,
            false_denials: 0,
            deepest: f64::INFINITY,
            recent: detailed.then(VecDeque::new),
            worst_second: 0,
            quietest_second: usize::MAX,
            minute: VecDeque::new(),
            in_minute: 0,
            worst_minute: 0,
            measured_from: start,
            seconds: Vec::new(),
        }
    }

    /// Forgets what was counted, and counts from here on; the ideal limiters keep their levels.
    pub(super) fn restart(&mut self, at: u64) {
        (self.asked, self.admitted, self.ideal_admitted, self.false_denials) = (0, 0, 0, 0);
        (self.deepest, self.worst_second, self.quietest_second) = (f64::INFINITY, 0, usize::MAX);
        self.seconds.clear();
        self.measured_from = at;
        // The comparison starts from where the fleet is.
        self.ideal = self.charged.clone().without_debts();
    }

    pub(super) fn take(&mut self, node: usize, at: u64, level_at: u64, cost: u64, allowed: bool) {
        let units = cost as f64;
        self.ideal.advance(level_at);
        self.charged.advance(level_at);
        self.asked += cost;
        if self.ideal.admit(units) {
            self.ideal_admitted += cost;
        }
        if !allowed {
            // Two units of margin: the fleet and the ideal may disagree about one that is just coming in.
            self.false_denials += u64::from(self.charged.level() >= units + 2.0);
            return;
        }
        self.admitted += cost;
        self.charged.charge(units);
        self.deepest = self.deepest.min(self.charged.level());
        let second = (at.saturating_sub(self.measured_from) / SECOND) as usize;
        if self.seconds.len() <= second {
            self.seconds.resize_with(second + 1, Vec::new);
        }
        let nodes = &mut self.seconds[second];
        if nodes.len() <= node {
            nodes.resize(node + 1, 0);
        }
        nodes[node] += cost;
        self.slide(at);
        self.slide_minute(at, cost);
    }

    fn slide_minute(&mut self, at: u64, cost: u64) {
        let step = at / STEP;
        match self.minute.back_mut() {
            Some((last, units)) if *last == step => *units += cost,
            _ => self.minute.push_back((step, cost)),
        }
        self.in_minute += cost;
        while let Some((first, units)) = self.minute.front().copied()
            && step - first >= STEPS_PER_MINUTE
        {
            self.minute.pop_front();
            self.in_minute -= units;
        }
        self.worst_minute = self.worst_minute.max(self.in_minute);
    }

    /// Notes that so many units were given back.
    pub(super) fn give_back(&mut self, level_at: u64, cost: u64) {
        for ideal in [&mut self.ideal, &mut self.charged] {
            ideal.advance(level_at);
            ideal.release(cost as f64);
        }
    }

    fn slide(&mut self, at: u64) {
        let Some(recent) = &mut self.recent else { return };
        recent.push_back(at);
        while recent.front().is_some_and(|first| at - first >= SECOND) {
            recent.pop_front();
        }
        if at.saturating_sub(self.measured_from) > 2 * SECOND {
            self.worst_second = self.worst_second.max(recent.len());
            self.quietest_second = self.quietest_second.min(recent.len());
        }
    }

    /// Units asked for.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Units that the fleet admitted.
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Units that one global limiter would have admitted from the same arrivals.
    pub fn ideal_admitted(&self) -> u64 {
        self.ideal_admitted
    }

    /// How far below zero the ideal limiter would have gone, in units, if charged with what the fleet admitted.
    pub fn excess(&self) -> f64 {
        if self.deepest.is_finite() { (-self.deepest).max(0.0) } else { 0.0 }
    }

    /// The level of the ideal limiter charged with what the fleet admitted, as of the last request.
    pub fn level(&self) -> f64 {
        self.charged.level()
    }

    /// Refusals while the ideal limiter, charged with what the fleet admitted, had the units.
    pub fn false_denials(&self) -> u64 {
        self.false_denials
    }

    /// The most requests admitted in any interval of one second that began at least one second after the start.
    pub fn worst_second(&self) -> usize {
        self.worst_second
    }

    /// The most units admitted in any minute since the first request, to ten milliseconds.
    pub fn worst_minute(&self) -> u64 {
        self.worst_minute
    }

    /// The fewest requests admitted in any interval of one second that ended with an admission and began at least one second after the start.
    pub fn quietest_second(&self) -> usize {
        self.quietest_second
    }

    /// Units that each node admitted in each whole second since the start.
    pub fn seconds(&self) -> &[Vec<u64>] {
        &self.seconds
    }

    /// Units that the fleet admitted in the given second since the start.
    pub fn in_second(&self, second: usize) -> u64 {
        self.seconds.get(second).map_or(0, |nodes| nodes.iter().sum())
    }
}

/// What the nodes sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages, datagrams and streams alike.
    pub messages: u64,
    /// Their bytes, without what QUIC adds.
    pub bytes: u64,
}

/// How long news took from the node that published it to another that had it and all before it.
#[derive(Clone, Debug, Default)]
pub struct Spread(pub(super) Vec<u32>);

impl Spread {
    /// The time within which this part (0 to 1) of the news arrived; zero where there was none.
    pub fn quantile(&mut self, part: f64) -> Duration {
        if self.0.is_empty() {
            return Duration::ZERO;
        }
        self.0.sort_unstable();
        let at = ((self.0.len() - 1) as f64 * part.clamp(0.0, 1.0)).round() as usize;
        Duration::from_micros(self.0[at].into())
    }
}
