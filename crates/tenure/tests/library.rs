//! Behaviour that all backends share, tested in memory; scripted locks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(feature = "files")]
use tenure::Need;
use tenure::testing::Script;
use tenure::{Error, HoldEvent, LostCause, Mode, Tenure};
use tenure_base::block_on as wait;

/// Sets its flag when it is dropped, to show that a body was dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// On loss the body is dropped at its await, and its value does not count; this works in a task of
/// any runtime.
#[tokio::test(flavor = "multi_thread")]
async fn the_body_of_with_ends_with_the_lock() {
    let script = Arc::new(Script::new());
    let dropped = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn({
        let (script, dropped) = (Arc::clone(&script), Arc::clone(&dropped));
        async move {
            let place = script.place();
            tenure::with(place, async move |_guard| {
                let _flag = Dropped(dropped);
                script.lose(LostCause::Expired, "as the script says");
                std::future::pending::<Result<(), Error>>().await
            })
            .await
        }
    });
    let error = task.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, Error::Lost(lost) if lost.cause == LostCause::Expired),
        "{error:?}"
    );
    assert!(dropped.load(Ordering::SeqCst));
    assert!(!script.is_held());
}

/// `with` returns the value or the error of its body, and releases the lock in both cases.
#[test]
fn the_body_of_with_decides_its_result() {
    let script = Script::new();
    let lock = || tenure::lock(script.place()).unwrap();
    let good = wait(lock().with(async |guard| Ok::<_, Error>(guard.mode())));
    assert_eq!(good.unwrap(), Mode::Exclusive);
    let failed: Result<(), Box<dyn std::error::Error>> =
        wait(lock().with(async |_| Err("as planned".into())));
    assert_eq!(failed.unwrap_err().to_string(), "as planned");
    let inside = tenure::blocking::lock(script.place())
        .unwrap()
        .with(|guard| {
            script.lose(LostCause::Killed, "inside");
            assert!(guard.still_held().is_err());
            Ok::<_, Error>("not seen")
        });
    assert!(matches!(inside, Err(Error::Lost(_))), "{inside:?}");
    assert!(!script.is_held());
}

/// A scripted lock is busy, asked for, leased and lost on command.
#[test]
fn a_script_decides_what_happens() {
    let script = Script::new();
    let lock = || tenure::blocking::lock(script.place()).unwrap();
    let stranger = script.occupy("an upgrade").unwrap();
    let error = lock().no_wait().acquire().unwrap_err();
    assert!(error.to_string().contains("another client"), "{error}");
    assert!(error.to_string().contains("an upgrade"), "{error}");
    drop(stranger);

    let guard = lock().acquire().unwrap();
    assert_eq!(guard.valid_for(), None);
    script.lease(Duration::from_secs(60));
    assert!(guard.valid_for().unwrap() > Duration::from_secs(40));
    script.ask("a drill");
    assert_eq!(
        guard.requested().unwrap().reason.as_deref(),
        Some("a drill")
    );
    guard.check().unwrap();
    script.lease(Duration::ZERO);
    assert_eq!(guard.lost().cause, LostCause::Unconfirmed);
    assert!(matches!(guard.release(), Err(Error::Lost(_))));
}

/// Late listeners get the present facts, and no event comes after the loss.
#[test]
fn listeners_hear_what_stands_already() {
    let script = Script::new();
    let guard = tenure::blocking::lock(script.place())
        .unwrap()
        .acquire()
        .unwrap();
    script.ask("early");
    script.lose(LostCause::Killed, "early");
    script.lease(Duration::from_secs(1));
    let (tell, told) = std::sync::mpsc::channel();
    guard.listen(move |event| {
        let _ = tell.send(match event {
            HoldEvent::Asked(_) => "asked",
            HoldEvent::Lost(_) => "lost",
            _ => "other",
        });
    });
    drop(guard);
    assert_eq!(told.iter().collect::<Vec<_>>(), ["asked", "lost"]);
}

/// A listener may call the guard of its own lock.
#[test]
fn a_listener_may_look_at_its_lock() {
    let script = Script::new();
    let tenure = Tenure::default();
    let guard = tenure
        .lock(script.place())
        .unwrap()
        .blocking()
        .acquire()
        .unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let (looking, place) = (tenure.clone(), script.place());
    guard.listen(move |_| {
        let _ = tell.send(wait(looking.inspect(&place)).unwrap().free);
    });
    wait(tenure.break_hold(script.place(), None, tenure::Force::Yes, "test")).unwrap();
    assert!(told.recv_timeout(Duration::from_secs(20)).unwrap());
    drop(guard);
}

/// A request that the backend does not support is refused before anything is changed.
#[cfg(feature = "files")]
#[test]
fn needs_are_checked_first() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("state.json");
    let lock = || tenure::blocking::lock(&file).unwrap();
    let two = NonZeroU32::new(2).unwrap();
    for refused in [
        lock().require(Need::FairOrder),
        lock().require(Need::Lease),
        lock().ttl(Duration::from_secs(1)),
        lock().permit(two),
        lock().shared_tree(),
        lock().refuse_deadlock(),
    ] {
        let error = refused.acquire().unwrap_err();
        assert!(
            matches!(error, Error::Input(_) | Error::Unsupported(_)),
            "{error}"
        );
    }
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    let guard = lock().require(Need::Fence).acquire().unwrap();
    assert!(guard.fence().is_some());
}

/// Permits and trees in memory follow the rules of the daemon; permits and locks of one name
/// exclude each other.
#[test]
fn permits_and_trees_in_memory() {
    let tenure = Tenure::default();
    let lock = |name: &str| {
        tenure
            .lock(format!("mem:permits/{name}"))
            .unwrap()
            .blocking()
            .no_wait()
    };
    let two = NonZeroU32::new(2).unwrap();
    let one = lock("gpu").permit(two).acquire().unwrap();
    let other = lock("gpu").permit(two).acquire().unwrap();
    assert!(lock("gpu").permit(two).acquire().unwrap_err().is_busy());
    assert!(lock("gpu").acquire().unwrap_err().is_busy());
    drop((one, other));
    let writer = lock("gpu").acquire().unwrap();
    assert!(lock("gpu").permit(two).acquire().unwrap_err().is_busy());
    drop(writer);
    let tree = lock("tree").shared_tree().acquire().unwrap();
    assert!(lock("tree/leaf").acquire().unwrap_err().is_busy());
    lock("tree/leaf")
        .shared()
        .acquire()
        .unwrap()
        .release()
        .unwrap();
    drop(tree);
    let parent = lock("tree").acquire().unwrap();
    assert!(lock("tree/leaf").shared().acquire().unwrap_err().is_busy());
    drop(parent);
}

/// C6: all or none within one time limit; a parent and its child together; options apply only to
/// the backends that have them.
#[cfg(feature = "files")]
#[test]
fn several_locks_are_one() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("old").display().to_string();
    let script = Script::new();
    let tenure = Tenure::default();
    let below = format!("{}/child", script.place());
    let places = [script.place().to_string(), below, file.clone()];
    let guards = wait(tenure.lock_all(&places).unwrap().ask().acquire()).unwrap();
    let given: Vec<String> = guards
        .iter()
        .map(|guard| guard.place().to_string())
        .collect();
    assert_eq!(given[0], places[0]);
    assert!(given[2].ends_with("/old"));
    script.lose(LostCause::Killed, "one of them");
    wait(guards.lost());
    assert!(wait(guards.check()).is_err());
    assert!(wait(guards.release()).is_err());

    let held = tenure.lock(&file).unwrap().blocking().acquire().unwrap();
    let short = Duration::from_millis(30);
    let both = tenure.lock(script.place()).unwrap().also(&file).unwrap();
    let error = wait(both.wait(short).acquire()).unwrap_err();
    assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
    assert!(!script.is_held(), "all or none");
    drop(held);
}

/// The time limit includes the wait for the turn in the session.
#[test]
fn a_request_of_a_session_waits_no_longer_than_its_limit() {
    let script = Script::new();
    let _held = script.occupy("all day").unwrap();
    let session = Tenure::default().session("two requests");
    let limit = Duration::from_secs(2);
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let lock = session.lock(script.place()).unwrap().blocking();
            scope.spawn(|| {
                let error = lock.wait(limit).acquire().unwrap_err();
                assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
            });
        }
    });
    assert!(began.elapsed() < 2 * limit, "one after the other");
}

/// A break of one lock of a session does not end the session's request for another.
#[test]
fn a_request_goes_on_when_another_lock_of_its_session_is_broken() {
    let (broken, wanted) = (Script::new(), Script::new());
    let session = Tenure::default().session("breaks");
    let lock = |script: &Script| session.lock(script.place()).unwrap().blocking();
    let first = lock(&broken).acquire().unwrap();
    let held = wanted.occupy("for a while").unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let lock = lock(&wanted).on_wait(move |_| {
            let _ = tell.send(());
        });
        let waiting = scope.spawn(|| lock.acquire());
        told.recv().unwrap();
        wait(Tenure::default().break_hold(broken.place(), None, tenure::Force::Yes, "test"))
            .unwrap();
        assert_eq!(first.lost().cause, LostCause::Broken);
        held.release().unwrap();
        let next = waiting.join().unwrap().unwrap();
        next.check().unwrap();
        next.release().unwrap();
    });
    let state = wait(Tenure::default().inspect(wanted.place())).unwrap();
    assert!(state.free, "{state}");
}
