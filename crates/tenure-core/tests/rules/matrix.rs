//! Every cell of the conflict matrix (R43 conflicts between different algorithms, R45 order of
//! conflict reasons, E6 shared lock on a subtree), for every algorithm that the cell represents.

use tenure_core::path::Path;
use tenure_core::policy::{Access, Algorithm, Mode, Position, Reason, excludes};
use tenure_reference::conflict as model;

use crate::scenario::Scenario;

/// A row is a hold, a column a request. `-` means that both can be held.
///
/// A hold lies above, on or below the requested path. The letters are the reasons: A
/// ancestor_locked, W write_locked, R read_locked, DW and DR descendant_write/read_locked, F
/// semaphore_full.
const MATRIX: &str = "
    hold                  read  tree  write-recursive  write-point  permit
    above write-recursive  A     A     A                A            A
    above write-point      -     -     -                -            -
    above read             -     -     -                -            -
    above tree             -     -     A                A            A
    above permit           -     -     -                -            -
    on write-recursive     W     W     W                W            W
    on write-point         W     W     W                W            W
    on read                -     -     R                R            R
    on tree                -     -     R                R            R
    on permit              W     W     W                W            F
    on permit-of-two       W     W     W                W            -
    below write-recursive  -     DW    DW               -            -
    below write-point      -     DW    DW               -            -
    below read             -     -     DR               -            -
    below tree             -     -     DR               -            -
    below permit           -     DW    DW               -            -
";

/// Returns the requests that a word of the matrix represents, one per algorithm.
fn kinds(word: &str, path: &str) -> Vec<String> {
    let (mode, permits, algorithms): (&str, &str, &[&str]) = match word {
        "read" => ("read", "", &["recursive_rw", "point_rw"]),
        "tree" => ("tree", "", &["recursive_rw"]),
        "write-recursive" => ("write", "", &["recursive_rw", "recursive_write"]),
        "write-point" => ("write", "", &["point_rw", "point_write"]),
        "permit" => ("write", "*1", &["semaphore"]),
        "permit-of-two" => ("write", "*2", &["semaphore"]),
        _ => panic!("no such word: {word}"),
    };
    algorithms
        .iter()
        .map(|algorithm| format!("{mode} {path}{permits} as={algorithm}"))
        .collect()
}

fn reason(cell: &str, hold_path: &str) -> String {
    let why = match cell {
        "-" => return "granted".into(),
        "A" => "ancestor_locked",
        "W" => "write_locked",
        "R" => "read_locked",
        "DW" => "descendant_write_locked",
        "DR" => "descendant_read_locked",
        "F" => "semaphore_full",
        _ => panic!("no such reason: {cell}"),
    };
    format!("conflict why={why} at={hold_path} behind=amy")
}

/// R43 (conflicts between different algorithms): the matrix, cell by cell.
#[test]
fn every_cell_of_the_matrix() {
    let mut lines = MATRIX.lines().filter(|line| !line.trim().is_empty());
    let requests: Vec<&str> = lines.next().unwrap().split_whitespace().skip(1).collect();
    let mut cells = 0;
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hold_path = match words[0] {
            "above" => "t:/a",
            "on" => "t:/a/b",
            _ => "t:/a/b/c",
        };
        assert_eq!(words.len(), requests.len() + 2, "{line}");
        for (request, cell) in requests.iter().zip(&words[2..]) {
            for hold in kinds(words[1], hold_path) {
                let permits = if words[1] == "permit-of-two" {
                    "permit-of-two"
                } else {
                    request
                };
                let request = if *request == "permit" {
                    permits
                } else {
                    request
                };
                for wanted in kinds(request, "t:/a/b") {
                    let mut room = Scenario::new();
                    room.line(&format!("acquire amy {hold} -> granted"));
                    let expected = reason(cell, hold_path);
                    room.line(&format!("acquire bob {wanted} nowait -> {expected}"));
                    cells += 1;
                }
            }
        }
    }
    // Sixteen holds in 25 ways, against five requests in 8 ways.
    assert_eq!(cells, 25 * 8);
}

fn accesses(word: &str) -> &'static [(Mode, Algorithm)] {
    use Algorithm::*;
    match word {
        "read" => &[(Mode::Read, RecursiveRw), (Mode::Read, PointRw)],
        "tree" => &[(Mode::ReadTree, RecursiveRw)],
        "write-recursive" => &[(Mode::Write, RecursiveRw), (Mode::Write, RecursiveWrite)],
        "write-point" => &[(Mode::Write, PointRw), (Mode::Write, PointWrite)],
        _ => &[(Mode::Write, Semaphore)],
    }
}

fn cell(reason: Option<Reason>) -> &'static str {
    match reason {
        None => "-",
        Some(Reason::AncestorLocked) => "A",
        Some(Reason::WriteLocked) => "W",
        Some(Reason::ReadLocked) => "R",
        Some(Reason::DescendantWriteLocked) => "DW",
        Some(Reason::DescendantReadLocked) => "DR",
        Some(Reason::SemaphoreFull) => "F",
        Some(other) => panic!("no cell of the matrix: {other:?}"),
    }
}

/// The conflict rule, printed, is the matrix. Free permits are counted elsewhere.
#[test]
fn the_rule_prints_the_matrix() {
    let words = ["read", "tree", "write-recursive", "write-point", "permit"];
    let mut printed = vec![format!("hold {}", words.join(" "))];
    let positions = [
        ("above", Position::Above),
        ("on", Position::Same),
        ("below", Position::Below),
    ];
    for (name, position) in positions {
        for hold in ["write-recursive", "write-point", "read", "tree", "permit"] {
            let mut row = format!("{name} {hold}");
            for request in words {
                let mut cells = Vec::new();
                for &(mode, algorithm) in accesses(hold) {
                    let held = Access { mode, algorithm };
                    for &(mode, algorithm) in accesses(request) {
                        cells.push(cell(excludes(Access { mode, algorithm }, held, position)));
                    }
                }
                cells.dedup();
                row = format!("{row} {}", cells.join("|"));
            }
            printed.push(row);
        }
    }
    let expected: Vec<String> = MATRIX
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty() && !line.contains("permit-of-two"))
        .collect();
    assert_eq!(printed, expected, "\n{}\n", printed.join("\n"));
}

/// The naive model has its own rules, written cell by cell: for two locks (R43), and for two
/// requests in the queue (R44).
#[test]
fn the_rule_agrees_with_the_model() {
    let path = |text| Path::parse(text).unwrap();
    let (above, same, below) = (path("t:/a"), path("t:/a/b"), path("t:/a/b/c"));
    let positions = [
        (&above, Position::Above),
        (&same, Position::Same),
        (&below, Position::Below),
    ];
    let of = |path, access: Access| model::WantedAccess {
        path,
        mode: access.mode,
        algorithm: access.algorithm,
    };
    let all = || {
        Mode::ALL.into_iter().flat_map(|mode| {
            let algorithms = Algorithm::ALL.into_iter();
            algorithms
                .filter(move |algorithm| algorithm.allows(mode))
                .map(move |algorithm| Access { mode, algorithm })
        })
    };
    for (held_path, position) in positions {
        for wanted in all() {
            for held in all() {
                let found = excludes(wanted, held, position);
                let (request, hold) = (of(&same, wanted), of(held_path, held));
                let context = format!("{wanted:?} with {held:?} {position:?}");
                assert_eq!(found, model::blocks(hold, request), "{context}");
                if wanted.algorithm == held.algorithm {
                    let queued = model::exclude(hold, request);
                    assert_eq!(found.is_some(), queued, "{context}");
                }
            }
        }
    }
}

/// R41 (owners are re-entrant): the same cells with one owner are all granted.
#[test]
fn no_cell_concerns_an_owner_and_itself() {
    for line in MATRIX
        .lines()
        .filter(|line| !line.trim().is_empty())
        .skip(1)
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hold_path = match words[0] {
            "above" => "t:/a",
            "on" => "t:/a/b",
            _ => "t:/a/b/c",
        };
        if words[1] == "permit-of-two" {
            continue;
        }
        for request in ["read", "tree", "write-recursive", "write-point", "permit"] {
            for hold in kinds(words[1], hold_path) {
                for wanted in kinds(request, "t:/a/b") {
                    let mut room = Scenario::new();
                    room.line(&format!("acquire amy {hold} -> granted"));
                    room.line(&format!("acquire amy {wanted} nowait -> granted"));
                }
            }
        }
    }
}

/// R44 (when two requests exclude each other), E6: a request waits for an earlier waiter exactly if
/// their requests exclude each other. Two permits of one path always do, so they are granted in
/// order.
#[test]
fn waiters_exclude_each_other_as_their_requests_do() {
    let algorithms: [(&str, &[&str]); 5] = [
        ("recursive_rw", &["read", "tree", "write"]),
        ("point_rw", &["read", "write"]),
        ("recursive_write", &["write"]),
        ("point_write", &["write"]),
        ("semaphore", &["write"]),
    ];
    let places = [
        ("t:/a/b", "t:/a/b"),
        ("t:/a", "t:/a/b"),
        ("t:/a/b", "t:/a"),
        ("t:/a/b", "t:/a/c"),
    ];
    let mut pairs = 0;
    for (algorithm, modes) in algorithms {
        let permits = if algorithm == "semaphore" { "*1" } else { "" };
        for (earlier_path, later_path) in places {
            for earlier in modes {
                for later in modes {
                    let exclusive = match (earlier_path, later_path) {
                        ("t:/a/b", "t:/a/c") => false,
                        (one, other) if one == other => [earlier, later].contains(&&"write"),
                        ("t:/a", _) => covers(algorithm, earlier, later),
                        _ => covers(algorithm, later, earlier),
                    };
                    let expected = if exclusive {
                        "conflict why=queued behind=amy"
                    } else {
                        "granted"
                    };
                    let mut room = Scenario::new();
                    room.line(&format!("policy t:/a {algorithm}"));
                    // A hold that blocks amy but not bob.
                    room.line(&format!("acquire zoe write t:/a/z{permits} -> granted"));
                    room.line(&format!(
                        "acquire amy write t:/a/z{permits} {earlier} {earlier_path}{permits} -> queued"
                    ));
                    let blocked_by_zoe = later_path == "t:/a"
                        && (*later == "tree"
                            || (*later == "write" && algorithm.starts_with("rec")));
                    if blocked_by_zoe && !exclusive {
                        continue;
                    }
                    room.line(&format!(
                        "acquire bob {later} {later_path}{permits} nowait -> {expected}"
                    ));
                    pairs += 1;
                }
            }
        }
    }
    assert!(pairs > 50, "{pairs}");
}

/// Whether a request on an ancestor excludes one below it.
fn covers(algorithm: &str, above: &str, below: &str) -> bool {
    match above {
        "write" => algorithm.starts_with("recursive"),
        "tree" => below == "write",
        _ => false,
    }
}
