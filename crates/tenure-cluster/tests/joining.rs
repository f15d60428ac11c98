//! Several nodes in one process: discovery, placement of groups, admission and refusal.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_cluster::{
    BootstrapMode, ClusterReport, Options, PeerOptions, PeerTls, PlacementRules, RunningNode,
    Secret, SyncPolicy, Versions,
};
use tenure_core::policy::Algorithm;
use tenure_node::{ClusterConfig, Limits, NodeId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const STEP_TIMEOUT: Duration = Duration::from_secs(30);

fn options(data: &Path, number: u32, groups: u32, seeds: Vec<String>) -> Options {
    Options {
        data_dir: data.join(number.to_string()),
        node: NodeId::new(number).unwrap(),
        name: format!("node-{}", number - 1),
        cluster: ClusterConfig {
            group_count: groups,
            prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        },
        limits: Limits::default(),
        durable: SyncPolicy::Yes,
        peers: Some(PeerOptions {
            tls: None,
            token: Secret::new(&[7; 32]),
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: ("127.0.0.1".to_owned(), 0),
            gossip_listen: "127.0.0.1:0".parse().unwrap(),
            gossip_advertise: None,
            begin: if seeds.is_empty() {
                BootstrapMode::Bootstrap
            } else {
                BootstrapMode::Join
            },
            seeds,
            announce_every: Duration::from_millis(200),
            expected_nodes: 8,
            max_packet: 1400,
            public: String::new(),
            expected_cluster: None,
            versions: Versions::OURS,
            rules: PlacementRules {
                replication_factor: 3,
                stability_ms: 0,
                eviction_ms: 60_000,
                balance_ms: 1_000,
                at_once: 16,
            },
        }),
    }
}

fn gossip(node: &RunningNode) -> String {
    node.addresses().unwrap().1.to_string()
}

async fn until(
    node: &RunningNode,
    what: &str,
    is_so: impl Fn(&ClusterReport) -> bool,
) -> ClusterReport {
    let end = Instant::now() + STEP_TIMEOUT;
    loop {
        let cluster_report = node.handle().cluster_report().await.unwrap();
        if is_so(&cluster_report) {
            return cluster_report;
        }
        assert!(Instant::now() < end, "never {what}: {cluster_report:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns whether every group has a leader and this many voters and no change is in progress.
fn at_rest(cluster_report: &ClusterReport, groups: usize, voters: usize) -> bool {
    let led = cluster_report
        .reports
        .iter()
        .flat_map(|report| &report.groups);
    let led = led.filter(|group| group.leads);
    let fine = led.filter(|group| {
        group.voters.len() == voters && group.learners.is_empty() && !group.changing
    });
    fine.count() == groups
}

/// R164 (replication factor), R165 (pace of membership changes): one node, then three: every group
/// is on all of them, and each leads some.
#[tokio::test]
async fn three_nodes_share_their_groups() {
    let data = tempfile::tempdir().unwrap();
    let first = tenure_cluster::start(options(data.path(), 1, 8, Vec::new())).unwrap();
    first.handle().joined().await.unwrap();
    let seeds = vec![gossip(&first)];
    let second = tenure_cluster::start(options(data.path(), 2, 8, seeds)).unwrap();
    second.handle().joined().await.unwrap();
    // The third node knows only the second.
    let seeds = vec![gossip(&second)];
    let third = tenure_cluster::start(options(data.path(), 3, 8, seeds)).unwrap();
    third.handle().joined().await.unwrap();
    let cluster_report = until(&third, "shared", |cluster_report| {
        let leads = |report: &tenure_cluster::NodeReport| report.groups.iter().any(|one| one.leads);
        cluster_report.nodes.len() == 3
            && cluster_report.nodes.iter().all(|node| node.up)
            && at_rest(cluster_report, 9, 3)
            && cluster_report.reports.iter().all(leads)
    })
    .await;
    assert_eq!(cluster_report.reports.len(), 3);
    for node in [third, second, first] {
        tokio::task::spawn_blocking(move || node.stop())
            .await
            .unwrap();
    }
}

/// R168 (internal authentication): with TLS, a peer without a certificate of the cluster's
/// authority is refused.
#[tokio::test]
async fn peers_meet_over_tls() {
    let data = tempfile::tempdir().unwrap();
    let authority = Authority::new(data.path());
    let secured = |number: u32, seeds: Vec<String>| {
        let mut options = options(data.path(), number, 8, seeds);
        options.peers.as_mut().unwrap().tls = Some(authority.tls(number));
        tenure_cluster::start(options).unwrap()
    };
    let first = secured(1, Vec::new());
    first.handle().joined().await.unwrap();
    let second = secured(2, vec![gossip(&first)]);
    second.handle().joined().await.unwrap();
    until(&second, "shared", |cluster_report| {
        cluster_report.nodes.len() == 2 && cluster_report.nodes.iter().all(|node| node.up)
    })
    .await;

    // A peer without TLS gets an alert, and one without a certificate is asked for one.
    let address = first.addresses().unwrap().0;
    let mut plain = tokio::net::TcpStream::connect(address).await.unwrap();
    plain.write_all(&[0; 512]).await.unwrap();
    assert_eq!(plain.read_u8().await.unwrap(), TLS_ALERT);
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let why = match authority.nameless().connect(name, stream).await {
        Ok(mut nameless) => nameless.read_u8().await.unwrap_err(),
        Err(why) => why,
    };
    assert!(why.to_string().contains("CertificateRequired"), "{why}");
    for node in [second, first] {
        tokio::task::spawn_blocking(move || node.stop())
            .await
            .unwrap();
    }
}

/// Content type of a TLS alert: first byte of the record.
const TLS_ALERT: u8 = 21;

/// Signs the certificates of the nodes.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    certificate: rcgen::Certificate,
    directory: PathBuf,
}

impl Authority {
    fn new(directory: &Path) -> Authority {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.join("ca.pem"), certificate.pem()).unwrap();
        Authority {
            issuer: rcgen::Issuer::new(params, key),
            certificate,
            directory: directory.to_owned(),
        }
    }

    fn tls(&self, number: u32) -> PeerTls {
        let file = |kind: &str| self.directory.join(format!("{number}-{kind}.pem"));
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(file("cert"), certificate.pem()).unwrap();
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        PeerTls::load(&self.directory.join("ca.pem"), &file("cert"), &file("key")).unwrap()
    }

    /// Returns a TLS client that trusts the cluster and has no certificate itself.
    fn nameless(&self) -> tokio_rustls::TlsConnector {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tokio_rustls::TlsConnector::from(Arc::new(config))
    }
}

/// R161 (settings fixed per cluster): a node with other fixed settings gets the reason, never
/// joins, and no node keeps its record.
#[tokio::test]
async fn a_node_that_does_not_fit_stays_out() {
    let data = tempfile::tempdir().unwrap();
    let first = tenure_cluster::start(options(data.path(), 1, 8, Vec::new())).unwrap();
    let seeds = vec![gossip(&first)];
    let other = tenure_cluster::start(options(data.path(), 2, 4, seeds)).unwrap();
    let refused = tokio::time::timeout(STEP_TIMEOUT, other.handle().joined()).await;
    let why = refused.unwrap().unwrap_err();
    assert!(why.contains("group_count is 8 there and 4 here"), "{why}");
    let cluster_report = first.handle().cluster_report().await.unwrap();
    assert_eq!(cluster_report.nodes.len(), 1, "{cluster_report:#?}");
    for node in [other, first] {
        tokio::task::spawn_blocking(move || node.stop())
            .await
            .unwrap();
    }
}

/// Adjacent releases form one cluster with their newest common version. A node without a common
/// version gets instructions and does not join.
#[tokio::test]
async fn adjacent_releases_share_a_cluster() {
    let Versions { oldest, newest } = Versions::OURS;
    let speaking = |data: &Path, number, seeds, oldest, newest| {
        let mut options = options(data, number, 8, seeds);
        options.peers.as_mut().unwrap().versions = Versions { oldest, newest };
        tenure_cluster::start(options).unwrap()
    };
    let data = tempfile::tempdir().unwrap();
    let present = speaking(data.path(), 1, Vec::new(), oldest, newest);
    let seeds = vec![gossip(&present)];
    let next = speaking(data.path(), 2, seeds.clone(), newest, newest + 1);
    let again = speaking(data.path(), 3, seeds.clone(), oldest, newest);
    for node in [&next, &again] {
        node.handle().joined().await.unwrap();
    }
    let cluster_report = until(&next, "shared", |cluster_report| {
        cluster_report.nodes.len() == 3
            && cluster_report.nodes.iter().all(|node| node.up)
            && at_rest(cluster_report, 9, 3)
    })
    .await;
    let spoken: Vec<_> = cluster_report
        .nodes
        .iter()
        .map(|node| node.version)
        .collect();
    assert_eq!(spoken, [Some(newest), None, Some(newest)]);

    let later = speaking(data.path(), 4, seeds, newest + 1, newest + 2);
    let refused = tokio::time::timeout(STEP_TIMEOUT, later.handle().joined()).await;
    let why = refused.unwrap().unwrap_err();
    let sentence = format!(
        "the peer supports version {newest} of the peer protocol, and this node versions {} to {}: \
         upgrade a cluster one release at a time",
        newest + 1,
        newest + 2
    );
    assert!(why.ends_with(&sentence), "{why}");
    let cluster_report = present.handle().cluster_report().await.unwrap();
    assert_eq!(cluster_report.nodes.len(), 3, "{cluster_report:#?}");
    for node in [later, again, next, present] {
        tokio::task::spawn_blocking(move || node.stop())
            .await
            .unwrap();
    }
}
