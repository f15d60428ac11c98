//! Optional mutual TLS below the peer connections, with certificates of the cluster's own
//! authority.
//!
//! The proof of the token remains necessary: a certificate shows that a machine may take part, the
//! token that it belongs to this cluster. The proof is bound to the TLS connection, so it cannot be
//! passed on. A certificate with a name `node-<number>`, alone or before a dot, is valid for that
//! node only: the key of one node is then of no use as another node.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::connection::{ConnectionError, ReadHalf, WriteHalf};

/// Time limit for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(3);

/// Certificates of this node and of the authority that it trusts.
#[derive(Clone)]
pub struct PeerTls {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

/// Reason why TLS cannot be set up. The node does not start then.
#[derive(Debug, thiserror::Error)]
pub enum PeerTlsError {
    /// A file cannot be read or contains no PEM section of that kind.
    #[error("cannot read {what} from {path}")]
    File {
        /// Kind of PEM section.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the PEM parser.
        source: PemError,
    },
    /// The certificates of the authority cannot be used.
    #[error("the certificate authority for peers cannot be used: check peer_tls_ca_path")]
    Authority(#[from] VerifierBuilderError),
    /// Certificate and key do not match or cannot be used.
    #[error(
        "the certificate and key for peers cannot be used: check peer_tls_cert_path and peer_tls_key_path"
    )]
    Unusable(#[from] rustls::Error),
}

impl PeerTls {
    /// Reads PEM files: the authority that signs all nodes' certificates, and this node's own
    /// certificate and key. The certificate must name the host under which peers dial this node,
    /// and be valid for server and client use.
    pub fn load(authority: &Path, certificate: &Path, key: &Path) -> Result<PeerTls, PeerTlsError> {
        let chain = certificates("a certificate chain", certificate)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|source| PeerTlsError::File {
            what: "a private key",
            path: key.to_owned(),
            source,
        })?;
        let mut roots = RootCertStore::empty();
        for root in certificates("a certificate of an authority", authority)? {
            roots.add(root)?;
        }
        let roots = Arc::new(roots);
        let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())?;
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build()?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)?;
        Ok(PeerTls {
            connector: TlsConnector::from(Arc::new(client)),
            acceptor: TlsAcceptor::from(Arc::new(server)),
        })
    }
}

fn certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, PeerTlsError> {
    let unreadable = |source| PeerTlsError::File {
        what,
        path: path.to_owned(),
        source,
    };
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(unreadable)?;
    if found.is_empty() {
        return Err(unreadable(PemError::NoItemsFound));
    }
    Ok(found)
}

impl std::fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(certificates)")
    }
}

/// Returns both halves of a connection to `address`, `host:port`.
pub(super) async fn dialed(
    tls: Option<&PeerTls>,
    stream: TcpStream,
    address: &str,
) -> Result<PeerStream, ConnectionError> {
    let Some(tls) = tls else {
        return Ok(plain(stream));
    };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| ConnectionError::Tls(io::Error::other(error)))?;
    let stream = shaken(tls.connector.connect(name, stream)).await?;
    let (_, session) = stream.get_ref();
    let mut secured = PeerStream {
        binding: session
            .export_keying_material(vec![0; 32], BINDING, None)
            .map_err(|error| ConnectionError::Tls(io::Error::other(error)))?,
        nodes: named_nodes(session.peer_certificates()),
        ..PeerStream::default()
    };
    let (reader, writer) = tokio::io::split(stream);
    (secured.reader, secured.writer) = (Box::new(reader), Box::new(writer));
    Ok(secured)
}

/// Returns both halves of an incoming connection.
pub(super) async fn accepted(
    tls: Option<&PeerTls>,
    stream: TcpStream,
) -> Result<PeerStream, ConnectionError> {
    let Some(tls) = tls else {
        return Ok(plain(stream));
    };
    let stream = shaken(tls.acceptor.accept(stream)).await?;
    let (_, session) = stream.get_ref();
    let mut secured = PeerStream {
        binding: session
            .export_keying_material(vec![0; 32], BINDING, None)
            .map_err(|error| ConnectionError::Tls(io::Error::other(error)))?,
        nodes: named_nodes(session.peer_certificates()),
        ..PeerStream::default()
    };
    let (reader, writer) = tokio::io::split(stream);
    (secured.reader, secured.writer) = (Box::new(reader), Box::new(writer));
    Ok(secured)
}

fn plain(stream: TcpStream) -> PeerStream {
    let (reader, writer) = stream.into_split();
    PeerStream::new(Box::new(reader), Box::new(writer))
}

/// Both halves of a connection, and what TLS says about it.
pub(super) struct PeerStream {
    pub(super) reader: ReadHalf,
    pub(super) writer: WriteHalf,
    /// A value that only the two ends of this TLS connection know. Empty without TLS.
    pub(super) binding: Vec<u8>,
    /// The node numbers in the peer's certificate. Empty: it names none.
    pub(super) nodes: Vec<u32>,
}

impl Default for PeerStream {
    fn default() -> PeerStream {
        PeerStream::new(Box::new(tokio::io::empty()), Box::new(tokio::io::sink()))
    }
}

impl PeerStream {
    pub(super) fn new(reader: ReadHalf, writer: WriteHalf) -> PeerStream {
        PeerStream {
            reader,
            writer,
            binding: Vec::new(),
            nodes: Vec::new(),
        }
    }
}

/// Label of the exported value (RFC 5705).
const BINDING: &[u8] = b"EXPORTER-tenure-peer";

/// Returns the numbers of the names `node-<number>` and `node-<number>.…` in a certificate.
fn named_nodes(chain: Option<&[CertificateDer<'_>]>) -> Vec<u32> {
    let Some(leaf) = chain.and_then(<[_]>::first) else {
        return Vec::new();
    };
    let Ok(leaf) = webpki::EndEntityCert::try_from(leaf) else {
        return Vec::new();
    };
    let number = |name: &str| {
        let label = name.split('.').next()?;
        label.strip_prefix("node-")?.parse().ok()
    };
    leaf.valid_dns_names().filter_map(number).collect()
}

async fn shaken<S>(handshake: impl Future<Output = io::Result<S>>) -> Result<S, ConnectionError> {
    let shaken = timeout(HANDSHAKE, handshake).await;
    shaken
        .map_err(|_| ConnectionError::Slow)?
        .map_err(ConnectionError::Tls)
}
