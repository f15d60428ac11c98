//! Staleness of an exclusive lock: whether there is a lock, and whether its holder is alive (X12
//! (order of exclusive tests)).
//!
//! ```text
//!   no file ──▶ Free
//!   record  ──▶ holder proven dead ──▶ Dead        remove it safely, proceed
//!           └─▶ alive, or not provable ──▶ Held    leave it
//!   anything else ──▶ Problem                      leave it, and report what it is
//! ```
//!
//! Server and tool use the same tests; they differ only in what they do with the result.

use std::ffi::OsStr;
use std::time::SystemTime;

use super::record::{self, ExclusiveRecord, RecordError};
use super::{FILE_NAME, StalenessRules};
use crate::dir::Dir;
use crate::error::{BlockingHolder, Class, Error, Result};
use crate::identity::{Here, Identity};
use crate::liveness::{self, Doubt, Verdict};
use crate::record::OpenRecord as Found;

/// The result of one check. The file stays open, so that a later removal concerns exactly this file
/// (K22 (keep the judged file open)).
#[derive(Debug)]
pub(super) enum JudgedLock {
    Free,
    Dead {
        found: Found,
        blocker: BlockingHolder,
    },
    Held {
        found: Found,
        blocker: BlockingHolder,
        by: Box<Identity>,
        class: Class,
    },
    Problem {
        found: Option<Found>,
        error: Error,
    },
}

/// Judges the lock in `dir`. A file that cannot be a lock is a `Problem`; an error is returned only
/// if the tests themselves fail, for example `flock`.
pub(super) fn judge(dir: &Dir, judging: &StalenessRules) -> Result<JudgedLock> {
    let name = OsStr::new(FILE_NAME);
    let mut found = match Found::open(dir, name, record::LIMIT) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(JudgedLock::Free),
        Err(error) if error.class() == Class::TooLarge => {
            let problem = RecordError::too_large();
            let error = Error::new(Class::Malformed, dir.join(name), problem.to_string());
            return Ok(JudgedLock::Problem { found: None, error });
        }
        Err(error) => return Ok(JudgedLock::Problem { found: None, error }),
    };
    match ExclusiveRecord::parse(found.bytes()) {
        Ok(record) => {
            let verdict = verdict(&record, &mut found, dir, judging)?;
            let blocker = blocker(&record, dir, verdict);
            let class = match verdict {
                Verdict::Dead(_) => return Ok(JudgedLock::Dead { found, blocker }),
                Verdict::Alive(_) => Class::Held,
                Verdict::Unknown(_) => Class::Foreign,
            };
            let by = Box::new(by(record, verdict));
            Ok(JudgedLock::Held {
                found,
                blocker,
                by,
                class,
            })
        }
        Err(problem) => damaged(problem, found, dir),
    }
}

/// The `tenure` block decides if it agrees with the other fields; otherwise the pid alone.
fn verdict(
    record: &ExclusiveRecord,
    found: &mut Found,
    dir: &Dir,
    judging: &StalenessRules,
) -> Result<Verdict> {
    let here = Here::now();
    match record
        .tenure
        .as_ref()
        .filter(|identity| agrees(record, identity))
    {
        Some(identity) => liveness::verdict(identity, found, dir, &here),
        None => Ok(verdict_of_original(record, dir, judging, &here)),
    }
}

/// Returns the holder whose end a waiter can watch: that of the block, or the bare pid if the
/// process is known to run here.
fn by(record: ExclusiveRecord, verdict: Verdict) -> Identity {
    let bare = Identity {
        pid: Some(record.pid),
        ..Identity::default()
    };
    match (
        record
            .tenure
            .clone()
            .filter(|identity| agrees(&record, identity)),
        verdict,
    ) {
        (Some(identity), _) => identity,
        (None, Verdict::Alive(_)) => bare,
        (None, _) => Identity::default(),
    }
}

/// Whether the block names the same process as the other fields. If not, it was edited or copied,
/// and proves nothing about the lock (X12.3).
fn agrees(record: &ExclusiveRecord, identity: &Identity) -> bool {
    identity.pid == Some(record.pid)
        && identity
            .host
            .as_ref()
            .is_some_and(|host| host.eq_ignore_ascii_case(&record.hostname))
}

/// X8 (dead holder on this host) and X12.4: a missing process proves death only on this host, and
/// only if no other machine or container can have a process with that pid and host name.
fn verdict_of_original(
    record: &ExclusiveRecord,
    dir: &Dir,
    judging: &StalenessRules,
    here: &Here,
) -> Verdict {
    if !here.is_host(&record.hostname) || !dir.is_local() {
        return Verdict::Unknown(Doubt::OtherHost);
    }
    liveness::verdict_of_bare_pid(record.pid, None, judging.pids, here)
}

/// Reports a damaged record and leaves it, unless it was torn by a crash of the machine (K19
/// (durable records and torn records)).
fn damaged(problem: RecordError, mut found: Found, dir: &Dir) -> Result<JudgedLock> {
    let torn = matches!(problem, RecordError::Malformed(_));
    if torn && liveness::damaged_before_boot(&mut found, dir)? {
        let blocker = BlockingHolder {
            verdict: Verdict::Dead(liveness::Proof::DamagedBeforeBoot),
            ..unknown_blocker(dir)
        };
        return Ok(JudgedLock::Dead { found, blocker });
    }
    let error =
        Error::new(Class::Malformed, dir.join(FILE_NAME), problem.to_string()).next(format!(
            "look at it; to remove it: tenure break --force {}",
            address(dir)
        ));
    Ok(JudgedLock::Problem {
        found: Some(found),
        error,
    })
}

fn blocker(record: &ExclusiveRecord, dir: &Dir, verdict: Verdict) -> BlockingHolder {
    BlockingHolder {
        pid: Some(record.pid),
        host: Some(record.hostname.clone()),
        name: Some(record.holder.clone()),
        token: record
            .tenure
            .as_ref()
            .and_then(|identity| identity.token.clone()),
        since: Some(SystemTime::from(record.started)),
        verdict,
        ..unknown_blocker(dir)
    }
}

fn unknown_blocker(dir: &Dir) -> BlockingHolder {
    BlockingHolder {
        address: address(dir),
        pid: None,
        host: None,
        name: None,
        token: None,
        since: None,
        verdict: Verdict::Unknown(Doubt::Damaged),
    }
}

/// Returns the address that a user types for the lock in `dir` (X22 (exclusive address and verbs)).
pub(super) fn address(dir: &Dir) -> String {
    format!("exclusive:{}", dir.path().display())
}
