//! Rules of the upload lock, with real processes on both sides: record, staleness, hold, release.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use support::actor::Actor;
use support::uploads::{HOUR, LONG, UploadFixture, listener, nothing, touch_stop, up};
use tenure_files::Cancel;
use tenure_files::Class;
use tenure_files::Force;
use tenure_files::upload::{
    Fencing, FileLocker, LockRequest, MemoryLocker, Options, UploadId, UploadLocker,
    UploadReleaseRequest, UploadTimes, Wait, lock_async,
};
use tenure_testkit::{
    LiveProcess, OTHER_USER, TIMEOUT, TestMachine, dead_pid, eventually, set_age,
};

/// U3: the directory must exist.
#[test]
fn a_locker_needs_its_directory() {
    let fixture = UploadFixture::new();
    let error = FileLocker::new(fixture.dir().join("missing")).unwrap_err();
    assert_eq!(error.class(), Class::NotFound);
}

/// U4 (pid on the first line), U5: the record that Tenure writes.
#[test]
fn the_record_is_a_pid_and_one_line() {
    let fixture = UploadFixture::new();
    let request = LockRequest {
        purpose: Some("PATCH up/7".into()),
        ..LockRequest::new(Wait::No, nothing())
    };
    let guard = fixture.locker().lock_for(&up(), request).unwrap();
    let text = fs::read_to_string(fixture.lock()).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], format!("{}\n", std::process::id()));
    let block = fixture.block();
    assert_eq!(block["pid"], std::process::id());
    assert_eq!(block["request"], "PATCH up/7");
    assert_eq!(
        (&block["flock"], &block["local"]),
        (&Value::from(true), &Value::from(true))
    );
    let mode = fs::metadata(fixture.lock()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    guard.release().unwrap();
    assert!(fixture.names().is_empty());
}

/// U7 (upload record size limit), K30: a purpose that makes the record too large is refused before
/// any file is touched.
#[test]
fn a_record_stays_within_its_limit() {
    let fixture = UploadFixture::new();
    let purpose = Some("x".repeat(4000));
    let request = LockRequest {
        purpose,
        ..LockRequest::new(Wait::No, nothing())
    };
    let error = fixture.locker().lock_for(&up(), request).unwrap_err();
    assert_eq!(error.class(), Class::BadInput);
    assert!(fixture.names().is_empty());
}

/// A zero time means the default for some settings and is refused for the poll intervals.
#[test]
fn zero_times_are_defaults_or_refused() {
    let fixture = UploadFixture::new();
    let with = |times| {
        FileLocker::with(
            fixture.dir(),
            Options {
                times,
                ..Options::default()
            },
        )
    };
    let zero = Duration::ZERO;
    let times = UploadTimes {
        acquire_timeout: zero,
        grace: zero,
        ..UploadTimes::default()
    };
    assert_eq!(with(times).unwrap().options().times, UploadTimes::default());
    for times in [
        UploadTimes {
            holder_poll: zero,
            ..UploadTimes::default()
        },
        UploadTimes {
            acquirer_poll: zero,
            ..UploadTimes::default()
        },
    ] {
        assert_eq!(with(times).unwrap_err().class(), Class::BadInput);
    }
    let wait = FileLocker::new(fixture.dir()).unwrap().default_wait();
    assert_eq!(wait, Wait::For(Duration::from_secs(20)));
}

/// U10.3 (acquire an upload lock), K42: an event, not a poll, lets a waiter take over from a killed
/// holder.
#[test]
fn a_killed_holders_lock_is_taken_over() {
    let fixture = UploadFixture::new();
    let holder = Actor::spawn(&["hold", "upload"], fixture.dir());
    holder.says("held");
    let waiter = Actor::spawn(&["hold", "upload"], fixture.dir());
    holder.says("asked");
    holder.kill();
    waiter.says("held");
    assert_eq!(fixture.block()["pid"], waiter.pid());
}

/// U11: many threads; at most one holds the lock.
#[test]
fn threads_are_inside_one_at_a_time() {
    let fixture = UploadFixture::new();
    let locker = fixture.locker();
    let inside = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let guard = locker.lock(&up(), LONG, nothing()).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                    guard.check().unwrap();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().unwrap();
                }
            });
        }
    });
    assert!(fixture.names().is_empty(), "{:?}", fixture.names());
}

/// U13.1 (order of upload tests): a record without read permission counts as held by an unknown
/// holder.
#[test]
fn an_unreadable_record_is_held() {
    let fixture = UploadFixture::new();
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(fixture.lock(), "0\n").unwrap();
    fs::set_permissions(fixture.lock(), fs::Permissions::from_mode(0o600)).unwrap();
    set_age(&fixture.lock(), HOUR);
    Actor::spawn_as(OTHER_USER, &["try", "upload"], fixture.dir()).says("Timeout");
    assert!(fixture.lock().exists());
}

/// U13.3, K16: a live process of another user is alive. Checked by a process without permission to
/// signal it; the original would remove the lock.
#[test]
fn another_users_holder_is_alive() {
    let machine = TestMachine::new();
    let fixture = UploadFixture::new();
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(fixture.lock(), machine.vector("upload", "alive.tmpl")).unwrap();
    fs::set_permissions(fixture.lock(), fs::Permissions::from_mode(0o644)).unwrap();
    Actor::spawn_as(OTHER_USER, &["try", "upload"], fixture.dir()).says("Timeout");
    assert!(fixture.lock().exists());
    Actor::spawn_as(OTHER_USER, &["try", "original-upload"], fixture.dir()).says("ok");
}

/// U18 (heartbeat of upload locks), K33: the heartbeat is written in place.
#[test]
fn a_holder_beats() {
    let fixture = UploadFixture::new();
    let locker = fixture.locker_with(|options| options.heartbeat = Duration::from_millis(5));
    let guard = locker.lock(&up(), Wait::No, nothing()).unwrap();
    let inode = fs::metadata(fixture.lock()).unwrap().ino();
    eventually("the second beat", || {
        fixture.block()["beat"].as_str().unwrap() >= "0000000002"
    });
    assert_eq!(fs::metadata(fixture.lock()).unwrap().ino(), inode);
    guard.release().unwrap();
}

/// U20 (release without a hold), U23 (library interface), K36: a lost lock cannot be released, and
/// no file is touched; a dropped guard releases.
#[test]
fn a_lost_lock_is_noticed_and_left_alone() {
    let fixture = UploadFixture::new();
    let guard = fixture.hold();
    let (lost, seen) = mpsc::channel();
    guard
        .file()
        .unwrap()
        .on_lost(move |loss| lost.send(loss.cause).unwrap());
    touch_stop(&fixture, SystemTime::now() - HOUR);
    fs::remove_file(fixture.lock()).unwrap();
    seen.recv_timeout(TIMEOUT)
        .expect("the loss is noticed without being asked for");
    fs::write(fixture.lock(), "40217\n").unwrap();
    assert_eq!(guard.release().unwrap_err().class(), Class::Compromised);
    assert_eq!(fs::read_to_string(fixture.lock()).unwrap(), "40217\n");
    assert!(
        fixture.stop().exists(),
        "the request is for the present holder"
    );

    let fixture = UploadFixture::new();
    drop(fixture.hold());
    assert!(fixture.names().is_empty());
}

/// U10.3, K34: an original of another user deletes a live Tenure lock; the holder detects it.
#[test]
fn an_original_that_robs_us_is_noticed() {
    let fixture = UploadFixture::new();
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let guard = fixture.hold();
    let (lost, seen) = mpsc::channel();
    guard
        .file()
        .unwrap()
        .on_lost(move |loss| lost.send(loss.cause).unwrap());
    let robber = Actor::spawn_as(OTHER_USER, &["hold", "original-upload"], fixture.dir());
    robber.says("held");
    seen.recv_timeout(TIMEOUT).expect("the loss is noticed");
    assert_eq!(guard.check().unwrap_err().class(), Class::Compromised);
}

/// U24: the address in a message works with `break`, also with `/` in the identifier.
#[test]
fn a_refusal_says_who_and_what_next() {
    let fixture = UploadFixture::new();
    fs::create_dir(fixture.dir().join("a")).unwrap();
    let locker = fixture.locker();
    let id = UploadId::new("a/b").unwrap();
    let _guard = locker.lock(&id, Wait::No, nothing()).unwrap();
    let text = locker
        .lock(&id, Wait::No, nothing())
        .unwrap_err()
        .to_string();
    let address = format!("tenure break upload:{}#a/b", fixture.dir().display());
    for part in ["alive", &std::process::id().to_string(), &address] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

/// U24: list, ask, break, clean.
#[test]
fn a_directory_can_be_listed_asked_broken_and_cleaned() {
    let fixture = UploadFixture::new();
    fs::create_dir(fixture.dir().join("sub")).unwrap();
    let locker = fixture.locker();
    assert!(
        locker
            .ask(&up(), &UploadReleaseRequest::new(None))
            .unwrap()
            .is_none(),
        "no holder to ask"
    );
    let (on_request, requests) = listener();
    let guard = locker.lock(&up(), Wait::No, on_request).unwrap();
    locker
        .ask(&up(), &UploadReleaseRequest::new(Some("tidy".into())))
        .unwrap()
        .unwrap();
    assert_eq!(requests.try_recv().unwrap().reason.as_deref(), Some("tidy"));

    // A dead lock, old junk that is too large, a request without a lock, and a private file of a
    // crashed process.
    let dead = fixture.dir().join("sub/dead.lock");
    let sub = UploadId::new("sub/dead").unwrap();
    locker.lock(&sub, Wait::No, nothing()).unwrap().leave();
    assert!(dead.exists());
    // A pid file may be that of any program, so it is not cleaned.
    let other = fixture.dir().join("other.lock");
    fs::write(&other, format!("{}\n", dead_pid())).unwrap();
    fs::write(fixture.dir().join("big.lock"), "x".repeat(100)).unwrap();
    set_age(&fixture.dir().join("big.lock"), HOUR);
    let orphan = fixture.dir().join("orphan.stop");
    fs::write(&orphan, "").unwrap();
    set_age(&orphan, HOUR);
    let fresh = fixture.dir().join("fresh.stop");
    fs::write(&fresh, "").unwrap();
    let listed: Vec<String> = locker
        .list()
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(listed, ["big", "other", "sub/dead", "up"]);

    let cleaned = locker.clean().unwrap();
    let ids = |ids: &[UploadId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(ids(&cleaned.locks), ["sub/dead"]);
    assert_eq!(ids(&cleaned.requests), ["orphan"]);
    assert!(fresh.exists(), "a process may be waiting");
    assert!(other.exists());
    guard.check().unwrap();

    let seen = || locker.inspect(&up()).unwrap().observed_lock.unwrap();
    assert_eq!(seen().break_it(Force::No).unwrap_err().class(), Class::Held);
    seen().break_it(Force::Yes).unwrap();
    assert_eq!(guard.check().unwrap_err().class(), Class::Compromised);
}

/// K39: the fence grows with every lock and is written to the record.
#[test]
fn fences_grow() {
    let fixture = UploadFixture::new();
    let locker = fixture.locker_with(|options| options.fence = Fencing::Taken);
    let numbers: Vec<u64> = (0..3)
        .map(|_| {
            let guard = locker.lock(&up(), Wait::No, nothing()).unwrap();
            let fence = guard.file().unwrap().fence().unwrap().get();
            assert_eq!(fixture.block()["fence"], fence);
            guard.release().unwrap();
            fence
        })
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
}

/// Intervals beyond the range of the clock are accepted; nothing overflows.
#[test]
fn endless_intervals_are_long_ones() {
    let fixture = UploadFixture::new();
    let locker = fixture.locker_with(|options| {
        options.heartbeat = Duration::MAX;
        options.times.holder_poll = Duration::MAX;
        options.times.acquirer_poll = Duration::MAX;
        options.times.grace = Duration::MAX;
        options.times.confirm = Duration::MAX;
    });
    let guard = locker.lock(&up(), Wait::No, nothing()).unwrap();
    guard.release().unwrap();
    for pid in [LiveProcess::spawn().pid(), dead_pid()] {
        fs::write(fixture.lock(), format!("{pid}\n")).unwrap();
        let short = Wait::For(Duration::from_millis(30));
        locker
            .lock(&up(), short, nothing())
            .map(drop)
            .unwrap_or_else(|error| assert_ne!(error.class(), Class::Io));
    }
}

/// C16: breaking a live lock by force increments the fence, so that resources reject its holder.
#[test]
fn force_raises_the_fence() {
    let fixture = UploadFixture::new();
    let locker = fixture.locker_with(|options| options.fence = Fencing::Taken);
    let lock = || locker.lock(&up(), Wait::No, nothing()).unwrap();
    let _broken = lock();
    let seen = locker.inspect(&up()).unwrap().observed_lock.unwrap();
    seen.break_it(Force::Yes).unwrap();
    let counter = fs::read_to_string(fixture.dir().join(".tenure-fence")).unwrap();
    assert_eq!(counter.trim().parse::<u64>().unwrap(), 2);
}

/// Interoperability, one after the other: each side excludes the other, asks it to release, and
/// takes over after it was killed.
#[test]
fn originals_and_tenure_hand_over_to_each_other() {
    for (holder, waiter) in [("upload", "original-upload"), ("original-upload", "upload")] {
        let fixture = UploadFixture::new();
        let mut first = Actor::spawn(&["hold", holder], fixture.dir());
        first.says("held");
        Actor::spawn(&["try", waiter], fixture.dir()).hear();
        let second = Actor::spawn(&["hold", waiter], fixture.dir());
        first.says("asked");
        assert!(second.is_silent());
        first.tell("release");
        first.says("released");
        second.says("held");

        let third = Actor::spawn(&["hold", holder], fixture.dir());
        second.says("asked");
        second.kill();
        third.says("held");
    }
}

/// C13: a hold that follows another process outlives its handle, is adopted by its token, and ends
/// with that process.
#[test]
fn a_hold_may_follow_another_process() {
    let fixture = UploadFixture::new();
    let followed = LiveProcess::spawn();
    let lock = || {
        let follows = Some(followed.pid());
        let request = LockRequest {
            follows,
            ..LockRequest::new(Wait::No, nothing())
        };
        fixture
            .locker()
            .lock_for(&up(), request)
            .unwrap()
            .leave()
            .unwrap()
    };
    let token = lock();
    assert_eq!(fixture.block()["pid"], followed.pid());
    assert_eq!(fixture.block()["flock"], false);
    let error = fixture
        .locker()
        .lock(&up(), Wait::No, nothing())
        .unwrap_err();
    assert_eq!(error.class(), Class::Held);
    fixture
        .locker()
        .adopt(&up(), token)
        .unwrap()
        .release()
        .unwrap();
    lock();
    drop(followed);
    drop(fixture.locker().lock(&up(), Wait::No, nothing()).unwrap());
}

/// A cancelled wait ends immediately, on disk and in memory, and leaves no request.
#[test]
fn a_cancelled_wait_ends() {
    let fixture = UploadFixture::new();
    let on_disk = Actor::spawn(&["hold", "upload"], fixture.dir());
    on_disk.says("held");
    let other = UploadId::new("other").unwrap();
    let _in_memory = fixture.locker().lock(&other, Wait::No, nothing()).unwrap();
    for id in [up(), other] {
        let cancel = Cancel::new().unwrap();
        let request = LockRequest {
            cancel: Some(cancel.clone()),
            ..LockRequest::new(Wait::Forever, nothing())
        };
        let class = thread::scope(|scope| {
            let waiter = scope.spawn(|| fixture.locker().lock_for(&id, request));
            if id == up() {
                on_disk.says("asked");
            }
            cancel.cancel();
            waiter.join().unwrap().unwrap_err().class()
        });
        assert_eq!(class, Class::Timeout);
    }
    assert_eq!(fixture.names(), ["other.lock", "up.lock"]);
}

/// Futures: one completes, and a dropped one cancels.
#[test]
fn a_future_resolves_and_a_dropped_one_withdraws() {
    let fixture = UploadFixture::new();
    let locker = fixture.locker();
    let mut held = Actor::spawn(&["hold", "upload"], fixture.dir());
    held.says("held");
    let request = || LockRequest::new(Wait::Forever, nothing());
    drop(lock_async(&locker, &up(), request()));
    let future = lock_async(&locker, &up(), request());
    held.says("asked");
    held.tell("release");
    let guard = block_on(future).unwrap();
    guard.release().unwrap();
    eventually("nothing is left", || fixture.names().is_empty());
}

fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// U22: a lock in memory is not visible to other processes: there is no file, and a locker on disk
/// is not blocked.
#[test]
fn a_lock_in_memory_does_not_reach_the_disk() {
    let fixture = UploadFixture::new();
    let _memory = MemoryLocker::new()
        .lock(&up(), Wait::No, nothing())
        .unwrap();
    assert!(fixture.names().is_empty());
    drop(fixture.hold());
    Actor::spawn(&["try", "upload"], fixture.dir()).says("ok");
}
