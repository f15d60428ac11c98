//! The protocol on third-party servers: moto for S3, Azurite for Azure, gcp-storage-emulator for
//! GCS. They are installed if missing (pinned, below the target directory).

use std::io::{Read, Write};
use std::net::TcpStream;

use tenure_store::{Class, ConditionLevel, LockPurpose, Options, Repository};

use crate::support::LockMode::{Exclusive, Shared};
use crate::support::foreign::{Foreign, Running};
use crate::support::s3_server::{BUCKET, FaultKind, ReceivedRequest, S3Server};
use crate::support::virtual_time::s3_config;

/// An exclusive lock alone, shared locks together, each mode refused while the other is held;
/// nothing remains.
async fn play(open: impl Fn() -> Repository) -> ConditionLevel {
    let (one, two) = (open(), open());
    let level = one
        .abilities()
        .await
        .expect("a store that can be probed")
        .level;
    let exclusive = one
        .lock(LockPurpose::new(Exclusive, "prune"))
        .await
        .expect("free");
    for mode in [Exclusive, Shared] {
        let refused = two
            .lock(LockPurpose::new(mode, "late"))
            .await
            .expect_err("held");
        assert_eq!(refused.class(), Class::Held, "{refused}");
    }
    exclusive
        .check()
        .await
        .expect("ours by the store's own word");
    let seen = two.inspect().await.expect("a look");
    assert_eq!(seen.locks.len(), 1);
    let object = &seen.locks[0].object;
    assert!(
        object.modified.is_some() && object.store_now.is_some(),
        "the store's clock (K45)"
    );
    let first_fence = exclusive.fence().expect("an exclusive lock is fenced");
    exclusive.release().await.expect("given back");

    let shared = one
        .lock(LockPurpose::new(Shared, "backup"))
        .await
        .expect("free");
    let beside = two
        .lock(LockPurpose::new(Shared, "restore"))
        .await
        .expect("shared beside shared");
    let refused = open()
        .lock(LockPurpose::new(Exclusive, "prune"))
        .await
        .expect_err("held");
    assert_eq!(refused.class(), Class::Held, "{refused}");
    assert_eq!(two.inspect().await.expect("a look").locks.len(), 2);
    shared.release().await.expect("given back");
    beside.release().await.expect("given back");
    assert!(two.inspect().await.expect("a look").locks.is_empty());

    let again = two
        .lock(LockPurpose::new(Exclusive, "prune"))
        .await
        .expect("free");
    assert!(again.fence() > Some(first_fence), "fencing numbers grow");
    again.release().await.expect("given back");
    level
}

fn open(scheme: &str, config: &[(&str, String)]) -> Repository {
    let place = format!("{scheme}://{BUCKET}/team/a+b:c")
        .parse()
        .expect("an address");
    let config = config
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.clone()))
        .collect();
    Repository::open(
        place,
        Options {
            config,
            ..Options::default()
        },
    )
    .expect("a repository")
}

#[tokio::test]
async fn moto_speaks_s3() {
    let moto = Running::start(Foreign::Moto);
    let answer = request(&moto, &format!("PUT /{BUCKET} HTTP/1.1"), &[], "");
    assert!(answer.contains("200 OK"), "{answer}");
    let config = s3_config(&moto.endpoint());
    let config: Vec<_> = config
        .iter()
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    let level = play(|| open("s3", &config)).await;
    println!("moto: level {}", level.number());
    assert!(
        level >= ConditionLevel::Writes,
        "moto has conditional writes"
    );
}

#[tokio::test]
async fn azurite_speaks_azure() {
    let azurite = Running::start(Foreign::Azurite);
    make_container(&azurite);
    let config = [
        ("azure_storage_account_name", ACCOUNT.to_owned()),
        ("azure_storage_account_key", ACCOUNT_KEY.to_owned()),
        (
            "azure_storage_endpoint",
            format!("{}/{ACCOUNT}", azurite.endpoint()),
        ),
        ("azure_allow_http", "true".to_owned()),
    ];
    let level = play(|| open("az", &config)).await;
    println!("azurite: level {}", level.number());
    assert!(
        level >= ConditionLevel::Writes,
        "Azure has conditional writes"
    );
}

/// GCS with its XML interface on the test server: generations instead of entity tags.
#[tokio::test]
async fn the_test_server_speaks_gcs() {
    let server = S3Server::start();
    let config = gcs_config(&server.endpoint());
    assert_eq!(play(|| open("gs", &config)).await, ConditionLevel::Deletes);
    let seen = server.take_seen();
    let conditional = |seen: &&ReceivedRequest| {
        seen.condition
            .as_ref()
            .is_some_and(|it| it.contains("generation"))
    };
    assert!(
        seen.iter()
            .any(|seen| seen.kind == FaultKind::Delete && conditional(&seen))
    );
    assert!(
        seen.iter()
            .any(|seen| seen.kind == FaultKind::Put && conditional(&seen))
    );
}

/// The client uses the XML interface of GCS. In the emulator, writes do not return the new version,
/// conditions on generations are ignored, and deletes and lists are missing. A lock is impossible
/// there, so it must be refused. `the_test_server_speaks_gcs` covers GCS instead.
#[tokio::test]
async fn the_emulator_of_gcs_is_refused_for_what_it_lacks() {
    let emulator = Running::start(Foreign::GcpStorageEmulator);
    let path = format!("/{BUCKET}/index/x HTTP/1.1");
    let only_if_absent = [("x-goog-if-generation-match", "0")];
    for _ in 0..2 {
        let answer = request(&emulator, &format!("PUT {path}"), &only_if_absent, "x");
        let answer = answer.to_lowercase();
        assert!(answer.contains(" 200 "), "it decides conditions: {answer}");
        let versioned = answer.contains("etag") || answer.contains("x-goog-generation");
        assert!(!versioned, "it tells versions: {answer}");
    }
    for line in [
        format!("DELETE {path}"),
        format!("GET /{BUCKET}?list-type=2 HTTP/1.1"),
    ] {
        let answer = request(&emulator, &line, &[], "");
        assert!(answer.contains(" 501 "), "it knows {line}: {answer}");
    }
    let repository = open("gs", &gcs_config(&emulator.endpoint()));
    let refused = repository
        .lock(LockPurpose::new(Exclusive, "prune"))
        .await
        .expect_err("no versions");
    assert_eq!(refused.class(), Class::Io, "{refused}");
    assert!(refused.to_string().contains("ETag"), "{refused}");
}

fn gcs_config(endpoint: &str) -> [(&'static str, String); 2] {
    let account = format!(
        r#"{{"gcs_base_url":"{endpoint}","disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}}"#
    );
    [
        ("google_service_account_key", account),
        ("allow_http", "true".to_owned()),
    ]
}

/// Sends one request without a client library.
fn request(server: &Running, first_line: &str, headers: &[(&str, &str)], body: &str) -> String {
    let host = server.endpoint().replace("http://", "");
    let mut stream = TcpStream::connect(&host).expect("a server that runs");
    let length = body.len();
    let mut text = format!(
        "{first_line}\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n"
    );
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    stream
        .write_all((text + "\r\n" + body).as_bytes())
        .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The documented default account of Azurite.
const ACCOUNT: &str = "devstoreaccount1";
const ACCOUNT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Creates a container, which needs a signed request.
fn make_container(azurite: &Running) {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    let date = httpdate::fmt_http_date(std::time::SystemTime::now());
    let version = "2021-08-06";
    let resource = format!("/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container");
    let text =
        format!("PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{version}\n{resource}");
    let key = STANDARD.decode(ACCOUNT_KEY).expect("a key in base 64");
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key);
    let signature = STANDARD.encode(aws_lc_rs::hmac::sign(&key, text.as_bytes()));
    let line = format!("PUT /{ACCOUNT}/{BUCKET}?restype=container HTTP/1.1");
    let authorization = format!("SharedKey {ACCOUNT}:{signature}");
    let headers = [
        ("x-ms-date", date.as_str()),
        ("x-ms-version", version),
        ("Authorization", &authorization),
    ];
    let answer = request(azurite, &line, &headers, "");
    assert!(answer.contains("201 Created"), "{answer}");
}
