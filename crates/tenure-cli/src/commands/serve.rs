//! `tenure serve`: runs the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tenure_server::config::{Config, LocalEndpoint, MachineDefaults, RawSettings, Writable};
use tenure_server::daemon::{self, Daemon};
use tenure_server::health_probe;
use tenure_server::secret_file;
use tenure_server::telemetry::logs;
use tenure_server::telemetry::otlp::{Environment, Signals};

/// Run the daemon.
///
/// By default it listens on this machine only: gRPC on 127.0.0.1:50051, JSON, SSE and HTTP/3 on
/// 127.0.0.1:8443. Data is in /var/lib/tenure or in the user's state directory.
///
/// Examples:
///   tenure serve
///   tenure serve --config /etc/tenure.toml
///   tenure --health-check
///   TENURE_DATA_DIR=/tmp/demo tenure serve --print-config
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Serve {
    /// A TOML file. Environment variables (`TENURE_…`) override its keys.
    #[arg(long, env = "TENURE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print every key, its value and its source, and exit.
    #[arg(long)]
    print_config: bool,
    /// Ask the local daemon whether it is ready: exit 0 if it is, else 1.
    #[arg(long, conflicts_with = "print_config")]
    health_check: bool,
}

impl Serve {
    pub(crate) fn run(self) -> ExitCode {
        let (result, failed) = if self.health_check {
            (self.check_health(), 1)
        } else {
            (self.serve(), 125)
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                let mut cause = error.source();
                while let Some(why) = cause {
                    eprintln!("  why: {why}");
                    cause = why.source();
                }
                ExitCode::from(failed)
            }
        }
    }

    fn settings(&self) -> Result<RawSettings, Box<dyn std::error::Error>> {
        // The variable that pathlockd has for the same file.
        let other = || std::env::var_os("PATHLOCKD_CONFIG").map(PathBuf::from);
        let text = match self.config.clone().or_else(other) {
            Some(path) => {
                let path = path.as_path();
                secret_file::check("the configuration", path)?;
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                Some(text)
            }
            None => None,
        };
        Ok(RawSettings::new(text.as_deref(), std::env::vars())?)
    }

    fn check_health(self) -> Result<(), Box<dyn std::error::Error>> {
        let door = LocalEndpoint::from_settings(self.settings()?, &machine())?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(runtime.block_on(health_probe::health(&door))?)
    }

    fn serve(self) -> Result<(), Box<dyn std::error::Error>> {
        let config = Config::from_settings(self.settings()?, &machine())?;
        if self.print_config {
            for entry in &config.effective {
                println!("{} = {}  # {}", entry.key, entry.value, entry.origin);
            }
            return Ok(());
        }
        logs::begin(&config.log, std::env::var("RUST_LOG").ok().as_deref())?;
        if !config.ignored.is_empty() {
            let keys = config.ignored.join(" ");
            tracing::warn!(
                keys,
                "ignored: these keys of the configuration have no effect in Tenure"
            );
        }
        raise_file_limit();
        let variable = |name: &str| std::env::var(name).ok();
        let signals = Signals::asked_for(&Environment(&variable), &config.node.name)?;
        let runtime = daemon::runtime()?;
        runtime.block_on(async {
            let daemon = Daemon::start(&config, signals).await?;
            let shown = |address: Option<SocketAddr>| {
                address.map_or_else(|| "off".to_owned(), |address| address.to_string())
            };
            let (web, h3) = (shown(daemon.web), shown(daemon.h3));
            let certificate = daemon.certificate;
            tracing::info!(grpc = %daemon.grpc, web, h3, node = config.node.name, %certificate, "ready");
            let internal = daemon.internal.map_or_else(String::new, |(peers, gossip)| {
                format!(", peers {peers}, gossip {gossip}")
            });
            eprintln!("tenure: certificate {certificate}");
            eprintln!(
                "tenure: ready, grpc {}, web {web}, h3 {h3}{internal}",
                daemon.grpc
            );
            let mut term =
                tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
            let shutdown = async move {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = tokio::signal::ctrl_c() => {}
                }
            };
            daemon.serve(shutdown).await?;
            Ok(())
        })
    }
}

/// Raises the limit of open files to the maximum, because every connection needs a descriptor.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files: many connections may fail");
    }
}

/// Returns the defaults of this machine.
fn machine() -> MachineDefaults {
    let system = std::path::Path::new("/var/lib/tenure");
    let writable = std::fs::create_dir_all(system).is_ok()
        && rustix::fs::access(system, rustix::fs::Access::WRITE_OK).is_ok();
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let user_state = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or(home);
    MachineDefaults {
        system_directory: if writable {
            Writable::Yes
        } else {
            Writable::No
        },
        user_state,
    }
}
