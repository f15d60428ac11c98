//! Failpoint for a hung disk, with tests: the log thread blocks before an fsync while a test lists
//! its directory in `HELD`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use tenure_core::command::{Request, RequestKind, WaitMode};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::value::{OwnerId, QueueTtl, Ttl};
use tenure_node::{
    AcquireRequest, Answer, ClientRequest, ClusterConfig, Deadlock, Failure, Limits, NodeId,
};

use crate::{
    BootstrapMode, Handle, Options, PeerOptions, PlacementRules, RunningNode, Secret, SyncPolicy,
    Versions, start,
};

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
    fn begin(data: &Path, number: u32) -> StalledDisk {
        let place = data.join(number.to_string()).join("db");
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

fn options(data: &Path, number: u32, seeds: Vec<String>) -> Options {
    Options {
        data_dir: data.join(number.to_string()),
        node: NodeId::new(number).unwrap(),
        name: format!("node-{}", number - 1),
        cluster: ClusterConfig {
            group_count: 4,
            prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        },
        limits: Limits::default(),
        durable: SyncPolicy::Yes,
        peers: Some(PeerOptions {
            tls: None,
            token: Secret::new(&[7; 32]),
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: ("127.0.0.1".to_owned(), 0),
            gossip_listen: "127.0.0.1:0".parse().unwrap(),
            gossip_advertise: None,
            begin: if seeds.is_empty() {
                BootstrapMode::Bootstrap
            } else {
                BootstrapMode::Join
            },
            seeds,
            expected_cluster: None,
            announce_every: Duration::from_millis(200),
            expected_nodes: 8,
            max_packet: 1400,
            public: String::new(),
            versions: Versions::OURS,
            rules: PlacementRules {
                replication_factor: 3,
                stability_ms: 0,
                eviction_ms: 60_000,
                balance_ms: 1_000,
                at_once: 16,
            },
        }),
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
    let data = tempfile::tempdir().unwrap();
    let first = start(options(data.path(), 1, Vec::new())).unwrap();
    first.handle().joined().await.unwrap();
    let mut nodes = vec![first];
    for number in 2..=3 {
        let seeds = vec![nodes[0].addresses().unwrap().1.to_string()];
        let node = start(options(data.path(), number, seeds)).unwrap();
        node.handle().joined().await.unwrap();
        nodes.push(node);
    }
    // Every group has three voters, and the first node leads one of them.
    loop {
        let cluster_report = nodes[0].handle().cluster_report().await.unwrap();
        let groups = cluster_report
            .reports
            .iter()
            .flat_map(|report| &report.groups);
        let settled = groups.filter(|group| group.leads && group.voters.len() == 3);
        if settled.count() == 5 && leads_something(nodes[0].handle()).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let hanging = StalledDisk::begin(data.path(), 1);
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
    let why = nodes[0].handle().hung().await;
    assert!(why.contains("disk"), "{why}");
    assert!(HELD.lock().unwrap().contains(&hanging.0));
    for node in nodes {
        tokio::task::spawn_blocking(move || RunningNode::stop(node))
            .await
            .unwrap();
    }
    drop(hanging);
}

/// R150 (enumeration limits): no legal request stops a node. Ninety acquires of a thousand long
/// paths each in one turn are more than five records of the log.
#[tokio::test]
async fn more_than_the_log_takes_at_once_is_written() {
    let data = tempfile::tempdir().unwrap();
    let mut options = options(data.path(), 1, Vec::new());
    options.cluster.group_count = 256;
    options.peers = None;
    let node = start(options).unwrap();
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
    tokio::task::spawn_blocking(move || node.stop())
        .await
        .unwrap();
}
