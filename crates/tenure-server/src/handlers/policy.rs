//! Namespace policies (R131–R140, E13).

use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::{Call, Handlers, mismatch};
use crate::convert;
use crate::status::Failure;

impl Handlers {
    /// Sets the algorithm of a namespace.
    pub async fn set_namespace_policy(
        &self,
        call: Call,
        request: v1::SetNamespacePolicyRequest,
    ) -> Result<v1::SetNamespacePolicyResponse, Failure> {
        let set = ClientRequest::SetNamespacePolicy {
            namespace: convert::namespace(&request.namespace)?,
            algorithm: convert::algorithm(request.algorithm)?,
            key: convert::key(&request.idempotency_key)?,
        };
        self.done(call, set).await?;
        Ok(v1::SetNamespacePolicyResponse {})
    }

    /// Reads the exact row of a namespace.
    pub async fn get_namespace_policy(
        &self,
        call: Call,
        request: v1::GetNamespacePolicyRequest,
    ) -> Result<v1::GetNamespacePolicyResponse, Failure> {
        let namespace = convert::namespace(&request.namespace)?;
        match self
            .ask(call, ClientRequest::GetNamespacePolicy { namespace })
            .await?
        {
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

    /// Removes the row of a namespace.
    pub async fn delete_namespace_policy(
        &self,
        call: Call,
        request: v1::DeleteNamespacePolicyRequest,
    ) -> Result<v1::DeleteNamespacePolicyResponse, Failure> {
        let delete = ClientRequest::DeleteNamespacePolicy {
            namespace: convert::namespace(&request.namespace)?,
            key: convert::key(&request.idempotency_key)?,
        };
        self.done(call, delete).await?;
        Ok(v1::DeleteNamespacePolicyResponse {})
    }

    /// The rows of all explicit namespaces, page by page.
    pub async fn list_namespace_policies(
        &self,
        call: Call,
        request: v1::ListNamespacePoliciesRequest,
    ) -> Result<v1::ListNamespacePoliciesResponse, Failure> {
        let after = match request.after.as_str() {
            "" => None,
            name => Some(convert::namespace(name)?),
        };
        let list = ClientRequest::ListNamespacePolicies {
            after,
            page: request.page,
        };
        match self.ask(call, list).await? {
            Answer::Policies { rows, done } => Ok(v1::ListNamespacePoliciesResponse {
                rows: rows
                    .into_iter()
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
}
