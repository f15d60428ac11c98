//! Namespace table: maps a path to its namespace and algorithm by longest match (R20–R31).
//!
//! The system machine owns the authoritative table; every node routes by a copy. A stale copy costs
//! only a retry: a space refuses a request that was resolved by a table older than a change that
//! concerns it (R32: re-resolution after policy change).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::command::{ClearPolicy, Domain, Region, Route, Selection};
use crate::path::{Namespace, Path};
use crate::policy::Algorithm;

/// The rows set by `SetNamespacePolicy`, and the defaults for paths without a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceTable {
    rows: BTreeMap<Namespace, Algorithm>,
    version: u64,
    prefix_segments: usize,
    default: Algorithm,
}

/// Why the paths of one request have no common route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unroutable {
    /// A NEW path with fewer segments than the routing prefix and without an explicit namespace
    /// (R30: paths above the routing depth).
    TooShort(Path),
    /// Two paths of one acquire in different namespaces (R31).
    Apart {
        /// The first path and its namespace.
        first: (Path, Namespace),
        /// The first path in a different namespace, and that namespace.
        other: (Path, Namespace),
    },
}

/// The effect of setting or deleting a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChangePlan {
    /// No change: the row already has the requested value (R131 SetNamespacePolicy clears on
    /// change, R137 deleting a missing row).
    Unchanged,
    /// Only the row changes: no path gets another namespace or algorithm (R132: creating an equal
    /// row).
    RowOnly,
    /// Groups are concerned: freeze, decide, apply.
    Steps(TableChangeSteps),
}

/// A change that concerns groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChangeSteps {
    /// The paths that move or are cleared.
    pub region: Region,
    /// Which groups are concerned.
    pub reach: AffectedGroups,
    /// What happens to holds and waiters in the region.
    pub clear: ClearPolicy,
    /// The effective algorithm of the region's root afterwards.
    pub algorithm: Algorithm,
}

/// Which groups a change concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AffectedGroups {
    /// The group of the namespace itself: no path changes its namespace.
    OwnGroup,
    /// All of them: paths change their namespace.
    AllGroups,
}

impl TableChangeSteps {
    /// Returns whether a live hold in the region prevents the change (R133 route changes need
    /// drained paths, R138 deleting a row in use).
    pub fn spares_holds(&self) -> bool {
        self.clear == ClearPolicy::Waiters
    }
}

impl NamespaceTable {
    /// Creates a table without rows. Both settings are fixed for the life of a cluster (R161:
    /// settings fixed per cluster).
    pub fn new(prefix_segments: usize, default: Algorithm) -> NamespaceTable {
        NamespaceTable {
            rows: BTreeMap::new(),
            version: 0,
            prefix_segments,
            default,
        }
    }

    /// Restores a table from its parts.
    pub fn restore(
        prefix_segments: usize,
        default: Algorithm,
        version: u64,
        rows: impl IntoIterator<Item = (Namespace, Algorithm)>,
    ) -> NamespaceTable {
        NamespaceTable {
            rows: rows.into_iter().collect(),
            version,
            prefix_segments,
            default,
        }
    }

    /// Returns the version, which grows with every change of a row.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of segments of a fallback namespace (R22: fallback namespace).
    pub fn prefix_segments(&self) -> usize {
        self.prefix_segments
    }

    /// Returns the algorithm of namespaces without a row (R24: algorithm of a namespace).
    pub fn default_algorithm(&self) -> Algorithm {
        self.default
    }

    /// Returns the row of exactly this namespace (R136: GetNamespacePolicy reads one row).
    pub fn row(&self, namespace: &Namespace) -> Option<Algorithm> {
        self.rows.get(namespace).copied()
    }

    /// Iterates over all rows in byte order (E13: list namespace policies).
    pub fn rows(&self) -> impl Iterator<Item = (&Namespace, Algorithm)> {
        self.rows.iter().map(|(name, algorithm)| (name, *algorithm))
    }

    /// Iterates over the rows after a name, in byte order (E13).
    pub fn rows_after(&self, after: &Namespace) -> impl Iterator<Item = (&Namespace, Algorithm)> {
        use core::ops::Bound::{Excluded, Unbounded};
        self.rows
            .range::<Namespace, _>((Excluded(after), Unbounded))
            .map(|(name, algorithm)| (name, *algorithm))
    }

    /// Returns the algorithm in effect (R24).
    pub fn algorithm(&self, namespace: &Namespace) -> Algorithm {
        self.row(namespace).unwrap_or(self.default)
    }

    /// Returns the namespace of a path (R21 longest explicit namespace wins, R22).
    pub fn namespace_of(&self, path: &Path) -> Namespace {
        self.explicit(path)
            .cloned()
            .unwrap_or_else(|| Namespace::fallback(path, self.prefix_segments))
    }

    /// Returns the name of [`NamespaceTable::namespace_of`] without an allocation.
    pub fn name_of<'a>(&'a self, path: &'a Path) -> &'a str {
        self.explicit(path).map_or_else(
            || Namespace::fallback_name(path, self.prefix_segments),
            Namespace::as_str,
        )
    }

    /// Returns the route of a path. Queries, releases and HELD paths need no minimum depth.
    pub fn route(&self, path: &Path) -> Route {
        let namespace = self.namespace_of(path);
        Route {
            algorithm: self.algorithm(&namespace),
            version: self.version,
            namespace,
        }
    }

    /// Returns the route of an acquire: `taken` are its NEW paths, `others` its HELD paths and
    /// releases (R30, R31).
    pub fn route_acquire<'a>(
        &self,
        taken: impl IntoIterator<Item = &'a Path>,
        others: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Option<Route>, Unroutable> {
        let decisive = self.decisive(taken, others)?;
        Ok(decisive.map(|path| self.route(path)))
    }

    /// The first path of an acquire, if the namespace of all of them decides about it; see
    /// [`NamespaceTable::route_acquire`].
    pub fn decisive<'a>(
        &self,
        taken: impl IntoIterator<Item = &'a Path>,
        others: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Option<&'a Path>, Unroutable> {
        let mut first: Option<&Path> = None;
        let taken = taken.into_iter().map(|path| (path, true));
        let others = others.into_iter().map(|path| (path, false));
        for (path, is_new) in taken.chain(others) {
            let is_short =
                path.segments().take(self.prefix_segments).count() < self.prefix_segments;
            if is_new && is_short && self.explicit(path).is_none() {
                return Err(Unroutable::TooShort(path.clone()));
            }
            match first {
                None => first = Some(path),
                Some(earlier) if self.name_of(earlier) == self.name_of(path) => {}
                Some(earlier) => {
                    return Err(Unroutable::Apart {
                        first: (earlier.clone(), self.namespace_of(earlier)),
                        other: (path.clone(), self.namespace_of(path)),
                    });
                }
            }
        }
        Ok(first)
    }

    /// Returns the namespaces that a list of `domains` selects (R126–R128).
    pub fn select(&self, domains: &[Namespace]) -> Selection {
        if domains.is_empty() {
            return Selection::All;
        }
        let mut selected: Vec<Domain> = domains.iter().map(|entry| self.domain(entry)).collect();
        selected.sort();
        selected.dedup();
        Selection::Only(selected)
    }

    /// Resolves one entry of `domains` (R127 domains are literal names, R128).
    pub fn domain(&self, entry: &Namespace) -> Domain {
        let literal =
            !entry.is_bare() || self.prefix_segments == 0 || self.rows.contains_key(entry);
        if literal {
            Domain::Namespace(entry.clone())
        } else {
            Domain::Handler(entry.clone())
        }
    }

    /// Plans setting (`Some`) or deleting (`None`) a row (R131–R138). Does not change the table.
    pub fn plan(&self, namespace: &Namespace, to: Option<Algorithm>) -> TableChangePlan {
        let before = self.row(namespace);
        let after = to.unwrap_or(self.default);
        if before == to {
            return TableChangePlan::Unchanged;
        }
        // Replacing a row moves no path; creating and deleting one do unless its name is the fallback's.
        let moves = (before.is_none() || to.is_none()) && self.moves_paths(namespace);
        let effective_before = before.unwrap_or(self.default);
        let clear = match to {
            None => ClearPolicy::Waiters,
            Some(_) if moves => ClearPolicy::Waiters,
            Some(_) if effective_before == after => return TableChangePlan::RowOnly,
            Some(_) => ClearPolicy::All,
        };
        TableChangePlan::Steps(TableChangeSteps {
            region: Region {
                root: namespace.clone(),
                except: self.nested(namespace),
            },
            reach: if moves {
                AffectedGroups::AllGroups
            } else {
                AffectedGroups::OwnGroup
            },
            clear,
            algorithm: after,
        })
    }

    /// Writes a row and raises the version.
    pub(crate) fn commit(&mut self, namespace: &Namespace, to: Option<Algorithm>) -> u64 {
        match to {
            Some(algorithm) => self.rows.insert(namespace.clone(), algorithm),
            None => self.rows.remove(namespace),
        };
        self.version += 1;
        self.version
    }

    /// Raises the version without a change.
    pub(crate) fn lift(&mut self, by: u64) {
        self.version = self.version.saturating_add(by);
    }

    /// The longest explicit namespace that contains a path: `h:/` beats `h` (R21).
    fn explicit(&self, path: &Path) -> Option<&Namespace> {
        if self.rows.is_empty() {
            return None;
        }
        let mut prefix = path.as_str();
        loop {
            if let Some((name, _)) = self.rows.get_key_value(prefix) {
                return Some(name);
            }
            prefix = parent_name(prefix)?;
        }
    }

    /// Returns whether adding or removing a row of this name moves any path to another namespace
    /// (R133).
    fn moves_paths(&self, namespace: &Namespace) -> bool {
        if namespace.is_bare() {
            // Every path of the handler is in a nested `h:/`, if there is one.
            let root = alloc::format!("{namespace}:/");
            return self.prefix_segments != 0 && !self.rows.contains_key(root.as_str());
        }
        let mut above = parent_name(namespace.as_str());
        while let Some(name) = above {
            if self.rows.contains_key(name) {
                return true;
            }
            above = parent_name(name);
        }
        let depth = namespace.as_str()[namespace.handler().len() + 2..]
            .split('/')
            .filter(|segment| !segment.is_empty())
            .count();
        self.prefix_segments == 0 || depth != self.prefix_segments
    }

    /// Explicit namespaces strictly inside one.
    fn nested(&self, namespace: &Namespace) -> Vec<Namespace> {
        self.rows
            .range::<Namespace, _>(namespace..)
            .map(|(name, _)| name)
            .take_while(|name| name.as_str().starts_with(namespace.as_str()))
            .filter(|name| namespace.encloses(name))
            .cloned()
            .collect()
    }
}

/// The next shorter namespace name that contains all the given one does: `h:/a/b`, `h:/a`, `h:/`, `h`.
pub(crate) fn parent_name(name: &str) -> Option<&str> {
    let colon = name.find(':')?;
    let root = colon + 2;
    if name.len() <= root {
        return Some(&name[..colon]);
    }
    match name[root..].rfind('/') {
        Some(at) => Some(&name[..root + at]),
        None => Some(&name[..root]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn name(text: &str) -> Namespace {
        Namespace::parse(text).unwrap()
    }

    fn path(text: &str) -> Path {
        Path::parse(text).unwrap()
    }

    fn table(prefix_segments: usize, rows: &[&str]) -> NamespaceTable {
        let rows = rows.iter().map(|row| (name(row), Algorithm::PointRw));
        NamespaceTable::restore(prefix_segments, Algorithm::RecursiveRw, 7, rows)
    }

    #[test]
    fn the_longest_explicit_namespace_wins_then_the_prefix() {
        let table = table(1, &["h", "h:/a/b", "g:/"]);
        let of = |text| table.namespace_of(&path(text));
        assert_eq!(of("h:/a/b/c"), name("h:/a/b"));
        assert_eq!(of("h:/a/b"), name("h:/a/b"));
        assert_eq!(of("h:/a/bc"), name("h"));
        assert_eq!(of("g:/x/y"), name("g:/"));
        assert_eq!(of("f:/x/y"), name("f:/x"));
        assert_eq!(of("f:/"), name("f:/"));
    }

    #[test]
    fn parents_of_names_run_to_the_bare_handler() {
        assert_eq!(parent_name("h:/a/b"), Some("h:/a"));
        assert_eq!(parent_name("h:/a"), Some("h:/"));
        assert_eq!(parent_name("h:/"), Some("h"));
        assert_eq!(parent_name("h"), None);
    }

    #[test]
    fn a_row_moves_paths_unless_its_name_is_the_fallback() {
        let reach = |table: &NamespaceTable, row| match table
            .plan(&name(row), Some(Algorithm::Semaphore))
        {
            TableChangePlan::Steps(steps) => Some(steps.reach),
            TableChangePlan::Unchanged | TableChangePlan::RowOnly => None,
        };
        let one = table(1, &[]);
        assert_eq!(reach(&one, "h:/a"), Some(AffectedGroups::OwnGroup));
        assert_eq!(reach(&one, "h:/a/b"), Some(AffectedGroups::AllGroups));
        assert_eq!(reach(&one, "h"), Some(AffectedGroups::AllGroups));
        assert_eq!(reach(&one, "h:/"), Some(AffectedGroups::AllGroups));
        assert_eq!(reach(&table(0, &[]), "h"), Some(AffectedGroups::OwnGroup));
        assert_eq!(
            reach(&table(0, &[]), "h:/"),
            Some(AffectedGroups::AllGroups)
        );
        assert_eq!(
            reach(&table(1, &["h:/"]), "h"),
            Some(AffectedGroups::OwnGroup)
        );
        assert_eq!(
            reach(&table(1, &["h"]), "h:/a"),
            Some(AffectedGroups::AllGroups)
        );
    }

    #[test]
    fn plans_say_what_is_cleared() {
        let table = table(1, &["h:/a", "h:/a/n", "h:/ab"]);
        assert_eq!(
            table.plan(&name("h:/a"), Some(Algorithm::PointRw)),
            TableChangePlan::Unchanged
        );
        assert_eq!(table.plan(&name("h:/x"), None), TableChangePlan::Unchanged);
        assert_eq!(
            table.plan(&name("h:/x"), Some(Algorithm::RecursiveRw)),
            TableChangePlan::RowOnly
        );
        let TableChangePlan::Steps(steps) = table.plan(&name("h:/a"), Some(Algorithm::Semaphore))
        else {
            panic!("another algorithm concerns the group");
        };
        assert_eq!(steps.clear, ClearPolicy::All);
        assert_eq!(steps.region.except, vec![name("h:/a/n")]);
        let TableChangePlan::Steps(steps) = table.plan(&name("h:/a"), None) else {
            panic!("deleting a row concerns the group");
        };
        assert_eq!(
            (steps.clear, steps.reach),
            (ClearPolicy::Waiters, AffectedGroups::OwnGroup)
        );
    }

    #[test]
    fn acquires_have_one_namespace_and_enough_segments() {
        let table = table(1, &[]);
        let (short, a, b) = (path("h:/"), path("h:/a/x"), path("h:/b/x"));
        assert_eq!(
            table.route_acquire([&short], []),
            Err(Unroutable::TooShort(short.clone()))
        );
        assert!(table.route_acquire([], [&short]).is_ok());
        assert!(matches!(
            table.route_acquire([&a], [&b]),
            Err(Unroutable::Apart { .. })
        ));
        assert_eq!(table.route_acquire([], []), Ok(None));
    }

    #[test]
    fn domains_are_literal_or_whole_handlers() {
        let table = table(1, &["g"]);
        assert_eq!(table.domain(&name("g")), Domain::Namespace(name("g")));
        assert_eq!(table.domain(&name("h")), Domain::Handler(name("h")));
        assert_eq!(
            table.domain(&name("h:/a/b")),
            Domain::Namespace(name("h:/a/b"))
        );
        assert_eq!(table.select(&[]), Selection::All);
        let twice = table.select(&[name("h"), name("h")]);
        assert_eq!(twice, Selection::Only(vec![Domain::Handler(name("h"))]));
    }
}
