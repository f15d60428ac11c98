//! Who can reach the daemon, and how: TLS, certificates, plaintext, pages in a browser.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_wire::tls::{ClientTls, ClientTlsOptions, Fingerprint};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tonic::{Code, Request};

use super::support::Daemon;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn with(environment: &[(&str, &str)]) -> (tempfile::TempDir, Daemon) {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(data.path(), environment);
    (data, daemon)
}

/// A page that makes its own name resolve to this machine, and a page of another origin.
#[test]
fn pages_of_other_origins_reach_nothing() {
    let (_data, daemon) = with(&[]);
    let status = |head: &str| {
        let body = r#"{"ownerId":"amy"}"#;
        let request = format!(
            "POST /v1/isOwnerAlive HTTP/1.1\r\n{head}connection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = String::from_utf8(daemon.raw(request.as_bytes())).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 400")
                || answer.contains("x-content-type-options: nosniff"),
            "{answer}"
        );
        answer[9..12].to_owned()
    };
    let port = daemon.web.port();
    let ours = format!("host: localhost:{port}\r\n");
    assert_eq!(status(&ours), "200");
    assert_eq!(status(&format!("host: 127.0.0.1:{port}\r\n")), "200");
    assert_eq!(status(&format!("host: evil.example:{port}\r\n")), "421");
    assert_eq!(status(""), "400");
    assert_eq!(status(&format!("{ours}{ours}")), "400");
    let other = "origin: http://evil.example\r\n";
    assert_eq!(status(&format!("{ours}{other}")), "403");
    assert_eq!(
        status(&format!("{ours}sec-fetch-site: cross-site\r\n")),
        "403"
    );
    let same = format!("origin: http://localhost:{port}\r\nsec-fetch-site: same-origin\r\n");
    assert_eq!(status(&format!("{ours}{same}")), "200");
}

async fn tls_client(
    daemon: &Daemon,
    options: ClientTlsOptions,
) -> Option<PathLockClient<tonic::transport::Channel>> {
    let address = format!("http://localhost:{}", daemon.grpc.port());
    let endpoint = tonic::transport::Endpoint::from_shared(address).unwrap();
    let channel = ClientTls::new(&options).unwrap().connect(endpoint).await;
    channel.ok().map(PathLockClient::new)
}

fn pinned(fingerprint: Fingerprint) -> ClientTlsOptions {
    ClientTlsOptions {
        pin: Some(fingerprint),
        ..ClientTlsOptions::default()
    }
}

/// The fingerprint of the certificate that a port shows.
fn shown(port: u16) -> Fingerprint {
    let script = format!(
        "openssl s_client -connect 127.0.0.1:{port} -alpn h2 </dev/null 2>/dev/null | openssl x509 -noout -fingerprint -sha256"
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, digits) = text
        .trim()
        .split_once('=')
        .unwrap_or_else(|| panic!("{script}: {text}"));
    digits.parse().unwrap()
}

/// Beyond loopback a token needs TLS; the self-signed certificate is kept, private, and can be
/// pinned.
#[tokio::test]
async fn beyond_loopback_a_token_is_accepted_over_tls_only() {
    let environment = [
        ("TENURE_LISTEN", "0.0.0.0:0"),
        ("TENURE_CLIENT_AUTH_TOKEN", TOKEN),
    ];
    let (data, daemon) = with(&environment);
    let signed = || {
        let mut request = Request::new(v1::HealthRequest {});
        let value = format!("Bearer {TOKEN}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
        request
    };
    let in_clear = format!("http://127.0.0.1:{}", daemon.grpc.port());
    let endpoint = tonic::transport::Endpoint::from_shared(in_clear.clone()).unwrap();
    let mut plain = PathLockClient::new(endpoint.connect().await.unwrap());
    let refused = plain.health(signed()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("tenure+tls://"), "{refused}");

    let certificate = shown(daemon.grpc.port());
    let mut client = tls_client(&daemon, pinned(certificate)).await.unwrap();
    assert!(client.health(signed()).await.unwrap().into_inner().ok);
    let refused = client.health(v1::HealthRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    let other: Fingerprint = "00".repeat(32).parse().unwrap();
    assert!(tls_client(&daemon, pinned(other)).await.is_none());

    let file = std::fs::metadata(data.path().join("self-signed.pem")).unwrap();
    assert_eq!(file.mode() & 0o777, 0o600);
    assert_eq!(
        std::fs::metadata(data.path().join("db")).unwrap().mode() & 0o777,
        0o700
    );
    // The commands speak TLS to it, and the health check knows the certificate.
    let run = |arguments: &[&str], url: &str| -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments);
        command
            .env("TENURE_URL", url)
            .env("TENURE_CLIENT_AUTH_TOKEN", TOKEN);
        command
            .env("TENURE_PIN", certificate.to_string())
            .output()
            .unwrap()
    };
    let url = format!("tenure+tls://127.0.0.1:{}", daemon.grpc.port());
    for arguments in [&["try", "vol:/x"][..], &["cluster", "status"]] {
        let output = run(arguments, &url);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    let mut check = Command::new(env!("CARGO_BIN_EXE_tenure"));
    check
        .arg("--health-check")
        .env("TENURE_DATA_DIR", data.path());
    check.env("TENURE_LISTEN", format!("0.0.0.0:{}", daemon.grpc.port()));
    let output = check
        .env("TENURE_CLIENT_AUTH_TOKEN", TOKEN)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");

    daemon.kill();
    let again = Daemon::start_with(data.path(), &environment);
    assert_eq!(shown(again.grpc.port()), certificate);
}

/// By explicit setting a token is accepted without TLS; anonymous clients never send one in clear.
#[tokio::test]
async fn plaintext_beyond_loopback_needs_consent() {
    let health = async |environment: &[(&str, &str)], token: bool| {
        let (_data, daemon) = with(environment);
        let address = format!("http://127.0.0.1:{}", daemon.grpc.port());
        let endpoint = tonic::transport::Endpoint::from_shared(address).unwrap();
        let mut client = PathLockClient::new(endpoint.connect().await.unwrap());
        let mut request = Request::new(v1::HealthRequest {});
        if token {
            let value = format!("Bearer {TOKEN}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        client
            .health(request)
            .await
            .map_or_else(|status| status.code(), |_| Code::Ok)
    };
    let listen = ("TENURE_LISTEN", "0.0.0.0:0");
    let token = ("TENURE_CLIENT_AUTH_TOKEN", TOKEN);
    let anonymous = ("TENURE_ALLOW_ANONYMOUS", "true");
    let plaintext = ("TENURE_ALLOW_PLAINTEXT", "true");
    assert_eq!(health(&[listen, token, plaintext], true).await, Code::Ok);
    assert_eq!(health(&[listen, anonymous], false).await, Code::Ok);
    assert_eq!(
        health(&[listen, anonymous], true).await,
        Code::FailedPrecondition
    );
}

/// HTTP/3 beyond loopback is an exposed port like the others.
#[test]
fn http3_beyond_loopback_needs_consent() {
    let data = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .arg("serve")
        .env("TENURE_DATA_DIR", data.path())
        .env("TENURE_LISTEN", "127.0.0.1:0")
        .env("TENURE_WEB_LISTEN", "127.0.0.1:0")
        .env("TENURE_H3_LISTEN", "0.0.0.0:0")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("h3_listen") && said.contains("allow_anonymous"),
        "{said}"
    );
}

/// Certificates made by `openssl`.
struct Authority {
    directory: tempfile::TempDir,
}

impl Authority {
    fn new() -> Authority {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority { directory };
        authority.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=authority -out ca.pem -keyout ca.key");
        authority
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(self.directory.path())
            .output()
            .expect("openssl is needed for this test");
        assert!(output.status.success(), "{output:?}");
    }

    /// Signs `NAME.pem` with `NAME.key`.
    fn sign(&self, name: &str, subject: &str) {
        std::fs::write(self.file("ext"), format!("subjectAltName={subject}")).unwrap();
        self.openssl(&format!("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name} -out {name}.csr -keyout {name}.key"));
        self.openssl(&format!("x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out {name}.pem"));
    }

    fn identity(&self, name: &str) -> (PathBuf, PathBuf) {
        (
            self.file(&format!("{name}.pem")),
            self.file(&format!("{name}.key")),
        )
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A client certificate of the configured authority names a principal, on both ports. What it may do
/// is granted.
#[tokio::test]
async fn client_certificates_are_credentials() {
    let authority = Authority::new();
    authority.sign("server", "DNS:localhost,IP:127.0.0.1");
    authority.sign("client", "URI:spiffe://example/worker");
    let stranger = Authority::new();
    stranger.sign("client", "URI:spiffe://example/worker");
    let (certificate, key) = authority.identity("server");
    let ca = authority.file("ca.pem");
    let (data, daemon) = with(&[
        ("TENURE_TLS_CERT_PATH", text(&certificate)),
        ("TENURE_TLS_KEY_PATH", text(&key)),
        ("TENURE_TLS_CLIENT_CA_PATH", text(&ca)),
    ]);
    let health = async |identity| {
        let options = ClientTlsOptions {
            authority: Some(ca.clone()),
            identity,
            pin: None,
        };
        let mut client = tls_client(&daemon, options).await?;
        let health = client.health(v1::HealthRequest {}).await;
        Some(health.map_or_else(|status| status.code(), |_| Code::Ok))
    };
    assert_eq!(
        health(Some(authority.identity("client"))).await,
        Some(Code::PermissionDenied)
    );
    let socket = format!("unix://{}", data.path().join("tenure.sock").display());
    let granted = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["auth", "grant", "cert:spiffe://example/worker", "status"])
        .args(["--url", &socket])
        .output()
        .unwrap();
    assert!(granted.status.success(), "{granted:?}");
    assert_eq!(
        health(Some(authority.identity("client"))).await,
        Some(Code::Ok)
    );
    assert_eq!(health(None).await, Some(Code::Unauthenticated));
    let refused = health(Some(stranger.identity("client"))).await;
    assert_ne!(
        refused,
        Some(Code::Ok),
        "a certificate of another authority"
    );

    let curl = |arguments: &[&str]| {
        let output = Command::new("curl")
            .args([
                "-sS",
                "--max-time",
                "20",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "--cacert",
            ])
            .arg(&ca)
            .args(arguments)
            .arg(format!("https://localhost:{}/v1/health", daemon.web.port()))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (certificate, key) = authority.identity("client");
    assert_eq!(
        curl(&["--cert", text(&certificate), "--key", text(&key)]),
        "200"
    );
    assert_eq!(curl(&[]), "401");
}

/// A new certificate is used after SIGHUP, and the oldest version of TLS is a setting.
#[tokio::test]
async fn a_certificate_is_replaced_without_a_restart() {
    let authority = Authority::new();
    authority.sign("server", "DNS:localhost");
    let (certificate, key) = authority.identity("server");
    let (_data, daemon) = with(&[
        ("TENURE_TLS_CERT_PATH", text(&certificate)),
        ("TENURE_TLS_KEY_PATH", text(&key)),
        ("TENURE_TLS_MIN_VERSION", "1.3"),
    ]);
    let (grpc, web) = (daemon.grpc.port(), daemon.web.port());
    let before = shown(grpc);
    assert_eq!(shown(web), before);
    let old = Command::new("curl")
        .args(["-sSk", "--max-time", "20", "--tls-max", "1.2"])
        .arg(format!("https://localhost:{web}/v1/health"))
        .output()
        .unwrap();
    assert!(!old.status.success(), "{old:?}");

    authority.sign("server", "DNS:localhost");
    let pid = daemon.pid().to_string();
    assert!(
        Command::new("kill")
            .args(["-HUP", &pid])
            .status()
            .unwrap()
            .success()
    );
    let begun = Instant::now();
    while shown(grpc) == before {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the old one is still shown"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(shown(web), shown(grpc));
    assert_eq!(
        daemon
            .post("/v1/isOwnerAlive", &json!({"ownerId": "amy"}))
            .0,
        200
    );
}

/// A key that every user may change is refused, and so is such a configuration.
#[test]
fn unprotected_secrets_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tenure.toml");
    std::fs::write(&file, "listen = '127.0.0.1:0'\n").unwrap();
    assert!(
        Command::new("chmod")
            .arg("666")
            .arg(&file)
            .status()
            .unwrap()
            .success()
    );
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["serve", "--config", text(&file)])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("chmod o-w"), "{said}");
}

/// Shakes hands by `openssl s_client`; returns the version and the cipher, if the port accepts.
fn shake_hands(port: u16, arguments: &str) -> Option<(String, String)> {
    let output = Command::new("openssl")
        .args(["s_client", "-brief", "-alpn", "h2", "-connect"])
        .arg(format!("127.0.0.1:{port}"))
        .args(arguments.split_whitespace())
        .stdin(std::process::Stdio::null())
        .output()
        .expect("openssl is needed for this test");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let field = |name: &str| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().to_owned())
    };
    Some((field("Protocol version:")?, field("Ciphersuite:")?))
}

/// What a scanner of TLS servers looks at: versions, key exchange, ciphers, of both ports.
#[test]
fn both_ports_speak_only_current_tls() {
    let (_data, daemon) = with(&[]);
    let weakest = "ALL:COMPLEMENTOFALL:@SECLEVEL=0";
    let known = |options: &[&str]| {
        let output = Command::new("openssl")
            .arg("ciphers")
            .args(options)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    // This client can speak what the daemon must refuse.
    assert!(known(&["-s", "-tls1_1", weakest]).contains("AES128-SHA"));
    let older = known(&["-s", "-tls1_2", weakest]);
    for port in [daemon.grpc.port(), daemon.web.port()] {
        for version in ["-tls1", "-tls1_1"] {
            let accepted = shake_hands(port, &format!("{version} -cipher {weakest}"));
            assert_eq!(accepted, None, "{version} on port {port}");
        }
        let (version, _) = shake_hands(port, "").unwrap();
        assert_eq!(version, "TLSv1.3");
        let (version, cipher) = shake_hands(port, "-tls1_2").unwrap();
        assert_eq!(version, "TLSv1.2");
        assert!(cipher.starts_with("ECDHE-"), "forward secrecy: {cipher}");
        // Everything but ECDHE with an authenticated cipher is refused: RSA key exchange, CBC, no
        // authentication, no encryption.
        let is_weak = |cipher: &&str| {
            let is_current = cipher.contains("GCM") || cipher.contains("CHACHA20");
            let is_good = cipher.starts_with("ECDHE-") && is_current;
            !is_good && !cipher.starts_with("TLS_")
        };
        let weak: Vec<&str> = older.trim().split(':').filter(is_weak).collect();
        assert!(weak.len() > 20, "{weak:?}");
        let offered = format!("-tls1_2 -cipher {}:@SECLEVEL=0", weak.join(":"));
        assert_eq!(shake_hands(port, &offered), None, "on port {port}");
    }
    let (_data, strict) = with(&[("TENURE_TLS_MIN_VERSION", "1.3")]);
    for port in [strict.grpc.port(), strict.web.port()] {
        assert_eq!(shake_hands(port, "-tls1_2"), None);
        assert!(shake_hands(port, "-tls1_3").is_some());
    }
}
