//! Splits the writes of one turn into batches of bounded size.
//!
//! A batch is one record of the log, and the log refuses records that are too long. Batches become durable in
//! order, so each prefix of a turn's records must be a state that a crash may leave behind. Two rules see to
//! that: a hard state stays with the record before it (a removed replica must not lose its vote, a birth its
//! term), and a group's hard state is written before the entries of the same turn (no entry is durable before
//! its term). Entries themselves can be cut anywhere: nothing is acknowledged before the last batch is durable.

use crate::{Entry, GroupId, Record};

/// A batch has more bytes than this only if it consists of one entry.
pub const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;

/// What an item of the log has beside its payload, at most.
const ITEM_BYTES: usize = 64;
/// What a base or a hard state takes, membership included.
const STATE_BYTES: usize = 4 * 1024;

/// Some of the records of a turn.
pub(super) struct Part {
    pub(super) records: Vec<(GroupId, Record)>,
    pub(super) bytes: usize,
    /// How many records of the turn end in this part.
    pub(super) taken: usize,
}

impl Part {
    fn new() -> Part {
        Part {
            records: Vec::new(),
            bytes: 0,
            taken: 0,
        }
    }
}

fn entry_bytes(entry: &Entry) -> usize {
    ITEM_BYTES + entry.payload_bytes().len()
}

fn bytes(record: &Record) -> usize {
    match record {
        Record::Entries(entries) => entries.iter().map(entry_bytes).sum(),
        Record::Born(base) | Record::Cut(base) | Record::Installed(base) => {
            STATE_BYTES + base.membership.to_bytes().len()
        }
        Record::HardState(_) | Record::Removed => ITEM_BYTES,
    }
}

/// Cuts records into parts, in order. Usually there is one.
pub(super) fn cut(records: Vec<(GroupId, Record)>) -> Vec<Part> {
    let total: usize = records.iter().map(|(_, record)| bytes(record)).sum();
    if total <= MAX_BATCH_BYTES {
        return vec![Part {
            taken: records.len(),
            records,
            bytes: total,
        }];
    }
    let mut parts = vec![];
    let mut part = Part::new();
    for (group, record) in records {
        let more = bytes(&record);
        let belongs = matches!(record, Record::HardState(_));
        if part.bytes + more <= MAX_BATCH_BYTES || belongs {
            part.bytes += more;
            part.taken += 1;
            part.records.push((group, record));
            continue;
        }
        let Record::Entries(entries) = record else {
            parts.push(std::mem::replace(&mut part, Part::new()));
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
            let is_state = |(of, last): &(GroupId, Record)| {
                *of == group && matches!(last, Record::HardState(_))
            };
            let stays = some.is_empty() && part.records.last().is_some_and(is_state);
            if part.bytes > 0 && part.bytes + more > MAX_BATCH_BYTES && !stays {
                if !some.is_empty() {
                    let some = std::mem::take(&mut some);
                    part.records.push((group, Record::Entries(some)));
                }
                parts.push(std::mem::replace(&mut part, Part::new()));
            }
            part.bytes += more;
            some.push(entry);
        }
        part.records.push((group, Record::Entries(some)));
        part.taken += 1;
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{HardState, Payload, Place};

    fn entries(first: u64, lengths: &[usize]) -> Record {
        let entry = |(index, length): (u64, &usize)| Entry {
            place: Place { term: 1, index },
            payload: Payload::Commands(Bytes::from(vec![7; *length])),
        };
        Record::Entries((first..).zip(lengths).map(entry).collect())
    }

    fn state(term: u64) -> Record {
        Record::HardState(HardState {
            term,
            ..HardState::default()
        })
    }

    /// The records of all parts, with the entries of each group in one piece again.
    fn joined(parts: &[Part]) -> Vec<(GroupId, Record)> {
        let mut all: Vec<(GroupId, Record)> = Vec::new();
        for (group, record) in parts.iter().flat_map(|part| &part.records) {
            match (all.last_mut(), record) {
                (Some((last, Record::Entries(before))), Record::Entries(more)) if last == group => {
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
        let parts = cut(records.clone());
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
            records.push((group, Record::Removed));
            records.push((group, state(3)));
            records.push((group, Record::Born(Box::default())));
            records.push((group, state(4)));
        }
        // A follower that was far behind.
        records.push((GroupId(30), entries(5, &[mega; 60])));
        let parts = cut(records.clone());
        assert!(parts.len() > 20, "{}", parts.len());
        for part in &parts {
            assert!(part.bytes <= MAX_BATCH_BYTES);
        }
        for part in &parts[1..] {
            let first = &part.records.first().unwrap().1;
            assert!(!matches!(first, Record::HardState(_)));
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
        let parts = cut(records);
        let of_state = parts.iter().find(|part| {
            let mut records = part.records.iter();
            records.any(|(_, record)| matches!(record, Record::HardState(_)))
        });
        let last = of_state.and_then(|part| part.records.last());
        assert!(
            matches!(last, Some((GroupId(1), Record::Entries(_)))),
            "{last:?}"
        );
    }

    #[test]
    fn an_entry_that_is_too_long_has_a_batch_of_its_own() {
        let lengths = [10, MAX_BATCH_BYTES + 1, 10];
        let parts = cut(vec![(GroupId(0), entries(1, &lengths))]);
        let sizes: Vec<usize> = parts.iter().map(|part| part.records.len()).collect();
        assert_eq!(sizes, [1, 1, 1]);
        let taken: Vec<usize> = parts.iter().map(|part| part.taken).collect();
        assert_eq!(taken, [0, 0, 1], "done with the last of its entries");
    }
}
