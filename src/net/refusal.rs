//! Why connections are refused or closed, as it is told to the peer, counted and logged.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use quinn::{ConnectionError, TransportErrorCode, VarInt};

/// Why this node would not have a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Tls,
    Version,
    Malformed,
    Unlisted,
    OwnName,
    NotCertified,
    WrongSide,
    Timeout,
    Busy,
    Oversize,
    Slow,
    Protocol,
}

impl Refusal {
    const ALL: [Self; 12] = [
        Self::Tls,
        Self::Version,
        Self::Malformed,
        Self::Unlisted,
        Self::OwnName,
        Self::NotCertified,
        Self::WrongSide,
        Self::Timeout,
        Self::Busy,
        Self::Oversize,
        Self::Slow,
        Self::Protocol,
    ];

    /// What a connection's end says about the handshake, where it says anything: an alert of TLS, on either side's
    /// say, or silence.
    pub(crate) fn of(error: &ConnectionError) -> Option<Self> {
        let code = match error {
            ConnectionError::TransportError(error) => error.code,
            ConnectionError::ConnectionClosed(close) => close.error_code,
            ConnectionError::VersionMismatch => return Some(Self::Version),
            ConnectionError::TimedOut => return Some(Self::Timeout),
            _ => return None,
        };
        if code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL) {
            return Some(Self::Version);
        }
        TLS_ALERTS.contains(&u64::from(code)).then_some(Self::Tls)
    }

    /// The code that the connection is closed with.
    pub(crate) fn code(self) -> VarInt {
        VarInt::from_u32(FIRST_REFUSAL + self as u32)
    }

    /// What a closing code says, as the one who is refused should read it.
    fn from_code(code: VarInt) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| refusal.code() == code)
    }

    /// The reason, as sent to the peer and logged.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Tls => {
                "the TLS handshake failed: the certificate is missing, expired or not signed by the cluster's authority"
            }
            Self::Version => "another version of the protocol is spoken",
            Self::Malformed => "the preamble is malformed",
            Self::Unlisted => "the name is not in the list of peers",
            Self::OwnName => "the name is the other side's own: two nodes must not share one",
            Self::NotCertified => "the certificate is not valid for the name",
            Self::WrongSide => "the node with the lower name dials, and that is the other one",
            Self::Timeout => "the handshake took too long",
            Self::Busy => "too many handshakes are in progress",
            Self::Oversize => "a stream is longer than a message may be",
            Self::Slow => "a stream took too long",
            Self::Protocol => "a message cannot be read",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The alert of a peer that speaks none of the protocols offered (RFC 7301).
const NO_APPLICATION_PROTOCOL: u8 = 120;
/// The transport error codes that carry an alert of TLS (RFC 9001, 4.8).
const TLS_ALERTS: std::ops::Range<u64> = 0x100..0x200;
/// Codes below this one end a connection that nothing is wrong with.
const FIRST_REFUSAL: u32 = 16;

/// Why this node ended a connection that nothing is wrong with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    Stopped = 1,
    Replaced = 2,
    CutOff = 3,
    Restarted = 4,
    Renewed = 5,
    Knocked = 6,
    Reloaded = 7,
}

impl Farewell {
    const ALL: [Self; 7] = [
        Self::Stopped,
        Self::Replaced,
        Self::CutOff,
        Self::Restarted,
        Self::Renewed,
        Self::Knocked,
        Self::Reloaded,
    ];

    /// With what the other side ended a connection, if nothing was wrong with it.
    pub(crate) fn of(error: &ConnectionError) -> Option<Self> {
        let ConnectionError::ApplicationClosed(close) = error else { return None };
        Self::ALL.into_iter().find(|farewell| farewell.code() == close.error_code)
    }

    pub(crate) fn code(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Stopped => "the node stopped",
            Self::Replaced => "a newer connection under the same name took its place",
            Self::CutOff => "the node was cut off by its operator",
            Self::Restarted => "the node's gossip was started anew",
            Self::Renewed => "the node's certificates were renewed",
            Self::Knocked => "the knock was heard",
            Self::Reloaded => "the node's configuration was changed",
        }
    }
}

/// A connection's end in words.
pub(crate) fn explain(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            match (Farewell::of(error), Refusal::from_code(close.error_code)) {
                (Some(farewell), _) => farewell.text().to_owned(),
                (_, Some(refusal)) => format!("refused by the peer: {refusal}"),
                (None, None) => format!("closed by the peer with code {}", close.error_code),
            }
        }
        ConnectionError::ConnectionClosed(close) if Refusal::of(error) == Some(Refusal::Tls) => {
            format!("the peer refused this node's certificate: {}", close.error_code)
        }
        ConnectionError::TransportError(cause) if Refusal::of(error) == Some(Refusal::Tls) => {
            format!("the peer's certificate was refused: {}", cause.reason)
        }
        ConnectionError::Reset => "the peer has restarted".to_owned(),
        ConnectionError::TimedOut => "the peer does not answer".to_owned(),
        other => other.to_string(),
    }
}

/// Connections that a node refused, or closed for cause, since it started, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedCounts {
    /// The TLS handshake failed, on either side's say: no certificate, an expired one, or another authority's.
    pub tls: u64,
    /// Another version of the protocol.
    pub version: u64,
    /// A preamble that cannot be read.
    pub malformed: u64,
    /// A name that is not in the list of peers.
    pub unlisted: u64,
    /// This node's own name.
    pub own_name: u64,
    /// A name that the certificate is not valid for.
    pub not_certified: u64,
    /// A peer that dialled although the other side was to.
    pub wrong_side: u64,
    /// A handshake that took too long.
    pub timeout: u64,
    /// Too many handshakes in progress.
    pub busy: u64,
    /// A stream longer than a message may be, 1 MiB.
    pub oversize: u64,
    /// A stream that took too long to come in, or that the peer did not take in.
    pub slow: u64,
    /// A message that gossip could not take.
    pub protocol: u64,
}

impl RefusedCounts {
    /// All of them together.
    pub fn total(&self) -> u64 {
        let Self { tls, version, malformed, unlisted, own_name, not_certified, .. } = self;
        let Self { wrong_side, timeout, busy, oversize, slow, protocol, .. } = self;
        [
            tls,
            version,
            malformed,
            unlisted,
            own_name,
            not_certified,
            wrong_side,
            timeout,
            busy,
            oversize,
            slow,
            protocol,
        ]
        .into_iter()
        .fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// Counts refusals.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusals {
    /// Counts one, and returns how many of its kind there are now.
    pub(crate) fn count(&self, refusal: Refusal) -> u64 {
        self.of(refusal).fetch_add(1, Ordering::Relaxed) + 1
    }

    fn of(&self, refusal: Refusal) -> &AtomicU64 {
        &self.0[refusal as usize]
    }

    pub(crate) fn counts(&self) -> RefusedCounts {
        let read = |refusal| self.of(refusal).load(Ordering::Relaxed);
        RefusedCounts {
            tls: read(Refusal::Tls),
            version: read(Refusal::Version),
            malformed: read(Refusal::Malformed),
            unlisted: read(Refusal::Unlisted),
            own_name: read(Refusal::OwnName),
            not_certified: read(Refusal::NotCertified),
            wrong_side: read(Refusal::WrongSide),
            timeout: read(Refusal::Timeout),
            busy: read(Refusal::Busy),
            oversize: read(Refusal::Oversize),
            slow: read(Refusal::Slow),
            protocol: read(Refusal::Protocol),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_code_and_a_count_of_its_own() {
        let refusals = Refusals::default();
        for (position, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, position);
            assert_eq!(Refusal::from_code(refusal.code()), Some(refusal));
            assert!(Farewell::ALL.into_iter().all(|farewell| farewell.code() != refusal.code()));
            assert_eq!(refusals.count(refusal), 1);
            assert_eq!(refusals.counts().total(), position as u64 + 1);
        }
    }
}
