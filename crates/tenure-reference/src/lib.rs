//! Reference model of the space (model-based testing): a list of claims, a list of waiters, and
//! loops over them.
//!
//! It is written from the rules alone, to be obviously correct and not to be fast: no tree, no
//! index, no counter that could become wrong. After every command it asks each waiter in order
//! whether it can be granted. The property tests apply the same commands to the model and to the
//! space, and compare all results.
//!
//! Where the space keeps derived state (which waiters a release could free, how many claims lie
//! below a path), the model searches everything again.

mod acquire;
pub mod conflict;
mod query;

use core::num::NonZeroU32;

use tenure_core::command::{
    Acquire, AskRelease, BreakLock, ChangePolicy, ClearPolicy, Command, Domain, Expire, Freeze,
    Hold, Region, Release, ReleaseAll, ReleaseCause, RenewLease, RequestKind, Selection, Thaw,
    Withdraw,
};
use tenure_core::event::{ChangeKind, Event, EventKind, LockChange};
use tenure_core::limits::Quota;
use tenure_core::outcome::{
    Applied, BreakOutcome, FreezeReport, LeaseChange, LeaseNumber, Outcome, Refusal, Renewed,
    Withdrawn,
};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Missing, Mode};
use tenure_core::value::{Fence, Holder, Key, OwnerId, Stamp, Ttl};

use conflict::WantedAccess;

/// Number of moved regions that a space distinguishes.
const MOVED_REGIONS: usize = 64;

/// How long answers and release requests are remembered: R102 (keyed requests apply once), R116
/// (revoke marker).
const REMEMBERED_MS: u64 = 300_000;
/// How long events and unclaimed grants are kept: R122 (events are always delivered).
const KEPT_MS: u64 = 30_000;
/// How long an idle semaphore keeps its capacity: R52 (when capacity is forgotten).
const CAPACITY_MS: u64 = 24 * 3_600_000;
/// By how much a logged lease outlives its ttl (`cover` in `docs/design/leases.md`).
const COVER_MS: u64 = 60_000;
/// How many owners a waiter asks to release at a time: E2 (ask blockers to release).
const ASKED_AT_ONCE: usize = 64;

/// One held (owner, mode, path).
#[derive(Clone, Debug)]
struct Claim {
    namespace: Namespace,
    owner: OwnerId,
    path: Path,
    mode: Mode,
    algorithm: Algorithm,
    since: u64,
}

impl Claim {
    fn want(&self) -> WantedAccess<'_> {
        WantedAccess {
            path: &self.path,
            mode: self.mode,
            algorithm: self.algorithm,
        }
    }

    fn is_permit(&self) -> bool {
        self.want().is_permit()
    }
}

/// The lease of all claims of one owner in one namespace: R76 (one lease per owner and namespace).
#[derive(Clone, Debug)]
struct ModelLease {
    namespace: Namespace,
    owner: OwnerId,
    ttl: Ttl,
    cover: u64,
    epoch: u64,
    born: u64,
    asked_until: u64,
    holder: Option<Holder>,
    /// The waiter whose grant the owner has not acknowledged by a command yet, its fence, and until
    /// when new subscribers get the grant as an event (R122).
    unclaimed: Option<(u64, Option<Fence>, u64)>,
}

/// A queued acquire. The list of waiters is in queue order.
#[derive(Clone, Debug)]
struct Waiter {
    number: u64,
    acquire: Acquire,
    /// The fence reserved for it: minted, or the supplied one.
    fence: Option<Fence>,
    since: u64,
    until: u64,
    asked: Vec<OwnerId>,
}

/// The fence counter of a namespace: R67 (minting a token).
#[derive(Clone, Debug)]
struct Counter {
    namespace: Namespace,
    last: u64,
    floor: u64,
}

/// The stored fence of a path.
#[derive(Clone, Debug)]
struct StoredFence {
    namespace: Namespace,
    path: Path,
    fence: Fence,
}

/// The capacity of a semaphore path: R51 (the first acquire fixes capacity).
#[derive(Clone, Debug)]
struct Capacity {
    namespace: Namespace,
    path: Path,
    permits: NonZeroU32,
    idle_since: Option<u64>,
}

/// A hold that was taken from its owner by a break or a policy change.
#[derive(Clone, Debug)]
struct TakenHold {
    namespace: Namespace,
    owner: OwnerId,
    path: Path,
    mode: Mode,
    missing: Missing,
}

/// A stored answer of a keyed request (R102).
#[derive(Clone, Debug)]
struct ModelAnswer {
    key: Key,
    namespace: Namespace,
    /// The request as the client sent it, without its route.
    request: Command,
    result: ModelRemembered,
    until: u64,
}

#[derive(Clone, Debug)]
enum ModelRemembered {
    Granted(Option<Fence>),
    Waiting(u64),
    /// These holds: the request is the whole one, wherever it names them.
    Released(Vec<Hold>),
}

/// The reference model of a space.
#[derive(Clone, Debug, Default)]
pub struct Model {
    rules: u32,
    /// How many waiters a command grants, and how many it ends; no limit without a number.
    batch: Option<usize>,
    /// How many waiters the present command has granted or dropped so far.
    woken: usize,
    /// The quotas of the present command.
    quota: Option<Quota>,
    time: u64,
    wall: u64,
    claims: Vec<Claim>,
    leases: Vec<ModelLease>,
    waiters: Vec<Waiter>,
    counters: Vec<Counter>,
    marks: Vec<StoredFence>,
    capacities: Vec<Capacity>,
    /// Holds that were taken from their owners, until the owners name them again.
    taken: Vec<TakenHold>,
    answers: Vec<ModelAnswer>,
    frozen: Vec<Freeze>,
    /// Committed policy changes, with the version of the table since then.
    changed: Vec<(u64, Region)>,
    /// Regions whose paths may have come from another namespace: until when that matters (R102),
    /// and since which version.
    moved: Vec<(u64, u64, Region)>,
    /// Numbers of ended changes. All changes up to `settled` have ended.
    over: Vec<u64>,
    settled: u64,
    /// Where the fence counters of new namespaces start.
    space_floor: u64,
    /// Fences of a region's paths must be above this: R71 (tokens never go back).
    region_floors: Vec<(Region, Fence)>,
    /// The last waiter of each owner in each namespace, for test scripts.
    latest: Vec<(Namespace, OwnerId, u64)>,
    /// Namespace and owner of every lease that ever existed, by number.
    lease_names: Vec<(Namespace, OwnerId)>,
    epochs: u64,
    numbers: u64,
    /// Waiters up to this number were queued before leases and waiters shared one numbering.
    order_from: u64,
    sequence: u64,
    last_id: u64,
    kept: Vec<(u64, Event)>,
    // Results of the current command.
    events: Vec<Event>,
    lease_changes: Vec<LeaseChange>,
    lock_changes: Vec<LockChange>,
}

/// How a hold ended, for watchers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HoldEnd {
    Released,
    Expired,
    Killed,
}

impl Model {
    /// Returns an empty model.
    pub fn new() -> Model {
        Model::default()
    }

    /// Returns an empty model whose commands grant and end so many waiters each (R87).
    pub fn with_batch(batch: usize) -> Model {
        Model {
            batch: Some(batch),
            ..Model::default()
        }
    }

    /// The size of a batch; rules 1 have none.
    fn batch(&self) -> usize {
        let batch = self.batch.filter(|_| self.rules >= 2);
        batch.unwrap_or(usize::MAX)
    }

    /// Applies a command and returns all its results.
    pub fn apply(&mut self, stamp: Stamp, command: &Command) -> Applied {
        self.time = self.time.max(stamp.time);
        self.wall = stamp.wall;
        self.events.clear();
        self.lease_changes.clear();
        self.lock_changes.clear();
        self.woken = 0;
        // First everything that ends by time, then the waiters that this frees, then the command
        // itself.
        self.forget_what_has_ended();
        self.wake_waiters();
        self.forget_the_gone();
        let outcome = match command {
            Command::Acquire(acquire) => Outcome::Acquire(self.acquire(acquire)),
            Command::AcquireWithin(within) => {
                self.quota = Some(within.quota);
                let outcome = self.acquire(&within.acquire);
                self.quota = None;
                Outcome::Acquire(outcome)
            }
            Command::Release(release) => Outcome::Release(self.release(release)),
            Command::ReleaseAll(all) => self.release_all(all),
            Command::Renew(renew) => Outcome::Renew(self.renew(renew)),
            Command::Expire(expire) => Outcome::Expired(self.expire(expire)),
            Command::Tick => Outcome::Done,
            Command::Rules { number } => {
                if self.rules < 2 && *number >= 2 {
                    self.order_from = self.epochs.max(self.numbers);
                }
                self.rules = self.rules.max(*number);
                Outcome::Done
            }
            Command::Ask(ask) => self.ask(ask),
            Command::Break(order) => Outcome::Break(Box::new(self.break_hold(order))),
            Command::Withdraw(withdraw) => Outcome::Withdraw(self.withdraw(withdraw)),
            Command::Freeze(freeze) => Outcome::Frozen(self.freeze(freeze)),
            Command::Change(change) => self.change(change),
            Command::Thaw(thaw) => self.thaw(thaw),
            Command::Lift { by } => self.lift(*by),
        };
        self.wake_waiters();
        self.forget_the_gone();
        self.note_idle_capacities();
        self.kept
            .extend(self.events.iter().map(|event| (self.time, event.clone())));
        Applied {
            outcome,
            events: self.events.clone(),
            leases: self.lease_changes.clone(),
            changes: self.lock_changes.clone(),
        }
    }

    /// Removes everything that ends by the time stamp alone: R84 (pending entry lifetime), R102,
    /// R116, R122, R52. Leases do not: they end by `Expire`.
    fn forget_what_has_ended(&mut self) {
        let time = self.time;
        for _ in 0..self.batch().min(self.waiters.len()) {
            let over = self.waiters.iter().enumerate();
            let over = over.filter(|(_, waiter)| waiter.until <= time);
            let Some((at, _)) = over.min_by_key(|(_, waiter)| (waiter.until, waiter.number)) else {
                break;
            };
            self.dequeue(at);
        }
        self.answers.retain(|answer| answer.until > time);
        self.kept.retain(|(made, _)| made + KEPT_MS > time);
        self.capacities.retain(|capacity| {
            capacity
                .idle_since
                .is_none_or(|since| since + CAPACITY_MS > time)
        });
    }

    /// Forgets taken holds of owners that have neither a lease nor a waiter any more.
    fn forget_the_gone(&mut self) {
        let (leases, waiters) = (&self.leases, &self.waiters);
        self.taken.retain(|taken| {
            let leased = leases
                .iter()
                .any(|lease| lease.namespace == taken.namespace && lease.owner == taken.owner);
            let waits = waiters.iter().any(|waiter| {
                waiter.acquire.route.namespace == taken.namespace
                    && waiter.acquire.owner == taken.owner
            });
            leased || waits
        });
    }

    /// Forgets taken holds that the owner names in a command, because its answer tells their state.
    fn forget_taken<'a>(
        &mut self,
        namespace: &Namespace,
        owner: &OwnerId,
        named: impl Iterator<Item = (&'a Path, Mode)> + Clone,
    ) {
        self.taken.retain(|taken| {
            taken.namespace != *namespace
                || taken.owner != *owner
                || !named
                    .clone()
                    .any(|(path, mode)| taken.path == *path && taken.mode == mode)
        });
    }

    /// Takes holds from an owner without its request. Its renewals report them as missing from now
    /// on.
    fn take_away(
        &mut self,
        namespace: &Namespace,
        owner: &OwnerId,
        going: impl Fn(&Claim) -> bool,
    ) {
        if self.rules >= 2 {
            let claims = self.claims.iter().filter(|claim| {
                claim.namespace == *namespace && claim.owner == *owner && going(claim)
            });
            let taken: Vec<TakenHold> = claims
                .map(|claim| TakenHold {
                    namespace: namespace.clone(),
                    owner: owner.clone(),
                    path: claim.path.clone(),
                    mode: claim.mode,
                    missing: match claim.mode {
                        _ if claim.is_permit() => Missing::Semaphore,
                        Mode::Write => Missing::Write,
                        Mode::Read | Mode::ReadTree => Missing::Read,
                    },
                })
                .collect();
            for one in taken {
                self.forget_taken(namespace, owner, [(&one.path, one.mode)].into_iter());
                self.taken.push(one);
            }
        }
        self.drop_holds(namespace, owner, HoldEnd::Killed, going);
    }

    /// Returns the answer to a renewal in a namespace, before anything is extended: R90 (Renew with
    /// domains).
    pub fn renewal(&self, namespace: &Namespace, owner: &OwnerId) -> Result<(), Missing> {
        if self.lease(namespace, owner).is_none() {
            return Err(Missing::Alive);
        }
        let taken = self
            .taken
            .iter()
            .filter(|taken| taken.namespace == *namespace && taken.owner == *owner);
        match taken.min_by_key(|taken| (&taken.path, taken.mode)) {
            Some(taken) => Err(taken.missing),
            None => Ok(()),
        }
    }

    /// Marks a capacity as idle while its path has neither holder nor waiter (R52).
    fn note_idle_capacities(&mut self) {
        for capacity in &mut self.capacities {
            let held = self.claims.iter().any(|claim| {
                claim.is_permit()
                    && claim.namespace == capacity.namespace
                    && claim.path == capacity.path
            });
            let wanted = self.waiters.iter().any(|waiter| {
                waiter.acquire.route.namespace == capacity.namespace
                    && waiter
                        .new_requests()
                        .any(|request| request.path == capacity.path)
            });
            if held || wanted {
                capacity.idle_since = None;
            } else if capacity.idle_since.is_none() {
                capacity.idle_since = Some(self.time);
            }
        }
    }

    /// R97 (Release drops listed holds), R99 (Release cancels a pending entry).
    fn release(&mut self, release: &Release) -> Result<(), Refusal> {
        let namespace = &release.route.namespace;
        let paths = release.holds.iter().map(|hold| &hold.path);
        let request = without_route(&Command::Release(release.clone()));
        let outdated = self.outdated(release.route.version, paths);
        let answer = self.answer(namespace, &release.key, &request);
        let mut done = Vec::new();
        match answer {
            Some(answer) if answer.request == request => match &answer.result {
                // What was done under the key is done, also where its paths have another namespace now.
                ModelRemembered::Released(holds) if release.whole.is_some() => {
                    done.clone_from(holds);
                }
                _ => done.clone_from(&release.holds),
            },
            Some(_) if outdated.is_none() => return Err(Refusal::KeyReused),
            _ => {}
        }
        let mut release = release.clone();
        release.holds.retain(|hold| !done.contains(hold));
        let repeats = answer.is_some_and(|answer| answer.request == request);
        let all_done = repeats && release.holds.is_empty();
        match outdated {
            Some(refusal) if self.rules < 2 || !all_done => return Err(refusal),
            _ if all_done => return Ok(()),
            _ => {}
        }
        let unknown = |hold: &&Hold| !self.holds_or_lost(namespace, &release.owner, hold);
        let frozen = |hold: &Hold| {
            let freezes = self.frozen.iter();
            let freezes = freezes.filter(|freeze| freeze.region.contains(&hold.path));
            freezes.map(|freeze| freeze.change).min()
        };
        if self.rules >= 2
            && let Some(change) = release.holds.iter().filter(unknown).find_map(frozen)
        {
            self.cancel_waiter(&release);
            return Err(Refusal::Frozen { change });
        }
        if let (Some(_), Some(whole)) = (&release.key, release.whole) {
            let moved = release.holds.iter().map(|hold| self.moved_by(&hold.path));
            if let Some(version) = moved.max().flatten()
                && whole.asked.is_none_or(|asked| asked < version)
            {
                return Err(Refusal::Moved { version });
            }
        }
        done.extend(release.holds.iter().cloned());
        self.take_note(namespace, &release.owner);
        let named = release.holds.iter().map(|hold| (&hold.path, hold.mode));
        self.forget_taken(namespace, &release.owner, named);
        self.cancel_waiter(&release);
        self.drop_holds(namespace, &release.owner, HoldEnd::Released, |claim| {
            release
                .holds
                .iter()
                .any(|hold| hold.path == claim.path && hold.mode == claim.mode)
        });
        let result = ModelRemembered::Released(done);
        self.remember(namespace, &release.key, request, result);
        Ok(())
    }

    /// R99 (Release cancels a pending entry).
    fn cancel_waiter(&mut self, release: &Release) {
        let named = |path: &Path, mode: Mode| {
            let mut holds = release.holds.iter();
            holds.any(|hold| hold.path == *path && hold.mode == mode)
        };
        let cancelled = self.waiters.iter().position(|waiter| {
            waiter.acquire.owner == release.owner
                && waiter.acquire.route.namespace == release.route.namespace
                && waiter
                    .new_requests()
                    .any(|request| named(&request.path, request.mode))
        });
        if let Some(at) = cancelled {
            self.dequeue(at);
        }
    }

    /// Returns whether the owner holds this, or lost it to a break or a policy change and has not
    /// named it since.
    fn holds_or_lost(&self, namespace: &Namespace, owner: &OwnerId, hold: &Hold) -> bool {
        let same = |path: &Path, mode: Mode| *path == hold.path && mode == hold.mode;
        let held = self.claims.iter().any(|claim| {
            claim.namespace == *namespace && claim.owner == *owner && same(&claim.path, claim.mode)
        });
        let taken = self.taken.iter().any(|taken| {
            taken.namespace == *namespace && taken.owner == *owner && same(&taken.path, taken.mode)
        });
        held || taken
    }

    /// R100 (ReleaseAll drops everything), R101 (ForceRelease always notifies the victim),
    /// R126–R128 (selection by domains).
    fn release_all(&mut self, all: &ReleaseAll) -> Outcome {
        let end = match all.cause {
            ReleaseCause::Owner => HoldEnd::Released,
            ReleaseCause::Killed => HoldEnd::Killed,
        };
        let mut met: Vec<Namespace> = Vec::new();
        // Only what existed when the call was planned: a retry must not end leases and waiters that
        // are younger.
        let until = all.until.unwrap_or(u64::MAX);
        while let Some(at) = self.waiters.iter().position(|waiter| {
            waiter.acquire.owner == all.owner
                && waiter.number <= until
                && selects(&all.selection, &waiter.acquire.route.namespace)
        }) {
            met.push(self.waiters[at].acquire.route.namespace.clone());
            self.dequeue(at);
        }
        while let Some(lease) = self.leases.iter().find(|lease| {
            lease.owner == all.owner
                && lease.born <= until
                && selects(&all.selection, &lease.namespace)
        }) {
            let namespace = lease.namespace.clone();
            self.drop_holds(&namespace, &all.owner, end, |_| true);
            met.push(namespace);
        }
        met.sort();
        met.dedup();
        Outcome::Touched(met.len() as u64)
    }

    /// R77 (a renewal never shortens a lease), R90–R93.
    fn renew(&mut self, renew: &RenewLease) -> Result<Renewed, Missing> {
        let time = self.time;
        self.renewal(&renew.namespace, &renew.owner)?;
        let Some(lease) = self.lease(&renew.namespace, &renew.owner) else {
            return Err(Missing::Alive);
        };
        let renewed = Renewed {
            asked: lease.asked_until > time,
            born: lease.born,
        };
        let (ttl, cover) = (lease.ttl, lease.cover);
        self.take_note(&renew.namespace, &renew.owner);
        self.set_lease(&renew.namespace, &renew.owner, renew.ttl, None);
        // `set_lease` has replaced both values. Since rules 2 the larger ones are kept.
        for lease in &mut self.leases {
            let its = lease.namespace == renew.namespace && lease.owner == renew.owner;
            if its && self.rules >= 2 {
                (lease.ttl, lease.cover) = (lease.ttl.max(ttl), lease.cover.max(cover));
            }
        }
        if let Some(LeaseChange::Set { lease, ttl, epoch }) = self.lease_changes.pop() {
            self.lease_changes
                .push(LeaseChange::Renewed { lease, ttl, epoch });
        }
        Ok(renewed)
    }

    /// Ends a lease, if the epoch is still its own. This is the only way in which a lease runs out.
    fn expire(&mut self, expire: &Expire) -> bool {
        let due = self
            .lease(&expire.namespace, &expire.owner)
            .is_some_and(|lease| lease.epoch == expire.epoch);
        if due {
            self.drop_holds(&expire.namespace, &expire.owner, HoldEnd::Expired, |_| true);
            self.taken
                .retain(|taken| taken.namespace != expire.namespace || taken.owner != expire.owner);
        }
        due
    }

    /// Records a release request: R116 (revoke marker).
    fn ask(&mut self, ask: &AskRelease) -> Outcome {
        let namespaces: Vec<Namespace> = self
            .leases
            .iter()
            .filter(|lease| lease.owner == ask.owner)
            .map(|lease| lease.namespace.clone())
            .collect();
        for namespace in &namespaces {
            self.mark_asked(namespace, &ask.owner);
        }
        Outcome::Touched(namespaces.len() as u64)
    }

    fn mark_asked(&mut self, namespace: &Namespace, owner: &OwnerId) {
        let until = self.time + REMEMBERED_MS;
        if let Some(lease) = self
            .leases
            .iter_mut()
            .find(|lease| lease.namespace == *namespace && lease.owner == *owner)
        {
            lease.asked_until = until;
        }
        let holder = self.holder_of(namespace, owner);
        self.show(namespace, ChangeKind::Asked, owner, None, None, holder);
    }

    /// Breaks one hold: E9 (Break one hold).
    fn break_hold(&mut self, order: &BreakLock) -> BreakOutcome {
        let namespace = &order.route.namespace;
        if let Some(refusal) = self.outdated(order.route.version, [&order.path].into_iter()) {
            return BreakOutcome::Refused(refusal);
        }
        let named = self
            .claims
            .iter()
            .filter(|claim| {
                claim.namespace == *namespace
                    && claim.owner == order.owner
                    && claim.path == order.path
                    && self.fence_of(claim) == order.fence
            })
            .map(|claim| claim.mode)
            .min();
        let Some(mode) = named else {
            return BreakOutcome::NotThatHold(self.present_holder(namespace, &order.path));
        };
        self.take_away(namespace, &order.owner, |claim| {
            claim.path == order.path && claim.mode == mode
        });
        self.tell(&order.owner, Some(namespace), EventKind::Killed);
        BreakOutcome::Broken
    }

    /// Withdraws a waiter: E5 (refuse on deadlock).
    fn withdraw(&mut self, withdraw: &Withdraw) -> Withdrawn {
        let place = self.waiters.iter().position(|waiter| {
            waiter.number == withdraw.waiter
                && waiter.acquire.owner == withdraw.owner
                && waiter.acquire.route.namespace == withdraw.namespace
        });
        if let Some(at) = place {
            self.dequeue(at);
            return Withdrawn::Withdrawn;
        }
        match self
            .lease(&withdraw.namespace, &withdraw.owner)
            .map(|lease| &lease.unclaimed)
        {
            Some(Some((number, fence, _))) if *number == withdraw.waiter => {
                Withdrawn::Granted { fence: *fence }
            }
            _ => Withdrawn::Gone,
        }
    }

    /// Freezes a region and reports what it holds: R133 (route changes need drained paths), R138
    /// (deleting a row in use).
    fn freeze(&mut self, freeze: &Freeze) -> FreezeReport {
        self.settle(freeze.settled);
        let known = self
            .frozen
            .iter()
            .any(|frozen| frozen.change == freeze.change);
        if !self.is_over(freeze.change) && !known {
            self.frozen.push(freeze.clone());
        }
        let live = self
            .claims
            .iter()
            .filter(|claim| freeze.region.contains(&claim.path))
            .map(|claim| (claim.path.clone(), claim.owner.clone()))
            // The owners of taken holds may still rely on them.
            .chain(
                self.taken
                    .iter()
                    .filter(|taken| freeze.region.contains(&taken.path))
                    .map(|taken| (taken.path.clone(), taken.owner.clone())),
            )
            .min();
        let highest = self
            .counters
            .iter()
            .filter(|counter| touches(&freeze.region, &counter.namespace))
            .map(|counter| counter.last.max(counter.floor))
            .chain([self.space_floor])
            .chain(
                self.region_floors
                    .iter()
                    .filter(|(other, _)| related(&freeze.region.root, &other.root))
                    .map(|(_, floor)| floor.number()),
            )
            .chain(
                self.marks
                    .iter()
                    .filter(|mark| touches(&freeze.region, &mark.namespace))
                    .map(|mark| mark.fence.number()),
            )
            .max();
        FreezeReport {
            live,
            highest: highest.and_then(Fence::from_number),
        }
    }

    /// Commits a policy change: R131–R134, R138, R139 (routing after a delete), R71.
    fn change(&mut self, change: &ChangePolicy) -> Outcome {
        self.settle(change.settled);
        if self.is_over(change.change) {
            return Outcome::Done;
        }
        self.end_change(change.change);
        self.changed.push((change.version, change.region.clone()));
        if self.rules >= 2 && change.clear == ClearPolicy::Waiters {
            let until = self.time + REMEMBERED_MS;
            self.moved
                .push((until, change.version, change.region.clone()));
        }
        let region = &change.region;
        let mut concerned: Vec<OwnerId> = Vec::new();
        while let Some(at) = self
            .waiters
            .iter()
            .position(|waiter| waiter.paths().any(|path| region.contains(path)))
        {
            concerned.push(self.waiters[at].acquire.owner.clone());
            self.dequeue(at);
        }
        self.capacities
            .retain(|capacity| !region.contains(&capacity.path));
        if change.clear == ClearPolicy::All {
            while let Some(claim) = self
                .claims
                .iter()
                .find(|claim| region.contains(&claim.path))
                .cloned()
            {
                concerned.push(claim.owner.clone());
                self.take_away(&claim.namespace, &claim.owner, |claim| {
                    region.contains(&claim.path)
                });
            }
        }
        concerned.sort();
        concerned.dedup();
        for owner in &concerned {
            self.tell(owner, Some(&region.root), EventKind::Killed);
        }
        if let Some(floor) = change.floor {
            // The floor of the region replaces the stored fences of its idle paths, in any
            // namespace.
            let claims = &self.claims;
            self.marks.retain(|mark| {
                !region.contains(&mark.path)
                    || claims
                        .iter()
                        .any(|claim| claim.namespace == mark.namespace && claim.path == mark.path)
            });
            self.region_floors.push((region.clone(), floor));
        }
        let kind = ChangeKind::Policy {
            algorithm: change.algorithm,
        };
        self.lock_changes.push(LockChange {
            namespace: region.root.clone(),
            kind,
            owner: None,
            path: None,
            mode: None,
            fence: None,
            holder: None,
        });
        Outcome::Done
    }

    fn thaw(&mut self, thaw: &Thaw) -> Outcome {
        self.end_change(thaw.change);
        Outcome::Done
    }

    /// Returns the version of the last change by which a path may have moved to its namespace,
    /// while answers from before it are still stored.
    fn moved_by(&self, path: &Path) -> Option<u64> {
        // Older regions are not told apart: any path may have been in them.
        let old = self.moved.len().saturating_sub(MOVED_REGIONS);
        let moved = self.moved.iter().enumerate();
        moved
            .filter(|(_, (until, ..))| *until > self.time)
            .filter(|(at, (_, _, region))| *at < old || region.contains(path))
            .map(|(_, (_, version, _))| *version)
            .max()
    }

    fn is_over(&self, change: u64) -> bool {
        change <= self.settled || self.over.contains(&change)
    }

    fn end_change(&mut self, change: u64) {
        self.frozen.retain(|frozen| frozen.change != change);
        self.over.push(change);
    }

    /// Ends all changes up to a number. Regions that are still frozen by them came with a restored
    /// snapshot, and are thawed.
    fn settle(&mut self, settled: u64) {
        self.settled = self.settled.max(settled);
        if self.rules < 2 {
            return;
        }
        for (region, owners) in self.abandon(settled) {
            for owner in &owners {
                self.tell(owner, Some(&region.root), EventKind::Killed);
            }
        }
        self.wake_waiters();
    }

    /// Thaws the regions of changes up to a number. Their waiters are dropped, because their paths
    /// may be in another namespace.
    fn abandon(&mut self, up_to: u64) -> Vec<(Region, Vec<OwnerId>)> {
        let mut thawed = Vec::new();
        while let Some(at) = self.frozen.iter().position(|frozen| frozen.change <= up_to) {
            let region = self.frozen.remove(at).region;
            let mut owners = Vec::new();
            while let Some(at) = self
                .waiters
                .iter()
                .position(|waiter| waiter.paths().any(|path| region.contains(path)))
            {
                owners.push(self.waiters[at].acquire.owner.clone());
                self.dequeue(at);
            }
            owners.sort();
            owners.dedup();
            thawed.push((region, owners));
        }
        thawed
    }

    /// Raises all counters after a restore, so that fences that were granted and lost are below
    /// every new one, and are stale if a client supplies them.
    fn lift(&mut self, by: u64) -> Outcome {
        let highest = self.counters.iter().map(|counter| counter.last).max();
        self.space_floor = self.space_floor.max(highest.unwrap_or(0)) + by;
        for counter in &mut self.counters {
            counter.last = counter.last.saturating_add(by);
            counter.floor = counter.last;
        }
        self.epochs += by;
        self.numbers += by;
        self.sequence += by;
        for (_, floor) in &mut self.region_floors {
            if let Some(raised) = Fence::from_number(floor.number().saturating_add(by)) {
                *floor = raised;
            }
        }
        self.abandon(u64::MAX);
        Outcome::Done
    }

    fn lease(&self, namespace: &Namespace, owner: &OwnerId) -> Option<&ModelLease> {
        self.leases
            .iter()
            .find(|lease| lease.namespace == *namespace && lease.owner == *owner)
    }

    /// Sets the lease of an owner; creates it if there is none.
    fn set_lease(
        &mut self,
        namespace: &Namespace,
        owner: &OwnerId,
        ttl: Ttl,
        holder: Option<Holder>,
    ) {
        // Since rules 2, leases and waiters share one numbering.
        if self.rules >= 2 {
            self.epochs = self.epochs.max(self.numbers);
        }
        self.epochs += 1;
        let (time, epoch) = (self.time, self.epochs);
        let cover = time + ttl.millis() + COVER_MS;
        match self
            .leases
            .iter_mut()
            .find(|lease| lease.namespace == *namespace && lease.owner == *owner)
        {
            Some(lease) => {
                (lease.ttl, lease.cover, lease.epoch) = (ttl, cover, epoch);
                lease.holder = holder.or(lease.holder.take());
            }
            None => self.leases.push(ModelLease {
                namespace: namespace.clone(),
                owner: owner.clone(),
                ttl,
                cover,
                epoch,
                born: epoch,
                asked_until: 0,
                holder,
                unclaimed: None,
            }),
        }
        let lease = self.lease_number(namespace, owner);
        self.lease_changes
            .push(LeaseChange::Set { lease, ttl, epoch });
    }

    /// Drops holds of an owner in a namespace, and the lease together with the last hold: R78
    /// (lease expiry and end).
    fn drop_holds(
        &mut self,
        namespace: &Namespace,
        owner: &OwnerId,
        end: HoldEnd,
        going: impl Fn(&Claim) -> bool,
    ) {
        let kind = match end {
            HoldEnd::Released => ChangeKind::Released,
            HoldEnd::Expired => ChangeKind::Expired,
            HoldEnd::Killed => ChangeKind::Killed,
        };
        while let Some(at) = self.claims.iter().position(|claim| {
            claim.namespace == *namespace && claim.owner == *owner && going(claim)
        }) {
            let fence = self.fence_of(&self.claims[at]);
            let claim = self.claims.remove(at);
            let holder = self.holder_of(namespace, owner);
            let what = Some((&claim.path, claim.mode));
            self.show(namespace, kind, owner, what, fence, holder);
            // The owner no longer has everything that was granted, so new subscribers must not get
            // the grant (R122).
            self.take_note(namespace, owner);
        }
        let bare = !self
            .claims
            .iter()
            .any(|claim| claim.namespace == *namespace && claim.owner == *owner);
        let before = self.leases.len();
        self.leases
            .retain(|lease| !(bare && lease.namespace == *namespace && lease.owner == *owner));
        if self.leases.len() < before {
            let lease = self.lease_number(namespace, owner);
            self.lease_changes.push(LeaseChange::Ended { lease });
        }
    }

    /// Returns the number of a lease. Numbers are permanent here.
    fn lease_number(&mut self, namespace: &Namespace, owner: &OwnerId) -> LeaseNumber {
        let known = |(place, who): &(Namespace, OwnerId)| place == namespace && who == owner;
        let at = self.lease_names.iter().position(known);
        let at = at.unwrap_or_else(|| {
            self.lease_names.push((namespace.clone(), owner.clone()));
            self.lease_names.len() - 1
        });
        LeaseNumber(u32::try_from(at).unwrap_or(u32::MAX))
    }

    /// Removes a waiter from the queue without a grant.
    fn dequeue(&mut self, at: usize) {
        let waiter = self.waiters.remove(at);
        self.show_waiter(&waiter, ChangeKind::Dequeued);
    }

    fn show_waiter(&mut self, waiter: &Waiter, kind: ChangeKind) {
        let acquire = &waiter.acquire;
        for request in waiter.new_requests() {
            let fence = waiter.fence.filter(|_| request.mode == Mode::Write);
            self.show(
                &acquire.route.namespace,
                kind,
                &acquire.owner,
                Some((&request.path, request.mode)),
                fence,
                acquire.holder.as_deref().cloned(),
            );
        }
    }

    fn holder_of(&self, namespace: &Namespace, owner: &OwnerId) -> Option<Holder> {
        self.lease(namespace, owner)
            .and_then(|lease| lease.holder.clone())
    }

    /// The owner has sent a command since its grant, so the grant is acknowledged (R122).
    fn take_note(&mut self, namespace: &Namespace, owner: &OwnerId) {
        for lease in &mut self.leases {
            if lease.namespace == *namespace && lease.owner == *owner {
                lease.unclaimed = None;
            }
        }
    }

    /// Emits an event. It gets its id here: R121 (event ids).
    fn tell(&mut self, owner: &OwnerId, namespace: Option<&Namespace>, kind: EventKind) {
        self.sequence += 1;
        self.last_id = (self.last_id + 1).max(self.wall.saturating_mul(1024));
        self.events.push(Event {
            sequence: self.sequence,
            id: self.last_id,
            owner: owner.clone(),
            namespace: namespace.cloned(),
            kind,
        });
    }

    /// Emits a change for watchers.
    fn show(
        &mut self,
        namespace: &Namespace,
        kind: ChangeKind,
        owner: &OwnerId,
        what: Option<(&Path, Mode)>,
        fence: Option<Fence>,
        holder: Option<Holder>,
    ) {
        let (path, mode) = what.unzip();
        self.lock_changes.push(LockChange {
            namespace: namespace.clone(),
            kind,
            owner: Some(owner.clone()),
            path: path.cloned(),
            mode,
            fence,
            holder,
        });
    }

    /// Returns a refusal if a later policy change than the request's route knows concerns one of
    /// its paths: R32 (re-resolution after policy change).
    fn outdated<'a>(
        &self,
        known: u64,
        paths: impl Iterator<Item = &'a Path> + Clone,
    ) -> Option<Refusal> {
        self.changed
            .iter()
            .filter(|(version, region)| {
                *version > known && paths.clone().any(|path| region.contains(path))
            })
            .map(|(version, _)| Refusal::Outdated { version: *version })
            .max()
    }

    fn answer(
        &self,
        namespace: &Namespace,
        key: &Option<Key>,
        like: &Command,
    ) -> Option<&ModelAnswer> {
        let key = key.as_ref()?;
        self.answers.iter().find(|answer| {
            answer.key == *key
                && answer.namespace == *namespace
                && core::mem::discriminant(&answer.request) == core::mem::discriminant(like)
        })
    }

    fn remember(
        &mut self,
        namespace: &Namespace,
        key: &Option<Key>,
        request: Command,
        result: ModelRemembered,
    ) {
        let Some(key) = key else { return };
        let kind = core::mem::discriminant(&request);
        self.answers.retain(|answer| {
            answer.key != *key
                || answer.namespace != *namespace
                || core::mem::discriminant(&answer.request) != kind
        });
        self.answers.push(ModelAnswer {
            key: key.clone(),
            namespace: namespace.clone(),
            request,
            result,
            until: self.time + REMEMBERED_MS,
        });
    }

    /// Returns the fence of a claim: that of its path, for a fenced write: R66 (where tokens are
    /// stored).
    fn fence_of(&self, claim: &Claim) -> Option<Fence> {
        if claim.mode == Mode::Write && !claim.is_permit() {
            self.mark(&claim.namespace, &claim.path)
        } else {
            None
        }
    }

    fn mark(&self, namespace: &Namespace, path: &Path) -> Option<Fence> {
        self.marks
            .iter()
            .find(|mark| mark.namespace == *namespace && mark.path == *path)
            .map(|mark| mark.fence)
    }
}

impl Waiter {
    fn new_requests(&self) -> impl Iterator<Item = &tenure_core::command::Request> + Clone {
        self.acquire
            .requests
            .iter()
            .filter(|request| request.state == RequestKind::New)
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        let requests = self.acquire.requests.iter().map(|request| &request.path);
        requests.chain(self.acquire.releases.iter().map(|hold| &hold.path))
    }
}

/// Whether a selection includes a namespace: R126–R128.
fn selects(selection: &Selection, namespace: &Namespace) -> bool {
    match selection {
        Selection::All => true,
        Selection::Only(domains) => domains.iter().any(|domain| match domain {
            Domain::Namespace(name) => name == namespace,
            Domain::Handler(handler) => handler.handler() == namespace.handler(),
        }),
    }
}

/// Returns a command without its route, because the same request may be resolved differently when
/// it is repeated.
fn without_route(command: &Command) -> Command {
    let mut command = command.clone();
    match &mut command {
        Command::Acquire(acquire) => {
            acquire.route.version = 0;
            acquire.route.algorithm = Algorithm::RecursiveRw;
        }
        Command::Release(release) => {
            release.route.version = 0;
            release.route.algorithm = Algorithm::RecursiveRw;
            // Only the fingerprint identifies the request: the part of it that lies in this
            // namespace may change.
            if let Some(whole) = &mut release.whole {
                whole.asked = None;
                release.holds.clear();
            }
        }
        _ => {}
    }
    command
}

fn related(one: &Namespace, other: &Namespace) -> bool {
    one == other || one.encloses(other) || other.encloses(one)
}

/// Whether a namespace may have a path in the region.
fn touches(region: &Region, namespace: &Namespace) -> bool {
    let exempt = region
        .except
        .iter()
        .any(|nested| nested == namespace || nested.encloses(namespace));
    related(&region.root, namespace) && !exempt
}
