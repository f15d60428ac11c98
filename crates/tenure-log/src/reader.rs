//! Reading a log file back: a window that moves over it, and the records under the window.

use std::io;

use crate::disk::{Disk, DiskFile};
use crate::file_names::FileName;
use crate::record::{
    ALIGN, BadHeader, Checksums, FILE_HEADER, FILE_HEADER_ALL, FILE_HEADER_USED, FileHeader,
    HeaderExtension, RECORD_HEADER, RecordHeader, ZEROS, padded, u64_at,
};

/// A kernel interrupts a write of a killed process only at multiples of this.
pub(crate) const PAGE: u64 = 4096;

/// What is read from the disk at once.
const WINDOW: usize = 1 << 20;

/// A log file with a valid header.
pub(crate) struct Reader<D: Disk> {
    file: D::File,
    checksums: Checksums,
    pub(crate) header: FileHeader,
    pub(crate) supplement: HeaderExtension,
    pub(crate) size: u64,
    window: Vec<u8>,
    window_start: u64,
}

/// What stands where the last whole record of a file ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileTail {
    /// A record says that the file was durable beyond this place.
    pub(crate) was_durable: bool,
    /// Something stands where zeros are written behind a last record.
    pub(crate) written_at: bool,
    /// A header of this file stands right here; where its record would end.
    pub(crate) header_at: Option<u64>,
    /// The last page of that record was written, and the zeros behind it stand there: its write was not
    /// interrupted.
    pub(crate) is_complete: bool,
    /// Headers of this file stand further behind; where the last of their records would end.
    pub(crate) behind: Option<u64>,
}

/// A record that is whole and as it was written.
pub(crate) struct WholeRecord<'a> {
    pub(crate) header: RecordHeader,
    pub(crate) body: &'a [u8],
    /// Where the next record stands.
    pub(crate) end: u64,
}

impl<D: Disk> Reader<D> {
    /// Opens a file and reads its header. The outer error is the disk's, the inner the header's.
    pub(crate) fn open(disk: &D, number: u64) -> io::Result<Result<Reader<D>, BadHeader>> {
        let file = disk.open_durable(&FileName::Log(number).to_string())?;
        let size = file.len()?;
        if size < FILE_HEADER {
            return Ok(Err(BadHeader::Damaged));
        }
        let mut all = [0; FILE_HEADER_ALL];
        file.read_at(0, &mut all)?;
        let bytes: &[u8; FILE_HEADER_USED] = all.first_chunk().expect("the first of its bytes");
        let header = match FileHeader::decode(bytes) {
            Ok(header) if header.number == number && header.size <= size => header,
            Ok(_) => return Ok(Err(BadHeader::Damaged)),
            Err(bad) => return Ok(Err(bad)),
        };
        let checksums = Checksums::new(number, header.salt);
        Ok(Ok(Reader {
            file,
            checksums,
            header,
            supplement: HeaderExtension::decode(&all),
            size,
            window: Vec::new(),
            window_start: 0,
        }))
    }

    /// The record at `offset`, if a whole one stands there and ends at `limit` or before.
    pub(crate) fn record(
        &mut self,
        offset: u64,
        limit: u64,
    ) -> io::Result<Result<WholeRecord<'_>, BadHeader>> {
        if limit.saturating_sub(offset) < RECORD_HEADER as u64 {
            return Ok(Err(BadHeader::Damaged));
        }
        let header = self.bytes(offset, RECORD_HEADER)?;
        let header: [u8; RECORD_HEADER] = header.try_into().expect("as long as asked for");
        let header = match self.checksums.open(&header, offset) {
            Ok(header) => header,
            Err(bad) => return Ok(Err(bad)),
        };
        let length = header.length as usize;
        let end = offset + padded(length) as u64;
        if end > limit {
            return Ok(Err(BadHeader::Damaged));
        }
        let checksums = self.checksums.clone();
        let body = self.bytes(offset + RECORD_HEADER as u64, length)?;
        if checksums.body(offset, body) != header.body_checksum {
            return Ok(Err(BadHeader::Damaged));
        }
        Ok(Ok(WholeRecord { header, body, end }))
    }

    /// What stands at `offset`, where the last whole record ends, and behind it.
    pub(crate) fn tail(&mut self, offset: u64) -> io::Result<FileTail> {
        let left = usize::try_from(self.size - offset).unwrap_or(usize::MAX);
        let next = self.bytes(offset, left.min(ZEROS))?;
        let mut tail = FileTail {
            was_durable: false,
            written_at: next.iter().any(|byte| *byte != 0),
            header_at: None,
            is_complete: false,
            behind: None,
        };
        let mut at = offset;
        while at + (RECORD_HEADER as u64) <= self.size {
            let bytes = self.bytes(at, RECORD_HEADER)?;
            let synced = u64_at(bytes, 24);
            // Cheap first; and it leaves a chance match of the checksum alone no chance.
            if bytes[8] != 0 && synced >= FILE_HEADER && synced <= at {
                let bytes: [u8; RECORD_HEADER] = bytes.try_into().expect("as long as asked for");
                if let Ok(header) = self.checksums.open(&bytes, at) {
                    let end = at + padded(header.length as usize) as u64;
                    // Its header is enough: it was written when that was so, whatever became of its
                    // body.
                    tail.was_durable |= synced > offset;
                    if at == offset {
                        tail.header_at = Some(end);
                    } else {
                        tail.behind = tail.behind.max(Some(end));
                    }
                }
            }
            at += ALIGN as u64;
        }
        if let Some(end) = tail.header_at {
            tail.is_complete = self.is_written_to(offset, end)?;
        }
        Ok(tail)
    }

    /// Whether the write of a record from `offset` to `end` reached its last page. In a file that was filled with
    /// zeros, that page has zeros otherwise; in one that was used before, the zeros behind the record are missing.
    fn is_written_to(&mut self, offset: u64, end: u64) -> io::Result<bool> {
        if end > self.size {
            return Ok(false);
        }
        let page = offset.max((end - 1) / PAGE * PAGE);
        let length = |from, to| usize::try_from(to - from).unwrap_or(usize::MAX);
        let last = self.bytes(page, length(page, end))?;
        let is_there = last.iter().any(|byte| *byte != 0);
        let zeros = self.size.min(end + ZEROS as u64);
        let behind = self.bytes(end, length(end, zeros))?;
        Ok(is_there && behind.iter().all(|byte| *byte == 0))
    }

    /// Calls `visit` with the body of every whole record that stands at `offset` or behind it,
    /// whatever stands between them.
    pub(crate) fn salvage(&mut self, offset: u64, mut visit: impl FnMut(&[u8])) -> io::Result<()> {
        let size = self.size;
        let mut at = offset.max(FILE_HEADER).next_multiple_of(ALIGN as u64);
        while at + (RECORD_HEADER as u64) <= size {
            at = match self.record(at, size)? {
                Ok(record) => {
                    visit(record.body);
                    record.end
                }
                Err(_) => at + ALIGN as u64,
            };
        }
        Ok(())
    }

    /// The bytes at `offset`; the caller has checked that the file has them.
    fn bytes(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let window_end = self.window_start + self.window.len() as u64;
        if offset < self.window_start || offset + length as u64 > window_end {
            let left = usize::try_from(self.size - offset).unwrap_or(usize::MAX);
            self.window
                .resize(length.max(WINDOW).min(left.max(length)), 0);
            self.window_start = offset;
            if let Err(error) = self.file.read_at(offset, &mut self.window) {
                self.window.clear();
                return Err(error);
            }
        }
        let from = usize::try_from(offset - self.window_start).expect("inside the window");
        Ok(&self.window[from..from + length])
    }
}
