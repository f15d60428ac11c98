//! Local states: every state that a single process can be in, numbered.
//!
//! A process interacts with the others only through the store, so its next state depends only on
//! its own state and on the event. Each local state is computed once, with the shipped procedure,
//! and gets a number. The exploration then combines numbers, millions per second.
//!
//! Of all runs that lead to the same local state ([`canon`](super::canon)), one is kept, with its
//! time. Events are translated: the model describes a [`Thing`] relative to now, and the kept
//! procedure receives dates of its own time.

use std::time::Duration;

use jiff::Timestamp;
use tenure_store::ConditionLevel;
use tenure_store::ObjectKey;
use tenure_store::internal as protocol;
use tenure_store::internal::LockTerms;
use tenure_store::internal::{BootTime, Now, parse_stamp, stamp};
use tenure_store::internal::{ConditionFailure, OpFailure, OpResult, StoreOp};
use tenure_store::{HolderBlock, LockRecord};
use tenure_store::{Object, ObjectContent, ProcessLiveness, Version};

use super::canon::{BOOT, Limits, Table, VERSION, WALL, spell};
use super::scenario::{Late, Player, Scenario, StoreClock, TICK};
use super::store::{Ask, Body, Cell, Condition, Got, Mark, SLOTS, Thing, is_lawful};
use super::tenure::{Io, Memory, Tenure, holder};
use crate::support::LockMode;
use crate::support::original::{self, Original, OriginalRecord, Step};

/// The number of a local state.
pub(crate) type Id = u32;

const NO_PROCESS: Id = Id::MAX;

/// Number of requests that a process may send together: the exclusive key, two shared locks and the
/// counter.
pub(crate) const AT_ONCE: usize = 4;

impl Info {
    /// Returns `true` if only one request is not applied yet.
    pub(crate) fn is_last_ask(&self) -> bool {
        self.asks.iter().filter(|ask| **ask != Ask::Nothing).count() == 1
    }
}

/// An event of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// One of its requests has this result. With the last one, it receives all of them and sends
    /// its next requests.
    Told(u8, Got),
    /// All results are ready, but the process pauses before it reads them.
    Deaf(u8, Got),
    /// It receives all results and pauses before its next requests.
    Stuck(u8, Got),
    /// It continues after a pause, or its timer fires.
    Resume,
    Release,
    Revive,
    Die,
    /// Time advances by one tick.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Actor {
    Tenure(Box<Tenure>),
    Original(Box<Original>),
    Dead,
}

/// A state of one process, and the event that led to it.
#[derive(Clone, Debug)]
struct Local {
    slot: u8,
    actor: Actor,
    /// Seconds since the start of this run.
    now: i64,
    /// The lock that it wrote or is about to write.
    mine: Option<(ObjectKey, LockRecord)>,
    came: Option<(Id, Event)>,
    reseated: Vec<Id>,
}

/// The properties of a local state that the other processes and the checker need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    /// Its requests that were sent and not applied.
    pub(crate) asks: [Ask; AT_ONCE],
    /// It relies on the lock.
    pub(crate) works: bool,
    /// Its fencing number; 0 if there is none.
    pub(crate) fence: u8,
    pub(crate) may_release: bool,
    pub(crate) may_revive: bool,
    pub(crate) may_resume: bool,
    /// A late request would break an assumption of the scenario.
    pub(crate) minds_lateness: bool,
    /// A prompt original that would be late if time advanced now.
    pub(crate) holds_time: bool,
    pub(crate) is_dead: bool,
    /// It has seen that it lost the lock and still works.
    pub(crate) knows_better: bool,
}

/// All local states found so far.
pub(crate) struct Locals {
    scene: &'static Scenario,
    terms: LockTerms,
    known: Vec<Local>,
    infos: Vec<Info>,
    numbers: Table<u128, Id>,
    steps: Table<(Id, Event), Id>,
    starts: Vec<Id>,
    seatings: Vec<[u8; SLOTS]>,
    /// States that were merged with a known one, for [`Locals::audit`].
    merged: Vec<(Id, Local)>,
    keep_merged: usize,
}

impl Locals {
    pub(crate) fn new(scene: &'static Scenario, seatings: Vec<[u8; SLOTS]>) -> Locals {
        let mut locals = Locals {
            scene,
            terms: scene.terms(),
            known: Vec::new(),
            infos: Vec::new(),
            numbers: Table::default(),
            steps: Table::default(),
            starts: Vec::new(),
            seatings,
            merged: Vec::new(),
            keep_merged: 0,
        };
        for (slot, player) in (0..).zip(scene.players) {
            let now = locals.clocks(slot, 0);
            let actor = match player {
                Player::Tenure(mode) => {
                    Actor::Tenure(Box::new(Tenure::new(slot, *mode, locals.terms.clone())))
                }
                Player::Original(mode) => {
                    // Two originals never read the same time, because their keys would be equal.
                    let started = now.wall + Duration::from_millis(u64::from(slot) + 1);
                    Actor::Original(Box::new(Original::new(*mode, &holder(slot), started)))
                }
            };
            let start = locals.number(Local {
                slot,
                actor,
                now: 0,
                mine: None,
                came: None,
                reseated: Vec::new(),
            });
            locals.starts.push(start);
        }
        locals
    }

    pub(crate) fn starts(&self) -> &[Id] {
        &self.starts
    }

    pub(crate) fn info(&self, id: Id) -> &Info {
        &self.infos[id as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the state after `event`.
    pub(crate) fn step(&mut self, id: Id, event: Event) -> Id {
        if let Some(next) = self.steps.get(&(id, event)) {
            return *next;
        }
        let mut local = self.known[id as usize].clone();
        self.apply(&mut local, event);
        local.came = Some((id, event));
        local.reseated.clear();
        let next = self.number(local);
        self.steps.insert((id, event), next);
        next
    }

    /// Returns the equivalent state of the process in the slot that the `k`-th permutation assigns.
    /// The procedures only compare names for equality, so the same run with other names leads to
    /// it.
    pub(crate) fn reseated(&mut self, id: Id, k: usize) -> Id {
        let mut run = Vec::new();
        let mut at = id;
        let mut image = loop {
            let local = &self.known[at as usize];
            match (local.reseated.get(k), local.came) {
                (Some(&image), _) if image != NO_PROCESS => break image,
                (_, Some((before, event))) => {
                    run.push((at, event));
                    at = before;
                }
                (_, None) => {
                    break self.starts[usize::from(self.seatings[k][usize::from(local.slot)])];
                }
            }
        };
        for (state, event) in run.into_iter().rev() {
            image = self.step(image, self.renamed(event, k));
            let count = self.seatings.len();
            let images = &mut self.known[state as usize].reseated;
            images.resize(count, NO_PROCESS);
            images[k] = image;
        }
        image
    }

    fn renamed(&self, event: Event, k: usize) -> Event {
        let slots = self.seatings[k];
        let moved = |slot: u8| slots.get(usize::from(slot)).copied().unwrap_or(slot);
        let rename = |got| match got {
            Got::Lock(thing, dead) => {
                let owner = moved(thing.owner);
                Got::Lock(Thing { owner, ..thing }, dead)
            }
            Got::Listed(list) => Got::Listed(list.map(moved)),
            Got::Written(Mark::Lock {
                owner,
                number,
                expires,
            }) => Got::Written(Mark::Lock {
                owner: moved(owner),
                number,
                expires,
            }),
            other => other,
        };
        match event {
            Event::Told(leaf, got) => Event::Told(leaf, rename(got)),
            Event::Deaf(leaf, got) => Event::Deaf(leaf, rename(got)),
            Event::Stuck(leaf, got) => Event::Stuck(leaf, rename(got)),
            other => other,
        }
    }

    fn number(&mut self, local: Local) -> Id {
        let names: Vec<String> = match &local.mine {
            Some((ObjectKey::Shared(name), record)) => {
                vec![name.clone(), record.acquired_at.clone()]
            }
            Some((_, record)) => vec![record.acquired_at.clone()],
            None => Vec::new(),
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let info = self.look_at(&local);
        let fingerprint = spell(&(local.slot, &local.actor, info.asks), local.slot, &names)
            .fingerprint(local.now, self.limits(&local, &info.asks));
        if let Some(&id) = self.numbers.get(&fingerprint) {
            if self.merged.len() < self.keep_merged && self.known[id as usize].now != local.now {
                self.merged.push((id, local));
            }
            return id;
        }
        let id = Id::try_from(self.known.len()).expect("fewer local states than numbers");
        self.infos.push(info);
        self.known.push(local);
        self.numbers.insert(fingerprint, id);
        id
    }

    /// Keeps the next `count` states that are merged with known ones.
    pub(crate) fn keep_merged(&mut self, count: usize) {
        self.keep_merged = count;
    }

    /// Checks that merged states are equivalent: after the same events, they send the same requests
    /// and hold and end alike. Returns the number of compared steps.
    pub(crate) fn audit(&mut self) -> usize {
        self.keep_merged = 0;
        let mut events: Table<Id, Vec<(Event, Id)>> = Table::default();
        for ((id, event), next) in &self.steps {
            if !is_late_write(*event) {
                events.entry(*id).or_default().push((*event, *next));
            }
        }
        let mut compared = 0;
        let mut pairs = Vec::new();
        for (id, local) in std::mem::take(&mut self.merged) {
            assert_eq!(self.infos[id as usize], self.look_at(&local), "{local:?}");
            for &(event, kept) in events.get(&id).into_iter().flatten() {
                let mut other = local.clone();
                self.apply(&mut other, event);
                pairs.push((kept, self.number(other)));
                compared += 1;
            }
        }
        // States that are distinguished unnecessarily are followed until they are equal again.
        let mut seen: Table<(Id, Id), ()> = Table::default();
        while let Some((kept, other)) = pairs.pop() {
            if kept == other || seen.insert((kept, other), ()).is_some() {
                continue;
            }
            let (one, two) = (&self.infos[kept as usize], &self.infos[other as usize]);
            assert_eq!(
                one, two,
                "{:?}\nand {:?}",
                self.known[kept as usize], self.known[other as usize]
            );
            for &(event, next) in events.get(&kept).into_iter().flatten() {
                pairs.push((next, self.step(other, event)));
                compared += 1;
            }
        }
        compared
    }

    /// Returns which part of a process's past can still influence it. [`Locals::audit`] checks
    /// this.
    fn limits(&self, local: &Local, asks: &[Ask]) -> Limits {
        let limit = i64::from(self.scene.limit());
        let tick = i64::from(TICK);
        let right = self.scene.ahead.is_empty();
        // Beyond a further `limit`, all other times have reached their maximum age.
        let everything = Limits {
            boot: limit,
            past: (0, 0),
            asked: Some(2 * (limit + tick)),
            wall: Some(2 * (limit + tick)),
            date: Some(2 * (limit + tick)),
            own_version: limit,
            version: Some(limit),
            observation: Some(limit),
        };
        let Actor::Tenure(tenure) = &local.actor else {
            return everything;
        };
        let own = match self.scene.players[usize::from(local.slot)] {
            Player::Tenure(LockMode::Exclusive) => Cell::Exclusive,
            _ => Cell::Shared(local.slot),
        };
        let normal = Limits {
            // The longest span compared with this clock is the 48 s of reliance on a lease.
            boot: 3 * tick,
            // The store shows no object as older than `limit`, so all earlier requests are
            // equivalent. A process does not judge its own lock.
            asked: asks
                .iter()
                .any(|ask| {
                    matches!(ask, Ask::Read(_)) && (*ask != Ask::Read(own) || !tenure.holds())
                })
                .then_some(limit + tick),
            // The ages of locks are compared when the own record is read.
            wall: asks.contains(&Ask::Read(own)).then_some(limit),
            // A record is stamped when it is sent, and is sent again only after a loss.
            date: (self.scene.losses > 0 && !tenure.holds()).then_some(limit),
            // An acquirer replaces and removes stale locks.
            version: (!tenure.holds()
                && !asks
                    .iter()
                    .any(|ask| matches!(ask, Ask::Delete(cell, _) if *cell == own)))
            .then_some(limit),
            // With correct clocks, a lock observed for a ttl is as old by the store's clock.
            observation: (!right).then_some(limit),
            ..everything
        };
        match tenure.memory() {
            Memory::Unread => everything,
            Memory::Normal => normal,
            Memory::Lapsed => Limits {
                past: (2, 2),
                ..normal
            },
            Memory::Leaving { lapsed } => Limits {
                // If only deletes are unconditional, the lease decides how it releases.
                boot: if self.scene.level == ConditionLevel::Writes {
                    normal.boot
                } else {
                    0
                },
                past: (if lapsed { 2 } else { 1 }, 2),
                asked: None,
                wall: None,
                date: None,
                version: None,
                observation: None,
                ..normal
            },
        }
    }

    fn clocks(&self, slot: u8, now: i64) -> Now {
        Now {
            boot: BootTime(Duration::from_secs(BOOT + now.cast_unsigned())),
            wall: date(now + self.scene.ahead(slot)),
        }
    }

    fn apply(&self, local: &mut Local, event: Event) {
        if event == Event::Tick {
            local.now += i64::from(TICK);
            if let Actor::Tenure(tenure) = &mut local.actor {
                tenure.tick();
            }
            return;
        }
        if event == Event::Die {
            local.actor = Actor::Dead;
            local.mine = None;
            return;
        }
        let now = self.clocks(local.slot, local.now);
        let Local {
            slot,
            now: at,
            mine,
            ..
        } = local;
        let frame = Frame {
            locals: self,
            slot: *slot,
            now: *at,
            mine: mine.as_ref(),
        };
        match &mut local.actor {
            Actor::Tenure(tenure) => {
                match event {
                    Event::Told(leaf, got) => {
                        if let Some(all) = tenure.give(leaf, frame.answer(got)) {
                            tenure.take(all, now).go_on(now);
                        }
                    }
                    Event::Deaf(leaf, got) => {
                        if let Some(all) = tenure.give(leaf, frame.answer(got)) {
                            tenure.keep(all);
                        }
                    }
                    Event::Stuck(leaf, got) => {
                        if let Some(all) = tenure.give(leaf, frame.answer(got)) {
                            tenure.take(all, now);
                        }
                    }
                    Event::Resume => tenure.resume(now),
                    Event::Release => tenure.release(now),
                    Event::Revive => tenure.revive(now),
                    Event::Die | Event::Tick => unreachable!("dealt with"),
                }
                match tenure.io() {
                    Io::Sent(ops) => {
                        for (op, _) in ops {
                            if let StoreOp::Create(key, protocol::OpBody::Record(record))
                            | StoreOp::Replace(key, protocol::OpBody::Record(record), _)
                            | StoreOp::Renew(key, protocol::OpBody::Record(record), _)
                            | StoreOp::Put(key, protocol::OpBody::Record(record)) = op
                            {
                                *mine = Some((key.clone(), record.clone()));
                            }
                        }
                    }
                    Io::Over => *mine = None,
                    Io::Answered { .. } | Io::Unsent { .. } => {}
                }
            }
            Actor::Original(original) => match event {
                Event::Told(_, got) => {
                    let got = match original.step(now.wall) {
                        // It does not check whether there was anything to delete.
                        Some(Step::Delete(_)) => original::Got::Done,
                        _ => frame.original_got(original, got),
                    };
                    original.answer(got, now.wall);
                }
                Event::Resume => original.wake(),
                Event::Release => original.release(),
                other => unreachable!("{other:?} does not happen to an original"),
            },
            Actor::Dead => unreachable!("nothing happens to the dead"),
        }
    }

    fn look_at(&self, local: &Local) -> Info {
        let now = self.clocks(local.slot, local.now);
        let frame = Frame {
            locals: self,
            slot: local.slot,
            now: local.now,
            mine: local.mine.as_ref(),
        };
        let prompt = self.scene.late == Late::Prompt;
        let nothing = Info {
            asks: [Ask::Nothing; AT_ONCE],
            works: false,
            fence: 0,
            may_release: false,
            may_revive: false,
            may_resume: false,
            minds_lateness: false,
            holds_time: false,
            is_dead: false,
            knows_better: false,
        };
        match &local.actor {
            Actor::Dead => Info {
                is_dead: true,
                ..nothing
            },
            Actor::Tenure(tenure) => {
                let mut asks = nothing.asks;
                if let Io::Sent(ops) = tenure.io() {
                    assert!(ops.len() <= AT_ONCE, "{ops:?}");
                    for (ask, (op, answer)) in asks.iter_mut().zip(ops) {
                        if answer.is_none() {
                            *ask = frame.ask(op, now);
                        }
                    }
                }
                let level = self.scene.level;
                for ask in asks {
                    assert!(is_lawful(ask, level), "{ask:?} at {level:?}");
                }
                let looks = asks
                    .iter()
                    .all(|ask| matches!(ask, Ask::Read(_) | Ask::Nothing));
                let fence = tenure.fence().unwrap_or(0);
                Info {
                    asks,
                    works: tenure.works(now),
                    fence: u8::try_from(fence).expect("small numbers"),
                    may_release: tenure.may_release(),
                    may_revive: tenure.may_revive(now),
                    may_resume: tenure.stood(),
                    minds_lateness: prompt
                        && self.scene.level < ConditionLevel::Deletes
                        && !looks
                        && !tenure.rests(),
                    ..nothing
                }
            }
            Actor::Original(original) => {
                let ask = match original.step(now.wall) {
                    Some(step) => frame.original_ask(original, &step),
                    None => Ask::Nothing,
                };
                let works = original.works();
                let due = original.wakes().is_some_and(|at| at <= now.wall);
                // Last chance: at the next tick its lease has ended.
                let overdue = original
                    .wakes()
                    .is_some_and(|at| at + Duration::from_secs(30) < now.wall + TICK_SPAN);
                let mut asks = nothing.asks;
                asks[0] = ask;
                Info {
                    asks,
                    works,
                    may_release: ask == Ask::Nothing && !original.ended(),
                    may_resume: due,
                    minds_lateness: prompt && original.is_busy(),
                    holds_time: prompt && works && (ask != Ask::Nothing || overdue),
                    knows_better: original.knows_better(),
                    ..nothing
                }
            }
        }
    }
}

/// Returns `true` if the event shows a lock that was stamped more than a ttl ago and written since.
/// A process that has observed that version for a ttl never gets this event, but others do; and
/// observations are not part of a state while clocks are correct.
fn is_late_write(event: Event) -> bool {
    match event {
        Event::Told(_, Got::Lock(thing, _))
        | Event::Deaf(_, Got::Lock(thing, _))
        | Event::Stuck(_, Got::Lock(thing, _)) => thing.expires <= 0 && thing.modified > -60,
        _ => false,
    }
}

const TICK_SPAN: Duration = Duration::from_secs(TICK as u64);

fn date(seconds: i64) -> Timestamp {
    Timestamp::from_second(WALL + seconds).expect("a date of this century")
}

fn owner_name(slot: u8) -> String {
    format!("s{slot}")
}

/// Translates between the store, relative to now, and the dates of one process.
struct Frame<'a> {
    locals: &'a Locals,
    slot: u8,
    now: i64,
    mine: Option<&'a (ObjectKey, LockRecord)>,
}

impl Frame<'_> {
    fn told(&self, seconds: i64) -> i16 {
        let limit = i64::from(self.locals.scene.limit());
        i16::try_from((seconds - self.now).max(-limit)).expect("nothing is far ahead")
    }

    fn version(&self, mark: Mark) -> Version {
        Version::tag(match mark {
            Mark::Lock {
                owner,
                number,
                expires,
            } => {
                let date = stamp(date(self.now + i64::from(expires)));
                let tag = format!("v{owner}{number}{date}");
                assert_eq!(tag.len(), VERSION, "one digit each");
                tag
            }
            Mark::Fence(number) => format!("f{number}"),
        })
    }

    fn mark(&self, version: &Version) -> Mark {
        let tag = version.e_tag.as_deref().expect("every version has a tag");
        let digit = |at: usize| tag.as_bytes()[at] - b'0';
        match tag.strip_prefix('v') {
            Some(rest) => {
                let expires = parse_stamp(&rest[2..]).expect("a date").as_second() - WALL;
                Mark::Lock {
                    owner: digit(1),
                    number: digit(2),
                    expires: self.told(expires),
                }
            }
            None => Mark::Fence(digit(1)),
        }
    }

    fn key(&self, slot: u8) -> ObjectKey {
        match self.mine {
            Some((key @ ObjectKey::Shared(_), _)) if slot == self.slot => key.clone(),
            _ => ObjectKey::Shared(owner_name(slot)),
        }
    }

    fn cell(&self, key: &ObjectKey) -> Cell {
        match key {
            ObjectKey::Exclusive => Cell::Exclusive,
            ObjectKey::Fence => Cell::Fence,
            ObjectKey::Probe(_) => unreachable!("the level of the model's store is known"),
            ObjectKey::Shared(name) => {
                match (0..SLOTS as u8).find(|slot| *name == owner_name(*slot)) {
                    Some(other) => Cell::Shared(other),
                    None => Cell::Shared(self.slot),
                }
            }
        }
    }

    fn ask(&self, op: &StoreOp, now: Now) -> Ask {
        match op {
            StoreOp::Read(key) => Ask::Read(self.cell(key)),
            StoreOp::ListShared => Ask::List,
            StoreOp::Create(key, body) => {
                Ask::Write(self.cell(key), self.body(body), Condition::Absent)
            }
            StoreOp::Replace(key, body, version) | StoreOp::Renew(key, body, version) => {
                let condition = Condition::Is(self.mark(version));
                Ask::Write(self.cell(key), self.body(body), condition)
            }
            StoreOp::Put(key, body) => Ask::Write(self.cell(key), self.body(body), Condition::None),
            StoreOp::DeleteVersion(key, version) => {
                Ask::Delete(self.cell(key), Condition::Is(self.mark(version)))
            }
            StoreOp::Delete(key) => Ask::Delete(self.cell(key), Condition::None),
            StoreOp::WaitUntil(until) => Ask::Wait(now.boot >= *until),
            StoreOp::Batch(_) => unreachable!("its parts are asked one by one"),
        }
    }

    fn body(&self, body: &protocol::OpBody) -> Body {
        match body {
            protocol::OpBody::Record(record) => {
                let expires = record.expires().expect("Tenure writes dates");
                let fence = record.tenure.as_ref().and_then(|block| block.fence);
                Body::Lock {
                    number: u8::try_from(fence.unwrap_or(0)).expect("small numbers"),
                    expires: self.told(expires.as_second() - WALL),
                }
            }
            protocol::OpBody::Fence(number) => Body::Fence(u8::try_from(*number).expect("small")),
            protocol::OpBody::Probe(_) => unreachable!("the level of the model's store is known"),
        }
    }

    fn answer(&self, got: Got) -> OpResult {
        match got {
            Got::Lock(thing, dead) => OpResult::Found(self.object(thing, dead)),
            Got::Fence(number) => OpResult::Found(Object {
                content: ObjectContent::Fence(u64::from(number)),
                version: self.version(Mark::Fence(number)),
                modified: None,
                store_now: None,
                liveness: ProcessLiveness::Unknown,
            }),
            Got::Absent => OpResult::Absent,
            Got::Listed(list) => OpResult::Listed(self.listed(list)),
            Got::Written(mark) => OpResult::Written(self.version(mark)),
            Got::Deleted => OpResult::Deleted,
            Got::Refused => OpResult::Refused(ConditionFailure::Condition),
            Got::Failed => OpResult::Failed(OpFailure::passing("lost")),
            Got::Waited => OpResult::Waited,
        }
    }

    fn listed(&self, list: [u8; SLOTS]) -> Vec<ObjectKey> {
        list.into_iter()
            .take_while(|slot| usize::from(*slot) < SLOTS)
            .map(|slot| self.key(slot))
            .collect()
    }

    fn object(&self, thing: Thing, dead: bool) -> Object {
        let scene = self.locals.scene;
        let mut record = match self.mine {
            Some((_, record)) if thing.owner == self.slot => record.clone(),
            _ => foreign(scene.players[usize::from(thing.owner)], thing.owner),
        };
        record.expires_at = stamp(date(self.now + i64::from(thing.expires)));
        if let Some(block) = &mut record.tenure {
            block.fence = (thing.number > 0).then_some(u64::from(thing.number));
        }
        Object {
            content: ObjectContent::Record(record),
            version: self.version(thing.mark()),
            modified: Some(date(self.now + i64::from(thing.modified))),
            store_now: match scene.clock {
                StoreClock::Shown => Some(date(self.now)),
                StoreClock::Hidden => None,
            },
            liveness: if dead {
                ProcessLiveness::Dead
            } else {
                ProcessLiveness::Unknown
            },
        }
    }

    fn original_ask(&self, original: &Original, step: &Step) -> Ask {
        let cell = |path: &str| {
            if path == original.own().1 && path != ObjectKey::Exclusive.path() {
                return Cell::Shared(self.slot);
            }
            self.cell(&ObjectKey::lock(path).expect("an original knows only locks"))
        };
        match step {
            Step::Read(path) => Ask::Read(cell(path)),
            Step::ListShared => Ask::List,
            Step::Write(path, record) => {
                let expires = record
                    .expires
                    .expect("an original writes dates")
                    .as_second();
                let body = Body::Lock {
                    number: 0,
                    expires: self.told(expires - WALL),
                };
                Ask::Write(cell(path), body, Condition::None)
            }
            Step::Delete(path) => Ask::Delete(cell(path), Condition::None),
        }
    }

    fn original_got(&self, original: &Original, got: Got) -> original::Got {
        match got {
            Got::Lock(thing, _) => {
                let mut record = if thing.owner == self.slot {
                    original.own().0
                } else {
                    let player = self.locals.scene.players[usize::from(thing.owner)];
                    let record = foreign(player, thing.owner);
                    OriginalRecord {
                        holder: record.holder,
                        acquired_at: record.acquired_at,
                        expires: None,
                        is_shared: record.is_shared,
                    }
                };
                record.expires = Some(date(self.now + i64::from(thing.expires)));
                original::Got::Record(Some(record))
            }
            // It does not distinguish them (hole 6).
            Got::Absent | Got::Failed => original::Got::Record(None),
            Got::Listed(list) => {
                let path = |key: ObjectKey| match self.cell(&key) {
                    Cell::Shared(slot) if slot == self.slot => original.own().1.to_owned(),
                    _ => key.path(),
                };
                original::Got::Keys(self.listed(list).into_iter().map(path).collect())
            }
            Got::Written(_) | Got::Deleted => original::Got::Done,
            other => unreachable!("{other:?} is no answer for an original"),
        }
    }
}

/// The record of another process, without a date.
fn foreign(player: Player, slot: u8) -> LockRecord {
    let (mode, tenure) = match player {
        Player::Tenure(mode) => {
            let block = HolderBlock {
                token: Some(format!("{slot:032x}")),
                ttl: Some(60),
                ..HolderBlock::default()
            };
            (mode, Some(block))
        }
        Player::Original(mode) => (mode, None),
    };
    LockRecord {
        operation: "model".into(),
        holder: holder(slot),
        acquired_at: format!("acquired by {slot}"),
        expires_at: String::new(),
        is_shared: mode == LockMode::Shared,
        tenure,
    }
}
