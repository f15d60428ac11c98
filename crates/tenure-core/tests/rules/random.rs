//! Random stories: commands against the space and its twin, and a failing story made short.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_core::command::Wait;
use tenure_core::path::Path;
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::value::OwnerId;

use crate::dice::Dice;
use crate::step::{AcquireStep, Aim, Step, Supplied, Want};
use crate::twins::Twins;
use crate::world::owner_id;

const OWNERS: [&str; 5] = ["amy", "bob", "cid", "dan", "eve"];
const PATHS: [&str; 9] = [
    "t:/a", "t:/a/b", "t:/a/b/c", "t:/a/b/d", "t:/a/e", "t:/ab", "t:/ab/b", "u:/a", "u:/a/b",
];
const NAMESPACES: [&str; 7] = ["t:/a", "t:/ab", "u:/a", "t:/a/b", "t", "t:/", "u"];

/// Chances of one story; each stresses something else.
struct Mood {
    owners: usize,
    paths: usize,
    /// Algorithms that differ from the table's, as while a change is under way.
    mixed: bool,
    policies: bool,
    waiting: Wait,
}

impl Mood {
    fn throw(dice: &mut Dice) -> Mood {
        Mood {
            owners: 2 + dice.below(4) as usize,
            paths: 2 + dice.below(PATHS.len() as u64 - 1) as usize,
            mixed: dice.one_in(6),
            policies: dice.one_in(2),
            waiting: dice.pick(&[Wait::Queue, Wait::QueueAndAsk, Wait::Queue]),
        }
    }

    fn owner(&self, dice: &mut Dice) -> String {
        dice.pick(&OWNERS[..self.owners]).into()
    }

    fn path(&self, dice: &mut Dice) -> String {
        dice.pick(&PATHS[..self.paths]).into()
    }

    fn hold(&self, dice: &mut Dice) -> (Mode, String) {
        (mode(dice), self.path(dice))
    }

    fn namespace(&self, dice: &mut Dice) -> String {
        // Mostly those that the paths fall back to.
        if dice.one_in(4) {
            dice.pick(&NAMESPACES).into()
        } else {
            dice.pick(&NAMESPACES[..3]).into()
        }
    }
}

fn mode(dice: &mut Dice) -> Mode {
    dice.pick(&[
        Mode::Write,
        Mode::Write,
        Mode::Write,
        Mode::Read,
        Mode::Read,
        Mode::ReadTree,
    ])
}

fn aim(dice: &mut Dice) -> Aim {
    if dice.one_in(4) {
        Aim::Wrong
    } else {
        Aim::Right
    }
}

fn key(dice: &mut Dice) -> Option<String> {
    dice.one_in(6).then(|| dice.pick(&["k1", "k2"]).to_string())
}

fn acquire(dice: &mut Dice, mood: &Mood) -> AcquireStep {
    let mut step = AcquireStep::of(&mood.owner(dice));
    let count = dice.pick(&[1, 1, 1, 2, 2, 3]);
    for _ in 0..count {
        let (mode, path) = mood.hold(dice);
        step.wants.push(Want {
            held: dice.one_in(7),
            mode,
            path,
            permits: dice.pick(&[0, 1, 2, 2, 2, 2, 2, 2]),
        });
    }
    if dice.one_in(6) {
        step.drops = dice.list(2, |dice| mood.hold(dice));
        if dice.one_in(4) {
            step.wants.clear();
        }
    }
    if dice.one_in(4) {
        step.fence = match dice.below(8) {
            0 => Supplied::Number(dice.below(40) as i64),
            1 => Supplied::Number(1 << dice.pick(&[20, 51])),
            _ => Supplied::Stored(dice.below(4) as i64 - 1),
        };
    }
    step.key = key(dice);
    step.ttl = dice.pick(&[10_000, 10_000, 2_000, 90_000]);
    step.queue_ttl = dice.pick(&[0, 0, 0, 1_000, 20_000]);
    step.wait = if dice.one_in(6) {
        Wait::No
    } else {
        mood.waiting
    };
    step.holder = dice
        .one_in(5)
        .then(|| dice.pick(&["desk", "lab"]).to_string());
    step.stale = dice.one_in(24);
    step.algorithm = (mood.mixed && dice.one_in(3)).then(|| dice.pick(&Algorithm::ALL));
    step
}

fn step(dice: &mut Dice, mood: &Mood) -> Step {
    match dice.below(100) {
        0..46 => Step::Acquire(acquire(dice, mood)),
        46..62 => {
            let mut holds = vec![mood.hold(dice)];
            if dice.one_in(3) {
                holds.push(mood.hold(dice));
            }
            Step::Release {
                owner: mood.owner(dice),
                holds,
                key: key(dice),
                stale: dice.one_in(24),
            }
        }
        62..65 => Step::Leave {
            owner: mood.owner(dice),
            domains: dice.list(2, |dice| mood.namespace(dice)),
        },
        65 => Step::Kill {
            owner: mood.owner(dice),
        },
        66..70 => Step::Renew {
            owner: mood.owner(dice),
            namespace: mood.namespace(dice),
            ttl: dice.pick(&[1_000, 10_000, 100_000]),
        },
        70..79 => Step::Expire {
            owner: mood.owner(dice),
            namespace: mood.namespace(dice),
            aim: aim(dice),
        },
        79..82 => Step::Tick(dice.pick(&[0, 1, 500, 1_500, 25_000, 60_000])),
        82..84 => Step::Later(dice.pick(&[1, 500, 1_500, 25_000, 300_000])),
        84 => match dice.below(8) {
            0 => Step::Tick(24 * 3_600_000),
            1 => Step::Lift(dice.below(20)),
            _ => Step::Tick(1),
        },
        85..87 => Step::Revoke {
            owner: mood.owner(dice),
        },
        87..89 => {
            let (mode, path) = mood.hold(dice);
            Step::Break {
                owner: mood.owner(dice),
                mode,
                path,
                aim: aim(dice),
            }
        }
        89..91 => Step::Withdraw {
            owner: mood.owner(dice),
            namespace: mood.namespace(dice),
            aim: aim(dice),
        },
        91..94 => Step::Retry,
        94..96 => Step::Again,
        96 | 97 if mood.policies => Step::Freeze {
            root: dice.pick(&NAMESPACES).into(),
        },
        98 if mood.policies => Step::Decide {
            row: (!dice.one_in(4)).then(|| dice.pick(&Algorithm::ALL)),
        },
        99 if mood.policies && dice.one_in(3) => Step::Thaw,
        _ => Step::Acquire(acquire(dice, mood)),
    }
}

/// A story of some length. It begins with policies, so that every algorithm is met.
pub(crate) fn story(seed: u64, length: usize) -> Vec<Step> {
    let mut dice = Dice::new(seed);
    let mood = Mood::throw(&mut dice);
    let mut steps = Vec::new();
    for root in &NAMESPACES[..3] {
        if dice.one_in(2) {
            steps.push(Step::Freeze {
                root: root.to_string(),
            });
            steps.push(Step::Decide {
                row: Some(dice.pick(&Algorithm::ALL)),
            });
        }
    }
    while steps.len() < length {
        steps.push(step(&mut dice, &mood));
    }
    steps
}

/// Where a story goes wrong, and how.
pub(crate) struct Finding {
    pub(crate) at: usize,
    pub(crate) why: String,
}

/// How much is compared after each step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Care {
    /// The command's results always, everything else now and then.
    Sampled,
    /// Everything, for stories that are made short.
    Full,
}

/// Plays a story; the error says at which step the two disagree, and how.
fn play(steps: &[Step], seed: u64, care: Care) -> Result<(), Finding> {
    let mut dice = Dice::new(seed ^ 0xfeed);
    let owners: Vec<OwnerId> = OWNERS.iter().map(|name| owner_id(name)).collect();
    let paths: Vec<Path> = PATHS
        .iter()
        .map(|path| Path::parse(path).unwrap())
        .collect();
    let mut twins = Twins::new();
    for (at, step) in steps.iter().enumerate() {
        let result = quietly(|| {
            twins.take(step)?;
            let mut now_and_then = |n: u64| care == Care::Full || dice.one_in(n);
            if now_and_then(8) {
                twins.compare(0, &owners, &paths)?;
            }
            if now_and_then(16) {
                twins.compare(1_000, &owners, &paths)?;
            }
            if now_and_then(32) {
                twins.compare(70_000, &owners, &paths)?;
            }
            for owner in &owners {
                for path in &paths {
                    if now_and_then(45) {
                        twins.compare_pair(owner, path)?;
                    }
                }
            }
            for after in [0, 3, 11] {
                if now_and_then(24) {
                    twins.compare_events(after)?;
                }
            }
            if now_and_then(40) {
                twins.through_a_snapshot()?;
            }
            Ok(())
        });
        result.map_err(|why| Finding { at, why })?;
    }
    Ok(())
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// A panic is a finding like any other: it is caught, so that its story can be made short.
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

/// Leaves out what is not needed for the failure: whole stretches, then single steps, then parts of acquires.
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
    found
}

/// The story as a script, and what went wrong at its end.
fn tell(steps: &[Step], why: &str) -> String {
    let lines: Vec<String> = steps.iter().map(Step::to_string).collect();
    format!(
        "the space and its twin disagree after\n\n{}\n\n{why}\n",
        lines.join("\n")
    )
}

/// How many commands an ordinary run plays; more with `TENURE_CORE_COMMANDS`.
fn commands() -> usize {
    #[allow(
        clippy::disallowed_methods,
        reason = "the length of a run is no rule of the space"
    )]
    let wanted = std::env::var("TENURE_CORE_COMMANDS").ok();
    wanted.map_or(600_000, |text| {
        text.parse().expect("TENURE_CORE_COMMANDS is a number")
    })
}

const LENGTH: usize = 150;

fn play_many(part: u64, parts: u64) {
    let stories = (commands() / LENGTH) as u64;
    for seed in (part..stories).step_by(parts as usize) {
        let steps = story(seed, LENGTH);
        if let Err(finding) = play(&steps, seed, Care::Sampled) {
            report(seed, &steps, finding, |steps| {
                play(steps, seed, Care::Full).err()
            });
        }
    }
}

/// Makes a story short that goes wrong, and fails with it.
pub(crate) fn report(
    seed: u64,
    steps: &[Step],
    finding: Finding,
    play: impl Fn(&[Step]) -> Option<Finding>,
) -> ! {
    let what = finding.why.lines().next().unwrap_or_default().to_string();
    let short = shorten(steps[..=finding.at].to_vec(), |steps| {
        let other = play(steps)?;
        (other.why.lines().next() == Some(&what)).then_some(other.at)
    });
    let finding = play(&short).unwrap_or(finding);
    panic!("seed {seed}: {}", tell(&short, &finding.why));
}

/// Every outcome, event, lease and answer is the twin's. In two halves, for two cores.
#[test]
fn the_space_does_what_its_twin_does() {
    play_many(0, 2);
}

#[test]
fn the_space_does_what_its_twin_does_in_other_stories() {
    play_many(1, 2);
}

/// A story that fails is cut down to what matters.
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
