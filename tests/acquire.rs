//! Waiting for units: in order, at the limit's rate, no longer than wanted, and without a trace of who gave up.

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ratemesh::{Limit, Limiter, ManualClock, OwnedRefusal, Permit, Quota, Refusal};
use tokio::task::JoinHandle;

const MILLI: Duration = Duration::from_millis(1);

fn limiter(limit: ratemesh::LimitBuilder) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::with_clock(limit.build().unwrap(), clock.clone()), clock)
}

/// Ten a second, ten at once, and enough waiting.
fn ten() -> (Limiter, ManualClock) {
    limiter(Limit::token_bucket("api", Quota::per_second(10)).queue(1_000))
}

/// Lets all tasks run until none can go on.
async fn run() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

async fn pass(clock: &ManualClock, time: Duration) {
    clock.advance(time);
    run().await;
}

/// Waits in a task of its own, and writes down when it was served.
fn wait(limiter: &Limiter, cost: u64, name: u64, served: &Arc<Mutex<Vec<u64>>>) -> JoinHandle<()> {
    let (limiter, served) = (limiter.clone(), Arc::clone(served));
    tokio::spawn(async move {
        drop(limiter.acquire("alice", cost).await.unwrap());
        served.lock().unwrap().push(name);
    })
}

async fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(there) => Some(there),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn who_came_first_is_served_first_at_the_limits_rate() {
    let (limiter, clock) = ten();
    let served = Arc::new(Mutex::new(Vec::new()));
    drop(limiter.acquire("alice", 10).await.unwrap());
    for (name, cost) in [(0, 5), (1, 1), (2, 3), (3, 1)] {
        drop(wait(&limiter, cost, name, &served));
        run().await;
    }
    // Others have lines of their own.
    drop(limiter.acquire("bob", 10).await.unwrap());
    for (millis, count) in [(400, 0), (99, 0), (2, 1), (98, 1), (3, 2), (297, 2), (4, 3), (96, 3), (3, 4)] {
        pass(&clock, millis * MILLI).await;
        assert_eq!(*served.lock().unwrap(), (0..count).collect::<Vec<u64>>(), "after {:?}", clock.now());
    }
    // A handle stands in the same line.
    let handle = limiter.handle("alice");
    drop(wait(&limiter, 2, 4, &served));
    run().await;
    let mut behind = Box::pin(handle.acquire(1));
    assert!(poll_once(&mut behind).await.is_none());
    pass(&clock, 202 * MILLI).await;
    assert!(poll_once(&mut behind).await.is_none());
    pass(&clock, 100 * MILLI).await;
    assert!(poll_once(&mut behind).await.is_some());
}

#[tokio::test]
async fn a_timer_of_a_millisecond_loses_nothing_of_a_high_rate() {
    let (limiter, clock) = limiter(Limit::token_bucket("api", Quota::per_second(10_000)).burst(1).queue(100));
    let admitted = Arc::new(AtomicU64::new(0));
    for _ in 0..60 {
        let (limiter, admitted) = (limiter.clone(), Arc::clone(&admitted));
        tokio::spawn(async move {
            loop {
                drop(limiter.acquire("alice", 1).await.unwrap());
                admitted.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    run().await;
    for millis in 1..=200 {
        for _ in 0..10 {
            run().await;
        }
        let count = admitted.load(Ordering::Relaxed);
        assert!((10 * millis - 10..=10 * millis - 9 + 1).contains(&count), "{count} in {millis} ms");
        pass(&clock, MILLI).await;
    }
}

#[tokio::test]
async fn a_dropped_future_gives_back_its_place_and_its_units() {
    let (limiter, clock) = ten();
    drop(limiter.acquire("alice", 10).await.unwrap());
    let served = Arc::new(Mutex::new(Vec::new()));
    // One that has the turn, one in the line, and one that is to be served.
    let (first, second) = (wait(&limiter, 8, 0, &served), wait(&limiter, 8, 1, &served));
    run().await;
    drop(wait(&limiter, 2, 2, &served));
    run().await;
    second.abort();
    first.abort();
    run().await;
    pass(&clock, 202 * MILLI).await;
    assert_eq!(*served.lock().unwrap(), [2]);
    // One that has spent in advance, and sleeps until its unit has come.
    let third = wait(&limiter, 1, 3, &served);
    run().await;
    pass(&clock, 96 * MILLI).await;
    assert!(served.lock().unwrap().len() == 1 && !limiter.check_cost("alice", 0).unwrap().is_allowed());
    third.abort();
    run().await;
    assert!(limiter.check_cost("alice", 0).unwrap().is_allowed(), "its unit is back");
    pass(&clock, 1_000 * MILLI).await;
    assert_eq!((limiter.peek("alice").remaining(), served.lock().unwrap().len()), (10, 1));
}

#[tokio::test]
async fn a_full_line_refuses_at_once() {
    let (limiter, clock) = limiter(Limit::token_bucket("api", Quota::per_second(10)).queue(6));
    let served = Arc::new(Mutex::new(Vec::new()));
    drop(limiter.acquire("alice", 10).await.unwrap());
    let waiting = wait(&limiter, 4, 0, &served);
    run().await;
    let refused = limiter.acquire("alice", 3).await.unwrap_err();
    assert!(matches!(refused, Refusal::QueueFull(_)), "{refused}");
    assert_eq!(
        OwnedRefusal::from(refused).to_string(),
        "the limit \"api\" lets requests for 6 units wait, and there is no place for 3 more"
    );
    drop(wait(&limiter, 2, 1, &served));
    run().await;
    // Who leaves makes room.
    waiting.abort();
    run().await;
    drop(wait(&limiter, 4, 2, &served));
    run().await;
    assert!(limiter.acquire("alice", 1).await.is_err());
    pass(&clock, 700 * MILLI).await;
    assert_eq!(*served.lock().unwrap(), [1, 2]);
    assert!(
        matches!(limiter.acquire("alice", 11).await, Err(Refusal::Cost(error)) if error.capacity() == 10)
    );

    let (none, _) = self::limiter(Limit::token_bucket("api", Quota::per_second(10)).queue(0));
    drop(none.acquire("alice", 10).await.unwrap());
    assert!(matches!(none.acquire("alice", 1).await, Err(Refusal::QueueFull(_))));
}

#[tokio::test]
async fn nobody_waits_longer_than_it_would_or_for_what_cannot_come_in_time() {
    let (limiter, clock) = ten();
    drop(limiter.acquire("alice", 10).await.unwrap());
    let late = limiter.acquire_timeout("alice", 5, 499 * MILLI).await.unwrap_err();
    assert!(matches!(late, Refusal::TooLate(decision) if decision.remaining() == 0), "{late}");
    let served = Arc::new(Mutex::new(Vec::new()));
    drop(wait(&limiter, 5, 0, &served));
    run().await;
    // The units of those before it count.
    assert!(matches!(limiter.acquire_timeout("alice", 1, 599 * MILLI).await, Err(Refusal::TooLate(_))));
    let mut in_time = Box::pin(limiter.acquire_timeout("alice", 1, 601 * MILLI));
    let mut overtaken = Box::pin(limiter.acquire_timeout("alice", 1, 701 * MILLI));
    assert!(poll_once(&mut in_time).await.is_none() && poll_once(&mut overtaken).await.is_none());
    pass(&clock, 502 * MILLI).await;
    assert!(poll_once(&mut in_time).await.is_none() && poll_once(&mut overtaken).await.is_none());
    pass(&clock, 99 * MILLI).await;
    assert!(matches!(poll_once(&mut in_time).await, Some(Ok(_))));
    // Somebody who does not stand in line takes what would have come, and more than that is owed.
    assert_eq!(limiter.reserve("alice", 0).unwrap().settle(5).spent(), 5);
    assert!(poll_once(&mut overtaken).await.is_none());
    pass(&clock, 101 * MILLI).await;
    assert!(matches!(poll_once(&mut overtaken).await, Some(Err(Refusal::TooLate(_)))));
    pass(&clock, 2_000 * MILLI).await;
    assert_eq!(limiter.peek("alice").remaining(), 10);
}

#[tokio::test]
async fn windows_and_several_quotas_are_waited_for_too() {
    let (windows, clock) = limiter(Limit::fixed_window("api", Quota::per_minute(2)));
    drop(windows.acquire("alice", 2).await.unwrap());
    let mut next = Box::pin(windows.acquire("alice", 1));
    assert!(poll_once(&mut next).await.is_none());
    pass(&clock, 59_900 * MILLI).await;
    assert!(poll_once(&mut next).await.is_none());
    pass(&clock, 100 * MILLI).await;
    let permit: Permit = poll_once(&mut next).await.unwrap().unwrap();
    assert_eq!((permit.refund(), windows.peek("alice").remaining()), (1, 2));

    let bands = Limit::token_bucket("api", Quota::per_second(10)).and(Quota::per_minute(12)).queue(20);
    let (bands, clock) = limiter(bands);
    drop(bands.acquire("alice", 10).await.unwrap());
    let mut next = Box::pin(bands.acquire("alice", 5));
    assert!(poll_once(&mut next).await.is_none());
    // The minute's quota brings a unit in five seconds, and three are missing.
    pass(&clock, 14_900 * MILLI).await;
    assert!(poll_once(&mut next).await.is_none());
    pass(&clock, 101 * MILLI).await;
    assert!(poll_once(&mut next).await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn waiters_that_come_and_go_on_many_threads_lose_and_make_no_unit() {
    let limit = Limit::token_bucket("api", Quota::per_second(100_000)).burst(50).queue(10_000);
    let limiter = Limiter::new(limit.build().unwrap());
    let tasks: Vec<_> = (0..24_u64)
        .map(|task| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut spent = 0;
                for round in 0..200_u64 {
                    let cost = (task + round) % 5;
                    let patience = Duration::from_micros((task * 37 + round * 101) % 3_000);
                    // Some give up on their own account, some are dropped in the middle.
                    let acquired = match round % 2 {
                        0 => limiter.acquire_timeout("alice", cost, patience).await.is_ok(),
                        _ => tokio::time::timeout(patience, limiter.acquire("alice", cost))
                            .await
                            .is_ok_and(|acquired| acquired.is_ok()),
                    };
                    spent += if acquired { cost } else { 0 };
                }
                spent
            })
        })
        .collect();
    let mut spent = 0;
    for task in tasks {
        spent += task.await.unwrap();
    }
    assert!(spent > 0);
    // Nobody is left in the line, and the bucket fills up to what it holds.
    tokio::time::timeout(Duration::from_secs(20), async {
        while limiter.peek("alice").remaining() < 50 {
            tokio::time::sleep(MILLI).await;
        }
        drop(limiter.acquire("alice", 50).await.unwrap());
    })
    .await
    .expect("the line must go on");
}
