//! Replicas come and go: learners, joint changes, snapshots over the wire, removal, new lives.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_node::*;

fn fill(cluster: &mut Cluster, count: usize) {
    for number in 0..count {
        let ttl = 600_000;
        granted(&cluster.acquire(0, acquire("amy", &format!("t:/x/{number}"), ttl)));
    }
}

/// A learner gets a snapshot, catches up, is promoted; an old voter goes, and its data with it.
#[test]
fn a_replica_is_replaced_step_by_step() {
    let mut cluster = trio_and(1, small_logs());
    fill(&mut cluster, 60);
    let group = GroupId(0);
    let new = member(4, 1);
    let early = change(&mut cluster, group, vec![MembershipStep::Voter(new)]);
    assert_eq!(
        early,
        Err(ChangeRefused::Behind),
        "never promoted before it has caught up"
    );
    let with = change(&mut cluster, group, vec![MembershipStep::Learner(new)]).unwrap();
    let new = running_nodes(&cluster, group, new);
    assert_eq!(with.learners, [new]);
    assert!(new.replica > 1, "it has a number of its own");
    cluster.until(10_000, "the learner has everything", |cluster| {
        let leader = cluster.leader(group).unwrap();
        let known = status(cluster, leader, group).unwrap();
        let mut progress = known.progress.iter();
        progress.any(|(member, one)| *member == new && one.matched >= known.applied)
    });
    assert!(
        status(&cluster, 3, group).unwrap().base > 1,
        "by a snapshot"
    );
    let leader = cluster.leader(group).unwrap();
    let gone = (leader + 1) % 3;
    let old = cluster.test_nodes[gone].member;
    let steps = vec![MembershipStep::Voter(new), MembershipStep::Remove(old)];
    let after = change(&mut cluster, group, steps).unwrap();
    assert!(!after.is_joint(), "the joint configuration was left");
    assert!(after.voters.contains(&new) && !after.voters.contains(&old));
    cluster.until(5_000, "the old replica is gone", |cluster| {
        status(cluster, gone, group).is_none()
    });
    assert!(
        !cluster.test_nodes[gone].disk.holds(group),
        "and its data with it"
    );
    // It serves by forwarding, and does not come back with its old data.
    assert_eq!(cluster.holder(gone, "t:/x/7").as_deref(), Some("amy"));
    cluster.crash(gone);
    cluster.start(gone);
    cluster.run(500);
    assert!(status(&cluster, gone, group).is_none());
    // The new voter alone with one other carries the group.
    let third = 3 - leader - gone;
    cluster.crash(third);
    cluster.tell_down(third);
    cluster.run(3_000);
    granted(&cluster.write(3, "bob", "t:/y"));
    assert_eq!(cluster.holder(3, "t:/x/59").as_deref(), Some("amy"));
}

/// A founder that was alone, and then one of three, crashes and comes back: it must not take itself
/// for alone again because the last word on its disk about what is decided is old.
#[test]
fn a_founder_comes_back_as_one_of_many() {
    let group = GroupId(0);
    let mut cluster = Cluster::empty(1, Limits::default());
    let founder = member(1, 1);
    let born = (0..=1).map(|group| (GroupId(group), vec![founder]));
    cluster.add(founder, born.collect());
    for number in 2..=3 {
        cluster.add(member(number, 1), Vec::new());
    }
    for at in 0..3 {
        cluster.start(at);
    }
    cluster.settle();
    let others = [member(2, 1), member(3, 1)];
    for id in [group, cluster.system()] {
        let learners = others.map(MembershipStep::Learner).to_vec();
        change_soon(&mut cluster, id, learners).unwrap();
        let others = others.map(|other| running_nodes(&cluster, id, other));
        cluster.until(10_000, "learners have everything", |cluster| {
            let known = status(cluster, 0, id).unwrap();
            let near = |one: &ReplicaId| {
                let mut progress = known.progress.iter();
                progress.any(|(member, progress)| member == one && progress.matched == known.last)
            };
            others.iter().all(near)
        });
        let voters = others.map(MembershipStep::Voter).to_vec();
        assert_eq!(change(&mut cluster, id, voters).unwrap().voters.len(), 3);
    }
    cluster.crash(0);
    cluster.tell_down(0);
    cluster.until(5_000, "another leads", |cluster| {
        cluster.leader(group).is_some_and(|leader| leader != 0)
    });
    granted(&cluster.write(1, "amy", "t:/a"));
    let leads = |cluster: &Cluster| {
        let status = cluster.test_nodes[0].node.as_ref().unwrap().status();
        status.groups.iter().any(|one| one.role == Role::Leader)
    };
    for other in 1..3 {
        cluster.cut(0, other);
        cluster.cut(other, 0);
    }
    cluster.start(0);
    for _ in 0..300 {
        assert!(!leads(&cluster), "no node has voted for it");
        cluster.run(10);
    }
    cluster.heal();
    cluster.run(3_000);
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
}

/// A removed replica that never saw its removal learns of it from the leader.
#[test]
fn a_replica_that_was_away_learns_that_it_is_removed() {
    let mut cluster = trio_and(1, small_logs());
    fill(&mut cluster, 5);
    let group = GroupId(0);
    let leader = cluster.leader(group).unwrap();
    let away = (leader + 1) % 3;
    cluster.isolate(away);
    let old = cluster.test_nodes[away].member;
    let after = change(&mut cluster, group, vec![MembershipStep::Remove(old)]).unwrap();
    assert_eq!(after.voters.len(), 2);
    cluster.heal();
    cluster.until(10_000, "the old replica is gone", |cluster| {
        status(cluster, away, group).is_none()
    });
    assert_eq!(cluster.holder(away, "t:/x/1").as_deref(), Some("amy"));
}

/// Three voters, and a learner of the first group in the fourth seat.
fn trio_and_learner() -> (Cluster, ReplicaId) {
    let mut cluster = trio_and(1, small_logs());
    fill(&mut cluster, 5);
    let (group, test_node, new) = (GroupId(0), 3, member(4, 1));
    change(&mut cluster, group, vec![MembershipStep::Learner(new)]).unwrap();
    cluster.until(5_000, "the learner is there", |cluster| {
        status(cluster, test_node, group).is_some()
    });
    let new = running_nodes(&cluster, group, new);
    (cluster, new)
}

/// R165: a leader that is to go hands over first, and to one that may lead: a learner that has caught up is as
/// far as any voter, and cannot.
#[test]
fn a_leader_that_is_replaced_hands_over_to_a_voter() {
    let (mut cluster, new) = trio_and_learner();
    let group = GroupId(0);
    let old = cluster.leader(group).unwrap();
    cluster.run(1_000);
    let steps = vec![
        MembershipStep::Voter(new),
        MembershipStep::Remove(cluster.test_nodes[old].member),
    ];
    let first = change(&mut cluster, group, steps.clone());
    assert_eq!(first, Err(ChangeRefused::Busy));
    cluster.until(2_000, "another leads", |cluster| {
        cluster.leader(group).is_some_and(|leader| leader != old)
    });
    let after = change(&mut cluster, group, steps).unwrap();
    assert!(after.voters.contains(&new) && after.voters.len() == 3);
    cluster.until(5_000, "the old replica is gone", |cluster| {
        status(cluster, old, group).is_none()
    });
}

/// R165: where no remaining replica may lead yet, the new voters come first and the old one goes afterwards.
#[test]
fn a_lone_leader_is_replaced() {
    let mut cluster = Cluster::empty(1, small_logs());
    let (old, new) = (member(1, 1), member(2, 1));
    let born = (0..=1).map(|group| (GroupId(group), vec![old])).collect();
    cluster.add(old, born);
    cluster.add(new, Vec::new());
    cluster.start(0);
    cluster.start(1);
    cluster.settle();
    fill(&mut cluster, 5);
    let group = GroupId(0);
    change(&mut cluster, group, vec![MembershipStep::Learner(new)]).unwrap();
    let new = running_nodes(&cluster, group, new);
    cluster.until(5_000, "the learner has caught up", |cluster| {
        status(cluster, 1, group).is_some_and(|one| one.applied > 5)
    });
    let steps = vec![MembershipStep::Voter(new), MembershipStep::Remove(old)];
    // The present leader is asked until it is done, as the driver does.
    for _ in 0..20 {
        if cluster.leader(group).is_some()
            && let Ok(after) = change(&mut cluster, group, steps.clone())
            && after.voters == [new]
        {
            break;
        }
        cluster.run(100);
    }
    cluster.until(5_000, "the old replica is gone", |cluster| {
        status(cluster, 0, group).is_none()
    });
    assert_eq!(cluster.leader(group), Some(1));
    assert_eq!(cluster.holder(0, "t:/x/3").as_deref(), Some("amy"));
}

/// R166: a learner never stands for election, so no node would notice that it is still there.
#[test]
fn a_learner_that_was_away_learns_that_it_is_removed() {
    let (mut cluster, new) = trio_and_learner();
    let (group, away) = (GroupId(0), 3);
    cluster.isolate(away);
    change(&mut cluster, group, vec![MembershipStep::Remove(new)]).unwrap();
    cluster.run(5_000);
    assert!(status(&cluster, away, group).is_some(), "it cannot know");
    cluster.heal();
    cluster.until(5_000, "the learner is gone", |cluster| {
        status(cluster, away, group).is_none()
    });
    // For good: it does not come back with a restart.
    cluster.crash(away);
    cluster.start(away);
    cluster.run(3_000);
    assert!(status(&cluster, away, group).is_none());
    assert_eq!(cluster.holder(away, "t:/x/1").as_deref(), Some("amy"));
}

/// R166: what was said about a membership that is over does not count for the next one.
#[test]
fn a_late_word_of_a_removal_spares_a_replica_that_is_back() {
    let (mut cluster, new) = trio_and_learner();
    let (group, away) = (GroupId(0), 3);
    // It can ask, and hears no answer.
    for other in 0..3 {
        cluster.cut(other, away);
    }
    change(&mut cluster, group, vec![MembershipStep::Remove(new)]).unwrap();
    cluster.run(5_000);
    let late = std::mem::take(&mut cluster.lost);
    assert!(status(&cluster, away, group).is_some());
    let again = vec![MembershipStep::Learner(member(4, 1))];
    change(&mut cluster, group, again).unwrap();
    let new = running_nodes(&cluster, group, new);
    cluster.heal();
    cluster.until(5_000, "it has caught up", |cluster| {
        let known = status(cluster, cluster.leader(group).unwrap(), group).unwrap();
        let mut progress = known.progress.iter();
        progress.any(|(one, progress)| one.node == new.node && progress.matched == known.last)
    });
    let voters = change(&mut cluster, group, vec![MembershipStep::Voter(new)]).unwrap();
    assert!(voters.voters.contains(&new));
    assert!(!late.is_empty(), "there is something to bring late");
    for (from, to, bytes) in late {
        assert_eq!(to, new.node);
        cluster.input(away, Input::Frame { from, bytes });
        assert!(status(&cluster, away, group).is_some());
    }
    cluster.run(3_000);
    assert!(status(&cluster, away, group).is_some());
}

/// A wiped voter comes back under a new incarnation: as long as it is not made a member under that incarnation,
/// nothing it says counts, and nothing meant for its old incarnation reaches it.
#[test]
fn a_wiped_voter_never_votes_again_under_its_old_identity() {
    let mut cluster = trio_and(0, small_logs());
    fill(&mut cluster, 5);
    let group = GroupId(0);
    let leader = cluster.leader(group).unwrap();
    let wiped = (leader + 1) % 3;
    let other = 3 - leader - wiped;
    cluster.crash(wiped);
    cluster.test_nodes[wiped].disk = TestDisk::default();
    let old = cluster.test_nodes[wiped].member;
    cluster.test_nodes[wiped].member = ReplicaId {
        incarnation: 2,
        ..old
    };
    let new = cluster.test_nodes[wiped].member;
    cluster.start(wiped);
    cluster.run(500);
    // The leader dies: one old voter and a stranger are no majority of three.
    cluster.crash(leader);
    cluster.tell_down(leader);
    cluster.run(8_000);
    assert_eq!(cluster.leader(group), None);
    cluster.start(leader);
    cluster.settle();
    assert_eq!(cluster.holder(other, "t:/x/3").as_deref(), Some("amy"));
    // Replaced properly: learner under the new incarnation, then one step with the old one's removal.
    change(&mut cluster, group, vec![MembershipStep::Learner(new)]).unwrap();
    let new = running_nodes(&cluster, group, new);
    cluster.until(10_000, "it has caught up", |cluster| {
        status(cluster, wiped, group).is_some_and(|one| one.applied > 5)
    });
    cluster.run(500);
    let steps = vec![MembershipStep::Voter(new), MembershipStep::Remove(old)];
    let after = change(&mut cluster, group, steps).unwrap();
    assert!(after.voters.contains(&new) && !after.voters.contains(&old));
    assert_eq!(cluster.holder(wiped, "t:/x/3").as_deref(), Some("amy"));
}

/// A replica without peers has what it applied on disk only, long before the log is cut. A restart reads
/// it, and a peer that comes later gets a state instead.
#[test]
fn a_lone_replica_forgets_what_it_has_applied() {
    let group = GroupId(0);
    let mut cluster = Cluster::empty(1, Limits::default());
    let (founder, new) = (member(1, 1), member(2, 1));
    let born = (0..=1).map(|group| (GroupId(group), vec![founder]));
    cluster.add(founder, born.collect());
    cluster.add(new, Vec::new());
    cluster.start(0);
    cluster.start(1);
    cluster.settle();
    fill(&mut cluster, 400);
    cluster.crash(0);
    cluster.start(0);
    cluster.settle();
    for number in [0, 399] {
        let holder = cluster.holder(0, &format!("t:/x/{number}"));
        assert_eq!(holder.as_deref(), Some("amy"));
    }
    let known = status(&cluster, 0, group).unwrap();
    assert!(known.base <= 1, "the log was not cut");
    change(&mut cluster, group, vec![MembershipStep::Learner(new)]).unwrap();
    let new = running_nodes(&cluster, group, new);
    cluster.until(10_000, "the learner has everything", |cluster| {
        let known = status(cluster, 0, group).unwrap();
        let mut progress = known.progress.iter();
        progress.any(|(member, one)| *member == new && one.matched >= known.applied)
    });
    assert!(
        status(&cluster, 1, group).unwrap().base > 1,
        "by a snapshot"
    );
}

/// Logs are cut behind snapshots, and a restart finds everything: leases, queue, fences.
#[test]
fn a_restart_from_snapshot_and_log_loses_nothing() {
    let mut cluster = Cluster::with(1, 2, small_logs());
    cluster.run(10);
    let mut fence = 0;
    for number in 0..100 {
        let what = format!("t:/{}", number % 7);
        let answer = cluster.acquire(0, acquire("amy", &what, 600_000));
        fence = granted(&answer).number().max(fence);
    }
    assert!(is_queued(&cluster.write(0, "bob", "t:/3")));
    let base = status(&cluster, 0, GroupId(0)).unwrap().base
        + status(&cluster, 0, GroupId(1)).unwrap().base;
    assert!(base > 20, "logs were cut");
    let kept = status(&cluster, 0, GroupId(0)).unwrap();
    assert!(kept.last - kept.base <= 40, "and stay short");
    for _ in 0..2 {
        cluster.crash(0);
        cluster.start(0);
        cluster.run(50);
        assert_eq!(cluster.holder(0, "t:/3").as_deref(), Some("amy"));
    }
    cluster.release(0, "amy", "t:/3");
    cluster.run(10);
    assert_eq!(cluster.holder(0, "t:/3").as_deref(), Some("bob"));
}

/// A follower that was away longer than the log remembers gets the state, with the queue in it.
#[test]
fn a_follower_far_behind_gets_a_snapshot() {
    let mut cluster = trio_and(0, small_logs());
    let group = GroupId(0);
    let leader = cluster.leader(group).unwrap();
    let away = (leader + 1) % 3;
    cluster.crash(away);
    cluster.tell_down(away);
    let at = leader;
    for number in 0..80 {
        let ttl = 600_000;
        granted(&cluster.acquire(at, acquire("amy", &format!("t:/x/{number}"), ttl)));
    }
    let mut wait = acquire("bob", "t:/x/1", 60_000);
    wait.queue_ttl = tenure_core::value::QueueTtl::from_millis(600_000).unwrap();
    assert!(is_queued(&cluster.acquire(at, wait)));
    cluster.start(away);
    cluster.until(10_000, "it has caught up", |cluster| {
        let last = status(cluster, leader, group).unwrap().applied;
        status(cluster, away, group).is_some_and(|one| one.applied >= last)
    });
    // Only it and one other: what it got must be all there is.
    cluster.crash(leader);
    cluster.tell_down(leader);
    cluster.run(4_000);
    cluster.release(away, "amy", "t:/x/1");
    cluster.run(50);
    assert_eq!(cluster.holder(away, "t:/x/1").as_deref(), Some("bob"));
    assert_eq!(cluster.holder(away, "t:/x/79").as_deref(), Some("amy"));
    // And it is durable there.
    cluster.crash(away);
    cluster.start(away);
    cluster.run(4_000);
    assert_eq!(cluster.holder(away, "t:/x/1").as_deref(), Some("bob"));
}

/// R151: beyond the budget of a group, an immediate refusal that changed nothing; endings are exempt.
/// A quarter of the budget is kept for renewals and releases.
#[test]
fn a_full_group_refuses_at_once_and_still_ends_leases() {
    let limits = Limits {
        group_inflight: 8,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(1, 1, limits);
    cluster.run(10);
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 1_000)));
    cluster.test_nodes[0].paused_disk = true;
    let asked: Vec<RequestId> = (0..20)
        .map(|number| {
            let request = acquire("bob", &format!("t:/{number}"), 5_000);
            cluster.ask(0, ClientRequest::Acquire(request))
        })
        .collect();
    let refused = asked
        .iter()
        .filter(|id| {
            matches!(
                cluster.test_nodes[0].answers.get(id),
                Some(Err(Failure::Unavailable {
                    nothing_happened: EffectCertainty::Yes,
                    ..
                }))
            )
        })
        .count();
    // Of the six places one principal gets five: it may have four times the room that is left.
    assert_eq!(refused, 15);
    let releases: Vec<RequestId> = (0..4)
        .map(|_| {
            let release = ReleaseRequest {
                owner: owner("amy"),
                holds: vec![tenure_core::command::Hold {
                    path: path("t:/b"),
                    mode: tenure_core::policy::Mode::Write,
                }],
                edge: WaitEdge::Keep,
                key: None,
            };
            cluster.ask(0, ClientRequest::Release(release))
        })
        .collect();
    let refused: Vec<bool> = releases
        .iter()
        .map(|id| cluster.test_nodes[0].answers.contains_key(id))
        .collect();
    assert_eq!(refused, [false, false, false, true]);
    cluster.run(1_500);
    cluster.test_nodes[0].paused_disk = false;
    cluster.run(50);
    assert_eq!(
        cluster.holder(0, "t:/a"),
        None,
        "the lease ended all the same"
    );
}

/// A voter that does not know durably that a removal is committed may need the removed replica after a restart. So the
/// removed replica is not deleted before a majority knows it durably: what a follower has heard and not written
/// does not count, although its answers to heartbeats do not wait for its disk.
#[test]
fn a_removed_replica_stays_until_a_majority_has_written_that_it_was_removed() {
    let group = GroupId(0);
    let mut cluster = Cluster::empty(1, Limits::default());
    cluster.fill_with_trio(0);
    let leader = cluster.leader(group).unwrap();
    let (slow, gone) = ((leader + 1) % 3, (leader + 2) % 3);
    let removed = status(&cluster, gone, group).unwrap().member;
    cluster.test_nodes[slow].paused_disk = true;
    // Committed by the leader and the removed one. From now on a majority is the leader and the slow one.
    change_soon(&mut cluster, group, vec![MembershipStep::Remove(removed)]).unwrap();
    for _ in 0..50 {
        cluster.run(100);
        assert!(cluster.test_nodes[gone].disk.holds(group));
        assert!(status(&cluster, gone, group).is_some());
    }
    // The slow one restarts without what it has not written, and can still be brought up to date.
    cluster.crash(slow);
    cluster.test_nodes[slow].paused_disk = false;
    cluster.start(slow);
    cluster.until(20_000, "the removed one is deleted", |cluster| {
        !cluster.test_nodes[gone].disk.holds(group)
    });
    cluster.settle();
    granted(&cluster.write(slow, "ann", "t:/a"));
}
