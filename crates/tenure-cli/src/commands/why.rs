//! `tenure why`: explains who holds a lock, who waits, which conflict rule applies, and what to do.

use std::process::ExitCode;

use clap::Args;
use tenure::{Address, Blocker, Capabilities, HolderLiveness, LockState, Mode};
use tenure_files::internal::block_on;

use crate::nesting;
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

/// The most holders and waiters that are shown.
const SHOWN: usize = 5;

/// Formats the answer, the details and the next steps: C8 (message when busy).
fn sentences(state: &LockState) -> String {
    let mut lines = Vec::new();
    let outer = nesting::outer_holds();
    if let Some(own) = outer
        .iter()
        .find(|hold| hold.blocks(&state.place, Mode::Exclusive))
    {
        lines.push(format!(
            "you hold {} already: this command runs under tenure run (pid {})",
            state.place, own.pid
        ));
    }
    if !state.deadlock.is_empty() {
        lines.push(format!(
            "DEADLOCK at {}: these owners wait for each other, so none of them goes on",
            state.place
        ));
        lines.push(format!("  {}", state.deadlock.join(" ──waits for──▶ ")));
    }
    lines.push(shortened(state).to_string());
    if let Some(rule) = state.rule.as_deref().and_then(rule_sentence) {
        lines.push(format!("  {rule}"));
    }
    for step in next_steps(state) {
        lines.push(format!("  next: {step}"));
    }
    lines.join("\n")
}

/// Returns the state with at most [`SHOWN`] holders and waiters, without what is said elsewhere.
fn shortened(state: &LockState) -> LockState {
    let mut short = state.clone();
    let mut cut = Vec::new();
    for (count, what) in [
        (state.holders.len(), "holders"),
        (state.known_waiters().len(), "waiters"),
    ] {
        if count > SHOWN {
            cut.push(format!("and {} more {what}", count - SHOWN));
        }
    }
    short.holders.truncate(SHOWN);
    short
        .waiters
        .iter_mut()
        .for_each(|waiters| waiters.truncate(SHOWN));
    short.deadlock.clear();
    short.rule = None;
    short.notes.extend(cut);
    short
}

/// Explains the conflict rule of a namespace. The rule names the namespace and the algorithm.
fn rule_sentence(rule: &str) -> Option<String> {
    let mut parts = rule.strip_prefix("namespace ")?.split(", ");
    let (namespace, algorithm) = (parts.next()?, parts.next()?);
    let meaning = match algorithm {
        "recursive_rw" => {
            "an exclusive lock covers everything below its path; shared locks of one path share it"
        }
        "point_rw" => "a lock covers its own path only; shared locks of one path share it",
        "recursive_write" => "every lock is exclusive and covers everything below its path",
        "point_write" => "every lock is exclusive and covers its own path only",
        "semaphore" => "as many holders as the path has permits",
        _ => return None,
    };
    Some(format!("in {namespace} ({algorithm}): {meaning}"))
}

fn next_steps(state: &LockState) -> Vec<String> {
    let place = &state.place;
    if state.not_a_record {
        return Vec::new();
    }
    if state.free {
        return vec![format!("acquire it: tenure run {place} -- COMMAND")];
    }
    let can_ask = Capabilities::of(place).ask && !state.holders.is_empty();
    if !state.deadlock.is_empty() {
        // No wait ends by itself, so each way out ends one of the holds.
        let mut steps = vec![format!(
            "stop one of these programs, or make it give up: tenure ask {place}"
        )];
        let in_cycle = |hold: &&Blocker| {
            let id = hold.id.as_ref().map(tenure::HoldId::as_str);
            id.is_some_and(|id| {
                state
                    .deadlock
                    .iter()
                    .any(|owner| id.contains(owner.as_str()))
            })
        };
        for hold in state.holders.iter().filter(in_cycle) {
            if let Some(id) = &hold.id {
                steps.push(format!(
                    "take it from {}: tenure break --force --id {id} {}",
                    hold.holder, hold.place
                ));
            }
        }
        return steps;
    }
    let is_dead = |hold: &Blocker| hold.verdict.life == HolderLiveness::Dead;
    let dead = state.holders.iter().any(is_dead);
    let mut steps = vec![format!("wait for it: tenure run -w 10m {place} -- COMMAND")];
    if can_ask {
        steps.push(format!("ask the holder to release it: tenure ask {place}"));
    }
    let how = if dead { "break" } else { "break --force" };
    // The last resort: a live holder loses its lock.
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
