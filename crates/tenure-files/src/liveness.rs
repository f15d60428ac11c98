//! Liveness check of a holder. The first rule of K10–K14 that applies decides, and every verdict
//! carries its proof.
//!
//! ```text
//!   flock (kernel) ──▶ boot id ──▶ process in our PID namespace ──▶ Unknown
//! ```
//!
//! Without proof the verdict is `Unknown`, never `Dead` (K3 (resolve doubt toward exclusion)).

use std::fmt;
use std::time::SystemTime;

use crate::clock::{SKEW, booted_at};
use crate::dir::Dir;
use crate::error::Result;
use crate::identity::{Here, Identity};
use crate::process::{Presence, may_run_in_another_namespace, presence};
use crate::record::OpenRecord;

/// The verdict on a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The holder runs.
    Alive(Proof),
    /// The holder no longer runs.
    Dead(Proof),
    /// Neither can be proven from this process.
    Unknown(Doubt),
}

/// The evidence of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The `flock` of the record (K10 (prove life by flock)).
    KernelLock,
    /// The process table (K12 (ask the kernel for the process)).
    Process,
    /// The process with this pid has another start time than the record (K12).
    PidReused,
    /// The record is from another boot of this machine (K11 (a different boot id)).
    OtherBoot,
    /// The record is damaged and unchanged since before this boot (K19 (durable records and torn
    /// records)).
    DamagedBeforeBoot,
    /// This process holds the lock.
    Ourselves,
}

/// Why nothing could be proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// The record is from another host, or on a file system that other hosts may write.
    OtherHost,
    /// Another PID namespace, and no usable `flock` (K14 (a different PID namespace)).
    OtherNamespace,
    /// The record lacks members that a proof needs.
    TooLittle,
    /// The record does not parse.
    Damaged,
    /// The record cannot be read.
    Unreadable,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Alive(Proof::KernelLock) => "alive (its kernel lock is held)",
            Verdict::Alive(Proof::Ourselves) => "alive (it is this process)",
            Verdict::Alive(_) => "alive (its process runs)",
            Verdict::Dead(Proof::KernelLock) => "dead (its kernel lock is free)",
            Verdict::Dead(Proof::PidReused) => "dead (its process id was given to another)",
            Verdict::Dead(Proof::OtherBoot) => "dead (the machine was restarted since)",
            Verdict::Dead(Proof::DamagedBeforeBoot) => "dead (damaged since before this boot)",
            Verdict::Dead(Proof::Process | Proof::Ourselves) => "dead (its process is gone)",
            Verdict::Unknown(Doubt::OtherHost) => "unknown (it may run on another host)",
            Verdict::Unknown(Doubt::OtherNamespace) => "unknown (it may run in another container)",
            Verdict::Unknown(Doubt::TooLittle) => "unknown (the record does not say enough)",
            Verdict::Unknown(Doubt::Damaged) => "unknown (the record does not parse)",
            Verdict::Unknown(Doubt::Unreadable) => "unknown (the record may not be read)",
        })
    }
}

/// Returns the verdict on a holder from its `tenure` block (K10–K14).
///
/// If the `flock` was free, `record` keeps it for the removal (K24 (lock before removal)).
///
/// # Errors
///
/// Returns an error only if `flock` itself fails.
pub fn verdict(
    identity: &Identity,
    record: &mut OpenRecord,
    dir: &Dir,
    here: &Here,
) -> Result<Verdict> {
    if is_same_flock(identity, dir) {
        let is_free = record.try_lock(dir)?;
        // A live holder has its flock whatever the boot ids say: a container may mount its own.
        if !is_free {
            return Ok(Verdict::Alive(Proof::KernelLock));
        }
        match (&identity.boot, &here.boot) {
            (Some(theirs), Some(ours)) if theirs == ours => {
                return Ok(Verdict::Dead(Proof::KernelLock));
            }
            (Some(_), Some(_)) => return Ok(Verdict::Dead(Proof::OtherBoot)),
            _ => {}
        }
    }
    let verdict = verdict_without_lock(identity, dir.is_local(), here);
    // Another boot id proves a restart only if the record is older than this boot.
    if verdict == Verdict::Dead(Proof::OtherBoot) && !changed_before(booted_at(), record) {
        return Ok(Verdict::Unknown(Doubt::OtherNamespace));
    }
    Ok(verdict)
}

/// Returns whether the judge's `flock` of the record and the holder's are the same lock (K10 (prove
/// life by flock)): the file system is local to both, and it is the same mount of it. The flock of a
/// file in an overlay is not that of the file below.
pub(crate) fn is_same_flock(identity: &Identity, dir: &Dir) -> bool {
    identity.flock == Some(true)
        && dir.is_local()
        // Records of earlier releases do not name the device.
        && identity.dev.is_none_or(|theirs| theirs == dir.device())
}

/// Returns the verdict without a `flock` test (K11–K14): for objects in a store, and for files
/// whose `flock` proves nothing.
pub fn verdict_without_lock(identity: &Identity, local: bool, here: &Here) -> Verdict {
    let is_our_host = identity
        .host
        .as_deref()
        .is_some_and(|host| here.is_host(host));
    let (Some(their_boot), Some(our_boot)) = (&identity.boot, &here.boot) else {
        return Verdict::Unknown(Doubt::TooLittle);
    };
    if their_boot != our_boot {
        // A different boot id is proof only if the holder wrote the record on this machine: the
        // file system is local now and was local to the holder.
        let was_local = identity.local.unwrap_or(is_our_host);
        return match local && was_local {
            true => Verdict::Dead(Proof::OtherBoot),
            false => Verdict::Unknown(Doubt::OtherHost),
        };
    }
    // Machines started from one snapshot share a boot id. Off a local file system the host name
    // must match, too (K12).
    if !local && !is_our_host {
        return Verdict::Unknown(Doubt::OtherHost);
    }
    match (identity.pidns, here.pidns) {
        (Some(theirs), Some(ours)) if theirs == ours => {}
        (Some(_), Some(_)) => return Verdict::Unknown(Doubt::OtherNamespace),
        _ => return Verdict::Unknown(Doubt::TooLittle),
    }
    match identity.pid {
        Some(pid) => verdict_of_process(pid, here.comparable_start(identity)),
        None => Verdict::Unknown(Doubt::TooLittle),
    }
}

/// Returns the verdict from pid and start time alone (K12, K13 zombie processes, K16 permission
/// denied means alive). The caller knows that the pid belongs to our PID namespace.
fn verdict_of_process(pid: u32, start: Option<u64>) -> Verdict {
    match presence(pid, start) {
        Presence::Running => Verdict::Alive(Proof::Process),
        Presence::Reused => Verdict::Dead(Proof::PidReused),
        Presence::Gone => Verdict::Dead(Proof::Process),
    }
}

/// Whether the caller vouches for the pids of originals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PidTrust {
    /// A missing process proves death if no process of another PID namespace has its pid there.
    #[default]
    Checked,
    /// No other container shares the directory: a missing process proves death.
    Trusted,
    /// Other containers share the directory: a missing process proves nothing.
    Foreign,
}

/// Returns the verdict on the process of an original's record, which names a pid but not its PID
/// namespace (K15 (records without a block)).
pub(crate) fn verdict_of_bare_pid(
    pid: u32,
    start: Option<u64>,
    trust: PidTrust,
    here: &Here,
) -> Verdict {
    let start = start.filter(|_| here.has_machine_clocks());
    let verdict = verdict_of_process(pid, start);
    let is_proof = || match trust {
        PidTrust::Trusted => true,
        PidTrust::Checked => !may_run_in_another_namespace(pid, start, here.pidns),
        PidTrust::Foreign => false,
    };
    match verdict {
        Verdict::Dead(_) if !is_proof() => Verdict::Unknown(Doubt::OtherNamespace),
        verdict => verdict,
    }
}

/// Returns whether a record that does not parse is older than this boot and its `flock` is free:
/// then its writer is dead (K19).
pub(crate) fn damaged_before_boot(record: &mut OpenRecord, dir: &Dir) -> Result<bool> {
    damaged_before(booted_at(), record, dir)
}

fn damaged_before(booted: Option<SystemTime>, record: &mut OpenRecord, dir: &Dir) -> Result<bool> {
    Ok(dir.is_local() && changed_before(booted, record) && record.try_lock(dir)?)
}

/// Whether the record last changed before the boot, by more than the skew allowance.
fn changed_before(booted: Option<SystemTime>, record: &OpenRecord) -> bool {
    let limit = booted.and_then(|booted| booted.checked_sub(SKEW));
    limit.is_some_and(|limit| record.changed() < limit)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;

    use rustix::fs::{FlockOperation, flock};

    use super::*;
    use crate::identity::Token;

    struct Place {
        temp: tempfile::TempDir,
        dir: Dir,
    }

    fn place() -> Place {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("r"), b"{}").unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        assert!(
            dir.is_local(),
            "these tests need a local temporary directory"
        );
        Place { temp, dir }
    }

    impl Place {
        fn record(&self) -> OpenRecord {
            OpenRecord::open(&self.dir, OsStr::new("r"), 100)
                .unwrap()
                .unwrap()
        }
        fn judge(&self, identity: &Identity) -> Verdict {
            verdict(identity, &mut self.record(), &self.dir, &Here::now()).unwrap()
        }
    }

    fn without_flock() -> Identity {
        Identity {
            flock: Some(false),
            ..Identity::own(Token::random(), true)
        }
    }

    fn dead_pid() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    /// K10: the flock decides, whatever the pid says, and is kept for the removal.
    #[test]
    fn the_kernel_lock_decides_before_the_pid() {
        let place = place();
        let dead = Identity {
            pid: Some(dead_pid()),
            ..Identity::own(Token::random(), true)
        };
        let holder = std::fs::File::open(place.temp.path().join("r")).unwrap();
        flock(&holder, FlockOperation::LockExclusive).unwrap();
        assert_eq!(place.judge(&dead), Verdict::Alive(Proof::KernelLock));
        // Unlock instead of close: a child that another test starts right now shares the open file.
        flock(&holder, FlockOperation::Unlock).unwrap();

        let alive = Identity::own(Token::random(), true);
        let mut record = place.record();
        let here = Here::now();
        let judged = verdict(&alive, &mut record, &place.dir, &here).unwrap();
        assert_eq!(judged, Verdict::Dead(Proof::KernelLock));
        assert!(record.is_locked());
    }

    /// K10 needs our boot and a local file system; K31: elsewhere the flock proves nothing.
    #[test]
    fn the_kernel_lock_proves_nothing_elsewhere() {
        let place = place();
        let here = Here::now();
        let remote = Dir::open(place.temp.path()).unwrap().assume_remote();
        let own = Identity::own(Token::random(), true);
        let judged = verdict(&own, &mut place.record(), &remote, &here).unwrap();
        assert_eq!(judged, Verdict::Alive(Proof::Process));
    }

    /// K11: another boot id proves death only if the file system is local to both sides.
    #[test]
    fn another_boot_is_dead_only_on_a_local_disk() {
        let here = Here::now();
        let other = Identity {
            boot: Some("00000000-0000".into()),
            ..without_flock()
        };
        let judge = |identity: &Identity, local| verdict_without_lock(identity, local, &here);
        assert_eq!(judge(&other, true), Verdict::Dead(Proof::OtherBoot));
        assert_eq!(judge(&other, false), Verdict::Unknown(Doubt::OtherHost));

        let exported = Identity {
            local: Some(false),
            ..other.clone()
        };
        assert_eq!(judge(&exported, true), Verdict::Unknown(Doubt::OtherHost));
        let unsaid = Identity {
            local: None,
            ..other
        };
        assert_eq!(judge(&unsaid, true), Verdict::Dead(Proof::OtherBoot));
        let unsaid_elsewhere = Identity {
            host: Some("elsewhere".into()),
            ..unsaid
        };
        assert_eq!(
            judge(&unsaid_elsewhere, true),
            Verdict::Unknown(Doubt::OtherHost)
        );
    }

    /// K11: another boot id does not prove a restart if the record was written in this boot: a
    /// container may mount its own. The flock decides if the record claims one.
    #[test]
    fn another_boot_id_in_this_boot_proves_no_restart() {
        let place = place();
        let other = Identity {
            boot: Some("00000000-0000".into()),
            ..without_flock()
        };
        assert_eq!(place.judge(&other), Verdict::Unknown(Doubt::OtherNamespace));
        let locked = Identity {
            flock: Some(true),
            ..other
        };
        let holder = std::fs::File::open(place.temp.path().join("r")).unwrap();
        flock(&holder, FlockOperation::LockExclusive).unwrap();
        assert_eq!(place.judge(&locked), Verdict::Alive(Proof::KernelLock));
        flock(&holder, FlockOperation::Unlock).unwrap();
        assert_eq!(place.judge(&locked), Verdict::Dead(Proof::OtherBoot));
    }

    /// K10: the flock of another mount of the directory proves nothing; the process decides.
    #[test]
    fn the_kernel_lock_of_another_device_proves_nothing() {
        let place = place();
        let elsewhere = Identity {
            dev: Some(place.dir.device() + 1),
            ..Identity::own(Token::random(), true)
        };
        assert_eq!(place.judge(&elsewhere), Verdict::Alive(Proof::Process));
        let here = Identity {
            dev: Some(place.dir.device()),
            ..elsewhere
        };
        assert_eq!(place.judge(&here), Verdict::Dead(Proof::KernelLock));
    }

    /// K12: start times are compared only within one time namespace.
    #[test]
    fn start_times_of_another_clock_are_not_compared() {
        let place = place();
        let shifted = Identity {
            start: Some(1),
            timens: Some(1),
            ..without_flock()
        };
        assert_eq!(place.judge(&shifted), Verdict::Alive(Proof::Process));
    }

    /// K12: process table and start time, in our boot and namespace.
    #[test]
    fn the_process_table_decides_in_our_namespace() {
        let place = place();
        let own = without_flock();
        assert_eq!(place.judge(&own), Verdict::Alive(Proof::Process));
        let reused = Identity {
            start: own.start.map(|start| start + 1),
            ..own.clone()
        };
        assert_eq!(place.judge(&reused), Verdict::Dead(Proof::PidReused));
        let dead = Identity {
            pid: Some(dead_pid()),
            start: None,
            ..own
        };
        assert_eq!(place.judge(&dead), Verdict::Dead(Proof::Process));
    }

    /// K12: off a local file system an equal boot id is not enough.
    #[test]
    fn clones_of_one_snapshot_are_told_apart_by_name() {
        let here = Here::now();
        let own = without_flock();
        assert_eq!(
            verdict_without_lock(&own, false, &here),
            Verdict::Alive(Proof::Process)
        );
        let clone = Identity {
            host: Some("clone".into()),
            ..own
        };
        assert_eq!(
            verdict_without_lock(&clone, false, &here),
            Verdict::Unknown(Doubt::OtherHost)
        );
    }

    /// K14, K9 (missing identity members), K3: another namespace or missing members prove nothing.
    #[test]
    fn another_namespace_is_unknown() {
        let place = place();
        let other = Identity {
            pidns: Some(1),
            ..without_flock()
        };
        assert_eq!(place.judge(&other), Verdict::Unknown(Doubt::OtherNamespace));
        let silent = Identity {
            pidns: None,
            ..without_flock()
        };
        assert_eq!(place.judge(&silent), Verdict::Unknown(Doubt::TooLittle));
        assert_eq!(
            place.judge(&Identity::default()),
            Verdict::Unknown(Doubt::TooLittle)
        );
    }

    /// K19: damage from before the boot means dead. A writer may still be at work if the damage is
    /// younger, within the clock skew, under a held flock, or on a network.
    #[test]
    fn damage_is_dead_only_from_before_the_boot() {
        let place = place();
        let changed = place.record().changed();
        let damaged = |booted, dir: &Dir| damaged_before(booted, &mut place.record(), dir).unwrap();
        let later = Some(changed + 2 * SKEW);
        assert!(damaged(later, &place.dir));
        assert!(!damaged(Some(changed + SKEW / 2), &place.dir));
        assert!(!damaged(None, &place.dir));
        assert!(!damaged_before_boot(&mut place.record(), &place.dir).unwrap());
        assert!(!damaged(
            later,
            &Dir::open(place.temp.path()).unwrap().assume_remote()
        ));
        let holder = std::fs::File::open(place.temp.path().join("r")).unwrap();
        flock(&holder, FlockOperation::LockExclusive).unwrap();
        assert!(!damaged(later, &place.dir));
    }
}
