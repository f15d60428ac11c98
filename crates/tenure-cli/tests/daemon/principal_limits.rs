//! Quotas and activity limits of principals, owner ids of grants, tokens of an identity provider, and
//! what the audit log says of refused calls and of calls in the name of others.

use std::process::Output;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use tenure_wire::auth::auth_client::AuthClient;
use tenure_wire::auth::{ChangeTableRequest, Grant, WhoAmIRequest};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tenure_wire::v1::session_request::Op;
use tenure_wire::v1::session_response::Result as OpResult;
use tonic::{Code, Status};

use super::permissions::{Guarded, acquire, grant, root_key, with};
use super::support::Daemon;

/// A daemon with the key `ci`, which may lock everything.
async fn with_ci() -> (Guarded, String) {
    let guarded = Guarded::start();
    let (_, ci) = guarded.key("ci", 0).await;
    guarded.grant("key:ci", &["lock", "observe"], "*").await;
    (guarded, ci)
}

fn limit(guarded: &Guarded, words: &[&str]) {
    let words: Vec<&str> = ["auth", "limit"].iter().chain(words).copied().collect();
    let output = guarded.tenure(Some(&guarded.root), &words);
    assert!(output.status.success(), "{words:?}: {}", errors(&output));
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn take(guarded: &Guarded, key: &str, owner: &str, path: &str) -> Result<i32, Status> {
    let mut client = guarded.client().await;
    let answer = client
        .acquire(with(acquire(owner, path), Some(key)))
        .await?;
    Ok(answer.into_inner().status)
}

/// Sends a JSON call; returns the status, the headers and the body.
fn post(daemon: &Daemon, key: &str, url: &str, body: &Value) -> (u16, String, Value) {
    let body = body.to_string();
    let request = format!(
        "POST {url} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = String::from_utf8(daemon.raw(request.as_bytes())).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = serde_json::from_str(body).unwrap_or(Value::Null);
    (status, head.to_ascii_lowercase(), body)
}

/// A quota refuses in every transport, names the command that raises it, counts what a restart has
/// kept, and ends when it is raised.
#[tokio::test]
async fn a_quota_is_exact_in_every_transport_and_after_a_restart() {
    let (guarded, ci) = with_ci().await;
    limit(&guarded, &["everyone", "paths=2"]);
    take(&guarded, &ci, "a", "q:/n/1").await.unwrap();
    take(&guarded, &ci, "b", "q:/n/2").await.unwrap();

    let refused = take(&guarded, &ci, "c", "q:/n/3").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let advice = "tenure auth limit key:ci paths=NUMBER";
    assert!(refused.message().contains(advice), "{refused}");
    let json = json!({"ownerId": "c", "ttlMs": 60000, "requests": [{"path": "q:/n/3"}]});
    let (status, _, body) = post(&guarded.daemon, &ci, "/v1/acquire", &json);
    assert_eq!(status, 429, "{body}");
    assert_eq!(body["error"]["code"], "RESOURCE_EXHAUSTED");
    let operation = v1::SessionRequest {
        id: 1,
        op: Some(Op::Acquire(acquire("c", "q:/n/3").into())),
    };
    let stream = tokio_stream::iter([operation]);
    let mut client = guarded.client().await;
    let session = client.session(with(stream, Some(&ci))).await.unwrap();
    let answer = session.into_inner().message().await.unwrap().unwrap();
    match answer.result {
        Some(OpResult::Error(error)) => assert_eq!(error.code, 8, "{}", error.message),
        other => panic!("{other:?}"),
    }
    let chunks = tokio_stream::iter([acquire("c", "q:/n/3")]);
    let refused = client.acquire_stream(with(chunks, Some(&ci))).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);

    // Another namespace and another principal have their own counts.
    take(&guarded, &ci, "c", "q:/other/1").await.unwrap();
    let root = guarded.root.clone();
    take(&guarded, &root, "c", "q:/n/4").await.unwrap();

    let Guarded { data, daemon, root } = guarded;
    daemon.kill();
    let daemon = Daemon::start_with(data.path(), &[("TENURE_LOOPBACK", "authenticated")]);
    let guarded = Guarded { data, daemon, root };
    let refused = take(&guarded, &ci, "c", "q:/n/3").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    limit(&guarded, &["key:ci", "paths=3", "q:/n"]);
    take(&guarded, &ci, "c", "q:/n/3").await.unwrap();
    let refused = take(&guarded, &ci, "d", "q:/n/5").await.unwrap_err();
    assert!(refused.message().contains("may have 3"), "{refused}");

    let listed = guarded.tenure(Some(&guarded.root), &["auth", "ls"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("everyone  limit paths=2  at *"), "{listed}");
    assert!(
        listed.contains("key:ci  limit paths=3  at q:/n"),
        "{listed}"
    );
    let output = std::process::Command::new("curl")
        .args([
            "-sS",
            "-H",
            &format!("authorization: Bearer {}", guarded.root),
        ])
        .arg(format!("http://{}/metrics", guarded.daemon.web))
        .output()
        .unwrap();
    let metrics = String::from_utf8(output.stdout).unwrap();
    let line = "tenure_limits_refused_total{limit=\"paths\"} 2";
    assert!(metrics.contains(line), "{metrics}");
}

/// A rate of one request a second refuses acquires with the time to wait. Renewals and releases of
/// the caller's own locks pass all the same.
#[tokio::test]
async fn a_rate_refuses_acquires_and_costs_no_holder_its_lock() {
    let (guarded, ci) = with_ci().await;
    take(&guarded, &ci, "holder", "r:/n/1").await.unwrap();
    limit(&guarded, &["key:ci", "requests=1"]);
    // It costs 63 requests, so the next ones are refused for a minute.
    let mut large = acquire("large", "r:/n/0");
    large.requests = (0..1000)
        .map(|at| v1::LockRequest {
            path: format!("r:/n/large/{at}"),
            ..Default::default()
        })
        .collect();
    let mut client = guarded.client().await;
    client.acquire(with(large, Some(&ci))).await.unwrap();
    let refused = take(&guarded, &ci, "other", "r:/n/x").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("requests=NUMBER"), "{refused}");
    let wait = refused.metadata().get("grpc-retry-pushback-ms").unwrap();
    let wait: u64 = wait.to_str().unwrap().parse().unwrap();
    assert!((1..=63_000).contains(&wait), "{wait}");
    for _ in 0..100 {
        let renew = v1::RenewRequest {
            owner_id: "holder".to_owned(),
            ttl_ms: 60_000,
            ..Default::default()
        };
        client.renew(with(renew, Some(&ci))).await.unwrap();
    }
    let release = v1::ReleaseAllRequest {
        owner_id: "holder".to_owned(),
        ..Default::default()
    };
    client.release_all(with(release, Some(&ci))).await.unwrap();
    let json = json!({"ownerId": "o", "ttlMs": 60000, "requests": [{"path": "r:/n/y"}]});
    let (status, head, body) = post(&guarded.daemon, &ci, "/v1/acquire", &json);
    assert_eq!(status, 429, "{body}");
    assert!(head.contains("retry-after: "), "{head}");
    // Others are not concerned.
    take(&guarded, &guarded.root, "other", "r:/n/z")
        .await
        .unwrap();
    limit(&guarded, &["key:ci", "requests=none"]);
    take(&guarded, &ci, "other", "r:/n/w").await.unwrap();
}

#[tokio::test]
async fn open_streams_and_connections_of_a_principal_are_limited() {
    let (guarded, ci) = with_ci().await;
    limit(&guarded, &["key:ci", "watches=1,subscriptions=1"]);
    let mut client = guarded.client().await;
    let watch = || v1::WatchRequest {
        prefix: "w".to_owned(),
        ..Default::default()
    };
    let subscribe = || v1::SubscribeRequest {
        owner_id: "o".to_owned(),
    };
    let first = client.watch(with(watch(), Some(&ci))).await.unwrap();
    let second = client.watch(with(watch(), Some(&ci))).await.unwrap_err();
    assert_eq!(second.code(), Code::ResourceExhausted, "{second}");
    assert!(second.message().contains("open watches"), "{second}");
    let _events = client
        .subscribe(with(subscribe(), Some(&ci)))
        .await
        .unwrap();
    let second = client.subscribe(with(subscribe(), Some(&ci))).await;
    assert_eq!(second.unwrap_err().code(), Code::ResourceExhausted);
    // The place of a watch that has ended is free again, as soon as the daemon knows.
    drop(first);
    let begun = std::time::Instant::now();
    while client.watch(with(watch(), Some(&ci))).await.is_err() {
        assert!(begun.elapsed() < super::permissions::LONG);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }

    limit(&guarded, &["key:ci", "connections=1"]);
    client
        .acquire(with(acquire("o", "w:/n/1"), Some(&ci)))
        .await
        .unwrap();
    let mut other = guarded.client().await;
    let refused = other.acquire(with(acquire("o", "w:/n/1"), Some(&ci))).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("connections"), "{refused}");
    client
        .acquire(with(acquire("o", "w:/n/1"), Some(&ci)))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_grant_for_some_owner_ids_refuses_others() {
    let guarded = Guarded::start();
    let (_, ci) = guarded.key("ci", 0).await;
    let row = Grant {
        owners: vec!["ci-*".to_owned()],
        ..grant("key:ci", &["lock"], "*")
    };
    guarded
        .change(ChangeTableRequest {
            grant: vec![row],
            ..Default::default()
        })
        .await;
    take(&guarded, &ci, "ci-7", "o:/n/1").await.unwrap();
    let refused = take(&guarded, &ci, "deploy", "o:/n/2").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("--owners deploy"), "{refused}");
    let words = ["auth", "grant", "key:ci", "lock", "*", "--owners", "deploy"];
    let output = guarded.tenure(Some(&guarded.root), &words);
    assert!(output.status.success(), "{}", errors(&output));
    take(&guarded, &ci, "deploy", "o:/n/2").await.unwrap();
    let shown = guarded.tenure(Some(&ci), &["auth", "whoami"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("at *  as ci-*"), "{shown}");
}

fn audit_lines(guarded: &Guarded) -> Vec<Value> {
    let text = std::fs::read_to_string(guarded.data.path().join("audit.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Refused calls, clients that were not let in, and calls in the name of an owner of another
/// principal are lines of the audit log.
#[tokio::test]
async fn denials_and_impersonation_are_audited() {
    let (guarded, ci) = with_ci().await;
    let (_, ops) = guarded.key("ops", 0).await;
    guarded
        .grant("key:ops", &["lock", "impersonate"], "*")
        .await;
    take(&guarded, &ci, "job", "d:/n/1").await.unwrap();

    let mut client = guarded.client().await;
    let force = v1::SetNamespacePolicyRequest {
        namespace: "d:/n".to_owned(),
        algorithm: 3,
        ..Default::default()
    };
    let denied = client.set_namespace_policy(with(force, Some(&ci))).await;
    assert_eq!(denied.unwrap_err().code(), Code::PermissionDenied);
    let foreign = take(&guarded, &ci, "job@key:ops", "d:/n/2").await;
    assert_eq!(foreign.unwrap_err().code(), Code::PermissionDenied);
    let stranger = take(&guarded, "wrong", "job", "d:/n/2").await;
    assert_eq!(stranger.unwrap_err().code(), Code::Unauthenticated);
    let renew = v1::RenewRequest {
        owner_id: "job@key:ci".to_owned(),
        ttl_ms: 60_000,
        ..Default::default()
    };
    client.renew(with(renew, Some(&ops))).await.unwrap();
    take(&guarded, &ops, "own", "d:/n/3").await.unwrap();

    let lines = audit_lines(&guarded);
    let find = |wanted: &[(&str, &str)]| {
        let fits = |line: &&Value| wanted.iter().all(|(name, value)| line[*name] == *value);
        let found = lines.iter().filter(fits).count();
        assert_eq!(found, 1, "{wanted:?} in {lines:#?}");
    };
    find(&[
        ("principal", "key:ci"),
        ("action", "denied"),
        ("call", "Acquire"),
        ("result", "PERMISSION_DENIED"),
    ]);
    find(&[
        ("principal", "key:ci"),
        ("result", "PERMISSION_DENIED"),
        ("namespace", "d:/n"),
    ]);
    find(&[("action", "denied"), ("result", "UNAUTHENTICATED")]);
    find(&[
        ("principal", "key:ops"),
        ("action", "renew_as"),
        ("victim", "job@key:ci"),
        ("result", "OK"),
    ]);
    let own = lines.iter().filter(|line| line["action"] == "acquire_as");
    assert_eq!(own.count(), 0, "own owners are not audited");
    let data = guarded.data.path().to_str().unwrap();
    let verified = guarded.tenure(None, &["audit", "verify", "--data-dir", data]);
    assert!(verified.status.success(), "{}", errors(&verified));
}

/// The private key of RFC 8037, appendix A, as PKCS #8.
fn signing_key() -> EncodingKey {
    let head = [
        0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
    ];
    let secret = [
        0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c,
        0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae,
        0x7f, 0x60,
    ];
    let key: Vec<u8> = head.into_iter().chain(secret).collect();
    EncodingKey::from_ed_der(&key)
}

fn token(subject: &str, valid_s: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let exp = i64::try_from(now.as_secs()).unwrap() + valid_s;
    let claims = json!({"iss": "https://id.example", "aud": "tenure", "sub": subject, "exp": exp});
    let header = Header {
        kid: Some("k1".to_owned()),
        ..Header::new(Algorithm::EdDSA)
    };
    jsonwebtoken::encode(&header, &claims, &signing_key()).unwrap()
}

/// A token of the identity provider proves a principal that grants and owners know; without a grant
/// it may do nothing, and an expired or foreign one is refused.
#[tokio::test]
async fn a_token_of_the_identity_provider_proves_a_principal() {
    let data = tempfile::tempdir().unwrap();
    let jwks = json!({"keys": [{
        "kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": "k1",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    }]});
    let file = data.path().join("jwks.json");
    std::fs::write(&file, jwks.to_string()).unwrap();
    let daemon = Daemon::start_with(
        data.path(),
        &[
            ("TENURE_JWT_ISSUER", "https://id.example"),
            ("TENURE_JWT_AUDIENCE", "tenure"),
            ("TENURE_JWT_JWKS_PATH", file.to_str().unwrap()),
            (
                "TENURE_CLIENT_AUTH_TOKEN",
                "0123456789abcdef0123456789abcdef",
            ),
        ],
    );
    let root = root_key(data.path());
    let guarded = Guarded { data, daemon, root };
    let amy = token("amy", 600);
    let mut auth = AuthClient::new(guarded.daemon.channel().await);
    let me = auth.who_am_i(with(WhoAmIRequest {}, Some(&amy))).await;
    let principal = me.unwrap().into_inner().principal;
    assert_eq!(principal, "jwt:https://id.example/amy");
    let refused = take(&guarded, &amy, "job", "j:/n/1").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    guarded.grant(&principal, &["lock", "observe"], "j:/").await;
    take(&guarded, &amy, "job", "j:/n/1").await.unwrap();

    let mut client = PathLockClient::new(guarded.daemon.channel().await);
    let path = v1::InspectPathRequest {
        path: "j:/n/1".to_owned(),
    };
    let seen = client.inspect_path(with(path, Some(&guarded.root))).await;
    let seen = format!("{:?}", seen.unwrap().into_inner());
    assert!(seen.contains("job@jwt:https://id.example/amy"), "{seen}");

    let expired = take(&guarded, &token("amy", -120), "job", "j:/n/2").await;
    assert_eq!(expired.unwrap_err().code(), Code::Unauthenticated);
    let mut forged = token("amy", 600);
    let cut = forged.len() - 8;
    forged.replace_range(cut..=cut, if &forged[cut..=cut] == "A" { "B" } else { "A" });
    let forged = take(&guarded, &forged, "job", "j:/n/2").await;
    assert_eq!(forged.unwrap_err().code(), Code::Unauthenticated);
    // The console's sessions are for keys and the shared token: a session for a token would name
    // neither.
    let request = |key: &str| {
        let body = json!({ "key": key }).to_string();
        let head = "POST /console/session HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-tenure-console: 1\r\n";
        let request = format!(
            "{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = String::from_utf8(guarded.daemon.raw(request.as_bytes())).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(request(&guarded.root), "200");
    assert_eq!(request(&amy), "401");
    let nothing = client.acquire(acquire("job", "j:/n/2")).await.unwrap_err();
    assert_eq!(
        nothing.code(),
        Code::Unauthenticated,
        "a provider asks for credentials"
    );
}
