//! The `ratemesh` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ratemesh::cli::run(std::env::args_os().skip(1))
}
