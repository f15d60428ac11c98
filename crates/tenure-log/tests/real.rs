//! The real disk: its lock, its file modes, and that it follows no symbolic links. `kill.rs` tests
//! that its data survives.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::{Model, TINY, Workload, append, check_snapshots};
use tenure_log::{Batch, Log, OpenError, RealDisk, open};

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

/// The same log as on the simulated disk, over several files and restarts.
#[test]
fn a_log_on_a_real_disk_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a/new/directory");
    let load = Workload {
        seed: 5,
        groups: 3,
        payload: 300,
    };
    let mut model = Model::default();
    for incarnation in 1..=5 {
        let mut opened = open(RealDisk::open(&path).unwrap(), TINY).unwrap();
        assert_eq!(Model::of(&opened.recovered), model);
        check_snapshots(&opened);
        while model.batches < 20 * incarnation {
            let ops = model.next_ops(&load);
            append(&mut opened.log, &opened.snapshots, &ops).unwrap();
            model.apply(&ops);
        }
        opened.log.sync().unwrap();
        if incarnation % 2 == 0 {
            opened.log.close().unwrap();
        }
    }
}

/// §2: one process at a time, by `flock`.
#[test]
fn a_second_opening_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(RealDisk::open(directory.path()).unwrap(), TINY).unwrap();
    let error = open(RealDisk::open(directory.path()).unwrap(), TINY)
        .map(drop)
        .unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }));
    let place = directory.path().display().to_string();
    assert_eq!(
        error.to_string(),
        format!("another process uses the data directory {place}")
    );
    drop(opened);
    open(RealDisk::open(directory.path()).unwrap(), TINY).unwrap();
}

/// The files are readable by their owner only.
#[test]
fn files_belong_to_their_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let mut opened = open(RealDisk::open(&path).unwrap(), TINY).unwrap();
    let mut batch = Batch::new();
    batch.state(1, b"vote").unwrap();
    opened.log.append(&mut batch).unwrap();
    assert_eq!(mode(&path), 0o700);
    let mut files = 0;
    for entry in path.read_dir().unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
        files += 1;
    }
    assert_eq!(files, 3, "the lock, a log file and the end marker");
}

/// A symbolic link in the place of a file is refused; its target is not changed.
#[test]
fn links_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let victim = directory.path().join("victim");
    std::fs::write(&victim, b"precious").unwrap();
    for name in [
        "lock",
        "log-00000000000000000001",
        "spare-00000000000000000001",
    ] {
        let path = directory.path().join(format!("data of {name}"));
        std::fs::create_dir(&path).unwrap();
        symlink(&victim, path.join(name)).unwrap();
        let error = open(RealDisk::open(&path).unwrap(), TINY)
            .map(drop)
            .unwrap_err();
        assert!(matches!(error, OpenError::Io { .. }), "{name}: {error}");
    }
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}
