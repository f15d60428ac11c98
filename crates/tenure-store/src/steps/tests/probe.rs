//! Probing: each kind of store is found out (P26, P36).

use super::super::world::{Fault, World};
use super::super::{Abilities, Body, Probe};
use super::LEVELS;
use crate::key::Key;
use crate::terms::Level;

/// P26: each level is found, and nothing stays.
#[test]
fn a_probe_finds_the_level() {
    for level in LEVELS {
        let mut world = World::new(level);
        let found = world.drive(Probe::new(1, 3));
        assert_eq!(
            found,
            Ok(Abilities {
                level,
                resurfaces: false
            })
        );
        assert!(
            world.objects.is_empty(),
            "{level:?}: {:?}",
            world.objects.keys()
        );
    }
}

/// P26: a lost answer proves nothing about conditions.
#[test]
fn a_probe_survives_lost_answers() {
    for fault in [Fault::Lost, Fault::AnswerLost] {
        for at in 0..8 {
            let mut world = World::new(Level::Deletes);
            let mut probe = Probe::new(1, 3);
            for _ in 0..at {
                let _ = world.step(&mut probe);
            }
            world.faults.push(("", fault));
            let found = world.drive(probe);
            let want = Abilities {
                level: Level::Deletes,
                resurfaces: false,
            };
            assert_eq!(found, Ok(want), "{fault:?} at {at}: {:?}", world.log);
            assert!(
                world.objects.is_empty(),
                "{fault:?} at {at}: {:?}",
                world.log
            );
        }
    }
}

/// P36: a store where an older version comes back to light is found out.
#[test]
fn a_probe_notices_what_comes_back() {
    let mut world = World::new(Level::Deletes);
    world.hooks.push((
        "read index/lock.tenure/probe",
        Box::new(|world| {
            let key = Key::Probe(super::super::dice::Dice::new(1).number());
            world.store(key, Body::Probe(1));
        }),
    ));
    let found = world.drive(Probe::new(1, 3)).unwrap();
    assert!(found.resurfaces);
}
