//! One error a kind of operation.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    decision::{Decision, Refused},
    limit::LimitError,
};

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
            "a cost of {cost} can never pass a limit that holds {capacity} units at most; ask for less, or let it hold more"
        )
    }
}

impl std::error::Error for CostError {}

/// Why units were not reserved. Nothing was spent.
///
/// It borrows the limit's definition, as a [`Decision`] does; [`OwnedRefusal`] says the same and owns what it says, so that it
/// can leave the function.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Refusal<'a> {
    /// Not now: the decision says when.
    Denied(Decision<'a>),
    /// Never: the cost is above what the limit holds.
    Cost(CostError),
    /// Not now, and there is no place in the line of those who wait (only where units are waited for).
    QueueFull(Decision<'a>),
    /// Not before the time that the caller would wait for has passed, or will have (only where units are waited for).
    TooLate(Decision<'a>),
    /// Never: there is no limit of the name that was asked for (only where a mesh looks limits up by name).
    NoSuchLimit,
}

impl<'a> Refusal<'a> {
    /// The decision, unless the cost could never pass.
    pub fn decision(&self) -> Option<&Decision<'a>> {
        match self {
            Self::Denied(decision) | Self::QueueFull(decision) | Self::TooLate(decision) => Some(decision),
            Self::Cost(_) | Self::NoSuchLimit => None,
        }
    }

    /// The earliest time after which the cost would pass if nobody else spends; `None` where it never will, or where nobody
    /// knows, because permits have to be given back.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision().and_then(Decision::retry_after)
    }
}

impl From<CostError> for Refusal<'_> {
    fn from(error: CostError) -> Self {
        Self::Cost(error)
    }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(decision) => {
                let name = decision.limit().name();
                write!(f, "the limit \"{name}\" refused {} units; {}", decision.cost(), When(decision))
            }
            Self::QueueFull(decision) => {
                let (limit, cost) = (decision.limit(), decision.cost());
                let (name, queue) = (limit.name(), limit.queue());
                write!(
                    f,
                    "the limit \"{name}\" lets requests for {queue} units wait, and there is no place for {cost} more"
                )
            }
            Self::TooLate(decision) => {
                let (name, cost) = (decision.limit().name(), decision.cost());
                write!(f, "the limit \"{name}\" has no {cost} units within the timeout; {}", When(decision))
            }
            Self::Cost(error) => error.fmt(f),
            Self::NoSuchLimit => f.write_str("there is no limit of this name"),
        }
    }
}

impl std::error::Error for Refusal<'_> {}

/// When it is worth another try, as far as a decision tells.
struct When<'a, 'd>(&'a Decision<'d>);

impl fmt::Display for When<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.refused(), self.0.retry_after()) {
            (Some(Refused::Denied), _) => {
                f.write_str("the key is denied, until a list or an override says otherwise")
            }
            (Some(Refused::Banned), Some(rest)) => write!(f, "the key is banned for another {rest:.1?}"),
            (_, Some(wait)) => write!(f, "try again in {wait:.1?}"),
            (_, None) => f.write_str("try again when permits have been given back"),
        }
    }
}

/// Which of several limits refused, and why. Nothing was spent on any of them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RefusedBy<'a> {
    /// The place of the limit among those that were asked, from 0.
    pub index: usize,
    /// What it said.
    pub refusal: Refusal<'a>,
}

impl fmt::Display for RefusedBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.refusal {
            Refusal::NoSuchLimit => {
                write!(f, "there is no limit of the name at index {}", self.index)
            }
            refusal => refusal.fmt(f),
        }
    }
}

impl std::error::Error for RefusedBy<'_> {}

impl From<RefusedBy<'_>> for OwnedRefusal {
    fn from(refused: RefusedBy<'_>) -> Self {
        Self { text: refused.to_string().into(), retry_after: refused.refusal.retry_after() }
    }
}

/// A [`Refusal`] that owns what it says, for `?` in functions whose errors outlive the limiter.
///
/// ```
/// use ratemesh::{Limit, Limiter, Quota, OwnedRefusal};
///
/// fn call(limiter: &Limiter) -> Result<(), Box<dyn std::error::Error>> {
///     let permit = limiter.reserve("alice", 10).map_err(OwnedRefusal::from)?;
///     // ...
///     permit.settle(7);
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRefusal {
    text: Arc<str>,
    retry_after: Option<Duration>,
}

impl OwnedRefusal {
    /// The earliest time after which the cost would have passed if nobody else spends; `None` where it never will, or where
    /// nobody knew, because permits had to be given back.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl From<Refusal<'_>> for OwnedRefusal {
    fn from(refusal: Refusal<'_>) -> Self {
        Self { text: refusal.to_string().into(), retry_after: refusal.retry_after() }
    }
}

impl fmt::Display for OwnedRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for OwnedRefusal {}

/// Why a key was not banned, unbanned, overridden or reset. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleError {
    /// The duration is zero, or longer than [`MAX_BAN`](crate::MAX_BAN).
    Duration(Duration),
    /// The limit holds as many of this kind as it can.
    NoRoom,
    /// This key has been written about as often as can be counted. It can be again when what stands of it has ended.
    NoVersions,
    /// The quota for the key cannot stand, and why; its period has to be the limit's where that has windows or permits.
    Quota(Box<LimitError>),
    /// More different quotas than a limit can have in the life of a process: two and a half times
    /// [`MAX_QUOTAS`](crate::MAX_QUOTAS), those included that it had before it was changed.
    TooManyQuotas,
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
            Self::Quota(error) => write!(f, "the key's own quota: {error}"),
            Self::TooManyQuotas => f.write_str(
                "the limit has had too many different quotas since the start; give keys one that it knows already, or start anew",
            ),
        }
    }
}

impl std::error::Error for RuleError {}
