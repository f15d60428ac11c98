//! Holding: refreshes, lapses, intruders, and giving back (P31–P33, P35).

use super::super::Steps;
use super::super::world::{Fault, World};
use super::super::{Cause, Hold, Notice, Op, Progress, Refusal, Released, Status};
use super::{LEVELS, MODES, release, seconds, shared_key};
use crate::judge::Content;
use crate::key::Key;
use crate::terms::{Level, Mode, OnConflict, Settings};
use crate::time::Boot;
use std::time::Duration;

/// P31, P33: refreshes come every 30 s, looks half way between them, and the lock lives on.
#[test]
fn a_holder_refreshes_and_looks() {
    for level in LEVELS {
        for mode in MODES {
            let mut world = World::new(level);
            let mut hold = world.hold(mode, "amy");
            let start = world.now.boot;
            world.log.clear();
            world.live(&mut hold, start + seconds(185));
            assert_eq!(
                *hold.status(),
                Status::Held,
                "{level:?} {mode:?}: {:?}",
                world.log
            );
            let own = hold.own().key.path();
            let write = if level == Level::Nothing {
                "put"
            } else {
                "renew"
            };
            let refreshes = world
                .log
                .iter()
                .filter(|op| **op == format!("{write} {own}"))
                .count();
            // One every 30 s, and one at once if there is a fencing number to write down.
            let at_once = usize::from(hold.fence().is_some());
            assert_eq!(refreshes, 6 + at_once, "{:?}", world.log);
            let looks = match mode {
                Mode::Shared => world
                    .log
                    .iter()
                    .filter(|op| op.ends_with("exclusive"))
                    .count(),
                Mode::Exclusive => world.log.iter().filter(|op| op.starts_with("list")).count(),
            };
            assert!((5..=7).contains(&looks), "{looks}: {:?}", world.log);
        }
    }
}

/// K39, P38: the number is in the record soon after it was taken, and the length does not change.
#[test]
fn the_fence_gets_into_the_record() {
    let mut world = World::new(Level::Deletes);
    let mut hold = world.hold(Mode::Exclusive, "amy");
    let length = |world: &World| match &world.objects[&Key::Exclusive].content {
        Content::Record(record) => (record.to_json().len(), record.fence()),
        other => panic!("{other:?}"),
    };
    let (before, none) = length(&world);
    assert_eq!((none, hold.fence()), (None, Some(1)));
    let soon = world.now.boot + seconds(1);
    world.live(&mut hold, soon);
    assert_eq!(length(&world), (before, Some(1)));
}

/// P31: somebody else's record at our key, or none, ends it at the next refresh.
#[test]
fn a_lock_that_was_taken_away_is_noticed() {
    for level in LEVELS {
        for mode in MODES {
            for replaced in [true, false] {
                let mut world = World::new(level);
                let mut hold = world.hold(mode, "amy");
                let key = hold.own().key.clone();
                if replaced {
                    world.original(key.clone(), 0, 600);
                } else {
                    world.objects.remove(&key);
                }
                let soon = world.now.boot + seconds(1);
                world.now.boot = hold.valid_until().min(soon);
                assert_eq!(world.step(&mut hold), Progress::Going);
                while *hold.status() == Status::Held {
                    assert_eq!(world.step(&mut hold), Progress::Going);
                }
                let lost = matches!(
                    (hold.status(), replaced),
                    (Status::Lost(Cause::Overwritten(_)), true)
                        | (Status::Lost(Cause::Removed), false)
                );
                assert!(lost, "{level:?} {mode:?}: {:?}", hold.status());
                let end = release(&mut world, hold);
                assert!(matches!(end, Released::WasLost(_)), "{end:?}");
                assert_eq!(world.objects.contains_key(&key), replaced, "his must stay");
            }
        }
    }
}

/// P32: 48 s after the last successful refresh was sent, the lock has lapsed.
#[test]
fn a_lease_lapses_by_the_clock() {
    let mut world = World::new(Level::Deletes);
    let mut hold = world.hold(Mode::Exclusive, "amy");
    let safe = hold.valid_until();
    world.now.boot = Boot(safe.0 - Duration::from_millis(1));
    hold.tick(world.now);
    assert_eq!(*hold.status(), Status::Held);
    world.now.boot = safe;
    hold.tick(world.now);
    assert_eq!(*hold.status(), Status::Lapsed { since: safe });
}

/// P32: the lease counts from the sending, not from the answer.
#[test]
fn a_slow_answer_does_not_lengthen_the_lease() {
    let mut world = World::new(Level::Deletes);
    let mut hold = world.hold(Mode::Exclusive, "amy");
    let op = hold.next(world.now);
    assert!(matches!(op, Op::Renew(..)));
    let sent = world.now.boot;
    world.pass(seconds(20));
    let answer = world.perform(op);
    assert_eq!(hold.answer(answer, world.now), Progress::Going);
    assert_eq!(hold.valid_until(), sent + seconds(48));
}

/// P32: failures are repeated every 2 s; 48 s of them end it, however few or many they were.
#[test]
fn failed_refreshes_are_repeated_until_the_lease_ends() {
    let mut world = World::new(Level::Deletes);
    let mut hold = world.hold(Mode::Exclusive, "amy");
    let start = world.now.boot;
    world.live(&mut hold, start + seconds(1));
    world.log.clear();
    for _ in 0..100 {
        world.faults.push(("renew", Fault::Lost));
    }
    let safe = hold.valid_until();
    world.live(&mut hold, safe);
    assert!(matches!(hold.status(), Status::Lapsed { .. }));
    let tries = world
        .log
        .iter()
        .filter(|op| op.starts_with("renew"))
        .count();
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
    // And nothing more is sent: the work has stopped, others may come.
    assert_eq!(hold.next(world.now), Op::WaitUntil(Boot::NEVER));
}

/// P31: a refresh that landed although its answer was lost does not make us lose the lock.
#[test]
fn a_refresh_with_a_lost_answer_is_recognised_as_ours() {
    let mut world = World::new(Level::Deletes);
    let mut hold = world.hold(Mode::Exclusive, "amy");
    world.faults.push(("renew", Fault::AnswerLost));
    let later = world.now.boot + seconds(10);
    world.live(&mut hold, later);
    assert_eq!(*hold.status(), Status::Held);
    assert_eq!(hold.take_notices().last(), Some(&Notice::Refreshed));
    assert_eq!(release(&mut world, hold), Released::Done);
}

/// P33: an intruder counts only if a second look 10 s later finds the same one.
#[test]
fn an_intruder_counts_if_it_stays() {
    for (mode, stays) in [
        (Mode::Exclusive, true),
        (Mode::Exclusive, false),
        (Mode::Shared, true),
        (Mode::Shared, false),
    ] {
        let mut world = World::new(Level::Deletes);
        let mut hold = world.hold(mode, "amy");
        let start = world.now.boot;
        world.live(&mut hold, start + seconds(10));
        let key = match mode {
            Mode::Exclusive => shared_key(),
            Mode::Shared => Key::Exclusive,
        };
        world.original(key.clone(), 0, 600);
        world.live(&mut hold, start + seconds(20));
        assert_eq!(*hold.status(), Status::Held, "one look is not enough");
        if !stays {
            world.objects.remove(&key);
        }
        world.live(&mut hold, start + seconds(29));
        let warned = hold
            .take_notices()
            .iter()
            .any(|n| matches!(n, Notice::Intruder(_)));
        match (mode, stays) {
            (Mode::Exclusive, true) => {
                assert!(matches!(hold.status(), Status::Lost(Cause::Intruder(_))));
                // Our record must go, and his must stay.
                assert_eq!(release(&mut world, hold), Released::Done);
                assert_eq!(world.locks(), [&key]);
            }
            (Mode::Shared, true) => {
                assert_eq!(*hold.status(), Status::Held);
                assert!(warned, "a shared holder warns");
            }
            (_, false) => {
                assert_eq!(*hold.status(), Status::Held);
                assert!(!warned);
            }
        }
    }
}

/// P33: with `--strict` a shared holder stops, too.
#[test]
fn a_strict_shared_holder_stops_for_an_intruder() {
    let mut world = World::new(Level::Deletes);
    let acquired = world.acquire(Mode::Shared, "amy").unwrap();
    let settings = Settings {
        on_conflict: OnConflict::Stop,
        ..Settings::default()
    };
    let mut hold = Hold::new(settings.terms(Level::Deletes).unwrap(), acquired);
    let start = world.now.boot;
    world.original(Key::Exclusive, 0, 600);
    world.live(&mut hold, start + seconds(29));
    assert!(matches!(hold.status(), Status::Lost(Cause::Intruder(_))));
}

/// P35: a release whose answer was lost is looked after, and one that fails says so.
#[test]
fn a_release_is_certain_or_says_so() {
    for level in LEVELS {
        let mut world = World::new(level);
        let hold = world.hold(Mode::Exclusive, "amy");
        world.faults.push(("delete", Fault::AnswerLost));
        assert_eq!(release(&mut world, hold), Released::Done, "{level:?}");

        let mut world = World::new(level);
        let hold = world.hold(Mode::Exclusive, "amy");
        for _ in 0..100 {
            world.faults.push(("", Fault::Lost));
        }
        assert!(
            matches!(release(&mut world, hold), Released::Failed(_)),
            "{level:?}"
        );
    }
}

/// P35 where deletes have no condition: who is late renews first, so his delete cannot hit somebody
/// who took the stale lock over between his look and his delete.
#[test]
fn a_lapsed_holder_does_not_delete_its_successor() {
    for taken_before in ["renew", "delete"] {
        let mut world = World::new(Level::Writes);
        let mut hold = world.hold(Mode::Exclusive, "amy");
        let soon = world.now.boot + seconds(1);
        world.live(&mut hold, soon);
        world.pass(seconds(300));
        world.log.clear();
        let successor = Box::new(
            |world: &mut World| match world.acquire(Mode::Exclusive, "bob") {
                Ok(_) | Err(Refusal::Held(_)) => {}
                Err(other) => panic!("{other:?}"),
            },
        );
        world.hooks.push((taken_before, successor));
        let end = release(&mut world, hold);
        if taken_before == "renew" {
            let overwritten = matches!(end, Released::Compromised(Cause::Overwritten(_)));
            assert!(overwritten, "{end:?}: {:?}", world.log);
            assert_eq!(world.holder(&Key::Exclusive), Some("bob (pid 1)"));
        } else {
            // Renewed, it is in force: nobody gets in between that and the delete.
            assert_eq!(end, Released::Done, "{:?}", world.log);
            assert!(world.locks().is_empty());
        }
    }
}

/// P35: whoever is in time needs no renewal, nor does a shared lock: its key is nobody else's.
#[test]
fn only_a_late_delete_is_renewed_first() {
    for (mode, late, renewals) in [
        (Mode::Exclusive, false, 0),
        (Mode::Exclusive, true, 1),
        (Mode::Shared, true, 0),
    ] {
        let mut world = World::new(Level::Writes);
        let mut hold = world.hold(mode, "amy");
        let soon = world.now.boot + seconds(1);
        world.live(&mut hold, soon);
        if late {
            world.now.boot = hold.valid_until();
        }
        world.log.clear();
        assert_eq!(release(&mut world, hold), Released::Done);
        let sent = world.log.iter().filter(|op| op.starts_with("renew"));
        assert_eq!(sent.count(), renewals, "{mode:?} {late}: {:?}", world.log);
    }
}

/// P35: not ours or absent: everything is left, and it is reported.
#[test]
fn a_release_of_what_is_not_ours_touches_nothing() {
    for level in LEVELS {
        let mut world = World::new(level);
        let hold = world.hold(Mode::Exclusive, "amy");
        world.original(Key::Exclusive, 0, 60);
        let end = release(&mut world, hold);
        assert!(
            matches!(end, Released::Compromised(Cause::Overwritten(_))),
            "{end:?}"
        );
        assert_eq!(world.holder(&Key::Exclusive), Some("atlas-3 (pid 40217)"));

        let hold = {
            world.objects.clear();
            world.hold(Mode::Exclusive, "amy")
        };
        world.objects.remove(&Key::Exclusive);
        assert_eq!(
            release(&mut world, hold),
            Released::Compromised(Cause::Removed)
        );
    }
}

/// K34: asking the store gives its word, not ours.
#[test]
fn a_check_asks_the_store() {
    let mut world = World::new(Level::Deletes);
    let mut hold = world.hold(Mode::Exclusive, "amy");
    hold.check();
    assert_eq!(world.step(&mut hold), Progress::Going);
    assert_eq!(hold.take_notices(), [Notice::StillOurs]);
    world.objects.clear();
    hold.check();
    assert_eq!(world.step(&mut hold), Progress::Going);
    assert_eq!(*hold.status(), Status::Lost(Cause::Removed));
}
