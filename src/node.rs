//! Who is who: nodes, their incarnations, and the actors that write shares.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

/// The longest [`NodeId`] accepted, in bytes: the longest label sequence that a certificate's DNS name can hold.
pub const MAX_NODE_ID_BYTES: usize = 253;

/// The configured name of one instance.
///
/// It is the DNS name in the node's certificate, and so follows the same rules: letters, digits, `-` and `.`,
/// labels of 1 to 63 bytes that neither begin nor end with `-`, 253 bytes in all. Upper case is made lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// Says what is wrong with a name that could not stand in a certificate.
    pub fn new(name: &str) -> Result<Self, NodeIdError> {
        if name.is_empty() {
            return Err(NodeIdError::Empty);
        }
        if name.len() > MAX_NODE_ID_BYTES {
            return Err(NodeIdError::TooLong { bytes: name.len() });
        }
        for label in name.split('.') {
            check_label(name, label)?;
        }
        // A name that ends in a number reads as an address, and a certificate's names are no addresses.
        let last = name.rsplit('.').next().unwrap_or(name);
        if last.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NodeIdError::Address { name: name.to_owned() });
        }
        Ok(Self(name.to_ascii_lowercase().into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_label(name: &str, label: &str) -> Result<(), NodeIdError> {
    let bad = |reason| Err(NodeIdError::Label { name: name.to_owned(), reason });
    if label.is_empty() || label.len() > 63 {
        return bad("each part between dots takes 1 to 63 bytes");
    }
    if label.starts_with('-') || label.ends_with('-') {
        return bad("no part may begin or end with '-'");
    }
    if !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return bad("only letters, digits, '-' and '.' can stand in a certificate's name");
    }
    Ok(())
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({})", self.0)
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;
    fn from_str(name: &str) -> Result<Self, NodeIdError> {
        Self::new(name)
    }
}

impl Borrow<str> for NodeId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Why a name cannot be a [`NodeId`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeIdError {
    /// The name is empty.
    Empty,
    /// The name is longer than [`MAX_NODE_ID_BYTES`].
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// One of the parts between the dots is not a DNS label.
    Label {
        /// The whole name.
        name: String,
        /// What a label must be.
        reason: &'static str,
    },
    /// The name ends in a number, as an IP address does and a certificate's DNS name cannot.
    Address {
        /// The whole name.
        name: String,
    },
}

impl fmt::Display for NodeIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(
                f,
                "a node's name is empty; give it the DNS name in its certificate, such as \"node-1\""
            ),
            Self::TooLong { bytes } => {
                write!(
                    f,
                    "a node's name has {bytes} bytes; at most {MAX_NODE_ID_BYTES} fit a certificate's name"
                )
            }
            Self::Label { name, reason } => write!(f, "\"{name}\" cannot name a node: {reason}"),
            Self::Address { name } => {
                write!(
                    f,
                    "\"{name}\" cannot name a node: it ends in a number, like an address; use a name, such as \"node-1\""
                )
            }
        }
    }
}

impl std::error::Error for NodeIdError {}

/// Tells one run of a node from the next: a fresh random number at each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u32);

impl Incarnation {
    /// The incarnation with this number. The caller draws it at random at each start.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The one writer of a share: one incarnation of one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor {
    /// The node.
    pub node: NodeId,
    /// Which of its runs.
    pub incarnation: Incarnation,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_dns() {
        for good in ["a", "node-1", "node-1.eu.example.com", "0a"] {
            assert_eq!(NodeId::new(good).unwrap().as_str(), good);
        }
        assert_eq!(NodeId::new("Node-A").unwrap().as_str(), "node-a");
        for bad in [
            "",
            "-a",
            "a-",
            "a..b",
            ".",
            "a_b",
            "ä",
            "a b",
            "10.0.0.1",
            "0",
            "a.1",
            &"a".repeat(64),
            &"a.".repeat(127),
        ] {
            assert!(NodeId::new(bad).is_err(), "{bad:?} was taken");
        }
    }
}
