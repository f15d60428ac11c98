//! The client of a shared log: runs the pure parts against a driver.
//!
//! ```text
//!   call ──▶ Attempt ──▶ driver ──▶ LogCopy ──▶ outcome
//!                                      └──▶ events ──▶ subscribers
//!   follow, while an owner of this process waits or holds:
//!     read ──▶ LogCopy     beat for waiters     Observer ──▶ append Expire
//! ```
//!
//! One call at a time: a call needs the state behind the last entry, and a second one would only take
//! its place away.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_base::{Lease, Token};
use tenure_core::event::{Event, LockChange};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::space::RULES;
use tenure_core::value::{OwnerId, QueueTtl, Stamp, Ttl};
use tenure_wire::v1;
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc};
use tonic::Status;

use crate::attempt::{Attempt, Fate, Learned, Rows};
use crate::driver::{Appended, DriverError, LogDriver, Tail};
use crate::entry::{Call, LeaseKey, UnreadableEntry};
use crate::observer::Observer;
use crate::replica::{CallOutcome, LogCopy};

/// How long a call is tried without an answer of the engine.
const CALL_LIMIT: Duration = Duration::from_secs(8);
/// Delays between tries.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How often the log is read without a hint, while an owner of this process waits, and while owners
/// only hold.
const WAITING_POLL: Duration = Duration::from_millis(200);
const HOLDING_POLL: Duration = Duration::from_secs(1);
/// A snapshot is stored after so many entries, or more if the state is large.
const TRIM_EVERY: u64 = 256;
/// A waiter that was not asked for again in this time belongs to no caller any more. A client asks
/// again every 15 s.
const FORGET_WAITER: Duration = Duration::from_secs(45);
/// The same for an owner: its holds are renewed more often than that, or have ended.
const FORGET_OWNER: Duration = Duration::from_secs(3600);

/// A client of one log. Clones share its state.
pub struct Engine<D: LogDriver>(Arc<Inner<D>>);

impl<D: LogDriver> Clone for Engine<D> {
    fn clone(&self) -> Engine<D> {
        Engine(Arc::clone(&self.0))
    }
}

impl<D: LogDriver> std::fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Engine")
            .field(&self.0.driver.describe())
            .finish()
    }
}

struct Inner<D> {
    driver: D,
    state: AsyncMutex<CopyState>,
    local: Mutex<Local>,
    /// There is something new to follow for.
    wake: Notify,
}

/// What is known of the log.
#[derive(Default)]
pub(crate) struct CopyState {
    pub(crate) replica: LogCopy,
    pub(crate) observer: Observer,
    clock: LeaseClock,
}

/// Lease time: the largest stamp of the log, plus what has passed on the own clock since it was read.
/// So it never runs ahead of the time that has really passed since the log began.
#[derive(Default)]
struct LeaseClock {
    base: u64,
    at: Duration,
}

impl LeaseClock {
    fn now(&self) -> u64 {
        self.base + millis(Lease::now().saturating_sub(self.at))
    }

    /// Takes note of a stamp that was read.
    fn read(&mut self, stamp: u64) {
        let now = match self.at.is_zero() {
            true => 0,
            false => self.now(),
        };
        self.base = now.max(stamp);
        self.at = Lease::now();
    }
}

impl CopyState {
    /// The lease time.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }
}

/// The callers of this process.
#[derive(Default)]
struct Local {
    waiting: HashMap<OwnerId, LocalWaiter>,
    /// Owners whose events are wanted, and when they were last used.
    owners: HashMap<OwnerId, Duration>,
    subscribers: Vec<mpsc::UnboundedSender<Event>>,
    watchers: Vec<mpsc::UnboundedSender<LockChange>>,
}

/// A queued request of this process.
struct LocalWaiter {
    paths: Vec<(Path, Mode)>,
    namespace: Namespace,
    ttl: Ttl,
    asked: Duration,
    beaten: Duration,
    /// When the request was last sent to the log, and its answer.
    logged: Duration,
    request: v1::AcquireRequest,
    answer: v1::AcquireResponse,
}

/// A request without what differs between repeats.
fn without_key(mut request: v1::AcquireRequest) -> v1::AcquireRequest {
    request.idempotency_key.clear();
    request
}

impl<D: LogDriver> Engine<D> {
    /// Creates a client. Nothing is read before the first call.
    pub fn new(driver: D) -> Engine<D> {
        let engine = Engine(Arc::new(Inner {
            driver,
            state: AsyncMutex::default(),
            local: Mutex::default(),
            wake: Notify::new(),
        }));
        tokio::spawn(follow(Arc::downgrade(&engine.0)));
        engine
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.0.driver
    }

    fn local(&self) -> MutexGuard<'_, Local> {
        self.0.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a query on a state that contains everything that was appended before this call.
    pub(crate) async fn read<T>(&self, query: impl FnOnce(&CopyState) -> T) -> Result<T, Status> {
        let mut state = self.0.state.lock().await;
        self.catch_up(&mut state, &[]).await?;
        Ok(query(&state))
    }

    /// Runs a query on the present copy of the state, which may be behind the log. Only the first
    /// one reads the log.
    pub(crate) async fn glance<T>(&self, query: impl FnOnce(&CopyState) -> T) -> Result<T, Status> {
        let mut state = self.0.state.lock().await;
        if !state.replica.is_founded() {
            self.catch_up(&mut state, &[]).await?;
        }
        Ok(query(&state))
    }

    /// Returns the time that the lease of a row has left at least, if this client observes it.
    pub(crate) async fn left(&self, key: &LeaseKey) -> Option<u64> {
        let state = self.0.state.lock().await;
        let now = millis(Lease::now());
        state.observer.left(&state.replica, key, now)
    }

    /// Appends a call, and returns its outcome. `write` makes the call from the state right before
    /// it; it is called again if another entry comes first.
    pub(crate) async fn call(
        &self,
        write: impl Fn(&LogCopy) -> Result<(Call, Rows), Status>,
    ) -> Result<CallOutcome, Status> {
        let mut state = self.0.state.lock().await;
        if !state.replica.is_founded() {
            self.catch_up(&mut state, &[]).await?;
        }
        if !state.replica.is_founded() {
            self.found(&mut state).await?;
        }
        let outcome = self.append(&mut state, write).await?;
        self.trim(&state);
        Ok(outcome)
    }

    async fn append(
        &self,
        state: &mut CopyState,
        write: impl Fn(&LogCopy) -> Result<(Call, Rows), Status>,
    ) -> Result<CallOutcome, Status> {
        let until = Lease::now() + CALL_LIMIT;
        let mut attempt = Attempt::new(new_id());
        let mut pause = FIRST_PAUSE;
        let mut trouble = "the engine accepts no entry".to_owned();
        loop {
            let stamp = Stamp {
                time: state.now(),
                wall: wall(),
            };
            let append = attempt.append(&state.replica, stamp, &write)?;
            let appended = self.0.driver.append(&append).await;
            let tail = match appended {
                Ok(Appended::Done) => Ok(Tail {
                    entries: vec![(append.index, append.entry)],
                    ..Tail::default()
                }),
                Ok(Appended::Taken) => {
                    let next = state.replica.index() + 1;
                    self.0.driver.read(next, &[]).await
                }
                Ok(Appended::Changed) => {
                    return Err(Status::aborted("the lease was renewed meanwhile"));
                }
                Err(DriverError::Unanswered(what)) => {
                    trouble = what;
                    let next = state.replica.index() + 1;
                    self.0.driver.read(next, &[]).await
                }
                Err(error) => Err(error),
            };
            let tail = match tail {
                Ok(tail) => tail,
                // The next append is the same one, and its answer tells.
                Err(DriverError::Unanswered(what)) => {
                    trouble = what;
                    Tail::default()
                }
                Err(error) => return Err(failed(&error)),
            };
            let learned = self.learn(state, &attempt, &tail)?;
            match learned.fate {
                Fate::Applied(outcome) => return Ok(outcome),
                Fate::Open if !learned.done.is_empty() || learned.has_gap => {}
                // Nothing is new, and the entry is not there: the engine is in trouble.
                Fate::Open => {
                    if Lease::now() + pause > until {
                        return Err(unanswered(&trouble));
                    }
                    tokio::time::sleep(tenure_base::jittered(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Fate::Unknown => {
                    return Err(unanswered("the log was trimmed before the entry was seen"));
                }
            }
        }
    }

    /// Writes the first entry of a log, unless another client does.
    async fn found(&self, state: &mut CopyState) -> Result<(), Status> {
        let call = Call::Found {
            rules: RULES,
            prefix_segments: 1,
            default: Algorithm::RecursiveRw,
        };
        let found = self.append(state, |replica| match replica.is_founded() {
            false => Ok((call.clone(), Rows::default())),
            true => Err(Status::already_exists("the log has its first entry")),
        });
        match found.await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == tonic::Code::AlreadyExists => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Reads the log up to its end. Returns the versions of rows.
    async fn catch_up(&self, state: &mut CopyState, rows: &[LeaseKey]) -> Result<(), Status> {
        let next = state.replica.index() + 1;
        let tail = self.0.driver.read(next, rows).await;
        let tail = tail.map_err(|error| failed(&error))?;
        // After the answer: an observer counts from here.
        let read = millis(Lease::now());
        self.learn(state, &Attempt::new(0), &tail)?;
        if !rows.is_empty() {
            state.observer.see(rows, &tail.versions, read);
        }
        Ok(())
    }

    /// Applies a part of the log and reports its events.
    fn learn(
        &self,
        state: &mut CopyState,
        attempt: &Attempt,
        tail: &Tail,
    ) -> Result<Learned, Status> {
        let learned = attempt.learn(&mut state.replica, tail);
        state.clock.read(state.replica.time());
        let mut learned = learned.map_err(unreadable)?;
        let mut local = self.local();
        if learned.has_gap {
            if !local.watchers.is_empty() {
                state.replica.watch();
            }
            // A watcher that missed changes must begin again.
            local.watchers.clear();
        }
        for done in &mut learned.done {
            for event in done.events.drain(..) {
                if local.owners.contains_key(&event.owner) {
                    local
                        .subscribers
                        .retain(|subscriber| subscriber.send(event.clone()).is_ok());
                }
            }
            for change in done.changes.drain(..) {
                local
                    .watchers
                    .retain(|watcher| watcher.send(change.clone()).is_ok());
            }
        }
        Ok(learned)
    }

    /// Stores a snapshot now and then, in the background.
    fn trim(&self, state: &CopyState) {
        let index = state.replica.index();
        let leases = state.replica.space().counts().leases;
        let every = TRIM_EVERY * (leases / (8 * TRIM_EVERY) + 1).next_power_of_two();
        if index.is_multiple_of(every) {
            let snapshot = state.replica.snapshot();
            let engine = self.clone();
            tokio::spawn(async move {
                // A failed trim is made up for by the next one.
                let _ = engine.0.driver.trim(index, &snapshot).await;
            });
        }
    }

    /// Raises the beat rows of leases, then reads the log: an expiry that came first is in it. The
    /// query gets which rows were there.
    pub(crate) async fn beat<T>(
        &self,
        rows: &[LeaseKey],
        query: impl FnOnce(&CopyState, &[bool]) -> T,
    ) -> Result<T, Status> {
        let there = self.0.driver.beat(rows).await;
        let there = there.map_err(|error| failed(&error))?;
        self.read(|state| query(state, &there)).await
    }

    /// Returns the answer to an equal request of an owner that waits, and the row of its place in the
    /// queue. `None` if the place must be renewed in the log.
    pub(crate) fn queued(
        &self,
        request: &v1::AcquireRequest,
    ) -> Option<(v1::AcquireResponse, LeaseKey)> {
        let mut local = self.local();
        let (owner, waiter) = local.waiting.get_key_value(request.owner_id.as_str())?;
        let lasts = match request.queue_ttl_ms {
            0 => QueueTtl::DEFAULT_MILLIS,
            lasts => lasts,
        };
        let is_fresh = millis(Lease::now().saturating_sub(waiter.logged)) < lasts / 3;
        let is_equal = waiter.request == without_key(request.clone());
        let row = LeaseKey {
            owner: owner.clone(),
            namespace: waiter.namespace.clone(),
        };
        let answer = waiter.answer.clone();
        if !is_fresh || !is_equal {
            return None;
        }
        if let Some(waiter) = local.waiting.get_mut(request.owner_id.as_str()) {
            waiter.asked = Lease::now();
        }
        Some((answer, row))
    }

    /// Returns the events of all owners that were [used](Engine::uses).
    pub(crate) fn subscribe(&self) -> mpsc::UnboundedReceiver<Event> {
        let (sender, events) = mpsc::unbounded_channel();
        self.local().subscribers.push(sender);
        self.0.wake.notify_one();
        events
    }

    /// Takes note of an owner of this process: its events are wanted.
    pub(crate) fn uses(&self, owner: &OwnerId) {
        let mut local = self.local();
        let before = local.owners.insert(owner.clone(), Lease::now());
        drop(local);
        if before.is_none() {
            self.0.wake.notify_one();
        }
    }

    /// Takes note of a request that waits: its row is kept alive and its blockers are observed.
    pub(crate) fn waits(
        &self,
        owner: &OwnerId,
        namespace: Namespace,
        paths: Vec<(Path, Mode)>,
        ttl: Ttl,
        sent: Duration,
        (request, answer): (v1::AcquireRequest, v1::AcquireResponse),
    ) {
        let waiter = LocalWaiter {
            paths,
            namespace,
            ttl,
            asked: Lease::now(),
            beaten: sent,
            logged: sent,
            request: without_key(request),
            answer,
        };
        self.local().waiting.insert(owner.clone(), waiter);
        self.0.wake.notify_one();
    }

    /// Takes note that an owner waits no more.
    pub(crate) fn waits_no_more(&self, owner: &OwnerId) {
        self.local().waiting.remove(owner);
    }

    /// Returns the changes from now on, behind what `snapshot` returns for the present state.
    pub(crate) async fn watch<T>(
        &self,
        snapshot: impl FnOnce(&CopyState) -> T,
    ) -> Result<(T, mpsc::UnboundedReceiver<LockChange>), Status> {
        let mut state = self.0.state.lock().await;
        self.catch_up(&mut state, &[]).await?;
        state.replica.watch();
        let present = snapshot(&state);
        let (sender, changes) = mpsc::unbounded_channel();
        self.local().watchers.push(sender);
        self.0.wake.notify_one();
        Ok((present, changes))
    }

    /// What to do for the owners of this process now.
    fn duties(&self) -> Duties {
        let now = Lease::now();
        let mut local = self.local();
        local
            .waiting
            .retain(|_, waiter| now.saturating_sub(waiter.asked) < FORGET_WAITER);
        local
            .owners
            .retain(|_, used| now.saturating_sub(*used) < FORGET_OWNER);
        local
            .subscribers
            .retain(|subscriber| !subscriber.is_closed());
        local.watchers.retain(|watcher| !watcher.is_closed());
        let is_asked_for = !local.subscribers.is_empty() && !local.owners.is_empty();
        let poll = match (local.waiting.is_empty(), &local.watchers[..]) {
            (false, _) => Some(WAITING_POLL),
            (true, [_, ..]) => Some(WAITING_POLL),
            (true, []) if is_asked_for => Some(HOLDING_POLL),
            (true, []) => None,
        };
        let mut duties = Duties {
            poll,
            beats: Vec::new(),
            wanted: Vec::new(),
        };
        for (owner, waiter) in &mut local.waiting {
            let third = Duration::from_millis(waiter.ttl.millis() / 3);
            if now.saturating_sub(waiter.beaten) >= third {
                waiter.beaten = now;
                duties.beats.push(LeaseKey {
                    owner: owner.clone(),
                    namespace: waiter.namespace.clone(),
                });
            }
            duties.poll = duties.poll.map(|poll| poll.min(third.max(FIRST_PAUSE)));
            let paths = waiter.paths.iter();
            let wanted = paths.map(|(path, mode)| (owner.clone(), path.clone(), *mode));
            duties.wanted.extend(wanted);
        }
        duties
    }

    /// One round of following.
    async fn round(&self, duties: Duties) -> Result<(), Status> {
        if !duties.beats.is_empty() {
            let beaten = self.0.driver.beat(&duties.beats).await;
            beaten.map_err(|error| failed(&error))?;
        }
        let mut state = self.0.state.lock().await;
        if !state.replica.is_founded() {
            return self.catch_up(&mut state, &[]).await;
        }
        // The leases that this process waits for.
        let mut rows: HashSet<LeaseKey> = HashSet::new();
        let (now, replica) = (state.now(), &state.replica);
        for (owner, path, mode) in &duties.wanted {
            let route = replica.system().table().route(path);
            let explained = replica.space().explain(&route, owner, path, *mode, now);
            let blockers = explained.blockers.iter().map(|blocker| &blocker.owner);
            for blocker in blockers {
                for namespace in replica.space().owner_namespaces(blocker) {
                    rows.insert(LeaseKey {
                        owner: blocker.clone(),
                        namespace,
                    });
                }
            }
        }
        let rows: Vec<LeaseKey> = rows.into_iter().collect();
        self.catch_up(&mut state, &rows).await?;
        if rows.is_empty() {
            state.observer = Observer::default();
        }
        for ended in state.observer.ended(&state.replica, millis(Lease::now())) {
            let rows = Rows {
                unchanged: vec![(ended.key.clone(), ended.version)],
                ..Rows::default()
            };
            let call = Call::Expire(vec![ended.expire.clone()]);
            let expired = self.append(&mut state, |replica| {
                let lease = replica
                    .space()
                    .lease(&ended.key.namespace, &ended.key.owner);
                match lease {
                    Some(lease) if lease.epoch == ended.expire.epoch => {
                        Ok((call.clone(), rows.clone()))
                    }
                    _ => Err(Status::aborted("the lease has changed")),
                }
            });
            match expired.await {
                Ok(_) => self.trim(&state),
                Err(status) if status.code() == tonic::Code::Aborted => {}
                Err(status) => return Err(status),
            }
        }
        // A waiter whose time is over makes room for those behind it.
        let is_due = |state: &CopyState| {
            let end = state.replica.space().next_waiter_end();
            end.is_some_and(|end| end <= state.now()) || state.replica.space().has_pending()
        };
        if !duties.wanted.is_empty() && is_due(&state) {
            self.append(&mut state, |_| Ok((Call::Tick, Rows::default())))
                .await?;
            self.trim(&state);
        }
        Ok(())
    }
}

/// What a round of following has to do.
struct Duties {
    /// How long to wait for a hint at most. `None`: nothing is to be followed.
    poll: Option<Duration>,
    /// Rows of waiters of this process.
    beats: Vec<LeaseKey>,
    /// What owners of this process wait for.
    wanted: Vec<(OwnerId, Path, Mode)>,
}

/// Follows the log while an owner of this process needs it. Ends with the engine.
async fn follow<D: LogDriver>(inner: Weak<Inner<D>>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(engine) = inner.upgrade().map(Engine) else {
            return;
        };
        let duties = engine.duties();
        match duties.poll {
            None => {
                let woken = engine.0.wake.notified();
                // Wakes now and then, to see whether the engine is still used.
                let _ = tokio::time::timeout(HOLDING_POLL, woken).await;
                continue;
            }
            Some(poll) => match engine.round(duties).await {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    tokio::select! {
                        () = engine.0.driver.watch(poll) => {}
                        () = engine.0.wake.notified() => {}
                    }
                }
                Err(_) => {
                    tokio::time::sleep(tenure_base::jittered(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            },
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock, for event ids only.
fn wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    millis(since.unwrap_or_default())
}

/// A random id, never zero.
fn new_id() -> u128 {
    let bytes = Token::random().bytes();
    let mut id = [0_u8; 16];
    for (to, from) in id.iter_mut().zip(bytes) {
        *to = from;
    }
    u128::from_le_bytes(id).max(1)
}

fn unanswered(what: &str) -> Status {
    Status::unavailable(format!(
        "{what}; the request may have been applied: repeat it with the same idempotency key"
    ))
}

fn failed(error: &DriverError) -> Status {
    match error {
        DriverError::Unanswered(what) => Status::unavailable(what.clone()),
        DriverError::Refused(what) => Status::permission_denied(what.clone()),
        DriverError::Unprepared(what) => Status::unimplemented(what.clone()),
    }
}

fn unreadable(error: UnreadableEntry) -> Status {
    Status::unimplemented(error.to_string())
}
