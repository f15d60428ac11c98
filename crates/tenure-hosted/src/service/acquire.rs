//! Acquire and Release.

use std::collections::BTreeMap;

use tenure_base::Lease;
use tenure_core::codec::{Encode as _, Writer};
use tenure_core::command::{Acquire, Command, Hold, Release, RequestKind, WaitMode, Whole};
use tenure_core::namespace_table::Unroutable;
use tenure_core::outcome::{AcquireOutcome, Conflict};
use tenure_core::path::Namespace;
use tenure_core::policy::Reason;
use tenure_core::system::{KeyClaim, SystemCall, SystemCommand};
use tenure_core::value::{Fence, QueueTtl};
use tenure_wire::v1;
use tonic::Status;
use xxhash_rust::xxh3::xxh3_128;

use super::owners::refused;
use super::{Service, convert};
use crate::attempt::Rows;
use crate::driver::LogDriver;
use crate::engine::CopyState;
use crate::entry::{Call, LeaseKey};
use crate::replica::CallOutcome;

impl<D: LogDriver> Service<D> {
    pub(super) async fn acquire_one(
        &self,
        wire: v1::AcquireRequest,
    ) -> Result<v1::AcquireResponse, Status> {
        let sent = Lease::now();
        if let Some(answer) = self.still_queued(&wire).await? {
            return Ok(answer);
        }
        let request = wire.clone();
        // In the order of R17 (order of acquire checks).
        let owner = convert::owner(&wire.owner_id)?;
        let ttl = convert::ttl(wire.ttl_ms)?;
        let queue_ttl = QueueTtl::from_millis(wire.queue_ttl_ms).map_err(convert::invalid)?;
        let key = convert::key(&wire.idempotency_key)?;
        convert::count(wire.requests.len() + wire.release_requests.len())?;
        let (requests, releases) = convert::wanted(&wire.requests, &wire.release_requests)?;
        let fence = Fence::supplied(wire.fencing_token).map_err(convert::invalid)?;
        let holder = wire.holder.map(convert::holder).transpose()?;
        let wait = match (wire.no_wait, wire.ask) {
            (true, _) => WaitMode::No,
            (false, true) => WaitMode::QueueAndAsk,
            (false, false) => WaitMode::Queue,
        };
        if requests.is_empty() && releases.is_empty() {
            // R61 (empty acquire).
            return Ok(v1::AcquireResponse::default());
        }
        self.engine.uses(&owner);
        let namespace = std::sync::Mutex::new(None);
        let outcome = self.engine.call(|replica| {
            let of = |kind: RequestKind| requests.iter().filter(move |one| one.state == kind);
            let taken = of(RequestKind::New).map(|one| &one.path);
            let others = of(RequestKind::Held).map(|one| &one.path);
            let others = others.chain(releases.iter().map(|hold| &hold.path));
            let route = replica.system().table().route_acquire(taken, others);
            let route = route.map_err(|unroutable| unroutable_text(&unroutable))?;
            let Some(route) = route else {
                return Err(Status::invalid_argument("an acquire needs a path"));
            };
            let key_of_row = LeaseKey {
                owner: owner.clone(),
                namespace: route.namespace.clone(),
            };
            if let Ok(mut namespace) = namespace.lock() {
                *namespace = Some(route.namespace.clone());
            }
            let acquire = Acquire {
                route,
                owner: owner.clone(),
                ttl,
                queue_ttl,
                requests: requests.clone(),
                releases: releases.clone(),
                fence,
                key: key.clone(),
                wait,
                holder: holder.clone().map(Box::new),
            };
            let call = Call::Acquire {
                acquire,
                refuse_deadlock: wire.refuse_deadlock,
            };
            let rows = Rows {
                raise: vec![key_of_row],
                ..Rows::default()
            };
            Ok((call, rows))
        });
        let outcome = outcome.await?;
        let namespace = namespace.into_inner().ok().flatten();
        let CallOutcome::Acquire { outcome, deadlock } = outcome else {
            return Err(Status::internal("an acquire has another outcome"));
        };
        if !matches!(outcome, AcquireOutcome::Queued(_)) {
            self.engine.waits_no_more(&owner);
        }
        match outcome {
            AcquireOutcome::Granted { fence } => Ok(v1::AcquireResponse {
                status: v1::AcquireStatus::Ok.into(),
                fencing_token: convert::fence_number(fence),
                namespace: namespace.map_or_else(String::new, |name| name.as_str().to_owned()),
                ..Default::default()
            }),
            AcquireOutcome::Queued(queued) => {
                let left = self.left(&queued.conflict, namespace.as_ref()).await;
                let answer = v1::AcquireResponse {
                    status: v1::AcquireStatus::Queued.into(),
                    fencing_token: convert::fence_number(queued.fence),
                    position: queued.position,
                    namespace: namespace
                        .as_ref()
                        .map_or_else(String::new, |name| name.as_str().to_owned()),
                    ..in_the_way(&queued.conflict, left)
                };
                if let Some(namespace) = namespace {
                    let paths = requests.iter().map(|one| (one.path.clone(), one.mode));
                    let asked = (request, answer.clone());
                    self.engine
                        .waits(&owner, namespace, paths.collect(), ttl, sent, asked);
                }
                Ok(answer)
            }
            AcquireOutcome::Conflict(conflict) => {
                let left = self.left(&conflict, namespace.as_ref()).await;
                Ok(v1::AcquireResponse {
                    status: v1::AcquireStatus::Conflict.into(),
                    deadlock: convert::names(&deadlock),
                    ..in_the_way(&conflict, left)
                })
            }
            AcquireOutcome::Lost { path, missing } => Ok(v1::AcquireResponse {
                status: v1::AcquireStatus::Lost.into(),
                path: path.map_or_else(String::new, |path| path.as_str().to_owned()),
                reason: convert::missing_number(missing),
                ..Default::default()
            }),
            AcquireOutcome::Refused(refusal) => Err(refused(refusal)),
        }
    }

    /// Answers a repeat of a request that still waits, without an entry: a beat keeps its row alive,
    /// and the log shows that it has its place. A client repeats its request every few seconds, and
    /// entries of all waiters would keep the holder from releasing.
    async fn still_queued(
        &self,
        wire: &v1::AcquireRequest,
    ) -> Result<Option<v1::AcquireResponse>, Status> {
        let Some((answer, row)) = self.engine.queued(wire) else {
            return Ok(None);
        };
        let rows = [row];
        let waits = self.engine.beat(&rows, |state, there| {
            let waits = state.replica.space().waits_for(&rows[0].owner, state.now());
            let mut places = waits.iter().map(|waits| &waits.place.namespace);
            there == [true] && places.any(|namespace| *namespace == rows[0].namespace)
        });
        Ok(waits.await?.then_some(answer))
    }

    /// The time that the lease of a blocker has left at least, if it is known.
    async fn left(&self, conflict: &Conflict, namespace: Option<&Namespace>) -> Option<u64> {
        let key = LeaseKey {
            owner: conflict.blocker.as_ref()?.owner.clone(),
            namespace: namespace?.clone(),
        };
        self.engine.left(&key).await
    }

    pub(super) async fn release_holds(
        &self,
        wire: v1::ReleaseLocksRequest,
    ) -> Result<v1::ReleaseResponse, Status> {
        let owner = convert::owner(&wire.owner_id)?;
        let key = convert::key(&wire.idempotency_key)?;
        convert::count(wire.requests.len())?;
        let (_, holds) = convert::wanted(&[], &wire.requests)?;
        self.engine.uses(&owner);
        self.engine.waits_no_more(&owner);
        let mut content = Writer::new();
        owner.put(&mut content);
        content.list(&holds);
        let fingerprint = xxh3_128(&content.into_bytes());
        let whole = key.as_ref().map(|_| Whole {
            fingerprint,
            asked: None,
        });
        let edge = wire.del_wait_key.then(|| SystemCommand::ClearEdge {
            owner: owner.clone(),
            claim: key.clone().map(|key| KeyClaim {
                call: SystemCall::Release,
                key,
                fingerprint,
            }),
        });
        if holds.is_empty() && edge.is_none() {
            return Ok(v1::ReleaseResponse {});
        }
        let outcome = self.engine.call(|replica| {
            let table = replica.system().table();
            let mut by_namespace: BTreeMap<Namespace, Vec<Hold>> = BTreeMap::new();
            for hold in &holds {
                let namespace = table.namespace_of(&hold.path);
                by_namespace
                    .entry(namespace)
                    .or_default()
                    .push(hold.clone());
            }
            let mut rows = Rows::default();
            let mut parts = Vec::new();
            for (namespace, holds) in by_namespace {
                let Some(first) = holds.first() else {
                    continue;
                };
                let route = table.route(&first.path);
                let row = LeaseKey {
                    owner: owner.clone(),
                    namespace,
                };
                if replica.ends_with(&row, &holds) {
                    rows.remove.push(row);
                }
                parts.push(Command::Release(Release {
                    route,
                    owner: owner.clone(),
                    holds,
                    key: key.clone(),
                    whole,
                }));
            }
            let call = Call::Release {
                parts,
                edge: edge.clone(),
            };
            Ok((call, rows))
        });
        match outcome.await? {
            CallOutcome::Release(Ok(())) => Ok(v1::ReleaseResponse {}),
            CallOutcome::Release(Err(refusal)) => Err(refused(refusal)),
            _ => Err(Status::internal("a release has another outcome")),
        }
    }
}

/// Fills path, owner and reason of a conflict (R48: reported path and owner) and the blocker's
/// details (E4: blocker and queue position).
fn in_the_way(conflict: &Conflict, lease_left_ms: Option<u64>) -> v1::AcquireResponse {
    let owner = match (&conflict.blocker, conflict.reason) {
        (Some(blocker), _) => blocker.owner.as_str().to_owned(),
        // Without a blocker, `owner` is the established capacity in decimal.
        (
            None,
            Reason::InvalidPermits {
                capacity: Some(capacity),
            },
        ) => capacity.to_string(),
        (None, _) => String::new(),
    };
    let current = match conflict.reason {
        Reason::StaleFence { current } => Some(current),
        _ => None,
    };
    let blocker = conflict.blocker.as_ref();
    v1::AcquireResponse {
        path: conflict.path.as_str().to_owned(),
        owner,
        reason: convert::reason_number(conflict.reason),
        current_fencing_token: convert::fence_number(current),
        blocker: blocker.map(|blocker| convert::blocker_out(blocker, lease_left_ms)),
        ..Default::default()
    }
}

fn unroutable_text(unroutable: &Unroutable) -> Status {
    Status::invalid_argument(match unroutable {
        Unroutable::TooShort(path) => {
            format!("{path} has fewer segments than routing_prefix_segments: lock a path below it")
        }
        Unroutable::Apart { first, other } => format!(
            "all paths of one acquire must be in one namespace: {} is in {}, {} is in {}",
            first.0, first.1, other.0, other.1
        ),
    })
}

/// The time that the lease of a row has left at least.
pub(super) fn left(state: &CopyState, key: &LeaseKey) -> Option<u64> {
    let now = Lease::now().as_millis();
    let now = u64::try_from(now).unwrap_or(u64::MAX);
    state.observer.left(&state.replica, key, now)
}
