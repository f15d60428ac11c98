//! Damaged files: what recovery refuses, what it tolerates, and what it reports.
//!
//! §2: a bad record is tolerated only as the tail of the newest file, and only if nothing proves
//! that it was durable. Everything else is refused with the file, the offset and the groups.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod common;

use common::{Model, TINY, Workload, append, names};
use tenure_log::{Batch, Log, OpenError, SimDisk, open};

/// Creates a log of several files in which only the last batch was not synced.
fn image(load: &Workload, batches: u64) -> (SimDisk, Model, Model) {
    let disk = SimDisk::new(load.seed);
    let mut opened = open(disk.clone(), TINY).unwrap();
    let mut model = Model::default();
    let mut synced = Model::default();
    while model.batches < batches {
        opened.log.sync().unwrap();
        synced = model.clone();
        let ops = model.next_ops(load);
        append(&mut opened.log, &opened.snapshots, &ops).unwrap();
        model.apply(&ops);
    }
    drop(opened);
    (disk.crash(&mut || true), synced, model)
}

fn refusal(disk: &SimDisk) -> OpenError {
    let disk = disk.kill();
    let image = || {
        names(&disk, "")
            .into_iter()
            .map(|name| disk.bytes(&name))
            .collect::<Vec<_>>()
    };
    let before = image();
    let error = open(disk.clone(), TINY)
        .map(drop)
        .expect_err("this must be refused");
    assert_eq!(before, image(), "a refusal changes nothing");
    assert!(!error.hint().is_empty());
    error
}

/// Overwrites bytes of a file, durable at once.
fn patch(disk: &SimDisk, name: &str, offset: usize, bytes: &[u8]) {
    let mut all = disk.bytes(name).unwrap();
    all[offset..offset + bytes.len()].copy_from_slice(bytes);
    disk.put(name, all);
}

/// Every single flipped bit is noticed or changes nothing that was confirmed. One unconfirmed batch
/// follows the last sync; a flip may lose that one.
#[test]
fn a_flipped_bit_anywhere_is_noticed_or_harmless() {
    let load = Workload {
        seed: 21,
        groups: 3,
        payload: 200,
    };
    let (disk, synced, model) = image(&load, 60);
    let files = names(&disk, "log");
    assert!(files.len() >= 2, "{files:?}");
    let (mut noticed, mut harmless, mut cost_the_tail) = (0, 0, 0);
    for (number, name) in files.iter().enumerate() {
        let length = disk.bytes(name).unwrap().len();
        for offset in 0..length {
            let bit = (offset * 5 + number) as u8 % 8;
            assert!(disk.flip_bit(name, offset, bit));
            match open(disk.copy(), TINY) {
                Ok(opened) => {
                    let found = Model::of(&opened.recovered);
                    if found == model {
                        harmless += 1;
                    } else {
                        assert_eq!(found, synced, "{name} at {offset}: a silent loss");
                        cost_the_tail += 1;
                    }
                }
                Err(OpenError::Damaged { file, .. }) => {
                    // A damaged file is detected by its own content or by that of its successor.
                    assert!(files.contains(&file), "{file}");
                    noticed += 1;
                }
                Err(other) => panic!("{name} at {offset}: {other}"),
            }
            assert!(disk.flip_bit(name, offset, bit), "and back");
        }
    }
    let counts = [noticed, harmless, cost_the_tail];
    assert!(
        noticed > 1000 && harmless > 4096 && cost_the_tail > 32,
        "{counts:?}"
    );
    assert_eq!(Model::of(&open(disk, TINY).unwrap().recovered), model);
}

/// The error names the file, the offset of the record and the groups with later records.
#[test]
fn damage_is_refused_with_file_offset_and_groups() {
    let disk = SimDisk::new(22);
    let mut log = open(disk.clone(), TINY).unwrap().log;
    let mut batch = Batch::new();
    for group in [5, 7] {
        batch.entry(group, 1, 1, b"a command").unwrap();
        log.append(&mut batch).unwrap();
        log.sync().unwrap();
    }
    drop(log);
    // The checkpoint of a new log is empty: 32 bytes. The first batch follows it.
    assert!(disk.flip_bit("log-00000000000000000001", 4096 + 32 + 40, 0));
    let error = refusal(&disk);
    assert_eq!(
        error.to_string(),
        "log-00000000000000000001 is damaged at offset 4128: a durable record is bad \
         (groups concerned: 7)"
    );
    assert!(error.hint().contains("rejoin as an empty learner"));
}

/// A bad record in a file that has a successor is never a torn tail.
#[test]
fn a_file_with_a_successor_has_no_torn_tail() {
    let load = Workload {
        seed: 23,
        groups: 3,
        payload: 200,
    };
    let (disk, _, _) = image(&load, 60);
    let files = names(&disk, "log");
    let first = &files[0];
    let end = disk
        .bytes(first)
        .unwrap()
        .iter()
        .rposition(|&byte| byte != 0)
        .unwrap();
    disk.flip_bit(first, end, 3);
    match refusal(&disk) {
        OpenError::Damaged {
            file,
            offset,
            groups,
            ..
        } => {
            assert_eq!(file, *first);
            assert!(offset >= 4096 && offset <= end as u64);
            assert!(!groups.is_empty());
        }
        other => panic!("{other}"),
    }
}

/// Two unsynced batches, the first lost and the second on disk: a possible result of a power loss,
/// and both are dropped. With a sync between them it is impossible, and is refused.
#[test]
fn a_whole_record_behind_a_bad_one_counts_as_proof_only_if_it_came_after_a_sync() {
    for synced_between in [false, true] {
        let disk = SimDisk::new(24);
        let mut log = open(disk.clone(), TINY).unwrap().log;
        let mut batch = Batch::new();
        for index in 1..=3 {
            batch.entry(1, index, 1, &[index as u8; 100]).unwrap();
            log.append(&mut batch).unwrap();
            if index == 1 || synced_between {
                log.sync().unwrap();
            }
        }
        drop(log);
        let disk = disk.crash(&mut || true);
        let second = 4096 + 32 + 168;
        patch(&disk, "log-00000000000000000001", second, &[0; 168]);
        if synced_between {
            assert!(
                matches!(refusal(&disk), OpenError::Damaged { offset, .. } if offset == second as u64)
            );
            continue;
        }
        let mut opened = open(disk.kill(), TINY).unwrap();
        assert_eq!(opened.recovered.mark.0, 1);
        // A batch of the same length is now at the offset of the lost one. The third batch must not
        // become visible again after it.
        batch.entry(1, 2, 2, &[9; 100]).unwrap();
        opened.log.append(&mut batch).unwrap();
        opened.log.sync().unwrap();
        drop(opened);
        let recovered = open(disk.kill(), TINY).unwrap().recovered;
        let terms: Vec<_> = recovered.groups[&1]
            .entries
            .iter()
            .map(|entry| entry.term)
            .collect();
        assert_eq!(terms, [1, 2]);
    }
}

/// A client that writes a record of another node's log into its payload cannot make a torn batch
/// look like damage: the salt of the file is part of every checksum.
#[test]
fn a_record_inside_a_payload_proves_nothing() {
    let first_batch = |seed, state: &[u8], payload: &[u8]| {
        let disk = SimDisk::new(seed);
        let mut log = open(disk.clone(), TINY).unwrap().log;
        let mut batch = Batch::new();
        batch.state(1, state).unwrap();
        log.append(&mut batch).unwrap();
        log.sync().unwrap();
        batch.entry(1, 1, 1, payload).unwrap();
        log.append(&mut batch).unwrap();
        drop(log);
        disk.crash(&mut || true)
    };
    let name = "log-00000000000000000001";
    // In the other log, a record at 4288 says that everything before it is durable.
    let other = first_batch(30, &[7; 115], b"").bytes(name).unwrap();
    let forged = &other[4288..4320];
    assert_eq!(forged[24..26], 4288_u16.to_le_bytes());
    // Here, the payload of the second batch covers that offset.
    let disk = first_batch(31, b"", &[&[0; 51], forged].concat());
    let (second, end) = (4128 + 48, 4128 + 48 + 32 + 29 + 51 + 32);
    assert_eq!(&disk.bytes(name).unwrap()[end - 32..end], forged);
    assert_eq!(end - 32, 4288);
    patch(&disk, name, second, &[0; 32]);
    assert_eq!(open(disk, TINY).unwrap().recovered.mark.0, 1);
}

/// A confirmed end protects the last batch too: damage to it is not a torn write.
#[test]
fn after_an_orderly_end_the_last_batch_is_protected() {
    let disk = SimDisk::new(25);
    let mut log = open(disk.clone(), TINY).unwrap().log;
    let mut batch = Batch::new();
    batch.entry(1, 1, 1, b"the last words").unwrap();
    log.append(&mut batch).unwrap();
    log.close().unwrap();
    let intact = disk.copy();
    disk.flip_bit("log-00000000000000000001", 4096 + 32 + 50, 1);
    assert!(matches!(refusal(&disk), OpenError::Damaged { .. }));
    assert_eq!(open(intact, TINY).unwrap().recovered.mark.0, 1);
}

/// The error of a missing file names it, and the groups that may have lost data.
#[test]
fn a_missing_file_is_refused() {
    let image_of = |seed| {
        image(
            &Workload {
                seed,
                groups: 3,
                payload: 700,
            },
            45,
        )
    };
    let with_three_files = (0..)
        .map(image_of)
        .find(|(disk, ..)| names(disk, "log").len() >= 3);
    let (disk, _, model) = with_three_files.unwrap();
    let files = names(&disk, "log");
    let marks = model
        .groups
        .iter()
        .filter_map(|(group, held)| Some((group, held.snapshot()?)));
    let snapshots = marks.map(|(group, index)| format!("snapshot-{group}-{index}"));
    let snapshots: Vec<_> = snapshots.collect();
    assert!(!snapshots.is_empty());
    for missing in files[..files.len() - 1].iter().chain(&snapshots) {
        let disk = disk.copy();
        tenure_log::Disk::remove(&disk, missing).unwrap();
        match refusal(&disk) {
            OpenError::Missing { file, groups } => {
                assert_eq!(file, *missing);
                assert!(groups.iter().all(|group| model.groups.contains_key(group)));
                assert!(!groups.is_empty());
            }
            other => panic!("without {missing}: {other}"),
        }
    }
}

/// A header that declares a needed file unneeded: the error names the groups that miss entries.
#[test]
fn a_gap_behind_a_base_is_refused() {
    let mut refused = 0;
    for seed in 0..20 {
        let (disk, _, model) = image(
            &Workload {
                seed,
                groups: 3,
                payload: 700,
            },
            45,
        );
        let files = names(&disk, "log");
        if files.len() < 3 {
            continue;
        }
        let newest = &files[files.len() - 1];
        let mut header = disk.bytes(newest).unwrap()[..72].to_vec();
        header[40] += 1;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&header[..12]);
        hasher.update(&header[16..]);
        header[12..16].copy_from_slice(&hasher.finalize().to_le_bytes());
        patch(&disk, newest, 0, &header);
        match open(disk.kill(), TINY) {
            // A snapshot in the newest file makes the file unneeded in fact.
            Ok(opened) => assert_eq!(Model::of(&opened.recovered), model),
            Err(OpenError::Damaged { what, groups, .. }) => {
                assert!(what.starts_with("entries between the base"), "{what}");
                assert_eq!(groups.len(), 1);
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 2, "{refused} gaps were met");
}

/// A truncated file is refused, wherever it is cut.
#[test]
fn a_file_cut_short_is_refused() {
    let load = Workload {
        seed: 21,
        groups: 3,
        payload: 200,
    };
    let (disk, ..) = image(&load, 60);
    for name in names(&disk, "log") {
        let bytes = disk.bytes(&name).unwrap();
        for length in (0..bytes.len()).step_by(61) {
            let disk = disk.copy();
            disk.put(&name, bytes[..length].to_vec());
            assert!(
                matches!(refusal(&disk), OpenError::Damaged { offset: 0, .. }),
                "at {length}"
            );
        }
    }
}

/// A file or record of another format version is refused as such, not as damage.
#[test]
fn another_format_version_is_named() {
    let disk = SimDisk::new(28);
    let mut log = open(disk.clone(), TINY).unwrap().log;
    let mut batch = Batch::new();
    batch.state(1, b"vote").unwrap();
    log.append(&mut batch).unwrap();
    log.sync().unwrap();
    drop(log);
    let name = "log-00000000000000000001";
    let bytes = disk.bytes(name).unwrap();
    let checksum = |parts: &[&[u8]]| {
        let mut hasher = crc32fast::Hasher::new();
        parts.iter().for_each(|part| hasher.update(part));
        hasher.finalize().to_le_bytes()
    };

    let newer_file = disk.copy();
    let mut header = bytes[..72].to_vec();
    header[8] = 2;
    let sum = checksum(&[&header[..12], &header[16..]]);
    header[12..16].copy_from_slice(&sum);
    patch(&newer_file, name, 0, &header);
    let error = refusal(&newer_file);
    assert!(
        matches!(
            error,
            OpenError::Version {
                found: 2,
                known: 1,
                offset: 8,
                ..
            }
        ),
        "{error}"
    );

    let newer_record = disk.copy();
    let at = 4096 + 32;
    let mut record = bytes[at..at + 32].to_vec();
    record[8] = 9;
    let place = (at as u64).to_le_bytes();
    let sum = checksum(&[&bytes[16..32], &place, &record[..4], &record[8..]]);
    record[4..8].copy_from_slice(&sum);
    patch(&newer_record, name, at, &record);
    let error = refusal(&newer_record);
    assert!(
        matches!(
            error,
            OpenError::Version {
                found: 9,
                offset: 4128,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.hint().contains("release"));
}
