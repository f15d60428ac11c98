//! Policies of daemon namespaces: how their locks conflict.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::error::Error;

/// The conflict rule of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Shared locks on single paths, exclusive locks on subtrees. This is the default.
    RecursiveRw,
    /// Shared and exclusive locks on single paths.
    PointRw,
    /// Exclusive locks on subtrees, no shared locks.
    RecursiveWrite,
    /// Exclusive locks on single paths, no shared locks.
    PointWrite,
    /// Permits: up to a given number of holders per path.
    Semaphore,
}

impl Algorithm {
    /// Returns the name, such as `recursive_rw`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::RecursiveRw => "recursive_rw",
            Algorithm::PointRw => "point_rw",
            Algorithm::RecursiveWrite => "recursive_write",
            Algorithm::PointWrite => "point_write",
            Algorithm::Semaphore => "semaphore",
        }
    }

    const ALL: [Algorithm; 5] = [
        Algorithm::RecursiveRw,
        Algorithm::PointRw,
        Algorithm::RecursiveWrite,
        Algorithm::PointWrite,
        Algorithm::Semaphore,
    ];
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Algorithm, Error> {
        let word = text.to_lowercase().replace(['-', ' '], "_");
        let found = Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == word);
        found.ok_or_else(|| {
            let words = Algorithm::ALL.map(Algorithm::name).join(", ");
            Error::input(text, format!("is no algorithm: write one of {words}"))
        })
    }
}

/// The policy of one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The namespace.
    pub namespace: String,
    /// Its conflict rule.
    pub algorithm: Algorithm,
    /// Whether it was set for this namespace. Otherwise it is the default of the cluster.
    pub explicit: bool,
}
