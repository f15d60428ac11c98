//! The namespace table compared with a list of rows (R20–R24, R30 paths above the routing depth,
//! R31 one namespace per acquire, R126–R128, R131–R138).

use tenure_core::command::{ClearPolicy, Domain, Selection};
use tenure_core::namespace_table::{AffectedGroups, NamespaceTable, TableChangePlan, Unroutable};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Algorithm;

use crate::rng::Rng;
use crate::table::Table;

const PATHS: [&str; 10] = [
    "h:/", "h:/a", "h:/a/b", "h:/a/b/c", "h:/a/bc", "h:/ab", "h:/ab/c", "hh:/a", "h-x:/a", "g:/a/b",
];
const NAMES: [&str; 10] = [
    "h", "h:/", "h:/a", "h:/a/b", "h:/a/b/c", "h:/ab", "hh", "h-x:/", "g", "h:/a/bc",
];

fn name(text: &str) -> Namespace {
    Namespace::parse(text).unwrap()
}

fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

/// R21 (longest explicit namespace wins), R22 (fallback namespace), R24: for random rows, every
/// path resolves to the longest row that contains it.
#[test]
fn the_table_resolves_as_a_list_does() {
    let mut rng = Rng::new(11);
    for _ in 0..3_000 {
        let mut list = Table::new();
        list.prefix = rng.below(4) as usize;
        list.default = rng.pick(&Algorithm::ALL);
        for _ in 0..rng.below(6) {
            list.set(&name(rng.pick(&NAMES)), Some(rng.pick(&Algorithm::ALL)));
        }
        let rows = list.rows.iter().cloned();
        let table = NamespaceTable::restore(list.prefix, list.default, list.version, rows);
        for text in PATHS {
            let path = path(text);
            assert_eq!(
                table.route(&path),
                list.resolve(&path),
                "{text} by {list:?}"
            );
            acquires_are_routed(&table, &list, &path);
        }
        for text in NAMES {
            // R136 (GetNamespacePolicy reads one row): the exact row, without inheritance.
            assert_eq!(table.row(&name(text)), list.row(&name(text)));
            for to in [None, Some(Algorithm::PointRw), Some(list.default)] {
                a_plan_is_right(&table, &list, &name(text), to);
            }
        }
    }
}

/// R30 (paths above the routing depth), R31 (one namespace per acquire).
fn acquires_are_routed(table: &NamespaceTable, list: &Table, path: &Path) {
    let explicit = list.rows.iter().any(|(row, _)| row.contains(path));
    let too_short = path.depth() < list.prefix && !explicit;
    match table.route_acquire([path], []) {
        Ok(route) => {
            assert!(!too_short);
            assert_eq!(route, Some(list.resolve(path)));
        }
        Err(refused) => {
            assert!(too_short);
            assert_eq!(refused, Unroutable::TooShort(path.clone()));
        }
    }
    // HELD and released paths may be above the routing depth.
    assert_eq!(
        table.route_acquire([], [path]),
        Ok(Some(list.resolve(path)))
    );
    for other in PATHS {
        let other = self::path(other);
        let together = list.namespace_of(path) == list.namespace_of(&other);
        assert_eq!(table.route_acquire([], [path, &other]).is_ok(), together);
    }
}

/// R131–R134, R137 (deleting a missing row), R138: the plan of a change, and the paths that it
/// concerns.
fn a_plan_is_right(table: &NamespaceTable, list: &Table, root: &Namespace, to: Option<Algorithm>) {
    let mut after = list.clone();
    after.set(root, to);
    let moved = |text: &&&str| {
        let path = path(text);
        list.namespace_of(&path) != after.namespace_of(&path)
    };
    let moves = PATHS.iter().filter(moved).count() > 0;
    match table.plan(root, to) {
        TableChangePlan::Unchanged => assert_eq!(list.row(root), to),
        TableChangePlan::RowOnly => {
            assert!(!moves, "{root} moves paths of {list:?}");
            assert_eq!(list.algorithm_of(root), after.algorithm_of(root));
        }
        TableChangePlan::Steps(steps) => {
            assert_eq!(steps.algorithm, after.algorithm_of(root));
            assert_eq!(
                Some(steps.clear),
                list.clear(root, to),
                "{root} of {list:?}"
            );
            assert_eq!(steps.spares_holds(), steps.clear == ClearPolicy::Waiters);
            if moves {
                assert_eq!(steps.reach, AffectedGroups::AllGroups, "{root} of {list:?}");
            }
            if steps.clear == ClearPolicy::All {
                assert_eq!(steps.reach, AffectedGroups::OwnGroup);
            }
            // The region contains exactly the paths that this row decides, before or after the
            // change.
            for text in PATHS {
                let path = path(text);
                let inside = list
                    .rows
                    .iter()
                    .all(|(row, _)| !root.encloses(row) || !row.contains(&path))
                    && root.contains(&path);
                assert_eq!(
                    steps.region.contains(&path),
                    inside,
                    "{text} in {root} of {list:?}"
                );
            }
        }
    }
}

/// R126, R127 (domains are literal names), R128: domains are literal namespaces or whole handlers.
#[test]
fn domains_are_taken_literally_or_as_whole_handlers() {
    let table = NamespaceTable::restore(
        1,
        Algorithm::RecursiveRw,
        1,
        [(name("g"), Algorithm::PointRw)],
    );
    assert_eq!(table.select(&[]), Selection::All);
    assert_eq!(
        table.domain(&name("h:/a/b")),
        Domain::Namespace(name("h:/a/b"))
    );
    assert_eq!(table.domain(&name("h")), Domain::Handler(name("h")));
    assert_eq!(table.domain(&name("g")), Domain::Namespace(name("g")));
    let twice = table.select(&[name("h"), name("g"), name("h")]);
    assert_eq!(
        twice,
        Selection::Only(vec![
            Domain::Namespace(name("g")),
            Domain::Handler(name("h"))
        ])
    );
    let no_prefix = NamespaceTable::new(0, Algorithm::RecursiveRw);
    assert_eq!(no_prefix.domain(&name("h")), Domain::Namespace(name("h")));
}

/// R140 (rows accept every namespace): any name, any algorithm.
#[test]
fn rows_take_every_algorithm() {
    let rows = NAMES.iter().zip(Algorithm::ALL.iter().cycle());
    let rows: Vec<_> = rows
        .map(|(row, algorithm)| (name(row), *algorithm))
        .collect();
    let table = NamespaceTable::restore(1, Algorithm::Semaphore, 3, rows.clone());
    for (row, algorithm) in &rows {
        assert_eq!(table.row(row), Some(*algorithm));
    }
    assert_eq!(table.row(&name("nobody")), None);
    assert_eq!(table.algorithm(&name("nobody")), Algorithm::Semaphore);
}
