//! Reads, watches, breaks and policies.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::command::BreakLock;
use tenure_core::deadlock::{Detection, Search, Walk, WalkStep};
use tenure_core::event::LockChange;
use tenure_core::outcome::BreakOutcome;
use tenure_core::path::{Namespace, Path};
use tenure_core::query::{DumpCursor, FenceCheck, HeldLock};
use tenure_core::system::{Edge, SystemCall};
use tenure_core::value::{Fence, OwnerId};
use tenure_wire::v1;
use tonic::{Response, Status};

use super::acquire::left;
use super::owners::{bad_key, claim, refused};
use super::{Answered, Answers, Service, convert};
use crate::attempt::Rows;
use crate::driver::LogDriver;
use crate::engine::CopyState;
use crate::entry::{Call, LeaseKey};
use crate::replica::CallOutcome;
use tenure_core::codec::Encode as _;

/// How deep Explain follows the waits of blockers.
const EXPLAIN_DEPTH: usize = 16;
/// Entries of a page: the default and the most.
const PAGE: u32 = 64;
const LONGEST_PAGE: u32 = 512;

fn page(asked: u32) -> usize {
    let page = match asked {
        0 => PAGE,
        asked => asked.min(LONGEST_PAGE),
    };
    page as usize
}

impl<D: LogDriver> Service<D> {
    pub(super) async fn check_fence(
        &self,
        wire: v1::AssertFencingRequest,
    ) -> Result<v1::AssertFencingResponse, Status> {
        let owner = convert::owner(&wire.owner_id)?;
        convert::count(wire.paths.len())?;
        let paths = wire.paths.iter().map(|path| convert::path(path));
        let paths = paths.collect::<Result<Vec<Path>, Status>>()?;
        let number = u64::try_from(wire.fencing_token)
            .ok()
            .filter(|one| *one > 0);
        if number.is_none() && !paths.is_empty() {
            return Err(Status::invalid_argument("fencing_token must be above 0"));
        }
        // A token that is never issued cannot be current: the highest one stands for it.
        let highest = Fence::from_number(Fence::MINTED_END - 1);
        let fence = number.and_then(|number| Fence::from_number(number).or(highest));
        self.engine
            .read(|state| {
                for path in &paths {
                    let route = state.replica.system().table().route(path);
                    let Some(fence) = fence else {
                        continue;
                    };
                    let space = state.replica.space();
                    let found = space.assert_fencing(&route.namespace, &owner, path, fence);
                    let reason = match found {
                        FenceCheck::Valid => continue,
                        FenceCheck::StaleOwner => v1::ReasonCode::StaleOwner,
                        FenceCheck::StaleFence { .. } => v1::ReasonCode::StaleFencingToken,
                    };
                    return v1::AssertFencingResponse {
                        status: v1::AssertStatus::Fail.into(),
                        path: path.as_str().to_owned(),
                        reason: reason.into(),
                    };
                }
                v1::AssertFencingResponse::default()
            })
            .await
    }

    pub(super) async fn find_cycle(
        &self,
        wire: v1::DetectCycleRequest,
    ) -> Result<v1::DetectCycleResponse, Status> {
        let start = convert::owner(&wire.start_owner_id)?;
        let found = self
            .engine
            .read(|state| {
                let mut walk = Walk::new(start, wire.max_depth);
                loop {
                    match walk.next() {
                        WalkStep::Done(found) => return found,
                        WalkStep::Ask(owner) => walk.answer(wait_of(state, &owner)),
                    }
                }
            })
            .await?;
        let (kind, chain) = match found {
            Detection::None => (v1::CycleKind::None, Vec::new()),
            Detection::Found(chain) => (v1::CycleKind::Found, chain),
            Detection::Truncated(chain) => (v1::CycleKind::Truncated, chain),
        };
        Ok(v1::DetectCycleResponse {
            kind: kind.into(),
            chain: convert::names(&chain),
        })
    }

    pub(super) async fn does_block(
        &self,
        wire: v1::IsBlockingRequest,
    ) -> Result<v1::IsBlockingResponse, Status> {
        let path = convert::path(&wire.conflict_path)?;
        let owner = convert::owner(&wire.conflict_owner)?;
        let reason = convert::block_reason(wire.reason)?;
        let blocking = self.engine.read(|state| {
            let route = state.replica.system().table().route(&path);
            let space = state.replica.space();
            space.is_blocking(&route.namespace, &owner, &path, reason, state.now())
        });
        let blocking = blocking.await?;
        Ok(v1::IsBlockingResponse { blocking })
    }

    pub(super) async fn lives(
        &self,
        wire: v1::IsOwnerAliveRequest,
    ) -> Result<v1::IsOwnerAliveResponse, Status> {
        let owner = convert::owner(&wire.owner_id)?;
        let domains = convert::domains(&wire.domains)?;
        let alive = self.engine.read(|state| {
            let selection = state.replica.system().table().select(&domains);
            let space = state.replica.space();
            space.owner_alive(&owner, &selection, state.now())
        });
        let alive = alive.await?;
        Ok(v1::IsOwnerAliveResponse { alive })
    }

    pub(super) async fn inspect(
        &self,
        wire: v1::InspectPathRequest,
    ) -> Result<v1::InspectPathResponse, Status> {
        let path = convert::path(&wire.path)?;
        let found = self.engine.read(|state| {
            let namespace = state.replica.system().table().namespace_of(&path);
            let space = state.replica.space();
            space.inspect(&namespace, &path, state.now())
        });
        let found = found.await?;
        Ok(v1::InspectPathResponse {
            write_owner: found
                .writer
                .map_or_else(String::new, |owner| owner.as_str().to_owned()),
            read_owners: convert::names(&found.readers),
            has_fence: found.fence.is_some(),
            fence: convert::fence_number(found.fence),
            claim_owner: String::new(),
            semaphore_owners: convert::names(&found.permit_holders),
        })
    }

    pub(super) async fn locks_of(
        &self,
        wire: v1::ListOwnerLocksRequest,
    ) -> Result<v1::ListOwnerLocksResponse, Status> {
        let owner = convert::owner(&wire.owner_id)?;
        let domains = convert::domains(&wire.domains)?;
        let found = self.engine.read(|state| {
            let selection = state.replica.system().table().select(&domains);
            state.replica.space().owner_locks(&owner, &selection)
        });
        let found = found.await?;
        let locks = found.locks.iter().map(|lock| v1::OwnedLock {
            path: lock.path.as_str().to_owned(),
            mode: convert::mode_number(lock.mode, wire.read_tree),
        });
        Ok(v1::ListOwnerLocksResponse {
            alive: found.alive,
            locks: locks.collect(),
        })
    }

    pub(super) async fn dump(
        &self,
        wire: v1::DumpLocksRequest,
    ) -> Result<v1::DumpLocksResponse, Status> {
        let after = match &wire.cursor[..] {
            [] => None,
            bytes => {
                let bytes: [u8; 8] = bytes
                    .try_into()
                    .map_err(|_| Status::invalid_argument("the cursor is not one of DumpLocks"))?;
                Some(DumpCursor(u64::from_be_bytes(bytes)))
            }
        };
        let below = match wire.prefix.as_str() {
            "" => None,
            prefix => Some(convert::path(prefix)?),
        };
        let (page, read_tree) = (page(wire.owner_page), wire.read_tree);
        let next = |next: Option<DumpCursor>| {
            next.map_or_else(Vec::new, |next| next.0.to_be_bytes().to_vec())
        };
        if !wire.details {
            let found = self
                .engine
                .read(|state| state.replica.space().dump(after, page))
                .await?;
            let entries = found.locks.iter().map(|lock| entry(lock, read_tree));
            return Ok(v1::DumpLocksResponse {
                entries: entries.collect(),
                done: found.next.is_none(),
                next_cursor: next(found.next),
                ..Default::default()
            });
        }
        self.engine
            .read(|state| {
                let space = state.replica.space();
                let found = space.survey(below.as_ref(), after, page, state.now());
                let entries = found.holds.iter().map(|hold| {
                    let row = LeaseKey {
                        owner: hold.lock.owner.clone(),
                        namespace: hold.lock.namespace.clone(),
                    };
                    v1::LockEntry {
                        holder: hold.holder.as_ref().map(convert::holder_out),
                        held_ms: hold.held_ms.unwrap_or(0),
                        lease_left_ms: left(state, &row).unwrap_or(0),
                        permits: hold.permits.map_or(0, std::num::NonZeroU32::get),
                        ..entry(&hold.lock, read_tree)
                    }
                });
                let waiters = found.waiters.iter().flatten().map(|waiter| v1::WaitEntry {
                    owner: waiter.owner.as_str().to_owned(),
                    path: waiter.path.as_str().to_owned(),
                    mode: convert::mode_number(waiter.mode, read_tree),
                    holder: waiter.holder.as_ref().map(convert::holder_out),
                    waited_ms: waiter.waited_ms,
                    number: waiter.waiter,
                });
                v1::DumpLocksResponse {
                    detailed: true,
                    entries: entries.collect(),
                    waiters: waiters.collect(),
                    done: found.next.is_none(),
                    next_cursor: next(found.next),
                }
            })
            .await
    }

    pub(super) async fn is_ready(
        &self,
        _: v1::HealthRequest,
    ) -> Result<v1::HealthResponse, Status> {
        Ok(match self.engine.read(|_| ()).await {
            Ok(()) => v1::HealthResponse {
                ok: true,
                detail: "ready".to_owned(),
            },
            Err(status) => v1::HealthResponse {
                ok: false,
                detail: status.message().to_owned(),
            },
        })
    }

    pub(super) async fn explain_path(
        &self,
        wire: v1::ExplainRequest,
    ) -> Result<v1::ExplainResponse, Status> {
        let path = convert::path(&wire.path)?;
        let mode = convert::mode(wire.mode)?;
        let owner = convert::owner(&wire.owner_id)?;
        self.engine
            .read(|state| {
                let route = state.replica.system().table().route(&path);
                let space = state.replica.space();
                let found = space.explain(&route, &owner, &path, mode, state.now());
                let blockers = found.blockers.iter().map(|one| one.owner.clone());
                let ahead = found.ahead.iter().map(|one| one.owner.clone());
                let first: BTreeSet<OwnerId> = blockers.chain(ahead).collect();
                let (waits, cycle) = waits_from(state, &owner, &first);
                let explained = found.blockers.iter().map(|blocker| {
                    let row = LeaseKey {
                        owner: blocker.owner.clone(),
                        namespace: route.namespace.clone(),
                    };
                    let waits_for = waits.get(&blocker.owner).cloned().unwrap_or_default();
                    v1::ExplainedBlocker {
                        waits_for: convert::names(&waits_for),
                        blocker: Some(convert::blocker_out(blocker, left(state, &row))),
                    }
                });
                let conflict = found.conflict.as_ref();
                v1::ExplainResponse {
                    free: conflict.is_none(),
                    reason: conflict.map_or(0, |found| convert::reason_number(found.reason)),
                    blockers: explained.collect(),
                    waiters_ahead: found.ahead.iter().map(convert::waiter_out).collect(),
                    cycle: convert::names(&cycle),
                    namespace: found.namespace.as_str().to_owned(),
                    algorithm: convert::algorithm_number(found.algorithm),
                    rule: "R45".to_owned(),
                }
            })
            .await
    }

    pub(super) async fn break_hold(
        &self,
        wire: v1::BreakRequest,
    ) -> Result<v1::BreakResponse, Status> {
        let path = convert::path(&wire.path)?;
        let owner = convert::owner(&wire.owner_id)?;
        let fence = u64::try_from(wire.fence).ok().and_then(Fence::from_number);
        let outcome = self.engine.call(|replica| {
            let call = Call::Break(BreakLock {
                route: replica.system().table().route(&path),
                path: path.clone(),
                owner: owner.clone(),
                fence,
            });
            Ok((call, Rows::default()))
        });
        match outcome.await? {
            CallOutcome::Break(BreakOutcome::Broken) => Ok(v1::BreakResponse {}),
            CallOutcome::Break(BreakOutcome::NotThatHold(present)) => {
                let present = present.map_or_else(
                    || "the path is not held".to_owned(),
                    |holder| match holder.fence {
                        Some(fence) => {
                            format!("{} holds the path with fence {fence}", holder.owner)
                        }
                        None => format!("{} holds the path", holder.owner),
                    },
                );
                Err(Status::failed_precondition(format!(
                    "the named hold does not exist: {present}"
                )))
            }
            CallOutcome::Break(BreakOutcome::Refused(refusal)) => Err(refused(refusal)),
            _ => Err(Status::internal("a break has another outcome")),
        }
    }

    pub(super) async fn set_row(
        &self,
        wire: v1::SetNamespacePolicyRequest,
    ) -> Result<v1::SetNamespacePolicyResponse, Status> {
        let namespace = convert::namespace(&wire.namespace)?;
        let algorithm = convert::algorithm(wire.algorithm)?;
        let key = convert::key(&wire.idempotency_key)?;
        let claim = claim(SystemCall::SetNamespacePolicy, key, |out| {
            namespace.put(out);
            algorithm.put(out);
        });
        let call = Call::Policy {
            namespace,
            to: Some(algorithm),
            claim,
        };
        self.change_row(call).await?;
        Ok(v1::SetNamespacePolicyResponse {})
    }

    pub(super) async fn delete_row(
        &self,
        wire: v1::DeleteNamespacePolicyRequest,
    ) -> Result<v1::DeleteNamespacePolicyResponse, Status> {
        let namespace = convert::namespace(&wire.namespace)?;
        let key = convert::key(&wire.idempotency_key)?;
        let claim = claim(SystemCall::DeleteNamespacePolicy, key, |out| {
            namespace.put(out);
        });
        let call = Call::Policy {
            namespace,
            to: None,
            claim,
        };
        self.change_row(call).await?;
        Ok(v1::DeleteNamespacePolicyResponse {})
    }

    async fn change_row(&self, call: Call) -> Result<(), Status> {
        let outcome = self
            .engine
            .call(|_| Ok((call.clone(), Rows::default())))
            .await?;
        let Call::Policy { namespace, .. } = &call else {
            return Ok(());
        };
        match outcome {
            CallOutcome::Policy(Ok(())) => Ok(()),
            CallOutcome::Policy(Err((path, owner))) => Err(Status::failed_precondition(format!(
                "the policy of {namespace} cannot change while a lock is held in it: {owner} holds {path}"
            ))),
            CallOutcome::Key(before) => Err(bad_key(&before)),
            _ => Err(Status::internal("a policy change has another outcome")),
        }
    }

    pub(super) async fn get_row(
        &self,
        wire: v1::GetNamespacePolicyRequest,
    ) -> Result<v1::GetNamespacePolicyResponse, Status> {
        let namespace = convert::namespace(&wire.namespace)?;
        self.engine
            .read(|state| {
                let table = state.replica.system().table();
                v1::GetNamespacePolicyResponse {
                    algorithm: convert::algorithm_number(table.algorithm(&namespace)),
                    explicit: table.row(&namespace).is_some(),
                }
            })
            .await
    }

    pub(super) async fn list_rows(
        &self,
        wire: v1::ListNamespacePoliciesRequest,
    ) -> Result<v1::ListNamespacePoliciesResponse, Status> {
        let after = match wire.after.as_str() {
            "" => None,
            name => Some(convert::namespace(name)?),
        };
        let page = page(wire.page);
        let row = |(namespace, algorithm): (&Namespace, _)| v1::NamespacePolicy {
            namespace: namespace.as_str().to_owned(),
            algorithm: convert::algorithm_number(algorithm),
        };
        let mut rows: Vec<v1::NamespacePolicy> = self
            .engine
            .read(|state| {
                let table = state.replica.system().table();
                match &after {
                    Some(after) => table.rows_after(after).take(page + 1).map(row).collect(),
                    None => table.rows().take(page + 1).map(row).collect(),
                }
            })
            .await?;
        let done = rows.len() <= page;
        rows.truncate(page);
        Ok(v1::ListNamespacePoliciesResponse { rows, done })
    }

    pub(super) async fn watch_below(
        &self,
        wire: v1::WatchRequest,
    ) -> Answered<Answers<v1::LockChange>> {
        let prefix = convert::namespace(&wire.prefix)?;
        let below = prefix.clone();
        let opened = self.engine.watch(|state| {
            let space = state.replica.space();
            match wire.snapshot {
                true => space.watch_snapshot(&prefix, state.now()),
                false => Vec::new(),
            }
        });
        let (present, mut changes) = opened.await?;
        let (sender, answers) = tokio::sync::mpsc::channel(1024);
        tokio::spawn(async move {
            let mut id = 0;
            for change in &present {
                id += 1;
                let sent = sender.send(Ok(convert::change_out(change, id, true))).await;
                if sent.is_err() {
                    return;
                }
            }
            if wire.snapshot {
                id += 1;
                let end = v1::LockChange {
                    id,
                    kind: v1::ChangeKind::SnapshotEnd.into(),
                    ..Default::default()
                };
                let _ = sender.send(Ok(end)).await;
            }
            while let Some(change) = changes.recv().await {
                if !is_below(&below, &change) {
                    continue;
                }
                id += 1;
                let sent = sender
                    .send(Ok(convert::change_out(&change, id, false)))
                    .await;
                if sent.is_err() {
                    return;
                }
            }
            // The client opens the watch again, with a new snapshot.
            let gap = Status::unavailable("the watch has missed changes: open it again");
            let _ = sender.send(Err(gap)).await;
        });
        let answers = tokio_stream::wrappers::ReceiverStream::new(answers);
        Ok(Response::new(Box::pin(answers)))
    }
}

fn entry(lock: &HeldLock, read_tree: bool) -> v1::LockEntry {
    v1::LockEntry {
        owner: lock.owner.as_str().to_owned(),
        path: lock.path.as_str().to_owned(),
        mode: convert::mode_number(lock.mode, read_tree),
        has_fence: lock.fence.is_some(),
        fence: convert::fence_number(lock.fence),
        ..Default::default()
    }
}

fn is_below(prefix: &Namespace, change: &LockChange) -> bool {
    match &change.path {
        Some(path) => prefix.contains(path),
        None => prefix == &change.namespace || prefix.encloses(&change.namespace),
    }
}

type WaitEdgeOf = Option<(OwnerId, Option<tenure_core::deadlock::WaitPosition>)>;

/// The wait of an owner: the edge that its client has set, if it still holds, or one that the queues
/// know (R107: wait edges).
fn wait_of(state: &CopyState, owner: &OwnerId) -> WaitEdgeOf {
    let (now, replica) = (state.now(), &state.replica);
    if let Some(Edge { blocker, why }) = replica.system().edge(owner, now) {
        let is_blocked = match why {
            Some((path, reason)) => {
                let route = replica.system().table().route(path);
                replica
                    .space()
                    .is_blocking(&route.namespace, blocker, path, *reason, now)
            }
            None => {
                let all = tenure_core::command::Selection::All;
                replica.space().owner_alive(blocker, &all, now)
            }
        };
        if is_blocked {
            return Some((blocker.clone(), None));
        }
    }
    let waits = replica.space().waits_for(owner, now);
    let each = waits.into_iter().filter_map(|waits| {
        let place = Some(waits.place);
        waits.owners.into_iter().min().map(|to| (to, place))
    });
    each.min()
}

/// The waits of these owners and of those that they wait for, and the cycle through `start`, if its
/// request would close one.
fn waits_from(
    state: &CopyState,
    start: &OwnerId,
    first: &BTreeSet<OwnerId>,
) -> (BTreeMap<OwnerId, Vec<OwnerId>>, Vec<OwnerId>) {
    let now = state.now();
    let mut waits: BTreeMap<OwnerId, Vec<OwnerId>> = BTreeMap::new();
    let mut next: BTreeSet<OwnerId> = first.clone();
    for _ in 0..EXPLAIN_DEPTH {
        let mut following = BTreeSet::new();
        for owner in next {
            if owner == *start || waits.contains_key(&owner) {
                continue;
            }
            let found = state.replica.space().waits_for(&owner, now);
            let owners: Vec<OwnerId> = found.into_iter().flat_map(|one| one.owners).collect();
            following.extend(owners.iter().cloned());
            waits.insert(owner, owners);
        }
        next = following;
    }
    let mut search = Search::new(start.clone());
    loop {
        let round = search.round();
        if round.is_empty() {
            break;
        }
        for owner in round {
            match owner == *start {
                true => search.answer(&owner, None, first.iter().cloned()),
                false => {
                    let owners = waits.get(&owner).cloned().unwrap_or_default();
                    search.answer(&owner, None, owners);
                }
            }
        }
    }
    let cycle = search.cycle().map(<[OwnerId]>::to_vec).unwrap_or_default();
    (waits, cycle)
}
