//! `tenure fence check`: checks whether a hold is still valid.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure::{Address, Blocker, HolderLiveness, LockState};
use tenure_files::internal::block_on;

use crate::options::InspectOptions;
use crate::output::{CommandFailure, LOST, OutputFormat};

/// Check whether a hold is still valid.
#[derive(Subcommand)]
pub(crate) enum FenceCommand {
    Check(Box<FenceCheckCommand>),
}

impl FenceCommand {
    pub(crate) fn run(self) -> ExitCode {
        match self {
            FenceCommand::Check(check) => check.run(),
        }
    }
}

/// Check whether a hold is still valid: exits with 0 if it is, with 120 if it is lost.
///
/// Under `tenure run` it needs no arguments: it reads TENURE_WHERE, TENURE_OWNER and TENURE_FENCE. Check
/// immediately before the step that must not happen twice, and pass the fence to the store that keeps the
/// result.
///
/// Examples:
///   tenure run --fence state.json -- sh -c './prepare && tenure fence check && ./commit --fence $TENURE_FENCE'
///   tenure fence check --owner "$owner" --fence 42 tenant:/acme/42
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct FenceCheckCommand {
    /// The fence that the hold must have.
    #[arg(long, value_name = "N", env = "TENURE_FENCE")]
    fence: Option<u64>,
    /// The expected holder: the token of a lock file, the owner on the daemon.
    #[arg(long, value_name = "ID", env = "TENURE_OWNER")]
    owner: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The address of the lock [default: TENURE_WHERE].
    #[arg(value_name = "WHERE")]
    place: Option<String>,
}

impl FenceCheckCommand {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.check())
    }

    fn check(&self) -> Result<u8, CommandFailure> {
        let place = match &self.place {
            Some(place) => place.parse()?,
            None => from_environment()?,
        };
        let tenure = self.inspect_options.tenure(std::slice::from_ref(&place))?;
        let state = block_on(tenure.inspect(&place))?;
        let held = self.is_in_force(&state);
        let text = match held {
            true => format!("{place} is still held by {}", self.owner),
            false => format!("{place} is not held by {} any more\n{state}", self.owner),
        };
        let json = json!({ "held": held, "place": place, "owner": self.owner, "fence": self.fence, "state": state });
        OutputFormat::of(self.json).answer(text, &json)?;
        Ok(if held { 0 } else { LOST })
    }

    fn is_in_force(&self, state: &LockState) -> bool {
        let is_ours = |hold: &Blocker| {
            // On the daemon an id is `owner@fence`; the caller may also give the owner alone.
            let id = hold.id.as_ref().map_or("", |id| id.as_str());
            let owner = id.rsplit_once('@').map_or(id, |(owner, _)| owner);
            (id == self.owner || owner == self.owner) && hold.verdict.life != HolderLiveness::Dead
        };
        let same_fence = |hold: &Blocker| match (self.fence, hold.fence) {
            (Some(wanted), Some(fence)) => fence.get() == wanted,
            (Some(_) | None, _) => true,
        };
        state
            .holders
            .iter()
            .any(|hold| is_ours(hold) && same_fence(hold))
    }
}

/// Returns the address from the variables of `tenure run`: C3 (environment of the child).
///
/// TENURE_WHERE may be relative to another directory, so the absolute path of the lock file is
/// preferred.
fn from_environment() -> Result<Address, CommandFailure> {
    let missing = || CommandFailure::usage("name the lock, or run this command under `tenure run`");
    let place: Address = std::env::var("TENURE_WHERE")
        .map_err(|_| missing())?
        .parse()?;
    let Some(lock) = std::env::var_os("TENURE_LOCK_PATH") else {
        return Ok(place);
    };
    let lock = Path::new(&lock);
    Ok(match (place, lock.parent()) {
        (Address::Sidecar(_), _)
            if lock
                .extension()
                .is_some_and(|extension| extension == "lock") =>
        {
            Address::Sidecar(lock.with_extension(""))
        }
        (Address::Exclusive(_), Some(dir)) => Address::Exclusive(dir.to_owned()),
        (other, _) => other,
    })
}
