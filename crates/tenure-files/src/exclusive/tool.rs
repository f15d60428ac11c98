//! The tool side of exclusive locks: lock the database, wait for running server cycles, release
//! (X14 (acquire as a tool)–X20 (the gate file)).

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock, fstat};

use super::staleness::{JudgedLock, address, judge};
use super::{FILE_NAME, GATE_NAME, StalenessRules, Wait, gate, record};
use crate::clock;
use crate::deadline::{Deadline, OnWait, after};
use crate::dir::{Dir, FileId};
use crate::error::{BlockingHolder, Class, Error, Result};
use crate::exit;
use crate::fence;
use crate::future;
use crate::heartbeat::{MonitorOptions, Monitored, monitor};
use crate::hold::{FileHolding, Loss};
use crate::identity::{Here, Identity, Token};
use crate::liveness::{PidTrust, Proof, Verdict};
use crate::publish::{self, Draft, Durability, FileAccess, Published};
use crate::record::{OpenRecord as Found, timestamp, try_flock};
use crate::record_layout::FenceRoom;
use crate::remove::{Removal, no_pause, remove};
use crate::wait::{Cancel, NameWaiter, jittered};

/// Attempts to remove dead locks before the race counts as lost (X14.2).
const RECLAIM_TRIES: u32 = 5;
/// How long an unreadable or malformed record may be one that an original is still writing (X14.2).
const WRITING_TIME: Duration = Duration::from_secs(10);
/// How often a tool tries the gate while a cycle runs, where no event tells its end.
const GATE_POLL: Duration = Duration::from_millis(100);
/// Maximum length of the holder's name in bytes (X18 (holder name and version)).
const HOLDER_MAX: usize = 200;

/// A tool that locks a database. Everything but directory and name has a default.
#[derive(Clone, Debug)]
pub struct Tool {
    dir: PathBuf,
    holder: String,
    version: Option<String>,
    mode: u32,
    access: FileAccess,
    settle: Duration,
    quiesce: Quiesce,
    durability: Durability,
    room: FenceRoom,
    heartbeat: Duration,
    poll: Duration,
    judging: StalenessRules,
    cancel: Option<Cancel>,
    on_wait: Option<OnWait>,
    follows: Option<u32>,
}

/// Whether to wait for cycles of Tenure servers that began before the lock appeared (X20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiesce {
    /// Wait at most this long. If a cycle still runs then, the lock is released and `acquire`
    /// returns `Timeout`.
    For(Duration),
    /// Do not wait.
    Skip,
}

impl Tool {
    /// Creates a tool named `holder` for the database in `dir`.
    ///
    /// # Errors
    ///
    /// `BadInput` unless the name has 1 to 200 bytes and no control characters (X18).
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
            access: FileAccess::default(),
            settle: Duration::ZERO,
            quiesce: Quiesce::For(Duration::from_secs(30)),
            durability: Durability::Durable,
            room: FenceRoom::None,
            heartbeat: Duration::from_secs(10),
            poll: Duration::from_secs(1),
            judging: StalenessRules::default(),
            cancel: None,
            on_wait: None,
            follows: None,
        })
    }

    /// Sets the tool's version, for the record.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Tool {
        self.version = Some(version.into());
        self
    }

    /// Makes the record readable only for our own user (X6 (block and file mode)). A server of
    /// another user then skips until the lock is released.
    #[must_use]
    pub fn private(self) -> Tool {
        self.mode(0o600)
    }

    /// Sets the permission bits of the record, whatever the umask (K32 (file modes and symlinks)).
    /// Default: 0644 minus the umask; in a directory that a group may write, the group may write
    /// the record.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Tool {
        (self.mode, self.access) = (mode, FileAccess::Exact);
        self
    }

    /// Sets a delay before `acquire` returns, for servers that do not use the gate (X19 (settle
    /// time for servers)). Default: none.
    #[must_use]
    pub fn settle(mut self, time: Duration) -> Tool {
        self.settle = time;
        self
    }

    /// Sets whether to wait for running cycles. Default: 30 s.
    #[must_use]
    pub fn quiesce(mut self, quiesce: Quiesce) -> Tool {
        self.quiesce = quiesce;
        self
    }

    /// Sets whether the record is synced before it appears (K19 (durable records and torn
    /// records)). Default: [`Durability::Durable`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Tool {
        self.durability = durability;
        self
    }

    /// Sets the heartbeat interval. Default: 10 s (X16 (hold an exclusive lock)).
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Tool {
        self.heartbeat = interval;
        self
    }

    /// Sets the poll interval of a waiter. Default: 1 s.
    #[must_use]
    pub fn poll(mut self, interval: Duration) -> Tool {
        self.poll = interval;
        self
    }

    /// Takes a fencing number with the lock (K39 (fencing number per acquisition)).
    #[must_use]
    pub fn fenced(mut self) -> Tool {
        self.room = FenceRoom::ForFence;
        self
    }

    /// Declares that process ids in records may belong to other containers with the same host name.
    /// A missing process then proves nothing (X12.4 order of exclusive tests).
    #[must_use]
    pub fn foreign_pids(mut self) -> Tool {
        self.judging.pids = PidTrust::Foreign;
        self
    }

    /// Declares that no other container shares the directory: a missing process proves that the
    /// holder is dead, also where this process cannot see all others.
    #[must_use]
    pub fn trust_pid(mut self) -> Tool {
        self.judging.pids = PidTrust::Trusted;
        self
    }

    /// Sets a handle with which another thread can cancel the wait.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Tool {
        self.cancel = Some(cancel);
        self
    }

    /// Sets a callback that is called about once a second while the lock is held by another process.
    #[must_use]
    pub fn on_wait(mut self, on_wait: OnWait) -> Tool {
        self.on_wait = Some(on_wait);
        self
    }

    /// Binds the lock to the life of the process `pid`, in our PID namespace, instead of this
    /// process (C13 (holds for scripts)).
    #[must_use]
    pub fn follows(mut self, pid: u32) -> Tool {
        self.follows = Some(pid);
        self
    }

    /// Acquires the lock on a separate thread and returns a future.
    ///
    /// Dropping the future cancels the wait. A lock that is granted at the same moment is released.
    pub fn acquire_async(&self, wait: Wait) -> future::Blocking<Result<ExclusiveGuard>> {
        let tool = self.clone();
        future::run(move |cancel| tool.cancel(cancel).acquire(wait))
    }

    /// Acquires the lock and waits for running cycles.
    ///
    /// # Errors
    ///
    /// `Held`, or `Foreign` if the holder cannot be checked from here, with [`Wait::No`]; `Timeout`
    /// if the lock stays held or a cycle does not end; `LostRace` if other processes were faster
    /// several times; `Compromised` if the lock was lost before this returns; otherwise the problem
    /// of the lock file.
    pub fn acquire(&self, wait: Wait) -> Result<ExclusiveGuard> {
        let wait_deadline = Deadline::new(wait, self.cancel.clone()).reports(self.on_wait.clone());
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
        exit::release_at_exit(&hold);
        let monitor_options = MonitorOptions {
            beat: Some(self.heartbeat),
            check: None,
        };
        // This process may exit before the process that the hold follows, so it writes no
        // heartbeat.
        let monitored = self
            .follows
            .is_none()
            .then(|| monitor(&hold, monitor_options));
        let mut guard = ExclusiveGuard {
            monitor_options: monitored,
            hold,
            fence: None,
        };
        // From here on an error drops the guard and so releases the lock. The fence is taken only
        // now that the lock is held (K39).
        if self.room == FenceRoom::ForFence {
            let fence = fence::next(guard.hold.dir(), self.publishing(), &wait_deadline)?;
            guard.hold.write_fence(fence)?;
            guard.fence = Some(fence);
        }
        if let Quiesce::For(time) = self.quiesce {
            wait_for_cycles(guard.hold.dir(), time, &wait_deadline)?;
        }
        wait_deadline.pause(self.settle);
        if wait_deadline.is_cancelled() {
            return Err(cancelled(guard.hold.dir()));
        }
        guard.check()?;
        Ok(guard)
    }

    /// Publishes the record, or judges the existing lock and waits (X14).
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
            // Read the deadline before judging, so that the lock is judged at least once after it.
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
                            return Err(not_acquired(
                                dir,
                                Class::Held,
                                wait,
                                still_locked(blocker),
                            ));
                        }
                        Removal::Busy => waiter.follow_lock(found.file(), found.id()),
                    }
                }
                JudgedLock::Held { blocker, class, .. } if is_over => {
                    return Err(not_acquired(dir, class, wait, blocker));
                }
                JudgedLock::Held {
                    found,
                    by,
                    blocker,
                    class,
                } => {
                    problem_since = None;
                    follow(&mut waiter, &found, &by);
                    wait_deadline.report(|| not_acquired(dir, class, wait, blocker));
                }
                // The original writes its record in several steps, so a damaged record may be
                // incomplete. Wait for it up to `WRITING_TIME` since its last change.
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
            // A change before the watch began makes no event: check once more.
            if !waiter.is_armed() {
                waiter.arm();
                continue;
            }
            waiter.wait(wait_deadline.until(after(Instant::now(), jittered(self.poll))));
        }
    }

    /// Returns the record of this acquisition (X2 (exclusive record fields), X6).
    fn record(&self, dir: &Dir, token: Token) -> Result<Vec<u8>> {
        let own = Identity::in_dir(dir, &Here::now(), token, self.follows);
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
        // Never write a record that our own parser refuses: the version may be too long, or the
        // machine may have no name.
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
            access: self.access,
            durability: self.durability,
            ..publish::Options::default()
        }
    }
}

/// Metadata of a file that cannot be parsed. A change of any of it means that a process is still
/// writing.
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

/// Makes the end of the holder wake the waiter: by its flock or its process.
fn follow(waiter: &mut NameWaiter<'_>, found: &Found, by: &Identity) {
    match (by.boot.is_some(), by.pid) {
        (true, _) => waiter.follow(found, by, &Here::now()),
        (false, Some(pid)) => waiter.follow_process(found, pid, None),
        (false, None) => {}
    }
}

/// K24 (lock before removal): another process has the flock. That is the holder, which is alive
/// after all, or another process that judges the lock.
fn still_locked(blocker: BlockingHolder) -> BlockingHolder {
    BlockingHolder {
        verdict: Verdict::Alive(Proof::KernelLock),
        ..blocker
    }
}

/// The error of a caller that did not wait, or waited until its deadline (X14.2).
fn not_acquired(dir: &Dir, class: Class, wait: Wait, blocker: BlockingHolder) -> Error {
    let (class, what) = match (class, wait) {
        (Class::Foreign, Wait::No) => (class, "held by a process that cannot be checked from here"),
        (_, Wait::No) => (class, "held"),
        (_, Wait::For(_) | Wait::Forever) => (Class::Timeout, "not released in time"),
    };
    Error::new(class, dir.join(FILE_NAME), what).blocked_by(blocker)
}

fn lost_race(dir: &Dir) -> Error {
    let what = "others were faster, again and again";
    Error::new(Class::LostRace, dir.join(FILE_NAME), what).next("try again")
}

/// Takes the gate exclusively once (X20): then no cycle that began before our lock is still
/// running.
fn wait_for_cycles(dir: &Dir, time: Duration, wait_deadline: &Deadline) -> Result<()> {
    let name = OsStr::new(GATE_NAME);
    let gate = gate::open(dir)?;
    let failed = |errno| Error::io(dir.join(name), "cannot stat the gate", errno);
    let id = FileId::of(&fstat(&gate).map_err(failed)?);
    let until = after(Instant::now(), time);
    let mut waiter = NameWaiter::new(dir, &[], wait_deadline.cancel.clone());
    loop {
        if try_flock(&gate, dir, name)? {
            let _ = flock(&gate, FlockOperation::Unlock);
            return Ok(());
        }
        if wait_deadline.is_cancelled() {
            return Err(cancelled(dir));
        }
        if Instant::now() >= until {
            let what = "a cycle of the server did not end in time; the lock was released";
            let error = Error::new(Class::Timeout, dir.join(name), what);
            return Err(error.next(format!(
                "see what it does with: tenure why {}",
                address(dir)
            )));
        }
        // On a local file system the end of the last cycle ends the wait.
        waiter.follow_lock(&gate, id);
        waiter.wait(until.min(Instant::now() + jittered(GATE_POLL)));
    }
}

/// The error of a caller that cancelled after its lock was published; the lock is released.
fn cancelled(dir: &Dir) -> Error {
    let what = "the wait was cancelled; the lock was released";
    Error::new(Class::Timeout, dir.join(FILE_NAME), what)
}

/// A held exclusive lock.
///
/// Dropping the guard releases the lock and ignores errors; use
/// [`release`](ExclusiveGuard::release) to see them.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct ExclusiveGuard {
    monitor_options: Option<Monitored>,
    hold: Arc<FileHolding>,
    fence: Option<NonZeroU64>,
}

impl ExclusiveGuard {
    /// Returns the underlying hold: the record and its state.
    pub fn hold(&self) -> &Arc<FileHolding> {
        &self.hold
    }

    /// Returns the fencing number, if one was asked for.
    pub fn fence(&self) -> Option<NonZeroU64> {
        self.fence
    }

    /// Checks that this process still holds the lock (K34 (detect a lost lock)). An original tool
    /// may have overwritten it (X15 (exclusion between tools)).
    ///
    /// # Errors
    ///
    /// `Compromised` if the lock is lost.
    pub fn check(&self) -> Result<()> {
        self.hold.check()
    }

    /// Registers `listener`, which runs once when the loss of the lock is detected. Runs it
    /// immediately if the lock is already lost.
    pub fn on_lost(&self, listener: impl FnOnce(&Loss) + Send + 'static) {
        self.hold.on_lost(listener);
    }

    /// Drops the guard without releasing the lock and returns the token. The lock then lives as
    /// long as the process that the record names (C13).
    pub fn leave(mut self) -> Token {
        self.monitor_options = None;
        self.hold.leave();
        self.hold.token()
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// `Compromised` if the record is gone or belongs to another holder (X17 (exclusive release)).
    pub fn release(mut self) -> Result<()> {
        self.monitor_options = None;
        self.hold.release()
    }
}

impl Drop for ExclusiveGuard {
    fn drop(&mut self) {
        self.monitor_options = None;
        // Already released, or lost: `drop` cannot report it.
        let _ = self.hold.release();
    }
}

impl AsFd for ExclusiveGuard {
    /// Returns the locked descriptor, for a child process that keeps the lock (K38 (inherit the
    /// locked descriptor)).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.hold.as_fd()
    }
}

/// Takes over a hold that follows another process (C13), identified by its token: for `renew` and
/// `unlock`.
///
/// # Errors
///
/// `NotHeld` if the record is gone or has another token.
pub fn adopt(dir: impl AsRef<Path>, token: Token) -> Result<FileHolding> {
    let dir = Arc::new(Dir::open(dir)?);
    FileHolding::adopt(dir, OsStr::new(FILE_NAME), record::LIMIT, token)
}
