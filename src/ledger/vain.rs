//! What a bucket has earned in vain lately, while it was full: when, and how much of it.

use crate::{
    algorithm::Meter,
    time::{Now, Timestamp},
};

/// Earnings in vain of longer ago are forgotten: news older than that is not to be expected.
pub(super) const VAIN_MICROS: u64 = 500_000;
/// They are counted in grains: four microseconds of earning, or for windows 2⁻¹⁷ of the quota.
pub(super) const GRAIN_MICROS: u64 = 4;
const GRAIN_BITS: u32 = 17;
pub(super) const MOST_GRAINS: u32 = (1 << GRAIN_BITS) - 1;
/// The rest of the word is where they begin, in steps of 128 microseconds modulo 2¹⁵.
const STEP_MICROS: u64 = 128;
const STEP_BITS: u32 = u32::BITS - GRAIN_BITS;

/// What was earned in vain lately: from when on, and how much, in grains. It is taken to have been earned at one go.
///
/// News of spending is paid from its end backwards: what comes later has to have been spent earlier than what was paid
/// for, or it has nothing to be paid from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vain(u32);

impl Vain {
    /// Nobody has looked yet.
    pub(super) const UNKNOWN: Self = Self(u32::MAX);

    /// So many grains, the last of them earned at `end_micros`.
    pub(super) fn ending(grains: u32, end_micros: u64) -> Self {
        let grains = grains.min(MOST_GRAINS - 1);
        let begin = end_micros.wrapping_sub(u64::from(grains) * GRAIN_MICROS) / STEP_MICROS;
        Self(grains | (begin as u32) << GRAIN_BITS)
    }

    /// So many grains at the beginning of the window with this number, of which the last bits are kept.
    pub(super) fn of_window(grains: u32, window: u64) -> Self {
        Self(grains.min(MOST_GRAINS - 1) | (window as u32) << GRAIN_BITS)
    }

    /// So many grains that end now, or at the beginning of the current window.
    pub(super) fn of(meter: &Meter, grains: u32, now: Now) -> Self {
        match meter.window(now) {
            Some(window) => Self::of_window(grains, window),
            None => Self::ending(grains, micros(now.mono)),
        }
    }

    pub(super) fn grains(self) -> u32 {
        self.0 & MOST_GRAINS
    }

    /// The same beginning, and fewer grains.
    pub(super) fn less(self, grains: u32) -> Self {
        Self(self.0 & !MOST_GRAINS | self.grains().saturating_sub(grains))
    }

    /// Microseconds since the last of it was earned.
    pub(super) fn since(self, now_micros: u64) -> u64 {
        let now = (now_micros / STEP_MICROS) as u32;
        let steps = now.wrapping_sub(self.0 >> GRAIN_BITS) & ((1 << STEP_BITS) - 1);
        (u64::from(steps) * STEP_MICROS).saturating_sub(u64::from(self.grains()) * GRAIN_MICROS)
    }

    /// How many grains of it were earned in the last `micros`, and not longer ago than anything is remembered.
    pub(super) fn within(self, micros: u64, now_micros: u64) -> u32 {
        let grains = micros.min(VAIN_MICROS).saturating_sub(self.since(now_micros)) / GRAIN_MICROS;
        u32::try_from(grains).unwrap_or(MOST_GRAINS).min(self.grains())
    }
}

/// What is earned in vain by a bucket that has been full for long, or a window that nobody used.
pub(super) fn full_grains(meter: &Meter) -> u32 {
    if meter.is_continuous() { (VAIN_MICROS / GRAIN_MICROS) as u32 } else { MOST_GRAINS }
}

pub(super) fn micros(at: Timestamp) -> u64 {
    at.as_nanos() / 1_000
}
