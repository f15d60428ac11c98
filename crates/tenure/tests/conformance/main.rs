//! The same cases over every reach. What a reach does not do is declared in one table and checked against its
//! capabilities; everything else must behave alike.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod places;
#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use places::{Case, Spot, everywhere, exception};
use tenure::{ChangeKind, Class, Error, Force, HoldId, LostCause};

const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(60);

/// Runs a case at every reach that has it, each on a thread of its own. Elsewhere the reach must refuse.
fn at_every_reach(case: Case, run: fn(&Spot), refuses: fn(&Spot)) {
    let spots = everywhere();
    thread::scope(|scope| {
        for spot in &spots {
            thread::Builder::new()
                .name(format!("{case:?} at {}", spot.reach))
                .spawn_scoped(scope, move || match exception(spot.reach, case) {
                    None => run(spot),
                    Some(_) => refuses(spot),
                })
                .unwrap();
        }
    });
}

/// No exception is known.
fn always(spot: &Spot) {
    panic!("{} has an exception that no test shows", spot.reach);
}

/// C8: one at a time, and the other learns who, where and what for.
#[test]
fn exclusive() {
    at_every_reach(
        Case::Exclusive,
        |spot| {
            let guard = spot.lock().purpose("first").acquire().unwrap();
            let error = spot.lock().no_wait().acquire().unwrap_err();
            assert!(matches!(error, Error::Busy(_)), "{error:?}");
            assert_eq!(error.exit_code(), 75);
            let text = error.to_string();
            let pid = std::process::id().to_string();
            for part in ["first", pid.as_str(), "tenure "] {
                assert!(text.contains(part), "{part:?} is missing in {text:?}");
            }
            guard.check().unwrap();
            guard.release().unwrap();
            spot.lock().no_wait().acquire().unwrap().release().unwrap();
        },
        always,
    );
}

/// C16: shared holders are together and keep out an exclusive one; who has no shared mode says so with 2.
#[test]
fn shared() {
    at_every_reach(
        Case::Shared,
        |spot| {
            let one = spot.lock().shared().acquire().unwrap();
            let two = spot.lock().shared().no_wait().acquire().unwrap();
            let error = spot.lock().no_wait().acquire().unwrap_err();
            assert!(error.is_busy(), "{error:?}");
            one.release().unwrap();
            two.release().unwrap();
            spot.lock().no_wait().acquire().unwrap().release().unwrap();
        },
        |spot| {
            let error = spot.lock().shared().acquire().unwrap_err();
            assert_eq!(error.class(), Class::Unsupported, "{error:?}");
            assert_eq!(error.exit_code(), 2);
            assert!(spot.inspect().free);
        },
    );
}

/// A dropped guard gives the lock back.
#[test]
fn dropped() {
    at_every_reach(
        Case::Try,
        |spot| {
            drop(spot.lock().no_wait().acquire().unwrap());
            // In the background elsewhere than on files and in memory: wait for it.
            spot.lock().wait(SOON).acquire().unwrap().release().unwrap();
        },
        always,
    );
}

/// A waiter hears for whom it waits, and gets the lock when it is given back.
#[test]
fn wait() {
    at_every_reach(
        Case::Wait,
        |spot| {
            let guard = spot.lock().purpose("busy").acquire().unwrap();
            let (tell, told) = mpsc::channel();
            thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    let lock = spot.lock().wait(SOON);
                    lock.on_wait(move |busy| {
                        let _ = tell.send(busy.to_string());
                    })
                    .acquire()
                });
                let busy = told.recv_timeout(SOON).unwrap();
                assert!(busy.contains("busy"), "{busy}");
                guard.release().unwrap();
                waiting.join().unwrap().unwrap().release().unwrap();
            });
        },
        always,
    );
}

/// Who waited in vain ends with 124, knows the holder, and leaves nothing behind.
#[test]
fn timeout() {
    at_every_reach(
        Case::Timeout,
        |spot| {
            let guard = spot.lock().purpose("for long").acquire().unwrap();
            let error = spot.lock().wait(SHORT).acquire().unwrap_err();
            assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
            assert_eq!(error.exit_code(), 124);
            assert!(error.to_string().contains("for long"), "{error}");
            guard.release().unwrap();
            assert!(spot.inspect().waiters.is_empty());
            spot.lock().no_wait().acquire().unwrap().release().unwrap();
        },
        always,
    );
}

/// K34: a loss is noticed, resolves `lost`, poisons `check` and `release`, and ends the body of `with`.
#[test]
fn lost() {
    at_every_reach(
        Case::Lost,
        |spot| {
            let place = spot.place.clone();
            let tenure = spot.tenure.clone();
            let body = spot.tenure.lock(&place).unwrap().with(async |guard| {
                tenure
                    .break_hold(guard.place(), None, Force::Yes, "test")
                    .await?;
                // Never ends by itself: the loss ends it.
                std::future::pending::<Result<(), Error>>().await
            });
            let error = tenure::blocking::wait(body).unwrap_err();
            let Error::Lost(lost) = &error else {
                panic!("{error:?}");
            };
            assert!(
                matches!(
                    lost.cause,
                    LostCause::Broken | LostCause::Killed | LostCause::Overwritten
                ),
                "{lost:?}"
            );
            assert_eq!(error.exit_code(), 120);

            let guard = spot.lock().acquire().unwrap();
            spot.break_all();
            guard.lost();
            assert_eq!(guard.check().unwrap_err().class(), Class::Compromised);
            assert_eq!(guard.valid_for(), Some(Duration::ZERO));
            assert_eq!(guard.release().unwrap_err().class(), Class::Compromised);
            spot.lock().wait(SOON).acquire().unwrap().release().unwrap();
        },
        always,
    );
}

/// The holder hears who asks and why, and nothing is taken from it.
#[test]
fn ask() {
    at_every_reach(
        Case::Ask,
        |spot| {
            let guard = spot.lock().acquire().unwrap();
            let asked = spot.ask("an urgent fix").unwrap();
            assert_eq!(asked.len(), 1, "{asked:?}");
            let request = guard.release_requested();
            if spot.reach != "daemon" {
                assert_eq!(request.reason.as_deref(), Some("an urgent fix"));
            }
            guard.check().unwrap();
            guard.release().unwrap();
            assert!(spot.ask("nobody").unwrap().is_empty());
        },
        |spot| {
            let error = spot.ask("x").unwrap_err();
            assert_eq!(error.class(), Class::Unsupported);
            let error = spot.lock().ask().acquire().unwrap_err();
            assert_eq!(error.exit_code(), 2, "{error:?}");
        },
    );
}

/// C10, C16: a live hold falls only by force, and only if it is the one that was named.
#[test]
fn broken() {
    at_every_reach(
        Case::Break,
        |spot| {
            let guard = spot.lock().acquire().unwrap();
            let other = HoldId::new("somebody-else@7");
            let error = spot.break_hold(Some(&other), Force::Yes).unwrap_err();
            assert_eq!(error.class(), Class::NotHeld, "{error:?}");
            let error = spot.break_hold(None, Force::No).unwrap_err();
            assert!(error.is_busy(), "{error:?}");
            guard.check().unwrap();
            let holders = spot.inspect().holders;
            let id = holders[0].id.clone().unwrap();
            let broken = spot.break_hold(Some(&id), Force::Yes).unwrap();
            assert_eq!(broken.victims.len(), 1);
            guard.lost();
            // In one process the handle of a lost lock keeps the next one out until it is gone.
            drop(guard);
            spot.lock().wait(SOON).acquire().unwrap().release().unwrap();
        },
        always,
    );
}

/// K39, R67: every exclusive holder has a larger number than the one before it.
#[test]
fn fence() {
    at_every_reach(
        Case::Fence,
        |spot| {
            let fences: Vec<_> = (0..3)
                .map(|_| {
                    let guard = spot.lock().fenced().acquire().unwrap();
                    let fence = guard.fence().unwrap();
                    guard.release().unwrap();
                    fence
                })
                .collect();
            assert!(fences.is_sorted_by(|one, two| one < two), "{fences:?}");
        },
        always,
    );
}

/// Nobody waits for the dead: the lock of a killed process comes free.
#[test]
fn crash() {
    at_every_reach(
        Case::Crash,
        |spot| {
            let mut actor = Command::new(env!("CARGO_BIN_EXE_tenure-actor"));
            actor
                .args(spot.actor_arguments())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let mut actor = actor.spawn().unwrap();
            let mut said = String::new();
            BufReader::new(actor.stdout.take().unwrap())
                .read_line(&mut said)
                .unwrap();
            assert_eq!(said, "held\n");
            let error = spot.lock().no_wait().acquire().unwrap_err();
            assert!(error.is_busy(), "{error:?}");
            actor.kill().unwrap();
            actor.wait().unwrap();
            spot.lock()
                .wait(Duration::from_secs(60))
                .acquire()
                .unwrap()
                .release()
                .unwrap();
        },
        |spot| assert_eq!(spot.reach, "mem", "a lock of one process ends with it"),
    );
}

/// What is held shows, whoever looks, and what is given back does not.
#[test]
fn looking() {
    at_every_reach(
        Case::Look,
        |spot| {
            assert!(spot.inspect().free);
            let guard = spot.lock().purpose("looked at").acquire().unwrap();
            let state = spot.inspect();
            assert!(!state.free);
            assert_eq!(state.holders.len(), 1);
            assert!(state.to_string().contains("looked at"), "{state}");
            let listed = tenure::blocking::wait(spot.tenure.list(spot.above())).unwrap();
            assert!(listed.iter().any(|found| !found.free), "{listed:?}");
            let json = serde_json::to_value(&state).unwrap();
            assert_eq!(json["free"], false);
            guard.release().unwrap();
            assert!(spot.inspect().free);
        },
        always,
    );
}

/// Whoever watches sees what was held, what is taken and what is given back.
#[test]
fn watching() {
    at_every_reach(
        Case::Watch,
        |spot| {
            let guard = spot.lock().acquire().unwrap();
            let mut watch = tenure::blocking::wait(spot.tenure.watch(spot.above())).unwrap();
            let mut next = || watch.next_blocking().unwrap().unwrap().kind;
            assert_eq!(
                [next(), next()],
                [ChangeKind::Present, ChangeKind::PresentEnd]
            );
            guard.release().unwrap();
            assert_eq!(next(), ChangeKind::Released);
            let guard = spot.lock().acquire().unwrap();
            assert_eq!(next(), ChangeKind::Granted);
            guard.release().unwrap();
        },
        always,
    );
}

/// C13: a hold that was left is renewed and given back by its word.
#[test]
fn left() {
    at_every_reach(
        Case::Leave,
        |spot| {
            let guard = spot.lock().follows(std::process::id()).acquire().unwrap();
            let word = guard.into_hold().unwrap().to_string();
            let error = spot.lock().no_wait().acquire().unwrap_err();
            assert!(error.is_busy(), "{error:?}");
            let hold = word.parse().unwrap();
            tenure::blocking::wait(spot.tenure.renew_hold(&hold)).unwrap();
            tenure::blocking::wait(spot.tenure.release_hold(&hold)).unwrap();
            spot.lock().wait(SOON).acquire().unwrap().release().unwrap();
            let again = tenure::blocking::wait(spot.tenure.renew_hold(&hold));
            assert!(again.is_err());
        },
        |spot| {
            let guard = spot.lock().acquire().unwrap();
            assert_eq!(guard.into_hold().unwrap_err().class(), Class::Unsupported);
        },
    );
}

/// C6: reversed lists do not deadlock, the same lock twice is one, and all are lost as one.
#[test]
fn several() {
    let spots = everywhere();
    let places: Vec<_> = spots.iter().map(|spot| spot.place.clone()).collect();
    let tenure = &spots[0].tenure;
    let rounds = |places: Vec<tenure::Where>| {
        for _ in 0..3 {
            let guards = tenure
                .lock_all(&places)
                .unwrap()
                .acquire_all_blocking()
                .unwrap();
            assert_eq!(guards.len(), places.len());
            for guard in guards {
                guard.release().unwrap();
            }
        }
    };
    let reversed: Vec<_> = places.iter().rev().cloned().collect();
    thread::scope(|scope| {
        scope.spawn(|| rounds(places.clone()));
        scope.spawn(|| rounds(reversed));
    });
    let twice = [places[0].clone(), places[0].clone()];
    let guards = tenure
        .lock_all(&twice)
        .unwrap()
        .acquire_all_blocking()
        .unwrap();
    assert_eq!(guards.len(), 1);
}
