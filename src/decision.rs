//! What a check answers.

use std::time::Duration;

use crate::{
    limit::{Limit, Quota},
    time::Now,
};

/// What a decision was based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Basis {
    /// A limiter that belongs to no fleet.
    Alone,
    /// The whole fleet's spending, as last heard.
    Cluster,
    /// This node has not synced with its peers yet, and admits its share of the quota. Its buckets start empty; a `peek` at
    /// a key that it does not hold finds what such a bucket starts with.
    Joining,
    /// Some peers are unheard; the limit's `on_partition` decides what is assumed of them.
    LocalOnly {
        /// How many peers are unreachable.
        unheard: u16,
        /// For how long the one of them has not been heard that has been silent for longest: as of the last heartbeat, rounded
        /// down by up to a hundredth, and at most eight years.
        longest: Duration,
    },
}

/// A [`Basis`] as a table keeps it: in a word, which a check copies and nobody takes apart before he is asked for it.
/// Other bits of the word say nothing of the basis.
#[derive(Clone, Copy)]
pub(crate) struct BasisWord(pub(crate) u32);

impl BasisWord {
    /// The bits that say it. From the lowest: two for the kind, and six of the time for which the longest of the silences has
    /// lasted; then, after a byte of others, ten for how many peers are unheard, and the other six of the time.
    pub(crate) const BITS: u32 = 0xffff_00ff;
    const UNHEARD_BITS: u32 = 10;
    const MOST_UNHEARD: u16 = (1 << Self::UNHEARD_BITS) - 1;

    pub(crate) fn basis(self) -> Basis {
        match self.0 & 0b11 {
            0 => Basis::Alone,
            1 => Basis::Cluster,
            2 => Basis::Joining,
            _ => {
                let time = self.0 >> 2 & 0x3f | self.0 >> 26 << 6;
                let unheard = (self.0 >> 16) as u16 & Self::MOST_UNHEARD;
                Basis::LocalOnly { unheard, longest: expanded(time) }
            }
        }
    }
}

/// A time in twelve bits: its leading eight bits, the first of which is one, and how many follow; in milliseconds.
fn packed(time: Duration) -> u32 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let shift = (u64::BITS - millis.leading_zeros()).saturating_sub(8);
    let leading = (millis >> shift) as u32;
    if leading < 128 { leading } else { ((shift + 1) * 128 + leading - 128).min(0xfff) }
}

fn expanded(packed: u32) -> Duration {
    let leading = u64::from(packed % 128);
    let millis = if packed < 128 { leading } else { (leading + 128) << (packed / 128 - 1) };
    Duration::from_millis(millis)
}

impl From<Basis> for BasisWord {
    fn from(basis: Basis) -> Self {
        Self(match basis {
            Basis::Alone => 0,
            Basis::Cluster => 1,
            Basis::Joining => 2,
            Basis::LocalOnly { unheard, longest } => {
                let time = packed(longest);
                3 | (time & 0x3f) << 2 | u32::from(unheard.min(Self::MOST_UNHEARD)) << 16 | time >> 6 << 26
            }
        })
    }
}

impl std::fmt::Debug for BasisWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.basis().fmt(f)
    }
}

/// How long until what was asked for, and everything, is there again, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) retry: u64,
    pub(crate) reset: u64,
}

impl Waits {
    /// What the limit's meter says.
    pub(crate) const BY_METER: Self = Self { retry: u64::MAX, reset: u64::MAX };
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// Less was left than it asked for.
    Level,
    /// The key is banned.
    Banned,
    /// The key, or the network of its address, is on the deny list, or was denied by an override.
    Denied,
    /// Everything is refused: some peer cannot be heard, or the limit holds no more keys, and the limit says so.
    Closed,
}

/// What a decision went by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Level,
    /// The decision's `level` is the rest of the ban, in nanoseconds.
    Banned,
    Denied,
    Closed,
    /// Admitted without being counted.
    Exempt,
}

/// The answer to a check.
///
/// It borrows the limiter's definition of the limit; nothing is allocated for it, and its waits are worked out only
/// when they are asked for.
#[derive(Clone, Copy, Debug)]
#[must_use = "a refused request must not go ahead"]
pub struct Decision<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) allowed: bool,
    pub(crate) reason: Reason,
    pub(crate) basis: BasisWord,
    /// The level afterwards, in the meter's fixed point.
    pub(crate) level: i64,
    /// The units that were asked for.
    pub(crate) cost: u64,
    pub(crate) now: Now,
    pub(crate) waits: Waits,
}

impl<'a> Decision<'a> {
    /// A decision whose waits the limit's meter knows.
    #[inline(always)]
    pub(crate) fn by_meter(
        limit: &'a Limit,
        allowed: bool,
        basis: BasisWord,
        level: i64,
        cost: u64,
        now: Now,
    ) -> Self {
        Self { limit, allowed, reason: Reason::Level, basis, level, cost, now, waits: Waits::BY_METER }
    }

    /// Whether the request may go ahead; its cost has then been spent (not by a `peek`, not where it
    /// [is exempt](Self::is_exempt), not where a limit that is only tried out [would have refused it](Self::is_shadow_refusal)).
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed || self.limit.is_shadow()
    }

    /// Why the request was refused; `None` when it was allowed.
    pub fn refused(&self) -> Option<Refused> {
        if self.is_allowed() { None } else { Some(self.refusal()) }
    }

    /// Whether the request was allowed only because its limit [is tried out](crate::LimitBuilder::shadow). Nothing was
    /// spent for it.
    pub fn is_shadow_refusal(&self) -> bool {
        !self.allowed && self.limit.is_shadow()
    }

    /// Why the request would have been refused if its limit were not only [tried out](crate::LimitBuilder::shadow);
    /// `None` when it would have been allowed too, or was refused indeed.
    pub fn would_have_been(&self) -> Option<Refused> {
        self.is_shadow_refusal().then(|| self.refusal())
    }

    /// Whether the key is banned.
    pub fn is_banned(&self) -> bool {
        !self.allowed && self.reason == Reason::Banned
    }

    /// Whether the request was allowed without being counted, by an allow list or an override.
    pub fn is_exempt(&self) -> bool {
        self.allowed && self.reason == Reason::Exempt
    }

    /// Whether the request was allowed, and its cost spent.
    #[cfg(feature = "http")]
    #[inline]
    pub(crate) fn has_spent(&self) -> bool {
        self.allowed && self.reason == Reason::Level
    }

    /// Whether the key is refused whatever it asks for.
    pub(crate) fn is_kept_out(&self) -> bool {
        !self.allowed && matches!(self.reason, Reason::Banned | Reason::Denied)
    }

    /// Why the limit itself refused, whether that was enforced or not.
    #[cfg(feature = "http")]
    pub(crate) fn own_refusal(&self) -> Option<Refused> {
        (!self.allowed).then(|| self.refusal())
    }

    fn refusal(&self) -> Refused {
        match self.reason {
            Reason::Banned => Refused::Banned,
            Reason::Denied => Refused::Denied,
            Reason::Closed => Refused::Closed,
            Reason::Level | Reason::Exempt => Refused::Level,
        }
    }

    /// The limit that decided.
    pub fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// The units that were asked for.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The quota that decided: where a limit has several, the one that refused, or of which the least is left.
    pub fn quota(&self) -> Quota {
        self.limit.quota()
    }

    /// Whole units that are left after this decision; 0 while a debt is being repaid, and for a key that is banned or denied.
    pub fn remaining(&self) -> u64 {
        match self.reason {
            Reason::Banned | Reason::Denied => 0,
            _ => self.limit.meter().whole(self.level),
        }
    }

    /// How long until the full capacity is there again if nothing more is spent; zero when it is there, or when nobody
    /// knows, because permits have to be given back. Like [`retry_after`](Self::retry_after), it is worked out at the limit's
    /// full rate. For a banned key it is the rest of the ban; for a denied one [`Duration::MAX`].
    pub fn reset_after(&self) -> Duration {
        if let Some(held_off) = self.held_off() {
            return held_off;
        }
        let capacity = self.limit.meter().capacity();
        match self.waits {
            Waits { reset: u64::MAX, .. } if self.limit.meter().is_stock() => Duration::ZERO,
            Waits { reset: u64::MAX, .. } => self.wait_for(capacity),
            Waits { reset, .. } => Duration::from_nanos(reset),
        }
    }

    /// The earliest time after which the refused cost would pass if nobody else spends; `None` when it was allowed, or when
    /// nobody knows, because permits have to be given back.
    ///
    /// Rounded up to the nanosecond, at least one: a retry at that time finds the units there. For a banned key it is the
    /// rest of the ban; for a denied one [`Duration::MAX`], since nobody knows when that will end.
    ///
    /// It is worked out at the limit's full rate. While something is taken to be spent elsewhere, units come back to this
    /// node more slowly, and the wait that is named is the least there can be, not the one that suffices: while the node is
    /// [`Basis::Joining`], it has quota ÷ nodes to give, so the units may be there only after as many times the wait as there
    /// are nodes; so it is under [`OnPartition::Share`](crate::OnPartition::Share), by nodes ÷ nodes heard. A caller that
    /// comes back too early is told the rest.
    pub fn retry_after(&self) -> Option<Duration> {
        let meter = self.limit.meter();
        let wait = match self.waits {
            _ if self.is_allowed() => return None,
            _ if self.held_off().is_some() => self.held_off().unwrap_or_default(),
            Waits { retry: u64::MAX, .. } if meter.is_stock() => return None,
            Waits { retry: u64::MAX, .. } => self.wait_for(meter.need(self.cost)),
            Waits { retry, .. } => Duration::from_nanos(retry),
        };
        Some(wait.max(Duration::from_nanos(1)))
    }

    /// How long the key is kept off whatever its level.
    fn held_off(&self) -> Option<Duration> {
        match self.reason {
            Reason::Banned => Some(Duration::from_nanos(u64::try_from(self.level).unwrap_or(0))),
            Reason::Denied => Some(Duration::MAX),
            _ => None,
        }
    }

    fn wait_for(&self, level: i64) -> Duration {
        Duration::from_nanos(self.limit.meter().nanos_to_earn(level.saturating_sub(self.level), self.now))
    }

    /// What the decision was based on.
    pub fn basis(&self) -> Basis {
        self.basis.basis()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_basis_is_in_its_word_what_it_was_to_within_a_hundredth() {
        for basis in [Basis::Alone, Basis::Cluster, Basis::Joining] {
            assert_eq!(BasisWord::from(basis).basis(), basis);
        }
        for millis in (0..38).map(|bit| 1_u64 << bit).flat_map(|whole| [whole - 1, whole, whole + whole / 3])
        {
            for unheard in [1, 2, 999, 1_023] {
                let longest = Duration::from_millis(millis);
                let word = BasisWord::from(Basis::LocalOnly { unheard, longest });
                assert_eq!(word.0 & !BasisWord::BITS, 0, "other bits of the word say other things");
                let Basis::LocalOnly { unheard: read, longest: about } = word.basis() else {
                    panic!("{word:?}")
                };
                assert_eq!(read, unheard);
                assert!(about <= longest && longest - about <= longest / 100, "{longest:?} {about:?}");
            }
        }
        let most = BasisWord::from(Basis::LocalOnly { unheard: u16::MAX, longest: Duration::MAX });
        let years = Duration::from_secs(8 * 365 * 86_400);
        assert!(matches!(most.basis(), Basis::LocalOnly { unheard: 1_023, longest } if longest > years));
    }
}
