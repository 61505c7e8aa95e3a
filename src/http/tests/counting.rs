//! What is given back.

use std::{
    future::{Future, poll_fn},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use super::*;

#[tokio::test]
async fn failures_are_counted_and_the_rest_is_given_back() {
    let limiter = limiter("logins", 2);
    let layer = RateLimitLayer::from(gate(&limiter).count(Count::Failures))
        .header_fields(HeaderFields::new().rate_limit(Edition::Draft10));
    let requests = [
        ("a", "/200"),
        ("a", "/401"),
        ("a", "/204"),
        ("a", "/302"),
        ("a", "/500"),
        ("a", "/200"),
        ("b", "/200"),
    ];
    assert_eq!(statuses(&layer, &requests).await, [200, 401, 204, 302, 500, 429, 200]);
    assert_eq!((spent(&limiter, "a"), spent(&limiter, "b")), (2, 0));
    let response = call(&layer, request("b", "/200")).await;
    assert_eq!(header(&response, "ratelimit"), r#""logins";r=2;t=0"#);
}

#[tokio::test]
async fn successes_are_counted_by_a_predicate_of_ones_own() {
    let limiter = limiter("registrations", 2);
    let own = gate(&limiter).count(Count::Successes).failure_if(|status, _| status != StatusCode::CREATED);
    let layer = RateLimitLayer::from(own);
    let requests = [("a", "/200"), ("a", "/201"), ("a", "/409"), ("a", "/201"), ("a", "/201")];
    assert_eq!(statuses(&layer, &requests).await, [200, 201, 409, 201, 429]);
    assert_eq!(spent(&limiter, "a"), 2);
}

#[tokio::test]
async fn limits_of_one_layer_count_each_in_its_way() {
    let (all, failures, successes) = (limiter("all", 9), limiter("failures", 9), limiter("successes", 9));
    let layer =
        layer(&all).and(gate(&failures).count(Count::Failures)).and(gate(&successes).count(Count::Successes));
    statuses(&layer, &[("a", "/200"), ("a", "/500"), ("a", "/200")]).await;
    assert_eq!((spent(&all, "a"), spent(&failures, "a"), spent(&successes, "a")), (3, 1, 2));
}

#[tokio::test]
async fn a_grpc_status_makes_a_failure() {
    let limiter = limiter("calls", 2);
    let layer = RateLimitLayer::from(gate(&limiter).count(Count::Failures));
    for (status, expected) in [("0", 0), ("16", 1)] {
        let handler = service_fn(move |_: Request<()>| {
            let response = Response::builder().header("grpc-status", status).body(Body::default());
            std::future::ready(Ok::<_, Infallible>(response.unwrap()))
        });
        layer.layer(handler).oneshot(request("a", "/")).await.unwrap();
        assert_eq!(spent(&limiter, "a"), expected);
    }
}

#[tokio::test]
async fn an_error_of_the_service_is_a_failure() {
    for (count, expected) in
        [(Count::All, 1), (Count::Failures, 1), (Count::Successes, 0), (Count::InFlight, 0)]
    {
        let limiter = limiter("api", 2);
        let failing = service_fn(async |_: Request<()>| Err::<Response<Body>, _>("broken"));
        let layer = RateLimitLayer::from(gate(&limiter).count(count));
        assert_eq!(layer.layer(failing).oneshot(request("a", "/")).await.unwrap_err(), "broken");
        assert_eq!(spent(&limiter, "a"), expected, "{count:?}");
    }
}

#[tokio::test]
async fn a_panic_is_a_failure_also_when_it_is_caught_outside() {
    for (count, expected) in
        [(Count::All, 1), (Count::Failures, 1), (Count::Successes, 0), (Count::InFlight, 0)]
    {
        let limiter = limiter("api", 2);
        let panicking = service_fn(async |request: Request<()>| match request.uri().path() {
            "/panic" => panic!("on purpose"),
            _ => echo(request).await,
        });
        let layer = RateLimitLayer::from(gate(&limiter).count(count));
        let mut future = Box::pin(layer.layer(panicking).oneshot(request("a", "/panic")));
        let polled = poll_fn(|cx| {
            let polled = std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx).map(drop)));
            Poll::Ready(polled)
        });
        assert!(polled.await.is_err());
        drop(future);
        assert_eq!(spent(&limiter, "a"), expected, "{count:?}");
    }
}

#[tokio::test]
async fn hanging_up_is_not_free_of_charge() {
    for (count, expected) in
        [(Count::All, 1), (Count::Failures, 1), (Count::Successes, 1), (Count::InFlight, 0)]
    {
        let limiter = limiter("api", 2);
        let slow = service_fn(async |_: Request<()>| {
            std::future::pending::<Result<Response<Body>, Infallible>>().await
        });
        let layer = RateLimitLayer::from(gate(&limiter).count(count));
        let mut future = Box::pin(layer.layer(slow).oneshot(request("a", "/")));
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(spent(&limiter, "a"), 1);
        drop(future);
        assert_eq!(spent(&limiter, "a"), expected, "{count:?}");
    }
}

#[tokio::test]
async fn requests_in_flight_hold_their_units_to_the_end_of_the_body() {
    let limiter = limiter("reports", 2);
    let layer = RateLimitLayer::from(gate(&limiter).count(Count::InFlight));
    let first = call(&layer, request("a", "/")).await;
    let second = call(&layer, request("a", "/500")).await;
    assert_eq!(call(&layer, request("a", "/")).await.status(), 429);
    assert_eq!(spent(&limiter, "a"), 2);
    drop(first);
    assert_eq!(spent(&limiter, "a"), 1);
    assert_eq!(text(second).await, "from the service");
    assert_eq!(spent(&limiter, "a"), 0);
}

#[tokio::test]
async fn an_upgraded_connection_can_hold_on() {
    let limiter = limiter("sockets", 1);
    let layer = RateLimitLayer::from(gate(&limiter).count(Count::InFlight));
    let taken = Arc::new(Mutex::new(None));
    let handler = service_fn({
        let taken = Arc::clone(&taken);
        move |request: Request<()>| {
            *taken.lock().unwrap() = request.extensions().get::<InFlight>().cloned();
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::default())))
        }
    });
    drop(layer.layer(handler).oneshot(request("a", "/")).await.unwrap());
    assert_eq!(spent(&limiter, "a"), 1);
    *taken.lock().unwrap() = None;
    assert_eq!(spent(&limiter, "a"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_ten_thousand_at_once_exactly_the_failures_count() {
    const REQUESTS: u64 = 10_000;
    let limiter = limiter("logins", REQUESTS);
    let layer = RateLimitLayer::from(gate(&limiter).count(Count::Failures));
    let start = Arc::new(tokio::sync::Barrier::new(REQUESTS as usize));
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let start = Arc::clone(&start);
        async move {
            start.wait().await;
            echo(request).await
        }
    }));
    let tasks: Vec<_> = (0..REQUESTS)
        .map(|i| {
            let path = ["/200", "/401", "/500", "/204"][i as usize % 4];
            tokio::spawn(service.clone().oneshot(request("a", path)))
        })
        .collect();
    for task in tasks {
        assert_ne!(task.await.unwrap().unwrap().status(), 429);
    }
    assert_eq!(spent(&limiter, "a"), REQUESTS / 2);
}

fn permits(name: &str, permits: u64) -> Limiter {
    Limiter::with_clock(Limit::concurrency(name, permits).build().unwrap(), ManualClock::new())
}

#[tokio::test]
async fn permits_come_back_whatever_is_set() {
    for count in [Count::All, Count::Failures, Count::Successes, Count::InFlight] {
        let limiter = permits("reports", 1);
        let layer = RateLimitLayer::from(gate(&limiter).count(count));
        for path in ["/200", "/401", "/500", "/204"] {
            let response = call(&layer, request("a", path)).await;
            assert_eq!(spent(&limiter, "a"), 1, "{count:?}");
            assert_eq!(call(&layer, request("a", "/")).await.status(), 429, "{count:?}");
            drop(response);
            assert_eq!(spent(&limiter, "a"), 0, "{count:?}");
        }
    }
}

#[tokio::test]
async fn a_refusal_by_another_limit_holds_no_permit() {
    let (reports, api) = (permits("reports", 2), limiter("api", 1));
    for layer in [layer(&reports).and(gate(&api)), layer(&api).and(gate(&reports))] {
        let held = call(&layer, request("a", "/")).await;
        assert_eq!(spent(&reports, "a"), u64::from(held.status() == 200));
        assert_eq!(call(&layer, request("a", "/")).await.status(), 429);
        drop(held);
        assert_eq!(spent(&reports, "a"), 0);
    }
    // Beside failures that are counted: each comes back by its own rule.
    let failures = limiter("failures", 5);
    let layer = layer(&reports).and(gate(&failures).count(Count::Failures));
    let (held, failed) = (call(&layer, request("b", "/200")).await, call(&layer, request("b", "/401")).await);
    assert_eq!((spent(&reports, "b"), spent(&failures, "b")), (2, 1));
    drop((held, failed));
    assert_eq!((spent(&reports, "b"), spent(&failures, "b")), (0, 1));
}

#[tokio::test]
async fn code_of_the_application_that_panics_takes_no_permit_along() {
    let limiter = permits("reports", 1);
    let panicking: [fn(Gate) -> Gate; 3] = [
        |gate| gate.partition_key(|_| panic!("on purpose")),
        |gate| gate.cost(|_| panic!("on purpose")),
        |gate| gate.skip(|_| panic!("on purpose")),
    ];
    for own in panicking {
        for layer in [own(gate(&limiter)).into(), layer(&limiter).and(own(gate(&limiter)))] {
            let layer: RateLimitLayer = layer;
            let mut service = layer.layer(service_fn(echo));
            let called = std::panic::catch_unwind(AssertUnwindSafe(|| {
                drop(tower::Service::call(&mut service, request("a", "/")));
            }));
            assert!(called.is_err());
            assert_eq!(spent(&limiter, "a"), 0);
        }
    }
    // A service may panic before it has made a future.
    let mut service = layer(&limiter).layer(service_fn(
        |_: Request<()>| -> std::future::Ready<Result<Response<Body>, Infallible>> { panic!("on purpose") },
    ));
    let called = std::panic::catch_unwind(AssertUnwindSafe(|| {
        drop(tower::Service::call(&mut service, request("a", "/")));
    }));
    assert!(called.is_err());
    assert_eq!(spent(&limiter, "a"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn permits_of_many_at_once_all_come_back() {
    let limiter = permits("reports", 8);
    let peak = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let service = layer(&limiter).layer(service_fn({
        let (limiter, peak) = (limiter.clone(), Arc::clone(&peak));
        move |request: Request<()>| {
            peak.fetch_max(spent(&limiter, "a"), std::sync::atomic::Ordering::Relaxed);
            async {
                tokio::task::yield_now().await;
                echo(request).await
            }
        }
    }));
    let tasks: Vec<_> =
        (0..2_000).map(|_| tokio::spawn(service.clone().oneshot(request("a", "/")))).collect();
    let mut passed = 0;
    for (number, task) in tasks.into_iter().enumerate() {
        // Some responses are read to the end, others are dropped halfway.
        let response = task.await.unwrap().unwrap();
        passed += u64::from(response.status() == 200);
        if number % 2 == 0 {
            text(response).await;
        }
    }
    assert!(passed >= 8, "{passed}");
    assert!((1..=8).contains(&peak.load(std::sync::atomic::Ordering::Relaxed)));
    assert_eq!(spent(&limiter, "a"), 0);
}
