//! `tenure-compare`: the daemon beside its peers and beside a bare echo, in one run.
//!
//! `cargo xtask compare` builds and starts it. Every server runs durable on loopback, in a directory
//! of its own, on the cores that the load uses too; figures are worth something only as ratios of
//! one run.

#![allow(clippy::print_stdout, reason = "the command is what prints")]

mod compare;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The daemon beside its peers, in one run.
#[derive(Parser)]
#[command(name = "tenure-compare")]
struct Arguments {
    #[command(subcommand)]
    word: CompareCommand,
}

#[derive(Subcommand)]
enum CompareCommand {
    /// Answer calls without deciding anything.
    Echo,
    /// Start all servers, load them in turn, print the table.
    Run(CompareOptions),
}

/// What to compare.
#[derive(clap::Args)]
pub(crate) struct CompareOptions {
    /// The `tenure` binary.
    #[arg(long)]
    tenure: PathBuf,
    /// Where servers keep their data; removed afterwards.
    #[arg(long, default_value = "/var/tmp/tenure-compare")]
    directory: PathBuf,
    /// How long each figure is measured.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Only these parts: speed, handoff, held, idle, wear; or cluster, which is not among the rest.
    #[arg(long, value_delimiter = ',')]
    only: Vec<compare::ComparisonPart>,
    /// Only these targets: unary, session, echo, redis, redis-lib, etcd, zookeeper.
    #[arg(long, value_delimiter = ',')]
    targets: Vec<String>,
    /// One JSON object a line instead of the tables.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().word {
        CompareCommand::Echo => tenure_bench::serve_echo(|address| println!("ready {address}"))
            .map_err(|error| error.to_string()),
        CompareCommand::Run(run) => compare::run(&run),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("compare: {why}");
            ExitCode::FAILURE
        }
    }
}
