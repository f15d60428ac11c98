//! A replica goes and comes back: what it left is deleted, what it brings stays.

#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use tenure_log::{Options, SimDisk, open};
use tenure_node::durable::{WrittenBatches, replay};
use tenure_node::{
    Base, GroupId, HardState, LogPosition, LogWrite, Mark, Membership, NodeId, ReplicaId, Snapshot,
    SyncMode, WriteBatch,
};

const GROUP: GroupId = GroupId(3);

fn installed(index: u64) -> (Snapshot, LogWrite) {
    let member = ReplicaId::new(NodeId::new(1).unwrap(), 1);
    let snapshot = Snapshot {
        group: GROUP,
        index,
        data: Bytes::from_static(b"a state"),
    };
    let base = Base {
        place: LogPosition { term: 1, index },
        membership: Membership {
            voters: vec![member],
            ..Membership::default()
        },
    };
    (snapshot, LogWrite::Installed(Box::new(base)))
}

fn batch(number: u64, snapshots: Vec<Snapshot>, records: Vec<LogWrite>) -> WriteBatch {
    let state = LogWrite::HardState(HardState::default());
    let records = records.into_iter().chain([state]);
    WriteBatch {
        mark: Mark(number),
        sync: SyncMode::Now,
        snapshots,
        records: records.map(|record| (GROUP, record)).collect(),
    }
}

/// A stalled node may hear in one turn that its replica is removed, and get the state of the next one.
#[test]
fn a_replica_that_is_back_at_once_keeps_its_snapshot() {
    // Whether its return is in the same batch, in the same sync, or later.
    for returns in ["batch", "sync", "later"] {
        let disk = SimDisk::new(7);
        let opened = open(disk.clone(), Options::default()).unwrap();
        let (mut log, snapshots) = (opened.log, opened.snapshots);
        let (first, first_record) = installed(5);
        let (second, second_record) = installed(9);
        let begin = batch(1, vec![first], vec![first_record]);
        let turns = match returns {
            "batch" => vec![vec![batch(
                2,
                vec![second],
                vec![LogWrite::Removed, second_record],
            )]],
            _ => {
                let gone = batch(2, Vec::new(), vec![LogWrite::Removed]);
                let back = batch(3, vec![second], vec![second_record]);
                match returns {
                    "sync" => vec![vec![gone, back]],
                    _ => vec![vec![gone], vec![back]],
                }
            }
        };
        let mut items = tenure_log::Batch::new();
        for turn in [vec![begin]].iter().chain(&turns) {
            let mut written = WrittenBatches::default();
            for batch in turn {
                written
                    .gather(&mut log, &snapshots, &mut items, batch)
                    .unwrap();
            }
            use tenure_log::Log as _;
            log.append(&mut items).unwrap();
            let synced = written.sync(&mut log).unwrap();
            synced.clean(&snapshots).unwrap();
        }
        drop((log, snapshots));
        let opened =
            open(disk, Options::default()).unwrap_or_else(|why| panic!("{returns}: {why}"));
        let recovery = replay(opened.recovered, &opened.snapshots).unwrap();
        assert_eq!(recovery.last(GROUP).unwrap().index, 9, "{returns}");
    }
}
