//! A batch of any length is written: in several records where one is not long enough.

#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use tenure_journal::{Written, replay};
use tenure_log::{Log as _, Options, SimDisk, open};
use tenure_node::{
    Base, Batch, Entry, GroupId, HardState, Mark, Member, Membership, NodeId, Payload, Place,
    Record, Sync,
};

/// What the log is asked to write in the file sizes of real machines.
const MIB: usize = 1 << 20;

fn born() -> Record {
    let node = NodeId::new(1).unwrap();
    let membership = Membership {
        voters: vec![Member::new(node, 1)],
        ..Membership::default()
    };
    Record::Born(Box::new(Base {
        place: Base::BIRTH,
        membership,
    }))
}

fn entries(count: u64, bytes: usize) -> Record {
    let payload = Bytes::from(vec![7; bytes]);
    let entry = |index| Entry {
        place: Place { term: 9, index },
        payload: Payload::Commands(payload.clone()),
    };
    Record::Entries((2..2 + count).map(entry).collect())
}

fn state(term: u64) -> Record {
    Record::HardState(HardState {
        term,
        vote: None,
        commit: 2,
        ..HardState::default()
    })
}

fn batch(mark: u64, records: Vec<(GroupId, Record)>) -> Batch {
    Batch {
        mark: Mark(mark),
        sync: Sync::Now,
        snapshots: Vec::new(),
        records,
    }
}

/// Writes `births` and then `large`, and loses power. Returns the disk after that.
fn write(births: &Batch, large: &Batch) -> SimDisk {
    let disk = SimDisk::new(3);
    let opened = open(disk.clone(), Options::default()).unwrap();
    let (mut log, snapshots) = (opened.log, opened.snapshots);
    let mut items = tenure_log::Batch::new();
    let mut written = Written::default();
    written
        .append(&mut log, &snapshots, &mut items, births)
        .unwrap();
    written.sync(&mut log).unwrap();
    let mut written = Written::default();
    written
        .gather(&mut log, &snapshots, &mut items, large)
        .unwrap();
    log.append(&mut items).unwrap();
    let synced = written.sync(&mut log).unwrap();
    assert_eq!(synced.mark(), Some(large.mark));
    drop((log, snapshots));
    disk.crash(&mut || false)
}

/// Ninety groups with a megabyte each are more than the 64 MiB of a record.
#[test]
fn a_batch_that_is_longer_than_a_record_is_written() {
    let groups = || (0..90).map(GroupId);
    let births = batch(1, groups().map(|group| (group, born())).collect());
    let large = |group| [(group, entries(1, MIB)), (group, state(9))];
    let large = batch(2, groups().flat_map(large).collect());
    let disk = write(&births, &large);
    let opened = open(disk, Options::default()).unwrap();
    assert!(opened.recovered.mark.0 > 2, "it took several records");
    let recovery = replay(opened.recovered, &opened.snapshots).unwrap();
    for group in groups() {
        assert_eq!(recovery.last(group).unwrap().index, 2, "{group}");
    }
}
