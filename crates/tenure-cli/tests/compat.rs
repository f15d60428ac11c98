//! Compatibility with earlier releases: this one reads their files.
//!
//! `compat/<release>/` holds the data directory of a single node (log and snapshots), a backup, and
//! the node's answers at that time. They are recorded once, when a release is made, by `cargo test
//! -p tenure-cli --test compat -- --ignored record`, and never changed.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use support::Daemon;

const NODE: (&str, &str) = ("TENURE_NODE_ID", "tenure-0");
const PATHS: [&str; 7] = [
    "plain:/a/b",
    "plain:/shared/x",
    "plain:/given/back",
    "deep:/project/one/two/three",
    "tree:/top",
    "point:/x/y",
    "t7:/a",
];
const OWNERS: [&str; 5] = ["amy", "bob", "cem", "dora", "eve"];
/// Longer than a recording takes: leases begin anew when a node starts.
const TTL_MS: u64 = 3_000_000;

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compat")
}

/// Returns every recorded release.
fn releases() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(recorded()).unwrap();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.is_dir());
    all.sort();
    let present = recorded().join(env!("CARGO_PKG_VERSION"));
    assert!(all.contains(&present), "this release recorded nothing");
    all
}

fn call(daemon: &Daemon, verb: &str, body: Value) -> Value {
    let (status, answer) = daemon.post(&format!("/v1/{verb}"), &body);
    assert_eq!(status, 200, "{verb} {body}: {answer}");
    answer
}

fn acquire(daemon: &Daemon, owner: &str, path: &str, mode: &str) -> Value {
    let request = json!({
        "ownerId": owner, "ttlMs": TTL_MS, "queueTtlMs": TTL_MS,
        "requests": [{"path": path, "mode": mode}],
    });
    call(daemon, "acquire", request)
}

/// Returns everything that this test can query, without values that depend on the time.
fn content(daemon: &Daemon) -> Value {
    let mut paths = json!({});
    for path in PATHS {
        let mut said = call(daemon, "inspectPath", json!({"path": path}));
        said["explained"] = call(
            daemon,
            "explain",
            json!({"path": path, "ownerId": "nobody", "mode": "MODE_WRITE"}),
        );
        paths[path] = timeless(said);
    }
    let mut owners = json!({});
    for owner in OWNERS {
        let request = json!({"ownerId": owner, "readTree": true});
        owners[owner] = call(daemon, "listOwnerLocks", request);
    }
    let rows = call(daemon, "listNamespacePolicies", json!({}));
    json!({"paths": paths, "owners": owners, "policies": rows})
}

fn timeless(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.retain(|name, _| !name.ends_with("Ms"));
            for field in fields.values_mut() {
                *field = timeless(field.take());
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = timeless(item.take());
            }
        }
        _ => {}
    }
    value
}

fn read_content(release: &Path) -> Value {
    let text = std::fs::read_to_string(release.join("content.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A node continues from the log and the snapshots of every earlier release.
#[test]
fn the_log_of_every_release_is_read() {
    for release in releases() {
        let home = tempfile::tempdir().unwrap();
        copy(&release.join("node"), home.path());
        let daemon = Daemon::start_with(home.path(), &[NODE]);
        assert_eq!(content(&daemon), read_content(&release), "{release:?}");
        // The next fence is beyond all earlier ones.
        let answer = acquire(&daemon, "late", "plain:/given/late", "MODE_WRITE");
        let (fence, last) = (fence(&answer), last_fence(&read_content(&release)));
        assert!(fence > last, "{fence} after {last} in {release:?}");
    }
}

/// A backup of every release before this one is restored by it.
#[test]
fn the_backup_of_every_release_is_restored() {
    for release in releases() {
        let home = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(["cluster", "restore"])
            .arg(release.join("backup"))
            .arg("--data-dir")
            .arg(home.path())
            .args(["--node-id", NODE.1])
            .output()
            .unwrap();
        assert!(output.status.success(), "{release:?}: {output:?}");
        let daemon = Daemon::start_with(home.path(), &[NODE]);
        let wanted = read_content(&release);
        assert_eq!(content(&daemon), wanted, "{release:?}");
        let answer = acquire(&daemon, "late", "plain:/given/late", "MODE_WRITE");
        assert!(
            fence(&answer) >= last_fence(&wanted) + (1 << 40),
            "{release:?}"
        );
    }
}

/// The log of a later release is refused with a message and not changed.
#[test]
fn the_log_of_a_later_release_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let release = recorded().join(env!("CARGO_PKG_VERSION"));
    copy(&release.join("node"), home.path());
    let log = home.path().join("db/log-00000000000000000001");
    let mut bytes = std::fs::read(&log).unwrap();
    // The version of the file, and the checksum of its head with it (docs/formats/log.md).
    let version = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
    bytes[8..12].copy_from_slice(&(version + 1).to_le_bytes());
    let sum = crc32(bytes[..12].iter().chain(&bytes[16..72]));
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&log, &bytes).unwrap();
    let output = Command::new("timeout")
        .args(["20", env!("CARGO_BIN_EXE_tenure"), "serve"])
        .env("TENURE_DATA_DIR", home.path())
        .env("TENURE_GROUP_COUNT", "4")
        .env("TENURE_LISTEN", "127.0.0.1:0")
        .env("TENURE_WEB_LISTEN", "127.0.0.1:0")
        .env(NODE.0, NODE.1)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let sentence = format!("has format version {}", version + 1);
    assert!(said.contains(&sentence), "{said}");
    assert_eq!(std::fs::read(&log).unwrap(), bytes);
}

fn crc32<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    let shift = |sum: u32, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
    let sum = bytes.fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), shift)
    });
    !sum
}

fn fence(answer: &Value) -> i64 {
    answer["fencingToken"].as_i64().unwrap()
}

/// The largest fence that was given in the namespace `plain:/given`.
fn last_fence(content: &Value) -> i64 {
    let paths = content["paths"].as_object().unwrap();
    let plain = paths
        .iter()
        .filter(|(path, _)| path.starts_with("plain:/given/"))
        .filter_map(|(_, said)| said["fence"].as_i64());
    plain.max().unwrap()
}

/// Makes the recording of this release.
#[test]
#[ignore = "writes into the repository, once for a release"]
fn record() {
    let release = recorded().join(env!("CARGO_PKG_VERSION"));
    assert!(!release.join("node").exists(), "never changed");
    let home = tempfile::tempdir().unwrap();
    let often = [
        NODE,
        ("TENURE_RAFT_SNAPSHOT_INTERVAL_ENTRIES", "12"),
        ("TENURE_RAFT_SNAPSHOT_MIN_LOG_ENTRIES", "4"),
    ];
    let daemon = Daemon::start_with(home.path(), &often);
    for (namespace, algorithm) in [
        ("deep:/project", "LOCK_ALGORITHM_RECURSIVE_RW"),
        ("point:/x", "LOCK_ALGORITHM_POINT_RW"),
    ] {
        let request = json!({"namespace": namespace, "algorithm": algorithm});
        call(&daemon, "setNamespacePolicy", request);
    }
    // Enough for snapshots, and something behind them in the log.
    for number in 0..40 {
        let (owner, path) = (format!("passer-{number}"), "plain:/given/back");
        acquire(&daemon, &owner, path, "MODE_WRITE");
        call(&daemon, "releaseAll", json!({"ownerId": owner}));
    }
    for (owner, path, mode) in [
        ("amy", "plain:/a/b", "MODE_WRITE"),
        ("bob", "plain:/shared/x", "MODE_READ"),
        ("cem", "plain:/shared/x", "MODE_READ"),
        ("amy", "deep:/project/one/two/three", "MODE_WRITE"),
        ("bob", "tree:/top", "MODE_READ_TREE"),
        ("cem", "point:/x/y", "MODE_WRITE"),
        ("bob", "t7:/a", "MODE_WRITE"),
        // These wait in line, in this order.
        ("dora", "plain:/a/b", "MODE_WRITE"),
        ("eve", "plain:/a/b", "MODE_READ"),
    ] {
        acquire(&daemon, owner, path, mode);
    }
    let text = serde_json::to_string_pretty(&content(&daemon)).unwrap();
    std::fs::create_dir_all(&release).unwrap();
    std::fs::write(release.join("content.json"), text + "\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["cluster", "backup"])
        .arg(release.join("backup"))
        .env("TENURE_URL", format!("http://{}", daemon.grpc))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(daemon.terminate(), Some(0));
    copy(home.path(), &release.join("node"));
    for entry in std::fs::read_dir(release.join("node/db")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // Empty, and made again when needed.
        if name.starts_with("spare") || name == "lock" {
            std::fs::remove_file(path).unwrap();
        }
    }
}
