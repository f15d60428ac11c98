//! TLS of clients: verification by certificate authorities or by the fingerprint of one certificate.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

/// SHA-256 of a certificate, as the daemon prints it: `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Returns the fingerprint of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        let digest = ::aws_lc_rs::digest::digest(&::aws_lc_rs::digest::SHA256, certificate);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Fingerprint(bytes)
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Fingerprint, String> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        // `openssl x509 -fingerprint` separates bytes by colons.
        let digits = digits.replace(':', "");
        let wrong = || "must be sha256: and 64 hexadecimal digits".to_owned();
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if digits.len() != 64 || !is_hex {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Fingerprint(bytes))
    }
}

/// How a client verifies the daemon, and how it proves itself.
#[derive(Clone, Debug, Default)]
pub struct ClientTlsOptions {
    /// PEM file with the authorities to trust. Default: those of the system.
    pub authority: Option<PathBuf>,
    /// PEM files with the client's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The only certificate that is accepted. Authorities and host names do not matter then.
    pub pin: Option<Fingerprint>,
}

/// TLS settings of a client.
#[derive(Clone)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// A sentence that names the file and the problem.
    pub fn new(options: &ClientTlsOptions) -> Result<ClientTls, String> {
        let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match options.pin {
            Some(fingerprint) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Pinned {
                    fingerprint,
                    provider,
                })),
            None => builder.with_root_certificates(roots(options.authority.as_deref())?),
        };
        let mut config = match &options.identity {
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| {
                    format!("cannot read a key from {}: {error}", key.display())
                })?;
                let unusable = |error| format!("the client certificate cannot be used: {error}");
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(unusable)?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(ClientTls(Arc::new(config)))
    }

    /// Connects to a node. The address of `endpoint` has the scheme `http`: encryption is added
    /// here.
    pub async fn connect(&self, endpoint: Endpoint) -> Result<Channel, tonic::transport::Error> {
        self.connect_at(endpoint, None).await
    }

    /// Connects to a node at this address of it. The certificate must be for the name in `endpoint`.
    pub async fn connect_at(
        &self,
        endpoint: Endpoint,
        address: Option<SocketAddr>,
    ) -> Result<Channel, tonic::transport::Error> {
        let connector = TlsConnector::from(Arc::clone(&self.0));
        let connect = tower::service_fn(move |uri: Uri| {
            let connector = connector.clone();
            async move {
                let host = uri.host().unwrap_or_default();
                let host = host
                    .trim_start_matches('[')
                    .trim_end_matches(']')
                    .to_owned();
                let port = uri.port_u16().unwrap_or(443);
                let stream = match address {
                    Some(address) => TcpStream::connect(address).await?,
                    None => TcpStream::connect((host.as_str(), port)).await?,
                };
                stream.set_nodelay(true)?;
                let name = ServerName::try_from(host).map_err(std::io::Error::other)?;
                let stream = connector.connect(name, stream).await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        endpoint.connect_with_connector(connect).await
    }
}

fn roots(authority: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match authority {
        Some(file) => {
            for certificate in certificates(file)? {
                let unusable = |error| format!("{} cannot be used: {error}", file.display());
                roots.add(certificate).map_err(unusable)?;
            }
        }
        None => {
            // Certificates of the system that cannot be read are not trusted; the others are.
            let system = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system.certs);
        }
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unreadable = |error: &dyn std::fmt::Display| {
        format!("cannot read a certificate from {}: {error}", file.display())
    };
    let found = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(&error))?;
    if found.is_empty() {
        return Err(unreadable(&"it contains none"));
    }
    Ok(found)
}

/// Accepts one certificate, by any signer. The handshake proves that the daemon has its key.
#[derive(Debug)]
struct Pinned {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if Fingerprint::of(certificate) == self.fingerprint {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_in_both_forms() {
        let text = format!("sha256:{}", "0a".repeat(32));
        let read: Fingerprint = text.parse().unwrap();
        assert_eq!(read.to_string(), text);
        assert_eq!("0A:".repeat(32).trim_end_matches(':').parse(), Ok(read));
        for wrong in [
            "",
            "sha256:",
            "sha256:0a",
            &"0g".repeat(32),
            &"é".repeat(32),
        ] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }
}
