//! Test vectors of the sidecar protocol: the decision for each file, without and with approval.

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

use std::path::PathBuf;
use std::time::Duration;

use tenure_files::Class;
use tenure_files::Clock;
use tenure_files::sidecar::{Manager, Options, Retry, StalePolicy, peer_code};
use tenure_testkit::{LiveProcess, fill, set_modified, vector_clock, vectors};

/// The expected result of an attempt without waiting.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Decided {
    /// `Timeout`, file untouched.
    Held,
    /// `Stale` without approval, reclaimed with it.
    Stale,
    /// Reclaimed under every policy.
    Reclaim,
    /// Refused with this class, file untouched.
    Refused(Class),
}
use Decided::{Held, Reclaim, Refused, Stale};

const YOUNG: &[u64] = &[10];
const OLD: &[u64] = &[600];
const ANY: &[u64] = &[10, 600];

/// Files, ages in seconds, decision, rule.
const TABLE: &[(&[&str], &[u64], Decided, &str)] = &[
    (&["valid-plain.json"], YOUNG, Held, "S19.4"),
    (
        &["valid-trailer.json", "trailer-trimmed.json"],
        YOUNG,
        Held,
        "S8",
    ),
    (
        &["valid-no-date.json", "empty-object.json"],
        YOUNG,
        Held,
        "S19.4",
    ),
    (&["acquired-at-only.json"], YOUNG, Held, "S11"),
    (
        &["created-number.json", "created-text.json"],
        YOUNG,
        Held,
        "S19.4",
    ),
    (
        &[
            "valid-no-date.json",
            "empty-object.json",
            "acquired-at-only.json",
            "created-number.json",
            "created-text.json",
        ],
        OLD,
        Stale,
        "S19.4",
    ),
    (
        &[
            "valid-plain.json",
            "valid-trailer.json",
            "trailer-trimmed.json",
        ],
        OLD,
        Held,
        "S19.4",
    ),
    (&["stale-created.json"], YOUNG, Stale, "S19.4"),
    (&["fresh-created-old-mtime.json"], OLD, Held, "S19.4"),
    (&["future-created.json"], OLD, Held, "S19.4, K46"),
    (
        &[
            "empty.json",
            "truncated.json",
            "garbage.bin",
            "array.json",
            "null.json",
            "undefined.txt",
        ],
        YOUNG,
        Held,
        "S7",
    ),
    (
        &[
            "empty.json",
            "truncated.json",
            "garbage.bin",
            "array.json",
            "null.json",
            "undefined.txt",
        ],
        OLD,
        Stale,
        "S7, S19.4",
    ),
    (&["limit-exact.json"], YOUNG, Held, "S9"),
    (&["huge.json"], ANY, Refused(Class::TooLarge), "S9, K30"),
    (&["foreign-host.json"], YOUNG, Held, "S19.3"),
    (&["dead-here.tmpl"], YOUNG, Reclaim, "S19.3"),
    (&["dead-no-host.tmpl"], YOUNG, Held, "S19.3"),
    (&["reused-pid.tmpl"], YOUNG, Reclaim, "S19.3"),
    (&["pid-too-big.json"], YOUNG, Held, "K15"),
    (&["tenure-alive.tmpl"], ANY, Held, "K12"),
    (&["tenure-dead.tmpl"], ANY, Reclaim, "K12"),
    (&["tenure-reused.tmpl"], ANY, Reclaim, "K12"),
    (&["tenure-other-boot.tmpl"], YOUNG, Held, "K11"),
    (&["tenure-other-boot.tmpl"], OLD, Stale, "K11, S19.4"),
    (&["tenure-other-pidns.tmpl"], YOUNG, Held, "K14"),
    (&["tenure-other-pidns.tmpl"], OLD, Stale, "K14, S19.4"),
    (&["tenure-flock-free.tmpl"], ANY, Reclaim, "K10"),
];

struct VectorFixture {
    _temp: tempfile::TempDir,
    target: PathBuf,
    lock: PathBuf,
}

impl VectorFixture {
    fn new() -> VectorFixture {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().canonicalize().unwrap().join("state.json");
        let lock = target.with_file_name("state.json.lock");
        VectorFixture {
            _temp: temp,
            target,
            lock,
        }
    }

    fn options(&self) -> Options {
        Options::new(&self.target)
            .retry(Retry::none())
            .clock(Clock::fixed(vector_clock()))
            .stale(Duration::from_secs(30))
    }

    fn approving(&self) -> Options {
        self.options()
            .recovery(StalePolicy::RemoveIfUnchanged)
            .approve(|_| true)
    }

    /// `None` if the lock was acquired, else the class of the refusal.
    fn class(&self, options: &Options) -> Option<Class> {
        match Manager::new("vectors").acquire(options) {
            Ok(guard) => {
                guard.release().unwrap();
                None
            }
            Err(error) => Some(error.class()),
        }
    }
}

fn vector(name: &str, living: &LiveProcess) -> Vec<u8> {
    let bytes = std::fs::read(vectors().join("sidecar").join(name)).unwrap();
    if name.ends_with(".tmpl") {
        fill(&bytes, living)
    } else {
        bytes
    }
}

/// S7–S9, S11 (no creation date with heartbeats), S19 (order of sidecar tests), K10–K15, K30 (keep
/// files that are no records), K46: every file of the table.
#[test]
fn every_vector_is_decided_as_the_table_says() {
    let living = LiveProcess::spawn();
    for &(names, ages, decided, rule) in TABLE {
        for (&name, &age) in names
            .iter()
            .flat_map(|name| ages.iter().map(move |age| (name, age)))
        {
            let case = format!("{name} of {age} s ({rule})");
            for approving in [false, true] {
                let fixture = VectorFixture::new();
                let bytes = vector(name, &living);
                std::fs::write(&fixture.lock, &bytes).unwrap();
                set_modified(&fixture.lock, vector_clock() - Duration::from_secs(age));
                let options = if approving {
                    fixture.approving()
                } else {
                    fixture.options()
                };
                let expected = match decided {
                    Held => Some(Class::Timeout),
                    Stale if approving => None,
                    Stale => Some(Class::Stale),
                    Reclaim => None,
                    Refused(class) => Some(class),
                };
                assert_eq!(
                    fixture.class(&options),
                    expected,
                    "{case}, approving: {approving}"
                );
                match expected {
                    Some(_) => assert_eq!(std::fs::read(&fixture.lock).unwrap(), bytes, "{case}"),
                    None => assert!(!fixture.lock.exists(), "{case}"),
                }
                let left: Vec<_> = std::fs::read_dir(fixture.target.parent().unwrap())
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name())
                    .filter(|name| name != "state.json.lock")
                    .collect();
                assert!(left.is_empty(), "{case} left {left:?}");
            }
        }
    }
}

/// Every file of the folder is in the table.
#[test]
fn the_table_names_every_vector() {
    let named: Vec<&str> = TABLE.iter().flat_map(|row| row.0.iter().copied()).collect();
    for entry in std::fs::read_dir(vectors().join("sidecar")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(named.contains(&name.as_str()), "{name} is in no row");
    }
}

/// S19.3: a dead pid without a host name counts only with `trust_pid`.
#[test]
fn a_pid_without_a_host_needs_trust() {
    let living = LiveProcess::spawn();
    let fixture = VectorFixture::new();
    std::fs::write(&fixture.lock, vector("dead-no-host.tmpl", &living)).unwrap();
    set_modified(&fixture.lock, vector_clock());
    assert_eq!(fixture.class(&fixture.options()), Some(Class::Timeout));
    assert_eq!(fixture.class(&fixture.options().trust_pid()), None);
}

/// K10: the flock of a live process counts, although the pid in the record is dead.
#[test]
fn a_held_flock_beats_a_dead_pid() {
    let living = LiveProcess::spawn();
    let fixture = VectorFixture::new();
    let text = String::from_utf8(vector("tenure-flock-free.tmpl", &living)).unwrap();
    let text = text.replace(
        &living.pid().to_string(),
        &tenure_testkit::dead_pid().to_string(),
    );
    std::fs::write(&fixture.lock, text).unwrap();
    let holder = std::fs::File::open(&fixture.lock).unwrap();
    holder.lock().unwrap();
    for age in [10, 600] {
        set_modified(&fixture.lock, vector_clock() - Duration::from_secs(age));
        assert_eq!(
            fixture.class(&fixture.approving()),
            Some(Class::Timeout),
            "{age} s"
        );
    }
    // Unlock instead of close: a child that another test starts right now shares the open file.
    holder.unlock().unwrap();
    assert_eq!(fixture.class(&fixture.options()), None);
}

/// K28: directory, symlinks and FIFO at the lock path; S29: the original's codes.
#[test]
fn what_is_not_a_file_is_refused_at_once() {
    let fixture = VectorFixture::new();
    let options = fixture.approving().retry(Retry::default());
    let refused = || assert_eq!(fixture.class(&options), Some(Class::NotALock));

    std::fs::create_dir(&fixture.lock).unwrap();
    refused();
    std::fs::remove_dir(&fixture.lock).unwrap();
    std::os::unix::fs::symlink("nowhere", &fixture.lock).unwrap();
    refused();
    std::fs::remove_file(&fixture.lock).unwrap();
    std::fs::write(&fixture.target, "{}").unwrap();
    std::os::unix::fs::symlink(&fixture.target, &fixture.lock).unwrap();
    refused();
    std::fs::remove_file(&fixture.lock).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(&fixture.lock)
        .status()
        .unwrap();
    assert!(made.success());
    refused();

    assert_eq!(peer_code(Class::NotALock), Some("not-file"));
    assert_eq!(peer_code(Class::TooLarge), Some("too-large"));
    assert_eq!(peer_code(Class::Timeout), Some("file_lock_timeout"));
    assert_eq!(peer_code(Class::Stale), Some("file_lock_stale"));
}

/// S16.1 (one acquisition attempt), S3: a guard without a lock blocks the acquisition, whatever
/// file type it has.
#[test]
fn a_foreign_guard_keeps_us_out() {
    let fixture = VectorFixture::new();
    let guard = fixture.target.with_file_name("state.json.lock.reclaim");
    std::fs::create_dir(&guard).unwrap();
    assert_eq!(fixture.class(&fixture.options()), Some(Class::Timeout));
    assert!(guard.is_dir());
    std::fs::remove_dir(&guard).unwrap();
    std::fs::write(&guard, "{}\n").unwrap();
    set_modified(&guard, vector_clock());
    assert_eq!(fixture.class(&fixture.options()), Some(Class::Timeout));
    assert!(guard.is_file());
    std::fs::remove_file(&guard).unwrap();
    assert_eq!(fixture.class(&fixture.options()), None);
}

/// S1: a missing parent is created.
#[test]
fn a_missing_parent_is_created() {
    let fixture = VectorFixture::new();
    let target = fixture.target.with_file_name("a").join("b/state.json");
    let options = Options::new(&target).retry(Retry::none());
    assert_eq!(fixture.class(&options), None);
    assert!(target.parent().unwrap().is_dir());
}
