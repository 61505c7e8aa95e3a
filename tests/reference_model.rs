//! What a limiter decides, held against plain models in exact arithmetic: it never admits more, and never refuses what
//! they would admit, under costs, refunds, idle centuries, and clocks that stand still or jump back.
//!
//! A model counts in fractions of a unit whose denominator is the quota's period in nanoseconds, so that nothing is
//! ever rounded. The limiter counts in binary fixed point with the room for 300 years; where the two are closer to each
//! other than that fixed point resolves, either answer is right.

use std::time::Duration;

use proptest::prelude::*;
use ratemesh::{Limit, Limiter, ManualClock, Now, Quota, Timestamp, WallTime};

const SECOND: u64 = 1_000_000_000;
const YEAR: u64 = 366 * 86_400 * SECOND;
/// A scenario may last so long, since the model's clock, like the limiter's, is good for 300 years.
const MOST_YEARS: u64 = 200;

/// Something that happens. Times are parts per thousand of what it takes to fill the bucket.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request whose cost is so many parts per thousand of the capacity.
    Request(u64),
    /// A request of this cost.
    SmallRequest(u64),
    /// This many requests of one unit at one moment.
    Burst(u64),
    /// Up to so many units are given back.
    Refund(u64),
    Wait(u64),
    WaitNanos(u64),
    Years(u64),
    /// The clock jumps back.
    Back(u64),
    BackNanos(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..=1_000_u64).prop_map(Step::Request),
        6 => (0..4_u64).prop_map(Step::SmallRequest),
        3 => (1..40_u64).prop_map(Step::Burst),
        2 => (1..20_u64).prop_map(Step::Refund),
        8 => (0..2_000_u64).prop_map(Step::Wait),
        4 => (0..1_000_000_u64).prop_map(Step::WaitNanos),
        1 => (1..=100_u64).prop_map(Step::Years),
    ]
}

fn step_also_back() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => step(),
        1 => (0..10_000_u64).prop_map(Step::Back),
        1 => (0..1_000_000_u64).prop_map(Step::BackNanos),
    ]
}

/// Quotas up to ten million units a second.
fn quota() -> impl Strategy<Value = Quota> {
    let period = prop_oneof![
        Just(SECOND),
        Just(60 * SECOND),
        Just(3_600 * SECOND),
        Just(86_400 * SECOND),
        1_000_000..10 * SECOND,
    ];
    period.prop_flat_map(|period| {
        let most = (u128::from(period) * 10_000_000 / u128::from(SECOND)).min(1 << 40) as u64;
        let units = prop_oneof![1..=most, 1..=most.min(100), Just(most)];
        units.prop_map(move |units| Quota::new(units, Duration::from_nanos(period)))
    })
}

/// A clock that a scenario moves, within what clocks are good for.
struct Hands {
    clock: ManualClock,
    nanos: u64,
}

/// Where a scenario's clock starts: a second after the monotonic clock's origin, in 2020 on the wall.
const START: Now =
    Now { mono: Timestamp::from_nanos(SECOND), wall: WallTime::from_unix_nanos(1_577_836_800 * SECOND) };

impl Hands {
    fn new() -> Self {
        let clock = ManualClock::new();
        clock.set(START);
        Self { clock, nanos: 0 }
    }

    /// Moves the clock to so many nanoseconds after the start, as far as it may be moved; returns by how much it moved.
    fn turn(&mut self, by: i128) -> i128 {
        let to = (i128::from(self.nanos) + by).clamp(0, i128::from(MOST_YEARS * YEAR)) as u64;
        let moved = i128::from(to) - i128::from(self.nanos);
        self.nanos = to;
        self.clock.set(START.after(Duration::from_nanos(to)));
        moved
    }
}

/// A bucket in exact arithmetic: levels in units times the period's nanoseconds.
struct Bucket {
    quota: Quota,
    burst: u64,
    level: i128,
}

impl Bucket {
    fn new(quota: Quota, burst: u64) -> Self {
        let mut bucket = Self { quota, burst, level: 0 };
        bucket.level = bucket.capacity();
        bucket
    }

    fn period(&self) -> i128 {
        self.quota.period().as_nanos() as i128
    }

    fn capacity(&self) -> i128 {
        i128::from(self.burst) * self.period()
    }

    /// The deepest level that a debt explains: what a limit may owe, and what a check in flight may spend beyond.
    fn deepest(&self) -> i128 {
        let second = i128::from(self.quota.units()) * i128::from(SECOND) / self.period();
        -(i128::from(self.burst).max(second).max(1) * self.period() + self.capacity())
    }

    fn pass(&mut self, nanos: i128) {
        self.level += i128::from(self.quota.units()) * nanos;
    }

    /// What a look at the level finds: at most the capacity, and nothing that only a clock gone back explains.
    fn look(&mut self) {
        self.level = self.level.min(self.capacity());
        if self.level < self.deepest() {
            self.level = 0;
        }
    }

    /// Nothing that comes back takes the level above the capacity.
    fn give_back(&mut self, units: u64) {
        self.level += self.cost(units).min((self.capacity() - self.level).max(0));
    }

    fn cost(&self, cost: u64) -> i128 {
        i128::from(cost) * self.period()
    }

    /// How closely a limiter can follow: by what comes back in ten nanoseconds, and by the finest fixed point.
    fn tolerance(&self) -> i128 {
        10 * i128::from(self.quota.units()) + self.period() / (1 << 30) + self.capacity() / (1 << 50) + 1
    }
}

/// One scenario under way.
struct Scenario {
    hands: Hands,
    limiter: Limiter,
    /// Decides as the limiter should.
    model: Bucket,
    /// Earns whenever the clock runs forward, so it bounds what any clock can bring.
    bound: Bucket,
    /// Spent and not given back.
    outstanding: u64,
}

impl Scenario {
    fn new(quota: Quota, burst: u64) -> Self {
        let hands = Hands::new();
        let limit = Limit::token_bucket("model", quota).burst(burst).build().unwrap();
        let limiter = Limiter::with_clock(limit, hands.clock.clone());
        Self {
            hands,
            limiter,
            model: Bucket::new(quota, burst),
            bound: Bucket::new(quota, burst),
            outstanding: 0,
        }
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        let fill = i128::from(self.model.burst) * self.model.period() / i128::from(self.model.quota.units());
        let part = |parts: u64| fill * i128::from(parts) / 1_000;
        match step {
            Step::Request(parts) => {
                self.request((u128::from(self.model.burst) * u128::from(parts) / 1_000) as u64)
            }
            Step::SmallRequest(cost) => self.request(cost),
            Step::Burst(requests) => (0..requests).try_for_each(|_| self.request(1)),
            Step::Refund(units) => self.refund(units),
            Step::Wait(parts) => self.turn(part(parts)),
            Step::WaitNanos(nanos) => self.turn(nanos.into()),
            Step::Years(years) => self.turn(i128::from(years * YEAR)),
            Step::Back(parts) => self.turn(-part(parts)),
            Step::BackNanos(nanos) => self.turn(-i128::from(nanos)),
        }
    }

    fn turn(&mut self, by: i128) -> Result<(), TestCaseError> {
        let moved = self.hands.turn(by);
        self.model.pass(moved);
        self.bound.pass(moved.max(0));
        Ok(())
    }

    fn request(&mut self, cost: u64) -> Result<(), TestCaseError> {
        if cost > self.model.burst {
            prop_assert!(self.limiter.check_cost("key", cost).is_err());
            return Ok(());
        }
        let decision = self.limiter.check_cost("key", cost).unwrap();
        let allowed = decision.is_allowed();
        self.model.look();
        self.bound.look();
        let tolerance = self.model.tolerance();
        let model = &mut self.model;
        let left = model.level - model.cost(cost);
        if left.abs() > tolerance {
            prop_assert_eq!(
                allowed,
                left >= 0,
                "{} of {} fractions left for a cost of {}",
                left,
                tolerance,
                cost
            );
        }
        if allowed {
            model.level = left;
            self.outstanding += cost;
            self.bound.level -= self.bound.cost(cost);
            prop_assert!(
                self.bound.level >= -tolerance,
                "over the burst and what came back: {}",
                self.bound.level
            );
        }
        let remaining = self.model.level.max(0) / self.model.period();
        let apart = i128::from(decision.remaining()) - remaining;
        prop_assert!(apart.abs() <= 1, "{} left, not {}", decision.remaining(), remaining);
        Ok(())
    }

    fn refund(&mut self, units: u64) -> Result<(), TestCaseError> {
        let given = self.limiter.refund("key", units);
        prop_assert_eq!(given, units.min(self.outstanding));
        self.outstanding -= given;
        self.model.give_back(given);
        self.bound.give_back(given);
        Ok(())
    }
}

/// A window limit in plain counts: what each window has admitted.
struct Windows {
    quota: Quota,
    window: u128,
    admitted: u64,
}

impl Windows {
    fn admits(&mut self, now: Now, cost: u64) -> bool {
        let window = u128::from(now.wall.as_unix_nanos()) / self.quota.period().as_nanos();
        if window != self.window {
            (self.window, self.admitted) = (window, 0);
        }
        let admits = self.admitted + cost <= self.quota.units();
        if admits {
            self.admitted += cost;
        }
        admits
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 1_000 } else { 20_000 }))]

    #[test]
    fn a_bucket_admits_what_the_model_admits(
        quota in quota(),
        burst in prop_oneof![1..100_u64, 1..1_u64 << 20, 1..=1_u64 << 40],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut scenario = Scenario::new(quota, burst);
        for step in steps {
            scenario.take(step)?;
        }
    }

    #[test]
    fn a_clock_that_jumps_back_neither_mints_nor_starves(
        quota in quota(),
        burst in prop_oneof![1..100_u64, 1..1_u64 << 20],
        steps in prop::collection::vec(step_also_back(), 1..60),
    ) {
        let mut scenario = Scenario::new(quota, burst);
        for step in steps {
            scenario.take(step)?;
        }
        // Wherever the clock has come to, the key is served again after a look and the time that its deepest debt takes.
        scenario.request(1)?;
        scenario.hands.turn(-i128::from(YEAR));
        let _ = scenario.limiter.check("key");
        let fill = u128::from(burst) * quota.period().as_nanos() / u128::from(quota.units());
        let wait = (3 * fill + 2 * quota.period().as_nanos() + u128::from(SECOND)) as i128;
        if scenario.hands.turn(wait) == wait {
            prop_assert!(scenario.limiter.check("key").is_allowed());
        }
    }

    #[test]
    fn a_retry_when_told_passes_and_not_much_later_than_it_could(
        quota in quota(),
        burst in prop_oneof![1..100_u64, 1..1_u64 << 40],
        waits in prop::collection::vec(0..2_000_u64, 0..5),
        cost in 1..=1_000_u64,
    ) {
        let mut scenario = Scenario::new(quota, burst);
        for wait in waits {
            scenario.take(Step::Request(700))?;
            scenario.take(Step::Wait(wait))?;
        }
        scenario.take(Step::Request(1_000))?;
        let cost = (u128::from(burst) * u128::from(cost)).div_ceil(1_000) as u64;
        let refused = scenario.limiter.check_cost("key", cost).unwrap();
        if let Some(wait) = refused.retry_after() {
            let wait = wait.as_nanos();
            scenario.model.look();
            let model = &scenario.model;
            let missing = (model.cost(cost) - model.level).max(0) as u128;
            let exact = missing.div_ceil(u128::from(quota.units()));
            prop_assert!(wait <= exact + exact / 100_000_000 + 100, "{} ns, where {} would do", wait, exact);
            // As far as the clock goes.
            if scenario.hands.turn(wait as i128) == wait as i128 {
                prop_assert!(scenario.limiter.check_cost("key", cost).unwrap().is_allowed());
            }
        }
    }

    #[test]
    fn a_window_admits_its_quota_exactly(
        quota in quota(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut hands = Hands::new();
        let limiter = Limiter::with_clock(Limit::fixed_window("model", quota).build().unwrap(), hands.clock.clone());
        let mut model = Windows { quota, window: 0, admitted: 0 };
        let period = quota.period().as_nanos() as i128;
        for step in steps {
            let (requests, cost) = match step {
                Step::Request(parts) => (1, (u128::from(quota.units()) * u128::from(parts) / 1_000) as u64),
                Step::SmallRequest(cost) => (1, cost.min(quota.units())),
                Step::Burst(requests) => (requests, 1),
                Step::Wait(parts) => {
                    hands.turn(period * i128::from(parts) / 1_000);
                    continue;
                }
                Step::WaitNanos(nanos) => {
                    hands.turn(nanos.into());
                    continue;
                }
                Step::Years(years) => {
                    hands.turn(i128::from(years * YEAR));
                    continue;
                }
                Step::Refund(_) | Step::Back(_) | Step::BackNanos(_) => continue,
            };
            for _ in 0..requests {
                let decision = limiter.check_cost("key", cost).unwrap();
                prop_assert_eq!(decision.is_allowed(), model.admits(hands.clock.now(), cost));
                prop_assert_eq!(decision.remaining(), quota.units() - model.admitted);
            }
        }
    }

    #[test]
    fn a_window_that_comes_back_with_the_clock_is_still_spent(
        quota in quota(),
        back in 1..1_000_u64,
    ) {
        let mut hands = Hands::new();
        let limiter = Limiter::with_clock(Limit::fixed_window("model", quota).build().unwrap(), hands.clock.clone());
        let period = quota.period().as_nanos() as i128;
        hands.turn(2 * period);
        prop_assert!(limiter.check_cost("key", quota.units()).unwrap().is_allowed());
        // Up to a whole period back: the same window or the one before, and neither gives any more.
        hands.turn(-period * i128::from(back) / 1_000);
        prop_assert!(!limiter.check("key").is_allowed());
        hands.turn(period * i128::from(back) / 1_000);
        prop_assert!(!limiter.check("key").is_allowed());
        hands.turn(period);
        prop_assert!(limiter.check_cost("key", quota.units()).unwrap().is_allowed());
    }
}
