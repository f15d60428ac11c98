//! A cluster of real processes on this machine: it forms, survives kills, and loses nothing.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use support::Daemon;
use tempfile::TempDir;
use tenure_wire::cluster::cluster_client::ClusterClient;
use tenure_wire::cluster::{Group, StatusRequest, StatusResponse};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tonic::transport::Channel;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Time limit for each step, also on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Nodes of one cluster, by their number; each in its own directory, on ports the system chooses.
struct Cluster {
    data: TempDir,
    nodes: Vec<Option<Daemon>>,
    groups: String,
}

impl Cluster {
    fn new(groups: u32) -> Cluster {
        Cluster {
            data: tempfile::tempdir().unwrap(),
            nodes: Vec::new(),
            groups: groups.to_string(),
        }
    }

    fn directory(&self, at: usize) -> PathBuf {
        self.data.path().join(format!("node-{at}"))
    }

    /// Starts a node. The first one creates the cluster; the others join through a node that is up.
    fn start(&mut self, at: usize) {
        let seeds: Vec<String> = self
            .nodes
            .iter()
            .flatten()
            .filter_map(|node| Some(node.gossip?.to_string()))
            .collect();
        let seeds = seeds.join(",");
        let listen = free_address();
        let public = format!("http://{listen}");
        let name = format!("node-{at}");
        let mut environment = vec![
            ("TENURE_NODE_ID", name.as_str()),
            ("TENURE_LISTEN", &listen),
            ("TENURE_PUBLIC_ADDR", &public),
            ("TENURE_INTERNAL_AUTH_TOKEN", TOKEN),
            ("TENURE_RAFT_ADDR", "http://127.0.0.1:0"),
            ("TENURE_GOSSIP_ADDR", "127.0.0.1:0"),
            ("TENURE_GROUP_COUNT", &self.groups),
            ("TENURE_STABILITY_WINDOW_SECS", "0"),
            ("TENURE_EVICTION_WINDOW_SECS", "2"),
            ("TENURE_LEADER_BALANCE_INTERVAL_SECS", "1"),
            ("TENURE_MAX_CONCURRENT_RECONCILES", "64"),
            ("TENURE_GOSSIP_SEED_ANNOUNCE_INTERVAL_MS", "200"),
        ];
        if seeds.is_empty() {
            environment.push(("TENURE_BOOTSTRAP", "true"));
        } else {
            environment.push(("TENURE_SEED_NODES", &seeds));
        }
        let node = Daemon::start_with(&self.directory(at), &environment);
        if at == self.nodes.len() {
            self.nodes.push(Some(node));
        } else {
            self.nodes[at] = Some(node);
        }
    }

    /// Asks a node to end, as a rolling restart does.
    fn terminate(&mut self, at: usize) {
        let code = self.nodes[at].take().unwrap().terminate();
        assert_eq!(code, Some(0), "node {at}");
    }

    fn kill(&mut self, at: usize) {
        self.nodes[at].take().unwrap().kill();
    }

    /// Runs `tenure cluster …` against a node, and returns what it printed.
    fn command(&self, at: usize, arguments: &[&str]) -> String {
        let node = self.nodes[at].as_ref().unwrap();
        command(&format!("http://{}", node.grpc), arguments)
    }

    async fn client(&self, at: usize) -> PathLockClient<Channel> {
        PathLockClient::new(self.nodes[at].as_ref().unwrap().channel().await)
    }
}

/// Runs `tenure cluster …`, and returns what it printed.
fn command(url: &str, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .arg("cluster")
        .args(arguments)
        .env("TENURE_URL", url)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns an address on which no process listens now.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn acquire(owner: &str, path: &str) -> v1::AcquireRequest {
    v1::AcquireRequest {
        owner_id: owner.into(),
        ttl_ms: 60_000,
        requests: vec![v1::LockRequest {
            path: path.into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// Acquires with retries while the node is unavailable.
async fn acquire_soon(
    client: &mut PathLockClient<Channel>,
    owner: &str,
    path: &str,
) -> v1::AcquireResponse {
    let end = Instant::now() + STEP_TIMEOUT;
    loop {
        match client.acquire(acquire(owner, path)).await {
            Ok(answer) => return answer.into_inner(),
            Err(status) => assert!(Instant::now() < end, "{owner} {path}: {status}"),
        }
        // There is no event for "available", so retry.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Polls the cluster status until the condition holds.
async fn until(
    cluster: &Cluster,
    at: usize,
    what: &str,
    is_so: impl Fn(&StatusResponse) -> bool,
) -> StatusResponse {
    let end = Instant::now() + STEP_TIMEOUT;
    let channel = cluster.nodes[at].as_ref().unwrap().channel().await;
    let mut client = ClusterClient::new(channel);
    loop {
        let status = client.status(StatusRequest {}).await.unwrap().into_inner();
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < end, "never {what}: {status:#?}");
        // Membership has no event stream, so poll.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Every group is at rest on exactly these nodes.
fn settled_on(status: &StatusResponse, nodes: &[u32]) -> bool {
    let nodes: BTreeSet<u32> = nodes.iter().copied().collect();
    let at_rest = |group: &Group| {
        group.leader != 0
            && !group.changing
            && group.learners.is_empty()
            && group.voters.iter().copied().collect::<BTreeSet<u32>>() == nodes
    };
    status.groups.iter().all(at_rest)
}

/// Three nodes, every group on all of them.
async fn three(groups: u32) -> Cluster {
    let mut cluster = Cluster::new(groups);
    for at in 0..3 {
        cluster.start(at);
    }
    until(&cluster, 0, "on three nodes", |status| {
        settled_on(status, &[1, 2, 3])
    })
    .await;
    cluster
}

/// Asks by way of a node whether the holders of all these paths still hold them.
async fn assert_held(cluster: &Cluster, at: usize, held: &[(String, String)]) {
    let mut client = cluster.client(at).await;
    for (owner, path) in held {
        let answer = acquire_soon(&mut client, "thief", path).await;
        let blocker = answer
            .blocker
            .as_ref()
            .map(|blocker| blocker.owner.as_str());
        assert_eq!(
            blocker,
            Some(owner.as_str()),
            "{path} by way of node {at}: {answer:?}"
        );
    }
}

/// R163: three processes form a cluster; a lock taken by way of one is seen by way of the others.
#[tokio::test]
async fn any_node_serves_any_client() {
    let cluster = three(8).await;
    for at in 0..3 {
        let mut client = cluster.client(at).await;
        for number in 0..16 {
            let path = format!("t{number}:/a");
            let answer = acquire_soon(&mut client, &format!("owner-{at}"), &path).await;
            let expected = if at == 0 {
                v1::AcquireStatus::Ok
            } else {
                v1::AcquireStatus::Queued
            };
            assert_eq!(answer.status(), expected, "node {at}, {path}");
        }
    }
    let status = until(&cluster, 1, "balanced", |status| {
        status.nodes.iter().all(|node| node.leads > 0)
    })
    .await;
    assert!(status.healthy, "{status:#?}");
}

/// R164: kill -9 of one node after the other, restart, on new ports: nothing acknowledged is lost.
#[tokio::test]
async fn nothing_acknowledged_is_lost() {
    let mut cluster = three(8).await;
    let mut held = Vec::new();
    for round in 0..3 {
        let mut client = cluster.client((round + 1) % 3).await;
        for number in 0..16 {
            let (owner, path) = (
                format!("owner-{round}-{number}"),
                format!("t{number}:/r{round}"),
            );
            let answer = acquire_soon(&mut client, &owner, &path).await;
            assert_eq!(answer.status(), v1::AcquireStatus::Ok, "{path}");
            held.push((owner, path));
        }
        cluster.kill(round);
        for at in (0..3).filter(|at| *at != round) {
            assert_held(&cluster, at, &held).await;
        }
        cluster.start(round);
        until(&cluster, round, "whole again", |status| {
            settled_on(status, &[1, 2, 3]) && status.healthy
        })
        .await;
    }
    assert_held(&cluster, 0, &held).await;
}

/// R166: a fourth node replaces a drained one, which loses all replicas and is removed; a node with
/// a lost disk returns in a new incarnation.
#[tokio::test]
async fn nodes_come_and_go() {
    let mut cluster = three(8).await;
    let mut client = cluster.client(0).await;
    let path = "t1:/a".to_owned();
    let answer = acquire_soon(&mut client, "amy", &path).await;
    assert_eq!(answer.status(), v1::AcquireStatus::Ok);
    let held = [("amy".to_owned(), path)];

    cluster.start(3);
    cluster.command(0, &["drain", "node-1"]);
    until(&cluster, 0, "off the drained node", |status| {
        let drained = status.nodes.iter().find(|node| node.number == 2);
        drained.is_some_and(|node| node.draining && node.reported && node.replicas == 0)
            && settled_on(status, &[1, 3, 4])
    })
    .await;
    assert_held(&cluster, 1, &held).await;
    cluster.kill(1);
    cluster.command(0, &["remove", "node-1"]);
    until(&cluster, 3, "without the removed node", |status| {
        status.nodes.len() == 3
    })
    .await;

    cluster.kill(2);
    std::fs::remove_dir_all(cluster.directory(2)).unwrap();
    let before = until(&cluster, 0, "one down", |status| {
        status.nodes.iter().any(|node| node.number == 3 && !node.up)
    })
    .await;
    let life = |status: &StatusResponse| {
        let node = status.nodes.iter().find(|node| node.number == 3);
        node.map(|node| node.life)
    };
    cluster.start(2);
    let after = until(&cluster, 0, "whole again", |status| {
        settled_on(status, &[1, 3, 4])
            && status.healthy
            && status.nodes.iter().all(|node| node.replicas == 9)
    })
    .await;
    assert_ne!(
        life(&before),
        life(&after),
        "a wiped node has a new incarnation"
    );
    assert_held(&cluster, 2, &held).await;
    let words = cluster.command(0, &["status"]);
    assert!(
        words.starts_with("healthy: 3 of 3 nodes up, 8 groups"),
        "{words}"
    );
}

/// R161 (settings fixed per cluster), R167 (bootstrap decision), R168: a node that does not match
/// stays out, and no second cluster is created by mistake.
#[tokio::test]
async fn strangers_stay_out() {
    let mut cluster = Cluster::new(8);
    cluster.start(0);
    let seed = cluster.nodes[0]
        .as_ref()
        .unwrap()
        .gossip
        .unwrap()
        .to_string();
    let try_start = |name: &str, environment: &[(&str, &str)]| {
        let data = cluster.data.path().join(name);
        let mut command = Command::new("timeout");
        command
            .args(["20", env!("CARGO_BIN_EXE_tenure"), "serve"])
            .env("TENURE_NODE_ID", "node-7")
            .env("TENURE_DATA_DIR", data)
            .env("TENURE_LISTEN", "127.0.0.1:0")
            .env("TENURE_RAFT_ADDR", "http://127.0.0.1:0")
            .env("TENURE_GOSSIP_ADDR", "127.0.0.1:0")
            .env("TENURE_GROUP_COUNT", "8")
            .env("TENURE_INTERNAL_AUTH_TOKEN", TOKEN)
            .env("TENURE_SEED_NODES", &seed)
            .envs(environment.iter().copied());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let other_facts = try_start("facts", &[("TENURE_GROUP_COUNT", "4")]);
    assert!(
        other_facts.contains("group_count is 8 there and 4 here"),
        "{other_facts}"
    );
    let other_token = "another token, another token, anoth".replace(' ', "-");
    let wrong_token = try_start(
        "token",
        &[
            ("TENURE_BOOTSTRAP", "true"),
            ("TENURE_INTERNAL_AUTH_TOKEN", &other_token),
        ],
    );
    assert!(
        wrong_token.contains("these seeds did not answer"),
        "{wrong_token}"
    );
    assert!(!wrong_token.contains(&other_token));
    let status = until(&cluster, 0, "alone", |_| true).await;
    assert_eq!(
        status.nodes.len(),
        1,
        "the refused nodes are not listed: {status:#?}"
    );
}

/// R167: as in the guide, every node has seeds and waits, and one is ordered to create the cluster.
/// That node returns to it after `rejoin` and with a lost disk: holds stay held.
#[tokio::test]
async fn a_cluster_is_founded_once() {
    let data = tempfile::tempdir().unwrap();
    let free: Vec<(String, String, String)> = (0..3)
        .map(|_| (free_address(), free_address(), free_address()))
        .collect();
    let directory = |at: usize| data.path().join(format!("node-{at}"));
    let start = |at: usize| {
        let (listen, internal, gossip) = &free[at];
        let others = (0..3).filter(|other| *other != at);
        let seeds: Vec<&str> = others.map(|other| free[other].2.as_str()).collect();
        Daemon::start_with(
            &directory(at),
            &[
                ("TENURE_NODE_ID", &format!("node-{at}")),
                ("TENURE_LISTEN", listen),
                ("TENURE_PUBLIC_ADDR", &format!("http://{listen}")),
                ("TENURE_INTERNAL_AUTH_TOKEN", TOKEN),
                ("TENURE_RAFT_ADDR", &format!("http://{internal}")),
                ("TENURE_GOSSIP_ADDR", gossip),
                ("TENURE_SEED_NODES", &seeds.join(",")),
                ("TENURE_STABILITY_WINDOW_SECS", "0"),
                ("TENURE_MAX_CONCURRENT_RECONCILES", "64"),
                ("TENURE_GOSSIP_SEED_ANNOUNCE_INTERVAL_MS", "200"),
            ],
        )
    };
    let init = || command("", &["init", "--data-dir", directory(0).to_str().unwrap()]);
    let (first, second, third) = std::thread::scope(|scope| {
        let waiting = [0, 1, 2].map(|at| scope.spawn(move || start(at)));
        init();
        let [first, second, third] = waiting.map(|one| one.join().unwrap());
        (first, second, third)
    });
    let mut cluster = Cluster {
        data: tempfile::tempdir().unwrap(),
        nodes: vec![Some(first), Some(second), Some(third)],
        groups: "4".to_owned(),
    };
    let whole = |status: &StatusResponse| settled_on(status, &[1, 2, 3]) && status.healthy;
    let founded = until(&cluster, 1, "on three nodes", whole).await.cluster_id;
    assert_eq!(founded.len(), 16);
    let mut client = cluster.client(1).await;
    let amy = acquire_soon(&mut client, "amy", "t:/a").await;
    assert_eq!(amy.status(), v1::AcquireStatus::Ok);
    let held = [("amy".to_owned(), "t:/a".to_owned())];
    let (rejoined, wiped) = (true, false);
    for is_rejoined in [rejoined, wiped] {
        cluster.terminate(0);
        if is_rejoined {
            command(
                "",
                &["rejoin", "--data-dir", directory(0).to_str().unwrap()],
            );
        } else {
            std::fs::remove_dir_all(directory(0)).unwrap();
        }
        cluster.nodes[0] = Some(start(0));
        let status = until(&cluster, 0, "whole again", whole).await;
        assert_eq!(status.cluster_id, founded);
        assert_held(&cluster, 0, &held).await;
    }
    let mut client = cluster.client(0).await;
    let release = v1::ReleaseAllRequest {
        owner_id: "amy".into(),
        ..Default::default()
    };
    client.release_all(release).await.unwrap();
    let bob = acquire_soon(&mut client, "bob", "t:/a").await;
    assert!(
        bob.fencing_token > amy.fencing_token,
        "{bob:?} after {amy:?}"
    );
}

/// Locks on 16 paths, taken by way of a node.
async fn hold(cluster: &Cluster, at: usize, name: &str) -> Vec<(String, String)> {
    let mut client = cluster.client(at).await;
    let mut held = Vec::new();
    for number in 0..16 {
        let (owner, path) = (format!("{name}-{number}"), format!("t{number}:/{name}"));
        let answer = acquire_soon(&mut client, &owner, &path).await;
        assert_eq!(answer.status(), v1::AcquireStatus::Ok, "{path}");
        held.push((owner, path));
    }
    held
}

/// R169: rolling restart; each node hands over its leaderships first.
#[tokio::test]
async fn a_rolling_restart_loses_nothing() {
    let mut cluster = three(8).await;
    let mut held = hold(&cluster, 0, "before").await;
    for at in 0..3 {
        cluster.terminate(at);
        let other = (at + 1) % 3;
        let status = until(&cluster, other, "led by others", |status| {
            status.groups.iter().all(|group| group.leader != 0)
        })
        .await;
        let down = u32::try_from(at + 1).unwrap();
        assert!(status.groups.iter().all(|group| group.leader != down));
        held.extend(hold(&cluster, other, &format!("without-{at}")).await);
        cluster.start(at);
        until(&cluster, at, "whole again", |status| {
            settled_on(status, &[1, 2, 3]) && status.healthy
        })
        .await;
    }
    assert_held(&cluster, 1, &held).await;
}

/// Fences of a new cluster are larger than all that the old one can have assigned.
async fn assert_lifted(cluster: &Cluster, path: &str) {
    let mut client = cluster.client(0).await;
    let answer = acquire_soon(&mut client, "late", path).await;
    assert_eq!(answer.status(), v1::AcquireStatus::Ok);
    assert!(answer.fencing_token > 1 << 40, "{answer:?}");
}

/// A backup of three nodes is restored into a cluster of one node, which grows again; a damaged
/// backup is refused.
#[tokio::test]
async fn a_backup_is_restored_into_a_cluster_of_another_size() {
    let cluster = three(8).await;
    let held = hold(&cluster, 1, "saved").await;
    let file = cluster.data.path().join("backup");
    let name = file.to_str().unwrap();
    assert!(
        cluster
            .command(2, &["backup", name])
            .starts_with("saved 9 groups")
    );

    // A second backup does not overwrite the first, and says so as JSON, too.
    let before = std::fs::read(&file).unwrap();
    let url = format!("http://{}", cluster.nodes[2].as_ref().unwrap().grpc);
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["cluster", "backup", "--json", name])
        .env("TENURE_URL", url)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let refused: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(refused["code"], 125);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("does not overwrite"), "{message}");
    assert_eq!(std::fs::read(&file).unwrap(), before);

    let mut restored = Cluster::new(8);
    let directory = restored.directory(0);
    let to = directory.to_str().unwrap();
    let arguments = ["restore", name, "--data-dir", to, "--node-id", "node-0"];
    command("", &arguments);
    restored.start(0);
    assert_held(&restored, 0, &held).await;
    assert_lifted(&restored, "t3:/other").await;
    for at in 1..3 {
        restored.start(at);
    }
    until(&restored, 2, "on three nodes", |status| {
        settled_on(status, &[1, 2, 3])
    })
    .await;
    assert_held(&restored, 2, &held).await;

    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let again = restored.data.path().join("again");
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["cluster", "restore", name, "--data-dir"])
        .arg(&again)
        .output()
        .unwrap();
    assert!(!output.status.success() && !again.exists(), "{output:?}");
}

/// R164: two of three nodes are permanently lost; an operator continues with the remaining one.
#[tokio::test]
async fn a_lost_majority_is_given_up_on_an_operators_order() {
    let mut cluster = three(8).await;
    let held = hold(&cluster, 2, "kept").await;
    // Every replica has it: the last entry is applied everywhere.
    until(&cluster, 0, "applied everywhere", |status| {
        status.groups.iter().all(|group| group.lag == 0)
    })
    .await;
    for at in 0..3 {
        cluster.kill(at);
    }
    let directory = cluster.directory(2);
    let to = directory.to_str().unwrap();
    let said = command("", &["recover", "--data-dir", to, "--others-are-lost"]);
    assert!(said.starts_with("recovered 9 of 9 groups"), "{said}");
    assert!(directory.join("db.before-recover.0").exists());
    cluster.start(2);
    let mut alone = Cluster::new(8);
    alone.nodes.push(cluster.nodes[2].take());
    assert_held(&alone, 0, &held).await;
    assert_lifted(&alone, "t3:/other").await;
    // The old nodes belong to another cluster and cannot join the new one.
    alone.nodes[0].take().unwrap().kill();
    let said = command("", &["rejoin", "--data-dir", to]);
    assert!(said.contains("db.damaged.0"), "{said}");
    assert!(!directory.join("db").exists());
}

/// E18 (survey of holds and waiters): `tenure ls` on any node shows the holders and waiters of all groups; without a majority it says so.
#[tokio::test]
async fn every_node_lists_holders_and_waiters() {
    let mut cluster = three(4).await;
    let first = cluster.nodes[0].as_ref().unwrap();
    let acquire = |owner: &str, path: &str| {
        let request = serde_json::json!({
            "ownerId": owner, "ttlMs": 600_000, "queueTtlMs": 600_000, "requests": [{ "path": path }],
            "holder": { "name": owner, "host": "atlas", "pid": 7, "purpose": "import" },
        });
        let limit = Instant::now() + STEP_TIMEOUT;
        while first.post("/v1/acquire", &request).0 != 200 {
            assert!(Instant::now() < limit, "{path} is not served");
        }
    };
    // Several namespaces, so that several groups have some.
    let paths: Vec<String> = (0..8).map(|number| format!("view:/{number}/a")).collect();
    for path in &paths {
        acquire(&format!("one{path}"), path);
        acquire(&format!("two{path}"), path);
    }
    for node in cluster.nodes.iter().flatten() {
        let (code, text) = ls(node);
        assert_eq!(code, Some(0), "{text}");
        let states: serde_json::Value = serde_json::from_str(&text).unwrap();
        let states = states.as_array().unwrap();
        let places: Vec<&str> = states
            .iter()
            .map(|state| state["place"].as_str().unwrap())
            .collect();
        assert_eq!(places, paths);
        for state in states {
            let hold = &state["holders"][0];
            assert_eq!(hold["holder"]["purpose"], "import");
            assert_eq!(hold["holder"]["pid"], 7);
            assert!(
                hold["held_ms"].is_u64() && hold["lease_left_ms"].is_u64(),
                "{hold}"
            );
            assert_eq!(state["waiters"].as_array().unwrap().len(), 1, "{state}");
        }
    }
    cluster.kill(1);
    cluster.kill(2);
    let (code, text) = ls(cluster.nodes[0].as_ref().unwrap());
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("no majority: 1 of 3 nodes are up"), "{text}");
    assert!(text.contains("tenure cluster recover"), "{text}");
}

/// Runs `tenure ls --json view:/` against a node.
fn ls(node: &Daemon) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["ls", "--json", "view:/"])
        .env("TENURE_URL", format!("tenure://{}", node.grpc))
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
    )
}
