//! The upload lock's rules, with real processes on both sides of it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use common::actor::{Actor, PATIENCE};
use common::{Living, Machine, OTHER_USER, dead_pid, eventually, set_age};
use serde_json::Value;
use tenure_files::error::Class;
use tenure_files::publish::Durability;
use tenure_files::sighting::Force;
use tenure_files::upload::{
    Fencing, FileLocker, Guard, LockRequest, OnRequest, Options, ReleaseRequest, Times, UploadId,
    UploadLocker, Wait, lock_async,
};
use tenure_files::wait::Cancel;

struct Place {
    temp: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place {
            temp: tempfile::tempdir().unwrap(),
        }
    }

    fn dir(&self) -> &Path {
        self.temp.path()
    }

    fn lock(&self) -> PathBuf {
        self.dir().join("up.lock")
    }

    fn stop(&self) -> PathBuf {
        self.dir().join("up.stop")
    }

    fn locker(&self) -> FileLocker {
        self.locker_with(|_| {})
    }

    /// A locker that never polls: what happens, happens by an event (K42).
    fn locker_with(&self, change: impl FnOnce(&mut Options)) -> FileLocker {
        let mut options = Options {
            durability: Durability::Fast,
            times: Times {
                holder_poll: HOUR,
                acquirer_poll: HOUR,
                ..Times::default()
            },
            ..Options::default()
        };
        change(&mut options);
        FileLocker::with(self.dir(), options).unwrap()
    }

    fn hold(&self) -> Guard {
        self.locker().lock(&up(), Wait::No, nothing()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn token(&self) -> String {
        self.block()["token"].as_str().unwrap().to_owned()
    }

    fn block(&self) -> Value {
        let text = fs::read_to_string(self.lock()).unwrap();
        let line = text
            .lines()
            .nth(1)
            .unwrap()
            .strip_prefix("tenure ")
            .unwrap()
            .to_owned();
        serde_json::from_str(&line).unwrap()
    }

    fn request(&self) -> Value {
        let text = fs::read_to_string(self.stop()).unwrap();
        serde_json::from_str(text.trim().strip_prefix("tenure ").unwrap()).unwrap()
    }
}

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Wait = Wait::For(Duration::from_millis(50));
const LONG: Wait = Wait::For(PATIENCE);

fn up() -> UploadId {
    UploadId::new("up").unwrap()
}

fn nothing() -> OnRequest {
    Arc::new(|_| {})
}

/// A callback that counts, and the requests it got.
fn listener() -> (OnRequest, mpsc::Receiver<ReleaseRequest>) {
    let (heard, requests) = mpsc::channel();
    let heard = Mutex::new(heard);
    let on_request = Arc::new(move |request: &ReleaseRequest| {
        let _ = heard.lock().unwrap().send(request.clone());
    });
    (on_request, requests)
}

/// U3: the directory must exist.
#[test]
fn a_locker_needs_its_directory() {
    let place = Place::new();
    let error = FileLocker::new(place.dir().join("missing")).unwrap_err();
    assert_eq!(error.class(), Class::NotFound);
}

/// U4, U5: the record that Tenure writes.
#[test]
fn the_record_is_a_pid_and_one_line() {
    let place = Place::new();
    let request = LockRequest {
        purpose: Some("PATCH up/7".into()),
        ..LockRequest::new(Wait::No, nothing())
    };
    let guard = place.locker().lock_for(&up(), request).unwrap();
    let text = fs::read_to_string(place.lock()).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], format!("{}\n", std::process::id()));
    let block = place.block();
    assert_eq!(block["pid"], std::process::id());
    assert_eq!(block["request"], "PATCH up/7");
    assert_eq!(
        (&block["flock"], &block["local"]),
        (&Value::from(true), &Value::from(true))
    );
    let mode = fs::metadata(place.lock()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    guard.release().unwrap();
    assert!(place.names().is_empty());
}

/// U7, K30: a purpose that would make the record too large is refused before anything is touched.
#[test]
fn a_record_stays_within_its_limit() {
    let place = Place::new();
    let purpose = Some("x".repeat(4000));
    let request = LockRequest {
        purpose,
        ..LockRequest::new(Wait::No, nothing())
    };
    let error = place.locker().lock_for(&up(), request).unwrap_err();
    assert_eq!(error.class(), Class::BadInput);
    assert!(place.names().is_empty());
}

/// Times: zero is the default for some, refused for the polls.
#[test]
fn zero_times_are_defaults_or_refused() {
    let place = Place::new();
    let with = |times| {
        FileLocker::with(
            place.dir(),
            Options {
                times,
                ..Options::default()
            },
        )
    };
    let zero = Duration::ZERO;
    let times = Times {
        acquire_timeout: zero,
        grace: zero,
        ..Times::default()
    };
    assert_eq!(with(times).unwrap().options().times, Times::default());
    for times in [
        Times {
            holder_poll: zero,
            ..Times::default()
        },
        Times {
            acquirer_poll: zero,
            ..Times::default()
        },
    ] {
        assert_eq!(with(times).unwrap_err().class(), Class::BadInput);
    }
    let wait = FileLocker::new(place.dir()).unwrap().default_wait();
    assert_eq!(wait, Wait::For(Duration::from_secs(20)));
}

/// U8, U14, U15: between two Tenure processes a hand-over takes two events and no poll.
#[test]
fn a_holder_in_another_process_hears_the_request_and_hands_over() {
    let place = Place::new();
    let mut holder = Actor::spawn(&["hold", "upload"], place.dir());
    holder.says("held");
    let waiter = Actor::spawn(&["hold", "upload"], place.dir());
    holder.says("asked");
    assert!(
        waiter.is_silent(),
        "after being asked the holder still has it"
    );
    holder.tell("release");
    holder.says("released");
    waiter.says("held");
}

/// U10.3, K42: the lock of a killed holder is taken over by an event, not by a poll.
#[test]
fn a_killed_holders_lock_is_taken_over() {
    let place = Place::new();
    let holder = Actor::spawn(&["hold", "upload"], place.dir());
    holder.says("held");
    let waiter = Actor::spawn(&["hold", "upload"], place.dir());
    holder.says("asked");
    holder.kill();
    waiter.says("held");
    assert_eq!(place.block()["pid"], waiter.pid());
}

/// U10.5, U16: at the deadline the class is `Timeout`, and the request goes with the waiter.
#[test]
fn a_waiter_that_gives_up_takes_its_request_with_it() {
    let place = Place::new();
    let guard = place.hold();
    Actor::spawn(&["try", "upload"], place.dir()).says("Timeout");
    assert_eq!(place.names(), ["up.lock"]);
    guard.release().unwrap();
}

/// U16: a request that somebody renewed since stays.
#[test]
fn a_renewed_request_stays_when_a_waiter_gives_up() {
    let place = Place::new();
    let alive = Living::spawn();
    fs::write(place.lock(), format!("{}\n", alive.pid())).unwrap();
    let class = thread::scope(|scope| {
        scope.spawn(|| {
            eventually("the request", || {
                fs::metadata(place.stop()).is_ok_and(|stop| stop.len() > 0)
            });
            let stop = fs::OpenOptions::new()
                .write(true)
                .open(place.stop())
                .unwrap();
            stop.set_modified(SystemTime::now() + Duration::from_secs(1))
                .unwrap();
        });
        let wait = Wait::For(Duration::from_millis(300));
        place
            .locker()
            .lock(&up(), wait, nothing())
            .unwrap_err()
            .class()
    });
    assert_eq!(class, Class::Timeout);
    assert!(
        place.stop().exists(),
        "another waiter's request was removed"
    );
}

/// U14: who does not wait leaves no request.
#[test]
fn who_does_not_wait_does_not_ask() {
    let place = Place::new();
    let alive = Living::spawn();
    fs::write(place.lock(), format!("{}\n", alive.pid())).unwrap();
    let error = place.locker().lock(&up(), Wait::No, nothing()).unwrap_err();
    assert_eq!(error.class(), Class::Held);
    assert_eq!(place.names(), ["up.lock"]);
}

/// U14: the request is readable for all, addressed to the holder that was seen, and says who asks.
#[test]
fn a_request_is_addressed_and_signed() {
    let place = Place::new();
    let holder = Actor::spawn(&["hold", "upload"], place.dir());
    holder.says("held");
    let request = ReleaseRequest::new(Some("HEAD up/7".into()));
    let asked = place.locker().ask(&up(), &request).unwrap().unwrap();
    assert_eq!(asked.pid, Some(holder.pid()));
    holder.says("asked");
    let line = place.request();
    assert_eq!(line["for"], place.token());
    assert_eq!(line["by"]["pid"], std::process::id());
    assert_eq!(line["reason"], "HEAD up/7");
    let mode = fs::metadata(place.stop()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777 & !0o644, 0);
    let seen = place.locker().inspect(&up()).unwrap().request.unwrap();
    assert_eq!(seen.reason.as_deref(), Some("HEAD up/7"));
}

/// U14: a request of another user that may not be written stands as it is.
#[test]
fn another_users_request_stands() {
    let place = Place::new();
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let alive = Living::spawn_as_other_user();
    fs::write(place.lock(), format!("{}\n", alive.pid())).unwrap();
    fs::set_permissions(place.lock(), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(place.stop(), "").unwrap();
    fs::set_permissions(place.stop(), fs::Permissions::from_mode(0o600)).unwrap();
    Actor::spawn_as(OTHER_USER, &["try", "upload"], place.dir()).says("Timeout");
    assert!(place.stop().exists());
}

/// U14, K28: a symlink in place of the request is not followed.
#[test]
fn a_request_does_not_follow_a_symlink() {
    let place = Place::new();
    let alive = Living::spawn();
    fs::write(place.lock(), format!("{}\n", alive.pid())).unwrap();
    fs::write(place.dir().join("precious"), "data").unwrap();
    std::os::unix::fs::symlink("precious", place.stop()).unwrap();
    let error = place.locker().lock(&up(), SOON, nothing()).unwrap_err();
    assert_eq!(error.class(), Class::Io);
    assert_eq!(
        fs::read_to_string(place.dir().join("precious")).unwrap(),
        "data"
    );
}

/// A request by an original: a file without content.
fn touch_stop(place: &Place, time: SystemTime) {
    fs::write(place.stop(), "").unwrap();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(place.stop())
        .unwrap();
    file.set_modified(time).unwrap();
}

/// Asks the present holder, and asserts that this is the first request that it hears.
#[track_caller]
fn hears_only_this(place: &Place, requests: &mpsc::Receiver<ReleaseRequest>) {
    let line = format!(
        "tenure {{\"for\":\"{}\",\"reason\":\"this\"}}\n",
        place.token()
    );
    fs::write(place.stop(), line).unwrap();
    let heard = requests.recv_timeout(PATIENCE).expect("the holder listens");
    assert_eq!(
        heard.reason.as_deref(),
        Some("this"),
        "another request was heard before"
    );
    assert!(requests.try_recv().is_err(), "heard more than once");
}

/// U15: requests as in the table of vectors: heard once if meant, ignored if not.
#[test]
fn a_holder_hears_what_is_meant_for_it() {
    let later = || SystemTime::now() + Duration::from_secs(5);
    let earlier = || SystemTime::now() - Duration::from_secs(5);
    let vector = |file: &str| {
        let path = common::vectors().join("upload").join(file);
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
        let place = Place::new();
        let (on_request, requests) = listener();
        let guard = place.locker().lock(&up(), Wait::No, on_request).unwrap();
        let text = vector(file).replace(TOKEN, &place.token());
        // In one step, like a rename: the holder must not see it with another time.
        let private = place.dir().join("private");
        fs::write(&private, text).unwrap();
        let handle = fs::OpenOptions::new().write(true).open(&private).unwrap();
        handle.set_modified(time).unwrap();
        fs::rename(&private, place.stop()).unwrap();
        if is_heard {
            let request = requests.recv_timeout(PATIENCE).expect(file);
            if file == "stop-for-this.stop" {
                assert_eq!(request.reason.as_deref(), Some("HEAD up/7"));
                assert_eq!(request.by.unwrap().pid, Some(7));
                assert!(guard.file().unwrap().requested().is_some());
            }
            // Once, however often it is renewed.
            touch_stop(&place, later() + Duration::from_secs(5));
        }
        if !is_heard {
            hears_only_this(&place, &requests);
        }
        assert!(requests.try_recv().is_err(), "{file}: heard more than once");
        guard.release().unwrap();
    }
}

/// U10.6: a request that was left for somebody before us is removed and does not interrupt.
#[test]
fn a_request_left_from_before_is_removed_at_acquisition() {
    let place = Place::new();
    touch_stop(&place, SystemTime::now() - Duration::from_secs(60));
    let (on_request, requests) = listener();
    let guard = place.locker().lock(&up(), Wait::No, on_request).unwrap();
    assert!(!place.stop().exists());
    hears_only_this(&place, &requests);
    guard.release().unwrap();
}

/// U10.6: a waiter is not interrupted by the request that it made itself. The holder is killed, so that
/// nobody but the waiter is left to remove it; an original's request has no addressee to tell by.
#[test]
fn a_waiter_does_not_interrupt_itself() {
    let place = Place::new();
    for who in ["original-upload", "upload"] {
        let holder = Actor::spawn(&["hold", who], place.dir());
        holder.says("held");
        let (on_request, requests) = listener();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| place.locker().lock(&up(), LONG, on_request).unwrap());
            holder.says("asked");
            holder.kill();
            let guard = waiter.join().unwrap();
            assert!(!place.stop().exists(), "its own request still stands");
            hears_only_this(&place, &requests);
            guard.release().unwrap();
        });
    }
}

/// U15, U17: after a request the lock stays until its holder lets go, whatever the grace.
#[test]
fn a_holder_may_refuse() {
    let place = Place::new();
    let times = Times {
        grace: Duration::from_millis(1),
        ..Times::default()
    };
    let locker = place.locker_with(|options| options.times = times);
    let (on_request, requests) = listener();
    let guard = locker.lock(&up(), Wait::No, on_request).unwrap();
    Actor::spawn(&["try", "upload"], place.dir()).says("Timeout");
    requests.recv_timeout(PATIENCE).expect("it was asked");
    guard.check().unwrap();
    guard.release().unwrap();
}

/// U11, U12: threads of one process exclude each other and ask through memory, without touching files.
#[test]
fn threads_ask_each_other_through_memory() {
    let place = Place::new();
    let locker = place.locker();
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
    assert_eq!(place.names(), ["up.lock"], "no request on disk");
    // Another path to the same directory is the same lock.
    let link = place.dir().with_extension("link");
    std::os::unix::fs::symlink(place.dir(), &link).unwrap();
    let other = FileLocker::new(&link).unwrap();
    assert_eq!(
        other.lock(&up(), Wait::No, nothing()).unwrap_err().class(),
        Class::Held
    );
    fs::remove_file(&link).unwrap();
    guard.release().unwrap();
    drop(locker.lock(&up(), Wait::No, nothing()).unwrap());
}

/// U11: many threads, one at a time.
#[test]
fn threads_are_inside_one_at_a_time() {
    let place = Place::new();
    let locker = place.locker();
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
    assert!(place.names().is_empty(), "{:?}", place.names());
}

/// U13.1: a record that may not be read is held by somebody unknown.
#[test]
fn an_unreadable_record_is_held() {
    let place = Place::new();
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(place.lock(), "0\n").unwrap();
    fs::set_permissions(place.lock(), fs::Permissions::from_mode(0o600)).unwrap();
    set_age(&place.lock(), HOUR);
    Actor::spawn_as(OTHER_USER, &["try", "upload"], place.dir()).says("Timeout");
    assert!(place.lock().exists());
}

/// U13.3, K16: a live process of another user is alive. Decided by a process that may not signal it;
/// the original takes the lock away.
#[test]
fn another_users_holder_is_alive() {
    let machine = Machine::new();
    let place = Place::new();
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(place.lock(), machine.vector("upload", "alive.tmpl")).unwrap();
    fs::set_permissions(place.lock(), fs::Permissions::from_mode(0o644)).unwrap();
    Actor::spawn_as(OTHER_USER, &["try", "upload"], place.dir()).says("Timeout");
    assert!(place.lock().exists());
    Actor::spawn_as(OTHER_USER, &["try", "original-upload"], place.dir()).says("ok");
}

/// U13a: our own pid without our lock, and a missing pid where it proves nothing, are tested: held
/// until the request has stood for `confirm`, then dead.
#[test]
fn a_doubtful_holder_is_tested() {
    for (pid, foreign_pids) in [(std::process::id(), false), (dead_pid(), true)] {
        let place = Place::new();
        fs::write(place.lock(), format!("{pid}\n")).unwrap();
        let confirm = Duration::from_millis(300);
        let locker = place.locker_with(|options| {
            options.foreign_pids = foreign_pids;
            options.times.confirm = confirm;
        });
        let began = Instant::now();
        let wait = Wait::For(Duration::from_millis(100));
        assert_eq!(
            locker.lock(&up(), wait, nothing()).unwrap_err().class(),
            Class::Timeout
        );
        // The note of the test stays, so that the second try goes on from there.
        assert!(place.request()["test"]["since"].is_number());
        let guard = locker.lock(&up(), LONG, nothing()).unwrap();
        assert!(began.elapsed() >= confirm);
        assert_eq!(place.block()["pid"], std::process::id());
        assert!(!place.stop().exists(), "the test's request is done with");
        guard.release().unwrap();
    }
}

/// U13a: the test goes on from its note: a second try shorter than `confirm` succeeds, because the
/// first one counts.
#[test]
fn a_test_goes_on_where_it_was_left() {
    let place = Place::new();
    fs::write(place.lock(), format!("{}\n", std::process::id())).unwrap();
    let locker = |confirm| place.locker_with(|options| options.times.confirm = confirm);
    let short = Wait::For(Duration::from_millis(50));
    let error = locker(HOUR).lock(&up(), short, nothing()).unwrap_err();
    assert_eq!(error.class(), Class::Timeout);
    let since = place.request()["test"]["since"].as_u64().unwrap();
    let error = locker(HOUR).lock(&up(), short, nothing()).unwrap_err();
    assert_eq!(error.class(), Class::Timeout);
    assert_eq!(
        place.request()["test"]["since"],
        since,
        "the second try began anew"
    );
    // Silent for as long as the first note says: dead at once.
    let age = boottime_ms() - since;
    drop(
        locker(Duration::from_millis(age))
            .lock(&up(), short, nothing())
            .unwrap(),
    );
}

fn boottime_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap() * 1000 + u64::try_from(now.tv_nsec).unwrap() / 1_000_000
}

/// U13a: a changed lock file is another case: the test begins anew. And a live original answers.
#[test]
fn a_test_is_about_one_lock() {
    let place = Place::new();
    fs::write(place.lock(), format!("{}\n", std::process::id())).unwrap();
    let locker = place.locker_with(|options| options.times.confirm = HOUR);
    let short = Wait::For(Duration::from_millis(30));
    locker.lock(&up(), short, nothing()).unwrap_err();
    let first = place.request()["test"].clone();
    fs::remove_file(place.lock()).unwrap();
    fs::write(place.lock(), format!("{}\n", std::process::id())).unwrap();
    locker.lock(&up(), short, nothing()).unwrap_err();
    let second = place.request()["test"].clone();
    assert_ne!(first["changed"], second["changed"]);
    assert!(second["since"].as_u64() > first["since"].as_u64());
}

/// U13a: never used on records with a `tenure` line.
#[test]
fn a_tenure_record_is_never_tested() {
    let machine = Machine::new();
    let place = Place::new();
    fs::write(
        place.lock(),
        machine.vector("upload", "tenure-other-pidns.tmpl"),
    )
    .unwrap();
    let locker = place.locker_with(|options| {
        options.foreign_pids = true;
        options.times.confirm = Duration::from_millis(1);
    });
    let error = locker
        .lock(&up(), Wait::For(Duration::from_millis(50)), nothing())
        .unwrap_err();
    assert_eq!(error.class(), Class::Foreign);
    assert!(place.lock().exists());
}

/// U18, K33: the record beats in place.
#[test]
fn a_holder_beats() {
    let place = Place::new();
    let locker = place.locker_with(|options| options.heartbeat = Duration::from_millis(5));
    let guard = locker.lock(&up(), Wait::No, nothing()).unwrap();
    let inode = fs::metadata(place.lock()).unwrap().ino();
    eventually("the second beat", || {
        place.block()["beat"].as_str().unwrap() >= "0000000002"
    });
    assert_eq!(fs::metadata(place.lock()).unwrap().ino(), inode);
    guard.release().unwrap();
}

/// U19: a request that was answered goes with the lock; one that was renewed meanwhile stays.
#[test]
fn release_removes_the_request_that_it_answers() {
    let place = Place::new();
    let guard = place.hold();
    touch_stop(&place, SystemTime::now() + Duration::from_secs(5));
    guard.release().unwrap();
    assert!(place.names().is_empty(), "{:?}", place.names());
}

/// U20, U23, K36: a lost lock cannot be released, and nothing is touched; a dropped guard releases.
#[test]
fn a_lost_lock_is_noticed_and_left_alone() {
    let place = Place::new();
    let guard = place.hold();
    let (lost, seen) = mpsc::channel();
    guard
        .file()
        .unwrap()
        .on_lost(move |loss| lost.send(loss.cause).unwrap());
    touch_stop(&place, SystemTime::now() - HOUR);
    fs::remove_file(place.lock()).unwrap();
    seen.recv_timeout(PATIENCE)
        .expect("the loss is noticed without being asked for");
    fs::write(place.lock(), "40217\n").unwrap();
    assert_eq!(guard.release().unwrap_err().class(), Class::Compromised);
    assert_eq!(fs::read_to_string(place.lock()).unwrap(), "40217\n");
    assert!(
        place.stop().exists(),
        "the request is for whoever has it now"
    );

    let place = Place::new();
    drop(place.hold());
    assert!(place.names().is_empty());
}

/// U10.3, K34: an original of another user deletes a live Tenure lock; the holder notices.
#[test]
fn an_original_that_robs_us_is_noticed() {
    let place = Place::new();
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let guard = place.hold();
    let (lost, seen) = mpsc::channel();
    guard
        .file()
        .unwrap()
        .on_lost(move |loss| lost.send(loss.cause).unwrap());
    let robber = Actor::spawn_as(OTHER_USER, &["hold", "original-upload"], place.dir());
    robber.says("held");
    seen.recv_timeout(PATIENCE).expect("the loss is noticed");
    assert_eq!(guard.check().unwrap_err().class(), Class::Compromised);
}

/// U24: the address, also with `/` in the identifier, leads from a message to `break`.
#[test]
fn a_refusal_says_who_and_what_next() {
    let place = Place::new();
    fs::create_dir(place.dir().join("a")).unwrap();
    let locker = place.locker();
    let id = UploadId::new("a/b").unwrap();
    let _guard = locker.lock(&id, Wait::No, nothing()).unwrap();
    let text = locker
        .lock(&id, Wait::No, nothing())
        .unwrap_err()
        .to_string();
    let address = format!("tenure break upload:{}#a/b", place.dir().display());
    for part in ["alive", &std::process::id().to_string(), &address] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

/// U24: list, ask, break, clean.
#[test]
fn a_directory_can_be_listed_asked_broken_and_cleaned() {
    let place = Place::new();
    fs::create_dir(place.dir().join("sub")).unwrap();
    let locker = place.locker();
    assert!(
        locker
            .ask(&up(), &ReleaseRequest::new(None))
            .unwrap()
            .is_none(),
        "nobody to ask"
    );
    let (on_request, requests) = listener();
    let guard = locker.lock(&up(), Wait::No, on_request).unwrap();
    locker
        .ask(&up(), &ReleaseRequest::new(Some("tidy".into())))
        .unwrap()
        .unwrap();
    assert_eq!(requests.try_recv().unwrap().reason.as_deref(), Some("tidy"));

    // A dead lock, old junk that is too large, a request without a lock, a crashed process's file.
    let dead = place.dir().join("sub/dead.lock");
    fs::write(&dead, format!("{}\n", dead_pid())).unwrap();
    fs::write(place.dir().join("big.lock"), "x".repeat(100)).unwrap();
    set_age(&place.dir().join("big.lock"), HOUR);
    let orphan = place.dir().join("orphan.stop");
    fs::write(&orphan, "").unwrap();
    set_age(&orphan, HOUR);
    let fresh = place.dir().join("fresh.stop");
    fs::write(&fresh, "").unwrap();
    let listed: Vec<String> = locker
        .list()
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(listed, ["big", "sub/dead", "up"]);

    let cleaned = locker.clean().unwrap();
    let ids = |ids: &[UploadId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(ids(&cleaned.locks), ["sub/dead"]);
    assert_eq!(ids(&cleaned.requests), ["orphan"]);
    assert!(fresh.exists(), "somebody may be waiting");
    guard.check().unwrap();

    let seen = || locker.inspect(&up()).unwrap().sighting.unwrap();
    assert_eq!(seen().break_it(Force::No).unwrap_err().class(), Class::Held);
    seen().break_it(Force::Yes).unwrap();
    assert_eq!(guard.check().unwrap_err().class(), Class::Compromised);
}

/// K39: a fence grows with every lock and stands in the record.
#[test]
fn fences_grow() {
    let place = Place::new();
    let locker = place.locker_with(|options| options.fence = Fencing::Taken);
    let numbers: Vec<u64> = (0..3)
        .map(|_| {
            let guard = locker.lock(&up(), Wait::No, nothing()).unwrap();
            let fence = guard.file().unwrap().fence().unwrap().get();
            assert_eq!(place.block()["fence"], fence);
            guard.release().unwrap();
            fence
        })
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
}

/// C16: breaking a live lock by force raises the fence, so that its holder is shut out.
#[test]
fn force_raises_the_fence() {
    let place = Place::new();
    let locker = place.locker_with(|options| options.fence = Fencing::Taken);
    let lock = || locker.lock(&up(), Wait::No, nothing()).unwrap();
    let _broken = lock();
    let seen = locker.inspect(&up()).unwrap().sighting.unwrap();
    seen.break_it(Force::Yes).unwrap();
    let counter = fs::read_to_string(place.dir().join(".tenure-fence")).unwrap();
    assert_eq!(counter.trim().parse::<u64>().unwrap(), 2);
}

/// Interop, one at a time: each side keeps the other out, asks it, and takes over when it was killed.
#[test]
fn originals_and_tenure_hand_over_to_each_other() {
    for (holder, waiter) in [("upload", "original-upload"), ("original-upload", "upload")] {
        let place = Place::new();
        let mut first = Actor::spawn(&["hold", holder], place.dir());
        first.says("held");
        Actor::spawn(&["try", waiter], place.dir()).hear();
        let second = Actor::spawn(&["hold", waiter], place.dir());
        first.says("asked");
        assert!(second.is_silent());
        first.tell("release");
        first.says("released");
        second.says("held");

        let third = Actor::spawn(&["hold", holder], place.dir());
        second.says("asked");
        second.kill();
        third.says("held");
    }
}

/// C13: a hold that follows another process survives its handle, is adopted by its token, and dies with
/// that process.
#[test]
fn a_hold_may_follow_another_process() {
    let place = Place::new();
    let followed = Living::spawn();
    let lock = || {
        let follows = Some(followed.pid());
        let request = LockRequest {
            follows,
            ..LockRequest::new(Wait::No, nothing())
        };
        place
            .locker()
            .lock_for(&up(), request)
            .unwrap()
            .leave()
            .unwrap()
    };
    let token = lock();
    assert_eq!(place.block()["pid"], followed.pid());
    assert_eq!(place.block()["flock"], false);
    let error = place.locker().lock(&up(), Wait::No, nothing()).unwrap_err();
    assert_eq!(error.class(), Class::Held);
    place
        .locker()
        .adopt(&up(), token)
        .unwrap()
        .release()
        .unwrap();
    lock();
    drop(followed);
    drop(place.locker().lock(&up(), Wait::No, nothing()).unwrap());
}

/// A wait that is called off ends at once, on disk and in memory, and leaves no request.
#[test]
fn a_cancelled_wait_ends() {
    let place = Place::new();
    let on_disk = Actor::spawn(&["hold", "upload"], place.dir());
    on_disk.says("held");
    let other = UploadId::new("other").unwrap();
    let _in_memory = place.locker().lock(&other, Wait::No, nothing()).unwrap();
    for id in [up(), other] {
        let cancel = Cancel::new().unwrap();
        let request = LockRequest {
            cancel: Some(cancel.clone()),
            ..LockRequest::new(Wait::Forever, nothing())
        };
        let class = thread::scope(|scope| {
            let waiter = scope.spawn(|| place.locker().lock_for(&id, request));
            if id == up() {
                on_disk.says("asked");
            }
            cancel.cancel();
            waiter.join().unwrap().unwrap_err().class()
        });
        assert_eq!(class, Class::Timeout);
    }
    assert_eq!(place.names(), ["other.lock", "up.lock"]);
}

/// For callers that await: the future resolves, and a dropped one withdraws.
#[test]
fn a_future_resolves_and_a_dropped_one_withdraws() {
    let place = Place::new();
    let locker = place.locker();
    let mut held = Actor::spawn(&["hold", "upload"], place.dir());
    held.says("held");
    let request = || LockRequest::new(Wait::Forever, nothing());
    drop(lock_async(&locker, &up(), request()));
    let future = lock_async(&locker, &up(), request());
    held.says("asked");
    held.tell("release");
    let guard = block_on(future).unwrap();
    guard.release().unwrap();
    eventually("nothing is left", || place.names().is_empty());
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
