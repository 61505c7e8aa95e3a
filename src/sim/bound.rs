//! By how much a fleet may exceed its limit at most.
//!
//! A node admits a request when the level that it sees allows it. That level lacks what the other nodes have spent and it
//! has not heard of, and this is all by which the fleet can be over one global limiter. A node speaks up as soon as what
//! it spent parts from what its peers know of, or expect, by the threshold θ, but at most once per minimal interval; what
//! it says then takes a delay for each hop. So the excess is at most
//!
//! ```text
//! Σ over peers of  hops × (θ + their arrival rate × (interval + delay))
//! ```
//!
//! and what may come on top of it at once: see [`Scenario::bound`]. `docs/accuracy.md` has the proof.

use std::time::Duration;

use super::{
    network::RESEND,
    scenario::{Action, Scenario},
};
use crate::{
    gossip::{DIRECT_NODES, pace},
    limit::{Algorithm, OnPartition},
};

/// How long a gossip task that was woken takes to run, and the coarse clock's step, by which arrivals may be seen late.
const WAKING: Duration = Duration::from_micros(4_050);
/// One-way delays until a node that has started has its peers' counts, and they its own: three of a handshake, the hello, a
/// sync's question and its answer.
const DELAYS_TO_JOIN: u32 = 6;
/// Over how long, and by which part of the quota, a bucket may admit more than its quota and burst.
pub(super) const LONG_RUN: Duration = Duration::from_secs(60);
pub(super) const LONG_RUN_PART: f64 = 0.001;
/// So many datagrams in a row are not lost, or the run was one in a million.
const ONE_IN_A_MILLION: f64 = 1e-6;
/// Arrivals exceed their mean by more standard deviations than this once in 10⁹ intervals.
const DEVIATIONS: f64 = 6.0;

impl Scenario {
    /// Units by which the fleet may exceed one global limiter at most, in any run; `None` where nothing can be promised: when
    /// the network is cut, or the limit admits everything while a peer is unreachable.
    ///
    /// Beside the formula of the docs it counts, once for each, what no message can announce in time: requests that come
    /// to several nodes in the same instant; for each node that is killed or starts, what was under way from it or to it; and
    /// for each that starts, its part of the quota until it has been told what was spent. One that leaves has said all.
    /// A stalled gossip is a longer delay, a lost message another interval. Window's clocks that are off by σ misplace what is
    /// offered in σ, at most a quota, from the window before and from the one after; from a whole window on nothing is promised.
    pub fn bound(&self) -> Option<f64> {
        let cut = |action: &Action| matches!(action, Action::Partition(..) | Action::Cut(..));
        let limit = self.limits.first()?;
        if limit.on_partition() == OnPartition::Open || self.steps.iter().any(|(_, action)| cut(action)) {
            return None;
        }
        let capacity = limit.capacity() as f64;
        let misplaced = self.misplaced(capacity)?;
        let changes = |action: &&Action| matches!(action, Action::Crash(_) | Action::Restart(_));
        let changes = self.steps.iter().map(|(_, action)| action).filter(changes).count();
        let (peers, one) = self.under_way();
        Some(peers + one * changes as f64 + self.joining() + self.instants(capacity) + misplaced)
    }

    /// What may be admitted over the whole of a run of so many seconds, of each key: over 60 seconds and more, a thousandth more
    /// than the quota, beside the burst. What comes to several nodes in one instant is on top of it.
    pub(super) fn long_run(&self, seconds: f64) -> f64 {
        let Some(limit) = self.limits.first() else { return f64::INFINITY };
        let (rate, capacity) = (limit.quota().units_per_second(), limit.capacity() as f64);
        // A shorter run may be the end of a minute in which all of the quota was used before it.
        let more = LONG_RUN_PART * rate * seconds.max(LONG_RUN.as_secs_f64());
        // A window gives a whole quota at its beginning, and one more at its end.
        let quota = match limit.algorithm() {
            Algorithm::FixedWindow => capacity * (seconds / limit.quota().period().as_secs_f64()).ceil(),
            _ => rate * seconds,
        };
        quota + capacity + more + self.instants(capacity)
    }

    /// What nodes that start admit before anyone can tell them, or hear of them: a node that starts dials all others at once.
    fn joining(&self) -> f64 {
        let Some(limit) = self.limits.first() else { return 0.0 };
        let network = &self.network;
        let resends = (repeats(network.loss) - 1.0) * (3 * network.max_delay + RESEND).as_secs_f64();
        let alone = (DELAYS_TO_JOIN * network.max_delay + WAKING).as_secs_f64() + resends;
        let starts = self.steps.iter().filter(|(_, action)| matches!(action, Action::Restart(_))).count();
        starts as f64 * arrivals(limit.quota().units_per_second() / self.nodes as f64 * alone)
    }

    /// What all peers, and what one node, can have spent that others have not heard of.
    fn under_way(&self) -> (f64, f64) {
        let Some(limit) = self.limits.first() else { return (0.0, 0.0) };
        let peers = self.nodes.saturating_sub(1) as f64;
        let hops = hops(self.nodes);
        let repeats = repeats(self.network.loss);
        let delay = self.network.max_delay + self.held() + WAKING;
        let stalled = self.steps.iter().filter_map(|(_, action)| match action {
            Action::Stall(_, length) => Some(*length),
            _ => None,
        });
        let stalled = stalled.max().unwrap_or_default();
        let late = hops * (repeats * interval(self.nodes).as_secs_f64() + delay.as_secs_f64())
            + stalled.as_secs_f64();
        let threshold = pace::threshold(limit.quota().units(), self.nodes) as f64;
        let (all, one) = self.rates(late);
        let unsaid = hops * repeats * threshold;
        (unsaid * peers + arrivals(all * late), unsaid + arrivals(one * late))
    }

    fn held(&self) -> Duration {
        if self.network.reordering > 0.0 { self.network.hold } else { Duration::ZERO }
    }

    /// The most that the peers of any node are offered, and any one node, in units per second, over an interval of `late`
    /// seconds.
    fn rates(&self, late: f64) -> (f64, f64) {
        let late = Duration::try_from_secs_f64(late).unwrap_or(Duration::MAX);
        let mut rates = vec![Rate::default(); self.nodes];
        let mut most: f64 = 0.0;
        let mut most_of_one: f64 = 0.0;
        for (at, action) in &self.steps {
            let (node, rate) = match action {
                Action::Offer(node, rate) => (*node, *rate),
                Action::OfferMany(node, keys, rate) => (*node, rate * keys.largest_part()),
                _ => continue,
            };
            if let Some(state) = rates.get_mut(node) {
                // What was offered before is not forgotten at once.
                let before = if at.saturating_sub(state.since) < late {
                    state.rate.max(state.before)
                } else {
                    state.rate
                };
                *state = Rate { rate, before, since: *at };
            }
            let now = |state: &Rate| {
                if at.saturating_sub(state.since) < late { state.rate.max(state.before) } else { state.rate }
            };
            let all: f64 = rates.iter().map(now).sum();
            most_of_one = most_of_one.max(rate);
            // A node that nobody asks cannot admit too much: the one that does hears nothing of the others.
            let asked = rates.iter().map(now).filter(|rate| *rate > 0.0);
            let least = asked.fold(f64::INFINITY, f64::min);
            if least.is_finite() {
                most = most.max(all - least);
            }
        }
        (most, most_of_one)
    }

    /// What comes to several nodes in one instant, beyond what one of them could admit.
    fn instants(&self, capacity: f64) -> f64 {
        let mut sum = 0.0;
        let mut steps = self.steps.as_slice();
        while let Some((at, _)) = steps.first() {
            let (together, later) = steps.split_at(steps.partition_point(|(other, _)| other <= at));
            let each = together.iter().filter_map(|(_, action)| match action {
                Action::Burst(_, requests) => Some((*requests as f64).min(capacity)),
                _ => None,
            });
            let (all, most) =
                each.fold((0.0, 0.0), |(all, most): (f64, f64), one| (all + one, most.max(one)));
            sum += all - most;
            steps = later;
        }
        sum
    }

    /// What wall clocks that are off count to another window; `None` where they are off by a window or more.
    fn misplaced(&self, capacity: f64) -> Option<f64> {
        let Some(limit) = self.limits.first().filter(|limit| limit.algorithm() == Algorithm::FixedWindow)
        else {
            return Some(0.0);
        };
        let skews = self.steps.iter().filter_map(|(_, action)| match action {
            Action::Skew(_, millis) => Some(*millis),
            _ => None,
        });
        let (least, most) = skews.fold((0, 0), |(least, most), skew| (least.min(skew), most.max(skew)));
        let off = Duration::from_millis(most.abs_diff(least));
        if off >= limit.quota().period() {
            return None;
        }
        // What is offered between two clocks' turns, of the window before and of the one after.
        let (peers, one) = self.rates(off.as_secs_f64());
        let offered = arrivals((peers + one) * off.as_secs_f64());
        Some(offered.min(capacity) * self.nodes.saturating_sub(1).min(2) as f64)
    }
}

/// What one node is offered, and was offered before.
#[derive(Clone, Copy, Default)]
struct Rate {
    rate: f64,
    before: f64,
    since: Duration,
}

/// Over how many hops news comes to every node: one where everyone talks to everyone; where a round goes to a few at
/// random, those in which the news multiplies, and those in which it finds the last few.
fn hops(nodes: usize) -> f64 {
    if nodes <= DIRECT_NODES {
        return 1.0;
    }
    let fanout = pace::FANOUT as f64;
    let nodes = nodes as f64;
    (nodes.ln() / (1.0 + fanout).ln() + nodes.ln() / fanout).ceil()
}

fn interval(nodes: usize) -> Duration {
    if nodes <= DIRECT_NODES { pace::DIRECT_INTERVAL } else { pace::RELAY_INTERVAL }
}

/// How many messages it takes for one to arrive.
fn repeats(loss: f64) -> f64 {
    if loss <= 0.0 { 1.0 } else { (ONE_IN_A_MILLION.ln() / loss.min(0.99).ln()).ceil().max(1.0) }
}

/// The most arrivals of a Poisson stream in an interval in which `mean` are expected.
fn arrivals(mean: f64) -> f64 {
    mean + DEVIATIONS * mean.sqrt()
}
