//! A limit on concurrency over real HTTP: a permit is held for as long as its response is being sent, and no longer.
#![cfg(feature = "http")]

use std::{future::pending, net::SocketAddr, pin::Pin, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    routing::get,
};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use ratemesh::{
    Limit, Limiter,
    http::{Edition, HeaderFields, RateLimitLayer},
};
use tokio::net::TcpListener;

const PERMITS: u64 = 2;

type Frames = Pin<Box<dyn stream::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send>>;

struct Server {
    address: SocketAddr,
    limiter: Limiter,
}

/// A client whose connections end with it.
type Connection = Client<HttpConnector, Body>;

impl Server {
    async fn start() -> Self {
        let limiter = Limiter::new(Limit::concurrency("reports", PERMITS).build().unwrap());
        let layer = RateLimitLayer::new(limiter.clone(), ())
            .header_fields(HeaderFields::new().rate_limit(Edition::Draft10));
        let app = Router::new()
            .route("/", get(async || "done"))
            .route("/empty", get(async || StatusCode::NO_CONTENT))
            .route("/hang", get(async || pending::<&str>().await))
            .route("/panic", get(async || -> &str { panic!("on purpose") }))
            .route("/endless", get(async || body(vec![frame("first")], stream::pending())))
            .route(
                "/broken",
                get(async || {
                    body(vec![frame("first"), Err(std::io::Error::other("broken"))], stream::empty())
                }),
            )
            .route("/trailers", get(async || body(vec![frame("first"), Ok(trailers())], stream::empty())))
            .layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, app).await });
        Self { address, limiter }
    }

    async fn send(
        &self,
        path: &str,
    ) -> (Connection, Result<Response<Incoming>, impl std::error::Error + use<>>) {
        let client: Connection = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        let request = Request::get(format!("http://{}{path}", self.address)).body(Body::empty()).unwrap();
        let response = client.request(request).await;
        (client, response)
    }

    async fn get(&self, path: &str) -> Response<Incoming> {
        self.send(path).await.1.unwrap()
    }

    fn held(&self) -> u64 {
        PERMITS - self.limiter.peek(()).remaining()
    }

    /// Waits until so many permits are out; fails after half a minute.
    async fn until_held(&self, permits: u64) {
        let reached = async {
            while self.held() != permits {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(30), reached).await;
        in_time.unwrap_or_else(|_| panic!("{} permits are out, not {permits}", self.held()));
    }
}

fn frame(text: &'static str) -> Result<Frame<Bytes>, std::io::Error> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

fn trailers() -> Frame<Bytes> {
    let name = HeaderName::from_static("x-rows");
    Frame::trailers(HeaderMap::from_iter([(name, "1".parse().unwrap())]))
}

fn body(
    first: Vec<Result<Frame<Bytes>, std::io::Error>>,
    then: impl stream::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send + 'static,
) -> Response<Body> {
    let frames: Frames = Box::pin(stream::iter(first).chain(then));
    Response::builder().header("trailer", "x-rows").body(Body::new(StreamBody::new(frames))).unwrap()
}

fn header<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    response.headers().get(name).map_or("absent", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_permit_is_held_while_the_body_is_being_sent() {
    let server = Server::start().await;
    let mut first = server.get("/endless").await;
    assert_eq!(header(&first, "ratelimit-policy"), r#""reports";q=2;qu="concurrent-requests""#);
    assert_eq!(header(&first, "ratelimit"), r#""reports";r=1"#);
    let second = server.get("/endless").await;
    assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
    assert_eq!(server.held(), 2);
    let refused = server.get("/").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!((header(&refused, "retry-after"), header(&refused, "ratelimit")), ("1", r#""reports";r=0"#));
    let problem = refused.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&problem).unwrap();
    assert_eq!((&problem["retry_after"], &problem["violated-policies"][0]), (&1.into(), &"reports".into()));
    // Dropped halfway: the client goes away.
    drop(first);
    server.until_held(1).await;
    assert_eq!(server.get("/").await.into_body().collect().await.unwrap().to_bytes(), "done");
    drop(second);
    server.until_held(0).await;
}

#[tokio::test]
async fn a_permit_comes_back_however_the_response_ends() {
    let server = Server::start().await;
    // More often than there are permits: one that is lost would be missed.
    for _ in 0..=PERMITS {
        assert_eq!(server.get("/empty").await.status(), StatusCode::NO_CONTENT);
        server.until_held(0).await;
        assert!(server.send("/panic").await.1.is_err());
        server.until_held(0).await;
        // Broken off before its head was sent, or after.
        if let Ok(broken) = server.send("/broken").await.1 {
            assert!(broken.into_body().collect().await.is_err());
        }
        server.until_held(0).await;
        assert_eq!(server.get("/nowhere").await.status(), StatusCode::NOT_FOUND);
        server.until_held(0).await;
        let whole = server.get("/").await;
        assert_eq!(header(&whole, "content-length"), "4");
        assert_eq!(whole.into_body().collect().await.unwrap().to_bytes(), "done");
        server.until_held(0).await;
    }
}

#[tokio::test]
async fn a_permit_comes_back_when_the_client_goes_before_there_is_a_response() {
    let server = Server::start().await;
    tokio::select! {
        (_, answer) = server.send("/hang") => panic!("an answer came, {:?}", answer.map(|response| response.status())),
        () = server.until_held(1) => {}
    }
    server.until_held(0).await;
}

#[tokio::test]
async fn trailers_pass_through() {
    let server = Server::start().await;
    let request = Request::get(format!("http://{}/trailers", server.address)).header("te", "trailers");
    let client: Connection = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request.body(Body::empty()).unwrap()).await.unwrap();
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().and_then(|trailers| trailers.get("x-rows")).unwrap(), "1");
    assert_eq!(collected.to_bytes(), "first");
    server.until_held(0).await;
}
