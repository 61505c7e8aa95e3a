//! How notices are written: bans, overrides and resets.

use bincode::{Decode, Encode};

/// Notices about one limit's keys.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Notices {
    pub(crate) limit: u16,
    /// What the sender's notices about the limit come to.
    pub(crate) digest: u64,
    /// Whether this is the end of all that the sender has, and it wants to be told what it lacks.
    pub(crate) ask: bool,
    pub(crate) notices: Vec<WireNotice>,
}

/// One notice. Durations only: how long it holds still, or need be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct WireNotice {
    pub(crate) digest: [u8; 16],
    pub(crate) kind: WireKind,
    pub(crate) version: u64,
    pub(crate) writer: [u8; 8],
    pub(crate) said: WireSaid,
    /// 0 for what holds until it is cleared.
    pub(crate) remaining_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) enum WireKind {
    Ban,
    Override,
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) enum WireSaid {
    Cleared,
    Banned,
    Allowed,
    Denied,
    /// Units, nanoseconds, and units at once.
    Quota(u64, u64, u64),
    Reset,
}
