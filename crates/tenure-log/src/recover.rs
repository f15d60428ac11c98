//! Crash recovery: reads and verifies the log files at start.
//!
//! ```text
//!   newest header ──▶ oldest file still needed ──▶ all files in between exist?
//!        └──▶ for each: its checkpoint equals what is known; its records have no gap up to the end
//!             that the next header names; the newest file ends with its last whole record
//! ```
//!
//! Only the newest file may have a bad tail, and only if nothing proves that the tail was durable:
//! neither a record of the file nor the end marker. A torn write always passes this test, because a
//! record is durable before anything says so. Damage to durable bytes fails the test once anything
//! was appended after the sync or the end was confirmed. A tail that passes is cut off and reported
//! ([`Truncation`]). In all other cases the node refuses to start, because it must not vote with an
//! incomplete log.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use crate::batch::{GroupId, Item, Items};
use crate::disk::Disk;
use crate::end_marker::EndClaim;
use crate::error::OpenError;
use crate::file_names::FileName;
use crate::index::{Index, LogBase};
use crate::log::{BatchNumber, LogFile};
use crate::reader::{FileTail, PAGE, Reader, WholeRecord};
use crate::record::{BadHeader, FILE_HEADER, RecordKind, VERSION, ZEROS};

/// The content of the log when its last process ended.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The groups that were not removed.
    pub groups: BTreeMap<GroupId, RecoveredGroup>,
    /// The records of the node itself.
    pub node: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The mark of the last batch.
    pub mark: BatchNumber,
    /// The tail that was cut off; to be reported to the operator.
    pub cut: Option<Truncation>,
    /// The end marker is damaged, so the end of the log could not be verified with it.
    pub end_unreadable: bool,
}

/// A tail after the last whole record that is no longer part of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// The log file.
    pub file: String,
    /// The end of the log.
    pub offset: u64,
    /// The number of bytes after it that were written, as far as it is known.
    pub bytes: u64,
    /// The probable cause.
    pub kind: TruncationKind,
}

/// The probable cause of a cut tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruncationKind {
    /// An unconfirmed write: the machine or the process ended before it was durable. All confirmed
    /// batches are present.
    Torn,
    /// No crash explains it: the machine did not restart since, no write or sync failed, and a
    /// killed process does not leave such bytes. Confirmed records may be lost.
    ///
    /// It is reported at every start until a batch is appended. That batch must contain what the
    /// caller needs to remember.
    Suspicious,
}

/// The content of the log for one group.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecoveredGroup {
    /// The last hard state; empty if there was none.
    pub state: Vec<u8>,
    /// The base of its entries. The snapshot itself is in [`Snapshots`](crate::Snapshots).
    pub base: Option<LogBase>,
    /// The entries after the base, or from index 1, without gaps.
    pub entries: Vec<RecoveredEntry>,
}

/// An entry of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredEntry {
    /// The index: one more than that of the previous entry.
    pub index: u64,
    /// The term of the entry.
    pub term: u64,
    /// The payload.
    pub payload: Vec<u8>,
}

/// The result of recovery.
pub(crate) struct RecoveryResult {
    pub(crate) index: Index,
    pub(crate) recovered: Recovered,
    /// The needed files, oldest first.
    pub(crate) files: VecDeque<LogFile>,
    /// End of the records of the newest file.
    pub(crate) end: u64,
}

/// Reads the log files with these numbers (ascending) and verifies them against the claim of the
/// end marker. Changes nothing.
pub(crate) fn recover<D: Disk>(
    disk: &D,
    numbers: &[u64],
    claim: Option<EndClaim>,
) -> Result<RecoveryResult, OpenError> {
    let Some(&newest) = numbers.last() else {
        return Ok(RecoveryResult {
            index: Index::default(),
            recovered: Recovered::default(),
            files: VecDeque::new(),
            end: 0,
        });
    };
    let damage = RecoveryFault { disk, numbers };
    // The marker is written after the rename of a file is durable, so a file that it names has
    // existed.
    if let Some(claim) = claim.filter(|claim| claim.file > newest) {
        return Err(damage.missing(claim.file));
    }
    // Only the newest header knows which files are needed. Older files may be leftovers of a crash
    // between the rotation and the freeing.
    let oldest = damage.open(newest)?.header.oldest;
    if oldest > newest || oldest == 0 {
        return Err(damage.at(newest, 0, "the header names an oldest file that cannot be"));
    }
    if let Some(missing) = (oldest..newest).find(|number| numbers.binary_search(number).is_err()) {
        return Err(damage.missing(missing));
    }

    let mut replay = Replay {
        damage,
        index: None,
        entries: BTreeMap::new(),
        mark: 0,
        claim,
        cut: None,
    };
    let mut files = VecDeque::new();
    let mut reader = replay.damage.open(oldest)?;
    let end = loop {
        let number = reader.header.number;
        files.push_back(LogFile {
            number,
            size: reader.size,
        });
        if number == newest {
            break replay.newest(&mut reader)?;
        }
        // The successor says where this file ends: its records up to there were durable before the
        // successor got its name.
        let next = replay.damage.open(number + 1)?;
        replay.sealed(&mut reader, next.header.previous_end)?;
        reader = next;
    };
    let (index, recovered) = replay.finish(oldest)?;
    Ok(RecoveryResult {
        index,
        recovered,
        files,
        end,
    })
}

/// The state of recovery between two records.
struct Replay<'a, D> {
    damage: RecoveryFault<'a, D>,
    /// `None` before the first checkpoint.
    index: Option<Index>,
    entries: BTreeMap<GroupId, Vec<RecoveredEntry>>,
    mark: u64,
    /// The claim of the end marker.
    claim: Option<EndClaim>,
    cut: Option<Truncation>,
}

impl<D: Disk> Replay<'_, D> {
    /// Reads a file that has a successor: its records must end exactly where the successor says.
    fn sealed(&mut self, reader: &mut Reader<D>, end: u64) -> Result<(), OpenError> {
        let number = reader.header.number;
        if end > reader.size {
            return Err(self
                .damage
                .at(number, reader.size, "the file is shorter than it was"));
        }
        let reached = self.records(reader, end)?;
        if reached != end {
            return Err(self.damage.at(number, reached, "a durable record is bad"));
        }
        self.check_claim(reader, end)
    }

    /// Reads the newest file. Returns the end of its records.
    fn newest(&mut self, reader: &mut Reader<D>) -> Result<u64, OpenError> {
        let number = reader.header.number;
        let size = reader.size;
        let reached = self.records(reader, size)?;
        let tail = reader.tail(reached).map_err(read_error(number))?;
        if reached < reader.header.born_end || tail.was_durable {
            return Err(self.damage.at(number, reached, "a durable record is bad"));
        }
        self.check_claim(reader, reached)?;
        self.cut = self.judge(reader, reached, tail);
        if reader.supplement.after_cut && self.mark == reader.header.mark {
            // The first batch after an earlier suspicious cut is not durable, so the caller's
            // record of that cut is not either. A torn batch loses nothing here, but the earlier
            // cut still counts.
            let torn = self.cut.take();
            self.cut = Some(Truncation {
                kind: TruncationKind::Suspicious,
                ..torn.unwrap_or(Truncation {
                    file: FileName::Log(number.saturating_sub(1)).to_string(),
                    offset: reader.header.previous_end,
                    bytes: 0,
                    kind: TruncationKind::Suspicious,
                })
            });
        }
        Ok(reached)
    }

    /// Verifies the claim of the end marker. The claimed bytes were durable before it was written,
    /// so a shorter log has lost data.
    fn check_claim(&self, reader: &Reader<D>, end: u64) -> Result<(), OpenError> {
        let number = reader.header.number;
        match self.claim.filter(|claim| claim.file == number) {
            Some(claim) if claim.salt != reader.header.salt => {
                let what = "it is not the file that the end marker was written for";
                Err(self.damage.at(number, 0, what))
            }
            Some(claim) if claim.offset > end || claim.mark > self.mark => {
                let what = "the end marker says that more was durable";
                Err(self.damage.at(number, end, what))
            }
            _ => Ok(()),
        }
    }

    /// Returns the cut at `end` and its probable cause, if anything was written there.
    fn judge(&self, reader: &Reader<D>, end: u64, tail: FileTail) -> Option<Truncation> {
        let number = reader.header.number;
        let written_at = tail.written_at && reader.supplement.has_zeros;
        let written_to = tail
            .behind
            .max(tail.header_at)
            .or(written_at.then_some(end + ZEROS as u64))?;
        let boot = self.damage.disk.boot();
        let same_boot = boot.is_some() && boot == reader.supplement.boot;
        let failed = self
            .claim
            .is_some_and(|claim| claim.file == number && claim.failed);
        // A single write was interrupted when the process was killed, which happens only at a page
        // boundary.
        let killed = tail.behind.is_none()
            && match tail.header_at {
                Some(to) => {
                    let is_complete = tail.is_complete && reader.supplement.has_zeros;
                    end / PAGE != (to - 1) / PAGE && !is_complete
                }
                None => end.is_multiple_of(PAGE) || end / PAGE != (end + ZEROS as u64 - 1) / PAGE,
            };
        Some(Truncation {
            file: FileName::Log(number).to_string(),
            offset: end,
            bytes: written_to.min(reader.size) - end,
            kind: if same_boot && !failed && !killed {
                TruncationKind::Suspicious
            } else {
                TruncationKind::Torn
            },
        })
    }

    /// Applies records up to the first bad one or to `limit`. Returns the end of the last one.
    fn records(&mut self, reader: &mut Reader<D>, limit: u64) -> Result<u64, OpenError> {
        let number = reader.header.number;
        let born_end = reader.header.born_end;
        if self.index.is_none() {
            self.mark = reader.header.mark;
        } else if self.mark != reader.header.mark {
            return Err(self
                .damage
                .at(number, 0, "batches between it and its predecessor miss"));
        }
        let mut offset = FILE_HEADER;
        while offset < limit {
            match reader.record(offset, limit).map_err(read_error(number))? {
                Ok(record) => {
                    let end = record.end;
                    if let Err(what) = self.record(number, offset, born_end, &record) {
                        return Err(self.damage.at(number, offset, what));
                    }
                    offset = end;
                }
                Err(BadHeader::Damaged) => break,
                Err(BadHeader::Version(found)) => return Err(version_error(number, offset, found)),
            }
        }
        Ok(offset)
    }

    fn record(
        &mut self,
        file: u64,
        offset: u64,
        born_end: u64,
        record: &WholeRecord<'_>,
    ) -> Result<(), &'static str> {
        let first = offset == FILE_HEADER;
        if first != (record.header.kind == RecordKind::Checkpoint) {
            return Err("a checkpoint is missing, or stands where none belongs");
        }
        let batch = u64::from(record.header.kind == RecordKind::Batch);
        if record.header.mark != self.mark + batch {
            return Err("a record is out of order");
        }
        self.mark = record.header.mark;
        match record.header.kind {
            RecordKind::Checkpoint if record.end != born_end => {
                Err("the checkpoint does not end where the header says")
            }
            RecordKind::Checkpoint => self.checkpoint(record.body),
            RecordKind::Batch => self.batch(file, record.body),
            RecordKind::Close => Ok(()),
        }
    }

    /// The first checkpoint initializes the index. Every later one must equal the index.
    fn checkpoint(&mut self, body: &[u8]) -> Result<(), &'static str> {
        let Some(index) = &self.index else {
            let index = Index::from_checkpoint(body);
            self.index = Some(index.map_err(|_| "the checkpoint is not readable")?);
            return Ok(());
        };
        let mut known = crate::batch::Batch::new();
        index.checkpoint(&mut known);
        if known.body() == body {
            Ok(())
        } else {
            Err("the checkpoint contradicts the records before it")
        }
    }

    fn batch(&mut self, file: u64, body: &[u8]) -> Result<(), &'static str> {
        let index = self
            .index
            .as_mut()
            .ok_or("a batch before the first checkpoint")?;
        for item in Items::new(body) {
            let item = item.map_err(|_| "a batch holds something that is no item")?;
            index
                .apply(&item, file)
                .map_err(|_| "a batch does not follow what is before it")?;
            match item {
                Item::Entry {
                    group,
                    index,
                    term,
                    payload,
                } => {
                    let entry = RecoveredEntry {
                        index,
                        term,
                        payload: payload.to_vec(),
                    };
                    push_entry(self.entries.entry(group).or_default(), entry);
                }
                Item::SnapshotTaken { group, base } => {
                    if let Some(entries) = self.entries.get_mut(&group) {
                        let covered = entries.partition_point(|entry| entry.index <= base.index);
                        entries.drain(..covered);
                    }
                }
                Item::SnapshotInstalled { group, .. } | Item::Remove { group } => {
                    self.entries.remove(&group);
                }
                Item::State { .. }
                | Item::Begin { .. }
                | Item::Node { .. }
                | Item::Group { .. } => {}
            }
        }
        Ok(())
    }

    /// Checks that every group has all entries from its base to its last index.
    fn finish(mut self, oldest: u64) -> Result<(Index, Recovered), OpenError> {
        let index = self.index.take().unwrap_or_default();
        let mut groups = BTreeMap::new();
        for (id, state, base, last) in index.groups() {
            let entries = self.entries.remove(&id).unwrap_or_default();
            let after = base.map_or(0, |base| base.index);
            let first = entries.first().map_or(last, |entry| entry.index - 1);
            let reached = entries.last().map_or(last, |entry| entry.index);
            if first != after || reached != last {
                return Err(OpenError::Damaged {
                    file: FileName::Log(oldest).to_string(),
                    offset: FILE_HEADER,
                    what: "entries between the base and the first entry are not there",
                    groups: vec![id],
                });
            }
            groups.insert(
                id,
                RecoveredGroup {
                    state: state.to_vec(),
                    base: base.cloned(),
                    entries,
                },
            );
        }
        let recovered = Recovered {
            groups,
            node: index.node().clone(),
            mark: BatchNumber(self.mark),
            cut: self.cut,
            end_unreadable: false,
        };
        Ok((index, recovered))
    }
}

/// Appends an entry and removes those at the same and later indexes.
fn push_entry(entries: &mut Vec<RecoveredEntry>, entry: RecoveredEntry) {
    let kept = entries.partition_point(|earlier| earlier.index < entry.index);
    entries.truncate(kept);
    entries.push(entry);
}

/// Creates errors that name the groups concerned.
struct RecoveryFault<'a, D> {
    disk: &'a D,
    numbers: &'a [u64],
}

impl<D: Disk> RecoveryFault<'_, D> {
    fn open(&self, number: u64) -> Result<Reader<D>, OpenError> {
        match Reader::open(self.disk, number).map_err(read_error(number))? {
            Ok(reader) => Ok(reader),
            Err(BadHeader::Damaged) => Err(self.at(number, 0, "the header is bad")),
            Err(BadHeader::Version(found)) => Err(version_error(number, 8, found)),
        }
    }

    fn at(&self, number: u64, offset: u64, what: &'static str) -> OpenError {
        let groups = self.groups(number, offset);
        OpenError::Damaged {
            file: FileName::Log(number).to_string(),
            offset,
            what,
            groups,
        }
    }

    fn missing(&self, number: u64) -> OpenError {
        let groups = self.groups(number, 0);
        OpenError::Missing {
            file: FileName::Log(number).to_string(),
            groups,
        }
    }

    /// Returns the groups with readable items after this position. If there are none, returns all
    /// groups with readable items anywhere. Every checkpoint names all groups of its time.
    fn groups(&self, number: u64, offset: u64) -> Vec<GroupId> {
        let mut groups = BTreeSet::new();
        for &file in self.numbers.iter().filter(|&&file| file >= number) {
            self.groups_in(file, if file == number { offset } else { 0 }, &mut groups);
        }
        if groups.is_empty() {
            for &file in self.numbers {
                self.groups_in(file, 0, &mut groups);
            }
        }
        groups.into_iter().collect()
    }

    fn groups_in(&self, number: u64, offset: u64, groups: &mut BTreeSet<GroupId>) {
        // Only for the error message, so files that cannot be read are skipped.
        if let Ok(Ok(mut reader)) = Reader::open(self.disk, number) {
            let _ = reader.salvage(offset, |body| {
                groups.extend(Items::new(body).filter_map(|item| item.ok()?.group()));
            });
        }
    }
}

fn read_error(number: u64) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Io {
        action: "read",
        file: FileName::Log(number).to_string(),
        source,
    }
}

fn version_error(number: u64, offset: u64, found: u32) -> OpenError {
    let file = FileName::Log(number).to_string();
    OpenError::Version {
        file,
        offset,
        found,
        known: u32::from(VERSION),
    }
}
