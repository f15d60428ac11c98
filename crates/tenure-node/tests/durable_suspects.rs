//! A node that may have lost what it confirmed knows it, also after the next restart.

#![allow(clippy::unwrap_used, reason = "tests")]

use tenure_log::{Log as _, Options, SimDisk, open};
use tenure_node::GroupId;
use tenure_node::durable::{SUSPECTS, suspects, suspects_value};

const NEWEST: &str = "log-00000000000000000001";

#[test]
fn the_suspect_groups_are_remembered_until_they_are_struck_off() {
    let disk = SimDisk::new(3);
    let mut log = open(disk.clone(), Options::default()).unwrap().log;
    let mut batch = tenure_log::Batch::new();
    for (group, index) in [(2, 1), (5, 1), (5, 2)] {
        batch.entry(group, index, 1, b"a command").unwrap();
        log.append(&mut batch).unwrap();
    }
    log.sync().unwrap();
    drop(log);
    // One bit of the last batch, on a machine that runs on.
    let bytes = disk.bytes(NEWEST).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    disk.flip_bit(NEWEST, last, 0);

    let opened = open(disk.kill(), Options::default()).unwrap();
    let all = [GroupId(2), GroupId(5)];
    assert_eq!(suspects(&opened.recovered), all);
    let mut log = opened.log;
    let note = |log: &mut tenure_log::FileLog<SimDisk>, groups: &[GroupId]| {
        let mut batch = tenure_log::Batch::new();
        let value = suspects_value(groups.iter().copied());
        batch.node(SUSPECTS, &value).unwrap();
        log.append(&mut batch).unwrap();
        log.sync().unwrap();
    };
    note(&mut log, &all);
    drop((log, opened.snapshots));

    let disk = disk.kill();
    let opened = open(disk.clone(), Options::default()).unwrap();
    assert_eq!(opened.recovered.cut, None);
    assert_eq!(suspects(&opened.recovered), all);
    let mut log = opened.log;
    note(&mut log, &[GroupId(5)]);
    drop((log, opened.snapshots));
    let opened = open(disk.kill(), Options::default()).unwrap();
    assert_eq!(suspects(&opened.recovered), [GroupId(5)]);
}
