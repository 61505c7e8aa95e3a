//! A login that slows guessing down: failures are counted, by account and address together, and by address alone; an address
//! that goes on is banned.
//!
//! `cargo run --example axum_login`, then
//! `curl -i -H 'content-type: application/json' -d '{"email": "a@example.com", "password": "1"}' localhost:3000/login`

use std::{net::SocketAddr, time::Duration};

use axum::{
    Json, Router,
    body::{Body, to_bytes},
    extract::{ConnectInfo, Request},
    http::StatusCode,
    middleware::{self, Next},
    response::Response,
    routing::post,
};
use ratemesh::{
    Limit, Limiter, Quota,
    http::{ClientIp, Count, Gate, RateLimitLayer, extension},
};
use serde_json::Value;
use tokio::net::TcpListener;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The longest login form that is read.
const MAX_FORM_BYTES: usize = 4_096;

/// The account that a login names, in one spelling: another would be another key.
#[derive(Clone)]
struct Email(String);

/// Reads the account out of the form for the limits, and leaves the form for the handler.
async fn find_email(request: Request, next: Next) -> Result<Response, StatusCode> {
    let (mut head, body) = request.into_parts();
    let form = to_bytes(body, MAX_FORM_BYTES).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    let fields: Value = serde_json::from_slice(&form).map_err(|_| StatusCode::BAD_REQUEST)?;
    let email = fields["email"].as_str().map(|email| email.trim().to_lowercase());
    head.extensions.insert(Email(email.filter(|email| !email.is_empty()).ok_or(StatusCode::BAD_REQUEST)?));
    Ok(next.run(Request::from_parts(head, Body::from(form))).await)
}

async fn login(Json(form): Json<Value>) -> StatusCode {
    match form["password"].as_str() {
        Some("correct horse") => StatusCode::NO_CONTENT,
        _ => StatusCode::UNAUTHORIZED,
    }
}

fn app() -> Result<Router, ratemesh::LimitError> {
    let client = ClientIp::new().peer(|info: &ConnectInfo<SocketAddr>| info.0);
    // One address guessing at one account.
    let account = Limit::fixed_window("login-account", Quota::per_hour(5)).build()?;
    let by_account = (client.clone(), extension(|email: &Email| email.0.as_str()));
    // One address guessing at many accounts: who goes on after twenty failures is out for a day. Attempts that are not
    // answered yet count, too, so the quota leaves room for those who log in at the same time.
    let address = Limit::fixed_window("login-address", Quota::per_hour(20)).ban_on_exceed(DAY).build()?;
    let limits = RateLimitLayer::from(Gate::new(Limiter::new(account), by_account).count(Count::Failures))
        .and(Gate::new(Limiter::new(address), client).count(Count::Failures))
        .ban_status(StatusCode::FORBIDDEN);
    Ok(Router::new().route("/login", post(login)).layer(limits).layer(middleware::from_fn(find_email)))
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener) -> std::io::Result<()> {
    let app = app().map_err(std::io::Error::other)?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    serve(TcpListener::bind("127.0.0.1:3000").await?).await
}
