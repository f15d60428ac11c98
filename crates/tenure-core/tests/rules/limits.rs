//! Limits: what a space keeps is bounded, and no bound stops it or loses a lock (R52 when capacity
//! is forgotten, R72 token retention and floors, R85 queue size limit, R102 (keyed requests apply
//! once), R150 (enumeration limits)).

use tenure_core::command::*;
use tenure_core::outcome::{AcquireOutcome, Applied, Outcome};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::query::EventsAfter;
use tenure_core::space::{HashSeed, RULES, Space, SpaceLimits};
use tenure_core::value::{OwnerId, QueueTtl, Stamp, Ttl};

use crate::codec::most_memory;
use crate::scenario::Scenario;

/// R72 (token retention and floors): beyond the limit the longest idle fence becomes the floor of
/// its namespace, and no fence goes back.
#[test]
fn the_longest_idle_fences_become_a_floor() {
    let mut room = Scenario::with(SpaceLimits {
        marks: 2,
        ..SpaceLimits::default()
    });
    room.lines(
        "acquire amy write t:/a/b fence=10     -> granted
         acquire amy write t:/a/c fence=20     -> granted
         acquire amy write t:/a/d fence=30     -> granted
         acquire amy write t:/ab fence=5       -> granted
         release amy write t:/a/b              -> ok
         release amy write t:/a/c              -> ok
         ? holders t:/a/b                      -> fence=10
         release amy write t:/a/d              -> ok
         ? holders t:/a/b                      -> nofence
         ? holders t:/a/c                      -> fence=20
         ? holders t:/ab                       -> writer=amy fence=5
         acquire bob write t:/a/b fence=10     -> conflict why=stale_fence current=10
         acquire bob write t:/a/z fence=9      -> conflict why=stale_fence current=10
         acquire bob write t:/a/b fence=11     -> granted
         acquire cid write t:/a/e              -> granted fence=31
         acquire cid write t:/abc fence=1      -> granted
         snapshot
         acquire dan write t:/a/z fence=10     -> conflict why=stale_fence current=10",
    );
}

/// R72: namespaces with nothing but a floor are folded into the floor of the space, where new ones
/// start.
#[test]
fn idle_namespaces_become_the_floor_of_the_space() {
    let limits = SpaceLimits {
        marks: 0,
        idle_namespaces: 1,
        ..SpaceLimits::default()
    };
    let mut room = Scenario::with(limits);
    room.lines(
        "acquire amy write t:/a fence=10       -> granted
         acquire amy write t:/b fence=20       -> granted
         acquire amy write t:/c                -> granted
         release amy write t:/a                -> ok
         release amy write t:/b                -> ok
         acquire bob write t:/a fence=10       -> conflict why=stale_fence current=10
         acquire bob write t:/z fence=10       -> conflict why=stale_fence current=10
         acquire bob write t:/z                -> granted fence=11
         acquire bob write t:/b                -> granted fence=21",
    );
}

/// R72: a namespace whose fences a client drove far up is not folded, so it does not use up the
/// numbers of other namespaces.
#[test]
fn a_driven_namespace_is_not_folded_into_the_space() {
    let limits = SpaceLimits {
        marks: 0,
        idle_namespaces: 1,
        ..SpaceLimits::default()
    };
    let mut room = Scenario::with(limits);
    room.lines(
        "acquire amy write t:/a fence=2251799813685249 -> granted
         release amy write t:/a                -> ok
         acquire amy write t:/b                -> granted
         release amy write t:/b                -> ok
         acquire amy write t:/c                -> granted
         release amy write t:/c                -> ok
         acquire bob write t:/z                -> granted
         acquire bob write t:/z fence=100      -> granted
         acquire bob write t:/a fence=7        -> conflict why=stale_fence current=2251799813685249",
    );
}

/// R85 (queue size limit): beyond the limit nothing is queued. A repeat of a waiting request needs
/// no room.
#[test]
fn the_line_has_an_end() {
    let limits = SpaceLimits {
        waiting_paths: 3,
        ..SpaceLimits::default()
    };
    let mut room = Scenario::with(limits);
    room.lines(
        "acquire amy write t:/a                -> granted
         acquire bob write t:/a/b write t:/a/c -> queued
         acquire cid write t:/a/d write t:/a/e -> refused why=queue_full
         acquire cid write t:/a/d              -> queued
         acquire dan write t:/a/e              -> refused why=queue_full
         acquire bob write t:/a/b write t:/a/c -> queued place=1
         acquire amy write t:/ab               -> granted
         acquire dan write t:/ab               -> queued
         ? alive eve                           -> no
         leave cid                             -> ok
         acquire dan write t:/a/e              -> queued
         leave amy                             -> ok, grants bob, grants dan, grants dan",
    );
}

/// R102 (keyed requests apply once): a full idempotency table refuses new keys. It never drops an
/// answer early.
#[test]
fn a_full_memory_refuses_new_keys() {
    let limits = SpaceLimits {
        answers: 2,
        ..SpaceLimits::default()
    };
    let mut room = Scenario::with(limits);
    room.lines(
        "acquire amy write t:/a key=a          -> granted fence=1
         acquire bob write t:/ab key=b         -> granted fence=1
         acquire cid write t:/abc key=c        -> refused why=answers_full
         acquire cid write t:/abc              -> granted
         acquire amy write t:/a key=a          -> granted fence=1
         release cid write t:/abc key=d        -> refused why=answers_full
         ? holders t:/abc                      -> writer=cid
         later 300000
         release cid write t:/abc key=d        -> ok",
    );
}

/// R102: an answer ends on time, also if more end at once than one entry removes.
#[test]
fn many_answers_end_at_once() {
    let mut room = Scenario::new();
    for number in 0..40 {
        room.line(&format!(
            "acquire amy write t:/a/{number} key=k{number} -> granted"
        ));
    }
    room.line("later 300000");
    room.line("retry -> granted fence=41");
}

/// R52 (when capacity is forgotten): the longest idle capacities are dropped first; those in use
/// stay.
#[test]
fn idle_capacities_are_bounded() {
    let limits = SpaceLimits {
        capacities: 1,
        ..SpaceLimits::default()
    };
    let mut room = Scenario::with(limits);
    room.lines(
        "policy t:/a semaphore                 -> done
         acquire amy write t:/a/r*2 write t:/a/s*2 write t:/a/t*2 -> granted
         release amy write t:/a/r              -> ok
         release amy write t:/a/s              -> ok
         acquire bob write t:/a/s*3            -> conflict why=invalid_permits capacity=2
         acquire bob write t:/a/t*3            -> conflict why=invalid_permits capacity=2
         acquire bob write t:/a/r*3            -> granted",
    );
}

fn route(path: &Path) -> Route {
    Route {
        namespace: Namespace::fallback(path, 1),
        algorithm: Algorithm::RecursiveRw,
        version: 0,
    }
}

fn acquire(owner: &OwnerId, path: &Path) -> Command {
    Command::Acquire(Acquire {
        route: route(path),
        owner: owner.clone(),
        ttl: Ttl::from_millis(10_000).unwrap(),
        queue_ttl: QueueTtl::from_millis(0).unwrap(),
        requests: vec![Request {
            path: path.clone(),
            mode: Mode::Write,
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

fn stamp(time: u64) -> Stamp {
    Stamp { time, wall: 0 }
}

fn crowded(owner: &OwnerId) -> Space {
    let mut space = Space::new(SpaceLimits::default(), HashSeed(3));
    for number in 0..70_000 {
        let path = Path::parse(&format!("t:/a/{}/{number}", number % 50)).unwrap();
        let applied = space.apply(stamp(1), acquire(owner, &path));
        assert!(
            matches!(
                applied.outcome,
                Outcome::Acquire(AcquireOutcome::Granted { .. })
            ),
            "{applied:?}"
        );
    }
    space
}

/// R150 (enumeration limits): ReleaseAll, expiry and policy changes work for any number of holds.
#[test]
fn any_number_of_holds_can_end_at_once() {
    let amy = OwnerId::new("amy").unwrap();
    let namespace = Namespace::parse("t:/a").unwrap();
    let ends: [&dyn Fn(&Space) -> Command; 3] = [
        &|_| {
            Command::ReleaseAll(ReleaseAll {
                owner: amy.clone(),
                selection: Selection::All,
                cause: ReleaseCause::Killed,
                until: None,
            })
        },
        &|space| {
            Command::Expire(Expire {
                namespace: namespace.clone(),
                owner: amy.clone(),
                epoch: space.lease(&namespace, &amy).unwrap().epoch,
            })
        },
        &|_| {
            Command::Change(ChangePolicy {
                change: 1,
                settled: 0,
                version: 1,
                region: Region {
                    root: namespace.clone(),
                    except: Vec::new(),
                },
                algorithm: Algorithm::PointRw,
                clear: ClearPolicy::All,
                floor: None,
            })
        },
    ];
    let bob = OwnerId::new("bob").unwrap();
    for end in ends {
        let mut space = crowded(&amy);
        let top = Path::parse("t:/a").unwrap();
        let queued = space.apply(stamp(2), acquire(&bob, &top));
        assert!(matches!(
            queued.outcome,
            Outcome::Acquire(AcquireOutcome::Queued(_))
        ));
        let Applied { leases, .. } = space.apply(stamp(2), end(&space));
        assert!(!leases.is_empty());
        assert_eq!(
            space.counts().claims,
            u64::from(space.lease(&namespace, &bob).is_some())
        );
        assert!(space.lease(&namespace, &amy).is_none());
        space.check();
    }
}

fn release(owner: &OwnerId, path: &Path) -> Command {
    Command::Release(Release {
        route: route(path),
        owner: owner.clone(),
        holds: vec![Hold {
            path: path.clone(),
            mode: Mode::Write,
        }],
        key: None,
        whole: None,
    })
}

/// R122 (events are always delivered), R150: the events of 30 s in which one lock changed its owner
/// 60,000 times fit into 1.5 MB.
#[test]
fn many_events_take_little_memory() {
    let path = Path::parse("bench:/1-0/hot").unwrap();
    let mut space = Space::new(SpaceLimits::default(), HashSeed(3));
    let most = most_memory(|| {
        for turn in 0..70_000u64 {
            let stamp = Stamp {
                time: turn / 2,
                wall: 1_790_000_000_000 + turn / 2,
            };
            let owner = |number| OwnerId::new(&format!("bench-1-{}", number % 4)).unwrap();
            space.apply(stamp, acquire(&owner(turn + 3), &path));
            let events = space.apply(stamp, release(&owner(turn), &path)).events;
            assert_eq!(events.len(), usize::from(turn > 2), "turn {turn}");
        }
    });
    let EventsAfter::Hole(events) = space.events_after(0) else {
        panic!("too many are kept");
    };
    assert_eq!(events.len(), 60_000);
    assert!(events.is_sorted_by(|a, b| a.sequence + 1 == b.sequence && a.id < b.id));
    assert!(most < 1_500_000, "{most} bytes");
}

/// R72, R150: the memory for idle fences is bounded by their number.
#[test]
fn the_room_for_idle_fences_ends_with_their_number() {
    let amy = OwnerId::new("amy").unwrap();
    let mut space = Space::new(SpaceLimits::default(), HashSeed(3));
    let most = most_memory(|| {
        for number in 0..5_000 {
            let path = Path::parse(&format!("t:/a/{number}")).unwrap();
            space.apply(stamp(1), acquire(&amy, &path));
            space.apply(stamp(1), release(&amy, &path));
        }
    });
    assert!(most < 90_000, "{most} bytes");
}

/// No input causes a panic: commands that do not fit together, with extreme numbers.
#[test]
fn nonsense_does_no_harm() {
    let mut rng = crate::rng::Rng::new(5);
    for _ in 0..60 {
        let mut space = Space::new(
            SpaceLimits {
                marks: 3,
                answers: 3,
                ..SpaceLimits::default()
            },
            HashSeed(5),
        );
        let mut time = 0u64;
        for _ in 0..400 {
            time = time.saturating_add(rng.number() >> rng.pick(&[40, 55, 63]));
            let stamp = Stamp {
                time,
                wall: rng.number(),
            };
            let mut command = crate::codec::command(&mut rng);
            if let Command::Rules { number } = &mut command {
                // A node stops at a rules number that it does not know, so no snapshot of such a
                // state exists.
                *number = (*number).min(RULES);
            }
            space.apply(stamp, command);
            space.check();
        }
        let bytes = space.encode_snapshot(Vec::new());
        let read = Space::decode_snapshot(&bytes, HashSeed(6)).unwrap();
        read.check();
        assert_eq!(read.encode_snapshot(Vec::new()), bytes);
    }
}
