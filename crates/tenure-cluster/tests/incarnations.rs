//! Incarnations of one node number: a node with an empty disk replaces its earlier incarnation, and
//! neither an earlier incarnation nor an older copy of the current one takes part again.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::path::Path;

use support::{TestCluster, copy, refused, stop, until, until_some, until_stopped};
use tenure_cluster::{ClusterReport, Options, RunningNode};
use tenure_core::codec::{Encode, Reader, Writer};
use tenure_core::policy::Algorithm;
use tenure_log::Log;

const YEAR_MS: u64 = 365 * 24 * 3_600_000;

/// A cluster of two nodes; the first one creates it.
struct Pair(TestCluster);

impl Pair {
    fn options(&self, number: u32) -> Options {
        self.0.member(number, if number == 1 { &[] } else { &[1] })
    }

    fn start(&self, number: u32) -> RunningNode {
        tenure_cluster::start(self.options(number)).unwrap()
    }

    fn directory(&self, number: u32) -> std::path::PathBuf {
        self.0.directory(number)
    }

    /// Starts both nodes of a new cluster and waits until they are connected.
    async fn two() -> (Pair, [RunningNode; 2]) {
        let pair = Pair(TestCluster::new(2, 2));
        let nodes = [pair.start(1), pair.start(2)];
        nodes[1].handle().joined().await.unwrap();
        until(&nodes[0], "connected", second_is_up).await;
        (pair, nodes)
    }

    /// Copies the data of the stopped second node.
    fn keep_second(&self) {
        copy(&self.directory(2), &self.0.data.path().join("old"));
    }

    /// Replaces the data of the second node with the copy.
    fn put_second_back(&self) {
        std::fs::remove_dir_all(self.directory(2)).unwrap();
        copy(&self.0.data.path().join("old"), &self.directory(2));
    }
}

/// Waits until a node reports a problem with another one.
async fn until_problem(node: &RunningNode) -> String {
    let problem = || node.handle().problems().pop();
    until_some("no problem is reported", problem).await
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
    let (place, [first, second]) = Pair::two().await;
    stop([second]).await;
    born_later(&place.directory(2), YEAR_MS);
    let second = place.start(2);
    let cluster_report = until(&first, "connected again", second_is_up).await;
    let before = second_life(&cluster_report);
    stop([second]).await;

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
    stop([first, second]).await;
    let first = place.start(1);
    let second = place.start(2);
    until(&first, "connected after a restart", is_new).await;
    assert_eq!(first.handle().problems(), Vec::<String>::new());
    stop([first, second]).await;
}

/// Both sides refuse the volume of an earlier incarnation and name the command that helps.
#[tokio::test]
async fn a_volume_of_an_earlier_life_is_refused() {
    let (place, [first, second]) = Pair::two().await;
    stop([second]).await;
    place.keep_second();
    std::fs::remove_dir_all(place.directory(2)).unwrap();
    let second = place.start(2);
    second.handle().joined().await.unwrap();
    let cluster_report = until(&first, "connected in a new life", second_is_up).await;
    let incarnation = second_life(&cluster_report);
    stop([second]).await;

    place.put_second_back();
    let second = place.start(2);
    for node in [&first, &second] {
        let problem = until_problem(node).await;
        assert!(problem.contains("tenure cluster rejoin"), "{problem}");
    }
    let cluster_report = first.handle().cluster_report().await.unwrap();
    assert!(!second_is_up(&cluster_report), "{cluster_report:#?}");
    assert_eq!(second_life(&cluster_report), incarnation);
    stop([second]).await;

    // The remedy that the message names.
    tenure_cluster::offline::rejoin(&place.directory(2)).unwrap();
    let second = place.start(2);
    second.handle().joined().await.unwrap();
    until(&first, "connected in a third life", second_is_up).await;
    let none_left = || first.handle().problems().is_empty().then_some(());
    until_some("the problem is still reported", none_left).await;
    stop([first, second]).await;
}

/// An older copy of a data directory does not contain the latest votes: the node stops, durably.
#[tokio::test]
async fn an_older_copy_of_a_data_directory_stops() {
    let (place, [first, second]) = Pair::two().await;
    stop([second]).await;
    place.keep_second();
    for _ in 0..2 {
        let second = place.start(2);
        until(&first, "connected again", second_is_up).await;
        stop([second]).await;
    }
    place.put_second_back();
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
    stop([second]).await;
    // More starts than the copy is behind: the start count alone would admit it.
    for _ in 0..3 {
        assert_eq!(refused(place.options(2)), why);
    }
    tenure_cluster::offline::rejoin(&place.directory(2)).unwrap();
    let second = place.start(2);
    second.handle().joined().await.unwrap();
    until(&first, "connected in a new life", second_is_up).await;
    stop([first, second]).await;
}
