//! Namespace policies: set, get, delete, list (R131–R140, E13 (list namespace policies)).

use tenure_core::auth::{Target, Verb};
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::admin_release::audited;
use super::mismatch;
use crate::audit::AuditRecord;
use crate::auth::Caller;
use crate::convert;
use crate::rpc::{Outcome, ValidCall};
use crate::status::Failure;

/// Parses a request to set the algorithm of a namespace.
pub(crate) fn set(
    caller: &Caller,
    request: v1::SetNamespacePolicyRequest,
) -> Result<ValidCall, Failure> {
    let set = ClientRequest::SetNamespacePolicy {
        namespace: convert::namespace(&request.namespace)?,
        algorithm: convert::algorithm(request.algorithm)?,
        key: caller.key(&request.idempotency_key)?,
    };
    let record = AuditRecord::of_policy("set_namespace_policy", request.namespace);
    Ok(audited(set, record))
}

/// Parses a request for the exact row of a namespace.
pub(crate) fn get(
    _: &Caller,
    request: v1::GetNamespacePolicyRequest,
) -> Result<ClientRequest, Failure> {
    let namespace = convert::namespace(&request.namespace)?;
    Ok(ClientRequest::GetNamespacePolicy { namespace })
}

pub(crate) fn got(outcome: Outcome<'_>) -> Result<v1::GetNamespacePolicyResponse, Failure> {
    match outcome.answer? {
        Answer::Policy {
            algorithm,
            explicit,
        } => Ok(v1::GetNamespacePolicyResponse {
            algorithm: convert::algorithm_number(algorithm),
            explicit,
        }),
        other => Err(mismatch(&other)),
    }
}

/// Parses a request to remove the row of a namespace.
pub(crate) fn delete(
    caller: &Caller,
    request: v1::DeleteNamespacePolicyRequest,
) -> Result<ValidCall, Failure> {
    let delete = ClientRequest::DeleteNamespacePolicy {
        namespace: convert::namespace(&request.namespace)?,
        key: caller.key(&request.idempotency_key)?,
    };
    let record = AuditRecord::of_policy("delete_namespace_policy", request.namespace);
    Ok(audited(delete, record))
}

/// Parses a request for one page of the rows of all explicit namespaces.
pub(crate) fn list(
    _: &Caller,
    request: v1::ListNamespacePoliciesRequest,
) -> Result<ClientRequest, Failure> {
    let after = match request.after.as_str() {
        "" => None,
        name => Some(convert::namespace(name)?),
    };
    Ok(ClientRequest::ListNamespacePolicies {
        after,
        page: request.page,
    })
}

pub(crate) fn listed(outcome: Outcome<'_>) -> Result<v1::ListNamespacePoliciesResponse, Failure> {
    let (answer, caller) = outcome.open()?;
    match answer {
        Answer::Policies { rows, done } => Ok(v1::ListNamespacePoliciesResponse {
            rows: rows
                .into_iter()
                .filter(|(namespace, _)| caller.may(Verb::Observe, Target::Below(namespace)))
                .map(|(namespace, algorithm)| v1::NamespacePolicy {
                    namespace: namespace.as_str().to_owned(),
                    algorithm: convert::algorithm_number(algorithm),
                })
                .collect(),
            done,
        }),
        other => Err(mismatch(&other)),
    }
}
