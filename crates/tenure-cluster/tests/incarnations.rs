//! Incarnations of one node number: a node with an empty disk replaces its earlier incarnation, and
//! neither an earlier incarnation nor an older copy of the current one takes part again.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tenure_cluster::{
    BootstrapMode, ClusterReport, Options, PeerOptions, PlacementRules, RunningNode, Secret,
    SyncPolicy, Versions,
};
use tenure_core::codec::{Encode, Reader, Writer};
use tenure_core::policy::Algorithm;
use tenure_log::Log;
use tenure_node::{ClusterConfig, Limits, NodeId};

const STEP_TIMEOUT: Duration = Duration::from_secs(30);
const YEAR_MS: u64 = 365 * 24 * 3_600_000;

/// Two nodes of one cluster, on addresses that stay the same over restarts.
struct TestDirectory {
    data: tempfile::TempDir,
    addresses: [(SocketAddr, SocketAddr); 2],
}

impl TestDirectory {
    fn new() -> TestDirectory {
        TestDirectory {
            data: tempfile::tempdir().unwrap(),
            addresses: [(free(), free()), (free(), free())],
        }
    }

    fn directory(&self, number: u32) -> PathBuf {
        self.data.path().join(number.to_string())
    }

    fn options(&self, number: u32) -> Options {
        let (listen, gossip_listen) = self.addresses[number as usize - 1];
        let other = self.addresses[2 - number as usize].1.to_string();
        Options {
            data_dir: self.directory(number),
            node: NodeId::new(number).unwrap(),
            name: format!("node-{}", number - 1),
            cluster: ClusterConfig {
                group_count: 2,
                prefix_segments: 1,
                default_algorithm: Algorithm::RecursiveRw,
            },
            limits: Limits::default(),
            durable: SyncPolicy::Yes,
            peers: Some(PeerOptions {
                tls: None,
                token: Secret::new(&[7; 32]),
                listen,
                advertise: ("127.0.0.1".to_owned(), listen.port()),
                gossip_listen,
                gossip_advertise: None,
                begin: if number == 1 {
                    BootstrapMode::Bootstrap
                } else {
                    BootstrapMode::Join
                },
                seeds: if number == 1 { Vec::new() } else { vec![other] },
                announce_every: Duration::from_millis(200),
                expected_nodes: 8,
                max_packet: 1400,
                public: String::new(),
                expected_cluster: None,
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

    fn start(&self, number: u32) -> RunningNode {
        tenure_cluster::start(self.options(number)).unwrap()
    }

    /// Starts both nodes and waits until they are connected.
    async fn two(&self) -> [RunningNode; 2] {
        let first = self.start(1);
        let second = self.start(2);
        second.handle().joined().await.unwrap();
        until(&first, "connected", second_is_up).await;
        [first, second]
    }

    /// Copies the data of a stopped node under another name.
    fn copy(&self, number: u32, name: &str) {
        copy(&self.directory(number), &self.data.path().join(name));
    }

    /// Replaces the node's data with a copy that was kept.
    fn put_back(&self, name: &str, number: u32) {
        std::fs::remove_dir_all(self.directory(number)).unwrap();
        copy(&self.data.path().join(name), &self.directory(number));
    }
}

fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

async fn until(
    node: &RunningNode,
    what: &str,
    is_so: impl Fn(&ClusterReport) -> bool,
) -> ClusterReport {
    let end = Instant::now() + STEP_TIMEOUT;
    loop {
        let cluster_report = node.handle().cluster_report().await.unwrap();
        if is_so(&cluster_report) {
            return cluster_report;
        }
        assert!(Instant::now() < end, "never {what}: {cluster_report:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a node reports a problem with another one.
async fn until_problem(node: &RunningNode) -> String {
    let end = Instant::now() + STEP_TIMEOUT;
    loop {
        if let Some(problem) = node.handle().problems().pop() {
            return problem;
        }
        assert!(Instant::now() < end, "no problem is reported");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_stopped(node: &RunningNode) -> String {
    let end = Instant::now() + STEP_TIMEOUT;
    loop {
        if let Some(why) = node.handle().stopped() {
            return why;
        }
        assert!(Instant::now() < end, "it goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn stop(node: RunningNode) {
    tokio::task::spawn_blocking(move || node.stop())
        .await
        .unwrap();
}

fn second_is_up(cluster_report: &ClusterReport) -> bool {
    let mut nodes = cluster_report.nodes.iter();
    nodes.any(|node| node.member.node.number() == 2 && node.up)
}

/// Returns the incarnation of the second node, as another node reports it.
fn second_life(cluster_report: &ClusterReport) -> u32 {
    let mut nodes = cluster_report.nodes.iter();
    let second = nodes.find(|node| node.member.node.number() == 2);
    second.unwrap().member.incarnation
}

/// Changes the creation time of a data directory, as if the clock of its machine had been wrong.
fn born_later(data_dir: &Path, by_ms: u64) {
    let disk = tenure_log::RealDisk::open(data_dir.join("db")).unwrap();
    let opened = tenure_log::open(disk, tenure_log::Options::default()).unwrap();
    let old = &opened.recovered.node[&b"identity"[..]];
    let mut input = Reader::new(old);
    let mut out = Writer::new();
    out.byte(input.byte().unwrap());
    for _ in 0..4 {
        out.number(input.number().unwrap());
    }
    out.put(&Algorithm::take(&mut input).unwrap());
    out.number(input.number().unwrap() + by_ms);
    out.number(input.number().unwrap());
    out.byte(input.byte().unwrap());
    input.finish().unwrap();
    let mut log = opened.log;
    let mut batch = tenure_log::Batch::new();
    batch.node(b"identity", &out.into_bytes()).unwrap();
    log.append(&mut batch).unwrap();
    log.sync().unwrap();
}

/// A node that lost its disk replaces its earlier incarnation, even if that one was created by a
/// clock that was ahead.
#[tokio::test]
async fn a_new_life_counts_although_the_clock_of_the_earlier_one_was_ahead() {
    let place = TestDirectory::new();
    let [first, second] = place.two().await;
    stop(second).await;
    born_later(&place.directory(2), YEAR_MS);
    let second = place.start(2);
    let cluster_report = until(&first, "connected again", second_is_up).await;
    let before = second_life(&cluster_report);
    stop(second).await;

    std::fs::remove_dir_all(place.directory(2)).unwrap();
    let second = place.start(2);
    second.handle().joined().await.unwrap();
    let is_new = |cluster_report: &ClusterReport| {
        second_is_up(cluster_report) && second_life(cluster_report) != before
    };
    let cluster_report = until(&first, "known in its new life", is_new).await;
    assert_eq!(
        second_life(&cluster_report),
        second_life(&second.handle().cluster_report().await.unwrap())
    );
    // The order of the incarnations is durable on both sides.
    stop(first).await;
    stop(second).await;
    let first = place.start(1);
    let second = place.start(2);
    until(&first, "connected after a restart", is_new).await;
    assert_eq!(first.handle().problems(), Vec::<String>::new());
    stop(first).await;
    stop(second).await;
}

/// Both sides refuse the volume of an earlier incarnation and name the command that helps.
#[tokio::test]
async fn a_volume_of_an_earlier_life_is_refused() {
    let place = TestDirectory::new();
    let [first, second] = place.two().await;
    stop(second).await;
    place.copy(2, "old");
    std::fs::remove_dir_all(place.directory(2)).unwrap();
    let second = place.start(2);
    second.handle().joined().await.unwrap();
    let cluster_report = until(&first, "connected in a new life", second_is_up).await;
    let incarnation = second_life(&cluster_report);
    stop(second).await;

    place.put_back("old", 2);
    let second = place.start(2);
    for node in [&first, &second] {
        let problem = until_problem(node).await;
        assert!(problem.contains("tenure cluster rejoin"), "{problem}");
    }
    let cluster_report = first.handle().cluster_report().await.unwrap();
    assert!(!second_is_up(&cluster_report), "{cluster_report:#?}");
    assert_eq!(second_life(&cluster_report), incarnation);
    stop(second).await;

    // The remedy that the message names.
    tenure_cluster::offline::rejoin(&place.directory(2)).unwrap();
    let second = place.start(2);
    second.handle().joined().await.unwrap();
    until(&first, "connected in a third life", second_is_up).await;
    let end = Instant::now() + STEP_TIMEOUT;
    while !first.handle().problems().is_empty() {
        assert!(Instant::now() < end, "{:?}", first.handle().problems());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop(first).await;
    stop(second).await;
}

/// An older copy of a data directory does not contain the latest votes: the node stops, durably.
#[tokio::test]
async fn an_older_copy_of_a_data_directory_stops() {
    let place = TestDirectory::new();
    let [first, second] = place.two().await;
    stop(second).await;
    place.copy(2, "old");
    for _ in 0..2 {
        let second = place.start(2);
        until(&first, "connected again", second_is_up).await;
        stop(second).await;
    }
    place.put_back("old", 2);
    let second = place.start(2);
    let why = until_stopped(&second).await;
    assert!(
        why.contains("older copy") && why.contains("tenure cluster rejoin"),
        "{why}"
    );
    let cluster_report = first.handle().cluster_report().await.unwrap();
    assert!(!second_is_up(&cluster_report), "{cluster_report:#?}");
    let problem = until_problem(&first).await;
    assert!(problem.contains("tenure cluster rejoin"), "{problem}");
    stop(second).await;
    // More starts than the copy is behind: the start count alone would admit it.
    for _ in 0..3 {
        let again = tenure_cluster::start(place.options(2)).map(RunningNode::stop);
        assert_eq!(again.unwrap_err().to_string(), why);
    }
    tenure_cluster::offline::rejoin(&place.directory(2)).unwrap();
    let second = place.start(2);
    second.handle().joined().await.unwrap();
    until(&first, "connected in a new life", second_is_up).await;
    stop(first).await;
    stop(second).await;
}
