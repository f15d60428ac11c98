//! The verbs: one file each, an argument struct whose doc comment is the help text, and one function.

use std::process::ExitCode;

use clap::Subcommand;

mod serve;

#[derive(Subcommand)]
pub(crate) enum Command {
    Serve(serve::Serve),
}

impl Command {
    pub(crate) fn run(self) -> ExitCode {
        match self {
            Command::Serve(serve) => serve.run(),
        }
    }
}
