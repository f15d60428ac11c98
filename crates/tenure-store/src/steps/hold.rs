//! Holding: refresh, watch, lapse, revive, release (P31–P36).
//!
//! ```text
//!            refreshed in time                    revive: write, then look around (P34)
//!              ┌────┐                               ┌──────────────────────┐
//!              ▼    │       80 % of ttl used        │                      ▼
//!  Acquired ─▶ Held ─┴──────────────────────────▶ Lapsed ──▶ Lost        Held
//!              │  └── record not ours, or an intruder stays ──▶ Lost
//!              └── release ──▶ done                (release works from everywhere)
//! ```
//!
//! # How to drive it
//!
//! As any other machine, with three additions:
//!
//! - Orders ([`Hold::release`], [`Hold::revive`], [`Hold::check`]) may be given at any time. While
//!   an operation is under way they wait for its answer; a wait may be abandoned, without an
//!   answer, by calling [`Steps::next`] again.
//! - [`Hold::tick`] may be called at any time, and must be called at [`Hold::valid_until`] even
//!   while an operation is under way: a lease lapses by the clock, not by an answer.
//! - After each call, [`Hold::status`] and [`Hold::take_notices`] say what is new.
//!
//! It ends only after `release`. A holder that lost its lock stops asking and waits for that.

use super::ask::Ask;
use super::remove::{Remove, Removed};
use super::renew::{Renew, Renewed};
use super::revive::{Revive, Revived};
use super::survey::Survey;
use super::{Acquired, Answer, Blocker, Failure, Op, Own, Progress, Steps, ours, unexpected};
use crate::judge::{Object, Sightings, judge};
use crate::key::Key;
use crate::terms::{Level, Mode, OnConflict, Terms};
use crate::time::{Boot, Now};

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    terms: Terms,
    mode: Mode,
    own: Own,
    fence: Option<u64>,
    sightings: Sightings,
    status: Status,
    doing: Doing,
    refresh_at: Boot,
    check_at: Boot,
    /// Intruders of the last look; they count if the next one finds them again (P33).
    suspects: Vec<Blocker>,
    orders: Orders,
    notices: Vec<Notice>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Orders {
    release: bool,
    revive: bool,
    check: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Resting,
    Renewing(Renew),
    WatchingOwn(Ask),
    WatchingExclusive(Ask),
    WatchingShared(Survey),
    Asserting(Ask),
    Reviving(Revive),
    /// Revival failed for good: our record goes, then the lock is lost for this cause.
    GivingUp(Remove, Cause),
    Releasing(Remove),
}

/// Whether the lock is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Yes, until [`Hold::valid_until`].
    Held,
    /// Not any more, since then; it may be revived (P34). The work has stopped.
    Lapsed {
        /// When the lease was used up.
        since: Boot,
    },
    /// Not any more, and never again.
    Lost(Cause),
}

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Somebody removed our record.
    Removed,
    /// Somebody else's record is in its place.
    Overwritten(Box<Blocker>),
    /// Somebody who excludes us stands beside us (P33).
    Intruder(Box<Blocker>),
    /// The lease ran out, and the store has no conditional writes to revive it by (P34).
    Expired,
}

/// Something that happened while holding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The record has a later date.
    Refreshed,
    /// It could not be refreshed; another try is under way.
    RefreshFailed(Failure),
    /// Somebody who excludes us has stood beside us for a while (P33), and a shared holder was
    /// told to warn.
    Intruder(Box<Blocker>),
    /// Answer to [`Hold::check`]: ours, by the store's own word.
    StillOurs,
    /// Answer to [`Hold::check`]: the store could not be asked.
    CheckFailed(Failure),
    /// Answer to [`Hold::revive`]: held again, with a new fencing number.
    Revived,
    /// Answer to [`Hold::revive`]: not now; it may be tried again.
    NotRevived(Failure),
}

/// What came of giving a lock back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    /// Our record is gone.
    Done,
    /// It was not ours any more, and nobody knew: the work may have overlapped another's.
    Compromised(Cause),
    /// It had been lost before; nothing was left to remove.
    WasLost(Cause),
    /// It could not be removed, and stands until it lapses.
    Failed(Failure),
}

impl Hold {
    /// Keeps a lock that was taken.
    pub fn new(terms: Terms, acquired: Acquired) -> Hold {
        let Acquired {
            mode,
            own,
            fence,
            sightings,
        } = acquired;
        let sent = own.sent;
        // The first refresh is due at once where it has a number to write into the record (K39).
        let refresh_at = match fence {
            Some(_) => sent,
            None => sent + terms.refresh,
        };
        Hold {
            check_at: sent + terms.refresh / 2,
            refresh_at,
            terms,
            mode,
            own,
            fence,
            sightings,
            status: Status::Held,
            doing: Doing::Resting,
            suspects: Vec::new(),
            orders: Orders::default(),
            notices: Vec::new(),
        }
    }

    /// Takes over a lock that another process took. Nothing of its lease is relied on: it counts
    /// as lapsed until it is revived.
    pub fn adopted(terms: Terms, acquired: Acquired, now: Now) -> Hold {
        let status = Status::Lapsed { since: now.boot };
        Hold {
            status,
            ..Hold::new(terms, acquired)
        }
    }

    /// Whether it is held. Call [`Hold::tick`] first.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Until when the work may go on without a newer refresh (P32).
    pub fn valid_until(&self) -> Boot {
        self.own.sent + self.terms.reliance()
    }

    /// The newest fencing number.
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Our record.
    pub fn own(&self) -> &Own {
        &self.own
    }

    /// What happened since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Gives it back (P35).
    pub fn release(&mut self) {
        self.orders.release = true;
    }

    /// Tries to get a lapsed lock back (P34); does nothing if it is not lapsed.
    pub fn revive(&mut self) {
        self.orders.revive = true;
    }

    /// Asks the store whether the record is ours (K34).
    pub fn check(&mut self) {
        self.orders.check = true;
    }

    /// Lets the lease lapse if its time has come (P32, K35).
    pub fn tick(&mut self, now: Now) {
        if self.status == Status::Held && now.boot >= self.valid_until() {
            self.status = Status::Lapsed {
                since: self.valid_until(),
            };
        }
    }

    fn rest(&mut self) -> Progress<Released> {
        self.doing = Doing::Resting;
        Progress::Going
    }

    fn go(&mut self, doing: Doing) -> Progress<Released> {
        self.doing = doing;
        Progress::Going
    }

    fn read(&self, key: Key) -> Ask {
        Ask::new(Op::Read(key), 0)
    }

    fn remove(&self) -> Remove {
        Remove::own(self.terms.clone(), &self.own)
    }

    /// Chooses what to do next; the most urgent first. `None` is rest.
    fn choose(&mut self, now: Now) -> Option<Doing> {
        match self.status {
            Status::Lost(_) => None,
            Status::Lapsed { .. } => {
                if !std::mem::take(&mut self.orders.revive) {
                    return None;
                }
                if self.terms.level == Level::Nothing {
                    self.status = Status::Lost(Cause::Expired);
                    return None;
                }
                let sightings = self.sightings.clone();
                let (terms, own) = (self.terms.clone(), self.own.clone());
                Some(Doing::Reviving(Revive::new(
                    terms, self.mode, own, sightings,
                )))
            }
            Status::Held => {
                self.orders.revive = false;
                if std::mem::take(&mut self.orders.check) {
                    Some(Doing::Asserting(self.read(self.own.key.clone())))
                } else if self.refresh_at <= now.boot {
                    Some(Doing::Renewing(Renew::new(
                        self.terms.clone(),
                        self.own.clone(),
                    )))
                } else if self.check_at <= now.boot {
                    Some(self.watch())
                } else {
                    None
                }
            }
        }
    }

    fn watch(&self) -> Doing {
        match self.mode {
            Mode::Shared => Doing::WatchingExclusive(self.read(Key::Exclusive)),
            Mode::Exclusive => Doing::WatchingOwn(self.read(Key::Exclusive)),
        }
    }

    fn wake_at(&self) -> Boot {
        match self.status {
            Status::Held => self.refresh_at.min(self.check_at).min(self.valid_until()),
            Status::Lapsed { .. } | Status::Lost(_) => Boot::NEVER,
        }
    }

    fn lose(&mut self, cause: Cause) -> Progress<Released> {
        self.status = Status::Lost(cause);
        self.rest()
    }

    /// What is at our key instead of our record.
    fn usurped(&self, found: Option<Object>, now: Now) -> Cause {
        match found {
            None => Cause::Removed,
            Some(object) => {
                let key = self.own.key.clone();
                let verdict = judge(&key, &object, Default::default(), now, self.terms.skew);
                Cause::Overwritten(Box::new(Blocker {
                    key,
                    object,
                    verdict,
                }))
            }
        }
    }

    fn renewed(&mut self, end: Renewed, now: Now) -> Progress<Released> {
        match end {
            Renewed::Ours(own) => {
                self.refresh_at = own.sent + self.terms.refresh;
                self.check_at = if self.suspects.is_empty() {
                    own.sent + self.terms.refresh / 2
                } else {
                    self.check_at
                };
                // An answer that came after the lease had lapsed revives nothing by itself: the
                // status is decided by `tick`, before this is looked at.
                self.own = own;
                self.notices.push(Notice::Refreshed);
                self.rest()
            }
            Renewed::Lost(found) => {
                let cause = self.usurped(found, now);
                self.lose(cause)
            }
            Renewed::Failed(own, failure) => {
                self.own = own;
                self.refresh_at = now.boot + Terms::REFRESH_RETRY;
                self.notices.push(Notice::RefreshFailed(failure));
                self.rest()
            }
        }
    }

    /// P33: who stands beside us, and did he stand there before?
    fn watched(&mut self, intruders: Vec<Blocker>, now: Now) -> Progress<Released> {
        let stays = |intruder: &&Blocker| {
            self.suspects
                .iter()
                .any(|suspect| suspect.is_same(intruder))
        };
        let settled = intruders.iter().find(stays).cloned().map(Box::new);
        self.check_at = match (&settled, intruders.is_empty()) {
            (None, false) => now.boot + Terms::SECOND_LOOK,
            (Some(_), _) | (None, true) => self.next_look(now),
        };
        self.suspects = intruders;
        match (settled, self.mode, self.terms.on_conflict) {
            (None, _, _) => self.rest(),
            (Some(intruder), Mode::Exclusive, _)
            | (Some(intruder), Mode::Shared, OnConflict::Stop) => {
                self.lose(Cause::Intruder(intruder))
            }
            (Some(intruder), Mode::Shared, OnConflict::Warn) => {
                self.suspects.clear();
                self.notices.push(Notice::Intruder(intruder));
                self.rest()
            }
        }
    }

    /// Half way between the next refresh and the one after it.
    fn next_look(&self, now: Now) -> Boot {
        self.refresh_at.max(now.boot) + self.terms.refresh / 2
    }

    /// A look that failed is no news: the lease rule covers a store that cannot be reached.
    fn unwatched(&mut self, now: Now) -> Progress<Released> {
        self.check_at = self.next_look(now);
        self.rest()
    }

    fn watched_own(&mut self, answer: Answer, now: Now) -> Progress<Released> {
        match answer {
            Answer::Found(object) => match ours(&object, &self.own.record.identity()) {
                Some(version) => {
                    self.own.version = version;
                    let survey = Survey::shared(self.no_retries(), self.sightings.clone());
                    self.go(Doing::WatchingShared(survey))
                }
                None => {
                    let cause = self.usurped(Some(object), now);
                    self.lose(cause)
                }
            },
            Answer::Absent => self.lose(Cause::Removed),
            _ => self.unwatched(now),
        }
    }

    fn watched_exclusive(&mut self, answer: Answer, asked: Now, now: Now) -> Progress<Released> {
        match answer {
            Answer::Absent => {
                self.sightings.forget(&Key::Exclusive);
                self.watched(Vec::new(), now)
            }
            Answer::Found(object) => {
                let key = Key::Exclusive;
                let watched = self
                    .sightings
                    .note(&key, &object.version, asked.boot, now.boot);
                let verdict = judge(&key, &object, watched, asked, self.terms.skew);
                let blocker = Blocker {
                    key,
                    object,
                    verdict,
                };
                let intruders = if blocker.verdict.blocks() {
                    vec![blocker]
                } else {
                    Vec::new()
                };
                self.watched(intruders, now)
            }
            _ => self.unwatched(now),
        }
    }

    fn no_retries(&self) -> Terms {
        Terms {
            retries: 0,
            ..self.terms.clone()
        }
    }

    fn asserted(&mut self, answer: Answer, now: Now) -> Progress<Released> {
        match answer {
            Answer::Found(object) => match ours(&object, &self.own.record.identity()) {
                Some(version) => {
                    self.own.version = version;
                    self.notices.push(Notice::StillOurs);
                    self.rest()
                }
                None => {
                    let cause = self.usurped(Some(object), now);
                    self.lose(cause)
                }
            },
            Answer::Absent => self.lose(Cause::Removed),
            other => {
                self.notices.push(Notice::CheckFailed(unexpected(other)));
                self.rest()
            }
        }
    }

    fn revived(&mut self, own: Own, end: Revived, now: Now) -> Progress<Released> {
        self.own = own;
        match end {
            Revived::Held(fence, sightings) => {
                self.sightings = sightings;
                self.held_again(fence, now)
            }
            Revived::Intruder(blocker) => {
                let remove = self.remove();
                self.go(Doing::GivingUp(remove, Cause::Intruder(blocker)))
            }
            Revived::Lost(found) => {
                let cause = self.usurped(found, now);
                self.lose(cause)
            }
            Revived::Failed(failure) => self.not_revived(failure),
        }
    }

    fn held_again(&mut self, fence: Option<u64>, now: Now) -> Progress<Released> {
        if let Some(block) = &mut self.own.record.tenure {
            block.fence = fence;
        }
        if now.boot >= self.valid_until() {
            return self.not_revived(Failure::passing("the store took longer than the lease"));
        }
        self.fence = fence;
        self.status = Status::Held;
        self.suspects.clear();
        self.refresh_at = now.boot;
        self.check_at = now.boot + self.terms.refresh / 2;
        self.notices.push(Notice::Revived);
        self.rest()
    }

    fn not_revived(&mut self, failure: Failure) -> Progress<Released> {
        self.notices.push(Notice::NotRevived(failure));
        self.rest()
    }

    fn released(&self, end: Removed, now: Now) -> Released {
        let lost = match &self.status {
            Status::Lost(cause) => Some(cause.clone()),
            Status::Held | Status::Lapsed { .. } => None,
        };
        match (end, lost) {
            (Removed::Failed(failure), _) => Released::Failed(failure),
            (Removed::Gone, _) => Released::Done,
            (Removed::Absent | Removed::Other(_), Some(cause)) => Released::WasLost(cause),
            (Removed::Absent, None) => Released::Compromised(Cause::Removed),
            (Removed::Other(object), None) => {
                Released::Compromised(self.usurped(Some(*object), now))
            }
        }
    }
}

impl Steps for Hold {
    type End = Released;

    fn next(&mut self, now: Now) -> Op {
        self.tick(now);
        // No operation is under way here, so whatever was going on can be left where it is.
        if std::mem::take(&mut self.orders.release) {
            self.doing = Doing::Releasing(self.remove());
        } else if self.doing == Doing::Resting
            && let Some(doing) = self.choose(now)
        {
            self.doing = doing;
        }
        match &mut self.doing {
            Doing::Resting => Op::WaitUntil(self.wake_at()),
            Doing::Renewing(renew) => renew.next(now),
            Doing::Reviving(revive) => revive.next(now),
            Doing::WatchingOwn(ask) | Doing::WatchingExclusive(ask) | Doing::Asserting(ask) => {
                ask.next(now)
            }
            Doing::WatchingShared(survey) => survey.next(now),
            Doing::GivingUp(remove, _) | Doing::Releasing(remove) => remove.next(now),
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Released> {
        self.tick(now);
        match self.doing.clone() {
            Doing::Resting => Progress::Going,
            Doing::Renewing(mut renew) => match renew.answer(answer, now) {
                Progress::Going => self.go(Doing::Renewing(renew)),
                Progress::Done(end) => self.renewed(end, now),
            },
            Doing::WatchingOwn(_) => self.watched_own(answer, now),
            Doing::WatchingExclusive(ask) => self.watched_exclusive(answer, ask.asked(now), now),
            Doing::WatchingShared(mut survey) => match survey.answer(answer, now) {
                Progress::Going => self.go(Doing::WatchingShared(survey)),
                Progress::Done(Ok((view, sightings))) => {
                    self.sightings = sightings;
                    self.watched(view.blocking().cloned().collect(), now)
                }
                Progress::Done(Err(_)) => self.unwatched(now),
            },
            Doing::Asserting(_) => self.asserted(answer, now),
            Doing::Reviving(mut revive) => match revive.answer(answer, now) {
                Progress::Going => self.go(Doing::Reviving(revive)),
                Progress::Done(end) => self.revived(revive.own().clone(), end, now),
            },
            Doing::GivingUp(mut remove, cause) => match remove.answer(answer, now) {
                Progress::Going => self.go(Doing::GivingUp(remove, cause)),
                Progress::Done(_) => self.lose(cause),
            },
            Doing::Releasing(mut remove) => match remove.answer(answer, now) {
                Progress::Going => self.go(Doing::Releasing(remove)),
                Progress::Done(end) => Progress::Done(self.released(end, now)),
            },
        }
    }
}
