//! Fencing numbers grow and are given once (P38, K40).

use super::super::world::World;
use super::super::{Body, Refusal};
use super::{LEVELS, release};
use crate::key::Key;
use crate::terms::{Level, Mode};
use tenure_files::Class;

/// P38: every acquisition gets a larger number; without conditions shared holders only read it.
#[test]
fn fences_grow() {
    for level in LEVELS {
        let mut world = World::new(level);
        let mut last = None;
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Exclusive, Mode::Shared] {
            let hold = world.hold(mode, "amy");
            match (level, mode) {
                (Level::Nothing, Mode::Shared) => assert_eq!(hold.fence(), last),
                _ => assert!(hold.fence() > last, "{level:?} {mode:?}"),
            }
            last = hold.fence();
            release(&mut world, hold);
        }
    }
    let mut world = World::new(Level::Nothing);
    assert_eq!(
        world.hold(Mode::Shared, "amy").fence(),
        None,
        "nobody ever counted"
    );
}

/// P38: two that take a number at one moment get two numbers, be it the first one or a later one.
#[test]
fn a_number_is_given_once() {
    for level in [Level::Writes, Level::Deletes] {
        for (counted, write) in [
            (None, "create index/lock.tenure/fence"),
            (Some(40), "replace index/lock.tenure/fence"),
        ] {
            let mut world = World::new(level);
            if let Some(number) = counted {
                world.store(Key::Fence, Body::Fence(number));
            }
            let other = Box::new(|world: &mut World| {
                world.store(Key::Fence, Body::Fence(41));
            });
            world.hooks.push((write, other));
            let number = world.hold(Mode::Shared, "amy").fence();
            assert_eq!(number, Some(42), "{level:?}, {write}");
        }
    }
}

/// K40: a damaged counter is an error, never a restart from zero.
#[test]
fn a_damaged_counter_refuses() {
    let mut world = World::new(Level::Deletes);
    world.original(Key::Fence, 0, 0);
    let refusal = world.acquire(Mode::Exclusive, "amy").unwrap_err();
    assert_eq!(refusal.class(), Class::Malformed);
    assert!(world.locks().is_empty());
    let mut world = World::new(Level::Deletes);
    world.store(Key::Fence, Body::Fence(u64::MAX));
    assert_eq!(world.acquire(Mode::Shared, "amy"), Err(Refusal::Fence));
}
