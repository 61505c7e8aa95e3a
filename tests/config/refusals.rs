//! What a refusal says, and what it must not say.

use proptest::prelude::*;
use ratemesh::{Config, config::limits_from_toml};

use super::{Fleet, WHOLE, builder, with, without};

#[test]
fn a_refusal_names_file_line_key_value_and_what_would_do() {
    let fleet = Fleet::new("refusals");
    let cases: &[(String, &[&str])] = &[
        (without("name = \"node-1\""), &["node-1.toml:2:2: node.name is missing", "certificate"]),
        (with("\"node-1\"", "\"node_1\""), &["toml:3:1: node.name: \"node_1\" cannot name a node"]),
        (
            with("127.0.0.1:7101", "localhost:7101"),
            &[":4:1: node.listen = \"localhost:7101\"", "0.0.0.0:7100"],
        ),
        (with("shop.eu", "my shop"), &[":5:1: node.cluster = \"my shop\"", "1 to 64"]),
        (without("[tls]"), &["node.ca is not a known key"]),
        (without("cert = \"certs/node-1.pem\""), &[":7:2: tls.cert is missing", "PEM"]),
        (
            with("certs/ca.pem", "certs/no.pem"),
            &[":8:1: tls.ca cannot be read from", "certs/no.pem: No such file"],
        ),
        (with("certs/node-1.key", "certs/ca.pem"), &[":10:1: tls.key: holds no private key"]),
        (with("siphash128", "siphash"), &["keys.digest will not do", "did you mean \"siphash128\""]),
        (
            with("hunter2-hunter2-hunter2", "hunter2"),
            &[":13:1: keys.secret: has 7 bytes; it takes 16 to 1024"],
        ),
        (without("secret = \"hunter2-hunter2-hunter2\""), &[":12:2: keys.secret is missing"]),
        (with("\"node-3\"", "\"node-1\""), &[":21:1: peer[1].name (of \"node-1\"): is this node's own name"]),
        (with("\"node-3\"", "\"node-2\""), &[":21:1: peer[1].name (of \"node-2\"): is the name of peer[0]"]),
        (with("node-3.example.com", "127.0.0.300"), &[":22:1: peer[1].address (of \"node-3\")", "host:port"]),
        (with("127.0.0.1:7102", "127.0.0.1:7101"), &[":18:1: peer[0].address", "the address of node-1, too"]),
        (without("address = \"127.0.0.1:7102\""), &[":16:1: peer[0].address (of \"node-2\") is missing"]),
        (with("\"50ms\"", "\"50\""), &[":25:1: gossip.heartbeat: \"50\" is not a duration", "unit"]),
        (with("\"50ms\"", "\"5ms\""), &["gossip.heartbeat = \"5ms\" will not do; it takes 10ms to 10s"]),
        (
            with("\"900ms\"", "\"100ms\""),
            &["gossip.suspect_after = \"100ms\"", "150ms to 10m (from three heartbeats on)"],
        ),
        (with("\"3s\"", "\"2m\""), &["gossip.sync_timeout = \"2m\"", "0s to 1m"]),
        (with("\"1m\"", "\"1d\""), &["gossip.repair_interval = \"1d\"", "50ms to 1h"]),
        (
            with("\"5ms\"", "\"60ms\""),
            &["gossip.min_interval = \"60ms\"", "1ms to 50ms (up to one heartbeat)"],
        ),
        (with("fanout = 2", "fanout = 17"), &["gossip.fanout = 17", "1 to 16 peers"]),
        (with("fanout = 2", "fanout = -1"), &["gossip.fanout = -1", "1 to 16 peers"]),
        (
            with("fanout = 2", "fanout = \"2\""),
            &[":29:10: gossip.fanout is string \"2\"; it takes a whole number"],
        ),
        (without("rate = \"1000/s\""), &[":32:1: limit[0].rate (of \"api\") is missing", "1000/s"]),
        (with("\"1000/s\"", "\"1000\""), &[":34:1: limit[0].rate (of \"api\"): \"1000\" is not a rate"]),
        (with("\"1000/s\"", "\"0/s\""), &[":34:1: limit[0].rate (of \"api\") = 0", "1 to 2^40 units"]),
        (with("burst = 50", "burst = 0"), &[":35:1: limit[0].burst (of \"api\") = 0", "1 to 2^40 units"]),
        (
            with("burst = 50", "on_exceed = { ban = \"500d\" }"),
            &["limit[0].on_exceed.ban (of \"api\")", "at most 400 days"],
        ),
        (
            with("burst = 50", "on_exceed = { ban = \"soon\" }"),
            &["limit[0].on_exceed.ban (of \"api\"): \"soon\" is not a duration"],
        ),
        (
            with("burst = 50", "on_exceed = {}"),
            &[":35:1: limit[0].on_exceed.ban (of \"api\") is missing", "24h"],
        ),
        (
            with("burst = 50", "on_exceed = { bann = \"1h\" }"),
            &["limit[0].on_exceed.bann is not a known key; did you mean ban?"],
        ),
        (
            with("burst = 50", "on_exceed = \"1h\""),
            &["limit[0].on_exceed is string \"1h\"; it takes what a refusal entails"],
        ),
        (
            with("burst = 50", "shadow = \"yes\""),
            &["limit[0].shadow is string \"yes\"; it takes true or false"],
        ),
        (
            with("burst = 50", "count_denied = 1"),
            &["limit[0].count_denied is integer 1; it takes true or false"],
        ),
        (
            with("burst = 50", "allow = \"10.0.0.0/8\""),
            &["limit[0].allow is string \"10.0.0.0/8\"; it takes a list"],
        ),
        (
            with("burst = 50", "deny = [\"10.0.0.0/8\", \"10.0.0.1/8\"]"),
            &[":35:1: limit[0].deny (of \"api\") = \"10.0.0.1/8\"", "10.0.0.0/8", "key:"],
        ),
        (
            with("burst = 50", "overrides = { a = \"5/x\" }"),
            &["limit[0].overrides.a.rate (of \"api\")", "5/x"],
        ),
        (
            with("burst = 50", "overrides = { a = 0 }"),
            &["limit[0].overrides (of \"api\") = \"a\" with a quota of 0", "1 to 2^40 units"],
        ),
        (
            with("burst = 50", "overrides = { a = { burst = 5 } }"),
            &["limit[0].overrides.a.rate (of \"api\") is missing", "50/s"],
        ),
        (
            with("burst = 50", "overrides = { a = { rate = \"5/s\", quota = 5 } }"),
            &["limit[0].overrides.a.quota (of \"api\"): stands beside rate"],
        ),
        (with("burst = 50", "overrides = { a = { rat = \"5/s\" } }"), &["limit[0].overrides.a.rat", "rate"]),
        (
            with("burst = 50", "overrides = { a = true }"),
            &["limit[0].overrides.a is boolean", "a rate such as"],
        ),
        (with("burst = 50", "allow = [\"alice\"]"), &["limit[0].allow (of \"api\") = \"alice\"", "key:"]),
        (
            with("burst = 50", "brust = 50"),
            &[":35:1: limit[0].brust is not a known key; did you mean burst?"],
        ),
        (
            with("\"share\"", "\"shared\""),
            &["limit[0].on_partition (of \"api\") = \"shared\"", "did you mean \"share\""],
        ),
        (with("max_keys = 7", "max_keys = 0"), &["limit[0].max_keys (of \"api\") = 0"]),
        (
            with("max_keys = 7", "max_keys = 7.5"),
            &["limit[0].max_keys is floating point 7.5; it takes a whole number"],
        ),
        (
            with("\"closed\"", "\"full\""),
            &["limit[0].on_full (of \"api\") = \"full\"", "\"shared_bucket\", \"open\""],
        ),
        (with("\"reports\"", "\"api\""), &[":41:1: limit[1].name: \"api\" is the name of an earlier limit"]),
        (with("\"reports\"", "\"a b\""), &[":41:1: limit[1].name (of \"a b\") = \"a b\""]),
        (
            with("fixed_window", "window"),
            &[
                "limit[1].algorithm",
                "\"token_bucket\", \"leaky_bucket\", \"fixed_window\", \"sliding_window\"",
            ],
        ),
        (without("period = \"1h\""), &["limit[1].period (of \"reports\") is missing"]),
        (without("quota = 20"), &["limit[1].quota (of \"reports\") is missing"]),
        (
            with("quota = 20", "quota = 20\nrate = \"1/s\""),
            &["limit[1].rate", "stands beside quota or period"],
        ),
        (
            with("quota = 20", "quota = 20\nburst = 3"),
            &["limit[1].burst (of \"reports\") = 3", "only a token bucket has a burst"],
        ),
        (with("[gossip]", "[gossip"), &["node-1.toml:24:8: not TOML"]),
        (with("[gossip]", "[gosip]"), &[":24:2: gosip is not a known key; did you mean gossip?", "limit"]),
        (with("[[limit]]", "[limit]"), &["node-1.toml:40:3: not TOML: duplicate key"]),
        (
            "[limit]\nname = \"api\"".to_owned(),
            &["toml:1:1: limit is map; it takes tables, each under a header [[limit]]"],
        ),
    ];
    for (text, parts) in cases {
        let refusal = fleet.refusal(text);
        for part in *parts {
            assert!(refusal.contains(part), "{refusal}\n  lacks {part}");
        }
        assert!(!refusal.contains("hunter2-"), "{refusal}");
    }
}

#[test]
fn secrets_stay_out_of_errors_and_debug_output() {
    let fleet = Fleet::new("secrets");
    let line = "secret = \"hunter2-hunter2-hunter2\"";
    let blunders = [
        "secret = hunter2-hunter2",
        "secret = 'hunter2-hunter2",
        "secret = \"hunter2\\q\"",
        "secret = [\"hunter2-hunter2\"]",
        "secret = { hunter2 = 1 }",
        "secret = 'hunter2-hunter2' 'hunter2'",
        "digest = \"hunter2-hunter2\"",
        "secret = \"hunter2\"",
        "secret_file = \"hunter2-hunter2\"",
        "secret = \"hunter2-hunter2\"\nsecret = \"hunter2\"",
        "secert = \"hunter2-hunter2\"",
        "secret.x = \"hunter2-hunter2\"",
    ];
    for blunder in blunders {
        let text = with(line, blunder).replace("digest = \"siphash128\"", "");
        let error = fleet.read(&text).expect_err(&text);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        assert!(error.line().is_some(), "{error}");
    }
    for whole in [
        "keys = \"hunter2-hunter2\"",
        "[[keys]]\nsecret = \"hunter2-hunter2\"",
        "keys = [\"hunter2-hunter2\"]",
    ] {
        let error = fleet.read(whole).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    let number = fleet.refusal(&with(line, "secret = 1234567890"));
    assert!(number.contains("keys.secret has the wrong type; it takes a string"), "{number}");
    let config = fleet.read(WHOLE).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    let shown = format!("{:?}", builder().secret("hunter2-hunter2"));
    assert!(!shown.contains("hunter2"));
}

proptest! {
    #[test]
    fn garbage_is_refused_and_never_panics(text in "\\PC{0,200}") {
        let _ = Config::from_toml(&text, "garbage", "/nonexistent");
        let _ = limits_from_toml(&text, "garbage");
    }

    #[test]
    fn a_damaged_file_never_panics_and_keeps_the_secret(at in 0..WHOLE.len(), cut in 0_usize..12, put in "[\\[\\]\"'=.a-z0-9\n ]{0,6}") {
        let mut text = WHOLE.to_owned();
        text.replace_range(at..(at + cut).min(WHOLE.len()), &put);
        if let Err(error) = Config::from_toml(&text, "damaged", "/nonexistent") {
            prop_assert!(!format!("{error} {error:?}").contains("hunter2-h"), "{}", error);
        }
    }
}
