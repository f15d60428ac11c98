//! Clients whose calls are checked for linearizability: they reuse their owners, give every call a key,
//! and send it to a second node while the first attempt lives.
//!
//! A story is one path or one namespace with a few clients, and ends after a few dozen calls, which keeps
//! the search of the checker short. An attempt that is answered late is not cancelled: its call has been
//! answered by another one, so it must have no effect any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tokio::sync::mpsc;
use tonic::transport::Channel;

use crate::checkers::Checkers;
use crate::clients::{Client, next};
use crate::linearizability::{
    Lock, LockCall, Operation, PolicyCall, PolicyRegister, Sequential, check,
};

/// Longer than the test: no lease ends by itself.
const TTL_MS: u64 = 3_000_000;
/// Clients of one story, and the calls of each.
const CLIENTS: usize = 3;
const CALLS: usize = 10;
/// A call without an answer for so long ends its client's part of the story.
const GIVE_UP: Duration = Duration::from_secs(12);
/// The pause before the second attempt of a call that later attempts repeat in any case, and of an
/// acquire: a refusal is not remembered under its key, so a second attempt may be granted after it.
const HEDGE: Duration = Duration::from_millis(40);
const HEDGE_ACQUIRE: Duration = Duration::from_millis(900);
/// The pause before every further attempt.
const RETRY: Duration = Duration::from_millis(2_500);

type History<C> = Arc<Mutex<Vec<Operation<C>>>>;

/// Plays one story after the other.
pub(crate) async fn stories(client: Client, checkers: Arc<Checkers>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        locks(&client, &checkers).await;
        policies(&client, &checkers).await;
    }
}

async fn locks(client: &Client, checkers: &Checkers) {
    let path = format!("h{}:/a/x", next());
    let history: History<LockCall> = Arc::default();
    let parts = (0..CLIENTS).map(|_| {
        let part = lock_part(client.fresh(), path.clone(), Arc::clone(&history));
        tokio::spawn(part)
    });
    judge::<Lock>(parts.collect(), &history, checkers, &path).await;
}

async fn policies(client: &Client, checkers: &Checkers) {
    let namespace = format!("i{}:/a/b", next());
    let history: History<PolicyCall> = Arc::default();
    let parts = (0..CLIENTS).map(|_| {
        let part = policy_part(client.fresh(), namespace.clone(), Arc::clone(&history));
        tokio::spawn(part)
    });
    judge::<PolicyRegister>(parts.collect(), &history, checkers, &namespace).await;
}

/// Waits for the clients of a story and checks what they saw.
async fn judge<S: Sequential>(
    parts: Vec<tokio::task::JoinHandle<()>>,
    history: &History<S::Call>,
    checkers: &Checkers,
    about: &str,
) {
    for part in parts {
        part.await.unwrap();
    }
    let history = std::mem::take(&mut *history.lock().unwrap());
    checkers.count("stories");
    if let Err(what) = check::<S>(&history) {
        checkers.wrong(format!("{about} is not linearizable: {what}"));
    }
}

/// Acquires and releases under one owner, and reads in between.
async fn lock_part(mut client: Client, path: String, history: History<LockCall>) {
    let mut owner = format!("teller-{}", next());
    let mut calls = 0;
    while calls < CALLS {
        calls += 1;
        if client.random.below(3) == 0 {
            let asked = v1::InspectPathRequest { path: path.clone() };
            let read = hedged(&mut client, HEDGE, move |mut node| {
                let asked = asked.clone();
                async move { node.inspect_path(asked).await.ok() }
            });
            let Some((sent, answer, _)) = read.await else {
                continue;
            };
            let holder = Some(answer.write_owner).filter(|holder| !holder.is_empty());
            let fence = answer.fence;
            note(&history, sent, true, LockCall::Seen { holder, fence });
            continue;
        }
        let request = v1::AcquireRequest {
            owner_id: owner.clone(),
            ttl_ms: TTL_MS,
            requests: vec![v1::LockRequest {
                path: path.clone(),
                mode: v1::Mode::Write.into(),
                ..Default::default()
            }],
            idempotency_key: format!("acquire {}", next()),
            no_wait: true,
            ..Default::default()
        };
        let begun = Instant::now();
        let acquire = hedged(&mut client, HEDGE_ACQUIRE, move |mut node| {
            let request = request.clone();
            async move { node.acquire(request).await.ok() }
        });
        let granted = |fence| LockCall::Granted {
            owner: owner.clone(),
            fence,
        };
        match acquire.await {
            None => {
                // It may take effect at any time: this owner is used no more.
                note(&history, begun, false, granted(None));
                return;
            }
            Some((sent, answer, _)) if answer.status() == v1::AcquireStatus::Ok => {
                note(&history, sent, true, granted(Some(answer.fencing_token)));
            }
            Some((sent, _, attempts)) => {
                let refused = LockCall::Refused {
                    owner: owner.clone(),
                };
                note(&history, sent, true, refused);
                if attempts > 1 {
                    // Another attempt may still be granted: this owner is used no more.
                    note(&history, sent, false, granted(None));
                    owner = format!("teller-{}", next());
                }
                tokio::time::sleep(Duration::from_millis(client.random.below(60))).await;
                continue;
            }
        }
        calls += 1;
        let request = v1::ReleaseAllRequest {
            owner_id: owner.clone(),
            idempotency_key: format!("release {}", next()),
            ..Default::default()
        };
        let begun = Instant::now();
        let release = hedged(&mut client, HEDGE, move |mut node| {
            let request = request.clone();
            async move { node.release_all(request).await.ok() }
        });
        let released = LockCall::Released {
            owner: owner.clone(),
        };
        match release.await {
            None => {
                note(&history, begun, false, released);
                return;
            }
            Some((sent, ..)) => note(&history, sent, true, released),
        }
    }
}

/// Sets and reads the policy of a namespace in which nothing is locked.
async fn policy_part(mut client: Client, namespace: String, history: History<PolicyCall>) {
    for _ in 0..CALLS / 2 {
        if client.random.below(2) == 0 {
            let asked = v1::GetNamespacePolicyRequest {
                namespace: namespace.clone(),
            };
            let read = hedged(&mut client, HEDGE, move |mut node| {
                let asked = asked.clone();
                async move { node.get_namespace_policy(asked).await.ok() }
            });
            if let Some((sent, answer, _)) = read.await {
                let policy = answer.explicit.then_some(answer.algorithm);
                note(&history, sent, true, PolicyCall::Got(policy));
            }
            continue;
        }
        let policy = client.random.below(4) as i32;
        let request = v1::SetNamespacePolicyRequest {
            namespace: namespace.clone(),
            algorithm: policy,
            idempotency_key: format!("policy {}", next()),
        };
        let begun = Instant::now();
        let set = hedged(&mut client, HEDGE, move |mut node| {
            let request = request.clone();
            async move { node.set_namespace_policy(request).await.ok() }
        });
        match set.await {
            None => {
                note(&history, begun, false, PolicyCall::Set(policy));
                return;
            }
            Some((sent, ..)) => note(&history, sent, true, PolicyCall::Set(policy)),
        }
    }
}

fn note<C>(history: &History<C>, sent: Instant, answered: bool, call: C) {
    let operation = Operation {
        call,
        sent,
        answered: answered.then(Instant::now),
    };
    history.lock().unwrap().push(operation);
}

/// Sends a call to several nodes, each attempt a little later, and again to the next node after every
/// failure. Returns when it was first sent, the first answer, and the number of attempts. The other
/// attempts go on.
async fn hedged<T, F>(
    client: &mut Client,
    mut pause: Duration,
    call: impl Fn(PathLockClient<Channel>) -> F,
) -> Option<(Instant, T, u32)>
where
    T: Send + 'static,
    F: Future<Output = Option<tonic::Response<T>>> + Send + 'static,
{
    let sent = Instant::now();
    let end = sent + GIVE_UP;
    let (sender, mut answers) = mpsc::unbounded_channel();
    let mut attempts = 0;
    loop {
        attempts += 1;
        client.at = (client.at + 1) % client.nodes.len();
        let attempt = call(client.nodes[client.at].clone());
        let sender = sender.clone();
        tokio::spawn(async move {
            // The story may be over.
            let _ = sender.send(attempt.await);
        });
        // One attempt more after a pause, or when one has failed.
        let waited = std::mem::replace(&mut pause, RETRY);
        match tokio::time::timeout(waited, answers.recv()).await {
            Ok(Some(Some(answer))) => return Some((sent, answer.into_inner(), attempts)),
            _ if Instant::now() >= end => return None,
            Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(_) => {}
        }
    }
}
