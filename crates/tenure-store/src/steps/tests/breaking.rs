//! Breaking: what was shown goes, and nothing else (P37).

use super::super::world::{Fault, World};
use super::super::{Break, Insist, Target};
use super::{LEVELS, shared_key, survey};
use crate::key::Key;
use crate::terms::{Level, Mode};

/// P37: only what was shown goes, by version; what changed stays and is named.
#[test]
fn a_break_removes_what_was_shown() {
    for level in LEVELS {
        let mut world = World::new(level);
        world.original(Key::Exclusive, 1200, -600);
        world.original(shared_key(), 0, 60);
        let locks = survey(&mut world);
        let targets: Vec<Target> = locks.iter().map(Target::from).collect();
        assert_eq!(
            targets.iter().map(|target| target.live).collect::<Vec<_>>(),
            [false, true]
        );

        world.original(shared_key(), 0, 90);
        let broken = world.drive(Break::new(world.terms(), targets.clone(), Insist::No));
        assert_eq!(broken.removed, [Key::Exclusive], "{level:?}");
        assert_eq!(broken.left.len(), 1);
        assert_eq!(broken.left[0].0, shared_key());
        assert_eq!(world.locks(), [&shared_key()]);

        let broken = world.drive(Break::new(world.terms(), targets, Insist::Yes));
        assert_eq!(broken.removed, [shared_key()], "{level:?}");
        assert!(world.locks().is_empty());
    }
}

/// C16, P37: whoever is broken alive is shut out by a higher number.
#[test]
fn breaking_a_live_lock_raises_the_fence() {
    let mut world = World::new(Level::Deletes);
    let amy = world.hold(Mode::Exclusive, "amy");
    let targets: Vec<Target> = survey(&mut world).iter().map(Target::from).collect();
    let broken = world.drive(Break::new(world.terms(), targets, Insist::Yes));
    assert!(broken.fence > amy.fence());
    let mut world = World::new(Level::Deletes);
    world.original(Key::Exclusive, 1200, -600);
    let targets: Vec<Target> = survey(&mut world).iter().map(Target::from).collect();
    let broken = world.drive(Break::new(world.terms(), targets, Insist::No));
    assert_eq!(broken.fence, None, "a dead one needs no fence");
}

/// P37: what could not be deleted is listed.
#[test]
fn a_break_that_fails_says_what_is_left() {
    let mut world = World::new(Level::Deletes);
    world.original(Key::Exclusive, 1200, -600);
    let targets: Vec<Target> = survey(&mut world).iter().map(Target::from).collect();
    world.faults.push(("delete", Fault::Denied));
    let broken = world.drive(Break::new(world.terms(), targets, Insist::No));
    assert!(broken.removed.is_empty());
    assert_eq!(broken.left[0].0, Key::Exclusive);
}
