//! Real QUIC on loopback: nodes whose gossip is a list of what they have seen, and strangers who behave badly.

#[path = "../../../tests/fleet/authority.rs"]
mod authority;
mod faults;
mod recovery;
mod refusals;

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use quinn::{ConnectionError, Endpoint, VarInt};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};

use self::authority::{Authority, Issued};
use super::{
    Mode, Net, Start,
    link::{LinkEvent, Payload},
    refusal::Farewell,
    supervisor::Links,
};
use crate::{
    clock::Clock,
    config::{Peer, TlsIdentity},
    gossip::Channel,
    node::NodeId,
};

/// Nothing here takes as long, on whatever machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// What a node's gossip would have been told.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Connected(String),
    Disconnected(String),
    Payload(String, Channel, Bytes),
}

impl Seen {
    fn connected(node: &str) -> Self {
        Self::Connected(node.to_owned())
    }

    fn disconnected(node: &str) -> Self {
        Self::Disconnected(node.to_owned())
    }

    fn payload(node: &str, channel: Channel, bytes: &'static [u8]) -> Self {
        Self::Payload(node.to_owned(), channel, Bytes::from_static(bytes))
    }
}

/// A node without gossip.
struct Node {
    net: Arc<Net>,
    endpoint: Endpoint,
    mode: watch::Sender<Mode>,
    seen: mpsc::UnboundedReceiver<Seen>,
    _tasks: JoinSet<()>,
}

impl Node {
    fn start(authority: &Authority, name: &str, socket: UdpSocket, peers: &[(&str, SocketAddr)]) -> Self {
        let identity = identity(authority, &authority.issue(name));
        Self::start_as(&identity, name, socket, peers)
    }

    fn start_as(identity: &TlsIdentity, name: &str, socket: UdpSocket, peers: &[(&str, SocketAddr)]) -> Self {
        let (net, endpoint, mode) = open(identity, name, socket, peers);
        let Links { mut tasks, inbox, .. } = Links::start(&net, &endpoint);
        let (sender, seen) = mpsc::unbounded_channel();
        tasks.spawn(watch_links(inbox, sender));
        Self { net, endpoint, mode, seen, _tasks: tasks }
    }

    /// Waits until this has been seen, whatever else is seen before.
    async fn sees(&mut self, wanted: &Seen) {
        let search = async {
            while let Some(seen) = self.seen.recv().await {
                if seen == *wanted {
                    return;
                }
            }
            panic!("the node has stopped");
        };
        if timeout(DEADLINE, search).await.is_err() {
            panic!("{} did not see {wanted:?}", self.net.node);
        }
    }

    fn send(&self, peer: &str, channel: Channel, bytes: impl Into<Bytes>) {
        let route = self.net.route(&node_id(peer)).unwrap();
        route.link().unwrap().send(channel, bytes.into());
    }

    fn address(&self) -> SocketAddr {
        self.net.local_addr()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.endpoint.close(Farewell::Stopped.code(), b"");
    }
}

fn open(
    identity: &TlsIdentity,
    name: &str,
    socket: UdpSocket,
    peers: &[(&str, SocketAddr)],
) -> (Arc<Net>, Endpoint, watch::Sender<Mode>) {
    let (sender, mode) = watch::channel(Mode::Joined);
    let peer =
        |(name, address): &(&str, SocketAddr)| Peer { node: node_id(name), address: address.to_string() };
    let (net, endpoint) = Net::open(Start {
        node: node_id(name),
        peers: peers.iter().map(peer).collect(),
        identity,
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        socket: Some(socket),
        clock: Clock::system(),
        mode,
        reloads: watch::channel(0).1,
    })
    .unwrap();
    (Arc::new(net), endpoint, sender)
}

/// Does for the routes what the driver does.
async fn watch_links(mut inbox: mpsc::Receiver<LinkEvent>, seen: mpsc::UnboundedSender<Seen>) {
    while let Some(event) = inbox.recv().await {
        let event = match event {
            LinkEvent::Connected(route, link) => {
                if let Some(old) = route.replace(link) {
                    old.close(Farewell::Replaced);
                }
                Seen::connected(route.node.as_str())
            }
            LinkEvent::Disconnected(route, link) => {
                if !route.clear(link) {
                    continue;
                }
                Seen::disconnected(route.node.as_str())
            }
            LinkEvent::Relieved(..) => continue,
            LinkEvent::Payload(Payload { route, channel, bytes, .. }) => {
                Seen::Payload(route.node.to_string(), channel, bytes)
            }
        };
        if seen.send(event).is_err() {
            return;
        }
    }
}

/// A program that is no node, with this certificate or with none.
struct Stranger {
    endpoint: Endpoint,
    /// How much it takes in of a stream that it does not read.
    window: u32,
    tls: rustls::ClientConfig,
}

impl Stranger {
    fn new(trusts: &Authority, shows: Option<&Issued>) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusts.pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut tls = match shows {
            None => builder.with_no_client_auth(),
            Some(Issued { chain, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()];
                builder
                    .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
                    .unwrap()
            }
        };
        tls.alpn_protocols = vec![super::tls::ALPN.to_vec()];
        Self { endpoint: Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap(), window: 100_000, tls }
    }

    fn speaking(mut self, protocol: &[u8]) -> Self {
        self.tls.alpn_protocols = vec![protocol.to_vec()];
        self
    }

    fn from(self, address: [u8; 4]) -> Self {
        Self { endpoint: Endpoint::client((address, 0).into()).unwrap(), ..self }
    }

    async fn connect(&self, to: &Node) -> Result<quinn::Connection, ConnectionError> {
        self.connect_to(to.address(), to.net.node.as_str()).await
    }

    async fn connect_to(
        &self,
        address: SocketAddr,
        name: &str,
    ) -> Result<quinn::Connection, ConnectionError> {
        let tls = quinn::crypto::rustls::QuicClientConfig::try_from(self.tls.clone()).unwrap();
        let mut config = quinn::ClientConfig::new(Arc::new(tls));
        let mut transport = quinn::TransportConfig::default();
        transport.stream_receive_window(VarInt::from_u32(self.window));
        config.transport_config(Arc::new(transport));
        self.endpoint.connect_with(config, address, name).unwrap().await
    }

    /// Connects, says this and nothing more, and returns how the connection ended.
    async fn say(&self, to: &Node, preamble: &[u8]) -> ConnectionError {
        let connection = match self.connect(to).await {
            Ok(connection) => connection,
            Err(error) => return error,
        };
        say(&connection, preamble).await;
        timeout(DEADLINE, connection.closed()).await.expect("the connection stayed")
    }

    /// Connects as this node, which the certificate must be for, and is let in.
    async fn join(&self, to: &mut Node, name: &str) -> quinn::Connection {
        let connection = self.connect(to).await.unwrap();
        say(&connection, &preamble(name)).await;
        to.sees(&Seen::connected(name)).await;
        connection
    }
}

async fn say(connection: &quinn::Connection, bytes: &[u8]) {
    let mut stream = connection.open_uni().await.unwrap();
    // The other side may have closed the connection by now.
    let _ = stream.write_all(bytes).await;
    let _ = stream.finish();
}

fn preamble(name: &str) -> Vec<u8> {
    let length = u8::try_from(name.len()).unwrap();
    [b"RMSH\x01", &[length][..], name.as_bytes()].concat()
}

/// The code that the node closed the connection with.
fn code(error: &ConnectionError) -> Option<VarInt> {
    match error {
        ConnectionError::ApplicationClosed(close) => Some(close.error_code),
        _ => None,
    }
}

/// Waits until this holds.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(DEADLINE, wait).await.is_ok(), "{what} did not come");
}

fn identity(trusts: &Authority, shows: &Issued) -> TlsIdentity {
    TlsIdentity::from_pem(trusts.pem().as_bytes(), shows.chain.as_bytes(), shows.key.as_bytes()).unwrap()
}

fn node_id(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// An address where nobody answers.
fn nowhere() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 9))
}

#[tokio::test]
async fn two_nodes_exchange_datagrams_and_streams() {
    let authority = Authority::new();
    let (socket_a, socket_b) = (socket(), socket());
    let (at_a, at_b) = (socket_a.local_addr().unwrap(), socket_b.local_addr().unwrap());
    let mut a = Node::start(&authority, "a", socket_a, &[("b", at_b)]);
    let mut b = Node::start(&authority, "b", socket_b, &[("a", at_a)]);
    a.sees(&Seen::connected("b")).await;
    b.sees(&Seen::connected("a")).await;
    for channel in [Channel::Datagram, Channel::Stream] {
        a.send("b", channel, "from a");
        b.sees(&Seen::payload("a", channel, b"from a")).await;
        b.send("a", channel, "from b");
        a.sees(&Seen::payload("b", channel, b"from b")).await;
    }
    let status = &a.net.links()[0];
    assert_eq!((status.address, status.reconnects, &status.trouble), (Some(at_b), 0, &None));
    assert_eq!(a.net.refused_counts().total() + b.net.refused_counts().total(), 0);
}
