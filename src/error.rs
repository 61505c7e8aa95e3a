//! One error a kind of operation.

use std::fmt;

/// A cost that can never pass: it is above what the limit holds. Nothing was spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostError {
    pub(crate) cost: u64,
    pub(crate) capacity: u64,
}

impl CostError {
    /// The cost that was asked for.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The most that the limit ever holds.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
}

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cost, capacity } = self;
        write!(
            f,
            "a cost of {cost} can never pass a limit that holds {capacity} units at most; ask for less, or raise the burst"
        )
    }
}

impl std::error::Error for CostError {}
