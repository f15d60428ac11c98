//! Benchmark of lock hand-over: a single node on a real disk, call batches as in the server, no
//! sockets.
//!
//! `cargo bench -p tenure-cluster --bench handoff -- [--json] [--seconds N]`
//!
//! All owners want the same path: each one releases it as soon as it is granted and queues again.
//! One handoff is a release and the grant of the next waiter, which are one entry and one sync. The
//! benchmark also reports syncs per handoff, which is 1 if the owners that queue again share the
//! sync of the next release.
//!
//! `-- --pairs N` makes N pairs of acquire and release instead, one call at a time, and reports
//! nothing: it is the load for counting instructions (`valgrind --tool=callgrind`). Two runs with
//! different N give the instructions of one pair.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark has threads, a clock and something to say"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_cluster::{CallBatch, Completion, Options, RunningNode, SyncPolicy};
use tenure_core::command::{Hold, Request, RequestKind, WaitMode};
use tenure_core::event::EventKind;
use tenure_core::path::Path;
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::value::{OwnerId, QueueTtl, Ttl};
use tenure_node::*;

const SESSIONS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let json = words.iter().any(|word| word == "--json");
    let at = words.iter().position(|word| word == "--seconds");
    let seconds = at.and_then(|at| words.get(at + 1)?.parse().ok());
    let seconds = Duration::from_secs(seconds.unwrap_or(3));
    let at = words.iter().position(|word| word == "--pairs");
    if let Some(pairs) = at.and_then(|at| words.get(at + 1)?.parse().ok()) {
        unary_pairs(pairs);
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    for waiters in [8, 64, 256] {
        let (rate, syncs) = runtime.block_on(measure(waiters, seconds));
        for (figure, value) in [("handoffs/s", rate), ("syncs per handoff", syncs)] {
            if json {
                println!(
                    r#"{{"bench":"handoff","name":"{waiters} waiters","value":{value:.2},"unit":"{figure}"}}"#
                );
            } else {
                println!("{waiters:4} waiters {value:12.2} {figure}");
            }
        }
    }
}

/// Makes calls like those of a unary client: the next one is sent after the answer of the last one.
fn unary_pairs(pairs: usize) {
    let directory = tempfile::tempdir().expect("a place for the log");
    let node = start(directory.path());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let handle = node.handle();
    runtime.block_on(async {
        for _ in 0..pairs {
            for request in [acquire(owner(0)), release(owner(0))] {
                let call = handle.defer_wake(|| handle.call(Box::new(request), TIMEOUT));
                call.await.expect("nothing fails in a benchmark");
            }
        }
    });
    node.stop();
}

fn start(data_dir: &std::path::Path) -> RunningNode {
    tenure_cluster::start(Options {
        data_dir: data_dir.to_owned(),
        node: NodeId::new(1).expect("not zero"),
        name: "bench".to_owned(),
        cluster: ClusterConfig {
            group_count: 256,
            prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        },
        limits: Limits::default(),
        durable: SyncPolicy::Yes,
        peers: None,
    })
    .expect("a fresh directory")
}

async fn measure(waiters: usize, seconds: Duration) -> (f64, f64) {
    let directory = tempfile::tempdir().expect("a place for the log");
    let node = start(directory.path());
    let handoffs = Arc::new(AtomicU64::new(0));
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        let owners = (number..waiters).step_by(SESSIONS).map(owner);
        let session = Session {
            calls: node.handle().calls(8_192),
            owners: owners.collect(),
            handoffs: Arc::clone(&handoffs),
        };
        sessions.push(tokio::spawn(session.run()));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, synced, since) = (
        handoffs.load(Ordering::Relaxed),
        syncs(&node).await,
        Instant::now(),
    );
    tokio::time::sleep(seconds).await;
    let done = (handoffs.load(Ordering::Relaxed) - before) as f64;
    let synced = (syncs(&node).await - synced) as f64;
    let rate = done / since.elapsed().as_secs_f64();
    for session in sessions {
        session.abort();
    }
    node.stop();
    (rate, synced / done.max(1.0))
}

async fn syncs(node: &RunningNode) -> u64 {
    let vitals = node.handle().vitals().await.expect("a running node");
    vitals.syncs.count()
}

fn owner(number: usize) -> OwnerId {
    OwnerId::new(&format!("owner-{number}")).expect("a valid owner")
}

fn path() -> Path {
    Path::parse("bench:/hot/lock").expect("a valid path")
}

/// Some of the waiters, behind one connection. A call's tag is the owner's number, shifted left by
/// one; the lowest bit tells whether the call is a release.
struct Session {
    calls: CallBatch,
    owners: Vec<OwnerId>,
    handoffs: Arc<AtomicU64>,
}

impl Session {
    async fn run(mut self) {
        for at in 0..self.owners.len() {
            self.calls.listen(&self.owners[at]);
            self.queue(at);
        }
        self.calls.flush();
        let mut heard = Vec::new();
        loop {
            std::future::poll_fn(|cx| self.calls.poll(cx, &mut heard)).await;
            for one in heard.drain(..) {
                self.hear(one);
            }
            self.calls.flush();
        }
    }

    fn hear(&mut self, heard: Completion) {
        match heard {
            Completion::Answer { tag, answer, .. } => {
                let answer = answer.expect("nothing fails in a benchmark");
                let at = (tag >> 1) as usize;
                if tag & 1 == 1 {
                    self.queue(at);
                } else if matches!(answer, Answer::Acquire(AcquireAnswer::Granted { .. })) {
                    self.give_back(at);
                }
            }
            Completion::Event(event) => {
                let at = self.owners.iter().position(|owner| *owner == event.owner);
                if let (Some(at), EventKind::Grant { .. }) = (at, event.kind) {
                    self.handoffs.fetch_add(1, Ordering::Relaxed);
                    self.give_back(at);
                }
            }
            Completion::Ended(why) => panic!("{why:?}"),
        }
    }

    fn queue(&mut self, at: usize) {
        let request = acquire(self.owners[at].clone());
        self.calls
            .push((at as u64) << 1, Box::new(request), TIMEOUT);
    }

    fn give_back(&mut self, at: usize) {
        let request = release(self.owners[at].clone());
        self.calls
            .push((at as u64) << 1 | 1, Box::new(request), TIMEOUT);
    }
}

fn acquire(owner: OwnerId) -> ClientRequest {
    ClientRequest::Acquire(AcquireRequest {
        owner,
        ttl: Ttl::from_millis(600_000).expect("a valid ttl"),
        queue_ttl: QueueTtl::from_millis(600_000).expect("a valid time"),
        requests: vec![Request {
            path: path(),
            mode: Mode::Write,
            state: RequestKind::New,
            permits: None,
        }],
        releases: Vec::new(),
        fence: None,
        key: None,
        wait: WaitMode::Queue,
        holder: None,
        deadlock: Deadlock::Ignore,
    })
}

fn release(owner: OwnerId) -> ClientRequest {
    ClientRequest::Release(ReleaseRequest {
        owner,
        holds: vec![Hold {
            path: path(),
            mode: Mode::Write,
        }],
        edge: WaitEdge::Keep,
        key: None,
    })
}
