//! Reserve, then settle: what comes back, to whom, and what does not.

use std::time::Duration;

use proptest::prelude::*;
use ratemesh::{Limit, Limiter, ManualClock, OnFull, Override, OwnedRefusal, Permit, Quota, Refusal};

const SECOND: Duration = Duration::from_secs(1);

fn bucket(quota: Quota, burst: u64) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limit = Limit::token_bucket("api", quota).burst(burst).build().unwrap();
    (Limiter::with_clock(limit, clock.clone()), clock)
}

fn left(limiter: &Limiter) -> u64 {
    limiter.peek("alice").remaining()
}

#[test]
fn a_permit_is_settled_down_up_and_given_back_and_keeps_its_cost_when_dropped() {
    let (limiter, _) = bucket(Quota::per_hour(100), 100);
    let settled = limiter.reserve("alice", 40).unwrap().settle(15);
    assert_eq!((settled.given_back(), settled.spent(), settled.cost(), left(&limiter)), (25, 0, 15, 85));
    let settled = limiter.reserve("alice", 10).unwrap().settle(30);
    assert_eq!((settled.given_back(), settled.spent(), settled.cost(), left(&limiter)), (0, 20, 30, 55));
    assert_eq!((limiter.reserve("alice", 5).unwrap().refund(), left(&limiter)), (5, 55));
    drop(limiter.reserve("alice", 5).unwrap());
    limiter.reserve("alice", 5).unwrap().keep();
    assert_eq!(left(&limiter), 45);
    // A price that nobody knows yet.
    assert_eq!(limiter.reserve("alice", 0).unwrap().settle(20).spent(), 20);
    assert_eq!(left(&limiter), 25);
    let handle = limiter.handle("alice");
    assert_eq!((handle.reserve(20).unwrap().settle(10).given_back(), left(&limiter)), (10, 15));
    assert!(matches!(handle.reserve(16), Err(Refusal::Denied(decision)) if decision.remaining() == 15));
}

#[test]
fn a_debt_is_repaid_before_more_is_admitted_and_goes_only_so_deep() {
    let (limiter, clock) = bucket(Quota::per_second(10), 20);
    let settled = limiter.reserve("alice", 10).unwrap().settle(1_000);
    // The rest of the bucket, and as much debt as the bucket holds.
    assert_eq!((settled.spent(), settled.waived(), settled.cost()), (30, 960, 40));
    clock.advance(2 * SECOND);
    assert!(!limiter.check("alice").is_allowed());
    assert_eq!(limiter.check("alice").retry_after().unwrap().as_millis(), 100);
    clock.advance(SECOND);
    assert_eq!(left(&limiter), 10);
}

#[test]
fn what_is_refused_says_why_and_spends_nothing() {
    fn call(limiter: &Limiter) -> Result<Permit, Box<dyn std::error::Error>> {
        Ok(limiter.reserve("alice", 3).map_err(OwnedRefusal::from)?)
    }
    let (limiter, _) = bucket(Quota::per_second(1), 5);
    drop(call(&limiter).unwrap());
    let error = call(&limiter).unwrap_err();
    assert_eq!(error.to_string(), "the limit \"api\" refused 3 units; try again in 1.0s");
    assert_eq!(error.downcast::<OwnedRefusal>().unwrap().retry_after().unwrap().as_millis(), 1_000);
    let error = limiter.reserve("alice", 6).unwrap_err();
    assert!(matches!(error, Refusal::Cost(error) if (error.cost(), error.capacity()) == (6, 5)));
    assert_eq!((error.retry_after(), left(&limiter)), (None, 2));
}

#[test]
fn what_comes_back_never_fills_a_bucket_above_its_capacity() {
    let (limiter, clock) = bucket(Quota::per_second(10), 10);
    let permit = limiter.reserve("alice", 8).unwrap();
    clock.advance(Duration::from_millis(700));
    assert_eq!(permit.refund(), 8);
    let admitted = (0..30).filter(|_| limiter.check("alice").is_allowed()).count();
    assert_eq!(admitted, 10);
}

#[test]
fn units_of_a_window_that_is_over_do_not_come_back() {
    let clock = ManualClock::new();
    let limit = Limit::fixed_window("api", Quota::per_minute(10)).build().unwrap();
    let limiter = Limiter::with_clock(limit, clock.clone());
    let (early, late) = (limiter.reserve("alice", 4).unwrap(), limiter.reserve("alice", 4).unwrap());
    assert_eq!((early.settle(1).given_back(), left(&limiter)), (3, 5));
    clock.advance(60 * SECOND);
    assert!(limiter.check_cost("alice", 7).unwrap().is_allowed());
    assert_eq!((late.refund(), left(&limiter)), (0, 3));
    // Without a permit, no more comes back than was spent in this window.
    assert_eq!((limiter.refund("alice", 9), left(&limiter)), (7, 10));
}

#[test]
fn a_refund_never_reaches_the_key_that_took_the_slot() {
    let clock = ManualClock::new();
    let limit = Limit::token_bucket("api", Quota::per_second(10))
        .max_keys(1)
        .on_full(OnFull::Closed)
        .build()
        .unwrap();
    let limiter = Limiter::with_clock(limit, clock.clone());
    let of_alice = limiter.reserve("alice", 5).unwrap();
    let of_her_too = limiter.reserve("alice", 1).unwrap();
    clock.advance(SECOND);
    // Alice's bucket is full again, so Bob takes the only slot.
    assert!(limiter.check_cost("bob", 8).unwrap().is_allowed());
    assert_eq!((of_alice.refund(), limiter.peek("bob").remaining()), (0, 2));
    clock.advance(SECOND);
    // Nor does it reach what Alice spends in a later life in the same slot.
    assert!(limiter.check_cost("alice", 8).unwrap().is_allowed());
    assert_eq!((of_her_too.refund(), left(&limiter)), (0, 2));
}

#[test]
fn keys_without_room_get_back_what_they_spent_together() {
    let limit = Limit::token_bucket("api", Quota::per_hour(10)).max_keys(1).build().unwrap();
    let limiter = Limiter::with_clock(limit, ManualClock::new());
    assert!(limiter.check("alice").is_allowed());
    let permit = limiter.reserve("bob", 6).unwrap();
    assert_eq!(limiter.check("carol").remaining(), 3);
    assert_eq!(permit.settle(2).given_back(), 4);
    assert_eq!(limiter.check("dave").remaining(), 6);
}

#[test]
fn permits_are_settled_on_any_thread_and_no_unit_is_lost_or_made() {
    let (limiter, _) = bucket(Quota::per_hour(1_000), 1_000);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let limiter = &limiter;
            scope.spawn(move || {
                for round in 0..5_000_u64 {
                    let Ok(permit) = limiter.reserve("alice", 3) else { panic!("there is always enough") };
                    match (round + thread) % 3 {
                        0 => assert_eq!(permit.settle(0).given_back(), 3),
                        1 => assert_eq!(permit.refund(), 3),
                        _ => {
                            assert_eq!(permit.settle(5).spent(), 2);
                            assert_eq!(limiter.refund("alice", 5), 5);
                        }
                    }
                }
            });
        }
    });
    assert_eq!(left(&limiter), 1_000);
}

/// Something that happens to a key of a limit; times are in milliseconds.
#[derive(Clone, Copy, Debug)]
enum Step {
    Reserve(u64),
    /// The oldest permit but so many is settled on a cost.
    Settle(usize, u64),
    Refund(usize),
    Drop(usize),
    Check(u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..12_u64).prop_map(Step::Reserve),
        3 => (0..4_usize, 0..30_u64).prop_map(|(place, actual)| Step::Settle(place, actual)),
        2 => (0..4_usize).prop_map(Step::Refund),
        1 => (0..4_usize).prop_map(Step::Drop),
        2 => (0..12_u64).prop_map(Step::Check),
        3 => (0..900_u64).prop_map(Step::Wait),
    ]
}

/// The limit in plain numbers: levels in thousandths of a unit.
struct Model {
    windows: bool,
    rate: i64,
    capacity: i64,
    level: i64,
    window: u64,
    millis: u64,
}

impl Model {
    fn wait(&mut self, millis: u64) {
        self.millis += millis;
        if self.windows {
            let turned = self.millis / 1_000 - self.window;
            self.window = self.millis / 1_000;
            self.level = (self.level + turned as i64 * self.capacity).min(self.capacity);
        } else {
            self.level = (self.level + self.rate * millis as i64).min(self.capacity);
        }
    }

    fn spend(&mut self, cost: u64) -> bool {
        let allowed = self.level >= cost as i64 * 1_000;
        if allowed {
            self.level -= cost as i64 * 1_000;
        }
        allowed
    }

    /// Spends as much as debts allow.
    fn spend_more(&mut self, units: u64) -> u64 {
        let deepest = if self.windows { self.capacity } else { self.capacity.max(self.rate * 1_000) };
        let room = (self.level + deepest).max(0) as u64 / 1_000;
        let spent = units.min(room);
        self.level -= spent as i64 * 1_000;
        spent
    }

    fn give_back(&mut self, units: u64, window: u64) -> u64 {
        if self.windows && window != self.window {
            return 0;
        }
        self.level = (self.level + units as i64 * 1_000).min(self.capacity);
        units
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 1_000 } else { 20_000 }))]

    #[test]
    fn permits_do_what_the_model_does(
        windows: bool,
        rate in 1..20_u64,
        burst in 1..20_u64,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let clock = ManualClock::new();
        let quota = Quota::per_second(rate);
        let (limit, capacity) = match windows {
            true => (Limit::fixed_window("model", quota), rate),
            false => (Limit::token_bucket("model", quota).burst(burst), burst),
        };
        let limiter = Limiter::with_clock(limit.build().unwrap(), clock.clone());
        let level = capacity as i64 * 1_000;
        let mut model = Model { windows, rate: rate as i64, capacity: level, level, window: 0, millis: 0 };
        let mut permits: Vec<(Permit, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Reserve(cost) => match limiter.reserve("alice", cost) {
                    Ok(permit) => {
                        prop_assert!(model.spend(cost), "{cost} of {}", model.level);
                        permits.push((permit, model.window));
                    }
                    Err(Refusal::Cost(_)) => prop_assert!(cost > capacity),
                    Err(_) => prop_assert!(!model.spend(cost), "{cost} of {}", model.level),
                },
                Step::Settle(place, actual) if place < permits.len() => {
                    let (permit, window) = permits.remove(place);
                    let cost = permit.cost();
                    let settled = permit.settle(actual);
                    let given = if actual < cost { model.give_back(cost - actual, window) } else { 0 };
                    let spent = if actual > cost { model.spend_more(actual - cost) } else { 0 };
                    prop_assert_eq!((settled.given_back(), settled.spent()), (given, spent));
                    prop_assert_eq!(settled.waived(), actual.saturating_sub(cost) - spent);
                }
                Step::Refund(place) if place < permits.len() => {
                    let (permit, window) = permits.remove(place);
                    let cost = permit.cost();
                    prop_assert_eq!(permit.refund(), model.give_back(cost, window));
                }
                Step::Drop(place) if place < permits.len() => drop(permits.remove(place)),
                Step::Settle(..) | Step::Refund(_) | Step::Drop(_) => {}
                Step::Check(cost) => if let Ok(decision) = limiter.check_cost("alice", cost) {
                    prop_assert_eq!(decision.is_allowed(), model.spend(cost), "{} of {}", cost, model.level);
                },
                Step::Wait(millis) => {
                    clock.advance(Duration::from_millis(millis));
                    model.wait(millis);
                }
            }
            prop_assert!(model.level <= model.capacity);
            prop_assert_eq!(limiter.peek("alice").remaining(), (model.level.max(0) / 1_000) as u64);
        }
    }
}

#[test]
fn a_refusal_says_what_can_be_done_about_it() {
    let clock = ManualClock::new();
    let say = |limiter: &Limiter, cost| limiter.reserve("alice", cost).unwrap_err().to_string();
    let bucket = Limit::token_bucket("api", Quota::per_second(3)).build().unwrap();
    let bucket = Limiter::with_clock(bucket, clock.clone());
    assert_eq!(
        say(&bucket, 4),
        "a cost of 4 can never pass a limit that holds 3 units at most; ask for less, or let it hold more"
    );
    bucket.ban("alice", Duration::from_secs(90)).unwrap();
    assert_eq!(say(&bucket, 1), "the limit \"api\" refused 1 units; the key is banned for another 90.0s");
    bucket.set_override("alice", Override::Deny).unwrap();
    assert_eq!(
        say(&bucket, 1),
        "the limit \"api\" refused 1 units; the key is denied, until a list or an override says otherwise"
    );
    let permits = Limiter::with_clock(Limit::concurrency("reports", 1).build().unwrap(), clock);
    let held = permits.reserve("alice", 1).unwrap();
    assert_eq!(
        say(&permits, 1),
        "the limit \"reports\" refused 1 units; try again when permits have been given back"
    );
    drop(held);
    assert!(permits.reserve("alice", 1).is_ok());
}
