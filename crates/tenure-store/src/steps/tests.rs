//! The protocol, rule by rule, on a store of a few lines.

use std::time::Duration;

use tenure_files::Class;

use super::world::{Fault, World};
use super::{
    Abilities, Acquire, Body, Break, Cause, Hold, Insist, Notice, Op, Probe, Progress, Refusal,
    Released, Status, Steps, Survey, Target, Wait,
};
use crate::judge::{Content, Evidence, Held, Life, Sightings, Verdict};
use crate::key::Key;
use crate::terms::{Level, Mode, OnConflict, Settings, Terms};
use crate::time::Boot;

const LEVELS: [Level; 3] = [Level::Nothing, Level::Writes, Level::Deletes];
const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn shared_key() -> Key {
    Key::Shared("2026-03-07T09:00:00.482913Z".into())
}

fn release(world: &mut World, mut hold: Hold) -> Released {
    hold.release();
    world.drive(hold)
}

/// P28, P30, P35: alone, a lock is taken and given back, and nothing stays but the counter.
#[test]
fn alone_it_is_taken_and_given_back() {
    for level in LEVELS {
        for mode in MODES {
            let mut world = World::new(level);
            let hold = world.hold(mode, "amy");
            assert_eq!(world.locks(), [&hold.own().key]);
            assert_eq!(release(&mut world, hold), Released::Done);
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
        for mode in MODES {
            let refusal = world.acquire(mode, "bob").unwrap_err();
            assert_eq!(refusal.class(), Class::Held);
            assert_eq!(world.locks(), [&Key::Exclusive], "{level:?} {mode:?}");
        }
    }
}

/// P29: whatever step fails, and however, no record of ours stays behind.
#[test]
fn no_fault_leaves_a_record_behind() {
    for level in LEVELS {
        for mode in MODES {
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
                        if let Progress::Done(end) = progress {
                            break end;
                        }
                    };
                    let story = format!("{level:?} {mode:?} {fault:?} at {at}: {:?}", world.log);
                    match (end, fault) {
                        (Ok(acquired), Fault::Lost | Fault::AnswerLost) => {
                            assert_eq!(world.locks(), [&acquired.own.key], "{story}");
                        }
                        (Err(Refusal::Store(_)), Fault::Denied) => {
                            assert!(world.locks().is_empty(), "{story}");
                        }
                        (other, _) => panic!("{other:?}: {story}"),
                    }
                }
            }
        }
    }
}

/// P29: a write whose answer was lost is recognised, not repeated over somebody else.
#[test]
fn after_an_unknown_write_the_key_is_read() {
    let mut world = World::new(Level::Deletes);
    world
        .faults
        .push(("create index/lock.exclusive", Fault::AnswerLost));
    assert!(world.acquire(Mode::Exclusive, "amy").is_ok());
    let creates = world
        .log
        .iter()
        .filter(|op| op.starts_with("create index/lock.ex"))
        .count();
    assert_eq!(creates, 1, "{:?}", world.log);

    // Ours never arrived, and another is there: the race is lost.
    let mut world = World::new(Level::Deletes);
    world
        .faults
        .push(("create index/lock.exclusive", Fault::Lost));
    let intrude = |world: &mut World| world.original(Key::Exclusive, 0, 60);
    let mut acquire = world.begin(Mode::Exclusive, "amy");
    while !world.log.last().is_some_and(|op| op.starts_with("create")) {
        assert_eq!(world.step(&mut acquire), Progress::Going);
    }
    intrude(&mut world);
    let refusal = world.drive(acquire).unwrap_err();
    assert_eq!(refusal.class(), Class::LostRace);
    assert_eq!(world.holder(&Key::Exclusive), Some("atlas-3 (pid 40217)"));
}

/// P28.4: a shared lock that appears between the two looks is seen, and older than ours it wins.
#[test]
fn a_shared_lock_between_the_looks_wins_if_it_is_older() {
    for level in LEVELS {
        let mut world = World::new(level);
        let write = if level == Level::Nothing {
            "put index"
        } else {
            "create index"
        };
        world
            .hooks
            .push((write, Box::new(|world| world.original(shared_key(), 0, 60))));
        let refusal = world.acquire(Mode::Exclusive, "amy").unwrap_err();
        assert_eq!(refusal.class(), Class::LostRace, "{level:?}");
        assert_eq!(
            world.locks(),
            [&shared_key()],
            "{level:?}: ours must be gone"
        );
        assert!(
            !world.log.iter().any(|op| op.starts_with("wait")),
            "no reason to wait for it"
        );
    }
}

/// P28.4: whoever wrote after us sees us and withdraws, so one more look is fair; if he stays, we go.
#[test]
fn a_younger_shared_lock_is_given_time_to_withdraw() {
    for stays in [false, true] {
        let mut world = World::new(Level::Deletes);
        // Before the second list our record is there, and his appears; before the third it is gone.
        let gone = |world: &mut World| {
            world.objects.remove(&shared_key());
        };
        let appear = move |world: &mut World| {
            world.pass(seconds(1));
            world.original(shared_key(), 0, 60);
            if !stays {
                world.hooks.push(("list", Box::new(gone)));
            }
        };
        let first = move |world: &mut World| world.hooks.push(("list", Box::new(appear)));
        world.hooks.push(("list", Box::new(first)));
        let end = world.acquire(Mode::Exclusive, "amy");
        let waits = world.log.iter().filter(|op| op.starts_with("wait")).count();
        assert!(waits >= 1, "{:?}", world.log);
        match (stays, end) {
            (false, Ok(_)) => assert_eq!(world.locks(), [&Key::Exclusive]),
            (true, Err(refusal)) => {
                assert_eq!(refusal.class(), Class::LostRace);
                assert_eq!(world.locks(), [&shared_key()]);
            }
            (stays, end) => panic!("stays: {stays}, {end:?}, {:?}", world.log),
        }
    }
}

/// P28.5: an original that checked before us and writes after us is noticed.
#[test]
fn an_original_that_writes_while_we_settle_wins() {
    for level in LEVELS {
        let mut world = World::new(level);
        let mut acquire = world.begin(Mode::Exclusive, "amy");
        let settling = loop {
            if let Op::WaitUntil(until) = acquire.next(world.now) {
                break until;
            }
            assert_eq!(world.step(&mut acquire), Progress::Going);
        };
        assert!(settling.since(world.now.boot) > seconds(0));
        world.original(Key::Exclusive, 0, 60);
        let refusal = world.drive(acquire).unwrap_err();
        assert_eq!(refusal.class(), Class::LostRace, "{level:?}");
        assert_eq!(world.holder(&Key::Exclusive), Some("atlas-3 (pid 40217)"));
    }
}

/// P30.3, P30.4: an exclusive lock that appears after our shared record is seen at once, or after
/// settling; ours goes.
#[test]
fn a_shared_lock_looks_twice() {
    for level in LEVELS {
        for look in [2, 3] {
            let mut world = World::new(level);
            let mut acquire = world.begin(Mode::Shared, "amy");
            let mut reads = 0;
            let end = loop {
                if let Op::Read(Key::Exclusive) = acquire.next(world.now) {
                    reads += 1;
                    if reads == look {
                        world.original(Key::Exclusive, 0, 60);
                    }
                }
                if let Progress::Done(end) = world.step(&mut acquire) {
                    break end;
                }
            };
            assert_eq!(
                end.unwrap_err().class(),
                Class::LostRace,
                "{level:?} at {look}"
            );
            assert_eq!(world.locks(), [&Key::Exclusive]);
        }
    }
}

/// P28.5, P30.4: among Tenure processes only, nobody has to be waited for.
#[test]
fn tenure_only_does_not_settle() {
    let settings = Settings {
        company: crate::terms::Company::TenureOnly,
        ..Settings::default()
    };
    for mode in MODES {
        let mut world = World::new(Level::Deletes);
        let request = world.request(mode, "amy");
        let terms = settings.terms(Level::Deletes).unwrap();
        world
            .drive(Acquire::new(terms, request, Sightings::default()))
            .unwrap();
        assert!(
            !world.log.iter().any(|op| op.starts_with("wait")),
            "{:?}",
            world.log
        );
    }
}

/// P28.1, P28.3: a stale exclusive lock is replaced by its version; a change in between is a lost
/// round, not a lost lock.
#[test]
fn a_stale_lock_is_replaced_by_version() {
    let mut world = World::new(Level::Deletes);
    world.original(Key::Exclusive, 1200, -600);
    assert!(world.acquire(Mode::Exclusive, "amy").is_ok());
    assert!(world.log.contains(&"replace index/lock.exclusive".into()));

    let mut world = World::new(Level::Deletes);
    world.original(Key::Exclusive, 1200, -600);
    let wake = |world: &mut World| world.original(Key::Exclusive, 0, 60);
    world.hooks.push(("replace", Box::new(wake)));
    let refusal = world.acquire(Mode::Exclusive, "amy").unwrap_err();
    assert_eq!(refusal.class(), Class::Held, "the holder woke up");
    assert_eq!(world.holder(&Key::Exclusive), Some("atlas-3 (pid 40217)"));
}

/// P28.3: five rounds, then the race is lost.
#[test]
fn after_five_rounds_the_race_is_lost() {
    fn snatch(world: &mut World) {
        // Somebody takes it and gives it back, every time just before us.
        world.original(Key::Exclusive, 1200, -600);
        world.hooks.push((
            "read index/lock.exclusive",
            Box::new(|world| {
                world.objects.remove(&Key::Exclusive);
                world.hooks.push(("create index/lock.ex", Box::new(snatch)));
            }),
        ));
    }
    let mut world = World::new(Level::Deletes);
    world.hooks.push(("create index/lock.ex", Box::new(snatch)));
    let refusal = world.acquire(Mode::Exclusive, "amy").unwrap_err();
    assert_eq!(refusal.class(), Class::LostRace);
    let creates = world
        .log
        .iter()
        .filter(|op| op.starts_with("create index/lock.ex"))
        .count();
    assert_eq!(creates, 1 + usize::from(Terms::ROUNDS));
}

/// P28.6: what was stale among the shared locks is swept, by version; what woke up stays.
#[test]
fn stale_shared_locks_are_swept() {
    for level in LEVELS {
        let mut world = World::new(level);
        world.original(shared_key(), 1200, -600);
        world.acquire(Mode::Exclusive, "amy").unwrap();
        assert_eq!(world.locks(), [&Key::Exclusive], "{level:?}");

        let mut world = World::new(level);
        world.original(shared_key(), 1200, -600);
        let wake = |world: &mut World| world.original(shared_key(), 0, 60);
        world.hooks.push(("tenure/fence", Box::new(wake)));
        world.acquire(Mode::Exclusive, "amy").unwrap();
        assert_eq!(
            world.locks().len(),
            2,
            "{level:?}: it was refreshed meanwhile"
        );
    }
}

/// P19, K43: a waiter looks again about every two seconds, and gets it when it is free.
#[test]
fn a_waiter_gets_it_when_it_is_free() {
    let mut world = World::new(Level::Deletes);
    world.original(Key::Exclusive, 0, 60);
    let mut request = world.request(Mode::Exclusive, "amy");
    request.wait = Wait::Yes;
    let mut acquire = Acquire::new(world.terms(), request, Sightings::default());
    let start = world.now.boot;
    let mut pauses = Vec::new();
    loop {
        if let (Op::WaitUntil(until), Some(_)) = (acquire.next(world.now), acquire.blocker()) {
            pauses.push(until.since(world.now.boot));
            if pauses.len() == 3 {
                world.objects.remove(&Key::Exclusive);
            }
        }
        if let Progress::Done(end) = world.step(&mut acquire) {
            end.unwrap();
            break;
        }
    }
    assert_eq!(pauses.len(), 3);
    let range = Duration::from_millis(1800)..=Duration::from_millis(2200);
    assert!(
        pauses.iter().all(|pause| range.contains(pause)),
        "{pauses:?}"
    );
    assert!(world.now.boot.since(start) < seconds(9));
}

/// P19, K2: at the deadline a waiter is told who has it.
#[test]
fn a_waiter_whose_time_is_over_is_told_who_has_it() {
    let mut world = World::new(Level::Deletes);
    world.original(Key::Exclusive, 0, 600);
    let mut request = world.request(Mode::Shared, "amy");
    request.wait = Wait::Yes;
    let mut acquire = Acquire::new(world.terms(), request, Sightings::default());
    assert_eq!(world.step(&mut acquire), Progress::Going);
    acquire.stop_waiting();
    match world.drive(acquire) {
        Err(Refusal::TimedOut(blocker)) => assert_eq!(blocker.key, Key::Exclusive),
        other => panic!("{other:?}"),
    }
}

/// P29: an acquire that nobody wants any more leaves nothing behind, wherever it is.
#[test]
fn a_cancelled_acquire_leaves_nothing() {
    for level in LEVELS {
        for mode in MODES {
            for at in 0.. {
                let mut world = World::new(level);
                let mut acquire = world.begin(mode, "amy");
                let early = (0..at).any(|_| !matches!(world.step(&mut acquire), Progress::Going));
                if early {
                    assert!(at > 5, "cancelled at every step");
                    break;
                }
                acquire.cancel();
                assert_eq!(world.drive(acquire), Err(Refusal::Cancelled));
                assert!(
                    world.locks().is_empty(),
                    "{level:?} {mode:?} at {at}: {:?}",
                    world.log
                );
            }
        }
    }
}

/// P32: a store so slow that the lease is used up on arrival gives no lock.
#[test]
fn a_lease_used_up_on_arrival_was_never_held() {
    for level in LEVELS {
        for mode in MODES {
            let mut world = World::new(level);
            world.hooks.push((
                "read index/lock.tenure/fence",
                Box::new(|world| {
                    world.pass(seconds(48));
                }),
            ));
            let refusal = world.acquire(mode, "amy").unwrap_err();
            assert_eq!(refusal, Refusal::TooSlow);
            assert!(world.locks().is_empty());
        }
    }
}

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
    assert_eq!(
        hold.answer(super::Answer::Waited, world.now),
        Progress::Going
    );
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

/// P38: two that take a number at one moment get two numbers.
#[test]
fn a_number_is_given_once() {
    let mut world = World::new(Level::Deletes);
    world.hooks.push((
        "create index/lock.tenure/fence",
        Box::new(|world| {
            world.store(Key::Fence, Body::Fence(41));
        }),
    ));
    assert_eq!(world.hold(Mode::Shared, "amy").fence(), Some(42));
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
            let key = Key::Probe(crate::steps::dice::Dice::new(1).number());
            world.store(key, Body::Probe(1));
        }),
    ));
    let found = world.drive(Probe::new(1, 3)).unwrap();
    assert!(found.resurfaces);
}

fn survey(world: &mut World) -> Vec<super::Blocker> {
    let survey = Survey::all(world.terms(), Sightings::default());
    world.drive(survey).unwrap().0.locks
}

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
    record.tenure = Some(crate::record::Block {
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
    let object = |age: u64| crate::judge::Object {
        content: Content::Fence(0),
        version: Default::default(),
        modified: Some(now.wall - seconds(age)),
        store_now: None,
        life: Life::Unknown,
    };
    assert_eq!(object(70).age(now, seconds(10)), Some(seconds(60)));
    // K46: the future has no age.
    let ahead = crate::judge::Object {
        modified: Some(now.wall + seconds(3600)),
        ..object(0)
    };
    assert_eq!(ahead.age(now, seconds(10)), Some(Duration::ZERO));
}
