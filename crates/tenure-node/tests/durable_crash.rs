//! What was reported durable survives the loss of power, at every operation of the disk.

#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use tenure_log::{FileLog, Options, SimDisk, Snapshots, open};
use tenure_node::durable::{WriteError, WrittenBatches, replay, save};
use tenure_node::{
    Base, Entry, GroupId, HardState, LogPosition, LogWrite, Mark, Membership, NodeId, Payload,
    ReplicaId, Snapshot, SyncMode, WriteBatch,
};

const FILES: Options = Options {
    first_file: 16 << 10,
    file: 32 << 10,
    spares: 1,
};
const GROUP: GroupId = GroupId(3);

fn base(index: u64) -> Base {
    let node = NodeId::new(1).unwrap();
    Base {
        place: LogPosition { term: 1, index },
        membership: Membership {
            voters: vec![ReplicaId::new(node, 1)],
            ..Membership::default()
        },
    }
}

/// The batches of a small node: it is born, then writes an entry each time, and cuts its log once.
/// Each ends with a hard state whose term is the batch's number.
fn batches() -> Vec<WriteBatch> {
    let mut last = 1;
    let mut record = |number| match number {
        1 => LogWrite::Born(Box::new(base(1))),
        8 => LogWrite::Cut(Box::new(base(5))),
        _ => {
            last += 1;
            LogWrite::Entries(vec![Entry {
                place: LogPosition {
                    term: 1,
                    index: last,
                },
                payload: Payload::Commands(Bytes::from(vec![7; 700])),
            }])
        }
    };
    let batch = |number| WriteBatch {
        mark: Mark(number),
        sync: SyncMode::Now,
        snapshots: Vec::new(),
        records: vec![
            (GROUP, record(number)),
            (GROUP, LogWrite::HardState(state(number))),
        ],
    };
    (1..=12).map(batch).collect()
}

fn state(number: u64) -> HardState {
    HardState {
        term: number,
        ..HardState::default()
    }
}

/// How a driver waits for its disk.
#[derive(Clone, Copy, Debug)]
enum WaitPolicy {
    AtOnce,
    Later,
}

/// Writes until the power fails; returns the last mark that was reported.
fn write_all(
    log: &mut FileLog<SimDisk>,
    snapshots: &Snapshots<SimDisk>,
    waits: WaitPolicy,
    reported: &mut Option<Mark>,
) -> Result<(), WriteError> {
    let mut items = tenure_log::Batch::new();
    for batch in batches() {
        if batch.mark == Mark(8) {
            let state = Snapshot {
                group: GROUP,
                index: 5,
                data: Bytes::from_static(b"the state up to five"),
            };
            save(snapshots, &state)?;
        }
        let mut written = WrittenBatches::default();
        written.append(log, snapshots, &mut items, &batch)?;
        let synced = match waits {
            WaitPolicy::AtOnce => written.sync(log)?,
            WaitPolicy::Later => written.begin(log)?.finish(log)?,
        };
        *reported = synced.mark();
        synced.clean(snapshots)?;
        if let Some(job) = log.spare_wanted() {
            log.spare_done(job.run());
        }
    }
    Ok(())
}

#[test]
fn a_reported_batch_survives_the_loss_of_everything_that_was_not_synced() {
    for waits in [WaitPolicy::AtOnce, WaitPolicy::Later] {
        let mut seen = Vec::new();
        for operation in 0.. {
            let disk = SimDisk::new(7);
            let opened = open(disk.clone(), FILES).unwrap();
            let (mut log, snapshots) = (opened.log, opened.snapshots);
            disk.power_ends_at(disk.operations() + operation);
            let mut reported = None;
            let whole = write_all(&mut log, &snapshots, waits, &mut reported).is_ok();
            drop((log, snapshots));
            let disk = disk.crash(&mut || false);
            let opened = open(disk, FILES).unwrap();
            let held = opened.recovered.groups.get(&u64::from(GROUP.0));
            let held = held.map(|held| held.state.clone()).unwrap_or_default();
            replay(opened.recovered, &opened.snapshots).unwrap();
            let mut numbers = 1..=12;
            let durable = numbers.find(|number| state(*number).to_bytes() == held);
            let durable = durable.map(Mark);
            assert!(
                durable >= reported,
                "power ended at {operation}: {reported:?} was reported, {durable:?} is there"
            );
            seen.push(reported);
            if whole {
                break;
            }
        }
        assert_eq!(seen.last(), Some(&Some(Mark(12))), "{waits:?}");
        assert!(seen.len() > 30, "{} crashes", seen.len());
    }
}
