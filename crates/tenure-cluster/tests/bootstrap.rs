//! R167 (bootstrap decision): a node never creates a cluster where one already exists.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use support::{
    STEP_TIMEOUT, TestCluster, all_up, free, refused, stop, until, until_some, until_stopped,
};
use tenure_cluster::offline::OldData;
use tenure_cluster::{BootstrapMode, ClusterReport, DataOrigin, RunningNode, offline};
use tenure_node::{ClientRequest, GroupId, NodeId};

const GROUPS: u32 = 4;

fn nodes(count: u32) -> TestCluster {
    TestCluster::new(count, GROUPS)
}

fn incarnation(cluster_report: &ClusterReport, number: u32) -> u32 {
    let node = cluster_report
        .nodes
        .iter()
        .find(|node| node.member.node.number() == number);
    node.unwrap().member.incarnation
}

/// Checks that the first node comes back as a new incarnation in the cluster that it created.
async fn comes_back(
    place: &TestCluster,
    first: RunningNode,
    others: [RunningNode; 2],
    lose: impl Fn(&Path),
) {
    let before = others[0].handle().cluster_report().await.unwrap();
    stop([first]).await;
    lose(&place.directory(1));
    // Same configuration as when it created the cluster.
    let first = place.start(1, BootstrapMode::Bootstrap, &[]);
    tokio::time::timeout(STEP_TIMEOUT, first.handle().joined())
        .await
        .unwrap()
        .unwrap();
    let after = until(&others[0], "whole again", |cluster_report| {
        all_up(cluster_report, 3) && place.is_settled(cluster_report)
    })
    .await;
    assert_ne!(incarnation(&before, 1), incarnation(&after, 1));
    assert_eq!(
        first.handle().cluster_report().await.unwrap().nodes.len(),
        3
    );
    stop([first]).await;
    stop(others).await;
}

/// R167: `tenure cluster rejoin` on the creator of a cluster makes it a member again.
#[tokio::test]
async fn a_founder_that_rejoins_does_not_found_again() {
    let place = nodes(3);
    let [first, second, third] = place.three().await;
    comes_back(&place, first, [second, third], |directory| {
        offline::rejoin(directory).unwrap();
    })
    .await;
    assert!(!place.directory(1).join("next-start").exists());
}

/// R167: a creator whose disk is lost or not mounted finds the cluster that it created.
#[tokio::test]
async fn a_founder_that_lost_its_disk_does_not_found_again() {
    let place = nodes(3);
    let [first, second, third] = place.three().await;
    comes_back(&place, first, [second, third], |directory| {
        std::fs::remove_dir_all(directory).unwrap();
    })
    .await;
}

/// R167: old data beside a missing `db` prevents a node from creating a cluster.
#[test]
fn data_that_was_set_aside_keeps_a_node_from_founding() {
    for name in ["db.damaged.0", "db.before-recover.3", "db.new"] {
        let place = nodes(1);
        std::fs::create_dir_all(place.directory(1).join(name)).unwrap();
        let mut alone = place.options(1, BootstrapMode::Bootstrap, &[]);
        alone.peers = None;
        for options in [
            place.options(1, BootstrapMode::Bootstrap, &[]),
            place.options(1, BootstrapMode::Force, &[]),
            alone,
        ] {
            let why = refused(options);
            assert!(
                why.contains(name) && why.contains("tenure cluster"),
                "{why}"
            );
        }
    }
}

/// R167: an order to join that is unreadable or cannot be carried out prevents the start.
#[test]
fn an_order_is_never_ignored() {
    let place = nodes(1);
    let directory = place.directory(1);
    let mut alone = place.options(1, BootstrapMode::Bootstrap, &[]);
    alone.peers = None;
    tenure_cluster::start(alone.clone()).unwrap().stop();
    offline::rejoin(&directory).unwrap();
    let why = refused(alone.clone());
    assert!(
        why.contains("tenure cluster rejoin") && why.contains("seed_nodes"),
        "{why}"
    );
    let file = directory.join("next-start");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let why = refused(alone);
    assert!(why.contains("next-start"), "{why}");
}

/// R167: with silent seeds only an operator's order creates a cluster, and only once.
#[tokio::test]
async fn an_operators_order_founds_once() {
    let place = nodes(2);
    let directory = place.directory(1);
    let why = refused(place.options(1, BootstrapMode::Bootstrap, &[2]));
    assert!(why.contains("these seeds did not answer"), "{why}");
    offline::found(&directory, OldData::Keep).unwrap();
    assert!(offline::is_ordered_to_found(&directory));
    let first = place.start(1, BootstrapMode::Join, &[2]);
    assert_eq!(first.origin(), DataOrigin::Founded);
    let cluster = first.handle().cluster().unwrap();
    assert!(!offline::is_ordered_to_found(&directory));
    // A daemon that belongs to a cluster must not be ordered to create one.
    let why = offline::found(&directory, OldData::Forget).unwrap_err();
    assert!(why.to_string().contains("already in a cluster"), "{why}");
    stop([first]).await;
    let why = offline::found(&directory, OldData::Forget).unwrap_err();
    assert!(
        why.to_string().contains("already belongs to cluster"),
        "{why}"
    );
    let first = place.start(1, BootstrapMode::Force, &[2]);
    assert_eq!(first.origin(), DataOrigin::Resumed);
    assert_eq!(first.handle().cluster(), Some(cluster));
    // An order on another node does not create a second cluster while the first answers.
    offline::found(&place.directory(2), OldData::Keep).unwrap();
    let second = place.start(2, BootstrapMode::Bootstrap, &[1]);
    assert_eq!(second.origin(), DataOrigin::Joins);
    second.handle().joined().await.unwrap();
    assert_eq!(second.handle().cluster(), Some(cluster));
    assert!(!offline::is_ordered_to_found(&place.directory(2)));
    stop([first, second]).await;
}

/// R167: nodes that wait for a cluster answer their seeds, so that the creator need not wait for
/// silent seeds.
#[tokio::test]
async fn a_waiting_node_is_ordered_to_found() {
    let place = nodes(2);
    let first = place.start(1, BootstrapMode::Join, &[2]);
    let second = place.start(2, BootstrapMode::Join, &[1]);
    assert_eq!(first.origin(), DataOrigin::Joins);
    // The order is given while the node waits.
    offline::found(&place.directory(1), OldData::Keep).unwrap();
    stop([first]).await;
    let first = place.start(1, BootstrapMode::Join, &[2]);
    assert_eq!(first.origin(), DataOrigin::Founded);
    second.handle().joined().await.unwrap();
    assert_eq!(second.handle().cluster(), first.handle().cluster());
    stop([first, second]).await;
}

/// R167: two operators order the creation of a cluster at the same time. One node creates it, the
/// other one joins it.
#[tokio::test]
async fn two_orders_at_once_found_one_cluster() {
    let place = nodes(2);
    let both = [(1, 2), (2, 1)].map(|(number, seed)| {
        offline::found(&place.directory(number), OldData::Keep).unwrap();
        let options = place.options(number, BootstrapMode::Join, &[seed]);
        tokio::task::spawn_blocking(move || tenure_cluster::start(options).unwrap())
    });
    let [first, second] = both;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!(first.origin(), DataOrigin::Founded);
    assert_eq!(second.origin(), DataOrigin::Joins);
    second.handle().joined().await.unwrap();
    assert_eq!(second.handle().cluster(), first.handle().cluster());
    stop([first, second]).await;
}

/// R167: old data is given up only on an operator's order.
#[test]
fn old_data_is_given_up_by_order_only() {
    let place = nodes(1);
    let directory = place.directory(1);
    std::fs::create_dir_all(directory.join("db.damaged.0")).unwrap();
    let why = offline::found(&directory, OldData::Keep).unwrap_err();
    assert!(why.to_string().contains("--forget-old-data"), "{why}");
    offline::found(&directory, OldData::Forget).unwrap();
    let first = place.start(1, BootstrapMode::Join, &[]);
    assert_eq!(first.origin(), DataOrigin::Founded);
    first.stop();
}

/// `expected_cluster_id` refuses any other cluster, including that of the directory, and creates
/// none.
#[tokio::test]
async fn an_unexpected_cluster_is_refused() {
    let place = nodes(2);
    let first = place.start(1, BootstrapMode::Bootstrap, &[]);
    let cluster = first.handle().cluster().unwrap();
    let expecting = |number, seeds: &[u32], expected| {
        let mut options = place.options(number, BootstrapMode::Force, seeds);
        options.peers.as_mut().unwrap().expected_cluster = Some(expected);
        options
    };
    let second = tenure_cluster::start(expecting(2, &[1], cluster ^ 2)).unwrap();
    assert_eq!(second.origin(), DataOrigin::Joins);
    let joined = tokio::time::timeout(Duration::from_secs(4), second.handle().joined()).await;
    assert!(joined.is_err(), "{joined:?}");
    stop([second]).await;
    let second = tenure_cluster::start(expecting(2, &[1], cluster)).unwrap();
    second.handle().joined().await.unwrap();
    stop([first, second]).await;
    let why = refused(expecting(1, &[], cluster ^ 2));
    assert!(why.contains("expected_cluster_id"), "{why}");
    let first = tenure_cluster::start(expecting(1, &[], cluster)).unwrap();
    assert_eq!(first.origin(), DataOrigin::Resumed);
    stop([first]).await;
}

/// Starts the same node in another directory, as if it had created a cluster while the others were
/// away.
fn founded_apart(place: &TestCluster, number: u32) {
    let mut apart = place.options(number, BootstrapMode::Bootstrap, &[]);
    // An address that no other node knows.
    let peers = apart.peers.as_mut().unwrap();
    (peers.listen, peers.gossip_listen) = (free(), free());
    tenure_cluster::start(apart).unwrap().stop();
}

async fn until_met(node: &RunningNode) -> String {
    let rival = || node.handle().rivals().pop();
    until_some("it has met no other cluster", rival).await
}

/// R161 (settings fixed per cluster): of two clusters with one token the one with the shorter
/// history stops serving, durably, and both report it. A node with seeds in both joins the other
/// one.
#[tokio::test]
async fn two_clusters_with_one_token_notice_each_other() {
    let place = nodes(4);
    let [first, second, third] = place.three().await;
    let cluster = second.handle().cluster().unwrap();
    stop([first]).await;
    std::fs::remove_dir_all(place.directory(1)).unwrap();
    founded_apart(&place, 1);
    let lost = place.start(1, BootstrapMode::Join, &[]);
    assert_eq!(lost.origin(), DataOrigin::Resumed);
    let why = until_stopped(&lost).await;
    assert!(
        why.contains("tenure cluster rejoin") && why.contains("keep"),
        "{why}"
    );
    let health = ClientRequest::Health;
    let health = lost.handle().call(Box::new(health), STEP_TIMEOUT).await;
    assert!(health.is_err());
    let met = until_met(&second).await;
    assert!(
        met.contains("node-0") && met.contains("this cluster continues"),
        "{met}"
    );
    assert_eq!(second.handle().stopped(), None);
    let fourth = place.start(4, BootstrapMode::Join, &[1, 2]);
    fourth.handle().joined().await.unwrap();
    assert_eq!(fourth.handle().cluster(), Some(cluster));
    stop([lost]).await;
    // After a restart it does not serve either, not even briefly.
    assert_eq!(refused(place.options(1, BootstrapMode::Join, &[])), why);
    offline::rejoin(&place.directory(1)).unwrap();
    let first = place.start(1, BootstrapMode::Join, &[]);
    first.handle().joined().await.unwrap();
    assert_eq!(first.handle().cluster(), Some(cluster));
    let none_left = || second.handle().rivals().is_empty().then_some(());
    until_some("the rival is still reported", none_left).await;
    stop([first, second, third, fourth]).await;
}

/// R161: a node without a cluster that is offered two chooses the one that continues.
#[tokio::test]
async fn a_node_that_is_offered_two_clusters_joins_the_one_that_goes_on() {
    let place = nodes(4);
    let [first, second, third] = place.three().await;
    let cluster = first.handle().cluster();
    // A cluster of another node, with no contact to the first one.
    let alone = nodes(4);
    let other = alone.start(3, BootstrapMode::Bootstrap, &[]);
    assert_ne!(other.handle().cluster(), cluster);
    let mut options = place.options(4, BootstrapMode::Join, &[2]);
    // The cluster with the shorter history answers first.
    let seeds = &mut options.peers.as_mut().unwrap().seeds;
    seeds.insert(0, alone.gossip(3));
    let fourth = tenure_cluster::start(options).unwrap();
    fourth.handle().joined().await.unwrap();
    assert_eq!(fourth.handle().cluster(), cluster);
    stop([first, second, third, fourth, other]).await;
}

/// R161: a restarted node without a replica of the system group claims the history of its cluster
/// that it has heard of. A shorter claim would make its cluster stop for a younger one.
#[tokio::test]
async fn a_member_claims_the_history_that_it_has_heard_of() {
    let place = nodes(4);
    let start = |number, begin, seeds: &[u32]| {
        let mut options = place.options(number, begin, seeds);
        // Each group has one replica, which stays on the node that created it.
        options.peers.as_mut().unwrap().rules.replication_factor = 1;
        tenure_cluster::start(options).unwrap()
    };
    let both_up = |cluster_report: &ClusterReport| {
        cluster_report.nodes.iter().filter(|node| node.up).count() == 2
    };
    for _ in 0..10 {
        // Each start elects leaders, and each election adds an entry.
        let first = start(1, BootstrapMode::Bootstrap, &[]);
        until(&first, "led", |cluster_report| {
            cluster_report.reports[0]
                .groups
                .iter()
                .all(|group| group.leads)
        })
        .await;
        stop([first]).await;
    }
    let first = start(1, BootstrapMode::Bootstrap, &[]);
    let second = start(2, BootstrapMode::Join, &[1]);
    second.handle().joined().await.unwrap();
    until(&second, "connected", both_up).await;
    stop([first, second]).await;
    let third = start(3, BootstrapMode::Bootstrap, &[]);
    let fourth = start(4, BootstrapMode::Join, &[3]);
    fourth.handle().joined().await.unwrap();
    until(&fourth, "connected", both_up).await;

    let second = start(2, BootstrapMode::Join, &[3]);
    until_stopped(&third).await;
    assert_eq!(second.handle().stopped(), None);
    stop([second, third, fourth]).await;
}

/// R161: an operator's decision for a cluster has precedence over its history; two contradicting
/// decisions stop both clusters until one is left.
#[tokio::test]
async fn an_operator_decides_between_two_clusters() {
    let place = nodes(2);
    for number in [1, 2] {
        founded_apart(&place, number);
    }
    let both = || [1, 2].map(|number| place.start(number, BootstrapMode::Join, &[3 - number]));
    let [one, two] = both();
    let clusters = [one.handle().cluster(), two.handle().cluster()];
    // Which of these two new clusters has the longer history is random; they may also be equal.
    let stopped = until_some("both go on", || {
        let stopped = [&one, &two].map(|node| node.handle().stopped());
        stopped.iter().any(Option::is_some).then_some(stopped)
    })
    .await;
    until_met(&one).await;
    until_met(&two).await;
    stop([one, two]).await;
    let kept = if stopped[0].is_some() { 1 } else { 2 };
    let other = 3 - kept;
    let why = refused(place.options(kept, BootstrapMode::Join, &[other]));
    assert!(why.contains("tenure cluster keep"), "{why}");
    offline::keep(&place.directory(kept)).unwrap();
    assert!(offline::keep(&place.directory(kept)).is_err());
    // If both had stopped, the other one is still stopped by its directory.
    if let Ok(two) = tenure_cluster::start(place.options(other, BootstrapMode::Join, &[kept])) {
        let one = place.start(kept, BootstrapMode::Join, &[other]);
        until_stopped(&two).await;
        assert_eq!(one.handle().stopped(), None);
        stop([one, two]).await;
    }
    offline::keep(&place.directory(other)).unwrap();
    let [one, two] = both();
    for node in [&one, &two] {
        let why = until_stopped(node).await;
        assert!(why.contains("tenure cluster keep"), "{why}");
    }
    stop([one, two]).await;
    offline::keep(&place.directory(kept)).unwrap();
    offline::rejoin(&place.directory(other)).unwrap();
    let [one, two] = both();
    for node in [&one, &two] {
        node.handle().joined().await.unwrap();
        assert_eq!(node.handle().cluster(), clusters[kept as usize - 1]);
    }
    stop([one, two]).await;
}

/// R164 (replication factor): a recovered cluster continues although nodes of the old one, with a
/// longer history, come back.
#[tokio::test]
async fn a_recovered_cluster_does_not_give_way_to_the_old_one() {
    let place = nodes(3);
    let [first, second, third] = place.three().await;
    stop([first, second, third]).await;
    offline::recover(&place.directory(1), &[]).unwrap();
    let recovered = place.start(1, BootstrapMode::Join, &[2]);
    let old = place.start(2, BootstrapMode::Join, &[1]);
    until_stopped(&old).await;
    until_met(&recovered).await;
    assert_eq!(recovered.handle().stopped(), None);
    stop([recovered, old]).await;
}

/// R164: a restored cluster continues, too.
#[tokio::test]
async fn a_restored_cluster_does_not_give_way_to_the_old_one() {
    let place = nodes(3);
    let nodes = place.three().await;
    let old_cluster = nodes[0].handle().cluster();
    stop(nodes).await;
    let options = place.options(1, BootstrapMode::Join, &[2]);
    std::fs::remove_dir_all(&options.data_dir).unwrap();
    let (directory, facts) = (&options.data_dir, &options.cluster);
    // A backup without groups is enough: the decision between clusters does not depend on them.
    offline::restore(directory, options.node, facts, Vec::new(), old_cluster).unwrap();
    let restored = tenure_cluster::start(options).unwrap();
    let old = place.start(2, BootstrapMode::Join, &[1]);
    until_stopped(&old).await;
    until_met(&restored).await;
    assert_eq!(restored.handle().stopped(), None);
    stop([restored, old]).await;
}

/// Returns the paths of a node's live data, new data and old data.
fn states(place: &TestCluster, number: u32) -> (PathBuf, PathBuf, PathBuf) {
    let directory = place.directory(number);
    let at = |name: &str| directory.join(name);
    (at("db"), at("db.new"), at("db.before-recover.0"))
}

/// A crash at any point of a recovery leaves the old data, the new data, or a start that is
/// refused.
#[test]
fn a_recovery_can_be_interrupted_anywhere() {
    let place = nodes(1);
    let mut options = place.options(1, BootstrapMode::Bootstrap, &[]);
    options.peers = None;
    let start = || tenure_cluster::start(options.clone()).unwrap();
    let (db, staging, aside) = states(&place, 1);
    let first = start();
    let old = first.handle().cluster();
    first.stop();
    offline::recover(&place.directory(1), &[]).unwrap();
    assert!(aside.exists() && !staging.exists());
    let order = place.directory(1).join("next-start");
    assert!(order.exists());
    let recovered = start();
    let new = recovered.handle().cluster();
    recovered.stop();
    assert_ne!(old, new);
    assert!(!order.exists(), "its directory belongs to a cluster");

    let (rename, save) = (
        std::fs::rename::<&Path, &Path>,
        place.data.path().join("save"),
    );
    // Without an atomic exchange: the old data is moved away, the new data not yet in place.
    rename(&db, &staging).unwrap();
    for _ in 0..2 {
        let why = refused(options.clone());
        assert!(why.contains("tenure cluster recover"), "{why}");
        assert!(!db.exists(), "a refused start leaves no trace");
    }
    // Also if a start of another release has created an empty directory.
    std::fs::create_dir(&db).unwrap();
    assert!(refused(options.clone()).contains("tenure cluster recover"));
    // The recovery can be repeated from the old data.
    offline::recover(&place.directory(1), &[]).unwrap();
    let again = start();
    assert!(again.handle().cluster() != new && again.handle().cluster() != old);
    again.stop();

    // The directories are exchanged, but the old one has not been renamed yet.
    rename(&aside, &staging).unwrap();
    rename(&db, &save).unwrap();
    rename(&save, &db).unwrap();
    start().stop();
    // The new data is incomplete: the old data is in place.
    rename(&db, &save).unwrap();
    rename(&staging, &db).unwrap();
    std::fs::create_dir(&staging).unwrap();
    let resumed = start();
    assert_eq!(resumed.handle().cluster(), old);
    resumed.stop();
    offline::recover(&place.directory(1), &[]).unwrap();
    assert!(aside.exists() && !staging.exists());
    start().stop();
}

/// An interrupted restore leaves nothing on which a node would start.
#[test]
fn a_restore_can_be_interrupted_anywhere() {
    let place = nodes(1);
    let mut options = place.options(1, BootstrapMode::Force, &[]);
    options.peers = None;
    let directory = place.directory(1);
    let (db, staging, _) = states(&place, 1);
    let facts = options.cluster.clone();
    let node = options.node;
    // An archive without groups is enough to test the renames.
    offline::restore(&directory, node, &facts, Vec::new(), None).unwrap();
    assert!(db.exists() && !staging.exists() && directory.join("next-start").exists());
    std::fs::rename(&db, &staging).unwrap();
    assert!(refused(options.clone()).contains("tenure cluster restore"));
    assert!(!db.exists());
    offline::restore(&directory, node, &facts, Vec::new(), None).unwrap();
    assert!(directory.join("db.unfinished.0").exists());
    let again = offline::restore(&directory, node, &facts, Vec::new(), None);
    assert!(again.unwrap_err().to_string().contains("not empty"));
}

/// `rejoin` completes what another release or a crash left incomplete.
#[tokio::test]
async fn a_rejoin_can_be_interrupted_anywhere() {
    let place = nodes(3);
    let [first, second, third] = place.three().await;
    let cluster = first.handle().cluster();
    stop([first]).await;
    let directory = place.directory(1);
    // The order is written, the data not yet moved: the node still has its data.
    let order = directory.join("next-start");
    offline::rejoin(&directory).unwrap();
    let text = std::fs::read_to_string(&order).unwrap();
    assert!(
        text.contains(&place.gossip(2)) && text.contains(&place.gossip(3)),
        "{text}"
    );
    assert!(
        text.contains(&format!("{:016x}", cluster.unwrap())),
        "{text}"
    );
    std::fs::rename(directory.join("db.damaged.0"), directory.join("db")).unwrap();
    let first = place.start(1, BootstrapMode::Bootstrap, &[]);
    assert_eq!(first.origin(), DataOrigin::Resumed);
    assert!(!order.exists());
    stop([first]).await;
    // The data is moved without an order, as the first release does.
    std::fs::rename(directory.join("db"), directory.join("db.damaged.0")).unwrap();
    offline::rejoin(&directory).unwrap();
    assert_eq!(
        std::fs::read_to_string(&order).unwrap().lines().count(),
        text.lines().count()
    );
    let first = place.start(1, BootstrapMode::Bootstrap, &[]);
    first.handle().joined().await.unwrap();
    assert_eq!(first.handle().cluster(), cluster);
    stop([first, second, third]).await;
}

/// A backup comes from the leader: a node that cannot confirm its leadership returns no state.
#[tokio::test]
async fn a_leader_without_a_quorum_gives_no_state() {
    let place = nodes(3);
    let [first, second, third] = place.three().await;
    let led_by_first = |cluster_report: &ClusterReport| {
        let report = cluster_report.report(NodeId::new(1).unwrap()).unwrap();
        let led = report.groups.iter().filter(|group| group.leads);
        led.map(|group| GroupId(group.group)).collect::<Vec<_>>()
    };
    let cluster_report = until(&first, "led by the first", |cluster_report| {
        !led_by_first(cluster_report).is_empty()
    })
    .await;
    let group = led_by_first(&cluster_report)[0];
    let (index, state) = first.handle().state(group, STEP_TIMEOUT).await.unwrap();
    assert!(index > 0 && !state.is_empty());
    // A follower returns none either.
    let followers = [&second, &third];
    for node in followers {
        assert!(node.handle().state(group, STEP_TIMEOUT).await.is_none());
    }
    stop([second, third]).await;
    let alone = first.handle().state(group, Duration::from_secs(1)).await;
    assert_eq!(alone, None, "no other node confirms it");
    stop([first]).await;
}
