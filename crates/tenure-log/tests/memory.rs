//! The hot path does not allocate: a batch uses only its buffer and the index.
//!
//! There is only one test, because it counts the allocations of the whole process.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_log::{Batch, Log, Options, RealDisk, open};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(
    unsafe_code,
    reason = "the only way to watch allocations; it passes every call on"
)]
// SAFETY: every call goes to the system allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// §2: between rotations, append and sync do not allocate, on a real disk.
#[test]
fn an_append_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(directory.path().join("data")).unwrap();
    let options = Options {
        first_file: 1 << 20,
        ..Options::default()
    };
    let mut log = open(disk, options).unwrap().log;
    let mut batch = Batch::new();
    let mut round = |index: u64| {
        for group in 1..=64 {
            batch.state(group, &index.to_le_bytes()).unwrap();
            batch.entry(group, index, 1, &[7; 32]).unwrap();
        }
        log.append(&mut batch).unwrap();
        log.sync().unwrap()
    };
    // The first batch of each size allocates the buffers.
    round(1);
    round(2);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for index in 3..=20 {
        round(index);
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}
