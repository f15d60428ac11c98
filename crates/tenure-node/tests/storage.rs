//! Slow and hung disks: a node whose writes do not become durable gives its groups away, says that it is not
//! healthy, and stops in the end. Where all disks are slow, leaderships stay where they are.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeMap;

use support::*;
use tenure_core::command::Request;
use tenure_node::*;

/// One election timeout: ten ticks of 120 ms.
const ELECTION_TIMEOUT_MS: u64 = 1_200;

fn terms(cluster: &Cluster) -> BTreeMap<GroupId, u64> {
    let mut terms = BTreeMap::new();
    for test_node in &cluster.test_nodes {
        for group in test_node.node.iter().flat_map(|node| node.status().groups) {
            let term = terms.entry(group.group).or_insert(0);
            *term = group.term.max(*term);
        }
    }
    terms
}

/// How many groups a test node leads.
fn led(cluster: &Cluster, at: usize) -> usize {
    let groups = cluster.test_nodes[at]
        .node
        .as_ref()
        .unwrap()
        .status()
        .groups;
    let led = groups.iter().filter(|group| group.role == Role::Leader);
    led.count()
}

/// Every group is led by this seat.
fn leads_everything(cluster: &mut Cluster, at: usize) {
    let to = cluster.test_nodes[at].member;
    for group in (0..=cluster.groups).map(GroupId) {
        let leader = cluster.leader(group).unwrap();
        cluster.input(leader, Input::Transfer { group, to });
    }
    let all = cluster.groups as usize + 1;
    cluster.until(5_000, "one node leads everything", |cluster| {
        led(cluster, at) == all
    });
    cluster.settle();
}

/// A cluster of three whose first seat leads everything.
fn trio() -> Cluster {
    let mut cluster = Cluster::new(3, 4);
    cluster.settle();
    leads_everything(&mut cluster, 0);
    cluster
}

/// R145 (Health needs a working quorum), R151: heartbeats need no disk, so followers cannot see
/// that a leader's disk hangs. The leader can: it hands over, and clients are answered through
/// every node, the slow one included.
#[test]
fn a_leader_whose_disk_hangs_hands_over() {
    let mut cluster = trio();
    cluster.test_nodes[0].paused_disk = true;
    let asked: Vec<RequestId> = (0..8)
        .map(|number| {
            let request = acquire("amy", &format!("t{number}:/a"), 60_000);
            cluster.ask(1, ClientRequest::Acquire(request))
        })
        .collect();
    cluster.run(ELECTION_TIMEOUT_MS + 500);
    assert_eq!(led(&cluster, 0), 0, "it still leads");
    // What the slow leader has proposed is decided by the next one, and the slow one cannot know how: the
    // calls are answered as if it had crashed.
    cluster.run(ELECTION_TIMEOUT_MS);
    for id in asked {
        let answer = &cluster.test_nodes[1].answers[&id];
        let unknown = EffectCertainty::No;
        let lost = |failure: &Failure| matches!(failure, Failure::Unavailable { nothing_happened, .. } if *nothing_happened == unknown);
        assert!(answer.as_ref().is_err_and(lost), "{answer:?}");
    }
    for number in 0..8 {
        assert_eq!(cluster.holder(1, &format!("t{number}:/a")).unwrap(), "amy");
    }
    for at in 0..3 {
        granted(&cluster.write(at, "bob", &format!("u{at}:/a")));
    }
}

/// R145: a node that cannot write says so.
#[test]
fn a_node_whose_disk_hangs_is_not_healthy() {
    let mut cluster = trio();
    assert_eq!(cluster.call(0, ClientRequest::Health), Ok(Answer::Ready));
    cluster.test_nodes[0].paused_disk = true;
    let request = acquire("amy", "t:/a", 60_000);
    cluster.ask(0, ClientRequest::Acquire(request));
    cluster.run(ELECTION_TIMEOUT_MS + 200);
    let oldest = cluster.test_nodes[0].node.as_ref().unwrap().status();
    assert!(
        oldest.unsynced_ms >= ELECTION_TIMEOUT_MS,
        "{}",
        oldest.unsynced_ms
    );
    let Err(Failure::Unavailable { why, .. }) = cluster.call(0, ClientRequest::Health) else {
        panic!("a node with a hung disk is healthy");
    };
    assert!(why.contains("disk"), "{why}");
    assert_eq!(cluster.call(1, ClientRequest::Health), Ok(Answer::Ready));
    cluster.test_nodes[0].paused_disk = false;
    cluster.run(100);
    assert_eq!(cluster.call(0, ClientRequest::Health), Ok(Answer::Ready));
    let oldest = cluster.test_nodes[0].node.as_ref().unwrap().status();
    assert_eq!(oldest.unsynced_ms, 0);
}

/// A write that takes half a minute will not end: the process does.
#[test]
fn a_node_whose_disk_hangs_for_long_stops() {
    let mut cluster = Cluster::new(1, 1);
    cluster.settle();
    cluster.test_nodes[0].paused_disk = true;
    let request = acquire("amy", "t:/a", 60_000);
    cluster.ask(0, ClientRequest::Acquire(request));
    cluster.run(15_000);
    assert_eq!(cluster.test_nodes[0].stopped, None);
    cluster.run(15_000);
    let why = cluster.test_nodes[0].stopped.clone().expect("it goes on");
    assert!(why.contains("disk"), "{why}");
}

/// A node that was suspended has not waited for its disk meanwhile.
#[test]
fn a_pause_of_the_process_is_no_slow_disk() {
    let mut cluster = Cluster::new(1, 1);
    cluster.settle();
    cluster.test_nodes[0].paused_disk = true;
    let request = acquire("amy", "t:/a", 60_000);
    cluster.ask(0, ClientRequest::Acquire(request));
    cluster.test_nodes[0].clock_ms += 60_000;
    cluster.run(20);
    assert_eq!(cluster.test_nodes[0].stopped, None);
}

/// A hand-over from one slow disk to another does not help: where all disks hang, leaderships stay.
#[test]
fn leaderships_stay_where_all_disks_hang() {
    let mut cluster = trio();
    let before = terms(&cluster);
    for test_node in &mut cluster.test_nodes {
        test_node.paused_disk = true;
    }
    for number in 0..8 {
        let request = acquire("amy", &format!("t{number}:/a"), 60_000);
        cluster.ask(0, ClientRequest::Acquire(request));
    }
    cluster.run(15_000);
    assert_eq!(terms(&cluster), before);
    assert_eq!(led(&cluster, 0), 5);
    for test_node in &mut cluster.test_nodes {
        test_node.paused_disk = false;
    }
    granted(&cluster.write(1, "bob", "u:/a"));
}

/// Disks that take three seconds for every sync, one after the other: at most one election a minute and
/// group.
#[test]
fn slow_disks_do_not_make_leaderships_flap() {
    let mut cluster = trio();
    for test_node in &mut cluster.test_nodes {
        test_node.paused_disk = true;
    }
    let before = terms(&cluster);
    let minutes = 3;
    for number in 0..minutes * 600 {
        if number % 5 == 0 {
            let what = format!("t{}:/{number}", number % 7);
            let request = acquire("amy", &what, 60_000);
            cluster.ask_for(number % 3, ClientRequest::Acquire(request), 10_000);
        }
        cluster.run(100);
        let slow = [30, 31, 34];
        for (at, every) in slow.into_iter().enumerate() {
            if number % every == 0 {
                cluster.sync(at);
            }
        }
    }
    for (group, term) in terms(&cluster) {
        let elections = term - before[&group];
        assert!(elections <= minutes as u64, "{group}: {elections}");
    }
    let answered: usize = cluster
        .test_nodes
        .iter()
        .map(|test_node| test_node.answers.len())
        .sum();
    let granted = |test_node: &TestNode| {
        let answers = test_node.answers.values();
        answers.filter(|answer| answer.is_ok()).count()
    };
    let granted: usize = cluster.test_nodes.iter().map(granted).sum();
    assert!(granted * 10 > answered * 9, "{granted} of {answered}");
}

/// A disk that hangs again and again: its node gets no leadership back before it was well for a while.
#[test]
fn a_disk_that_was_slow_a_moment_ago_is_no_target() {
    let mut cluster = trio();
    cluster.test_nodes[0].paused_disk = true;
    let request = acquire("amy", "t:/a", 60_000);
    cluster.ask(1, ClientRequest::Acquire(request));
    cluster.run(ELECTION_TIMEOUT_MS * 2);
    assert_eq!(led(&cluster, 0), 0);
    cluster.test_nodes[0].paused_disk = false;
    cluster.run(1_000);
    let group = GroupId(0);
    let leader = cluster.leader(group).unwrap();
    let to = cluster.test_nodes[0].member;
    cluster.input(leader, Input::Transfer { group, to });
    cluster.run(1_000);
    assert_eq!(led(&cluster, 0), 0, "it was slow a second ago");
    cluster.run(65_000);
    let leader = cluster.leader(group).unwrap();
    cluster.input(leader, Input::Transfer { group, to });
    cluster.run(1_000);
    assert_eq!(led(&cluster, 0), 1);
}

/// A node with a slow disk does not stand for election: its votes would come late.
#[test]
fn a_node_with_a_slow_disk_does_not_campaign() {
    let mut cluster = Cluster::new(5, 1);
    cluster.settle();
    let group = GroupId(0);
    let leader = cluster.leader(group).unwrap();
    let others: Vec<usize> = (0..5).filter(|at| *at != leader).collect();
    for at in &others[..2] {
        cluster.test_nodes[*at].paused_disk = true;
    }
    granted(&cluster.write(leader, "amy", "t:/a"));
    cluster.run(ELECTION_TIMEOUT_MS + 200);
    cluster.crash(leader);
    cluster.tell_down(leader);
    cluster.run(ELECTION_TIMEOUT_MS * 3);
    for at in &others[..2] {
        let groups = cluster.test_nodes[*at]
            .node
            .as_ref()
            .unwrap()
            .status()
            .groups;
        assert!(groups.iter().all(|group| group.role == Role::Follower));
    }
    // Two of five are left that can write: no majority, until one of the disks is back.
    cluster.test_nodes[others[0]].paused_disk = false;
    cluster.until(5_000, "a node leads", |cluster| {
        cluster.leader(group).is_some()
    });
    assert!(others[1..].contains(&cluster.leader(group).unwrap()));
}

/// What comes together may be more than the log takes in one record: it is written in several batches, and
/// answers wait for all of them.
#[test]
fn a_turn_is_cut_into_batches_that_the_log_takes() {
    let mut cluster = Cluster::new(3, 16);
    cluster.settle();
    leads_everything(&mut cluster, 0);
    cluster.test_nodes[0].disk.longest_batch = 0;
    let segment = "x".repeat(3_900);
    let mut asked = Vec::new();
    let inputs = (0..40)
        .map(|number| {
            let mut request = acquire("amy", "t:/a", 60_000);
            let paths = (0..300).map(|at| format!("t{number}:/a/{at}{segment}"));
            let one = request.requests.pop().unwrap();
            request.requests = paths
                .map(|what| Request {
                    path: path(&what),
                    ..one.clone()
                })
                .collect();
            let id = cluster.fresh_id();
            asked.push(id);
            Input::Request {
                id,
                request: Box::new(ClientRequest::Acquire(request)),
                timeout_ms: 30_000,
            }
        })
        .collect();
    let before = cluster.test_nodes[0].disk.batches;
    cluster.inputs(0, inputs);
    let disk = &cluster.test_nodes[0].disk;
    assert!(disk.batches > before + 4, "{}", disk.batches - before);
    assert!(
        disk.longest_batch <= MAX_BATCH_BYTES,
        "{}",
        disk.longest_batch
    );
    for id in asked {
        assert!(cluster.wait(0, id).is_ok());
    }
    // Followers get it in fewer turns, and cut it too.
    for test_node in &cluster.test_nodes {
        assert!(test_node.disk.longest_batch <= MAX_BATCH_BYTES);
    }
}

/// R150: a command that is longer than an entry may be is refused to its caller; the node goes on.
#[test]
fn a_command_that_is_too_long_is_refused() {
    let mut cluster = Cluster::new(1, 1);
    cluster.settle();
    let segment = "x".repeat(4_000);
    let mut request = acquire("amy", "t:/a", 60_000);
    let one = request.requests.pop().unwrap();
    request.requests = (0..4_000)
        .map(|at| Request {
            path: path(&format!("t:/a/{at}{segment}")),
            ..one.clone()
        })
        .collect();
    let refused = cluster.call(0, ClientRequest::Acquire(request));
    assert!(
        matches!(refused, Err(Failure::ResourceExhausted(_))),
        "{refused:?}"
    );
    granted(&cluster.write(0, "amy", "t:/a"));
}
