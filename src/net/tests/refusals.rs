//! Who is not let in, and what that does to the others: nothing.

use super::*;
use crate::net::refusal::Refusal;

/// Node `m`, with a friend `b` and peers `a` and `z`.
async fn fleet(authority: &Authority) -> (Node, Node) {
    let (socket_b, socket_m) = (socket(), socket());
    let (at_b, at_m) = (socket_b.local_addr().unwrap(), socket_m.local_addr().unwrap());
    let mut m = Node::start(authority, "m", socket_m, &[("a", nowhere()), ("b", at_b), ("z", nowhere())]);
    let mut b = Node::start(authority, "b", socket_b, &[("m", at_m)]);
    m.sees(&Seen::connected("b")).await;
    b.sees(&Seen::connected("m")).await;
    (m, b)
}

/// The friends still hear each other, over the connection they had, and nobody else was noticed.
async fn unaffected(m: &mut Node, b: &mut Node) {
    b.send("m", Channel::Datagram, "still here");
    let seen = timeout(DEADLINE, m.seen.recv()).await.unwrap();
    assert_eq!(seen, Some(Seen::payload("b", Channel::Datagram, b"still here")));
    assert_eq!(m.net.links()[1].reconnects, 0);
}

#[tokio::test]
async fn certificates_that_the_authority_does_not_vouch_for_are_refused() {
    let authority = Authority::new();
    let other = Authority::new();
    let (mut m, mut b) = fleet(&authority).await;
    let strangers = [
        ("none", Stranger::new(&authority, None)),
        ("expired", Stranger::new(&authority, Some(&authority.issue_expired("a")))),
        ("another authority's", Stranger::new(&authority, Some(&other.issue("a")))),
        ("another authority's, trusting that one", Stranger::new(&other, Some(&other.issue("a")))),
    ];
    for (count, (what, stranger)) in (1..).zip(&strangers) {
        let error = stranger.say(&m, &preamble("a")).await;
        assert_eq!(Refusal::of(&error), Some(Refusal::Tls), "{what}: {error}");
        eventually(what, || m.net.refused_counts().tls == count).await;
    }
    assert_eq!(m.net.refused_counts().total(), 4);
    unaffected(&mut m, &mut b).await;
}

#[tokio::test]
async fn names_must_be_certified_and_listed_and_on_the_right_side() {
    let authority = Authority::new();
    let (mut m, mut b) = fleet(&authority).await;
    let cases = [
        ("b", "a", Refusal::NotCertified),
        ("b", "m", Refusal::NotCertified),
        ("c", "c", Refusal::Unlisted),
        ("m", "m", Refusal::OwnName),
        ("z", "z", Refusal::WrongSide),
    ];
    for (certified, claimed, refusal) in cases {
        let stranger = Stranger::new(&authority, Some(&authority.issue(certified)));
        let error = stranger.say(&m, &preamble(claimed)).await;
        assert_eq!(code(&error), Some(refusal.code()), "{certified} as {claimed}: {error}");
    }
    let counts = m.net.refused_counts();
    assert_eq!((counts.not_certified, counts.unlisted, counts.own_name, counts.wrong_side), (2, 1, 1, 1));
    assert_eq!(counts.total(), 5);
    // The same names knock: only the one that is to be dialled may, and is sent away all the same.
    let knocks = [
        ("b", "z", Refusal::NotCertified.code()),
        ("c", "c", Refusal::Unlisted.code()),
        ("a", "a", Refusal::WrongSide.code()),
        ("z", "z", Farewell::Knocked.code()),
    ];
    for (certified, claimed, answer) in knocks {
        let stranger = Stranger::new(&authority, Some(&authority.issue(certified)));
        let error = stranger.say(&m, &[&preamble(claimed)[..], b"k"].concat()).await;
        assert_eq!(code(&error), Some(answer), "{certified} knocks as {claimed}: {error}");
    }
    assert_eq!(m.net.refused_counts().total(), 8);
    unaffected(&mut m, &mut b).await;
}

#[tokio::test]
async fn preambles_must_be_well_formed_and_of_this_version() {
    let authority = Authority::new();
    let (mut m, mut b) = fleet(&authority).await;
    let stranger = Stranger::new(&authority, Some(&authority.issue("a")));
    let cases = [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], Refusal::Malformed),
        (&[b'x'; 5_000], Refusal::Malformed),
        (b"RMSH\x01\x05a", Refusal::Malformed),
        (b"RMSH\x02\x01a", Refusal::Version),
    ];
    for (bytes, refusal) in cases {
        let error = stranger.say(&m, bytes).await;
        assert_eq!(code(&error), Some(refusal.code()), "{bytes:?}: {error}");
    }
    let other = Stranger::new(&authority, Some(&authority.issue("a"))).speaking(b"ratemesh/2");
    let error = other.say(&m, &preamble("a")).await;
    assert_eq!(Refusal::of(&error), Some(Refusal::Version), "{error}");
    eventually("both versions", || m.net.refused_counts().version == 2).await;
    assert_eq!((m.net.refused_counts().malformed, m.net.refused_counts().total()), (3, 5));
    unaffected(&mut m, &mut b).await;
}

#[tokio::test]
async fn who_says_nothing_is_not_waited_for() {
    let authority = Authority::new();
    let (mut m, mut b) = fleet(&authority).await;
    let stranger = Stranger::new(&authority, Some(&authority.issue("a")));
    let silent = stranger.connect(&m).await.unwrap();
    let trickling = stranger.connect(&m).await.unwrap();
    let mut stream = trickling.open_uni().await.unwrap();
    stream.write_all(b"RMS").await.unwrap();
    for connection in [silent, trickling] {
        let error = timeout(DEADLINE, connection.closed()).await.unwrap();
        assert_eq!(code(&error), Some(Refusal::Timeout.code()), "{error}");
    }
    assert_eq!((m.net.refused_counts().timeout, m.net.refused_counts().total()), (2, 2));
    unaffected(&mut m, &mut b).await;
}

#[tokio::test]
async fn a_dialler_takes_no_other_node_for_the_one_it_dials() {
    let authority = Authority::new();
    let other = Authority::new();
    let cases = [
        ("another authority's", identity(&other, &other.issue("b")), "b"),
        ("expired", identity(&authority, &authority.issue_expired("b")), "b"),
        ("another node's", identity(&authority, &authority.issue("c")), "c"),
    ];
    for (what, identity, name) in cases {
        let socket_b = socket();
        let at_b = socket_b.local_addr().unwrap();
        let mut impostor = Node::start_as(&identity, name, socket_b, &[("a", nowhere())]);
        let mut a = Node::start(&authority, "a", socket(), &[("b", at_b)]);
        eventually(what, || a.net.refused_counts().tls >= 1).await;
        eventually(what, || a.net.links()[0].trouble.is_some()).await;
        assert!(a.seen.try_recv().is_err() && impostor.seen.try_recv().is_err());
    }
}

#[tokio::test]
async fn a_dialler_learns_why_it_was_refused() {
    let authority = Authority::new();
    let socket_b = socket();
    let at_b = socket_b.local_addr().unwrap();
    let b = Node::start(&authority, "b", socket_b, &[]);
    let a = Node::start(&authority, "a", socket(), &[("b", at_b)]);
    let trouble = || a.net.links()[0].trouble.clone().unwrap_or_default();
    eventually("the reason", || trouble().contains(Refusal::Unlisted.text())).await;
    assert!(b.net.refused_counts().unlisted >= 1);
}
