//! A connection that both sides have accepted, and the way to a peer that outlives its connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use quinn::{Connection, RecvStream, SendDatagramError};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};

use super::{
    MAX_STREAM_BYTES, Run,
    outbox::Outbox,
    preamble::{ReadFailure, read_whole},
    refusal::{Farewell, Refusal, explain},
};
use crate::{
    config::Peer,
    gossip::{Channel, NodeIndex},
    node::NodeId,
};

/// Datagrams of one peer that wait for the gossip. When they are so many, no more are read from quinn, whose own
/// buffer drops the oldest.
const MAX_DATAGRAMS_WAITING: usize = 64;
/// Streams of one peer that wait for the gossip, or are being read; the peer's others wait under flow control.
const MAX_STREAMS_WAITING: usize = 4;
/// What one peer can put into the gossip's inbox, its connections' coming and going included.
pub(crate) const MAX_EVENTS_PER_PEER: usize = MAX_DATAGRAMS_WAITING + MAX_STREAMS_WAITING + 4;
/// A stream must be read to its end within this time, however slowly it trickles.
const READ_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// The way to one peer. Connections come and go on it; there is one at a time.
#[derive(Debug)]
pub(crate) struct Route {
    /// The peer's place among all nodes, by which the gossip knows it.
    pub(crate) index: NodeIndex,
    pub(crate) node: NodeId,
    /// Host and port, where this node is to dial.
    pub(crate) address: String,
    datagrams: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    connections: AtomicU64,
    /// Wakes whoever waits to dial the peer.
    knock: Notify,
    /// Whether that is wanted.
    knockable: AtomicBool,
    state: Mutex<RouteState>,
}

#[derive(Debug, Default)]
struct RouteState {
    link: Option<Link>,
    trouble: Option<String>,
    /// The peer has said that it stops, and has not come back.
    left: bool,
}

impl Route {
    pub(crate) fn new(index: NodeIndex, peer: Peer) -> Self {
        Self {
            index,
            node: peer.node,
            address: peer.address,
            datagrams: Arc::new(Semaphore::new(MAX_DATAGRAMS_WAITING)),
            streams: Arc::new(Semaphore::new(MAX_STREAMS_WAITING)),
            connections: AtomicU64::new(0),
            knock: Notify::new(),
            knockable: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Takes a new connection into use; returns the one that it replaces.
    pub(crate) fn replace(&self, link: Link) -> Option<Link> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        (state.trouble, state.left) = (None, false);
        state.link.replace(link)
    }

    /// Forgets this connection; whether it was the one in use.
    pub(crate) fn clear(&self, id: u64) -> bool {
        self.lock().link.take_if(|link| link.id == id).is_some()
    }

    /// The connection in use.
    pub(crate) fn link(&self) -> Option<Link> {
        self.lock().link.clone()
    }

    /// Forgets the connection in use.
    pub(crate) fn take(&self) -> Option<Link> {
        self.lock().link.take()
    }

    /// Notes why there is no connection; whether that is worth a warning: another reason than before, of a peer that
    /// should be there.
    pub(crate) fn note(&self, trouble: &str) -> bool {
        let mut state = self.lock();
        let news = state.trouble.as_deref() != Some(trouble);
        if news {
            state.trouble = Some(trouble.to_owned());
        }
        news && !state.left
    }

    /// The peer has said that it stops: that it cannot be reached from now on is as it should be.
    pub(crate) fn note_left(&self) {
        self.lock().left = true;
    }

    /// Waits for so long, or, where it may be `cut_short`, until the peer knocks. Whether it knocked.
    pub(crate) async fn wait(&self, wait: Duration, cut_short: bool) -> bool {
        self.knockable.store(cut_short, Ordering::Release);
        let knocked = tokio::select! {
            () = sleep(wait) => false,
            () = self.knock.notified(), if cut_short => true,
        };
        self.knockable.store(false, Ordering::Release);
        knocked
    }

    /// The peer, which is to be dialled, says that it is there. Whether anybody has waited for that.
    pub(crate) fn knock(&self) -> bool {
        let waits = self.knockable.swap(false, Ordering::AcqRel);
        if waits {
            self.knock.notify_one();
        }
        waits
    }

    pub(crate) fn status(&self) -> LinkStatus {
        let (link, trouble) = {
            let state = self.lock();
            (state.link.clone(), state.trouble.clone())
        };
        LinkStatus {
            node: self.node.clone(),
            address: link.as_ref().map(|link| link.connection.remote_address()),
            rtt: link.as_ref().map(|link| link.connection.rtt()),
            reconnects: self.connections.load(Ordering::Relaxed).saturating_sub(1),
            streams_dropped: link.as_ref().map_or(0, |link| link.outbox.dropped()),
            trouble: if link.is_some() { None } else { trouble },
        }
    }

    fn lock(&self) -> MutexGuard<'_, RouteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a node knows of its connection to a peer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkStatus {
    /// The peer.
    pub node: NodeId,
    /// Where the peer is, while there is a connection that both sides accepted.
    pub address: Option<SocketAddr>,
    /// The connection's round-trip time, as QUIC measures it.
    pub rtt: Option<Duration>,
    /// How many connections followed the first.
    pub reconnects: u64,
    /// Streams of this connection that made room for newer ones, since the peer takes in too little.
    pub streams_dropped: u64,
    /// Why there is no connection, as far as this node could tell.
    pub trouble: Option<String>,
}

/// A connection after the handshake of TLS.
pub(crate) struct Shaken {
    pub(crate) connection: Connection,
    /// How often the node's certificates had been renewed when the handshake began.
    pub(crate) renewals: u64,
}

/// One connection that both sides have accepted.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    id: u64,
    connection: Connection,
    /// How often the node's certificates had been renewed when the handshake began.
    renewals: u64,
    outbox: Arc<Outbox>,
}

impl Link {
    fn new(Shaken { connection, renewals }: Shaken) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), connection, renewals, outbox: Arc::default() }
    }

    /// Whether it was made under the certificates of the moment.
    pub(crate) fn is_of(&self, renewals: u64) -> bool {
        self.renewals == renewals
    }

    /// Whether this is the link with that number.
    pub(crate) fn is(&self, id: u64) -> bool {
        self.id == id
    }

    /// What one datagram can carry now.
    pub(crate) fn datagram_bytes(&self) -> usize {
        self.connection.max_datagram_size().unwrap_or(0)
    }

    /// Sends a payload, or drops it; never waits.
    pub(crate) fn send(&self, channel: Channel, payload: Bytes) {
        match channel {
            Channel::Stream => self.outbox.push(payload),
            Channel::Datagram => {
                let sent = self.connection.send_datagram(payload.clone());
                // The path has become narrower than it was when the connection was made. Any other error is of a
                // connection that has ended, and of that its own task tells.
                if matches!(sent, Err(SendDatagramError::TooLarge)) {
                    self.outbox.push(payload);
                }
            }
        }
    }

    /// Whether more streams wait to be sent than should.
    pub(crate) fn is_congested(&self) -> bool {
        self.outbox.is_congested()
    }

    /// Waits until the peer has acknowledged all streams, or the connection has ended.
    pub(crate) async fn flushed(&self) {
        self.outbox.drained().await;
    }

    pub(crate) fn refuse(&self, refusal: Refusal) {
        self.connection.close(refusal.code(), refusal.text().as_bytes());
    }

    pub(crate) fn close(&self, farewell: Farewell) {
        self.connection.close(farewell.code(), farewell.text().as_bytes());
    }
}

/// What the links tell the gossip.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// Both sides have accepted this connection.
    Connected(Arc<Route>, Link),
    /// It has ended.
    Disconnected(Arc<Route>, u64),
    /// Few streams wait to be sent on it again.
    Relieved(Arc<Route>, u64),
    /// Something arrived on it.
    Payload(Payload),
}

/// A datagram or a whole stream, and its place among those that its peer may have waiting.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) route: Arc<Route>,
    pub(crate) link: u64,
    pub(crate) channel: Channel,
    pub(crate) bytes: Bytes,
    _place: OwnedSemaphorePermit,
}

/// Carries a connection's traffic until it ends. `pass` is let go once the gossip has been told of the connection.
pub(crate) async fn carry(run: &Run, route: &Arc<Route>, shaken: Shaken, pass: impl Sized) {
    let carrier = Carrier { run: run.clone(), route: route.clone(), link: Link::new(shaken) };
    let link = &carrier.link;
    if run.inbox.send(LinkEvent::Connected(route.clone(), link.clone())).await.is_err() {
        return;
    }
    drop(pass);
    tokio::select! {
        () = carrier.traffic() => {}
        () = run.net.cut() => link.close(Farewell::CutOff),
    }
    if let Some(reason) = link.connection.close_reason() {
        if Farewell::of(&reason) == Some(Farewell::Stopped) {
            route.note_left();
        }
        let reason = explain(&reason);
        route.note(&reason);
        tracing::debug!(peer = %route.node, %reason, "the connection ended");
    }
    let _ = run.inbox.send(LinkEvent::Disconnected(route.clone(), link.id)).await;
}

/// A link in use.
struct Carrier {
    run: Run,
    route: Arc<Route>,
    link: Link,
}

impl Carrier {
    /// All three end with the connection, after what had arrived by then has been read.
    async fn traffic(&self) {
        let relieved = || {
            // Should there be no room for this, the gossip finds out with the next message that it sends.
            let event = LinkEvent::Relieved(self.route.clone(), self.link.id);
            let _ = self.run.inbox.try_send(event);
        };
        let delivery = async {
            self.link.outbox.deliver(&self.link.connection, relieved).await;
            if self.link.connection.close_reason().is_none() {
                // The gossip counts on streams to arrive. It begins anew with the next connection.
                self.refuse(Refusal::Slow);
            }
        };
        tokio::join!(self.receive_datagrams(), self.receive_streams(), delivery);
    }

    async fn receive_datagrams(&self) {
        while let Ok(place) = self.route.datagrams.clone().acquire_owned().await {
            let Ok(bytes) = self.link.connection.read_datagram().await else { return };
            self.hand_in(Channel::Datagram, bytes, place).await;
        }
    }

    /// Reads one stream after the other, so that they are handed in in the order in which they were opened.
    async fn receive_streams(&self) {
        while let Ok(place) = self.route.streams.clone().acquire_owned().await {
            let Ok(stream) = self.link.connection.accept_uni().await else { return };
            self.read(stream, place).await;
        }
    }

    async fn read(&self, mut stream: RecvStream, place: OwnedSemaphorePermit) {
        match timeout(READ_TIMEOUT, read_whole(&mut stream, MAX_STREAM_BYTES)).await {
            Ok(Ok(bytes)) => self.hand_in(Channel::Stream, bytes.into(), place).await,
            Ok(Err(ReadFailure::TooLong)) => self.refuse(Refusal::Oversize),
            // Given up by the peer, or lost with the connection: the gossip makes up for it.
            Ok(Err(ReadFailure::Reset | ReadFailure::Lost(_))) => {}
            Err(_) => self.refuse(Refusal::Slow),
        }
    }

    async fn hand_in(&self, channel: Channel, bytes: Bytes, place: OwnedSemaphorePermit) {
        let payload =
            Payload { route: self.route.clone(), link: self.link.id, channel, bytes, _place: place };
        // It fails only when the gossip has stopped, and then this task is about to be stopped, too.
        let _ = self.run.inbox.send(LinkEvent::Payload(payload)).await;
    }

    fn refuse(&self, refusal: Refusal) {
        self.run.net.refused(refusal, &self.route.node);
        self.link.refuse(refusal);
    }
}
