//! The processes of the model, each by itself: every state that one can be in, numbered.
//!
//! A process sees the others only through the store, so its next state depends on its own state and
//! on what it is told, and on nothing else. Each local state is computed once, with the shipped
//! machine, and remembered with a number; the same question is never put to a machine twice. What
//! is explored are combinations of numbers, and millions of them fit into a second.
//!
//! Of all runs that lead to the same local state ([`canon`](super::canon)) one is kept, with the
//! time that it is there. Whoever talks to it is translated: [`Thing`]s are told from now, and the
//! kept machine hears them in dates of its own time.

use std::time::Duration;

use jiff::Timestamp;
use tenure_store::judge::{Content, Life, Object, Version};
use tenure_store::key::Key;
use tenure_store::record::{Block, Record};
use tenure_store::steps::{self, Answer, Failure, Op, Why};
use tenure_store::terms::{Level, Terms};
use tenure_store::time::{Boot, Now, parse_stamp, stamp};

use super::canon::{BOOT, Limits, Table, VERSION, WALL, spell};
use super::scene::{Late, Player, Scene, StoreClock, TICK};
use super::store::{Ask, Body, Cell, Condition, Got, Mark, SEATS, Thing, is_lawful};
use super::tenure::{Io, Memory, Tenure, holder};
use crate::support::Mode;
use crate::support::original::{self, Original, OriginalRecord, Step};

/// The number of a local state.
pub(crate) type Id = u32;

const NOBODY: Id = Id::MAX;

/// What can happen to one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// It is told, and makes its next request.
    Told(Got),
    /// It would be told, and stands still.
    Deaf(Got),
    /// It is told, and stands still before its next request.
    Stuck(Got),
    /// It goes on after a pause, or its timer rings.
    Resume,
    Release,
    Revive,
    Die,
    /// Time passes.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Actor {
    Tenure(Box<Tenure>),
    Original(Box<Original>),
    Dead,
}

/// One state of one process, and how it came there.
#[derive(Clone, Debug)]
struct Local {
    seat: u8,
    actor: Actor,
    /// Seconds since the start of this run.
    now: i64,
    /// The lock that it wrote, or is about to write.
    mine: Option<(Key, Record)>,
    came: Option<(Id, Event)>,
    reseated: Vec<Id>,
}

/// What the others, and the checker, need to know of a local state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) ask: Ask,
    /// It relies on the lock.
    pub(crate) works: bool,
    pub(crate) may_release: bool,
    pub(crate) may_revive: bool,
    pub(crate) may_resume: bool,
    /// A request that comes late would break a promise of the scene.
    pub(crate) minds_lateness: bool,
    /// A prompt original that would not be prompt if time passed now.
    pub(crate) holds_time: bool,
    pub(crate) is_dead: bool,
    /// It has seen that it lost the lock, and works on.
    pub(crate) knows_better: bool,
}

/// All local states found so far.
pub(crate) struct Locals {
    scene: &'static Scene,
    terms: Terms,
    known: Vec<Local>,
    infos: Vec<Info>,
    numbers: Table<u128, Id>,
    steps: Table<(Id, Event), Id>,
    starts: Vec<Id>,
    seatings: Vec<[u8; SEATS]>,
    /// States that were taken for one that was known, for [`Locals::audit`].
    merged: Vec<(Id, Local)>,
    keep_merged: usize,
}

impl Locals {
    pub(crate) fn new(scene: &'static Scene, seatings: Vec<[u8; SEATS]>) -> Locals {
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
        for (seat, player) in (0..).zip(scene.players) {
            let now = locals.clocks(seat, 0);
            let actor = match player {
                Player::Tenure(mode) => {
                    Actor::Tenure(Box::new(Tenure::new(seat, *mode, locals.terms.clone())))
                }
                Player::Original(mode) => {
                    // Two originals never read the same time: their keys would be one.
                    let started = now.wall + Duration::from_millis(u64::from(seat) + 1);
                    Actor::Original(Box::new(Original::new(*mode, &holder(seat), started)))
                }
            };
            let start = locals.number(Local {
                seat,
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

    /// The state after `event`.
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

    /// The same state of somebody who sits where this one would sit after the `k`-th change of
    /// seats. The machines ask nothing but equality of names, so the same run with other names
    /// leads there, and that is how it is found.
    pub(crate) fn reseated(&mut self, id: Id, k: usize) -> Id {
        let mut run = Vec::new();
        let mut at = id;
        let mut image = loop {
            let local = &self.known[at as usize];
            match (local.reseated.get(k), local.came) {
                (Some(&image), _) if image != NOBODY => break image,
                (_, Some((before, event))) => {
                    run.push((at, event));
                    at = before;
                }
                (_, None) => {
                    break self.starts[usize::from(self.seatings[k][usize::from(local.seat)])];
                }
            }
        };
        for (state, event) in run.into_iter().rev() {
            image = self.step(image, self.renamed(event, k));
            let count = self.seatings.len();
            let images = &mut self.known[state as usize].reseated;
            images.resize(count, NOBODY);
            images[k] = image;
        }
        image
    }

    fn renamed(&self, event: Event, k: usize) -> Event {
        let seats = self.seatings[k];
        let moved = |seat: u8| seats.get(usize::from(seat)).copied().unwrap_or(seat);
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
            Event::Told(got) => Event::Told(rename(got)),
            Event::Deaf(got) => Event::Deaf(rename(got)),
            Event::Stuck(got) => Event::Stuck(rename(got)),
            other => other,
        }
    }

    fn number(&mut self, local: Local) -> Id {
        let names: Vec<String> = match &local.mine {
            Some((Key::Shared(name), record)) => vec![name.clone(), record.acquired_at.clone()],
            Some((_, record)) => vec![record.acquired_at.clone()],
            None => Vec::new(),
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let info = self.look_at(&local);
        let fingerprint = spell(&(local.seat, &local.actor, info.ask), local.seat, &names)
            .fingerprint(local.now, self.limits(&local, info.ask));
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

    /// Keeps the next states that are taken for known ones.
    pub(crate) fn keep_merged(&mut self, count: usize) {
        self.keep_merged = count;
    }

    /// Checks that what was taken for one state is one: whatever happened to the state that was
    /// kept happens to the others too, and they ask, hold and end alike, now and for ever after.
    /// Says how many steps were compared.
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
        // States that are told apart for too good a reason are followed until they meet again.
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

    /// What of the past of a process matters for what it will ever do. That this is right is
    /// checked: see [`Locals::audit`].
    fn limits(&self, local: &Local, ask: Ask) -> Limits {
        let limit = i64::from(self.scene.limit());
        let tick = i64::from(TICK);
        let right = self.scene.ahead.is_empty();
        // After another `limit` everything else is as old as it gets.
        let everything = Limits {
            boot: limit,
            past: (0, 0),
            asked: Some(2 * (limit + tick)),
            wall: Some(2 * (limit + tick)),
            date: Some(2 * (limit + tick)),
            own_version: limit,
            version: Some(limit),
            sighting: Some(limit),
        };
        let Actor::Tenure(tenure) = &local.actor else {
            return everything;
        };
        let own = match self.scene.players[usize::from(local.seat)] {
            Player::Tenure(Mode::Exclusive) => Cell::Exclusive,
            _ => Cell::Shared(local.seat),
        };
        let normal = Limits {
            // The longest span that is compared with this clock is the reliance of 48 s.
            boot: 3 * tick,
            // What lies in the store is never shown older than `limit`, so all questions from
            // before that are alike. Nobody judges his own lock.
            asked: (matches!(ask, Ask::Read(_)) && (ask != Ask::Read(own) || !tenure.holds()))
                .then_some(limit + tick),
            // Whose lock is younger is asked when the own one is read.
            wall: (ask == Ask::Read(own)).then_some(limit),
            // A record is stamped when it is sent, and sent again only after a loss.
            date: (self.scene.losses > 0 && !tenure.holds()).then_some(limit),
            // An acquirer replaces what is stale, and sweeps.
            version: (!tenure.holds() && !matches!(ask, Ask::Delete(cell, _) if cell == own))
                .then_some(limit),
            // What was watched for a ttl is that old by the store's clock too, if clocks are right.
            sighting: (!right).then_some(limit),
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
                // Where deletes alone have no condition, its lease decides how it leaves.
                boot: if self.scene.level == Level::Writes {
                    normal.boot
                } else {
                    0
                },
                past: (if lapsed { 2 } else { 1 }, 2),
                asked: None,
                wall: None,
                date: None,
                version: None,
                sighting: None,
                ..normal
            },
        }
    }

    fn clocks(&self, seat: u8, now: i64) -> Now {
        Now {
            boot: Boot(Duration::from_secs(BOOT + now.cast_unsigned())),
            wall: date(now + self.scene.ahead(seat)),
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
        let now = self.clocks(local.seat, local.now);
        let Local {
            seat,
            now: at,
            mine,
            ..
        } = local;
        let frame = Frame {
            locals: self,
            seat: *seat,
            now: *at,
            mine: mine.as_ref(),
        };
        match &mut local.actor {
            Actor::Tenure(tenure) => {
                match event {
                    Event::Told(got) => tenure.take(frame.answer(got), now).go_on(now),
                    Event::Deaf(got) => tenure.keep(frame.answer(got)),
                    Event::Stuck(got) => {
                        tenure.take(frame.answer(got), now);
                    }
                    Event::Resume => tenure.resume(now),
                    Event::Release => tenure.release(now),
                    Event::Revive => tenure.revive(now),
                    Event::Die | Event::Tick => unreachable!("dealt with"),
                }
                match tenure.io() {
                    Io::Sent(
                        Op::Create(key, steps::Body::Record(record))
                        | Op::Replace(key, steps::Body::Record(record), _)
                        | Op::Renew(key, steps::Body::Record(record), _)
                        | Op::Put(key, steps::Body::Record(record)),
                    ) => *mine = Some((key.clone(), record.clone())),
                    Io::Over => *mine = None,
                    Io::Sent(_) | Io::Answered { .. } | Io::Unsent { .. } => {}
                }
            }
            Actor::Original(original) => match event {
                Event::Told(got) => {
                    let got = match original.step(now.wall) {
                        // Whether there was anything to delete does not matter to it.
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
        let now = self.clocks(local.seat, local.now);
        let frame = Frame {
            locals: self,
            seat: local.seat,
            now: local.now,
            mine: local.mine.as_ref(),
        };
        let prompt = self.scene.late == Late::Prompt;
        let nothing = Info {
            ask: Ask::Nothing,
            works: false,
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
                let ask = match tenure.io() {
                    Io::Sent(op) => frame.ask(op, now),
                    Io::Answered { .. } | Io::Unsent { .. } | Io::Over => Ask::Nothing,
                };
                assert!(
                    is_lawful(ask, self.scene.level),
                    "{ask:?} at {:?}",
                    self.scene.level
                );
                let looks = matches!(ask, Ask::Read(_) | Ask::Nothing);
                Info {
                    ask,
                    works: tenure.works(now),
                    may_release: tenure.may_release(),
                    may_revive: tenure.may_revive(now),
                    may_resume: tenure.stood(),
                    minds_lateness: prompt
                        && self.scene.level < Level::Deletes
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
                // The last chance: the next look at the clock is after the end of its lease.
                let overdue = original
                    .wakes()
                    .is_some_and(|at| at + Duration::from_secs(30) < now.wall + TICK_SPAN);
                Info {
                    ask,
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

/// Whether a lock is shown that was stamped more than a ttl ago and written since. Whoever watched
/// that very version for a ttl is never shown this, but others are; and what was watched is no
/// part of a state while clocks are right.
fn is_late_write(event: Event) -> bool {
    match event {
        Event::Told(Got::Lock(thing, _))
        | Event::Deaf(Got::Lock(thing, _))
        | Event::Stuck(Got::Lock(thing, _)) => thing.expires <= 0 && thing.modified > -60,
        _ => false,
    }
}

const TICK_SPAN: Duration = Duration::from_secs(TICK as u64);

fn date(seconds: i64) -> Timestamp {
    Timestamp::from_second(WALL + seconds).expect("a date of this century")
}

fn owner_name(seat: u8) -> String {
    format!("s{seat}")
}

/// One process at one moment: translates between the store, told from now, and its own dates.
struct Frame<'a> {
    locals: &'a Locals,
    seat: u8,
    now: i64,
    mine: Option<&'a (Key, Record)>,
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

    fn key(&self, seat: u8) -> Key {
        match self.mine {
            Some((key @ Key::Shared(_), _)) if seat == self.seat => key.clone(),
            _ => Key::Shared(owner_name(seat)),
        }
    }

    fn cell(&self, key: &Key) -> Cell {
        match key {
            Key::Exclusive => Cell::Exclusive,
            Key::Fence => Cell::Fence,
            Key::Probe(_) => unreachable!("the level of the model's store is known"),
            Key::Shared(name) => match (0..SEATS as u8).find(|seat| *name == owner_name(*seat)) {
                Some(other) => Cell::Shared(other),
                None => Cell::Shared(self.seat),
            },
        }
    }

    fn ask(&self, op: &Op, now: Now) -> Ask {
        match op {
            Op::Read(key) => Ask::Read(self.cell(key)),
            Op::ListShared => Ask::List,
            Op::Create(key, body) => Ask::Write(self.cell(key), self.body(body), Condition::Absent),
            Op::Replace(key, body, version) | Op::Renew(key, body, version) => {
                let condition = Condition::Is(self.mark(version));
                Ask::Write(self.cell(key), self.body(body), condition)
            }
            Op::Put(key, body) => Ask::Write(self.cell(key), self.body(body), Condition::None),
            Op::DeleteVersion(key, version) => {
                Ask::Delete(self.cell(key), Condition::Is(self.mark(version)))
            }
            Op::Delete(key) => Ask::Delete(self.cell(key), Condition::None),
            Op::WaitUntil(until) => Ask::Wait(now.boot >= *until),
        }
    }

    fn body(&self, body: &steps::Body) -> Body {
        match body {
            steps::Body::Record(record) => {
                let expires = record.expires().expect("Tenure writes dates");
                let fence = record.tenure.as_ref().and_then(|block| block.fence);
                Body::Lock {
                    number: u8::try_from(fence.unwrap_or(0)).expect("small numbers"),
                    expires: self.told(expires.as_second() - WALL),
                }
            }
            steps::Body::Fence(number) => Body::Fence(u8::try_from(*number).expect("small")),
            steps::Body::Probe(_) => unreachable!("the level of the model's store is known"),
        }
    }

    fn answer(&self, got: Got) -> Answer {
        match got {
            Got::Lock(thing, dead) => Answer::Found(self.object(thing, dead)),
            Got::Fence(number) => Answer::Found(Object {
                content: Content::Fence(u64::from(number)),
                version: self.version(Mark::Fence(number)),
                modified: None,
                store_now: None,
                life: Life::Unknown,
            }),
            Got::Absent => Answer::Absent,
            Got::Listed(list) => Answer::Listed(self.listed(list)),
            Got::Written(mark) => Answer::Written(self.version(mark)),
            Got::Deleted => Answer::Deleted,
            Got::Refused => Answer::Refused(Why::Condition),
            Got::Failed => Answer::Failed(Failure::passing("lost")),
            Got::Waited => Answer::Waited,
        }
    }

    fn listed(&self, list: [u8; SEATS]) -> Vec<Key> {
        list.into_iter()
            .take_while(|seat| usize::from(*seat) < SEATS)
            .map(|seat| self.key(seat))
            .collect()
    }

    fn object(&self, thing: Thing, dead: bool) -> Object {
        let scene = self.locals.scene;
        let mut record = match self.mine {
            Some((_, record)) if thing.owner == self.seat => record.clone(),
            _ => foreign(scene.players[usize::from(thing.owner)], thing.owner),
        };
        record.expires_at = stamp(date(self.now + i64::from(thing.expires)));
        if let Some(block) = &mut record.tenure {
            block.fence = (thing.number > 0).then_some(u64::from(thing.number));
        }
        Object {
            content: Content::Record(record),
            version: self.version(thing.mark()),
            modified: Some(date(self.now + i64::from(thing.modified))),
            store_now: match scene.clock {
                StoreClock::Shown => Some(date(self.now)),
                StoreClock::Hidden => None,
            },
            life: if dead { Life::Dead } else { Life::Unknown },
        }
    }

    fn original_ask(&self, original: &Original, step: &Step) -> Ask {
        let cell = |path: &str| {
            if path == original.own().1 && path != Key::Exclusive.path() {
                return Cell::Shared(self.seat);
            }
            self.cell(&Key::lock(path).expect("an original knows only locks"))
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
                let mut record = if thing.owner == self.seat {
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
            // It does not care which (hole 6).
            Got::Absent | Got::Failed => original::Got::Record(None),
            Got::Listed(list) => {
                let path = |key: Key| match self.cell(&key) {
                    Cell::Shared(seat) if seat == self.seat => original.own().1.to_owned(),
                    _ => key.path(),
                };
                original::Got::Keys(self.listed(list).into_iter().map(path).collect())
            }
            Got::Written(_) | Got::Deleted => original::Got::Done,
            other => unreachable!("{other:?} is no answer for an original"),
        }
    }
}

/// The record of somebody else, without a date.
fn foreign(player: Player, seat: u8) -> Record {
    let (mode, tenure) = match player {
        Player::Tenure(mode) => {
            let block = Block {
                token: Some(format!("{seat:032x}")),
                ttl: Some(60),
                ..Block::default()
            };
            (mode, Some(block))
        }
        Player::Original(mode) => (mode, None),
    };
    Record {
        operation: "model".into(),
        holder: holder(seat),
        acquired_at: format!("acquired by {seat}"),
        expires_at: String::new(),
        is_shared: mode == Mode::Shared,
        tenure,
    }
}
