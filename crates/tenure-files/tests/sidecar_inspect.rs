//! Inspecting and breaking sidecar locks (S30 sidecar address and verbs, K30 keep files that are no
//! records, C16 details of codes and break).

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tenure_files::sidecar::{
    Force, GuardState, Manager, Options, break_guard, break_lock, inspect, list,
};
use tenure_files::{Class, Decision};
use tenure_files::{Proof, Verdict};
use tenure_testkit::set_modified;

struct InspectFixture {
    temp: tempfile::TempDir,
    target: PathBuf,
    lock: PathBuf,
    guard: PathBuf,
}

impl InspectFixture {
    fn new() -> InspectFixture {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().canonicalize().unwrap().join("state.json");
        InspectFixture {
            lock: target.with_file_name("state.json.lock"),
            guard: target.with_file_name("state.json.lock.reclaim"),
            target,
            temp,
        }
    }
    fn options(&self) -> Options {
        Options::new(&self.target)
    }
    fn old_lock(&self) {
        std::fs::write(&self.lock, "{}").unwrap();
        set_modified(&self.lock, SystemTime::now() - Duration::from_secs(600));
    }
}

/// S30, K1: `why` names holder, verdict and decision, and changes nothing.
#[test]
fn looking_names_the_holder_and_changes_nothing() {
    let fixture = InspectFixture::new();
    let state = inspect(&fixture.options()).unwrap();
    assert!(state.lock.is_none() && state.guard.is_none());
    assert_eq!(state.decision(), Decision::Proceed);
    assert_eq!(state.heartbeat, Some(Duration::from_secs(10)));

    let guard = Manager::new("i").acquire(&fixture.options()).unwrap();
    let state = inspect(&fixture.options()).unwrap();
    assert_eq!(state.decision(), Decision::Wait);
    let lock = state.lock.unwrap();
    assert_eq!(lock.blocker.pid, Some(std::process::id()));
    assert_eq!(lock.blocker.verdict, Verdict::Alive(Proof::KernelLock));
    assert_eq!(lock.blocker.token, Some(guard.token().to_string()));
    assert_eq!(lock.class, Some(Class::Held));
    guard.verify_still_held().unwrap();
    guard.leave();

    let lock = inspect(&fixture.options()).unwrap().lock.unwrap();
    assert_eq!(lock.decision, Decision::Reclaim);
    assert!(fixture.lock.exists());
    fixture.old_lock();
    let lock = inspect(&fixture.options()).unwrap().lock.unwrap();
    assert_eq!(
        (lock.decision, lock.class),
        (Decision::Refuse, Some(Class::Stale))
    );
    assert!(lock.modified_ago.unwrap() >= Duration::from_secs(600));
}

/// S22 (guards of crashed reclaimers), S30: each kind of guard is recognized; `break --guard`
/// removes an unlocked one.
#[test]
fn guards_are_shown_and_taken_down() {
    let fixture = InspectFixture::new();
    std::fs::create_dir(&fixture.guard).unwrap();
    let state = inspect(&fixture.options()).unwrap();
    assert!(matches!(state.guard, Some(GuardState::Foreign { .. })));
    assert_eq!(state.decision(), Decision::Wait);
    let alive = std::fs::File::open(&fixture.guard).unwrap();
    alive.lock().unwrap();
    assert_eq!(
        inspect(&fixture.options()).unwrap().guard,
        Some(GuardState::Locked)
    );
    assert!(!break_guard(&fixture.options()).unwrap());
    drop(alive);
    assert!(break_guard(&fixture.options()).unwrap());
    assert!(!fixture.guard.exists());
    assert!(!break_guard(&fixture.options()).unwrap());
}

/// S30, C16: without force only dead and stale locks are broken; with force also live ones, and the
/// fence grows.
#[test]
fn breaking_a_live_lock_needs_force() {
    let fixture = InspectFixture::new();
    let gone = break_lock(&fixture.options(), Force::Yes, None);
    assert_eq!(gone.unwrap_err().class(), Class::NotHeld);
    fixture.old_lock();
    break_lock(&fixture.options(), Force::No, None).unwrap();
    assert!(!fixture.lock.exists());

    let guard = Manager::new("b")
        .acquire(&fixture.options().fence())
        .unwrap();
    let refused = break_lock(&fixture.options(), Force::No, None).unwrap_err();
    assert_eq!(refused.class(), Class::Held);
    assert!(refused.to_string().contains("--force"), "{refused}");
    let other = break_lock(&fixture.options(), Force::Yes, Some("another token"));
    assert_eq!(other.unwrap_err().class(), Class::NotHeld);
    let token = guard.token().to_string();
    let broken = break_lock(&fixture.options(), Force::Yes, Some(&token)).unwrap();
    assert!(broken.fence > guard.fence());
    assert_eq!(broken.blocker.unwrap().token, Some(token));
    assert_eq!(
        guard.verify_still_held().unwrap_err().class(),
        Class::Compromised
    );
}

/// K30: a file that cannot be a lock is removed only by force, a directory never.
#[test]
fn what_cannot_be_a_lock_goes_only_by_force() {
    let fixture = InspectFixture::new();
    std::fs::write(&fixture.lock, vec![b'x'; 1_048_577]).unwrap();
    let refused = break_lock(&fixture.options(), Force::No, None);
    assert_eq!(refused.unwrap_err().class(), Class::TooLarge);
    assert!(fixture.lock.exists());
    break_lock(&fixture.options(), Force::Yes, None).unwrap();
    assert!(!fixture.lock.exists());
    std::os::unix::fs::symlink("nowhere", &fixture.lock).unwrap();
    break_lock(&fixture.options(), Force::Yes, None).unwrap();
    assert!(fixture.lock.symlink_metadata().is_err());
    std::fs::create_dir(&fixture.lock).unwrap();
    let refused = break_lock(&fixture.options(), Force::Yes, None);
    assert_eq!(refused.unwrap_err().class(), Class::NotALock);
    assert!(fixture.lock.is_dir());
}

/// `ls`: the targets that have a lock.
#[test]
fn locks_are_listed_by_target() {
    let fixture = InspectFixture::new();
    std::fs::write(&fixture.target, "{}").unwrap();
    assert!(list(fixture.temp.path()).unwrap().is_empty());
    let guard = Manager::new("l").acquire(&fixture.options()).unwrap();
    std::fs::create_dir(fixture.temp.path().join("directory.lock")).unwrap();
    assert_eq!(
        list(fixture.target.parent().unwrap()).unwrap(),
        std::slice::from_ref(&fixture.target)
    );
    guard.release().unwrap();
}
