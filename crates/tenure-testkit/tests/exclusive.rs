//! Rules of the exclusive lock, with real processes on both sides.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use support::actor::Actor;
use tenure_files::Class;
use tenure_files::exclusive::{
    CycleDecision, CycleKind, ExclusiveServer, Quiesce, Tool, Wait, inspect, is_process_alive,
};
use tenure_files::{Force, ObservedState};
use tenure_testkit::{
    LiveProcess, OTHER_USER, TIMEOUT, TestMachine, dead_pid, eventually, host, is_waiting,
};

struct ExclusiveFixture {
    temp: tempfile::TempDir,
}

impl ExclusiveFixture {
    fn new() -> ExclusiveFixture {
        ExclusiveFixture {
            temp: tempfile::tempdir().unwrap(),
        }
    }

    fn dir(&self) -> &Path {
        self.temp.path()
    }

    fn lock(&self) -> PathBuf {
        self.dir().join(".exclusive-lock")
    }

    fn gate(&self) -> PathBuf {
        self.dir().join(".exclusive-lock.gate")
    }

    fn tool(&self) -> Tool {
        Tool::new(self.dir(), "night-import").unwrap()
    }

    fn server(&self) -> ExclusiveServer {
        ExclusiveServer::new(self.dir())
    }

    fn write(&self, pid: u32, host: &str) {
        let record = format!(
            r#"{{"holder":"other","pid":{pid},"hostname":"{host}","started_at":"2026-03-07T09:00:00Z"}}"#
        );
        fs::write(self.lock(), record).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

const SOON: Wait = Wait::For(Duration::from_millis(50));

/// X1 (exclusive lock file), X2 (exclusive record fields), X6: the record that a tool writes, its
/// place and its mode.
#[test]
fn a_tool_writes_a_complete_record() {
    let fixture = ExclusiveFixture::new();
    let guard = fixture.tool().version("2.4.0").acquire(Wait::No).unwrap();
    let text = fs::read_to_string(fixture.lock()).unwrap();
    let record: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(record["holder"], "night-import");
    assert_eq!(record["pid"], std::process::id());
    assert_eq!(record["hostname"], host());
    assert_eq!(record["version"], "2.4.0");
    assert_eq!(record["tenure"]["pid"], std::process::id());
    assert_eq!(record["tenure"]["flock"], true);
    let started = record["started_at"].as_str().unwrap();
    assert!(started.contains('T') && started.ends_with('Z'), "{started}");
    assert!(
        text.starts_with("{\n  \"holder\""),
        "indented, in the order of the protocol: {text}"
    );
    let mode = fs::metadata(fixture.lock()).unwrap().permissions().mode() & 0o777;
    let umask_allows = 0o644;
    assert_eq!(mode & !umask_allows, 0);
    assert_ne!(
        mode & 0o044,
        0,
        "a server of another user must be able to read it"
    );
    guard.release().unwrap();
    assert_eq!(fixture.names(), [".exclusive-lock.gate"]);

    let guard = fixture.tool().private().acquire(Wait::No).unwrap();
    assert_eq!(
        fs::metadata(fixture.lock()).unwrap().permissions().mode() & 0o777,
        0o600
    );
    drop(guard);
    assert!(!fixture.lock().exists(), "a dropped guard releases");
}

/// X8 (dead holder on this host), K8 (compare host names), K15 (records without a block), K16: only
/// a process that is known not to exist on this host is dead.
#[test]
fn only_a_missing_process_of_this_host_is_dead() {
    let (alive, dead) = (LiveProcess::spawn(), i64::from(dead_pid()));
    assert!(is_process_alive(alive.pid().into(), &host()));
    assert!(!is_process_alive(dead, &host()));
    assert!(!is_process_alive(dead, &host().to_ascii_uppercase()));
    assert!(is_process_alive(dead, "borealis-9"));
    assert!(is_process_alive(dead, &format!("{}.example.net", host())));
    assert!(is_process_alive(dead, ""));
    for number in [0, -1, 4_194_305, 4_294_967_297, i64::MAX] {
        assert!(
            is_process_alive(number, &host()),
            "{number} is no pid, so nothing is known"
        );
    }
}

/// X8, K16: a process that we have no permission to signal is alive. Checked by a process without
/// that permission.
#[test]
fn another_users_process_is_alive() {
    let machine = TestMachine::new();
    let fixture = ExclusiveFixture::new();
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(
        fixture.lock(),
        machine.vector("exclusive", "valid-alive.tmpl"),
    )
    .unwrap();
    Actor::spawn_as(OTHER_USER, &["try", "exclusive"], fixture.dir()).says("Timeout");
    Actor::spawn_as(OTHER_USER, &["cycle"], fixture.dir()).says("skip Held");
    assert!(fixture.lock().exists());
}

/// X7: the fixed texts, with the name of the cycle kind.
#[test]
fn the_log_names_the_cycle() {
    let fixture = ExclusiveFixture::new();
    fixture.write(std::process::id(), &host());
    let answer = fixture.server().should_skip();
    let line = |work| answer.log_line(work).unwrap();
    assert_eq!(line(CycleKind::Sync), "Skipping database (locked by other)");
    assert_eq!(
        line(CycleKind::Other("export")),
        "Skipping export (locked by other)"
    );

    fixture.write(dead_pid(), &host());
    let answer = fixture.server().should_skip();
    let line = answer.log_line(CycleKind::Other("import")).unwrap();
    assert_eq!(line, "Removed stale lock (other), proceeding with import");
}

/// X7, X9 (skip when in doubt), K26: a dead lock that cannot be removed is skipped, with its holder
/// and the reason.
#[test]
fn a_dead_lock_that_cannot_be_removed_is_skipped() {
    let fixture = ExclusiveFixture::new();
    fixture.write(dead_pid(), &host());
    fs::write(fixture.gate(), "").unwrap();
    // In a directory in which only root can remove, and in one in which only the file's owner can.
    for mode in [0o755, 0o1777] {
        fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(mode)).unwrap();
        let actor = Actor::spawn_as(OTHER_USER, &["cycle"], fixture.dir());
        actor.says("skip Io");
        let line = actor.hear();
        let fixed = "Skipping database (lock check failed: failed to remove stale lock: ";
        assert!(line.starts_with(fixed), "{line}");
        assert!(fixture.lock().exists());
    }
}

/// X7: a record without read permission is skipped.
#[test]
fn an_unreadable_record_is_skipped() {
    let fixture = ExclusiveFixture::new();
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    fixture.write(dead_pid(), &host());
    fs::set_permissions(fixture.lock(), fs::Permissions::from_mode(0o600)).unwrap();
    Actor::spawn_as(OTHER_USER, &["cycle"], fixture.dir()).says("skip Unreadable");
    assert!(fixture.lock().exists());
}

/// X10: a lock that appears during a cycle does not stop it; the next one is skipped.
#[test]
fn a_lock_counts_from_the_next_cycle_on() {
    let fixture = ExclusiveFixture::new();
    let cycle = fixture.server().begin_cycle().unwrap();
    let guard = fixture
        .tool()
        .quiesce(Quiesce::Skip)
        .acquire(Wait::No)
        .unwrap();
    assert!(matches!(cycle.answer, CycleDecision::Proceed));
    drop(cycle);
    let answer = fixture.server().begin_cycle().unwrap_err();
    assert_eq!(
        (answer.class(), answer.holder()),
        (Some(Class::Held), Some("night-import"))
    );
    guard.release().unwrap();
}

/// X11 (fault of the original), X8: Tenure removes a dead lock that the original server would skip
/// forever.
#[test]
fn a_dead_tools_lock_is_removed_where_the_original_skips_for_ever() {
    let fixture = ExclusiveFixture::new();
    fixture.write(dead_pid(), &host());
    Actor::spawn(&["original-server"], fixture.dir()).says("skip");
    assert!(!fixture.server().should_skip().skips());
    Actor::spawn(&["original-server"], fixture.dir()).says("proceed");
}

/// X12.4 (order of exclusive tests): with foreign process ids a missing process proves nothing.
#[test]
fn foreign_pids_are_not_judged() {
    let fixture = ExclusiveFixture::new();
    fixture.write(dead_pid(), &host());
    let answer = fixture.server().foreign_pids().should_skip();
    assert_eq!(answer.class(), Some(Class::Foreign));
    let error = fixture.tool().foreign_pids().acquire(Wait::No).unwrap_err();
    assert_eq!(error.class(), Class::Foreign);
    assert!(fixture.lock().exists());
}

/// X14 (acquire as a tool), X15: two tools exclude each other, in one process and between two.
#[test]
fn tools_exclude_each_other() {
    let fixture = ExclusiveFixture::new();
    let guard = fixture.tool().acquire(Wait::No).unwrap();
    let before = fs::read(fixture.lock()).unwrap();
    assert_eq!(
        fixture.tool().acquire(Wait::No).unwrap_err().class(),
        Class::Held
    );
    assert_eq!(
        fixture.tool().acquire(SOON).unwrap_err().class(),
        Class::Timeout
    );
    Actor::spawn(&["try", "exclusive"], fixture.dir()).says("Timeout");
    assert_eq!(
        fs::read(fixture.lock()).unwrap(),
        before,
        "Tenure never overwrites"
    );
    guard.release().unwrap();
    Actor::spawn(&["try", "exclusive"], fixture.dir()).says("ok");
}

/// X14.2, K5: a refusal names the holder, the verdict and the next step.
#[test]
fn a_refusal_says_who_and_what_next() {
    let fixture = ExclusiveFixture::new();
    let _guard = fixture.tool().acquire(Wait::No).unwrap();
    let text = fixture.tool().acquire(Wait::No).unwrap_err().to_string();
    let address = format!("tenure break exclusive:{}", fixture.dir().display());
    for part in [
        "night-import",
        &host(),
        &std::process::id().to_string(),
        "alive",
        &address,
    ] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

/// X14.2, K42: the release and the death of the holder wake a waiter; the actors never poll.
#[test]
fn a_waiter_is_woken_by_release_and_by_death() {
    let fixture = ExclusiveFixture::new();
    for end in ["release", "kill"] {
        let mut holder = Actor::spawn(&["hold", "exclusive"], fixture.dir());
        holder.says("held");
        let waiter = Actor::spawn(&["hold", "exclusive"], fixture.dir());
        eventually("the waiter waits", || is_waiting(waiter.pid()));
        assert!(waiter.is_silent());
        match end {
            "release" => holder.tell("release"),
            _ => holder.kill(),
        }
        waiter.says("held");
        waiter.kill();
    }
}

/// X14.2: a waiter waits for a malformed record, because an original may be writing it.
#[test]
fn a_record_that_is_being_written_is_waited_for() {
    let fixture = ExclusiveFixture::new();
    fs::write(fixture.lock(), "{\"holder\": \"orig").unwrap();
    assert_eq!(
        fixture.tool().acquire(Wait::No).unwrap_err().class(),
        Class::Malformed
    );
    let waiter = Actor::spawn(&["hold", "exclusive"], fixture.dir());
    eventually("the waiter waits", || is_waiting(waiter.pid()));
    assert!(waiter.is_silent());
    fixture.write(std::process::id(), &host());
    fs::remove_file(fixture.lock()).unwrap();
    waiter.says("held");
}

/// X14.2: a malformed record that is unchanged for 10 s is refused and left.
#[test]
fn a_record_that_stays_malformed_is_refused() {
    let fixture = ExclusiveFixture::new();
    fs::write(fixture.lock(), "{\"holder\": \"orig").unwrap();
    let began = Instant::now();
    let error = fixture.tool().acquire(Wait::For(TIMEOUT)).unwrap_err();
    assert_eq!(error.class(), Class::Malformed);
    assert!(
        began.elapsed() >= Duration::from_secs(10),
        "after {:?}",
        began.elapsed()
    );
    assert!(fixture.lock().exists());
}

/// X15, X16 (hold an exclusive lock), K34: an original overwrites or deletes the lock; the holder
/// detects it immediately, without a call of `check`.
#[test]
fn an_originals_interference_is_noticed() {
    for interference in ["overwrite", "delete"] {
        let fixture = ExclusiveFixture::new();
        let guard = fixture.tool().acquire(Wait::No).unwrap();
        let (lost, seen) = mpsc::channel();
        guard.on_lost(move |loss| lost.send(loss.cause).unwrap());
        guard.check().unwrap();
        let original = (interference == "overwrite")
            .then(|| Actor::spawn(&["hold", "original-exclusive"], fixture.dir()));
        match &original {
            Some(original) => original.says("held"),
            None => fs::remove_file(fixture.lock()).unwrap(),
        }
        seen.recv_timeout(TIMEOUT)
            .expect("the loss is noticed without being asked for");
        assert_eq!(guard.check().unwrap_err().class(), Class::Compromised);
        let after = fs::read(fixture.lock()).ok();
        // X17: a release fails if the record is gone or belongs to another holder, and leaves the
        // file alone.
        assert_eq!(guard.release().unwrap_err().class(), Class::Compromised);
        assert_eq!(fs::read(fixture.lock()).ok(), after);
    }
}

/// X15: a Tenure tool and a Tenure server respect an original's lock; the original server respects
/// Tenure's.
#[test]
fn originals_and_tenure_respect_each_other_one_at_a_time() {
    let fixture = ExclusiveFixture::new();
    let mut original = Actor::spawn(&["hold", "original-exclusive"], fixture.dir());
    original.says("held");
    assert_eq!(
        fixture.tool().acquire(Wait::No).unwrap_err().class(),
        Class::Held
    );
    assert_eq!(fixture.server().should_skip().holder(), Some("original"));
    original.tell("release");
    original.says("released");

    let guard = fixture.tool().acquire(Wait::No).unwrap();
    Actor::spawn(&["original-server"], fixture.dir()).says("skip");
    guard.release().unwrap();
    Actor::spawn(&["original-server"], fixture.dir()).says("proceed");
}

/// X15, X8: an original tool that is killed leaves a lock, and a waiting Tenure tool takes over.
#[test]
fn a_killed_originals_lock_is_taken_over() {
    let fixture = ExclusiveFixture::new();
    let original = Actor::spawn(&["hold", "original-exclusive"], fixture.dir());
    original.says("held");
    let waiter = Actor::spawn(&["hold", "exclusive"], fixture.dir());
    eventually("the waiter waits", || is_waiting(waiter.pid()));
    original.kill();
    waiter.says("held");
}

/// X16, K33 (heartbeat in place), K10: the heartbeat is written in place, and the flock stays held.
#[test]
fn a_holder_beats_and_keeps_the_kernel_lock() {
    let fixture = ExclusiveFixture::new();
    let tool = fixture.tool().heartbeat(Duration::from_millis(5));
    let guard = tool.acquire(Wait::No).unwrap();
    let beat = || {
        let record: Value = serde_json::from_slice(&fs::read(fixture.lock()).unwrap()).unwrap();
        record["tenure"]["beat"].as_str().unwrap().to_owned()
    };
    let inode = fs::metadata(fixture.lock()).unwrap().ino();
    eventually("the second beat", || beat().as_str() >= "0000000002");
    assert_eq!(fs::metadata(fixture.lock()).unwrap().ino(), inode);
    let file = fs::File::open(fixture.lock()).unwrap();
    assert!(flock(&file, FlockOperation::NonBlockingLockExclusive).is_err());
    guard.release().unwrap();
}

/// X18: valid and invalid holder names.
#[test]
fn a_holders_name_is_checked() {
    let fixture = ExclusiveFixture::new();
    for bad in ["", "a\nb", "a\u{1b}b", &"x".repeat(201)] {
        assert_eq!(
            Tool::new(fixture.dir(), bad).unwrap_err().class(),
            Class::BadInput,
            "{bad:?}"
        );
    }
    for good in ["x", &"x".repeat(200), "ünï"] {
        Tool::new(fixture.dir(), good)
            .unwrap()
            .acquire(Wait::No)
            .unwrap()
            .release()
            .unwrap();
    }
    let error = fixture
        .tool()
        .version("x".repeat(70_000))
        .acquire(Wait::No)
        .unwrap_err();
    assert_eq!(error.class(), Class::BadInput);
    assert!(!fixture.lock().exists());
}

/// X19: the lock exists during the settle time.
#[test]
fn settling_happens_under_the_lock() {
    let fixture = ExclusiveFixture::new();
    let settle = Duration::from_millis(100);
    let began = Instant::now();
    thread::scope(|scope| {
        let tool = scope.spawn(|| fixture.tool().settle(settle).acquire(Wait::No).unwrap());
        eventually("the lock appears", || fixture.lock().exists());
        assert!(fixture.server().should_skip().skips());
        drop(tool.join().unwrap());
    });
    assert!(began.elapsed() >= settle);
}

/// X20: a tool waits for a running cycle, and gets the lock only when the cycle has ended.
#[test]
fn a_tool_waits_for_running_cycles() {
    let fixture = ExclusiveFixture::new();
    let server = Actor::spawn(&["cycle"], fixture.dir());
    server.says("running");
    thread::scope(|scope| {
        let tool = scope.spawn(|| fixture.tool().acquire(Wait::No));
        eventually("the lock appears", || fixture.lock().exists());
        // Every later cycle sees the lock while the tool still waits.
        assert_eq!(
            fixture.server().begin_cycle().unwrap_err().class(),
            Some(Class::Held)
        );
        assert!(!tool.is_finished(), "the cycle is still running");
        server.finish();
        tool.join().unwrap().unwrap().release().unwrap();
    });
}

/// X20: if a cycle does not end in time, the result is `Timeout` and the lock is released.
#[test]
fn a_cycle_that_does_not_end_costs_the_lock() {
    let fixture = ExclusiveFixture::new();
    let cycle = fixture.server().begin_cycle().unwrap();
    let tool = fixture
        .tool()
        .quiesce(Quiesce::For(Duration::from_millis(30)));
    assert_eq!(tool.acquire(Wait::No).unwrap_err().class(), Class::Timeout);
    assert!(!fixture.lock().exists());
    // X20: with `--no-quiesce` the tool does not wait.
    fixture
        .tool()
        .quiesce(Quiesce::Skip)
        .acquire(Wait::No)
        .unwrap()
        .release()
        .unwrap();
    drop(cycle);
    tool.acquire(Wait::No).unwrap().release().unwrap();
}

/// X20: the gate is an empty file with mode 0644 that is never removed; cycles share it.
#[test]
fn the_gate_is_shared_by_cycles_and_never_removed() {
    let fixture = ExclusiveFixture::new();
    let one = fixture.server().begin_cycle().unwrap();
    let two = fixture.server().begin_cycle().unwrap();
    let gate = fs::metadata(fixture.gate()).unwrap();
    assert_eq!(
        (gate.len(), gate.permissions().mode() & 0o777 & !0o644),
        (0, 0)
    );
    drop((one, two));
    fixture.tool().acquire(Wait::No).unwrap().release().unwrap();
    assert_eq!(fs::metadata(fixture.gate()).unwrap().ino(), gate.ino());
}

/// X20, X9: a server that cannot take the gate skips: the gate is not a file, or there is no
/// directory.
#[test]
fn a_server_without_a_gate_skips() {
    let fixture = ExclusiveFixture::new();
    fs::create_dir(fixture.gate()).unwrap();
    assert!(fixture.server().begin_cycle().unwrap_err().skips());
    let error = fixture.tool().acquire(Wait::No).unwrap_err();
    assert_eq!(error.class(), Class::NotALock);
    assert!(
        !fixture.lock().exists(),
        "a tool that cannot have the gate gives the lock back"
    );
    fs::remove_dir(fixture.gate()).unwrap();
    std::os::unix::fs::symlink("elsewhere", fixture.gate()).unwrap();
    assert!(fixture.server().begin_cycle().unwrap_err().skips());
    assert!(!fixture.dir().join("elsewhere").exists());
    assert!(
        ExclusiveServer::new(fixture.dir().join("missing"))
            .begin_cycle()
            .unwrap_err()
            .skips()
    );
}

/// X20, X9: a process that keeps the gate without a lock (a tool stopped at the wrong moment) does
/// not block a server.
#[test]
fn a_kept_gate_does_not_hang_a_server() {
    let fixture = ExclusiveFixture::new();
    drop(fixture.server().begin_cycle().unwrap());
    let gate = fs::File::open(fixture.gate()).unwrap();
    flock(&gate, FlockOperation::LockExclusive).unwrap();
    assert!(fixture.server().begin_cycle().unwrap_err().skips());
    drop(gate);
    drop(fixture.server().begin_cycle().unwrap());
}

/// X21: a running cycle can be detected without disturbing it.
#[test]
fn a_running_cycle_can_be_seen() {
    let fixture = ExclusiveFixture::new();
    assert!(!inspect(fixture.dir()).unwrap().cycle_is_running);
    let cycle = fixture.server().begin_cycle().unwrap();
    assert!(inspect(fixture.dir()).unwrap().cycle_is_running);
    assert!(fixture.server().cycle_is_running().unwrap());
    drop(cycle);
    assert!(!inspect(fixture.dir()).unwrap().cycle_is_running);
}

/// X22 (exclusive address and verbs), X23: `check` without removal reports what a server would do.
#[test]
fn a_dry_run_removes_nothing() {
    let fixture = ExclusiveFixture::new();
    fixture.write(dead_pid(), &host());
    let answer = fixture.server().would_skip();
    assert!(!answer.skips());
    assert_eq!(answer.holder(), Some("other"));
    assert!(fixture.lock().exists());
    assert!(!fixture.server().should_skip().skips());
    assert!(!fixture.lock().exists());
}

/// X24: `break` removes dead locks; with force also live, foreign and malformed ones.
#[test]
fn only_force_breaks_what_is_not_dead() {
    let fixture = ExclusiveFixture::new();
    let seen = || inspect(fixture.dir()).unwrap().observed_lock.unwrap();
    assert!(inspect(fixture.dir()).unwrap().observed_lock.is_none());

    fixture.write(dead_pid(), &host());
    assert!(matches!(seen().state(), ObservedState::Dead(_)));
    seen().break_it(Force::No).unwrap();

    let guard = fixture.tool().acquire(Wait::No).unwrap();
    assert_eq!(seen().break_it(Force::No).unwrap_err().class(), Class::Held);
    seen().break_it(Force::Yes).unwrap();
    assert_eq!(guard.check().unwrap_err().class(), Class::Compromised);

    fixture.write(dead_pid(), "borealis-9");
    assert_eq!(seen().break_it(Force::No).unwrap_err().class(), Class::Held);
    seen().break_it(Force::Yes).unwrap();

    fs::write(fixture.lock(), "nonsense").unwrap();
    assert_eq!(
        seen().break_it(Force::No).unwrap_err().class(),
        Class::Malformed
    );
    seen().break_it(Force::Yes).unwrap();
    assert_eq!(fixture.names(), [".exclusive-lock.gate"]);
}

/// X24, K22: a lock that appeared after the inspection is not the one that was shown, and stays.
#[test]
fn break_removes_what_was_shown_and_nothing_later() {
    let fixture = ExclusiveFixture::new();
    fixture.write(dead_pid(), &host());
    let seen = inspect(fixture.dir()).unwrap().observed_lock.unwrap();
    fs::remove_file(fixture.lock()).unwrap();
    let guard = fixture
        .tool()
        .quiesce(Quiesce::Skip)
        .acquire(Wait::No)
        .unwrap();
    assert_eq!(
        seen.break_it(Force::Yes).unwrap_err().class(),
        Class::LostRace
    );
    guard.check().unwrap();
    guard.release().unwrap();
}

/// X25: the members of a status report.
#[test]
fn status_reports_the_lock() {
    let fixture = ExclusiveFixture::new();
    let json = || Value::Object(fixture.server().should_skip().status());
    assert_eq!(json(), serde_json::json!({"exclusive_lock_active": false}));
    fixture.write(std::process::id(), &host());
    let expected = serde_json::json!({
        "exclusive_lock_active": true, "exclusive_lock_holder": "other"
    });
    assert_eq!(json(), expected);
    fs::write(fixture.lock(), "nonsense").unwrap();
    assert_eq!(json(), serde_json::json!({"exclusive_lock_active": true}));
}

/// Intervals beyond the range of the clock are accepted; nothing overflows.
#[test]
fn endless_intervals_are_long_ones() {
    let fixture = ExclusiveFixture::new();
    let tool = || fixture.tool().heartbeat(Duration::MAX).poll(Duration::MAX);
    let held = tool().acquire(Wait::No).unwrap();
    held.release().unwrap();
    let alive = LiveProcess::spawn();
    fixture.write(alive.pid(), &host());
    assert_eq!(tool().acquire(SOON).unwrap_err().class(), Class::Timeout);
}

/// K39: the fence grows with every lock and is written to the record.
#[test]
fn fences_grow() {
    let fixture = ExclusiveFixture::new();
    let numbers: Vec<u64> = (0..3)
        .map(|_| {
            let guard = fixture.tool().fenced().acquire(Wait::No).unwrap();
            let record: Value = serde_json::from_slice(&fs::read(fixture.lock()).unwrap()).unwrap();
            let fence = guard.fence().unwrap().get();
            assert_eq!(record["tenure"]["fence"], fence);
            guard.release().unwrap();
            fence
        })
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
}
