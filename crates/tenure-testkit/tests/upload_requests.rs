//! Release requests of upload locks, and the test of doubtful holders.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use support::actor::Actor;
use support::uploads::{HOUR, LONG, SOON, UploadFixture, listener, nothing, touch_stop, up};
use tenure_files::Class;
use tenure_files::upload::{FileLocker, UploadLocker, UploadReleaseRequest, UploadTimes, Wait};
use tenure_testkit::{LiveProcess, OTHER_USER, TIMEOUT, TestMachine, dead_pid, eventually};

/// U8 (duration of a hand-over), U14 (make a release request), U15: a hand-over between two Tenure
/// processes needs two events and no poll.
#[test]
fn a_holder_in_another_process_hears_the_request_and_hands_over() {
    let fixture = UploadFixture::new();
    let mut holder = Actor::spawn(&["hold", "upload"], fixture.dir());
    holder.says("held");
    let waiter = Actor::spawn(&["hold", "upload"], fixture.dir());
    holder.says("asked");
    assert!(
        waiter.is_silent(),
        "after being asked the holder still has it"
    );
    holder.tell("release");
    holder.says("released");
    waiter.says("held");
}

/// U10.5 (acquire an upload lock), U16: at the deadline the class is `Timeout`, and the waiter
/// removes its request.
#[test]
fn a_waiter_that_gives_up_takes_its_request_with_it() {
    let fixture = UploadFixture::new();
    let guard = fixture.hold();
    Actor::spawn(&["try", "upload"], fixture.dir()).says("Timeout");
    assert_eq!(fixture.names(), ["up.lock"]);
    guard.release().unwrap();
}

/// U16: a request that another process has renewed stays.
#[test]
fn a_renewed_request_stays_when_a_waiter_gives_up() {
    let fixture = UploadFixture::new();
    let alive = LiveProcess::spawn();
    fs::write(fixture.lock(), format!("{}\n", alive.pid())).unwrap();
    let class = thread::scope(|scope| {
        scope.spawn(|| {
            eventually("the request", || {
                fs::metadata(fixture.stop()).is_ok_and(|stop| stop.len() > 0)
            });
            let stop = fs::OpenOptions::new()
                .write(true)
                .open(fixture.stop())
                .unwrap();
            stop.set_modified(SystemTime::now() + Duration::from_secs(1))
                .unwrap();
        });
        let wait = Wait::For(Duration::from_millis(300));
        fixture
            .locker()
            .lock(&up(), wait, nothing())
            .unwrap_err()
            .class()
    });
    assert_eq!(class, Class::Timeout);
    assert!(
        fixture.stop().exists(),
        "another waiter's request was removed"
    );
}

/// U14: an attempt without waiting leaves no request.
#[test]
fn who_does_not_wait_does_not_ask() {
    let fixture = UploadFixture::new();
    let alive = LiveProcess::spawn();
    fs::write(fixture.lock(), format!("{}\n", alive.pid())).unwrap();
    let error = fixture
        .locker()
        .lock(&up(), Wait::No, nothing())
        .unwrap_err();
    assert_eq!(error.class(), Class::Held);
    assert_eq!(fixture.names(), ["up.lock"]);
}

/// U14: the request is readable for all, addressed to the current holder, and names the requester.
#[test]
fn a_request_is_addressed_and_signed() {
    let fixture = UploadFixture::new();
    let holder = Actor::spawn(&["hold", "upload"], fixture.dir());
    holder.says("held");
    let request = UploadReleaseRequest::new(Some("HEAD up/7".into()));
    let asked = fixture.locker().ask(&up(), &request).unwrap().unwrap();
    assert_eq!(asked.pid, Some(holder.pid()));
    holder.says("asked");
    let line = fixture.request();
    assert_eq!(line["for"], fixture.token());
    assert_eq!(line["by"]["pid"], std::process::id());
    assert_eq!(line["reason"], "HEAD up/7");
    let mode = fs::metadata(fixture.stop()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777 & !0o644, 0);
    let seen = fixture.locker().inspect(&up()).unwrap().request.unwrap();
    assert_eq!(seen.reason.as_deref(), Some("HEAD up/7"));
}

/// U14: a request of another user without write permission stays as it is.
#[test]
fn another_users_request_stands() {
    let fixture = UploadFixture::new();
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let alive = LiveProcess::spawn_as_other_user();
    fs::write(fixture.lock(), format!("{}\n", alive.pid())).unwrap();
    fs::set_permissions(fixture.lock(), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(fixture.stop(), "").unwrap();
    fs::set_permissions(fixture.stop(), fs::Permissions::from_mode(0o600)).unwrap();
    Actor::spawn_as(OTHER_USER, &["try", "upload"], fixture.dir()).says("Timeout");
    assert!(fixture.stop().exists());
}

/// U14, K28: a symlink in place of the request is not followed.
#[test]
fn a_request_does_not_follow_a_symlink() {
    let fixture = UploadFixture::new();
    let alive = LiveProcess::spawn();
    fs::write(fixture.lock(), format!("{}\n", alive.pid())).unwrap();
    fs::write(fixture.dir().join("precious"), "data").unwrap();
    std::os::unix::fs::symlink("precious", fixture.stop()).unwrap();
    let error = fixture.locker().lock(&up(), SOON, nothing()).unwrap_err();
    assert_eq!(error.class(), Class::Io);
    assert_eq!(
        fs::read_to_string(fixture.dir().join("precious")).unwrap(),
        "data"
    );
}

/// Asks the current holder, and asserts that this is the first request it receives.
#[track_caller]
fn hears_only_this(fixture: &UploadFixture, requests: &mpsc::Receiver<UploadReleaseRequest>) {
    let line = format!(
        "tenure {{\"for\":\"{}\",\"reason\":\"this\"}}\n",
        fixture.token()
    );
    // In one step: an empty file, as a rewrite leaves it for a moment, is also a request.
    let private = fixture.dir().join("private");
    fs::write(&private, line).unwrap();
    fs::rename(&private, fixture.stop()).unwrap();
    let heard = requests.recv_timeout(TIMEOUT).expect("the holder listens");
    assert_eq!(
        heard.reason.as_deref(),
        Some("this"),
        "another request was heard before"
    );
    assert!(requests.try_recv().is_err(), "heard more than once");
}

/// U15: the request vectors: a request that is meant for the holder is delivered once, others are
/// ignored.
#[test]
fn a_holder_hears_what_is_meant_for_it() {
    let later = || SystemTime::now() + Duration::from_secs(5);
    let earlier = || SystemTime::now() - Duration::from_secs(5);
    let vector = |file: &str| {
        let path = tenure_testkit::vectors().join("upload").join(file);
        fs::read_to_string(path).unwrap()
    };
    const TOKEN: &str = "6f0c4f9d2d7f4a0fb1f6f6f1f0a9d3c2";
    let cases = [
        ("stop-empty.stop", later(), true),
        ("stop-garbage.stop", later(), true),
        ("stop-for-this.stop", later(), true),
        ("stop-for-this.stop", earlier(), true),
        ("stop-for-other.stop", later(), false),
        ("stop-for-other.stop", earlier(), false),
        ("stop-empty.stop", earlier(), false),
    ];
    for (file, time, is_heard) in cases {
        let fixture = UploadFixture::new();
        let (on_request, requests) = listener();
        let guard = fixture.locker().lock(&up(), Wait::No, on_request).unwrap();
        let text = vector(file).replace(TOKEN, &fixture.token());
        // In one step, by a rename: the holder must not see the file with another time.
        let private = fixture.dir().join("private");
        fs::write(&private, text).unwrap();
        let handle = fs::OpenOptions::new().write(true).open(&private).unwrap();
        handle.set_modified(time).unwrap();
        fs::rename(&private, fixture.stop()).unwrap();
        if is_heard {
            let request = requests.recv_timeout(TIMEOUT).expect(file);
            if file == "stop-for-this.stop" {
                assert_eq!(request.reason.as_deref(), Some("HEAD up/7"));
                assert_eq!(request.by.unwrap().pid, Some(7));
                assert!(guard.file().unwrap().requested().is_some());
            }
            // Only once, even if it is renewed.
            touch_stop(&fixture, later() + Duration::from_secs(5));
        }
        if !is_heard {
            hears_only_this(&fixture, &requests);
        }
        assert!(requests.try_recv().is_err(), "{file}: heard more than once");
        guard.release().unwrap();
    }
}

/// U10.6: a request for a previous holder is removed and does not interrupt.
#[test]
fn a_request_left_from_before_is_removed_at_acquisition() {
    let fixture = UploadFixture::new();
    touch_stop(&fixture, SystemTime::now() - Duration::from_secs(60));
    let (on_request, requests) = listener();
    let guard = fixture.locker().lock(&up(), Wait::No, on_request).unwrap();
    assert!(!fixture.stop().exists());
    hears_only_this(&fixture, &requests);
    guard.release().unwrap();
}

/// U10.6: a waiter is not interrupted by its own request. The holder is killed, so that only the
/// waiter can remove the request; an original's request has no addressee.
#[test]
fn a_waiter_does_not_interrupt_itself() {
    let fixture = UploadFixture::new();
    for who in ["original-upload", "upload"] {
        let holder = Actor::spawn(&["hold", who], fixture.dir());
        holder.says("held");
        let (on_request, requests) = listener();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| fixture.locker().lock(&up(), LONG, on_request).unwrap());
            holder.says("asked");
            holder.kill();
            let guard = waiter.join().unwrap();
            assert!(!fixture.stop().exists(), "its own request still stands");
            hears_only_this(&fixture, &requests);
            guard.release().unwrap();
        });
    }
}

/// U15, U17: after a request the lock stays until its holder releases it, also after `grace`.
#[test]
fn a_holder_may_refuse() {
    let fixture = UploadFixture::new();
    let times = UploadTimes {
        grace: Duration::from_millis(1),
        ..UploadTimes::default()
    };
    let locker = fixture.locker_with(|options| options.times = times);
    let (on_request, requests) = listener();
    let guard = locker.lock(&up(), Wait::No, on_request).unwrap();
    Actor::spawn(&["try", "upload"], fixture.dir()).says("Timeout");
    requests.recv_timeout(TIMEOUT).expect("it was asked");
    guard.check().unwrap();
    guard.release().unwrap();
}

/// U11 (upload locks within one process), U12: threads of one process exclude each other and send
/// requests in memory, without files.
#[test]
fn threads_ask_each_other_through_memory() {
    let fixture = UploadFixture::new();
    let locker = fixture.locker();
    let (on_request, requests) = listener();
    let guard = locker.lock(&up(), Wait::No, on_request).unwrap();
    assert_eq!(
        locker.lock(&up(), Wait::No, nothing()).unwrap_err().class(),
        Class::Held
    );
    assert!(
        requests.try_recv().is_err(),
        "who does not wait does not ask"
    );
    assert_eq!(
        locker.lock(&up(), SOON, nothing()).unwrap_err().class(),
        Class::Timeout
    );
    let request = requests.try_recv().expect("asked at once, through memory");
    assert_eq!(request.by.unwrap().pid, Some(std::process::id()));
    assert_eq!(fixture.names(), ["up.lock"], "no request on disk");
    // Another path to the same directory is the same lock.
    let link = fixture.dir().with_extension("link");
    std::os::unix::fs::symlink(fixture.dir(), &link).unwrap();
    let other = FileLocker::new(&link).unwrap();
    assert_eq!(
        other.lock(&up(), Wait::No, nothing()).unwrap_err().class(),
        Class::Held
    );
    fs::remove_file(&link).unwrap();
    guard.release().unwrap();
    drop(locker.lock(&up(), Wait::No, nothing()).unwrap());
}

/// U13a: our own pid without our lock, and a missing pid where it proves nothing, are tested: held
/// until the request has existed for `confirm`, then dead.
#[test]
fn a_doubtful_holder_is_tested() {
    for (pid, foreign_pids) in [(std::process::id(), false), (dead_pid(), true)] {
        let fixture = UploadFixture::new();
        fs::write(fixture.lock(), format!("{pid}\n")).unwrap();
        let confirm = Duration::from_millis(300);
        let locker = fixture.locker_with(|options| {
            options.foreign_pids = foreign_pids;
            options.times.confirm = confirm;
        });
        let began = Instant::now();
        let wait = Wait::For(Duration::from_millis(100));
        assert_eq!(
            locker.lock(&up(), wait, nothing()).unwrap_err().class(),
            Class::Timeout
        );
        // The stored test stays, so that the second attempt continues it.
        assert!(fixture.request()["test"]["monotonic"].is_number());
        let guard = locker.lock(&up(), LONG, nothing()).unwrap();
        assert!(began.elapsed() >= confirm);
        assert_eq!(fixture.block()["pid"], std::process::id());
        assert!(!fixture.stop().exists(), "the test's request is done with");
        guard.release().unwrap();
    }
}

/// U13a: a test continues from its stored start: a second attempt shorter than `confirm` succeeds,
/// because the first one counts.
#[test]
fn a_test_goes_on_where_it_was_left() {
    let fixture = UploadFixture::new();
    fs::write(fixture.lock(), format!("{}\n", std::process::id())).unwrap();
    let locker = |confirm| fixture.locker_with(|options| options.times.confirm = confirm);
    let short = Wait::For(Duration::from_millis(50));
    let error = locker(HOUR).lock(&up(), short, nothing()).unwrap_err();
    assert_eq!(error.class(), Class::Timeout);
    let since = fixture.request()["test"]["monotonic"].as_u64().unwrap();
    let error = locker(HOUR).lock(&up(), short, nothing()).unwrap_err();
    assert_eq!(error.class(), Class::Timeout);
    assert_eq!(
        fixture.request()["test"]["monotonic"],
        since,
        "the second try began anew"
    );
    // The stored start is old enough: dead at once.
    let age = monotonic_ms() - since;
    drop(
        locker(Duration::from_millis(age))
            .lock(&up(), short, nothing())
            .unwrap(),
    );
}

fn monotonic_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1000 + u64::try_from(now.tv_nsec).unwrap() / 1_000_000
}

/// U13a: a changed lock file starts a new test.
#[test]
fn a_test_is_about_one_lock() {
    let fixture = UploadFixture::new();
    fs::write(fixture.lock(), format!("{}\n", std::process::id())).unwrap();
    let locker = fixture.locker_with(|options| options.times.confirm = HOUR);
    let short = Wait::For(Duration::from_millis(30));
    locker.lock(&up(), short, nothing()).unwrap_err();
    let first = fixture.request()["test"].clone();
    fs::remove_file(fixture.lock()).unwrap();
    fs::write(fixture.lock(), format!("{}\n", std::process::id())).unwrap();
    locker.lock(&up(), short, nothing()).unwrap_err();
    let second = fixture.request()["test"].clone();
    assert_ne!(first["changed"], second["changed"]);
    assert!(second["monotonic"].as_u64() > first["monotonic"].as_u64());
}

/// U13a: never used on records with a `tenure` line.
#[test]
fn a_tenure_record_is_never_tested() {
    let machine = TestMachine::new();
    let fixture = UploadFixture::new();
    fs::write(
        fixture.lock(),
        machine.vector("upload", "tenure-other-pidns.tmpl"),
    )
    .unwrap();
    let locker = fixture.locker_with(|options| {
        options.foreign_pids = true;
        options.times.confirm = Duration::from_millis(1);
    });
    let error = locker
        .lock(&up(), Wait::For(Duration::from_millis(50)), nothing())
        .unwrap_err();
    assert_eq!(error.class(), Class::Foreign);
    assert!(fixture.lock().exists());
}

/// U19: the release removes the request that was answered; one that was renewed meanwhile stays.
#[test]
fn release_removes_the_request_that_it_answers() {
    let fixture = UploadFixture::new();
    let guard = fixture.hold();
    touch_stop(&fixture, SystemTime::now() + Duration::from_secs(5));
    guard.release().unwrap();
    assert!(fixture.names().is_empty(), "{:?}", fixture.names());
}
