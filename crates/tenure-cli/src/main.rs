//! The `tenure` command.

#![allow(clippy::print_stdout, reason = "the command is what prints")]

mod caller;
mod commands;
mod duration;
mod interrupt;
mod options;
mod run;
mod say;
mod table;
mod waiting;

use std::process::ExitCode;

use clap::Parser;

/// One lock for everything that is shared: a file, a bucket, a fleet.
///
/// WHERE is an address:
///   state.json, sidecar:state.json        a lock file beside state.json
///   exclusive:DIR                         a database that its server must leave alone
///   upload:DIR/ID                         one resumable upload
///   repo:/dir, s3://…, gs://…, az://…     a repository of lock objects
///   tenant:/acme/42, tenure://host/…      a path of the daemon (TENURE_URL)
/// A file is what looks like nothing else; ./ in front always means a file.
///
/// Exit codes: the command's own with `run`; 0 yes or done, 2 bad usage, 75 held, 124 waited in vain,
/// 120 lost, 121 gave way, 125 tenure failed, 126 cannot run, 127 not found, 128+n killed by signal n.
///
/// Examples:
///   tenure run -n state.json -- ./compact state.json
///   tenure why state.json
///   tenure serve
#[derive(Parser)]
#[command(
    name = "tenure",
    version,
    arg_required_else_help = true,
    verbatim_doc_comment
)]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    Arguments::parse().command.run()
}
