//! The verbs: one file each, an argument struct whose doc comment is the help text, and one function.

use std::process::ExitCode;

use clap::Subcommand;

mod ask;
mod bench;
mod r#break;
mod check;
mod cluster;
mod completions;
mod doctor;
mod fence;
mod lock;
mod ls;
mod policy;
mod run;
mod serve;
mod top;
mod r#try;
mod watch;
mod why;

#[derive(Subcommand)]
pub(crate) enum Command {
    Run(Box<run::Run>),
    Lock(Box<lock::Lock>),
    Renew(lock::Renew),
    Unlock(lock::Unlock),
    Try(r#try::Try),
    Ls(ls::Ls),
    Why(why::Why),
    Watch(watch::Watch),
    Top(top::Top),
    Ask(ask::Ask),
    Break(r#break::Break),
    Check(check::Check),
    #[command(subcommand)]
    Fence(fence::Fence),
    #[command(subcommand)]
    Policy(policy::Policy),
    Doctor(doctor::Doctor),
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    Bench(bench::Bench),
    Serve(serve::Serve),
    Completions(completions::Completions),
    Manual(completions::Manual),
}

impl Command {
    pub(crate) fn run(self) -> ExitCode {
        match self {
            Command::Run(verb) => verb.run(),
            Command::Lock(verb) => verb.run(),
            Command::Renew(verb) => verb.run(),
            Command::Unlock(verb) => verb.run(),
            Command::Try(verb) => verb.run(),
            Command::Ls(verb) => verb.run(),
            Command::Why(verb) => verb.run(),
            Command::Watch(verb) => verb.run(),
            Command::Top(verb) => verb.run(),
            Command::Ask(verb) => verb.run(),
            Command::Break(verb) => verb.run(),
            Command::Check(verb) => verb.run(),
            Command::Fence(verb) => verb.run(),
            Command::Policy(verb) => verb.run(),
            Command::Doctor(verb) => verb.run(),
            Command::Cluster(verb) => verb.run(),
            Command::Bench(verb) => verb.run(),
            Command::Serve(verb) => verb.run(),
            Command::Completions(verb) => verb.run(),
            Command::Manual(verb) => verb.run(),
        }
    }
}
