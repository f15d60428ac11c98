//! The ports: every face on its listener, each a future that serves until the daemon stops.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::HeaderValue;
use tenure_cluster::Handle;
use tenure_wire::cluster::cluster_server::ClusterServer;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tonic::service::Routes;

use crate::config::{Config, FacesConfig, FixedConfig};
use crate::daemon::DaemonError;
use crate::events::Events;
use crate::faces::admission::Admission;
use crate::faces::cluster::Operators;
use crate::faces::connection::{GrpcPort, WebConnection};
use crate::faces::grpc::Grpc;
use crate::faces::herd::Herd;
use crate::faces::json::{self, Facade};
use crate::faces::sse::{self, Sse};
use crate::faces::tcp::{self, Door, Plain};
use crate::faces::tls::Certificate;
use crate::faces::{auth, h3, http2, openapi};
use crate::telemetry::{self, Telemetry};

/// Open connections of the web faces together.
const WEB_CONNECTIONS: usize = 4096;
/// Open connections of the gRPC port; the file limit is raised for them at start.
const GRPC_CONNECTIONS: usize = 65_536;
/// Concurrent HTTP/2 streams of one web connection.
const WEB_STREAMS: u32 = 1024;

/// A face that serves.
pub(crate) type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What all ports share, and the faces opened so far.
pub(crate) struct Ports<'a> {
    config: &'a FacesConfig,
    fixed: &'a FixedConfig,
    node: &'a Handle,
    telemetry: &'a Telemetry,
    stop: &'a watch::Receiver<bool>,
    events: Events,
    guard: auth::Guard,
    admission: Admission,
    timeout: Duration,
    /// What serves once it is run.
    pub(crate) running: Vec<Serving>,
}

/// Where the web faces listen.
pub(crate) struct WebPorts {
    pub(crate) tcp: SocketAddr,
    pub(crate) quic: Option<SocketAddr>,
}

impl<'a> Ports<'a> {
    pub(crate) fn new(
        config: &'a Config,
        node: &'a Handle,
        telemetry: &'a Telemetry,
        stop: &'a watch::Receiver<bool>,
    ) -> Ports<'a> {
        let faces = &config.faces;
        let timeout = Duration::from_millis(faces.request_timeout_ms);
        let events = Events::new(
            node.clone(),
            usize::try_from(faces.event_buffer).unwrap_or(usize::MAX),
            usize::try_from(faces.web_event_log_capacity).unwrap_or(usize::MAX),
        );
        Ports {
            config: faces,
            fixed: &config.node.fixed,
            node,
            telemetry,
            stop,
            events,
            guard: auth::Guard::new(faces.client_token.as_ref()),
            admission: Admission::new(timeout),
            timeout,
            running: Vec::new(),
        }
    }

    /// Opens the gRPC port.
    pub(crate) async fn open_grpc(&mut self) -> Result<SocketAddr, DaemonError> {
        let listener = bind("listen", self.config.listen).await?;
        let address = local(&listener, self.config.listen);
        let service = Grpc {
            node: self.node.clone(),
            events: self.events.clone(),
            telemetry: self.telemetry.clone(),
            timeout: self.timeout,
            stop: self.stop.clone(),
        };
        let operators = Operators::new(self.node.clone(), self.fixed);
        let calls = usize::try_from(self.config.max_concurrent_requests_per_connection);
        let port = Arc::new(GrpcPort {
            node: self.node.clone(),
            herd: Herd::new(self.node.clone()),
            routes: grpc_routes(&service, operators)?,
            service,
            guard: self.guard.clone(),
            calls: calls
                .unwrap_or(Semaphore::MAX_PERMITS)
                .min(Semaphore::MAX_PERMITS),
            bodies: Arc::clone(&self.admission.bodies),
            timeout: self.timeout,
        });
        let connections = Arc::new(Semaphore::new(GRPC_CONNECTIONS));
        let stop = self.stop.clone();
        let connection = move |stream, peer| {
            let port = Arc::clone(&port);
            http2::serve(stream, peer, port, stop.clone())
        };
        let served = tcp::serve(listener, connections, connection, self.stop.clone());
        self.running.push(Box::pin(served));
        Ok(address)
    }

    /// Opens the web ports, TCP and QUIC, if they are configured.
    pub(crate) async fn open_web(&mut self) -> Result<Option<WebPorts>, DaemonError> {
        let Some(asked) = self.config.web_listen else {
            return Ok(None);
        };
        let certificate = Certificate::load(self.config.tls.as_ref())?;
        let listener = bind("web_listen", asked).await?;
        let tcp = local(&listener, asked);
        let routes = self.guard.wrap(self.web_routes());
        let connections = Arc::new(Semaphore::new(WEB_CONNECTIONS));
        let quic = self.open_quic(&certificate, &connections, &routes)?;
        let door = Door {
            tls: TlsAcceptor::from(certificate.for_tcp()?),
            plain: if tcp.ip().is_loopback() {
                Plain::Served
            } else {
                Plain::Refused
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
            tcp::web(stream, door.clone(), service, stop.clone())
        };
        let served = tcp::serve(listener, connections, connection, self.stop.clone());
        self.running.push(Box::pin(served));
        Ok(Some(WebPorts { tcp, quic }))
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
        let door = h3::Door {
            endpoint,
            connections: Arc::clone(connections),
            admission: self.admission.clone(),
            is_read_only: json::is_read_only,
        };
        let served = h3::serve(door, routes.clone(), self.stop.clone());
        self.running.push(Box::pin(served));
        Ok(Some(address))
    }

    fn web_routes(&self) -> Router {
        let facade = Facade {
            node: self.node.clone(),
            telemetry: self.telemetry.clone(),
            timeout: self.timeout,
        };
        let sse = Sse {
            events: self.events.clone(),
            node: self.node.clone(),
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

/// The services beside the lock service.
fn grpc_routes(service: &Grpc, operators: Operators) -> Result<Router, DaemonError> {
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
    let routes = Routes::new(v1)
        .add_service(v1alpha)
        .add_service(health)
        .add_service(ClusterServer::new(operators));
    Ok(routes.prepare().into_axum_router())
}
