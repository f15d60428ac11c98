//! Health probe: `--health-check` asks the daemon on this machine whether it is ready, for
//! orchestrators without a gRPC client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tenure_wire::tls::{ClientTls, ClientTlsOptions};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use thiserror::Error;
use tonic::Request;
use tonic::transport::Endpoint;

use crate::config::LocalEndpoint;
use crate::transport::tls::{TlsError, local_fingerprint};

/// Time limit of the probe. Without a response the daemon counts as unhealthy.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The reason why the daemon does not count as healthy.
#[derive(Debug, Error)]
pub enum Unhealthy {
    /// No connection.
    #[error("cannot connect to {0}: check that the daemon is running")]
    Unreachable(SocketAddr, #[source] tonic::transport::Error),
    /// The daemon's certificate cannot be read.
    #[error("the certificate of the daemon is not known")]
    Tls(#[source] TlsError),
    /// TLS cannot be used.
    #[error("TLS cannot be used: {0}")]
    ClientTls(String),
    /// The daemon answers with an error.
    #[error("the daemon on {0} refused the health check")]
    Refused(SocketAddr, #[source] Box<tonic::Status>),
    /// The daemon is not ready.
    #[error("the daemon on {0} is not ready: {1}")]
    NotReady(SocketAddr, String),
    /// The daemon does not answer in time.
    #[error("the daemon on {0} did not answer within 2 s")]
    Silent(SocketAddr),
}

/// Asks the daemon for its health. Returns `Ok` only if it is ready.
pub async fn health(listen_endpoint: &LocalEndpoint) -> Result<(), Unhealthy> {
    let address = reachable(listen_endpoint.listen);
    tokio::time::timeout(PROBE_TIMEOUT, ask(listen_endpoint, address))
        .await
        .unwrap_or(Err(Unhealthy::Silent(address)))
}

async fn ask(listen_endpoint: &LocalEndpoint, address: SocketAddr) -> Result<(), Unhealthy> {
    let unreachable = |error| Unhealthy::Unreachable(address, error);
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(unreachable)?;
    let channel = match &listen_endpoint.tls {
        None => endpoint.connect().await,
        // The daemon's own certificate is expected, by whatever name it is signed for.
        Some(certificate) => {
            let data_dir = &listen_endpoint.data_dir;
            let pin =
                local_fingerprint(certificate.as_deref(), data_dir).map_err(Unhealthy::Tls)?;
            let options = ClientTlsOptions {
                pin: Some(pin),
                ..ClientTlsOptions::default()
            };
            let tls = ClientTls::new(&options).map_err(Unhealthy::ClientTls)?;
            tls.connect(endpoint).await
        }
    };
    let channel = channel.map_err(unreachable)?;
    let mut request = Request::new(v1::HealthRequest {});
    if let Some(token) = &listen_endpoint.client_token
        && let Ok(value) = format!("Bearer {}", token.reveal()).parse()
    {
        request.metadata_mut().insert("authorization", value);
    }
    let answer = PathLockClient::new(channel).health(request).await;
    let health = answer
        .map_err(|status| Unhealthy::Refused(address, Box::new(status)))?
        .into_inner();
    if health.ok {
        Ok(())
    } else {
        Err(Unhealthy::NotReady(address, health.detail))
    }
}

/// Returns the address to connect to: loopback if the daemon listens on an unspecified address.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_asked_on_loopback() {
        for (listen, asked) in [
            ("0.0.0.0:7", "127.0.0.1:7"),
            ("[::]:7", "[::1]:7"),
            ("10.0.0.1:7", "10.0.0.1:7"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), asked);
        }
    }
}
