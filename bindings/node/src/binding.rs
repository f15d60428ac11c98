//! Calls of the library, and the table of guards.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use napi::bindgen_prelude::{FnArgs, Function};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Env, Status};
use napi_derive::napi;
use serde_json::{Value, json};
use tenure::{Address, Error, Force, HoldId, Wait, WatchStream};
use tenure_bindings::{Client, HeldGuard, HeldGuards, LockOptions, Settings, Task, error_json};

/// A message to JavaScript: the number of the call or of the object, the kind, JSON.
pub(crate) type Message = (u32, &'static str, String);

/// The function that JavaScript gets its messages with. It does not keep the event loop alive: the package
/// does that while calls run.
type Dispatch =
    ThreadsafeFunction<Message, (), FnArgs<(u32, &'static str, String)>, Status, false, true>;

/// What the calls share.
pub(crate) struct Shared {
    dispatch: Dispatch,
    guards: Mutex<HashMap<u32, Held>>,
    watches: Mutex<HashMap<u32, Arc<tokio::sync::Mutex<WatchStream>>>>,
    tasks: Mutex<HashMap<u32, Task>>,
    /// Questions to JavaScript that wait for their answers.
    questions: Mutex<HashMap<u32, SyncSender<Value>>>,
    /// Locks that were acquired through a manager of sidecar locks.
    pub(crate) sidecars: Mutex<HashMap<u32, tenure_files::sidecar::SidecarGuard>>,
    next: AtomicU32,
}

#[derive(Clone)]
enum Held {
    One(Arc<HeldGuard>),
    Many(Arc<HeldGuards>),
}

impl Shared {
    pub(crate) fn send(&self, number: u32, kind: &'static str, value: &Value) {
        let mode = ThreadsafeFunctionCallMode::NonBlocking;
        // It fails only when the environment ends, and then no receiver is left.
        let _ = self.dispatch.call((number, kind, value.to_string()), mode);
    }

    pub(crate) fn next(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks JavaScript and blocks until it answers. `None` if the environment has ended.
    pub(crate) fn question(
        &self,
        call: u32,
        kind: &'static str,
        mut value: Value,
    ) -> Option<Value> {
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        let number = self.next();
        lock(&self.questions).insert(number, answer);
        value["question"] = number.into();
        self.send(call, kind, &value);
        answered.recv().ok()
    }

    fn guard(&self, number: u32) -> napi::Result<Held> {
        let held = lock(&self.guards).get(&number).cloned();
        held.ok_or_else(|| napi::Error::from_reason("there is no such guard"))
    }

    fn one(&self, number: u32) -> napi::Result<Arc<HeldGuard>> {
        match self.guard(number)? {
            Held::One(guard) => Ok(guard),
            Held::Many(_) => Err(napi::Error::from_reason("this is a guard of several locks")),
        }
    }

    fn many(&self, number: u32) -> napi::Result<Arc<HeldGuards>> {
        match self.guard(number)? {
            Held::Many(guards) => Ok(guards),
            Held::One(_) => Err(napi::Error::from_reason("this is a guard of one lock")),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one JavaScript environment uses.
#[napi]
pub struct Binding {
    pub(crate) shared: Arc<Shared>,
    clients: Mutex<HashMap<u32, Client>>,
}

/// The options of an acquire.
#[napi(object)]
pub struct NativeOptions {
    /// `exclusive`, `shared`, `shared-tree` or `permit`.
    pub mode: Option<String>,
    /// The number of permits.
    pub permits: Option<u32>,
    /// The time limit in milliseconds.
    pub wait_ms: Option<f64>,
    /// The length of the lease in milliseconds.
    pub ttl_ms: Option<f64>,
    /// Asks the holder to release while waiting.
    pub ask: Option<bool>,
    /// What the lock is for.
    pub purpose: Option<String>,
    /// Labels, as JSON.
    pub labels: Option<String>,
    /// Requests a fence.
    pub fenced: Option<bool>,
    /// Fails instead of waiting in a cycle.
    pub refuse_deadlock: Option<bool>,
    /// Whether to report the blocker while waiting.
    pub report_waits: Option<bool>,
}

/// The settings of a client.
#[napi(object)]
pub struct NativeSettings {
    /// The nodes of the daemon.
    pub url: Option<String>,
    /// The name of the holder.
    pub name: Option<String>,
    /// The bearer token.
    pub token: Option<String>,
    /// The file with the bearer token.
    pub token_file: Option<String>,
    /// The certificate authorities to trust.
    pub ca_file: Option<String>,
    /// The fingerprint of the only certificate to accept.
    pub pin: Option<String>,
    /// The client certificate.
    pub cert_file: Option<String>,
    /// Its key.
    pub key_file: Option<String>,
    /// Whether the token may be sent without TLS.
    pub allow_plaintext: Option<bool>,
    /// Whether lock files are synced to disk.
    pub durable: Option<bool>,
    /// Whether a lock file may be reclaimed by its age alone.
    pub reclaim_by_age: Option<bool>,
    /// The age from which a lock file may count as stale, in milliseconds.
    pub stale_ms: Option<f64>,
    /// Only Tenure uses the repositories.
    pub tenure_only: Option<bool>,
}

#[napi]
impl Binding {
    /// Creates the binding of one environment.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        dispatch: Function<'_, FnArgs<(u32, &'static str, String)>, ()>,
    ) -> napi::Result<Binding> {
        let _ = env;
        let dispatch = dispatch
            .build_threadsafe_function::<Message>()
            .weak::<true>()
            .build_callback(|context| Ok(FnArgs::from(context.value)))?;
        Ok(Binding {
            shared: Arc::new(Shared {
                dispatch,
                guards: Mutex::default(),
                watches: Mutex::default(),
                tasks: Mutex::default(),
                questions: Mutex::default(),
                sidecars: Mutex::default(),
                next: AtomicU32::new(1),
            }),
            clients: Mutex::default(),
        })
    }

    /// Creates a client and returns its number.
    #[napi]
    pub fn client(&self, settings: NativeSettings) -> napi::Result<u32> {
        let identity = match (settings.cert_file, settings.key_file) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => {
                let what = "certFile and keyFile go together: give both or none";
                return Err(napi::Error::from_reason(what));
            }
        };
        let client = Client::new(Settings {
            url: settings.url,
            name: settings.name,
            token: settings.token,
            token_file: settings.token_file.map(Into::into),
            ca_file: settings.ca_file.map(Into::into),
            pin: settings.pin,
            identity,
            allow_plaintext: settings.allow_plaintext.unwrap_or(false),
            durable: settings.durable.unwrap_or(true),
            reclaim_by_age: settings.reclaim_by_age.unwrap_or(false),
            stale: settings
                .stale_ms
                .map(|ms| millis("staleMs", ms))
                .transpose()?,
            tenure_only: settings.tenure_only.unwrap_or(false),
        });
        Ok(self.add_client(client))
    }

    /// Returns the number of a client whose locks belong to one owner.
    #[napi]
    pub fn session(&self, client: u32, owner: String) -> napi::Result<u32> {
        let session = self.find_client(client)?.session(&owner);
        Ok(self.add_client(session))
    }

    /// Forgets a client.
    #[napi]
    pub fn drop_client(&self, client: u32) {
        lock(&self.clients).remove(&client);
    }

    /// Acquires one lock.
    #[napi]
    pub fn acquire(
        &self,
        call: u32,
        client: u32,
        address: String,
        options: NativeOptions,
    ) -> napi::Result<()> {
        let options = self.options(call, options)?;
        let client = self.find_client(client)?;
        let shared = Arc::clone(&self.shared);
        self.run(call, async move {
            let address: Address = address.parse()?;
            let guard = client.acquire(&address, &options)?.await?;
            Ok(add_guard(&shared, guard))
        });
        Ok(())
    }

    /// Tries to acquire a lock file on this thread, without waiting. Returns JSON: the guard, or an error.
    #[napi]
    pub fn try_file(
        &self,
        client: u32,
        address: String,
        options: NativeOptions,
    ) -> napi::Result<String> {
        let options = self.options(0, options)?;
        let client = self.find_client(client)?;
        let tried = || -> Result<Value, Error> {
            let address: Address = address.parse()?;
            if !address.is_file() {
                return Ok(Value::Null);
            }
            let guard = client.first_try(&address, &options)?.acquire()?;
            Ok(add_guard(&self.shared, HeldGuard::new(guard.into_async())))
        };
        Ok(match tried() {
            Ok(value) => value.to_string(),
            Err(error) => json!({ "error": error_json(&error) }).to_string(),
        })
    }

    /// Acquires several locks, all or none.
    #[napi]
    pub fn acquire_all(
        &self,
        call: u32,
        client: u32,
        addresses: Vec<String>,
        options: NativeOptions,
    ) -> napi::Result<()> {
        let options = self.options(call, options)?;
        let client = self.find_client(client)?;
        let shared = Arc::clone(&self.shared);
        self.run(call, async move {
            let addresses: Vec<Address> = addresses
                .iter()
                .map(|address| address.parse())
                .collect::<Result<_, Error>>()?;
            let guards = client.lock_all(&addresses, &options)?.acquire().await?;
            let guards = HeldGuards::new(guards);
            let number = shared.next();
            lock(&shared.guards).insert(number, Held::Many(guards));
            Ok(json!({ "guard": number }))
        });
        Ok(())
    }

    /// Cancels a call. Its result may have been sent already.
    #[napi]
    pub fn cancel(&self, call: u32) {
        if let Some(task) = lock(&self.shared.tasks).remove(&call) {
            task.cancel();
        }
    }

    /// Answers a question.
    #[napi]
    pub fn answer(&self, question: u32, value: String) {
        if let Some(answer) = lock(&self.shared.questions).remove(&question) {
            let _ = answer.send(serde_json::from_str(&value).unwrap_or_default());
        }
    }

    /// Returns the state of a guard as JSON, without I/O.
    #[napi]
    pub fn guard_state(&self, guard: u32) -> napi::Result<String> {
        let state = match self.shared.guard(guard)? {
            Held::One(guard) => json!({
                "fence": guard.fence(),
                "held": guard.is_held(),
                "valid_for_ms": valid_for_ms(guard.valid_for()),
                "requested": guard.requested(),
            }),
            Held::Many(guards) => {
                let entries = guards.entries().into_iter().map(|entry| {
                    json!({
                        "address": entry.address,
                        "mode": entry.mode,
                        "fence": entry.fence,
                    })
                });
                json!({
                    "entries": entries.collect::<Vec<_>>(),
                    "valid_for_ms": valid_for_ms(guards.valid_for()),
                })
            }
        };
        Ok(state.to_string())
    }

    /// Checks that a lock is held now.
    #[napi]
    pub fn check(&self, call: u32, guard: u32) -> napi::Result<()> {
        let held = self.shared.guard(guard)?;
        self.run(call, async move {
            match held {
                Held::One(guard) => guard.check().await?,
                Held::Many(guards) => guards.check().await?,
            }
            Ok(Value::Null)
        });
        Ok(())
    }

    /// Releases a guard.
    #[napi]
    pub fn release(&self, call: u32, guard: u32) -> napi::Result<()> {
        let held = self.shared.guard(guard)?;
        self.run(call, async move {
            match held {
                Held::One(guard) => guard.release_in_background().await?,
                Held::Many(guards) => guards.release().await?,
            }
            Ok(Value::Null)
        });
        Ok(())
    }

    /// Releases the guard of a lock file on this thread. Returns JSON: null, or an error.
    #[napi]
    pub fn release_file(&self, guard: u32) -> napi::Result<String> {
        let guard = self.shared.one(guard)?;
        Ok(match tenure_base::block_on(guard.release()) {
            Ok(()) => Value::Null.to_string(),
            Err(error) => json!({ "error": error_json(&error) }).to_string(),
        })
    }

    /// Forgets a guard; releases it in the background if it is held.
    #[napi]
    pub fn drop_guard(&self, guard: u32) {
        let held = lock(&self.shared.guards).remove(&guard);
        if let Some(held) = held {
            tenure_bindings::spawn(async move {
                let _ = match held {
                    Held::One(guard) => guard.release_in_background().await,
                    Held::Many(guards) => guards.release().await,
                };
            });
        }
    }

    /// Completes with the loss of a guard, or with null when it is released.
    #[napi]
    pub fn lost(&self, call: u32, guard: u32) -> napi::Result<()> {
        let held = self.shared.guard(guard)?;
        self.run(call, async move {
            Ok(match held {
                Held::One(guard) => guard.lost().await,
                Held::Many(guards) => guards.lost().await,
            }
            .unwrap_or_default())
        });
        Ok(())
    }

    /// Completes with the first release request, or with null when the guard is released.
    #[napi]
    pub fn release_requested(&self, call: u32, guard: u32) -> napi::Result<()> {
        let held = self.shared.guard(guard)?;
        self.run(call, async move {
            Ok(match held {
                Held::One(guard) => guard.release_requested().await,
                Held::Many(guards) => guards.release_requested().await,
            }
            .unwrap_or_default())
        });
        Ok(())
    }

    /// Sends the events of a guard from now on, under the guard's number.
    #[napi]
    pub fn listen(&self, guard: u32) -> napi::Result<()> {
        let held = self.shared.one(guard)?;
        let shared = Arc::downgrade(&self.shared);
        held.listen(Arc::new(move |kind, event| {
            if let Some(shared) = shared.upgrade() {
                shared.send(guard, kind, event);
            }
        }));
        Ok(())
    }

    /// Adds a lock to a guard of several.
    #[napi]
    pub fn add(&self, call: u32, guard: u32, address: String) -> napi::Result<()> {
        let guards = self.shared.many(guard)?;
        self.run(call, async move {
            guards.add(&address.parse()?).await?;
            Ok(Value::Null)
        });
        Ok(())
    }

    /// Releases one of several locks.
    #[napi]
    pub fn remove(&self, call: u32, guard: u32, address: String) -> napi::Result<()> {
        let guards = self.shared.many(guard)?;
        self.run(call, async move {
            guards.remove(&address.parse()?).await?;
            Ok(Value::Null)
        });
        Ok(())
    }

    /// Returns the state of a lock.
    #[napi]
    pub fn inspect(&self, call: u32, client: u32, address: String) -> napi::Result<()> {
        let client = self.find_client(client)?;
        self.run(call, async move {
            let address: Address = address.parse()?;
            let state = client.library(&address)?.inspect(&address).await?;
            Ok(serde_json::to_value(state).unwrap_or_default())
        });
        Ok(())
    }

    /// Returns all locks at or below an address.
    #[napi]
    pub fn list(&self, call: u32, client: u32, address: String) -> napi::Result<()> {
        let client = self.find_client(client)?;
        self.run(call, async move {
            let address: Address = address.parse()?;
            let states = client.library(&address)?.list(&address).await?;
            Ok(serde_json::to_value(states).unwrap_or_default())
        });
        Ok(())
    }

    /// Asks the holders to release.
    #[napi]
    pub fn ask(
        &self,
        call: u32,
        client: u32,
        address: String,
        reason: Option<String>,
    ) -> napi::Result<()> {
        let client = self.find_client(client)?;
        self.run(call, async move {
            let address: Address = address.parse()?;
            let library = client.library(&address)?;
            let asked = library.ask(&address, reason.as_deref()).await?;
            Ok(serde_json::to_value(asked).unwrap_or_default())
        });
        Ok(())
    }

    /// Breaks holds.
    #[napi]
    pub fn break_hold(
        &self,
        call: u32,
        client: u32,
        address: String,
        id: Option<String>,
        force: bool,
        reason: String,
    ) -> napi::Result<()> {
        let client = self.find_client(client)?;
        self.run(call, async move {
            let address: Address = address.parse()?;
            let id = id.map(HoldId::new);
            let force = if force { Force::Yes } else { Force::No };
            let library = client.library(&address)?;
            let broken = library.break_hold(&address, id.as_ref(), force, &reason);
            Ok(serde_json::to_value(broken.await?).unwrap_or_default())
        });
        Ok(())
    }

    /// Returns what a backend supports, as JSON.
    #[napi]
    pub fn capabilities(&self, address: String) -> napi::Result<String> {
        let address: Result<Address, Error> = address.parse();
        Ok(match address {
            Ok(address) => json!(tenure::Capabilities::of(&address)).to_string(),
            Err(error) => json!({ "error": error_json(&error) }).to_string(),
        })
    }

    /// Starts a watch; completes with its number.
    #[napi]
    pub fn watch(&self, call: u32, client: u32, address: String) -> napi::Result<()> {
        let client = self.find_client(client)?;
        let shared = Arc::clone(&self.shared);
        self.run(call, async move {
            let address: Address = address.parse()?;
            let stream = client.library(&address)?.watch(&address).await?;
            let number = shared.next();
            let stream = Arc::new(tokio::sync::Mutex::new(stream));
            lock(&shared.watches).insert(number, stream);
            Ok(json!({ "watch": number }))
        });
        Ok(())
    }

    /// Completes with the next change, or with null at the end.
    #[napi]
    pub fn next_change(&self, call: u32, watch: u32) -> napi::Result<()> {
        let stream = lock(&self.shared.watches).get(&watch).cloned();
        self.run(call, async move {
            let Some(stream) = stream else {
                return Ok(Value::Null);
            };
            let change = stream.lock().await.next().await.transpose()?;
            Ok(change.map_or(Value::Null, |change| {
                serde_json::to_value(change).unwrap_or_default()
            }))
        });
        Ok(())
    }

    /// Ends a watch.
    #[napi]
    pub fn drop_watch(&self, watch: u32) {
        lock(&self.shared.watches).remove(&watch);
    }
}

impl Binding {
    fn add_client(&self, client: Client) -> u32 {
        let number = self.shared.next();
        lock(&self.clients).insert(number, client);
        number
    }

    fn find_client(&self, client: u32) -> napi::Result<Client> {
        let client = lock(&self.clients).get(&client).cloned();
        client.ok_or_else(|| napi::Error::from_reason("there is no such client"))
    }

    /// Runs a call in the background and sends its result.
    pub(crate) fn run(
        &self,
        call: u32,
        work: impl Future<Output = Result<Value, Error>> + Send + 'static,
    ) {
        let shared = Arc::clone(&self.shared);
        // Held until the task is in the table, so that it cannot be removed before it is inserted.
        let mut tasks = lock(&self.shared.tasks);
        let task = tenure_bindings::spawn(async move {
            let (kind, value) = match work.await {
                Ok(value) => ("ok", value),
                Err(error) => ("error", error_json(&error)),
            };
            lock(&shared.tasks).remove(&call);
            shared.send(call, kind, &value);
        });
        tasks.insert(call, task);
    }

    fn options(&self, call: u32, given: NativeOptions) -> napi::Result<LockOptions> {
        let labels = match given.labels {
            Some(labels) => serde_json::from_str::<BTreeMap<String, String>>(&labels)
                .map_err(|_| napi::Error::from_reason("labels must be an object of strings"))?,
            None => BTreeMap::new(),
        };
        let mut options = LockOptions {
            wait: match given.wait_ms {
                None => Wait::Forever,
                Some(0.0) => Wait::No,
                Some(wait) if wait == f64::INFINITY => Wait::Forever,
                Some(wait) => Wait::For(millis("waitMs", wait)?),
            },
            ttl: given.ttl_ms.map(|ms| millis("ttlMs", ms)).transpose()?,
            ask: given.ask.unwrap_or(false),
            purpose: given.purpose,
            labels,
            fenced: given.fenced.unwrap_or(false),
            refuse_deadlock: given.refuse_deadlock.unwrap_or(false),
            ..LockOptions::default()
        };
        options
            .set_mode(
                given.mode.as_deref().unwrap_or("exclusive"),
                given.permits.and_then(NonZeroU32::new).map(NonZeroU32::get),
            )
            .map_err(napi::Error::from_reason)?;
        if given.report_waits.unwrap_or(false) {
            let shared = Arc::downgrade(&self.shared);
            options.on_wait = Some(Arc::new(move |busy| {
                if let Some(shared) = shared.upgrade() {
                    let busy = serde_json::to_value(busy).unwrap_or_default();
                    shared.send(call, "waits", &busy);
                }
            }));
        }
        Ok(options)
    }
}

fn add_guard(shared: &Shared, guard: Arc<HeldGuard>) -> Value {
    let number = shared.next();
    let value = json!({
        "guard": number,
        "address": guard.address(),
        "mode": guard.mode(),
        "owner": guard.owner(),
        "fence": guard.fence(),
        "lock_file": guard.lock_file(),
        "is_file": guard.address().is_file(),
    });
    lock(&shared.guards).insert(number, Held::One(guard));
    value
}

/// `null` after the release, `-1` without a limit.
fn valid_for_ms(valid_for: Option<Option<Duration>>) -> Value {
    match valid_for {
        None => json!(0),
        Some(None) => json!(-1),
        Some(Some(left)) => json!(left.as_secs_f64() * 1000.0),
    }
}

pub(crate) fn millis(name: &str, millis: f64) -> napi::Result<Duration> {
    Duration::try_from_secs_f64(millis / 1000.0).map_err(|_| {
        napi::Error::from_reason(format!(
            "{name} must be a number of milliseconds, not {millis}"
        ))
    })
}
