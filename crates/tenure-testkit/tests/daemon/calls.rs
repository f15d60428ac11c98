//! One typed call per RPC of the protocol.

use std::time::Duration;

use prost::Message;
use tenure::calls::Calls;
use tenure::calls::messages::{
    AcquireRequest, AcquireStatus, AssertFencingRequest, AssertStatus, ClearWaitEdgeRequest,
    CycleKind, DetectCycleRequest, EventType, ForceReleaseRequest, IncrFencingTokenRequest,
    InspectPathRequest, IsBlockingRequest, IsOwnerAliveRequest, LockRequest, ReasonCode,
    RequestRevokeRequest, SessionRequest, SetWaitEdgeRequest, SubscribeRequest, session_request,
    session_response,
};
use tenure_files::internal::block_on as wait;

use crate::support::daemon::Daemon;

/// Every RPC of the service has a method.
#[test]
fn every_rpc_has_a_typed_call() {
    let descriptors = prost_types::FileDescriptorSet::decode(tenure_wire::DESCRIPTORS).unwrap();
    let services = descriptors.file.iter().flat_map(|file| &file.service);
    let methods = services.flat_map(|service| &service.method);
    let mut rpcs: Vec<&str> = methods.map(|method| method.name()).collect();
    let mut calls = Calls::RPCS.to_vec();
    rpcs.sort_unstable();
    calls.sort_unstable();
    assert_eq!(rpcs, calls);
}

fn acquire(owner: &str, paths: &[&str]) -> AcquireRequest {
    let requests = paths.iter().map(|path| LockRequest {
        path: (*path).to_owned(),
        ..LockRequest::default()
    });
    AcquireRequest {
        owner_id: owner.to_owned(),
        ttl_ms: 30_000,
        requests: requests.collect(),
        ..AcquireRequest::default()
    }
}

/// R107, R111: recorded wait edges make a cycle, until one of them is removed.
#[test]
fn wait_edges_are_set_followed_and_removed() {
    let daemon = Daemon::start();
    let calls = daemon.client().calls().unwrap();
    for (owner, waits_for) in [("amy", "bob"), ("bob", "amy")] {
        // Edges to owners that have nothing do not count.
        let holds = acquire(owner, &[&format!("t:/{owner}")]);
        wait(calls.acquire(holds)).unwrap();
        let edge = SetWaitEdgeRequest {
            owner_id: owner.to_owned(),
            conflict_owner: waits_for.to_owned(),
            ttl_ms: 60_000,
            ..SetWaitEdgeRequest::default()
        };
        wait(calls.set_wait_edge(edge)).unwrap();
    }
    let cycle = || {
        let request = DetectCycleRequest {
            start_owner_id: "amy".into(),
            max_depth: 0,
        };
        wait(calls.detect_cycle(request)).unwrap()
    };
    assert_eq!(cycle().kind(), CycleKind::Found);
    let clear = ClearWaitEdgeRequest {
        owner_id: "bob".into(),
        ..ClearWaitEdgeRequest::default()
    };
    wait(calls.clear_wait_edge(clear)).unwrap();
    assert_eq!(cycle().kind(), CycleKind::None);
}

/// What the protocol tells of a hold, and its end by force.
#[test]
fn a_hold_is_inspected_and_ended_by_force() {
    let daemon = Daemon::start();
    let calls = daemon.client().calls().unwrap();
    let granted =
        wait(calls.acquire_stream(vec![acquire("amy", &["t:/a/x"]), acquire("", &["t:/a/y"])]))
            .unwrap();
    assert_eq!(granted.status(), AcquireStatus::Ok);
    let alive = || {
        let request = IsOwnerAliveRequest {
            owner_id: "amy".into(),
            domains: Vec::new(),
        };
        wait(calls.is_owner_alive(request)).unwrap().alive
    };
    assert!(alive());
    let request = InspectPathRequest {
        path: "t:/a/y".into(),
    };
    let found = wait(calls.inspect_path(request)).unwrap();
    assert_eq!(found.write_owner, "amy");
    let request = IsBlockingRequest {
        conflict_path: "t:/a/x".into(),
        conflict_owner: "amy".into(),
        reason: ReasonCode::WriteLocked.into(),
    };
    assert!(wait(calls.is_blocking(request)).unwrap().blocking);
    let request = AssertFencingRequest {
        owner_id: "amy".into(),
        fencing_token: found.fence,
        paths: vec!["t:/a/y".into()],
    };
    let asserted = wait(calls.assert_fencing(request)).unwrap();
    assert_eq!(asserted.status(), AssertStatus::Ok);

    let subscribe = SubscribeRequest {
        owner_id: "amy".into(),
    };
    let mut events = wait(calls.subscribe(subscribe)).unwrap();
    let ask = RequestRevokeRequest {
        owner_id: "amy".into(),
    };
    wait(calls.request_revoke(ask)).unwrap();
    let event = wait(events.next()).unwrap().unwrap();
    assert_eq!(event.r#type(), EventType::Revoke);
    let force = ForceReleaseRequest {
        victim_id: "amy".into(),
        ..ForceReleaseRequest::default()
    };
    wait(calls.force_release(force)).unwrap();
    let event = wait(events.next()).unwrap().unwrap();
    assert_eq!(event.r#type(), EventType::Killed);
    assert!(!alive());
}

/// R75 (IncrFencingToken): the numbers grow.
#[test]
fn fencing_tokens_grow() {
    let daemon = Daemon::start();
    let calls = daemon.client().calls().unwrap();
    let next = || {
        let request = IncrFencingTokenRequest::default();
        wait(calls.incr_fencing_token(request)).unwrap().token
    };
    let (first, second) = (next(), next());
    assert!(first < second, "{first} {second}");
}

/// E10 (Session stream): operations are answered by their ids.
#[test]
fn a_session_answers_by_id() {
    let daemon = Daemon::start();
    let calls = daemon.client().calls().unwrap();
    let (sender, mut answers) = wait(calls.session()).unwrap();
    let request = SessionRequest {
        id: 7,
        op: Some(session_request::Op::Acquire(
            acquire("amy", &["t:/a"]).into(),
        )),
    };
    wait(sender.send(request)).unwrap();
    let answer = wait(answers.next()).unwrap().unwrap();
    assert_eq!(answer.id, 7);
    let Some(session_response::Result::Acquire(granted)) = answer.result else {
        panic!("{answer:?}");
    };
    assert_eq!(granted.status(), AcquireStatus::Ok);
    drop(sender);
    assert!(wait(answers.next()).is_none());
}

/// Paths are added to held locks and removed from them; the others keep their lease.
#[test]
fn paths_come_and_go_while_the_others_stay_held() {
    let daemon = Daemon::start();
    let tenure = daemon.client();
    let lock = tenure.lock_all(["t:/a/x"]).unwrap();
    let mut guards = wait(lock.ttl(Duration::from_secs(3)).no_wait().acquire()).unwrap();
    wait(guards.add("t:/a/y")).unwrap();
    wait(guards.add("u:/b")).unwrap();
    wait(guards.add("t:/a/y")).unwrap();
    assert_eq!(guards.iter().count(), 3);
    let owners: Vec<String> = guards.iter().map(tenure::Guard::owner).collect();
    assert!(owners.iter().all(|owner| *owner == owners[0]), "{owners:?}");
    // A parent of what is held belongs to the same owner, so it does not conflict.
    wait(guards.add("t:/a")).unwrap();

    let other = daemon.client();
    let take = |path: &str| other.lock(path).unwrap().blocking().no_wait().acquire();
    assert!(take("t:/a/x").unwrap_err().is_busy());
    assert!(wait(guards.add("v:/c")).is_ok());
    wait(guards.remove("t:/a")).unwrap();
    wait(guards.remove("t:/a/x")).unwrap();
    take("t:/a/x").unwrap().release().unwrap();
    assert!(take("t:/a/y").unwrap_err().is_busy());
    wait(guards.check()).unwrap();
    assert!(wait(guards.remove("t:/a/x")).is_err());

    // A lock that is held by another owner is not added; the others stay.
    let held = take("w:/d").unwrap();
    assert!(wait(guards.add("w:/d")).unwrap_err().is_busy());
    held.release().unwrap();
    wait(guards.add("w:/d")).unwrap();
    wait(guards.check()).unwrap();
    wait(guards.release()).unwrap();
    take("t:/a/y").unwrap().release().unwrap();
}
