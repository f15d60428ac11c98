//! The whole public API, with names of `tenure` only: a user needs none of the inner crates.
//!
//! Most of it has to compile only. Function pointers name the types of arguments and results.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::cmp::Ordering;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use tenure::testing::Script;
use tenure::{
    Across, Address, Algorithm, Blocker, BlockerKind, Broken, Builder, Busy, Capabilities,
    ChangeEvent, ChangeKind, Class, DataKey, Demand, Durability, Endpoint, Error, ExclusiveTuning,
    Fence, Fencing, FileHolding, FileTuning, Force, Guard, Guards, Hold, HoldEvent, HoldId, Holder,
    HolderLiveness, InputError, KeyError, Lease, Liveness, Lock, LockAll, LockState, LostCause,
    LostLock, MemoryName, Mode, Modes, Need, Order, Path, PathError, Policy, QueuedWaiter, Quiesce,
    Reclaim, Refusal, ReleaseRequest, RepositoryAddress, RepositoryTuning, Seal, Tenure, Tuning,
    Unavailable, Unsupported, UploadId, UploadIdError, Verdict, Wait, WatchStream, blocking,
};

type Outcome<T = ()> = Result<T, Error>;

#[test]
fn every_value_can_be_made_and_read_with_names_of_the_library() {
    let path: Path = "vol:/a/b".parse::<Address>().map(path_of).unwrap();
    let same: Result<Path, PathError> = Path::parse("vol:/a/b");
    assert_eq!(same.unwrap(), path);
    let id: Result<UploadId, UploadIdError> = UploadId::new("7");
    let upload = Address::Upload {
        dir: PathBuf::from("/srv/uploads"),
        id: id.unwrap(),
    };
    assert!(upload.is_file());
    let repository: RepositoryAddress = "repo:/mnt/backup".parse().unwrap();
    assert!(!Address::Repository(repository).is_file());
    let _: fn([u8; 32]) -> DataKey = DataKey::new;
    let _: fn(&std::path::Path) -> Result<DataKey, KeyError> = DataKey::from_file;
    let memory = Address::Memory(MemoryName::new("jobs/nightly").unwrap());
    assert_eq!(memory.lock_order(&memory.normalized()), Ordering::Equal);
    let nodes: Vec<Endpoint> = Endpoint::list("tenure://a:1,b:2").unwrap();
    assert_eq!((nodes[0].host(), nodes[1].port()), ("a", 2));
    assert!(!Endpoint::new("a", 1).is_loopback());
    assert_eq!(Fence::new(7).unwrap().get(), 7);
    assert_eq!(HoldId::new("x").as_str(), "x");
    assert!(Holder::here().pid.is_some());
    let lease = Lease::new(Lease::now(), Duration::from_secs(10));
    assert!(lease.renew_at() < lease.safe_until() && !lease.valid_for().is_zero());
    assert_eq!(lease.safe_until() - lease.sent, Lease::usable(lease.ttl));
    let tenure = Tenure::default();
    let can: Capabilities = tenure.capabilities("mem:a").unwrap();
    assert!(can.allows(Mode::SharedTree) && can.meets(Need::FairOrder));
    let _: (Modes, Order, Fencing) = (can.modes, can.order, can.fence);
    let _: (Liveness, Across) = (can.liveness, can.across);
    let _ = [
        Class::Held.name(),
        Mode::Shared.name(),
        Algorithm::RecursiveRw.name(),
    ];
    let _ = [ChangeKind::Granted.name()];
}

fn path_of(place: Address) -> Path {
    match place {
        Address::Daemon { path, .. } => path,
        other => panic!("{other} is not on the daemon"),
    }
}

/// Everything that returns a plain value: its whole type can be written down.
#[test]
fn every_type_in_a_signature_has_a_name_in_the_library() {
    let _: fn(&Guard) -> &Address = Guard::place;
    let _: fn(&Guard) -> Mode = Guard::mode;
    let _: fn(&Guard) -> Option<Fence> = Guard::fence;
    let _: fn(&Guard) -> Option<Duration> = Guard::valid_for;
    let _: fn(&Guard) -> Option<Lease> = Guard::lease;
    let _: fn(&Guard) -> String = Guard::owner;
    let _: fn(&Guard) -> Option<&FileHolding> = Guard::file;
    let _: fn(&Guard) -> Outcome = Guard::still_held;
    let _: fn(&Guard) -> Option<ReleaseRequest> = Guard::requested;
    let _: fn(Guards) -> Vec<Guard> = Guards::into_vec;
    let _: fn(&Guards) -> Option<Duration> = Guards::valid_for;
    let _: fn(&blocking::Guard) -> &Address = blocking::Guard::place;
    let _: fn(&blocking::Guard) -> Mode = blocking::Guard::mode;
    let _: fn(&blocking::Guard) -> Option<Fence> = blocking::Guard::fence;
    let _: fn(&blocking::Guard) -> Option<Duration> = blocking::Guard::valid_for;
    let _: fn(&blocking::Guard) -> Option<Lease> = blocking::Guard::lease;
    let _: fn(&blocking::Guard) -> String = blocking::Guard::owner;
    let _: fn(&blocking::Guard) -> Outcome = blocking::Guard::check;
    let _: fn(&blocking::Guard) -> Outcome = blocking::Guard::still_held;
    let _: fn(&blocking::Guard) -> LostLock = blocking::Guard::lost;
    let _: fn(&blocking::Guard) -> Option<ReleaseRequest> = blocking::Guard::requested;
    let _: fn(&blocking::Guard) -> ReleaseRequest = blocking::Guard::release_requested;
    let _: fn(blocking::Guard) -> Outcome = blocking::Guard::release;
    let _: fn(blocking::Guard) -> Outcome<Hold> = blocking::Guard::into_hold;
    let _: fn(blocking::Guard) -> Guard = blocking::Guard::into_async;
    let _: fn(blocking::Lock) -> Outcome<blocking::Guard> = blocking::Lock::acquire;
    let _: fn(blocking::LockAll) -> Outcome<Vec<blocking::Guard>> = blocking::LockAll::acquire;
    let _: fn(Lock) -> blocking::Lock = Lock::blocking;
    let _: fn(LockAll) -> blocking::LockAll = LockAll::blocking;
    let _: fn(&Lock) -> &Address = Lock::place;
    let _: fn(&Hold) -> &Address = Hold::place;
    let _: fn(&Hold) -> Mode = Hold::mode;
    let _: fn(&Hold) -> Option<Duration> = Hold::ttl;
    let _: fn(&Hold) -> Option<Fence> = Hold::fence;
    let _: fn(&Error) -> Class = Error::class;
    let _: fn(&Error) -> Option<&Busy> = Error::busy;
    let _: fn() -> Outcome<Tenure> = Tenure::from_env;
    let _: fn() -> Outcome<Builder> = Builder::from_env;
    let _: fn() -> Builder = Tenure::builder;
    let _: fn(Builder, Tuning) -> Builder = Builder::tuning;
    let _: fn(Builder) -> Outcome<Tenure> = Builder::build;
    let _: fn(&Script, LostCause, &str) -> usize = Script::lose;
    let _: fn(&Script, &str) -> Outcome<blocking::Guard> = Script::occupy;
    let _ = |busy: &Busy| -> Option<(Holder, Verdict, BlockerKind)> {
        let blocker: &Blocker = busy.blocker.as_ref()?;
        let holder = blocker.holder.clone();
        Some((holder, blocker.verdict.clone(), blocker.standing))
    };
    let _ = |error: Error| match error {
        Error::Input(error) => drop::<InputError>(error),
        Error::Refused(error) => drop::<Box<Refusal>>(error),
        Error::Unavailable(error) => drop::<Box<Unavailable>>(error),
        Error::Unsupported(error) => drop::<Box<Unsupported>>(error),
        _ => (),
    };
    let _ = |event: &HoldEvent| matches!(event, HoldEvent::Renewed(_));
    let _ = |liveness: HolderLiveness| liveness;
}

/// The builders, async and blocking.
#[test]
fn a_lock_is_built_with_names_of_the_library() {
    let tenure = Tenure::builder()
        .nodes([Endpoint::new("127.0.0.1", 50051)])
        .name("api")
        .tuning(Tuning {
            files: FileTuning {
                durability: Durability::Fast,
                reclaim: Reclaim::default(),
                ..FileTuning::default()
            },
            exclusive: ExclusiveTuning {
                quiesce: Quiesce::Skip,
                ..ExclusiveTuning::default()
            },
            repository: RepositoryTuning {
                seal: Seal::default(),
                demand: Demand::default(),
                ..RepositoryTuning::default()
            },
        })
        .build()
        .unwrap()
        .session("worker-7");
    let guard = tenure
        .lock("mem:api/one")
        .unwrap()
        .mode(Mode::Shared)
        .exclusive()
        .wait(Duration::from_secs(1))
        .wait_limit(Wait::No)
        .purpose("a test")
        .label("build", "4711")
        .fenced()
        .require(Need::Fence)
        .on_wait(|busy: &Busy| drop(busy.to_string()))
        .blocking()
        .acquire()
        .unwrap();
    guard.listen(|event: &HoldEvent| drop(event.clone()));
    guard.release().unwrap();
    let both = tenure.lock_all(["mem:api/one", "mem:api/two"]).unwrap();
    let guards = both.shared().no_wait().blocking().acquire().unwrap();
    assert_eq!(guards.len(), 2);
    drop(guards);
    let sum = tenure::blocking::lock("mem:api/three")
        .unwrap()
        .with(|guard| guard.check().map(|()| 42));
    assert_eq!(sum.unwrap(), 42);
}

/// Compiles only: the calls that need a daemon, and the async forms.
#[expect(dead_code, reason = "the types are what is tested")]
async fn every_call(tenure: Tenure, place: Address, hold: Hold) -> Outcome {
    let lock: Lock = tenure.lock(&place)?;
    let all: LockAll = lock.clone().also("mem:b")?.shared_tree().no_wait();
    let lock = lock.permit(NonZeroU32::MIN).ttl(Duration::from_secs(9));
    let guard: Guard = lock.ask().refuse_deadlock().follows(1).acquire().await?;
    let guards: Guards = all.acquire().await?;
    let _: Option<&Guard> = guards.iter().next();
    guards.check().await?;
    let _: LostLock = guards.lost().await;
    guards.release().await?;
    guard.check().await?;
    guard.listen(|event: &HoldEvent| drop(event.clone()));
    let _: LostLock = guard.lost().await;
    let _: ReleaseRequest = guard.release_requested().await;
    let _: Hold = guard.into_hold().await?;
    tenure::lock("mem:c")?.acquire().await?.release().await?;
    tenure::with("mem:c", async |guard: &Guard| guard.check().await).await?;
    let state: LockState = tenure.inspect(&place).await?;
    let _: Option<&QueuedWaiter> = state.known_waiters().first();
    let _: Vec<LockState> = tenure.list(&place).await?;
    let _: Vec<LockState> = tenure.list_all().await?;
    let _: Vec<Blocker> = tenure.ask(&place, Some("reason")).await?;
    let id = HoldId::new("x");
    let _: Broken = tenure
        .break_hold(&place, Some(&id), Force::No, "reason")
        .await?;
    let mut watch: WatchStream = tenure.watch(&place).await?;
    let _: Option<Outcome<ChangeEvent>> = watch.next().await;
    tenure.renew_hold(&hold).await?;
    tenure.release_hold(&hold).await?;
    tenure.set_policy("vol", Algorithm::RecursiveRw).await?;
    let _: Policy = tenure.policy("vol").await?;
    tenure.remove_policy("vol").await?;
    let _: Vec<Policy> = tenure.policies().await?;
    let _: String = tenure.health().await?;
    tenure.health_of(&[]).await.map(drop)
}
