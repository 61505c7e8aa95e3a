//! Why a node could not be started, or would not take an identity.

use std::{fmt, io, net::SocketAddr};

use crate::node::NodeId;

/// Why [`Mesh::start`](crate::Mesh::start) failed. Nothing was started, and no socket is held.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// It was called outside a tokio runtime.
    NoRuntime,
    /// The address to listen on could not be bound.
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The names and the certificates do not fit each other.
    Identity(IdentityError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRuntime => f.write_str(
                "there is no tokio runtime; start the mesh inside one that has I/O and time enabled",
            ),
            Self::Bind { address, source } => write!(
                f,
                "UDP {address} could not be bound: {source}; choose another address to listen on, or free this one"
            ),
            Self::Identity(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { source, .. } => Some(source),
            Self::Identity(error) => std::error::Error::source(error),
            Self::NoRuntime => None,
        }
    }
}

impl From<IdentityError> for StartError {
    fn from(error: IdentityError) -> Self {
        Self::Identity(error)
    }
}

/// Why a node cannot show these certificates. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdentityError {
    /// A name can name a node, but not stand in a certificate.
    Name {
        /// The name.
        node: NodeId,
    },
    /// The node's certificate is not valid for its own name, so that no peer would have it.
    NotCertified {
        /// The node's name.
        node: NodeId,
        /// What the verifier said.
        reason: String,
    },
    /// The certificates and the key cannot be used together.
    Unusable {
        /// Which of them, and what is wrong with it.
        reason: String,
    },
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { node } => write!(
                f,
                "\"{node}\" cannot stand in a certificate; use a DNS name whose last part is not a number, such as \"node-1\""
            ),
            Self::NotCertified { node, reason } => write!(
                f,
                "the certificate is not valid for this node's name, \"{node}\": {reason}; issue one with that DNS name"
            ),
            Self::Unusable { reason } => write!(f, "the certificates cannot be used: {reason}"),
        }
    }
}

impl std::error::Error for IdentityError {}
