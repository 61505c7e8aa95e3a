//! The clients: real HTTP requests over kept-alive connections, sent when the schedule says so and not when an earlier
//! one is answered.

use std::{
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    body::Body,
    http::{Method, Request, Response, StatusCode, Uri},
};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{
    measure::Answer,
    node::{DECIDED_AT, Status},
};

const TICK: Duration = Duration::from_millis(2);
/// A request that waits this long for its answer is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Requests to one node that wait for their answer; the schedule catches up when they are fewer again.
const MAX_IN_FLIGHT: usize = 256;
/// What the schedule is behind by more than this is never sent: a second's load must not fall into another one.
const CATCH_UP: Duration = Duration::from_millis(100);

/// An HTTP client that keeps its connections.
#[derive(Clone)]
pub(crate) struct Client(legacy::Client<HttpConnector, Body>);

impl Client {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self(
            legacy::Client::builder(TokioExecutor::new())
                .pool_max_idle_per_host(MAX_IN_FLIGHT)
                .build(connector),
        )
    }

    /// How a node is, if it answers.
    pub(crate) async fn status(&self, address: SocketAddr) -> Option<Status> {
        let response =
            self.send(Method::GET, &format!("http://{address}/status").parse().ok()?).await.ok()?;
        let body = response.into_body().collect().await.ok()?.to_bytes();
        serde_json::from_slice(&body).ok()
    }

    /// Has a node do something.
    pub(crate) async fn post(&self, address: SocketAddr, path: &str) -> Result<(), Box<dyn Error>> {
        let response = self.send(Method::POST, &format!("http://{address}{path}").parse()?).await?;
        let ok = response.status().is_success();
        ok.then_some(()).ok_or_else(|| format!("{address}{path} answered {}", response.status()).into())
    }

    /// Whether a node admits a request, and when it decided, in microseconds since the Unix epoch.
    async fn ask(&self, uri: &Uri) -> Option<(bool, u64)> {
        let response = self.send(Method::GET, uri).await.ok()?;
        let decided = response.headers().get(DECIDED_AT)?.to_str().ok()?.parse().ok()?;
        match response.status() {
            StatusCode::OK => Some((true, decided)),
            StatusCode::TOO_MANY_REQUESTS => Some((false, decided)),
            _ => None,
        }
    }

    async fn send(&self, method: Method, uri: &Uri) -> Result<Response<Body>, legacy::Error> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = uri.clone();
        Ok(self.0.request(request).await?.map(Body::new))
    }
}

/// What the clients of one node do from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Target {
    /// Where the node answers; `None` while it does not run, and its clients stay away.
    pub(crate) address: Option<SocketAddr>,
    /// Requests per second.
    pub(crate) rate: f64,
}

/// What became of all requests.
#[derive(Default)]
pub(crate) struct Tally {
    /// When the load began, in microseconds since the Unix epoch.
    began: u64,
    pub(crate) answers: Vec<Answer>,
    /// Sent, and never answered.
    pub(crate) failed: u64,
}

impl Tally {
    pub(crate) fn new(began: u64) -> Self {
        Self { began, ..Self::default() }
    }

    fn take(&mut self, node: usize, answer: Option<(bool, u64)>) {
        match answer {
            Some((admitted, at)) => {
                let micros = at.saturating_sub(self.began);
                self.answers.push(Answer { micros, node, admitted });
            }
            None => self.failed += 1,
        }
    }
}

pub(crate) type SharedTally = Arc<Mutex<Tally>>;

pub(crate) fn lock(tally: &SharedTally) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clients of all nodes. They stop when this is dropped.
pub(crate) struct Load {
    targets: Vec<watch::Sender<Target>>,
    _tasks: JoinSet<()>,
}

impl Load {
    pub(crate) fn start(nodes: usize, client: &Client, tally: &SharedTally) -> Self {
        let mut tasks = JoinSet::new();
        let targets = (0..nodes)
            .map(|node| {
                let (sender, target) = watch::channel(Target::default());
                tasks.spawn(pace(node, target, client.clone(), tally.clone()));
                sender
            })
            .collect();
        Self { targets, _tasks: tasks }
    }

    pub(crate) fn aim(&self, node: usize, target: Target) {
        self.targets[node].send_replace(target);
    }
}

/// Sends one node its requests by the clock.
async fn pace(node: usize, target: watch::Receiver<Target>, client: Client, tally: SharedTally) {
    let in_flight = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut requests = JoinSet::new();
    let (mut due, mut last) = (0.0, Instant::now());
    loop {
        let now = ticks.tick().await;
        let Target { address, rate } = *target.borrow();
        let uri = address.and_then(|address| format!("http://{address}/api/alice").parse::<Uri>().ok());
        due += rate * now.saturating_duration_since(last).as_secs_f64();
        due = due.min(rate * CATCH_UP.as_secs_f64());
        last = now;
        while requests.try_join_next().is_some() {}
        let Some(uri) = uri else { continue };
        while due >= 1.0 {
            let Ok(permit) = in_flight.clone().try_acquire_owned() else { break };
            due -= 1.0;
            requests.spawn(request(node, uri.clone(), client.clone(), tally.clone(), permit));
        }
    }
}

async fn request(node: usize, uri: Uri, client: Client, tally: SharedTally, permit: OwnedSemaphorePermit) {
    let answer = timeout(ANSWER_TIMEOUT, client.ask(&uri)).await.ok().flatten();
    lock(&tally).take(node, answer);
    drop(permit);
}
