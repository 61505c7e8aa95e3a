//! Which keys the requests are for.

use std::sync::Arc;

use crate::key::Key;

/// How the key of a request is drawn.
#[derive(Clone, Debug)]
pub enum Keys {
    /// Always the same.
    One(Key),
    /// One of many, the nth most frequent with a probability proportional to 1 ÷ n (Zipf's law with exponent 1).
    Zipf(Arc<[f64]>),
    /// One that lives for so many nanoseconds and then gives way to the next, the same for all nodes.
    Churn(u64),
}

impl Keys {
    /// `count` keys by Zipf's law.
    pub fn zipf(count: usize) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count.max(1)).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Self::Zipf(sums.collect())
    }

    /// Which part of the requests the most frequent key gets.
    pub(super) fn largest_part(&self) -> f64 {
        match self {
            Self::One(_) | Self::Churn(_) => 1.0,
            Self::Zipf(sums) => match (sums.first(), sums.last()) {
                (Some(first), Some(all)) if *all > 0.0 => first / all,
                _ => 1.0,
            },
        }
    }

    pub(super) fn draw(&self, elapsed: u64, rng: &mut fastrand::Rng) -> Key {
        match self {
            Self::One(key) => *key,
            Self::Zipf(sums) => {
                let point = rng.f64() * sums.last().copied().unwrap_or(0.0);
                numbered(sums.partition_point(|sum| *sum < point) as u64)
            }
            Self::Churn(nanos) => numbered(elapsed / (*nanos).max(1)),
        }
    }
}

/// A digest for a number, spread as evenly as the real ones.
fn numbered(number: u64) -> Key {
    Key::from_digest(xxhash_rust::xxh3::xxh3_128(&number.to_le_bytes()))
}
