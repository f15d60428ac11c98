//! Cluster comparison: three nodes of Tenure and three of etcd, all durable, on this machine.
//!
//! The load uses one node of each, as a client with one configured address does. Only ratios of
//! figures from one run are meaningful. Failover time is the time until a new client is served in
//! 64 namespaces by a surviving node.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_bench::{BenchReport, LoadPlan, Scenario, Target};

use super::chain;
use super::process::Usage;
use crate::CompareOptions;

const NODES: usize = 3;
/// Time limit for a cluster to become ready, and for a failover.
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// Time without a leadership change after which the cluster counts as balanced: twice the balance
/// interval that the nodes are started with.
const CALM: Duration = Duration::from_secs(10);
const TOKEN: &str = "the-token-of-a-cluster-that-lives-for-a-minute";

/// Scenario, requests in flight, and the factor over etcd's rate to reach: unary, Session.
const LINES: [(Scenario, u32, [Option<f64>; 2]); 4] = [
    (Scenario::UniqueLock, 256, [Some(4.0), Some(10.0)]),
    (Scenario::Renew, 256, [Some(2.0), None]),
    (Scenario::FenceCheck, 256, [Some(2.0), None]),
    (Scenario::HotHandoff, 64, [None, None]),
];
/// Number of namespaces that must be served after a failure, and of the clients that try.
const NAMESPACES: u64 = 64;
const CLIENTS: u64 = 8;
const HANDOFFS: f64 = 1_000.0;
const FAILOVER_S: f64 = 0.5;
const IDLE_PERCENT: f64 = 2.0;

/// Runs this part. `arguments.directory` exists and is empty.
pub(crate) fn run(arguments: &CompareOptions) -> Result<(), String> {
    let mut tenure = ServerCluster::tenure(&arguments.tenure, &arguments.directory)?;
    let mut etcd = match ServerCluster::etcd(&arguments.directory) {
        Ok(etcd) => Some(etcd),
        Err(why) => {
            eprintln!("compare: without etcd: {why}");
            None
        }
    };
    let say = |line: String, object: Value| {
        if arguments.json {
            println!("{object}");
        } else {
            println!("{line}");
        }
    };
    for cluster in [Some(&tenure), etcd.as_ref()].into_iter().flatten() {
        let percent = cluster.idle(Duration::from_secs(10), &arguments.directory);
        let memory = cluster.memory(&arguments.directory);
        let mut line = format!(
            "three idle nodes: {:7} {percent:5.2} % of a core, largest {memory:.1} MB",
            cluster.name
        );
        if cluster.name == "tenure" {
            line += &verdict(percent <= IDLE_PERCENT, format!("at most {IDLE_PERCENT} %"));
        }
        let object = json!({"part": "cluster idle", "target": cluster.name,
            "cpu_percent": percent, "largest_mb": memory});
        say(line, object);
    }
    let mut run = 0;
    for (scenario, in_flight, aims) in LINES {
        let mut targets = vec![
            (
                "unary",
                Target::Unary { token: None },
                tenure.address(),
                aims[0],
            ),
            (
                "session",
                Target::Session { token: None },
                tenure.address(),
                aims[1],
            ),
        ];
        if let Some(etcd) = &etcd {
            targets.insert(0, ("etcd", Target::Etcd, etcd.address(), None));
            // A unary call is compared with `etcd-once`, a Session with etcd's open stream. Order:
            // etcd-once, unary, etcd, session; each rate is divided by the last etcd rate before
            // it.
            if scenario == Scenario::Renew {
                targets.swap(0, 1);
                targets.insert(0, ("etcd-once", Target::EtcdOnce, etcd.address(), None));
            }
        }
        // etcd's rate: the divisor for the targets that follow it.
        let mut base = None;
        for (name, target, address, aim) in targets {
            run += 1;
            let plan = LoadPlan {
                scenario,
                in_flight,
                connections: if scenario == Scenario::HotHandoff {
                    1
                } else {
                    4
                },
                namespaces: 64,
                time: Duration::from_secs_f64(arguments.seconds),
                locks: 0,
                timeout: Duration::MAX,
                run,
            };
            // A peer that fails is skipped with a message; a failure of the daemon ends the run.
            let report = match tenure_bench::run(plan.clone(), &target, address) {
                Ok(measured) => BenchReport::new(&plan, name, &measured),
                Err(error) if name.starts_with("etcd") => {
                    eprintln!("compare: {} on etcd: {}", scenario.name(), chain(&error));
                    continue;
                }
                Err(error) => {
                    return Err(format!("{} on {name}: {}", scenario.name(), chain(&error)));
                }
            };
            if name.starts_with("etcd") {
                base = Some(report.rate);
            }
            let times = base.map(|base| report.rate / base);
            let mut line = format!(
                "three nodes: {:12} {in_flight:4} {name:9} {:>8.0} {:10} p50 {:>7.0} µs, p99 {:>7.0} µs",
                report.scenario, report.rate, report.unit, report.p50_us, report.p99_us
            );
            if let Some(times) = times.filter(|_| !name.starts_with("etcd")) {
                line += &format!(", {times:5.2} × etcd");
                if let Some(aim) = aim {
                    line += &verdict(times >= aim, format!("at least {aim} ×"));
                }
            }
            if scenario == Scenario::HotHandoff && name == "session" {
                line += &verdict(report.rate >= HANDOFFS, format!("at least {HANDOFFS}/s"));
            }
            let object = json!({"part": "cluster speed", "target": name,
                "scenario": report.scenario, "in_flight": in_flight, "rate": report.rate,
                "unit": report.unit, "p50_us": report.p50_us, "p99_us": report.p99_us,
                "times_etcd": times});
            say(line, object);
        }
    }
    for cluster in [Some(&mut tenure), etcd.as_mut()].into_iter().flatten() {
        let took = cluster.failover()?.as_secs_f64();
        let mut line = format!(
            "three nodes: failover after SIGKILL, 64 namespaces: {:7} {took:.2} s",
            cluster.name
        );
        if cluster.name == "tenure" {
            line += &verdict(took <= FAILOVER_S, format!("at most {FAILOVER_S} s"));
        }
        say(
            line,
            json!({"part": "cluster failover", "target": cluster.name, "seconds": took}),
        );
    }
    Ok(())
}

fn verdict(met: bool, aim: String) -> String {
    format!(" ({aim}: {})", if met { "met" } else { "missed" })
}

/// Three servers of one kind; killed when dropped.
struct ServerCluster {
    name: &'static str,
    children: Vec<Child>,
    clients: Vec<SocketAddr>,
    /// Standard error of each server.
    logs: Vec<PathBuf>,
}

impl Drop for ServerCluster {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns free addresses. Another process can still take them before they are used.
fn free(count: usize) -> Result<Vec<SocketAddr>, String> {
    let listeners: Result<Vec<_>, _> = (0..count)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect();
    listeners
        .and_then(|all| all.iter().map(TcpListener::local_addr).collect())
        .map_err(|error| format!("no free port: {error}"))
}

impl ServerCluster {
    fn tenure(binary: &Path, directory: &Path) -> Result<ServerCluster, String> {
        // Reserved together: a port that was released may be returned again.
        let ports = free(4 * NODES)?;
        let (clients, rest) = ports.split_at(NODES);
        let (webs, rest) = rest.split_at(NODES);
        let (peers, gossip) = rest.split_at(NODES);
        let mut cluster = ServerCluster {
            name: "tenure",
            children: Vec::new(),
            clients: clients.to_vec(),
            logs: Vec::new(),
        };
        for node in 0..NODES {
            let mut command = Command::new(binary);
            command
                .arg("serve")
                .env("TENURE_NODE_ID", format!("tenure-{node}"))
                .env("TENURE_DATA_DIR", directory.join(format!("tenure-{node}")))
                .env("TENURE_LISTEN", cluster.clients[node].to_string())
                .env("TENURE_WEB_LISTEN", webs[node].to_string())
                .env("TENURE_RAFT_ADDR", format!("http://{}", peers[node]))
                .env("TENURE_GOSSIP_ADDR", gossip[node].to_string())
                .env("TENURE_INTERNAL_AUTH_TOKEN", TOKEN)
                // Short intervals, so that placement is finished before the measurement starts.
                .env("TENURE_STABILITY_WINDOW_SECS", "1")
                .env("TENURE_LEADER_BALANCE_INTERVAL_SECS", "5")
                .env("TENURE_MAX_CONCURRENT_RECONCILES", "64")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(cluster.log(directory)?);
            match node {
                0 => command.env("TENURE_BOOTSTRAP", "true"),
                _ => command.env("TENURE_SEED_NODES", gossip[0].to_string()),
            };
            let child = command
                .spawn()
                .map_err(|error| format!("tenure: {error}"))?;
            cluster.children.push(child);
        }
        // Leaderships move a few at a time. The cluster counts as balanced after `CALM` without a
        // change.
        let led = Cell::new((0, Instant::now()));
        cluster.until("balanced", |cluster| {
            let output = Command::new(binary)
                .args(["cluster", "status", "--json", "--url"])
                .arg(format!("http://{}", cluster.clients[0]))
                .output();
            let status: Value = output.map_or(Value::Null, |output| {
                serde_json::from_slice(&output.stdout).unwrap_or_default()
            });
            let nodes = status["nodes"].as_array().map_or(&[][..], Vec::as_slice);
            let groups = status["groups"].as_array().map_or(0, Vec::len) as u64;
            let leads = |node: &Value| node["leads"].as_u64().unwrap_or_default();
            // Encodes the leader counts of all nodes as one number, to detect any change.
            let now = nodes
                .iter()
                .fold(0, |all, node| all * (groups + 1) + leads(node));
            let (before, since) = led.get();
            if now != before {
                led.set((now, Instant::now()));
            }
            status["healthy"] == true
                && nodes.len() == NODES
                && nodes
                    .iter()
                    .all(|node| node["replicas"] == groups && leads(node) > groups / 5)
                && now == before
                && since.elapsed() > CALM
        })?;
        Ok(cluster)
    }

    fn etcd(directory: &Path) -> Result<ServerCluster, String> {
        let mut clients = free(2 * NODES)?;
        let peers = clients.split_off(NODES);
        let all: Vec<String> = (0..NODES)
            .map(|node| format!("etcd-{node}=http://{}", peers[node]))
            .collect();
        let mut cluster = ServerCluster {
            name: "etcd",
            children: Vec::new(),
            clients,
            logs: Vec::new(),
        };
        for (node, peer) in peers.iter().enumerate() {
            let client = format!("http://{}", cluster.clients[node]);
            let peer = format!("http://{peer}");
            let child = Command::new("etcd")
                .args(["--name", &format!("etcd-{node}")])
                .arg("--data-dir")
                .arg(directory.join(format!("etcd-{node}")))
                .args(["--listen-client-urls", &client])
                .args(["--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer])
                .args(["--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &all.join(",")])
                .args(["--log-level", "error"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(cluster.log(directory)?)
                .spawn()
                .map_err(|error| format!("etcd: {error}"))?;
            cluster.children.push(child);
        }
        cluster.until("led", |cluster| {
            let healthy = |address: &SocketAddr| {
                get(*address, "/health").is_ok_and(|said| said.contains("\"true\""))
            };
            cluster.clients.iter().all(healthy) && cluster.etcd_leader().is_some()
        })?;
        Ok(cluster)
    }

    /// Returns the address of the node that the load uses.
    fn address(&self) -> SocketAddr {
        self.clients[0]
    }

    /// Creates the log file of the next server.
    fn log(&mut self, directory: &Path) -> Result<File, String> {
        let path = directory.join(format!("{}-{}.log", self.name, self.logs.len()));
        let file = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        self.logs.push(path);
        Ok(file)
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&ServerCluster) -> bool) -> Result<(), String> {
        let end = Instant::now() + START_TIMEOUT;
        while !is_so(self) {
            for (child, log) in self.children.iter_mut().zip(&self.logs) {
                if let Ok(Some(status)) = child.try_wait() {
                    let said = std::fs::read_to_string(log).unwrap_or_default();
                    let last = said.lines().last().unwrap_or_default();
                    return Err(format!("{} ended: {status}: {last}", self.name));
                }
            }
            if Instant::now() > end {
                return Err(format!(
                    "{} was not {what} within {START_TIMEOUT:?}",
                    self.name
                ));
            }
            // The servers do not announce that they are ready, so poll.
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn usages(&self, data: &Path) -> Vec<Usage> {
        let usage = |child: &Child| Usage::of(child.id(), data);
        self.children.iter().map(usage).collect()
    }

    /// Returns the CPU time of all nodes together while idle, in per cent of one core.
    fn idle(&self, time: Duration, data: &Path) -> f64 {
        let before = self.usages(data);
        std::thread::sleep(time);
        let used = self.usages(data).into_iter().zip(before);
        let cpu: Duration = used.map(|(after, before)| after.since(&before).cpu).sum();
        cpu.as_secs_f64() / time.as_secs_f64() * 100.0
    }

    /// Returns the memory of the largest node, in megabytes.
    fn memory(&self, data: &Path) -> f64 {
        let usages = self.usages(data);
        let largest = usages.iter().map(|usage| usage.resident).max();
        largest.unwrap_or(0) as f64 / 1e6
    }

    fn etcd_leader(&self) -> Option<usize> {
        let leads = |address: &SocketAddr| {
            get(*address, "/metrics").is_ok_and(|said| said.contains("\netcd_server_is_leader 1"))
        };
        self.clients.iter().position(leads)
    }

    /// Kills a leader and returns the time until another node serves all namespaces.
    fn failover(&mut self) -> Result<Duration, String> {
        let (victim, target) = match self.name {
            "etcd" => (
                self.etcd_leader().ok_or("etcd has no leader")?,
                Target::Etcd,
            ),
            // Every node leads a third of the groups, so any node will do.
            _ => (1, Target::Unary { token: None }),
        };
        let survivor = self.clients[(victim + 1) % NODES];
        // One lock in a namespace of its own.
        let plan = |number: u64| LoadPlan {
            scenario: Scenario::ManyHeld,
            in_flight: 1,
            connections: 1,
            namespaces: 1,
            time: Duration::ZERO,
            locks: 1,
            timeout: Duration::MAX,
            run: 1_000_000 + number,
        };
        let _ = self.children[victim].kill();
        let struck = Instant::now();
        let probe = |number: u64| loop {
            match tenure_bench::run(plan(number), &target, survivor) {
                Ok(_) => return Ok(()),
                Err(error) if struck.elapsed() > START_TIMEOUT => return Err(chain(&error)),
                // Clients have no signal when to retry, so poll.
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let all = (0..NAMESPACES).filter(move |number| number % CLIENTS == client);
                    scope.spawn(move || all.into_iter().try_for_each(probe))
                })
                .collect();
            for client in clients {
                client.join().map_err(|_| "a client panicked")??;
            }
            Ok(struck.elapsed())
        })
    }
}

fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}
