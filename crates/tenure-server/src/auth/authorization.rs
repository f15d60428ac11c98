//! Judgement: whether a caller may make a call.
//!
//! The RPC table names the verb of each RPC; here is where on the paths of the request it is needed.

use tenure_core::auth::{Target, Verb};
use tenure_core::command::WaitMode;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Mode;
use tenure_core::text::shell_quoted;
use tenure_core::value::OwnerId;
use tenure_node::{ClientRequest, ReleaseRequest};

use super::Caller;
use super::activity::acting_owner;
use crate::status::{Code, Failure};

/// Clients learn the other nodes from it.
const MEMBERS: &str = "/tenure.cluster.v1.Cluster/Members";

/// Verbs of the RPCs of other services, by path. `None`: every admitted caller.
pub(crate) const SERVICES: [(&str, Option<Verb>); 10] = [
    (MEMBERS, None),
    ("/tenure.cluster.v1.Cluster/Status", Some(Verb::Status)),
    ("/tenure.cluster.v1.Cluster/Drain", Some(Verb::Operate)),
    ("/tenure.cluster.v1.Cluster/Remove", Some(Verb::Operate)),
    ("/tenure.cluster.v1.Cluster/Backup", Some(Verb::Backup)),
    ("/tenure.auth.v1.Auth/WhoAmI", None),
    ("/tenure.auth.v1.Auth/CreateKey", Some(Verb::Auth)),
    ("/tenure.auth.v1.Auth/ReadTable", Some(Verb::Auth)),
    ("/tenure.auth.v1.Auth/ChangeTable", Some(Verb::Auth)),
    ("/tenure.auth.v1.Auth/Check", Some(Verb::Auth)),
];

/// Verbs of the same as JSON, by URL.
const JSON_SERVICES: [(&str, Verb); 3] = [
    ("/v1/cluster/status", Verb::Status),
    ("/v1/cluster/drain", Verb::Operate),
    ("/v1/cluster/remove", Verb::Operate),
];

/// Judges a call of another service than the lock service, by its URL. Reflection, health and
/// OpenAPI describe the daemon and need no verb; a new RPC of Tenure's own services needs a row.
pub(crate) fn service_verb(caller: &Caller, url: &str) -> Result<(), Failure> {
    let judged = judge_service(caller, url);
    if let Err(denied) = &judged {
        caller.record_denied(url, denied);
    }
    judged
}

fn judge_service(caller: &Caller, url: &str) -> Result<(), Failure> {
    if let Some((_, verb)) = JSON_SERVICES.iter().find(|(path, _)| *path == url) {
        need(caller, *verb, Target::Everything)?;
        return caller.limits().take_service(*verb);
    }
    let row = SERVICES.iter().find(|(path, _)| *path == url);
    match row {
        // For callers that can use a node at all.
        Some((path, None)) if *path == MEMBERS => need(caller, Verb::Share, Target::Anywhere)
            .or_else(|denied| sees_anything(caller).map_err(|_| denied)),
        Some((_, None)) => Ok(()),
        Some((_, Some(verb))) => {
            need(caller, *verb, Target::Everything)?;
            caller.limits().take_service(*verb)
        }
        None if url == "/metrics" => need(caller, Verb::Metrics, Target::Everything),
        None if url.starts_with("/tenure.") => need(caller, Verb::Operate, Target::Everything),
        None => Ok(()),
    }
}

/// Judges a call of the lock service. `verb` is the verb of its row.
pub(crate) fn judge(caller: &Caller, verb: Verb, request: &ClientRequest) -> Result<(), Failure> {
    match request {
        ClientRequest::Acquire(acquire) => {
            let owner = &acquire.owner;
            if acquire.requests.is_empty() {
                return need_as(caller, owner, Verb::Share, Target::Anywhere);
            }
            for one in &acquire.requests {
                let target = Target::Path(&one.path);
                let mode = match one.mode {
                    Mode::Read | Mode::ReadTree => Verb::Share,
                    Mode::Write => verb,
                };
                need_as(caller, owner, mode, target)?;
                if acquire.wait == WaitMode::QueueAndAsk {
                    need(caller, Verb::Ask, target)?;
                }
            }
            Ok(())
        }
        // These act on the caller's own owners only, whatever it names.
        ClientRequest::Release(ReleaseRequest { owner, .. })
        | ClientRequest::ReleaseAll { owner, .. }
        | ClientRequest::SetWaitEdge { owner, .. }
        | ClientRequest::ClearWaitEdge { owner, .. } => {
            need_as(caller, owner, Verb::Share, Target::Anywhere)
        }
        ClientRequest::Renew { owner, domains, .. } => {
            need_as(caller, owner, Verb::Share, Target::Anywhere)?;
            domains.iter().try_for_each(|name| meets(caller, name))
        }
        ClientRequest::AssertFencing { paths, .. } => {
            if paths.is_empty() {
                return sees_anything(caller);
            }
            paths.iter().try_for_each(|path| sees(caller, path))
        }
        ClientRequest::IsBlocking { path, .. } => sees(caller, path),
        ClientRequest::DetectCycle { .. }
        | ClientRequest::IsOwnerAlive { .. }
        | ClientRequest::ListOwnerLocks { .. } => sees_anything(caller),
        ClientRequest::InspectPath { path }
        | ClientRequest::Explain { path, .. }
        | ClientRequest::Break { path, .. } => need(caller, verb, Target::Path(path)),
        ClientRequest::SetNamespacePolicy { namespace, .. }
        | ClientRequest::DeleteNamespacePolicy { namespace, .. }
        | ClientRequest::GetNamespacePolicy { namespace } => {
            need(caller, verb, Target::Below(namespace))
        }
        // It ends every hold of the victim, wherever it is.
        ClientRequest::ForceRelease { .. } => need(caller, verb, Target::Everything),
        ClientRequest::RequestRevoke { .. }
        | ClientRequest::IncrFencingToken { .. }
        | ClientRequest::DumpLocks { .. }
        | ClientRequest::Browse(_)
        | ClientRequest::Survey { .. }
        | ClientRequest::ListNamespacePolicies { .. } => need(caller, verb, Target::Anywhere),
        ClientRequest::Health => need(caller, verb, Target::Everything),
        // Not calls of the lock service.
        ClientRequest::Confirm { .. } => need(caller, Verb::Backup, Target::Everything),
        ClientRequest::ReadAuth | ClientRequest::ChangeAuth(_) => {
            need(caller, Verb::Auth, Target::Everything)
        }
    }
}

/// Judges a subscription to the events of an owner.
pub(crate) fn judge_owner(caller: &Caller, owner: &OwnerId) -> Result<(), Failure> {
    match caller.owns(owner) {
        true => sees_anything(caller),
        // Events name namespaces, and those of another owner may be anywhere.
        false => need(caller, Verb::Observe, Target::Everything),
    }
}

/// Judges a watch. Below the prefix the caller gets the changes that it may see.
pub(crate) fn judge_watch(caller: &Caller, prefix: &Namespace) -> Result<(), Failure> {
    let rows = caller.rights().iter();
    let mut rows = rows.filter(|row| row.verbs.allows(Verb::Observe));
    let is_allowed = rows.any(|row| overlaps(row.at.as_ref(), prefix));
    match is_allowed {
        true => Ok(()),
        false => Err(denied(caller, Verb::Observe, Target::Below(prefix))),
    }
}

fn overlaps(at: Option<&Namespace>, name: &Namespace) -> bool {
    at.is_none_or(|at| at == name || at.encloses(name) || name.encloses(at))
}

/// Needs the right to share something below a name.
fn meets(caller: &Caller, name: &Namespace) -> Result<(), Failure> {
    let rows = caller.rights().iter();
    let mut rows = rows.filter(|row| row.verbs.allows(Verb::Share));
    match rows.any(|row| overlaps(row.at.as_ref(), name)) {
        true => Ok(()),
        false => Err(denied(caller, Verb::Share, Target::Below(name))),
    }
}

fn sees(caller: &Caller, path: &Path) -> Result<(), Failure> {
    match caller.sees(path) {
        true => Ok(()),
        false => Err(denied(caller, Verb::Observe, Target::Path(path))),
    }
}

fn sees_anything(caller: &Caller) -> Result<(), Failure> {
    match caller.may(Verb::Share, Target::Anywhere) {
        true => Ok(()),
        false => need(caller, Verb::Observe, Target::Anywhere),
    }
}

fn need(caller: &Caller, verb: Verb, target: Target<'_>) -> Result<(), Failure> {
    match caller.may(verb, target) {
        true => Ok(()),
        false => Err(denied(caller, verb, target)),
    }
}

/// Needs a verb as one of the caller's owners: a grant may be for some owner ids only.
fn need_as(
    caller: &Caller,
    owner: &OwnerId,
    verb: Verb,
    target: Target<'_>,
) -> Result<(), Failure> {
    if caller.may_as(owner, verb, target) {
        return Ok(());
    }
    need(caller, verb, target)?;
    let (principal, verb) = (caller.principal(), verb.name());
    let owner = caller.shown(owner);
    Err(Failure::new(
        Code::PermissionDenied,
        format!(
            "{principal} has the verb `{verb}` here for other owner ids than {owner:?}: use one that a grant names, or an administrator grants it with `tenure auth grant {principal} {verb} AT --owners {}`",
            shell_quoted(&owner),
        ),
    ))
}

/// Counts a call against the activity limits of its caller.
pub(crate) fn take_call(caller: &Caller, request: &ClientRequest) -> Result<(), Failure> {
    if !caller.limits().has_rates() {
        return Ok(());
    }
    let is_own = acting_owner(request).is_none_or(|(owner, _)| caller.owns(owner));
    caller.limits().take(request, is_own)
}

/// Returns the owner of another principal that a call acts as, and the name of the action for the
/// audit log.
pub(crate) fn acts_as_another<'a>(
    caller: &Caller,
    request: &'a ClientRequest,
) -> Option<(&'a OwnerId, &'static str)> {
    acting_owner(request).filter(|(owner, _)| !caller.owns(owner))
}

/// Names the missing verb, the place, and the command that grants it.
fn denied(caller: &Caller, verb: Verb, target: Target<'_>) -> Failure {
    let principal = caller.principal();
    let place = match target {
        Target::Path(path) => format!(" at {}", path.as_str().escape_debug()),
        Target::Below(name) => format!(" at {}", name.as_str().escape_debug()),
        Target::Everything if verb.is_cluster_wide() => String::new(),
        Target::Everything => " at `*`".to_owned(),
        Target::Anywhere => " anywhere".to_owned(),
    };
    let verb = verb.name();
    if caller.is_anonymous() {
        let text = format!(
            "credentials are missing: callers without them lack the verb `{verb}`{place}: send `authorization: Bearer KEY`"
        );
        return Failure::new(Code::Unauthenticated, text);
    }
    Failure::new(
        Code::PermissionDenied,
        format!(
            "{principal} lacks the verb `{verb}`{place}: an administrator can grant it with `tenure auth grant {principal} {verb}`"
        ),
    )
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;

    /// Fails when an RPC of the cluster or the auth service names no verb.
    #[test]
    fn every_rpc_of_the_other_services_has_its_verb() {
        let mut declared = Vec::new();
        for bytes in [
            tenure_wire::CLUSTER_DESCRIPTORS,
            tenure_wire::AUTH_DESCRIPTORS,
        ] {
            let set = FileDescriptorSet::decode(bytes).unwrap();
            for file in &set.file {
                for service in &file.service {
                    for method in &service.method {
                        let (package, name) = (file.package(), service.name());
                        declared.push(format!("/{package}.{name}/{}", method.name()));
                    }
                }
            }
        }
        let mut rows: Vec<String> = SERVICES.map(|(path, _)| path.to_owned()).to_vec();
        declared.sort();
        rows.sort();
        assert_eq!(rows, declared);
    }
}
