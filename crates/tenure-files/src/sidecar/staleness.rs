//! Staleness of a sidecar lock (S19 (order of sidecar tests)): proof of life or death first, then
//! the caller's `should_reclaim` or the age.
//!
//! This module removes nothing. Its result says what the caller may do, and why.

use std::time::{Duration, SystemTime};

use super::held_table;
use super::lock_path::LockPaths;
use super::options::{Options, Payload, ReclaimCandidate, StaleCandidate, StalePolicy};
use super::payload::{LIMIT, created_at};
use crate::clock::age;
use crate::error::{BlockingHolder, Class, Error, Result};
use crate::identity::{Here, Identity};
use crate::liveness::{
    Doubt, PidTrust, Proof, Verdict, damaged_before_boot, verdict, verdict_of_bare_pid,
};
use crate::process::valid_pid;
use crate::record::OpenRecord;
use crate::record_layout::parse_object;

/// A judged lock.
#[derive(Debug)]
pub(super) struct JudgedSidecar {
    pub(super) ruling: StalenessRuling,
    pub(super) blocker: BlockingHolder,
    /// The open record; it has the `flock` if that was the proof. `None` if it cannot be read.
    pub(super) record: Option<OpenRecord>,
    pub(super) identity: Option<Identity>,
}

/// The result of S19.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StalenessRuling {
    /// Held, or neither proven dead nor stale.
    Wait,
    /// Cannot be read: wait, and report this class in the end.
    Unreadable,
    /// Proven dead, or stale and approved.
    Reclaim,
    /// Stale, or proven dead under [`StalePolicy::Never`], and its removal is not approved.
    Stale,
}

/// Judges the file `name`. `None` if it vanished (S20 (vanished is not stale)); an error means
/// refuse immediately.
pub(super) fn judge(
    paths: &LockPaths,
    name: &std::ffi::OsStr,
    options: &Options,
    here: &Here,
) -> Result<Option<JudgedSidecar>> {
    let mut record = match OpenRecord::open(&paths.dir, name, LIMIT) {
        Ok(Some(record)) => record,
        Ok(None) => return Ok(None),
        Err(error) if error.class() == Class::Unreadable => {
            return Ok(Some(unreadable(paths)));
        }
        Err(error) => return Err(error),
    };
    let payload = parse_object(record.bytes());
    let identity = payload.as_ref().and_then(Identity::in_record);
    let verdict = proof(
        paths,
        &mut record,
        payload.as_ref(),
        identity.as_ref(),
        options,
        here,
    )?;
    let is_ours = identity
        .as_ref()
        .and_then(|identity| identity.token.as_deref());
    // A manager with another key may hold it.
    let held_by_this_process = is_ours.is_some_and(held_table::has_token);

    // Proof decides first. The callback and the age count only if the holder is not proven dead and
    // no `tenure` block proves it alive.
    let ruling = match verdict {
        Verdict::Dead(_) => match options.recovery {
            StalePolicy::Never => StalenessRuling::Stale,
            StalePolicy::FailClosed | StalePolicy::RemoveIfUnchanged => StalenessRuling::Reclaim,
        },
        // `should_reclaim` is not asked if the `tenure` block proves a live holder (stricter than
        // the original).
        Verdict::Alive(_) if identity.is_some() => StalenessRuling::Wait,
        Verdict::Alive(_) | Verdict::Unknown(_) => {
            let now = options.clock.now_in(&paths.dir)?;
            let suspect = StaleCandidate {
                lock_path: &paths.lock_path,
                target: &paths.target,
                payload: payload.as_ref(),
                stale: options.stale,
                now,
                held_by_this_process,
            };
            match is_stale(&suspect, record.modified(), options) {
                false => StalenessRuling::Wait,
                true => stale_ruling(&suspect, record.bytes(), options),
            }
        }
    };
    let blocker = blocker(
        paths,
        payload.as_ref(),
        identity.as_ref(),
        record.modified(),
        verdict,
    );
    Ok(Some(JudgedSidecar {
        ruling,
        blocker,
        record: Some(record),
        identity,
    }))
}

/// Steps 1 to 3 of S19: proof of life or death.
fn proof(
    paths: &LockPaths,
    record: &mut OpenRecord,
    payload: Option<&Payload>,
    identity: Option<&Identity>,
    options: &Options,
    here: &Here,
) -> Result<Verdict> {
    let Some(payload) = payload else {
        return Ok(match damaged_before_boot(record, &paths.dir)? {
            true => Verdict::Dead(Proof::DamagedBeforeBoot),
            false => Verdict::Unknown(Doubt::Damaged),
        });
    };
    if let Some(identity) = identity {
        return verdict(identity, record, &paths.dir, here);
    }
    let Some(pid) = payload
        .get("pid")
        .and_then(serde_json::Value::as_i64)
        .and_then(valid_pid)
    else {
        return Ok(Verdict::Unknown(Doubt::TooLittle));
    };
    let trust = match options.trust_pid {
        true => PidTrust::Trusted,
        false => PidTrust::Checked,
    };
    let may_ask = match host_of(payload) {
        Some(host) => here.is_host(host),
        // The pid may belong to another machine; only the caller can know that it does not.
        None => options.trust_pid,
    };
    if !may_ask || !paths.dir.is_local() {
        return Ok(Verdict::Unknown(Doubt::OtherHost));
    }
    let start = payload.get("starttime").and_then(serde_json::Value::as_u64);
    Ok(verdict_of_bare_pid(pid, start, trust, here))
}

/// Step 4 of S19: `should_reclaim`, else the age by `createdAt`, else by the modification time.
fn is_stale(suspect: &StaleCandidate<'_>, modified: SystemTime, options: &Options) -> bool {
    if let Some(should_reclaim) = &options.should_reclaim {
        return should_reclaim(suspect);
    }
    let since = suspect.payload.and_then(created_at).unwrap_or(modified);
    suspect
        .stale
        .is_some_and(|stale| age(suspect.now, since) > stale)
}

fn stale_ruling(suspect: &StaleCandidate<'_>, bytes: &[u8], options: &Options) -> StalenessRuling {
    if options.recovery != StalePolicy::RemoveIfUnchanged {
        return StalenessRuling::Stale;
    }
    let approved = match (&options.approve, &options.should_reclaim) {
        (Some(approve), _) => approve(&ReclaimCandidate {
            lock_path: suspect.lock_path,
            target: suspect.target,
            bytes,
            payload: suspect.payload,
        }),
        // `should_reclaim` said yes, and there is no separate approval callback.
        (None, Some(_)) => true,
        (None, None) => false,
    };
    if approved {
        StalenessRuling::Reclaim
    } else {
        StalenessRuling::Stale
    }
}

fn host_of(payload: &Payload) -> Option<&str> {
    ["host", "hostname"]
        .iter()
        .find_map(|name| payload.get(*name)?.as_str())
}

fn unreadable(paths: &LockPaths) -> JudgedSidecar {
    let verdict = Verdict::Unknown(Doubt::Unreadable);
    let blocker = BlockingHolder {
        address: paths.address(),
        pid: None,
        host: None,
        name: None,
        token: None,
        since: None,
        verdict,
    };
    JudgedSidecar {
        ruling: StalenessRuling::Unreadable,
        blocker,
        record: None,
        identity: None,
    }
}

fn blocker(
    paths: &LockPaths,
    payload: Option<&Payload>,
    identity: Option<&Identity>,
    modified: SystemTime,
    verdict: Verdict,
) -> BlockingHolder {
    let text = |name: &str| payload.and_then(|payload| payload.get(name)?.as_str());
    let pid = identity.and_then(|identity| identity.pid).or_else(|| {
        payload?
            .get("pid")
            .and_then(serde_json::Value::as_i64)
            .and_then(valid_pid)
    });
    let acquired = text("acquiredAt").and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let since = acquired
        .map(SystemTime::from)
        .or_else(|| payload.and_then(created_at));
    BlockingHolder {
        address: paths.address(),
        pid,
        host: payload.and_then(host_of).map(str::to_owned),
        name: text("purpose").map(str::to_owned),
        token: identity.and_then(|identity| identity.token.clone()),
        since: since.or(Some(modified)),
        verdict,
    }
}

/// Returns the timeout error, with the fixed text of the original (S29 (fixed error codes)).
pub(super) fn timeout(paths: &LockPaths, class: Class, blocker: Option<BlockingHolder>) -> Error {
    let what = format!("file lock timeout for {}", paths.target.display());
    add_blocker(Error::new(class, &paths.lock_path, what), blocker)
}

/// Returns the stale error, with the fixed text of the original (S29).
pub(super) fn stale(
    paths: &LockPaths,
    blocker: BlockingHolder,
    stale_after: Option<Duration>,
) -> Error {
    let what = format!("file lock stale for {}", paths.target.display());
    let error = Error::new(Class::Stale, &paths.lock_path, what);
    let address = blocker.address.clone();
    let after = stale_after
        .map(|after| format!(" (older than {after:?})"))
        .unwrap_or_default();
    add_blocker(error, Some(blocker)).next(format!(
        "its removal was not approved{after}; to remove it: tenure break {address}"
    ))
}

fn add_blocker(error: Error, blocker: Option<BlockingHolder>) -> Error {
    match blocker {
        Some(blocker) => error.blocked_by(blocker),
        None => error,
    }
}

/// Returns the original's error code for a class (S29).
pub fn peer_code(class: Class) -> Option<&'static str> {
    match class {
        Class::Timeout => Some("file_lock_timeout"),
        Class::Stale => Some("file_lock_stale"),
        Class::NotALock => Some("not-file"),
        Class::TooLarge => Some("too-large"),
        _ => None,
    }
}
