//! Work whose instructions are counted: `ratemesh-instructions CASE` does it, and prints how many times.
//!
//! Callgrind collects within [`counted`] alone, so what is set up before it does not count.

use std::{hint::black_box, process::ExitCode, time::Duration};

use ratemesh::{Limit, LimitBuilder, LimitError, Limiter, Quota, sim::Cluster};

/// As long as a request's key commonly is: 31 bytes.
const KEY: &str = "tenant-042/api/v1/orders/create";
/// Checks counted in a case.
const CHECKS: usize = 20_000;
/// Keys in a case that has more of them than a thread remembers.
const KEYS: usize = 4_096;
/// Keys that one node changes, and heartbeats in which it does so.
const MERGED_KEYS: usize = 1_000;
const HEARTBEATS: usize = 5;

/// Runs the work. Callgrind is told this function's name.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
}

/// A limit that admits each of a run's requests, and never finds its bucket full after the first.
fn ample() -> LimitBuilder {
    Limit::token_bucket("ample", Quota::per_hour(1)).burst(1 << 40).max_keys(100_000)
}

/// A limit that refuses all requests of a key but the first.
fn scarce() -> LimitBuilder {
    Limit::token_bucket("scarce", Quota::per_hour(1)).burst(1)
}

/// A window that admits each of a run's requests.
fn window() -> LimitBuilder {
    Limit::fixed_window("window", Quota::per_day(1 << 40))
}

/// Keys of 31 bytes.
fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("tenant-{number:06}/api/v1/orders/new")).collect()
}

/// Checks one key again and again; `allowed` says what the answer has to be.
fn check(limit: LimitBuilder, allowed: bool) -> Result<usize, LimitError> {
    let limiter = Limiter::new(limit.build()?);
    let _ = limiter.check(KEY);
    counted(&mut || {
        for _ in 0..CHECKS {
            assert_eq!(limiter.check(black_box(KEY)).is_allowed(), allowed);
        }
    });
    Ok(CHECKS)
}

/// The same through a handle.
fn check_handle() -> Result<usize, LimitError> {
    let limiter = Limiter::new(ample().build()?);
    let handle = limiter.handle(KEY);
    let _ = handle.check();
    counted(&mut || {
        for _ in 0..CHECKS {
            assert!(black_box(&handle).check().is_allowed());
        }
    });
    Ok(CHECKS)
}

/// Checks more keys in turn than a thread remembers, so that they are looked up.
fn check_in_turn() -> Result<usize, LimitError> {
    let limiter = Limiter::new(ample().build()?);
    let keys = keys(KEYS);
    keys.iter().for_each(|key| assert!(limiter.check(key).is_allowed()));
    counted(&mut || {
        for key in keys.iter().cycle().take(CHECKS) {
            assert!(limiter.check(black_box(key)).is_allowed());
        }
    });
    Ok(CHECKS)
}

/// Checks each key once.
fn check_new() -> Result<usize, LimitError> {
    let limiter = Limiter::new(ample().build()?);
    let keys = keys(CHECKS);
    counted(&mut || {
        for key in &keys {
            assert!(limiter.check(black_box(key)).is_allowed());
        }
    });
    Ok(CHECKS)
}

/// One node spends on keys, and two others merge what it spent: publishing, encoding, decoding, merging, debiting, with
/// what the simulator needs to carry some messages. Counted by the share merged.
fn merge() -> Result<usize, LimitError> {
    let mut cluster = Cluster::new(3, vec![ample().build()?], 42);
    cluster.keep_less();
    cluster.advance(Duration::from_secs(3));
    let keys = keys(MERGED_KEYS);
    for _ in 0..HEARTBEATS {
        keys.iter().for_each(|key| assert!(cluster.check(0, key).is_some_and(|answer| answer.allowed)));
        counted(&mut || cluster.advance(Duration::from_millis(200)));
    }
    for node in [1, 2] {
        let spent = cluster.view(node, &keys[7]).map(|counter| counter.value());
        assert_eq!(spent, Some(HEARTBEATS as u64), "node {node} has merged what node 0 spent");
    }
    Ok(2 * MERGED_KEYS * HEARTBEATS)
}

fn main() -> ExitCode {
    let case = std::env::args().nth(1).unwrap_or_default();
    let count = match case.as_str() {
        "check" => check(ample(), true),
        "check_denied" => check(scarce(), false),
        "check_window" => check(window(), true),
        "check_handle" => check_handle(),
        "check_in_turn" => check_in_turn(),
        "check_new" => check_new(),
        "merge" => merge(),
        _ => {
            eprintln!("no such case: {case:?}");
            return ExitCode::from(2);
        }
    };
    match count {
        Ok(count) => {
            println!("{count}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
