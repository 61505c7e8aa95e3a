//! The examples, over real HTTP.
#![cfg(feature = "http")]

use std::{future::Future, net::SocketAddr};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::{TcpListener, TcpStream};

#[allow(dead_code, unreachable_pub)]
#[path = "../examples/axum_api.rs"]
mod axum_api;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/axum_hello.rs"]
mod axum_hello;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/axum_login.rs"]
mod axum_login;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/axum_sse.rs"]
mod axum_sse;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/behind_proxy.rs"]
mod behind_proxy;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/websocket.rs"]
mod websocket;

struct Server {
    address: SocketAddr,
    client: Client<HttpConnector, Body>,
}

impl Server {
    async fn start<F>(serve: impl FnOnce(TcpListener) -> F) -> Self
    where
        F: Future<Output = std::io::Result<()>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener));
        Self { address, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    async fn send(&self, path: &str, fields: &[(&str, &str)], body: &str) -> Response<String> {
        let mut request = Request::builder().uri(format!("http://{}{path}", self.address));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        if !body.is_empty() {
            request = request.method("POST");
        }
        let response = self.client.request(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Response::from_parts(head, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Opens a stream of events, and waits for the first. It ends when the connection is dropped.
    async fn open(&self, path: &str) -> Result<Response<Incoming>, StatusCode> {
        let client: Client<HttpConnector, Body> =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        let request = Request::get(format!("http://{}{path}", self.address)).body(Body::empty()).unwrap();
        let mut response = client.request(request).await.unwrap();
        if response.status() != StatusCode::OK {
            return Err(response.status());
        }
        let event = response.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(event, "data: 0\n\n");
        Ok(response)
    }

    async fn get(&self, path: &str, fields: &[(&str, &str)]) -> Response<String> {
        self.send(path, fields, "").await
    }
}

fn header<'a>(response: &'a Response<String>, name: &str) -> &'a str {
    response.headers().get(name).map_or("absent", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn hello_says_how_often() {
    let server = Server::start(axum_hello::serve).await;
    let first = server.get("/", &[]).await;
    assert_eq!((first.status(), first.body().as_str()), (StatusCode::OK, "Hello.\n"));
    assert_eq!(header(&first, "ratelimit-policy"), "\"hello\";q=5;w=2");
    assert_eq!(header(&first, "ratelimit"), "\"hello\";r=4;t=1");
    assert_eq!(header(&first, "x-ratelimit-limit"), "5");
    for _ in 0..20 {
        let response = server.get("/", &[]).await;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(header(&response, "retry-after"), "1");
            assert_eq!(header(&response, "content-type"), "application/problem+json");
            assert_eq!(header(&response, "content-length"), response.body().len().to_string());
            let problem: serde_json::Value = serde_json::from_str(response.body()).unwrap();
            assert_eq!(problem["violated-policies"], serde_json::json!(["hello"]));
            return;
        }
    }
    panic!("twenty requests passed a limit of five");
}

#[tokio::test]
async fn each_tier_has_its_quota_and_each_endpoint_its_price() {
    let server = Server::start(axum_api::serve).await;
    let (free, pro) = ([("x-api-key", "free-key")], [("x-api-key", "pro-key")]);
    assert_eq!(server.get("/search", &[]).await.status(), StatusCode::UNAUTHORIZED);
    let quota = server.get("/quota", &free).await;
    assert_eq!(header(&quota, "ratelimit"), "\"api\";r=20;t=0");
    assert_eq!(header(&server.get("/report", &free).await, "ratelimit"), "\"api\";r=10;t=10");
    assert_eq!(server.get("/report", &free).await.status(), StatusCode::OK);
    let refused = server.get("/report", &free).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&refused, "ratelimit-policy"), "\"api\";q=60;w=60");
    assert_eq!(header(&refused, "retry-after"), "10");
    for _ in 0..10 {
        let response = server.get("/report", &pro).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header(&response, "ratelimit-policy"), "\"api\";q=6000;w=60");
    }
}

#[tokio::test]
async fn only_failed_logins_count() {
    let server = Server::start(axum_login::serve).await;
    let attempt = async |email: &str, password: &str| {
        let form = serde_json::json!({ "email": email, "password": password }).to_string();
        server.send("/login", &[("content-type", "application/json")], &form).await
    };
    let login = async |email: &str, password: &str| attempt(email, password).await.status().as_u16();
    for _ in 0..10 {
        assert_eq!(login("a@example.com", "correct horse").await, 204);
    }
    for _ in 0..5 {
        assert_eq!(login("a@example.com", "battery staple").await, 401);
    }
    assert_eq!(login(" A@Example.com", "battery staple").await, 429);
    assert_eq!(login("a@example.com", "correct horse").await, 429);
    assert_eq!(login("b@example.com", "correct horse").await, 204);
    for guess in 0..15 {
        assert_eq!(login(&format!("{guess}@example.com"), "battery staple").await, 401);
    }
    // The address has guessed too often, and tries again: it is out, whatever it knows.
    for _ in 0..2 {
        let banned = attempt("c@example.com", "correct horse").await;
        assert_eq!(banned.status(), StatusCode::FORBIDDEN);
        let wait: u64 = header(&banned, "retry-after").parse().unwrap();
        assert!((86_390..=86_400).contains(&wait), "{wait}");
        assert!(banned.body().contains("has banned this client"), "{}", banned.body());
    }
}

#[tokio::test]
async fn an_account_that_is_guessed_at_costs_its_address_nothing() {
    let server = Server::start(axum_login::serve).await;
    let login = async |email: &str| {
        let form = serde_json::json!({ "email": email, "password": "battery staple" }).to_string();
        server.send("/login", &[("content-type", "application/json")], &form).await.status().as_u16()
    };
    for attempt in 0..50 {
        assert_eq!(login("a@example.com").await, if attempt < 5 { 401 } else { 429 });
    }
    // All or nothing: the 45 that were refused by account are not held against the address.
    for guess in 0..15 {
        assert_eq!(login(&format!("{guess}@example.com")).await, 401);
    }
    assert_eq!(login("z@example.com").await, 403);
}

#[tokio::test]
async fn a_client_has_two_event_streams_at_a_time_each_at_its_pace() {
    let server = Server::start(axum_sse::serve).await;
    let start = tokio::time::Instant::now();
    let mut first = server.open("/ticks").await.unwrap();
    let second = server.open("/ticks").await.unwrap();
    assert_eq!(server.open("/ticks").await.unwrap_err(), StatusCode::TOO_MANY_REQUESTS);
    // Five at once, and then ten a second: the last four of nine are waited for.
    for number in 1..9 {
        let event = first.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(event, format!("data: {number}\n\n"));
    }
    assert!(start.elapsed() >= std::time::Duration::from_millis(380), "{:?}", start.elapsed());
    drop(second);
    // Every attempt that is refused costs nothing, so asking does no harm.
    let reopened = async {
        loop {
            match server.open("/ticks").await {
                Ok(stream) => return stream,
                Err(status) => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    let third = tokio::time::timeout(std::time::Duration::from_secs(30), reopened).await.unwrap();
    drop((first, third));
}

#[tokio::test]
async fn clients_behind_a_proxy_are_told_apart() {
    let server = Server::start(behind_proxy::serve).await;
    let status = async |path: &str, forwarded: &str| {
        server.get(path, &[("x-forwarded-for", forwarded)]).await.status().as_u16()
    };
    for _ in 0..3 {
        assert_eq!(status("/", "203.0.113.9").await, 200);
    }
    assert_eq!(status("/", "203.0.113.9").await, 429);
    assert_eq!(status("/", "198.51.100.1, 203.0.113.9").await, 429);
    assert_eq!(status("/", "198.51.100.1, 203.0.113.9, 10.0.0.2").await, 429);
    assert_eq!(status("/", "203.0.113.10").await, 200);
    for item in 0..3 {
        assert_eq!(status(&format!("/items/{item}"), "203.0.113.9").await, 200);
    }
    assert_eq!(status("/items/3", "203.0.113.9").await, 429);
}

#[tokio::test]
async fn sockets_are_limited_by_handshake_by_message_and_in_number() {
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::{
        client_async,
        tungstenite::{Error, Message},
    };

    let server = Server::start(websocket::serve).await;
    let connect = async || {
        let stream = TcpStream::connect(server.address).await.unwrap();
        client_async(format!("ws://{}/echo", server.address), stream).await
    };
    let (mut socket, _) = connect().await.unwrap();
    for _ in 0..5 {
        socket.send(Message::text("hello")).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hello"));
    }
    for _ in 0..3 {
        socket.send(Message::text("hello")).await.unwrap();
        assert!(socket.next().await.unwrap().unwrap().to_text().unwrap().starts_with("Slow down"));
    }
    socket.send(Message::text("hello")).await.unwrap();
    assert!(socket.next().await.unwrap().unwrap().is_close());

    let (mut other, _) = connect().await.unwrap();
    other.send(Message::text("hello")).await.unwrap();
    assert_eq!(other.next().await.unwrap().unwrap(), Message::text("hello"));
    let refused = |answer| match answer {
        Ok(_) => panic!("a connection too many"),
        Err(Error::Http(response)) => assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS),
        Err(error) => panic!("{error}"),
    };
    // Two at a time: the first has been closed by the server, and its permit comes back.
    let connected = async {
        loop {
            match connect().await {
                Ok(connected) => return connected,
                answer => refused(answer),
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    let third = tokio::time::timeout(std::time::Duration::from_secs(30), connected).await.unwrap();
    refused(connect().await);
    drop(third);
}
