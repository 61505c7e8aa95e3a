//! What peers that were let in can do, and what the network can.

use tokio::runtime::Handle;

use super::*;
use crate::net::{
    MAX_STREAM_BYTES, accept::MAX_HANDSHAKES_PER_ADDRESS, link::MAX_EVENTS_PER_PEER, refusal::Refusal,
};

/// Node `m`, whose peers `a` and `b` are played by strangers with their certificates.
struct Stage {
    authority: Authority,
    m: Node,
}

impl Stage {
    fn set() -> Self {
        let authority = Authority::new();
        let m = Node::start(&authority, "m", socket(), &[("a", nowhere()), ("b", nowhere())]);
        Self { authority, m }
    }

    fn player(&self, name: &str) -> Stranger {
        Stranger::new(&self.authority, Some(&self.authority.issue(name)))
    }
}

#[tokio::test]
async fn a_stream_that_is_too_long_ends_its_connection_and_no_other() {
    let mut stage = Stage::set();
    let (a, b) = (stage.player("a"), stage.player("b"));
    let bad = a.join(&mut stage.m, "a").await;
    let good = b.join(&mut stage.m, "b").await;
    let longest = vec![7; MAX_STREAM_BYTES];
    say(&good, &longest).await;
    stage.m.sees(&Seen::Payload("b".to_owned(), Channel::Stream, longest.into())).await;
    say(&bad, &vec![0; MAX_STREAM_BYTES + 1]).await;
    stage.m.sees(&Seen::disconnected("a")).await;
    assert_eq!(code(&bad.closed().await), Some(Refusal::Oversize.code()));
    say(&good, b"still here").await;
    stage.m.sees(&Seen::payload("b", Channel::Stream, b"still here")).await;
    assert_eq!((stage.m.net.refused_counts().oversize, stage.m.net.refused_counts().total()), (1, 1));
}

#[tokio::test]
async fn a_stream_that_trickles_ends_its_connection() {
    let mut stage = Stage::set();
    let a = stage.player("a");
    let bad = a.join(&mut stage.m, "a").await;
    let mut stream = bad.open_uni().await.unwrap();
    stream.write_all(b"x").await.unwrap();
    stage.m.sees(&Seen::disconnected("a")).await;
    assert_eq!(code(&bad.closed().await), Some(Refusal::Slow.code()));
    assert_eq!(stage.m.net.refused_counts().slow, 1);
}

#[tokio::test]
async fn a_stream_given_up_halfway_is_not_taken_for_whole() {
    let mut stage = Stage::set();
    let a = stage.player("a");
    let connection = a.join(&mut stage.m, "a").await;
    let mut stream = connection.open_uni().await.unwrap();
    stream.write_all(b"half").await.unwrap();
    stream.reset(VarInt::from_u32(1)).unwrap();
    say(&connection, b"whole").await;
    let seen = timeout(DEADLINE, stage.m.seen.recv()).await.unwrap();
    assert_eq!(seen, Some(Seen::payload("a", Channel::Stream, b"whole")));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_arrive_in_the_order_in_which_they_were_sent() {
    let authority = Authority::new();
    let (socket_a, socket_b) = (socket(), socket());
    let (at_a, at_b) = (socket_a.local_addr().unwrap(), socket_b.local_addr().unwrap());
    let mut a = Node::start(&authority, "a", socket_a, &[("b", at_b)]);
    let mut b = Node::start(&authority, "b", socket_b, &[("a", at_a)]);
    a.sees(&Seen::connected("b")).await;
    b.sees(&Seen::connected("a")).await;
    for round in 0..20 {
        for number in 0..50_u8 {
            // Long ones, which take more than a stream's window, among short ones.
            let length = if number % 10 == round % 10 { 300_000 } else { 100 };
            a.send("b", Channel::Stream, vec![number; length]);
        }
        for number in 0..50 {
            let seen = timeout(DEADLINE, b.seen.recv()).await.unwrap();
            let Some(Seen::Payload(_, Channel::Stream, bytes)) = seen else { panic!("{seen:?}") };
            assert_eq!(bytes[0], number);
        }
    }
}

#[tokio::test]
async fn a_peer_whose_gossip_is_slow_gets_long_streams_all_the_same() {
    const STREAMS: u8 = 30;
    let authority = Authority::new();
    let (socket_a, socket_b) = (socket(), socket());
    let (at_a, at_b) = (socket_a.local_addr().unwrap(), socket_b.local_addr().unwrap());
    let (b, endpoint, _mode) =
        open(&identity(&authority, &authority.issue("b")), "b", socket_b, &[("a", at_a)]);
    let Links { tasks: _tasks, mut inbox, .. } = Links::start(&b, &endpoint);
    let mut a = Node::start(&authority, "a", socket_a, &[("b", at_b)]);
    a.sees(&Seen::connected("b")).await;
    for number in 0..STREAMS {
        a.send("b", Channel::Stream, vec![number; 260_000]);
    }
    let mut next = 0;
    while next < STREAMS {
        let event = timeout(DEADLINE, inbox.recv()).await.unwrap().unwrap();
        let LinkEvent::Payload(payload) = &event else { continue };
        assert_eq!((payload.bytes.len(), payload.bytes[0]), (260_000, next));
        next += 1;
        // It takes its time, and the stream's place with it.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(a.net.links()[0].streams_dropped, 0);
}

#[tokio::test]
async fn a_peer_that_takes_nothing_in_is_given_up() {
    let mut stage = Stage::set();
    let a = stage.player("a");
    let connection = a.join(&mut stage.m, "a").await;
    stage.m.send("a", Channel::Stream, vec![0; 200_000]);
    // Datagrams go on meanwhile.
    stage.m.send("a", Channel::Datagram, "news");
    assert_eq!(connection.read_datagram().await.unwrap()[..], *b"news");
    stage.m.sees(&Seen::disconnected("a")).await;
    assert_eq!(code(&connection.closed().await), Some(Refusal::Slow.code()));
    assert_eq!(stage.m.net.refused_counts().slow, 1);
}

#[tokio::test]
async fn connections_dropped_in_the_middle_leave_no_task() {
    let mut stage = Stage::set();
    let b = stage.player("b");
    let good = b.join(&mut stage.m, "b").await;
    let a = stage.player("a");
    let before = Handle::current().metrics().num_alive_tasks();
    for round in 0..100 {
        let connection = a.connect(&stage.m).await.unwrap();
        if round % 2 == 0 {
            say(&connection, &preamble("a")).await;
        }
        if let Ok(mut stream) = connection.open_uni().await {
            let _ = stream.write_all(b"the first half of").await;
        }
        connection.close(VarInt::from_u32(0), b"");
    }
    eventually("the end of their tasks", || Handle::current().metrics().num_alive_tasks() <= before).await;
    good.send_datagram(Bytes::from_static(b"still here")).unwrap();
    stage.m.sees(&Seen::payload("b", Channel::Datagram, b"still here")).await;
}

#[tokio::test]
async fn a_new_connection_takes_the_place_of_the_old() {
    let mut stage = Stage::set();
    let a = stage.player("a");
    let old = a.join(&mut stage.m, "a").await;
    let new = a.join(&mut stage.m, "a").await;
    assert_eq!(code(&old.closed().await), Some(Farewell::Replaced.code()));
    new.send_datagram(Bytes::from_static(b"anew")).unwrap();
    // The end of the old one is not taken for the end of the new one.
    let seen = timeout(DEADLINE, stage.m.seen.recv()).await.unwrap();
    assert_eq!(seen, Some(Seen::payload("a", Channel::Datagram, b"anew")));
    assert_eq!(stage.m.net.links()[0].reconnects, 1);
}

#[tokio::test]
async fn a_peer_that_floods_neither_grows_this_node_nor_keeps_others_out() {
    let authority = Authority::new();
    let identity = identity(&authority, &authority.issue("m"));
    let (net, endpoint, mode) = open(&identity, "m", socket(), &[("a", nowhere()), ("b", nowhere())]);
    // Nobody empties this inbox.
    let Links { tasks, mut inbox, .. } = Links::start(&net, &endpoint);
    let (_, seen) = mpsc::unbounded_channel();
    let m = Node { net, endpoint, mode, seen, _tasks: tasks };
    let a = Stranger::new(&authority, Some(&authority.issue("a")));
    let b = Stranger::new(&authority, Some(&authority.issue("b")));
    let flood = a.connect(&m).await.unwrap();
    say(&flood, &preamble("a")).await;
    flood.accept_uni().await.unwrap().read_to_end(1_000).await.unwrap();
    for _ in 0..20_000 {
        flood.send_datagram_wait(Bytes::from_static(&[0; 1_000])).await.unwrap();
    }
    let voice = b.connect(&m).await.unwrap();
    say(&voice, &preamble("b")).await;
    voice.accept_uni().await.unwrap().read_to_end(1_000).await.unwrap();
    voice.send_datagram(Bytes::from_static(b"b")).unwrap();
    let (mut from_a, mut heard) = (0, false);
    while !heard {
        match timeout(DEADLINE, inbox.recv()).await.unwrap().unwrap() {
            // Dropped at once, it would make room for the next; here each keeps its place.
            LinkEvent::Payload(payload) => {
                from_a += usize::from(payload.route.node.as_str() == "a");
                heard |= payload.route.node.as_str() == "b";
                std::mem::forget(payload);
            }
            LinkEvent::Connected(..) | LinkEvent::Disconnected(..) | LinkEvent::Relieved(..) => {}
        }
    }
    assert!(from_a <= MAX_EVENTS_PER_PEER, "{from_a} datagrams waited");
}

/// On Linux, all of 127.0.0.0/8 is this host, and one process can be several.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_host_that_keeps_silent_does_not_keep_others_out() {
    let mut stage = Stage::set();
    let mut silent = tokio::task::JoinSet::new();
    let crowd = Arc::new(stage.player("a"));
    let m = stage.m.address();
    for _ in 0..4 * MAX_HANDSHAKES_PER_ADDRESS {
        let crowd = crowd.clone();
        silent.spawn(async move { crowd.connect_to(m, "m").await });
    }
    eventually("the crowd", || stage.m.net.refused_counts().busy > 0).await;
    let b = stage.player("b").from([127, 0, 0, 2]);
    let connection = b.join(&mut stage.m, "b").await;
    connection.send_datagram(Bytes::from_static(b"let in")).unwrap();
    stage.m.sees(&Seen::payload("b", Channel::Datagram, b"let in")).await;
    // Those who were let into the hall, but said nothing, are shown out again.
    eventually("the hall to empty", || stage.m.net.refused_counts().timeout > 0).await;
}

#[tokio::test]
async fn a_node_that_is_cut_off_is_alone_until_it_is_joined_again() {
    let authority = Authority::new();
    let (socket_a, socket_b) = (socket(), socket());
    let (at_a, at_b) = (socket_a.local_addr().unwrap(), socket_b.local_addr().unwrap());
    let mut a = Node::start(&authority, "a", socket_a, &[("b", at_b)]);
    let mut b = Node::start(&authority, "b", socket_b, &[("a", at_a)]);
    for cut_side_dials in [true, false] {
        a.sees(&Seen::connected("b")).await;
        b.sees(&Seen::connected("a")).await;
        let mode = if cut_side_dials { a.mode.clone() } else { b.mode.clone() };
        mode.send_replace(Mode::CutOff);
        a.sees(&Seen::disconnected("b")).await;
        b.sees(&Seen::disconnected("a")).await;
        // The listener answers nobody, and the dialler gives up trying.
        eventually("silence", || a.net.links()[0].trouble.is_some() && a.net.links()[0].address.is_none())
            .await;
        assert!(a.seen.try_recv().is_err() && b.seen.try_recv().is_err());
        mode.send_replace(Mode::Joined);
    }
    a.sees(&Seen::connected("b")).await;
    b.sees(&Seen::connected("a")).await;
}

#[tokio::test]
async fn a_peer_that_was_killed_and_started_again_is_noticed_at_once() {
    let authority = Authority::new();
    let issued = authority.issue("b");
    let (socket_a, socket_b) = (socket(), socket());
    let (at_a, at_b) = (socket_a.local_addr().unwrap(), socket_b.local_addr().unwrap());
    let mut a = Node::start(&authority, "a", socket_a, &[("b", at_b)]);
    let first = Node::start_as(&identity(&authority, &issued), "b", socket_b, &[("a", at_a)]);
    a.sees(&Seen::connected("b")).await;
    // It dies without a word: its socket is elsewhere before it can say one, and its port is free.
    first.endpoint.rebind(socket()).unwrap();
    drop(first);
    let bind = async {
        loop {
            match UdpSocket::bind(at_b) {
                Ok(socket) => return socket,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let socket = timeout(DEADLINE, bind).await.unwrap();
    let mut second = Node::start_as(&identity(&authority, &issued), "b", socket, &[("a", at_a)]);
    let clock = Clock::system();
    let began = clock.precise().mono;
    // Unless it was noticed already, by something that was still on its way.
    if let Some(link) = a.net.routes()[0].link() {
        link.send(Channel::Datagram, Bytes::from_static(b"are you there?"));
    }
    a.sees(&Seen::disconnected("b")).await;
    second.sees(&Seen::connected("a")).await;
    let took = clock.precise().mono.since(began);
    assert!(took < Duration::from_secs(4), "it took {took:?}, as if only silence told");
}
