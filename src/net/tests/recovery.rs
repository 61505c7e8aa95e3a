//! What becomes of a node whose own tasks fail, and of one whose certificates change.

use std::sync::{Mutex, atomic::Ordering};

use super::*;
use crate::{
    gossip::GossipConfig,
    net::{Engine, Supervisor},
    node::Incarnation,
};

/// Node `a` with its gossip, and its peer `b` without.
struct Pair {
    a: Arc<Net>,
    endpoint: Option<Endpoint>,
    b: Node,
    task: tokio::task::JoinHandle<()>,
    mode: watch::Sender<Mode>,
}

impl Pair {
    async fn start(authority: &Authority) -> Self {
        let (socket_a, socket_b) = (socket(), socket());
        let (at_a, at_b) = (socket_a.local_addr().unwrap(), socket_b.local_addr().unwrap());
        let mut b = Node::start(authority, "b", socket_b, &[("a", at_a)]);
        let identity = identity(authority, &authority.issue("a"));
        let (a, endpoint, mode) = open(&identity, "a", socket_a, &[("b", at_b)]);
        let engine = Engine {
            config: gossip_config(),
            tables: Vec::new(),
            clock: Clock::system(),
            wake: Arc::default(),
        };
        let gossip = Arc::new(Mutex::new(engine.gossip()));
        let supervisor = Supervisor { net: a.clone(), engine, gossip };
        let task = tokio::spawn(supervisor.supervise(endpoint.clone()));
        b.sees(&Seen::connected("a")).await;
        Self { a, endpoint: Some(endpoint), b, task, mode }
    }

    /// The two have found each other again, and `a` can still be stopped.
    async fn recovers(mut self) {
        eventually("a restart", || self.a.restarts() == 1).await;
        self.b.sees(&Seen::disconnected("a")).await;
        self.b.sees(&Seen::connected("a")).await;
        drop(self.endpoint);
        self.mode.send_replace(Mode::Stopping);
        timeout(DEADLINE, self.task).await.unwrap().unwrap();
        self.b.sees(&Seen::disconnected("a")).await;
    }
}

fn gossip_config() -> GossipConfig {
    GossipConfig::new(node_id("a"), Incarnation::new(0), vec![node_id("b")])
}

#[tokio::test]
async fn a_gossip_that_panics_is_started_anew() {
    let pair = Pair::start(&Authority::new()).await;
    pair.a.sabotaged.store(true, Ordering::Relaxed);
    pair.recovers().await;
}

#[tokio::test]
async fn a_socket_that_fails_is_bound_anew() {
    let mut pair = Pair::start(&Authority::new()).await;
    // To the supervisor, an endpoint that is closed behind its back looks like one whose socket has failed.
    pair.endpoint.take().unwrap().close(VarInt::from_u32(0), b"");
    pair.recovers().await;
}

#[tokio::test]
async fn certificates_are_renewed_without_a_restart() {
    let (old, new) = (Authority::new(), Authority::new());
    let both = |shows: &Issued| {
        let ca = old.pem() + &new.pem();
        TlsIdentity::from_pem(ca.as_bytes(), shows.chain.as_bytes(), shows.key.as_bytes()).unwrap()
    };
    let mut pair = Pair::start(&old).await;
    for (node, name) in [(&pair.a, "a"), (&pair.b.net, "b")] {
        node.renew(&both(&old.issue(name))).unwrap();
        node.renew(&both(&new.issue(name))).unwrap();
    }
    pair.b.sees(&Seen::disconnected("a")).await;
    pair.b.sees(&Seen::connected("a")).await;
    // Node a has let the old authority go, and node b, given an old certificate, is let go with it.
    pair.a.renew(&identity(&new, &new.issue("a"))).unwrap();
    pair.b.net.renew(&both(&old.issue("b"))).unwrap();
    let refused = pair.a.refused_counts().tls;
    eventually("refusals", || pair.a.refused_counts().tls > refused + 1 && pair.a.routes[0].link().is_none())
        .await;
    let another = pair.a.renew(&identity(&new, &new.issue("c"))).unwrap_err();
    assert!(another.to_string().contains("\"a\""), "{another}");
}
