//! TLS to the database, by the variables of libpq: `PGSSLMODE` and `PGSSLROOTCERT`.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How a connection uses TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TlsMode {
    /// Not at all.
    Disable,
    /// If the server offers it. The server proves nothing.
    Prefer,
    /// Always. The server proves nothing.
    Require,
    /// Always, and the certificate must be for the host's name.
    Verify {
        /// The authorities to trust; without a file, those of the system.
        roots: Option<PathBuf>,
    },
}

impl TlsMode {
    pub(super) fn from_env() -> Result<TlsMode, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let roots = variable("PGSSLROOTCERT").map(PathBuf::from);
        match variable("PGSSLMODE").as_deref() {
            Some("disable") => Ok(TlsMode::Disable),
            None | Some("prefer" | "allow") => Ok(TlsMode::Prefer),
            // As libpq does it: a file of authorities makes it verify.
            Some("require") if roots.is_none() => Ok(TlsMode::Require),
            // `verify-ca` does not ask for the name; here it does.
            Some("require" | "verify-ca" | "verify-full") => Ok(TlsMode::Verify { roots }),
            Some(other) => Err(format!(
                "PGSSLMODE is {other}: it must be disable, prefer, require or verify-full"
            )),
        }
    }
}

pub(super) fn connector(mode: &TlsMode) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?;
    let config = match mode {
        TlsMode::Verify { roots } => builder
            .with_root_certificates(authorities(roots.as_ref())?)
            .with_no_client_auth(),
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => {
            let verifier = Unverified(algorithms(&provider));
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier))
                .with_no_client_auth()
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

fn authorities(file: Option<&PathBuf>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    match file {
        Some(file) => {
            let bad = |what: String| format!("{}: {what}", file.display());
            let certificates =
                CertificateDer::pem_file_iter(file).map_err(|error| bad(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| bad(error.to_string()))?;
                store
                    .add(certificate)
                    .map_err(|error| bad(error.to_string()))?;
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(store)
}

fn algorithms(provider: &CryptoProvider) -> WebPkiSupportedAlgorithms {
    provider.signature_verification_algorithms
}

/// Accepts every certificate, as `prefer` and `require` of libpq do: they keep others from reading
/// along, not from answering in the server's place.
#[derive(Debug)]
struct Unverified(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
