//! Waiting on the daemon: order, positions, deadlocks, cancellation.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tenure::{Error, LockState, Tenure};
use tenure_files::internal::block_on as wait;

use crate::LONG;
use crate::support::daemon::Daemon;

/// First come, first served, and every waiter knows its position.
#[test]
fn the_line_is_fair_and_its_places_are_known() {
    let daemon = Daemon::start();
    let guard = daemon
        .client()
        .lock("t:/a")
        .unwrap()
        .blocking()
        .purpose("first")
        .acquire()
        .unwrap();
    let (got, order) = mpsc::channel();
    thread::scope(|scope| {
        for number in 1..=3u32 {
            let (tell, told) = mpsc::channel();
            let (got, client) = (got.clone(), daemon.client());
            scope.spawn(move || {
                let lock = client.lock("t:/a").unwrap().blocking().wait(LONG);
                let told = move |busy: &tenure::Busy| drop(tell.send(busy.clone()));
                let guard = lock.on_wait(told).acquire().unwrap();
                got.send((number, guard.fence().unwrap())).unwrap();
                guard.release().unwrap();
            });
            // Start the next waiter when this one is queued.
            let busy = told.recv_timeout(LONG).unwrap();
            assert_eq!(busy.position, Some(number));
            let said = if number == 1 {
                "for first"
            } else {
                "came earlier and waits"
            };
            assert!(busy.to_string().contains(said), "{busy}");
        }
        let state: LockState = wait(daemon.client().inspect("t:/a")).unwrap();
        assert_eq!(state.known_waiters().len(), 3, "{state}");
        assert!(state.rule.unwrap().contains("recursive_rw"));
        guard.release().unwrap();
    });
    drop(got);
    let order: Vec<_> = order.iter().collect();
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(order.len(), 3);
}

/// A dropped future leaves no queue entry, and a grant that crosses it is released.
#[test]
fn a_dropped_acquire_leaves_nothing_behind() {
    let daemon = Daemon::start();
    let tenure = daemon.client();
    let guard = tenure.lock("t:/a").unwrap().blocking().acquire().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let lock = tenure.lock("t:/a").unwrap().on_wait(move |_| {
            let _ = tell.send(());
        });
        tokio::select! {
            _ = lock.acquire() => panic!("it is held"),
            queued = told.recv() => queued.unwrap(),
        }
    });
    while !wait(tenure.inspect("t:/a"))
        .unwrap()
        .known_waiters()
        .is_empty()
    {
        thread::yield_now();
    }
    guard.release().unwrap();
    tenure
        .lock("t:/a")
        .unwrap()
        .blocking()
        .no_wait()
        .acquire()
        .unwrap()
        .release()
        .unwrap();
}

/// E5: of two owners that would wait for each other, one is refused, with the cycle.
#[test]
fn a_deadlock_is_refused_with_its_circle() {
    let daemon = Daemon::start();
    let session = |name: &str| daemon.client().session(name);
    let lock = |tenure: &Tenure, path: &str| tenure.lock(path).unwrap().blocking().wait(LONG);
    let (amy, bob) = (session("amy"), session("bob"));
    let a = lock(&amy, "t:/a").acquire().unwrap();
    let b = lock(&bob, "t:/b").acquire().unwrap();
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let waiting = scope.spawn({
            let amy = amy.clone();
            move || {
                lock(&amy, "t:/b")
                    .on_wait(move |_| {
                        let _ = tell.send(());
                    })
                    .acquire()
            }
        });
        told.recv_timeout(LONG).unwrap();
        let error = lock(&bob, "t:/a").refuse_deadlock().acquire().unwrap_err();
        let Error::Busy(busy) = &error else {
            panic!("{error:?}");
        };
        let mut circle = busy.deadlock.clone();
        circle.sort();
        assert_eq!(circle, ["amy", "bob"], "{error}");
        b.release().unwrap();
        waiting.join().unwrap().unwrap().release().unwrap();
    });
    a.release().unwrap();
}

/// R83: an owner has one queue entry, so in a session the second request waits for the first.
#[test]
fn requests_of_a_session_take_turns() {
    let daemon = Daemon::start();
    let held = daemon
        .client()
        .lock("t:/a")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap();
    let session = daemon.client().session("turns");
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let first = scope.spawn({
            let session = session.clone();
            move || {
                let lock = session.lock("t:/a").unwrap().blocking().wait(LONG);
                lock.on_wait(move |_| {
                    let _ = tell.send(());
                })
                .acquire()
            }
        });
        told.recv_timeout(LONG).unwrap();
        let error = session
            .lock("t:/b")
            .unwrap()
            .blocking()
            .no_wait()
            .acquire()
            .unwrap_err();
        assert!(error.is_busy(), "{error:?}");
        let short = Duration::from_millis(20);
        let error = session
            .lock("t:/b")
            .unwrap()
            .blocking()
            .wait(short)
            .acquire()
            .unwrap_err();
        assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
        held.release().unwrap();
        first.join().unwrap().unwrap().release().unwrap();
    });
}
