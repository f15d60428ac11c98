//! The `tenure` command.

#![allow(clippy::print_stdout, reason = "the command is what prints")]

mod commands;
mod duration;
mod run;

use std::process::ExitCode;

use clap::Parser;

/// One lock for everything that is shared: a file, a bucket, a fleet.
#[derive(Parser)]
#[command(name = "tenure", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    Arguments::parse().command.run()
}
