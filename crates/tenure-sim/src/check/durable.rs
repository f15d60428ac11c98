//! Durability: an acknowledged change is not lost, and a keyed call is answered the same again.
//!
//! A policy that was set is read until it is changed. A request that is repeated with its key gets
//! the same answer. Grants, releases and waiters have checkers of their own.

use std::collections::BTreeMap;

use tenure_core::path::Namespace;
use tenure_core::policy::Algorithm;
use tenure_core::value::Fence;
use tenure_node::{AcquireAnswer, Answer, ClientRequest, EffectCertainty, Failure};

use super::{CheckResult, Fact, Relevance};
use crate::time::SimTime;

/// Acknowledged policies, and answers by key.
#[derive(Default)]
pub(super) struct DurableWrites {
    /// What the last change of each namespace made of it, if that is certain, and since when.
    policies: BTreeMap<Namespace, Option<(Option<Algorithm>, SimTime)>>,
    /// The last change of each namespace that was sent.
    newest: BTreeMap<Namespace, u64>,
    /// Changes that may take effect behind a newer one: sent and not answered, answered without a
    /// certain outcome, or answered after a newer one was sent. A link that hangs delays a call or
    /// its answer for minutes.
    late: BTreeMap<u64, (Namespace, Option<Algorithm>)>,
    /// The fences of keyed acquires, by namespace. After a change of route the same key is a new
    /// one: R104 (scope of a key).
    keyed: BTreeMap<(Option<Namespace>, String), Option<Fence>>,
    /// The numbers that the global counter gave, by key.
    numbers: BTreeMap<String, Fence>,
}

impl DurableWrites {
    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
        match fact {
            Fact::Asked(ask) => {
                // From here until the answer, either value may be read.
                if let Some((namespace, algorithm)) = change(&ask.request) {
                    self.policies.insert(namespace.clone(), None);
                    self.newest.insert(namespace.clone(), ask.id);
                    self.late.insert(ask.id, (namespace.clone(), algorithm));
                }
                Ok(Relevance::Passed)
            }
            Fact::Answered(ask, Err(failure)) => {
                let is_uncertain = match failure {
                    Failure::DeadlineExceeded => true,
                    Failure::Unavailable {
                        nothing_happened, ..
                    } => *nothing_happened == EffectCertainty::No,
                    _ => false,
                };
                if !is_uncertain {
                    self.late.remove(&ask.id);
                }
                Ok(Relevance::Passed)
            }
            Fact::Answered(ask, Ok(answer)) => match (&*ask.request, answer) {
                (request, Answer::Done) if change(request).is_some() => {
                    if let Some((namespace, algorithm)) = change(request)
                        && self.newest.get(namespace) == Some(&ask.id)
                    {
                        self.late.remove(&ask.id);
                        self.policies
                            .insert(namespace.clone(), Some((algorithm, now)));
                    }
                    Ok(Relevance::Passed)
                }
                (
                    ClientRequest::GetNamespacePolicy { namespace },
                    Answer::Policy {
                        algorithm,
                        explicit,
                    },
                ) => {
                    let found = explicit.then_some(*algorithm);
                    // Only a change that was answered before this read was sent, and not followed
                    // by another, decides what must be read.
                    match self.policies.get(namespace) {
                        Some(Some((set, when)))
                            if *when < ask.sent
                                && *set != found
                                && !self.may_be_late(namespace, found) =>
                        {
                            Err(format!(
                                "{namespace} was set to {set:?} at {when} and read as {found:?}"
                            ))
                        }
                        _ => Ok(Relevance::Checked),
                    }
                }
                (
                    ClientRequest::Acquire(acquire),
                    Answer::Acquire(AcquireAnswer::Granted { namespace, fence }),
                ) => {
                    let Some(key) = &acquire.key else {
                        return Ok(Relevance::Passed);
                    };
                    let named = (namespace.clone(), key.as_str().to_owned());
                    match self.keyed.insert(named, *fence) {
                        Some(before) if before != *fence => Err(format!(
                            "the acquire of key {} was granted at {before:?} and again at {fence:?}",
                            key.as_str()
                        )),
                        _ => Ok(Relevance::Checked),
                    }
                }
                (ClientRequest::IncrFencingToken { key: Some(key) }, Answer::Number(number)) => {
                    match self.numbers.insert(key.as_str().to_owned(), *number) {
                        Some(before) if before != *number => Err(format!(
                            "the counter gave {before} and {number} for the key {}",
                            key.as_str()
                        )),
                        _ => Ok(Relevance::Checked),
                    }
                }
                _ => Ok(Relevance::Passed),
            },
            _ => Ok(Relevance::Passed),
        }
    }
}

impl DurableWrites {
    fn may_be_late(&self, namespace: &Namespace, algorithm: Option<Algorithm>) -> bool {
        let mut late = self.late.values();
        late.any(|(changed, to)| changed == namespace && *to == algorithm)
    }
}

/// Returns the namespace that a call changes, and the algorithm that it gets.
fn change(request: &ClientRequest) -> Option<(&Namespace, Option<Algorithm>)> {
    match request {
        ClientRequest::SetNamespacePolicy {
            namespace,
            algorithm,
            ..
        } => Some((namespace, Some(*algorithm))),
        ClientRequest::DeleteNamespacePolicy { namespace, .. } => Some((namespace, None)),
        _ => None,
    }
}
