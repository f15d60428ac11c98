//! Failures within one process: lost locks, foreign files, panics in callbacks, counters that another
//! process keeps locked, cancellation at every stage.

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use tenure_files::exclusive::{ExclusiveServer, FILE_NAME, Quiesce, Tool};
use tenure_files::internal::block_on;
use tenure_files::sidecar::{self, Heartbeat, Manager};
use tenure_files::upload::{
    self, FileLocker, LockRequest, UploadId, UploadLocker, UploadReleaseRequest,
};
use tenure_files::{Cancel, Class, Durability, OnWait, Wait};
use tenure_testkit::sidecar::{SidecarFixture, class, manager};
use tenure_testkit::{TIMEOUT, eventually, set_age};

/// Longer than any test runs: only an event ends such a wait.
const LONG: Duration = Duration::from_secs(600);

fn upload_id(text: &str) -> UploadId {
    UploadId::new(text).unwrap()
}

fn locker(dir: &tempfile::TempDir) -> FileLocker {
    let options = upload::Options {
        durability: Durability::Fast,
        ..upload::Options::default()
    };
    FileLocker::with(dir.path(), options).unwrap()
}

/// S15 (locks within one process), K34 (detect a lost lock): the owner of a lost lock that acquires
/// it again gets an error, whether another process holds it by now or not.
#[test]
fn a_reentrant_owner_learns_that_its_lock_is_lost() {
    for taken_by_another in [false, true] {
        let fixture = SidecarFixture::new();
        let ours = || fixture.once().reentrant_owner("me");
        let first = manager("domain").acquire(&ours()).unwrap();
        let again = manager("domain").acquire(&ours()).unwrap();
        fs::remove_file(&fixture.lock).unwrap();
        let other = taken_by_another.then(|| manager("other").acquire(&fixture.once()).unwrap());
        assert_eq!(
            class(manager("domain").acquire(&ours())),
            Class::Compromised
        );
        assert_eq!(
            again.release().ok(),
            Some(()),
            "a nested guard ends quietly"
        );
        assert_eq!(first.release().unwrap_err().class(), Class::Compromised);
        if let Some(other) = other {
            other.verify_still_held().unwrap();
            other.release().unwrap();
        }
        manager("domain")
            .acquire(&ours())
            .unwrap()
            .release()
            .unwrap();
    }
}

/// S15: a lost lock whose guard still exists keeps no other owner of this process out.
#[test]
fn a_lost_guard_keeps_no_other_owner_out() {
    let fixture = SidecarFixture::new();
    let first = manager("domain").acquire(&fixture.once()).unwrap();
    fs::remove_file(&fixture.lock).unwrap();
    assert_eq!(
        first.verify_still_held().unwrap_err().class(),
        Class::Compromised
    );
    let second = manager("domain").acquire(&fixture.once()).unwrap();
    assert_eq!(first.release().unwrap_err().class(), Class::Compromised);
    second.verify_still_held().unwrap();
    second.release().unwrap();
}

/// K30 (keep files that are no records), U10, U14, U19: an upload whose own name ends in `.stop` is
/// neither overwritten by a waiter nor removed by a holder.
#[test]
fn an_upload_named_like_a_request_survives() {
    let temp = tempfile::tempdir().unwrap();
    let data = vec![b'd'; 5_000_000];
    let stop = temp.path().join("x.stop");
    fs::write(&stop, &data).unwrap();
    set_age(&stop, Duration::from_secs(3600));
    let (locker, id) = (locker(&temp), upload_id("x"));
    let guard = locker.lock(&id, Wait::No, Arc::new(|_| {})).unwrap();
    // A waiter of another process, simulated by a request that does not go through our table.
    let asked = locker.ask(&id, &UploadReleaseRequest::new(None));
    assert!(asked.is_ok(), "a holder of this process is asked directly");
    guard.release().unwrap();
    assert_eq!(fs::read(&stop).unwrap(), data);
}

/// K30, U24 (upload address and verbs): cleaning removes what carries Tenure's mark, and nothing else.
#[test]
fn cleaning_leaves_files_of_other_programs() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("sub")).unwrap();
    let files: [(&str, &[u8]); 5] = [
        ("sub/bus.stop", &[b's'; 3_000_000]),
        ("note.stop", b"see you at the bus stop"),
        ("Gemfile.lock", b"GEM 1"),
        ("daemon.lock", b"4194000\n"),
        ("empty.lock", b""),
    ];
    for (name, bytes) in files {
        fs::write(temp.path().join(name), bytes).unwrap();
        set_age(&temp.path().join(name), Duration::from_secs(3600));
    }
    let (locker, id) = (locker(&temp), upload_id("dead"));
    let guard = locker.lock(&id, Wait::No, Arc::new(|_| {})).unwrap();
    guard.leave();
    fs::write(temp.path().join("gone.stop"), b"").unwrap();
    set_age(&temp.path().join("gone.stop"), Duration::from_secs(3600));
    let cleaned = locker.clean().unwrap();
    assert_eq!(cleaned.locks, [id]);
    assert_eq!(cleaned.requests, [upload_id("gone")]);
    for (name, bytes) in files {
        let left = fs::read(temp.path().join(name));
        assert_eq!(left.unwrap(), bytes, "{name}");
    }
}

/// K39 (fencing number per acquisition), K43 (poll jitter and deadlines): a process that keeps the
/// counter locked delays others no longer than they wait, and leaves no lock behind.
#[test]
fn the_fence_counter_obeys_deadline_and_cancellation() {
    let fixture = SidecarFixture::new();
    let fenced = || fixture.options().fence();
    manager("m").acquire(&fenced()).unwrap().release().unwrap();
    let counter = File::open(fixture.target.with_file_name(".tenure-fence")).unwrap();
    flock(&counter, FlockOperation::LockExclusive).unwrap();

    let error = manager("m").try_acquire(&fenced()).unwrap_err();
    assert_eq!(error.class(), Class::Held, "{error}");
    assert!(error.to_string().contains(".tenure-fence"), "{error}");
    let short = fenced().timeout(Duration::from_millis(10));
    assert_eq!(class(manager("m").acquire(&short)), Class::Timeout);
    assert!(!fixture.lock.exists());

    let cancel = Cancel::new().unwrap();
    let patient = fenced().cancel(cancel.clone());
    let waiting = std::thread::spawn(move || class(manager("m").acquire(&patient)));
    eventually("the lock is published", || fixture.lock.exists());
    cancel.cancel();
    assert_eq!(waiting.join().unwrap(), Class::Timeout);
    assert!(!fixture.lock.exists());

    flock(&counter, FlockOperation::Unlock).unwrap();
    let guard = manager("m").acquire(&fenced()).unwrap();
    assert!(guard.fence().unwrap().get() >= 2);
    guard.release().unwrap();
}

/// X19 (settle time for servers), X20 (the gate file): a dropped acquisition leaves nothing behind,
/// also while it waits for a cycle or for the settle time.
#[test]
fn a_cancelled_tool_takes_its_lock_away_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let record = temp.path().join(FILE_NAME);
    let tool = || {
        let tool = Tool::new(temp.path(), "tool").unwrap();
        tool.durability(Durability::Fast)
    };
    let settling = tool().quiesce(Quiesce::Skip).settle(LONG);
    let future = settling.acquire_async(Wait::No);
    eventually("the lock is published", || record.exists());
    drop(future);
    eventually("the lock is gone", || !record.exists());

    let cycle = ExclusiveServer::new(temp.path()).begin_cycle().unwrap();
    let future = tool().quiesce(Quiesce::For(LONG)).acquire_async(Wait::No);
    eventually("the lock is published", || record.exists());
    drop(future);
    eventually("the lock is gone", || !record.exists());
    drop(cycle);
}

/// A panic in a callback ends the call that ran it: where the future is polled, or on the calling
/// thread. No call waits without end.
#[test]
fn a_panic_in_a_callback_ends_the_call() {
    let fixture = SidecarFixture::new();
    let panicking = fixture.once().payload(|| panic!("a bug of the caller"));
    let future = sidecar::acquire_async(&manager("p"), panicking);
    let caught = catch_unwind(AssertUnwindSafe(|| block_on(future)));
    assert!(caught.is_err(), "the panic must arrive");
    assert!(fixture.names().is_empty(), "{:?}", fixture.names());
    manager("p")
        .acquire(&fixture.once())
        .unwrap()
        .release()
        .unwrap();
}

/// U11 (upload locks within one process): the holder's callback runs on the newcomer's thread. Its
/// panic is not the newcomer's.
#[test]
fn a_panic_of_the_holder_does_not_end_the_newcomer() {
    let temp = tempfile::tempdir().unwrap();
    let (locker, id) = (locker(&temp), upload_id("up"));
    let (asked, was_asked) = channel();
    let on_request = Arc::new(move |_: &UploadReleaseRequest| {
        asked.send(()).unwrap();
        panic!("a bug of the holder");
    });
    let guard = locker.lock(&id, Wait::No, on_request).unwrap();
    let newcomer = {
        let (locker, id) = (locker.clone(), id.clone());
        std::thread::spawn(move || locker.lock(&id, Wait::For(LONG), Arc::new(|_| {})))
    };
    was_asked.recv_timeout(TIMEOUT).unwrap();
    guard.release().unwrap();
    newcomer.join().unwrap().unwrap().release().unwrap();
}

/// A wait is one loop: reports come from inside it, about once a second, and name the holder.
#[test]
fn a_waiter_reports_from_inside_its_wait() {
    let temp = tempfile::tempdir().unwrap();
    type Acquire<'a> = Box<dyn Fn(OnWait) + Send + Sync + 'a>;
    let target = temp.path().join("state.json");
    let sidecar = sidecar::Options::new(&target).durability(Durability::Fast);
    let tool = Tool::new(temp.path(), "tool")
        .unwrap()
        .quiesce(Quiesce::Skip);
    let (locker, id) = (locker(&temp), upload_id("up"));
    let held = manager("holder").acquire(&sidecar).unwrap();
    let held_tool = tool.acquire(Wait::No).unwrap();
    let held_upload = locker.lock(&id, Wait::No, Arc::new(|_| {})).unwrap();
    let waits: [(&str, Acquire<'_>); 3] = [
        (
            "state.json",
            Box::new(|tell| {
                let options = sidecar.clone().on_wait(tell);
                manager("waiter")
                    .acquire(&options)
                    .unwrap()
                    .release()
                    .unwrap();
            }),
        ),
        (
            "exclusive",
            Box::new(|tell| {
                let tool = tool.clone().on_wait(tell).poll(LONG);
                tool.acquire(Wait::Forever).unwrap().release().unwrap();
            }),
        ),
        (
            "up",
            Box::new(|tell| {
                let request = LockRequest {
                    on_wait: Some(tell),
                    ..LockRequest::new(Wait::Forever, Arc::new(|_| {}))
                };
                locker.lock_for(&id, request).unwrap().release().unwrap();
            }),
        ),
    ];
    std::thread::scope(|scope| {
        let mut reports = Vec::new();
        for (name, wait) in waits {
            let (report, reported) = channel();
            reports.push((name, reported));
            let tell = OnWait::new(move |error| {
                let _ = report.send((error.class(), error.to_string()));
            });
            scope.spawn(move || wait(tell));
        }
        for (name, reported) in reports {
            for _ in 0..2 {
                let (class, text) = reported.recv_timeout(TIMEOUT).unwrap();
                assert_eq!(class, Class::Timeout, "{text}");
                assert!(text.contains(name), "{text}");
                assert!(text.contains(&std::process::id().to_string()), "{text}");
            }
        }
        held.release().unwrap();
        held_tool.release().unwrap();
        held_upload.release().unwrap();
    });
}

/// S11 (no creation date with heartbeats): a hold that follows another process is kept alive by
/// `renew`. Its record has no creation date, which would count before the modification time.
#[test]
fn renewing_a_hold_for_a_script_makes_it_young() {
    let fixture = SidecarFixture::new();
    let process = tenure_testkit::LiveProcess::spawn();
    let options = fixture.once().follows(process.pid());
    let token = manager("lock").acquire(&options).unwrap().leave();
    assert!(!fixture.payload().contains_key("createdAt"));
    set_age(&fixture.lock, Duration::from_secs(3600));
    sidecar::adopt(&options, token).unwrap().beat().unwrap();
    let age = fs::metadata(&fixture.lock)
        .unwrap()
        .modified()
        .unwrap()
        .elapsed();
    assert!(age.unwrap_or_default() < Duration::from_secs(30));
}

/// K33 (heartbeat in place): a callback that does not return delays no heartbeat of another lock.
#[test]
fn a_slow_callback_stops_no_heartbeat() {
    let (slow, beating) = (SidecarFixture::new(), SidecarFixture::new());
    let often = Heartbeat::Every(Duration::from_millis(100));
    let lost = Manager::new("slow")
        .acquire(&slow.once().heartbeat(often))
        .unwrap();
    let kept = Manager::new("kept")
        .acquire(&beating.once().heartbeat(often))
        .unwrap();
    let (entered, is_inside) = channel();
    let (leave, may_leave) = channel::<()>();
    let may_leave = Mutex::new(may_leave);
    lost.on_lost(move |_| {
        entered.send(()).unwrap();
        let _ = may_leave.lock().unwrap().recv_timeout(TIMEOUT);
    });
    fs::remove_file(&slow.lock).unwrap();
    is_inside.recv_timeout(TIMEOUT).unwrap();
    let before = beating.identity().beat;
    let began = Instant::now();
    eventually("the other lock beats", || beating.identity().beat != before);
    assert!(began.elapsed() < TIMEOUT);
    leave.send(()).unwrap();
    kept.release().unwrap();
}
