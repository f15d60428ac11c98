//! `tenure why`: explains who holds a lock, who waits, which rule applies, and what to do.

use std::process::ExitCode;

use clap::Args;
use tenure::{Address, Capabilities, HolderLiveness, LockState};
use tenure_files::internal::block_on;

use crate::options::InspectOptions;
use crate::output::{CommandFailure, OutputFormat};

/// Why am I waiting? Explains a lock in sentences.
///
/// Who holds it, since when, how that is known, who waits in which order, who waits for whom in a circle,
/// which rule decides, and what you can do.
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
    /// Which lock.
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
    if state.free {
        return vec![format!("take it: tenure run {place} -- COMMAND")];
    }
    let mut steps = vec![format!("wait for it: tenure run -w 10m {place} -- COMMAND")];
    if Capabilities::of(place).ask && !state.holders.is_empty() {
        steps.push(format!("ask the holder to let go: tenure ask {place}"));
    }
    let dead = state
        .holders
        .iter()
        .any(|holder| holder.verdict.life == HolderLiveness::Dead);
    let how = if dead { "break" } else { "break --force" };
    match state.holders.as_slice() {
        [] => {}
        [one] => steps.push(match &one.id {
            Some(id) => format!("take it away from its holder: tenure {how} --id {id} {place}"),
            None => format!("take it away from its holder: tenure {how} {place}"),
        }),
        _ => steps.push(format!(
            "take it away from one of them: tenure {how} --id ID {place}"
        )),
    }
    steps
}
