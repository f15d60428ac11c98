//! Process-wide lock table: one lock space, and the guards and waiters of this process.
//!
//! Release requests and losses are reported after the table is unlocked, because a listener may
//! call the guard, which locks the table.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure_base::Token;
use tenure_core::command::{self, Acquire, Command, Release, RequestKind as Taking, Selection};
use tenure_core::event::{Event, EventKind};
use tenure_core::outcome::{AcquireOutcome, Applied, Outcome};
use tenure_core::path::Path;
use tenure_core::policy::{Algorithm, Mode as CoreMode};
use tenure_core::query::HeldLock;
use tenure_core::space::{HashSeed, Space, SpaceLimits};
use tenure_core::value::{Fence as CoreFence, OwnerId, QueueTtl, Stamp};
use tokio::sync::{Mutex as Turn, oneshot};

use super::convert::{holder_in, longest, route};
use super::inspect::tell_watcher;
use crate::error::LostCause;
use crate::inspect::ChangeStream;
use crate::request::Request;
use crate::signals::{ReleaseRequest, Signals};
use crate::values::{Mode, Wait, whole_millis};

/// Lifetime of a queue entry in the space. Longer waits renew it.
const PLACE_LASTS: Duration = Duration::from_secs(2 * 86_400);

pub(super) static MEMORY: LazyLock<MemoryTable> = LazyLock::new(MemoryTable::new);

pub(super) struct MemoryTable {
    pub(super) born: Instant,
    pub(super) inner: Mutex<TableInner>,
}

pub(super) struct TableInner {
    pub(super) space: Space,
    pub(super) owners: HashMap<OwnerId, OwnerEntry>,
    pub(super) watchers: Vec<(Path, ChangeStream)>,
    /// Signals to send after the table is unlocked.
    update: Vec<MemoryNotice>,
}

enum MemoryNotice {
    Asked(Arc<Signals>, ReleaseRequest),
    Broken(Arc<Signals>),
}

/// The locked table. Dropping it unlocks the table and then sends the collected signals.
pub(super) struct LockedTable {
    inner: Option<MutexGuard<'static, TableInner>>,
}

impl Deref for LockedTable {
    type Target = TableInner;

    fn deref(&self) -> &TableInner {
        self.inner.as_ref().expect("locked until it is dropped")
    }
}

impl DerefMut for LockedTable {
    fn deref_mut(&mut self) -> &mut TableInner {
        self.inner.as_mut().expect("locked until it is dropped")
    }
}

impl Drop for LockedTable {
    fn drop(&mut self) {
        let update = std::mem::take(&mut self.update);
        self.inner = None;
        for update in update {
            match update {
                MemoryNotice::Asked(signals, request) => signals.ask(&request),
                MemoryNotice::Broken(signals) => {
                    signals.lose(LostCause::Broken, "the lock was broken")
                }
            }
        }
    }
}

/// The guards and the waiter of one owner.
#[derive(Default)]
pub(super) struct OwnerEntry {
    pub(super) holds: Vec<Arc<OwnerClaim>>,
    pub(super) waiting: Option<oneshot::Sender<WaitResult>>,
    /// Serializes the acquires of a session: R83 (one pending entry per namespace).
    pub(super) turn: Arc<Turn<()>>,
}

pub(super) struct OwnerClaim {
    pub(super) path: Path,
    pub(super) mode: CoreMode,
    /// The newest fence, zero for none. A later acquire of the same session raises it: R69 (OK
    /// stores the token).
    pub(super) fence: AtomicU64,
    /// There is a guard for it; before that the claim only waits.
    pub(super) is_granted: AtomicBool,
    pub(super) signals: Arc<Signals>,
}

/// How a wait ended.
pub(super) enum WaitResult {
    Granted(Option<CoreFence>),
    Killed,
}

impl MemoryTable {
    pub(super) fn new() -> MemoryTable {
        let seed = u64::from_ne_bytes(Token::random().bytes()[..8].try_into().unwrap_or_default());
        MemoryTable {
            born: Instant::now(),
            inner: Mutex::new(TableInner {
                space: Space::new(SpaceLimits::default(), HashSeed(seed)),
                owners: HashMap::new(),
                watchers: Vec::new(),
                update: Vec::new(),
            }),
        }
    }

    pub(super) fn lock(&'static self) -> LockedTable {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        LockedTable { inner: Some(inner) }
    }

    pub(super) fn turn(&'static self, owner: &OwnerId) -> Arc<Turn<()>> {
        let mut inner = self.lock();
        Arc::clone(&inner.owners.entry(owner.clone()).or_default().turn)
    }

    pub(super) fn time(&self) -> u64 {
        whole_millis(self.born.elapsed())
    }
}

impl TableInner {
    pub(super) fn acquire(
        &mut self,
        owner: &OwnerId,
        claims: &[Arc<OwnerClaim>],
        request: &Request,
        asking: &ReleaseRequest,
    ) -> AcquireOutcome {
        // There are no policies in memory: the mode of the request selects the algorithm.
        let (algorithm, permits) = match request.mode {
            Mode::Permit(of) => (Algorithm::Semaphore, Some(of)),
            Mode::Exclusive | Mode::Shared | Mode::SharedTree => (Algorithm::RecursiveRw, None),
        };
        let wait = match (request.wait, request.ask) {
            (Wait::No, _) => command::WaitMode::No,
            (Wait::For(_) | Wait::Forever, true) => command::WaitMode::QueueAndAsk,
            (Wait::For(_) | Wait::Forever, false) => command::WaitMode::Queue,
        };
        let requests = claims.iter().map(|claim| command::Request {
            path: claim.path.clone(),
            mode: claim.mode,
            state: Taking::New,
            permits,
        });
        let acquire = Acquire {
            route: route(algorithm),
            owner: owner.clone(),
            ttl: longest(),
            queue_ttl: QueueTtl::from_millis(whole_millis(PLACE_LASTS))
                .expect("two days are less than seven"),
            requests: requests.collect(),
            releases: Vec::new(),
            fence: None,
            key: None,
            wait,
            holder: Some(Box::new(holder_in(&request.holder))),
        };
        // Registered before the command is applied: its own events must find the claim.
        for claim in claims {
            self.remember(owner, claim);
        }
        let outcome = match self.apply(Command::Acquire(acquire), Some(asking)) {
            Outcome::Acquire(outcome) => outcome,
            other => unreachable!("an acquire is answered as one: {other:?}"),
        };
        match outcome {
            AcquireOutcome::Granted { .. } | AcquireOutcome::Queued(_) => {}
            AcquireOutcome::Conflict(_)
            | AcquireOutcome::Lost { .. }
            | AcquireOutcome::Refused(_) => {
                for claim in claims {
                    self.forget(owner, claim);
                }
            }
        }
        outcome
    }

    /// Records that a claim has a guard now.
    pub(super) fn granted(
        &mut self,
        owner: &OwnerId,
        claim: &Arc<OwnerClaim>,
        fence: Option<CoreFence>,
    ) {
        self.move_fence(owner, claim, fence);
        claim.is_granted.store(true, Ordering::Relaxed);
        // It may have been broken between the grant and this call.
        if !self.holds(owner, claim) {
            let signals = Arc::clone(&claim.signals);
            self.update.push(MemoryNotice::Broken(signals));
        }
    }

    fn move_fence(&self, owner: &OwnerId, claim: &OwnerClaim, fence: Option<CoreFence>) {
        let number = fence.map_or(0, CoreFence::number);
        let held = self
            .owners
            .get(owner)
            .into_iter()
            .flat_map(|owner_entry| &owner_entry.holds);
        for same in held.filter(|held| held.path == claim.path && held.mode == claim.mode) {
            same.fence.store(number, Ordering::Relaxed);
        }
    }

    pub(super) fn wait(&mut self, owner: &OwnerId) -> oneshot::Receiver<WaitResult> {
        let (sender, told) = oneshot::channel();
        self.owners.entry(owner.clone()).or_default().waiting = Some(sender);
        told
    }

    pub(super) fn remember(&mut self, owner: &OwnerId, claim: &Arc<OwnerClaim>) {
        let owner_entry = self.owners.entry(owner.clone()).or_default();
        if !owner_entry
            .holds
            .iter()
            .any(|held| Arc::ptr_eq(held, claim))
        {
            owner_entry.holds.push(Arc::clone(claim));
        }
    }

    pub(super) fn forget(&mut self, owner: &OwnerId, claim: &Arc<OwnerClaim>) {
        let Some(owner_entry) = self.owners.get_mut(owner) else {
            return;
        };
        owner_entry.holds.retain(|held| !Arc::ptr_eq(held, claim));
        // Keep the entry of a session while an acquire uses its turn.
        if owner_entry.holds.is_empty() && Arc::strong_count(&owner_entry.turn) == 1 {
            self.owners.remove(owner);
        }
    }

    pub(super) fn holds(&self, owner: &OwnerId, claim: &OwnerClaim) -> bool {
        let held = self.space.owner_locks(owner, &Selection::All).locks;
        held.iter()
            .any(|lock| lock.path == claim.path && lock.mode == claim.mode)
    }

    /// Removes a claim. Returns whether it was held.
    pub(super) fn release(&mut self, owner: &OwnerId, claim: &Arc<OwnerClaim>) -> bool {
        let was_held = self.holds(owner, claim);
        self.forget(owner, claim);
        let others = self.owners.get(owner).is_some_and(|owner_entry| {
            let same =
                |other: &Arc<OwnerClaim>| other.path == claim.path && other.mode == claim.mode;
            owner_entry.holds.iter().any(same)
        });
        // A session may hold one path twice: only the last guard releases it.
        if !others {
            let release = Release {
                route: route(Algorithm::RecursiveRw),
                owner: owner.clone(),
                holds: vec![command::Hold {
                    path: claim.path.clone(),
                    mode: claim.mode,
                }],
                key: None,
                whole: None,
            };
            self.apply(Command::Release(release), None);
        }
        was_held
    }

    /// Applies a command and distributes its events. `asking` describes the requester of release
    /// requests.
    pub(super) fn apply(&mut self, command: Command, asking: Option<&ReleaseRequest>) -> Outcome {
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
        let Some(owner_entry) = self.owners.get_mut(&event.owner) else {
            return;
        };
        let is_held = |claim: &&Arc<OwnerClaim>| {
            let same = |lock: &HeldLock| lock.path == claim.path && lock.mode == claim.mode;
            still.iter().any(same)
        };
        match event.kind {
            EventKind::Grant { fence } => {
                if let Some(waiting) = owner_entry.waiting.take() {
                    // If the receiver was dropped, its withdrawal finds the grant.
                    let _ = waiting.send(WaitResult::Granted(fence));
                }
            }
            EventKind::Revoke => {
                let request = asking.cloned().unwrap_or_default();
                let asked = owner_entry.holds.iter().filter(is_held);
                let asked = asked
                    .map(|claim| MemoryNotice::Asked(Arc::clone(&claim.signals), request.clone()));
                self.update.extend(asked);
            }
            EventKind::Killed => {
                let is_broken = |claim: &&Arc<OwnerClaim>| {
                    claim.is_granted.load(Ordering::Relaxed) && !is_held(claim)
                };
                let broken = owner_entry.holds.iter().filter(is_broken);
                let broken = broken.map(|claim| MemoryNotice::Broken(Arc::clone(&claim.signals)));
                self.update.extend(broken);
                if let Some(waiting) = owner_entry.waiting.take() {
                    let _ = waiting.send(WaitResult::Killed);
                }
            }
        }
    }
}
