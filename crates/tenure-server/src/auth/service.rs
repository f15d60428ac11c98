//! gRPC service `tenure.auth.v1.Auth`: who am I, keys, groups, grants, limits.

use std::time::Duration;

use tenure_cluster::Handle;
use tenure_core::auth::{
    self, AuthChange, AuthCommand, AuthKey, AuthTable, Grant, Lockout, OwnerPatterns, Principal,
    Target, Verb, VerbSet, is_name,
};
use tenure_core::limits::{self, LimitKind, LimitRow, LimitSubject, LimitValues};
use tenure_core::path::{Namespace, Path};
use tenure_node::{Answer, ClientRequest, NodeId};
use tenure_wire::auth::auth_server::Auth;
use tenure_wire::auth::{
    ChangeTableRequest, ChangeTableResponse, CheckRequest, CheckResponse, CreateKeyRequest,
    CreateKeyResponse, Grant as WireGrant, Group, Key as WireKey, Limit as WireLimit,
    Limits as WireLimits, ReadTableRequest, ReadTableResponse, WhoAmIRequest, WhoAmIResponse,
};
use tonic::{Request, Response, Status};

use super::{ApiKey, Caller, now_ms};
use crate::handlers;
use crate::status::{Code, Failure};

/// The service. Its verbs are checked before a request gets here.
pub(crate) struct AuthService {
    node: Handle,
    timeout: Duration,
}

impl AuthService {
    pub(crate) fn new(node: Handle, timeout: Duration) -> AuthService {
        AuthService { node, timeout }
    }

    async fn table(&self) -> Result<AuthTable, Failure> {
        let request = Box::new(ClientRequest::ReadAuth);
        match handlers::ask(&self.node, request, self.timeout).await? {
            Answer::Auth(table) => Ok(*table),
            other => Err(handlers::mismatch(&other)),
        }
    }

    async fn change(
        &self,
        by: &Caller,
        what: &str,
        command: AuthCommand,
    ) -> Result<ChangeTableResponse, Failure> {
        by.recordable()?;
        let request = Box::new(ClientRequest::ChangeAuth(Box::new(command)));
        let answer = handlers::ask(&self.node, request, self.timeout).await;
        let result = match &answer {
            Ok(_) => "OK",
            Err(failure) => failure.code.name(),
        };
        tracing::warn!(
            target: "audit",
            action = "auth",
            principal = by.principal().as_str(),
            change = what,
            result,
        );
        by.record("auth", what, result);
        match answer? {
            Answer::AuthChanged {
                version,
                unconfirmed,
            } => Ok(ChangeTableResponse {
                version,
                unconfirmed_nodes: unconfirmed.into_iter().map(NodeId::number).collect(),
            }),
            other => Err(handlers::mismatch(&other)),
        }
    }
}

#[tonic::async_trait]
impl Auth for AuthService {
    async fn who_am_i(
        &self,
        request: Request<WhoAmIRequest>,
    ) -> Result<Response<WhoAmIResponse>, Status> {
        let caller = caller(&request)?;
        let principal = caller.principal();
        let groups = match self.node.auth().borrow().as_deref() {
            Some(table) => table
                .groups()
                .filter(|(_, members)| members.contains(principal))
                .map(|(group, _)| group.to_string())
                .collect(),
            None => Vec::new(),
        };
        let grants = caller.rights().iter().map(|row| {
            wire_grant(&Grant {
                to: principal.clone(),
                verbs: row.verbs,
                at: row.at.clone(),
                owners: row.owners.clone(),
            })
        });
        let everything = |verb| caller.may(verb, Target::Everything);
        Ok(Response::new(WhoAmIResponse {
            principal: principal.to_string(),
            grants: grants.collect(),
            administrator: Verb::ALL.into_iter().all(everything),
            groups,
        }))
    }

    async fn create_key(
        &self,
        request: Request<CreateKeyRequest>,
    ) -> Result<Response<CreateKeyResponse>, Status> {
        let by = caller(&request)?;
        let request = request.into_inner();
        if !is_name(&request.name) || request.name == "client_auth_token" {
            return Err(
                invalid("the name of a key has 1 to 64 letters, digits, `.`, `-` or `_`").into(),
            );
        }
        let secret = ApiKey::generate().map_err(|error| handlers::internal(&error))?;
        let created_ms = now_ms();
        let key = AuthKey {
            id: secret.id().to_owned(),
            name: request.name.clone(),
            hash: secret.hash(),
            created_ms,
            expires_ms: match request.valid_ms {
                0 => None,
                valid => Some(created_ms.saturating_add(valid)),
            },
        };
        let command = AuthCommand {
            changes: vec![AuthChange::AddKey(key.clone())],
            if_version: None,
            lockout: Lockout::Refuse,
        };
        let what = format!("create key {} {}", key.name, key.id);
        let changed = self.change(&by, &what, command).await?;
        Ok(Response::new(CreateKeyResponse {
            key: Some(wire_key(&key)),
            secret: secret.reveal().to_owned(),
            version: changed.version,
            unconfirmed_nodes: changed.unconfirmed_nodes,
        }))
    }

    async fn read_table(
        &self,
        _: Request<ReadTableRequest>,
    ) -> Result<Response<ReadTableResponse>, Status> {
        let table = self.table().await?;
        let groups = table.groups().map(|(group, members)| Group {
            name: group.to_string(),
            members: members.iter().map(Principal::to_string).collect(),
        });
        Ok(Response::new(ReadTableResponse {
            version: table.version(),
            keys: table.keys().map(wire_key).collect(),
            groups: groups.collect(),
            grants: table.grants().map(|grant| wire_grant(&grant)).collect(),
            limits: table.limits().map(|row| wire_limit(&row)).collect(),
        }))
    }

    async fn change_table(
        &self,
        request: Request<ChangeTableRequest>,
    ) -> Result<Response<ChangeTableResponse>, Status> {
        let by = caller(&request)?;
        let request = request.into_inner();
        let mut changes = Vec::new();
        for grant in &request.grant {
            changes.push(AuthChange::Grant(read_grant(grant)?));
        }
        for grant in &request.revoke {
            changes.push(AuthChange::Revoke(read_grant(grant)?));
        }
        for group in &request.set_groups {
            let members = group.members.iter().map(|member| principal(member));
            changes.push(AuthChange::SetGroup {
                group: principal(&group.name)?,
                members: members.collect::<Result<_, Failure>>()?,
            });
        }
        for row in &request.set_limits {
            changes.push(AuthChange::SetLimits(read_limit(row)?));
        }
        for row in &request.clear_limits {
            changes.push(cleared(row)?);
        }
        for id in request.remove_keys {
            changes.push(AuthChange::RemoveKey(id));
        }
        if changes.is_empty() {
            return Err(invalid("the request changes nothing").into());
        }
        let what = shown(&changes);
        let command = AuthCommand {
            changes,
            if_version: (request.if_version > 0).then_some(request.if_version),
            lockout: match request.accept_lockout {
                true => Lockout::Accept,
                false => Lockout::Refuse,
            },
        };
        let changed = self.change(&by, &what, command).await?;
        Ok(Response::new(changed))
    }

    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let request = request.into_inner();
        let who = principal(&request.principal)?;
        let verb = read_verb(&request.verb)?;
        let (path, name);
        let target = match request.at.as_str() {
            "" | "*" => Target::Everything,
            text => match Path::parse(text) {
                Ok(parsed) => {
                    path = parsed;
                    Target::Path(&path)
                }
                Err(_) => {
                    name = Namespace::parse(text).map_err(Failure::from)?;
                    Target::Below(&name)
                }
            },
        };
        let table = self.table().await?;
        let mut rows = table.grants_of(&who);
        let by = rows.find(|row| row.verbs.allows(verb) && auth::covers(row.at.as_ref(), target));
        let verb = verb.name();
        let reason = match &by {
            Some(row) => {
                let (to, at) = (&row.to, place(row.at.as_ref()));
                format!("allowed by the grant of {} to {to} at {at}", row.verbs)
            }
            None => format!("no grant to {who} or its groups has `{verb}` there"),
        };
        Ok(Response::new(CheckResponse {
            allowed: by.is_some(),
            by: by.as_ref().map(wire_grant),
            reason,
        }))
    }
}

/// Returns the caller that the transport has put into the request.
pub(crate) fn caller<T>(request: &Request<T>) -> Result<Caller, Failure> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| handlers::internal(&"a request without a caller"))
}

fn invalid(text: &str) -> Failure {
    Failure::new(Code::InvalidArgument, text)
}

fn principal(text: &str) -> Result<Principal, Failure> {
    Principal::parse(text).map_err(|error| invalid(&error.to_string()))
}

fn read_verb(name: &str) -> Result<Verb, Failure> {
    Verb::named(name).ok_or_else(|| {
        let known: Vec<_> = Verb::ALL.into_iter().map(Verb::name).collect();
        invalid(&format!(
            "unknown verb {name:?}: use one of {}",
            known.join(", ")
        ))
    })
}

fn read_grant(grant: &WireGrant) -> Result<Grant, Failure> {
    let mut verbs = VerbSet::NONE;
    for name in &grant.verbs {
        verbs = verbs.with(match name.as_str() {
            "*" => VerbSet::ALL,
            name => VerbSet::of([read_verb(name)?]),
        });
    }
    let at = match grant.at.as_str() {
        "" | "*" => None,
        text => Some(Namespace::parse(text)?),
    };
    let owners = OwnerPatterns::new(grant.owners.iter().cloned())
        .map_err(|error| invalid(&error.to_string()))?;
    let is_partial =
        (at.is_some() || !owners.is_empty()) && verbs.iter().any(Verb::is_for_everything);
    if verbs.is_empty() || is_partial {
        return Err(invalid(&auth::InvalidAuth::Grant.to_string()));
    }
    Ok(Grant {
        to: principal(&grant.to)?,
        verbs,
        at,
        owners,
    })
}

fn read_place(at: &str) -> Result<Option<Namespace>, Failure> {
    Ok(match at {
        "" | "*" => None,
        text => Some(Namespace::parse(text)?),
    })
}

fn read_limit(row: &WireLimits) -> Result<LimitRow, Failure> {
    let mut values = LimitValues::new();
    for value in &row.values {
        values.insert(limit_kind(&value.name)?, value.value);
    }
    let row = LimitRow {
        of: limit_subject(&row.of)?,
        at: read_place(&row.at)?,
        values,
    };
    row.check().map_err(|error| invalid(&error.to_string()))?;
    Ok(row)
}

fn cleared(row: &WireLimits) -> Result<AuthChange, Failure> {
    let kinds = row.values.iter().map(|value| limit_kind(&value.name));
    Ok(AuthChange::ClearLimits {
        of: limit_subject(&row.of)?,
        at: read_place(&row.at)?,
        kinds: kinds.collect::<Result<_, Failure>>()?,
    })
}

fn limit_subject(text: &str) -> Result<LimitSubject, Failure> {
    LimitSubject::parse(text).map_err(|_| {
        invalid("invalid subject of a limit: use everyone, total, a principal such as key:NAME, or group:NAME")
    })
}

fn limit_kind(name: &str) -> Result<LimitKind, Failure> {
    LimitKind::named(name).ok_or_else(|| {
        let known: Vec<_> = LimitKind::ALL.into_iter().map(LimitKind::name).collect();
        invalid(&format!(
            "unknown limit {name:?}: use one of {}",
            known.join(", ")
        ))
    })
}

fn wire_limit(row: &LimitRow) -> WireLimits {
    let values = row.values.iter().map(|(kind, value)| WireLimit {
        name: kind.name().to_owned(),
        value: *value,
    });
    WireLimits {
        of: row.of.to_string(),
        at: place(row.at.as_ref()).to_owned(),
        values: values.collect(),
    }
}

fn wire_grant(grant: &Grant) -> WireGrant {
    WireGrant {
        to: grant.to.to_string(),
        verbs: grant
            .verbs
            .iter()
            .map(|verb| verb.name().to_owned())
            .collect(),
        at: place(grant.at.as_ref()).to_owned(),
        owners: grant.owners.iter().map(str::to_owned).collect(),
    }
}

fn wire_key(key: &AuthKey) -> WireKey {
    WireKey {
        id: key.id.clone(),
        name: key.name.clone(),
        created_ms: key.created_ms,
        expires_ms: key.expires_ms.unwrap_or(0),
    }
}

fn place(at: Option<&Namespace>) -> &str {
    at.map_or("*", Namespace::as_str)
}

fn owners(row: &Grant) -> String {
    match row.owners.is_empty() {
        true => String::new(),
        false => {
            let patterns: Vec<_> = row.owners.iter().collect();
            format!(" as {}", patterns.join(" "))
        }
    }
}

/// Describes changes for the audit log.
fn shown(changes: &[AuthChange]) -> String {
    let one = |change: &AuthChange| match change {
        AuthChange::AddKey(key) => format!("create key {} {}", key.name, key.id),
        AuthChange::RemoveKey(id) => format!("revoke key {id}"),
        AuthChange::Grant(row) => {
            let at = place(row.at.as_ref());
            format!("grant {} to {} at {at}{}", row.verbs, row.to, owners(row))
        }
        AuthChange::Revoke(row) => {
            let at = place(row.at.as_ref());
            format!(
                "revoke {} from {} at {at}{}",
                row.verbs,
                row.to,
                owners(row)
            )
        }
        AuthChange::SetGroup { group, members } => {
            let members: Vec<_> = members.iter().map(Principal::as_str).collect();
            format!("set {group} to {}", members.join(" "))
        }
        AuthChange::SetLimits(row) => {
            let at = place(row.at.as_ref());
            format!("limit {} to {} at {at}", row.of, limits::shown(&row.values))
        }
        AuthChange::ClearLimits { of, at, kinds } => {
            let kinds: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
            let at = place(at.as_ref());
            format!("clear limits {} of {of} at {at}", kinds.join(","))
        }
    };
    let all: Vec<String> = changes.iter().map(one).collect();
    all.join("; ")
}
