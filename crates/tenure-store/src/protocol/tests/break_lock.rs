//! Break: removes the shown locks and nothing else (P37: break repository locks).

use super::super::fake_store::{FakeStore, StoreFault};
use super::super::{BreakLocks, BreakTarget, Insist};
use super::{LEVELS, listing, shared_key};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode};

/// P37: only the shown versions are removed; changed locks stay and are reported.
#[test]
fn a_break_removes_what_was_shown() {
    for level in LEVELS {
        let mut fake = FakeStore::new(level);
        fake.original(ObjectKey::Exclusive, 1200, -600);
        fake.original(shared_key(), 0, 60);
        let locks = listing(&mut fake);
        let targets: Vec<BreakTarget> = locks.iter().map(BreakTarget::from).collect();
        assert_eq!(
            targets.iter().map(|target| target.live).collect::<Vec<_>>(),
            [false, true]
        );

        fake.original(shared_key(), 0, 90);
        let broken = fake.drive(BreakLocks::new(fake.terms(), targets.clone(), Insist::No));
        assert_eq!(broken.removed, [ObjectKey::Exclusive], "{level:?}");
        assert_eq!(broken.left.len(), 1);
        assert_eq!(broken.left[0].0, shared_key());
        assert_eq!(fake.locks(), [&shared_key()]);

        let broken = fake.drive(BreakLocks::new(fake.terms(), targets, Insist::Yes));
        assert_eq!(broken.removed, [shared_key()], "{level:?}");
        assert!(fake.locks().is_empty());
    }
}

/// C16 (details of codes and break), P37: breaking a live lock raises the fencing number, which
/// excludes its holder.
#[test]
fn breaking_a_live_lock_raises_the_fence() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let amy = fake.hold(LockMode::Exclusive, "amy");
    let targets: Vec<BreakTarget> = listing(&mut fake).iter().map(BreakTarget::from).collect();
    let broken = fake.drive(BreakLocks::new(fake.terms(), targets, Insist::Yes));
    assert!(broken.fence > amy.fence());
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    fake.original(ObjectKey::Exclusive, 1200, -600);
    let targets: Vec<BreakTarget> = listing(&mut fake).iter().map(BreakTarget::from).collect();
    let broken = fake.drive(BreakLocks::new(fake.terms(), targets, Insist::No));
    assert_eq!(broken.fence, None, "a dead one needs no fence");
}

/// P37: locks that could not be deleted are listed.
#[test]
fn a_break_that_fails_says_what_is_left() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    fake.original(ObjectKey::Exclusive, 1200, -600);
    let targets: Vec<BreakTarget> = listing(&mut fake).iter().map(BreakTarget::from).collect();
    fake.faults.push(("delete", StoreFault::Denied));
    let broken = fake.drive(BreakLocks::new(fake.terms(), targets, Insist::No));
    assert!(broken.removed.is_empty());
    assert_eq!(broken.left[0].0, ObjectKey::Exclusive);
}
