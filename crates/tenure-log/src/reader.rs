//! Reader of log files: verifies records one by one and examines the tail.

use std::io;

use crate::disk::{Disk, DiskFile};
use crate::file_names::FileName;
use crate::record::{
    ALIGN, BadHeader, Checksums, FILE_HEADER, FILE_HEADER_ALL, FILE_HEADER_USED, FileHeader,
    HeaderExtension, RECORD_HEADER, RecordHeader, ZEROS, padded, u64_at,
};

/// Page size: the kernel interrupts a write of a killed process only at multiples of this.
pub(crate) const PAGE: u64 = 4096;

/// Size of the read buffer.
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

/// What follows the last whole record of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileTail {
    /// A record says that the file was durable beyond this offset.
    pub(crate) was_durable: bool,
    /// Bytes other than zero are where the trailing zeros of the last record should be.
    pub(crate) written_at: bool,
    /// A valid record header of this file is at this offset. Contains the end of its record.
    pub(crate) header_at: Option<u64>,
    /// The last page of that record and its trailing zeros were written: its write was not
    /// interrupted.
    pub(crate) is_complete: bool,
    /// Valid record headers of this file follow at later offsets. Contains the highest end of their
    /// records.
    pub(crate) behind: Option<u64>,
}

/// A record whose checksums are correct.
pub(crate) struct WholeRecord<'a> {
    pub(crate) header: RecordHeader,
    pub(crate) body: &'a [u8],
    /// The offset of the next record.
    pub(crate) end: u64,
}

impl<D: Disk> Reader<D> {
    /// Opens a file and reads its header. The outer error is one of the disk, the inner one of the
    /// header.
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

    /// Reads the record at `offset` if it is whole and ends at or before `limit`.
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

    /// Examines the bytes at `offset`, the end of the last whole record, and after it.
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
            // Check cheap properties first. They also make a false match of the checksum very
            // unlikely.
            if bytes[8] != 0 && synced >= FILE_HEADER && synced <= at {
                let bytes: [u8; RECORD_HEADER] = bytes.try_into().expect("as long as asked for");
                if let Ok(header) = self.checksums.open(&bytes, at) {
                    let end = at + padded(header.length as usize) as u64;
                    // The header is sufficient: it was written when `synced` was true, even if its
                    // body is damaged.
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

    /// Returns `true` if the write of a record from `offset` to `end` reached its last page. In a
    /// zero-filled file, that page would otherwise be zero; in a reused file, the trailing zeros
    /// would be missing.
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

    /// Calls `visit` with the body of every whole record at or after `offset`, skipping damaged
    /// bytes.
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

    /// Returns the bytes at `offset`. The caller has checked that the file has them.
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
