//! Who can start as whom, and who gets in.
#![cfg(feature = "net")]

mod fleet;

use fleet::{Fleet, admitted, authority::Authority, eventually, identity, name};
use ratemesh::{IdentityError, Limit, Mesh, PeerState, Quota, StartError};

fn limit() -> Limit {
    Limit::token_bucket("api", Quota::per_day(100)).burst(100).build().expect("a limit")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_authority_never_gets_in() {
    let other = Authority::new();
    let mut fleet = Fleet::start(3, &[limit()]).await;
    fleet.kill(2);
    let identity = identity(&other, &other.issue(name(2).as_str()));
    let impostor = Mesh::start(fleet.config_as(2, fleet.socket(2).await, identity)).await.expect("a node");
    let refused = |mesh: &Mesh| mesh.status().refused.tls;
    eventually("refusals", || refused(fleet.mesh(0)) >= 2 && refused(fleet.mesh(1)) >= 2).await;
    // Whatever it spends, nobody hears of it.
    admitted(&impostor.limiter("api").expect("the limit"), "alice", 100);
    assert!(impostor.status().gossip.peers.iter().all(|peer| peer.state != PeerState::Up));
    // The others go on with each other.
    assert_eq!(admitted(&fleet.limiter(0), "alice", 10), 10);
    eventually("the count", || fleet.limiter(1).peek("alice").remaining() == 90).await;
    // The one that it pretends to be counts as gone.
    eventually("the loss", || [0, 1].iter().all(|index| fleet.sees(*index, 2) == PeerState::Unreachable))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cannot_start_with_another_nodes_certificate() {
    let (fleet, mut sockets) = Fleet::prepare(2, &[limit()]);
    let identity = identity(&fleet.authority, &fleet.authority.issue("node-7"));
    let error = Mesh::start(fleet.config_as(1, sockets.remove(1), identity)).await.expect_err("no node");
    assert!(
        matches!(&error, StartError::Identity(IdentityError::NotCertified { node, .. }) if *node == name(1)),
        "{error}"
    );
    assert!(error.to_string().contains("node-1"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_named() {
    let (fleet, sockets) = Fleet::prepare(1, &[limit()]);
    let taken = sockets[0].local_addr().expect("an address");
    let issued = fleet.authority.issue(name(0).as_str());
    let config = ratemesh::Config::builder(name(0))
        .listen(taken)
        .limit(limit())
        .tls(identity(&fleet.authority, &issued))
        .build()
        .expect("a configuration");
    let error = Mesh::start(config).await.expect_err("no node");
    assert!(matches!(&error, StartError::Bind { address, .. } if *address == taken), "{error}");
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
}
