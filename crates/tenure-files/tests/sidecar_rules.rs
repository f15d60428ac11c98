//! The rules of the sidecar lock within one process: acquire, wait, reclaim, hold, release.

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tenure_files::Cancel;
use tenure_files::PublishMethod;
use tenure_files::sidecar::{
    AcquireStep, Heartbeat, Options, Payload, Retry, StalePolicy, with_lock,
};
use tenure_files::{Class, Decision};
use tenure_files::{Identity, Token};
use tenure_testkit::sidecar::{SidecarFixture, at, class, manager, map};
use tenure_testkit::{LiveProcess, set_modified};

/// Milliseconds that a busy machine may need for what takes a tenth of a second.
const SLOW: u128 = 20_000;

/// S13: `retries = 3` with the defaults gives up after about 150 ms; 0 and a zero timeout try once.
#[test]
fn the_retry_budget_is_kept() {
    let fixture = SidecarFixture::new();
    let held = manager("a").acquire(&fixture.options()).unwrap();
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
    let waited = wait(fixture.options().retry(three));
    assert!((150..SLOW).contains(&waited), "{waited} ms");
    let growing = Retry {
        factor: 2.0,
        min_timeout: Duration::from_millis(20),
        ..three
    };
    let waited = wait(fixture.options().retry(growing));
    assert!(
        (140..SLOW).contains(&waited),
        "20 + 40 + 80, but {waited} ms"
    );
    // The payload function is called once per attempt to publish.
    let count = Arc::clone(&tries);
    wait(fixture.once().payload(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Payload::new()
    }));
    assert_eq!(tries.load(Ordering::Relaxed), 1);
    let hourly = Retry {
        min_timeout: Duration::from_secs(3600),
        max_timeout: Duration::from_secs(3600),
        ..Retry::default()
    };
    let rarely = fixture.options().retry(hourly);
    assert!(wait(rarely.clone().timeout(Duration::ZERO)) < SLOW);
    let waited = wait(rarely.timeout(Duration::from_millis(120)));
    assert!(
        (120..SLOW).contains(&waited),
        "never past the deadline, but {waited} ms"
    );
    held.release().unwrap();
}

/// S15: the same owner nests, and only the last release removes the file (S26: sidecar release);
/// another owner of the same manager waits, and so does one without.
#[test]
fn only_the_same_owner_may_nest() {
    let fixture = SidecarFixture::new();
    let locks = manager("nest");
    let ours = fixture.once().reentrant_owner("worker");
    let first = locks.acquire(&ours).unwrap();
    let second = locks.acquire(&ours).unwrap();
    assert_eq!(first.token(), second.token());
    assert_eq!(class(locks.acquire(&fixture.once())), Class::Timeout);
    assert_eq!(
        class(locks.acquire(&fixture.once().reentrant_owner("other"))),
        Class::Timeout
    );
    assert_eq!(
        class(manager("elsewhere").acquire(&ours)),
        Class::Timeout,
        "another key"
    );
    first.release().unwrap();
    assert!(fixture.lock.exists());
    second.release().unwrap();
    assert!(!fixture.lock.exists());

    let plain = locks.acquire(&fixture.once()).unwrap();
    assert_eq!(
        class(locks.acquire(&fixture.once())),
        Class::Timeout,
        "no owner, no nesting"
    );
    plain.release().unwrap();
}

/// S15: our own lock is never stale, even for a caller whose `should_reclaim` always says yes.
#[test]
fn our_own_lock_is_never_stale() {
    let fixture = SidecarFixture::new();
    let locks = manager("own");
    let held = locks
        .acquire(&fixture.once().heartbeat(Heartbeat::Off))
        .unwrap();
    let greedy = fixture
        .once()
        .stale(Duration::ZERO)
        .recovery(StalePolicy::RemoveIfUnchanged)
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

/// K42: an event gives a waiter of the same process the lock long before its poll.
#[test]
fn a_release_wakes_a_waiting_thread() {
    let fixture = SidecarFixture::new();
    let locks = manager("wake");
    let slow = Retry {
        min_timeout: Duration::from_secs(20),
        max_timeout: Duration::from_secs(20),
        ..Retry::default()
    };
    let held = locks.acquire(&fixture.options()).unwrap();
    let (waiting, is_waiting) = channel();
    let options = fixture
        .options()
        .retry(slow)
        .pause(at(AcquireStep::Taken, move || {
            waiting.send(()).unwrap();
        }));
    // The other manager does not find the lock in its table: it tries to publish and then judges.
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

/// S16.4 (one acquisition attempt): a guard that appears after we published is waited for. If our
/// file was removed meanwhile, we try again; if it still exists, we hold the lock.
#[test]
fn the_second_look_waits_for_a_late_guard() {
    for survives in [true, false] {
        let fixture = SidecarFixture::new();
        let (guard, lock) = (fixture.guard.clone(), fixture.lock.clone());
        let first_token = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&first_token);
        let options = fixture.options().pause(at(AcquireStep::Published, move || {
            std::fs::create_dir(&guard).unwrap();
            let record = serde_json::from_slice(&std::fs::read(&lock).unwrap()).unwrap();
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
        assert!(fixture.names().is_empty());
    }
}

/// S16.4, S17: if the late guard stays until the deadline, our record is removed.
#[test]
fn a_late_guard_that_stays_costs_us_the_lock() {
    let fixture = SidecarFixture::new();
    let guard = fixture.guard.clone();
    let options = fixture
        .options()
        .timeout(Duration::from_millis(80))
        .pause(at(AcquireStep::Published, move || {
            std::fs::create_dir(&guard).unwrap()
        }));
    assert_eq!(class(manager("late").acquire(&options)), Class::Timeout);
    assert_eq!(fixture.names(), ["state.json.lock.reclaim"]);
}

/// S17, K40: a failure after publishing leaves no lock.
#[test]
fn a_failed_fence_leaves_no_lock() {
    let fixture = SidecarFixture::new();
    std::fs::write(fixture.target.with_file_name(".tenure-fence"), "nonsense").unwrap();
    assert_eq!(
        class(manager("f").acquire(&fixture.once().fence())),
        Class::Malformed
    );
    assert!(!fixture.lock.exists());
}

/// S18: an error that waiting cannot resolve ends the acquisition immediately.
#[test]
fn a_place_that_cannot_hold_files_is_an_error_at_once() {
    let options = Options::new("/proc/self/state.json");
    assert_eq!(class(manager("x").acquire(&options)), Class::Io);
    let options = Options::new("state.json").lock_path("/nonexistent-directory/x.lock");
    assert_eq!(class(manager("x").acquire(&options)), Class::NotFound);
}

/// S24 (heartbeat and peer staleness), K33: the heartbeat changes counter and modification time; a
/// waiter that goes by age never finds the lock stale.
#[test]
fn the_heart_beats() {
    let fixture = SidecarFixture::new();
    let beating = fixture
        .once()
        .heartbeat(Heartbeat::Every(Duration::from_millis(100)));
    let held = manager("h").acquire(&beating).unwrap();
    set_modified(&fixture.lock, SystemTime::now() - Duration::from_secs(600));
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let beat: u64 = fixture.identity().beat.unwrap().parse().unwrap();
        let age = std::fs::metadata(&fixture.lock)
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

/// S25 (verify a held lock), K34: an event reveals the loss of a lock, without a call of `check`.
#[test]
fn the_heart_notices_a_loss() {
    let fixture = SidecarFixture::new();
    let held = manager("l").acquire(&fixture.once()).unwrap();
    let (lost, is_lost) = channel();
    held.on_lost(move |loss| lost.send(loss.cause).unwrap());
    // The watch begins a moment after the acquisition; the first check detects an earlier loss.
    std::fs::remove_file(&fixture.lock).unwrap();
    is_lost
        .recv_timeout(Duration::from_secs(10))
        .expect("noticed long before the next heartbeat");
    assert_eq!(
        held.verify_still_held().unwrap_err().class(),
        Class::Compromised
    );
    assert_eq!(held.release().unwrap_err().class(), Class::Compromised);

    let held = manager("l").acquire(&fixture.once()).unwrap();
    let (lost, is_lost) = channel();
    held.on_lost(move |loss| lost.send(loss.cause).unwrap());
    std::thread::sleep(Duration::from_millis(120));
    std::fs::write(&fixture.lock, "{\"holder\":\"another\"}").unwrap();
    is_lost
        .recv_timeout(Duration::from_secs(8))
        .expect("noticed by event");
    assert_eq!(held.release().unwrap_err().class(), Class::Compromised);
    assert!(fixture.lock.exists(), "S26: a file with other bytes stays");
}

/// S28: held locks are listed with their metadata, and can be released by force, drained and reset.
#[test]
fn held_locks_are_listed_and_can_be_forced() {
    let (one, two) = (SidecarFixture::new(), SidecarFixture::new());
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

/// A dropped guard releases; `with_lock` releases also if the body fails, and returns the loss of
/// the lock.
#[test]
fn guards_release_in_every_way() {
    let fixture = SidecarFixture::new();
    drop(manager("d").acquire(&fixture.once()).unwrap());
    assert!(!fixture.lock.exists());
    let answer: Result<u32, &str> = with_lock(&fixture.once(), |guard| {
        assert!(guard.lock_path().exists());
        Err("no")
    })
    .unwrap();
    assert_eq!(answer, Err("no"));
    assert!(!fixture.lock.exists());
    let lost = with_lock(&fixture.once(), |guard| {
        std::fs::remove_file(guard.lock_path()).unwrap();
        7
    });
    assert_eq!(lost.unwrap_err().class(), Class::Compromised);
    let panicked = std::panic::catch_unwind(|| with_lock(&fixture.once(), |_| panic!("body")));
    assert!(panicked.is_err());
    assert!(!fixture.lock.exists());
}

/// S29: the fixed texts carry the normalized target, and the message names the holder (K5: content
/// of user messages).
#[test]
fn errors_speak_like_the_original() {
    let fixture = SidecarFixture::new();
    let held = manager("a").acquire(&fixture.once()).unwrap();
    let error = manager("b").acquire(&fixture.once()).unwrap_err();
    assert_eq!(
        error.what(),
        format!("file lock timeout for {}", fixture.target.display())
    );
    assert_eq!(error.path(), fixture.lock);
    let text = error.to_string();
    assert!(
        text.contains(&format!("pid {}", std::process::id())),
        "{text}"
    );
    assert!(text.contains("its kernel lock is held"), "{text}");
    held.release().unwrap();

    std::fs::write(&fixture.lock, "{}").unwrap();
    set_modified(&fixture.lock, SystemTime::now() - Duration::from_secs(600));
    let error = manager("b").acquire(&fixture.once()).unwrap_err();
    assert_eq!(
        error.what(),
        format!("file lock stale for {}", fixture.target.display())
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
    let fixture = SidecarFixture::new();
    let held = manager("a").acquire(&fixture.once()).unwrap();
    let error = manager("b").try_acquire(&fixture.options()).unwrap_err();
    assert_eq!(error.class(), Class::Held);
    assert_eq!(error.decision(), Decision::Wait);
    held.release().unwrap();
    std::fs::write(&fixture.lock, r#"{"pid":1,"host":"elsewhere"}"#).unwrap();
    assert_eq!(
        class(manager("b").try_acquire(&fixture.options())),
        Class::Foreign
    );
}

/// K39: fences grow and are written to the record.
#[test]
fn fences_grow_with_every_acquisition() {
    let fixture = SidecarFixture::new();
    let options = fixture.once().fence();
    for expected in 1..=3 {
        let held = manager("f").acquire(&options).unwrap();
        assert_eq!(held.fence().unwrap().get(), expected);
        assert_eq!(fixture.identity().fence, Some(expected));
        held.verify_still_held().unwrap();
        held.release().unwrap();
    }
    assert_eq!(fixture.names(), [".tenure-fence"]);
}

/// K26 (rename, compare, then unlink), S21: a name too long for the private names of a removal can
/// be locked, released and reclaimed like any other.
#[test]
fn a_long_name_can_be_given_back() {
    let temp = SidecarFixture::new();
    let longest = 255 - ".lock.reclaim".len();
    for name in ["x".repeat(longest), "ä".repeat(longest / 2)] {
        let target = temp.target.with_file_name(name);
        let options = Options::new(&target).retry(Retry::none());
        for way in [
            PublishMethod::Tmpfile,
            PublishMethod::Rename,
            PublishMethod::Link,
        ] {
            let held = manager("long")
                .acquire(&options.clone().first_way(way))
                .unwrap();
            held.release().unwrap();
            assert_eq!(temp.names(), [""; 0], "{way:?}");
        }
        let left = manager("long").acquire(&options).unwrap();
        left.leave();
        let next = manager("long").acquire(&options).unwrap();
        next.release().unwrap();
        assert_eq!(temp.names(), [""; 0]);
    }
}

/// K41: an original takes the lock in between without using the counter, and the next number is
/// still greater. So a resource that remembers the greatest number can refuse a holder that was
/// paused while others held the lock.
#[test]
fn an_original_does_not_touch_the_fence_counter() {
    let fixture = SidecarFixture::new();
    let counter = fixture.target.parent().unwrap().join(".tenure-fence");
    let take = || {
        let held = manager("k").acquire(&fixture.once().fence()).unwrap();
        let fence = held.fence().unwrap();
        held.release().unwrap();
        fence
    };
    let paused = take();
    let before = std::fs::read(&counter).unwrap();
    let record = serde_json::to_vec(&json!({"pid": std::process::id()})).unwrap();
    std::fs::File::create_new(&fixture.lock)
        .and_then(|mut lock| std::io::Write::write_all(&mut lock, &record))
        .unwrap();
    let refused = manager("k").acquire(&fixture.once().fence());
    assert_eq!(class(refused), Class::Timeout);
    std::fs::remove_file(&fixture.lock).unwrap();
    assert_eq!(std::fs::read(&counter).unwrap(), before);

    let highest_seen = take();
    assert!(paused < highest_seen, "the resource can tell");
    assert_ne!(std::fs::read(&counter).unwrap(), before);
}

/// K44: the order is not defined, but every waiter gets the lock, and never two at the same time.
#[test]
fn all_waiters_are_served_in_some_order() {
    let fixture = SidecarFixture::new();
    let first = manager("first").acquire(&fixture.once()).unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let (arrived, arrivals) = channel();
    let waiters: Vec<_> = (0..6)
        .map(|number| {
            let (inside, arrived) = (Arc::clone(&inside), arrived.clone());
            let options = fixture
                .options()
                .pause(at(AcquireStep::Taken, move || arrived.send(()).unwrap()));
            std::thread::spawn(move || {
                let held = manager(&format!("waiter {number}"))
                    .acquire(&options)
                    .unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                std::thread::yield_now();
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                held.release().unwrap();
            })
        })
        .collect();
    (0..waiters.len()).for_each(|_| arrivals.recv().unwrap());
    first.release().unwrap();
    for waiter in waiters {
        waiter.join().expect("served");
    }
    assert!(fixture.names().is_empty());
}

/// The payload function is called per attempt, and its members come first in the record.
#[test]
fn the_payload_is_made_anew_for_every_attempt() {
    let fixture = SidecarFixture::new();
    let held = manager("a").acquire(&fixture.once()).unwrap();
    let attempt = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempt);
    let (tried, has_tried) = channel();
    let options = fixture
        .options()
        .payload(move || map(json!({"attempt": count.fetch_add(1, Ordering::SeqCst)})))
        .pause(at(AcquireStep::Taken, move || tried.send(()).unwrap()));
    let waiter = std::thread::spawn(move || manager("b").acquire(&options).unwrap());
    has_tried.recv().unwrap();
    held.release().unwrap();
    let got = waiter.join().unwrap();
    let last = attempt.load(Ordering::SeqCst) - 1;
    assert!(last >= 1);
    assert_eq!(fixture.payload()["attempt"], json!(last));
    got.release().unwrap();
}

/// C13: a hold that follows another process has no flock, outlives us, and ends with that process.
#[test]
fn a_hold_may_follow_another_process() {
    let fixture = SidecarFixture::new();
    let living = LiveProcess::spawn();
    let guard = manager("c")
        .acquire(&fixture.once().follows(living.pid()))
        .unwrap();
    let token = guard.leave();
    let identity = fixture.identity();
    assert_eq!(
        (identity.pid, identity.flock),
        (Some(living.pid()), Some(false))
    );
    assert_eq!(fixture.payload()["pid"], json!(living.pid()));
    assert_eq!(class(manager("c").acquire(&fixture.once())), Class::Timeout);

    let adopted = tenure_files::sidecar::adopt(&fixture.options(), token).unwrap();
    adopted.beat().unwrap();
    adopted.leave();
    assert_eq!(class(manager("c").acquire(&fixture.once())), Class::Timeout);
    drop(living);
    manager("c")
        .acquire(&fixture.once())
        .unwrap()
        .release()
        .unwrap();

    let mine = manager("c")
        .acquire(&fixture.once().follows(std::process::id()))
        .unwrap()
        .leave();
    let unlocked = tenure_files::sidecar::adopt(&fixture.options(), mine).unwrap();
    unlocked.release().unwrap();
    let gone = tenure_files::sidecar::adopt(&fixture.options(), Token::random());
    assert_eq!(gone.unwrap_err().class(), Class::NotHeld);
}

/// K17: the lock works with every publish method, and reports the one used.
#[test]
fn every_way_of_publishing_makes_a_lock() {
    for way in [
        PublishMethod::Tmpfile,
        PublishMethod::Rename,
        PublishMethod::Link,
        PublishMethod::Create,
    ] {
        let fixture = SidecarFixture::new();
        let held = manager("w")
            .acquire(&fixture.once().first_way(way))
            .unwrap();
        assert_eq!(held.hold().way(), way);
        assert_eq!(
            class(manager("x").acquire(&fixture.once().first_way(way))),
            Class::Timeout
        );
        held.release().unwrap();
        fixture.put_dead_lock();
        manager("w")
            .acquire(&fixture.once().first_way(way))
            .unwrap()
            .release()
            .unwrap();
        assert!(fixture.names().is_empty(), "{way:?}: {:?}", fixture.names());
    }
}

/// A cancelled wait leaves no file; dropping a future has the same effect.
#[test]
fn a_cancelled_wait_leaves_nothing() {
    let fixture = SidecarFixture::new();
    let held = manager("a").acquire(&fixture.once()).unwrap();
    let cancel = Cancel::new().unwrap();
    let options = fixture.options().cancel(cancel.clone());
    let waiter = std::thread::spawn(move || manager("b").acquire(&options).map(drop));
    cancel.cancel();
    assert_eq!(waiter.join().unwrap().unwrap_err().class(), Class::Timeout);
    assert_eq!(fixture.names(), ["state.json.lock"]);
    held.release().unwrap();
}
