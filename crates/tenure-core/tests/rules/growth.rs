//! Growth: what one command, one query and one waiter cost when there are very many others. Counts
//! only; `cargo bench -p tenure-core --bench growth` measures time.

use tenure_core::command::*;
use tenure_core::event::EventKind;
use tenure_core::outcome::{AcquireOutcome, Applied, Outcome, Refusal};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::query::EdgeDetail;
use tenure_core::space::{HashSeed, RULES, Space, SpaceLimits};
use tenure_core::value::{Key, OwnerId, QueueTtl, Stamp, Ttl};

use crate::codec::most_memory;

fn owner(text: &str) -> OwnerId {
    OwnerId::new(text).unwrap()
}

fn acquire(who: &str, what: &str, mode: Mode) -> Acquire {
    let path = Path::parse(what).unwrap();
    Acquire {
        route: Route {
            namespace: Namespace::fallback(&path, 1),
            algorithm: Algorithm::RecursiveRw,
            version: 0,
        },
        owner: owner(who),
        ttl: Ttl::from_millis(600_000).unwrap(),
        queue_ttl: QueueTtl::from_millis(10_000).unwrap(),
        requests: vec![Request {
            path,
            mode,
            state: RequestKind::New,
            permits: None,
        }],
        releases: Vec::new(),
        fence: None,
        key: None,
        wait: WaitMode::Queue,
        holder: None,
    }
}

fn release(who: &str, what: &str, mode: Mode) -> Command {
    let path = Path::parse(what).unwrap();
    Command::Release(Release {
        route: Route {
            namespace: Namespace::fallback(&path, 1),
            algorithm: Algorithm::RecursiveRw,
            version: 0,
        },
        owner: owner(who),
        holds: vec![Hold { path, mode }],
        key: None,
        whole: None,
    })
}

fn at(time: u64) -> Stamp {
    Stamp { time, wall: 0 }
}

fn space(limits: SpaceLimits, rules: u32) -> Space {
    let mut space = Space::new(limits, HashSeed(3));
    space.apply(at(0), Command::Rules { number: rules });
    space
}

fn apply(space: &mut Space, acquire: Acquire) -> AcquireOutcome {
    match space.apply(at(1), Command::Acquire(acquire)).outcome {
        Outcome::Acquire(outcome) => outcome,
        other => panic!("an acquire was answered {other:?}"),
    }
}

fn grants(applied: &Applied) -> usize {
    let kinds = applied.events.iter().map(|event| &event.kind);
    kinds
        .filter(|kind| matches!(kind, EventKind::Grant { .. }))
        .count()
}

/// A space in which `readers` wait for one writer.
fn readers_wait(readers: usize, rules: u32) -> Space {
    let mut space = space(SpaceLimits::default(), rules);
    apply(&mut space, acquire("amy", "t:/a/b", Mode::Write));
    for number in 0..readers {
        let reader = format!("reader-{number:05}");
        let outcome = apply(&mut space, acquire(&reader, "t:/a/b", Mode::Read));
        assert!(matches!(outcome, AcquireOutcome::Queued(_)));
    }
    space
}

/// R87: a release that frees very many waiters grants a batch; the following commands do the rest,
/// also on a replica that was restored in between, and no later request overtakes.
#[test]
fn a_burst_of_grants_is_spread_over_commands() {
    let batch = SpaceLimits::default().batch as usize;
    let mut space = readers_wait(2 * batch + 10, RULES);
    let freed = space.apply(at(2), release("amy", "t:/a/b", Mode::Write));
    assert_eq!(grants(&freed), batch);
    assert!(space.has_pending());
    let outcome = apply(&mut space, acquire("zoe", "t:/a/b", Mode::Write));
    assert!(matches!(outcome, AcquireOutcome::Queued(_)), "{outcome:?}");
    let bytes = space.encode_snapshot(Vec::new());
    let mut restored = Space::decode_snapshot(&bytes, HashSeed(4)).unwrap();
    assert!(restored.has_pending());
    for space in [&mut space, &mut restored] {
        let applied = space.apply(at(3), Command::Tick);
        assert_eq!(grants(&applied), 10);
        assert!(!space.has_pending());
        space.check();
    }
    assert_eq!(
        space.encode_snapshot(Vec::new()),
        restored.encode_snapshot(Vec::new())
    );
}

/// Release 0.1.0 grants all of them at once, and its replicas must agree with ours.
#[test]
fn rules_1_grant_all_at_once() {
    let readers = SpaceLimits::default().batch as usize + 10;
    let mut space = readers_wait(readers, 1);
    let freed = space.apply(at(2), release("amy", "t:/a/b", Mode::Write));
    assert_eq!(grants(&freed), readers);
    assert!(!space.has_pending());
}

/// R84 (pending entry lifetime): waiters whose time is over leave in batches, and none of them is
/// granted.
#[test]
fn waiters_leave_in_batches_and_are_not_granted_late() {
    let batch = SpaceLimits::default().batch as usize;
    let mut space = readers_wait(batch + 10, RULES);
    let freed = space.apply(at(20_000), release("amy", "t:/a/b", Mode::Write));
    assert_eq!(grants(&freed), 0, "their time is over");
    assert_eq!(space.counts().waiters, 0);
    let mut space = readers_wait(2 * batch, RULES);
    space.apply(at(20_000), Command::Tick);
    assert_eq!(space.counts().waiters, batch as u64);
    space.check();
    space.apply(at(20_000), Command::Tick);
    assert_eq!(space.counts().waiters, 0);
}

/// R102 (keyed requests apply once): the keys of one namespace leave room for those of others, and
/// no answer is forgotten for that.
#[test]
fn a_namespace_leaves_room_for_the_keys_of_others() {
    let limits = SpaceLimits {
        answers: 4,
        ..SpaceLimits::default()
    };
    let mut space = space(limits, RULES);
    let mut keyed = |namespace: &str, number: usize| {
        let mut acquire = acquire("amy", &format!("{namespace}/{number}"), Mode::Write);
        acquire.key = Key::new(&format!("{namespace}{number}")).unwrap();
        apply(&mut space, acquire)
    };
    let granted = |outcome: &AcquireOutcome| matches!(outcome, AcquireOutcome::Granted { .. });
    let full = AcquireOutcome::Refused(Refusal::AnswersFull);
    // Four times four since rules 2, and half of it for the first.
    assert!((0..8).all(|number| granted(&keyed("t:/a", number))));
    assert_eq!(keyed("t:/a", 8), full);
    assert!((0..4).all(|number| granted(&keyed("t:/b", number))));
    assert_eq!(keyed("t:/b", 4), full);
    assert!((0..2).all(|number| granted(&keyed("t:/c", number))));
    // Repeats are answered, whatever the room.
    assert!((0..8).all(|number| granted(&keyed("t:/a", number))));
}

fn deep(depth: usize, number: usize) -> String {
    let mut path = format!("t:/a/{number}");
    for level in 0..depth {
        path.push_str(&format!("/{}", level % 10));
    }
    path
}

/// R85 (queue size limit): the levels of waiting paths are limited, because a waiter is counted at
/// each of them.
#[test]
fn deep_waiting_paths_are_limited_by_their_levels() {
    let limits = SpaceLimits {
        waiting_paths: 100,
        ..SpaceLimits::default()
    };
    let mut space = space(limits, RULES);
    apply(&mut space, acquire("amy", "t:/a", Mode::Write));
    let mut queued = 0;
    for number in 0..100 {
        let who = format!("waiter-{number}");
        match apply(&mut space, acquire(&who, &deep(98, number), Mode::Write)) {
            AcquireOutcome::Queued(_) => queued += 1,
            outcome => assert_eq!(outcome, AcquireOutcome::Refused(Refusal::QueueFull)),
        }
    }
    // 400 levels, a hundred for each path: `t:/a` itself, the number, and 98 more.
    assert_eq!(queued, 4);
    space.apply(at(2), release("waiter-0", &deep(98, 0), Mode::Write));
    let outcome = apply(&mut space, acquire("zoe", &deep(98, 0), Mode::Write));
    assert!(matches!(outcome, AcquireOutcome::Queued(_)));
    space.check();
}

/// A level of a waiting path costs less than 200 bytes.
#[test]
fn a_level_of_a_waiting_path_is_small() {
    let mut space = space(SpaceLimits::default(), RULES);
    apply(&mut space, acquire("amy", "t:/a", Mode::Write));
    const PATHS: usize = 64;
    const DEPTH: usize = 240;
    let most = most_memory(|| {
        for number in 0..PATHS {
            let who = format!("waiter-{number}");
            apply(&mut space, acquire(&who, &deep(DEPTH, number), Mode::Write));
        }
    });
    assert!(most / (PATHS * DEPTH) < 200, "{most} bytes");
}

/// E5 (refuse on deadlock): a search needs as many edges of a line as it has waiters, not their
/// square, and reaches the same owners.
#[test]
fn the_edges_of_a_line_grow_with_its_length() {
    let mut space = space(SpaceLimits::default(), RULES);
    apply(&mut space, acquire("amy", "t:/a/b", Mode::Write));
    let owners: Vec<OwnerId> = (0..200)
        .map(|number| owner(&format!("waiter-{number:03}")))
        .collect();
    for one in &owners {
        apply(&mut space, acquire(one.as_str(), "t:/a/b", Mode::Write));
    }
    let edges = |detail| space.waits_of(&owners, 1, detail, usize::MAX);
    let count = |detail| {
        let edges = edges(detail);
        edges
            .iter()
            .map(|(_, waits)| waits.owners.len())
            .sum::<usize>()
    };
    let reached = |detail| {
        let edges = edges(detail).into_iter();
        let owners = edges.flat_map(|(_, waits)| waits.owners);
        owners.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(count(EdgeDetail::All), 200 + 199 * 200 / 2);
    assert!(count(EdgeDetail::Reachable) < 800);
    assert_eq!(reached(EdgeDetail::All), reached(EdgeDetail::Reachable));
    let some = space.waits_of(&owners, 1, EdgeDetail::All, 1000);
    let some: usize = some.iter().map(|(_, waits)| waits.owners.len()).sum();
    assert!(some < 1300, "{some}");
}

/// R46 (smallest owner or path reported): the waiters behind one that leaves wait for the one before
/// it, in whatever order waiters leave.
#[test]
fn waiters_that_leave_newest_first_hand_over_those_behind_them() {
    let mut space = space(SpaceLimits::default(), RULES);
    apply(&mut space, acquire("amy", "t:/a/b", Mode::Write));
    for number in 0..50 {
        apply(
            &mut space,
            acquire(&format!("writer-{number:02}"), "t:/a/b", Mode::Write),
        );
    }
    for number in 0..50 {
        apply(
            &mut space,
            acquire(&format!("reader-{number:02}"), "t:/a/b", Mode::Read),
        );
    }
    for number in (0..50).rev() {
        let who = format!("writer-{number:02}");
        let applied = space.apply(at(2), release(&who, "t:/a/b", Mode::Write));
        assert_eq!(grants(&applied), 0);
        space.check();
    }
    let freed = space.apply(at(3), release("amy", "t:/a/b", Mode::Write));
    assert_eq!(grants(&freed), 50);
}

/// E6 (shared lock on a subtree): owners who hold below a tree and wait for reading it get it when
/// no other writer is left there.
#[test]
fn readers_of_a_tree_who_hold_below_are_granted_in_the_end() {
    let mut space = space(SpaceLimits::default(), RULES);
    for number in 0..40 {
        let who = format!("owner-{number:02}");
        apply(
            &mut space,
            acquire(&who, &format!("t:/a/x/{number}"), Mode::Write),
        );
    }
    for number in 0..40 {
        let who = format!("owner-{number:02}");
        let outcome = apply(&mut space, acquire(&who, "t:/a/x", Mode::ReadTree));
        assert!(matches!(outcome, AcquireOutcome::Queued(_)));
    }
    let mut granted = 0;
    for number in 0..40 {
        let who = format!("owner-{number:02}");
        let leaf = format!("t:/a/x/{number}");
        granted += grants(&space.apply(at(2), release(&who, &leaf, Mode::Write)));
        space.check();
        // The last owner waits for no other owner once the others have released.
        assert_eq!(granted > 0, number >= 38, "{granted} after {number}");
    }
    assert_eq!(granted, 40);
}
