//! Guards that several callers use at once, and that release without giving up the object.

use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tenure::{Address, Class, Error, Guard, Guards, HoldEvent, Mode, Refusal};
use tokio::sync::{RwLock, watch};

use crate::error::lost_json;
use crate::executor;

/// Gets an event of a held lock as JSON: `renewed`, `asked` or `lost`, and its fields.
pub type EventListener = Arc<dyn Fn(&'static str, &Value) + Send + Sync>;

/// What the listeners of a guard have reported.
#[derive(Clone, Debug, Default)]
struct EventState {
    lost: Option<Value>,
    asked: Option<Value>,
    released: bool,
}

/// The events of a guard, for callers that wait for one without holding the guard. It listens at its
/// first use only: most guards never need the thread that runs listeners.
#[derive(Debug, Default)]
struct GuardEvents(OnceLock<Arc<watch::Sender<EventState>>>);

impl GuardEvents {
    /// Returns the state; `listen` connects it with the guard when it is created.
    fn state(
        &self,
        listen: impl FnOnce(&Arc<watch::Sender<EventState>>),
    ) -> &Arc<watch::Sender<EventState>> {
        self.0.get_or_init(|| {
            let state = Arc::new(watch::Sender::new(EventState::default()));
            listen(&state);
            state
        })
    }

    fn released(&self) {
        let state = self.state(|_| {});
        state.send_modify(|state| state.released = true);
    }
}

/// Reports the events of `guard` to `state`.
fn connect(guard: &Guard, state: &Arc<watch::Sender<EventState>>) {
    let state = Arc::clone(state);
    guard.listen(move |event| {
        state.send_modify(|state| match event {
            HoldEvent::Asked(request) => {
                state.asked = serde_json::to_value(request).ok();
            }
            HoldEvent::Lost(lost) => state.lost = Some(lost_json(lost)),
            _ => {}
        });
    });
}

/// Calls `listener` for the events of `guard`.
fn forward(guard: &Guard, listener: EventListener) {
    guard.listen(move |event| match event {
        HoldEvent::Renewed(lease) => {
            let ttl_ms = u64::try_from(lease.ttl.as_millis()).unwrap_or(u64::MAX);
            listener("renewed", &serde_json::json!({ "ttl_ms": ttl_ms }));
        }
        HoldEvent::Asked(request) => {
            listener("asked", &serde_json::to_value(request).unwrap_or_default());
        }
        HoldEvent::Lost(lost) => listener("lost", &lost_json(lost)),
        _ => {}
    });
}

/// Completes with the loss, or with `None` when the lock is released.
async fn wait_for(
    state: Arc<watch::Sender<EventState>>,
    pick: impl Fn(&EventState) -> Option<Value>,
) -> Option<Value> {
    let mut updates = state.subscribe();
    let seen = updates
        .wait_for(|state| state.released || pick(state).is_some())
        .await;
    // The sender is in `state`, so the channel stays open.
    seen.ok().and_then(|state| pick(&state))
}

/// A held lock.
#[derive(Debug)]
pub struct HeldGuard {
    address: Address,
    mode: Mode,
    owner: String,
    process: u32,
    /// `None` after the release.
    guard: RwLock<Option<Guard>>,
    events: GuardEvents,
}

impl HeldGuard {
    /// Wraps a guard.
    pub fn new(guard: Guard) -> Arc<HeldGuard> {
        Arc::new(HeldGuard {
            address: guard.place().clone(),
            mode: guard.mode(),
            owner: guard.owner(),
            process: std::process::id(),
            guard: RwLock::new(Some(guard)),
            events: GuardEvents::default(),
        })
    }

    /// Returns the address of the lock.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the mode of the hold.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the id of the holder.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Runs `read` with the guard. `None` if the lock was released, or is being released.
    fn read<T>(&self, read: impl FnOnce(&Guard) -> T) -> Option<T> {
        self.guard.try_read().ok()?.as_ref().map(read)
    }

    /// Returns the newest fence.
    pub fn fence(&self) -> Option<u64> {
        self.read(|guard| guard.fence())?.map(tenure::Fence::get)
    }

    /// Returns how long the protected work may continue without another renewal: `Some(None)` without
    /// a limit, `None` after the release.
    pub fn valid_for(&self) -> Option<Option<Duration>> {
        self.read(Guard::valid_for)
    }

    /// Returns whether the lock is held, as far as this process knows. Does no I/O.
    pub fn is_held(&self) -> bool {
        let ours = self.process == std::process::id();
        ours && self.read(|guard| guard.still_held().is_ok()) == Some(true)
    }

    /// Returns the path of the lock file, if the lock is one.
    pub fn lock_file(&self) -> Option<std::path::PathBuf> {
        self.read(|guard| guard.file().map(|file| file.path()))?
    }

    /// Checks that the lock is held now.
    pub async fn check(&self) -> Result<(), Error> {
        match &*self.guard.read().await {
            Some(guard) => guard.check().await,
            None => Err(not_held(&self.address)),
        }
    }

    /// Completes with the loss as JSON, or with `None` when the lock is released.
    pub fn lost(&self) -> impl Future<Output = Option<Value>> + Send + 'static {
        wait_for(self.state(), |state| state.lost.clone())
    }

    /// Completes with the first release request as JSON, or with `None` when the lock is released.
    pub fn release_requested(&self) -> impl Future<Output = Option<Value>> + Send + 'static {
        wait_for(self.state(), |state| state.asked.clone())
    }

    /// Returns the first release request, if there is one.
    pub fn requested(&self) -> Option<Value> {
        let request = self.read(|guard| guard.requested())??;
        serde_json::to_value(request).ok()
    }

    /// Calls `listener` for every event from now on, and once for each present fact.
    pub fn listen(&self, listener: EventListener) {
        self.read(|guard| forward(guard, listener));
    }

    fn state(&self) -> Arc<watch::Sender<EventState>> {
        let state = self.events.state(|state| {
            let connected = self.read(|guard| connect(guard, state));
            if connected.is_none() {
                state.send_modify(|state| state.released = true);
            }
        });
        Arc::clone(state)
    }

    /// Releases the lock. Succeeds without an effect if it was released before.
    pub async fn release(&self) -> Result<(), Error> {
        let guard = self.guard.write().await.take();
        let released = match guard {
            Some(guard) => guard.release().await,
            None => Ok(()),
        };
        self.events.released();
        released
    }

    /// Releases the lock like [`release`](HeldGuard::release); a lock file on a thread of the pool.
    pub async fn release_in_background(&self) -> Result<(), Error> {
        let guard = self.guard.write().await.take();
        let released = match guard {
            Some(guard) if self.address.is_file() => {
                executor::blocking(move || tenure_base::block_on(guard.release())).await
            }
            Some(guard) => guard.release().await,
            None => Ok(()),
        };
        self.events.released();
        released
    }
}

/// The error for a guard that was released.
fn not_held(address: &Address) -> Error {
    Error::Refused(Box::new(Refusal {
        place: address.clone(),
        class: Class::NotHeld,
        what: "this guard was released".to_owned(),
        next: None,
        source: None,
    }))
}

/// One of several locks.
#[derive(Clone, Debug)]
pub struct GuardEntry {
    /// Its address.
    pub address: String,
    /// Its mode.
    pub mode: Mode,
    /// Its newest fence.
    pub fence: Option<u64>,
}

impl GuardEntry {
    fn of(guard: &Guard) -> GuardEntry {
        GuardEntry {
            address: guard.place().to_string(),
            mode: guard.mode(),
            fence: guard.fence().map(tenure::Fence::get),
        }
    }
}

/// Several locks that are held together.
#[derive(Debug)]
pub struct HeldGuards {
    guards: RwLock<Option<Guards>>,
    /// The entries as they were when the guards could be read last: an `add` that waits keeps them.
    entries: Mutex<Vec<GuardEntry>>,
    events: GuardEvents,
}

impl HeldGuards {
    /// Wraps guards.
    pub fn new(guards: Guards) -> Arc<HeldGuards> {
        Arc::new(HeldGuards {
            guards: RwLock::new(Some(guards)),
            entries: Mutex::default(),
            events: GuardEvents::default(),
        })
    }

    /// Returns the locks in the order of the request.
    pub fn entries(&self) -> Vec<GuardEntry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(guards) = self.guards.try_read() {
            let guards = guards.iter().flat_map(Guards::iter);
            *entries = guards.map(GuardEntry::of).collect();
        }
        entries.clone()
    }

    /// Returns the shortest validity of all locks: see [`HeldGuard::valid_for`].
    pub fn valid_for(&self) -> Option<Option<Duration>> {
        let guards = self.guards.try_read().ok()?;
        guards.as_ref().map(Guards::valid_for)
    }

    /// Acquires one more lock with the options of the others.
    pub async fn add(&self, address: &tenure::Address) -> Result<(), Error> {
        let mut slot = self.guards.write().await;
        let Some(guards) = slot.as_mut() else {
            return Err(not_held(address));
        };
        let before = guards.iter().count();
        guards.add(address).await?;
        if let Some(state) = self.events.0.get() {
            guards
                .iter()
                .skip(before)
                .for_each(|guard| connect(guard, state));
        }
        Ok(())
    }

    /// Releases one of the locks; the others stay held.
    pub async fn remove(&self, address: &tenure::Address) -> Result<(), Error> {
        match self.guards.write().await.as_mut() {
            Some(guards) => guards.remove(address).await,
            None => Err(not_held(address)),
        }
    }

    /// Checks that all locks are held now.
    ///
    /// Succeeds after the release: no lock is expected to be held then.
    pub async fn check(&self) -> Result<(), Error> {
        match &*self.guards.read().await {
            Some(guards) => guards.check().await,
            // Nothing is held, so nothing can be lost.
            None => Ok(()),
        }
    }

    /// Completes with the loss of one of the locks, or with `None` when they are released.
    pub fn lost(&self) -> impl Future<Output = Option<Value>> + Send + 'static {
        wait_for(self.state(), |state| state.lost.clone())
    }

    /// Completes with the first release request, or with `None` when the locks are released.
    pub fn release_requested(&self) -> impl Future<Output = Option<Value>> + Send + 'static {
        wait_for(self.state(), |state| state.asked.clone())
    }

    fn state(&self) -> Arc<watch::Sender<EventState>> {
        let state = self
            .events
            .state(|state| match self.guards.try_read().as_deref() {
                Ok(Some(guards)) => guards.iter().for_each(|guard| connect(guard, state)),
                _ => state.send_modify(|state| state.released = true),
            });
        Arc::clone(state)
    }

    /// Releases all locks. Succeeds without an effect if they were released before.
    pub async fn release(&self) -> Result<(), Error> {
        let guards = self.guards.write().await.take();
        let released = match guards {
            Some(guards) => guards.release().await,
            None => Ok(()),
        };
        self.events.released();
        released
    }
}
