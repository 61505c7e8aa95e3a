//! What a node tells about itself and its peers.

use std::time::Duration;

use super::NodeIndex;
use crate::{limit::Quota, node::NodeId};

/// What a node knows of itself and its fleet, at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// This node.
    pub node: NodeId,
    /// Whether it has its peers' state, or found that there is none.
    pub synced: bool,
    /// Whether some peer cannot be heard, so that decisions rest on less than the whole fleet.
    pub local_only: bool,
    /// Each other node, in the order of their names.
    pub peers: Vec<PeerStatus>,
    /// Each limit, in the order of the configuration.
    pub limits: Vec<LimitStatus>,
    /// What was refused of what peers sent.
    pub refused: RefusedStatus,
    /// How often this node has gone on as a new incarnation, since a peer had heard of more than it spent. More than 0 says
    /// that somebody makes up shares in its name; the peers' own counts of `refused` may tell who.
    pub renewals: u64,
}

/// What a node knows of a peer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Its name.
    pub node: NodeId,
    /// Whether it is heard.
    pub state: PeerState,
    /// How long ago it was last heard, directly or through others; `None` before the first time.
    pub news_age: Option<Duration>,
    /// The smoothed round-trip time, once measured.
    pub rtt: Option<Duration>,
    /// How many milliseconds its wall clock is ahead of this node's (behind: negative), once estimated.
    pub skew_ms: Option<i64>,
    /// This node's changes that the peer has not acknowledged.
    pub versions_behind: u64,
    /// Bytes of gossip sent to it.
    pub bytes_sent: u64,
    /// Bytes of gossip received from it.
    pub bytes_received: u64,
    /// Messages sent to it.
    pub messages_sent: u64,
    /// Messages received from it.
    pub messages_received: u64,
    /// Shares that it sent and that were not taken in, or not in full, for whatever reason that
    /// [`RefusedStatus`] names.
    pub refused: u64,
    /// In what its configuration parts from this node's, in words; empty where they agree.
    pub mismatches: Vec<String>,
}

/// Whether a peer is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// Not heard since this node started.
    Unheard,
    /// Heard within `suspect_after`.
    Up,
    /// Not heard for `suspect_after`.
    Unreachable,
    /// Said that it stops.
    Left,
}

/// What a node knows of a limit, or of one quota of a limit that has several.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitStatus {
    /// The limit's name.
    pub name: String,
    /// The quota.
    pub quota: Quota,
    /// Which of the limit's quotas it is, from 0, in the order they were given.
    pub band: usize,
    /// Keys held now.
    pub live_keys: usize,
    /// Checks decided here.
    pub checks: u64,
    /// Of which refused, or would have been by a limit that is only tried out.
    pub denials: u64,
    /// Whether the limit is only tried out.
    pub shadow: bool,
    /// Keys banned now.
    pub bans: usize,
    /// Keys with an override that was set at run time.
    pub overrides: usize,
}

/// Counts of what was not taken in; none of it harms, all of it is worth a look when it grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedStatus {
    /// Messages that could not be read.
    pub malformed: u64,
    /// Shares of windows or epochs that are over or not yet begun: a peer's clock is off, or news is very late.
    pub out_of_epoch: u64,
    /// Shares of keys for which the table has no room.
    pub no_room: u64,
    /// Shares and notices of limits or nodes that this node does not know.
    pub unknown: u64,
    /// Shares that say more than sixteen times what their limit admits in an epoch; no more than that was taken in. A peer
    /// defines the limit otherwise, admits everything since its `on_partition` is `open`, or lies.
    pub implausible: u64,
    /// Bans, overrides and resets that found no room, or that nobody who keeps to the protocol sends; and quotas of keys that
    /// cannot stand here, since the peer defines the limit otherwise, or for which there have been too many different ones.
    /// A key without its quota has the limit's own.
    pub notices: u64,
}

/// What the driver may want to log: one event a change of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A peer is heard, for the first time or again.
    PeerUp(NodeIndex),
    /// A peer has not been heard for `suspect_after`.
    PeerUnreachable(NodeIndex),
    /// A peer said that it stops.
    PeerLeft(NodeIndex),
    /// This node has its peers' state, or none of them has any; `false` where it stopped waiting for it.
    Synced(bool),
    /// A peer's configuration parts from this node's, in what the text says.
    Mismatch(NodeIndex, String),
    /// A peer has heard of more than this node spent: this node goes on as a new incarnation.
    NewIncarnation,
}
