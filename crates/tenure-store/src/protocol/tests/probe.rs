//! Ability probe: detects each kind of store (P26 levels of conditional writes, P36 stores with
//! object versions).

use super::super::fake_store::{FakeStore, StoreFault};
use super::super::{Abilities, OpBody, Probe};
use super::LEVELS;
use crate::key::ObjectKey;
use crate::lock_terms::ConditionLevel;

/// P26: each level is detected, and no object remains.
#[test]
fn a_probe_finds_the_level() {
    for level in LEVELS {
        let mut fake = FakeStore::new(level);
        let found = fake.drive(Probe::new(1, 3));
        assert_eq!(
            found,
            Ok(Abilities {
                level,
                resurfaces: false
            })
        );
        assert!(
            fake.objects.is_empty(),
            "{level:?}: {:?}",
            fake.objects.keys()
        );
    }
}

/// P26: a lost response proves nothing about conditions.
#[test]
fn a_probe_survives_lost_answers() {
    for fault in [StoreFault::Lost, StoreFault::AnswerLost] {
        for at in 0..8 {
            let mut fake = FakeStore::new(ConditionLevel::Deletes);
            let mut probe = Probe::new(1, 3);
            for _ in 0..at {
                let _ = fake.step(&mut probe);
            }
            fake.faults.push(("", fault));
            let found = fake.drive(probe);
            let want = Abilities {
                level: ConditionLevel::Deletes,
                resurfaces: false,
            };
            assert_eq!(found, Ok(want), "{fault:?} at {at}: {:?}", fake.log);
            assert!(fake.objects.is_empty(), "{fault:?} at {at}: {:?}", fake.log);
        }
    }
}

/// P36: a store that makes older versions visible again is detected.
#[test]
fn a_probe_notices_what_comes_back() {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    fake.hooks.push((
        "read index/lock.tenure/probe",
        Box::new(|fake| {
            let key = ObjectKey::Probe(super::super::rng::Rng::new(1).number());
            fake.store(key, OpBody::Probe(1));
        }),
    ));
    let found = fake.drive(Probe::new(1, 3)).unwrap();
    assert!(found.resurfaces);
}
