//! Fuzzing: for arbitrary bytes, recovery and the snapshot reader return without a panic and
//! allocate no more memory than the files have bytes.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{Model, Rng, TINY, Workload, append, names, read_snapshot};
use proptest::prelude::*;
use tenure_log::{Log, SimDisk, SnapshotId, open};

/// Counts allocations, to detect a buffer whose length is an unverified number from a file.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(
    unsafe_code,
    reason = "the only way to watch allocations; it passes every call on"
)]
// SAFETY: every call goes to the system allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Serializes the tests of this file, because each measures the memory of the whole process.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` and checks how much the memory use grows.
fn within<T>(limit: usize, work: impl FnOnce() -> T) -> T {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let done = work();
    let grown = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    assert!(
        grown <= limit,
        "{grown} bytes for input that deserves at most {limit}"
    );
    done
}

/// The simulated disk stores a file twice; in addition there are the read buffer, the entries, and
/// names.
fn deserved(disk: &SimDisk) -> usize {
    8 * disk.used() as usize + (256 << 10)
}

/// Creates a log of forty batches. Returns the expected content after each.
fn image(seed: u64) -> (SimDisk, Vec<Model>) {
    let load = Workload {
        seed,
        groups: 3,
        payload: 200,
    };
    let disk = SimDisk::new(seed);
    let mut opened = open(disk.clone(), TINY).unwrap();
    let mut models = vec![Model::default()];
    for batch in 0..40 {
        let mut model = models[batch].clone();
        let ops = model.next_ops(&load);
        append(&mut opened.log, &opened.snapshots, &ops).unwrap();
        model.apply(&ops);
        models.push(model);
        opened.log.sync().unwrap();
    }
    (disk.kill(), models)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_as_a_log_file(
        head in prop::collection::vec(any::<u8>(), 0..200),
        records in prop::collection::vec(any::<u8>(), 0..6000),
        whole_page in any::<bool>(),
    ) {
        let _turn = turn();
        let disk = SimDisk::new(1);
        let mut bytes = head;
        if whole_page {
            bytes.resize(4096, 0);
        }
        bytes.extend(records);
        disk.put("log-00000000000000000001", bytes);
        let limit = deserved(&disk);
        prop_assert!(within(limit, || open(disk, TINY).is_err()));
    }

    #[test]
    fn any_bytes_as_a_snapshot(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _turn = turn();
        let disk = SimDisk::new(1);
        let opened = open(disk.clone(), TINY).unwrap();
        disk.put("snapshot-1-2", bytes);
        let limit = deserved(&disk) + (256 << 10);
        let id = SnapshotId { group: 1, index: 2 };
        prop_assert!(within(limit, || read_snapshot(&opened.snapshots, id).is_err()));
    }
}

/// A record with correct checksums that claims the maximum body length: no buffer is allocated for
/// it.
#[test]
fn a_length_is_checked_before_it_is_believed() {
    let _turn = turn();
    let (disk, _) = image(3);
    let name = names(&disk, "log").pop().unwrap();
    let bytes = disk.bytes(&name).unwrap();
    for length in [u32::MAX, 64 << 20, (64 << 20) + 1, 1 << 20] {
        let mut bytes = bytes.clone();
        let at = 4096;
        bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        let mut hasher = crc32fast::Hasher::new();
        for part in [&bytes[16..32], &4096_u64.to_le_bytes(), &bytes[at..at + 4]] {
            hasher.update(part);
        }
        hasher.update(&bytes[at + 8..at + 32]);
        let sum = hasher.finalize().to_le_bytes();
        bytes[at + 4..at + 8].copy_from_slice(&sum);
        let disk = disk.copy();
        disk.put(&name, bytes);
        let limit = deserved(&disk);
        assert!(within(limit, || open(disk, TINY).is_err()), "{length}");
    }
}

/// Real images with bytes changed, moved, copied and truncated: refused, or read correctly.
#[test]
fn damaged_images_are_answered() {
    let _turn = turn();
    let mut refused = 0;
    for seed in 0..8 {
        let (image, models) = image(seed);
        let files = names(&image, "");
        let mut rng = Rng::new(seed);
        for _ in 0..100 {
            let disk = image.copy();
            for _ in 0..=rng.below(3) {
                let name = &files[rng.below(files.len() as u64) as usize];
                let mut bytes = disk.bytes(name).unwrap();
                let length = bytes.len() as u64;
                let (from, to) = (rng.below(length) as usize, rng.below(length) as usize);
                let most = bytes.len() - from.max(to);
                let count = rng.below(64.min(most as u64) + 1) as usize;
                match rng.below(4) {
                    0 => bytes.copy_within(from..from + count, to),
                    1 => bytes[to..to + count].fill(rng.next() as u8),
                    2 => bytes.truncate(to),
                    _ => {
                        let other = &files[rng.below(files.len() as u64) as usize];
                        bytes = disk.bytes(other).unwrap();
                    }
                }
                disk.put(name, bytes);
            }
            let limit = deserved(&disk);
            match within(limit, || open(disk, TINY)) {
                Ok(opened) => {
                    // At most three places were changed, and only damage to a tail can go
                    // unnoticed.
                    let found = Model::of(&opened.recovered);
                    assert!(found.batches >= 37, "{} batches are left", found.batches);
                    assert_eq!(found, models[found.batches as usize]);
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(
        (50..750).contains(&refused),
        "{refused} of 800 were refused"
    );
}
