//! Who waits for whom, across the groups of clusters of real nodes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_core::deadlock::Detection;
use tenure_core::policy::{BlockReason, Mode};
use tenure_core::value::{QueueTtl, Ttl};
use tenure_node::*;

fn trio() -> Cluster {
    let mut cluster = Cluster::new(3, 8);
    cluster.settle();
    cluster
}

/// E5: a wait that closes a cycle across groups is refused, and named in wait order.
#[test]
fn a_deadlock_across_groups_is_refused() {
    let mut cluster = trio();
    granted(&cluster.write(0, "amy", "t:/1"));
    granted(&cluster.write(1, "bob", "t:/2"));
    granted(&cluster.write(2, "cid", "t:/3"));
    assert!(is_queued(&cluster.write(0, "amy", "t:/2")));
    let mut careful = acquire("bob", "t:/3", 10_000);
    careful.deadlock = Deadlock::Refuse;
    assert!(is_queued(&cluster.acquire(1, careful)), "no cycle yet");
    let mut careful = acquire("cid", "t:/1", 10_000);
    careful.deadlock = Deadlock::Refuse;
    match cluster.acquire(2, careful) {
        AcquireAnswer::Conflict { deadlock, .. } => {
            assert_eq!(deadlock, [owner("cid"), owner("amy"), owner("bob")]);
        }
        other => panic!("{other:?}"),
    }
    // E7: explained without the flag, from the queues alone.
    let explain = ClientRequest::Explain {
        path: path("t:/1"),
        mode: Mode::Write,
        owner: owner("cid"),
    };
    match cluster.call(0, explain) {
        Ok(Answer::Explain(answer)) => {
            assert_eq!(answer.cycle, [owner("cid"), owner("amy"), owner("bob")]);
            assert_eq!(answer.explanation.blockers.len(), 1);
            assert!(answer.left[0].is_some_and(|left| left > 0));
        }
        other => panic!("{other:?}"),
    }
}

/// R107–R114: edges of clients, walked across groups.
#[test]
fn detect_cycle_walks_the_edges() {
    let mut cluster = trio();
    let edge = |who: &str, to: &str, why: Option<(&str, BlockReason)>| ClientRequest::SetWaitEdge {
        owner: owner(who),
        blocker: owner(to),
        why: why.map(|(at, reason)| (path(at), reason)),
        ttl: Ttl::from_millis(10_000).unwrap(),
        key: None,
    };
    let detect = |cluster: &mut Cluster, who: &str| {
        let request = ClientRequest::DetectCycle {
            start: owner(who),
            max_depth: 0,
        };
        match cluster.call(1, request) {
            Ok(Answer::DetectCycle(found)) => found,
            other => panic!("{other:?}"),
        }
    };
    granted(&cluster.write(0, "amy", "t:/1"));
    granted(&cluster.write(0, "bob", "t:/2"));
    cluster
        .call(
            0,
            edge("amy", "bob", Some(("t:/2", BlockReason::WriteLocked))),
        )
        .unwrap();
    assert_eq!(detect(&mut cluster, "amy"), Detection::None);
    cluster.call(2, edge("bob", "amy", None)).unwrap();
    assert_eq!(
        detect(&mut cluster, "amy"),
        Detection::Found(vec![owner("amy"), owner("bob")])
    );
    // R111: the conflict is gone, so the edge is stale.
    cluster.release(0, "bob", "t:/2");
    assert_eq!(detect(&mut cluster, "amy"), Detection::None);
}

/// What is asked of a node without replicas while amy waits behind two readers and holds what one of
/// them wants next: bob, who lets go first. Amy never waits for bob while bob waits for amy. Bob acts
/// when the node has been cut off for a moment, so many milliseconds after it was asked.
fn while_bob_goes_on(
    cluster: &mut Cluster,
    after_ms: u64,
    kind: usize,
) -> (Vec<String>, Result<Answer, Failure>) {
    let named = |what: &str| format!("{what}-{kind}-{after_ms}");
    let (amy, bob, cid) = (named("amy"), named("bob"), named("cid"));
    let (read, kept) = (format!("t:/{}", named("r")), format!("t:/{}", named("k")));
    let ask = |who: &str, what: &str| acquire(who, what, 60_000);
    granted(&cluster.acquire(0, ask(&amy, &kept)));
    for reader in [&bob, &cid] {
        let mut request = ask(reader, &read);
        request.requests[0].mode = Mode::Read;
        let answer = cluster.acquire(0, request);
        assert!(
            matches!(answer, AcquireAnswer::Granted { .. }),
            "{answer:?}"
        );
    }
    let mut waits = ask(&amy, &read);
    waits.queue_ttl = QueueTtl::from_millis(60_000).unwrap();
    let request = match kind {
        0 => {
            waits.deadlock = Deadlock::Refuse;
            ClientRequest::Acquire(waits)
        }
        _ => {
            assert!(is_queued(&cluster.acquire(0, waits)));
            match kind {
                1 => ClientRequest::DetectCycle {
                    start: owner(&amy),
                    max_depth: 0,
                },
                _ => ClientRequest::Explain {
                    path: path(&read),
                    mode: Mode::Write,
                    owner: owner(&amy),
                },
            }
        }
    };
    let asked = cluster.ask_for(3, request, 5_000);
    cluster.run(after_ms);
    cluster.isolate(3);
    let lets_go = ClientRequest::ReleaseAll {
        owner: owner(&bob),
        domains: Vec::new(),
        edge: WaitEdge::Keep,
        key: None,
    };
    assert_eq!(cluster.call(0, lets_go), Ok(Answer::Done));
    assert!(is_queued(&cluster.acquire(0, ask(&bob, &kept))));
    cluster.heal();
    (vec![amy, bob], cluster.wait(3, asked))
}

/// E5, E7, R113: waits that were never there at the same time are no cycle, whenever they are read.
#[test]
fn waits_one_after_the_other_are_no_deadlock() {
    let mut cluster = trio_and_a_guest();
    let mut answered = [0; 3];
    for after_ms in 0..16 {
        for (kind, answered) in answered.iter_mut().enumerate() {
            let (owners, answer) = while_bob_goes_on(&mut cluster, after_ms, kind);
            match answer {
                Ok(Answer::Acquire(answer)) => {
                    assert!(is_queued(&answer), "{after_ms} ms: {answer:?}");
                }
                Ok(Answer::DetectCycle(found)) => {
                    assert_eq!(found, Detection::None, "{after_ms} ms, {owners:?}");
                }
                Ok(Answer::Explain(found)) => {
                    assert_eq!(found.cycle, [], "{after_ms} ms, {owners:?}");
                }
                // Cut off before it got anywhere.
                other => {
                    assert!(other.is_err(), "{other:?}");
                    continue;
                }
            }
            *answered += 1;
        }
    }
    assert!(answered.iter().all(|count| *count > 8), "{answered:?}");
}
