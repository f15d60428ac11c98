//! Format compatibility: logs of released versions stay readable, and this version writes the
//! documented format.
//!
//! `compat/v1` holds the files of a small log as release 0.1.0 wrote it. `compat/v1-end` is the
//! current format: with the end marker, the header extension and trailing zeros after the last
//! record, all of which release 0.1.0 ignores. If the second test fails, the format has changed.
//! Raise the version in `record.rs` unless earlier releases can read the new format, keep the old
//! files readable, and add the new ones with `TENURE_BLESS=1 cargo test -p tenure-log --test
//! compat`.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod common;

use std::path::PathBuf;

use common::{Model, TINY, Workload, append, check_snapshots, names};
use tenure_log::{SimDisk, open};

const LOAD: Workload = Workload {
    seed: 26,
    groups: 3,
    payload: 120,
};
const BATCHES: u64 = 60;

/// The current format.
const NOW: &str = "v1-end";

fn directory(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/compat")
        .join(name)
}

/// Returns the disk after the workload, and its expected content.
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
    for kept in ["v1", NOW] {
        let disk = SimDisk::new(1);
        for entry in directory(kept).read_dir().unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            disk.put(&name, std::fs::read(entry.path()).unwrap());
        }
        assert!(names(&disk, "log").len() > 1 && !names(&disk, "snapshot").is_empty());
        let opened = open(disk, TINY).unwrap();
        assert_eq!(Model::of(&opened.recovered), written_now().1, "{kept}");
        assert_eq!(opened.recovered.cut, None, "{kept}");
        check_snapshots(&opened);
    }
}

#[test]
fn the_same_batches_still_give_the_same_bytes() {
    let (disk, _) = written_now();
    if std::env::var_os("TENURE_BLESS").is_some() {
        std::fs::create_dir_all(directory(NOW)).unwrap();
        for name in names(&disk, "") {
            std::fs::write(directory(NOW).join(&name), disk.bytes(&name).unwrap()).unwrap();
        }
    }
    for name in names(&disk, "") {
        let kept = std::fs::read(directory(NOW).join(&name)).unwrap_or_default();
        assert!(disk.bytes(&name).unwrap() == kept, "{name} is not as kept");
    }
    assert_eq!(
        directory(NOW).read_dir().unwrap().count(),
        names(&disk, "").len()
    );
}
