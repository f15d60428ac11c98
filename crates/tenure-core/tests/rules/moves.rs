//! Keyed releases combined with route changes that a space applies in another order than that of
//! their versions.

use tenure_core::command::{
    ChangePolicy, ClearPolicy, Command, Freeze, Hold, Region, Release, Route, Whole,
};
use tenure_core::outcome::Outcome;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::space::{HashSeed, RULES, Space, SpaceLimits};
use tenure_core::value::{Key, Stamp};

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

fn release(namespace: &str, version: u64, path: &str) -> Command {
    Command::Release(Release {
        route: Route {
            namespace: Namespace::parse(namespace).unwrap(),
            algorithm: Algorithm::RecursiveRw,
            version,
        },
        owner: owner_id("amy"),
        holds: vec![Hold {
            path: Path::parse(path).unwrap(),
            mode: Mode::Write,
        }],
        key: Key::new("k1").unwrap(),
        whole: Some(Whole {
            fingerprint: PRINT,
            asked: false,
        }),
    })
}

fn was_released(space: &Space, path: &str) -> bool {
    let key = Key::new("k1").unwrap().unwrap();
    let path = Path::parse(path).unwrap();
    space.was_released(&key, PRINT, &path, 1_000)
}

/// R102 (keyed requests apply once): two changes of disjoint regions reach the groups concurrently.
/// The space still knows that a release was applied before its path moved, whatever the versions of
/// the changes are.
#[test]
fn a_release_before_a_change_is_known_though_a_later_version_came_first() {
    let mut space = Space::new(SpaceLimits::default(), HashSeed(0));
    apply(&mut space, Command::Rules { number: RULES });
    apply(&mut space, freeze("t:/a/b", 1));
    apply(&mut space, freeze("t:/c/d", 2));
    apply(&mut space, moves("t:/c/d", 2, 3));
    let done = apply(&mut space, release("t:/a", 1, "t:/a/b/x"));
    assert_eq!(done, Outcome::Release(Ok(())));
    apply(&mut space, moves("t:/a/b", 1, 2));
    assert!(was_released(&space, "t:/a/b/x"));
    let bytes = space.encode_snapshot(Vec::new());
    let space = Space::decode_snapshot(&bytes, HashSeed(0)).unwrap();
    assert!(was_released(&space, "t:/a/b/x"));
}
