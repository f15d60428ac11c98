//! Faults ("holes") of the original, each with the shortest path to it, and the same scenario with
//! Tenure processes, which is safe.

use super::*;

/// Originals only, without any advance of time.
const ALONE: Scenario = Scenario {
    players: &[OE, OE],
    ticks: Times::AtMost(0),
    judge: Judge::Everybody,
    ..CALM
};

/// P28: both read, then both write and verify, one after the other.
#[test]
fn hole_1_two_exclusives() {
    breaks(Scenario {
        name: "hole 1",
        ..ALONE
    });
    holds(Scenario {
        name: "hole 1, closed",
        players: &[E, E],
        settle: false,
        ..ALONE
    });
}

/// P28.4, P30: the exclusive original does not list the shared locks again.
#[test]
fn hole_2_exclusive_and_shared() {
    breaks(Scenario {
        name: "hole 2",
        players: &[OE, OS],
        ..ALONE
    });
    holds(Scenario {
        name: "hole 2, closed",
        players: &[E, S],
        settle: false,
        ..ALONE
    });
}

/// P31 (refresh the lease), P32: it sees that its lock was replaced, stops refreshing, and
/// continues to work.
#[test]
fn hole_3_works_on_without_the_lock() {
    let slow = Scenario {
        ticks: Times::Any,
        late: Late::Any,
        in_turn: true,
        ..ALONE
    };
    breaks(Scenario {
        name: "hole 3, lapsed and works on",
        ..slow.clone()
    });
    breaks(Scenario {
        name: "hole 3, knows it and works on",
        judge: Judge::KnowsBetter,
        ..slow.clone()
    });
    holds(Scenario {
        name: "hole 3, closed",
        players: &[E, E],
        ..slow
    });
}

/// P31, P35: the lock is replaced between the ownership check and the write or delete.
#[test]
fn hole_4_overwrites_and_deletes_its_successor() {
    let slow = Scenario {
        ticks: Times::Any,
        late: Late::Any,
        in_turn: true,
        ..ALONE
    };
    breaks(Scenario {
        name: "hole 4, overwritten",
        judge: Judge::Overwrites,
        ..slow.clone()
    });
    breaks(Scenario {
        name: "hole 4, deleted",
        judge: Judge::Deletes,
        ..slow.clone()
    });
    for judge in [Judge::Overwrites, Judge::Deletes] {
        holds(Scenario {
            name: "hole 4, closed",
            players: &[E, E],
            judge,
            ..slow.clone()
        });
    }
}

/// P20–P23: the clock of the second process is 64 s ahead, so every lock looks expired to it.
#[test]
fn hole_5_a_clock_that_is_ahead() {
    let ahead = Scenario {
        ahead: &[0, 64],
        in_turn: true,
        ..ALONE
    };
    breaks(Scenario {
        name: "hole 5, exclusive",
        ..ahead.clone()
    });
    breaks(Scenario {
        name: "hole 5, shared against exclusive",
        players: &[OE, OS],
        ..ahead.clone()
    });
    holds(Scenario {
        name: "hole 5, closed",
        players: &[E, E],
        settle: false,
        ..ahead.clone()
    });
    holds(Scenario {
        name: "hole 5, closed, shared",
        players: &[E, S],
        settle: false,
        ..ahead
    });
}

/// P24 (unparsable repository records), P25: a failed read counts as "free".
#[test]
fn hole_6_unreadable_is_free() {
    let lossy = Scenario {
        losses: 1,
        in_turn: true,
        ..ALONE
    };
    breaks(Scenario {
        name: "hole 6, exclusive",
        ..lossy.clone()
    });
    // It reads twice.
    breaks(Scenario {
        name: "hole 6, shared against exclusive",
        players: &[OE, OS],
        losses: 2,
        ..lossy.clone()
    });
    holds(Scenario {
        name: "hole 6, closed",
        players: &[E, E],
        settle: false,
        ..lossy.clone()
    });
    holds(Scenario {
        name: "hole 6, closed, shared",
        players: &[E, S],
        losses: 2,
        settle: false,
        ..lossy
    });
}
