//! One process of the fleet: an axum service with the limiter in its handler, and two routes to watch and to cut it.

use std::{
    error::Error,
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::Arc,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderName, StatusCode},
    response::IntoResponse,
    routing::{get, post},
};
use ratemesh::{
    Clock, Config, Limit, Limiter, Mesh, NodeId, OnPartition, PeerState, Quota, config::TlsIdentity,
};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, task::spawn_blocking};

/// When the node decided, in microseconds since the Unix epoch.
pub(crate) const DECIDED_AT: HeaderName = HeaderName::from_static("decided-at");

/// Who a node is. It reads this as the first line of its standard input.
#[derive(Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) name: String,
    /// Where to gossip; port 0 lets the system choose.
    pub(crate) gossip: SocketAddr,
    pub(crate) ca: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) secret: String,
    pub(crate) per_second: u64,
    pub(crate) burst: u64,
    /// Whether unreachable nodes are taken to be spending their share.
    pub(crate) share: bool,
}

/// Where a node is reached. It writes this as the one line of its standard output.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Addresses {
    pub(crate) gossip: SocketAddr,
    pub(crate) http: SocketAddr,
}

/// The other nodes, and where they gossip. It reads this as the second line of its standard input.
pub(crate) type Peers = Vec<(String, SocketAddr)>;

/// What a node says of itself on `/status`.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) synced: bool,
    /// The peers that it hears.
    pub(crate) up: Vec<String>,
    pub(crate) messages_sent: u64,
    pub(crate) bytes_sent: u64,
}

struct Service {
    mesh: Mesh,
    limiter: Limiter,
}

/// Runs a node until its standard input ends, which it does however the parent ends.
pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let orders: Orders = read().await?;
    let gossip = UdpSocket::bind(orders.gossip)?;
    let http = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let addresses = Addresses { gossip: gossip.local_addr()?, http: http.local_addr()? };
    println!("{}", serde_json::to_string(&addresses)?);

    let mesh = Mesh::start(config(&orders, gossip, read().await?)?).await?;
    let limiter = mesh.limiter("api").ok_or("no such limit")?;
    let routes = Router::new()
        .route("/api/{user}", get(api))
        .route("/status", get(status))
        .route("/cut/{cut}", post(cut))
        .with_state(Arc::new(Service { mesh, limiter }));
    tokio::select! {
        served = axum::serve(http, routes) => served?,
        // Nothing more is said; this waits for the end.
        _ = next_line() => {}
    }
    Ok(())
}

/// Reads a line of the standard input.
async fn read<T: serde::de::DeserializeOwned>() -> Result<T, Box<dyn Error>> {
    let line = next_line().await?;
    let error =
        |_| "the standard input says nothing of use; the example starts this process by itself".into();
    serde_json::from_str(&line).map_err(error)
}

async fn next_line() -> io::Result<String> {
    let mut line = String::new();
    spawn_blocking(move || io::stdin().read_line(&mut line).map(|_| line)).await?
}

fn config(orders: &Orders, gossip: UdpSocket, peers: Peers) -> Result<Config, Box<dyn Error>> {
    let unheard = if orders.share { OnPartition::Share } else { OnPartition::Local };
    let limit = Limit::token_bucket("api", Quota::per_second(orders.per_second))
        .burst(orders.burst)
        .on_partition(unheard)
        .build()?;
    let (ca, chain, key) = (orders.ca.as_bytes(), orders.certificate.as_bytes(), orders.key.as_bytes());
    let mut builder = Config::builder(NodeId::new(&orders.name)?)
        .socket(gossip)
        .secret(orders.secret.as_str())
        .tls(TlsIdentity::from_pem(ca, chain, key)?)
        .limit(limit);
    for (name, address) in peers {
        builder = builder.peer(NodeId::new(&name)?, address.to_string());
    }
    Ok(builder.build()?)
}

/// The service's only business: to say yes or no.
async fn api(State(service): State<Arc<Service>>, Path(user): Path<String>) -> impl IntoResponse {
    let allowed = service.limiter.check(user.as_str()).is_allowed();
    let micros = Clock::system().precise().wall.as_unix_nanos() / 1_000;
    let code = if allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    (code, [(DECIDED_AT, micros.to_string())])
}

async fn status(State(service): State<Arc<Service>>) -> Json<Status> {
    let gossip = service.mesh.status().gossip;
    let up = gossip.peers.iter().filter(|peer| peer.state == PeerState::Up);
    Json(Status {
        synced: gossip.synced,
        up: up.map(|peer| peer.node.to_string()).collect(),
        messages_sent: gossip.peers.iter().map(|peer| peer.messages_sent).sum(),
        bytes_sent: gossip.peers.iter().map(|peer| peer.bytes_sent).sum(),
    })
}

async fn cut(State(service): State<Arc<Service>>, Path(cut): Path<bool>) {
    service.mesh.cut_off(cut);
}
