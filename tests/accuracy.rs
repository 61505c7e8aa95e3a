//! The short form of the table of accuracy: every scenario on three and eight nodes, under a few seeds.
//! `just simulate --all --check` runs all of it.

use std::time::Duration;

use ratemesh::{
    Limit, Quota,
    sim::{
        Summary,
        scenario::{NAMED, Targets, named},
    },
};

/// Scenarios, and under how many seeds each runs.
const SHORT: &[(&str, u64)] = &[
    ("under", 5),
    ("steady", 10),
    ("steady10", 3),
    ("burst-one", 5),
    ("burst-all", 10),
    ("skew", 5),
    ("hop", 5),
    ("cold", 10),
    ("loss30", 8),
    ("wan", 3),
    ("minute", 1),
    ("partition-majority", 2),
    ("partition-minority", 2),
    ("partition-both", 6),
    ("heal", 6),
    ("crash", 8),
    ("rolling-restart", 5),
    ("slow-node", 3),
    ("skewed-clocks", 2),
    ("low-rate", 3),
    ("many-keys", 1),
    ("churn", 3),
];

fn misses(nodes: usize) -> Vec<String> {
    let mut misses = Vec::new();
    for (name, seeds) in SHORT {
        let scenario = named(name, nodes).unwrap();
        match Summary::of(&scenario, 1..=*seeds) {
            Ok(summary) => misses.extend(summary.misses().into_iter().map(|miss| {
                let (measure, value, wanted) = (miss.measure, miss.value, miss.wanted);
                let seed = miss.seed;
                format!("{name}, {nodes} nodes: {measure} is {value:.4}, wanted {wanted}; worst seed {seed}")
            })),
            Err(failure) => misses.push(failure.to_string()),
        }
    }
    misses
}

#[test]
fn three_nodes_keep_their_targets() {
    let misses = misses(3);
    assert!(misses.is_empty(), "\n{}\n", misses.join("\n"));
}

#[test]
fn eight_nodes_keep_their_targets() {
    let misses = misses(8);
    assert!(misses.is_empty(), "\n{}\n", misses.join("\n"));
}

#[test]
fn no_scenario_is_left_out() {
    let missing: Vec<_> = NAMED
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !SHORT.iter().any(|(short, _)| short == name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The same loads on windows: the targets are those of buckets, the bound is every limit's.
#[test]
fn windows_keep_their_bound() {
    let window = |units, seconds| {
        Limit::fixed_window("window", Quota::new(units, Duration::from_secs(seconds))).build().unwrap()
    };
    let mut misses = Vec::new();
    for (name, limit) in [
        ("under", window(1_000, 1)),
        ("steady", window(1_000, 1)),
        ("steady10", window(1_000, 1)),
        ("burst-all", window(1_000, 1)),
        ("skew", window(1_000, 1)),
        ("hop", window(1_000, 1)),
        ("cold", window(1_000, 1)),
        ("loss30", window(1_000, 1)),
        ("wan", window(1_000, 1)),
        ("crash", window(1_000, 1)),
        ("rolling-restart", window(1_000, 1)),
        ("slow-node", window(1_000, 1)),
        ("skewed-clocks", window(10_000, 10)),
    ] {
        for nodes in [3, 8] {
            let mut scenario = named(name, nodes).unwrap();
            (scenario.limits, scenario.targets) = (vec![limit.clone()], Targets::default());
            assert!(scenario.bound().is_some(), "{name} promises nothing");
            let summary = Summary::of(&scenario, 1..=2).unwrap();
            misses
                .extend(summary.misses().into_iter().map(|miss| format!("{name}, {nodes} nodes: {miss:?}")));
        }
    }
    assert!(misses.is_empty(), "\n{}\n", misses.join("\n"));
}
