//! Reviving a lapsed lock (P34).

use super::super::Steps;
use super::super::world::World;
use super::super::{Answer, Cause, Hold, Op, Progress, Released, Status};
use super::{MODES, release, seconds};
use crate::key::Key;
use crate::terms::{Level, Mode};
use crate::time::Boot;

/// Lets `hold` lapse without a word, as a machine that sleeps does.
fn sleep(world: &mut World, hold: &mut Hold) {
    world.pass(seconds(3600));
    hold.tick(world.now);
    assert!(matches!(hold.status(), Status::Lapsed { .. }));
}

fn revive(world: &mut World, hold: &mut Hold) {
    hold.revive();
    hold.take_notices();
    while hold.take_notices().is_empty() && matches!(hold.status(), Status::Lapsed { .. }) {
        assert_eq!(world.step(hold), Progress::Going);
    }
}

/// P34: a lock that nobody touched comes back, by a write first and a look afterwards, with a
/// number above every one given out meanwhile.
#[test]
fn a_lapsed_lock_comes_back_if_nobody_came() {
    for level in [Level::Writes, Level::Deletes] {
        for mode in MODES {
            let mut world = World::new(level);
            let mut hold = world.hold(mode, "amy");
            let first = hold.fence();
            sleep(&mut world, &mut hold);
            world.log.clear();
            revive(&mut world, &mut hold);
            assert_eq!(
                *hold.status(),
                Status::Held,
                "{level:?} {mode:?}: {:?}",
                world.log
            );
            assert!(
                world.log[0].starts_with("renew"),
                "the write comes first: {:?}",
                world.log
            );
            assert!(hold.fence() > first);
            assert!(hold.valid_until() > world.now.boot);
            assert_eq!(release(&mut world, hold), Released::Done);
        }
    }
}

/// P34: an order that comes while a revived lock settles does not shorten the wait.
#[test]
fn settling_is_not_cut_short() {
    let mut world = World::new(Level::Deletes);
    let mut hold = world.hold(Mode::Shared, "amy");
    sleep(&mut world, &mut hold);
    hold.revive();
    let until = loop {
        match hold.next(world.now) {
            Op::WaitUntil(until) => break until,
            op => {
                let answer = world.perform(op);
                assert_eq!(hold.answer(answer, world.now), Progress::Going);
            }
        }
    };
    assert!(until > world.now.boot);
    hold.check();
    assert_eq!(hold.next(world.now), Op::WaitUntil(until));
    assert_eq!(hold.answer(Answer::Waited, world.now), Progress::Going);
    assert_eq!(
        hold.next(world.now),
        Op::WaitUntil(until),
        "answered too early"
    );
    assert!(matches!(hold.status(), Status::Lapsed { .. }));
}

/// P34: the version alone proves nothing to a shared holder: an exclusive one passed it by.
#[test]
fn a_lapsed_shared_lock_does_not_come_back_beside_an_exclusive_one() {
    let mut world = World::new(Level::Deletes);
    let mut amy = world.hold(Mode::Shared, "amy");
    let record = world.objects[&amy.own().key].clone();
    sleep(&mut world, &mut amy);
    let _bob = world.hold(Mode::Exclusive, "bob");
    // Bob swept it; put it back to show that the look decides, not the version.
    world.objects.insert(amy.own().key.clone(), record);
    revive(&mut world, &mut amy);
    assert!(
        matches!(amy.status(), Status::Lost(Cause::Intruder(_))),
        "{:?}",
        amy.status()
    );
    assert_eq!(world.locks(), [&Key::Exclusive], "her record must go");
}

/// P34: an exclusive lock does not come back over shared ones that passed it by.
#[test]
fn a_lapsed_exclusive_lock_does_not_come_back_beside_a_shared_one() {
    let mut world = World::new(Level::Deletes);
    let mut amy = world.hold(Mode::Exclusive, "amy");
    sleep(&mut world, &mut amy);
    let bob = world.hold(Mode::Shared, "bob");
    revive(&mut world, &mut amy);
    assert!(
        matches!(amy.status(), Status::Lost(Cause::Intruder(_))),
        "{:?}",
        amy.status()
    );
    assert_eq!(world.locks(), [&bob.own().key]);
}

/// P34: replaced or removed is gone for good, and so is everything without conditional writes.
#[test]
fn a_lapsed_lock_that_was_taken_is_lost() {
    let mut world = World::new(Level::Deletes);
    let mut amy = world.hold(Mode::Exclusive, "amy");
    sleep(&mut world, &mut amy);
    let _bob = world.hold(Mode::Exclusive, "bob");
    revive(&mut world, &mut amy);
    assert!(matches!(amy.status(), Status::Lost(Cause::Overwritten(_))));
    assert_eq!(world.holder(&Key::Exclusive), Some("bob (pid 1)"));

    let mut world = World::new(Level::Nothing);
    let mut amy = world.hold(Mode::Exclusive, "amy");
    sleep(&mut world, &mut amy);
    amy.revive();
    assert_eq!(amy.next(world.now), Op::WaitUntil(Boot::NEVER));
    assert_eq!(*amy.status(), Status::Lost(Cause::Expired));
}

/// P32, P34: an answer that comes after the lapse does not bring the lock back by itself.
#[test]
fn a_late_answer_revives_nothing() {
    let mut world = World::new(Level::Deletes);
    let mut hold = world.hold(Mode::Exclusive, "amy");
    let op = hold.next(world.now);
    assert!(matches!(op, Op::Renew(..)));
    let answer = world.perform(op);
    world.pass(seconds(48));
    assert_eq!(hold.answer(answer, world.now), Progress::Going);
    assert!(matches!(hold.status(), Status::Lapsed { .. }));
}
