//! TLS of the client transports: certificates, client authorities, reload without a restart.
//!
//! Without configured files, a self-signed certificate is made once and kept in the data directory,
//! so that clients can pin its fingerprint. All listeners use the same certificate; their ALPN
//! protocols differ (`h2` on the gRPC port, `h2` and `http/1.1` on the web port, `h3` on QUIC).
//!
//! The settings of a connection are taken when it is accepted. [`ServerTls::reload`] replaces them
//! for the connections that follow; if the new files cannot be used, the old ones stay in use.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerSessionMemoryCache, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use tenure_core::auth::Principal;
use tenure_wire::tls::Fingerprint;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::h3::{RECEIVE_WINDOW, REQUESTS};
use super::tcp::stopped;
use crate::auth::escaped;
use crate::config::{TlsConfig, TlsFiles, TlsVersion, ZeroRtt};
use crate::secret_file::{self, SecretFileError};

/// Sessions that can be resumed. Early data works only for sessions in this cache.
const REMEMBERED_SESSIONS: usize = 4096;

/// The self-signed certificate and its key, in the data directory.
const SELF_SIGNED: &str = "self-signed.pem";

/// How often the files are compared with those in use.
const LOOK_FOR_CHANGES: Duration = Duration::from_secs(5);

/// The certificate that a client has proved, checked against the configured authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate(pub CertificateDer<'static>);

impl ClientCertificate {
    /// Returns the principal that the certificate names: its first URI (SPIFFE ids are URIs), or else
    /// its first DNS name. The subject's common name is never used. A certificate without such a name
    /// proves no identity.
    pub(crate) fn principal(&self) -> Option<Principal> {
        let (_, certificate) = X509Certificate::from_der(&self.0).ok()?;
        let names = certificate.subject_alternative_name().ok()??;
        let names = &names.value.general_names;
        let uri = names.iter().find_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let dns = || {
            names.iter().find_map(|name| match name {
                GeneralName::DNSName(name) => Some(*name),
                _ => None,
            })
        };
        let name = escaped(uri.or_else(dns)?);
        Principal::parse(&format!("cert:{name}")).ok()
    }
}

/// The reason why TLS cannot be offered. The daemon does not start then.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read, or has no PEM section of the expected kind.
    #[error("cannot read {what} from {path}")]
    File {
        /// The expected content.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: PemError,
    },
    /// The file of a key is not protected.
    #[error(transparent)]
    Unprotected(#[from] SecretFileError),
    /// The self-signed certificate cannot be made.
    #[error("cannot create a self-signed certificate")]
    SelfSigned(#[from] rcgen::Error),
    /// The self-signed certificate cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The authorities of clients cannot be used.
    #[error("the authority of client certificates cannot be used: check tls_client_ca_path")]
    Authority(#[from] VerifierBuilderError),
    /// Certificate and key do not match, or are not usable.
    #[error("the certificate and key cannot be used: check tls_cert_path and tls_key_path")]
    Unusable(#[from] rustls::Error),
    /// QUIC needs a cipher suite that the provider lacks.
    #[error("the certificate cannot be used for QUIC")]
    Quic(#[from] quinn::crypto::rustls::NoInitialCipherSuite),
}

/// TLS settings of a daemon. They can be replaced while it runs.
pub struct ServerTls {
    source: TlsSource,
    current: RwLock<TlsSettings>,
}

/// Where the settings come from.
struct TlsSource {
    config: TlsConfig,
    zero_rtt: ZeroRtt,
    /// Directory of the self-signed certificate.
    data_dir: PathBuf,
    /// Names in a new self-signed certificate.
    names: Vec<String>,
}

/// The settings in use.
struct TlsSettings {
    grpc: Arc<ServerConfig>,
    web: Arc<ServerConfig>,
    quic: quinn::ServerConfig,
    fingerprint: Fingerprint,
    files: Vec<Option<FileStamp>>,
}

/// Identifies the content of a file without reading it.
#[derive(Debug, PartialEq, Eq)]
struct FileStamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl ServerTls {
    /// Reads the configured files, or the self-signed certificate of the data directory, which is
    /// made if there is none. `names` are the host names of a new one.
    pub fn load(
        config: &TlsConfig,
        zero_rtt: ZeroRtt,
        data_dir: &Path,
        names: &[String],
    ) -> Result<ServerTls, TlsError> {
        let source = TlsSource {
            config: config.clone(),
            zero_rtt,
            data_dir: data_dir.to_owned(),
            names: names.to_vec(),
        };
        let current = RwLock::new(source.read()?);
        Ok(ServerTls { source, current })
    }

    /// Reads the files again. Returns whether they have changed; on an error the settings in use
    /// stay.
    pub fn reload(&self) -> Result<bool, TlsError> {
        if self.with(|current| current.files == self.source.stamps()) {
            return Ok(false);
        }
        let new = self.source.read()?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(true)
    }

    /// Returns the acceptor for a connection of the gRPC port.
    pub fn grpc(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.with(|current| Arc::clone(&current.grpc)))
    }

    /// Returns the acceptor for a connection of the web port.
    pub fn web(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.with(|current| Arc::clone(&current.web)))
    }

    /// Returns the settings for HTTP/3.
    pub fn quic(&self) -> quinn::ServerConfig {
        self.with(|current| current.quic.clone())
    }

    /// Returns the fingerprint of the certificate in use.
    pub fn fingerprint(&self) -> Fingerprint {
        self.with(|current| current.fingerprint)
    }

    fn with<T>(&self, read: impl FnOnce(&TlsSettings) -> T) -> T {
        read(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reloads the certificates when SIGHUP arrives or a file has changed, until the daemon stops.
/// `reloaded` is called after every successful reload.
pub(crate) async fn watch_files(
    tls: Arc<ServerTls>,
    reloaded: impl Fn(&ServerTls),
    stop: watch::Receiver<bool>,
) {
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => {
            tracing::warn!(%error, "SIGHUP cannot be handled: a changed certificate needs a restart");
            return;
        }
    };
    let stopped = stopped(stop);
    tokio::pin!(stopped);
    let mut said = String::new();
    loop {
        tokio::select! {
            _ = hangups.recv() => said.clear(),
            () = tokio::time::sleep(LOOK_FOR_CHANGES) => {}
            () = &mut stopped => return,
        }
        // The files are small, and this runs on a worker only for their reading.
        match tls.reload() {
            Ok(true) => {
                said.clear();
                tracing::info!(certificate = %tls.fingerprint(), "the certificate was replaced");
                reloaded(&tls);
            }
            Ok(false) => {}
            Err(error) => {
                let mut text = error.to_string();
                if let Some(cause) = std::error::Error::source(&error) {
                    text = format!("{text}: {cause}");
                }
                // Once per problem: the files are read again every few seconds.
                if text != said {
                    tracing::error!("the earlier certificate stays in use: {text}");
                    said = text;
                }
            }
        }
    }
}

impl TlsSource {
    fn self_signed(&self) -> PathBuf {
        self.data_dir.join(SELF_SIGNED)
    }

    fn stamps(&self) -> Vec<Option<FileStamp>> {
        let mut files = match &self.config.files {
            Some(files) => vec![files.certificate.clone(), files.key.clone()],
            None => vec![self.self_signed()],
        };
        files.extend(self.config.client_authority.clone());
        let stamp = |path: &PathBuf| {
            let found = fs::metadata(path).ok()?;
            Some(FileStamp {
                modified: found.modified().ok(),
                length: found.len(),
                inode: found.ino(),
            })
        };
        files.iter().map(stamp).collect()
    }

    fn read(&self) -> Result<TlsSettings, TlsError> {
        let files = match &self.config.files {
            Some(files) => files.clone(),
            None => {
                let path = self.self_signed();
                if !path.exists() {
                    make_self_signed(&path, &self.names)?;
                }
                TlsFiles {
                    certificate: path.clone(),
                    key: path,
                }
            }
        };
        // Taken before the content is read: a change in between is then found by the next look.
        let stamps = self.stamps();
        let certificate = Certificate::read(&files)?;
        let clients = match &self.config.client_authority {
            Some(path) => Some(certificates("the certificate of an authority", path)?),
            None => None,
        };
        let versions: &[&SupportedProtocolVersion] = match self.config.min_version {
            TlsVersion::V12 => &[&TLS12, &TLS13],
            TlsVersion::V13 => &[&TLS13],
        };
        let build = |versions: &[&'static SupportedProtocolVersion], protocols: &[&[u8]]| {
            certificate.settings(versions, clients.as_deref(), protocols)
        };
        let mut quic = build(&[&TLS13], &[b"h3"])?;
        quic.session_storage = ServerSessionMemoryCache::new(REMEMBERED_SESSIONS);
        // QUIC allows only 0 or 2^32 - 1 here (RFC 9001, 4.6.1).
        quic.max_early_data_size = match self.zero_rtt {
            ZeroRtt::ReadsOnly => u32::MAX,
            ZeroRtt::Off => 0,
        };
        let quic = quinn::crypto::rustls::QuicServerConfig::try_from(quic)?;
        let mut quic = quinn::ServerConfig::with_crypto(Arc::new(quic));
        quic.transport_config(Arc::new(quic_transport()));
        Ok(TlsSettings {
            grpc: Arc::new(build(versions, &[b"h2"])?),
            web: Arc::new(build(versions, &[b"h2", b"http/1.1"])?),
            quic,
            fingerprint: Fingerprint::of(&certificate.chain[0]),
            files: stamps,
        })
    }
}

/// Returns the fingerprint of the certificate that a daemon with these settings uses.
pub(crate) fn local_fingerprint(
    files: Option<&Path>,
    data_dir: &Path,
) -> Result<Fingerprint, TlsError> {
    let own = data_dir.join(SELF_SIGNED);
    let chain = certificates("a certificate chain", files.unwrap_or(&own))?;
    Ok(Fingerprint::of(&chain[0]))
}

/// A certificate chain, not empty, and its key.
struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Certificate {
    fn read(files: &TlsFiles) -> Result<Certificate, TlsError> {
        let chain = certificates("a certificate chain", &files.certificate)?;
        secret_file::check("the private key", &files.key)?;
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| TlsError::File {
            what: "a private key",
            path: files.key.clone(),
            source,
        })?;
        Ok(Certificate { chain, key })
    }

    fn settings(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        clients: Option<&[CertificateDer<'static>]>,
        protocols: &[&[u8]],
    ) -> Result<ServerConfig, TlsError> {
        let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)?;
        let builder = match clients {
            Some(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots.add(authority.clone())?;
                }
                // A client without a certificate may still have a token: the request decides.
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .allow_unauthenticated()
                        .build()?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }
}

/// Reads the certificates of a PEM file; at least one.
fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |source| TlsError::File {
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

/// Writes a new self-signed certificate and its key, readable by the daemon's user only.
fn make_self_signed(path: &Path, names: &[String]) -> Result<(), TlsError> {
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::new(names.to_vec())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "tenure");
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    params.not_after = rcgen::date_time_ymd(2056, 1, 1);
    let pem = params.self_signed(&key)?.pem() + &key.serialize_pem();
    let failed = |source| TlsError::Write {
        path: path.to_owned(),
        source,
    };
    // Renamed when it is complete, so that a crash leaves no part of a certificate. The data
    // directory belongs to one daemon, so a file of this name is left over from a crash.
    let partial = path.with_extension("new");
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let write = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(pem.as_bytes())?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(failed)
}

/// Limits of one QUIC connection: memory and concurrent requests.
fn quic_transport() -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(REQUESTS.into())
        .max_concurrent_uni_streams(16u32.into())
        .stream_receive_window(RECEIVE_WINDOW.into())
        .receive_window(RECEIVE_WINDOW.into())
        .send_window(1 << 20);
    transport
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load(data: &Path, files: Option<TlsFiles>) -> Result<ServerTls, TlsError> {
        let config = TlsConfig {
            files,
            client_authority: None,
            min_version: TlsVersion::V12,
        };
        ServerTls::load(&config, ZeroRtt::Off, data, &["localhost".to_owned()])
    }

    /// A client that has pinned the certificate still knows the daemon after a restart.
    #[test]
    fn the_self_signed_certificate_is_kept_and_private() {
        let data = tempfile::tempdir().unwrap();
        let first = load(data.path(), None).unwrap().fingerprint();
        assert_eq!(load(data.path(), None).unwrap().fingerprint(), first);
        let mode = fs::metadata(data.path().join(SELF_SIGNED)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(load(other.path(), None).unwrap().fingerprint(), first);
    }

    /// New files replace the certificate; unusable ones do not.
    #[test]
    fn changed_files_are_used_and_broken_ones_are_not() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("c.pem");
        let names = ["localhost".to_owned()];
        make_self_signed(&path, &names).unwrap();
        let files = TlsFiles {
            certificate: path.clone(),
            key: path.clone(),
        };
        let tls = load(data.path(), Some(files)).unwrap();
        let first = tls.fingerprint();
        assert!(!tls.reload().unwrap());
        make_self_signed(&path, &names).unwrap();
        assert!(tls.reload().unwrap());
        let second = tls.fingerprint();
        assert_ne!(first, second);
        fs::write(&path, "no certificate").unwrap();
        assert!(tls.reload().is_err());
        assert_eq!(tls.fingerprint(), second);
    }

    /// A key that every user of the machine may change is no secret.
    #[test]
    fn a_key_that_others_may_write_is_refused() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("c.pem");
        make_self_signed(&path, &["localhost".to_owned()]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let files = TlsFiles {
            certificate: path.clone(),
            key: path,
        };
        let refused = load(data.path(), Some(files)).err().unwrap();
        assert!(matches!(refused, TlsError::Unprotected(_)), "{refused}");
    }
}
