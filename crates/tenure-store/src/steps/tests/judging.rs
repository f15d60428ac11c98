//! Staleness: what each kind of evidence is worth (P20–P23, K45).

use super::super::Survey;
use super::super::world::World;
use super::{seconds, survey};
use crate::judge::{Content, Evidence, Held, Life, Object, Sightings, Verdict, Version};
use crate::key::Key;
use crate::record::Block;
use crate::terms::Level;
use crate::time::Boot;
use std::time::Duration;

fn verdict(world: &mut World) -> Verdict {
    survey(world).remove(0).verdict
}

/// P20, P21, P22 a: in force, within the skew, old enough; each at its very limit.
#[test]
fn a_lock_is_stale_after_skew_and_ttl() {
    for (age, left, want) in [
        (30, 1, Verdict::Held(Held::InForce)),
        (100, -9, Verdict::Held(Held::WithinSkew)),
        (59, -11, Verdict::Held(Held::YoungByStore)),
        (60, -11, Verdict::Stale(Evidence::Age(seconds(60)))),
    ] {
        let mut world = World::new(Level::Deletes);
        world.original(Key::Exclusive, age, left);
        match (verdict(&mut world), want) {
            // The reads of this world take 10 ms each.
            (Verdict::Stale(Evidence::Age(got)), Verdict::Stale(Evidence::Age(want))) => {
                assert!(got.abs_diff(want) < seconds(1));
            }
            (got, want) => assert_eq!(got, want, "age {age}, left {left}"),
        }
    }
}

/// P22: the ttl is the record's own.
#[test]
fn the_ttl_of_the_record_counts() {
    let mut world = World::new(Level::Deletes);
    world.original(Key::Exclusive, 599, -100);
    let object = world.objects.get_mut(&Key::Exclusive).unwrap();
    let Content::Record(record) = &mut object.content else {
        panic!("a record")
    };
    record.tenure = Some(Block {
        ttl: Some(600),
        ..Default::default()
    });
    assert_eq!(verdict(&mut world), Verdict::Held(Held::YoungByStore));
    world.pass(seconds(2));
    assert!(matches!(verdict(&mut world), Verdict::Stale(_)));
}

/// P22 b: without the store's clock, watching for a whole ttl is evidence; less is not, and a
/// change begins it anew.
#[test]
fn watching_is_evidence() {
    let mut world = World::new(Level::Deletes);
    world.original(Key::Exclusive, 0, -3600);
    world.objects.get_mut(&Key::Exclusive).unwrap().modified = None;
    let mut sightings = Sightings::default();
    let mut look = |world: &mut World| {
        let survey = Survey::all(world.terms(), std::mem::take(&mut sightings));
        let (mut view, seen) = world.drive(survey).unwrap();
        sightings = seen;
        view.locks.remove(0).verdict
    };
    assert_eq!(look(&mut world), Verdict::Held(Held::Unproven));
    world.pass(seconds(59));
    assert_eq!(look(&mut world), Verdict::Held(Held::Unproven));
    world.pass(seconds(2));
    assert!(matches!(
        look(&mut world),
        Verdict::Stale(Evidence::Watched(_))
    ));
    world.original(Key::Exclusive, 0, -3600);
    world.objects.get_mut(&Key::Exclusive).unwrap().modified = None;
    assert_eq!(look(&mut world), Verdict::Held(Held::Unproven));
}

/// P22 b: what happened before the first answer was read, or after the last question was asked,
/// nobody watched.
#[test]
fn a_pause_is_no_watching() {
    let at = |second| Boot(seconds(second));
    let (key, version) = (Key::Exclusive, Version::tag("one"));
    let mut sightings = Sightings::default();
    let first = sightings.note(&key, &version, at(0), at(100));
    let second = sightings.note(&key, &version, at(130), at(900));
    assert_eq!((first, second), (Duration::ZERO, seconds(30)));
}

/// P22 c: a dead process is evidence, a living one with the kernel's lock the opposite (K24).
#[test]
fn a_dead_holder_is_evidence() {
    for (life, stale) in [
        (Life::Dead, true),
        (Life::Alive, false),
        (Life::Unknown, false),
    ] {
        let mut world = World::new(Level::Deletes);
        world.original(Key::Exclusive, 20, -11);
        world.objects.get_mut(&Key::Exclusive).unwrap().life = life;
        assert_eq!(
            verdict(&mut world) == Verdict::Stale(Evidence::Dead),
            stale,
            "{life:?}"
        );
    }
    let mut world = World::new(Level::Deletes);
    world.original(Key::Exclusive, 20, 5);
    world.objects.get_mut(&Key::Exclusive).unwrap().life = Life::Dead;
    assert_eq!(
        verdict(&mut world),
        Verdict::Held(Held::InForce),
        "P20 comes first"
    );
    let mut world = World::new(Level::Deletes);
    world.original(Key::Exclusive, 3600, -3500);
    world.objects.get_mut(&Key::Exclusive).unwrap().life = Life::Locked;
    assert_eq!(verdict(&mut world), Verdict::Held(Held::Locked));
}

/// K45: a store that shows no clock is judged by ours, with the allowance against reclaiming.
#[test]
fn without_the_stores_clock_ours_counts_with_the_allowance() {
    let now = World::new(Level::Deletes).now;
    let object = |age: u64| Object {
        content: Content::Fence(0),
        version: Default::default(),
        modified: Some(now.wall - seconds(age)),
        store_now: None,
        life: Life::Unknown,
    };
    assert_eq!(object(70).age(now, seconds(10)), Some(seconds(60)));
    // K46: the future has no age.
    let ahead = Object {
        modified: Some(now.wall + seconds(3600)),
        ..object(0)
    };
    assert_eq!(ahead.age(now, seconds(10)), Some(Duration::ZERO));
}
