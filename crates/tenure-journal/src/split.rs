//! Splitting a node's batch that is longer than a record of the log.
//!
//! A node's batch is one record if it fits. If it does not, it becomes several records, which a crash
//! may cut between any two. That is safe under three rules:
//!
//! 1. The records of one group stay together. Groups do not depend on each other's writes, and
//!    nothing of the batch is reported, answered or sent before all of it is durable, so a part of
//!    its groups looks like an earlier turn.
//! 2. Only the entries of a group that is too long by itself are divided, in order. A follower that
//!    has a first part of what its leader sent is an ordinary follower.
//! 3. Entries never precede the hard state that comes behind them in the batch: a replica must not
//!    hold an entry of a term that it has not heard of. A commit index that is ahead of the entries is
//!    cut back at recovery.
//!
//! Everything else a group writes (its birth, base, removal, hard state) is short and stays in one
//! piece: a removed replica keeps its vote only if both are in the same record.

use std::collections::BTreeMap;

use tenure_log::{Limit, TooLong};
use tenure_node::{GroupId, HardState, Record};

use crate::{WriteError, put, put_entry};

/// Appends what was gathered to the log, and empties it.
type Flush<'a> = dyn FnMut(&mut tenure_log::Batch) -> Result<(), WriteError> + 'a;

/// Puts the records of a node's batch into `items`, which is flushed as often as it is full.
pub(crate) fn put_all(
    items: &mut tenure_log::Batch,
    records: &[(GroupId, Record)],
    flush: &mut Flush<'_>,
) -> Result<(), WriteError> {
    let each = records.iter().map(|(group, record)| (*group, record));
    if try_put(items, each)? {
        return Ok(());
    }
    let mut by_group: BTreeMap<GroupId, Vec<&Record>> = BTreeMap::new();
    for (group, record) in records {
        by_group.entry(*group).or_default().push(record);
    }
    for (group, records) in by_group {
        if put_together(items, group, &records, flush)? {
            continue;
        }
        for (at, record) in records.iter().enumerate() {
            if let Record::Entries(entries) = record {
                let state = state_behind(&records[at + 1..]);
                put_entries(items, group, entries, state, flush)?;
            } else if at == 0 || matches!(records[at - 1], Record::Entries(_)) {
                let rest = &records[at..];
                let is_short = |record: &&Record| !matches!(record, Record::Entries(_));
                let short = rest.iter().copied().take_while(is_short);
                put_together(items, group, &short.collect::<Vec<_>>(), flush)?;
            }
        }
    }
    Ok(())
}

/// Puts records into one record of the log. False: not even an empty one has room for them.
fn put_together(
    items: &mut tenure_log::Batch,
    group: GroupId,
    records: &[&Record],
    flush: &mut Flush<'_>,
) -> Result<bool, WriteError> {
    let each = || records.iter().map(|record| (group, *record));
    if try_put(items, each())? {
        return Ok(true);
    }
    flush(items)?;
    Ok(try_put(items, each())?)
}

/// Puts all of the records into `items`, or leaves it as it was if it has no room for all.
fn try_put<'a>(
    items: &mut tenure_log::Batch,
    records: impl IntoIterator<Item = (GroupId, &'a Record)>,
) -> Result<bool, TooLong> {
    let before = items.bytes();
    for (group, record) in records {
        if !fits(put(items, group, record))? {
            items.take_back(before);
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts the entries of a group into as many records as they need, each with the hard state.
fn put_entries(
    items: &mut tenure_log::Batch,
    group: GroupId,
    entries: &[tenure_node::Entry],
    state: Option<HardState>,
    flush: &mut Flush<'_>,
) -> Result<(), WriteError> {
    let state = state.map(Record::HardState);
    let mut left = entries.iter().peekable();
    while left.peek().is_some() {
        if let Some(state) = &state {
            put_together(items, group, &[state], flush)?;
        }
        while let Some(entry) = left.peek() {
            if !fits(put_entry(items, group, entry))? {
                flush(items)?;
                break;
            }
            left.next();
        }
    }
    Ok(())
}

/// The hard state that is to be durable together with entries before these records.
fn state_behind(records: &[&Record]) -> Option<HardState> {
    let mut state = None;
    for record in records {
        match record {
            Record::HardState(found) => state = Some(*found),
            Record::Entries(_) | Record::Cut(_) => {}
            Record::Born(_) | Record::Installed(_) | Record::Removed => break,
        }
    }
    state
}

/// Whether an item is in the batch. An item that is too long for any batch is an error.
fn fits(result: Result<(), TooLong>) -> Result<bool, TooLong> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.exceeds == Limit::Batch => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bytes::Bytes;
    use tenure_log::{Log as _, LogError, Options, SimDisk, open};
    use tenure_node::{Entry, Payload, Place};

    use super::*;

    fn entries(count: u64) -> Record {
        let payload = Bytes::from(vec![7; 1 << 20]);
        let entry = |index| Entry {
            place: Place { term: 9, index },
            payload: Payload::Commands(payload.clone()),
        };
        Record::Entries((1..=count).map(entry).collect())
    }

    fn state() -> HardState {
        HardState {
            term: 9,
            ..HardState::default()
        }
    }

    /// Whatever part of a long batch a crash leaves: a group has all of its part or nothing, or, if
    /// its part alone is too long for a record, a first part of its entries with the hard state.
    #[test]
    fn a_crash_between_two_records_divides_no_group() {
        let (first, long, last) = (GroupId(1), GroupId(2), GroupId(3));
        let records = [
            (long, entries(70)),
            (last, entries(60)),
            (first, entries(2)),
            (first, Record::HardState(state())),
            (long, Record::HardState(state())),
            (last, Record::HardState(state())),
        ];
        let mut parts = BTreeSet::new();
        for most in 0.. {
            let disk = SimDisk::new(3);
            let mut log = open(disk.clone(), Options::default()).unwrap().log;
            let mut items = tenure_log::Batch::new();
            let mut flushes = 0;
            let crashed = || LogError::Poisoned {
                cause: "power".to_owned(),
            };
            let done = put_all(&mut items, &records, &mut |items| {
                if flushes == most {
                    return Err(crashed().into());
                }
                flushes += 1;
                log.append(items).map(drop).map_err(WriteError::from)
            });
            if done.is_ok() {
                log.append(&mut items).unwrap();
            }
            drop(log);
            let recovered = open(disk.kill(), Options::default()).unwrap().recovered;
            let held = [first, long, last].map(|group| {
                let Some(held) = recovered.groups.get(&u64::from(group.0)) else {
                    return 0;
                };
                assert_eq!(held.state, state().to_bytes(), "{group}");
                held.entries.len()
            });
            assert!([0, 2].contains(&held[0]), "{held:?}");
            assert!([0, 60].contains(&held[2]), "{held:?}");
            parts.insert(held);
            if done.is_ok() {
                assert_eq!(held, [2, 70, 60]);
                break;
            }
        }
        assert!(parts.len() >= 4, "{parts:?}");
    }

    /// A removed replica keeps its term and vote: they are never in a later record than its removal.
    #[test]
    fn a_removal_and_the_hard_state_behind_it_stay_together() {
        let group = GroupId(2);
        // The removal just fits behind the entries; the hard state does not.
        let mut room = tenure_log::Batch::new();
        put(&mut room, group, &entries(63)).unwrap();
        let left = tenure_log::MAX_BATCH_BYTES - room.bytes() - 29 - 9;
        let filler = Entry {
            place: Place { term: 9, index: 64 },
            payload: Payload::Commands(Bytes::from(vec![7; left])),
        };
        let records = [
            (group, entries(63)),
            (group, Record::Entries(vec![filler])),
            (group, Record::Removed),
            (group, Record::HardState(state())),
        ];
        let mut items = tenure_log::Batch::new();
        let mut records_of = Vec::new();
        put_all(&mut items, &records, &mut |items| {
            records_of.push(items.bytes());
            items.clear();
            Ok(())
        })
        .unwrap();
        let mut both = tenure_log::Batch::new();
        put(&mut both, group, &Record::Removed).unwrap();
        put(&mut both, group, &Record::HardState(state())).unwrap();
        assert!(!records_of.is_empty());
        assert_eq!(items.bytes(), both.bytes());
    }
}
