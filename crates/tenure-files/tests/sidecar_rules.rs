//! The rules of the sidecar lock within one process: acquire, wait, reclaim, hold, release.

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use common::{Living, dead_pid, set_modified};
use serde_json::json;
use tenure_files::Class;
use tenure_files::identity::{Identity, Token};
use tenure_files::publish::{Durability, Way};
use tenure_files::remove::Step;
use tenure_files::sidecar::{
    Guard, Heartbeat, Manager, Options, Payload, Point, Recovery, Retry, with_lock,
};
use tenure_files::text::parse_object;
use tenure_files::wait::Cancel;

struct Place {
    _temp: tempfile::TempDir,
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
            _temp: temp,
            target,
        }
    }
    fn options(&self) -> Options {
        Options::new(&self.target).durability(Durability::Fast)
    }
    fn once(&self) -> Options {
        self.options().retry(Retry::none())
    }
    fn payload(&self) -> Payload {
        parse_object(&std::fs::read(&self.lock).unwrap()).unwrap()
    }
    fn identity(&self) -> Identity {
        Identity::in_record(&self.payload()).unwrap()
    }
    /// The record of a dead Tenure whose flock is free.
    fn put_dead_lock(&self) {
        let guard = manager("dead")
            .acquire(&self.once().heartbeat(Heartbeat::Off))
            .unwrap();
        guard.leave();
    }
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.target.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn manager(key: &str) -> Manager {
    Manager::new(key)
}

fn class(result: tenure_files::Result<Guard>) -> Class {
    result.expect_err("it must not be acquired").class()
}

fn map(value: serde_json::Value) -> Payload {
    value.as_object().unwrap().clone()
}

/// Runs `action` once, when `point` is first reached.
fn at(point: Point, action: impl Fn() + Send + Sync + 'static) -> impl Fn(Point) + Send + Sync {
    let done = AtomicBool::new(false);
    move |reached| {
        if reached == point && !done.swap(true, Ordering::SeqCst) {
            action();
        }
    }
}

/// S13: `retries = 3` with the defaults gives up after about 150 ms; 0 and a zero timeout try once.
#[test]
fn the_retry_budget_is_kept() {
    let place = Place::new();
    let held = manager("a").acquire(&place.options()).unwrap();
    let tries = Arc::new(AtomicUsize::new(0));
    let wait = |options: Options| {
        let started = Instant::now();
        assert_eq!(class(manager("b").acquire(&options)), Class::Timeout);
        started.elapsed().as_millis()
    };
    let three = Retry {
        retries: Some(3),
        ..Retry::default()
    };
    let waited = wait(place.options().retry(three));
    assert!((150..400).contains(&waited), "{waited} ms");
    let growing = Retry {
        factor: 2.0,
        min_timeout: Duration::from_millis(20),
        ..three
    };
    let waited = wait(place.options().retry(growing));
    assert!(
        (140..400).contains(&waited),
        "20 + 40 + 80, but {waited} ms"
    );
    // The payload is asked for once per attempt to publish; one attempt, one question.
    let count = Arc::clone(&tries);
    wait(place.once().payload(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Payload::new()
    }));
    assert_eq!(tries.load(Ordering::Relaxed), 1);
    assert!(wait(place.options().timeout(Duration::ZERO)) < 50);
    let waited = wait(place.options().timeout(Duration::from_millis(120)));
    assert!(
        (120..300).contains(&waited),
        "never past the deadline, but {waited} ms"
    );
    held.release().unwrap();
}

/// S15: the same owner nests, and only the last release removes the file (S26); another owner of
/// the same manager waits, and so does one without.
#[test]
fn only_the_same_owner_may_nest() {
    let place = Place::new();
    let locks = manager("nest");
    let ours = place.once().reentrant_owner("worker");
    let first = locks.acquire(&ours).unwrap();
    let second = locks.acquire(&ours).unwrap();
    assert_eq!(first.token(), second.token());
    assert_eq!(class(locks.acquire(&place.once())), Class::Timeout);
    assert_eq!(
        class(locks.acquire(&place.once().reentrant_owner("other"))),
        Class::Timeout
    );
    assert_eq!(
        class(manager("elsewhere").acquire(&ours)),
        Class::Timeout,
        "another key"
    );
    first.release().unwrap();
    assert!(place.lock.exists());
    second.release().unwrap();
    assert!(!place.lock.exists());

    let plain = locks.acquire(&place.once()).unwrap();
    assert_eq!(
        class(locks.acquire(&place.once())),
        Class::Timeout,
        "no owner, no nesting"
    );
    plain.release().unwrap();
}

/// S15: our own lock is never judged stale, not even by a caller who calls everything stale.
#[test]
fn our_own_lock_is_never_stale() {
    let place = Place::new();
    let locks = manager("own");
    let held = locks
        .acquire(&place.once().heartbeat(Heartbeat::Off))
        .unwrap();
    let greedy = place
        .once()
        .stale(Duration::ZERO)
        .recovery(Recovery::RemoveIfUnchanged)
        .should_reclaim(|_| panic!("a live lock is not asked about"))
        .approve(|_| true);
    assert_eq!(class(locks.acquire(&greedy)), Class::Timeout);
    assert_eq!(
        class(manager("other").acquire(&greedy)),
        Class::Timeout,
        "S19.4, stricter"
    );
    held.release().unwrap();
}

/// K42: a waiter of the same process gets the lock by event, long before its poll.
#[test]
fn a_release_wakes_a_waiting_thread() {
    let place = Place::new();
    let locks = manager("wake");
    let slow = Retry {
        min_timeout: Duration::from_secs(20),
        max_timeout: Duration::from_secs(20),
        ..Retry::default()
    };
    let held = locks.acquire(&place.options()).unwrap();
    let (waiting, is_waiting) = channel();
    let options = place.options().retry(slow).pause(at(Point::Taken, move || {
        waiting.send(()).unwrap();
    }));
    // The other manager does not find us in its table: it publishes, and then judges.
    let waiter = std::thread::spawn(move || {
        let guard = manager("wake too").acquire(&options).unwrap();
        let at = Instant::now();
        guard.release().unwrap();
        at
    });
    is_waiting.recv().unwrap();
    let released = Instant::now();
    held.release().unwrap();
    let got = waiter.join().unwrap();
    let took = got.duration_since(released);
    assert!(
        took < Duration::from_secs(5),
        "{took:?}: woken by the clock only"
    );
}

/// S16.4: a guard that appears after we published is waited for; if our file went meanwhile, we try
/// again, and if it stands, it is ours.
#[test]
fn the_second_look_waits_for_a_late_guard() {
    for survives in [true, false] {
        let place = Place::new();
        let (guard, lock) = (place.guard.clone(), place.lock.clone());
        let first_token = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&first_token);
        let options = place.options().pause(at(Point::Published, move || {
            std::fs::create_dir(&guard).unwrap();
            let record = parse_object(&std::fs::read(&lock).unwrap()).unwrap();
            *seen.lock().unwrap() = Identity::in_record(&record).unwrap().beat;
            let (guard, lock) = (guard.clone(), lock.clone());
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(60));
                if !survives {
                    std::fs::remove_file(&lock).unwrap();
                }
                std::fs::remove_dir(&guard).unwrap();
            });
        }));
        let started = Instant::now();
        let held = manager("late").acquire(&options).unwrap();
        assert!(
            started.elapsed() >= Duration::from_millis(60),
            "the guard stood"
        );
        assert!(first_token.lock().unwrap().is_some());
        held.verify_still_held().unwrap();
        held.release().unwrap();
        assert!(place.names().is_empty());
    }
}

/// S16.4, S17: if the late guard stays until the deadline, our record is taken back.
#[test]
fn a_late_guard_that_stays_costs_us_the_lock() {
    let place = Place::new();
    let guard = place.guard.clone();
    let options = place
        .options()
        .timeout(Duration::from_millis(80))
        .pause(at(Point::Published, move || {
            std::fs::create_dir(&guard).unwrap()
        }));
    assert_eq!(class(manager("late").acquire(&options)), Class::Timeout);
    assert_eq!(place.names(), ["state.json.lock.reclaim"]);
}

/// S17, K40: a failure after publishing leaves no lock.
#[test]
fn a_failed_fence_leaves_no_lock() {
    let place = Place::new();
    std::fs::write(place.target.with_file_name(".tenure-fence"), "nonsense").unwrap();
    assert_eq!(
        class(manager("f").acquire(&place.once().fence())),
        Class::Malformed
    );
    assert!(!place.lock.exists());
}

/// S18: an error that waiting does not cure ends the acquisition at once.
#[test]
fn a_place_that_cannot_hold_files_is_an_error_at_once() {
    let options = Options::new("/proc/self/state.json");
    assert_eq!(class(manager("x").acquire(&options)), Class::Io);
    let options = Options::new("state.json").lock_path("/nonexistent-directory/x.lock");
    assert_eq!(class(manager("x").acquire(&options)), Class::NotFound);
}

/// S20: what vanishes while it is judged is not stale: next attempt, counted.
#[test]
fn a_vanished_lock_is_not_stale() {
    let place = Place::new();
    let vanishing = |retries| {
        std::fs::write(&place.lock, "{}").unwrap();
        let lock = place.lock.clone();
        let retry = Retry {
            retries: Some(retries),
            ..Retry::default()
        };
        place
            .options()
            .retry(retry)
            .should_reclaim(|_| panic!("there is nothing to judge"))
            .pause(at(Point::Taken, move || {
                std::fs::remove_file(&lock).unwrap()
            }))
    };
    let started = Instant::now();
    manager("v")
        .acquire(&vanishing(1))
        .unwrap()
        .release()
        .unwrap();
    assert!(started.elapsed() < Duration::from_millis(50), "at once");
    assert_eq!(class(manager("v").acquire(&vanishing(0))), Class::Timeout);
}

/// S21: the guard stands, locked and marked, from before the removal until after the publishing.
#[test]
fn a_dead_lock_is_replaced_under_the_guard() {
    let place = Place::new();
    place.put_dead_lock();
    let story = Arc::new(Mutex::new(Vec::new()));
    let (told, guard, lock) = (Arc::clone(&story), place.guard.clone(), place.lock.clone());
    let options = place.once().pause(move |point| {
        if matches!(point, Point::Removal(_)) {
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
        (Point::Taken, true, false),
        (Point::GuardMade, true, true),
        (Point::DeadRemoved, false, true),
        (Point::Reclaimed, true, true),
    ];
    assert_eq!(*story.lock().unwrap(), expected);
    assert_eq!(place.names(), ["state.json.lock"]);
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

/// S21.3: a holder that woke up (its bytes changed) is left alone, and the guard goes.
#[test]
fn a_lock_that_changes_under_the_guard_stays() {
    let place = Place::new();
    let content = format!(r#"{{"pid":{},"host":"{}"}}"#, dead_pid(), host());
    std::fs::write(&place.lock, content).unwrap();
    let lock = place.lock.clone();
    let options = place.once().pause(at(Point::GuardMade, move || {
        std::fs::write(&lock, "awake").unwrap()
    }));
    assert_eq!(class(manager("r").acquire(&options)), Class::Timeout);
    assert_eq!(std::fs::read(&place.lock).unwrap(), b"awake");
    assert_eq!(place.names(), ["state.json.lock"]);
}

/// K26: an original's lock that is displaced and cannot go back is reported, kept aside, and the
/// name counts as held; without anybody to tell, that is the error.
#[test]
fn a_displaced_lock_is_reported_and_the_name_is_held() {
    for listening in [true, false] {
        let place = Place::new();
        place.put_dead_lock();
        let lock = place.lock.clone();
        let interfere = move |point| match point {
            Point::Removal(Step::BeforeRename) => {
                std::fs::remove_file(&lock).unwrap();
                std::fs::write(&lock, r#"{"note":"second"}"#).unwrap();
            }
            Point::Removal(Step::BeforePutBack) => {
                std::fs::write(&lock, r#"{"note":"third"}"#).unwrap();
            }
            _ => {}
        };
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut options = place.once().pause(interfere);
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
        assert_eq!(place.payload()["note"], "third");
        let kept = |name: &String| name.starts_with(".state.json.lock.kept-");
        assert_eq!(place.names().iter().filter(|name| kept(name)).count(), 1);
    }
}

fn host() -> String {
    tenure_files::identity::host_name()
}

/// S21.6: who takes the name while we stand under our guard has it.
#[test]
fn winning_the_removal_does_not_give_the_lock() {
    let place = Place::new();
    place.put_dead_lock();
    let lock = place.lock.clone();
    let options = place.once().pause(at(Point::DeadRemoved, move || {
        std::fs::write(&lock, "{}").unwrap()
    }));
    assert_eq!(class(manager("r").acquire(&options)), Class::Timeout);
    assert_eq!(std::fs::read(&place.lock).unwrap(), b"{}");
    assert_eq!(place.names(), ["state.json.lock"]);
}

/// S22: a marked guard whose lock is free was left by a dead Tenure and goes under every policy; one
/// that is locked stays, and its end wakes the waiter.
#[test]
fn a_guard_left_by_a_dead_tenure_goes_at_once() {
    for recovery in [
        Recovery::Never,
        Recovery::FailClosed,
        Recovery::RemoveIfUnchanged,
    ] {
        let place = Place::new();
        std::fs::create_dir(&place.guard).unwrap();
        std::fs::set_permissions(&place.guard, PermissionsExt::from_mode(0o1700)).unwrap();
        let alive = std::fs::File::open(&place.guard).unwrap();
        alive.lock().unwrap();
        let options = place.once().recovery(recovery);
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
        let waiting = place.options().retry(slow).recovery(recovery);
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
        assert!(place.names().is_empty());
    }
}

/// S22: an original's guard, which has no mark, is not removed under the default policy.
#[test]
fn an_originals_guard_is_left_alone() {
    let place = Place::new();
    std::fs::create_dir(&place.guard).unwrap();
    set_modified(&place.guard, SystemTime::now() - Duration::from_secs(3600));
    assert_eq!(class(manager("g").acquire(&place.once())), Class::Timeout);
    let eager = place.once().recovery(Recovery::RemoveIfUnchanged);
    assert_eq!(
        class(manager("g").acquire(&eager)),
        Class::Timeout,
        "not yet observed"
    );
    assert!(place.guard.is_dir());
}

/// S22: a guard that is a file is judged like a lock.
#[test]
fn a_guard_file_is_judged_like_a_lock() {
    let place = Place::new();
    let living = Living::new();
    let content = |pid| format!(r#"{{"pid":{pid},"host":"{}"}}"#, host());
    std::fs::write(&place.guard, content(living.pid())).unwrap();
    assert_eq!(class(manager("g").acquire(&place.once())), Class::Timeout);
    std::fs::write(&place.guard, content(dead_pid())).unwrap();
    manager("g")
        .acquire(&place.once())
        .unwrap()
        .release()
        .unwrap();
    assert!(place.names().is_empty());
}

/// S19.4: the caller's judge gets all its inputs, and its yes is the approval where nobody else
/// wants to be asked; an `approve` that says no wins.
#[test]
fn the_callers_judge_decides() {
    let place = Place::new();
    let lock = r#"{"pid":1,"note":"kept"}"#;
    let judge = |verdict: bool| {
        let (lock_path, target) = (place.lock.clone(), place.target.clone());
        place
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
    std::fs::write(&place.lock, lock).unwrap();
    let locks = manager("j");
    assert_eq!(class(locks.acquire(&judge(false))), Class::Timeout);
    assert_eq!(
        class(locks.acquire(&judge(true))),
        Class::Stale,
        "fail-closed"
    );
    let removing = |options: Options| options.recovery(Recovery::RemoveIfUnchanged);
    let refused = removing(judge(true)).approve(|candidate| {
        assert_eq!(candidate.bytes, br#"{"pid":1,"note":"kept"}"#);
        assert_eq!(candidate.payload.unwrap()["note"], "kept");
        false
    });
    assert_eq!(class(locks.acquire(&refused)), Class::Stale);
    assert_eq!(std::fs::read(&place.lock).unwrap(), lock.as_bytes());
    locks
        .acquire(&removing(judge(true)))
        .unwrap()
        .release()
        .unwrap();
}

/// C11: `never` removes nothing, not even on proof.
#[test]
fn never_means_never() {
    let place = Place::new();
    place.put_dead_lock();
    let never = place.once().recovery(Recovery::Never);
    assert_eq!(class(manager("n").acquire(&never)), Class::Stale);
    assert!(place.lock.exists());
}

/// S24, K33: the heartbeat moves beat and modification time; a waiter by age never calls it stale.
#[test]
fn the_heart_beats() {
    let place = Place::new();
    let beating = place
        .once()
        .heartbeat(Heartbeat::Every(Duration::from_millis(100)));
    let held = manager("h").acquire(&beating).unwrap();
    set_modified(&place.lock, SystemTime::now() - Duration::from_secs(600));
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let beat: u64 = place.identity().beat.unwrap().parse().unwrap();
        let age = std::fs::metadata(&place.lock)
            .unwrap()
            .modified()
            .unwrap()
            .elapsed();
        if beat >= 2 && age.is_ok_and(|age| age < Duration::from_secs(10)) {
            break;
        }
        assert!(Instant::now() < deadline, "no heartbeat");
        std::thread::sleep(Duration::from_millis(20));
    }
    held.verify_still_held().unwrap();
    held.release().unwrap();
}

/// S25, K34: the loss of a lock is noticed by event, without anybody asking.
#[test]
fn the_heart_notices_a_loss() {
    let place = Place::new();
    let held = manager("l").acquire(&place.once()).unwrap();
    let (lost, is_lost) = channel();
    held.on_lost(move |loss| lost.send(loss.cause).unwrap());
    // The watch begins a moment after the acquisition; a loss before it is seen by that first look.
    std::fs::remove_file(&place.lock).unwrap();
    is_lost
        .recv_timeout(Duration::from_secs(10))
        .expect("noticed long before the next heartbeat");
    assert_eq!(
        held.verify_still_held().unwrap_err().class(),
        Class::Compromised
    );
    assert_eq!(held.release().unwrap_err().class(), Class::Compromised);

    let held = manager("l").acquire(&place.once()).unwrap();
    let (lost, is_lost) = channel();
    held.on_lost(move |loss| lost.send(loss.cause).unwrap());
    std::thread::sleep(Duration::from_millis(120));
    std::fs::write(&place.lock, "{\"holder\":\"another\"}").unwrap();
    is_lost
        .recv_timeout(Duration::from_secs(8))
        .expect("noticed by event");
    assert_eq!(held.release().unwrap_err().class(), Class::Compromised);
    assert!(place.lock.exists(), "S26: a file with other bytes stays");
}

/// S28: what is held is listed with its metadata, can be released by force, drained and reset.
#[test]
fn held_locks_are_listed_and_can_be_forced() {
    let (one, two) = (Place::new(), Place::new());
    let locks = manager("listed");
    let metadata = map(json!({"job": 7}));
    let first = locks
        .acquire(&one.once().metadata(metadata.clone()))
        .unwrap();
    let second = locks.acquire(&two.once()).unwrap();
    let other = manager("listed elsewhere");
    assert!(other.held_entries().is_empty());
    let entries = locks.held_entries();
    assert_eq!(entries.len(), 2);
    let entry = entries
        .iter()
        .find(|entry| entry.target() == one.target)
        .unwrap();
    assert_eq!(entry.lock_path(), one.lock);
    assert_eq!(entry.metadata(), &metadata);
    assert!(entry.acquired_at() <= SystemTime::now());
    assert!(
        !String::from_utf8(std::fs::read(&one.lock).unwrap())
            .unwrap()
            .contains("job")
    );

    entry.force_release().unwrap();
    assert!(!one.lock.exists());
    assert_eq!(
        first.verify_still_held().unwrap_err().class(),
        Class::NotHeld
    );
    assert_eq!(first.release().unwrap_err().class(), Class::NotHeld);
    assert!(locks.drain().is_empty());
    assert!(!two.lock.exists() && locks.held_entries().is_empty());
    drop(second);
    let _third = locks.acquire(&two.once()).unwrap();
    locks.reset();
    assert!(!two.lock.exists());
}

/// A dropped guard releases; `with_lock` releases also when the body fails, and a loss inside is
/// the answer.
#[test]
fn guards_release_in_every_way() {
    let place = Place::new();
    drop(manager("d").acquire(&place.once()).unwrap());
    assert!(!place.lock.exists());
    let answer: Result<u32, &str> = with_lock(&place.once(), |guard| {
        assert!(guard.lock_path().exists());
        Err("no")
    })
    .unwrap();
    assert_eq!(answer, Err("no"));
    assert!(!place.lock.exists());
    let lost = with_lock(&place.once(), |guard| {
        std::fs::remove_file(guard.lock_path()).unwrap();
        7
    });
    assert_eq!(lost.unwrap_err().class(), Class::Compromised);
    let panicked = std::panic::catch_unwind(|| with_lock(&place.once(), |_| panic!("body")));
    assert!(panicked.is_err());
    assert!(!place.lock.exists());
}

/// S29: the fixed texts carry the normalized target, and the message names the holder (K5).
#[test]
fn errors_speak_like_the_original() {
    let place = Place::new();
    let held = manager("a").acquire(&place.once()).unwrap();
    let error = manager("b").acquire(&place.once()).unwrap_err();
    assert_eq!(
        error.what(),
        format!("file lock timeout for {}", place.target.display())
    );
    assert_eq!(error.path(), place.lock);
    let text = error.to_string();
    assert!(
        text.contains(&format!("pid {}", std::process::id())),
        "{text}"
    );
    assert!(text.contains("its kernel lock is held"), "{text}");
    held.release().unwrap();

    std::fs::write(&place.lock, "{}").unwrap();
    set_modified(&place.lock, SystemTime::now() - Duration::from_secs(600));
    let error = manager("b").acquire(&place.once()).unwrap_err();
    assert_eq!(
        error.what(),
        format!("file lock stale for {}", place.target.display())
    );
    assert_eq!(error.class(), Class::Stale);
    assert!(
        error.to_string().contains("tenure break sidecar:"),
        "{error}"
    );
}

/// K2: without waiting, a live holder is `Held`, one that cannot be checked is `Foreign`.
#[test]
fn trying_once_names_the_holder() {
    let place = Place::new();
    let held = manager("a").acquire(&place.once()).unwrap();
    let error = manager("b").try_acquire(&place.options()).unwrap_err();
    assert_eq!(error.class(), Class::Held);
    assert_eq!(error.exit_code(), 75);
    held.release().unwrap();
    std::fs::write(&place.lock, r#"{"pid":1,"host":"elsewhere"}"#).unwrap();
    assert_eq!(
        class(manager("b").try_acquire(&place.options())),
        Class::Foreign
    );
}

/// K39: fences grow, and stand in the record.
#[test]
fn fences_grow_with_every_acquisition() {
    let place = Place::new();
    let options = place.once().fence();
    for expected in 1..=3 {
        let held = manager("f").acquire(&options).unwrap();
        assert_eq!(held.fence().unwrap().get(), expected);
        assert_eq!(place.identity().fence, Some(expected));
        held.verify_still_held().unwrap();
        held.release().unwrap();
    }
    assert_eq!(place.names(), [".tenure-fence"]);
}

/// The payload function is evaluated per attempt, and its members stand first in the record.
#[test]
fn the_payload_is_made_anew_for_every_attempt() {
    let place = Place::new();
    let held = manager("a").acquire(&place.once()).unwrap();
    let attempt = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempt);
    let (tried, has_tried) = channel();
    let options = place
        .options()
        .payload(move || map(json!({"attempt": count.fetch_add(1, Ordering::SeqCst)})))
        .pause(at(Point::Taken, move || tried.send(()).unwrap()));
    let waiter = std::thread::spawn(move || manager("b").acquire(&options).unwrap());
    has_tried.recv().unwrap();
    held.release().unwrap();
    let got = waiter.join().unwrap();
    let last = attempt.load(Ordering::SeqCst) - 1;
    assert!(last >= 1);
    assert_eq!(place.payload()["attempt"], json!(last));
    got.release().unwrap();
}

/// C13: a hold that follows another process has no flock, survives us, and dies with it.
#[test]
fn a_hold_may_follow_another_process() {
    let place = Place::new();
    let living = Living::new();
    let guard = manager("c")
        .acquire(&place.once().follows(living.pid()))
        .unwrap();
    let token = guard.leave();
    let identity = place.identity();
    assert_eq!(
        (identity.pid, identity.flock),
        (Some(living.pid()), Some(false))
    );
    assert_eq!(place.payload()["pid"], json!(living.pid()));
    assert_eq!(class(manager("c").acquire(&place.once())), Class::Timeout);

    let adopted = tenure_files::sidecar::adopt(&place.options(), token).unwrap();
    adopted.beat().unwrap();
    adopted.leave();
    assert_eq!(class(manager("c").acquire(&place.once())), Class::Timeout);
    drop(living);
    manager("c")
        .acquire(&place.once())
        .unwrap()
        .release()
        .unwrap();

    let mine = manager("c")
        .acquire(&place.once().follows(std::process::id()))
        .unwrap()
        .leave();
    let unlocked = tenure_files::sidecar::adopt(&place.options(), mine).unwrap();
    unlocked.release().unwrap();
    let gone = tenure_files::sidecar::adopt(&place.options(), Token::random());
    assert_eq!(gone.unwrap_err().class(), Class::NotHeld);
}

/// K17: the lock works by every way of publishing, and says which it was.
#[test]
fn every_way_of_publishing_makes_a_lock() {
    for way in [Way::Tmpfile, Way::Rename, Way::Link, Way::Create] {
        let place = Place::new();
        let held = manager("w").acquire(&place.once().first_way(way)).unwrap();
        assert_eq!(held.hold().way(), way);
        assert_eq!(
            class(manager("x").acquire(&place.once().first_way(way))),
            Class::Timeout
        );
        held.release().unwrap();
        place.put_dead_lock();
        manager("w")
            .acquire(&place.once().first_way(way))
            .unwrap()
            .release()
            .unwrap();
        assert!(place.names().is_empty(), "{way:?}: {:?}", place.names());
    }
}

/// A wait can be cancelled, and leaves nothing behind; awaiting does the same by dropping.
#[test]
fn a_cancelled_wait_leaves_nothing() {
    let place = Place::new();
    let held = manager("a").acquire(&place.once()).unwrap();
    let cancel = Cancel::new().unwrap();
    let options = place.options().cancel(cancel.clone());
    let waiter = std::thread::spawn(move || manager("b").acquire(&options).map(drop));
    cancel.cancel();
    assert_eq!(waiter.join().unwrap().unwrap_err().class(), Class::Timeout);
    assert_eq!(place.names(), ["state.json.lock"]);
    held.release().unwrap();
}
