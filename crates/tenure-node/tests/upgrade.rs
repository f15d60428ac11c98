//! Rolling upgrade: groups move to newer rules when every node of the cluster knows them, and not before.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_core::space::{FIRST_RULES, RULES};
use tenure_node::*;

fn rules(cluster: &Cluster, at: usize) -> Vec<u32> {
    let status = cluster.test_nodes[at].node.as_ref().unwrap().status();
    status.groups.iter().map(|group| group.rules).collect()
}

/// Three voters of two groups and the system group; the last of them is not started.
fn two_of_three() -> Cluster {
    let mut cluster = Cluster::empty(2, Limits::default());
    let members: Vec<ReplicaId> = (1..=3).map(|number| member(number, 1)).collect();
    for me in &members {
        let born = (0..=2).map(|group| (GroupId(group), members.clone()));
        cluster.add(*me, born.collect());
    }
    cluster.start(0);
    cluster.start(1);
    cluster
}

#[test]
fn all_groups_of_a_new_cluster_move_to_the_newest_rules() {
    let mut cluster = Cluster::new(3, 2);
    cluster.until(10_000, "every replica has the newest rules", |cluster| {
        (0..3).all(|at| rules(cluster, at) == vec![RULES; 3])
    });
}

#[test]
fn a_lone_node_has_the_newest_rules() {
    let mut cluster = Cluster::new(1, 2);
    cluster.until(1_000, "every replica has the newest rules", |cluster| {
        rules(cluster, 0) == vec![RULES; 3]
    });
}

/// An older release never announces anything; neither does a node that is not running.
#[test]
fn a_node_that_announced_nothing_holds_the_upgrade_up() {
    let mut cluster = two_of_three();
    cluster.run(20_000);
    assert!(cluster.leader(GroupId(0)).is_some(), "two of three lead");
    for at in 0..2 {
        assert_eq!(rules(&cluster, at), vec![FIRST_RULES; 3]);
    }
    cluster.start(2);
    cluster.until(10_000, "every replica has the newest rules", |cluster| {
        (0..3).all(|at| rules(cluster, at) == vec![RULES; 3])
    });
}

/// A process that has ended may come back as an older release: what it announced counts no more.
#[test]
fn a_node_that_is_down_holds_the_upgrade_up() {
    let mut cluster = two_of_three();
    let third = cluster.test_nodes[2].member.node;
    cluster.start(2);
    // It is gone before anything could be proposed.
    cluster.run(3);
    cluster.crash(2);
    cluster.tell_down(2);
    cluster.run(20_000);
    assert_eq!(rules(&cluster, 0), vec![FIRST_RULES; 3], "{third} is down");
}

/// The rules are part of the state: a restart and a snapshot keep them.
#[test]
fn the_rules_survive_a_restart() {
    let mut cluster = Cluster::new(1, 1);
    cluster.run(1_000);
    cluster.input(0, Input::CutLog { group: GroupId(0) });
    cluster.run(100);
    cluster.crash(0);
    cluster.start(0);
    cluster.run(1_000);
    assert_eq!(rules(&cluster, 0), vec![RULES; 2]);
}
