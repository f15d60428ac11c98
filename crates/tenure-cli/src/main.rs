//! The `tenure` command.

#![allow(clippy::print_stdout, reason = "a command prints its results")]

mod commands;
mod duration;
mod interrupt;
mod lock_table;
mod lock_tree;
mod message;
mod nesting;
mod options;
mod output;
mod parent_shell;
mod progress;
mod resource_user;
mod run;
mod terminal;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

/// A decoded call makes several short-lived allocations, and this allocator needs a quarter of the
/// instructions of the C library's for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One lock for everything that is shared: a file, a bucket, a fleet.
///
/// WHERE is an address:
///   state.json, sidecar:state.json        a lock file beside state.json
///   exclusive:DIR                         a database; its server pauses while the lock is held
///   upload:DIR/ID                         one resumable upload
///   repo:/dir, s3://…, gs://…, az://…     a repository of lock objects
///   tenant:/acme/42, tenure://host/…      a path of the daemon (TENURE_URL)
///   postgres://host/db/tenant:/acme/42    the same path in a PostgreSQL database
/// Any other text is the name of a file, but text like tenant:acme is refused as a mistyped address.
/// A leading ./ always means a file.
///
/// Exit codes: the command's own with `run`; 0 yes or done, 2 bad usage, 75 held, 124 timed out,
/// 120 lock lost, 121 released on request, 125 tenure failed, 126 command cannot run,
/// 127 command not found, 128+n command killed by signal n.
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
    /// When to colour output; NO_COLOR turns it off, too.
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        hide_default_value = true,
        hide_possible_values = false
    )]
    color: terminal::ColorChoice,
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let arguments = with_verb(std::env::args_os().collect());
    // Fork before any thread exists: C4 (keeper and process group). The supervisor prepares itself
    // while this process parses the arguments.
    let supervisor = arguments
        .get(1)
        .is_some_and(|verb| verb == "run")
        .then(run::supervisor::fork);
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return usage::end(&error),
    };
    terminal::choose(arguments.color);
    arguments.command.run(supervisor)
}

/// Inserts the verb `serve` before flags of the daemon: `tenure --config FILE` means `tenure serve
/// --config FILE`.
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
