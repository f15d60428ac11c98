//! Much at once between two nodes: states of many groups, and reads of many holds. A connection takes so much
//! and no more; what is legal to ask must not break it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_core::command::Request;
use tenure_core::event::ChangeKind;
use tenure_node::*;

/// Takes this many locks with long paths, all in one namespace.
fn hold(cluster: &mut Cluster, at: usize, namespace: &str, count: usize) {
    let segment = "x".repeat(3_900);
    for first in (0..count).step_by(250) {
        let mut request = acquire("amy", "t:/a", 600_000);
        let one = request.requests.pop().unwrap();
        let numbers = first..(first + 250).min(count);
        request.requests = numbers
            .map(|number| Request {
                path: path(&format!("{namespace}/{number}{segment}")),
                ..one.clone()
            })
            .collect();
        granted(&cluster.acquire(at, request));
    }
}

/// R170: a node that was away catches up at the speed of the line, however many groups it has. The line here
/// carries 10 MB a second and takes 16 MiB at once.
#[test]
fn many_groups_catch_up_at_the_speed_of_the_line() {
    const GROUPS: u32 = 40;
    let limits = Limits {
        log_entries: 1,
        log_bytes: 1,
        log_kept: 0,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(3, GROUPS, limits);
    cluster.settle();
    cluster.crash(2);
    cluster.tell_down(2);
    cluster.settle();
    let mut used = std::collections::BTreeSet::new();
    for number in 0.. {
        if used.len() == GROUPS as usize {
            break;
        }
        let applied = |cluster: &Cluster| -> Vec<u64> {
            let groups = cluster.test_nodes[0].node.as_ref().unwrap().status().groups;
            groups.iter().map(|group| group.applied).collect()
        };
        // One small lock tells which group the namespace is in.
        let namespace = format!("n{number}:/a");
        let before = applied(&cluster);
        granted(&cluster.write(0, "amy", &namespace));
        cluster.run(300);
        let after = applied(&cluster);
        let group = before.iter().zip(&after).position(|(one, two)| one < two);
        if used.insert(group.unwrap()) {
            hold(&mut cluster, 0, &namespace, 530);
        }
    }
    cluster.run(500);
    let bytes: u64 = (0..GROUPS)
        .map(|group| {
            let state = cluster.test_nodes[0].node.as_ref().unwrap();
            state.state_of(GroupId(group)).unwrap().1.len() as u64
        })
        .sum();
    assert!(bytes > 80_000_000, "{bytes}");
    cluster.bulk = Some(BulkQueue {
        bytes_per_ms: 10_000,
        most_waiting: 16 * 1024 * 1024,
    });
    cluster.start(2);
    let began = cluster.now;
    for at in 0..2 {
        let node = cluster.test_nodes[2].member.node;
        cluster.input(at, Input::PeerUp { node });
    }
    let caught_up = |cluster: &Cluster| {
        let mine = cluster.test_nodes[2].node.as_ref().unwrap().status().groups;
        let ahead = cluster.test_nodes[0].node.as_ref().unwrap().status().groups;
        let mut pairs = mine.iter().zip(&ahead);
        mine.len() == ahead.len() && pairs.all(|(mine, ahead)| mine.applied >= ahead.applied)
    };
    while !caught_up(&cluster) {
        assert!(cluster.now < began + 300_000, "it does not catch up");
        cluster.run(100);
    }
    let took = cluster.now - began;
    let ideal = bytes / 10_000;
    println!("{bytes} bytes in {took} ms; the line needs {ideal} ms");
    assert!(
        ideal * 10 >= took * 6,
        "{took} ms where {ideal} ms would do"
    );
    assert_eq!(cluster.bulk_broke, 0);
}

/// E8: a watch begins with everything that is held, in pages that a connection takes.
#[test]
fn a_watch_of_many_holds_comes_in_pages() {
    const HOLDS: usize = 4_000;
    let mut cluster = Cluster::new(3, 2);
    cluster.settle();
    hold(&mut cluster, 0, "n:/a", HOLDS);
    cluster.longest_frame = 0;
    for at in 0..3 {
        let id = StreamId(at as u64 + 1);
        let (prefix, start) = (ns("n:/a"), WatchStart::Snapshot);
        cluster.input(at, Input::Watch { id, prefix, start });
    }
    // Something happens while the pages are under way.
    let during = cluster.ask(
        0,
        ClientRequest::Acquire(acquire("bob", "n:/a/late", 600_000)),
    );
    cluster.run(3_000);
    assert!(cluster.wait(0, during).is_ok());
    for test_node in &cluster.test_nodes {
        let (mut present, mut pages, mut ended, mut late) = (0, 0, false, 0);
        for output in &test_node.outputs {
            match output {
                Output::Change {
                    change: WatchEvent::Present(all),
                    ..
                } => {
                    assert!(!ended, "a page behind the end");
                    pages += 1;
                    present += all.len();
                }
                Output::Change {
                    change: WatchEvent::SnapshotEnd,
                    ..
                } => ended = true,
                Output::Change {
                    change: WatchEvent::Changed(change),
                    ..
                } => late += usize::from(change.kind == ChangeKind::Granted),
                // The table of permissions of a node that starts.
                Output::Auth(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(ended, "the snapshot does not end");
        assert_eq!(present + late, HOLDS + 1);
        assert!(pages > 20, "{pages} pages");
    }
    assert!(
        cluster.longest_frame < 2 * 1024 * 1024,
        "{}",
        cluster.longest_frame
    );
}

/// An answer that is too long for a frame is refused to the one who asked; the connection stands.
#[test]
fn an_answer_that_is_too_long_is_refused() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let leader = cluster.leader(GroupId(0)).unwrap();
    let name = "o".repeat(1_000);
    // Readers of one path: an inspection names them all.
    let inputs: Vec<Vec<Input>> = (0..34)
        .map(|part| {
            let asked = (0..512).map(|number| {
                let mut request = acquire(&format!("{part}-{number}-{name}"), "n:/a", 600_000);
                request.requests[0].mode = tenure_core::policy::Mode::Read;
                Input::Request {
                    id: cluster.fresh_id(),
                    request: Box::new(ClientRequest::Acquire(request)),
                    timeout_ms: 30_000,
                }
            });
            asked.collect()
        })
        .collect();
    for inputs in inputs {
        cluster.inputs(leader, inputs);
        cluster.run(50);
    }
    let asker = (leader + 1) % 3;
    cluster.longest_frame = 0;
    let what = || ClientRequest::InspectPath { path: path("n:/a") };
    let Ok(Answer::Inspect(found)) = cluster.call(leader, what()) else {
        panic!("the leader knows");
    };
    assert!(found.readers.len() > 17_000, "{}", found.readers.len());
    let refused = cluster.call(asker, what());
    let refused = refused.map(|_| "an answer of 17 MB");
    assert!(
        matches!(refused, Err(Failure::ResourceExhausted(_))),
        "{refused:?}"
    );
    assert!(
        cluster.longest_frame < 2 * 1024 * 1024,
        "{}",
        cluster.longest_frame
    );
    granted(&cluster.write(asker, "bob", "m:/a"));
}

/// The states of two leaders in one turn: one of them is installed, and the node goes on.
#[test]
fn states_of_two_leaders_may_come_together() {
    let limits = Limits {
        log_entries: 1,
        log_bytes: 1,
        log_kept: 0,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(3, 1, limits);
    cluster.settle();
    let group = GroupId(0);
    let away = (0..3)
        .find(|at| Some(*at) != cluster.leader(group))
        .unwrap();
    cluster.crash(away);
    cluster.tell_down(away);
    cluster.settle();
    for number in 0..4 {
        granted(&cluster.write((away + 1) % 3, "amy", &format!("t:/a/{number}")));
    }
    cluster.hold_bulk = true;
    cluster.start(away);
    // Each of the two others leads for a while and sends its state.
    for _ in 0..2 {
        let leader = cluster.leader(group).unwrap();
        let next = (0..3).find(|at| *at != leader && *at != away).unwrap();
        let to = cluster.test_nodes[next].member;
        cluster.input(leader, Input::Transfer { group, to });
        cluster.until(5_000, "the other one leads", |cluster| {
            cluster.leader(group) == Some(next)
        });
        cluster.run(1_000);
    }
    // The newest comes first: consensus takes it and refuses the others.
    let to = cluster.test_nodes[away].member.node;
    let states = std::mem::take(&mut cluster.lost).into_iter().rev();
    let states = states.filter(|(_, receiver, _)| *receiver == to);
    let states: Vec<Input> = states
        .map(|(from, _, bytes)| Input::Frame { from, bytes })
        .collect();
    assert!(states.len() >= 2);
    cluster.inputs(away, states);
    assert_eq!(cluster.test_nodes[away].stopped, None);
    cluster.hold_bulk = false;
    let applied = |cluster: &Cluster, at: usize| {
        let groups = cluster.test_nodes[at]
            .node
            .as_ref()
            .unwrap()
            .status()
            .groups;
        groups
            .iter()
            .find(|one| one.group == group)
            .unwrap()
            .applied
    };
    cluster.until(40_000, "it catches up", |cluster| {
        let leader = cluster.leader(group);
        leader.is_some_and(|leader| applied(cluster, away) >= applied(cluster, leader))
    });
}
