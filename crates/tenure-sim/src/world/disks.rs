//! Disks: what nodes want written is appended, synced after a while, and reported.

use tenure_node::{Input, Mark};

use super::{Event, World};
use crate::breach::Breach;
use crate::seat::{Job, Middle, Syncing};

impl World {
    pub(super) fn disk_job(&mut self, at: usize, job: Job) {
        self.seats[at].jobs.push_back(job);
        self.disk_wanted(at);
    }

    fn disk_wanted(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        if seat.syncing.is_some() || seat.disk_begins || seat.jobs.is_empty() {
            return;
        }
        seat.disk_begins = true;
        let process = seat.process;
        let when = self.now + self.random.between(10, seat.disk_delay.0);
        self.at(when, Event::DiskBegins { seat: at, process });
    }

    pub(super) fn disk_begins(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        if seat.syncing.is_some() || !seat.disk_begins {
            return;
        }
        if self.now < seat.hangs_until {
            let (when, process) = (seat.hangs_until, seat.process);
            self.at(when, Event::DiskBegins { seat: at, process });
            return;
        }
        seat.disk_begins = false;
        let jobs = std::mem::take(&mut seat.jobs);
        let Some(journal) = &mut seat.journal else {
            return;
        };
        let (mut saved, mut last) = (Vec::new(), None);
        let mut done = Ok(());
        for job in &jobs {
            done = done.and_then(|()| match job {
                Job::Write(batch) => {
                    last = Some(batch.mark);
                    journal.append(batch)
                }
                Job::Save(snapshot) => {
                    saved.push((snapshot.group, snapshot.index));
                    journal.save(snapshot)
                }
            });
        }
        let sync = match done.and_then(|()| journal.begin_sync()) {
            Ok(sync) => sync,
            Err(why) => {
                self.disk_failed(at, why.to_string());
                return;
            }
        };
        let process = seat.process;
        seat.syncing = Some(Syncing { sync, saved });
        let delay = seat.disk_delay.1;
        if self.plan.breach == Some(Breach::AnswerBeforeSync)
            && let Some(mark) = last
        {
            self.durable(at, mark);
        }
        let when = self.now + self.random.between(delay / 4, delay);
        self.at(when, Event::DiskEnds { seat: at, process });
    }

    pub(super) fn disk_ends(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        if self.now < seat.hangs_until {
            let (when, process) = (seat.hangs_until, seat.process);
            self.at(when, Event::DiskEnds { seat: at, process });
            return;
        }
        let (Some(syncing), Some(journal)) = (seat.syncing.take(), &mut seat.journal) else {
            return;
        };
        let ended = match journal.finish_sync(syncing.sync) {
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

    /// A disk that hung goes on at once.
    pub(super) fn disk_recovers(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        if self.now >= std::mem::take(&mut seat.hangs_until) {
            return;
        }
        let process = seat.process;
        let event = if seat.syncing.is_some() {
            Event::DiskEnds { seat: at, process }
        } else {
            Event::DiskBegins { seat: at, process }
        };
        self.at(self.now, event);
    }

    fn durable(&mut self, at: usize, mark: Mark) {
        self.judges.durable(self.now, self.seats[at].member, mark);
        if self.dies_at(at, Middle::Synced) {
            return;
        }
        while self.seats[at]
            .held
            .front()
            .is_some_and(|held| held.0 <= mark)
        {
            if let Some((_, to, channel, frame)) = self.seats[at].held.pop_front() {
                self.send(at, to, channel, frame);
            }
        }
        if !self.dies_at(at, Middle::Said) {
            self.input(at, Input::Persisted { mark });
        }
    }

    fn disk_failed(&mut self, at: usize, why: String) {
        self.seats[at].syncing = None;
        self.seats[at].held.clear();
        self.seats[at].journal = None;
        self.input(at, Input::WriteFailed { why });
    }
}
