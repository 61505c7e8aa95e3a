//! An API with keys: a quota for all, larger ones for those who pay, priced endpoints, and fields that tell clients where they stand.
//!
//! `cargo run --example axum_api`, then `curl -i -H 'x-api-key: free-key' localhost:3000/search`

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{self, Next},
    response::Response,
    routing::get,
};
use ratemesh::{
    Limit, Limiter, Override, Quota,
    http::{Edition, Gate, HeaderFields, RateLimitLayer, RequestHead, extension},
};
use tokio::net::TcpListener;

/// Whom an API key belongs to.
#[derive(Clone)]
struct Account(&'static str);

/// Finds the account before anything is counted: a quota of its own for whatever a client writes into a field would
/// be no limit.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let key = request.headers().get("x-api-key").map(|key| key.as_bytes());
    let account = match key {
        Some(b"free-key") => Account("hobbyist"),
        Some(b"pro-key") => Account("acme"),
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}

/// A report is as dear as ten searches.
fn price(request: &RequestHead<'_>) -> u64 {
    match request.uri().path() {
        "/report" => 10,
        "/quota" => 0,
        _ => 1,
    }
}

fn app() -> Result<Router, ratemesh::LimitError> {
    let pro = Override::Quota { quota: Quota::per_minute(6_000), burst: 200 };
    let limit = Limit::token_bucket("api", Quota::per_minute(60)).burst(20).override_key("acme", pro);
    let limiter = Limiter::new(limit.build()?);
    // Who pays from today on: limiter.set_override("another", pro), on one node for the whole fleet.
    let gate = Gate::new(limiter, extension(|account: &Account| &account.0)).cost(price);
    let limits = RateLimitLayer::from(gate).header_fields(HeaderFields::new().rate_limit(Edition::Draft10));
    let router = Router::new()
        .route("/search", get(async || "Found.\n"))
        .route("/report", get(async || "Reported.\n"))
        .route("/quota", get(async || "See the fields.\n"));
    // The layer that is added last is passed first.
    Ok(router.layer(limits).layer(middleware::from_fn(authenticate)))
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener) -> std::io::Result<()> {
    axum::serve(listener, app().map_err(std::io::Error::other)?).await
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    serve(TcpListener::bind("127.0.0.1:3000").await?).await
}
