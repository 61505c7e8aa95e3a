//! Keys with a quota of their own: what they admit, what changes of it keep, and what cannot stand; in one process.

use std::{net::IpAddr, time::Duration};

use ratemesh::{
    Limit, LimitBuilder, Limiter, MAX_QUOTAS, ManualClock, Override, Quota, Refusal, RuleError, check_all,
};

const SECOND: Duration = Duration::from_secs(1);

fn limiter(builder: LimitBuilder) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::with_clock(builder.build().unwrap(), clock.clone()), clock)
}

fn admitted(limiter: &Limiter, key: &str, asked: usize) -> u64 {
    (0..asked).filter(|_| limiter.check(key).is_allowed()).count() as u64
}

fn own(units: u64, burst: u64) -> Override {
    Override::Quota { quota: Quota::per_second(units), burst }
}

/// One limit of each algorithm at 10 units a second, and the capacity that an own quota of 25 gives.
fn algorithms() -> [(LimitBuilder, u64); 6] {
    let quota = Quota::per_second(10);
    [
        (Limit::token_bucket("a", quota), 25),
        (Limit::leaky_bucket("a", quota), 1),
        (Limit::fixed_window("a", quota), 25),
        (Limit::fixed_window("a", quota).staggered(), 25),
        (Limit::sliding_window("a", quota), 25),
        (Limit::sliding_window("a", quota).precision(1), 25),
    ]
}

#[test]
fn every_algorithm_gives_a_key_its_own_quota() {
    for (builder, capacity) in algorithms() {
        for known in [false, true] {
            let (limiter, clock) = limiter(builder.clone());
            clock.advance(SECOND / 3);
            if known {
                assert!(limiter.check("alice").is_allowed());
                clock.advance(10 * SECOND);
            }
            limiter.set_override("alice", own(25, 25)).unwrap();
            assert_eq!(limiter.peek("alice").quota(), Quota::per_second(25), "{builder:?}");
            assert_eq!(admitted(&limiter, "alice", 100), capacity, "{builder:?}, known {known}");
            assert_eq!(limiter.peek("alice").remaining(), 0);
            // Over a long time, its own rate and nobody else's.
            let over = |seconds: u64| -> u64 {
                (0..seconds * 100)
                    .map(|_| {
                        clock.advance(SECOND / 100);
                        admitted(&limiter, "alice", 2)
                    })
                    .sum()
            };
            let admitted_in_20_s = over(20);
            // A sliding window has a tenth more than its period, in which what was spent counts.
            assert!((450..=525).contains(&admitted_in_20_s), "{builder:?}: {admitted_in_20_s}");
            assert!(limiter.peek("bob").quota() == Quota::per_second(10));
        }
    }
}

#[test]
fn permits_can_be_more_for_one_key() {
    let (limiter, _) = limiter(Limit::concurrency("a", 2));
    let held = [limiter.reserve("alice", 1).unwrap(), limiter.reserve("alice", 1).unwrap()];
    assert!(limiter.reserve("alice", 1).is_err());
    let quota = Quota::new(5, Duration::ZERO);
    limiter.set_override("alice", Override::quota(quota)).unwrap();
    let more: Vec<_> = (0..10).filter_map(|_| limiter.reserve("alice", 1).ok()).collect();
    assert_eq!(more.len(), 3);
    limiter.clear_override("alice").unwrap();
    assert!(limiter.reserve("alice", 1).is_err());
    drop(more);
    assert!(limiter.reserve("alice", 1).is_err(), "two are in use still");
    drop(held);
    assert_eq!((0..10).filter_map(|_| limiter.reserve("alice", 1).ok()).map(std::mem::forget).count(), 2);
}

#[test]
fn what_was_spent_counts_on_through_every_change() {
    for (builder, capacity) in algorithms().into_iter().filter(|(_, capacity)| *capacity > 1) {
        let (limiter, clock) = limiter(builder.clone());
        clock.advance(SECOND / 3);
        assert_eq!(admitted(&limiter, "alice", 7), 7);
        limiter.set_override("alice", own(25, 25)).unwrap();
        assert_eq!(limiter.check("alice").remaining(), capacity - 8, "{builder:?}");
        limiter.set_override("alice", own(9, 9)).unwrap();
        assert_eq!(limiter.peek("alice").remaining(), 1, "{builder:?}");
        assert_eq!(admitted(&limiter, "alice", 9), 1);
        // Lower than what was spent: nothing passes, and it comes back.
        limiter.set_override("alice", own(5, 5)).unwrap();
        assert_eq!(admitted(&limiter, "alice", 9), 0);
        assert_eq!(limiter.peek("alice").remaining(), 0);
        clock.advance(3 * SECOND);
        assert_eq!(admitted(&limiter, "alice", 9), 5, "{builder:?}: lowering kills no refill");
        limiter.clear_override("alice").unwrap();
        assert_eq!(admitted(&limiter, "alice", 20), 5, "{builder:?}");
        assert!(limiter.overrides().is_empty());
    }
}

#[test]
fn raising_helps_at_once_however_much_was_refused() {
    for (builder, capacity) in algorithms().into_iter().filter(|(_, capacity)| *capacity > 1) {
        let (limiter, clock) = limiter(builder.clone());
        clock.advance(SECOND / 3);
        assert_eq!(admitted(&limiter, "alice", 1_000), 10);
        limiter.set_override("alice", own(25, 25)).unwrap();
        assert_eq!(admitted(&limiter, "alice", 1_000), capacity - 10, "{builder:?}");
    }
}

#[test]
fn rates_far_apart_keep_their_arithmetic() {
    // The finer the fixed point of one quota, the coarser that of the other.
    let rates = [Quota::per_day(1), Quota::per_second(100_000_000), Quota::per_hour(7), Quota::per_second(3)];
    let (limiter, clock) = limiter(Limit::token_bucket("a", rates[0]).burst(1));
    for round in 0..50 {
        let quota = rates[round % rates.len()];
        limiter.set_override("alice", Override::quota(quota)).unwrap();
        let peek = limiter.peek("alice");
        assert!(peek.remaining() <= quota.units(), "{round}: {}", peek.remaining());
        // The deepest debt, and then the bucket.
        assert!(peek.reset_after() <= 2 * quota.period() + SECOND, "{round}: {:?}", peek.reset_after());
        let taken = admitted(&limiter, "alice", 20);
        assert!(taken <= quota.units());
        clock.advance(SECOND / 10);
    }
}

#[test]
fn a_limit_gives_quotas_to_keys_that_are_set_otherwise_at_run_time() {
    let builder = Limit::token_bucket("a", Quota::per_second(10))
        .override_key("premium", own(100, 50))
        .override_key("banned", Override::Deny)
        .override_key("friend", Override::Allow);
    let (limiter, _) = limiter(builder);
    assert_eq!(admitted(&limiter, "premium", 100), 50);
    assert_eq!(admitted(&limiter, "banned", 5), 0);
    assert_eq!(admitted(&limiter, "friend", 500), 500);
    assert!(limiter.overrides().is_empty(), "these are the ones set at run time");
    limiter.set_override("premium", own(100, 60)).unwrap();
    assert_eq!(admitted(&limiter, "premium", 100), 10);
    assert_eq!(limiter.overrides(), [(limiter.key("premium"), own(100, 60))]);
    limiter.set_override("friend", own(3, 3)).unwrap();
    assert_eq!(admitted(&limiter, "friend", 500), 3, "what is set at run time goes first");
    limiter.set_override("banned", own(3, 3)).unwrap();
    assert_eq!(admitted(&limiter, "banned", 5), 0, "but for a denial");
    limiter.ban("premium", SECOND).unwrap();
    assert!(limiter.check("premium").is_banned());
    limiter.unban("premium").unwrap();
    limiter.clear_override("premium").unwrap();
    assert_eq!(limiter.peek("premium").quota(), Quota::per_second(100));
    assert_eq!(limiter.peek("premium").remaining(), 0);
}

#[test]
fn a_key_of_its_own_quota_that_is_given_up_has_it_again() {
    let (limiter, clock) = limiter(
        Limit::token_bucket("a", Quota::per_second(10)).max_keys(2).override_key("premium", own(100, 50)),
    );
    assert_eq!(admitted(&limiter, "premium", 100), 50);
    clock.advance(60 * SECOND);
    for other in 0..20 {
        let _ = limiter.check(&*format!("other {other}"));
        clock.advance(5 * SECOND);
    }
    assert_eq!(admitted(&limiter, "premium", 100), 50);
}

#[test]
fn its_own_quota_takes_the_place_of_all_that_the_limit_has() {
    let builder = Limit::token_bucket("a", Quota::per_second(10)).and(Quota::per_hour(20));
    let (limiter, clock) = limiter(builder);
    limiter.set_override("alice", own(100, 100)).unwrap();
    assert_eq!(admitted(&limiter, "alice", 200), 100);
    clock.advance(SECOND);
    assert_eq!(admitted(&limiter, "alice", 200), 100, "the hour's quota is not hers");
    assert_eq!(limiter.check_cost("bob", 11).unwrap_err().capacity(), 10);
    clock.advance(SECOND);
    assert!(limiter.check_cost("alice", 60).unwrap().is_allowed());
    assert!(check_all([(&limiter, "alice", 30)]).is_ok());
    limiter.clear_override("alice").unwrap();
    assert_eq!(admitted(&limiter, "alice", 200), 0);
}

#[test]
fn a_cost_is_held_against_the_quota_that_the_key_has() {
    let (limiter, _) = limiter(Limit::token_bucket("a", Quota::per_second(10)));
    limiter.set_override("large", own(100, 100)).unwrap();
    limiter.set_override("small", own(5, 5)).unwrap();
    let handle = limiter.handle("small");
    assert!(limiter.check_cost("large", 60).unwrap().is_allowed());
    assert_eq!(limiter.check_cost("large", 101).unwrap_err().capacity(), 100);
    assert_eq!(limiter.check_cost("small", 6).unwrap_err().capacity(), 5);
    assert_eq!(limiter.peek_cost("small", 6).unwrap_err().capacity(), 5);
    assert_eq!(handle.check_cost(6).unwrap_err().capacity(), 5);
    assert!(matches!(limiter.reserve("small", 6), Err(Refusal::Cost(error)) if error.capacity() == 5));
    let refused = check_all([(&limiter, "small", 6)]).unwrap_err();
    assert!(matches!(refused.refusal, Refusal::Cost(error) if error.capacity() == 5));
    assert_eq!(limiter.check_cost("other", 11).unwrap_err().capacity(), 10);
    assert!(handle.check_cost(5).unwrap().is_allowed());
}

#[test]
fn refunds_and_resets_go_by_the_quota_that_the_key_has() {
    let (limiter, _) = limiter(Limit::token_bucket("a", Quota::per_hour(10)));
    let permit = limiter.reserve("alice", 4).unwrap();
    limiter.set_override("alice", Override::quota(Quota::per_hour(100))).unwrap();
    assert_eq!(limiter.peek("alice").remaining(), 96);
    permit.refund();
    assert_eq!(limiter.peek("alice").remaining(), 100);
    let permit = limiter.reserve("alice", 60).unwrap();
    limiter.clear_override("alice").unwrap();
    assert_eq!(limiter.peek("alice").remaining(), 0);
    permit.settle(5);
    let settled = limiter.peek("alice").remaining();
    assert!(settled <= 10, "{settled} mints nothing");
    limiter.reset("alice").unwrap();
    assert_eq!(limiter.peek("alice").remaining(), 10);
}

#[test]
fn a_quota_that_will_not_do_changes_nothing_and_says_why() {
    let quota = Quota::per_second(10);
    let cases = [
        (Limit::token_bucket("a", quota), Override::quota(Quota::per_second(0)), "quota"),
        (Limit::token_bucket("a", quota), own(10, 0), "burst"),
        (Limit::token_bucket("a", quota), Override::quota(Quota::new(1, Duration::MAX)), "period"),
        (Limit::fixed_window("a", quota), Override::quota(Quota::per_minute(10)), "period"),
        (Limit::sliding_window("a", quota), Override::quota(Quota::per_minute(10)), "period"),
        (Limit::sliding_window("a", quota), own(10, 20), "burst"),
        (Limit::monthly("a", 10), Override::quota(Quota::per_day(10)), "period"),
        (Limit::concurrency("a", 10), Override::quota(Quota::per_second(10)), "period"),
    ];
    for (builder, says, field) in cases {
        let error = builder.clone().override_key("alice", says).build().unwrap_err();
        assert_eq!(error.field(), "overrides", "{error}");
        assert!(error.value().contains("alice") && error.value().contains(field), "{error}");
        let (limiter, _) = limiter(builder);
        let Err(RuleError::Quota(error)) = limiter.set_override("alice", says) else {
            panic!("{says:?} was taken");
        };
        assert_eq!(error.field(), field, "{error}");
        assert!(limiter.overrides().is_empty());
        assert!(limiter.check("alice").is_allowed());
    }
    let month = Limit::monthly("a", 10).override_key("alice", Override::quota(Quota::per_month(20)));
    assert_eq!(admitted(&limiter(month).0, "alice", 50), 20);
    let many = (0..=MAX_QUOTAS as u64).fold(Limit::token_bucket("a", quota), |builder, number| {
        builder.override_key(&number.to_string(), own(100 + number, 1))
    });
    assert_eq!(many.build().unwrap_err().field(), "overrides");
}

#[test]
fn different_quotas_without_end_are_refused_and_those_there_stay() {
    let (limiter, _) = limiter(Limit::token_bucket("a", Quota::per_second(10)));
    let mut taken = 0;
    let refused = loop {
        match limiter.set_override("alice", own(1_000 + taken, 5)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, RuleError::TooManyQuotas);
    assert!(taken >= 2 * MAX_QUOTAS as u64, "{taken}");
    assert_eq!(limiter.peek("alice").quota(), Quota::per_second(1_000 + taken - 1));
    // Known ones can be given to as many keys as there is room for.
    limiter.set_override("bob", own(1_000, 5)).unwrap();
    assert_eq!(admitted(&limiter, "bob", 50), 5);
}

#[test]
fn what_is_said_of_a_network_does_not_apply_to_an_address_with_its_own_quota() {
    let (limiter, _) = limiter(Limit::token_bucket("a", Quota::per_second(10)).allow("10.0.0.0/8"));
    let address: IpAddr = "10.1.2.3".parse().unwrap();
    let asked = |limiter: &Limiter| (0..100).filter(|_| limiter.check(address).is_allowed()).count();
    let handle = limiter.handle(address);
    assert_eq!(asked(&limiter), 100);
    limiter.set_override(address, own(20, 20)).unwrap();
    assert_eq!(asked(&limiter), 20);
    assert!(!handle.check().is_allowed() && !handle.peek().is_allowed());
    limiter.clear_override(address).unwrap();
    assert_eq!(asked(&limiter), 100);
    assert!(handle.check().is_exempt());
}

#[test]
fn changes_while_others_check_lose_and_mint_nothing() {
    // A quota that all but never comes back, changed to and fro by one thread while others spend: all in all as much passes
    // as the largest of them gives. None is so small that its deepest debt would not hold what was spent.
    let day = |units: u64| Override::quota(Quota::per_day(units));
    let limiter = Limiter::new(Limit::token_bucket("a", Quota::per_day(3_000)).build().unwrap());
    let admitted: u64 = std::thread::scope(|scope| {
        let spend = || (0..20_000).filter(|_| limiter.check("alice").is_allowed()).count() as u64;
        let spenders: Vec<_> = (0..3).map(|_| scope.spawn(spend)).collect();
        for round in 0..400 {
            limiter.set_override("alice", day([5_000, 3_000, 4_000][round % 3])).unwrap();
        }
        spenders.into_iter().map(|spender| spender.join().unwrap()).sum()
    });
    limiter.set_override("alice", day(5_000)).unwrap();
    let rest = (0..20_000).filter(|_| limiter.check("alice").is_allowed()).count() as u64;
    let all = admitted + rest;
    assert!((4_995..=5_010).contains(&all), "{admitted} and {rest}");
}

#[test]
fn keys_that_come_in_while_their_quotas_change_have_the_one_that_was_set() {
    let limiter =
        Limiter::new(Limit::token_bucket("a", Quota::per_day(10)).max_keys(100_000).build().unwrap());
    let keys: Vec<String> = (0..3_000).map(|number| format!("key {number}")).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| keys.iter().for_each(|key| assert!(!limiter.check(&**key).is_banned())));
        }
        scope.spawn(|| {
            let quota = Override::quota(Quota::per_day(40));
            keys.iter().for_each(|key| limiter.set_override(&**key, quota).unwrap());
        });
    });
    for key in &keys {
        let peek = limiter.peek(&**key);
        assert_eq!((peek.quota(), peek.remaining()), (Quota::per_day(40), 38), "{key}");
    }
}

/// A bucket by its definition, which is given another quota now and then.
#[derive(Debug)]
struct Model {
    rate: f64,
    burst: f64,
    level: f64,
}

impl Model {
    fn change(&mut self, rate: f64, burst: f64) {
        let missing = self.burst - self.level;
        (self.rate, self.burst) = (rate, burst);
        self.level = (burst - missing).max(-burst.max(rate));
    }

    fn pass(&mut self, seconds: f64) {
        self.level = (self.level + self.rate * seconds).min(self.burst);
    }

    /// Whether the cost passes; `None` where it depends on the last bit.
    fn check(&mut self, cost: f64) -> Option<bool> {
        if (self.level - cost).abs() < 1e-4 {
            return None;
        }
        let passes = self.level >= cost;
        self.level -= if passes { cost } else { 0.0 };
        Some(passes)
    }
}

proptest::proptest! {
    #[test]
    fn a_bucket_whose_quota_changes_is_what_its_definition_says(
        steps in proptest::collection::vec((0_u8..4, 1_u64..400, 1_u64..60, 0_u64..3_000), 1..120),
    ) {
        let (limiter, clock) = limiter(Limit::token_bucket("a", Quota::per_second(10)).burst(20));
        let mut model = Model { rate: 10.0, burst: 20.0, level: 20.0 };
        for (step, rate, cost, millis) in steps {
            match step {
                0 => {
                    let burst = cost * 2;
                    limiter.set_override("alice", own(rate, burst)).unwrap();
                    model.change(rate as f64, burst as f64);
                }
                1 if rate < 100 => {
                    limiter.clear_override("alice").unwrap();
                    model.change(10.0, 20.0);
                }
                _ => {
                    clock.advance(Duration::from_millis(millis));
                    model.pass(millis as f64 / 1e3);
                }
            }
            let Ok(decision) = limiter.check_cost("alice", cost) else {
                proptest::prop_assert!(cost as f64 > model.burst);
                continue;
            };
            proptest::prop_assert!(cost as f64 <= model.burst);
            let Some(passes) = model.check(cost as f64) else { return Ok(()) };
            proptest::prop_assert_eq!(decision.is_allowed(), passes, "{:?}", model);
            let left = model.level.max(0.0).floor();
            proptest::prop_assert!((decision.remaining() as f64 - left).abs() <= 1.0, "{:?} {:?}", decision, model);
            proptest::prop_assert!(decision.remaining() as f64 <= model.burst);
        }
    }
}
