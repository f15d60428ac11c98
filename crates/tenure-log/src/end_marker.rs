//! End marker: a small file that records how far the log was durable.
//!
//! ```text
//!   rotate, confirm_end ──▶ slot 0 or 1, alternately ──▶ sync
//!   open ──▶ the valid slot with the higher sequence ──▶ is the log at least as long?
//! ```
//!
//! From its own files the log cannot detect that its newest file is missing or that its last record
//! was durable. The marker can. It is written only after the bytes that it claims are durable, so
//! every valid slot is true, however old. If a crash tears one slot, the other is still valid.

use std::io;

use crc32fast::Hasher;

use crate::disk::{Disk, DiskFile};
use crate::file_names::FileName;
use crate::record::{u32_at, u64_at};

const MAGIC: [u8; 8] = *b"tenurend";
const VERSION: u32 = 1;
/// Size of a slot: one sector, the unit of disk writes.
const SLOT: usize = 512;
/// Used bytes of a slot.
const USED: usize = 64;
/// Offsets of the slots: in different blocks, even on a disk with sectors of 4 KiB.
const PLACES: [u64; 2] = [0, 4096];

/// The claim of a slot: log file `file` was durable up to `offset`, with all batches up to `mark`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndClaim {
    pub(crate) file: u64,
    /// The salt of the file, which separates it from another file of the same name.
    pub(crate) salt: u64,
    pub(crate) offset: u64,
    pub(crate) mark: u64,
    /// The process ended after a failed write or sync, which can tear the tail like a power loss.
    pub(crate) failed: bool,
}

/// The state of the end marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndMarkerState {
    /// No marker, or one whose first write was interrupted by a crash: it claims nothing.
    Nothing,
    Claim(EndClaim),
    /// Both slots were written and neither is valid. A crash cannot cause this.
    Unreadable,
}

/// The open end marker file.
#[derive(Debug)]
pub(crate) struct EndFile<D: Disk> {
    /// `None` until the file is created.
    file: Option<D::File>,
    /// The sequence number of the slot that was written last.
    sequence: u64,
}

impl<D: Disk> EndFile<D> {
    /// Creates the state of a marker without a file.
    pub(crate) fn none() -> EndFile<D> {
        EndFile {
            file: None,
            sequence: 0,
        }
    }

    /// Reads the marker of an earlier process.
    pub(crate) fn open(disk: &D) -> io::Result<(EndFile<D>, EndMarkerState)> {
        let file = disk.open_durable(&FileName::End.to_string())?;
        let length = file.len()?;
        let mut newest: Option<(u64, EndClaim)> = None;
        let mut written = 0;
        for place in PLACES {
            let mut slot = [0; USED];
            if length < place + USED as u64 {
                continue;
            }
            file.read_at(place, &mut slot)?;
            written += usize::from(slot.iter().any(|byte| *byte != 0));
            if let Some((sequence, claim)) = decode(&slot)
                && newest.is_none_or(|(highest, _)| highest < sequence)
            {
                newest = Some((sequence, claim));
            }
        }
        let found = match newest {
            Some((_, claim)) => EndMarkerState::Claim(claim),
            None if written == PLACES.len() => EndMarkerState::Unreadable,
            None => EndMarkerState::Nothing,
        };
        let end = EndFile {
            file: Some(file),
            sequence: newest.map_or(0, |(sequence, _)| sequence),
        };
        Ok((end, found))
    }

    /// Writes a claim durably. The claimed bytes must be durable already.
    pub(crate) fn write(&mut self, disk: &D, claim: &EndClaim) -> io::Result<()> {
        let sequence = self.sequence + 1;
        // Alternate the slots, so that a torn write leaves the previous claim intact.
        let place = PLACES[(sequence % 2) as usize];
        let slot = encode(sequence, claim);
        if let Some(file) = &mut self.file {
            file.write_at(place, &slot)?;
            file.sync()?;
        } else {
            let mut file = disk.create(&FileName::End.to_string())?;
            // Write the whole file once, so that later writes need no new space and no change of
            // the length.
            let mut whole = vec![0; PLACES[1] as usize + SLOT];
            let from = usize::try_from(place).unwrap_or(0);
            whole[from..from + SLOT].copy_from_slice(&slot);
            file.write_at(0, &whole)?;
            file.sync()?;
            disk.sync_dir()?;
            self.file = Some(file);
        }
        self.sequence = sequence;
        Ok(())
    }
}

fn encode(sequence: u64, claim: &EndClaim) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[0..8].copy_from_slice(&MAGIC);
    slot[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let fields = [
        sequence,
        claim.file,
        claim.salt,
        claim.offset,
        claim.mark,
        u64::from(claim.failed),
    ];
    for (bytes, field) in slot[16..USED].chunks_exact_mut(8).zip(fields) {
        bytes.copy_from_slice(&field.to_le_bytes());
    }
    let checksum = checksum(&slot);
    slot[12..16].copy_from_slice(&checksum.to_le_bytes());
    slot
}

/// Decodes the sequence number and the claim of a slot. A slot of an unknown version claims
/// nothing.
fn decode(slot: &[u8; USED]) -> Option<(u64, EndClaim)> {
    let is_whole = slot[0..8] == MAGIC && u32_at(slot, 12) == checksum(slot);
    if !is_whole || u32_at(slot, 8) != VERSION {
        return None;
    }
    let claim = EndClaim {
        file: u64_at(slot, 24),
        salt: u64_at(slot, 32),
        offset: u64_at(slot, 40),
        mark: u64_at(slot, 48),
        failed: u64_at(slot, 56) & 1 == 1,
    };
    Some((u64_at(slot, 16), claim))
}

fn checksum(slot: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&slot[0..12]);
    hasher.update(&slot[16..USED]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    fn claim(mark: u64) -> EndClaim {
        EndClaim {
            file: 3,
            salt: 99,
            offset: 4096 + 8 * mark,
            mark,
            failed: mark.is_multiple_of(2),
        }
    }

    /// Power fails at every step of a few writes, and any bytes of the last write may survive: the
    /// marker claims the last completed write or the one under way, and nothing else.
    #[test]
    fn a_crash_leaves_the_last_claim_or_the_one_before() {
        for sector in [1, 64, 512] {
            let fresh = SimDisk::with_sector(5, sector);
            let run = |disk: &SimDisk| {
                let mut end = EndFile::none();
                let mut last = 0;
                for mark in 1..=5 {
                    if end.write(disk, &claim(mark)).is_err() {
                        break;
                    }
                    last = mark;
                }
                last
            };
            let whole = fresh.copy();
            assert_eq!(run(&whole), 5);
            for step in 1..=whole.operations() {
                let disk = fresh.copy();
                disk.power_ends_at(step);
                let last = run(&disk);
                for seed in 0..40 {
                    let mut dice: u64 = seed * 0x9e37_79b9 + step;
                    let disk = disk.copy().crash(&mut || {
                        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        seed == 1 || (seed > 1 && dice >> 63 == 1)
                    });
                    if !disk.list().unwrap().contains(&"end".to_owned()) {
                        assert_eq!(last, 0, "its name is durable with the first claim");
                        continue;
                    }
                    match EndFile::open(&disk).unwrap().1 {
                        EndMarkerState::Claim(found) => {
                            assert!(found == claim(last) || found == claim(last + 1));
                        }
                        EndMarkerState::Nothing => assert_eq!(last, 0),
                        EndMarkerState::Unreadable => panic!("two slots torn by one crash"),
                    }
                }
            }
        }
    }

    #[test]
    fn every_flipped_bit_of_a_slot_is_seen() {
        let slot: [u8; USED] = encode(7, &claim(2))[..USED].try_into().unwrap();
        assert_eq!(decode(&slot), Some((7, claim(2))));
        for bit in 0..USED * 8 {
            let mut flipped = slot;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped), None, "bit {bit}");
        }
    }

    /// If one slot is damaged, the other one is still valid.
    #[test]
    fn one_readable_slot_is_enough_and_none_is_reported() {
        let disk = SimDisk::new(5);
        let mut end = EndFile::none();
        for mark in 1..=4 {
            end.write(&disk, &claim(mark)).unwrap();
        }
        disk.flip_bit("end", 20, 0);
        assert_eq!(
            EndFile::open(&disk).unwrap().1,
            EndMarkerState::Claim(claim(3))
        );
        disk.flip_bit("end", 4096 + 20, 0);
        let (mut end, found) = EndFile::open(&disk).unwrap();
        assert_eq!(found, EndMarkerState::Unreadable);
        end.write(&disk, &claim(5)).unwrap();
        assert_eq!(
            EndFile::open(&disk).unwrap().1,
            EndMarkerState::Claim(claim(5))
        );
    }
}
