//! A replica that may have lost what it confirmed takes no part in elections until it has caught up.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_node::*;

const GROUP: GroupId = GroupId(0);

fn suspects(cluster: &Cluster, at: usize) -> Vec<GroupId> {
    let node = cluster.seats[at].node.as_ref().unwrap();
    node.suspects().collect()
}

/// A lock is granted by the leader and one follower. That follower loses its part of it on the disk,
/// and the leader is away. Returns the cluster, the leader, the follower and the third.
fn one_that_forgot(suspect: bool) -> (Cluster, usize, usize, usize) {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let leader = cluster.leader(GROUP).unwrap();
    let (follower, third) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.isolate(third);
    let before = cluster.seats[follower].disk.remains(GROUP);
    granted(&cluster.write(leader, "ann", "t:/a"));
    cluster.crash(leader);
    cluster.crash(follower);
    cluster.seats[follower].disk.go_back(GROUP, before);
    cluster.seats[follower].disk.suspect = suspect;
    cluster.start(follower);
    cluster.heal();
    (cluster, leader, follower, third)
}

/// The reason for all of it: two replicas that both know nothing of a grant make another one.
#[test]
fn without_the_suspicion_a_grant_would_be_forgotten() {
    let (mut cluster, _, follower, third) = one_that_forgot(false);
    cluster.until(10_000, "the two elect one of them", |cluster| {
        cluster.leader(GROUP).is_some()
    });
    cluster.settle();
    granted(&cluster.write(follower, "bob", "t:/a"));
    assert_eq!(cluster.holder(third, "t:/a").as_deref(), Some("bob"));
}

#[test]
fn a_suspect_replica_neither_stands_nor_votes_until_it_has_caught_up() {
    let (mut cluster, leader, follower, third) = one_that_forgot(true);
    assert!(suspects(&cluster, follower).contains(&GROUP));
    for _ in 0..300 {
        cluster.run(100);
        assert_eq!(cluster.leader(GROUP), None, "nobody knows of the grant");
    }
    // Its node's connections break and come back: that makes no candidate of it either.
    cluster.tell_down(leader);
    cluster.run(3_000);
    assert_eq!(cluster.leader(GROUP), None);

    cluster.start(leader);
    cluster.settle();
    assert_ne!(cluster.leader(GROUP), Some(follower));
    assert_eq!(cluster.holder(third, "t:/a").as_deref(), Some("ann"));
    cluster.until(5_000, "it has caught up", |cluster| {
        suspects(cluster, follower).is_empty()
    });
    // From now on it counts as any other: with it, the group survives the loss of the leader.
    cluster.seats[follower].disk.suspect = false;
    let leader = cluster.leader(GROUP).unwrap();
    cluster.crash(leader);
    cluster.until(10_000, "the other two elect one of them", |cluster| {
        cluster.leader(GROUP).is_some_and(|at| at != leader)
    });
    assert_eq!(cluster.holder(follower, "t:/a").as_deref(), Some("ann"));
}

/// A vote that was given and then lost is not given again: the replica comes back in a later term, in
/// which it has voted for itself, and that is durable before it says anything.
#[test]
fn a_suspect_replica_comes_back_in_a_later_term() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let leader = cluster.leader(GROUP).unwrap();
    let follower = (leader + 1) % 3;
    let term = |cluster: &Cluster, at: usize| {
        let status = cluster.seats[at].node.as_ref().unwrap().status();
        let group = status.groups.into_iter().find(|one| one.group == GROUP);
        group.unwrap().term
    };
    let before = term(&cluster, follower);
    cluster.crash(follower);
    cluster.seats[follower].disk.suspect = true;
    cluster.isolate(follower);
    cluster.start(follower);
    cluster.run(50);
    let raised = term(&cluster, follower);
    assert!(raised > before + 10);
    cluster.crash(follower);
    cluster.seats[follower].disk.suspect = false;
    cluster.start(follower);
    assert_eq!(term(&cluster, follower), raised, "it is durable");
    cluster.crash(follower);
    cluster.seats[follower].disk.suspect = true;
    cluster.start(follower);
    // The leader of the old term gives way to one of a later term, once.
    cluster.heal();
    cluster.until(10_000, "it has caught up", |cluster| {
        suspects(cluster, follower).is_empty()
    });
    cluster.settle();
    assert!(term(&cluster, follower) > raised);
    granted(&cluster.write(follower, "ann", "t:/a"));
}

/// Nobody knows more than a lone voter: it serves at once.
#[test]
fn a_lone_voter_starts_all_the_same() {
    let mut cluster = Cluster::new(1, 2);
    cluster.settle();
    granted(&cluster.write(0, "ann", "t:/a"));
    cluster.crash(0);
    cluster.seats[0].disk.suspect = true;
    cluster.start(0);
    cluster.settle();
    assert!(suspects(&cluster, 0).is_empty());
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("ann"));
}

/// All machines lose power, and each has a torn tail: that is no suspicion, and the groups come back.
#[test]
fn a_group_whose_members_all_lost_power_comes_back() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    granted(&cluster.write(0, "ann", "t:/a"));
    for at in 0..3 {
        cluster.crash(at);
    }
    for at in 0..3 {
        cluster.start(at);
    }
    cluster.settle();
    assert_eq!(cluster.holder(1, "t:/a").as_deref(), Some("ann"));
}
