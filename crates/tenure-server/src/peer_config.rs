//! Converts the configuration to the peer options of a node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tenure_cluster::{BootstrapMode, PeerOptions, PeerTls, PlacementRules, Secret, Versions};

use crate::config::{BootstrapConfig, Config, PeerTlsFiles};
use crate::daemon::DaemonError;

/// Returns the peer options, or `None` without a cluster token: peers could not be authenticated,
/// so the node stays alone (R168 internal authentication).
pub(crate) fn options(config: &Config) -> Result<Option<PeerOptions>, DaemonError> {
    let cluster = &config.cluster;
    let Some(token) = &cluster.token else {
        return Ok(None);
    };
    let (host, port) = internal(&cluster.raft_addr)
        .ok_or_else(|| DaemonError::Internal(cluster.raft_addr.clone()))?;
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(Some(PeerOptions {
        token: match &cluster.other_token {
            Some(other) => Secret::new(token.reveal().as_bytes()).or(other.reveal().as_bytes()),
            None => Secret::new(token.reveal().as_bytes()),
        },
        tls: match &cluster.peer_tls {
            Some(files) => {
                let PeerTlsFiles {
                    authority,
                    certificate,
                    key,
                } = files;
                Some(PeerTls::load(authority, certificate, key)?)
            }
            None => None,
        },
        listen: SocketAddr::new(listen_ip(&host), port),
        advertise: (host, port),
        gossip_listen: cluster.gossip_addr,
        gossip_advertise: cluster.gossip_advertise.clone(),
        seeds: cluster.seeds.clone(),
        announce_every: Duration::from_millis(cluster.gossip_seed_announce_ms),
        expected_nodes: u32::try_from(cluster.gossip_cluster_size).unwrap_or(u32::MAX),
        max_packet: number(cluster.gossip_max_packet_size),
        public: config.transports.public_addr.clone(),
        expected_cluster: cluster.expected_cluster,
        begin: match cluster.start {
            BootstrapConfig::Join => BootstrapMode::Join,
            BootstrapConfig::Bootstrap => BootstrapMode::Bootstrap,
            BootstrapConfig::ForceBootstrap => BootstrapMode::Force,
        },
        versions: Versions::OURS,
        rules: PlacementRules {
            replication_factor: number(cluster.replication_factor),
            stability_ms: cluster.stability_window_secs * 1000,
            eviction_ms: cluster.eviction_window_secs * 1000,
            balance_ms: cluster.leader_balance_secs * 1000,
            at_once: number(cluster.max_concurrent_reconciles),
        },
    }))
}

/// Splits the internal URL into host and port.
fn internal(url: &str) -> Option<(String, u16)> {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
        .unwrap_or(url);
    let (host, port) = rest.trim_end_matches('/').rsplit_once(':')?;
    let port = port.parse().ok()?;
    (!host.is_empty() && !host.contains('/')).then(|| (host.to_owned(), port))
}

/// Returns the address to listen on: a node with a loopback address listens on loopback only.
fn listen_ip(host: &str) -> IpAddr {
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    match literal.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => ip,
        Ok(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) if host == "localhost" => Ipv4Addr::LOCALHOST.into(),
        Ok(IpAddr::V4(_)) | Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_internal_address_is_a_host_and_a_port() {
        let parsed = |url| internal(url).map(|(host, port)| (listen_ip(&host).to_string(), port));
        let found = |ip: &str, port| Some((ip.to_owned(), port));
        assert_eq!(parsed("http://localhost:50052"), found("127.0.0.1", 50052));
        assert_eq!(parsed("http://127.0.0.2:1/"), found("127.0.0.2", 1));
        assert_eq!(parsed("http://10.1.1.1:7"), found("0.0.0.0", 7));
        assert_eq!(parsed("https://[::1]:7"), found("::1", 7));
        assert_eq!(parsed("node-1.example:7"), found("0.0.0.0", 7));
        assert_eq!(parsed("http://node-1"), None);
        assert_eq!(parsed("http://:1"), None);
    }
}
