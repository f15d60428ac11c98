//! Client of the daemon: renewed leases, a fair queue, fences, and events over one session stream,
//! E10 (Session stream).
//!
//! ```text
//!   acquire ── DaemonClient::ask ── Connection ═══ session ═══ a node; fails over to the next
//!      └─▶ DaemonHold ── Owner: one renewal for all its holds, at 1/3 of the ttl; lost at 80 %
//!   inspect, list, ask, break, watch: single calls
//! ```

mod acquire;
mod candidates;
mod client;
mod connection;
mod connection_messages;
mod convert;
mod credentials;
#[cfg_attr(not(feature = "postgres"), path = "daemon/no_engine.rs")]
pub(crate) mod engine;
mod inspect;
mod owner;
mod policies;
pub(crate) mod rpc_table;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_wire::v1;
use tokio::task::JoinHandle;

use crate::address::Address;
use crate::error::{Error, LostCause, LostLock, Unavailable};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::request::Request;
use crate::runtime;
use crate::values::{Class, Fence, whole_millis};
use tenure_base::Lease;

pub(crate) use client::DaemonClient;
use client::{Answer, CallFailure, Op, new_key};
pub(crate) use inspect::list;
pub(super) use inspect::{ask, break_hold, inspect, watch};
use owner::{HeldClaim, HeldPath, Owner};
use tenure_core::path::Path;

/// Default ttl: C1 (options of `run`).
const TTL: Duration = Duration::from_secs(30);
/// How long an explicit release is retried.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// A hold on the daemon.
pub(crate) struct DaemonHold {
    client: DaemonClient,
    owner: Arc<Owner>,
    claim: Arc<HeldClaim>,
    is_over: bool,
}

/// Acquires paths of one daemon together. Dropping the future withdraws the request; a late grant
/// is released.
pub(super) async fn acquire(
    client: DaemonClient,
    request: Request,
    paths: Vec<(Address, Path)>,
) -> Result<Vec<Guard>, Error> {
    let place = request.place.clone();
    let taken = runtime::run(async move { acquire::acquire(client, request, paths).await }).await;
    taken.unwrap_or_else(|| Err(runtime_gone(&place)))
}

impl DaemonHold {
    pub(super) fn fence(&self) -> Option<Fence> {
        self.claim.fence()
    }

    pub(super) fn owner(&self) -> String {
        self.owner.id().to_owned()
    }

    /// Queries the daemon: R73 (AssertFencing checks owner and token). Retries while the lease is
    /// valid, and never guesses.
    pub(super) async fn check(&self, place: &Address) -> Result<(), Error> {
        let (client, owner, claim) = (
            self.client.clone(),
            Arc::clone(&self.owner),
            Arc::clone(&self.claim),
        );
        let at = place.clone();
        let checked = runtime::run(async move {
            match is_held(&client, &owner, &claim).await {
                Ok(true) => Ok(()),
                Ok(false) => {
                    let what = "the daemon says that it is not ours any more";
                    Err(LostLock::new(&at, LostCause::Killed, what).into())
                }
                Err(trouble) => Err(failed(&at, trouble)),
            }
        });
        checked.await.unwrap_or_else(|| Err(runtime_gone(place)))
    }

    pub(super) async fn release(mut self, place: &Address) -> Result<(), Error> {
        self.is_over = true;
        if !self.owner.forget(&self.claim) {
            return Ok(());
        }
        let (client, owner, claim) = (
            self.client.clone(),
            Arc::clone(&self.owner),
            Arc::clone(&self.claim),
        );
        let at = place.clone();
        // Spawned, not awaited in place: a caller that drops the future must not stop the release.
        let released = runtime::handle().spawn(async move {
            let until = Lease::now() + RELEASE_TIMEOUT;
            give_back(&client, &owner, &[claim.held_path()], until)
                .await
                .map_err(|trouble| failed(&at, trouble))
        });
        released.await.unwrap_or_else(|_| Err(runtime_gone(place)))
    }

    /// Detaches the hold: it is not renewed any more and ends with its ttl.
    pub(super) fn leave(mut self) -> String {
        self.is_over = true;
        self.owner.let_go(&self.claim);
        self.owner.id().to_owned()
    }
}

impl Drop for DaemonHold {
    fn drop(&mut self) {
        if !self.is_over && self.owner.forget(&self.claim) {
            give_back_later(
                self.client.clone(),
                Arc::clone(&self.owner),
                vec![self.claim.held_path()],
            );
        }
    }
}

/// Queries whether the daemon has the claim.
async fn is_held(
    client: &DaemonClient,
    owner: &Owner,
    claim: &HeldClaim,
) -> Result<bool, CallFailure> {
    let until = claim
        .signals
        .lease()
        .map_or_else(Lease::now, |lease| lease.safe_until());
    let each_try = owner.each_try();
    let Some(fence) = claim.fence() else {
        // Locks without a fence (shared locks, permits) are looked up in the list of the owner's
        // locks.
        let locks = client.owner_locks(owner.id(), until, each_try).await?;
        return Ok(locks.iter().any(|lock| claim.is(lock)));
    };
    let assert = v1::AssertFencingRequest {
        owner_id: owner.id().to_owned(),
        fencing_token: i64::try_from(fence.get()).unwrap_or(i64::MAX),
        paths: vec![claim.path.as_str().to_owned()],
    };
    let asserted = client
        .ask(Op::AssertFencing(assert), until, each_try)
        .await?;
    if matches!(asserted, Answer::AssertFencing(answer) if answer.status() == v1::AssertStatus::Ok)
    {
        return Ok(true);
    }
    // Another acquire of this owner may have raised the fence, R69 (OK stores the token): one whose
    // answer is on its way, or one that was dropped. Then the owner still holds the path.
    let inspect = v1::InspectPathRequest {
        path: claim.path.as_str().to_owned(),
    };
    let found = client.call(inspect, until, each_try).await?;
    let newer = convert::fence(found.fence).filter(|newer| *newer > fence);
    let is_held = found.write_owner == owner.id() && newer.is_some();
    if let Some(newer) = newer.filter(|_| is_held) {
        claim.fence.fetch_max(newer.get(), Ordering::Relaxed);
    }
    Ok(is_held)
}

/// Releases in the background. Retries for one ttl: after that the lease has ended the hold.
fn give_back_later(
    client: DaemonClient,
    owner: Arc<Owner>,
    held_paths: Vec<HeldPath>,
) -> JoinHandle<()> {
    runtime::handle().spawn(async move {
        let until = Lease::now() + owner.ttl().max(Duration::from_secs(1));
        let _ = give_back(&client, &owner, &held_paths, until).await;
    })
}

/// Releases paths. All retries use one idempotency key.
///
/// After a release without an answer, the owner is not used again: the release may arrive late and
/// drop a later acquire (leases.md).
async fn give_back(
    client: &DaemonClient,
    owner: &Owner,
    held_paths: &[HeldPath],
    until: Duration,
) -> Result<(), CallFailure> {
    let requests = held_paths.iter().map(|(path, mode)| v1::ReleaseRequest {
        path: path.as_str().to_owned(),
        mode: (*mode).into(),
    });
    let release = v1::ReleaseLocksRequest {
        owner_id: owner.id().to_owned(),
        requests: requests.collect(),
        del_wait_key: false,
        idempotency_key: new_key(),
    };
    let released = client
        .ask(Op::Release(release), until, owner.each_try())
        .await;
    owner.released(held_paths, &released);
    released.map(drop)
}

/// Renews a detached hold: C13 (holds for scripts). Only its owner id is known.
pub(super) async fn renew_hold(
    client: &DaemonClient,
    hold: &Hold,
    _path: &Path,
) -> Result<(), Error> {
    let renew = v1::RenewRequest {
        owner_id: hold.secret.clone(),
        ttl_ms: whole_millis(hold.ttl.unwrap_or(TTL)),
        ..Default::default()
    };
    match client.ask_from_anywhere(Op::Renew(renew)).await {
        Ok(Answer::Renew(answer)) if answer.status() == v1::RenewStatus::Ok => Ok(()),
        Ok(_) => Err(LostLock::new(&hold.place, LostCause::Expired, "the lease has ended").into()),
        Err(trouble) => Err(failed(&hold.place, trouble)),
    }
}

/// Releases a detached hold (C13). The renewal first checks that it is still held.
pub(super) async fn release_hold(
    client: &DaemonClient,
    hold: &Hold,
    path: &Path,
) -> Result<(), Error> {
    renew_hold(client, hold, path).await?;
    let release = v1::ReleaseLocksRequest {
        owner_id: hold.secret.clone(),
        requests: vec![v1::ReleaseRequest {
            path: path.as_str().to_owned(),
            mode: convert::mode(hold.mode).into(),
        }],
        del_wait_key: false,
        idempotency_key: new_key(),
    };
    let released = client.ask_from_anywhere(Op::Release(release)).await;
    released
        .map(drop)
        .map_err(|trouble| failed(&hold.place, trouble))
}

/// Converts a failed call into an error of this crate.
fn failed(place: &Address, trouble: CallFailure) -> Error {
    use tonic::Code;
    match trouble {
        CallFailure::Unreachable(what) => Error::Unavailable(Box::new(Unavailable {
            place: place.clone(),
            next: connection_messages::next_step(&what).map(str::to_owned),
            what: match what.contains(connection_messages::NO_MAJORITY) {
                true => what,
                false => format!("the daemon cannot be reached: {what}"),
            },
            retry_after: Duration::from_secs(1),
        })),
        CallFailure::Refused(Code::InvalidArgument | Code::OutOfRange, what) => {
            Error::input(place.to_string(), what)
        }
        CallFailure::Refused(Code::Unauthenticated | Code::PermissionDenied, what) => {
            Error::Denied {
                place: Box::new(place.clone()),
                what,
            }
        }
        CallFailure::Refused(Code::Unimplemented, what) => Error::unsupported(place, what),
        CallFailure::Refused(Code::FailedPrecondition, what) => {
            Error::refused(place, Class::NotHeld, what)
        }
        CallFailure::Refused(_, what) | CallFailure::RefusedKey(what) => {
            Error::refused(place, Class::Io, what)
        }
    }
}

/// Translates a message of the transport library into what happened and what to do next.
pub(crate) fn connection_trouble(raw: &str) -> (String, Option<&'static str>) {
    let what = connection_messages::plain(raw);
    let next = connection_messages::next_step(&what);
    (what, next)
}

fn runtime_gone(place: &Address) -> Error {
    let what = "the thread that speaks to the daemon has ended";
    Error::refused(place, Class::Io, what)
}
