//! What each node admitted over time, to draw.

use std::time::Duration;

use crate::time::saturating_nanos;

/// Units that each node admitted under the first limit, in steps of time from the fleet's start on.
#[derive(Clone, Debug)]
pub struct Timeline {
    step: u64,
    /// By step, then by node.
    admitted: Vec<Vec<u64>>,
    nodes: usize,
}

impl Timeline {
    pub(super) fn new(nodes: usize, step: Duration) -> Self {
        Self { step: saturating_nanos(step).max(1), admitted: Vec::new(), nodes }
    }

    pub(super) fn note(&mut self, node: usize, elapsed: u64, units: u64) {
        let at = (elapsed / self.step) as usize;
        if self.admitted.len() <= at {
            self.admitted.resize_with(at + 1, || vec![0; self.nodes]);
        }
        self.admitted[at][node] += units;
    }

    /// How long a step is.
    pub fn step(&self) -> Duration {
        Duration::from_nanos(self.step)
    }

    /// Units admitted in each step, by node; steps after the last admission are not there.
    pub fn steps(&self) -> &[Vec<u64>] {
        &self.admitted
    }
}
