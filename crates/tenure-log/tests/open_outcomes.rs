//! Table of storage faults: what was done to the files of a log that ended in a certain way, and
//! the outcome of the next start.
//!
//! Every loss is refused or reported. The rows with [`OpenOutcome::Unnoticed`] are the losses that
//! no log can detect; docs/formats/log.md names them.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod common;

use common::{Model, TINY, Workload, append, names};
use tenure_log::{Disk, Log, OpenError, SimDisk, TruncationKind, open};

/// How the last process ended. All of its batches were confirmed, except for the last one of
/// `Torn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogEnd {
    /// Closed in an orderly way.
    Closed,
    /// Killed while it was idle.
    Idle,
    /// Killed right after a sync.
    Busy,
    /// The machine lost power right after a sync.
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// A flipped bit in the body, or in the header, of the last batch.
    LastBody,
    LastHeader,
    /// A flipped bit in a batch in the middle.
    Middle,
    /// The last 512 written bytes are zero.
    ZeroTail,
    /// The whole last batch, and everything after it, is zero.
    ZeroBatch,
    /// A flipped bit in the close record.
    CloseRecord,
    NewestGone,
    OldestGone,
    LogsGone,
    LogsAndEndGone,
    LogsSnapshotsAndEndGone,
    SnapshotGone,
    EndGone,
    NewestAndEndGone,
    EndSlot,
    EndSlots,
    EndSlotsAndLastBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OpenOutcome {
    /// Everything is there, and nothing is reported.
    Intact,
    /// Everything is there, and an anomaly is reported.
    Warned,
    /// Refused as damage, a missing file, or a lost log.
    Damaged,
    Missing,
    NoLog,
    /// Started without the last batch, which may have been confirmed, and reported it.
    Reported(TruncationKind),
    /// Started without confirmed batches, and reported nothing.
    Unnoticed,
}

const LOAD: Workload = Workload {
    seed: 5,
    groups: 3,
    payload: 700,
};

/// Creates a log of at least three files with snapshots and a spare.
fn image(ended: LogEnd) -> (SimDisk, Model) {
    let disk = SimDisk::new(11);
    let opened = open(disk.clone(), TINY).unwrap();
    let (mut log, snapshots) = (opened.log, opened.snapshots);
    let mut model = Model::default();
    loop {
        let ops = model.next_ops(&LOAD);
        append(&mut log, &snapshots, &ops).unwrap();
        model.apply(&ops);
        log.sync().unwrap();
        if let Some(job) = log.spare_wanted() {
            log.spare_done(job.run());
        }
        let has_snapshot = model.groups.values().any(|held| held.snapshot().is_some());
        let newest = names(&disk, "log").pop().unwrap();
        let batches = records(&disk, &newest)
            .iter()
            .filter(|record| record.kind == 1)
            .count();
        let has_spare = !names(&disk, "spare").is_empty();
        if names(&disk, "log").len() >= 3 && has_snapshot && has_spare && batches >= 3 {
            break;
        }
    }
    let disk = match ended {
        LogEnd::Closed => {
            log.close().unwrap();
            disk.kill()
        }
        LogEnd::Idle => {
            log.confirm_end().unwrap();
            disk.kill()
        }
        LogEnd::Busy => disk.kill(),
        LogEnd::Power => disk.crash(&mut || true),
    };
    (disk, model)
}

struct TestRecord {
    kind: u8,
    offset: usize,
    length: usize,
}

/// Returns the records of a log file.
fn records(disk: &SimDisk, name: &str) -> Vec<TestRecord> {
    let bytes = disk.bytes(name).unwrap();
    let mut records = Vec::new();
    let mut offset = 4096;
    while offset + 32 <= bytes.len() && bytes[offset + 8] == 1 {
        let length = u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap()) as usize;
        let kind = bytes[offset + 9];
        records.push(TestRecord {
            kind,
            offset,
            length,
        });
        offset += (32 + length).next_multiple_of(8);
    }
    records
}

fn inflict(disk: &SimDisk, fault: Fault) {
    let logs = names(disk, "log");
    let newest = logs.last().unwrap().clone();
    let batches: Vec<TestRecord> = records(disk, &newest)
        .into_iter()
        .filter(|record| record.kind == 1)
        .collect();
    let last = batches.last().unwrap();
    let gone = |names: Vec<String>| {
        for name in names {
            disk.remove(&name).unwrap();
        }
        disk.sync_dir().unwrap();
    };
    let flip = |name: &str, offset| assert!(disk.flip_bit(name, offset, 2));
    match fault {
        Fault::Nothing => {}
        Fault::LastBody => flip(&newest, last.offset + 32 + last.length / 2),
        Fault::LastHeader => flip(&newest, last.offset + 17),
        Fault::Middle => flip(&newest, batches[1].offset + 33),
        Fault::ZeroTail => {
            let mut bytes = disk.bytes(&newest).unwrap();
            let end = 1 + bytes.iter().rposition(|byte| *byte != 0).unwrap();
            bytes[end - 512..end].fill(0);
            disk.put(&newest, bytes);
        }
        Fault::ZeroBatch => {
            let mut bytes = disk.bytes(&newest).unwrap();
            bytes[last.offset..].fill(0);
            disk.put(&newest, bytes);
        }
        Fault::CloseRecord => {
            let all = records(disk, &newest);
            let close = all.iter().find(|record| record.kind == 3).unwrap();
            flip(&newest, close.offset + 20);
        }
        Fault::NewestGone => gone(vec![newest]),
        Fault::OldestGone => gone(vec![logs[0].clone()]),
        Fault::LogsGone => gone(logs),
        Fault::LogsAndEndGone => gone([logs, vec!["end".into()]].concat()),
        Fault::LogsSnapshotsAndEndGone => {
            let rest = [names(disk, "snapshot"), vec!["end".into()]].concat();
            gone([logs, rest].concat());
        }
        Fault::SnapshotGone => gone(names(disk, "snapshot")),
        Fault::EndGone => gone(vec!["end".into()]),
        Fault::NewestAndEndGone => gone(vec![newest, "end".into()]),
        Fault::EndSlot => flip("end", 30),
        Fault::EndSlots => {
            flip("end", 30);
            flip("end", 4096 + 30);
        }
        Fault::EndSlotsAndLastBody => {
            inflict(disk, Fault::EndSlots);
            inflict(disk, Fault::LastBody);
        }
    }
}

fn verdict(disk: &SimDisk, model: &Model) -> OpenOutcome {
    let before: Vec<_> = names(disk, "")
        .into_iter()
        .map(|name| (disk.bytes(&name), name))
        .collect();
    let error = match open(disk.clone(), TINY) {
        Ok(opened) => {
            let is_whole = Model::of(&opened.recovered) == *model;
            let cut = opened.recovered.cut;
            let is_odd = cut.is_some() || opened.recovered.end_unreadable;
            return match cut {
                _ if is_whole && is_odd => OpenOutcome::Warned,
                _ if is_whole => OpenOutcome::Intact,
                None => OpenOutcome::Unnoticed,
                Some(cut) => {
                    assert!(cut.offset >= 4096 && cut.bytes >= 32, "{cut:?}");
                    OpenOutcome::Reported(cut.kind)
                }
            };
        }
        Err(error) => error,
    };
    for (bytes, name) in before {
        assert_eq!(disk.bytes(&name), bytes, "a refusal changes nothing");
    }
    let hint = error.hint();
    assert!(hint.contains("tenure cluster rejoin") && hint.contains("tenure cluster restore"));
    match error {
        OpenError::Damaged { .. } => OpenOutcome::Damaged,
        OpenError::Missing { .. } => OpenOutcome::Missing,
        OpenError::NoLog { .. } => OpenOutcome::NoLog,
        other => panic!("{other}"),
    }
}

#[test]
fn every_fault_gets_its_verdict() {
    use LogEnd::{Busy, Closed, Idle, Power};
    use OpenOutcome::{Damaged, Intact, Missing, NoLog, Reported, Unnoticed, Warned};
    let suspicious = || Reported(TruncationKind::Suspicious);
    let torn = || Reported(TruncationKind::Torn);
    // Columns: the fault; the outcome after an orderly end or when the node was idle; when it was
    // killed right after a sync; when the machine lost power right after a sync.
    let table = [
        (Fault::Nothing, Intact, Intact, Intact),
        (Fault::LastBody, Damaged, suspicious(), torn()),
        (Fault::LastHeader, Damaged, suspicious(), torn()),
        (Fault::Middle, Damaged, Damaged, Damaged),
        (Fault::ZeroTail, Damaged, suspicious(), torn()),
        (Fault::ZeroBatch, Damaged, Unnoticed, Unnoticed),
        (Fault::NewestGone, Missing, Missing, Missing),
        (Fault::OldestGone, Missing, Missing, Missing),
        (Fault::LogsGone, NoLog, NoLog, NoLog),
        (Fault::LogsAndEndGone, NoLog, NoLog, NoLog),
        (Fault::LogsSnapshotsAndEndGone, NoLog, NoLog, NoLog),
        (Fault::SnapshotGone, Missing, Missing, Missing),
        (Fault::EndGone, Intact, Intact, Intact),
        (Fault::NewestAndEndGone, Unnoticed, Unnoticed, Unnoticed),
        (Fault::EndSlot, Intact, Intact, Intact),
        (Fault::EndSlots, Warned, Warned, Warned),
        (Fault::EndSlotsAndLastBody, Damaged, suspicious(), torn()),
    ];
    let mut wrong = Vec::new();
    for (fault, at_rest, busy, power) in table {
        for (ended, expected) in [
            (Closed, &at_rest),
            (Idle, &at_rest),
            (Busy, &busy),
            (Power, &power),
        ] {
            let (disk, model) = image(ended);
            inflict(&disk, fault);
            let found = verdict(&disk, &model);
            if found != *expected {
                wrong.push(format!("{fault:?}, {ended:?}: {found:?}, not {expected:?}"));
            }
        }
    }
    for ended in [Closed, Idle] {
        let (disk, model) = image(ended);
        inflict(&disk, Fault::CloseRecord);
        assert_eq!(verdict(&disk, &model), Warned, "nothing is lost with it");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// After an orderly end, every single flipped bit in any file is refused, or nothing is lost.
#[test]
fn after_an_orderly_end_no_flipped_bit_costs_a_batch() {
    let (disk, model) = image(LogEnd::Closed);
    let mut refused = 0;
    for name in names(&disk, "log").into_iter().chain(names(&disk, "end")) {
        for offset in 0..disk.bytes(&name).unwrap().len() {
            assert!(disk.flip_bit(&name, offset, (offset % 8) as u8));
            match verdict(&disk.copy(), &model) {
                OpenOutcome::Intact | OpenOutcome::Warned => {}
                OpenOutcome::Damaged => refused += 1,
                other => panic!("{name} at {offset}: {other:?}"),
            }
            assert!(disk.flip_bit(&name, offset, (offset % 8) as u8), "and back");
        }
    }
    assert!(refused > 5000, "{refused}");
}

/// The kernel interrupts the write of a killed process only at the end of a page. The incomplete
/// record is cut off and reported as torn, not as suspicious.
#[test]
fn a_write_that_a_kill_cut_short_is_no_damage() {
    let (disk, model) = image(LogEnd::Busy);
    let newest = names(&disk, "log").pop().unwrap();
    let all = records(&disk, &newest);
    let last = all.last().unwrap();
    let end = last.offset + (32 + last.length).next_multiple_of(8);
    // Write the header of a record that is longer than the page, with this file's checksums.
    let mut bytes = disk.bytes(&newest).unwrap();
    let mut header = [0; 32];
    header[0..4].copy_from_slice(&9000_u32.to_le_bytes());
    header[8] = 1;
    header[9] = 1;
    header[16..24].copy_from_slice(&(model.batches + 1).to_le_bytes());
    header[24..32].copy_from_slice(&(end as u64).to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[16..32]);
    hasher.update(&(end as u64).to_le_bytes());
    hasher.update(&header[0..4]);
    hasher.update(&header[8..]);
    header[4..8].copy_from_slice(&hasher.finalize().to_le_bytes());
    bytes[end..end + 32].copy_from_slice(&header);
    disk.put(&newest, bytes);
    let recovered = open(disk, TINY).unwrap().recovered;
    assert_eq!(Model::of(&recovered), model);
    let cut = recovered.cut.unwrap();
    assert_eq!((cut.offset, cut.kind), (end as u64, TruncationKind::Torn));
}

/// A record that crosses a page and is damaged after a complete write is not an interrupted write:
/// its last page and its trailing zeros were written.
#[test]
fn damage_to_a_record_that_crosses_a_page_is_suspicious() {
    let disk = SimDisk::new(11);
    let mut log = open(disk.clone(), tenure_log::Options::default())
        .unwrap()
        .log;
    let mut batch = tenure_log::Batch::new();
    batch.node(b"key", &[7; 9000]).unwrap();
    log.append(&mut batch).unwrap();
    log.sync().unwrap();
    drop(log);
    let disk = disk.kill();
    let name = names(&disk, "log").pop().unwrap();
    let last = records(&disk, &name).pop().unwrap();
    let end = last.offset + (32 + last.length).next_multiple_of(8);
    let written = disk.bytes(&name).unwrap();
    let kind = |bytes: Vec<u8>| {
        let disk = disk.copy();
        disk.put(&name, bytes);
        let cut = open(disk, tenure_log::Options::default())
            .unwrap()
            .recovered
            .cut;
        let cut = cut.unwrap();
        assert_eq!(cut.offset, last.offset as u64);
        cut.kind
    };
    for offset in (last.offset..last.offset + 32 + last.length).step_by(97) {
        let mut bytes = written.clone();
        bytes[offset] ^= 4;
        assert_eq!(kind(bytes), TruncationKind::Suspicious, "bit at {offset}");
    }
    // Interrupted at a page: the bytes after it are old, zeros or an older use of the file.
    let boundaries: Vec<usize> = (last.offset..end)
        .filter(|at| at.is_multiple_of(4096))
        .collect();
    assert_eq!(boundaries.len(), 2);
    for at in boundaries {
        for old in [0, 9] {
            let mut bytes = written.clone();
            bytes[at..end + 4096].fill(old);
            assert_eq!(kind(bytes), TruncationKind::Torn, "interrupted at {at}");
        }
    }
}

/// A failed sync may tear the tail while the machine continues to run. The log records the failure,
/// so that the next start classifies the tail as torn.
#[test]
fn a_tail_behind_a_failed_sync_is_torn_and_not_suspicious() {
    let mut torn = 0;
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        let mut opened = open(disk.clone(), TINY).unwrap();
        let mut model = Model::default();
        for _ in 0..4 {
            let ops = model.next_ops(&LOAD);
            append(&mut opened.log, &opened.snapshots, &ops).unwrap();
            model.apply(&ops);
        }
        disk.fail_sync_after(0);
        opened.log.sync().unwrap_err();
        drop(opened);
        if let Some(cut) = open(disk.kill(), TINY).unwrap().recovered.cut {
            assert_eq!(cut.kind, TruncationKind::Torn, "{cut:?}");
            torn += 1;
        }
    }
    assert!(torn > 5, "{torn} tails were torn");
}

/// The marker of an idle log is written once, not repeatedly.
#[test]
fn an_idle_log_confirms_its_end_once() {
    let (disk, _) = image(LogEnd::Busy);
    let mut opened = open(disk.clone(), TINY).unwrap();
    let mut batch = tenure_log::Batch::new();
    batch.node(b"key", b"value").unwrap();
    opened.log.append(&mut batch).unwrap();
    opened.log.confirm_end().unwrap();
    let operations = disk.operations();
    opened.log.confirm_end().unwrap();
    assert_eq!(disk.operations(), operations);
    batch.node(b"key", b"other").unwrap();
    opened.log.append(&mut batch).unwrap();
    opened.log.confirm_end().unwrap();
    assert!(disk.operations() > operations);
}

/// A suspicious cut is reported at every start, also after a power loss, until a batch is durable
/// in which the caller can remember it.
#[test]
fn a_suspicious_cut_is_reported_until_a_batch_is_durable() {
    let (image, _) = image(LogEnd::Busy);
    inflict(&image, Fault::LastBody);
    let is_suspicious = |disk: &SimDisk| {
        let recovered = open(disk.clone(), TINY).unwrap().recovered;
        let is_noted = recovered.node.contains_key(&b"noted"[..]);
        let cut = recovered.cut.map(|cut| cut.kind);
        assert!(
            cut.is_none() || cut == Some(TruncationKind::Suspicious),
            "{cut:?}"
        );
        assert_ne!(cut.is_some(), is_noted, "either it is reported or noted");
        cut.is_some()
    };
    let (mut reported, mut noted) = (0, 0);
    for step in 1.. {
        let disk = image.copy();
        let mut log = open(disk.clone(), TINY).unwrap().log;
        disk.power_ends_at(disk.operations() + step);
        let mut batch = tenure_log::Batch::new();
        batch.node(b"noted", b"carefully").unwrap();
        let done = log.append(&mut batch).and_then(|_| log.sync()).is_ok();
        drop(log);
        for keeps in [false, true] {
            let disk = disk.copy().crash(&mut || keeps);
            if is_suspicious(&disk) {
                assert!(!done);
                reported += 1;
                assert!(is_suspicious(&disk.kill()), "again and again");
            } else {
                noted += 1;
            }
        }
        if done {
            break;
        }
    }
    assert!(reported >= 2 && noted >= 2, "{reported}, {noted}");
}

/// The first batch after a suspicious cut contains the caller's record of it. If a power loss tears
/// that batch, the tail is an ordinary torn one and the record is lost: the cut is still reported
/// as suspicious.
#[test]
fn a_torn_first_batch_does_not_hide_the_suspicious_cut_before_it() {
    let (image, _) = image(LogEnd::Busy);
    inflict(&image, Fault::LastBody);
    let mut torn = 0;
    for seed in 0..20 {
        let disk = image.copy();
        let mut log = open(disk.clone(), TINY).unwrap().log;
        let mut batch = tenure_log::Batch::new();
        batch.node(b"noted", &[7; 2000]).unwrap();
        log.append(&mut batch).unwrap();
        drop(log);
        // Some sectors of the batch are on the disk, others are not.
        let mut rng: u64 = seed;
        let mut disk = disk.crash(&mut || {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            rng >> 63 == 1
        });
        for _ in 0..2 {
            let recovered = open(disk.clone(), TINY).unwrap().recovered;
            let cut = recovered.cut.map(|cut| (cut.kind, cut.bytes));
            if recovered.node.contains_key(&b"noted"[..]) {
                assert_eq!(cut, None);
                break;
            }
            let (kind, bytes) = cut.unwrap();
            assert_eq!(kind, TruncationKind::Suspicious, "seed {seed}");
            torn += u32::from(bytes > 0);
            disk = disk.crash(&mut || false);
        }
    }
    assert!(torn > 5, "{torn} batches were torn");
}

/// A release that does not know the marker leaves it unchanged while the log grows: it then claims
/// less, but nothing wrong. What that release cut off below the claim is detected.
#[test]
fn a_marker_that_stayed_behind_is_still_true() {
    let (disk, _) = image(LogEnd::Idle);
    let old = disk.bytes("end").unwrap();
    let claimed_file = names(&disk, "log").pop().unwrap();
    let mut opened = open(disk.clone(), TINY).unwrap();
    let mut model = Model::of(&opened.recovered);
    while names(&disk, "log").contains(&claimed_file) {
        let ops = model.next_ops(&LOAD);
        append(&mut opened.log, &opened.snapshots, &ops).unwrap();
        model.apply(&ops);
        opened.log.sync().unwrap();
        let now = disk.copy().kill();
        now.put("end", old.clone());
        assert_eq!(verdict(&now, &model), OpenOutcome::Intact);
    }
}
