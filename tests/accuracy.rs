//! The short form of the table of accuracy: every scenario that promises something, on three and eight nodes, under a few
//! seeds. `just simulate --all --check` runs all of it.

use ratemesh::sim::{Summary, scenario::named};

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
    ("partition-both", 6),
    ("heal", 6),
    ("crash", 8),
    ("rolling-restart", 5),
    ("slow-node", 3),
    ("low-rate", 3),
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
