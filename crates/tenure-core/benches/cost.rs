//! What does an operation cost, and does it stay flat?
//!
//! `cargo bench -p tenure-core --bench cost` prints one JSON object a line. Commands are made before
//! the clock starts; what is measured is `Space::apply` and dropping what it returns.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark measures time, prints, and knows its own inputs"
)]

use std::alloc::{GlobalAlloc, Layout, System as Heap};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenure_core::command::{
    Acquire, Command, Expire, Hold, Release, Request, RequestKind, Route, WaitMode,
};
use tenure_core::outcome::{AcquireOutcome, Outcome};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::space::{HashSeed, Space, SpaceLimits};
use tenure_core::value::{OwnerId, QueueTtl, Stamp, Ttl};

/// Counts the bytes that are allocated now.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

#[allow(
    unsafe_code,
    reason = "an allocator cannot be written without; it only adds up sizes"
)]
// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { Heap.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { Heap.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NAMESPACES: u64 = 16;
const PER_OWNER: u64 = 100;
const MILLION: u64 = 1_000_000;
/// Different paths that the pairs take and give back.
const TARGETS: u64 = 65_536;

fn main() {
    // `cargo bench … -- pairs` runs only the measurements whose group has that word.
    let wanted = std::env::args()
        .nth(1)
        .filter(|word| !word.starts_with('-'));
    let runs = |group: &str| {
        wanted
            .as_ref()
            .is_none_or(|word| group.contains(word.as_str()))
    };
    if runs("pairs") {
        print("pairs_per_second_depth4", best_pairs(space(), 5), "pairs/s");
    }
    if runs("held") {
        let (few, _) = held(1_000);
        let pairs_1k = best_pairs(few, 5);
        print("pairs_1k_held", pairs_1k, "pairs/s");
        let (full, bytes) = held(MILLION);
        print(
            "bytes_per_held_lock",
            bytes as f64 / MILLION as f64,
            "bytes",
        );
        let (encode, decode) = snapshot_rates(&full);
        print("snapshot_mb_per_second", encode, "MB/s");
        print("snapshot_decode_mb_per_second", decode, "MB/s");
        let pairs_1m = best_pairs(full, 5);
        print("pairs_1m_held", pairs_1m, "pairs/s");
        print("flat_ratio", pairs_1k / pairs_1m, "ratio");
    }
    if runs("handoff") {
        let short = handoff(10);
        print("handoff_10_waiters", short, "ns");
        let long = handoff(100_000);
        print("handoff_100k_waiters", long, "ns");
        print("handoff_ratio", long / short, "ratio");
    }
    if runs("expire") {
        print("expire_100k_owners_ms", expire(100_000), "ms");
    }
    if runs("refuse") {
        print("refuse_above_1k_children", refuse_above(1_000), "ns");
        print("refuse_above_100k_children", refuse_above(100_000), "ns");
    }
}

fn print(name: &str, value: f64, unit: &str) {
    println!(r#"{{"name":"{name}","value":{value:.2},"unit":"{unit}"}}"#);
}

fn space() -> Space {
    Space::new(SpaceLimits::default(), HashSeed(7))
}

fn stamp() -> Stamp {
    Stamp { time: 1, wall: 1 }
}

fn owner(number: u64) -> OwnerId {
    OwnerId::new(&format!("owner-{number:08}")).unwrap()
}

/// `t:/n07/dir-0012/sub-0007/leaf-0000012345`: four segments, 40 bytes.
fn path(number: u64) -> Path {
    let (namespace, rest) = (number % NAMESPACES, number / NAMESPACES);
    let (directory, sub) = (rest % 25, rest / 25 % 25);
    let text = format!("t:/n{namespace:02}/dir-{directory:04}/sub-{sub:04}/leaf-{number:010}");
    assert_eq!(text.len(), 40);
    Path::parse(&text).unwrap()
}

fn route(path: &Path) -> Route {
    Route {
        namespace: Namespace::fallback(path, 1),
        algorithm: Algorithm::RecursiveRw,
        version: 0,
    }
}

fn acquire(owner: &OwnerId, paths: &[Path]) -> Command {
    Command::Acquire(Acquire {
        route: route(&paths[0]),
        owner: owner.clone(),
        ttl: Ttl::from_millis(30_000).unwrap(),
        queue_ttl: QueueTtl::from_millis(600_000).unwrap(),
        requests: paths
            .iter()
            .map(|path| Request {
                path: path.clone(),
                mode: Mode::Write,
                state: RequestKind::New,
                permits: None,
            })
            .collect(),
        releases: Vec::new(),
        fence: None,
        key: None,
        wait: WaitMode::Queue,
        holder: None,
    })
}

fn release(owner: &OwnerId, path: &Path) -> Command {
    Command::Release(Release {
        route: route(path),
        owner: owner.clone(),
        holds: vec![Hold {
            path: path.clone(),
            mode: Mode::Write,
        }],
        key: None,
        whole: None,
    })
}

fn granted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Acquire(AcquireOutcome::Granted { .. }))
}

/// A space in which so many paths are held, each owner's in one namespace; and the bytes that this took.
fn held(locks: u64) -> (Space, usize) {
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut space = space();
    let owners = locks / PER_OWNER;
    for number in 0..owners {
        // Numbers of one namespace, spread over its directories.
        let (namespace, block) = (number % NAMESPACES, number / NAMESPACES);
        let me = owner(number);
        for lock in 0..PER_OWNER {
            let path = path((block * PER_OWNER + lock) * NAMESPACES + namespace);
            let applied = space.apply(stamp(), acquire(&me, &[path]));
            assert!(granted(&applied.outcome));
        }
    }
    assert_eq!(space.counts().claims, locks);
    let after = ALLOCATED.load(Ordering::Relaxed);
    (space, after - before)
}

/// Pairs of acquire and release a second, on paths spread over all directories.
fn best_pairs(mut space: Space, rounds: u32) -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..rounds {
        let pairs: Vec<(Command, Command)> = (0..TARGETS)
            .map(|number| {
                // A step that shares no factor with the counts spreads neighbours far apart.
                let path = path(2 * MILLION + number * 7919 % TARGETS);
                let me = owner(MILLION + number % 64);
                (
                    acquire(&me, std::slice::from_ref(&path)),
                    release(&me, &path),
                )
            })
            .collect();
        let start = Instant::now();
        for (acquire, release) in pairs {
            let applied = space.apply(stamp(), acquire);
            debug_assert!(granted(&applied.outcome));
            black_box(applied);
            black_box(space.apply(stamp(), release));
        }
        best = best.min(start.elapsed());
    }
    TARGETS as f64 / best.as_secs_f64()
}

/// Nanoseconds for a holder to release, the next to be granted, and the first to queue again.
fn handoff(waiters: u64) -> f64 {
    let mut space = space();
    let path = path(1);
    for number in 0..=waiters {
        space.apply(
            stamp(),
            acquire(&owner(number), std::slice::from_ref(&path)),
        );
    }
    assert_eq!(space.counts().waiters, waiters);
    let steps = 20_000;
    let commands: Vec<(Command, Command)> = (0..steps)
        .map(|step| {
            let me = owner(step % (waiters + 1));
            (
                release(&me, &path),
                acquire(&me, std::slice::from_ref(&path)),
            )
        })
        .collect();
    let start = Instant::now();
    for (release, acquire) in commands {
        let applied = space.apply(stamp(), release);
        assert_eq!(applied.events.len(), 1, "one grant each");
        black_box(space.apply(stamp(), acquire));
    }
    start.elapsed().as_nanos() as f64 / steps as f64
}

/// Milliseconds to end the leases of so many owners with one lock each.
fn expire(owners: u64) -> f64 {
    let mut space = space();
    for number in 0..owners {
        space.apply(stamp(), acquire(&owner(number), &[path(number)]));
    }
    let expires: Vec<Command> = space
        .leases()
        .map(|lease| {
            Command::Expire(Expire {
                namespace: lease.namespace.clone(),
                owner: lease.owner.clone(),
                epoch: lease.epoch,
            })
        })
        .collect();
    assert_eq!(expires.len() as u64, owners);
    let start = Instant::now();
    for expire in expires {
        black_box(space.apply(stamp(), expire));
    }
    let spent = start.elapsed();
    assert_eq!(space.counts().claims, 0);
    spent.as_secs_f64() * 1000.0
}

/// Nanoseconds to refuse a write on a directory in which so many paths are held.
fn refuse_above(children: u64) -> f64 {
    let mut space = space();
    for number in 0..children {
        let path = Path::parse(&format!("t:/n00/dir/leaf-{number:010}")).unwrap();
        space.apply(stamp(), acquire(&owner(number % 1000), &[path]));
    }
    let above = Path::parse("t:/n00/dir").unwrap();
    let commands: Vec<Command> = (0..200)
        .map(
            |_| match acquire(&owner(MILLION), std::slice::from_ref(&above)) {
                Command::Acquire(acquire) => Command::Acquire(Acquire {
                    wait: WaitMode::No,
                    ..acquire
                }),
                other => other,
            },
        )
        .collect();
    let count = commands.len() as f64;
    let start = Instant::now();
    for command in commands {
        black_box(space.apply(stamp(), command));
    }
    start.elapsed().as_nanos() as f64 / count
}

/// Megabytes a second of writing a snapshot, and of reading it back.
fn snapshot_rates(space: &Space) -> (f64, f64) {
    let start = Instant::now();
    let bytes = space.encode_snapshot(Vec::new());
    let encode = start.elapsed();
    let start = Instant::now();
    let back = Space::decode_snapshot(&bytes, HashSeed(8)).unwrap();
    let decode = start.elapsed();
    assert_eq!(back.counts().claims, space.counts().claims);
    let megabytes = bytes.len() as f64 / 1e6;
    (
        megabytes / encode.as_secs_f64(),
        megabytes / decode.as_secs_f64(),
    )
}
