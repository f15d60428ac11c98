//! `tenure serve`: runs the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tenure_server::config::{Config, LocalEndpoint, MachineDefaults, RawSettings, Writable};
use tenure_server::daemon::{self, Daemon, DaemonError};
use tenure_server::health_probe;
use tenure_server::secret_file;
use tenure_server::telemetry::logs;
use tenure_server::telemetry::otlp::{Environment, Signals};

use crate::message;
use crate::output::{self, CommandFailure, FAILED};
use crate::resource_user;

/// Run the daemon.
///
/// By default it listens on this machine only: gRPC on 127.0.0.1:50051, JSON, SSE and HTTP/3 on
/// 127.0.0.1:8443. Data is in /var/lib/tenure or in the user's state directory.
///
/// Examples:
///   tenure serve
///   tenure serve --data-dir /tmp/demo --listen 127.0.0.1:6000
///   tenure serve --config /etc/tenure.toml
///   tenure --health-check
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Serve {
    /// A TOML file. Environment variables (`TENURE_…`) override its keys.
    #[arg(long, env = "TENURE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the gRPC port (key `listen`) [default: 127.0.0.1:50051].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address for JSON, SSE and HTTP/3 (keys `web_listen` and `h3_listen`), or `off` [default: 127.0.0.1:8443].
    #[arg(long, value_name = "ADDRESS")]
    web_listen: Option<String>,
    /// Directory of the data (key `data_dir`) [default: /var/lib/tenure or the user's state directory].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
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
            (self.serve(), FAILED)
        };
        let result = result.map_err(|error| CommandFailure::new(failed, words(&*error)));
        output::OutputFormat::Text.end(result.map(|()| 0))
    }

    /// The flags win over the environment, which wins over the file.
    fn flags(&self) -> Vec<(String, String)> {
        let mut flags = Vec::new();
        let mut set =
            |key: &str, value: &str| flags.push((format!("TENURE_{key}"), value.to_owned()));
        if let Some(listen) = &self.listen {
            set("LISTEN", listen);
        }
        if let Some(listen) = &self.web_listen {
            set("WEB_LISTEN", listen);
            set("H3_LISTEN", listen);
        }
        if let Some(dir) = &self.data_dir {
            set("DATA_DIR", &dir.to_string_lossy());
        }
        flags
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
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Ok(RawSettings::new(
            text.as_deref(),
            environment.chain(self.flags()),
        )?)
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
                let line = format!("{} = {}  # {}", entry.key, entry.value, entry.origin);
                output::line(&line).map_err(|failed| failed.text)?;
            }
            return Ok(());
        }
        let log_file = logs::begin(&config.log, std::env::var("RUST_LOG").ok().as_deref())?;
        if !config.ignored.is_empty() {
            let keys = config.ignored.join(" ");
            tracing::warn!(
                keys,
                "ignored: these keys of the configuration have no effect in Tenure"
            );
        }
        for unknown in &config.unknown {
            message::say(format_args!("ignored: {unknown}"));
        }
        raise_file_limit();
        let variable = |name: &str| std::env::var(name).ok();
        let signals = Signals::asked_for(&Environment(&variable), &config.node.name)?;
        let runtime = daemon::runtime()?;
        runtime.block_on(async {
            tokio::spawn(logs::reopen_at_hangup(log_file)?);
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
                "tenure: ready, grpc {}, web {web}, h3 {h3}{internal}, data {}; try: {}",
                daemon.grpc,
                config.disk.data_dir.display(),
                first_command(daemon.grpc)
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

/// Returns a command that a new user can try against this daemon.
fn first_command(grpc: SocketAddr) -> String {
    let url = match grpc.to_string().as_str() {
        // The default of the command.
        "127.0.0.1:50051" => String::new(),
        address => format!("TENURE_URL=tenure://{address} "),
    };
    format!("{url}tenure run demo:/hello -- sleep 10")
}

/// Returns what happened, why, and what to do next.
fn words(error: &(dyn std::error::Error + 'static)) -> String {
    use std::io::ErrorKind;
    let text = output::with_causes(error);
    match error.downcast_ref::<DaemonError>() {
        Some(DaemonError::Listen {
            key,
            address,
            source,
        }) => {
            let flag = key.replace('_', "-");
            let (why, next) = match source.kind() {
                ErrorKind::AddrInUse => {
                    let user = resource_user::of_port(*address);
                    let user = user.unwrap_or_else(|| "another process".to_owned());
                    (
                        format!("{user} uses the port"),
                        format!(
                            "stop it, or choose another port: tenure serve --{flag} {}:0",
                            address.ip()
                        ),
                    )
                }
                ErrorKind::PermissionDenied => (
                    "permission denied".to_owned(),
                    "ports below 1024 need root or CAP_NET_BIND_SERVICE: choose a higher port"
                        .to_owned(),
                ),
                ErrorKind::AddrNotAvailable => (
                    format!(
                        "no interface of this machine has the address {}",
                        address.ip()
                    ),
                    format!(
                        "choose an address that `ip address` lists: tenure serve --{flag} ADDRESS"
                    ),
                ),
                _ => (source.to_string(), "check the address".to_owned()),
            };
            format!("cannot listen on {address} ({key}): {why}; {next}")
        }
        Some(DaemonError::Node(tenure_server::daemon::StartError::Log { path, .. }))
            if text.contains("another process uses") =>
        {
            let user = resource_user::of_directory(path);
            let user = user.unwrap_or_else(|| "another process".to_owned());
            format!(
                "{user} uses the data directory {}; stop it, or choose another: tenure serve --data-dir DIR",
                path.display()
            )
        }
        Some(DaemonError::Node(tenure_server::daemon::StartError::Directory { path, source })) => {
            let next = match source.kind() {
                ErrorKind::PermissionDenied => {
                    "choose a directory that this user may write: tenure serve --data-dir DIR"
                }
                ErrorKind::StorageFull => "free space on its disk",
                _ => "choose another directory: tenure serve --data-dir DIR",
            };
            format!(
                "cannot use the data directory {}: {source}; {next}",
                path.display()
            )
        }
        _ => match text.split_once(": transport error") {
            Some((what, raw)) => {
                let (why, next) = tenure::connection_trouble(raw);
                format!("{what}: {why}; {}", next.unwrap_or("try again"))
            }
            None => text,
        },
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
