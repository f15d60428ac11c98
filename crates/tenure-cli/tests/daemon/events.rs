//! Event streams: SSE with resume, Subscribe, Watch, slow readers.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;

use super::support::Daemon;
use super::support::foreign::python_script;

fn lock(owner: &str, path: &str) -> Value {
    json!({"ownerId": owner, "ttlMs": 60000, "requests": [{"path": path}]})
}

fn revoke(daemon: &Daemon, owner: &str) {
    let (status, _) = daemon.post("/v1/requestRevoke", &json!({"ownerId": owner}));
    assert_eq!(status, 200);
}

/// One SSE stream, read line by line.
struct Stream {
    lines: BufReader<TcpStream>,
    head: String,
}

impl Stream {
    /// Opens it; what comes later comes after this.
    fn open(daemon: &Daemon, url: &str, last: Option<u64>) -> Stream {
        let mut socket = TcpStream::connect(daemon.web).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let last = last.map_or_else(String::new, |id| format!("last-event-id: {id}\r\n"));
        // HTTP/1.0 has no chunks: the body is what follows the head.
        let request = format!("GET {url} HTTP/1.0\r\nhost: localhost\r\n{last}\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut lines = BufReader::new(socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.contains(" 200 "), "{head}");
        Stream { lines, head }
    }

    /// The next event: its `id:` line and its data.
    fn next(&mut self) -> (u64, Value) {
        let (mut id, mut data) = (None, None);
        loop {
            let mut line = String::new();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "the stream ended"
            );
            let line = line.trim_end();
            if let Some(text) = line.strip_prefix("id: ") {
                assert!(data.is_none(), "the id comes first");
                id = Some(text.parse().unwrap());
            } else if let Some(text) = line.strip_prefix("data: ") {
                data = Some(serde_json::from_str(text).unwrap());
            } else if line.is_empty() {
                if let (Some(id), Some(data)) = (id, data.take()) {
                    return (id, data);
                }
            } else {
                assert!(line.starts_with(':'), "an unknown line: {line:?}");
            }
        }
    }

    /// Whether the stream has ended.
    fn ends(mut self) -> bool {
        let mut rest = String::new();
        loop {
            rest.clear();
            match self.lines.read_line(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

/// The fields of an event, and the position from which a client resumes.
#[test]
fn a_client_that_comes_back_misses_nothing() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut stream = Stream::open(&daemon, "/v1/events/sse?owner_id=amy", None);
    assert!(
        stream.head.contains("content-type: text/event-stream"),
        "{}",
        stream.head
    );
    assert!(
        stream.head.contains("cache-control: no-cache"),
        "{}",
        stream.head
    );
    revoke(&daemon, "amy");
    revoke(&daemon, "bob");
    let (first, event) = stream.next();
    assert_eq!(
        event,
        json!({"id": first, "type": "revoke", "ownerId": "amy"})
    );
    drop(stream);
    // Two more events while no client listens; then it resumes by header, by query, and by both.
    revoke(&daemon, "amy");
    revoke(&daemon, "amy");
    let mut back = Stream::open(&daemon, "/v1/events/sse?owner_id=amy", Some(first));
    let (second, _) = back.next();
    let (third, _) = back.next();
    assert!(first < second && second < third);
    let after = format!("/v1/events/sse?owner_id=amy&after={first}");
    assert_eq!(Stream::open(&daemon, &after, None).next().0, second);
    assert_eq!(Stream::open(&daemon, &after, Some(second)).next().0, third);
    let all = Stream::open(&daemon, "/v1/events/sse?owner_id=amy&after=0", None).next();
    assert_eq!(all.0, first);
    // A position beyond all ids means "from now on", and so does none.
    let mut future = Stream::open(&daemon, "/v1/events/sse?owner_id=amy", Some(1 << 52));
    let mut fresh = Stream::open(&daemon, "/v1/events/sse?owner_id=amy", None);
    revoke(&daemon, "amy");
    let (fourth, _) = future.next();
    assert!(fourth > third);
    assert_eq!(fresh.next().0, fourth);
}

/// R121: ids go on after a restart, so a client that comes back then misses nothing new.
#[test]
fn ids_grow_over_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut stream = Stream::open(&daemon, "/v1/events/sse?owner_id=amy", None);
    revoke(&daemon, "amy");
    let (before, _) = stream.next();
    daemon.kill();
    let daemon = Daemon::start(data.path());
    let mut stream = Stream::open(&daemon, "/v1/events/sse?owner_id=amy", Some(before));
    revoke(&daemon, "amy");
    // Events of the killed daemon may be repeated, with the same ids.
    let later = std::iter::from_fn(|| Some(stream.next().0)).find(|id| *id != before);
    assert!(later.unwrap() > before);
}

/// R122: a GRANT between the QUEUED answer and the opening of the stream is not missed. E12: what and at which token.
#[test]
fn a_grant_before_the_stream_is_delivered() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    daemon.post("/v1/acquire", &lock("amy", "t:/a"));
    let (_, queued) = daemon.post("/v1/acquire", &lock("bob", "t:/a"));
    assert_eq!(queued["status"], 3);
    daemon.post("/v1/releaseAll", &json!({"ownerId": "amy"}));
    let url = "/v1/events/sse?owner_id=bob&after=0&details=1";
    let (id, event) = Stream::open(&daemon, url, None).next();
    let (_, held) = daemon.post("/v1/inspectPath", &json!({"path": "t:/a"}));
    assert_eq!(
        event,
        json!({"id": id, "type": "grant", "ownerId": "bob", "namespace": "t:/a", "fence": held["fence"]})
    );
    assert_eq!(held["writeOwner"], "bob");
    // Once the owner has acted on it, it is not replayed: the next stream begins with what is new.
    daemon.post("/v1/renew", &json!({"ownerId": "bob", "ttlMs": 60000}));
    let mut stream = Stream::open(&daemon, url, None);
    revoke(&daemon, "bob");
    assert_eq!(stream.next().1["type"], "revoke");
}

/// E12 over gRPC: id, namespace and, for a grant, its fence.
#[tokio::test]
async fn subscribed_events_say_what_was_granted() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    daemon.post("/v1/acquire", &lock("amy", "t:/a"));
    daemon.post("/v1/acquire", &lock("bob", "t:/a"));
    let mut client = PathLockClient::new(daemon.channel().await);
    let request = v1::SubscribeRequest {
        owner_id: "bob".into(),
    };
    let mut events = client.subscribe(request).await.unwrap().into_inner();
    daemon.post("/v1/releaseAll", &json!({"ownerId": "amy"}));
    let event = events.message().await.unwrap().unwrap();
    let (_, held) = daemon.post("/v1/inspectPath", &json!({"path": "t:/a"}));
    assert_eq!(event.r#type(), v1::EventType::Grant);
    assert_eq!(
        (event.namespace.as_str(), json!(event.fence)),
        ("t:/a", held["fence"].clone())
    );
    assert!(event.id > 0);
    daemon.post("/v1/forceRelease", &json!({"victimId": "bob"}));
    let killed = events.message().await.unwrap().unwrap();
    assert_eq!(killed.r#type(), v1::EventType::Killed);
    assert!(killed.id > event.id);
}

/// An independent client reads the stream and resumes it.
#[test]
fn an_event_source_of_python_reads_and_resumes() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut attached = Stream::open(&daemon, "/v1/events/sse?owner_id=amy", None);
    let ids: Vec<u64> = (0..3)
        .map(|_| {
            revoke(&daemon, "amy");
            attached.next().0
        })
        .collect();
    let url = format!("http://{}/v1/events/sse?owner_id=amy&after=0", daemon.web);
    let all = python_script("sse.py", &json!({"url": url, "count": 3}));
    assert_eq!(
        (&all["status"], &all["type"], &all["cache"]),
        (&json!(200), &json!("text/event-stream"), &json!("no-cache"))
    );
    let seen: Vec<Value> = all["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["data"]["id"].clone())
        .collect();
    assert_eq!(seen, ids.iter().map(|id| json!(id)).collect::<Vec<_>>());
    let rest = python_script("sse.py", &json!({"url": url, "count": 1, "last": ids[1]}));
    let event = &rest["events"][0];
    assert_eq!(
        (&event["id"], &event["event"]),
        (&json!(ids[2].to_string()), &json!("message"))
    );
}

/// An invalid query is reported in JSON.
#[test]
fn streams_want_a_sensible_query() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let long = format!("/v1/events/sse?owner_id={}", "a".repeat(1025));
    for url in [
        "/v1/events/sse",
        "/v1/events/sse?owner_id=",
        "/v1/events/sse?owner_id=%00",
        "/v1/events/sse?owner_id=amy&after=-1",
        "/v1/events/sse?owner_id=amy&after=x",
        "/v1/watch/sse",
        "/v1/watch/sse?prefix=a:b",
        long.as_str(),
    ] {
        let (status, body) = daemon.get(url);
        assert_eq!(
            (status, &body["error"]["code"]),
            (400, &json!("INVALID_ARGUMENT")),
            "{url}: {body}"
        );
    }
    assert_eq!(daemon.post("/v1/events/sse", &json!({})).0, 405);
}

/// E8 (Watch lock changes) over SSE: what is there first, then every change.
#[test]
fn changes_can_be_watched_over_sse() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    daemon.post("/v1/acquire", &lock("amy", "t:/a/b"));
    let mut stream = Stream::open(&daemon, "/v1/watch/sse?prefix=t:/a&snapshot=1", None);
    let (id, first) = stream.next();
    assert_eq!(
        (id, &first["kind"], &first["owner"], &first["path"]),
        (1, &json!(1), &json!("amy"), &json!("t:/a/b"))
    );
    assert_eq!(stream.next().1["kind"], 10, "the snapshot ends");
    daemon.post("/v1/acquire", &lock("bob", "t:/a"));
    daemon.post("/v1/acquire", &lock("eve", "t:/other"));
    daemon.post("/v1/releaseAll", &json!({"ownerId": "amy"}));
    let kinds: Vec<(Value, Value)> = (0..3)
        .map(|_| {
            let (_, change) = stream.next();
            (change["kind"].clone(), change["owner"].clone())
        })
        .collect();
    let expected = [(3, "bob"), (4, "amy"), (2, "bob")];
    assert_eq!(
        kinds,
        expected.map(|(kind, owner)| (json!(kind), json!(owner)))
    );
}

/// E8: a watch begins with what is held, however much that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_many_holds_begins() {
    const CHUNKS: usize = 70;
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut client = PathLockClient::new(daemon.channel().await);
    for part in ["x", "y"] {
        let chunk = |n: usize| v1::AcquireRequest {
            owner_id: part.into(),
            ttl_ms: 600_000,
            requests: (0..1000)
                .map(|m| v1::LockRequest {
                    path: format!("t:/a/{part}/{n}/{m}"),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        let chunks: Vec<_> = (0..CHUNKS / 2).map(chunk).collect();
        let granted = client
            .acquire_stream(tokio_stream::iter(chunks))
            .await
            .unwrap();
        assert_eq!(granted.into_inner().status(), v1::AcquireStatus::Ok);
    }
    let watch = v1::WatchRequest {
        prefix: "t:/a".into(),
        snapshot: true,
    };
    let mut changes = client.watch(watch).await.unwrap().into_inner();
    let mut held = 0;
    loop {
        let change = changes.message().await.unwrap().unwrap();
        match change.kind() {
            v1::ChangeKind::Snapshot => held += 1,
            v1::ChangeKind::SnapshotEnd => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(held, CHUNKS * 1000);
}

/// R123: a subscriber that does not read is closed with a reason, and no other subscriber is
/// affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_is_too_slow_is_told() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(data.path(), &[("TENURE_EVENT_BUFFER", "8")]);
    // A window of a few bytes: unread events stay in the daemon.
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", daemon.grpc))
        .unwrap()
        .initial_stream_window_size(Some(64));
    let mut slow = PathLockClient::new(endpoint.connect().await.unwrap());
    let mut quick = PathLockClient::new(daemon.channel().await);
    let request = v1::SubscribeRequest {
        owner_id: "amy".into(),
    };
    let mut unread = slow.subscribe(request.clone()).await.unwrap().into_inner();
    let mut read = quick.subscribe(request).await.unwrap().into_inner();
    for _ in 0..100 {
        revoke(&daemon, "amy");
        assert!(read.message().await.unwrap().is_some());
    }
    let mut got = 0;
    let status = loop {
        match unread.message().await {
            Ok(Some(_)) => got += 1,
            Ok(None) => panic!("the stream ended without an error after {got}"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
    assert!(got < 100, "{got}");
}

/// After 15 s without events the stream carries a comment, so that no proxy closes it as idle.
#[test]
fn a_quiet_stream_is_kept_alive() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut stream = Stream::open(&daemon, "/v1/events/sse?owner_id=amy", None);
    let (mut comment, mut blank) = (String::new(), String::new());
    stream.lines.read_line(&mut comment).unwrap();
    stream.lines.read_line(&mut blank).unwrap();
    assert!(comment.starts_with(':'), "{comment:?}");
    assert_eq!(blank, "\n");
    revoke(&daemon, "amy");
    assert_eq!(stream.next().1["type"], "revoke");
}

/// R169: streams end when the daemon stops.
#[test]
fn streams_end_with_the_daemon() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let events = Stream::open(&daemon, "/v1/events/sse?owner_id=amy", None);
    let changes = Stream::open(&daemon, "/v1/watch/sse?prefix=t", None);
    assert_eq!(daemon.terminate(), Some(0));
    assert!(events.ends() && changes.ends());
}
