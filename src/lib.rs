//! One rate limit for a whole fleet of service instances, decided in memory, with no store to run.
//!
//! Each instance of a service embeds this crate. It counts what it admits, and tells the other instances, so that all of
//! them together keep to one limit. A [`Limiter`] decides; it knows what the fleet spent from a [`Mesh`], which gossips with
//! the peers in the background over QUIC with mutual TLS. A limiter without a mesh is a limit for one process:
//!
//! ```
//! use ratemesh::{Limit, Limiter, Quota};
//!
//! let limit = Limit::token_bucket("logins", Quota::per_minute(5)).build()?;
//! let limiter = Limiter::new(limit);
//! if limiter.check("alice").is_allowed() {
//!     // ...
//! }
//! # Ok::<(), ratemesh::LimitError>(())
//! ```
//!
//! # Guarantees
//!
//! - A check waits for nothing: no network, no runtime, no lock that is held over either. One of a known key allocates
//!   nothing.
//! - Within one process a token bucket never admits more than burst + rate × t in any interval t, and never refuses below
//!   that.
//! - In a fleet, each unit that is spent is debited once on each node, whatever the network loses, repeats or reorders. The
//!   fleet overshoots by what its nodes admit while news of it is under way; the overshoot is owed, and repaid.
//! - What a node does about peers that it cannot hear is the limit's to say ([`OnPartition`]), and each decision tells what
//!   it was based on ([`Basis`]).
//! - A node that starts admits its share of each quota at most, until its peers have told it what was spent.
//! - Nothing that a peer sends can make a node panic, block, or grow beyond a documented bound.
//!
//! - What is given back goes to the node, the epoch and the window that it came from, or to nobody: it mints nothing, reaches
//!   no other key, and holds on all nodes.
//! - Several quotas, and several limits asked together, are all spent on or none is.
//! - Who waits for units is served in the order of coming, and leaves no trace if it gives up.
//!
//! What it does not guarantee: that nodes get equal parts of a limit that is exhausted, that the fleet admits not one unit too
//! many, or that counts outlive the last node. `README.md` has the list, and the commands that print the figures.
//!
//! # The walk of a check
//!
//! 1. `limiter.rs` digests the key under the fleet's secret ([`KeyHasher`]), and reads the coarse clock once.
//! 2. `table.rs` finds the key's entry. All that decides is in it: the level, what this node spent, and what is expected of
//!    peers meanwhile.
//! 3. `algorithm/` decides by one compare-and-swap on the level. Only a refusal that a fresher clock could turn is
//!    looked at again.
//! 4. The entry marks itself changed, and wakes the gossip when its peers do not know of 1 % of the quota.
//! 5. The answer is a [`Decision`], whose waits are worked out when they are asked for.
//!
//! # The walk of a change
//!
//! 1. With each heartbeat, or when woken, `net/driver.rs` has `gossip/` drain the changed entries into the `ledger.rs`, where each
//!    (key, epoch, node) has a share: what was spent, and what was refunded; both only grow.
//! 2. `gossip/round.rs` picks for each peer the shares that it has not acknowledged, in their newest state only, and
//!    `gossip/message.rs` packs them into a datagram.
//! 3. `net/link.rs` sends it over the peer's connection. Nothing resends it: what the peer does not acknowledge goes into the next one.
//! 4. There, `gossip/receive.rs` merges each share by maximum. What is new of it, less what was expected already, is
//!    debited from the level in the table; the level may go below zero, and the debt is repaid before more is admitted.
//!
//! # The walk of a ban
//!
//! 1. `table/rules.rs` notes it in the limit's notices (`notice.rs`), and marks the key's cell, if it has one: its checks then leave the short
//!    way, and ask for the key's rules. A key without a cell is asked for before it is taken in.
//! 2. `gossip/notices.rs` tells every peer at once, over streams. A peer to which it is news passes it on.
//! 3. With each hello two nodes compare digests of all notices; where they differ, each tells the other everything.
//!
//! # The walk of a quota of a key's own
//!
//! 1. `table/rules.rs` notes it like a ban, and it spreads like one. `table/quotas.rs` gives it a number among the table's quotas, and writes
//!    that into the key's cell while it carries the level over; from then on, all that reads the level reads it by that quota.
//! 2. A [reloaded](Mesh::reload) limit is one more quota of the table, which the keys without one of their own go over to, one after the
//!    other and at the latest when they are asked for. `gossip/reload.rs` keeps all that was written and heard, under other numbers.
//!
//! # Map
//!
//! Dependencies point inward only, which a test holds. The core does no I/O, and is handed time and randomness.
//!
//! | module | holds |
//! |---|---|
//! | `time`, `node`, `key` | points in time; who a node is; digests |
//! | `limit`, `counter`, `decision`, `error` | rules; shares; answers |
//! | `lists`, `notice` | allowed and denied networks; bans, overrides and resets, as they spread |
//! | `algorithm`, `ledger` | the arithmetic of a level; shares of all nodes |
//! | `table`, `bands` | live keys, and what decides on each; several tables in one decision |
//! | `gossip` | the protocol as a state machine without I/O |
//! | `sim` | a fleet on virtual time, driven by one seed |
//! | `clock`, `config`, `limiter` | the shell: time is read here; TOML; what users hold |
//! | `permit`, `together`, `acquire` | the shell: corrections; several limits at once; waiting |
//! | `mesh`, `net` | the shell: a node's life; QUIC and TLS |
//!
//! # Features
//!
//! `net` (default) has [`Mesh`] and brings `config` ([`Config`]) and `gossip`; `sim` has the simulator. Without any, what is left is the
//! limiter for one process. `acquire` (default) waits for units, `http` (default) has a tower layer, `cli` the command `ratemesh`, and `metrics` a node's status for the
//! `metrics` facade.
#![forbid(unsafe_code)]
// Parts of the core serve only the network or only the simulator; what serves neither is found where both are built.
#![cfg_attr(not(all(feature = "net", feature = "sim")), allow(dead_code))]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "acquire")]
mod acquire;
mod algorithm;
mod bands;
#[cfg(feature = "cli")]
pub mod cli;
mod clock;
#[cfg(feature = "config")]
pub mod config;
mod counter;
mod decision;
mod error;
#[cfg(feature = "gossip")]
mod gossip;
mod handle;
#[cfg(feature = "http")]
pub mod http;
mod key;
#[cfg(feature = "gossip")]
mod ledger;
mod limit;
mod limiter;
mod lists;
#[cfg(feature = "net")]
mod mesh;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "net")]
mod net;
mod node;
mod notice;
mod permit;
#[cfg(feature = "sim")]
pub mod sim;
mod table;
mod time;
mod together;

#[cfg(feature = "acquire")]
pub use acquire::Acquire;
pub use clock::{Clock, ManualClock};
#[cfg(feature = "net")]
pub use config::TlsIdentity;
#[cfg(feature = "config")]
pub use config::{Config, ConfigBuilder, ConfigError};
pub use counter::{PnCounter, Share, ShareOp};
pub use decision::{Basis, Decision, Refused};
pub use error::{CostError, OwnedRefusal, Refusal, RefusedBy, RuleError};
#[cfg(feature = "gossip")]
pub use gossip::{LimitStatus, PeerState, PeerStatus, RefusedStatus, Status};
pub use handle::KeyHandle;
pub use key::{Digest, Key, KeyHasher, KeySource};
pub use limit::{
    Algorithm, DEFAULT_MAX_KEYS, DEFAULT_PRECISION, Limit, LimitBuilder, LimitError, MAX_BANDS, MAX_KEYS,
    MAX_NAME_BYTES, MAX_PERIOD, MAX_PRECISION, MAX_QUOTAS, MAX_UNITS, MAX_UNITS_PER_SECOND, MIN_PERIOD,
    OnFull, OnPartition, Quota, Windows,
};
pub use limiter::Limiter;
pub use lists::{MAX_LISTED, Override};
#[cfg(feature = "net")]
pub use mesh::{Mesh, MeshStatus, ReloadError, WhichLimit};
#[cfg(feature = "net")]
pub use net::{IdentityError, LinkStatus, RefusedCounts, StartError};
pub use node::{Actor, Incarnation, MAX_NODE_ID_BYTES, NodeId, NodeIdError};
pub use notice::{MAX_BAN, MAX_BANS, MAX_OVERRIDES};
pub use permit::{Permit, Permits, Settled};
pub use time::{Now, Timestamp, WallTime};
pub use together::{check_all, reserve_all};

/// The programs in the README must compile.
#[cfg(all(doctest, feature = "net"))]
#[doc = include_str!("../README.md")]
struct Readme;
