//! Configurations that change while nodes of a real fleet run.
#![cfg(feature = "net")]

mod fleet;

use std::{
    net::{IpAddr, Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use fleet::{Fleet, admitted, bucket, eventually, limits};
use ratemesh::{Basis, Limit, MAX_PERIOD, Override, PeerState, Quota, ReloadError};

const KEY: &str = "alice";

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_changes_on_all_nodes_and_what_was_spent_counts_on() {
    let mut fleet = Fleet::start(3, &limits(&[bucket("api", 100)])).await;
    let before = fleet.limiter(1);
    let handle = before.handle(KEY);
    assert_eq!(admitted(&fleet.limiter(0), KEY, 60), 60);
    fleet.agrees(KEY, 40).await;
    fleet.set_limits(&limits(&[bucket("api", 80)]));
    for node in 0..3 {
        fleet.reload(node).await.expect("it can be changed");
        assert_eq!(fleet.limiter(node).peek(KEY).remaining(), 20, "at once");
        assert_eq!(fleet.limiter(node).limit().capacity(), 80);
    }
    fleet.whole().await;
    fleet.agrees(KEY, 20).await;
    // Limiters and handles that were made before go on.
    assert_eq!(before.peek(KEY).basis(), Basis::Cluster);
    assert!(handle.check_cost(5).expect("it fits").is_allowed());
    assert!(before.check_cost(KEY, 5).expect("it fits").is_allowed());
    fleet.agrees(KEY, 10).await;
    fleet.set_limits(&limits(&[bucket("api", 200)]));
    for node in 0..3 {
        fleet.reload(node).await.expect("it can be changed");
    }
    fleet.agrees(KEY, 130).await;
    assert_eq!(admitted(&fleet.limiter(2), KEY, 500), 130);
    fleet.agrees(KEY, 0).await;
    assert!(fleet.mesh(0).status().gossip.peers.iter().all(|peer| peer.mismatches.is_empty()));
    assert_eq!(fleet.mesh(0).status().restarts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_spent_while_a_node_is_changed_is_not_lost() {
    let mut fleet = Fleet::start(2, &limits(&[bucket("api", 100_000)])).await;
    fleet.set_limits(&limits(&[bucket("api", 90_000)]));
    let limiter = fleet.limiter(0);
    let (stop, spent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (told, counted) = (Arc::clone(&stop), Arc::clone(&spent));
    let spender = std::thread::spawn(move || {
        while !told.load(Ordering::Relaxed) {
            counted.fetch_add(limiter.check(KEY).is_allowed().into(), Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    eventually("the first to be spent", || spent.load(Ordering::Relaxed) > 0).await;
    let mut changed = Ok(());
    for _ in 0..5 {
        changed = changed.and(fleet.reload(0).await);
    }
    stop.store(true, Ordering::Relaxed);
    spender.join().expect("the spender");
    let spent = spent.load(Ordering::Relaxed);
    changed.expect("it can be changed");
    fleet.reload(1).await.expect("it can be changed");
    fleet.agrees(KEY, 90_000 - spent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_come_and_go() {
    let mut fleet = Fleet::start(2, &limits(&[bucket("api", 100), bucket("old", 50)])).await;
    let old = fleet.mesh(0).limiter("old").expect("the limit");
    assert_eq!(admitted(&old, KEY, 10), 10);
    assert_eq!(admitted(&fleet.limiter(0), KEY, 10), 10);
    fleet.agrees(KEY, 90).await;
    fleet.set_limits(&limits(&[bucket("new", 30), bucket("api", 100)]));
    fleet.reload(0).await.expect("it can be changed");
    let new = fleet.mesh(0).limiter("new").expect("it is there at once");
    assert!(fleet.mesh(0).limiter("old").is_none());
    assert_eq!(old.peek(KEY).basis(), Basis::Alone);
    assert_eq!(old.peek(KEY).remaining(), 40);
    eventually("the new limit to be known", || new.peek(KEY).basis() == Basis::Cluster).await;
    assert_eq!(admitted(&new, KEY, 12), 12);
    // The other node hears what was spent before it had the limit.
    fleet.reload(1).await.expect("it can be changed");
    let there = fleet.mesh(1).limiter("new").expect("the limit");
    eventually("the other node to hear", || {
        let peek = there.peek(KEY);
        peek.remaining() == 18 && peek.basis() == Basis::Cluster
    })
    .await;
    assert_eq!(fleet.mesh(1).limiter("api").expect("the limit").peek(KEY).remaining(), 90);
    // A limit that comes back is the one that it was.
    fleet.set_limits(&limits(&[bucket("api", 100), bucket("old", 60)]));
    fleet.reload(0).await.expect("it can be changed");
    fleet.reload(1).await.expect("it can be changed");
    assert_eq!(fleet.mesh(0).limiter("old").expect("the limit").peek(KEY).remaining(), 50);
    assert_eq!(admitted(&old, KEY, 100), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_come_and_go() {
    let (mut fleet, mut sockets) = Fleet::prepare(4, &limits(&[bucket("api", 100)]));
    let last = sockets.pop().expect("four sockets");
    for (node, socket) in sockets.into_iter().enumerate() {
        fleet.start_among(node, socket, &[0, 1, 2]).await;
    }
    fleet.whole().await;
    assert_eq!(admitted(&fleet.limiter(2), KEY, 30), 30);
    fleet.agrees(KEY, 70).await;
    // The third goes, a fourth comes.
    fleet.kill(2);
    for node in [0, 1] {
        fleet.reload_among(node, &[0, 1, 3]).await.expect("it can be changed");
        assert_eq!(fleet.limiter(node).peek(KEY).remaining(), 70, "what it spent stays spent");
    }
    fleet.start_among(3, last, &[0, 1, 3]).await;
    fleet.whole().await;
    let names = |node: usize| {
        let status = fleet.mesh(node).status();
        let up = status.gossip.peers.iter().filter(|peer| peer.state == PeerState::Up);
        let names: Vec<String> = up.map(|peer| peer.node.to_string()).collect();
        (names, status.links.len())
    };
    assert_eq!(names(0), (vec!["node-1".to_owned(), "node-3".to_owned()], 2));
    fleet.agrees(KEY, 70).await;
    assert_eq!(admitted(&fleet.limiter(3), KEY, 25), 25);
    fleet.agrees(KEY, 45).await;
    assert_eq!(fleet.limiter(0).peek(KEY).basis(), Basis::Cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_and_lists_of_the_configuration_follow_it() {
    let own = |units| Override::quota(Quota::new(units, MAX_PERIOD));
    let mut fleet = Fleet::start(2, &limits(&[bucket("api", 100).override_key("premium", own(1_000))])).await;
    assert_eq!(admitted(&fleet.limiter(0), "premium", 400), 400);
    fleet.agrees("premium", 600).await;
    fleet.limiter(1).set_override("gold", own(5_000)).expect("room");
    fleet.limiter(1).ban("mallory", Duration::from_secs(600)).expect("room");
    let other = fleet.limiter(0);
    eventually("the override", || !other.overrides().is_empty()).await;
    // The first that this node is ever asked about the key is held against what the other gave it.
    assert!(other.peek_cost("gold", 5_000).expect("it can pass").is_allowed());
    let next = bucket("api", 50).override_key("premium", own(700)).deny("10.0.0.0/8").allow("key:friend");
    fleet.set_limits(&limits(&[next]));
    for node in 0..2 {
        fleet.reload(node).await.expect("it can be changed");
    }
    fleet.agrees("premium", 300).await;
    fleet.agrees("gold", 5_000).await;
    for node in 0..2 {
        let limiter = fleet.limiter(node);
        assert!(!limiter.check("10.1.2.3".parse::<IpAddr>().expect("an address")).is_allowed());
        assert!(limiter.check("friend").is_exempt());
        // What was said at run time stays, and what was under way while connections were made anew comes.
        eventually("the ban", || limiter.peek("mallory").is_banned()).await;
        assert_eq!(limiter.peek("anyone").remaining(), 50);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_will_not_do_changes_nothing() {
    let mut fleet = Fleet::start(2, &limits(&[bucket("api", 100), bucket("other", 10)])).await;
    assert_eq!(admitted(&fleet.limiter(0), KEY, 60), 60);
    let window = Limit::fixed_window("other", Quota::per_day(10));
    for (changed, field) in [(window, "algorithm"), (bucket("other", 20).max_keys(7), "max_keys")] {
        // What stands before the limit that will not do is not changed either.
        fleet.set_limits(&limits(&[bucket("api", 10), changed, bucket("new", 5)]));
        let error = fleet.reload(0).await.expect_err("it cannot be changed");
        assert!(matches!(&error, ReloadError::Limit(error) if error.field() == field), "{error}");
        assert!(error.to_string().contains("\"other\""), "{error}");
    }
    fleet.set_limits(&limits(&[bucket("api", 10)]));
    let elsewhere = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let config = fleet.builder(0).listen(elsewhere.local_addr().expect("an address"));
    let error = fleet.mesh(0).reload(config.build().expect("a configuration")).await.expect_err("fixed");
    assert_eq!(error, ReloadError::Fixed("node.listen"));
    let config = fleet.builder(0).secret("another secret of enough bytes");
    let error = fleet.mesh(0).reload(config.build().expect("a configuration")).await.expect_err("fixed");
    assert_eq!(error, ReloadError::Fixed("keys.secret"));
    assert!(!format!("{error:?} {error}").contains("another secret"));
    let config = fleet.builder(0).tls(fleet.identity_of(1));
    let error =
        fleet.mesh(0).reload(config.build().expect("a configuration")).await.expect_err("not its own");
    assert!(matches!(error, ReloadError::Identity(_)), "{error}");
    assert_eq!(fleet.limiter(0).limit().capacity(), 100);
    assert!(fleet.mesh(0).limiter("other").is_some() && fleet.mesh(0).limiter("new").is_none());
    fleet.agrees(KEY, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cut_off_or_changed_by_several_at_once_can_be_changed() {
    let mut fleet = Fleet::start(2, &limits(&[bucket("api", 100)])).await;
    fleet.mesh(0).cut_off(true);
    assert_eq!(admitted(&fleet.limiter(0), KEY, 20), 20);
    fleet.set_limits(&limits(&[bucket("api", 60)]));
    let (one, other, third) = tokio::join!(fleet.reload(0), fleet.reload(0), fleet.reload(1));
    one.and(other).and(third).expect("each in its turn");
    assert_eq!(fleet.limiter(0).peek(KEY).remaining(), 40);
    fleet.mesh(0).cut_off(false);
    fleet.whole().await;
    fleet.agrees(KEY, 40).await;
}
