//! The runner: no lost wake-up, one step at a time, no step after the end, jobs in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex};

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

use crate::node_runner::{Drive, Driven, FrameKind, NextStep, NodeRunner, Step};
use crate::reply_channel::{self, Receiver, Sender};
use crate::sync::{Fault, WakeTime, plant};
use crate::{check, must_find};

/// What the model observed, and the mistakes that it found. Not part of the modelled memory.
#[derive(Default)]
struct Record {
    /// Number of the last stepped job of each producer.
    last: BTreeMap<usize, usize>,
    stepped: usize,
    has_ended: bool,
    mistakes: Vec<&'static str>,
}

/// How the toy node behaves.
#[derive(Clone, Copy)]
struct Toy {
    /// The deadlines that its steps return.
    due: WakeTime,
    /// Number of calls in flight that it reports is below this.
    most_calls: usize,
    /// Planted: it reports a next step although it has ended.
    forgets_its_end: bool,
    /// Planted: it takes the newest job first.
    reverses: bool,
    /// Planted: a step that needs another one at once reports a late deadline.
    hides_deadline: bool,
}

const TOY: Toy = Toy {
    due: WakeTime::Never,
    most_calls: 1,
    forgets_its_end: false,
    reverses: false,
    hides_deadline: false,
};

enum Job {
    /// Answered in its step.
    Work(usize, usize, Sender<usize>),
    /// Answered in the step after its own, which is due at once, or soon in a model with timeouts.
    Twice(usize, usize, Sender<usize>),
    /// The step panics.
    Break,
    End,
}

struct Node {
    toy: Toy,
    record: Arc<StdMutex<Record>>,
    /// Number of threads in a step.
    inside: Arc<AtomicUsize>,
    again: Vec<(usize, Sender<usize>)>,
}

impl Node {
    fn note(&self, producer: usize, number: usize) {
        let mut record = self.record.lock().unwrap();
        record.stepped += 1;
        let last = record.last.insert(producer, number);
        if last.is_some_and(|last| last > number) {
            record.mistakes.push("a later job was stepped first");
        }
    }
}

impl Step for Node {
    type Job = Job;

    fn step(&mut self, jobs: &mut Vec<Job>) -> NextStep {
        if self.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            let mut record = self.record.lock().unwrap();
            record.mistakes.push("two threads step at once");
        }
        if self.record.lock().unwrap().has_ended {
            let mut record = self.record.lock().unwrap();
            record.mistakes.push("a step after the end");
        }
        let mut wakers = Vec::new();
        for (number, reply) in self.again.drain(..) {
            wakers.extend(reply.send(number));
        }
        if self.toy.reverses {
            jobs.reverse();
        }
        let mut ends = false;
        let mut breaks = false;
        for job in jobs.drain(..) {
            match job {
                Job::Work(producer, number, reply) => {
                    self.note(producer, number);
                    wakers.extend(reply.send(number));
                }
                Job::Twice(producer, number, reply) => {
                    self.note(producer, number);
                    self.again.push((number, reply));
                }
                Job::Break => breaks = true,
                Job::End => ends = true,
            }
        }
        for waker in wakers {
            waker.wake();
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        if ends || breaks {
            self.record.lock().unwrap().has_ended = true;
        }
        if breaks {
            // Unwinds like a panic, without a message for each execution.
            std::panic::resume_unwind(Box::new("planted"));
        }
        if ends && !self.toy.forgets_its_end {
            return NextStep::Never;
        }
        let is_late = self.again.is_empty() || self.toy.hides_deadline;
        let due = match self.toy.due {
            WakeTime::Never if !is_late => WakeTime::Now,
            due => due,
        };
        let calls = thread_rng().gen_range(0..self.toy.most_calls);
        NextStep::Due { due, calls }
    }

    fn end(self) {}
}

type Runner = Arc<NodeRunner<Node>>;

struct Model {
    runner: Runner,
    record: Arc<StdMutex<Record>>,
    node_thread: thread::JoinHandle<()>,
}

fn node(toy: Toy) -> Node {
    Node {
        toy,
        record: Arc::default(),
        inside: Arc::new(AtomicUsize::new(0)),
        again: Vec::new(),
    }
}

fn start(node: Node) -> Model {
    let record = Arc::clone(&node.record);
    let next = NextStep::Due {
        due: WakeTime::Now,
        calls: 0,
    };
    let runner = Arc::new(NodeRunner::new(node, next));
    let node_thread = {
        let runner = Arc::clone(&runner);
        thread::spawn(move || runner.run())
    };
    Model {
        runner,
        record,
        node_thread,
    }
}

impl Model {
    /// Ends the node, waits for its thread and checks the record.
    fn end(self) -> usize {
        self.runner.push(Job::End);
        self.node_thread.join().unwrap();
        let record = self.record.lock().unwrap();
        assert!(record.mistakes.is_empty(), "{:?}", record.mistakes);
        record.stepped
    }
}

fn job(producer: usize, number: usize) -> (Job, Receiver<usize>) {
    let (sender, receiver) = reply_channel::pair();
    let job = if thread_rng().gen_bool(0.3) {
        Job::Twice(producer, number, sender)
    } else {
        Job::Work(producer, number, sender)
    };
    (job, receiver)
}

/// Hands a job over in one of the ways in which the threads of a node do.
fn hand_in(runner: &Runner, job: Job) {
    let drive = match thread_rng().gen_range(0..6) {
        0 => Drive::Wake,
        1 => Drive::Inline,
        2 => Drive::InlineUnlessBusy,
        3 => {
            runner.submit([job], Drive::Later);
            thread::yield_now();
            return finish(runner, runner.drive(Drive::InlineUnlessBusy));
        }
        4 => {
            runner.submit_frame(job, 1, FrameKind::Long);
            return finish(runner, runner.drive(Drive::Inline));
        }
        _ => {
            runner.submit([job], Drive::Later);
            runner.step_and_look(|_| thread::yield_now());
            // A look does not oblige the node to handle the queue.
            return finish(runner, runner.drive(Drive::Inline));
        }
    };
    finish(runner, runner.submit([job], drive));
}

/// Wakes a busy node later, as the server's coalescing task does.
fn finish(runner: &Runner, driven: Driven) {
    if driven == Driven::NotYet {
        thread::yield_now();
        runner.drive(Drive::Wake);
    }
}

/// Starts `producers` threads that hand in `jobs` jobs each. Each waits for the answer before its
/// next job if `waits`, otherwise at the end. Returns the number of answered jobs.
fn produce(model: &Model, producers: usize, jobs: usize, waits: bool) -> usize {
    let threads: Vec<_> = (0..producers)
        .map(|producer| {
            let runner = Arc::clone(&model.runner);
            thread::spawn(move || {
                let mut answers = Vec::new();
                let mut answered = 0;
                for number in 0..jobs {
                    let (job, answer) = job(producer, number);
                    hand_in(&runner, job);
                    answers.push((number, answer));
                    if waits || number + 1 == jobs {
                        for (number, answer) in answers.drain(..) {
                            let answer = block_on(answer);
                            assert!(answer.is_none_or(|answer| answer == number));
                            answered += usize::from(answer.is_some());
                        }
                    }
                }
                answered
            })
        })
        .collect();
    let answered = threads.into_iter().map(|thread| thread.join().unwrap());
    answered.sum()
}

/// All jobs are answered before the node is ended: no wake-up comes from the end.
fn everything_is_answered(toy: Toy, waits: bool) {
    let model = start(node(toy));
    assert_eq!(produce(&model, 2, 3, waits), 6);
    assert_eq!(model.end(), 6);
}

/// A lost wake-up leaves the node thread and a producer blocked, which the checker reports.
#[test]
fn no_wake_up_is_lost() {
    check(|| everything_is_answered(TOY, true));
    check(|| everything_is_answered(TOY, false));
}

/// The same with timeouts of the node thread at any moment, also while a caller steps.
#[test]
fn timeouts_do_not_lose_wake_ups() {
    let toy = Toy {
        due: WakeTime::Soon,
        ..TOY
    };
    check(move || everything_is_answered(toy, true));
}

/// The same with a node that is sometimes busy, so that callers leave their jobs to its thread.
#[test]
fn a_busy_node_is_woken() {
    let toy = Toy {
        most_calls: 16,
        ..TOY
    };
    check(move || everything_is_answered(toy, true));
}

#[test]
fn a_check_before_the_wait_is_found() {
    plant(Fault::CheckBeforeWait);
    must_find("deadlock", || everything_is_answered(TOY, true));
}

#[test]
fn a_lost_notification_is_found() {
    plant(Fault::LostNotification);
    must_find("deadlock", || everything_is_answered(TOY, true));
}

/// The node thread sleeps until a late deadline although the next step is due at once.
#[test]
fn a_deadline_that_is_not_reported_is_found() {
    let toy = Toy {
        hides_deadline: true,
        ..TOY
    };
    must_find("deadlock", move || everything_is_answered(toy, true));
}

#[test]
fn jobs_in_another_order_are_found() {
    let toy = Toy {
        reverses: true,
        ..TOY
    };
    must_find("a later job was stepped first", move || {
        everything_is_answered(toy, false);
    });
}

/// Two runners with one node: what happens if the node can be taken twice.
#[test]
fn two_threads_in_one_node_are_found() {
    must_find("two threads step at once", || {
        let first = node(TOY);
        let second = Node {
            inside: Arc::clone(&first.inside),
            ..node(TOY)
        };
        let (first, second) = (start(first), start(second));
        first.end();
        second.end();
    });
}

/// The node ends at any moment: each job is stepped or dropped, none is stepped after the end, and
/// every producer is answered.
fn ends_at_any_moment(toy: Toy, last: fn() -> Job) {
    let model = start(node(toy));
    let ender = {
        let runner = Arc::clone(&model.runner);
        thread::spawn(move || hand_in(&runner, last()))
    };
    produce(&model, 2, 2, true);
    ender.join().unwrap();
    model.end();
}

#[test]
fn no_step_follows_the_end() {
    check(|| ends_at_any_moment(TOY, || Job::End));
    let toy = Toy {
        due: WakeTime::Soon,
        most_calls: 16,
        ..TOY
    };
    check(move || ends_at_any_moment(toy, || Job::End));
}

/// A step that panics, on whichever thread, ends the node, and the thread that stepped continues.
#[test]
fn a_step_that_panics_ends_the_node() {
    check(|| ends_at_any_moment(TOY, || Job::Break));
}

#[test]
fn a_step_after_the_end_is_found() {
    let toy = Toy {
        forgets_its_end: true,
        ..TOY
    };
    must_find("a step after the end", move || {
        let model = start(node(toy));
        model.runner.push(Job::End);
        thread::spawn(|| ()).join().unwrap();
        let (job, answer) = job(0, 0);
        hand_in(&model.runner, job);
        block_on(answer);
        let record = model.record.lock().unwrap();
        assert!(record.mistakes.is_empty(), "{:?}", record.mistakes);
    });
}
