//! Server-sent events: a client has two streams at a time, opens few in a minute, and is sent events at a pace of its own.
//!
//! `cargo run --example axum_sse`, then `curl -N localhost:3000/ticks`

use std::{convert::Infallible, net::SocketAddr};

use axum::{
    Extension, Router,
    extract::ConnectInfo,
    response::sse::{Event, Sse},
    routing::get,
};
use futures_util::stream::{self, Stream};
use ratemesh::{
    Limit, Limiter, Quota,
    http::{ClientIp, Gate, RateLimitLayer},
};
use tokio::net::TcpListener;

/// Events that wait until they may go. A stream that its client leaves is dropped, and stops waiting.
async fn ticks(
    Extension(events): Extension<Limiter>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    // Each connection has a key, digested once.
    let key = events.key(("events", peer.to_string().as_str()));
    Sse::new(stream::unfold((events, 0_u64), move |(events, number)| async move {
        events.acquire(key, 1).await.ok()?.keep();
        Some((Ok(Event::default().data(number.to_string())), (events, number + 1)))
    }))
}

fn app() -> Result<Router, ratemesh::LimitError> {
    let client = ClientIp::new().peer(|info: &ConnectInfo<SocketAddr>| info.0);
    // A permit is held until the stream ends or its client goes away.
    let streams = Limiter::new(Limit::concurrency("streams", 2).build()?);
    let opened =
        Limiter::new(Limit::token_bucket("streams-opened", Quota::per_minute(60)).burst(20).build()?);
    let events = Limiter::new(Limit::token_bucket("events", Quota::per_second(10)).burst(5).build()?);
    let limits = RateLimitLayer::new(streams, client.clone()).and(Gate::new(opened, client));
    Ok(Router::new().route("/ticks", get(ticks)).layer(Extension(events)).layer(limits))
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
