//! The tool's side: claim the database, wait until its server is quiet, and give it back (X14–X20).

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::staleness::{JudgedLock, address, judge};
use super::{FILE_NAME, GATE_NAME, StalenessRules, Wait, gate, record};
use crate::clock;
use crate::deadline::{Deadline, after};
use crate::dir::{Dir, FileId};
use crate::error::{BlockingHolder, Class, Error, Result};
use crate::fence;
use crate::future;
use crate::heartbeat::{MonitorOptions, Monitored, monitor};
use crate::hold::{FileHolding, Loss};
use crate::identity::{Here, Identity, Token};
use crate::liveness::{Proof, Verdict};
use crate::publish::{self, Draft, Durability, Published};
use crate::record::{OpenRecord as Found, flock_failed, timestamp};
use crate::record_layout::FenceRoom;
use crate::remove::{Removal, no_pause, remove};
use crate::wait::{Cancel, NameWaiter, jittered};

/// How often a dead lock is reclaimed in vain before the race counts as lost (X14.2).
const RECLAIM_TRIES: u32 = 5;
/// A record that nobody can read may be one that an original is writing; this long (X14.2).
const WRITING_TIME: Duration = Duration::from_secs(10);
const HOLDER_MAX: usize = 200;

/// A tool that wants a database for itself.
#[derive(Clone, Debug)]
pub struct Tool {
    dir: PathBuf,
    holder: String,
    version: Option<String>,
    mode: u32,
    settle: Duration,
    quiesce: Quiesce,
    durability: Durability,
    room: FenceRoom,
    heartbeat: Duration,
    poll: Duration,
    judging: StalenessRules,
    cancel: Option<Cancel>,
    follows: Option<u32>,
}

/// Whether to wait for cycles of Tenure servers that began before the lock appeared (X20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiesce {
    /// Yes, this long; if one still runs then, the lock is given back.
    For(Duration),
    /// No.
    Skip,
}

impl Tool {
    /// A tool of this name, for the database in `dir`. The name is 1 to 200 bytes without control
    /// characters (X18).
    pub fn new(dir: impl AsRef<Path>, holder: &str) -> Result<Tool> {
        let dir = dir.as_ref();
        if holder.is_empty() || holder.len() > HOLDER_MAX || holder.chars().any(char::is_control) {
            let what = "the holder's name must have 1 to 200 bytes and no control characters";
            return Err(Error::new(Class::BadInput, dir.join(FILE_NAME), what));
        }
        Ok(Tool {
            dir: dir.to_owned(),
            holder: holder.to_owned(),
            version: None,
            mode: 0o644,
            settle: Duration::ZERO,
            quiesce: Quiesce::For(Duration::from_secs(30)),
            durability: Durability::Durable,
            room: FenceRoom::None,
            heartbeat: Duration::from_secs(10),
            poll: Duration::from_secs(1),
            judging: StalenessRules::default(),
            cancel: None,
            follows: None,
        })
    }

    /// The tool's version, for the record.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Tool {
        self.version = Some(version.into());
        self
    }

    /// Only our own user may read the record (X6). A server of another user then skips for ever.
    #[must_use]
    pub fn private(mut self) -> Tool {
        self.mode = 0o600;
        self
    }

    /// Sleeps before `acquire` returns, for servers that know no gate (X19).
    #[must_use]
    pub fn settle(mut self, time: Duration) -> Tool {
        self.settle = time;
        self
    }

    /// Whether to wait for running cycles; 30 s unless said otherwise.
    #[must_use]
    pub fn quiesce(mut self, quiesce: Quiesce) -> Tool {
        self.quiesce = quiesce;
        self
    }

    /// Whether the record is synced before it appears (K19).
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Tool {
        self.durability = durability;
        self
    }

    /// The interval of the heartbeat; 10 s unless said otherwise (X16).
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Tool {
        self.heartbeat = interval;
        self
    }

    /// How often a waiter looks without being told of a change; every second unless said otherwise.
    #[must_use]
    pub fn poll(mut self, interval: Duration) -> Tool {
        self.poll = interval;
        self
    }

    /// Takes a fencing number with the lock (K39).
    #[must_use]
    pub fn fenced(mut self) -> Tool {
        self.room = FenceRoom::ForFence;
        self
    }

    /// Process ids in locks may belong to other containers with the same host name (X12.4).
    #[must_use]
    pub fn foreign_pids(mut self) -> Tool {
        self.judging.foreign_pids = true;
        self
    }

    /// Ends a wait from another thread.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Tool {
        self.cancel = Some(cancel);
        self
    }

    /// The lock shall follow the life of this process of our PID namespace instead of ours (C13).
    #[must_use]
    pub fn follows(mut self, pid: u32) -> Tool {
        self.follows = Some(pid);
        self
    }

    /// Claims the database on a thread of its own, for callers that await. Dropping the future
    /// withdraws: a lock that is granted at that very moment is given back.
    pub fn acquire_async(&self, wait: Wait) -> future::Blocking<Result<ExclusiveGuard>> {
        let tool = self.clone();
        future::run(move |cancel| tool.cancel(cancel).acquire(wait))
    }

    /// Claims the database.
    pub fn acquire(&self, wait: Wait) -> Result<ExclusiveGuard> {
        let wait_deadline = Deadline::new(wait, self.cancel.clone());
        let dir = Arc::new(Dir::open(&self.dir)?);
        let token = Token::random();
        let bytes = self.record(&dir, token)?;
        let published = self.publish(&dir, &bytes, wait, &wait_deadline)?;
        let hold = Arc::new(FileHolding::new(
            dir,
            OsStr::new(FILE_NAME),
            published,
            bytes,
            token,
        ));
        let monitor_options = MonitorOptions {
            beat: Some(self.heartbeat),
            check: None,
        };
        // Nobody beats for a hold that outlives us.
        let monitored = self
            .follows
            .is_none()
            .then(|| monitor(&hold, monitor_options));
        let mut guard = ExclusiveGuard {
            monitor_options: monitored,
            hold,
            fence: None,
        };
        // From here on an error drops the guard, and with it the lock.
        if self.room == FenceRoom::ForFence {
            let fence = fence::next(guard.hold.dir(), self.publishing())?;
            guard.hold.write_fence(fence)?;
            guard.fence = Some(fence);
        }
        if let Quiesce::For(time) = self.quiesce {
            wait_for_cycles(guard.hold.dir(), time)?;
        }
        thread::sleep(self.settle);
        guard.check()?;
        Ok(guard)
    }

    /// X14: publish, or judge what stands there.
    fn publish(
        &self,
        dir: &Dir,
        bytes: &[u8],
        wait: Wait,
        wait_deadline: &Deadline,
    ) -> Result<Published> {
        let name = OsStr::new(FILE_NAME);
        let mut draft = Draft::new(dir, name, self.publishing());
        draft.write(bytes)?;
        let mut waiter = NameWaiter::new(dir, &[name], self.cancel.clone());
        let mut problem_since: Option<(Option<UnreadableFile>, Instant)> = None;
        let mut reclaims = 0;
        loop {
            if let Some(published) = draft.publish()? {
                return Ok(published);
            }
            let is_over = wait_deadline.is_over();
            match judge(dir, &self.judging)? {
                JudgedLock::Free => continue,
                JudgedLock::Dead { mut found, blocker } => {
                    reclaims += 1;
                    if reclaims > RECLAIM_TRIES && is_over {
                        return Err(lost_race(dir));
                    }
                    match remove(dir, &mut found, &no_pause)? {
                        Removal::Removed | Removal::Changed => continue,
                        Removal::Busy if is_over => {
                            return Err(in_vain(dir, Class::Held, wait, still_locked(blocker)));
                        }
                        Removal::Busy => waiter.follow_lock(found.file(), found.id()),
                    }
                }
                JudgedLock::Held { blocker, class, .. } if is_over => {
                    return Err(in_vain(dir, class, wait, blocker));
                }
                JudgedLock::Held { found, by, .. } => {
                    problem_since = None;
                    follow(&mut waiter, &found, &by);
                }
                JudgedLock::Problem { error, .. } => {
                    let unreadable = UnreadableFile::of(dir);
                    let since = match problem_since {
                        Some((seen, since)) if seen == unreadable => since,
                        _ => Instant::now(),
                    };
                    problem_since = Some((unreadable, since));
                    let may_be_writing =
                        matches!(error.class(), Class::Malformed | Class::Unreadable)
                            && since.elapsed() < WRITING_TIME;
                    if wait == Wait::No || is_over || !may_be_writing {
                        return Err(error);
                    }
                }
            }
            // What happened before the watch began made no event: look once more.
            if !waiter.is_armed() {
                waiter.arm();
                continue;
            }
            waiter.wait(wait_deadline.until(after(Instant::now(), jittered(self.poll))));
        }
    }

    /// X2, X6.
    fn record(&self, dir: &Dir, token: Token) -> Result<Vec<u8>> {
        let own = match self.follows {
            Some(pid) => Identity::following(pid, token, dir.is_local()),
            None => Identity::own(token, dir.is_local()),
        };
        let started = clock::format(SystemTime::now())
            .ok_or_else(|| Error::new(Class::Io, dir.path(), "the clock is beyond the calendar"))?;
        let fields = record::RecordToWrite {
            holder: &self.holder,
            version: self.version.as_deref(),
            started_at: &started,
            own: &own,
            room: self.room,
        };
        let bytes = fields.encode();
        // What we would not accept from others must not be written: the version may be too long, or
        // the machine may have no name.
        match record::ExclusiveRecord::parse(&bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(Error::new(
                Class::BadInput,
                dir.join(FILE_NAME),
                error.to_string(),
            )),
        }
    }

    fn publishing(&self) -> publish::Options {
        publish::Options {
            mode: self.mode,
            durability: self.durability,
            ..publish::Options::default()
        }
    }
}

/// What is known of a file that cannot be read: a change of any of it means that somebody is at work.
#[derive(Clone, Copy, PartialEq, Eq)]
struct UnreadableFile {
    id: FileId,
    modified: SystemTime,
    size: i64,
}

impl UnreadableFile {
    fn of(dir: &Dir) -> Option<UnreadableFile> {
        let stat = dir.stat(OsStr::new(FILE_NAME)).ok()?;
        Some(UnreadableFile {
            id: FileId::of(&stat),
            modified: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            size: stat.st_size,
        })
    }
}

/// The death of the holder wakes us, by its kernel lock or its process.
fn follow(waiter: &mut NameWaiter<'_>, found: &Found, by: &Identity) {
    match (by.boot.is_some(), by.pid) {
        (true, _) => waiter.follow(found, by, &Here::now()),
        (false, Some(pid)) => waiter.follow_process(found, pid, None),
        (false, None) => {}
    }
}

/// K24: somebody has the kernel's lock: the holder after all, or another judge.
fn still_locked(blocker: BlockingHolder) -> BlockingHolder {
    BlockingHolder {
        verdict: Verdict::Alive(Proof::KernelLock),
        ..blocker
    }
}

/// X14.2: the class for one who did not wait, or waited to the end.
fn in_vain(dir: &Dir, class: Class, wait: Wait, blocker: BlockingHolder) -> Error {
    let (class, what) = match (class, wait) {
        (Class::Foreign, Wait::No) => (class, "held by somebody who cannot be checked from here"),
        (_, Wait::No) => (class, "held"),
        (_, Wait::For(_) | Wait::Forever) => (Class::Timeout, "not released in time"),
    };
    Error::new(class, dir.join(FILE_NAME), what).blocked_by(blocker)
}

fn lost_race(dir: &Dir) -> Error {
    let what = "others were faster, again and again";
    Error::new(Class::LostRace, dir.join(FILE_NAME), what).next("try again")
}

/// Has the gate alone once (X20): then no cycle that began before our lock is running any more.
fn wait_for_cycles(dir: &Dir, time: Duration) -> Result<()> {
    let gate = gate::open(dir)?;
    match flock(&gate, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let _ = flock(&gate, FlockOperation::Unlock);
            return Ok(());
        }
        Err(Errno::WOULDBLOCK) => {}
        Err(errno) => return Err(flock_failed(dir, OsStr::new(GATE_NAME), errno)),
    }
    // A thread that waits for a kernel lock cannot be called back. If the time is over first, this
    // one ends with the cycle that it waits for.
    let (done, answer) = mpsc::channel();
    let waiting = thread::Builder::new()
        .name("tenure-gate".into())
        .spawn(move || {
            let locked = loop {
                match flock(&gate, FlockOperation::LockExclusive) {
                    Err(Errno::INTR) => {}
                    other => break other,
                }
            };
            let _ = flock(&gate, FlockOperation::Unlock);
            let _ = done.send(locked);
        });
    waiting.map_err(|error| Error::io(dir.join(GATE_NAME), "cannot wait for the gate", error))?;
    match answer.recv_timeout(time) {
        Ok(locked) => locked.map_err(|errno| flock_failed(dir, OsStr::new(GATE_NAME), errno)),
        Err(_) => Err(Error::new(
            Class::Timeout,
            dir.join(GATE_NAME),
            "a cycle of the server did not end in time; the lock was given back",
        )
        .next(format!(
            "see what it does with: tenure why {}",
            address(dir)
        ))),
    }
}

/// A claimed database. Dropping it gives it back; only [`release`](ExclusiveGuard::release) can say how that went.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct ExclusiveGuard {
    monitor_options: Option<Monitored>,
    hold: Arc<FileHolding>,
    fence: Option<NonZeroU64>,
}

impl ExclusiveGuard {
    /// The record and its state.
    pub fn hold(&self) -> &Arc<FileHolding> {
        &self.hold
    }

    /// The fencing number, if one was asked for.
    pub fn fence(&self) -> Option<NonZeroU64> {
        self.fence
    }

    /// Whether the lock is ours right now (K34). An original tool may have overwritten it (X15).
    pub fn check(&self) -> Result<()> {
        self.hold.check()
    }

    /// Runs `listener` once if the lock is lost.
    pub fn on_lost(&self, listener: impl FnOnce(&Loss) + Send + 'static) {
        self.hold.on_lost(listener);
    }

    /// Lets go of the handle and leaves the record, which follows the process that it names (C13).
    pub fn leave(mut self) -> Token {
        self.monitor_options = None;
        self.hold.leave();
        self.hold.token()
    }

    /// Gives the database back. A record that is gone or another's is `Compromised`, not success (X17).
    pub fn release(mut self) -> Result<()> {
        self.monitor_options = None;
        self.hold.release()
    }
}

impl Drop for ExclusiveGuard {
    fn drop(&mut self) {
        self.monitor_options = None;
        // Released before, or lost: nothing more to do, and nobody here to be told.
        let _ = self.hold.release();
    }
}

impl AsFd for ExclusiveGuard {
    /// The locked descriptor, for a child that shall keep the lock (K38).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.hold.as_fd()
    }
}

/// Takes over a hold that follows another process, by its token: for `renew` and `unlock` (C13).
pub fn adopt(dir: impl AsRef<Path>, token: Token) -> Result<FileHolding> {
    let dir = Arc::new(Dir::open(dir)?);
    FileHolding::adopt(dir, OsStr::new(FILE_NAME), record::LIMIT, token)
}
