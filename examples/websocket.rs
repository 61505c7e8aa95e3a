//! A WebSocket echo: each handshake takes a unit of its client's, each connection that is open a permit of its client's, and each
//! message a unit of its connection's.
//!
//! `cargo run --example websocket`, then `websocat ws://localhost:3000/echo`

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
};

use axum::{
    Extension, Router,
    extract::{
        ConnectInfo, State, WebSocketUpgrade,
        ws::{CloseFrame, Message, WebSocket, close_code},
    },
    response::Response,
    routing::get,
};
use ratemesh::{
    Limit, Limiter, Quota,
    http::{ClientIp, Gate, InFlight, RateLimitLayer},
};
use tokio::net::TcpListener;

/// How many messages a connection may send too many before it is closed.
const PATIENCE: u32 = 3;

async fn upgrade(
    socket: WebSocketUpgrade,
    State(messages): State<Limiter>,
    permit: Option<Extension<InFlight>>,
) -> Response {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
    let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    socket.on_upgrade(async move |socket| {
        echo(socket, messages, connection).await;
        // The connection outlives the response to its handshake, and holds the permit until it ends.
        drop(permit);
    })
}

async fn echo(mut socket: WebSocket, messages: Limiter, connection: u64) {
    // Digested once; each message is one check of this key.
    let key = messages.key(("connection", connection));
    let mut refused = 0;
    while let Some(Ok(message)) = socket.recv().await {
        let wait = messages.check(key).retry_after();
        let answer = match (wait, message) {
            (None, message @ (Message::Text(_) | Message::Binary(_))) => message,
            (None, _) => continue,
            (Some(_), _) if refused >= PATIENCE => {
                let frame = CloseFrame { code: close_code::POLICY, reason: "too many messages".into() };
                let _ = socket.send(Message::Close(Some(frame))).await;
                return;
            }
            (Some(wait), _) => {
                refused += 1;
                Message::text(format!("Slow down, for {} ms at least.", wait.as_millis() + 1))
            }
        };
        if socket.send(answer).await.is_err() {
            return;
        }
    }
}

fn app() -> Result<Router, ratemesh::LimitError> {
    let handshakes = Limiter::new(Limit::token_bucket("handshakes", Quota::per_minute(60)).burst(5).build()?);
    let connections = Limiter::new(Limit::concurrency("connections", 2).build()?);
    let messages = Limiter::new(Limit::token_bucket("messages", Quota::per_minute(60)).burst(5).build()?);
    let client = ClientIp::new().peer(|info: &ConnectInfo<SocketAddr>| info.0);
    let router = Router::new().route("/echo", get(upgrade)).with_state(messages);
    Ok(router.layer(RateLimitLayer::new(handshakes, client.clone()).and(Gate::new(connections, client))))
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
