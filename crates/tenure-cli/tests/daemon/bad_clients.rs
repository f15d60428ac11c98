//! Slow, silent, faulty and many clients: memory stays bounded, and other clients are served.
//!
//! Bounds are bytes with a generous margin. Times are printed, never checked.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tonic::transport::Channel;

use super::support::http2::{Http2, body};
use super::support::{Daemon, settings};

const MIB: u64 = 1 << 20;
/// How often to check, 50 ms apart, before the test fails: long enough for a busy machine.
const LOOKS: u32 = 2400;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

fn daemon() -> (tempfile::TempDir, Daemon) {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    (data, daemon)
}

/// A daemon with long timeouts: no request ends by itself during a test.
fn slow_daemon() -> (tempfile::TempDir, Daemon) {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(data.path(), &[("TENURE_REQUEST_TIMEOUT_MS", "600000")]);
    (data, daemon)
}

/// Another client, which must not be affected.
struct Neighbour {
    client: PathLockClient<Channel>,
    turns: u32,
}

impl Neighbour {
    async fn of(daemon: &Daemon) -> Neighbour {
        Neighbour {
            client: PathLockClient::new(daemon.channel().await),
            turns: 0,
        }
    }

    /// Takes and gives back a few locks.
    async fn is_served(&mut self) {
        for _ in 0..5 {
            self.turns += 1;
            let owner = format!("neighbour-{}", self.turns);
            let acquire = v1::AcquireRequest {
                owner_id: owner.clone(),
                ttl_ms: 60_000,
                requests: vec![v1::LockRequest {
                    path: "neighbour:/a/b".into(),
                    ..Default::default()
                }],
                ..Default::default()
            };
            let granted = self.client.acquire(acquire).await.unwrap().into_inner();
            assert_eq!(granted.status(), v1::AcquireStatus::Ok);
            let release = v1::ReleaseAllRequest {
                owner_id: owner,
                ..Default::default()
            };
            self.client.release_all(release).await.unwrap();
        }
    }
}

/// How much more memory the daemon has than before.
fn grown(daemon: &Daemon, before: u64) -> u64 {
    daemon.memory().saturating_sub(before)
}

/// Held by tests that open many files: two at once might exceed the limit of this process.
static MANY_FILES: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn allow_files(wanted: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let allowed = limit.maximum.unwrap_or(u64::MAX);
    assert!(
        allowed >= wanted,
        "this test needs {wanted} open files, the system allows {allowed}"
    );
}

/// Ten thousand clients that are connected and do nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_cost_little() {
    const COUNT: usize = 10_000;
    let _alone = MANY_FILES.lock().await;
    allow_files(COUNT as u64 + 500);
    let (_data, daemon) = daemon();
    let mut neighbour = Neighbour::of(&daemon).await;
    neighbour.is_served().await;
    let before = daemon.memory();
    let begun = Instant::now();
    let mut idle = Vec::new();
    for _ in 0..COUNT {
        let mut socket = TcpStream::connect(daemon.grpc).unwrap();
        socket.write_all(PREFACE).unwrap();
        idle.push(socket);
    }
    for socket in &mut idle {
        // The server's settings: the connection is served.
        let mut head = [0; 9];
        socket.read_exact(&mut head).unwrap();
        assert_eq!(head[3], 4, "a SETTINGS frame");
    }
    let more = grown(&daemon, before);
    println!(
        "{COUNT} idle connections: {} KiB each, opened in {:?}",
        more / 1024 / COUNT as u64,
        begun.elapsed()
    );
    assert!(more < COUNT as u64 * 64 * 1024, "{more} bytes");
    neighbour.is_served().await;
}

/// The web port accepts 4096 connections; the next one is closed at once, and a closed one makes
/// room again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_web_port_has_room_for_4096() {
    const COUNT: usize = 4096;
    let _alone = MANY_FILES.lock().await;
    allow_files(COUNT as u64 + 500);
    let (_data, daemon) = daemon();
    let mut neighbour = Neighbour::of(&daemon).await;
    neighbour.is_served().await;
    let before = daemon.memory();
    let open = |n: usize| {
        let mut socket = TcpStream::connect(daemon.web).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let request =
            format!("GET /v1/events/sse?owner_id=o{n} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let _ = socket.write_all(request.as_bytes());
        socket
    };
    let mut streams: Vec<TcpStream> = (0..COUNT).map(open).collect();
    for socket in &mut streams {
        let mut head = [0; 15];
        socket.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
    }
    let more = grown(&daemon, before);
    println!(
        "{COUNT} event streams: {} KiB each",
        more / 1024 / COUNT as u64
    );
    assert!(more < COUNT as u64 * 128 * 1024, "{more} bytes");
    let mut rejected = open(COUNT);
    let mut nothing = Vec::new();
    let ended = rejected.read_to_end(&mut nothing);
    assert!(nothing.is_empty(), "{ended:?} {nothing:?}");
    assert!(
        !matches!(ended, Err(error) if error.kind() == ErrorKind::WouldBlock),
        "it was not closed"
    );
    neighbour.is_served().await;
    drop(streams.pop());
    // The daemon learns of it when the kernel tells it.
    let mut served = false;
    for _ in 0..LOOKS {
        let mut head = [0; 15];
        served = open(COUNT).read_exact(&mut head).is_ok();
        if served {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(served, "a free connection slot is not used");
}

/// Connections that send nothing, or stop in the middle of the preface, are closed.
#[test]
fn silent_connections_do_not_stay() {
    let (_data, daemon) = daemon();
    let cases: [(SocketAddr, &[u8]); 8] = [
        (daemon.web, b""),
        (daemon.web, b"P"),
        (daemon.web, b"PRI * HTTP/2.0\r\n"),
        (daemon.web, b"\x16\x03\x01"),
        (daemon.grpc, b""),
        (daemon.grpc, b"PRI"),
        (daemon.grpc, &PREFACE[..20]),
        // Half open: it does not answer pings.
        (daemon.grpc, PREFACE),
    ];
    let mut sockets: Vec<TcpStream> = Vec::new();
    for (address, words) in cases {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(words).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        sockets.push(socket);
    }
    for (socket, (address, words)) in sockets.iter_mut().zip(cases) {
        let mut rest = Vec::new();
        let ended = socket.read_to_end(&mut rest);
        let still_open = matches!(&ended, Err(error) if error.kind() == ErrorKind::WouldBlock);
        assert!(!still_open, "{address} after {words:?}");
    }
}

/// A client that requests a lot and reads nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_do_not_pile_up() {
    let (_data, daemon) = slow_daemon();
    let mut neighbour = Neighbour::of(&daemon).await;
    // A page of DumpLocks is two megabytes.
    let long = "x".repeat(4000);
    for part in 0..4 {
        let acquire = v1::AcquireRequest {
            owner_id: "amy".into(),
            ttl_ms: 600_000,
            requests: (0..200)
                .map(|n| v1::LockRequest {
                    path: format!("t:/a/{part}-{n}/{long}"),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        neighbour.client.acquire(acquire).await.unwrap();
    }
    let before = daemon.memory();
    let mut client = Http2::connect(daemon.grpc).await;
    let mut unread = Vec::new();
    for n in 0..400 {
        // DumpLocks by turns with ListOwnerLocks of amy, each a message of its own.
        let (path, message) = if n % 2 == 0 {
            ("DumpLocks", &b"\x00\x00\x00\x00\x03\x10\x80\x04"[..])
        } else {
            ("ListOwnerLocks", &b"\x00\x00\x00\x00\x05\x0a\x03amy"[..])
        };
        let request = Request::post(format!("http://t/pathlockd.v1.PathLock/{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let (response, mut sender) = client.begin(request).await;
        sender.send_data(Bytes::from_static(message), true).unwrap();
        unread.push(response);
    }
    for _ in 0..20 {
        neighbour.is_served().await;
    }
    let more = grown(&daemon, before);
    println!(
        "400 answers of 2 to 3 MB that the client does not read: {} MiB",
        more / MIB
    );
    assert!(more < 200 * MIB, "{more} bytes");
}

/// Bodies that are too large, or large, many and never finished.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_share_a_budget() {
    let data = tempfile::tempdir().unwrap();
    let settings = [
        ("TENURE_REQUEST_TIMEOUT_MS", "600000"),
        ("TENURE_CLIENT_MEMORY_MB", "320"),
    ];
    let daemon = Daemon::start_with(data.path(), &settings);
    let mut neighbour = Neighbour::of(&daemon).await;
    neighbour.is_served().await;
    let before = daemon.memory();
    let post = || {
        Request::post("http://localhost/v1/acquire")
            .header("content-type", "application/json")
            .body(())
            .unwrap()
    };
    // 120 bodies of 3.5 MiB that never end are 420 MiB.
    let part = Bytes::from(vec![b' '; 7 << 19]);
    let mut clients = Vec::new();
    let mut senders = Vec::new();
    let mut responses = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let mut client = Http2::connect(daemon.web).await;
        for _ in 0..30 {
            let (response, mut sender) = client.begin(post()).await;
            let _ = sender.send_data(part.clone(), false);
            responses.spawn(body(response));
            senders.push(sender);
        }
        clients.push(client);
    }
    // The first refusal comes when the budget is spent.
    let (status, text) = responses.join_next().await.unwrap().unwrap();
    assert_eq!(status, 503, "{}", String::from_utf8_lossy(&text));
    let more = grown(&daemon, before);
    println!("420 MiB of bodies that never end: {} MiB", more / MIB);
    assert!(more < 500 * MIB, "{more} bytes");
    neighbour.is_served().await;
    // A small request has room, a large one has not.
    assert_eq!(
        daemon
            .post("/v1/isOwnerAlive", &json!({"ownerId": "amy"}))
            .0,
        200
    );
    responses.shutdown().await;
    drop(clients);
    // After they are closed there is room again. The daemon learns of it from its kernel, so retry.
    let large = json!({"ownerId": "amy", "ttlMs": 1000, "idempotencyKey": "x".repeat(3 << 20)});
    let mut status = 0;
    for _ in 0..LOOKS {
        status = daemon.post("/v1/acquire", &large).0;
        if status != 503 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(
        status, 400,
        "a key of three megabytes is refused for what it is"
    );
}

/// More requests at once than the web transports accept: 503, and room again after they end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_have_a_limit() {
    let (_data, daemon) = slow_daemon();
    let mut neighbour = Neighbour::of(&daemon).await;
    let unfinished_request = || {
        Request::post("http://localhost/v1/acquire")
            .header("content-type", "application/json")
            .body(())
            .unwrap()
    };
    // A body without a first byte would be given up after some seconds.
    let begun = |(response, mut sender): (_, h2::SendStream<Bytes>)| {
        let _ = sender.send_data(Bytes::from_static(b"{"), false);
        (response, sender)
    };
    let mut clients = Vec::new();
    let mut unfinished = Vec::new();
    for _ in 0..4 {
        let mut client = Http2::connect(daemon.web).await;
        for _ in 0..1024 {
            unfinished.push(begun(client.begin(unfinished_request()).await));
        }
        clients.push(client);
    }
    // Whether requests are in flight is internal to the daemon, so poll. Each probe takes a slot,
    // too: replace a request that was refused meanwhile.
    let mut more = Http2::connect(daemon.web).await;
    let mut looks = 0;
    let refused: Value = loop {
        let (status, body) = daemon.get("/v1/health");
        if status == 503 {
            break body;
        }
        looks += 1;
        assert!(looks < LOOKS, "503 was never the answer");
        unfinished.push(begun(more.begin(unfinished_request()).await));
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(refused["error"]["code"], "UNAVAILABLE", "{refused}");
    neighbour.is_served().await;
    drop(unfinished);
    drop((clients, more));
    for _ in 0..LOOKS {
        if daemon.get("/v1/health").0 == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("there was never room again");
}

/// Streams that are opened and never used: a connection has a limit, and a head without a body is
/// given up soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_streams_have_limits() {
    let (_data, daemon) = slow_daemon();
    let mut neighbour = Neighbour::of(&daemon).await;
    let call = |rpc: &str| {
        Request::post(format!("http://t/pathlockd.v1.PathLock/{rpc}"))
            .header("content-type", "application/grpc")
            .body(())
            .unwrap()
    };
    let mut client = Http2::connect(daemon.grpc).await;
    let mut silent = Vec::new();
    for _ in 0..1024 {
        silent.push(client.begin(call("Acquire")).await);
    }
    neighbour.is_served().await;
    // The first ones end without a body, although the time limit of a call is ten minutes.
    let (first, _sender) = silent.swap_remove(0);
    let first = first.await.unwrap();
    assert_eq!(first.headers()["grpc-status"], "4", "DEADLINE_EXCEEDED");
    assert_eq!(client.max_streams(), 1024);

    let mut client = Http2::connect(daemon.grpc).await;
    let mut streams = Vec::new();
    let mut refused = 0;
    for n in 0..300 {
        let (response, mut sender) = client.begin(call("Subscribe")).await;
        let owner = format!("owner-{n:03}");
        let mut message = vec![0, 0, 0, 0, 11, 0x0a, 9];
        message.extend_from_slice(owner.as_bytes());
        sender.send_data(Bytes::from(message), true).unwrap();
        let response = response.await.unwrap();
        match response.headers().get("grpc-status") {
            None => streams.push(response),
            Some(status) => {
                assert_eq!(status, "8", "RESOURCE_EXHAUSTED");
                refused += 1;
            }
        }
    }
    assert_eq!((streams.len(), refused), (256, 44));
    neighbour.is_served().await;
}

/// Watchers that ask for a snapshot and read nothing: what waits for them is bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_that_do_not_read_cost_little() {
    let (_data, daemon) = slow_daemon();
    let mut neighbour = Neighbour::of(&daemon).await;
    for part in 0..40 {
        let acquire = v1::AcquireRequest {
            owner_id: format!("owner-{part}"),
            ttl_ms: 3_000_000,
            requests: (0..1000)
                .map(|n| v1::LockRequest {
                    path: format!("t:/{part}/{n}/{}", "x".repeat(100)),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        let granted = neighbour.client.acquire(acquire).await.unwrap();
        assert_eq!(granted.into_inner().status(), v1::AcquireStatus::Ok);
    }
    let before = daemon.memory();
    let mut client = Http2::connect(daemon.grpc).await;
    let mut unread = Vec::new();
    for _ in 0..200 {
        let request = Request::post("http://t/pathlockd.v1.PathLock/Watch")
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let (response, mut sender) = client.begin(request).await;
        // The prefix `t`, with a snapshot.
        let message = Bytes::from_static(b"\x00\x00\x00\x00\x05\x0a\x01t\x10\x01");
        sender.send_data(message, true).unwrap();
        unread.push(response);
    }
    let begun = Instant::now();
    for _ in 0..40 {
        neighbour.is_served().await;
    }
    let more = grown(&daemon, before);
    println!(
        "200 snapshots of 40,000 holds that are not read: {} MiB; 200 calls in {:?}",
        more / MIB,
        begun.elapsed()
    );
    // In full they would be 200 times 10 MB or more.
    assert!(more < 400 * MIB, "{more} bytes");

    // A watcher that reads gets everything, once.
    drop((client, unread));
    let watch = v1::WatchRequest {
        prefix: "t".into(),
        snapshot: true,
    };
    let mut reader = neighbour.client.clone();
    let mut changes = reader.watch(watch).await.unwrap().into_inner();
    let mut present = 0;
    loop {
        let change = changes.message().await.unwrap().unwrap();
        match change.kind() {
            v1::ChangeKind::Snapshot => present += 1,
            v1::ChangeKind::SnapshotEnd => break,
            _ => {}
        }
    }
    assert_eq!(present, 40_000);
}

/// A low limit of open files: connections do not take what the log needs, and the daemon stays
/// healthy while its log grows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_leave_files_for_the_log() {
    let data = tempfile::tempdir().unwrap();
    let mut limited = std::process::Command::new("sh");
    limited
        .args(["-c", "ulimit -n 256; exec \"$0\" serve"])
        .arg(env!("CARGO_BIN_EXE_tenure"));
    let daemon = Daemon::spawn(settings(&mut limited, data.path()));
    let mut neighbour = Neighbour::of(&daemon).await;
    neighbour.is_served().await;
    let mut idle = Vec::new();
    for _ in 0..400 {
        let mut socket = TcpStream::connect(daemon.grpc).unwrap();
        let _ = socket.write_all(PREFACE);
        idle.push(socket);
    }
    // Several rotations: the first file of a log has 256 KiB, the second 2 MiB.
    for n in 0..8 {
        let acquire = v1::AcquireRequest {
            owner_id: format!("writer-{n}"),
            ttl_ms: 600_000,
            requests: (0..500)
                .map(|path| v1::LockRequest {
                    path: format!("t:/a/{n}-{path}/{}", "x".repeat(2000)),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        let granted = neighbour.client.acquire(acquire).await.unwrap();
        assert_eq!(granted.into_inner().status(), v1::AcquireStatus::Ok);
    }
    neighbour.is_served().await;
    let files = std::fs::read_dir(data.path().join("db")).unwrap();
    let names = files.map(|file| file.unwrap().file_name());
    let logs = names.filter(|name| name.to_string_lossy().starts_with("log-"));
    assert!(logs.count() >= 2, "the log has not begun a new file");
}

/// Requests that are reset as soon as they are sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_resets_ends_its_own_connection_at_most() {
    let (_data, daemon) = daemon();
    let mut neighbour = Neighbour::of(&daemon).await;
    neighbour.is_served().await;
    let before = daemon.memory();
    for address in [daemon.grpc, daemon.web] {
        let mut client = Http2::connect(address).await;
        let mut made = 0;
        for _ in 0..20_000 {
            let request = Request::post("http://t/pathlockd.v1.PathLock/Acquire")
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let Ok((_, mut sender)) = client.try_begin(request).await else {
                break;
            };
            sender.send_reset(h2::Reason::CANCEL);
            made += 1;
        }
        println!(
            "{address}: {made} requests taken back, ended {:?}",
            client.ended().await
        );
        neighbour.is_served().await;
    }
    let more = grown(&daemon, before);
    println!("a flood of resets: {} MiB", more / MIB);
    assert!(more < 64 * MIB, "{more} bytes");
}

/// Heads that are too long, bytes that are no HTTP, no JSON, no protobuf.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_refused_and_harms_nobody() {
    let (_data, daemon) = daemon();
    let mut neighbour = Neighbour::of(&daemon).await;
    neighbour.is_served().await;
    let before = daemon.memory();
    let long = format!(
        "GET /v1/health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n",
        "y".repeat(200 << 10)
    );
    let answer = daemon.raw(long.as_bytes());
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let mut client = Http2::connect(daemon.grpc).await;
    let request = Request::post("http://t/pathlockd.v1.PathLock/Health")
        .header("content-type", "application/grpc")
        .header("x", "y".repeat(20 << 10))
        .body(())
        .unwrap();
    let (response, _sender) = client.begin(request).await;
    if let Ok(response) = response.await {
        assert_eq!(response.status(), 431);
    }
    let mut noise = Noise(7);
    for turn in 0..400 {
        let address = if turn % 2 == 0 {
            daemon.web
        } else {
            daemon.grpc
        };
        let mut socket = TcpStream::connect(address).unwrap();
        let start: &[u8] = match turn % 8 {
            0 => b"POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 512\r\nconnection: close\r\n\r\n",
            2 => b"\x16\x03\x01\x02\x00\x01",
            4 => b"GET /",
            1 | 5 => PREFACE,
            _ => b"",
        };
        let bytes: Vec<u8> = (0..512).map(|_| noise.byte()).collect();
        let _ = socket
            .write_all(start)
            .and_then(|()| socket.write_all(&bytes));
    }
    // The same inside well-formed calls.
    let mut client = Http2::connect(daemon.grpc).await;
    let mut calls = tokio::task::JoinSet::new();
    for turn in 0..400 {
        let rpc = [
            "Acquire",
            "Release",
            "DumpLocks",
            "Break",
            "Session",
            "AcquireStream",
            "Watch",
        ][turn % 7];
        let request = Request::post(format!("http://t/pathlockd.v1.PathLock/{rpc}"))
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let (response, mut sender) = client.begin(request).await;
        let length = u8::try_from(turn % 200).unwrap();
        let mut message = vec![0, 0, 0, 0, length];
        message.extend((0..length).map(|_| noise.byte()));
        let _ = sender.send_data(Bytes::from(message), true);
        calls.spawn(response);
    }
    while let Some(answered) = calls.join_next().await {
        if let Ok(Ok(response)) = answered {
            assert_eq!(response.status(), 200, "gRPC has its own statuses");
        }
    }
    neighbour.is_served().await;
    assert_eq!(daemon.get("/v1/health").0, 200);
    let more = grown(&daemon, before);
    println!("nonsense: {} MiB", more / MIB);
    assert!(more < 64 * MIB, "{more} bytes");
}

/// Numbers that look random and are the same every time.
struct Noise(u64);

impl Noise {
    fn byte(&mut self) -> u8 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }
}
