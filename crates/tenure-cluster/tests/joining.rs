//! Several nodes in one process: discovery, placement of groups, admission and refusal.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use support::{STEP_TIMEOUT, TestCluster, all_up, stop, until};
use tenure_cluster::{PeerTls, Versions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const GROUPS: u32 = 8;

/// R164 (replication factor), R165 (pace of membership changes): one node, then three: every group
/// is on all of them, and each leads some.
#[tokio::test]
async fn three_nodes_share_their_groups() {
    let place = TestCluster::new(3, GROUPS);
    let first = place.join(1, &[]).await;
    let second = place.join(2, &[1]).await;
    // The third node knows only the second.
    let third = place.join(3, &[2]).await;
    let cluster_report = until(&third, "shared", |cluster_report| {
        let leads = |report: &tenure_cluster::NodeReport| report.groups.iter().any(|one| one.leads);
        all_up(cluster_report, 3)
            && place.is_settled(cluster_report)
            && cluster_report.reports.iter().all(leads)
    })
    .await;
    assert_eq!(cluster_report.reports.len(), 3);
    stop([third, second, first]).await;
}

/// Strangers that connect and send nothing do not keep a node from joining, and from coming back.
#[tokio::test]
async fn silent_strangers_do_not_keep_peers_out() {
    let place = TestCluster::new(2, GROUPS);
    let first = place.join(1, &[]).await;
    let address = first.addresses().unwrap().0;
    // Each stranger connects again as soon as it is disconnected.
    let strangers: Vec<_> = (0..400)
        .map(|_| {
            tokio::spawn(async move {
                loop {
                    if let Ok(mut stranger) = tokio::net::TcpStream::connect(address).await {
                        let _ = stranger.read(&mut [0; 1]).await;
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for _ in 0..2 {
        let second = tokio::time::timeout(STEP_TIMEOUT, place.join(2, &[1]));
        let second = second.await.expect("the node joins");
        until(&second, "met", |report| all_up(report, 2)).await;
        stop([second]).await;
    }
    for stranger in strangers {
        stranger.abort();
    }
    stop([first]).await;
}

/// R168 (internal authentication): with TLS, a peer without a certificate of the cluster's
/// authority is refused.
#[tokio::test]
async fn peers_meet_over_tls() {
    let place = TestCluster::new(2, GROUPS);
    let authority = Authority::new(place.data.path());
    let secured = |number: u32, seeds: &[u32]| {
        let mut options = place.member(number, seeds);
        options.peers.as_mut().unwrap().tls = Some(authority.tls(number));
        tenure_cluster::start(options).unwrap()
    };
    let first = secured(1, &[]);
    first.handle().joined().await.unwrap();
    let second = secured(2, &[1]);
    second.handle().joined().await.unwrap();
    until(&second, "shared", |cluster_report| {
        all_up(cluster_report, 2)
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
    stop([second, first]).await;
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
    let place = TestCluster::new(2, GROUPS);
    let first = place.join(1, &[]).await;
    let mut options = place.member(2, &[1]);
    options.cluster.group_count = 4;
    let other = tenure_cluster::start(options).unwrap();
    let refused = tokio::time::timeout(STEP_TIMEOUT, other.handle().joined()).await;
    let why = refused.unwrap().unwrap_err();
    assert!(why.contains("group_count is 8 there and 4 here"), "{why}");
    let cluster_report = first.handle().cluster_report().await.unwrap();
    assert_eq!(cluster_report.nodes.len(), 1, "{cluster_report:#?}");
    stop([other, first]).await;
}

/// Adjacent releases form one cluster with their newest common version. A node without a common
/// version gets instructions and does not join.
#[tokio::test]
async fn adjacent_releases_share_a_cluster() {
    let Versions { oldest, newest } = Versions::OURS;
    let place = TestCluster::new(4, GROUPS);
    let speaking = |number, seeds: &[u32], oldest, newest| {
        let mut options = place.member(number, seeds);
        options.peers.as_mut().unwrap().versions = Versions { oldest, newest };
        tenure_cluster::start(options).unwrap()
    };
    let present = speaking(1, &[], oldest, newest);
    let next = speaking(2, &[1], newest, newest + 1);
    let again = speaking(3, &[1], oldest, newest);
    for node in [&next, &again] {
        node.handle().joined().await.unwrap();
    }
    let cluster_report = until(&next, "shared", |cluster_report| {
        all_up(cluster_report, 3) && place.is_settled(cluster_report)
    })
    .await;
    let spoken: Vec<_> = cluster_report
        .nodes
        .iter()
        .map(|node| node.version)
        .collect();
    assert_eq!(spoken, [Some(newest), None, Some(newest)]);

    let later = speaking(4, &[1], newest + 1, newest + 2);
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
    stop([later, again, next, present]).await;
}
