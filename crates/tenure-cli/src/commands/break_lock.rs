//! `tenure break`: removes a lock of another holder.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure::{Address, Blocker, Force, HoldId, HolderLiveness, LockState};
use tenure_files::internal::block_on;
use tenure_files::sidecar;

use crate::message;
use crate::options::InspectOptions;
use crate::output::{self, CommandFailure, OutputFormat};

/// Remove a lock. Shows which holds it will remove and asks for confirmation.
///
/// Without --force only dead and stale locks are removed, and only on a terminal. With --force a live
/// lock is removed, too: its holder loses the lock, and where fences are used, the fence rises, so that
/// later writes of the holder are refused. In a repository, select one hold with --id, or all with --all.
///
/// Examples:
///   tenure break state.json
///   tenure break --force --id 5b1c… state.json     # only if this hold still exists
///   tenure break --force --all s3://bucket/backup
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BreakCommand {
    /// Do not ask for confirmation, and remove a live lock, too.
    #[arg(long)]
    force: bool,
    /// Remove only this hold (token, owner or object, as `tenure why` shows it), if it still exists.
    #[arg(long, value_name = "ID", conflicts_with = "all")]
    id: Option<String>,
    /// Remove every hold of a repository.
    #[arg(long)]
    all: bool,
    /// Lock files: remove the guard file that an interrupted clean-up left beside the lock, not the lock.
    #[arg(long, conflicts_with_all = ["id", "all"])]
    guard: bool,
    /// With --force: remove the file even if it is not a lock record, such as Cargo.lock.
    #[arg(long, requires = "force")]
    not_a_record: bool,
    /// The reason, for the audit log.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The address of the lock.
    #[arg(value_name = "WHERE")]
    place: String,
}

impl BreakCommand {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.remove().map(|()| 0))
    }

    fn remove(&self) -> Result<(), CommandFailure> {
        let place: Address = self.place.parse()?;
        let tenure = self.inspect_options.tenure(std::slice::from_ref(&place))?;
        if !self.force && !output::is_terminal(std::io::stdin()) {
            return Err(CommandFailure::usage(format!(
                "not removed: standard input is not a terminal, so the removal of {place} cannot be confirmed; \
                 to remove it anyway, add --force"
            )));
        }
        if self.guard {
            return self.remove_guard(&place);
        }
        let state = block_on(tenure.inspect(&place))?;
        if state.not_a_record && !self.not_a_record {
            return Err(CommandFailure::own(format!("not removed: {state}")));
        }
        let victims = self.victims(&state)?;
        if !self.force {
            refuse_living(&place, &victims)?;
            confirm(&place, &victims)?;
        }
        // A single victim is named by its id, so that a later holder is not hit.
        let id = match (self.all, &self.id, victims.as_slice()) {
            (true, _, _) => None,
            (_, Some(id), _) => Some(HoldId::new(id.clone())),
            (_, None, [one]) => one.id.clone(),
            (_, None, _) => None,
        };
        let force = if self.force { Force::Yes } else { Force::No };
        let broken = block_on(tenure.break_hold(&place, id.as_ref(), force, &self.reason))?;
        let fence = broken
            .fence
            .map_or_else(String::new, |fence| format!("; the fence is now {fence}"));
        let text = match broken.victims.as_slice() {
            [] => format!("removed the lock of {place}{fence}"),
            [one] => format!("removed the lock of {place}, {}{fence}", describe(one)),
            several => {
                let whom: Vec<String> = several.iter().map(describe).collect();
                let count = several.len();
                format!(
                    "removed {count} locks of {place}{fence}:\n  {}",
                    whom.join("\n  ")
                )
            }
        };
        let json = json!({ "place": place, "broken": broken.victims, "fence": broken.fence });
        OutputFormat::of(self.json).answer(text, &json)
    }

    /// Removes a reclaim guard. It has no holder that could be checked, so only a person can decide
    /// that it is a leftover: S22 (guards of crashed reclaimers).
    fn remove_guard(&self, place: &Address) -> Result<(), CommandFailure> {
        let Address::Sidecar(file) = place else {
            return Err(CommandFailure::usage(
                "--guard applies to lock files only; other locks have no guard",
            ));
        };
        if !self.force {
            output::ask(
                "this removes the guard beside the lock. Another program may be cleaning up the lock now; \
                 remove the guard only if none is. Remove it? [y/N] ",
                NOTHING,
            )?;
        }
        let was_there = sidecar::break_guard(&sidecar::Options::new(file))?;
        let text = match was_there {
            true => format!("removed the guard of {place}"),
            false => format!("{place} has no guard; nothing was removed"),
        };
        let json = json!({ "place": place, "guard": was_there });
        OutputFormat::of(self.json).answer(text, &json)
    }

    /// Returns the holds to remove.
    fn victims(&self, state: &LockState) -> Result<Vec<Blocker>, CommandFailure> {
        let place = &state.place;
        let named = |hold: &&Blocker| match (&self.id, &hold.id) {
            (None, _) => true,
            (Some(wanted), Some(id)) => id.as_str() == wanted,
            (Some(_), None) => false,
        };
        let mut victims: Vec<Blocker> = state.holders.iter().filter(named).cloned().collect();
        let is_repository = matches!(place, Address::Repository(_));
        if is_repository && self.id.is_none() && !self.all && !victims.is_empty() {
            // C16 (details of codes and break): a repository may have many holders, so a live one
            // must be named.
            victims.retain(|hold| hold.verdict.life == HolderLiveness::Dead);
            if victims.is_empty() {
                return Err(CommandFailure::new(
                    output::HELD,
                    format!(
                        "not removed: every holder may be alive; select one with --id ID, or all with --all:\n{state}"
                    ),
                ));
            }
        }
        match (&self.id, victims.len()) {
            (Some(id), 0) => Err(CommandFailure::own(format!(
                "{place} is not held by {id} any more; nothing was removed"
            ))),
            (None, 0) if state.free => Err(CommandFailure::own(format!(
                "{place} is not held; nothing was removed"
            ))),
            (None, 2..) if !self.all => Err(CommandFailure::usage(format!(
                "{place} has several holders; select one with --id ID, or all with --all:\n{state}"
            ))),
            _ => Ok(victims),
        }
    }
}

const NOTHING: &str = "nothing was removed";

fn describe(hold: &Blocker) -> String {
    match &hold.id {
        Some(id) => format!("{hold} [{id}]"),
        None => hold.to_string(),
    }
}

/// C16: an answer to the prompt is not enough to remove a live lock.
fn refuse_living(place: &Address, victims: &[Blocker]) -> Result<(), CommandFailure> {
    match victims
        .iter()
        .find(|hold| hold.verdict.life == HolderLiveness::Alive)
    {
        Some(hold) => Err(CommandFailure::new(
            output::HELD,
            format!(
                "not removed: {place} is {hold}, and the holder is alive; to remove the lock anyway, add --force"
            ),
        )),
        None => Ok(()),
    }
}

fn confirm(place: &Address, victims: &[Blocker]) -> Result<(), CommandFailure> {
    message::print(format!("this removes the lock of {place}:\n"));
    for hold in victims {
        message::print(format!("  {}\n", describe(hold)));
    }
    output::ask("remove it? [y/N] ", NOTHING)
}
