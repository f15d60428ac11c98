//! The model check: the shipped machines ([`tenure_store::steps`]) driven through every order in
//! which their requests can reach the store, with pauses, crashes, lost answers and originals.
//!
//! What is explored
//!
//! - A process is an [`Acquire`](tenure_store::steps::Acquire) and then a
//!   [`Hold`](tenure_store::steps::Hold), bit for bit what a program runs. An original is the
//!   stand-in of [`original`](crate::support::original).
//! - One step is one request applied to the store at once. Between any two steps of one process any
//!   others may come; a holder may be told to release whenever it rests, and to revive when lapsed.
//! - A process may stand still before a request is applied (at any time), before it reads an answer,
//!   and between an answer and its next request; each only where it makes a difference, which is
//!   tried with the machine itself.
//! - A crash is a process that never goes on: every prefix of a run is explored, and it counts as
//!   holding until its lease ends. `deaths` adds the crash that others can see (P22 c).
//! - An answer may be lost, the request with it or not (`losses`).
//!
//! Why abstract time is enough
//!
//! All clocks of the model are one clock, and it jumps. Machines compare times only with one
//! another and with five constants: settle (1 s or 3 s), half a refresh (15 s), a refresh (30 s),
//! 80 % of the ttl (48 s), and the ttl with its allowance (70 s). Jumps of 1 s or 3 s and of 36 s,
//! placed anywhere, reach every region between them that matters: settled or not; refresh due and
//! lease good (36 s); lapsed, expired and stale (72 s). Jumps of 18 s add lapsed but not expired
//! (54 s). Requests in no time at all are the worst case for races, and a slow one is a pause.
//! Clocks that show different times are the business of the clock tests, not of this model: in a
//! store that shows its clock no decision rests on a foreign wall clock alone.
//!
//! What is exhaustive: each scene, within the bounds written in it. The scenes of ordinary runs are
//! chosen to fit into half a minute: two processes with every pause, three and four with fewer.
//! `TENURE_STORE_MODEL=full` lifts the bounds (hours, and gigabytes for the hashes).

mod explore;
mod part;
mod store;
mod tenure;
mod world;

use std::time::{Duration, Instant};

use tenure_store::terms::{Company, Level};

use crate::support::Mode::{Exclusive, Shared};
use explore::{Explored, explore};
use store::StoreClock;
use world::{Fence, Judge, Late, Player, Scene, World};

const E: Player = Player::Tenure(Exclusive);
const S: Player = Player::Tenure(Shared);
/// Originals in small letters.
const OE: Player = Player::Original(Exclusive);
const OS: Player = Player::Original(Shared);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A refresh is due and the lease good; lapsed and stale.
const LONG: &[Duration] = &[secs(36), secs(36)];
/// No time passes.
const NONE: &[Duration] = &[];
/// Stale at once.
const STALE: &[Duration] = &[secs(72)];
/// The same, with one `settle` of level 1 and 2 before.
const SETTLE_LONG: &[Duration] = &[secs(1), secs(36), secs(36)];
/// Settled, and then stale at once.
const SETTLE_STALE: &[Duration] = &[secs(1), secs(72)];
/// The same for level 0.
const SETTLE3_LONG: &[Duration] = &[secs(3), secs(36), secs(36)];
/// Lapsed but not expired, too.
const FINE: &[Duration] = &[secs(1), secs(18), secs(18), secs(18), secs(18)];

/// Two processes on a store that can do everything, and nothing goes wrong.
const CALM: Scene = Scene {
    name: "calm",
    level: Level::Deletes,
    clock: StoreClock::Shown,
    players: &[E, E],
    late: Late::Prompt,
    ticks: SETTLE_LONG,
    company: Company::Originals,
    fence: Fence::AtOnce,
    stands: u8::MAX,
    losses: 0,
    judge: Judge::TenureAmongThemselves,
    deaths: 0,
};

fn look(scene: Scene) -> Explored {
    let scene: &'static Scene = Box::leak(Box::new(scene));
    let started = Instant::now();
    let explored = explore(World::new(scene));
    println!(
        "{:<38} {:>8} states ({:>7} held) {:>8} steps {:>5} ends {:>5.1} s",
        scene.name,
        explored.states,
        explored.counted,
        explored.transitions,
        explored.ends,
        started.elapsed().as_secs_f32()
    );
    explored
}

/// Nobody holds together with somebody he excludes.
fn holds(scene: Scene) {
    let name = scene.name;
    let explored = look(scene);
    if let Some((way, fault)) = explored.fault {
        panic!("{name}: {fault}\n{}", way.join("\n"));
    }
    assert!(
        explored.counted > 0,
        "{name}: nobody ever holds, so nothing was shown"
    );
}

/// A fault that is known can be reached: the checker sees what it is meant to see.
fn breaks(scene: Scene) {
    let name = scene.name;
    let Some((way, fault)) = look(scene).fault else {
        panic!("{name}: the known hole is gone")
    };
    println!("{name}: {fault}\n{}", way.join("\n"));
}

/// How often processes may stand still in a scene that is too large for ordinary runs otherwise.
fn at_most(stands: u8) -> u8 {
    if full() { u8::MAX } else { stands }
}

fn full() -> bool {
    std::env::var("TENURE_STORE_MODEL").is_ok_and(|value| value == "full")
}

/// P28, P30, P31, P34, P35 at level 2, with a lost answer and a visible death.
#[test]
fn two_processes_with_faults() {
    let ticks = if full() { FINE } else { SETTLE_LONG };
    let faults = Scene {
        losses: 1,
        deaths: 1,
        stands: at_most(0),
        ticks,
        ..CALM
    };
    holds(Scene {
        name: "E E, 1 loss, 1 death",
        ..faults.clone()
    });
    holds(Scene {
        name: "E S, 1 loss, 1 death",
        players: &[E, S],
        ..faults
    });
}

/// P38 among the rest: the requests for fencing numbers in every order.
#[test]
fn two_processes_and_their_fencing_numbers() {
    let fences = Scene {
        fence: Fence::Interleaved,
        company: Company::TenureOnly,
        ticks: LONG,
        ..CALM
    };
    holds(Scene {
        name: "E E, fences interleaved",
        ..fences.clone()
    });
    holds(Scene {
        name: "E S, fences interleaved",
        players: &[E, S],
        ..fences
    });
}

/// K45: a store that does not show its clock. Found here: a pause between reading and judging was
/// taken for the age of a lock that had been refreshed meanwhile.
#[test]
fn a_store_without_a_clock() {
    let hidden = Scene {
        clock: StoreClock::Hidden,
        stands: at_most(2),
        ..CALM
    };
    holds(Scene {
        name: "E E, clock hidden",
        ..hidden.clone()
    });
    holds(Scene {
        name: "E S, clock hidden",
        players: &[E, S],
        ..hidden
    });
}

/// P26 level 1: deletes without a condition, granted less than `settle` after the look.
#[test]
fn deletes_without_conditions() {
    let level = Scene {
        level: Level::Writes,
        stands: at_most(1),
        ..CALM
    };
    holds(Scene {
        name: "E E, level 1",
        ..level.clone()
    });
    holds(Scene {
        name: "E S, level 1",
        players: &[E, S],
        ..level
    });
}

/// P26 level 0: no conditions at all, writes granted less than `settle` after the look.
#[test]
fn writes_without_conditions() {
    let level = Scene {
        level: Level::Nothing,
        ticks: SETTLE3_LONG,
        stands: at_most(1),
        ..CALM
    };
    holds(Scene {
        name: "E E, level 0",
        ..level.clone()
    });
    holds(Scene {
        name: "E S, level 0",
        players: &[E, S],
        ..level
    });
}

/// Level 0 rests on promptness: a write that comes later than `settle` after its look breaks it.
#[test]
fn level_zero_is_no_better_than_its_promptness() {
    breaks(Scene {
        name: "E E, level 0, late writes",
        level: Level::Nothing,
        late: Late::Any,
        ticks: SETTLE3_LONG,
        ..CALM
    });
}

/// So does level 1 with its deletes: one that comes late hits the successor, and a third gets in.
#[test]
fn level_one_is_no_better_than_the_promptness_of_its_deletes() {
    breaks(Scene {
        name: "E E E, level 1, late deletes",
        level: Level::Writes,
        players: &[E, E, E],
        late: Late::Any,
        company: Company::TenureOnly,
        ticks: STALE,
        stands: 0,
        ..CALM
    });
}

/// Three processes. Nobody waits for originals here: that is fewer steps and less safety.
#[test]
fn three_processes() {
    let three = Scene {
        company: Company::TenureOnly,
        ticks: if full() { LONG } else { STALE },
        stands: at_most(0),
        ..CALM
    };
    holds(Scene {
        name: "E E S",
        players: &[E, E, S],
        ..three.clone()
    });
    holds(Scene {
        name: "E S S",
        players: &[E, S, S],
        ..three
    });
}

/// Two exclusive and two shared.
#[test]
fn four_processes() {
    let four = Scene {
        players: &[E, E, S, S],
        company: Company::TenureOnly,
        ticks: if full() { LONG } else { NONE },
        stands: 0,
        ..CALM
    };
    holds(Scene {
        name: "E E S S",
        ..four
    });
}

/// Originals among Tenure processes, prompt as section 6 counts on.
#[test]
fn originals_among_us() {
    let mixed = Scene {
        judge: Judge::Everybody,
        stands: 0,
        ..CALM
    };
    holds(Scene {
        name: "E and an exclusive original",
        players: &[E, OE],
        ..mixed.clone()
    });
    holds(Scene {
        name: "E and a shared original",
        players: &[E, OS],
        ..mixed.clone()
    });
    holds(Scene {
        name: "S and an exclusive original",
        players: &[S, OE],
        ..mixed.clone()
    });
    let short = Scene {
        ticks: SETTLE_STALE,
        ..mixed
    };
    holds(Scene {
        name: "E E and an exclusive original",
        players: &[E, E, OE],
        ..short.clone()
    });
    holds(Scene {
        name: "E S and an exclusive original",
        players: &[E, S, OE],
        ..short.clone()
    });
    holds(Scene {
        name: "E S and a shared original",
        players: &[E, S, OS],
        ..short
    });
}

/// The holes of section 5, found when originals play alone.
#[test]
fn originals_alone_break() {
    let alone = Scene {
        judge: Judge::Everybody,
        ticks: &[],
        ..CALM
    };
    breaks(Scene {
        name: "hole 1: two exclusive originals",
        players: &[OE, OE],
        ..alone.clone()
    });
    breaks(Scene {
        name: "hole 2: exclusive and shared original",
        players: &[OE, OS],
        ..alone
    });
}
