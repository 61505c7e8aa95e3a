//! What clients, handlers and servers see.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower_service::Service;

use super::*;

#[tokio::test]
async fn a_refusal_says_when_to_retry_and_why() {
    let layer = layer(&limiter("api", 1));
    call(&layer, request("a", "/")).await;
    let response = call(&layer, request("a", "/")).await;
    assert_eq!(response.status(), 429);
    assert_eq!(header(&response, "retry-after"), "60");
    assert_eq!(header(&response, "content-type"), "application/problem+json");
    assert_eq!(header(&response, "ratelimit"), "absent");
    let problem: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["api"]));
    assert_eq!(problem["retry_after"], 60);
    assert!(problem["detail"].as_str().unwrap().contains("60 seconds"));
}

#[tokio::test]
async fn the_answer_can_be_chosen() {
    let refused = async |layer: RateLimitLayer| {
        call(&layer, request("a", "/")).await;
        call(&layer, request("a", "/")).await
    };
    let base = || layer(&limiter("api", 1));

    let response = refused(base().body(RefusalBody::Json).status(StatusCode::SERVICE_UNAVAILABLE)).await;
    assert_eq!(
        (response.status().as_u16(), header(&response, "content-type").as_str()),
        (503, "application/json")
    );
    let json: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!((&json["limit"], &json["retry_after"]), (&"api".into(), &60.into()));

    let response = refused(base().body(RefusalBody::Text)).await;
    assert_eq!(header(&response, "content-type"), "text/plain; charset=utf-8");
    assert_eq!(text(response).await, "The limit \"api\" is exceeded. Try again in 60 seconds.\n");

    let response = refused(base().body(RefusalBody::Empty)).await;
    assert_eq!(header(&response, "content-type"), "absent");
    assert_eq!(text(response).await, "");

    let response = refused(gate(&limiter("api", 1)).status(StatusCode::FORBIDDEN).into()).await;
    assert_eq!(response.status(), 403);
    assert!(text(response).await.contains("\"status\":403"));

    let own = |refusal: &Refusal<'_>| {
        assert_eq!(refusal.retry_after().map(|wait| wait.as_secs()), Some(60));
        let path = refusal.request().uri().path().to_owned();
        Response::builder().status(refusal.status()).header("retry-after", "77").body(path.into()).unwrap()
    };
    let response = refused(base().respond_with(own)).await;
    assert_eq!(header(&response, "retry-after"), "77");
    assert_eq!(text(response).await, "/");
}

#[tokio::test]
async fn grpc_clients_are_refused_in_their_own_way() {
    let layer = layer(&limiter("api", 1)).grpc(true);
    let grpc = |user: &str| {
        Request::post("/").header("x-user", user).header("content-type", "application/grpc").body(()).unwrap()
    };
    call(&layer, grpc("a")).await;
    let response = call(&layer, grpc("a")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-type"), "application/grpc");
    assert_eq!(header(&response, "grpc-status"), "8");
    assert_eq!(header(&response, "retry-after"), "60");
    assert_ne!(header(&response, "grpc-status-details-bin"), "absent");
    assert!(http_body::Body::is_end_stream(response.body()));
    assert_eq!(header(&call(&layer, grpc("")).await, "grpc-status"), "3");
    assert_eq!(call(&layer, request("a", "/")).await.status(), 429);
}

#[tokio::test]
async fn handlers_and_outer_layers_see_where_the_request_stands() {
    let limiter = limiter("api", 5);
    let layer = layer(&limiter).attach_to_request(true).attach_to_response(true);
    let handler = service_fn(async |request: Request<()>| {
        let limited = request.extensions().get::<RateLimited>().unwrap();
        let remaining = limited.limit("api").unwrap().remaining();
        assert!(limited.limit("other").is_none());
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(remaining.to_string())))
    });
    let response = layer.layer(handler).oneshot(request("a", "/")).await.unwrap();
    let limited = response.extensions().get::<RateLimited>().unwrap().clone();
    let status = limited.limits().next().unwrap();
    assert_eq!((status.remaining(), status.cost(), status.retry_after()), (4, 1, None));
    assert_eq!(status.reset_after().as_secs(), 12);
    assert_eq!(status.key(), limiter.key("a"));
    assert!(!format!("{limited:?}").contains("Key("));
    assert_eq!(text(response).await, "4");
}

#[tokio::test]
async fn handlers_keep_the_figures_that_they_were_given() {
    let layer = RateLimitLayer::from(gate(&limiter("api", 5)).count(Count::Failures))
        .attach_to_request(true)
        .attach_to_response(true);
    let (tell, told) = std::sync::mpsc::channel();
    let handler = service_fn(move |request: Request<()>| {
        tell.send(request.extensions().get::<RateLimited>().cloned().unwrap()).unwrap();
        echo(request)
    });
    let response = layer.layer(handler).oneshot(request("a", "/200")).await.unwrap();
    let remaining = |limited: &RateLimited| limited.limit("api").unwrap().remaining();
    assert_eq!(remaining(&told.recv().unwrap()), 4);
    assert_eq!(remaining(response.extensions().get().unwrap()), 5);
}

#[tokio::test]
async fn fields_are_kept_that_the_application_set() {
    let fields = HeaderFields::new().rate_limit(Edition::Draft7).legacy(LegacyReset::Epoch);
    let layer = layer(&limiter("api", 5)).header_fields(fields);
    let handler = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::builder().header("ratelimit", "mine").body(Body::default()).unwrap())
    });
    let response = layer.layer(handler).oneshot(request("a", "/")).await.unwrap();
    assert_eq!(header(&response, "ratelimit"), "mine");
    assert_eq!(header(&response, "ratelimit-policy"), "absent");
    assert_eq!(header(&response, "x-ratelimit-remaining"), "4");
    // Twelve seconds after the start of 2020, where a clock set by hand begins.
    assert_eq!(header(&response, "x-ratelimit-reset"), "1577836812");
}

#[tokio::test]
async fn partition_keys_are_those_of_the_request() {
    let limiter = limiter("api", 5);
    let own = gate(&limiter).partition_key(|request| Some(request.uri().path().as_bytes().to_vec()));
    let layer = RateLimitLayer::from(own).header_fields(HeaderFields::new().rate_limit(Edition::Draft10));
    let response = call(&layer, request("a", "/201")).await;
    assert_eq!(header(&response, "ratelimit-policy"), r#""api";q=5;w=60;pk=:LzIwMQ==:"#);
    assert_eq!(header(&response, "ratelimit"), r#""api";r=4;t=12;pk=:LzIwMQ==:"#);
}

/// A service that is never ready.
#[derive(Clone)]
struct NeverReady;

impl Service<Request<()>> for NeverReady {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        unreachable!("it is never ready")
    }
}

#[test]
fn readiness_is_the_services_own_and_spends_nothing() {
    let limiter = limiter("api", 1);
    let mut service = layer(&limiter).layer(NeverReady);
    assert!(service.poll_ready(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(limiter.live_keys(), 0);
}

#[test]
fn the_parts_move_between_threads_and_are_small() {
    fn movable<T: Send + Sync + 'static>() {}
    movable::<RateLimitLayer>();
    movable::<RateLimit<NeverReady>>();
    movable::<ResponseFuture<std::future::Ready<()>>>();
    movable::<ResponseBody<Body>>();
    // A service's future is often a box; what is added to it is copied with it.
    assert!(size_of::<ResponseFuture<Pin<Box<Duration>>>>() <= 48);
}
