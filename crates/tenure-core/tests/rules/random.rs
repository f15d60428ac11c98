//! Property tests: random commands for the space and its model, and shrinking of a failing
//! sequence.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_core::command::WaitMode;
use tenure_core::limits::{Quota, QuotaValues};
use tenure_core::outcome::Applied;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::query::HeldLock;
use tenure_core::value::{OwnerId, Stamp};
use tenure_reference::Model;

use crate::cluster_state::{ClusterState, owner_id};
use crate::model_comparison::ModelPair;
use crate::rng::Rng;
use crate::scenario::describe;
use crate::step::{AcquireStep, Step, StepTarget, Supplied, WantedPath};

const OWNERS: [&str; 5] = ["amy", "bob", "cid@key:ci", "dan@key:ci", "eve"];
const PATHS: [&str; 9] = [
    "t:/a", "t:/a/b", "t:/a/b/c", "t:/a/b/d", "t:/a/e", "t:/ab", "t:/ab/b", "u:/a", "u:/a/b",
];
const NAMESPACES: [&str; 7] = ["t:/a", "t:/ab", "u:/a", "t:/a/b", "t", "t:/", "u"];

/// Algorithms that the namespaces start with.
const WITH_READS: [Algorithm; 4] = [
    Algorithm::RecursiveRw,
    Algorithm::RecursiveRw,
    Algorithm::PointRw,
    Algorithm::RecursiveWrite,
];
const WITHOUT_READS: [Algorithm; 4] = [
    Algorithm::Semaphore,
    Algorithm::Semaphore,
    Algorithm::RecursiveWrite,
    Algorithm::PointWrite,
];

/// Probabilities of one sequence. Each sequence stresses another part.
struct WorkloadBias {
    owners: usize,
    paths: usize,
    /// Whether acquires use other algorithms than the table's, as during a policy change.
    mixed: bool,
    policies: bool,
    /// Whether there are reads. Without them, semaphores and the two algorithms without reads occur
    /// more often.
    reads: bool,
    waiting: WaitMode,
    /// The rules number that applies.
    rules: u32,
    /// Whether acquires come with quotas.
    quotas: bool,
}

impl WorkloadBias {
    fn throw(rng: &mut Rng) -> WorkloadBias {
        WorkloadBias {
            owners: 2 + rng.below(4) as usize,
            paths: 2 + rng.below(PATHS.len() as u64 - 1) as usize,
            mixed: rng.one_in(6),
            policies: rng.one_in(2),
            reads: !rng.one_in(3),
            waiting: rng.pick(&[WaitMode::Queue, WaitMode::QueueAndAsk, WaitMode::Queue]),
            rules: rng.pick(&[1, 2, 2]),
            quotas: rng.one_in(3),
        }
    }

    fn owner(&self, rng: &mut Rng) -> String {
        rng.pick(&OWNERS[..self.owners]).into()
    }

    fn path(&self, rng: &mut Rng) -> String {
        rng.pick(&PATHS[..self.paths]).into()
    }

    fn hold(&self, rng: &mut Rng) -> (Mode, String) {
        let mode = if self.reads { mode(rng) } else { Mode::Write };
        (mode, self.path(rng))
    }

    fn namespace(&self, rng: &mut Rng) -> String {
        // Mostly the fallback namespaces of the paths.
        if rng.one_in(4) {
            rng.pick(&NAMESPACES).into()
        } else {
            rng.pick(&NAMESPACES[..3]).into()
        }
    }
}

/// Present holds and waiters. Most releases, renewals and breaks refer to them; random ones would
/// rarely hit anything.
struct ObservedLine {
    holds: Vec<HeldLock>,
    waiters: Vec<(Namespace, OwnerId)>,
}

impl ObservedLine {
    fn of(model: &Model) -> ObservedLine {
        let owners = OWNERS.iter().map(|name| owner_id(name));
        let waits = owners.flat_map(|owner| {
            let waits = model.waits_for(&owner);
            waits
                .into_iter()
                .map(move |waits| (waits.place.namespace, owner.clone()))
        });
        ObservedLine {
            holds: model.holds(),
            waiters: waits.collect(),
        }
    }

    /// Returns a present hold, in three of four cases.
    fn hold(&self, rng: &mut Rng) -> Option<&HeldLock> {
        if self.holds.is_empty() || rng.one_in(4) {
            return None;
        }
        Some(&self.holds[rng.below(self.holds.len() as u64) as usize])
    }

    fn waiter(&self, rng: &mut Rng) -> Option<&(Namespace, OwnerId)> {
        if self.waiters.is_empty() || rng.one_in(4) {
            return None;
        }
        Some(&self.waiters[rng.below(self.waiters.len() as u64) as usize])
    }
}

fn mode(rng: &mut Rng) -> Mode {
    rng.pick(&[
        Mode::Write,
        Mode::Write,
        Mode::Write,
        Mode::Read,
        Mode::Read,
        Mode::ReadTree,
    ])
}

fn aim(rng: &mut Rng) -> StepTarget {
    if rng.one_in(4) {
        StepTarget::Wrong
    } else {
        StepTarget::Right
    }
}

fn key(rng: &mut Rng) -> Option<String> {
    let key = format!("k{}", rng.below(12));
    rng.one_in(6).then_some(key)
}

fn acquire(rng: &mut Rng, mood: &WorkloadBias, sight: &ObservedLine) -> AcquireStep {
    let mut step = AcquireStep::of(&mood.owner(rng));
    let count = rng.pick(&[1, 1, 1, 2, 2, 3]);
    for _ in 0..count {
        let (mode, path) = mood.hold(rng);
        step.wants.push(WantedPath {
            held: rng.one_in(24),
            mode,
            permits: permits(rng, &path),
            path,
        });
    }
    if rng.one_in(5)
        && let Some(held) = sight.hold(rng)
    {
        // A hold that the owner really has, to be verified or released with the acquire.
        step.owner = held.owner.to_string();
        if rng.one_in(2) {
            step.drops.push((held.mode, held.path.to_string()));
        } else {
            let at = rng.below(step.wants.len() as u64 + 1) as usize;
            let want = WantedPath {
                held: true,
                mode: held.mode,
                path: held.path.to_string(),
                permits: 0,
            };
            step.wants.insert(at, want);
        }
    }
    if rng.one_in(6) {
        step.drops.extend(rng.list(2, |rng| mood.hold(rng)));
        if rng.one_in(4) {
            step.wants.clear();
        }
    }
    if rng.one_in(4) {
        step.fence = match rng.below(8) {
            0 => Supplied::Number(rng.below(40) as i64),
            1 => Supplied::Number(1 << rng.pick(&[20, 51])),
            _ => Supplied::Stored(rng.below(4) as i64 - 1),
        };
    }
    if mood.quotas && rng.one_in(2) {
        let mut values = || QuotaValues {
            paths: rng.one_in(2).then(|| rng.below(6)),
            waiting: rng.one_in(3).then(|| rng.below(3)),
            owners: rng.one_in(3).then(|| rng.below(4)),
        };
        step.quota = Quota {
            own: values(),
            total: values(),
        };
    }
    step.key = key(rng);
    step.ttl = rng.pick(&[10_000, 10_000, 2_000, 90_000]);
    step.queue_ttl = rng.pick(&[0, 0, 0, 1_000, 20_000]);
    // No waiter can have another algorithm than the table's, because a policy change drops all
    // waiters.
    step.wait = if mood.mixed || rng.one_in(6) {
        WaitMode::No
    } else {
        mood.waiting
    };
    step.holder = rng
        .one_in(5)
        .then(|| rng.pick(&["desk", "lab"]).to_string());
    step.stale = rng.one_in(24);
    step.algorithm = (mood.mixed && rng.one_in(3)).then(|| rng.pick(&Algorithm::ALL));
    step
}

/// Returns the number of permits: mostly the same one or two for a path.
fn permits(rng: &mut Rng, path: &str) -> u32 {
    match rng.below(12) {
        0 => 0,
        1 => 3,
        _ => 1 + path.len() as u32 % 2,
    }
}

fn release(rng: &mut Rng, mood: &WorkloadBias, sight: &ObservedLine) -> Step {
    let mut owner = mood.owner(rng);
    let mut holds = vec![mood.hold(rng)];
    if let Some(held) = sight.hold(rng) {
        owner = held.owner.to_string();
        holds = vec![(held.mode, held.path.to_string())];
    }
    if rng.one_in(4) {
        holds.push(mood.hold(rng));
    }
    Step::Release {
        owner,
        holds,
        key: key(rng),
        stale: rng.one_in(24),
    }
}

/// Returns an owner and a namespace, mostly with a lease.
fn lease(rng: &mut Rng, mood: &WorkloadBias, sight: &ObservedLine) -> (String, String) {
    match sight.hold(rng) {
        Some(held) => (held.owner.to_string(), held.namespace.to_string()),
        None => (mood.owner(rng), mood.namespace(rng)),
    }
}

fn step(rng: &mut Rng, mood: &WorkloadBias, sight: &ObservedLine) -> Step {
    // The weights are per cent. Half of the steps acquire, so that there is something to block.
    match rng.below(100) {
        0..50 => Step::Acquire(acquire(rng, mood, sight)),
        50..62 => release(rng, mood, sight),
        62..65 => Step::Leave {
            owner: mood.owner(rng),
            domains: rng.list(2, |rng| mood.namespace(rng)),
        },
        65 => Step::Kill {
            owner: mood.owner(rng),
        },
        66..70 => {
            let (owner, namespace) = lease(rng, mood, sight);
            Step::Renew {
                owner,
                namespace,
                ttl: rng.pick(&[1_000, 10_000, 100_000]),
            }
        }
        70..75 => {
            let (owner, namespace) = lease(rng, mood, sight);
            Step::Expire {
                owner,
                namespace,
                aim: aim(rng),
            }
        }
        75..78 => Step::Tick(rng.pick(&[0, 1, 500, 1_500, 25_000, 60_000])),
        78..80 => Step::Later(rng.pick(&[1, 500, 1_500, 25_000, 300_000])),
        80 => match rng.below(8) {
            0 => Step::Tick(24 * 3_600_000),
            _ => Step::Tick(1),
        },
        81..83 => Step::Revoke {
            owner: mood.owner(rng),
        },
        83..86 => {
            let (mut owner, (mut mode, mut path)) = (mood.owner(rng), mood.hold(rng));
            if let Some(held) = sight.hold(rng) {
                owner = held.owner.to_string();
                (mode, path) = (held.mode, held.path.to_string());
            }
            Step::Break {
                owner,
                mode,
                path,
                aim: aim(rng),
            }
        }
        86..89 => {
            let (owner, namespace) = match sight.waiter(rng) {
                Some((namespace, owner)) => (owner.to_string(), namespace.to_string()),
                None => (mood.owner(rng), mood.namespace(rng)),
            };
            Step::Withdraw {
                owner,
                namespace,
                aim: aim(rng),
            }
        }
        89..92 => Step::Retry,
        92..94 => Step::Again,
        94 if mood.policies => Step::Freeze {
            root: rng.pick(&NAMESPACES).into(),
        },
        95..98 if mood.policies => Step::Decide {
            row: (!rng.one_in(4)).then(|| rng.pick(&Algorithm::ALL)),
        },
        98 if mood.policies && mood.rules >= 2 && rng.one_in(4) => Step::Forget,
        98 if mood.policies => Step::Thaw,
        _ => Step::Acquire(acquire(rng, mood, sight)),
    }
}

/// Generates a sequence of steps. It starts with policies, so that every algorithm occurs.
pub(crate) fn story(seed: u64, length: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let mood = WorkloadBias::throw(&mut rng);
    let mut steps = vec![Step::Rules(mood.rules)];
    for root in &NAMESPACES[..3] {
        if rng.one_in(2) {
            steps.push(Step::Freeze {
                root: root.to_string(),
            });
            let row = rng.pick(if mood.reads {
                &WITH_READS
            } else {
                &WITHOUT_READS
            });
            steps.push(Step::Decide { row: Some(row) });
        }
    }
    let mut world = ClusterState::new();
    let mut model = Model::new();
    let mut lived = 0;
    loop {
        for step in &steps[lived..] {
            live(&mut world, &mut model, step);
        }
        lived = steps.len();
        if lived >= length {
            return steps;
        }
        steps.push(step(&mut rng, &mood, &ObservedLine::of(&model)));
    }
}

/// Applies a step to the model alone.
fn live(world: &mut ClusterState, model: &mut Model, step: &Step) -> Option<Applied> {
    let command = world.command(step, model)?;
    let stamp = Stamp {
        time: world.time,
        wall: 0,
    };
    let applied = model.apply(stamp, &command);
    world.hear(&applied.outcome);
    Some(applied)
}

/// The step at which the results differ, and how.
pub(crate) struct Mismatch {
    pub(crate) at: usize,
    pub(crate) why: String,
}

/// How much is compared after each step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckLevel {
    /// The results of the command always, everything else sometimes.
    Sampled,
    /// Everything, for shrinking.
    Full,
}

/// Applies a sequence to both and compares. The error names the step at which the results differ.
fn play(steps: &[Step], seed: u64, care: CheckLevel) -> Result<(), Mismatch> {
    let mut rng = Rng::new(seed ^ 0xfeed);
    let owners: Vec<OwnerId> = OWNERS.iter().map(|name| owner_id(name)).collect();
    let paths: Vec<Path> = PATHS
        .iter()
        .map(|path| Path::parse(path).unwrap())
        .collect();
    let mut pair = match seed % 3 {
        0 => ModelPair::with_batch(1 + (seed / 3 % 3) as u32),
        _ => ModelPair::new(),
    };
    if !seed.is_multiple_of(4) {
        // Every fourth sequence starts with the oldest rules, and gets only those that its first
        // step activates.
        let newest = tenure_core::space::RULES;
        let told = quietly(|| {
            pair.apply(tenure_core::command::Command::Rules { number: newest })
                .map(drop)
        });
        told.map_err(|what| Mismatch { at: 0, why: what })?;
    }
    pair.mixed = steps
        .iter()
        .any(|step| matches!(step, Step::Acquire(step) if step.algorithm.is_some()));
    for (at, step) in steps.iter().enumerate() {
        let result = quietly(|| {
            pair.take(step)?;
            let mut now_and_then = |n: u64| care == CheckLevel::Full || rng.one_in(n);
            if now_and_then(8) {
                pair.compare(0, &owners, &paths)?;
            }
            if now_and_then(16) {
                pair.compare(1_000, &owners, &paths)?;
            }
            if now_and_then(32) {
                pair.compare(70_000, &owners, &paths)?;
            }
            for owner in &owners {
                for path in &paths {
                    if now_and_then(45) {
                        pair.compare_pair(owner, path)?;
                    }
                }
            }
            if now_and_then(8) {
                pair.compare_events()?;
            }
            if now_and_then(40) {
                pair.through_a_snapshot()?;
            }
            Ok(())
        });
        result.map_err(|why| Mismatch { at, why })?;
    }
    Ok(())
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Converts a panic into an error, without printing it, so that its sequence can be shrunk.
pub(crate) fn quietly(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.with(Cell::get) {
                loud(info);
            }
        }));
    });
    QUIET.with(|quiet| quiet.set(true));
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.with(|quiet| quiet.set(false));
    result.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("?")))
    })
}

/// Shrinks a failing sequence: removes ranges of steps, then single steps, then parts of acquires.
pub(crate) fn shorten(mut steps: Vec<Step>, fails: impl Fn(&[Step]) -> Option<usize>) -> Vec<Step> {
    if let Some(at) = fails(&steps) {
        steps.truncate(at + 1);
    }
    let mut stretch = steps.len() / 2;
    while stretch > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut without = steps.clone();
            without.drain(at..(at + stretch).min(steps.len()));
            match fails(&without) {
                Some(end) => {
                    without.truncate(end + 1);
                    steps = without;
                }
                None => at += stretch,
            }
        }
        stretch /= 2;
    }
    for at in 0..steps.len() {
        for simpler in simpler(&steps[at]) {
            let mut other = steps.clone();
            other[at] = simpler;
            if fails(&other) == Some(other.len() - 1) {
                steps = other;
            }
        }
    }
    steps
}

fn simpler(step: &Step) -> Vec<Step> {
    let Step::Acquire(acquire) = step else {
        return Vec::new();
    };
    let plain = AcquireStep::of(&acquire.owner);
    let mut found = Vec::new();
    let mut with = |change: &dyn Fn(&mut AcquireStep)| {
        let mut other = acquire.clone();
        change(&mut other);
        if other != *acquire {
            found.push(Step::Acquire(other));
        }
    };
    for at in 0..acquire.wants.len() {
        with(&|step| {
            step.wants.remove(at);
        });
    }
    with(&|step| step.drops.clear());
    with(&|step| step.key = None);
    with(&|step| step.holder = None);
    with(&|step| step.fence = plain.fence);
    with(&|step| step.ttl = plain.ttl);
    with(&|step| step.queue_ttl = plain.queue_ttl);
    with(&|step| step.wait = plain.wait);
    with(&|step| step.stale = false);
    with(&|step| step.algorithm = None);
    with(&|step| step.quota = Quota::default());
    found
}

/// Formats a sequence as a script, with the difference at its end.
fn tell(steps: &[Step], why: &str) -> String {
    let lines: Vec<String> = steps.iter().map(Step::to_string).collect();
    format!(
        "the space and its twin disagree after\n\n{}\n\n{why}\n",
        lines.join("\n")
    )
}

/// Returns how many commands a run applies. `TENURE_CORE_COMMANDS` overrides the default.
fn commands() -> usize {
    #[allow(
        clippy::disallowed_methods,
        reason = "the length of a run is no rule of the space"
    )]
    let wanted = std::env::var("TENURE_CORE_COMMANDS").ok();
    wanted.map_or(510_000, |text| {
        text.parse().expect("TENURE_CORE_COMMANDS is a number")
    })
}

const LENGTH: usize = 150;

fn play_many(part: u64, parts: u64) {
    let stories = (commands() / LENGTH) as u64;
    for seed in (part..stories).step_by(parts as usize) {
        let steps = story(seed, LENGTH);
        if let Err(finding) = play(&steps, seed, CheckLevel::Sampled) {
            report(seed, &steps, finding, |steps| {
                play(steps, seed, CheckLevel::Full).err()
            });
        }
    }
}

/// Shrinks a failing sequence and panics with it.
pub(crate) fn report(
    seed: u64,
    steps: &[Step],
    finding: Mismatch,
    play: impl Fn(&[Step]) -> Option<Mismatch>,
) -> ! {
    // The shrunk sequence may fail for another owner or path, but it must fail in the same way.
    let kind = |why: &str| {
        why.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_string()
    };
    let what = kind(&finding.why);
    let short = shorten(steps[..=finding.at].to_vec(), |steps| {
        let other = play(steps)?;
        (kind(&other.why) == what).then_some(other.at)
    });
    let finding = play(&short).unwrap_or(finding);
    panic!("seed {seed}: {}", tell(&short, &finding.why));
}

/// Every outcome, event, lease and answer equals the model's. In two halves, for two cores.
#[test]
fn the_space_does_what_its_twin_does() {
    play_many(0, 2);
}

#[test]
fn the_space_does_what_its_twin_does_in_other_stories() {
    play_many(1, 2);
}

/// A failing sequence is reduced to the steps that matter.
#[test]
fn a_failing_story_is_made_short() {
    let steps = story(7, 60);
    let needle = Step::Kill {
        owner: "amy".into(),
    };
    let mut steps = steps;
    steps.retain(|step| *step != needle);
    steps.insert(40, needle.clone());
    let short = shorten(steps, |steps| steps.iter().position(|step| *step == needle));
    assert_eq!(short, [needle]);
}

/// All kinds of results occur in the random sequences, each at least ten times.
#[test]
fn the_stories_meet_every_kind_of_answer() {
    let mut met: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..400 {
        let mut world = ClusterState::new();
        let mut model = Model::new();
        for step in story(seed, LENGTH) {
            let Some(applied) = live(&mut world, &mut model, &step) else {
                continue;
            };
            let said = describe(&applied);
            let mut parts = said.split(", ");
            let answer = parts.next().unwrap_or_default();
            let kind: Vec<&str> = answer
                .split(' ')
                .filter(|word| {
                    !word.contains('=') || word.starts_with("why=") || word.starts_with("missing=")
                })
                .collect();
            *met.entry(kind.join(" ")).or_default() += 1;
            for event in parts {
                let kind = event.split(' ').next().unwrap_or_default();
                *met.entry(kind.into()).or_default() += 1;
            }
        }
    }
    for kind in [
        "granted",
        "granted nofence",
        "queued why=ancestor_locked",
        "queued why=write_locked",
        "queued why=read_locked",
        "queued why=descendant_write_locked",
        "queued why=descendant_read_locked",
        "queued why=semaphore_full nofence",
        "queued why=queued",
        "conflict why=ancestor_locked",
        "conflict why=write_locked",
        "conflict why=read_locked",
        "conflict why=descendant_write_locked",
        "conflict why=descendant_read_locked",
        "conflict why=semaphore_full",
        "conflict why=queued",
        "conflict why=read_locks_disabled",
        "conflict why=stale_fence",
        "conflict why=invalid_permits",
        "lost missing=alive",
        "lost missing=write",
        "lost missing=read",
        "lost missing=semaphore",
        "lost missing=fence",
        "refused why=outdated",
        "refused why=frozen",
        "refused why=key_reused",
        "renewed asked",
        "renewed unasked",
        "expired",
        "kept",
        "broken",
        "not_that_hold",
        "withdrawn",
        "gone",
        "frozen",
        "grants",
        "kills",
        "asks",
    ] {
        let count = met.get(kind).copied().unwrap_or(0);
        assert!(count >= 10, "{count} times {kind} in {met:#?}");
    }
}
