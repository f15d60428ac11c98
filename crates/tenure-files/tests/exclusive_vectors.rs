//! Test vectors of the exclusive-lock protocol: the decision of a server, and the result for a
//! tool.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tenure_files::Class;
use tenure_files::exclusive::{CycleKind, ExclusiveServer, Tool, Wait};
use tenure_testkit::{TestMachine, make_fifo, vector_files};

/// The expected result for a file.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// The server skips; held by this tool.
    Locked(&'static str, Class),
    /// The server removes the lock and proceeds.
    Reclaimed,
    /// The server skips; malformed record.
    Malformed,
    /// The server skips; invalid record.
    Invalid,
}

use Expected::{Invalid, Locked, Malformed, Reclaimed};

const TABLE: &[(&str, Expected)] = &[
    ("valid-alive.tmpl", Locked("night-import", Class::Held)),
    ("valid-compact.tmpl", Locked("night-import", Class::Held)),
    ("valid-no-version.tmpl", Locked("night-import", Class::Held)),
    (
        "valid-other-letter-case.tmpl",
        Locked("night-import", Class::Held),
    ),
    (
        "valid-unknown-fields.tmpl",
        Locked("night-import", Class::Held),
    ),
    ("valid-offset.tmpl", Locked("night-import", Class::Held)),
    ("future-2999.tmpl", Locked("night-import", Class::Held)),
    ("old-but-alive.tmpl", Locked("night-import", Class::Held)),
    ("duplicate-fields.tmpl", Locked("second", Class::Held)),
    ("alive-other-user.tmpl", Locked("night-import", Class::Held)),
    ("foreign-host.tmpl", Locked("night-import", Class::Foreign)),
    (
        "dead-here-fqdn.tmpl",
        Locked("night-import", Class::Foreign),
    ),
    ("dead-here.tmpl", Reclaimed),
    ("dead-here-upper-case-host.tmpl", Reclaimed),
    ("tenure-alive.tmpl", Locked("night-import", Class::Held)),
    ("tenure-dead.tmpl", Reclaimed),
    ("tenure-reused.tmpl", Reclaimed),
    (
        "tenure-other-boot.tmpl",
        Locked("night-import", Class::Foreign),
    ),
    (
        "tenure-other-pidns.tmpl",
        Locked("night-import", Class::Foreign),
    ),
    ("tenure-disagrees.tmpl", Locked("night-import", Class::Held)),
    ("empty.json", Malformed),
    ("truncated.json", Malformed),
    ("text.json", Malformed),
    ("array.json", Malformed),
    ("bom.tmpl", Malformed),
    ("trailing-text.tmpl", Malformed),
    ("null.json", Invalid),
    ("empty-object.json", Invalid),
    ("holder-empty.tmpl", Invalid),
    ("hostname-empty.tmpl", Invalid),
    ("pid-zero.tmpl", Invalid),
    ("pid-negative.tmpl", Invalid),
    ("started-missing.tmpl", Invalid),
    ("started-null.tmpl", Invalid),
    ("started-zero.tmpl", Invalid),
    ("pid-string.tmpl", Malformed),
    ("pid-fraction.tmpl", Malformed),
    ("pid-exponent.tmpl", Malformed),
    ("pid-over-64-bits.tmpl", Malformed),
    ("pid-over-32-bits.tmpl", Malformed),
    ("started-text.tmpl", Malformed),
    ("started-blank.tmpl", Malformed),
    ("started-lower-case.tmpl", Malformed),
    ("started-number.tmpl", Malformed),
    ("version-number.tmpl", Malformed),
    (
        "holder-control.tmpl",
        Locked("night\u{1b}[2J\n", Class::Held),
    ),
    ("huge.tmpl", Malformed),
];

#[test]
fn the_table_has_every_vector() {
    let listed: BTreeSet<&str> = TABLE.iter().map(|(file, _)| *file).collect();
    let present = vector_files("exclusive");
    assert_eq!(listed, present.iter().map(String::as_str).collect());
}

/// Writes a file at the lock path.
type MakeFixture<'a> = &'a dyn Fn(&VectorFixture);

struct VectorFixture {
    temp: tempfile::TempDir,
}

impl VectorFixture {
    fn new() -> VectorFixture {
        VectorFixture {
            temp: tempfile::tempdir().unwrap(),
        }
    }

    fn with(bytes: &[u8]) -> VectorFixture {
        let fixture = VectorFixture::new();
        fs::write(fixture.lock(), bytes).unwrap();
        fixture
    }

    fn dir(&self) -> &Path {
        self.temp.path()
    }

    fn lock(&self) -> PathBuf {
        self.dir().join(".exclusive-lock")
    }

    fn tool(&self) -> Tool {
        Tool::new(self.dir(), "tester").unwrap()
    }
}

/// X2 (exclusive record fields), X3 (exclusive record syntax), X4 (start time format), X5
/// (exclusive record size limit), X7 (answers of should_skip), X8 (dead holder on this host), X12.2
/// (order of exclusive tests), X12.3, X12.4, X13 (reclaim and proceed), K8 (compare host names),
/// K12 (ask the kernel for the process), K14 (a different PID namespace), K15: the server's
/// decision.
#[test]
fn the_server_answers_as_the_table_says() {
    let machine = TestMachine::new();
    for &(file, expected) in TABLE {
        let bytes = machine.vector("exclusive", file);
        let fixture = VectorFixture::with(&bytes);
        let answer = ExclusiveServer::new(fixture.dir()).should_skip();
        let line = answer.log_line(CycleKind::Sync).unwrap_or_default();
        match expected {
            Locked(holder, class) => {
                assert_eq!(answer.holder(), Some(holder), "{file}: {answer:?}");
                assert_eq!(answer.class(), Some(class), "{file}: {answer:?}");
                assert!(
                    line.starts_with("Skipping database (locked by "),
                    "{file}: {line}"
                );
            }
            Reclaimed => {
                assert!(!answer.skips(), "{file}: {answer:?}");
                let fixed = "Removed stale lock (night-import), proceeding with sync";
                assert_eq!(line, fixed, "{file}");
            }
            Malformed | Invalid => {
                assert_eq!(answer.class(), Some(Class::Malformed), "{file}: {answer:?}");
                assert_eq!(answer.holder(), None, "{file}");
                let word = if matches!(expected, Malformed) {
                    "malformed"
                } else {
                    "invalid"
                };
                let fixed = format!("Skipping database (lock check failed: {word} lock file: ");
                assert!(line.starts_with(&fixed), "{file}: {line}");
            }
        }
        match expected {
            Reclaimed => assert!(!fixture.lock().exists(), "{file} is still there"),
            _ => assert_eq!(
                fs::read(fixture.lock()).unwrap(),
                bytes,
                "{file} was touched"
            ),
        }
        // K5: foreign text is escaped before it is printed.
        assert!(!line.chars().any(char::is_control), "{file}: {line:?}");
    }
}

/// X14: a tool is refused with the class of the table where a server skips, and gets the lock
/// elsewhere.
#[test]
fn a_tool_is_refused_where_a_server_skips() {
    let machine = TestMachine::new();
    for &(file, expected) in TABLE {
        let bytes = machine.vector("exclusive", file);
        let fixture = VectorFixture::with(&bytes);
        let class = fixture
            .tool()
            .acquire(Wait::No)
            .map(drop)
            .map_err(|error| error.class());
        let expected = match expected {
            Locked(_, class) => Err(class),
            Reclaimed => Ok(()),
            Malformed | Invalid => Err(Class::Malformed),
        };
        assert_eq!(class, expected, "{file}");
        if class.is_err() {
            assert_eq!(
                fs::read(fixture.lock()).unwrap(),
                bytes,
                "{file} was touched"
            );
        }
    }
}

/// X7: no lock, or not even the directory.
#[test]
fn no_file_or_no_directory_is_no_lock() {
    let fixture = VectorFixture::new();
    for dir in [fixture.dir().to_owned(), fixture.dir().join("missing")] {
        let answer = ExclusiveServer::new(dir).should_skip();
        assert!(!answer.skips() && answer.holder().is_none(), "{answer:?}");
        assert_eq!(answer.log_line(CycleKind::Sync), None);
    }
}

/// X12.1, K28: a file that is not regular is skipped, not followed, and does not block.
#[test]
fn special_files_are_skipped() {
    let machine = TestMachine::new();
    let valid = machine.vector("exclusive", "valid-alive.tmpl");
    let cases: [(&str, MakeFixture<'_>); 4] = [
        ("directory", &|fixture| {
            fs::create_dir(fixture.lock()).unwrap()
        }),
        ("dangling symlink", &|fixture| {
            symlink("nowhere", fixture.lock()).unwrap()
        }),
        ("symlink to a record", &|fixture| {
            fs::write(fixture.dir().join("record"), &valid).unwrap();
            symlink("record", fixture.lock()).unwrap();
        }),
        ("FIFO", &|fixture| make_fifo(&fixture.lock())),
    ];
    for (name, make) in cases {
        let fixture = VectorFixture::new();
        make(&fixture);
        let answer = ExclusiveServer::new(fixture.dir()).should_skip();
        assert!(answer.skips(), "{name}");
        assert_eq!(answer.class(), Some(Class::NotALock), "{name}: {answer:?}");
        let refused = fixture.tool().acquire(Wait::No).map(drop).unwrap_err();
        assert_eq!(refused.class(), Class::NotALock, "{name}: {refused}");
        assert!(
            fs::symlink_metadata(fixture.lock()).is_ok(),
            "{name} was removed"
        );
    }
}
