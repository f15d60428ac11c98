//! Calls over several groups: at most one effect per attempt and per key, whatever is late, lost or repeated.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_core::value::Key;
use tenure_node::*;

fn key(text: &str) -> Option<Key> {
    Key::new(text).ok().flatten()
}

fn release_all(who: &str, with: &str) -> ClientRequest {
    ClientRequest::ReleaseAll {
        owner: owner(who),
        domains: Vec::new(),
        edge: WaitEdge::Keep,
        key: key(with),
    }
}

/// Two paths whose namespaces are decided by two groups.
fn apart(cluster: &mut Cluster) -> [(String, GroupId); 2] {
    let mut found: Vec<(String, GroupId)> = Vec::new();
    for number in 0..50 {
        let what = format!("t:/{number}/x");
        let before: Vec<u64> = (0..2).map(|g| claims(cluster, GroupId(g))).collect();
        granted(&cluster.acquire(0, acquire("scout", &what, 600_000)));
        let after: Vec<u64> = (0..2).map(|g| claims(cluster, GroupId(g))).collect();
        let group = GroupId((0..2).find(|g| before[*g] != after[*g]).unwrap() as u32);
        cluster.release(0, "scout", &what);
        if found.iter().all(|(_, other)| *other != group) {
            found.push((what, group));
        }
        if found.len() == 2 {
            break;
        }
    }
    found.try_into().unwrap()
}

fn claims(cluster: &Cluster, group: GroupId) -> u64 {
    let leader = cluster.leader(group).unwrap();
    let status = cluster.test_nodes[leader].node.as_ref().unwrap().status();
    let one = status.groups.into_iter().find(|one| one.group == group);
    one.unwrap().counts.unwrap().claims
}

fn trio_and(guests: u32, limits: Limits) -> Cluster {
    let mut cluster = Cluster::empty(1, limits);
    let members: Vec<ReplicaId> = (1..=3).map(|number| member(number, 1)).collect();
    for me in &members {
        let born = (0..=1)
            .map(|group| (GroupId(group), members.clone()))
            .collect();
        cluster.add(*me, born);
    }
    for number in 4..4 + guests {
        cluster.add(member(number, 1), Vec::new());
    }
    for at in 0..cluster.test_nodes.len() {
        cluster.start(at);
    }
    cluster.settle();
    cluster
}

fn lead(cluster: &mut Cluster, group: GroupId, test_node: usize) {
    let to = cluster.test_nodes[test_node].member;
    for _ in 0..40 {
        match cluster.leader(group) {
            Some(at) if at == test_node => return,
            Some(at) => cluster.input(at, Input::Transfer { group, to }),
            None => {}
        }
        cluster.run(200);
    }
    panic!("{group} is not led at seat {test_node}");
}

/// R102: a key makes a request apply at most once for 300 s after it was applied.
#[test]
fn a_keyed_release_of_all_applies_once() {
    let mut cluster = trio_and_a_guest();
    let group_leader = {
        granted(&cluster.acquire(0, acquire("amy", "t:/a", 60_000)));
        // The node that leads the group that has it.
        (0..8)
            .map(GroupId)
            .find_map(|group| {
                let leader = cluster.leader(group)?;
                let status = cluster.test_nodes[leader].node.as_ref()?.status();
                let one = status.groups.into_iter().find(|one| one.group == group)?;
                one.counts
                    .as_ref()
                    .is_some_and(|counts| counts.claims > 0)
                    .then_some(leader)
            })
            .unwrap()
    };
    let system = cluster.leader(cluster.system()).unwrap();
    // The guest (seat 3) cannot reach the node that leads amy's group, and knows; it reaches the others.
    assert_ne!(
        system, group_leader,
        "change the path: the system group must be elsewhere"
    );
    cluster.cut(3, group_leader);
    cluster.cut(group_leader, 3);
    let (guest, leads) = (
        cluster.test_nodes[3].member.node,
        cluster.test_nodes[group_leader].member.node,
    );
    cluster.input(3, Input::PeerDown { node: leads });
    cluster.input(group_leader, Input::PeerDown { node: guest });
    let first = cluster.ask(3, release_all("amy", "k1"));
    cluster.run(5_000);
    assert!(
        !cluster.test_nodes[3].answers.contains_key(&first),
        "it cannot have been answered"
    );
    // The client repeats it under the same key at another node, and is answered.
    let other = (0..3).find(|at| *at != group_leader).unwrap();
    assert_eq!(
        cluster.call(other, release_all("amy", "k1")),
        Ok(Answer::Done)
    );
    // So it may use the owner again (leases.md, what a client does, 4).
    granted(&cluster.acquire(other, acquire("amy", "t:/a", 60_000)));
    assert_eq!(cluster.holder(other, "t:/a").as_deref(), Some("amy"));
    // The link heals, while the first attempt is still within its 30 s.
    cluster.heal();
    cluster.input(3, Input::PeerUp { node: leads });
    cluster.input(group_leader, Input::PeerUp { node: guest });
    cluster.run(5_000);
    assert_eq!(
        cluster.holder(other, "t:/a").as_deref(),
        Some("amy"),
        "her lease of a minute is not over, and she released nothing since"
    );
}

/// R73: an answer of an earlier round of the same question must not stand for another path.
#[test]
fn a_fence_check_looks_at_every_path() {
    let mut cluster = trio_and_a_guest();
    let group = |name: &str| placement::group_of(&ns(name), 8);
    let mut found = None;
    'search: for one in 0..200 {
        for other in 0..20 {
            let (before, after, third) = (
                format!("t:/a{one}"),
                format!("t:/a{one}/b"),
                format!("u:/c{other}"),
            );
            let (ga, gb, gc) = (group(&before), group(&after), group(&third));
            if ga < gc && gc < gb {
                found = Some((after, third, ga, gb, gc));
                break 'search;
            }
        }
    }
    let (after, third, ga, gb, gc) = found.unwrap();
    let (moved, held) = (format!("{after}/x"), format!("{third}/y"));
    let system = cluster.system();
    // Seat 0 leads what is quick, seat 1 what is slow.
    lead(&mut cluster, ga, 0);
    lead(&mut cluster, system, 0);
    lead(&mut cluster, gb, 1);
    lead(&mut cluster, gc, 1);
    cluster.run(4_000);
    // The guest has the table.
    granted(&cluster.acquire(3, acquire("guest", "v:/z/z", 60_000)));
    // Amy holds one of the two paths, at fence 1; she has never held the other.
    let fence = granted(&cluster.acquire(0, acquire("amy", &held, 600_000)));
    let check = |paths: &[&str]| ClientRequest::AssertFencing {
        owner: owner("amy"),
        fence: Some(fence),
        paths: paths.iter().map(|one| path(one)).collect(),
    };
    let wrong = Ok(Answer::AssertFencing(AssertAnswer::StaleOwner(path(
        &moved,
    ))));
    assert_eq!(cluster.call(3, check(&[&moved, &held])), wrong);
    // The route of that path changes; the guest has not heard of it.
    let policy = ClientRequest::SetNamespacePolicy {
        namespace: ns(&after),
        algorithm: tenure_core::policy::Algorithm::RecursiveRw,
        key: None,
    };
    assert_eq!(cluster.call(0, policy), Ok(Answer::Done));
    cluster.run(100);
    // What seat 1 says to the guest takes 300 ms.
    cluster.lost.clear();
    cluster.cut(1, 3);
    let id = cluster.ask(3, check(&[&moved, &held]));
    cluster.run(300);
    cluster.heal();
    let slow = node_id(2);
    let late: Vec<_> = cluster
        .lost
        .drain(..)
        .filter(|(from, to, _)| *from == slow && *to == node_id(4))
        .collect();
    assert!(!late.is_empty(), "its answers come late, in their order");
    for (from, _, bytes) in late {
        cluster.input(3, Input::Frame { from, bytes });
    }
    let answer = cluster.wait(3, id);
    assert_eq!(answer, wrong, "she does not hold {moved}");
}

/// The same with a fifth node that is never there, so that the groups stay with the rules of release 0.1.0.
fn trio_and_a_guest_by_the_first_rules() -> Cluster {
    let mut cluster = Cluster::empty(8, Limits::default());
    let members: Vec<ReplicaId> = (1..=3).map(|number| member(number, 1)).collect();
    for me in &members {
        let born = (0..=8)
            .map(|group| (GroupId(group), members.clone()))
            .collect();
        cluster.add(*me, born);
    }
    cluster.add(member(4, 1), Vec::new());
    cluster.add(member(5, 1), Vec::new());
    for at in 0..4 {
        cluster.start(at);
    }
    cluster.settle();
    cluster
}

/// Until all nodes are upgraded, calls are carried out in the forms of release 0.1.0.
#[test]
fn keyed_calls_work_by_the_first_rules() {
    use tenure_core::command::Hold;
    use tenure_core::policy::Mode;
    let mut cluster = trio_and_a_guest_by_the_first_rules();
    let release = ClientRequest::Release(ReleaseRequest {
        owner: owner("amy"),
        holds: vec![Hold {
            path: path("t:/a"),
            mode: Mode::Write,
        }],
        edge: WaitEdge::Remove,
        key: key("k1"),
    });
    for request in [
        release_all("amy", "k1"),
        force_release("amy", "k1"),
        release,
    ] {
        granted(&cluster.acquire(0, acquire("amy", "t:/a", 60_000)));
        assert_eq!(cluster.call(3, request.clone()), Ok(Answer::Done));
        assert_eq!(cluster.holder(0, "t:/a"), None, "{request:?}");
        // Answered, it does nothing again.
        granted(&cluster.acquire(0, acquire("amy", "t:/a", 60_000)));
        assert_eq!(cluster.call(1, request), Ok(Answer::Done));
        assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
    }
}

/// R106: a change of policy is made once, by whichever node.
#[test]
fn a_policy_is_set_once() {
    policy_is_set_once(trio_and_a_guest);
}

#[test]
fn a_policy_is_set_once_by_the_first_rules() {
    policy_is_set_once(trio_and_a_guest_by_the_first_rules);
}

fn policy_is_set_once(cluster: fn() -> Cluster) {
    use tenure_core::policy::Algorithm;
    let set = |to: Algorithm, with: Option<&str>| ClientRequest::SetNamespacePolicy {
        namespace: ns("t:/a"),
        algorithm: to,
        key: with.and_then(key),
    };
    for cut_after in 1..16 {
        let mut cluster = cluster();
        granted(&cluster.acquire(3, acquire("guest", "v:/z/z", 60_000)));
        let first = cluster.ask(3, set(Algorithm::PointRw, Some("k1")));
        cluster.run(cut_after);
        cluster.isolate(3);
        // The leader of the system group finishes the interrupted change.
        cluster.run(4_000);
        assert!(!cluster.test_nodes[3].answers.contains_key(&first) || cut_after > 4);
        // The operator repeats it under its key elsewhere, and is answered; then sets something else.
        let again = cluster.call(0, set(Algorithm::PointRw, Some("k1")));
        assert_eq!(again, Ok(Answer::Done));
        assert_eq!(
            cluster.call(1, set(Algorithm::PointWrite, Some("k2"))),
            Ok(Answer::Done)
        );
        granted(&cluster.acquire(0, acquire("amy", "t:/a/x", 600_000)));
        cluster.heal();
        cluster.run(12_000);
        let now = cluster.call(
            0,
            ClientRequest::GetNamespacePolicy {
                namespace: ns("t:/a"),
            },
        );
        let expected = Ok(Answer::Policy {
            algorithm: Algorithm::PointWrite,
            explicit: true,
        });
        let holder = cluster.holder(0, "t:/a/x");
        assert_eq!(
            (now, holder.as_deref()),
            (expected, Some("amy")),
            "cut after {cut_after} ms; the first attempt was answered {:?}",
            cluster.test_nodes[3].answers.get(&first)
        );
    }
}

/// R91, R151: a group that is too busy for a renewal at the moment in which it arrives is asked again. An
/// answer of OK means that every lease was extended.
#[test]
fn a_busy_group_is_not_left_out_of_a_renewal() {
    let limits = Limits {
        group_inflight: 2,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(3, 2, limits);
    cluster.settle();
    let [(one, _), (other, group)] = apart(&mut cluster);
    for what in [&one, &other] {
        granted(&cluster.acquire(0, acquire("amy", what, 10_000)));
    }
    cluster.run(6_000);
    let busy = cluster.leader(group).unwrap();
    let mut inputs = Vec::new();
    for _ in 0..2 {
        inputs.push(Input::Request {
            id: cluster.fresh_id(),
            request: Box::new(ClientRequest::InspectPath { path: path(&other) }),
            timeout_ms: 5_000,
        });
    }
    let id = cluster.fresh_id();
    inputs.push(Input::Request {
        id,
        request: Box::new(renew("amy", &[], 10_000)),
        timeout_ms: 5_000,
    });
    let sent = cluster.now;
    cluster.inputs(busy, inputs);
    let answer = cluster.wait(busy, id);
    // By the rules of clients amy may count on both until 80 % of the ttl have passed since.
    cluster.run(sent + 7_000 - cluster.now);
    let bob = cluster.acquire(0, acquire("bob", &other, 10_000));
    assert!(
        is_queued(&bob),
        "amy's renewal was answered {answer:?}, and {} ms later bob got {bob:?}",
        cluster.now - sent
    );
    assert_eq!(
        answer,
        Ok(Answer::Renew(RenewAnswer::Renewed { asked: false }))
    );
}

/// R106, R77: a renewal that was answered is over. A node that asks the leader again because the answer was
/// slow must not have it carried out after a later renewal was answered: it would shorten that one.
#[test]
fn a_renewal_that_was_answered_does_not_come_back() {
    let mut cluster = trio_and(0, Limits::default());
    let group = GroupId(0);
    let leader = cluster.leader(group).unwrap();
    let (asked, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let ids: Vec<NodeId> = cluster
        .test_nodes
        .iter()
        .map(|test_node| test_node.member.node)
        .collect();
    let what = "t:/x/1";
    granted(&cluster.acquire(leader, acquire("amy", what, 20_000)));
    // A short renewal, by a node to which the leader's answers are slow.
    cluster.cut.insert((ids[leader], ids[asked]));
    let id = cluster.ask_for(asked, renew("amy", &["t:/x"], 5_000), 10_000);
    cluster.run(300);
    // After a while it asks again; on this way it is slow, too.
    let first = std::mem::take(&mut cluster.lost);
    cluster.cut.insert((ids[asked], ids[leader]));
    cluster.run(2_600);
    let again = std::mem::take(&mut cluster.lost);
    cluster.heal();
    // The leader's answer to the first one arrives: amy knows that it has happened.
    for (from, to, bytes) in first {
        if (from, to) == (ids[leader], ids[asked]) {
            cluster.input(asked, Input::Frame { from, bytes });
        }
    }
    let answer = cluster.wait(asked, id);
    // Only then she renews for longer, by another node.
    let sent = cluster.now;
    let longer = cluster.renew(other, "amy", &["t:/x"], 20_000);
    // What was asked again arrives.
    for (from, to, bytes) in again {
        if (from, to) == (ids[asked], ids[leader]) {
            cluster.input(leader, Input::Frame { from, bytes });
        }
    }
    cluster.run(sent + 9_000 - cluster.now);
    // She may count on 80 % of 20 s.
    let bob = cluster.acquire(other, acquire("bob", what, 10_000));
    assert!(
        is_queued(&bob),
        "amy's renewals were answered {answer:?} and {longer:?} (20 s), and {} ms later bob got {bob:?}",
        cluster.now - sent
    );
}

/// R102, R106: a release under a key happens once, also where a change of policy gives its path another
/// namespace between two tries.
#[test]
fn a_keyed_release_applies_once_across_a_change_of_routes() {
    use tenure_core::command::Hold;
    use tenure_core::policy::{Algorithm, Mode};
    use tenure_core::value::Key;

    let mut cluster = Cluster::with(3, 2, Limits::default());
    cluster.settle();
    let what = "q:/a/b/x";
    let before: Vec<u64> = (0..2).map(|g| claims(&cluster, GroupId(g))).collect();
    granted(&cluster.acquire(0, acquire("amy", what, 600_000)));
    let after: Vec<u64> = (0..2).map(|g| claims(&cluster, GroupId(g))).collect();
    let group = GroupId((0..2).find(|g| before[*g] != after[*g]).unwrap() as u32);
    let leader = cluster.leader(group).unwrap();
    let (slow, quick) = ((leader + 1) % 3, (leader + 2) % 3);
    let ids: Vec<NodeId> = cluster
        .test_nodes
        .iter()
        .map(|test_node| test_node.member.node)
        .collect();
    let release = ClientRequest::Release(ReleaseRequest {
        owner: owner("amy"),
        holds: vec![Hold {
            path: path(what),
            mode: Mode::Write,
        }],
        edge: WaitEdge::Keep,
        key: Key::new("k1").unwrap(),
    });
    // The first try is slow on its way.
    cluster.cut.insert((ids[slow], ids[leader]));
    cluster.ask_for(slow, release.clone(), 30_000);
    let late = std::mem::take(&mut cluster.lost);
    cluster.heal();
    // The second one, under the same key, is answered.
    assert_eq!(cluster.call(quick, release), Ok(Answer::Done));
    let set = ClientRequest::SetNamespacePolicy {
        namespace: ns("q:/a/b"),
        algorithm: Algorithm::RecursiveRw,
        key: None,
    };
    assert_eq!(cluster.call(quick, set), Ok(Answer::Done));
    // Her release was answered: she may use her name again.
    let amy = granted(&cluster.acquire(quick, acquire("amy", what, 600_000)));
    // The first try arrives.
    for (from, to, bytes) in late {
        if (from, to) == (ids[slow], ids[leader]) {
            cluster.input(leader, Input::Frame { from, bytes });
        }
    }
    cluster.run(2_000);
    let bob = cluster.acquire(quick, acquire("bob", what, 600_000));
    assert!(
        is_queued(&bob),
        "amy holds {what} at {amy:?}, and bob got {bob:?}"
    );
}

/// R102: a renewal under a key happens once. A try that is slow on its way must not be carried out after
/// another one was answered under the same key, and a longer renewal after that.
#[test]
fn a_keyed_renewal_applies_once() {
    use tenure_core::value::{Key, Ttl};

    let mut cluster = trio_and(0, Limits::default());
    let group = GroupId(0);
    let leader = cluster.leader(group).unwrap();
    let (slow, quick) = ((leader + 1) % 3, (leader + 2) % 3);
    let ids: Vec<NodeId> = cluster
        .test_nodes
        .iter()
        .map(|test_node| test_node.member.node)
        .collect();
    let what = "t:/x/1";
    granted(&cluster.acquire(leader, acquire("amy", what, 20_000)));
    let short = ClientRequest::Renew {
        owner: owner("amy"),
        ttl: Ttl::from_millis(3_000).unwrap(),
        domains: vec![ns("t:/x")],
        key: Key::new("k1").unwrap(),
    };
    // The leader of the system group may be the same node: the claim goes through, what follows is slow.
    cluster.ask_for(slow, short.clone(), 30_000);
    let mut late = Vec::new();
    for _ in 0..20 {
        cluster.tick();
        if cluster.test_nodes[slow].answers.is_empty() {
            cluster.cut.insert((ids[slow], ids[leader]));
        }
    }
    late.append(&mut cluster.lost);
    cluster.heal();
    let answer = cluster.call(quick, short);
    let sent = cluster.now;
    let longer = cluster.renew(quick, "amy", &["t:/x"], 20_000);
    for (from, to, bytes) in late {
        if (from, to) == (ids[slow], ids[leader]) {
            cluster.input(leader, Input::Frame { from, bytes });
        }
    }
    cluster.run(sent + 6_000 - cluster.now);
    let bob = cluster.acquire(quick, acquire("bob", what, 10_000));
    assert!(
        is_queued(&bob),
        "amy's renewals were answered {answer:?} and {longer:?} (20 s), and {} ms later bob got {bob:?}",
        cluster.now - sent
    );
}

/// R102, R106: the same for a try that reaches its node only after the change: the namespace that its path is
/// in by then has never heard of the key.
#[test]
fn a_keyed_release_that_reaches_its_node_after_a_change_of_routes_applies_once() {
    use tenure_core::command::Hold;
    use tenure_core::policy::{Algorithm, Mode};

    let mut cluster = Cluster::with(3, 8, Limits::default());
    cluster.settle();
    // Two paths of one namespace, of which one gets another.
    let (what, other) = ("q:/a/b/x", "q:/a/y");
    let release = |with: &str| {
        let hold = |what: &str| Hold {
            path: path(what),
            mode: Mode::Write,
        };
        ClientRequest::Release(ReleaseRequest {
            owner: owner("amy"),
            holds: vec![hold(what), hold(other)],
            edge: WaitEdge::Keep,
            key: key(with),
        })
    };
    for what in [what, other] {
        granted(&cluster.acquire(0, acquire("amy", what, 600_000)));
    }
    assert_eq!(cluster.call(1, release("k1")), Ok(Answer::Done));
    let set = ClientRequest::SetNamespacePolicy {
        namespace: ns("q:/a/b"),
        algorithm: Algorithm::RecursiveRw,
        key: None,
    };
    assert_eq!(cluster.call(1, set), Ok(Answer::Done));
    for what in [what, other] {
        granted(&cluster.acquire(0, acquire("amy", what, 600_000)));
    }
    // The first try.
    assert_eq!(cluster.call(2, release("k1")), Ok(Answer::Done));
    for what in [what, other] {
        assert_eq!(cluster.holder(0, what).as_deref(), Some("amy"), "{what}");
    }
    // Another key is another release.
    assert_eq!(cluster.call(2, release("k2")), Ok(Answer::Done));
    for what in [what, other] {
        assert_eq!(cluster.holder(0, what), None, "{what}");
    }
}

fn subscribe(cluster: &mut Cluster, at: usize, stream: u64, who: &str) -> StreamId {
    let id = StreamId(stream);
    let owner = owner(who);
    cluster.input(at, Input::Subscribe { id, owner });
    id
}

fn events(cluster: &Cluster, at: usize, stream: StreamId) -> usize {
    let outputs = cluster.test_nodes[at].outputs.iter();
    let is_its = |output: &&Output| matches!(output, Output::Event { id, .. } if *id == stream);
    outputs.filter(is_its).count()
}

fn force_release(who: &str, with: &str) -> ClientRequest {
    ClientRequest::ForceRelease {
        victim: owner(who),
        key: key(with),
    }
}

/// R101, R102: KILLED comes once for a key, and what the victim acquires after it is not killed by a late try.
#[test]
fn a_keyed_kill_ends_what_it_was_meant_for() {
    let mut cluster = trio_and_a_guest();
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 60_000)));
    let group = placement::group_of(&ns("t:/a"), 8);
    let leader = cluster.leader(group).unwrap();
    let other = (leader + 1) % 3;
    let stream = subscribe(&mut cluster, other, 1, "amy");
    cluster.run(100);
    let (guest, leads) = (
        cluster.test_nodes[3].member.node,
        cluster.test_nodes[leader].member.node,
    );
    cluster.cut(3, leader);
    cluster.cut(leader, 3);
    cluster.input(3, Input::PeerDown { node: leads });
    let first = cluster.ask(3, force_release("amy", "k1"));
    cluster.run(3_000);
    assert!(!cluster.test_nodes[3].answers.contains_key(&first));
    assert_eq!(
        cluster.call(other, force_release("amy", "k1")),
        Ok(Answer::Done)
    );
    assert_eq!(cluster.holder(other, "t:/a"), None);
    granted(&cluster.acquire(other, acquire("amy", "t:/a", 60_000)));
    cluster.heal();
    cluster.input(3, Input::PeerUp { node: leads });
    cluster.input(leader, Input::PeerUp { node: guest });
    assert_eq!(cluster.wait(3, first), Ok(Answer::Done));
    assert_eq!(cluster.holder(other, "t:/a").as_deref(), Some("amy"));
    assert_eq!(events(&cluster, other, stream), 1);
}

/// R100: an owner that waited when everything was released does not hold anything afterwards, also if the grant
/// came between the read and the release.
#[test]
fn a_waiter_that_is_granted_meanwhile_is_released_too() {
    for pause in 0..12 {
        let mut cluster = Cluster::with(3, 8, Limits::default());
        cluster.settle();
        granted(&cluster.acquire(0, acquire("amy", "t:/a", 60_000)));
        let mut waits = acquire("bob", "t:/a", 60_000);
        waits.queue_ttl = tenure_core::value::QueueTtl::from_millis(60_000).unwrap();
        assert!(is_queued(&cluster.acquire(0, waits)));
        let id = cluster.ask(1, release_all("bob", "k1"));
        cluster.run(pause);
        cluster.release(2, "amy", "t:/a");
        assert_eq!(cluster.wait(1, id), Ok(Answer::Done));
        assert_eq!(cluster.holder(0, "t:/a"), None, "after {pause} ms");
    }
}

/// A call that its client has given up is not carried on, here or elsewhere.
#[test]
fn what_nobody_waits_for_is_not_tried_again() {
    let mut cluster = trio_and_a_guest();
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 60_000)));
    let group = placement::group_of(&ns("t:/a"), 8);
    let leader = cluster.leader(group).unwrap();
    let leads = cluster.test_nodes[leader].member.node;
    cluster.cut(3, leader);
    cluster.cut(leader, 3);
    cluster.input(3, Input::PeerDown { node: leads });
    let everything = ClientRequest::ReleaseAll {
        owner: owner("amy"),
        domains: Vec::new(),
        edge: WaitEdge::Keep,
        key: None,
    };
    let id = cluster.ask(3, everything);
    cluster.run(1_000);
    cluster.input(3, Input::Cancel { id });
    cluster.run(200);
    cluster.heal();
    cluster.input(3, Input::PeerUp { node: leads });
    cluster.run(5_000);
    assert_eq!(cluster.holder(0, "t:/a").as_deref(), Some("amy"));
}

/// R122: a group without a leader withholds no GRANT of another.
#[test]
fn a_dead_group_does_not_withhold_grants_of_others() {
    // Group 0 has one replica, on the second node; the others are everywhere.
    let mut cluster = Cluster::empty(2, Limits::default());
    let members: Vec<ReplicaId> = (1..=3).map(|number| member(number, 1)).collect();
    for (at, me) in members.iter().enumerate() {
        let mut born = vec![(GroupId(1), members.clone()), (GroupId(2), members.clone())];
        if at == 1 {
            born.push((GroupId(0), vec![*me]));
        }
        cluster.add(*me, born);
    }
    for at in 0..3 {
        cluster.start(at);
    }
    cluster.settle();
    let what = (0..20)
        .map(|number| format!("t:/{number}"))
        .find(|name| placement::group_of(&ns(name), 2) == GroupId(1))
        .unwrap();
    cluster.crash(1);
    cluster.tell_down(1);
    cluster.run(5_000);
    granted(&cluster.acquire(0, acquire("amy", &what, 60_000)));
    let mut waits = acquire("bob", &what, 60_000);
    waits.queue_ttl = tenure_core::value::QueueTtl::from_millis(60_000).unwrap();
    assert!(is_queued(&cluster.acquire(0, waits)));
    cluster.release(0, "amy", &what);
    let stream = subscribe(&mut cluster, 2, 1, "bob");
    cluster.run(1_000);
    assert_eq!(events(&cluster, 2, stream), 1);
    // The stream gets it once when the group is there again.
    cluster.start(1);
    cluster.run(5_000);
    assert_eq!(events(&cluster, 2, stream), 1);
}

/// R91, R130: one group that cannot be reached fails a renewal of everything, soon, and the leases in all
/// others are extended. A renewal that names its namespaces does not notice.
#[test]
fn a_dead_group_fails_a_renewal_of_everything_soon() {
    let mut cluster = Cluster::empty(2, Limits::default());
    let members: Vec<ReplicaId> = (1..=3).map(|number| member(number, 1)).collect();
    for (at, me) in members.iter().enumerate() {
        let mut born = vec![(GroupId(1), members.clone()), (GroupId(2), members.clone())];
        if at == 1 {
            born.push((GroupId(0), vec![*me]));
        }
        cluster.add(*me, born);
    }
    for at in 0..3 {
        cluster.start(at);
    }
    cluster.settle();
    let name = (0..20)
        .map(|number| format!("t:/{number}"))
        .find(|name| placement::group_of(&ns(name), 2) == GroupId(1))
        .unwrap();
    cluster.crash(1);
    cluster.tell_down(1);
    cluster.run(5_000);
    granted(&cluster.acquire(0, acquire("amy", &name, 10_000)));
    cluster.run(5_000);
    let id = cluster.ask_for(0, renew("amy", &[], 10_000), 30_000);
    cluster.until(6_000, "an answer long before the deadline", |cluster| {
        cluster.test_nodes[0].answers.contains_key(&id)
    });
    let answer = cluster.test_nodes[0].answers.remove(&id);
    assert!(
        matches!(
            answer,
            Some(Err(Failure::Unavailable {
                nothing_happened: EffectCertainty::No,
                ..
            }))
        ),
        "{answer:?}"
    );
    cluster.run(2_000);
    assert_eq!(
        cluster.holder(0, &name).as_deref(),
        Some("amy"),
        "it was extended"
    );
    let named = cluster.renew(0, "amy", &[&name], 10_000);
    assert_eq!(named, RenewAnswer::Renewed { asked: false });
}

/// R142: however much an owner holds, the list of it reaches another node, in pieces that a connection takes.
#[test]
fn a_long_list_of_locks_comes_in_pages() {
    use tenure_core::command::{Request, RequestKind};
    use tenure_core::policy::Mode;
    let mut cluster = trio_and(1, Limits::default());
    let filler = format!("{}/", "x".repeat(200)).repeat(19);
    let (rounds, each) = (18, 1_000);
    for round in 0..rounds {
        let mut request = acquire("amy", "t:/a/none", 600_000);
        let one = |number: u32| Request {
            path: path(&format!("t:/a/{filler}{round}/{number}")),
            mode: Mode::Write,
            state: RequestKind::New,
            permits: None,
        };
        request.requests = (0..each).map(one).collect();
        granted(&cluster.acquire(0, request));
    }
    let list = ClientRequest::ListOwnerLocks {
        owner: owner("amy"),
        domains: Vec::new(),
    };
    let Ok(Answer::OwnerLocks(found)) = cluster.call(3, list) else {
        panic!("no list");
    };
    assert!(found.alive);
    assert_eq!(found.locks.len(), 18_000);
    let longest = cluster.longest_frame;
    assert!(longest < 8 << 20, "a frame of {longest} bytes");
}

/// R142: an answer that comes late, to a question that was asked again since, is not counted beside the new one.
#[test]
fn a_late_answer_to_an_earlier_question_does_not_count() {
    let mut cluster = trio_and_a_guest();
    let held = placement::group_of(&ns("t:/a"), 8);
    let astray = GroupId((held.0 + 1) % 8);
    for group in (0..=8).map(GroupId) {
        let test_node = if group == held || group == astray {
            0
        } else {
            2
        };
        lead(&mut cluster, group, test_node);
    }
    cluster.run(4_000);
    granted(&cluster.acquire(3, acquire("amy", "t:/a", 60_000)));
    // One group gets a leader of which the guest does not hear, so that it asks the former one without an answer,
    // for as long as the list is not complete.
    cluster.cut(1, 3);
    lead(&mut cluster, astray, 1);
    // What seat 0 answers comes late: to each question by itself.
    cluster.cut(0, 3);
    let list = ClientRequest::ListOwnerLocks {
        owner: owner("amy"),
        domains: Vec::new(),
    };
    let id = cluster.ask(3, list);
    cluster.lost.clear();
    cluster.run(1_500);
    let first = std::mem::take(&mut cluster.lost);
    cluster.run(1_500);
    let second = std::mem::take(&mut cluster.lost);
    for late in [first, second] {
        for (from, to, bytes) in late {
            if (from, to) == (node_id(1), node_id(4)) {
                cluster.input(3, Input::Frame { from, bytes });
            }
        }
        // Time to ask for what is missing.
        cluster.run(300);
    }
    cluster.heal();
    let Ok(Answer::OwnerLocks(found)) = cluster.wait(3, id) else {
        panic!("no list");
    };
    assert_eq!(found.locks.len(), 1);
}

/// A leader that has not applied its log yet does not know by which rules its group goes: the form of what it
/// proposes is chosen when it proposes.
#[test]
fn a_keyed_release_is_recognised_right_after_a_restart() {
    let mut cluster = Cluster::new(1, 1);
    cluster.run(1_000);
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 60_000)));
    let release = || {
        ClientRequest::Release(ReleaseRequest {
            owner: owner("amy"),
            holds: vec![tenure_core::command::Hold {
                path: path("t:/a"),
                mode: tenure_core::policy::Mode::Write,
            }],
            edge: WaitEdge::Keep,
            key: key("k1"),
        })
    };
    assert!(cluster.call(0, release()).is_ok());
    cluster.crash(0);
    cluster.start(0);
    // It leads, and its first entry is not durable yet.
    let again = cluster.call(0, release());
    assert!(again.is_ok(), "{again:?}");
}

fn keyed_release(who: &str, what: &[&str], with: &str) -> ClientRequest {
    use tenure_core::command::Hold;
    use tenure_core::policy::Mode;
    let hold = |what: &&str| Hold {
        path: path(what),
        mode: Mode::Write,
    };
    ClientRequest::Release(ReleaseRequest {
        owner: owner(who),
        holds: what.iter().map(hold).collect(),
        edge: WaitEdge::Keep,
        key: key(with),
    })
}

fn set_policy(name: &str) -> ClientRequest {
    ClientRequest::SetNamespacePolicy {
        namespace: ns(name),
        algorithm: tenure_core::policy::Algorithm::RecursiveRw,
        key: None,
    }
}

/// R97 (Release drops listed holds): the group that had a path has frozen it, the group that has it now has
/// applied the change, and the owner has acquired the path there. A release by the routes before the change is
/// answered when that hold is gone.
#[test]
fn a_release_by_older_routes_during_a_change_ends_the_hold_in_the_new_namespace() {
    let mut compared = 0;
    for cut_after in 1..14 {
        compared += u32::from(released_during_a_change(cut_after));
    }
    assert!(
        compared > 0,
        "no release met a change that was half applied"
    );
}

/// Whether the release met a change that was applied where the path is now and not where it was.
fn released_during_a_change(cut_after: u64) -> bool {
    let mut cluster = trio_and_a_guest();
    let (from, to) = (
        placement::group_of(&ns("q:/a"), 8),
        placement::group_of(&ns("q:/a/b"), 8),
    );
    assert_ne!(from, to, "choose other names");
    let what = "q:/a/b/x";
    let system = cluster.system();
    lead(&mut cluster, from, 0);
    lead(&mut cluster, system, 1);
    lead(&mut cluster, to, 2);
    let other = "q:/a/z";
    granted(&cluster.acquire(0, acquire("amy", other, 600_000)));
    // The node that drives the change does not reach the former group's leader after a while.
    let change = cluster.ask(1, set_policy("q:/a/b"));
    cluster.run(cut_after);
    cluster.cut(1, 0);
    cluster.run(20);
    let hold = cluster.ask(2, ClientRequest::Acquire(acquire("amy", what, 600_000)));
    cluster.run(20);
    let is_granted = matches!(
        cluster.test_nodes[2].answers.get(&hold),
        Some(Ok(Answer::Acquire(AcquireAnswer::Granted { .. })))
    );
    if !is_granted || cluster.test_nodes[1].answers.contains_key(&change) {
        return false;
    }
    let release = cluster.ask(0, keyed_release("amy", &[what, other], "k1"));
    cluster.run(20);
    let early = cluster.test_nodes[0].answers.get(&release).cloned();
    if early == Some(Ok(Answer::Done)) {
        assert_eq!(cluster.holder(2, what), None, "cut after {cut_after} ms");
        return false;
    }
    // What is held where it was is released at once. The rest is tried many times meanwhile.
    cluster.run(9_000);
    assert_eq!(cluster.holder(0, other), None, "cut after {cut_after} ms");
    assert!(!cluster.test_nodes[0].answers.contains_key(&release));
    cluster.heal();
    assert_eq!(cluster.wait(0, release), Ok(Answer::Done));
    cluster.run(1_000);
    assert_eq!(cluster.holder(2, what), None, "cut after {cut_after} ms");
    true
}

fn says_that_nothing_happened<T>(answer: &Result<T, Failure>) -> bool {
    match answer {
        Ok(_) | Err(Failure::DeadlineExceeded) => false,
        Err(Failure::Unavailable {
            nothing_happened, ..
        }) => *nothing_happened == EffectCertainty::Yes,
        Err(_) => true,
    }
}

fn two_busy_groups() -> Cluster {
    let limits = Limits {
        group_inflight: 2,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(3, 2, limits);
    cluster.settle();
    cluster
}

/// A request in the same turn as so many reads that the group of a path takes no more.
fn ask_while_busy(
    cluster: &mut Cluster,
    at: usize,
    what: &str,
    request: ClientRequest,
) -> Result<Answer, Failure> {
    let mut inputs = Vec::new();
    for _ in 0..2 {
        inputs.push(Input::Request {
            id: cluster.fresh_id(),
            request: Box::new(ClientRequest::InspectPath { path: path(what) }),
            timeout_ms: 5_000,
        });
    }
    let id = cluster.fresh_id();
    inputs.push(Input::Request {
        id,
        request: Box::new(request),
        timeout_ms: 5_000,
    });
    cluster.inputs(at, inputs);
    cluster.wait(at, id)
}

/// A release of which one part was refused and another was applied does not say that nothing has happened.
#[test]
fn a_release_in_part_is_not_reported_as_none() {
    let mut cluster = two_busy_groups();
    let [(one, _), (other, group)] = apart(&mut cluster);
    for what in [&one, &other] {
        granted(&cluster.acquire(0, acquire("amy", what, 60_000)));
    }
    let busy = cluster.leader(group).unwrap();
    let release = keyed_release("amy", &[&one, &other], "");
    let answer = ask_while_busy(&mut cluster, busy, &other, release);
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(cluster.holder(0, &one), None, "it was released");
    assert!(!says_that_nothing_happened(&answer), "{answer:?}");
}

/// The same for a renewal of named namespaces.
#[test]
fn a_renewal_in_part_is_not_reported_as_none() {
    let mut cluster = two_busy_groups();
    let [(one, _), (other, group)] = apart(&mut cluster);
    for what in [&one, &other] {
        granted(&cluster.acquire(0, acquire("amy", what, 10_000)));
    }
    let busy = cluster.leader(group).unwrap();
    let names: Vec<&str> = [&one, &other]
        .map(|what| what.strip_suffix("/x").unwrap())
        .into();
    cluster.run(6_000);
    let answer = ask_while_busy(&mut cluster, busy, &other, renew("amy", &names, 10_000));
    assert!(answer.is_err(), "{answer:?}");
    cluster.run(6_000);
    assert_eq!(cluster.holder(0, &one).as_deref(), Some("amy"));
    assert!(!says_that_nothing_happened(&answer), "{answer:?}");
}

/// Keeps the leader of a group busy for some time, with reads of clients.
fn flood(cluster: &mut Cluster, group: GroupId, read: &ClientRequest, millis: u64) {
    let leader = cluster.leader(group).unwrap();
    for _ in 0..millis {
        for _ in 0..3 {
            cluster.ask_for(leader, read.clone(), 1_000);
        }
        cluster.tick();
    }
}

/// The same for a release of everything whose wait edge could not be removed.
#[test]
fn a_release_of_all_without_its_edge_is_not_reported_as_none() {
    let mut refused = 0;
    for pause in 0..8 {
        let mut cluster = two_busy_groups();
        granted(&cluster.acquire(0, acquire("amy", "t:/a", 60_000)));
        let request = ClientRequest::ReleaseAll {
            owner: owner("amy"),
            domains: Vec::new(),
            edge: WaitEdge::Remove,
            key: None,
        };
        let id = cluster.ask(0, request);
        cluster.run(pause);
        let system = cluster.system();
        let read = ClientRequest::GetNamespacePolicy {
            namespace: ns("t:/a"),
        };
        flood(&mut cluster, system, &read, 40);
        let answer = cluster.wait(0, id);
        refused += u32::from(answer.is_err());
        if says_that_nothing_happened(&answer) {
            let holder = cluster.holder(0, "t:/a");
            assert_eq!(holder.as_deref(), Some("amy"), "{answer:?}");
        }
    }
    assert!(refused > 0, "the system group was never busy");
}

/// E5: the same for an acquire that was placed in line, found a deadlock, and could not be withdrawn.
#[test]
fn an_acquire_that_was_not_withdrawn_is_not_reported_as_none() {
    let mut refused = 0;
    for pause in 0..12 {
        let mut cluster = two_busy_groups();
        let [(one, group), (other, _)] = apart(&mut cluster);
        granted(&cluster.acquire(0, acquire("amy", &one, 60_000)));
        granted(&cluster.acquire(0, acquire("bob", &other, 60_000)));
        let waits = |who: &str, what: &str| {
            let mut waits = acquire(who, what, 60_000);
            waits.queue_ttl = tenure_core::value::QueueTtl::from_millis(60_000).unwrap();
            waits
        };
        assert!(is_queued(&cluster.acquire(0, waits("amy", &other))));
        let mut request = waits("bob", &one);
        request.deadlock = Deadlock::Refuse;
        let id = cluster.ask(0, ClientRequest::Acquire(request));
        cluster.run(pause);
        let read = ClientRequest::InspectPath { path: path(&one) };
        flood(&mut cluster, group, &read, 40);
        let answer = cluster.wait(0, id);
        refused += u32::from(answer.is_err());
        if says_that_nothing_happened(&answer) {
            cluster.release(0, "amy", &one);
            cluster.run(100);
            assert_eq!(cluster.holder(0, &one), None, "{answer:?}");
        }
    }
    assert!(refused > 0, "the group was never busy");
}

/// Three nodes and a guest. Group 0 has one replica, which could not lead before the guest went away, so it is by
/// the rules of release 0.1.0 until the guest is back; the others are by the newest.
fn one_group_behind() -> Cluster {
    let mut cluster = Cluster::empty(2, Limits::default());
    let members: Vec<ReplicaId> = (1..=3).map(|number| member(number, 1)).collect();
    for (at, me) in members.iter().enumerate() {
        let mut born = vec![(GroupId(1), members.clone()), (GroupId(2), members.clone())];
        if at == 1 {
            born.push((GroupId(0), vec![*me]));
        }
        cluster.add(*me, born);
    }
    cluster.add(member(4, 1), Vec::new());
    cluster.test_nodes[1].paused_disk = true;
    for at in 0..4 {
        cluster.start(at);
    }
    cluster.until(
        20_000,
        "the other groups have the newest rules",
        |cluster| {
            (1..=2)
                .all(|group| rules_of(cluster, GroupId(group)) == Some(tenure_core::space::RULES))
        },
    );
    cluster.crash(3);
    cluster.tell_down(3);
    cluster.test_nodes[1].paused_disk = false;
    cluster.until(20_000, "the first group is led", |cluster| {
        rules_of(cluster, GroupId(0)).is_some()
    });
    cluster.run(100);
    assert_eq!(
        rules_of(&cluster, GroupId(0)),
        Some(tenure_core::space::FIRST_RULES)
    );
    cluster
}

/// A repeated operation that is refused does not tell what became of the first copy: the call must not say that
/// nothing happened.
#[test]
fn a_refused_second_copy_does_not_say_that_nothing_happened() {
    let limits = Limits {
        group_inflight: 2,
        ..Limits::default()
    };
    let mut cluster = trio_and(1, limits);
    cluster.run(2_000);
    let system = cluster.system();
    lead(&mut cluster, system, 0);
    granted(&cluster.acquire(0, acquire("amy", "t:/a", 600_000)));
    let stream = subscribe(&mut cluster, 0, 1, "amy");
    cluster.run(100);
    // The followers cannot write, so the first copy of the plan is proposed and not committed.
    cluster.test_nodes[1].paused_disk = true;
    cluster.test_nodes[2].paused_disk = true;
    let kill = cluster.ask(3, force_release("amy", "k1"));
    cluster.run(100);
    // The leader has as much under way as it may: the second copy is refused.
    cluster.ask(0, ClientRequest::IncrFencingToken { key: None });
    cluster.until(3_500, "the call ends", |cluster| {
        cluster.test_nodes[3].answers.contains_key(&kill)
    });
    let answer = cluster.test_nodes[3].answers.remove(&kill).unwrap();
    assert_eq!(events(&cluster, 0, stream), 0);
    cluster.test_nodes[1].paused_disk = false;
    cluster.test_nodes[2].paused_disk = false;
    cluster.until(1_000, "the first copy is applied", |cluster| {
        events(cluster, 0, stream) == 1
    });
    assert!(
        matches!(
            answer,
            Err(Failure::Unavailable {
                nothing_happened: EffectCertainty::No,
                ..
            })
        ),
        "{answer:?}"
    );
}

/// All groups are at rules 2; one node is down; a node without replicas starts, so it cannot know from all nodes,
/// nor from a group of its own, that the newer forms are on.
fn guest_that_starts_beside_a_node_that_is_down() -> Cluster {
    let mut cluster = trio_and_a_guest();
    cluster.run(3_000);
    let group = placement::group_of(&ns("t:/a"), 8);
    let system = cluster.system();
    lead(&mut cluster, system, 1);
    lead(&mut cluster, group, 0);
    cluster.crash(2);
    cluster.tell_down(2);
    cluster.settle();
    for group in (0..=8).map(GroupId) {
        assert_eq!(rules_of(&cluster, group), Some(2), "{group}");
    }
    granted(&cluster.acquire(1, acquire("amy", "t:/a", 600_000)));
    cluster.crash(3);
    cluster.start(3);
    cluster
}

/// The guest, which cannot reach the leader of the group, works on a ReleaseAll; a second attempt at another node
/// is answered, and the owner acquires again. The first attempt must not end the new hold.
fn a_late_first_attempt_ends_nothing_new(cluster: &mut Cluster, first: RequestId) {
    let (guest, leads) = (
        cluster.test_nodes[3].member.node,
        cluster.test_nodes[0].member.node,
    );
    cluster.run(3_000);
    assert!(!cluster.test_nodes[3].answers.contains_key(&first));
    assert_eq!(cluster.call(1, release_all("amy", "k1")), Ok(Answer::Done));
    assert_eq!(cluster.holder(1, "t:/a"), None);
    granted(&cluster.acquire(1, acquire("amy", "t:/a", 600_000)));
    cluster.heal();
    cluster.input(3, Input::PeerUp { node: leads });
    cluster.input(0, Input::PeerUp { node: guest });
    let answer = cluster.wait(3, first);
    cluster.run(500);
    assert_eq!(
        cluster.holder(1, "t:/a").as_deref(),
        Some("amy"),
        "the late attempt: {answer:?}"
    );
}

/// R102: a node without replicas plans a keyed ReleaseAll also if it starts while another node is down.
#[test]
fn a_node_without_replicas_plans_although_another_node_is_down() {
    let mut cluster = guest_that_starts_beside_a_node_that_is_down();
    cluster.run(3_000);
    cluster.cut(3, 0);
    cluster.cut(0, 3);
    let node = cluster.test_nodes[0].member.node;
    cluster.input(3, Input::PeerDown { node });
    let first = cluster.ask(3, release_all("amy", "k1"));
    a_late_first_attempt_ends_nothing_new(&mut cluster, first);
}

/// R102: the same if the call comes before the node has heard from any other.
#[test]
fn a_call_that_comes_before_the_rules_are_known_is_planned_all_the_same() {
    let mut cluster = guest_that_starts_beside_a_node_that_is_down();
    cluster.cut(3, 0);
    cluster.cut(0, 3);
    let first = cluster.ask(3, release_all("amy", "k1"));
    let node = cluster.test_nodes[0].member.node;
    cluster.input(3, Input::PeerDown { node });
    a_late_first_attempt_ends_nothing_new(&mut cluster, first);
}

fn rules_of(cluster: &Cluster, group: GroupId) -> Option<u32> {
    let leader = cluster.leader(group)?;
    Some(status(cluster, leader, group)?.rules)
}

/// R102: a plan is kept for attempts that come later, so it names what it ends. In a group by the first rules
/// nothing can be named: the plan waits for the newer ones.
#[test]
fn a_plan_names_what_it_ends_also_while_a_group_is_behind() {
    for cut_after in 1..12 {
        let mut cluster = one_group_behind();
        let what = (0..50)
            .map(|number| format!("t:/{number}"))
            .find(|name| placement::group_of(&ns(name), 2) == GroupId(0))
            .unwrap();
        granted(&cluster.acquire(1, acquire("amy", &what, 60_000)));
        cluster.lost.clear();
        cluster.ask(0, release_all("amy", "k1"));
        cluster.run(cut_after);
        cluster.cut(0, 1);
        let second = cluster.ask(2, release_all("amy", "k1"));
        cluster.run(300);
        // The guest is back, so that the first group follows.
        cluster.start(3);
        for at in 0..3 {
            cluster.input(at, Input::PeerUp { node: node_id(4) });
        }
        assert_eq!(cluster.wait(2, second), Ok(Answer::Done));
        granted(&cluster.acquire(2, acquire("amy", &what, 60_000)));
        let late = std::mem::take(&mut cluster.lost);
        cluster.heal();
        for (from, to, bytes) in late {
            if (from, to) == (node_id(1), node_id(2)) {
                cluster.input(1, Input::Frame { from, bytes });
            }
        }
        cluster.run(3_000);
        assert_eq!(
            cluster.holder(2, &what).as_deref(),
            Some("amy"),
            "cut after {cut_after} ms"
        );
    }
}

/// R102: a late attempt asks all groups for its key and waits for the last answer. Meanwhile another attempt is
/// applied, the path moves once more, and its owner acquires it again: that hold is not meant.
#[test]
fn a_late_keyed_release_spares_a_hold_acquired_after_a_second_move() {
    let mut cluster = trio_and_a_guest();
    let (one, two, three) = ("q:/a", "q:/a/b", "q:/a/b/c");
    let groups: Vec<GroupId> = [one, two, three]
        .iter()
        .map(|name| placement::group_of(&ns(name), 8))
        .collect();
    let what = "q:/a/b/c/x";
    let system = cluster.system();
    let slow = (0..8)
        .map(GroupId)
        .find(|group| !groups.contains(group))
        .unwrap();
    lead(&mut cluster, system, 1);
    lead(&mut cluster, groups[1], 2);
    lead(&mut cluster, groups[2], 2);
    lead(&mut cluster, slow, 0);
    assert_eq!(cluster.call(1, set_policy(two)), Ok(Answer::Done));
    granted(&cluster.acquire(3, acquire("guest", "q:/a/b/k", 600_000)));
    granted(&cluster.acquire(3, acquire("amy", what, 600_000)));
    // One node's answers do not reach the guest for a while.
    cluster.cut(0, 3);
    let second = cluster.ask(3, keyed_release("amy", &[what], "k1"));
    cluster.run(50);
    assert_eq!(
        cluster.call(1, keyed_release("amy", &[what], "k1")),
        Ok(Answer::Done)
    );
    assert_eq!(cluster.holder(1, what), None);
    assert_eq!(cluster.call(1, set_policy(three)), Ok(Answer::Done));
    let amy = granted(&cluster.acquire(1, acquire("amy", what, 600_000)));
    // The guest learns of the table.
    granted(&cluster.acquire(3, acquire("guest", "q:/a/b/c/k", 600_000)));
    assert!(!cluster.test_nodes[3].answers.contains_key(&second));
    cluster.heal();
    let answer = cluster.wait(3, second);
    cluster.run(1_000);
    let bob = cluster.acquire(1, acquire("bob", what, 600_000));
    assert!(
        is_queued(&bob),
        "amy holds {what} at {amy:?}; the late attempt: {answer:?}; bob: {bob:?}"
    );
}

/// R102, R104: a node with an older table splits a keyed release in two, and both parts lie in one namespace.
#[test]
fn a_keyed_release_split_by_an_older_table_releases_all_of_its_holds() {
    let mut cluster = trio_and_a_guest();
    cluster.run(3_000);
    let (moved, other) = ("q:/a/b/x", "q:/a/y");
    assert_eq!(cluster.call(1, set_policy("q:/a/b")), Ok(Answer::Done));
    // The guest knows the row; then it goes.
    granted(&cluster.acquire(3, acquire("guest", moved, 600_000)));
    cluster.release(3, "guest", moved);
    let delete = ClientRequest::DeleteNamespacePolicy {
        namespace: ns("q:/a/b"),
        key: None,
    };
    assert_eq!(cluster.call(1, delete), Ok(Answer::Done));
    cluster.run(400_000);
    for what in [moved, other] {
        granted(&cluster.acquire(1, acquire("amy", what, 600_000)));
    }
    let answer = cluster.call(3, keyed_release("amy", &[moved, other], "k1"));
    let left: Vec<_> = [moved, other].map(|what| cluster.holder(1, what)).into();
    assert_eq!((answer, left), (Ok(Answer::Done), vec![None, None]));
}

/// R102: an attempt was applied in part. A repeat at a node with an older table, which has both paths in one
/// namespace, does the rest.
#[test]
fn a_repeat_by_an_older_table_releases_what_the_first_attempt_did_not() {
    let mut cluster = trio_and_a_guest();
    cluster.run(3_000);
    let (moved, other) = ("q:/a/b/x", "q:/a/y");
    let (from, to) = (
        placement::group_of(&ns("q:/a"), 8),
        placement::group_of(&ns("q:/a/b"), 8),
    );
    let system = cluster.system();
    lead(&mut cluster, from, 2);
    lead(&mut cluster, to, 0);
    lead(&mut cluster, system, 2);
    granted(&cluster.acquire(3, acquire("guest", "q:/a/z", 600_000)));
    assert_eq!(cluster.call(1, set_policy("q:/a/b")), Ok(Answer::Done));
    for what in [moved, other] {
        granted(&cluster.acquire(1, acquire("amy", what, 600_000)));
    }
    cluster.run(310_000);
    for what in [moved, other] {
        granted(&cluster.acquire(1, acquire("amy", what, 600_000)));
    }
    cluster.cut(1, 0);
    let first = cluster.ask(1, keyed_release("amy", &[moved, other], "k1"));
    cluster.run(20);
    let node = cluster.test_nodes[0].member.node;
    cluster.input(1, Input::PeerDown { node });
    let first = cluster.wait(1, first);
    cluster.heal();
    cluster.input(1, Input::PeerUp { node });
    cluster.run(500);
    let second = cluster.call(3, keyed_release("amy", &[moved, other], "k1"));
    let left: Vec<_> = [moved, other].map(|what| cluster.holder(2, what)).into();
    assert_eq!(
        (second, left),
        (Ok(Answer::Done), vec![None, None]),
        "{first:?}"
    );
}
