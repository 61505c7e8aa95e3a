//! The arithmetic of limits: how units come back over time, and how a level is decided on.
//!
//! Every algorithm here is one *meter* with another way of earning. A meter counts in fixed point: one unit is
//! `2^scale`. What has been *earned* since the clock's origin is a function of time alone; a key's *level* is
//!
//! ```text
//! level = capacity + earned(now) − offset − spent
//! ```
//!
//! where `offset` takes in all that is neither earned nor spent here: what was earned while the bucket was full
//! (so that the level never exceeds the capacity), what other nodes spent, and what refunds gave back. `spent` is a
//! whole number of units, so no rounding ever accumulates: a quota's rate is as exact as the product
//! `time × rate`, which is one multiplication, with a rate right to one part in 2⁴⁰ or finer.
//!
//! Level and offset are compared by wrapping subtraction; the scale is chosen so that 300 years of earning fit.
//! So a hundred idle years are nothing special, and a clock that jumps back shows as a level far below any debt
//! that could have been incurred, which [`level`] mends on the way to a refusal.
//!
//! Token bucket and leaky bucket as a meter are the Generic Cell Rate Algorithm (ITU-T I.371) read from the other
//! side: GCRA keeps a theoretical arrival time, this keeps the units that had been earned at that time.

mod calendar;
pub(crate) mod fixed_window;
pub(crate) mod level;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;

use std::time::Duration;

use crate::time::{COARSE_NANOS, Now, Timestamp, saturating_nanos};
use fixed_window::Steps;
use token_bucket::Linear;

/// How long a meter runs before its fixed point would overflow: 300 years, from boot or from 1970.
const RUN_NANOS: u128 = 300 * 366 * 86_400 * 1_000_000_000;
/// The finest fixed point: 2⁻³² unit.
const MAX_SCALE: u32 = 32;

/// Stocks up to this many units have one fixed point. No limit has more.
const LARGE_STOCK: u64 = 1 << 40;

/// Earnings and capacities stay below two to this power.
const ROOM_BITS: u32 = 62;
const MOST: u64 = (1 << ROOM_BITS) - 1;

/// The arithmetic of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meter {
    /// One unit is `1 << scale`.
    scale: u32,
    /// The same number; the product with it is found in fewer steps than by shifting.
    unit: u64,
    /// The most units that fixed point has room for.
    most: u64,
    /// The highest level.
    capacity: i64,
    /// The lowest level that debts are allowed to reach, as a positive number.
    max_debt: i64,
    /// How near to the capacity a level may have reached it since the coarse clock's last step.
    near: i64,
    /// That much below the capacity, which is counted as zero.
    brim: i64,
    /// What comes back continuously; nothing for windows and stocks.
    steady: Linear,
    refill: Refill,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Refill {
    Steadily,
    Steps(Steps),
    /// Nothing comes back by itself: what is spent is given back, by its permit or when it has left the window.
    Never,
}

impl Meter {
    /// A bucket of `capacity` units that earns `units` per `period` continuously.
    pub(crate) fn token_bucket(units: u64, period: Duration, capacity: u64) -> Self {
        let second =
            u64::try_from(u128::from(units) * 1_000_000_000 / period.as_nanos().max(1)).unwrap_or(u64::MAX);
        let max_debt = capacity.max(second).max(1);
        let scale = scale(units, period, capacity.max(max_debt));
        let linear = Linear::new(units, saturating_nanos(period), scale);
        Self {
            scale,
            unit: 1 << scale,
            most: MOST >> scale,
            capacity: fixed(capacity, scale),
            max_debt: fixed(max_debt, scale),
            near: linear.earned_in(COARSE_NANOS) as i64,
            brim: -(linear.earned_in(COARSE_NANOS) as i64),
            steady: linear,
            refill: Refill::Steadily,
        }
    }

    /// A window that earns its whole quota of `units` at each turn of the wall clock's `period`.
    pub(crate) fn fixed_window(units: u64, period: Duration) -> Self {
        let scale = scale(units, period, units);
        Self::at_once(units, scale, Refill::Steps(Steps::new(saturating_nanos(period), units << scale)))
    }

    /// The same in each month of the calendar, in UTC.
    pub(crate) fn months(units: u64) -> Self {
        let scale = scale(units, Duration::from_secs(28 * 86_400), units);
        Self::at_once(units, scale, Refill::Steps(Steps::months(units << scale)))
    }

    /// Units that come back all at once, if they do by themselves.
    fn at_once(units: u64, scale: u32, refill: Refill) -> Self {
        let capacity = fixed(units, scale);
        let steady = Linear::new(0, 1, 0);
        Self {
            scale,
            unit: 1 << scale,
            most: MOST >> scale,
            capacity,
            max_debt: capacity,
            near: 0,
            brim: 0,
            steady,
            refill,
        }
    }

    /// A bucket of one unit, which may owe up to `queue` units for a request that costs more.
    pub(crate) fn leaky_bucket(units: u64, period: Duration, queue: u64) -> Self {
        let mut meter = Self::token_bucket(units, period, queue.max(1));
        meter.capacity = fixed(1, meter.scale);
        meter
    }

    /// A stock of `units` that earns nothing.
    pub(crate) fn stock(units: u64) -> Self {
        // The same for every stock: a small one has to hold all that is missing to a large one that it takes the place of.
        Self::at_once(units, scale(0, Duration::MAX, units.max(LARGE_STOCK)), Refill::Never)
    }

    /// Whether nothing comes back by itself.
    #[inline]
    pub(crate) fn is_stock(&self) -> bool {
        self.refill == Refill::Never
    }

    /// Whether units come back continuously.
    pub(crate) fn is_continuous(&self) -> bool {
        self.refill == Refill::Steadily
    }

    /// One unit is `1 << scale`.
    #[inline]
    pub(crate) fn scale(&self) -> u32 {
        self.scale
    }

    /// The highest level.
    #[inline]
    pub(crate) fn capacity(&self) -> i64 {
        self.capacity
    }

    /// How near to the capacity the level has to be at a coarse time for it to matter that it may have reached the
    /// capacity since. Nothing for windows, which fill at their boundaries.
    #[inline]
    pub(crate) fn near(&self) -> i64 {
        self.near
    }

    /// How far below zero debts may take the level.
    #[inline]
    pub(crate) fn max_debt(&self) -> i64 {
        self.max_debt
    }

    /// All that was earned since the clock's origin, where no wall clock is gone by.
    #[inline(always)]
    pub(crate) fn earned_steadily(&self, mono: Timestamp) -> u64 {
        self.steady.earned(mono)
    }

    /// All that was earned since the clock's origin.
    #[inline]
    pub(crate) fn earned(&self, now: Now) -> u64 {
        match &self.refill {
            Refill::Steadily => self.steady.earned(now.mono),
            Refill::Steps(steps) => steps.earned(now.wall),
            Refill::Never => 0,
        }
    }

    /// Whether the meter goes by the wall clock.
    #[inline]
    pub(crate) fn needs_wall(&self) -> bool {
        matches!(self.refill, Refill::Steps(_))
    }

    /// The number of the current window, where there are windows.
    pub(crate) fn window(&self, now: Now) -> Option<u64> {
        match &self.refill {
            Refill::Steadily | Refill::Never => None,
            Refill::Steps(steps) => Some(steps.window(now.wall)),
        }
    }

    /// Whether what was spent at one time may still be given back at another: units of a window only while it lasts.
    pub(crate) fn is_returnable(&self, spent_at: Now, now: Now) -> bool {
        self.window(spent_at) == self.window(now)
    }

    /// Nanoseconds since the current window began, where there are windows.
    pub(crate) fn nanos_into_window(&self, now: Now) -> Option<u64> {
        match &self.refill {
            Refill::Steadily | Refill::Never => None,
            Refill::Steps(steps) => Some(steps.nanos_into(now.wall)),
        }
    }

    /// Nanoseconds until `amount` more will have been earned, rounded up; 0 for nothing.
    pub(crate) fn nanos_to_earn(&self, amount: i64, now: Now) -> u64 {
        let Ok(amount @ 1..) = u64::try_from(amount) else { return 0 };
        match &self.refill {
            Refill::Steadily => self.steady.nanos_to_earn(amount),
            Refill::Steps(steps) => steps.nanos_to_earn(amount, now.wall),
            Refill::Never => u64::MAX,
        }
    }

    /// What was earned in the `nanos` before `now`.
    pub(crate) fn earned_within(&self, nanos: u64, now: Now) -> u64 {
        match &self.refill {
            Refill::Steadily => self.steady.earned_in(nanos),
            Refill::Steps(steps) => steps.earned_within(nanos, now.wall),
            Refill::Never => 0,
        }
    }

    /// What may be spent before it is earned: what the next `nanos` bring for certain, where units come continuously.
    pub(crate) fn earned_ahead(&self, nanos: u64) -> u64 {
        self.steady.earned_in(nanos)
    }

    /// Whole units in fixed point; saturates.
    #[inline]
    pub(crate) fn fixed(&self, units: u64) -> i64 {
        fixed(units, self.scale)
    }

    /// What the level must be for a request of `cost` units to pass: that much, or, where a request may have more than
    /// the level can be, all of it.
    #[inline]
    pub(crate) fn need(&self, cost: u64) -> i64 {
        self.fixed(cost).min(self.capacity)
    }

    /// The whole units in an amount, rounded down; 0 for a negative one.
    #[inline]
    pub(crate) fn whole(&self, amount: i64) -> u64 {
        (amount.max(0) as u64) >> self.scale
    }

    /// An amount as a fraction of units, for estimates and for people.
    pub(crate) fn as_units(&self, amount: i64) -> f64 {
        amount as f64 / (1_u64 << self.scale) as f64
    }

    /// A fraction of units as an amount; saturates.
    pub(crate) fn amount_of(&self, units: f64) -> i64 {
        (units * (1_u64 << self.scale) as f64) as i64
    }
}

#[inline]
fn fixed(units: u64, scale: u32) -> i64 {
    if units > MOST >> scale { MOST as i64 } else { (units << scale) as i64 }
}

/// The finest scale at which 300 years of earning, and four times the capacity, stay below 2⁶².
fn scale(units: u64, period: Duration, most: u64) -> u32 {
    let earned = RUN_NANOS.saturating_mul(units.into()) / period.as_nanos().max(1);
    let room = earned.max(4 * u128::from(most)).max(1);
    let bits = u128::BITS - room.leading_zeros();
    ROOM_BITS.saturating_sub(bits).min(MAX_SCALE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_hold_to_one_part_in_a_million_for_a_hundred_years() {
        const YEAR: u64 = 31_557_600;
        for (units, period) in [
            (10_000_000, Duration::from_secs(1)),
            (9_999_999, Duration::from_secs(1)),
            (100_000_000, Duration::from_secs(1)),
            (1_000, Duration::from_secs(1)),
            (7, Duration::from_secs(3)),
            (5, Duration::from_secs(60)),
            (1, Duration::from_secs(86_400)),
            (3, Duration::from_micros(1_000_003)),
        ] {
            let meter = Meter::token_bucket(units, period, units);
            for seconds in [10_000_u64, YEAR, 100 * YEAR] {
                let now = Now { mono: Timestamp::from_nanos(seconds * 1_000_000_000), ..Now::default() };
                let earned = meter.as_units(meter.earned(now) as i64);
                let ideal = units as f64 * seconds as f64 / period.as_secs_f64();
                if ideal > 1.0 {
                    let error = (earned - ideal).abs();
                    assert!(
                        error <= ideal * 1e-9 + 0.3,
                        "{units} per {period:?} after {seconds} s: {earned} not {ideal}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_scale_leaves_room() {
        for (units, period, burst) in [
            (1, Duration::from_secs(400 * 86_400), 1 << 40),
            (1 << 40, Duration::from_secs(400 * 86_400), 1 << 40),
            (100, Duration::from_micros(1), 1 << 40),
        ] {
            let meter = Meter::token_bucket(units, period, burst);
            assert!(meter.capacity() > 0 && meter.max_debt() >= meter.capacity());
            assert_eq!(meter.whole(meter.capacity()), burst);
        }
    }
}
