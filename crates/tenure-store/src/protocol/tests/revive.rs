//! Revival of a lapsed lock (P34: revive a lapsed lease).

use super::super::Procedure;
use super::super::fake_store::FakeStore;
use super::super::{
    HoldProcedure, HoldStatus, LossCause, OpResult, ProcedureStep, Released, StoreOp,
};
use super::{MODES, release, seconds};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode};
use crate::time::BootTime;

/// Lets `hold` lapse without any call, like a suspended machine.
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

/// P34: an untouched lock is revived by a write followed by a conflict check. It keeps its fencing
/// number if no other client has taken one.
#[test]
fn a_lapsed_lock_comes_back_if_no_other_client_acquired_it() {
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
            assert_eq!(hold.fence(), first);
            assert!(hold.valid_until() > fake.now.boot);
            assert_eq!(release(&mut fake, hold), Released::Done);
        }
    }
}

/// P34, P38: if another client has taken a fencing number in between, the revived lock gets one
/// above it, and the conflicts are checked again after the counter was read.
#[test]
fn a_revived_lock_is_fenced_above_all_that_came_in_between() {
    for level in [ConditionLevel::Writes, ConditionLevel::Deletes] {
        for mode in MODES {
            let mut fake = FakeStore::new(level);
            let mut amy = fake.hold(mode, "amy");
            let first = amy.fence();
            sleep(&mut fake, &mut amy);
            let bob = fake.hold(LockMode::Shared, "bob");
            let between = bob.fence();
            assert_eq!(release(&mut fake, bob), Released::Done);
            fake.log.clear();
            revive(&mut fake, &mut amy);
            let story = format!("{level:?} {mode:?}: {:#?}", fake.log);
            assert_eq!(*amy.status(), HoldStatus::Held, "{story}");
            assert!(first < between && between < amy.fence(), "{story}");
            let at = |text: &str| fake.log.iter().rposition(|line| line.starts_with(text));
            let looked = match mode {
                LockMode::Exclusive => at("list"),
                LockMode::Shared => at("read index/lock.exclusive"),
            };
            assert!(looked > at("read index/lock.tenure/fence"), "{story}");
        }
    }
}

/// P34: a command during the settle time of a revival does not shorten it.
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

/// P34: an unchanged version proves nothing to a shared holder: an exclusive one may have ignored
/// its stale record.
#[test]
fn a_lapsed_shared_lock_does_not_come_back_beside_an_exclusive_one() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut amy = fake.hold(LockMode::Shared, "amy");
    let record = fake.objects[&amy.own().key].clone();
    sleep(&mut fake, &mut amy);
    let _bob = fake.hold(LockMode::Exclusive, "bob");
    // Bob removed it. Put it back to show that the conflict check decides, not the version.
    fake.objects.insert(amy.own().key.clone(), record);
    revive(&mut fake, &mut amy);
    assert!(
        matches!(amy.status(), HoldStatus::Lost(LossCause::Intruder(_))),
        "{:?}",
        amy.status()
    );
    assert_eq!(fake.locks(), [&ObjectKey::Exclusive], "her record must go");
}

/// P34: an exclusive lock is not revived if shared holders have ignored its stale record.
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

/// P34: a replaced or removed lock is lost permanently, and so is every lapsed one without
/// conditional writes.
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

/// P32 (lease limit at 80 percent), P34: a response that arrives after the lapse does not revive
/// the lock.
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
