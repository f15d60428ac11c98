//! The append side of the log: group commit, rotation and freeing of files.
//!
//! ```text
//!   append ──▶ fits? ──no──▶ rotate: sync the old file; header and checkpoint into a spare;
//!      │                      sync it; rename it to log-N; sync the directory; free old files
//!      └──yes──▶ index ──▶ one write ──▶ mark ──begin_sync──▶ ticket ──finish_sync──▶ durable mark
//! ```
//!
//! Crash safety rests on three orders (docs/formats/log.md):
//!
//! 1. A file is durable up to its last record before the next file has its name.
//! 2. A file has its name only after its header and checkpoint are durable.
//! 3. A file is freed only after the header of a later, named file says that it is not needed.
//!
//! The log has no thread and no clock. One thread owns it, appends everything that has arrived
//! since the last sync, and syncs: the slower the disk, the larger the batch.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::sync::Arc;

use crate::batch::{Batch, GroupId, Items};
use crate::disk::{Disk, DiskFile, SyncPoint};
use crate::end_marker::{EndClaim, EndFile};
use crate::error::LogError;
use crate::file_names::FileName;
use crate::index::Index;
use crate::record::{
    Checksums, FILE_HEADER, FILE_HEADER_ALL, FileHeader, HeaderExtension, RecordKind,
    RecordPosition, ZEROS, padded,
};
use crate::spare::{Spare, SpareDone, SpareJob, pause, while_out_of_resources};

/// The mark of a batch: its number since the creation of the log. A batch is durable when the
/// durable mark has reached its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchNumber(pub u64);

/// Sizes of log files.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Size of the first file after a start without spares. Small, so that a node starts quickly.
    pub first_file: u64,
    /// Size that files grow to, by a factor of eight from file to file.
    pub file: u64,
    /// Maximum number of spares to keep. Further unneeded files are removed.
    pub spares: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            first_file: 256 << 10,
            file: 32 << 20,
            spares: 2,
        }
    }
}

/// Operations of a log. [`FileLog`] is the implementation that Tenure ships.
///
/// Every error is final: after it, every call returns [`LogError::Poisoned`].
pub trait Log {
    /// Writes a batch after all earlier ones and empties it. It is durable when a sync reports so.
    ///
    /// If the file is full, this also syncs it and starts the next one.
    fn append(&mut self, batch: &mut Batch) -> Result<BatchNumber, LogError>;

    /// Starts a sync of everything appended so far.
    fn begin_sync(&mut self) -> Result<SyncTicket, LogError>;

    /// Finishes a sync. Returns the mark up to which everything is durable.
    fn finish_sync(&mut self, ticket: SyncTicket) -> Result<BatchNumber, LogError>;

    /// Runs both halves of a sync, for drivers that have nothing to do in between.
    fn sync(&mut self) -> Result<BatchNumber, LogError> {
        let ticket = self.begin_sync()?;
        self.finish_sync(ticket)
    }

    /// Returns the mark of the last appended batch.
    fn appended(&self) -> BatchNumber;

    /// Returns the mark up to which everything is durable.
    fn durable(&self) -> BatchNumber;

    /// Returns the disk usage, and the groups that could reduce it. Visits every group, so do not
    /// call it with every batch.
    fn usage(&self) -> DiskUsage;
}

/// A sync that has begun.
#[derive(Debug)]
#[must_use = "a sync that is not finished makes nothing durable"]
pub struct SyncTicket {
    file: u64,
    point: SyncPoint,
    end: u64,
    mark: BatchNumber,
}

/// The disk usage of a log, and the groups that could reduce it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Number of log files in use. Every start creates one, so it can grow while `bytes` stays
    /// small.
    pub files: usize,
    /// Their total size in bytes.
    pub bytes: u64,
    /// Groups with entries in the oldest file, unless it is the current one. After a snapshot of
    /// each, the next rotation frees the file.
    pub held_back_by: Vec<GroupId>,
}

/// The log of a node on a [`Disk`], created by [`open`](crate::open).
#[derive(Debug)]
pub struct FileLog<D: Disk> {
    disk: D,
    options: Options,
    index: Index,
    /// Named files, oldest first. The last is the current one once something was appended.
    files: VecDeque<LogFile>,
    /// End of the records of the last named file.
    end: u64,
    /// The file that is written. `None` between a start and the first batch.
    current: Option<CurrentFile<D::File>>,
    spares: Vec<Spare>,
    next_spare: u64,
    spare_job: SpareJobState,
    appended: BatchNumber,
    durable: BatchNumber,
    checkpoint: Batch,
    end_file: EndFile<D>,
    /// The end of the log was cut off suspiciously, and nothing was appended since.
    after_cut: bool,
    /// The end that the marker and a close record have confirmed.
    confirmed: u64,
    failure: Option<String>,
    _lock: Arc<D::Lock>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LogFile {
    pub(crate) number: u64,
    pub(crate) size: u64,
}

#[derive(Debug)]
struct CurrentFile<F> {
    file: F,
    number: u64,
    size: u64,
    salt: u64,
    checksums: Checksums,
    synced: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpareJobState {
    Idle,
    /// A job is running, or has failed since the last rotation.
    Asked,
}

/// What recovery passes to a new log.
pub(crate) struct LogStart<D: Disk> {
    pub(crate) disk: D,
    pub(crate) options: Options,
    pub(crate) lock: Arc<D::Lock>,
    pub(crate) index: Index,
    pub(crate) files: VecDeque<LogFile>,
    pub(crate) end: u64,
    pub(crate) mark: BatchNumber,
    pub(crate) spares: Vec<Spare>,
    pub(crate) next_spare: u64,
    pub(crate) end_file: EndFile<D>,
    pub(crate) after_cut: bool,
}

impl<D: Disk> Log for FileLog<D> {
    fn append(&mut self, batch: &mut Batch) -> Result<BatchNumber, LogError> {
        self.ensure_sound()?;
        if batch.is_empty() {
            return Ok(self.appended);
        }
        let appended = self.append_sound(batch);
        batch.clear();
        self.fatal(appended)
    }

    fn begin_sync(&mut self) -> Result<SyncTicket, LogError> {
        self.ensure_sound()?;
        let (file, point) = match &mut self.current {
            Some(current) => (current.number, current.file.begin_sync()),
            None => (0, SyncPoint(0)),
        };
        Ok(SyncTicket {
            file,
            point,
            end: self.end,
            mark: self.appended,
        })
    }

    fn finish_sync(&mut self, ticket: SyncTicket) -> Result<BatchNumber, LogError> {
        self.ensure_sound()?;
        let synced = match &mut self.current {
            // Otherwise already durable: the file was synced at rotation, or a later sync has
            // covered the offset.
            Some(current) if ticket.file == current.number && ticket.end > current.synced => {
                let synced = current.file.finish_sync(ticket.point);
                if synced.is_ok() {
                    current.synced = ticket.end;
                }
                synced.map_err(io_error("sync", FileName::Log(ticket.file)))
            }
            _ => Ok(()),
        };
        self.fatal(synced)?;
        self.durable = self.durable.max(ticket.mark);
        Ok(self.durable)
    }

    fn appended(&self) -> BatchNumber {
        self.appended
    }

    fn durable(&self) -> BatchNumber {
        self.durable
    }

    fn usage(&self) -> DiskUsage {
        let oldest = self.files.front().map_or(0, |file| file.number);
        let newest = self.files.back().map_or(0, |file| file.number);
        DiskUsage {
            files: self.files.len(),
            bytes: self.files.iter().map(|file| file.size).sum(),
            held_back_by: if oldest == newest {
                Vec::new()
            } else {
                self.index.holders(oldest)
            },
        }
    }
}

impl<D: Disk> FileLog<D> {
    pub(crate) fn start(start: LogStart<D>) -> FileLog<D> {
        FileLog {
            disk: start.disk,
            options: start.options,
            index: start.index,
            files: start.files,
            end: start.end,
            current: None,
            spares: start.spares,
            next_spare: start.next_spare,
            spare_job: SpareJobState::Idle,
            appended: start.mark,
            durable: start.mark,
            checkpoint: Batch::new(),
            end_file: start.end_file,
            after_cut: start.after_cut,
            confirmed: 0,
            failure: None,
            _lock: start.lock,
        }
    }

    /// Returns a job that creates a spare ahead of need, if the current file is half full and there
    /// is no spare. Run it on another thread and pass the result to [`FileLog::spare_done`].
    pub fn spare_wanted(&mut self) -> Option<SpareJob<D>> {
        let size = self.next_size();
        let half_full = self
            .current
            .as_ref()
            .is_some_and(|current| self.end > current.size / 2);
        if !half_full || !self.spares.is_empty() || self.spare_job == SpareJobState::Asked {
            return None;
        }
        self.spare_job = SpareJobState::Asked;
        Some(self.spare_job(size))
    }

    /// Receives the result of a [`SpareJob`]. After a failure, the log asks again only after the
    /// next rotation.
    pub fn spare_done(&mut self, done: SpareDone) {
        if let Ok(spare) = done.0 {
            self.spares.push(spare);
            self.spare_job = SpareJobState::Idle;
        }
    }

    /// Starts the next file before the first batch.
    ///
    /// A new log does this, so that a directory with other files but without a log file is never
    /// new: it has lost its log.
    pub(crate) fn begin(&mut self) -> Result<(), LogError> {
        let begun = self.rotate(0);
        self.fatal(begun)
    }

    /// Closes the log with [`FileLog::confirm_end`]. Dropping a log without this loses nothing.
    pub fn close(mut self) -> Result<(), LogError> {
        self.confirm_end()
    }

    /// Syncs the log and records this in a close record and in the end marker.
    ///
    /// Later damage to anything appended so far then cannot be mistaken for a torn write. Does
    /// nothing if nothing was appended since the last call. Intended for an orderly end and for an
    /// idle log, because it costs up to three syncs.
    pub fn confirm_end(&mut self) -> Result<(), LogError> {
        self.sync()?;
        let confirmed = self.confirm_synced();
        self.fatal(confirmed)
    }

    fn confirm_synced(&mut self) -> Result<(), LogError> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        if self.confirmed == self.end {
            return Ok(());
        }
        // The marker claims only what precedes the close record: damage to that record loses no
        // data.
        let claim = EndClaim {
            file: current.number,
            salt: current.salt,
            offset: self.end,
            mark: self.appended.0,
            failed: false,
        };
        let length = padded(0);
        if self.end + length as u64 <= current.size {
            let mut record = vec![0; length + ZEROS];
            let place = RecordPosition {
                kind: RecordKind::Close,
                mark: self.appended.0,
                synced: self.end,
            };
            current.checksums.seal(&mut record, 0, self.end, place);
            current.write(self.end, &record)?;
            let name = FileName::Log(current.number);
            current.file.sync().map_err(io_error("sync", name))?;
            self.end += length as u64;
            current.synced = self.end;
        }
        self.write_end(&claim)?;
        self.confirmed = self.end;
        Ok(())
    }

    fn write_end(&mut self, claim: &EndClaim) -> Result<(), LogError> {
        self.end_file
            .write(&self.disk, claim)
            .map_err(io_error("write to", FileName::End))
    }

    fn append_sound(&mut self, batch: &mut Batch) -> Result<BatchNumber, LogError> {
        let need = padded(batch.bytes()) as u64;
        if self
            .current
            .as_ref()
            .is_none_or(|current| self.end + need > current.size)
        {
            self.rotate(need)?;
        }
        let current = self
            .current
            .as_mut()
            .expect("rotation leaves a current file");
        // Update the index before the write, so that nothing is written that recovery would refuse.
        for item in Items::new(batch.body()) {
            let item = item.map_err(crate::index::Misuse::from)?;
            self.index.apply(&item, current.number)?;
        }
        let mark = BatchNumber(self.appended.0 + 1);
        let place = RecordPosition {
            kind: RecordKind::Batch,
            mark: mark.0,
            synced: current.synced,
        };
        let (record, length) = batch.as_record();
        current.checksums.seal(record, length, self.end, place);
        current.write(self.end, record)?;
        self.end += need;
        self.after_cut = false;
        self.appended = mark;
        Ok(mark)
    }

    /// Starts a new file with space for a record of `need` bytes.
    fn rotate(&mut self, need: u64) -> Result<(), LogError> {
        // Order 1: the old file is durable before the new one has its name.
        if let Some(current) = &mut self.current {
            current
                .file
                .sync()
                .map_err(io_error("sync", FileName::Log(current.number)))?;
            self.durable = self.appended;
        }

        self.checkpoint.clear();
        self.index.checkpoint(&mut self.checkpoint);
        let born_end = FILE_HEADER + padded(self.checkpoint.bytes()) as u64;
        // The new file must have space for its checkpoint and for the record that caused the
        // rotation.
        let spare = self.take_spare(born_end + need)?;

        let previous = self.files.back().map(|file| file.number);
        let number = previous.unwrap_or(0) + 1;
        let header = FileHeader {
            number,
            salt: self.disk.random(),
            size: spare.size,
            oldest: self.index.oldest_file().unwrap_or(number),
            previous_end: self.end,
            mark: self.appended.0,
            born_end,
        };
        // Order 2: header and checkpoint are durable before the rename.
        let file = self.write_head(&spare, &header)?;

        let name = FileName::Log(number);
        self.disk
            .rename(&spare.name.to_string(), &name.to_string())
            .and_then(|()| self.disk.sync_dir())
            .map_err(io_error("give its name to", name))?;
        let checksums = Checksums::new(number, header.salt);
        self.files.push_back(LogFile {
            number,
            size: spare.size,
        });
        self.current = Some(CurrentFile {
            file,
            number,
            size: spare.size,
            salt: header.salt,
            checksums,
            synced: born_end,
        });
        self.end = born_end;
        self.spare_job = SpareJobState::Idle;
        // The name is durable. From here on the marker reveals a loss of this file.
        self.write_end(&EndClaim {
            file: number,
            salt: header.salt,
            offset: born_end,
            mark: header.mark,
            failed: false,
        })?;
        self.confirmed = born_end;
        // Order 3: the header that declares the older files unneeded is durable.
        self.free(header.oldest)
    }

    /// Writes header and checkpoint into a spare and makes them durable.
    fn write_head(&mut self, spare: &Spare, header: &FileHeader) -> Result<D::File, LogError> {
        let mut head = vec![0; FILE_HEADER as usize];
        let encoded = header.encode();
        head[..encoded.len()].copy_from_slice(&encoded);
        let supplement = HeaderExtension {
            boot: self.disk.boot(),
            has_zeros: true,
            after_cut: self.after_cut,
        };
        supplement.encode(&mut head[..FILE_HEADER_ALL]);
        let place = RecordPosition {
            kind: RecordKind::Checkpoint,
            mark: header.mark,
            synced: FILE_HEADER,
        };
        let (record, length) = self.checkpoint.as_record();
        Checksums::new(header.number, header.salt).seal(record, length, FILE_HEADER, place);
        head.extend_from_slice(record);
        // The trailing zeros may not fit into a spare that the checkpoint fills exactly.
        head.truncate(usize::try_from(spare.size).unwrap_or(usize::MAX));

        let name = spare.name;
        let mut file = while_out_of_resources(|| self.disk.open(&name.to_string()), pause)
            .map_err(io_error("open", name))?;
        file.write_at(0, &head)
            .map_err(io_error("write to", name))?;
        file.sync().map_err(io_error("sync", name))?;
        Ok(file)
    }

    /// Turns the files before `oldest` into spares, or removes them.
    fn free(&mut self, oldest: u64) -> Result<(), LogError> {
        let mut freed = false;
        while let Some(&file) = self.files.front().filter(|file| file.number < oldest) {
            self.files.pop_front();
            let old = FileName::Log(file.number);
            if file.size >= self.options.file && self.spares.len() < self.options.spares {
                let name = FileName::Spare(self.next_spare);
                self.next_spare += 1;
                self.disk
                    .rename(&old.to_string(), &name.to_string())
                    .map_err(io_error("rename", old))?;
                self.spares.push(Spare {
                    name,
                    size: file.size,
                });
            } else {
                self.disk
                    .remove(&old.to_string())
                    .map_err(io_error("remove", old))?;
            }
            freed = true;
        }
        if freed {
            self.disk
                .sync_dir()
                .map_err(io_error("sync", "the data directory"))?;
        }
        Ok(())
    }

    fn take_spare(&mut self, size: u64) -> Result<Spare, LogError> {
        if let Some(found) = self.spares.iter().position(|spare| spare.size >= size) {
            return Ok(self.spares.swap_remove(found));
        }
        let job = self.spare_job(self.next_size().max(size));
        while_out_of_resources(|| job.make(), pause)
            .map_err(io_error("make", FileName::Spare(job.number)))
    }

    fn spare_job(&mut self, size: u64) -> SpareJob<D> {
        let number = self.next_spare;
        self.next_spare += 1;
        SpareJob {
            disk: self.disk.clone(),
            number,
            size,
        }
    }

    fn next_size(&self) -> u64 {
        match &self.current {
            None => self.options.first_file.min(self.options.file),
            Some(current) => (current.size * 8).min(self.options.file),
        }
    }

    fn ensure_sound(&self) -> Result<(), LogError> {
        match &self.failure {
            None => Ok(()),
            Some(cause) => Err(LogError::Poisoned {
                cause: cause.clone(),
            }),
        }
    }

    /// Records a failure, so that every later call returns `Poisoned`.
    fn fatal<T>(&mut self, result: Result<T, LogError>) -> Result<T, LogError> {
        if let Err(error) = &result {
            let source = std::error::Error::source(error).map(|source| format!(": {source}"));
            self.failure = Some(format!("{error}{}", source.unwrap_or_default()));
            if matches!(error, LogError::Io { .. }) {
                self.note_failure();
            }
        }
        result
    }
}

impl<D: Disk> FileLog<D> {
    /// Records in the end marker that a write or sync failed, which can tear the tail without a
    /// restart of the machine. If this fails too, the next start reports the tail as suspicious.
    fn note_failure(&mut self) {
        if let Some(current) = &self.current {
            let claim = EndClaim {
                file: current.number,
                salt: current.salt,
                offset: current.synced,
                mark: self.durable.0,
                failed: true,
            };
            let _ = self.end_file.write(&self.disk, &claim);
        }
    }
}

impl<F: DiskFile> CurrentFile<F> {
    /// Writes a record and as many of its trailing zeros as fit.
    fn write(&mut self, offset: u64, record: &[u8]) -> Result<(), LogError> {
        let room = usize::try_from(self.size - offset).unwrap_or(usize::MAX);
        self.file
            .write_at(offset, &record[..record.len().min(room)])
            .map_err(io_error("write to", FileName::Log(self.number)))
    }
}

pub(crate) fn io_error(
    action: &'static str,
    file: impl Display,
) -> impl FnOnce(io::Error) -> LogError {
    move |source| LogError::Io {
        action,
        file: file.to_string(),
        source,
    }
}
