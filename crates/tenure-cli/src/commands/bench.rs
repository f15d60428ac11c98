//! `tenure bench`: load generator with a table of throughput and latency.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use tenure_bench::{BenchReport, LoadPlan, Scenario, Target};

/// Load a daemon and print throughput and latency.
///
/// Takes locks under `bench:/` with leases of ten minutes. Without scenarios, all but many-held run.
/// Client and daemon on one machine share its cores: compare runs, do not quote them.
///
/// Scenarios: unique-lock, deep-tree, renew, fence-check, read-heavy, hot-handoff, many-held.
///
/// Examples:
///   tenure bench
///   tenure bench unique-lock --over session --in-flight 256 --seconds 10 --json
///   tenure bench many-held --locks 100000
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Bench {
    /// What to run.
    scenarios: Vec<Scenario>,
    /// The daemon's gRPC address.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50051")]
    server: SocketAddr,
    /// Unary calls, one Session per connection, or first one and then the other.
    #[arg(long, value_enum, default_value_t = Over::Both)]
    over: Over,
    /// Connections.
    #[arg(short, long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Requests in flight, over all connections.
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    in_flight: u32,
    /// Namespaces that the paths are spread over.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    namespaces: u32,
    /// How long each scenario is measured, after a fifth of that to warm up.
    #[arg(short, long, default_value_t = 5.0)]
    seconds: f64,
    /// How many locks many-held takes.
    #[arg(long, default_value_t = 100_000)]
    locks: u64,
    /// The token that the daemon asks for.
    #[arg(long, env = "TENURE_CLIENT_AUTH_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Over {
    Unary,
    Session,
    Both,
}

impl Bench {
    pub(crate) fn run(self) -> ExitCode {
        match self.bench() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                let mut cause = error.source();
                while let Some(why) = cause {
                    eprintln!("  why: {why}");
                    cause = why.source();
                }
                ExitCode::from(125)
            }
        }
    }

    fn bench(&self) -> Result<(), Box<dyn std::error::Error>> {
        let time = Duration::try_from_secs_f64(self.seconds)?;
        let scenarios = if self.scenarios.is_empty() {
            let all = Scenario::ALL.iter().map(|(_, scenario)| *scenario);
            all.filter(|one| *one != Scenario::ManyHeld).collect()
        } else {
            self.scenarios.clone()
        };
        let mut run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        for scenario in scenarios {
            for over in [Over::Unary, Over::Session] {
                if self.over != over && self.over != Over::Both {
                    continue;
                }
                run += 1;
                let token = self.token.clone();
                let (name, target) = match over {
                    Over::Unary => ("unary", Target::Unary { token }),
                    Over::Session | Over::Both => ("session", Target::Session { token }),
                };
                let plan = LoadPlan {
                    scenario,
                    in_flight: self.in_flight,
                    connections: self.connections,
                    namespaces: self.namespaces,
                    time,
                    locks: self.locks,
                    timeout: Duration::MAX,
                    run,
                };
                let measured = tenure_bench::run(plan.clone(), &target, self.server)?;
                let report = BenchReport::new(&plan, name, &measured);
                if self.json {
                    println!("{}", serde_json::to_string(&report)?);
                } else {
                    println!("{report}");
                }
            }
        }
        Ok(())
    }
}
