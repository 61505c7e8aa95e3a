//! The `ratemesh` command: tries limits on a simulated fleet.
//!
//! `ratemesh simulate steady --nodes 3,8` prints what the fleet admits over its limit; [`scenario_from_toml`] reads a
//! scenario of one's own. The command exits with 0 when all is well, with 1 when a run failed or, under `--check`, a
//! target was missed, and with 2 when it was called in a way that it cannot follow.

mod args;
mod file;
mod json;
mod plot;
mod simulate;
mod table;

use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

pub use file::scenario_from_toml;

use args::{Command, HELP};

/// Runs the command with these arguments, the program's name not among them.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = match args::parse(arguments) {
        Ok(Command::Help) => io::stdout()
            .write_all(HELP.as_bytes())
            .map_err(|error| Fault::writing("standard output", &error))
            .map(|()| true),
        Ok(Command::List) => simulate::list(),
        Ok(Command::Simulate(order)) => simulate::simulate(&order),
        Err(message) => Err(Fault::Usage(message)),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(fault) => {
            let (message, code) = match fault {
                Fault::Usage(message) => (format!("{message}\n`ratemesh --help` explains."), 2),
                Fault::Failed(message) => (message, 1),
            };
            // With nowhere to say it, the exit code has to do.
            let _ = writeln!(io::stderr(), "ratemesh: {message}");
            ExitCode::from(code)
        }
    }
}

/// Why the command stopped.
#[derive(Debug)]
enum Fault {
    /// It was asked for what it cannot do.
    Usage(String),
    /// It could not finish.
    Failed(String),
}

impl Fault {
    fn writing(what: &str, error: &io::Error) -> Self {
        Self::Failed(format!("{what} cannot be written: {error}"))
    }
}
