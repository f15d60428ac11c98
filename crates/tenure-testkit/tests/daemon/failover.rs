//! Failover of the client: one node of several is silent, late, gone or refuses, and no lock of the
//! process is lost.
//!
//! Three relays stand for three nodes in front of one daemon: what differs between the nodes of a
//! cluster here is only what the client sees of them. `cargo xtask slow failover` runs the same
//! with the nodes of a real cluster.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tenure::blocking::Guard;
use tenure::{ChangeKind, Error, HoldEvent, Lease, Tenure};
use tenure_files::internal::block_on as wait;

use crate::LONG;
use crate::support::daemon::relay::{Relay, Traffic};
use crate::support::daemon::{Daemon, client};

const TTL: Duration = Duration::from_secs(3);

/// Three ways to one daemon.
fn three_ways(daemon: &Daemon) -> [Relay; 3] {
    std::array::from_fn(|_| Relay::to(&daemon.node))
}

/// Acquires so many locks, each with its own owner and lease.
fn hold(tenure: &Tenure, count: usize) -> Vec<Guard> {
    let acquire = |number: usize| {
        let lock = tenure.lock(format!("t{}:/{number}", number % 7)).unwrap();
        lock.blocking().ttl(TTL).acquire().unwrap()
    };
    (0..count).map(acquire).collect()
}

/// Waits until every lease was renewed by a request that was sent from now on.
fn all_are_renewed(guards: &[Guard]) {
    let (from, end) = (Lease::now(), Instant::now() + LONG);
    for guard in guards {
        while guard.lease().unwrap().sent < from {
            guard.still_held().unwrap();
            assert!(Instant::now() < end, "no renewal");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns the relay that the client is connected to.
fn used(relays: &[Relay]) -> &Relay {
    let end = Instant::now() + LONG;
    loop {
        if let Some(used) = relays.iter().find(|relay| relay.is_used()) {
            return used;
        }
        assert!(Instant::now() < end, "no connection");
        thread::yield_now();
    }
}

/// The fault hits the node that the client uses; then the client must be served by another.
fn survives(count: usize, fault: impl Fn(&Relay)) {
    let daemon = Daemon::start();
    let relays = three_ways(&daemon);
    let tenure = client(relays.iter().map(|relay| &relay.node));
    let guards = hold(&tenure, count);
    let fences: Vec<_> = guards.iter().map(Guard::fence).collect();
    fault(used(&relays));
    // The first renewals may have been sent before the fault, the second ones were not.
    all_are_renewed(&guards);
    all_are_renewed(&guards);
    for (guard, fence) in guards.into_iter().zip(fences) {
        guard.check().unwrap();
        assert_eq!(guard.fence(), fence);
        guard.release().unwrap();
    }
}

#[test]
fn a_silent_node_loses_no_lock() {
    for count in [1, 3, 6] {
        survives(count, |node| node.set(Traffic::Held));
    }
}

#[test]
fn a_late_node_loses_no_lock() {
    for count in [1, 3, 6] {
        survives(count, |node| {
            node.set(Traffic::Late(Duration::from_secs(2)))
        });
    }
}

#[test]
fn a_node_that_is_gone_loses_no_lock() {
    for count in [1, 3, 6] {
        survives(count, |node| {
            node.set(Traffic::Closed);
            node.cut();
        });
    }
}

#[test]
fn a_node_that_refuses_loses_no_lock() {
    let other = Daemon::start_with_token("a token that this client does not have");
    for count in [1, 3, 6] {
        survives(count, |node| {
            node.aim(&other.node);
            node.cut();
        });
    }
}

#[test]
fn a_silent_node_loses_none_of_a_thousand_locks() {
    survives(1000, |node| node.set(Traffic::Held));
}

/// R182: a node with other credentials, as during a change of the token, is passed over. Only the
/// refusal of all nodes is an answer.
#[test]
fn a_refusal_of_one_node_does_not_end_the_search() {
    let (token, other) = ("a token that is long enough", "another that is long enough");
    let (right, wrong) = (
        Daemon::start_with_token(token),
        Daemon::start_with_token(other),
    );
    // A new client starts at a random node, so some of these begin with the wrong one.
    for _ in 0..8 {
        let nodes = [wrong.node.clone(), right.node.clone()];
        let tenure = Tenure::builder().nodes(nodes).token(token).build().unwrap();
        let guard = tenure.lock("t:/a").unwrap().blocking().acquire().unwrap();
        guard.release().unwrap();
    }
    let nodes = [wrong.node.clone(), wrong.node.clone()];
    let tenure = Tenure::builder().nodes(nodes).token(token).build().unwrap();
    let error = tenure
        .lock("t:/a")
        .unwrap()
        .blocking()
        .acquire()
        .unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

/// Clients start at a random node, so a fleet spreads over the cluster.
#[test]
fn clients_start_at_different_nodes() {
    let daemon = Daemon::start();
    let relays = three_ways(&daemon);
    for _ in 0..40 {
        let tenure = client(relays.iter().map(|relay| &relay.node));
        wait(tenure.health()).unwrap();
    }
    for relay in &relays {
        assert!(relay.accepted() > 0, "a node that no client used");
    }
}

/// A name with several addresses is as good as a list of nodes: every address is tried.
#[test]
fn every_address_of_a_name_is_tried() {
    let daemon = Daemon::start();
    let first = Relay::at("127.0.0.1:0", &daemon.node);
    let port = first.node.port();
    let second = Relay::at(("127.0.0.2", port), &daemon.node);
    let third = Relay::at(("127.0.0.3", port), &daemon.node);
    let relays = [first, second, third];
    let temp = tempfile::tempdir().unwrap();
    let hosts = temp.path().join("hosts");
    std::fs::write(
        &hosts,
        "127.0.0.1 tenure.test\n127.0.0.2 tenure.test\n127.0.0.3 tenure.test\n",
    )
    .unwrap();
    // The name exists only in the mount namespace of the holder.
    let mut holder = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg("mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"")
        .arg("sh")
        .arg(&hosts)
        .arg(env!("CARGO_BIN_EXE_lock-actor"))
        .arg(format!("tenure://tenure.test:{port}/t:/a"))
        .arg(TTL.as_millis().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert_eq!(said, "held\n");
    used(&relays).set(Traffic::Held);
    // Longer than a lease: without a renewal over another address it has ended by now.
    let freed = daemon.client().lock("t:/a").unwrap().blocking();
    let error = freed.wait(TTL + Duration::from_secs(1)).acquire();
    assert!(matches!(error, Err(Error::TimedOut(_))), "{error:?}");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
}

/// Time limits hold although no node answers: `-n` and `-w 1s` do not take a lap of connection
/// time-outs.
#[test]
fn limits_hold_while_every_node_is_silent() {
    let daemon = Daemon::start();
    let relays = three_ways(&daemon);
    relays.iter().for_each(|relay| relay.set(Traffic::Held));
    for limit in [tenure::Wait::No, tenure::Wait::For(Duration::from_secs(1))] {
        let tenure = client(relays.iter().map(|relay| &relay.node));
        let began = Instant::now();
        let lock = tenure.lock("t:/a").unwrap().blocking().wait_limit(limit);
        let error = lock.acquire().unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(7), "{limit:?} took {took:?}");
    }
}

/// A request without a time limit waits for the daemon, too: it is not there yet, or goes away while
/// the request is queued.
#[test]
fn a_request_without_a_limit_outlives_an_outage() {
    let mut daemon = Daemon::start();
    let held = daemon.client().lock("t:/a").unwrap().blocking();
    let held = held.ttl(Duration::from_secs(60)).acquire().unwrap();
    daemon.kill();
    let tenure = daemon.client();
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let waiting = scope.spawn(|| {
            let lock = tenure.lock("t:/a").unwrap().blocking();
            lock.on_wait(move |busy| {
                let _ = tell.send(busy.clone());
            })
            .acquire()
        });
        let hear = |what: &str| {
            let end = Instant::now() + 2 * LONG;
            loop {
                let left = end.saturating_duration_since(Instant::now());
                let busy = told.recv_timeout(left).expect(what).to_string();
                if busy.contains(what) {
                    return;
                }
            }
        };
        hear("cannot be reached");
        daemon.restart();
        hear("number 1 in line");
        daemon.kill();
        hear("cannot be reached");
        daemon.restart();
        held.release().unwrap();
        waiting.join().unwrap().unwrap().release().unwrap();
    });
}

/// The event of the grant goes to a silent node. The waiter notices that before the grant lapses,
/// and claims it at another node.
#[test]
fn a_grant_that_goes_to_a_silent_node_is_claimed_at_another() {
    let daemon = Daemon::start();
    let relays = three_ways(&daemon);
    let held = daemon.client().lock("t:/a").unwrap().blocking();
    let held = held.acquire().unwrap();
    let tenure = client(relays.iter().map(|relay| &relay.node));
    let direct = daemon.client();
    thread::scope(|scope| {
        let waits = |tenure: &Tenure| {
            let (tell, told) = mpsc::channel();
            let lock = tenure.lock("t:/a").unwrap().blocking().ttl(TTL).wait(LONG);
            let lock = lock.on_wait(move |_| {
                let _ = tell.send(());
            });
            let waiting = scope.spawn(move || {
                let guard = lock.acquire().unwrap();
                let fence = guard.fence();
                guard.release().unwrap();
                fence
            });
            told.recv_timeout(LONG).unwrap();
            waiting
        };
        let first = waits(&tenure);
        let second = waits(&direct);
        used(&relays).set(Traffic::Held);
        held.release().unwrap();
        // If the grant of the first had lapsed, the second would have been served before it.
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        assert!(first < second, "{first:?} {second:?}");
    });
}

/// An operation that the daemon cannot take now is tried again on the same connection: it concerns
/// one group, and the connection serves all owners.
#[test]
fn a_refused_operation_closes_no_connection() {
    const WAITERS: usize = 300;
    let temp = tempfile::tempdir().unwrap();
    let few = [("TENURE_MAX_INFLIGHT_PER_GROUP", "2")];
    let daemon = Daemon::start_with(temp.path(), "127.0.0.1:0", &[], &few);
    let relays = three_ways(&daemon);
    let tenure = client(relays.iter().map(|relay| &relay.node));
    let other = hold(&tenure, 1);
    let held = tenure.lock("z:/a").unwrap().blocking().acquire().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut waiting = tokio::task::JoinSet::new();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..WAITERS {
            let (lock, tell) = (tenure.lock("z:/a").unwrap().wait(2 * LONG), tell.clone());
            let lock = lock.on_wait(move |_| {
                let _ = tell.send(());
            });
            waiting.spawn(async move { lock.acquire().await?.release().await });
        }
        for _ in 0..WAITERS {
            told.recv().await.unwrap();
        }
        held.into_async().release().await.unwrap();
        while let Some(done) = waiting.join_next().await {
            done.unwrap().unwrap();
        }
    });
    let accepted: usize = relays.iter().map(Relay::accepted).sum();
    assert_eq!(accepted, 1);
    other[0].check().unwrap();
}

/// R69 (OK stores the token): a second acquire of a held path raises its fence on the daemon before
/// this client knows. A check in between is no loss.
#[test]
fn a_check_while_the_path_is_acquired_again_is_no_loss() {
    let daemon = Daemon::start();
    let session = daemon.client().session("worker-7");
    let acquire = || session.lock("t:/x").unwrap().blocking().acquire().unwrap();
    let guard = acquire();
    thread::scope(|scope| {
        let again = scope.spawn(|| {
            for _ in 0..300 {
                acquire().release().unwrap();
            }
        });
        while !again.is_finished() {
            guard.check().unwrap();
        }
    });
    guard.check().unwrap();
    guard.release().unwrap();
}

/// A request that was dropped after the daemon applied it raised the fence of the held path without
/// the client's knowledge.
#[test]
fn a_check_after_a_dropped_second_acquire_is_no_loss() {
    let daemon = Daemon::start();
    let relay = Relay::to(&daemon.node);
    let session = client([&relay.node]).session("worker-7");
    let guard = session.lock("t:/x").unwrap().blocking().acquire().unwrap();
    let fence = guard.fence();
    relay.set(Traffic::AnswersHeld);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let again = session.lock("t:/x").unwrap().acquire();
        let applied = async {
            let watcher = daemon.client();
            loop {
                let state = watcher.inspect("t:/x").await.unwrap();
                if state.fence > fence {
                    return;
                }
            }
        };
        tokio::select! {
            _ = again => panic!("its answer is held back"),
            () = applied => {}
        }
    });
    relay.set(Traffic::Passes);
    guard.check().unwrap();
    assert!(guard.fence() > fence);
    guard.release().unwrap();
}

/// A lock costs no descriptor: one timer serves all leases of the process.
#[test]
fn all_leases_share_one_timer() {
    let daemon = Daemon::start();
    let tenure = daemon.client();
    let guards = hold(&tenure, 50);
    let timers = std::fs::read_dir("/proc/self/fd").unwrap();
    let timers = timers
        .filter_map(|file| std::fs::read_link(file.unwrap().path()).ok())
        .filter(|target| target.to_string_lossy().contains("timerfd"));
    // The runtime of the library has one thread with one timer; no other part of this process has
    // one.
    assert_eq!(timers.count(), 1);
    drop(guards);
}

/// Listeners run on a thread of their own. One that panics, blocks, or uses the blocking API stops no
/// renewal.
#[test]
fn a_listener_stops_no_renewal() {
    let daemon = Daemon::start();
    let tenure = daemon.client();
    let guards = hold(&tenure, 3);
    guards[0].listen(|_| panic!("a fault of the program"));
    let (tell, told) = mpsc::channel();
    guards[1].listen(move |event| {
        if let HoldEvent::Renewed(_) = event {
            let inner = tenure.lock("t:/inner").unwrap().blocking();
            let inner = inner.no_wait().acquire().and_then(Guard::release);
            let _ = tell.send(inner);
        }
    });
    told.recv_timeout(LONG).unwrap().unwrap();
    let (open, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    guards[2].listen(move |_| {
        let _ = gate.lock().unwrap().recv();
    });
    all_are_renewed(&guards);
    all_are_renewed(&guards);
    drop(open);
    for guard in guards {
        guard.release().unwrap();
    }
}

/// E8 (Watch lock changes): a watch whose connection breaks goes on at another node, and reports what
/// changed in between.
#[test]
fn a_watch_goes_on_without_a_hole() {
    let daemon = Daemon::start();
    let relays = three_ways(&daemon);
    let direct = daemon.client();
    let lock = |path: &str| direct.lock(path).unwrap().blocking().acquire().unwrap();
    let (kept, ends) = (lock("t:/kept"), lock("t:/ends"));
    let tenure = client(relays.iter().map(|relay| &relay.node));
    let mut watch = wait(tenure.watch("t:/")).unwrap();
    let mut next = || {
        let event = wait(watch.next()).unwrap().unwrap();
        let tenure::Address::Daemon { path, .. } = &event.place else {
            panic!("{event:?}");
        };
        (event.kind, path.to_string())
    };
    let mut present = [next(), next()];
    present.sort_by(|one, other| one.1.cmp(&other.1));
    assert_eq!(present[0], (ChangeKind::Present, "t:/ends".to_owned()));
    assert_eq!(present[1], (ChangeKind::Present, "t:/kept".to_owned()));
    assert_eq!(next().0, ChangeKind::PresentEnd);
    let node = used(&relays);
    node.set(Traffic::Held);
    ends.release().unwrap();
    let begins = lock("t:/begins");
    node.set(Traffic::Closed);
    node.cut();
    // Closed before the changes could pass: the client learns them from another node.
    let mut changes = [next(), next()];
    changes.sort_by(|one, other| one.1.cmp(&other.1));
    assert_eq!(changes[0], (ChangeKind::Granted, "t:/begins".to_owned()));
    assert_eq!(changes[1], (ChangeKind::Released, "t:/ends".to_owned()));
    begins.release().unwrap();
    assert_eq!(next(), (ChangeKind::Released, "t:/begins".to_owned()));
    kept.release().unwrap();
    assert_eq!(next(), (ChangeKind::Released, "t:/kept".to_owned()));
}
