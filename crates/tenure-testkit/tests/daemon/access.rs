//! Authentication: tokens and TLS.

use std::sync::Arc;

use tenure::{Endpoint, Error, Tenure};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::daemon::Daemon;

/// R182: calls without the token are refused, calls with it succeed; the token appears in no
/// message.
#[test]
fn credentials_are_shown_and_kept_to_ourselves() {
    let daemon = Daemon::start_with_token("open sesame, please, this is long enough");
    let error = daemon
        .client()
        .lock("t:/a")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");

    let with = |token: &str| {
        let builder = Tenure::builder().nodes([daemon.node.clone()]).token(token);
        builder.build().unwrap()
    };
    let error = with("wrong")
        .lock("t:/a")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    let right = with("open sesame, please, this is long enough");
    assert!(!format!("{right:?}").contains("sesame"));
    let guard = right.lock("t:/a").unwrap().blocking().acquire().unwrap();
    guard.check().unwrap();
    guard.release().unwrap();
}

/// TLS works with a trusted certificate; with another one nothing is sent.
#[test]
fn tls_needs_a_certificate_that_is_trusted() {
    let daemon = Daemon::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let (node, certificate) = runtime.block_on(tls_in_front_of(&daemon));
    let temp = tempfile::tempdir().unwrap();
    let trusting = |pem: &str| {
        let file = temp.path().join("ca.pem");
        std::fs::write(&file, pem).unwrap();
        Tenure::builder()
            .nodes([node.clone()])
            .trust(file)
            .build()
            .unwrap()
    };
    let guard = trusting(&certificate)
        .lock("t:/a")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap();
    guard.check().unwrap();
    guard.release().unwrap();

    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let lock = trusting(&other.cert.pem()).lock("t:/a").unwrap().blocking();
    let error = lock.wait(std::time::Duration::ZERO).acquire().unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}

/// Starts a TLS proxy in front of the daemon.
async fn tls_in_front_of(daemon: &Daemon) -> (Endpoint, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = CertificateDer::from(made.cert.der().to_vec());
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = daemon.node.to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, target) = (acceptor.clone(), target.clone());
            tokio::spawn(async move {
                let mut inside = acceptor.accept(stream).await.ok()?;
                let mut daemon = TcpStream::connect(target).await.ok()?;
                copy_bidirectional(&mut inside, &mut daemon).await.ok()
            });
        }
    });
    (Endpoint::new("localhost", port), made.cert.pem())
}
