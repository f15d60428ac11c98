//! Reference model of the namespace table: a list of rows, and how it resolves paths (R20–R24,
//! R133 (route changes need drained paths)).

use tenure_core::command::{ClearPolicy, Region, Route};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Algorithm;

/// Rows, the default algorithm, and the number of segments of a fallback namespace.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) rows: Vec<(Namespace, Algorithm)>,
    pub(crate) default: Algorithm,
    pub(crate) prefix: usize,
    pub(crate) version: u64,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table {
            rows: Vec::new(),
            default: Algorithm::RecursiveRw,
            prefix: 1,
            version: 0,
        }
    }

    /// R21 (longest explicit namespace wins), R22: the longest row that contains the path, else the
    /// fallback namespace.
    pub(crate) fn namespace_of(&self, path: &Path) -> Namespace {
        self.rows
            .iter()
            .map(|(name, _)| name)
            .filter(|name| name.contains(path))
            .max_by_key(|name| name.as_str().len())
            .cloned()
            .unwrap_or_else(|| Namespace::fallback(path, self.prefix))
    }

    pub(crate) fn row(&self, namespace: &Namespace) -> Option<Algorithm> {
        self.rows
            .iter()
            .find(|(name, _)| name == namespace)
            .map(|(_, algorithm)| *algorithm)
    }

    /// R24 (algorithm of a namespace).
    pub(crate) fn algorithm_of(&self, namespace: &Namespace) -> Algorithm {
        self.row(namespace).unwrap_or(self.default)
    }

    pub(crate) fn resolve(&self, path: &Path) -> Route {
        let namespace = self.namespace_of(path);
        let algorithm = self.algorithm_of(&namespace);
        Route {
            namespace,
            algorithm,
            version: self.version,
        }
    }

    /// Returns the region of a row: its paths without those of nested rows: R134 (only moving holds
    /// count).
    pub(crate) fn region(&self, root: &Namespace) -> Region {
        let mut except: Vec<Namespace> = self
            .rows
            .iter()
            .map(|(name, _)| name)
            .filter(|name| root.encloses(name))
            .cloned()
            .collect();
        except.sort();
        Region {
            root: root.clone(),
            except,
        }
    }

    /// R133 (route changes need drained paths): whether a change of the row changes the namespace
    /// of any path. Only creating or deleting a row can.
    pub(crate) fn moves_paths(&self, root: &Namespace, row: Option<Algorithm>) -> bool {
        if self.row(root).is_some() && row.is_some() {
            return false;
        }
        // A bare handler: no route changes if it is the fallback itself (no prefix segments).
        if root.is_bare() {
            // If `h:/` is a row, it already contains every path of the handler.
            let inner = Namespace::parse(&format!("{root}:/")).unwrap();
            return self.prefix != 0 && self.row(&inner).is_none();
        }
        // Without enclosing rows, a name with exactly the prefix length is the fallback already.
        let depth = Path::parse(root.as_str()).unwrap().depth();
        self.prefix == 0
            || depth != self.prefix
            || self.rows.iter().any(|(name, _)| name.encloses(root))
    }

    /// Returns what a change drops in its region; `None` if it concerns no group (R131–R138).
    pub(crate) fn clear(&self, root: &Namespace, row: Option<Algorithm>) -> Option<ClearPolicy> {
        match row {
            None if self.row(root).is_none() => None,
            None => Some(ClearPolicy::Waiters),
            Some(_) if self.moves_paths(root, row) => Some(ClearPolicy::Waiters),
            Some(algorithm) if algorithm != self.algorithm_of(root) => Some(ClearPolicy::All),
            Some(_) => None,
        }
    }

    pub(crate) fn set(&mut self, root: &Namespace, row: Option<Algorithm>) {
        self.rows.retain(|(name, _)| name != root);
        self.rows
            .extend(row.map(|algorithm| (root.clone(), algorithm)));
        self.version += 1;
    }
}
