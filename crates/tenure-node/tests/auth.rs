//! The access control table: every node judges by the new one when a change is answered.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_core::auth::{
    AuthChange, AuthCommand, Grant, Lockout, OwnerPatterns, Principal, Verb, VerbSet,
};
use tenure_node::*;

fn grant(verb: Verb) -> AuthChange {
    AuthChange::Grant(Grant {
        to: Principal::parse("key:ci").unwrap(),
        verbs: VerbSet::of([verb]),
        at: None,
        owners: OwnerPatterns::default(),
    })
}

fn change(if_version: Option<u64>, change: AuthChange) -> ClientRequest {
    ClientRequest::ChangeAuth(Box::new(AuthCommand {
        changes: vec![change],
        if_version,
        lockout: Lockout::Refuse,
    }))
}

/// The version that a node's driver has got last.
fn version(cluster: &Cluster, at: usize) -> Option<u64> {
    let outputs = cluster.test_nodes[at].outputs.iter().rev();
    let mut tables = outputs.filter_map(|output| match output {
        Output::Auth(table) => Some(table.version()),
        _ => None,
    });
    tables.next()
}

fn all_have(cluster: &mut Cluster, nodes: usize) {
    cluster.until(10_000, "every node has a table", |cluster| {
        (0..nodes).all(|at| version(cluster, at).is_some())
    });
}

/// Also on a node without a replica of the system group.
#[test]
fn a_change_is_answered_when_every_node_judges_by_it() {
    let mut cluster = trio_and(1, Limits::default());
    all_have(&mut cluster, 4);
    for (at, verb) in [(0, Verb::Lock), (3, Verb::Break), (1, Verb::Ask)] {
        let id = cluster.ask(at, change(None, grant(verb)));
        let answer = cluster.wait(at, id).unwrap();
        let Answer::AuthChanged {
            version: new,
            unconfirmed,
        } = answer
        else {
            panic!("{answer:?}");
        };
        assert_eq!(unconfirmed, [] as [NodeId; 0]);
        // Not "soon": at the moment of the answer.
        for node in 0..4 {
            assert_eq!(version(&cluster, node), Some(new), "node {node}");
        }
    }
    let Answer::Auth(table) = cluster.call(2, ClientRequest::ReadAuth).unwrap() else {
        panic!("a table");
    };
    assert_eq!(table.version(), 3);
    assert!(table.grants().next().unwrap().verbs.allows(Verb::Ask));
}

/// The answer names a node that could not be reached; that node gets the table when it is back.
#[test]
fn a_node_that_has_not_confirmed_is_named() {
    let mut cluster = Cluster::new(3, 2);
    all_have(&mut cluster, 3);
    cluster.settle();
    let system = cluster.system();
    let leader = cluster.leader(system).unwrap();
    let away = (leader + 1) % 3;
    cluster.isolate(away);
    let id = cluster.ask_for(leader, change(None, grant(Verb::Lock)), 20_000);
    let answer = cluster.wait(leader, id).unwrap();
    let Answer::AuthChanged { unconfirmed, .. } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(unconfirmed, [cluster.test_nodes[away].member.node]);
    assert_ne!(version(&cluster, away), Some(1));
    cluster.heal();
    cluster.until(20_000, "it has the table", |cluster| {
        version(cluster, away) == Some(1)
    });
}

/// A node that has just started has no table before it has read the present one.
#[test]
fn a_node_that_starts_reads_the_table_first() {
    let mut cluster = Cluster::new(3, 2);
    all_have(&mut cluster, 3);
    cluster.crash(2);
    cluster.tell_down(2);
    let id = cluster.ask_for(0, change(None, grant(Verb::Lock)), 20_000);
    let answer = cluster.wait(0, id).unwrap();
    assert!(matches!(answer, Answer::AuthChanged { .. }), "{answer:?}");
    cluster.test_nodes[2].outputs.clear();
    cluster.start(2);
    cluster.until(20_000, "it has a table", |cluster| {
        version(cluster, 2).is_some()
    });
    let outputs = cluster.test_nodes[2].outputs.iter();
    let tables = outputs.filter_map(|output| match output {
        Output::Auth(table) => Some(table.version()),
        _ => None,
    });
    assert_eq!(tables.min(), Some(1), "never the older one");
}

/// A change that expects another version is refused and changes nothing.
#[test]
fn a_change_of_an_older_version_is_refused() {
    let mut cluster = Cluster::new(1, 2);
    all_have(&mut cluster, 1);
    cluster.call(0, change(Some(0), grant(Verb::Lock))).unwrap();
    let refused = cluster.call(0, change(Some(0), grant(Verb::Break)));
    assert!(
        matches!(refused, Err(Failure::FailedPrecondition(_))),
        "{refused:?}"
    );
    assert_eq!(version(&cluster, 0), Some(1));
}

/// While a node of the first release is in the cluster, permissions cannot be changed.
#[test]
fn permissions_wait_for_the_upgrade_of_every_node() {
    let mut cluster = trio_of_the_first_release(0, Limits::default());
    let refused = cluster.call(0, change(None, grant(Verb::Lock)));
    assert!(refused.is_err(), "{refused:?}");
}
