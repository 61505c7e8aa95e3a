//! Configurations from files and from code: what is taken, and what a refusal says.
#![cfg(feature = "net")]

mod refusals;
mod shipped;

use std::{
    fs,
    net::UdpSocket,
    path::{Path, PathBuf},
    time::Duration,
};

use ratemesh::{
    Algorithm, Config, ConfigBuilder, ConfigError, Digest, Limit, NodeId, OnFull, OnPartition, Override,
    Quota,
    config::{DEFAULT_CLUSTER, GossipKnobs, TlsIdentity, limits_from_toml},
};

/// A directory of this test's own with the certificates of node-1 to node-3, removed when dropped.
struct Fleet {
    dir: PathBuf,
}

impl Fleet {
    fn new(test: &str) -> Self {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("config-{test}-{}", std::process::id()));
        fs::create_dir_all(dir.join("certs")).unwrap();
        for node in ["node-1", "node-2", "node-3"] {
            let made = rcgen::generate_simple_self_signed([node.to_owned()]).unwrap();
            fs::write(dir.join(format!("certs/{node}.pem")), made.cert.pem()).unwrap();
            fs::write(dir.join(format!("certs/{node}.key")), made.signing_key.serialize_pem()).unwrap();
            fs::write(dir.join("certs/ca.pem"), made.cert.pem()).unwrap();
        }
        Self { dir }
    }

    fn read(&self, text: &str) -> Result<Config, ConfigError> {
        Config::from_toml(text, "node-1.toml", &self.dir)
    }

    fn refusal(&self, text: &str) -> String {
        self.read(text).map(|config| format!("{config:?}")).expect_err(text).to_string()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn identity() -> TlsIdentity {
    let made = rcgen::generate_simple_self_signed(["node-1".to_owned()]).unwrap();
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    TlsIdentity::from_pem(cert.as_bytes(), cert.as_bytes(), key.as_bytes()).unwrap()
}

fn node(number: usize) -> NodeId {
    NodeId::new(&format!("node-{number}")).unwrap()
}

fn limit(name: &str) -> Limit {
    Limit::token_bucket(name, Quota::per_second(1_000)).build().unwrap()
}

fn builder() -> ConfigBuilder {
    Config::builder(node(1))
        .listen("127.0.0.1:7101".parse().unwrap())
        .secret(*b"sixteen bytes ok")
        .tls(identity())
        .peer(node(2), "127.0.0.1:7102")
        .limit(limit("api"))
}

/// The whole of a file that will do, one key a line, so that tests can change or drop a line.
const WHOLE: &str = r#"
[node]
name = "node-1"
listen = "127.0.0.1:7101"
cluster = "shop.eu"

[tls]
ca = "certs/ca.pem"
cert = "certs/node-1.pem"
key = "certs/node-1.key"

[keys]
secret = "hunter2-hunter2-hunter2"
digest = "siphash128"

[[peer]]
name = "node-2"
address = "127.0.0.1:7102"

[[peer]]
name = "node-3"
address = "node-3.example.com:7103"

[gossip]
heartbeat = "50ms"
suspect_after = "900ms"
sync_timeout = "3s"
repair_interval = "1m"
fanout = 2
min_interval = "5ms"

[[limit]]
name = "api"
rate = "1000/s"
burst = 50
on_partition = "share"
max_keys = 7
on_full = "closed"

[[limit]]
name = "reports"
algorithm = "fixed_window"
quota = 20
period = "1h"
"#;

fn without(line: &str) -> String {
    assert!(WHOLE.contains(line), "{line}");
    WHOLE.replacen(line, "", 1)
}

fn with(line: &str, instead: &str) -> String {
    assert!(WHOLE.contains(line), "{line}");
    WHOLE.replacen(line, instead, 1)
}

#[test]
fn a_whole_file_is_taken_as_written() {
    let config = Fleet::new("whole").read(WHOLE).unwrap();
    assert_eq!(config.node(), &node(1));
    assert_eq!(config.cluster(), "shop.eu");
    assert_eq!(config.listen().port(), 7101);
    assert_eq!(config.digest(), Digest::SipHash128);
    let peers: Vec<_> = config.peers().iter().map(|peer| (peer.node().as_str(), peer.address())).collect();
    assert_eq!(peers, [("node-2", "127.0.0.1:7102"), ("node-3", "node-3.example.com:7103")]);
    let gossip = config.gossip();
    assert_eq!(gossip.heartbeat(), Duration::from_millis(50));
    assert_eq!(gossip.suspect_after(), Duration::from_millis(900));
    assert_eq!(gossip.sync_timeout(), Duration::from_secs(3));
    assert_eq!(gossip.repair_interval(), Duration::from_secs(60));
    assert_eq!(gossip.fanout(), 2);
    assert_eq!(gossip.min_interval(), Some(Duration::from_millis(5)));
    let [api, reports] = config.limits() else { panic!("{config:?}") };
    assert_eq!(api.quota(), Quota::per_second(1_000));
    assert_eq!(api.algorithm(), Algorithm::TokenBucket { burst: 50 });
    assert_eq!((api.on_partition(), api.on_full(), api.max_keys()), (OnPartition::Share, OnFull::Closed, 7));
    assert_eq!(reports.algorithm(), Algorithm::FixedWindow);
    assert_eq!(reports.quota(), Quota::per_hour(20));
}

#[test]
fn what_is_left_out_takes_its_default() {
    let fleet = Fleet::new("defaults");
    let text = r#"
        [node]
        name = "node-1"
        listen = "127.0.0.1:0"
        [tls]
        ca = "certs/ca.pem"
        cert = "certs/node-1.pem"
        key = "certs/node-1.key"
        [[limit]]
        name = "api"
        rate = "10/s"
    "#;
    let config = fleet.read(text).unwrap();
    assert_eq!(config.cluster(), DEFAULT_CLUSTER);
    assert_eq!(config.digest(), Digest::Xxh3);
    assert_eq!(config.gossip(), &GossipKnobs::default());
    assert_eq!(config.limits(), [Limit::token_bucket("api", Quota::per_second(10)).build().unwrap()]);
}

#[test]
fn a_rate_may_be_a_list_and_so_may_the_burst() {
    let limits = |text: &str| limits_from_toml(&format!("[[limit]]\nname = \"api\"\n{text}"), "bands");
    let read = limits("rate = [\"10/s\", \"1000/h\", \"10000/day\"]\nburst = [15, 500]\nqueue = 40").unwrap();
    let bands =
        Limit::token_bucket("api", Quota::per_second(10)).burst(15).and(Quota::per_hour(1_000)).burst(500);
    assert_eq!(read, [bands.and(Quota::per_day(10_000)).queue(40).build().unwrap()]);
    assert_eq!((read[0].largest_cost(), read[0].queue()), (15, 40));
    let read = limits("rate = [\"10/s\", \"1000/h\"]\nburst = 15").unwrap();
    let bands = Limit::token_bucket("api", Quota::per_second(10)).burst(15).and(Quota::per_hour(1_000));
    assert_eq!(read, [bands.build().unwrap()]);
    let read = limits("algorithm = \"fixed_window\"\nrate = [\"10/s\", \"1000/h\"]").unwrap();
    let bands = Limit::fixed_window("api", Quota::per_second(10)).and(Quota::per_hour(1_000));
    assert_eq!(read, [bands.build().unwrap()]);
    assert_eq!(limits("rate = \"10/s\"").unwrap(), limits("rate = [\"10/s\"]").unwrap());
    for (text, said) in [
        ("rate = []", "limit[0].rate (of \"api\"): is an empty list; give one rate at least"),
        ("rate = [\"10/s\", \"10\"]", "limit[0].rate (of \"api\"): \"10\" is not a rate"),
        (
            "rate = [\"10/s\", \"0/h\"]",
            "limit[0].rate (of \"api\") = 0 will not do; it takes 1 to 2^40 units",
        ),
        ("rate = [\"10/s\", 10]", "limit[0].rate[1] is integer 10; it takes a rate, such as \"50/s\""),
        ("rate = 10", "limit[0].rate is integer 10; it takes a rate, such as \"50/s\""),
        ("quota = 10\nperiod = 60", "limit[0].period is integer 60; it takes a duration, such as \"15m\""),
        (
            "rate = \"10/s\"\noverrides = { a = { rate = 5 } }",
            "limit[0].overrides.a.rate is integer 5; it takes a rate, such as \"50/s\"",
        ),
        ("rate = \"10/s\"\nburst = [1, 2]", "limit[0].burst (of \"api\"): has 2 entries, for 1 rates"),
        ("rate = [\"10/s\", \"10/h\"]\nburst = [1, 0]", "limit[0].burst (of \"api\") = 0 will not do"),
        ("rate = \"10/s\"\nburst = [-1]", "limit[0].burst (of \"api\") = -1 will not do"),
        (
            "rate = \"10/s\"\nqueue = -1",
            "limit[0].queue (of \"api\") = -1 will not do; it takes a whole number",
        ),
        (
            "rate = [\"1/s\", \"2/s\", \"3/s\", \"4/s\", \"5/s\", \"6/s\", \"7/s\", \"8/s\", \"9/s\"]",
            "limit[0].rate (of \"api\") = 9 will not do; it takes at most 8 quotas",
        ),
    ] {
        let error = limits(text).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
    let each = "[[limit]]\nname = \"NAME\"\nrate = [\"10/s\", \"10/h\", \"10/day\"]\n";
    let many: String = (0..90).map(|number| each.replace("NAME", &number.to_string())).collect();
    let error = limits_from_toml(&many, "many").unwrap_err().to_string();
    assert!(error.contains("270 quotas in all limits; at most 256"), "{error}");
}

#[test]
fn a_secret_can_come_from_a_file() {
    let fleet = Fleet::new("secret-file");
    let line = "secret = \"hunter2-hunter2-hunter2\"";
    fs::write(fleet.dir.join("secret"), "hunter2-hunter2-hunter2\n").unwrap();
    assert!(fleet.read(&with(line, "secret_file = \"secret\"")).is_ok());
    fs::write(fleet.dir.join("secret"), "hunter2\n").unwrap();
    let refusal = fleet.refusal(&with(line, "secret_file = \"secret\""));
    assert!(refusal.contains("keys.secret: has 7 bytes"), "{refusal}");
    let refusal = fleet.refusal(&with(line, &format!("{line}\nsecret_file = \"secret\"")));
    assert!(refusal.contains(":14:1: keys.secret_file: stands beside secret"), "{refusal}");
}

#[test]
fn a_file_is_read_with_paths_from_its_own_directory() {
    let fleet = Fleet::new("from-file");
    let path = fleet.dir.join("node-1.toml");
    fs::write(&path, WHOLE).unwrap();
    assert_eq!(Config::from_file(&path).unwrap().node(), &node(1));

    let missing = fleet.dir.join("node-9.toml");
    let error = Config::from_file(&missing).unwrap_err();
    assert_eq!(error.source_name(), Some(missing.to_str().unwrap()));
    assert!(error.to_string().contains("cannot be read"), "{error}");
    assert!(std::error::Error::source(&error).is_some());

    fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert!(Config::from_file(&path).unwrap_err().to_string().contains("not UTF-8"));
    fs::write(&path, vec![b'#'; (4 << 20) + 1]).unwrap();
    assert!(Config::from_file(&path).unwrap_err().to_string().contains("larger than 4 MiB"));
}

#[test]
fn limits_can_be_read_alone_but_nothing_goes_unnoticed() {
    let limits = limits_from_toml(WHOLE, "limits.toml").unwrap();
    let names: Vec<_> = limits.iter().map(Limit::name).collect();
    assert_eq!(names, ["api", "reports"]);
    let alone = "[[limit]]\nname = \"a\"\nrate = \"1/s\"\n";
    assert_eq!(limits_from_toml(alone, "limits.toml").unwrap().len(), 1);

    let refused = |text: &str| limits_from_toml(text, "limits.toml").unwrap_err().to_string();
    assert!(refused("").contains("limits.toml: limit is missing; it takes at least one [[limit]]"));
    assert!(refused(&format!("{alone}{alone}")).contains("limits.toml:5:1: limit[1].name"));
    assert!(refused(&format!("{alone}[gossip]\nhartbeat = \"1s\"")).contains("did you mean heartbeat?"));
    let many: String = (0..257).map(|n| format!("[[limit]]\nname = \"{n}\"\nrate = \"1/s\"\n")).collect();
    assert!(refused(&many).contains("257 limits; at most 256"));
}

#[test]
fn code_passes_the_same_checks_as_a_file() {
    let config = builder().build().unwrap();
    assert_eq!((config.node(), config.peers().len(), config.limits().len()), (&node(1), 1, 1));

    let refused = |builder: ConfigBuilder| builder.build().map(|config| format!("{config:?}")).unwrap_err();
    let cases = [
        (builder().cluster(""), "node.cluster"),
        (builder().secret("short"), "keys.secret"),
        (builder().peer(node(1), "127.0.0.1:7109"), "peer[1].name"),
        (builder().peer(node(2), "127.0.0.1:7109"), "peer[1].name"),
        (builder().peer(node(3), "127.0.0.1:7102"), "peer[1].address"),
        (builder().heartbeat(Duration::from_secs(11)), "gossip.heartbeat"),
        (builder().suspect_after(Duration::from_millis(299)), "gossip.suspect_after"),
        (builder().sync_timeout(Duration::from_secs(61)), "gossip.sync_timeout"),
        (builder().repair_interval(Duration::from_millis(99)), "gossip.repair_interval"),
        (builder().min_interval(Duration::ZERO), "gossip.min_interval"),
        (builder().fanout(0), "gossip.fanout"),
        (builder().limit(limit("api")), "limit[1].name"),
        (Config::builder(node(1)), "node.listen"),
        (Config::builder(node(1)).listen("127.0.0.1:0".parse().unwrap()), "limit"),
        (Config::builder(node(1)).listen("127.0.0.1:0".parse().unwrap()).limit(limit("api")), "tls"),
        (Config::builder(node(1)).listen("127.0.0.1:0".parse().unwrap()).peer(node(2), "a:1"), "keys.secret"),
    ];
    for (builder, key) in cases {
        let error = refused(builder);
        assert_eq!(error.key(), key, "{error}");
        assert_eq!((error.source_name(), error.line()), (None, None));
        assert!(error.to_string().starts_with("configuration: "), "{error}");
    }
    let mut crowded = builder();
    for number in 3..=1_002 {
        crowded = crowded.peer(node(number), format!("10.0.{}.{}:7100", number / 250, number % 250));
    }
    assert!(refused(crowded).to_string().contains("1001 peers; at most 1000"));
}

#[test]
fn a_socket_that_is_bound_already_stands_for_the_address() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let bound = socket.local_addr().unwrap();
    assert_eq!(builder().socket(socket).build().unwrap().listen(), bound);
}

#[test]
fn addresses_of_peers_are_addresses_or_names_with_a_port() {
    let built = |address: &str| builder().peer(node(3), address).build();
    for good in
        ["10.0.0.7:1", "[2001:db8::7]:7100", "node-3:7100", "node_3.svc.cluster.local.:7100", "a.b.c:65535"]
    {
        assert!(built(good).is_ok(), "{good} was refused");
    }
    let bad = [
        "",
        ":",
        "host",
        "host:",
        ":7100",
        "host:0",
        "host:65536",
        "10.0.0.7:0",
        "0.0.0.0:7100",
        "[::]:7100",
        "2001:db8::7",
        "a..b:1",
        "10.0.0.300:7100",
        "10.0.0:7100",
        "a b:7100",
        "quic://a:7100",
        &"a".repeat(300),
    ];
    for bad in bad {
        assert!(built(bad).is_err(), "{bad} was taken");
    }
}

#[test]
fn penalties_and_lists_come_out_as_they_were_written() {
    let text = "
        [[limit]]
        name = \"logins\"
        rate = \"100/day\"
        on_exceed = { ban = \"24h\" }
        count_denied = true
        shadow = true
        allow = [\"10.0.0.0/8\", \"key:internal-batch\"]
        deny = [\"10.1.0.0/16\"]
    ";
    let read = limits_from_toml(text, "text").unwrap();
    let built = Limit::token_bucket("logins", Quota::per_day(100))
        .ban_on_exceed(Duration::from_secs(86_400))
        .count_denied(true)
        .shadow(true)
        .allow("10.0.0.0/8")
        .allow("key:internal-batch")
        .deny("10.1.0.0/16")
        .build()
        .unwrap();
    assert_eq!(read, [built]);
    assert!(read[0].is_shadow() && read[0].counts_denied());
    assert_eq!(read[0].ban_on_exceed(), Some(Duration::from_secs(86_400)));
}

#[test]
fn keys_have_quotas_of_their_own() {
    let text = "[[limit]]
        name = \"api\"
        rate = \"10/min\"
        overrides = { acme = \"50/s\", \"key with a dot.\" = 20, batch = { rate = \"100/h\", burst = 7 } }
        [[limit]]
        name = \"exports\"
        algorithm = \"concurrency\"
        permits = 2
        [limit.overrides]
        acme = 5";
    let limits = limits_from_toml(text, "text").unwrap();
    let api = Limit::token_bucket("api", Quota::per_minute(10))
        .override_key("acme", Override::quota(Quota::per_second(50)))
        .override_key("batch", Override::Quota { quota: Quota::per_hour(100), burst: 7 })
        .override_key("key with a dot.", Override::quota(Quota::per_minute(20)));
    let exports = Limit::concurrency("exports", 2).override_key("acme", Override::quota(Quota::at_a_time(5)));
    assert_eq!(limits, [api.build().unwrap(), exports.build().unwrap()]);
}
