//! `tenure try`: reports by its exit code whether a lock is free.

use std::process::ExitCode;

use clap::Args;
use tenure::{Address, LockState, Mode};
use tenure_files::internal::block_on;

use crate::options::InspectOptions;
use crate::output::{CommandFailure, HELD, OutputFormat};

/// Check whether a lock is free: exits with 0 if it is free, with 75 if it is held.
///
/// Prints the holder. Acquires and removes nothing. The answer may be out of date when you read it: to act
/// on a free lock, use `tenure run -n`.
///
/// Examples:
///   tenure try state.json && echo free
///   tenure try --json tenant:/acme/42 | jq .holders
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Try {
    /// Check for a shared lock.
    #[arg(short, long, conflicts_with = "exclusive")]
    shared: bool,
    /// Check for an exclusive lock. This is the default.
    #[arg(short = 'x', long)]
    exclusive: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The address of the lock.
    #[arg(value_name = "WHERE")]
    place: String,
}

impl Try {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.look())
    }

    fn look(&self) -> Result<u8, CommandFailure> {
        let place: Address = self.place.parse()?;
        let tenure = self.inspect_options.tenure(std::slice::from_ref(&place))?;
        let state = block_on(tenure.inspect(&place))?;
        let free = self.is_free(&state);
        let text = match (free, state.holders.first()) {
            (true, _) => format!("{place} is free"),
            (false, Some(holder)) => format!("{place} is {holder}"),
            (false, None) => state.to_string(),
        };
        OutputFormat::of(self.json).answer(text, &state)?;
        Ok(if free { 0 } else { HELD })
    }

    fn is_free(&self, state: &LockState) -> bool {
        let shares = |mode| matches!(mode, Mode::Shared | Mode::SharedTree);
        state.free
            || self.shared
                && !state.holders.is_empty()
                && state.holders.iter().all(|holder| shares(holder.mode))
                && state.known_waiters().is_empty()
    }
}
