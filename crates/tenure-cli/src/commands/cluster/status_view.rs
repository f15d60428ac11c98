//! Cluster status as text and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};
use tenure_wire::cluster::{Group, Node, StatusResponse};

/// Formats all fields as JSON.
pub(super) fn json(status: &StatusResponse) -> Value {
    let node = |node: &Node| {
        json!({
            "name": node.name, "number": node.number, "life": node.life, "up": node.up,
            "for_ms": node.for_ms, "draining": node.draining, "reported": node.reported,
            "peer_address": node.peer_address, "public_address": node.public_address,
            "leads": node.leads, "replicas": node.replicas,
            "release": node.release, "rules": node.rules,
        })
    };
    let group = |group: &Group| {
        json!({
            "number": group.number, "leader": group.leader, "term": group.term,
            "voters": group.voters, "learners": group.learners, "changing": group.changing,
            "applied": group.applied, "lag": group.lag,
            "holds": group.holds, "waiters": group.waiters,
            "rules": group.rules, "unconfirmed_voters": group.unconfirmed_voters,
        })
    };
    json!({
        "healthy": status.healthy,
        "answered_by": status.answered_by,
        "group_count": status.group_count,
        "routing_prefix_segments": status.routing_prefix_segments,
        "default_lock_algorithm": status.default_lock_algorithm,
        "cluster_id": status.cluster_id,
        "other_clusters": status.other_clusters,
        "problems": status.problems,
        "nodes": status.nodes.iter().map(node).collect::<Vec<_>>(),
        "groups": status.groups.iter().map(group).collect::<Vec<_>>(),
    })
}

/// Formats text for people: one line for the summary, one line for each problem.
pub(super) fn words(status: &StatusResponse, all_groups: bool) -> String {
    let mut out = String::new();
    let up = status.nodes.iter().filter(|node| node.up).count();
    let _ = writeln!(
        out,
        "{}: {up} of {} nodes up, {} groups",
        summary(status),
        status.nodes.len(),
        status.group_count
    );
    if !status.nodes.is_empty() && up * 2 <= status.nodes.len() {
        let down = status.nodes.iter().filter(|node| !node.up);
        let down: Vec<u32> = down.map(|node| node.number).collect();
        let _ = writeln!(
            out,
            "  NO MAJORITY: no lock can be granted. Start {}; if they are lost for good, see tenure cluster recover --help",
            names(status, &down)
        );
    }
    for other in status.other_clusters.iter().chain(&status.problems) {
        let _ = writeln!(out, "  ERROR: {other}");
    }
    if !status.cluster_id.is_empty() {
        let _ = writeln!(out, "  cluster {}", status.cluster_id);
    }
    let _ = writeln!(
        out,
        "  {:<16} {:<8} {:>8} {:>6} {:>9} {:<12} {:>5}  address",
        "node", "state", "for", "leads", "replicas", "release", "rules"
    );
    for node in &status.nodes {
        let state = match (node.up, node.draining) {
            (true, false) => "up",
            (true, true) => "draining",
            (false, _) => "down",
        };
        // Counters of a node that did not answer are unknown, not zero.
        let count = |number: u32| {
            if node.reported {
                number.to_string()
            } else {
                "?".to_owned()
            }
        };
        let _ = writeln!(
            out,
            "  {:<16} {state:<8} {:>8} {:>6} {:>9} {:<12} {:>5}  {}",
            node.name,
            for_how_long(node.for_ms),
            count(node.leads),
            count(node.replicas),
            release(node),
            rules(node.rules),
            node.peer_address
        );
    }
    for group in &status.groups {
        let mut notes = Vec::new();
        if group.leader == 0 {
            notes.push("no leader".to_owned());
        }
        if group.changing {
            notes.push("membership is changing".to_owned());
        }
        if !group.learners.is_empty() {
            let learners = names(status, &group.learners);
            notes.push(format!("being copied to {learners}"));
        }
        if !group.unconfirmed_voters.is_empty() {
            let voters = names(status, &group.unconfirmed_voters);
            notes.push(format!("voters whose nodes run on other data: {voters}"));
        }
        if group.lag > 1000 {
            notes.push(format!("a replica is {} entries behind", group.lag));
        }
        if all_groups || !notes.is_empty() {
            // The system group has the number after the last ordinary group.
            let which = if group.number == status.group_count {
                "the system group".to_owned()
            } else {
                format!("group {}", group.number)
            };
            let leader = match group.leader {
                0 => "none".to_owned(),
                leader => names(status, &[leader]),
            };
            let voters = names(status, &group.voters);
            let _ = writeln!(
                out,
                "  {which}: leader {leader}, voters {voters}; rules {}, {} holds, {} waiters{}{}",
                rules(group.rules),
                group.holds,
                group.waiters,
                if notes.is_empty() { "" } else { "; " },
                notes.join(", ")
            );
        }
    }
    out
}

/// Returns the state of the cluster in one word.
fn summary(status: &StatusResponse) -> &'static str {
    let is_reported = !status.problems.is_empty() || !status.other_clusters.is_empty();
    let has_failed = status.nodes.iter().any(|node| !node.up)
        || status.groups.iter().any(|group| group.leader == 0);
    match (status.healthy, is_reported || has_failed) {
        (true, _) => "healthy",
        (false, true) => "degraded",
        (false, false) => "rebalancing",
    }
}

/// Returns the release of a node. A node of release 0.1.0 does not report it.
fn release(node: &Node) -> &str {
    match (node.reported, node.release.as_str()) {
        (false, _) => "?",
        (true, "") => "0.1.0",
        (true, release) => release,
    }
}

fn rules(number: u32) -> String {
    if number == 0 {
        "?".to_owned()
    } else {
        number.to_string()
    }
}

fn names(status: &StatusResponse, numbers: &[u32]) -> String {
    let name = |number: &u32| {
        let node = status.nodes.iter().find(|node| node.number == *number);
        match node {
            Some(node) if !node.name.is_empty() => node.name.clone(),
            Some(_) => format!("node {number}"),
            None => format!("node {number} (not in the cluster)"),
        }
    };
    numbers.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn for_how_long(millis: u64) -> String {
    tenure::HumanDuration(std::time::Duration::from_millis(millis)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_named() {
        let node = |number: u32, up| Node {
            number,
            up,
            name: format!("tenure-{}", number - 1),
            for_ms: 180_000,
            reported: up,
            leads: 1,
            replicas: 2,
            release: if up { "1.2.3".into() } else { String::new() },
            rules: if up { 2 } else { 0 },
            peer_address: "10.0.0.1:50052".into(),
            ..Node::default()
        };
        let lost = Group {
            number: 7,
            voters: vec![1, 2, 9],
            rules: 1,
            unconfirmed_voters: vec![2],
            ..Group::default()
        };
        let fine = Group {
            number: 8,
            leader: 1,
            voters: vec![1],
            ..Group::default()
        };
        let status = StatusResponse {
            nodes: vec![node(1, true), node(2, false)],
            groups: vec![lost, fine],
            group_count: 256,
            cluster_id: "00000000000000ff".into(),
            other_clusters: vec!["another cluster has the same token".into()],
            problems: vec!["node 2 is refused".into()],
            ..StatusResponse::default()
        };
        let words = words(&status, false);
        assert!(
            words.starts_with(
                "degraded: 1 of 2 nodes up, 256 groups\n  NO MAJORITY: no lock can be granted. Start tenure-1; "
            ),
            "{words}"
        );
        assert!(
            words.contains(
                "tenure-0         up          3 min      1         2 1.2.3            2  10.0.0.1"
            ),
            "{words}"
        );
        assert!(
            words.contains(
                "tenure-1         down        3 min      ?         ? ?                ?  10.0.0.1"
            ),
            "{words}"
        );
        assert!(
            words.contains("\n  ERROR: another cluster has the same token\n"),
            "{words}"
        );
        assert!(words.contains("\n  cluster 00000000000000ff\n"), "{words}");
        assert!(words.contains("\n  ERROR: node 2 is refused\n"), "{words}");
        let voters = "rules 1, 0 holds, 0 waiters; no leader, voters whose nodes run on other data: tenure-1";
        assert!(words.contains(voters), "{words}");
        let trouble =
            "group 7: leader none, voters tenure-0, tenure-1, node 9 (not in the cluster)";
        assert!(words.contains(trouble), "{words}");
        assert!(!words.contains("group 8"), "{words}");

        let moving = StatusResponse {
            healthy: false,
            nodes: vec![node(1, true)],
            ..StatusResponse::default()
        };
        assert_eq!(summary(&moving), "rebalancing");
    }
}
