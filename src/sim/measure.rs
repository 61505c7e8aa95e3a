//! What a fleet admitted, held against one global limiter that sees every arrival at once.

use std::{collections::VecDeque, time::Duration};

use crate::limit::{Algorithm, Limit};

const SECOND: u64 = 1_000_000_000;
/// A minute is counted in steps of ten milliseconds.
const STEP: u64 = 10_000_000;
const STEPS_PER_MINUTE: u64 = 60 * SECOND / STEP;

/// One global limiter: exact, instant, and the same for all nodes.
#[derive(Clone, Debug)]
pub(super) struct Ideal {
    capacity: f64,
    /// Units a nanosecond, for a bucket.
    rate: f64,
    /// Length of a window in nanoseconds, for a window.
    window: Option<u64>,
    level: f64,
    at: u64,
}

impl Ideal {
    pub(super) fn new(limit: &Limit, at: u64) -> Self {
        let quota = limit.quota();
        let nanos = quota.period().as_nanos() as f64;
        let capacity = limit.capacity() as f64;
        let window =
            matches!(limit.algorithm(), Algorithm::FixedWindow).then(|| quota.period().as_nanos() as u64);
        Self { capacity, rate: quota.units() as f64 / nanos, window, level: capacity, at }
    }

    /// Brings the level up to `at`, wall time in nanoseconds for windows.
    pub(super) fn advance(&mut self, at: u64) {
        let earned = match self.window {
            None => self.rate * at.saturating_sub(self.at) as f64,
            Some(window) => self.capacity * ((at / window).saturating_sub(self.at / window)) as f64,
        };
        self.level = (self.level + earned).min(self.capacity);
        self.at = self.at.max(at);
    }

    /// What it would decide.
    pub(super) fn admit(&mut self, cost: f64) -> bool {
        // A millionth of a unit for the rounding of sums.
        let admitted = self.level + 1e-6 >= cost;
        if admitted {
            self.level -= cost;
        }
        admitted
    }

    /// Charges it with what the fleet admitted, whatever its level.
    fn charge(&mut self, cost: f64) {
        self.level -= cost;
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
    pub(super) fn new(limit: &Limit, start: u64, wall: u64, detailed: bool) -> Self {
        let ideal = Ideal::new(limit, if limit.meter().needs_wall() { wall } else { start });
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
        self.ideal = Ideal { level: self.charged.level.max(0.0), ..self.charged.clone() };
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
            self.false_denials += u64::from(self.charged.level >= units + 2.0);
            return;
        }
        self.admitted += cost;
        self.charged.charge(units);
        self.deepest = self.deepest.min(self.charged.level);
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
        self.charged.level
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
