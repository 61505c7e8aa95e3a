//! The files in `configs/`.

use std::{fs, path::Path};

use ratemesh::{Config, config::limits_from_toml};

use super::Fleet;

/// The text of a file in `configs/`.
fn shipped(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("configs").join(file)).unwrap()
}

#[test]
fn the_three_nodes_that_are_shipped_know_each_other() {
    let fleet = Fleet::new("shipped");
    let read =
        |number| Config::from_toml(&shipped(&format!("node-{number}.toml")), "shipped", &fleet.dir).unwrap();
    let nodes = [1, 2, 3].map(read);
    for config in &nodes {
        for other in nodes.iter().filter(|other| other.node() != config.node()) {
            let peer = config.peers().iter().find(|peer| peer.node() == other.node()).unwrap();
            assert_eq!(peer.address(), other.listen().to_string());
        }
        assert_eq!(config.peers().len(), 2);
        assert_eq!(config.limits(), nodes[0].limits());
        assert_eq!(config.cluster(), nodes[0].cluster());
    }
}

#[test]
fn what_the_annotated_file_calls_a_default_is_one() {
    let fleet = Fleet::new("annotated");
    let text = shipped("annotated.toml");
    let whole = format!("{:?}", fleet.read(&text).unwrap());
    let defaults: Vec<_> = text.lines().filter(|line| line.ends_with("# default")).collect();
    assert_eq!(defaults.len(), 21);
    for line in defaults {
        let without = text.replacen(&format!("\n{line}\n"), "\n", 1);
        assert_ne!(without, text);
        assert_eq!(format!("{:?}", fleet.read(&without).unwrap()), whole, "{line}");
    }
}

#[test]
fn the_annotated_file_explains_every_key() {
    let text = shipped("annotated.toml");
    // An unknown key is refused with the list of the known ones, so the list asked for here is the whole of them.
    let known = |table: &str| {
        let refusal = limits_from_toml(&format!("{table}\nzzz = 1\n"), "ask").unwrap_err().to_string();
        let (_, known) = refusal.split_once("Known here: ").expect(&refusal);
        known.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    for table in known("") {
        let header =
            if ["peer", "limit"].contains(&&*table) { format!("[[{table}]]") } else { format!("[{table}]") };
        let sections: Vec<_> = text.split(&format!("\n{header}\n")).skip(1).collect();
        assert!(!sections.is_empty(), "{header} is not in the annotated file");
        for key in known(&header) {
            let lines = sections.iter().flat_map(|section| section.split("\n[").next().unwrap_or("").lines());
            let explained = lines
                .map(|line| line.trim_start_matches("# "))
                .any(|line| line.starts_with(&format!("{key} = ")));
            assert!(explained, "{header} {key} is not in the annotated file");
        }
    }
}

#[test]
fn the_example_in_the_readme_is_a_configuration() {
    let readme = include_str!("../../README.md");
    let (_, rest) = readme.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let limits = limits_from_toml(text, "README.md").unwrap();
    assert_eq!(limits[0].name(), "api");
}
