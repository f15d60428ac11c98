//! `tenure-compare`: measures the daemon, comparable servers and an echo server in one run.
//!
//! `cargo xtask compare` builds and starts it. Every server runs durably on loopback, in its own
//! directory, on the same cores as the load. So only ratios of figures from one run are meaningful.

#![allow(clippy::print_stdout, reason = "a command prints its results")]

mod compare;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Compare the daemon with similar servers in one run.
#[derive(Parser)]
#[command(name = "tenure-compare")]
struct Arguments {
    #[command(subcommand)]
    word: CompareCommand,
}

#[derive(Subcommand)]
enum CompareCommand {
    /// Serve calls without any logic, as a baseline.
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
    /// Data directory of the servers; removed afterwards.
    #[arg(long, default_value = "/var/tmp/tenure-compare")]
    directory: PathBuf,
    /// Seconds to measure each figure.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Only these parts: speed, handoff, held, idle, wear; or cluster, which runs only if
    /// requested.
    #[arg(long, value_delimiter = ',')]
    only: Vec<compare::ComparisonPart>,
    /// Only these targets: unary, session, echo, redis, redis-lib, etcd, zookeeper.
    #[arg(long, value_delimiter = ',')]
    targets: Vec<String>,
    /// Print one JSON object per line instead of tables.
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
