//! Staleness: the effect of each kind of evidence (P20–P23, K45 age of files and objects).

use super::super::ListLocks;
use super::super::fake_store::FakeStore;
use super::{listing, seconds};
use crate::key::ObjectKey;
use crate::lock_terms::ConditionLevel;
use crate::record::HolderBlock;
use crate::staleness::{
    Evidence, HeldReason, Object, ObjectContent, Observations, ProcessLiveness, Staleness, Version,
};
use crate::time::BootTime;
use std::time::Duration;

fn verdict(fake: &mut FakeStore) -> Staleness {
    listing(fake).remove(0).verdict
}

/// P20, P21 (clock skew allowance), P22 (evidence of staleness) a: unexpired, within the skew, old
/// enough; each exactly at its limit.
#[test]
fn a_lock_is_stale_after_skew_and_ttl() {
    for (age, left, want) in [
        (30, 1, Staleness::Held(HeldReason::InForce)),
        (100, -9, Staleness::Held(HeldReason::WithinSkew)),
        (59, -11, Staleness::Held(HeldReason::YoungByStore)),
        (60, -11, Staleness::Stale(Evidence::Age(seconds(60)))),
    ] {
        let mut fake = FakeStore::new(ConditionLevel::Deletes);
        fake.original(ObjectKey::Exclusive, age, left);
        match (verdict(&mut fake), want) {
            // Every read of the fake store takes 10 ms.
            (Staleness::Stale(Evidence::Age(got)), Staleness::Stale(Evidence::Age(want))) => {
                assert!(got.abs_diff(want) < seconds(1));
            }
            (got, want) => assert_eq!(got, want, "age {age}, left {left}"),
        }
    }
}

/// P22: the ttl is that of the record.
#[test]
fn the_ttl_of_the_record_counts() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    fake.original(ObjectKey::Exclusive, 599, -100);
    let object = fake.objects.get_mut(&ObjectKey::Exclusive).unwrap();
    let ObjectContent::Record(record) = &mut object.content else {
        panic!("a record")
    };
    record.tenure = Some(HolderBlock {
        ttl: Some(600),
        ..Default::default()
    });
    assert_eq!(
        verdict(&mut fake),
        Staleness::Held(HeldReason::YoungByStore)
    );
    fake.pass(seconds(2));
    assert!(matches!(verdict(&mut fake), Staleness::Stale(_)));
}

/// P22 b: without the store's clock, an observation over a whole ttl is evidence; a shorter one is
/// not, and a change restarts it.
#[test]
fn watching_is_evidence() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    fake.original(ObjectKey::Exclusive, 0, -3600);
    fake.objects
        .get_mut(&ObjectKey::Exclusive)
        .unwrap()
        .modified = None;
    let mut observations = Observations::default();
    let mut look = |fake: &mut FakeStore| {
        let listing = ListLocks::all(fake.terms(), std::mem::take(&mut observations));
        let (mut view, seen) = fake.drive(listing).unwrap();
        observations = seen;
        view.locks.remove(0).verdict
    };
    assert_eq!(look(&mut fake), Staleness::Held(HeldReason::Unproven));
    fake.pass(seconds(59));
    assert_eq!(look(&mut fake), Staleness::Held(HeldReason::Unproven));
    fake.pass(seconds(2));
    assert!(matches!(
        look(&mut fake),
        Staleness::Stale(Evidence::Watched(_))
    ));
    fake.original(ObjectKey::Exclusive, 0, -3600);
    fake.objects
        .get_mut(&ObjectKey::Exclusive)
        .unwrap()
        .modified = None;
    assert_eq!(look(&mut fake), Staleness::Held(HeldReason::Unproven));
}

/// P22 b: the time before the first response and after the last request does not count as observed.
#[test]
fn a_pause_is_no_watching() {
    let at = |second| BootTime(seconds(second));
    let (key, version) = (ObjectKey::Exclusive, Version::tag("one"));
    let mut observations = Observations::default();
    let first = observations.note(&key, &version, at(0), at(100));
    let second = observations.note(&key, &version, at(130), at(900));
    assert_eq!((first, second), (Duration::ZERO, seconds(30)));
}

/// P22 c: a dead process is evidence; a live one that keeps `flock` is the opposite (K24: lock
/// before removal).
#[test]
fn a_dead_holder_is_evidence() {
    for (liveness, stale) in [
        (ProcessLiveness::Dead, true),
        (ProcessLiveness::Alive, false),
        (ProcessLiveness::Unknown, false),
    ] {
        let mut fake = FakeStore::new(ConditionLevel::Deletes);
        fake.original(ObjectKey::Exclusive, 20, -11);
        fake.objects
            .get_mut(&ObjectKey::Exclusive)
            .unwrap()
            .liveness = liveness;
        assert_eq!(
            verdict(&mut fake) == Staleness::Stale(Evidence::Dead),
            stale,
            "{liveness:?}"
        );
    }
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    fake.original(ObjectKey::Exclusive, 20, 5);
    fake.objects
        .get_mut(&ObjectKey::Exclusive)
        .unwrap()
        .liveness = ProcessLiveness::Dead;
    assert_eq!(
        verdict(&mut fake),
        Staleness::Held(HeldReason::InForce),
        "P20 comes first"
    );
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    fake.original(ObjectKey::Exclusive, 3600, -3500);
    fake.objects
        .get_mut(&ObjectKey::Exclusive)
        .unwrap()
        .liveness = ProcessLiveness::Locked;
    assert_eq!(verdict(&mut fake), Staleness::Held(HeldReason::Locked));
}

/// K45: if the store shows no clock, ours is used, and the skew is subtracted from the age.
#[test]
fn without_the_stores_clock_ours_counts_with_the_allowance() {
    let now = FakeStore::new(ConditionLevel::Deletes).now;
    let object = |age: u64| Object {
        content: ObjectContent::Fence(0),
        version: Default::default(),
        modified: Some(now.wall - seconds(age)),
        store_now: None,
        liveness: ProcessLiveness::Unknown,
    };
    assert_eq!(object(70).age(now, seconds(10)), Some(seconds(60)));
    // K46: a date in the future has no age.
    let ahead = Object {
        modified: Some(now.wall + seconds(3600)),
        ..object(0)
    };
    assert_eq!(ahead.age(now, seconds(10)), Some(Duration::ZERO));
}
