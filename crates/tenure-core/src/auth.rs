//! Access control table: API keys, groups of principals, grants, and limits.
//!
//! The table is part of the system machine, so it is replicated, and every change gets a version.
//! Grants only allow: a principal may do what one row says, and nothing else. There is no deny and
//! no precedence.
//!
//! The table holds the SHA-256 of each key, never the key. Expiry is a wall-clock time, which the
//! node that authenticates a client compares with its own clock; no lock decision depends on it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::limits::{LimitKind, LimitRow, LimitSubject, LimitValues, Quota, QuotaValues};
use crate::path::{Namespace, Path};

/// Maximum number of keys, of grants, of rows of limits, and of members of all groups together.
const MAX_ROWS: usize = 4096;
/// Maximum number of keys of one name: the present one, and the next one during a rotation.
const MAX_KEYS_OF_NAME: usize = 2;

/// A right. The first eight are rights on paths, the others concern the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// See holders, waiters and policies.
    Observe,
    /// Acquire shared locks. `Lock` includes it.
    Share,
    /// Acquire locks of any mode.
    Lock,
    /// Send release requests to holders.
    Ask,
    /// End holds of other owners.
    Break,
    /// Change the policy of a namespace.
    Policy,
    /// Mint fencing tokens.
    Fence,
    /// Act as an owner of another principal.
    Impersonate,
    /// Read metrics.
    Metrics,
    /// Read the status of nodes and of the cluster.
    Status,
    /// Drain and remove nodes.
    Operate,
    /// Read all state, for a backup.
    Backup,
    /// Read and change keys, groups and grants.
    Auth,
}

impl Verb {
    /// All verbs, in the order of their numbers.
    pub const ALL: [Verb; 13] = [
        Verb::Observe,
        Verb::Share,
        Verb::Lock,
        Verb::Ask,
        Verb::Break,
        Verb::Policy,
        Verb::Fence,
        Verb::Impersonate,
        Verb::Metrics,
        Verb::Status,
        Verb::Operate,
        Verb::Backup,
        Verb::Auth,
    ];

    /// Returns the name that people use.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Observe => "observe",
            Verb::Share => "share",
            Verb::Lock => "lock",
            Verb::Ask => "ask",
            Verb::Break => "break",
            Verb::Policy => "policy",
            Verb::Fence => "fence",
            Verb::Impersonate => "impersonate",
            Verb::Metrics => "metrics",
            Verb::Status => "status",
            Verb::Operate => "operate",
            Verb::Backup => "backup",
            Verb::Auth => "auth",
        }
    }

    /// Returns the verb of this name.
    pub fn named(name: &str) -> Option<Verb> {
        Verb::ALL.into_iter().find(|verb| verb.name() == name)
    }

    /// Returns whether the verb is about the cluster, not about paths. Such a verb is granted for
    /// everything.
    pub fn is_cluster_wide(self) -> bool {
        matches!(
            self,
            Verb::Metrics | Verb::Status | Verb::Operate | Verb::Backup | Verb::Auth
        )
    }

    /// Returns whether the verb can be granted for everything only. The owners of a principal may
    /// hold something anywhere, so `Impersonate` has no place.
    pub fn is_for_everything(self) -> bool {
        self.is_cluster_wide() || self == Verb::Impersonate
    }

    fn bit(self) -> u16 {
        1 << (self as u16)
    }
}

/// A set of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VerbSet(u16);

impl VerbSet {
    /// No verb.
    pub const NONE: VerbSet = VerbSet(0);
    /// Every verb.
    pub const ALL: VerbSet = VerbSet((1 << Verb::ALL.len()) - 1);
    /// Every verb on paths.
    pub const PATHS: VerbSet = VerbSet((1 << (Verb::Impersonate as u16 + 1)) - 1);

    /// Returns the set of these verbs.
    pub fn of(verbs: impl IntoIterator<Item = Verb>) -> VerbSet {
        VerbSet(verbs.into_iter().fold(0, |set, verb| set | verb.bit()))
    }

    /// Returns whether the set allows a verb. `Lock` allows `Share`.
    pub fn allows(self, verb: Verb) -> bool {
        let accepted = match verb {
            Verb::Share => Verb::Share.bit() | Verb::Lock.bit(),
            other => other.bit(),
        };
        self.0 & accepted != 0
    }

    /// Returns the verbs, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL
            .into_iter()
            .filter(move |verb| self.0 & verb.bit() != 0)
    }

    /// Returns whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the verbs of both sets.
    #[must_use]
    pub fn with(self, other: VerbSet) -> VerbSet {
        VerbSet(self.0 | other.0)
    }

    /// Returns the verbs that are not in the other set.
    #[must_use]
    pub fn without(self, other: VerbSet) -> VerbSet {
        VerbSet(self.0 & !other.0)
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// Returns the set of a number; `None` if it names an unknown verb.
    pub(crate) fn from_number(number: u16) -> Option<VerbSet> {
        (number & !VerbSet::ALL.0 == 0).then_some(VerbSet(number))
    }
}

impl fmt::Display for VerbSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, verb) in self.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}", verb.name())?;
        }
        Ok(())
    }
}

/// The name of a caller, or of a group of them: `anonymous`, `key:NAME`, `cert:SAN`,
/// `jwt:ISSUER/SUBJECT`, `unix:UID`, `group:NAME`. Cheap to clone: the text is shared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// The longest name, in bytes. An owner id with its principal must fit an owner id.
    pub const MAX_BYTES: usize = 256;

    /// Validates a name.
    pub fn parse(text: &str) -> Result<Principal, InvalidAuth> {
        if is_principal(text) {
            Ok(Principal(text.into()))
        } else {
            Err(InvalidAuth::Principal)
        }
    }

    /// Returns the principal of callers without credentials.
    pub fn anonymous() -> Principal {
        Principal("anonymous".into())
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is a group.
    pub fn is_group(&self) -> bool {
        self.0.starts_with("group:")
    }

    /// Returns whether this is the principal of callers without credentials.
    pub fn is_anonymous(&self) -> bool {
        &*self.0 == "anonymous"
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_principal(text: &str) -> bool {
    // `@` separates an owner id from its principal.
    let is_odd = |letter: char| letter.is_control() || letter == '@';
    let fits = text.len() <= Principal::MAX_BYTES && !text.chars().any(is_odd);
    let is_known = match text.split_once(':') {
        None => text == "anonymous",
        Some(("key" | "group", name)) => is_name(name),
        // One name per user: no leading zeros or signs.
        Some(("unix", uid)) => {
            let is_short = uid == "0" || !uid.starts_with(['0', '+', '-']);
            is_short && uid.parse::<u32>().is_ok()
        }
        Some(("cert" | "jwt", name)) => !name.is_empty(),
        Some(_) => false,
    };
    fits && is_known
}

/// Returns the name of the principal that an owner id names: the text after its last `@`, if that
/// is a principal that can have owners of its own.
pub fn scope_of(owner: &str) -> Option<&str> {
    let (_, scope) = owner.rsplit_once('@')?;
    let has_owners = scope != "anonymous" && !scope.starts_with("group:");
    (has_owners && is_principal(scope)).then_some(scope)
}

/// Patterns of owner ids: an id, or the beginning of ids followed by `*`. An empty list stands for
/// every id.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerPatterns(BTreeSet<String>);

impl OwnerPatterns {
    /// Maximum number of patterns of one grant.
    pub const MAX: usize = 16;
    /// Maximum length of a pattern, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Validates patterns.
    pub fn new(patterns: impl IntoIterator<Item = String>) -> Result<OwnerPatterns, InvalidAuth> {
        let patterns: BTreeSet<String> = patterns.into_iter().collect();
        let is_valid = |pattern: &String| {
            let literal = pattern.strip_suffix('*').unwrap_or(pattern);
            (1..=Self::MAX_BYTES).contains(&pattern.len())
                && !literal.contains('*')
                && !literal.chars().any(char::is_control)
        };
        if patterns.len() <= Self::MAX && patterns.iter().all(is_valid) {
            Ok(OwnerPatterns(patterns))
        } else {
            Err(InvalidAuth::Owners)
        }
    }

    /// Returns whether an owner id fits one of the patterns.
    pub fn match_id(&self, id: &str) -> bool {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => id.starts_with(start),
            None => id == pattern,
        };
        self.0.is_empty() || self.0.iter().any(fits)
    }

    /// Returns whether every id fits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the patterns, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// Returns whether this is a valid name of a key or a group: 1 to 64 letters, digits, `.`, `-`, `_`.
pub fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
}

/// Why a name or an id was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidAuth {
    /// Not the name of a principal or group.
    Principal,
    /// Not a valid key.
    Key,
    /// A grant without verbs, or of a verb for a part of the paths that has no place.
    Grant,
    /// A pattern of owner ids that is not one.
    Owners,
    /// Limits that have no meaning for their subject or place.
    Limit,
}

impl fmt::Display for InvalidAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidAuth::Principal => {
                "invalid principal: use anonymous, key:NAME, cert:NAME, jwt:ISSUER/SUBJECT, unix:UID or group:NAME"
            }
            InvalidAuth::Key => {
                "invalid key: its id and name have 1 to 64 letters, digits, `.`, `-` or `_`"
            }
            InvalidAuth::Grant => {
                "invalid grant: it needs a verb, and impersonate, metrics, status, operate, backup and auth are granted at `*` and for all owners only"
            }
            InvalidAuth::Owners => {
                "invalid owners: use at most 16 owner ids or beginnings of owner ids followed by `*`, such as ci-*"
            }
            InvalidAuth::Limit => {
                "invalid limit: a row needs a value; paths, waiting and owners have any place; requests and burst have a place for `total` only; connections, streams, watches and subscriptions have no place and are not for `total`; only paths, waiting and owners may be 0"
            }
        })
    }
}

impl core::error::Error for InvalidAuth {}

/// One API key. The principal of its bearer is `key:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthKey {
    /// The public part, which finds the row.
    pub id: String,
    /// Two keys may have the same name while one replaces the other.
    pub name: String,
    /// The SHA-256 of the whole key.
    pub hash: [u8; 32],
    /// When it was created, in Unix milliseconds. For people.
    pub created_ms: u64,
    /// When it expires, in Unix milliseconds.
    pub expires_ms: Option<u64>,
}

/// One grant: a principal or group may use these verbs on these paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The principal or group.
    pub to: Principal,
    /// The verbs.
    pub verbs: VerbSet,
    /// The namespace or path at and below which the grant holds; `None` for everything.
    pub at: Option<Namespace>,
    /// The owner ids that the principal may use under this grant.
    pub owners: OwnerPatterns,
}

impl Grant {
    fn check(&self) -> Result<(), InvalidAuth> {
        let is_partial = self.at.is_some() || !self.owners.is_empty();
        let is_senseless =
            self.verbs.is_empty() || (is_partial && self.verbs.iter().any(Verb::is_for_everything));
        match is_senseless {
            true => Err(InvalidAuth::Grant),
            false => Ok(()),
        }
    }
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// One path.
    Path(&'a Path),
    /// Everything at and below a name.
    Below(&'a Namespace),
    /// Everything.
    Everything,
    /// Any place at all: for calls that name an owner and no path.
    Anywhere,
}

/// Returns whether a grant at `at` covers the target.
pub fn covers(at: Option<&Namespace>, target: Target<'_>) -> bool {
    match (at, target) {
        (None, _) | (Some(_), Target::Anywhere) => true,
        (Some(_), Target::Everything) => false,
        (Some(at), Target::Path(path)) => at.contains(path),
        (Some(at), Target::Below(name)) => at == name || at.encloses(name),
    }
}

/// One change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthChange {
    /// Adds a key.
    AddKey(AuthKey),
    /// Removes the key of this id.
    RemoveKey(String),
    /// Adds the verbs to the row of this principal and place.
    Grant(Grant),
    /// Removes the verbs from the row of this principal and place.
    Revoke(Grant),
    /// Sets the members of a group; without members it ends.
    SetGroup {
        /// The group.
        group: Principal,
        /// All its members.
        members: Vec<Principal>,
    },
    /// Sets limits of a subject at a place; its other limits there stay.
    SetLimits(LimitRow),
    /// Removes limits of a subject at a place.
    ClearLimits {
        /// Whom they limit.
        of: LimitSubject,
        /// Where.
        at: Option<Namespace>,
        /// Which.
        kinds: Vec<LimitKind>,
    },
}

/// Changes that apply together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthCommand {
    /// The changes, in order.
    pub changes: Vec<AuthChange>,
    /// The version that the table must have; `None` for any.
    pub if_version: Option<u64>,
    /// Whether a change may remove the last administrator.
    pub lockout: Lockout,
}

/// Whether a change may leave no principal with the verb `auth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lockout {
    /// It is refused.
    Refuse,
    /// It is applied.
    Accept,
}

/// Why changes were refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthRefusal {
    /// The table has another version.
    Version {
        /// The present version.
        present: u64,
    },
    /// A key of this id exists.
    KeyExists,
    /// The name has two keys already.
    TooManyKeys,
    /// No such key.
    NoSuchKey,
    /// No such grant.
    NoSuchGrant,
    /// No such limit.
    NoSuchLimit,
    /// The table is full.
    Full,
    /// No key with the verb `auth` would be left.
    LastAdministrator,
    /// A name or a grant is not valid.
    Invalid,
}

impl fmt::Display for AuthRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthRefusal::Version { present } => write!(
                f,
                "the access control table was changed meanwhile (its version is {present}): read it again and repeat the change"
            ),
            AuthRefusal::KeyExists => f.write_str("a key of this id exists: create another one"),
            AuthRefusal::TooManyKeys => f.write_str(
                "this name has two keys already: revoke the older one first (tenure auth key ls)",
            ),
            AuthRefusal::NoSuchKey => {
                f.write_str("there is no such key: tenure auth key ls lists all")
            }
            AuthRefusal::NoSuchGrant => {
                f.write_str("there is no such grant: tenure auth ls lists all")
            }
            AuthRefusal::NoSuchLimit => {
                f.write_str("there is no such limit: tenure auth ls lists all")
            }
            AuthRefusal::Full => write!(
                f,
                "the access control table is full: at most {MAX_ROWS} keys, grants, limits and members"
            ),
            AuthRefusal::LastAdministrator => f.write_str(
                "this would leave no key that may change permissions: grant `auth` to another key first",
            ),
            AuthRefusal::Invalid => f.write_str("the change contains an invalid name or grant"),
        }
    }
}

/// The access control table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthTable {
    version: u64,
    keys: BTreeMap<String, AuthKey>,
    groups: BTreeMap<Principal, BTreeSet<Principal>>,
    grants: BTreeMap<(Principal, Option<Namespace>, OwnerPatterns), VerbSet>,
    limits: BTreeMap<(LimitSubject, Option<Namespace>), LimitValues>,
}

impl AuthTable {
    /// Returns the number of changes so far; zero for a table that was never changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the key of this id.
    pub fn key(&self, id: &str) -> Option<&AuthKey> {
        self.keys.get(id)
    }

    /// Returns all keys, by id.
    pub fn keys(&self) -> impl Iterator<Item = &AuthKey> {
        self.keys.values()
    }

    /// Returns all groups with their members.
    pub fn groups(&self) -> impl Iterator<Item = (&Principal, &BTreeSet<Principal>)> {
        self.groups.iter()
    }

    /// Returns all grants, by principal and place.
    pub fn grants(&self) -> impl Iterator<Item = Grant> {
        self.grants.iter().map(|((to, at, owners), verbs)| Grant {
            to: to.clone(),
            verbs: *verbs,
            at: at.clone(),
            owners: owners.clone(),
        })
    }

    /// Returns all limits, by subject and place.
    pub fn limits(&self) -> impl Iterator<Item = LimitRow> {
        self.limits.iter().map(|((of, at), values)| LimitRow {
            of: of.clone(),
            at: at.clone(),
            values: values.clone(),
        })
    }

    /// Returns a limit of a principal: that of its own rows, or else the highest of its groups, or
    /// else that of everyone. Of several rows that cover the namespace the one with the longest
    /// place counts; without a namespace only rows without a place do.
    pub fn limit(
        &self,
        principal: &Principal,
        kind: LimitKind,
        namespace: Option<&Namespace>,
    ) -> Option<u64> {
        let own = || self.limit_of(&LimitSubject::Of(principal.clone()), kind, namespace);
        let of_groups = || {
            let groups = self.groups.iter();
            let groups = groups.filter(|(_, members)| members.contains(principal));
            let values = groups.filter_map(|(group, _)| {
                self.limit_of(&LimitSubject::Of(group.clone()), kind, namespace)
            });
            values.max()
        };
        let default = || self.limit_of(&LimitSubject::Everyone, kind, namespace);
        if self.limits.is_empty() {
            return None;
        }
        own().or_else(of_groups).or_else(default)
    }

    /// Returns a limit of one subject; see [`AuthTable::limit`].
    pub fn limit_of(
        &self,
        of: &LimitSubject,
        kind: LimitKind,
        namespace: Option<&Namespace>,
    ) -> Option<u64> {
        let target = namespace.map_or(Target::Everything, Target::Below);
        let rows = self.limits.range((of.clone(), None)..);
        let rows = rows.take_while(|((subject, _), _)| subject == of);
        let rows = rows.filter(|((_, at), _)| covers(at.as_ref(), target));
        let values = rows.filter_map(|((_, at), values)| {
            let place = at.as_ref().map_or(0, |at| at.as_str().len());
            Some((place, *values.get(&kind)?))
        });
        values
            .max_by_key(|(place, _)| *place)
            .map(|(_, value)| value)
    }

    /// Returns the quotas that apply to an owner's acquire in a namespace; `None` without any.
    pub fn quota(&self, owner: &str, namespace: &Namespace) -> Option<Quota> {
        if self.limits.is_empty() {
            return None;
        }
        let principal = match scope_of(owner) {
            Some(scope) => Principal(scope.into()),
            None => Principal::anonymous(),
        };
        let values = |limit: &dyn Fn(LimitKind) -> Option<u64>| QuotaValues {
            paths: limit(LimitKind::Paths),
            waiting: limit(LimitKind::Waiting),
            owners: limit(LimitKind::Owners),
        };
        let quota = Quota {
            own: values(&|kind| self.limit(&principal, kind, Some(namespace))),
            total: values(&|kind| self.limit_of(&LimitSubject::Total, kind, Some(namespace))),
        };
        (quota != Quota::default()).then_some(quota)
    }

    /// Returns the grants that apply to a principal: its own and those of its groups.
    pub fn grants_of(&self, principal: &Principal) -> impl Iterator<Item = Grant> {
        self.grants()
            .filter(move |grant| self.includes(&grant.to, principal))
    }

    fn includes(&self, to: &Principal, principal: &Principal) -> bool {
        let members = self.groups.get(to);
        to == principal || members.is_some_and(|members| members.contains(principal))
    }

    /// Applies changes, all or none. Returns the new version.
    pub(crate) fn apply(&mut self, command: AuthCommand) -> Result<u64, AuthRefusal> {
        if let Some(expected) = command.if_version
            && expected != self.version
        {
            let present = self.version;
            return Err(AuthRefusal::Version { present });
        }
        let had_administrator = self.has_administrator();
        let mut next = self.clone();
        for change in command.changes {
            next.change(change)?;
        }
        let rows = [
            next.keys.len(),
            next.grants.len(),
            next.limits.len(),
            next.groups.values().map(BTreeSet::len).sum(),
        ];
        if rows.into_iter().any(|rows| rows > MAX_ROWS) {
            return Err(AuthRefusal::Full);
        }
        let is_lockout = had_administrator && !next.has_administrator();
        if is_lockout && command.lockout == Lockout::Refuse {
            return Err(AuthRefusal::LastAdministrator);
        }
        next.version += 1;
        *self = next;
        Ok(self.version)
    }

    fn change(&mut self, change: AuthChange) -> Result<(), AuthRefusal> {
        match change {
            AuthChange::AddKey(key) => {
                if !is_name(&key.id) || !is_name(&key.name) {
                    return Err(AuthRefusal::Invalid);
                }
                if self.keys.contains_key(&key.id) {
                    return Err(AuthRefusal::KeyExists);
                }
                let same = self.keys.values().filter(|other| other.name == key.name);
                if same.count() >= MAX_KEYS_OF_NAME {
                    return Err(AuthRefusal::TooManyKeys);
                }
                self.keys.insert(key.id.clone(), key);
            }
            AuthChange::RemoveKey(id) => {
                self.keys.remove(&id).ok_or(AuthRefusal::NoSuchKey)?;
            }
            AuthChange::Grant(grant) => {
                grant.check().map_err(|_| AuthRefusal::Invalid)?;
                let row = (grant.to, grant.at, grant.owners);
                let row = self.grants.entry(row).or_default();
                *row = row.with(grant.verbs);
            }
            AuthChange::Revoke(grant) => {
                let row = (grant.to, grant.at, grant.owners);
                let verbs = self.grants.get_mut(&row);
                let verbs = verbs.ok_or(AuthRefusal::NoSuchGrant)?;
                *verbs = verbs.without(grant.verbs);
                if verbs.is_empty() {
                    self.grants.remove(&row);
                }
            }
            AuthChange::SetGroup { group, members } => {
                // Groups do not nest: who is in a group is visible in one row.
                if !group.is_group() || members.iter().any(Principal::is_group) {
                    return Err(AuthRefusal::Invalid);
                }
                if members.is_empty() {
                    self.groups.remove(&group);
                } else {
                    self.groups.insert(group, members.into_iter().collect());
                }
            }
            AuthChange::SetLimits(row) => {
                row.check().map_err(|_| AuthRefusal::Invalid)?;
                let limits = self.limits.entry((row.of, row.at)).or_default();
                limits.extend(row.values);
            }
            AuthChange::ClearLimits { of, at, kinds } => {
                let row = (of, at);
                let limits = self.limits.get_mut(&row);
                let limits = limits.ok_or(AuthRefusal::NoSuchLimit)?;
                for kind in kinds {
                    limits.remove(&kind).ok_or(AuthRefusal::NoSuchLimit)?;
                }
                if limits.is_empty() {
                    self.limits.remove(&row);
                }
            }
        }
        Ok(())
    }

    /// Returns whether a principal other than `anonymous` has the verb `auth`. A key counts only if
    /// it exists.
    fn has_administrator(&self) -> bool {
        let exists = |principal: &Principal| match principal.as_str().strip_prefix("key:") {
            Some(name) => self.keys.values().any(|key| key.name == name),
            None => !principal.is_anonymous(),
        };
        self.grants().any(|grant| {
            let to = &grant.to;
            let members = self.groups.get(to).into_iter().flatten();
            grant.verbs.allows(Verb::Auth)
                && match to.is_group() {
                    true => members.into_iter().any(exists),
                    false => exists(to),
                }
        })
    }

    /// Raises the version after a restore, so that no version is used twice.
    pub(crate) fn lift(&mut self, by: u64) {
        if self.version > 0 {
            self.version = self.version.saturating_add(by);
        }
    }

    pub(crate) fn restore(
        version: u64,
        keys: Vec<AuthKey>,
        groups: Vec<(Principal, Vec<Principal>)>,
        grants: Vec<Grant>,
        limits: Vec<LimitRow>,
    ) -> AuthTable {
        let of_group = |(group, members): (Principal, Vec<Principal>)| {
            (group, members.into_iter().collect::<BTreeSet<_>>())
        };
        AuthTable {
            version,
            keys: keys.into_iter().map(|key| (key.id.clone(), key)).collect(),
            groups: groups.into_iter().map(of_group).collect(),
            grants: grants
                .into_iter()
                .map(|grant| ((grant.to, grant.at, grant.owners), grant.verbs))
                .collect(),
            limits: limits
                .into_iter()
                .map(|row| ((row.of, row.at), row.values))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::borrow::ToOwned;
    use alloc::vec;

    fn principal(text: &str) -> Principal {
        Principal::parse(text).unwrap()
    }

    fn key(id: &str, name: &str) -> AuthChange {
        AuthChange::AddKey(AuthKey {
            id: id.to_owned(),
            name: name.to_owned(),
            hash: [0; 32],
            created_ms: 0,
            expires_ms: None,
        })
    }

    fn grant(to: &str, verbs: &[Verb], at: Option<&str>) -> Grant {
        Grant {
            to: principal(to),
            verbs: VerbSet::of(verbs.iter().copied()),
            at: at.map(|at| Namespace::parse(at).unwrap()),
            owners: OwnerPatterns::default(),
        }
    }

    fn apply(table: &mut AuthTable, changes: Vec<AuthChange>) -> Result<u64, AuthRefusal> {
        table.apply(AuthCommand {
            changes,
            if_version: None,
            lockout: Lockout::Refuse,
        })
    }

    fn allows(table: &AuthTable, who: &str, verb: Verb, path: &str) -> bool {
        let path = Path::parse(path).unwrap();
        let target = Target::Path(&path);
        table
            .grants_of(&principal(who))
            .any(|grant| grant.verbs.allows(verb) && covers(grant.at.as_ref(), target))
    }

    #[test]
    fn a_row_allows_its_verbs_at_and_below_its_place_and_nothing_else() {
        let mut table = AuthTable::default();
        let row = grant("key:ci", &[Verb::Lock], Some("vol:/a"));
        apply(&mut table, vec![AuthChange::Grant(row)]).unwrap();
        assert!(allows(&table, "key:ci", Verb::Lock, "vol:/a"));
        assert!(allows(&table, "key:ci", Verb::Lock, "vol:/a/b"));
        assert!(allows(&table, "key:ci", Verb::Share, "vol:/a/b"));
        for (who, verb, path) in [
            ("key:ci", Verb::Lock, "vol:/ab"),
            ("key:ci", Verb::Lock, "vol:/"),
            ("key:ci", Verb::Lock, "other:/a"),
            ("key:ci", Verb::Observe, "vol:/a"),
            ("key:c", Verb::Lock, "vol:/a"),
        ] {
            assert!(!allows(&table, who, verb, path), "{who} {verb:?} {path}");
        }
        let at = Namespace::parse("vol:/a").unwrap();
        let (inner, handler) = ("vol:/a/b", "vol");
        let below = |name: &str| covers(Some(&at), Target::Below(&Namespace::parse(name).unwrap()));
        assert!(below("vol:/a") && below(inner) && !below(handler));
        assert!(!covers(Some(&at), Target::Everything) && covers(Some(&at), Target::Anywhere));
    }

    #[test]
    fn a_group_gives_its_rights_to_its_members() {
        let mut table = AuthTable::default();
        let group = principal("group:ops");
        let members = vec![principal("key:amy"), principal("unix:0")];
        let row = grant("group:ops", &[Verb::Break], None);
        let set = AuthChange::SetGroup {
            group: group.clone(),
            members,
        };
        apply(&mut table, vec![set, AuthChange::Grant(row)]).unwrap();
        assert!(allows(&table, "key:amy", Verb::Break, "vol:/a"));
        assert!(allows(&table, "unix:0", Verb::Break, "vol:/a"));
        assert!(!allows(&table, "key:bob", Verb::Break, "vol:/a"));
        let nested = AuthChange::SetGroup {
            group: group.clone(),
            members: vec![group],
        };
        assert_eq!(apply(&mut table, vec![nested]), Err(AuthRefusal::Invalid));
    }

    #[test]
    fn changes_apply_together_or_not_at_all() {
        let mut table = AuthTable::default();
        let before = table.clone();
        let changes = vec![key("1", "ci"), AuthChange::RemoveKey("2".to_owned())];
        assert_eq!(apply(&mut table, changes), Err(AuthRefusal::NoSuchKey));
        assert_eq!(table, before);
        let command = AuthCommand {
            changes: vec![key("1", "ci")],
            if_version: Some(1),
            lockout: Lockout::Refuse,
        };
        let refused = table.apply(command.clone());
        assert_eq!(refused, Err(AuthRefusal::Version { present: 0 }));
        let if_version = Some(0);
        let applied = table.apply(AuthCommand {
            if_version,
            ..command
        });
        assert_eq!(applied, Ok(1));
    }

    #[test]
    fn a_name_has_two_keys_during_a_rotation_and_no_third() {
        let mut table = AuthTable::default();
        apply(&mut table, vec![key("1", "ci"), key("2", "ci")]).unwrap();
        let third = apply(&mut table, vec![key("3", "ci")]);
        assert_eq!(third, Err(AuthRefusal::TooManyKeys));
        let removed = AuthChange::RemoveKey("1".to_owned());
        apply(&mut table, vec![removed, key("3", "ci")]).unwrap();
        let again = apply(&mut table, vec![key("3", "dev")]);
        assert_eq!(again, Err(AuthRefusal::KeyExists));
    }

    #[test]
    fn the_last_administrator_stays() {
        let mut table = AuthTable::default();
        let row = grant("key:root", &[Verb::Auth, Verb::Lock], None);
        apply(&mut table, vec![key("1", "root"), AuthChange::Grant(row)]).unwrap();
        let auth = || grant("key:root", &[Verb::Auth], None);
        for lockout in [
            AuthChange::RemoveKey("1".to_owned()),
            AuthChange::Revoke(auth()),
        ] {
            let refused = apply(&mut table, vec![lockout.clone()]);
            assert_eq!(refused, Err(AuthRefusal::LastAdministrator), "{lockout:?}");
        }
        // A grant to a key that does not exist makes no administrator.
        let other = AuthChange::Grant(grant("key:amy", &[Verb::Auth], None));
        let revoked = || AuthChange::Revoke(auth());
        let refused = apply(&mut table, vec![other.clone(), revoked()]);
        assert_eq!(refused, Err(AuthRefusal::LastAdministrator));
        apply(&mut table, vec![key("2", "amy"), other, revoked()]).unwrap();
        assert!(allows(&table, "key:root", Verb::Lock, "vol:/a"));
    }

    #[test]
    fn verbs_without_a_place_are_not_granted_for_a_part() {
        let mut table = AuthTable::default();
        for row in [
            grant("key:ci", &[Verb::Auth], Some("vol")),
            grant("key:ci", &[Verb::Lock, Verb::Impersonate], Some("vol")),
            grant("key:ci", &[], None),
        ] {
            let refused = apply(&mut table, vec![AuthChange::Grant(row)]);
            assert_eq!(refused, Err(AuthRefusal::Invalid));
        }
    }

    /// A snapshot of the system machine has the table, and every refusal has its encoding.
    #[test]
    fn the_table_is_in_snapshots_and_commands_are_encoded() {
        use crate::codec::{from_bytes, to_bytes};
        use crate::namespace_table::NamespaceTable;
        use crate::policy::Algorithm;
        use crate::system::{System, SystemCommand, SystemOutcome};
        use crate::value::Stamp;
        let mut system = System::new(NamespaceTable::new(1, Algorithm::RecursiveRw));
        system.apply(Stamp::default(), SystemCommand::Rules { number: 2 });
        let set = AuthChange::SetGroup {
            group: principal("group:ops"),
            members: vec![principal("key:ci")],
        };
        let rows = [
            grant("group:ops", &[Verb::Auth, Verb::Lock], None),
            grant("key:ci", &[Verb::Share], Some("vol:/a")),
        ];
        let limits = || {
            let row = |of: &str, values: &[(LimitKind, u64)]| {
                AuthChange::SetLimits(LimitRow {
                    of: LimitSubject::parse(of).unwrap(),
                    at: None,
                    values: values.iter().copied().collect(),
                })
            };
            [
                row(
                    "everyone",
                    &[(LimitKind::Paths, 7), (LimitKind::Requests, 9)],
                ),
                row("total", &[(LimitKind::Owners, 3)]),
                AuthChange::ClearLimits {
                    of: LimitSubject::Everyone,
                    at: None,
                    kinds: vec![LimitKind::Requests],
                },
            ]
        };
        let revoke = AuthChange::Revoke(grant("group:ops", &[Verb::Lock], None));
        let mut changes = vec![key("1", "ci"), set];
        changes.extend(rows.map(AuthChange::Grant));
        changes.extend(limits());
        changes.extend([
            revoke,
            key("2", "dev"),
            AuthChange::RemoveKey("2".to_owned()),
        ]);
        let command = SystemCommand::Auth(alloc::boxed::Box::new(AuthCommand {
            changes,
            if_version: Some(0),
            lockout: Lockout::Accept,
        }));
        assert_eq!(from_bytes(&to_bytes(&command)), Ok(command.clone()));
        assert_eq!(command.clone().for_rules(1), None);
        let applied = system.apply(Stamp::default(), command.clone()).outcome;
        assert_eq!(applied, SystemOutcome::Auth(Ok(1)));
        let again = system.apply(Stamp::default(), command).outcome;
        assert_eq!(
            again,
            SystemOutcome::Auth(Err(AuthRefusal::Version { present: 1 }))
        );
        assert_eq!(from_bytes(&to_bytes(&again)), Ok(again));
        let bytes = system.encode_snapshot(Vec::new());
        let restored = System::decode_snapshot(&bytes).unwrap();
        assert_eq!(restored.auth(), system.auth());
        assert_eq!(restored.encode_snapshot(Vec::new()), bytes);
    }

    /// The row of the principal counts, or else the highest of its groups, or else that of everyone;
    /// of its places the longest.
    #[test]
    fn the_most_particular_limit_counts() {
        let mut table = AuthTable::default();
        let set = |of: &str, at: Option<&str>, kind, value| {
            AuthChange::SetLimits(LimitRow {
                of: LimitSubject::parse(of).unwrap(),
                at: at.map(|at| Namespace::parse(at).unwrap()),
                values: [(kind, value)].into_iter().collect(),
            })
        };
        let group = |name: &str| AuthChange::SetGroup {
            group: principal(name),
            members: vec![principal("key:ci"), principal("key:dev")],
        };
        let changes = vec![
            group("group:a"),
            group("group:b"),
            set("everyone", None, LimitKind::Paths, 1),
            set("group:a", None, LimitKind::Paths, 2),
            set("group:b", None, LimitKind::Paths, 3),
            set("key:ci", None, LimitKind::Paths, 4),
            set("key:ci", Some("vol:/a"), LimitKind::Paths, 5),
            set("total", Some("vol"), LimitKind::Waiting, 6),
        ];
        apply(&mut table, changes).unwrap();
        let namespace = |text: &str| Namespace::parse(text).unwrap();
        let paths = |owner: &str, at: &str| {
            let quota = table.quota(owner, &namespace(at));
            quota.and_then(|quota| quota.own.paths)
        };
        assert_eq!(paths("x", "vol:/a"), Some(1));
        assert_eq!(paths("x@key:dev", "vol:/a"), Some(3));
        assert_eq!(paths("x@key:ci", "vol:/b"), Some(4));
        assert_eq!(paths("x@key:ci", "vol:/a"), Some(5));
        let total = |at: &str| table.quota("x", &namespace(at)).unwrap().total.waiting;
        assert_eq!((total("vol:/a"), total("other:/a")), (Some(6), None));
        let clear = AuthChange::ClearLimits {
            of: LimitSubject::Everyone,
            at: None,
            kinds: vec![LimitKind::Waiting],
        };
        let refused = apply(&mut table, vec![clear]);
        assert_eq!(refused, Err(AuthRefusal::NoSuchLimit));
    }

    #[test]
    fn an_owner_id_names_its_principal() {
        for (owner, scope) in [
            ("job@key:ci", Some("key:ci")),
            ("a@b@unix:7", Some("unix:7")),
            ("job@jwt:i/s", Some("jwt:i/s")),
            ("job", None),
            ("job@anonymous", None),
            ("job@group:ops", None),
            ("job@key:", None),
            ("job@unix:07", None),
        ] {
            assert_eq!(scope_of(owner), scope, "{owner}");
        }
    }

    #[test]
    fn patterns_of_owners_are_ids_or_beginnings_of_ids() {
        let patterns = |all: &[&str]| OwnerPatterns::new(all.iter().map(|one| (*one).to_owned()));
        let ci = patterns(&["ci-*", "deploy"]).unwrap();
        assert!(ci.match_id("ci-7") && ci.match_id("ci-") && ci.match_id("deploy"));
        assert!(!ci.match_id("ci") && !ci.match_id("deploy-2") && !ci.match_id("x-ci-7"));
        assert!(patterns(&[]).unwrap().match_id("anything"));
        for bad in [&["a*b"][..], &[""], &["a\n"]] {
            assert_eq!(patterns(bad), Err(InvalidAuth::Owners), "{bad:?}");
        }
    }

    #[test]
    fn names_of_principals_are_checked() {
        for good in [
            "anonymous",
            "key:ci",
            "unix:0",
            "unix:1000",
            "cert:spiffe://x/y",
            "jwt:https://issuer/sub",
            "group:ops",
        ] {
            assert!(Principal::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "amy",
            "key:",
            "key:a b",
            "key:a@b",
            "unix:-1",
            "unix:01",
            "unix:+1",
            "cert:",
            "user:amy",
            "jwt:a\n",
            "jwt:i/a@b",
        ] {
            assert!(Principal::parse(bad).is_err(), "{bad}");
        }
    }
}
