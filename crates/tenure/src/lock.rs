//! Builders for locks, the same for every backend: one lock ([`Lock`]) or several at once
//! ([`LockAll`]).

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_base::Token;

use crate::address::{Address, IntoAddress};
use crate::backend;
use crate::capabilities::{Capabilities, Need};
use crate::error::{Busy, Error};
use crate::guard::{Guard, Guards};
use crate::request::Request;
use crate::tenure::Tenure;
use crate::values::{Mode, Wait};

/// A builder for one lock.
///
/// `acquire` refuses options that the backend does not support before it changes anything.
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before `acquire`"]
pub struct Lock {
    tenure: Tenure,
    request: Request,
}

/// A builder for several locks that are acquired all or none.
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before `acquire`"]
pub struct LockAll {
    tenure: Tenure,
    requests: Vec<Request>,
    /// The common owner of all paths of trees, if no session gives one. Otherwise the lock on a
    /// parent would block the lock on its child.
    owner: Token,
}

/// The setters that all builders share, async and blocking. Each setter changes all requests of the
/// builder.
macro_rules! setters {
    ($type:ty) => {
        impl $type {
            /// Acquires in shared mode, together with other shared holders.
            pub fn shared(self) -> Self {
                self.mode(Mode::Shared)
            }

            /// Acquires in exclusive mode. This is the default.
            pub fn exclusive(self) -> Self {
                self.mode(Mode::Exclusive)
            }

            /// Acquires the path and everything below it in shared mode.
            pub fn shared_tree(self) -> Self {
                self.mode(Mode::SharedTree)
            }

            /// Acquires one of `of` permits. All holders of a path must give the same number.
            pub fn permit(self, of: NonZeroU32) -> Self {
                self.mode(Mode::Permit(of))
            }

            /// Sets the mode.
            pub fn mode(self, mode: Mode) -> Self {
                self.each(|request| request.mode = mode)
            }

            /// Sets the maximum time to wait. Default: no limit.
            pub fn wait(self, time: Duration) -> Self {
                self.wait_limit(Wait::For(time))
            }

            /// Fails with [`Error::Busy`] instead of waiting.
            pub fn no_wait(self) -> Self {
                self.wait_limit(Wait::No)
            }

            /// Sets whether and how long to wait.
            pub fn wait_limit(self, wait: Wait) -> Self {
                self.each(|request| request.wait = wait)
            }

            /// Sets the time after which the lease ends without a renewal. Tenure renews by itself.
            ///
            /// `acquire` fails with [`Error::Unsupported`] where the backend has no leases.
            pub fn ttl(self, ttl: Duration) -> Self {
                self.each(|request| request.ttl = Some(ttl))
            }

            /// Asks the holder to release the lock while this request waits.
            pub fn ask(self) -> Self {
                self.each(|request| request.ask = true)
            }

            /// Sets what the lock is for. Waiters see it.
            pub fn purpose(self, purpose: impl Into<String>) -> Self {
                let purpose = purpose.into();
                self.each(|request| request.holder.purpose.clone_from(&purpose))
            }

            /// Adds a label for people. Backends without labels ignore it.
            pub fn label(self, key: impl Into<String>, value: impl Into<String>) -> Self {
                let (key, value) = (key.into(), value.into());
                self.each(|request| {
                    request.holder.labels.insert(key.clone(), value.clone());
                })
            }

            /// Requests a fence. Lock files assign one only on request; the other backends always
            /// do.
            pub fn fenced(self) -> Self {
                self.each(|request| request.fenced = true)
            }

            /// Fails instead of waiting if the wait would close a cycle of owners: E5 (refuse on
            /// deadlock). Daemon only.
            pub fn refuse_deadlock(self) -> Self {
                self.each(|request| request.refuse_deadlock = true)
            }

            /// Requires a capability. `acquire` fails with [`Error::Unsupported`] if the backend
            /// does not have it.
            pub fn require(self, need: Need) -> Self {
                self.each(|request| {
                    request.needs.push(need);
                    request.fenced |= need == Need::Fence;
                })
            }

            /// Makes a hold that outlives this process: C13 (holds for scripts).
            ///
            /// A lock file is then bound to the process `pid`; on other backends the hold ends with
            /// its ttl. See [`Guard::into_hold`].
            pub fn follows(self, pid: u32) -> Self {
                self.each(|request| request.follows = Some(pid))
            }

            /// Lets a handle cancel a blocking wait for lock files. Futures are cancelled by
            /// dropping them.
            #[cfg(feature = "files")]
            #[doc(hidden)]
            pub fn cancelled_by(self, cancel: tenure_files::Cancel) -> Self {
                self.each(|request| request.cancel = Some(cancel.clone()))
            }

            /// Sets a callback that reports the blocker and the queue position while the request
            /// waits.
            pub fn on_wait(self, tell: impl Fn(&Busy) + Send + Sync + 'static) -> Self {
                let tell: crate::request::OnWait = Arc::new(tell);
                self.each(|request| request.on_wait = Some(Arc::clone(&tell)))
            }
        }
    };
}

pub(crate) use setters;

setters!(Lock);
setters!(LockAll);

impl Lock {
    pub(crate) fn new(tenure: Tenure, request: Request) -> Lock {
        Lock { tenure, request }
    }

    /// Returns the address to lock.
    pub fn place(&self) -> &Address {
        &self.request.place
    }

    pub(crate) fn each(mut self, change: impl Fn(&mut Request)) -> Lock {
        change(&mut self.request);
        self
    }

    /// Returns the blocking form of this builder.
    pub fn blocking(self) -> crate::blocking::Lock {
        crate::blocking::Lock(self)
    }

    /// Adds a second lock; both are held together (`--also`).
    ///
    /// This supports the migration from one backend to another while some programs still use the
    /// old address.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let guards = tenure::lock("mem:new-place")?.also("mem:old-place")?.acquire().await?;
    /// guards.check().await?;
    /// guards.release().await?;
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn also(self, place: impl IntoAddress) -> Result<LockAll, Error> {
        let mut other = self.request.clone();
        other.place = place.into_address()?;
        let requests = vec![self.request, other];
        Ok(LockAll::new(self.tenure, requests))
    }

    /// Acquires the lock.
    ///
    /// Cancel safe: a future that is dropped leaves no record, no pending request and no queue
    /// entry.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] or [`Error::TimedOut`] if the lock is held; [`Error::Unsupported`] or
    /// [`Error::Input`] if the backend does not support the options; [`Error::Unavailable`] if the
    /// daemon or the store cannot be reached.
    pub async fn acquire(self) -> Result<Guard, Error> {
        backend::acquire(&self.tenure, self.request).await
    }

    /// Acquires the lock and blocks this thread. Lock files need no runtime.
    pub(crate) fn acquire_blocking(self) -> Result<Guard, Error> {
        backend::acquire_blocking(&self.tenure, self.request)
    }

    /// Acquires the lock, runs `body`, and releases the lock.
    ///
    /// If the lock is lost, `body` is dropped at its next await and the result is [`Error::Lost`],
    /// never the value of `body`.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let answer = tenure::lock("mem:answer")?
    ///     .with(async |guard| {
    ///         guard.check().await?;
    ///         Ok::<_, tenure::Error>(42)
    ///     })
    ///     .await?;
    /// assert_eq!(answer, 42);
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn with<T, E: From<Error>>(
        self,
        body: impl AsyncFnOnce(&Guard) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.acquire().await?;
        match guard.while_held(body(&guard)).await {
            Err(lost) => Err(E::from(lost.into())),
            Ok(result) => match guard.release().await {
                Err(lost @ Error::Lost(_)) => Err(E::from(lost)),
                // The work was done under the lock, so its result counts. A hold that could not be
                // released ends with its lease or its process.
                Ok(()) | Err(_) => result,
            },
        }
    }
}

impl LockAll {
    pub(crate) fn new(tenure: Tenure, requests: Vec<Request>) -> LockAll {
        LockAll {
            tenure,
            requests,
            owner: Token::random(),
        }
    }

    pub(crate) fn each(mut self, change: impl Fn(&mut Request)) -> LockAll {
        self.requests.iter_mut().for_each(change);
        self
    }

    /// Returns the blocking form of this builder.
    pub fn blocking(self) -> crate::blocking::LockAll {
        crate::blocking::LockAll(self)
    }

    /// Acquires all locks or none: C6 (several locks at once).
    ///
    /// The locks are acquired in the order of their addresses, so two callers with reversed lists
    /// cannot deadlock. Duplicates count once. The time limit applies to all locks together.
    ///
    /// Paths of one namespace of a daemon, and names in memory, are acquired in one step: no other
    /// client sees a part of them taken. Paths of several namespaces are acquired namespace by
    /// namespace, in the order of the namespaces' names.
    pub async fn acquire(mut self) -> Result<Guards, Error> {
        // Anew for each acquire: clones of a builder must exclude each other.
        self.owner = Token::random();
        let (tenure, steps) = (self.tenure.clone(), self.in_order()?);
        let wait_limit = SharedDeadline::new(&steps);
        let mut taken = TakenLocks::default();
        for step in steps {
            let request = wait_limit.left(step.request.clone());
            let guards = match step.places.len() {
                1 => backend::acquire(&tenure, request)
                    .await
                    .map(|guard| vec![guard]),
                _ => backend::acquire_together(&tenure, request, step.wheres()).await,
            };
            match guards {
                Ok(guards) => taken.add(&step, guards),
                Err(error) => {
                    backend::give_up(taken.guards()).await;
                    return Err(error);
                }
            }
        }
        Ok(Guards::new(taken.guards(), self))
    }

    /// Acquires one more lock, with the options and the owner of the first.
    pub(crate) async fn one_more(&self, place: Address) -> Result<Guard, Error> {
        let Some(mut request) = self.requests.first().cloned() else {
            let what = "cannot be added: there are no options to acquire it with";
            return Err(Error::input(place.to_string(), what));
        };
        request.place = place;
        self.set_owner(&mut request);
        let here = Capabilities::of(&request.place);
        request.ttl = request.ttl.filter(|_| here.meets(Need::Lease));
        request.ask &= here.meets(Need::Ask);
        backend::acquire(&self.tenure, request).await
    }

    /// Gives a path of a tree the common owner.
    fn set_owner(&self, request: &mut Request) {
        if request.place.path().is_some() {
            let name = format!("{}-{}", request.holder.name, self.owner);
            request.owner.get_or_insert(name);
        }
    }

    /// Returns the form of an address that is equal for all spellings of one lock.
    pub(crate) fn resolved(&self, place: &Address) -> Address {
        self.tenure.resolved(place)
    }

    pub(crate) fn acquire_blocking(self) -> Result<Guards, Error> {
        let is_file = |request: &Request| request.place.is_file();
        if !self.requests.iter().all(is_file) {
            return tenure_base::block_on(self.acquire());
        }
        // Lock files only: no runtime and no thread, C7 (fast start).
        let (tenure, steps) = (self.tenure.clone(), self.in_order()?);
        let wait_limit = SharedDeadline::new(&steps);
        let mut taken = TakenLocks::default();
        for step in steps {
            let request = wait_limit.left(step.request.clone());
            match backend::acquire_blocking(&tenure, request) {
                Ok(guard) => taken.add(&step, vec![guard]),
                Err(error) => {
                    tenure_base::block_on(backend::give_up(taken.guards()));
                    return Err(error);
                }
            }
        }
        Ok(Guards::new(taken.guards(), self))
    }

    /// Returns the acquire steps in lock order. Checks all requests before the first step runs, so
    /// that a bad request leaves nothing locked.
    fn in_order(&self) -> Result<Vec<AcquireStep>, Error> {
        let mut wanted: Vec<(usize, Address, Request)> = Vec::new();
        for (number, mut request) in self.requests.iter().cloned().enumerate() {
            request.place = request.place.normalized();
            self.set_owner(&mut request);
            let place = self.tenure.resolved(&request.place);
            // Two names of one lock would block each other: keep the first.
            let is_same = |(_, other, _): &(usize, Address, Request)| {
                *other == place || backend::is_same_lock_file(other, &place)
            };
            if !wanted.iter().any(is_same) {
                wanted.push((number, place, request));
            }
        }
        share(wanted.iter_mut().map(|(.., request)| request).collect());
        for (.., request) in &wanted {
            request.check()?;
        }
        // Address order equals tree order (see `lock_order`), so paths of one tree are adjacent.
        wanted.sort_by(|(_, one, _), (_, two, _)| one.lock_order(two));
        let mut steps: Vec<AcquireStep> = Vec::new();
        let mut last: Option<Address> = None;
        for (number, place, request) in wanted {
            let same_tree = last.is_some_and(|last| last.same_tree(&place));
            last = Some(place);
            match steps.last_mut() {
                Some(step) if same_tree => step.places.push((number, request.place)),
                _ => steps.push(AcquireStep {
                    places: vec![(number, request.place.clone())],
                    request,
                }),
            }
        }
        Ok(steps)
    }
}

/// Addresses that are acquired in one step: a single one, or several of one tree.
struct AcquireStep {
    /// The addresses with their indexes in the caller's list.
    places: Vec<(usize, Address)>,
    /// The options of the step. Its `place` is the first address.
    request: Request,
}

impl AcquireStep {
    fn wheres(&self) -> Vec<Address> {
        self.places.iter().map(|(_, place)| place.clone()).collect()
    }
}

/// The guards so far, with the indexes of their addresses in the caller's list.
#[derive(Default)]
struct TakenLocks(Vec<(usize, Guard)>);

impl TakenLocks {
    fn add(&mut self, step: &AcquireStep, guards: Vec<Guard>) {
        for guard in guards {
            let number = step.places.iter().find(|(_, place)| place == guard.place());
            self.0
                .push((number.map_or(0, |(number, _)| *number), guard));
        }
    }

    /// Returns the guards in the order of the caller's list.
    fn guards(mut self) -> Vec<Guard> {
        self.0.sort_by_key(|(number, _)| *number);
        self.0.into_iter().map(|(_, guard)| guard).collect()
    }
}

/// Adapts the options, which the builder set for all addresses alike, to the single backends: `ttl`
/// and `ask` are dropped where the backend lacks them, if another address of the list has them. If
/// none has them they stay, and the check refuses them.
fn share(requests: Vec<&mut Request>) {
    let has_lease = |request: &Request| Capabilities::of(&request.place).meets(Need::Lease);
    let can_ask = |request: &Request| Capabilities::of(&request.place).meets(Need::Ask);
    let some_lease = requests.iter().any(|request| has_lease(request));
    let some_ask = requests.iter().any(|request| can_ask(request));
    for request in requests {
        if some_lease && !has_lease(request) {
            request.ttl = None;
        }
        if some_ask && !can_ask(request) {
            request.ask = false;
        }
    }
}

/// A deadline that several acquires share.
struct SharedDeadline {
    until: Option<Instant>,
}

impl SharedDeadline {
    fn new(steps: &[AcquireStep]) -> SharedDeadline {
        let until = steps.iter().find_map(|step| match step.request.wait {
            Wait::For(time) => Instant::now().checked_add(time),
            Wait::No | Wait::Forever => None,
        });
        SharedDeadline { until }
    }

    fn left(&self, mut request: Request) -> Request {
        if let (Wait::For(_), Some(until)) = (request.wait, self.until) {
            request.wait = Wait::For(until.saturating_duration_since(Instant::now()));
        }
        request
    }
}
