//! A cluster of real processes on this machine: it forms, survives kills, and loses nothing.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use support::Daemon;
use tempfile::TempDir;
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tonic::transport::Channel;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Everything must have happened after this long, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

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

    /// Starts a node; the first one begins the cluster, the others join by whoever is up.
    fn start(&mut self, at: usize) {
        let seeds: Vec<String> = self
            .nodes
            .iter()
            .flatten()
            .filter_map(|node| Some(node.gossip?.to_string()))
            .collect();
        let seeds = seeds.join(",");
        let name = format!("node-{at}");
        let mut environment = vec![
            ("TENURE_NODE_ID", name.as_str()),
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

    fn kill(&mut self, at: usize) {
        self.nodes[at].take().unwrap().kill();
    }

    async fn client(&self, at: usize) -> PathLockClient<Channel> {
        PathLockClient::new(self.nodes[at].as_ref().unwrap().channel().await)
    }
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

/// Acquires, trying again while the node says that it cannot now.
async fn acquire_soon(
    client: &mut PathLockClient<Channel>,
    owner: &str,
    path: &str,
) -> v1::AcquireResponse {
    let end = Instant::now() + PATIENCE;
    loop {
        match client.acquire(acquire(owner, path)).await {
            Ok(answer) => return answer.into_inner(),
            Err(status) => assert!(Instant::now() < end, "{owner} {path}: {status}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// R163: three processes form a cluster; a lock taken by way of one is seen by way of the others.
#[tokio::test]
async fn any_node_serves_any_client() {
    let mut cluster = Cluster::new(8);
    for at in 0..3 {
        cluster.start(at);
    }
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
}
