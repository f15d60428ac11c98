//! Conformance suite: the same cases on every backend.
//!
//! Unsupported cases are listed in one table and checked against the capabilities; everything else
//! must behave alike.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backends;
mod postgres;
#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use backends::{BackendAddress, Case, everywhere, exception};
use tenure::{ChangeKind, Class, Error, Force, HoldId, LostCause};

pub(crate) const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(60);

/// Runs a case on every backend that supports it, each on its own thread. Other backends must
/// refuse.
fn with_every_backend(case: Case, run: fn(&BackendAddress), refuses: fn(&BackendAddress)) {
    let backend_addresses = everywhere();
    thread::scope(|scope| {
        for backend_address in &backend_addresses {
            thread::Builder::new()
                .name(format!("{case:?} at {}", backend_address.backend))
                .spawn_scoped(scope, move || {
                    match exception(backend_address.backend, case) {
                        None => run(backend_address),
                        Some(_) => refuses(backend_address),
                    }
                })
                .unwrap();
        }
    });
}

/// For cases without exceptions.
fn always(backend_address: &BackendAddress) {
    panic!(
        "{} has an exception that no test shows",
        backend_address.backend
    );
}

/// C8: one holder at a time, and the other client learns who, where and for what.
#[test]
fn exclusive() {
    with_every_backend(
        Case::Exclusive,
        |backend_address| {
            let guard = backend_address.lock().purpose("first").acquire().unwrap();
            let error = backend_address.lock().no_wait().acquire().unwrap_err();
            assert!(matches!(error, Error::Busy(_)), "{error:?}");
            assert!(matches!(error, Error::Busy(_)));
            let text = error.to_string();
            let pid = std::process::id().to_string();
            for part in ["first", pid.as_str(), "tenure "] {
                assert!(text.contains(part), "{part:?} is missing in {text:?}");
            }
            guard.check().unwrap();
            guard.release().unwrap();
            backend_address
                .lock()
                .no_wait()
                .acquire()
                .unwrap()
                .release()
                .unwrap();
        },
        always,
    );
}

/// C16: shared holders exclude an exclusive one; a backend without shared mode refuses with exit
/// code 2.
#[test]
fn shared() {
    with_every_backend(
        Case::Shared,
        |backend_address| {
            let one = backend_address.lock().shared().acquire().unwrap();
            let two = backend_address.lock().shared().no_wait().acquire().unwrap();
            let error = backend_address.lock().no_wait().acquire().unwrap_err();
            assert!(error.is_busy(), "{error:?}");
            one.release().unwrap();
            two.release().unwrap();
            backend_address
                .lock()
                .no_wait()
                .acquire()
                .unwrap()
                .release()
                .unwrap();
        },
        |backend_address| {
            let error = backend_address.lock().shared().acquire().unwrap_err();
            assert_eq!(error.class(), Class::Unsupported, "{error:?}");
            assert!(matches!(error, Error::Input(_) | Error::Unsupported(_)));
            assert!(backend_address.inspect().free);
        },
    );
}

/// A dropped guard releases the lock.
#[test]
fn dropped() {
    with_every_backend(
        Case::Try,
        |backend_address| {
            drop(backend_address.lock().no_wait().acquire().unwrap());
            // On other backends than files and memory the release runs in the background: wait for
            // it.
            backend_address
                .lock()
                .wait(SOON)
                .acquire()
                .unwrap()
                .release()
                .unwrap();
        },
        always,
    );
}

/// A waiter learns the holder and gets the lock when it is released.
#[test]
fn wait() {
    with_every_backend(
        Case::Wait,
        |backend_address| {
            let guard = backend_address.lock().purpose("busy").acquire().unwrap();
            let (tell, told) = mpsc::channel();
            thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    let lock = backend_address.lock().wait(SOON);
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

/// A wait that times out ends with 124, names the holder, and leaves nothing behind.
#[test]
fn timeout() {
    with_every_backend(
        Case::Timeout,
        |backend_address| {
            let guard = backend_address
                .lock()
                .purpose("for long")
                .acquire()
                .unwrap();
            let error = backend_address.lock().wait(SHORT).acquire().unwrap_err();
            assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
            assert!(matches!(error, Error::TimedOut(_)));
            assert!(error.to_string().contains("for long"), "{error}");
            guard.release().unwrap();
            assert!(backend_address.inspect().known_waiters().is_empty());
            backend_address
                .lock()
                .no_wait()
                .acquire()
                .unwrap()
                .release()
                .unwrap();
        },
        always,
    );
}

/// K34: a loss is noticed, completes `lost`, makes `check` and `release` fail, and ends the body of
/// `with`.
#[test]
fn lost() {
    with_every_backend(
        Case::Lost,
        |backend_address| {
            let place = backend_address.place.clone();
            let tenure = backend_address.tenure.clone();
            let body = backend_address
                .tenure
                .lock(&place)
                .unwrap()
                .with(async |guard| {
                    tenure
                        .break_hold(guard.place(), None, Force::Yes, "test")
                        .await?;
                    // Never completes by itself: the loss drops it.
                    std::future::pending::<Result<(), Error>>().await
                });
            let error = tenure_files::internal::block_on(body).unwrap_err();
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
            assert!(matches!(error, Error::Lost(_)));

            let guard = backend_address.lock().acquire().unwrap();
            backend_address.break_all();
            guard.lost();
            assert_eq!(guard.check().unwrap_err().class(), Class::Compromised);
            assert_eq!(guard.valid_for(), Some(Duration::ZERO));
            assert_eq!(guard.release().unwrap_err().class(), Class::Compromised);
            backend_address
                .lock()
                .wait(SOON)
                .acquire()
                .unwrap()
                .release()
                .unwrap();
        },
        always,
    );
}

/// The holder learns who asks and why, and keeps the lock.
#[test]
fn ask() {
    with_every_backend(
        Case::Ask,
        |backend_address| {
            let guard = backend_address.lock().acquire().unwrap();
            let asked = backend_address.ask("an urgent fix").unwrap();
            assert_eq!(asked.len(), 1, "{asked:?}");
            let request = guard.release_requested();
            // The daemon's protocol, which a database speaks too, does not carry the reason.
            if !matches!(backend_address.backend, "daemon" | "postgres") {
                assert_eq!(request.reason.as_deref(), Some("an urgent fix"));
            }
            guard.check().unwrap();
            guard.release().unwrap();
            assert!(backend_address.ask("no holder").unwrap().is_empty());
        },
        |backend_address| {
            let error = backend_address.ask("x").unwrap_err();
            assert_eq!(error.class(), Class::Unsupported);
            let error = backend_address.lock().ask().acquire().unwrap_err();
            assert!(
                matches!(error, Error::Input(_) | Error::Unsupported(_)),
                "{error:?}"
            );
        },
    );
}

/// C10 (changes to foreign locks), C16: a live hold is broken only with force, and only if it is
/// the named one.
#[test]
fn broken() {
    with_every_backend(
        Case::Break,
        |backend_address| {
            let guard = backend_address.lock().acquire().unwrap();
            let other = HoldId::new("another-owner@7");
            let error = backend_address
                .break_hold(Some(&other), Force::Yes)
                .unwrap_err();
            assert_eq!(error.class(), Class::NotHeld, "{error:?}");
            let error = backend_address.break_hold(None, Force::No).unwrap_err();
            assert!(error.is_busy(), "{error:?}");
            guard.check().unwrap();
            let holders = backend_address.inspect().holders;
            let id = holders[0].id.clone().unwrap();
            let broken = backend_address.break_hold(Some(&id), Force::Yes).unwrap();
            assert_eq!(broken.victims.len(), 1);
            guard.lost();
            // In one process, the handle of a lost lock excludes the next holder until it is
            // dropped.
            drop(guard);
            backend_address
                .lock()
                .wait(SOON)
                .acquire()
                .unwrap()
                .release()
                .unwrap();
        },
        always,
    );
}

/// K39 (fencing number per acquisition), R67: every exclusive holder has a larger fence than the
/// one before it.
#[test]
fn fence() {
    with_every_backend(
        Case::Fence,
        |backend_address| {
            let fences: Vec<_> = (0..3)
                .map(|_| {
                    let guard = backend_address.lock().fenced().acquire().unwrap();
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

/// The lock of a killed process becomes free.
#[test]
fn crash() {
    with_every_backend(
        Case::Crash,
        |backend_address| {
            let mut actor = Command::new(env!("CARGO_BIN_EXE_lock-actor"));
            actor
                .args(backend_address.actor_arguments())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let mut actor = actor.spawn().unwrap();
            let mut said = String::new();
            BufReader::new(actor.stdout.take().unwrap())
                .read_line(&mut said)
                .unwrap();
            assert_eq!(said, "held\n");
            let error = backend_address.lock().no_wait().acquire().unwrap_err();
            assert!(error.is_busy(), "{error:?}");
            actor.kill().unwrap();
            actor.wait().unwrap();
            backend_address
                .lock()
                .wait(Duration::from_secs(60))
                .acquire()
                .unwrap()
                .release()
                .unwrap();
        },
        |backend_address| {
            assert_eq!(
                backend_address.backend, "mem",
                "a lock of one process ends with it"
            )
        },
    );
}

/// Every client sees a held lock, and does not see a released one.
#[test]
fn looking() {
    with_every_backend(
        Case::Look,
        |backend_address| {
            assert!(backend_address.inspect().free);
            let guard = backend_address
                .lock()
                .purpose("looked at")
                .acquire()
                .unwrap();
            let state = backend_address.inspect();
            assert!(!state.free);
            assert_eq!(state.holders.len(), 1);
            assert!(state.to_string().contains("looked at"), "{state}");
            let listed = tenure_files::internal::block_on(
                backend_address.tenure.list(backend_address.above()),
            )
            .unwrap();
            assert!(listed.iter().any(|found| !found.free), "{listed:?}");
            let json = serde_json::to_value(&state).unwrap();
            assert_eq!(json["free"], false);
            guard.release().unwrap();
            assert!(backend_address.inspect().free);
        },
        always,
    );
}

/// A watch reports present, new and released holds.
#[test]
fn watching() {
    with_every_backend(
        Case::Watch,
        |backend_address| {
            let guard = backend_address.lock().acquire().unwrap();
            let mut watch = tenure_files::internal::block_on(
                backend_address.tenure.watch(backend_address.above()),
            )
            .unwrap();
            let mut next = || {
                tenure_files::internal::block_on(watch.next())
                    .unwrap()
                    .unwrap()
                    .kind
            };
            assert_eq!(
                [next(), next()],
                [ChangeKind::Present, ChangeKind::PresentEnd]
            );
            guard.release().unwrap();
            assert_eq!(next(), ChangeKind::Released);
            let guard = backend_address.lock().acquire().unwrap();
            assert_eq!(next(), ChangeKind::Granted);
            guard.release().unwrap();
        },
        always,
    );
}

/// C13: a detached hold is renewed and released by its text form.
#[test]
fn left() {
    with_every_backend(
        Case::Leave,
        |backend_address| {
            let guard = backend_address
                .lock()
                .follows(std::process::id())
                .acquire()
                .unwrap();
            let word = guard.into_hold().unwrap().to_string();
            let error = backend_address.lock().no_wait().acquire().unwrap_err();
            assert!(error.is_busy(), "{error:?}");
            let hold = word.parse().unwrap();
            tenure_files::internal::block_on(backend_address.tenure.renew_hold(&hold)).unwrap();
            tenure_files::internal::block_on(backend_address.tenure.release_hold(&hold)).unwrap();
            backend_address
                .lock()
                .wait(SOON)
                .acquire()
                .unwrap()
                .release()
                .unwrap();
            let again = tenure_files::internal::block_on(backend_address.tenure.renew_hold(&hold));
            assert!(again.is_err());
        },
        |backend_address| {
            let guard = backend_address.lock().acquire().unwrap();
            assert_eq!(guard.into_hold().unwrap_err().class(), Class::Unsupported);
        },
    );
}

/// C6: reversed lists do not deadlock, duplicates count once, and all are lost together.
#[test]
fn several() {
    let backend_addresses = everywhere();
    let places: Vec<_> = backend_addresses
        .iter()
        .map(|backend_address| backend_address.place.clone())
        .collect();
    let tenure = &backend_addresses[0].tenure;
    let rounds = |places: Vec<tenure::Address>| {
        for _ in 0..3 {
            let guards = tenure
                .lock_all(&places)
                .unwrap()
                .blocking()
                .acquire()
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
        .blocking()
        .acquire()
        .unwrap();
    assert_eq!(guards.len(), 1);
}

/// C7: a lock file needs no runtime: its process has only the heartbeat thread besides its own.
#[test]
fn a_lock_file_starts_no_runtime() {
    let temp = tempfile::tempdir().unwrap();
    let mut actor = Command::new(env!("CARGO_BIN_EXE_lock-actor"))
        .arg(temp.path().join("state.json"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(actor.stdout.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    let threads = std::fs::read_dir(format!("/proc/{}/task", actor.id()));
    assert_eq!(
        threads.unwrap().count(),
        2,
        "its own thread and the heartbeat"
    );
    drop(actor.stdin.take());
    assert!(actor.wait().unwrap().success());
}
