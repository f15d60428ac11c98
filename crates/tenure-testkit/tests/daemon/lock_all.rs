//! C6 (several locks at once): several paths of one daemon, all or none. One step per namespace.

use std::num::NonZeroU32;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tenure::{Algorithm, Error, Fence, Guards, LockAll, Tenure};
use tenure_files::internal::block_on as wait;

use crate::LONG;
use crate::support::daemon::Daemon;

fn all(tenure: &Tenure, places: &[&str]) -> LockAll {
    tenure.lock_all(places.iter().copied()).unwrap()
}

fn fences(guards: &Guards) -> Vec<Fence> {
    guards.iter().map(|guard| guard.fence().unwrap()).collect()
}

fn holders(tenure: &Tenure, place: &str) -> usize {
    wait(tenure.inspect(place)).unwrap().holders.len()
}

/// C6, R66: paths that are acquired in one step share one fence.
#[test]
fn paths_of_one_namespace_are_taken_in_one_step() {
    let daemon = Daemon::start();
    let tenure = daemon.client();
    let guards = wait(all(&tenure, &["t:/x/b", "t:/x/a", "t:/x/b"]).acquire()).unwrap();
    let places: Vec<String> = guards.iter().map(|one| one.place().to_string()).collect();
    assert_eq!(places, ["t:/x/b", "t:/x/a"], "as they were given");
    let fences = fences(&guards);
    assert_eq!(fences[0], fences[1]);
    wait(guards.check()).unwrap();
    wait(guards.release()).unwrap();
    assert_eq!(holders(&tenure, "t:/x/a") + holders(&tenure, "t:/x/b"), 0);
}

/// C6: a third client never sees one path taken while the request waits for the other, neither
/// before nor after the timeout.
#[test]
fn who_waits_for_one_has_none() {
    let daemon = Daemon::start();
    let (amy, bob) = (daemon.client(), daemon.client());
    let held = amy.lock("t:/x/b").unwrap().blocking().acquire().unwrap();
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lock = all(&bob, &["t:/x/a", "t:/x/b"]).wait(Duration::from_millis(500));
            wait(
                lock.on_wait(move |busy| drop(tell.send(busy.clone())))
                    .acquire(),
            )
        });
        let busy = told.recv_timeout(LONG).unwrap();
        assert_eq!(busy.place.to_string(), "t:/x/b", "{busy}");
        assert_eq!(holders(&amy, "t:/x/a"), 0);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
    });
    assert!(
        wait(amy.inspect("t:/x/a"))
            .unwrap()
            .known_waiters()
            .is_empty(),
        "a place in line was left behind"
    );
    let error = wait(all(&bob, &["t:/x/a", "t:/x/b"]).no_wait().acquire()).unwrap_err();
    assert!(matches!(error, Error::Busy(_)), "{error}");
    assert_eq!(holders(&amy, "t:/x/a"), 0);
    held.release().unwrap();
}

/// A waiter for two paths gets both with one fence when the last one is free.
#[test]
fn a_waiter_gets_all_of_them() {
    let daemon = Daemon::start();
    let (amy, bob) = (daemon.client(), daemon.client());
    let mut held = wait(all(&amy, &["t:/x/a", "t:/x/b"]).acquire())
        .unwrap()
        .into_vec();
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lock = all(&bob, &["t:/x/b", "t:/x/a"]).wait(LONG);
            wait(
                lock.on_wait(move |busy| drop(tell.send(busy.clone())))
                    .acquire(),
            )
            .unwrap()
        });
        told.recv_timeout(LONG).unwrap();
        wait(held.pop().unwrap().release()).unwrap();
        assert_eq!(wait(bob.inspect("t:/x/b")).unwrap().holders.len(), 0);
        wait(held.pop().unwrap().release()).unwrap();
        let guards = waiting.join().unwrap();
        let fences = fences(&guards);
        assert_eq!(fences[0], fences[1]);
        wait(guards.check()).unwrap();
        wait(guards.release()).unwrap();
    });
}

/// If the paths were acquired one after the other, the second could queue behind a tree lock that
/// waits for the first: a deadlock.
#[test]
fn tree_locks_in_between_do_not_deadlock() {
    let daemon = Daemon::start();
    let rounds = |places: &[&str]| {
        let tenure = daemon.client();
        for _ in 0..20 {
            let guards = wait(all(&tenure, places).wait(LONG).acquire()).unwrap();
            wait(guards.release()).unwrap();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| rounds(&["t:/x/a", "t:/x/b"]));
        scope.spawn(|| rounds(&["t:/x/b", "t:/x/a"]));
        scope.spawn(|| rounds(&["t:/x"]));
        scope.spawn(|| rounds(&["t:/x/b/c", "t:/x/a"]));
    });
}

/// C6, R31: paths of several namespaces, one of them inside another, are acquired namespace by
/// namespace. If a later one fails, the earlier ones are released before the error is returned.
#[test]
fn several_namespaces_are_taken_one_after_the_other() {
    let daemon = Daemon::start();
    let (amy, bob) = (daemon.client(), daemon.client());
    wait(amy.set_policy("t:/x/m", Algorithm::PointRw)).unwrap();
    let list = ["t:/y/1", "t:/x/z", "t:/x/m/1", "t:/x/b"];
    let guards = wait(all(&amy, &list).acquire()).unwrap();
    let places: Vec<String> = guards.iter().map(|one| one.place().to_string()).collect();
    assert_eq!(places, list);
    let fences = fences(&guards);
    assert_eq!(fences[1], fences[3], "one namespace, one step");
    wait(guards.check()).unwrap();
    wait(guards.release()).unwrap();

    let held = amy.lock("t:/y/1").unwrap().blocking().acquire().unwrap();
    let error = wait(all(&bob, &list).no_wait().acquire()).unwrap_err();
    let Error::Busy(busy) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(busy.place.to_string(), "t:/y/1");
    for place in ["t:/x/z", "t:/x/m/1", "t:/x/b"] {
        assert_eq!(holders(&amy, place), 0, "{place}");
    }
    held.release().unwrap();

    let rounds = |list: &[&str]| {
        let tenure = daemon.client();
        for _ in 0..20 {
            let guards = wait(all(&tenure, list).wait(LONG).acquire()).unwrap();
            wait(guards.release()).unwrap();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| rounds(&["t:/y/1", "t:/x/z", "t:/x/m/1"]));
        scope.spawn(|| rounds(&["t:/x/m/1", "t:/x/b", "t:/x/z"]));
        scope.spawn(|| rounds(&["t:/x/m", "t:/y", "t:/x/z"]));
    });
}

/// R30: a path above the routing depth has no namespace and is refused, whatever else is requested.
#[test]
fn a_path_that_belongs_nowhere_is_refused() {
    let daemon = Daemon::start();
    let tenure = daemon.client();
    let error = wait(all(&tenure, &["t:/", "t:/x/a"]).no_wait().acquire()).unwrap_err();
    assert!(
        matches!(error, Error::Input(_) | Error::Unsupported(_)),
        "{error}"
    );
    assert_eq!(holders(&tenure, "t:/x/a"), 0);
}

/// The loss of one lock is the loss of all.
#[test]
fn lost_as_one() {
    let daemon = Daemon::start();
    let tenure = daemon.client();
    let guards = wait(all(&tenure, &["t:/x/a", "t:/x/b"]).acquire()).unwrap();
    let state = wait(tenure.inspect("t:/x/b")).unwrap();
    let id = state.holders[0].id.clone();
    wait(tenure.break_hold("t:/x/b", id.as_ref(), tenure::Force::Yes, "a test")).unwrap();
    wait(guards.lost());
    assert!(wait(guards.check()).is_err());
    assert!(wait(guards.release()).is_err());
}

/// C6: one time limit for all locks, however many are held.
#[test]
fn the_patience_is_one_for_all() {
    let daemon = Daemon::start();
    let (amy, bob) = (daemon.client(), daemon.client());
    let first = amy.lock("t:/x/a").unwrap().blocking().acquire().unwrap();
    let _second = amy.lock("t:/y/a").unwrap().blocking().acquire().unwrap();
    let wait_limit = Duration::from_millis(1500);
    let begun = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lock = all(&bob, &["t:/x/a", "t:/y/a"]).wait(wait_limit);
            wait(lock.acquire()).unwrap_err()
        });
        // The first lock is released after most of the time; then the request waits for the second.
        thread::sleep(wait_limit * 2 / 3);
        first.release().unwrap();
        let error = waiting.join().unwrap();
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
        let Error::TimedOut(busy) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(busy.place.to_string(), "t:/y/a");
    });
    let waited = begun.elapsed();
    assert!(
        waited >= wait_limit && waited < wait_limit * 5 / 3,
        "{waited:?}"
    );
    assert_eq!(holders(&amy, "t:/x/a"), 0);
}

/// R50 (semaphores need permits), R54: only semaphores have permits. In other namespaces the daemon
/// ignores `permits`, so a client that asks for one of five would get an exclusive lock.
#[test]
fn permits_are_refused_where_there_are_none() {
    let daemon = Daemon::start();
    let (amy, bob) = (daemon.client(), daemon.client());
    let five = NonZeroU32::new(5).unwrap();
    let permit = |tenure: &Tenure| tenure.lock("t:/x/a").unwrap().permit(five);
    let error = wait(permit(&amy).acquire()).unwrap_err();
    assert!(error.to_string().contains("no semaphore"), "{error}");
    assert!(
        matches!(error, Error::Input(_) | Error::Unsupported(_)),
        "{error:?}"
    );
    assert_eq!(holders(&amy, "t:/x/a"), 0, "nothing is left of it");

    // The request does not wait either.
    let held = bob.lock("t:/x/a").unwrap().blocking().acquire().unwrap();
    let error = wait(permit(&amy).acquire()).unwrap_err();
    assert!(error.to_string().contains("no semaphore"), "{error}");
    assert!(
        wait(amy.inspect("t:/x/a"))
            .unwrap()
            .known_waiters()
            .is_empty()
    );
    held.release().unwrap();

    wait(amy.set_policy("t:/x", Algorithm::Semaphore)).unwrap();
    let (one, two) = (wait(permit(&amy).acquire()), wait(permit(&bob).acquire()));
    wait(one.unwrap().release()).unwrap();
    wait(two.unwrap().release()).unwrap();
}
