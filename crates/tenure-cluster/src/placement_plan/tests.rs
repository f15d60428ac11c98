//! Scenarios as tables of nodes, and random clusters that must converge.

use super::*;
use tenure_node::{Membership, Progress};

fn member(node: u32) -> ReplicaId {
    ReplicaId::new(NodeId::new(node).unwrap(), 1)
}

fn rules() -> PlacementRules {
    PlacementRules {
        replication_factor: 3,
        stability_ms: 30_000,
        eviction_ms: 60_000,
        balance_ms: 60_000,
        at_once: 4,
    }
}

const NOW: u64 = 1_000_000;

fn seen(node: u32, up: bool, for_ms: u64) -> NodeView {
    NodeView {
        member: member(node),
        up,
        since_ms: NOW - for_ms,
        draining: false,
    }
}

fn view(nodes: impl IntoIterator<Item = NodeView>) -> PlacementView {
    PlacementView {
        nodes: nodes
            .into_iter()
            .map(|seen| (seen.member.node, seen))
            .collect(),
        removed: BTreeSet::new(),
    }
}

fn stable(nodes: impl IntoIterator<Item = u32>) -> PlacementView {
    view(nodes.into_iter().map(|node| seen(node, true, 100_000)))
}

/// Returns a group that this node leads and whose followers are up to date.
fn group(number: u32, voters: &[u32], learners: &[u32]) -> GroupStatus {
    let members = |nodes: &[u32]| nodes.iter().map(|node| member(*node)).collect();
    let membership = Membership {
        voters: members(voters),
        learners: members(learners),
        ..Membership::default()
    };
    let progress = Progress {
        matched: 100,
        recent: true,
    };
    GroupStatus {
        group: GroupId(number),
        member: member(voters[0]),
        role: Role::Leader,
        serves: true,
        term: 3,
        leader: Some(member(voters[0])),
        rules: 1,
        applied: 100,
        last: 100,
        base: 1,
        waiting: 0,
        progress: membership
            .everybody()
            .into_iter()
            .map(|member| (member, progress))
            .collect(),
        membership,
        counts: None,
    }
}

fn next(group: &GroupStatus, view: &PlacementView) -> Vec<PlacementStep> {
    let me = group.membership.voters[0];
    plan(
        me,
        std::slice::from_ref(group),
        view,
        &rules(),
        LeaderBalance::NotNow,
        NOW,
    )
}

fn change(group: u32, steps: Vec<MembershipStep>) -> Vec<PlacementStep> {
    vec![PlacementStep::Change(
        GroupId(group),
        MembershipChange { steps },
    )]
}

use MembershipStep::{Learner, Remove, Voter};

/// R164 (replication factor), R165 (pace of membership changes): two nodes join a single one; the
/// group gets three voters in one step, by way of learners.
#[test]
fn a_group_grows_with_the_cluster() {
    let three = stable([1, 2, 3]);
    assert_eq!(
        next(&group(0, &[1], &[]), &three),
        change(0, vec![Learner(member(2)), Learner(member(3))])
    );
    assert_eq!(
        next(&group(0, &[1], &[2, 3]), &three),
        change(0, vec![Voter(member(2)), Voter(member(3))])
    );
    assert_eq!(next(&group(0, &[1, 2, 3], &[]), &three), []);
    assert_eq!(next(&group(0, &[1], &[]), &stable([1, 2])), [], "odd");
}

/// A leader does not remove itself and can transfer its leadership only to voters. If no voter
/// stays, the new nodes become voters beside it first.
#[test]
fn a_lone_leader_that_is_to_leave_promotes_first() {
    let five = stable([1, 2, 3, 4, 5]);
    let numbers = 0..64;
    let leaves = numbers.map(GroupId).find(|id| {
        let nodes: Vec<NodeId> = (1..=5).filter_map(NodeId::new).collect();
        let first = placement::voters_of(*id, &nodes, 3);
        !first.contains(&member(1).node)
    });
    let number = leaves.unwrap().0;
    let [PlacementStep::Change(_, learners)] = &next(&group(number, &[1], &[]), &five)[..] else {
        panic!("nothing is begun");
    };
    let coming: Vec<ReplicaId> = learners
        .steps
        .iter()
        .map(|step| match step {
            Learner(member) => *member,
            other => panic!("{other:?} before a learner has caught up"),
        })
        .collect();
    let [a, b, c] = coming[..] else {
        panic!("three are wanted: {coming:?}");
    };
    let numbers = [a, b, c].map(|one| one.node.number());
    let promoted = next(&group(number, &[1], &numbers), &five);
    assert_eq!(promoted, change(number, vec![Voter(a), Voter(b), Voter(c)]));
    let [x, y, z] = numbers;
    let leaving = next(&group(number, &[1, x, y, z], &[]), &five);
    assert_eq!(leaving, change(number, vec![Remove(member(1))]));
}

/// R165: a node counts after its stability window; a learner is promoted only when it has caught
/// up.
#[test]
fn newcomers_wait() {
    let fresh = view([
        seen(1, true, 100_000),
        seen(2, true, 29_999),
        seen(3, true, 100_000),
    ]);
    assert_eq!(next(&group(0, &[1], &[]), &fresh), []);
    let mut behind = group(0, &[1], &[2, 3]);
    behind.last = 1_000;
    assert_eq!(next(&behind, &stable([1, 2, 3])), []);
    let mut silent = group(0, &[1], &[2, 3]);
    silent.progress[1].1.recent = false;
    assert_eq!(next(&silent, &stable([1, 2, 3])), []);
}

/// R164: a dead voter stays while no node can replace it, and is replaced after the window if one
/// can.
#[test]
fn failure_never_makes_voters_fewer() {
    let dead = |for_ms| {
        view([
            seen(1, true, 100_000),
            seen(2, true, 100_000),
            seen(3, false, for_ms),
        ])
    };
    assert_eq!(next(&group(0, &[1, 2, 3], &[]), &dead(10_000_000 / 20)), []);
    let mut spare = dead(59_999);
    spare.nodes.insert(member(4).node, seen(4, true, 100_000));
    let ranked = placement::voters_of(
        GroupId(7),
        &[1, 2, 3, 4].map(|node| NodeId::new(node).unwrap()),
        3,
    );
    let has_four = ranked.contains(&member(4).node);
    let steps = next(&group(7, &[1, 2, 3], &[]), &spare);
    assert_eq!(steps.is_empty(), !has_four, "only the ranking speaks yet");
    spare.nodes.insert(member(3).node, seen(3, false, 60_000));
    assert_eq!(
        next(&group(7, &[1, 2, 3], &[]), &spare),
        change(7, vec![Learner(member(4))])
    );
    assert_eq!(
        next(&group(7, &[1, 2, 3], &[4]), &spare),
        change(7, vec![Voter(member(4)), Remove(member(3))])
    );
}

/// A wiped node comes back as a new incarnation: it is a learner first, then replaces the old one.
#[test]
fn a_new_life_takes_the_old_ones_seat() {
    let mut wiped = stable([1, 2, 3]);
    let born_again = ReplicaId {
        incarnation: 2,
        ..member(3)
    };
    let again = NodeView {
        member: born_again,
        ..seen(3, true, 40_000)
    };
    wiped.nodes.insert(born_again.node, again);
    assert_eq!(
        next(&group(0, &[1, 2, 3], &[]), &wiped),
        change(0, vec![Learner(born_again)])
    );
    let mut joined = group(0, &[1, 2, 3], &[]);
    joined.membership.learners = vec![born_again];
    let caught_up = Progress {
        matched: 100,
        recent: true,
    };
    joined.progress.push((born_again, caught_up));
    assert_eq!(
        next(&joined, &wiped),
        change(0, vec![Voter(born_again), Remove(member(3))])
    );
}

/// A node is added by its incarnation; its replica is promoted and removed by its own replica
/// number.
#[test]
fn a_replica_is_named_by_its_number() {
    let mut joined = group(7, &[1, 2, 3], &[]);
    let mut four = stable([1, 2, 3, 4]);
    if let Some(seen) = four.nodes.get_mut(&member(3).node) {
        seen.draining = true;
    }
    assert_eq!(next(&joined, &four), change(7, vec![Learner(member(4))]));
    let replica = member(4).numbered(50);
    let caught_up = Progress {
        matched: 100,
        recent: true,
    };
    joined.membership.learners = vec![replica];
    joined.progress.push((replica, caught_up));
    assert_eq!(
        next(&joined, &four),
        change(7, vec![Voter(replica), Remove(member(3))])
    );
    joined.membership.learners.clear();
    joined.membership.voters = vec![member(1), member(2), replica];
    if let Some(seen) = four.nodes.get_mut(&member(3).node) {
        seen.draining = false;
    }
    if let Some(seen) = four.nodes.get_mut(&member(4).node) {
        seen.draining = true;
    }
    joined.membership.learners = vec![member(3).numbered(60)];
    joined.progress.push((member(3).numbered(60), caught_up));
    assert_eq!(
        next(&joined, &four),
        change(7, vec![Voter(member(3).numbered(60)), Remove(replica)])
    );
}

/// R166 (draining a node): replicas and leaderships leave a draining node while it is up.
#[test]
fn a_draining_node_is_emptied() {
    let drained = |nodes: &[u32], leaving: u32| {
        let mut view = stable(nodes.iter().copied());
        if let Some(seen) = view.nodes.get_mut(&member(leaving).node) {
            seen.draining = true;
        }
        view
    };
    assert_eq!(
        next(&group(0, &[1, 2, 3], &[]), &drained(&[1, 2, 3, 4], 3)),
        change(0, vec![Learner(member(4))])
    );
    assert_eq!(
        next(&group(0, &[1, 2, 3], &[]), &drained(&[1, 2, 3], 3)),
        change(0, vec![Remove(member(3))]),
        "an operator's order, even if no node takes its place"
    );
    let alone = group(0, &[1], &[]);
    assert_eq!(next(&alone, &drained(&[1], 1)), [], "the last copy stays");
}

/// When an operator removes an incarnation, its replica leaves the voters at once.
#[test]
fn a_removed_node_loses_its_seats() {
    let mut two = stable([1, 2]);
    two.removed.insert(member(3));
    assert_eq!(
        next(&group(0, &[1, 2, 3], &[]), &two),
        change(0, vec![Remove(member(3))])
    );
}

/// R165: a change needs a majority of its new voters that is up.
#[test]
fn nothing_is_changed_without_a_majority() {
    let mut lost = view([
        seen(1, true, 100_000),
        seen(2, false, 1_000),
        seen(3, false, 1_000),
    ]);
    lost.removed.insert(member(4));
    let four = group(0, &[1, 2, 3, 4], &[]);
    assert_eq!(next(&four, &lost), []);
}

/// R165: leaderships move to the first node in rank, a few groups at a time.
#[test]
fn leaderships_drift_a_few_at_a_time() {
    let groups: Vec<GroupStatus> = (0..64).map(|at| group(at, &[1, 2, 3], &[])).collect();
    let three = stable([1, 2, 3]);
    let steps = plan(
        member(1),
        &groups,
        &three,
        &rules(),
        LeaderBalance::Now,
        NOW,
    );
    assert_eq!(steps.len(), TRANSFERS_AT_ONCE);
    for step in steps {
        let PlacementStep::Transfer(group, to) = step else {
            panic!("nothing is to change")
        };
        let nodes = [1, 2, 3].map(|node| NodeId::new(node).unwrap());
        assert_eq!(placement::voters_of(group, &nodes, 1), [to.node]);
    }
}

/// R165: a limited number of groups changes at once, and changes in progress come first.
#[test]
fn few_groups_change_at_once() {
    let mut groups: Vec<GroupStatus> = (0..64).map(|at| group(at, &[1], &[])).collect();
    groups[60] = group(60, &[1], &[2, 3]);
    let steps = plan(
        member(1),
        &groups,
        &stable([1, 2, 3]),
        &rules(),
        LeaderBalance::NotNow,
        NOW,
    );
    assert_eq!(steps.len(), 4);
    assert!(matches!(&steps[0], PlacementStep::Change(GroupId(60), _)));
}

/// From any membership, in any cluster that does not change, the steps end, never leave a group
/// without a voter that has its state, and never reduce the voters because nodes are down.
#[test]
fn every_cluster_settles() {
    let mut rng = 0x9e37_79b9_7f4a_7c15u64;
    let mut roll = |sides: u64| {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng % sides
    };
    for case in 0..3_000 {
        let count = 1 + roll(7) as u32;
        let mut cluster = view((1..=count).map(|node| {
            let up = node == 1 || roll(4) != 0;
            let draining = roll(6) == 0;
            NodeView {
                draining,
                ..seen(node, up, roll(200_000))
            }
        }));
        let voters: Vec<u32> = (1..=count)
            .filter(|node| *node == 1 || roll(2) == 0)
            .take(5)
            .collect();
        let ordered = roll(3) == 0;
        if ordered && count > 1 {
            let gone = member(count);
            cluster.nodes.remove(&gone.node);
            cluster.removed.insert(gone);
        }
        let mut group = group(case as u32 % 16, &voters, &[]);
        let sound_before = group.membership.voters.len();
        let mut rounds = 0;
        loop {
            let steps = next(&group, &cluster);
            let changes: Vec<&MembershipChange> = steps
                .iter()
                .filter_map(|step| match step {
                    PlacementStep::Change(_, change) => Some(change),
                    PlacementStep::Transfer(..) => None,
                })
                .collect();
            let Some(change) = changes.first() else {
                break;
            };
            enact(&mut group, change);
            rounds += 1;
            assert!(
                rounds < 10,
                "case {case}: {cluster:?} {:?}",
                group.membership
            );
        }
        let leaving = |seen: &&NodeView| seen.draining;
        if cluster.removed.is_empty() && cluster.nodes.values().filter(leaving).count() == 0 {
            let least = sound_before.min(rules().replication_factor);
            assert!(group.membership.voters.len() >= least, "case {case}");
        }
        assert!(!group.membership.voters.is_empty());
    }
}

/// Applies a step as the node would, for a leader that stays and followers that keep up.
fn enact(group: &mut GroupStatus, change: &MembershipChange) {
    let membership = &mut group.membership;
    let stays = |voter: &&ReplicaId| !change.steps.contains(&Remove(**voter));
    assert!(
        membership.voters.iter().any(|voter| stays(&voter)),
        "no voter could take over: {membership:?} {change:?}"
    );
    group.last += 1;
    for step in &change.steps {
        let (Voter(one) | Learner(one) | Remove(one)) = *step;
        let members = membership.voters.iter().chain(&membership.learners);
        let is_member = members.copied().any(|member| member == one);
        assert_eq!(
            is_member,
            !matches!(step, Learner(_)),
            "{membership:?} {step:?}"
        );
        membership.voters.retain(|voter| *voter != one);
        membership.learners.retain(|learner| *learner != one);
        match step {
            Voter(one) => membership.voters.push(*one),
            Learner(one) => membership.learners.push(one.numbered(group.last)),
            Remove(_) => {}
        }
    }
    let progress = Progress {
        matched: group.last,
        recent: true,
    };
    group.progress = membership
        .everybody()
        .into_iter()
        .map(|member| (member, progress))
        .collect();
    if !membership.voters.contains(&member(1)) {
        // The leader transferred its leadership before it left: the next leader plans from its own
        // place.
        group.leader = membership.voters.first().copied();
    }
}
