//! Locks of this process: the daemon's own rules, in memory. Fair, with fences, shared trees and permits; no lease,
//! because a holder cannot die without its lock.
//!
//! ```text
//! acquire ──▶ Space::apply ──granted──▶ Held
//!                  └──queued──▶ Seat ◀──event── a later apply
//! ```

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure_core::command::{
    self, Acquire, Break, Command, Release, Route, Selection, State as Taking,
};
use tenure_core::event::{Event, EventKind, LockChange};
use tenure_core::outcome::{
    AcquireOutcome, Applied, BreakOutcome, Conflict, Outcome, Refusal, Withdrawn,
};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode as CoreMode, Reason};
use tenure_core::space::{HashSeed, Space, SpaceLimits};
use tenure_core::value::{Fence as CoreFence, Holder as CoreHolder, OwnerId, QueueTtl, Stamp, Ttl};
use tenure_files::identity::Token;
use tokio::sync::{Mutex as Turn, oneshot};

use super::Breaking;
use crate::error::{Blocker, Busy, Error, LostCause, Standing};
use crate::guard::Guard;
use crate::inspect::{Broken, Change, ChangeKind, Changes, State, Waiter, Watch};
use crate::keeper;
use crate::place::{MemoryName, Where};
use crate::request::Request;
use crate::signals::{ReleaseRequest, Signals};
use crate::values::{Class, Fence, HoldId, Holder, Life, Mode, Verdict, Wait, whole_millis};

/// A place in line lasts this long in the space; whoever waits longer renews it.
const PLACE_LASTS: Duration = Duration::from_secs(2 * 86_400);
const PLACE_RENEWED: Duration = Duration::from_secs(86_400);

static MEMORY: LazyLock<Memory> = LazyLock::new(Memory::new);

struct Memory {
    born: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    space: Space,
    owners: HashMap<OwnerId, Seat>,
    watchers: Vec<(Path, Changes)>,
}

/// What this process knows of one owner.
#[derive(Default)]
struct Seat {
    holds: Vec<Arc<Claim>>,
    waiting: Option<oneshot::Sender<Told>>,
    /// One owner has one place in line (R83): the others of a session wait their turn.
    turn: Arc<Turn<()>>,
}

struct Claim {
    path: Path,
    mode: CoreMode,
    /// The newest one, zero for none: a later acquire of the same session moves it (R69).
    fence: AtomicU64,
    signals: Arc<Signals>,
}

/// How a wait ended.
enum Told {
    Granted(Option<CoreFence>),
    Killed,
}

/// A hold in memory.
pub(crate) struct Held {
    owner: OwnerId,
    claim: Arc<Claim>,
    released: bool,
}

/// Takes a lock. Dropping the future withdraws it from the line.
pub(super) async fn acquire(path: Path, request: Request) -> Result<Guard, Error> {
    let owner = owner_id(&request)?;
    let _turn = match &request.owner {
        Some(_) => Some(super::turn(MEMORY.turn(&owner), &request).await?),
        None => None,
    };
    let claim = Arc::new(Claim {
        path,
        mode: core_mode(request.mode),
        fence: AtomicU64::new(0),
        signals: Signals::new(&request.place),
    });
    let asking = ReleaseRequest {
        by: request.holder.clone(),
        reason: request.purpose(),
    };
    let until = match request.wait {
        Wait::For(time) => Instant::now().checked_add(time),
        Wait::No | Wait::Forever => None,
    };
    let mut waiting = Waiting {
        owner: owner.clone(),
        claim: Arc::clone(&claim),
        number: None,
    };
    loop {
        let (outcome, told) = {
            let mut inner = MEMORY.lock();
            let outcome = inner.acquire(&owner, &claim, &request, &asking);
            let told = match outcome {
                AcquireOutcome::Queued(_) => Some(inner.wait(&owner)),
                _ => None,
            };
            (outcome, told)
        };
        let (queued, told) = match (outcome, told) {
            (AcquireOutcome::Granted { fence }, _) => return Ok(waiting.granted(&request, fence)),
            (AcquireOutcome::Queued(queued), Some(told)) => (queued, told),
            (AcquireOutcome::Conflict(conflict), _) => {
                return Err(refused(&request.place, &conflict));
            }
            (AcquireOutcome::Refused(refusal), _) => {
                return Err(not_evaluated(&request.place, refusal));
            }
            (AcquireOutcome::Queued(_) | AcquireOutcome::Lost { .. }, _) => {
                return Err(Error::refused(
                    &request.place,
                    Class::NotHeld,
                    "the session lost a lock",
                ));
            }
        };
        waiting.number = Some(queued.waiter);
        let mut busy = busy(&request.place, &queued.conflict);
        busy.position = Some(queued.position);
        if let Some(tell) = &request.on_wait {
            tell(&busy);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let patience = left.unwrap_or(PLACE_RENEWED).min(PLACE_RENEWED);
        let told = tokio::select! {
            biased;
            told = told => told.ok(),
            () = keeper::sleep(patience) => None,
        };
        match told {
            Some(Told::Granted(fence)) => return Ok(waiting.granted(&request, fence)),
            Some(Told::Killed) => {
                waiting.number = None;
                return Err(Error::refused(
                    &request.place,
                    Class::NotHeld,
                    "the place in line was taken away",
                ));
            }
            // A grant that crosses the end of the wait is a grant.
            None if until.is_some_and(|until| Instant::now() >= until) => {
                return match waiting.withdraw() {
                    Withdrawn::Granted { fence } => Ok(waiting.granted(&request, fence)),
                    Withdrawn::Withdrawn | Withdrawn::Gone => Err(Error::TimedOut(Box::new(busy))),
                };
            }
            None => {}
        }
    }
}

/// A request under way: dropped, it leaves no place in line and no lock.
struct Waiting {
    owner: OwnerId,
    claim: Arc<Claim>,
    number: Option<u64>,
}

impl Waiting {
    fn granted(&mut self, request: &Request, fence: Option<CoreFence>) -> Guard {
        self.number = None;
        MEMORY.lock().move_fence(&self.owner, &self.claim, fence);
        let (owner, claim) = (self.owner.clone(), Arc::clone(&self.claim));
        let signals = Arc::clone(&claim.signals);
        let held = Held {
            owner,
            claim,
            released: false,
        };
        let place = request.place.clone();
        Guard::new(place, request.mode, signals, super::Held::Memory(held))
    }

    fn withdraw(&mut self) -> Withdrawn {
        let Some(waiter) = self.number.take() else {
            return Withdrawn::Gone;
        };
        let mut inner = MEMORY.lock();
        let withdraw = command::Withdraw {
            namespace: namespace(),
            owner: self.owner.clone(),
            waiter,
        };
        let withdrawn = match inner.apply(Command::Withdraw(withdraw), None) {
            Outcome::Withdraw(withdrawn) => withdrawn,
            other => unreachable!("a withdrawal is answered as one: {other:?}"),
        };
        match withdrawn {
            Withdrawn::Granted { .. } => {}
            Withdrawn::Withdrawn | Withdrawn::Gone => inner.forget(&self.owner, &self.claim),
        }
        withdrawn
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Withdrawn::Granted { .. } = self.withdraw() {
            let mut inner = MEMORY.lock();
            inner.release(&self.owner, &self.claim);
        }
    }
}

impl Held {
    pub(super) fn fence(&self) -> Option<Fence> {
        Fence::new(self.claim.fence.load(Ordering::Relaxed))
    }

    pub(super) fn owner(&self) -> String {
        self.owner.as_str().to_owned()
    }

    pub(super) fn check(&self, place: &Where) -> Result<(), Error> {
        match MEMORY.lock().holds(&self.owner, &self.claim) {
            true => Ok(()),
            false => Err(Error::refused(
                place,
                Class::NotHeld,
                "this handle does not hold the lock",
            )),
        }
    }

    pub(super) fn release(mut self, place: &Where) -> Result<(), Error> {
        let was_held = self.give_back();
        match was_held {
            true => Ok(()),
            false => Err(Error::refused(
                place,
                Class::NotHeld,
                "this handle does not hold the lock",
            )),
        }
    }

    fn give_back(&mut self) -> bool {
        if std::mem::replace(&mut self.released, true) {
            return false;
        }
        MEMORY.lock().release(&self.owner, &self.claim)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

pub(super) fn inspect(place: &Where, path: &Path) -> State {
    let inner = MEMORY.lock();
    let explained = inner.space.explain(
        &route(Algorithm::RecursiveRw),
        &nobody(),
        path,
        CoreMode::Write,
        MEMORY.time(),
    );
    let fence = inner.space.inspect(&namespace(), path, MEMORY.time()).fence;
    State {
        free: explained.conflict.is_none(),
        holders: explained.blockers.iter().map(blocker).collect(),
        waiters: explained
            .ahead
            .iter()
            .map(|waiter| Waiter {
                place: place_of(&waiter.path),
                holder: waiter.holder.as_ref().map(holder_out).unwrap_or_default(),
                owner: waiter.owner.as_str().to_owned(),
                mode: mode_out(waiter.mode, None),
                waited: Some(Duration::from_millis(waiter.waited_ms)),
            })
            .collect(),
        fence: fence.and_then(|fence| Fence::new(fence.number())),
        ..State::free(place)
    }
}

/// Every lock at or below a path; all of them without one.
pub(super) fn list(below: Option<&Path>) -> Vec<State> {
    let mut paths: Vec<Path> = {
        let inner = MEMORY.lock();
        let (mut paths, mut after) = (Vec::new(), None);
        loop {
            let page = inner.space.dump(after, 512);
            paths.extend(page.locks.into_iter().map(|lock| lock.path));
            match page.next {
                Some(next) => after = Some(next),
                None => break paths,
            }
        }
    };
    paths.retain(|path| below.is_none_or(|below| path == below || below.is_ancestor_of(path)));
    paths.sort();
    paths.dedup();
    paths
        .iter()
        .map(|path| inspect(&place_of(path), path))
        .collect()
}

/// Asks those in the way of an exclusive request.
pub(super) fn ask(place: &Where, path: &Path, reason: Option<&str>) -> Vec<Blocker> {
    let state = inspect(place, path);
    let request = ReleaseRequest {
        by: Holder::here(),
        reason: reason.map(str::to_owned),
    };
    let mut asked: Vec<Arc<Signals>> = Vec::new();
    {
        let inner = MEMORY.lock();
        for (_, seat) in inner.owners.iter() {
            let claims = seat.holds.iter().filter(|claim| {
                state
                    .holders
                    .iter()
                    .any(|holder| holder.place == place_of(&claim.path))
            });
            asked.extend(claims.map(|claim| Arc::clone(&claim.signals)));
        }
    }
    asked.iter().for_each(|signals| signals.ask(&request));
    state.holders
}

/// Takes the holds of a path away, for this reason: what tests of other people's loss handling need.
pub(crate) fn lose(path: &Path, cause: LostCause, what: &str) -> usize {
    let claims = claims_at(path);
    for (owner, claim) in &claims {
        claim.signals.lose(cause, what);
        MEMORY.lock().release(owner, claim);
    }
    claims.len()
}

/// What is held at a path, with whom.
pub(crate) fn signals_at(path: &Path) -> Vec<Arc<Signals>> {
    let claims = claims_at(path).into_iter();
    claims
        .map(|(_, claim)| Arc::clone(&claim.signals))
        .collect()
}

fn claims_at(path: &Path) -> Vec<(OwnerId, Arc<Claim>)> {
    let inner = MEMORY.lock();
    let seats = inner.owners.iter();
    let claims = seats.flat_map(|(owner, seat)| seat.holds.iter().map(move |claim| (owner, claim)));
    claims
        .filter(|(owner, claim)| claim.path == *path && inner.holds(owner, claim))
        .map(|(owner, claim)| (owner.clone(), Arc::clone(claim)))
        .collect()
}

pub(super) fn break_hold(
    place: &Where,
    path: &Path,
    breaking: Breaking<'_>,
) -> Result<Broken, Error> {
    let state = inspect(place, path);
    let victims: Vec<Blocker> = state
        .holders
        .into_iter()
        .filter(|holder| breaking.id.is_none_or(|id| holder.id.as_ref() == Some(id)))
        .collect();
    if victims.is_empty() {
        return Err(Error::refused(
            place,
            Class::NotHeld,
            "there is no such hold",
        ));
    }
    if breaking.force == crate::Force::No {
        let busy = Busy::new(place, victims.into_iter().next(), "held");
        return Err(Error::Busy(Box::new(busy)));
    }
    for victim in &victims {
        let (owner, fence) = split_id(victim.id.as_ref());
        let Where::Memory(name) = &victim.place else {
            continue;
        };
        let owner =
            OwnerId::new(owner).map_err(|invalid| Error::input(owner, invalid.to_string()))?;
        let hold = Break {
            route: route(Algorithm::RecursiveRw),
            path: name.path().clone(),
            owner,
            fence,
        };
        match MEMORY.lock().apply(Command::Break(hold), None) {
            Outcome::Break(BreakOutcome::Broken) => {}
            _ => {
                return Err(Error::refused(
                    place,
                    Class::LostRace,
                    "another holds it now",
                ));
            }
        }
    }
    Ok(Broken {
        victims,
        fence: inspect(place, path).fence,
    })
}

pub(super) fn watch(path: &Path) -> Watch {
    let (changes, watch) = Watch::new();
    let mut inner = MEMORY.lock();
    for state in inner.space.watch_snapshot(&namespace(), MEMORY.time()) {
        tell_watcher(path, &changes, &state, Some(ChangeKind::Present));
    }
    let _ = changes.send(Ok(Change::present_end(&place_of(path))));
    inner.space.watch();
    inner.watchers.push((path.clone(), changes));
    watch
}

impl Memory {
    fn new() -> Memory {
        let seed = u64::from_ne_bytes(Token::random().bytes()[..8].try_into().unwrap_or_default());
        Memory {
            born: Instant::now(),
            inner: Mutex::new(Inner {
                space: Space::new(SpaceLimits::default(), HashSeed(seed)),
                owners: HashMap::new(),
                watchers: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, owner: &OwnerId) -> Arc<Turn<()>> {
        let mut inner = self.lock();
        Arc::clone(&inner.owners.entry(owner.clone()).or_default().turn)
    }

    fn time(&self) -> u64 {
        whole_millis(self.born.elapsed())
    }
}

impl Inner {
    fn acquire(
        &mut self,
        owner: &OwnerId,
        claim: &Arc<Claim>,
        request: &Request,
        asking: &ReleaseRequest,
    ) -> AcquireOutcome {
        let (algorithm, permits) = match request.mode {
            Mode::Permit(of) => (Algorithm::Semaphore, Some(of)),
            Mode::Exclusive | Mode::Shared | Mode::SharedTree => (Algorithm::RecursiveRw, None),
        };
        let wait = match (request.wait, request.ask) {
            (Wait::No, _) => command::Wait::No,
            (Wait::For(_) | Wait::Forever, true) => command::Wait::QueueAndAsk,
            (Wait::For(_) | Wait::Forever, false) => command::Wait::Queue,
        };
        let acquire = Acquire {
            route: route(algorithm),
            owner: owner.clone(),
            ttl: longest(),
            queue_ttl: QueueTtl::from_millis(whole_millis(PLACE_LASTS))
                .expect("two days are less than seven"),
            requests: vec![command::Request {
                path: claim.path.clone(),
                mode: claim.mode,
                state: Taking::New,
                permits,
            }],
            releases: Vec::new(),
            fence: None,
            key: None,
            wait,
            holder: Some(holder_in(&request.holder)),
        };
        // Before it is applied: what the command itself brings about must find the claim.
        self.remember(owner, claim);
        let outcome = match self.apply(Command::Acquire(acquire), Some(asking)) {
            Outcome::Acquire(outcome) => outcome,
            other => unreachable!("an acquire is answered as one: {other:?}"),
        };
        match outcome {
            AcquireOutcome::Granted { .. } | AcquireOutcome::Queued(_) => {}
            AcquireOutcome::Conflict(_)
            | AcquireOutcome::Lost { .. }
            | AcquireOutcome::Refused(_) => {
                self.forget(owner, claim);
            }
        }
        outcome
    }

    fn move_fence(&self, owner: &OwnerId, claim: &Claim, fence: Option<CoreFence>) {
        let number = fence.map_or(0, CoreFence::number);
        let held = self
            .owners
            .get(owner)
            .into_iter()
            .flat_map(|seat| &seat.holds);
        for same in held.filter(|held| held.path == claim.path && held.mode == claim.mode) {
            same.fence.store(number, Ordering::Relaxed);
        }
    }

    fn wait(&mut self, owner: &OwnerId) -> oneshot::Receiver<Told> {
        let (sender, told) = oneshot::channel();
        self.owners.entry(owner.clone()).or_default().waiting = Some(sender);
        told
    }

    fn remember(&mut self, owner: &OwnerId, claim: &Arc<Claim>) {
        let seat = self.owners.entry(owner.clone()).or_default();
        if !seat.holds.iter().any(|held| Arc::ptr_eq(held, claim)) {
            seat.holds.push(Arc::clone(claim));
        }
    }

    fn forget(&mut self, owner: &OwnerId, claim: &Arc<Claim>) {
        let Some(seat) = self.owners.get_mut(owner) else {
            return;
        };
        seat.holds.retain(|held| !Arc::ptr_eq(held, claim));
        // A session that somebody takes turns in is needed for as long as they do.
        if seat.holds.is_empty() && Arc::strong_count(&seat.turn) == 1 {
            self.owners.remove(owner);
        }
    }

    fn holds(&self, owner: &OwnerId, claim: &Claim) -> bool {
        let held = self.space.owner_locks(owner, &Selection::All).locks;
        held.iter()
            .any(|lock| lock.path == claim.path && lock.mode == claim.mode)
    }

    /// Says whether it was held.
    fn release(&mut self, owner: &OwnerId, claim: &Arc<Claim>) -> bool {
        let was_held = self.holds(owner, claim);
        self.forget(owner, claim);
        let others = self.owners.get(owner).is_some_and(|seat| {
            let same = |other: &Arc<Claim>| other.path == claim.path && other.mode == claim.mode;
            seat.holds.iter().any(same)
        });
        // A session may hold one path twice: the last guard gives it back.
        if !others {
            let release = Release {
                route: route(Algorithm::RecursiveRw),
                owner: owner.clone(),
                holds: vec![command::Hold {
                    path: claim.path.clone(),
                    mode: claim.mode,
                }],
                key: None,
            };
            self.apply(Command::Release(release), None);
        }
        was_held
    }

    /// Applies a command and tells everybody whom it concerns. `asking`: on whose behalf holders are asked.
    fn apply(&mut self, command: Command, asking: Option<&ReleaseRequest>) -> Outcome {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let stamp = Stamp {
            time: MEMORY.time(),
            wall: whole_millis(wall),
        };
        let Applied {
            outcome,
            events,
            changes,
            ..
        } = self.space.apply(stamp, command);
        for event in &events {
            self.pass_on(event, asking);
        }
        self.watchers.retain(|(path, watcher)| {
            !watcher.is_closed()
                && changes
                    .iter()
                    .all(|change| tell_watcher(path, watcher, change, None))
        });
        if self.watchers.is_empty() {
            self.space.unwatch();
        }
        outcome
    }

    fn pass_on(&mut self, event: &Event, asking: Option<&ReleaseRequest>) {
        let still = self.space.owner_locks(&event.owner, &Selection::All).locks;
        let Some(seat) = self.owners.get_mut(&event.owner) else {
            return;
        };
        match event.kind {
            EventKind::Grant { fence } => {
                if let Some(waiting) = seat.waiting.take() {
                    // A wait that was dropped meanwhile withdraws, and finds that it was granted.
                    let _ = waiting.send(Told::Granted(fence));
                }
            }
            EventKind::Revoke => {
                let request = asking.cloned().unwrap_or_default();
                seat.holds
                    .iter()
                    .for_each(|claim| claim.signals.ask(&request));
            }
            EventKind::Killed => {
                for claim in &seat.holds {
                    let held = |lock: &tenure_core::query::HeldLock| {
                        lock.path == claim.path && lock.mode == claim.mode
                    };
                    if !still.iter().any(held) {
                        claim
                            .signals
                            .lose(LostCause::Broken, "somebody broke the lock");
                    }
                }
                if let Some(waiting) = seat.waiting.take() {
                    let _ = waiting.send(Told::Killed);
                }
            }
        }
    }
}

fn owner_id(request: &Request) -> Result<OwnerId, Error> {
    let owner = request
        .owner
        .clone()
        .unwrap_or_else(|| Token::random().to_string());
    OwnerId::new(&owner).map_err(|invalid| Error::input(owner, invalid.to_string()))
}

/// Somebody who holds nothing and waits for nothing.
fn nobody() -> OwnerId {
    OwnerId::new("?").expect("one character is an owner id")
}

fn namespace() -> Namespace {
    Namespace::parse("mem").expect("a bare handler is a namespace")
}

fn route(algorithm: Algorithm) -> Route {
    Route {
        namespace: namespace(),
        algorithm,
        version: 0,
    }
}

/// Nobody proposes the end of a lease here, so its length does not matter.
fn longest() -> Ttl {
    Ttl::from_millis(Ttl::MAX_MILLIS).expect("the longest ttl is a ttl")
}

fn place_of(path: &Path) -> Where {
    Where::Memory(MemoryName::from_path(path.clone()))
}

fn core_mode(mode: Mode) -> CoreMode {
    match mode {
        Mode::Exclusive | Mode::Permit(_) => CoreMode::Write,
        Mode::Shared => CoreMode::Read,
        Mode::SharedTree => CoreMode::ReadTree,
    }
}

fn mode_out(mode: CoreMode, permits: Option<NonZeroU32>) -> Mode {
    match (mode, permits) {
        (CoreMode::Write, Some(of)) => Mode::Permit(of),
        (CoreMode::Write, None) => Mode::Exclusive,
        (CoreMode::Read, _) => Mode::Shared,
        (CoreMode::ReadTree, _) => Mode::SharedTree,
    }
}

fn holder_in(holder: &Holder) -> CoreHolder {
    CoreHolder {
        name: holder.name.clone(),
        host: holder.host.clone(),
        pid: holder.pid.unwrap_or(0),
        purpose: holder.purpose.clone(),
        labels: holder.labels.clone().into_iter().collect(),
    }
}

fn holder_out(holder: &CoreHolder) -> Holder {
    Holder {
        name: holder.name.clone(),
        host: holder.host.clone(),
        pid: Some(holder.pid).filter(|pid| *pid != 0),
        purpose: holder.purpose.clone(),
        labels: holder.labels.iter().cloned().collect(),
    }
}

fn blocker(found: &tenure_core::outcome::Blocker) -> Blocker {
    let fence = found.fence.and_then(|fence| Fence::new(fence.number()));
    Blocker {
        place: place_of(&found.path),
        holder: found.holder.as_ref().map(holder_out).unwrap_or_default(),
        standing: Standing::Holds,
        mode: mode_out(found.mode, None),
        held_for: Some(Duration::from_millis(found.held_ms)),
        lease_left: None,
        fence,
        verdict: Verdict::new(Life::Alive, "it is this process"),
        id: Some(hold_id(found.owner.as_str(), fence)),
    }
}

/// Owner and fence: this hold, and none that the same owner takes later.
pub(crate) fn hold_id(owner: &str, fence: Option<Fence>) -> HoldId {
    HoldId::new(format!("{owner}@{}", fence.map_or(0, Fence::get)))
}

fn split_id(id: Option<&HoldId>) -> (&str, Option<CoreFence>) {
    let text = id.map_or("", HoldId::as_str);
    match text.rsplit_once('@') {
        Some((owner, fence)) => (owner, fence.parse().ok().and_then(CoreFence::from_number)),
        None => (text, None),
    }
}

fn busy(place: &Where, conflict: &Conflict) -> Busy {
    let mut found = conflict.blocker.as_ref().map(blocker);
    if let (Reason::Queued, Some(found)) = (conflict.reason, &mut found) {
        found.standing = Standing::Waits;
    }
    let what = match conflict.reason {
        Reason::SemaphoreFull => "all permits are taken",
        Reason::Queued => "others are waiting for it",
        _ => "held",
    };
    Busy::new(place, found, what)
}

fn refused(place: &Where, conflict: &Conflict) -> Error {
    match conflict.reason {
        Reason::InvalidPermits {
            capacity: Some(capacity),
        } => Error::refused(
            place,
            Class::BadInput,
            format!("there are {capacity} permits here, and everybody must name the same number"),
        ),
        reason if reason.is_waitable() => Error::Busy(Box::new(busy(place, conflict))),
        reason => Error::refused(place, Class::Unsupported, format!("{reason:?}")),
    }
}

fn not_evaluated(place: &Where, refusal: Refusal) -> Error {
    let what = match refusal {
        Refusal::QueueFull => "too many are waiting",
        Refusal::FencesUsedUp => "all fences are used up",
        Refusal::Outdated { .. }
        | Refusal::Frozen { .. }
        | Refusal::KeyReused
        | Refusal::AnswersFull => "the lock table is in a state that it cannot be in",
    };
    Error::refused(place, Class::Io, what)
}

/// Says whether the watcher still listens.
fn tell_watcher(
    path: &Path,
    watcher: &Changes,
    change: &LockChange,
    kind: Option<ChangeKind>,
) -> bool {
    use tenure_core::event::ChangeKind as Core;
    let (Some(at), Some(owner)) = (&change.path, &change.owner) else {
        return true;
    };
    if at != path && !path.is_ancestor_of(at) {
        return true;
    }
    let kind = match change.kind {
        // Of a snapshot: held, unless it waits.
        Core::Granted => kind.unwrap_or(ChangeKind::Granted),
        Core::Queued => ChangeKind::Queued,
        Core::Released => ChangeKind::Released,
        Core::Expired => ChangeKind::Expired,
        Core::Killed => ChangeKind::Killed,
        Core::Dequeued => ChangeKind::Dequeued,
        Core::Asked => ChangeKind::Asked,
        Core::Policy { .. } => ChangeKind::Policy,
    };
    let change = Change {
        kind,
        place: place_of(at),
        owner: owner.as_str().to_owned(),
        holder: change.holder.as_ref().map(holder_out).unwrap_or_default(),
        mode: change
            .mode
            .map_or(Mode::Exclusive, |mode| mode_out(mode, None)),
        fence: change.fence.and_then(|fence| Fence::new(fence.number())),
    };
    watcher.send(Ok(change)).is_ok()
}
