//! Removing one object without hitting its successor (P29, P35, P37).
//!
//! By version where the store can (level 2); otherwise read, compare, delete. An unclear answer is
//! followed by a look, so that a removal ends with knowledge, or with a failure that says so.
//!
//! A delete without a condition is safe only while nobody may take the lock over. So where writes
//! have conditions and deletes have none (level 1), an exclusive record whose lease is used up is
//! renewed first: the renewal is refused if it is another's by now, and gives the delete a lease to
//! arrive in. A shared record needs none of this, its key is nobody else's.

use std::time::Duration;

use super::ask::Ask;
use super::renew::{Renew, Renewed};
use super::{Answer, Failure, FailureKind, Op, Own, Progress, Steps, Why, ours, unexpected};
use crate::judge::{Object, Version};
use crate::key::Key;
use crate::record::Identity;
use crate::terms::{Level, Terms};
use crate::time::Now;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Remove {
    terms: Terms,
    key: Key,
    which: Which,
    /// Level 1: our exclusive record, whose lease keeps others away until it is deleted.
    leased: Option<Box<Own>>,
    /// A delete was sent and its answer lost: absence may be our own doing.
    unclear: bool,
    how: How,
    retries: u8,
    doing: Doing,
}

/// What may be removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Which {
    /// Our own record, whichever version of it.
    Own(Identity),
    /// Exactly this version of somebody's.
    Exactly(Version),
    /// Whatever is there.
    Anything,
}

/// How the store is asked to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum How {
    /// By version, as far as the store can.
    Gently,
    /// By name: in a directory the holder itself stands guard over its file (K24), and whoever
    /// breaks a live lock means just that.
    ByName,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Reading(Ask),
    /// Our lease is used up, and somebody may be about to take over.
    Renewing(Renew),
    Deleting(Version),
    Pausing(Ask),
}

/// How a removal can end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Removed {
    /// It is gone, by our hand.
    Gone,
    /// It was not there.
    Absent,
    /// Something else is there; it was left alone.
    Other(Box<Object>),
    /// It may still be there.
    Failed(Failure),
}

impl Remove {
    /// Removes our own record. Where its version is not known, the outcome of its write is not
    /// known either, and it is looked for first.
    pub(super) fn own(terms: Terms, own: &Own) -> Remove {
        let version = (own.version != Version::default()).then(|| own.version.clone());
        let which = Which::Own(own.record.identity());
        let leased = (terms.level == Level::Writes && own.key == Key::Exclusive)
            .then(|| Box::new(own.clone()));
        Remove {
            leased,
            ..Remove::new(terms, own.key.clone(), which, version)
        }
    }

    /// Removes somebody's object, if it is still the one that was seen.
    pub(super) fn exactly(terms: Terms, key: Key, version: Version) -> Remove {
        Remove::new(terms, key, Which::Exactly(version.clone()), Some(version))
    }

    /// Removes what is at `key`.
    pub(super) fn anything(terms: Terms, key: Key, version: Version) -> Remove {
        Remove::new(terms, key, Which::Anything, Some(version))
    }

    fn new(terms: Terms, key: Key, which: Which, version: Option<Version>) -> Remove {
        let doing = match version {
            Some(version) if terms.level == Level::Deletes => Doing::Deleting(version),
            Some(_) | None => Doing::Reading(Ask::new(Op::Read(key.clone()), terms.retries)),
        };
        // A record that nobody refreshes is worth more patience than a question (P29).
        let retries = terms.retries.saturating_mul(2);
        Remove {
            terms,
            key,
            which,
            leased: None,
            unclear: false,
            how: How::Gently,
            retries,
            doing,
        }
    }

    /// The object's key.
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    fn read(&mut self) -> Progress<Removed> {
        self.doing = Doing::Reading(Ask::new(Op::Read(self.key.clone()), self.terms.retries));
        Progress::Going
    }

    fn look(&mut self, object: Object) -> Progress<Removed> {
        let version = match &self.which {
            Which::Own(identity) => ours(&object, identity),
            Which::Exactly(version) => (object.version == *version).then(|| version.clone()),
            Which::Anything => Some(object.version.clone()),
        };
        match version {
            None => Progress::Done(Removed::Other(Box::new(object))),
            Some(version) => {
                self.doing = Doing::Deleting(version);
                Progress::Going
            }
        }
    }

    /// Whether the lease that guards a delete of this version is used up (P32).
    fn overdue(&self, version: &Version, now: Now) -> Option<Own> {
        let own = self.leased.as_deref()?;
        let is_over = now.boot >= own.sent + self.terms.reliance();
        is_over.then(|| Own {
            version: version.clone(),
            ..own.clone()
        })
    }

    fn renewed(&mut self, end: Renewed, now: Now) -> Progress<Removed> {
        match end {
            Renewed::Ours(own) if now.boot >= own.sent + self.terms.reliance() => self.again(
                Failure::passing("the store took longer than the lease"),
                now,
            ),
            Renewed::Ours(own) => {
                self.doing = Doing::Deleting(own.version.clone());
                self.leased = Some(Box::new(own));
                Progress::Going
            }
            Renewed::Lost(Some(object)) => Progress::Done(Removed::Other(Box::new(object))),
            Renewed::Lost(None) => self.absent(),
            Renewed::Failed(_, failure) => self.again(failure, now),
        }
    }

    fn again(&mut self, failure: Failure, now: Now) -> Progress<Removed> {
        self.unclear = true;
        // Our own record is worth another try whatever the failure: nobody else removes it.
        let hopeless = failure.kind != FailureKind::Passing && !matches!(self.which, Which::Own(_));
        if self.retries == 0 || hopeless {
            return Progress::Done(Removed::Failed(failure));
        }
        self.retries -= 1;
        let until = now.boot + Duration::from_millis(500);
        self.doing = Doing::Pausing(Ask::new(Op::WaitUntil(until), 0));
        Progress::Going
    }

    fn absent(&self) -> Progress<Removed> {
        Progress::Done(if self.unclear {
            Removed::Gone
        } else {
            Removed::Absent
        })
    }
}

impl Steps for Remove {
    type End = Removed;

    fn next(&mut self, now: Now) -> Op {
        if let Doing::Deleting(version) = &self.doing
            && let Some(own) = self.overdue(version, now)
        {
            self.doing = Doing::Renewing(Renew::new(self.terms.clone(), own));
        }
        match &mut self.doing {
            Doing::Reading(ask) | Doing::Pausing(ask) => ask.next(now),
            Doing::Renewing(renew) => renew.next(now),
            Doing::Deleting(version) => match (self.terms.level, self.how) {
                (Level::Deletes, How::Gently) => {
                    Op::DeleteVersion(self.key.clone(), version.clone())
                }
                (Level::Deletes, How::ByName) | (Level::Nothing | Level::Writes, _) => {
                    Op::Delete(self.key.clone())
                }
            },
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Removed> {
        match &mut self.doing {
            Doing::Pausing(_) => self.read(),
            Doing::Renewing(renew) => match renew.answer(answer, now) {
                Progress::Going => Progress::Going,
                Progress::Done(end) => self.renewed(end, now),
            },
            Doing::Reading(ask) => match ask.answer(answer, now) {
                Progress::Going => Progress::Going,
                Progress::Done(Ok(Answer::Found(object))) => self.look(object),
                Progress::Done(Ok(Answer::Absent)) => self.absent(),
                Progress::Done(Ok(other)) => Progress::Done(Removed::Failed(unexpected(other))),
                Progress::Done(Err(failure)) => self.again(failure, now),
            },
            Doing::Deleting(_) => match answer {
                Answer::Deleted => Progress::Done(Removed::Gone),
                Answer::Absent => self.absent(),
                // Another version than we knew. It may be ours all the same: an answer got lost.
                Answer::Refused(Why::Condition) if self.retries > 0 => {
                    self.retries -= 1;
                    self.read()
                }
                Answer::Refused(Why::Contention) if self.which == Which::Anything => {
                    self.how = How::ByName;
                    Progress::Going
                }
                other => self.again(unexpected(other), now),
            },
        }
    }
}
