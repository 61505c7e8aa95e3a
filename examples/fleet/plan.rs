//! What is done to the fleet, second by second, and what the fleet promises meanwhile.

use std::ops::Range;

use crate::{
    args::{Args, Scenario},
    fleet::Rule,
};

/// What happens at the beginning of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(usize),
    Restart(usize),
    /// Cuts the gossip of these nodes off, each from all others.
    Cut(Range<usize>),
    Join(Range<usize>),
}

/// A part of the run.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// What it shows, for the reader.
    pub(crate) about: &'static str,
    pub(crate) seconds: u64,
    pub(crate) fault: Option<Fault>,
    /// Requests per second, by node.
    pub(crate) offered: Vec<f64>,
    pub(crate) promise: Promise,
}

/// What each second of a phase may admit, as parts of the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Promise {
    /// Seconds at the beginning, in which the fleet finds out what has happened.
    pub(crate) settling: usize,
    /// Least and most in those.
    pub(crate) at_first: (f64, f64),
    /// Least and most in all others.
    pub(crate) then: (f64, f64),
    /// Whether the first second is held against what one global bucket admits of the same requests; its full burst
    /// comes on top of the limit.
    pub(crate) from_full: bool,
}

/// Least and most of what a scenario is measured by; the simulator's targets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Targets {
    pub(crate) excess: Option<f64>,
    pub(crate) admitted_ratio: Option<f64>,
    pub(crate) worst_second: Option<f64>,
    pub(crate) quietest_second: Option<f64>,
    pub(crate) total_ratio: Option<(f64, f64)>,
    pub(crate) messages: Option<f64>,
}

/// The whole run.
pub(crate) struct Plan {
    pub(crate) rule: Rule,
    pub(crate) phases: Vec<Phase>,
    /// For a scenario: the first phase that is measured, and what is expected.
    pub(crate) scenario: Option<(usize, Targets)>,
}

impl Plan {
    pub(crate) fn new(args: &Args) -> Self {
        let mut plan = match args.scenario {
            None => story(args),
            Some(scenario) => of_scenario(scenario, args),
        };
        if let Some(seconds) = args.seconds {
            plan.stretch(seconds);
        }
        plan
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.phases.iter().map(|phase| phase.seconds).sum()
    }

    /// Brings the length to about so many seconds, in proportion, and no phase below two.
    fn stretch(&mut self, seconds: u64) {
        let total = self.seconds();
        for phase in &mut self.phases {
            phase.seconds = (phase.seconds * seconds + total / 2).div_euclid(total).max(phase.seconds.min(2));
        }
    }
}

/// The main job: steady, a kill, a restart, a cut, a join.
fn story(args: &Args) -> Plan {
    let (nodes, limit) = (args.nodes, args.limit as f64);
    let rule = Rule { per_second: args.limit, burst: args.limit / 10, share: true };
    // 1500 + 300 + 200 at a limit of 1000.
    let offered: Vec<f64> = (0..nodes).map(|node| limit * [1.5, 0.3, 0.2][node.min(2)]).collect();
    let (killed, cut) = (nodes - 1, 1);
    // What the nodes that are left may spend while one is unheard: all but its share.
    let others = (nodes - 1) as f64 / nodes as f64;
    // What both sides of a cut can get: each its share, and no more than it is asked for.
    let apart = offered[cut].min(limit / nodes as f64) / limit + others;
    let (least, most) = (0.97, if nodes <= 4 { 1.03 } else { 1.06 });
    let steady = Promise { settling: 0, at_first: (least, most), then: (least, most), from_full: false };
    // Within two seconds a silence is found out, and a lost connection is there again. Until a silence is found out, the lost
    // node is left what it was last expected to spend, and may have been left with nothing itself.
    let settling = |least, most| Promise { settling: 2, at_first: (least, most), ..steady };
    let phase = |name, about, seconds, fault, promise| {
        let mut offered = offered.clone();
        if matches!(fault, Some(Fault::Kill(_))) {
            offered[killed] = 0.0;
        }
        Phase { name, about, seconds, fault, offered, promise }
    };
    let phases = vec![
        phase("steady", "all nodes hear each other", 8, None, Promise { from_full: true, ..steady }),
        phase(
            "killed",
            "its share stays with it, for it could be spending it unheard",
            6,
            Some(Fault::Kill(killed)),
            Promise { then: (0.97 * others, most), ..settling(0.95 * others, most) },
        ),
        phase(
            "restarted",
            "it asks its peers what was spent",
            5,
            Some(Fault::Restart(killed)),
            settling(0.95 * others, 1.05),
        ),
        phase(
            "cut off",
            "each side keeps to its share",
            6,
            Some(Fault::Cut(cut..cut + 1)),
            Promise { then: (0.97 * apart, most), ..settling(0.95 * others, 1.05) },
        ),
        phase(
            "joined",
            "neither a silence nor a second burst",
            5,
            Some(Fault::Join(cut..cut + 1)),
            settling(0.95 * apart, 1.05),
        ),
    ];
    Plan { rule, phases, scenario: None }
}

/// The loads, faults and targets of the simulator's scenarios, for the sizes of fleet that run here.
fn of_scenario(scenario: Scenario, args: &Args) -> Plan {
    let (nodes, limit) = (args.nodes, args.limit as f64);
    let by_size = |three: f64, eight: f64| Some(if nodes <= 3 { three } else { eight });
    let even = |times: f64| vec![limit * times / nodes as f64; nodes];
    let burst = if scenario == Scenario::BurstAll { args.limit } else { args.limit / 10 };
    let rule = Rule { per_second: args.limit, burst, share: scenario == Scenario::Partition };
    let phase = |name, seconds, fault, offered: &[f64]| Phase {
        name,
        about: "",
        seconds,
        fault,
        offered: offered.to_vec(),
        promise: Promise::default(),
    };
    let (phases, measured, targets) = match scenario {
        Scenario::Steady => {
            let targets = Targets {
                excess: by_size(0.02 * limit, 0.035 * limit),
                worst_second: by_size(1.03, 1.06),
                messages: by_size(80.0, 200.0),
                ..Targets::default()
            };
            (vec![phase("warm-up", 3, None, &even(3.0)), phase("steady", 10, None, &even(3.0))], 1, targets)
        }
        Scenario::BurstAll => {
            let targets = Targets { excess: by_size(0.03 * limit, 0.085 * limit), ..Targets::default() };
            let (burst, calm) = (even(10.0), even(0.0));
            (
                vec![
                    phase("calm", 1, None, &calm),
                    phase("burst", 1, None, &burst),
                    phase("calm", 2, None, &calm),
                ],
                0,
                targets,
            )
        }
        Scenario::Skew => {
            let mut skewed = vec![0.15 * limit / (nodes - 1) as f64; nodes];
            skewed[0] = 1.35 * limit;
            let targets = Targets { admitted_ratio: Some(0.99), ..Targets::default() };
            (vec![phase("skew", 12, None, &skewed)], 0, targets)
        }
        Scenario::Crash => {
            let (load, last) = (even(1.5), nodes - 1);
            let mut rest = load.clone();
            rest[last] = 0.0;
            let targets = Targets { total_ratio: Some((0.99, 1.03)), ..Targets::default() };
            let phases = vec![
                phase("warm-up", 3, None, &load),
                phase("steady", 1, None, &load),
                phase("killed", 5, Some(Fault::Kill(last)), &rest),
                phase("restarted", 4, Some(Fault::Restart(last)), &load),
            ];
            (phases, 1, targets)
        }
        Scenario::Partition => {
            let (load, cut) = (even(3.0), nodes.div_ceil(3));
            let targets = Targets {
                total_ratio: Some((0.95, 1.03)),
                quietest_second: Some(0.95),
                worst_second: Some(1.05),
                ..Targets::default()
            };
            let phases = vec![
                phase("warm-up", 3, None, &load),
                phase("steady", 1, None, &load),
                phase("cut off", 10, Some(Fault::Cut(0..cut)), &load),
                phase("joined", 7, Some(Fault::Join(0..cut)), &load),
            ];
            (phases, 1, targets)
        }
    };
    Plan { rule, phases, scenario: Some((measured, targets)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seconds: Option<u64>, scenario: Option<Scenario>) -> Plan {
        Plan::new(&Args { nodes: 3, limit: 1_000, seconds, scenario })
    }

    #[test]
    fn the_load_lasts_about_as_long_as_was_asked_for() {
        assert_eq!(plan(None, None).seconds(), 30);
        for scenario in [None, Some(Scenario::Crash), Some(Scenario::Partition)] {
            for seconds in [10, 17, 45, 600] {
                let planned = plan(Some(seconds), scenario).seconds();
                assert!(planned.abs_diff(seconds) <= 3, "{planned} for {seconds}");
            }
        }
    }

    #[test]
    fn the_clients_ask_for_twice_the_limit() {
        assert_eq!(plan(None, None).phases[0].offered, [1_500.0, 300.0, 200.0]);
    }
}
