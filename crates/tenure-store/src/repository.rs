//! A repository: the place, what it can do, and everything one can ask of its locks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use tenure_files::Class;
use tenure_files::identity::Token;
use tokio::sync::{OnceCell, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::address::Address;
use crate::clocks::now;
use crate::directory::{Access, Directory};
use crate::driver::{self, Listener, State};
use crate::error::Error;
use crate::guard::{Guard, Ticket};
use crate::judge::Sightings;
use crate::keeper;
use crate::key::Key;
use crate::object::Objects;
use crate::onion::{Codec, DataKey, Seal};
use crate::record::Block;
use crate::steps::{
    Abilities, Acquire, Acquired, Answer, Body, Break, Broken, Failure, Hold, Insist, Op, Own,
    Probe, Refusal, Request, Survey, Target, View, Wait,
};
use crate::store::Store;
use crate::terms::{Level, Mode, Settings, Terms};

/// How a repository is opened. The defaults suit everybody.
#[derive(Clone, Default)]
pub struct Options {
    /// Times and tempers.
    pub settings: Settings,
    /// The repository's data key, to read what is sealed (C12).
    pub key: Option<DataKey>,
    /// Whether to seal our own records.
    pub seal: Seal,
    /// Whether a store without conditional writes will do.
    pub demand: Demand,
    /// Settings of the store's client, on top of the environment: `aws_endpoint`, `aws_region`, …
    pub config: Vec<(String, String)>,
}

impl std::fmt::Debug for Options {
    /// Without the values of `config`: secrets are among them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config: Vec<_> = self.config.iter().map(|(key, _)| key).collect();
        f.debug_struct("Options")
            .field("settings", &self.settings)
            .field("key", &self.key)
            .field("seal", &self.seal)
            .field("demand", &self.demand)
            .field("config", &config)
            .finish()
    }
}

/// What the store must be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Demand {
    /// Nothing: where conditions are missing, more waiting takes their place.
    #[default]
    Anything,
    /// Conditional writes (`--require-cas`, P27).
    ConditionalWrites,
}

/// What one wants to lock for.
#[derive(Clone)]
pub struct Want {
    /// Shared or exclusive.
    pub mode: Mode,
    /// The record's `operation`: `backup`, `prune`, …
    pub operation: String,
    /// What to do while it is held by others.
    pub patience: Patience,
    /// Whose life the lock follows.
    pub life: LifeOf,
    /// Told when somebody is in the way, and of what happens while holding.
    pub listener: Option<Listener>,
}

impl Want {
    /// A lock of this mode for this operation, at once or not at all.
    pub fn new(mode: Mode, operation: impl Into<String>) -> Want {
        Want {
            mode,
            operation: operation.into(),
            patience: Patience::None,
            life: LifeOf::Process,
            listener: None,
        }
    }
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all, as the originals (P19).
    None,
    /// This long.
    For(Duration),
    /// As long as it takes.
    Forever,
}

/// Whose life a lock follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeOf {
    /// This process's: once it is gone, the lock is dead as soon as it has expired.
    Process,
    /// Nobody's: it lives by its ttl alone (C13).
    Lease,
}

/// What a place can promise, for `doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// What the store does with conditions and versions.
    pub abilities: Abilities,
    /// How far the store's clock is ahead of ours; `None` if it shows none.
    pub clock_ahead: Option<SignedDuration>,
}

/// A repository whose locks one can take, look at and break.
#[derive(Clone)]
pub struct Repository(Arc<Inner>);

struct Inner {
    place: Address,
    store: Arc<dyn Store>,
    /// The same, for looking only.
    window: Arc<dyn Store>,
    settings: Settings,
    demand: Demand,
    abilities: OnceCell<Abilities>,
    sightings: Mutex<Sightings>,
}

impl Repository {
    /// Opens the repository at `place`. Nothing is read or written yet.
    pub fn open(place: Address, options: Options) -> Result<Repository, Error> {
        let Options {
            settings,
            key,
            seal,
            demand,
            config,
        } = options;
        settings.terms(Level::Nothing)?;
        // P24: whoever has no key gives an opaque record 120 s after its last refresh.
        if seal == Seal::Yes && settings.ttl > Duration::from_secs(120) {
            return Err(Error::SealedTtl(settings.ttl));
        }
        let codec = match key {
            Some(key) => Codec::with_key(key, seal),
            None => Codec::plain(),
        };
        let (store, window, known): (Arc<dyn Store>, Arc<dyn Store>, _) = match &place {
            Address::Directory(path) => {
                let open = |access| {
                    Directory::open(path, codec.clone(), access).map_err(|error| Error::Open {
                        place: Box::new(place.clone()),
                        class: error.class(),
                        text: error.to_string(),
                    })
                };
                let known = Abilities {
                    level: Level::Deletes,
                    resurfaces: false,
                };
                (
                    Arc::new(open(Access::Write)?),
                    Arc::new(open(Access::Look)?),
                    Some(known),
                )
            }
            Address::Bucket(bucket) => {
                let objects =
                    Objects::open(bucket, &config, codec).map_err(|error| Error::Open {
                        place: Box::new(place.clone()),
                        class: Class::BadInput,
                        text: error.to_string(),
                    })?;
                let objects: Arc<dyn Store> = Arc::new(objects);
                (Arc::clone(&objects), objects, None)
            }
        };
        let abilities = OnceCell::new_with(known);
        Ok(Repository::build(
            place, store, window, settings, demand, abilities,
        ))
    }

    /// A repository on a store of one's own: what it can do is probed.
    pub fn on(place: Address, store: Arc<dyn Store>, settings: Settings) -> Repository {
        let window = Arc::clone(&store);
        let abilities = OnceCell::new();
        Repository::build(place, store, window, settings, Demand::Anything, abilities)
    }

    fn build(
        place: Address,
        store: Arc<dyn Store>,
        window: Arc<dyn Store>,
        settings: Settings,
        demand: Demand,
        abilities: OnceCell<Abilities>,
    ) -> Repository {
        let sightings = Mutex::default();
        Repository(Arc::new(Inner {
            place,
            store,
            window,
            settings,
            demand,
            abilities,
            sightings,
        }))
    }

    /// Where it is.
    pub fn place(&self) -> &Address {
        &self.0.place
    }

    /// Takes a lock. A future that is dropped leaves nothing behind.
    pub async fn lock(&self, want: Want) -> Result<Guard, Error> {
        let (cancel, cancelled) = oneshot::channel::<()>();
        let inner = Arc::clone(&self.0);
        let guard = self
            .0
            .on_keeper(async move { inner.lock(want, cancelled).await })
            .await?;
        drop(cancel);
        guard
    }

    /// Goes on with a lock that another process left (C13), by reviving it (P34).
    pub async fn adopt(&self, ticket: Ticket) -> Result<Guard, Error> {
        let inner = Arc::clone(&self.0);
        let guard = self
            .0
            .on_keeper(async move { inner.adopt(ticket).await })
            .await??;
        // Dropping the guard on failure gives the lock back, as P34 asks.
        guard.revive().await?;
        Ok(guard)
    }

    /// Gives back a lock that another process left (C13).
    pub async fn release(&self, ticket: Ticket) -> Result<(), Error> {
        let inner = Arc::clone(&self.0);
        let guard = self
            .0
            .on_keeper(async move { inner.adopt(ticket).await })
            .await??;
        guard.release().await
    }

    /// Every lock there is, with its verdict (P42). Writes nothing.
    pub async fn inspect(&self) -> Result<View, Error> {
        let inner = Arc::clone(&self.0);
        self.0
            .on_keeper(async move { inner.inspect().await })
            .await?
    }

    /// Removes the locks `targets`, as they were seen (P37).
    pub async fn break_locks(&self, targets: Vec<Target>, insist: Insist) -> Result<Broken, Error> {
        let inner = Arc::clone(&self.0);
        let broken = async move {
            let terms = inner.terms().await?;
            Ok(driver::drive(inner.store.as_ref(), Break::new(terms, targets, insist)).await)
        };
        self.0.on_keeper(broken).await?
    }

    /// What the store can do; probed once and remembered (P26). Writes a scratch object.
    pub async fn abilities(&self) -> Result<Abilities, Error> {
        let inner = Arc::clone(&self.0);
        self.0
            .on_keeper(async move { inner.abilities().await })
            .await?
    }

    /// What this place can promise.
    pub async fn health(&self) -> Result<Health, Error> {
        let abilities = self.abilities().await?;
        let inner = Arc::clone(&self.0);
        let clock_ahead = self
            .0
            .on_keeper(async move { inner.clock_ahead().await })
            .await?;
        Ok(Health {
            abilities,
            clock_ahead,
        })
    }
}

impl Inner {
    async fn on_keeper<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let failed = |text: String| self.failed(Failure::lasting(text));
        let task = keeper::spawn(work).map_err(|error| failed(error.to_string()))?;
        task.await.map_err(|error| failed(error.to_string()))
    }

    fn failed(&self, failure: Failure) -> Error {
        Error::Store {
            place: self.place(),
            failure,
        }
    }

    fn place(&self) -> Box<Address> {
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

    async fn terms(&self) -> Result<Terms, Error> {
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
        if level == Level::Nothing && self.demand == Demand::ConditionalWrites {
            return Err(unsupported(
                "the store has no conditional writes, and they were demanded",
            ));
        }
        Ok(self.settings.terms(level)?)
    }

    async fn lock(
        self: Arc<Inner>,
        want: Want,
        cancelled: oneshot::Receiver<()>,
    ) -> Result<Guard, Error> {
        let Want {
            mode,
            operation,
            patience,
            life,
            listener,
        } = want;
        let terms = self.terms().await?;
        let block = match life {
            LifeOf::Process => self.store.block(),
            LifeOf::Lease => Block {
                flock: Some(false),
                pid: None,
                start: None,
                ..self.store.block()
            },
        };
        let (wait, deadline) = match patience {
            Patience::None => (Wait::No, None),
            Patience::For(span) => (Wait::Yes, Instant::now().checked_add(span)),
            Patience::Forever => (Wait::Yes, None),
        };
        let holder = format!(
            "{} (pid {})",
            tenure_files::identity::host_name(),
            std::process::id()
        );
        let request = Request {
            mode,
            operation,
            holder,
            block,
            wait,
            seed: random(),
        };
        let steps = Acquire::new(terms.clone(), request, self.sightings());
        let store = self.store.as_ref();
        let acquired = driver::acquire(store, steps, cancelled, deadline, listener.clone()).await;
        match acquired {
            Ok(acquired) => Ok(self.hold(Hold::new(terms, acquired), mode, listener)),
            Err(refusal) => Err(self.refused(mode, refusal)),
        }
    }

    fn refused(&self, mode: Mode, refusal: Refusal) -> Error {
        Error::Refused {
            place: self.place(),
            mode,
            refusal: Box::new(refusal),
        }
    }

    fn hold(&self, hold: Hold, mode: Mode, listener: Option<Listener>) -> Guard {
        let (orders, inbox) = mpsc::unbounded_channel();
        let (state, seen) = watch::channel(State::of(&hold));
        let guard = Guard::new(self.place.clone(), mode, hold.own(), orders, seen);
        let store = Arc::clone(&self.store);
        tokio::spawn(driver::keep(store, hold, inbox, state, listener));
        guard
    }

    async fn adopt(&self, ticket: Ticket) -> Result<Guard, Error> {
        let terms = self.terms().await?;
        let Ticket { key, token } = ticket;
        let object = match self.store.perform(Op::Read(key.clone())).await {
            Answer::Found(object) => object,
            Answer::Absent => {
                return Err(Error::NotHeld {
                    place: self.place(),
                });
            }
            Answer::Failed(failure) => return Err(self.failed(failure)),
            other => return Err(self.failed(Failure::lasting(format!("{other:?}")))),
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
            Key::Exclusive => Mode::Exclusive,
            Key::Shared(_) | Key::Fence | Key::Probe(_) => Mode::Shared,
        };
        let fence = record.fence();
        let now = now();
        let own = Own {
            key,
            record,
            version: object.version,
            sent: now.boot,
        };
        let acquired = Acquired {
            mode,
            own,
            fence,
            sightings: self.sightings(),
        };
        Ok(self.hold(Hold::adopted(terms, acquired, now), mode, None))
    }

    async fn inspect(&self) -> Result<View, Error> {
        // Looking needs no probe: what the store can do changes no verdict.
        let terms = self.settings.terms(Level::Nothing)?;
        let survey = Survey::all(terms, self.sightings());
        match driver::drive(self.window.as_ref(), survey).await {
            Ok((view, sightings)) => {
                *self
                    .sightings
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = sightings;
                Ok(view)
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// Compares clocks over a scratch object: an answer without an object has no date for us.
    async fn clock_ahead(&self) -> Option<SignedDuration> {
        let key = Key::Probe((random() >> 64) as u64);
        let created = self
            .store
            .perform(Op::Create(key.clone(), Body::Probe(0)))
            .await;
        let before = now().wall;
        let read = self.store.perform(Op::Read(key.clone())).await;
        if let Answer::Written(_) | Answer::Failed(_) = created {
            self.store.perform(Op::Delete(key)).await;
        }
        match read {
            Answer::Found(object) => Some(object.store_now?.duration_since(before)),
            _ => None,
        }
    }

    fn sightings(&self) -> Sightings {
        self.sightings
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Secrets never get into a log.
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
        let place: Address = "s3://bucket".parse().unwrap();
        let opened = format!("{:?}", Repository::open(place, options));
        assert!(!opened.contains("hush"), "{opened}");
    }
}
