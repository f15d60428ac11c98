//! Calls over several groups: at most one effect per attempt and per key, whatever is late, lost or repeated.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::*;
use tenure_node::*;

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
    let status = cluster.seats[leader].node.as_ref().unwrap().status();
    let one = status.groups.into_iter().find(|one| one.group == group);
    one.unwrap().counts.unwrap().claims
}

fn trio_and(guests: u32, limits: Limits) -> Cluster {
    let mut cluster = Cluster::empty(1, limits);
    let members: Vec<Member> = (1..=3).map(|number| member(number, 1)).collect();
    for me in &members {
        let born = (0..=1)
            .map(|group| (GroupId(group), members.clone()))
            .collect();
        cluster.add(*me, born);
    }
    for number in 4..4 + guests {
        cluster.add(member(number, 1), Vec::new());
    }
    for at in 0..cluster.seats.len() {
        cluster.start(at);
    }
    cluster.settle();
    cluster
}

fn lead(cluster: &mut Cluster, group: GroupId, seat: usize) {
    let to = cluster.seats[seat].member;
    for _ in 0..40 {
        match cluster.leader(group) {
            Some(at) if at == seat => return,
            Some(at) => cluster.input(at, Input::Transfer { group, to }),
            None => {}
        }
        cluster.run(200);
    }
    panic!("{group} is not led at seat {seat}");
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
                found = Some((before, after, third, ga, gb, gc));
                break 'search;
            }
        }
    }
    let (before, after, third, ga, gb, gc) = found.unwrap();
    println!("{before} in {ga}, {after} in {gb}, {third} in {gc}");
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
    let wrong = Ok(Answer::AssertFencing(AssertAnswer::StaleOwner(path(&moved))));
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
    println!("{} frames come late, in their order", late.len());
    for (from, _, bytes) in late {
        cluster.input(3, Input::Frame { from, bytes });
    }
    let answer = cluster.wait(3, id);
    assert_eq!(answer, wrong, "she does not hold {moved}");
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
    assert_eq!(answer, Ok(Answer::Renew(RenewAnswer::Renewed { asked: false })));
}

/// R106, R77: a renewal that was answered is over. A node that asks the leader again because the answer was
/// slow must not have it carried out after a later renewal was answered: it would shorten that one.
#[test]
fn a_renewal_that_was_answered_does_not_come_back() {
    let mut cluster = trio_and(0, Limits::default());
    let group = GroupId(0);
    let leader = cluster.leader(group).unwrap();
    let (asked, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let ids: Vec<NodeId> = cluster.seats.iter().map(|seat| seat.member.node).collect();
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

/// R102: a renewal under a key happens once. A try that is slow on its way must not be carried out after
/// another one was answered under the same key, and a longer renewal after that.
#[test]
fn a_keyed_renewal_applies_once() {
    use tenure_core::value::{Key, Ttl};

    let mut cluster = trio_and(0, Limits::default());
    let group = GroupId(0);
    let leader = cluster.leader(group).unwrap();
    let (slow, quick) = ((leader + 1) % 3, (leader + 2) % 3);
    let ids: Vec<NodeId> = cluster.seats.iter().map(|seat| seat.member.node).collect();
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
        if cluster.seats[slow].answers.is_empty() {
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

