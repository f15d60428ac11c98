//! A log in memory: what the driver of an engine must do, as plain code. For models and tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::driver::{Append, Appended, DriverError, LogDriver, Tail, Version};
use crate::entry::LeaseKey;

/// The contents of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryLog {
    head: u64,
    entries: BTreeMap<u64, Vec<u8>>,
    snapshot: Option<(u64, Vec<u8>)>,
    rows: BTreeMap<LeaseKey, u64>,
    /// The last version given to a row. It only grows, so no version returns.
    last_version: u64,
}

impl MemoryLog {
    /// See [`LogDriver::append`].
    pub fn append(&mut self, append: &Append) -> Appended {
        if append.index != self.head + 1 {
            return Appended::Taken;
        }
        let is_unchanged =
            |(key, version): &(LeaseKey, Version)| self.rows.get(key).copied() == *version;
        if !append.unchanged.iter().all(is_unchanged) {
            return Appended::Changed;
        }
        self.head = append.index;
        self.entries.insert(append.index, append.entry.clone());
        let ended = append.unchanged.iter().map(|(key, _)| key);
        for key in ended.chain(&append.remove) {
            self.rows.remove(key);
        }
        for key in &append.raise {
            self.last_version += 1;
            self.rows.insert(key.clone(), self.last_version);
        }
        Appended::Done
    }

    /// See [`LogDriver::read`].
    pub fn read(&self, from: u64, rows: &[LeaseKey]) -> Tail {
        let (from, snapshot) = match &self.snapshot {
            Some((at, snapshot)) if !self.entries.contains_key(&from) && *at >= from => {
                (at + 1, Some(snapshot.clone()))
            }
            _ => (from, None),
        };
        let entries = self.entries.range(from..);
        Tail {
            snapshot,
            entries: entries.map(|(at, entry)| (*at, entry.clone())).collect(),
            versions: rows.iter().map(|key| self.rows.get(key).copied()).collect(),
        }
    }

    /// See [`LogDriver::beat`].
    pub fn beat(&mut self, rows: &[LeaseKey]) -> Vec<bool> {
        let mut raise = |key| match self.rows.get_mut(key) {
            Some(version) => {
                self.last_version += 1;
                *version = self.last_version;
                true
            }
            None => false,
        };
        rows.iter().map(&mut raise).collect()
    }

    /// See [`LogDriver::trim`].
    pub fn trim(&mut self, index: u64, snapshot: &[u8]) {
        if self.snapshot.as_ref().is_none_or(|(at, _)| *at < index) {
            self.snapshot = Some((index, snapshot.to_vec()));
            self.entries.retain(|at, _| *at > index);
        }
    }
}

/// A shared log in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryDriver(Arc<Mutex<MemoryLog>>);

impl MemoryDriver {
    fn log(&self) -> MutexGuard<'_, MemoryLog> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogDriver for MemoryDriver {
    async fn append(&self, append: &Append) -> Result<Appended, DriverError> {
        Ok(self.log().append(append))
    }

    async fn read(&self, from: u64, rows: &[LeaseKey]) -> Result<Tail, DriverError> {
        Ok(self.log().read(from, rows))
    }

    async fn beat(&self, rows: &[LeaseKey]) -> Result<Vec<bool>, DriverError> {
        Ok(self.log().beat(rows))
    }

    async fn watch(&self, at_most: Duration) {
        #[cfg(feature = "service")]
        tokio::time::sleep(at_most.min(Duration::from_millis(5))).await;
        #[cfg(not(feature = "service"))]
        let _ = at_most;
    }

    async fn trim(&self, index: u64, snapshot: &[u8]) -> Result<(), DriverError> {
        self.log().trim(index, snapshot);
        Ok(())
    }

    fn describe(&self) -> String {
        "a log in memory".to_owned()
    }
}
