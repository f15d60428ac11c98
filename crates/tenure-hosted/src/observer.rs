//! Which leases have ended: a pure judgement on beat rows.
//!
//! A holder counts its lease from the *sending* of a beat. An observer counts from the moment *after*
//! it read the row for the first time with that version. So it starts later than the holder, on a
//! clock of its own; no two clocks are compared. When a whole ttl has passed, it appends an expiry on
//! the condition that the row is still unchanged: a beat and an expiry are ordered by the engine.

use std::collections::HashMap;

use tenure_core::command::Expire;

use crate::driver::Version;
use crate::entry::LeaseKey;
use crate::replica::LogCopy;

/// What an observer has seen of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observer {
    seen: HashMap<LeaseKey, Seen>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    version: Version,
    /// When the answer of the first read with this version had arrived, in ms of the own clock.
    since: u64,
}

/// A lease that has ended by this observer's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The row.
    pub key: LeaseKey,
    /// The version that it had for a whole ttl.
    pub version: Version,
    /// The command that ends the lease.
    pub expire: Expire,
}

impl Observer {
    /// Takes note of rows. `read` is a time after the answer of the read has arrived. Rows that are
    /// not among them are forgotten.
    pub fn see(&mut self, rows: &[LeaseKey], versions: &[Version], read: u64) {
        let mut seen = HashMap::with_capacity(rows.len());
        for (key, version) in rows.iter().zip(versions) {
            let since = match self.seen.get(key) {
                Some(before) if before.version == *version => before.since,
                _ => read,
            };
            let now = Seen {
                version: *version,
                since,
            };
            seen.insert(key.clone(), now);
        }
        self.seen = seen;
    }

    /// Returns the leases whose rows have not changed for their whole ttl.
    pub fn ended(&self, replica: &LogCopy, now: u64) -> Vec<Ended> {
        let mut ended: Vec<Ended> = self
            .seen
            .iter()
            .filter_map(|(key, seen)| {
                let lease = replica.space().lease(&key.namespace, &key.owner)?;
                let is_over = now.saturating_sub(seen.since) >= lease.ttl.millis();
                is_over.then(|| Ended {
                    key: key.clone(),
                    version: seen.version,
                    expire: Expire {
                        namespace: key.namespace.clone(),
                        owner: key.owner.clone(),
                        epoch: lease.epoch,
                    },
                })
            })
            .collect();
        ended.sort_by(|one, two| one.key.cmp(&two.key));
        ended
    }

    /// Returns the time that a lease has left at least, in ms; `None` if the row was never seen.
    pub fn left(&self, replica: &LogCopy, key: &LeaseKey, now: u64) -> Option<u64> {
        let seen = self.seen.get(key)?;
        let lease = replica.space().lease(&key.namespace, &key.owner)?;
        Some((seen.since + lease.ttl.millis()).saturating_sub(now))
    }

    /// Returns the time of the next end, if there is one.
    pub fn next_end(&self, replica: &LogCopy) -> Option<u64> {
        let ends = self.seen.iter().filter_map(|(key, seen)| {
            let lease = replica.space().lease(&key.namespace, &key.owner)?;
            Some(seen.since + lease.ttl.millis())
        });
        ends.min()
    }
}
