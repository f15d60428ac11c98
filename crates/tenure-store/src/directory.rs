//! Directory store: each object is a file, and each condition is enforced with lock-file techniques
//! (P4 (directory stores)).
//!
//! | operation | implementation |
//! |---|---|
//! | create | a complete, locked file that appears in one step (K17 (publish in one step)) |
//! | replace | safe removal of the version that was read (K22–K26), then a create |
//! | renew | a write of the same length in place, through the held descriptor (K21) |
//! | delete | safe removal; by name when a user breaks a live lock |
//!
//! This gives level 2 of P26 (levels of conditional writes). The `flock` on the record is an
//! addition that object stores do not have: while the holder keeps it, even if it is paused, Tenure
//! on this machine removes the record only by a forced break (K24 (lock before removal)).
//!
//! The fencing counter is never removed. It is incremented in place under its `flock`, so that no
//! process finds it missing and starts again at one (K40 (fence counter file)).

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
use tenure_files::Clock;
use tenure_files::internal::Dir;
use tenure_files::internal::Here;
use tenure_files::internal::OpenRecord as LockFile;
use tenure_files::internal::verdict;
use tenure_files::internal::{Draft, PublishOptions};
use tenure_files::internal::{Removal, no_pause, remove};

use crate::envelope::Codec;
use crate::key::ObjectKey;
use crate::protocol::{ConditionFailure, OpBody, OpFailure, OpFailureKind, OpResult, StoreOp};
use crate::record::HolderBlock;
use crate::staleness::{Object, ObjectContent, ProcessLiveness, Version};
use crate::store::{BoxFuture, Store, liveness, own_block};

/// Mode of records. Originals of other users must be able to read a record, because they treat one
/// that they cannot read as free. So it is as readable as theirs (P4, K32 (file modes and
/// symlinks)).
const FILE_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;
/// Largest file that can be a lock record; a larger one is never removed (K30 (keep files that are
/// no records)). Far above the limit of P13 (repository record size limit), so that a record over
/// that limit is still judged by its age (P24 (unparsable repository records)).
const FILE_LIMIT: usize = 1 << 20;
/// Fixed number of digits of the fencing counter, so that an in-place write keeps the length.
const FENCE_WIDTH: usize = 20;

/// Whether reading the store's clock may write a file (K45 (age of files and objects)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeAccess {
    /// May write: for acquiring and holding locks.
    Write,
    /// Must not write: for inspection (P42 (inspection never writes)).
    Look,
}

/// A directory that stores repository locks.
#[derive(Clone, Debug)]
pub struct Directory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: PathBuf,
    codec: Codec,
    access: ProbeAccess,
    is_local: bool,
    /// Files of the records that this process holds. Closing one releases its `flock`.
    held: Mutex<BTreeMap<ObjectKey, File>>,
}

impl Directory {
    /// Opens the repository in the directory `base`.
    ///
    /// # Errors
    ///
    /// Returns an error if `base` does not exist or cannot be opened.
    pub fn open(base: &Path, codec: Codec, access: ProbeAccess) -> tenure_files::Result<Directory> {
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
    /// Performs one operation on the current thread.
    pub fn perform_here(&self, op: StoreOp) -> OpResult {
        self.0.perform(op)
    }

    /// Removes leftover private files of crashed processes (K20 (remove leftover private files))
    /// and returns their paths.
    pub fn clean(&self) -> tenure_files::Result<Vec<PathBuf>> {
        let mut cleaned = Vec::new();
        for key in [
            ObjectKey::Exclusive.path(),
            ObjectKey::shared("", 0).path(),
            ObjectKey::Fence.path(),
        ] {
            let path = self.0.base.join(key);
            let Some(parent) = path.parent().filter(|parent| parent.is_dir()) else {
                continue;
            };
            let dir = Dir::open(parent)?;
            let names = tenure_files::internal::leftovers(&dir, Clock::SYSTEM)?;
            cleaned.extend(names.into_iter().map(|name| parent.join(name)));
        }
        Ok(cleaned)
    }
}

impl Store for Directory {
    fn perform(&self, op: StoreOp) -> BoxFuture<'_, OpResult> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let work = tokio::task::spawn_blocking(move || inner.perform(op));
            work.await
                .unwrap_or_else(|error| OpResult::Failed(OpFailure::lasting(error.to_string())))
        })
    }

    fn block(&self) -> HolderBlock {
        let is_local = self.0.is_local;
        HolderBlock {
            flock: Some(is_local),
            local: Some(is_local),
            ..own_block()
        }
    }
}

/// Which old length a rewrite in place accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    /// Only that of the new bytes: a reader without a lock must never see a mixture (K21).
    Same,
    /// Any that is not longer.
    Any,
}

/// A file of the store: its directory, its name in that directory, and its key.
struct StoreFile {
    dir: Dir,
    name: OsString,
    key: ObjectKey,
}

impl Inner {
    fn perform(&self, op: StoreOp) -> OpResult {
        let answer = match op {
            StoreOp::Read(key) => self.read(key),
            StoreOp::ListShared => self.list(),
            StoreOp::Create(key, body) => self.create(key, &body),
            StoreOp::Replace(ObjectKey::Fence, OpBody::Fence(number), version) => {
                self.count(number, &version)
            }
            StoreOp::Replace(key, body, version) => self.replace(key, &body, &version),
            StoreOp::Renew(key, body, version) => self.renew(key, &body, &version),
            // The protocol does not use `Put` at level 2. A create keeps the answer correct if it
            // did.
            StoreOp::Put(key, body) => self.create(key, &body),
            StoreOp::DeleteVersion(key, version) => self.delete(key, &version),
            StoreOp::Delete(key) => self.delete_by_name(key),
            // The driver waits, and performs one operation at a time here.
            StoreOp::WaitUntil(_) | StoreOp::Batch(_) => Ok(OpResult::Waited),
        };
        answer.unwrap_or_else(OpResult::Failed)
    }

    /// Opens the directory of `key`. Returns `None` if it does not exist yet.
    fn find(&self, key: ObjectKey) -> Result<Option<StoreFile>, OpFailure> {
        let path = self.base.join(key.path());
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(OpFailure::lasting(format!("{} is no key", path.display())));
        };
        match Dir::open(parent) {
            Ok(dir) => Ok(Some(StoreFile {
                dir,
                name: name.into(),
                key,
            })),
            // Absent only if the directory is proved missing below an existing base. An unmounted
            // or unreadable base must not look like an empty repository (P25 (failed reads are not
            // absence)).
            Err(error) if error.class() == Class::NotFound && self.is_missing(parent)? => Ok(None),
            Err(error) => Err(failure(&error)),
        }
    }

    fn is_missing(&self, dir: &Path) -> Result<bool, OpFailure> {
        if !self.base.is_dir() {
            return Err(OpFailure::lasting(format!(
                "{}: no such directory",
                self.base.display()
            )));
        }
        match std::fs::symlink_metadata(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(OpFailure::lasting(format!("{}: {error}", dir.display()))),
            Ok(_) => Ok(false),
        }
    }

    /// Opens the directory of `key`, creating it if necessary.
    fn make(&self, key: ObjectKey) -> Result<StoreFile, OpFailure> {
        if let Some(place) = self.find(key.clone())? {
            return Ok(place);
        }
        let path = self.base.join(key.path());
        if let Some(parent) = path.parent() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(DIR_MODE)
                .create(parent)
                .map_err(|error| OpFailure::lasting(format!("{}: {error}", parent.display())))?;
        }
        self.find(key)?
            .ok_or_else(|| OpFailure::passing("the directory vanished"))
    }

    fn read(&self, key: ObjectKey) -> Result<OpResult, OpFailure> {
        let Some(place) = self.find(key)? else {
            return Ok(OpResult::Absent);
        };
        // Read the clock before the record: with the other order, a pause between the two would
        // count as age of the record.
        let now = self.now_in(&place.dir);
        match place.open()? {
            None => Ok(OpResult::Absent),
            Some(mut file) => Ok(OpResult::Found(self.object(&place, &mut file, now)?)),
        }
    }

    fn object(
        &self,
        place: &StoreFile,
        file: &mut LockFile,
        store_now: Option<Timestamp>,
    ) -> Result<Object, OpFailure> {
        let content = match place.key {
            ObjectKey::Fence => Codec::decode_fence(file.bytes()),
            ObjectKey::Exclusive | ObjectKey::Shared(_) | ObjectKey::Probe(_) => {
                self.codec.decode_record(&place.key, file.bytes())
            }
        };
        let liveness = match &content {
            ObjectContent::Record(record) => match &record.tenure {
                Some(block) => {
                    let here = Here::now();
                    let verdict = verdict(&block.identity(), file, &place.dir, &here);
                    liveness(verdict.map_err(|error| failure(&error))?)
                }
                None => ProcessLiveness::Unknown,
            },
            ObjectContent::Fence(_) | ObjectContent::Unreadable { .. } => ProcessLiveness::Unknown,
        };
        Ok(Object {
            content,
            version: version_of(file.file(), file.bytes()).map_err(io_failure)?,
            modified: timestamp(file.modified()),
            store_now,
            liveness,
        })
    }

    /// Reads the clock of the file system (K45). On a network file system only a write can show it.
    fn now_in(&self, dir: &Dir) -> Option<Timestamp> {
        match (self.access, dir.is_local()) {
            (ProbeAccess::Write, _) => Clock::SYSTEM.now_in(dir).ok().and_then(timestamp),
            (ProbeAccess::Look, true) => timestamp(SystemTime::now()),
            (ProbeAccess::Look, false) => None,
        }
    }

    fn list(&self) -> Result<OpResult, OpFailure> {
        let root = self.base.join(ObjectKey::SHARED_PREFIX);
        if self.is_missing(&root)? {
            return Ok(OpResult::Listed(Vec::new()));
        }
        let mut keys = Vec::new();
        collect(&root, "", &mut keys).map_err(|error| {
            OpFailure::lasting(format!("cannot list {}: {error}", root.display()))
        })?;
        Ok(OpResult::Listed(keys))
    }

    fn create(&self, key: ObjectKey, body: &OpBody) -> Result<OpResult, OpFailure> {
        let place = self.make(key)?;
        self.publish(&place, body)
    }

    fn publish(&self, place: &StoreFile, body: &OpBody) -> Result<OpResult, OpFailure> {
        let bytes = self.encode(&place.key, body);
        let options = PublishOptions {
            mode: FILE_MODE,
            ..PublishOptions::default()
        };
        let mut draft = Draft::new(&place.dir, &place.name, options);
        draft.write(&bytes).map_err(|error| failure(&error))?;
        let Some(published) = draft.publish().map_err(|error| failure(&error))? else {
            return Ok(OpResult::Refused(ConditionFailure::Condition));
        };
        let version = version_of(&published.file, &bytes).map_err(io_failure)?;
        if let OpBody::Record(_) = body {
            self.held().insert(place.key.clone(), published.file);
        }
        Ok(OpResult::Written(version))
    }

    fn replace(
        &self,
        key: ObjectKey,
        body: &OpBody,
        version: &Version,
    ) -> Result<OpResult, OpFailure> {
        let place = self.make(key)?;
        match self.remove(&place, version)? {
            OpResult::Deleted => self.publish(&place, body),
            OpResult::Absent => Ok(OpResult::Refused(ConditionFailure::Condition)),
            other => Ok(other),
        }
    }

    fn delete(&self, key: ObjectKey, version: &Version) -> Result<OpResult, OpFailure> {
        self.let_go(&key, version)?;
        match self.find(key)? {
            Some(place) => self.remove(&place, version),
            None => Ok(OpResult::Absent),
        }
    }

    /// Releases our own `flock` on the record, which would otherwise make its removal fail as busy.
    ///
    /// Releasing it first is safe: until the record has expired, no other process removes it; after
    /// that, removal is allowed anyway.
    fn let_go(&self, key: &ObjectKey, version: &Version) -> Result<(), OpFailure> {
        let mut held = self.held();
        if let Some(file) = held.get(key) {
            let mut bytes = vec![0; FILE_LIMIT];
            let length = file.read_at(&mut bytes, 0).map_err(io_failure)?;
            // The file may already hold a later lock of ours; that one stays locked.
            if version_of(file, &bytes[..length]).map_err(io_failure)? == *version {
                held.remove(key);
            }
        }
        Ok(())
    }

    /// Deletes the object whatever its version, locked or not: for probe objects, and for breaking
    /// a live lock.
    fn delete_by_name(&self, key: ObjectKey) -> Result<OpResult, OpFailure> {
        let Some(place) = self.find(key)? else {
            return Ok(OpResult::Absent);
        };
        // Only a file that could be a record: never a directory or a large file (K30).
        if place.open()?.is_none() {
            return Ok(OpResult::Absent);
        }
        match unlinkat(&place.dir, &place.name, AtFlags::empty()) {
            Ok(()) => Ok(OpResult::Deleted),
            Err(Errno::NOENT) => Ok(OpResult::Absent),
            Err(errno) => Err(io_failure(errno.into())),
        }
    }

    fn remove(&self, place: &StoreFile, version: &Version) -> Result<OpResult, OpFailure> {
        let Some(mut file) = place.open()? else {
            return Ok(OpResult::Absent);
        };
        if version_of(file.file(), file.bytes()).map_err(io_failure)? != *version {
            return Ok(OpResult::Refused(ConditionFailure::Condition));
        }
        match remove(&place.dir, &mut file, &no_pause).map_err(|error| failure(&error))? {
            Removal::Removed => Ok(OpResult::Deleted),
            Removal::Busy => Ok(OpResult::Refused(ConditionFailure::Contention)),
            Removal::Changed => Ok(OpResult::Refused(ConditionFailure::Condition)),
        }
    }

    /// Rewrites our record in place: same file, same length, new bytes (K21 (change records in
    /// place)).
    fn renew(
        &self,
        key: ObjectKey,
        body: &OpBody,
        version: &Version,
    ) -> Result<OpResult, OpFailure> {
        let Some(place) = self.find(key.clone())? else {
            return Ok(OpResult::Refused(ConditionFailure::Condition));
        };
        let mut held = self.held();
        let file = match held.entry(key) {
            std::collections::btree_map::Entry::Occupied(kept) => kept.into_mut(),
            // Another process acquired this lock (C13 (holds for scripts)).
            std::collections::btree_map::Entry::Vacant(missing) => match place.open_to_write()? {
                Some(file) => missing.insert(file),
                None => return Ok(OpResult::Refused(ConditionFailure::Condition)),
            },
        };
        let bytes = self.encode(&place.key, body);
        let answer = place
            .rewrite(file, &bytes, version, Length::Same)
            .map_err(io_failure)?;
        Ok(answer)
    }

    /// Increments the fencing counter in place, under `flock` (K40).
    fn count(&self, number: u64, version: &Version) -> Result<OpResult, OpFailure> {
        let Some(place) = self.find(ObjectKey::Fence)? else {
            return Ok(OpResult::Refused(ConditionFailure::Condition));
        };
        let Some(file) = place.open_to_write()? else {
            return Ok(OpResult::Refused(ConditionFailure::Condition));
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(OpResult::Refused(ConditionFailure::Contention)),
            Err(errno) => return Err(io_failure(errno.into())),
        }
        // The counter may have been copied from a bucket, or written by another tool, with another
        // length. Blanks keep a longer file at its length, so that one write replaces all of it and
        // a crash leaves either the old or the new number.
        let mut bytes = self.encode(&place.key, &OpBody::Fence(number));
        let length = file.metadata().map_err(io_failure)?.len();
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > FILE_LIMIT {
            return Err(OpFailure::lasting(
                "the fencing counter is larger than a counter can be",
            ));
        }
        bytes.resize(bytes.len().max(length), b' ');
        let answer = place
            .rewrite(&file, &bytes, version, Length::Any)
            .map_err(io_failure)?;
        file.sync_data().map_err(io_failure)?;
        Ok(answer)
    }

    fn encode(&self, key: &ObjectKey, body: &OpBody) -> Vec<u8> {
        match body {
            OpBody::Fence(number) => format!("{{\"fence\":{number:<FENCE_WIDTH$}}}\n").into_bytes(),
            OpBody::Record(_) | OpBody::Probe(_) => self.codec.encode(key, body),
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, File>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreFile {
    fn open(&self) -> Result<Option<LockFile>, OpFailure> {
        LockFile::open(&self.dir, &self.name, FILE_LIMIT).map_err(|error| failure(&error))
    }

    fn open_to_write(&self) -> Result<Option<File>, OpFailure> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(io_failure(errno.into())),
        }
    }

    /// Overwrites `file` with `bytes`.
    ///
    /// Refuses if the name no longer leads to this file, before or after the write, or if the file
    /// does not have `version`.
    fn rewrite(
        &self,
        file: &File,
        bytes: &[u8],
        version: &Version,
        expected: Length,
    ) -> std::io::Result<OpResult> {
        let mut old = vec![0; bytes.len() + 1];
        let length = file.read_at(&mut old, 0)?;
        old.truncate(length);
        if !self.leads_to(file)? || version_of(file, &old)? != *version {
            return Ok(OpResult::Refused(ConditionFailure::Condition));
        }
        if expected == Length::Same && length != bytes.len() {
            return Err(std::io::Error::other(
                "the record has another length than ours",
            ));
        }
        file.write_all_at(bytes, 0)?;
        if !self.dir.is_local() {
            // Other machines see the write on a network file system only after the sync.
            file.sync_data()?;
        }
        if !self.leads_to(file)? {
            return Ok(OpResult::Refused(ConditionFailure::Condition));
        }
        Ok(OpResult::Written(version_of(file, bytes)?))
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

/// Returns the version of a file: device, inode, modification time and a hash of the bytes.
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

/// Collects every file below `dir`, except private files of Tenure (K17 publish in one step, K26
/// (rename, compare, then unlink)).
fn collect(dir: &Path, prefix: &str, keys: &mut Vec<ObjectKey>) -> std::io::Result<()> {
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
        match is_directory(&entry.file_type(), &entry.path())? {
            Some(true) => match collect(&entry.path(), &format!("{prefix}{name}/"), keys) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                other => other?,
            },
            Some(false) => keys.push(ObjectKey::Shared(format!("{prefix}{name}"))),
            None => {}
        }
    }
    keys.sort();
    Ok(())
}

/// Returns `None` if the entry vanished. A file system that does not tell the type of an entry
/// needs a second call for it, and a lock may be released between the two.
fn is_directory(
    kind: &std::io::Result<std::fs::FileType>,
    path: &Path,
) -> std::io::Result<Option<bool>> {
    match kind {
        Ok(kind) => Ok(Some(kind.is_dir())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(std::io::Error::new(
            error.kind(),
            format!("{}: {error}", path.display()),
        )),
    }
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

fn failure(error: &tenure_files::Error) -> OpFailure {
    let kind = match error.class() {
        Class::NotALock | Class::TooLarge => OpFailureKind::NotALock,
        _ => OpFailureKind::Lasting,
    };
    let text = match error.os_error() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    OpFailure { kind, text }
}

fn io_failure(error: std::io::Error) -> OpFailure {
    match error.kind() {
        std::io::ErrorKind::Interrupted | std::io::ErrorKind::TimedOut => {
            OpFailure::passing(error.to_string())
        }
        _ => OpFailure::lasting(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P25 (failed reads are not absence): on a file system without entry types, a lock that is
    /// released during a listing is skipped; any other failure is a failure.
    #[test]
    fn an_entry_that_vanishes_during_a_listing_is_skipped() {
        let failed = |kind| Err(std::io::Error::from(kind));
        let path = Path::new("index/lock.shared/x");
        let vanished = is_directory(&failed(std::io::ErrorKind::NotFound), path);
        assert!(matches!(vanished, Ok(None)));
        let denied = is_directory(&failed(std::io::ErrorKind::PermissionDenied), path);
        assert!(denied.is_err());
    }
}
