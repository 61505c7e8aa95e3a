//! What becomes of a node whose own tasks fail, and of one whose certificates change.

use std::sync::{Mutex, atomic::Ordering};

use super::*;
use crate::{
    gossip::{GossipConfig, NodeIndex},
    net::{
        Engine, Run, Supervisor,
        accept::accept,
        link::{MAX_EVENTS_PER_PEER, Route},
    },
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
            next: None,
        };
        let gossip = Arc::new(Mutex::new(engine.gossip()));
        let engine = Arc::new(Mutex::new(engine));
        let supervisor = Supervisor { net: a.clone(), engine, gossip, reloaded: watch::channel(0).0 };
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
async fn a_node_that_starts_knocks_where_it_is_to_be_dialled() {
    let authority = Authority::new();
    let (socket_a, socket_b) = (socket(), socket());
    let (at_a, at_b) = (socket_a.local_addr().unwrap(), socket_b.local_addr().unwrap());
    let identity = identity(&authority, &authority.issue("a"));
    let (a, endpoint, _mode) = open(&identity, "a", socket_a, &[("b", at_b)]);
    // Node a listens, and waits for longer than this test may take before it dials again.
    let (inbox, _events) = mpsc::channel(MAX_EVENTS_PER_PEER);
    let listening = tokio::spawn(accept(Run { net: a.clone(), endpoint, inbox }));
    let route = a.routes()[0].clone();
    let waiting = tokio::spawn(async move { route.wait(100 * DEADLINE, true).await });
    let b = Node::start(&authority, "b", socket_b, &[("a", at_a)]);
    let knocked = timeout(DEADLINE, waiting).await.expect("node b did not knock").unwrap();
    assert!(knocked);
    assert_eq!(a.refused_counts().total() + b.net.refused_counts().total(), 0);
    listening.abort();
}

#[tokio::test]
async fn a_wait_is_cut_short_by_a_knock_only_where_it_may_be() {
    let route = Arc::new(Route::new(NodeIndex(1), Peer { node: node_id("b"), address: String::new() }));
    assert!(!route.knock(), "nobody waits");
    let started = |cut_short: bool, wait: Duration| {
        let route = route.clone();
        tokio::spawn(async move { route.wait(wait, cut_short).await })
    };
    let waiting = started(true, 100 * DEADLINE);
    eventually("the wait", || route.knock()).await;
    assert!(!route.knock(), "one knock is enough");
    assert!(timeout(DEADLINE, waiting).await.unwrap().unwrap());
    let waiting = started(false, Duration::from_millis(50));
    while !waiting.is_finished() {
        assert!(!route.knock());
        tokio::task::yield_now().await;
    }
    assert!(!waiting.await.unwrap());
}

#[tokio::test]
async fn a_peer_that_has_stopped_is_not_warned_of() {
    let authority = Authority::new();
    let issued = authority.issue("b");
    let (socket_a, socket_b) = (socket(), socket());
    let (at_a, at_b) = (socket_a.local_addr().unwrap(), socket_b.local_addr().unwrap());
    let spare = socket_b.try_clone().unwrap();
    let mut a = Node::start(&authority, "a", socket_a, &[("b", at_b)]);
    let b = Node::start_as(&identity(&authority, &issued), "b", socket_b, &[("a", at_a)]);
    a.sees(&Seen::connected("b")).await;
    drop(b);
    a.sees(&Seen::disconnected("b")).await;
    let route = a.net.routes()[0].clone();
    assert!(!route.note("it does not answer"), "a peer that said that it stops was warned of");
    let _b = Node::start_as(&identity(&authority, &issued), "b", spare, &[("a", at_a)]);
    a.sees(&Seen::connected("b")).await;
    assert!(route.note("it does not answer"));
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
    eventually("refusals", || {
        pair.a.refused_counts().tls > refused + 1 && pair.a.routes()[0].link().is_none()
    })
    .await;
    let another = pair.a.renew(&identity(&new, &new.issue("c"))).unwrap_err();
    assert!(another.to_string().contains("\"a\""), "{another}");
}
