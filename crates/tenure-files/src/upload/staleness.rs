//! Staleness of an upload lock: whether there is a lock, and whether its holder is alive (U13
//! (order of upload tests)).
//!
//! ```text
//!   no file ──▶ Free
//!   record  ──▶ holder proven dead ──▶ Dead             remove it safely, proceed
//!           ├─▶ alive, or not provable ──▶ Held         ask, wait
//!           └─▶ pid proves nothing ──▶ Held, doubtful   ask; dead if it does not react (U13a)
//!   not a lock ──▶ Refused                              leave it
//! ```
//!
//! The original sends signal 0 to the pid and deletes the lock if there is no such process. Tenure
//! uses the pid as evidence only where it is valid: on a local file system, and if no process of
//! another PID namespace has it.

use std::time::Duration;

use super::record::{FirstLine, JUNK_LIMIT, LIMIT, UploadRecord};
use super::{Names, StalenessRules};
use crate::clock::age;
use crate::dir::Dir;
use crate::error::{BlockingHolder, Class, Error, Result};
use crate::identity::{Here, Identity};
use crate::liveness::{self, Doubt, Proof, Verdict};
use crate::process::own_pid;
use crate::record::OpenRecord as Found;

/// Age below which junk may be a record that is still being written (U13.4).
const JUNK_AGE: Duration = Duration::from_secs(10);

/// The result of one check. The file stays open, so that a later removal concerns exactly this file
/// (K22 (keep the judged file open)).
#[derive(Debug)]
pub(super) enum JudgedUpload {
    Free,
    Dead(Found),
    Held(Box<LiveLock>),
    Refused(Error),
}

/// A lock that is held or may be held.
#[derive(Debug)]
pub(super) struct LiveLock {
    /// `None` if it cannot be opened.
    pub(super) found: Option<Found>,
    pub(super) blocker: BlockingHolder,
    /// The holder as the record names it.
    pub(super) by: Option<Identity>,
    /// `Held`, or `Foreign` if this process cannot check whether the holder is alive.
    pub(super) class: Class,
    /// The record is an original's whose pid proves nothing; only a missing reaction to a request
    /// does (U13a (test a doubtful holder)).
    pub(super) doubtful: bool,
}

/// Judges the lock of one upload.
pub(super) fn judge(dir: &Dir, names: &Names, judging: &StalenessRules) -> Result<JudgedUpload> {
    let mut found = match Found::open(dir, &names.lock, LIMIT) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(JudgedUpload::Free),
        Err(error) => return Ok(unopened(error, dir, names)),
    };
    let record = UploadRecord::parse(found.bytes());
    let judge = StalenessCheck {
        dir,
        names,
        judging,
        here: Here::now(),
    };
    if let Some(block) = &record.tenure {
        return judge.tenure(block, found);
    }
    match record.first {
        FirstLine::Pid(pid) => Ok(judge.original(pid, found)),
        FirstLine::OtherSpelling => {
            Ok(judge.held(Some(found), None, Verdict::Unknown(Doubt::TooLittle)))
        }
        FirstLine::NoPid => Ok(JudgedUpload::Refused(
            judge.malformed("its number is no process id"),
        )),
        FirstLine::Junk if liveness::damaged_before_boot(&mut found, dir)? => {
            Ok(JudgedUpload::Dead(found))
        }
        FirstLine::Junk => judge.junk(found),
    }
}

struct StalenessCheck<'a> {
    dir: &'a Dir,
    names: &'a Names,
    judging: &'a StalenessRules,
    here: Here,
}

impl StalenessCheck<'_> {
    /// U13.2: a record with a `tenure` block is judged by K10–K14.
    fn tenure(&self, block: &Identity, mut found: Found) -> Result<JudgedUpload> {
        let verdict = liveness::verdict(block, &mut found, self.dir, &self.here)?;
        if let Verdict::Dead(_) = verdict {
            return Ok(JudgedUpload::Dead(found));
        }
        Ok(self.held(Some(found), Some(block.clone()), verdict))
    }

    /// U13.3: the record of an original has only a pid.
    fn original(&self, pid: u32, found: Found) -> JudgedUpload {
        let identity = Some(Identity {
            pid: Some(pid),
            ..Identity::default()
        });
        if !self.dir.is_local() {
            return self.held(Some(found), identity, Verdict::Unknown(Doubt::OtherHost));
        }
        match liveness::verdict_of_bare_pid(pid, None, self.judging.pids, &self.here) {
            // The pid is ours, but the lock is not: the table of this process would have stopped us
            // before. So another process in another PID namespace, or a previous process with our
            // pid, wrote it.
            Verdict::Alive(_) if pid == own_pid() => self.doubtful(found, identity),
            Verdict::Dead(_) => JudgedUpload::Dead(found),
            Verdict::Unknown(Doubt::OtherNamespace) => self.doubtful(found, identity),
            verdict => self.held(Some(found), identity, verdict),
        }
    }

    /// U13.4: junk is not a lock for any reader, unless it is still being written.
    fn junk(&self, found: Found) -> Result<JudgedUpload> {
        let now = self.judging.clock.now_in(self.dir)?;
        if age(now, found.modified()) < JUNK_AGE {
            return Ok(self.held(Some(found), None, Verdict::Unknown(Doubt::Damaged)));
        }
        Ok(match found.bytes().len() <= JUNK_LIMIT {
            true => JudgedUpload::Dead(found),
            false => JudgedUpload::Refused(
                self.malformed("it is neither a lock nor small enough to be junk"),
            ),
        })
    }

    /// A lock whose holder must be tested (U13a).
    fn doubtful(&self, found: Found, by: Option<Identity>) -> JudgedUpload {
        let held = self.lock(Some(found), by, Verdict::Unknown(Doubt::OtherNamespace));
        JudgedUpload::Held(Box::new(LiveLock {
            class: Class::Held,
            doubtful: true,
            ..held
        }))
    }

    fn held(&self, found: Option<Found>, by: Option<Identity>, verdict: Verdict) -> JudgedUpload {
        JudgedUpload::Held(Box::new(self.lock(found, by, verdict)))
    }

    fn lock(&self, found: Option<Found>, by: Option<Identity>, verdict: Verdict) -> LiveLock {
        let class = match verdict {
            Verdict::Unknown(Doubt::OtherHost | Doubt::OtherNamespace) => Class::Foreign,
            Verdict::Alive(_) | Verdict::Dead(_) | Verdict::Unknown(_) => Class::Held,
        };
        let since = found.as_ref().map(Found::changed);
        let blocker = BlockingHolder {
            since,
            ..blocker(self.names, by.as_ref(), verdict)
        };
        LiveLock {
            found,
            blocker,
            by,
            class,
            doubtful: false,
        }
    }

    fn malformed(&self, what: &str) -> Error {
        Error::new(Class::Malformed, self.dir.join(&self.names.lock), what).next(format!(
            "look at it; to remove it: tenure break --force {}",
            self.names.address
        ))
    }
}

/// U13.1: a file that cannot be opened is refused, or counts as held if only the permission is
/// missing.
fn unopened(error: Error, dir: &Dir, names: &Names) -> JudgedUpload {
    match error.class() {
        Class::Unreadable => JudgedUpload::Held(Box::new(LiveLock {
            found: None,
            blocker: blocker(names, None, Verdict::Unknown(Doubt::Unreadable)),
            by: None,
            class: Class::Held,
            doubtful: false,
        })),
        Class::TooLarge => JudgedUpload::Refused(
            Error::new(Class::NotALock, dir.join(&names.lock), error.what())
                .next("it looks like an upload of that name; take another identifier"),
        ),
        _ => JudgedUpload::Refused(error),
    }
}

/// A lock that looked dead, but whose flock another process has.
pub(super) fn locked(found: Found, names: &Names) -> LiveLock {
    let by = UploadRecord::parse(found.bytes()).tenure;
    LiveLock {
        blocker: blocker(names, by.as_ref(), Verdict::Alive(Proof::KernelLock)),
        found: Some(found),
        by,
        class: Class::Held,
        doubtful: false,
    }
}

fn blocker(names: &Names, by: Option<&Identity>, verdict: Verdict) -> BlockingHolder {
    let by = by.cloned().unwrap_or_default();
    BlockingHolder {
        address: names.address.clone(),
        pid: by.pid,
        host: by.host,
        name: None,
        token: by.token,
        since: None,
        verdict,
    }
}
