//! Bans, overrides, lists, limits that are only tried out, and limits that count what they refuse; in one process.

use std::{net::IpAddr, time::Duration};

use ratemesh::{
    Limit, LimitBuilder, Limiter, MAX_BAN, MAX_BANS, ManualClock, OnFull, Override, Quota, Refused, RuleError,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn bucket() -> LimitBuilder {
    Limit::token_bucket("a", Quota::per_second(10)).burst(10)
}

fn limiter(builder: LimitBuilder) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::with_clock(builder.build().unwrap(), clock.clone()), clock)
}

fn admitted(limiter: &Limiter, key: &str, asked: usize) -> usize {
    (0..asked).filter(|_| limiter.check(key).is_allowed()).count()
}

#[test]
fn a_banned_key_is_refused_for_as_long_as_it_is_told() {
    // For a key that has a cell, one that has none, and through a handle.
    for known in [true, false] {
        let (limiter, clock) = limiter(bucket());
        let handle = limiter.handle("mallory");
        if known {
            assert!(handle.check().is_allowed());
        }
        limiter.ban("mallory", HOUR).unwrap();
        for _ in 0..3 {
            let decision = limiter.check("mallory");
            assert!(!decision.is_allowed() && decision.is_banned());
            assert_eq!(decision.refused(), Some(Refused::Banned));
            assert_eq!(decision.retry_after(), Some(HOUR));
            assert_eq!((decision.remaining(), decision.reset_after()), (0, HOUR));
            assert!(
                handle.check().is_banned()
                    && limiter.peek("mallory").is_banned()
                    && handle.peek().is_banned()
            );
        }
        assert!(limiter.check("alice").is_allowed());
        assert_eq!(limiter.bans(), [(limiter.key("mallory"), HOUR)]);
        clock.advance(HOUR - Duration::from_nanos(1));
        assert!(limiter.check("mallory").is_banned());
        clock.advance(Duration::from_nanos(1));
        assert!(limiter.peek("mallory").is_allowed());
        assert_eq!(admitted(&limiter, "mallory", 20), 10, "it lapses by itself, and leaves the level alone");
        assert!(limiter.bans().is_empty());
    }
}

#[test]
fn a_ban_only_ever_lengthens_and_ends_when_it_is_lifted() {
    let (limiter, clock) = limiter(bucket());
    assert_eq!(admitted(&limiter, "a", 4), 4);
    limiter.ban("a", HOUR).unwrap();
    limiter.ban("a", HOUR / 2).unwrap();
    assert_eq!(limiter.check("a").retry_after(), Some(HOUR));
    clock.advance(HOUR / 2);
    limiter.ban("a", HOUR).unwrap();
    assert_eq!(limiter.check("a").retry_after(), Some(HOUR));
    assert_eq!(limiter.unban("a"), Ok(true));
    assert_eq!(limiter.unban("a"), Ok(false));
    assert_eq!(limiter.unban("nobody"), Ok(false));
    assert_eq!(admitted(&limiter, "a", 20), 10);
    limiter.ban("a", HOUR).unwrap();
    assert!(limiter.check("a").is_banned(), "it can be banned again");
}

#[test]
fn a_ban_that_will_not_do_changes_nothing() {
    let (limiter, _) = limiter(bucket());
    for duration in [Duration::ZERO, MAX_BAN + Duration::from_nanos(1), Duration::MAX] {
        assert_eq!(limiter.ban("a", duration), Err(RuleError::Duration(duration)));
    }
    assert!(limiter.check("a").is_allowed());
    limiter.ban("a", MAX_BAN).unwrap();
    assert_eq!(limiter.check("a").retry_after(), Some(MAX_BAN));
}

#[test]
fn bans_are_bounded_and_take_no_room_from_keys() {
    let (limiter, clock) = limiter(bucket().max_keys(10).on_full(OnFull::Closed));
    for number in 0..MAX_BANS as u64 {
        limiter.ban(number, HOUR).unwrap();
    }
    assert_eq!(limiter.ban(u64::MAX, HOUR), Err(RuleError::NoRoom));
    assert!(limiter.check(5_u64).is_banned());
    assert_eq!(limiter.live_keys(), 0);
    assert!(limiter.check(u64::MAX).is_allowed());
    clock.advance(HOUR);
    limiter.ban(u64::MAX, HOUR).unwrap();
    assert_eq!(limiter.bans().len(), 1);
}

#[test]
fn a_banned_key_that_lost_its_cell_is_still_banned() {
    let (limiter, clock) = limiter(bucket().max_keys(2));
    assert!(limiter.check("mallory").is_allowed());
    limiter.ban("mallory", HOUR).unwrap();
    for passer_by in 0..20_u64 {
        clock.advance(Duration::from_secs(1));
        assert!(limiter.check(passer_by).is_allowed(), "a banned key must not hold on to its cell");
    }
    assert!(limiter.check("mallory").is_banned());
    clock.advance(HOUR);
    assert_eq!(admitted(&limiter, "mallory", 20), 10);
}

#[test]
fn a_refusal_bans_where_the_limit_says_so() {
    let day = Duration::from_secs(86_400);
    let (limiter, clock) = limiter(Limit::token_bucket("logins", Quota::per_day(100)).ban_on_exceed(day));
    assert_eq!(admitted(&limiter, "mallory", 100), 100);
    let refused = limiter.check("mallory");
    assert!(refused.is_banned());
    assert_eq!(refused.retry_after(), Some(day));
    clock.advance(day / 2);
    assert_eq!(limiter.check("mallory").retry_after(), Some(day / 2), "hammering does not lengthen it");
    assert!(limiter.check("alice").is_allowed());
    clock.advance(day / 2);
    assert_eq!(admitted(&limiter, "mallory", 100), 100);
    assert_eq!(limiter.unban("mallory"), Ok(false));
    assert!(limiter.check("mallory").is_banned());
    assert_eq!(limiter.unban("mallory"), Ok(true));
}

#[test]
fn keys_that_share_a_bucket_are_not_banned_for_each_other() {
    let (limiter, _) = limiter(bucket().max_keys(1).ban_on_exceed(HOUR));
    assert!(limiter.check("first").is_allowed());
    let refused = (0..30).filter(|_| !limiter.check("second").is_allowed()).count();
    assert_eq!(refused, 20);
    assert!(limiter.bans().is_empty());
    assert!(!limiter.check("third").is_banned());
}

#[test]
fn denied_goes_before_banned_and_banned_before_allowed() {
    let (limiter, _) = limiter(bucket());
    limiter.set_override("a", Override::Allow).unwrap();
    let decision = limiter.check("a");
    assert!(decision.is_allowed() && decision.is_exempt());
    assert_eq!(admitted(&limiter, "a", 1_000), 1_000);
    assert_eq!(limiter.live_keys(), 0, "what is not counted takes no room");
    limiter.ban("a", HOUR).unwrap();
    assert_eq!(limiter.check("a").refused(), Some(Refused::Banned));
    limiter.set_override("a", Override::Deny).unwrap();
    let decision = limiter.check("a");
    assert_eq!(decision.refused(), Some(Refused::Denied));
    assert_eq!(decision.retry_after(), Some(Duration::MAX));
    assert_eq!(limiter.overrides(), [(limiter.key("a"), Override::Deny)]);
    assert_eq!(limiter.unban("a"), Ok(true));
    assert_eq!(limiter.check("a").refused(), Some(Refused::Denied));
    assert_eq!(limiter.clear_override("a"), Ok(true));
    assert_eq!(limiter.clear_override("a"), Ok(false));
    assert_eq!(admitted(&limiter, "a", 20), 10);
    assert!(limiter.overrides().is_empty());
}

#[test]
fn an_override_of_a_key_that_has_spent_applies_at_once_and_leaves_the_level() {
    let (limiter, _) = limiter(bucket());
    assert_eq!(admitted(&limiter, "a", 4), 4);
    limiter.set_override("a", Override::Allow).unwrap();
    assert_eq!(admitted(&limiter, "a", 50), 50);
    assert_eq!(limiter.check("a").remaining(), 6);
    limiter.clear_override("a").unwrap();
    assert_eq!(admitted(&limiter, "a", 50), 6);
}

#[test]
fn listed_keys_and_networks_are_allowed_and_denied() {
    let lists = bucket()
        .allow("10.0.0.0/8")
        .allow("key:internal-batch")
        .deny("10.1.0.0/16")
        .deny("2001:db8::/32")
        .deny("key:mallory");
    let (limiter, _) = limiter(lists);
    let refused = |limiter: &Limiter, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        let decision = limiter.check(address).refused();
        assert_eq!(limiter.peek(address).refused(), decision);
        assert_eq!(limiter.handle(address).check().refused(), decision);
        assert_eq!(limiter.check_cost(address, 2).unwrap().refused(), decision);
        decision
    };
    for _ in 0..30 {
        assert_eq!(refused(&limiter, "10.9.9.9"), None);
        assert_eq!(refused(&limiter, "::ffff:10.9.9.9"), None);
        assert_eq!(refused(&limiter, "10.1.2.3"), Some(Refused::Denied));
        assert_eq!(refused(&limiter, "2001:db8::7"), Some(Refused::Denied));
        assert!(limiter.check("internal-batch").is_exempt());
        assert_eq!(limiter.check("mallory").refused(), Some(Refused::Denied));
    }
    assert_eq!(limiter.live_keys(), 0);
    let stranger: IpAddr = "192.0.2.1".parse().unwrap();
    assert_eq!((0..30).filter(|_| limiter.check(stranger).is_allowed()).count(), 10);
    assert_eq!(admitted(&limiter, "10.9.9.9", 30), 10, "a text is no address");

    // What is said of the key itself goes before its network.
    let (inside, outside): (IpAddr, IpAddr) = ("10.9.9.9".parse().unwrap(), "10.1.2.3".parse().unwrap());
    limiter.ban(inside, HOUR).unwrap();
    assert!(limiter.check(inside).is_banned() && limiter.handle(inside).check().is_banned());
    limiter.set_override(outside, Override::Allow).unwrap();
    assert!(limiter.check(outside).is_exempt());
    // A listed denial is not undone by an override.
    limiter.set_override("mallory", Override::Allow).unwrap();
    assert_eq!(limiter.check("mallory").refused(), Some(Refused::Denied));
}

#[test]
fn a_limit_that_is_tried_out_refuses_nothing_and_tells() {
    let (limiter, clock) = limiter(bucket().shadow(true).ban_on_exceed(HOUR));
    assert_eq!(admitted(&limiter, "a", 10), 10);
    let decision = limiter.check("a");
    assert!(decision.is_allowed() && decision.is_shadow_refusal());
    assert_eq!(decision.would_have_been(), Some(Refused::Banned));
    assert_eq!((decision.refused(), decision.retry_after()), (None, None));
    assert_eq!(admitted(&limiter, "a", 100), 100);
    clock.advance(HOUR);
    let decision = limiter.check("a");
    assert!(decision.is_allowed() && !decision.is_shadow_refusal());
    assert_eq!(decision.remaining(), 9, "what would have been refused has cost nothing");
}

#[test]
fn refused_requests_cost_their_units_where_the_limit_says_so() {
    let (limiter, clock) = limiter(bucket().count_denied(true));
    let quiet = limiter.clone();
    assert_eq!(admitted(&limiter, "a", 10), 10);
    // Two refusals take the level two units down, and the wait is honest.
    assert_eq!(limiter.check("a").retry_after().unwrap().as_millis(), 200);
    assert_eq!(limiter.check("a").retry_after().unwrap().as_millis(), 300);
    clock.advance(Duration::from_millis(299));
    assert!(!limiter.peek("a").is_allowed());
    clock.advance(Duration::from_millis(2));
    assert!(limiter.check("a").is_allowed());

    // An attacker who keeps on hammering stays out, and owes no more than the bound.
    let mut passed = 0;
    for _ in 0..1_000 {
        clock.advance(Duration::from_millis(10));
        passed += usize::from(limiter.check("a").is_allowed());
    }
    assert_eq!(passed, 0);
    let wait = limiter.peek("a").retry_after().unwrap();
    assert!(wait <= Duration::from_millis(1_101), "{wait:?}");
    clock.advance(wait);
    assert!(quiet.check("a").is_allowed());
    assert!(limiter.check_cost("b", 11).is_err());
    assert_eq!(limiter.check("b").remaining(), 9, "a cost that never fits costs nothing");
}

#[test]
fn a_refused_window_carries_what_was_asked_into_the_next() {
    let window = Limit::fixed_window("w", Quota::per_hour(10)).count_denied(true);
    let (limiter, clock) = limiter(window);
    assert_eq!(admitted(&limiter, "a", 14), 10);
    clock.advance(HOUR);
    assert_eq!(admitted(&limiter, "a", 6), 6);
    assert!(!limiter.check("a").is_allowed());
}

#[test]
fn a_reset_key_starts_anew() {
    for builder in [bucket(), bucket().count_denied(true), Limit::fixed_window("w", Quota::per_hour(10))] {
        let (limiter, _) = limiter(builder);
        for _ in 0..3 {
            assert_eq!(admitted(&limiter, "a", 30), 10);
            limiter.reset("a").unwrap();
            assert_eq!(limiter.peek("a").remaining(), 10);
        }
        limiter.reset("nobody").unwrap();
        assert_eq!(limiter.live_keys(), 1);
        // What was spent before cannot be given back on top.
        assert_eq!(limiter.refund("a", 30), 0);
        assert_eq!(admitted(&limiter, "a", 30), 10);
        let counts_denied = limiter.limit().counts_denied();
        assert_eq!(limiter.refund("a", 30), if counts_denied { 20 } else { 10 });
    }
}

#[test]
fn threads_that_check_and_ban_at_once_admit_nothing_after_the_ban() {
    let (limiter, _) = limiter(Limit::token_bucket("a", Quota::per_second(1_000_000)).max_keys(4));
    for round in 0..200_u64 {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..50).filter(|_| limiter.check(round).is_allowed()).count());
            }
            scope.spawn(|| limiter.ban(round, HOUR).unwrap());
        });
        assert!(limiter.check(round).is_banned(), "round {round}");
        assert!(limiter.handle(round).check().is_banned(), "round {round}");
    }
}
