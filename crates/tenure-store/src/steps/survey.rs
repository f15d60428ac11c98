//! Looking at the locks: list them, read each, judge each (P28.2, P28.4, P42).

use std::collections::VecDeque;

use super::ask::Ask;
use super::{Answer, Blocker, Failure, Op, Progress, Steps, unexpected};
use crate::judge::{Object, Sightings, judge};
use crate::key::Key;
use crate::terms::Terms;
use crate::time::Now;

/// Looks at every shared lock, and at the exclusive one first if asked to. Writes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Survey {
    terms: Terms,
    sightings: Sightings,
    looking: Looking,
    left: VecDeque<Key>,
    asking: Ask,
    view: View,
}

/// What the question under way is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Looking {
    Exclusive,
    List,
    Shared(Key),
}

/// What a survey saw.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct View {
    /// Every object that is there, with its verdict; the exclusive one first.
    pub locks: Vec<Blocker>,
}

impl View {
    /// Those that stand in the way of an exclusive request.
    pub fn blocking(&self) -> impl Iterator<Item = &Blocker> {
        self.locks.iter().filter(|lock| lock.verdict.blocks())
    }
}

impl Survey {
    /// A survey of all locks, the exclusive one included.
    pub fn all(terms: Terms, sightings: Sightings) -> Survey {
        Survey::start(terms, sightings, Looking::Exclusive)
    }

    /// A survey of the shared locks.
    pub(super) fn shared(terms: Terms, sightings: Sightings) -> Survey {
        Survey::start(terms, sightings, Looking::List)
    }

    fn start(terms: Terms, sightings: Sightings, looking: Looking) -> Survey {
        let asking = looking.ask(terms.retries);
        let left = VecDeque::new();
        Survey {
            terms,
            sightings,
            looking,
            left,
            asking,
            view: View::default(),
        }
    }

    fn look(&mut self, looking: Looking) -> Progress<<Survey as Steps>::End> {
        self.asking = looking.ask(self.terms.retries);
        self.looking = looking;
        Progress::Going
    }

    fn look_on(&mut self) -> Progress<<Survey as Steps>::End> {
        match self.left.pop_front() {
            Some(key) => self.look(Looking::Shared(key)),
            None => Progress::Done(Ok((
                std::mem::take(&mut self.view),
                std::mem::take(&mut self.sightings),
            ))),
        }
    }

    fn see(&mut self, key: Key, object: Object, now: Now) {
        let asked = self.asking.asked(now);
        let watched = self
            .sightings
            .note(&key, &object.version, asked.boot, now.boot);
        let verdict = judge(&key, &object, watched, asked, self.terms.skew);
        self.view.locks.push(Blocker {
            key,
            object,
            verdict,
        });
    }
}

impl Looking {
    fn ask(&self, retries: u8) -> Ask {
        let op = match self {
            Looking::Exclusive => Op::Read(Key::Exclusive),
            Looking::List => Op::ListShared,
            Looking::Shared(key) => Op::Read(key.clone()),
        };
        Ask::new(op, retries)
    }
}

impl Steps for Survey {
    /// What was seen, and the memory of it.
    type End = Result<(View, Sightings), Failure>;

    fn next(&mut self, now: Now) -> Op {
        self.asking.next(now)
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Self::End> {
        let answer = match self.asking.answer(answer, now) {
            Progress::Going => return Progress::Going,
            Progress::Done(Ok(answer)) => answer,
            Progress::Done(Err(failure)) => return Progress::Done(Err(failure)),
        };
        match (self.looking.clone(), answer) {
            (Looking::Exclusive, Answer::Found(object)) => {
                self.see(Key::Exclusive, object, now);
                self.look(Looking::List)
            }
            (Looking::Exclusive, Answer::Absent) => {
                self.sightings.forget(&Key::Exclusive);
                self.look(Looking::List)
            }
            (Looking::List, Answer::Listed(keys)) => {
                self.sightings.keep_shared(&keys);
                self.left = keys.into();
                self.look_on()
            }
            (Looking::Shared(key), Answer::Found(object)) => {
                self.see(key, object, now);
                self.look_on()
            }
            // Listed and gone: its holder released it meanwhile.
            (Looking::Shared(key), Answer::Absent) => {
                self.sightings.forget(&key);
                self.look_on()
            }
            (_, other) => Progress::Done(Err(unexpected(other))),
        }
    }
}
