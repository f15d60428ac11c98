//! Disks of nodes: write batches are appended, synced after a delay, and reported as durable.
//!
//! ```text
//!   disk_job ─▶ (delay) ─▶ disk_begins: append all, start a sync ─▶ (delay) ─▶ disk_ends: report
//!      ▲                                                                              │
//!      └────────────────────────── more jobs have queued up ◀─────────────────────────┘
//! ```
//!
//! Jobs that arrive during a sync wait for the next one (group commit). A hung disk postpones both
//! events.

use tenure_node::{Input, Mark};

use super::{SimEvent, Simulator};
use crate::contract_violation::ContractViolation;
use crate::sim_node::{DiskJob, MidStep, RunningSync};

impl Simulator {
    pub(super) fn disk_job(&mut self, at: usize, job: DiskJob) {
        self.node_slots[at].jobs.push_back(job);
        self.disk_wanted(at);
    }

    /// Schedules the next write, unless one is scheduled or a sync runs.
    fn disk_wanted(&mut self, at: usize) {
        let node_slot = &mut self.node_slots[at];
        if node_slot.syncing.is_some() || node_slot.disk_begins || node_slot.jobs.is_empty() {
            return;
        }
        node_slot.disk_begins = true;
        let process = node_slot.process;
        let when = self.now + self.random.between(10, node_slot.disk_delay.0);
        self.at(
            when,
            SimEvent::DiskBegins {
                node_slot: at,
                process,
            },
        );
    }

    /// Executes all queued jobs and starts one sync for them.
    pub(super) fn disk_begins(&mut self, at: usize) {
        let node_slot = &mut self.node_slots[at];
        if node_slot.syncing.is_some() || !node_slot.disk_begins {
            return;
        }
        if self.now < node_slot.hangs_until {
            let (when, process) = (node_slot.hangs_until, node_slot.process);
            self.at(
                when,
                SimEvent::DiskBegins {
                    node_slot: at,
                    process,
                },
            );
            return;
        }
        node_slot.disk_begins = false;
        let jobs = std::mem::take(&mut node_slot.jobs);
        let Some(sim_log) = &mut node_slot.sim_log else {
            return;
        };
        let (mut saved, mut last) = (Vec::new(), None);
        // The first error skips all later jobs: a log that failed takes no more writes.
        let mut done = Ok(());
        for job in &jobs {
            done = done.and_then(|()| match job {
                DiskJob::Write(batch) => {
                    last = Some(batch.mark);
                    sim_log.append(batch)
                }
                DiskJob::Save(snapshot) => {
                    saved.push((snapshot.group, snapshot.index));
                    sim_log.save(snapshot)
                }
            });
        }
        let sync = match done.and_then(|()| sim_log.begin_sync()) {
            Ok(sync) => sync,
            Err(why) => {
                self.disk_failed(at, why.to_string());
                return;
            }
        };
        let process = node_slot.process;
        node_slot.syncing = Some(RunningSync { sync, saved });
        let delay = node_slot.disk_delay.1;
        if self.plan.contract_violation == Some(ContractViolation::AnswerBeforeSync)
            && let Some(mark) = last
        {
            self.durable(at, mark);
        }
        let when = self.now + self.random.between(delay / 4, delay);
        self.at(
            when,
            SimEvent::DiskEnds {
                node_slot: at,
                process,
            },
        );
    }

    /// Ends the running sync: reports the durable mark and the saved snapshots, and asks groups
    /// that keep the oldest log file to truncate.
    pub(super) fn disk_ends(&mut self, at: usize) {
        let node_slot = &mut self.node_slots[at];
        if self.now < node_slot.hangs_until {
            let (when, process) = (node_slot.hangs_until, node_slot.process);
            self.at(
                when,
                SimEvent::DiskEnds {
                    node_slot: at,
                    process,
                },
            );
            return;
        }
        let (Some(syncing), Some(sim_log)) = (node_slot.syncing.take(), &mut node_slot.sim_log)
        else {
            return;
        };
        let ended = match sim_log.finish_sync(syncing.sync) {
            Ok(ended) => ended,
            Err(why) => {
                self.disk_failed(at, why.to_string());
                return;
            }
        };
        self.counts.syncs += 1;
        self.operator.newborn.remove(&at);
        if let Some(mark) = ended.mark {
            self.durable(at, mark);
        }
        for (group, index) in syncing.saved {
            self.input(at, Input::SnapshotSaved { group, index });
        }
        for group in ended.held_back {
            self.input(at, Input::CutLog { group });
        }
        self.disk_wanted(at);
    }

    /// Ends a hang now, instead of at its scheduled time.
    pub(super) fn disk_recovers(&mut self, at: usize) {
        let node_slot = &mut self.node_slots[at];
        if self.now >= std::mem::take(&mut node_slot.hangs_until) {
            return;
        }
        let process = node_slot.process;
        let event = if node_slot.syncing.is_some() {
            SimEvent::DiskEnds {
                node_slot: at,
                process,
            }
        } else {
            SimEvent::DiskBegins {
                node_slot: at,
                process,
            }
        };
        self.at(self.now, event);
    }

    /// Reports a mark as durable: first the frames that waited for it leave, then the node learns
    /// of it. The process may die before or after the frames.
    fn durable(&mut self, at: usize, mark: Mark) {
        self.checkers
            .durable(self.now, self.node_slots[at].member, mark);
        if self.dies_at(at, MidStep::Synced) {
            return;
        }
        while self.node_slots[at]
            .held
            .front()
            .is_some_and(|held| held.0 <= mark)
        {
            if let Some((_, to, channel, frame)) = self.node_slots[at].held.pop_front() {
                self.send(at, to, channel, frame);
            }
        }
        if !self.dies_at(at, MidStep::Said) {
            self.input(at, Input::Persisted { mark });
        }
    }

    /// Reports a failed write. The node stops; the frames that waited are dropped, because their
    /// data may be lost.
    fn disk_failed(&mut self, at: usize, why: String) {
        self.node_slots[at].syncing = None;
        self.node_slots[at].held.clear();
        self.node_slots[at].sim_log = None;
        self.input(at, Input::WriteFailed { why });
    }
}
