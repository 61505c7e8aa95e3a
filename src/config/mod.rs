//! What a node is told at its start: who it is, who its peers are, and which limits they keep together.
//!
//! A [`Config`] comes out of a TOML file ([`Config::from_file`]) or out of code ([`Config::builder`]). Both ways end in
//! the same checks, so a `Config` that exists will do: names are names, no peer is listed twice, durations are in
//! range. `configs/annotated.toml` lists every key of the file with its default and its meaning.
//!
//! The file says what is wrong with it by line and key, and takes no key that it does not know: a misspelt
//! `burst` is an error, not a limit without its burst.

mod builder;
pub(crate) mod document;
mod error;
pub(crate) mod file;
mod text;
#[cfg(feature = "net")]
mod tls;

use std::{
    fmt,
    net::{SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

#[cfg(feature = "net")]
pub use self::tls::TlsIdentity;
pub use self::{
    builder::{ConfigBuilder, MAX_LIMITS, MAX_PEERS, MIN_SECRET_BYTES},
    error::ConfigError,
    text::{TextError, format_duration, format_quota, parse_duration, parse_quota},
};

use crate::{key::Digest, limit::Limit, node::NodeId};

/// The cluster's name where none is given.
pub const DEFAULT_CLUSTER: &str = "ratemesh";

/// A node's configuration, checked.
#[cfg_attr(not(feature = "net"), allow(dead_code, reason = "some of it is for the network alone"))]
pub struct Config {
    pub(crate) node: NodeId,
    pub(crate) cluster: String,
    pub(crate) listen: SocketAddr,
    pub(crate) socket: Option<UdpSocket>,
    pub(crate) secret: Vec<u8>,
    pub(crate) digest: Digest,
    #[cfg(feature = "net")]
    pub(crate) tls: TlsIdentity,
    pub(crate) peers: Vec<Peer>,
    pub(crate) gossip: GossipKnobs,
    pub(crate) limits: Vec<Limit>,
}

impl Config {
    /// Reads a TOML file, and the files that it names; relative paths in it start at its own directory.
    ///
    /// # Errors
    /// Says which file cannot be read, or which line and key of it will not do, and what would.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        file::load(path.as_ref())
    }

    /// Reads TOML text; `source_name` is what errors call it, and relative paths in it start at `base_dir`.
    ///
    /// # Errors
    /// As [`Config::from_file`].
    pub fn from_toml(text: &str, source_name: &str, base_dir: impl AsRef<Path>) -> Result<Self, ConfigError> {
        file::config(text, source_name, base_dir.as_ref())
    }

    /// Starts the configuration of this node in code.
    pub fn builder(node: NodeId) -> ConfigBuilder {
        ConfigBuilder::new(node)
    }

    /// This node's name.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// The cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The UDP address that this node listens on.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// The function that digests keys.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// All other nodes of the cluster, in the order they were given.
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// The pace of the gossip.
    pub fn gossip(&self) -> &GossipKnobs {
        &self.gossip
    }

    /// The limits, in the order they were given.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the secret nor the private key may reach a log.
        let mut fields = f.debug_struct("Config");
        fields.field("node", &self.node).field("cluster", &self.cluster).field("listen", &self.listen);
        fields.field("digest", &self.digest).field("peers", &self.peers).field("gossip", &self.gossip);
        fields.field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Reads only the `[[limit]]` tables of a configuration.
///
/// The other tables may be there: their keys and types are checked as always, but they are not made use of, and the
/// files they name are not read.
///
/// # Errors
/// As [`Config::from_file`]; also when there is no limit at all.
pub fn limits_from_toml(text: &str, source_name: &str) -> Result<Vec<Limit>, ConfigError> {
    file::limits(text, source_name)
}

/// Another node of the cluster, and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub(crate) node: NodeId,
    pub(crate) address: String,
}

impl Peer {
    /// Its name, which its certificate must carry.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Its UDP address, `host:port`; a host name is resolved again at each dial.
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// The pace of the gossip. The defaults suit nodes in one data centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipKnobs {
    pub(crate) heartbeat: Duration,
    pub(crate) suspect_after: Duration,
    pub(crate) sync_timeout: Duration,
    pub(crate) repair_interval: Duration,
    pub(crate) fanout: usize,
    pub(crate) min_interval: Option<Duration>,
}

impl GossipKnobs {
    /// Time between heartbeats, which carry what has changed; 100 ms unless set.
    pub fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// A peer unheard for this long is unreachable; 1 s unless set.
    pub fn suspect_after(&self) -> Duration {
        self.suspect_after
    }

    /// How long a starting node keeps to its share of each quota while it waits for its peers' state; 2 s unless set.
    pub fn sync_timeout(&self) -> Duration {
        self.sync_timeout
    }

    /// Time between digests, which repair what got lost; 10 s unless set.
    pub fn repair_interval(&self) -> Duration {
        self.repair_interval
    }

    /// How many peers a round reaches when there are more than four nodes; 3 unless set.
    pub fn fanout(&self) -> usize {
        self.fanout
    }

    /// The least time between two early flushes of one key; chosen by the number of nodes unless set.
    pub fn min_interval(&self) -> Option<Duration> {
        self.min_interval
    }
}

impl Default for GossipKnobs {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(100),
            suspect_after: Duration::from_secs(1),
            sync_timeout: Duration::from_secs(2),
            repair_interval: Duration::from_secs(10),
            fanout: 3,
            min_interval: None,
        }
    }
}
