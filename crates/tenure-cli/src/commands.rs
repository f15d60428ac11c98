//! The verbs: one file each, an argument struct whose doc comment is the help text, and one function.

use std::process::ExitCode;

use clap::Subcommand;

mod cluster;
mod bench;
mod run;
mod serve;

#[derive(Subcommand)]
pub(crate) enum Command {
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    Bench(bench::Bench),
    Run(run::Run),
    Serve(serve::Serve),
}

impl Command {
    pub(crate) fn run(self) -> ExitCode {
        match self {
            Command::Cluster(cluster) => cluster.run(),
            Command::Bench(bench) => bench.run(),
            Command::Run(run) => run.run(),
            Command::Serve(serve) => serve.run(),
        }
    }
}
