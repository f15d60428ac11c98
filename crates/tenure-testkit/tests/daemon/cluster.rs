//! Failover: of three nodes one is killed, and the holds of a client continue on the others.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenure::Lease;
use tenure_wire::cluster::StatusRequest;
use tenure_wire::cluster::cluster_client::ClusterClient;

use crate::LONG;
use crate::support::daemon::{Daemon, client};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Starts three nodes of one cluster, with every group on all of them.
fn three(data: &TempDir) -> Vec<Daemon> {
    let mut nodes: Vec<Daemon> = Vec::new();
    for number in 0..3 {
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let (name, public) = (format!("node-{number}"), format!("http://{free}"));
        let seeds: Vec<&str> = nodes.iter().map(|node| node.gossip.as_str()).collect();
        let seeds = seeds.join(",");
        let mut keys = vec![
            ("TENURE_NODE_ID", name.as_str()),
            ("TENURE_PUBLIC_ADDR", &public),
            ("TENURE_INTERNAL_AUTH_TOKEN", SECRET),
            ("TENURE_RAFT_ADDR", "http://127.0.0.1:0"),
            ("TENURE_GOSSIP_ADDR", "127.0.0.1:0"),
            ("TENURE_STABILITY_WINDOW_SECS", "0"),
            ("TENURE_MAX_CONCURRENT_RECONCILES", "64"),
            ("TENURE_GOSSIP_SEED_ANNOUNCE_INTERVAL_MS", "200"),
        ];
        match seeds.as_str() {
            "" => keys.push(("TENURE_BOOTSTRAP", "true")),
            seeds => keys.push(("TENURE_SEED_NODES", seeds)),
        }
        nodes.push(Daemon::start_with(
            &data.path().join(&name),
            &free,
            &[],
            &keys,
        ));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(settle(&nodes[0]));
    nodes
}

/// Waits until every group has settled on three nodes.
async fn settle(node: &Daemon) {
    let target = tonic::transport::Endpoint::from_shared(format!("http://{}", node.node)).unwrap();
    let mut client = ClusterClient::new(target.connect().await.unwrap());
    let end = Instant::now() + 2 * LONG;
    loop {
        let status = client.status(StatusRequest {}).await.unwrap().into_inner();
        let at_rest = status.groups.iter().all(|group| {
            let voters: BTreeSet<u32> = group.voters.iter().copied().collect();
            group.leader != 0 && !group.changing && group.learners.is_empty() && voters.len() == 3
        });
        if at_rest && !status.groups.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "never at rest: {status:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Promise 2: the loss of a node, and of the leaders on it, loses no lock and no queue entry.
#[test]
fn holds_and_waiters_survive_the_death_of_a_node() {
    let data = tempfile::tempdir().unwrap();
    let mut nodes = three(&data);
    let all: Vec<_> = nodes.iter().map(|node| node.node.clone()).collect();
    let tenure = client(&all).session("holder");
    let ttl = Duration::from_secs(15);
    // Enough namespaces for every group to have some.
    let guards: Vec<_> = (0..8)
        .map(|number| {
            let lock = tenure.lock(format!("t:/{number}")).unwrap().blocking();
            lock.ttl(ttl).acquire().unwrap()
        })
        .collect();
    let fences: Vec<_> = guards.iter().map(tenure::blocking::Guard::fence).collect();
    let other = client(&all);
    thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let waiting = scope.spawn(move || {
            let lock = other.lock("t:/0").unwrap().blocking().wait(2 * LONG);
            let tell = move |_: &tenure::Busy| {
                let _ = tell.send(());
            };
            lock.on_wait(tell).acquire()
        });
        told.recv_timeout(LONG).unwrap();
        // The node that both clients are connected to.
        nodes[0].kill();
        let killed = Lease::now();
        for guard in &guards {
            guard.check().unwrap();
            while guard.lease().unwrap().sent < killed {
                guard.still_held().unwrap();
                thread::sleep(Duration::from_millis(10));
            }
        }
        let after: Vec<_> = guards.iter().map(tenure::blocking::Guard::fence).collect();
        assert_eq!(fences, after);
        for guard in guards {
            guard.release().unwrap();
        }
        let next = waiting.join().unwrap().unwrap();
        assert!(next.fence() > fences[0]);
        next.release().unwrap();
    });
}
