//! The model check: the shipped machines ([`tenure_store::protocol`]) driven through every order in
//! which their requests can reach the store, with pauses, crashes, lost answers and originals.
//!
//! What is explored
//!
//! - A process is an [`Acquire`](tenure_store::protocol::Acquire) and then a
//!   [`Hold`](tenure_store::protocol::HoldProcedure), bit for bit what a program runs. An original is the
//!   stand-in of [`original`](crate::support::original).
//! - One step is one request that takes effect at once. Between any two steps of one process any
//!   others may come, and time may pass. A holder may be told to release whenever it rests, and to
//!   revive whenever it is lapsed.
//! - A process may stand still for any time before its request takes effect, which is never
//!   counted; and before it reads an answer, and between an answer and its next request (`stands`).
//! - A crash is a process that never goes on: every prefix of a run is explored, and it counts as
//!   holding until its lease ends. `deaths` adds the crash that others can see (P22 c).
//! - An answer may be lost, the request with it or not (`losses`).
//!
//! Why it is finite, and small enough
//!
//! - Time is told from now, and only as far back as a rule asks ([`canon`], [`scenario`]). So scenes
//!   with `ticks: Times::Any` have no bound on time at all.
//! - What a process does between an answer and its next request concerns nobody else and happens
//!   with the answer ([`state`]).
//! - States of one process that differ in nothing it will ever ask are one ([`local`]); an audit
//!   checks that.
//! - Players of one kind may change slots ([`state`]): four worlds of two pairs are one.
//! - Worlds are kept whole, in 128 bits ([`explore`]): there are no odds of missing one.
//!
//! What is bounded: two exclusives go on for ever, but an exclusive and a shared one alone make
//! more than ten million worlds, and with a second of each that number grows towards its square.
//! So the larger scenes count the advances of the clock, each of them of any span up to where
//! everything is stale, and say how many processes may be paused over one.
//! `docs/reference/store-model.md` has the table of what was counted.

mod canon;
mod explore;
mod local;
mod planted_bugs;
mod scenario;
mod state;
mod store;
mod tenure;

use std::time::Instant;

use tenure_store::lock_terms::ConditionLevel;

use crate::support::LockMode::{Exclusive, Shared};
use explore::{Explored, explore, shortest};
use scenario::{Fence, Judge, Late, Player, Scenario, StoreClock, Times};
use state::Model;

const E: Player = Player::Tenure(Exclusive);
const S: Player = Player::Tenure(Shared);
/// Originals.
const OE: Player = Player::Original(Exclusive);
const OS: Player = Player::Original(Shared);

/// Two exclusive Tenure processes on a store that can do everything, for any length of time.
const CALM: Scenario = Scenario {
    name: "calm",
    level: ConditionLevel::Deletes,
    clock: StoreClock::Shown,
    players: &[E, E],
    ahead: &[],
    late: Late::Prompt,
    settle: true,
    fence: Fence::AtOnce,
    ticks: Times::Any,
    paused: u8::MAX,
    stands: Times::AtMost(0),
    losses: 0,
    deaths: false,
    in_turn: false,
    judge: Judge::Tenure,
};

fn look(scene: Scenario, how: fn(&mut Model) -> Explored) -> Explored {
    let scene: &'static Scenario = Box::leak(Box::new(scene));
    let started = Instant::now();
    let explored = how(&mut Model::new(scene));
    println!(
        "| {} | {} | {} | {} | {} | {:.1} s |",
        scene.name,
        explored.states,
        explored.counted,
        explored.transitions,
        explored.locals,
        started.elapsed().as_secs_f32()
    );
    explored
}

/// Nobody holds together with somebody he excludes.
fn holds(scene: Scenario) {
    let name = scene.name;
    let explored = look(scene, explore);
    if let Some((way, fault)) = explored.fault {
        panic!("{name}: {fault}\n{}", way.join("\n"));
    }
    assert!(
        explored.counted > 0,
        "{name}: nobody ever holds, so nothing was shown"
    );
}

/// A fault that is known can be reached: the checker sees what it is meant to see.
fn breaks(scene: Scenario) {
    let name = scene.name;
    let Some((way, fault)) = look(scene, shortest).fault else {
        panic!("{name}: the known hole is gone")
    };
    println!("{name}: {fault}\n  {}", way.join("\n  "));
}

fn full() -> bool {
    std::env::var("TENURE_STORE_MODEL").is_ok_and(|value| value == "full")
}

/// One bound for ordinary runs, another for the full one.
fn in_full<T>(full_bound: T, ordinary: T) -> T {
    if full() { full_bound } else { ordinary }
}

/// P28, P31, P34, P35 at level 2, for any length of time, with visible deaths.
#[test]
fn two_exclusives_for_ever() {
    holds(Scenario {
        name: "E E, any time, deaths",
        deaths: true,
        ..CALM
    });
    holds(Scenario {
        name: "E E, any time, nobody settles",
        settle: false,
        ..CALM
    });
}

/// P30 against P28.
#[test]
fn exclusive_and_shared() {
    let ticks = Times::AtMost(in_full(4, 3));
    holds(Scenario {
        name: in_full("E S, 4 advances", "E S, 3 advances"),
        players: &[E, S],
        ticks,
        ..CALM
    });
    holds(Scenario {
        name: in_full(
            "E S, 4 advances, nobody settles",
            "E S, 3 advances, nobody settles",
        ),
        players: &[E, S],
        settle: false,
        ticks,
        ..CALM
    });
}

/// A process that stands still between an answer and its next request.
#[test]
fn pauses_between_requests() {
    let stands = Scenario {
        stands: in_full(Times::AtMost(2), Times::AtMost(1)),
        ticks: Times::AtMost(3),
        ..CALM
    };
    holds(Scenario {
        name: in_full("E E, 3 advances, 2 stands", "E E, 3 advances, 1 stand"),
        ..stands.clone()
    });
    holds(Scenario {
        name: in_full("E S, 3 advances, 2 stands", "E S, 3 advances, 1 stand"),
        players: &[E, S],
        ..stands
    });
}

/// P29: answers and requests that are lost.
#[test]
fn lost_answers() {
    let lossy = Scenario {
        losses: in_full(2, 1),
        deaths: true,
        ticks: Times::AtMost(in_full(3, 2)),
        ..CALM
    };
    holds(Scenario {
        name: in_full(
            "E E, 3 advances, 2 losses, deaths",
            "E E, 2 advances, 1 loss, deaths",
        ),
        ..lossy.clone()
    });
    holds(Scenario {
        name: in_full(
            "E S, 3 advances, 2 losses, deaths",
            "E S, 2 advances, 1 loss, deaths",
        ),
        players: &[E, S],
        ..lossy
    });
}

/// P38 among the rest: the requests for fencing numbers in every order.
#[test]
fn two_processes_and_their_fencing_numbers() {
    let fences = Scenario {
        fence: Fence::Interleaved,
        settle: false,
        ticks: in_full(Times::AtMost(3), Times::AtMost(2)),
        ..CALM
    };
    holds(Scenario {
        name: in_full("E E, 3 advances, fences", "E E, 2 advances, fences"),
        ..fences.clone()
    });
    holds(Scenario {
        name: in_full("E S, 3 advances, fences", "E S, 2 advances, fences"),
        players: &[E, S],
        ..fences
    });
}

/// K45: a store that does not show its clock.
#[test]
fn a_store_without_a_clock() {
    let hidden = Scenario {
        clock: StoreClock::Hidden,
        deaths: true,
        stands: Times::AtMost(in_full(2, 1)),
        ticks: Times::AtMost(in_full(3, 2)),
        ..CALM
    };
    holds(Scenario {
        name: in_full(
            "E E, 3 advances, 2 stands, deaths, clock hidden",
            "E E, 2 advances, 1 stand, deaths, clock hidden",
        ),
        ..hidden.clone()
    });
    holds(Scenario {
        name: in_full(
            "E S, 3 advances, 2 stands, deaths, clock hidden",
            "E S, 2 advances, 1 stand, deaths, clock hidden",
        ),
        players: &[E, S],
        ..hidden
    });
}

/// P20–P23, hole 5: clocks that are a minute apart, one way and the other.
#[test]
fn clocks_that_differ() {
    let skewed = Scenario {
        ticks: in_full(Times::AtMost(3), Times::AtMost(2)),
        settle: false,
        ..CALM
    };
    holds(Scenario {
        name: in_full(
            "E E, the second 64 s ahead, 3 adv.",
            "E E, the second 64 s ahead",
        ),
        ahead: &[0, 64],
        ..skewed.clone()
    });
    holds(Scenario {
        name: in_full(
            "S E, the second 64 s ahead, 3 adv.",
            "S E, the second 64 s ahead",
        ),
        players: &[S, E],
        ahead: &[0, 64],
        ..skewed.clone()
    });
    holds(Scenario {
        name: in_full(
            "E S, the second 64 s ahead, 3 adv.",
            "E S, the second 64 s ahead",
        ),
        players: &[E, S],
        ahead: &[0, 64],
        ..skewed
    });
}

/// P26 level 1: deletes without a condition, granted less than 12 s after they are sent.
#[test]
fn deletes_without_conditions() {
    let level = Scenario {
        level: ConditionLevel::Writes,
        ..CALM
    };
    holds(Scenario {
        name: in_full("E E, any time, level 1", "E E, 3 advances, level 1"),
        ticks: in_full(Times::Any, Times::AtMost(3)),
        ..level.clone()
    });
    holds(Scenario {
        name: in_full("E S, 4 advances, level 1", "E S, 3 advances, level 1"),
        players: &[E, S],
        ticks: in_full(Times::AtMost(4), Times::AtMost(3)),
        ..level
    });
}

/// P29, P35 at level 1: a holder that stood still beyond its lease does not delete its successor's
/// lock, although nobody settles and the delete has no condition: it is renewed first.
#[test]
fn the_lapsed_do_not_delete_their_successors() {
    let lapsed = Scenario {
        level: ConditionLevel::Writes,
        settle: false,
        ..CALM
    };
    holds(Scenario {
        name: in_full(
            "E E, any time, level 1, nobody settles",
            "E E, 3 advances, level 1, nobody settles",
        ),
        ticks: in_full(Times::Any, Times::AtMost(3)),
        ..lapsed.clone()
    });
    holds(Scenario {
        name: in_full(
            "E E E, 2 advances, level 1, nobody settles",
            "E E E, 1 advance, level 1, nobody settles",
        ),
        players: &[E, E, E],
        ticks: Times::AtMost(in_full(2, 1)),
        ..lapsed.clone()
    });
    holds(Scenario {
        name: in_full(
            "E E, 3 advances, 2 stands, level 1, nobody settles",
            "E E, 3 advances, 1 stand, level 1, nobody settles",
        ),
        ticks: Times::AtMost(3),
        stands: Times::AtMost(in_full(2, 1)),
        ..lapsed
    });
}

/// P26 level 0: no conditions at all, writes granted less than `settle` after the look.
#[test]
fn writes_without_conditions() {
    let level = Scenario {
        level: ConditionLevel::Nothing,
        ticks: in_full(Times::Any, Times::AtMost(4)),
        ..CALM
    };
    holds(Scenario {
        name: in_full("E E, any time, level 0", "E E, 4 advances, level 0"),
        ..level.clone()
    });
    holds(Scenario {
        name: in_full("E S, any time, level 0", "E S, 4 advances, level 0"),
        players: &[E, S],
        ..level
    });
}

/// Level 0 rests on promptness: a write that comes later than `settle` after its look breaks it.
#[test]
fn level_zero_is_no_better_than_its_promptness() {
    breaks(Scenario {
        name: "E E, level 0, late writes",
        level: ConditionLevel::Nothing,
        late: Late::Any,
        ..CALM
    });
}

/// So does level 1 with its deletes: one that comes late hits the successor, and a third gets in.
#[test]
fn level_one_is_no_better_than_the_promptness_of_its_deletes() {
    breaks(Scenario {
        name: "E E E, level 1, late deletes",
        level: ConditionLevel::Writes,
        players: &[E, E, E],
        late: Late::Any,
        settle: false,
        ticks: Times::AtMost(1),
        ..CALM
    });
}

/// Three processes.
#[test]
fn three_processes() {
    let three = Scenario {
        settle: false,
        ticks: Times::AtMost(in_full(2, 1)),
        paused: in_full(2, u8::MAX),
        ..CALM
    };
    holds(Scenario {
        name: in_full("E E S, 2 advances, 2 paused", "E E S, 1 advance"),
        players: &[E, E, S],
        ..three.clone()
    });
    holds(Scenario {
        name: in_full("E S S, 2 advances, 2 paused", "E S S, 1 advance"),
        players: &[E, S, S],
        ..three
    });
}

/// Two exclusive and two shared, all Tenure: acquire, refresh, release, lapse, revive (P34),
/// takeover, and a crash anywhere. With one advance all four may be paused over it, with two any
/// two.
#[test]
fn two_exclusive_and_two_shared() {
    let four = Scenario {
        players: &[E, E, S, S],
        settle: false,
        ..CALM
    };
    if full() {
        holds(Scenario {
            name: "E E S S, 1 advance, any paused, deaths",
            ticks: Times::AtMost(1),
            deaths: true,
            ..four.clone()
        });
        holds(Scenario {
            name: "E E S S, 2 advances, 1 paused",
            ticks: Times::AtMost(2),
            paused: 1,
            ..four.clone()
        });
        holds(Scenario {
            name: "E E S S, settling, 2 advances, 1 paused",
            ticks: Times::AtMost(2),
            settle: true,
            paused: 1,
            ..four.clone()
        });
        holds(Scenario {
            name: "E E S S, 2 advances, 2 paused",
            ticks: Times::AtMost(2),
            paused: 2,
            ..four
        });
    } else {
        holds(Scenario {
            name: "E E S S, 1 advance, 2 paused",
            ticks: Times::AtMost(1),
            paused: 2,
            ..four
        });
    }
}

/// The same on stores without conditional deletes, and without any conditions.
#[test]
fn two_exclusive_and_two_shared_without_conditions() {
    let four = Scenario {
        players: &[E, E, S, S],
        ticks: Times::AtMost(2),
        paused: in_full(2, 0),
        ..CALM
    };
    holds(Scenario {
        name: in_full(
            "E E S S, level 0, 2 advances, 2 paused",
            "E E S S, level 0, 2 advances, 0 paused",
        ),
        level: ConditionLevel::Nothing,
        ..four.clone()
    });
    holds(Scenario {
        name: in_full(
            "E E S S, level 1, 2 advances, 1 paused",
            "E E S S, level 1, 1 advance, 1 paused",
        ),
        level: ConditionLevel::Writes,
        ticks: Times::AtMost(in_full(2, 1)),
        paused: 1,
        settle: false,
        ..four
    });
}

/// One original among Tenure processes, prompt as section 6 counts on: nobody holds together with
/// it either.
#[test]
fn an_original_among_us() {
    let mixed = Scenario {
        judge: Judge::WithTenure,
        deaths: true,
        ..CALM
    };
    let two = Scenario {
        ticks: in_full(Times::Any, Times::AtMost(5)),
        ..mixed.clone()
    };
    holds(Scenario {
        name: in_full("E and OE, any time, deaths", "E and OE, 5 advances, deaths"),
        players: &[E, OE],
        ..two.clone()
    });
    holds(Scenario {
        name: in_full("E and OS, any time, deaths", "E and OS, 5 advances, deaths"),
        players: &[E, OS],
        ..two.clone()
    });
    holds(Scenario {
        name: in_full("S and OE, any time, deaths", "S and OE, 5 advances, deaths"),
        players: &[S, OE],
        ..two
    });
    let three = Scenario {
        ticks: in_full(Times::AtMost(3), Times::AtMost(1)),
        paused: 1,
        ..mixed
    };
    holds(Scenario {
        name: in_full(
            "E E OE, 3 advances, 1 paused",
            "E E OE, 1 advance, 1 paused",
        ),
        players: &[E, E, OE],
        ..three.clone()
    });
    holds(Scenario {
        name: in_full(
            "E S OE, 3 advances, 1 paused",
            "E S OE, 1 advance, 1 paused",
        ),
        players: &[E, S, OE],
        ..three.clone()
    });
    holds(Scenario {
        name: in_full(
            "E S OS, 3 advances, 1 paused",
            "E S OS, 1 advance, 1 paused",
        ),
        players: &[E, S, OS],
        ..three
    });
}

/// Two exclusive and two shared, some of them originals, on stores with and without conditions.
/// With conditions no original holds beside a Tenure process that it excludes. Without, an exclusive
/// original can be overwritten, and where there is one only the Tenure processes are judged.
fn mix(who: &str, players: &'static [Player]) {
    let bounds: &[(u8, u8)] = in_full(&[(2, 2), (1, u8::MAX)], &[(1, 1)]);
    let tenure = |player: &&Player| matches!(player, Player::Tenure(_));
    for &(ticks, paused) in bounds {
        let advances = if ticks == 1 { "advance" } else { "advances" };
        let count = match paused {
            u8::MAX => "any".to_owned(),
            count => count.to_string(),
        };
        let scene = |judge, level, condition: &str| {
            let name = format!("{who}{condition}, {ticks} {advances}, {count} paused");
            Scenario {
                name: Box::leak(name.into_boxed_str()),
                level,
                players,
                ticks: Times::AtMost(ticks),
                paused,
                judge,
                ..CALM
            }
        };
        holds(scene(Judge::WithTenure, ConditionLevel::Deletes, ""));
        match (players.contains(&OE), players.iter().filter(tenure).count()) {
            (false, _) => holds(scene(
                Judge::WithTenure,
                ConditionLevel::Nothing,
                ", level 0",
            )),
            (true, 2..) => holds(scene(Judge::Tenure, ConditionLevel::Nothing, ", level 0")),
            // A single Tenure process has no other: `level_zero_cannot_keep_an_exclusive_original_out`.
            (true, _) => {}
        }
    }
}

/// Without conditions an exclusive original and an exclusive Tenure process can both hold: ours is
/// written over what came since the look, and an original does not look again. The crate says so.
#[test]
fn level_zero_cannot_keep_an_exclusive_original_out() {
    breaks(Scenario {
        name: "E and OE, level 0",
        level: ConditionLevel::Nothing,
        players: &[E, OE],
        ticks: Times::AtMost(1),
        judge: Judge::WithTenure,
        ..CALM
    });
}

/// All the other pairs it does keep apart: one of the two looks again after it has settled.
#[test]
fn an_original_among_us_without_conditions() {
    let two = Scenario {
        level: ConditionLevel::Nothing,
        judge: Judge::WithTenure,
        ticks: in_full(Times::Any, Times::AtMost(4)),
        ..CALM
    };
    holds(Scenario {
        name: in_full(
            "E and OS, level 0, any time",
            "E and OS, level 0, 4 advances",
        ),
        players: &[E, OS],
        ..two.clone()
    });
    holds(Scenario {
        name: in_full(
            "S and OE, level 0, any time",
            "S and OE, level 0, 4 advances",
        ),
        players: &[S, OE],
        ..two
    });
}

#[test]
fn one_exclusive_is_an_original() {
    mix("E OE S S", &[E, OE, S, S]);
}

#[test]
fn one_shared_is_an_original() {
    mix("E E S OS", &[E, E, S, OS]);
}

#[test]
fn both_shared_are_originals() {
    mix("E E OS OS", &[E, E, OS, OS]);
}

#[test]
fn one_of_each_is_an_original() {
    mix("E OE S OS", &[E, OE, S, OS]);
}

#[test]
fn one_exclusive_is_alone_among_originals() {
    mix("E OE OS OS", &[E, OE, OS, OS]);
}

/// States of a process that are taken for one are one: see [`local::Locals::audit`].
#[test]
fn what_is_taken_for_one_state_is_one() {
    let scenes = [
        Scenario {
            name: "audit: E E, 3 advances, 1 stand, deaths",
            ticks: Times::AtMost(3),
            stands: Times::AtMost(1),
            deaths: true,
            ..CALM
        },
        Scenario {
            name: "audit: E S, 3 advances, nobody settles",
            players: &[E, S],
            ticks: Times::AtMost(3),
            settle: false,
            ..CALM
        },
        Scenario {
            name: "audit: E S S, level 0",
            players: &[E, S, S],
            level: ConditionLevel::Nothing,
            ticks: Times::AtMost(2),
            paused: 1,
            ..CALM
        },
        Scenario {
            name: "audit: E E, level 1, nobody settles",
            level: ConditionLevel::Writes,
            ticks: Times::AtMost(3),
            stands: Times::AtMost(1),
            settle: false,
            ..CALM
        },
        Scenario {
            name: "audit: E OE OS, 2 advances",
            players: &[E, OE, OS],
            ticks: Times::AtMost(2),
            paused: 1,
            ..CALM
        },
    ];
    for scene in scenes {
        let scene: &'static Scenario = Box::leak(Box::new(scene));
        let mut model = Model::new(scene);
        model.locals().keep_merged(4000);
        let explored = explore(&mut model);
        assert!(
            explored.fault.is_none(),
            "{}: {:?}",
            scene.name,
            explored.fault
        );
        let compared = model.locals().audit();
        println!("{}: {compared} steps compared", scene.name);
        assert!(compared > 1000, "{}: too little was compared", scene.name);
    }
}
