//! Snapshot files: the state of a group in a file beside the log.
//!
//! ```text
//!   create ──▶ snapshot-G-I.partial ──write…──▶ commit: sync, rename, sync the directory
//!                                                   └──▶ Batch::snapshot_taken / _installed
//!                                                          └─durable─▶ retire the older one
//! ```
//!
//! A snapshot is valid once the batch that refers to it is durable. A snapshot without such a batch
//! is the leftover of a crash and is removed at the next start, like one that was never committed.
//! Snapshots are written and read as streams, so no caller needs a whole snapshot in memory.
//!
//! After an error of a writer, the snapshot does not exist. If a sync failed, the node must end, as
//! after a failed sync of the log.

use std::io;
use std::sync::Arc;

use crc32fast::Hasher;

use crate::batch::GroupId;
use crate::disk::{Disk, DiskFile};
use crate::file_names::FileName;
use crate::record::{u32_at, u64_at};

/// The identity of a snapshot: its group and its last entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    /// The group.
    pub group: GroupId,
    /// The index of the last entry in it. It determines the content, because a snapshot contains
    /// only committed entries.
    pub index: u64,
}

/// The snapshots in a data directory, created by [`open`](crate::open). Clones may be used on other
/// threads than the log's.
#[derive(Debug)]
pub struct Snapshots<D: Disk> {
    disk: D,
    /// Keeps the directory locked while any clone may write into it.
    lock: Arc<D::Lock>,
}

impl<D: Disk> Clone for Snapshots<D> {
    fn clone(&self) -> Self {
        Snapshots {
            disk: self.disk.clone(),
            lock: Arc::clone(&self.lock),
        }
    }
}

/// The error of a snapshot that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The disk failed.
    #[error("cannot {action} {file}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not as it was written.
    #[error("{file} is damaged at offset {offset}: {what}")]
    Damaged {
        /// The snapshot file.
        file: String,
        /// The offset of the damage.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The file has a format version of another release.
    #[error("{file} has format version {found}; this release knows {VERSION}")]
    Version {
        /// The snapshot file.
        file: String,
        /// The version found.
        found: u32,
    },
}

impl SnapshotError {
    /// Returns what the operator should do next.
    pub fn hint(&self) -> &'static str {
        match self {
            SnapshotError::Io { .. } => "check the disk of the data directory and its free space",
            SnapshotError::Damaged { .. } => {
                "let the node rejoin as an empty learner under a new identity"
            }
            SnapshotError::Version { .. } => "start the release that wrote it, or a newer one",
        }
    }
}

const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"tenursnp";
const HEADER: usize = 32;
const CHUNK_HEADER: usize = 8;
/// Maximum length of a chunk; a longer one is not read.
const CHUNK: usize = 256 << 10;

impl<D: Disk> Snapshots<D> {
    pub(crate) fn new(disk: D, lock: Arc<D::Lock>) -> Snapshots<D> {
        Snapshots { disk, lock }
    }

    /// Starts a snapshot. It is not visible before [`SnapshotWriter::commit`].
    pub fn create(&self, id: SnapshotId) -> Result<SnapshotWriter<D>, SnapshotError> {
        let name = FileName::Partial(id);
        let file = self
            .disk
            .create(&name.to_string())
            .map_err(io_error("create", name))?;
        let mut writer = SnapshotWriter {
            snapshots: self.clone(),
            id,
            file,
            offset: 0,
            chunk: Vec::with_capacity(CHUNK_HEADER + CHUNK),
            chunks: 0,
            bytes: 0,
            committed: false,
        };
        writer.put(&encode_header(id))?;
        writer.chunk.resize(CHUNK_HEADER, 0);
        Ok(writer)
    }

    /// Opens a snapshot for reading and verifies its header.
    pub fn open(&self, id: SnapshotId) -> Result<SnapshotReader<D>, SnapshotError> {
        let name = FileName::Snapshot(id);
        let file = self
            .disk
            .open_durable(&name.to_string())
            .map_err(io_error("open", name))?;
        let size = file.len().map_err(io_error("read", name))?;
        let mut reader = SnapshotReader {
            name,
            id,
            file,
            size,
            offset: 0,
            chunk: Vec::new(),
            chunks: 0,
            bytes: 0,
        };
        reader.header()?;
        Ok(reader)
    }

    /// Removes the snapshots of a group that are older than `keep`.
    ///
    /// Call it when the batch that refers to `keep` is durable. If a crash interrupts the removal,
    /// the next start completes it.
    pub fn retire_before(&self, keep: SnapshotId) -> Result<(), SnapshotError> {
        // Keep newer ones: a committed snapshot may wait for the batch that refers to it.
        self.remove(|id| id.group == keep.group && id.index < keep.index)
    }

    /// Removes all snapshots of a group. Call it when the removal of the group is durable.
    pub fn remove_group(&self, group: GroupId) -> Result<(), SnapshotError> {
        self.remove(|id| id.group == group)
    }

    fn remove(&self, is_past: impl Fn(SnapshotId) -> bool) -> Result<(), SnapshotError> {
        let place = "the data directory";
        let mut removed = false;
        for text in self.disk.list().map_err(io_error("list", place))? {
            match FileName::parse(&text) {
                Some(name @ FileName::Snapshot(id)) if is_past(id) => {
                    self.disk.remove(&text).map_err(io_error("remove", name))?;
                    removed = true;
                }
                _ => {}
            }
        }
        if removed {
            self.disk.sync_dir().map_err(io_error("sync", place))?;
        }
        Ok(())
    }
}

/// A snapshot that is being written. Dropping it without a commit removes the file.
#[derive(Debug)]
pub struct SnapshotWriter<D: Disk> {
    snapshots: Snapshots<D>,
    id: SnapshotId,
    file: D::File,
    offset: u64,
    /// The next chunk, with space for its header.
    chunk: Vec<u8>,
    chunks: u64,
    bytes: u64,
    committed: bool,
}

impl<D: Disk> SnapshotWriter<D> {
    /// Appends bytes. How they are divided into calls does not matter.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), SnapshotError> {
        while !bytes.is_empty() {
            let room = CHUNK_HEADER + CHUNK - self.chunk.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.chunk.extend_from_slice(now);
            if self.chunk.len() == CHUNK_HEADER + CHUNK {
                self.flush()?;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Makes the snapshot durable under its name. After that a batch may refer to it.
    pub fn commit(mut self) -> Result<SnapshotId, SnapshotError> {
        if self.chunk.len() > CHUNK_HEADER {
            self.flush()?;
        }
        let total = self.bytes.to_le_bytes();
        let mut end = [0; CHUNK_HEADER + 8];
        end[4..8].copy_from_slice(&checksum(self.id, self.chunks, 0, &total).to_le_bytes());
        end[8..].copy_from_slice(&total);
        self.put(&end)?;

        let (partial, name) = (FileName::Partial(self.id), FileName::Snapshot(self.id));
        self.file.sync().map_err(io_error("sync", partial))?;
        let disk = &self.snapshots.disk;
        disk.rename(&partial.to_string(), &name.to_string())
            .and_then(|()| disk.sync_dir())
            .map_err(io_error("give its name to", name))?;
        self.committed = true;
        Ok(self.id)
    }

    fn flush(&mut self) -> Result<(), SnapshotError> {
        let mut chunk = std::mem::take(&mut self.chunk);
        let bytes = chunk.len() - CHUNK_HEADER;
        let length = u32::try_from(bytes).expect("a chunk is at most CHUNK long");
        let checksum = checksum(self.id, self.chunks, length, &chunk[CHUNK_HEADER..]);
        chunk[0..4].copy_from_slice(&length.to_le_bytes());
        chunk[4..8].copy_from_slice(&checksum.to_le_bytes());
        self.put(&chunk)?;
        self.chunks += 1;
        self.bytes += u64::from(length);
        chunk.truncate(CHUNK_HEADER);
        self.chunk = chunk;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let name = FileName::Partial(self.id);
        self.file
            .write_at(self.offset, bytes)
            .map_err(io_error("write to", name))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

impl<D: Disk> Drop for SnapshotWriter<D> {
    fn drop(&mut self) {
        if !self.committed {
            // If this fails, the next start removes the file.
            let _ = self
                .snapshots
                .disk
                .remove(&FileName::Partial(self.id).to_string());
        }
    }
}

/// A snapshot that is being read.
#[derive(Debug)]
pub struct SnapshotReader<D: Disk> {
    name: FileName,
    id: SnapshotId,
    file: D::File,
    size: u64,
    offset: u64,
    chunk: Vec<u8>,
    chunks: u64,
    bytes: u64,
}

impl<D: Disk> SnapshotReader<D> {
    /// Returns the identity of the snapshot.
    pub fn id(&self) -> SnapshotId {
        self.id
    }

    /// Returns the length of the file, which is a little more than that of its content.
    pub fn file_bytes(&self) -> u64 {
        self.size
    }

    /// Returns the next bytes, or `None` at the end, when the whole snapshot is verified. Do not
    /// use the bytes before that.
    pub fn next_chunk(&mut self) -> Result<Option<&[u8]>, SnapshotError> {
        let start = self.offset;
        self.take(CHUNK_HEADER)?;
        let (length, expected) = (u32_at(&self.chunk, 0), u32_at(&self.chunk, 4));
        if length == 0 {
            return self.end(start, expected).map(|()| None);
        }
        if length as usize > CHUNK {
            return Err(self.damaged(start, "a chunk is longer than any written"));
        }
        self.take(length as usize)?;
        if checksum(self.id, self.chunks, length, &self.chunk) != expected {
            return Err(self.damaged(start, "the checksum of a chunk is wrong"));
        }
        self.chunks += 1;
        self.bytes += u64::from(length);
        Ok(Some(&self.chunk))
    }

    fn header(&mut self) -> Result<(), SnapshotError> {
        self.take(HEADER)?;
        let found = u32_at(&self.chunk, 8);
        if self.chunk[0..8] != MAGIC || u32_at(&self.chunk, 12) != header_checksum(&self.chunk) {
            return Err(self.damaged(0, "the header is bad"));
        }
        if found != VERSION {
            return Err(SnapshotError::Version {
                file: self.name.to_string(),
                found,
            });
        }
        if self.chunk[..] != encode_header(self.id) {
            return Err(self.damaged(0, "the header is that of another snapshot"));
        }
        Ok(())
    }

    fn end(&mut self, start: u64, expected: u32) -> Result<(), SnapshotError> {
        self.take(8)?;
        if checksum(self.id, self.chunks, 0, &self.chunk) != expected {
            return Err(self.damaged(start, "the checksum of the end is wrong"));
        }
        if u64_at(&self.chunk, 0) != self.bytes {
            return Err(self.damaged(start, "the length is not what the end says"));
        }
        if self.offset != self.size {
            return Err(self.damaged(self.offset, "something stands behind the end"));
        }
        // A further call then returns `None` again.
        self.offset = start;
        Ok(())
    }

    /// Reads the next bytes of the file into `chunk`.
    fn take(&mut self, length: usize) -> Result<(), SnapshotError> {
        if self.size - self.offset < length as u64 {
            return Err(self.damaged(self.size, "the file ends too early"));
        }
        self.chunk.resize(length, 0);
        self.file
            .read_at(self.offset, &mut self.chunk)
            .map_err(io_error("read", self.name))?;
        self.offset += length as u64;
        Ok(())
    }

    fn damaged(&self, offset: u64, what: &'static str) -> SnapshotError {
        SnapshotError::Damaged {
            file: self.name.to_string(),
            offset,
            what,
        }
    }
}

fn encode_header(id: SnapshotId) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    for (slot, field) in bytes[16..].chunks_exact_mut(8).zip([id.group, id.index]) {
        slot.copy_from_slice(&field.to_le_bytes());
    }
    let checksum = header_checksum(&bytes);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn header_checksum(bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&bytes[0..12]);
    hasher.update(&bytes[16..HEADER]);
    hasher.finalize()
}

/// The checksum of a chunk covers the identity of the snapshot and the position of the chunk.
fn checksum(id: SnapshotId, chunk: u64, length: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    for field in [id.group, id.index, chunk, u64::from(length)] {
        hasher.update(&field.to_le_bytes());
    }
    hasher.update(bytes);
    hasher.finalize()
}

fn io_error(
    action: &'static str,
    file: impl std::fmt::Display,
) -> impl FnOnce(io::Error) -> SnapshotError {
    move |source| SnapshotError::Io {
        action,
        file: file.to_string(),
        source,
    }
}
