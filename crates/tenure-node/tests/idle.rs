//! Messages of a cluster without requests.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_node::*;

/// Many groups cost no more frames than one: a heartbeat and its answer for each pair of nodes, five times a second.
#[test]
fn all_groups_of_a_node_speak_at_once() {
    let mut cluster = Cluster::new(3, 16);
    cluster.settle();
    // Leaders that began at different times.
    for number in 0..16 {
        let group = GroupId(number);
        let leader = cluster.leader(group).unwrap();
        let to = cluster.test_nodes[(number as usize) % 3].member;
        cluster.input(leader, Input::Transfer { group, to });
        cluster.run(137);
    }
    cluster.settle();
    cluster.run(1_000);
    let before = cluster.frames;
    cluster.run(6_000);
    let frames = cluster.frames - before;
    let pairs = 3 * 2;
    let rounds = 6 * 5;
    // A little more: who leads what is said again now and then.
    let most = pairs * rounds * 2 + 60;
    assert!(frames <= most, "{frames} frames, {most} would do");
    assert!(frames >= pairs * rounds, "a node was silent");
}
