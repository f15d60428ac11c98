//! Splits the writes of one step into write batches of bounded size.
//!
//! The log writes a batch in one record and refuses records that are too long; no later stage
//! splits a batch. A crash may leave any prefix of a step's batches. Three rules make every prefix
//! valid:
//!
//! 1. A hard state stays in one batch with the preceding record of its group: after a crash, a
//!    removed replica still has its vote, and a new replica has its term.
//! 2. A group's hard state precedes the entries of the same step and shares a batch with the first
//!    of them: no entry is durable before its term, and no commit index becomes durable while it
//!    covers older entries that the step replaces.
//! 3. A snapshot is saved with the batch that installs it, not earlier.
//!
//! Entries can otherwise be split anywhere: they are acknowledged only when the last one is
//! durable.

use crate::{Entry, GroupId, LogWrite, Snapshot};

/// A batch has more bytes than this only by its last entry and the hard state before it.
pub const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;

/// What an item of the log has beside its payload, at most.
const ITEM_BYTES: usize = 64;
/// What a base or a hard state takes, membership included.
const STATE_BYTES: usize = 4 * 1024;

/// Some of the records of a turn.
#[derive(Default)]
pub(super) struct BatchPart {
    pub(super) records: Vec<(GroupId, LogWrite)>,
    /// The snapshots that the records install.
    pub(super) snapshots: Vec<Snapshot>,
    /// How long the records are.
    pub(super) bytes: usize,
    /// How many records of the turn end in this part.
    pub(super) taken: usize,
}

impl BatchPart {
    /// Whether the last record so far is one of this group.
    fn ends_with(&self, group: GroupId) -> bool {
        self.records.last().is_some_and(|(last, _)| *last == group)
    }

    /// Whether the last record so far is a hard state of this group.
    fn ends_with_state_of(&self, group: GroupId) -> bool {
        let last = self.records.last();
        last.is_some_and(|(of, record)| *of == group && matches!(record, LogWrite::HardState(_)))
    }
}

fn entry_bytes(entry: &Entry) -> usize {
    ITEM_BYTES + entry.payload_bytes().len()
}

fn bytes(record: &LogWrite) -> usize {
    match record {
        LogWrite::Entries(entries) => entries.iter().map(entry_bytes).sum(),
        LogWrite::Born(base) | LogWrite::Cut(base) | LogWrite::Installed(base) => {
            STATE_BYTES + base.membership.to_bytes().len()
        }
        LogWrite::HardState(_) | LogWrite::Removed => ITEM_BYTES,
    }
}

/// Cuts records into parts of about `limit` bytes, in order, each with the snapshots that it installs. Usually there is one part.
pub(super) fn cut(
    records: Vec<(GroupId, LogWrite)>,
    snapshots: Vec<Snapshot>,
    limit: usize,
) -> Vec<BatchPart> {
    let mut parts = cut_records(records, limit);
    attach(&mut parts, snapshots);
    parts
}

/// Gives each snapshot to the part that installs it. With an earlier one it could be deleted again: the replica
/// that it follows may be removed in the same turn.
fn attach(parts: &mut [BatchPart], snapshots: Vec<Snapshot>) {
    for snapshot in snapshots {
        let installs = |part: &&mut BatchPart| {
            part.records.iter().any(|(group, record)| {
                let index = match record {
                    LogWrite::Installed(base) => base.place.index,
                    _ => return false,
                };
                (*group, index) == (snapshot.group, snapshot.index)
            })
        };
        let part = parts.iter_mut().find(installs);
        debug_assert!(part.is_some(), "every state that arrived is installed");
        if let Some(part) = part {
            part.snapshots.push(snapshot);
        }
    }
}

fn cut_records(records: Vec<(GroupId, LogWrite)>, limit: usize) -> Vec<BatchPart> {
    let total: usize = records.iter().map(|(_, record)| bytes(record)).sum();
    if total <= limit {
        return vec![BatchPart {
            taken: records.len(),
            records,
            snapshots: Vec::new(),
            bytes: total,
        }];
    }
    let mut parts = vec![];
    let mut part = BatchPart::default();
    for (group, record) in records {
        let more = bytes(&record);
        let belongs = matches!(record, LogWrite::HardState(_)) && part.ends_with(group);
        if part.bytes + more <= limit || belongs {
            part.bytes += more;
            part.taken += 1;
            part.records.push((group, record));
            continue;
        }
        let LogWrite::Entries(entries) = record else {
            parts.push(std::mem::take(&mut part));
            part.bytes = more;
            part.taken = 1;
            part.records.push((group, record));
            continue;
        };
        let mut some = Vec::new();
        for entry in entries {
            let more = entry_bytes(&entry);
            // The first entry stays with the hard state before it, whose commit index may cover it: alone, that
            // index would make older entries at its place count as committed.
            let stays = some.is_empty() && part.ends_with_state_of(group);
            if part.bytes > 0 && part.bytes + more > limit && !stays {
                if !some.is_empty() {
                    let some = std::mem::take(&mut some);
                    part.records.push((group, LogWrite::Entries(some)));
                }
                parts.push(std::mem::take(&mut part));
            }
            part.bytes += more;
            some.push(entry);
        }
        part.records.push((group, LogWrite::Entries(some)));
        part.taken += 1;
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Base, HardState, LogPosition, Payload};

    fn cut(records: Vec<(GroupId, LogWrite)>, snapshots: Vec<Snapshot>) -> Vec<BatchPart> {
        super::cut(records, snapshots, MAX_BATCH_BYTES)
    }

    fn entries(first: u64, lengths: &[usize]) -> LogWrite {
        let entry = |(index, length): (u64, &usize)| Entry {
            place: LogPosition { term: 1, index },
            payload: Payload::Commands(Bytes::from(vec![7; *length])),
        };
        LogWrite::Entries((first..).zip(lengths).map(entry).collect())
    }

    fn state(term: u64) -> LogWrite {
        LogWrite::HardState(HardState {
            term,
            ..HardState::default()
        })
    }

    /// The records of all parts, with the entries of each group in one piece again.
    fn joined(parts: &[BatchPart]) -> Vec<(GroupId, LogWrite)> {
        let mut all: Vec<(GroupId, LogWrite)> = Vec::new();
        for (group, record) in parts.iter().flat_map(|part| &part.records) {
            match (all.last_mut(), record) {
                (Some((last, LogWrite::Entries(before))), LogWrite::Entries(more))
                    if last == group =>
                {
                    before.extend(more.iter().cloned());
                }
                _ => all.push((*group, record.clone())),
            }
        }
        all
    }

    #[test]
    fn a_short_turn_is_one_batch() {
        let records = vec![(GroupId(1), state(2)), (GroupId(1), entries(5, &[10, 20]))];
        let parts = cut(records.clone(), Vec::new());
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0].records.clone(), parts[0].taken), (records, 2));
    }

    #[test]
    fn a_long_turn_is_cut_and_nothing_is_lost() {
        let mega = 1024 * 1024;
        let mut records = Vec::new();
        for group in (0..30).map(GroupId) {
            records.push((group, state(2)));
            records.push((group, entries(5, &[mega, 3 * mega, mega / 2])));
            records.push((group, LogWrite::Removed));
            records.push((group, state(3)));
            records.push((group, LogWrite::Born(Box::default())));
            records.push((group, state(4)));
        }
        // A follower that was far behind.
        records.push((GroupId(30), entries(5, &[mega; 60])));
        let parts = cut(records.clone(), Vec::new());
        assert!(parts.len() > 20, "{}", parts.len());
        for part in &parts {
            assert!(part.bytes <= MAX_BATCH_BYTES);
        }
        for two in parts.windows(2) {
            let (last_of, _) = two[0].records.last().unwrap();
            let (first_of, first) = two[1].records.first().unwrap();
            let belongs = matches!(first, LogWrite::HardState(_)) && first_of == last_of;
            assert!(!belongs, "{first_of}");
        }
        assert_eq!(joined(&parts), records);
        let taken: usize = parts.iter().map(|part| part.taken).sum();
        assert_eq!(taken, records.len());
    }

    /// A hard state alone in a durable batch would make older entries at the places that its commit index covers
    /// count as committed.
    #[test]
    fn a_hard_state_is_durable_with_the_first_entry_behind_it() {
        let filler = (GroupId(0), entries(1, &[MAX_BATCH_BYTES - 200]));
        let records = vec![
            filler,
            (GroupId(1), state(3)),
            (GroupId(1), entries(5, &[400, 400])),
        ];
        let parts = cut(records, Vec::new());
        let of_state = parts.iter().find(|part| {
            let mut records = part.records.iter();
            records.any(|(_, record)| matches!(record, LogWrite::HardState(_)))
        });
        let last = of_state.and_then(|part| part.records.last());
        assert!(
            matches!(last, Some((GroupId(1), LogWrite::Entries(_)))),
            "{last:?}"
        );
    }

    #[test]
    fn an_entry_that_is_too_long_has_a_batch_of_its_own() {
        let lengths = [10, MAX_BATCH_BYTES + 1, 10];
        let parts = cut(vec![(GroupId(0), entries(1, &lengths))], Vec::new());
        let sizes: Vec<usize> = parts.iter().map(|part| part.records.len()).collect();
        assert_eq!(sizes, [1, 1, 1]);
        let taken: Vec<usize> = parts.iter().map(|part| part.taken).collect();
        assert_eq!(taken, [0, 0, 1], "done with the last of its entries");
    }

    fn installed(index: u64) -> LogWrite {
        LogWrite::Installed(Box::new(Base {
            place: LogPosition { term: 1, index },
            ..Base::default()
        }))
    }

    fn snapshot(group: GroupId, index: u64) -> Snapshot {
        Snapshot {
            group,
            index,
            data: Bytes::from_static(b"state"),
        }
    }

    /// A replica is removed, and a state installs its successor, in one long turn: the snapshot is saved with the
    /// batch that installs it. The batch before it deletes all snapshots of the group when it is durable.
    #[test]
    fn a_snapshot_goes_with_the_batch_that_installs_it() {
        let (one, two) = (GroupId(1), GroupId(2));
        let filler = |first| (GroupId(0), entries(first, &[MAX_BATCH_BYTES - 300]));
        let records = vec![
            (one, installed(7)),
            (one, state(2)),
            filler(1),
            (one, LogWrite::Removed),
            (one, state(2)),
            filler(2),
            (two, installed(5)),
            (two, state(3)),
            filler(3),
            (one, installed(9)),
            (one, state(4)),
        ];
        let snapshots = vec![snapshot(one, 7), snapshot(one, 9), snapshot(two, 5)];
        let parts = cut(records, snapshots);
        let mut found = Vec::new();
        for part in &parts {
            for snapshot in &part.snapshots {
                let is_here = |(group, record): &(GroupId, LogWrite)| {
                    *group == snapshot.group && *record == installed(snapshot.index)
                };
                assert!(part.records.iter().any(is_here), "{snapshot:?}");
                found.push((snapshot.group, snapshot.index));
            }
        }
        assert_eq!(found, [(one, 7), (two, 5), (one, 9)]);
        assert!(parts.len() >= 4);
    }

    /// The hard states of many groups are not one batch because each is behind another: only what belongs to the
    /// same group stays together.
    #[test]
    fn hard_states_of_many_groups_are_cut() {
        let count = u32::try_from(3 * MAX_BATCH_BYTES / ITEM_BYTES).unwrap();
        let records = (0..count).map(|group| (GroupId(group), state(2)));
        for part in cut(records.collect(), Vec::new()) {
            assert!(part.bytes <= MAX_BATCH_BYTES);
        }
    }

    /// Whatever a turn writes, no batch is longer than the limit and one entry with its hard state, and every
    /// prefix of the batches is safe.
    #[test]
    fn batches_of_any_turn_are_bounded_and_safe() {
        let mut random = tenure_random::SplitMix64::new(5);
        for _ in 0..60 {
            let mut records = Vec::new();
            let mut longest = 0;
            for group in (0..12).map(GroupId) {
                match random.below(4) {
                    0 => records.push((group, LogWrite::Removed)),
                    1 => records.push((group, installed(3))),
                    _ => {}
                }
                records.push((group, state(2)));
                let lengths: Vec<usize> = (0..random.below(5))
                    .map(|_| 1 << (10 + random.below(14)))
                    .collect();
                if !lengths.is_empty() {
                    longest = longest.max(lengths.iter().copied().max().unwrap_or(0));
                    records.push((group, entries(5, &lengths)));
                }
            }
            let parts = cut(records.clone(), Vec::new());
            assert_eq!(joined(&parts), records);
            for part in &parts {
                let most = MAX_BATCH_BYTES + longest + 2 * ITEM_BYTES;
                assert!(part.bytes <= most, "{} bytes", part.bytes);
            }
            for two in parts.windows(2) {
                let (last_of, last) = two[0].records.last().unwrap();
                let (first_of, first) = two[1].records.first().unwrap();
                if last_of == first_of {
                    assert!(!matches!(first, LogWrite::HardState(_)));
                    assert!(!matches!(last, LogWrite::HardState(_)));
                }
            }
        }
    }
}
