//! Tests of the test server: it behaves like S3 wherever the lock depends on it. Otherwise all
//! other tests here would prove nothing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
    UpdateVersion,
};

use crate::support::s3_server::{BUCKET, Conditions, Fault, FaultKind, FaultPlan, Gate, S3Server};

fn client(server: &S3Server) -> AmazonS3 {
    AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_bucket_name(BUCKET)
        .with_region("eu-test-1")
        .with_access_key_id("key")
        .with_secret_access_key("secret")
        .with_retry(RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        })
        .build()
        .expect("a client for the test server")
}

fn mode(mode: PutMode) -> PutOptions {
    PutOptions {
        mode,
        ..PutOptions::default()
    }
}

fn body(text: &'static str) -> PutPayload {
    PutPayload::from_static(text.as_bytes())
}

#[tokio::test]
async fn conditions_on_put_are_decided_by_what_is_there() {
    let server = S3Server::start();
    let (store, key) = (client(&server), Path::from("index/lock.exclusive"));
    let first = store
        .put_opts(&key, body("one"), mode(PutMode::Create))
        .await
        .unwrap();
    let again = store
        .put_opts(&key, body("two"), mode(PutMode::Create))
        .await;
    assert!(
        matches!(again, Err(Error::AlreadyExists { .. })),
        "{again:?}"
    );

    let version = |e_tag: &Option<String>| UpdateVersion {
        e_tag: e_tag.clone(),
        version: None,
    };
    let update = |e_tag| mode(PutMode::Update(version(e_tag)));
    let second = store
        .put_opts(&key, body("two"), update(&first.e_tag))
        .await
        .unwrap();
    let late = store
        .put_opts(&key, body("three"), update(&first.e_tag))
        .await;
    assert!(matches!(late, Err(Error::Precondition { .. })), "{late:?}");
    assert_ne!(first.e_tag, second.e_tag);
    assert_eq!(server.object(key.as_ref()).unwrap().bytes, "two");
}

/// One mutex: of many simultaneous creates exactly one succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_simultaneous_creates_one_wins() {
    let server = S3Server::start();
    let store = Arc::new(client(&server));
    let tries = (0..32).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let key = Path::from("index/lock.exclusive");
            store
                .put_opts(&key, body("mine"), mode(PutMode::Create))
                .await
                .is_ok()
        })
    });
    let mut won = 0;
    for one in tries.collect::<Vec<_>>() {
        won += usize::from(one.await.unwrap());
    }
    assert_eq!(won, 1);
}

/// A server that ignores conditions answers 200 to everything; a correct weak server refuses the
/// header.
#[tokio::test]
async fn weak_servers_are_weak() {
    let server = S3Server::start();
    let (store, key) = (client(&server), Path::from("k"));
    server.set_conditions(Conditions::Ignored);
    for text in ["one", "two"] {
        store
            .put_opts(&key, body(text), mode(PutMode::Create))
            .await
            .unwrap();
    }
    assert_eq!(server.object("k").unwrap().bytes, "two");
    server.set_conditions(Conditions::Refused(501));
    assert!(
        store
            .put_opts(&key, body("three"), mode(PutMode::Create))
            .await
            .is_err()
    );
    assert_eq!(server.object("k").unwrap().bytes, "two");
}

/// P5: `+` and `:` in keys are preserved in both directions, and a list continues over pages.
#[tokio::test]
async fn keys_with_plus_and_colon_are_stored_and_listed() {
    let server = S3Server::start();
    server.set_page_size(2);
    let store = client(&server);
    let names = [
        "2026-03-07T09:00:00.1+05:30",
        "2026-03-07T09:00:00Z",
        "a b",
        "c",
        "d",
    ];
    for name in names {
        let key = Path::parse(format!("index/lock.shared/{name}")).unwrap();
        store.put(&key, body("x")).await.unwrap();
        assert_eq!(store.get(&key).await.unwrap().bytes().await.unwrap(), "x");
    }
    let prefix = Path::from("index/lock.shared");
    let listed: Vec<_> = store.list(Some(&prefix)).try_collect().await.unwrap();
    let mut listed: Vec<_> = listed
        .iter()
        .map(|meta| meta.location.filename().unwrap().to_owned())
        .collect();
    listed.sort();
    assert_eq!(listed, names);
    let lists = server
        .take_seen()
        .iter()
        .filter(|seen| seen.kind == FaultKind::List)
        .count();
    assert_eq!(lists, 3, "five keys on pages of two");
}

/// The server has its own clock; `Last-Modified` shows whole seconds of it.
#[tokio::test]
async fn times_come_from_the_servers_clock() {
    let server = S3Server::start();
    server.clock().stand_at_ms(1_772_874_020_900);
    server.clock().advance(Duration::from_secs(10));
    let (store, key) = (client(&server), Path::from("k"));
    store.put(&key, body("x")).await.unwrap();
    let head = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    let meta = store.get_opts(&key, head).await.unwrap().meta;
    assert_eq!(meta.last_modified.timestamp_millis(), 1_772_874_030_000);
}

#[tokio::test]
async fn an_answer_can_be_lost_after_applying() {
    let server = S3Server::start();
    let (store, key) = (client(&server), Path::from("k"));
    server.plan(FaultPlan::on(FaultKind::Put, Fault::LoseAnswer));
    server.plan(FaultPlan::on(FaultKind::Put, Fault::LoseRequest).key("other"));
    assert!(store.put(&key, body("x")).await.is_err());
    assert_eq!(server.object("k").unwrap().bytes, "x");
    assert!(store.put(&Path::from("other"), body("x")).await.is_err());
    assert_eq!(server.object("other"), None);
    store.put(&key, body("y")).await.unwrap();
}

#[tokio::test]
async fn statuses_come_before_or_after_applying() {
    let server = S3Server::start();
    let (store, key) = (client(&server), Path::from("k"));
    for status in [409, 412, 429, 500] {
        server.plan(FaultPlan::on(FaultKind::Put, Fault::Refuse(status)));
        assert!(store.put(&key, body("x")).await.is_err());
        assert_eq!(server.object("k"), None, "{status}");
    }
    server.plan(FaultPlan::on(
        FaultKind::Put,
        Fault::StatusAfterApplying(500),
    ));
    assert!(store.put(&key, body("x")).await.is_err());
    assert!(server.object("k").is_some());
}

/// A request that was cut off may still take effect, after later ones.
#[tokio::test]
async fn a_request_can_come_late_or_be_overtaken() {
    let server = S3Server::start();
    let (store, key) = (client(&server), Path::from("k"));
    let gate = Gate::closed();
    server.plan(FaultPlan::on(
        FaultKind::Put,
        Fault::ApplyLater(gate.clone()),
    ));
    assert!(store.put(&key, body("late")).await.is_err());
    store.put(&key, body("soon")).await.unwrap();
    assert_eq!(server.object("k").unwrap().bytes, "soon");
    gate.open();
    while server.object("k").unwrap().bytes != "late" {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    server.plan(FaultPlan::on(FaultKind::Put, Fault::Reorder).key("first"));
    let (first, second) = (Path::from("first"), Path::from("second"));
    let (one, two) = tokio::join!(store.put(&first, body("1")), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        store.put(&second, body("2")).await
    });
    one.unwrap();
    two.unwrap();
    let order: Vec<_> = server
        .take_seen()
        .into_iter()
        .map(|seen| seen.key)
        .collect();
    assert_eq!(order[order.len() - 2..], ["second", "first"]);
}

#[tokio::test]
async fn a_bulk_delete_knows_no_conditions() {
    let server = S3Server::start();
    let (store, key) = (client(&server), Path::from("a+b"));
    store.put(&key, body("x")).await.unwrap();
    store.delete(&key).await.unwrap();
    assert_eq!(server.object("a+b"), None);
    assert_eq!(
        server.take_seen().last().unwrap().kind,
        FaultKind::BulkDelete
    );
}
