//! Releases under a key, and changes of routes (R102–R104).

use std::collections::BTreeSet;

use tenure_core::command::{
    Acquire, ChangePolicy, ClearPolicy, Command, Freeze, Hold, Region, Release, Request,
    RequestKind, Route, Selection, WaitMode, Whole,
};
use tenure_core::outcome::{AcquireOutcome, Outcome, Refusal};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::space::{HashSeed, RULES, Space, SpaceLimits};
use tenure_core::value::{Key, QueueTtl, Stamp, Ttl};

use crate::cluster_state::owner_id;

const PRINT: u128 = 7;

fn apply(space: &mut Space, command: Command) -> Outcome {
    let stamp = Stamp {
        time: 1_000,
        wall: 0,
    };
    space.apply(stamp, command).outcome
}

fn region(root: &str) -> Region {
    Region {
        root: Namespace::parse(root).unwrap(),
        except: Vec::new(),
    }
}

fn freeze(root: &str, change: u64) -> Command {
    Command::Freeze(Freeze {
        change,
        settled: 0,
        region: region(root),
    })
}

/// A change that moves the paths below a name to another namespace.
fn moves(root: &str, change: u64, version: u64) -> Command {
    Command::Change(ChangePolicy {
        change,
        settled: 0,
        version,
        region: region(root),
        algorithm: Algorithm::RecursiveRw,
        clear: ClearPolicy::Waiters,
        floor: None,
    })
}

fn hold(path: &str) -> Hold {
    Hold {
        path: Path::parse(path).unwrap(),
        mode: Mode::Write,
    }
}

fn route(namespace: &str, version: u64) -> Route {
    Route {
        namespace: Namespace::parse(namespace).unwrap(),
        algorithm: Algorithm::RecursiveRw,
        version,
    }
}

/// A part of a release under one key.
fn release(namespace: &str, version: u64, paths: &[&str]) -> Command {
    asked_release(namespace, version, paths, None)
}

/// The same after all namespaces were asked for the key, because of the change of a version.
fn asked_release(namespace: &str, version: u64, paths: &[&str], asked: Option<u64>) -> Command {
    Command::Release(Release {
        route: route(namespace, version),
        owner: owner_id("amy"),
        holds: paths.iter().map(|path| hold(path)).collect(),
        key: Key::new("k1").unwrap(),
        whole: Some(Whole {
            fingerprint: PRINT,
            asked,
        }),
    })
}

fn acquire_command(namespace: &str, version: u64, path: &str) -> Command {
    Command::Acquire(Acquire {
        route: route(namespace, version),
        owner: owner_id("amy"),
        ttl: Ttl::from_millis(10_000).unwrap(),
        queue_ttl: QueueTtl::from_millis(10_000).unwrap(),
        requests: vec![Request {
            path: Path::parse(path).unwrap(),
            mode: Mode::Write,
            state: RequestKind::New,
            permits: None,
        }],
        releases: Vec::new(),
        fence: None,
        key: None,
        wait: WaitMode::No,
        holder: None,
    })
}

fn acquire(space: &mut Space, namespace: &str, version: u64, path: &str) {
    let outcome = apply(space, acquire_command(namespace, version, path));
    let granted = Outcome::Acquire(AcquireOutcome::Granted { fence: None });
    assert_eq!(
        std::mem::discriminant(&outcome),
        std::mem::discriminant(&granted),
        "{outcome:?}"
    );
}

fn held(space: &Space) -> Vec<String> {
    let locks = space.owner_locks(&owner_id("amy"), &Selection::All).locks;
    let paths: BTreeSet<String> = locks.iter().map(|lock| lock.path.to_string()).collect();
    paths.into_iter().collect()
}

fn was_released(space: &Space, path: &str) -> bool {
    let key = Key::new("k1").unwrap().unwrap();
    space.was_released(&key, PRINT, &hold(path), 1_000)
}

fn space() -> Space {
    let mut space = Space::new(SpaceLimits::default(), HashSeed(0));
    apply(&mut space, Command::Rules { number: RULES });
    space
}

/// A freeze and the change that follows it.
fn change(space: &mut Space, root: &str, change: u64, version: u64) {
    apply(space, freeze(root, change));
    apply(space, moves(root, change, version));
}

const DONE: Outcome = Outcome::Release(Ok(()));

fn refused_as_moved(version: u64) -> Outcome {
    Outcome::Release(Err(Refusal::Moved { version }))
}

/// R102, R104: a request that an older table split into two parts has both in one namespace by now. The second
/// one is not done because the first one is.
#[test]
fn two_parts_of_one_request_in_one_namespace_both_take_effect() {
    let mut space = space();
    for path in ["t:/a/x", "t:/a/y"] {
        acquire(&mut space, "t:/a", 1, path);
    }
    assert_eq!(apply(&mut space, release("t:/a", 1, &["t:/a/x"])), DONE);
    assert_eq!(held(&space), ["t:/a/y"]);
    assert!(was_released(&space, "t:/a/x"));
    assert!(!was_released(&space, "t:/a/y"));
    assert_eq!(apply(&mut space, release("t:/a", 1, &["t:/a/y"])), DONE);
    assert_eq!(held(&space), [""; 0]);
    // Each of them once, however a repeat is split, and after a restart.
    let bytes = space.encode_snapshot(Vec::new());
    let mut space = Space::decode_snapshot(&bytes, HashSeed(0)).unwrap();
    for path in ["t:/a/x", "t:/a/y"] {
        assert!(was_released(&space, path));
        acquire(&mut space, "t:/a", 1, path);
    }
    for paths in [&["t:/a/x", "t:/a/y"][..], &["t:/a/y"]] {
        assert_eq!(apply(&mut space, release("t:/a", 1, paths)), DONE);
    }
    assert_eq!(held(&space), ["t:/a/x", "t:/a/y"]);
}

/// R32 (re-resolution after policy change), R102: a repeat by an older table is not answered by the
/// part of it that was applied.
#[test]
fn a_repeat_by_an_older_table_is_refused_while_a_part_of_it_is_left() {
    let mut space = space();
    let outdated = Outcome::Release(Err(Refusal::Outdated { version: 2 }));
    change(&mut space, "t:/a/b", 1, 2);
    assert_eq!(apply(&mut space, release("t:/a", 2, &["t:/a/y"])), DONE);
    let both = release("t:/a", 1, &["t:/a/b/x", "t:/a/y"]);
    assert_eq!(apply(&mut space, both), outdated);
    assert_eq!(apply(&mut space, release("t:/a", 1, &["t:/a/y"])), DONE);
}

/// R102: what all namespaces were asked about a first move does not answer for a second one.
#[test]
fn a_question_about_one_move_does_not_cover_a_later_one() {
    let mut space = space();
    let path = "t:/a/b/x";
    change(&mut space, "t:/a/b", 1, 2);
    let plain = release("t:/a/b", 2, &[path]);
    assert_eq!(apply(&mut space, plain), refused_as_moved(2));
    change(&mut space, "t:/a/b", 2, 3);
    acquire(&mut space, "t:/a", 3, path);
    let earlier = asked_release("t:/a", 3, &[path], Some(2));
    assert_eq!(apply(&mut space, earlier), refused_as_moved(3));
    assert_eq!(held(&space), [path]);
    let later = asked_release("t:/a", 3, &[path], Some(3));
    assert_eq!(apply(&mut space, later), DONE);
    assert_eq!(held(&space), [""; 0]);
}

/// R102: a space that cannot tell all moved regions apart does not take a path for released because another
/// part of the request was.
#[test]
fn after_many_moves_a_path_counts_as_released_only_if_it_was() {
    let mut space = space();
    assert_eq!(apply(&mut space, release("t:/a", 1, &["t:/a/y"])), DONE);
    for number in 1..=70 {
        change(&mut space, &format!("t:/m{number}"), number, number + 1);
    }
    let other = release("t:/b", 71, &["t:/b/x"]);
    let Outcome::Release(Err(Refusal::Moved { .. })) = apply(&mut space, other) else {
        panic!("the regions are told apart");
    };
    assert!(was_released(&space, "t:/a/y"));
    assert!(!was_released(&space, "t:/b/x"));
}

/// R102 (keyed requests apply once): two changes of disjoint regions reach the groups concurrently.
/// The space still knows that a release was applied before its path moved, whatever the versions of
/// the changes are.
#[test]
fn a_release_before_a_change_is_known_though_a_later_version_came_first() {
    let mut space = space();
    acquire(&mut space, "t:/a", 1, "t:/a/b/x");
    apply(&mut space, freeze("t:/a/b", 1));
    apply(&mut space, freeze("t:/c/d", 2));
    apply(&mut space, moves("t:/c/d", 2, 3));
    let done = apply(&mut space, release("t:/a", 1, &["t:/a/b/x"]));
    assert_eq!(done, DONE);
    apply(&mut space, moves("t:/a/b", 1, 2));
    assert!(was_released(&space, "t:/a/b/x"));
    let bytes = space.encode_snapshot(Vec::new());
    let space = Space::decode_snapshot(&bytes, HashSeed(0)).unwrap();
    assert!(was_released(&space, "t:/a/b/x"));
}

/// The owner may hold the path in the new namespace, which has applied the change already. Only what
/// is held here is released while the region is frozen.
#[test]
fn a_frozen_region_releases_only_what_is_held_in_it() {
    let mut space = space();
    acquire(&mut space, "t:/a", 1, "t:/a/b/x");
    apply(&mut space, freeze("t:/a/b", 1));
    let frozen = Outcome::Release(Err(Refusal::Frozen { change: 1 }));
    let unknown = release("t:/a", 1, &["t:/a/b/y"]);
    assert_eq!(apply(&mut space, unknown.clone()), frozen);
    let Command::Release(mut unkeyed) = unknown else {
        panic!("a release");
    };
    unkeyed.key = None;
    unkeyed.whole = None;
    assert_eq!(apply(&mut space, Command::Release(unkeyed)), frozen);
    assert_eq!(apply(&mut space, release("t:/a", 1, &["t:/a/y"])), DONE);
    assert_eq!(held(&space), ["t:/a/b/x"]);
    assert_eq!(apply(&mut space, release("t:/a", 1, &["t:/a/b/x"])), DONE);
    assert_eq!(held(&space), [""; 0]);
}

/// R99 (Release cancels a pending entry), also while the path is frozen: the release is refused, and
/// the waiter is gone, so that no thaw grants what its owner has cancelled.
#[test]
fn a_release_cancels_a_waiter_in_a_frozen_region() {
    let mut space = space();
    acquire(&mut space, "t:/a", 1, "t:/a/b/x");
    let Command::Acquire(mut waits) = acquire_command("t:/a", 1, "t:/a/b/x") else {
        panic!("an acquire");
    };
    waits.owner = owner_id("bob");
    waits.wait = WaitMode::Queue;
    apply(&mut space, Command::Acquire(waits));
    apply(&mut space, freeze("t:/a/b", 1));
    let Command::Release(mut cancels) = release("t:/a", 1, &["t:/a/b/x"]) else {
        panic!("a release");
    };
    cancels.owner = owner_id("bob");
    let frozen = Outcome::Release(Err(Refusal::Frozen { change: 1 }));
    assert_eq!(apply(&mut space, Command::Release(cancels)), frozen);
    assert_eq!(space.counts().waiters, 0);
}
