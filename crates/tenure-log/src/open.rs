//! Opens a data directory: locks it, reads it, then removes the leftovers of crashes.
//!
//! Nothing is changed before everything was read and verified, so a refusal leaves the directory as
//! it was.

use std::io;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};
use crate::end_marker::{EndFile, EndMarkerState};
use crate::error::{LogError, OpenError};
use crate::file_names::FileName;
use crate::index::LogBaseKind;
use crate::log::{FileLog, LogStart, Options};
use crate::record::FILE_HEADER;
use crate::recover::{Recovered, RecoveryResult, Truncation, TruncationKind, recover};
use crate::snapshot::{SnapshotId, Snapshots};
use crate::spare::Spare;

/// An opened data directory.
#[derive(Debug)]
pub struct Opened<D: Disk> {
    /// The log, ready for the next batch.
    pub log: FileLog<D>,
    /// The snapshots beside the log: exactly those that `recovered` refers to.
    pub snapshots: Snapshots<D>,
    /// The content of the log.
    pub recovered: Recovered,
}

/// Opens the log and the snapshots on a disk and recovers their content.
///
/// An empty directory becomes a new log. A directory that contains files of a node but no log file
/// has lost its log and is refused.
///
/// # Errors
///
/// Returns [`OpenError`] if another process uses the directory, or if durable data is missing,
/// damaged or of another version. Nothing in the directory is changed then.
pub fn open<D: Disk>(disk: D, options: Options) -> Result<Opened<D>, OpenError> {
    let lock = disk
        .lock()
        .map_err(io_error("lock", "the data directory"))?;
    let lock = Arc::new(lock.ok_or_else(|| OpenError::Locked {
        place: disk.place(),
    })?);
    let names = list(&disk)?;

    let mut numbers: Vec<u64> = names.iter().filter_map(log_number).collect();
    numbers.sort_unstable();
    let (end_file, found) = if names.contains(&FileName::End) {
        EndFile::open(&disk).map_err(io_error("read", FileName::End))?
    } else {
        (EndFile::none(), EndMarkerState::Nothing)
    };
    let is_new = numbers.is_empty();
    // Without a log file the directory must be new; otherwise it has lost its log.
    if is_new {
        ensure_nothing_was_here(&disk, &names, found, &options)?;
    }
    let claim = match found {
        EndMarkerState::Claim(claim) => Some(claim),
        EndMarkerState::Nothing | EndMarkerState::Unreadable => None,
    };
    let RecoveryResult {
        index,
        mut recovered,
        files,
        end,
    } = recover(&disk, &numbers, claim)?;
    recovered.end_unreadable = found == EndMarkerState::Unreadable;
    // Every snapshot that the log refers to must exist, because its entries are gone.
    let marked: Vec<SnapshotId> = marks(&recovered).collect();
    for &id in &marked {
        if !names.contains(&FileName::Snapshot(id)) {
            let file = FileName::Snapshot(id).to_string();
            return Err(OpenError::Missing {
                file,
                groups: vec![id.group],
            });
        }
    }

    // From here on everything is verified, and the directory may be changed.
    let oldest = files.front().map_or(0, |file| file.number);
    // The spare of an interrupted creation has an unknown state, so a new log starts without
    // spares.
    let is_leftover = |name: &FileName| match name {
        FileName::Log(number) => *number < oldest,
        FileName::Snapshot(id) => !marked.contains(id),
        FileName::Partial(_) => true,
        FileName::Spare(_) => is_new,
        FileName::End => false,
    };
    let mut leftovers: Vec<FileName> = names.iter().copied().filter(is_leftover).collect();
    let spares = if is_new {
        Vec::new()
    } else {
        spares(&disk, &names, &options, &mut leftovers)?
    };
    for name in &leftovers {
        disk.remove(&name.to_string())
            .map_err(io_error("remove", name))?;
    }
    if !leftovers.is_empty() {
        disk.sync_dir()
            .map_err(io_error("sync", "the data directory"))?;
    }

    let taken = names.iter().filter_map(spare_number).max();
    let next_spare = taken
        .filter(|_| !is_new)
        .map_or(FIRST_SPARE, |highest| highest + 1);
    let mark = recovered.mark;
    let is_suspicious = |cut: &Truncation| cut.kind == TruncationKind::Suspicious;
    let after_cut = recovered.cut.as_ref().is_some_and(is_suspicious);
    let snapshots = Snapshots::new(disk.clone(), Arc::clone(&lock));
    let start = LogStart {
        disk,
        options,
        lock,
        index,
        files,
        end,
        mark,
        spares,
        next_spare,
        end_file,
        after_cut,
    };
    let mut log = FileLog::start(start);
    if is_new || after_cut {
        // Start the next file now, because its header records the suspicious cut. After a restart
        // of the machine, the cut file would look as if a power loss had torn it.
        log.begin().map_err(begin_error)?;
    }
    Ok(Opened {
        log,
        snapshots,
        recovered,
    })
}

/// The number of the spare that becomes the first file of a new log.
const FIRST_SPARE: u64 = 1;

/// Refuses a directory without a log file if it contains other files of a node.
///
/// The first log file is created before anything else. So a crash during creation leaves at most
/// the spare that was to become that file, and an end marker that claims nothing.
fn ensure_nothing_was_here<D: Disk>(
    disk: &D,
    names: &[FileName],
    found: EndMarkerState,
    options: &Options,
) -> Result<(), OpenError> {
    for &name in names {
        let is_left_by_birth = match name {
            FileName::End => found == EndMarkerState::Nothing,
            FileName::Spare(FIRST_SPARE) => {
                let file = disk.open(&name.to_string());
                let size = file.and_then(|file| file.len());
                size.map_err(io_error("read", name))? <= options.first_file
            }
            FileName::Spare(_)
            | FileName::Snapshot(_)
            | FileName::Partial(_)
            | FileName::Log(_) => false,
        };
        if !is_left_by_birth {
            let found = name.to_string();
            return Err(OpenError::NoLog { found });
        }
    }
    Ok(())
}

fn begin_error(error: LogError) -> OpenError {
    let why = error.to_string();
    match error {
        LogError::Io {
            action,
            file,
            source,
        } => OpenError::Io {
            action,
            file,
            source,
        },
        LogError::Misuse(_) | LogError::Poisoned { .. } => OpenError::Io {
            action: "begin",
            file: "the log".to_owned(),
            source: io::Error::other(why),
        },
    }
}

/// Returns the spares to keep. Adds those that are too small or too many to `leftovers`.
fn spares<D: Disk>(
    disk: &D,
    names: &[FileName],
    options: &Options,
    leftovers: &mut Vec<FileName>,
) -> Result<Vec<Spare>, OpenError> {
    let mut kept = Vec::new();
    for &name in names
        .iter()
        .filter(|name| matches!(name, FileName::Spare(_)))
    {
        let file = disk
            .open(&name.to_string())
            .map_err(io_error("open", name))?;
        let size = file.len().map_err(io_error("read", name))?;
        if size >= options.file.max(FILE_HEADER) && kept.len() < options.spares {
            kept.push(Spare { name, size });
        } else {
            leftovers.push(name);
        }
    }
    Ok(kept)
}

fn list<D: Disk>(disk: &D) -> Result<Vec<FileName>, OpenError> {
    let names = disk
        .list()
        .map_err(io_error("list", "the data directory"))?;
    Ok(names
        .iter()
        .filter_map(|text| FileName::parse(text))
        .collect())
}

fn marks(recovered: &Recovered) -> impl Iterator<Item = SnapshotId> + '_ {
    recovered
        .groups
        .iter()
        .filter_map(|(&group, held)| match held.base.as_ref()?.kind {
            LogBaseKind::Snapshot => Some(SnapshotId {
                group,
                index: held.base.as_ref()?.index,
            }),
            LogBaseKind::Begin => None,
        })
}

fn log_number(name: &FileName) -> Option<u64> {
    match name {
        FileName::Log(number) => Some(*number),
        FileName::Spare(_) | FileName::Snapshot(_) | FileName::Partial(_) | FileName::End => None,
    }
}

fn spare_number(name: &FileName) -> Option<u64> {
    match name {
        FileName::Spare(number) => Some(*number),
        FileName::Log(_) | FileName::Snapshot(_) | FileName::Partial(_) | FileName::End => None,
    }
}

fn io_error(
    action: &'static str,
    file: impl std::fmt::Display,
) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Io {
        action,
        file: file.to_string(),
        source,
    }
}
