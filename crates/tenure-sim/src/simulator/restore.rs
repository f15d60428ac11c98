//! Backup and restore: the operator saves the groups one after the other, loses the cluster, and starts
//! a new one from what was saved.
//!
//! The states are of different moments, and from any replica, also one that lags: so it is after
//! `tenure cluster recover` from a single node too. A change that moves paths between groups may be
//! half finished in them.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_node::GroupId;

use super::{SimEvent, Simulator};
use crate::check::Violation;
use crate::load::{PATHS, path};
use crate::sim_log;
use crate::time::{MILLISECOND, SECOND};
use crate::trace::{Printing, Trace};

/// By how much a restored cluster raises what it gives out: more than the old one has.
const LIFT: u64 = 1 << 40;

/// What the operator has saved.
#[derive(Debug, Default)]
pub(crate) struct Backup {
    states: BTreeMap<GroupId, (u64, Bytes)>,
    /// In a restored cluster: the highest fence that the old one has granted, by path.
    highest: BTreeMap<&'static str, u64>,
}

impl Simulator {
    /// Schedules the backup of every group, in the last third of the fault phase.
    pub(super) fn schedule_backup(&mut self) {
        if !self.plan.fault_profile.is_restored() || self.plan.restored {
            return;
        }
        let third = self.plan.fault_phase / 3;
        let begin = 2 * third + self.random.below(third.saturating_sub(5 * SECOND).max(1));
        for group in (0..=self.plan.cluster.group_count).map(GroupId) {
            // Within 3 s, so that a policy change can begin or end in between.
            let at = begin + self.random.below(3_000) * MILLISECOND;
            self.at(at, SimEvent::Backup(group));
        }
    }

    /// Saves the state of a group from a random replica. Without one it tries again a little later.
    pub(super) fn back_up(&mut self, group: GroupId) {
        let first = self.random.index(self.node_slots.len());
        let slots = (0..self.node_slots.len()).map(|step| (first + step) % self.node_slots.len());
        let mut nodes = slots.filter_map(|at| self.node_slots[at].node.as_ref());
        match nodes.find_map(|node| node.state_of(group)) {
            Some(state) => {
                self.backup.states.insert(group, state);
            }
            None => self.at(self.now + SECOND, SimEvent::Backup(group)),
        }
    }

    /// Runs the cluster that is restored from the backup, after this one. Nothing is restored if a
    /// group was not saved.
    pub(crate) fn restore(&mut self) -> Result<(), Violation> {
        let groups = self.plan.cluster.group_count as usize + 1;
        if self.backup.states.len() < groups {
            return Ok(());
        }
        let random = self.random.split();
        let trace = std::mem::replace(&mut self.trace, Trace::new(Printing::Off));
        let mut restored = Simulator::new(self.plan.restored(), random, trace);
        let voter = restored.node_slots[0].member;
        let disk = &restored.node_slots[0].disk;
        let written = sim_log::write_restored(disk, voter, &self.backup.states, LIFT);
        if let Err(what) = written {
            return Err(Violation {
                checker: "restored",
                at: self.now,
                what,
            });
        }
        // The process that wrote the disk has ended.
        restored.node_slots[0].disk = restored.node_slots[0].disk.kill();
        for text in PATHS {
            let highest = self.checkers.highest(&path(text));
            restored.backup.highest.insert(text, highest);
        }
        let result = restored.live_restored();
        self.trace = restored.trace;
        self.counts.add(&restored.counts);
        for (checker, count) in restored.checkers.judged() {
            self.checkers.count_more(checker, count);
        }
        self.now += restored.now;
        result
    }

    /// Returns the highest fence that the cluster before this one has granted for a path.
    pub(crate) fn highest_before(&self, text: &str) -> u64 {
        self.backup.highest.get(text).copied().unwrap_or(0)
    }
}
