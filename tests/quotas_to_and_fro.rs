//! Keys' own quotas that change without end, under everything else that can be done to a key at the same time.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use ratemesh::{Limit, LimitBuilder, Limiter, ManualClock, OnFull, Override, Quota};

const DAY: Duration = Duration::from_secs(86_400);
const LONG: Duration = Duration::from_secs(400 * 86_400);

/// One limit of each algorithm, which brings next to nothing while a test runs.
fn algorithms(units: u64) -> Vec<LimitBuilder> {
    let quota = Quota::new(units, LONG);
    vec![
        Limit::token_bucket("a", quota),
        Limit::leaky_bucket("a", quota),
        Limit::fixed_window("a", quota),
        Limit::fixed_window("a", quota).staggered(),
        Limit::sliding_window("a", quota).precision(1),
        Limit::sliding_window("a", quota).precision(10),
        Limit::monthly("a", units),
        Limit::concurrency("a", units),
    ]
}

/// So many units in the period that the limit has.
fn own(limiter: &Limiter, units: u64) -> Override {
    Override::quota(Quota::new(units, limiter.limit().quota().period()))
}

/// A number that looks random.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn everything_at_once_ends_and_leaves_levels_that_make_sense() {
    let keys: Vec<String> = (0..12).map(|number| format!("key {number}")).collect();
    for builder in algorithms(20) {
        for on_full in [OnFull::SharedBucket, OnFull::Closed] {
            let builder = builder.clone().max_keys(6).on_full(on_full).override_key("key 3", {
                let period = builder.clone().build().unwrap().quota().period();
                Override::quota(Quota::new(35, period))
            });
            let limiter = Limiter::new(builder.clone().build().unwrap());
            std::thread::scope(|scope| {
                for seed in 0..4_u64 {
                    let (limiter, keys) = (&limiter, &keys);
                    scope.spawn(move || {
                        let mut state = seed;
                        let mut held = Vec::new();
                        for _ in 0..3_000 {
                            let key = &*keys[next(&mut state) as usize % keys.len()];
                            match next(&mut state) % 16 {
                                0..3 => {
                                    let units = [5, 20, 60, 1][next(&mut state) as usize % 4];
                                    limiter.set_override(key, own(limiter, units)).unwrap();
                                }
                                3 => assert!(limiter.clear_override(key).is_ok()),
                                4 => limiter.ban(key, Duration::from_millis(1)).unwrap(),
                                5 => assert!(limiter.unban(key).is_ok()),
                                6 => limiter.reset(key).unwrap(),
                                7 => assert!(limiter.refund(key, 3) <= 3),
                                8..10 => held.extend(limiter.reserve(key, 2).ok()),
                                10 => drop(held.pop()),
                                11 => {
                                    let peek = limiter.peek(key);
                                    assert!(peek.remaining() <= peek.limit().capacity(), "{peek:?}");
                                }
                                _ => assert!(limiter.check(key).cost() == 1),
                            }
                        }
                    });
                }
            });
            for key in &keys {
                limiter.clear_override(&**key).unwrap();
                limiter.unban(&**key).unwrap();
                let peek = limiter.peek(&**key);
                let capacity = peek.limit().capacity();
                assert!(peek.remaining() <= capacity, "{builder:?}: {peek:?}");
                assert!(peek.reset_after() <= 3 * LONG || peek.reset_after() == Duration::MAX, "{peek:?}");
                limiter.reset(&**key).unwrap();
            }
        }
    }
}

#[test]
fn spending_on_changing_quotas_gives_no_more_than_the_largest() {
    // None so small that its deepest debt would not hold what was spent.
    for builder in
        algorithms(3_000).into_iter().filter(|builder| builder.clone().build().unwrap().capacity() > 1)
    {
        let limiter = Limiter::new(builder.clone().build().unwrap());
        let (done, net) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let spenders: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut kept = Vec::new();
                        for turn in 0..6_000 {
                            match limiter.reserve("alice", 1) {
                                Ok(permit) if turn % 3 == 0 => assert!(permit.refund() <= 1),
                                Ok(permit) => kept.push(permit),
                                Err(_) => {}
                            }
                        }
                        net.fetch_add(kept.len() as u64, Ordering::Relaxed);
                        kept.into_iter().for_each(std::mem::forget);
                    })
                })
                .collect();
            scope.spawn(|| {
                for round in 0.. {
                    let units = [5_000, 3_000, 4_000][round % 3];
                    limiter.set_override("alice", own(&limiter, units)).unwrap();
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            spenders.into_iter().for_each(|spender| spender.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        limiter.set_override("alice", own(&limiter, 5_000)).unwrap();
        let rest = (0..20_000).filter_map(|_| limiter.reserve("alice", 1).ok()).map(std::mem::forget).count();
        let all = net.load(Ordering::Relaxed) + rest as u64;
        assert!((4_990..=5_010).contains(&all), "{builder:?}: {all}");
    }
}

#[test]
fn quotas_of_wildly_different_scales_mint_and_lose_nothing() {
    let rates = [
        Quota::new(1, LONG),
        Quota::per_second(100_000_000),
        Quota::new(1 << 40, LONG),
        Quota::new(1, Duration::from_nanos(1)),
        Quota::new(1_000, DAY),
    ];
    let mut state = 7;
    for kind in [Limit::token_bucket as fn(&str, Quota) -> LimitBuilder, Limit::leaky_bucket] {
        for first in rates {
            let clock = ManualClock::new();
            let limiter = match kind("a", first).build() {
                Ok(limit) => Limiter::with_clock(limit, clock.clone()),
                Err(_) => continue,
            };
            for round in 0..400 {
                let quota = rates[next(&mut state) as usize % rates.len()];
                let burst = [1, 5, 1 << 40, 1_000][next(&mut state) as usize % 4];
                let own = Override::Quota { quota, burst };
                if limiter.set_override("alice", own).is_err() {
                    continue;
                }
                let peek = limiter.peek("alice");
                assert!(peek.remaining() <= peek.limit().capacity(), "{round}: {peek:?}");
                assert!(peek.limit().capacity() <= burst, "{peek:?}");
                let permit = limiter
                    .reserve("alice", peek.limit().capacity().min(1 << (next(&mut state) % 41)).max(1));
                limiter
                    .set_override("alice", Override::Quota { quota: first, burst: first.units() })
                    .unwrap();
                if let Ok(permit) = permit
                    && next(&mut state).is_multiple_of(2)
                {
                    permit.refund();
                }
                let peek = limiter.peek("alice");
                assert!(peek.remaining() <= peek.limit().capacity(), "{round}: {peek:?}");
                // The deepest debt and the bucket, each in the time that they take by this rate.
                let deepest = first.units().max(1) as f64 * 2.0 / first.units_per_second() + 2.0;
                assert!(peek.reset_after().as_secs_f64() <= deepest * 1.01, "{round} {first:?}: {peek:?}");
                clock.advance(Duration::from_nanos(1 << (next(&mut state) % 50)));
            }
            clock.advance(3 * LONG);
            assert_eq!(limiter.peek("alice").reset_after(), Duration::ZERO);
        }
    }
}

#[test]
fn a_look_at_a_key_whose_quota_changes_sees_one_of_its_quotas() {
    let (slow, fast) = (Quota::new(5, LONG), Quota::per_second(100_000_000));
    let limiter = Limiter::new(Limit::token_bucket("a", slow).build().unwrap());
    assert!(limiter.check("alice").is_allowed());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let peek = limiter.peek("alice");
                    assert!(peek.remaining() <= peek.limit().capacity(), "{peek:?}");
                    let longest = if peek.quota() == slow { 3 * LONG } else { Duration::from_secs(3) };
                    assert!(peek.reset_after() <= longest, "{:?} {peek:?}", peek.reset_after());
                }
            });
        }
        for round in 0..20_000 {
            let quota = [slow, fast][round % 2];
            limiter.set_override("alice", Override::quota(quota)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn permits_outlast_every_change_of_their_quota() {
    for units in [1 << 40, 1 << 20, 5] {
        let limiter = Limiter::new(Limit::concurrency("a", units).build().unwrap());
        let held: Vec<_> = [units / 2, units - units / 2].map(|cost| limiter.reserve("alice", cost)).into();
        assert!(held.iter().all(Result::is_ok));
        for other in [1, units, 7, 1 << 40, units] {
            limiter.set_override("alice", own(&limiter, other)).unwrap();
            if other <= units {
                assert_eq!(limiter.peek("alice").remaining(), 0, "{other} after {units}");
            }
        }
        drop(held);
        assert_eq!(limiter.peek("alice").remaining(), units);
    }
}

#[test]
fn a_month_and_windows_go_on_under_their_changed_quota() {
    for builder in [Limit::monthly("a", 10), Limit::fixed_window("a", Quota::per_hour(10))] {
        let clock = ManualClock::new();
        let limiter = Limiter::with_clock(builder.clone().build().unwrap(), clock.clone());
        let mut admitted = 0;
        for round in 0..30 {
            limiter.set_override("alice", own(&limiter, [7, 12, 9][round % 3])).unwrap();
            admitted += u64::from(limiter.check("alice").is_allowed());
        }
        assert_eq!(admitted, 12, "{builder:?}");
        // What was spent beyond the lowered quota is missing to no other window.
        limiter.set_override("alice", own(&limiter, 7)).unwrap();
        let next = limiter.peek("alice").reset_after();
        clock.advance(next);
        assert_eq!(limiter.peek("alice").remaining(), 7, "{builder:?}");
        limiter.set_override("alice", own(&limiter, 12)).unwrap();
        assert_eq!((0..30).filter(|_| limiter.check("alice").is_allowed()).count(), 12, "{builder:?}");
        clock.advance(62 * DAY);
        for round in 0..30 {
            limiter.set_override("alice", own(&limiter, [7, 12, 9][round % 3])).unwrap();
            if let Ok(permit) = limiter.reserve("alice", 1) {
                permit.refund();
            }
        }
        assert_eq!(limiter.peek("alice").remaining(), 9);
    }
}
