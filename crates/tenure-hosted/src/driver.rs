//! What an engine must offer: five operations, each atomic and linearizable.
//!
//! | operation | promise |
//! |---|---|
//! | [`append`](LogDriver::append) | the entry is at exactly this index, or it never will be; beat rows change in the same step |
//! | [`read`](LogDriver::read) | everything that was appended before the call began |
//! | [`beat`](LogDriver::beat) | rows that are there get a version that no row ever had; rows that are not there stay absent |
//! | [`watch`](LogDriver::watch) | a hint; it may come late or never |
//! | [`trim`](LogDriver::trim) | the snapshot is durable before an entry goes |
//!
//! A driver is for one log. No operation uses a clock.

use std::future::Future;
use std::time::Duration;

use crate::entry::LeaseKey;

/// The version of a beat row. `None`: there is no row.
pub type Version = Option<u64>;

/// An entry for a certain place in the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Append {
    /// The place. The log must end before it.
    pub index: u64,
    /// The id in the entry.
    pub id: u128,
    /// The encoded entry.
    pub entry: Vec<u8>,
    /// The entry is appended only if these rows have these versions; then they are removed.
    pub unchanged: Vec<(LeaseKey, Version)>,
    /// These rows are created, or get a new version.
    pub raise: Vec<LeaseKey>,
    /// These rows are removed, whatever their version is.
    pub remove: Vec<LeaseKey>,
}

/// The result of an append.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Appended {
    /// The entry is in the log, at its place.
    Done,
    /// Another entry has the place.
    Taken,
    /// A row has another version.
    Changed,
}

/// The log from some index on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tail {
    /// The newest snapshot, if the entry at the index is gone.
    pub snapshot: Option<Vec<u8>>,
    /// Entries without a gap, in order: behind the snapshot, or from the index on.
    pub entries: Vec<(u64, Vec<u8>)>,
    /// The versions of the rows that were asked for, in that order.
    pub versions: Vec<Version>,
}

/// Why an operation of the engine failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The engine did not answer. The operation may have happened.
    #[error("{0}")]
    Unanswered(String),
    /// The engine refused the operation, and would refuse it again. Nothing has happened.
    #[error("{0}")]
    Refused(String),
    /// The engine has no tables for Tenure yet.
    #[error("{0}")]
    Unprepared(String),
}

/// One log of an engine.
pub trait LogDriver: Send + Sync + 'static {
    /// Appends an entry.
    fn append(&self, append: &Append)
    -> impl Future<Output = Result<Appended, DriverError>> + Send;

    /// Reads the log from an index on, and the versions of rows.
    fn read(
        &self,
        from: u64,
        rows: &[LeaseKey],
    ) -> impl Future<Output = Result<Tail, DriverError>> + Send;

    /// Raises the versions of rows that are there. Returns which ones were, in their order: a beat
    /// counts only for these.
    fn beat(
        &self,
        rows: &[LeaseKey],
    ) -> impl Future<Output = Result<Vec<bool>, DriverError>> + Send;

    /// Waits until something may have been appended, at most so long.
    fn watch(&self, at_most: Duration) -> impl Future<Output = ()> + Send;

    /// Stores a snapshot, then removes entries up to its index.
    fn trim(
        &self,
        index: u64,
        snapshot: &[u8],
    ) -> impl Future<Output = Result<(), DriverError>> + Send;

    /// Describes the engine, for people.
    fn describe(&self) -> String;
}
