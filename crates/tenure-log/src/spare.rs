//! Preallocated files that become log files ("spares").
//!
//! A write into allocated space costs one disk write per sync; extending a file also costs
//! metadata. So files are filled with zeros once. A log file that is no longer needed becomes a
//! spare as it is: the checksums of its old records contain its old number, so they are not valid
//! in the new file.
//!
//! If the log needs a spare and has none, it creates one itself, and the append waits until the
//! file is filled. To avoid that, a driver runs a [`SpareJob`] ahead of need on another thread.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use crate::disk::{Disk, DiskFile};
use crate::file_names::FileName;

/// A file that can become a log file.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) name: FileName,
    pub(crate) size: u64,
}

/// A job that creates a spare. It may run on any thread.
#[derive(Debug)]
#[must_use = "the log waits for the outcome before it asks again"]
pub struct SpareJob<D> {
    pub(crate) disk: D,
    pub(crate) number: u64,
    pub(crate) size: u64,
}

/// The result of a [`SpareJob`], to be passed to the log.
#[derive(Debug)]
#[must_use = "hand it to FileLog::spare_done"]
pub struct SpareDone(pub(crate) io::Result<Spare>);

impl SpareDone {
    /// Returns the error, if the job failed.
    ///
    /// A failure is only an early warning: the log fails when its current file is full, unless
    /// there is enough space by then.
    pub fn error(&self) -> Option<&io::Error> {
        self.0.as_ref().err()
    }
}

impl<D: Disk> SpareJob<D> {
    /// Creates the file and fills it with zeros.
    pub fn run(self) -> SpareDone {
        SpareDone(self.make())
    }

    pub(crate) fn make(&self) -> io::Result<Spare> {
        let name = FileName::Spare(self.number);
        let made = fill(&self.disk, &name.to_string(), self.size);
        if made.is_err() {
            // A partial file only uses space. If it cannot be removed here, the next start removes
            // it.
            let _ = self.disk.remove(&name.to_string());
        }
        made.map(|()| Spare {
            name,
            size: self.size,
        })
    }
}

/// How often an operation is tried again that the system lacks a descriptor or memory for, and the
/// pause between two tries: 30 s in total. A node whose disk does not answer for that long gives its
/// leaderships away.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);

/// Tries again while the system lacks a descriptor or memory. Only for operations before which
/// nothing was written, such as creating or opening a spare: a failed write or sync is never tried
/// again.
pub(crate) fn while_out_of_resources<T>(
    mut attempt: impl FnMut() -> io::Result<T>,
    pause: impl Fn(),
) -> io::Result<T> {
    for _ in 0..TRIES {
        match attempt() {
            Err(error) if is_out_of_resources(&error) => pause(),
            done => return done,
        }
    }
    attempt()
}

/// The pause between two tries.
pub(crate) fn pause() {
    std::thread::sleep(PAUSE);
}

fn is_out_of_resources(error: &io::Error) -> bool {
    let known = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    known
        .iter()
        .any(|known| Some(known.raw_os_error()) == error.raw_os_error())
}

fn fill<D: Disk>(disk: &D, name: &str, size: u64) -> io::Result<()> {
    // The page cache keeps each large write as one folio, and a later write of any byte there costs
    // time in proportion to the folio size. So fill in small pieces to keep syncs cheap.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Running out of descriptors passes; every other error is final.
    #[test]
    fn a_lack_of_descriptors_is_waited_out() {
        let tries = Cell::new(0);
        let attempt = |errno: Errno, failures: u32| {
            tries.set(0);
            while_out_of_resources(
                || {
                    tries.set(tries.get() + 1);
                    if tries.get() <= failures {
                        Err(io::Error::from(errno))
                    } else {
                        Ok(())
                    }
                },
                || {},
            )
        };
        for passing in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(attempt(passing, 3).is_ok());
            assert_eq!(tries.get(), 4);
        }
        assert!(
            attempt(Errno::MFILE, u32::MAX).is_err(),
            "not without an end"
        );
        for last in [Errno::IO, Errno::NOSPC] {
            assert!(attempt(last, 1).is_err());
            assert_eq!(tries.get(), 1);
        }
    }
}
