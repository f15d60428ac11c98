//! Queries and events: paging, event order, deadlock walks (R111–R114, R120–R125, R143 DumpLocks
//! pages through all holds).

use tenure_core::deadlock::{Detection, MAX_DEPTH, Walk, WalkStep};
use tenure_core::event::EventKind;
use tenure_core::query::EventsAfter;
use tenure_core::value::OwnerId;

use crate::cluster_state::owner_id;
use crate::scenario::Scenario;

/// R143 (DumpLocks pages through all holds): a hold that exists during the whole scan appears
/// exactly once.
#[test]
fn a_scan_neither_repeats_nor_skips_what_stays() {
    for page in [1, 2, 7, 64] {
        let mut room = Scenario::new();
        for number in 0..40 {
            room.line(&format!("acquire amy write t:/a/{number:02} -> granted"));
        }
        let mut seen = Vec::new();
        let mut cursor = None;
        let mut round = 0;
        loop {
            let part = room.pair.space.dump(cursor, page);
            assert!(part.locks.len() <= page);
            seen.extend(part.locks.iter().map(|lock| lock.path.to_string()));
            cursor = part.next;
            if cursor.is_none() {
                break;
            }
            // Odd paths change their holder meanwhile; even ones stay.
            let odd = (round * 14 + 1) % 40;
            room.line(&format!("release amy write t:/a/{odd:02} -> ok"));
            room.line(&format!("acquire bob write t:/a/{odd:02} -> granted"));
            round += 1;
        }
        for number in (0..40).step_by(2) {
            let path = format!("t:/a/{number:02}");
            assert_eq!(
                seen.iter().filter(|found| **found == path).count(),
                1,
                "{path}"
            );
        }
    }
}

/// R120 (sources of events): GRANT, KILLED and REVOKE have their sources, and there are no other
/// events.
/// R121 (event ids): ids always grow, above the hint of the clock, across snapshots and clocks that
/// go back.
#[test]
fn events_are_numbered_where_they_are_made() {
    let mut room = Scenario::new();
    room.lines(
        "acquire amy write t:/a -> granted
         acquire bob write t:/a -> queued
         acquire cid write t:/a ask -> queued, asks amy
         release amy write t:/a -> ok, grants bob, asks bob
         expire bob t:/a -> expired, grants cid
         release cid write t:/a -> ok
         snapshot
         acquire amy write t:/a -> granted
         policy t:/a point_rw -> done, kills amy",
    );
    let events = match room.pair.space.events_after(0) {
        EventsAfter::Complete(events) => events,
        EventsAfter::Hole(_) => panic!("nothing was forgotten yet"),
    };
    assert_eq!(room.pair.space.last_event(), events.len() as u64);
    let kinds: Vec<String> = events
        .iter()
        .map(|event| format!("{} {:?}", event.owner, event.kind))
        .collect();
    assert_eq!(kinds.len(), 5, "{kinds:?}");
    assert!(events.is_sorted_by(|a, b| a.sequence + 1 == b.sequence && a.id < b.id));
    assert!(events.iter().all(|event| event.id < 1 << 53));
    assert!(events[0].id >= room.pair.stamp().wall / 2 * 1024);
    assert!(events.iter().all(|event| event.namespace.is_some()));
}

/// R122 (events are always delivered): events are kept for 30 s. A later query reports a gap.
#[test]
fn old_events_leave_a_hole() {
    let mut room = Scenario::new();
    room.lines(
        "acquire amy write t:/a -> granted
         acquire bob write t:/a -> queued
         release amy write t:/a -> ok, grants bob
         tick 29999
         acquire amy write t:/a -> queued
         release bob write t:/a -> ok, grants amy",
    );
    let count = |room: &Scenario, after| match room.pair.space.events_after(after) {
        EventsAfter::Complete(events) => (true, events.len()),
        EventsAfter::Hole(events) => (false, events.len()),
    };
    assert_eq!(count(&room, 0), (true, 2));
    assert_eq!(count(&room, 1), (true, 1));
    room.line("tick 1");
    assert_eq!(count(&room, 0), (false, 1));
    assert_eq!(count(&room, 1), (true, 1));
    assert_eq!(count(&room, 2), (true, 0));
}

/// R124 (order of events): events of one owner arrive in the order in which they were created.
#[test]
fn an_owner_hears_things_in_order() {
    let mut room = Scenario::new();
    room.lines(
        "acquire amy write t:/a -> granted
         acquire bob write t:/a -> queued
         acquire cid write t:/a ask -> queued, asks amy
         release amy write t:/a -> ok, grants bob, asks bob
         break bob write t:/a -> broken, kills bob, grants cid",
    );
    let EventsAfter::Complete(events) = room.pair.space.events_after(0) else {
        panic!("nothing was forgotten yet");
    };
    let bob: Vec<EventKind> = events
        .iter()
        .filter(|event| event.owner.as_str() == "bob")
        .map(|event| event.kind)
        .collect();
    assert!(
        matches!(
            bob[..],
            [
                EventKind::Grant { .. },
                EventKind::Revoke,
                EventKind::Killed
            ]
        ),
        "{bob:?}"
    );
}

/// R125 (polling instead of events): polling shows a grant among the locks, a kill as a dead owner,
/// a release request in the renewal.
#[test]
fn polling_shows_what_events_tell() {
    let mut room = Scenario::new();
    room.lines(
        "acquire amy write t:/a -> granted fence=1
         acquire bob write t:/a ask -> queued fence=2, asks amy
         renew amy t:/a -> renewed asked
         ? locks bob -> dead
         release amy write t:/a -> ok, grants bob
         ? locks bob -> alive write:t:/a
         policy t:/a point_rw -> done, kills bob
         ? alive bob -> no
         ? assert bob t:/a 2 -> stale_owner",
    );
}

fn walk(edges: &[(usize, usize)], start: usize, depth: u32) -> Detection {
    let name = |number: usize| owner_id(&format!("o{number}"));
    let mut walk = Walk::new(name(start), depth);
    loop {
        match walk.next() {
            WalkStep::Done(found) => return found,
            WalkStep::Ask(owner) => {
                let edge = edges.iter().find(|(from, _)| name(*from) == owner);
                walk.answer(edge.map(|(_, to)| (name(*to), None)));
            }
        }
    }
}

/// R111 (DetectCycle walks wait edges): the cycle starts with the start owner, in wait order. A
/// cycle that the start owner only leads to is reported without it.
#[test]
fn a_walk_finds_the_cycle_and_nothing_else() {
    let names = |numbers: &[usize]| -> Vec<OwnerId> {
        numbers
            .iter()
            .map(|number| owner_id(&format!("o{number}")))
            .collect()
    };
    assert_eq!(
        walk(&[(1, 2), (2, 3), (3, 1)], 1, 0),
        Detection::Found(names(&[1, 2, 3]))
    );
    assert_eq!(
        walk(&[(1, 2), (2, 3), (3, 2)], 1, 0),
        Detection::Found(names(&[2, 3]))
    );
    assert_eq!(walk(&[(1, 2), (2, 3)], 1, 0), Detection::None);
    assert_eq!(walk(&[], 1, 0), Detection::None);
    assert_eq!(
        walk(&[(1, 2), (2, 3), (3, 4)], 1, 1),
        Detection::Truncated(names(&[1, 2]))
    );
}

/// R112 (depth limit of DetectCycle): at most 64, and zero means 64.
#[test]
fn a_walk_has_a_depth() {
    let chain: Vec<(usize, usize)> = (0..200).map(|number| (number, number + 1)).collect();
    for depth in [0, 64, 65, u32::MAX] {
        let Detection::Truncated(owners) = walk(&chain, 0, depth) else {
            panic!("a long chain is cut off");
        };
        assert_eq!(owners.len(), MAX_DEPTH as usize + 1);
    }
    let ring: Vec<(usize, usize)> = (0..65).map(|number| (number, (number + 1) % 65)).collect();
    assert!(matches!(walk(&ring, 0, 0), Detection::Found(owners) if owners.len() == 65));
    let wider: Vec<(usize, usize)> = (0..66).map(|number| (number, (number + 1) % 66)).collect();
    assert!(matches!(walk(&wider, 0, 0), Detection::Truncated(_)));
}
