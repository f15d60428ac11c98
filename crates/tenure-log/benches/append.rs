//! Benchmark: the cost of a durable batch, and the speed of recovery.
//!
//! `cargo bench -p tenure-log --bench append [-- DIRECTORY]` prints one JSON line per measurement.
//! The directory selects the disk; the default is the system's temporary directory.
//!
//! - `append_sync`: batches of n entries of 128 bytes over 256 groups, each appended and synced,
//!   compared with `bare`: the same bytes written and `fdatasync`ed into a zero-filled file without
//!   a log.
//! - `append`: the same without syncs, which shows the CPU cost.
//! - `recover`: recovery of a log of many entries.

#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tenure_log::{
    Batch, Disk, DiskFile, FileLog, Log, Opened, Options, RealDisk, SnapshotId, open,
};

const GROUPS: u64 = 256;
const PAYLOAD: [u8; 128] = [7; 128];
const TIME: Duration = Duration::from_millis(1500);

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let directory = match words.first() {
        Some(given) => tempfile::tempdir_in(given),
        None => tempfile::tempdir(),
    }
    .expect("a directory");
    let mut place = BenchDirectory {
        root: directory.path().to_path_buf(),
        used: 0,
    };
    for entries in [1, 16, 256, 4096] {
        append_sync(&place.next(), entries);
    }
    append(&place.next());
    recover(&place.next());
}

/// Creates a fresh data directory for every measurement.
struct BenchDirectory {
    root: PathBuf,
    used: u32,
}

impl BenchDirectory {
    fn next(&mut self) -> PathBuf {
        self.used += 1;
        self.root.join(self.used.to_string())
    }
}

fn fresh(path: &Path) -> Opened<RealDisk> {
    open(
        RealDisk::open(path).expect("a directory"),
        Options::default(),
    )
    .expect("an empty log")
}

/// Fills batches with entries, one group after the other, and lets groups snapshot on request.
struct Load {
    last: Vec<u64>,
    group: u64,
}

impl Load {
    fn new() -> Load {
        Load {
            last: vec![0; GROUPS as usize + 1],
            group: 0,
        }
    }

    fn fill(&mut self, batch: &mut Batch, entries: u64) {
        for _ in 0..entries {
            self.group = self.group % GROUPS + 1;
            let last = &mut self.last[self.group as usize];
            *last += 1;
            batch
                .entry(self.group, *last, 1, &PAYLOAD)
                .expect("it fits");
        }
    }

    /// Records snapshots of the groups that hold back the oldest file. The snapshots are empty,
    /// because only the log is measured.
    fn make_room(&self, opened: &mut Opened<RealDisk>, batch: &mut Batch) {
        if opened.log.usage().files < 4 {
            return;
        }
        for group in opened.log.usage().held_back_by {
            let id = SnapshotId {
                group,
                index: self.last[group as usize],
            };
            opened
                .snapshots
                .create(id)
                .and_then(|writer| writer.commit())
                .expect("a snapshot");
            batch
                .snapshot_taken(group, id.index, 1, b"")
                .expect("it fits");
        }
        opened.log.append(batch).expect("an append");
        opened.log.sync().expect("a sync");
    }
}

fn spare(log: &mut FileLog<RealDisk>) {
    if let Some(job) = log.spare_wanted() {
        log.spare_done(job.run());
    }
}

fn append_sync(path: &Path, entries: u64) {
    let mut opened = fresh(path);
    let mut load = Load::new();
    let mut batch = Batch::new();
    let (mut batches, mut bytes) = (0_u64, 0);
    let mut slept = Duration::ZERO;
    let started = Instant::now();
    while started.elapsed() - slept < TIME {
        load.fill(&mut batch, entries);
        bytes = batch.bytes();
        opened.log.append(&mut batch).expect("an append");
        opened.log.sync().expect("a sync");
        batches += 1;
        // Work that a driver does on another thread, or rarely, is not measured.
        let aside = Instant::now();
        spare(&mut opened.log);
        load.make_room(&mut opened, &mut batch);
        slept += aside.elapsed();
    }
    let seconds = (started.elapsed() - slept).as_secs_f64();
    let per_second = batches as f64 / seconds;
    let bare = bare(path, bytes);
    println!(
        "{{\"bench\":\"append_sync\",\"entries_per_batch\":{entries},\"bytes_per_batch\":{bytes},\
         \"batches_per_s\":{per_second:.0},\"entries_per_s\":{:.0},\"bare_syncs_per_s\":{bare:.0},\
         \"ratio\":{:.2}}}",
        per_second * entries as f64,
        per_second / bare
    );
}

/// Writes and syncs the same number of bytes at a time in a zero-filled file.
fn bare(path: &Path, bytes: usize) -> f64 {
    const SIZE: usize = 32 << 20;
    let disk = RealDisk::open(path).expect("a directory");
    let mut file = disk.create("bare").expect("a file");
    file.write_at(0, &vec![0; SIZE])
        .and_then(|()| file.sync())
        .expect("zeros");
    let piece = vec![7; bytes];
    let (mut offset, mut syncs) = (0, 0_u64);
    let started = Instant::now();
    while started.elapsed() < TIME {
        if offset + bytes > SIZE {
            offset = 0;
        }
        file.write_at(offset as u64, &piece)
            .and_then(|()| file.sync())
            .expect("a sync");
        offset += bytes;
        syncs += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    disk.remove("bare").expect("it was there");
    syncs as f64 / seconds
}

fn append(path: &Path) {
    let mut opened = fresh(path);
    let mut load = Load::new();
    let mut batch = Batch::new();
    let (mut entries, mut spent) = (0_u64, Duration::ZERO);
    let started = Instant::now();
    while started.elapsed() < TIME {
        let now = Instant::now();
        load.fill(&mut batch, 256);
        opened.log.append(&mut batch).expect("an append");
        spent += now.elapsed();
        entries += 256;
        spare(&mut opened.log);
        load.make_room(&mut opened, &mut batch);
    }
    let nanos = spent.as_nanos() as f64 / entries as f64;
    println!("{{\"bench\":\"append\",\"entries_per_batch\":256,\"ns_per_entry\":{nanos:.0}}}");
}

fn recover(path: &Path) {
    let mut opened = fresh(path);
    let mut load = Load::new();
    let mut batch = Batch::new();
    let mut bytes = 0;
    while bytes < 256 << 20 {
        load.fill(&mut batch, 1024);
        bytes += batch.bytes();
        opened.log.append(&mut batch).expect("an append");
    }
    opened.log.sync().expect("a sync");
    drop(opened);
    let started = Instant::now();
    let opened = fresh(path);
    let seconds = started.elapsed().as_secs_f64();
    let entries: usize = opened
        .recovered
        .groups
        .values()
        .map(|held| held.entries.len())
        .sum();
    println!(
        "{{\"bench\":\"recover\",\"bytes\":{bytes},\"entries\":{entries},\"seconds\":{seconds:.3},\
         \"mb_per_s\":{:.0}}}",
        bytes as f64 / seconds / 1e6
    );
}
