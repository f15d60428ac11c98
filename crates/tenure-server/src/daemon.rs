//! Daemon: starts and stops a node with its transports.
//!
//! Start-up order: open the data directory, join a cluster, bind every port, then "ready". Errors
//! occur before the first client is served. Shutdown order (R169 (shutdown within 10 s)): stop
//! accepting, end streams, finish running calls, stop the node.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

pub use tenure_cluster::StartError;
use tenure_cluster::{DataOrigin, RunningNode, SyncPolicy};
use tenure_node::{ClusterConfig, Limits, NodeId};
use tenure_wire::tls::Fingerprint;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::auth;
use crate::config::{self, Config, SyncConfig};
use crate::listeners::{Listeners, ServingTransport};
use crate::peer_config;
use crate::service_manager;
use crate::telemetry::Telemetry;
use crate::telemetry::otlp::Signals;
use crate::transport::tls::TlsError;

/// How often a node that waits for a cluster checks for `tenure cluster init`.
const ORDER_EVERY: Duration = Duration::from_millis(300);

/// The reason why the daemon does not start, or has stopped.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The node does not start.
    #[error(transparent)]
    Node(#[from] StartError),
    /// A port cannot be bound.
    #[error("cannot listen on {address} ({key})")]
    Listen {
        /// The configuration key.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// TLS cannot be offered.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The TLS files for peer connections cannot be used.
    #[error(transparent)]
    PeerTls(#[from] tenure_cluster::PeerTlsError),
    /// The node's number is out of range.
    #[error("node_id ends in {0}: the maximum is 4294967294")]
    NodeId(u64),
    /// The cluster refuses this node because its settings differ (R161 settings fixed per cluster).
    #[error("this node cannot join the cluster: {0}")]
    Excluded(String),
    /// `raft_addr` is not a host and a port.
    #[error("raft_addr = {0}: must be a URL such as http://10.0.0.1:50052")]
    Internal(String),
    /// The node has stopped by itself.
    #[error("the node has stopped: {0}")]
    Stopped(String),
    /// gRPC reflection cannot be offered.
    #[error("gRPC reflection cannot be set up: {0}")]
    Reflection(String),
}

/// Creates the runtime of the transports. It has one worker less than there are cores: the node's
/// thread needs its own core, because sharing one costs an additional context switch per answer.
pub fn runtime() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads(cores.saturating_sub(1).max(1))
        .enable_all()
        .build()
}

/// A daemon whose ports are bound.
pub struct Daemon {
    node: RunningNode,
    telemetry: Telemetry,
    transports: Vec<ServingTransport>,
    stop: watch::Sender<bool>,
    /// Address of the gRPC port.
    pub grpc: SocketAddr,
    /// Address of the web port.
    pub web: Option<SocketAddr>,
    /// Address of the HTTP/3 port.
    pub h3: Option<SocketAddr>,
    /// Fingerprint of the certificate: clients can pin it.
    pub certificate: Fingerprint,
    /// Addresses of the peer port and the gossip port, if the node has peers.
    pub internal: Option<(SocketAddr, SocketAddr)>,
}

impl Daemon {
    /// Opens the data directory, waits until the node is part of a cluster, and binds all ports.
    pub async fn start(config: &Config, signals: Signals) -> Result<Daemon, DaemonError> {
        let node = joined_node(config).await?;
        say_without_effect(config, &node);
        let telemetry = Telemetry::new(node.handle().clone(), signals.tracing);
        let (stop, stopped) = watch::channel(false);
        let mut ports = Listeners::new(config, node.handle(), &telemetry, &stopped)?;
        let grpc = ports.open_grpc().await?;
        let web = ports.open_web().await?;
        let certificate = ports.fingerprint();
        let mut running = ports.running;
        let data_dir = config.disk.data_dir.clone();
        let handle = node.handle().clone();
        running.push(Box::pin(auth::ensure_root_key(
            handle,
            data_dir,
            stopped.clone(),
        )));
        let watchdog = service_manager::watchdog(node.handle().clone(), stopped.clone());
        running.push(Box::pin(watchdog));
        if let Some(pusher) = signals.pusher {
            running.push(Box::pin(pusher.run(telemetry.clone(), stopped)));
        }
        Ok(Daemon {
            internal: node.addresses(),
            node,
            telemetry,
            transports: running,
            stop,
            grpc,
            web: web.as_ref().map(|web| web.tcp),
            h3: web.and_then(|web| web.quic),
            certificate,
        })
    }

    /// Serves until `shutdown` resolves, then shuts down in order. Fails if the node has ended by
    /// itself: the caller must then end the process, so that a supervisor starts a new one.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let mut tasks = tokio::task::JoinSet::new();
        for transport in self.transports {
            tasks.spawn(transport);
        }
        service_manager::ready();
        let handle = self.node.handle().clone();
        let ended = tokio::select! {
            () = shutdown => Ok(()),
            why = handle.ended() => Err(DaemonError::Stopped(why)),
        };
        tracing::info!("stopping");
        service_manager::stopping();
        let _ = self.stop.send(true);
        // If the node has stopped, every call fails at once, so this does not take long.
        while tasks.join_next().await.is_some() {}
        let (node, telemetry) = (self.node, self.telemetry);
        // `stop` joins threads, so it must not run on a worker of the runtime.
        let stop = move || {
            telemetry.end_tracing();
            node.stop();
        };
        let _ = tokio::task::spawn_blocking(stop).await;
        ended
    }
}

/// Starts the node and waits until it is part of a cluster. From then on it serves clients, even
/// without replicas of its own (R167 bootstrap decision). While it waits, the operator can run
/// `tenure cluster init` to make it create a cluster.
async fn joined_node(config: &Config) -> Result<RunningNode, DaemonError> {
    loop {
        let node = start_node(config)?;
        if node.origin() == DataOrigin::Joins {
            service_manager::status("waits for its cluster");
            tracing::info!(
                "this node waits for its cluster; to create a cluster, run once on one node: \
                 tenure cluster init --data-dir {}",
                config.disk.data_dir.display()
            );
        }
        tokio::select! {
            joined = node.handle().joined() => {
                joined.map_err(DaemonError::Excluded)?;
                return Ok(node);
            }
            () = ordered_to_found(config), if node.origin() == DataOrigin::Joins => {}
        }
        tracing::info!("found an order to create a cluster (tenure cluster init)");
        // `stop` joins threads. A node without a cluster has nothing to hand over. The next
        // iteration of the loop finds the order and creates the cluster.
        let _ = tokio::task::spawn_blocking(move || node.stop()).await;
    }
}

/// Waits for the operator's order. It is a file written by another process, possibly before the
/// daemon starts, so it is polled.
async fn ordered_to_found(config: &Config) {
    while !tenure_cluster::offline::is_ordered_to_found(&config.disk.data_dir) {
        tokio::time::sleep(ORDER_EVERY).await;
    }
}

/// Warns about bootstrap settings that have no effect because the node already has data.
fn say_without_effect(config: &Config, node: &RunningNode) {
    if node.origin() != DataOrigin::Resumed {
        return;
    }
    for key in ["bootstrap", "force_bootstrap"] {
        let entry = config.effective.iter().find(|entry| entry.key == key);
        if entry
            .is_some_and(|one| one.origin != config::ValueOrigin::Default && one.value == "true")
        {
            tracing::warn!(
                "{key} has no effect, because this node is already in a cluster: remove it from the configuration"
            );
        }
    }
}

fn start_node(config: &Config) -> Result<RunningNode, DaemonError> {
    let id = config.node.id;
    let number = u32::try_from(id).ok().and_then(NodeId::new);
    let node = number.ok_or(DaemonError::NodeId(id.saturating_sub(1)))?;
    let fixed = &config.node.fixed;
    let entries = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(tenure_cluster::start(tenure_cluster::Options {
        data_dir: config.disk.data_dir.clone(),
        node,
        name: config.node.name.clone(),
        cluster: ClusterConfig {
            group_count: u32::try_from(fixed.group_count).unwrap_or(u32::MAX),
            prefix_segments: fixed.routing_prefix_segments,
            default_algorithm: fixed.default_algorithm,
        },
        limits: Limits {
            group_inflight: entries(config.node.max_inflight_per_group),
            state_bytes: match config.node.max_state_mb {
                0 => None,
                megabytes => Some(megabytes << 20),
            },
            log_entries: entries(config.disk.snapshot_entries),
            log_kept: entries(config.disk.kept_entries),
            history_bytes: entries(config.node.history_mb << 20),
            ..Limits::default()
        },
        peers: peer_config::options(config)?,
        durable: match config.disk.sync {
            SyncConfig::Always => SyncPolicy::Yes,
            SyncConfig::Never => SyncPolicy::No,
        },
    })?)
}
