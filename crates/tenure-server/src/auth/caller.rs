//! An authenticated caller: its principal, its rights, and its owner ids.
//!
//! # Owners belong to principals
//!
//! Inside the state machines the owner `job-7` of the principal `key:ci` is `job-7@key:ci`, and an
//! idempotency key is a hash of principal and key. So no caller can renew, release or extend what an
//! owner of another principal has, whatever id it sends, and no rule of the lock service has to know
//! of principals. A caller sees its own owner ids without the suffix and those of others with it, and
//! names others in the form in which it sees them. To act as an owner of another principal it needs
//! the verb `impersonate`.
//!
//! Callers without credentials and callers with the shared token have no suffix, so that owners of
//! release 0.1.0 keep their names.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use tenure_core::auth::{self, Principal, Target, Verb, VerbSet};
use tenure_core::path::{Namespace, Path};
use tenure_core::value::{Invalid, Key, OwnerId};
use tokio::sync::watch;

use super::{AccessControl, Credential};
use crate::audit_log::AuditLog;
use crate::status::{Code, Failure};

/// Prefix of idempotency keys of callers with a principal.
const SCOPED_KEY: &str = "tenure-scoped:";
/// How others see an owner without a principal.
const UNSCOPED: &str = "@anonymous";
/// How often the expiry of a key is checked while a stream is open.
const EXPIRY_CHECK: Duration = Duration::from_millis(500);

/// An authenticated caller. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Caller(Arc<CallerInfo>);

#[derive(Debug)]
struct CallerInfo {
    principal: Principal,
    /// What follows the caller's owner ids: nothing, or `@` and the principal.
    suffix: Box<str>,
    rights: Vec<(VerbSet, Option<Namespace>)>,
    credential: Credential,
    /// The version of the table that the rights are from.
    version: Option<u64>,
    /// Where privileged calls are recorded.
    audit: Option<Arc<AuditLog>>,
}

impl Caller {
    pub(super) fn new(
        principal: Principal,
        rights: Vec<(VerbSet, Option<Namespace>)>,
        credential: Credential,
        version: Option<u64>,
        audit: Option<Arc<AuditLog>>,
    ) -> Caller {
        let suffix = match credential {
            Credential::Loopback | Credential::Nothing | Credential::SharedToken => String::new(),
            Credential::Key(_) | Credential::Unix(_) | Credential::Named(_) => {
                format!("@{principal}")
            }
        };
        Caller(Arc::new(CallerInfo {
            principal,
            suffix: suffix.into(),
            rights,
            credential,
            version,
            audit,
        }))
    }

    /// Returns a caller that may do everything, as on loopback.
    #[cfg(test)]
    pub(crate) fn local() -> Caller {
        Caller::new(
            Principal::anonymous(),
            vec![(VerbSet::ALL, None)],
            Credential::Loopback,
            None,
            None,
        )
    }

    pub(crate) fn audit_log(&self) -> Option<&Arc<AuditLog>> {
        self.0.audit.as_ref()
    }

    /// Appends a line about a privileged call to the audit log.
    pub(crate) fn record(&self, action: &str, change: &str, result: &str) {
        let Some(log) = &self.0.audit else {
            return;
        };
        let mut fields = serde_json::Map::new();
        for (name, value) in [
            ("principal", self.0.principal.as_str()),
            ("action", action),
            ("change", change),
            ("result", result),
        ] {
            fields.insert(name.to_owned(), value.into());
        }
        log.record(fields);
    }

    /// Fails if the call of a privileged verb could not be recorded.
    pub(crate) fn recordable(&self) -> Result<(), Failure> {
        match &self.0.audit {
            Some(log) if !log.is_writable() => Err(Failure::new(
                Code::Unavailable,
                "the audit log cannot be written, so privileged calls are refused: free disk space on the daemon's data directory",
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn principal(&self) -> &Principal {
        &self.0.principal
    }

    /// Returns whether the caller has shown no credentials.
    pub(crate) fn is_anonymous(&self) -> bool {
        matches!(
            self.0.credential,
            Credential::Loopback | Credential::Nothing
        )
    }

    pub(super) fn rights(&self) -> &[(VerbSet, Option<Namespace>)] {
        &self.0.rights
    }

    /// Returns whether a row allows the verb for the target.
    pub(crate) fn may(&self, verb: Verb, target: Target<'_>) -> bool {
        let rows = self.0.rights.iter();
        let mut rows = rows.filter(|(verbs, _)| verbs.allows(verb));
        rows.any(|(_, at)| auth::covers(at.as_ref(), target))
    }

    /// Returns whether the caller may see what is at a path: it may observe it, or lock it and so
    /// meet its holders anyway.
    pub(crate) fn sees(&self, path: &Path) -> bool {
        let target = Target::Path(path);
        self.may(Verb::Observe, target) || self.may(Verb::Share, target)
    }

    /// Returns whether the caller may observe a path.
    pub(crate) fn observes(&self, path: &Path) -> bool {
        self.may(Verb::Observe, Target::Path(path))
    }

    /// Parses the id of an owner that the caller acts as.
    pub(crate) fn owner(&self, text: &str) -> Result<OwnerId, Failure> {
        let is_foreign = match (self.names_unscoped(text), scope_of(text)) {
            (Some(_), _) => true,
            (None, Some(scope)) => self.0.suffix.strip_prefix('@') != Some(scope),
            (None, None) => false,
        };
        if is_foreign && !self.may(Verb::Impersonate, Target::Everything) {
            return Err(self.foreign_owner(text));
        }
        self.other_owner(text)
    }

    fn foreign_owner(&self, text: &str) -> Failure {
        Failure::new(
            Code::PermissionDenied,
            format!(
                "{text:?} is an owner of another principal, and {} lacks the verb `impersonate`",
                self.0.principal
            ),
        )
    }

    /// Parses the id of any owner, in the form in which the caller sees it.
    pub(crate) fn other_owner(&self, text: &str) -> Result<OwnerId, Failure> {
        if let Some(bare) = self.names_unscoped(text) {
            return Ok(OwnerId::new(bare)?);
        }
        if self.0.suffix.is_empty() || text.is_empty() || scope_of(text).is_some() {
            return Ok(OwnerId::new(text)?);
        }
        // On the stack: most calls name an owner.
        let mut room = [0; OwnerId::MAX_BYTES];
        let length = text.len() + self.0.suffix.len();
        let Some(whole) = room.get_mut(..length) else {
            return Err(Failure::new(
                Code::InvalidArgument,
                format!("{}, together with `{}`", Invalid::Owner, self.0.suffix),
            ));
        };
        whole[..text.len()].copy_from_slice(text.as_bytes());
        whole[text.len()..].copy_from_slice(self.0.suffix.as_bytes());
        let whole = std::str::from_utf8(whole).map_err(|_| Invalid::Owner)?;
        Ok(OwnerId::new(whole)?)
    }

    /// Returns the id without `@anonymous`, for a caller whose own ids have a suffix. Others have no
    /// such form: to them `bob@anonymous` is just an id.
    fn names_unscoped<'a>(&self, text: &'a str) -> Option<&'a str> {
        let bare = text.strip_suffix(UNSCOPED)?;
        (!self.0.suffix.is_empty() && !bare.is_empty()).then_some(bare)
    }

    /// Returns the id of an owner as the caller sees it.
    pub(crate) fn shown<'a>(&self, owner: &'a OwnerId) -> Cow<'a, str> {
        let text = owner.as_str();
        if self.0.suffix.is_empty() {
            return Cow::Borrowed(text);
        }
        match text.strip_suffix(&*self.0.suffix) {
            Some(own) => Cow::Borrowed(own),
            None if scope_of(text).is_none() => Cow::Owned(format!("{text}{UNSCOPED}")),
            None => Cow::Borrowed(text),
        }
    }

    /// Returns whether an owner is one of the caller's.
    pub(crate) fn owns(&self, owner: &OwnerId) -> bool {
        match self.0.suffix.strip_prefix('@') {
            None => scope_of(owner.as_str()).is_none(),
            Some(scope) => scope_of(owner.as_str()) == Some(scope),
        }
    }

    /// Parses an idempotency key. Keys of different principals never meet (R104: key scope).
    pub(crate) fn key(&self, text: &str) -> Result<Option<Key>, Failure> {
        let key = Key::new(text)?;
        if key.is_some() && text.starts_with(SCOPED_KEY) {
            return Err(Failure::new(
                Code::InvalidArgument,
                format!("an idempotency key must not start with `{SCOPED_KEY}`"),
            ));
        }
        if key.is_none() || self.0.suffix.is_empty() {
            return Ok(key);
        }
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(self.0.suffix.as_bytes());
        // No name of a principal has this byte, so two pairs never give the same input.
        context.update(&[0]);
        context.update(text.as_bytes());
        let mut scoped = SCOPED_KEY.to_owned();
        super::api_key::put_hex(&mut scoped, context.finish().as_ref());
        Ok(Key::new(&scoped)?)
    }
}

/// Returns the principal that an owner id names.
fn scope_of(text: &str) -> Option<&str> {
    let (_, scope) = text.rsplit_once('@')?;
    let principal = Principal::parse(scope).ok()?;
    (!principal.is_group() && !principal.is_anonymous()).then_some(scope)
}

/// A caller that is judged again when the table changes.
pub(crate) struct LiveCaller {
    access: AccessControl,
    caller: Caller,
    changes: watch::Receiver<Option<Arc<auth::AuthTable>>>,
}

impl LiveCaller {
    pub(super) fn new(access: AccessControl, caller: Caller) -> LiveCaller {
        LiveCaller {
            changes: access.0.table.clone(),
            access,
            caller,
        }
    }

    /// Returns the caller with its present rights, or why it is none any more.
    pub(crate) fn current(&mut self) -> Result<&Caller, Failure> {
        let has_expiry = matches!(self.caller.0.credential, Credential::Key(_));
        if has_expiry || self.access.version() != self.caller.0.version {
            self.caller = self.access.caller(&self.caller.0.credential)?;
        }
        Ok(&self.caller)
    }

    /// Waits until the caller is none any more, or `judge` refuses it.
    pub(crate) async fn refused(
        mut self,
        judge: impl Fn(&Caller) -> Result<(), Failure> + Send,
    ) -> Failure {
        loop {
            if let Err(failure) = self.current().and_then(&judge) {
                return failure;
            }
            self.changed().await;
        }
    }

    /// Waits until the rights may be others: the table has changed, or the key may have expired.
    pub(crate) async fn changed(&mut self) {
        let has_expiry = matches!(self.caller.0.credential, Credential::Key(_));
        let expiry = async {
            if has_expiry {
                tokio::time::sleep(EXPIRY_CHECK).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            changed = self.changes.changed() => if changed.is_err() {
                // The node has ended, and the stream ends with it.
                std::future::pending::<()>().await;
            },
            () = expiry => {}
        }
    }
}
