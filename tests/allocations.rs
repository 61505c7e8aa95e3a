//! A check of a known key allocates nothing, whatever its key is made from and whatever it answers.

mod counting;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use counting::allocations_of;
use ratemesh::{Digest, KeyHasher, KeySource, Limit, LimitBuilder, Limiter, Quota};

/// Admits everything that a test asks for.
fn ample() -> LimitBuilder {
    Limit::token_bucket("ample", Quota::per_second(1_000_000)).burst(1_000_000)
}

/// Refuses a key's second request, and all after it.
fn scarce() -> LimitBuilder {
    Limit::token_bucket("scarce", Quota::per_day(1)).burst(1)
}

/// Refuses nearly all requests, each after a look at the precise clock.
fn fast() -> LimitBuilder {
    Limit::token_bucket("fast", Quota::per_second(1_000)).burst(1)
}

fn window() -> LimitBuilder {
    Limit::fixed_window("window", Quota::per_day(100))
}

/// Checks `key` once, so that it is known, and then many times.
fn assert_checks_allocate_nothing(what: &str, key: impl KeySource + Copy) {
    for limit in [ample(), scarce(), fast(), window()] {
        let limiter = Limiter::new(limit.build().unwrap());
        let _ = limiter.check(key);
        let (allocations, admitted) =
            allocations_of(|| (0..1_000).filter(|_| limiter.check(key).is_allowed()).count());
        assert_eq!(allocations, 0, "{what} under {}, {admitted} of 1,000 admitted", limiter.limit().name());
    }
}

#[test]
fn checks_of_known_keys_allocate_nothing() {
    let long = "x".repeat(10_000);
    assert_checks_allocate_nothing("a string", "tenant-42/api/v1/orders/create");
    assert_checks_allocate_nothing("a long string", long.as_str());
    assert_checks_allocate_nothing("bytes", [7_u8; 31]);
    assert_checks_allocate_nothing("a number", 42_u64);
    assert_checks_allocate_nothing("a tuple", ("tenant-42", 7_u32, Ipv4Addr::LOCALHOST));
    assert_checks_allocate_nothing("nested tuples", (("tenant-42", "eu"), ("orders", 3_u8)));
    assert_checks_allocate_nothing("nothing", ());
    assert_checks_allocate_nothing("an IPv4 address", IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    assert_checks_allocate_nothing("an IPv6 address", IpAddr::V6(Ipv6Addr::LOCALHOST));
}

#[test]
fn a_checks_answer_is_read_without_allocating() {
    let limiter = Limiter::new(scarce().build().unwrap());
    let _ = limiter.check("alice");
    let (allocations, waits) = allocations_of(|| {
        let refused = limiter.check("alice");
        (refused.retry_after(), refused.reset_after(), refused.remaining(), refused.basis())
    });
    assert_eq!(allocations, 0);
    assert!(waits.0.is_some());
}

#[test]
fn checks_of_many_known_keys_allocate_nothing() {
    // More than a thread remembers, so that they are looked up.
    let keys: Vec<String> = (0..5_000).map(|number| format!("tenant-{number}")).collect();
    let limiter = Limiter::new(ample().build().unwrap());
    let check_all = || keys.iter().filter(|key| limiter.check(key).is_allowed()).count();
    assert_eq!(check_all(), keys.len());
    assert_eq!(allocations_of(check_all), (0, keys.len()));
}

#[test]
fn costs_refunds_and_peeks_allocate_nothing() {
    let limiter = Limiter::new(ample().build().unwrap());
    let _ = limiter.check("alice");
    let (allocations, sums) = allocations_of(|| {
        let spent =
            (0..100).filter(|_| limiter.check_cost("alice", 3).is_ok_and(|it| it.is_allowed())).count();
        let given: u64 = (0..100).map(|_| limiter.refund("alice", 2)).sum();
        let refused = limiter.check_cost("alice", u64::MAX).is_err();
        let peeked = limiter.peek("alice").is_allowed() && limiter.peek("nobody").is_allowed();
        (spent, given, refused, peeked)
    });
    assert_eq!((allocations, sums), (0, (100, 200, true, true)));
}

#[test]
fn checks_through_a_handle_allocate_nothing() {
    for limit in [ample(), scarce(), fast(), window()] {
        let limiter = Limiter::new(limit.build().unwrap());
        let handle = limiter.handle(("tenant-42", "orders"));
        let _ = handle.check();
        let (allocations, _) = allocations_of(|| (0..1_000).filter(|_| handle.check().is_allowed()).count());
        assert_eq!(allocations, 0, "under {}", limiter.limit().name());
        assert_eq!(allocations_of(|| handle.check_cost(1).is_ok()), (0, true));
    }
}

#[test]
fn both_digests_allocate_nothing() {
    for digest in [Digest::Xxh3, Digest::SipHash128] {
        let hasher = KeyHasher::new(digest, b"sixteen bytes or more");
        let (allocations, _) =
            allocations_of(|| hasher.key(("tenant-42", IpAddr::V4(Ipv4Addr::LOCALHOST), 7_u64)));
        assert_eq!(allocations, 0, "{digest:?}");
    }
}

#[test]
fn the_allocator_is_counted_at_all() {
    let (allocations, list) = allocations_of(|| vec![1_u8; 100]);
    assert_eq!((allocations, list.len()), (1, 100));
}

#[test]
fn a_clone_of_a_limiter_or_a_handle_allocates_nothing() {
    let limiter = Limiter::new(ample().build().unwrap());
    let handle = limiter.handle("alice");
    let (allocations, clones) = allocations_of(|| (limiter.clone(), handle.clone()));
    assert_eq!(allocations, 0);
    assert!(clones.0.check("alice").is_allowed() && clones.1.check().is_allowed());
}
