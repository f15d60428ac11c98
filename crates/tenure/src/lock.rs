//! How a lock is wanted: a builder, the same for every backend.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_files::identity::Token;

use crate::address::{Address, IntoAddress};
use crate::backend;
use crate::capabilities::{Capabilities, Need};
use crate::error::{Busy, Error};
use crate::guard::{Guard, Guards};
use crate::request::Request;
use crate::runtime;
use crate::tenure::Tenure;
use crate::values::{Mode, Wait};

/// A lock that is wanted. What the backend cannot do is refused by `acquire`, before anything is touched.
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before `acquire`"]
pub struct Lock {
    tenure: Tenure,
    request: Request,
}

/// Several locks that are wanted together.
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before `acquire`"]
pub struct LockAll {
    tenure: Tenure,
    requests: Vec<Request>,
}

/// The setters of a [`Lock`] and of its siblings: each changes every request that it is about.
macro_rules! setters {
    ($type:ty) => {
        impl $type {
            /// Together with other shared holders.
            pub fn shared(self) -> Self {
                self.mode(Mode::Shared)
            }

            /// Alone. This is the default.
            pub fn exclusive(self) -> Self {
                self.mode(Mode::Exclusive)
            }

            /// Shared, for the path and everything below it.
            pub fn shared_tree(self) -> Self {
                self.mode(Mode::SharedTree)
            }

            /// One of this many places. Everybody must name the same number.
            pub fn permit(self, of: NonZeroU32) -> Self {
                self.mode(Mode::Permit(of))
            }

            /// In this mode.
            pub fn mode(self, mode: Mode) -> Self {
                self.each(|request| request.mode = mode)
            }

            /// Wait at most this long. Without a word it is for ever.
            pub fn wait(self, time: Duration) -> Self {
                self.wait_limit(Wait::For(time))
            }

            /// At once or not at all.
            pub fn no_wait(self) -> Self {
                self.wait_limit(Wait::No)
            }

            /// Wait as this says.
            pub fn wait_limit(self, wait: Wait) -> Self {
                self.each(|request| request.wait = wait)
            }

            /// How long the lease lives without a renewal. For leases only; renewals come by themselves.
            pub fn ttl(self, ttl: Duration) -> Self {
                self.each(|request| request.ttl = Some(ttl))
            }

            /// Ask the holder to let go while waiting.
            pub fn ask(self) -> Self {
                self.each(|request| request.ask = true)
            }

            /// What the lock is for; shown to those who wait.
            pub fn purpose(self, purpose: impl Into<String>) -> Self {
                let purpose = purpose.into();
                self.each(|request| request.holder.purpose.clone_from(&purpose))
            }

            /// Anything else that people should see, where the backend keeps it.
            pub fn label(self, key: impl Into<String>, value: impl Into<String>) -> Self {
                let (key, value) = (key.into(), value.into());
                self.each(|request| {
                    request.holder.labels.insert(key.clone(), value.clone());
                })
            }

            /// Take a fence with the lock, where that has to be asked for.
            pub fn fenced(self) -> Self {
                self.each(|request| request.fenced = true)
            }

            /// Refuse to wait in a circle of owners that wait for each other (E5). The daemon's locks only.
            pub fn refuse_deadlock(self) -> Self {
                self.each(|request| request.refuse_deadlock = true)
            }

            /// What the caller cannot do without: refused at once where the backend does not have it.
            pub fn require(self, need: Need) -> Self {
                self.each(|request| {
                    request.needs.push(need);
                    request.fenced |= need == Need::Fence;
                })
            }

            /// The hold outlives this process (C13): a lock file follows the life of process `pid`, elsewhere it
            /// lives by its ttl alone. See [`Guard::into_hold`].
            pub fn follows(self, pid: u32) -> Self {
                self.each(|request| request.follows = Some(pid))
            }

            /// Told while waiting: who has it, and the place in line.
            pub fn on_wait(self, tell: impl Fn(&Busy) + Send + Sync + 'static) -> Self {
                let tell: crate::request::OnWait = Arc::new(tell);
                self.each(|request| request.on_wait = Some(Arc::clone(&tell)))
            }
        }
    };
}

setters!(Lock);
setters!(LockAll);

impl Lock {
    pub(crate) fn new(tenure: Tenure, request: Request) -> Lock {
        Lock { tenure, request }
    }

    /// What is wanted.
    pub fn place(&self) -> &Address {
        &self.request.place
    }

    fn each(mut self, change: impl Fn(&mut Request)) -> Lock {
        change(&mut self.request);
        self
    }

    /// This lock and one more, held together: for a move from one backend to another, while some programs still look at
    /// the old place (`--also`).
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let guards = tenure::lock("mem:new-place")?.also("mem:old-place")?.acquire().await?;
    /// guards.check().await?;
    /// guards.release().await?;
    /// # Ok(()) }
    /// # tenure::blocking::wait(example()).unwrap();
    /// ```
    pub fn also(self, place: impl IntoAddress) -> Result<LockAll, Error> {
        let mut other = self.request.clone();
        other.place = place.into_where()?;
        let requests = vec![self.request, other];
        Ok(LockAll::new(self.tenure, requests))
    }

    /// Takes the lock. A future that is dropped leaves nothing behind: no record, no request, no place in line.
    pub async fn acquire(self) -> Result<Guard, Error> {
        backend::acquire(&self.tenure, self.request).await
    }

    /// Takes the lock on this thread.
    pub(crate) fn acquire_blocking(self) -> Result<Guard, Error> {
        backend::acquire_blocking(&self.tenure, self.request)
    }

    /// Takes the lock, runs `body`, gives the lock back. On loss `body` is dropped at its next await, and the answer
    /// is [`Error::Lost`], never the body's value.
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
    /// # tenure::blocking::wait(example()).unwrap();
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
                // Done under the lock; what could not be given back ends by itself.
                Ok(()) | Err(_) => result,
            },
        }
    }
}

impl LockAll {
    pub(crate) fn new(tenure: Tenure, requests: Vec<Request>) -> LockAll {
        LockAll { tenure, requests }
    }

    fn each(mut self, change: impl Fn(&mut Request)) -> LockAll {
        self.requests.iter_mut().for_each(change);
        self
    }

    /// Takes all of them, or none: in the order of their addresses, so that two callers with reversed lists cannot
    /// wait for each other. The same lock twice is one lock (C6). Who waits does so for all of them together.
    ///
    /// Paths of one daemon and namespace, and names in memory, are taken in one step: nobody sees some of them taken and
    /// others not, and no tree lock that waits in between can stand in the way. Paths of several namespaces are taken
    /// namespace by namespace, in the order of the namespaces' names.
    pub async fn acquire(self) -> Result<Guards, Error> {
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
        Ok(Guards::new(taken.guards()))
    }

    pub(crate) fn acquire_blocking(self) -> Result<Guards, Error> {
        let is_file = |request: &Request| request.place.is_file();
        if !self.requests.iter().all(is_file) {
            return runtime::block_on(self.acquire());
        }
        // Without a runtime and without a thread (C7).
        let (tenure, steps) = (self.tenure.clone(), self.in_order()?);
        let wait_limit = SharedDeadline::new(&steps);
        let mut taken = TakenLocks::default();
        for step in steps {
            let request = wait_limit.left(step.request.clone());
            match backend::acquire_blocking(&tenure, request) {
                Ok(guard) => taken.add(&step, vec![guard]),
                Err(error) => {
                    runtime::block_on(backend::give_up(taken.guards()));
                    return Err(error);
                }
            }
        }
        Ok(Guards::new(taken.guards()))
    }

    /// The steps in the order in which they are made, all of them checked before the first.
    fn in_order(self) -> Result<Vec<AcquireStep>, Error> {
        let mut wanted: Vec<(usize, Address, Request)> = Vec::new();
        for (number, mut request) in self.requests.into_iter().enumerate() {
            request.place = request.place.normalized();
            let place = self.tenure.resolved(&request.place);
            if !wanted.iter().any(|(_, other, _)| *other == place) {
                wanted.push((number, place, request));
            }
        }
        share(wanted.iter_mut().map(|(.., request)| request).collect());
        for (.., request) in &wanted {
            request.check()?;
        }
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

/// What is taken in one step: one place, or several of one tree.
struct AcquireStep {
    /// With their places in the caller's list.
    places: Vec<(usize, Address)>,
    /// How; the place in it is the first.
    request: Request,
}

impl AcquireStep {
    fn wheres(&self) -> Vec<Address> {
        self.places.iter().map(|(_, place)| place.clone()).collect()
    }
}

/// What was taken so far, with the places in the caller's list.
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

    /// In the order of the caller's list.
    fn guards(mut self) -> Vec<Guard> {
        self.0.sort_by_key(|(number, _)| *number);
        self.0.into_iter().map(|(_, guard)| guard).collect()
    }
}

/// What is wanted of all is wanted of those that have it, if one of them does; and paths of one tree get one owner: a
/// parent that is ours must not keep us out of its child.
fn share(requests: Vec<&mut Request>) {
    let has_lease = |request: &Request| Capabilities::of(&request.place).meets(Need::Lease);
    let can_ask = |request: &Request| Capabilities::of(&request.place).meets(Need::Ask);
    let is_tree = |request: &Request| request.place.path().is_some();
    let some_lease = requests.iter().any(|request| has_lease(request));
    let some_ask = requests.iter().any(|request| can_ask(request));
    let trees = requests.iter().filter(|request| is_tree(request)).count();
    let owner = Token::random();
    for request in requests {
        if some_lease && !has_lease(request) {
            request.ttl = None;
        }
        if some_ask && !can_ask(request) {
            request.ask = false;
        }
        if trees > 1 && is_tree(request) {
            let name = format!("{}-{owner}", request.holder.name);
            request.owner.get_or_insert(name);
        }
    }
}

/// The time that several locks share.
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
