//! Every batch of a node is written whole, however long it is.

#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use tenure_log::{Log as _, Options, SimDisk, open};
use tenure_node::durable::{WrittenBatches, replay};
use tenure_node::{
    Base, Entry, GroupId, HardState, LogPosition, LogWrite, Mark, Membership, NodeId, Payload,
    ReplicaId, SyncMode, WriteBatch,
};

/// What the log is asked to write in the file sizes of real machines.
const MIB: usize = 1 << 20;

fn born() -> LogWrite {
    let node = NodeId::new(1).unwrap();
    let membership = Membership {
        voters: vec![ReplicaId::new(node, 1)],
        ..Membership::default()
    };
    LogWrite::Born(Box::new(Base {
        place: Base::BIRTH,
        membership,
    }))
}

fn entries(count: u64, bytes: usize) -> LogWrite {
    let payload = Bytes::from(vec![7; bytes]);
    let entry = |index| Entry {
        place: LogPosition { term: 9, index },
        payload: Payload::Commands(payload.clone()),
    };
    LogWrite::Entries((2..2 + count).map(entry).collect())
}

fn state(term: u64) -> LogWrite {
    LogWrite::HardState(HardState {
        term,
        vote: None,
        commit: 2,
        ..HardState::default()
    })
}

fn batch(mark: u64, records: Vec<(GroupId, LogWrite)>) -> WriteBatch {
    WriteBatch {
        mark: Mark(mark),
        sync: SyncMode::Now,
        snapshots: Vec::new(),
        records,
    }
}

/// Writes `births` and then `large`, and loses power. Returns the disk after that.
fn write(births: &WriteBatch, large: &WriteBatch) -> SimDisk {
    let disk = SimDisk::new(3);
    let opened = open(disk.clone(), Options::default()).unwrap();
    let (mut log, snapshots) = (opened.log, opened.snapshots);
    let mut items = tenure_log::Batch::new();
    let mut written = WrittenBatches::default();
    written
        .append(&mut log, &snapshots, &mut items, births)
        .unwrap();
    written.sync(&mut log).unwrap();
    let mut written = WrittenBatches::default();
    written
        .gather(&mut log, &snapshots, &mut items, large)
        .unwrap();
    log.append(&mut items).unwrap();
    let synced = written.sync(&mut log).unwrap();
    assert_eq!(synced.mark(), Some(large.mark));
    drop((log, snapshots));
    disk.crash(&mut || false)
}

/// The longest batch that a node makes: all that fits, and one more entry of the longest kind with its hard state.
#[test]
fn the_longest_batch_of_a_node_is_one_record() {
    let groups = || (0..9).map(GroupId);
    let births = batch(1, groups().map(|group| (group, born())).collect());
    let mut records = Vec::new();
    for group in groups().take(8) {
        records.push((group, state(9)));
        records.push((group, entries(1, MIB)));
    }
    records.push((GroupId(8), state(9)));
    records.push((GroupId(8), entries(1, tenure_log::MAX_ENTRY - 64)));
    let disk = write(&births, &batch(2, records));
    let opened = open(disk, Options::default()).unwrap();
    assert_eq!(opened.recovered.mark.0, 2, "it is one record");
    let recovery = replay(opened.recovered, &opened.snapshots).unwrap();
    for group in groups() {
        assert_eq!(recovery.last(group).unwrap().index, 2, "{group}");
    }
}

/// Batches that wait together become one record as long as they fit, and are never divided.
#[test]
fn a_batch_without_room_behind_others_is_a_record_of_its_own() {
    let disk = SimDisk::new(3);
    let opened = open(disk.clone(), Options::default()).unwrap();
    let (mut log, snapshots) = (opened.log, opened.snapshots);
    let mut items = tenure_log::Batch::new();
    let mut written = WrittenBatches::default();
    for number in 0..5 {
        let group = GroupId(number);
        let records = vec![
            (group, born()),
            (group, state(9)),
            (group, entries(20, MIB)),
        ];
        let batch = batch(u64::from(number) + 1, records);
        written
            .gather(&mut log, &snapshots, &mut items, &batch)
            .unwrap();
        assert!(items.bytes() >= 20 * MIB, "all of it is together");
    }
    log.append(&mut items).unwrap();
    assert_eq!(written.sync(&mut log).unwrap().mark(), Some(Mark(5)));
    drop((log, snapshots));
    let opened = open(disk.crash(&mut || false), Options::default()).unwrap();
    assert_eq!(opened.recovered.mark.0, 2, "three batches, then two");
    let recovery = replay(opened.recovered, &opened.snapshots).unwrap();
    for number in 0..5 {
        assert_eq!(recovery.last(GroupId(number)).unwrap().index, 21);
    }
}
