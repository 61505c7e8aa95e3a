//! One rate limit for a whole fleet of service instances, decided in memory, with no store to run.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod clock;
mod counter;
mod decision;
mod error;
#[cfg(feature = "gossip")]
mod gossip;
mod handle;
mod key;
#[cfg(feature = "gossip")]
mod ledger;
mod limit;
mod limiter;
mod node;
#[cfg(feature = "sim")]
pub mod sim;
mod table;
mod time;

pub use clock::{Clock, ManualClock};
pub use counter::{PnCounter, Share, ShareOp};
pub use decision::{Basis, Decision};
pub use error::CostError;
#[cfg(feature = "gossip")]
pub use gossip::{LimitStatus, PeerState, PeerStatus, RefusedStatus, Status};
pub use handle::KeyHandle;
pub use key::{Digest, Key, KeyHasher, KeySource};
pub use limit::{
    Algorithm, DEFAULT_MAX_KEYS, Limit, LimitBuilder, LimitError, MAX_KEYS, MAX_NAME_BYTES, MAX_PERIOD, MAX_UNITS,
    MAX_UNITS_PER_SECOND, MIN_PERIOD, OnFull, OnPartition, Quota,
};
pub use limiter::Limiter;
pub use node::{Actor, Incarnation, MAX_NODE_ID_BYTES, NodeId, NodeIdError};
pub use time::{Now, Timestamp, WallTime};
