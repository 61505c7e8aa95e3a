//! `on_partition = "share"` holds the sum from the first moment of a cut: also while nobody has found out yet.
#![cfg(feature = "sim")]

use ratemesh::sim::scenario::named;

#[test]
fn under_share_a_cut_brings_no_second_quota() {
    let scenario = named("partition-both", 3).unwrap();
    for seed in 1..=3 {
        let (outcome, _) = scenario.run(seed);
        assert!(
            outcome.worst_second <= 1.1,
            "seed {seed}: a second admitted {} of the quota",
            outcome.worst_second
        );
        assert!(outcome.excess <= 100.0, "seed {seed}: {} units too many", outcome.excess);
    }
}
