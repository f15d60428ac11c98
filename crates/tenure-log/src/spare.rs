//! Spares: files full of bytes, ready to become log files.
//!
//! Writing into space that a file already has costs one disk write per sync; growing a file costs
//! metadata too. So files are filled with zeros once, and a file that is no longer needed becomes
//! a spare again as it is: its old records carry the checksums of its old number.
//!
//! The log makes a spare itself if it needs one and has none, which takes as long as filling it.
//! To avoid that wait, a driver takes a [`SpareJob`] ahead of need and runs it on another thread.

use std::io;

use crate::disk::{Disk, DiskFile};
use crate::file_names::FileName;

/// A file that may become a log file.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) name: FileName,
    pub(crate) size: u64,
}

/// The making of a spare; may run on any thread.
#[derive(Debug)]
#[must_use = "the log waits for the outcome before it asks again"]
pub struct SpareJob<D> {
    pub(crate) disk: D,
    pub(crate) number: u64,
    pub(crate) size: u64,
}

/// How a [`SpareJob`] ended, to be handed back to the log.
#[derive(Debug)]
#[must_use = "hand it to FileLog::spare_done"]
pub struct SpareDone(pub(crate) io::Result<Spare>);

impl SpareDone {
    /// What went wrong. Nothing is lost by it: it is an early warning that the log will end when
    /// its current file is full, unless there is room by then.
    pub fn error(&self) -> Option<&io::Error> {
        self.0.as_ref().err()
    }
}

impl<D: Disk> SpareJob<D> {
    /// Makes the file and fills it.
    pub fn run(self) -> SpareDone {
        SpareDone(self.make())
    }

    pub(crate) fn make(&self) -> io::Result<Spare> {
        let name = FileName::Spare(self.number);
        let made = fill(&self.disk, &name.to_string(), self.size);
        if made.is_err() {
            // What there is of it only takes up room. If it cannot be removed, the next start will.
            let _ = self.disk.remove(&name.to_string());
        }
        made.map(|()| Spare {
            name,
            size: self.size,
        })
    }
}

fn fill<D: Disk>(disk: &D, name: &str, size: u64) -> io::Result<()> {
    // The page cache keeps what is written in one piece in one piece, and walks through all of it for
    // every byte that is written there later: a sync costs the more, the longer the pieces were.
    const PIECE: usize = 128 << 10;
    let zeros = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE))];
    let mut file = disk.create(name)?;
    let mut offset = 0;
    while offset < size {
        let piece = usize::try_from(size - offset).unwrap_or(PIECE).min(PIECE);
        file.write_at(offset, &zeros[..piece])?;
        offset += piece as u64;
    }
    file.sync()
}
