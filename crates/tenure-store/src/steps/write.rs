//! Writing our own record for the first time, and learning what came of it (P28.3, P29, P30.2).
//!
//! ```text
//! send ──written──▶ ours                    ┌──ours──▶ ours (it landed, the answer was lost)
//!   ├──refused─────▶ read it back ──────────┼──other──▶ taken
//!   └──unknown─────▶ read it back ──────────┴──as before──▶ send again
//! ```
//!
//! The record is stamped once, before the first sending, and sent again unchanged: whichever of
//! the copies lands, it is the same acquisition, and the lease counts from the first.

use super::ask::Ask;
use super::{Answer, Body, Failure, Op, Progress, Steps, Why, ours, unexpected};
use crate::judge::{Object, Version};
use crate::key::Key;
use crate::record::Record;
use crate::terms::{Level, Terms};
use crate::time::{Boot, Now, after, stamp};

/// Our record in the store, as we last knew it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Own {
    /// Where it lies.
    pub key: Key,
    /// What it says.
    pub record: Record,
    /// The version of it that is there.
    pub version: Version,
    /// When its last successful write was sent: the lease counts from here (P32).
    pub sent: Boot,
}

/// What the write expects to find.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Expect {
    Nothing,
    Stale(Version),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Write {
    terms: Terms,
    expect: Expect,
    draft: Draft,
    retries: u8,
    doing: Doing,
}

/// The record to be written; its dates, and the key of a shared one, are set when it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Draft {
    pub(super) key: KeyPlan,
    pub(super) record: Record,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum KeyPlan {
    Exclusive,
    Shared { suffix: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    /// Nothing was sent yet.
    Drafted,
    Sending(Sent),
    Pausing(Sent, Ask),
    Reading(Sent, Ask, Unclear),
}

/// The record as it was sent, with no version yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sent {
    key: Key,
    record: Record,
    sent: Boot,
}

/// Why the key is read back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Unclear {
    Refused,
    Unknown(Failure),
}

/// How a first write can end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wrote {
    /// It is there, and ours.
    Ours(Own),
    /// Refused: this is what is at the key instead, if anything.
    Taken(Option<Object>),
    /// After an unknown outcome somebody else's record is there (P29).
    Overtaken(Object),
    /// It cannot be told whether the record is there: it must be removed.
    Unknown(Own, Failure),
    /// It is certainly not there.
    Failed(Failure),
}

impl Write {
    pub(super) fn new(terms: Terms, expect: Expect, draft: Draft) -> Write {
        let retries = terms.retries;
        Write {
            terms,
            expect,
            draft,
            retries,
            doing: Doing::Drafted,
        }
    }

    /// What may be in the store because of us, if anything was sent.
    pub(super) fn own(&self) -> Option<Own> {
        match &self.doing {
            Doing::Drafted => None,
            Doing::Sending(sent) | Doing::Pausing(sent, _) | Doing::Reading(sent, _, _) => {
                Some(sent.own(Version::default()))
            }
        }
    }

    fn send(&self, now: Now) -> Sent {
        let mut record = self.draft.record.clone();
        record.acquired_at = stamp(now.wall);
        record.expires_at = stamp(after(now.wall, self.terms.ttl));
        let key = match self.draft.key {
            KeyPlan::Exclusive => Key::Exclusive,
            KeyPlan::Shared { suffix } => Key::shared(&record.acquired_at, suffix),
        };
        Sent {
            key,
            record,
            sent: now.boot,
        }
    }

    fn op(&self, sent: &Sent) -> Op {
        let body = Body::Record(sent.record.clone());
        match (self.terms.level, &self.expect) {
            (Level::Nothing, _) => Op::Put(sent.key.clone(), body),
            (_, Expect::Nothing) => Op::Create(sent.key.clone(), body),
            (_, Expect::Stale(version)) => Op::Replace(sent.key.clone(), body, version.clone()),
        }
    }

    fn read_back(&mut self, sent: Sent, why: Unclear) -> Progress<Wrote> {
        let ask = Ask::new(Op::Read(sent.key.clone()), self.terms.retries);
        self.doing = Doing::Reading(sent, ask, why);
        Progress::Going
    }

    /// Nothing of ours is there, and what is there is what was there before.
    fn send_again(&mut self, sent: Sent, failure: Failure, now: Now) -> Progress<Wrote> {
        if self.retries == 0 || failure.kind != super::FailureKind::Passing {
            // It may still be on its way: whoever cleans up looks once more.
            return Progress::Done(Wrote::Unknown(sent.own(Version::default()), failure));
        }
        self.retries -= 1;
        let pause = now.boot + std::time::Duration::from_millis(200);
        self.doing = Doing::Pausing(sent, Ask::new(Op::WaitUntil(pause), 0));
        Progress::Going
    }

    fn as_before(&self, found: &Answer) -> bool {
        match (&self.expect, found) {
            (Expect::Nothing, Answer::Absent) => true,
            (Expect::Stale(version), Answer::Found(object)) => object.version == *version,
            // At level 0 a stale object may vanish without harm: nothing depends on it.
            (Expect::Stale(_), Answer::Absent) => self.terms.level == Level::Nothing,
            _ => false,
        }
    }
}

impl Sent {
    fn own(&self, version: Version) -> Own {
        Own {
            key: self.key.clone(),
            record: self.record.clone(),
            version,
            sent: self.sent,
        }
    }
}

impl Steps for Write {
    type End = Wrote;

    fn next(&mut self, now: Now) -> Op {
        match &mut self.doing {
            Doing::Drafted => {
                let sent = self.send(now);
                let op = self.op(&sent);
                self.doing = Doing::Sending(sent);
                op
            }
            Doing::Sending(sent) => {
                let sent = sent.clone();
                self.op(&sent)
            }
            Doing::Pausing(_, ask) | Doing::Reading(_, ask, _) => ask.next(now),
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Wrote> {
        match std::mem::replace(&mut self.doing, Doing::Drafted) {
            Doing::Drafted => Progress::Done(Wrote::Failed(unexpected(answer))),
            Doing::Sending(sent) => match answer {
                Answer::Written(version) => Progress::Done(Wrote::Ours(sent.own(version))),
                Answer::Refused(Why::Condition | Why::Contention) => {
                    self.read_back(sent, Unclear::Refused)
                }
                Answer::Refused(Why::NotSupported) => {
                    Progress::Done(Wrote::Failed(unexpected(answer)))
                }
                other => self.read_back(sent, Unclear::Unknown(unexpected(other))),
            },
            Doing::Pausing(sent, _) => {
                self.doing = Doing::Sending(sent);
                Progress::Going
            }
            Doing::Reading(sent, mut ask, why) => {
                let found = match ask.answer(answer, now) {
                    Progress::Going => {
                        self.doing = Doing::Reading(sent, ask, why);
                        return Progress::Going;
                    }
                    Progress::Done(Ok(found)) => found,
                    Progress::Done(Err(failure)) => {
                        let own = sent.own(Version::default());
                        return Progress::Done(Wrote::Unknown(own, failure));
                    }
                };
                if let Answer::Found(object) = &found
                    && let Some(version) = ours(object, &sent.record.identity())
                {
                    return Progress::Done(Wrote::Ours(sent.own(version)));
                }
                match (why, found) {
                    (Unclear::Unknown(failure), found) if self.as_before(&found) => {
                        self.send_again(sent, failure, now)
                    }
                    (Unclear::Unknown(_), Answer::Found(object)) => {
                        Progress::Done(Wrote::Overtaken(object))
                    }
                    (Unclear::Unknown(_) | Unclear::Refused, Answer::Absent) => {
                        Progress::Done(Wrote::Taken(None))
                    }
                    (Unclear::Refused, Answer::Found(object)) => {
                        Progress::Done(Wrote::Taken(Some(object)))
                    }
                    (_, other) => {
                        let own = sent.own(Version::default());
                        Progress::Done(Wrote::Unknown(own, unexpected(other)))
                    }
                }
            }
        }
    }
}
