//! Hold: refreshes, lapse, intruders and release (P31–P33, P35 repository release).

use super::super::Procedure;
use super::super::fake_store::{FakeStore, StoreFault};
use super::super::{
    AcquireRefusal, HoldProcedure, HoldStatus, LossCause, Notice, ProcedureStep, Released, StoreOp,
};
use super::{LEVELS, MODES, release, seconds, shared_key};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode, LockSettings, OnConflict};
use crate::staleness::ObjectContent;
use crate::time::BootTime;
use std::time::Duration;

/// P31, P33: a refresh every 30 s, a conflict check half way between; the lock stays held.
#[test]
fn a_holder_refreshes_and_looks() {
    for level in LEVELS {
        for mode in MODES {
            let mut fake = FakeStore::new(level);
            let mut hold = fake.hold(mode, "amy");
            let start = fake.now.boot;
            fake.log.clear();
            fake.live(&mut hold, start + seconds(185));
            assert_eq!(
                *hold.status(),
                HoldStatus::Held,
                "{level:?} {mode:?}: {:?}",
                fake.log
            );
            let own = hold.own().key.path();
            let write = if level == ConditionLevel::Nothing {
                "put"
            } else {
                "renew"
            };
            let refreshes = fake
                .log
                .iter()
                .filter(|op| **op == format!("{write} {own}"))
                .count();
            // One every 30 s, and one at once if there is a fencing number to write.
            let at_once = usize::from(hold.fence().is_some());
            assert_eq!(refreshes, 6 + at_once, "{:?}", fake.log);
            let looks = match mode {
                LockMode::Shared => fake
                    .log
                    .iter()
                    .filter(|op| op.ends_with("exclusive"))
                    .count(),
                LockMode::Exclusive => fake.log.iter().filter(|op| op.starts_with("list")).count(),
            };
            assert!((5..=7).contains(&looks), "{looks}: {:?}", fake.log);
        }
    }
}

/// K39 (fencing number per acquisition), P38: the fencing number is written into the record soon,
/// and the length stays the same.
#[test]
fn the_fence_gets_into_the_record() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut hold = fake.hold(LockMode::Exclusive, "amy");
    let length = |fake: &FakeStore| match &fake.objects[&ObjectKey::Exclusive].content {
        ObjectContent::Record(record) => (record.to_json().len(), record.fence()),
        other => panic!("{other:?}"),
    };
    let (before, none) = length(&fake);
    assert_eq!((none, hold.fence()), (None, Some(1)));
    let soon = fake.now.boot + seconds(1);
    fake.live(&mut hold, soon);
    assert_eq!(length(&fake), (before, Some(1)));
}

/// P31: if our record is replaced or removed, the next refresh reports the loss.
#[test]
fn a_lock_that_was_taken_away_is_noticed() {
    for level in LEVELS {
        for mode in MODES {
            for replaced in [true, false] {
                let mut fake = FakeStore::new(level);
                let mut hold = fake.hold(mode, "amy");
                let key = hold.own().key.clone();
                if replaced {
                    fake.original(key.clone(), 0, 600);
                } else {
                    fake.objects.remove(&key);
                }
                let soon = fake.now.boot + seconds(1);
                fake.now.boot = hold.valid_until().min(soon);
                assert_eq!(fake.step(&mut hold), ProcedureStep::Going);
                while *hold.status() == HoldStatus::Held {
                    assert_eq!(fake.step(&mut hold), ProcedureStep::Going);
                }
                let lost = matches!(
                    (hold.status(), replaced),
                    (HoldStatus::Lost(LossCause::Overwritten(_)), true)
                        | (HoldStatus::Lost(LossCause::Removed), false)
                );
                assert!(lost, "{level:?} {mode:?}: {:?}", hold.status());
                let end = release(&mut fake, hold);
                assert!(matches!(end, Released::WasLost(_)), "{end:?}");
                assert_eq!(fake.objects.contains_key(&key), replaced, "his must stay");
            }
        }
    }
}

/// P32: 48 s after the last successful refresh was sent, the lock has lapsed.
#[test]
fn a_lease_lapses_by_the_clock() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut hold = fake.hold(LockMode::Exclusive, "amy");
    let safe = hold.valid_until();
    fake.now.boot = BootTime(safe.0 - Duration::from_millis(1));
    hold.tick(fake.now);
    assert_eq!(*hold.status(), HoldStatus::Held);
    fake.now.boot = safe;
    hold.tick(fake.now);
    assert_eq!(*hold.status(), HoldStatus::Lapsed { since: safe });
}

/// P32: the lease counts from the sending, not from the response.
#[test]
fn a_slow_answer_does_not_lengthen_the_lease() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut hold = fake.hold(LockMode::Exclusive, "amy");
    let op = hold.next(fake.now);
    assert!(matches!(op, StoreOp::Renew(..)));
    let sent = fake.now.boot;
    fake.pass(seconds(20));
    let answer = fake.perform(op);
    assert_eq!(hold.answer(answer, fake.now), ProcedureStep::Going);
    assert_eq!(hold.valid_until(), sent + seconds(48));
}

/// P32: a failed refresh is repeated every 2 s; after 48 s of failures the lock lapses.
#[test]
fn failed_refreshes_are_repeated_until_the_lease_ends() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut hold = fake.hold(LockMode::Exclusive, "amy");
    let start = fake.now.boot;
    fake.live(&mut hold, start + seconds(1));
    fake.log.clear();
    for _ in 0..100 {
        fake.faults.push(("renew", StoreFault::Lost));
    }
    let safe = hold.valid_until();
    fake.live(&mut hold, safe);
    assert!(matches!(hold.status(), HoldStatus::Lapsed { .. }));
    let tries = fake.log.iter().filter(|op| op.starts_with("renew")).count();
    assert!(
        (8..=10).contains(&tries),
        "18 s at one every 2 s, not {tries}"
    );
    let failed = hold.take_notices();
    assert!(
        failed
            .iter()
            .any(|notice| matches!(notice, Notice::RefreshFailed(_)))
    );
    // No further request is sent: the work has stopped, and other clients may acquire the lock.
    assert_eq!(hold.next(fake.now), StoreOp::WaitUntil(BootTime::NEVER));
}

/// P31: a refresh that took effect although its response was lost does not lose the lock.
#[test]
fn a_refresh_with_a_lost_answer_is_recognised_as_ours() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut hold = fake.hold(LockMode::Exclusive, "amy");
    fake.faults.push(("renew", StoreFault::AnswerLost));
    let later = fake.now.boot + seconds(10);
    fake.live(&mut hold, later);
    assert_eq!(*hold.status(), HoldStatus::Held);
    assert_eq!(hold.take_notices().last(), Some(&Notice::Refreshed));
    assert_eq!(release(&mut fake, hold), Released::Done);
}

/// P33: an intruder counts only if a second check 10 s later finds the same one.
#[test]
fn an_intruder_counts_if_it_stays() {
    for (mode, stays) in [
        (LockMode::Exclusive, true),
        (LockMode::Exclusive, false),
        (LockMode::Shared, true),
        (LockMode::Shared, false),
    ] {
        let mut fake = FakeStore::new(ConditionLevel::Deletes);
        let mut hold = fake.hold(mode, "amy");
        let start = fake.now.boot;
        fake.live(&mut hold, start + seconds(10));
        let key = match mode {
            LockMode::Exclusive => shared_key(),
            LockMode::Shared => ObjectKey::Exclusive,
        };
        fake.original(key.clone(), 0, 600);
        fake.live(&mut hold, start + seconds(20));
        assert_eq!(*hold.status(), HoldStatus::Held, "one look is not enough");
        if !stays {
            fake.objects.remove(&key);
        }
        fake.live(&mut hold, start + seconds(29));
        let warned = hold
            .take_notices()
            .iter()
            .any(|n| matches!(n, Notice::Intruder(_)));
        match (mode, stays) {
            (LockMode::Exclusive, true) => {
                assert!(matches!(
                    hold.status(),
                    HoldStatus::Lost(LossCause::Intruder(_))
                ));
                // Our record must be removed, and the intruder's must stay.
                assert_eq!(release(&mut fake, hold), Released::Done);
                assert_eq!(fake.locks(), [&key]);
            }
            (LockMode::Shared, true) => {
                assert_eq!(*hold.status(), HoldStatus::Held);
                assert!(warned, "a shared holder warns");
            }
            (_, false) => {
                assert_eq!(*hold.status(), HoldStatus::Held);
                assert!(!warned);
            }
        }
    }
}

/// P33: with `--strict` a shared holder stops too.
#[test]
fn a_strict_shared_holder_stops_for_an_intruder() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let acquired = fake.acquire(LockMode::Shared, "amy").unwrap();
    let settings = LockSettings {
        on_conflict: OnConflict::Stop,
        ..LockSettings::default()
    };
    let mut hold = HoldProcedure::new(settings.terms(ConditionLevel::Deletes).unwrap(), acquired);
    let start = fake.now.boot;
    fake.original(ObjectKey::Exclusive, 0, 600);
    fake.live(&mut hold, start + seconds(29));
    assert!(matches!(
        hold.status(),
        HoldStatus::Lost(LossCause::Intruder(_))
    ));
}

/// P35: a release whose response was lost is verified; one that fails is reported.
#[test]
fn a_release_is_certain_or_says_so() {
    for level in LEVELS {
        let mut fake = FakeStore::new(level);
        let hold = fake.hold(LockMode::Exclusive, "amy");
        fake.faults.push(("delete", StoreFault::AnswerLost));
        assert_eq!(release(&mut fake, hold), Released::Done, "{level:?}");

        let mut fake = FakeStore::new(level);
        let hold = fake.hold(LockMode::Exclusive, "amy");
        for _ in 0..100 {
            fake.faults.push(("", StoreFault::Lost));
        }
        assert!(
            matches!(release(&mut fake, hold), Released::Failed(_)),
            "{level:?}"
        );
    }
}

/// P35 without conditional deletes: a late holder renews first, so its delete cannot remove the
/// lock of a client that took the stale lock over between its read and its delete.
#[test]
fn a_lapsed_holder_does_not_delete_its_successor() {
    for taken_before in ["renew", "delete"] {
        let mut fake = FakeStore::new(ConditionLevel::Writes);
        let mut hold = fake.hold(LockMode::Exclusive, "amy");
        let soon = fake.now.boot + seconds(1);
        fake.live(&mut hold, soon);
        fake.pass(seconds(300));
        fake.log.clear();
        let successor =
            Box::new(
                |fake: &mut FakeStore| match fake.acquire(LockMode::Exclusive, "bob") {
                    Ok(_) | Err(AcquireRefusal::Held(_)) => {}
                    Err(other) => panic!("{other:?}"),
                },
            );
        fake.hooks.push((taken_before, successor));
        let end = release(&mut fake, hold);
        if taken_before == "renew" {
            let overwritten = matches!(end, Released::Compromised(LossCause::Overwritten(_)));
            assert!(overwritten, "{end:?}: {:?}", fake.log);
            assert_eq!(fake.holder(&ObjectKey::Exclusive), Some("bob (pid 1)"));
        } else {
            // The renewed lock is valid, so no client can acquire it before the delete.
            assert_eq!(end, Released::Done, "{:?}", fake.log);
            assert!(fake.locks().is_empty());
        }
    }
}

/// P35: a release in time needs no renewal. Neither does a shared lock, whose key no other client
/// uses.
#[test]
fn only_a_late_delete_is_renewed_first() {
    for (mode, late, renewals) in [
        (LockMode::Exclusive, false, 0),
        (LockMode::Exclusive, true, 1),
        (LockMode::Shared, true, 0),
    ] {
        let mut fake = FakeStore::new(ConditionLevel::Writes);
        let mut hold = fake.hold(mode, "amy");
        let soon = fake.now.boot + seconds(1);
        fake.live(&mut hold, soon);
        if late {
            fake.now.boot = hold.valid_until();
        }
        fake.log.clear();
        assert_eq!(release(&mut fake, hold), Released::Done);
        let sent = fake.log.iter().filter(|op| op.starts_with("renew"));
        assert_eq!(sent.count(), renewals, "{mode:?} {late}: {:?}", fake.log);
    }
}

/// P35: if the record is absent or not ours, nothing is removed, and the loss is reported.
#[test]
fn a_release_of_what_is_not_ours_touches_nothing() {
    for level in LEVELS {
        let mut fake = FakeStore::new(level);
        let hold = fake.hold(LockMode::Exclusive, "amy");
        fake.original(ObjectKey::Exclusive, 0, 60);
        let end = release(&mut fake, hold);
        assert!(
            matches!(end, Released::Compromised(LossCause::Overwritten(_))),
            "{end:?}"
        );
        assert_eq!(
            fake.holder(&ObjectKey::Exclusive),
            Some("atlas-3 (pid 40217)")
        );

        let hold = {
            fake.objects.clear();
            fake.hold(LockMode::Exclusive, "amy")
        };
        fake.objects.remove(&ObjectKey::Exclusive);
        assert_eq!(
            release(&mut fake, hold),
            Released::Compromised(LossCause::Removed)
        );
    }
}

/// K34: a check asks the store.
#[test]
fn a_check_asks_the_store() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let mut hold = fake.hold(LockMode::Exclusive, "amy");
    hold.check();
    assert_eq!(fake.step(&mut hold), ProcedureStep::Going);
    assert_eq!(hold.take_notices(), [Notice::StillOurs]);
    fake.objects.clear();
    hold.check();
    while *hold.status() == HoldStatus::Held {
        assert_eq!(fake.step(&mut hold), ProcedureStep::Going);
    }
    assert_eq!(*hold.status(), HoldStatus::Lost(LossCause::Removed));
}
