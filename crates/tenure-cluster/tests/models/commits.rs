//! The hand-over to the log thread: frames leave after the sync of their write, in order, and the
//! node knows that a write is durable before it steps the answer to such a frame.
//!
//! ```text
//!   node ──writes, frames──▶ log thread ──synced──▶ frames ──▶ peer ──answers──▶ node
//!     ▲                          └─────────notice─────────────────────────────────┘
//! ```

use std::sync::{Arc, Mutex as StdMutex};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::thread;

use crate::commit_queue::CommitQueue;
use crate::node_runner::{Drive, NextStep, NodeRunner, Step};
use crate::sync::WakeTime;
use crate::{check, must_find};

const WRITES: u64 = 4;

/// A mistake of the log thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// Frames leave before the sync.
    EarlyFrames,
    /// The notice is enqueued after the frames have left.
    LateNotice,
}

enum Job {
    /// Makes the node write something and send a frame that depends on it.
    Write,
    /// The log is durable up to this mark.
    Persisted(u64),
    /// A peer's answer to a frame.
    Answer(u64),
}

/// A write with this mark and the frames of one step.
type LogJob = (Option<u64>, Vec<(u64, u64)>);

/// What the disk has, and the mistakes that were found. Not part of the modelled memory.
#[derive(Default)]
struct Record {
    durable: u64,
    mistakes: Vec<&'static str>,
}

struct Node {
    log: Option<Sender<LogJob>>,
    record: Arc<StdMutex<Record>>,
    written: u64,
    persisted: u64,
    answered: u64,
}

impl Step for Node {
    type Job = Job;

    fn step(&mut self, jobs: &mut Vec<Job>) -> NextStep {
        for job in jobs.drain(..) {
            let mut record = self.record.lock().unwrap();
            match job {
                Job::Write => {
                    self.written += 1;
                    let frames = vec![(self.written, self.written)];
                    // Some frames depend on an earlier write and come without one.
                    let (batch, late) = if thread_rng().gen_bool(0.5) {
                        ((Some(self.written), frames), None)
                    } else {
                        ((Some(self.written), Vec::new()), Some((None, frames)))
                    };
                    drop(record);
                    let log = self.log.as_ref().unwrap();
                    log.send(batch).unwrap();
                    if let Some(late) = late {
                        log.send(late).unwrap();
                    }
                }
                Job::Persisted(mark) => {
                    if mark <= self.persisted {
                        record.mistakes.push("notices out of order");
                    }
                    self.persisted = mark;
                }
                Job::Answer(mark) => {
                    if mark > self.persisted {
                        record.mistakes.push("an answer before the notice");
                    }
                    self.answered += 1;
                }
            }
        }
        if self.answered == WRITES {
            self.log = None;
            return NextStep::Never;
        }
        NextStep::Due {
            due: WakeTime::Never,
            calls: 0,
        }
    }

    fn end(self) {}
}

/// The loop of the log thread, on a disk that is a number.
fn write(
    jobs: &Receiver<LogJob>,
    runner: &NodeRunner<Node>,
    peer: &Sender<u64>,
    record: &StdMutex<Record>,
    planted: Planted,
) {
    let mut commits = CommitQueue::new(0);
    let send = |frame: u64| {
        // The peer ends when it has all frames.
        let _ = peer.send(frame);
    };
    while let Ok(first) = jobs.recv() {
        let mut mark = None;
        let mut next = Some(first);
        while let Some((batch, frames)) = next {
            commits.hold(frames);
            match batch {
                Some(batch) => mark = Some(batch),
                None => commits.release(send),
            }
            next = jobs.try_recv().ok();
        }
        let Some(mark) = mark else { continue };
        let notice = |mark| {
            runner.submit([Job::Persisted(mark)], Drive::Later);
        };
        match planted {
            Planted::Nothing => {
                record.lock().unwrap().durable = mark;
                commits.synced(mark, notice, send);
            }
            Planted::EarlyFrames => {
                commits.synced(mark, notice, send);
                record.lock().unwrap().durable = mark;
            }
            Planted::LateNotice => {
                record.lock().unwrap().durable = mark;
                commits.synced(mark, |_| {}, send);
                notice(mark);
            }
        }
        runner.drive(Drive::Inline);
    }
}

fn frames_follow_their_writes(planted: Planted) {
    let record = Arc::new(StdMutex::new(Record::default()));
    let (log, writes) = channel();
    let (peer, frames) = channel();
    let node = Node {
        log: Some(log),
        record: Arc::clone(&record),
        written: 0,
        persisted: 0,
        answered: 0,
    };
    let next = NextStep::Due {
        due: WakeTime::Now,
        calls: 0,
    };
    let runner = Arc::new(NodeRunner::new(node, next));
    let node_thread = {
        let runner = Arc::clone(&runner);
        thread::spawn(move || runner.run())
    };
    let log_thread = {
        let (runner, record) = (Arc::clone(&runner), Arc::clone(&record));
        thread::spawn(move || write(&writes, &runner, &peer, &record, planted))
    };
    let peer_thread = {
        let (runner, record) = (Arc::clone(&runner), Arc::clone(&record));
        thread::spawn(move || {
            let mut last = 0;
            while let Ok(frame) = frames.recv() {
                let mut record = record.lock().unwrap();
                if frame != last + 1 {
                    record.mistakes.push("frames out of order");
                }
                last = frame;
                if frame > record.durable {
                    record.mistakes.push("a frame before its sync");
                }
                drop(record);
                runner.submit([Job::Answer(frame)], Drive::Inline);
            }
        })
    };
    for _ in 0..WRITES {
        runner.submit([Job::Write], Drive::InlineUnlessBusy);
    }
    node_thread.join().unwrap();
    log_thread.join().unwrap();
    peer_thread.join().unwrap();
    let record = record.lock().unwrap();
    assert!(record.mistakes.is_empty(), "{:?}", record.mistakes);
}

#[test]
fn frames_leave_after_their_sync_and_after_the_notice() {
    check(|| frames_follow_their_writes(Planted::Nothing));
}

#[test]
fn frames_before_their_sync_are_found() {
    must_find("a frame before its sync", || {
        frames_follow_their_writes(Planted::EarlyFrames);
    });
}

#[test]
fn a_notice_after_the_frames_is_found() {
    must_find("an answer before the notice", || {
        frames_follow_their_writes(Planted::LateNotice);
    });
}
