//! Subtree locks for a virtual file system.
//!
//! The paths are rows of a table. A directory is moved in many small steps, and no other client may
//! see a part of them.
//!
//! ```sh
//! TENURE_URL=127.0.0.1:50051 virtual_files
//! ```
//!
//! On the daemon, an exclusive lock covers a path and everything below it, a shared lock only the
//! path, and a shared tree lock everything below it. Work in other parts of the tree is not
//! blocked.

#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::{Error, Tenure};

/// The table. Only single rows are updated atomically.
type Rows = BTreeMap<String, String>;

#[derive(Clone)]
struct Files {
    tenure: Tenure,
    rows: Arc<Mutex<Rows>>,
}

impl Files {
    fn rows<T>(&self, step: impl FnOnce(&mut Rows) -> T) -> T {
        step(&mut self.rows.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes one file. Other files of the directory are not blocked.
    async fn write(&self, path: &str, text: &str) -> Result<(), Error> {
        let lock = self.tenure.lock(place(path))?.no_wait();
        lock.with(async |_| {
            self.rows(|rows| rows.insert(path.to_owned(), text.to_owned()));
            Ok(())
        })
        .await
    }

    /// Returns all names below a directory, as of one moment.
    async fn list(&self, directory: &str) -> Result<Vec<String>, Error> {
        let lock = self.tenure.lock(place(directory))?.shared_tree();
        lock.with(async |_| Ok(self.below(directory).await)).await
    }

    /// Moves a directory with its contents.
    ///
    /// One lock on the nearest common ancestor covers source and target. With a single lock, two
    /// moves cannot deadlock.
    async fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let lock = self.tenure.lock(place(above(from, to)))?;
        lock.with(async |_| {
            for old in self.below(from).await {
                let new = format!("{to}{}", old.strip_prefix(from).unwrap_or(&old));
                self.rows(|rows| rows.remove(&old).map(|text| rows.insert(new, text)));
                query().await;
            }
            Ok(())
        })
        .await
    }

    /// Lists the names step by step; each step is a query.
    async fn below(&self, directory: &str) -> Vec<String> {
        let mut at = format!("{directory}/");
        let mut names = Vec::new();
        while let Some(next) = self.rows(|rows| after(rows, &at)) {
            if !next.starts_with(&format!("{directory}/")) {
                break;
            }
            at = next.clone();
            names.push(next);
            query().await;
        }
        names
    }
}

/// Simulates the latency of a database query.
async fn query() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Returns the next name in order.
fn after(rows: &Rows, name: &str) -> Option<String> {
    let beyond = (Bound::Excluded(name), Bound::Unbounded);
    rows.range::<str, _>(beyond)
        .next()
        .map(|(next, _)| next.clone())
}

/// Returns the nearest common ancestor.
fn above<'a>(one: &'a str, other: &str) -> &'a str {
    let parents = one.rmatch_indices('/').map(|(end, _)| &one[..end]);
    let mut shared = parents.filter(|parent| other.starts_with(&format!("{parent}/")));
    shared.next().unwrap_or("")
}

/// Returns the lock address of a path.
fn place(path: &str) -> String {
    format!("files:/home{path}")
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let (tenure, rows) = (Tenure::from_env()?, Arc::default());
    let files = Files { tenure, rows };
    for number in 0..20 {
        files
            .write(&format!("/docs/2025/{number}.txt"), "…")
            .await?;
    }
    let mover = files.clone();
    let moves = tokio::spawn(async move {
        for _ in 0..5 {
            mover.rename("/docs/2025", "/docs/archive").await?;
            mover.rename("/docs/archive", "/docs/2025").await?;
        }
        Ok::<_, Error>(())
    });
    let (mut lists, mut torn) = (0, 0);
    while !moves.is_finished() {
        let names = files.list("/docs").await?;
        lists += 1;
        torn += u32::from(names.len() != 20);
        // Not below `/docs`, so this does not wait.
        files.write("/pictures/cat.png", "…").await?;
    }
    moves.await.expect("no move panics")?;
    println!("{lists} lists during 10 moves, {torn} of them torn");
    Ok(())
}
