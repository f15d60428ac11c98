//! `tenure why`: explains who holds a lock, who waits, which conflict rule applies, and what to do.

use std::process::ExitCode;

use clap::Args;
use tenure::{Address, Capabilities, HolderLiveness, LockState};
use tenure_files::internal::block_on;

use crate::options::InspectOptions;
use crate::output::{CommandFailure, OutputFormat};

/// Explain who holds a lock and why a request has to wait.
///
/// Prints the holders, since when they hold the lock and how that is known, the waiters in order,
/// deadlocks, the policy, and what you can do next.
///
/// Examples:
///   tenure why state.json
///   tenure why tenant:/acme/projects/42
///   tenure why --json s3://bucket/backup
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct WhyCommand {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The address of the lock.
    #[arg(value_name = "WHERE")]
    place: String,
}

impl WhyCommand {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.explain().map(|()| 0))
    }

    fn explain(&self) -> Result<(), CommandFailure> {
        let place: Address = self.place.parse()?;
        let tenure = self.inspect_options.tenure(std::slice::from_ref(&place))?;
        let state = block_on(tenure.inspect(&place))?;
        OutputFormat::of(self.json).answer(sentences(&state), &state)
    }
}

/// Formats the state and the next step: C8 (message when busy).
fn sentences(state: &LockState) -> String {
    let mut text = state.to_string();
    for step in next_steps(state) {
        text.push_str("\n  next: ");
        text.push_str(&step);
    }
    text
}

fn next_steps(state: &LockState) -> Vec<String> {
    let place = &state.place;
    if state.not_a_record {
        return Vec::new();
    }
    if state.free {
        return vec![format!("acquire it: tenure run {place} -- COMMAND")];
    }
    let mut steps = vec![format!("wait for it: tenure run -w 10m {place} -- COMMAND")];
    if Capabilities::of(place).ask && !state.holders.is_empty() {
        steps.push(format!("ask the holder to release it: tenure ask {place}"));
    }
    let dead = state
        .holders
        .iter()
        .any(|holder| holder.verdict.life == HolderLiveness::Dead);
    let how = if dead { "break" } else { "break --force" };
    match state.holders.as_slice() {
        [] => {}
        [one] => steps.push(match &one.id {
            Some(id) => format!("remove the lock: tenure {how} --id {id} {place}"),
            None => format!("remove the lock: tenure {how} {place}"),
        }),
        _ => steps.push(format!(
            "remove the lock of one holder: tenure {how} --id ID {place}"
        )),
    }
    steps
}
