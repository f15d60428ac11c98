//! Leases in real time. These tests take as long as the shortest allowed lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_store::HolderBlock;
use tenure_store::internal::Codec;
use tenure_store::internal::{BoxFuture, Store};
use tenure_store::internal::{Directory, ProbeAccess};
use tenure_store::internal::{OpResult, StoreOp};
use tenure_store::{
    LockMode, LockPurpose, LockSettings, Loss, Options, OtherClients, Repository, RepositoryAddress,
};

/// The shortest lease: it may be relied on for 24 s.
fn settings() -> LockSettings {
    LockSettings {
        ttl: Duration::from_secs(30),
        refresh: Duration::from_secs(5),
        company: OtherClients::TenureOnly,
        ..LockSettings::default()
    }
}

/// A store that answers everything except a refresh.
struct StalledStore(Directory);

impl Store for StalledStore {
    fn perform(&self, op: StoreOp) -> BoxFuture<'_, OpResult> {
        match op {
            StoreOp::Renew(..) => Box::pin(std::future::pending()),
            op => self.0.perform(op),
        }
    }

    fn block(&self) -> HolderBlock {
        self.0.block()
    }
}

/// P32: the loss is reported when the lease is used up, even if every request hangs and none fails.
/// A revival that hangs does not bring the lock back.
#[tokio::test]
async fn the_signal_comes_while_a_request_hangs() {
    let temp = tempfile::tempdir().unwrap();
    let store = Directory::open(temp.path(), Codec::plain(), ProbeAccess::Write).unwrap();
    let place = RepositoryAddress::Directory(temp.path().into());
    let repository = Repository::on(place, Arc::new(StalledStore(store)), settings());
    let start = Instant::now();
    let guard = repository
        .lock(LockPurpose::new(LockMode::Exclusive, "prune"))
        .await
        .unwrap();
    assert!(guard.valid_for() <= Duration::from_secs(24));
    assert_eq!(guard.lost().await, Loss::Lapsed);
    let took = start.elapsed();
    // Not before the lease is used up, but before another client could acquire the lock.
    assert!((24..30).contains(&took.as_secs()), "{took:?}");
    assert_eq!(guard.valid_for(), Duration::ZERO);
    guard.check().await.unwrap_err();
    // The record is still ours, so a release removes it.
    guard.release().await.unwrap();
}

/// A blocked executor does not lose the lock: the runtime thread refreshes it.
#[test]
fn a_blocked_executor_does_not_lose_the_lock() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let temp = tempfile::tempdir().unwrap();
        let options = Options {
            settings: settings(),
            ..Options::default()
        };
        let place = RepositoryAddress::Directory(temp.path().into());
        let repository = Repository::open(place, options).unwrap();
        let guard = repository
            .lock(LockPurpose::new(LockMode::Exclusive, "prune"))
            .await
            .unwrap();
        std::thread::sleep(Duration::from_secs(26));
        assert_eq!(guard.loss(), None);
        assert!(guard.valid_for() > Duration::from_secs(15));
        guard.release().await.unwrap();
    });
}
