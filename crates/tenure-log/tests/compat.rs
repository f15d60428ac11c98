//! Logs of released versions stay readable, and this version still writes what it says it writes.
//!
//! `compat/v1` holds the files of a small log of format version 1. If the second test fails, the
//! format has changed: raise the version in `record.rs`, keep `compat/v1` readable, and add the
//! files of the new version with `TENURE_BLESS=1 cargo test -p tenure-log --test compat`.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod common;

use std::path::PathBuf;

use common::{Load, Model, TINY, append, check_snapshots, names};
use tenure_log::{SimDisk, open};

const LOAD: Load = Load {
    seed: 26,
    groups: 3,
    payload: 120,
};
const BATCHES: u64 = 60;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/compat/v1")
}

/// The disk after the workload, and what it holds.
fn written_now() -> (SimDisk, Model) {
    let disk = SimDisk::new(LOAD.seed);
    let mut opened = open(disk.clone(), TINY).unwrap();
    let mut model = Model::default();
    while model.batches < BATCHES {
        let ops = model.next_ops(&LOAD);
        append(&mut opened.log, &opened.snapshots, &ops).unwrap();
        model.apply(&ops);
    }
    opened.log.close().unwrap();
    drop(opened.snapshots);
    drop(open(disk.clone(), TINY).unwrap());
    (disk, model)
}

#[test]
fn a_log_of_version_1_is_read() {
    let disk = SimDisk::new(1);
    for entry in directory().read_dir().unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        disk.put(&name, std::fs::read(entry.path()).unwrap());
    }
    assert!(names(&disk, "log").len() > 1 && !names(&disk, "snapshot").is_empty());
    let opened = open(disk, TINY).unwrap();
    assert_eq!(Model::of(&opened.recovered), written_now().1);
    check_snapshots(&opened);
}

#[test]
fn the_same_batches_still_give_the_same_bytes() {
    let (disk, _) = written_now();
    if std::env::var_os("TENURE_BLESS").is_some() {
        std::fs::create_dir_all(directory()).unwrap();
        for name in names(&disk, "") {
            std::fs::write(directory().join(&name), disk.bytes(&name).unwrap()).unwrap();
        }
    }
    for name in names(&disk, "") {
        let kept = std::fs::read(directory().join(&name)).unwrap_or_default();
        assert!(disk.bytes(&name).unwrap() == kept, "{name} is not as kept");
    }
    assert_eq!(
        directory().read_dir().unwrap().count(),
        names(&disk, "").len()
    );
}
