//! `tenure bench`: load generator with a table of throughput and latency.

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use tenure_bench::{BenchReport, LoadPlan, Scenario, Target};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tonic::metadata::{Ascii, MetadataValue};

use crate::output::{self, CommandFailure, OutputFormat};
use crate::progress::Ticker;

/// Load a daemon and print throughput and latency.
///
/// Takes locks under `bench:/` and releases them at the end. Without scenarios, all but many-held run.
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
    /// The daemon: host:port or a URL. The first node of a list is loaded.
    #[arg(
        long,
        visible_alias = "server",
        value_name = "ADDRESS",
        env = "TENURE_URL",
        default_value = "127.0.0.1:50051"
    )]
    url: String,
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
        let json = OutputFormat::of(self.json);
        json.end(self.bench().map(|()| 0).map_err(|error| failed(&*error)))
    }

    /// Returns the address of the first node.
    fn server(&self) -> Result<SocketAddr, Box<dyn std::error::Error>> {
        let nodes = tenure::Endpoint::list(&self.url)?;
        let node = nodes.first().ok_or("the address names no node")?;
        if node.is_tls() {
            return Err("bench speaks plaintext only: use the daemon's loopback address".into());
        }
        let mut addresses = (node.host(), node.port()).to_socket_addrs()?;
        Ok(addresses.next().ok_or("the host name has no address")?)
    }

    fn bench(&self) -> Result<(), Box<dyn std::error::Error>> {
        let time = Duration::try_from_secs_f64(self.seconds)?;
        let scenarios = if self.scenarios.is_empty() {
            let all = Scenario::ALL.iter().map(|(_, scenario)| *scenario);
            all.filter(|one| *one != Scenario::ManyHeld).collect()
        } else {
            self.scenarios.clone()
        };
        let server = self.server()?;
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
                let label = scenario.name();
                let total = time + time / 5;
                let ticker = Ticker::start(move |spent| {
                    let total = total.as_secs_f64();
                    format!(
                        "{label} over {name}: {:.0} of {total:.0} s",
                        spent.as_secs_f64().min(total)
                    )
                });
                let measured = tenure_bench::run(plan.clone(), &target, server);
                drop(ticker);
                self.clean_up(server, run)?;
                let measured = measured?;
                let report = BenchReport::new(&plan, name, &measured);
                match self.json {
                    true => output::line(&serde_json::to_string(&report)?),
                    false => output::line(&report.to_string()),
                }
                .map_err(|failed| failed.text)?;
            }
        }
        Ok(())
    }

    /// Releases what the run still holds: its leases last for ten minutes, and everyone would see
    /// them.
    fn clean_up(&self, server: SocketAddr, run: u64) -> Result<(), Box<dyn std::error::Error>> {
        let ticker = Ticker::start(|_| "releasing the locks of the run".to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let released = runtime.block_on(async {
            let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{server}"))?;
            let channel = endpoint.connect().await?;
            let token: Option<MetadataValue<Ascii>> = match &self.token {
                Some(token) => Some(format!("Bearer {token}").parse()?),
                None => None,
            };
            let client =
                PathLockClient::with_interceptor(channel, move |mut request: tonic::Request<()>| {
                    if let Some(token) = &token {
                        request
                            .metadata_mut()
                            .insert("authorization", token.clone());
                    }
                    Ok(request)
                });
            let mut pages = client.clone().max_decoding_message_size(LONGEST_PAGE);
            let mut cursor = Vec::new();
            loop {
                let request = v1::DumpLocksRequest {
                    cursor,
                    owner_page: 512,
                    details: true,
                    prefix: "bench:/".to_owned(),
                    ..Default::default()
                };
                let page = pages.dump_locks(request).await?.into_inner();
                let holds = page.entries.iter().map(|hold| &hold.owner);
                let waits = page.waiters.iter().map(|waiter| &waiter.owner);
                let own = format!("{run:x}-");
                let owners: BTreeSet<&String> = holds
                    .chain(waits)
                    .filter(|owner| owner.starts_with(&own))
                    .collect();
                let mut calls = tokio::task::JoinSet::new();
                for owner in owners {
                    let mut client = client.clone();
                    let request = v1::ReleaseAllRequest {
                        owner_id: owner.clone(),
                        ..Default::default()
                    };
                    calls.spawn(async move { client.release_all(request).await });
                }
                while let Some(released) = calls.join_next().await {
                    released??;
                }
                if page.done {
                    return Ok::<(), Box<dyn std::error::Error>>(());
                }
                cursor = page.next_cursor;
            }
        });
        drop(ticker);
        released
    }
}

/// A page of DumpLocks has at most 512 entries.
const LONGEST_PAGE: usize = 64 << 20;

/// Returns what happened and what to do next.
fn failed(error: &(dyn std::error::Error + 'static)) -> CommandFailure {
    let raw = output::with_causes(error);
    let (what, next) = tenure::connection_trouble(&raw);
    CommandFailure::own(match next {
        Some(next) => format!("the daemon cannot be reached: {what}; {next}"),
        None => raw,
    })
}
