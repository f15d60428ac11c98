//! Recovery: from the files of a dead process to what its log held.
//!
//! ```text
//!   newest header ──▶ oldest file still needed ──▶ all files between are there?
//!        └──▶ for each: checkpoint agrees with what came before; records follow without a gap up to
//!             the end that the next header names; the newest ends where its last whole record ends
//! ```
//!
//! Only the newest file may have a bad tail, and only if nothing says that the tail was durable:
//! neither a record of the file nor the end marker. A torn write always passes that test, because a
//! record is durable before anything says so. Damage to durable bytes fails it as soon as anything was
//! appended after the sync, or the end was confirmed. What passes is cut, and reported ([`Truncation`]).
//! Whatever else is wrong makes the node refuse to start: it must not vote on what is left.

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

/// What the log held when its last process ended.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The groups that were not removed.
    pub groups: BTreeMap<GroupId, RecoveredGroup>,
    /// The records of the node itself.
    pub node: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The mark of the last batch.
    pub mark: BatchNumber,
    /// What was cut off behind it; to be reported to the operator.
    pub cut: Option<Truncation>,
    /// The end marker is damaged: it could not be used to check the end of the log.
    pub end_unreadable: bool,
}

/// Bytes behind the last whole record that are not part of the log any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// The log file.
    pub file: String,
    /// Where the log ends.
    pub offset: u64,
    /// How many bytes stand behind that, as far as that can be told.
    pub bytes: u64,
    /// What they are.
    pub kind: TruncationKind,
}

/// What was cut off at the end of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruncationKind {
    /// A write that was not confirmed: the machine or the process ended before it was durable.
    /// Everything that was confirmed is there.
    Torn,
    /// No crash explains it: the machine was not started again since, no write or sync failed, and a
    /// process that is killed leaves no such bytes. Confirmed records may be lost. It is reported at
    /// every start until a batch is appended; that batch has to carry what the caller needs to remember.
    Suspicious,
}

/// What the log held of one group.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecoveredGroup {
    /// The last hard state; empty if there never was one.
    pub state: Vec<u8>,
    /// Where its entries begin. The snapshot itself is in [`Snapshots`](crate::Snapshots).
    pub base: Option<LogBase>,
    /// The entries behind the base, or from index 1 on, without a gap.
    pub entries: Vec<RecoveredEntry>,
}

/// An entry of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredEntry {
    /// Its index: one more than that of the entry before it.
    pub index: u64,
    /// The term in which it was made.
    pub term: u64,
    /// What it says.
    pub payload: Vec<u8>,
}

/// What recovery found out.
pub(crate) struct RecoveryResult {
    pub(crate) index: Index,
    pub(crate) recovered: Recovered,
    /// The files that are needed, oldest first.
    pub(crate) files: VecDeque<LogFile>,
    /// Where the records of the newest end.
    pub(crate) end: u64,
}

/// Reads the log files with these numbers (ascending), and checks them against what the end marker
/// claims. Changes nothing.
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
    if let Some(claim) = claim.filter(|claim| claim.file > newest) {
        return Err(damage.missing(claim.file));
    }
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
    /// None before the first checkpoint.
    index: Option<Index>,
    entries: BTreeMap<GroupId, Vec<RecoveredEntry>>,
    mark: u64,
    /// What the end marker claims.
    claim: Option<EndClaim>,
    cut: Option<Truncation>,
}

impl<D: Disk> Replay<'_, D> {
    /// A file that has a successor: its records must reach exactly to the end named there.
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

    /// The newest file: returns where its records end.
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
            // The first batch behind an earlier suspicious cut is not durable, so no note of that cut is
            // either. If that batch was torn, it loses nothing, but the earlier cut still counts.
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

    /// The end marker is written after what it claims is durable, so a log that is shorter lost it.
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

    /// What is cut off at `end`, if something was written there.
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
        // One write was under way when the process was killed. It ended at a page.
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

    /// Takes in records up to the first bad one or to `limit`; returns where that is.
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

    /// The first checkpoint is where everything starts; each later one must repeat what is known.
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

    /// Checks that every group has all the entries between its snapshot and its last index.
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

/// Appends an entry, dropping those at its index and behind.
fn push_entry(entries: &mut Vec<RecoveredEntry>, entry: RecoveredEntry) {
    let kept = entries.partition_point(|earlier| earlier.index < entry.index);
    entries.truncate(kept);
    entries.push(entry);
}

/// Says what is wrong and who is concerned.
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

    /// The groups of which something readable stands behind the place; without any, all groups of
    /// which something readable stands anywhere. Every checkpoint names all groups of its time.
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
        // This only serves the message; what cannot be read cannot be named.
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
