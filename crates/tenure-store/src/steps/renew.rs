//! One refresh: our record again, with a later date, if it is still ours (P31).
//!
//! Success counts from the moment its write was *sent* (P32). A write of unknown outcome counts
//! as no success; if it landed, the next one is refused, finds its own record, and goes on from
//! there.

use super::ask::Ask;
use super::{Answer, Body, Failure, Op, Own, Progress, Steps, Why, ours, unexpected};
use crate::judge::Object;
use crate::terms::{Level, Terms};
use crate::time::{Now, after, stamp};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Renew {
    terms: Terms,
    /// Our record as we last knew it; its version is kept up to date even by a failed refresh.
    own: Own,
    tries: u8,
    doing: Doing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    /// Level 0: is it still ours?
    Before(Ask),
    Sending(Option<Own>),
    /// Refused: by whom?
    ReadingBack(Ask),
    /// Level 0: did ours stay?
    After(Own, Ask),
}

/// How a refresh can end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Renewed {
    /// It is ours for another lease.
    Ours(Own),
    /// It is not ours any more; this is there instead, if anything.
    Lost(Option<Object>),
    /// Nothing is known. What is known of our record comes with it.
    Failed(Own, Failure),
}

impl Renew {
    pub(super) fn new(terms: Terms, own: Own) -> Renew {
        let doing = match terms.level {
            Level::Nothing => Doing::Before(Ask::new(Op::Read(own.key.clone()), 0)),
            Level::Writes | Level::Deletes => Doing::Sending(None),
        };
        Renew {
            terms,
            own,
            tries: 3,
            doing,
        }
    }

    fn draft(&self, now: Now) -> Own {
        let mut draft = self.own.clone();
        draft.record.expires_at = stamp(after(now.wall, self.terms.ttl));
        draft.sent = now.boot;
        draft
    }

    fn failed(&self, failure: Failure) -> Progress<Renewed> {
        Progress::Done(Renewed::Failed(self.own.clone(), failure))
    }

    fn read(&self) -> Ask {
        Ask::new(Op::Read(self.own.key.clone()), 0)
    }

    fn sent(&mut self, draft: Own, answer: Answer) -> Progress<Renewed> {
        match answer {
            Answer::Written(version) => {
                let renewed = Own { version, ..draft };
                match self.terms.level {
                    Level::Nothing => {
                        self.doing = Doing::After(renewed, self.read());
                        Progress::Going
                    }
                    Level::Writes | Level::Deletes => Progress::Done(Renewed::Ours(renewed)),
                }
            }
            Answer::Refused(Why::Condition | Why::Contention) | Answer::Absent => {
                self.doing = Doing::ReadingBack(self.read());
                Progress::Going
            }
            other => self.failed(unexpected(other)),
        }
    }

    /// What a read of our own key showed: still ours, or the end.
    fn check(&mut self, answer: Answer) -> Result<(), Progress<Renewed>> {
        match answer {
            Answer::Found(object) => match ours(&object, &self.own.record.identity()) {
                Some(version) => {
                    self.own.version = version;
                    Ok(())
                }
                None => Err(Progress::Done(Renewed::Lost(Some(object)))),
            },
            Answer::Absent => Err(Progress::Done(Renewed::Lost(None))),
            other => Err(self.failed(unexpected(other))),
        }
    }
}

impl Steps for Renew {
    type End = Renewed;

    fn next(&mut self, now: Now) -> Op {
        let draft = self.draft(now);
        match &mut self.doing {
            Doing::Before(ask) | Doing::ReadingBack(ask) | Doing::After(_, ask) => ask.next(now),
            Doing::Sending(sending) => {
                let key = draft.key.clone();
                let body = Body::Record(draft.record.clone());
                let version = draft.version.clone();
                *sending = Some(draft);
                match self.terms.level {
                    Level::Nothing => Op::Put(key, body),
                    Level::Writes | Level::Deletes => Op::Renew(key, body, version),
                }
            }
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Renewed> {
        match self.doing.clone() {
            Doing::Sending(Some(draft)) => self.sent(draft, answer),
            Doing::Sending(None) => self.failed(unexpected(answer)),
            Doing::Before(mut ask) | Doing::ReadingBack(mut ask) => {
                let found = match ask.answer(answer, now) {
                    Progress::Going => return Progress::Going,
                    Progress::Done(Ok(found)) => found,
                    Progress::Done(Err(failure)) => return self.failed(failure),
                };
                if let Err(end) = self.check(found) {
                    return end;
                }
                if self.tries == 0 {
                    return self.failed(Failure::passing("the store refuses our own version"));
                }
                self.tries -= 1;
                self.doing = Doing::Sending(None);
                Progress::Going
            }
            Doing::After(renewed, mut ask) => {
                let found = match ask.answer(answer, now) {
                    Progress::Going => return Progress::Going,
                    Progress::Done(Ok(found)) => found,
                    Progress::Done(Err(failure)) => return self.failed(failure),
                };
                match self.check(found) {
                    Ok(()) => {
                        let version = self.own.version.clone();
                        Progress::Done(Renewed::Ours(Own { version, ..renewed }))
                    }
                    Err(end) => end,
                }
            }
        }
    }
}
