//! Waiting for a lock file: inotify, pidfd and `flock` wake the waiter, polling is the fallback
//! (K42 (watch and poll), K43 (poll jitter and deadlines)).
//!
//! Three events end a wait early: an inotify event for a watched name, the exit of the recorded
//! process (its pidfd), and the release of its `flock` (a thread that blocks in `flock`, one per
//! file). All of them are only hints: the waiter checks the lock again. It also polls, because an
//! event may be missed.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::WatchFlags;
use rustix::fs::{FlockOperation, flock, inotify};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub use tenure_base::jittered;
pub(crate) use tenure_base::random_fraction;

use crate::dir::{Dir, FileId};
use crate::identity::{Here, Identity};
use crate::liveness::is_same_flock;
use crate::process::{PerProcess, Presence, presence};
use crate::record::OpenRecord;

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// A watched name changed.
    Event,
    /// The followed holder has exited, or its `flock` is free.
    HolderGone,
    /// The given time was reached.
    Time,
    /// [`Cancel::cancel`] was called.
    Cancelled,
}

/// Cancels waits from another thread. Once cancelled, it stays cancelled.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<OwnedFd>);

impl Cancel {
    /// Creates an uncancelled handle.
    ///
    /// # Errors
    ///
    /// Fails only if the process has no file descriptors left.
    pub fn new() -> std::io::Result<Cancel> {
        Ok(Cancel(Arc::new(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?)))
    }

    /// Creates a handle that is cancelled as soon as `fd` is readable, for example a `signalfd`.
    /// [`cancel`](Cancel::cancel) has no effect on it.
    pub fn when_readable(fd: Arc<OwnedFd>) -> Cancel {
        Cancel(fd)
    }

    /// Cancels all waits that use this handle, current and future.
    pub fn cancel(&self) {
        signal(&self.0);
    }

    /// Returns whether [`cancel`](Cancel::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled_within(Duration::ZERO)
    }

    /// Sleeps, at most until [`cancel`](Cancel::cancel) is called.
    pub(crate) fn wait(&self, time: Duration) {
        let until = crate::deadline::after(Instant::now(), time);
        while Instant::now() < until
            && !self.is_cancelled_within(until.saturating_duration_since(Instant::now()))
        {}
    }

    fn is_cancelled_within(&self, time: Duration) -> bool {
        let mut ready = [PollFd::new(&*self.0, PollFlags::IN)];
        poll(&mut ready, Some(&timespec(time))).is_ok_and(|count| count > 0)
    }
}

/// Waits for changes of names in a directory. Watches nothing before [`arm`](NameWaiter::arm).
#[derive(Debug)]
pub(crate) struct NameWaiter<'d> {
    dir: &'d Dir,
    names: Vec<OsString>,
    inotify: Option<(OwnedFd, i32)>,
    is_armed: bool,
    events: WatchFlags,
    death: Option<HolderDeath>,
    cancel: Option<Cancel>,
}

/// A descriptor that becomes readable when the followed holder ends.
#[derive(Debug)]
struct HolderDeath {
    whose: FollowedHolder,
    ready: Arc<OwnedFd>,
}

/// Identity of the followed holder. The file id alone is not enough: after the previous record was
/// closed, the next holder's record may have the same inode number (K22 (keep the judged file
/// open)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FollowedHolder {
    file: FileId,
    pid: Option<u32>,
    start: Option<u64>,
}

impl<'d> NameWaiter<'d> {
    /// Creates a waiter for `names` in `dir`.
    pub(crate) fn new(dir: &'d Dir, names: &[&OsStr], cancel: Option<Cancel>) -> NameWaiter<'d> {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        let events = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::MODIFY;
        NameWaiter {
            dir,
            names,
            inotify: None,
            is_armed: false,
            events,
            death: None,
            cancel,
        }
    }

    /// Limits wake-ups to the removal of a name. Saves wake-ups where many processes wait.
    #[must_use]
    pub(crate) fn for_names_to_go(mut self) -> NameWaiter<'d> {
        self.events = WatchFlags::DELETE | WatchFlags::MOVED_FROM;
        self
    }

    /// Returns whether [`arm`](NameWaiter::arm) was called.
    pub(crate) fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// Starts the inotify watch. The caller must check the names once more before it waits: a
    /// change before this call makes no event.
    ///
    /// Without inotify (not a local file system, or a kernel limit is reached) only polling
    /// remains.
    pub(crate) fn arm(&mut self) {
        self.is_armed = true;
        if self.inotify.is_some() || !self.dir.is_local() {
            return;
        }
        // No inotify instance left: polling remains.
        let Some(fd) = take_inotify() else { return };
        let path = format!("/proc/self/fd/{}", self.dir.as_fd().as_raw_fd());
        if let Ok(descriptor) = inotify::add_watch(&fd, path, self.events) {
            self.inotify = Some((fd, descriptor));
        }
    }

    /// Follows the holder of a record, so that its death ends the wait: by pidfd if its pid belongs
    /// to our PID namespace, otherwise by a blocking `flock` if the holder keeps one.
    pub(crate) fn follow(&mut self, record: &OpenRecord, identity: &Identity, here: &Here) {
        // The pid and the flock mean something only on this machine and in this boot.
        if !self.dir.is_local() || identity.boot.is_none() || identity.boot != here.boot {
            return;
        }
        let whose = FollowedHolder {
            file: record.id(),
            pid: identity.pid,
            start: identity.start,
        };
        if self.follows(whose) {
            return;
        }
        let by_process = (identity.pidns.is_some() && identity.pidns == here.pidns)
            .then(|| {
                identity
                    .pid
                    .and_then(|pid| process_end(pid, here.comparable_start(identity)))
            })
            .flatten();
        let ready = match by_process {
            Some(ready) => Some(ready),
            None if is_same_flock(identity, self.dir) => lock_end(record.file(), record.id()),
            None => None,
        };
        self.death = ready.map(|ready| HolderDeath { whose, ready });
    }

    /// Follows a process by its pid in our PID namespace, for records of originals.
    pub(crate) fn follow_process(&mut self, record: &OpenRecord, pid: u32, start: Option<u64>) {
        let whose = FollowedHolder {
            file: record.id(),
            pid: Some(pid),
            start,
        };
        if !self.follows(whose) {
            self.death = process_end(pid, start).map(|ready| HolderDeath { whose, ready });
        }
    }

    /// Follows the process that has the `flock` of a file or directory.
    pub(crate) fn follow_lock(&mut self, file: &File, id: FileId) {
        let whose = FollowedHolder {
            file: id,
            pid: None,
            start: None,
        };
        if self.dir.is_local() && !self.follows(whose) {
            self.death = lock_end(file, id).map(|ready| HolderDeath { whose, ready });
        }
    }

    /// Whether this holder is already followed: do not open a second pidfd or start a second
    /// thread.
    fn follows(&self, holder: FollowedHolder) -> bool {
        self.death
            .as_ref()
            .is_some_and(|death| death.whose == holder)
    }

    /// Waits for an event, at most until `until`.
    pub(crate) fn wait(&mut self, until: Instant) -> WakeReason {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (mut inotify_at, mut death_at, mut cancel_at) = (None, None, None);
            let mut ready = Vec::with_capacity(3);
            if let Some((fd, _)) = &self.inotify {
                inotify_at = Some(ready.len());
                ready.push(PollFd::new(fd, PollFlags::IN));
            }
            if let Some(death) = &self.death {
                death_at = Some(ready.len());
                ready.push(PollFd::new(&*death.ready, PollFlags::IN));
            }
            if let Some(cancel) = &self.cancel {
                cancel_at = Some(ready.len());
                ready.push(PollFd::new(&*cancel.0, PollFlags::IN));
            }
            let count = poll(&mut ready, Some(&timespec(left))).unwrap_or(0);
            let is_ready = |at: Option<usize>| {
                count > 0 && at.is_some_and(|at| !ready[at].revents().is_empty())
            };
            if is_ready(cancel_at) {
                return WakeReason::Cancelled;
            }
            let (died, changed) = (is_ready(death_at), is_ready(inotify_at));
            // The death is reported once. The caller judges the lock again and follows the next
            // holder.
            if died {
                self.death = None;
                return WakeReason::HolderGone;
            }
            if changed && self.concerns_us() {
                return WakeReason::Event;
            }
            if Instant::now() >= until {
                return WakeReason::Time;
            }
        }
    }

    /// Reads the pending events and returns whether one concerns a watched name.
    fn concerns_us(&self) -> bool {
        let Some((fd, descriptor)) = &self.inotify else {
            return false;
        };
        let events = read_events(fd);
        events.iter().any(|event| {
            self.names
                .iter()
                .any(|name| event.concerns(*descriptor, name))
        })
    }
}

impl Drop for NameWaiter<'_> {
    fn drop(&mut self) {
        if let Some((fd, descriptor)) = self.inotify.take() {
            let _ = inotify::remove_watch(&fd, descriptor);
            put_back_inotify(fd);
        }
    }
}

/// Pool of idle inotify descriptors. Closing one waits for a grace period of the kernel, 8 ms and
/// more, which would delay a waiter that has just got its lock.
static IDLE: PerProcess<Mutex<Vec<OwnedFd>>> = PerProcess::new();

/// Pool size. More than 16 waiting threads are rare; further descriptors are closed.
const MOST_IDLE: usize = 16;

fn take_inotify() -> Option<OwnedFd> {
    let idle = IDLE
        .get()
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop();
    idle.or_else(|| {
        inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).ok()
    })
}

/// Returns a descriptor to the pool. Late events of the removed watch are harmless: the kernel does
/// not reuse its watch number.
fn put_back_inotify(fd: OwnedFd) {
    let mut idle = IDLE.get().lock().unwrap_or_else(PoisonError::into_inner);
    if idle.len() < MOST_IDLE {
        idle.push(fd);
    }
}

/// Returns a pidfd that becomes readable when the process exits, or `None` if the process no longer
/// exists or has another start time.
fn process_end(pid: u32, start: Option<u64>) -> Option<Arc<OwnedFd>> {
    let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let pidfd = pidfd_open(number, PidfdFlags::empty()).ok()?;
    // The open pidfd pins the pid. Only now does the comparison of the start time hold.
    (presence(pid, start) == Presence::Running).then(|| Arc::new(pidfd))
}

/// Files for which a thread blocks in `flock`, with the eventfd that it signals.
type LockWatches = Mutex<HashMap<FileId, Weak<OwnedFd>>>;

/// Returns an eventfd that becomes readable when the file's `flock` is free. There is one thread
/// per file, for any number of waiters: a thread that blocks in `flock` cannot be cancelled.
fn lock_end(file: &File, id: FileId) -> Option<Arc<OwnedFd>> {
    static WATCHES: PerProcess<LockWatches> = PerProcess::new();
    let watches = WATCHES.get();
    let mut known = watches.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(ready) = known.get(&id).and_then(Weak::upgrade) {
        return Some(ready);
    }
    let ready = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
    let file = file.try_clone().ok()?;
    let signalled = Arc::clone(&ready);
    thread::Builder::new()
        .name("tenure-flock".into())
        .spawn(move || {
            // Release the flock immediately: the waiter judges the file again and takes its own
            // (K25 (check again before removal)).
            let _ = flock(&file, FlockOperation::LockExclusive);
            let _ = flock(&file, FlockOperation::Unlock);
            let mut known = watches.lock().unwrap_or_else(PoisonError::into_inner);
            known.remove(&id);
            // Close the file only after its entry is removed: then its inode number can be reused.
            drop(file);
            drop(known);
            signal(&signalled);
        })
        .ok()?;
    known.insert(id, Arc::downgrade(&ready));
    Some(ready)
}

/// A change in a watched directory.
#[derive(Debug)]
pub(crate) struct DirEvent {
    descriptor: i32,
    /// `None` also for a queue overflow, where any name may have changed.
    name: Option<OsString>,
}

impl DirEvent {
    pub(crate) fn concerns(&self, descriptor: i32, name: &OsStr) -> bool {
        match &self.name {
            Some(changed) => self.descriptor == descriptor && changed == name,
            // An overflow event has the watch descriptor -1.
            None => self.descriptor == descriptor || self.descriptor == -1,
        }
    }
}

/// Reads pending events without blocking.
pub(crate) fn read_events(inotify: &OwnedFd) -> Vec<DirEvent> {
    use std::os::unix::ffi::OsStrExt;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    let mut events = Vec::new();
    while let Ok(event) = reader.next() {
        let name = event
            .file_name()
            .map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
        events.push(DirEvent {
            descriptor: event.wd(),
            name,
        });
        // Later events wake the next poll; a second read here would usually find nothing.
        if reader.is_buffer_empty() {
            break;
        }
    }
    events
}

pub(crate) fn drain_eventfd(fd: &OwnedFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(fd, &mut count);
}

fn signal(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Converts a duration for `poll`, limited to one day so that the conversion cannot overflow.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    let duration = duration.min(Duration::from_secs(86_400));
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(86_400),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::identity::Token;

    const NAME: &str = "state.lock";

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn temp_with_record() -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join(NAME), b"{}").unwrap();
        temp
    }

    /// The identity of a hold that is bound to another process (C13 (holds for scripts)).
    fn followed(pid: u32) -> Identity {
        let dir = Dir::open("/tmp").unwrap();
        Identity::in_dir(&dir, &Here::now(), Token::random(), Some(pid))
    }

    /// K42: an event for the name wakes; events for other names do not.
    #[test]
    fn a_change_of_the_name_wakes_the_waiter() {
        let temp = temp_with_record();
        let dir = Dir::open(temp.path()).unwrap();
        let mut waiter = NameWaiter::new(&dir, &[OsStr::new(NAME)], None);
        waiter.arm();
        std::fs::write(temp.path().join("other"), b"").unwrap();
        assert_eq!(
            waiter.wait(Instant::now() + Duration::from_millis(20)),
            WakeReason::Time
        );
        std::fs::remove_file(temp.path().join(NAME)).unwrap();
        assert_eq!(waiter.wait(far()), WakeReason::Event);
    }

    /// K42: the exit of the recorded process wakes the waiter, although it makes no event in the
    /// directory.
    #[test]
    fn the_death_of_the_holder_wakes_the_waiter() {
        let temp = temp_with_record();
        let dir = Dir::open(temp.path()).unwrap();
        let record = OpenRecord::open(&dir, OsStr::new(NAME), 100)
            .unwrap()
            .unwrap();
        let mut holder = Command::new("sh")
            .args(["-c", "read x"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut waiter = NameWaiter::new(&dir, &[OsStr::new(NAME)], None);
        let identity = followed(holder.id());
        waiter.follow(&record, &identity, &Here::now());
        assert_eq!(
            waiter.wait(Instant::now() + Duration::from_millis(20)),
            WakeReason::Time
        );
        drop(holder.stdin.take());
        assert_eq!(waiter.wait(far()), WakeReason::HolderGone);
        holder.wait().unwrap();
    }

    /// K22, K42: the next holder's record may reuse the previous inode number; its holder is
    /// followed nevertheless.
    #[test]
    fn a_new_holder_under_an_old_inode_number_is_followed() {
        let temp = temp_with_record();
        let dir = Dir::open(temp.path()).unwrap();
        let record = OpenRecord::open(&dir, OsStr::new(NAME), 100)
            .unwrap()
            .unwrap();
        let start = || {
            let mut command = Command::new("sh");
            command.args(["-c", "read x"]).stdin(Stdio::piped());
            command.spawn().unwrap()
        };
        let (mut before, mut now) = (start(), start());
        let mut waiter = NameWaiter::new(&dir, &[OsStr::new(NAME)], None);
        for holder in [&before, &now] {
            let identity = followed(holder.id());
            waiter.follow(&record, &identity, &Here::now());
        }
        drop(now.stdin.take());
        let limit = Instant::now() + Duration::from_secs(10);
        assert_eq!(waiter.wait(limit), WakeReason::HolderGone);
        waiter.follow_process(&record, before.id(), None);
        drop(before.stdin.take());
        assert_eq!(waiter.wait(far()), WakeReason::HolderGone);
        now.wait().unwrap();
        before.wait().unwrap();
    }

    /// K42: where the pid proves nothing (another namespace), the blocking flock wakes; one thread
    /// serves all waiters of a file.
    #[test]
    fn a_freed_flock_wakes_the_waiter() {
        let temp = temp_with_record();
        let dir = Dir::open(temp.path()).unwrap();
        let holder = std::fs::File::open(temp.path().join(NAME)).unwrap();
        flock(&holder, FlockOperation::LockExclusive).unwrap();
        let record = OpenRecord::open(&dir, OsStr::new(NAME), 100)
            .unwrap()
            .unwrap();
        let identity = Identity {
            pidns: Some(1),
            ..Identity::own(Token::random(), true)
        };
        let mut first = NameWaiter::new(&dir, &[OsStr::new(NAME)], None);
        let mut second = NameWaiter::new(&dir, &[OsStr::new(NAME)], None);
        first.follow(&record, &identity, &Here::now());
        second.follow(&record, &identity, &Here::now());
        let same = |waiter: &NameWaiter<'_>| Arc::as_ptr(&waiter.death.as_ref().unwrap().ready);
        assert_eq!(same(&first), same(&second));
        assert_eq!(
            first.wait(Instant::now() + Duration::from_millis(20)),
            WakeReason::Time
        );
        drop(holder);
        assert_eq!(first.wait(far()), WakeReason::HolderGone);
        assert_eq!(second.wait(far()), WakeReason::HolderGone);
    }

    /// K43: a wait does not exceed its deadline, and a cancelled wait ends immediately.
    #[test]
    fn deadline_and_cancel_end_a_wait() {
        let temp = temp_with_record();
        let dir = Dir::open(temp.path()).unwrap();
        let cancel = Cancel::new().unwrap();
        let mut waiter = NameWaiter::new(&dir, &[OsStr::new(NAME)], Some(cancel.clone()));
        assert_eq!(waiter.wait(Instant::now()), WakeReason::Time);
        assert!(!cancel.is_cancelled());
        cancel.cancel();
        assert_eq!(waiter.wait(far()), WakeReason::Cancelled);
        assert_eq!(waiter.wait(far()), WakeReason::Cancelled);
        assert!(cancel.is_cancelled());
    }

    /// K43: ±10 %.
    #[test]
    fn jitter_is_ten_percent() {
        let interval = Duration::from_millis(1000);
        for _ in 0..1000 {
            let jittered = jittered(interval).as_millis();
            assert!((900..=1100).contains(&jittered), "{jittered}");
        }
    }
}
