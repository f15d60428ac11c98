//! Locks in a directory (P4): the keys are files, the conditions are those of lock files.
//!
//! | operation | is |
//! |---|---|
//! | create | a complete, locked file that appears in one step (K17) |
//! | replace | the safe removal of what was seen (K22–K26), then a create |
//! | renew | the same length in place, through the descriptor kept since the create (K21) |
//! | delete | the safe removal |
//!
//! That is level 2 of P26. The kernel's lock on our record is a by-product that object stores do
//! not have: while it is held, no other Tenure of this machine takes the record away, paused
//! holder or not (K24).
//!
//! The fencing counter is never removed; it is counted up in place under its `flock`, so that
//! nobody ever sees it missing and begins again at one (K40).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use jiff::Timestamp;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, unlinkat};
use rustix::io::Errno;
use tenure_files::Class;
use tenure_files::clock::Clock;
use tenure_files::dir::Dir;
use tenure_files::identity::Here;
use tenure_files::liveness::verdict;
use tenure_files::publish::{Draft, Options};
use tenure_files::record::OpenRecord as LockFile;
use tenure_files::remove::{Removal, no_pause, remove};

use crate::judge::{Content, Life, Object, Version};
use crate::key::Key;
use crate::onion::Codec;
use crate::record::Block;
use crate::steps::{Answer, Body, Failure, FailureKind, Op, Why};
use crate::store::{BoxFuture, Store, life, own_block};

/// Originals of other users must be able to read our record: what they cannot read they take as
/// free. So it is as readable as theirs (P4, K32).
const FILE_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;
/// What is larger is not a lock record and is never removed (K30). Far above the limit of P13, so
/// that a record which is merely too long can still be judged by its age (P24).
const FILE_LIMIT: usize = 1 << 20;
/// Digits that the counter always has room for.
const FENCE_WIDTH: usize = 20;

/// Whether the store may be written to find out what time it is there (K45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Yes: to take and hold locks.
    Write,
    /// No: to look at them (P42).
    Look,
}

/// A directory, seen as a store of locks.
#[derive(Clone, Debug)]
pub struct Directory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: PathBuf,
    codec: Codec,
    access: Access,
    is_local: bool,
    /// The files of the locks that we hold; closing one gives up the kernel's lock on it.
    held: Mutex<BTreeMap<Key, File>>,
}

impl Directory {
    /// Opens the repository in `base`, which must exist.
    pub fn open(base: &Path, codec: Codec, access: Access) -> tenure_files::Result<Directory> {
        let is_local = Dir::open(base)?.is_local();
        let held = Mutex::default();
        Ok(Directory(Arc::new(Inner {
            base: base.into(),
            codec,
            access,
            is_local,
            held,
        })))
    }
}

impl Directory {
    /// Does one operation on this thread.
    pub fn perform_here(&self, op: Op) -> Answer {
        self.0.perform(op)
    }

    /// Removes what crashed processes left beside the locks (K20), and names it.
    pub fn clean(&self) -> tenure_files::Result<Vec<PathBuf>> {
        let mut cleaned = Vec::new();
        for key in [
            Key::Exclusive.path(),
            Key::shared("", 0).path(),
            Key::Fence.path(),
        ] {
            let path = self.0.base.join(key);
            let Some(parent) = path.parent().filter(|parent| parent.is_dir()) else {
                continue;
            };
            let dir = Dir::open(parent)?;
            let names = tenure_files::leftovers::leftovers(&dir, Clock::SYSTEM)?;
            cleaned.extend(names.into_iter().map(|name| parent.join(name)));
        }
        Ok(cleaned)
    }
}

impl Store for Directory {
    fn perform(&self, op: Op) -> BoxFuture<'_, Answer> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let work = tokio::task::spawn_blocking(move || inner.perform(op));
            work.await
                .unwrap_or_else(|error| Answer::Failed(Failure::lasting(error.to_string())))
        })
    }

    fn block(&self) -> Block {
        let is_local = self.0.is_local;
        Block {
            flock: Some(is_local),
            local: Some(is_local),
            ..own_block()
        }
    }
}

/// A file of the store: its directory, its name there, and what it is.
struct Place {
    dir: Dir,
    name: OsString,
    key: Key,
}

impl Inner {
    fn perform(&self, op: Op) -> Answer {
        let answer = match op {
            Op::Read(key) => self.read(key),
            Op::ListShared => self.list(),
            Op::Create(key, body) => self.create(key, &body),
            Op::Replace(Key::Fence, Body::Fence(number), version) => self.count(number, &version),
            Op::Replace(key, body, version) => self.replace(key, &body, &version),
            Op::Renew(key, body, version) => self.renew(key, &body, &version),
            // Never asked for at level 2; still the truth if it is.
            Op::Put(key, body) => self.create(key, &body),
            Op::DeleteVersion(key, version) => self.delete(key, &version),
            Op::Delete(key) => self.delete_by_name(key),
            Op::WaitUntil(_) => Ok(Answer::Waited),
        };
        answer.unwrap_or_else(Answer::Failed)
    }

    /// The directory of `key`; `None` if it does not exist yet.
    fn find(&self, key: Key) -> Result<Option<Place>, Failure> {
        let path = self.base.join(key.path());
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Failure::lasting(format!("{} is no key", path.display())));
        };
        match Dir::open(parent) {
            Ok(dir) => Ok(Some(Place {
                dir,
                name: name.into(),
                key,
            })),
            // Only what is really missing is absent, and only below a base that is there (P25).
            Err(error) if error.class() == Class::NotFound && self.is_missing(parent)? => Ok(None),
            Err(error) => Err(failure(&error)),
        }
    }

    fn is_missing(&self, dir: &Path) -> Result<bool, Failure> {
        if !self.base.is_dir() {
            return Err(Failure::lasting(format!(
                "{}: no such directory",
                self.base.display()
            )));
        }
        match std::fs::symlink_metadata(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(Failure::lasting(format!("{}: {error}", dir.display()))),
            Ok(_) => Ok(false),
        }
    }

    /// The directory of `key`, made if necessary.
    fn make(&self, key: Key) -> Result<Place, Failure> {
        if let Some(place) = self.find(key.clone())? {
            return Ok(place);
        }
        let path = self.base.join(key.path());
        if let Some(parent) = path.parent() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(DIR_MODE)
                .create(parent)
                .map_err(|error| Failure::lasting(format!("{}: {error}", parent.display())))?;
        }
        self.find(key)?
            .ok_or_else(|| Failure::passing("the directory vanished"))
    }

    fn read(&self, key: Key) -> Result<Answer, Failure> {
        let Some(place) = self.find(key)? else {
            return Ok(Answer::Absent);
        };
        // The time first: a pause between the two would otherwise count as age of the record.
        let now = self.now_in(&place.dir);
        match place.open()? {
            None => Ok(Answer::Absent),
            Some(mut file) => Ok(Answer::Found(self.object(&place, &mut file, now)?)),
        }
    }

    fn object(
        &self,
        place: &Place,
        file: &mut LockFile,
        store_now: Option<Timestamp>,
    ) -> Result<Object, Failure> {
        let content = match place.key {
            Key::Fence => Codec::decode_fence(file.bytes()),
            Key::Exclusive | Key::Shared(_) | Key::Probe(_) => {
                self.codec.decode_record(file.bytes())
            }
        };
        let life = match &content {
            Content::Record(record) => match &record.tenure {
                Some(block) => {
                    let here = Here::now();
                    let verdict = verdict(&block.identity(), file, &place.dir, &here);
                    life(verdict.map_err(|error| failure(&error))?)
                }
                None => Life::Unknown,
            },
            Content::Fence(_) | Content::Unreadable { .. } => Life::Unknown,
        };
        Ok(Object {
            content,
            version: version_of(file.file(), file.bytes()).map_err(io_failure)?,
            modified: timestamp(file.modified()),
            store_now,
            life,
        })
    }

    /// What time it is there (K45). Elsewhere than on a local disk only a write can tell.
    fn now_in(&self, dir: &Dir) -> Option<Timestamp> {
        match (self.access, dir.is_local()) {
            (Access::Write, _) => Clock::SYSTEM.now_in(dir).ok().and_then(timestamp),
            (Access::Look, true) => timestamp(SystemTime::now()),
            (Access::Look, false) => None,
        }
    }

    fn list(&self) -> Result<Answer, Failure> {
        let root = self.base.join(Key::SHARED_PREFIX);
        if self.is_missing(&root)? {
            return Ok(Answer::Listed(Vec::new()));
        }
        let mut keys = Vec::new();
        collect(&root, "", &mut keys).map_err(|error| {
            Failure::lasting(format!("cannot list {}: {error}", root.display()))
        })?;
        Ok(Answer::Listed(keys))
    }

    fn create(&self, key: Key, body: &Body) -> Result<Answer, Failure> {
        let place = self.make(key)?;
        self.publish(&place, body)
    }

    fn publish(&self, place: &Place, body: &Body) -> Result<Answer, Failure> {
        let bytes = self.encode(body);
        let options = Options {
            mode: FILE_MODE,
            ..Options::default()
        };
        let mut draft = Draft::new(&place.dir, &place.name, options);
        draft.write(&bytes).map_err(|error| failure(&error))?;
        let Some(published) = draft.publish().map_err(|error| failure(&error))? else {
            return Ok(Answer::Refused(Why::Condition));
        };
        let version = version_of(&published.file, &bytes).map_err(io_failure)?;
        if let Body::Record(_) = body {
            self.held().insert(place.key.clone(), published.file);
        }
        Ok(Answer::Written(version))
    }

    fn replace(&self, key: Key, body: &Body, version: &Version) -> Result<Answer, Failure> {
        let place = self.make(key)?;
        match self.remove(&place, version)? {
            Answer::Deleted => self.publish(&place, body),
            Answer::Absent => Ok(Answer::Refused(Why::Condition)),
            other => Ok(other),
        }
    }

    fn delete(&self, key: Key, version: &Version) -> Result<Answer, Failure> {
        self.let_go(&key, version)?;
        match self.find(key)? {
            Some(place) => self.remove(&place, version),
            None => Ok(Answer::Absent),
        }
    }

    /// Our own lock on our own file would keep us from removing it. It may go first: until the
    /// record has expired nobody else removes it, and then he may.
    fn let_go(&self, key: &Key, version: &Version) -> Result<(), Failure> {
        let mut held = self.held();
        if let Some(file) = held.get(key) {
            let mut bytes = vec![0; FILE_LIMIT];
            let length = file.read_at(&mut bytes, 0).map_err(io_failure)?;
            // Another lock of ours may lie there by now; that one stays guarded.
            if version_of(file, &bytes[..length]).map_err(io_failure)? == *version {
                held.remove(key);
            }
        }
        Ok(())
    }

    /// Whatever is there, guarded or not: for scratch objects, and for breaking a live lock.
    fn delete_by_name(&self, key: Key) -> Result<Answer, Failure> {
        let Some(place) = self.find(key)? else {
            return Ok(Answer::Absent);
        };
        // Only what could be a record: never a directory, never somebody's large file (K30).
        if place.open()?.is_none() {
            return Ok(Answer::Absent);
        }
        match unlinkat(&place.dir, &place.name, AtFlags::empty()) {
            Ok(()) => Ok(Answer::Deleted),
            Err(Errno::NOENT) => Ok(Answer::Absent),
            Err(errno) => Err(io_failure(errno.into())),
        }
    }

    fn remove(&self, place: &Place, version: &Version) -> Result<Answer, Failure> {
        let Some(mut file) = place.open()? else {
            return Ok(Answer::Absent);
        };
        if version_of(file.file(), file.bytes()).map_err(io_failure)? != *version {
            return Ok(Answer::Refused(Why::Condition));
        }
        match remove(&place.dir, &mut file, &no_pause).map_err(|error| failure(&error))? {
            Removal::Removed => Ok(Answer::Deleted),
            Removal::Busy => Ok(Answer::Refused(Why::Contention)),
            Removal::Changed => Ok(Answer::Refused(Why::Condition)),
        }
    }

    /// K21: the same file, the same length, new bytes.
    fn renew(&self, key: Key, body: &Body, version: &Version) -> Result<Answer, Failure> {
        let Some(place) = self.find(key.clone())? else {
            return Ok(Answer::Refused(Why::Condition));
        };
        let mut held = self.held();
        let file = match held.entry(key) {
            std::collections::btree_map::Entry::Occupied(kept) => kept.into_mut(),
            // A hold that another process began (C13).
            std::collections::btree_map::Entry::Vacant(missing) => match place.open_to_write()? {
                Some(file) => missing.insert(file),
                None => return Ok(Answer::Refused(Why::Condition)),
            },
        };
        let bytes = self.encode(body);
        let answer = place.rewrite(file, &bytes, version).map_err(io_failure)?;
        Ok(answer)
    }

    /// The counter goes up in place, under the kernel's lock (K40).
    fn count(&self, number: u64, version: &Version) -> Result<Answer, Failure> {
        let Some(place) = self.find(Key::Fence)? else {
            return Ok(Answer::Refused(Why::Condition));
        };
        let Some(file) = place.open_to_write()? else {
            return Ok(Answer::Refused(Why::Condition));
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Answer::Refused(Why::Contention)),
            Err(errno) => return Err(io_failure(errno.into())),
        }
        let bytes = self.encode(&Body::Fence(number));
        let answer = place.rewrite(&file, &bytes, version).map_err(io_failure)?;
        file.sync_data().map_err(io_failure)?;
        Ok(answer)
    }

    fn encode(&self, body: &Body) -> Vec<u8> {
        match body {
            Body::Fence(number) => format!("{{\"fence\":{number:<FENCE_WIDTH$}}}\n").into_bytes(),
            Body::Record(_) | Body::Probe(_) => self.codec.encode(body),
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Key, File>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn open(&self) -> Result<Option<LockFile>, Failure> {
        LockFile::open(&self.dir, &self.name, FILE_LIMIT).map_err(|error| failure(&error))
    }

    fn open_to_write(&self) -> Result<Option<File>, Failure> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(io_failure(errno.into())),
        }
    }

    /// Writes `bytes` over the file if the name leads to it and it has this version, before and
    /// after.
    fn rewrite(&self, file: &File, bytes: &[u8], version: &Version) -> std::io::Result<Answer> {
        let mut old = vec![0; bytes.len() + 1];
        let length = file.read_at(&mut old, 0)?;
        old.truncate(length);
        if !self.leads_to(file)? || version_of(file, &old)? != *version {
            return Ok(Answer::Refused(Why::Condition));
        }
        if length != bytes.len() {
            return Err(std::io::Error::other(
                "the record has another length than ours",
            ));
        }
        file.write_all_at(bytes, 0)?;
        if !self.dir.is_local() {
            // Others see it only then.
            file.sync_data()?;
        }
        if !self.leads_to(file)? {
            return Ok(Answer::Refused(Why::Condition));
        }
        Ok(Answer::Written(version_of(file, bytes)?))
    }

    fn leads_to(&self, file: &File) -> std::io::Result<bool> {
        let ours = file.metadata()?;
        match self.dir.stat(&self.name) {
            Ok(stat) => Ok((stat.st_dev, stat.st_ino) == (ours.dev(), ours.ino())),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Which file, with which bytes, written when.
fn version_of(file: &File, bytes: &[u8]) -> std::io::Result<Version> {
    let meta = file.metadata()?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let (device, inode) = (meta.dev(), meta.ino());
    let written = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    Ok(Version::tag(format!(
        "{device:x}-{inode:x}-{written:x}-{:016x}",
        hasher.finish()
    )))
}

/// Every file below `dir`, except Tenure's own private ones (K17, K26).
fn collect(dir: &Path, prefix: &str, keys: &mut Vec<Key>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_private(&name) {
            continue;
        }
        let Some(name) = name.to_str() else {
            let text = format!("{} is not UTF-8", entry.path().display());
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
        };
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &format!("{prefix}{name}/"), keys)?;
        } else {
            keys.push(Key::Shared(format!("{prefix}{name}")));
        }
    }
    keys.sort();
    Ok(())
}

fn is_private(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    name.starts_with('.')
        && [".tenure-", ".dead-", ".kept-"]
            .iter()
            .any(|word| name.contains(word))
}

fn timestamp(time: SystemTime) -> Option<Timestamp> {
    Timestamp::try_from(time).ok()
}

fn failure(error: &tenure_files::Error) -> Failure {
    let kind = match error.class() {
        Class::NotALock | Class::TooLarge => FailureKind::NotALock,
        _ => FailureKind::Lasting,
    };
    let text = match error.os_error() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    Failure { kind, text }
}

fn io_failure(error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::Interrupted | std::io::ErrorKind::TimedOut => {
            Failure::passing(error.to_string())
        }
        _ => Failure::lasting(error.to_string()),
    }
}
