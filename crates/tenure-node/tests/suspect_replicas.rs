//! A replica that may have lost what it confirmed takes no part in elections until it has caught up.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_node::*;

const GROUP: GroupId = GroupId(0);

fn suspects(cluster: &Cluster, at: usize) -> Vec<GroupId> {
    let node = cluster.test_nodes[at].node.as_ref().unwrap();
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
    let before = cluster.test_nodes[follower].disk.remains(GROUP);
    granted(&cluster.write(leader, "ann", "t:/a"));
    cluster.crash(leader);
    cluster.crash(follower);
    cluster.test_nodes[follower].disk.go_back(GROUP, before);
    cluster.test_nodes[follower].disk.suspect = suspect;
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
        assert_eq!(cluster.leader(GROUP), None, "no replica knows of the grant");
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
    cluster.test_nodes[follower].disk.suspect = false;
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
        let status = cluster.test_nodes[at].node.as_ref().unwrap().status();
        let group = status.groups.into_iter().find(|one| one.group == GROUP);
        group.unwrap().term
    };
    let before = term(&cluster, follower);
    cluster.crash(follower);
    cluster.test_nodes[follower].disk.suspect = true;
    cluster.isolate(follower);
    cluster.start(follower);
    cluster.run(50);
    let raised = term(&cluster, follower);
    assert!(raised > before + 10);
    cluster.crash(follower);
    cluster.test_nodes[follower].disk.suspect = false;
    cluster.start(follower);
    assert_eq!(term(&cluster, follower), raised, "it is durable");
    cluster.crash(follower);
    cluster.test_nodes[follower].disk.suspect = true;
    cluster.start(follower);
    // The leader of the old term steps down for one of a later term, once.
    cluster.heal();
    cluster.until(10_000, "it has caught up", |cluster| {
        suspects(cluster, follower).is_empty()
    });
    cluster.settle();
    assert!(term(&cluster, follower) > raised);
    granted(&cluster.write(follower, "ann", "t:/a"));
}

/// No other replica knows more than a lone voter: it serves at once.
#[test]
fn a_lone_voter_starts_all_the_same() {
    let mut cluster = Cluster::new(1, 2);
    cluster.settle();
    granted(&cluster.write(0, "ann", "t:/a"));
    cluster.crash(0);
    cluster.test_nodes[0].disk.suspect = true;
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

/// A suspect one of two voters neither stands nor votes, whichever of them led before: no majority is left without
/// it, so the group waits for the operator.
#[test]
fn a_group_of_two_voters_with_a_suspect_one_waits() {
    for suspect_led in [false, true] {
        let mut cluster = Cluster::new(2, 1);
        cluster.settle();
        let leader = cluster.leader(GROUP).unwrap();
        granted(&cluster.write(leader, "ann", "t:/a"));
        let suspect = if suspect_led { leader } else { 1 - leader };
        for at in 0..2 {
            cluster.crash(at);
        }
        cluster.test_nodes[suspect].disk.suspect = true;
        for at in 0..2 {
            cluster.start(at);
        }
        for _ in 0..100 {
            cluster.run(100);
            assert_eq!(cluster.leader(GROUP), None);
        }
        assert!(suspects(&cluster, suspect).contains(&GROUP));
        assert!(suspects(&cluster, 1 - suspect).is_empty());
    }
}

/// Among three voters a suspect one does not vote, also where it remembers a membership of two.
#[test]
fn the_vote_of_a_suspect_one_of_three_does_not_count() {
    let mut cluster = Cluster::empty(1, Limits::default());
    let pair = vec![member(1, 1), member(2, 1)];
    for me in &pair {
        cluster.add(*me, vec![(GROUP, pair.clone())]);
    }
    // The system group has one voter, so that it does not wait for a suspect one.
    let third = member(3, 1);
    cluster.add(third, vec![(GroupId(1), vec![third])]);
    for at in 0..3 {
        cluster.start(at);
    }
    cluster.settle();
    let before = cluster.test_nodes[1].disk.remains(GROUP);
    for step in [
        MembershipStep::Learner(member(3, 1)),
        MembershipStep::Voter(member(3, 1)),
    ] {
        let joins = |cluster: &Cluster, at: usize| {
            let known = status(cluster, at, GROUP);
            known.map_or(member(3, 1), |group| {
                let everybody = group.membership.everybody();
                let mut found = everybody.into_iter().filter(|one| one.node == node_id(3));
                found.next().unwrap_or(member(3, 1))
            })
        };
        let leader = cluster.leader(GROUP).unwrap();
        let third = joins(&cluster, leader);
        let step = match step {
            MembershipStep::Voter(_) => MembershipStep::Voter(third),
            step => step,
        };
        change_soon(&mut cluster, GROUP, vec![step]).unwrap();
        cluster.run(500);
    }
    // The second and the third grant a lock that the first does not know of.
    let leader = cluster.leader(GROUP).unwrap();
    if leader == 0 {
        let to = status(&cluster, 1, GROUP).unwrap().member;
        cluster.input(0, Input::Transfer { group: GROUP, to });
        cluster.run(1_000);
    }
    cluster.isolate(0);
    cluster.until(10_000, "one of the others leads", |cluster| {
        cluster.leader(GROUP).is_some_and(|at| at != 0)
    });
    cluster.run(500);
    let leader = cluster.leader(GROUP).unwrap();
    granted(&cluster.write(leader, "ann", "t:/a"));
    cluster.crash(1);
    cluster.crash(2);
    cluster.test_nodes[1].disk.go_back(GROUP, before);
    cluster.test_nodes[1].disk.suspect = true;
    cluster.start(1);
    cluster.heal();
    for _ in 0..100 {
        cluster.run(100);
        assert_eq!(
            cluster.leader(GROUP),
            None,
            "no voter here knows of the grant"
        );
    }
    cluster.start(2);
    cluster.settle();
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("ann"));
}

/// A change that only adds a learner brings no voter who could know more, so a lone voter goes on although it had
/// not noted that the change was committed.
#[test]
fn a_lone_voter_with_an_unapplied_learner_starts_all_the_same() {
    let mut cluster = Cluster::empty(1, Limits::default());
    let alone = vec![member(1, 1)];
    cluster.add(alone[0], vec![(GROUP, alone.clone()), (GroupId(1), alone)]);
    cluster.add(member(2, 1), Vec::new());
    cluster.start(0);
    cluster.settle();
    granted(&cluster.write(0, "ann", "t:/a"));
    cluster.run(100);
    cluster.test_nodes[0].paused_disk = true;
    let steps = vec![MembershipStep::Learner(member(2, 1))];
    let change = MembershipChange { steps };
    let id = cluster.fresh_id();
    cluster.input(
        0,
        Input::Change {
            id,
            group: GROUP,
            change,
        },
    );
    // The entry is durable; that it is committed is not.
    cluster.sync(0);
    assert_eq!(
        status(&cluster, 0, GROUP)
            .unwrap()
            .membership
            .learners
            .len(),
        1
    );
    cluster.crash(0);
    cluster.test_nodes[0].paused_disk = false;
    cluster.test_nodes[0].disk.suspect = true;
    cluster.start(0);
    cluster.settle();
    assert!(suspects(&cluster, 0).is_empty());
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("ann"));
    assert_eq!(
        status(&cluster, 0, GROUP)
            .unwrap()
            .membership
            .learners
            .len(),
        1
    );
}

/// Entries behind a removal that leaves two voters may be committed by the three, before the leader applies the
/// removal. So the sound one of the two voters may lack them, and must not lead by the vote of the suspect one.
#[test]
fn a_grant_behind_a_removal_that_leaves_two_voters_is_not_forgotten() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    cluster.run(2_000);
    let leader = cluster.leader(GROUP).unwrap();
    let (a, c) = ((leader + 1) % 3, (leader + 2) % 3);
    let (a_node, l_node) = (
        cluster.test_nodes[a].member.node,
        cluster.test_nodes[leader].member.node,
    );
    let known = status(&cluster, leader, GROUP).unwrap();
    let third = known
        .membership
        .voters
        .iter()
        .copied()
        .find(|one| one.node == cluster.test_nodes[c].member.node)
        .unwrap();
    let before = cluster.test_nodes[leader].disk.remains(GROUP);
    // The disk of the leader is a little slower than those of the others; what the first answers is late.
    cluster.test_nodes[leader].paused_disk = true;
    cluster.cut(a, leader);
    cluster.lost.clear();
    let id = cluster.fresh_id();
    cluster.input(
        leader,
        Input::Change {
            id,
            group: GROUP,
            change: MembershipChange {
                steps: vec![MembershipStep::Remove(third)],
            },
        },
    );
    cluster.run(5);
    let acks: Vec<_> = cluster
        .lost
        .iter()
        .filter(|(from, to, _)| (*from, *to) == (a_node, l_node))
        .cloned()
        .collect();
    assert!(!acks.is_empty());
    // One frame to the first is lost: the one with the grant.
    cluster.cut(leader, a);
    let asked = cluster.ask(
        leader,
        ClientRequest::Acquire(acquire("ann", "t:/a", 60_000)),
    );
    cluster.run(5);
    cluster.test_nodes[leader].paused_disk = false;
    cluster.run(3);
    let answer = cluster.test_nodes[leader].answers.remove(&asked);
    let Some(Ok(Answer::Acquire(answer))) = answer else {
        panic!("not acknowledged: {answer:?}");
    };
    let first = granted(&answer);
    assert_eq!(
        status(&cluster, leader, GROUP)
            .unwrap()
            .membership
            .voters
            .len(),
        2
    );
    // Its answer arrives, and the next heartbeat tells it of the removal.
    for (from, _, bytes) in acks {
        cluster.input(leader, Input::Frame { from, bytes });
    }
    cluster.cut.remove(&(l_node, a_node));
    cluster.until(600, "the first knows of the removal", |cluster| {
        status(cluster, a, GROUP).unwrap().membership.voters.len() == 2
    });
    cluster.crash(leader);
    cluster.crash(c);
    cluster.test_nodes[leader].disk.go_back(GROUP, before);
    cluster.test_nodes[leader].disk.suspect = true;
    cluster.heal();
    cluster.start(leader);
    for _ in 0..100 {
        cluster.run(100);
        assert_eq!(
            cluster.leader(GROUP),
            None,
            "the voter that does not know of ann's grant at {first:?} leads"
        );
    }
}
