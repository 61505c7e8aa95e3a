//! The node's one QUIC endpoint, and the bounds of its transport.

use std::{io, net::UdpSocket, sync::Arc, time::Duration};

use quinn::{
    Endpoint, EndpointConfig, IdleTimeout, TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use quinn_proto::HashedConnectionIdGenerator;

use super::tls::Tls;

/// Streams that a peer may have open at once.
const MAX_OPEN_STREAMS: u32 = 8;
/// Bytes that a peer may have under way on one stream.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes that a peer may have under way on all its streams: what a connection can make quinn hold.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// Bytes written to a peer's streams and not yet acknowledged.
const SEND_WINDOW_BYTES: u64 = 2 << 20;
/// Datagrams that wait to be sent: when there is no room, quinn drops the oldest, and the newest wins.
const DATAGRAMS_OUT_BYTES: usize = 64 << 10;
/// Datagrams that wait to be read, likewise.
const DATAGRAMS_IN_BYTES: usize = 64 << 10;
/// Attempts to connect that wait to be looked at.
const MAX_INCOMING: usize = 256;
/// Bytes of packets kept for one such attempt.
const INCOMING_BYTES: u64 = 16 << 10;
/// Bytes of packets kept for all of them.
const ALL_INCOMING_BYTES: u64 = 1 << 20;
/// An otherwise silent connection sends something this often.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// A connection that has been silent for so many milliseconds is dead.
const IDLE_TIMEOUT_MILLIS: u32 = 5_000;
/// The round trip assumed before one is measured: nodes of a fleet are rarely a third of a second apart, which is
/// what QUIC assumes of strangers.
const ASSUMED_RTT: Duration = Duration::from_millis(100);

/// An endpoint on this socket, that listens. To dial and to accept on it, take the configurations of the node's
/// identity of the moment; the one that it is opened with only signs tokens.
pub(crate) fn open(socket: UdpSocket, tls: &Tls) -> io::Result<Endpoint> {
    socket.set_nonblocking(true)?;
    let mut config = EndpointConfig::new(tls.reset_key.clone());
    let id_key = tls.id_key;
    // A node that is started again under the same private key knows the ids that it gave out before, and resets the
    // connections they belong to, so that peers need not wait for silence to tell them.
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(id_key)));
    let server = quinn::ServerConfig::clone(&tls.server);
    Endpoint::new(config, Some(server), socket, Arc::new(quinn::TokioRuntime))
}

/// What to dial with.
pub(crate) fn client(crypto: QuicClientConfig) -> quinn::ClientConfig {
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport()));
    config
}

/// What to answer with.
pub(crate) fn server(crypto: QuicServerConfig) -> quinn::ServerConfig {
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config
        .transport_config(Arc::new(transport()))
        .migration(false)
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(ALL_INCOMING_BYTES);
    config
}

fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(MAX_OPEN_STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        .send_fairness(false)
        .datagram_send_buffer_size(DATAGRAMS_OUT_BYTES)
        .datagram_receive_buffer_size(Some(DATAGRAMS_IN_BYTES))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MILLIS))))
        .initial_rtt(ASSUMED_RTT)
        .allow_spin(false);
    transport
}
