//! Gossip over QUIC: one endpoint a node, one connection a peer, mutual TLS on each.
//!
//! The protocol's decisions are the [`gossip`](crate::gossip) module's; here is what carries its payloads. A datagram
//! of the gossip is a datagram of QUIC, a stream of the gossip a one-way stream of its own.
//!
//! The walk of a payload: `link.rs` reads it off a connection and puts it into the inbox; `driver.rs` hands it to the
//! gossip and drains what the gossip answers back into the links. Connections come from `dial.rs`, on the node with
//! the lower name, and from `accept.rs` on the other; both exchange preambles before the link is one.
//!
//! Whatever a peer, or anybody, can make grow here is bounded by a constant where it grows: the transport's buffers and
//! windows in `endpoint.rs`, handshakes in `accept.rs`, what waits to be handled in `link.rs`, what waits to be sent
//! in `outbox.rs`.

mod accept;
mod dial;
mod driver;
mod endpoint;
mod error;
mod link;
mod outbox;
mod preamble;
mod refusal;
mod supervisor;
#[cfg(test)]
mod tests;
mod tls;

use std::{
    fmt, io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{mpsc, watch};

pub(crate) use driver::lock;
pub use error::{IdentityError, StartError};
pub use link::LinkStatus;
pub use refusal::RefusedCounts;
pub(crate) use supervisor::{Change, Engine, Supervisor};

use crate::{
    clock::Clock,
    config::{Peer, TlsIdentity},
    gossip::NodeIndex,
    node::NodeId,
};
use link::{LinkEvent, Route};
use refusal::{Farewell, Refusal, Refusals};
use tls::Tls;

/// The longest payload that travels on a stream; a peer that sends more is cut off.
pub(crate) const MAX_STREAM_BYTES: usize = 1 << 20;

/// Whether the node takes part in the gossip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It does.
    Joined,
    /// It neither dials nor accepts, for a drill.
    CutOff,
    /// It says goodbye.
    Stopping,
}

/// What a node's network knows for as long as the node runs.
pub(crate) struct Net {
    node: NodeId,
    /// They change while no run of the network is under way.
    routes: RwLock<Routes>,
    /// What the node shows and trusts from the next handshake on.
    tls: RwLock<Tls>,
    /// How often that has changed.
    renewals: AtomicU64,
    local_addr: SocketAddr,
    clock: Clock,
    refusals: Refusals,
    restarts: AtomicU64,
    mode: watch::Receiver<Mode>,
    /// How often this node has been told to start its network anew with other peers or limits.
    reloads: watch::Receiver<u64>,
    /// Makes the driver panic, once.
    #[cfg(test)]
    sabotaged: std::sync::atomic::AtomicBool,
}

/// The ways to all peers, in the order of their names.
pub(crate) type Routes = Arc<[Arc<Route>]>;

/// What the tasks of one run of the network share. A run ends with the node, or when one of its tasks panics; then
/// another follows.
#[derive(Clone)]
struct Run {
    net: Arc<Net>,
    endpoint: quinn::Endpoint,
    inbox: mpsc::Sender<LinkEvent>,
}

/// What a network is opened with.
pub(crate) struct Start<'a> {
    pub(crate) node: NodeId,
    pub(crate) peers: Vec<Peer>,
    pub(crate) identity: &'a TlsIdentity,
    pub(crate) listen: SocketAddr,
    /// Used in place of one bound to `listen`.
    pub(crate) socket: Option<UdpSocket>,
    pub(crate) clock: Clock,
    pub(crate) mode: watch::Receiver<Mode>,
    pub(crate) reloads: watch::Receiver<u64>,
}

/// What a network goes on with after it has been told to start anew.
pub(crate) struct Next {
    routes: Routes,
    tls: Tls,
}

impl Next {
    /// The peers, in the order of their names.
    pub(crate) fn peers(&self) -> Vec<NodeId> {
        self.routes.iter().map(|route| route.node.clone()).collect()
    }
}

impl Net {
    /// Checks that the parts fit each other, and opens the endpoint on the socket.
    pub(crate) fn open(start: Start) -> Result<(Self, quinn::Endpoint), StartError> {
        tokio::runtime::Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let Start { node, peers, identity, listen, socket, clock, mode, reloads } = start;
        let tls = Tls::new(identity, &node)?;
        warn_of_flaw(identity, &clock);
        let routes = RwLock::new(routes(&node, peers, &[])?);
        let failed = |source| StartError::Bind { address: listen, source };
        let socket = socket.map_or_else(|| UdpSocket::bind(listen), Ok).map_err(failed)?;
        let local_addr = socket.local_addr().map_err(failed)?;
        let endpoint = endpoint::open(socket, &tls).map_err(failed)?;
        let (refusals, restarts) = (Refusals::default(), AtomicU64::new(0));
        let tls = RwLock::new(tls);
        let net = Self {
            node,
            routes,
            tls,
            renewals: AtomicU64::new(0),
            local_addr,
            clock,
            refusals,
            restarts,
            mode,
            reloads,
            #[cfg(test)]
            sabotaged: false.into(),
        };
        Ok((net, endpoint))
    }

    /// Opens another endpoint where the first one was.
    fn bind(&self) -> io::Result<quinn::Endpoint> {
        endpoint::open(UdpSocket::bind(self.local_addr)?, &self.tls())
    }

    /// The peers, in the order of their names.
    pub(crate) fn peers(&self) -> Vec<NodeId> {
        self.routes().iter().map(|route| route.node.clone()).collect()
    }

    fn routes(&self) -> Routes {
        Arc::clone(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks that this node can go on with these peers and this identity.
    pub(crate) fn prepare(&self, peers: Vec<Peer>, identity: &TlsIdentity) -> Result<Next, IdentityError> {
        let tls = Tls::new(identity, &self.node)?;
        warn_of_flaw(identity, &self.clock);
        let routes = routes(&self.node, peers, &self.routes())?;
        Ok(Next { routes, tls })
    }

    /// Goes on with other peers and another identity, while no run is under way.
    fn go_on_with(&self, next: Next) {
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = next.routes;
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = next.tls;
        self.renewals.fetch_add(1, Ordering::SeqCst);
    }

    /// The address that the node listens on.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// How often the tasks had to be started anew.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Each peer's connection.
    pub(crate) fn links(&self) -> Vec<LinkStatus> {
        self.routes().iter().map(|route| route.status()).collect()
    }

    /// Connections refused or closed for cause.
    pub(crate) fn refused_counts(&self) -> RefusedCounts {
        self.refusals.counts()
    }

    /// Counts a refusal. Of each kind, the first is logged, the second, the fourth, and so on, so that who can cause
    /// them cannot fill the log.
    fn refused(&self, refusal: Refusal, who: &dyn fmt::Display) {
        let count = self.refusals.count(refusal);
        if count.is_power_of_two() {
            tracing::warn!(from = %who, reason = %refusal, count, "a connection was refused");
        }
    }

    fn route(&self, node: &NodeId) -> Option<Arc<Route>> {
        let routes = self.routes();
        let position = routes.binary_search_by(|route| route.node.cmp(node)).ok()?;
        routes.get(position).cloned()
    }

    /// The route to the node with this place among all nodes.
    fn route_at(&self, index: NodeIndex) -> Option<Arc<Route>> {
        let routes = self.routes();
        let position = routes.binary_search_by_key(&index, |route| route.index).ok()?;
        routes.get(position).cloned()
    }

    /// Shows and trusts other certificates from now on. All connections are made anew, so that who is no longer
    /// trusted is cut off.
    pub(crate) fn renew(&self, identity: &TlsIdentity) -> Result<(), IdentityError> {
        let tls = Tls::new(identity, &self.node)?;
        warn_of_flaw(identity, &self.clock);
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
        // From here on, the driver closes what was begun before, should it come in after the links are closed below.
        self.renewals.fetch_add(1, Ordering::SeqCst);
        for link in self.routes().iter().filter_map(|route| route.link()) {
            link.close(Farewell::Renewed);
        }
        Ok(())
    }

    /// Closes and forgets all connections, whose tasks are gone.
    fn hang_up(&self, farewell: Farewell) {
        for link in self.routes().iter().filter_map(|route| route.take()) {
            link.close(farewell);
        }
    }

    fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::SeqCst)
    }

    fn client(&self) -> quinn::ClientConfig {
        self.tls().client.clone()
    }

    fn server(&self) -> Arc<quinn::ServerConfig> {
        self.tls().server.clone()
    }

    fn tls(&self) -> RwLockReadGuard<'_, Tls> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_cut(&self) -> bool {
        *self.mode.borrow() == Mode::CutOff
    }

    /// Waits until the node is cut off.
    async fn cut(&self) {
        self.wait_for(|mode| mode == Mode::CutOff).await;
    }

    /// Waits until the node is not cut off.
    async fn not_cut(&self) {
        self.wait_for(|mode| mode != Mode::CutOff).await;
    }

    /// How often the network has been told to start anew.
    fn reloads(&self) -> u64 {
        *self.reloads.borrow()
    }

    /// Waits until the network is told to start anew, once more than `before`.
    async fn reloading(&self, before: u64) {
        if self.reloads.clone().wait_for(|reloads| *reloads != before).await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits until the node is told to stop.
    async fn stopping(&self) {
        self.wait_for(|mode| mode == Mode::Stopping).await;
    }

    async fn wait_for(&self, wanted: impl Fn(Mode) -> bool) {
        if self.mode.clone().wait_for(|mode| wanted(*mode)).await.is_err() {
            // The mesh is gone without a word, and this task will be, too.
            std::future::pending().await
        }
    }
}

fn warn_of_flaw(identity: &TlsIdentity, clock: &Clock) {
    if let Some(flaw) = tls::flaw(identity, clock.precise().wall) {
        tracing::warn!(%flaw, "peers that trust the same authority will refuse this node's certificate");
    }
}

/// A route to each peer, in the order of their names; one of the former ones where it still leads to the same. The
/// configuration has made sure that each is another's.
fn routes(own: &NodeId, mut peers: Vec<Peer>, former: &[Arc<Route>]) -> Result<Routes, IdentityError> {
    peers.sort_by(|one, other| one.node.cmp(&other.node));
    let before = peers.partition_point(|peer| peer.node < *own);
    let places = (0..).filter(|place| usize::from(*place) != before).map(NodeIndex);
    peers
        .into_iter()
        .zip(places)
        .map(|(peer, index)| {
            tls::server_name(&peer.node)?;
            let same = |route: &&Arc<Route>| {
                (route.index, &route.node, &route.address) == (index, &peer.node, &peer.address)
            };
            let same = former.iter().find(same).cloned();
            Ok(same.unwrap_or_else(|| Arc::new(Route::new(index, peer))))
        })
        .collect()
}
