//! `tenure serve`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tenure_server::config::{Config, Machine, Settings, Writable};
use tenure_server::daemon::Daemon;

/// Run the daemon.
///
/// With nothing configured it listens on this machine only: gRPC on 127.0.0.1:50051, JSON, SSE and
/// HTTP/3 on 127.0.0.1:8443, data in /var/lib/tenure or the user's state directory.
///
/// Examples:
///   tenure serve
///   tenure serve --config /etc/tenure.toml
///   TENURE_DATA_DIR=/tmp/demo tenure serve --print-config
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Serve {
    /// A TOML file; keys in the environment (`TENURE_…`) win over it.
    #[arg(long, env = "TENURE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print every key, its value and where it comes from, and exit.
    #[arg(long)]
    print_config: bool,
}

impl Serve {
    pub(crate) fn run(self) -> ExitCode {
        match self.serve() {
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

    fn serve(self) -> Result<(), Box<dyn std::error::Error>> {
        let text = match &self.config {
            Some(path) => Some(
                std::fs::read_to_string(path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?,
            ),
            None => None,
        };
        let settings = Settings::new(text.as_deref(), std::env::vars())?;
        let config = Config::from_settings(settings, &machine())?;
        if self.print_config {
            for entry in &config.effective {
                println!("{} = {}  # {}", entry.key, entry.value, entry.origin);
            }
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let daemon = Daemon::start(&config).await?;
            let web = daemon
                .web
                .map_or_else(|| "off".to_owned(), |web| web.to_string());
            let internal = daemon.internal.map_or_else(String::new, |(peers, gossip)| {
                format!(", peers {peers}, gossip {gossip}")
            });
            eprintln!("tenure: ready, grpc {}, web {web}{internal}", daemon.grpc);
            let mut term =
                tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
            let shutdown = async move {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = tokio::signal::ctrl_c() => {}
                }
            };
            daemon.serve(shutdown).await;
            Ok(())
        })
    }
}

/// What this machine offers where nothing is configured.
fn machine() -> Machine {
    let system = std::path::Path::new("/var/lib/tenure");
    let writable = std::fs::create_dir_all(system).is_ok()
        && rustix::fs::access(system, rustix::fs::Access::WRITE_OK).is_ok();
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let user_state = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or(home);
    Machine {
        system_directory: if writable {
            Writable::Yes
        } else {
            Writable::No
        },
        user_state,
    }
}
