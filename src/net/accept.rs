//! Listening: who knocks, how many at once, and who is let in.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use quinn::{Connection, Incoming};
use tokio::{task::JoinSet, time::timeout};

use super::{
    Run,
    link::{self, Route, Shaken},
    preamble::{self, Failure, Preamble},
    refusal::{Farewell, Refusal, explain},
    tls,
};

/// Handshakes in progress, preambles included.
pub(crate) const MAX_HANDSHAKES: usize = 64;
/// Of which from one address (of IPv6, one /64), so that a single host cannot keep the others out.
pub(crate) const MAX_HANDSHAKES_PER_ADDRESS: usize = 16;
/// From so many handshakes on, an address must prove that it can be answered (QUIC's Retry) before work is done for it.
const VALIDATE_ABOVE: usize = 8;
/// How long a handshake may take, and then the preamble.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 1_000 } else { 5_000 });
/// The least that a peer's datagrams must be able to carry: QUIC's least packet, less what it needs itself.
pub(crate) const MIN_DATAGRAM_BYTES: usize = 1_000;

/// Lets peers in and carries their connections, until the endpoint is closed.
pub(crate) async fn accept(run: Run) {
    let gate = Arc::new(Gate::default());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            incoming = run.endpoint.accept() => match incoming {
                Some(incoming) => {
                    if let Some((incoming, pass)) = sift(&run, &gate, incoming) {
                        connections.spawn(serve(run.clone(), incoming, pass));
                    }
                }
                None => return,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// Decides without any cryptography whether to go on with an attempt.
fn sift(run: &Run, gate: &Arc<Gate>, incoming: Incoming) -> Option<(Incoming, Pass)> {
    if run.net.is_cut() {
        incoming.ignore();
        return None;
    }
    if gate.in_progress() >= VALIDATE_ABOVE && !incoming.remote_address_validated() {
        // It fails only for an address that is validated.
        let _ = incoming.retry();
        return None;
    }
    let address = incoming.remote_address();
    let Some(pass) = gate.enter(address.ip()) else {
        run.net.refused(Refusal::Busy, &address);
        incoming.refuse();
        return None;
    };
    Some((incoming, pass))
}

async fn serve(run: Run, incoming: Incoming, pass: Pass) {
    let address = incoming.remote_address();
    let greeting = async {
        let shaken = shake_hands(&run, incoming).await?;
        let route = greet(&run, &shaken.connection).await.inspect_err(|failure| {
            if let Failure::Refused(refusal) = failure {
                shaken.connection.close(refusal.code(), refusal.text().as_bytes());
            }
        })?;
        if route.is_none() {
            let farewell = Farewell::Knocked;
            shaken.connection.close(farewell.code(), farewell.text().as_bytes());
        }
        Ok(route.map(|route| (shaken, route)))
    };
    let outcome = tokio::select! {
        outcome = greeting => outcome,
        () = run.net.cut() => return,
    };
    match outcome {
        Ok(Some((shaken, route))) => link::carry(&run, &route, shaken, pass).await,
        Ok(None) => {}
        Err(failure) => account(&run, address, &failure),
    }
}

async fn shake_hands(run: &Run, incoming: Incoming) -> Result<Shaken, Failure> {
    let renewals = run.net.renewals();
    let connecting = incoming.accept_with(run.net.server()).map_err(Failure::Lost)?;
    match timeout(HANDSHAKE_TIMEOUT, connecting).await {
        Ok(Ok(connection)) => Ok(Shaken { connection, renewals }),
        Ok(Err(error)) => Err(Failure::Lost(error)),
        Err(_) => Err(Failure::Refused(Refusal::Timeout)),
    }
}

/// Hears who is there; `None` where it only knocks.
async fn greet(run: &Run, connection: &Connection) -> Result<Option<Arc<Route>>, Failure> {
    let exchange = async {
        let claimed = preamble::receive(connection).await?;
        let route = admit(run, connection, &claimed).map_err(Failure::Refused)?;
        if claimed.is_knock {
            let heard = route.knock();
            tracing::debug!(peer = %claimed.node, heard, "the peer knocks");
            return Ok(None);
        }
        preamble::send(connection, &run.net.node).await?;
        Ok(Some(route))
    };
    timeout(HANDSHAKE_TIMEOUT, exchange).await.unwrap_or(Err(Failure::Refused(Refusal::Timeout)))
}

/// Whether the name that is claimed may dial this node, or knock, and is the certificate's.
fn admit(run: &Run, connection: &Connection, claimed: &Preamble) -> Result<Arc<Route>, Refusal> {
    let Preamble { node, is_knock } = claimed;
    tls::vouch(connection, node)?;
    if *node == run.net.node {
        return Err(Refusal::OwnName);
    }
    let route = run.net.route(node).ok_or(Refusal::Unlisted)?;
    if (*node > run.net.node) != *is_knock {
        return Err(Refusal::WrongSide);
    }
    fits_datagrams(connection)?;
    Ok(route.clone())
}

/// Whether the other side takes datagrams of the size that gossip needs.
pub(crate) fn fits_datagrams(connection: &Connection) -> Result<(), Refusal> {
    let size = connection.max_datagram_size().unwrap_or(0);
    if size < MIN_DATAGRAM_BYTES { Err(Refusal::Malformed) } else { Ok(()) }
}

fn account(run: &Run, address: SocketAddr, failure: &Failure) {
    match failure {
        Failure::Refused(refusal) => run.net.refused(*refusal, &address),
        Failure::Lost(error) => match Refusal::of(error) {
            Some(refusal) => run.net.refused(refusal, &address),
            None => tracing::debug!(%address, reason = explain(error), "a handshake was broken off"),
        },
    }
}

/// Counts handshakes in progress, by address.
#[derive(Debug, Default)]
struct Gate(Mutex<HashMap<IpAddr, usize>>);

impl Gate {
    fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Pass> {
        let origin = origin(address);
        let mut counts = self.lock();
        if counts.values().sum::<usize>() >= MAX_HANDSHAKES {
            return None;
        }
        let count = counts.entry(origin).or_default();
        if *count >= MAX_HANDSHAKES_PER_ADDRESS {
            return None;
        }
        *count += 1;
        Some(Pass { gate: self.clone(), origin })
    }

    fn in_progress(&self) -> usize {
        self.lock().values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one host can call its own: an address, or the /64 that it chooses its IPv6 addresses from.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// A handshake's place in the gate.
#[derive(Debug)]
struct Pass {
    gate: Arc<Gate>,
    origin: IpAddr,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut counts = self.gate.lock();
        if let Some(count) = counts.get_mut(&self.origin) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_cannot_fill_the_gate() {
        let gate = Arc::new(Gate::default());
        let crowd = |network: u16| -> Vec<_> {
            (0..2 * MAX_HANDSHAKES as u16)
                .filter_map(|host| gate.enter(Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host).into()))
                .collect()
        };
        let first = crowd(0);
        assert_eq!(first.len(), MAX_HANDSHAKES_PER_ADDRESS);
        let others: Vec<_> = (1..10).flat_map(crowd).collect();
        assert_eq!(first.len() + others.len(), MAX_HANDSHAKES);
        assert_eq!(gate.in_progress(), MAX_HANDSHAKES);
        drop((first, others));
        assert!(gate.lock().is_empty());
    }
}
