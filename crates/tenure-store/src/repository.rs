//! Public API: acquires, inspects and breaks locks; `adopt` continues a lock that a process left.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use tenure_files::Class;
use tenure_files::Token;
use tokio::sync::{OnceCell, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::address::{RepositoryAddress, Scheme};
use crate::clocks::now;
#[cfg(feature = "dir")]
use crate::directory::{Directory, ProbeAccess};
use crate::driver::{self, DriverState, EventListener};
use crate::envelope::{Accept, Codec, DataKey, Seal};
use crate::error::Error;
use crate::guard::{RepositoryGuard, Ticket};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode, LockSettings, LockTerms};
#[cfg(feature = "bucket")]
use crate::object::Objects;
use crate::protocol::{
    Abilities, Acquire, AcquireParams, AcquireRefusal, Acquired, BreakLocks, BreakResult,
    BreakTarget, HoldProcedure, Insist, ListLocks, LockListing, OpBody, OpFailure, OpResult,
    OwnRecord, Probe, StoreOp, WaitBehavior,
};
use crate::record::HolderBlock;
use crate::runtime;
use crate::staleness::Observations;
use crate::store::Store;

/// Options for opening a repository.
#[derive(Clone, Default)]
pub struct Options {
    /// Times of a lock, and how it reacts to conflicts.
    pub settings: LockSettings,
    /// The data key of the repository, to read sealed records (C12 (data key of a repository)).
    pub key: Option<DataKey>,
    /// Whether to seal our own records.
    pub seal: Seal,
    /// Which records count as records. [`Accept::Sealed`] needs a data key and implies
    /// [`Seal::Yes`].
    pub accept: Accept,
    /// Whether a store without conditional writes is acceptable.
    pub demand: Demand,
    /// Settings of the store client that override the environment: `aws_endpoint`, `aws_region`, …
    pub config: Vec<(String, String)>,
}

impl std::fmt::Debug for Options {
    /// Omits the values of `config`, because some are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config: Vec<_> = self.config.iter().map(|(key, _)| key).collect();
        f.debug_struct("Options")
            .field("settings", &self.settings)
            .field("key", &self.key)
            .field("seal", &self.seal)
            .field("accept", &self.accept)
            .field("demand", &self.demand)
            .field("config", &config)
            .finish()
    }
}

/// What the store must support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Demand {
    /// Nothing: if conditional writes are missing, longer waits replace them.
    #[default]
    Anything,
    /// Conditional writes (`--require-cas`, P27 (require conditional writes)).
    ConditionalWrites,
}

/// A lock request: mode, operation and how to wait.
#[derive(Clone)]
pub struct LockPurpose {
    /// The requested mode.
    pub mode: LockMode,
    /// The `operation` field of the record: `backup`, `prune`, …
    pub operation: String,
    /// How long to wait while the lock is held.
    pub wait_limit: WaitLimit,
    /// Which process the lock depends on.
    pub liveness: FollowedProcess,
    /// Receives an event when the request waits, and the notices of the held lock.
    pub listener: Option<EventListener>,
}

impl LockPurpose {
    /// Creates a request that does not wait.
    pub fn new(mode: LockMode, operation: impl Into<String>) -> LockPurpose {
        LockPurpose {
            mode,
            operation: operation.into(),
            wait_limit: WaitLimit::None,
            liveness: FollowedProcess::Process,
            listener: None,
        }
    }
}

/// The maximum time to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// Do not wait, like the originals (P19 (waiting for the repository)).
    None,
    /// Wait at most this long.
    For(Duration),
    /// Wait without a limit.
    Forever,
}

/// Which process a lock depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowedProcess {
    /// This process. When it is dead and the lease has expired, the lock is stale.
    Process,
    /// None. Only the ttl ends the lock (C13 (holds for scripts)).
    Lease,
}

/// Abilities and clock of a store, for `tenure doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreHealth {
    /// Which conditional operations the store supports, and how it handles versions.
    pub abilities: Abilities,
    /// How far the store's clock is ahead of ours; `None` if the store shows no clock.
    pub clock_ahead: Option<SignedDuration>,
}

/// A repository whose locks can be acquired, inspected and broken. Clones share their state.
#[derive(Clone)]
pub struct Repository(Arc<Inner>);

struct Inner {
    place: RepositoryAddress,
    store: Arc<dyn Store>,
    /// The same store for inspection; a directory is then never written.
    window: Arc<dyn Store>,
    settings: LockSettings,
    demand: Demand,
    abilities: OnceCell<Abilities>,
    observations: Mutex<Observations>,
}

impl Repository {
    /// Opens the repository at `place`.
    ///
    /// A directory must exist. No lock is read or written yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings are invalid, the ttl is too long for sealed records, or the
    /// store cannot be opened.
    #[cfg_attr(
        not(feature = "bucket"),
        expect(unused_variables, reason = "a directory has no client to configure")
    )]
    pub fn open(place: RepositoryAddress, options: Options) -> Result<Repository, Error> {
        let Options {
            settings,
            key,
            seal,
            accept,
            demand,
            config,
        } = options;
        // Validate with level 0, which has the longest default settle time, so that the settings
        // are valid at every level.
        settings.terms(ConditionLevel::Nothing)?;
        if accept == Accept::Sealed && key.is_none() {
            return Err(Error::NoDataKey);
        }
        // Our own records must count, too.
        let seal = match accept {
            Accept::Any => seal,
            Accept::Sealed => Seal::Yes,
        };
        // P24 (unparsable repository records): clients without the key treat a sealed record as
        // stale 120 s after its last refresh.
        if seal == Seal::Yes && settings.ttl > Duration::from_secs(120) {
            return Err(Error::SealedTtl(settings.ttl));
        }
        let codec = match key {
            Some(key) => Codec::with_key(key, seal).accepting(accept),
            None => Codec::plain(),
        };
        let (store, window, known): (Arc<dyn Store>, Arc<dyn Store>, _) = match &place {
            #[cfg(feature = "dir")]
            RepositoryAddress::Directory(path) => {
                let open = |access| {
                    Directory::open(path, codec.clone(), access).map_err(|error| Error::Open {
                        place: Box::new(place.clone()),
                        class: error.class(),
                        text: error.to_string(),
                    })
                };
                let known = Abilities {
                    level: ConditionLevel::Deletes,
                    resurfaces: false,
                };
                (
                    Arc::new(open(ProbeAccess::Write)?),
                    Arc::new(open(ProbeAccess::Look)?),
                    Some(known),
                )
            }
            #[cfg(feature = "bucket")]
            RepositoryAddress::Bucket(bucket) if missing_feature(&place).is_none() => {
                let objects =
                    Objects::open(bucket, &config, codec).map_err(|error| Error::Open {
                        place: Box::new(place.clone()),
                        class: Class::BadInput,
                        text: crate::store_messages::plain(&error.to_string()),
                    })?;
                let objects: Arc<dyn Store> = Arc::new(objects);
                (Arc::clone(&objects), objects, None)
            }
            _ => {
                let feature = missing_feature(&place).unwrap_or("bucket");
                return Err(Error::Open {
                    place: Box::new(place),
                    class: Class::Unsupported,
                    text: format!("this program was built without the feature `{feature}`"),
                });
            }
        };
        let abilities = OnceCell::new_with(known);
        Ok(Repository::build(
            place, store, window, settings, demand, abilities,
        ))
    }

    /// Creates a repository on a store of a test. Its abilities are probed at the first lock.
    #[doc(hidden)]
    pub fn on(
        place: RepositoryAddress,
        store: Arc<dyn Store>,
        settings: LockSettings,
    ) -> Repository {
        let window = Arc::clone(&store);
        let abilities = OnceCell::new();
        Repository::build(place, store, window, settings, Demand::Anything, abilities)
    }

    fn build(
        place: RepositoryAddress,
        store: Arc<dyn Store>,
        window: Arc<dyn Store>,
        settings: LockSettings,
        demand: Demand,
        abilities: OnceCell<Abilities>,
    ) -> Repository {
        let observations = Mutex::default();
        Repository(Arc::new(Inner {
            place,
            store,
            window,
            settings,
            demand,
            abilities,
            observations,
        }))
    }

    /// Returns the address of the repository.
    pub fn place(&self) -> &RepositoryAddress {
        &self.0.place
    }

    /// Acquires a lock.
    ///
    /// Dropping the future cancels the request; a record that was already written is removed in the
    /// background.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] if the lock was not acquired, [`Error::Unsupported`] if the store
    /// lacks a required feature.
    pub async fn lock(&self, want: LockPurpose) -> Result<RepositoryGuard, Error> {
        let (cancel, cancelled) = oneshot::channel::<()>();
        let inner = Arc::clone(&self.0);
        let guard = self
            .0
            .on_runtime(async move { inner.lock(want, cancelled).await })
            .await?;
        drop(cancel);
        guard
    }

    /// Continues a lock that another process left (C13), by reviving it (P34 (revive a lapsed
    /// lease)). It keeps its fencing number, unless another client has taken one since.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotHeld`] if the record of the ticket is gone, [`Error::Lost`] if the lock
    /// cannot be revived.
    pub async fn adopt(&self, ticket: Ticket) -> Result<RepositoryGuard, Error> {
        let inner = Arc::clone(&self.0);
        let guard = self
            .0
            .on_runtime(async move { inner.adopt(ticket).await })
            .await??;
        // If this fails, dropping the guard releases the lock, as P34 requires.
        guard.revive().await?;
        Ok(guard)
    }

    /// Releases a lock that another process left (C13).
    pub async fn release(&self, ticket: Ticket) -> Result<(), Error> {
        let inner = Arc::clone(&self.0);
        let guard = self
            .0
            .on_runtime(async move { inner.adopt(ticket).await })
            .await??;
        guard.release().await
    }

    /// Returns every lock with its verdict. Writes nothing (P42 (inspection never writes)).
    pub async fn inspect(&self) -> Result<LockListing, Error> {
        let inner = Arc::clone(&self.0);
        self.0
            .on_runtime(async move { inner.inspect().await })
            .await?
    }

    /// Removes the locks `targets`, each only in the version that was seen unless `insist` is
    /// [`Insist::Yes`] (P37 (break repository locks)).
    pub async fn break_locks(
        &self,
        targets: Vec<BreakTarget>,
        insist: Insist,
    ) -> Result<BreakResult, Error> {
        let inner = Arc::clone(&self.0);
        let broken = async move {
            let terms = inner.terms().await?;
            Ok(driver::drive(
                inner.store.as_ref(),
                BreakLocks::new(terms, targets, insist),
            )
            .await)
        };
        self.0.on_runtime(broken).await?
    }

    /// Returns the abilities of the store (P26 (levels of conditional writes)). The first call
    /// probes them with a scratch object; later calls return the same result.
    pub async fn abilities(&self) -> Result<Abilities, Error> {
        let inner = Arc::clone(&self.0);
        self.0
            .on_runtime(async move { inner.abilities().await })
            .await?
    }

    /// Returns the abilities and the clock difference of the store. Writes scratch objects.
    pub async fn health(&self) -> Result<StoreHealth, Error> {
        let abilities = self.abilities().await?;
        let inner = Arc::clone(&self.0);
        let clock_ahead = self
            .0
            .on_runtime(async move { inner.clock_ahead().await })
            .await?;
        Ok(StoreHealth {
            abilities,
            clock_ahead,
        })
    }
}

impl Inner {
    async fn on_runtime<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let failed = |text: String| self.failed(OpFailure::lasting(text));
        let task = runtime::spawn(work).map_err(|error| failed(error.to_string()))?;
        task.await.map_err(|error| failed(error.to_string()))
    }

    fn failed(&self, failure: OpFailure) -> Error {
        Error::Store {
            place: self.place(),
            failure,
        }
    }

    fn place(&self) -> Box<RepositoryAddress> {
        Box::new(self.place.clone())
    }

    async fn abilities(&self) -> Result<Abilities, Error> {
        let probe = || async {
            let probe = Probe::new(random(), self.settings.retries);
            driver::drive(self.store.as_ref(), probe)
                .await
                .map_err(|failure| self.failed(failure))
        };
        self.abilities.get_or_try_init(probe).await.copied()
    }

    async fn terms(&self) -> Result<LockTerms, Error> {
        let Abilities { level, resurfaces } = self.abilities().await?;
        let unsupported = |what| Error::Unsupported {
            place: self.place(),
            what,
        };
        if resurfaces {
            return Err(unsupported(
                "deleting an object brings an older version of it back here; use the store's S3 \
                 interface, or switch versions off",
            ));
        }
        if level == ConditionLevel::Nothing && self.demand == Demand::ConditionalWrites {
            return Err(unsupported(
                "the store has no conditional writes, and they were demanded",
            ));
        }
        Ok(self.settings.terms(level)?)
    }

    async fn lock(
        self: Arc<Inner>,
        want: LockPurpose,
        cancelled: oneshot::Receiver<()>,
    ) -> Result<RepositoryGuard, Error> {
        let LockPurpose {
            mode,
            operation,
            wait_limit,
            liveness,
            listener,
        } = want;
        let terms = self.terms().await?;
        let block = match liveness {
            FollowedProcess::Process => self.store.block(),
            // Without pid, start time and `flock`, no process can prove this holder dead or alive.
            FollowedProcess::Lease => HolderBlock {
                flock: Some(false),
                pid: None,
                start: None,
                ..self.store.block()
            },
        };
        let (wait, deadline) = match wait_limit {
            WaitLimit::None => (WaitBehavior::No, None),
            WaitLimit::For(span) => (WaitBehavior::Yes, Instant::now().checked_add(span)),
            WaitLimit::Forever => (WaitBehavior::Yes, None),
        };
        let holder = format!(
            "{} (pid {})",
            tenure_files::internal::host_name(),
            std::process::id()
        );
        let request = AcquireParams {
            mode,
            operation,
            holder,
            block,
            wait,
            seed: random(),
        };
        let steps = Acquire::new(terms.clone(), request, self.observations());
        let store = self.store.as_ref();
        let acquired = driver::acquire(store, steps, cancelled, deadline, listener.clone()).await;
        match acquired {
            Ok(acquired) => Ok(self.hold(HoldProcedure::new(terms, acquired), mode, listener)),
            Err(refusal) => Err(self.refused(mode, refusal)),
        }
    }

    fn refused(&self, mode: LockMode, refusal: AcquireRefusal) -> Error {
        Error::Refused {
            place: self.place(),
            mode,
            refusal: Box::new(refusal),
        }
    }

    fn hold(
        &self,
        hold: HoldProcedure,
        mode: LockMode,
        listener: Option<EventListener>,
    ) -> RepositoryGuard {
        let (orders, inbox) = mpsc::unbounded_channel();
        let (state, seen) = watch::channel(DriverState::of(&hold));
        let guard = RepositoryGuard::new(self.place.clone(), mode, hold.own(), orders, seen);
        let store = Arc::clone(&self.store);
        tokio::spawn(driver::keep(store, hold, inbox, state, listener));
        guard
    }

    async fn adopt(&self, ticket: Ticket) -> Result<RepositoryGuard, Error> {
        let terms = self.terms().await?;
        let Ticket { key, token, fence } = ticket;
        let object = match self.store.perform(StoreOp::Read(key.clone())).await {
            OpResult::Found(object) => object,
            OpResult::Absent => {
                return Err(Error::NotHeld {
                    place: self.place(),
                });
            }
            OpResult::Failed(failure) => return Err(self.failed(failure)),
            other => return Err(self.failed(OpFailure::lasting(format!("{other:?}")))),
        };
        let ours = object
            .record()
            .filter(|record| record.identity().token.as_deref() == Some(token.as_str()));
        let Some(record) = ours.cloned() else {
            return Err(Error::NotHeld {
                place: self.place(),
            });
        };
        let mode = match key {
            ObjectKey::Exclusive => LockMode::Exclusive,
            ObjectKey::Shared(_) | ObjectKey::Fence | ObjectKey::Probe(_) => LockMode::Shared,
        };
        let fence = record.fence().or(fence);
        let now = now();
        let own = OwnRecord {
            key,
            record,
            version: object.version,
            sent: now.boot,
        };
        let acquired = Acquired {
            mode,
            own,
            fence,
            observations: self.observations(),
        };
        Ok(self.hold(HoldProcedure::adopted(terms, acquired, now), mode, None))
    }

    async fn inspect(&self) -> Result<LockListing, Error> {
        // No probe: the abilities of the store do not change a verdict.
        let terms = self.settings.terms(ConditionLevel::Nothing)?;
        let listing = ListLocks::all(terms, self.observations());
        match driver::drive(self.window.as_ref(), listing).await {
            Ok((view, observations)) => {
                *self
                    .observations
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = observations;
                Ok(view)
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// Reads the store's clock with a scratch object, because only a response that carries an
    /// object has a date here.
    async fn clock_ahead(&self) -> Option<SignedDuration> {
        let key = ObjectKey::Probe((random() >> 64) as u64);
        let created = self
            .store
            .perform(StoreOp::Create(key.clone(), OpBody::Probe(0)))
            .await;
        let before = now().wall;
        let read = self.store.perform(StoreOp::Read(key.clone())).await;
        if let OpResult::Written(_) | OpResult::Failed(_) = created {
            self.store.perform(StoreOp::Delete(key)).await;
        }
        match read {
            OpResult::Found(object) => Some(object.store_now?.duration_since(before)),
            _ => None,
        }
    }

    fn observations(&self) -> Observations {
        self.observations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl std::fmt::Debug for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Repository").field(&self.0.place).finish()
    }
}

fn random() -> u128 {
    u128::from_be_bytes(Token::random().bytes())
}

/// Returns the cargo feature for `place` if this build lacks it.
fn missing_feature(place: &RepositoryAddress) -> Option<&'static str> {
    let (feature, is_built) = match place {
        RepositoryAddress::Directory(_) => ("dir", cfg!(feature = "dir")),
        RepositoryAddress::Bucket(bucket) => match bucket.scheme {
            Scheme::S3 => ("s3", cfg!(feature = "s3")),
            Scheme::Google => ("gcs", cfg!(feature = "gcs")),
            Scheme::Azure => ("azure", cfg!(feature = "azure")),
        },
    };
    (!is_built).then_some(feature)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Debug` output contains no secrets.
    #[test]
    fn options_do_not_show_secrets() {
        let options = Options {
            key: Some(DataKey::new([0x5a; 32])),
            config: vec![("aws_secret_access_key".into(), "hush".into())],
            ..Options::default()
        };
        let shown = format!("{options:?}");
        assert!(shown.contains("aws_secret_access_key"));
        assert!(!shown.contains("hush") && !shown.contains("90"), "{shown}");
        let place: RepositoryAddress = "s3://bucket".parse().unwrap();
        let opened = format!("{:?}", Repository::open(place, options));
        assert!(!opened.contains("hush"), "{opened}");
    }
}
