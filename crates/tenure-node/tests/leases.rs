//! leases.md, sentence by sentence, on clusters of real nodes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_core::space::RULES;
use tenure_node::*;

/// R152: an acquire is answered, survives the crash of every node, and is still held.
#[test]
fn what_was_acknowledged_survives_the_crash_of_all() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let first = granted(&cluster.write(0, "amy", "t:/a"));
    for at in 0..3 {
        cluster.crash(at);
    }
    for at in 0..3 {
        cluster.start(at);
    }
    cluster.settle();
    assert_eq!(cluster.holder(1, "t:/a").as_deref(), Some("amy"));
    assert!(is_queued(&cluster.write(2, "bob", "t:/a")));
    cluster.release(0, "amy", "t:/a");
    cluster.run(100);
    assert_eq!(cluster.holder(1, "t:/a").as_deref(), Some("bob"));
    let again = cluster.write(2, "bob", "t:/a");
    assert!(granted(&again) > first);
}

/// A lone node answers as soon as it is durable, and renewals write nothing.
#[test]
fn one_node_is_a_cluster() {
    let mut cluster = Cluster::new(1, 4);
    cluster.run(5);
    granted(&cluster.write(0, "amy", "t:/a"));
    cluster.run(100);
    let syncs = cluster.test_nodes[0].disk.syncs;
    for _ in 0..20 {
        let answer = cluster.renew(0, "amy", &["t:/a"], 10_000);
        assert_eq!(answer, RenewAnswer::Renewed { asked: false });
        assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
        cluster.run(500);
    }
    assert_eq!(
        cluster.test_nodes[0].disk.syncs, syncs,
        "nothing was written"
    );
    assert_eq!(
        cluster.renew(0, "amy", &[], 10_000),
        RenewAnswer::Renewed { asked: false }
    );
}

/// R74 (AssertFencing is linearizable), R76: a lone node answers a read by looking, in the turn
/// that brings it; but not while an end that it has proposed is not durable.
#[test]
fn a_lone_node_answers_reads_at_once_unless_something_ends() {
    let mut cluster = Cluster::new(1, 4);
    cluster.run(5);
    let fence = granted(&cluster.acquire(0, acquire("amy", "t:/a", 1_000)));
    let check = |cluster: &mut Cluster| {
        let request = ClientRequest::AssertFencing {
            owner: owner("amy"),
            fence: Some(fence),
            paths: vec![path("t:/a")],
        };
        let id = cluster.ask(0, request);
        (id, cluster.test_nodes[0].answers.get(&id).cloned())
    };
    let valid = Ok(Answer::AssertFencing(AssertAnswer::Valid));
    assert_eq!(check(&mut cluster).1, Some(valid));

    cluster.test_nodes[0].paused_disk = true;
    cluster.run(1_100);
    let (id, answer) = check(&mut cluster);
    assert_eq!(answer, None, "its end is under way");
    cluster.test_nodes[0].paused_disk = false;
    cluster.run(10);
    let stale = AssertAnswer::StaleOwner(path("t:/a"));
    let answer = cluster.test_nodes[0].answers.get(&id).cloned();
    assert_eq!(answer, Some(Ok(Answer::AssertFencing(stale.clone()))));
    let at_once = check(&mut cluster).1;
    assert_eq!(at_once, Some(Ok(Answer::AssertFencing(stale))));
}

/// Where is this namespace decided, and who leads it.
fn home(cluster: &Cluster, name: &str) -> (GroupId, usize) {
    let group = placement::group_of(&ns(name), cluster.groups);
    (group, cluster.leader(group).unwrap())
}

fn elsewhere(at: usize) -> usize {
    (at + 1) % 3
}

/// R78 (lease expiry and end), R95: a lease ends one ttl after the last renewal, and the next in
/// line has the lock.
#[test]
fn a_lease_ends_by_itself_and_the_waiter_is_granted() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 2_000)));
    let asked = cluster.now;
    assert!(is_queued(&cluster.write(1, "bob", "t:/a")));
    cluster.run(1_900 - (cluster.now - asked));
    assert_eq!(cluster.holder(2, "t:/a").as_deref(), Some("amy"));
    cluster.run(300);
    assert_eq!(cluster.holder(2, "t:/a").as_deref(), Some("bob"));
    assert_eq!(
        cluster.renew(0, "amy", &["t:/a"], 2_000),
        RenewAnswer::Lost(tenure_core::policy::Missing::Alive)
    );
}

/// Step 4: covered renewals move the deadline and write nothing, also over three nodes.
#[test]
fn a_short_lease_is_renewed_without_an_entry() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 2_000)));
    cluster.run(100);
    let (group, leader) = home(&cluster, "t:/a");
    let last = |cluster: &Cluster| {
        let status = cluster.test_nodes[leader].node.as_ref().unwrap().status();
        status.groups[group.0 as usize].last
    };
    let before = last(&cluster);
    for _ in 0..10 {
        cluster.run(1_000);
        let answer = cluster.renew(1, "amy", &["t:/a"], 2_000);
        assert_eq!(answer, RenewAnswer::Renewed { asked: false });
    }
    assert_eq!(last(&cluster), before);
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
}

/// "With `ttl` not smaller than promised": a renewal with a larger ttl is written down, so that the
/// next leader keeps it.
#[test]
fn a_longer_ttl_is_written_and_survives_the_leader() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let (_, leader) = home(&cluster, "t:/a");
    granted(&cluster.acquire(leader, acquire("amy", "t:/a", 1_000)));
    let answer = cluster.renew(leader, "amy", &["t:/a"], 20_000);
    assert_eq!(answer, RenewAnswer::Renewed { asked: false });
    let renewed = cluster.now;
    cluster.crash(leader);
    cluster.tell_down(leader);
    let other = elsewhere(leader);
    cluster.run(15_000);
    assert_eq!(cluster.holder(other, "t:/a").as_deref(), Some("amy"));
    cluster.run(renewed + 27_000 - cluster.now);
    assert_eq!(cluster.holder(other, "t:/a"), None);
}

/// "Later leader": it gives every owner its full ttl again, from a later moment.
#[test]
fn a_new_leader_gives_the_full_ttl_again() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let (_, leader) = home(&cluster, "t:/a");
    granted(&cluster.acquire(leader, acquire("amy", "t:/a", 5_000)));
    cluster.run(4_500);
    cluster.crash(leader);
    cluster.tell_down(leader);
    let other = elsewhere(leader);
    cluster.until(3_000, "another leader", |cluster| {
        cluster.leader(GroupId(0)).is_some()
    });
    let elected = cluster.now;
    cluster.run(4_500);
    assert_eq!(cluster.holder(other, "t:/a").as_deref(), Some("amy"));
    cluster.run(elected + 5_800 - cluster.now);
    assert_eq!(cluster.holder(other, "t:/a"), None);
}

/// "A single node restarting is step 1 after a gap."
#[test]
fn a_restarted_node_gives_the_full_ttl_again() {
    let mut cluster = Cluster::new(1, 1);
    cluster.run(10);
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 3_000)));
    cluster.run(2_900);
    cluster.crash(0);
    cluster.start(0);
    cluster.run(2_800);
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
    cluster.run(400);
    assert_eq!(cluster.holder(0, "t:/a"), None);
}

/// R113 (deadlock queries are linearizable), R144 (inspection is linearizable), "a leader that was
/// deposed and does not know": it can confirm nothing, so it answers nothing.
#[test]
fn a_deposed_leader_renews_nothing_and_reads_nothing() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let (_, old) = home(&cluster, "t:/a");
    granted(&cluster.acquire(old, acquire("amy", "t:/a", 1_500)));
    cluster.isolate(old);
    let renewal = cluster.ask_for(old, renew("amy", &["t:/a"], 1_500), 20_000);
    let look = cluster.ask_for(
        old,
        ClientRequest::InspectPath { path: path("t:/a") },
        20_000,
    );
    let walk = ClientRequest::DetectCycle {
        start: owner("amy"),
        max_depth: 0,
    };
    let walk = cluster.ask_for(old, walk, 20_000);
    cluster.run(12_000);
    for id in [renewal, look, walk] {
        assert!(!cluster.test_nodes[old].answers.contains_key(&id));
    }
    let new = elsewhere(old);
    granted(&cluster.write(new, "bob", "t:/a"));
    cluster.heal();
    // Sent on to the new leader, or told honestly: never OK.
    let answer = cluster.wait(old, renewal);
    assert_ne!(
        answer,
        Ok(Answer::Renew(RenewAnswer::Renewed { asked: false }))
    );
    match cluster.wait(old, look) {
        Ok(Answer::Inspect(found)) => {
            assert_eq!(
                found.writer.map(|one| one.to_string()).as_deref(),
                Some("bob")
            );
        }
        Err(_) => {}
        other => panic!("odd answer {other:?}"),
    }
}

/// Step 4: a renewal that arrives while the lease's `Expire` is under way waits for it, and is lost.
#[test]
fn a_renewal_in_ending_waits_for_the_expire() {
    let mut cluster = Cluster::new(1, 1);
    cluster.run(10);
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 1_000)));
    // The disk stands still: `Expire` is proposed and cannot be applied.
    cluster.test_nodes[0].paused_disk = true;
    cluster.run(1_200);
    let renewal = cluster.ask(0, renew("amy", &["t:/a"], 1_000));
    cluster.run(200);
    assert!(
        !cluster.test_nodes[0].answers.contains_key(&renewal),
        "its fate is in the log"
    );
    cluster.test_nodes[0].paused_disk = false;
    let answer = cluster.wait(0, renewal);
    assert_eq!(
        answer,
        Ok(Answer::Renew(RenewAnswer::Lost(
            tenure_core::policy::Missing::Alive
        )))
    );
}

/// Step 3: an `Expire` that was proposed before the lease was set again names an older epoch.
#[test]
fn an_expire_of_an_older_epoch_ends_nothing() {
    let mut cluster = Cluster::new(1, 1);
    cluster.run(10);
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 1_000)));
    cluster.run(900);
    // The re-acquire is proposed before the deadline, the `Expire` after it; both wait for the disk.
    cluster.test_nodes[0].paused_disk = true;
    let again = cluster.ask(0, ClientRequest::Acquire(acquire("amy", "t:/a", 1_000)));
    cluster.run(300);
    cluster.test_nodes[0].paused_disk = false;
    assert!(matches!(
        cluster.wait(0, again),
        Ok(Answer::Acquire(AcquireAnswer::Granted { .. }))
    ));
    cluster.run(700);
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
    cluster.run(400);
    assert_eq!(cluster.holder(0, "t:/a"), None);
}

/// Step 2: a renewal received before the deadline is decided by its own round, however late that is.
#[test]
fn a_renewal_in_time_wins_against_the_deadline() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let (_, leader) = home(&cluster, "t:/a");
    granted(&cluster.acquire(leader, acquire("amy", "t:/a", 1_000)));
    cluster.run(950);
    cluster.latency_ms = 100;
    let renewal = cluster.ask(leader, renew("amy", &["t:/a"], 1_000));
    let answer = cluster.wait(leader, renewal);
    assert_eq!(
        answer,
        Ok(Answer::Renew(RenewAnswer::Renewed { asked: false }))
    );
    cluster.run(300);
    assert_eq!(cluster.holder(leader, "t:/a").as_deref(), Some("amy"));
}

/// R74, R76, step 5: a read after the deadline sees the lock gone, although the entry is still on its way.
#[test]
fn a_read_after_the_deadline_waits_for_the_end() {
    let mut cluster = Cluster::new(1, 1);
    cluster.run(10);
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 1_000)));
    cluster.test_nodes[0].paused_disk = true;
    cluster.run(1_100);
    let look = cluster.ask(0, ClientRequest::InspectPath { path: path("t:/a") });
    cluster.run(50);
    assert!(!cluster.test_nodes[0].answers.contains_key(&look));
    cluster.test_nodes[0].paused_disk = false;
    match cluster.wait(0, look) {
        Ok(Answer::Inspect(found)) => assert_eq!(found.writer, None),
        other => panic!("odd answer {other:?}"),
    }
}

/// R94: time in which the leader did not run counts against no owner; an instant that leaps adds 1 s.
#[test]
fn a_leap_of_the_clock_ends_no_lease() {
    let mut cluster = Cluster::new(1, 1);
    cluster.run(10);
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 5_000)));
    cluster.test_nodes[0].clock_ms += 3_600_000;
    cluster.run(50);
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
    cluster.run(3_700);
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
    cluster.run(400);
    assert_eq!(cluster.holder(0, "t:/a"), None);
}

/// The claim's factor: with a leader's clock 10 % fast no lease ends before ttl / 1.1.
#[test]
fn a_fast_clock_ends_a_lease_at_most_a_tenth_early() {
    let mut cluster = Cluster::new(1, 1);
    cluster.test_nodes[0].rate = 1_100;
    cluster.run(10);
    let sent = cluster.now;
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 11_000)));
    cluster.run(sent + 9_900 - cluster.now);
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
    cluster.run(300);
    assert_eq!(cluster.holder(0, "t:/a"), None);
}

/// A long lease is written again once a minute, and what the log says is left is what a new leader gives.
#[test]
fn a_long_lease_is_covered_by_the_log() {
    let mut cluster = Cluster::new(1, 1);
    cluster.run(10);
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 120_000)));
    cluster.run(10);
    let before = cluster.test_nodes[0].disk.syncs;
    for _ in 0..6 {
        cluster.run(10_000);
        cluster.renew(0, "amy", &["t:/a"], 120_000);
    }
    let written = cluster.test_nodes[0].disk.syncs - before;
    assert!((1..=2).contains(&written), "{written} writes in a minute");
    // Restarted: at least the promised 120 s, at most that and two minutes (R94).
    cluster.run(30_000);
    cluster.renew(0, "amy", &["t:/a"], 120_000);
    cluster.crash(0);
    cluster.start(0);
    cluster.run(119_000);
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
    cluster.run(122_000);
    assert_eq!(cluster.holder(0, "t:/a"), None);
}

/// R77: a renewal with a shorter ttl leaves the deadline where it is, for short and for long leases, and
/// also under the next leader. An acquire with a shorter ttl moves it earlier.
#[test]
fn a_shorter_renewal_does_not_shorten() {
    for ttl in [30_000, 130_000] {
        let mut cluster = Cluster::new(1, 1);
        cluster.run(10);
        granted(&cluster.acquire(0, acquire("amy", "t:/a", ttl)));
        cluster.renew(0, "amy", &["t:/a"], 500);
        cluster.run(ttl - 1_000);
        assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
        cluster.crash(0);
        cluster.start(0);
        cluster.run(900);
        assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
        granted(&cluster.acquire(0, acquire("amy", "t:/a", 500)));
        cluster.run(700);
        assert_eq!(cluster.holder(0, "t:/a"), None);
    }
}

/// R84 (pending entry lifetime), step 7: a place in line ends by the stamp of a tick; who lapsed is
/// never granted.
#[test]
fn a_lapsed_waiter_is_not_granted() {
    let mut cluster = Cluster::new(1, 1);
    cluster.run(10);
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 60_000)));
    let mut short = acquire("bob", "t:/a", 10_000);
    short.queue_ttl = tenure_core::value::QueueTtl::from_millis(1_000).unwrap();
    assert!(is_queued(&cluster.acquire(0, short)));
    assert!(is_queued(&cluster.write(0, "cid", "t:/a")));
    cluster.run(1_100);
    cluster.release(0, "amy", "t:/a");
    cluster.run(20);
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("cid"));
}

/// R84, R87: a dead waiter looks like one that will ask again, so it is granted what becomes free while its
/// place lasts, and holds it for one lease. However many there are, all is free a place and a lease after
/// the last of them was heard of.
#[test]
fn a_line_of_dead_waiters_is_over_after_a_place_and_a_lease() {
    const TTL: u64 = 5_000;
    const PLACE: u64 = 20_000;
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    granted(&cluster.acquire(0, acquire("w0", "t:/a", TTL)));
    for number in 1..10 {
        let mut waits = acquire(&format!("w{number}"), "t:/a", TTL);
        waits.queue_ttl = tenure_core::value::QueueTtl::from_millis(PLACE).unwrap();
        assert!(is_queued(&cluster.acquire(0, waits)));
    }
    // All clients die here.
    let died = cluster.now;
    let mut held: Vec<(String, u64, u64)> = Vec::new();
    while cluster.now < died + PLACE + TTL + 1_000 {
        let Some(holder) = cluster.holder(1, "t:/a") else {
            break;
        };
        let now = cluster.now - died;
        match held.last_mut() {
            Some((last, _, until)) if *last == holder => *until = now,
            _ => held.push((holder, now, now)),
        }
        cluster.run(50);
    }
    // In order, each once and for one lease, and none whose place is over.
    assert!(held.is_sorted(), "{held:?}");
    for (name, since, until) in &held[1..] {
        let time = until - since;
        assert!((TTL - 200..TTL + 200).contains(&time), "{name}: {held:?}");
        assert!(*since < PLACE + 200, "{name}: {held:?}");
    }
    // Five in a row: a bound of four leases would be wrong.
    assert_eq!(held.len(), 5, "{held:?}");
    assert_eq!(cluster.holder(2, "t:/a"), None);
    assert!(cluster.now < died + PLACE + TTL + 200, "{held:?}");
}

/// R84, R87: a waiter that no stream could tell of its grant is not skipped: it may be a client that only
/// polls, and whose node is gone.
#[test]
fn a_waiter_without_a_stream_finds_its_grant_on_another_node() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let (_, leader) = home(&cluster, "t:/a");
    let (first, second) = (elsewhere(leader), elsewhere(elsewhere(leader)));
    granted(&cluster.acquire(leader, acquire("amy", "t:/a", 2_000)));
    assert!(is_queued(
        &cluster.acquire(first, acquire("bob", "t:/a", 5_000))
    ));
    assert!(is_queued(
        &cluster.acquire(leader, acquire("cid", "t:/a", 5_000))
    ));
    cluster.crash(first);
    cluster.tell_down(first);
    // Amy's lease ended 4 s ago, and bob's ends in 1 s.
    cluster.run(6_000);
    granted(&cluster.acquire(second, acquire("bob", "t:/a", 5_000)));
    assert!(is_queued(
        &cluster.acquire(second, acquire("cid", "t:/a", 5_000))
    ));
}

/// One acquire of two paths of one namespace.
fn acquire_two(who: &str, paths: [&str; 2], ttl: u64) -> AcquireRequest {
    let mut both = acquire(who, paths[0], ttl);
    let mut second = both.requests[0].clone();
    second.path = path(paths[1]);
    both.requests.push(second);
    both
}

/// E9 (Break one hold), R90: an owner that is broken out of one of two holds, while no stream is
/// open, hears of it when it renews: a lease does not confirm a hold that it no longer has.
#[test]
fn a_renewal_tells_an_owner_that_was_broken_out_of_one_of_two_holds() {
    use tenure_core::outcome::BreakOutcome;
    use tenure_core::policy::Missing;
    let mut cluster = Cluster::new(3, 2);
    cluster.settle();
    cluster.until(10_000, "all groups have the newest rules", |cluster| {
        let status = |at: usize| cluster.test_nodes[at].node.as_ref().unwrap().status();
        (0..3).all(|at| status(at).groups.iter().all(|group| group.rules == RULES))
    });
    let fence = granted(&cluster.acquire(0, acquire_two("amy", ["t:/2/a", "t:/2/b"], 5_000)));
    let keyed = |ttl: u64| {
        let mut renew = renew("amy", &["t:/2"], ttl);
        if let ClientRequest::Renew { key, .. } = &mut renew {
            *key = tenure_core::value::Key::new("k").unwrap();
        }
        renew
    };
    let renewed = Ok(Answer::Renew(RenewAnswer::Renewed { asked: false }));
    let lost = |missing| Ok(Answer::Renew(RenewAnswer::Lost(missing)));
    assert_eq!(cluster.call(0, keyed(5_000)), renewed);
    let breaks = ClientRequest::Break {
        path: path("t:/2/a"),
        owner: owner("amy"),
        fence: Some(fence),
    };
    let broken = Ok(Answer::Break(Box::new(BreakOutcome::Broken)));
    assert_eq!(cluster.call(1, breaks.clone()), broken);
    // The same break, sent before and applied after it, finds no hold.
    let late = Ok(Answer::Break(Box::new(BreakOutcome::NotThatHold(None))));
    assert_eq!(cluster.call(2, breaks), late);
    granted(&cluster.acquire(1, acquire("bob", "t:/2/a", 60_000)));
    for at in 0..3 {
        let answer = cluster.call(at, renew("amy", &["t:/2"], 5_000));
        assert_eq!(answer, lost(Missing::Write), "by its namespace");
        let answer = cluster.call(at, keyed(5_000));
        assert_eq!(answer, lost(Missing::Alive), "repeated under a key (R105)");
        // R91: the other lease does not make it good.
        granted(&cluster.acquire(at, acquire("amy", "t:/9/z", 5_000)));
        let answer = cluster.call(at, renew("amy", &[], 5_000));
        assert_eq!(answer, lost(Missing::OwnerSet), "everywhere");
    }
    // It says so over a change of leader, too.
    let (_, leader) = home(&cluster, "t:/2");
    cluster.crash(leader);
    cluster.tell_down(leader);
    let other = elsewhere(leader);
    cluster.run(3_000);
    let answer = cluster.call(other, renew("amy", &["t:/2"], 5_000));
    assert_eq!(answer, lost(Missing::Write));
    cluster.release(other, "amy", "t:/2/a");
    let answer = cluster.call(other, renew("amy", &["t:/2"], 5_000));
    assert_eq!(answer, renewed);
}

/// Lease time belongs to the group: a new leader goes on from the largest stamp, whatever its own
/// clock says, so a place in line lasts at least as long as promised.
#[test]
fn lease_time_is_not_the_new_leaders_clock() {
    let mut cluster = Cluster::new(3, 1);
    cluster.settle();
    let (_, leader) = home(&cluster, "t:/a");
    granted(&cluster.acquire(leader, acquire("amy", "t:/a", 60_000)));
    let mut wait = acquire("bob", "t:/a", 10_000);
    wait.queue_ttl = tenure_core::value::QueueTtl::from_millis(20_000).unwrap();
    assert!(is_queued(&cluster.acquire(leader, wait)));
    // The others' clocks are far ahead; that must not age anything.
    for at in 0..3 {
        if at != leader {
            cluster.test_nodes[at].clock_ms += 10_000_000;
        }
    }
    cluster.run(1_000);
    cluster.crash(leader);
    cluster.tell_down(leader);
    let other = elsewhere(leader);
    cluster.run(15_000);
    cluster.release(other, "amy", "t:/a");
    cluster.run(50);
    assert_eq!(cluster.holder(other, "t:/a").as_deref(), Some("bob"));
}

/// Leader transfer is an election: nothing ends early by it.
#[test]
fn a_drained_leader_hands_over_and_no_lease_is_lost() {
    let mut cluster = Cluster::new(3, 2);
    cluster.settle();
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 3_000)));
    let (group, leader) = home(&cluster, "t:/a");
    cluster.run(2_500);
    cluster.input(leader, Input::Drain);
    cluster.until(2_000, "another leader", |cluster| {
        cluster.leader(group).is_some_and(|at| at != leader)
    });
    cluster.run(2_000);
    assert_eq!(
        cluster.holder(leader, "t:/a").as_deref(),
        Some("amy"),
        "asked through the node that was drained"
    );
}

/// R145: a failed write ends the node; nothing is answered any more.
#[test]
fn a_failed_write_is_the_end() {
    let mut cluster = Cluster::new(1, 1);
    cluster.run(10);
    cluster.input(
        0,
        Input::WriteFailed {
            why: "no space left on device".to_owned(),
        },
    );
    assert!(
        cluster.test_nodes[0]
            .stopped
            .as_ref()
            .unwrap()
            .contains("no space")
    );
    let asked = cluster.ask(0, ClientRequest::Health);
    cluster.run(100);
    assert!(!cluster.test_nodes[0].answers.contains_key(&asked));
}
