//! A fleet of real nodes on loopback, in one process.
#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod authority;

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use ratemesh::{
    Config, Limit, LimitBuilder, Limiter, MAX_PERIOD, Mesh, NodeId, PeerState, Quota, ReloadError,
    config::{ConfigBuilder, TlsIdentity},
};
use tokio::time::{sleep, timeout};

use authority::{Authority, Issued};

/// Nothing here takes as long, on whatever machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A bucket that all but never refills.
pub(crate) fn bucket(name: &str, units: u64) -> LimitBuilder {
    Limit::token_bucket(name, Quota::new(units, MAX_PERIOD)).burst(units)
}

pub(crate) fn limits(builders: &[LimitBuilder]) -> Vec<Limit> {
    builders.iter().map(|builder| builder.clone().build().expect("a limit")).collect()
}

/// Nodes `node-0`, `node-1` and so on, that trust one authority and keep the same limits.
pub(crate) struct Fleet {
    pub(crate) authority: Authority,
    limits: Vec<Limit>,
    addresses: Vec<SocketAddr>,
    meshes: Vec<Option<Mesh>>,
}

impl Fleet {
    /// Starts so many nodes, and waits until they all hear each other.
    pub(crate) async fn start(nodes: usize, limits: &[Limit]) -> Self {
        let (mut fleet, sockets) = Self::prepare(nodes, limits);
        for (index, socket) in sockets.into_iter().enumerate() {
            fleet.start_with(index, socket).await;
        }
        fleet.whole().await;
        fleet
    }

    /// Chooses the addresses; nothing is started.
    pub(crate) fn prepare(nodes: usize, limits: &[Limit]) -> (Self, Vec<UdpSocket>) {
        let bind = |_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let sockets: Vec<_> = (0..nodes).map(bind).collect();
        let addresses = sockets.iter().map(|socket| socket.local_addr().expect("an address")).collect();
        let meshes = (0..nodes).map(|_| None).collect();
        (Self { authority: Authority::new(), limits: limits.to_vec(), addresses, meshes }, sockets)
    }

    /// The configuration of a node with a certificate of its own.
    pub(crate) fn config(&self, index: usize, socket: UdpSocket) -> Config {
        let issued = self.authority.issue(name(index).as_str());
        self.config_as(index, socket, identity(&self.authority, &issued))
    }

    /// The configuration of a node with this certificate.
    pub(crate) fn config_as(&self, index: usize, socket: UdpSocket, identity: TlsIdentity) -> Config {
        let everyone: Vec<usize> = (0..self.addresses.len()).collect();
        self.builder_among(index, identity, &everyone).socket(socket).build().expect("a configuration")
    }

    /// The configuration of a node, as far as it is the same whatever its socket.
    pub(crate) fn builder(&self, index: usize) -> ConfigBuilder {
        let everyone: Vec<usize> = (0..self.addresses.len()).collect();
        self.builder_among(index, self.identity_of(index), &everyone).listen(self.addresses[index])
    }

    /// A new certificate of a node.
    pub(crate) fn identity_of(&self, index: usize) -> TlsIdentity {
        identity(&self.authority, &self.authority.issue(name(index).as_str()))
    }

    fn builder_among(&self, index: usize, identity: TlsIdentity, nodes: &[usize]) -> ConfigBuilder {
        let mut builder = Config::builder(name(index))
            .secret("sixteen bytes or more, for a test")
            // So long that only peers' answers end the wait, on whatever machine.
            .sync_timeout(Duration::from_secs(40))
            .tls(identity);
        for peer in nodes.iter().filter(|peer| **peer != index) {
            builder = builder.peer(name(*peer), self.addresses[*peer].to_string());
        }
        for limit in &self.limits {
            builder = builder.limit(limit.clone());
        }
        builder
    }

    /// Sets the limits of nodes that are started or changed from now on.
    pub(crate) fn set_limits(&mut self, limits: &[Limit]) {
        self.limits = limits.to_vec();
    }

    /// Changes a node's configuration while it runs.
    pub(crate) async fn reload(&self, index: usize) -> Result<(), ReloadError> {
        self.mesh(index).reload(self.builder(index).build().expect("a configuration")).await
    }

    /// The same in a fleet of these nodes.
    pub(crate) async fn reload_among(&self, index: usize, nodes: &[usize]) -> Result<(), ReloadError> {
        let builder = self.builder_among(index, self.identity_of(index), nodes).listen(self.addresses[index]);
        self.mesh(index).reload(builder.build().expect("a configuration")).await
    }

    /// Starts a node in a fleet of these nodes.
    pub(crate) async fn start_among(&mut self, index: usize, socket: UdpSocket, nodes: &[usize]) {
        let builder = self.builder_among(index, self.identity_of(index), nodes).socket(socket);
        let mesh = Mesh::start(builder.build().expect("a configuration")).await.expect("a node");
        self.meshes[index] = Some(mesh);
    }

    async fn start_with(&mut self, index: usize, socket: UdpSocket) {
        let mesh = Mesh::start(self.config(index, socket)).await.expect("a node");
        self.meshes[index] = Some(mesh);
    }

    /// Stops a node without a word to its peers beyond the end of its connections.
    pub(crate) fn kill(&mut self, index: usize) {
        drop(self.meshes[index].take().expect("a running node"));
    }

    /// Stops a node as it should be stopped.
    pub(crate) async fn shut_down(&mut self, index: usize) {
        self.meshes[index].take().expect("a running node").shutdown().await;
    }

    /// Starts a node where it was before.
    pub(crate) async fn restart(&mut self, index: usize) {
        let socket = self.socket(index).await;
        self.start_with(index, socket).await;
    }

    /// The socket of a node that has stopped, once the system has let it go.
    pub(crate) async fn socket(&self, index: usize) -> UdpSocket {
        let bind = async {
            loop {
                match UdpSocket::bind(self.addresses[index]) {
                    Ok(socket) => return socket,
                    Err(_) => sleep(Duration::from_millis(5)).await,
                }
            }
        };
        timeout(DEADLINE, bind).await.expect("the port to become free")
    }

    pub(crate) fn mesh(&self, index: usize) -> &Mesh {
        self.meshes[index].as_ref().expect("a running node")
    }

    /// The first limit's limiter on this node.
    pub(crate) fn limiter(&self, index: usize) -> Limiter {
        self.mesh(index).limiter(self.limits[0].name()).expect("the limit")
    }

    /// Waits until all running nodes hear each other and have each other's state.
    pub(crate) async fn whole(&self) {
        let running = self.meshes.iter().flatten().count();
        eventually("the fleet to be whole", || {
            self.meshes.iter().flatten().all(|mesh| {
                let status = mesh.status().gossip;
                status.synced
                    && status.peers.iter().filter(|peer| peer.state == PeerState::Up).count() + 1 == running
            })
        })
        .await;
    }

    /// Waits until so many units are left of a key on each running node.
    pub(crate) async fn agrees(&self, key: &str, remaining: u64) {
        for index in (0..self.meshes.len()).filter(|index| self.meshes[*index].is_some()) {
            let limiter = self.limiter(index);
            let what = format!("{remaining} of {key} to remain on node {index}");
            eventually(&what, || limiter.peek(key).remaining() == remaining).await;
        }
    }

    /// How this node sees that peer.
    pub(crate) fn sees(&self, index: usize, peer: usize) -> PeerState {
        let peers = self.mesh(index).status().gossip.peers;
        peers.into_iter().find(|status| status.node == name(peer)).expect("a peer").state
    }
}

/// Checks so many times; how many were admitted.
pub(crate) fn admitted(limiter: &Limiter, key: &str, checks: u64) -> u64 {
    (0..checks).map(|_| u64::from(limiter.check(key).is_allowed())).sum()
}

pub(crate) fn name(index: usize) -> NodeId {
    NodeId::new(&format!("node-{index}")).expect("a name")
}

pub(crate) fn identity(trusts: &Authority, shows: &Issued) -> TlsIdentity {
    TlsIdentity::from_pem(trusts.pem().as_bytes(), shows.chain.as_bytes(), shows.key.as_bytes())
        .expect("certificates")
}

/// Waits until this holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(DEADLINE, wait).await.is_ok(), "waited in vain for {what}");
}
