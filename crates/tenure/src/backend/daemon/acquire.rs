//! Acquire on the daemon: request, wait for the GRANT event with polling as a fallback. The lease
//! counts from the first sending of the last acquire (leases.md, "What a client does").
//!
//! Several paths of one namespace are one request. They share one queue entry, and no client sees a
//! part of them taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tenure_base::Token;
use tenure_core::path::Path;
use tenure_wire::v1;
use tokio::task::JoinHandle;

use super::client::{Answer, CallFailure, DaemonClient, Op, new_key};
use super::owner::{HeldClaim, HeldPath, Owner, OwnerKind, UnseenOutcome};
use super::{DaemonHold, TTL, convert, failed, give_back_later};
use crate::address::Address;
use crate::backend;
use crate::callbacks;
use crate::error::{Blocker, BlockerKind, Busy, Error};
use crate::guard::Guard;
use crate::request::Request;
use crate::signals::Signals;
use crate::values::{Class, Fence, Mode, Wait, whole_millis};
use tenure_base::Lease;

/// Lifetime of a queue entry after the last request.
const PLACE_LASTS: Duration = Duration::from_secs(60);
/// Limits of the interval at which a waiter repeats its request. It is half of the ttl: a grant whose
/// event was lost is claimed before it lapses. Not longer than a quarter of [`PLACE_LASTS`].
const SHORTEST_POLL: Duration = Duration::from_secs(2);
const LONGEST_POLL: Duration = Duration::from_secs(15);
/// How long to retry an unreachable daemon for one request. A request without a time limit reports
/// that the daemon cannot be reached at this interval.
const CONTACT: Duration = Duration::from_secs(10);
/// The same for a request that does not wait for the lock.
const CONTACT_NO_WAIT: Duration = Duration::from_secs(4);
/// A request with a very short time limit gets so much time for a connection and one answer.
const CONTACT_AT_LEAST: Duration = Duration::from_secs(1);
/// How many answers may arrive after their lease has ended.
const TOO_LATE: u32 = 3;
/// Time limit for one try. No lease runs yet, so it may be long.
const EACH_TRY: Duration = Duration::from_secs(4);
/// How long to wait until a queue entry is cancelled, after a time limit has ended.
const CANCEL: Duration = Duration::from_millis(500);

/// Acquires the paths in one step if they are in one namespace: C6 (several locks at once).
///
/// Only the daemon knows the namespaces. If it refuses to take the paths together, the client
/// queries them and acquires namespace by namespace in the order of their names, so that two
/// clients with the same paths cannot deadlock.
pub(super) async fn acquire(
    client: DaemonClient,
    request: Request,
    paths: Vec<(Address, Path)>,
) -> Result<Vec<Guard>, Error> {
    let until = match request.wait {
        Wait::For(time) => Lease::now().checked_add(time),
        Wait::No | Wait::Forever => None,
    };
    let ttl = request.ttl.unwrap_or(TTL);
    let id = request.owner.clone().unwrap_or_else(|| owner_id(&request));
    let kind = match &request.owner {
        Some(_) => OwnerKind::Session,
        None => OwnerKind::Single,
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
        Some(_) => Some(backend::turn(Arc::clone(&owner.turn), &request).await?),
        None => None,
    };
    let attempt = async |paths: Vec<(Address, Path)>| {
        let held_paths: Vec<HeldPath> = paths
            .iter()
            .map(|(_, path)| (path.clone(), convert::mode(request.mode)))
            .collect();
        owner.want(&held_paths).await;
        let attempt = AcquireAttempt {
            client: client.clone(),
            owner: Arc::clone(&owner),
            paths,
            request: request.clone(),
            began: Lease::now(),
            until,
            unseen: UnseenOutcome::Nothing,
        };
        // Checked after `want`: that call waits for running releases, which may set the flag.
        if attempt.owner.is_spoiled() {
            let what = "a release of this session was not answered and may still come; go on with a new session";
            return Err(Error::refused(&attempt.request.place, Class::NotHeld, what));
        }
        attempt.run().await
    };
    // The daemon refuses paths of several namespaces as invalid input: R31 (one namespace per
    // acquire).
    let refused = match attempt(paths.clone()).await {
        Err(refused @ Error::Input(_)) if paths.len() > 1 => refused,
        taken => return taken,
    };
    let namespaces = by_namespace(&client, paths).await?;
    if namespaces.len() == 1 {
        return Err(refused);
    }
    let mut taken = Vec::new();
    for paths in namespaces.into_values() {
        match attempt(paths).await {
            Ok(guards) => taken.extend(guards),
            Err(error) => {
                backend::give_up(taken).await;
                return Err(error);
            }
        }
    }
    Ok(taken)
}

/// Groups the paths by namespace: E7 (Explain a lock request).
async fn by_namespace(
    client: &DaemonClient,
    paths: Vec<(Address, Path)>,
) -> Result<BTreeMap<String, Vec<(Address, Path)>>, Error> {
    let mut namespaces: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (place, path) in paths {
        let explained = client.explain(&path, Lease::now() + CONTACT).await;
        let namespace = explained
            .map_err(|trouble| failed(&place, trouble))?
            .namespace;
        namespaces.entry(namespace).or_default().push((place, path));
    }
    Ok(namespaces)
}

/// Returns a unique owner id that starts with the holder's name.
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

/// A running acquire. Dropping it removes the queue entry and releases a late grant.
struct AcquireAttempt {
    client: DaemonClient,
    owner: Arc<Owner>,
    /// The paths that are acquired in one step.
    paths: Vec<(Address, Path)>,
    /// The options, the same for all paths.
    request: Request,
    began: Duration,
    until: Option<Duration>,
    unseen: UnseenOutcome,
}

/// What to do after an answer or an event.
enum NextAction {
    Again,
    Done(Result<Vec<Guard>, Error>),
}

impl AcquireAttempt {
    async fn run(mut self) -> Result<Vec<Guard>, Error> {
        self.owner.begin_wait();
        let (mut acquires, mut too_late) = (0, 0);
        let mut last_busy: Option<Busy> = None;
        loop {
            acquires += 1;
            self.unseen = UnseenOutcome::MayBeGranted;
            let (sent, answer) = self.ask().await;
            let answer = match (answer, last_busy.take()) {
                (Ok(answer), _) => answer,
                // Waiting without a limit outlives an outage of the daemon.
                (Err(CallFailure::Unreachable(what)), busy)
                    if self.request.wait == Wait::Forever =>
                {
                    let what = format!("the daemon cannot be reached: {what}");
                    let next = "waits until it can; `tenure doctor` checks the connection";
                    self.tell(&Busy {
                        next: next.to_owned(),
                        ..Busy::new(&self.request.place, None, what)
                    });
                    last_busy = busy;
                    continue;
                }
                // The time limit ended while the request was queued.
                (Err(CallFailure::Unreachable(_)), Some(busy)) if self.is_too_late() => {
                    self.cancel().await;
                    return Err(Error::TimedOut(Box::new(busy)));
                }
                (Err(trouble), _) => {
                    // A refused request has no effect. But an earlier request of this attempt may
                    // have one.
                    if acquires == 1 && !matches!(trouble, CallFailure::Unreachable(_)) {
                        self.unseen = UnseenOutcome::Nothing;
                    }
                    return Err(failed(&self.request.place, trouble));
                }
            };
            let lease = Lease::new(sent, self.owner.ttl());
            if let Some(error) = self.no_permit(&answer) {
                self.cancel().await;
                return Err(error);
            }
            let busy = match answer.status() {
                v1::AcquireStatus::Ok if !lease.valid_for().is_zero() => {
                    let fence = convert::fence(answer.fencing_token);
                    return Ok(self.hold(&answer.namespace, fence, lease));
                }
                // The lease ended, or was lost, before the answer arrived. Ask again; the next
                // lease counts from the new request.
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
                        self.unseen = UnseenOutcome::Nothing;
                    }
                    return Err(self.refused(&answer));
                }
            };
            self.tell(&busy);
            match self.wait(&answer.namespace, acquires, lease, &busy).await {
                NextAction::Again => last_busy = Some(busy),
                NextAction::Done(result) => return result,
            }
        }
    }

    /// Reports on the callback thread, so that a slow callback delays no lease.
    fn tell(&self, busy: &Busy) {
        if let Some(tell) = &self.request.on_wait {
            let (tell, busy) = (Arc::clone(tell), busy.clone());
            callbacks::post(move || tell(&busy));
        }
    }

    fn is_too_late(&self) -> bool {
        self.until.is_some_and(|until| until <= Lease::now())
    }

    /// Sends the request. Returns when it was sent, and the answer.
    async fn ask(&self) -> (Duration, Result<v1::AcquireResponse, CallFailure>) {
        let Request { wait, mode, .. } = self.request;
        // The queue entry must not outlive this request by much: the time limit plus 5 s.
        let place_lasts = match wait {
            Wait::For(time) => PLACE_LASTS.min(time.saturating_add(Duration::from_secs(5))),
            Wait::No | Wait::Forever => PLACE_LASTS,
        };
        let requests = self.paths.iter().map(|(_, path)| v1::LockRequest {
            path: path.as_str().to_owned(),
            mode: convert::mode(mode).into(),
            state: v1::LockState::New.into(),
            permits: match mode {
                Mode::Permit(of) => of.get(),
                Mode::Exclusive | Mode::Shared | Mode::SharedTree => 0,
            },
        });
        let acquire = v1::AcquireRequest {
            owner_id: self.owner.id().to_owned(),
            ttl_ms: whole_millis(self.owner.ttl()),
            requests: requests.collect(),
            idempotency_key: new_key(),
            queue_ttl_ms: whole_millis(place_lasts),
            no_wait: wait == Wait::No,
            ask: self.request.ask,
            holder: Some(convert::holder_in(&self.request.holder)),
            refuse_deadlock: self.request.refuse_deadlock,
            ..Default::default()
        };
        let now = Lease::now();
        let give_up = match (wait, self.until) {
            (Wait::No, _) => now + CONTACT_NO_WAIT,
            (_, Some(until)) => until
                .min(now + 3 * CONTACT)
                .max(self.began + CONTACT_AT_LEAST),
            (_, None) => now + CONTACT,
        };
        let op = Op::Acquire(acquire.into());
        let asked = self.client.ask_and_date(op, give_up, EACH_TRY);
        let (sent, answer) = match wait {
            // It outlives an outage.
            Wait::Forever => asked.await,
            Wait::No | Wait::For(_) => {
                let asked = async {
                    let (sent, answer) = asked.await;
                    answer.map(|answer| (sent, answer))
                };
                match self.client.unless_hopeless(asked, CONTACT_NO_WAIT).await {
                    Ok((sent, answer)) => (sent, Ok(answer)),
                    Err(trouble) => (now, Err(trouble)),
                }
            }
        };
        let answer = answer.and_then(|answer| match answer {
            Answer::Acquire(answer) => Ok(*answer),
            other => Err(CallFailure::Unreachable(format!(
                "a strange answer: {other:?}"
            ))),
        });
        (sent, answer)
    }

    /// Waits for the grant, the time limit, or the next poll.
    async fn wait(
        &mut self,
        namespace: &str,
        acquires: u32,
        lease: Lease,
        busy: &Busy,
    ) -> NextAction {
        let poll = (self.owner.ttl() / 2).clamp(SHORTEST_POLL, LONGEST_POLL);
        // With jitter: waiters that began together must not poll together.
        let poll = tokio::time::sleep(tenure_base::jittered(poll));
        let wait_limit = async {
            match self.until {
                Some(until) => crate::boot_timer::until(until).await,
                None => std::future::pending().await,
            }
        };
        // `biased`: a grant that has arrived wins over a time limit that ends at the same moment.
        let news = tokio::select! {
            biased;
            news = self.owner.take_news(namespace) => news,
            () = wait_limit => {
                self.cancel().await;
                return NextAction::Done(Err(Error::TimedOut(Box::new(busy.clone()))));
            }
            () = poll => return NextAction::Again,
        };
        if news.is_killed {
            // The queue entry was ended with everything that the owner had. If a grant crossed
            // that, the drop of this attempt releases it.
            let what = "the place in line was taken away";
            let place = &self.request.place;
            return NextAction::Done(Err(Error::refused(place, Class::NotHeld, what)));
        }
        match news.granted.get(namespace) {
            // Use the event without another request only if it must belong to this request, and if
            // more than half of the lease is left. A session may get a GRANT for an earlier
            // request.
            Some(fence)
                if acquires == 1
                    && !news.ask_again
                    && self.request.owner.is_none()
                    && lease.valid_for() > self.owner.ttl() / 2 =>
            {
                NextAction::Done(Ok(self.hold(namespace, *fence, lease)))
            }
            _ => NextAction::Again,
        }
    }

    fn hold(&mut self, namespace: &str, fence: Option<Fence>, lease: Lease) -> Vec<Guard> {
        self.unseen = UnseenOutcome::Nothing;
        let mode = self.request.mode;
        let claim = |(place, path): &(Address, Path)| {
            Arc::new(HeldClaim {
                path: path.clone(),
                mode,
                fence: AtomicU64::new(fence.map_or(0, Fence::get)),
                namespace: namespace.to_owned(),
                acquired: lease.sent,
                signals: Signals::new(place),
            })
        };
        let claims: Vec<Arc<HeldClaim>> = self.paths.iter().map(claim).collect();
        self.owner.add(&self.client, namespace, &claims, lease);
        let guard = |((place, _), claim): (&(Address, Path), Arc<HeldClaim>)| {
            let signals = Arc::clone(&claim.signals);
            let held = DaemonHold {
                client: self.client.clone(),
                owner: Arc::clone(&self.owner),
                claim,
                is_over: false,
            };
            Guard::new(
                place.clone(),
                mode,
                signals,
                backend::BackendHold::Daemon(held),
            )
        };
        self.paths.iter().zip(claims).map(guard).collect()
    }

    /// Cancels the queue entry. The same release drops a grant that crosses it: R99 (Release
    /// cancels a pending entry).
    ///
    /// Waits up to `CANCEL`; the release continues in the background.
    async fn cancel(&mut self) {
        if let Some(giving) = self.want_no_more(UnseenOutcome::MayBeGranted) {
            let _ = tokio::time::timeout(CANCEL, giving).await;
        }
    }

    fn want_no_more(&self, unseen: UnseenOutcome) -> Option<JoinHandle<()>> {
        let held_paths = self.owner.want_no_more(unseen);
        let client = self.client.clone();
        (!held_paths.is_empty())
            .then(|| give_back_later(client, Arc::clone(&self.owner), held_paths))
    }

    /// Refuses a grant or queue entry that is no permit.
    ///
    /// Permits have no fence: R54 (permits have no token). A fence therefore means an exclusive
    /// lock: `permits` is ignored outside of semaphore namespaces. A program that asks for one of
    /// five permits must not run as the only one.
    fn no_permit(&self, answer: &v1::AcquireResponse) -> Option<Error> {
        let is_wanted = matches!(self.request.mode, Mode::Permit(_));
        let is_fenced = answer.fencing_token > 0;
        let what = "there are no permits in this namespace: it is no semaphore; \
                    `tenure policy set NAMESPACE semaphore` makes it one";
        (is_wanted && is_fenced).then(|| Error::unsupported(self.place_near(&answer.path), what))
    }

    /// Returns our address that a path in an answer refers to: the same path, an ancestor or a
    /// descendant.
    fn place_near(&self, path: &str) -> &Address {
        let near = |ours: &Path, path: &Path| {
            ours == path || ours.is_ancestor_of(path) || path.is_ancestor_of(ours)
        };
        let found = Path::parse(path).ok().and_then(|path| {
            let mut ours = self.paths.iter();
            ours.find(|(_, ours)| near(ours, &path))
        });
        found.map_or(&self.request.place, |(place, _)| place)
    }

    fn place_of(&self, path: &str) -> Address {
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
            v1::ReasonCode::Queued => BlockerKind::Waits,
            _ => BlockerKind::Holds,
        };
        let found = found.map(|found| Blocker {
            standing,
            ..convert::blocker(self.place_of(&found.path), found)
        });
        Busy {
            position: Some(answer.position).filter(|position| *position > 0),
            deadlock: answer.deadlock.clone(),
            ..Busy::new(self.place_near(&answer.path), found, what)
        }
    }

    fn refused(&self, answer: &v1::AcquireResponse) -> Error {
        let place = self.place_near(&answer.path);
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
                    "there are {} permits here, and every request must name that number",
                    answer.owner
                ),
            ),
            _ => Error::Busy(Box::new(self.busy(answer))),
        }
    }
}

impl Drop for AcquireAttempt {
    fn drop(&mut self) {
        self.want_no_more(self.unseen);
    }
}
