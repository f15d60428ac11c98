//! Snapshots: streamed, checksummed, and visible only after the commit.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod common;

use common::{Rng, TINY, lose_all, names, read_snapshot};
use tenure_log::{Batch, Log, Opened, SimDisk, SnapshotError, SnapshotId, open};

const ID: SnapshotId = SnapshotId {
    group: 3,
    index: 40,
};

fn bytes(length: usize) -> Vec<u8> {
    let mut rng = Rng::new(length as u64);
    (0..length).map(|_| rng.next() as u8).collect()
}

fn write(opened: &Opened<SimDisk>, id: SnapshotId, bytes: &[u8], piece: usize) {
    let mut writer = opened.snapshots.create(id).unwrap();
    for piece in bytes.chunks(piece.max(1)) {
        writer.write(piece).unwrap();
    }
    assert_eq!(writer.commit().unwrap(), id);
}

/// The content is read back, however it was divided into writes, in chunks of bounded size.
#[test]
fn a_snapshot_is_read_back_as_it_was_written() {
    const CHUNK: usize = 256 << 10;
    let opened = open(SimDisk::new(1), TINY).unwrap();
    for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17] {
        for piece in [1000, CHUNK, usize::MAX] {
            let bytes = bytes(length);
            write(&opened, ID, &bytes, piece);
            assert_eq!(
                read_snapshot(&opened.snapshots, ID).unwrap(),
                bytes,
                "{length} by {piece}"
            );
        }
    }
    let mut reader = opened.snapshots.open(ID).unwrap();
    assert_eq!(reader.id(), ID);
    while let Some(chunk) = reader.next_chunk().unwrap() {
        assert!(chunk.len() <= CHUNK);
    }
    assert_eq!(reader.next_chunk().unwrap(), None, "the end stays the end");
}

/// §2: temporary name, sync, rename, sync of the directory. Wherever the power fails, a name
/// without ".partial" belongs to a whole snapshot, and a committed one is there.
#[test]
fn a_crash_at_every_step_leaves_a_whole_snapshot_or_none() {
    let whole = bytes(1500);
    let mut outcomes = [0, 0];
    for step in 1.. {
        let fresh = SimDisk::new(2);
        let opened = open(fresh.clone(), TINY).unwrap();
        fresh.power_ends_at(step);
        let done = opened.snapshots.create(ID).and_then(|mut writer| {
            writer.write(&whole)?;
            writer.commit()
        });
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let disk = fresh
                .copy()
                .crash(&mut || seed == 0 || (seed > 1 && rng.below(2) == 0));
            let there = names(&disk, "snapshot-3-40").contains(&"snapshot-3-40".to_owned());
            outcomes[usize::from(there)] += 1;
            assert!(there || done.is_err(), "step {step}: committed and gone");
            if there {
                // No batch refers to it, so it is a leftover; check it before it is removed.
                let bystander = open(SimDisk::new(3), TINY).unwrap();
                drop(bystander.log);
                let image = disk.bytes("snapshot-3-40").unwrap();
                let other = SimDisk::new(4);
                let reader = open(other.clone(), TINY).unwrap();
                other.put("snapshot-3-40", image);
                assert_eq!(read_snapshot(&reader.snapshots, ID).unwrap(), whole);
            }
            drop(open(disk.clone(), TINY).unwrap());
            assert_eq!(names(&disk, "snapshot"), [""; 0], "without a mark it goes");
        }
        if done.is_ok() {
            break;
        }
    }
    assert!(outcomes[0] > 10 && outcomes[1] > 10, "{outcomes:?}");
}

/// Every flipped bit and every truncation of a snapshot is detected before its end is returned.
#[test]
fn damage_to_a_snapshot_is_noticed() {
    let disk = SimDisk::new(5);
    let opened = open(disk.clone(), TINY).unwrap();
    write(&opened, ID, &bytes(300), 300);
    let image = disk.bytes("snapshot-3-40").unwrap();
    for bit in 0..image.len() * 8 {
        disk.flip_bit("snapshot-3-40", bit / 8, (bit % 8) as u8);
        let error = read_snapshot(&opened.snapshots, ID).expect_err("a flipped bit");
        assert!(
            matches!(error, SnapshotError::Damaged { .. }),
            "bit {bit}: {error}"
        );
        disk.flip_bit("snapshot-3-40", bit / 8, (bit % 8) as u8);
    }
    for length in 0..image.len() {
        disk.put("snapshot-3-40", image[..length].to_vec());
        assert!(
            read_snapshot(&opened.snapshots, ID).is_err(),
            "cut at {length}"
        );
    }
    disk.put("snapshot-3-40", [&image[..], &[0]].concat());
    assert!(
        read_snapshot(&opened.snapshots, ID).is_err(),
        "one byte too many"
    );
    disk.put("snapshot-3-41", image.clone());
    let other = SnapshotId { index: 41, ..ID };
    assert!(
        read_snapshot(&opened.snapshots, other).is_err(),
        "a snapshot of something else"
    );

    let mut newer = image;
    newer[8] = 7;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&newer[..12]);
    hasher.update(&newer[16..32]);
    let sum = hasher.finalize().to_le_bytes();
    newer[12..16].copy_from_slice(&sum);
    disk.put("snapshot-3-40", newer);
    let error = read_snapshot(&opened.snapshots, ID).unwrap_err();
    assert!(
        matches!(error, SnapshotError::Version { found: 7, .. }),
        "{error}"
    );
}

/// An abandoned snapshot leaves no file; an older one is removed when it is retired; if a crash
/// interrupts that, the next start completes it.
#[test]
fn superseded_and_abandoned_snapshots_go() {
    let disk = SimDisk::new(6);
    let mut opened = open(disk.clone(), TINY).unwrap();
    drop(opened.snapshots.create(ID).unwrap());
    assert_eq!(names(&disk, "snapshot"), [""; 0]);

    let newer = SnapshotId { index: 50, ..ID };
    for id in [ID, newer] {
        write(&opened, id, b"state", 5);
        let mut batch = Batch::new();
        batch
            .snapshot_installed(id.group, id.index, 2, b"")
            .unwrap();
        opened.log.append(&mut batch).unwrap();
    }
    opened.log.sync().unwrap();
    assert_eq!(names(&disk, "snapshot"), ["snapshot-3-40", "snapshot-3-50"]);

    let crashed = lose_all(&disk.copy());
    drop(open(crashed.clone(), TINY).unwrap());
    assert_eq!(names(&crashed, "snapshot"), ["snapshot-3-50"]);

    opened.snapshots.retire_before(ID).unwrap();
    assert_eq!(
        names(&disk, "snapshot").len(),
        2,
        "a late call spares the newer one"
    );
    opened.snapshots.retire_before(newer).unwrap();
    assert_eq!(names(&disk, "snapshot"), ["snapshot-3-50"]);
    opened.snapshots.remove_group(4).unwrap();
    assert_eq!(
        names(&disk, "snapshot"),
        ["snapshot-3-50"],
        "another group's is left alone"
    );
    opened.snapshots.remove_group(3).unwrap();
    assert_eq!(names(&disk, "snapshot"), [""; 0]);
}

/// A full disk loses the snapshot and nothing else.
#[test]
fn a_snapshot_that_does_not_fit_leaves_no_trace() {
    let disk = SimDisk::new(7);
    let opened = open(disk.clone(), TINY).unwrap();
    let used = disk.used();
    disk.set_capacity(Some(used + 10_000));
    let mut writer = opened.snapshots.create(ID).unwrap();
    writer.write(&[1; 9_000]).unwrap();
    writer.write(&[1; 9_000]).unwrap();
    let error = writer.commit().unwrap_err();
    assert!(matches!(error, SnapshotError::Io { .. }), "{error}");
    assert_eq!(names(&disk, "snapshot"), [""; 0]);
    assert_eq!(disk.used(), used);
}
