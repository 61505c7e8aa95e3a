//! What is logged and observed.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::*;

#[tokio::test]
async fn every_refusal_is_observed_and_a_flood_is_logged_by_the_second() {
    let clock = ManualClock::new();
    let limiter = limiter_on(clock.clone(), "api", 1);
    let observed = Arc::new(AtomicU64::new(0));
    let layer = layer(&limiter).on_refusal({
        let observed = Arc::clone(&observed);
        move |refusal| {
            assert_eq!(refusal.limit().limit().name(), "api");
            observed.fetch_add(1, Relaxed);
        }
    });
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    for _ in 0..101 {
        call(&layer, request("secret-user", "/")).await;
    }
    clock.advance(Duration::from_secs(1));
    call(&layer, request("other", "/")).await;
    assert_eq!(observed.load(Relaxed), 100);
    let told = log.0.lock().unwrap().clone();
    assert_eq!(told, ["limit=api requests=1 shadow=false", "limit=api requests=99 shadow=false"]);
}

#[tokio::test]
async fn requests_without_a_key_are_logged_by_what_they_lack() {
    let layer = RateLimitLayer::new(limiter("api", 1), BearerToken);
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
