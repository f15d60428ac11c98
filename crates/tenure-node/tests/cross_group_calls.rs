//! What spans groups, on clusters of real nodes: any node serves any client.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_core::command::{Request, RequestKind};
use tenure_core::event::{ChangeKind, EventKind};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::value::{Fence, Key, Ttl};
use tenure_node::*;

fn trio() -> Cluster {
    let mut cluster = Cluster::new(3, 8);
    cluster.settle();
    cluster
}

fn alive(cluster: &mut Cluster, at: usize, who: &str, domains: &[&str]) -> bool {
    let request = ClientRequest::IsOwnerAlive {
        owner: owner(who),
        domains: domains.iter().map(|name| ns(name)).collect(),
    };
    match cluster.call(at, request) {
        Ok(Answer::Truth(alive)) => alive,
        other => panic!("odd answer {other:?}"),
    }
}

fn locks(cluster: &mut Cluster, at: usize, who: &str, domains: &[&str]) -> Vec<String> {
    let request = ClientRequest::ListOwnerLocks {
        owner: owner(who),
        domains: domains.iter().map(|name| ns(name)).collect(),
    };
    match cluster.call(at, request) {
        Ok(Answer::OwnerLocks(found)) => {
            let locks = found.locks.iter();
            locks.map(|lock| lock.path.to_string()).collect()
        }
        other => panic!("odd answer {other:?}"),
    }
}

fn release_all(who: &str, domains: &[&str], key: Option<&str>) -> ClientRequest {
    ClientRequest::ReleaseAll {
        owner: owner(who),
        domains: domains.iter().map(|name| ns(name)).collect(),
        edge: WaitEdge::Keep,
        key: key.and_then(|key| Key::new(key).unwrap()),
    }
}

fn set_policy(name: &str, algorithm: Algorithm) -> ClientRequest {
    ClientRequest::SetNamespacePolicy {
        namespace: ns(name),
        algorithm,
        key: None,
    }
}

fn delete_policy(name: &str) -> ClientRequest {
    ClientRequest::DeleteNamespacePolicy {
        namespace: ns(name),
        key: None,
    }
}

/// R163: any node serves any client, wherever the group is led.
#[test]
fn any_node_serves_any_namespace() {
    let mut cluster = trio();
    for number in 0..24usize {
        let what = format!("t:/{number}");
        granted(&cluster.write(number % 3, "amy", &what));
        assert!(is_queued(&cluster.write((number + 1) % 3, "bob", &what)));
        assert_eq!(
            cluster.holder((number + 2) % 3, &what).as_deref(),
            Some("amy")
        );
    }
    assert_eq!(locks(&mut cluster, 1, "amy", &[]).len(), 24);
}

/// R106: frames that arrive twice do nothing twice.
#[test]
fn a_forwarded_command_is_applied_once_although_frames_repeat() {
    let mut cluster = trio();
    cluster.duplicate = true;
    let mut last = 0;
    for _ in 0..20 {
        let fence = granted(&cluster.write(0, "amy", "t:/a")).number();
        assert_eq!(fence, last + 1, "every acquire mints exactly one fence");
        last = fence;
        cluster.release(1, "amy", "t:/a");
    }
}

/// R91 (Renew without domains), R126–R130: owner-wide calls reach every group, with and without
/// `domains`.
#[test]
fn owner_wide_calls_reach_every_group() {
    let mut cluster = trio();
    let names: Vec<String> = (0..12).map(|number| format!("t:/{number}")).collect();
    for name in &names {
        granted(&cluster.acquire(0, acquire("amy", name, 3_000)));
    }
    granted(&cluster.write(0, "amy", "h:/x"));
    for _ in 0..4 {
        cluster.run(2_000);
        let answer = cluster.renew(1, "amy", &[], 3_000);
        assert_eq!(answer, RenewAnswer::Renewed { asked: false });
    }
    assert_eq!(locks(&mut cluster, 2, "amy", &[]).len(), 13);
    assert_eq!(locks(&mut cluster, 2, "amy", &["t:/3", "t:/4"]).len(), 2);
    // R128: a bare handler means all its namespaces, and not those of others.
    assert_eq!(locks(&mut cluster, 2, "amy", &["t"]).len(), 12);
    assert!(alive(&mut cluster, 1, "amy", &["t:/3"]));
    assert!(!alive(&mut cluster, 1, "amy", &["t:/none"]));
    let answer = cluster.renew(0, "amy", &["t:/3", "t:/none"], 3_000);
    assert_eq!(
        answer,
        RenewAnswer::Lost(tenure_core::policy::Missing::Alive)
    );
    assert_eq!(
        cluster.call(2, release_all("amy", &["t"], None)),
        Ok(Answer::Done)
    );
    assert_eq!(locks(&mut cluster, 0, "amy", &[]), ["h:/x"]);
    assert_eq!(
        cluster.call(2, release_all("amy", &[], None)),
        Ok(Answer::Done)
    );
    assert!(!alive(&mut cluster, 1, "amy", &[]));
    assert_eq!(
        cluster.renew(1, "amy", &[], 3_000),
        RenewAnswer::Lost(tenure_core::policy::Missing::Alive)
    );
}

/// "Nothing there" is a claim about all groups: without a leader somewhere it is not made.
#[test]
fn nothing_there_needs_every_group() {
    let mut cluster = trio();
    assert!(!alive(&mut cluster, 0, "amy", &[]));
    cluster.crash(1);
    cluster.crash(2);
    let request = ClientRequest::IsOwnerAlive {
        owner: owner("amy"),
        domains: Vec::new(),
    };
    let asked = cluster.ask_for(0, request, 5_000);
    cluster.run(5_100);
    let answer = cluster.test_nodes[0].answers.remove(&asked);
    assert_eq!(answer, Some(Err(Failure::DeadlineExceeded)));
}

/// R101 (ForceRelease always notifies the victim), R115 (RequestRevoke sends an event), R116
/// (revoke marker), R120: killing and asking reach the owner and its locks.
#[test]
fn killing_and_asking() {
    let mut cluster = trio();
    cluster.input(
        2,
        Input::Subscribe {
            id: StreamId(1),
            owner: owner("amy"),
        },
    );
    cluster.run(50);
    granted(&cluster.write(0, "amy", "t:/a"));
    granted(&cluster.write(0, "amy", "t:/b"));
    let ask = ClientRequest::RequestRevoke {
        owner: owner("amy"),
    };
    assert_eq!(cluster.call(1, ask), Ok(Answer::Done));
    assert_eq!(
        cluster.renew(0, "amy", &["t:/b"], 5_000),
        RenewAnswer::Renewed { asked: true }
    );
    let kill = ClientRequest::ForceRelease {
        victim: owner("amy"),
        key: None,
    };
    assert_eq!(cluster.call(1, kill), Ok(Answer::Done));
    assert_eq!(cluster.holder(0, "t:/a"), None);
    assert_eq!(cluster.holder(0, "t:/b"), None);
    cluster.run(50);
    assert_eq!(
        events(&cluster, 2, StreamId(1)),
        [EventKind::Revoke, EventKind::Killed]
    );
}

fn events(cluster: &Cluster, at: usize, stream: StreamId) -> Vec<EventKind> {
    let outputs = cluster.test_nodes[at].outputs.iter();
    outputs
        .filter_map(|output| match output {
            Output::Event { id, event } if *id == stream => Some(event.kind),
            _ => None,
        })
        .collect()
}

/// R119 (Subscribe delivers from now on), R122: a grant reaches subscribers on any node, also one
/// that subscribes after it, and also when the leader that made it died.
#[test]
fn grants_reach_subscribers_on_any_node() {
    let mut cluster = trio();
    for at in 0..3usize {
        let id = StreamId(10 + at as u64);
        cluster.input(
            at,
            Input::Subscribe {
                id,
                owner: owner("bob"),
            },
        );
    }
    cluster.run(50);
    granted(&cluster.write(0, "amy", "t:/a"));
    assert!(is_queued(&cluster.write(1, "bob", "t:/a")));
    cluster.release(2, "amy", "t:/a");
    cluster.run(50);
    for at in 0..3 {
        let seen = events(&cluster, at, StreamId(10 + at as u64));
        assert!(matches!(seen[..], [EventKind::Grant { fence: Some(_) }]));
    }
    // A late subscriber gets the grant that is still in force, once.
    cluster.input(
        1,
        Input::Subscribe {
            id: StreamId(20),
            owner: owner("bob"),
        },
    );
    cluster.run(200);
    assert_eq!(events(&cluster, 1, StreamId(20)).len(), 1);
    // Not any more after the owner has spoken: its renewal says that it knows.
    cluster.renew(0, "bob", &["t:/a"], 5_000);
    cluster.input(
        0,
        Input::Subscribe {
            id: StreamId(21),
            owner: owner("bob"),
        },
    );
    cluster.run(200);
    assert!(events(&cluster, 0, StreamId(21)).is_empty());
}

/// R119: one stream may be for many owners, and an owner heard in many; one ends for all of its owners.
#[test]
fn a_stream_is_for_as_many_owners_as_wanted() {
    let mut cluster = trio();
    let id = StreamId(1);
    for name in ["amy", "bob", "eve"] {
        let owner = owner(name);
        cluster.input(0, Input::Subscribe { id, owner });
    }
    cluster.run(50);
    for name in ["amy", "bob", "eve"] {
        granted(&cluster.write(1, name, &format!("t:/{name}")));
    }
    let other = StreamId(2);
    let bob = owner("bob");
    cluster.input(
        0,
        Input::Subscribe {
            id: other,
            owner: bob,
        },
    );
    cluster.run(50);
    let heard_after_revoking = |cluster: &mut Cluster, name: &str| {
        let owner = owner(name);
        let ask = ClientRequest::RequestRevoke { owner };
        assert_eq!(cluster.call(2, ask), Ok(Answer::Done));
        cluster.run(50);
        [id, other].map(|stream| events(cluster, 0, stream).len())
    };
    assert_eq!(heard_after_revoking(&mut cluster, "amy"), [1, 0]);
    assert_eq!(heard_after_revoking(&mut cluster, "bob"), [2, 1]);
    cluster.input(0, Input::Unsubscribe { id });
    assert_eq!(heard_after_revoking(&mut cluster, "amy"), [2, 1]);
    assert_eq!(heard_after_revoking(&mut cluster, "bob"), [2, 2]);
    assert_eq!(heard_after_revoking(&mut cluster, "eve"), [2, 2]);
}

/// "A node asks the new leader for what follows the last sequence it saw": none lost, none twice.
#[test]
fn events_survive_a_leader() {
    let mut cluster = trio();
    let group = placement::group_of(&ns("t:/a"), 8);
    let leader = cluster.leader(group).unwrap();
    let listener = (leader + 1) % 3;
    cluster.input(
        listener,
        Input::Subscribe {
            id: StreamId(1),
            owner: owner("bob"),
        },
    );
    cluster.run(100);
    granted(&cluster.write(listener, "amy", "t:/a"));
    assert!(is_queued(&cluster.write(listener, "bob", "t:/a")));
    // The leader applies the release and dies before its word about the grant can leave.
    let third = 3 - leader - listener;
    let request = ReleaseRequest {
        owner: owner("amy"),
        holds: vec![tenure_core::command::Hold {
            path: path("t:/a"),
            mode: Mode::Write,
        }],
        edge: WaitEdge::Keep,
        key: None,
    };
    cluster.ask(leader, ClientRequest::Release(request));
    for _ in 0..20 {
        cluster.tick();
        if !events(&cluster, listener, StreamId(1)).is_empty() {
            break;
        }
    }
    let early = events(&cluster, listener, StreamId(1)).len();
    cluster.crash(leader);
    cluster.tell_down(leader);
    cluster.run(4_000);
    assert!(early <= 1);
    assert_eq!(events(&cluster, listener, StreamId(1)).len(), 1);
    assert_eq!(cluster.holder(third, "t:/a").as_deref(), Some("bob"));
}

/// E8: however much a group holds, to begin a watch of it takes one place in a buffer.
#[test]
fn what_a_watch_begins_with_comes_in_one_piece() {
    let mut cluster = trio();
    for at in 0..20 {
        granted(&cluster.write(0, "amy", &format!("t:/a/{at}")));
    }
    let (id, prefix) = (StreamId(5), ns("t:/a"));
    let start = WatchStart::Snapshot;
    cluster.input(1, Input::Watch { id, prefix, start });
    cluster.run(100);
    let outputs = cluster.test_nodes[1].outputs.iter();
    let pieces: Vec<Option<usize>> = outputs
        .filter_map(|output| match output {
            Output::Change { change, .. } => Some(match change {
                WatchEvent::Present(all) => Some(all.len()),
                WatchEvent::SnapshotEnd | WatchEvent::Changed(_) => None,
            }),
            _ => None,
        })
        .collect();
    assert_eq!(pieces, [Some(20), None]);
}

/// E8: a watch sees what is there, then every change in order; a lost leader closes it.
#[test]
fn a_watch_has_no_hole() {
    let mut cluster = trio();
    granted(&cluster.write(0, "amy", "t:/a/x"));
    granted(&cluster.write(0, "eve", "u:/a/x"));
    let id = StreamId(5);
    cluster.input(
        1,
        Input::Watch {
            id,
            prefix: ns("t"),
            start: WatchStart::Snapshot,
        },
    );
    cluster.run(100);
    assert!(is_queued(&cluster.write(2, "bob", "t:/a/x")));
    cluster.release(0, "amy", "t:/a/x");
    cluster.release(0, "eve", "u:/a/x");
    cluster.run(50);
    let seen: Vec<(String, Option<ChangeKind>)> = cluster.test_nodes[1]
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Change { change, .. } => Some(match change {
                WatchEvent::Present(all) => ("present".to_owned(), all.first().map(|one| one.kind)),
                WatchEvent::SnapshotEnd => ("end".to_owned(), None),
                WatchEvent::Changed(one) => (
                    one.owner
                        .as_ref()
                        .map(ToString::to_string)
                        .unwrap_or_default(),
                    Some(one.kind),
                ),
            }),
            _ => None,
        })
        .collect();
    let expected = [
        ("present", Some(ChangeKind::Granted)),
        ("end", None),
        ("bob", Some(ChangeKind::Queued)),
        ("amy", Some(ChangeKind::Released)),
        ("bob", Some(ChangeKind::Granted)),
    ];
    let expected: Vec<(String, Option<ChangeKind>)> = expected
        .into_iter()
        .map(|(who, kind)| (who.to_owned(), kind))
        .collect();
    assert_eq!(seen, expected);
    let group = placement::group_of(&ns("t:/a"), 8);
    let leader = cluster.leader(group).unwrap();
    if leader != 1 {
        cluster.crash(leader);
        cluster.tell_down(leader);
        cluster.run(100);
        let closed =
            |output: &Output| matches!(output, Output::Closed { id: closed, .. } if *closed == id);
        assert!(cluster.test_nodes[1].outputs.iter().any(closed));
    }
}

/// R143: a dump sees every hold once, over all groups.
#[test]
fn a_dump_sees_everything_once() {
    let mut cluster = trio();
    for number in 0..40 {
        granted(&cluster.write(0, "amy", &format!("t:/{number}/x")));
    }
    let (mut seen, mut cursor) = (Vec::new(), Vec::new());
    loop {
        let request = ClientRequest::DumpLocks { cursor, page: 7 };
        match cluster.call(1, request) {
            Ok(Answer::Dump { locks, next }) => {
                assert!(locks.len() <= 7);
                seen.extend(locks.into_iter().map(|lock| lock.path.to_string()));
                cursor = next;
            }
            other => panic!("odd answer {other:?}"),
        }
        if cursor.is_empty() {
            break;
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 40);
    let bad = ClientRequest::DumpLocks {
        cursor: vec![9, 9],
        page: 7,
    };
    assert!(matches!(
        cluster.call(1, bad),
        Err(Failure::InvalidArgument(_))
    ));
}

/// R143: a page goes on with the next group while it has room: a few holds are one page.
#[test]
fn a_dump_fills_its_pages_across_groups() {
    let mut cluster = trio();
    for number in 0..10 {
        granted(&cluster.write(0, "amy", &format!("t:/{number}/x")));
    }
    let dump = |cluster: &mut Cluster, cursor, page| match cluster
        .call(1, ClientRequest::DumpLocks { cursor, page })
    {
        Ok(Answer::Dump { locks, next }) => (locks.len(), next),
        other => panic!("odd answer {other:?}"),
    };
    assert_eq!(dump(&mut cluster, Vec::new(), 64), (10, Vec::new()));
    let (first, next) = dump(&mut cluster, Vec::new(), 7);
    assert_eq!(first, 7);
    let (second, next) = dump(&mut cluster, next, 7);
    assert_eq!((second, next), (3, Vec::new()));
}

/// R75: the global counter exceeds everything minted, and a key gives the same number again.
#[test]
fn the_global_counter_grows_above_all_fences() {
    let mut cluster = trio();
    let mut highest = Fence::from_number(1).unwrap();
    for _ in 0..5 {
        highest = granted(&cluster.write(0, "amy", "t:/a"));
    }
    let next = |cluster: &mut Cluster, key: Option<&str>| {
        let key = key.and_then(|key| Key::new(key).unwrap());
        match cluster.call(1, ClientRequest::IncrFencingToken { key }) {
            Ok(Answer::Number(fence)) => fence,
            other => panic!("odd answer {other:?}"),
        }
    };
    let first = next(&mut cluster, None);
    assert!(first > highest);
    let second = next(&mut cluster, Some("k"));
    assert!(second > first);
    assert_eq!(next(&mut cluster, Some("k")), second);
}

/// R73: assertions over several groups report the first failure in the order of the request.
#[test]
fn assertions_span_groups() {
    let mut cluster = trio();
    let mut request = acquire("amy", "t:/1", 5_000);
    request.fence = Some(Fence::from_number(77).unwrap());
    granted(&cluster.acquire(0, request));
    let mut request = acquire("amy", "t:/2", 5_000);
    request.fence = Some(Fence::from_number(77).unwrap());
    granted(&cluster.acquire(0, request));
    let check = |cluster: &mut Cluster, fence: u64, paths: &[&str]| {
        let request = ClientRequest::AssertFencing {
            owner: owner("amy"),
            fence: Fence::from_number(fence),
            paths: paths.iter().map(|one| path(one)).collect(),
        };
        match cluster.call(2, request) {
            Ok(Answer::AssertFencing(answer)) => answer,
            other => panic!("odd answer {other:?}"),
        }
    };
    assert_eq!(
        check(&mut cluster, 77, &["t:/1", "t:/2"]),
        AssertAnswer::Valid
    );
    assert_eq!(
        check(&mut cluster, 77, &["t:/1", "t:/3", "t:/2", "t:/4"]),
        AssertAnswer::StaleOwner(path("t:/3"))
    );
    assert_eq!(
        check(&mut cluster, 76, &["t:/2", "t:/3"]),
        AssertAnswer::StaleFence(path("t:/2"))
    );
    assert_eq!(check(&mut cluster, 1, &[]), AssertAnswer::Valid);
}

/// R102–R105: keyed owner-wide calls apply once.
#[test]
fn keyed_calls_apply_once() {
    let mut cluster = trio();
    granted(&cluster.write(0, "amy", "t:/a"));
    let request = release_all("amy", &[], Some("r1"));
    assert_eq!(cluster.call(0, request.clone()), Ok(Answer::Done));
    granted(&cluster.write(0, "amy", "t:/a"));
    assert_eq!(cluster.call(1, request), Ok(Answer::Done));
    assert_eq!(
        cluster.holder(0, "t:/a").as_deref(),
        Some("amy"),
        "not again"
    );
    // R103: another request under the same key.
    assert!(matches!(
        cluster.call(1, release_all("bob", &[], Some("r1"))),
        Err(Failure::InvalidArgument(_))
    ));
    // R105: a repeated renewal is OK only while the lease that it extended lives.
    let keyed = |key: &str| ClientRequest::Renew {
        owner: owner("amy"),
        ttl: Ttl::from_millis(5_000).unwrap(),
        domains: vec![ns("t:/a")],
        key: Key::new(key).unwrap(),
    };
    let renewed = Ok(Answer::Renew(RenewAnswer::Renewed { asked: false }));
    assert_eq!(cluster.call(0, keyed("n1")), renewed);
    assert_eq!(cluster.call(1, keyed("n1")), renewed);
    cluster.release(0, "amy", "t:/a");
    granted(&cluster.write(0, "amy", "t:/a"));
    assert_eq!(
        cluster.call(1, keyed("n1")),
        Ok(Answer::Renew(RenewAnswer::Lost(
            tenure_core::policy::Missing::Alive
        )))
    );
}

/// R131 (SetNamespacePolicy clears on change), R133 (route changes need drained paths), R136–R138:
/// rows, what they clear, and what refuses them.
#[test]
fn policies_change_with_all_groups() {
    let mut cluster = trio();
    granted(&cluster.write(0, "amy", "t:/a/b/c"));
    // A route change with a live hold in the moving part is refused.
    let refused = cluster.call(1, set_policy("t:/a/b", Algorithm::PointRw));
    assert!(
        matches!(refused, Err(Failure::FailedPrecondition(_))),
        "{refused:?}"
    );
    // And nothing stays frozen behind it.
    granted(&cluster.write(2, "amy", "t:/a/b/d"));
    cluster.release(0, "amy", "t:/a/b/c");
    cluster.release(0, "amy", "t:/a/b/d");
    let before = granted(&cluster.write(0, "amy", "t:/a/b/c"));
    cluster.release(0, "amy", "t:/a/b/c");
    assert_eq!(
        cluster.call(1, set_policy("t:/a/b", Algorithm::PointRw)),
        Ok(Answer::Done)
    );
    // R71: the fence of a path goes on across the change of its route, seen from any node.
    for at in 0..3 {
        let answer = cluster.write(at, "amy", "t:/a/b/c");
        assert!(granted(&answer) > before);
        let AcquireAnswer::Granted { namespace, .. } = answer else {
            panic!()
        };
        assert_eq!(namespace, Some(ns("t:/a/b")));
    }
    // R131: another algorithm clears, and each owner gets one event.
    cluster.input(
        0,
        Input::Subscribe {
            id: StreamId(1),
            owner: owner("amy"),
        },
    );
    cluster.run(200);
    assert_eq!(
        cluster.call(2, set_policy("t:/a/b", Algorithm::PointWrite)),
        Ok(Answer::Done)
    );
    cluster.run(50);
    assert_eq!(events(&cluster, 0, StreamId(1)), [EventKind::Killed]);
    assert_eq!(cluster.holder(1, "t:/a/b/c"), None);
    let policy = ClientRequest::GetNamespacePolicy {
        namespace: ns("t:/a/b"),
    };
    assert_eq!(
        cluster.call(1, policy),
        Ok(Answer::Policy {
            algorithm: Algorithm::PointWrite,
            explicit: true
        })
    );
    // R138: deleting with a live hold is refused, without one it succeeds; R137: twice too.
    granted(&cluster.write(0, "amy", "t:/a/b/c"));
    assert!(matches!(
        cluster.call(1, delete_policy("t:/a/b")),
        Err(Failure::FailedPrecondition(_))
    ));
    cluster.release(0, "amy", "t:/a/b/c");
    assert_eq!(cluster.call(1, delete_policy("t:/a/b")), Ok(Answer::Done));
    assert_eq!(cluster.call(2, delete_policy("t:/a/b")), Ok(Answer::Done));
    let rows = ClientRequest::ListNamespacePolicies {
        after: None,
        page: 0,
    };
    assert_eq!(
        cluster.call(0, rows),
        Ok(Answer::Policies {
            rows: Vec::new(),
            done: true
        })
    );
}

/// R25: after the change every node reads by it, also one whose copy of the table is old.
#[test]
fn reads_follow_the_route() {
    let mut cluster = trio();
    assert_eq!(
        cluster.call(1, set_policy("t:/a/b", Algorithm::PointRw)),
        Ok(Answer::Done)
    );
    granted(&cluster.write(1, "amy", "t:/a/b/c"));
    for at in 0..3 {
        assert_eq!(cluster.holder(at, "t:/a/b/c").as_deref(), Some("amy"));
    }
}

/// R135: a change interrupted anywhere is finished by some node, and repeating it converges.
#[test]
fn a_policy_change_interrupted_anywhere_is_finished() {
    for after in (0..40).step_by(3) {
        let mut cluster = trio();
        granted(&cluster.write(0, "amy", "t:/x/1"));
        let asked = 1;
        cluster.ask(asked, set_policy("t:/a/b", Algorithm::PointRw));
        cluster.run(after);
        cluster.crash(asked);
        cluster.tell_down(asked);
        cluster.run(3_000);
        // Wherever it stopped: nothing is frozen for good, and the change goes through.
        granted(&cluster.write(2, "bob", "t:/a/z"));
        let again = cluster.call(2, set_policy("t:/a/b", Algorithm::PointRw));
        assert_eq!(again, Ok(Answer::Done), "stopped after {after} ms");
        granted(&cluster.write(0, "bob", "t:/a/b/c"));
        cluster.start(asked);
        cluster.run(2_000);
        let answer = cluster.write(asked, "bob", "t:/a/b/d");
        let AcquireAnswer::Granted { namespace, .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(namespace, Some(ns("t:/a/b")), "stopped after {after} ms");
        assert_eq!(cluster.holder(asked, "t:/x/1").as_deref(), Some("amy"));
    }
}

/// R31 (one namespace per acquire) and R30 (paths above the routing depth) are refused by the true
/// table, not by a copy.
#[test]
fn unroutable_requests_are_refused() {
    let mut cluster = trio();
    let mut request = acquire("amy", "t:/1", 5_000);
    request.requests.push(Request {
        path: path("t:/2"),
        mode: Mode::Write,
        state: RequestKind::New,
        permits: None,
    });
    assert!(matches!(
        cluster.call(0, ClientRequest::Acquire(request)),
        Err(Failure::InvalidArgument(_))
    ));
    assert!(matches!(
        cluster.call(0, ClientRequest::Acquire(acquire("amy", "t:/", 5_000))),
        Err(Failure::InvalidArgument(_))
    ));
}

/// R145: health is a round of the system group.
#[test]
fn health_needs_a_quorum() {
    let mut cluster = trio();
    assert_eq!(cluster.call(0, ClientRequest::Health), Ok(Answer::Ready));
    cluster.crash(1);
    cluster.crash(2);
    let asked = cluster.ask_for(0, ClientRequest::Health, 2_000);
    cluster.run(2_100);
    assert_eq!(
        cluster.test_nodes[0].answers.remove(&asked),
        Some(Err(Failure::DeadlineExceeded))
    );
}

/// R167: a node without any replica serves clients by forwarding.
#[test]
fn a_node_without_replicas_serves() {
    let mut cluster = trio_and_a_guest();
    granted(&cluster.write(3, "amy", "t:/a"));
    assert!(is_queued(&cluster.write(3, "bob", "t:/a")));
    assert_eq!(locks(&mut cluster, 3, "amy", &[]), ["t:/a"]);
    assert_eq!(cluster.call(3, ClientRequest::Health), Ok(Answer::Ready));
    assert_eq!(
        cluster.renew(3, "amy", &[], 5_000),
        RenewAnswer::Renewed { asked: false }
    );
    cluster.input(
        3,
        Input::Subscribe {
            id: StreamId(1),
            owner: owner("bob"),
        },
    );
    cluster.run(200);
    cluster.release(3, "amy", "t:/a");
    cluster.run(50);
    assert_eq!(events(&cluster, 3, StreamId(1)).len(), 1);
}

/// R25, R32: a copy of the table that is never refreshed is slow, never wrong: the space says so.
#[test]
fn a_stale_copy_of_the_table_is_only_slow() {
    let mut cluster = trio_and_a_guest();
    granted(&cluster.write(3, "amy", "t:/a/x"));
    cluster.release(3, "amy", "t:/a/x");
    assert_eq!(
        cluster.call(0, set_policy("t:/a/b", Algorithm::PointRw)),
        Ok(Answer::Done)
    );
    granted(&cluster.write(0, "amy", "t:/a/b/c"));
    // The guest still routes t:/a/b/c to t:/a; its reads and acquires are refused and resolved anew.
    assert_eq!(cluster.holder(3, "t:/a/b/c").as_deref(), Some("amy"));
    assert_eq!(
        cluster.call(0, delete_policy("t:/a/b")),
        Err(Failure::FailedPrecondition(
            "the policy of t:/a/b cannot change while a lock is held in it: amy holds t:/a/b/c"
                .to_owned()
        ))
    );
    cluster.release(3, "amy", "t:/a/b/c");
    assert_eq!(cluster.call(0, delete_policy("t:/a/b")), Ok(Answer::Done));
    let answer = cluster.write(3, "bob", "t:/a/b/c");
    let AcquireAnswer::Granted { namespace, .. } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(namespace, Some(ns("t:/a")));
}

/// A node that died while its request was under way gets the answer after its restart. That answer
/// belongs to no call: it once reported to another owner that it held a lock (found by a storm, seed
/// 161).
#[test]
fn an_answer_to_an_earlier_process_is_nobodys() {
    let mut cluster = trio();
    let group = placement::group_of(&ns("t:/a"), 8);
    let leader = cluster.leader(group).unwrap();
    let asker = (leader + 1) % 3;
    for test_node in &mut cluster.test_nodes {
        test_node.paused_disk = true;
    }
    for number in 0..12 {
        let request = acquire("amy", &format!("t:/a/{number}"), 20_000);
        cluster.ask(asker, ClientRequest::Acquire(request));
    }
    cluster.run(20);
    cluster.crash(asker);
    cluster.start(asker);
    let asked: Vec<RequestId> = (0..12)
        .map(|number| {
            let request = acquire("bob", &format!("t:/a/{number}"), 20_000);
            cluster.ask(asker, ClientRequest::Acquire(request))
        })
        .collect();
    cluster.run(20);
    for test_node in &mut cluster.test_nodes {
        test_node.paused_disk = false;
    }
    for id in asked {
        let answer = cluster.wait(asker, id);
        assert!(
            matches!(answer, Ok(Answer::Acquire(AcquireAnswer::Queued { .. }))),
            "amy holds it: {answer:?}"
        );
    }
}

/// A policy change that meets a full group waits for it, step by step, and goes through.
#[test]
fn a_policy_change_waits_for_a_full_group() {
    let limits = Limits {
        group_inflight: 2,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(1, 2, limits);
    cluster.run(10);
    assert_eq!(cluster.call(0, ClientRequest::Health), Ok(Answer::Ready));
    let change = cluster.ask(0, set_policy("t:/a/b", Algorithm::PointRw));
    // Before the change can reach the groups they are full, and the disk stands still.
    cluster.test_nodes[0].paused_disk = true;
    for number in 0..16 {
        let request = acquire("amy", &format!("u:/{number}"), 5_000);
        cluster.ask(0, ClientRequest::Acquire(request));
    }
    cluster.run(300);
    assert!(!cluster.test_nodes[0].answers.contains_key(&change));
    cluster.test_nodes[0].paused_disk = false;
    assert_eq!(cluster.wait(0, change), Ok(Answer::Done));
}

fn history_of(cluster: &mut Cluster, at: usize, path: &str) -> Vec<(String, ChangeKind)> {
    let query = BrowseQuery::History {
        prefix: Some(ns(path)),
        since: 0,
        page: 100,
    };
    match cluster.call(at, ClientRequest::Browse(query)) {
        Ok(Answer::Browse(answer)) => match answer.result {
            BrowseResult::History(page) => page
                .events
                .into_iter()
                .map(|event| (event.owner.unwrap().as_str().to_owned(), event.kind))
                .collect(),
            other => panic!("odd list {other:?}"),
        },
        other => panic!("odd answer {other:?}"),
    }
}

/// E20, E22: every node lists all groups, and a new leader has the history of the old one.
#[test]
fn lists_cover_all_groups_and_a_new_leader_has_the_history() {
    let limits = Limits {
        history_bytes: 8 << 20,
        ..Limits::default()
    };
    let mut cluster = Cluster::empty(8, limits);
    cluster.fill_with_trio(0);
    cluster.settle();
    for number in 0..20 {
        granted(&cluster.write(0, "amy", &format!("t:/{number:02}/x")));
    }
    cluster
        .call(0, release_all("amy", &["t:/03"], None))
        .unwrap();
    for at in 0..3 {
        let query = BrowseQuery::Children {
            prefix: Some(ns("t")),
            after: None,
            page: 12,
        };
        let Ok(Answer::Browse(answer)) = cluster.call(at, ClientRequest::Browse(query)) else {
            panic!("no list");
        };
        let BrowseResult::Children(page) = answer.result else {
            panic!("another list");
        };
        let names: Vec<&str> = page.children.iter().map(|child| &*child.name).collect();
        let expected: Vec<String> = (0..13)
            .filter(|number| *number != 3)
            .map(|number| format!("{number:02}"))
            .collect();
        assert_eq!(names, expected);
        assert_eq!(page.until.as_deref(), Some("12"));
        assert_eq!(answer.missing_groups, 0);
    }
    let expected = [
        ("amy".to_owned(), ChangeKind::Granted),
        ("amy".to_owned(), ChangeKind::Released),
    ];
    assert_eq!(history_of(&mut cluster, 2, "t:/03"), expected);
    let group = placement::group_of(&ns("t:/03"), 8);
    let leader = cluster.leader(group).unwrap();
    cluster.crash(leader);
    cluster.tell_down(leader);
    cluster.until(20_000, "another leader", |cluster| {
        cluster.leader(group).is_some_and(|now| now != leader)
    });
    cluster.run(3_000);
    let other = (leader + 1) % 3;
    assert_eq!(history_of(&mut cluster, other, "t:/03"), expected);
}
