//! What the command is told on its command line.

use std::{ffi::OsString, path::PathBuf};

use lexopt::{Arg, Parser, ValueExt as _};

/// What the command prints when asked for help.
pub(super) const HELP: &str = "\
One rate limit for a whole fleet of service instances.

Usage:
  ratemesh simulate NAME|FILE.toml... [options]   run scenarios on a simulated fleet
  ratemesh simulate --all [options]               run all built-in scenarios
  ratemesh simulate --list                        name the built-in scenarios

Options:
  --nodes N,...       sizes of the fleet (default: 3,8,32; for a file, what it says)
  --seeds N           how many seeds, from 1 on (default: 20)
  --seed N            this seed alone; also prints the digest of all that happened
  --limits FILE.toml  the [[limit]] tables of a configuration in place of the scenario's;
                      a built-in scenario's load then keeps its ratio to the quota,
                      and its targets do not apply
  --json[=FILE]       the figures as JSON, in place of the table or into a file
  --plot FILE.svg     a picture of the first seed; with several runs, one file each
  --check             exit with 1 when a target or a bound is missed
  -h, --help          this text

Each figure is the mean over the seeds; where a target is promised it stands behind the
figure, and a miss is marked with `!`. docs/accuracy.md explains the figures.
";

/// Sizes of the fleet for a built-in scenario.
const DEFAULT_NODES: [usize; 3] = [3, 8, 32];
const DEFAULT_SEEDS: u64 = 20;
/// No simulated fleet is larger.
pub(super) const MAX_NODES: usize = 1_000;
const MAX_SEEDS: u64 = 1_000_000;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    List,
    Simulate(Order),
}

/// What to simulate, and what to make of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) scenarios: Vec<String>,
    pub(super) all: bool,
    pub(super) nodes: Option<Vec<usize>>,
    pub(super) seeds: Seeds,
    pub(super) limits: Option<PathBuf>,
    pub(super) json: Option<Json>,
    pub(super) plot: Option<PathBuf>,
    pub(super) check: bool,
}

impl Order {
    pub(super) fn nodes_of_named(&self) -> Vec<usize> {
        self.nodes.clone().unwrap_or_else(|| DEFAULT_NODES.to_vec())
    }
}

/// Which seeds to run under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seeds {
    UpTo(u64),
    One(u64),
}

impl Default for Seeds {
    fn default() -> Self {
        Self::UpTo(DEFAULT_SEEDS)
    }
}

impl Seeds {
    pub(super) fn range(self) -> std::ops::RangeInclusive<u64> {
        match self {
            Self::UpTo(count) => 1..=count,
            Self::One(seed) => seed..=seed,
        }
    }
}

/// Where JSON goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Json {
    Printed,
    File(PathBuf),
}

/// Reads the command line; the error says what is wrong with it.
pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut parser = Parser::from_args(arguments);
    match parser.next().map_err(said)? {
        None | Some(Arg::Short('h') | Arg::Long("help")) => Ok(Command::Help),
        Some(Arg::Value(name)) if name == "simulate" => simulate(&mut parser),
        Some(Arg::Value(name)) if name == "help" => Ok(Command::Help),
        Some(Arg::Value(name)) => Err(format!("there is no command {name:?}; there is `simulate`")),
        Some(other) => Err(other.unexpected().to_string()),
    }
}

fn simulate(parser: &mut Parser) -> Result<Command, String> {
    let mut order = Order::default();
    let mut list = false;
    while let Some(argument) = parser.next().map_err(said)? {
        match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Command::Help),
            Arg::Long("list") => list = true,
            Arg::Long("all") => order.all = true,
            Arg::Long("check") => order.check = true,
            Arg::Long("nodes") => order.nodes = Some(nodes(&text(parser)?)?),
            Arg::Long("seeds") => order.seeds = Seeds::UpTo(number("--seeds", &text(parser)?, 1, MAX_SEEDS)?),
            Arg::Long("seed") => order.seeds = Seeds::One(number("--seed", &text(parser)?, 0, u64::MAX)?),
            Arg::Long("limits") => order.limits = Some(parser.value().map_err(said)?.into()),
            Arg::Long("plot") => order.plot = Some(parser.value().map_err(said)?.into()),
            Arg::Long("json") => order.json = Some(json(parser)),
            Arg::Value(name) => order.scenarios.push(name.string().map_err(said)?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    match (list, order.all, order.scenarios.is_empty()) {
        (true, ..) => Ok(Command::List),
        (_, true, false) => {
            Err("--all stands beside the name of a scenario; give one or the other".to_owned())
        }
        (_, false, true) => {
            Err("which scenario? Give a name, a file, or --all; `ratemesh simulate --list` has the names"
                .to_owned())
        }
        _ => Ok(Command::Simulate(order)),
    }
}

/// `--json=FILE`, `--json FILE.json`, or `--json` alone.
fn json(parser: &mut Parser) -> Json {
    if let Some(file) = parser.optional_value() {
        return Json::File(file.into());
    }
    let file = |next: &std::ffi::OsStr| next.to_str().is_some_and(|next| next.ends_with(".json"));
    let next = parser.try_raw_args().and_then(|mut raw| raw.next_if(file));
    next.map_or(Json::Printed, |file| Json::File(file.into()))
}

fn nodes(text: &str) -> Result<Vec<usize>, String> {
    text.split(',')
        .map(|part| number("--nodes", part.trim(), 1, MAX_NODES as u64).map(|nodes| nodes as usize))
        .collect()
}

fn number(option: &str, text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number
        .ok_or_else(|| format!("{option} {text} will not do; it takes a whole number from {least} to {most}"))
}

fn text(parser: &mut Parser) -> Result<String, String> {
    parser.value().and_then(lexopt::ValueExt::string).map_err(said)
}

fn said(error: lexopt::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn a_command_line_is_read_in_any_order() {
        let order = Order {
            scenarios: vec!["steady".to_owned(), "mine.toml".to_owned()],
            nodes: Some(vec![3, 8]),
            seeds: Seeds::One(7),
            limits: Some("limits.toml".into()),
            json: Some(Json::File("out.json".into())),
            plot: Some("out.svg".into()),
            check: true,
            ..Order::default()
        };
        let line = "simulate steady --nodes 3,8 --json out.json --check --seed 7 mine.toml --limits limits.toml --plot=out.svg";
        assert_eq!(parsed(line), Ok(Command::Simulate(order)));
        let printed = Order { all: true, json: Some(Json::Printed), ..Order::default() };
        assert_eq!(parsed("simulate --json --all"), Ok(Command::Simulate(printed)));
        assert_eq!(parsed("simulate --list"), Ok(Command::List));
        assert_eq!(parsed("simulate steady --help"), Ok(Command::Help));
        assert_eq!(parsed(""), Ok(Command::Help));
    }

    #[test]
    fn what_cannot_be_followed_is_refused_with_what_would_do() {
        for (line, reason) in [
            ("bake", "there is `simulate`"),
            ("simulate", "--list"),
            ("simulate steady --all", "one or the other"),
            ("simulate steady --nodes 0", "from 1 to 1000"),
            ("simulate steady --nodes 3,x", "--nodes x"),
            ("simulate steady --seeds 0", "from 1"),
            ("simulate steady --seed -1", "from 0"),
            ("simulate steady --colour", "--colour"),
        ] {
            let message = parsed(line).unwrap_err();
            assert!(message.contains(reason), "{line}: {message}");
        }
    }
}
