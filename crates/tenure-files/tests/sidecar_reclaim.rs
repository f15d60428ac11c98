//! Staleness and reclaim of sidecar locks: vanished, dead, stale, guarded and displaced (S19–S22).

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tenure_files::Class;
use tenure_files::sidecar::RemovalStep;
use tenure_files::sidecar::{AcquireStep, Options, Retry, StalePolicy};
use tenure_testkit::sidecar::{SidecarFixture, at, class, manager};
use tenure_testkit::{LiveProcess, dead_pid, set_modified};

/// S20: a lock that vanishes while it is judged is not stale: the next attempt starts and is
/// counted.
#[test]
fn a_vanished_lock_is_not_stale() {
    let fixture = SidecarFixture::new();
    let vanishing = |retries| {
        std::fs::write(&fixture.lock, "{}").unwrap();
        let lock = fixture.lock.clone();
        let retry = Retry {
            retries: Some(retries),
            min_timeout: Duration::from_secs(3600),
            max_timeout: Duration::from_secs(3600),
            ..Retry::default()
        };
        fixture
            .options()
            .retry(retry)
            .should_reclaim(|_| panic!("there is nothing to judge"))
            .pause(at(AcquireStep::Taken, move || {
                std::fs::remove_file(&lock).unwrap()
            }))
    };
    // Immediately: the next scheduled attempt would be in an hour.
    manager("v")
        .acquire(&vanishing(1))
        .unwrap()
        .release()
        .unwrap();
    assert_eq!(class(manager("v").acquire(&vanishing(0))), Class::Timeout);
}

/// S21: the guard exists, locked and marked, from before the removal until after the publication.
#[test]
fn a_dead_lock_is_replaced_under_the_guard() {
    let fixture = SidecarFixture::new();
    fixture.put_dead_lock();
    let story = Arc::new(Mutex::new(Vec::new()));
    let (told, guard, lock) = (
        Arc::clone(&story),
        fixture.guard.clone(),
        fixture.lock.clone(),
    );
    let options = fixture.once().pause(move |point| {
        if matches!(point, AcquireStep::Removal(_)) {
            return;
        }
        let marked = std::fs::metadata(&guard).is_ok_and(|meta| meta.mode_bits() == 0o1700);
        let locked = std::fs::File::open(&guard).is_ok_and(|guard| guard.try_lock().is_err());
        told.lock()
            .unwrap()
            .push((point, lock.exists(), marked && locked));
    });
    let held = manager("r").acquire(&options).unwrap();
    let expected = [
        (AcquireStep::Taken, true, false),
        (AcquireStep::GuardMade, true, true),
        (AcquireStep::DeadRemoved, false, true),
        (AcquireStep::Reclaimed, true, true),
    ];
    assert_eq!(*story.lock().unwrap(), expected);
    assert_eq!(fixture.names(), ["state.json.lock"]);
    held.release().unwrap();
}

trait ModeBits {
    fn mode_bits(&self) -> u32;
}
impl ModeBits for std::fs::Metadata {
    fn mode_bits(&self) -> u32 {
        self.permissions().mode() & 0o7777
    }
}

/// S21.3: a holder that resumed (its bytes changed) keeps its lock, and the guard is removed.
#[test]
fn a_lock_that_changes_under_the_guard_stays() {
    let fixture = SidecarFixture::new();
    let content = format!(r#"{{"pid":{},"host":"{}"}}"#, dead_pid(), host());
    std::fs::write(&fixture.lock, content).unwrap();
    let lock = fixture.lock.clone();
    let options = fixture.once().pause(at(AcquireStep::GuardMade, move || {
        std::fs::write(&lock, "awake").unwrap()
    }));
    assert_eq!(class(manager("r").acquire(&options)), Class::Timeout);
    assert_eq!(std::fs::read(&fixture.lock).unwrap(), b"awake");
    assert_eq!(fixture.names(), ["state.json.lock"]);
}

/// K26: an original's lock that is displaced and cannot be restored is reported and kept aside, and
/// the name counts as held; without a callback it is the error.
#[test]
fn a_displaced_lock_is_reported_and_the_name_is_held() {
    for listening in [true, false] {
        let fixture = SidecarFixture::new();
        fixture.put_dead_lock();
        let lock = fixture.lock.clone();
        let interfere = move |point| match point {
            AcquireStep::Removal(RemovalStep::BeforeRename) => {
                std::fs::remove_file(&lock).unwrap();
                std::fs::write(&lock, r#"{"note":"second"}"#).unwrap();
            }
            AcquireStep::Removal(RemovalStep::BeforePutBack) => {
                std::fs::write(&lock, r#"{"note":"third"}"#).unwrap();
            }
            _ => {}
        };
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut options = fixture.once().pause(interfere);
        if listening {
            let told = Arc::clone(&told);
            options = options.on_displaced(move |error| {
                told.lock()
                    .unwrap()
                    .push((error.class(), error.to_string()));
            });
        }
        let expected = if listening {
            Class::Timeout
        } else {
            Class::Compromised
        };
        assert_eq!(class(manager("k").acquire(&options)), expected);
        let told = told.lock().unwrap();
        assert_eq!(told.len(), usize::from(listening));
        for (class, text) in told.iter() {
            assert_eq!(*class, Class::Compromised);
            assert!(text.contains("second") && text.contains("third"), "{text}");
        }
        assert_eq!(fixture.payload()["note"], "third");
        let kept = |name: &String| name.starts_with(".state.json.lock.kept-");
        assert_eq!(fixture.names().iter().filter(|name| kept(name)).count(), 1);
    }
}

fn host() -> String {
    tenure_files::internal::host_name()
}

/// S21.6: a process that takes the name while our guard exists holds the lock.
#[test]
fn winning_the_removal_does_not_give_the_lock() {
    let fixture = SidecarFixture::new();
    fixture.put_dead_lock();
    let lock = fixture.lock.clone();
    let options = fixture.once().pause(at(AcquireStep::DeadRemoved, move || {
        std::fs::write(&lock, "{}").unwrap()
    }));
    assert_eq!(class(manager("r").acquire(&options)), Class::Timeout);
    assert_eq!(std::fs::read(&fixture.lock).unwrap(), b"{}");
    assert_eq!(fixture.names(), ["state.json.lock"]);
}

/// S22: a marked guard with a free lock belongs to a dead Tenure process and is removed under every
/// policy; a locked one stays, and its removal wakes the waiter.
#[test]
fn a_guard_left_by_a_dead_tenure_goes_at_once() {
    for recovery in [
        StalePolicy::Never,
        StalePolicy::FailClosed,
        StalePolicy::RemoveIfUnchanged,
    ] {
        let fixture = SidecarFixture::new();
        std::fs::create_dir(&fixture.guard).unwrap();
        std::fs::set_permissions(&fixture.guard, PermissionsExt::from_mode(0o1700)).unwrap();
        let alive = std::fs::File::open(&fixture.guard).unwrap();
        alive.lock().unwrap();
        let options = fixture.once().recovery(recovery);
        assert_eq!(
            class(manager("g").acquire(&options)),
            Class::Timeout,
            "{recovery:?}"
        );

        let slow = Retry {
            min_timeout: Duration::from_secs(20),
            max_timeout: Duration::from_secs(20),
            ..Retry::default()
        };
        let waiting = fixture.options().retry(slow).recovery(recovery);
        let waiter = std::thread::spawn(move || {
            let guard = manager("g").acquire(&waiting).unwrap();
            let at = Instant::now();
            guard.release().unwrap();
            at
        });
        std::thread::sleep(Duration::from_millis(50));
        let freed = Instant::now();
        drop(alive);
        let got = waiter.join().unwrap();
        assert!(
            got.duration_since(freed) < Duration::from_secs(2),
            "{recovery:?}"
        );
        assert!(fixture.names().is_empty());
    }
}

/// S22: an original's guard, which has no mark, is not removed under the default policy.
#[test]
fn an_originals_guard_is_left_alone() {
    let fixture = SidecarFixture::new();
    std::fs::create_dir(&fixture.guard).unwrap();
    set_modified(
        &fixture.guard,
        SystemTime::now() - Duration::from_secs(3600),
    );
    assert_eq!(class(manager("g").acquire(&fixture.once())), Class::Timeout);
    let eager = fixture.once().recovery(StalePolicy::RemoveIfUnchanged);
    assert_eq!(
        class(manager("g").acquire(&eager)),
        Class::Timeout,
        "not yet observed"
    );
    assert!(fixture.guard.is_dir());
}

/// S22: a guard that is a file is judged like a lock.
#[test]
fn a_guard_file_is_judged_like_a_lock() {
    let fixture = SidecarFixture::new();
    let living = LiveProcess::spawn();
    let content = |pid| format!(r#"{{"pid":{pid},"host":"{}"}}"#, host());
    std::fs::write(&fixture.guard, content(living.pid())).unwrap();
    assert_eq!(class(manager("g").acquire(&fixture.once())), Class::Timeout);
    std::fs::write(&fixture.guard, content(dead_pid())).unwrap();
    manager("g")
        .acquire(&fixture.once())
        .unwrap()
        .release()
        .unwrap();
    assert!(fixture.names().is_empty());
}

/// S19.4: `should_reclaim` gets all its inputs, and its yes is the approval if there is no
/// `approve`; an `approve` that says no wins.
#[test]
fn the_callers_judge_decides() {
    let fixture = SidecarFixture::new();
    let lock = r#"{"pid":1,"note":"kept"}"#;
    let judge = |verdict: bool| {
        let (lock_path, target) = (fixture.lock.clone(), fixture.target.clone());
        fixture
            .once()
            .stale(Duration::from_secs(7))
            .should_reclaim(move |suspect| {
                assert_eq!(suspect.lock_path, lock_path);
                assert_eq!(suspect.target, target);
                assert_eq!(suspect.payload.unwrap()["note"], "kept");
                assert_eq!(suspect.stale, Some(Duration::from_secs(7)));
                assert!(!suspect.held_by_this_process);
                assert!(suspect.now <= SystemTime::now());
                verdict
            })
    };
    std::fs::write(&fixture.lock, lock).unwrap();
    let locks = manager("j");
    assert_eq!(class(locks.acquire(&judge(false))), Class::Timeout);
    assert_eq!(
        class(locks.acquire(&judge(true))),
        Class::Stale,
        "fail-closed"
    );
    let removing = |options: Options| options.recovery(StalePolicy::RemoveIfUnchanged);
    let refused = removing(judge(true)).approve(|candidate| {
        assert_eq!(candidate.bytes, br#"{"pid":1,"note":"kept"}"#);
        assert_eq!(candidate.payload.unwrap()["note"], "kept");
        false
    });
    assert_eq!(class(locks.acquire(&refused)), Class::Stale);
    assert_eq!(std::fs::read(&fixture.lock).unwrap(), lock.as_bytes());
    locks
        .acquire(&removing(judge(true)))
        .unwrap()
        .release()
        .unwrap();
}

/// C11: `never` removes nothing, not even a lock of a dead holder.
#[test]
fn never_means_never() {
    let fixture = SidecarFixture::new();
    fixture.put_dead_lock();
    let never = fixture.once().recovery(StalePolicy::Never);
    assert_eq!(class(manager("n").acquire(&never)), Class::Stale);
    assert!(fixture.lock.exists());
}
