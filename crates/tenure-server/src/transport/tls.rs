//! TLS certificates and settings of the web transports.
//!
//! Without configured files, a self-signed certificate for `localhost` and `127.0.0.1` is made at
//! start; clients must then skip verification. Both listeners use the same certificate; their ALPN
//! protocols differ (`h2` and `http/1.1` on TCP, `h3` on QUIC).

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerSessionMemoryCache;
use thiserror::Error;

use super::h3::REQUESTS;
use crate::config::{TlsFiles, ZeroRtt};

/// Sessions that can be resumed. Early data works only for sessions in this cache.
const REMEMBERED_SESSIONS: usize = 4096;

/// A certificate chain and its key.
pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
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
        source: rustls::pki_types::pem::Error,
    },
    /// The self-signed certificate cannot be made.
    #[error("cannot create a self-signed certificate")]
    SelfSigned(#[from] rcgen::Error),
    /// Certificate and key do not match, or are not usable.
    #[error("the certificate and key cannot be used: check tls_cert_path and tls_key_path")]
    Unusable(#[from] rustls::Error),
    /// QUIC needs a cipher suite that the provider lacks.
    #[error("the certificate cannot be used for QUIC")]
    Quic(#[from] quinn::crypto::rustls::NoInitialCipherSuite),
}

impl Certificate {
    /// Reads PEM files, or makes a self-signed certificate if none are configured.
    pub fn load(files: Option<&TlsFiles>) -> Result<Certificate, TlsError> {
        let Some(files) = files else {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let made = rcgen::generate_simple_self_signed(names)?;
            let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
            return Ok(Certificate {
                chain: vec![made.cert.der().clone()],
                key,
            });
        };
        let unreadable = |what, path: &PathBuf| {
            let path = path.clone();
            move |source| TlsError::File { what, path, source }
        };
        let chain = CertificateDer::pem_file_iter(&files.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(unreadable("a certificate chain", &files.certificate))?;
        if chain.is_empty() {
            let source = rustls::pki_types::pem::Error::NoItemsFound;
            return Err(unreadable("a certificate chain", &files.certificate)(
                source,
            ));
        }
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(unreadable("a private key", &files.key))?;
        Ok(Certificate { chain, key })
    }

    /// Returns the settings for TLS 1.2 and 1.3 with HTTP/2 and HTTP/1.1.
    pub fn for_tcp(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Returns the settings for HTTP/3 (TLS 1.3), with or without early data.
    pub fn for_quic(&self, zero_rtt: ZeroRtt) -> Result<quinn::ServerConfig, TlsError> {
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .with_no_client_auth()
                .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![b"h3".to_vec()];
        config.session_storage = ServerSessionMemoryCache::new(REMEMBERED_SESSIONS);
        // QUIC allows only 0 or 2^32 - 1 here (RFC 9001, 4.6.1).
        config.max_early_data_size = match zero_rtt {
            ZeroRtt::ReadsOnly => u32::MAX,
            ZeroRtt::Off => 0,
        };
        let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(config)?;
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        server.transport_config(Arc::new(transport()));
        Ok(server)
    }
}

/// Limits of one QUIC connection: memory and concurrent requests.
fn transport() -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(REQUESTS.into())
        .max_concurrent_uni_streams(16u32.into())
        .stream_receive_window((1u32 << 20).into())
        .receive_window((4u32 << 20).into())
        .send_window(1 << 20);
    transport
}
