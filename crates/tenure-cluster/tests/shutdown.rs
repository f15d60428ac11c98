//! What a node leaves on a real disk, and how the next start handles damage to it.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::{STEP_TIMEOUT, copy};
use tenure_cluster::{RunningNode, StartError};
use tenure_log::OpenError;

fn start(data: &Path) -> Result<RunningNode, StartError> {
    tenure_cluster::start(support::lone(data, 3))
}

/// Returns the records of a log file: kind and offset.
fn records(bytes: &[u8]) -> Vec<(u8, usize)> {
    let mut records = Vec::new();
    let mut at = 4096;
    while at + 32 <= bytes.len() && bytes[at + 8] == 1 {
        records.push((bytes[at + 9], at));
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        at += (32 + length).next_multiple_of(8);
    }
    records
}

fn newest(db: &Path) -> PathBuf {
    let names = db.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let is_log = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("log-")
    };
    names.filter(is_log).max().unwrap()
}

const BATCH: u8 = 1;
const CLOSE: u8 = 3;

/// Flips one bit of the last batch.
fn flip(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let batches = records(&bytes)
        .into_iter()
        .filter(|(kind, _)| *kind == BATCH);
    let (_, last) = batches.max().unwrap();
    bytes[last + 33] ^= 4;
    std::fs::write(file, bytes).unwrap();
}

fn assert_refused(data: &Path) {
    match start(data).map(RunningNode::stop) {
        Err(error @ StartError::Log { .. }) => {
            let said = error.to_string();
            assert!(said.contains("tenure cluster rejoin"), "{said}");
            assert!(said.contains("tenure cluster restore"), "{said}");
        }
        Err(other) => panic!("{other}"),
        Ok(()) => panic!("it started with a part of its log"),
    }
}

#[test]
fn a_flipped_bit_in_the_last_batch_after_an_orderly_stop_is_refused() {
    let data = tempfile::tempdir().unwrap();
    start(data.path()).unwrap().stop();
    let newest = newest(&data.path().join("db"));
    let records = records(&std::fs::read(&newest).unwrap());
    assert_eq!(records.last().unwrap().0, CLOSE, "{records:?}");
    flip(&newest);
    assert_refused(data.path());
}

/// The state after `kill -9` of an idle node: a copy of its files, made while it runs.
#[test]
fn an_idle_node_confirms_its_end_once() {
    let data = tempfile::tempdir().unwrap();
    let node = start(data.path()).unwrap();
    let db = data.path().join("db");
    let closes = || {
        let records = records(&std::fs::read(newest(&db)).unwrap());
        records.iter().filter(|(kind, _)| *kind == CLOSE).count()
    };
    let end = Instant::now() + STEP_TIMEOUT;
    while closes() == 0 {
        assert!(Instant::now() < end, "no close record");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The marker follows the close record. It is complete when it names the end of the last batch.
    let marker = |slot: usize| {
        let bytes = std::fs::read(db.join("end")).unwrap();
        u64::from_le_bytes(bytes[slot + 40..slot + 48].try_into().unwrap()) as usize
    };
    let records = records(&std::fs::read(newest(&db)).unwrap());
    let close = records.iter().find(|(kind, _)| *kind == CLOSE).unwrap().1;
    while marker(0).max(marker(4096)) < close {
        assert!(Instant::now() < end, "no end marker");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = tempfile::tempdir().unwrap();
    copy(&db, &killed.path().join("db"));
    flip(&newest(&killed.path().join("db")));
    assert_refused(killed.path());
    node.stop();
    assert_eq!(closes(), 1, "nothing was written since: {records:?}");
}

/// Damage never looks like an empty directory: no start as a new node, and no file is removed.
#[test]
fn lost_log_files_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let db = data.path().join("db");
    for _ in 0..3 {
        start(data.path()).unwrap().stop();
    }
    std::fs::write(db.join("snapshot-1-9"), b"a state").unwrap();
    let lost = tempfile::tempdir().unwrap();
    copy(&db, &lost.path().join("db"));
    std::fs::remove_file(newest(&lost.path().join("db"))).unwrap();
    assert_refused(lost.path());

    for entry in db.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("log-") || name == "end" {
            std::fs::remove_file(path).unwrap();
        }
    }
    let error = start(data.path()).map(RunningNode::stop).unwrap_err();
    assert!(
        matches!(&error, StartError::Log { source: OpenError::NoLog { found }, .. } if found == "snapshot-1-9"),
        "{error}"
    );
    assert_refused(data.path());
    assert!(db.join("snapshot-1-9").exists());
}

#[test]
fn the_directories_of_a_node_belong_to_their_owner_alone() {
    let outer = tempfile::tempdir().unwrap();
    let data = outer.path().join("var/tenure");
    start(&data).unwrap().stop();
    for made in [&data, &data.join("db")] {
        let mode = made.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "{}", made.display());
    }
}
