//! Quotas of principals, the limit on lock state, and the shares of principals in a busy group.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_core::auth::{AuthChange, AuthCommand, Lockout};
use tenure_core::limits::{LimitKind, LimitRow, LimitSubject};
use tenure_node::*;

fn limit(of: &str, kind: LimitKind, value: u64) -> ClientRequest {
    let row = LimitRow {
        of: LimitSubject::parse(of).unwrap(),
        at: None,
        values: [(kind, value)].into_iter().collect(),
    };
    ClientRequest::ChangeAuth(Box::new(AuthCommand {
        changes: vec![AuthChange::SetLimits(row)],
        if_version: None,
        lockout: Lockout::Refuse,
    }))
}

fn has_table(cluster: &Cluster, at: usize) -> bool {
    let mut outputs = cluster.test_nodes[at].outputs.iter();
    outputs.any(|output| matches!(output, Output::Auth(_)))
}

fn try_acquire(cluster: &mut Cluster, at: usize, who: &str, what: &str) -> Result<Answer, Failure> {
    let request = acquire(who, what, 60_000);
    cluster.call(at, ClientRequest::Acquire(request))
}

/// Whichever node takes the requests, a principal never has more than its quota: the group decides.
#[test]
fn a_quota_holds_over_all_nodes() {
    let mut cluster = Cluster::new(3, 2);
    cluster.until(10_000, "every node has a table", |cluster| {
        (0..3).all(|at| has_table(cluster, at))
    });
    let id = cluster.ask(0, limit("everyone", LimitKind::Paths, 2));
    cluster.wait(0, id).unwrap();
    for (at, what) in [(0, "t:/x/1"), (1, "t:/x/2")] {
        try_acquire(&mut cluster, at, "a@key:ci", what).unwrap();
    }
    for at in 0..3 {
        let refused = try_acquire(&mut cluster, at, "b@key:ci", "t:/x/3").unwrap_err();
        let Failure::OverQuota { limit, text } = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(limit, LimitKind::Paths);
        assert!(text.contains("key:ci may have 2"), "{text}");
    }
    try_acquire(&mut cluster, 2, "b@key:dev", "t:/x/3").unwrap();
    cluster.release(1, "a@key:ci", "t:/x/1");
    try_acquire(&mut cluster, 2, "b@key:ci", "t:/x/4").unwrap();
}

/// Near its limit a node accepts renewals and releases only, so that the state can only shrink.
#[test]
fn a_node_without_room_for_state_takes_renewals_and_releases_only() {
    let limits = Limits {
        state_bytes: Some(20_000),
        ..Limits::default()
    };
    let mut cluster = Cluster::with(1, 1, limits);
    cluster.settle();
    let mut held = 0;
    let refused = loop {
        match try_acquire(
            &mut cluster,
            0,
            &format!("o{held}"),
            &format!("t:/x/{held}"),
        ) {
            Ok(_) => held += 1,
            Err(refused) => break refused,
        }
        cluster.run(200);
        assert!(held < 1000, "no limit");
    };
    assert!(
        matches!(refused, Failure::ResourceExhausted(_)),
        "{refused:?}"
    );
    assert!(held > 10, "{held}");
    let answer = cluster.renew(0, "o0", &[], 60_000);
    assert!(matches!(answer, RenewAnswer::Renewed { .. }), "{answer:?}");
    for number in 0..held {
        cluster.release(0, &format!("o{number}"), &format!("t:/x/{number}"));
    }
    cluster.run(400);
    try_acquire(&mut cluster, 0, "again", "t:/x/again").unwrap();
}

/// A principal that sends more than a group can take leaves room for others, and several get equal
/// parts.
#[test]
fn a_flood_of_one_principal_leaves_room_for_another() {
    let limits = Limits {
        group_inflight: 64,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(3, 1, limits);
    cluster.settle();
    let leader = cluster.leader(GroupId(0)).unwrap();
    let mut inputs = Vec::new();
    let mut ask = |cluster: &mut Cluster, who: &str, what: &str| {
        let id = cluster.fresh_id();
        let request = acquire(who, what, 60_000);
        inputs.push(Input::Request {
            id,
            request: Box::new(ClientRequest::Acquire(request)),
            timeout_ms: 5_000,
        });
        id
    };
    let mut flood = Vec::new();
    for number in 0..500 {
        let (who, what) = (format!("f{number}@key:flood"), format!("t:/x/{number}"));
        flood.push(ask(&mut cluster, &who, &what));
    }
    let others: Vec<RequestId> = (0..5)
        .map(|number| {
            ask(
                &mut cluster,
                &format!("o@key:{number}"),
                &format!("t:/y/{number}"),
            )
        })
        .collect();
    cluster.inputs(leader, inputs);
    for id in others {
        let answer = cluster.wait(leader, id).unwrap();
        assert!(matches!(
            answer,
            Answer::Acquire(AcquireAnswer::Granted { .. })
        ));
    }
    let mut served = 0;
    for id in flood {
        match cluster.wait(leader, id) {
            Ok(_) => served += 1,
            Err(failure) => assert!(
                matches!(failure, Failure::Unavailable { .. }),
                "{failure:?}"
            ),
        }
    }
    assert!(
        served > 20,
        "most of the room is for those that want it: {served}"
    );
}
