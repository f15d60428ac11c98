//! Load: clients that know only addresses and the protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use crate::checkers::{Belief, Checkers, until};
use tenure_random::SplitMix64;

use crate::faults::Fault;
use crate::histories::stories;
use crate::nodes::Cluster;

/// Short, so that leases end during the faults.
const TTL_MS: u64 = 2_000;
/// Longer than any fault, so that no waiter loses its queue entry.
const LINE_TTL_MS: u64 = 120_000;
/// For locks that must be there at the end.
const KEPT_TTL_MS: u64 = 3_000_000;
const LINE: &str = "line:/a/b";

/// A client that fails over to the next node.
pub(crate) struct Client {
    pub(crate) nodes: Vec<PathLockClient<Channel>>,
    pub(crate) at: usize,
    pub(crate) random: SplitMix64,
}

impl Client {
    fn new(addresses: &[String], number: u64) -> Client {
        let connect = |address: &String| {
            let endpoint = Endpoint::from_shared(address.clone()).unwrap();
            let endpoint = endpoint
                .connect_timeout(Duration::from_millis(500))
                .timeout(Duration::from_secs(4));
            PathLockClient::new(endpoint.connect_lazy())
        };
        Client {
            nodes: addresses.iter().map(connect).collect(),
            at: number as usize % addresses.len(),
            random: SplitMix64::new(number + 1000),
        }
    }

    /// Another client of the same nodes.
    pub(crate) fn fresh(&self) -> Client {
        Client {
            nodes: self.nodes.clone(),
            at: self.at,
            random: SplitMix64::new(next()),
        }
    }

    fn node(&mut self) -> &mut PathLockClient<Channel> {
        &mut self.nodes[self.at]
    }

    async fn elsewhere(&mut self) {
        self.at = (self.at + 1) % self.nodes.len();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    /// Retries under one key until a node answers.
    async fn acquire(
        &mut self,
        request: v1::AcquireRequest,
        tries: u32,
    ) -> Option<v1::AcquireResponse> {
        for _ in 0..tries {
            match self.node().acquire(request.clone()).await {
                Ok(answer) => return Some(answer.into_inner()),
                Err(_) => self.elsewhere().await,
            }
        }
        None
    }

    async fn release(&mut self, owner: &str, path: &str, mode: i32, tries: u32) -> bool {
        let request = v1::ReleaseLocksRequest {
            owner_id: owner.to_owned(),
            requests: vec![v1::ReleaseRequest {
                path: path.to_owned(),
                mode,
            }],
            idempotency_key: format!("release {owner}"),
            ..Default::default()
        };
        for _ in 0..tries {
            match self.node().release(request.clone()).await {
                Ok(_) => return true,
                Err(_) => self.elsewhere().await,
            }
        }
        false
    }
}

fn request(owner: &str, path: &str, mode: v1::Mode, ttl_ms: u64) -> v1::AcquireRequest {
    v1::AcquireRequest {
        owner_id: owner.to_owned(),
        ttl_ms,
        requests: vec![v1::LockRequest {
            path: path.to_owned(),
            mode: mode.into(),
            ..Default::default()
        }],
        idempotency_key: format!("acquire {owner}"),
        no_wait: true,
        ..Default::default()
    }
}

/// An acknowledged lock that must be there at the end.
struct Kept {
    owner: String,
    path: String,
    fence: i64,
}

/// All clients. They run until [`Load::settle`].
pub(crate) struct Load {
    addresses: Vec<String>,
    checkers: Arc<Checkers>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    supervisors: JoinSet<Vec<Kept>>,
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

pub(crate) fn next() -> u64 {
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

impl Load {
    pub(crate) async fn start(addresses: Vec<String>, checkers: Arc<Checkers>) -> Load {
        let mut load = Load {
            addresses,
            checkers,
            stop: Arc::default(),
            tasks: JoinSet::new(),
            supervisors: JoinSet::new(),
        };
        for _ in 0..12 {
            let (client, checkers, stop) = load.parts();
            load.tasks.spawn(lockers(client, checkers, stop));
        }
        for _ in 0..6 {
            let (client, checkers, stop) = load.parts();
            load.tasks.spawn(waiters(client, checkers, stop));
        }
        for _ in 0..3 {
            let (client, checkers, stop) = load.parts();
            load.tasks.spawn(readers(client, checkers, stop));
        }
        for _ in 0..2 {
            let (client, checkers, stop) = load.parts();
            load.tasks.spawn(stories(client, checkers, stop));
        }
        for _ in 0..2 {
            let (client, _, stop) = load.parts();
            load.supervisors.spawn(supervisors(client, stop));
        }
        load
    }

    fn parts(&self) -> (Client, Arc<Checkers>, Arc<AtomicBool>) {
        let client = Client::new(&self.addresses, next());
        (client, Arc::clone(&self.checkers), Arc::clone(&self.stop))
    }

    /// Returns what each node says of each namespace, to analyse a queue that does not move.
    async fn what_is_stuck(&self) -> String {
        let mut said = String::new();
        let (mut client, ..) = self.parts();
        for at in 0..client.nodes.len() {
            client.at = at;
            let health = client.node().health(v1::HealthRequest {}).await;
            let health = health.map(tonic::Response::into_inner);
            said += &format!("\nnode {at}: {health:?}");
            for path in (0..8).map(|n| format!("t{n}:/a/x")).chain([LINE.into()]) {
                let asked = v1::ExplainRequest {
                    path: path.clone(),
                    owner_id: "nobody".into(),
                    mode: 0,
                };
                let answer = client.node().explain(asked).await;
                let answer = answer.map(tonic::Response::into_inner);
                said += &format!("\n  {path}: {answer:?}");
            }
        }
        said
    }

    /// Ends the load after the faults: every client finishes, and everything acknowledged is there.
    pub(crate) async fn settle(mut self, healed: &Cluster) {
        // Some time without faults: queues move, leases renew.
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.stop.store(true, Ordering::Relaxed);
        let ended = tokio::time::timeout(Duration::from_secs(90), async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.unwrap();
            }
        });
        if ended.await.is_err() {
            panic!("a client waits without end: {}", self.what_is_stuck().await);
        }
        let mut kept = Vec::new();
        while let Some(some) = self.supervisors.join_next().await {
            kept.extend(some.unwrap());
        }
        assert!(!kept.is_empty());
        // Every node answers now; on the spare machine there is none.
        let members = healed.members().into_iter();
        let addresses: Vec<String> = members.map(|node| healed.address(node)).collect();
        let mut client = Client::new(&addresses, next());
        for one in &kept {
            let asked = v1::AssertFencingRequest {
                owner_id: one.owner.clone(),
                fencing_token: one.fence,
                paths: vec![one.path.clone()],
            };
            let answer = client
                .node()
                .assert_fencing(asked)
                .await
                .unwrap()
                .into_inner();
            if answer.status() != v1::AssertStatus::Ok {
                self.checkers.wrong(format!(
                    "{} was acknowledged to {} and is lost",
                    one.path, one.owner
                ));
            }
            client.at = (client.at + 1) % client.nodes.len();
            self.checkers.count("kept");
        }
        // R102 (keyed requests apply once), R105: a repeat under its key is answered as the first
        // was.
        for one in kept.iter().rev().take(50) {
            let again = request(&one.owner, &one.path, v1::Mode::Write, KEPT_TTL_MS);
            let answer = client.acquire(again, 5).await.unwrap();
            if answer.fencing_token != one.fence {
                self.checkers.wrong(format!(
                    "{}: a repeated acquire was applied twice",
                    one.path
                ));
            }
        }
    }
}

/// Acquires locks, works under them, renews, releases, and sometimes dies.
async fn lockers(mut client: Client, checkers: Arc<Checkers>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let owner = format!("locker-{}", next());
        let path = format!("t{}:/a/x", client.random.below(8));
        let shared = client.random.below(4) == 0;
        let mode = if shared {
            v1::Mode::Read
        } else {
            v1::Mode::Write
        };
        let sent = Instant::now();
        let asked = request(&owner, &path, mode, TTL_MS);
        let Some(answer) = client.acquire(asked, 4).await else {
            checkers.count("unanswered");
            continue;
        };
        if answer.status() != v1::AcquireStatus::Ok {
            checkers.count("conflicts");
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        let fence = answer.fencing_token;
        let belief = Belief {
            owner: owner.clone(),
            shared,
            since: Instant::now(),
            until: until(sent, TTL_MS),
            fence,
        };
        checkers.granted(&path, belief, sent);
        for _ in 0..client.random.below(4) {
            if !shared && checkers.believes(&path, &owner) {
                checkers.writes(&path, &owner, fence);
                check(&mut client, &checkers, &path, &owner, fence).await;
            }
            tokio::time::sleep(Duration::from_millis(client.random.below(300))).await;
            let sent = Instant::now();
            let renew = v1::RenewRequest {
                owner_id: owner.clone(),
                ttl_ms: TTL_MS,
                ..Default::default()
            };
            match client.node().renew(renew).await {
                Ok(answer) if answer.get_ref().status() == v1::RenewStatus::Ok => {
                    if !checkers.renewed(&path, &owner, until(sent, TTL_MS)) {
                        break;
                    }
                }
                Ok(_) => {
                    if checkers.believes(&path, &owner) {
                        checkers.disowned(&path, &owner);
                    }
                    break;
                }
                Err(_) => client.elsewhere().await,
            }
        }
        if client.random.below(10) == 0 {
            checkers.count("deaths");
            continue;
        }
        checkers.stops(&path, &owner);
        client.release(&owner, &path, mode.into(), 3).await;
    }
}

/// R74: the daemon agrees with a holder that believes before and after the query.
async fn check(client: &mut Client, checkers: &Checkers, path: &str, owner: &str, fence: i64) {
    let asked = v1::AssertFencingRequest {
        owner_id: owner.to_owned(),
        fencing_token: fence,
        paths: vec![path.to_owned()],
    };
    match client.node().assert_fencing(asked).await {
        Ok(answer) => {
            checkers.count("checks");
            if answer.get_ref().status() != v1::AssertStatus::Ok && checkers.believes(path, owner) {
                checkers.disowned(path, owner);
            }
        }
        Err(_) => client.elsewhere().await,
    }
}

/// Queue, hold and release in turn.
async fn waiters(mut client: Client, checkers: Arc<Checkers>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let owner = format!("waiter-{}", next());
        let first_sent = Instant::now();
        let mut queued = None;
        let mut unanswered = false;
        let asked = v1::AcquireRequest {
            no_wait: false,
            queue_ttl_ms: LINE_TTL_MS,
            idempotency_key: String::new(),
            ..request(&owner, LINE, v1::Mode::Write, LINE_TTL_MS)
        };
        let fence = loop {
            let sent = Instant::now();
            match client.node().acquire(asked.clone()).await {
                Ok(answer) => {
                    let answer = answer.into_inner();
                    match answer.status() {
                        v1::AcquireStatus::Ok => {
                            let belief = Belief {
                                owner: owner.clone(),
                                shared: false,
                                since: Instant::now(),
                                until: until(sent, LINE_TTL_MS),
                                fence: answer.fencing_token,
                            };
                            checkers.granted(LINE, belief, first_sent);
                            break answer.fencing_token;
                        }
                        v1::AcquireStatus::Queued => {
                            queued.get_or_insert_with(Instant::now);
                        }
                        other => {
                            checkers.wrong(format!("{owner} in line was answered {other:?}"));
                            return;
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(_) => {
                    unanswered = true;
                    client.elsewhere().await;
                }
            }
        };
        checkers.turn(
            &owner,
            first_sent,
            queued.unwrap_or_else(Instant::now),
            fence,
        );
        checkers.writes(LINE, &owner, fence);
        tokio::time::sleep(Duration::from_millis(10)).await;
        checkers.stops(LINE, &owner);
        // A release that does not get through would block the queue for a lease.
        while !client
            .release(&owner, LINE, v1::Mode::Write.into(), 10)
            .await
        {}
        if unanswered {
            tokio::spawn(sweep(client.fresh(), owner));
        }
    }
}

/// Cleans up after an unanswered acquire without a key: it may still arrive and queue an owner that
/// has left.
async fn sweep(mut client: Client, owner: String) {
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let request = v1::ReleaseAllRequest {
            owner_id: owner.clone(),
            ..Default::default()
        };
        if client.node().release_all(request).await.is_err() {
            client.elsewhere().await;
        }
    }
}

/// R144: a read from any node returns no stale state.
async fn readers(mut client: Client, checkers: Arc<Checkers>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let path = format!("t{}:/a/x", client.random.below(8));
        let sent = Instant::now();
        let asked = v1::InspectPathRequest { path: path.clone() };
        match client.node().inspect_path(asked).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                checkers.inspected(&path, sent, &answer.write_owner, answer.fence);
                client.at = (client.at + 1) % client.nodes.len();
            }
            Err(_) => client.elsewhere().await,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Acquires long-lived locks and records each acknowledged one.
async fn supervisors(mut client: Client, stop: Arc<AtomicBool>) -> Vec<Kept> {
    let mut kept = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let owner = format!("keeper-{}", next());
        let path = format!("k{}:/a/{owner}", client.random.below(40));
        let asked = request(&owner, &path, v1::Mode::Write, KEPT_TTL_MS);
        if let Some(answer) = client.acquire(asked, 10).await
            && answer.status() == v1::AcquireStatus::Ok
        {
            kept.push(Kept {
                owner,
                path,
                fence: answer.fencing_token,
            });
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    kept
}

/// Returns the time until all of 64 namespaces serve again after a fault.
pub(crate) async fn outage(cluster: &mut Cluster, victim: u32, blow: &Fault) -> Duration {
    let others = cluster.others(victim);
    let addresses: Vec<String> = others.iter().map(|node| cluster.address(*node)).collect();
    let pair = |namespace: u32, addresses: Vec<String>| async move {
        let mut client = Client::new(&addresses, u64::from(namespace));
        let owner = format!("probe-{}", next());
        let path = format!("p{namespace}:/a/x");
        loop {
            let asked = request(&owner, &path, v1::Mode::Write, 60_000);
            if client
                .acquire(asked, 1000)
                .await
                .is_some_and(|answer| answer.status() == v1::AcquireStatus::Ok)
            {
                let served = Instant::now();
                while !client
                    .release(&owner, &path, v1::Mode::Write.into(), 10)
                    .await
                {}
                return served;
            }
        }
    };
    // Connections and routes are warm before the fault.
    let mut warm = JoinSet::new();
    for namespace in 0..64 {
        warm.spawn(pair(namespace, addresses.clone()));
    }
    warm.join_all().await;
    blow.strike(cluster, victim);
    let struck = Instant::now();
    let mut probes = JoinSet::new();
    for namespace in 0..64 {
        probes.spawn(pair(namespace, addresses.clone()));
    }
    let served = probes.join_all().await;
    served.into_iter().max().unwrap() - struck
}
