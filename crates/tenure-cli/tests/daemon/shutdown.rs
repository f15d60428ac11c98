//! Start and stop of the daemon: clean shutdown, and a failing disk.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tonic::Code;

use super::support::Daemon;

fn acquire(owner: &str, path: &str) -> v1::AcquireRequest {
    v1::AcquireRequest {
        owner_id: owner.into(),
        ttl_ms: 600_000,
        requests: vec![v1::LockRequest {
            path: path.into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// Starts a daemon that gets an error for a failed write instead of a signal.
fn start_ignoring_limits(data: &std::path::Path) -> Daemon {
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' XFSZ; exec \"$0\" serve"])
        .arg(env!("CARGO_BIN_EXE_tenure"))
        .env("TENURE_DATA_DIR", data)
        .env("TENURE_LISTEN", "127.0.0.1:0")
        .env("TENURE_WEB_LISTEN", "127.0.0.1:0")
        .env("TENURE_H3_LISTEN", "127.0.0.1:0")
        .env("TENURE_GROUP_COUNT", "4");
    Daemon::spawn(&mut command)
}

/// R145: after its disk fails, the node answers nothing more, and the process ends and says why, so
/// that a supervisor starts it again; after a restart nothing is lost.
#[tokio::test]
async fn a_failing_disk_stops_the_node() {
    let data = tempfile::tempdir().unwrap();
    let daemon = start_ignoring_limits(data.path());
    let mut client = PathLockClient::new(daemon.channel().await);
    let granted = client
        .acquire(acquire("amy", "t:/a"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(granted.status(), v1::AcquireStatus::Ok);

    // From now on every write to a file fails.
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    let none = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    prlimit(Some(pid), Resource::Fsize, none).unwrap();
    let status = client.acquire(acquire("bob", "t:/b")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let (code, last) = tokio::task::spawn_blocking(move || daemon.ended())
        .await
        .unwrap();
    assert_eq!(code, Some(125), "{last}");
    assert!(last.contains("the node has stopped: "), "{last}");
    // It answers no reads either.
    let list = v1::ListOwnerLocksRequest {
        owner_id: "amy".into(),
        ..Default::default()
    };
    let status = client.list_owner_locks(list).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");

    let daemon = Daemon::start(data.path());
    let mut client = PathLockClient::new(daemon.channel().await);
    let fencing = v1::AssertFencingRequest {
        owner_id: "amy".into(),
        fencing_token: granted.fencing_token,
        paths: vec!["t:/a".into()],
    };
    let asserted = client.assert_fencing(fencing).await.unwrap().into_inner();
    assert_eq!(asserted.status(), v1::AssertStatus::Ok);
}

/// R169: clients that stay connected do not delay the shutdown; calls end with an answer or
/// UNAVAILABLE.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polite_end_does_not_wait_for_everybody() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let client = PathLockClient::new(daemon.channel().await);
    let subscribe = v1::SubscribeRequest {
        owner_id: "amy".into(),
    };
    let mut events = client
        .clone()
        .subscribe(subscribe)
        .await
        .unwrap()
        .into_inner();
    let watch = v1::WatchRequest {
        prefix: "t".into(),
        ..Default::default()
    };
    let mut changes = client.clone().watch(watch).await.unwrap().into_inner();
    let mut session = client
        .clone()
        .session(tokio_stream::pending())
        .await
        .unwrap()
        .into_inner();
    // Half a request, and an idle connection.
    let mut half = TcpStream::connect(daemon.web).unwrap();
    half.write_all(b"POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-type: application/json\r\n\r\n{").unwrap();
    let mut silent = TcpStream::connect(daemon.web).unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..4 {
        let mut client = client.clone();
        calls.spawn(async move {
            for turn in 0.. {
                let request = acquire(&format!("o{n}-{turn}"), &format!("t:/{n}/{turn}"));
                match client.acquire(request).await {
                    Ok(answer) => assert_eq!(answer.into_inner().status(), v1::AcquireStatus::Ok),
                    Err(status) => return (turn, status),
                }
            }
            unreachable!("a daemon that is stopped ends this")
        });
    }
    // Some calls have been answered.
    let mut probe = client.clone();
    probe.acquire(acquire("probe", "p:/a")).await.unwrap();

    let begun = std::time::Instant::now();
    let ended = tokio::task::spawn_blocking(move || daemon.terminate())
        .await
        .unwrap();
    println!("stopped with open streams in {:?}", begun.elapsed());
    assert_eq!(ended, Some(0));
    while let Some(result) = calls.join_next().await {
        let (turns, status) = result.unwrap();
        // Refused by the daemon, or by the kernel once it was gone.
        let code = status.code();
        assert!(
            [
                Code::Unavailable,
                Code::Unknown,
                Code::Cancelled,
                Code::Internal
            ]
            .contains(&code),
            "{turns}: {status:?}"
        );
    }
    // Pending changes are delivered, and then the reason for the end.
    let last = loop {
        match changes.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the watch ended without an error"),
            Err(status) => break status.code(),
        }
    };
    assert_eq!(last, Code::Unavailable);
    assert_eq!(
        events.message().await.unwrap_err().code(),
        Code::Unavailable
    );
    assert_eq!(
        session.message().await.unwrap_err().code(),
        Code::Unavailable
    );
    for socket in [&mut half, &mut silent] {
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut rest = Vec::new();
        let ended = socket.read_to_end(&mut rest);
        assert!(!matches!(ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
    }
}

/// R180: a file with every key of the wire-compatible daemon, started without a verb, as in its
/// deployments.
#[test]
fn a_file_of_the_compatible_daemon_is_understood() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("daemon.toml");
    let text = format!(
        "{}data_dir = '{}'\n",
        include_str!("compatible.toml"),
        data.path().join("data").display()
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command
        .arg("--config")
        .arg(&file)
        .env("PATHLOCKD_GROUP_COUNT", "4")
        .env("TENURE_LOG_LEVEL", "");
    let daemon = Daemon::spawn(&mut command);
    assert_eq!(
        daemon.get("/v1/health"),
        (200, json!({"ok": true, "detail": "ready"}))
    );
    assert!(data.path().join("data/db").is_dir());
    // Four groups and the system group: the variable won over the file.
    let (_, metrics) = daemon.get_text("/metrics?groups=1");
    let groups = metrics
        .lines()
        .filter(|line| line.starts_with("tenure_raft_group_role{"));
    assert_eq!(groups.count(), 5);
}

/// R182: without configuration and with an empty directory the daemon is ready at once. The time is
/// printed, not checked.
#[test]
fn an_empty_directory_is_ready_at_once() {
    let home = tempfile::tempdir().unwrap();
    let mut figures = Vec::new();
    for groups in ["4", "256"] {
        let data = home.path().join(groups);
        let daemon = Daemon::start_with(&data, &[("TENURE_GROUP_COUNT", groups)]);
        figures.push(format!("{groups} groups {:?}", daemon.started_in));
        assert_eq!(daemon.get("/v1/health").0, 200);
    }
    println!("ready on an empty directory: {}", figures.join(", "));
}
