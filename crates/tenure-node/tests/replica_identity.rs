//! A replica's identity is never used twice: what a removed replica has voted and acknowledged never counts
//! for one that comes later on the same node, and the later one never acts as the removed one.
//!
//! Most tests run by both rules: by those of release 0.1.0 a replica that is added again has the identity of
//! the removed one, and is only kept from the worst.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_node::*;

const GROUP: GroupId = GroupId(0);

type MakeMember = fn(u32, Limits) -> Cluster;

/// No replica may lead: any leader would lack committed entries.
fn assert_not_led(cluster: &mut Cluster, amy: tenure_core::value::Fence) {
    if let Some(wrong) = cluster.leader(GROUP) {
        let now = status(cluster, wrong, GROUP).unwrap();
        let bob = cluster.acquire(wrong, acquire("bob", "t:/x", 600_000));
        panic!(
            "node {} leads in term {} by {:?}; amy: {amy:?}, bob: {bob:?}",
            wrong + 1,
            now.term,
            now.membership.voters
        );
    }
}

fn comes_back_empty(make: MakeMember) {
    let mut cluster = make(1, small_logs());
    let leader = cluster.leader(GROUP).unwrap();
    let (away, back, new) = ((leader + 1) % 3, (leader + 2) % 3, 3);
    let (returning, fresh) = (
        cluster.test_nodes[back].member,
        cluster.test_nodes[new].member,
    );
    // One is away; the other two decide without it.
    cluster.crash(away);
    cluster.tell_down(away);
    let amy = granted(&cluster.acquire(leader, acquire("amy", "t:/x", 600_000)));
    // One of these two is replaced, and deletes its replica.
    change_soon(&mut cluster, GROUP, vec![MembershipStep::Learner(fresh)]).unwrap();
    cluster.run(1_000);
    let steps = vec![
        MembershipStep::Voter(running_nodes(&cluster, GROUP, fresh)),
        MembershipStep::Remove(returning),
    ];
    change(&mut cluster, GROUP, steps).unwrap();
    cluster.until(5_000, "it is gone", |cluster| {
        status(cluster, back, GROUP).is_none()
    });
    // It comes back as a learner, in the same incarnation, and gets nothing yet.
    cluster.cut(back, leader);
    change_soon(
        &mut cluster,
        GROUP,
        vec![MembershipStep::Learner(returning)],
    )
    .unwrap();
    cluster.until(5_000, "it is back", |cluster| {
        status(cluster, back, GROUP).is_some()
    });
    // The replicas with all entries are away, and the one that was away is back.
    for at in [leader, new] {
        cluster.crash(at);
        cluster.tell_down(at);
    }
    cluster.start(away);
    cluster.run(10_000);
    assert_not_led(&mut cluster, amy);
}

/// R166: a replica that was removed and comes back empty has forgotten what it acknowledged. It must not
/// help one to lead that does not know that either.
#[test]
fn a_replica_that_came_back_empty_elects_nobody_who_lacks_what_it_knew() {
    comes_back_empty(trio_and);
}

#[test]
fn the_same_by_the_first_rules() {
    comes_back_empty(trio_of_the_first_release);
}

fn comes_back_with_an_older_state(make: MakeMember) {
    let mut cluster = make(2, small_logs());
    let leader = cluster.leader(GROUP).unwrap();
    let (away, back, new, slow) = ((leader + 1) % 3, (leader + 2) % 3, 3, 4);
    let (returning, fresh) = (
        cluster.test_nodes[back].member,
        cluster.test_nodes[new].member,
    );
    let stuck = cluster.test_nodes[slow].member;
    change_soon(&mut cluster, GROUP, vec![MembershipStep::Learner(fresh)]).unwrap();
    cluster.run(1_000);
    // A state is under way to a learner that does not take it.
    change_soon(&mut cluster, GROUP, vec![MembershipStep::Learner(stuck)]).unwrap();
    cluster.until(5_000, "the slow one is there", |cluster| {
        status(cluster, slow, GROUP).is_some()
    });
    cluster.run(3);
    cluster.cut(slow, leader);
    cluster.run(100);
    cluster.crash(away);
    cluster.tell_down(away);
    let before = status(&cluster, leader, GROUP).unwrap().last;
    let amy = granted(&cluster.acquire(leader, acquire("amy", "t:/x", 600_000)));
    let steps = vec![
        MembershipStep::Voter(running_nodes(&cluster, GROUP, fresh)),
        MembershipStep::Remove(returning),
    ];
    change(&mut cluster, GROUP, steps).unwrap();
    cluster.until(5_000, "it is gone", |cluster| {
        status(cluster, back, GROUP).is_none()
    });
    change_soon(
        &mut cluster,
        GROUP,
        vec![MembershipStep::Learner(returning)],
    )
    .unwrap();
    cluster.until(5_000, "it has a state", |cluster| {
        status(cluster, back, GROUP).is_some_and(|one| one.base > 0)
    });
    let base = status(&cluster, back, GROUP).unwrap().base;
    assert!(
        base > before,
        "it was added behind entry {before}, and has the state of entry {base}"
    );
    cluster.cut(back, leader);
    cluster.cut(leader, back);
    for at in [leader, new, slow] {
        cluster.crash(at);
        cluster.tell_down(at);
    }
    cluster.start(away);
    cluster.run(10_000);
    assert_not_led(&mut cluster, amy);
}

/// R166: a state that was made for another learner, before the replica was added again, is not for it.
#[test]
fn a_replica_that_came_back_gets_no_state_from_before() {
    comes_back_with_an_older_state(trio_and);
}

#[test]
fn nor_does_it_by_the_first_rules() {
    comes_back_with_an_older_state(trio_of_the_first_release);
}

fn late_appends(make: MakeMember) {
    let mut cluster = make(1, small_logs());
    let leader = cluster.leader(GROUP).unwrap();
    let back = (leader + 2) % 3;
    let gone = cluster.test_nodes[back].member;
    cluster.cut(leader, back);
    granted(&cluster.acquire(leader, acquire("amy", "t:/x", 600_000)));
    let late = std::mem::take(&mut cluster.lost);
    assert!(late.iter().any(|(_, to, _)| *to == gone.node));
    cluster.heal();
    cluster.run(500);
    change(&mut cluster, GROUP, vec![MembershipStep::Remove(gone)]).unwrap();
    cluster.until(5_000, "it is gone", |cluster| {
        status(cluster, back, GROUP).is_none()
    });
    for restart in [false, true] {
        if restart {
            cluster.crash(back);
            cluster.start(back);
        }
        for (from, to, bytes) in late.clone() {
            if to == gone.node {
                cluster.input(back, Input::Frame { from, bytes });
            }
        }
        assert!(
            status(&cluster, back, GROUP).is_none(),
            "revived; restarted before: {restart}"
        );
    }
}

/// R166: a removed replica stays removed, also after a restart.
#[test]
fn a_removed_replica_is_not_revived_by_a_late_append() {
    late_appends(trio_and);
}

#[test]
fn nor_is_it_by_the_first_rules() {
    late_appends(trio_of_the_first_release);
}

fn late_acknowledgement(make: MakeMember) {
    let mut cluster = make(0, Limits::default());
    let leader = cluster.leader(GROUP).unwrap();
    let back = (leader + 2) % 3;
    let returning = cluster.test_nodes[back].member;
    for number in 0..5 {
        let what = format!("t:/x/{number}");
        granted(&cluster.acquire(leader, acquire("amy", &what, 600_000)));
    }
    cluster.run(500);
    // Its disk is slow from now on: what it acknowledges waits.
    cluster.test_nodes[back].paused_disk = true;
    granted(&cluster.acquire(leader, acquire("amy", "t:/x/last", 600_000)));
    change(&mut cluster, GROUP, vec![MembershipStep::Remove(returning)]).unwrap();
    cluster.run(4_000);
    // It is wanted again.
    change_soon(
        &mut cluster,
        GROUP,
        vec![MembershipStep::Learner(returning)],
    )
    .unwrap();
    cluster.run(20);
    cluster.test_nodes[back].paused_disk = false;
    cluster.run(3_000);
    let there = status(&cluster, back, GROUP);
    let known = status(&cluster, leader, GROUP).unwrap();
    assert!(
        there
            .as_ref()
            .is_some_and(|one| one.applied == known.applied),
        "3 s later the leader is at {} and knows {:?}; it has {:?}",
        known.applied,
        known.progress,
        there.map(|one| (one.base, one.last, one.applied))
    );
}

/// R166: what a replica has acknowledged before it was removed counts for nothing once it is back: it has
/// deleted it. Its disk is slow, so that the acknowledgement leaves late; nothing else is wrong.
#[test]
fn a_late_acknowledgement_does_not_count_for_a_replica_that_came_back() {
    late_acknowledgement(trio_and);
}

#[test]
fn nor_does_it_count_by_the_first_rules() {
    late_acknowledgement(trio_of_the_first_release);
}

/// A change of membership that was lost with a leadership is answered, and does not block the next one.
#[test]
fn a_lost_change_does_not_block_the_next() {
    let mut cluster = trio_and(1, Limits::default());
    let first = cluster.leader(GROUP).unwrap();
    cluster.isolate(first);
    let lost = cluster.fresh_id();
    let steps = vec![MembershipStep::Learner(member(4, 1))];
    let change = MembershipChange {
        steps: steps.clone(),
    };
    let input = Input::Change {
        id: lost,
        group: GROUP,
        change,
    };
    cluster.input(first, input);
    cluster.until(20_000, "another leader", |cluster| {
        cluster.leader(GROUP).is_some_and(|at| at != first)
    });
    cluster.heal();
    cluster.run(2_000);
    let said = cluster.test_nodes[first].outputs.iter();
    let said = said.filter_map(|output| match output {
        Output::Changed { id, result } if *id == lost => Some(result.clone()),
        _ => None,
    });
    assert_eq!(
        said.collect::<Vec<_>>(),
        [Err(ChangeRefused::NotLeader)],
        "the caller learns that it is over, once"
    );
    // Leadership drifts back, and it is asked again.
    let to = cluster.test_nodes[first].member;
    for _ in 0..20 {
        if let Some(at) = cluster.leader(GROUP).filter(|at| *at != first) {
            cluster.input(at, Input::Transfer { group: GROUP, to });
        }
        cluster.run(500);
        if cluster.leader(GROUP) == Some(first) {
            break;
        }
    }
    assert_eq!(cluster.leader(GROUP), Some(first));
    change_soon(&mut cluster, GROUP, steps).unwrap();
}

/// A replica that heard nothing of its removal is deleted when the next one of its node is spoken to, and what
/// is under way for it, or comes from it, counts for nothing.
#[test]
fn a_new_replica_takes_the_place_of_one_that_heard_nothing() {
    let mut cluster = trio_and(1, small_logs());
    let leader = cluster.leader(GROUP).unwrap();
    let back = (leader + 2) % 3;
    let old = cluster.test_nodes[back].member;
    cluster.isolate(back);
    change(&mut cluster, GROUP, vec![MembershipStep::Remove(old)]).unwrap();
    change_soon(&mut cluster, GROUP, vec![MembershipStep::Learner(old)]).unwrap();
    let new = running_nodes(&cluster, GROUP, old);
    assert!(new.replica > old.replica);
    cluster.run(3_000);
    assert_eq!(status(&cluster, back, GROUP).unwrap().member, old);
    let late = std::mem::take(&mut cluster.lost);
    cluster.heal();
    cluster.until(10_000, "the new replica has everything", |cluster| {
        let known = status(cluster, leader, GROUP).unwrap();
        let mut progress = known.progress.iter();
        progress.any(|(one, progress)| *one == new && progress.matched == known.last)
    });
    assert_eq!(status(&cluster, back, GROUP).unwrap().member, new);
    let voters = change(&mut cluster, GROUP, vec![MembershipStep::Voter(new)]).unwrap();
    assert!(voters.voters.contains(&new));
    // Votes that the old one asked for, and what the leader said to both.
    let test_nodes: Vec<NodeId> = cluster
        .test_nodes
        .iter()
        .map(|test_node| test_node.member.node)
        .collect();
    for (from, to, bytes) in late {
        let at = test_nodes.iter().position(|node| *node == to).unwrap();
        cluster.input(at, Input::Frame { from, bytes });
    }
    cluster.run(5_000);
    assert_eq!(status(&cluster, back, GROUP).unwrap().member, new);
    // It counts: with it alone the leader decides.
    let other = (leader + 1) % 3;
    cluster.crash(other);
    cluster.tell_down(other);
    granted(&cluster.acquire(back, acquire("amy", "t:/x", 600_000)));
    // Its number is on its disk.
    cluster.crash(back);
    cluster.start(back);
    cluster.run(3_000);
    assert_eq!(status(&cluster, back, GROUP).unwrap().member, new);
    assert_eq!(cluster.holder(back, "t:/x").as_deref(), Some("amy"));
}

/// A tombstone has the number of the replica: what was addressed to it is dropped, and one with a higher
/// number is let in, also after a restart.
#[test]
fn a_tombstone_keeps_out_its_own_replica_and_no_later_one() {
    let mut cluster = trio_and(1, small_logs());
    let (guest, test_node) = (member(4, 1), 3);
    let mut late = Vec::new();
    let mut last = 0;
    for round in 0..3 {
        change_soon(&mut cluster, GROUP, vec![MembershipStep::Learner(guest)]).unwrap();
        let replica = running_nodes(&cluster, GROUP, guest);
        assert!(replica.replica > last, "never used before");
        last = replica.replica;
        cluster.until(5_000, "the learner is there", |cluster| {
            status(cluster, test_node, GROUP).is_some_and(|one| one.applied >= last)
        });
        assert_eq!(status(&cluster, test_node, GROUP).unwrap().member, replica);
        let leader = cluster.leader(GROUP).unwrap();
        // Something is under way to it that arrives after its end.
        cluster.cut(leader, test_node);
        let what = format!("t:/x/{round}");
        granted(&cluster.acquire(leader, acquire("amy", &what, 600_000)));
        late.append(&mut cluster.lost);
        cluster.heal();
        change(&mut cluster, GROUP, vec![MembershipStep::Remove(replica)]).unwrap();
        cluster.until(5_000, "it is gone", |cluster| {
            status(cluster, test_node, GROUP).is_none()
        });
        cluster.crash(test_node);
        cluster.start(test_node);
        for (from, to, bytes) in late.clone() {
            assert_eq!(to, guest.node);
            cluster.input(test_node, Input::Frame { from, bytes });
            assert!(status(&cluster, test_node, GROUP).is_none(), "revived");
        }
    }
}

/// An addition is refused while a replica of that node is still a member, and a promotion of one that is gone.
#[test]
fn a_node_has_one_replica_of_a_group() {
    let mut cluster = trio_and(1, small_logs());
    let guest = member(4, 1);
    let add = vec![MembershipStep::Learner(guest)];
    change_soon(&mut cluster, GROUP, add.clone()).unwrap();
    let first = running_nodes(&cluster, GROUP, guest);
    let twice = change_soon(&mut cluster, GROUP, add.clone());
    assert_eq!(twice, Err(ChangeRefused::Senseless));
    cluster.run(1_000);
    change(&mut cluster, GROUP, vec![MembershipStep::Remove(first)]).unwrap();
    change_soon(&mut cluster, GROUP, add).unwrap();
    let second = running_nodes(&cluster, GROUP, guest);
    assert!(second.replica > first.replica);
    cluster.run(1_000);
    let gone = change(&mut cluster, GROUP, vec![MembershipStep::Voter(first)]);
    assert_eq!(gone, Err(ChangeRefused::Behind));
    let voters = change(&mut cluster, GROUP, vec![MembershipStep::Voter(second)]).unwrap();
    assert!(voters.voters.contains(&second));
}

/// Two leaders, one of them deposed, have each sent a state, and both arrive at once: the later one is
/// installed, the other is refused, and the node goes on.
#[test]
fn two_states_at_once_do_not_stop_a_node() {
    let mut cluster = trio_and(1, small_logs());
    let (guest, test_node) = (member(4, 1), 3);
    let first = cluster.leader(GROUP).unwrap();
    cluster.bulk_lost = true;
    change_soon(&mut cluster, GROUP, vec![MembershipStep::Learner(guest)]).unwrap();
    cluster.until(5_000, "a state is under way", |cluster| {
        !cluster.lost.is_empty()
    });
    let mut old = std::mem::take(&mut cluster.lost);
    cluster.crash(first);
    cluster.tell_down(first);
    cluster.until(5_000, "another one is under way", |cluster| {
        !cluster.lost.is_empty()
    });
    let mut frames = std::mem::take(&mut cluster.lost);
    assert_ne!(frames[0].0, old[0].0, "from another leader");
    frames.append(&mut old);
    assert_eq!(
        status(&cluster, test_node, GROUP).unwrap().base,
        0,
        "no state yet"
    );
    let frames = frames.into_iter();
    let frames = frames.map(|(from, _, bytes)| Input::Frame { from, bytes });
    cluster.inputs(test_node, frames.collect());
    assert_eq!(cluster.test_nodes[test_node].stopped, None);
    let base = status(&cluster, test_node, GROUP).unwrap().base;
    assert!(base > 0, "a state was installed");
    cluster.until(10_000, "it goes on", |cluster| {
        let leader = cluster.leader(GROUP).unwrap();
        let known = status(cluster, leader, GROUP).unwrap();
        status(cluster, test_node, GROUP).is_some_and(|one| one.applied == known.applied)
    });
}
