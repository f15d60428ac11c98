//! The rules of the durable log, one test each, on the simulated disk.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod common;

use common::{Model, Op, TINY, Workload, append, lose_all, names, read_snapshot};
use tenure_log::{
    Batch, BatchNumber, Disk, FileLog, Log, LogError, Misuse, OpenError, Opened, Options, SimDisk,
    SnapshotId, open,
};

fn fresh(seed: u64) -> (SimDisk, Opened<SimDisk>) {
    let disk = SimDisk::new(seed);
    let opened = open(disk.clone(), TINY).unwrap();
    (disk, opened)
}

fn entry(log: &mut FileLog<SimDisk>, group: u64, index: u64, bytes: usize) -> BatchNumber {
    let mut batch = Batch::new();
    batch
        .entry(group, index, 1, &vec![index as u8; bytes])
        .unwrap();
    log.append(&mut batch).unwrap()
}

fn take_snapshot(opened: &mut Opened<SimDisk>, group: u64, index: u64) {
    opened
        .snapshots
        .create(SnapshotId { group, index })
        .unwrap()
        .commit()
        .unwrap();
    let mut batch = Batch::new();
    batch.snapshot_taken(group, index, 1, b"members").unwrap();
    opened.log.append(&mut batch).unwrap();
}

/// Returns what the next process would find if this one died now.
fn held(disk: &SimDisk) -> Model {
    Model::of(&open(disk.copy().kill(), TINY).unwrap().recovered)
}

/// Returns the mark of the old record at the offset of the next record, if there is one.
fn old_mark_at_the_end(bytes: &[u8]) -> Option<u64> {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (mut at, mut last) = (4096, 0);
    while at + 32 <= bytes.len() && bytes[at + 8] == 1 {
        if number(at + 16) < last {
            return Some(number(at + 16));
        }
        last = number(at + 16);
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        at += (32 + length).next_multiple_of(8);
    }
    None
}

/// Returns the end of the records of a file with trailing zeros.
fn end_of(bytes: &[u8]) -> usize {
    let mut at = 4096;
    while at + 32 <= bytes.len() && bytes[at + 8] == 1 {
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        at += (32 + length).next_multiple_of(8);
    }
    at
}

/// §2: a batch over many groups is one write and at most one sync.
#[test]
fn a_batch_of_256_groups_is_one_write_and_one_sync() {
    let disk = SimDisk::new(1);
    let mut log = open(disk.clone(), Options::default()).unwrap().log;
    let mut batch = Batch::new();
    batch.state(1, b"the first batch makes the file").unwrap();
    log.append(&mut batch).unwrap();
    log.sync().unwrap();

    let before = disk.operations();
    for group in 1..=256 {
        batch.state(group, b"term and vote").unwrap();
        batch.entry(group, 1, 1, b"command").unwrap();
    }
    log.append(&mut batch).unwrap();
    assert_eq!(disk.operations() - before, 1, "one write");
    assert_eq!(log.sync().unwrap(), BatchNumber(2));
    assert_eq!(disk.operations() - before, 2, "one sync");
    assert_eq!(log.sync().unwrap(), BatchNumber(2));
    assert_eq!(
        disk.operations() - before,
        2,
        "nothing new, nothing to sync"
    );
    assert_eq!(
        log.append(&mut batch).unwrap(),
        BatchNumber(2),
        "an empty batch is none"
    );
}

/// §2: a sync covers what was appended before it began, and nothing else.
#[test]
fn a_sync_confirms_only_what_came_before_it() {
    let (disk, mut opened) = fresh(2);
    let log = &mut opened.log;
    entry(log, 1, 1, 10);
    let ticket = log.begin_sync().unwrap();
    entry(log, 1, 2, 10);
    assert_eq!(log.finish_sync(ticket).unwrap(), BatchNumber(1));
    assert_eq!(
        (log.appended(), log.durable()),
        (BatchNumber(2), BatchNumber(1))
    );
    assert_eq!(held(&lose_all(&disk)).batches, 1);
}

/// A ticket of an earlier file is covered by the rotation.
#[test]
fn a_sync_may_span_a_rotation() {
    let (disk, mut opened) = fresh(3);
    let log = &mut opened.log;
    let mark = entry(log, 1, 1, 1000);
    let ticket = log.begin_sync().unwrap();
    for index in 2..6 {
        entry(log, 1, index, 1000);
    }
    assert!(names(&disk, "log").len() > 1);
    assert!(log.finish_sync(ticket).unwrap() >= mark);
    let durable = log.durable();
    assert!(held(&lose_all(&disk)).batches >= durable.0);
}

/// §2: a failed sync is final. The next one would succeed without effect, so it is never tried; a
/// restart reads what the disk has, not what the page cache shows.
#[test]
fn a_failed_sync_ends_the_log() {
    for seed in 0..50 {
        let (disk, mut opened) = fresh(seed);
        let log = &mut opened.log;
        for index in 1..=3 {
            entry(log, 1, index, 600);
        }
        assert_eq!(log.sync().unwrap(), BatchNumber(3));
        for index in 4..=5 {
            entry(log, 1, index, 200);
        }
        disk.fail_sync_after(0);
        assert!(matches!(
            log.sync(),
            Err(LogError::Io { action: "sync", .. })
        ));
        let before = disk.operations();
        let error = log.sync().unwrap_err();
        assert!(matches!(error, LogError::Poisoned { .. }), "{error}");
        assert!(
            error.to_string().contains("a simulated sync error"),
            "{error}"
        );
        let mut batch = Batch::new();
        batch.state(1, b"x").unwrap();
        assert!(matches!(
            log.append(&mut batch),
            Err(LogError::Poisoned { .. })
        ));
        assert!(matches!(log.begin_sync(), Err(LogError::Poisoned { .. })));
        assert_eq!(disk.operations(), before, "nothing is tried again");
        assert_eq!(log.durable(), BatchNumber(3));

        let restarted = held(&disk.kill());
        assert!((3..=5).contains(&restarted.batches));
        assert_eq!(
            held(&lose_all(&disk)),
            restarted,
            "seed {seed}: it rests on the disk alone"
        );
    }
}

/// §2: a failed write is final, and half of a batch is not a batch.
#[test]
fn a_failed_write_ends_the_log() {
    let (disk, mut opened) = fresh(4);
    entry(&mut opened.log, 1, 1, 100);
    opened.log.sync().unwrap();
    disk.fail_write_after(0);
    let mut batch = Batch::new();
    batch.entry(1, 2, 1, &[7; 500]).unwrap();
    assert!(matches!(
        opened.log.append(&mut batch),
        Err(LogError::Io {
            action: "write to",
            ..
        })
    ));
    assert!(matches!(opened.log.sync(), Err(LogError::Poisoned { .. })));
    assert_eq!(held(&disk.kill()).batches, 1);
}

/// A full disk ends the log with a hint what to do. Nothing confirmed is lost, and with free space
/// the log continues.
#[test]
fn a_full_disk_ends_the_log_and_loses_nothing() {
    let (disk, mut opened) = fresh(5);
    entry(&mut opened.log, 1, 1, 500);
    opened.log.sync().unwrap();
    disk.set_capacity(Some(disk.used()));

    let mut confirmed = BatchNumber(1);
    let mut warned = false;
    let error = loop {
        let mut batch = Batch::new();
        batch.entry(1, confirmed.0 + 1, 1, &[1; 400]).unwrap();
        match opened.log.append(&mut batch) {
            Ok(_) => confirmed = opened.log.sync().unwrap(),
            Err(error) => break error,
        }
        if let Some(job) = opened.log.spare_wanted() {
            let done = job.run();
            warned |= done
                .error()
                .is_some_and(|e| e.kind() == std::io::ErrorKind::StorageFull);
            opened.log.spare_done(done);
        }
    };
    assert!(
        warned,
        "the spare that could not be made is an early warning"
    );
    assert!(
        error.hint().starts_with("free space"),
        "{error}: {}",
        error.hint()
    );
    assert_eq!(
        names(&disk, "spare"),
        [""; 0],
        "no half-made file takes up room"
    );
    drop(opened);

    disk.set_capacity(None);
    let disk = lose_all(&disk);
    let mut opened = open(disk.clone(), TINY).unwrap();
    assert_eq!(opened.recovered.mark, confirmed);
    entry(&mut opened.log, 1, confirmed.0 + 1, 400);
    opened.log.sync().unwrap();
    assert_eq!(held(&lose_all(&disk)).batches, confirmed.0 + 1);
}

/// §2: files are reused, and an old record in a reused file is never read as a new one, even
/// exactly at the offset of the next record.
#[test]
fn old_records_in_a_reused_file_mean_nothing() {
    let (disk, mut opened) = fresh(6);
    let mut met_old_records = 0;
    for index in 1..100 {
        // Batches of one length, so that old and new records have the same offsets.
        opened
            .snapshots
            .create(SnapshotId { group: 1, index })
            .unwrap()
            .commit()
            .unwrap();
        let mut batch = Batch::new();
        batch.entry(1, index, 1, &[index as u8; 200]).unwrap();
        batch.snapshot_taken(1, index, 1, b"members").unwrap();
        let before = names(&disk, "log").pop().unwrap();
        let before = (disk.bytes(&before).unwrap(), before);
        opened.log.append(&mut batch).unwrap();
        opened.log.sync().unwrap();

        assert_eq!(held(&disk).batches, index);
        let newest = names(&disk, "log").pop().unwrap();
        let mut bytes = disk.bytes(&newest).unwrap();
        if newest == before.1 {
            // As if the trailing zeros had not reached the disk.
            let end = end_of(&bytes);
            let zeros = end..bytes.len().min(end + 32);
            bytes[zeros.clone()].copy_from_slice(&before.0[zeros]);
            let old = old_mark_at_the_end(&bytes);
            met_old_records += u32::from(old.is_some());
            let disk = disk.copy();
            disk.put(&newest, bytes);
            assert_eq!(held(&disk).batches, index);
        }
    }
    let newest = names(&disk, "log").pop().unwrap();
    assert!(
        newest.as_str() > "log-00000000000000000005",
        "it rotated: {newest}"
    );
    assert!(names(&disk, "log").len() <= 2, "and freed");
    assert!(
        disk.used() < 5 * TINY.file,
        "the files are the same few: {}",
        disk.used()
    );
    assert!(
        met_old_records > 20,
        "an old record was next {met_old_records} times"
    );
}

/// §2: the groups that hold back the oldest file are named, and a snapshot of each frees it. Their
/// hard state is repeated, so that freeing a file forgets no vote.
#[test]
fn snapshots_free_the_oldest_file_and_no_vote_is_forgotten() {
    let (disk, mut opened) = fresh(7);
    let mut batch = Batch::new();
    batch.state(1, b"voted for 3 in term 9").unwrap();
    batch.state(2, b"voted for 1 in term 4").unwrap();
    batch.node(b"identity", b"node 17").unwrap();
    batch.entry(2, 1, 4, b"holds back the first file").unwrap();
    opened.log.append(&mut batch).unwrap();
    for index in 1..30 {
        entry(&mut opened.log, 3, index, 500);
        take_snapshot(&mut opened, 3, index);
    }
    let usage = opened.log.usage();
    assert_eq!(usage.held_back_by, [2]);
    assert!(
        usage.files > 3 && usage.bytes > 3 * TINY.first_file,
        "{usage:?}"
    );

    take_snapshot(&mut opened, 2, 1);
    assert_eq!(
        opened.log.usage().held_back_by,
        [0; 0],
        "no other voter can repair it"
    );
    for index in 30..38 {
        entry(&mut opened.log, 3, index, 500);
        take_snapshot(&mut opened, 3, index);
    }
    opened.log.sync().unwrap();
    assert!(opened.log.usage().files <= 2, "{:?}", opened.log.usage());

    let model = held(&lose_all(&disk));
    assert_eq!(model.groups[&1].state, b"voted for 3 in term 9");
    assert_eq!(model.groups[&2].state, b"voted for 1 in term 4");
    assert_eq!(model.groups[&2].snapshot(), Some(1));
    assert_eq!(model.groups[&2].base.as_ref().unwrap().note, b"members");
    assert_eq!(model.node[&b"identity"[..]], b"node 17");
}

/// A removed group is gone with all its data, holds back no file, and may be created again.
#[test]
fn a_removed_group_is_gone() {
    let (disk, mut opened) = fresh(8);
    let mut batch = Batch::new();
    batch.state(1, b"vote").unwrap();
    batch.entry(1, 1, 1, b"one").unwrap();
    batch.entry(1, 2, 1, b"two").unwrap();
    opened.log.append(&mut batch).unwrap();
    batch.remove(1).unwrap();
    opened.log.append(&mut batch).unwrap();
    opened.log.sync().unwrap();
    assert_eq!(held(&disk).groups.len(), 0);

    batch.entry(1, 1, 7, b"a new life").unwrap();
    opened.log.append(&mut batch).unwrap();
    opened.log.sync().unwrap();
    let model = held(&disk);
    assert_eq!(model.groups[&1].state, b"", "nothing of the old life");
    assert_eq!(model.groups[&1].entries.len(), 1);
    assert_eq!(model.groups[&1].entries[&1], (7, b"a new life".to_vec()));
}

/// §1.3: an entry at an existing index replaces it and all that follow; an installed snapshot
/// replaces everything, including later entries.
#[test]
fn later_entries_and_installed_snapshots_replace_earlier_ones() {
    let (disk, mut opened) = fresh(9);
    for index in 1..=5 {
        entry(&mut opened.log, 1, index, 10);
    }
    let mut batch = Batch::new();
    batch.entry(1, 3, 2, b"new").unwrap();
    opened.log.append(&mut batch).unwrap();
    opened.log.sync().unwrap();
    let entries = held(&disk).groups[&1].entries.clone();
    assert_eq!(entries.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(entries[&3], (2, b"new".to_vec()));

    opened
        .snapshots
        .create(SnapshotId { group: 1, index: 2 })
        .unwrap()
        .commit()
        .unwrap();
    batch.snapshot_installed(1, 2, 3, b"others").unwrap();
    opened.log.append(&mut batch).unwrap();
    opened.log.sync().unwrap();
    let model = held(&disk);
    let base = model.groups[&1].base.as_ref().unwrap();
    assert_eq!(
        (base.index, base.term, &base.note[..]),
        (2, 3, &b"others"[..])
    );
    assert_eq!(
        model.groups[&1].entries.len(),
        0,
        "entry 3 belonged to another history"
    );
    batch.entry(1, 3, 3, b"goes on behind it").unwrap();
    opened.log.append(&mut batch).unwrap();
}

/// A batch that contradicts the log is refused before anything is written.
#[test]
fn a_gap_in_a_group_is_refused_before_it_is_written() {
    let (disk, mut opened) = fresh(10);
    entry(&mut opened.log, 1, 1, 10);
    opened.log.sync().unwrap();
    let before = disk.operations();
    let mut batch = Batch::new();
    batch.entry(1, 3, 1, b"where is 2?").unwrap();
    let error = opened.log.append(&mut batch).unwrap_err();
    assert!(matches!(
        error,
        LogError::Misuse(Misuse::Entry {
            group: 1,
            index: 3,
            last: 1,
            ..
        })
    ));
    assert_eq!(disk.operations(), before);
    assert!(matches!(opened.log.sync(), Err(LogError::Poisoned { .. })));
    assert_eq!(held(&disk).batches, 1);
}

/// A batch that is larger than a file gets a file that is large enough.
#[test]
fn a_batch_may_be_bigger_than_a_file() {
    let (disk, mut opened) = fresh(11);
    entry(&mut opened.log, 1, 1, 10);
    entry(&mut opened.log, 1, 2, 50_000);
    entry(&mut opened.log, 1, 3, 10);
    opened.log.sync().unwrap();
    let model = held(&lose_all(&disk));
    assert_eq!(model.groups[&1].entries[&2].1.len(), 50_000);
    assert_eq!(model.batches, 3);
}

/// §2: one process at a time; the lock ends with the process.
#[test]
fn a_second_process_is_kept_out() {
    let (disk, opened) = fresh(12);
    let error = open(disk.clone(), TINY).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    let Opened { log, snapshots, .. } = opened;
    drop(log);
    assert!(
        open(disk.clone(), TINY).is_err(),
        "snapshots may still be written"
    );
    drop(snapshots);
    drop(open(disk.clone(), TINY).unwrap());
    let _lock = disk.lock().unwrap().unwrap();
    assert!(
        open(disk.kill(), TINY).is_ok(),
        "the death of a process ends its lock"
    );
}

/// A new log has a small file, so that the directory is never without a log, and the end marker.
#[test]
fn a_start_on_an_empty_directory_is_cheap() {
    let disk = SimDisk::new(13);
    let mut opened = open(disk.clone(), Options::default()).unwrap();
    entry(&mut opened.log, 1, 1, 10);
    assert_eq!(names(&disk, ""), ["end", "log-00000000000000000001"]);
    let marker = disk.bytes("end").unwrap().len() as u64;
    assert_eq!(disk.used(), Options::default().first_file + marker);
    assert!(marker < 5000 && disk.operations() < 15);
}

/// §2: with a spare created ahead of need, a rotation does not fill a file.
#[test]
fn a_rotation_uses_the_spare() {
    let (disk, mut opened) = fresh(14);
    let mut index = 0;
    let job = loop {
        index += 1;
        entry(&mut opened.log, 1, index, 200);
        if let Some(job) = opened.log.spare_wanted() {
            break job;
        }
    };
    assert!(opened.log.spare_wanted().is_none(), "one at a time");
    opened.log.spare_done(job.run());
    assert_eq!(names(&disk, "spare").len(), 1);
    let used = disk.used();
    while names(&disk, "log").len() == 1 {
        index += 1;
        entry(&mut opened.log, 1, index, 200);
    }
    assert_eq!(disk.used(), used, "no new file was filled");
    assert_eq!(names(&disk, "spare").len(), 0);
}

/// Leftovers of crashes are removed at the next start; other files stay.
#[test]
fn leftovers_are_cleared_away_and_nothing_else() {
    let (disk, mut opened) = fresh(15);
    entry(&mut opened.log, 1, 1, 10);
    take_snapshot(&mut opened, 1, 1);
    opened.log.sync().unwrap();
    disk.put("snapshot-1-9", b"committed, but its mark was lost".to_vec());
    disk.put("snapshot-1-10.partial", b"not even committed".to_vec());
    disk.put("spare-00000000000000000099", b"too small".to_vec());
    disk.put("notes.txt", b"not ours".to_vec());
    disk.put("log-old", b"not ours either".to_vec());
    let disk = disk.kill();
    let opened = open(disk.clone(), TINY).unwrap();
    let id = SnapshotId { group: 1, index: 1 };
    assert_eq!(read_snapshot(&opened.snapshots, id).unwrap(), b"");
    let expected = [
        "end",
        "log-00000000000000000001",
        "log-old",
        "notes.txt",
        "snapshot-1-1",
    ];
    assert_eq!(names(&disk, ""), expected);
}

/// A wiped disk is an empty log: the node has to notice that its identity is gone.
#[test]
fn a_wiped_disk_holds_nothing() {
    let (disk, mut opened) = fresh(16);
    let mut batch = Batch::new();
    batch.node(b"identity", b"node 17").unwrap();
    opened.log.append(&mut batch).unwrap();
    opened.log.sync().unwrap();
    let model = held(&disk.wipe());
    assert_eq!(model, Model::default());
}

/// The same calls give the same bytes, so simulator runs are reproducible.
#[test]
fn the_simulated_disk_is_deterministic() {
    let image = |seed| {
        let load = Workload {
            seed,
            groups: 3,
            payload: 400,
        };
        let (disk, mut opened) = fresh(seed);
        let mut model = Model::default();
        for _ in 0..40 {
            let ops: Vec<Op> = model.next_ops(&load);
            append(&mut opened.log, &opened.snapshots, &ops).unwrap();
            model.apply(&ops);
        }
        let all = names(&disk, "");
        all.into_iter()
            .map(|name| (disk.bytes(&name), name))
            .collect::<Vec<_>>()
    };
    assert_eq!(image(17), image(17));
    assert_ne!(image(17), image(18));
}
