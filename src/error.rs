//! One error a kind of operation.

use std::{fmt, time::Duration};

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

/// Why a key was not banned, unbanned, overridden or reset. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleError {
    /// The duration is zero, or longer than [`MAX_BAN`](crate::MAX_BAN).
    Duration(Duration),
    /// The limit holds as many of this kind as it can.
    NoRoom,
    /// This key has been written about as often as can be counted. It can be again when what stands of it has ended.
    NoVersions,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duration(given) => {
                write!(f, "a ban of {given:?} will not do; it takes more than zero and at most 400 days")
            }
            Self::NoRoom => {
                f.write_str("there is no room for more; wait until some have ended, or clear some")
            }
            Self::NoVersions => f.write_str(
                "the key has been written about too often; wait until what stands of it has ended",
            ),
        }
    }
}

impl std::error::Error for RuleError {}
