//! Holds the shape of the crate: who may import whom, where time is read, and how long files and functions are.
//!
//! Direction is inward only. A module may import its own layer and the layers before it; the shell's modules
//! each have a row of their own. A new top-level module must be given its place here before it builds in CI.

mod source;

use source::{Source, Token, sources};

/// Lines of a file, tests included.
const MAX_FILE_LINES: usize = 700;
/// Lines of a function outside tests, from `fn` to its closing brace.
const MAX_FUNCTION_LINES: usize = 90;

/// The core, innermost layer first.
const CORE: [&[&str]; 7] = [
    &["time", "node", "key"],
    &["algorithm"],
    &["limit", "counter", "decision", "error", "lists", "notice"],
    &["table", "bands"],
    &["ledger"],
    &["gossip"],
    &["sim"],
];

/// How many layers of the core are its vocabulary, which everything may import.
const VOCABULARY: usize = 3;

/// The shell: each module, how many layers of the core it may import, and which modules of the shell.
const SHELL: [(&str, usize, &[&str]); 12] = [
    ("cli", 7, &["config"]),
    ("clock", VOCABULARY, &[]),
    ("config", VOCABULARY, &[]),
    ("permit", 4, &["clock"]),
    ("acquire", 4, &["clock", "permit"]),
    ("handle", 4, &["acquire", "clock", "permit"]),
    ("limiter", 4, &["acquire", "clock", "handle", "permit"]),
    ("together", 4, &["limiter", "permit"]),
    ("http", VOCABULARY, &["limiter", "together"]),
    ("metrics", 6, &[]),
    // A mesh starts the driver, and the driver tells the mesh: the two may know each other.
    ("mesh", 6, &["clock", "config", "limiter", "permit", "together", "net"]),
    ("net", 6, &["clock", "config", "limiter", "mesh"]),
];

/// Files that may import everything (`lib`), or are a crate of their own that has only the public items (`bin`).
const OUTSIDE: [&str; 2] = ["lib", "bin"];

/// Types that the core does not name: it is handed time, and does no I/O.
const NOT_IN_CORE: [&str; 5] = ["Instant", "SystemTime", "UdpSocket", "TcpStream", "TcpListener"];
/// Crates that the core does not name.
const CRATES_NOT_IN_CORE: [&str; 7] = ["tokio", "quinn", "rustls", "tracing", "rand", "getrandom", "rustix"];

#[test]
fn imports_point_inward() {
    report(sources("src").iter().flat_map(import_faults));
}

#[test]
fn the_core_is_handed_time_and_does_no_io() {
    report(sources("src").iter().filter(|file| layer(&file.module).is_some()).flat_map(core_faults));
}

#[test]
fn only_clock_rs_reads_the_clock() {
    report(sources("src").iter().filter(|file| file.module != "clock").flat_map(clock_faults));
}

#[test]
fn files_and_functions_are_short() {
    let all = ["src", "tests", "examples", "benches"].into_iter().flat_map(sources);
    report(all.flat_map(|file| size_faults(&file)));
}

fn report(faults: impl Iterator<Item = String>) {
    let faults: Vec<_> = faults.collect();
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// The module's layer in the core.
fn layer(module: &str) -> Option<usize> {
    CORE.iter().position(|layer| layer.contains(&module))
}

/// Whether `from` may import `to`; `None` where `from` has no place in the tables.
fn may_import(from: &str, to: &str) -> Option<bool> {
    if from == to || OUTSIDE.contains(&from) {
        return Some(true);
    }
    if let Some(own) = layer(from) {
        return Some(layer(to).is_some_and(|other| other <= own));
    }
    let (_, layers, shell) = SHELL.iter().find(|(module, ..)| *module == from)?;
    Some(layer(to).is_some_and(|other| other < *layers) || shell.contains(&to))
}

fn import_faults(file: &Source) -> Vec<String> {
    if OUTSIDE.contains(&file.module.as_str()) {
        return Vec::new();
    }
    let Some(_) = may_import(&file.module, "time") else {
        return vec![format!("{}: has no place in the tables of tests/layering; give it one", file.path)];
    };
    let known = |name: &str| layer(name).is_some() || SHELL.iter().any(|(module, ..)| *module == name);
    let fault = |(name, line): &(String, usize)| {
        let (path, from) = (&file.path, &file.module);
        if !known(name) {
            Some(format!("{path}:{line}: names `crate::{name}`; name it by its module"))
        } else if may_import(from, name) == Some(false) {
            Some(format!("{path}:{line}: `{from}` may not import `{name}`"))
        } else {
            None
        }
    };
    file.imports().iter().filter_map(fault).collect()
}

fn core_faults(file: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    for window in file.tokens.windows(2) {
        let [token, next] = window else { continue };
        let name = token.text.as_str();
        if NOT_IN_CORE.contains(&name) || (CRATES_NOT_IN_CORE.contains(&name) && next.text == "::") {
            faults.push(format!("{}:{}: the core may not name `{name}`", file.path, token.line));
        }
    }
    faults
}

fn clock_faults(file: &Source) -> Vec<String> {
    let reads = |window: &&[Token]| {
        let [of, colons, method] = window else { return false };
        let clock = ["Instant", "SystemTime"].contains(&of.text.as_str());
        (clock && colons.text == "::" && method.text == "now") || method.text == "clock_gettime"
    };
    let faults = file.tokens.windows(3).filter(reads);
    faults.map(|window| format!("{}:{}: only clock.rs may read a clock", file.path, window[0].line)).collect()
}

fn size_faults(file: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    if file.lines > MAX_FILE_LINES {
        faults.push(format!("{}: has {} lines; at most {MAX_FILE_LINES}", file.path, file.lines));
    }
    for (name, line, lines) in file.functions() {
        if lines > MAX_FUNCTION_LINES {
            faults.push(format!(
                "{}:{line}: `{name}` has {lines} lines; at most {MAX_FUNCTION_LINES}",
                file.path
            ));
        }
    }
    faults
}

#[test]
fn the_checks_find_what_they_look_for() {
    let faults = |path: &str, text: &str| import_faults(&Source::new(path, text)).len();
    assert_eq!(faults("src/table.rs", "use crate::{algorithm::x, time::{Now, Timestamp}, limit};"), 0);
    assert_eq!(faults("src/table.rs", "use crate::gossip::Gossip;"), 1);
    assert_eq!(faults("src/table.rs", "use crate::{time::Now, gossip, limiter::{a, mesh}};"), 2);
    assert_eq!(faults("src/table.rs", "fn f() { crate::clock::read() }"), 1);
    assert_eq!(faults("src/table.rs", "use super::mesh;"), 1);
    assert_eq!(faults("src/table.rs", "use crate::Limit;"), 1);
    assert_eq!(faults("src/table.rs", "mod inner { use super::Table; use super::super::mesh; }"), 1);
    assert_eq!(
        faults(
            "src/table.rs",
            "// use crate::mesh;\nfn f() { \"crate::mesh\"; r#\"crate::\"mesh\"#; '\"'; }"
        ),
        0
    );
    assert_eq!(faults("src/table.rs", "/* /* */ use crate::mesh; */ pub(crate) fn f<'a>(x: &'a str) {}"), 0);
    assert_eq!(faults("src/table.rs", "#[cfg(test)]\nmod tests { use crate::mesh; }\nuse crate::mesh;"), 1);
    assert_eq!(faults("src/table.rs", "#[cfg(not(test))]\nuse crate::mesh;"), 1);
    assert_eq!(
        faults("src/gossip/peer.rs", "use super::{Gossip, super::table}; use super::super::table;"),
        0
    );
    assert_eq!(faults("src/gossip/peer.rs", "use super::super::net;"), 1);
    assert_eq!(faults("src/net/driver.rs", "use crate::{mesh, gossip, config};"), 0);
    assert_eq!(faults("src/net/driver.rs", "use crate::http;"), 1);
    assert_eq!(faults("src/http/layer.rs", "use crate::net;"), 1);
    assert_eq!(faults("src/http/layer.rs", "use crate::table;"), 1);
    assert_eq!(faults("src/http/headers_tests.rs", "use crate::net;"), 0);
    assert_eq!(faults("src/net/tests/faults.rs", "use crate::http;"), 0);
    assert_eq!(faults("src/novel.rs", ""), 1);

    let core = |text: &str| core_faults(&Source::new("src/table.rs", text)).len();
    assert_eq!(core("use std::time::{Duration, Instant}; fn f() { tokio::spawn(rand) }"), 2);
    let clock = |text: &str| clock_faults(&Source::new("src/net/link.rs", text)).len();
    assert_eq!(clock("let a = std::time::Instant::now(); let b: Instant = a;"), 1);

    let long = format!("fn short() {{}}\nfn long() {{\n{}}}\n", "x();\n".repeat(MAX_FUNCTION_LINES));
    assert_eq!(size_faults(&Source::new("src/table.rs", &long)).len(), 1);
    assert_eq!(size_faults(&Source::new("src/table.rs", &"\n".repeat(MAX_FILE_LINES + 1))).len(), 1);
}
