//! Breaking: removing other people's locks, exactly those that were shown (P37).

use std::collections::VecDeque;

use super::fence::TakeFence;
use super::remove::{Remove, Removed};
use super::{Answer, Blocker, Op, Progress, Steps};
use crate::judge::Version;
use crate::key::Key;
use crate::terms::{Level, Mode, Terms};
use crate::time::Now;

/// Removes the locks it was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Break {
    terms: Terms,
    insist: Insist,
    left: VecDeque<Target>,
    doing: Doing,
    broken: Broken,
    /// A live lock was among them: its holder is shut out by a higher number (C16).
    raise: bool,
}

/// One object to remove, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Where it lies.
    pub key: Key,
    /// What was seen there.
    pub version: Version,
    /// Whether anybody may hold it.
    pub live: bool,
}

impl From<&Blocker> for Target {
    fn from(lock: &Blocker) -> Target {
        Target {
            key: lock.key.clone(),
            version: lock.object.version.clone(),
            live: lock.verdict.blocks(),
        }
    }
}

/// What to do about an object that has changed since it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Insist {
    /// Leave it: it is not what was shown.
    No,
    /// Remove it all the same (`--all`): a live holder refreshes, and is meant.
    Yes,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Broken {
    /// What is gone now.
    pub removed: Vec<Key>,
    /// What was left, and why.
    pub left: Vec<(Key, String)>,
    /// The number that shuts the victims out, if one was taken.
    pub fence: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Starting,
    Removing(Remove),
    Raising(TakeFence),
}

impl Break {
    /// Begins to remove `targets`.
    pub fn new(terms: Terms, targets: Vec<Target>, insist: Insist) -> Break {
        let raise = targets.iter().any(|target| target.live) && terms.level != Level::Nothing;
        let (left, broken) = (targets.into(), Broken::default());
        Break {
            terms,
            insist,
            left,
            doing: Doing::Starting,
            broken,
            raise,
        }
    }

    fn go_on(&mut self) -> Progress<Broken> {
        if let Some(Target { key, version, .. }) = self.left.pop_front() {
            let terms = self.terms.clone();
            self.doing = Doing::Removing(match self.insist {
                Insist::No => Remove::exactly(terms, key, version),
                Insist::Yes => Remove::anything(terms, key, version),
            });
            return Progress::Going;
        }
        if std::mem::take(&mut self.raise) && !self.broken.removed.is_empty() {
            self.doing = Doing::Raising(TakeFence::new(self.terms.clone(), Mode::Exclusive));
            return Progress::Going;
        }
        Progress::Done(std::mem::take(&mut self.broken))
    }

    fn removed(&mut self, key: Key, end: Removed) -> Progress<Broken> {
        match end {
            Removed::Gone => self.broken.removed.push(key),
            Removed::Absent => {}
            Removed::Other(_) => {
                self.broken
                    .left
                    .push((key, "it has changed since it was shown".into()));
            }
            Removed::Failed(failure) => self.broken.left.push((key, failure.text)),
        }
        self.go_on()
    }
}

impl Steps for Break {
    type End = Broken;

    fn next(&mut self, now: Now) -> Op {
        match &mut self.doing {
            Doing::Starting => Op::WaitUntil(now.boot),
            Doing::Removing(remove) => remove.next(now),
            Doing::Raising(fence) => fence.next(now),
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Broken> {
        match &mut self.doing {
            Doing::Starting => self.go_on(),
            Doing::Removing(remove) => match remove.answer(answer, now) {
                Progress::Going => Progress::Going,
                Progress::Done(end) => {
                    let key = remove.key().clone();
                    self.removed(key, end)
                }
            },
            Doing::Raising(fence) => match fence.answer(answer, now) {
                Progress::Going => Progress::Going,
                Progress::Done(Ok(number)) => {
                    self.broken.fence = number;
                    self.go_on()
                }
                Progress::Done(Err(_)) => {
                    let why = "the fencing number could not be raised".to_owned();
                    self.broken.left.push((Key::Fence, why));
                    self.go_on()
                }
            },
        }
    }
}
