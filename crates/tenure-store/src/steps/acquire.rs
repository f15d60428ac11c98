//! Acquiring: look, write, look again, settle, take a number (P28–P30), and wait if told to (P19).
//!
//! ```text
//!   ┌─────────────────────────── pause ◀── held, and waiting ─┐
//!   ▼                                                         │
//! look ──▶ survey (exclusive) ──▶ write ──▶ confirm ──▶ fence ──▶ sweep ──▶ Acquired
//!   ▲                               │          └──────────┴── failed ─▶ withdraw ─▶ Refusal
//!   └────────── taken, 5 times ─────┘
//! ```
//!
//! From the first sending of `write` on, no way out of here leaves our record behind: every
//! failure goes through `withdraw` (P29), and so does [`Acquire::cancel`].

use super::ask::Ask;
use super::confirm::{Confirm, Confirmed};
use super::dice::Dice;
use super::fence::{FenceError, TakeFence};
use super::remove::{Remove, Removed};
use super::survey::Survey;
use super::write::{Draft, Expect, KeyPlan, Write, Wrote};
use super::{Answer, Blocker, Failure, Op, Own, Progress, Steps, View, unexpected};
use crate::judge::{Object, Sightings, Verdict, Version, judge};
use crate::key::Key;
use crate::record::{Block, Record};
use crate::terms::{Level, Mode, Terms};
use crate::time::{Boot, Now};

/// What somebody wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Shared or exclusive.
    pub mode: Mode,
    /// The record's `operation`.
    pub operation: String,
    /// The record's `holder`.
    pub holder: String,
    /// Who we are (K6). Token, `ttl` and fence are filled in here.
    pub block: Block,
    /// Whether to wait while it is held.
    pub wait: Wait,
    /// From the system's source of randomness; tells acquisitions apart and spreads waits.
    pub seed: u128,
}

/// What to do while somebody else holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Refuse at once, as the originals do.
    No,
    /// Look again every two seconds (P19) until [`Acquire::stop_waiting`].
    Yes,
}

/// A lock that was taken. [`Hold::new`](super::Hold::new) keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquired {
    /// Shared or exclusive.
    pub mode: Mode,
    /// Our record.
    pub own: Own,
    /// The fencing number (P38).
    pub fence: Option<u64>,
    /// What was seen of others.
    pub sightings: Sightings,
}

/// Why a lock was not taken. Nothing of ours is left in the store, unless it says so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Somebody has it. An unreadable object counts as somebody (P24).
    Held(Box<Blocker>),
    /// Somebody else was faster; `to` where he is known.
    LostRace {
        /// Who.
        to: Option<Box<Blocker>>,
    },
    /// The time to wait was over and somebody still had it.
    TimedOut(Box<Blocker>),
    /// The store failed (P25).
    Store(Failure),
    /// The store failed, and then failed to remove our record: it stands until it lapses.
    LeftBehind {
        /// What failed first.
        cause: Box<Refusal>,
        /// Where the record is.
        key: Key,
        /// Why it could not be removed.
        failure: Failure,
    },
    /// The fencing counter is damaged or at its end.
    Fence,
    /// The store took so long that the lease was used up before the lock was held, or, without
    /// conditional writes, that what was seen was too old to be written over.
    TooSlow,
    /// The caller lost interest.
    Cancelled,
}

/// Takes a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquire {
    terms: Terms,
    request: Request,
    dice: Dice,
    sightings: Sightings,
    round: u8,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// P28.1, P30.1.
    Looking(Ask),
    /// P28.2. Where no condition guards the write: when the exclusive key was looked at.
    Surveying(Survey, Expect, Option<Boot>),
    /// P28.3, P30.2.
    Writing(Write),
    /// P28.4 and 5, P30.3 and 4.
    Confirming(Confirm),
    /// P38.
    Fencing(TakeFence, Own, Vec<Blocker>),
    /// P28.6: what was stale goes.
    Sweeping(Remove, Vec<(Key, Version)>, Acquired),
    /// P29: what we wrote goes.
    Withdrawing(Remove, Refusal),
    /// P19.
    Pausing(Ask, Refusal),
    /// Cancelled before anything was written.
    Over(Refusal),
}

type End = Result<Acquired, Refusal>;

impl Acquire {
    /// Begins to take a lock. `sightings` is what this process saw of the store before.
    pub fn new(terms: Terms, request: Request, sightings: Sightings) -> Acquire {
        let dice = Dice::new(request.seed);
        let stage = Stage::look(&terms);
        Acquire {
            terms,
            request,
            dice,
            sightings,
            round: 0,
            stage,
        }
    }

    /// Who is in the way, while it pauses.
    pub fn blocker(&self) -> Option<&Blocker> {
        match &self.stage {
            Stage::Pausing(_, Refusal::Held(blocker)) => Some(blocker),
            Stage::Pausing(_, Refusal::LostRace { to: Some(blocker) }) => Some(blocker),
            _ => None,
        }
    }

    /// The deadline is here: what is under way is finished, but nothing is begun again. A pause
    /// may be answered at once.
    pub fn stop_waiting(&mut self) {
        self.request.wait = Wait::No;
    }

    /// Nobody wants the lock any more. Keep driving: it ends with [`Refusal::Cancelled`] and
    /// nothing left behind. Give the answer to the operation under way first, if there is one (a
    /// wait has no answer worth waiting for); that may end it with a lock, to be released then.
    pub fn cancel(&mut self) {
        self.request.wait = Wait::No;
        let own = match &self.stage {
            Stage::Looking(_) | Stage::Surveying(..) | Stage::Pausing(..) | Stage::Over(_) => None,
            Stage::Writing(write) => write.own(),
            Stage::Confirming(confirm) => Some(confirm.own().clone()),
            Stage::Fencing(_, own, _) => Some(own.clone()),
            Stage::Sweeping(_, _, acquired) => Some(acquired.own.clone()),
            Stage::Withdrawing(..) => return,
        };
        self.stage = match own {
            Some(own) => self.withdrawing(&own, Refusal::Cancelled),
            None => Stage::Over(Refusal::Cancelled),
        };
    }

    fn go(&mut self, stage: Stage) -> Progress<End> {
        self.stage = stage;
        Progress::Going
    }

    /// Ends an attempt of which nothing is left in the store.
    fn refuse(&mut self, refusal: Refusal, now: Now) -> Progress<End> {
        let again = matches!(refusal, Refusal::Held(_) | Refusal::LostRace { .. });
        if !again || self.request.wait == Wait::No {
            return Progress::Done(Err(refusal));
        }
        let until = now.boot + self.dice.around(self.terms.poll);
        self.go(Stage::Pausing(Ask::new(Op::WaitUntil(until), 0), refusal))
    }

    /// Ends an attempt that may have left our record.
    fn withdraw(&mut self, own: &Own, refusal: Refusal) -> Progress<End> {
        let stage = self.withdrawing(own, refusal);
        self.go(stage)
    }

    fn withdrawing(&self, own: &Own, refusal: Refusal) -> Stage {
        Stage::Withdrawing(Remove::own(self.terms.clone(), own), refusal)
    }

    /// P28.1, P30.1: what is at the exclusive key decides how to go on.
    fn looked(&mut self, found: Option<Object>, asked: Now, now: Now) -> Progress<End> {
        let expect = match found {
            None => {
                self.sightings.forget(&Key::Exclusive);
                Expect::Nothing
            }
            Some(object) => {
                let blocker = self.judged(Key::Exclusive, object, asked, now);
                if blocker.verdict.blocks() {
                    return self.refuse(Refusal::Held(Box::new(blocker)), now);
                }
                Expect::Stale(blocker.object.version)
            }
        };
        match self.request.mode {
            Mode::Exclusive => {
                let survey = Survey::shared(self.terms.clone(), self.sightings.clone());
                let looked = (self.terms.level == Level::Nothing).then_some(asked.boot);
                self.go(Stage::Surveying(survey, expect, looked))
            }
            // A shared lock has a key of its own; what is stale elsewhere stays.
            Mode::Shared => self.write(Expect::Nothing),
        }
    }

    fn judged(&mut self, key: Key, object: Object, asked: Now, now: Now) -> Blocker {
        let watched = self
            .sightings
            .note(&key, &object.version, asked.boot, now.boot);
        let verdict = judge(&key, &object, watched, asked, self.terms.skew);
        Blocker {
            key,
            object,
            verdict,
        }
    }

    fn surveyed(
        &mut self,
        view: &View,
        expect: Expect,
        looked: Option<Boot>,
        now: Now,
    ) -> Progress<End> {
        if let Some(blocker) = view.blocking().next() {
            return self.refuse(Refusal::Held(Box::new(blocker.clone())), now);
        }
        // Without conditions nothing but haste keeps us from overwriting somebody who came since
        // we looked: he waits for writes that are no later than `settle` after their look.
        if looked.is_some_and(|at| now.boot.since(at) >= self.terms.settle) {
            if self.round == Terms::ROUNDS {
                return self.refuse(Refusal::TooSlow, now);
            }
            self.round += 1;
            return self.go(Stage::look(&self.terms));
        }
        self.write(expect)
    }

    fn write(&mut self, expect: Expect) -> Progress<End> {
        let key = match self.request.mode {
            Mode::Exclusive => KeyPlan::Exclusive,
            Mode::Shared => KeyPlan::Shared {
                suffix: self.dice.number(),
            },
        };
        let block = Block {
            token: Some(self.dice.token()),
            ttl: Some(self.terms.ttl.as_secs()),
            fence: None,
            ..self.request.block.clone()
        };
        let record = Record {
            operation: self.request.operation.clone(),
            holder: self.request.holder.clone(),
            acquired_at: String::new(),
            expires_at: String::new(),
            is_shared: self.request.mode == Mode::Shared,
            tenure: Some(block),
        };
        let write = Write::new(self.terms.clone(), expect, Draft { key, record });
        self.go(Stage::Writing(write))
    }

    fn wrote(&mut self, end: Wrote, now: Now) -> Progress<End> {
        match end {
            Wrote::Ours(own) => {
                // A copy: a waiter that has to begin again goes on watching what it watched.
                let sightings = self.sightings.clone();
                let mode = self.request.mode;
                let confirm = Confirm::new(self.terms.clone(), mode, own, sightings, now);
                self.go(Stage::Confirming(confirm))
            }
            Wrote::Taken(found) => {
                if self.round == Terms::ROUNDS {
                    let to = self.other(found, now);
                    return self.refuse(Refusal::LostRace { to }, now);
                }
                self.round += 1;
                self.go(Stage::look(&self.terms))
            }
            Wrote::Overtaken(object) => {
                let to = self.other(Some(object), now);
                self.refuse(Refusal::LostRace { to }, now)
            }
            Wrote::Unknown(own, failure) => self.withdraw(&own, Refusal::Store(failure)),
            Wrote::Failed(failure) => self.refuse(Refusal::Store(failure), now),
        }
    }

    /// Who is at the exclusive key instead of us.
    fn other(&mut self, found: Option<Object>, now: Now) -> Option<Box<Blocker>> {
        match self.request.mode {
            Mode::Exclusive => {
                found.map(|object| Box::new(self.judged(Key::Exclusive, object, now, now)))
            }
            Mode::Shared => None,
        }
    }

    fn confirmed(&mut self, own: Own, end: Confirmed, now: Now) -> Progress<End> {
        match end {
            Confirmed::Held(own, sightings, stale) => {
                self.sightings = sightings;
                let fence = TakeFence::new(self.terms.clone(), self.request.mode);
                self.go(Stage::Fencing(fence, own, stale))
            }
            Confirmed::Conflict(blocker) => {
                self.withdraw(&own, Refusal::LostRace { to: Some(blocker) })
            }
            // Somebody else's record is there, or none: nothing of ours is left to remove.
            Confirmed::Overtaken(found) => {
                let to = self.other(found, now);
                self.refuse(Refusal::LostRace { to }, now)
            }
            Confirmed::Failed(failure) => self.withdraw(&own, Refusal::Store(failure)),
        }
    }

    fn fenced(
        &mut self,
        mut own: Own,
        stale: Vec<Blocker>,
        end: Result<Option<u64>, FenceError>,
        now: Now,
    ) -> Progress<End> {
        let fence = match end {
            Ok(fence) => fence,
            Err(FenceError::Failed(failure)) => {
                return self.withdraw(&own, Refusal::Store(failure));
            }
            Err(FenceError::Malformed | FenceError::Used) => {
                return self.withdraw(&own, Refusal::Fence);
            }
        };
        if let Some(block) = &mut own.record.tenure {
            block.fence = fence;
        }
        let sightings = std::mem::take(&mut self.sightings);
        let acquired = Acquired {
            mode: self.request.mode,
            own,
            fence,
            sightings,
        };
        // By version or not at all: its holder may bring it back (P34) between a look and a plain
        // delete, and would hold without a record.
        let by_version = self.terms.level == Level::Deletes;
        let dead = stale
            .into_iter()
            .filter(|lock| by_version && matches!(lock.verdict, Verdict::Stale(_)))
            .map(|lock| (lock.key, lock.object.version))
            .collect();
        self.sweep(dead, acquired, now)
    }

    fn sweep(
        &mut self,
        mut dead: Vec<(Key, Version)>,
        acquired: Acquired,
        now: Now,
    ) -> Progress<End> {
        match dead.pop() {
            Some((key, version)) => {
                let terms = Terms {
                    retries: 0,
                    ..self.terms.clone()
                };
                let remove = Remove::exactly(terms, key, version);
                self.go(Stage::Sweeping(remove, dead, acquired))
            }
            None => self.hold(acquired, now),
        }
    }

    /// The last gate: a lock whose lease is used up on arrival was never held (P32).
    fn hold(&mut self, acquired: Acquired, now: Now) -> Progress<End> {
        let safe_until: Boot = acquired.own.sent + self.terms.reliance();
        if now.boot >= safe_until {
            return self.withdraw(&acquired.own, Refusal::TooSlow);
        }
        Progress::Done(Ok(acquired))
    }

    fn withdrew(&mut self, key: Key, refusal: Refusal, end: Removed, now: Now) -> Progress<End> {
        match end {
            Removed::Gone | Removed::Absent | Removed::Other(_) => self.refuse(refusal, now),
            Removed::Failed(failure) => {
                let cause = Box::new(refusal);
                Progress::Done(Err(Refusal::LeftBehind {
                    cause,
                    key,
                    failure,
                }))
            }
        }
    }
}

impl Stage {
    fn look(terms: &Terms) -> Stage {
        Stage::Looking(Ask::new(Op::Read(Key::Exclusive), terms.retries))
    }
}

impl Steps for Acquire {
    type End = End;

    fn next(&mut self, now: Now) -> Op {
        match &mut self.stage {
            Stage::Looking(ask) | Stage::Pausing(ask, _) => ask.next(now),
            Stage::Surveying(survey, _, _) => survey.next(now),
            Stage::Writing(write) => write.next(now),
            Stage::Confirming(confirm) => confirm.next(now),
            Stage::Fencing(fence, _, _) => fence.next(now),
            Stage::Sweeping(remove, _, _) | Stage::Withdrawing(remove, _) => remove.next(now),
            Stage::Over(_) => Op::WaitUntil(now.boot),
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<End> {
        match self.stage.clone() {
            Stage::Looking(mut ask) => match ask.answer(answer, now) {
                Progress::Going => self.go(Stage::Looking(ask)),
                Progress::Done(Ok(Answer::Found(object))) => {
                    self.looked(Some(object), ask.asked(now), now)
                }
                Progress::Done(Ok(Answer::Absent)) => self.looked(None, ask.asked(now), now),
                Progress::Done(Ok(other)) => self.refuse(Refusal::Store(unexpected(other)), now),
                Progress::Done(Err(failure)) => self.refuse(Refusal::Store(failure), now),
            },
            Stage::Surveying(mut survey, expect, looked) => match survey.answer(answer, now) {
                Progress::Going => self.go(Stage::Surveying(survey, expect, looked)),
                Progress::Done(Ok((view, sightings))) => {
                    self.sightings = sightings;
                    self.surveyed(&view, expect, looked, now)
                }
                Progress::Done(Err(failure)) => self.refuse(Refusal::Store(failure), now),
            },
            Stage::Writing(mut write) => match write.answer(answer, now) {
                Progress::Going => self.go(Stage::Writing(write)),
                Progress::Done(end) => self.wrote(end, now),
            },
            Stage::Confirming(mut confirm) => match confirm.answer(answer, now) {
                Progress::Going => self.go(Stage::Confirming(confirm)),
                Progress::Done(end) => self.confirmed(confirm.own().clone(), end, now),
            },
            Stage::Fencing(mut fence, own, stale) => match fence.answer(answer, now) {
                Progress::Going => self.go(Stage::Fencing(fence, own, stale)),
                Progress::Done(end) => self.fenced(own, stale, end, now),
            },
            Stage::Sweeping(mut remove, dead, acquired) => match remove.answer(answer, now) {
                Progress::Going => self.go(Stage::Sweeping(remove, dead, acquired)),
                // Whatever came of it: a stale object is passed over anyway.
                Progress::Done(_) => self.sweep(dead, acquired, now),
            },
            Stage::Withdrawing(mut remove, refusal) => match remove.answer(answer, now) {
                Progress::Going => self.go(Stage::Withdrawing(remove, refusal)),
                Progress::Done(end) => self.withdrew(remove.key().clone(), refusal, end, now),
            },
            Stage::Pausing(_, refusal) => {
                if self.request.wait == Wait::No {
                    return Progress::Done(Err(timed_out(refusal)));
                }
                self.round = 0;
                self.go(Stage::look(&self.terms))
            }
            Stage::Over(refusal) => Progress::Done(Err(refusal)),
        }
    }
}

/// What a waiter is told whose time is over.
fn timed_out(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Held(blocker) => Refusal::TimedOut(blocker),
        Refusal::LostRace { to: Some(blocker) } => Refusal::TimedOut(blocker),
        other => other,
    }
}
