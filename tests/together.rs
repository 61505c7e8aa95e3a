//! Several quotas in one limit, and several limits in one decision: all are spent on, or none.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use proptest::prelude::*;
use ratemesh::{Limit, LimitBuilder, Limiter, ManualClock, Quota, Refusal, check_all, reserve_all};

const SECOND: Duration = Duration::from_secs(1);

fn with_clock(limit: LimitBuilder) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::with_clock(limit.build().unwrap(), clock.clone()), clock)
}

fn hourly(units: u64) -> Limiter {
    with_clock(Limit::token_bucket("hourly", Quota::per_hour(units))).0
}

#[test]
fn every_quota_of_a_limit_holds_and_the_refusal_names_the_one_to_wait_for() {
    let bands =
        Limit::token_bucket("api", Quota::per_second(10)).and(Quota::per_hour(36)).and(Quota::per_day(100));
    let (limiter, clock) = with_clock(bands);
    assert_eq!(limiter.limit().quotas().map(Quota::units).collect::<Vec<_>>(), [10, 36, 100]);
    for _ in 0..10 {
        assert!(limiter.check("alice").is_allowed());
    }
    let refused = limiter.check("alice");
    assert_eq!(
        (refused.is_allowed(), refused.quota(), refused.limit().name()),
        (false, Quota::per_second(10), "api")
    );
    assert_eq!(refused.retry_after().unwrap().as_millis(), 100);
    clock.advance(SECOND);
    assert_eq!(limiter.check_cost("alice", 10).unwrap().remaining(), 0);
    clock.advance(SECOND);
    // The hour's quota has 16 left, and some hundredths.
    assert_eq!(limiter.check_cost("alice", 10).unwrap().remaining(), 0);
    // Both refuse, and one takes longer.
    let refused = limiter.peek_cost("alice", 10).unwrap();
    assert_eq!(refused.quota(), Quota::per_hour(36));
    assert!(refused.retry_after().unwrap() > Duration::from_secs(390));
    clock.advance(SECOND);
    // What one quota refuses costs the others nothing.
    for _ in 0..20 {
        assert!(!limiter.check_cost("alice", 8).unwrap().is_allowed());
    }
    let handle = limiter.handle("alice");
    assert!(handle.check_cost(6).unwrap().is_allowed());
    assert_eq!(handle.peek().quota(), Quota::per_hour(36));
    clock.advance(3_600 * SECOND);
    assert!(limiter.check_cost("alice", 10).unwrap().is_allowed());
}

#[test]
fn a_cost_above_the_smallest_capacity_never_passes() {
    let bands =
        Limit::token_bucket("api", Quota::per_second(10)).burst(20).and(Quota::per_hour(36)).burst(15);
    let (limiter, _) = with_clock(bands);
    assert_eq!((limiter.limit().capacity(), limiter.limit().largest_cost()), (20, 15));
    let handle = limiter.handle("alice");
    let errors = [
        limiter.check_cost("alice", 16).unwrap_err(),
        limiter.peek_cost("alice", 16).unwrap_err(),
        handle.check_cost(16).unwrap_err(),
    ];
    assert!(errors.iter().all(|error| (error.cost(), error.capacity()) == (16, 15)));
    assert!(matches!(limiter.reserve("alice", 16), Err(Refusal::Cost(_))));
    assert!(matches!(check_all([(&limiter, "alice", 1), (&limiter, "alice", 16)]), Err(by) if by.index == 1));
    assert_eq!(limiter.check_cost("alice", 15).unwrap().remaining(), 0);
}

#[test]
fn permits_and_refunds_reach_every_quota() {
    let bands = Limit::token_bucket("api", Quota::per_hour(10)).and(Quota::per_day(30));
    let (limiter, clock) = with_clock(bands);
    assert_eq!(limiter.reserve("alice", 8).unwrap().settle(2).given_back(), 6);
    assert_eq!(limiter.reserve("alice", 4).unwrap().refund(), 4);
    assert_eq!(limiter.reserve("alice", 1).unwrap().settle(5).spent(), 4);
    assert_eq!(limiter.refund("alice", 1), 1);
    assert_eq!(limiter.peek("alice").remaining(), 4);
    // The hour's fills again and again, and then the day's shows: it brings five quarters of a unit an hour.
    for _ in 0..2 {
        clock.advance(3_600 * SECOND);
        assert!(limiter.check_cost("alice", 10).unwrap().is_allowed());
    }
    clock.advance(3_600 * SECOND);
    assert_eq!((limiter.peek("alice").remaining(), limiter.peek("alice").quota()), (7, Quota::per_day(30)));
}

#[test]
fn what_no_limit_can_have_is_refused_when_it_is_built() {
    let mut bands = Limit::token_bucket("api", Quota::per_second(1));
    for _ in 1..8 {
        bands = bands.and(Quota::per_second(1));
    }
    assert_eq!(bands.clone().build().unwrap().quotas().count(), 8);
    assert_eq!(bands.and(Quota::per_second(1)).build().unwrap_err().field(), "quota");
    let long = "a".repeat(63);
    assert!(Limit::token_bucket(&long, Quota::per_second(1)).build().is_ok());
    let two = Limit::token_bucket(&long, Quota::per_second(1)).and(Quota::per_hour(1));
    assert_eq!(two.build().unwrap_err().field(), "name");
    let zero = Limit::fixed_window("api", Quota::per_second(1)).and(Quota::per_hour(0));
    assert_eq!(zero.build().unwrap_err().field(), "quota");
    let one = Limit::token_bucket("api", Quota::per_second(1)).build().unwrap();
    let two = Limit::token_bucket("api", Quota::per_second(1)).and(Quota::per_hour(1)).build().unwrap();
    assert_ne!(one, two);
}

#[test]
fn a_refusal_by_one_limit_leaves_the_others_untouched_and_says_which_it_was() {
    let (by_address, by_name) = (hourly(10), hourly(2));
    let attempt = || check_all([(&by_address, "192.0.2.1", 1), (&by_name, "alice", 1)]);
    assert!(attempt().is_ok() && attempt().is_ok());
    let refused = attempt().unwrap_err();
    assert!(matches!((refused.index, refused.refusal), (1, Refusal::Denied(by)) if by.quota().units() == 2));
    assert!(refused.refusal.retry_after().is_some());
    assert_eq!(by_address.peek("192.0.2.1").remaining(), 8);
    // The same key twice is asked for the sum.
    assert!(check_all([(&by_address, "192.0.2.1", 4), (&by_address, "192.0.2.1", 5)]).is_err());
    assert_eq!(by_address.peek("192.0.2.1").remaining(), 8);
    assert!(check_all([(&by_address, "192.0.2.1", 4), (&by_address, "192.0.2.1", 4)]).is_ok());
    assert!(check_all(Vec::<(&Limiter, &str, u64)>::new()).is_ok());
}

#[test]
fn permits_of_several_limits_are_settled_one_by_one_or_given_back_together() {
    let (calls, tokens) = (hourly(10), hourly(1_000));
    let asks = || [(&calls, "alice", 1), (&tokens, "alice", 300)];
    reserve_all(asks()).unwrap().refund();
    let permits = reserve_all(asks()).unwrap();
    assert_eq!(permits.len(), 2);
    for (permit, actual) in permits.into_iter().zip([1, 120]) {
        permit.settle(actual);
    }
    assert_eq!((calls.peek("alice").remaining(), tokens.peek("alice").remaining()), (9, 880));
    assert_eq!(reserve_all([(&calls, "alice", 1), (&tokens, "alice", 881)]).unwrap_err().index, 1);
    assert_eq!(calls.peek("alice").remaining(), 9);
}

#[test]
fn threads_that_ask_in_any_order_spend_exactly_what_they_were_admitted() {
    for round in 0..30 {
        let limiters = [hourly(400), hourly(500), hourly(600)];
        let admitted: [AtomicU64; 3] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (limiters, admitted) = (&limiters, &admitted);
                scope.spawn(move || {
                    for step in 0..300_usize {
                        let (a, b) = ((thread + step) % 3, (thread + step + 1 + step / 3 % 2) % 3);
                        let cost = 1 + (step % 3) as u64;
                        if check_all([(&limiters[a], "key", cost), (&limiters[b], "key", cost)]).is_ok() {
                            admitted[a].fetch_add(cost, Ordering::Relaxed);
                            admitted[b].fetch_add(cost, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        for (limiter, admitted) in limiters.iter().zip(&admitted) {
            let spent = limiter.limit().capacity() - limiter.peek("key").remaining();
            assert_eq!(spent, admitted.load(Ordering::Relaxed), "round {round}");
        }
    }
}

#[test]
fn nobody_is_refused_for_units_that_a_refused_request_only_asked_for() {
    // One limit refuses all the time: what it refuses never touches the other, so that nobody else notices.
    let (empty, shared) = (hourly(1), hourly(10_000));
    assert!(empty.check("key").is_allowed());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..5_000 {
                    assert_eq!(
                        check_all([(&shared, "key", 9_999), (&empty, "key", 1)]).unwrap_err().index,
                        1
                    );
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..5_000 {
                let permit = shared.reserve("key", 2).expect("what is only asked for is not spent");
                assert_eq!(permit.refund(), 2);
            }
        });
    });
    assert_eq!(shared.peek("key").remaining(), 10_000);
}

/// A quota of a bucket or a window in plain numbers: levels in thousandths of a unit.
#[derive(Clone, Debug)]
struct Model {
    units: i64,
    seconds: i64,
    capacity: i64,
    level: i64,
}

impl Model {
    fn new(units: u64, seconds: u64, burst: u64) -> Self {
        let capacity = burst as i64 * 1_000 * seconds as i64;
        Self { units: units as i64, seconds: seconds as i64, capacity, level: capacity }
    }

    fn wait(&mut self, millis: i64) {
        self.level = (self.level + self.units * millis).min(self.capacity);
    }

    fn cost(&self, cost: u64) -> i64 {
        cost as i64 * 1_000 * self.seconds
    }

    /// Milliseconds until a cost passes.
    fn until(&self, cost: u64) -> f64 {
        (self.cost(cost) - self.level).max(0) as f64 / self.units as f64
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    One(usize, u64),
    Both(u64, u64),
    Wait(u16),
    Settle(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..2_usize, 0..15_u64).prop_map(|(which, cost)| Step::One(which, cost)),
        3 => (0..15_u64, 0..15_u64).prop_map(|(a, b)| Step::Both(a, b)),
        3 => (0..5_000_u16).prop_map(Step::Wait),
        1 => (0..10_u64, 0..10_u64).prop_map(|(cost, actual)| Step::Settle(cost, actual)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 1_000 } else { 20_000 }))]

    /// Two limits of up to three quotas each, asked alone and together.
    #[test]
    fn bands_and_limits_together_admit_what_the_models_admit(
        quotas in prop::collection::vec(prop::collection::vec((1..20_u64, 1..10_u64, 1..15_u64), 1..4), 2),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let clock = ManualClock::new();
        let limiters: Vec<Limiter> = quotas.iter().map(|bands| {
            let (units, seconds, burst) = bands[0];
            let quota = |units, seconds| Quota::new(units, Duration::from_secs(seconds));
            let first = Limit::token_bucket("model", quota(units, seconds)).burst(burst);
            let limit = bands[1..].iter().fold(first, |limit, (units, seconds, burst)| {
                limit.and(quota(*units, *seconds)).burst(*burst)
            });
            Limiter::with_clock(limit.build().unwrap(), clock.clone())
        }).collect();
        let mut models: Vec<Vec<Model>> = quotas.iter().map(|bands| {
            bands.iter().map(|(units, seconds, burst)| Model::new(*units, *seconds, *burst)).collect()
        }).collect();
        let fits = |which: usize, cost: u64| quotas[which].iter().all(|(.., burst)| cost <= *burst);
        for step in steps {
            match step {
                Step::Wait(millis) => {
                    clock.advance(Duration::from_millis(millis.into()));
                    models.iter_mut().flatten().for_each(|model| model.wait(millis.into()));
                }
                Step::One(which, cost) => {
                    let admits = models[which].iter().all(|model| model.level >= model.cost(cost));
                    match limiters[which].check_cost("key", cost) {
                        Err(_) => prop_assert!(!fits(which, cost)),
                        Ok(decision) => {
                            prop_assert_eq!(decision.is_allowed(), admits && fits(which, cost));
                            if admits {
                                models[which].iter_mut().for_each(|model| model.level -= model.cost(cost));
                            }
                        }
                    }
                }
                Step::Both(a, b) => {
                    let costs = [a, b];
                    // In milliseconds.
                    let wait = |which: usize| {
                        let waits = models[which].iter().map(|model| model.until(costs[which]));
                        waits.fold(0.0, f64::max)
                    };
                    let never = (0..2).find(|which| !fits(*which, costs[*which]));
                    let asks = [(&limiters[0], "key", a), (&limiters[1], "key", b)];
                    let refused = check_all(asks).err().map(|by| by.index);
                    match (never, refused) {
                        (Some(_), _) => prop_assert_eq!(refused, never),
                        (None, None) => prop_assert!(wait(0) <= 0.0 && wait(1) <= 0.0),
                        // Of two that refuse, the one that does so for longer; to a microsecond, they do so alike.
                        (None, Some(index)) => {
                            prop_assert!(wait(index) > 0.0 && wait(1 - index) <= wait(index) + 1e-3);
                        }
                    }
                    if refused.is_none() {
                        for (bands, cost) in models.iter_mut().zip(costs) {
                            bands.iter_mut().for_each(|model| model.level -= model.cost(cost));
                        }
                    }
                }
                Step::Settle(cost, actual) => {
                    let admits = models[0].iter().all(|model| model.level >= model.cost(cost));
                    match limiters[0].reserve("key", cost) {
                        Err(Refusal::Cost(_)) => prop_assert!(!fits(0, cost)),
                        Err(_) => prop_assert!(!admits),
                        Ok(permit) => {
                            prop_assert!(admits);
                            let actual = actual.min(cost);
                            prop_assert_eq!(permit.settle(actual).given_back(), cost - actual);
                            models[0].iter_mut().for_each(|model| model.level -= model.cost(actual));
                        }
                    }
                }
            }
            for (limiter, bands) in limiters.iter().zip(&models) {
                let least = bands.iter().map(|model| model.level / 1_000 / model.seconds).min().unwrap();
                let apart = limiter.peek_cost("key", 0).unwrap().remaining().abs_diff(least as u64);
                prop_assert!(apart <= 1, "{} apart from {:?}", apart, bands);
            }
        }
    }
}
