//! The checks that every configuration passes, and the way to one from code.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{SocketAddr, UdpSocket},
    ops::RangeInclusive,
    time::Duration,
};

#[cfg(feature = "net")]
use super::TlsIdentity;
use super::{Config, ConfigError, DEFAULT_CLUSTER, GossipKnobs, Peer, error::Problem, format_duration};
use crate::{key::Digest, limit::Limit, node::NodeId};

/// The most peers that a node can be given.
pub const MAX_PEERS: usize = 1_000;
/// The most limits that a node can be given, and the most quotas that they can have together.
pub const MAX_LIMITS: usize = 256;
/// The shortest secret that is taken, in bytes.
pub const MIN_SECRET_BYTES: usize = 16;

const MAX_SECRET_BYTES: usize = 1_024;
const MAX_CLUSTER_BYTES: usize = 64;
const MAX_HOST_BYTES: usize = 253;
const HEARTBEAT: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(10);
/// A peer is not suspected for fewer silent heartbeats than this: two datagrams may get lost.
const LEAST_HEARTBEATS_TO_SUSPECT: u32 = 3;
const MAX_SUSPECT_AFTER: Duration = Duration::from_secs(600);
const MAX_SYNC_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_REPAIR_INTERVAL: Duration = Duration::from_secs(3_600);
const MIN_MIN_INTERVAL: Duration = Duration::from_millis(1);
const FANOUT: RangeInclusive<usize> = 1..=16;

/// A [`Config`] being put together in code.
///
/// It needs an address or a socket, a secret and peers (unless the node is to be alone), and at least one limit; with the
/// feature `net`, also a TLS identity.
///
#[cfg_attr(feature = "net", doc = "```no_run")]
#[cfg_attr(not(feature = "net"), doc = "```ignore")]
/// use ratemesh::{Config, Limit, NodeId, Quota, TlsIdentity};
///
/// fn config() -> Result<Config, Box<dyn std::error::Error>> {
///     let (ca, chain, key) = (
///         std::fs::read("certs/ca.pem")?,
///         std::fs::read("certs/node-1.pem")?,
///         std::fs::read("certs/node-1.key")?,
///     );
///     let config = Config::builder(NodeId::new("node-1")?)
///         .listen("10.0.0.1:7101".parse()?)
///         .tls(TlsIdentity::from_pem(&ca, &chain, &key)?)
///         .secret(std::fs::read("certs/cluster.secret")?.trim_ascii_end())
///         .peer(NodeId::new("node-2")?, "node-2.internal:7101")
///         .limit(Limit::token_bucket("api", Quota::per_second(1_000)).build()?)
///         .build()?;
///     Ok(config)
/// }
/// ```
#[must_use = "a configuration comes out of `build`"]
pub struct ConfigBuilder {
    node: NodeId,
    cluster: String,
    listen: Option<SocketAddr>,
    socket: Option<UdpSocket>,
    secret: Option<Vec<u8>>,
    digest: Digest,
    #[cfg(feature = "net")]
    tls: Option<TlsIdentity>,
    peers: Vec<Peer>,
    gossip: GossipKnobs,
    limits: Vec<Limit>,
}

impl ConfigBuilder {
    pub(super) fn new(node: NodeId) -> Self {
        Self {
            node,
            cluster: DEFAULT_CLUSTER.to_owned(),
            listen: None,
            socket: None,
            secret: None,
            digest: Digest::default(),
            #[cfg(feature = "net")]
            tls: None,
            peers: Vec::new(),
            gossip: GossipKnobs::default(),
            limits: Vec::new(),
        }
    }

    /// Sets the cluster's name, [`DEFAULT_CLUSTER`] unless set: 1 to 64 ASCII letters, digits, `-`, `_`, `.`, `:` or `/`.
    /// Nodes of another cluster are not listened to.
    pub fn cluster(mut self, name: impl Into<String>) -> Self {
        self.cluster = name.into();
        self
    }

    /// Sets the UDP address to listen on; with port 0, the system chooses one.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// Gives a socket that is bound already, in place of an address.
    pub fn socket(mut self, socket: UdpSocket) -> Self {
        self.socket = Some(socket);
        self
    }

    /// Sets the secret that keys are digested under, the same on all nodes: [`MIN_SECRET_BYTES`] to 1,024 random bytes.
    /// Needed as soon as there are peers. They are taken as they are; of a `secret_file`, the configuration file drops white
    /// space at the end.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Sets the function that digests keys, the same on all nodes.
    pub fn digest(mut self, digest: Digest) -> Self {
        self.digest = digest;
        self
    }

    /// Sets the certificates and the private key.
    #[cfg(feature = "net")]
    pub fn tls(mut self, identity: TlsIdentity) -> Self {
        self.tls = Some(identity);
        self
    }

    /// Adds a peer, at most [`MAX_PEERS`] of them, and the UDP address it is reached at: `host:port` with an IP address
    /// or a DNS name, as in `10.0.0.7:7100`, `[2001:db8::7]:7100` or `node-2.example.com:7100`.
    pub fn peer(mut self, node: NodeId, address: impl Into<String>) -> Self {
        self.peers.push(Peer { node, address: address.into() });
        self
    }

    /// Sets the time between heartbeats: 10 ms to 10 s.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.gossip.heartbeat = interval;
        self
    }

    /// Sets how long a peer may be unheard before it counts as unreachable: three heartbeats to 10 minutes.
    pub fn suspect_after(mut self, silence: Duration) -> Self {
        self.gossip.suspect_after = silence;
        self
    }

    /// Sets how long a starting node waits for its peers' state: up to 60 s.
    pub fn sync_timeout(mut self, timeout: Duration) -> Self {
        self.gossip.sync_timeout = timeout;
        self
    }

    /// Sets the time between repairs: one heartbeat to 1 hour.
    pub fn repair_interval(mut self, interval: Duration) -> Self {
        self.gossip.repair_interval = interval;
        self
    }

    /// Sets how many peers a round reaches when there are more than four nodes: 1 to 16.
    pub fn fanout(mut self, peers: usize) -> Self {
        self.gossip.fanout = peers;
        self
    }

    /// Sets the least time between two early flushes of one key: 1 ms to one heartbeat.
    pub fn min_interval(mut self, interval: Duration) -> Self {
        self.gossip.min_interval = Some(interval);
        self
    }

    /// Adds a limit, at most [`MAX_LIMITS`] of them.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// Names the key that will not do as a file would call it, such as `gossip.heartbeat`, what it holds, and what
    /// would do.
    pub fn build(self) -> Result<Config, ConfigError> {
        check_cluster(&self.cluster)?;
        let listen = listen_address(self.listen, self.socket.as_ref())?;
        check_secret(self.secret.as_deref(), !self.peers.is_empty())?;
        check_peers(&self.node, listen, &self.peers)?;
        check_gossip(&self.gossip)?;
        check_limits(&self.limits)?;
        Ok(Config {
            node: self.node,
            cluster: self.cluster,
            listen,
            socket: self.socket,
            secret: self.secret.unwrap_or_default(),
            digest: self.digest,
            #[cfg(feature = "net")]
            tls: self.tls.ok_or_else(|| ConfigError::missing("tls", "the keys ca, cert and key"))?,
            peers: self.peers,
            gossip: self.gossip,
            limits: self.limits,
        })
    }
}

impl fmt::Debug for ConfigBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigBuilder").field("node", &self.node).finish_non_exhaustive()
    }
}

fn check_cluster(name: &str) -> Result<(), ConfigError> {
    let legible = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    if name.is_empty() || name.len() > MAX_CLUSTER_BYTES || !name.bytes().all(legible) {
        let wanted = "1 to 64 ASCII letters, digits, '-', '_', '.', ':' or '/'";
        return Err(ConfigError::value("node.cluster", format_args!("{name:?}"), wanted));
    }
    Ok(())
}

fn listen_address(listen: Option<SocketAddr>, socket: Option<&UdpSocket>) -> Result<SocketAddr, ConfigError> {
    match (socket, listen) {
        (Some(socket), _) => socket.local_addr().map_err(|error| {
            ConfigError::new(
                "node.listen",
                Problem::Unreadable { path: "the given socket".to_owned(), error },
            )
        }),
        (None, Some(address)) => Ok(address),
        (None, None) => {
            Err(ConfigError::missing("node.listen", "an IP address and a port, such as \"0.0.0.0:7100\""))
        }
    }
}

fn check_secret(secret: Option<&[u8]>, has_peers: bool) -> Result<(), ConfigError> {
    match secret {
        None if has_peers => Err(ConfigError::missing(
            "keys.secret",
            "16 random bytes or more, the same on all nodes (or secret_file, a file that holds them)",
        )),
        Some(secret) if secret.len() < MIN_SECRET_BYTES || secret.len() > MAX_SECRET_BYTES => {
            let held =
                format!("has {} bytes; it takes {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES}", secret.len());
            Err(ConfigError::refused("keys.secret", held))
        }
        _ => Ok(()),
    }
}

fn check_peers(node: &NodeId, listen: SocketAddr, peers: &[Peer]) -> Result<(), ConfigError> {
    if peers.len() > MAX_PEERS {
        return Err(ConfigError::refused("peer", format_args!("{} peers; at most {MAX_PEERS}", peers.len())));
    }
    let mut names = HashMap::new();
    let mut addresses = HashMap::from([(listen.to_string(), node)]);
    for (index, peer) in peers.iter().enumerate() {
        let name = peer.node.as_str();
        let refused = |field: &str, why: String| {
            Err(ConfigError::refused(format!("peer[{index}].{field}"), why).of_entry(name))
        };
        if peer.node == *node {
            return refused("name", "is this node's own name; list only the other nodes".to_owned());
        }
        if let Some(first) = names.insert(name, index) {
            return refused("name", format!("is the name of peer[{first}], too; list each node once"));
        }
        check_address(&peer.address).map_err(|wanted| {
            ConfigError::value(format!("peer[{index}].address"), format_args!("{:?}", peer.address), wanted)
                .of_entry(name)
        })?;
        if let Some(other) = addresses.insert(peer.address.to_ascii_lowercase(), &peer.node) {
            return refused("address", format!("{:?} is the address of {other}, too", peer.address));
        }
    }
    Ok(())
}

/// Checks the form of `host:port`; says what it should be.
fn check_address(address: &str) -> Result<(), &'static str> {
    let wanted = "\"host:port\" with an IP address or a DNS name, such as \"10.0.0.7:7100\" or \"node-2.example.com:7100\"";
    if let Ok(address) = address.parse::<SocketAddr>() {
        let reachable = address.port() != 0 && !address.ip().is_unspecified();
        return if reachable {
            Ok(())
        } else {
            Err("an address and a port that can be dialled, not all zeros")
        };
    }
    let (host, port) = address.rsplit_once(':').ok_or(wanted)?;
    if !port.parse::<u16>().is_ok_and(|port| port != 0) {
        return Err(wanted);
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    let label = |label: &str| {
        let legible = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(legible)
    };
    // A name that ends in a number is a mistyped IPv4 address.
    let numeric = host.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    if host.len() > MAX_HOST_BYTES || numeric || !host.split('.').all(label) {
        return Err(wanted);
    }
    Ok(())
}

fn check_gossip(knobs: &GossipKnobs) -> Result<(), ConfigError> {
    let GossipKnobs { heartbeat, suspect_after, sync_timeout, repair_interval, fanout, min_interval } = knobs;
    check_range("gossip.heartbeat", *heartbeat, HEARTBEAT)?;
    check_range(
        "gossip.suspect_after",
        *suspect_after,
        *heartbeat * LEAST_HEARTBEATS_TO_SUSPECT..=MAX_SUSPECT_AFTER,
    )?;
    check_range("gossip.sync_timeout", *sync_timeout, Duration::ZERO..=MAX_SYNC_TIMEOUT)?;
    check_range("gossip.repair_interval", *repair_interval, *heartbeat..=MAX_REPAIR_INTERVAL)?;
    if let Some(min_interval) = min_interval {
        check_range("gossip.min_interval", *min_interval, MIN_MIN_INTERVAL..=*heartbeat)?;
    }
    if !FANOUT.contains(fanout) {
        let wanted = format!("{} to {} peers", FANOUT.start(), FANOUT.end());
        return Err(ConfigError::value("gossip.fanout", fanout, wanted));
    }
    Ok(())
}

fn check_range(key: &str, value: Duration, range: RangeInclusive<Duration>) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let relative = match key {
        "gossip.suspect_after" => " (from three heartbeats on)",
        "gossip.repair_interval" => " (from one heartbeat on)",
        "gossip.min_interval" => " (up to one heartbeat)",
        _ => "",
    };
    let wanted =
        format!("{} to {}{relative}", format_duration(*range.start()), format_duration(*range.end()));
    Err(ConfigError::value(key, format_args!("{:?}", format_duration(value)), wanted))
}

/// Checks that there are limits, not too many, and that each name is used once.
pub(super) fn check_limits(limits: &[Limit]) -> Result<(), ConfigError> {
    if limits.is_empty() {
        return Err(ConfigError::missing("limit", "at least one [[limit]] with a name and a rate"));
    }
    let quotas: usize = limits.iter().map(|limit| limit.quotas().count()).sum();
    if limits.len() > MAX_LIMITS || quotas > MAX_LIMITS {
        let what = if limits.len() > MAX_LIMITS { "limits" } else { "quotas in all limits" };
        return Err(ConfigError::refused(
            "limit",
            format_args!("{} {what}; at most {MAX_LIMITS}", limits.len().max(quotas)),
        ));
    }
    let mut names = HashSet::new();
    for (index, limit) in limits.iter().enumerate() {
        if !names.insert(limit.name()) {
            let why = format!("{:?} is the name of an earlier limit, too; give each its own", limit.name());
            return Err(ConfigError::refused(format!("limit[{index}].name"), why));
        }
    }
    Ok(())
}
