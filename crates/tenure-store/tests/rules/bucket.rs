//! Locks in a bucket, on the test S3 server.

#[path = "../suite/support/s3_server/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_docs,
    reason = "this binary uses a part of the server"
)]
mod s3_server;

use std::time::Duration;

use s3_server::{BUCKET, Conditions, Fault, FaultKind, FaultPlan, S3Server};
use tenure_store::{BreakTarget, Insist};
use tenure_store::{
    Class, ConditionLevel, Demand, Error, LockMode, LockPurpose, LockSettings, Options,
    OtherClients, Repository, RepositoryGuard,
};

fn options(server: &S3Server) -> Options {
    let endpoint = server.endpoint();
    let config = [
        ("aws_endpoint", endpoint.as_str()),
        ("aws_allow_http", "true"),
        ("aws_region", "eu-test-1"),
        ("aws_access_key_id", "key"),
        ("aws_secret_access_key", "secret"),
    ];
    let config = config
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let settings = LockSettings {
        company: OtherClients::TenureOnly,
        ..LockSettings::default()
    };
    Options {
        settings,
        config,
        ..Options::default()
    }
}

fn open(server: &S3Server) -> Repository {
    let place = format!("s3://{BUCKET}/team/a").parse().unwrap();
    Repository::open(place, options(server)).unwrap()
}

async fn lock(repository: &Repository, mode: LockMode) -> Result<RepositoryGuard, Error> {
    repository.lock(LockPurpose::new(mode, "prune")).await
}

/// P3 (store key prefix), P26 (levels of conditional writes), P35: acquire, hold and release under
/// a prefix, at level 2.
#[tokio::test]
async fn a_lock_lives_in_a_bucket() {
    let server = S3Server::start();
    let repository = open(&server);
    assert_eq!(
        repository.abilities().await.unwrap().level,
        ConditionLevel::Deletes
    );
    let guard = lock(&repository, LockMode::Exclusive).await.unwrap();
    assert!(server.object("team/a/index/lock.exclusive").is_some());
    guard.check().await.unwrap();
    for mode in [LockMode::Exclusive, LockMode::Shared] {
        let error = lock(&open(&server), mode).await.unwrap_err();
        assert_eq!((error.class(), error.is_busy()), (Class::Held, true));
    }
    guard.release().await.unwrap();
    assert!(server.object("team/a/index/lock.exclusive").is_none());
    let shared = lock(&repository, LockMode::Shared).await.unwrap();
    let error = lock(&open(&server), LockMode::Exclusive).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("cannot acquire exclusive lock: repository is locked")
    );
    assert!(server.object(&format!("team/a/{}", shared.key())).is_some());
    shared.release().await.unwrap();
}

/// P26, P27: each kind of server is detected, and a demanded feature is not replaced by waits.
#[tokio::test]
async fn the_level_is_probed() {
    for (conditions, level) in [
        (Conditions::Honoured, ConditionLevel::Deletes),
        (Conditions::OnPutOnly, ConditionLevel::Writes),
        (Conditions::Ignored, ConditionLevel::Nothing),
        (Conditions::Refused(501), ConditionLevel::Nothing),
    ] {
        let server = S3Server::start();
        server.set_conditions(conditions);
        assert_eq!(open(&server).abilities().await.unwrap().level, level);
        let place = format!("s3://{BUCKET}").parse().unwrap();
        let strict = Options {
            demand: Demand::ConditionalWrites,
            ..options(&server)
        };
        let strict = Repository::open(place, strict).unwrap();
        match (level, lock(&strict, LockMode::Shared).await) {
            (ConditionLevel::Nothing, Err(error)) => assert_eq!(error.class(), Class::Unsupported),
            (_, Ok(guard)) => guard.release().await.unwrap(),
            (_, Err(error)) => panic!("{error}"),
        }
    }
}

/// P2 (shared lock keys), P5: names of originals, with `+` and `:`, are listed, read and removed.
#[tokio::test]
async fn names_with_plus_and_colon_are_locks() {
    let server = S3Server::start();
    let repository = open(&server);
    repository.abilities().await.unwrap();
    let key = "team/a/index/lock.shared/2026-03-07T14:30:00.5+05:30";
    let json = r#"{"operation":"backup","holder":"atlas-3 (pid 1)","acquired_at":"2026-03-07T14:30:00.5+05:30","expires_at":"2999-01-01T00:00:00Z","is_shared":true}"#;
    server.plant(key, json, Duration::ZERO);
    let error = lock(&repository, LockMode::Exclusive).await.unwrap_err();
    assert_eq!(error.class(), Class::Held);
    let view = repository.inspect().await.unwrap();
    let targets = view.locks.iter().map(BreakTarget::from).collect();
    let broken = repository.break_locks(targets, Insist::No).await.unwrap();
    assert_eq!(broken.removed.len(), 1, "{broken:?}");
    assert!(server.object(key).is_none());
}

/// P22 (evidence of staleness), P23 (live holder, wrong clock), K45: the age is the store's `Date`
/// minus its `Last-Modified`, whatever our clock shows.
#[tokio::test]
async fn age_is_by_the_stores_clock() {
    let server = S3Server::start();
    let repository = open(&server);
    repository.abilities().await.unwrap();
    let json = r#"{"operation":"prune","holder":"x","acquired_at":"2020-01-01T00:00:00Z","expires_at":"2020-01-01T00:01:00Z"}"#;
    server.plant("team/a/index/lock.exclusive", json, Duration::ZERO);
    let error = lock(&repository, LockMode::Exclusive).await.unwrap_err();
    assert_eq!(
        error.class(),
        Class::Held,
        "expired, but written a moment ago"
    );
    server.clock().stand_at_ms(server.clock().now_ms() + 61_000);
    lock(&repository, LockMode::Exclusive)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// P25: a missing bucket is not free, and neither is a failing server.
#[tokio::test]
async fn what_cannot_be_asked_is_not_free() {
    let server = S3Server::start();
    let repository = open(&server);
    repository.abilities().await.unwrap();
    server.plan(FaultPlan::on(FaultKind::Get, Fault::Refuse(503)).always());
    assert_eq!(
        lock(&repository, LockMode::Shared)
            .await
            .unwrap_err()
            .class(),
        Class::Io
    );
    server.heal();
    server.plan(FaultPlan::on(FaultKind::Get, Fault::Refuse(403)).always());
    assert_eq!(
        lock(&repository, LockMode::Shared)
            .await
            .unwrap_err()
            .class(),
        Class::Io
    );
    server.heal();
    lock(&repository, LockMode::Shared)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// P29: a create whose response was lost is recognized as ours.
#[tokio::test]
async fn a_lost_answer_does_not_lose_the_lock() {
    let server = S3Server::start();
    let repository = open(&server);
    repository.abilities().await.unwrap();
    server.plan(
        FaultPlan::on(FaultKind::Put, Fault::LoseAnswer)
            .key("lock.exclusive")
            .times(1),
    );
    let guard = lock(&repository, LockMode::Exclusive).await.unwrap();
    server.plan(
        FaultPlan::on(FaultKind::Delete, Fault::LoseAnswer)
            .key("lock.exclusive")
            .times(1),
    );
    guard.release().await.unwrap();
    assert!(server.object("team/a/index/lock.exclusive").is_none());
}
