//! How a lock of the daemon's is taken: ask, wait for the event with the poll as backstop, count the lease from the
//! right sending (leases.md, "What a client does").

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tenure_core::path::Path;
use tenure_files::identity::Token;
use tenure_wire::v1;

use super::client::{Answer, Client, Op, Trouble, new_key};
use super::owner::{Claim, Kind, Owner, Unseen, WaitNews};
use super::{Held, TTL, convert, failed, give_back_later};
use crate::error::{Blocker, Busy, Error, Standing};
use crate::guard::Guard;
use crate::lease::Lease;
use crate::place::Where;
use crate::reach;
use crate::request::Request;
use crate::signals::Signals;
use crate::values::{Class, Fence, Mode, Wait, whole_millis};

/// A place in line lasts this long after it was last asked for; a waiter asks again at a quarter of it.
const PLACE_LASTS: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_secs(15);
/// How long a daemon that cannot be reached is tried.
const FIRST_CONTACT: Duration = Duration::from_secs(10);
const LATER_CONTACT: Duration = Duration::from_secs(30);
/// How many answers may come too late for their lease.
const TOO_LATE: u32 = 3;
/// How long one try may take: no lease runs yet.
const EACH_TRY: Duration = Duration::from_secs(4);
/// How long to wait until a place in line is given up.
const CANCEL: Duration = Duration::from_secs(2);

pub(super) async fn acquire(client: Client, path: Path, request: Request) -> Result<Guard, Error> {
    let until = match request.wait {
        Wait::For(time) => Lease::now().checked_add(time),
        Wait::No | Wait::Forever => None,
    };
    let ttl = request.ttl.unwrap_or(TTL);
    let id = request.owner.clone().unwrap_or_else(|| owner_id(&request));
    let kind = match &request.owner {
        Some(_) => Kind::Session,
        None => Kind::Single,
    };
    let owner = client.owner(&id, ttl, kind);
    if owner.ttl() != ttl {
        let what = format!(
            "has locks with a ttl of {:?} already: keep one ttl for all",
            owner.ttl()
        );
        return Err(Error::input(format!("the session {id}"), what));
    }
    let _turn = match &request.owner {
        Some(_) => Some(reach::turn(Arc::clone(&owner.turn), &request).await?),
        None => None,
    };
    owner.want(&path, request.mode).await;
    let attempt = Attempt {
        client,
        owner,
        path,
        request,
        until,
        unseen: Unseen::Nothing,
    };
    if attempt.owner.is_spoiled() {
        let what = "a release of this session was not answered and may still come; go on with a new session";
        return Err(Error::refused(&attempt.request.place, Class::NotHeld, what));
    }
    attempt.run().await
}

/// Readable for people, and nobody else's.
fn owner_id(request: &Request) -> String {
    let name: String = request
        .holder
        .name
        .chars()
        .filter(|c| *c != '\0')
        .take(64)
        .collect();
    format!("{name}-{}", Token::random())
}

/// A request under way. Dropped, it leaves no place in line and no lock.
struct Attempt {
    client: Client,
    owner: Arc<Owner>,
    path: Path,
    request: Request,
    until: Option<Duration>,
    unseen: Unseen,
}

/// What to do after an answer or an event.
enum Next {
    Again,
    Done(Result<Guard, Error>),
}

impl Attempt {
    async fn run(mut self) -> Result<Guard, Error> {
        let mut news = self.owner.wait();
        let (mut acquires, mut too_late) = (0, 0);
        loop {
            acquires += 1;
            // The lease counts from the first sending under this key.
            let sent = Lease::now();
            self.unseen = Unseen::MayBeGranted;
            let answer = match self.ask(acquires).await {
                Ok(answer) => answer,
                Err(trouble) => {
                    // What was refused has left nothing behind; an earlier one of ours may have.
                    if let (1, Trouble::Refused(..)) = (acquires, &trouble) {
                        self.unseen = Unseen::Nothing;
                    }
                    return Err(failed(&self.request.place, trouble));
                }
            };
            let lease = Lease::new(sent, self.owner.ttl());
            let busy = match answer.status() {
                v1::AcquireStatus::Ok if !lease.valid_for().is_zero() => {
                    let fence = convert::fence(answer.fencing_token);
                    return Ok(self.hold(answer.namespace, fence, lease));
                }
                // Granted, and used up or lost before the answer came: once more, and counted from there.
                v1::AcquireStatus::Ok | v1::AcquireStatus::Lost if too_late < TOO_LATE => {
                    too_late += 1;
                    continue;
                }
                v1::AcquireStatus::Ok | v1::AcquireStatus::Lost => {
                    let ttl = lease.ttl;
                    let what =
                        format!("answers take longer than a lease of {ttl:?}; take a longer ttl");
                    return Err(Error::refused(&self.request.place, Class::Timeout, what));
                }
                v1::AcquireStatus::Queued => self.busy(&answer),
                v1::AcquireStatus::Conflict => {
                    if acquires == 1 {
                        self.unseen = Unseen::Nothing;
                    }
                    return Err(self.refused(&answer));
                }
            };
            if let Some(tell) = &self.request.on_wait {
                tell(&busy);
            }
            match self.wait(&mut news, acquires, lease, busy).await {
                Next::Again => {}
                Next::Done(result) => return result,
            }
        }
    }

    async fn ask(&self, acquires: u32) -> Result<v1::AcquireResponse, Trouble> {
        let Request { wait, mode, .. } = self.request;
        let place_lasts = match wait {
            Wait::For(time) => PLACE_LASTS.min(time.saturating_add(Duration::from_secs(5))),
            Wait::No | Wait::Forever => PLACE_LASTS,
        };
        let acquire = v1::AcquireRequest {
            owner_id: self.owner.id().to_owned(),
            ttl_ms: whole_millis(self.owner.ttl()),
            requests: vec![v1::LockRequest {
                path: self.path.as_str().to_owned(),
                mode: convert::mode(mode).into(),
                state: v1::LockState::New.into(),
                permits: match mode {
                    Mode::Permit(of) => of.get(),
                    Mode::Exclusive | Mode::Shared | Mode::SharedTree => 0,
                },
            }],
            idempotency_key: new_key(),
            queue_ttl_ms: whole_millis(place_lasts),
            no_wait: wait == Wait::No,
            ask: self.request.ask,
            holder: Some(convert::holder_in(&self.request.holder)),
            refuse_deadlock: self.request.refuse_deadlock,
            ..Default::default()
        };
        let patience = match acquires {
            1 => FIRST_CONTACT,
            _ => LATER_CONTACT,
        };
        let give_up = Lease::now() + patience;
        let give_up = self.until.map_or(give_up, |until| {
            until.min(give_up).max(Lease::now() + CANCEL)
        });
        match self
            .client
            .ask(Op::Acquire(acquire), give_up, EACH_TRY)
            .await?
        {
            Answer::Acquire(answer) => Ok(answer),
            other => Err(Trouble::Unreachable(format!("a strange answer: {other:?}"))),
        }
    }

    /// Until the grant, the end of patience, or the time to ask again.
    async fn wait(
        &mut self,
        news: &mut tokio::sync::mpsc::UnboundedReceiver<WaitNews>,
        acquires: u32,
        lease: Lease,
        busy: Busy,
    ) -> Next {
        let poll = tokio::time::sleep(POLL);
        let patience = async {
            match self.until {
                Some(until) => crate::boot_timer::until(until).await,
                None => std::future::pending().await,
            }
        };
        let heard = tokio::select! {
            biased;
            heard = news.recv() => heard,
            () = patience => {
                self.cancel().await;
                return Next::Done(Err(Error::TimedOut(Box::new(busy))));
            }
            () = poll => return Next::Again,
        };
        match heard {
            // Good for a start if it can only be about this very request, and enough of the lease is left.
            Some(WaitNews::Granted { namespace, fence })
                if acquires == 1
                    && self.request.owner.is_none()
                    && lease.valid_for() > self.owner.ttl() / 2 =>
            {
                Next::Done(Ok(self.hold(namespace, fence, lease)))
            }
            Some(WaitNews::Granted { .. } | WaitNews::LinkBroke) | None => Next::Again,
            Some(WaitNews::Killed) => {
                self.unseen = Unseen::Nothing;
                let what = "the place in line was taken away";
                Next::Done(Err(Error::refused(
                    &self.request.place,
                    Class::NotHeld,
                    what,
                )))
            }
        }
    }

    fn hold(&mut self, namespace: String, fence: Option<Fence>, lease: Lease) -> Guard {
        self.unseen = Unseen::Nothing;
        let signals = Signals::new(&self.request.place);
        let claim = Arc::new(self.claim(namespace, fence, Arc::clone(&signals)));
        self.owner.add(&self.client, &claim, lease);
        let held = Held {
            client: self.client.clone(),
            owner: Arc::clone(&self.owner),
            claim,
            is_over: false,
        };
        let place = self.request.place.clone();
        Guard::new(place, self.request.mode, signals, reach::Held::Daemon(held))
    }

    fn claim(&self, namespace: String, fence: Option<Fence>, signals: Arc<Signals>) -> Claim {
        Claim {
            path: self.path.clone(),
            mode: self.request.mode,
            fence: AtomicU64::new(fence.map_or(0, Fence::get)),
            namespace,
            signals,
        }
    }

    /// Gives up the place in line; a grant that crosses this is given back with it (R99). What is not answered soon
    /// goes on in the background.
    async fn cancel(&mut self) {
        if self.owner.want_no_more(Unseen::MayBeGranted) {
            let giving = self.give_back_later();
            let _ = tokio::time::timeout(CANCEL, giving).await;
        }
    }

    fn give_back_later(&self) -> tokio::task::JoinHandle<()> {
        let signals = Signals::new(&self.request.place);
        let claim = Arc::new(self.claim(String::new(), None, signals));
        give_back_later(self.client.clone(), Arc::clone(&self.owner), claim)
    }

    fn place_of(&self, path: &str) -> Where {
        convert::place_like(&self.request.place, path)
    }

    fn busy(&self, answer: &v1::AcquireResponse) -> Busy {
        let what = match answer.reason() {
            v1::ReasonCode::SemaphoreFull => "all permits are taken",
            v1::ReasonCode::Queued => "others are waiting for it",
            _ => "held",
        };
        let found = answer.blocker.as_ref();
        let standing = match answer.reason() {
            v1::ReasonCode::Queued => Standing::Waits,
            _ => Standing::Holds,
        };
        let found = found.map(|found| Blocker {
            standing,
            ..convert::blocker(self.place_of(&found.path), found)
        });
        Busy {
            position: Some(answer.position).filter(|position| *position > 0),
            deadlock: answer.deadlock.clone(),
            ..Busy::new(&self.request.place, found, what)
        }
    }

    fn refused(&self, answer: &v1::AcquireResponse) -> Error {
        let place = &self.request.place;
        match answer.reason() {
            v1::ReasonCode::ReadLocksDisabled => {
                Error::unsupported(place, "there are no shared locks in this namespace")
            }
            v1::ReasonCode::InvalidPermits if answer.owner.is_empty() => {
                let what = "this namespace gives permits only: say of how many";
                Error::refused(place, Class::BadInput, what)
            }
            v1::ReasonCode::InvalidPermits => Error::refused(
                place,
                Class::BadInput,
                format!(
                    "there are {} permits here, and everybody must name the same number",
                    answer.owner
                ),
            ),
            _ => Error::Busy(Box::new(self.busy(answer))),
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.owner.want_no_more(self.unseen) {
            self.give_back_later();
        }
    }
}
