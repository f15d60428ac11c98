//! Limits and errors that do not come from a lock, over the wire.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tonic::client::Grpc;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::support::Daemon;
use super::support::http2::Http2;

fn daemon() -> (tempfile::TempDir, Daemon) {
    with(&[])
}

fn with(environment: &[(&str, &str)]) -> (tempfile::TempDir, Daemon) {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(data.path(), environment);
    (data, daemon)
}

fn paths(count: usize) -> Vec<Value> {
    (0..count)
        .map(|n| json!({"path": format!("t:/a/{n}")}))
        .collect()
}

/// R13: 1024 entries are taken, one more is not, wherever a list may be long.
#[test]
fn lists_have_a_limit() {
    let (_data, daemon) = daemon();
    let names = |count: usize| -> Vec<String> { (0..count).map(|n| format!("t:/{n}")).collect() };
    let acquire = |requests: usize, releases: usize| {
        let body = json!({"ownerId": "amy", "ttlMs": 60000, "requests": paths(requests), "releaseRequests": paths(releases)});
        daemon.post("/v1/acquire", &body)
    };
    let release = |count: usize| {
        daemon.post(
            "/v1/release",
            &json!({"ownerId": "amy", "requests": paths(count)}),
        )
    };
    let assert = |count: usize| {
        daemon.post(
            "/v1/assertFencing",
            &json!({"ownerId": "amy", "fencingToken": 1, "paths": names(count)}),
        )
    };
    let domains = |url: &str, count: usize| {
        daemon.post(
            url,
            &json!({"ownerId": "amy", "ttlMs": 60000, "domains": names(count)}),
        )
    };
    assert_eq!(acquire(1024, 0).0, 200);
    assert_eq!(acquire(1000, 24).0, 200);
    assert_eq!(release(1024).0, 200);
    assert_eq!(assert(1024).0, 200);
    let mut refused = vec![
        acquire(1025, 0),
        acquire(1000, 25),
        release(1025),
        assert(1025),
    ];
    for url in [
        "/v1/renew",
        "/v1/releaseAll",
        "/v1/isOwnerAlive",
        "/v1/listOwnerLocks",
    ] {
        assert_eq!(domains(url, 1024).0, 200, "{url}");
        refused.push(domains(url, 1025));
    }
    // Each entry is a namespace string.
    refused.push(daemon.post(
        "/v1/isOwnerAlive",
        &json!({"ownerId": "amy", "domains": ["a:b"]}),
    ));
    for (status, body) in refused {
        assert_eq!(
            (status, &body["error"]["code"]),
            (400, &json!("INVALID_ARGUMENT")),
            "{body}"
        );
    }
}

/// R18: limits of a stream of chunks; an interrupted stream has no effect.
#[tokio::test]
async fn streams_of_chunks_have_limits() {
    let (_data, daemon) = daemon();
    let mut client = PathLockClient::new(daemon.channel().await);
    let chunk = |count: usize, path: &str| v1::AcquireRequest {
        owner_id: "amy".into(),
        ttl_ms: 60_000,
        requests: vec![
            v1::LockRequest {
                path: path.into(),
                ..Default::default()
            };
            count
        ],
        ..Default::default()
    };
    let long = format!("t:/a/{}", "x".repeat(4000));
    let cases = [
        (vec![], Code::InvalidArgument),
        (vec![chunk(1025, "t:/a")], Code::InvalidArgument),
        (vec![chunk(1024, "t:/a"); 65], Code::InvalidArgument),
        (
            vec![chunk(600, &long), chunk(600, &long)],
            Code::ResourceExhausted,
        ),
    ];
    for (chunks, code) in cases {
        let status = client
            .acquire_stream(tokio_stream::iter(chunks))
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }
    // Clients that leave in the middle: some before the daemon has read what they sent, some after.
    for _ in 0..50 {
        let (sender, chunks) = tokio::sync::mpsc::channel(1);
        let mut leaving = client.clone();
        let stream = tokio_stream::wrappers::ReceiverStream::new(chunks);
        let call = tokio::spawn(async move { leaving.acquire_stream(stream).await });
        sender.send(chunk(1, "t:/left")).await.unwrap();
        // The first is under way once there is room for another.
        sender.reserve().await.unwrap().send(chunk(1, "t:/left/x"));
        call.abort();
        let _ = call.await;
        let inspect = v1::InspectPathRequest {
            path: "t:/left".into(),
        };
        let found = client.inspect_path(inspect).await.unwrap().into_inner();
        assert_eq!(found.write_owner, "");
    }
}

/// Messages over 4 MiB, unknown methods, bytes that are no message.
#[tokio::test]
async fn grpc_refuses_what_it_cannot_read() {
    let (_data, daemon) = daemon();
    let channel = daemon.channel().await;
    let mut client = PathLockClient::new(channel.clone());
    let large = v1::IsOwnerAliveRequest {
        owner_id: "a".repeat(4 << 20),
        ..Default::default()
    };
    let status = client.is_owner_alive(large).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let mut raw = Grpc::new(channel);
    for (path, code) in [
        ("/pathlockd.v1.PathLock/NoSuchCall", Code::Unimplemented),
        ("/no.such.Service/Call", Code::Unimplemented),
        // A SubscribeRequest whose owner is no text.
        ("/pathlockd.v1.PathLock/Acquire", Code::Internal),
    ] {
        raw.ready().await.unwrap();
        // Field 1 of an AcquireRequest is a text; this is bytes that are no UTF-8.
        let bytes = v1::DumpLocksRequest {
            cursor: vec![0xff, 0xfe],
            ..Default::default()
        };
        let codec = ProstCodec::<v1::DumpLocksRequest, v1::HealthResponse>::default();
        let path = http::uri::PathAndQuery::from_static(path);
        let status = raw
            .unary(Request::new(bytes), path, codec)
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }
}

/// Everything of an answer that a client can see: status, headers, messages, trailers.
async fn seen(
    client: &mut Http2,
    rpc: &str,
    encoding: Option<&str>,
    pieces: &[&[u8]],
    trailers: Option<http::HeaderMap>,
) -> String {
    let mut request = http::Request::post(format!("http://t/pathlockd.v1.PathLock/{rpc}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(encoding) = encoding {
        request = request.header("grpc-encoding", encoding);
    }
    let (response, mut sender) = client.begin(request.body(()).unwrap()).await;
    for (n, piece) in pieces.iter().enumerate() {
        let is_last = n + 1 == pieces.len() && trailers.is_none();
        // A refusal may come before the rest is sent.
        let _ = sender.send_data(bytes::Bytes::copy_from_slice(piece), is_last);
        // Each piece in a frame, and in a write, of its own.
        tokio::task::yield_now().await;
    }
    if let Some(trailers) = trailers {
        let _ = sender.send_trailers(trailers);
    }
    let (head, mut body) = response.await.unwrap().into_parts();
    let mut shown = format!("{} {}", head.status.as_u16(), headers(&head.headers));
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        bytes.extend_from_slice(&chunk.unwrap());
    }
    if !bytes.is_empty() {
        shown += &format!(" {bytes:?}");
    }
    if let Some(trailers) = body.trailers().await.unwrap() {
        shown += &format!(" {}", headers(&trailers));
    }
    shown
}

fn headers(map: &http::HeaderMap) -> String {
    let mut lines: Vec<String> = map
        .iter()
        .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    lines.join(" ")
}

/// One unary call is read by one set of rules, whatever call it is and however its bytes come.
#[tokio::test]
async fn odd_bodies_get_the_same_answer_from_every_unary_call() {
    let (_data, daemon) = daemon();
    let mut client = Http2::connect(daemon.grpc).await;
    let framed = |flag: u8, message: &[u8]| {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[flag][..], &length, message].concat()
    };
    let refused = |code: u32, text: &str| {
        let text = text.replace(' ', "%20");
        format!("200 content-type=application/grpc grpc-message={text} grpc-status={code}")
    };
    let no_message = framed(0, &[0xff, 0xff]);
    // A call that is made all day, a read, one with a long answer, and one that takes no argument.
    for (rpc, message) in [
        ("Acquire", &b"\x0a\x03amy\x10\xe8\x07"[..]),
        ("IsOwnerAlive", b"\x0a\x03amy"),
        ("DumpLocks", b"\x10\x01"),
        ("Health", b""),
    ] {
        let whole = framed(0, message);
        let twice = [&whole[..], &whole].concat();
        let with_more = [&whole[..], &[0, 0]].concat();
        let granted = seen(&mut client, rpc, None, &[&whole], None).await;
        assert!(
            granted.starts_with("200 content-type=application/grpc [0, ")
                && granted.ends_with("] grpc-status=0"),
            "{granted}"
        );
        let taken: [(Option<&str>, &[&[u8]]); 4] = [
            (Some("identity"), &[&whole]),
            (None, &[&whole[..2], &whole[2..5], &whole[5..]]),
            (None, &[&whole, b""]),
            // The first of two messages counts.
            (None, &[&twice]),
        ];
        for (encoding, pieces) in taken {
            let found = seen(&mut client, rpc, encoding, pieces, None).await;
            assert_eq!(found, granted, "{rpc} {pieces:?}");
        }
        let trailers = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("x-last"),
            http::HeaderValue::from_static("1"),
        )]);
        let found = seen(&mut client, rpc, None, &[&whole], Some(trailers)).await;
        assert_eq!(found, granted, "{rpc} with trailers");
        let odd: [(&[u8], String); 7] = [
            (b"", refused(13, "Missing request message.")),
            (&whole[..4], refused(13, "Unexpected EOF decoding stream.")),
            (&with_more, refused(13, "Unexpected EOF decoding stream.")),
            (
                &[1, 0, 0, 0, 0],
                refused(
                    13,
                    "protocol error: received message with compressed-flag but no grpc-encoding was specified",
                ),
            ),
            (
                &[2, 0, 0, 0, 0],
                refused(
                    13,
                    "protocol error: received message with invalid compression flag: 2 (valid flags are 0 and 1), while sending request",
                ),
            ),
            (
                &[0, 0, 64, 0, 1],
                refused(
                    11,
                    "Error, decoded message length too large: found 4194305 bytes, the limit is: 4194304 bytes",
                ),
            ),
            (
                &no_message,
                refused(13, "failed to decode Protobuf message: invalid varint"),
            ),
        ];
        for (bytes, wanted) in odd {
            let found = seen(&mut client, rpc, None, &[bytes], None).await;
            assert_eq!(found, wanted, "{rpc} {bytes:?}");
        }
        let found = seen(&mut client, rpc, Some("gzip"), &[&whole], None).await;
        assert_eq!(
            found,
            "200 content-type=application/grpc grpc-accept-encoding=identity \
             grpc-message=Content%20is%20compressed%20with%20%60gzip%60%20which%20isn't%20supported grpc-status=12",
            "{rpc}"
        );
    }
}

/// A request that does not arrive ends with the deadline, on every transport.
#[tokio::test]
async fn requests_that_do_not_come_end_with_the_deadline() {
    let (_data, daemon) = with(&[("TENURE_REQUEST_TIMEOUT_MS", "700")]);
    let mut raw = Grpc::new(daemon.channel().await);
    raw.ready().await.unwrap();
    let codec = ProstCodec::<v1::AcquireRequest, v1::AcquireResponse>::default();
    let path = http::uri::PathAndQuery::from_static("/pathlockd.v1.PathLock/Acquire");
    let never = tokio_stream::pending::<v1::AcquireRequest>();
    let status = raw
        .client_streaming(Request::new(never), path, codec)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let mut client = PathLockClient::new(daemon.channel().await);
    let status = client
        .acquire_stream(tokio_stream::pending())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");

    let mut socket = TcpStream::connect(daemon.web).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let head = "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    socket.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = socket.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("DEADLINE_EXCEEDED"), "{answer}");
}

/// A client's deadline counts where it is the shorter one. (Clients of gRPC count it themselves too; this one does not.)
#[tokio::test]
async fn the_clients_deadline_counts() {
    let (_data, daemon) = daemon();
    let mut client = Http2::connect(daemon.grpc).await;
    let request = http::Request::post(format!(
        "http://{}/pathlockd.v1.PathLock/Acquire",
        daemon.grpc
    ))
    .header("content-type", "application/grpc")
    .header("te", "trailers")
    .header("grpc-timeout", "300m")
    .body(())
    .unwrap();
    // The request is never finished.
    let (response, _unfinished) = client.begin(request).await;
    let response = response.await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "4", "{response:?}");
}

/// Calls of one connection beyond its limit wait for their turn; none fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beyond_the_limit_of_a_connection_wait() {
    let (_data, daemon) = with(&[("TENURE_MAX_CONCURRENT_REQUESTS_PER_CONNECTION", "2")]);
    let client = PathLockClient::new(daemon.channel().await);
    // Open streams do not count.
    let mut streams = Vec::new();
    for n in 0..8 {
        let request = v1::SubscribeRequest {
            owner_id: n.to_string(),
        };
        streams.push(client.clone().subscribe(request).await.unwrap());
    }
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..500 {
        let mut client = client.clone();
        calls.spawn(async move {
            let request = v1::AcquireRequest {
                owner_id: format!("o{n}"),
                ttl_ms: 60_000,
                requests: vec![v1::LockRequest {
                    path: format!("t:/{n}"),
                    ..Default::default()
                }],
                ..Default::default()
            };
            client.acquire(request).await.unwrap().into_inner().status()
        });
    }
    while let Some(status) = calls.join_next().await {
        assert_eq!(status.unwrap(), v1::AcquireStatus::Ok);
    }
}

/// R151: a busy group refuses at once, and completes what it accepts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_group_refuses_at_once() {
    let (_data, daemon) = with(&[("TENURE_MAX_INFLIGHT_PER_GROUP", "1")]);
    let client = PathLockClient::new(daemon.channel().await);
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..200 {
        let mut client = client.clone();
        let request = v1::AcquireRequest {
            owner_id: format!("o{n}"),
            ttl_ms: 60_000,
            requests: vec![v1::LockRequest {
                path: format!("t:/one/{n}"),
                ..Default::default()
            }],
            ..Default::default()
        };
        calls.spawn(async move { client.acquire(request).await });
    }
    let (mut done, mut refused) = (0, 0);
    while let Some(answer) = calls.join_next().await {
        match answer.unwrap() {
            Ok(answer) => {
                assert_eq!(answer.into_inner().status(), v1::AcquireStatus::Ok);
                done += 1;
            }
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                assert!(status.message().contains("was not applied"), "{status}");
                refused += 1;
            }
        }
    }
    assert!(done > 0 && refused > 0, "{done} done, {refused} refused");
    let text = daemon.get_text("/metrics").1;
    let line = format!("tenure_holds {done}");
    assert!(
        text.lines().any(|found| found == line),
        "{line} is not in\n{text}"
    );
}

/// R182: if a token is configured, every transport requires it.
#[tokio::test]
async fn credentials_are_asked_for_everywhere() {
    let (_data, daemon) = with(&[("TENURE_CLIENT_AUTH_TOKEN", "s3cret")]);
    for url in [
        "/v1/health",
        "/metrics",
        "/v1/openapi.json",
        "/v1/events/sse?owner_id=a",
        "/v1/nothing",
    ] {
        let (status, body) = daemon.get(url);
        assert_eq!(
            (status, &body["error"]["code"]),
            (401, &json!("UNAUTHENTICATED")),
            "{url}: {body}"
        );
    }
    let mut client = PathLockClient::new(daemon.channel().await);
    let status = client.health(v1::HealthRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    let mut request = Request::new(v1::HealthRequest {});
    request
        .metadata_mut()
        .insert("authorization", "Bearer s3cret".parse().unwrap());
    assert!(client.health(request).await.unwrap().into_inner().ok);
    let answer = daemon.raw(b"GET /v1/health HTTP/1.1\r\nhost: localhost\r\nauthorization: bearer s3cret\r\nconnection: close\r\n\r\n");
    assert!(String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 200 "));
    let check = |token: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command
            .arg("--health-check")
            .env("TENURE_LISTEN", daemon.grpc.to_string())
            .env("TENURE_CLIENT_AUTH_TOKEN", token);
        command.output().unwrap().status.code()
    };
    assert_eq!((check("s3cret"), check("wrong")), (Some(0), Some(1)));
}

/// Beyond loopback the web port accepts only https, and says so.
#[test]
fn beyond_loopback_it_is_https() {
    let (_data, daemon) = with(&[
        ("TENURE_WEB_LISTEN", "0.0.0.0:0"),
        ("TENURE_H3_LISTEN", "0.0.0.0:0"),
        ("TENURE_ALLOW_ANONYMOUS", "true"),
    ]);
    let (status, body) = daemon.get("/v1/health");
    assert_eq!(
        (status, &body["error"]["code"]),
        (400, &json!("FAILED_PRECONDITION")),
        "{body}"
    );
    let output = Command::new("curl")
        .args(["-sSk", "--max-time", "20"])
        .arg(format!("https://127.0.0.1:{}/v1/health", daemon.web.port()))
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        r#"{"ok":true,"detail":"ready"}"#
    );
}

/// The configured certificate is the one that clients see.
#[test]
fn a_configured_certificate_is_used() {
    let files = tempfile::tempdir().unwrap();
    let (certificate, key) = (files.path().join("c.pem"), files.path().join("k.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ])
        .args([
            "-days",
            "2",
            "-subj",
            "/CN=locks.test",
            "-addext",
            "subjectAltName=DNS:locks.test",
        ])
        .arg("-out")
        .arg(&certificate)
        .arg("-keyout")
        .arg(&key)
        .output()
        .expect("openssl is needed for this test");
    assert!(made.status.success(), "{made:?}");
    let (_data, daemon) = with(&[
        ("TENURE_TLS_CERT_PATH", certificate.to_str().unwrap()),
        ("TENURE_TLS_KEY_PATH", key.to_str().unwrap()),
        ("TENURE_WEB_HOSTS", "locks.test"),
    ]);
    let output = Command::new("curl")
        .args(["-sS", "--max-time", "20", "--cacert"])
        .arg(&certificate)
        .arg("--connect-to")
        .arg(format!("locks.test:443:127.0.0.1:{}", daemon.web.port()))
        .arg("https://locks.test/v1/health")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        r#"{"ok":true,"detail":"ready"}"#,
        "{output:?}"
    );
}
