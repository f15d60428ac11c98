//! Fencing numbers grow, and each is given out once (P38 repository fence counter, K40 fence
//! counter file).

use super::super::fake_store::FakeStore;
use super::super::{AcquireRefusal, OpBody};
use super::{LEVELS, release};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode};
use tenure_files::Class;

/// P38: every acquisition gets a larger number; at level 0 shared holders only read it.
#[test]
fn fences_grow() {
    for level in LEVELS {
        let mut fake = FakeStore::new(level);
        let mut last = None;
        for mode in [
            LockMode::Exclusive,
            LockMode::Shared,
            LockMode::Exclusive,
            LockMode::Shared,
        ] {
            let hold = fake.hold(mode, "amy");
            match (level, mode) {
                (ConditionLevel::Nothing, LockMode::Shared) => assert_eq!(hold.fence(), last),
                _ => assert!(hold.fence() > last, "{level:?} {mode:?}"),
            }
            last = hold.fence();
            release(&mut fake, hold);
        }
    }
    let mut fake = FakeStore::new(ConditionLevel::Nothing);
    assert_eq!(
        fake.hold(LockMode::Shared, "amy").fence(),
        None,
        "no client counted"
    );
}

/// P38: two concurrent takers get different numbers, for the first number and for later ones.
#[test]
fn a_number_is_given_once() {
    for level in [ConditionLevel::Writes, ConditionLevel::Deletes] {
        for (counted, write) in [
            (None, "create index/lock.tenure/fence"),
            (Some(40), "replace index/lock.tenure/fence"),
        ] {
            let mut fake = FakeStore::new(level);
            if let Some(number) = counted {
                fake.store(ObjectKey::Fence, OpBody::Fence(number));
            }
            let other = Box::new(|fake: &mut FakeStore| {
                fake.store(ObjectKey::Fence, OpBody::Fence(41));
            });
            fake.hooks.push((write, other));
            let number = fake.hold(LockMode::Shared, "amy").fence();
            assert_eq!(number, Some(42), "{level:?}, {write}");
        }
    }
}

/// K40: a damaged counter is an error, never a restart from zero.
#[test]
fn a_damaged_counter_refuses() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    fake.original(ObjectKey::Fence, 0, 0);
    let refusal = fake.acquire(LockMode::Exclusive, "amy").unwrap_err();
    assert_eq!(refusal.class(), Class::Malformed);
    assert!(fake.locks().is_empty());
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    fake.store(ObjectKey::Fence, OpBody::Fence(u64::MAX));
    assert_eq!(
        fake.acquire(LockMode::Shared, "amy"),
        Err(AcquireRefusal::Fence)
    );
}
