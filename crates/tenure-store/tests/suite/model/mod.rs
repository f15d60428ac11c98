//! Model check: drives the shipped procedures ([`tenure_store::protocol`]) through every order in
//! which their requests can take effect, with pauses, crashes, lost responses and originals.
//!
//! # What is explored
//!
//! - A process is an [`Acquire`](tenure_store::internal::Acquire) and then a
//!   [`HoldProcedure`](tenure_store::internal::HoldProcedure): the code that ships. An original is
//!   the simulation in [`original`](crate::support::original).
//! - One step is one request that takes effect atomically. Between two steps of a process, other
//!   processes may take steps and time may advance. Requests that a process sends together take
//!   effect one by one, in any order, with anything between them. A holder may be released whenever
//!   it is idle, and revived whenever it has lapsed.
//! - A process may pause for any time before its request takes effect, which is not counted. It may
//!   also pause before it reads a result and between a result and its next request (`stands`).
//! - A crash is a process that never continues: every prefix of a run is explored, and the process
//!   counts as a holder until its lease ends. `deaths` adds crashes that others can detect (P22
//!   evidence of staleness, case c).
//! - A response may be lost, with or without the effect of the request (`losses`).
//!
//! # Why the state space is finite and small enough
//!
//! - Times are relative to now, and only as far back as a rule compares ([`canon`], [`scenario`]).
//!   So scenarios with `ticks: Times::Any` have no bound on time.
//! - What a process does between a result and its next request affects no other process, so it is
//!   part of the same step ([`state`]).
//! - States of one process that can never behave differently are merged ([`local`]); an audit
//!   checks this.
//! - Equal processes are interchangeable ([`state`]): with two equal pairs, four states are one.
//! - States are stored completely, in 128 bits ([`explore`]), so none is missed by a hash
//!   collision.
//!
//! # What is bounded
//!
//! Two exclusive processes are explored without a bound. An exclusive and a shared one already have
//! more than ten million states, and with a second of each the number grows towards its square. So
//! larger scenarios limit the number of clock advances, each of any span up to the age at which
//! everything is stale, and how many processes may be paused during one.
//! `docs/reference/store-model.md` lists the results.

mod canon;
mod explore;
mod local;
mod planted_bugs;
mod scenario;
mod state;
mod store;
mod tenure;

use std::time::Instant;

use tenure_store::ConditionLevel;

use crate::support::LockMode::{Exclusive, Shared};
use explore::{Explored, explore, shortest};
use scenario::{Fence, Judge, Late, Player, Scenario, StoreClock, Times};
use state::Model;

const E: Player = Player::Tenure(Exclusive);
const S: Player = Player::Tenure(Shared);
/// Originals.
const OE: Player = Player::Original(Exclusive);
const OS: Player = Player::Original(Shared);

/// Two exclusive Tenure processes on a store of level 2, without a bound on time.
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

/// Checks that no two conflicting processes hold at the same time.
fn holds(scene: Scenario) {
    let name = scene.name;
    let explored = look(scene, explore);
    if let Some((way, fault)) = explored.fault {
        panic!("{name}: {fault}\n{}", way.join("\n"));
    }
    assert!(
        explored.counted > 0,
        "{name}: no process ever holds, so nothing was shown"
    );
}

/// Checks that a known fault is found, so that the checker is known to work.
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

/// Selects the bound for full or ordinary runs.
fn in_full<T>(full_bound: T, ordinary: T) -> T {
    if full() { full_bound } else { ordinary }
}

/// P28 (acquire the exclusive lock), P31 (refresh the lease), P34 (revive a lapsed lease), P35
/// (repository release) at level 2, without a bound on time, with detectable deaths.
#[test]
fn two_exclusives_for_ever() {
    holds(Scenario {
        name: "E E, any time, deaths",
        deaths: true,
        ..CALM
    });
    holds(Scenario {
        name: "E E, any time, no settle time",
        settle: false,
        ..CALM
    });
}

/// P30 (acquire a shared lock) against P28.
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
            "E S, 4 advances, no settle time",
            "E S, 3 advances, no settle time",
        ),
        players: &[E, S],
        settle: false,
        ticks,
        ..CALM
    });
}

/// A process that pauses between a result and its next request.
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

/// P29: lost responses and requests.
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

/// P38: the requests for fencing numbers in every order.
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

/// P38, K39 (fencing number per acquisition): the number of a hold is above those of all
/// conflicting holds that began before, although it is requested together with the last look.
#[test]
fn fencing_numbers_grow_with_conflicting_holds() {
    let fences = Scenario {
        fence: Fence::Interleaved,
        settle: false,
        judge: Judge::Fences,
        ticks: Times::AtMost(in_full(3, 2)),
        ..CALM
    };
    holds(Scenario {
        name: in_full(
            "E S, 3 advances, order of fences",
            "E S, 2 advances, order of fences",
        ),
        players: &[E, S],
        ..fences.clone()
    });
    holds(Scenario {
        name: in_full(
            "E E, 3 advances, order of fences",
            "E E, 2 advances, order of fences",
        ),
        ..fences.clone()
    });
    holds(Scenario {
        name: in_full(
            "E S, settling, 3 advances, order of fences",
            "E S, settling, 2 advances, order of fences",
        ),
        players: &[E, S],
        settle: true,
        ..fences.clone()
    });
    holds(Scenario {
        name: "E S S, 1 advance, order of fences",
        players: &[E, S, S],
        ticks: Times::AtMost(1),
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

/// P20–P23, hole 5: clocks that differ by a minute, in both directions.
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

/// P26 (levels of conditional writes) level 1: unconditional deletes that take effect less than 12
/// s after they are sent.
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

/// P29, P35 at level 1: a holder that was paused beyond its lease does not delete the next holder's
/// lock, although there is no settle time and the delete is unconditional: it renews first.
#[test]
fn the_lapsed_do_not_delete_their_successors() {
    let lapsed = Scenario {
        level: ConditionLevel::Writes,
        settle: false,
        ..CALM
    };
    holds(Scenario {
        name: in_full(
            "E E, any time, level 1, no settle time",
            "E E, 3 advances, level 1, no settle time",
        ),
        ticks: in_full(Times::Any, Times::AtMost(3)),
        ..lapsed.clone()
    });
    holds(Scenario {
        name: in_full(
            "E E E, 2 advances, level 1, no settle time",
            "E E E, 1 advance, level 1, no settle time",
        ),
        players: &[E, E, E],
        ticks: Times::AtMost(in_full(2, 1)),
        ..lapsed.clone()
    });
    holds(Scenario {
        name: in_full(
            "E E, 3 advances, 2 stands, level 1, no settle time",
            "E E, 3 advances, 1 stand, level 1, no settle time",
        ),
        ticks: Times::AtMost(3),
        stands: Times::AtMost(in_full(2, 1)),
        ..lapsed
    });
}

/// P26 level 0: no conditions; writes take effect less than `settle` after the read.
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

/// Level 0 depends on prompt writes: one that is later than `settle` after its read causes a fault.
#[test]
fn level_zero_is_no_better_than_its_promptness() {
    breaks(Scenario {
        name: "E E, level 0, late writes",
        level: ConditionLevel::Nothing,
        late: Late::Any,
        ..CALM
    });
}

/// Level 1 depends on prompt deletes: a late one removes the next holder's lock, and a third
/// process acquires it.
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

/// Two exclusive and two shared Tenure processes: acquire, refresh, release, lapse, revive (P34),
/// takeover, and a crash at any point. With one advance all four may be paused, with two advances
/// any two.
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

/// One original among Tenure processes, as prompt as section 6 assumes: no conflicting holders with
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

/// Two exclusive and two shared processes, some of them originals, with and without conditions.
/// With conditions, no original holds at the same time as a conflicting Tenure process. Without, an
/// exclusive original can be overwritten; if there is one, only the Tenure processes are checked.
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
            // There is only one Tenure process; see
            // `level_zero_cannot_keep_an_exclusive_original_out`.
            (true, _) => {}
        }
    }
}

/// Without conditions, an exclusive original and an exclusive Tenure process can both hold: Tenure
/// overwrites the record written after its read, and the original does not read again. The crate
/// documents this.
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

/// All other pairs are kept apart: one of the two reads again after the settle time.
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

/// Merged states of a process are equivalent: see [`local::Locals::audit`].
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
            name: "audit: E S, 3 advances, no settle time",
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
            name: "audit: E E, level 1, no settle time",
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
