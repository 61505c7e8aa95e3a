//! Every algorithm by itself, against plain models.

use std::{collections::VecDeque, time::Duration};

use proptest::prelude::*;
use ratemesh::{Limit, Limiter, ManualClock, Now, Quota, WallTime};

fn limiter(builder: ratemesh::LimitBuilder) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::with_clock(builder.build().unwrap(), clock.clone()), clock)
}

/// A pause in nanoseconds, and a cost.
type Step = (u64, u64);

fn steps(most_pause: u64, most_cost: u64) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0..=most_pause, 0..=most_cost), 1..200)
}

proptest! {
    /// No window of the period's length admits more than the quota, and whatever a window that is one sub-window longer
    /// would admit passes.
    #[test]
    fn a_sliding_window_keeps_to_the_quota_in_every_window(
        steps in steps(400, 4),
        precision in 2_u16..40,
        quota in 4_u64..30,
    ) {
        let period = 1_000_000_u64;
        let (limiter, clock) = limiter(
            Limit::sliding_window("a", Quota::new(quota, Duration::from_nanos(period))).precision(precision),
        );
        let longest = period + period.div_ceil(u64::from(precision)) + u64::from(precision);
        let mut admitted = VecDeque::<(u64, u64)>::new();
        let mut now = 0;
        for (pause, cost) in steps {
            now += pause * 1_000;
            clock.advance(Duration::from_nanos(pause * 1_000));
            let within = |length: u64| {
                admitted.iter().filter(|(at, _)| now - at < length).map(|(_, cost)| cost).sum::<u64>()
            };
            let decision = limiter.check_cost("key", cost).unwrap();
            if decision.is_allowed() {
                prop_assert!(within(period) + cost <= quota, "{} + {cost} of {quota}", within(period));
                admitted.push_back((now, cost));
            } else {
                prop_assert!(within(longest) + cost > quota, "{} + {cost} of {quota}", within(longest));
                let wait = decision.retry_after().unwrap();
                prop_assert!(wait <= Duration::from_nanos(longest));
            }
        }
    }

    /// The wait that a refusal names is right to the nanosecond: not a moment before it does the request pass.
    #[test]
    fn a_refusal_says_when_the_window_lets_through(
        steps in steps(400, 4),
        precision in prop_oneof![Just(1_u16), 2_u16..40],
        cost in 1_u64..10,
    ) {
        let (limiter, clock) =
            limiter(Limit::sliding_window("a", Quota::new(10, Duration::from_millis(1))).precision(precision));
        for (pause, cost) in steps {
            clock.advance(Duration::from_nanos(pause * 1_000));
            let _ = limiter.check_cost("key", cost).unwrap();
        }
        let refused = limiter.check_cost("key", cost).unwrap();
        let Some(wait) = refused.retry_after() else { return Ok(()) };
        let reset = refused.reset_after();
        prop_assert!(wait <= reset);
        clock.advance(wait - Duration::from_nanos(1));
        prop_assert!(!limiter.check_cost("key", cost).unwrap().is_allowed());
        clock.advance(Duration::from_nanos(1));
        prop_assert!(limiter.check_cost("key", cost).unwrap().is_allowed());
    }

    /// Precision 1 decides as the formula does: the former window weighted by its part, and the current one.
    #[test]
    fn two_windows_are_weighted(steps in steps(300, 4)) {
        let (period, quota) = (1_000_000_u64, 20_u64);
        let (limiter, clock) =
            limiter(Limit::sliding_window("a", Quota::new(quota, Duration::from_nanos(period))).precision(1));
        let start = clock_origin(&clock);
        let (mut now, mut window, mut former, mut current) = (start, start / period, 0_u64, 0_u64);
        for (pause, cost) in steps {
            now += pause * 1_000;
            clock.advance(Duration::from_nanos(pause * 1_000));
            match now / period - window {
                0 => {}
                1 => (former, current) = (current, 0),
                _ => (former, current) = (0, 0),
            }
            window = now / period;
            let weighted = former as f64 * (1.0 - (now % period) as f64 / period as f64);
            let estimate = weighted + (current + cost) as f64;
            let allowed = limiter.check_cost("key", cost).unwrap().is_allowed();
            // Within a rounding of the quota either answer is right.
            if (estimate - quota as f64).abs() > 1e-6 {
                prop_assert_eq!(allowed, estimate < quota as f64, "{} of {}", estimate, quota);
            }
            if allowed {
                current += cost;
            }
        }
    }

    /// Units pass at the quota's rate and one after the other, whatever they cost.
    #[test]
    fn a_leaky_bucket_lets_units_out_evenly(steps in steps(3_000, 5)) {
        let (limiter, clock) = limiter(Limit::leaky_bucket("a", Quota::per_second(1_000)).queue(5));
        let (mut now, mut free_at) = (0_u64, 0_u64);
        for (pause, cost) in steps {
            now += pause * 1_000;
            clock.advance(Duration::from_nanos(pause * 1_000));
            if cost == 0 {
                continue;
            }
            let decision = limiter.check_cost("key", cost).unwrap();
            // A bucket counts in 2⁻¹⁸ units at this rate, which take four nanoseconds.
            if now.abs_diff(free_at) > 8 {
                prop_assert_eq!(decision.is_allowed(), now > free_at, "at {} of {}", now, free_at);
            }
            if decision.is_allowed() {
                free_at = now + cost * 1_000_000;
            } else {
                let wait = decision.retry_after().unwrap().as_nanos() as u64;
                prop_assert!(wait.abs_diff(free_at - now) <= 8, "{wait} not {}", free_at - now);
            }
        }
    }
}

/// Where a manual clock's monotonic reading begins.
fn clock_origin(clock: &ManualClock) -> u64 {
    clock.now().mono.as_nanos()
}

#[test]
fn a_leaky_bucket_refuses_a_cost_that_its_queue_cannot_hold() {
    let (limiter, _) = limiter(Limit::leaky_bucket("a", Quota::per_second(10)).queue(5));
    assert!(limiter.check_cost("key", 6).is_err());
    assert!(limiter.check_cost("key", 5).unwrap().is_allowed());
    assert_eq!(limiter.check("key").retry_after().unwrap().as_millis(), 500);
}

#[test]
fn permits_come_back_when_they_are_given_back_and_not_before() {
    let (limiter, clock) = limiter(Limit::concurrency("a", 2));
    assert!(limiter.check("key").is_allowed());
    assert!(limiter.check("key").is_allowed());
    clock.advance(Duration::from_secs(1_000_000));
    let refused = limiter.check("key");
    assert!(!refused.is_allowed());
    assert_eq!(
        (refused.retry_after(), refused.reset_after(), refused.remaining()),
        (None, Duration::ZERO, 0)
    );
    assert_eq!(limiter.refund("key", 1), 1);
    assert_eq!(limiter.peek("key").remaining(), 1);
    assert!(limiter.check("key").is_allowed());
    assert!(!limiter.check("key").is_allowed());
    assert_eq!(limiter.refund("key", 9), 2);
    assert_eq!(limiter.refund("key", 9), 0);
}

#[test]
fn staggered_windows_begin_at_different_times() {
    let (limiter, clock) = limiter(Limit::fixed_window("a", Quota::per_minute(1)).staggered());
    let mut resets = Vec::new();
    for key in 0_u64..200 {
        let decision = limiter.check(key);
        assert!(decision.is_allowed());
        resets.push(decision.reset_after());
        let refused = limiter.check(key);
        assert_eq!(refused.retry_after(), Some(decision.reset_after()));
        assert_eq!(limiter.peek(key).reset_after(), decision.reset_after());
    }
    resets.sort();
    // Spread over the minute: in each quarter of it begin more than an eighth of the windows.
    for quarter in 0..4 {
        let within = Duration::from_secs(15 * quarter)..Duration::from_secs(15 * (quarter + 1));
        assert!(resets.iter().filter(|reset| within.contains(reset)).count() > 25, "{resets:?}");
    }
    assert!(resets.iter().all(|reset| *reset <= Duration::from_secs(60)));
    clock.advance(Duration::from_secs(30));
    let passed = (0_u64..200).filter(|key| limiter.check(*key).is_allowed()).count();
    assert!((50..150).contains(&passed), "{passed}");
    clock.advance(Duration::from_secs(60));
    assert!((0_u64..200).all(|key| limiter.check(key).is_allowed()));
}

#[test]
fn what_comes_back_to_a_staggered_window_comes_back_while_it_lasts() {
    let moment = Duration::from_nanos(1);
    for key in 0_u64..100 {
        let (limiter, clock) = limiter(Limit::fixed_window("a", Quota::per_minute(10)).staggered());
        let (early, late) = (limiter.reserve(key, 4).unwrap(), limiter.reserve(key, 3).unwrap());
        clock.advance(limiter.peek(key).reset_after() - moment);
        assert_eq!(early.refund(), 4, "key {key}");
        assert_eq!(limiter.peek(key).remaining(), 7);
        clock.advance(moment);
        assert_eq!(late.refund(), 0, "key {key}");
        assert_eq!(limiter.peek(key).remaining(), 10);
    }
}

#[test]
fn refusals_that_count_are_paid_for_at_each_keys_own_time() {
    for key in 0_u64..100 {
        let limit = Limit::fixed_window("a", Quota::per_minute(10)).staggered().count_denied(true);
        let (limiter, clock) = limiter(limit);
        let first = limiter.check_cost(key, 10).unwrap();
        assert!(first.is_allowed());
        let turn = first.reset_after();
        // Six units of the next window are gone for what was refused in this one.
        let refused = limiter.check_cost(key, 6).unwrap();
        assert_eq!((refused.is_allowed(), refused.remaining()), (false, 0));
        assert_eq!(refused.retry_after(), Some(turn + Duration::from_secs(60)), "key {key}");
        clock.advance(turn);
        assert_eq!(limiter.peek(key).remaining(), 4, "key {key}");
    }
}

#[test]
fn a_month_lasts_to_its_end() {
    let (limiter, clock) = limiter(Limit::monthly("a", 2));
    // The eleventh of February 1970.
    let wall = WallTime::from_unix_nanos(41 * 86_400_000_000_000);
    clock.set(Now { wall, ..clock.now() });
    let start = clock.now().wall.as_unix_nanos();
    assert_eq!(limiter.check("key").reset_after().as_nanos() as u64 + start, month_end(start));
    assert!(limiter.check("key").is_allowed());
    let refused = limiter.check("key");
    assert_eq!(refused.retry_after().unwrap().as_nanos() as u64 + start, month_end(start));
    clock.advance(refused.retry_after().unwrap() - Duration::from_nanos(1));
    assert!(!limiter.check("key").is_allowed());
    clock.advance(Duration::from_nanos(1));
    assert!(limiter.check("key").is_allowed());
}

/// The end of the month of a time in the first three months of 1970.
fn month_end(nanos: u64) -> u64 {
    let day = 86_400_000_000_000;
    [31, 59, 90].map(|days| days * day).into_iter().find(|end| *end > nanos).unwrap()
}
