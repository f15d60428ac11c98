//! What stands at an upload's lock, and whether its holder lives (U13).
//!
//!   nothing ──▶ Free
//!   record  ──▶ dead, on proof ──▶ Dead                       remove it safely, go on
//!           ├─▶ alive, or cannot be told ──▶ Held             ask, wait
//!           └─▶ a pid that proves nothing here ──▶ Held, doubtful   ask, and take silence for death (U13a)
//!   anything that is not a lock ──▶ Refused                   leave it
//!
//! The original signals whatever number it finds and deletes what does not answer. Here a number is
//! evidence only where it can be: a local disk, the machine's first PID namespace.

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

/// The PID namespace that every other one is nested in.
const FIRST_NAMESPACE: u64 = 4_026_531_836;
/// Junk may be somebody writing; after this time it is not (U13.4).
const JUNK_AGE: Duration = Duration::from_secs(10);

/// One look at the place. What was found stays open: whatever follows is about that very file (K22).
#[derive(Debug)]
pub(super) enum JudgedUpload {
    Free,
    Dead(Found),
    Held(Box<LiveLock>),
    Refused(Error),
}

/// A lock to wait for.
#[derive(Debug)]
pub(super) struct LiveLock {
    /// `None` if it may not even be opened.
    pub(super) found: Option<Found>,
    pub(super) blocker: BlockingHolder,
    /// What the record says of its holder.
    pub(super) by: Option<Identity>,
    /// `LiveLock`, or `Foreign` where its life cannot be checked from here.
    pub(super) class: Class,
    /// The record is an original's whose pid proves nothing: silence does (U13a).
    pub(super) doubtful: bool,
}

/// Looks at the lock of one upload.
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
    /// U13.2: a record of Tenure's, judged by the kernel.
    fn tenure(&self, block: &Identity, mut found: Found) -> Result<JudgedUpload> {
        let verdict = liveness::verdict(block, &mut found, self.dir, &self.here)?;
        if let Verdict::Dead(_) = verdict {
            return Ok(JudgedUpload::Dead(found));
        }
        Ok(self.held(Some(found), Some(block.clone()), verdict))
    }

    /// U13.3: only a pid.
    fn original(&self, pid: u32, found: Found) -> JudgedUpload {
        let identity = Some(Identity {
            pid: Some(pid),
            ..Identity::default()
        });
        if !self.dir.is_local() {
            return self.held(Some(found), identity, Verdict::Unknown(Doubt::OtherHost));
        }
        let sees_all = self.here.pidns == Some(FIRST_NAMESPACE) && !self.judging.foreign_pids;
        match liveness::verdict_of_process(pid, None) {
            // Our own number, but not our lock, or we would not have come here: the table is in front.
            Verdict::Alive(_) if pid == own_pid() => self.doubtful(found, identity),
            Verdict::Dead(_) if sees_all => JudgedUpload::Dead(found),
            Verdict::Dead(_) => self.doubtful(found, identity),
            verdict => self.held(Some(found), identity, verdict),
        }
    }

    /// U13.4: not a lock to any reader, unless it is just being written.
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

/// U13.1: what cannot be opened is refused, or held by somebody unknown where only permission is
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

/// A lock that looked dead and whose kernel lock somebody has all the same.
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
