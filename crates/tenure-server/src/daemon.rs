//! The daemon put together: a node, its handlers, and the faces on their ports.
//!
//! Start-up order: the data directory, then every port, then "ready". Whatever fails, fails before
//! anybody was served. Shutdown order (R169): stop accepting, end streams, finish running calls,
//! stop the node.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::HeaderValue;
use tenure_cluster::{Durable, Running, StartError};
use tenure_node::{ClusterConfig, Limits, NodeId};
use tenure_wire::cluster::cluster_server::ClusterServer;
use tenure_wire::v1::path_lock_server::PathLockServer;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tonic::service::Routes;

use crate::config::{Config, Sync};
use crate::events::Events;
use crate::faces::admission::Admission;
use crate::faces::auth;
use crate::faces::cluster::Operators;
use crate::faces::connection::{GrpcPort, WebConnection};
use crate::faces::grpc::Grpc;
use crate::faces::json::{self, Facade};
use crate::faces::openapi;
use crate::faces::sse::{self, Sse};
use crate::faces::tcp::{self, Door, Plain, Protocol};
use crate::faces::tls::{Certificate, TlsError};
use crate::handlers::Handlers;
use crate::peers;
use crate::telemetry::otlp::Signals;
use crate::telemetry::{self, Telemetry};

/// The longest message on the gRPC port.
const MESSAGE: usize = 4 << 20;
/// Open connections of the web faces together.
const WEB_CONNECTIONS: usize = 4096;
/// Open connections of the gRPC port; the file limit is raised for them at start.
const GRPC_CONNECTIONS: usize = 65_536;
/// Concurrent HTTP/2 streams of one connection: calls that wait and open subscriptions.
const STREAMS: u32 = 65_536;

/// Why the daemon does not start.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The node does not start.
    #[error(transparent)]
    Node(#[from] StartError),
    /// A port cannot be had.
    #[error("cannot listen on {address} ({key})")]
    Listen {
        /// The configuration key.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// TLS cannot be offered.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The node's number is out of range.
    #[error("node_id ends in {0}: the largest is 4294967294")]
    NodeId(u64),
    /// The cluster does not take this node (R161).
    #[error("this node does not fit in the cluster: {0}")]
    Excluded(String),
    /// The internal address makes no sense.
    #[error("raft_addr = {0}: must be a URL such as http://10.0.0.1:50052")]
    Internal(String),
    /// The description of the protocol cannot be offered.
    #[error("server reflection cannot be offered: {0}")]
    Reflection(String),
}

/// A daemon that listens.
pub struct Daemon {
    node: Running,
    telemetry: Telemetry,
    faces: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
    stop: watch::Sender<bool>,
    /// Where gRPC listens.
    pub grpc: SocketAddr,
    /// Where the web faces listen.
    pub web: Option<SocketAddr>,
    /// Where HTTP/3 listens.
    pub h3: Option<SocketAddr>,
    /// Where peers and gossip are listened to, if they are.
    pub internal: Option<(SocketAddr, SocketAddr)>,
}

impl Daemon {
    /// Opens the data directory and all ports.
    pub async fn start(config: &Config, signals: Signals) -> Result<Daemon, DaemonError> {
        let node = start_node(config)?;
        let telemetry = Telemetry::new(node.handle().clone(), signals.tracing);
        // A node that joins serves clients as soon as it has a cluster, before it has replicas (R167).
        let joined = node.handle().joined().await;
        joined.map_err(DaemonError::Excluded)?;
        let (stop, stopped) = watch::channel(false);
        let handlers = Handlers::new(node.handle().clone());
        let faces = &config.faces;
        let timeout = Duration::from_millis(faces.request_timeout_ms);
        let events = Events::new(
            node.handle().clone(),
            usize::try_from(faces.event_buffer).unwrap_or(usize::MAX),
            usize::try_from(faces.web_event_log_capacity).unwrap_or(usize::MAX),
        );
        let guard = auth::Guard::new(faces.client_token.as_ref());
        let mut running: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();

        let listener = bind("listen", faces.listen).await?;
        let grpc = local(&listener, faces.listen);
        let service = Grpc::new(
            handlers.clone(),
            events.clone(),
            telemetry.clone(),
            timeout,
            stopped.clone(),
        );
        let operators = Operators::new(node.handle().clone(), &config.node.fixed);
        let path_lock = PathLockServer::new(service.clone())
            .max_decoding_message_size(MESSAGE)
            .max_encoding_message_size(usize::MAX);
        let direct = guard.asks_nothing().then(|| path_lock.clone());
        let routes = grpc_routes(&service, path_lock, operators)?;
        let calls = usize::try_from(faces.max_concurrent_requests_per_connection)
            .unwrap_or(Semaphore::MAX_PERMITS)
            .min(Semaphore::MAX_PERMITS);
        let door = Door {
            tls: None,
            plain: Plain::Served,
            protocol: Protocol::Http2,
            connections: Arc::new(Semaphore::new(GRPC_CONNECTIONS)),
            streams: STREAMS,
        };
        let routes = guard.wrap(routes);
        let admission = Admission::new(timeout);
        let port = GrpcPort {
            direct,
            routes,
            calls,
            bodies: Arc::clone(&admission.bodies),
            timeout,
        };
        let connection = move |peer| port.connection(peer);
        running.push(Box::pin(tcp::serve(
            listener,
            door,
            connection,
            stopped.clone(),
        )));

        let (mut web, mut h3) = (None, None);
        if let Some(address) = faces.web_listen {
            let certificate = Certificate::load(faces.tls.as_ref())?;
            let listener = bind("web_listen", address).await?;
            let bound = local(&listener, address);
            web = Some(bound);
            let facade = Facade {
                handlers: handlers.clone(),
                telemetry: telemetry.clone(),
                timeout,
            };
            let sse = Sse {
                events,
                node: node.handle().clone(),
                stop: stopped.clone(),
            };
            let router = sse::router(sse)
                .merge(json::router(facade))
                .merge(openapi::router())
                .merge(telemetry::router(telemetry.clone()));
            let router = guard.wrap(router);
            let connections = Arc::new(Semaphore::new(WEB_CONNECTIONS));
            let mut alt_svc = None;
            if let Some(address) = faces.h3_listen {
                let server = certificate.for_quic(faces.zero_rtt)?;
                let endpoint = quinn::Endpoint::server(server, address).map_err(|source| {
                    DaemonError::Listen {
                        key: "h3_listen",
                        address,
                        source,
                    }
                })?;
                let bound = endpoint.local_addr().unwrap_or(address);
                h3 = Some(bound);
                let service = format!("h3=\":{}\"; ma=86400", bound.port());
                alt_svc = HeaderValue::try_from(service).ok();
                let door = crate::faces::h3::Door {
                    endpoint,
                    connections: Arc::clone(&connections),
                    admission: admission.clone(),
                    is_read_only: json::is_read_only,
                };
                running.push(Box::pin(crate::faces::h3::serve(
                    door,
                    router.clone(),
                    stopped.clone(),
                )));
            }
            let door = Door {
                tls: Some(TlsAcceptor::from(certificate.for_tcp()?)),
                plain: if bound.ip().is_loopback() {
                    Plain::Served
                } else {
                    Plain::Refused
                },
                protocol: Protocol::Web,
                connections,
                streams: 1024,
            };
            let connection = move |peer| WebConnection {
                routes: router.clone(),
                admission: admission.clone(),
                peer,
                alt_svc: alt_svc.clone(),
            };
            let served = tcp::serve(listener, door, connection, stopped.clone());
            running.push(Box::pin(served));
        }
        if let Some(pusher) = signals.pusher {
            running.push(Box::pin(pusher.run(telemetry.clone(), stopped)));
        }
        Ok(Daemon {
            internal: node.addresses(),
            node,
            telemetry,
            faces: running,
            stop,
            grpc,
            web,
            h3,
        })
    }

    /// Serves until `shutdown` resolves, then ends in order.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        let mut tasks = tokio::task::JoinSet::new();
        for face in self.faces {
            tasks.spawn(face);
        }
        shutdown.await;
        tracing::info!("stopping");
        let _ = self.stop.send(true);
        while tasks.join_next().await.is_some() {}
        let (node, telemetry) = (self.node, self.telemetry);
        // It joins threads.
        let stop = move || {
            telemetry.end_tracing();
            node.stop();
        };
        let _ = tokio::task::spawn_blocking(stop).await;
    }
}

fn start_node(config: &Config) -> Result<Running, DaemonError> {
    let id = config.node.id;
    let number = u32::try_from(id).ok().and_then(NodeId::new);
    let node = number.ok_or(DaemonError::NodeId(id.saturating_sub(1)))?;
    let fixed = &config.node.fixed;
    let entries = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(tenure_cluster::start(tenure_cluster::Options {
        data_dir: config.disk.data_dir.clone(),
        node,
        cluster: ClusterConfig {
            group_count: u32::try_from(fixed.group_count).unwrap_or(u32::MAX),
            prefix_segments: fixed.routing_prefix_segments,
            default_algorithm: fixed.default_algorithm,
        },
        limits: Limits {
            group_inflight: entries(config.node.max_inflight_per_group),
            log_entries: entries(config.disk.snapshot_entries),
            log_kept: entries(config.disk.kept_entries),
            ..Limits::default()
        },
        peers: peers::options(config)?,
        durable: match config.disk.sync {
            Sync::Always => Durable::Yes,
            Sync::Never => Durable::No,
        },
    })?)
}

async fn bind(key: &'static str, address: SocketAddr) -> Result<TcpListener, DaemonError> {
    let socket = if address.is_ipv4() {
        tokio::net::TcpSocket::new_v4()
    } else {
        tokio::net::TcpSocket::new_v6()
    };
    let bound = socket.and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        // Room for many clients that come at once.
        socket.listen(4096)
    });
    bound.map_err(|source| DaemonError::Listen {
        key,
        address,
        source,
    })
}

/// The real port where 0 was asked for.
fn local(listener: &TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}

fn grpc_routes(
    service: &Grpc,
    path_lock: PathLockServer<Grpc>,
    operators: Operators,
) -> Result<Router, DaemonError> {
    let failed =
        |error: tonic_reflection::server::Error| DaemonError::Reflection(error.to_string());
    let describe = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tenure_wire::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tenure_wire::CLUSTER_DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = describe().build_v1().map_err(failed)?;
    let v1alpha = describe().build_v1alpha().map_err(failed)?;
    let health = crate::faces::health::service(service);
    let routes = Routes::new(path_lock)
        .add_service(v1)
        .add_service(v1alpha)
        .add_service(health)
        .add_service(ClusterServer::new(operators));
    Ok(routes.prepare().into_axum_router())
}
