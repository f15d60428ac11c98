//! Locks in a directory: real files, real clocks, real `flock`.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_store::LockRecord;
use tenure_store::internal::Codec;
use tenure_store::internal::{ConditionFailure, OpBody, OpResult, StoreOp};
use tenure_store::internal::{Directory, ProbeAccess};
use tenure_store::{
    Accept, Class, DataKey, Error, FollowedProcess, LockMode, LockPurpose, LockSettings, Loss,
    ObjectKey, Options, OtherClients, Repository, RepositoryAddress, RepositoryGuard, Seal, Ticket,
    WaitLimit,
};
use tenure_store::{BreakTarget, Insist};
use tenure_store::{HeldReason, Staleness};

struct DirectoryFixture {
    temp: tempfile::TempDir,
}

/// Settings without settle time, because there are no other clients.
fn quick() -> Options {
    let settings = LockSettings {
        company: OtherClients::TenureOnly,
        ..LockSettings::default()
    };
    Options {
        settings,
        ..Options::default()
    }
}

impl DirectoryFixture {
    fn new() -> DirectoryFixture {
        DirectoryFixture {
            temp: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.temp.path().join(key)
    }

    fn repository(&self) -> Repository {
        self.open(quick())
    }

    fn open(&self, options: Options) -> Repository {
        Repository::open(
            RepositoryAddress::Directory(self.temp.path().into()),
            options,
        )
        .unwrap()
    }

    /// Writes bytes where an original would, `age` seconds old.
    fn put(&self, key: &str, bytes: &[u8], age: u64) {
        let path = self.path(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age))
            .unwrap();
    }

    fn original(&self, key: &str, age: u64, left: i64) {
        let now = jiff::Timestamp::now();
        let stamp = |seconds: i64| (now + jiff::SignedDuration::from_secs(seconds)).to_string();
        let record = LockRecord {
            operation: "prune".into(),
            holder: "atlas-3 (pid 40217)".into(),
            acquired_at: stamp(-i64::try_from(age).unwrap()),
            expires_at: stamp(left),
            ..LockRecord::default()
        };
        self.put(key, record.to_json().as_bytes(), age);
    }

    fn record(&self, key: &str) -> LockRecord {
        LockRecord::parse(&std::fs::read(self.path(key)).unwrap()).unwrap()
    }

    fn names(&self, dir: &str) -> Vec<String> {
        match std::fs::read_dir(self.path(dir)) {
            Ok(entries) => entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect(),
            Err(_) => Vec::new(),
        }
    }
}

const EXCLUSIVE: &str = "index/lock.exclusive";

async fn lock(repository: &Repository, mode: LockMode) -> Result<RepositoryGuard, Error> {
    repository.lock(LockPurpose::new(mode, "prune")).await
}

async fn class(repository: &Repository, mode: LockMode) -> Class {
    lock(repository, mode).await.unwrap_err().class()
}

/// P4 (directory stores), P7 (repository record fields), P35: the record is where originals read
/// it, as readable as theirs, and a release removes it.
#[tokio::test]
async fn a_lock_is_a_file_that_originals_can_read() {
    let place = DirectoryFixture::new();
    let guard = lock(&place.repository(), LockMode::Exclusive)
        .await
        .unwrap();
    let record = place.record(EXCLUSIVE);
    assert_eq!(record.operation, "prune");
    assert!(
        record
            .holder
            .ends_with(&format!("(pid {})", std::process::id()))
    );
    assert!(!record.is_shared);
    assert_eq!(
        record.acquired_at.len(),
        "2026-03-07T09:00:00.482913000Z".len()
    );
    let mode = std::fs::metadata(place.path(EXCLUSIVE))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644);
    let mode = std::fs::metadata(place.path("index"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o755);
    guard.release().await.unwrap();
    assert_eq!(place.names("index"), ["lock.tenure"]);
}

/// P18 (conflicting modes), P30: shared locks coexist and block an exclusive one.
#[tokio::test]
async fn shared_locks_have_a_file_each() {
    let place = DirectoryFixture::new();
    let repository = place.repository();
    let amy = lock(&repository, LockMode::Shared).await.unwrap();
    let bob = lock(&repository, LockMode::Shared).await.unwrap();
    assert_eq!(place.names("index/lock.shared").len(), 2);
    assert_eq!(class(&repository, LockMode::Exclusive).await, Class::Held);
    amy.release().await.unwrap();
    bob.release().await.unwrap();
    let cid = lock(&repository, LockMode::Exclusive).await.unwrap();
    assert_eq!(class(&repository, LockMode::Shared).await, Class::Held);
    assert_eq!(class(&repository, LockMode::Exclusive).await, Class::Held);
    cid.release().await.unwrap();
}

/// P38 (repository fence counter), K39: fencing numbers grow, and the number is written into the
/// record.
#[tokio::test]
async fn fences_grow_and_are_written_down() {
    let place = DirectoryFixture::new();
    let repository = place.repository();
    let mut last = 0;
    for _ in 0..3 {
        let guard = lock(&repository, LockMode::Exclusive).await.unwrap();
        let fence = guard.fence().unwrap();
        assert!(fence > last);
        last = fence;
        // Written in the background, right after the acquire.
        while place.record(EXCLUSIVE).fence() != Some(fence) {
            tokio::task::yield_now().await;
        }
        guard.release().await.unwrap();
    }
}

/// P31 (refresh the lease), K21: a refresh is written in place: same file, same length, later date.
#[test]
fn a_refresh_keeps_the_file() {
    let place = DirectoryFixture::new();
    let store = Directory::open(place.temp.path(), Codec::plain(), ProbeAccess::Write).unwrap();
    let mut record = LockRecord {
        expires_at: "2026-03-07T09:01:00.000000000Z".into(),
        ..LockRecord::default()
    };
    let create = StoreOp::Create(ObjectKey::Exclusive, OpBody::Record(record.clone()));
    let OpResult::Written(first) = store.perform_here(create) else {
        panic!("not created")
    };
    let before = std::fs::metadata(place.path(EXCLUSIVE)).unwrap();
    record.expires_at = "2026-03-07T09:01:30.000000000Z".into();
    let renew = |version: &_| {
        StoreOp::Renew(
            ObjectKey::Exclusive,
            OpBody::Record(record.clone()),
            Clone::clone(version),
        )
    };
    let OpResult::Written(second) = store.perform_here(renew(&first)) else {
        panic!("not renewed")
    };
    let after = std::fs::metadata(place.path(EXCLUSIVE)).unwrap();
    assert_eq!((before.ino(), before.len()), (after.ino(), after.len()));
    assert_eq!(place.record(EXCLUSIVE), record);
    assert_eq!(
        store.perform_here(renew(&first)),
        OpResult::Refused(ConditionFailure::Condition),
        "an old version"
    );
    // An original renames its own record over it: we must not change that one.
    place.original(EXCLUSIVE, 0, 60);
    std::fs::remove_file(place.path(EXCLUSIVE)).unwrap();
    place.original(EXCLUSIVE, 0, 60);
    let theirs = std::fs::read(place.path(EXCLUSIVE)).unwrap();
    assert_eq!(
        store.perform_here(renew(&second)),
        OpResult::Refused(ConditionFailure::Condition)
    );
    let delete = StoreOp::DeleteVersion(ObjectKey::Exclusive, second);
    assert_eq!(
        store.perform_here(delete),
        OpResult::Refused(ConditionFailure::Condition)
    );
    assert_eq!(std::fs::read(place.path(EXCLUSIVE)).unwrap(), theirs);
}

/// P22 (evidence of staleness), P26: a stale lock is taken over, a live one is not.
#[tokio::test]
async fn a_stale_lock_is_taken_over() {
    let place = DirectoryFixture::new();
    let repository = place.repository();
    place.original(EXCLUSIVE, 0, 60);
    assert_eq!(class(&repository, LockMode::Exclusive).await, Class::Held);
    place.original(EXCLUSIVE, 1200, -600);
    place.original("index/lock.shared/2026-03-07T09:00:00.482913Z", 1200, -600);
    let guard = lock(&repository, LockMode::Exclusive).await.unwrap();
    assert!(place.names("index/lock.shared").is_empty(), "swept");
    guard.release().await.unwrap();
}

/// K24: the record of a live process that keeps `flock` is not removed, however old it is.
#[tokio::test]
async fn a_paused_holder_of_this_machine_keeps_its_lock() {
    let place = DirectoryFixture::new();
    let store = Directory::open(place.temp.path(), Codec::plain(), ProbeAccess::Write).unwrap();
    let record = LockRecord {
        acquired_at: "2026-03-07T09:00:00Z".into(),
        expires_at: "2026-03-07T09:01:00Z".into(),
        tenure: Some(tenure_store::internal::Store::block(&store)),
        ..LockRecord::default()
    };
    let create = StoreOp::Create(ObjectKey::Exclusive, OpBody::Record(record));
    assert!(matches!(store.perform_here(create), OpResult::Written(_)));
    let file = std::fs::File::options()
        .write(true)
        .open(place.path(EXCLUSIVE))
        .unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600))
        .unwrap();
    let error = lock(&place.repository(), LockMode::Exclusive)
        .await
        .unwrap_err();
    assert_eq!(
        error.blocker().unwrap().verdict,
        Staleness::Held(HeldReason::Locked)
    );
    // When the process ends (here: its descriptor is closed), the `flock` ends too.
    drop(store);
    lock(&place.repository(), LockMode::Exclusive)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// K28 (open an existing record), section 8: an object that is not a regular file is not a lock,
/// and nothing is changed.
#[tokio::test]
async fn a_directory_at_the_key_refuses() {
    let place = DirectoryFixture::new();
    std::fs::create_dir_all(place.path(EXCLUSIVE)).unwrap();
    for mode in [LockMode::Exclusive, LockMode::Shared] {
        assert_eq!(class(&place.repository(), mode).await, Class::NotALock);
    }
    std::fs::remove_dir(place.path(EXCLUSIVE)).unwrap();
    std::os::unix::fs::symlink("elsewhere", place.path(EXCLUSIVE)).unwrap();
    assert_eq!(
        class(&place.repository(), LockMode::Exclusive).await,
        Class::NotALock
    );
}

/// K30: a file that cannot be a record is never removed.
#[tokio::test]
async fn a_file_that_is_no_record_stays() {
    let place = DirectoryFixture::new();
    place.put(EXCLUSIVE, &vec![b'x'; 2 << 20], 86_400);
    assert_eq!(
        class(&place.repository(), LockMode::Exclusive).await,
        Class::NotALock
    );
    assert_eq!(
        std::fs::metadata(place.path(EXCLUSIVE)).unwrap().len(),
        2 << 20
    );
    // A file that is only too long is judged by its age (P13 repository record size limit, P24
    // unparsable repository records).
    place.put(EXCLUSIVE, &vec![b'x'; 70_000], 10);
    assert_eq!(
        class(&place.repository(), LockMode::Exclusive).await,
        Class::Unreadable
    );
    place.put(EXCLUSIVE, &vec![b'x'; 70_000], 300);
    lock(&place.repository(), LockMode::Exclusive)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// P25: a missing repository is not free.
#[tokio::test]
async fn a_missing_repository_is_not_free() {
    let gone = DirectoryFixture::new();
    let repository = gone.repository();
    let path = gone.temp.path().to_owned();
    drop(gone);
    assert_eq!(class(&repository, LockMode::Exclusive).await, Class::Io);
    let Err(error) = Repository::open(RepositoryAddress::Directory(path), Options::default())
    else {
        panic!("opened what is not there");
    };
    assert_eq!(error.class(), Class::NotFound);
}

/// P33 (check for conflicts while holding), P37 (break repository locks), K34: a live lock is
/// broken by name although its holder keeps `flock` on it, and the holder notices at the next
/// check.
#[tokio::test]
async fn a_lock_that_was_broken_is_lost() {
    let place = DirectoryFixture::new();
    let guard = lock(&place.repository(), LockMode::Exclusive)
        .await
        .unwrap();
    guard.check().await.unwrap();
    assert!(guard.valid_for() > Duration::from_secs(40));
    let repository = place.repository();
    let view = repository.inspect().await.unwrap();
    let targets: Vec<BreakTarget> = view.locks.iter().map(BreakTarget::from).collect();
    let broken = repository.break_locks(targets, Insist::Yes).await.unwrap();
    assert_eq!(broken.removed, [ObjectKey::Exclusive], "{broken:?}");
    assert!(broken.fence > guard.fence());
    let error = guard.check().await.unwrap_err();
    assert_eq!(error.class(), Class::Compromised);
    assert_eq!(guard.valid_for(), Duration::ZERO);
    assert!(matches!(guard.lost().await, Loss::For(_)));
    assert_eq!(
        guard.release().await.unwrap_err().class(),
        Class::Compromised
    );
}

/// K20: leftovers of a crash are removed when they are old enough; locks are not.
#[tokio::test]
async fn leftovers_are_cleaned() {
    let place = DirectoryFixture::new();
    let guard = lock(&place.repository(), LockMode::Shared).await.unwrap();
    let store = Directory::open(place.temp.path(), Codec::plain(), ProbeAccess::Write).unwrap();
    place.put("index/.lock.exclusive.dead-0123456789abcdef", b"{}", 3600);
    // Its change time is now, whatever its modification time: it is not old enough.
    assert!(store.clean().unwrap().is_empty());
    let view = place.repository().inspect().await.unwrap();
    assert_eq!(view.locks.len(), 1, "and it is no lock");
    guard.release().await.unwrap();
}

/// P37: stale locks are broken in the version that was shown.
#[tokio::test]
async fn stale_locks_are_broken() {
    let place = DirectoryFixture::new();
    place.original(EXCLUSIVE, 1200, -600);
    place.original("index/lock.shared/2026-03-07T09:00:00.482913Z", 0, 60);
    let repository = place.repository();
    let view = repository.inspect().await.unwrap();
    let stale = view
        .locks
        .iter()
        .filter(|lock| !lock.verdict.blocks())
        .map(BreakTarget::from)
        .collect();
    let broken = repository.break_locks(stale, Insist::No).await.unwrap();
    assert_eq!(broken.removed, [ObjectKey::Exclusive]);
    assert_eq!(place.names("index/lock.shared").len(), 1);
    let view = repository.inspect().await.unwrap();
    let all = view.locks.iter().map(BreakTarget::from).collect();
    let broken = repository.break_locks(all, Insist::Yes).await.unwrap();
    assert_eq!(broken.removed.len(), 1);
    assert!(broken.fence.is_some());
}

/// P42: inspection writes nothing, not even a directory.
#[tokio::test]
async fn looking_writes_nothing() {
    let place = DirectoryFixture::new();
    assert!(place.repository().inspect().await.unwrap().locks.is_empty());
    assert!(place.names("").is_empty());
}

/// P19: a waiter acquires the lock when it is released.
#[tokio::test]
async fn a_waiter_gets_it_when_it_is_given_back() {
    let place = DirectoryFixture::new();
    let repository = place.repository();
    let amy = lock(&repository, LockMode::Exclusive).await.unwrap();
    let (told, mut waiting) = tokio::sync::mpsc::unbounded_channel();
    let bob = tokio::spawn({
        let repository = repository.clone();
        async move {
            let mut want = LockPurpose::new(LockMode::Exclusive, "prune");
            want.wait_limit = WaitLimit::Forever;
            want.listener = Some(Arc::new(move |event: &tenure_store::LockEvent| {
                let _ = told.send(event.clone());
            }));
            repository.lock(want).await
        }
    });
    let event = waiting.recv().await;
    assert!(
        matches!(event, Some(tenure_store::LockEvent::Waiting(_))),
        "{event:?}"
    );
    amy.release().await.unwrap();
    bob.await.unwrap().unwrap().release().await.unwrap();
}

/// P19, K2: a waiter whose time ends gets a timeout error.
#[tokio::test]
async fn a_waiter_gives_up_at_its_deadline() {
    let place = DirectoryFixture::new();
    place.original(EXCLUSIVE, 0, 600);
    let mut want = LockPurpose::new(LockMode::Shared, "backup");
    want.wait_limit = WaitLimit::For(Duration::from_millis(50));
    let error = place.repository().lock(want).await.unwrap_err();
    assert_eq!(error.class(), Class::Timeout);
    assert!(
        error
            .to_string()
            .contains("repository is exclusively locked by atlas-3 (pid 40217)")
    );
}

/// P29: dropping the future of an acquire leaves nothing in the store.
#[tokio::test]
async fn a_dropped_acquire_leaves_nothing() {
    let place = DirectoryFixture::new();
    // It waits for the settle time of one second, with its record written.
    let repository = place.open(Options::default());
    let acquire = lock(&repository, LockMode::Exclusive);
    let seen = async {
        while !place.path(EXCLUSIVE).exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = acquire => panic!("it did not settle"),
        () = seen => {}
    }
    while place.path(EXCLUSIVE).exists() {
        tokio::task::yield_now().await;
    }
}

/// Dropping a guard releases the lock in the background.
#[tokio::test]
async fn a_dropped_guard_gives_back() {
    let place = DirectoryFixture::new();
    drop(lock(&place.repository(), LockMode::Shared).await.unwrap());
    while !place.names("index/lock.shared").is_empty() {
        tokio::task::yield_now().await;
    }
}

/// P12 (plain records in encrypted repositories), P24: sealed records hide the host; clients
/// without the key still see a lock.
#[tokio::test]
async fn a_sealed_lock_is_a_lock_without_the_key_too() {
    let place = DirectoryFixture::new();
    let sealed = Options {
        key: Some(DataKey::new([7; 32])),
        seal: Seal::Yes,
        ..quick()
    };
    let guard = lock(&place.open(sealed.clone()), LockMode::Exclusive)
        .await
        .unwrap();
    assert_eq!(std::fs::read(place.path(EXCLUSIVE)).unwrap()[0], 0x01);
    assert_eq!(
        class(&place.repository(), LockMode::Shared).await,
        Class::Unreadable
    );
    assert_eq!(
        class(&place.open(sealed.clone()), LockMode::Shared).await,
        Class::Held
    );
    guard.check().await.unwrap();
    guard.release().await.unwrap();
    // A ttl longer than clients without the key wait is refused.
    let settings = LockSettings {
        ttl: Duration::from_secs(300),
        ..LockSettings::default()
    };
    let long = Options { settings, ..sealed };
    let error = Repository::open(RepositoryAddress::Directory(place.temp.path().into()), long);
    assert_eq!(
        error.err().map(|error| error.class()),
        Some(Class::BadInput)
    );
}

/// C13: a lock that outlives its process is continued with its ticket, and with nothing else.
#[tokio::test]
async fn a_ticket_brings_a_lock_back() {
    let place = DirectoryFixture::new();
    let mut want = LockPurpose::new(LockMode::Exclusive, "prune");
    want.liveness = FollowedProcess::Lease;
    let guard = place.repository().lock(want).await.unwrap();
    let fence = guard.fence();
    let ticket = guard.into_ticket().await.unwrap();
    // The text has no fence: it may not be in the record yet, because the holder left at once.
    let ticket: Ticket = ticket.to_string().parse().unwrap();
    let ticket = ticket.with_fence(fence);
    assert_eq!(
        class(&place.repository(), LockMode::Shared).await,
        Class::Held
    );

    let again = place.repository().adopt(ticket.clone()).await.unwrap();
    assert_eq!(again.fence(), fence, "no other client has taken one");
    let ticket = again.into_ticket().await.unwrap();
    let other: Ticket = format!("index/lock.exclusive#{}", "0".repeat(32))
        .parse()
        .unwrap();
    let error = place.repository().release(other).await.unwrap_err();
    assert_eq!(error.class(), Class::NotHeld);
    place.repository().release(ticket).await.unwrap();
    assert!(!place.path(EXCLUSIVE).exists());
}

/// The blocking API needs no runtime.
#[test]
fn without_a_runtime() {
    use tenure_files::internal::block_on as wait;
    let place = DirectoryFixture::new();
    let guard = wait(lock(&place.repository(), LockMode::Exclusive)).unwrap();
    assert_eq!(
        wait(class(&place.repository(), LockMode::Shared)),
        Class::Held
    );
    wait(guard.release()).unwrap();
}

/// K40: the counter is incremented in place and never missing; a damaged one is refused.
#[tokio::test]
async fn the_counter_is_never_missing() {
    let place = DirectoryFixture::new();
    let repository = place.repository();
    lock(&repository, LockMode::Shared)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let path = place.path("index/lock.tenure/fence");
    let inode = std::fs::metadata(&path).unwrap().ino();
    let guards: Vec<_> = (0..8)
        .map(|_| {
            let repository = repository.clone();
            tokio::spawn(async move { lock(&repository, LockMode::Shared).await.unwrap() })
        })
        .collect();
    let mut fences = Vec::new();
    for guard in guards {
        fences.push(guard.await.unwrap().fence().unwrap());
    }
    fences.sort_unstable();
    assert_eq!(fences, (2..10).collect::<Vec<_>>(), "each number once");
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"X", 0).unwrap();
    assert_eq!(
        class(&place.repository(), LockMode::Shared).await,
        Class::Malformed
    );
}

/// P17 (lock per operation), P18: simultaneous starts, many rounds at once: never two exclusive
/// holders, never mixed modes.
#[tokio::test]
async fn simultaneous_starts_exclude_each_other() {
    async fn round(second: LockMode) -> (bool, bool) {
        let place = DirectoryFixture::new();
        let (amy, bob) = (place.repository(), place.repository());
        let (amy, bob) = tokio::join!(lock(&amy, LockMode::Exclusive), lock(&bob, second));
        (amy.is_ok(), bob.is_ok())
    }
    let rounds = (0..40).map(|number| {
        let second = if number % 2 == 0 {
            LockMode::Exclusive
        } else {
            LockMode::Shared
        };
        tokio::spawn(round(second))
    });
    let mut won = 0;
    for round in rounds.collect::<Vec<_>>() {
        let (amy, bob) = round.await.unwrap();
        assert!(!(amy && bob), "both hold");
        won += usize::from(amy) + usize::from(bob);
    }
    assert!(won > 0, "no process ever won");
}

/// P38, K40 (fence counter file): a counter in the spelling of a bucket, or longer than ours, is
/// raised, and is readable afterwards.
#[tokio::test]
async fn a_counter_in_another_spelling_is_raised() {
    for text in [
        "{\"fence\":5}".to_owned(),
        "{ \"fence\" : 5 }\n".to_owned(),
        format!("{{\"fence\":5,\"comment\":\"{}\"}}", "x".repeat(80)),
    ] {
        let place = DirectoryFixture::new();
        place.put("index/lock.tenure/fence", text.as_bytes(), 0);
        let repository = place.repository();
        for fence in [6, 7] {
            let guard = lock(&repository, LockMode::Exclusive).await.unwrap();
            assert_eq!(guard.fence(), Some(fence), "{text}");
            guard.release().await.unwrap();
        }
    }
}

/// C16 (details of codes and break): the id of a hold names the holder. It names neither the next
/// holder of the same key nor any holder of it.
#[tokio::test]
async fn the_id_of_a_hold_names_its_holder() {
    let place = DirectoryFixture::new();
    let repository = place.repository();
    let amy = lock(&repository, LockMode::Exclusive).await.unwrap();
    let id = amy.id();
    let seen = repository.inspect().await.unwrap();
    assert_eq!(seen.locks[0].id(), id);
    assert!(seen.locks[0].is_named(&id));
    assert!(
        !seen.locks[0].is_named(EXCLUSIVE),
        "any holder has this key"
    );
    amy.release().await.unwrap();
    let bob = lock(&repository, LockMode::Exclusive).await.unwrap();
    let seen = repository.inspect().await.unwrap();
    assert!(!seen.locks[0].is_named(&id), "bob is not amy");
    bob.release().await.unwrap();
    // An original has no token: the time of its acquisition tells it from the next one.
    place.original(EXCLUSIVE, 0, 60);
    let seen = repository.inspect().await.unwrap();
    assert!(seen.locks[0].id().starts_with(&format!("{EXCLUSIVE}#2")));
    assert!(!seen.locks[0].is_named(EXCLUSIVE));
    // A shared key is never used twice, so it names one holder.
    std::fs::remove_file(place.path(EXCLUSIVE)).unwrap();
    let cid = lock(&repository, LockMode::Shared).await.unwrap();
    let seen = repository.inspect().await.unwrap();
    assert!(seen.locks[0].is_named(&cid.id()) && seen.locks[0].is_named(&cid.key().path()));
    cid.release().await.unwrap();
}

/// P12 (plain records in encrypted repositories), P24: where sealed records are required, a plain
/// record is judged by its age only, whatever date it claims.
#[tokio::test]
async fn a_plain_record_cannot_block_for_years_where_sealing_is_required() {
    let place = DirectoryFixture::new();
    let options = |accept| Options {
        key: Some(DataKey::new([7; 32])),
        accept,
        ..quick()
    };
    place.original(EXCLUSIVE, 130, 1_000_000);
    let trusting = place.open(options(Accept::Any));
    assert_eq!(class(&trusting, LockMode::Exclusive).await, Class::Held);
    let strict = place.open(options(Accept::Sealed));
    let guard = lock(&strict, LockMode::Exclusive).await.unwrap();
    // Its own record is sealed, and it recognises it.
    assert_eq!(std::fs::read(place.path(EXCLUSIVE)).unwrap()[0], 0x01);
    guard.check().await.unwrap();
    guard.release().await.unwrap();
    place.original(EXCLUSIVE, 5, 1_000_000);
    let young = lock(&strict, LockMode::Exclusive).await.unwrap_err();
    assert_eq!(young.class(), Class::Unreadable);
    let no_key = Options {
        accept: Accept::Sealed,
        ..quick()
    };
    let address = RepositoryAddress::Directory(place.temp.path().into());
    let error = Repository::open(address, no_key).unwrap_err();
    assert_eq!(error.class(), Class::BadInput, "{error}");
}

/// C13 (holds for scripts), P34: a hold that is continued before another client takes a fencing
/// number keeps its own; afterwards it gets a larger one.
#[tokio::test]
async fn a_continued_hold_keeps_its_fence() {
    let place = DirectoryFixture::new();
    let repository = place.repository();
    let guard = lock(&repository, LockMode::Shared).await.unwrap();
    let first = guard.fence();
    // The process leaves at once: the number may not be in the record yet.
    let ticket = guard.into_ticket().await.unwrap();
    let text = ticket.to_string();
    let parsed: Ticket = text.parse().unwrap();
    let guard = repository.adopt(parsed.with_fence(first)).await.unwrap();
    assert_eq!(guard.fence(), first);
    let ticket = guard.into_ticket().await.unwrap();
    let other = lock(&repository, LockMode::Shared).await.unwrap();
    let guard = repository.adopt(ticket).await.unwrap();
    assert!(guard.fence() > other.fence() && other.fence() > first);
    guard.release().await.unwrap();
    other.release().await.unwrap();
}
