//! Settings and options as plain values, and the library made from them.

use std::collections::BTreeMap;
use std::future::Future;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure::{
    Address, Builder, Busy, Durability, Endpoint, Error, Lock, LockAll, Mode, Reclaim, Tenure,
    Tuning, Wait,
};

use crate::executor;
use crate::guard::HeldGuard;

/// The settings of a client. Those that are not given come from the environment (`TENURE_URL`, …)
/// where a daemon is used.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The nodes of the daemon, `tenure://host:port,host:port`.
    pub url: Option<String>,
    /// The name of the holder.
    pub name: Option<String>,
    /// The bearer token.
    pub token: Option<String>,
    /// The file with the bearer token.
    pub token_file: Option<PathBuf>,
    /// The PEM file with the certificate authorities to trust.
    pub ca_file: Option<PathBuf>,
    /// The fingerprint of the only certificate to accept.
    pub pin: Option<String>,
    /// The client certificate and its key, two PEM files.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether the token may be sent to other machines without TLS.
    pub allow_plaintext: bool,
    /// Whether lock files are synced to disk before they count as held.
    pub durable: bool,
    /// Whether a lock file may be reclaimed by its age alone.
    pub reclaim_by_age: bool,
    /// The age from which a lock file may count as stale.
    pub stale: Option<Duration>,
    /// Only Tenure uses the repositories, so the waiting times for other programs are skipped.
    pub tenure_only: bool,
}

/// Gets the blocker and the queue position while a request waits.
pub type OnWait = Arc<dyn Fn(&Busy) + Send + Sync>;

/// The options of one acquire.
#[derive(Clone, Default)]
pub struct LockOptions {
    /// The mode.
    pub mode: Mode,
    /// Whether and how long to wait.
    pub wait: Wait,
    /// The length of the lease.
    pub ttl: Option<Duration>,
    /// Asks the holder to release while waiting.
    pub ask: bool,
    /// What the lock is for.
    pub purpose: Option<String>,
    /// Labels for people.
    pub labels: BTreeMap<String, String>,
    /// Requests a fence from lock files.
    pub fenced: bool,
    /// Fails instead of waiting in a cycle of owners.
    pub refuse_deadlock: bool,
    /// Is called with the blocker while the request waits.
    pub on_wait: Option<OnWait>,
}

impl std::fmt::Debug for LockOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockOptions")
            .field("mode", &self.mode)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl LockOptions {
    /// Sets the mode by its name: `exclusive`, `shared`, `shared-tree`, or `permit` with a number.
    pub fn set_mode(&mut self, name: &str, permits: Option<u32>) -> Result<(), String> {
        self.mode = match (name, permits) {
            ("exclusive", None) => Mode::Exclusive,
            ("shared", None) => Mode::Shared,
            ("shared-tree", None) => Mode::SharedTree,
            ("permit" | "exclusive", Some(of)) => {
                Mode::Permit(NonZeroU32::new(of).ok_or("permits must be at least 1")?)
            }
            ("permit", None) => return Err("the mode permit needs permits, their number".into()),
            (_, Some(_)) => return Err(format!("permits and the mode {name} exclude each other")),
            _ => {
                return Err(format!(
                    "unknown mode {name:?}: use exclusive, shared, shared-tree or permit"
                ));
            }
        };
        Ok(())
    }
}

/// Applies options to a builder of the library, for one lock or for several.
macro_rules! with_options {
    ($builder:expr, $options:expr) => {{
        let options: &LockOptions = $options;
        let mut lock = $builder.mode(options.mode).wait_limit(options.wait);
        if let Some(ttl) = options.ttl {
            lock = lock.ttl(ttl);
        }
        if options.ask {
            lock = lock.ask();
        }
        if let Some(purpose) = &options.purpose {
            lock = lock.purpose(purpose);
        }
        for (key, value) in &options.labels {
            lock = lock.label(key, value);
        }
        if options.fenced {
            lock = lock.fenced();
        }
        if options.refuse_deadlock {
            lock = lock.refuse_deadlock();
        }
        if let Some(on_wait) = options.on_wait.clone() {
            lock = lock.on_wait(move |busy| on_wait(busy));
        }
        lock
    }};
}

/// A client. Clones share connections; sessions share them too.
#[derive(Clone, Debug)]
pub struct Client {
    state: Arc<ClientState>,
    owner: Option<Arc<str>>,
}

#[derive(Debug)]
struct ClientState {
    settings: Settings,
    libraries: Mutex<Libraries>,
}

/// The library's instances, and the process that made them. A child of `fork` makes its own, because
/// the threads that serve the parent's connections do not exist there.
#[derive(Debug, Default)]
struct Libraries {
    process: u32,
    /// For files, repositories and memory. Does not read the environment, so that a wrong variable
    /// for the daemon does not stop them.
    plain: Option<Tenure>,
    daemon: Option<Tenure>,
}

impl Client {
    /// Creates a client. Does no I/O.
    pub fn new(settings: Settings) -> Client {
        Client {
            state: Arc::new(ClientState {
                settings,
                libraries: Mutex::default(),
            }),
            owner: None,
        }
    }

    /// Returns a client whose locks all belong to one owner.
    pub fn session(&self, owner: &str) -> Client {
        Client {
            owner: Some(owner.into()),
            ..self.clone()
        }
    }

    /// Returns the library for `address`.
    pub fn library(&self, address: &Address) -> Result<Tenure, Error> {
        let needs_daemon = matches!(address, Address::Daemon { .. });
        let mut libraries = self.state.libraries();
        let slot = match needs_daemon {
            true => &mut libraries.daemon,
            false => &mut libraries.plain,
        };
        let library = match slot {
            Some(library) => library.clone(),
            // A failure is not kept: the next call reads the environment again.
            None => {
                let library = self.state.settings.build(needs_daemon)?;
                slot.insert(library).clone()
            }
        };
        Ok(match &self.owner {
            Some(owner) => library.session(owner),
            None => library,
        })
    }

    /// Returns a builder for one lock.
    pub fn lock(&self, address: &Address, options: &LockOptions) -> Result<Lock, Error> {
        Ok(with_options!(
            self.library(address)?.lock(address)?,
            options
        ))
    }

    /// Acquires one lock without blocking the caller.
    ///
    /// A lock file is first tried on a thread of a pool, because most requests need not wait. Only one
    /// that waits gets a thread of its own.
    pub fn acquire(
        &self,
        address: &Address,
        options: &LockOptions,
    ) -> Result<impl Future<Output = Result<Arc<HeldGuard>, Error>> + Send + 'static, Error> {
        let first = match address.is_file() {
            true => Some(self.first_try(address, options)?),
            false => None,
        };
        let (client, address, options) = (self.clone(), address.clone(), options.clone());
        let mut rest = options.clone();
        Ok(async move {
            if let Some(first) = first {
                let began = Instant::now();
                match executor::blocking(move || first.acquire()).await {
                    Ok(guard) => return Ok(HeldGuard::new(guard.into_async())),
                    Err(Error::Busy(_)) if options.wait != Wait::No => {}
                    Err(error) => return Err(error),
                }
                rest.wait = less(options.wait, began.elapsed());
            }
            let guard = client.lock(&address, &rest)?.acquire().await?;
            Ok(HeldGuard::new(guard))
        })
    }

    /// Returns a request for a lock file that neither waits nor asks the holder.
    pub fn first_try(
        &self,
        address: &Address,
        options: &LockOptions,
    ) -> Result<tenure::blocking::Lock, Error> {
        let once = LockOptions {
            wait: Wait::No,
            ask: false,
            ..options.clone()
        };
        // The waiting request would refuse the options, so the first try must refuse them too.
        if options.ask && !tenure::Capabilities::of(address).ask {
            let with_ask = self.lock(address, &LockOptions { ask: true, ..once })?;
            return Ok(with_ask.blocking());
        }
        Ok(self.lock(address, &once)?.blocking())
    }

    /// Returns a builder for several locks.
    pub fn lock_all(&self, addresses: &[Address], options: &LockOptions) -> Result<LockAll, Error> {
        let daemon = addresses
            .iter()
            .find(|address| matches!(address, Address::Daemon { .. }));
        let library = match daemon.or(addresses.first()) {
            Some(address) => self.library(address)?,
            None => self.state.settings.build(false)?,
        };
        Ok(with_options!(library.lock_all(addresses)?, options))
    }
}

/// Returns what remains of a time limit.
pub fn less(wait: Wait, spent: Duration) -> Wait {
    match wait {
        Wait::For(time) => Wait::For(time.saturating_sub(spent)),
        other => other,
    }
}

impl ClientState {
    fn libraries(&self) -> std::sync::MutexGuard<'_, Libraries> {
        let mut libraries = self
            .libraries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if libraries.process != process {
            let of_parent = std::mem::take(&mut *libraries);
            // Its drop would act on threads that do not exist in this process.
            std::mem::forget(of_parent);
            libraries.process = process;
        }
        libraries
    }
}

impl Settings {
    fn build(&self, needs_daemon: bool) -> Result<Tenure, Error> {
        let mut builder = match needs_daemon {
            true => Builder::from_env()?,
            false => Tenure::builder(),
        };
        if let Some(url) = &self.url {
            builder = builder.nodes(Endpoint::list(url)?);
        }
        if let Some(name) = &self.name {
            builder = builder.name(name);
        }
        if let Some(token) = &self.token {
            builder = builder.token(token);
        }
        if let Some(file) = &self.token_file {
            builder = builder.token_file(file);
        }
        if let Some(file) = &self.ca_file {
            builder = builder.trust(file);
        }
        if let Some(pin) = &self.pin {
            builder = builder.pin(pin);
        }
        if let Some((certificate, key)) = &self.identity {
            builder = builder.identity(certificate, key);
        }
        if self.allow_plaintext {
            builder = builder.allow_plaintext();
        }
        let mut tuning = Tuning::default();
        if !self.durable {
            tuning.files.durability = Durability::Fast;
        }
        if self.reclaim_by_age {
            tuning.files.reclaim = Reclaim::Age;
        }
        tuning.files.stale = self.stale;
        tuning.repository.tenure_only = self.tenure_only;
        builder.tuning(tuning).build()
    }
}
