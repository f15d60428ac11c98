//! `tenure check`: the server side of an exclusive lock. It reports whether a server may work on
//! its database now, or runs a command as one cycle of that server.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use clap::Args;
use serde_json::json;
use tenure::Address;
use tenure_files::exclusive::{CycleDecision, CycleKind, ExclusiveServer};

use crate::output::{self, CommandFailure, HELD, OutputFormat};

/// Check whether a server may use its database now: exits with 0 to proceed, 75 to skip.
///
/// Prints the reason, and removes a lock whose holder is dead. With a command, it runs one cycle of the
/// server: a tool that takes the lock meanwhile waits until the command has ended.
///
/// Examples:
///   tenure check exclusive:.beads || exit 0
///   tenure check exclusive:.beads -- ./sync-once
///   tenure check --dry-run exclusive:.beads
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CheckCommand {
    /// Do not remove the lock of a dead holder.
    #[arg(long, conflicts_with = "command")]
    dry_run: bool,
    /// Process ids in locks may belong to other containers: a missing process is not proof of death.
    #[arg(long)]
    foreign_pids: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "command")]
    json: bool,
    /// The database: exclusive:DIR.
    #[arg(value_name = "WHERE")]
    place: String,
    /// The command that runs one cycle of the server.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl CheckCommand {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.decide())
    }

    fn decide(&self) -> Result<u8, CommandFailure> {
        let Address::Exclusive(dir) = self.place.parse::<Address>()? else {
            return Err(CommandFailure::usage(format!(
                "{}: `tenure check` works on exclusive:DIR only; for other locks use: tenure try WHERE",
                self.place
            )));
        };
        let mut server = ExclusiveServer::new(dir);
        if self.foreign_pids {
            server = server.foreign_pids();
        }
        if let Some((program, arguments)) = self.command.split_first() {
            return match server.begin_cycle() {
                // The gate stays shared until the cycle is dropped, after the command has ended.
                Ok(_cycle) => cycle(program, arguments),
                Err(answer) => {
                    eprintln!("tenure: {}", reason(&answer));
                    Ok(HELD)
                }
            };
        }
        let answer = if self.dry_run {
            server.would_skip()
        } else {
            server.should_skip()
        };
        let json = json!({
            "decision": if answer.skips() { "skip" } else { "proceed" },
            "reason": reason(&answer),
            "class": answer.class().map(tenure_files::Class::name),
            "holder": answer.holder(),
        });
        OutputFormat::of(self.json).answer(reason(&answer), &json)?;
        Ok(if answer.skips() { HELD } else { 0 })
    }
}

fn reason(answer: &CycleDecision) -> String {
    answer
        .log_line(CycleKind::Sync)
        .unwrap_or_else(|| "no lock: proceed".to_owned())
}

fn cycle(program: &OsString, arguments: &[OsString]) -> Result<u8, CommandFailure> {
    match Command::new(program).args(arguments).status() {
        Ok(status) => Ok(output::child_code(status)),
        Err(error) => {
            let code = if error.kind() == std::io::ErrorKind::NotFound {
                127
            } else {
                126
            };
            Err(CommandFailure::new(
                code,
                format!("cannot run {}: {error}", program.display()),
            ))
        }
    }
}
