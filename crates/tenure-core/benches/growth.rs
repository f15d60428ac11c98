//! How does the longest single operation grow with what others have? One curve per operation.
//!
//! `cargo bench -p tenure-core --bench growth` prints one JSON object a line: the operation, how many
//! others there are, and the longest single `Space::apply` or query in microseconds.
//! docs/reference/growth.md has the verdicts.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark measures time, prints, and knows its own inputs"
)]

use std::time::{Duration, Instant};

use tenure_core::command::{
    Acquire, Command, Expire, Hold, Release, ReleaseAll, ReleaseCause, Request, RequestKind, Route,
    Selection, WaitMode,
};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::query::EdgeDetail;
use tenure_core::space::{HashSeed, RULES, Space, SpaceLimits};
use tenure_core::value::{OwnerId, QueueTtl, Stamp, Ttl};

const SIZES: [u64; 3] = [1_000, 10_000, 100_000];

fn main() {
    let wanted = std::env::args()
        .nth(1)
        .filter(|word| !word.starts_with('-'));
    type Curve = fn(u64) -> Duration;
    let curves: [(&str, Curve); 12] = [
        ("grant_to_readers", grant_to_readers),
        ("queue_times_over", queue_times_over),
        ("cancel_newest_first", cancel_newest_first),
        ("tree_readers_who_hold_below", tree_readers_who_hold_below),
        ("wait_at_depth_250", wait_at_depth_250),
        ("deadlock_edges_of_a_line", deadlock_edges_of_a_line),
        ("ask_one_owner_below", ask_one_owner_below),
        ("explain_readers", explain_readers),
        ("own_upgrade", own_upgrade),
        ("image_of_locks", image_of_locks),
        ("release_all_of_one_owner", release_all_of_one_owner),
        ("expiry_of_one_owner", expiry_of_one_owner),
    ];
    for (name, curve) in curves {
        if wanted
            .as_ref()
            .is_some_and(|word| !name.contains(word.as_str()))
        {
            continue;
        }
        for size in SIZES {
            let longest = curve(size).as_secs_f64() * 1e6;
            println!(r#"{{"name":"{name}","others":{size},"longest_us":{longest:.1}}}"#);
        }
    }
}

fn space() -> Space {
    let mut space = Space::new(SpaceLimits::default(), HashSeed(7));
    space.apply(at(0), Command::Rules { number: RULES });
    space
}

fn at(time: u64) -> Stamp {
    Stamp { time, wall: 0 }
}

fn owner(number: u64) -> OwnerId {
    OwnerId::new(&format!("owner-{number:07}")).unwrap()
}

fn route(path: &Path) -> Route {
    Route {
        namespace: Namespace::fallback(path, 1),
        algorithm: Algorithm::RecursiveRw,
        version: 0,
    }
}

fn acquire(who: u64, what: &str, mode: Mode, wait: WaitMode) -> Command {
    let path = Path::parse(what).unwrap();
    Command::Acquire(Acquire {
        route: route(&path),
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
        wait,
        holder: None,
    })
}

fn write(who: u64, what: &str) -> Command {
    acquire(who, what, Mode::Write, WaitMode::Queue)
}

fn read(who: u64, what: &str) -> Command {
    acquire(who, what, Mode::Read, WaitMode::Queue)
}

fn release(who: u64, what: &str, mode: Mode) -> Command {
    let path = Path::parse(what).unwrap();
    Command::Release(Release {
        route: route(&path),
        owner: owner(who),
        holds: vec![Hold { path, mode }],
        key: None,
        whole: None,
    })
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    std::hint::black_box(work());
    start.elapsed()
}

/// The longest of these commands.
fn longest(space: &mut Space, time: u64, commands: impl Iterator<Item = Command>) -> Duration {
    let each = commands.map(|command| timed(|| space.apply(at(time), command)));
    each.max().unwrap_or_default()
}

fn ticks(space: &mut Space, time: u64) -> Duration {
    let mut most = Duration::ZERO;
    while space.has_pending() || space.next_waiter_end().is_some_and(|end| end <= time) {
        most = most.max(timed(|| space.apply(at(time), Command::Tick)));
    }
    most
}

fn grant_to_readers(readers: u64) -> Duration {
    let mut space = space();
    space.apply(at(1), write(0, "t:/a/b"));
    for number in 1..=readers {
        space.apply(at(1), read(number, "t:/a/b"));
    }
    let first = release(0, "t:/a/b", Mode::Write);
    let first = longest(&mut space, 2, std::iter::once(first));
    first.max(ticks(&mut space, 2))
}

fn queue_times_over(waiters: u64) -> Duration {
    let mut space = space();
    space.apply(at(1), write(0, "t:/a/b"));
    for number in 1..=waiters {
        space.apply(at(1), write(number, "t:/a/b"));
    }
    ticks(&mut space, 60_000)
}

fn cancel_newest_first(each: u64) -> Duration {
    let each = each / 2;
    let mut space = space();
    space.apply(at(1), write(0, "t:/a/b"));
    for number in 1..=each {
        space.apply(at(1), write(number, "t:/a/b"));
    }
    for number in 1..=each {
        space.apply(at(1), read(each + number, "t:/a/b"));
    }
    let newest = (1..=each).rev().take(1000);
    let cancels = newest.map(|number| release(number, "t:/a/b", Mode::Write));
    longest(&mut space, 2, cancels)
}

fn tree_readers_who_hold_below(owners: u64) -> Duration {
    let mut space = space();
    for number in 1..=owners {
        space.apply(at(1), write(number, &format!("t:/a/x/{number}")));
    }
    for number in 1..=owners {
        let tree = acquire(number, "t:/a/x", Mode::ReadTree, WaitMode::Queue);
        space.apply(at(1), tree);
    }
    let some = (1..=owners).take(500);
    let releases = some.map(|number| release(number, &format!("t:/a/x/{number}"), Mode::Write));
    longest(&mut space, 2, releases)
}

fn wait_at_depth_250(waiters: u64) -> Duration {
    let mut space = space();
    space.apply(at(1), write(0, "t:/a"));
    let below: String = (0..248).map(|level| format!("/{}", level % 10)).collect();
    let joins = (1..=waiters).map(|number| write(number, &format!("t:/a/{number}{below}")));
    longest(&mut space, 1, joins)
}

fn deadlock_edges_of_a_line(waiters: u64) -> Duration {
    let mut space = space();
    space.apply(at(1), write(0, "t:/a/b"));
    for number in 1..=waiters {
        space.apply(at(1), write(number, "t:/a/b"));
    }
    let owners: Vec<OwnerId> = (1..=256).map(|at| owner(waiters - 256 + at)).collect();
    timed(|| space.waits_of(&owners, 1, EdgeDetail::Reachable, 8192))
}

fn ask_one_owner_below(locks: u64) -> Duration {
    let mut space = space();
    for number in 0..locks {
        space.apply(at(1), write(0, &format!("t:/a/x/{number}")));
    }
    // The first refusal sorts the directory; later ones find it sorted.
    space.apply(at(1), acquire(1, "t:/a/x", Mode::Write, WaitMode::No));
    let ask = acquire(2, "t:/a/x", Mode::Write, WaitMode::QueueAndAsk);
    longest(&mut space, 1, std::iter::once(ask))
}

fn explain_readers(readers: u64) -> Duration {
    let mut space = space();
    for number in 1..=readers {
        space.apply(at(1), read(number, "t:/a/b"));
    }
    let path = Path::parse("t:/a/b").unwrap();
    timed(|| space.explain(&route(&path), &owner(0), &path, Mode::Write, 1))
}

fn own_upgrade(locks: u64) -> Duration {
    let mut space = space();
    for number in 0..locks {
        space.apply(at(1), write(0, &format!("t:/a/x/{number:07}")));
    }
    space.apply(at(1), write(1, "t:/a/x/z"));
    space.apply(at(1), acquire(0, "t:/a/x", Mode::Write, WaitMode::No));
    let upgrade = acquire(0, "t:/a/x", Mode::Write, WaitMode::No);
    longest(&mut space, 1, std::iter::once(upgrade))
}

fn image_of_locks(locks: u64) -> Duration {
    let locks = 10 * locks;
    let mut space = space();
    for number in 0..locks {
        let path = format!("t:/a/{}/{number}", number % 1000);
        space.apply(at(1), write(number, &path));
    }
    let start = Instant::now();
    let image = space.image();
    let first = start.elapsed();
    // The first change of a shared chunk copies it.
    let changes = (0..1000).map(|number| {
        let number = number * (locks / 1000);
        release(
            number,
            &format!("t:/a/{}/{number}", number % 1000),
            Mode::Write,
        )
    });
    let most = longest(&mut space, 2, changes);
    drop(image);
    first.max(most)
}

fn one_owner(locks: u64) -> Space {
    let mut space = space();
    for number in 0..locks {
        space.apply(at(1), write(0, &format!("t:/a/{}/{number}", number % 100)));
    }
    space
}

fn release_all_of_one_owner(locks: u64) -> Duration {
    let mut space = one_owner(locks);
    let all = Command::ReleaseAll(ReleaseAll {
        owner: owner(0),
        selection: Selection::All,
        cause: ReleaseCause::Owner,
        until: None,
    });
    longest(&mut space, 2, std::iter::once(all))
}

fn expiry_of_one_owner(locks: u64) -> Duration {
    let mut space = one_owner(locks);
    let namespace = Namespace::parse("t:/a").unwrap();
    let epoch = space.lease(&namespace, &owner(0)).unwrap().epoch;
    let expire = Command::Expire(Expire {
        namespace,
        owner: owner(0),
        epoch,
    });
    longest(&mut space, 2, std::iter::once(expire))
}
