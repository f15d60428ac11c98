//! The protocol, rule by rule, on a store of a few lines.

use std::time::Duration;

use super::world::{Fault, World};
use super::{Refusal, Released, Status};
use crate::terms::{Level, Mode};

const LEVELS: [Level; 3] = [Level::Nothing, Level::Writes, Level::Deletes];

/// P28, P35: alone, a lock is taken and given back, and nothing stays but the counter.
#[test]
fn alone_it_is_taken_and_given_back() {
    for level in LEVELS {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let mut world = World::new(level);
            let mut hold = world.hold(mode, "amy");
            assert_eq!(world.locks().len(), 1);
            hold.release();
            assert_eq!(world.drive(hold), Released::Done);
            assert!(world.locks().is_empty(), "{level:?} {mode:?}");
        }
    }
}

/// P18: shared goes with shared, and with nothing else.
#[test]
fn shared_goes_with_shared_only() {
    for level in LEVELS {
        let mut world = World::new(level);
        let _amy = world.hold(Mode::Shared, "amy");
        let _bob = world.hold(Mode::Shared, "bob");
        assert!(matches!(
            world.acquire(Mode::Exclusive, "cid"),
            Err(Refusal::Held(_))
        ));
        let mut world = World::new(level);
        let _amy = world.hold(Mode::Exclusive, "amy");
        assert!(matches!(
            world.acquire(Mode::Exclusive, "bob"),
            Err(Refusal::Held(_))
        ));
        assert!(matches!(
            world.acquire(Mode::Shared, "cid"),
            Err(Refusal::Held(_))
        ));
    }
}

/// P29: whatever step fails, and however, no record of ours stays behind.
#[test]
fn no_fault_leaves_a_record_behind() {
    for level in LEVELS {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let steps = {
                let mut world = World::new(level);
                let _hold = world.hold(mode, "amy");
                world
                    .log
                    .iter()
                    .filter(|line| !line.starts_with("wait"))
                    .count()
            };
            for fault in [Fault::Lost, Fault::AnswerLost, Fault::Denied] {
                for at in 0..steps {
                    let mut world = World::new(level);
                    let mut acquire = world.begin(mode, "amy");
                    let (mut done, mut faults) = (0, vec![("", fault)]);
                    let end = loop {
                        let before = world.log.len();
                        if done == at {
                            world.faults.append(&mut faults);
                        }
                        let progress = world.step(&mut acquire);
                        done += usize::from(!world.log[before].starts_with("wait"));
                        if let super::Progress::Done(end) = progress {
                            break end;
                        }
                    };
                    let story = format!("{level:?} {mode:?} {fault:?} at {at}: {:?}", world.log);
                    match end {
                        Ok(acquired) => assert_eq!(world.locks(), [&acquired.own.key], "{story}"),
                        Err(Refusal::Store(_)) => assert!(world.locks().is_empty(), "{story}"),
                        Err(other) => panic!("{other:?}: {story}"),
                    }
                }
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
    world.now.boot = crate::time::Boot(safe.0 - Duration::from_millis(1));
    hold.tick(world.now);
    assert_eq!(*hold.status(), Status::Held);
    world.now.boot = safe;
    hold.tick(world.now);
    assert_eq!(*hold.status(), Status::Lapsed { since: safe });
}
