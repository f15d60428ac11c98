//! Global state of the model: the store, the processes, and all possible next actions.
//!
//! An action is atomic: a request takes effect and is answered, time advances, a process dies, a
//! holder is released. What a process does between a result and its next request affects no other
//! process, so it is part of the same action.

use std::fmt;

use super::canon::Table;
use super::local::{AT_ONCE, Event, Id, Info, Locals};
use super::scenario::{Fence, Judge, Player, Scenario, TICK, Times};
use super::store::{Ask, Cell, Condition, Got, Listed, SLOTS, Store};
use crate::support::LockMode;

/// A global state: the numbers of the local states and of the store, and the remaining budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModelState {
    locals: [Id; SLOTS],
    store: Id,
    /// One bit per process whose last read was before the last tick and whose next step depends on
    /// it.
    late: u8,
    ticks: u8,
    stands: u8,
    losses: u8,
}

/// Where a process pauses until time has advanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    No,
    /// The request has taken effect; the result is not read yet.
    BeforeAnswer,
    /// The result was read; the next request is not sent yet.
    BeforeNext,
}

/// Whether a request whose response is lost takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Applied,
    Lost,
}

/// An action. The numbers of `Go` are the process, which of its requests, and the order of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Go(u8, u8, u8, Pause),
    Lose(u8, u8, Request),
    Resume(u8),
    Release(u8),
    Revive(u8),
    Die(u8),
    /// This many ticks at once.
    Pass(u8),
}

/// Everything computed for a scenario.
pub(crate) struct Model {
    scene: &'static Scenario,
    locals: Locals,
    stores: Vec<Store>,
    numbers: Table<Store, Id>,
    /// For each store, its image under each permutation of slots.
    reseated: Vec<Vec<Id>>,
    /// Permutations of equal processes; the first is the identity.
    seatings: Vec<[u8; SLOTS]>,
    /// Which pauses make a difference.
    pauses: Table<(Id, Got), (bool, bool)>,
}

impl Model {
    pub(crate) fn new(scene: &'static Scenario) -> Model {
        let seatings = seatings(scene);
        Model {
            scene,
            locals: Locals::new(scene, seatings.clone()),
            stores: Vec::new(),
            numbers: Table::default(),
            reseated: Vec::new(),
            seatings,
            pauses: Table::default(),
        }
    }

    pub(crate) fn start(&mut self) -> ModelState {
        let mut store = Store::default();
        if self.scene.fence == Fence::AtOnce {
            // The number wraps at once, so it is always the same.
            store = Store::counted();
        }
        let mut locals = [Id::MAX; SLOTS];
        locals[..self.locals.starts().len()].copy_from_slice(self.locals.starts());
        let count = |times| match times {
            Times::AtMost(count) => count,
            Times::Any => 0,
        };
        ModelState {
            locals,
            store: self.number(store),
            late: 0,
            ticks: count(self.scene.ticks),
            stands: count(self.scene.stands),
            losses: self.scene.losses,
        }
    }

    pub(crate) fn locals(&mut self) -> &mut Locals {
        &mut self.locals
    }

    /// Returns the number of local states found.
    pub(crate) fn local_states(&self) -> usize {
        self.locals.len()
    }

    fn slots(&self) -> std::ops::Range<u8> {
        0..self.scene.players.len() as u8
    }

    fn number(&mut self, store: Store) -> Id {
        if let Some(id) = self.numbers.get(&store) {
            return *id;
        }
        let id = Id::try_from(self.stores.len()).expect("fewer stores than numbers");
        self.stores.push(store);
        self.reseated.push(Vec::new());
        self.numbers.insert(store, id);
        id
    }

    fn store(&self, model_state: &ModelState) -> &Store {
        &self.stores[model_state.store as usize]
    }

    fn info(&self, model_state: &ModelState, slot: u8) -> Info {
        *self.locals.info(model_state.locals[usize::from(slot)])
    }

    /// Encodes a state in one number, equal for all permutations of equal processes. The encoding
    /// is complete: two states with the same number differ only in such a permutation.
    pub(crate) fn key(&mut self, model_state: &ModelState) -> u128 {
        let plain = pack(model_state);
        let mut least = plain;
        for k in 1..self.seatings.len() {
            let slots = self.seatings[k];
            let mut other = ModelState {
                store: self.reseated_store(model_state.store, k),
                late: 0,
                ..*model_state
            };
            for slot in self.slots() {
                let (old, new) = (usize::from(slot), usize::from(slots[usize::from(slot)]));
                other.locals[new] = self.locals.reseated(model_state.locals[old], k);
                other.late |= (model_state.late >> old & 1) << new;
            }
            least = least.min(pack(&other));
        }
        least
    }

    fn reseated_store(&mut self, store: Id, k: usize) -> Id {
        if self.reseated[store as usize].is_empty() {
            let images = (0..self.seatings.len())
                .map(|k| {
                    let image = self.stores[store as usize].reseated(self.seatings[k]);
                    self.number(image)
                })
                .collect();
            self.reseated[store as usize] = images;
        }
        self.reseated[store as usize][k]
    }

    /// Collects all possible actions.
    pub(crate) fn actions(&mut self, model_state: &ModelState, actions: &mut Vec<Action>) {
        for slot in self.slots() {
            let info = self.info(model_state, slot);
            if info.is_dead || self.is_not_its_turn(model_state, slot) {
                continue;
            }
            if self.scene.deaths && self.store(model_state).has_of(slot) {
                actions.push(Action::Die(slot));
            }
            if info.may_resume {
                actions.push(Action::Resume(slot));
            }
            if info.may_release {
                actions.push(Action::Release(slot));
            }
            if info.may_revive {
                actions.push(Action::Revive(slot));
            }
            for leaf in 0..AT_ONCE as u8 {
                self.requests(model_state, slot, leaf, &info, actions);
            }
        }
        if !self.may_tick(model_state) {
            return;
        }
        // If advances are counted, one may be long enough to make everything stale.
        let longest = match self.scene.ticks {
            Times::Any => 1,
            Times::AtMost(_) => (self.scene.limit() / TICK) as u8,
        };
        let mut later = *model_state;
        for ticks in 1..=longest {
            if self.slots().any(|slot| self.info(&later, slot).holds_time) {
                break;
            }
            later = self.tick(&later);
            let paused = self
                .slots()
                .filter(|slot| self.is_paused(model_state, &later, *slot));
            if paused.count() > usize::from(self.scene.paused) {
                break;
            }
            actions.push(Action::Pass(ticks));
        }
    }

    fn is_paused(&self, model_state: &ModelState, later: &ModelState, slot: u8) -> bool {
        let info = self.info(model_state, slot);
        let lapses = info.works && !self.info(later, slot).works;
        lapses
            || info
                .asks
                .iter()
                .any(|ask| !matches!(ask, Ask::Wait(_) | Ask::Nothing))
    }

    fn is_not_its_turn(&self, model_state: &ModelState, slot: u8) -> bool {
        let waits =
            model_state.locals[usize::from(slot)] == self.locals.starts()[usize::from(slot)];
        self.scene.in_turn && slot > 0 && waits && !self.info(model_state, slot - 1).works
    }

    fn may_tick(&self, model_state: &ModelState) -> bool {
        self.scene.ticks == Times::Any || model_state.ticks > 0
    }

    fn requests(
        &mut self,
        model_state: &ModelState,
        slot: u8,
        leaf: u8,
        info: &Info,
        actions: &mut Vec<Action>,
    ) {
        let ask = info.asks[usize::from(leaf)];
        match ask {
            Ask::Nothing | Ask::Wait(false) => return,
            Ask::Wait(true) => {
                actions.push(Action::Go(slot, leaf, 0, Pause::No));
                return;
            }
            Ask::Read(_) | Ask::List | Ask::Write(..) | Ask::Delete(..) => {}
        }
        if model_state.late >> slot & 1 == 1 && !self.may_be_late(slot, ask) {
            return;
        }
        let is_read = matches!(ask, Ask::Read(_));
        if model_state.losses > 0 && (self.is_tenure(slot) || is_read) {
            actions.push(Action::Lose(slot, leaf, Request::Lost));
            if matches!(ask, Ask::Write(..) | Ask::Delete(..)) {
                actions.push(Action::Lose(slot, leaf, Request::Applied));
            }
        }
        let orders = match (ask, self.store(model_state).sharers().len()) {
            (Ask::List, count) => orders(count),
            _ => 1,
        };
        for order in 0..orders {
            actions.push(Action::Go(slot, leaf, order, Pause::No));
            let stands = self.scene.stands == Times::Any || model_state.stands > 0;
            // The results of requests that were sent together are read together.
            let is_read_now = info.is_last_ask();
            if stands && is_read_now && self.is_tenure(slot) && self.may_tick(model_state) {
                let got = self.effect(model_state, slot, leaf, order).0;
                let (deaf, stuck) = self.pauses(model_state.locals[usize::from(slot)], leaf, got);
                if deaf {
                    actions.push(Action::Go(slot, leaf, order, Pause::BeforeAnswer));
                }
                if stuck {
                    actions.push(Action::Go(slot, leaf, order, Pause::BeforeNext));
                }
            }
        }
    }

    /// A late original does nothing more; a late Tenure process sends nothing unconditional.
    fn may_be_late(&self, slot: u8, ask: Ask) -> bool {
        self.is_tenure(slot)
            && !matches!(
                ask,
                Ask::Write(Cell::Exclusive | Cell::Shared(_), _, Condition::None)
                    | Ask::Delete(_, Condition::None)
            )
    }

    /// Returns which pauses lead to another state than no pause, by running the procedure.
    fn pauses(&mut self, id: Id, leaf: u8, got: Got) -> (bool, bool) {
        if let Some(known) = self.pauses.get(&(id, got)) {
            return *known;
        }
        let locals = &mut self.locals;
        let mut at_once = locals.step(id, Event::Told(leaf, got));
        let mut deaf = locals.step(id, Event::Deaf(leaf, got));
        let mut stuck = locals.step(id, Event::Stuck(leaf, got));
        let (mut deaf_differs, mut stuck_differs) = (false, false);
        for _ in 0..=self.scene.limit() / TICK {
            at_once = locals.step(at_once, Event::Tick);
            deaf = locals.step(deaf, Event::Tick);
            deaf_differs |= locals.step(deaf, Event::Resume) != at_once;
            stuck = locals.step(stuck, Event::Tick);
            stuck_differs |=
                locals.info(stuck).may_resume && locals.step(stuck, Event::Resume) != at_once;
        }
        self.pauses.insert((id, got), (deaf_differs, stuck_differs));
        (deaf_differs, stuck_differs)
    }

    /// Returns the result of a request and the store after it.
    fn effect(&self, model_state: &ModelState, slot: u8, leaf: u8, order: u8) -> (Got, Store) {
        let mut store = *self.store(model_state);
        let got = match self.info(model_state, slot).asks[usize::from(leaf)] {
            Ask::Wait(_) => Got::Waited,
            Ask::List => Got::Listed(listed(&store.sharers(), order)),
            Ask::Read(cell) => store.read(cell, |owner| {
                self.is_tenure(owner) && self.info(model_state, owner).is_dead
            }),
            ask => store.change(slot, ask, self.scene.modulus()),
        };
        (got, store)
    }

    fn is_tenure(&self, slot: u8) -> bool {
        matches!(self.scene.players[usize::from(slot)], Player::Tenure(_))
    }

    fn mode(&self, slot: u8) -> LockMode {
        match self.scene.players[usize::from(slot)] {
            Player::Tenure(mode) | Player::Original(mode) => mode,
        }
    }

    /// Performs an action. Returns the fault, if there is one.
    pub(crate) fn act(
        &mut self,
        model_state: &ModelState,
        action: Action,
    ) -> (ModelState, Option<String>) {
        let mut next = *model_state;
        match action {
            Action::Go(slot, leaf, order, pause) => {
                let (got, store) = self.effect(model_state, slot, leaf, order);
                let event = match pause {
                    Pause::No => Event::Told(leaf, got),
                    Pause::BeforeAnswer => Event::Deaf(leaf, got),
                    Pause::BeforeNext => Event::Stuck(leaf, got),
                };
                if pause != Pause::No && self.scene.stands != Times::Any {
                    next.stands -= 1;
                }
                next.store = self.number(store);
                self.happen(&mut next, slot, event);
            }
            Action::Lose(slot, leaf, request) => {
                next.losses -= 1;
                if request == Request::Applied {
                    let store = self.effect(model_state, slot, leaf, 0).1;
                    next.store = self.number(store);
                }
                self.happen(&mut next, slot, Event::Told(leaf, Got::Failed));
            }
            Action::Resume(slot) => self.happen(&mut next, slot, Event::Resume),
            Action::Release(slot) => self.happen(&mut next, slot, Event::Release),
            Action::Revive(slot) => self.happen(&mut next, slot, Event::Revive),
            Action::Die(slot) => self.happen(&mut next, slot, Event::Die),
            Action::Pass(ticks) => {
                for _ in 0..ticks {
                    next = self.tick(&next);
                }
                if self.scene.ticks != Times::Any {
                    next.ticks -= 1;
                }
            }
        }
        let fault = self.fault(model_state, &next, action);
        (next, fault)
    }

    fn tick(&mut self, model_state: &ModelState) -> ModelState {
        let mut next = *model_state;
        let mut store = *self.store(model_state);
        store.pass(TICK, self.scene.limit());
        next.store = self.number(store);
        for slot in self.slots() {
            let local = &mut next.locals[usize::from(slot)];
            *local = self.locals.step(*local, Event::Tick);
            next.late |= u8::from(self.locals.info(*local).minds_lateness) << slot;
        }
        next
    }

    fn happen(&mut self, model_state: &mut ModelState, slot: u8, event: Event) {
        let local = &mut model_state.locals[usize::from(slot)];
        let was = *self.locals.info(*local);
        *local = self.locals.step(*local, event);
        let is = *self.locals.info(*local);
        let ask = match event {
            Event::Told(leaf, _) | Event::Deaf(leaf, _) | Event::Stuck(leaf, _) => {
                was.asks[usize::from(leaf)]
            }
            Event::Resume | Event::Release | Event::Revive | Event::Die | Event::Tick => {
                Ask::Nothing
            }
        };
        // A read starts a new sequence; reads of an original within a sequence do not count. A
        // conditional write counts as a read.
        let looked = matches!(
            ask,
            Ask::Read(Cell::Exclusive | Cell::Shared(_))
                | Ask::Write(
                    Cell::Exclusive | Cell::Shared(_),
                    _,
                    Condition::Absent | Condition::Is(_)
                )
        ) && (self.is_tenure(slot) || !was.minds_lateness);
        if looked || !is.minds_lateness {
            model_state.late &= !(1 << slot);
        }
        if self.scene.judge == Judge::Fences && !was.works && is.works {
            let mut store = *self.store(model_state);
            let others = self.slots().filter(|other| {
                let pair = [self.mode(slot), self.mode(*other)];
                *other != slot && pair.contains(&LockMode::Exclusive)
            });
            let highest = others.map(|other| store.held_with[usize::from(other)]);
            let grows = highest.max().unwrap_or(0) < is.fence;
            store.held_with[usize::from(slot)] = if grows { is.fence } else { u8::MAX };
            model_state.store = self.number(store);
        }
        if self.scene.fence == Fence::AtOnce
            && let Some(leaf) = is.asks.iter().position(|ask| is_about_fence(*ask))
        {
            let leaf = leaf as u8;
            let (got, store) = self.effect(model_state, slot, leaf, 0);
            model_state.store = self.number(store);
            self.happen(model_state, slot, Event::Told(leaf, got));
        }
    }

    /// Returns `true` if any process holds.
    pub(crate) fn counts(&self, model_state: &ModelState) -> bool {
        self.slots().any(|slot| self.info(model_state, slot).works)
    }

    fn fault(&self, before: &ModelState, after: &ModelState, action: Action) -> Option<String> {
        let works = |slot: &u8| self.info(after, *slot).works;
        let pair = |fits: &dyn Fn(u8, u8) -> bool| {
            let one = self
                .slots()
                .find(|slot| works(slot) && self.mode(*slot) == LockMode::Exclusive);
            // Usually no process holds the exclusive lock.
            one?;
            let holders: Vec<u8> = self.slots().filter(works).collect();
            holders
                .iter()
                .flat_map(|one| holders.iter().map(move |two| (*one, *two)))
                .find(|(one, two)| {
                    one != two && self.mode(*one) == LockMode::Exclusive && fits(*one, *two)
                })
        };
        let say = |(one, two)| format!("{} and {} both hold", self.name(one), self.name(two));
        match self.scene.judge {
            Judge::Tenure => pair(&|one, two| self.is_tenure(one) && self.is_tenure(two)).map(say),
            Judge::WithTenure => {
                pair(&|one, two| self.is_tenure(one) || self.is_tenure(two)).map(say)
            }
            Judge::Fences => {
                let slot = self
                    .slots()
                    .find(|slot| self.store(after).held_with[usize::from(*slot)] == u8::MAX)?;
                let (name, fence) = (self.name(slot), self.info(after, slot).fence);
                Some(format!(
                    "{name} holds with {fence}, not above an earlier hold"
                ))
            }
            Judge::Everybody => pair(&|_, _| true).map(say),
            Judge::KnowsBetter => {
                let knows = |slot| self.info(after, slot).knows_better;
                pair(&|one, two| knows(one) || knows(two)).map(|(one, two)| {
                    let (loser, holder) = if knows(one) { (one, two) } else { (two, one) };
                    let (loser, holder) = (self.name(loser), self.name(holder));
                    format!("{loser} knows that its lock is gone and works beside {holder}")
                })
            }
            Judge::Overwrites | Judge::Deletes => {
                let Action::Go(slot, leaf, _, Pause::No) = action else {
                    return None;
                };
                let ask = self.info(before, slot).asks[usize::from(leaf)];
                let (cell, verb) = match (ask, self.scene.judge) {
                    (Ask::Write(cell, ..), Judge::Overwrites) => (cell, "overwrites"),
                    (Ask::Delete(cell, _), Judge::Deletes) => (cell, "deletes"),
                    _ => return None,
                };
                let lock = self.store(before).at(cell)?;
                let victim = lock.owner;
                let in_force = lock.expires > 0;
                // A refresh, not the write of an acquire.
                let refreshes = self.info(before, slot).works;
                let counts = in_force && (refreshes || self.scene.judge == Judge::Deletes);
                (counts && victim != slot && self.info(before, victim).works).then(|| {
                    let (slot, victim) = (self.name(slot), self.name(victim));
                    format!("{slot} {verb} the lock of {victim}, who works")
                })
            }
        }
    }

    fn name(&self, slot: u8) -> String {
        let kind = if self.is_tenure(slot) {
            "Tenure"
        } else {
            "original"
        };
        format!("{kind} {slot} ({:?})", self.mode(slot))
    }

    /// Describes an action in one line.
    pub(crate) fn tell(&self, model_state: &ModelState, action: Action) -> String {
        let asks =
            |slot, leaf: u8| ToldOutcome(self.info(model_state, slot).asks[usize::from(leaf)]);
        match action {
            Action::Go(slot, leaf, _, Pause::No) => {
                format!("{}: {}", self.name(slot), asks(slot, leaf))
            }
            Action::Go(slot, leaf, _, Pause::BeforeAnswer) => {
                let (name, ask) = (self.name(slot), asks(slot, leaf));
                format!("{name}: {ask}, then stands before it reads the answer")
            }
            Action::Go(slot, leaf, _, Pause::BeforeNext) => {
                let (name, ask) = (self.name(slot), asks(slot, leaf));
                format!("{name}: {ask}, then stands before its next request")
            }
            Action::Lose(slot, leaf, request) => {
                let (name, ask) = (self.name(slot), asks(slot, leaf));
                format!("{name}: {ask}; the answer is lost, the request {request:?}")
            }
            Action::Resume(slot) => format!("{} goes on", self.name(slot)),
            Action::Release(slot) => format!("{} releases", self.name(slot)),
            Action::Revive(slot) => format!("{} revives", self.name(slot)),
            Action::Die(slot) => format!("{} dies", self.name(slot)),
            Action::Pass(ticks) => format!("{} s pass", i16::from(ticks) * TICK),
        }
    }
}

struct ToldOutcome(Ask);

impl fmt::Display for ToldOutcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = |cell| match cell {
            Cell::Exclusive => "the exclusive lock".to_owned(),
            Cell::Shared(slot) => format!("the shared lock of {slot}"),
            Cell::Fence => "the counter".to_owned(),
        };
        let condition = |condition| match condition {
            Condition::None => "whatever is there",
            Condition::Absent => "if there is none",
            Condition::Is(_) => "if it is still that version",
        };
        match self.0 {
            Ask::Read(at) => write!(out, "reads {}", cell(at)),
            Ask::List => write!(out, "lists the shared locks"),
            Ask::Write(at, _, only) => write!(out, "writes {} {}", cell(at), condition(only)),
            Ask::Delete(at, only) => write!(out, "deletes {} {}", cell(at), condition(only)),
            Ask::Wait(_) => write!(out, "has waited"),
            Ask::Nothing => write!(out, "nothing"),
        }
    }
}

fn is_about_fence(ask: Ask) -> bool {
    matches!(ask, Ask::Read(Cell::Fence) | Ask::Write(Cell::Fence, _, _))
}

/// Number of orders of a list.
fn orders(count: usize) -> u8 {
    match count {
        0 | 1 => 1,
        2 => 2,
        // At most two shared locks exist; longer lists do not occur.
        _ => unreachable!("at most two share"),
    }
}

fn listed(sharers: &[u8], order: u8) -> Listed {
    let mut list = [SLOTS as u8; SLOTS];
    for (at, slot) in sharers.iter().enumerate() {
        let at = if order == 0 {
            at
        } else {
            sharers.len() - 1 - at
        };
        list[at] = *slot;
    }
    list
}

/// Returns the permutations of neighbouring equal processes.
fn seatings(scene: &Scenario) -> Vec<[u8; SLOTS]> {
    let mut all = vec![[0, 1, 2, 3]];
    let alike = |one: usize, two: usize| {
        scene.players.get(one).is_some()
            && scene.players.get(one) == scene.players.get(two)
            && scene.ahead(one as u8) == scene.ahead(two as u8)
    };
    let mut slot = 0;
    while slot + 1 < SLOTS {
        if alike(slot, slot + 1) {
            let mut swapped = all.clone();
            for slots in &mut swapped {
                slots.swap(slot, slot + 1);
            }
            all.extend(swapped);
            slot += 1;
        }
        slot += 1;
    }
    all
}

/// 20 bits for each local state, 28 for the store, 4 for each of the rest.
fn pack(model_state: &ModelState) -> u128 {
    let mut packed = 0;
    for local in model_state.locals {
        let local = if local == Id::MAX { 0 } else { local + 1 };
        assert!(
            local < 1 << 20,
            "more local states than the key has room for"
        );
        packed = packed << 20 | u128::from(local);
    }
    assert!(
        model_state.store < 1 << 28,
        "more stores than the key has room for"
    );
    packed = packed << 28 | u128::from(model_state.store);
    for count in [
        model_state.late,
        model_state.ticks,
        model_state.stands,
        model_state.losses,
    ] {
        assert!(count < 16, "counts are small");
        packed = packed << 4 | u128::from(count);
    }
    packed
}
