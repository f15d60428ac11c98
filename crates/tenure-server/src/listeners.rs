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
use tenure_wire::tls::Fingerprint;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tonic::service::Routes;

use crate::audit_log::AuditLog;
use crate::auth::{AccessControl, AuthService, ConnectionSlots, Sessions, TokenIssuer};
use crate::config::{
    Config, FixedConfig, PlaintextConsent, RemoteAnonymous, Secret, TransportConfig,
};
use crate::console::{self, Console, Operators};
use crate::daemon::DaemonError;
use crate::events::EventHub;
use crate::service_manager;
use crate::telemetry::{self, Telemetry};
use crate::transport::admin::AdminService;
use crate::transport::admission::Admission;
use crate::transport::coalesce::Coalescer;
use crate::transport::connection::{GrpcPort, WebConnection};
use crate::transport::grpc::Grpc;
use crate::transport::json::{self, JsonApi};
use crate::transport::memory_budget::ConnectionBudget;
use crate::transport::sse::{self, Sse};
use crate::transport::tcp::{self, AddressLimit, PlaintextPolicy, TcpListenerConfig};
use crate::transport::tls::{self, ServerTls};
use crate::transport::web_origin::HostNames;
use crate::transport::{auth, grpc_connection, h3, openapi, unix};

/// Maximum number of open connections of all web transports.
const WEB_CONNECTIONS: usize = 4096;
/// Maximum number of open connections of the gRPC port. `tenure serve` raises the file limit at
/// start.
const GRPC_CONNECTIONS: usize = 65_536;
/// Descriptors that are kept for the log, for snapshots and for peers: connections of clients must
/// never keep the log from opening its next file.
const OTHER_DESCRIPTORS: usize = 512;
/// Concurrent HTTP/2 streams of one web connection.
const WEB_STREAMS: u32 = 1024;
/// Flow-control windows of a web connection: the default of HTTP/2, and one for which there is
/// memory.
const SMALL_WINDOW: u32 = 65_535;
const WINDOW: u32 = 1 << 20;

/// Maximum numbers of open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConnectionLimits {
    grpc: usize,
    web: usize,
}

impl ConnectionLimits {
    /// Returns the limits of a process that may open this many files.
    fn of(files: usize) -> ConnectionLimits {
        // Where the limit is very low, connections get half of it.
        let all = files.saturating_sub(OTHER_DESCRIPTORS).max(files / 2);
        let web = (all / 4).min(WEB_CONNECTIONS);
        ConnectionLimits {
            grpc: (all - web).min(GRPC_CONNECTIONS),
            web,
        }
    }

    fn of_this_process() -> ConnectionLimits {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let files = limit.current.unwrap_or(u64::MAX);
        ConnectionLimits::of(usize::try_from(files).unwrap_or(usize::MAX))
    }
}

/// A transport's future.
pub(crate) type ServingTransport = Pin<Box<dyn Future<Output = ()> + Send>>;

/// State shared by all ports, and the transports bound so far.
pub(crate) struct Listeners<'a> {
    config: &'a TransportConfig,
    data_dir: &'a Path,
    /// The token that all nodes of the cluster have.
    cluster_token: Option<&'a str>,
    tls: Arc<ServerTls>,
    connections: ConnectionLimits,
    addresses: Arc<AddressLimit>,
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
    ) -> Result<Listeners<'a>, DaemonError> {
        let transports = &config.transports;
        let tls = ServerTls::load(
            &transports.tls,
            transports.zero_rtt,
            &config.disk.data_dir,
            &certificate_names(transports),
        )?;
        let timeout = Duration::from_millis(transports.request_timeout_ms);
        let events = EventHub::new(
            node.clone(),
            usize::try_from(transports.event_buffer).unwrap_or(usize::MAX),
            usize::try_from(transports.web_event_log_capacity).unwrap_or(usize::MAX),
        );
        let tokens = transports.jwt.as_ref().map(TokenIssuer::new);
        let memory = usize::try_from(transports.client_memory_mb << 20).unwrap_or(usize::MAX);
        Ok(Listeners {
            config: transports,
            data_dir: &config.disk.data_dir,
            cluster_token: config.cluster.token.as_ref().map(Secret::reveal),
            tls: Arc::new(tls),
            connections: ConnectionLimits::of_this_process(),
            addresses: AddressLimit::new(
                usize::try_from(transports.connections_per_address).unwrap_or(usize::MAX),
            ),
            fixed: &config.node.fixed,
            node,
            telemetry,
            stop,
            events,
            access: AccessControl::new(
                transports,
                node.auth(),
                Arc::new(AuditLog::open(&config.disk.data_dir)),
                telemetry.limit_refusals(),
                tokens,
            ),
            admission: Admission::new(timeout, memory),
            timeout,
            running: Vec::new(),
        })
    }

    /// Returns the fingerprint of the certificate.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.tls.fingerprint()
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
            memory: Arc::clone(&self.admission.memory),
            tls: Arc::clone(&self.tls),
            plain: PlaintextPolicy::of(
                address,
                self.config.plaintext,
                match self.config.remote_anonymous {
                    RemoteAnonymous::Allowed => PlaintextPolicy::Anonymous,
                    RemoteAnonymous::Granted => PlaintextPolicy::Refused,
                },
            ),
            hosts: HostNames::new(address, &self.config.web_hosts),
            timeout: self.timeout,
        });
        let connections = Arc::new(Semaphore::new(self.connections.grpc));
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
        let served = tcp::serve(
            listener,
            connections,
            Arc::clone(&self.addresses),
            connection,
            self.stop.clone(),
        );
        self.running.push(Box::pin(served));
        Ok(address)
    }

    /// Binds the web ports, TCP and QUIC, if they are configured.
    pub(crate) async fn open_web(&mut self) -> Result<Option<WebAddresses>, DaemonError> {
        let Some(asked) = self.config.web_listen else {
            self.watch_certificates(None);
            return Ok(None);
        };
        let listener = bind("web_listen", asked).await?;
        let tcp = local(&listener, asked);
        let hosts = HostNames::new(tcp, &self.config.web_hosts);
        let sessions = Sessions::new(self.access.clone(), self.cluster_token);
        let routes = console::wrap(&sessions, auth::wrap(&self.access, self.web_routes()));
        let public = console::public_router(Console {
            node: self.node.clone(),
            sessions,
        });
        let routes = hosts.wrap(routes.merge(public));
        let connections = Arc::new(Semaphore::new(self.connections.web));
        let quic = self.open_quic(&connections, &routes)?;
        let listen_endpoint = TcpListenerConfig {
            tls: Arc::clone(&self.tls),
            // Beyond loopback the web port never serves plaintext, by any setting.
            plain: PlaintextPolicy::of(tcp, PlaintextConsent::No, PlaintextPolicy::Refused),
            streams: WEB_STREAMS,
            window: SMALL_WINDOW,
            node: self.node.clone(),
        };
        let admission = self.admission.clone();
        let alt_svc = quic.and_then(|quic| {
            HeaderValue::try_from(format!("h3=\":{}\"; ma=86400", quic.port())).ok()
        });
        let stop = self.stop.clone();
        let connection = move |stream, peer: SocketAddr| {
            let (routes, admission) = (routes.clone(), admission.clone());
            let (listen_endpoint, alt_svc) = (listen_endpoint.clone(), alt_svc.clone());
            let stop = stop.clone();
            async move {
                let Some(memory) = ConnectionBudget::open(&admission.memory) else {
                    tracing::debug!(%peer, "closed: the memory for clients is used up");
                    return;
                };
                let mut listen_endpoint = listen_endpoint;
                if memory.widen(WINDOW as usize) {
                    listen_endpoint.window = WINDOW;
                }
                let service = |certificate| WebConnection {
                    routes,
                    admission,
                    memory,
                    peer,
                    slots: ConnectionSlots::default(),
                    certificate,
                    alt_svc,
                };
                tcp::web(stream, listen_endpoint, service, stop).await;
            }
        };
        let served = tcp::serve(
            listener,
            connections,
            Arc::clone(&self.addresses),
            connection,
            self.stop.clone(),
        );
        self.running.push(Box::pin(served));
        Ok(Some(WebAddresses { tcp, quic }))
    }

    fn open_quic(
        &mut self,
        connections: &Arc<Semaphore>,
        routes: &Router,
    ) -> Result<Option<SocketAddr>, DaemonError> {
        let Some(asked) = self.config.h3_listen else {
            self.watch_certificates(None);
            return Ok(None);
        };
        let endpoint = quinn::Endpoint::server(self.tls.quic(), asked).map_err(|source| {
            DaemonError::Listen {
                key: "h3_listen",
                address: asked,
                source,
            }
        })?;
        self.watch_certificates(Some(endpoint.clone()));
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

    /// Starts the task that reloads changed certificates. Connections that are accepted afterwards
    /// use them.
    fn watch_certificates(&mut self, quic: Option<quinn::Endpoint>) {
        let reloaded = move |tls: &ServerTls| {
            if let Some(quic) = &quic {
                quic.set_server_config(Some(tls.quic()));
            }
        };
        let watching = tls::watch_files(Arc::clone(&self.tls), reloaded, self.stop.clone());
        self.running.push(Box::pin(watching));
    }

    fn web_routes(&self) -> Router {
        let facade = JsonApi {
            node: self.node.clone(),
            telemetry: self.telemetry.clone(),
            timeout: self.timeout,
        };
        let sse = Sse {
            events: self.events.clone(),
            access: self.access.clone(),
            stop: self.stop.clone(),
        };
        sse::router(sse)
            .merge(json::router(facade))
            .merge(openapi::router())
            .merge(console::operate_router(Operators {
                cluster: Arc::new(AdminService::new(self.node.clone(), self.fixed)),
                auth: Arc::new(AuthService::new(self.node.clone(), self.timeout)),
            }))
            .merge(telemetry::router(self.telemetry.clone()))
    }
}

/// Returns the host names of a self-signed certificate.
fn certificate_names(config: &TransportConfig) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    names.extend(config.web_hosts.iter().cloned());
    let public = config.public_addr.parse::<http::Uri>().ok();
    let public = public.as_ref().and_then(|uri| uri.host());
    names.extend(public.map(|host| host.trim_matches(['[', ']']).to_owned()));
    names.sort();
    names.dedup();
    names
}

async fn bind(key: &'static str, address: SocketAddr) -> Result<TcpListener, DaemonError> {
    let failed = |source| DaemonError::Listen {
        key,
        address,
        source,
    };
    if let Some(socket) = service_manager::inherited(key, address).map_err(failed)? {
        return TcpListener::from_std(socket).map_err(failed);
    }
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
    bound.map_err(failed)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// However low the file limit is, the log can still open files.
    #[test]
    fn connections_stay_below_the_file_limit() {
        for files in [64, 256, 1024, 4096, 65_536, 1 << 20, usize::MAX] {
            let ConnectionLimits { grpc, web } = ConnectionLimits::of(files);
            let rest = files - grpc - web;
            assert!(rest >= OTHER_DESCRIPTORS.min(files / 2), "{files}: {rest}");
            assert!(grpc >= web && web > 0, "{files}");
        }
        let many = ConnectionLimits::of(1 << 20);
        assert_eq!((many.grpc, many.web), (GRPC_CONNECTIONS, WEB_CONNECTIONS));
    }
}
