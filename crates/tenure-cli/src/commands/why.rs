//! `tenure why`: explains who holds a lock, who waits, which conflict rule applies, and what to do.

use std::process::ExitCode;

use clap::Args;
use tenure::{
    Address, Blocker, Capabilities, HolderLiveness, HumanDuration, LockState, Mode, QueuedWaiter,
    Tenure,
};
use tenure_files::internal::block_on;

use crate::nesting;
use crate::options::InspectOptions;
use crate::output::{CommandFailure, OutputFormat};
use crate::terminal::{self, Tone};

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
        let view = WhyView::new(&tenure, state);
        let colored = terminal::has_color(std::io::stdout());
        OutputFormat::of(self.json).answer(view.text(colored), &view.state)
    }
}

/// The answer of `why`, for the command and for `top`.
pub(crate) struct WhyView {
    state: LockState,
    /// The owners of a deadlock, each with what it holds and what it waits for.
    circle: Vec<CircleMember>,
}

/// An owner in a deadlock.
struct CircleMember {
    owner: String,
    who: String,
    /// The hold that the owner before it in the circle waits for.
    holds: Option<Blocker>,
    waits_for: Option<QueuedWaiter>,
}

impl WhyView {
    pub(crate) fn new(tenure: &Tenure, state: LockState) -> WhyView {
        let circle = match state.deadlock.is_empty() {
            true => Vec::new(),
            // Only a deadlock needs the locks of other paths.
            false => circle(
                &state.deadlock,
                &block_on(tenure.list_all()).unwrap_or_default(),
            ),
        };
        WhyView { state, circle }
    }

    /// Formats the answer, the details and the next steps: C8 (message when busy).
    pub(crate) fn text(&self, colored: bool) -> String {
        let state = &self.state;
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
        if !self.circle.is_empty() {
            let headline = format!(
                "DEADLOCK at {}: {} owners wait for each other, and none of them can go on",
                state.place,
                self.circle.len()
            );
            lines.push(Tone::Bad.paint(headline, colored));
            lines.extend(self.drawing());
        }
        lines.push(shortened(state).to_string());
        if let Some(permits) = state.permits {
            lines.push(format!(
                "  {} of {} permits are held",
                permits.held, permits.of
            ));
        }
        if let Some(rule) = state.rule.as_deref().and_then(rule_sentence) {
            lines.push(format!("  {rule}"));
        }
        let is_own = lines
            .first()
            .is_some_and(|line| line.starts_with("you hold "));
        let steps = match is_own {
            true => vec!["go on: the lock is already yours".to_owned()],
            false => self.next_steps(),
        };
        for step in steps {
            let (what, command) = step.split_once(": ").unwrap_or((step.as_str(), ""));
            let command = Tone::Strong.paint(command, colored && !command.is_empty());
            let colon = if command.is_empty() { "" } else { ": " };
            lines.push(format!("  next: {what}{colon}{command}"));
        }
        lines.join("\n")
    }

    /// Draws the circle: each owner with its hold and its wait.
    fn drawing(&self) -> Vec<String> {
        let last = self.circle.len().saturating_sub(1);
        let members = self.circle.iter().enumerate();
        let lines = members.map(|(at, member)| {
            let edge = match at {
                0 => "┌─▶",
                at if at == last => "└──",
                _ => "│  ",
            };
            let holds = member.holds.as_ref().map_or_else(
                || "holds a lock that the one above waits for".to_owned(),
                |hold| format!("holds {}", hold.place),
            );
            let waits = member.waits_for.as_ref().map_or_else(
                || "and waits".to_owned(),
                |wait| match wait.waited {
                    Some(time) => format!("and waits {} for {}", HumanDuration(time), wait.place),
                    None => format!("and waits for {}", wait.place),
                },
            );
            format!("  {edge} {} {holds} {waits}", member.who)
        });
        lines.collect()
    }

    fn next_steps(&self) -> Vec<String> {
        if self.circle.is_empty() {
            return next_steps(&self.state);
        }
        // No wait ends by itself, so each way out ends one of the holds.
        let place = &self.state.place;
        let mut steps = vec![format!(
            "stop one of these programs, or ask the holder to give up: tenure ask {place}"
        )];
        for member in &self.circle {
            let Some(hold) = &member.holds else { continue };
            let id = hold
                .id
                .as_ref()
                .map_or(member.owner.as_str(), tenure::HoldId::as_str);
            steps.push(format!(
                "or end the hold of {}: tenure break --force --id {id} {}",
                member.who, hold.place
            ));
        }
        steps
    }
}

/// Finds what each owner of a deadlock holds and waits for. The last owner is the first one again.
fn circle(owners: &[String], states: &[LockState]) -> Vec<CircleMember> {
    let count = owners.len().saturating_sub(1);
    let owners = &owners[..count];
    let holds_of = |owner: &String| -> Vec<&Blocker> {
        let is_own = |hold: &&Blocker| {
            let id = hold.id.as_ref().map(tenure::HoldId::as_str);
            let holder = id
                .and_then(|id| id.rsplit_once('@'))
                .map(|(holder, _)| holder);
            holder == Some(owner.as_str())
        };
        let holds = states.iter().flat_map(|state| &state.holders);
        holds.filter(is_own).collect()
    };
    let holds: Vec<Vec<&Blocker>> = owners.iter().map(holds_of).collect();
    // Of several waits the one for a hold of the next owner.
    let waits: Vec<Option<&QueuedWaiter>> = owners
        .iter()
        .enumerate()
        .map(|(at, owner)| {
            let waiters = states.iter().flat_map(LockState::known_waiters);
            let own: Vec<&QueuedWaiter> = waiters.filter(|waiter| waiter.owner == *owner).collect();
            let next = &holds[(at + 1) % count];
            let is_edge =
                |wait: &&&QueuedWaiter| next.iter().any(|hold| overlaps(&hold.place, &wait.place));
            own.iter().find(is_edge).or(own.first()).copied()
        })
        .collect();
    let members = owners.iter().enumerate().map(|(at, owner)| {
        // Of several holds the one that the owner before it waits for.
        let before = waits[(at + count - 1) % count];
        let is_edge =
            |hold: &&&Blocker| before.is_some_and(|wait| overlaps(&hold.place, &wait.place));
        let held = holds[at]
            .iter()
            .find(is_edge)
            .or(holds[at].first())
            .copied();
        let who = match (held, waits[at]) {
            (Some(hold), _) => hold.holder.to_string(),
            (None, Some(wait)) => wait.holder.to_string(),
            (None, None) => owner.clone(),
        };
        CircleMember {
            owner: owner.clone(),
            who,
            holds: held.cloned(),
            waits_for: waits[at].cloned(),
        }
    });
    members.collect()
}

/// Whether one of two daemon paths is the other, or above it.
fn overlaps(one: &Address, two: &Address) -> bool {
    match (one, two) {
        (Address::Daemon { path: one, .. }, Address::Daemon { path: two, .. }) => {
            one == two || one.is_ancestor_of(two) || two.is_ancestor_of(one)
        }
        (one, two) => one == two,
    }
}

/// The most holders and waiters that are shown.
const SHOWN: usize = 5;

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
    let is_semaphore = state
        .rule
        .as_ref()
        .is_some_and(|rule| rule.contains("semaphore"));
    let permits = match state.permits {
        Some(permits) => format!("--permits {} ", permits.of),
        None if is_semaphore => "--permits N ".to_owned(),
        None => String::new(),
    };
    if state.free {
        return vec![format!(
            "acquire it: tenure run {permits}{place} -- COMMAND"
        )];
    }
    let can_ask = Capabilities::of(place).ask && !state.holders.is_empty();
    let is_dead = |hold: &Blocker| hold.verdict.life == HolderLiveness::Dead;
    let dead = state.holders.iter().any(is_dead);
    let mut steps = vec![format!(
        "wait for it: tenure run -w 10m {permits}{place} -- COMMAND"
    )];
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
