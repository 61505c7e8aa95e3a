//! Measures ratemesh beside governor and rateguard: in one process, interleaved in rounds, ratios of medians.
//!
//! The figures in nanoseconds are this machine's at this moment; what can be compared is the ratios.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the time")]

mod bare;
mod cases;
#[cfg(feature = "live")]
mod gossip;
#[cfg(feature = "live")]
mod live;
mod measure;
mod memory;
mod report;
mod served;
mod subjects;

use std::{error::Error, fs, path::PathBuf, process::ExitCode};

use cases::{Bench, Limiters};
use lexopt::{Arg, ValueExt as _};
use measure::Effort;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// What went wrong.
pub type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str = "\
usage: ratemesh-peers [OPTIONS]

  --quick          fewer rounds and checks: a minute instead of five
  --rounds N       so many rounds
  --only PATTERN   only the cases whose names contain PATTERN; may be given more than once
  --json FILE      writes the figures to FILE, too
  --live           also measures with two live peers on loopback (needs the feature `live`)
  --gossip         measures what gossip costs instead, on a fleet of three (needs the feature `live`)
  --check          fails if a target is missed
";

const FULL_EFFORT: Effort = Effort { rounds: 31, checks: 200_000 };

struct Options {
    effort: Effort,
    only: Vec<String>,
    json: Option<PathBuf>,
    live: bool,
    gossip: bool,
    check: bool,
}

fn options() -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        effort: FULL_EFFORT,
        only: Vec::new(),
        json: None,
        live: false,
        gossip: false,
        check: false,
    };
    let mut rounds = None;
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("quick") => options.effort = Effort { rounds: 9, checks: 50_000 },
            Arg::Long("rounds") => rounds = Some(parser.value()?.parse()?),
            Arg::Long("only") => options.only.push(parser.value()?.string()?),
            Arg::Long("json") => options.json = Some(parser.value()?.into()),
            Arg::Long("live") => options.live = true,
            Arg::Long("gossip") => options.gossip = true,
            Arg::Long("check") => options.check = true,
            Arg::Long("help") | Arg::Short('h') => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    options.effort.rounds = rounds.unwrap_or(options.effort.rounds);
    Ok(Some(options))
}

fn run(options: &Options, live: Option<Limiters<'_>>) -> Result<bool, Failure> {
    let Effort { rounds, checks } = options.effort;
    let bench = Bench::new(options.effort, live)?;
    report::print_head();
    let rows = bench.run(&options.only, report::print_row)?;
    let met = report::print_summary(&rows);
    if let Some(path) = &options.json {
        fs::write(path, format!("{:#}\n", report::json(&rows, rounds, checks)))?;
    }
    Ok(met)
}

#[cfg(feature = "live")]
fn run_live(options: &Options) -> Result<bool, Failure> {
    let fleet = live::Fleet::for_cases()?;
    run(options, Some(&|plan| fleet.limiter(plan)))
}

#[cfg(feature = "live")]
fn run_gossip(options: &Options) -> Result<bool, Failure> {
    let quick = options.effort.checks < FULL_EFFORT.checks;
    let watch = if quick {
        gossip::Watch { ticks: 10, seconds: 2 }
    } else {
        gossip::Watch { ticks: 50, seconds: 10 }
    };
    let (figures, met) = gossip::run(&watch)?;
    if let Some(path) = &options.json {
        fs::write(path, format!("{figures:#}\n"))?;
    }
    Ok(met)
}

#[cfg(not(feature = "live"))]
fn run_gossip(_: &Options) -> Result<bool, Failure> {
    Err("built without the feature `live`".into())
}

#[cfg(not(feature = "live"))]
fn run_live(_: &Options) -> Result<bool, Failure> {
    Err("built without the feature `live`".into())
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("ratemesh-peers: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = match (options.gossip, options.live) {
        (true, _) => run_gossip(&options),
        (false, true) => run_live(&options),
        (false, false) => run(&options, None),
    };
    match outcome {
        Ok(met) if met || !options.check => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ratemesh-peers: {error}");
            ExitCode::from(2)
        }
    }
}
