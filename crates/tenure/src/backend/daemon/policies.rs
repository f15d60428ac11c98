//! Namespace policies on the daemon (R131 (SetNamespacePolicy clears on change) to R140 (rows
//! accept every namespace)), and its health.

use tenure_wire::v1;

use super::client::{DaemonClient, new_key};
use super::{failed, inspect};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::policy::{Algorithm, Policy};
use crate::tenure::Tenure;

impl Tenure {
    /// Sets the conflict rule of a namespace.
    ///
    /// A change of the rule ends all holds of the namespace: R131 (SetNamespacePolicy clears on
    /// change).
    pub async fn set_policy(&self, namespace: &str, algorithm: Algorithm) -> Result<(), Error> {
        let request = v1::SetNamespacePolicyRequest {
            namespace: namespace.to_owned(),
            algorithm: number(algorithm).into(),
            idempotency_key: new_key(),
        };
        self.default_client()?.policy(request).await.map(drop)
    }

    /// Returns the policy of exactly this namespace: R136 (GetNamespacePolicy reads one row).
    pub async fn policy(&self, namespace: &str) -> Result<Policy, Error> {
        let request = v1::GetNamespacePolicyRequest {
            namespace: namespace.to_owned(),
        };
        let found = self.default_client()?.policy(request).await?;
        Ok(Policy {
            namespace: namespace.to_owned(),
            algorithm: algorithm(found.algorithm()),
            explicit: found.explicit,
        })
    }

    /// Removes a policy.
    ///
    /// # Errors
    ///
    /// Fails if the namespace has holds: R138 (deleting a row in use).
    pub async fn remove_policy(&self, namespace: &str) -> Result<(), Error> {
        let request = v1::DeleteNamespacePolicyRequest {
            namespace: namespace.to_owned(),
            idempotency_key: new_key(),
        };
        self.default_client()?.policy(request).await.map(drop)
    }

    /// Returns all explicit policies in byte order: E13 (list namespace policies).
    pub async fn policies(&self) -> Result<Vec<Policy>, Error> {
        let client = self.default_client()?;
        let mut policies: Vec<Policy> = Vec::new();
        loop {
            let after = policies
                .last()
                .map_or_else(String::new, |last| last.namespace.clone());
            let request = v1::ListNamespacePoliciesRequest { after, page: 512 };
            let page = client.policy(request).await?;
            policies.extend(page.rows.iter().map(|row| Policy {
                namespace: row.namespace.clone(),
                algorithm: algorithm(row.algorithm()),
                explicit: true,
            }));
            if page.done || page.rows.is_empty() {
                return Ok(policies);
            }
        }
    }

    /// Returns the health of the configured daemon as text: R145 (Health needs a working quorum).
    pub async fn health(&self) -> Result<String, Error> {
        self.health_of(&[]).await
    }

    /// Returns the health of the daemon at `nodes` as text. Empty: the configured nodes.
    pub async fn health_of(&self, nodes: &[Endpoint]) -> Result<String, Error> {
        let health = self.client(nodes)?.policy(v1::HealthRequest {}).await?;
        match health.ok {
            true => Ok(health.detail),
            false => Err(Error::refused(
                &inspect::everything(nodes),
                crate::Class::Io,
                health.detail,
            )),
        }
    }

    fn default_client(&self) -> Result<DaemonClient, Error> {
        self.client(&[])
    }
}

impl DaemonClient {
    async fn policy<Q: super::rpc_table::RpcCall>(&self, request: Q) -> Result<Q::Answer, Error> {
        let answer = self.call_from_anywhere(request).await;
        answer.map_err(|trouble| failed(&inspect::everything(&[]), trouble))
    }
}

fn number(algorithm: Algorithm) -> v1::LockAlgorithm {
    match algorithm {
        Algorithm::RecursiveRw => v1::LockAlgorithm::RecursiveRw,
        Algorithm::PointRw => v1::LockAlgorithm::PointRw,
        Algorithm::RecursiveWrite => v1::LockAlgorithm::RecursiveWrite,
        Algorithm::PointWrite => v1::LockAlgorithm::PointWrite,
        Algorithm::Semaphore => v1::LockAlgorithm::Semaphore,
    }
}

fn algorithm(number: v1::LockAlgorithm) -> Algorithm {
    match number {
        v1::LockAlgorithm::RecursiveRw => Algorithm::RecursiveRw,
        v1::LockAlgorithm::PointRw => Algorithm::PointRw,
        v1::LockAlgorithm::RecursiveWrite => Algorithm::RecursiveWrite,
        v1::LockAlgorithm::PointWrite => Algorithm::PointWrite,
        v1::LockAlgorithm::Semaphore => Algorithm::Semaphore,
    }
}
