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
use tenure_core::auth::{self, OwnerPatterns, Principal, Target, Verb, VerbSet, scope_of};
use tenure_core::path::{Namespace, Path};
use tenure_core::value::{Invalid, Key, OwnerId};
use tokio::sync::watch;

use super::activity::ActivityLimits;
#[cfg(test)]
use super::activity::ActivityTable;
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
    rights: Vec<Right>,
    limits: ActivityLimits,
    credential: Credential,
    /// The version of the table that the rights are from.
    version: Option<u64>,
    /// Where privileged calls are recorded.
    audit: Option<Arc<AuditLog>>,
}

/// One row that applies to a caller.
#[derive(Clone, Debug)]
pub(crate) struct Right {
    pub(super) verbs: VerbSet,
    pub(super) at: Option<Namespace>,
    pub(super) owners: OwnerPatterns,
}

impl Right {
    /// Returns these verbs everywhere, for every owner.
    pub(super) fn everywhere(verbs: VerbSet) -> Right {
        Right {
            verbs,
            at: None,
            owners: OwnerPatterns::default(),
        }
    }
}

impl Caller {
    pub(super) fn new(
        principal: Principal,
        rights: Vec<Right>,
        limits: ActivityLimits,
        credential: Credential,
        version: Option<u64>,
        audit: Option<Arc<AuditLog>>,
    ) -> Caller {
        let suffix = match credential {
            Credential::Loopback | Credential::Nothing | Credential::SharedToken => String::new(),
            Credential::Key(_)
            | Credential::Unix(_)
            | Credential::Named(_)
            | Credential::Token { .. } => {
                format!("@{principal}")
            }
        };
        Caller(Arc::new(CallerInfo {
            principal,
            suffix: suffix.into(),
            rights,
            limits,
            credential,
            version,
            audit,
        }))
    }

    /// Returns a caller that may do everything, as on loopback.
    #[cfg(test)]
    pub(crate) fn local() -> Caller {
        let principal = Principal::anonymous();
        let limits = Arc::new(ActivityTable::default()).limits_of(&principal, None);
        Caller::new(
            principal,
            vec![Right::everywhere(VerbSet::ALL)],
            limits,
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
        if let Some(log) = &self.0.audit {
            let principal = self.0.principal.as_str();
            log.record(fields_of([
                ("principal", principal),
                ("action", action),
                ("change", change),
                ("result", result),
            ]));
        }
    }

    /// Appends a line about a refused call to the audit log, unless there were too many of late.
    pub(crate) fn record_denied(&self, call: &str, failure: &Failure) {
        let is_denied = matches!(failure.code, Code::PermissionDenied | Code::Unauthenticated);
        if let Some(log) = &self.0.audit
            && is_denied
        {
            log.record_denied(fields_of([
                ("principal", self.0.principal.as_str()),
                ("action", "denied"),
                ("call", call),
                ("why", failure.message.as_str()),
                ("result", failure.code.name()),
            ]));
        }
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

    pub(super) fn rights(&self) -> &[Right] {
        &self.0.rights
    }

    /// Returns the activity limits of the principal.
    pub(crate) fn limits(&self) -> &ActivityLimits {
        &self.0.limits
    }

    /// Returns whether a row allows the verb for the target.
    pub(crate) fn may(&self, verb: Verb, target: Target<'_>) -> bool {
        let rows = self.0.rights.iter();
        let mut rows = rows.filter(|row| row.verbs.allows(verb));
        rows.any(|row| auth::covers(row.at.as_ref(), target))
    }

    /// Returns whether a row allows the verb for the target to this owner.
    pub(crate) fn may_as(&self, owner: &OwnerId, verb: Verb, target: Target<'_>) -> bool {
        let rows = self.0.rights.iter();
        let rows = rows.filter(|row| row.verbs.allows(verb));
        let mut rows = rows.filter(|row| auth::covers(row.at.as_ref(), target));
        rows.any(|row| row.owners.is_empty() || row.owners.match_id(&self.shown(owner)))
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

/// Makes the fields of an audit line.
pub(super) fn fields_of<const N: usize>(
    fields: [(&str, &str); N],
) -> serde_json::Map<String, serde_json::Value> {
    let fields = fields.map(|(name, value)| (name.to_owned(), value.into()));
    fields.into_iter().collect()
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

    fn has_expiry(&self) -> bool {
        matches!(
            self.caller.0.credential,
            Credential::Key(_) | Credential::Token { .. }
        )
    }

    /// Returns the caller with its present rights, or why it is none any more.
    pub(crate) fn current(&mut self) -> Result<&Caller, Failure> {
        if self.has_expiry() || self.access.version() != self.caller.0.version {
            self.caller = self.access.caller(&self.caller.0.credential)?;
        }
        Ok(&self.caller)
    }

    /// Returns the caller as of the last check.
    pub(crate) fn as_opened(&self) -> &Caller {
        &self.caller
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
        let has_expiry = self.has_expiry();
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
