//! Comparison runner: starts the servers, runs the scenarios on each, prints tables and checks
//! targets.

mod process;
mod server;
mod table;
mod targets;

mod cluster;

use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::json;
use tenure_bench::{BenchReport, LoadPlan, Measured, Scenario, Target};

use crate::CompareOptions;
use process::Usage;
use server::PeerServer;
use table::Row;
use targets::{MemoryCost, TargetResults};

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ComparisonPart {
    /// Three nodes compared with three nodes of etcd. Runs only if requested.
    Cluster,
    /// Throughput and latency of every scenario without contention.
    Speed,
    /// One path that all clients want.
    Handoff,
    /// Memory, disk space and restart time with many locks.
    Held,
    /// CPU time of an idle server.
    Idle,
    /// Throughput, bytes written and memory after two minutes of load.
    Wear,
}

/// Time limit for a server to grant its many locks.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(90);

/// Name of the target that uses Redis through a client library.
const REDIS_LIBRARY: &str = "redis-lib";

/// Rows of the speed table: scenario and requests in flight.
const SPEED: [(Scenario, u32); 7] = [
    (Scenario::UniqueLock, 64),
    (Scenario::UniqueLock, 256),
    (Scenario::DeepTree, 256),
    (Scenario::Renew, 256),
    (Scenario::FenceCheck, 64),
    (Scenario::FenceCheck, 256),
    (Scenario::ReadHeavy, 256),
];

/// Each figure is measured in this many rounds, with all targets in turn.
const ROUNDS: u32 = 3;

const SESSION: Target = Target::Session { token: None };

pub(crate) fn run(arguments: &CompareOptions) -> Result<(), String> {
    let _ = std::fs::remove_dir_all(&arguments.directory);
    std::fs::create_dir_all(&arguments.directory)
        .map_err(|error| format!("{}: {error}", arguments.directory.display()))?;
    if arguments.only == [ComparisonPart::Cluster] {
        let result = cluster::run(arguments);
        let _ = std::fs::remove_dir_all(&arguments.directory);
        return result;
    }
    let result = Comparison::new(arguments).and_then(|mut comparison| comparison.parts());
    let _ = std::fs::remove_dir_all(&arguments.directory);
    result
}

/// One target with the load that it gets.
struct Runner {
    plan: LoadPlan,
    name: &'static str,
    target: Target,
    /// Index of the server in `Comparison::servers`.
    at: usize,
}

impl Runner {
    fn new(plan: LoadPlan, name: &'static str, target: Target, at: usize) -> Runner {
        Runner {
            plan,
            name,
            target,
            at,
        }
    }

    fn row(&self, sum: &ComparisonRound) -> Row {
        let measured = &sum.measured;
        // CPU time and bytes include the warm-up, the units do not: scale by the measured share of
        // the time.
        let share = measured.elapsed.as_secs_f64() / sum.took.as_secs_f64();
        let per_unit = share / measured.units.max(1) as f64;
        Row {
            report: BenchReport::new(&self.plan, self.name, measured),
            cpu_us: sum.used.cpu.as_secs_f64() * 1e6 * per_unit,
            written: sum.used.written as f64 * per_unit,
        }
    }
}

/// The result of one or more rounds.
#[derive(Clone)]
struct ComparisonRound {
    measured: Measured,
    /// Elapsed time including the warm-up.
    took: Duration,
    used: Usage,
}

impl ComparisonRound {
    fn merge(&mut self, other: &ComparisonRound) {
        self.measured.merge(&other.measured);
        self.took += other.took;
        self.used = self.used.and(&other.used);
    }
}

struct Comparison<'a> {
    arguments: &'a CompareOptions,
    servers: Vec<PeerServer>,
    runs: u64,
    verdicts: TargetResults,
}

impl<'a> Comparison<'a> {
    fn new(arguments: &'a CompareOptions) -> Result<Comparison<'a>, String> {
        let mut servers = Vec::new();
        let wanted = |name: &str| {
            arguments.targets.is_empty() || arguments.targets.iter().any(|one| one == name)
        };
        if wanted("unary") || wanted("session") {
            servers.push(PeerServer::tenure(
                &arguments.tenure,
                &arguments.directory.join("tenure"),
            )?);
        }
        if wanted("echo") {
            servers.push(PeerServer::echo()?);
        }
        for (name, start) in [
            ("redis", PeerServer::redis as fn(&std::path::Path) -> _),
            ("etcd", PeerServer::etcd),
            ("zookeeper", PeerServer::zookeeper),
        ] {
            let serves = [name, if name == "redis" { REDIS_LIBRARY } else { name }];
            if !serves.into_iter().any(wanted) {
                continue;
            }
            // A peer that cannot be started is skipped with a message.
            match start(&arguments.directory.join(name)) {
                Ok(server) => servers.push(server),
                Err(why) => eprintln!("compare: without {name}: {why}"),
            }
        }
        Ok(Comparison {
            arguments,
            servers,
            runs: 0,
            verdicts: TargetResults::default(),
        })
    }

    fn parts(&mut self) -> Result<(), String> {
        let all = [
            ComparisonPart::Speed,
            ComparisonPart::Handoff,
            ComparisonPart::Idle,
            ComparisonPart::Held,
            ComparisonPart::Wear,
        ];
        for part in all {
            if !self.arguments.only.is_empty() && !self.arguments.only.contains(&part) {
                continue;
            }
            match part {
                ComparisonPart::Cluster => cluster::run(self.arguments)?,
                ComparisonPart::Speed => self.speed()?,
                ComparisonPart::Handoff => self.handoff()?,
                ComparisonPart::Idle => self.idle(),
                ComparisonPart::Held => self.held()?,
                ComparisonPart::Wear => self.wear()?,
            }
        }
        self.verdicts.print(self.arguments.json);
        Ok(())
    }

    /// Returns the requested targets of the running servers.
    fn targets(&self) -> Vec<(&'static str, Target, usize)> {
        let mut targets = Vec::new();
        for (at, server) in self.servers.iter().enumerate() {
            match server.name {
                "tenure" => {
                    targets.push(("unary", Target::Unary { token: None }, at));
                    targets.push(("session", Target::Session { token: None }, at));
                }
                "echo" => targets.push(("echo", Target::Echo, at)),
                "redis" => {
                    targets.push(("redis", Target::Redis, at));
                    targets.push((REDIS_LIBRARY, Target::RedisLibrary, at));
                }
                "etcd" => targets.push(("etcd", Target::Etcd, at)),
                _ => targets.push(("zookeeper", Target::ZooKeeper, at)),
            }
        }
        let wanted = &self.arguments.targets;
        targets.retain(|(name, ..)| wanted.is_empty() || wanted.iter().any(|one| one == name));
        targets
    }

    /// Makes a plan for one round. Parts that are measured once set their own time.
    fn plan(&mut self, scenario: Scenario, in_flight: u32) -> LoadPlan {
        self.runs += 1;
        LoadPlan {
            scenario,
            in_flight,
            connections: 4,
            namespaces: 16,
            time: Duration::from_secs_f64(self.arguments.seconds / f64::from(ROUNDS)),
            locks: 0,
            timeout: Duration::MAX,
            run: self.runs,
        }
    }

    fn measure(
        &self,
        plan: &LoadPlan,
        name: &'static str,
        target: &Target,
        at: usize,
    ) -> Result<ComparisonRound, String> {
        let server = &self.servers[at];
        let before = Usage::of(server.pid(), &self.arguments.directory);
        let start = Instant::now();
        let measured = tenure_bench::run(plan.clone(), target, server.address)
            .map_err(|error| format!("{} on {name}: {}", plan.scenario.name(), chain(&error)))?;
        Ok(ComparisonRound {
            took: start.elapsed(),
            measured,
            used: Usage::of(server.pid(), &self.arguments.directory).since(&before),
        })
    }

    /// Measures several targets in turn, round by round, so that a slow phase of the machine
    /// affects all of them equally.
    fn in_turns(&mut self, runners: &[Runner]) -> Result<Vec<Row>, String> {
        let mut sums: Vec<Option<ComparisonRound>> = vec![None; runners.len()];
        for _ in 0..ROUNDS {
            for (sum, runner) in sums.iter_mut().zip(runners) {
                let Runner {
                    plan,
                    name,
                    target,
                    at,
                } = runner;
                let mut plan = plan.clone();
                self.runs += 1;
                plan.run = self.runs;
                // Redis has no lock queue: its waiters pass on one token, which must exist first.
                if *name == "redis" && plan.scenario == Scenario::HotHandoff {
                    server::push_token(&self.servers[*at], plan.run)?;
                }
                let round = self.measure(&plan, name, target, *at)?;
                match sum {
                    Some(sum) => sum.merge(&round),
                    None => *sum = Some(round),
                }
            }
        }
        let rows = runners.iter().zip(sums.into_iter().flatten());
        let rows: Vec<Row> = rows.map(|(runner, sum)| runner.row(&sum)).collect();
        if self.arguments.json {
            for row in &rows {
                println!("{}", row.json());
            }
        } else {
            table::speed(&rows);
        }
        Ok(rows)
    }

    fn speed(&mut self) -> Result<(), String> {
        for (scenario, in_flight) in SPEED {
            let mut runners = Vec::new();
            for (name, target, at) in self.targets() {
                // A ZooKeeper session renews itself.
                if scenario == Scenario::Renew && name == "zookeeper" {
                    continue;
                }
                let plan = self.plan(scenario, in_flight);
                runners.push(Runner::new(plan, name, target, at));
            }
            let rows = self.in_turns(&runners)?;
            self.verdicts.assess(scenario, in_flight, &rows);
        }
        Ok(())
    }

    fn handoff(&mut self) -> Result<(), String> {
        for in_flight in [8, 64, 256] {
            let mut runners = Vec::new();
            for (name, target, at) in self.targets() {
                // Skipped: the echo has no queue; a queue in ZooKeeper is a client-side recipe of
                // several calls; a blocking wait in Redis occupies its connection, so the library
                // cannot share it.
                if ["echo", "zookeeper", REDIS_LIBRARY].contains(&name) {
                    continue;
                }
                let mut plan = self.plan(Scenario::HotHandoff, in_flight);
                // A blocking wait in Redis occupies its connection.
                plan.connections = if name == "redis" { in_flight } else { 1 };
                runners.push(Runner::new(plan, name, target, at));
            }
            let rows = self.in_turns(&runners)?;
            if let Some(rate) = table::rate(&rows, "session") {
                let what = format!("hot-handoff {in_flight}: session, per second");
                self.verdicts.at_least(what, rate, targets::HANDOFFS);
            }
        }
        Ok(())
    }

    fn idle(&mut self) {
        let time = Duration::from_secs(10);
        let before: Vec<Usage> = self
            .servers
            .iter()
            .map(|s| Usage::of(s.pid(), &self.arguments.directory))
            .collect();
        std::thread::sleep(time);
        let mut shares = Vec::new();
        for (server, before) in self.servers.iter().zip(before) {
            let used = Usage::of(server.pid(), &self.arguments.directory).since(&before);
            let share = used.cpu.as_secs_f64() / time.as_secs_f64() * 100.0;
            self.say(
                &format!("idle: {:10} {share:5.2} % of a core", server.name),
                json!({"part": "idle", "target": server.name, "cpu_percent": share}),
            );
            shares.push((server.name, share));
        }
        for (_, share) in shares.iter().filter(|(name, _)| *name == "tenure") {
            let what = "idle, per cent of a core";
            self.verdicts.at_most(what, *share, targets::IDLE);
        }
    }

    /// Uses fresh servers, so that only these locks are in their memory.
    fn held(&mut self) -> Result<(), String> {
        for (locks, peers) in [(100_000, true), (1_000_000, false)] {
            for name in ["tenure", "redis", "etcd"] {
                let running = self.servers.iter().any(|server| server.name == name);
                if !running || (name != "tenure" && !peers) {
                    continue;
                }
                self.hold(name, locks)?;
            }
        }
        Ok(())
    }

    fn hold(&mut self, name: &'static str, locks: u64) -> Result<(), String> {
        let directory = self.arguments.directory.join(format!("{name}-{locks}"));
        let start = |directory: &std::path::Path| match name {
            "tenure" => PeerServer::tenure(&self.arguments.tenure, directory),
            "redis" => PeerServer::redis(directory),
            _ => PeerServer::etcd(directory),
        };
        let mut server = start(&directory)?;
        let empty = Usage::of(server.pid(), &self.arguments.directory);
        let target = match name {
            "tenure" => Target::Session { token: None },
            "redis" => Target::Redis,
            _ => Target::Etcd,
        };
        let mut plan = self.plan(Scenario::ManyHeld, 256);
        plan.locks = locks;
        plan.timeout = SCENARIO_TIMEOUT;
        let measured = tenure_bench::run(plan.clone(), &target, server.address)
            .map_err(|error| format!("many-held on {name}: {}", chain(&error)))?;
        let report = BenchReport::new(&plan, name, &measured);
        let taken = measured.units;
        let full = Usage::of(server.pid(), &self.arguments.directory);
        let disk = process::disk(&directory);
        // SIGKILL, so that the restart is a recovery after a crash.
        server.kill();
        drop(server);
        // `start` returns when the server answers, so this is the time until it serves again.
        let begin = Instant::now();
        let server = start(&directory)?;
        let restart = begin.elapsed();
        let after = Usage::of(server.pid(), &self.arguments.directory);
        let mb = |bytes: u64| bytes as f64 / 1e6;
        self.say(
            &format!(
                "held: {name:10} {taken:8} locks at {:7.0}/s: {:6.1} MB memory ({:.1} empty), \
                 {:6.1} MB disk; restart {:.2} s, then {:.1} MB",
                report.rate,
                mb(full.resident),
                mb(empty.resident),
                mb(disk),
                restart.as_secs_f64(),
                mb(after.resident)
            ),
            json!({
                "part": "held", "target": name, "locks": taken, "rate": report.rate,
                "resident_mb": mb(full.resident), "empty_mb": mb(empty.resident),
                "disk_mb": mb(disk), "restart_s": restart.as_secs_f64(),
                "resident_after_restart_mb": mb(after.resident),
            }),
        );
        drop(server);
        let _ = std::fs::remove_dir_all(&directory);
        let asked = targets::HELD.iter().filter(|(number, ..)| *number == locks);
        for (_, held, most) in asked.filter(|_| name == "tenure") {
            let found = match held {
                MemoryCost::Memory => mb(full.resident),
                MemoryCost::Disk => mb(disk),
                MemoryCost::Restart => restart.as_secs_f64(),
            };
            // With fewer locks than requested the figure is meaningless: NaN misses every target.
            let found = if taken < locks { f64::NAN } else { found };
            let what = format!("{locks} held: {}", held.unit());
            self.verdicts.at_most(what, found, *most);
        }
        Ok(())
    }

    /// Measures whether load leaves traces. After a minute of contention and a minute of plain
    /// load, a daemon must have the same memory as before, and be as fast as a freshly started
    /// daemon that is measured in turn with it.
    fn wear(&mut self) -> Result<(), String> {
        let mut loads = Vec::new();
        for (scenario, in_flight) in [(Scenario::HotHandoff, 64), (Scenario::UniqueLock, 256)] {
            let mut plan = self.plan(scenario, in_flight);
            plan.connections = 1;
            loads.push(plan);
        }
        let before = self.warmed_up("worn", &loads)?;
        let worn = self.servers.len() - 1;
        for load in &loads {
            // 50 s plus a fifth as warm-up: one minute per scenario.
            let time = Duration::from_secs(50);
            let plan = LoadPlan {
                time,
                ..load.clone()
            };
            self.measure(&plan, "session", &SESSION, worn)?;
        }
        let after = self.resident(worn);
        self.warmed_up("fresh", &loads)?;
        let plan = self.plan(Scenario::UniqueLock, 256);
        let runner = |name, at| Runner::new(plan.clone(), name, SESSION, at);
        let rows = self.in_turns(&[runner("worn", worn), runner("fresh", worn + 1)])?;
        self.servers.truncate(worn);
        let [now, fresh] = &rows[..] else {
            return Err("two daemons were to be measured".to_owned());
        };
        // In per cent; `max` avoids a division by zero.
        let change = |before: f64, after: f64| (after / before.max(1.0) - 1.0) * 100.0;
        let (rate, written, memory) = (
            change(fresh.report.rate, now.report.rate),
            change(fresh.written, now.written),
            change(before as f64, after as f64),
        );
        self.say(
            &format!(
                "wear: after a minute of hot-handoff and a minute of unique-lock: throughput \
                 {rate:+.0} % ({:.0} pairs/s), bytes written per pair {written:+.0} % ({:.0}), \
                 memory {memory:+.0} % ({:.1} MB, {:.1} before)",
                now.report.rate,
                now.written,
                after as f64 / 1e6,
                before as f64 / 1e6
            ),
            json!({
                "part": "wear", "rate_percent": rate, "written_percent": written,
                "memory_percent": memory, "rate": now.report.rate,
                "written": now.written, "resident_mb": after as f64 / 1e6,
                "resident_before_mb": before as f64 / 1e6,
            }),
        );
        for (what, change) in [
            ("wear: throughput lost, per cent", -rate),
            ("wear: bytes written per pair, per cent more", written),
            ("wear: memory, per cent more", memory),
        ] {
            self.verdicts.at_most(what, change, targets::WEAR);
        }
        Ok(())
    }

    /// Starts a daemon, runs a little of every load and returns its memory. The first use of a
    /// group allocates memory once, which is not wear. For the same reason the main load uses the
    /// same paths.
    fn warmed_up(&mut self, name: &str, loads: &[LoadPlan]) -> Result<u64, String> {
        let directory = self.arguments.directory.join(name);
        let server = PeerServer::tenure(&self.arguments.tenure, &directory)?;
        self.servers.push(server);
        let at = self.servers.len() - 1;
        for load in loads {
            let time = load.time * ROUNDS;
            let plan = LoadPlan {
                time,
                ..load.clone()
            };
            self.measure(&plan, "session", &SESSION, at)?;
        }
        Ok(self.resident(at))
    }

    fn resident(&self, at: usize) -> u64 {
        Usage::of(self.servers[at].pid(), &self.arguments.directory).resident
    }

    fn say(&self, line: &str, object: serde_json::Value) {
        if self.arguments.json {
            println!("{object}");
        } else {
            println!("{line}");
        }
    }
}

/// Formats an error with its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(why) = cause {
        text.push_str(&format!(": {why}"));
        cause = why.source();
    }
    text
}
