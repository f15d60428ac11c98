//! Calls about one owner, and the counter: Renew, ReleaseAll, ForceRelease, RequestRevoke, wait edges,
//! IncrFencingToken.

use tenure_core::codec::{Encode as _, Writer};
use tenure_core::command::{Domain, ReleaseCause, RenewLease, Selection};
use tenure_core::outcome::Refusal;
use tenure_core::path::Namespace;
use tenure_core::policy::Missing;
use tenure_core::system::{
    Edge, KeyClaim, RepeatedKey, SystemAnswer, SystemCall, SystemCommand, SystemOutcome,
};
use tenure_core::value::{Key, OwnerId, Ttl};
use tenure_wire::v1;
use tonic::Status;
use xxhash_rust::xxh3::xxh3_128;

use super::{Service, convert};
use crate::attempt::Rows;
use crate::driver::LogDriver;
use crate::engine::CopyState;
use crate::entry::{Call, LeaseKey};
use crate::replica::{CallOutcome, LogCopy};

/// The answer when no more keys can be remembered (R102: keyed requests apply once).
pub(super) const FULL: &str = "the idempotency table is full: try again later, or without a key";

/// Returns the failure for a refusal of the state machine.
pub(super) fn refused(refusal: Refusal) -> Status {
    match refusal {
        Refusal::KeyReused => key_reused(),
        Refusal::AnswersFull => Status::unavailable(FULL),
        Refusal::QueueFull => {
            Status::resource_exhausted("the queue of this namespace is full: try again later")
        }
        Refusal::FencesUsedUp => {
            Status::resource_exhausted("the fencing tokens of this namespace are used up")
        }
        Refusal::Quota { .. } => Status::resource_exhausted("the acquire would exceed a quota"),
        // An entry is made from the state right before it, so its route is never outdated.
        Refusal::Outdated { .. } | Refusal::Frozen { .. } | Refusal::Moved { .. } => {
            Status::aborted("the namespace policy changed during this request: try again")
        }
    }
}

fn key_reused() -> Status {
    Status::invalid_argument("this idempotency key was used for a different request: use a new key")
}

/// Returns the failure for a key that cannot be used.
pub(super) fn bad_key(before: &RepeatedKey) -> Status {
    match before {
        RepeatedKey::KeyReused => key_reused(),
        RepeatedKey::Full => Status::unavailable(FULL),
        RepeatedKey::Answered(_) | RepeatedKey::Open => {
            Status::internal("a key has an answer of another call")
        }
    }
}

/// A key with the content of its request (R103: key reuse with other content).
pub(super) fn claim(
    call: SystemCall,
    key: Option<Key>,
    content: impl FnOnce(&mut Writer),
) -> Option<KeyClaim> {
    let key = key?;
    let mut out = Writer::new();
    content(&mut out);
    Some(KeyClaim {
        call,
        key,
        fingerprint: xxh3_128(&out.into_bytes()),
    })
}

fn put_owner(out: &mut Writer, owner: &OwnerId, domains: &[Namespace]) {
    owner.put(out);
    let mut sorted: Vec<&Namespace> = domains.iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    for domain in sorted {
        domain.put(out);
    }
}

/// The leases that a renewal is about: those that are named, or all that the owner has.
fn renewed_leases(replica: &LogCopy, owner: &OwnerId, domains: &[Namespace]) -> Vec<Namespace> {
    let has_lease = |namespace: &Namespace| replica.space().lease(namespace, owner).is_some();
    let all = || {
        let namespaces = replica.space().owner_namespaces(owner).into_iter();
        namespaces.filter(has_lease)
    };
    match replica.system().table().select(domains) {
        Selection::All => all().collect(),
        Selection::Only(domains) => {
            let mut chosen = Vec::new();
            for domain in domains {
                match domain {
                    Domain::Namespace(namespace) => chosen.push(namespace),
                    Domain::Handler(handler) => {
                        chosen.extend(all().filter(|name| name.handler() == handler.handler()));
                    }
                }
            }
            chosen.sort();
            chosen.dedup();
            chosen
        }
    }
}

/// What a renewal by a beat finds: whether a release was requested, or what is missing.
fn renewal(
    state: &CopyState,
    owner: &OwnerId,
    namespaces: &[Namespace],
    is_named: bool,
) -> Result<bool, Missing> {
    let (now, space) = (state.now(), state.replica.space());
    if namespaces.is_empty() {
        return Err(Missing::Alive);
    }
    let mut asked = false;
    for namespace in namespaces {
        match space.renewal(namespace, owner) {
            Ok(lease) => asked |= lease.asked_until > now,
            // R91 (Renew without domains): what a break has taken away.
            Err(missing) if is_named || missing == Missing::Alive => return Err(missing),
            Err(_) => return Err(Missing::OwnerSet),
        }
    }
    Ok(asked)
}

impl<D: LogDriver> Service<D> {
    /// A renewal that needs no entry is a beat: it raises the rows, then reads the log. What the log
    /// shows then is the answer.
    pub(super) async fn renew_owner(
        &self,
        wire: v1::RenewRequest,
    ) -> Result<v1::RenewResponse, Status> {
        let owner = convert::owner(&wire.owner_id)?;
        let ttl = convert::ttl(wire.ttl_ms)?;
        let key = convert::key(&wire.idempotency_key)?;
        let domains = convert::domains(&wire.domains)?;
        self.engine.uses(&owner);
        let claim = claim(SystemCall::Renew, key, |out| {
            ttl.put(out);
            put_owner(out, &owner, &domains);
        });
        let is_longer = |state: &CopyState, namespaces: &[Namespace]| {
            let grows = |namespace: &Namespace| {
                let lease = state.replica.space().lease(namespace, &owner);
                lease.is_some_and(|lease| lease.ttl < ttl)
            };
            namespaces.iter().any(grows)
        };
        let (namespaces, needs_entry) = self
            .engine
            .glance(|state| {
                let namespaces = renewed_leases(&state.replica, &owner, &domains);
                let grows = is_longer(state, &namespaces);
                (namespaces, grows)
            })
            .await?;
        let result = if claim.is_some() || needs_entry {
            self.renew_logged(&owner, ttl, &domains, claim).await?
        } else {
            match self.renew_by_beat(&owner, &domains, namespaces).await? {
                Some(result) => result,
                None => self.renew_logged(&owner, ttl, &domains, None).await?,
            }
        };
        Ok(match result {
            Ok(asked) => v1::RenewResponse {
                status: v1::RenewStatus::Ok.into(),
                revoke_requested: asked,
                ..Default::default()
            },
            Err(missing) => v1::RenewResponse {
                status: v1::RenewStatus::Lost.into(),
                reason: convert::missing_number(missing),
                ..Default::default()
            },
        })
    }

    /// Raises the rows of leases until these are all leases that the renewal is about: another
    /// acquire of the owner may come between. `None`: a lease has no row, so it needs an entry.
    async fn renew_by_beat(
        &self,
        owner: &OwnerId,
        domains: &[Namespace],
        mut namespaces: Vec<Namespace>,
    ) -> Result<Option<Result<bool, Missing>>, Status> {
        loop {
            let row = |namespace: &Namespace| LeaseKey {
                owner: owner.clone(),
                namespace: namespace.clone(),
            };
            let rows: Vec<LeaseKey> = namespaces.iter().map(row).collect();
            let beaten = self.engine.beat(&rows, |state, there| {
                let present = renewed_leases(&state.replica, owner, domains);
                let result = renewal(state, owner, &present, !domains.is_empty());
                // A beat counts only for rows that were there.
                let mut missing = rows.iter().zip(there).filter(|(_, there)| !**there);
                let has_lease = |row: &LeaseKey| {
                    let lease = state.replica.space().lease(&row.namespace, &row.owner);
                    lease.is_some()
                };
                (present, result, missing.any(|(row, _)| has_lease(row)))
            });
            let (present, result, is_missing) = beaten.await?;
            if is_missing {
                return Ok(None);
            }
            if present.iter().all(|name| namespaces.contains(name)) {
                return Ok(Some(result));
            }
            namespaces = present;
        }
    }

    async fn renew_logged(
        &self,
        owner: &OwnerId,
        ttl: Ttl,
        domains: &[Namespace],
        claim: Option<KeyClaim>,
    ) -> Result<Result<bool, Missing>, Status> {
        let outcome = self.engine.call(|replica| {
            let namespaces = renewed_leases(replica, owner, domains);
            let row = |namespace: &Namespace| LeaseKey {
                owner: owner.clone(),
                namespace: namespace.clone(),
            };
            let is_leased =
                |namespace: &&Namespace| replica.space().lease(namespace, owner).is_some();
            let rows = Rows {
                raise: namespaces.iter().filter(is_leased).map(row).collect(),
                ..Rows::default()
            };
            let renew = |namespace: Namespace| RenewLease {
                namespace,
                owner: owner.clone(),
                ttl,
            };
            let call = Call::Renew {
                leases: namespaces.into_iter().map(renew).collect(),
                claim: claim.clone(),
            };
            Ok((call, rows))
        });
        match outcome.await? {
            CallOutcome::Renew(result) => Ok(result),
            CallOutcome::Key(before) => Err(bad_key(&before)),
            _ => Err(Status::internal("a renewal has another outcome")),
        }
    }

    pub(super) async fn release_owner(
        &self,
        wire: v1::ReleaseAllRequest,
    ) -> Result<v1::ReleaseResponse, Status> {
        let owner = convert::owner(&wire.owner_id)?;
        let key = convert::key(&wire.idempotency_key)?;
        let domains = convert::domains(&wire.domains)?;
        let claim = claim(SystemCall::ReleaseAll, key, |out| {
            out.byte(u8::from(wire.del_wait_key));
            put_owner(out, &owner, &domains);
        });
        self.engine.uses(&owner);
        self.engine.waits_no_more(&owner);
        self.end_owner(
            &owner,
            &domains,
            ReleaseCause::Owner,
            wire.del_wait_key,
            claim,
        )
        .await?;
        Ok(v1::ReleaseResponse {})
    }

    pub(super) async fn kill_owner(
        &self,
        wire: v1::ForceReleaseRequest,
    ) -> Result<v1::ForceReleaseResponse, Status> {
        let owner = convert::owner(&wire.victim_id)?;
        let key = convert::key(&wire.idempotency_key)?;
        let claim = claim(SystemCall::ForceRelease, key, |out| owner.put(out));
        self.end_owner(&owner, &[], ReleaseCause::Killed, true, claim)
            .await?;
        Ok(v1::ForceReleaseResponse {})
    }

    async fn end_owner(
        &self,
        owner: &OwnerId,
        domains: &[Namespace],
        cause: ReleaseCause,
        edge: bool,
        claim: Option<KeyClaim>,
    ) -> Result<(), Status> {
        let outcome = self.engine.call(|replica| {
            let call = Call::ReleaseAll {
                owner: owner.clone(),
                selection: replica.system().table().select(domains),
                cause,
                edge,
                claim: claim.clone(),
            };
            let mut rows = Rows::default();
            // A keyed call that was answered before ends nothing, so it must not remove rows.
            if domains.is_empty() && claim.is_none() {
                let namespaces = replica.space().owner_namespaces(owner).into_iter();
                let row = |namespace| LeaseKey {
                    owner: owner.clone(),
                    namespace,
                };
                rows.remove = namespaces.map(row).collect();
            }
            Ok((call, rows))
        });
        match outcome.await? {
            CallOutcome::Key(before) => Err(bad_key(&before)),
            _ => Ok(()),
        }
    }

    pub(super) async fn ask_owner(
        &self,
        wire: v1::RequestRevokeRequest,
    ) -> Result<v1::RequestRevokeResponse, Status> {
        let owner = convert::owner(&wire.owner_id)?;
        let call = Call::Ask { owner };
        self.engine
            .call(|_| Ok((call.clone(), Rows::default())))
            .await?;
        Ok(v1::RequestRevokeResponse {})
    }

    async fn system(&self, command: SystemCommand) -> Result<SystemOutcome, Status> {
        let outcome = self
            .engine
            .call(|_| Ok((Call::System(command.clone()), Rows::default())));
        match outcome.await? {
            CallOutcome::System(SystemOutcome::Repeated(before)) => match before {
                RepeatedKey::Answered(SystemAnswer::Number(fence)) => {
                    Ok(SystemOutcome::Number(fence))
                }
                RepeatedKey::Answered(_) => Ok(SystemOutcome::Done),
                before => Err(bad_key(&before)),
            },
            CallOutcome::System(outcome) => Ok(outcome),
            _ => Err(Status::internal("a command has another outcome")),
        }
    }

    pub(super) async fn set_edge(
        &self,
        wire: v1::SetWaitEdgeRequest,
    ) -> Result<v1::SetWaitEdgeResponse, Status> {
        let owner = convert::owner(&wire.owner_id)?;
        let blocker = convert::owner(&wire.conflict_owner)?;
        let ttl = convert::ttl(wire.ttl_ms)?;
        let key = convert::key(&wire.idempotency_key)?;
        let why = match (wire.conflict_path.as_str(), wire.reason) {
            ("", 0) => None,
            (path, reason) => Some((convert::path(path)?, convert::block_reason(reason)?)),
        };
        let edge = Edge { blocker, why };
        let claim = claim(SystemCall::SetWaitEdge, key, |out| {
            owner.put(out);
            edge.put(out);
            ttl.put(out);
        });
        let command = SystemCommand::SetEdge {
            owner,
            edge,
            ttl,
            claim,
        };
        self.system(command).await?;
        Ok(v1::SetWaitEdgeResponse {})
    }

    pub(super) async fn clear_edge(
        &self,
        wire: v1::ClearWaitEdgeRequest,
    ) -> Result<v1::ClearWaitEdgeResponse, Status> {
        let owner = convert::owner(&wire.owner_id)?;
        let key = convert::key(&wire.idempotency_key)?;
        let claim = claim(SystemCall::ClearWaitEdge, key, |out| owner.put(out));
        self.system(SystemCommand::ClearEdge { owner, claim })
            .await?;
        Ok(v1::ClearWaitEdgeResponse {})
    }

    pub(super) async fn next_number(
        &self,
        wire: v1::IncrFencingTokenRequest,
    ) -> Result<v1::IncrFencingTokenResponse, Status> {
        let key = convert::key(&wire.idempotency_key)?;
        let claim = claim(SystemCall::IncrFencingToken, key, |_| {});
        let outcome = self.engine.call(|replica| {
            // Above every fence that was minted (R75: IncrFencingToken always grows).
            let command = SystemCommand::Increment {
                above: replica.space().highest_minted(),
                claim: claim.clone(),
            };
            Ok((Call::System(command), Rows::default()))
        });
        let fence = match outcome.await? {
            CallOutcome::System(
                SystemOutcome::Number(fence)
                | SystemOutcome::Repeated(RepeatedKey::Answered(SystemAnswer::Number(fence))),
            ) => fence,
            CallOutcome::System(SystemOutcome::Repeated(before)) => return Err(bad_key(&before)),
            _ => return Err(Status::resource_exhausted("the numbers are used up")),
        };
        Ok(v1::IncrFencingTokenResponse {
            token: convert::fence_number(Some(fence)),
        })
    }
}
