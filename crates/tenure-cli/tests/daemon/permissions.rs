//! Identity and permissions: every RPC over every transport with every kind of credentials, owners
//! that belong to principals, revocation of open streams, and what a caller may see.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_server::auth::ApiKey;
use tenure_server::rpc::Rpc;
use tenure_wire::auth::auth_client::AuthClient;
use tenure_wire::auth::{
    ChangeTableRequest, CreateKeyRequest, Grant, ReadTableRequest, WhoAmIRequest,
};
use tenure_wire::cluster::cluster_client::ClusterClient;
use tenure_wire::cluster::{BackupRequest, StatusRequest};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tenure_wire::v1::session_request::Op;
use tenure_wire::v1::session_response::Result as OpResult;
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::support::Daemon;
use super::support::foreign::python_script;
use super::table::Step;
use super::transports::{code_name, from_http, tonic_call, url};

pub(super) const LONG: Duration = Duration::from_secs(60);

/// A daemon where clients on loopback need credentials, with its administrator's key.
pub(super) struct Guarded {
    pub(super) data: tempfile::TempDir,
    pub(super) daemon: Daemon,
    pub(super) root: String,
}

impl Guarded {
    pub(super) fn start() -> Guarded {
        let data = tempfile::tempdir().unwrap();
        let daemon = Daemon::start_with(data.path(), &[("TENURE_LOOPBACK", "authenticated")]);
        let root = root_key(data.path());
        Guarded { data, daemon, root }
    }

    pub(super) async fn auth(&self) -> AuthClient<Channel> {
        AuthClient::new(self.daemon.channel().await)
    }

    pub(super) async fn client(&self) -> PathLockClient<Channel> {
        PathLockClient::new(self.daemon.channel().await)
    }

    /// Creates a key; returns its id and the key.
    pub(super) async fn key(&self, name: &str, valid_ms: u64) -> (String, String) {
        let request = CreateKeyRequest {
            name: name.to_owned(),
            valid_ms,
        };
        let request = with(request, Some(&self.root));
        let created = self.auth().await.create_key(request).await.unwrap();
        let created = created.into_inner();
        assert_eq!(created.unconfirmed_nodes, [] as [u32; 0]);
        (created.key.unwrap().id, created.secret)
    }

    pub(super) async fn change(&self, request: ChangeTableRequest) {
        let request = with(request, Some(&self.root));
        self.auth().await.change_table(request).await.unwrap();
    }

    pub(super) async fn grant(&self, to: &str, verbs: &[&str], at: &str) {
        let grant = vec![grant(to, verbs, at)];
        self.change(ChangeTableRequest {
            grant,
            ..Default::default()
        })
        .await;
    }

    async fn remove_key(&self, id: String) {
        let remove_keys = vec![id];
        self.change(ChangeTableRequest {
            remove_keys,
            ..Default::default()
        })
        .await;
    }

    /// Runs the command with a key.
    pub(super) fn tenure(&self, key: Option<&str>, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command
            .args(words)
            .env("TENURE_URL", format!("http://{}", self.daemon.grpc))
            .env_remove("TENURE_CLIENT_AUTH_TOKEN");
        if let Some(key) = key {
            command.env("TENURE_CLIENT_AUTH_TOKEN", key);
        }
        command.output().unwrap()
    }
}

/// Waits for the administrator's key.
pub(super) fn root_key(data: &Path) -> String {
    let begun = Instant::now();
    loop {
        if let Ok(text) = std::fs::read_to_string(data.join("root.key")) {
            return text.trim().to_owned();
        }
        assert!(begun.elapsed() < LONG, "no root.key");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(super) fn grant(to: &str, verbs: &[&str], at: &str) -> Grant {
    Grant {
        to: to.to_owned(),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        at: at.to_owned(),
        owners: Vec::new(),
    }
}

pub(super) fn with<T>(message: T, key: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(key) = key {
        let value = format!("Bearer {key}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    request
}

pub(super) fn acquire(owner: &str, path: &str) -> v1::AcquireRequest {
    v1::AcquireRequest {
        owner_id: owner.to_owned(),
        ttl_ms: 60_000,
        requests: vec![v1::LockRequest {
            path: path.to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// One valid request of every unary RPC.
fn requests() -> Vec<Step> {
    let bodies = [
        (
            "Acquire",
            json!({"ownerId": "o", "ttlMs": 60000, "requests": [{"path": "m:/a"}]}),
        ),
        (
            "SetNamespacePolicy",
            json!({"namespace": "m:/p", "algorithm": 3}),
        ),
        ("GetNamespacePolicy", json!({"namespace": "m:/p"})),
        ("DeleteNamespacePolicy", json!({"namespace": "m:/p"})),
        (
            "Release",
            json!({"ownerId": "o", "requests": [{"path": "m:/a"}]}),
        ),
        ("ReleaseAll", json!({"ownerId": "o"})),
        ("Renew", json!({"ownerId": "o", "ttlMs": 60000})),
        ("ForceRelease", json!({"victimId": "o"})),
        (
            "AssertFencing",
            json!({"ownerId": "o", "fencingToken": 1, "paths": ["m:/a"]}),
        ),
        ("DetectCycle", json!({"startOwnerId": "o"})),
        (
            "IsBlocking",
            json!({"conflictPath": "m:/a", "conflictOwner": "o", "reason": 2}),
        ),
        ("IncrFencingToken", json!({})),
        (
            "SetWaitEdge",
            json!({"ownerId": "o", "conflictOwner": "p", "ttlMs": 60000}),
        ),
        ("ClearWaitEdge", json!({"ownerId": "o"})),
        ("IsOwnerAlive", json!({"ownerId": "o"})),
        ("RequestRevoke", json!({"ownerId": "o"})),
        ("InspectPath", json!({"path": "m:/a"})),
        ("ListOwnerLocks", json!({"ownerId": "o"})),
        ("DumpLocks", json!({})),
        ("Health", json!({})),
        ("Explain", json!({"path": "m:/a", "ownerId": "o"})),
        ("Break", json!({"path": "m:/a", "ownerId": "o", "fence": 1})),
        ("ListNamespacePolicies", json!({})),
        ("ListChildren", json!({})),
        ("ListWaits", json!({})),
        ("History", json!({})),
    ];
    let step = |(rpc, request)| Step {
        rpc,
        request,
        code: "OK",
        answer: json!({}),
    };
    bodies.into_iter().map(step).collect()
}

/// The kinds of credentials, each with the code that every call must get; `None` for a call that is
/// carried out.
struct Credentials(Vec<(&'static str, Option<String>, Option<&'static str>)>);

impl Credentials {
    async fn make(guarded: &Guarded) -> Credentials {
        let wrong = ApiKey::generate().unwrap().reveal().to_owned();
        let (_, expired) = guarded.key("expired", 1).await;
        let (id, revoked) = guarded.key("revoked", 0).await;
        guarded.grant("key:revoked", &["*"], "*").await;
        guarded.grant("key:expired", &["*"], "*").await;
        guarded.remove_key(id).await;
        let (_, poor) = guarded.key("poor", 0).await;
        let (_, rich) = guarded.key("rich", 0).await;
        guarded.grant("key:rich", &["*"], "*").await;
        let unknown = Some("UNAUTHENTICATED");
        Credentials(vec![
            ("none", None, unknown),
            ("wrong", Some(wrong), unknown),
            ("not a key", Some("tnr_0".to_owned()), unknown),
            ("a foreign token", Some("s3cret".to_owned()), unknown),
            ("expired", Some(expired), unknown),
            ("revoked", Some(revoked), unknown),
            ("not granted", Some(poor), Some("PERMISSION_DENIED")),
            ("granted", Some(rich), None),
        ])
    }

    fn check(&self, at: usize, what: &str, found: &str) {
        let (kind, _, expected) = &self.0[at];
        let refused = ["UNAUTHENTICATED", "PERMISSION_DENIED"];
        match expected {
            Some(expected) => assert_eq!(found, *expected, "{what} with {kind} credentials"),
            None => assert!(
                !refused.contains(&found),
                "{what} with {kind} credentials: {found}"
            ),
        }
    }

    fn each(&self) -> impl Iterator<Item = (usize, Option<&str>)> {
        let keys = self.0.iter().map(|(_, key, _)| key.as_deref());
        keys.enumerate()
    }
}

/// Sends a GET and returns the status of the answer, without waiting for the end of the body.
fn get_status(daemon: &Daemon, url: &str, key: Option<&str>) -> u16 {
    let mut stream = TcpStream::connect(daemon.web).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let key = key.map_or_else(String::new, |key| {
        format!("authorization: Bearer {key}\r\n")
    });
    let request = format!("GET {url} HTTP/1.1\r\nhost: localhost\r\n{key}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Every RPC is one of the requests of the matrix, or a stream that has its own lines below.
#[test]
fn the_matrix_has_every_rpc() {
    let mut asked: Vec<&str> = requests().iter().map(|step| step.rpc).collect();
    asked.extend(["AcquireStream", "Subscribe", "Watch", "Session"]);
    let mut all: Vec<&str> = Rpc::ALL.iter().map(|rpc| rpc.name()).collect();
    asked.sort_unstable();
    all.sort_unstable();
    assert_eq!(asked, all);
}

/// JSON over HTTP/1.1, with and without TLS.
#[tokio::test]
async fn every_call_over_http1_needs_its_permission() {
    let guarded = Guarded::start();
    let credentials = Credentials::make(&guarded).await;
    for (at, key) in credentials.each() {
        for step in requests() {
            let body = step.request.to_string();
            let key = key.map_or_else(String::new, |key| {
                format!("authorization: Bearer {key}\r\n")
            });
            let request = format!(
                "POST {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{key}\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                url(step.rpc),
                body.len()
            );
            let answer = guarded.daemon.raw(request.as_bytes());
            let answer = String::from_utf8(answer).unwrap();
            let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            let body = serde_json::from_str(body).unwrap_or(Value::Null);
            let code = from_http(step.rpc, status, &body).code;
            credentials.check(at, step.rpc, &code);
        }
        for (url, what) in [
            ("/v1/events/sse?owner_id=o", "events"),
            ("/v1/watch/sse?prefix=m", "watch"),
            ("/metrics", "metrics"),
            ("/v1/health", "health"),
        ] {
            let status = get_status(&guarded.daemon, url, key);
            let code = match status {
                200 => "OK",
                401 => "UNAUTHENTICATED",
                403 => "PERMISSION_DENIED",
                other => panic!("{what}: {other}"),
            };
            credentials.check(at, what, code);
        }
    }
}

/// JSON over HTTP/2 with TLS.
#[tokio::test]
async fn every_call_over_http2_needs_its_permission() {
    let guarded = Guarded::start();
    let credentials = Credentials::make(&guarded).await;
    for (at, key) in credentials.each() {
        for step in requests() {
            let mut command = Command::new("curl");
            command
                .args(["-sS", "-k", "--http2", "--max-time", "30"])
                .args(["-w", "\n%{http_code}", "--data-binary"])
                .arg(step.request.to_string())
                .args(["-H", "content-type: application/json"]);
            if let Some(key) = key {
                command.args(["-H", &format!("authorization: Bearer {key}")]);
            }
            command.arg(format!("https://{}{}", guarded.daemon.web, url(step.rpc)));
            let output = command.output().expect("curl is needed for this test");
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {error}", step.rpc);
            let text = String::from_utf8(output.stdout).unwrap();
            let (body, status) = text.rsplit_once('\n').unwrap();
            let body = serde_json::from_str(body).unwrap_or(Value::Null);
            let code = from_http(step.rpc, status.parse().unwrap(), &body).code;
            credentials.check(at, step.rpc, &code);
        }
    }
}

/// JSON over HTTP/3.
#[tokio::test]
async fn every_call_over_http3_needs_its_permission() {
    let guarded = Guarded::start();
    let credentials = Credentials::make(&guarded).await;
    for (at, key) in credentials.each() {
        let asked: Vec<Value> = requests()
            .iter()
            .map(|step| {
                let mut headers = json!({"content-type": "application/json"});
                if let Some(key) = key {
                    headers["authorization"] = json!(format!("Bearer {key}"));
                }
                json!({"path": url(step.rpc), "body": step.request.to_string(), "headers": headers})
            })
            .collect();
        let input =
            json!({"mode": "requests", "port": guarded.daemon.h3.port(), "requests": asked});
        let answers = python_script("quic.py", &input);
        let answers = answers.as_array().unwrap();
        assert_eq!(answers.len(), asked.len());
        for (answer, step) in answers.iter().zip(requests()) {
            let body = serde_json::from_str(answer["body"].as_str().unwrap());
            let status = answer["status"].as_u64().unwrap();
            let code = from_http(step.rpc, status, &body.unwrap_or(Value::Null)).code;
            credentials.check(at, step.rpc, &code);
        }
    }
}

/// gRPC: unary calls, streams, operations of a session, and the other services.
#[tokio::test]
async fn every_call_over_grpc_needs_its_permission() {
    let guarded = Guarded::start();
    let credentials = Credentials::make(&guarded).await;
    let mut raw = tonic::client::Grpc::new(guarded.daemon.channel().await);
    let mut client = guarded.client().await;
    let mut cluster = ClusterClient::new(guarded.daemon.channel().await);
    let mut auth = guarded.auth().await;
    let code = |result: Result<(), Status>| match result {
        Ok(()) => "OK".to_owned(),
        Err(status) => code_name(status.code()),
    };
    for (at, key) in credentials.each() {
        for step in requests() {
            let answer = tonic_call(&mut raw, &step, key).await;
            credentials.check(at, step.rpc, &answer.code);
        }
        let chunks = tokio_stream::iter([acquire("o", "m:/a")]);
        let chunks = client.acquire_stream(with(chunks, key)).await;
        credentials.check(at, "AcquireStream", &code(chunks.map(drop)));
        let subscribe = v1::SubscribeRequest {
            owner_id: "o".to_owned(),
        };
        let subscribed = client.subscribe(with(subscribe, key)).await;
        credentials.check(at, "Subscribe", &code(subscribed.map(drop)));
        let watch = v1::WatchRequest {
            prefix: "m".to_owned(),
            snapshot: false,
        };
        let watched = client.watch(with(watch, key)).await;
        credentials.check(at, "Watch", &code(watched.map(drop)));
        for (what, found) in session(&mut client, key).await {
            credentials.check(at, what, &found);
        }
        let status = cluster.status(with(StatusRequest {}, key)).await;
        credentials.check(at, "Status", &code(status.map(drop)));
        let backup = cluster.backup(with(BackupRequest::default(), key)).await;
        credentials.check(at, "Backup", &code(backup.map(drop)));
        let table = auth.read_table(with(ReadTableRequest {}, key)).await;
        credentials.check(at, "ReadTable", &code(table.map(drop)));
        let nothing = ChangeTableRequest::default();
        let change = auth.change_table(with(nothing, key)).await;
        credentials.check(at, "ChangeTable", &code(change.map(drop)));
        let me = auth.who_am_i(with(WhoAmIRequest {}, key)).await;
        let is_known = credentials.0[at].2 != Some("UNAUTHENTICATED");
        assert_eq!(me.is_ok(), is_known, "{}", credentials.0[at].0);
    }
}

/// Each operation of a session, and its code.
async fn session(
    client: &mut PathLockClient<Channel>,
    key: Option<&str>,
) -> Vec<(&'static str, String)> {
    let operations = [
        (
            "Acquire in a session",
            Op::Acquire(acquire("o", "m:/a").into()),
        ),
        (
            "AssertFencing in a session",
            Op::AssertFencing(v1::AssertFencingRequest {
                owner_id: "o".to_owned(),
                fencing_token: 1,
                paths: vec!["m:/a".to_owned()],
            }),
        ),
        (
            "Renew in a session",
            Op::Renew(v1::RenewRequest {
                owner_id: "o".to_owned(),
                ttl_ms: 60_000,
                ..Default::default()
            }),
        ),
        (
            "Release in a session",
            Op::Release(v1::ReleaseLocksRequest {
                owner_id: "o".to_owned(),
                ..Default::default()
            }),
        ),
        (
            "ReleaseAll in a session",
            Op::ReleaseAll(v1::ReleaseAllRequest {
                owner_id: "o".to_owned(),
                ..Default::default()
            }),
        ),
    ];
    let names = operations.each_ref().map(|(name, _)| *name);
    let requests: Vec<_> = operations
        .into_iter()
        .zip(1..)
        .map(|((_, op), id)| v1::SessionRequest { id, op: Some(op) })
        .collect();
    let opened = client
        .session(with(tokio_stream::iter(requests), key))
        .await;
    let mut answers = match opened {
        Ok(answers) => answers.into_inner(),
        Err(status) => {
            let code = code_name(status.code());
            return names.map(|name| (name, code.clone())).to_vec();
        }
    };
    let mut found = Vec::new();
    while let Some(answer) = answers.next().await {
        let answer = answer.unwrap();
        let Some(at) = answer.id.checked_sub(1) else {
            continue;
        };
        let code = match answer.result.unwrap() {
            OpResult::Error(error) => {
                code_name(tonic::Code::from_i32(i32::try_from(error.code).unwrap()))
            }
            _ => "OK".to_owned(),
        };
        found.push((names[usize::try_from(at).unwrap()], code));
    }
    assert_eq!(found.len(), names.len());
    found
}

/// A refusal names the principal, the missing verb and the place.
#[tokio::test]
async fn a_refusal_names_the_missing_verb() {
    let guarded = Guarded::start();
    let (_, key) = guarded.key("ci", 0).await;
    guarded.grant("key:ci", &["share"], "ci:/a").await;
    let mut client = guarded.client().await;
    let refused = client
        .acquire(with(acquire("o", "ci:/a"), Some(&key)))
        .await;
    let refused = refused.unwrap_err();
    for part in ["key:ci", "`lock`", "ci:/a", "tenure auth grant"] {
        assert!(refused.message().contains(part), "{}", refused.message());
    }
    let mut shared = acquire("o", "ci:/a/b");
    shared.requests[0].mode = v1::Mode::Read.into();
    let granted = client.acquire(with(shared.clone(), Some(&key))).await;
    assert_eq!(granted.unwrap().into_inner().status, 0);
    shared.requests[0].path = "ci:/b".to_owned();
    let refused = client.acquire(with(shared, Some(&key))).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
}

/// Two principals with the same owner id and the same idempotency key never meet.
#[tokio::test]
async fn an_owner_belongs_to_its_principal() {
    let guarded = Guarded::start();
    let mut keys = Vec::new();
    for name in ["one", "two"] {
        keys.push(guarded.key(name, 0).await.1);
        let to = format!("key:{name}");
        guarded.grant(&to, &["lock", "observe"], "w").await;
    }
    let (one, two) = (Some(keys[0].as_str()), Some(keys[1].as_str()));
    let mut client = guarded.client().await;
    let mut first = acquire("job", "w:/a");
    first.idempotency_key = "k".to_owned();
    let granted = client.acquire(with(first.clone(), one)).await.unwrap();
    let fence = granted.into_inner().fencing_token;
    // The same owner id and key by another principal: another owner, another key.
    first.no_wait = true;
    let answer = client.acquire(with(first, two)).await.unwrap().into_inner();
    assert_eq!(answer.status(), v1::AcquireStatus::Conflict);
    assert_eq!(answer.owner, "job@key:one");
    let renew = |owner: &str| v1::RenewRequest {
        owner_id: owner.to_owned(),
        ttl_ms: 1,
        ..Default::default()
    };
    let release = |owner: &str| v1::ReleaseAllRequest {
        owner_id: owner.to_owned(),
        ..Default::default()
    };
    let renewed = client.renew(with(renew("job"), two)).await.unwrap();
    assert_eq!(renewed.into_inner().status(), v1::RenewStatus::Lost);
    client.release_all(with(release("job"), two)).await.unwrap();
    for refused in [
        client
            .renew(with(renew("job@key:one"), two))
            .await
            .map(drop),
        client
            .release_all(with(release("job@key:one"), two))
            .await
            .map(drop),
        client
            .acquire(with(acquire("job@key:one", "w:/b"), two))
            .await
            .map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        assert!(refused.message().contains("`impersonate`"), "{refused}");
    }
    // Nothing has changed for the first principal, which sees its own id without a suffix.
    let assert = v1::AssertFencingRequest {
        owner_id: "job".to_owned(),
        fencing_token: fence,
        paths: vec!["w:/a".to_owned()],
    };
    let valid = client.assert_fencing(with(assert, one)).await.unwrap();
    assert_eq!(valid.into_inner().status(), v1::AssertStatus::Ok);
    let inspect = v1::InspectPathRequest {
        path: "w:/a".to_owned(),
    };
    let seen = client.inspect_path(with(inspect, one)).await.unwrap();
    assert_eq!(seen.into_inner().write_owner, "job");
    // With the verb the second one may act for the first.
    guarded.grant("key:two", &["impersonate"], "*").await;
    client
        .release_all(with(release("job@key:one"), two))
        .await
        .unwrap();
    let answer = client.acquire(with(acquire("job", "w:/a"), two)).await;
    let answer = answer.unwrap().into_inner();
    assert_eq!(answer.status(), v1::AcquireStatus::Ok);
}

/// Dump, list, explain, inspect, policies and watch show what the caller may observe.
#[tokio::test]
async fn a_caller_sees_what_it_may_observe() {
    let guarded = Guarded::start();
    let (_, key) = guarded.key("viewer", 0).await;
    guarded.grant("key:viewer", &["observe"], "a").await;
    let (root, viewer) = (Some(guarded.root.as_str()), Some(key.as_str()));
    let mut client = guarded.client().await;
    let watch = v1::WatchRequest {
        prefix: "a".to_owned(),
        snapshot: false,
    };
    let mut changes = client
        .watch(with(watch, viewer))
        .await
        .unwrap()
        .into_inner();
    for path in ["b:/x", "a:/x"] {
        client
            .acquire(with(acquire("o", path), root))
            .await
            .unwrap();
    }
    let change = changes.next().await.unwrap().unwrap();
    assert_eq!((change.path.as_str(), change.id), ("a:/x", 1));
    assert_eq!(change.owner, "o@key:root");
    let foreign = v1::WatchRequest {
        prefix: "b".to_owned(),
        snapshot: false,
    };
    let refused = client.watch(with(foreign, viewer)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    let mut paths = Vec::new();
    let mut cursor = Vec::new();
    loop {
        let dump = v1::DumpLocksRequest {
            cursor,
            owner_page: 512,
            ..Default::default()
        };
        let page = client.dump_locks(with(dump, viewer)).await.unwrap();
        let page = page.into_inner();
        paths.extend(page.entries.into_iter().map(|entry| entry.path));
        if page.done {
            break;
        }
        cursor = page.next_cursor;
    }
    assert_eq!(paths, ["a:/x"]);
    let list = v1::ListOwnerLocksRequest {
        owner_id: "o@key:root".to_owned(),
        ..Default::default()
    };
    let listed = client.list_owner_locks(with(list, viewer)).await.unwrap();
    let listed: Vec<_> = listed
        .into_inner()
        .locks
        .into_iter()
        .map(|lock| lock.path)
        .collect();
    assert_eq!(listed, ["a:/x"]);
    for name in ["a:/p", "b:/p"] {
        let policy = v1::SetNamespacePolicyRequest {
            namespace: name.to_owned(),
            algorithm: 3,
            ..Default::default()
        };
        client
            .set_namespace_policy(with(policy, root))
            .await
            .unwrap();
    }
    let rows = client
        .list_namespace_policies(with(v1::ListNamespacePoliciesRequest::default(), viewer))
        .await
        .unwrap();
    let rows: Vec<_> = rows
        .into_inner()
        .rows
        .into_iter()
        .map(|row| row.namespace)
        .collect();
    assert_eq!(rows, ["a:/p"]);
}

/// A holder at a place that the caller may not see is not named.
#[tokio::test]
async fn a_blocker_elsewhere_is_not_named() {
    let guarded = Guarded::start();
    let (_, key) = guarded.key("ci", 0).await;
    guarded.grant("key:ci", &["lock"], "v:/a/b").await;
    let (root, ci) = (Some(guarded.root.as_str()), Some(key.as_str()));
    let mut client = guarded.client().await;
    client
        .acquire(with(acquire("secret", "v:/a"), root))
        .await
        .unwrap();
    let mut wanted = acquire("job", "v:/a/b/c");
    wanted.no_wait = true;
    let answer = client.acquire(with(wanted, ci)).await.unwrap().into_inner();
    assert_eq!(answer.status(), v1::AcquireStatus::Conflict);
    let text = format!("{answer:?}");
    assert!(!text.contains("secret"), "{text}");
    assert_eq!(answer.owner, "(no access)");
}

/// Open streams end when the key of their caller is revoked, or when its right is.
#[tokio::test]
async fn revocation_ends_open_streams() {
    let guarded = Guarded::start();
    let mut client = guarded.client().await;
    for what in ["the key", "the grant"] {
        let name = what.replace(' ', "-");
        let (id, key) = guarded.key(&name, 0).await;
        let to = format!("key:{name}");
        let verbs = ["observe", "lock"];
        guarded.grant(&to, &verbs, "r").await;
        let key = Some(key.as_str());
        let watch = v1::WatchRequest {
            prefix: "r".to_owned(),
            snapshot: true,
        };
        let mut watch = client.watch(with(watch, key)).await.unwrap().into_inner();
        watch.next().await.unwrap().unwrap();
        let subscribe = v1::SubscribeRequest {
            owner_id: "o".to_owned(),
        };
        let subscribed = client.subscribe(with(subscribe, key)).await;
        let mut events = subscribed.unwrap().into_inner();
        let (operations, requests) = tokio::sync::mpsc::channel(4);
        let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
        let mut session = client
            .session(with(requests, key))
            .await
            .unwrap()
            .into_inner();
        let take = |id, path: &str| v1::SessionRequest {
            id,
            op: Some(Op::Acquire(acquire("o", path).into())),
        };
        operations.send(take(1, "r:/a")).await.unwrap();
        let taken = session.next().await.unwrap().unwrap().result.unwrap();
        assert!(matches!(taken, OpResult::Acquire(_)), "{taken:?}");

        let begun = Instant::now();
        if what == "the key" {
            guarded.remove_key(id).await;
        } else {
            let revoke = vec![grant(&to, &verbs, "r")];
            guarded
                .change(ChangeTableRequest {
                    revoke,
                    ..Default::default()
                })
                .await;
        }
        // The change was answered: from here on nothing is decided by the older right.
        let after = client.acquire(with(acquire("p", "r:/b"), key)).await;
        let expected = match what {
            "the key" => tonic::Code::Unauthenticated,
            _ => tonic::Code::PermissionDenied,
        };
        assert_eq!(after.unwrap_err().code(), expected, "{what}");
        let ended = loop {
            match watch.next().await.unwrap() {
                Ok(_) => {}
                Err(status) => break status,
            }
        };
        assert_eq!(ended.code(), expected, "{what}");
        let ended = events.next().await.unwrap().unwrap_err();
        assert_eq!(ended.code(), expected, "{what}");
        // A session ends with its key; without a right its operations are refused.
        let _ = operations.send(take(2, "r:/c")).await;
        match session.next().await.unwrap() {
            Err(status) => assert_eq!(status.code(), expected, "{what}"),
            Ok(answer) => {
                let OpResult::Error(error) = answer.result.unwrap() else {
                    panic!("an operation was carried out after the revocation of {what}");
                };
                assert_eq!(error.code, u32::try_from(i32::from(expected)).unwrap());
            }
        }
        assert!(begun.elapsed() < LONG);
    }
}

/// Without a configured mode, clients on loopback need no key, as with release 0.1.0; a key works
/// too, and a foreign token is ignored.
#[tokio::test]
async fn loopback_needs_no_key_by_default() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let root = root_key(data.path());
    let mode = std::os::unix::fs::MetadataExt::mode(
        &std::fs::metadata(data.path().join("root.key")).unwrap(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let mut auth = AuthClient::new(daemon.channel().await);
    for (key, principal) in [
        (None, "anonymous"),
        (Some("s3cret"), "anonymous"),
        (Some(root.as_str()), "key:root"),
    ] {
        let me = auth.who_am_i(with(WhoAmIRequest {}, key)).await.unwrap();
        let me = me.into_inner();
        assert_eq!((me.principal.as_str(), me.administrator), (principal, true));
    }
    let wrong = ApiKey::generate().unwrap();
    let me = auth
        .who_am_i(with(WhoAmIRequest {}, Some(wrong.reveal())))
        .await;
    assert_eq!(me.unwrap_err().code(), tonic::Code::Unauthenticated);
}

/// The table survives a restart, and the first key is created once.
#[tokio::test]
async fn keys_survive_a_restart() {
    let guarded = Guarded::start();
    let (_, key) = guarded.key("ci", 0).await;
    let Guarded { data, daemon, root } = guarded;
    daemon.kill();
    let daemon = Daemon::start_with(data.path(), &[("TENURE_LOOPBACK", "authenticated")]);
    assert_eq!(root_key(data.path()), root);
    let mut auth = AuthClient::new(daemon.channel().await);
    let begun = Instant::now();
    let me = loop {
        match auth.who_am_i(with(WhoAmIRequest {}, Some(&key))).await {
            Ok(me) => break me.into_inner(),
            // The node has not read the table yet.
            Err(status) if status.code() == tonic::Code::Unavailable => {
                assert!(begun.elapsed() < LONG);
            }
            Err(status) => panic!("{status}"),
        }
    };
    assert_eq!(me.principal, "key:ci");
}

/// The commands: create, grant, check, plan, apply, rotate, revoke, whoami, ls.
#[tokio::test]
async fn the_commands_manage_keys_and_grants() {
    let guarded = Guarded::start();
    let root = Some(guarded.root.as_str());
    let text = |output: &Output| String::from_utf8(output.stdout.clone()).unwrap();
    let ok = |words: &[&str]| {
        let output = guarded.tenure(root, words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {error}");
        text(&output)
    };
    let refused = guarded.tenure(None, &["auth", "whoami"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(ok(&["auth", "whoami"]).starts_with("key:root  (administrator)"));
    let key = ok(&["auth", "key", "create", "ci"]);
    let key = key.trim();
    ok(&["auth", "grant", "key:ci", "lock,observe", "ci:/"]);
    let allowed = ok(&["auth", "check", "key:ci", "lock", "ci:/build", "--json"]);
    let allowed: Value = serde_json::from_str(&allowed).unwrap();
    assert_eq!(
        (&allowed["allowed"], &allowed["by"]["at"]),
        (&json!(true), &json!("ci:/"))
    );
    let denied = guarded.tenure(root, &["auth", "check", "key:ci", "break", "ci:/build"]);
    assert_eq!(denied.status.code(), Some(1));
    let me = guarded.tenure(Some(key), &["auth", "whoami", "--json"]);
    let me: Value = serde_json::from_str(&text(&me)).unwrap();
    assert_eq!(me["principal"], "key:ci");
    let locked = guarded.tenure(Some(key), &["run", "ci:/build", "--", "true"]);
    let error = String::from_utf8_lossy(&locked.stderr).into_owned();
    assert_eq!(locked.status.code(), Some(0), "{error}");
    let denied = guarded.tenure(Some(key), &["auth", "key", "ls"]);
    assert_eq!(denied.status.code(), Some(125));

    let file = guarded.data.path().join("auth.toml");
    let root_row = "[[grant]]\nto = 'key:root'\nverbs = ['*']\n";
    let name = file.to_str().unwrap();
    std::fs::write(&file, "[[grant]]\nto = 'key:ci'\nverbs = ['share']\n").unwrap();
    let lockout = guarded.tenure(root, &["auth", "apply", name]);
    assert_eq!(lockout.status.code(), Some(125));
    let error = String::from_utf8_lossy(&lockout.stderr).into_owned();
    assert!(error.contains("auth"), "{error}");
    let wanted = format!(
        "{root_row}[[grant]]\nto = 'group:ops'\nverbs = ['break']\n[group]\nops = ['key:ci']\n"
    );
    std::fs::write(&file, wanted).unwrap();
    let plan = guarded.tenure(root, &["auth", "plan", name]);
    assert_eq!(plan.status.code(), Some(1));
    assert!(text(&plan).contains("+ group:ops"), "{}", text(&plan));
    ok(&["auth", "apply", name]);
    assert_eq!(ok(&["auth", "plan", name]), "no difference\n");
    ok(&["auth", "check", "key:ci", "break", "x:/y"]);
    assert!(ok(&["auth", "ls"]).contains("group:ops = key:ci"));

    let next = ok(&["auth", "key", "rotate", "ci", "--json"]);
    let next: Value = serde_json::from_str(&next).unwrap();
    let older = next["older"][0].as_str().unwrap();
    let secret = next["secret"].as_str().unwrap();
    for valid in [key, secret] {
        let me = guarded.tenure(Some(valid), &["auth", "whoami"]);
        assert_eq!(me.status.code(), Some(0));
    }
    ok(&["auth", "key", "revoke", older]);
    let codes =
        [key, secret].map(|key| guarded.tenure(Some(key), &["auth", "whoami"]).status.code());
    assert_eq!(codes, [Some(125), Some(0)]);
}

/// `tenure auth reset` replaces a lost administrator's key at the next start.
#[tokio::test]
async fn a_reset_creates_a_new_administrator() {
    let guarded = Guarded::start();
    let Guarded { data, daemon, root } = guarded;
    daemon.kill();
    let reset = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["auth", "reset", "--data-dir"])
        .arg(data.path())
        .output()
        .unwrap();
    assert_eq!(reset.status.code(), Some(0));
    let daemon = Daemon::start_with(data.path(), &[("TENURE_LOOPBACK", "authenticated")]);
    let begun = Instant::now();
    let fresh = loop {
        let fresh = root_key(data.path());
        if fresh != root {
            break fresh;
        }
        assert!(begun.elapsed() < LONG, "the key was not replaced");
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut auth = AuthClient::new(daemon.channel().await);
    let me = auth.who_am_i(with(WhoAmIRequest {}, Some(&fresh))).await;
    assert!(me.unwrap().into_inner().administrator);
    let older = auth.who_am_i(with(WhoAmIRequest {}, Some(&root))).await;
    assert_eq!(older.unwrap_err().code(), tonic::Code::Unauthenticated);
    assert!(!data.path().join("auth-reset").exists());
}

/// The kernel says who connects to the Unix socket: a process of the daemon's user administrates,
/// without a key. Its file is gone when the daemon has stopped.
#[tokio::test]
async fn the_unix_socket_knows_its_user() {
    let guarded = Guarded::start();
    let socket = guarded.data.path().join("tenure.sock");
    let url = format!("unix://{}", socket.display());
    let endpoint = tonic::transport::Endpoint::from_shared(url.clone()).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let mut auth = AuthClient::new(channel.clone());
    let me = auth.who_am_i(WhoAmIRequest {}).await.unwrap().into_inner();
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(
        (me.principal, me.administrator),
        (format!("unix:{uid}"), true)
    );
    let mut client = PathLockClient::new(channel);
    let granted = client.acquire(acquire("o", "u:/a")).await.unwrap();
    assert_eq!(granted.into_inner().status(), v1::AcquireStatus::Ok);
    let inspect = v1::InspectPathRequest {
        path: "u:/a".to_owned(),
    };
    let mut other = guarded.client().await;
    let seen = other.inspect_path(with(inspect, Some(&guarded.root))).await;
    let seen = seen.unwrap().into_inner().write_owner;
    assert_eq!(seen, format!("o@unix:{uid}"));
    let shown = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["auth", "key", "ls", "--url", &url])
        .env_remove("TENURE_CLIENT_AUTH_TOKEN")
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("key:root"), "{shown}");
    guarded.daemon.terminate();
    assert!(!socket.exists());
}

/// Forced releases, policy changes, changes of permissions and backups are lines of the audit log,
/// refused ones too; a forged line is noticed.
#[tokio::test]
async fn privileged_calls_are_in_the_audit_log() {
    let guarded = Guarded::start();
    let root = Some(guarded.root.as_str());
    let (_, poor) = guarded.key("poor", 0).await;
    let mut client = guarded.client().await;
    let force = || v1::ForceReleaseRequest {
        victim_id: "amy".to_owned(),
        ..Default::default()
    };
    client.force_release(with(force(), root)).await.unwrap();
    let denied = client.force_release(with(force(), Some(&poor))).await;
    assert_eq!(denied.unwrap_err().code(), tonic::Code::PermissionDenied);
    let policy = v1::SetNamespacePolicyRequest {
        namespace: "p".to_owned(),
        algorithm: 3,
        ..Default::default()
    };
    client
        .set_namespace_policy(with(policy, root))
        .await
        .unwrap();
    let mut cluster = ClusterClient::new(guarded.daemon.channel().await);
    let backup = with(BackupRequest::default(), root);
    drop(cluster.backup(backup).await.unwrap());
    let file = guarded.data.path().join("audit.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let found: Vec<_> = lines
        .iter()
        .map(|line| {
            let part = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            (part("principal"), part("action"), part("result"))
        })
        .collect();
    let expected = [
        ("key:root", "auth", "OK"),
        ("key:root", "force_release", "OK"),
        ("key:poor", "force_release", "PERMISSION_DENIED"),
        ("key:root", "set_namespace_policy", "OK"),
        ("key:root", "backup", "OK"),
    ];
    let expected = expected.map(|(one, two, three)| (one.into(), two.into(), three.into()));
    assert_eq!(found, expected);
    assert!(!text.contains(&poor), "no secret is written");
    let verify = || {
        let data = guarded.data.path().to_str().unwrap();
        let output = guarded.tenure(None, &["audit", "verify", "--data-dir", data]);
        output.status.code()
    };
    assert_eq!(verify(), Some(0));
    std::fs::write(&file, text.replace("key:poor", "key:root")).unwrap();
    assert_eq!(verify(), Some(1));
}
