//! The command line.

use std::{fmt, str::FromStr};

pub(crate) const HELP: &str = "\
Three operating-system processes hold one limit, over real HTTP and real QUIC, through a kill and a cut.

usage: cargo run --release --example fleet -- [options]

  --nodes N         processes, 2 to 8                                  [3]
  --limit N         units per second for all of them, 100 to 20000     [1000]
  --seconds N       how long the load lasts, 10 to 3600                [30; a scenario's own length]
  --scenario NAME   instead of the whole story, one of the simulator's scenarios, with the simulator's columns:
                    steady     3 x the limit, evenly
                    burst-all  10 x the limit for a second, out of the blue; burst of one second's limit
                    skew       1.5 x the limit, 90 % of it on one node
                    crash      1.5 x the limit, evenly; one node is killed, and starts again
                    partition  3 x the limit, evenly; a third of the nodes is cut off, and joined again
  --help            this text

RUST_LOG=ratemesh=info shows what the nodes log.

Exits with 0 when the fleet held what is promised, 1 when it did not, 2 when it could not be started, and 3 when this
machine could not offer the load.";

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) nodes: usize,
    pub(crate) limit: u64,
    pub(crate) seconds: Option<u64>,
    pub(crate) scenario: Option<Scenario>,
}

/// A scenario of the simulator that is run on the real thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    Steady,
    BurstAll,
    Skew,
    Crash,
    Partition,
}

impl Scenario {
    const ALL: [Self; 5] = [Self::Steady, Self::BurstAll, Self::Skew, Self::Crash, Self::Partition];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::BurstAll => "burst-all",
            Self::Skew => "skew",
            Self::Crash => "crash",
            Self::Partition => "partition",
        }
    }
}

/// What the command line asks for.
pub(crate) enum Command {
    Help,
    Run(Args),
    /// To be one of the nodes; what the processes of the fleet are started with.
    Node,
}

/// Reads the arguments after the program's name.
///
/// # Errors
/// Names the option, its value, and what would do.
pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut args = Args { nodes: 3, limit: 1_000, seconds: None, scenario: None };
    while let Some(word) = words.next() {
        let (option, mut value) = match word.split_once('=') {
            Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        let mut value = || value.take().or_else(|| words.next()).ok_or(format!("{option} takes a value"));
        match option.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--node" => return Ok(Command::Node),
            "--nodes" => args.nodes = number(&option, &value()?, 2, 8)?,
            "--limit" => args.limit = number(&option, &value()?, 100, 20_000)?,
            "--seconds" => args.seconds = Some(number(&option, &value()?, 10, 3_600)?),
            "--scenario" => args.scenario = Some(scenario(&value()?)?),
            _ => return Err(format!("{option} is not an option; --help lists them")),
        }
    }
    Ok(Command::Run(args))
}

fn number<T>(option: &str, value: &str, least: T, most: T) -> Result<T, String>
where
    T: FromStr + PartialOrd + fmt::Display,
{
    let parsed = value.parse().ok().filter(|number| (&least..=&most).contains(&number));
    parsed.ok_or_else(|| format!("{option} {value} will not do; it takes {least} to {most}"))
}

fn scenario(value: &str) -> Result<Scenario, String> {
    let found = Scenario::ALL.into_iter().find(|scenario| scenario.name() == value);
    let names = || Scenario::ALL.map(Scenario::name).join(", ");
    found.ok_or_else(|| format!("--scenario {value} will not do; it takes one of {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read_in_both_spellings() {
        let Ok(Command::Run(args)) = parsed("--nodes 5 --limit=2000 --scenario burst-all") else {
            panic!("not read")
        };
        let scenario = Some(Scenario::BurstAll);
        assert_eq!(args, Args { nodes: 5, limit: 2_000, seconds: None, scenario });
        assert!(matches!(parsed("--nodes 3 --help"), Ok(Command::Help)));
    }

    #[test]
    fn errors_name_the_option_the_value_and_what_would_do() {
        let cases = [
            ("--nodes", "--nodes takes a value"),
            ("--nodes 1", "--nodes 1 will not do; it takes 2 to 8"),
            ("--seconds=soon", "--seconds soon will not do; it takes 10 to 3600"),
            (
                "--scenario wan",
                "--scenario wan will not do; it takes one of steady, burst-all, skew, crash, partition",
            ),
            ("--quick", "--quick is not an option; --help lists them"),
        ];
        for (line, wanted) in cases {
            let Err(error) = parsed(line) else { panic!("{line} was taken") };
            assert_eq!(error, wanted);
        }
    }
}
