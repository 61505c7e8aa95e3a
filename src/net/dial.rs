//! Dialling: from the lower name to the higher, again and again, at growing and uneven intervals.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use quinn::{Connecting, Connection, ConnectionError};
use tokio::time::timeout;

use super::{
    Run,
    accept::fits_datagrams,
    link::{self, Route, Shaken},
    preamble::{self, Failure},
    refusal::{Farewell, Refusal, explain},
    tls,
};

/// The wait after the first failure.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// The longest wait; a connection that lasted longer starts over with the shortest. A node that is started again is dialled by
/// peers that may have waited for long: they must come before its `sync_timeout` ends, or it goes on without their counts.
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// How long one address may take to answer and to come through the handshake; the preamble has the same time again.
const DIAL_TIMEOUT: Duration = Duration::from_millis(1_500);
/// How long the name service may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;

/// Keeps a connection to one peer, for as long as it is polled.
pub(crate) async fn dial(run: Run, route: Arc<Route>) {
    let mut backoff = Backoff::new();
    let mut knocked = false;
    loop {
        run.net.not_cut().await;
        let attempt = tokio::select! {
            attempt = connect(&run, &route) => attempt,
            () = run.net.cut() => continue,
        };
        match attempt {
            Ok(shaken) => {
                let began = run.net.clock.precise().mono;
                link::carry(&run, &route, shaken, ()).await;
                if run.net.clock.precise().mono.since(began) >= MAX_BACKOFF {
                    backoff = Backoff::new();
                }
            }
            Err(reason) => note(&route, &reason),
        }
        // One wait in two may be cut short, so that a peer cannot have this node dial as often as it likes.
        knocked = route.wait(backoff.next(), !knocked).await;
    }
}

/// Tells a peer that is to dial this node that it is there, once: the peer may be waiting, for no longer than its back-off,
/// or not be up, and then it dials when it starts. Never ends, as the other tasks of a run do not.
pub(crate) async fn knock(run: Run, route: Arc<Route>) {
    run.net.not_cut().await;
    let attempt = async {
        for address in resolve(&route.address).await? {
            let knocked = knock_at(&run, &route, address).await;
            tracing::debug!(peer = %route.node, %address, ?knocked, "this node has knocked");
            if knocked.is_ok() {
                break;
            }
        }
        Ok::<(), String>(())
    };
    // What goes wrong here goes wrong for the peer's dialler, too, which tells.
    let _ = attempt.await;
    std::future::pending().await
}

async fn knock_at(run: &Run, route: &Route, address: SocketAddr) -> Result<(), Failure> {
    let silence = || Failure::Lost(ConnectionError::TimedOut);
    let connecting = run.endpoint.connect_with(run.net.client(), address, route.node.as_str());
    let connecting = connecting.map_err(|_| silence())?;
    let connection =
        timeout(DIAL_TIMEOUT, connecting).await.map_err(|_| silence())?.map_err(Failure::Lost)?;
    preamble::knock(&connection, &run.net.node).await?;
    let end = timeout(DIAL_TIMEOUT, connection.closed()).await.map_err(|_| silence())?;
    if Farewell::of(&end) == Some(Farewell::Knocked) { Ok(()) } else { Err(Failure::Lost(end)) }
}

fn note(route: &Route, reason: &str) {
    if route.note(reason) {
        tracing::warn!(peer = %route.node, address = route.address, reason, "the peer cannot be reached");
    } else {
        tracing::debug!(peer = %route.node, address = route.address, reason, "the peer cannot be reached yet");
    }
}

/// Tries all addresses that the peer's name has now.
async fn connect(run: &Run, route: &Route) -> Result<Shaken, String> {
    let mut reason = String::from("the name has no address");
    for address in resolve(&route.address).await? {
        match try_address(run, route, address).await {
            Ok(shaken) => return Ok(shaken),
            Err(cause) => reason = format!("{address}: {cause}"),
        }
    }
    Err(reason)
}

async fn resolve(address: &str) -> Result<Vec<SocketAddr>, String> {
    match timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host(address)).await {
        Ok(Ok(addresses)) => Ok(addresses.take(MAX_ADDRESSES).collect()),
        Ok(Err(error)) => Err(format!("{address} cannot be resolved: {error}")),
        Err(_) => Err(format!("{address} cannot be resolved: the name service does not answer")),
    }
}

async fn try_address(run: &Run, route: &Route, address: SocketAddr) -> Result<Shaken, String> {
    let renewals = run.net.renewals();
    let connecting = run
        .endpoint
        .connect_with(run.net.client(), address, route.node.as_str())
        .map_err(|error| error.to_string())?;
    let outcome = converse(run, route, connecting).await;
    outcome.map(|connection| Shaken { connection, renewals }).map_err(|failure| match failure {
        Failure::Refused(refusal) => {
            run.net.refused(refusal, &address);
            refusal.to_string()
        }
        Failure::Lost(error) => {
            // Silence is no refusal on this side: it is how a peer that is down looks.
            if let Some(refusal) = Refusal::of(&error).filter(|refusal| *refusal != Refusal::Timeout) {
                run.net.refused(refusal, &address);
            }
            explain(&error)
        }
    })
}

async fn converse(run: &Run, route: &Route, connecting: Connecting) -> Result<Connection, Failure> {
    let silence = Failure::Lost(ConnectionError::TimedOut);
    let connection = timeout(DIAL_TIMEOUT, connecting).await.map_err(|_| silence)?.map_err(Failure::Lost)?;
    let introduction = timeout(DIAL_TIMEOUT, introduce(run, route, &connection)).await;
    let outcome = introduction.unwrap_or(Err(Failure::Refused(Refusal::Timeout)));
    if let Err(Failure::Refused(refusal)) = &outcome {
        connection.close(refusal.code(), refusal.text().as_bytes());
    }
    outcome.map(|()| connection)
}

/// Says who this node is, and hears from the peer that it may stay.
async fn introduce(run: &Run, route: &Route, connection: &Connection) -> Result<(), Failure> {
    preamble::send(connection, &run.net.node).await?;
    let claimed = preamble::receive(connection).await?.node;
    tls::vouch(connection, &claimed).map_err(Failure::Refused)?;
    if claimed != route.node {
        return Err(Failure::Refused(Refusal::NotCertified));
    }
    fits_datagrams(connection).map_err(Failure::Refused)
}

/// Waits that double, each shortened by up to half at random, so that nodes that lost each other at one moment do not
/// all come back at another.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(MIN_BACKOFF)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let full = self.0;
        self.0 = (full * 2).min(MAX_BACKOFF);
        let fraction = (random() >> 32) as f64 / f64::from(u32::MAX);
        full.mul_f64(1.0 - fraction / 2.0)
    }
}

/// A random number, from the randomness that the system gives to hash maps.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_are_uneven() {
        let mut backoff = Backoff::new();
        let mut full = MIN_BACKOFF;
        for _ in 0..20 {
            let wait = backoff.next();
            assert!(wait <= full && wait >= full / 2, "{wait:?} of {full:?}");
            full = (full * 2).min(MAX_BACKOFF);
        }
        let waits: std::collections::BTreeSet<_> = (0..10).map(|_| Backoff::new().next()).collect();
        assert!(waits.len() > 1);
    }
}
