//! A daemon embedded in another program: `embedded_daemon DATA_DIR ADDRESS [TOKEN]`.
//!
//! Further settings come from `TENURE_…` variables. Prints `ready ADDRESS` (and the gossip address
//! of a cluster node) on stdout, and serves until its standard input is closed.

use std::io::Write;

use tenure_server::config::{Config, MachineDefaults, RawSettings, Writable};
use tenure_server::daemon::Daemon;
use tenure_server::telemetry::otlp::Signals;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let data = arguments.next().ok_or("name a data directory")?;
    let address = arguments.next().ok_or("name an address")?;
    let mut keys: Vec<(String, String)> = std::env::vars()
        .filter(|(key, _)| key.starts_with("TENURE_"))
        .collect();
    keys.extend([
        ("TENURE_DATA_DIR".to_owned(), data),
        ("TENURE_LISTEN".to_owned(), address),
        ("TENURE_GROUP_COUNT".to_owned(), "4".to_owned()),
    ]);
    if let Some(token) = arguments.next() {
        keys.push(("TENURE_CLIENT_AUTH_TOKEN".to_owned(), token));
    }
    let machine = MachineDefaults {
        system_directory: Writable::No,
        user_state: None,
    };
    let settings = RawSettings::new(Some("web_listen = \"\""), keys)?;
    let config = Config::from_settings(settings, &machine)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let silent = Signals {
            tracing: None,
            pusher: None,
        };
        let daemon = Daemon::start(&config, silent).await?;
        let gossip = daemon
            .internal
            .map_or_else(String::new, |(_, gossip)| gossip.to_string());
        writeln!(std::io::stdout(), "ready {} {gossip}", daemon.grpc)?;
        std::io::stdout().flush()?;
        let (over, end) = tokio::sync::oneshot::channel::<()>();
        std::thread::spawn(move || {
            let _ = std::io::read_to_string(std::io::stdin());
            drop(over);
        });
        daemon.serve(async move { drop(end.await) }).await?;
        Ok(())
    })
}
