//! The daemon from the view of its clients: real processes, real sockets.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use support::Daemon;
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tonic::Code;
use tonic::transport::Channel;

async fn client(daemon: &Daemon) -> PathLockClient<Channel> {
    PathLockClient::new(daemon.channel().await)
}

fn acquire(owner: &str, path: &str) -> v1::AcquireRequest {
    v1::AcquireRequest {
        owner_id: owner.into(),
        ttl_ms: 30_000,
        requests: vec![v1::LockRequest {
            path: path.into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// R145 (Health needs a working quorum), R182: without configuration except for the ports, it is
/// ready.
#[tokio::test]
async fn it_is_ready_at_once() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let health = client(&daemon)
        .await
        .health(v1::HealthRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((health.ok, health.detail.as_str()), (true, "ready"));
    assert_eq!(
        daemon.get("/v1/health"),
        (200, json!({"ok": true, "detail": "ready"}))
    );
}

/// R62 (effect of OK), R87 (events that trigger a sweep), R119: a lock, a queue entry, a release, a
/// GRANT, over gRPC.
#[tokio::test]
async fn a_waiter_is_told_when_its_turn_comes() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut client = client(&daemon).await;
    let amy = client
        .acquire(acquire("amy", "t:/a/b"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(amy.status(), v1::AcquireStatus::Ok);
    assert_eq!(amy.namespace, "t:/a");
    let bob = client
        .acquire(acquire("bob", "t:/a"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(bob.status(), v1::AcquireStatus::Queued);
    assert_eq!(bob.reason(), v1::ReasonCode::DescendantWriteLocked);
    assert_eq!(bob.blocker.as_ref().unwrap().owner, "amy");

    let subscribe = v1::SubscribeRequest {
        owner_id: "bob".into(),
    };
    let mut events = client.subscribe(subscribe).await.unwrap().into_inner();
    let release = v1::ReleaseLocksRequest {
        owner_id: "amy".into(),
        requests: vec![v1::ReleaseRequest {
            path: "t:/a/b".into(),
            mode: 0,
        }],
        ..Default::default()
    };
    client.release(release).await.unwrap();
    let event = tokio::time::timeout(Duration::from_secs(10), events.message()).await;
    let event = event.unwrap().unwrap().unwrap();
    assert_eq!(event.r#type(), v1::EventType::Grant);
    assert_eq!(event.fence, bob.fencing_token);
    let fencing = v1::AssertFencingRequest {
        owner_id: "bob".into(),
        fencing_token: event.fence,
        paths: vec!["t:/a".into()],
    };
    let asserted = client.assert_fencing(fencing).await.unwrap().into_inner();
    assert_eq!(asserted.status(), v1::AssertStatus::Ok);
}

/// R1 (path syntax and length), R8 (range of ttl_ms), R12 (unknown enum numbers are refused),
/// R14–R16, R30 (paths above the routing depth), R31: bad input is refused with INVALID_ARGUMENT
/// and changes nothing.
#[tokio::test]
async fn bad_input_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut client = client(&daemon).await;
    let mut bad = acquire("amy", "t:/a");
    bad.requests[0].mode = 9;
    let mut no_ttl = acquire("amy", "t:/a");
    no_ttl.ttl_ms = 0;
    let mut too_far = acquire("amy", "t:/a");
    too_far.fencing_token = 1 << 52;
    let across = v1::AcquireRequest {
        requests: ["t:/a/x", "t:/b/x"]
            .map(|path| v1::LockRequest {
                path: path.into(),
                ..Default::default()
            })
            .into(),
        ..acquire("amy", "t:/a")
    };
    for request in [
        bad,
        no_ttl,
        too_far,
        across,
        acquire("", "t:/a"),
        acquire("amy", "t:/"),
    ] {
        let status = client.acquire(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    let none = v1::AssertFencingRequest {
        owner_id: "amy".into(),
        fencing_token: 0,
        paths: vec!["t:/a".into()],
    };
    assert_eq!(
        client.assert_fencing(none).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    let half = v1::SetWaitEdgeRequest {
        owner_id: "amy".into(),
        conflict_owner: "bob".into(),
        ttl_ms: 1,
        reason: 2,
        ..Default::default()
    };
    assert_eq!(
        client.set_wait_edge(half).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    let list = v1::ListOwnerLocksRequest {
        owner_id: "amy".into(),
        ..Default::default()
    };
    assert!(
        !client
            .list_owner_locks(list)
            .await
            .unwrap()
            .into_inner()
            .alive
    );
}

/// R18: chunks are one acquire, and an interrupted stream is none.
#[tokio::test]
async fn a_stream_of_chunks_is_one_acquire() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut client = client(&daemon).await;
    let chunk = |owner: &str, from: u32| v1::AcquireRequest {
        owner_id: owner.into(),
        ttl_ms: if owner.is_empty() { 0 } else { 30_000 },
        requests: (from..from + 1000)
            .map(|n| v1::LockRequest {
                path: format!("t:/a/{n}"),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    let chunks = tokio_stream::iter([chunk("amy", 0), chunk("", 1000), chunk("", 2000)]);
    let answer = client.acquire_stream(chunks).await.unwrap().into_inner();
    assert_eq!(answer.status(), v1::AcquireStatus::Ok);
    let list = v1::ListOwnerLocksRequest {
        owner_id: "amy".into(),
        ..Default::default()
    };
    assert_eq!(
        client
            .list_owner_locks(list)
            .await
            .unwrap()
            .into_inner()
            .locks
            .len(),
        3000
    );
}

/// Every error of the JSON transport that never reaches a handler, each with the JSON shape.
#[test]
fn the_facade_answers_in_json_whatever_comes() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let code = |answer: &(u16, Value)| answer.1["error"]["code"].as_str().unwrap_or("").to_owned();
    for (answer, status, name) in [
        (
            daemon.post_raw("/v1/acquire", "application/json", b"{"),
            400,
            "INVALID_ARGUMENT",
        ),
        (
            daemon.post_raw("/v1/acquire", "application/json", b""),
            400,
            "INVALID_ARGUMENT",
        ),
        (
            daemon.post("/v1/acquire", &json!({"ownerId": 7})),
            422,
            "INVALID_ARGUMENT",
        ),
        (
            daemon.post_raw("/v1/acquire", "text/plain", b"{}"),
            415,
            "INVALID_ARGUMENT",
        ),
        (
            daemon.post("/v1/acquire", &json!({})),
            400,
            "INVALID_ARGUMENT",
        ),
        (daemon.post("/v1/nothing", &json!({})), 404, "UNIMPLEMENTED"),
        (daemon.get("/v1/acquire"), 405, "UNIMPLEMENTED"),
        (
            daemon.post_raw(
                "/v1/acquire",
                "application/json",
                &vec![b' '; (4 << 20) + 1],
            ),
            413,
            "RESOURCE_EXHAUSTED",
        ),
    ] {
        assert_eq!(
            (answer.0, code(&answer)),
            (status, name.to_owned()),
            "{answer:?}"
        );
    }
    // Both forms of input, every field in the answer.
    let request = json!({"owner_id": "amy", "ttlMs": "30000", "requests": [{"path": "t:/a/b", "mode": "MODE_READ"}]});
    let (status, body) = daemon.post("/v1/acquire", &request);
    assert_eq!(
        (status, &body["status"], &body["namespace"]),
        (200, &json!(0), &json!("t:/a"))
    );
    let (_, found) = daemon.post("/v1/inspectPath", &json!({"path": "t:/a/b"}));
    assert_eq!(found["readOwners"], json!(["amy"]));
}

/// One port answers http and https; HTTP/2 works without TLS and with it.
#[test]
fn one_port_speaks_http_and_https() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    for arguments in [
        vec![format!("http://{}/v1/health", daemon.web)],
        vec!["-k".into(), format!("https://{}/v1/health", daemon.web)],
        vec![
            "-k".into(),
            "--http1.1".into(),
            format!("https://{}/v1/health", daemon.web),
        ],
        vec![
            "--http2-prior-knowledge".into(),
            format!("http://{}/v1/health", daemon.web),
        ],
    ] {
        let output = Command::new("curl")
            .args(["-sS", "--max-time", "20"])
            .args(&arguments)
            .output();
        let output = output.expect("curl is needed for this test");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            text, r#"{"ok":true,"detail":"ready"}"#,
            "{arguments:?}: {output:?}"
        );
    }
}

/// E10: many operations in flight on one stream, answers by id, events with id 0.
#[tokio::test]
async fn a_session_answers_by_id_and_carries_events() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut client = client(&daemon).await;
    let (requests, stream) = tokio::sync::mpsc::channel(16);
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let mut answers = client.session(stream).await.unwrap().into_inner();
    let send = async |id, op| {
        requests
            .send(v1::SessionRequest { id, op: Some(op) })
            .await
            .unwrap();
    };
    use v1::session_request::Op;
    use v1::session_response::Result as Answer;
    send(7, Op::Acquire(acquire("amy", "t:/a").into())).await;
    send(8, Op::Acquire(acquire("bob", "t:/a").into())).await;
    let mut statuses = std::collections::BTreeMap::new();
    while statuses.len() < 2 {
        let answer = answers.message().await.unwrap().unwrap();
        let Some(Answer::Acquire(acquired)) = answer.result else {
            panic!("{answer:?}")
        };
        statuses.insert(answer.id, acquired.status());
    }
    assert!(
        statuses
            .values()
            .any(|status| *status == v1::AcquireStatus::Ok)
    );
    let winner = if statuses[&7] == v1::AcquireStatus::Ok {
        "amy"
    } else {
        "bob"
    };
    let release = v1::ReleaseAllRequest {
        owner_id: winner.into(),
        ..Default::default()
    };
    send(9, Op::ReleaseAll(release)).await;
    let (mut released, mut granted) = (false, false);
    while !(released && granted) {
        let answer = answers.message().await.unwrap().unwrap();
        match answer.result.unwrap() {
            Answer::ReleaseAll(_) => released = answer.id == 9,
            Answer::Event(event) => {
                assert_eq!((answer.id, event.r#type()), (0, v1::EventType::Grant));
                granted = true;
            }
            other => panic!("{other:?}"),
        }
    }
    send(0, Op::Acquire(acquire("amy", "t:/b").into())).await;
    let refused = answers.message().await.unwrap().unwrap();
    assert!(
        matches!(refused.result, Some(Answer::Error(_))),
        "{refused:?}"
    );
}

/// E10, R73: every fence check of a session is answered once and correctly, however many are in
/// flight.
#[tokio::test]
async fn fence_checks_of_a_session_say_what_is_so() {
    use v1::session_request::Op;
    use v1::session_response::Result as Answer;
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut client = client(&daemon).await;
    let (requests, stream) = tokio::sync::mpsc::unbounded_channel();
    let stream = tokio_stream::wrappers::UnboundedReceiverStream::new(stream);
    let mut answers = client.session(stream).await.unwrap().into_inner();
    // Sends what is asked, in one go, and waits for the answers.
    let mut ask = async |asked: Vec<Op>| {
        for (at, op) in asked.iter().enumerate() {
            let (id, op) = (at as u64 + 1, Some(op.clone()));
            requests.send(v1::SessionRequest { id, op }).unwrap();
        }
        let mut found = std::collections::BTreeMap::new();
        while found.len() != asked.len() {
            let next = tokio::time::timeout(Duration::from_secs(60), answers.message());
            let answer = next.await.expect("an answer").unwrap().unwrap();
            let earlier = found.insert(answer.id, answer.result.unwrap());
            assert!(earlier.is_none(), "{} is answered twice", answer.id);
        }
        found.into_values().collect::<Vec<_>>()
    };
    let check = |owner: &str, fencing_token| {
        Op::AssertFencing(v1::AssertFencingRequest {
            owner_id: owner.into(),
            fencing_token,
            paths: vec!["t:/a".into()],
        })
    };
    for (round, checks) in [3_000, 1, 3, 300].into_iter().enumerate() {
        let taken = ask(vec![Op::Acquire(acquire("amy", "t:/a").into())]).await;
        let [Answer::Acquire(taken)] = &taken[..] else {
            panic!("{taken:?}")
        };
        let fence = taken.fencing_token;
        let is_amy_s = |at: usize| at % 3 != 1;
        let is_in_force = |at: usize| at % 4 != 2;
        let asked = (0..checks).map(|at| {
            let owner = if is_amy_s(at) { "amy" } else { "bob" };
            check(owner, if is_in_force(at) { fence } else { fence + 9 })
        });
        for (at, found) in ask(asked.collect()).await.into_iter().enumerate() {
            let Answer::AssertFencing(found) = found else {
                panic!("{found:?}")
            };
            let wanted = is_amy_s(at) && is_in_force(at);
            let ok = found.status() == v1::AssertStatus::Ok;
            assert_eq!(ok, wanted, "round {round}, check {at}: {found:?}");
        }
        let release = v1::ReleaseAllRequest {
            owner_id: "amy".into(),
            ..Default::default()
        };
        ask(vec![Op::ReleaseAll(release)]).await;
        let late = ask(vec![check("amy", fence)]).await;
        let [Answer::AssertFencing(late)] = &late[..] else {
            panic!("{late:?}")
        };
        assert_ne!(late.status(), v1::AssertStatus::Ok, "round {round}");
    }
}

/// R169: a clean shutdown ends with 0, and everything is there at the next start.
#[tokio::test]
async fn a_stop_and_a_start_keep_everything() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let granted = client(&daemon)
        .await
        .acquire(acquire("amy", "t:/a"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(daemon.terminate(), Some(0));
    let daemon = Daemon::start(data.path());
    let fencing = v1::AssertFencingRequest {
        owner_id: "amy".into(),
        fencing_token: granted.fencing_token,
        paths: vec!["t:/a".into()],
    };
    let asserted = client(&daemon)
        .await
        .assert_fencing(fencing)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(asserted.status(), v1::AssertStatus::Ok);
}

/// R161 (settings fixed per cluster), R182: an invalid configuration is refused at the start, with
/// all errors and what to do.
#[test]
fn bad_configurations_do_not_start() {
    let data = tempfile::tempdir().unwrap();
    Daemon::start(data.path()).kill();
    let run = |environment: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .arg("serve")
            .env("TENURE_DATA_DIR", data.path())
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, text) = run(&[
        ("TENURE_LISTEN", "127.0.0.1:0"),
        ("TENURE_GROUP_COUNT", "8"),
    ]);
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("created with 4"), "{text}");
    for variable in ["TENURE_CONFIG", "PATHLOCKD_CONFIG"] {
        let (code, text) = run(&[(variable, "/nonexistent")]);
        assert_eq!(code, Some(125), "{variable}: {text}");
        assert!(text.contains("/nonexistent"), "{variable}: {text}");
    }
    let (code, text) = run(&[("TENURE_LISTEN", "0.0.0.0:0"), ("TENURE_EVENT_BUFFER", "x")]);
    assert_eq!(code, Some(125), "{text}");
    assert!(
        text.contains("allow_anonymous") && text.contains("event_buffer"),
        "{text}"
    );
}
