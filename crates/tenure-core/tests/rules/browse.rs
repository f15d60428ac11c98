//! Lists for people: E20 (list children), E21 (list waits), E22 (History).

use std::collections::BTreeMap;

use tenure_core::command::{
    Acquire, Command, Hold, Release, Request, RequestKind, Route, WaitMode,
};
use tenure_core::event::ChangeKind;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::query::ChildPage;
use tenure_core::space::{HashSeed, Space, SpaceLimits};
use tenure_core::value::{OwnerId, QueueTtl, Stamp, Ttl};

use crate::rng::Rng;

/// A handler whose paths are in one bare namespace, one with fallback namespaces, and an explicit
/// namespace inside of another one.
fn namespace(path: &Path) -> Namespace {
    let inner = Namespace::parse("n:/a/b").unwrap();
    match path.handler() {
        "m" => Namespace::parse("m").unwrap(),
        _ if inner.contains(path) => inner,
        _ => Namespace::fallback(path, 1),
    }
}

fn route(path: &Path) -> Route {
    Route {
        namespace: namespace(path),
        algorithm: Algorithm::PointRw,
        version: 0,
    }
}

fn acquire(owner: &OwnerId, path: &Path, mode: Mode) -> Command {
    Command::Acquire(Acquire {
        route: route(path),
        owner: owner.clone(),
        ttl: Ttl::from_millis(60_000).unwrap(),
        queue_ttl: QueueTtl::from_millis(60_000).unwrap(),
        requests: vec![Request {
            path: path.clone(),
            mode,
            state: RequestKind::New,
            permits: None,
        }],
        releases: Vec::new(),
        fence: None,
        key: None,
        wait: WaitMode::Queue,
        holder: None,
    })
}

fn release(owner: &OwnerId, path: &Path, mode: Mode) -> Command {
    Command::Release(Release {
        route: route(path),
        owner: owner.clone(),
        holds: vec![Hold {
            path: path.clone(),
            mode,
        }],
        key: None,
        whole: None,
    })
}

fn space() -> Space {
    Space::new(SpaceLimits::default(), HashSeed::default())
}

/// The child of a prefix that a path is at or below.
fn child_of(prefix: Option<&Namespace>, path: &Path) -> Option<String> {
    let Some(prefix) = prefix else {
        return Some(path.handler().to_owned());
    };
    if prefix.handler() != path.handler() {
        return None;
    }
    let above = Path::parse(prefix.as_str()).map_or(0, |path| path.depth());
    let is_below = prefix.is_bare() || prefix.contains(path);
    let child = path.segments().nth(above);
    child.filter(|_| is_below).map(str::to_owned)
}

fn all_pages(
    space: &mut Space,
    prefix: Option<&Namespace>,
    page: usize,
) -> Vec<(String, u64, u64)> {
    let mut found = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let now = space.time();
        let ChildPage { children, until } =
            space.children(prefix, after.as_deref(), None, page, now);
        assert!(children.len() <= page);
        found.extend(
            children
                .iter()
                .map(|child| (child.name.clone(), child.holds, child.waiters)),
        );
        match until {
            Some(until) => {
                assert!(after < Some(until.clone()), "a page goes on");
                after = Some(until);
            }
            None => return found,
        }
    }
}

/// E20: the pages contain what a listing of all holds and waiters contains, whatever the namespaces
/// and the size of a page.
#[test]
fn pages_of_children_equal_a_naive_listing() {
    let segments = ["a", "a-b", "a\u{1}", "ab", "b", "ä", "z"];
    for seed in 0..12 {
        let mut random = Rng::new(seed);
        let mut space = space();
        for (time, round) in (1..).zip(0..240) {
            let depth = 1 + random.below(4);
            let parts: Vec<&str> = (0..depth).map(|_| random.pick(&segments)).collect();
            let text = format!("{}:/{}", random.pick(&["m", "n", "o"]), parts.join("/"));
            let path = Path::parse(&text).unwrap();
            let owner = OwnerId::new(&format!("o{}", random.below(9))).unwrap();
            let mode = random.pick(&[Mode::Write, Mode::Read]);
            let stamp = Stamp { time, wall: time };
            if random.one_in(3) {
                space.apply(stamp, release(&owner, &path, mode));
            } else {
                space.apply(stamp, acquire(&owner, &path, mode));
            }
            if round % 40 != 39 {
                continue;
            }
            let mut paths: Vec<(Path, bool)> = Vec::new();
            let mut cursor = None;
            loop {
                let part = space.dump(cursor, 64);
                paths.extend(part.locks.into_iter().map(|lock| (lock.path, true)));
                cursor = part.next;
                if cursor.is_none() {
                    break;
                }
            }
            let waits = space.waits(usize::MAX, space.time());
            assert_eq!(waits.count, waits.waits.len() as u64);
            paths.extend(
                waits
                    .waits
                    .into_iter()
                    .map(|wait| (wait.waiter.path, false)),
            );
            for prefix in [
                "", "m", "n", "o:/", "n:/a", "n:/a/b", "m:/a", "m:/a/ab", "q",
            ] {
                let prefix = Namespace::parse(prefix).ok();
                let prefix = prefix.as_ref();
                let mut expected: BTreeMap<String, (u64, u64)> = BTreeMap::new();
                for (path, is_held) in &paths {
                    if let Some(child) = child_of(prefix, path) {
                        let counts = expected.entry(child).or_default();
                        counts.0 += u64::from(*is_held);
                        counts.1 += u64::from(!*is_held);
                    }
                }
                let expected: Vec<_> = expected
                    .into_iter()
                    .map(|(name, (holds, waiters))| (name, holds, waiters))
                    .collect();
                for page in [1, 3, 100] {
                    let found = all_pages(&mut space, prefix, page);
                    assert_eq!(found, expected, "seed {seed}, {prefix:?}, pages of {page}");
                }
            }
        }
    }
}

/// E20: a page of many namespaces is limited; it says that its counts are minimums, and the next
/// page goes on.
#[test]
fn counting_is_limited_and_says_so() {
    let mut space = space();
    let amy = OwnerId::new("amy").unwrap();
    for number in 0..3000u64 {
        let path = Path::parse(&format!("n:/x{number:04}/y")).unwrap();
        space.apply(
            Stamp {
                time: number,
                wall: number,
            },
            acquire(&amy, &path, Mode::Write),
        );
    }
    let root = space.children(None, None, None, 10, 0);
    assert!(root.children[0].is_minimum && root.children[0].holds >= 1000);
    let n = Namespace::parse("n").unwrap();
    let some = space.children(Some(&n), None, Some("x0003"), 10, 0);
    assert_eq!(
        (some.children.len(), some.until.as_deref()),
        (4, Some("x0003"))
    );
    assert_eq!(all_pages(&mut space, Some(&n), 500).len(), 3000);
}

/// E21: the longest wait comes first, with the owners that block it.
#[test]
fn waits_name_their_blockers() {
    let mut space = space();
    let path = Path::parse("n:/a").unwrap();
    let owners = ["amy", "bob", "cid"].map(|name| OwnerId::new(name).unwrap());
    for (time, owner) in (1..).zip(&owners) {
        let stamp = Stamp { time, wall: time };
        space.apply(stamp, acquire(owner, &path, Mode::Write));
    }
    let waits = space.waits(1, 10);
    assert_eq!((waits.count, waits.waits.len()), (2, 1));
    let first = &waits.waits[0];
    assert_eq!(
        (&first.waiter.owner, first.waiter.waited_ms),
        (&owners[1], 8)
    );
    assert_eq!(first.blockers, owners[..1]);
    assert_eq!(space.waits(9, 10).waits[1].blockers, owners[..2]);
}

/// E22: every replica has the same history of the same entries. One that starts from a snapshot says
/// that it is incomplete before.
#[test]
fn replicas_have_the_same_history() {
    let (mut one, mut two) = (space(), space());
    for replica in [&mut one, &mut two] {
        replica.keep_history(1 << 20, 77);
    }
    let path = Path::parse("n:/a").unwrap();
    let (amy, bob) = (OwnerId::new("amy").unwrap(), OwnerId::new("bob").unwrap());
    let commands = [
        acquire(&amy, &path, Mode::Write),
        acquire(&bob, &path, Mode::Write),
        release(&amy, &path, Mode::Write),
        release(&bob, &path, Mode::Write),
    ];
    for (time, command) in (100..).zip(commands) {
        let stamp = Stamp { time, wall: time };
        for replica in [&mut one, &mut two] {
            replica.apply(stamp, command.clone());
        }
    }
    let history = one.history(None, 0, 100);
    assert_eq!(history, two.history(None, 0, 100));
    let seen: Vec<_> = history
        .events
        .iter()
        .map(|event| {
            (
                event.wall,
                event.owner.as_ref().unwrap().as_str(),
                event.kind,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (100, "amy", ChangeKind::Granted),
            (101, "bob", ChangeKind::Queued),
            (102, "amy", ChangeKind::Released),
            (102, "bob", ChangeKind::Granted),
            (103, "bob", ChangeKind::Released),
        ]
    );
    assert_eq!(history.complete_since, 0, "nothing was ever missed");
    // The history is not part of the state.
    let snapshot = one.encode_snapshot(Vec::new());
    let mut plain = space();
    for (time, command) in (100..).zip([
        acquire(&amy, &path, Mode::Write),
        acquire(&bob, &path, Mode::Write),
        release(&amy, &path, Mode::Write),
        release(&bob, &path, Mode::Write),
    ]) {
        plain.apply(Stamp { time, wall: time }, command);
    }
    assert_eq!(plain.encode_snapshot(Vec::new()), snapshot);
    let mut restored = Space::decode_snapshot(&snapshot, HashSeed::default()).unwrap();
    restored.keep_history(1 << 20, 500);
    assert_eq!(restored.history(None, 0, 100).complete_since, 500);
    // An old entry that is applied again moves the beginning back.
    restored.apply(
        Stamp {
            time: 120,
            wall: 120,
        },
        acquire(&amy, &path, Mode::Write),
    );
    let history = restored.history(None, 0, 100);
    assert_eq!((history.events.len(), history.complete_since), (1, 120));
}
