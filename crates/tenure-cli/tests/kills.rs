//! R152: `kill -9` at any moment loses nothing that was acknowledged.
//!
//! A client records every answer; the daemon is killed at a random moment and restarted on the same
//! directory; then the acknowledged state is compared with the present one, including fences, queue
//! positions, policies and idempotency keys.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use support::Daemon;
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tonic::transport::Channel;

/// Number of kills; more on request.
fn kills() -> u32 {
    std::env::var("TENURE_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(50)
}

/// What the client knows for certain.
#[derive(Default)]
struct Known {
    /// Path to owner and fence.
    held: BTreeMap<String, (String, i64)>,
    /// The highest fence ever seen for a path.
    highest: BTreeMap<String, i64>,
    /// Idempotency key to the fence that it was answered.
    keys: Vec<(String, String, i64)>,
    /// Namespace to algorithm.
    policies: BTreeMap<String, i32>,
    /// Waiters that were answered QUEUED, in order.
    waiting: Vec<String>,
}

async fn connect(daemon: &Daemon) -> PathLockClient<Channel> {
    PathLockClient::new(daemon.channel().await)
}

fn acquire(owner: &str, path: &str) -> v1::AcquireRequest {
    v1::AcquireRequest {
        owner_id: owner.into(),
        ttl_ms: 600_000,
        queue_ttl_ms: 600_000,
        requests: vec![v1::LockRequest {
            path: path.into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost() {
    let data = tempfile::tempdir().unwrap();
    let mut known = Known::default();
    let mut counter = 0u64;
    let mut daemon = Daemon::start(data.path());
    // One lock that is never released, and a queue behind it that must keep its order.
    let mut client = connect(&daemon).await;
    client
        .acquire(acquire("keeper", "line:/a/b"))
        .await
        .unwrap();
    for round in 0..kills() {
        let deadline = Duration::from_millis(20 + u64::from(round * 37 % 150));
        let load = load(&mut client, &mut known, &mut counter, round);
        // The load never ends by itself; unanswered calls are not recorded.
        let _ = tokio::time::timeout(deadline, load).await;
        daemon.kill();
        daemon = Daemon::start(data.path());
        client = connect(&daemon).await;
        compare(&mut client, &known, round).await;
    }
    println!(
        "{} kills: {} holds, {} keys, {} policies, {} waiters, {} operations",
        kills(),
        known.held.len(),
        known.keys.len(),
        known.policies.len(),
        known.waiting.len(),
        counter
    );
    assert!(counter > u64::from(kills()), "the load did nothing");
}

/// Acquires, releases, queues and sets policies without end, and records the answers.
async fn load(
    client: &mut PathLockClient<Channel>,
    known: &mut Known,
    counter: &mut u64,
    round: u32,
) {
    let waiter = format!("waiter-{round}");
    let queued = client.acquire(acquire(&waiter, "line:/a/b")).await;
    if queued.is_ok_and(|answer| answer.get_ref().status() == v1::AcquireStatus::Queued) {
        known.waiting.push(waiter);
    }
    let namespace = format!("p{}:/n", round % 7);
    let algorithm = i32::try_from(round % 4).unwrap();
    let policy = v1::SetNamespacePolicyRequest {
        namespace: namespace.clone(),
        algorithm,
        idempotency_key: String::new(),
    };
    // Unknown while the call is running.
    known.policies.remove(&namespace);
    if client.set_namespace_policy(policy).await.is_ok() {
        known.policies.insert(namespace, algorithm);
    }
    loop {
        *counter += 1;
        let path = format!("k{}:/a/{}", *counter % 5, *counter % 23);
        match known.held.remove(&path) {
            Some((owner, _)) => {
                let release = v1::ReleaseLocksRequest {
                    owner_id: owner,
                    requests: vec![v1::ReleaseRequest { path, mode: 0 }],
                    ..Default::default()
                };
                if client.release(release).await.is_err() {
                    return;
                }
            }
            None => {
                let owner = format!("owner-{counter}");
                let key = format!("key-{counter}");
                let request = v1::AcquireRequest {
                    idempotency_key: key.clone(),
                    no_wait: true,
                    ..acquire(&owner, &path)
                };
                let Ok(answer) = client.acquire(request).await else {
                    return;
                };
                let answer = answer.into_inner();
                if answer.status() == v1::AcquireStatus::Ok {
                    known.highest.insert(path.clone(), answer.fencing_token);
                    known.keys.push((key, path.clone(), answer.fencing_token));
                    known.held.insert(path, (owner, answer.fencing_token));
                }
            }
        }
    }
}

/// Everything that was acknowledged is there.
async fn compare(client: &mut PathLockClient<Channel>, known: &Known, round: u32) {
    for (path, (owner, fence)) in &known.held {
        let request = v1::AssertFencingRequest {
            owner_id: owner.clone(),
            fencing_token: *fence,
            paths: vec![path.clone()],
        };
        let answer = client.assert_fencing(request).await.unwrap().into_inner();
        assert_eq!(
            answer.status(),
            v1::AssertStatus::Ok,
            "round {round}: {owner} lost {path}"
        );
    }
    for (path, highest) in &known.highest {
        let request = v1::InspectPathRequest { path: path.clone() };
        let found = client.inspect_path(request).await.unwrap().into_inner();
        assert!(
            found.fence >= *highest,
            "round {round}: the fence of {path} went back"
        );
    }
    for (namespace, algorithm) in &known.policies {
        let request = v1::GetNamespacePolicyRequest {
            namespace: namespace.clone(),
        };
        let row = client
            .get_namespace_policy(request)
            .await
            .unwrap()
            .into_inner();
        assert!(
            row.explicit,
            "round {round}: the policy of {namespace} is gone"
        );
        assert_eq!(
            row.algorithm, *algorithm,
            "round {round}: the policy of {namespace}"
        );
    }
    // A repeat under its key is the same request (R102 keyed requests apply once, R105 replays
    // report present truth): same fence while it is held.
    for (key, path, fence) in known.keys.iter().rev().take(5) {
        if known.held.get(path).is_none_or(|(_, held)| held != fence) {
            continue;
        }
        let (owner, _) = &known.held[path];
        let request = v1::AcquireRequest {
            idempotency_key: key.clone(),
            no_wait: true,
            ..acquire(owner, path)
        };
        let answer = client.acquire(request).await.unwrap().into_inner();
        assert_eq!(
            answer.status(),
            v1::AcquireStatus::Ok,
            "round {round}: {key}"
        );
        assert_eq!(
            answer.fencing_token, *fence,
            "round {round}: {key} was applied twice"
        );
    }
    // Every queued waiter is still there, in order.
    if let Some(last) = known.waiting.last() {
        let request = v1::ExplainRequest {
            path: "line:/a/b".into(),
            owner_id: "a-newcomer".into(),
            mode: 0,
        };
        let explained = client.explain(request).await.unwrap().into_inner();
        let ahead: Vec<&str> = explained
            .waiters_ahead
            .iter()
            .map(|w| w.owner.as_str())
            .collect();
        let mut places = known
            .waiting
            .iter()
            .map(|w| ahead.iter().position(|a| a == w));
        assert!(
            places.all(|place| place.is_some()),
            "round {round}: {last} and others: {ahead:?}"
        );
        let order: Vec<usize> = known
            .waiting
            .iter()
            .filter_map(|waiter| ahead.iter().position(|a| a == waiter))
            .collect();
        assert!(
            order.is_sorted(),
            "round {round}: the line changed its order: {ahead:?}"
        );
    }
}
