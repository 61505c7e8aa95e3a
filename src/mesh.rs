//! A node of the fleet: starts it, hands out its limiters, says how it is, changes it, stops it.

mod limiters;
mod reload;

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    bands::Bands,
    clock::Clock,
    config::{Config, GossipKnobs, TlsIdentity},
    error::{Refusal, RefusedBy},
    gossip::{Gossip, GossipConfig, Status},
    key::{KeyHasher, KeySource},
    limiter::Limiter,
    net::{Engine, IdentityError, LinkStatus, Mode, Net, RefusedCounts, Start, StartError, Supervisor, lock},
    node::{Incarnation, NodeId},
    permit::Permits,
    together,
};
use limiters::Limiters;
pub use reload::ReloadError;
use reload::{Fixed, Reloads};

/// A node that stops is given up on after this time; it takes about one second when peers do not answer.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// One node of a fleet.
///
/// It gossips in tasks of the tokio runtime that it is started in, which needs I/O and time enabled. Its limiters
/// need no runtime, and go on without it: when the mesh is gone, they enforce their limits for this node alone.
///
/// Dropping a mesh ends its connections at once; [`shutdown`](Mesh::shutdown) tells the peers first.
///
/// ```no_run
/// use ratemesh::{Config, Mesh};
///
/// # async fn serve(config: Config) -> Result<(), Box<dyn std::error::Error>> {
/// let mesh = Mesh::start(config).await?;
/// let logins = mesh.limiter("logins").ok_or("no such limit")?;
/// if logins.check("alice").is_allowed() {
///     // ...
/// }
/// mesh.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a mesh that is dropped leaves the fleet"]
pub struct Mesh {
    node: NodeId,
    limiters: Limiters,
    hasher: KeyHasher,
    clock: Clock,
    net: Arc<Net>,
    gossip: Arc<Mutex<Gossip>>,
    engine: Arc<Mutex<Engine>>,
    mode: watch::Sender<Mode>,
    reloads: Reloads,
    supervisor: JoinHandle<()>,
}

impl Mesh {
    /// Starts a node: binds its socket, and begins to dial and to listen. It does not wait for peers; until it has
    /// heard from them, its limiters admit at most this node's share.
    ///
    /// # Errors
    /// Says what is wrong with the address, the names or the certificates. Nothing is left running.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let clock = Clock::system();
        let fixed = Fixed::of(&config);
        let (mode, listener) = watch::channel(Mode::Joined);
        let (orders, ordered) = watch::channel(0);
        let (reloaded, carried_out) = watch::channel(0);
        let (net, endpoint) = Net::open(Start {
            node: config.node.clone(),
            peers: config.peers,
            identity: &config.tls,
            listen: config.listen,
            socket: config.socket,
            clock: clock.clone(),
            mode: listener,
            reloads: ordered,
        })?;
        let net = Arc::new(net);
        let wake = Arc::new(Notify::new());
        let bands = config.limits.into_iter().map(Bands::new).collect::<Vec<_>>();
        let tables = bands.iter().flat_map(Bands::tables).cloned().collect();
        let hasher = KeyHasher::new(config.digest, &config.secret);
        let limiter = |bands| Limiter::from_parts(bands, clock.clone(), hasher.clone());
        let limiters = Limiters::new(bands.into_iter().map(limiter));
        let gossip_config = gossip_config(config.node.clone(), config.cluster, net.peers(), &config.gossip);
        let engine = Engine { config: gossip_config, tables, clock: clock.clone(), wake, next: None };
        let gossip = Arc::new(Mutex::new(engine.gossip()));
        let engine = Arc::new(Mutex::new(engine));
        let supervisor =
            Supervisor { net: net.clone(), engine: engine.clone(), gossip: gossip.clone(), reloaded };
        let supervisor = tokio::spawn(supervisor.supervise(endpoint));
        tracing::info!(node = %config.node, address = %net.local_addr(), "the node has started");
        let reloads = Reloads::new(orders, carried_out, fixed);
        Ok(Self {
            node: config.node,
            limiters,
            hasher,
            clock,
            net,
            gossip,
            engine,
            mode,
            reloads,
            supervisor,
        })
    }

    /// The limiter of this name, if the configuration has one. Limiters of the same name, and their clones, share
    /// one state.
    ///
    /// A limiter goes on when the configuration [is changed](Self::reload): with the limit as it is then, or for this node
    /// alone where the configuration has no such limit any more.
    pub fn limiter(&self, name: &str) -> Option<Limiter> {
        self.limiters.get(name).cloned()
    }

    /// Decides a request that several limits have to let pass, all or none, like [`check_all`](crate::check_all). Each
    /// entry names its limit, or is a limiter.
    ///
    /// ```no_run
    /// # fn login(mesh: &ratemesh::Mesh, address: std::net::IpAddr, name: &str) -> Result<(), ratemesh::OwnedRefusal> {
    /// let by_address = mesh.limiter("by-address").ok_or(ratemesh::Refusal::NoSuchLimit)?;
    /// mesh.check_all([("by-address", by_address.key(address), 1), ("by-name", by_address.key(name), 1)])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Which limit refused, and why, or which does not exist. Nothing is spent.
    pub fn check_all<'a, K: KeySource>(
        &'a self,
        asks: impl IntoIterator<Item = (impl WhichLimit<'a>, K, u64)>,
    ) -> Result<(), RefusedBy<'a>> {
        together::check_all(self.look_up(asks)?)
    }

    /// Reserves units of several limits, all or none, like [`reserve_all`](crate::reserve_all).
    ///
    /// # Errors
    /// Which limit refused, and why, or which does not exist. Nothing is spent.
    pub fn reserve_all<'a, K: KeySource>(
        &'a self,
        asks: impl IntoIterator<Item = (impl WhichLimit<'a>, K, u64)>,
    ) -> Result<Permits, RefusedBy<'a>> {
        together::reserve_all(self.look_up(asks)?)
    }

    fn look_up<'a, K: KeySource>(
        &'a self,
        asks: impl IntoIterator<Item = (impl WhichLimit<'a>, K, u64)>,
    ) -> Result<Vec<(&'a Limiter, K, u64)>, RefusedBy<'a>> {
        let find = |(index, (which, key, cost)): (usize, _)| match WhichLimit::find(which, self) {
            Some(limiter) => Ok((limiter, key, cost)),
            None => Err(RefusedBy { index, refusal: Refusal::NoSuchLimit }),
        };
        asks.into_iter().enumerate().map(find).collect()
    }

    /// This node's name.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// The address that the node listens on, with the port that the system chose if it was to.
    pub fn local_addr(&self) -> SocketAddr {
        self.net.local_addr()
    }

    /// How the node is, and what it knows of its peers.
    pub fn status(&self) -> MeshStatus {
        MeshStatus {
            gossip: lock(&self.gossip).status(self.clock.precise()),
            local_addr: self.local_addr(),
            links: self.net.links(),
            refused: self.net.refused_counts(),
            restarts: self.net.restarts(),
            cut_off: *self.mode.borrow() == Mode::CutOff,
        }
    }

    /// Pulls the gossip cable, or plugs it in again: a drill for operators, who can see what their fleet does when
    /// it is parted from one node.
    ///
    /// While it is pulled, all connections of this node's gossip are closed, none is dialled, and none accepted. All
    /// else goes on: limits are enforced as their `on_partition` says.
    pub fn cut_off(&self, cut: bool) {
        let mode = if cut { Mode::CutOff } else { Mode::Joined };
        let changed = self.mode.send_if_modified(|current| std::mem::replace(current, mode) != mode);
        if changed {
            tracing::warn!(node = %self.node, cut_off = cut, "the gossip was cut off or joined by hand");
        }
    }

    /// Shows and trusts other certificates from now on, for when they are renewed or the authority is replaced.
    ///
    /// All connections are made anew, which takes a fraction of a second, so that peers that are no longer trusted are
    /// cut off. To replace the authority, first let all nodes trust both, then give each its new certificate, then
    /// let go of the old authority.
    ///
    /// # Errors
    /// Says what is wrong with the certificates. The node goes on with those that it has.
    pub fn renew_identity(&self, identity: &TlsIdentity) -> Result<(), IdentityError> {
        self.net.renew(identity)
    }

    /// Stops the node: tells the peers, so that they need not suspect it, waits up to a second until they have heard,
    /// and closes the connections. Limiters go on for this node alone.
    pub async fn shutdown(mut self) {
        self.mode.send_replace(Mode::Stopping);
        if timeout(SHUTDOWN_TIMEOUT, &mut self.supervisor).await.is_err() {
            tracing::warn!(node = %self.node, "the node did not stop in time, and was aborted");
        }
    }
}

/// What says which limit is meant: its name, or a limiter.
pub trait WhichLimit<'a> {
    /// The limiter that is meant.
    fn find(self, mesh: &'a Mesh) -> Option<&'a Limiter>;
}

impl<'a> WhichLimit<'a> for &'a Limiter {
    fn find(self, _mesh: &'a Mesh) -> Option<&'a Limiter> {
        Some(self)
    }
}

impl<'a> WhichLimit<'a> for &str {
    fn find(self, mesh: &'a Mesh) -> Option<&'a Limiter> {
        mesh.limiters.get(self)
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mesh")
            .field("node", &self.node)
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.supervisor.abort();
        lock(&self.gossip).stand_alone(self.clock.precise());
    }
}

fn gossip_config(node: NodeId, cluster: String, peers: Vec<NodeId>, knobs: &GossipKnobs) -> GossipConfig {
    GossipConfig {
        cluster,
        node,
        // Each start of the engine draws its own.
        incarnation: Incarnation::new(0),
        peers,
        heartbeat: knobs.heartbeat,
        min_interval: knobs.min_interval,
        suspect_after: knobs.suspect_after,
        sync_timeout: knobs.sync_timeout,
        fanout: knobs.fanout,
        repair_interval: knobs.repair_interval,
    }
}

/// How a node is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MeshStatus {
    /// What the node knows of itself, its peers and its limits.
    pub gossip: Status,
    /// The address that it listens on.
    pub local_addr: SocketAddr,
    /// Its connection to each peer.
    pub links: Vec<LinkStatus>,
    /// Connections that it refused or closed for cause, since its start.
    pub refused: RefusedCounts,
    /// How often its gossip had to be started anew after a failure of its own.
    pub restarts: u64,
    /// Whether it was [cut off](Mesh::cut_off) by hand.
    pub cut_off: bool,
}
