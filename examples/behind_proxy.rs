//! A service behind reverse proxies, which limits by the client that they name.
//!
//! `cargo run --example behind_proxy`, then `curl -i -H 'x-forwarded-for: 203.0.113.9' localhost:3000`: the request
//! comes from 127.0.0.1, which is trusted here, so it counts for 203.0.113.9.

use std::net::SocketAddr;

use axum::{
    Router,
    extract::{ConnectInfo, MatchedPath},
    routing::get,
};
use ratemesh::{
    Limit, Limiter, Quota,
    http::{ClientIp, ForwardedField, RateLimitLayer, TrustedProxies, extension},
};
use tokio::net::TcpListener;

fn app() -> Result<Router, Box<dyn std::error::Error + Send + Sync>> {
    let limiter = Limiter::new(Limit::token_bucket("routes", Quota::per_minute(30)).burst(3).build()?);
    // The addresses of one's own proxies, and of nobody else.
    let proxies = TrustedProxies::networks(["127.0.0.1", "::1", "10.0.0.0/8"])?;
    let client = ClientIp::new()
        .peer(|info: &ConnectInfo<SocketAddr>| info.0)
        .behind(proxies, ForwardedField::XForwardedFor)
        .ipv6_prefix(56);
    // Each client has a quota for each route, whatever the route's parameters.
    let by_client_and_route = (client, extension(MatchedPath::as_str));
    let router =
        Router::new().route("/", get(async || "Hello.\n")).route("/items/{id}", get(async || "An item.\n"));
    Ok(router.layer(RateLimitLayer::new(limiter, by_client_and_route)))
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
