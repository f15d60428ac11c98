//! A real daemon in this process, on a free port.

use tempfile::TempDir;
use tenure::{Endpoint, Tenure};
use tenure_server::config::{Config, MachineDefaults, RawSettings, Writable};
use tenure_server::daemon;
use tenure_server::telemetry::otlp::Signals;
use tokio::runtime::{Builder, Runtime};

/// The daemon. It stops on drop.
pub(crate) struct Daemon {
    /// For `TENURE_URL`.
    pub(crate) url: String,
    _runtime: Runtime,
    _data: TempDir,
}

impl Daemon {
    pub(crate) fn start() -> Daemon {
        let data = tempfile::tempdir().unwrap();
        let directory = data.path().to_str().unwrap().to_owned();
        let keys = [
            ("TENURE_DATA_DIR".to_owned(), directory),
            ("TENURE_LISTEN".to_owned(), "127.0.0.1:0".to_owned()),
            ("TENURE_GROUP_COUNT".to_owned(), "4".to_owned()),
        ];
        let settings = RawSettings::new(Some("web_listen = \"\""), keys).unwrap();
        let machine = MachineDefaults {
            system_directory: Writable::No,
            user_state: None,
        };
        let config = Config::from_settings(settings, &machine).unwrap();
        let silent = Signals {
            tracing: None,
            pusher: None,
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let daemon = runtime.block_on(daemon::Daemon::start(&config, silent));
        let daemon = daemon.unwrap();
        let url = daemon.grpc.to_string();
        runtime.spawn(daemon.serve(std::future::pending()));
        Daemon {
            url,
            _runtime: runtime,
            _data: data,
        }
    }

    /// Returns a client with its own connection.
    #[allow(dead_code, reason = "not every test program looks for itself")]
    pub(crate) fn client(&self) -> Tenure {
        let nodes = Endpoint::list(&self.url).unwrap();
        Tenure::builder().nodes(nodes).build().unwrap()
    }
}
