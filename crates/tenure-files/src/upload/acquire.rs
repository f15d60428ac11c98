//! Acquisition of an upload lock on disk (U10 (acquire an upload lock)): publish the record, or
//! judge the existing one, ask its holder to release, wait, and try again.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::fstat;

use super::file::{Fencing, Options};
use super::held::{FileHold, RequestListener};
use super::held_table::TableTicket;
use super::record::{self, LIMIT};
use super::staleness::{JudgedUpload, LiveLock, judge, locked};
use super::stop_request::{self, LivenessTest, StopRequest};
use super::{LockFileKey, LockRequest, Names, StalenessRules, UploadReleaseRequest, Wait};
use crate::deadline::{Deadline, after};
use crate::dir::{Dir, FileId};
use crate::error::{Class, Error, Result};
use crate::exit;
use crate::fence;
use crate::heartbeat::{ListenName, MonitorOptions, monitor_and_listen};
use crate::hold::FileHolding;
use crate::identity::{Here, Identity, Token};
use crate::publish::{self, Draft, FileAccess, Published};
use crate::record::timestamp;
use crate::remove::{Removal, no_pause, remove};
use crate::wait::{NameWaiter, WakeReason, jittered};

/// Delay after the lock vanished between two steps, or while another process judges it.
const VANISH_RETRY: Duration = Duration::from_millis(10);

/// One acquisition.
pub(super) struct Acquirer<'a> {
    pub(super) names: Names,
    pub(super) options: &'a Options,
    pub(super) judging: StalenessRules,
    pub(super) asking: UploadReleaseRequest,
    pub(super) wait_deadline: Deadline,
}

/// The state of our release request.
#[derive(Default)]
struct StopRequested {
    /// The request that we last made; `None` also if a request of another user exists.
    stop: Option<StopRequest>,
    /// The lock that it concerned, and when to renew it.
    about: Option<(FileId, Instant)>,
    /// The running test of a doubtful holder (U13a (test a doubtful holder)).
    test: Option<LivenessTest>,
}

impl Acquirer<'_> {
    /// Acquires the lock, waiting if necessary. `ticket` keeps other threads of this process out.
    pub(super) fn acquire(
        self,
        dir: Dir,
        ticket: TableTicket<LockFileKey>,
        request: LockRequest,
    ) -> Result<FileHold> {
        let token = Token::random();
        let bytes = self.record(&dir, token, &request)?;
        let mut asked = StopRequested::default();
        let published = match self.wait_and_publish(&dir, &bytes, request.wait, &mut asked) {
            Ok(published) => published,
            Err(error) => {
                asked.withdraw(&dir);
                return Err(error);
            }
        };
        self.hold(dir, published, bytes, token, ticket, request)
    }

    /// Publishes the record as soon as the name is free (U10.1–U10.5).
    fn wait_and_publish(
        &self,
        dir: &Dir,
        bytes: &[u8],
        wait: Wait,
        asked: &mut StopRequested,
    ) -> Result<Published> {
        let mut draft = Draft::new(dir, &self.names.lock, self.publishing());
        draft.write(bytes)?;
        let mut waiter =
            NameWaiter::new(dir, &[&self.names.lock], self.wait_deadline.cancel.clone());
        loop {
            if let Some(published) = draft.publish()? {
                return Ok(published);
            }
            match judge(dir, &self.names, &self.judging)? {
                JudgedUpload::Free => self.pause(&mut waiter),
                JudgedUpload::Refused(error) => return Err(error),
                JudgedUpload::Dead(mut found) => match remove(dir, &mut found, &no_pause)? {
                    Removal::Removed | Removal::Changed => {}
                    // K24 (lock before removal): another process has the flock. That is the holder,
                    // which is alive after all, or another process that judges the lock.
                    Removal::Busy if self.wait_deadline.is_over() => {
                        let held = locked(found, &self.names);
                        return Err(self.gave_up(dir, &held, wait));
                    }
                    Removal::Busy => {
                        waiter.follow_lock(found.file(), found.id());
                        waiter.wait(self.wait_deadline.until(Instant::now() + VANISH_RETRY * 10));
                    }
                },
                JudgedUpload::Held(held) => {
                    if wait == Wait::No || self.wait_deadline.is_over() {
                        return Err(self.gave_up(dir, &held, wait));
                    }
                    self.wait_deadline.report(|| self.gave_up(dir, &held, wait));
                    self.ask(dir, &held, asked)?;
                    if self.silence_proves_death(dir, &held, asked)? {
                        continue;
                    }
                    // A change before the watch began makes no event: check once more.
                    if !waiter.is_armed() {
                        waiter.arm();
                        continue;
                    }
                    self.wait(&mut waiter, &held, asked);
                }
            }
        }
    }

    /// Waits until something changes, the holder exits, or the request must be renewed.
    fn wait(&self, waiter: &mut NameWaiter<'_>, held: &LiveLock, asked: &StopRequested) {
        if let Some(found) = &held.found {
            match &held.by {
                Some(identity) if identity.boot.is_some() => {
                    waiter.follow(found, identity, &Here::now());
                }
                // The pid of a doubtful holder proves nothing, so there is no process to follow.
                Some(Identity { pid: Some(pid), .. }) if !held.doubtful => {
                    waiter.follow_process(found, *pid, None);
                }
                _ => {}
            }
        }
        let now = Instant::now();
        let renewal = asked.about.map_or(now, |(_, renewal)| renewal);
        let proof = asked
            .test
            .as_ref()
            .map(|test| after(now, self.options.times.confirm.saturating_sub(test.age())));
        let until = proof.map_or(renewal, |proof| proof.min(renewal));
        match waiter.wait(self.wait_deadline.until(until)) {
            WakeReason::Event
            | WakeReason::HolderGone
            | WakeReason::Time
            | WakeReason::Cancelled => {}
        }
    }

    /// A short delay; the file vanished and the next attempt may succeed.
    fn pause(&self, waiter: &mut NameWaiter<'_>) {
        if !self.wait_deadline.is_over() {
            waiter.wait(Instant::now() + VANISH_RETRY);
        }
    }

    /// Makes or renews the release request (U14 (make a release request)): immediately for a new
    /// holder, then at every poll.
    fn ask(&self, dir: &Dir, held: &LiveLock, asked: &mut StopRequested) -> Result<()> {
        let lock = held.found.as_ref().map(crate::record::OpenRecord::id);
        let is_fresh = asked
            .about
            .is_some_and(|(about, renewal)| Some(about) == lock && renewal > Instant::now());
        if is_fresh {
            return Ok(());
        }
        // A running test of the same state of the same lock file continues; a changed file starts a
        // new one.
        asked.test = held.found.as_ref().filter(|_| held.doubtful).map(|found| {
            let test = LivenessTest::begin(found);
            match asked.test.take() {
                Some(running) if running.is_same_case(&test) => running,
                _ => test,
            }
        });
        let addressee = held.blocker.token.as_deref();
        let test = asked.test.as_mut();
        asked.stop = match stop_request::make(dir, &self.names, addressee, &self.asking, test) {
            Ok(stop) => stop,
            // The name belongs to another file, such as an upload called `ID.stop`. The holder
            // cannot be asked, so its silence proves nothing.
            Err(error) if error.class() == Class::NotALock => {
                asked.test = None;
                None
            }
            Err(error) => return Err(error),
        };
        let renewal = after(Instant::now(), jittered(self.options.times.acquirer_poll));
        asked.about = lock.map(|lock| (lock, renewal));
        Ok(())
    }

    /// U13a: a live original would have released the lock within `confirm`. If the same file with
    /// the same bytes still exists and its flock is free, the holder is dead and the lock is
    /// removed.
    fn silence_proves_death(
        &self,
        dir: &Dir,
        held: &LiveLock,
        asked: &StopRequested,
    ) -> Result<bool> {
        let (Some(test), Some(found)) = (&asked.test, &held.found) else {
            return Ok(false);
        };
        let is_proven = test.is_same_case(&LivenessTest::begin(found))
            && test.age() >= self.options.times.confirm;
        if !is_proven {
            return Ok(false);
        }
        let reopened = crate::record::OpenRecord::open(dir, &self.names.lock, LIMIT)?;
        match reopened.filter(|now| now.id() == found.id() && now.bytes() == found.bytes()) {
            Some(mut found) => Ok(remove(dir, &mut found, &no_pause)? == Removal::Removed),
            None => Ok(true),
        }
    }

    /// The error after the deadline (U10.5). Its class says whether the holder could be checked.
    fn gave_up(&self, dir: &Dir, held: &LiveLock, wait: Wait) -> Error {
        let (class, what) = match (held.class, wait) {
            (Class::Foreign, _) => (
                Class::Foreign,
                "held by a process that cannot be checked from here",
            ),
            (_, Wait::No) => (Class::Held, "held"),
            (_, Wait::For(_) | Wait::Forever) => (Class::Timeout, "not released in time"),
        };
        Error::new(class, dir.join(&self.names.lock), what).blocked_by(held.blocker.clone())
    }

    /// Sets up the acquired lock (U10.6): fence, request listener, heartbeat, and the entry in the
    /// table of this process.
    fn hold(
        self,
        dir: Dir,
        published: Published,
        bytes: Vec<u8>,
        token: Token,
        ticket: TableTicket<LockFileKey>,
        request: LockRequest,
    ) -> Result<FileHold> {
        let acquired = became_ours(&published);
        let publishing = self.publishing();
        let lock = self.names.lock.clone();
        let hold = Arc::new(FileHolding::new(
            Arc::new(dir),
            &lock,
            published,
            bytes,
            token,
        ));
        exit::release_at_exit(&hold);
        let fence = match self.options.fence {
            Fencing::Taken => Some(take_fence(&hold, publishing, &self.wait_deadline)?),
            Fencing::None => None,
        };
        let request_listener = Arc::new(RequestListener::new(
            self.names,
            token.to_string(),
            acquired,
            request.on_request,
        ));
        // Before the listener starts: a request for the previous holder must not interrupt this
        // one.
        request_listener.drop_older_request(hold.dir());
        let listen = {
            let request_listener = Arc::clone(&request_listener);
            ListenName {
                name: request_listener.names.stop.clone(),
                poll: self.options.times.holder_poll,
                look: Arc::new(move |hold: &Arc<FileHolding>| request_listener.look(hold.dir())),
            }
        };
        let monitor_options = MonitorOptions {
            beat: Some(self.options.heartbeat),
            check: None,
        };
        let monitor_options = monitor_and_listen(&hold, monitor_options, Some(listen));
        {
            let request_listener = Arc::clone(&request_listener);
            // Last, when the hold is complete: from now on other threads of this process ask it
            // directly.
            ticket.hold(Arc::new(move |asked: &UploadReleaseRequest| {
                request_listener.hear(asked)
            }));
        }
        Ok(FileHold::new(
            hold,
            request_listener,
            monitor_options,
            fence,
            ticket,
        ))
    }

    fn publishing(&self) -> publish::Options {
        let usual = publish::Options::default();
        publish::Options {
            durability: self.options.durability,
            mode: self.options.mode.unwrap_or(usual.mode),
            access: match self.options.mode {
                Some(_) => FileAccess::Exact,
                None => usual.access,
            },
            ..usual
        }
    }

    /// Returns the record of this acquisition (U4 (pid on the first line), U5 (the `tenure` line)).
    fn record(&self, dir: &Dir, token: Token, request: &LockRequest) -> Result<Vec<u8>> {
        let holder = Identity::in_dir(dir, &Here::now(), token, request.follows);
        let bytes = record::encode(&holder, self.options.fence, request.purpose.as_deref());
        if bytes.len() > LIMIT {
            let what = "the purpose is too long for the record";
            return Err(Error::new(
                Class::BadInput,
                dir.join(&self.names.lock),
                what,
            ));
        }
        Ok(bytes)
    }
}

impl StopRequested {
    /// U16 (withdraw a release request): a waiter that gives up removes its request. A request with
    /// a running test stays, because the next attempt continues the test (U13a).
    fn withdraw(&self, dir: &Dir) {
        if let (Some(stop), None) = (&self.stop, &self.test) {
            stop.remove(dir);
        }
    }
}

/// Takes a fencing number, only after the lock is held (K39 (fencing number per acquisition)). If
/// that fails, the lock is released.
fn take_fence(
    hold: &FileHolding,
    publishing: publish::Options,
    wait_deadline: &Deadline,
) -> Result<NonZeroU64> {
    fence::next(hold.dir(), publishing, wait_deadline)
        .and_then(|fence| hold.write_fence(fence).map(|()| fence))
        .inspect_err(|_| drop(hold.release()))
}

/// Returns when the name appeared: the ctime, because the content may have been written long
/// before.
fn became_ours(published: &Published) -> SystemTime {
    fstat(&published.file).map_or(published.modified, |stat| {
        timestamp(stat.st_ctime, stat.st_ctime_nsec)
    })
}
