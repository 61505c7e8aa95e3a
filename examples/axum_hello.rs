//! The smallest service behind a limit: five requests per two seconds and address.
//!
//! `cargo run --example axum_hello`, then `for i in $(seq 7); do curl -i localhost:3000; done`. An argument is another
//! address to listen on; the one that it has is printed.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, extract::ConnectInfo, routing::get};
use ratemesh::{
    Limit, Limiter, Quota,
    http::{ClientIp, Edition, HeaderFields, LegacyReset, RateLimitLayer},
};
use tokio::net::TcpListener;

fn app() -> Router {
    let limit = Limit::token_bucket("hello", Quota::new(5, Duration::from_secs(2))).build();
    let limiter = Limiter::new(limit.expect("the limit is well formed"));
    let client = ClientIp::new().peer(|info: &ConnectInfo<SocketAddr>| info.0);
    let fields = HeaderFields::new().rate_limit(Edition::Draft10).legacy(LegacyReset::Seconds);
    Router::new()
        .route("/", get(async || "Hello.\n"))
        .layer(RateLimitLayer::new(limiter, client).header_fields(fields))
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener) -> std::io::Result<()> {
    axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>()).await
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    serve(listener).await
}
