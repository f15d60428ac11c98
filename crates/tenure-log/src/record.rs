//! Headers of log files and records, with their checksums.
//!
//! `docs/formats/log.md` shows both field by field. Every checksum covers the number and the salt
//! of the file and the offset of the record. So a record left by an earlier use of the file, a
//! record of another file and a record at another offset all fail their checksum.

use crc32fast::Hasher;

/// The format version that this release writes.
pub(crate) const VERSION: u8 = 1;
/// Size of the file header: the first page. Records start after it.
pub(crate) const FILE_HEADER: u64 = 4096;
/// Bytes of the file header that every release reads.
pub(crate) const FILE_HEADER_USED: usize = 72;
/// Bytes of the file header with its extension, which release 0.1.0 neither wrote nor reads.
pub(crate) const FILE_HEADER_ALL: usize = 96;
/// Bytes before the body of a record.
pub(crate) const RECORD_HEADER: usize = 32;
/// Alignment of records, which limits the offsets that a search must examine.
pub(crate) const ALIGN: usize = 8;
/// Trailing zeros after the last record, where the next one will start: other bytes there were
/// written.
pub(crate) const ZEROS: usize = RECORD_HEADER;
/// Maximum length of a body. Checked before a buffer of that length is allocated.
pub(crate) const MAX_BODY: usize = 64 << 20;

const MAGIC: [u8; 8] = *b"tenurlog";

/// The header of a log file; see docs/formats/log.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) number: u64,
    /// Random number that makes the checksums unpredictable, so that no payload can contain a valid
    /// record.
    pub(crate) salt: u64,
    /// The length of the file. A shorter file has lost data.
    pub(crate) size: u64,
    /// The lowest number of a file that was needed when this file was created.
    pub(crate) oldest: u64,
    /// End of the records of the previous file; 0 if there was none.
    pub(crate) previous_end: u64,
    /// The mark of the last batch before this file.
    pub(crate) mark: u64,
    /// End of the checkpoint. Everything up to here was durable before the file got its name.
    pub(crate) born_end: u64,
}

/// Why bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// The checksum or the content is wrong.
    Damaged,
    /// The checksum is correct, but this release does not know the version.
    Version(u32),
}

impl FileHeader {
    pub(crate) fn encode(&self) -> [u8; FILE_HEADER_USED] {
        let mut bytes = [0; FILE_HEADER_USED];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&u32::from(VERSION).to_le_bytes());
        let fields = [
            self.number,
            self.salt,
            self.size,
            self.oldest,
            self.previous_end,
            self.mark,
            self.born_end,
        ];
        for (slot, field) in bytes[16..].chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        let checksum = header_checksum(&bytes);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; FILE_HEADER_USED]) -> Result<FileHeader, BadHeader> {
        if bytes[0..8] != MAGIC || u32_at(bytes, 12) != header_checksum(bytes) {
            return Err(BadHeader::Damaged);
        }
        let version = u32_at(bytes, 8);
        if version != u32::from(VERSION) {
            return Err(BadHeader::Version(version));
        }
        Ok(FileHeader {
            number: u64_at(bytes, 16),
            salt: u64_at(bytes, 24),
            size: u64_at(bytes, 32),
            oldest: u64_at(bytes, 40),
            previous_end: u64_at(bytes, 48),
            mark: u64_at(bytes, 56),
            born_end: u64_at(bytes, 64),
        })
    }
}

/// The extension of the file header, which release 0.1.0 did not write: bytes 72 to 95.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderExtension {
    /// The boot id of the operating system when the file was written: see
    /// [`Disk::boot`](crate::Disk). One process writes a file, so there is one boot id.
    pub(crate) boot: Option<u128>,
    /// Trailing zeros were written after every record ([`ZEROS`]).
    pub(crate) has_zeros: bool,
    /// The previous file was cut off suspiciously before this one was started. This flag preserves
    /// that until the first batch of this file is durable.
    pub(crate) after_cut: bool,
}

impl HeaderExtension {
    const HAS_ZEROS: u32 = 1;
    const HAS_BOOT: u32 = 2;
    const AFTER_CUT: u32 = 4;

    /// Writes the extension into a file header whose other fields are complete.
    pub(crate) fn encode(&self, header: &mut [u8]) {
        header[72..88].copy_from_slice(&self.boot.unwrap_or(0).to_le_bytes());
        let zeros = if self.has_zeros { Self::HAS_ZEROS } else { 0 };
        let boot = self.boot.map_or(0, |_| Self::HAS_BOOT);
        let cut = if self.after_cut { Self::AFTER_CUT } else { 0 };
        header[88..92].copy_from_slice(&(zeros | boot | cut).to_le_bytes());
        let checksum = supplement_checksum(header);
        header[92..96].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads the extension. A damaged or missing one is read as empty.
    pub(crate) fn decode(header: &[u8; FILE_HEADER_ALL]) -> HeaderExtension {
        if u32_at(header, 92) != supplement_checksum(header) {
            return HeaderExtension {
                boot: None,
                has_zeros: false,
                after_cut: false,
            };
        }
        let flags = u32_at(header, 88);
        let boot = u128::from_le_bytes(header[72..88].try_into().expect("sixteen bytes"));
        HeaderExtension {
            boot: (flags & Self::HAS_BOOT != 0).then_some(boot),
            has_zeros: flags & Self::HAS_ZEROS != 0,
            after_cut: flags & Self::AFTER_CUT != 0,
        }
    }
}

/// Also covers number and salt, so an extension is valid for one use of one file only.
fn supplement_checksum(header: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(b"supplement");
    hasher.update(&header[16..32]);
    hasher.update(&header[72..92]);
    hasher.finalize()
}

fn header_checksum(bytes: &[u8; FILE_HEADER_USED]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&bytes[0..12]);
    hasher.update(&bytes[16..]);
    hasher.finalize()
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// An atomic batch of the caller.
    Batch = 1,
    /// The first record of a file: a copy of everything except entries.
    Checkpoint = 2,
    /// An empty record. It confirms that everything before it was durable.
    Close = 3,
}

/// The header of a record; see docs/formats/log.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    pub(crate) length: u32,
    pub(crate) body_checksum: u32,
    /// The mark of the last batch up to and including this record.
    pub(crate) mark: u64,
    /// Everything in the file before this offset was durable when this record was written.
    pub(crate) synced: u64,
}

/// Computes the checksums of one file.
#[derive(Clone, Debug)]
pub(crate) struct Checksums(Hasher);

impl Checksums {
    pub(crate) fn new(number: u64, salt: u64) -> Checksums {
        let mut hasher = Hasher::new();
        hasher.update(&number.to_le_bytes());
        hasher.update(&salt.to_le_bytes());
        Checksums(hasher)
    }

    /// Writes the header of a record into the first bytes of `record`, for the offset `offset`. The
    /// body follows the header; padding may follow the body.
    pub(crate) fn seal(&self, record: &mut [u8], length: u32, offset: u64, place: RecordPosition) {
        let (header, rest) = record.split_at_mut(RECORD_HEADER);
        let body_checksum = self.body(offset, &rest[..length as usize]);
        header[0..4].copy_from_slice(&length.to_le_bytes());
        header[8] = VERSION;
        header[9] = place.kind as u8;
        header[10..12].fill(0);
        header[12..16].copy_from_slice(&body_checksum.to_le_bytes());
        header[16..24].copy_from_slice(&place.mark.to_le_bytes());
        header[24..32].copy_from_slice(&place.synced.to_le_bytes());
        let checksum = self.header(offset, header);
        header[4..8].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Verifies and decodes the header of a record at `offset`.
    pub(crate) fn open(&self, bytes: &[u8], offset: u64) -> Result<RecordHeader, BadHeader> {
        let length = u32_at(bytes, 0);
        // The version is never zero, so unwritten bytes are rejected without a checksum.
        if bytes[8] == 0 || u32_at(bytes, 4) != self.header(offset, bytes) {
            return Err(BadHeader::Damaged);
        }
        if bytes[8] != VERSION {
            return Err(BadHeader::Version(u32::from(bytes[8])));
        }
        let kind = match bytes[9] {
            1 => RecordKind::Batch,
            2 => RecordKind::Checkpoint,
            3 => RecordKind::Close,
            _ => return Err(BadHeader::Damaged),
        };
        if length as usize > MAX_BODY {
            return Err(BadHeader::Damaged);
        }
        Ok(RecordHeader {
            kind,
            length,
            body_checksum: u32_at(bytes, 12),
            mark: u64_at(bytes, 16),
            synced: u64_at(bytes, 24),
        })
    }

    /// Returns the checksum of the body of the record at `offset`.
    pub(crate) fn body(&self, offset: u64, body: &[u8]) -> u32 {
        let mut hasher = self.0.clone();
        hasher.update(&offset.to_le_bytes());
        hasher.update(body);
        hasher.finalize()
    }

    fn header(&self, offset: u64, bytes: &[u8]) -> u32 {
        let mut hasher = self.0.clone();
        hasher.update(&offset.to_le_bytes());
        hasher.update(&bytes[0..4]);
        hasher.update(&bytes[8..RECORD_HEADER]);
        hasher.finalize()
    }
}

/// The fields of a record header that the caller chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordPosition {
    pub(crate) kind: RecordKind,
    pub(crate) mark: u64,
    pub(crate) synced: u64,
}

/// Returns the size of a record with a body of this length in a file.
pub(crate) fn padded(length: usize) -> usize {
    (RECORD_HEADER + length).next_multiple_of(ALIGN)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(checksums: &Checksums, offset: u64) -> Vec<u8> {
        let mut record = vec![7; padded(11)];
        let place = RecordPosition {
            kind: RecordKind::Batch,
            mark: 5,
            synced: 4096,
        };
        checksums.seal(&mut record, 11, offset, place);
        record
    }

    #[test]
    fn a_record_header_is_read_back() {
        let checksums = Checksums::new(3, 99);
        let record = record(&checksums, 8192);
        let header = checksums.open(&record, 8192).unwrap();
        assert_eq!((header.length, header.mark, header.synced), (11, 5, 4096));
        assert_eq!(header.body_checksum, checksums.body(8192, &record[32..43]));
    }

    /// A record is valid only in the file and at the offset for which it was written.
    #[test]
    fn another_number_salt_or_place_makes_it_bad() {
        let written = record(&Checksums::new(3, 99), 8192);
        for (number, salt, offset) in [(4, 99, 8192), (3, 98, 8192), (3, 99, 8200)] {
            let checksums = Checksums::new(number, salt);
            assert_eq!(checksums.open(&written, offset), Err(BadHeader::Damaged));
            let header = Checksums::new(3, 99).open(&written, 8192).unwrap();
            assert_ne!(
                header.body_checksum,
                checksums.body(offset, &written[32..43])
            );
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_seen() {
        let checksums = Checksums::new(3, 99);
        let written = record(&checksums, 8192);
        for bit in 0..RECORD_HEADER * 8 {
            let mut flipped = written.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                checksums.open(&flipped, 8192),
                Err(BadHeader::Damaged),
                "bit {bit}"
            );
        }
        let header = FileHeader {
            number: 7,
            salt: 1,
            size: 9000,
            oldest: 5,
            previous_end: 4100,
            mark: 9,
            born_end: 4200,
        };
        assert_eq!(FileHeader::decode(&header.encode()), Ok(header));
        let mut all = [0; FILE_HEADER_ALL];
        all[..FILE_HEADER_USED].copy_from_slice(&header.encode());
        let silent = HeaderExtension {
            boot: None,
            has_zeros: false,
            after_cut: false,
        };
        assert_eq!(
            HeaderExtension::decode(&all),
            silent,
            "as release 0.1.0 wrote it"
        );
        let supplement = HeaderExtension {
            boot: Some(7 << 70),
            has_zeros: true,
            after_cut: true,
        };
        supplement.encode(&mut all);
        assert_eq!(HeaderExtension::decode(&all), supplement);
        for bit in (72 * 8)..(FILE_HEADER_ALL * 8) {
            let mut flipped = all;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(HeaderExtension::decode(&flipped), silent, "bit {bit}");
        }
        for bit in 0..FILE_HEADER_USED * 8 {
            let mut flipped = header.encode();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                FileHeader::decode(&flipped),
                Err(BadHeader::Damaged),
                "bit {bit}"
            );
        }
    }
}
