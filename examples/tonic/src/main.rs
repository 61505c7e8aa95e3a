//! A gRPC service behind the layer: who calls too often is answered `RESOURCE_EXHAUSTED`, and told when to call again.
//!
//! `cargo run` in this folder; `cargo test` calls it over HTTP/2, by tonic's own client.

mod greeter;

use std::{error::Error, time::Duration};

use ratemesh::{
    Limit, Limiter, Quota,
    http::{ClientIp, Count, Gate, RateLimitLayer},
};
use tokio::net::TcpListener;
use tonic::transport::{
    Server,
    server::{TcpConnectInfo, TcpIncoming},
};

use greeter::Greeter;

/// Five calls at once, then one in twenty seconds; and three failed calls an hour.
fn limits() -> Result<RateLimitLayer, ratemesh::LimitError> {
    let calls = Limit::token_bucket("calls", Quota::per_minute(3)).burst(5).build()?;
    let failures = Limit::fixed_window("failed-calls", Quota::per_hour(3)).build()?;
    let client = ClientIp::new().peer(|info: &TcpConnectInfo| info.remote_addr());
    Ok(RateLimitLayer::new(Limiter::new(calls), client.clone())
        .and(Gate::new(Limiter::new(failures), client).count(Count::Failures))
        .grpc(true))
}

/// Serves until the process ends.
async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut server = Server::builder().timeout(Duration::from_secs(10)).layer(limits()?);
    Ok(server.add_service(Greeter).serve_with_incoming(TcpIncoming::from(listener)).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    serve(TcpListener::bind("127.0.0.1:50051").await?).await
}

#[cfg(test)]
mod tests;
