//! The `tenure` command.

#![allow(clippy::print_stdout, reason = "the command is what prints")]

mod commands;
mod duration;
mod run;

use std::ffi::OsString;
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
    Arguments::parse_from(with_verb(std::env::args_os().collect()))
        .command
        .run()
}

/// `tenure --config FILE` means `tenure serve --config FILE`, as a daemon's command line has it.
fn with_verb(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let of_the_daemon = arguments.get(1).and_then(|first| first.to_str());
    let flags = ["--config", "--health-check", "--print-config"];
    if of_the_daemon
        .is_some_and(|first| flags.contains(&first.split_once('=').map_or(first, |(flag, _)| flag)))
    {
        arguments.insert(1, "serve".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::with_verb;

    #[test]
    fn the_daemons_flags_need_no_verb() {
        let run = |words: &[&str]| {
            with_verb(words.iter().map(Into::into).collect())
                .into_iter()
                .map(|word| word.into_string().unwrap())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(run(&["tenure", "--config", "f"]), "tenure serve --config f");
        assert_eq!(run(&["tenure", "--config=f"]), "tenure serve --config=f");
        assert_eq!(
            run(&["tenure", "--health-check"]),
            "tenure serve --health-check"
        );
        assert_eq!(run(&["tenure", "--version"]), "tenure --version");
        assert_eq!(run(&["tenure", "run", "--config"]), "tenure run --config");
        assert_eq!(run(&["tenure"]), "tenure");
    }
}
