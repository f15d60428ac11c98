//! In-process lock backend on the daemon's state machine (`tenure_core::Space`).
//!
//! Exclusive and shared locks, locks on subtrees, semaphores; fair queue and fences. There is no
//! lease: holder and lock end with the same process.
//!
//! ```text
//! acquire ──▶ Space::apply ──granted──▶ MemoryHold
//!                  └──queued──▶ OwnerEntry ◀──event── a later apply
//! ```

mod convert;
mod inspect;
mod lock_table;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_base::Token;
use tenure_core::command::{self, Command};
use tenure_core::outcome::{AcquireOutcome, Outcome, Withdrawn};
use tenure_core::path::Path;
use tenure_core::value::{Fence as CoreFence, OwnerId};

use crate::address::Address;
use crate::error::Error;
use crate::guard::Guard;
use crate::request::Request;
use crate::runtime;
use crate::signals::{ReleaseRequest, Signals};
use crate::values::{Class, Fence, Wait};

use convert::{busy, core_mode, namespace, not_evaluated, refused};
pub(super) use inspect::{ask, break_hold, inspect, list, watch};
pub(crate) use inspect::{lose, signals_at};
use lock_table::{MEMORY, OwnerClaim, WaitResult};

/// A waiter repeats its request this often, so that its queue entry does not expire.
const PLACE_RENEWED: Duration = Duration::from_secs(86_400);

/// A hold in memory.
pub(crate) struct MemoryHold {
    owner: OwnerId,
    claim: Arc<OwnerClaim>,
    released: bool,
}

/// Acquires names in one step. Dropping the future removes the queue entry.
pub(super) async fn acquire(
    request: Request,
    paths: Vec<(Address, Path)>,
) -> Result<Vec<Guard>, Error> {
    let owner = owner_id(&request)?;
    // Before the turn: the time limit includes the wait for it.
    let until = match request.wait {
        Wait::For(time) => Instant::now().checked_add(time),
        Wait::No | Wait::Forever => None,
    };
    let _turn = match &request.owner {
        Some(_) => Some(super::turn(MEMORY.turn(&owner), &request).await?),
        None => None,
    };
    let claim = |(place, path): (Address, Path)| {
        let claim = OwnerClaim {
            path,
            mode: core_mode(request.mode),
            fence: AtomicU64::new(0),
            is_granted: AtomicBool::new(false),
            signals: Signals::new(&place),
        };
        (place, Arc::new(claim))
    };
    let wanted: Vec<(Address, Arc<OwnerClaim>)> = paths.into_iter().map(claim).collect();
    let asking = ReleaseRequest {
        by: request.holder.clone(),
        reason: request.purpose(),
    };
    let mut waiting = PendingAcquire {
        owner: owner.clone(),
        wanted,
        number: None,
    };
    loop {
        // Registered under the same lock as the acquire, so that a grant in between is not missed.
        let (outcome, told) = {
            let mut inner = MEMORY.lock();
            let outcome = inner.acquire(&owner, &waiting.claims(), &request, &asking);
            let told = match outcome {
                AcquireOutcome::Queued(_) => Some(inner.wait(&owner)),
                _ => None,
            };
            (outcome, told)
        };
        let (queued, told) = match (outcome, told) {
            (AcquireOutcome::Granted { fence }, _) => return Ok(waiting.granted(&request, fence)),
            (AcquireOutcome::Queued(queued), Some(told)) => (queued, told),
            (AcquireOutcome::Conflict(conflict), _) => {
                return Err(refused(&request.place, &conflict));
            }
            (AcquireOutcome::Refused(refusal), _) => {
                return Err(not_evaluated(&request.place, refusal));
            }
            (AcquireOutcome::Queued(_) | AcquireOutcome::Lost { .. }, _) => {
                return Err(Error::refused(
                    &request.place,
                    Class::NotHeld,
                    "the session lost a lock",
                ));
            }
        };
        waiting.number = Some(queued.waiter);
        let mut busy = busy(&request.place, &queued.conflict);
        busy.position = Some(queued.position);
        if let Some(tell) = &request.on_wait {
            tell(&busy);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A wake-up before the time limit leads to another round of the loop, which renews the
        // queue entry.
        let wait_limit = left.unwrap_or(PLACE_RENEWED).min(PLACE_RENEWED);
        let told = tokio::select! {
            biased;
            told = told => told.ok(),
            () = runtime::sleep(wait_limit) => None,
        };
        match told {
            Some(WaitResult::Granted(fence)) => return Ok(waiting.granted(&request, fence)),
            // A hold of this session was broken. The request itself still waits.
            Some(WaitResult::Killed) => {}
            // A grant that crosses the time limit counts: the withdrawal reports it.
            None if until.is_some_and(|until| Instant::now() >= until) => {
                return match waiting.withdraw() {
                    Withdrawn::Granted { fence } => Ok(waiting.granted(&request, fence)),
                    Withdrawn::Withdrawn | Withdrawn::Gone => Err(Error::TimedOut(Box::new(busy))),
                };
            }
            None => {}
        }
    }
}

/// A pending request. Dropping it removes the queue entry and releases a late grant.
struct PendingAcquire {
    owner: OwnerId,
    wanted: Vec<(Address, Arc<OwnerClaim>)>,
    number: Option<u64>,
}

impl PendingAcquire {
    fn claims(&self) -> Vec<Arc<OwnerClaim>> {
        let claims = self.wanted.iter().map(|(_, claim)| Arc::clone(claim));
        claims.collect()
    }

    fn granted(&mut self, request: &Request, fence: Option<CoreFence>) -> Vec<Guard> {
        self.number = None;
        let guard = |(place, claim): &(Address, Arc<OwnerClaim>)| {
            MEMORY.lock().granted(&self.owner, claim, fence);
            let held = MemoryHold {
                owner: self.owner.clone(),
                claim: Arc::clone(claim),
                released: false,
            };
            let signals = Arc::clone(&claim.signals);
            let held = super::BackendHold::Memory(held);
            Guard::new(place.clone(), request.mode, signals, held)
        };
        self.wanted.iter().map(guard).collect()
    }

    fn withdraw(&mut self) -> Withdrawn {
        let Some(waiter) = self.number.take() else {
            return Withdrawn::Gone;
        };
        let mut inner = MEMORY.lock();
        let withdraw = command::Withdraw {
            namespace: namespace(),
            owner: self.owner.clone(),
            waiter,
        };
        let withdrawn = match inner.apply(Command::Withdraw(withdraw), None) {
            Outcome::Withdraw(withdrawn) => withdrawn,
            other => unreachable!("a withdrawal is answered as one: {other:?}"),
        };
        match withdrawn {
            Withdrawn::Granted { .. } => {}
            Withdrawn::Withdrawn | Withdrawn::Gone => {
                for (_, claim) in &self.wanted {
                    inner.forget(&self.owner, claim);
                }
            }
        }
        withdrawn
    }
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        if let Withdrawn::Granted { .. } = self.withdraw() {
            let mut inner = MEMORY.lock();
            for (_, claim) in &self.wanted {
                inner.release(&self.owner, claim);
            }
        }
    }
}

impl MemoryHold {
    pub(super) fn fence(&self) -> Option<Fence> {
        Fence::new(self.claim.fence.load(Ordering::Relaxed))
    }

    pub(super) fn owner(&self) -> String {
        self.owner.as_str().to_owned()
    }

    pub(super) fn check(&self, place: &Address) -> Result<(), Error> {
        match MEMORY.lock().holds(&self.owner, &self.claim) {
            true => Ok(()),
            false => Err(Error::refused(
                place,
                Class::NotHeld,
                "this handle does not hold the lock",
            )),
        }
    }

    pub(super) fn release(mut self, place: &Address) -> Result<(), Error> {
        let was_held = self.give_back();
        match was_held {
            true => Ok(()),
            false => Err(Error::refused(
                place,
                Class::NotHeld,
                "this handle does not hold the lock",
            )),
        }
    }

    fn give_back(&mut self) -> bool {
        if std::mem::replace(&mut self.released, true) {
            return false;
        }
        MEMORY.lock().release(&self.owner, &self.claim)
    }
}

impl Drop for MemoryHold {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn owner_id(request: &Request) -> Result<OwnerId, Error> {
    let owner = request
        .owner
        .clone()
        .unwrap_or_else(|| Token::random().to_string());
    OwnerId::new(&owner).map_err(|invalid| Error::input(owner, invalid.to_string()))
}
