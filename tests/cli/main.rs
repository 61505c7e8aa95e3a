//! The command, and the scenarios that come with it.

use std::{
    fs,
    process::{Command, Output},
};

use ratemesh::{cli::scenario_from_toml, sim::Summary};

const EXAMPLES: &str = "examples/scenarios";

fn run(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ratemesh")).args(line.split_whitespace()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_examples_keep_what_they_promise() {
    let mut found = 0;
    for file in fs::read_dir(EXAMPLES).unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let scenario = scenario_from_toml(&text, &path.display().to_string()).unwrap();
        let summary = Summary::of(&scenario, 1..=2).unwrap();
        assert_eq!(summary.misses(), [], "{}", path.display());
        found += 1;
    }
    assert!(found >= 4);
}

#[test]
fn a_seed_replays_its_run() {
    let line = "simulate cold --nodes 3 --seed 7";
    let (first, again) = (run(line), run(line));
    assert!(stdout(&first).contains("trace "), "{}", stdout(&first));
    assert_eq!(stdout(&first), stdout(&again));
    assert_ne!(stdout(&first), stdout(&run("simulate cold --nodes 3 --seed 8")));
}

#[test]
fn json_has_the_figures_the_targets_and_the_verdict() {
    let output = run("simulate cold --nodes 3,8 --seeds 2 --json");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names = [
        "excess_mean",
        "excess_max",
        "admitted_ratio",
        "worst_second_ratio",
        "false_denials",
        "messages_per_node_second",
        "bytes_per_node_second",
        "spread_p50_ms",
        "spread_p99_ms",
    ];
    for (object, nodes) in all.as_array().unwrap().iter().zip([3, 8]) {
        assert_eq!(
            (&object["scenario"], &object["nodes"], &object["seeds"]),
            (&"cold".into(), &nodes.into(), &2.into())
        );
        names.iter().for_each(|name| assert!(object[name].is_number(), "{name} in {object}"));
        assert!(
            object["passed"].is_boolean() && object["targets"]["first_second_ratio"]["least"].is_number()
        );
    }
}

#[test]
fn check_tells_by_its_exit_code_whether_targets_are_kept() {
    let dir = tempdir("check");
    let light = fs::read_to_string(format!("{EXAMPLES}/light.toml")).unwrap();
    let path = dir.join("strict.toml");
    fs::write(&path, light.replace("false_denials = 0", "messages = 1")).unwrap();
    let strict = run(&format!("simulate {} --seeds 1 --check", path.display()));
    assert_eq!(strict.status.code(), Some(1));
    assert!(
        stdout(&strict).contains("wanted at most 1") && stdout(&strict).contains("--seed 1"),
        "{}",
        stdout(&strict)
    );
    let kept = run("simulate examples/scenarios/light.toml --seeds 1 --check");
    assert_eq!(kept.status.code(), Some(0), "{}", stdout(&kept));
}

#[test]
fn limits_of_a_configuration_take_the_place_of_the_scenarios() {
    let output = run("simulate cold --nodes 3 --seeds 1 --limits configs/annotated.toml --json");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all[0]["targets"], serde_json::json!({}));
}

#[test]
fn a_picture_names_what_it_shows() {
    let path = tempdir("plot").join("out.svg");
    let output = run(&format!("simulate crash --nodes 3 --seed 1 --plot {}", path.display()));
    assert!(output.status.success(), "{}", stderr(&output));
    let svg = fs::read_to_string(path).unwrap();
    for text in [
        "crash: what 3 nodes admitted",
        "the limit, 1000/s",
        "node 2",
        "crash 2",
        "restart 2",
        "units admitted per second",
    ] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_what_would_do() {
    for (line, reason) in [
        ("simulate stedy", "did you mean steady?"),
        ("simulate missing.toml", "missing.toml cannot be read"),
        ("simulate", "--list"),
    ] {
        let output = run(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(stderr(&output).contains(reason), "{line}: {}", stderr(&output));
    }
    assert!(stdout(&run("simulate --list")).contains("rolling-restart"));
    assert!(stdout(&run("--help")).contains("--seed N"));
}

#[test]
fn errors_in_a_file_name_the_line_the_key_and_what_would_do() {
    let text = fs::read_to_string(format!("{EXAMPLES}/partition.toml")).unwrap();
    for (from, to, line, parts) in [
        ("nodes = 3", "nodes = 0", 6, &["nodes = 0 will not do", "1 to 1000"][..]),
        ("length = \"15s\"", "length = \"15\"", 7, &["length", "unit of time is missing"]),
        ("loss = 0.01", "loss = 2", 13, &["network.loss = 2", "0 to 0.99"]),
        ("loss = 0.01", "lost = 0.01", 13, &["network.lost", "did you mean loss?"]),
        ("burst = 100", "burst = -1", 23, &["limit[0].burst (of \"api\") = -1", "1 or more"]),
        ("burst = 100", "shadow = true", 23, &["limit[0].shadow", "leave it out"]),
        ("burst = 100", "count_denied = true", 23, &["limit[0].count_denied", "not simulated"]),
        ("burst = 100", "on_exceed = { ban = \"1h\" }", 23, &["limit[0].on_exceed", "not simulated"]),
        ("{ rate = 3000 }", "{ rate = \"fast\" }", 29, &["step[0].offer_all.rate", "a number"]),
        ("{ rate = 3000 }", "{ speed = 3 }", 29, &["step[0].offer_all.speed", "rate"]),
        ("at = \"4s\"", "at = \"1h\"", 37, &["step[2].at", "within the scenario's length"]),
        ("[[0], [1, 2]]", "[[0], [1, 3]]", 38, &["step[2].partition[1][1] = 3", "0 to 2"]),
        ("[[0], [1, 2]]", "[[0, 1, 2]]", 38, &["step[2].partition", "two groups"]),
        ("heal = true", "heal = false", 42, &["step[3].heal = false", "true"]),
        ("heal = true", "", 40, &["step[3]", "does nothing", "restart"]),
        ("heal = true", "heal = true\ncrash = 1", 40, &["step[3]", "more than one"]),
    ] {
        assert!(text.contains(from), "{from}");
        let message = scenario_from_toml(&text.replacen(from, to, 1), "file.toml").unwrap_err().to_string();
        assert!(message.starts_with(&format!("file.toml:{line}:")), "{to}: {message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{to}: {message}"));
    }
}

fn tempdir(name: &str) -> std::path::PathBuf {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&dir).unwrap();
    dir
}
