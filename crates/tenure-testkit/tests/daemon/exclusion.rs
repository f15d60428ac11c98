//! Mutual exclusion from the view of the holders.
//!
//! While connections are delayed and cut, no two holders believe at the same time that they hold
//! the lock, and fences grow with every holder.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tenure::{Fence, Lease, Tenure};

use crate::support::daemon::relay::{Relay, Traffic};
use crate::support::daemon::{Daemon, client};

const CLIENTS: usize = 4;
const TTL: Duration = Duration::from_millis(800);
const RUN: Duration = Duration::from_secs(8);
/// Time limit for the faults to hit a holder.
const LONGEST: Duration = Duration::from_secs(60);

/// The time span in which a client believed to hold the lock, on a clock that all clients share.
#[derive(Debug)]
struct Belief {
    fence: Fence,
    from: Duration,
    to: Duration,
    was_lost: bool,
}

#[test]
fn no_client_believes_to_hold_while_another_does() {
    let daemon = Daemon::start();
    let relays: Vec<Relay> = (0..CLIENTS).map(|_| Relay::to(&daemon.node)).collect();
    let over = AtomicBool::new(false);
    let beliefs = Mutex::new(Vec::<Belief>::new());
    thread::scope(|scope| {
        for relay in &relays {
            let tenure = client([&relay.node]);
            let (over, beliefs) = (&over, &beliefs);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    if let Some(belief) = hold_once(&tenure) {
                        beliefs.lock().unwrap().push(belief);
                    }
                }
            });
        }
        let came_through = || beliefs.lock().unwrap().iter().any(|one| one.was_lost);
        trouble(&relays, came_through);
        over.store(true, Ordering::SeqCst);
        for relay in &relays {
            relay.set(Traffic::Passes);
            relay.cut();
        }
    });
    let mut beliefs = beliefs.into_inner().unwrap();
    beliefs.sort_by_key(|belief| belief.fence);
    for pair in beliefs.windows(2) {
        let [one, next] = pair else { continue };
        assert!(one.fence < next.fence, "one fence twice: {one:?} {next:?}");
        assert!(one.to <= next.from, "two at once: {one:?} {next:?}");
    }
    let lost = beliefs.iter().filter(|belief| belief.was_lost).count();
    assert!(
        beliefs.len() > CLIENTS,
        "hardly anything was held: {beliefs:?}"
    );
    assert!(lost > 0, "no trouble came through: {beliefs:?}");
}

/// Acquires the lock and holds it as long as allowed, up to a limit.
fn hold_once(tenure: &Tenure) -> Option<Belief> {
    let lock = tenure.lock("t:/exclusion").unwrap().blocking().ttl(TTL);
    let guard = lock.wait(Duration::from_secs(1)).acquire().ok()?;
    let from = Lease::now();
    let fence = guard.fence().unwrap();
    let mut good_until = guard.lease().unwrap().safe_until();
    while guard.still_held().is_ok() && Lease::now() < from + TTL * 2 {
        good_until = guard.lease().unwrap().safe_until();
        thread::sleep(Duration::from_millis(5));
    }
    let was_lost = guard.still_held().is_err();
    let to = if was_lost { good_until } else { Lease::now() };
    let _ = guard.release();
    Some(Belief {
        fence,
        from,
        to,
        was_lost,
    })
}

/// Delays or cuts one client after the other for longer than a lease, until `came_through` is true.
fn trouble(relays: &[Relay], came_through: impl Fn() -> bool) {
    let begun = Lease::now();
    let kinds = [Some(Traffic::Held), None, Some(Traffic::AnswersHeld)];
    for (relay, kind) in relays.iter().cycle().zip(kinds.iter().cycle()) {
        let now = Lease::now();
        if now >= begun + LONGEST || (now >= begun + RUN && came_through()) {
            return;
        }
        match kind {
            Some(traffic) => {
                relay.set(*traffic);
                thread::sleep(TTL * 5 / 4);
                relay.set(Traffic::Passes);
            }
            None => relay.cut(),
        }
        thread::sleep(TTL / 8);
    }
}
