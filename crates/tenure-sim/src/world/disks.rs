//! Disks: what nodes want written is appended, synced after a while, and reported.

use tenure_node::{Input, Mark};

use super::{Event, World};
use crate::breach::Breach;
use crate::seat::{Job, Syncing};

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
        seat.disk_begins = false;
        let jobs = std::mem::take(&mut seat.jobs);
        let Some(journal) = &mut seat.journal else {
            return;
        };
        let mut syncing = Syncing {
            ticket: None,
            mark: None,
            saved: Vec::new(),
        };
        let mut failed = None;
        for job in jobs {
            let done = match &job {
                Job::Write(batch) => journal.append(batch).map(|mark| syncing.mark = Some(mark)),
                Job::Save(snapshot) => journal
                    .save(snapshot)
                    .map(|()| syncing.saved.push((snapshot.group, snapshot.index))),
            };
            if let Err(why) = done {
                failed = Some(why);
                break;
            }
        }
        if failed.is_none() && syncing.mark.is_some() {
            match journal.begin_sync() {
                Ok(ticket) => syncing.ticket = Some(ticket),
                Err(why) => failed = Some(why),
            }
        }
        let early = (self.plan.breach == Some(Breach::AnswerBeforeSync))
            .then_some(syncing.mark)
            .flatten();
        let process = seat.process;
        seat.syncing = Some(syncing);
        let delay = seat.disk_delay.1;
        if let Some(why) = failed {
            self.disk_failed(at, why);
            return;
        }
        if let Some(mark) = early {
            self.durable(at, mark);
        }
        let when = self.now + self.random.between(delay / 4, delay);
        self.at(when, Event::DiskEnds { seat: at, process });
    }

    pub(super) fn disk_ends(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        let (Some(syncing), Some(journal)) = (seat.syncing.take(), &mut seat.journal) else {
            return;
        };
        let mut cut = Vec::new();
        if let Some(ticket) = syncing.ticket {
            match journal.finish_sync(ticket) {
                Ok(groups) => cut = groups,
                Err(why) => {
                    self.disk_failed(at, why);
                    return;
                }
            }
        }
        self.counts.syncs += 1;
        self.operator.newborn.remove(&at);
        if let Some(mark) = syncing.mark {
            self.durable(at, mark);
        }
        for (group, index) in syncing.saved {
            self.input(at, Input::SnapshotSaved { group, index });
        }
        for group in cut {
            self.input(at, Input::CutLog { group });
        }
        self.disk_wanted(at);
    }

    fn durable(&mut self, at: usize, mark: Mark) {
        while self.seats[at]
            .held
            .front()
            .is_some_and(|held| held.0 <= mark)
        {
            if let Some((_, to, lane, frame)) = self.seats[at].held.pop_front() {
                self.send(at, to, lane, frame);
            }
        }
        self.input(at, Input::Persisted { mark });
    }

    fn disk_failed(&mut self, at: usize, why: String) {
        self.seats[at].syncing = None;
        self.seats[at].held.clear();
        self.seats[at].journal = None;
        self.input(at, Input::WriteFailed { why });
    }
}
