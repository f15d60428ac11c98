//! Held locks on the daemon: renewals, sessions, release requests, policies.

use std::num::NonZeroU32;
use std::sync::mpsc;
use std::time::Duration;

use tenure::{Algorithm, Capabilities, Class, Error, Fencing, HoldEvent};
use tenure_files::internal::block_on as wait;

use crate::LONG;
use crate::support::daemon::Daemon;

/// Leases are renewed automatically, one renewal for all holds of a session, counted from its
/// sending.
#[test]
fn leases_are_renewed_for_a_whole_session() {
    let daemon = Daemon::start();
    let ttl = Duration::from_millis(600);
    let session = daemon.client().session("worker-7");
    let lock = |path: &str| {
        session
            .lock(path)
            .unwrap()
            .blocking()
            .ttl(ttl)
            .acquire()
            .unwrap()
    };
    // Locks of one session never exclude each other, also as ancestor and descendant, and may be in
    // several namespaces.
    let guards = [lock("t:/a"), lock("t:/a/b"), lock("t:/c")];
    let (tell, told) = mpsc::channel();
    for (number, guard) in guards.iter().enumerate() {
        let tell = tell.clone();
        guard.listen(move |event| {
            if let HoldEvent::Renewed(lease) = event {
                let _ = tell.send((number, lease.sent));
            }
        });
    }
    let mut sent = [Duration::ZERO; 3];
    for _ in 0..3 * 4 {
        let (number, at) = told.recv_timeout(LONG).unwrap();
        assert!(at >= sent[number], "a lease went back");
        sent[number] = at;
    }
    assert_eq!(sent[0], sent[2], "one renewal for both namespaces");
    for guard in guards {
        let left = guard.valid_for().unwrap();
        assert!(left > Duration::ZERO && left <= ttl * 4 / 5, "{left:?}");
        assert_eq!(guard.owner(), "worker-7");
        guard.check().unwrap();
        guard.release().unwrap();
    }
    assert!(wait(session.inspect("t:/a")).unwrap().free);
}

/// A path that a session holds twice is released by the last guard; another ttl in one session is
/// refused.
#[test]
fn a_session_counts_its_guards_and_keeps_one_ttl() {
    let daemon = Daemon::start();
    let session = daemon.client().session("twice");
    let first = session.lock("t:/a").unwrap().blocking().acquire().unwrap();
    let before = first.fence();
    let second = session.lock("t:/a").unwrap().blocking().acquire().unwrap();
    assert!(second.fence() > before);
    // R69: both guards have the newest fence; the older one would not pass the check.
    assert_eq!(first.fence(), second.fence());
    first.check().unwrap();
    first.release().unwrap();
    second.check().unwrap();
    let other = session
        .lock("t:/b")
        .unwrap()
        .blocking()
        .ttl(Duration::from_secs(7));
    assert_eq!(other.acquire().unwrap_err().class(), Class::BadInput);
    let stranger = daemon.client();
    assert!(
        stranger
            .lock("t:/a")
            .unwrap()
            .blocking()
            .no_wait()
            .acquire()
            .unwrap_err()
            .is_busy()
    );
    second.release().unwrap();
    stranger
        .lock("t:/a")
        .unwrap()
        .blocking()
        .no_wait()
        .acquire()
        .unwrap()
        .release()
        .unwrap();
}

/// K36: a guard in a child of `fork` does nothing: its drop does not release the lock.
#[test]
#[allow(unsafe_code, reason = "there is no other way to fork")]
fn a_guard_that_came_over_fork_is_inert() {
    let daemon = Daemon::start();
    let tenure = daemon.client();
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("state").display().to_string();
    let places = ["t:/a", "mem:forked/lock", &file];
    let guards = places.map(|place| tenure.lock(place).unwrap().blocking().acquire().unwrap());
    // SAFETY: the child drops the guards, which uses no lock and no thread of its parent, and exits
    // without cleanup.
    let child = match unsafe { libc::fork() } {
        0 => {
            drop(guards);
            // SAFETY: only ends this process.
            unsafe { libc::_exit(0) }
        }
        child => child,
    };
    let mut status = 0;
    // SAFETY: `status` is a local variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    for guard in guards {
        guard.check().unwrap();
        guard.release().unwrap();
    }
}

/// E2: the holder gets a release request at once, long before the next renewal.
#[test]
fn a_release_request_is_handed_over_directly() {
    let daemon = Daemon::start();
    let guard = daemon
        .client()
        .lock("t:/a")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lock = daemon
                .client()
                .lock("t:/a")
                .unwrap()
                .blocking()
                .ask()
                .wait(LONG);
            lock.acquire()
        });
        let renewed = guard.lease().unwrap().renew_at();
        guard.release_requested();
        assert!(tenure::Lease::now() < renewed, "only the renewal told");
        guard.release().unwrap();
        waiting.join().unwrap().unwrap().release().unwrap();
    });
}

/// R50 (semaphores need permits) to R54 (permits have no token), E6: permits and shared trees in
/// namespaces that have them; both without a fence.
#[test]
fn permits_and_trees() {
    let daemon = Daemon::start();
    let tenure = daemon.client();
    wait(tenure.set_policy("pool:/gpu", Algorithm::Semaphore)).unwrap();
    assert_eq!(wait(tenure.policies()).unwrap().len(), 1);
    let two = NonZeroU32::new(2).unwrap();
    let permit = || {
        tenure
            .lock("pool:/gpu/a")
            .unwrap()
            .blocking()
            .permit(two)
            .no_wait()
    };
    let (one, other) = (permit().acquire().unwrap(), permit().acquire().unwrap());
    assert_eq!(one.fence(), None);
    assert_eq!(Capabilities::of(one.place()).fence, Fencing::Always);
    let error = permit().acquire().unwrap_err();
    assert!(error.is_busy(), "{error:?}");
    one.check().unwrap();
    one.release().unwrap();
    permit().acquire().unwrap().release().unwrap();
    let three = NonZeroU32::new(3).unwrap();
    let wrong = tenure
        .lock("pool:/gpu/a")
        .unwrap()
        .blocking()
        .permit(three)
        .acquire();
    assert!(matches!(wrong, Err(Error::Refused(_))), "{wrong:?}");
    other.release().unwrap();
    wait(tenure.remove_policy("pool:/gpu")).unwrap();

    let tree = tenure
        .lock("t:/a/tree")
        .unwrap()
        .blocking()
        .shared_tree()
        .acquire()
        .unwrap();
    tree.check().unwrap();
    let below = || tenure.lock("t:/a/tree/leaf").unwrap().blocking().no_wait();
    assert!(below().acquire().unwrap_err().is_busy());
    below().shared().acquire().unwrap().release().unwrap();
    tree.release().unwrap();
    below().acquire().unwrap().release().unwrap();
}
