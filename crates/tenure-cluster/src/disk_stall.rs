//! Failpoint for a hung disk, with tests: the log thread blocks before an fsync while a test lists
//! its directory in `HELD`.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use tenure_core::command::{Request, RequestKind, WaitMode};
use tenure_core::policy::Mode;
use tenure_core::value::{OwnerId, QueueTtl, Ttl};
use tenure_node::{AcquireRequest, Answer, ClientRequest, Deadlock, Failure};

use crate::Handle;
use crate::test_support::{TestCluster, start_lone, stop};

static HELD: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static CHANGED: Condvar = Condvar::new();

/// Blocks while the disk of this directory hangs.
pub(crate) fn wait(place: &Path) {
    let mut held = HELD.lock().unwrap();
    while held.contains(place) {
        held = CHANGED.wait(held).unwrap();
    }
}

/// Lets the disk of a node hang until it is dropped.
struct StalledDisk(PathBuf);

impl StalledDisk {
    fn begin(data_dir: &Path) -> StalledDisk {
        let place = data_dir.join("db");
        HELD.lock().unwrap().insert(place.clone());
        StalledDisk(place)
    }
}

impl Drop for StalledDisk {
    fn drop(&mut self) {
        HELD.lock().unwrap().remove(&self.0);
        CHANGED.notify_all();
    }
}

fn request(paths: impl Iterator<Item = String>) -> Box<ClientRequest> {
    let requests = paths.map(|path| Request {
        path: tenure_core::path::Path::parse(&path).unwrap(),
        mode: Mode::Write,
        state: RequestKind::New,
        permits: None,
    });
    Box::new(ClientRequest::Acquire(AcquireRequest {
        owner: OwnerId::new("amy").unwrap(),
        ttl: Ttl::from_millis(600_000).unwrap(),
        queue_ttl: QueueTtl::from_millis(0).unwrap(),
        requests: requests.collect(),
        releases: Vec::new(),
        fence: None,
        key: None,
        wait: WaitMode::Queue,
        holder: None,
        deadlock: Deadlock::Ignore,
    }))
}

async fn acquire(handle: &Handle, path: String) -> Result<Answer, Failure> {
    let request = request(std::iter::once(path));
    handle.call(request, Duration::from_secs(20)).await
}

async fn leads_something(handle: &Handle) -> bool {
    let status = handle.status().await.unwrap();
    status.groups.iter().any(|group| group.serves)
}

/// R145 (Health needs a working quorum): a leader with a hung disk transfers its leaderships,
/// reports that it is not healthy, and ends without waiting for the disk.
#[tokio::test]
async fn a_node_whose_disk_hangs_lets_others_lead_and_ends() {
    let place = TestCluster::new(3, 4);
    let nodes = place.three().await;
    // The first node leads a group.
    while !leads_something(nodes[0].handle()).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let hanging = StalledDisk::begin(&place.directory(1));
    // Gives every group something to write.
    for number in 0..32 {
        let _ = nodes[1]
            .handle()
            .call(
                request(std::iter::once(format!("t{number}:/a"))),
                Duration::from_millis(200),
            )
            .await;
    }
    while leads_something(nodes[0].handle()).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The report does not wait for the log thread.
    let vitals = nodes[0].handle().vitals().await.unwrap();
    assert!(vitals.status.unsynced_ms >= 1_000, "{vitals:?}");
    let health = nodes[0]
        .handle()
        .call(Box::new(ClientRequest::Health), Duration::from_secs(2))
        .await;
    let Err(Failure::Unavailable { why, .. }) = health else {
        panic!("healthy: {health:?}");
    };
    assert!(why.contains("disk"), "{why}");
    // All clients are served, also through the node with the hung disk.
    for (number, node) in nodes.iter().enumerate() {
        let answer = acquire(node.handle(), format!("u{number}:/a")).await;
        assert!(matches!(answer, Ok(Answer::Acquire(_))), "{answer:?}");
    }
    let why = nodes[0].handle().ended().await;
    assert!(why.contains("disk"), "{why}");
    assert!(HELD.lock().unwrap().contains(&hanging.0));
    stop(nodes).await;
    drop(hanging);
}

/// R150 (enumeration limits): no legal request stops a node. Ninety acquires of a thousand long
/// paths each in one turn are more than five records of the log.
#[tokio::test]
async fn more_than_the_log_takes_at_once_is_written() {
    let data = tempfile::tempdir().unwrap();
    let node = start_lone(data.path(), 256);
    let handle = node.handle();
    let segment = "x".repeat(3_900);
    let calls: Vec<_> = handle.defer_wake(|| {
        let requests = (0..90).map(|number| {
            let paths = (0..1_000).map(|at| format!("t{number}:/a/{at}{segment}"));
            request(paths)
        });
        let call = |request| handle.call(request, Duration::from_secs(60));
        requests.map(call).collect()
    });
    for call in calls {
        let answer = call.await;
        assert!(matches!(answer, Ok(Answer::Acquire(_))), "{answer:?}");
    }
    assert_eq!(handle.stopped(), None);
    stop([node]).await;
}

/// While the node is busy, calls inside `defer_wake_unless_busy` ask for one wake-up at its end,
/// however they are submitted.
#[tokio::test]
async fn calls_to_a_busy_node_share_one_wake_up() {
    const LONG: Duration = Duration::from_secs(60);
    let data = tempfile::tempdir().unwrap();
    let node = start_lone(data.path(), 4);
    let handle = node.handle();
    acquire(handle, "first:/a".to_owned()).await.unwrap();
    // These calls wait for the disk, so the node is busy.
    let hanging = StalledDisk::begin(data.path());
    let paths = (0..8).map(|number| format!("t{number}:/a"));
    let held: Vec<_> = paths
        .map(|path| handle.call(request(std::iter::once(path)), LONG))
        .collect();
    let mut batch = handle.calls(1);
    let health = || Box::new(ClientRequest::Health);
    for is_batch in [false, true] {
        let begun = Instant::now();
        let requested = Cell::new(0);
        while requested.get() == 0 {
            assert!(begun.elapsed() < LONG, "no wake-up was requested");
            let submit = || {
                if is_batch {
                    batch.push(0, health(), LONG);
                    batch.flush();
                    None
                } else {
                    Some(handle.call(health(), LONG))
                }
            };
            let requests = || requested.set(requested.get() + 1);
            let single = handle.defer_wake_unless_busy(submit, requests);
            handle.serve();
            // Health may fail because of the disk; the test is about the answer's arrival.
            match single {
                Some(call) => drop(call.await),
                None => poll_fn(|cx| batch.poll(cx, &mut Vec::new())).await,
            }
        }
        assert_eq!(requested.get(), 1);
    }
    drop(hanging);
    for call in held {
        assert!(call.await.is_ok());
    }
    stop([node]).await;
}
