//! The limits in `configs/recipes.toml`, each behind the layer as the README's table says, and what they decide.
#![cfg(all(feature = "http", feature = "config"))]

use std::{convert::Infallible, fs, net::SocketAddr, path::Path, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use ratemesh::{
    Limit, Limiter, ManualClock,
    config::limits_from_toml,
    http::{ClientIp, Count, Gate, KeyExtractor as _, PeerAddr, RateLimitLayer, ResponseBody, extension},
};
use tower::{Layer as _, ServiceExt as _, service_fn};

#[derive(Clone)]
struct Account(&'static str);

fn shipped(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The limits by name, all on one clock.
struct Recipes {
    clock: ManualClock,
    limits: Vec<Limit>,
}

impl Recipes {
    fn new() -> Self {
        let limits = limits_from_toml(&shipped("configs/recipes.toml"), "recipes.toml").unwrap();
        Self { clock: ManualClock::new(), limits }
    }

    fn limiter(&self, name: &str) -> Limiter {
        let limit = self.limits.iter().find(|limit| limit.name() == name);
        Limiter::with_clock(limit.unwrap_or_else(|| panic!("no {name}")).clone(), self.clock.clone())
    }

    fn by_client(&self, name: &str) -> Gate {
        Gate::new(self.limiter(name), ClientIp::new())
    }

    fn by_account(&self, name: &str) -> Gate {
        Gate::new(self.limiter(name), extension(|account: &Account| account.0))
    }

    fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

fn request(client: &str, account: &'static str, path: &str) -> Request<()> {
    let client: SocketAddr =
        if client.contains(':') { format!("[{client}]:1") } else { format!("{client}:1") }.parse().unwrap();
    let mut request = Request::get(path).extension(PeerAddr(client)).body(()).unwrap();
    if !account.is_empty() {
        request.extensions_mut().insert(Account(account));
    }
    request
}

async fn send(layer: &RateLimitLayer, request: Request<()>) -> Response<ResponseBody<Full<Bytes>>> {
    // Answers with the status in the path.
    let echo = service_fn(async |request: Request<()>| {
        let status: u16 = request.uri().path().trim_start_matches('/').parse().unwrap();
        Ok::<_, Infallible>(Response::builder().status(status).body(Full::from("answer")).unwrap())
    });
    layer.layer(echo).oneshot(request).await.unwrap()
}

/// The statuses of so many requests.
async fn statuses(
    layer: &RateLimitLayer,
    count: usize,
    client: &str,
    account: &'static str,
    path: &str,
) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        statuses.push(send(layer, request(client, account, path)).await.status().as_u16());
    }
    statuses
}

const CLIENT: &str = "192.0.2.1";

#[tokio::test]
async fn login() {
    let recipes = Recipes::new();
    let both = (ClientIp::new(), extension(|account: &Account| account.0));
    let layer =
        RateLimitLayer::from(Gate::new(recipes.limiter("login-account"), both).count(Count::Failures))
            .and(recipes.by_client("login-client").count(Count::Failures))
            .ban_status(StatusCode::FORBIDDEN);
    assert_eq!(statuses(&layer, 50, CLIENT, "alice", "/200").await, [200; 50]);
    assert_eq!(statuses(&layer, 6, CLIENT, "alice", "/401").await, [401, 401, 401, 401, 401, 429]);
    // The account is open to its owner elsewhere.
    assert_eq!(statuses(&layer, 1, "192.0.2.2", "alice", "/200").await, [200]);
    for account in ["bob", "carol", "dave"] {
        assert_eq!(statuses(&layer, 5, CLIENT, account, "/401").await, [401; 5]);
    }
    assert_eq!(statuses(&layer, 1, CLIENT, "erin", "/401").await, [403]);
    recipes.advance(23 * 3_600);
    assert_eq!(statuses(&layer, 1, CLIENT, "erin", "/200").await, [403]);
    recipes.advance(3_601);
    assert_eq!(statuses(&layer, 1, CLIENT, "erin", "/200").await, [200]);
}

#[tokio::test]
async fn registration() {
    let recipes = Recipes::new();
    let layer = RateLimitLayer::from(recipes.by_client("registration").count(Count::Successes));
    assert_eq!(statuses(&layer, 20, CLIENT, "", "/422").await, [422; 20]);
    assert_eq!(statuses(&layer, 6, CLIENT, "", "/201").await, [201, 201, 201, 201, 201, 429]);
    // Another address of the same /64 is the same client.
    assert_eq!(statuses(&layer, 5, "2001:db8::1", "", "/201").await, [201; 5]);
    assert_eq!(statuses(&layer, 1, "2001:db8::2", "", "/201").await, [429]);
    recipes.advance(86_400);
    assert_eq!(statuses(&layer, 1, CLIENT, "", "/201").await, [201]);
}

#[tokio::test]
async fn password_reset() {
    let recipes = Recipes::new();
    let layer =
        RateLimitLayer::from(recipes.by_account("reset-account")).and(recipes.by_client("reset-client"));
    assert_eq!(statuses(&layer, 4, CLIENT, "alice", "/200").await, [200, 200, 200, 429]);
    // Whoever asks, the account is mailed thrice.
    assert_eq!(statuses(&layer, 1, "192.0.2.2", "alice", "/200").await, [429]);
    for account in ["bob", "carol"] {
        assert_eq!(statuses(&layer, 3, CLIENT, account, "/200").await, [200; 3]);
    }
    assert_eq!(statuses(&layer, 2, CLIENT, "dave", "/200").await, [200, 429]);
    recipes.advance(3_600 + 360);
    assert_eq!(statuses(&layer, 1, CLIENT, "alice", "/200").await, [200]);
}

#[tokio::test]
async fn one_time_codes() {
    let recipes = Recipes::new();
    let layer = RateLimitLayer::from(recipes.by_account("otp-check").count(Count::Failures));
    assert_eq!(statuses(&layer, 6, CLIENT, "alice", "/401").await, [401, 401, 401, 401, 401, 429]);
    recipes.advance(3_590);
    // Neither another address nor the right code helps while the ban lasts.
    assert_eq!(statuses(&layer, 1, "192.0.2.2", "alice", "/200").await, [429]);
    recipes.advance(11);
    assert_eq!(statuses(&layer, 1, "192.0.2.2", "alice", "/200").await, [200]);
}

#[tokio::test]
async fn paid_upstream() {
    let recipes = Recipes::new();
    let cents =
        |request: &ratemesh::http::RequestHead<'_>| if request.uri().query().is_some() { 50 } else { 1 };
    let budget = recipes.limiter("upstream-budget");
    let layer = RateLimitLayer::from(recipes.by_account("upstream-account").cost(cents))
        .and(Gate::new(budget.clone(), ()).cost(cents));
    assert_eq!(statuses(&layer, 3, CLIENT, "alice", "/200?large").await, [200, 200, 429]);
    assert_eq!(200_000 - budget.peek(()).remaining(), 100);
    // The day's quota holds where the hour's would not.
    let mut passed = 2;
    for _ in 0..20 {
        recipes.advance(3_600);
        let answers = statuses(&layer, 2, CLIENT, "alice", "/200?large").await;
        passed += answers.iter().filter(|status| **status == 200).count();
    }
    // Ten at once, and 20 of 24 hours' worth of ten more.
    assert!((17..=19).contains(&passed), "{passed}");
    assert_eq!(statuses(&layer, 1, CLIENT, "bob", "/200?large").await, [200]);
}

#[tokio::test]
async fn heavy_report() {
    let recipes = Recipes::new();
    let layer = RateLimitLayer::from(recipes.by_account("report"));
    let first = send(&layer, request(CLIENT, "alice", "/200")).await;
    let second = send(&layer, request(CLIENT, "alice", "/200")).await;
    let refused = send(&layer, request(CLIENT, "alice", "/200")).await;
    assert_eq!(
        (refused.status(), &refused.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
    );
    assert_eq!(statuses(&layer, 1, CLIENT, "bob", "/200").await, [200]);
    drop(second);
    assert_eq!(statuses(&layer, 50, CLIENT, "alice", "/200").await, [200; 50]);
    drop(first);
}

#[tokio::test]
async fn public_api() {
    let recipes = Recipes::new();
    let by_account = extension(|account: &Account| account.0).or(ClientIp::new());
    let layer = RateLimitLayer::new(recipes.limiter("api"), by_account);
    assert_eq!(statuses(&layer, 30, CLIENT, "alice", "/200").await, [200; 30]);
    assert_eq!(statuses(&layer, 1, CLIENT, "alice", "/200").await, [429]);
    assert_eq!(statuses(&layer, 31, CLIENT, "", "/200").await[29..], [200, 429]);
    recipes.advance(1);
    assert_eq!(statuses(&layer, 11, CLIENT, "alice", "/200").await[9..], [200, 429]);
}

#[tokio::test]
async fn web_socket() {
    let recipes = Recipes::new();
    let layer = RateLimitLayer::from(recipes.by_client("ws-handshake")).and(recipes.by_client("ws-open"));
    assert_eq!(statuses(&layer, 6, CLIENT, "", "/200").await, [200, 200, 200, 200, 200, 429]);
    let mut open = Vec::new();
    for _ in 0..10 {
        recipes.advance(2);
        open.push(send(&layer, request(CLIENT, "", "/200")).await);
    }
    assert!(open.iter().all(|response| response.status() == StatusCode::OK));
    recipes.advance(10);
    assert_eq!(statuses(&layer, 1, CLIENT, "", "/200").await, [429]);
    open.pop();
    assert_eq!(statuses(&layer, 1, CLIENT, "", "/200").await, [200]);
    let messages = recipes.limiter("ws-message");
    let passed = (0..100).filter(|_| messages.check(("connection", 1_u64)).is_allowed()).count();
    assert_eq!(passed, 40);
}

#[tokio::test]
async fn crawler() {
    let recipes = Recipes::new();
    let network = ClientIp::new().ipv6_prefix(48).ipv4_prefix(24);
    let welcome =
        |request: &ratemesh::http::RequestHead<'_>| request.headers().contains_key("x-verified-bot");
    let layer = RateLimitLayer::from(Gate::new(recipes.limiter("crawler"), network).skip(welcome));
    assert_eq!(statuses(&layer, 2, "192.0.2.1", "", "/200").await, [200, 429]);
    assert_eq!(statuses(&layer, 1, "192.0.2.200", "", "/200").await, [429]);
    assert_eq!(statuses(&layer, 1, "192.0.3.1", "", "/200").await, [200]);
    let mut verified = request("192.0.2.1", "", "/200");
    verified.headers_mut().insert("x-verified-bot", "1".parse().unwrap());
    assert_eq!(send(&layer, verified).await.status(), StatusCode::OK);
    for _ in 0..5 {
        recipes.advance(1);
        assert_eq!(statuses(&layer, 2, "192.0.2.1", "", "/200").await, [200, 429]);
    }
}

#[tokio::test]
async fn suspicious_address() {
    let recipes = Recipes::new();
    let misses = recipes.by_client("misses").count(Count::Failures);
    let misses = misses.failure_if(|status, _| matches!(status.as_u16(), 401 | 403 | 404));
    let layer = RateLimitLayer::from(misses).ban_status(StatusCode::FORBIDDEN);
    assert_eq!(statuses(&layer, 50, CLIENT, "", "/500").await, [500; 50]);
    assert_eq!(statuses(&layer, 20, CLIENT, "", "/404").await, [404; 20]);
    assert_eq!(statuses(&layer, 2, CLIENT, "", "/200").await, [403, 403]);
    recipes.advance(86_401);
    assert_eq!(statuses(&layer, 1, CLIENT, "", "/200").await, [200]);
}

#[test]
fn the_readme_has_every_limit_as_the_file_has_it() {
    let (readme, recipes) = (shipped("README.md"), shipped("configs/recipes.toml"));
    let rows: Vec<_> = readme.lines().filter(|line| line.starts_with('|')).collect();
    let blocks: Vec<_> = recipes.split("[[limit]]").skip(1).collect();
    assert_eq!(blocks.len(), Recipes::new().limits.len());
    for block in blocks {
        let value = |name: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")))?;
            Some(line.replace(['"', '[', ']', '_'], ""))
        };
        let quota = value("rate").or(value("quota")).or(value("permits")).unwrap();
        let (name, quota) = (value("name").unwrap(), quota.replace(", ", " and "));
        let entry = format!("`{name}` {quota}");
        assert!(rows.iter().any(|row| row.contains(&entry)), "no row of the README has {entry}");
    }
}
