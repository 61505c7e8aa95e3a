//! The layer as a whole, on a clock that stands still.

mod answers;
mod counting;
mod fields;
mod gates;
mod rules;

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::*;
use crate::{Limit, Limiter, ManualClock, Quota};

type Body = Full<Bytes>;

/// `capacity` units per key and minute.
fn limiter(name: &str, capacity: u64) -> Limiter {
    limiter_on(ManualClock::new(), name, capacity)
}

fn limiter_on(clock: ManualClock, name: &str, capacity: u64) -> Limiter {
    Limiter::with_clock(Limit::token_bucket(name, Quota::per_minute(capacity)).build().unwrap(), clock)
}

fn spent(limiter: &Limiter, key: &str) -> u64 {
    limiter.limit().capacity() - limiter.peek(key).remaining()
}

fn user() -> Header {
    Header::new(HeaderName::from_static("x-user"))
}

fn gate(limiter: &Limiter) -> Gate {
    Gate::new(limiter.clone(), user())
}

fn layer(limiter: &Limiter) -> RateLimitLayer {
    gate(limiter).into()
}

fn request(user: &str, path: &str) -> Request<()> {
    Request::get(path).header("x-user", user).body(()).unwrap()
}

/// Answers with the status in the path: `/200`.
async fn echo(request: Request<()>) -> Result<Response<Body>, Infallible> {
    let status: u16 = request.uri().path().trim_start_matches('/').parse().unwrap_or(200);
    Ok(Response::builder().status(status).body(Full::from("from the service")).unwrap())
}

async fn call(layer: &RateLimitLayer, request: Request<()>) -> Response<ResponseBody<Body>> {
    layer.layer(service_fn(echo)).oneshot(request).await.unwrap()
}

async fn statuses(layer: &RateLimitLayer, requests: &[(&str, &str)]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for (user, path) in requests {
        statuses.push(call(layer, request(user, path)).await.status().as_u16());
    }
    statuses
}

async fn text(response: Response<ResponseBody<Body>>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

fn header<B>(response: &Response<B>, name: &str) -> String {
    response.headers().get(name).map_or("absent", |value| value.to_str().unwrap()).to_owned()
}
