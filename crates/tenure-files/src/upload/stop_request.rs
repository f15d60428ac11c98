//! Release requests of upload locks as a file, `ID.stop` (U14 (make a release request)–U16
//! (withdraw a release request), U19 (upload release)).
//!
//! For the original, the existence of the file is the request. Tenure adds the addressee and the
//! requester, so that an abandoned request does not interrupt the next holder. If the file has no
//! addressee, its modification time decides.
//!
//! A process removes a request only if it is the one that it saw: same file, same modification
//! time. A request that a waiter renewed in between stays.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, fstat, futimens,
    openat, unlinkat,
};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use super::{Names, UploadReleaseRequest, record};
use crate::clock;
use crate::dir::{Dir, FileId};
use crate::error::{Class, Error, Result};
use crate::identity::{Here, Identity};
use crate::publish::{self, Draft, Durability};
use crate::record::{OpenRecord as Found, read_at_most, timestamp};

/// Maximum number of bytes read from a request.
const LIMIT: usize = 4096;

/// An existing request, with the time at which it was last made.
#[derive(Debug)]
pub(super) struct StopRequest {
    file: File,
    name: OsString,
    id: FileId,
    modified: SystemTime,
}

/// The content of a request.
#[derive(Debug, Default)]
pub(super) struct StopContent {
    /// The token of the holder to which it is addressed.
    addressee: Option<String>,
    pub(super) request: UploadReleaseRequest,
    test: Option<LivenessTest>,
}

/// The test of a doubtful holder: its start time and the lock file concerned (U13a (test a doubtful
/// holder)). It is stored in the request, so that the next waiter can continue it.
///
/// Inode and ctime together identify one state of one file: a new or rewritten lock differs in at
/// least one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LivenessTest {
    boot: Option<String>,
    /// A time namespace shifts the clock, so a start from another one means nothing here.
    timens: Option<u64>,
    lock_inode: u64,
    lock_changed_ns: u64,
    /// `CLOCK_MONOTONIC`: a suspended holder does not react, so suspended time proves nothing.
    since_ms: u64,
}

impl LivenessTest {
    /// Starts a test of the holder of `lock` now.
    pub(super) fn begin(lock: &Found) -> LivenessTest {
        let changed = lock
            .changed()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let here = Here::now();
        LivenessTest {
            boot: here.boot,
            timens: here.timens,
            lock_inode: lock.id().inode(),
            lock_changed_ns: u64::try_from(changed.as_nanos()).unwrap_or(u64::MAX),
            since_ms: millis(clock::monotonic()),
        }
    }

    /// Returns how long the test has been running; zero if its start is in the future.
    pub(super) fn age(&self) -> Duration {
        Duration::from_millis(millis(clock::monotonic()).saturating_sub(self.since_ms))
    }

    /// Whether both tests concern the same state of the same lock in the same boot.
    pub(super) fn is_same_case(&self, other: &LivenessTest) -> bool {
        LivenessTest {
            since_ms: 0,
            ..self.clone()
        } == LivenessTest {
            since_ms: 0,
            ..other.clone()
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "boot": self.boot,
            "timens": self.timens,
            "inode": self.lock_inode,
            "changed": self.lock_changed_ns,
            "monotonic": self.since_ms,
        })
    }

    fn from_json(value: &Value) -> Option<LivenessTest> {
        Some(LivenessTest {
            boot: value["boot"].as_str().map(str::to_owned),
            timens: value["timens"].as_u64(),
            lock_inode: value["inode"].as_u64()?,
            lock_changed_ns: value["changed"].as_u64()?,
            since_ms: value["monotonic"].as_u64()?,
        })
    }
}

/// Makes or renews the request (U14). Returns `None` if a request of another user exists, which
/// stays as it is.
///
/// With `test`, its start time is stored in the file; if the file has an older start of the same
/// test, `test` takes that one over.
pub(super) fn make(
    dir: &Dir,
    names: &Names,
    addressee: Option<&str>,
    by: &UploadReleaseRequest,
    test: Option<&mut LivenessTest>,
) -> Result<Option<StopRequest>> {
    let mut line = Map::new();
    line.insert("v".into(), json!(1));
    if let Some(token) = addressee {
        line.insert("for".into(), json!(token));
    }
    if let Some(by) = &by.by {
        line.insert("by".into(), object(by));
    }
    if let Some(reason) = &by.reason {
        line.insert("reason".into(), json!(reason));
    }
    if let Some(test) = &test {
        line.insert("test".into(), test.to_json());
    }
    if let Some(stop) = make_new(dir, names, &record::line(&line)) {
        return Ok(Some(stop));
    }
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let failed = |errno| {
        Error::io(
            dir.join(&names.stop),
            "cannot ask the holder to stop",
            errno,
        )
    };
    // A request exists, or it could not be published in one step: write it in place.
    let file: File = match openat(dir, &names.stop, flags, Mode::from_raw_mode(0o644)) {
        Ok(fd) => fd.into(),
        Err(Errno::ACCESS | Errno::PERM) if dir.stat(&names.stop).is_ok() => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    let stat = fstat(&file).map_err(failed)?;
    if !may_be_request(dir, names, &stat) || !has_no_data(&file) {
        let what = "is no release request, so the holder cannot be asked";
        return Err(Error::new(Class::NotALock, dir.join(&names.stop), what)
            .next("it looks like an upload of that name; take another identifier"));
    }
    if let Some(test) = test {
        let noted = StopContent::read(&file).and_then(|content| content.test);
        if let Some(noted) =
            noted.filter(|noted| noted.is_same_case(test) && noted.age() > test.age())
        {
            *test = noted;
        }
        line.insert("test".into(), test.to_json());
    }
    let line = record::line(&line);
    write_whole(&file, line.as_bytes()).map_err(|error| {
        Error::io(
            dir.join(&names.stop),
            "cannot ask the holder to stop",
            error,
        )
    })?;
    // Originals and holders go by the modification time, so it must change also if the bytes do
    // not.
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    futimens(
        &file,
        &Timestamps {
            last_access: now,
            last_modification: now,
        },
    )
    .map_err(failed)?;
    let stat = fstat(&file).map_err(failed)?;
    Ok(Some(StopRequest {
        file,
        name: names.stop.clone(),
        id: FileId::of(&stat),
        modified: timestamp(stat.st_mtime, stat.st_mtime_nsec),
    }))
}

/// Publishes a new request in one step. Without its line the file would count as a request of an
/// original, addressed to any holder. `None` if a request exists, or publication is not possible.
fn make_new(dir: &Dir, names: &Names, line: &str) -> Option<StopRequest> {
    if !matches!(dir.stat(&names.stop), Err(Errno::NOENT)) {
        return None;
    }
    let options = publish::Options {
        mode: 0o644,
        durability: Durability::Fast,
        ..publish::Options::default()
    };
    let mut draft = Draft::new(dir, &names.stop, options);
    draft.write(line.as_bytes()).ok()?;
    let published = draft.publish().ok()??;
    Some(StopRequest {
        file: published.file,
        name: names.stop.clone(),
        id: published.id,
        modified: published.modified,
    })
}

/// Whether the file may be a release request. An original looks for its existence only, so the
/// content does not matter; a large file, or one with a description beside it, is an upload whose own
/// identifier ends in `.stop`.
fn may_be_request(dir: &Dir, names: &Names, stat: &Stat) -> bool {
    let mut info = names.stop.clone();
    info.push(".info");
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && u64::try_from(stat.st_size).is_ok_and(|size| size <= LIMIT as u64)
        && matches!(dir.stat(&info), Err(Errno::NOENT))
}

/// Whether the content is that of a request: empty, as an original makes it, or Tenure's line. Any
/// other content is data, which is neither overwritten nor removed (K30 (keep files that are no
/// records)).
fn has_no_data(file: &File) -> bool {
    let is_empty = || fstat(file).is_ok_and(|stat| stat.st_size == 0);
    is_empty() || StopContent::read(file).is_some()
}

/// Returns the existing request. `None` if there is none, or if it cannot be opened or is no request.
pub(super) fn look(dir: &Dir, names: &Names) -> Option<StopRequest> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: File = openat(dir, &names.stop, flags, Mode::empty()).ok()?.into();
    let stat = fstat(&file).ok()?;
    may_be_request(dir, names, &stat).then(|| StopRequest {
        file,
        name: names.stop.clone(),
        id: FileId::of(&stat),
        modified: timestamp(stat.st_mtime, stat.st_mtime_nsec),
    })
}

impl StopRequest {
    /// Returns the content; empty if the file has no line that we understand.
    pub(super) fn content(&self) -> StopContent {
        StopContent::read(&self.file).unwrap_or_default()
    }

    /// Returns when it was made or last renewed.
    pub(super) fn modified(&self) -> SystemTime {
        self.modified
    }

    /// Returns the request if it is meant for the holder with `token`, who acquired at `acquired`
    /// (U15 (react to a release request)): by the addressee, or else if it is later than the
    /// acquisition.
    pub(super) fn is_for(&self, token: &str, acquired: SystemTime) -> Option<UploadReleaseRequest> {
        let content = self.content();
        let meant = match &content.addressee {
            Some(addressee) => addressee == token,
            // Read the time again: the request may have been renewed since it was opened.
            None => self
                .modified_now()
                .is_none_or(|modified| modified > acquired),
        };
        meant.then_some(content.request)
    }

    /// Whether the request was made before the acquisition at `acquired` (U10.6 acquire an upload
    /// lock).
    pub(super) fn is_older_than(&self, acquired: SystemTime) -> bool {
        self.modified <= acquired
    }

    /// Removes the request if it is still the same file with the same time. `false` if it was
    /// renewed or is gone, or contains data.
    pub(super) fn remove(&self, dir: &Dir) -> bool {
        let still_this = dir.leads_to(&self.name, self.id).unwrap_or(false)
            && !self.was_renewed()
            && has_no_data(&self.file);
        still_this
            && unlinkat(dir, &self.name, AtFlags::empty()).is_ok()
            // Check again after the unlink: a waiter may have renewed the file that was removed.
            && !self.was_renewed()
    }

    fn was_renewed(&self) -> bool {
        self.modified_now() != Some(self.modified)
    }

    fn modified_now(&self) -> Option<SystemTime> {
        fstat(&self.file)
            .ok()
            .map(|stat| timestamp(stat.st_mtime, stat.st_mtime_nsec))
    }
}

impl StopContent {
    /// Reads Tenure's line. It is the first one; the rest of an older, longer line may follow.
    fn read(file: &File) -> Option<StopContent> {
        let bytes = read_at_most(file, LIMIT).ok()?;
        let block = bytes
            .split(|byte| *byte == b'\n')
            .next()
            .and_then(record::block)?;
        let text = |key: &str| block.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(StopContent {
            addressee: text("for").filter(|token| !token.is_empty()),
            request: UploadReleaseRequest {
                by: block
                    .get("by")
                    .and_then(Value::as_object)
                    .map(Identity::from_json),
                reason: text("reason"),
            },
            test: block.get("test").and_then(LivenessTest::from_json),
        })
    }
}

/// Writes first and truncates second: a concurrent reader sees the whole new line, at most followed
/// by the rest of an older one.
fn write_whole(file: &File, bytes: &[u8]) -> std::io::Result<()> {
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)
}

fn object(identity: &Identity) -> Value {
    let members = identity.members().into_iter();
    Value::Object(
        members
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    )
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "6f0c4f9d2d7f4a0fb1f6f6f1f0a9d3c2";

    struct Place {
        _temp: tempfile::TempDir,
        dir: Dir,
        names: Names,
    }

    impl Place {
        fn with(text: &str, modified: SystemTime) -> Place {
            let temp = tempfile::tempdir().unwrap();
            let path = temp.path().join("up.stop");
            std::fs::write(&path, text).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(modified).unwrap();
            let names = Names {
                lock: "up.lock".into(),
                stop: "up.stop".into(),
                address: "upload:up".into(),
            };
            let dir = Dir::open(temp.path()).unwrap();
            Place {
                _temp: temp,
                dir,
                names,
            }
        }
    }

    /// U15: the addressee decides; without one, the modification time.
    #[test]
    fn a_request_is_meant_by_address_or_by_time() {
        let acquired = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let (earlier, later) = (
            acquired - Duration::from_secs(1),
            acquired + Duration::from_millis(1),
        );
        let this = format!("tenure {{\"v\":1,\"for\":\"{TOKEN}\"}}\n");
        let other = "tenure {\"v\":1,\"for\":\"00000000000000000000000000000000\"}\n";
        for (text, time, is_meant) in [
            ("", later, true),
            ("???", later, true),
            ("tenure {\"v\":1,\"for\":\"\"}", later, true),
            ("", acquired, false),
            ("", earlier, false),
            (this.as_str(), later, true),
            (this.as_str(), earlier, true),
            (other, later, false),
            (other, earlier, false),
        ] {
            let place = Place::with(text, time);
            let stop = look(&place.dir, &place.names).unwrap();
            assert_eq!(
                stop.is_for(TOKEN, acquired).is_some(),
                is_meant,
                "{text:?} at {time:?}"
            );
        }
    }

    /// U16, U19: only the request that was seen is removed: same file, same time.
    #[test]
    fn only_the_request_that_was_seen_is_removed() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let by = UploadReleaseRequest::default();

        let place = Place::with("", time);
        let seen = look(&place.dir, &place.names).unwrap();
        make(&place.dir, &place.names, None, &by, None)
            .unwrap()
            .unwrap();
        assert!(!seen.remove(&place.dir), "it was renewed");
        assert!(look(&place.dir, &place.names).is_some());

        let seen = look(&place.dir, &place.names).unwrap();
        unlinkat(&place.dir, &place.names.stop, AtFlags::empty()).unwrap();
        make(&place.dir, &place.names, None, &by, None)
            .unwrap()
            .unwrap();
        assert!(!seen.remove(&place.dir), "it is another file");
        let seen = look(&place.dir, &place.names).unwrap();
        assert!(seen.remove(&place.dir));
        assert!(look(&place.dir, &place.names).is_none());
    }

    /// K30: a file with other content, or with a description beside it, is an upload of that name: it
    /// is no request, and is neither overwritten nor removed.
    #[test]
    fn an_upload_of_that_name_is_no_request() {
        let by = UploadReleaseRequest::default();
        let data = "x".repeat(5_000_000);
        for text in ["???", "tenure\n", &data, "data\ntenure {\"v\":1}\n"] {
            let place = Place::with(text, SystemTime::now());
            if let Some(seen) = look(&place.dir, &place.names) {
                assert!(
                    text.len() <= LIMIT && !seen.remove(&place.dir),
                    "{text:.20}"
                );
            }
            let made = make(&place.dir, &place.names, Some(TOKEN), &by, None);
            assert_eq!(made.unwrap_err().class(), Class::NotALock);
            let path = place.dir.join(&place.names.stop);
            assert_eq!(std::fs::read_to_string(path).unwrap(), text);
        }
        let place = Place::with("", SystemTime::now());
        std::fs::write(place.dir.join("up.stop.info"), "{}").unwrap();
        assert!(look(&place.dir, &place.names).is_none(), "an empty upload");
    }

    /// U13a: suspended time does not count, and a start by another clock means nothing.
    #[test]
    fn a_test_is_continued_only_by_the_same_clock() {
        let place = Place::with("", SystemTime::now());
        std::fs::write(place.dir.join("up.lock"), "1\n").unwrap();
        let lock = Found::open(&place.dir, &place.names.lock, 100)
            .unwrap()
            .unwrap();
        let test = LivenessTest::begin(&lock);
        assert!(test.age() < Duration::from_secs(5), "{:?}", test.age());
        let shifted = LivenessTest {
            timens: Some(1),
            ..test.clone()
        };
        assert!(!shifted.is_same_case(&test));
        assert_eq!(LivenessTest::from_json(&test.to_json()), Some(test));
        let older = json!({"boot": null, "inode": 1, "changed": 1, "since": 1});
        assert_eq!(
            LivenessTest::from_json(&older),
            None,
            "it counted suspended time"
        );
    }

    /// U14, U15: a new request is never visible without its line: it would count as an original's,
    /// and interrupt a holder that it is not meant for.
    #[test]
    fn a_request_appears_with_its_address() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let place = Place::with("", SystemTime::UNIX_EPOCH);
        unlinkat(&place.dir, &place.names.stop, AtFlags::empty()).unwrap();
        let (by, is_over) = (UploadReleaseRequest::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let mut bare = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let seen = look(&place.dir, &place.names);
                    bare += usize::from(seen.is_some_and(|it| it.content().addressee.is_none()));
                }
                bare
            });
            for _ in 0..2_000 {
                let made = make(&place.dir, &place.names, Some(TOKEN), &by, None);
                assert!(made.unwrap().unwrap().remove(&place.dir));
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(holder.join().unwrap(), 0, "seen without an address");
        });
    }
}
