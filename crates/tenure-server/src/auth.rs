//! Identity and permissions: who calls, and what the caller may do.
//!
//! ```text
//!   header, certificate, socket ──authenticate──▶ Caller ──judge──▶ handlers ──▶ node
//!                                     ▲
//!                   node's copy of the access control table
//! ```
//!
//! A request is authenticated once, before its body is read. The `Caller` has the rights of its
//! principal as of one version of the table; the RPC table names the verb of each call, and
//! `authorization.rs` compares. A stream keeps a `LiveCaller`, which is judged again when the table changes.

mod activity;
mod api_key;
mod authorization;
mod caller;
mod jwt;
mod root_key;
mod service;
mod session;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use subtle::ConstantTimeEq;
use tenure_core::auth::{AuthTable, Grant, Principal, Verb, VerbSet};
use tokio::sync::watch;

pub(crate) use activity::{
    ActivityTable, ConnectionSlots, LimitRefusals, OpenPlace, Place, SNAPSHOT_COST,
};
pub use api_key::ApiKey;
pub(crate) use authorization::{
    acts_as_another, judge, judge_owner, judge_watch, service_verb, take_call,
};
use caller::Right;
pub(crate) use caller::{Caller, LiveCaller};
pub(crate) use jwt::TokenIssuer;
pub(crate) use root_key::ensure_root_key;
pub(crate) use service::{AuthService, caller};
pub(crate) use session::{HEADER as SESSION_HEADER, Sessions};

use crate::audit_log::AuditLog;
use crate::config::{LoopbackAccess, RemoteAnonymous, TransportConfig};
use crate::status::{Code, Failure};
use crate::transport::tls::ClientCertificate;

/// Callers that are remembered for one version of the table. More are resolved again each time.
const REMEMBERED: usize = 4096;

/// The principal of clients that send `client_auth_token`. No key can have this name.
const SHARED_TOKEN: &str = "key:client_auth_token";

/// Where a connection comes from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// A TCP or QUIC connection, with the name in the client's certificate, if it has shown one.
    Network {
        /// The client's address.
        peer: SocketAddr,
        /// The verified name of the client's certificate.
        certificate: Option<Principal>,
    },
    /// A connection of the Unix socket, with the user id that the kernel reports.
    Unix {
        /// The user id of the client's process.
        uid: u32,
    },
}

impl Origin {
    /// Returns the origin of a connection without a client certificate.
    pub(crate) fn network(peer: SocketAddr) -> Origin {
        Origin::Network {
            peer,
            certificate: None,
        }
    }

    /// Returns the origin of a connection whose client may have proved a certificate.
    pub(crate) fn certified(peer: SocketAddr, certificate: Option<&ClientCertificate>) -> Origin {
        Origin::Network {
            peer,
            certificate: certificate.and_then(ClientCertificate::principal),
        }
    }

    /// Returns the client's address, for the audit log.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Origin::Network { peer, .. } => Some(*peer),
            Origin::Unix { .. } => None,
        }
    }
}

/// The caller of a session of the console, as an extension of a request.
#[derive(Clone)]
pub(crate) struct SessionCaller(pub(crate) Caller);

/// What a caller has proven.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Credential {
    /// Nothing, from this machine, where that suffices.
    Loopback,
    /// Nothing.
    Nothing,
    /// `client_auth_token`.
    SharedToken,
    /// The key of this id.
    Key(Box<str>),
    /// A process of this user.
    Unix(u32),
    /// A verified name.
    Named(Principal),
    /// A verified token of an issuer.
    Token {
        /// The name in the token.
        principal: Principal,
        /// When it expires, in Unix milliseconds.
        expires_ms: u64,
    },
}

/// Authenticates requests. Cheap to clone.
#[derive(Clone)]
pub struct AccessControl(Arc<Shared>);

struct Shared {
    table: watch::Receiver<Option<Arc<AuthTable>>>,
    token: Option<Box<str>>,
    loopback: LoopbackAccess,
    remote_anonymous: RemoteAnonymous,
    own_uid: u32,
    audit: Arc<AuditLog>,
    activity: Arc<ActivityTable>,
    tokens: Option<TokenIssuer>,
    callers: Mutex<Callers>,
}

/// Resolved callers of one version of the table.
#[derive(Default)]
struct Callers {
    version: Option<u64>,
    callers: HashMap<Credential, Caller>,
}

impl AccessControl {
    pub(crate) fn new(
        config: &TransportConfig,
        table: watch::Receiver<Option<Arc<AuthTable>>>,
        audit: Arc<AuditLog>,
        refusals: Arc<LimitRefusals>,
        tokens: Option<TokenIssuer>,
    ) -> AccessControl {
        let token = config.client_token.as_ref();
        AccessControl(Arc::new(Shared {
            table,
            token: token.map(|token| token.reveal().into()),
            loopback: config.loopback,
            remote_anonymous: config.remote_anonymous,
            own_uid: rustix::process::geteuid().as_raw(),
            audit,
            activity: Arc::new(ActivityTable::new(refusals)),
            tokens,
            callers: Mutex::default(),
        }))
    }

    fn table(&self) -> Option<Arc<AuthTable>> {
        self.0.table.borrow().clone()
    }

    /// Returns the version of the table that this node judges by; `None` before it has one.
    fn version(&self) -> Option<u64> {
        let table = self.0.table.borrow();
        table.as_ref().map(|table| table.version())
    }

    /// Authenticates a request by its `authorization` header and its connection.
    pub(crate) fn authenticate(
        &self,
        origin: &Origin,
        authorization: Option<&[u8]>,
    ) -> Result<Caller, Failure> {
        let caller = self.proven_caller(origin, authorization);
        if let Err(failure) = &caller
            && failure.code == Code::Unauthenticated
        {
            self.record_stranger(origin, failure);
        }
        caller
    }

    /// Records that a client was not let in. The log limits how many of these lines it takes.
    fn record_stranger(&self, origin: &Origin, failure: &Failure) {
        let peer = match origin {
            Origin::Network { peer, .. } => peer.to_string(),
            Origin::Unix { uid } => format!("unix:{uid}"),
        };
        self.0.audit.record_denied(caller::fields_of([
            ("action", "denied"),
            ("peer", &peer),
            ("why", &failure.message),
            ("result", failure.code.name()),
        ]));
    }

    fn proven_caller(
        &self,
        origin: &Origin,
        authorization: Option<&[u8]>,
    ) -> Result<Caller, Failure> {
        let credential = match authorization.map(|header| self.bearer(header)) {
            Some(Bearer::Proven(credential)) => credential,
            Some(Bearer::Wrong(why)) => return Err(unauthenticated(why)),
            Some(Bearer::NotLoaded) => return Err(not_loaded()),
            // Release 0.1.0 ignored a token where none is configured; its clients may send one.
            Some(Bearer::Foreign) => match self.without_bearer(origin) {
                Credential::Loopback => Credential::Loopback,
                _ => {
                    return Err(unauthenticated("the token is wrong".to_owned()));
                }
            },
            None => self.without_bearer(origin),
        };
        self.caller(&credential)
    }

    fn without_bearer(&self, origin: &Origin) -> Credential {
        match origin {
            Origin::Unix { uid } => Credential::Unix(*uid),
            Origin::Network {
                certificate: Some(name),
                ..
            } => Credential::Named(name.clone()),
            Origin::Network { peer, .. } => {
                let is_local = peer.ip().to_canonical().is_loopback();
                match self.0.loopback {
                    LoopbackAccess::Anonymous if is_local => Credential::Loopback,
                    _ => Credential::Nothing,
                }
            }
        }
    }

    fn bearer(&self, header: &[u8]) -> Bearer {
        let shown = header
            .split_at_checked(7)
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        let Some((_, shown)) = shown else {
            return Bearer::Foreign;
        };
        // Constant time, so that response times do not reveal how many bytes were right.
        if let Some(token) = &self.0.token
            && bool::from(shown.ct_eq(token.as_bytes()))
        {
            return Bearer::Proven(Credential::SharedToken);
        }
        match std::str::from_utf8(shown).ok().and_then(ApiKey::parse) {
            Some(key) => match self.table() {
                Some(table) => match proven(&table, &key) {
                    Ok(()) => Bearer::Proven(Credential::Key(key.id().into())),
                    Err(why) => Bearer::Wrong(why),
                },
                None => Bearer::NotLoaded,
            },
            None if ApiKey::has_prefix(shown) => Bearer::Wrong(
                "the key is malformed: copy it again, it starts with tnr_ and ends in its checksum"
                    .to_owned(),
            ),
            None => match &self.0.tokens {
                Some(tokens) if TokenIssuer::is_token(shown) => {
                    match tokens.verify(shown, now_ms()) {
                        Ok(credential) => Bearer::Proven(credential),
                        Err(why) => Bearer::Wrong(why),
                    }
                }
                _ => Bearer::Foreign,
            },
        }
    }

    /// Returns the caller of a credential, with the rights that it has now.
    fn caller(&self, credential: &Credential) -> Result<Caller, Failure> {
        let table = self.table();
        let version = table.as_ref().map(|table| table.version());
        // An expired key stays in the table, so the time is compared on every call.
        if let (Credential::Key(id), Some(table)) = (credential, &table) {
            let key = table.key(id);
            let key = key.ok_or_else(|| unauthenticated(REVOKED.to_owned()))?;
            if key.expires_ms.is_some_and(|end| end <= now_ms()) {
                return Err(unauthenticated(expired(&key.name)));
            }
        }
        if let Credential::Token { expires_ms, .. } = credential
            && *expires_ms <= now_ms()
        {
            return Err(unauthenticated("the token has expired".to_owned()));
        }
        let mut callers = self
            .0
            .callers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if callers.version != version || callers.callers.len() >= REMEMBERED {
            callers.callers.clear();
            callers.version = version;
        }
        if let Some(caller) = callers.callers.get(credential) {
            return Ok(caller.clone());
        }
        let caller = self.resolve(credential, table.as_deref())?;
        callers.callers.insert(credential.clone(), caller.clone());
        Ok(caller)
    }

    fn resolve(
        &self,
        credential: &Credential,
        table: Option<&AuthTable>,
    ) -> Result<Caller, Failure> {
        let version = table.map(AuthTable::version);
        let everything = || vec![Right::everywhere(VerbSet::ALL)];
        let (principal, rights) = match credential {
            Credential::Loopback => (Principal::anonymous(), everything()),
            Credential::SharedToken => (named(SHARED_TOKEN)?, everything()),
            Credential::Nothing => {
                let principal = Principal::anonymous();
                let mut rights = match self.0.remote_anonymous {
                    RemoteAnonymous::Allowed => {
                        let health = VerbSet::of([Verb::Status, Verb::Metrics]);
                        let impersonate = VerbSet::of([Verb::Impersonate]);
                        let paths = VerbSet::PATHS.without(impersonate);
                        vec![Right::everywhere(paths.with(health))]
                    }
                    RemoteAnonymous::Granted => Vec::new(),
                };
                // Whatever the table says: a stranger never administrates.
                let never = VerbSet::of([Verb::Operate, Verb::Backup, Verb::Auth]);
                let granted = table
                    .into_iter()
                    .flat_map(|table| table.grants_of(&principal));
                rights.extend(granted.map(|grant| Right {
                    verbs: grant.verbs.without(never),
                    ..right(grant)
                }));
                rights.retain(|row| !row.verbs.is_empty());
                if rights.is_empty() {
                    return Err(unauthenticated("credentials are missing".to_owned()));
                }
                (principal, rights)
            }
            Credential::Unix(uid) => {
                let principal = named(&format!("unix:{uid}"))?;
                if *uid == 0 || *uid == self.0.own_uid {
                    (principal, everything())
                } else {
                    let table = table.ok_or_else(not_loaded)?;
                    let rights = rights_of(table, &principal);
                    (principal, rights)
                }
            }
            Credential::Key(id) => {
                let table = table.ok_or_else(not_loaded)?;
                let key = table.key(id);
                let key = key.ok_or_else(|| unauthenticated(REVOKED.to_owned()))?;
                let principal = named(&format!("key:{}", key.name))?;
                let rights = rights_of(table, &principal);
                (principal, rights)
            }
            Credential::Named(principal) | Credential::Token { principal, .. } => {
                let table = table.ok_or_else(not_loaded)?;
                (principal.clone(), rights_of(table, principal))
            }
        };
        let audit = Some(Arc::clone(&self.0.audit));
        let limits = self.0.activity.limits_of(&principal, table);
        Ok(Caller::new(
            principal,
            rights,
            limits,
            credential.clone(),
            version,
            audit,
        ))
    }

    /// Follows a caller for as long as a stream is open.
    pub(crate) fn follow(&self, caller: &Caller) -> LiveCaller {
        LiveCaller::new(self.clone(), caller.clone())
    }
}

const REVOKED: &str = "the key is wrong or was revoked";

/// What a bearer token proves.
enum Bearer {
    Proven(Credential),
    Wrong(String),
    /// A key, before this node has read the table.
    NotLoaded,
    /// Not a token of Tenure.
    Foreign,
}

/// Compares a key with the table.
fn proven(table: &AuthTable, shown: &ApiKey) -> Result<(), String> {
    let key = table.key(shown.id()).ok_or_else(|| REVOKED.to_owned())?;
    if !bool::from(key.hash.ct_eq(&shown.hash())) {
        return Err(REVOKED.to_owned());
    }
    match key.expires_ms {
        Some(end) if end <= now_ms() => Err(expired(&key.name)),
        _ => Ok(()),
    }
}

fn expired(name: &str) -> String {
    format!(
        "the key {name} has expired: an administrator replaces it with `tenure auth key rotate {name}`"
    )
}

fn rights_of(table: &AuthTable, principal: &Principal) -> Vec<Right> {
    table.grants_of(principal).map(right).collect()
}

fn right(grant: Grant) -> Right {
    Right {
        verbs: grant.verbs,
        at: grant.at,
        owners: grant.owners,
    }
}

fn named(name: &str) -> Result<Principal, Failure> {
    Principal::parse(name).map_err(|error| crate::handlers::internal(&error))
}

/// Returns a name of another system as a part of a principal's name. `@` separates an owner id from
/// its principal; `%` is escaped too, so that two names never become the same.
pub(crate) fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('@', "%40")
}

/// Unix time in milliseconds.
fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn not_loaded() -> Failure {
    Failure::new(
        Code::Unavailable,
        "this node has not read the permissions yet: try again",
    )
}

fn unauthenticated(why: String) -> Failure {
    Failure::new(
        Code::Unauthenticated,
        format!("{why}: send `authorization: Bearer KEY` (a key, or client_auth_token)"),
    )
}

#[cfg(test)]
mod tests;
