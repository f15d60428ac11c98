//! Reviving a lapsed lock (P34).

use super::super::Procedure;
use super::super::fake_store::FakeStore;
use super::super::{
    HoldProcedure, HoldStatus, LossCause, OpResult, ProcedureStep, Released, StoreOp,
};
use super::{MODES, release, seconds};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode};
use crate::time::BootTime;

/// Lets `hold` lapse without a word, as a machine that sleeps does.
fn sleep(fake: &mut FakeStore, hold: &mut HoldProcedure) {
    fake.pass(seconds(3600));
    hold.tick(fake.now);
    assert!(matches!(hold.status(), HoldStatus::Lapsed { .. }));
}

fn revive(fake: &mut FakeStore, hold: &mut HoldProcedure) {
    hold.revive();
    hold.take_notices();
    while hold.take_notices().is_empty() && matches!(hold.status(), HoldStatus::Lapsed { .. }) {
        assert_eq!(fake.step(hold), ProcedureStep::Going);
    }
}

/// P34: a lock that nobody touched comes back, by a write first and a look afterwards, with a
/// number above every one given out meanwhile.
#[test]
fn a_lapsed_lock_comes_back_if_nobody_came() {
    for level in [ConditionLevel::Writes, ConditionLevel::Deletes] {
        for mode in MODES {
            let mut fake = FakeStore::new(level);
            let mut hold = fake.hold(mode, "amy");
            let first = hold.fence();
            sleep(&mut fake, &mut hold);
            fake.log.clear();
            revive(&mut fake, &mut hold);
            assert_eq!(
                *hold.status(),
                HoldStatus::Held,
                "{level:?} {mode:?}: {:?}",
                fake.log
            );
            assert!(
                fake.log[0].starts_with("renew"),
                "the write comes first: {:?}",
                fake.log
            );
            assert!(hold.fence() > first);
            assert!(hold.valid_until() > fake.now.boot);
            assert_eq!(release(&mut fake, hold), Released::Done);
        }
    }
}

/// P34: an order that comes while a revived lock settles does not shorten the wait.
#[test]
fn settling_is_not_cut_short() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut hold = fake.hold(LockMode::Shared, "amy");
    sleep(&mut fake, &mut hold);
    hold.revive();
    let until = loop {
        match hold.next(fake.now) {
            StoreOp::WaitUntil(until) => break until,
            op => {
                let answer = fake.perform(op);
                assert_eq!(hold.answer(answer, fake.now), ProcedureStep::Going);
            }
        }
    };
    assert!(until > fake.now.boot);
    hold.check();
    assert_eq!(hold.next(fake.now), StoreOp::WaitUntil(until));
    assert_eq!(
        hold.answer(OpResult::Waited, fake.now),
        ProcedureStep::Going
    );
    assert_eq!(
        hold.next(fake.now),
        StoreOp::WaitUntil(until),
        "answered too early"
    );
    assert!(matches!(hold.status(), HoldStatus::Lapsed { .. }));
}

/// P34: the version alone proves nothing to a shared holder: an exclusive one passed it by.
#[test]
fn a_lapsed_shared_lock_does_not_come_back_beside_an_exclusive_one() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut amy = fake.hold(LockMode::Shared, "amy");
    let record = fake.objects[&amy.own().key].clone();
    sleep(&mut fake, &mut amy);
    let _bob = fake.hold(LockMode::Exclusive, "bob");
    // Bob swept it; put it back to show that the look decides, not the version.
    fake.objects.insert(amy.own().key.clone(), record);
    revive(&mut fake, &mut amy);
    assert!(
        matches!(amy.status(), HoldStatus::Lost(LossCause::Intruder(_))),
        "{:?}",
        amy.status()
    );
    assert_eq!(fake.locks(), [&ObjectKey::Exclusive], "her record must go");
}

/// P34: an exclusive lock does not come back over shared ones that passed it by.
#[test]
fn a_lapsed_exclusive_lock_does_not_come_back_beside_a_shared_one() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut amy = fake.hold(LockMode::Exclusive, "amy");
    sleep(&mut fake, &mut amy);
    let bob = fake.hold(LockMode::Shared, "bob");
    revive(&mut fake, &mut amy);
    assert!(
        matches!(amy.status(), HoldStatus::Lost(LossCause::Intruder(_))),
        "{:?}",
        amy.status()
    );
    assert_eq!(fake.locks(), [&bob.own().key]);
}

/// P34: replaced or removed is gone for good, and so is everything without conditional writes.
#[test]
fn a_lapsed_lock_that_was_taken_is_lost() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut amy = fake.hold(LockMode::Exclusive, "amy");
    sleep(&mut fake, &mut amy);
    let _bob = fake.hold(LockMode::Exclusive, "bob");
    revive(&mut fake, &mut amy);
    assert!(matches!(
        amy.status(),
        HoldStatus::Lost(LossCause::Overwritten(_))
    ));
    assert_eq!(fake.holder(&ObjectKey::Exclusive), Some("bob (pid 1)"));

    let mut fake = FakeStore::new(ConditionLevel::Nothing);
    let mut amy = fake.hold(LockMode::Exclusive, "amy");
    sleep(&mut fake, &mut amy);
    amy.revive();
    assert_eq!(amy.next(fake.now), StoreOp::WaitUntil(BootTime::NEVER));
    assert_eq!(*amy.status(), HoldStatus::Lost(LossCause::Expired));
}

/// P32, P34: an answer that comes after the lapse does not bring the lock back by itself.
#[test]
fn a_late_answer_revives_nothing() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut hold = fake.hold(LockMode::Exclusive, "amy");
    let op = hold.next(fake.now);
    assert!(matches!(op, StoreOp::Renew(..)));
    let answer = fake.perform(op);
    fake.pass(seconds(48));
    assert_eq!(hold.answer(answer, fake.now), ProcedureStep::Going);
    assert!(matches!(hold.status(), HoldStatus::Lapsed { .. }));
}
