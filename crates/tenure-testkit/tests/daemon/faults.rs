//! Faults: nodes, connections, lost answers, the daemon itself.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tenure::blocking::Guard;
use tenure::{Endpoint, Error, Lease, LostCause};
use tenure_files::internal::block_on as wait;
use tenure_wire::v1::ErrorDetail;

use crate::LONG;
use crate::support::daemon::relay::{Relay, Traffic};
use crate::support::daemon::{Daemon, client};

const TTL: Duration = Duration::from_millis(1500);

/// Returns a port on which no process listens.
fn unreachable_node() -> Endpoint {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    Endpoint::new("127.0.0.1", listener.local_addr().unwrap().port())
}

/// The client uses any reachable node; if there is none, the error says so.
#[test]
fn another_node_is_tried_when_one_does_not_answer() {
    let daemon = Daemon::start();
    let tenure = client(&[unreachable_node(), daemon.node.clone()]);
    let guard = tenure.lock("t:/a").unwrap().blocking().acquire().unwrap();
    guard.check().unwrap();
    guard.release().unwrap();

    let alone = client(&[unreachable_node()]);
    let error = alone
        .lock("t:/a")
        .unwrap()
        .blocking()
        .wait(Duration::ZERO)
        .acquire()
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("cannot be reached"), "{error}");
}

/// The serving node goes away: the hold continues on the other node with the same fence.
#[test]
fn a_hold_survives_the_loss_of_its_node() {
    let daemon = Daemon::start();
    let (one, two) = (Relay::to(&daemon.node), Relay::to(&daemon.node));
    let tenure = client([&one.node, &two.node]);
    let guard = tenure
        .lock("t:/a")
        .unwrap()
        .blocking()
        .ttl(TTL)
        .acquire()
        .unwrap();
    let fence = guard.fence();
    one.set(Traffic::Held);
    // A renewal after that moment went over the other node.
    let (tell, told) = mpsc::channel();
    guard.listen(move |event| {
        let _ = tell.send(format!("{event:?}"));
    });
    let held_from = Lease::now();
    while guard.lease().unwrap().sent < held_from {
        let event = told.recv_timeout(LONG).unwrap();
        assert!(!event.starts_with("Lost"), "{event}");
    }
    guard.check().unwrap();
    assert_eq!(guard.fence(), fence);
    guard.release().unwrap();
}

/// P1 (exclusive lock key), P2: grants survive `kill -9` of the daemon; holds and the queue
/// continue.
#[test]
fn holds_and_waiters_survive_a_restart() {
    let mut daemon = Daemon::start();
    let tenure = daemon.client();
    let ttl = Duration::from_secs(20);
    let guard = tenure
        .lock("t:/a")
        .unwrap()
        .blocking()
        .ttl(ttl)
        .acquire()
        .unwrap();
    let fence = guard.fence();
    let other = daemon.client();
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let waiting = scope.spawn(move || {
            let lock = other.lock("t:/a").unwrap().blocking().wait(LONG);
            lock.on_wait(move |_| {
                let _ = tell.send(());
            })
            .acquire()
        });
        told.recv_timeout(LONG).unwrap();
        daemon.kill();
        daemon.restart();
        guard.check().unwrap();
        assert_eq!(guard.fence(), fence);
        guard.release().unwrap();
        let next = waiting.join().unwrap().unwrap();
        assert!(next.fence() > fence);
        next.release().unwrap();
    });
}

/// Promise 1: a disconnected holder knows at 80 % of its lease that it has lost the lock, before
/// another client can get it.
#[test]
fn a_holder_that_is_cut_off_stops_before_the_next_begins() {
    let daemon = Daemon::start();
    let relay = Relay::to(&daemon.node);
    let tenure = client([&relay.node]);
    let guard = tenure
        .lock("t:/a")
        .unwrap()
        .blocking()
        .ttl(TTL)
        .acquire()
        .unwrap();
    relay.set(Traffic::Held);
    thread::scope(|scope| {
        let next = scope.spawn(|| {
            let guard = daemon
                .client()
                .lock("t:/a")
                .unwrap()
                .blocking()
                .wait(LONG)
                .acquire()
                .unwrap();
            (Lease::now(), guard)
        });
        let lost = guard.lost();
        let stopped = Lease::now();
        assert_eq!(lost.cause, LostCause::Unconfirmed);
        assert_eq!(guard.valid_for(), Some(Duration::ZERO));
        let (began, next) = next.join().unwrap();
        assert!(
            stopped < began,
            "stopped at {stopped:?}, the next began at {began:?}"
        );
        assert!(next.fence() > guard.fence());
        next.release().unwrap();
    });
    relay.cut();
    assert!(matches!(guard.release(), Err(Error::Lost(_))));
}

/// The same if the daemon itself is stopped. After it continues it grants the full lease again, so
/// the next holder comes late.
#[test]
fn a_daemon_that_stands_still_confirms_nothing() {
    let daemon = Daemon::start();
    let guard = daemon
        .client()
        .lock("t:/a")
        .unwrap()
        .blocking()
        .ttl(TTL)
        .acquire()
        .unwrap();
    daemon.stop();
    let lost = guard.lost();
    assert_eq!(lost.cause, LostCause::Unconfirmed);
    daemon.go_on();
    drop(guard);
    daemon
        .client()
        .lock("t:/a")
        .unwrap()
        .blocking()
        .wait(LONG)
        .acquire()
        .unwrap()
        .release()
        .unwrap();
}

/// R102: after a lost answer the client repeats the request under the same key, and the lock is
/// acquired once.
#[test]
fn a_lost_answer_is_asked_for_again() {
    let daemon = Daemon::start();
    let relay = Relay::to(&daemon.node);
    let tenure = client([&relay.node]);
    tenure
        .lock("t:/warm")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap()
        .release()
        .unwrap();
    let before = daemon
        .client()
        .lock("t:/a")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap();
    let first = before.fence().unwrap().get();
    before.release().unwrap();

    relay.set(Traffic::AnswersHeld);
    thread::scope(|scope| {
        let acquiring = scope.spawn(|| tenure.lock("t:/a").unwrap().blocking().acquire());
        // The request was applied, but its answer was held back.
        let direct = daemon.client();
        while wait(direct.inspect("t:/a")).unwrap().free {
            thread::yield_now();
        }
        relay.set(Traffic::Passes);
        relay.cut();
        let guard = acquiring.join().unwrap().unwrap();
        assert_eq!(
            guard.fence().unwrap().get(),
            first + 1,
            "it was applied once"
        );
        guard.check().unwrap();
        guard.release().unwrap();
        assert!(wait(direct.inspect("t:/a")).unwrap().free);
    });
}

/// A connection that breaks while a request waits costs neither the queue position nor the lock.
#[test]
fn a_waiter_survives_a_cut() {
    let daemon = Daemon::start();
    let relay = Relay::to(&daemon.node);
    let held = daemon
        .client()
        .lock("t:/a")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap();
    let tenure = client([&relay.node]);
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let waiting = scope.spawn(|| {
            let lock = tenure.lock("t:/a").unwrap().blocking().wait(LONG);
            lock.on_wait(move |busy| {
                let _ = tell.send(busy.position);
            })
            .acquire()
        });
        assert_eq!(told.recv_timeout(LONG).unwrap(), Some(1));
        relay.cut();
        // Repeated on a new connection, at the old position.
        assert_eq!(told.recv_timeout(LONG).unwrap(), Some(1));
        held.release().unwrap();
        waiting.join().unwrap().unwrap().release().unwrap();
    });
}

/// A killed owner learns it at once by an event, not at its next renewal.
#[test]
fn a_broken_hold_is_told_by_event() {
    let daemon = Daemon::start();
    let guard = daemon
        .client()
        .lock("t:/a")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap();
    let renew_at = guard.lease().unwrap().renew_at();
    let id = wait(daemon.client().inspect("t:/a")).unwrap().holders[0]
        .id
        .clone()
        .unwrap();
    let broken = daemon.client();
    wait(broken.break_hold("t:/a", Some(&id), tenure::Force::Yes, "test")).unwrap();
    assert_eq!(guard.lost().cause, LostCause::Killed);
    assert!(Lease::now() < renew_at, "only the renewal told");
}

/// Acquires two locks of one session in one namespace over the relay: they share a lease.
fn two_of_a_session(relay: &Relay) -> (Guard, Guard) {
    let session = client([&relay.node]).session("pair");
    let acquire = |path: &str| {
        let lock = session.lock(path).unwrap().blocking();
        lock.ttl(Duration::from_secs(10)).acquire().unwrap()
    };
    (acquire("t:/a/x"), acquire("t:/a/y"))
}

/// Ends the hold of a path, as an operator does.
fn break_hold(daemon: &Daemon, path: &str) {
    let operator = daemon.client();
    let id = wait(operator.inspect(path)).unwrap().holders[0].id.clone();
    wait(operator.break_hold(path, id.as_ref(), tenure::Force::Yes, "test")).unwrap();
}

/// Waits for a renewal that is sent from now on.
fn is_renewed(guard: &Guard) {
    let (tell, told) = mpsc::channel();
    guard.listen(move |event| {
        let _ = tell.send(format!("{event:?}"));
    });
    let from = Lease::now();
    while guard.lease().unwrap().sent < from {
        let event = told.recv_timeout(LONG).unwrap();
        assert!(!event.starts_with("Lost"), "{event}");
    }
}

/// E9: KILLED reaches only open connections. A client without one compares its holds after it
/// reconnects.
#[test]
fn a_hold_that_was_broken_while_no_connection_stood_is_lost() {
    let daemon = Daemon::start();
    let relay = Relay::to(&daemon.node);
    let (broken, kept) = two_of_a_session(&relay);
    relay.set(Traffic::AnswersHeld);
    break_hold(&daemon, "t:/a/x");
    // What the relay holds back, including KILLED, is lost with the connection.
    relay.cut();
    relay.set(Traffic::Passes);
    assert_eq!(broken.lost().cause, LostCause::Killed);
    is_renewed(&kept);
    kept.check().unwrap();
}

/// R90 (Renew with domains), E9: the lease of the other holds continues once the daemon has the
/// release of the lost one.
#[test]
fn a_session_goes_on_after_one_of_its_holds_was_broken() {
    let daemon = Daemon::start();
    let relay = Relay::to(&daemon.node);
    let (broken, kept) = two_of_a_session(&relay);
    break_hold(&daemon, "t:/a/x");
    assert_eq!(broken.lost().cause, LostCause::Killed);
    is_renewed(&kept);
    kept.check().unwrap();
    let next = daemon.client().lock("t:/a/x").unwrap().blocking();
    let next = next.wait(Duration::ZERO).acquire().unwrap();
    next.release().unwrap();
}

/// KILLED names no path. A request of the session for another path goes on, and what it is granted
/// has a guard: a grant without one would be held as long as the session renews its other locks.
#[test]
fn a_request_goes_on_when_another_hold_of_its_session_is_broken() {
    let daemon = Daemon::start();
    let relay = Relay::to(&daemon.node);
    let session = client([&relay.node]).session("pair");
    let lock = |path: &str| {
        let lock = session.lock(path).unwrap().blocking();
        lock.ttl(Duration::from_secs(3)).wait(LONG)
    };
    let (broken, kept) = (
        lock("t:/a/x").acquire().unwrap(),
        lock("t:/a/y").acquire().unwrap(),
    );
    let held = daemon.client().lock("t:/a/z").unwrap().blocking();
    let held = held.acquire().unwrap();
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lock = lock("t:/a/z").on_wait(move |busy| {
                let _ = tell.send(busy.position);
            });
            lock.acquire()
        });
        assert_eq!(told.recv_timeout(LONG).unwrap(), Some(1));
        break_hold(&daemon, "t:/a/x");
        assert_eq!(broken.lost().cause, LostCause::Killed);
        held.release().unwrap();
        let next = waiting.join().unwrap().unwrap();
        is_renewed(&next);
        next.check().unwrap();
        kept.check().unwrap();
        next.release().unwrap();
    });
    let next = daemon.client().lock("t:/a/z").unwrap().blocking();
    next.wait(LONG).acquire().unwrap().release().unwrap();
    kept.check().unwrap();
}

/// R102: a daemon that cannot store more answers refuses keyed requests and forgets no answer
/// early. The library, which uses keys, can still acquire locks.
#[test]
fn a_full_table_of_answers_refuses_no_client() {
    /// What a group remembers; the share of one namespace is smaller.
    const REMEMBERED: u64 = 4 * 65_536;
    let daemon = Daemon::start();
    let tenure = daemon.client();
    let held = tenure
        .lock("t:/a/held")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap();
    let filling = fill_answers(&daemon.node, REMEMBERED + 1);
    let refused = tokio::runtime::Runtime::new().unwrap().block_on(filling);
    assert_eq!(refused, Some(ErrorDetail::RetryWithoutKey));
    let guard = tenure
        .lock("t:/a/new")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap();
    guard.check().unwrap();
    guard.release().unwrap();
    held.release().unwrap();
    let again = daemon.client().lock("t:/a/held").unwrap().blocking();
    let again = again.wait(Duration::ZERO).acquire().unwrap();
    again.release().unwrap();
}

/// Sends so many releases without effect, each with its own key, in the namespace `t:/a`. Returns
/// the detail of the error of the last one.
async fn fill_answers(node: &Endpoint, times: u64) -> Option<ErrorDetail> {
    use tenure_wire::v1::{self, session_request::Op, session_response::Result as Answer};
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{node}")).unwrap();
    let channel = channel.connect().await.unwrap();
    let mut client = v1::path_lock_client::PathLockClient::new(channel);
    let release = |id: u64| v1::SessionRequest {
        id,
        op: Some(Op::Release(v1::ReleaseLocksRequest {
            owner_id: "no-owner".into(),
            requests: vec![v1::ReleaseRequest {
                path: "t:/a/none".into(),
                mode: v1::Mode::Write.into(),
            }],
            del_wait_key: false,
            idempotency_key: format!("key {id}"),
        })),
    };
    let mut refused = None;
    // A session limits the requests in flight, so send batches.
    for first in (1..=times).step_by(512) {
        let batch: Vec<_> = (first..=times.min(first + 511)).map(release).collect();
        let count = batch.len();
        let mut answers = client
            .session(tokio_stream::iter(batch))
            .await
            .unwrap()
            .into_inner();
        for _ in 0..count {
            match answers.message().await.unwrap().unwrap().result {
                Some(Answer::Release(_)) => {}
                Some(Answer::Error(error)) => refused = Some(error.detail()),
                other => panic!("{other:?}"),
            }
        }
    }
    refused
}
