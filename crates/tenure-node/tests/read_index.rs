//! What a replicated command takes: frames, and the order in which a follower does its part.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_node::*;

const GROUP: GroupId = GroupId(0);

fn applied(node: &Node) -> u64 {
    let groups = node.status().groups;
    let group = groups.into_iter().find(|one| one.group == GROUP);
    group.unwrap().applied
}

/// An append to each follower and its acknowledgement: the commit comes with the next append.
#[test]
fn a_command_takes_one_frame_each_way() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let leader = cluster.leader(GROUP).unwrap();
    let (began, before) = (cluster.now, cluster.frames);
    let commands = 50;
    for number in 0..commands {
        cluster.write(leader, "ann", &format!("t:/a/{number}"));
    }
    let frames = cluster.frames - before;
    // Beside them, all nodes together: heartbeats, their answers, and who leads what.
    let others = (cluster.now - began).div_ceil(200) * 12 + 12;
    assert!(
        frames <= commands * 4 + others,
        "{frames} frames for {commands} commands"
    );
    assert!(frames >= commands * 4, "something was not replicated");
}

/// The leader waits for a follower's disk, so that comes first; what the same append says is
/// committed is applied in the turn after.
#[test]
fn a_follower_writes_before_it_applies() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let leader = cluster.leader(GROUP).unwrap();
    let follower = (leader + 1) % 3;
    cluster.write(leader, "ann", "t:/a/1");
    cluster.cut(leader, follower);
    let second = acquire("ann", "t:/a/2", 10_000);
    cluster.ask(leader, ClientRequest::Acquire(second));
    let (from, to, bytes) = cluster.lost.pop().unwrap();
    assert_eq!(to, cluster.test_nodes[follower].member.node);
    let moment = StepTime {
        monotonic_ms: cluster.test_nodes[follower].clock_ms,
        wall_ms: 0,
    };
    let node = cluster.test_nodes[follower].node.as_mut().unwrap();
    let before = applied(node);
    let outputs = node.step(moment, [Input::Frame { from, bytes }]);
    assert!(matches!(outputs.first(), Some(Output::Write(_))));
    assert_eq!(applied(node), before);
    assert_eq!(node.wake_in(), 0, "it wants to go on at once");
    node.step(moment, []);
    assert_eq!(applied(node), before + 1);
}
