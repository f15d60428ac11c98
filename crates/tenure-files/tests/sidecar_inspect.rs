//! Looking at sidecar locks and breaking them (S30, K30, C16).

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

mod common;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use common::set_modified;
use tenure_files::liveness::{Proof, Verdict};
use tenure_files::sidecar::{
    Force, GuardState, Manager, Options, break_guard, break_lock, inspect, list,
};
use tenure_files::{Class, Decision};

struct Place {
    temp: tempfile::TempDir,
    target: PathBuf,
    lock: PathBuf,
    guard: PathBuf,
}

impl Place {
    fn new() -> Place {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().canonicalize().unwrap().join("state.json");
        Place {
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
    let place = Place::new();
    let state = inspect(&place.options()).unwrap();
    assert!(state.lock.is_none() && state.guard.is_none());
    assert_eq!(state.decision(), Decision::Proceed);
    assert_eq!(state.heartbeat, Some(Duration::from_secs(10)));

    let guard = Manager::new("i").acquire(&place.options()).unwrap();
    let state = inspect(&place.options()).unwrap();
    assert_eq!(state.decision(), Decision::Wait);
    let lock = state.lock.unwrap();
    assert_eq!(lock.blocker.pid, Some(std::process::id()));
    assert_eq!(lock.blocker.verdict, Verdict::Alive(Proof::KernelLock));
    assert_eq!(lock.blocker.token, Some(guard.token().to_string()));
    assert_eq!(lock.class, Some(Class::Held));
    guard.verify_still_held().unwrap();
    guard.leave();

    let lock = inspect(&place.options()).unwrap().lock.unwrap();
    assert_eq!(lock.decision, Decision::Reclaim);
    assert!(place.lock.exists());
    place.old_lock();
    let lock = inspect(&place.options()).unwrap().lock.unwrap();
    assert_eq!(
        (lock.decision, lock.class),
        (Decision::Refuse, Some(Class::Stale))
    );
    assert!(lock.modified_ago.unwrap() >= Duration::from_secs(600));
}

/// S22, S30: guards are shown for what they are; `break --guard` takes down an unlocked one.
#[test]
fn guards_are_shown_and_taken_down() {
    let place = Place::new();
    std::fs::create_dir(&place.guard).unwrap();
    let state = inspect(&place.options()).unwrap();
    assert!(matches!(state.guard, Some(GuardState::Foreign { .. })));
    assert_eq!(state.decision(), Decision::Wait);
    let alive = std::fs::File::open(&place.guard).unwrap();
    alive.lock().unwrap();
    assert_eq!(
        inspect(&place.options()).unwrap().guard,
        Some(GuardState::Locked)
    );
    assert!(!break_guard(&place.options()).unwrap());
    drop(alive);
    assert!(break_guard(&place.options()).unwrap());
    assert!(!place.guard.exists());
    assert!(!break_guard(&place.options()).unwrap());
}

/// S30, C16: without force only the dead and the stale; with force also the living, and the fence
/// rises.
#[test]
fn breaking_a_live_lock_needs_force() {
    let place = Place::new();
    let gone = break_lock(&place.options(), Force::Yes, None);
    assert_eq!(gone.unwrap_err().class(), Class::NotHeld);
    place.old_lock();
    break_lock(&place.options(), Force::No, None).unwrap();
    assert!(!place.lock.exists());

    let guard = Manager::new("b").acquire(&place.options().fence()).unwrap();
    let refused = break_lock(&place.options(), Force::No, None).unwrap_err();
    assert_eq!(refused.class(), Class::Held);
    assert!(refused.to_string().contains("--force"), "{refused}");
    let other = break_lock(&place.options(), Force::Yes, Some("another token"));
    assert_eq!(other.unwrap_err().class(), Class::NotHeld);
    let token = guard.token().to_string();
    let broken = break_lock(&place.options(), Force::Yes, Some(&token)).unwrap();
    assert!(broken.fence > guard.fence());
    assert_eq!(broken.blocker.unwrap().token, Some(token));
    assert_eq!(
        guard.verify_still_held().unwrap_err().class(),
        Class::Compromised
    );
}

/// K30: what cannot be a lock goes only by force, and a directory not at all.
#[test]
fn what_cannot_be_a_lock_goes_only_by_force() {
    let place = Place::new();
    std::fs::write(&place.lock, vec![b'x'; 1_048_577]).unwrap();
    let refused = break_lock(&place.options(), Force::No, None);
    assert_eq!(refused.unwrap_err().class(), Class::TooLarge);
    assert!(place.lock.exists());
    break_lock(&place.options(), Force::Yes, None).unwrap();
    assert!(!place.lock.exists());
    std::os::unix::fs::symlink("nowhere", &place.lock).unwrap();
    break_lock(&place.options(), Force::Yes, None).unwrap();
    assert!(place.lock.symlink_metadata().is_err());
    std::fs::create_dir(&place.lock).unwrap();
    let refused = break_lock(&place.options(), Force::Yes, None);
    assert_eq!(refused.unwrap_err().class(), Class::NotALock);
    assert!(place.lock.is_dir());
}

/// `ls`: the targets that have a lock.
#[test]
fn locks_are_listed_by_target() {
    let place = Place::new();
    std::fs::write(&place.target, "{}").unwrap();
    assert!(list(place.temp.path()).unwrap().is_empty());
    let guard = Manager::new("l").acquire(&place.options()).unwrap();
    std::fs::create_dir(place.temp.path().join("directory.lock")).unwrap();
    assert_eq!(
        list(place.target.parent().unwrap()).unwrap(),
        std::slice::from_ref(&place.target)
    );
    guard.release().unwrap();
}
