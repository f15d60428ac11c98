//! Nodes for the tests of this crate: settings, directories, addresses, waiting, stopping.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses a part; a test fails where something is not as it must be"
)]

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tenure_cluster::{
    BootstrapMode, ClusterReport, Options, PeerOptions, PlacementRules, RunningNode, Secret,
    SyncPolicy, Versions,
};
use tenure_core::policy::Algorithm;
use tenure_node::{ClusterConfig, Limits, NodeId};

/// Time limit of one step of a test.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the settings of the first node, without peers.
pub(crate) fn lone(data_dir: &Path, groups: u32) -> Options {
    Options {
        data_dir: data_dir.to_owned(),
        node: NodeId::new(1).unwrap(),
        name: "node-0".to_owned(),
        cluster: ClusterConfig {
            group_count: groups,
            prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        },
        limits: Limits::default(),
        durable: SyncPolicy::Yes,
        peers: None,
    }
}

/// Starts a node without peers.
pub(crate) fn start_lone(data_dir: &Path, groups: u32) -> RunningNode {
    tenure_cluster::start(lone(data_dir, groups)).unwrap()
}

/// Nodes with one token on addresses that stay the same over restarts, as in production.
pub(crate) struct TestCluster {
    pub(crate) data: tempfile::TempDir,
    groups: u32,
    addresses: Vec<(SocketAddr, SocketAddr)>,
}

impl TestCluster {
    pub(crate) fn new(nodes: u32, groups: u32) -> TestCluster {
        TestCluster {
            data: tempfile::tempdir().unwrap(),
            groups,
            addresses: (0..nodes).map(|_| (free(), free())).collect(),
        }
    }

    pub(crate) fn directory(&self, number: u32) -> PathBuf {
        self.data.path().join(number.to_string())
    }

    pub(crate) fn gossip(&self, number: u32) -> String {
        self.addresses[number as usize - 1].1.to_string()
    }

    pub(crate) fn options(&self, number: u32, begin: BootstrapMode, seeds: &[u32]) -> Options {
        let (listen, gossip_listen) = self.addresses[number as usize - 1];
        Options {
            node: NodeId::new(number).unwrap(),
            name: format!("node-{}", number - 1),
            peers: Some(PeerOptions {
                tls: None,
                token: Secret::new(&[7; 32]),
                listen,
                advertise: ("127.0.0.1".to_owned(), listen.port()),
                gossip_listen,
                gossip_advertise: None,
                begin,
                seeds: seeds.iter().map(|seed| self.gossip(*seed)).collect(),
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
            ..lone(&self.directory(number), self.groups)
        }
    }

    pub(crate) fn start(&self, number: u32, begin: BootstrapMode, seeds: &[u32]) -> RunningNode {
        tenure_cluster::start(self.options(number, begin, seeds)).unwrap()
    }

    /// Returns the settings of a node that creates a cluster, or joins that of its seeds.
    pub(crate) fn member(&self, number: u32, seeds: &[u32]) -> Options {
        let begin = if seeds.is_empty() {
            BootstrapMode::Bootstrap
        } else {
            BootstrapMode::Join
        };
        self.options(number, begin, seeds)
    }

    /// Starts a node with [`member`](TestCluster::member) and waits until it belongs to a cluster.
    pub(crate) async fn join(&self, number: u32, seeds: &[u32]) -> RunningNode {
        let node = tenure_cluster::start(self.member(number, seeds)).unwrap();
        node.handle().joined().await.unwrap();
        node
    }

    /// Starts three nodes as the first release's guide described: the first has no seeds.
    pub(crate) async fn three(&self) -> [RunningNode; 3] {
        let first = self.start(1, BootstrapMode::Bootstrap, &[]);
        let second = self.start(2, BootstrapMode::Join, &[1]);
        let third = self.start(3, BootstrapMode::Join, &[1, 2]);
        second.handle().joined().await.unwrap();
        third.handle().joined().await.unwrap();
        until(&third, "on three nodes", |report| {
            all_up(report, 3) && self.is_settled(report)
        })
        .await;
        [first, second, third]
    }

    /// Returns whether every group has a leader and three voters and no change is in progress.
    pub(crate) fn is_settled(&self, report: &ClusterReport) -> bool {
        let all = report.reports.iter().flat_map(|report| &report.groups);
        let settled = all.filter(|group| {
            group.leads && group.voters.len() == 3 && group.learners.is_empty() && !group.changing
        });
        settled.count() == self.groups as usize + 1
    }
}

/// Returns whether the cluster has this many nodes and all are up.
pub(crate) fn all_up(report: &ClusterReport, nodes: usize) -> bool {
    report.nodes.len() == nodes && report.nodes.iter().all(|node| node.up)
}

/// Returns an address that no socket uses.
pub(crate) fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Waits until the report of a node is as expected.
pub(crate) async fn until(
    node: &RunningNode,
    what: &str,
    is_so: impl Fn(&ClusterReport) -> bool,
) -> ClusterReport {
    let end = Instant::now() + STEP_TIMEOUT;
    loop {
        let report = node.handle().cluster_report().await.unwrap();
        if is_so(&report) {
            return report;
        }
        assert!(Instant::now() < end, "never {what}: {report:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until `find` returns something.
pub(crate) async fn until_some<T>(what: &str, find: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + STEP_TIMEOUT;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until a node has ended and returns the reason.
pub(crate) async fn until_stopped(node: &RunningNode) -> String {
    until_some("the node does not end", || node.handle().stopped()).await
}

/// Stops nodes, one after the other.
pub(crate) async fn stop(nodes: impl IntoIterator<Item = RunningNode>) {
    for node in nodes {
        tokio::task::spawn_blocking(move || node.stop())
            .await
            .unwrap();
    }
}

/// Returns the reason why a node cannot start.
pub(crate) fn refused(options: Options) -> String {
    let started = tenure_cluster::start(options).map(RunningNode::stop);
    started.unwrap_err().to_string()
}

/// Copies a directory with everything in it.
pub(crate) fn copy(from: &Path, to: &Path) {
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
