//! Between the links and the gossip: waits, hands in, drains.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc},
    time::{sleep, timeout},
};

use super::{
    MAX_STREAM_BYTES, Net,
    link::{Link, LinkEvent, Payload, Route},
    refusal::{Farewell, Refusal},
};
use crate::{
    clock::Clock,
    gossip::{Channel, Event, Gossip, NodeIndex, Transmit},
};

/// Events that are handed in between two drains.
const MAX_BATCH: usize = 64;
/// How long a node that stops waits for its peers to acknowledge its last words.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The one task that drives the gossip; others only look at it.
pub(crate) struct Driver {
    pub(crate) net: Arc<Net>,
    pub(crate) gossip: Arc<Mutex<Gossip>>,
    pub(crate) inbox: mpsc::Receiver<LinkEvent>,
    /// A table cannot wait for the next heartbeat.
    pub(crate) wake: Arc<Notify>,
    /// How often the network had been told to start anew when this run of it began.
    pub(crate) reloads: u64,
}

impl Driver {
    /// Runs until the node is told to stop, or to start its network anew.
    pub(crate) async fn drive(mut self) {
        let net = self.net.clone();
        debug_assert!(
            net.routes().iter().all(|route| self.gossip().index_of(&route.node) == Some(route.index))
        );
        let mut batch = Vec::with_capacity(MAX_BATCH);
        loop {
            self.drain();
            let now = self.clock().precise();
            let due = self.gossip().poll_timeout(now).since(now.mono);
            tokio::select! {
                () = sleep(due) => self.tick(),
                () = self.wake.notified() => self.tick(),
                _ = self.inbox.recv_many(&mut batch, MAX_BATCH) => {
                    batch.drain(..).for_each(|event| self.take(event));
                }
                () = net.stopping() => return self.leave().await,
                () = net.reloading(self.reloads) => return self.pause().await,
            }
        }
    }

    fn tick(&self) {
        #[cfg(test)]
        assert!(!self.net.sabotaged.swap(false, std::sync::atomic::Ordering::Relaxed), "sabotage");
        self.gossip().handle_timeout(self.clock().precise());
    }

    fn take(&self, event: LinkEvent) {
        match event {
            LinkEvent::Connected(route, link) => self.connected(&route, link),
            LinkEvent::Disconnected(route, link) => self.disconnected(&route, link),
            LinkEvent::Relieved(route, link) => self.relieved(&route, link),
            LinkEvent::Payload(payload) => self.arrived(&payload),
        }
    }

    fn connected(&self, route: &Route, link: Link) {
        let datagram_bytes = link.datagram_bytes();
        let replaced = route.replace(link.clone());
        if !link.is_of(self.net.renewals()) {
            link.close(Farewell::Renewed);
        }
        let now = self.clock().precise();
        if let Some(old) = replaced {
            old.close(Farewell::Replaced);
            self.gossip().handle_disconnected(now, route.index);
        }
        self.gossip().handle_connected(now, route.index, datagram_bytes);
    }

    fn disconnected(&self, route: &Route, link: u64) {
        // One that was replaced has been reported then.
        if route.clear(link) {
            self.gossip().handle_disconnected(self.clock().precise(), route.index);
        }
    }

    fn relieved(&self, route: &Route, link: u64) {
        if let Some(link) = route.link().filter(|current| current.is(link)) {
            self.gossip().set_congested(route.index, link.is_congested());
        }
    }

    fn arrived(&self, payload: &Payload) {
        let Payload { route, link, channel, bytes, .. } = payload;
        // What a connection brought before it was replaced may be from before the peer's restart.
        let Some(link) = route.link().filter(|current| current.is(*link)) else { return };
        let taken = self.gossip().handle_payload(self.clock().precise(), route.index, *channel, bytes);
        if let Err(error) = taken {
            tracing::debug!(peer = %route.node, reason = %error, "a message cannot be read");
            self.net.refused(Refusal::Protocol, &route.node);
            link.refuse(Refusal::Protocol);
        }
    }

    /// Takes out everything that the gossip wants sent or logged.
    fn drain(&self) {
        while let Some(transmit) = self.next_transmit() {
            self.send(transmit);
        }
        while let Some(event) = self.next_event() {
            self.log(&event);
        }
    }

    // The loops above must not hold the lock over their bodies, as they would if they took it in their heads.
    fn next_transmit(&self) -> Option<Transmit> {
        self.gossip().poll_transmit()
    }

    fn next_event(&self) -> Option<Event> {
        self.gossip().poll_event()
    }

    fn send(&self, transmit: Transmit) {
        let Transmit { to, channel, payload } = transmit;
        let Some(link) = self.net.route_at(to).and_then(|route| route.link()) else { return };
        if channel == Channel::Stream && payload.len() > MAX_STREAM_BYTES {
            tracing::error!(
                bytes = payload.len(),
                MAX_STREAM_BYTES,
                "a message is too long for a peer to take; it was dropped"
            );
            return;
        }
        link.send(channel, payload.into());
        self.gossip().set_congested(to, link.is_congested());
    }

    fn log(&self, event: &Event) {
        match event {
            Event::PeerUp(peer) => tracing::info!(peer = self.name(*peer), "the peer is heard"),
            Event::PeerUnreachable(peer) => {
                tracing::warn!(
                    peer = self.name(*peer),
                    "the peer is unreachable; limits follow their on_partition"
                );
            }
            Event::PeerLeft(peer) => {
                if let Some(route) = self.net.route_at(*peer) {
                    route.note_left();
                }
                tracing::info!(peer = self.name(*peer), "the peer has stopped");
            }
            Event::Synced(true) => tracing::info!("the node is synced"),
            Event::Synced(false) => {
                tracing::warn!("no peer sent its state in time; the node goes on without")
            }
            Event::NewIncarnation => {
                tracing::warn!(
                    "a peer has heard of more than this node spent; it goes on as a new incarnation"
                );
            }
            Event::Mismatch(peer, what) => {
                tracing::warn!(
                    peer = self.name(*peer),
                    what,
                    "the peer's configuration differs from this node's"
                );
            }
        }
    }

    fn name(&self, index: NodeIndex) -> String {
        self.net.route_at(index).map_or_else(|| "?".to_owned(), |route| route.node.as_str().to_owned())
    }

    /// Tells peers what they have not heard, and waits a moment for it to arrive.
    async fn pause(&self) {
        self.gossip().tell_all(self.clock().precise());
        self.drain();
        // Who does not answer is told again when it is connected again.
        let _ = self.flush().await;
    }

    /// Says goodbye, and waits a moment for it to arrive.
    async fn leave(&self) {
        self.gossip().leave(self.clock().precise());
        self.drain();
        if self.flush().await.is_err() {
            tracing::warn!(
                "not all peers acknowledged that this node stops; they will find out by its silence"
            );
        }
    }

    async fn flush(&self) -> Result<(), tokio::time::error::Elapsed> {
        let flush = async {
            for link in self.net.routes().iter().filter_map(|route| route.link()) {
                link.flushed().await;
            }
        };
        timeout(FLUSH_TIMEOUT, flush).await
    }

    fn clock(&self) -> &Clock {
        &self.net.clock
    }

    fn gossip(&self) -> MutexGuard<'_, Gossip> {
        lock(&self.gossip)
    }
}

/// Locks the gossip. One that panicked is about to be replaced as a whole, so its poison says nothing more.
pub(crate) fn lock(gossip: &Mutex<Gossip>) -> MutexGuard<'_, Gossip> {
    gossip.lock().unwrap_or_else(PoisonError::into_inner)
}
