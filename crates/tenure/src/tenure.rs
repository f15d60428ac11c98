//! Entry point: settings are given once, then locks are made from them.
//!
//! Clients of the daemon and of repositories are created at their first use and shared by all
//! clones.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
#[cfg(feature = "store")]
use std::time::Duration;

use crate::address::{Address, IntoAddress};
use crate::backend::{self, BreakRequest};
use crate::capabilities::Capabilities;
use crate::endpoint::Endpoint;
use crate::error::{Blocker, Error};
use crate::hold::Hold;
use crate::inspect::{Broken, Force, LockState, WatchStream};
use crate::lock::{Lock, LockAll};
use crate::request::Request;
use crate::tuning::Tuning;
use crate::values::{Fence, HoldId, Holder};

/// A factory for locks of every backend, with one set of settings.
///
/// Cheap to clone; clones share connections.
///
/// ```
/// use tenure::Tenure;
///
/// # async fn example() -> Result<(), tenure::Error> {
/// let tenure = Tenure::from_env()?;
/// let guard = tenure.lock("mem:nightly")?.no_wait().purpose("compaction").acquire().await?;
/// println!("{}", tenure.inspect("mem:nightly").await?);
/// guard.release().await?;
/// # Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Clone)]
pub struct Tenure {
    settings: Arc<TenureSettings>,
    tuning: Arc<Tuning>,
    owner: Option<Arc<str>>,
}

/// The settings of a [`Tenure`], and the clients that were created from them.
pub(crate) struct TenureSettings {
    pub(crate) nodes: Vec<Endpoint>,
    pub(crate) holder: Holder,
    pub(crate) access: DaemonAccess,
    clients: Mutex<HashMap<Vec<Endpoint>, backend::daemon::DaemonClient>>,
    #[cfg(feature = "store")]
    repositories: Mutex<HashMap<(String, Duration), tenure_store::Repository>>,
}

/// Credentials for the daemon: token, TLS roots, client certificate.
#[derive(Clone, Default)]
pub(crate) struct DaemonAccess {
    pub(crate) token: Option<String>,
    /// The file of the token, if there is no `token`.
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) authority: Option<PathBuf>,
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    /// Fingerprint of the only certificate to accept.
    pub(crate) pin: Option<String>,
    /// TLS for all nodes, also for those whose address does not ask for it.
    pub(crate) tls: bool,
    /// Whether the token may be sent beyond loopback without TLS.
    pub(crate) plaintext: bool,
    /// The nodes that the token was given for; it is sent to no other.
    #[cfg_attr(
        not(feature = "daemon"),
        expect(dead_code, reason = "only the client of the daemon sends the token")
    )]
    pub(crate) nodes: Vec<Endpoint>,
}

/// A builder for [`Tenure`].
#[derive(Default)]
#[must_use = "settings do nothing until they are built"]
pub struct Builder {
    nodes: Vec<Endpoint>,
    holder: Option<Holder>,
    access: DaemonAccess,
    tuning: Tuning,
}

impl Tenure {
    /// Creates an instance with the settings of the environment.
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `TENURE_URL` | the daemon's nodes, `tenure://host:port,host:port`, or `tenure+tls://…` for TLS; default 127.0.0.1:50051 |
    /// | `TENURE_CLIENT_AUTH_TOKEN`, `TENURE_CLIENT_AUTH_TOKEN_FILE` | the credential, sent to the nodes of `TENURE_URL` only |
    /// | `TENURE_CA_FILE` | PEM file with the certificate authorities to trust; enables TLS |
    /// | `TENURE_PIN` | fingerprint of the daemon's certificate, `sha256:…`, the only one to accept; enables TLS |
    /// | `TENURE_ALLOW_PLAINTEXT` | `true`: the credential may be sent to other machines without TLS |
    /// | `TENURE_CLIENT_CERT_FILE`, `TENURE_CLIENT_KEY_FILE` | the client certificate for mutual TLS |
    /// | `TENURE_NAME` | the name of this holder |
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if a variable has no valid value, or a file that it names cannot be read.
    pub fn from_env() -> Result<Tenure, Error> {
        Builder::from_env()?.build()
    }

    /// Returns a builder that ignores the environment.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns a builder for a lock on `place`: an address as text, the path of a file, or an
    /// [`Address`].
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if `place` is no valid address.
    pub fn lock(&self, place: impl IntoAddress) -> Result<Lock, Error> {
        Ok(Lock::new(self.clone(), self.request(place.into_address()?)))
    }

    /// Returns a builder for several locks that are acquired all or none, in a fixed order: C6
    /// (several locks at once).
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if one of `places` is no valid address.
    pub fn lock_all(
        &self,
        places: impl IntoIterator<Item = impl IntoAddress>,
    ) -> Result<LockAll, Error> {
        let mut requests = Vec::new();
        for place in places {
            requests.push(self.request(place.into_address()?));
        }
        Ok(LockAll::new(self.clone(), requests))
    }

    /// Returns a copy whose locks all belong to the owner `owner`.
    ///
    /// Locks of one owner never exclude each other. On the daemon they share leases and renewals.
    #[must_use]
    pub fn session(&self, owner: &str) -> Tenure {
        Tenure {
            owner: Some(owner.into()),
            ..self.clone()
        }
    }

    /// Returns what the backend of `place` supports. Does no I/O.
    pub fn capabilities(&self, place: impl IntoAddress) -> Result<Capabilities, Error> {
        Ok(Capabilities::of(&place.into_address()?))
    }

    /// Returns who holds `place`, who waits for it, and which conflict rule applies.
    ///
    /// Changes nothing.
    pub async fn inspect(&self, place: impl IntoAddress) -> Result<LockState, Error> {
        backend::inspect(self, &place.into_address()?).await
    }

    /// Returns all locks at or below `place`: in a directory, in a tree of paths, or of a
    /// repository.
    pub async fn list(&self, place: impl IntoAddress) -> Result<Vec<LockState>, Error> {
        backend::list(self, &place.into_address()?).await
    }

    /// Returns all locks of the configured daemon.
    pub async fn list_all(&self) -> Result<Vec<LockState>, Error> {
        backend::daemon::list(&self.client(&[])?, &[], None).await
    }

    /// Asks the holders of `place` to release it. Returns the holders that were asked; the list is
    /// empty if the place is free.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where the backend has no release requests ([`Capabilities::ask`]).
    pub async fn ask(
        &self,
        place: impl IntoAddress,
        reason: Option<&str>,
    ) -> Result<Vec<Blocker>, Error> {
        backend::ask(self, &place.into_address()?, reason).await
    }

    /// Breaks the hold `id` of `place`; without an `id`, all holds that block `place`.
    ///
    /// `reason` goes to the audit log of the daemon; other backends ignore it.
    pub async fn break_hold(
        &self,
        place: impl IntoAddress,
        id: Option<&HoldId>,
        force: Force,
        reason: &str,
    ) -> Result<Broken, Error> {
        let breaking = BreakRequest { id, force, reason };
        backend::break_hold(self, &place.into_address()?, breaking).await
    }

    /// Returns a stream of the changes at or below `place`. It begins with the present holds.
    pub async fn watch(&self, place: impl IntoAddress) -> Result<WatchStream, Error> {
        backend::watch(self, &place.into_address()?).await
    }

    /// Renews the lease of a hold that outlives its process: C13 (holds for scripts).
    ///
    /// Returns the fence of the hold. In a repository it is a new one if another client has taken
    /// one since the hold was last renewed.
    pub async fn renew_hold(&self, hold: &Hold) -> Result<Option<Fence>, Error> {
        backend::renew_hold(self, hold).await
    }

    /// Releases a hold that outlives its process (C13).
    pub async fn release_hold(&self, hold: &Hold) -> Result<(), Error> {
        backend::release_hold(self, hold).await
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    fn request(&self, place: Address) -> Request {
        let mut request = Request::new(
            place,
            self.settings.holder.clone(),
            Arc::clone(&self.tuning),
        );
        request.owner = self.owner.as_deref().map(str::to_owned);
        request
    }

    /// Returns the repository at `place`. It is cached, so that the store is probed for conditional
    /// writes only once.
    #[cfg(feature = "store")]
    pub(crate) fn repository(
        &self,
        place: &Address,
        ttl: Duration,
    ) -> Result<tenure_store::Repository, Error> {
        let key = (place.to_string(), ttl);
        let mut known = self
            .settings
            .repositories
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(repository) = known.get(&key) {
            return Ok(repository.clone());
        }
        let repository = backend::repository::open(place, &self.tuning, ttl)?;
        known.insert(key, repository.clone());
        Ok(repository)
    }

    /// Returns a form of `place` that is equal for all spellings of one lock, with the nodes of the
    /// settings filled in (C6).
    pub(crate) fn resolved(&self, place: &Address) -> Address {
        match place.normalized() {
            Address::Daemon { nodes, path } if nodes.is_empty() => Address::Daemon {
                nodes: self.settings.nodes.clone(),
                path,
            },
            place => place,
        }
    }

    /// Returns the client of `nodes`, or of the configured nodes if `nodes` is empty. It connects
    /// at its first call.
    pub(crate) fn client(
        &self,
        nodes: &[Endpoint],
    ) -> Result<backend::daemon::DaemonClient, Error> {
        let nodes = match nodes {
            [] => &self.settings.nodes,
            nodes => nodes,
        };
        let mut clients = self
            .settings
            .clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(nodes) {
            return Ok(client.clone());
        }
        let client = backend::daemon::DaemonClient::new(nodes.to_vec(), &self.settings.access)?;
        clients.insert(nodes.to_vec(), client.clone());
        Ok(client)
    }
}

impl Default for Tenure {
    /// Ignores the environment. Daemon addresses without a host mean 127.0.0.1:50051.
    fn default() -> Tenure {
        let settings = TenureSettings {
            nodes: vec![Endpoint::default()],
            holder: Holder::here(),
            access: DaemonAccess::default(),
            clients: Mutex::default(),
            #[cfg(feature = "store")]
            repositories: Mutex::default(),
        };
        Tenure {
            settings: Arc::new(settings),
            tuning: Arc::default(),
            owner: None,
        }
    }
}

impl fmt::Debug for Tenure {
    /// Leaves out credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure")
            .field("nodes", &self.settings.nodes)
            .field("holder", &self.settings.holder)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Creates a builder with the settings of the environment; see [`Tenure::from_env`].
    pub fn from_env() -> Result<Builder, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let mut builder = Builder::default();
        if let Some(url) = variable("TENURE_URL") {
            builder.nodes = Endpoint::list(&url)?;
        }
        if let Some(name) = variable("TENURE_NAME") {
            builder = builder.name(name);
        }
        if let Some(token) = variable("TENURE_CLIENT_AUTH_TOKEN") {
            builder = builder.token(token);
        }
        if let Some(file) = variable("TENURE_CLIENT_AUTH_TOKEN_FILE") {
            std::fs::read_to_string(&file)
                .map_err(|error| Error::input(&file, format!("cannot be read: {error}")))?;
            builder = builder.token_file(file);
        }
        if let Some(file) = variable("TENURE_CA_FILE") {
            builder = builder.trust(file);
        }
        if let Some(fingerprint) = variable("TENURE_PIN") {
            builder = builder.pin(fingerprint);
        }
        match variable("TENURE_ALLOW_PLAINTEXT").as_deref() {
            None | Some("false" | "0") => {}
            Some("true" | "1") => builder = builder.allow_plaintext(),
            Some(other) => {
                let name = "TENURE_ALLOW_PLAINTEXT";
                return Err(Error::input(
                    name,
                    format!("is {other}: it must be true or false"),
                ));
            }
        }
        match (
            variable("TENURE_CLIENT_CERT_FILE"),
            variable("TENURE_CLIENT_KEY_FILE"),
        ) {
            (Some(certificate), Some(key)) => Ok(builder.identity(certificate, key)),
            (None, None) => Ok(builder),
            _ => Err(Error::input(
                "TENURE_CLIENT_CERT_FILE",
                "and TENURE_CLIENT_KEY_FILE go together: set both or none",
            )),
        }
    }

    /// Sets the nodes of the daemon. Any node serves any client; the others are for failover.
    pub fn nodes(mut self, nodes: impl IntoIterator<Item = Endpoint>) -> Builder {
        self.nodes = nodes.into_iter().collect();
        self
    }

    /// Sets the name of this holder. Default: the name of the program.
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        let mut holder = self.holder.unwrap_or_else(Holder::here);
        holder.name = name.into();
        self.holder = Some(holder);
        self
    }

    /// Sets the bearer token for the daemon.
    pub fn token(mut self, token: impl Into<String>) -> Builder {
        self.access.token = Some(token.into());
        self
    }

    /// Sets the file with the bearer token for the daemon. It is read again for each connection, so
    /// that the token can change while the program runs.
    pub fn token_file(mut self, file: impl Into<PathBuf>) -> Builder {
        self.access.token = None;
        self.access.token_file = Some(file.into());
        self
    }

    /// Enables TLS and trusts the certificate authorities in the PEM file `authority`.
    pub fn trust(mut self, authority: impl Into<PathBuf>) -> Builder {
        self.access.authority = Some(authority.into());
        self.access.tls = true;
        self
    }

    /// Enables TLS and accepts only the certificate with this fingerprint, as `tenure serve` prints it:
    /// `sha256:` and 64 hexadecimal digits.
    pub fn pin(mut self, fingerprint: impl Into<String>) -> Builder {
        self.access.pin = Some(fingerprint.into());
        self.access.tls = true;
        self
    }

    /// Allows to send the token to other machines without TLS. Everyone on the way can read it then.
    pub fn allow_plaintext(mut self) -> Builder {
        self.access.plaintext = true;
        self
    }

    /// Enables TLS and sets the client certificate and its key, two PEM files.
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Builder {
        self.access.identity = Some((certificate.into(), key.into()));
        self.access.tls = true;
        self
    }

    /// Sets options that only single protocols have.
    pub fn tuning(mut self, tuning: Tuning) -> Builder {
        self.tuning = tuning;
        self
    }

    /// Creates the instance. Does not connect.
    pub fn build(self) -> Result<Tenure, Error> {
        let plain = Tenure::default();
        let nodes = match self.nodes.is_empty() {
            true => plain.settings.nodes.clone(),
            false => self.nodes,
        };
        let settings = TenureSettings {
            access: DaemonAccess {
                nodes: nodes.clone(),
                ..self.access
            },
            nodes,
            holder: self.holder.unwrap_or_else(Holder::here),
            clients: Mutex::default(),
            #[cfg(feature = "store")]
            repositories: Mutex::default(),
        };
        Ok(Tenure {
            settings: Arc::new(settings),
            tuning: Arc::new(self.tuning),
            owner: None,
        })
    }
}
