//! Totals of one run or of many runs.

use std::collections::BTreeMap;

/// Totals of one run or of many runs.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Steps of nodes.
    pub steps: u64,
    /// Frames between nodes.
    pub frames: u64,
    /// Finished syncs.
    pub syncs: u64,
    /// Snapshots taken.
    pub snapshots: u64,
    /// Leaderships that began.
    pub elections: u64,
    /// Calls of clients.
    pub asks: u64,
    /// Calls that were answered, failures included.
    pub answers: u64,
    /// Grants that clients learned of.
    pub beliefs: u64,
    /// Writes that the fenced store accepted, and writes that it refused.
    pub store_writes: (u64, u64),
    /// Nodes that stopped themselves.
    pub stops: u64,
    /// Starts that failed because the disk was damaged.
    pub refused_disks: u64,
    /// Runs that ended with a group without a majority of sound voters: only its operator can help it.
    pub operator_waits: u64,
    /// Changes of membership that were completed.
    pub memberships: u64,
    /// Strikes by kind of fault.
    pub faults: BTreeMap<&'static str, u64>,
    /// Rare events by row.
    pub rare: BTreeMap<&'static str, u64>,
    /// How often a node that restarted after a storage fault came to each verdict about its disk, by
    /// fault.
    pub verdicts: BTreeMap<(&'static str, &'static str), u64>,
    /// Number of checks that each checker made.
    pub judged: BTreeMap<&'static str, u64>,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
}

impl Counts {
    /// Adds the totals of another run.
    pub fn add(&mut self, other: &Counts) {
        self.steps += other.steps;
        self.frames += other.frames;
        self.syncs += other.syncs;
        self.snapshots += other.snapshots;
        self.elections += other.elections;
        self.asks += other.asks;
        self.answers += other.answers;
        self.beliefs += other.beliefs;
        self.store_writes.0 += other.store_writes.0;
        self.store_writes.1 += other.store_writes.1;
        self.stops += other.stops;
        self.refused_disks += other.refused_disks;
        self.operator_waits += other.operator_waits;
        self.memberships += other.memberships;
        self.virtual_ms += other.virtual_ms;
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (row, count) in &other.rare {
            *self.rare.entry(row).or_default() += count;
        }
        for (verdict, count) in &other.verdicts {
            *self.verdicts.entry(*verdict).or_default() += count;
        }
        for (checker, count) in &other.judged {
            *self.judged.entry(checker).or_default() += count;
        }
    }

    /// Returns the virtual time in hours.
    pub fn hours(&self) -> f64 {
        self.virtual_ms as f64 / 3_600_000.0
    }
}
