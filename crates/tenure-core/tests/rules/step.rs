//! A step of a test script, as text and as a value.
//!
//! Steps refer to things by name ("amy's lease", "her present hold"); numbers such as epochs and
//! waiter ids are looked up when the step is executed. So a script stays valid when steps are
//! removed, which shrinking needs.

use std::fmt;

use tenure_core::command::{ClearPolicy, WaitMode};
use tenure_core::limits::{Quota, QuotaValues};
use tenure_core::policy::{Algorithm, Mode};

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Acquire(AcquireStep),
    Release {
        owner: String,
        holds: Vec<(Mode, String)>,
        key: Option<String>,
        stale: bool,
    },
    /// ReleaseAll, by the owner.
    Leave {
        owner: String,
        domains: Vec<String>,
    },
    /// ReleaseAll, by force.
    Kill {
        owner: String,
    },
    Renew {
        owner: String,
        namespace: String,
        ttl: u64,
    },
    Expire {
        owner: String,
        namespace: String,
        aim: StepTarget,
    },
    /// Advances lease time, with an empty entry.
    Tick(u64),
    /// Advances lease time. The space learns it with the next command.
    Later(u64),
    Revoke {
        owner: String,
    },
    Break {
        owner: String,
        mode: Mode,
        path: String,
        aim: StepTarget,
    },
    Withdraw {
        owner: String,
        namespace: String,
        aim: StepTarget,
    },
    /// Starts a policy change.
    Freeze {
        root: String,
    },
    /// Decides the change as the system group does: it is refused if a live hold would move or
    /// vanish.
    Decide {
        row: Option<Algorithm>,
    },
    /// Ends the change without an effect.
    Thaw,
    /// Commits a change without any check.
    Change {
        root: String,
        row: Algorithm,
        clear: ClearPolicy,
        floor: u64,
    },
    Lift(u64),
    /// Activates a rules number.
    Rules(u32),
    /// The system group loses the pending change, as after a restore of an older snapshot.
    Forget,
    /// Repeats the last command other than a tick.
    Again,
    /// Repeats the last command with a key.
    Retry,
}

/// Whether a step names the right epoch, fence or waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepTarget {
    Right,
    Wrong,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcquireStep {
    pub(crate) owner: String,
    pub(crate) wants: Vec<WantedPath>,
    pub(crate) drops: Vec<(Mode, String)>,
    pub(crate) fence: Supplied,
    pub(crate) key: Option<String>,
    pub(crate) ttl: u64,
    pub(crate) queue_ttl: u64,
    pub(crate) wait: WaitMode,
    pub(crate) holder: Option<String>,
    /// Resolved with an older table.
    pub(crate) stale: bool,
    /// Another algorithm than the table's, as during a policy change (R43: conflicts between
    /// different algorithms).
    pub(crate) algorithm: Option<Algorithm>,
    /// The quotas that apply: `own=PATHS/WAITING/OWNERS`, `-` for no limit.
    pub(crate) quota: Quota,
}

/// Where the fence of an acquire comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supplied {
    /// The space mints it.
    Mint,
    /// This number.
    Number(i64),
    /// The stored fence of the first wanted path, plus this.
    Stored(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedPath {
    pub(crate) held: bool,
    pub(crate) mode: Mode,
    pub(crate) path: String,
    pub(crate) permits: u32,
}

impl AcquireStep {
    pub(crate) fn of(owner: &str) -> AcquireStep {
        AcquireStep {
            owner: owner.into(),
            wants: Vec::new(),
            drops: Vec::new(),
            fence: Supplied::Mint,
            key: None,
            ttl: 10_000,
            queue_ttl: 0,
            wait: WaitMode::Queue,
            holder: None,
            stale: false,
            algorithm: None,
            quota: Quota::default(),
        }
    }
}

pub(crate) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Write => "write",
        Mode::Read => "read",
        Mode::ReadTree => "tree",
    }
}

pub(crate) fn mode_of(word: &str) -> Option<Mode> {
    match word {
        "write" => Some(Mode::Write),
        "read" => Some(Mode::Read),
        "tree" => Some(Mode::ReadTree),
        _ => None,
    }
}

pub(crate) fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::RecursiveRw => "recursive_rw",
        Algorithm::PointRw => "point_rw",
        Algorithm::RecursiveWrite => "recursive_write",
        Algorithm::PointWrite => "point_write",
        Algorithm::Semaphore => "semaphore",
    }
}

pub(crate) fn algorithm_of(word: &str) -> Option<Algorithm> {
    Algorithm::ALL
        .into_iter()
        .find(|algorithm| algorithm_name(*algorithm) == word)
}

impl fmt::Display for AcquireStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "acquire {}", self.owner)?;
        for want in &self.wants {
            let held = if want.held { "held " } else { "" };
            write!(f, " {held}{} {}", mode_name(want.mode), want.path)?;
            if want.permits > 0 {
                write!(f, "*{}", want.permits)?;
            }
        }
        for (mode, path) in &self.drops {
            write!(f, " drop {} {path}", mode_name(*mode))?;
        }
        match self.fence {
            Supplied::Mint => {}
            Supplied::Number(number) => write!(f, " fence={number}")?,
            Supplied::Stored(plus) => write!(f, " fence=stored{plus:+}")?,
        }
        if let Some(key) = &self.key {
            write!(f, " key={key}")?;
        }
        if self.ttl != 10_000 {
            write!(f, " ttl={}", self.ttl)?;
        }
        if self.queue_ttl != 0 {
            write!(f, " queue={}", self.queue_ttl)?;
        }
        match self.wait {
            WaitMode::Queue => {}
            WaitMode::QueueAndAsk => write!(f, " ask")?,
            WaitMode::No => write!(f, " nowait")?,
        }
        if let Some(holder) = &self.holder {
            write!(f, " holder={holder}")?;
        }
        if self.stale {
            write!(f, " stale")?;
        }
        for (name, values) in [("own", self.quota.own), ("total", self.quota.total)] {
            if !values.is_empty() {
                let shown =
                    |value: Option<u64>| value.map_or("-".into(), |value| value.to_string());
                let all = [values.paths, values.waiting, values.owners].map(shown);
                write!(f, " {name}={}", all.join("/"))?;
            }
        }
        if let Some(algorithm) = self.algorithm {
            write!(f, " as={}", algorithm_name(algorithm))?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrong = |aim: &StepTarget| {
            if *aim == StepTarget::Wrong {
                " wrong"
            } else {
                ""
            }
        };
        match self {
            Step::Acquire(acquire) => acquire.fmt(f),
            Step::Release {
                owner,
                holds,
                key,
                stale,
            } => {
                write!(f, "release {owner}")?;
                for (mode, path) in holds {
                    write!(f, " {} {path}", mode_name(*mode))?;
                }
                if let Some(key) = key {
                    write!(f, " key={key}")?;
                }
                if *stale {
                    write!(f, " stale")?;
                }
                Ok(())
            }
            Step::Leave { owner, domains } => {
                write!(f, "leave {owner}")?;
                domains.iter().try_for_each(|domain| write!(f, " {domain}"))
            }
            Step::Kill { owner } => write!(f, "kill {owner}"),
            Step::Renew {
                owner,
                namespace,
                ttl,
            } => write!(f, "renew {owner} {namespace} ttl={ttl}"),
            Step::Expire {
                owner,
                namespace,
                aim,
            } => {
                write!(f, "expire {owner} {namespace}{}", wrong(aim))
            }
            Step::Tick(ms) => write!(f, "tick {ms}"),
            Step::Later(ms) => write!(f, "later {ms}"),
            Step::Revoke { owner } => write!(f, "revoke {owner}"),
            Step::Break {
                owner,
                mode,
                path,
                aim,
            } => {
                write!(f, "break {owner} {} {path}{}", mode_name(*mode), wrong(aim))
            }
            Step::Withdraw {
                owner,
                namespace,
                aim,
            } => {
                write!(f, "withdraw {owner} {namespace}{}", wrong(aim))
            }
            Step::Freeze { root } => write!(f, "freeze {root}"),
            Step::Decide { row: Some(row) } => write!(f, "decide {}", algorithm_name(*row)),
            Step::Decide { row: None } => write!(f, "decide delete"),
            Step::Thaw => write!(f, "thaw"),
            Step::Change {
                root,
                row,
                clear,
                floor,
            } => {
                let clear = match clear {
                    ClearPolicy::Waiters => "waiters",
                    ClearPolicy::All => "all",
                };
                write!(
                    f,
                    "change {root} {} {clear} floor={floor}",
                    algorithm_name(*row)
                )
            }
            Step::Lift(by) => write!(f, "lift {by}"),
            Step::Rules(number) => write!(f, "rules {number}"),
            Step::Forget => write!(f, "forget"),
            Step::Again => write!(f, "again"),
            Step::Retry => write!(f, "retry"),
        }
    }
}

/// Parses a step.
pub(crate) fn parse(line: &str) -> Result<Step, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let missing = || format!("incomplete: {line}");
    let word = |at: usize| {
        words
            .get(at)
            .map(|word| word.to_string())
            .ok_or_else(missing)
    };
    let number = |at: usize| -> Result<u64, String> {
        word(at)?
            .parse()
            .map_err(|_| format!("not a number in: {line}"))
    };
    let aim = |at: usize| match words.get(at) {
        None => Ok(StepTarget::Right),
        Some(&"wrong") => Ok(StepTarget::Wrong),
        Some(other) => Err(format!("`{other}` in: {line}")),
    };
    let algorithm =
        |word: &str| algorithm_of(word).ok_or_else(|| format!("no algorithm `{word}`: {line}"));
    Ok(match *words.first().ok_or_else(missing)? {
        "acquire" => Step::Acquire(parse_acquire(&words[1..])?),
        "release" => {
            let mut holds = Vec::new();
            let (mut key, mut stale) = (None, false);
            let mut rest = words[2.min(words.len())..].iter();
            while let Some(next) = rest.next() {
                if let Some(mode) = mode_of(next) {
                    holds.push((mode, rest.next().ok_or_else(missing)?.to_string()));
                } else if let Some(text) = next.strip_prefix("key=") {
                    key = Some(text.to_string());
                } else if *next == "stale" {
                    stale = true;
                } else {
                    return Err(format!("`{next}` in: {line}"));
                }
            }
            Step::Release {
                owner: word(1)?,
                holds,
                key,
                stale,
            }
        }
        "leave" => Step::Leave {
            owner: word(1)?,
            domains: words[2..].iter().map(|word| word.to_string()).collect(),
        },
        "kill" => Step::Kill { owner: word(1)? },
        "renew" => {
            let ttl = match words.get(3) {
                None => 10_000,
                Some(text) => text
                    .strip_prefix("ttl=")
                    .and_then(|text| text.parse().ok())
                    .ok_or_else(|| format!("`{text}` in: {line}"))?,
            };
            Step::Renew {
                owner: word(1)?,
                namespace: word(2)?,
                ttl,
            }
        }
        "expire" => Step::Expire {
            owner: word(1)?,
            namespace: word(2)?,
            aim: aim(3)?,
        },
        "tick" => Step::Tick(number(1)?),
        "later" => Step::Later(number(1)?),
        "revoke" => Step::Revoke { owner: word(1)? },
        "break" => Step::Break {
            owner: word(1)?,
            mode: mode_of(&word(2)?).ok_or_else(missing)?,
            path: word(3)?,
            aim: aim(4)?,
        },
        "withdraw" => Step::Withdraw {
            owner: word(1)?,
            namespace: word(2)?,
            aim: aim(3)?,
        },
        "freeze" => Step::Freeze { root: word(1)? },
        "decide" => Step::Decide {
            row: match word(1)?.as_str() {
                "delete" => None,
                name => Some(algorithm(name)?),
            },
        },
        "thaw" => Step::Thaw,
        "change" => Step::Change {
            root: word(1)?,
            row: algorithm(&word(2)?)?,
            clear: match word(3)?.as_str() {
                "waiters" => ClearPolicy::Waiters,
                "all" => ClearPolicy::All,
                other => return Err(format!("`{other}` in: {line}")),
            },
            floor: match words.get(4).and_then(|word| word.strip_prefix("floor=")) {
                Some(text) => text.parse().map_err(|_| missing())?,
                None => 0,
            },
        },
        "lift" => Step::Lift(number(1)?),
        "rules" => Step::Rules(u32::try_from(number(1)?).map_err(|_| missing())?),
        "forget" => Step::Forget,
        "again" => Step::Again,
        "retry" => Step::Retry,
        other => return Err(format!("no step `{other}`: {line}")),
    })
}

fn quota_values(text: &str) -> Result<QuotaValues, String> {
    let value = |text: &str| match text {
        "-" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| format!("`{text}` is no number")),
    };
    match text.split('/').collect::<Vec<_>>()[..] {
        [paths, waiting, owners] => Ok(QuotaValues {
            paths: value(paths)?,
            waiting: value(waiting)?,
            owners: value(owners)?,
        }),
        _ => Err(format!("`{text}` is not PATHS/WAITING/OWNERS")),
    }
}

fn parse_acquire(words: &[&str]) -> Result<AcquireStep, String> {
    let mut words = words.iter();
    let mut step = AcquireStep::of(words.next().ok_or("acquire whom?")?);
    let missing = || "a mode and a path are expected".to_string();
    while let Some(word) = words.next() {
        let mut pair = |mode: Option<Mode>| -> Result<(Mode, String), String> {
            let path = words.next().ok_or_else(missing)?;
            Ok((mode.ok_or_else(missing)?, path.to_string()))
        };
        let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number"));
        match *word {
            "drop" => {
                let mode = words.next().and_then(|word| mode_of(word));
                let path = words.next().ok_or_else(missing)?;
                step.drops
                    .push((mode.ok_or_else(missing)?, path.to_string()));
            }
            "held" => {
                let mode = words
                    .next()
                    .and_then(|word| mode_of(word))
                    .ok_or_else(missing)?;
                let path = words.next().ok_or_else(missing)?.to_string();
                step.wants.push(WantedPath {
                    held: true,
                    mode,
                    path,
                    permits: 0,
                });
            }
            "nowait" => step.wait = WaitMode::No,
            "ask" => step.wait = WaitMode::QueueAndAsk,
            "stale" => step.stale = true,
            mode if mode_of(mode).is_some() => {
                let (mode, path) = pair(mode_of(mode))?;
                let (path, permits) = match path.split_once('*') {
                    Some((path, permits)) => {
                        (path.to_string(), permits.parse().map_err(|_| missing())?)
                    }
                    None => (path, 0),
                };
                step.wants.push(WantedPath {
                    held: false,
                    mode,
                    path,
                    permits,
                });
            }
            option => match option.split_once('=') {
                Some(("fence", text)) => {
                    step.fence = match text.strip_prefix("stored") {
                        Some(plus) => Supplied::Stored(plus.parse().map_err(|_| missing())?),
                        None => Supplied::Number(text.parse().map_err(|_| missing())?),
                    }
                }
                Some(("key", text)) => step.key = Some(text.into()),
                Some(("ttl", text)) => step.ttl = number(text)?,
                Some(("queue", text)) => step.queue_ttl = number(text)?,
                Some(("holder", text)) => step.holder = Some(text.into()),
                Some(("own", text)) => step.quota.own = quota_values(text)?,
                Some(("total", text)) => step.quota.total = quota_values(text)?,
                Some(("as", text)) => {
                    step.algorithm =
                        Some(algorithm_of(text).ok_or_else(|| format!("no algorithm `{text}`"))?)
                }
                _ => return Err(format!("`{option}` is no part of an acquire")),
            },
        }
    }
    Ok(step)
}

/// Every step can be parsed from its own text.
#[test]
fn a_step_is_its_text() {
    for line in [
        "acquire amy write t:/a*3 held read t:/b drop tree t:/c fence=7 key=k ttl=5 queue=9 ask holder=desk stale as=semaphore",
        "acquire amy write t:/a fence=stored-1 nowait",
        "release amy write t:/a read t:/b key=k stale",
        "leave amy t:/a t",
        "kill amy",
        "renew amy t:/a ttl=500",
        "expire amy t:/a wrong",
        "tick 5",
        "later 5",
        "revoke amy",
        "break amy read t:/a wrong",
        "withdraw amy t:/a",
        "freeze t:/a",
        "decide semaphore",
        "decide delete",
        "thaw",
        "change t:/a point_rw waiters floor=7",
        "lift 5",
        "again",
        "retry",
    ] {
        assert_eq!(parse(line).unwrap().to_string(), line);
    }
    assert!(parse("acquire").is_err());
    assert!(parse("dance amy").is_err());
}
