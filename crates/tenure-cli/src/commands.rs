//! The commands: one file each, with an argument struct whose doc comment is the help text, and one
//! function.

use std::io;
use std::process::ExitCode;

use clap::Subcommand;

use crate::run::{Channel, supervisor};

mod ask;
mod audit;
mod auth;
mod bench;
mod break_lock;
mod check;
mod cluster;
mod completions;
mod doctor;
mod fence;
mod history;
mod lock;
mod ls;
mod policy;
mod run;
mod serve;
mod top;
mod try_lock;
mod watch;
mod why;

// The list of commands, each with the first line of its help text. `defer`: clap builds the full
// description of a command only when it is used. Building all of them takes longer than acquiring a
// lock file: C7 (fast start).
#[derive(Subcommand)]
#[command(defer = true)]
pub(crate) enum Command {
    /// Hold a lock while a command runs.
    Run(Box<run::RunCommand>),
    /// Acquire a lock that stays held when this command ends.
    Lock(Box<lock::LockCommand>),
    /// Renew the lease of a lock taken with `tenure lock`.
    Renew(lock::RenewCommand),
    /// Release a lock taken with `tenure lock`.
    Unlock(lock::UnlockCommand),
    /// Check whether a lock is free: exits with 0 if it is free, with 75 if it is held.
    Try(try_lock::Try),
    /// List the locks that are held at or below an address.
    Ls(ls::Ls),
    /// Explain who holds a lock and why a request has to wait.
    Why(why::WhyCommand),
    /// Print every change of the locks at or below an address, starting with the held ones.
    Watch(watch::WatchCommand),
    /// Show who held a lock and who waited for it during the last hours.
    History(history::HistoryCommand),
    /// Show held locks and their waiters in a live terminal view.
    Top(top::Top),
    /// Ask the holder of a lock to release it. The lock is not removed.
    Ask(ask::AskCommand),
    /// Remove a lock. Shows which holds it will remove and asks for confirmation.
    Break(break_lock::BreakCommand),
    /// Check whether a server may use its database now: exits with 0 to proceed, 75 to skip.
    Check(check::CheckCommand),
    #[command(subcommand)]
    Fence(fence::FenceCommand),
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Check this machine, or show what the backend of an address supports and guarantees.
    Doctor(doctor::Doctor),
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    #[command(subcommand)]
    Auth(auth::AuthCommand),
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Load a daemon and print throughput and latency.
    Bench(bench::Bench),
    /// Run the daemon.
    Serve(serve::Serve),
    /// Print the completions of a shell.
    Completions(completions::Completions),
    /// Write the manual pages, one per command, to a directory.
    Manual(completions::Manual),
}

impl Command {
    /// Runs the command. `early` is the supervisor of `tenure run`, if it was already forked.
    pub(crate) fn run(self, early: Option<io::Result<Channel>>) -> ExitCode {
        match self {
            Command::Run(verb) => verb.run(early.unwrap_or_else(supervisor::fork)),
            Command::Lock(verb) => verb.run(),
            Command::Renew(verb) => verb.run(),
            Command::Unlock(verb) => verb.run(),
            Command::Try(verb) => verb.run(),
            Command::Ls(verb) => verb.run(),
            Command::Why(verb) => verb.run(),
            Command::Watch(verb) => verb.run(),
            Command::History(verb) => verb.run(),
            Command::Top(verb) => verb.run(),
            Command::Ask(verb) => verb.run(),
            Command::Break(verb) => verb.run(),
            Command::Check(verb) => verb.run(),
            Command::Fence(verb) => verb.run(),
            Command::Policy(verb) => verb.run(),
            Command::Doctor(verb) => verb.run(),
            Command::Cluster(verb) => verb.run(),
            Command::Auth(verb) => verb.run(),
            Command::Audit(verb) => verb.run(),
            Command::Bench(verb) => verb.run(),
            Command::Serve(verb) => verb.run(),
            Command::Completions(verb) => verb.run(),
            Command::Manual(verb) => verb.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::Arguments;

    /// The list shows for each command the first line of its own help text.
    #[test]
    fn a_verb_is_listed_as_it_describes_itself() {
        let summary = |command: &clap::Command| {
            let about = command.get_about().expect("every verb says what it does");
            about.to_string().trim_end_matches('.').to_owned()
        };
        let listed = Arguments::command();
        let mut described = Arguments::command();
        described.build();
        for verb in listed.get_subcommands() {
            let name = verb.get_name();
            let built = described.find_subcommand(name).unwrap();
            assert_eq!(summary(verb), summary(built), "{name}");
        }
    }
}
