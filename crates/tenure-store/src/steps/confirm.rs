//! Looking around after our record is written: the half of acquiring that closes the races
//! (P28.4, P28.5, P30.3, P30.4), and of reviving (P34).
//!
//! Both sides write first and look afterwards, so of two that conflict at least one sees the
//! other. The wait in between is for originals that looked before we wrote and write after us.
//!
//! ```text
//! exclusive: survey shared ─clean──────────────────────▶ settle ─▶ read own ─▶ confirmed
//!               └─ conflict, all younger than we ─▶ wait ─▶ survey ─clean─┘
//! shared:    read exclusive ─free─▶ settle ─▶ read exclusive ─free─▶ confirmed
//! ```

use super::ask::Ask;
use super::survey::Survey;
use super::{Answer, Blocker, Failure, Op, Own, Progress, Steps, View, ours, unexpected};
use crate::judge::{Object, Sightings, judge};
use crate::key::Key;
use crate::terms::{Mode, Terms};
use crate::time::{Boot, Now};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Confirm {
    terms: Terms,
    own: Own,
    /// When our record was known to be there: late writers are waited for from here.
    written: Boot,
    sightings: Sightings,
    stale: Vec<Blocker>,
    doing: Doing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Surveying(Survey, Look),
    Asking(Ask, Question),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Question {
    /// Conflicts were seen; when was our own record written, by the store's clock?
    OwnDate(Vec<Blocker>),
    /// Are the younger ones gone by now?
    Withdrawn,
    /// Is there an exclusive lock?
    Exclusive(Look),
    /// Have the late writers written?
    Settled,
    /// Is our record still ours?
    StillOurs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Look {
    First,
    Last,
}

/// What the look around showed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Confirmed {
    /// Nobody is in the way. The stale shared locks that were passed over come with it.
    Held(Own, Sightings, Vec<Blocker>),
    /// Somebody is; our record must go.
    Conflict(Box<Blocker>),
    /// Our record is gone, or another is in its place.
    Overtaken(Option<Object>),
    /// The store failed; our record must go.
    Failed(Failure),
}

impl Confirm {
    pub(super) fn new(
        terms: Terms,
        mode: Mode,
        own: Own,
        sightings: Sightings,
        now: Now,
    ) -> Confirm {
        let doing = match mode {
            Mode::Exclusive => {
                let survey = Survey::shared(terms.clone(), sightings.clone());
                Doing::Surveying(survey, Look::First)
            }
            Mode::Shared => {
                let ask = Ask::new(Op::Read(Key::Exclusive), terms.retries);
                Doing::Asking(ask, Question::Exclusive(Look::First))
            }
        };
        Confirm {
            terms,
            own,
            written: now.boot,
            sightings,
            stale: Vec::new(),
            doing,
        }
    }

    /// Our record.
    pub(super) fn own(&self) -> &Own {
        &self.own
    }

    fn read(&mut self, key: Key, question: Question) -> Progress<Confirmed> {
        self.doing = Doing::Asking(Ask::new(Op::Read(key), self.terms.retries), question);
        Progress::Going
    }

    fn wait(&mut self, until: Boot, question: Question) -> Progress<Confirmed> {
        self.doing = Doing::Asking(Ask::new(Op::WaitUntil(until), 0), question);
        Progress::Going
    }

    fn answered(
        &mut self,
        question: Question,
        answer: Answer,
        asked: Now,
        now: Now,
    ) -> Progress<Confirmed> {
        match question {
            Question::OwnDate(conflicts) => match self.read_own(answer) {
                Ok(own) => self.dated(&own, &conflicts, now),
                Err(end) => Progress::Done(end),
            },
            Question::Withdrawn => {
                let survey = Survey::shared(self.terms.clone(), self.sightings.clone());
                self.doing = Doing::Surveying(survey, Look::Last);
                Progress::Going
            }
            Question::Exclusive(look) => self.exclusive(answer, look, asked, now),
            Question::Settled => self.settled(),
            Question::StillOurs => match self.read_own(answer) {
                Ok(_) => self.held(),
                Err(end) => Progress::Done(end),
            },
        }
    }

    fn surveyed(&mut self, view: View, look: Look, now: Now) -> Progress<Confirmed> {
        let (blocking, stale): (Vec<_>, Vec<_>) = view
            .locks
            .into_iter()
            .partition(|lock| lock.verdict.blocks());
        self.stale = stale;
        match (blocking.first(), look) {
            (None, _) => self.settle(now),
            (Some(_), Look::First) => self.read(self.own.key.clone(), Question::OwnDate(blocking)),
            (Some(blocker), Look::Last) => {
                Progress::Done(Confirmed::Conflict(Box::new(blocker.clone())))
            }
        }
    }

    /// P28.4: whoever wrote after us will see us and withdraw; then one more look is fair.
    fn dated(&mut self, own: &Object, conflicts: &[Blocker], now: Now) -> Progress<Confirmed> {
        let is_younger = |blocker: &Blocker| match (own.modified, blocker.object.modified) {
            (Some(ours), Some(theirs)) => theirs > ours,
            (None, _) | (_, None) => false,
        };
        match conflicts.iter().find(|blocker| !is_younger(blocker)) {
            Some(older) => Progress::Done(Confirmed::Conflict(Box::new(older.clone()))),
            None => self.wait(now.boot + self.terms.withdrawal(), Question::Withdrawn),
        }
    }

    fn settle(&mut self, now: Now) -> Progress<Confirmed> {
        let until = self.written + self.terms.settle;
        if until > now.boot {
            return self.wait(until, Question::Settled);
        }
        self.settled()
    }

    fn settled(&mut self) -> Progress<Confirmed> {
        match self.own.key {
            Key::Exclusive => self.read(Key::Exclusive, Question::StillOurs),
            Key::Shared(_) | Key::Fence | Key::Probe(_) => {
                self.read(Key::Exclusive, Question::Exclusive(Look::Last))
            }
        }
    }

    fn held(&mut self) -> Progress<Confirmed> {
        Progress::Done(Confirmed::Held(
            self.own.clone(),
            std::mem::take(&mut self.sightings),
            std::mem::take(&mut self.stale),
        ))
    }

    fn read_own(&mut self, answer: Answer) -> Result<Object, Confirmed> {
        match answer {
            Answer::Found(object) => match ours(&object, &self.own.record.identity()) {
                Some(version) => {
                    self.own.version = version;
                    Ok(object)
                }
                None => Err(Confirmed::Overtaken(Some(object))),
            },
            Answer::Absent => Err(Confirmed::Overtaken(None)),
            other => Err(Confirmed::Failed(unexpected(other))),
        }
    }

    fn exclusive(
        &mut self,
        answer: Answer,
        look: Look,
        asked: Now,
        now: Now,
    ) -> Progress<Confirmed> {
        match answer {
            Answer::Absent => self.sightings.forget(&Key::Exclusive),
            Answer::Found(object) => {
                let key = Key::Exclusive;
                let watched = self
                    .sightings
                    .note(&key, &object.version, asked.boot, now.boot);
                let verdict = judge(&key, &object, watched, asked, self.terms.skew);
                if verdict.blocks() {
                    let blocker = Blocker {
                        key,
                        object,
                        verdict,
                    };
                    return Progress::Done(Confirmed::Conflict(Box::new(blocker)));
                }
            }
            other => return Progress::Done(Confirmed::Failed(unexpected(other))),
        }
        match look {
            // Where nobody has to be waited for, one look is enough: an exclusive Tenure looks
            // again itself (P30.4).
            Look::First if self.terms.settle.is_zero() => self.held(),
            Look::First => self.settle(now),
            Look::Last => self.held(),
        }
    }
}

impl Steps for Confirm {
    type End = Confirmed;

    fn next(&mut self, now: Now) -> Op {
        match &mut self.doing {
            Doing::Surveying(survey, _) => survey.next(now),
            Doing::Asking(ask, _) => ask.next(now),
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Confirmed> {
        match &mut self.doing {
            Doing::Surveying(survey, look) => {
                let look = *look;
                match survey.answer(answer, now) {
                    Progress::Going => Progress::Going,
                    Progress::Done(Ok((view, sightings))) => {
                        self.sightings = sightings;
                        self.surveyed(view, look, now)
                    }
                    Progress::Done(Err(failure)) => Progress::Done(Confirmed::Failed(failure)),
                }
            }
            Doing::Asking(ask, question) => {
                let question = question.clone();
                let asked = ask.asked(now);
                match ask.answer(answer, now) {
                    Progress::Going => Progress::Going,
                    Progress::Done(Ok(answer)) => self.answered(question, answer, asked, now),
                    Progress::Done(Err(failure)) => Progress::Done(Confirmed::Failed(failure)),
                }
            }
        }
    }
}
