//! What both sides of a connection say first: who they are.
//!
//! The first stream of each side carries nothing but this. The dialler sends its own and waits; the listener reads
//! it, compares the name with the certificate and with its list of peers, and only then sends its own. A dialler
//! that has read the answer knows that it was let in, which TLS 1.3 alone does not tell it.
//!
//! ```text
//! magic "RMSH" | version, one byte | length of the name, one byte | name | a knock: one byte, or none
//! ```
//!
//! The node with the higher name does not dial, and when it starts, the other may be in the middle of a long wait. So it
//! *knocks*: connects, says its name with a knock behind it, and is sent away; the other then dials at once.

use quinn::{Connection, RecvStream};

use super::refusal::Refusal;
use crate::node::{MAX_NODE_ID_BYTES, NodeId};

const MAGIC: [u8; 4] = *b"RMSH";
/// The version of everything that follows the preamble.
const VERSION: u8 = 1;
/// No preamble is longer.
const MAX_PREAMBLE_BYTES: usize = MAGIC.len() + 3 + MAX_NODE_ID_BYTES;
/// Follows the name of one who does not come to stay.
const KNOCK: u8 = b'k';

/// Who the other side claims to be, and what it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) node: NodeId,
    /// It is to be dialled, and says that it is there.
    pub(crate) is_knock: bool,
}

/// Says who this node is.
pub(crate) async fn send(connection: &Connection, node: &NodeId) -> Result<(), Failure> {
    say(connection, &encode(node)).await
}

/// Says who this node is, and that it is there to be dialled.
pub(crate) async fn knock(connection: &Connection, node: &NodeId) -> Result<(), Failure> {
    let mut bytes = encode(node);
    bytes.push(KNOCK);
    say(connection, &bytes).await
}

async fn say(connection: &Connection, bytes: &[u8]) -> Result<(), Failure> {
    let mut stream = connection.open_uni().await.map_err(Failure::Lost)?;
    // A write fails only with the connection, and then reading the other preamble tells why.
    let _ = stream.write_all(bytes).await;
    let _ = stream.finish();
    Ok(())
}

/// Reads who the other side claims to be.
pub(crate) async fn receive(connection: &Connection) -> Result<Preamble, Failure> {
    let mut stream = connection.accept_uni().await.map_err(Failure::Lost)?;
    let bytes = read_whole(&mut stream, MAX_PREAMBLE_BYTES).await.map_err(|error| match error {
        ReadFailure::TooLong | ReadFailure::Reset => Failure::Refused(Refusal::Malformed),
        ReadFailure::Lost(error) => Failure::Lost(error),
    })?;
    decode(&bytes).map_err(Failure::Refused)
}

/// Why a connection did not come to its preambles' end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// This node would not have it.
    Refused(Refusal),
    /// It ended.
    Lost(quinn::ConnectionError),
}

/// Why a stream could not be read to its end.
pub(crate) enum ReadFailure {
    TooLong,
    Reset,
    Lost(quinn::ConnectionError),
}

/// Reads a stream to its end, and no more than `most` bytes of it. What was read is copied, so that a peer that
/// sends one byte a packet does not make this node keep the packets.
pub(crate) async fn read_whole(stream: &mut RecvStream, most: usize) -> Result<Vec<u8>, ReadFailure> {
    let mut whole = Vec::new();
    loop {
        match stream.read_chunk(usize::MAX, true).await {
            Ok(None) => return Ok(whole),
            Ok(Some(chunk)) if chunk.bytes.len() > most.saturating_sub(whole.len()) => {
                return Err(ReadFailure::TooLong);
            }
            Ok(Some(chunk)) => whole.extend_from_slice(&chunk.bytes),
            Err(quinn::ReadError::ConnectionLost(error)) => return Err(ReadFailure::Lost(error)),
            Err(_) => return Err(ReadFailure::Reset),
        }
    }
}

fn encode(node: &NodeId) -> Vec<u8> {
    let name = node.as_str().as_bytes();
    let mut bytes = Vec::with_capacity(MAX_PREAMBLE_BYTES);
    bytes.extend(MAGIC);
    bytes.push(VERSION);
    // A name of 253 bytes at most is checked when it is made.
    bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    bytes.extend(name);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Preamble, Refusal> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(Refusal::Malformed)?;
    let (version, rest) = rest.split_first().ok_or(Refusal::Malformed)?;
    if *version != VERSION {
        return Err(Refusal::Version);
    }
    let (length, rest) = rest.split_first().ok_or(Refusal::Malformed)?;
    let (name, rest) = rest.split_at_checked(usize::from(*length)).ok_or(Refusal::Malformed)?;
    let is_knock = match rest {
        [] => false,
        [KNOCK] => true,
        _ => return Err(Refusal::Malformed),
    };
    let name = std::str::from_utf8(name).map_err(|_| Refusal::Malformed)?;
    let node = NodeId::new(name).map_err(|_| Refusal::Malformed)?;
    Ok(Preamble { node, is_knock })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_read() {
        for name in ["a", "node-1.eu.example.com", &vec!["a".repeat(63); 4].join(".")[..253]] {
            let node = NodeId::new(name).unwrap();
            let bytes = encode(&node);
            assert!(bytes.len() < MAX_PREAMBLE_BYTES);
            assert_eq!(decode(&bytes), Ok(Preamble { node: node.clone(), is_knock: false }));
            let knock = [&bytes[..], &[KNOCK]].concat();
            assert_eq!(decode(&knock), Ok(Preamble { node, is_knock: true }));
        }
    }

    #[test]
    fn anything_else_is_refused_for_what_it_is() {
        let good = encode(&NodeId::new("node-1").unwrap());
        for cut in 0..good.len() {
            assert_eq!(decode(&good[..cut]), Err(Refusal::Malformed), "{cut} bytes");
        }
        assert_eq!(decode(&[&good[..], b"x"].concat()), Err(Refusal::Malformed));
        assert_eq!(decode(&[&good[..], b"kk"].concat()), Err(Refusal::Malformed));
        assert_eq!(decode(b"RMSH\x02anything at all"), Err(Refusal::Version));
        assert_eq!(decode(b"RMSH\x01\x03a b"), Err(Refusal::Malformed));
        assert_eq!(decode(b"RMSH\x01\x02\xff\xff"), Err(Refusal::Malformed));
        assert_eq!(decode(b"RMSH\x01\x00"), Err(Refusal::Malformed));
    }
}
