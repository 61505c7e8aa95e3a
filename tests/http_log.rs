//! What the HTTP layer logs, and what it has observed. These tests have a process of their own: where a place in the code is
//! first come by while no subscriber listens, `tracing` may take it that nobody wants its events.
#![cfg(feature = "http")]

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderName, Request, Response};
use ratemesh::{
    Limit, Limiter, ManualClock, Quota,
    http::{BearerToken, Gate, Header, RateLimitLayer},
};
use tower::{Layer as _, ServiceExt as _, service_fn};

/// One request a minute for each user.
fn limiter(clock: ManualClock) -> Limiter {
    Limiter::with_clock(Limit::token_bucket("api", Quota::per_minute(1)).build().unwrap(), clock)
}

async fn call(layer: &RateLimitLayer, request: Request<()>) {
    let answer = async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new()));
    layer.layer(service_fn(answer)).oneshot(request).await.unwrap();
}

async fn call_as(layer: &RateLimitLayer, user: &str) {
    call(layer, Request::get("/").header("x-user", user).body(()).unwrap()).await;
}

#[tokio::test]
async fn every_refusal_is_observed_and_a_flood_is_logged_by_the_second() {
    let clock = ManualClock::new();
    let user = Header::new(HeaderName::from_static("x-user"));
    let gate = Gate::new(limiter(clock.clone()), user);
    let observed = Arc::new(AtomicU64::new(0));
    let layer = RateLimitLayer::from(gate).on_refusal({
        let observed = Arc::clone(&observed);
        move |refusal| {
            assert_eq!(refusal.limit().limit().name(), "api");
            observed.fetch_add(1, Relaxed);
        }
    });
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    for _ in 0..101 {
        call_as(&layer, "secret-user").await;
    }
    clock.advance(Duration::from_secs(1));
    call_as(&layer, "other").await;
    assert_eq!(observed.load(Relaxed), 100);
    let told = log.0.lock().unwrap().clone();
    assert_eq!(told, ["limit=api requests=1 shadow=false", "limit=api requests=99 shadow=false"]);
}

#[tokio::test]
async fn requests_without_a_key_are_logged_by_what_they_lack() {
    let layer = RateLimitLayer::new(limiter(ManualClock::new()), BearerToken);
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    for _ in 0..10 {
        let request = Request::get("/").header("authorization", "Basic c2VjcmV0").body(()).unwrap();
        call(&layer, request).await;
    }
    let told = log.0.lock().unwrap().clone();
    assert_eq!(told, ["limit=api requests=1 missing=one Authorization field with a bearer token"]);
}

/// Keeps the fields of events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(Vec<String>);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() != "message" {
                    self.0.push(format!("{field}={value:?}"));
                }
            }
            fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
                self.0.push(format!("{field}={value}"));
            }
        }
        let mut fields = Fields(Vec::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0.join(" "));
    }
}
