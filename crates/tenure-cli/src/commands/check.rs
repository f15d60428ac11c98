//! `tenure check`: the server side of an exclusive lock. It reports whether a server may work on
//! its database now, or runs a command as one cycle of that server.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure::Address;
use tenure_files::exclusive::{Cycle, CycleDecision, CycleKind, ExclusiveServer};

use super::run;
use crate::message;
use crate::output::{CommandFailure, HELD, OutputFormat};
use crate::run::wrapper::{self, ChildStart, Terminal};
use crate::run::{
    Channel, Descriptor, OnDeath, OnLost, SignalQueue, SupervisorTask, VariableValue, supervisor,
};

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
        // The supervisor must exist before the first thread: C4 (keeper and process group).
        let supervisor = (!self.command.is_empty()).then(supervisor::fork);
        let form = OutputFormat::of(self.json);
        let decided = match supervisor.transpose() {
            Ok(supervisor) => self.decide(supervisor.as_ref()),
            Err(error) => Err(error.into()),
        };
        form.end(decided)
    }

    fn decide(&self, supervisor: Option<&Channel>) -> Result<u8, CommandFailure> {
        let Address::Exclusive(dir) = self.place.parse::<Address>()? else {
            return Err(CommandFailure::usage(format!(
                "{}: `tenure check` works on exclusive:DIR only; for other locks use: tenure try WHERE",
                self.place
            )));
        };
        // A server of the original protocol proceeds without a directory. Here it is more likely a
        // typing error, and a wrong answer would let two programs work on one database.
        if !dir.is_dir() {
            return Err(CommandFailure::own(format!(
                "{}: there is no such directory; name the directory of the database",
                dir.display()
            )));
        }
        let mut server = ExclusiveServer::new(dir);
        if self.foreign_pids {
            server = server.foreign_pids();
        }
        if let (Some(supervisor), Some(program)) = (supervisor, self.command.first()) {
            return match server.begin_cycle() {
                Ok(cycle) => self.run_cycle(cycle, supervisor, program),
                Err(answer) => {
                    message::say(reason(&answer));
                    Ok(HELD)
                }
            };
        }
        let answer = if self.dry_run {
            server.would_skip()
        } else {
            server.should_skip()
        };
        let reason = match &answer {
            CycleDecision::Removed(_) if self.dry_run => format!(
                "would remove stale lock ({}) and proceed with sync",
                tenure_files::internal::printable(answer.holder().unwrap_or("unknown"))
            ),
            answer => reason(answer),
        };
        let json = json!({
            "decision": if answer.skips() { "skip" } else { "proceed" },
            "dry_run": self.dry_run,
            "reason": reason,
            "class": answer.class().map(tenure_files::Class::name),
            "holder": answer.holder(),
        });
        OutputFormat::of(self.json).answer(&reason, &json)?;
        Ok(if answer.skips() { HELD } else { 0 })
    }

    /// Runs the command as one cycle. The supervisor and the command hold the gate, too, so it
    /// stays closed until the command has ended, even if `tenure` is killed: X20 (the gate file).
    fn run_cycle(
        &self,
        cycle: Cycle,
        supervisor: &Channel,
        program: &OsStr,
    ) -> Result<u8, CommandFailure> {
        let words = u32::try_from(self.command.len());
        let mut terminal = Terminal::find();
        let task = SupervisorTask {
            words: words
                .map_err(|_| CommandFailure::usage("the command has too many arguments"))?,
            on_lost: OnLost::Term,
            grace: Duration::ZERO,
            on_death: OnDeath::EndTree,
            descriptor: Descriptor::Inherited,
            terminal: terminal.foreground(),
            tells_child: terminal.is_lent(),
            joins: terminal.group_to_join(),
            heartbeat: Duration::from_secs(3600),
        };
        terminal.manage();
        let signals = SignalQueue::open()?;
        let (_sender, inbox) = wrapper::mailbox()?;
        let start = ChildStart {
            task,
            variables: vec![("TENURE_GATE_FD".into(), VariableValue::Descriptor)],
            descriptors: vec![cycle.as_fd()],
        };
        let outcome = wrapper::supervise(
            supervisor,
            start,
            &signals,
            &inbox,
            &mut terminal,
            &mut None,
        )?;
        drop(cycle);
        wrapper::finish(supervisor);
        run::code(&outcome, false, program)
    }
}

fn reason(answer: &CycleDecision) -> String {
    answer
        .log_line(CycleKind::Sync)
        .unwrap_or_else(|| "no lock: proceed".to_owned())
}
