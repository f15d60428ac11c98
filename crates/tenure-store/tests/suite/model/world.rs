//! The world of the model: a store, a clock, a few processes, and everything that may happen next.
//!
//! One action is one thing that happens at once: a request is applied and answered, time passes, a
//! process crashes, a holder is told to release. See [`model`](super) for why that is enough.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use tenure_store::key::Key;
use tenure_store::steps::{Answer, Failure, Op};
use tenure_store::terms::{Company, Level, Settings};
use tenure_store::time::{Boot, Now};

use super::explore::State;
use super::part::Part;
use super::store::{Store, StoreClock};
use super::tenure::{Io, Tenure};
use crate::support::Mode;
use crate::support::original::Original;

/// Who plays a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Player {
    Tenure(Mode),
    Original(Mode),
}

/// How late a write without a condition may come after the look that it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// Less than `settle`.
    Prompt,
    /// Any time.
    Any,
}

/// Which two must never hold at once, beyond what the modes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// Two Tenure processes.
    TenureAmongThemselves,
    /// Any two.
    Everybody,
}

/// How the requests for a fencing number are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// Like all others.
    Interleaved,
    /// At once with the request before them. No decision about holding rests on that object, and
    /// nobody but its own requests can get in its way.
    AtOnce,
}

/// What is explored: who plays, on what, and how much may happen.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) level: Level,
    pub(crate) clock: StoreClock,
    pub(crate) players: &'static [Player],
    /// What originals and stores without conditions are granted.
    pub(crate) late: Late,
    /// Spans by which time moves, in this order, at any moments.
    pub(crate) ticks: &'static [Duration],
    /// Whether the user promised that there are no originals: then nobody waits for late writers.
    pub(crate) company: Company,
    /// Whether anything may happen between the requests for a fencing number.
    pub(crate) fence: Fence,
    /// How often a process may stand still between an answer and its next request.
    pub(crate) stands: u8,
    /// How many answers may be lost, and with them perhaps the request.
    pub(crate) losses: u8,
    /// Whose double hold is a fault.
    pub(crate) judge: Judge,
    /// How many processes may die on the machine of the others (P22 c).
    pub(crate) deaths: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Process {
    Tenure(Box<Tenure>),
    Original(Box<Original>),
    Dead,
}

/// One state of everything.
#[derive(Clone)]
pub(crate) struct World {
    scene: &'static Scene,
    settle: Duration,
    now: Duration,
    store: Part<Store>,
    processes: Vec<Part<Process>>,
    /// When each process last had an answer to a look at a key it may overwrite.
    looked: Vec<Option<Duration>>,
    ticked: usize,
    stands_left: u8,
    losses_left: u8,
    deaths_left: u8,
}

impl std::hash::Hash for World {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.now.hash(state);
        self.store.hash(state);
        self.processes.hash(state);
        self.looked.hash(state);
        self.ticked.hash(state);
        (self.stands_left, self.losses_left, self.deaths_left).hash(state);
    }
}

/// Where a process stands still until time has passed, if anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    No,
    /// The request was applied, the answer is not read yet.
    BeforeAnswer,
    /// The answer was read, the next request is not made yet.
    BeforeNext,
}

/// What becomes of a request whose answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Applied,
    Lost,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Go(usize, Pause),
    Lose(usize, Request),
    Resume(usize),
    Release(usize),
    Revive(usize),
    Die(usize),
    Tick,
}

impl World {
    pub(crate) fn new(scene: &'static Scene) -> World {
        let settings = Settings {
            retries: 1,
            company: scene.company,
            ..Settings::default()
        };
        let terms = settings
            .terms(scene.level)
            .expect("the defaults are lawful");
        let settle = terms.settle;
        let mut world = World {
            scene,
            settle,
            now: Duration::ZERO,
            store: Part::new(Store::new(scene.level, scene.clock)),
            processes: Vec::new(),
            looked: vec![None; scene.players.len()],
            ticked: 0,
            stands_left: scene.stands,
            losses_left: scene.losses,
            deaths_left: scene.deaths,
        };
        for (number, player) in scene.players.iter().enumerate() {
            let process = match player {
                Player::Tenure(mode) => Process::Tenure(Box::new(Tenure::new(
                    number,
                    *mode,
                    terms.clone(),
                    world.clocks(),
                ))),
                Player::Original(mode) => {
                    // Two originals never read the same time: their keys would be one.
                    let started = world.wall() + Duration::from_millis(number as u64 + 1);
                    let holder = format!("original-{number} (pid {number})");
                    Process::Original(Box::new(Original::new(*mode, &holder, started)))
                }
            };
            world.processes.push(Part::new(process));
        }
        world
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_second(1_772_874_000).expect("a date") + self.now
    }

    fn clocks(&self) -> Now {
        Now {
            boot: Boot(self.now),
            wall: self.wall(),
        }
    }

    fn mode(&self, process: usize) -> Mode {
        match self.scene.players[process] {
            Player::Tenure(mode) | Player::Original(mode) => mode,
        }
    }

    fn is_tenure(&self, process: usize) -> bool {
        matches!(self.scene.players[process], Player::Tenure(_))
    }

    /// Whether it works on the repository right now, or would if it were not paused.
    fn works(&self, process: usize) -> bool {
        match &*self.processes[process] {
            Process::Tenure(tenure) => tenure.works(self.clocks()),
            Process::Original(original) => original.works(),
            Process::Dead => false,
        }
    }

    /// Two that work and must not.
    fn double_hold(&self) -> Option<(usize, usize)> {
        let judged = |number| match self.scene.judge {
            Judge::TenureAmongThemselves => self.is_tenure(number),
            Judge::Everybody => true,
        };
        let working: Vec<usize> = (0..self.processes.len())
            .filter(|&number| judged(number) && self.works(number))
            .collect();
        let exclusive = working
            .iter()
            .find(|&&number| self.mode(number) == Mode::Exclusive)?;
        let other = working.iter().find(|number| *number != exclusive)?;
        Some((*exclusive, *other))
    }

    /// Whether a write without a condition would still come in time.
    fn in_time(&self, process: usize) -> bool {
        match self.scene.late {
            Late::Any => true,
            Late::Prompt => self.looked[process].is_none_or(|at| self.now - at < self.settle),
        }
    }

    fn may_pause(&self) -> bool {
        self.ticked < self.scene.ticks.len()
    }

    fn tenure_actions(&self, number: usize, tenure: &Tenure, actions: &mut Vec<Action>) {
        match tenure.io() {
            Io::Over => {}
            Io::Answered { ticked, .. } | Io::Unsent { ticked } => {
                if *ticked {
                    actions.push(Action::Resume(number));
                }
            }
            Io::Sent(Op::WaitUntil(until)) => {
                if self.clocks().boot >= *until {
                    actions.push(Action::Go(number, Pause::No));
                }
            }
            Io::Sent(op) => {
                if matches!(op, Op::Put(..) | Op::Delete(_)) && !self.in_time(number) {
                    return;
                }
                if self.losses_left > 0 {
                    actions.push(Action::Lose(number, Request::Lost));
                    if !matches!(op, Op::Read(_) | Op::ListShared) {
                        actions.push(Action::Lose(number, Request::Applied));
                    }
                }
                if self.may_pause() && self.stands_left > 0 {
                    self.pauses(number, op, actions);
                }
                actions.push(Action::Go(number, Pause::No));
            }
        }
        if tenure.may_release() {
            actions.push(Action::Release(number));
        }
        if tenure.may_revive(self.clocks()) {
            actions.push(Action::Revive(number));
        }
    }

    /// The pauses that make a difference: those after which the process goes on in another way.
    /// The test is made with the machine itself, at every time that may come.
    fn pauses(&self, number: usize, op: &Op, actions: &mut Vec<Action>) {
        let answer = match op {
            Op::Read(_) | Op::ListShared => self.store.read(op, self.wall()),
            _ => self
                .store
                .clone()
                .change(|store| store.write(number, op, self.wall())),
        };
        let now = self.clocks();
        let tenure = self.tenure(number);
        let at_once = {
            let mut t = tenure.clone();
            t.take(answer.clone(), now).go_on(now);
            t
        };
        let mut later = now;
        let (mut answer_differs, mut next_differs) = (false, false);
        for span in &self.scene.ticks[self.ticked..] {
            later = Now {
                boot: later.boot + *span,
                wall: later.wall + *span,
            };
            let mut paused = tenure.clone();
            paused.take(answer.clone(), later).go_on(later);
            answer_differs |= paused != at_once;
            let mut paused = tenure.clone();
            paused.take(answer.clone(), now).go_on(later);
            next_differs |= paused != at_once;
        }
        if answer_differs {
            actions.push(Action::Go(number, Pause::BeforeAnswer));
        }
        if next_differs {
            actions.push(Action::Go(number, Pause::BeforeNext));
        }
    }

    fn original_actions(&self, number: usize, original: &Original, actions: &mut Vec<Action>) {
        if original.step(self.wall()).is_some() {
            if !original.about_to_write() || self.in_time(number) {
                actions.push(Action::Go(number, Pause::No));
            }
            return;
        }
        if !original.ended() {
            actions.push(Action::Release(number));
        }
        if original.wakes().is_some_and(|at| at <= self.wall()) {
            actions.push(Action::Resume(number));
        }
    }

    fn note_look(&mut self, number: usize, op: &Op) {
        let unconditional = self.scene.level < Level::Deletes;
        if unconditional && matches!(op, Op::Read(Key::Exclusive | Key::Shared(_))) {
            self.looked[number] = Some(self.now);
        }
    }

    fn go_tenure(&mut self, number: usize, pause: Pause, lost: Option<Request>) {
        let now = self.clocks();
        let Io::Sent(op) = self.tenure(number).io().clone() else {
            unreachable!("only what was sent is applied");
        };
        let store = &mut self.store;
        let answer = match (&op, lost) {
            (Op::WaitUntil(_), _) => Answer::Waited,
            (Op::Read(_) | Op::ListShared, None) => store.read(&op, now.wall),
            (_, Some(Request::Lost)) => Answer::Failed(Failure::passing("lost")),
            (_, Some(Request::Applied)) => {
                store.change(|store| store.write(number, &op, now.wall));
                Answer::Failed(Failure::passing("lost"))
            }
            (_, None) => store.change(|store| store.write(number, &op, now.wall)),
        };
        self.change_tenure(number, |tenure| match pause {
            Pause::No => tenure.take(answer, now).go_on(now),
            Pause::BeforeAnswer => tenure.keep(answer),
            Pause::BeforeNext => {
                tenure.take(answer, now);
            }
        });
        if pause != Pause::No {
            self.stands_left -= 1;
        }
        self.note_look(number, &op);
        let next = self.tenure(number).io();
        if self.scene.fence == Fence::AtOnce && matches!(next, Io::Sent(op) if is_about_fence(op)) {
            self.go_tenure(number, Pause::No, None);
        }
    }

    fn go_original(&mut self, number: usize) {
        let wall = self.wall();
        let Process::Original(original) = &*self.processes[number] else {
            unreachable!("an action of an original");
        };
        let step = original
            .step(wall)
            .expect("an original goes when it has a step");
        let before = original.about_to_write();
        let got = self
            .store
            .change(|store| store.apply_original(number, &step, wall));
        let after = self.change_original(number, |original| {
            original.answer(got, wall);
            original.about_to_write()
        });
        // The first look of a chain is the one that the write rests on.
        match (before, after) {
            (false, true) => self.looked[number] = Some(self.now),
            (_, false) => self.looked[number] = None,
            (true, true) => {}
        }
    }

    fn tenure(&self, number: usize) -> &Tenure {
        match &*self.processes[number] {
            Process::Tenure(tenure) => tenure,
            Process::Original(_) | Process::Dead => unreachable!("an action of a Tenure process"),
        }
    }

    fn change_tenure(&mut self, number: usize, change: impl FnOnce(&mut Tenure)) {
        self.processes[number].change(|process| match process {
            Process::Tenure(tenure) => change(tenure),
            Process::Original(_) | Process::Dead => unreachable!("an action of a Tenure process"),
        });
    }

    fn change_original<R>(&mut self, number: usize, change: impl FnOnce(&mut Original) -> R) -> R {
        self.processes[number].change(|process| match process {
            Process::Original(original) => change(original),
            Process::Tenure(_) | Process::Dead => unreachable!("an action of an original"),
        })
    }

    fn tick(&mut self) {
        self.now += self.scene.ticks[self.ticked];
        self.ticked += 1;
        for number in 0..self.processes.len() {
            if matches!(&*self.processes[number], Process::Tenure(tenure) if tenure.stands()) {
                self.change_tenure(number, Tenure::tick);
            }
        }
    }
}

fn is_about_fence(op: &Op) -> bool {
    match op {
        Op::Read(key) | Op::Create(key, _) | Op::Replace(key, _, _) | Op::Put(key, _) => {
            *key == Key::Fence
        }
        Op::ListShared
        | Op::Renew(..)
        | Op::DeleteVersion(..)
        | Op::Delete(_)
        | Op::WaitUntil(_) => false,
    }
}

impl State for World {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (number, process) in self.processes.iter().enumerate() {
            match &**process {
                Process::Tenure(tenure) => self.tenure_actions(number, tenure, &mut actions),
                Process::Original(original) => {
                    self.original_actions(number, original, &mut actions)
                }
                Process::Dead => continue,
            }
            if self.deaths_left > 0 && self.store.has_of(number) {
                actions.push(Action::Die(number));
            }
        }
        if self.may_pause() {
            actions.push(Action::Tick);
        }
        actions
    }

    fn act(&mut self, action: Action) {
        let now = self.clocks();
        match action {
            Action::Go(number, pause) => match &*self.processes[number] {
                Process::Tenure(_) => self.go_tenure(number, pause, None),
                Process::Original(_) => self.go_original(number),
                Process::Dead => unreachable!("the dead do nothing"),
            },
            Action::Lose(number, request) => {
                self.losses_left -= 1;
                self.go_tenure(number, Pause::No, Some(request));
            }
            Action::Resume(number) if self.is_tenure(number) => {
                self.change_tenure(number, |tenure| tenure.resume(now));
            }
            Action::Resume(number) => self.change_original(number, Original::wake),
            Action::Release(number) if self.is_tenure(number) => {
                self.change_tenure(number, |tenure| tenure.release(now));
            }
            Action::Release(number) => self.change_original(number, Original::release),
            Action::Revive(number) => self.change_tenure(number, |tenure| tenure.revive(now)),
            Action::Die(number) => {
                self.deaths_left -= 1;
                self.processes[number] = Part::new(Process::Dead);
                self.store.change(|store| store.bury(number));
            }
            Action::Tick => self.tick(),
        }
    }

    fn tell(&self, action: Action) -> String {
        format!("{:>6.1} s  {}", self.now.as_secs_f32(), Told(self, action))
    }

    fn counts(&self) -> bool {
        (0..self.processes.len()).any(|number| self.works(number))
    }

    fn fault(&self) -> Option<String> {
        let (one, two) = self.double_hold()?;
        Some(format!(
            "{} and {} both hold",
            Name(self, one),
            Name(self, two)
        ))
    }
}

struct Name<'a>(&'a World, usize);

impl fmt::Display for Name<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Name(world, number) = self;
        let kind = if world.is_tenure(*number) {
            "Tenure"
        } else {
            "original"
        };
        write!(out, "{kind} {number} ({:?})", world.mode(*number))
    }
}

struct Told<'a>(&'a World, Action);

impl fmt::Display for Told<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told(world, action) = self;
        let name = |number: usize| Name(world, number);
        let asks = |number: usize| match &*world.processes[number] {
            Process::Tenure(tenure) => match tenure.io() {
                Io::Sent(op) => op.to_string(),
                other => format!("{other:?}"),
            },
            Process::Original(original) => format!("{:?}", original.step(world.wall())),
            Process::Dead => "nothing".into(),
        };
        match *action {
            Action::Go(number, Pause::No) => write!(out, "{}: {}", name(number), asks(number)),
            Action::Go(number, pause) => {
                write!(
                    out,
                    "{}: {}, then stands ({pause:?})",
                    name(number),
                    asks(number)
                )
            }
            Action::Lose(number, request) => {
                write!(
                    out,
                    "{}: {}, answer lost, request {request:?}",
                    name(number),
                    asks(number)
                )
            }
            Action::Resume(number) => write!(out, "{} goes on", name(number)),
            Action::Release(number) => write!(out, "{} is told to release", name(number)),
            Action::Revive(number) => write!(out, "{} is told to revive", name(number)),
            Action::Die(number) => write!(out, "{} dies", name(number)),
            Action::Tick => write!(out, "{:?} pass", world.scene.ticks[world.ticked]),
        }
    }
}
