//! Listeners: binds the ports and connects each one with its transport. Every transport is a future
//! that serves until the daemon stops.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::HeaderValue;
use tenure_cluster::Handle;
use tenure_wire::auth::auth_server::AuthServer;
use tenure_wire::cluster::cluster_server::ClusterServer;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tonic::service::Routes;

use crate::audit_log::AuditLog;
use crate::auth::{AccessControl, AuthService};
use crate::config::{Config, FixedConfig, TransportConfig};
use crate::daemon::DaemonError;
use crate::events::EventHub;
use crate::telemetry::{self, Telemetry};
use crate::transport::admin::AdminService;
use crate::transport::admission::Admission;
use crate::transport::coalesce::Coalescer;
use crate::transport::connection::{GrpcPort, WebConnection};
use crate::transport::grpc::Grpc;
use crate::transport::json::{self, JsonApi};
use crate::transport::sse::{self, Sse};
use crate::transport::tcp::{self, PlaintextPolicy, TcpListenerConfig};
use crate::transport::tls::Certificate;
use crate::transport::{auth, grpc_connection, h3, openapi, unix};

/// Maximum number of open connections of all web transports.
const WEB_CONNECTIONS: usize = 4096;
/// Maximum number of open connections of the gRPC port. `tenure serve` raises the file limit at
/// start.
const GRPC_CONNECTIONS: usize = 65_536;
/// Concurrent HTTP/2 streams of one web connection.
const WEB_STREAMS: u32 = 1024;

/// A transport's future.
pub(crate) type ServingTransport = Pin<Box<dyn Future<Output = ()> + Send>>;

/// State shared by all ports, and the transports bound so far.
pub(crate) struct Listeners<'a> {
    config: &'a TransportConfig,
    data_dir: &'a Path,
    fixed: &'a FixedConfig,
    node: &'a Handle,
    telemetry: &'a Telemetry,
    stop: &'a watch::Receiver<bool>,
    events: EventHub,
    access: AccessControl,
    admission: Admission,
    timeout: Duration,
    /// Futures of the bound transports. They serve when polled.
    pub(crate) running: Vec<ServingTransport>,
}

/// Addresses of the web transports.
pub(crate) struct WebAddresses {
    pub(crate) tcp: SocketAddr,
    pub(crate) quic: Option<SocketAddr>,
}

impl<'a> Listeners<'a> {
    pub(crate) fn new(
        config: &'a Config,
        node: &'a Handle,
        telemetry: &'a Telemetry,
        stop: &'a watch::Receiver<bool>,
    ) -> Listeners<'a> {
        let transports = &config.transports;
        let timeout = Duration::from_millis(transports.request_timeout_ms);
        let events = EventHub::new(
            node.clone(),
            usize::try_from(transports.event_buffer).unwrap_or(usize::MAX),
            usize::try_from(transports.web_event_log_capacity).unwrap_or(usize::MAX),
        );
        Listeners {
            config: transports,
            data_dir: &config.disk.data_dir,
            fixed: &config.node.fixed,
            node,
            telemetry,
            stop,
            events,
            access: AccessControl::new(
                transports,
                node.auth(),
                Arc::new(AuditLog::open(&config.disk.data_dir)),
            ),
            admission: Admission::new(timeout),
            timeout,
            running: Vec::new(),
        }
    }

    /// Binds the gRPC port.
    pub(crate) async fn open_grpc(&mut self) -> Result<SocketAddr, DaemonError> {
        let listener = bind("listen", self.config.listen).await?;
        let address = local(&listener, self.config.listen);
        let service = Grpc {
            node: self.node.clone(),
            events: self.events.clone(),
            telemetry: self.telemetry.clone(),
            access: self.access.clone(),
            timeout: self.timeout,
            stop: self.stop.clone(),
        };
        let operators = AdminService::new(self.node.clone(), self.fixed);
        let calls = usize::try_from(self.config.max_concurrent_requests_per_connection);
        let port = Arc::new(GrpcPort {
            node: self.node.clone(),
            coalescer: Coalescer::new(self.node.clone()),
            routes: grpc_routes(
                &service,
                operators,
                AuthService::new(self.node.clone(), self.timeout),
            )?,
            service,
            access: self.access.clone(),
            calls: calls
                .unwrap_or(Semaphore::MAX_PERMITS)
                .min(Semaphore::MAX_PERMITS),
            bodies: Arc::clone(&self.admission.bodies),
            timeout: self.timeout,
        });
        let connections = Arc::new(Semaphore::new(GRPC_CONNECTIONS));
        if let Some(socket) = unix::bind(self.data_dir) {
            let served = unix::serve(
                socket,
                Arc::clone(&connections),
                Arc::clone(&port),
                self.stop.clone(),
            );
            self.running.push(Box::pin(served));
        }
        let stop = self.stop.clone();
        let connection = move |stream, peer| {
            let port = Arc::clone(&port);
            grpc_connection::serve(stream, peer, port, stop.clone())
        };
        let served = tcp::serve(listener, connections, connection, self.stop.clone());
        self.running.push(Box::pin(served));
        Ok(address)
    }

    /// Binds the web ports, TCP and QUIC, if they are configured.
    pub(crate) async fn open_web(&mut self) -> Result<Option<WebAddresses>, DaemonError> {
        let Some(asked) = self.config.web_listen else {
            return Ok(None);
        };
        let certificate = Certificate::load(self.config.tls.as_ref())?;
        let listener = bind("web_listen", asked).await?;
        let tcp = local(&listener, asked);
        let routes = auth::wrap(&self.access, self.web_routes());
        let connections = Arc::new(Semaphore::new(WEB_CONNECTIONS));
        let quic = self.open_quic(&certificate, &connections, &routes)?;
        let listen_endpoint = TcpListenerConfig {
            tls: TlsAcceptor::from(certificate.for_tcp()?),
            plain: if tcp.ip().is_loopback() {
                PlaintextPolicy::Served
            } else {
                PlaintextPolicy::Refused
            },
            streams: WEB_STREAMS,
            node: self.node.clone(),
        };
        let admission = self.admission.clone();
        let alt_svc = quic.and_then(|quic| {
            HeaderValue::try_from(format!("h3=\":{}\"; ma=86400", quic.port())).ok()
        });
        let stop = self.stop.clone();
        let connection = move |stream, peer| {
            let service = WebConnection {
                routes: routes.clone(),
                admission: admission.clone(),
                peer,
                alt_svc: alt_svc.clone(),
            };
            tcp::web(stream, listen_endpoint.clone(), service, stop.clone())
        };
        let served = tcp::serve(listener, connections, connection, self.stop.clone());
        self.running.push(Box::pin(served));
        Ok(Some(WebAddresses { tcp, quic }))
    }

    fn open_quic(
        &mut self,
        certificate: &Certificate,
        connections: &Arc<Semaphore>,
        routes: &Router,
    ) -> Result<Option<SocketAddr>, DaemonError> {
        let Some(asked) = self.config.h3_listen else {
            return Ok(None);
        };
        let server = certificate.for_quic(self.config.zero_rtt)?;
        let endpoint =
            quinn::Endpoint::server(server, asked).map_err(|source| DaemonError::Listen {
                key: "h3_listen",
                address: asked,
                source,
            })?;
        let address = endpoint.local_addr().unwrap_or(asked);
        let listen_endpoint = h3::H3Listener {
            endpoint,
            connections: Arc::clone(connections),
            admission: self.admission.clone(),
            is_read_only: json::is_read_only,
        };
        let served = h3::serve(listen_endpoint, routes.clone(), self.stop.clone());
        self.running.push(Box::pin(served));
        Ok(Some(address))
    }

    fn web_routes(&self) -> Router {
        let facade = JsonApi {
            node: self.node.clone(),
            telemetry: self.telemetry.clone(),
            timeout: self.timeout,
        };
        let sse = Sse {
            events: self.events.clone(),
            node: self.node.clone(),
            access: self.access.clone(),
            stop: self.stop.clone(),
        };
        sse::router(sse)
            .merge(json::router(facade))
            .merge(openapi::router())
            .merge(telemetry::router(self.telemetry.clone()))
    }
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
        // Backlog for many clients that connect at the same time, for example after a node has
        // failed.
        socket.listen(4096)
    });
    bound.map_err(|source| DaemonError::Listen {
        key,
        address,
        source,
    })
}

/// Returns the bound address; it has the real port if 0 was requested.
fn local(listener: &TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}

/// Builds the services beside the lock service: reflection, health, cluster administration.
fn grpc_routes(
    service: &Grpc,
    operators: AdminService,
    permissions: AuthService,
) -> Result<Router, DaemonError> {
    let failed =
        |error: tonic_reflection::server::Error| DaemonError::Reflection(error.to_string());
    let describe = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tenure_wire::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tenure_wire::CLUSTER_DESCRIPTORS)
            .register_encoded_file_descriptor_set(tenure_wire::AUTH_DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = describe().build_v1().map_err(failed)?;
    let v1alpha = describe().build_v1alpha().map_err(failed)?;
    let health = crate::transport::health::service(service);
    let routes = Routes::new(v1)
        .add_service(v1alpha)
        .add_service(health)
        .add_service(ClusterServer::new(operators))
        .add_service(AuthServer::new(permissions));
    Ok(routes.prepare().into_axum_router())
}
