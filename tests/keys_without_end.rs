//! More keys than a limit may hold, and many threads at once: memory stays what it was, limits stand, and every unit is
//! accounted for.

mod counting;

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use counting::held_bytes;
use ratemesh::{Limit, LimitBuilder, Limiter, ManualClock, OnFull, Quota};

const CAP: usize = 50_000;
/// Keys of a flood, unless `RATEMESH_FLOOD` says another number.
const FLOOD: u64 = 2_000_000;
/// The allocator's counts are the whole process's, so these tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many keys a flood has: at least a few for each that finds room.
fn flood_keys() -> u64 {
    let said = std::env::var("RATEMESH_FLOOD").ok().and_then(|keys| keys.parse().ok());
    said.unwrap_or(FLOOD).max(CAP as u64 * 8)
}

/// A limiter with a clock that stands still.
fn limiter(limit: LimitBuilder) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::with_clock(limit.build().unwrap(), clock.clone()), clock)
}

/// Spends all that `key` has.
fn exhaust(limiter: &Limiter, key: &str) {
    while limiter.check(key).is_allowed() {}
}

/// A random number generator, so that a failure can be run again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// One request for each of so many keys never seen before, a microsecond apart; returns how many were admitted.
fn flood(limiter: &Limiter, clock: &ManualClock, keys: std::ops::Range<u64>) -> u64 {
    let mut admitted = 0;
    for key in keys {
        admitted += u64::from(limiter.check(("flood", key)).is_allowed());
        clock.advance(Duration::from_micros(1));
        if key % 1_000 == 0 {
            assert!(limiter.live_keys() <= CAP, "{} keys live", limiter.live_keys());
        }
    }
    admitted
}

/// Floods a limiter whose keys drain slowly, as its `on_full` says; the flood's admitted count.
fn flood_where_nothing_drains(on_full: OnFull) -> (Limiter, u64) {
    let (limiter, clock) =
        limiter(Limit::token_bucket("slow", Quota::per_hour(1)).burst(10).max_keys(CAP).on_full(on_full));
    exhaust(&limiter, "offender");
    let first = flood(&limiter, &clock, 0..CAP as u64 * 2);
    let before = held_bytes();
    let admitted = first + flood(&limiter, &clock, CAP as u64 * 2..flood_keys());
    assert!(held_bytes() <= before + 4_096, "held {before} bytes, and then {}", held_bytes());
    assert_eq!(limiter.live_keys(), CAP);
    assert!(!limiter.check("offender").is_allowed(), "forgotten in favour of fresh keys");
    (limiter, admitted)
}

#[test]
fn a_flood_of_keys_that_drain_finds_room_and_leaves_memory_flat() {
    let _turn = turn();
    let (limiter, clock) =
        limiter(Limit::token_bucket("fast", Quota::per_second(100)).burst(5).max_keys(CAP));
    let offender = Limiter::clone(&limiter);
    let admitted = flood(&limiter, &clock, 0..CAP as u64 * 4);
    let before = held_bytes();
    let admitted = admitted + flood(&limiter, &clock, CAP as u64 * 4..flood_keys());
    assert_eq!(admitted, flood_keys(), "a key that drains makes room for the next");
    // Now and then more keys than ever before find all their buckets full at a time, and get slots outside; never as many as a
    // sixteenth of all.
    assert!(held_bytes() <= before + before / 16, "held {before} bytes, and then {}", held_bytes());
    // A key that is kept over its limit through the flood stays there.
    for key in flood_keys()..flood_keys() + 100_000 {
        let _ = limiter.check(("flood", key));
        clock.advance(Duration::from_micros(1));
        while offender.check("offender").is_allowed() {}
    }
    assert!(!limiter.check("offender").is_allowed());
}

/// Lets keys come once each, as many as fill `part` of the table before the first of them drain; returns how many of them were
/// refused although there was room, and how many where there was none.
fn refused_among_drained(max_keys: usize, part: f64) -> (u64, u64) {
    let (limiter, clock) = limiter(
        Limit::token_bucket("once", Quota::per_second(1)).burst(1).max_keys(max_keys).on_full(OnFull::Closed),
    );
    let (mut with_room, mut full) = (0, 0);
    let step = Duration::from_secs_f64(1.0 / (max_keys as f64 * part));
    for key in 0..max_keys as u64 * 20 + 20_000 {
        clock.advance(step);
        if !limiter.check(key).is_allowed() {
            *if limiter.live_keys() < max_keys { &mut with_room } else { &mut full } += 1;
        }
    }
    (with_room, full)
}

#[test]
fn no_key_is_refused_while_there_is_room_and_drained_keys_make_it() {
    let _turn = turn();
    for max_keys in [1, 2, 15, 16, 17, 31, 100, 132, 1_000, 2_500, 4_096, 5_000, 20_000] {
        for part in [0.6, 0.84, 0.97] {
            let (with_room, full) = refused_among_drained(max_keys, part);
            assert_eq!(with_room, 0, "{max_keys} keys, {part} full");
            // A sweep looks at so many cells and no more.
            let most = if part < 0.9 { max_keys as u64 / 20 } else { (max_keys as u64 * 20 + 20_000) / 8 };
            assert!(full <= most, "{full} refused of {max_keys} keys, {part} full");
        }
    }
}

#[test]
fn no_key_is_refused_when_more_keys_come_than_ever() {
    let _turn = turn();
    let (limiter, clock) = limiter(
        Limit::token_bucket("waves", Quota::per_second(1))
            .burst(1)
            .max_keys(1_000_000)
            .on_full(OnFull::Closed),
    );
    let mut key = 0_u64;
    for wave in 1..12 {
        for _ in 0..wave * 25_000 {
            key += 1;
            assert!(limiter.check(key).is_allowed(), "the {key}th key, with {} live", limiter.live_keys());
        }
        clock.advance(Duration::from_secs(20));
    }
}

#[test]
fn keys_without_room_share_one_bucket() {
    let _turn = turn();
    let (limiter, admitted) = flood_where_nothing_drains(OnFull::SharedBucket);
    // One for each key that found room, beside the offender, and the shared bucket's burst.
    assert_eq!(admitted, CAP as u64 - 1 + 10);
    assert!(!limiter.check("one more").is_allowed());
}

#[test]
fn keys_without_room_are_admitted_where_the_limit_says_so() {
    let _turn = turn();
    let (_, admitted) = flood_where_nothing_drains(OnFull::Open);
    assert_eq!(admitted, flood_keys());
}

#[test]
fn keys_without_room_are_refused_where_the_limit_says_so() {
    let _turn = turn();
    let (_, admitted) = flood_where_nothing_drains(OnFull::Closed);
    assert_eq!(admitted, CAP as u64 - 1);
}

#[test]
fn known_keys_keep_their_limits_through_a_flood() {
    let _turn = turn();
    let (limiter, clock) = limiter(
        Limit::token_bucket("kept", Quota::per_hour(1)).burst(100).max_keys(1_000).on_full(OnFull::Closed),
    );
    let known = |number: u64| ("known", number);
    for number in 0..500 {
        assert!(limiter.check_cost(known(number), number % 100 + 1).unwrap().is_allowed());
    }
    for key in 0..100_000_u64 {
        let _ = limiter.check(("flood", key));
        clock.advance(Duration::from_micros(1));
    }
    for number in 0..500 {
        assert_eq!(limiter.peek(known(number)).remaining(), 99 - number % 100);
    }
}

#[test]
fn memory_is_given_out_as_keys_come() {
    let _turn = turn();
    let before = held_bytes();
    let (limiter, _) = limiter(Limit::token_bucket("large", Quota::per_hour(1)).max_keys(1 << 24));
    let empty = held_bytes() - before;
    assert!(empty < 1 << 20, "an empty table of 16 million keys takes {empty} bytes");
    for key in 0..100_000_u64 {
        assert!(limiter.check(key).is_allowed());
    }
    let each = (held_bytes() - before - empty) / 100_000;
    assert!(each < 100, "{each} bytes a key");
}

/// Units that a thread was admitted and has given back, by key.
type Account = Vec<u64>;

/// Lets so many threads work on one limiter, and adds up what each of them kept.
fn together(threads: u64, keys: usize, work: impl Fn(u64, &mut Account) + Sync) -> Account {
    let mut sum = vec![0; keys];
    thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut account = vec![0; keys];
                    work(thread, &mut account);
                    account
                })
            })
            .collect();
        for thread in started {
            let account = thread.join().unwrap();
            sum.iter_mut().zip(account).for_each(|(sum, kept)| *sum += kept);
        }
    });
    sum
}

#[test]
fn threads_spend_a_burst_once_while_keys_come_and_go() {
    let _turn = turn();
    const KEYS: usize = 5_000;
    let (limiter, _) = limiter(
        Limit::token_bucket("once", Quota::per_hour(1)).burst(3).max_keys(1_000).on_full(OnFull::Closed),
    );
    let admitted = together(4, KEYS, |thread, account| {
        let mut dice = Dice(thread + 1);
        for _ in 0..100_000 {
            let key = dice.roll(KEYS as u64);
            account[key as usize] += u64::from(limiter.check(key).is_allowed());
        }
    });
    assert!(admitted.iter().all(|units| *units <= 3), "a key was admitted more than its burst");
    assert_eq!(admitted.iter().filter(|units| **units > 0).count(), 1_000, "each place was given to one key");
    assert_eq!(limiter.live_keys(), 1_000);
}

#[test]
fn no_unit_is_lost_or_made_between_threads_that_spend_and_give_back() {
    let _turn = turn();
    const BURST: u64 = 1_000;
    const KEYS: usize = 48;
    // Fewer places than keys, so that a key whose units were all given back is pushed out again and again.
    let (limiter, _) = limiter(
        Limit::token_bucket("returned", Quota::per_day(1)).burst(BURST).max_keys(32).on_full(OnFull::Closed),
    );
    let kept = together(4, KEYS, |thread, account| {
        let mut dice = Dice(thread + 1);
        let handles: Vec<_> = (0..KEYS as u64).map(|key| limiter.handle(key)).collect();
        for _ in 0..100_000 {
            let (key, cost) = (dice.roll(KEYS as u64), dice.roll(BURST / 4) + 1);
            let place = &mut account[key as usize];
            match dice.roll(4) {
                0 => *place += cost * u64::from(limiter.check_cost(key, cost).unwrap().is_allowed()),
                1 => *place += cost * u64::from(handles[key as usize].check_cost(cost).unwrap().is_allowed()),
                // No more than this thread has of it, so that the accounts stay apart.
                _ => {
                    let units = (*place).min(cost);
                    let given = limiter.refund(key, units);
                    assert_eq!(given, units, "units that were spent in this epoch are taken back");
                    *place -= given;
                }
            }
        }
    });
    for (key, kept) in kept.into_iter().enumerate() {
        assert!(kept <= BURST, "key {key} was admitted {kept} of {BURST}");
        assert_eq!(limiter.peek(key as u64).remaining(), BURST - kept, "key {key}");
    }
}

#[test]
fn threads_admit_exactly_what_comes_back() {
    let _turn = turn();
    const KEYS: usize = 4;
    const BURST: u64 = 100_000;
    const RATE: u64 = 10_000;
    const MILLIS: u64 = 3_000;
    let (limiter, clock) =
        limiter(Limit::token_bucket("exact", Quota::per_second(RATE)).burst(BURST).max_keys(1_000));
    // Empty buckets, so that nothing comes back in vain.
    (0..KEYS as u64).for_each(|key| assert!(limiter.check_cost(key, BURST).unwrap().is_allowed()));
    let running = AtomicBool::new(true);
    let passers_by = AtomicU64::new(0);
    let admitted = together(4, KEYS, |thread, account| {
        let mut dice = Dice(thread + 1);
        let handles: Vec<_> = (0..KEYS as u64).map(|key| limiter.handle(key)).collect();
        if thread == 0 {
            for _ in 0..MILLIS {
                clock.advance(Duration::from_millis(1));
                // Keys that come and go push nobody out who still owes.
                let _ = limiter.check(("passer-by", passers_by.fetch_add(1, Ordering::Relaxed)));
            }
            running.store(false, Ordering::Release);
        }
        while running.load(Ordering::Acquire) {
            let key = dice.roll(KEYS as u64);
            let cost = dice.roll(3) + 1;
            let decision = match dice.roll(2) {
                0 => limiter.check_cost(key, cost),
                _ => handles[key as usize].check_cost(cost),
            };
            account[key as usize] += cost * u64::from(decision.unwrap().is_allowed());
        }
        // What is left, unit by unit.
        for key in 0..KEYS as u64 {
            while limiter.check(key).is_allowed() {
                account[key as usize] += 1;
            }
        }
    });
    assert_eq!(admitted, vec![RATE * MILLIS / 1_000; KEYS]);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the bound is on time as it passes outside of the crate")]
fn no_interval_admits_more_than_the_burst_and_what_comes_back() {
    use std::time::Instant;

    let _turn = turn();
    for (rate, burst) in [(1_000, 1), (1_000, 10), (100_000, 100), (10_000_000, 10_000)] {
        let limit = Limit::token_bucket("interval", Quota::per_second(rate)).burst(burst).build().unwrap();
        let limiter = Limiter::new(limit);
        for pause in 0..20 {
            // Long enough for a full bucket, and at another place of the kernel's tick each time.
            let idle = Instant::now();
            while idle.elapsed() < Duration::from_micros(11_000 + pause * 191) {
                thread::yield_now();
            }
            let start = Instant::now();
            let mut admitted = 0;
            while start.elapsed() < Duration::from_micros(300) {
                admitted += u64::from(limiter.check("key").is_allowed());
            }
            let most = burst as f64 + rate as f64 * start.elapsed().as_secs_f64();
            assert!(
                admitted as f64 <= most,
                "{admitted} admitted at {rate}/s, burst {burst}, instead of {most}"
            );
        }
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the bound is on time as it passes outside of the crate")]
fn a_bucket_that_has_just_filled_up_admits_no_more_than_its_burst() {
    use std::time::Instant;

    let _turn = turn();
    for (rate, burst) in [(1_000, 1_000), (10_000, 20_000), (100_000, 100_000)] {
        for pause in 0..40_u64 {
            let limit = Limit::token_bucket("full", Quota::per_second(rate)).burst(burst).build().unwrap();
            let limiter = Limiter::new(limit);
            // What comes back in six milliseconds, so that the bucket is full again for some of the pause at its end.
            let asked = limiter.check_cost("key", rate * 6 / 1_000).unwrap();
            assert!(asked.is_allowed());
            let idle = Instant::now();
            while idle.elapsed() < Duration::from_micros(6_000 + pause * 97) {
                thread::yield_now();
            }
            let start = Instant::now();
            let mut admitted = 0;
            // One by one, to the last.
            while limiter.check("key").is_allowed() {
                admitted += 1;
            }
            let most = burst as f64 + rate as f64 * start.elapsed().as_secs_f64();
            assert!(
                f64::from(admitted) <= most,
                "{admitted} admitted at {rate}/s, burst {burst}, instead of {most}"
            );
        }
    }
}
