//! Points in time, as the core is handed them.
//!
//! The core never reads a clock. Everything that depends on time takes a [`Now`]: a reading of the node's
//! monotonic clock, which buckets and timers go by, and of its wall clock, which aligned windows go by.

use std::time::Duration;

/// A reading of one node's monotonic clock, in nanoseconds from an origin of that node's own.
///
/// Timestamps of two nodes cannot be compared; only durations and epoch numbers are sent between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The origin of the node's clock.
    pub const ZERO: Self = Self(0);

    /// The reading that lies `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The reading that lies `millis` milliseconds after the origin; saturates.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this reading, or zero where `earlier` is the later of the two.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The reading `duration` later; saturates at the end of time, 584 years after the origin.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(duration)))
    }

    /// The reading `duration` earlier; saturates at the origin.
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_nanos(duration)))
    }
}

/// A reading of the wall clock, in nanoseconds since the Unix epoch, without leap seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(u64);

impl WallTime {
    /// The wall time `nanos` nanoseconds after 1970-01-01T00:00:00Z.
    pub const fn from_unix_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since 1970-01-01T00:00:00Z.
    pub const fn as_unix_nanos(self) -> u64 {
        self.0
    }
}

/// One moment, read on both clocks of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock: what buckets refill by and timers fire by.
    pub mono: Timestamp,
    /// The wall clock: what aligned windows are numbered by.
    pub wall: WallTime,
}

impl Now {
    /// A moment of which the wall clock was not read.
    #[inline(always)]
    pub(crate) fn by_mono(mono: Timestamp) -> Self {
        Self { mono, wall: WallTime::default() }
    }

    /// The same moment shifted by `duration` on both clocks; saturates.
    pub fn after(self, duration: Duration) -> Self {
        Self {
            mono: self.mono.after(duration),
            wall: WallTime(self.wall.0.saturating_add(saturating_nanos(duration))),
        }
    }
}

/// How far a coarse reading can be behind a precise one, with a margin: the slowest kernel tick is 10 ms.
pub(crate) const COARSE_NANOS: u64 = 16_000_000;

/// A duration in whole nanoseconds, saturating after 584 years.
pub(crate) fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_never_go_negative_or_wrap() {
        let early = Timestamp::from_nanos(5);
        let late = Timestamp::from_nanos(u64::MAX);
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(late.after(Duration::MAX), late);
        assert_eq!(early.before(Duration::MAX), Timestamp::ZERO);
    }
}
