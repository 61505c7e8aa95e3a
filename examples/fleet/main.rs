//! The main job for real: operating-system processes that hold one limit, over HTTP and QUIC on loopback.
//!
//! The process that is started makes certificates, starts itself again once for each node, and sends the nodes
//! requests. `args.rs` has the options; `plan.rs` what is done when, and what is promised; `drive.rs` does it.

mod args;
mod certificates;
mod drive;
mod fleet;
mod load;
mod measure;
mod node;
mod plan;
mod report;

use std::process::ExitCode;

use args::{Command, HELP};
use plan::Plan;

/// The processes could not be started, or the arguments will not do.
const NOT_RUN: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    let command = match args::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(NOT_RUN);
        }
    };
    match command {
        Command::Help => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        Command::Node => code(node::run().await.map(|()| 0)),
        Command::Run(args) => {
            tokio::select! {
                // Dropping the run kills the processes that it started.
                _ = tokio::signal::ctrl_c() => code(Err("stopped".into())),
                verdict = drive::run(args.nodes, Plan::new(&args)) => code(verdict),
            }
        }
    }
}

fn code(outcome: Result<u8, Box<dyn std::error::Error>>) -> ExitCode {
    match outcome {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("{error}");
            NOT_RUN.into()
        }
    }
}
