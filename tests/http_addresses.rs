//! Whom a request comes from: what proxies say, what clients pretend, and what is believed.
#![cfg(feature = "http")]

use std::net::{IpAddr, SocketAddr};

use http::{HeaderName, Request};
use ratemesh::{
    KeyHasher,
    http::{ClientIp, ForwardedField, KeyExtractor, Peer, PeerAddr, RequestHead, TrustedProxies},
};

/// What stands in front of the service.
#[derive(Clone, Copy)]
enum Front {
    /// Nothing.
    Direct,
    /// `X-Forwarded-For` from 10.0.0.0/8, 2001:db8:ffff::/48 and ::ffff:172.16.0.0/108.
    X,
    /// `Forwarded` from the same.
    F,
    /// `X-Forwarded-For` from so many hops.
    XHops(usize),
    /// `Forwarded` from so many hops.
    FHops(usize),
    /// `CF-Connecting-IP` from the same networks.
    Cf,
    /// `X-Real-IP` from one hop.
    Real,
}

use Front::*;

/// Peer (empty: a unix socket), front, lines of the front's field, client (empty: unknown).
type Case = (&'static str, Front, &'static [&'static str], &'static str);

const CASES: &[Case] = &[
    // No proxy: fields are not looked at.
    ("203.0.113.9:4000", Direct, &[], "203.0.113.9"),
    ("203.0.113.9:4000", Direct, &["1.1.1.1"], "203.0.113.9"),
    ("[2001:db8::9]:4000", Direct, &[], "2001:db8::9"),
    ("[::ffff:203.0.113.9]:4000", Direct, &[], "203.0.113.9"),
    ("", Direct, &["1.1.1.1"], ""),
    // X-Forwarded-For from networks.
    ("10.0.0.1:1", X, &["203.0.113.9"], "203.0.113.9"),
    ("203.0.113.8:1", X, &["1.1.1.1"], "203.0.113.8"),
    ("10.0.0.1:1", X, &["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
    ("10.0.0.1:1", X, &["127.0.0.1,10.9.9.9, 203.0.113.9"], "203.0.113.9"),
    ("10.0.0.1:1", X, &["1.1.1.1, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
    ("10.0.0.1:1", X, &["203.0.113.9, 10.0.0.3, 10.0.0.2"], "203.0.113.9"),
    ("10.0.0.1:1", X, &[], "10.0.0.1"),
    ("10.0.0.1:1", X, &[""], "10.0.0.1"),
    ("10.0.0.1:1", X, &[",, ,"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
    ("10.0.0.1:1", X, &["203.0.113.9, , 10.0.0.2,"], "203.0.113.9"),
    ("10.0.0.1:1", X, &["  203.0.113.9\t,\t10.0.0.2  "], "203.0.113.9"),
    ("10.0.0.1:1", X, &["203.0.113.9:51234"], "203.0.113.9"),
    ("10.0.0.1:1", X, &["2001:db8::9"], "2001:db8::9"),
    ("10.0.0.1:1", X, &["[2001:db8::9]"], "2001:db8::9"),
    ("10.0.0.1:1", X, &["[2001:DB8::9]:443"], "2001:db8::9"),
    ("10.0.0.1:1", X, &["::ffff:203.0.113.9"], "203.0.113.9"),
    ("10.0.0.1:1", X, &["[::ffff:203.0.113.9]:80"], "203.0.113.9"),
    ("10.0.0.1:1", X, &["203.0.113.9, ::ffff:10.0.0.2"], "203.0.113.9"),
    ("[::ffff:10.0.0.1]:1", X, &["203.0.113.9"], "203.0.113.9"),
    ("172.16.3.4:1", X, &["203.0.113.9"], "203.0.113.9"),
    ("172.32.3.4:1", X, &["203.0.113.9"], "172.32.3.4"),
    ("[2001:db8:ffff::1]:1", X, &["203.0.113.9"], "203.0.113.9"),
    ("[2001:db8:fffe::1]:1", X, &["203.0.113.9"], "2001:db8:fffe::1"),
    // Several lines are one list, in order.
    ("10.0.0.1:1", X, &["1.1.1.1", "203.0.113.9"], "203.0.113.9"),
    ("10.0.0.1:1", X, &["1.1.1.1, 203.0.113.9", "10.0.0.2"], "203.0.113.9"),
    ("10.0.0.1:1", X, &["203.0.113.9", "", "10.0.0.2"], "203.0.113.9"),
    // Garbage ends the walk, wherever it stands.
    ("10.0.0.1:1", X, &["unknown"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2"),
    ("10.0.0.1:1", X, &["1.1.1.1, _hidden"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["1.1.1.1, example.com"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["1.1.1.1, 203.0.113.999"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["1.1.1.1, 010.0.0.2"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["1.1.1.1, 203.0.113.9:port"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["1.1.1.1, 203.0.113.9:"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["1.1.1.1, [2001:db8::9"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["1.1.1.1, [203.0.113.9]"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["1.1.1.1, 203.0.113.9 10.0.0.2"], "10.0.0.1"),
    ("10.0.0.1:1", X, &["garbage, 203.0.113.9"], "203.0.113.9"),
    // X-Forwarded-For by hops.
    ("198.51.100.1:1", XHops(0), &["203.0.113.9"], "198.51.100.1"),
    ("198.51.100.1:1", XHops(1), &["203.0.113.9"], "203.0.113.9"),
    ("198.51.100.1:1", XHops(1), &["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
    ("198.51.100.1:1", XHops(2), &["1.1.1.1, 203.0.113.9, 198.51.100.2"], "203.0.113.9"),
    ("198.51.100.1:1", XHops(2), &["1.1.1.1", "203.0.113.9", "198.51.100.2"], "203.0.113.9"),
    ("198.51.100.1:1", XHops(2), &["203.0.113.9, , 198.51.100.2, "], "203.0.113.9"),
    ("198.51.100.1:1", XHops(2), &["203.0.113.9, garbage"], "198.51.100.1"),
    ("198.51.100.1:1", XHops(2), &["garbage, 198.51.100.2"], "198.51.100.2"),
    ("198.51.100.1:1", XHops(9), &["203.0.113.9, 198.51.100.2"], "203.0.113.9"),
    ("198.51.100.1:1", XHops(9), &[], "198.51.100.1"),
    ("", XHops(1), &["203.0.113.9"], ""),
    // Forwarded from networks.
    ("10.0.0.1:1", F, &["for=203.0.113.9"], "203.0.113.9"),
    ("10.0.0.1:1", F, &["For=203.0.113.9;Proto=HTTPS;By=10.0.0.1"], "203.0.113.9"),
    ("10.0.0.1:1", F, &["proto=https;FOR=\"203.0.113.9:80\""], "203.0.113.9"),
    ("10.0.0.1:1", F, &["for=\"[2001:db8::9]:4711\""], "2001:db8::9"),
    ("10.0.0.1:1", F, &["for=\"[2001:db8::9]:_port\""], "2001:db8::9"),
    ("10.0.0.1:1", F, &["for=\"[::ffff:203.0.113.9]\""], "203.0.113.9"),
    ("10.0.0.1:1", F, &["for=[2001:db8::9]:80"], "2001:db8::9"),
    ("10.0.0.1:1", F, &["for=1.1.1.1, for=203.0.113.9 , for=10.0.0.2"], "203.0.113.9"),
    ("10.0.0.1:1", F, &["for=1.1.1.1", "for=203.0.113.9"], "203.0.113.9"),
    ("10.0.0.1:1", F, &["for=203.0.113.9,, ,;,for=10.0.0.2"], "10.0.0.2"),
    ("10.0.0.1:1", F, &["for=203.0.113.9,, ,for=10.0.0.2"], "203.0.113.9"),
    ("10.0.0.1:1", F, &["for=203.0.113.9;;host=\"a,for=1.1.1.1\""], "203.0.113.9"),
    ("10.0.0.1:1", F, &["for=203.0.113.9;host=\"\\\",for=1.1.1.1\""], "203.0.113.9"),
    ("10.0.0.1:1", F, &["for=\"1.1.1.1, for=203.0.113.9"], "203.0.113.9"),
    ("10.0.0.1:1", F, &["for=\"203\\.0.113.9\""], "203.0.113.9"),
    ("10.0.0.1:1", F, &["for=1.1.1.1, for=unknown"], "10.0.0.1"),
    ("10.0.0.1:1", F, &["for=1.1.1.1, for=_hidden, for=10.0.0.2"], "10.0.0.2"),
    ("10.0.0.1:1", F, &["for=1.1.1.1;for=203.0.113.9"], "10.0.0.1"),
    ("10.0.0.1:1", F, &["for=1.1.1.1, by=10.0.0.2"], "10.0.0.1"),
    ("10.0.0.1:1", F, &["for=1.1.1.1, for =203.0.113.9"], "10.0.0.1"),
    ("10.0.0.1:1", F, &["for=1.1.1.1, for=\"203.0.113.9\"x"], "10.0.0.1"),
    ("10.0.0.1:1", F, &["for=1.1.1.1, for="], "10.0.0.1"),
    ("10.0.0.1:1", F, &["for=1.1.1.1, 203.0.113.9"], "10.0.0.1"),
    ("203.0.113.8:1", F, &["for=1.1.1.1"], "203.0.113.8"),
    // Forwarded by hops.
    ("198.51.100.1:1", FHops(1), &["for=1.1.1.1, for=203.0.113.9"], "203.0.113.9"),
    ("198.51.100.1:1", FHops(2), &["for=1.1.1.1, for=203.0.113.9, for=198.51.100.2"], "203.0.113.9"),
    ("198.51.100.1:1", FHops(9), &["for=203.0.113.9"], "203.0.113.9"),
    // Fields of one address.
    ("10.0.0.1:1", Cf, &["203.0.113.9"], "203.0.113.9"),
    ("10.0.0.1:1", Cf, &["2001:db8::9"], "2001:db8::9"),
    ("10.0.0.1:1", Cf, &["::ffff:203.0.113.9"], "203.0.113.9"),
    ("203.0.113.8:1", Cf, &["1.1.1.1"], "203.0.113.8"),
    ("10.0.0.1:1", Cf, &[], "10.0.0.1"),
    ("10.0.0.1:1", Cf, &["1.1.1.1", "203.0.113.9"], "10.0.0.1"),
    ("10.0.0.1:1", Cf, &["1.1.1.1, 203.0.113.9"], "10.0.0.1"),
    ("10.0.0.1:1", Cf, &["unknown"], "10.0.0.1"),
    ("198.51.100.1:1", Real, &[" 203.0.113.9 "], "203.0.113.9"),
    ("", Real, &["203.0.113.9"], ""),
];

fn client_ip(front: Front) -> ClientIp {
    let networks =
        || TrustedProxies::networks(["10.0.0.0/8", "2001:db8:ffff::/48", "::ffff:172.16.0.0/108"]).unwrap();
    let (proxies, field) = match front {
        Direct => return ClientIp::new(),
        X => (networks(), ForwardedField::XForwardedFor),
        F => (networks(), ForwardedField::Forwarded),
        XHops(hops) => (TrustedProxies::hops(hops), ForwardedField::XForwardedFor),
        FHops(hops) => (TrustedProxies::hops(hops), ForwardedField::Forwarded),
        Cf => (networks(), ForwardedField::Single(HeaderName::from_static("cf-connecting-ip"))),
        Real => (TrustedProxies::hops(1), ForwardedField::Single(HeaderName::from_static("x-real-ip"))),
    };
    ClientIp::new().behind(proxies, field)
}

fn request(peer: &str, front: Front, lines: &[&str]) -> Request<()> {
    let field = match front {
        Direct | X | XHops(_) => "x-forwarded-for",
        F | FHops(_) => "forwarded",
        Cf => "cf-connecting-ip",
        Real => "x-real-ip",
    };
    let mut request = Request::get("/");
    for line in lines {
        request = request.header(field, *line);
    }
    if !peer.is_empty() {
        request = request.extension(PeerAddr(peer.parse().unwrap()));
    }
    request.body(()).unwrap()
}

fn found(extractor: &ClientIp, request: &Request<()>) -> Option<IpAddr> {
    extractor.address(&RequestHead::from(request)).ok()
}

#[test]
fn the_client_is_the_last_hop_that_is_not_trusted() {
    assert!(CASES.len() >= 60);
    for (peer, front, lines, client) in CASES {
        let client = (!client.is_empty()).then(|| client.parse().unwrap());
        let found = found(&client_ip(*front), &request(peer, *front, lines));
        assert_eq!(found, client, "peer {peer:?}, fields {lines:?}");
    }
}

#[test]
fn a_unix_socket_is_trusted_only_when_told_to() {
    let cases: [Case; 6] = [
        ("", X, &["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
        ("", F, &["for=1.1.1.1, for=203.0.113.9"], "203.0.113.9"),
        ("", XHops(1), &["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
        ("", Real, &["203.0.113.9"], "203.0.113.9"),
        ("", X, &["unknown"], ""),
        ("", X, &[], ""),
    ];
    for (peer, front, lines, client) in cases {
        let request = request(peer, front, lines);
        let trusting = client_ip(front).trust_unaddressed_peer(true);
        assert_eq!(found(&trusting, &request), client.parse().ok(), "fields {lines:?}");
        assert!(found(&client_ip(front), &request).is_none(), "fields {lines:?}");
    }
}

#[test]
fn trusting_unix_sockets_trusts_no_addresses() {
    let extractor = client_ip(X).trust_unaddressed_peer(true);
    let request = request("203.0.113.8:1", X, &["1.1.1.1"]);
    assert_eq!(found(&extractor, &request), Some("203.0.113.8".parse().unwrap()));
}

#[test]
fn fields_that_the_proxies_do_not_write_are_not_read() {
    let request = Request::get("/")
        .header("x-forwarded-for", "203.0.113.9")
        .header("forwarded", "for=1.1.1.1")
        .header("x-real-ip", "2.2.2.2")
        .extension(PeerAddr("10.0.0.1:1".parse().unwrap()))
        .body(())
        .unwrap();
    assert_eq!(found(&client_ip(X), &request), Some("203.0.113.9".parse().unwrap()));
    assert_eq!(found(&client_ip(F), &request), Some("1.1.1.1".parse().unwrap()));
    assert_eq!(found(&client_ip(Cf), &request), Some("10.0.0.1".parse().unwrap()));
}

#[test]
fn the_peer_comes_from_any_extension() {
    #[derive(Clone)]
    struct ConnectInfo(SocketAddr);
    #[derive(Clone)]
    struct MaybeTcp(Option<SocketAddr>);

    let address: SocketAddr = "203.0.113.9:1".parse().unwrap();
    let request =
        Request::get("/").extension(ConnectInfo(address)).extension(MaybeTcp(None)).body(()).unwrap();
    let of_server = ClientIp::new().peer(|info: &ConnectInfo| info.0);
    assert_eq!(found(&of_server, &request), Some(address.ip()));
    let unaddressed = ClientIp::new().peer(|info: &MaybeTcp| info.0);
    assert_eq!(found(&unaddressed, &request), None);
    let fixed = ClientIp::new().peer(|_: &MaybeTcp| Peer::Address([192, 0, 2, 1].into()));
    assert_eq!(found(&fixed, &request), Some([192, 0, 2, 1].into()));
}

#[test]
fn clients_of_one_network_share_a_key() {
    let key = |extractor: &ClientIp, peer: &str| {
        let request = request(peer, Direct, &[]);
        extractor.key(&RequestHead::from(&request), &KeyHasher::default()).unwrap()
    };
    let default = ClientIp::new();
    assert_eq!(key(&default, "[2001:db8::1]:1"), key(&default, "[2001:db8::ffff:0:0:1]:2"));
    assert_ne!(key(&default, "[2001:db8::1]:1"), key(&default, "[2001:db8:0:1::1]:1"));
    assert_ne!(key(&default, "192.0.2.1:1"), key(&default, "192.0.2.2:1"));
    assert_eq!(key(&default, "192.0.2.1:1"), key(&default, "[::ffff:192.0.2.1]:1"));
    assert_eq!(key(&default, "192.0.2.1:1"), KeyHasher::default().key(IpAddr::from([192, 0, 2, 1])));

    let wide = ClientIp::new().ipv6_prefix(48).ipv4_prefix(24);
    assert_eq!(key(&wide, "[2001:db8::1]:1"), key(&wide, "[2001:db8:0:1::1]:1"));
    assert_eq!(key(&wide, "192.0.2.1:1"), key(&wide, "192.0.2.2:1"));
    assert_ne!(key(&wide, "192.0.2.1:1"), key(&wide, "192.0.3.1:1"));
    let network = |extractor: &ClientIp, peer| {
        let request = request(peer, Direct, &[]);
        extractor.network(&RequestHead::from(&request)).unwrap()
    };
    assert_eq!(network(&wide, "192.0.2.1:1"), IpAddr::from([192, 0, 2, 0]));
    assert_eq!(network(&wide, "[2001:db8:0:1::1]:1"), "2001:db8::".parse::<IpAddr>().unwrap());
    for peer in ["192.0.2.1:1", "[2001:db8:0:1::1]:1", "[::ffff:192.0.2.1]:1"] {
        assert_eq!(key(&wide, peer), KeyHasher::default().key(network(&wide, peer)));
    }

    let all = ClientIp::new().ipv6_prefix(0).ipv4_prefix(0);
    assert_eq!(network(&all, "192.0.2.1:1"), IpAddr::from([0, 0, 0, 0]));
    assert_eq!(network(&all, "[2001:db8::1]:1"), "::".parse::<IpAddr>().unwrap());
    assert_ne!(key(&all, "192.0.2.1:1"), key(&all, "[2001:db8::1]:1"));

    let exact = ClientIp::new().ipv6_prefix(255).ipv4_prefix(255);
    assert_ne!(key(&exact, "[2001:db8::1]:1"), key(&exact, "[2001:db8::2]:1"));
    assert_ne!(key(&exact, "192.0.2.1:1"), key(&exact, "192.0.2.2:1"));
}

#[test]
fn networks_are_checked() {
    for text in ["", "10.0.0.0/33", "10.0.0", "2001:db8::/129", "example.com", "10.0.0.0/8,"] {
        let error = TrustedProxies::networks([text]).unwrap_err();
        assert_eq!(error.text(), text);
    }
    assert!(TrustedProxies::networks(["10.0.0.1", "::1", "10.1.2.3/8"]).is_ok());
}
