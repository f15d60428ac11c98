//! Policies of the daemon's namespaces: how locks conflict there.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::error::Error;

/// How locks of a namespace conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Shared points, exclusive subtrees. The usual one.
    RecursiveRw,
    /// Shared points, exclusive points.
    PointRw,
    /// Exclusive subtrees only.
    RecursiveWrite,
    /// Exclusive points only.
    PointWrite,
    /// Permits: up to a number of holders of one path.
    Semaphore,
}

impl Algorithm {
    /// The word for it.
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
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// Whether somebody set it; otherwise it is the cluster's default.
    pub explicit: bool,
}
