//! Test vectors of the upload-lock protocol: the decision of a requester about a lock, and the
//! reaction of a holder to a request.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_files::Class;
use tenure_files::upload::{FileLocker, UploadGuard, UploadId, UploadIdError, UploadLocker, Wait};
use tenure_testkit::{TestMachine, make_fifo, set_age, vector_files};

/// The expected result for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Held until the deadline, then refused with this class.
    Held(Class),
    /// Removed, and the lock is acquired.
    Reclaimed,
    /// Refused immediately.
    Refused(Class),
    /// Junk: removed if old, held if young.
    Junk,
}

use Expected::{Held, Junk, Reclaimed, Refused};

const TABLE: &[(&str, Expected)] = &[
    ("alive.tmpl", Held(Class::Timeout)),
    ("alive-no-newline.tmpl", Held(Class::Timeout)),
    ("alive-crlf.tmpl", Held(Class::Timeout)),
    ("alive-blanks.tmpl", Held(Class::Timeout)),
    ("alive-more-lines.tmpl", Held(Class::Timeout)),
    ("alive-other-user.tmpl", Held(Class::Timeout)),
    ("dead.tmpl", Reclaimed),
    ("own-pid.tmpl", Held(Class::Timeout)),
    ("hex.tmpl", Held(Class::Timeout)),
    ("plus-sign.tmpl", Held(Class::Timeout)),
    ("underscore.txt", Held(Class::Timeout)),
    ("empty.txt", Junk),
    ("text.txt", Junk),
    ("json.txt", Junk),
    ("zero.txt", Junk),
    ("negative.txt", Junk),
    ("fraction.txt", Junk),
    ("nul-byte.bin", Junk),
    ("over-64-bits.txt", Junk),
    ("leading-newline.tmpl", Junk),
    ("same-line-text.tmpl", Junk),
    ("over-32-bits.txt", Refused(Class::Malformed)),
    ("not-a-lock.bin", Refused(Class::NotALock)),
    ("tenure-alive.tmpl", Held(Class::Timeout)),
    ("tenure-dead.tmpl", Reclaimed),
    ("tenure-reused.tmpl", Reclaimed),
    ("tenure-other-boot.tmpl", Held(Class::Foreign)),
    ("tenure-other-pidns.tmpl", Held(Class::Foreign)),
    ("tenure-line-broken.tmpl", Held(Class::Timeout)),
];

#[test]
fn the_table_has_every_vector() {
    let listed: BTreeSet<&str> = TABLE.iter().map(|(file, _)| *file).collect();
    let files = vector_files("upload");
    let locks = files
        .iter()
        .filter(|file| !file.ends_with(".stop"))
        .map(String::as_str);
    assert_eq!(listed, locks.collect());
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

    fn with(bytes: &[u8], age: Duration) -> VectorFixture {
        let fixture = VectorFixture::new();
        fs::write(fixture.lock(), bytes).unwrap();
        set_age(&fixture.lock(), age);
        fixture
    }

    fn dir(&self) -> &Path {
        self.temp.path()
    }

    fn lock(&self) -> PathBuf {
        self.dir().join("up.lock")
    }

    /// Acquires the lock with a short deadline.
    fn try_lock(&self) -> Result<UploadGuard, Class> {
        let locker = FileLocker::new(self.dir()).unwrap();
        let wait = Wait::For(Duration::from_millis(30));
        locker
            .lock(&id("up"), wait, Arc::new(|_| {}))
            .map_err(|error| error.class())
    }
}

fn id(text: &str) -> UploadId {
    UploadId::new(text).unwrap()
}

const OLD: Duration = Duration::from_secs(60);

/// U4 (pid on the first line), U5 (the tenure line), U6 (accepted first lines), U7 (upload record
/// size limit), U13.1 (order of upload tests)–U13.4, K11 (a different boot id), K12 (ask the kernel
/// for the process), K14 (a different PID namespace), K15 (records without a block), K16: the
/// decision of a requester.
#[test]
fn a_newcomer_decides_as_the_table_says() {
    assert_eq!(
        tenure_testkit::pid_namespace(),
        4_026_531_836,
        "this test needs the first PID namespace"
    );
    let machine = TestMachine::new();
    for &(file, expected) in TABLE {
        let bytes = machine.vector("upload", file);
        let fixture = VectorFixture::with(&bytes, OLD);
        let class = fixture.try_lock().map(drop);
        let expected = match expected {
            Held(class) | Refused(class) => Err(class),
            Reclaimed | Junk => Ok(()),
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

/// U13.4: junk younger than 10 s may be a record that is being written.
#[test]
fn young_junk_is_held() {
    let machine = TestMachine::new();
    for &(file, _) in TABLE.iter().filter(|(_, expected)| *expected == Junk) {
        let bytes = machine.vector("upload", file);
        let fixture = VectorFixture::with(&bytes, Duration::from_secs(5));
        assert_eq!(fixture.try_lock().map(drop), Err(Class::Timeout), "{file}");
        assert_eq!(
            fs::read(fixture.lock()).unwrap(),
            bytes,
            "{file} was touched"
        );
    }
}

/// U13.4: old junk above 64 bytes is user data.
#[test]
fn large_old_junk_is_refused() {
    for (size, expected) in [(64, Ok(())), (65, Err(Class::Malformed))] {
        let fixture = VectorFixture::with(&vec![b'x'; size], OLD);
        assert_eq!(fixture.try_lock().map(drop), expected, "{size} bytes");
        assert_eq!(fixture.lock().exists(), expected.is_err(), "{size} bytes");
    }
}

/// U13.1, K28: a file that is not regular is refused immediately and stays.
#[test]
fn special_files_are_refused() {
    let cases: [(&str, MakeFixture<'_>); 3] = [
        ("directory", &|fixture| {
            fs::create_dir(fixture.lock()).unwrap()
        }),
        ("dangling symlink", &|fixture| {
            symlink("nowhere", fixture.lock()).unwrap()
        }),
        ("FIFO", &|fixture| make_fifo(&fixture.lock())),
    ];
    for (name, make) in cases {
        let fixture = VectorFixture::new();
        make(&fixture);
        assert_eq!(fixture.try_lock().map(drop), Err(Class::NotALock), "{name}");
        assert!(
            fs::symlink_metadata(fixture.lock()).is_ok(),
            "{name} was removed"
        );
    }
}

/// U1: a missing subdirectory is `NotFound` and is not created.
#[test]
fn a_missing_subdirectory_is_not_found() {
    let fixture = VectorFixture::new();
    let locker = FileLocker::new(fixture.dir()).unwrap();
    let lock = || locker.lock(&id("a/b"), Wait::No, Arc::new(|_| {}));
    assert_eq!(lock().unwrap_err().class(), Class::NotFound);
    assert!(!fixture.dir().join("a").exists());
    fs::create_dir(fixture.dir().join("a")).unwrap();
    let guard = lock().unwrap();
    assert!(fixture.dir().join("a/b.lock").exists());
    guard.release().unwrap();
}

/// U2: identifiers that would lead elsewhere.
#[test]
fn identifiers_that_leave_are_bad_input() {
    for text in ["", "/x", "../x", "a//b", "a/./b", "a\0b"] {
        let error: UploadIdError = UploadId::new(text).unwrap_err();
        assert_eq!(error.class(), Class::BadInput, "{text:?}");
    }
}
