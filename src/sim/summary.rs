//! One scenario under many seeds, and what that says about its targets.

use std::{
    fmt,
    num::NonZero,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    thread,
};

use super::scenario::{Outcome, Scenario, Targets};

/// What one seed came to.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// The digest of everything that happened, in order; the same seed gives the same one.
    pub trace: u64,
    /// What was measured.
    pub outcome: Outcome,
}

/// What all seeds came to.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The scenario's name.
    pub scenario: String,
    /// The size of the fleet.
    pub nodes: usize,
    /// Each seed's run, in the order of the seeds.
    pub runs: Vec<Run>,
    /// What was expected.
    pub targets: Targets,
    /// What no run may exceed; see [`Scenario::bound`].
    pub bound: Option<f64>,
}

/// A figure of an [`Outcome`], and what it is held against.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Its name, as in the JSON of the command.
    pub name: &'static str,
    /// The figure.
    pub of: fn(&Outcome) -> f64,
    /// The least and the most that its mean may be, where something is promised.
    pub range: fn(&Targets) -> (Option<f64>, Option<f64>),
}

/// All figures, in the order in which they are shown.
pub const MEASURES: &[Measure] = &[
    Measure { name: "excess_mean", of: |outcome| outcome.excess, range: |targets| (None, targets.excess) },
    Measure {
        name: "admitted_ratio",
        of: |outcome| outcome.admitted_ratio,
        range: |targets| (targets.admitted_ratio, None),
    },
    Measure {
        name: "total_ratio",
        of: |outcome| outcome.total_ratio,
        range: |targets| parted(targets.total_ratio),
    },
    Measure {
        name: "first_second_ratio",
        of: |outcome| outcome.first_second,
        range: |targets| parted(targets.first_second),
    },
    Measure {
        name: "worst_second_ratio",
        of: |outcome| outcome.worst_second,
        range: |targets| (None, targets.worst_second),
    },
    Measure {
        name: "quietest_second_ratio",
        of: |outcome| outcome.quietest_second,
        range: |targets| (targets.quietest_second, None),
    },
    Measure {
        name: "false_denials",
        of: |outcome| outcome.false_denials,
        range: |targets| (None, targets.false_denials),
    },
    Measure {
        name: "messages_per_node_second",
        of: |outcome| outcome.messages,
        range: |targets| (None, targets.messages),
    },
    Measure { name: "bytes_per_node_second", of: |outcome| outcome.bytes, range: |_| (None, None) },
    Measure { name: "spread_p50_ms", of: |outcome| outcome.spread_p50_ms, range: |_| (None, None) },
    Measure { name: "spread_p99_ms", of: |outcome| outcome.spread_p99_ms, range: |_| (None, None) },
];

fn parted(range: Option<(f64, f64)>) -> (Option<f64>, Option<f64>) {
    (range.map(|(least, _)| least), range.map(|(_, most)| most))
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Miss {
    /// The figure's name.
    pub measure: &'static str,
    /// What it was.
    pub value: f64,
    /// What it should have been, such as `at most 20`.
    pub wanted: String,
    /// The seed that was furthest off.
    pub seed: u64,
}

/// A run that ended in a panic: an invariant did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The scenario's name.
    pub scenario: String,
    /// The size of the fleet.
    pub nodes: usize,
    /// The seed that replays it.
    pub seed: u64,
    /// What the panic said.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, nodes, seed, message } = self;
        write!(f, "{scenario} with {nodes} nodes failed under seed {seed}: {message}")
    }
}

impl std::error::Error for Failure {}

impl Summary {
    /// Runs a scenario under each of the seeds, on all processors.
    ///
    /// # Errors
    /// The failure with the lowest seed, where a run panics; the others are run to their end all the same.
    pub fn of(scenario: &Scenario, seeds: impl IntoIterator<Item = u64>) -> Result<Self, Failure> {
        let seeds: Vec<u64> = seeds.into_iter().collect();
        let waiting = Mutex::new(seeds.into_iter());
        let done = Mutex::new(Vec::new());
        let next = || waiting.lock().ok().and_then(|mut seeds| seeds.next());
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
                scope.spawn(|| {
                    while let Some(seed) = next() {
                        let run = run(scenario, seed);
                        if let Ok(mut done) = done.lock() {
                            done.push((seed, run));
                        }
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_default();
        done.sort_by_key(|(seed, _)| *seed);
        let runs = done.into_iter().map(|(_, run)| run).collect::<Result<_, _>>()?;
        Ok(Self {
            scenario: scenario.name.clone(),
            nodes: scenario.nodes,
            runs,
            targets: scenario.targets,
            bound: scenario.bound(),
        })
    }

    /// The mean of a figure over all seeds.
    pub fn mean(&self, measure: &Measure) -> f64 {
        self.figures(measure).sum::<f64>() / self.runs.len().max(1) as f64
    }

    /// The largest figure of any seed.
    pub fn max(&self, measure: &Measure) -> f64 {
        self.figures(measure).fold(0.0, f64::max)
    }

    fn figures(&self, measure: &Measure) -> impl Iterator<Item = f64> {
        let of = measure.of;
        self.runs.iter().map(move |run| of(&run.outcome))
    }

    /// Whether every promise was kept.
    pub fn passed(&self) -> bool {
        self.misses().is_empty()
    }

    /// The promises that were not kept: targets by the means, and by each run what must always hold.
    pub fn misses(&self) -> Vec<Miss> {
        let targets = MEASURES.iter().flat_map(|measure| self.missed(measure));
        targets.chain(self.overrun()).chain(self.overlong()).collect()
    }

    fn missed(&self, measure: &Measure) -> Vec<Miss> {
        let (least, most) = (measure.range)(&self.targets);
        let value = self.mean(measure);
        let of = |run: &Run| (measure.of)(&run.outcome);
        let mut misses = Vec::new();
        if let Some(least) = least.filter(|least| value < *least)
            && let Some(worst) = self.runs.iter().min_by(|a, b| of(a).total_cmp(&of(b)))
        {
            let wanted = format!("at least {least}");
            misses.push(Miss { measure: measure.name, value, wanted, seed: worst.seed });
        }
        if let Some(most) = most.filter(|most| value > *most)
            && let Some(worst) = self.runs.iter().max_by(|a, b| of(a).total_cmp(&of(b)))
        {
            let wanted = format!("at most {most}");
            misses.push(Miss { measure: measure.name, value, wanted, seed: worst.seed });
        }
        misses
    }

    fn overrun(&self) -> Option<Miss> {
        let excess = |run: &&Run| run.outcome.excess;
        let over = self.runs.iter().filter(|run| !run.outcome.within_bound);
        let worst = over.max_by(|a, b| excess(a).total_cmp(&excess(b)))?;
        let wanted = format!("at most the bound, {:.1}", self.bound.unwrap_or(f64::INFINITY));
        Some(Miss { measure: "excess_max", value: worst.outcome.excess, wanted, seed: worst.seed })
    }

    fn overlong(&self) -> Option<Miss> {
        // Where the bound does not hold, neither does what follows from it.
        self.bound?;
        let worst = self.runs.iter().find(|run| !run.outcome.within_long_run)?;
        let wanted = "within quota × time × 1.001 + burst".to_owned();
        Some(Miss { measure: "total_ratio", value: worst.outcome.total_ratio, wanted, seed: worst.seed })
    }
}

fn run(scenario: &Scenario, seed: u64) -> Result<Run, Failure> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let (outcome, cluster) = scenario.run(seed);
        Run { seed, trace: cluster.trace_hash(), outcome }
    }));
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Failure {
            scenario: scenario.name.clone(),
            nodes: scenario.nodes,
            seed,
            message: text.unwrap_or("a panic without a message").to_owned(),
        }
    })
}
