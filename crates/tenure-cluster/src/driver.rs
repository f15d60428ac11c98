//! Driver of the node state machine: one turn takes the queued jobs, steps the node once and
//! carries out the outputs.
//!
//! ```text
//!   queue ──all jobs──▶ Node::step ──▶ writes ──▶ log thread ──persisted──▶ queue
//!                                  ├─▶ frames ──▶ frame writers; some after the log thread's sync
//!                                  ├─▶ answers ──▶ callers
//!                                  ├─▶ events, changes ──▶ streams
//!                                  └─▶ snapshots ──▶ background thread ──saved──▶ queue
//! ```
//!
//! The node itself reads no clock: each step gets one reading from [`MachineClock`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rustc_hash::FxBuildHasher;
use tenure_core::auth::AuthTable;
use tenure_node::{
    Channel, DurableAfter, GroupId, Input, Mark, Node, NodeId, Output, RequestId, Role, StepTime,
    WriteBatch,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use crate::background::BackgroundJob;
use crate::handle::StopReason;
use crate::job::{Job, LedState, Reply, ReplyTo};
use crate::log_writer::{HeldFrame, LogJob, MetaRecord};
use crate::metrics::{LogGauges, NodeMetrics};
use crate::node_runner::{NextStep, NodeRunner, Step};
use crate::peers::{FrameWriter, OutboundMessage, RegistryEvent};
use crate::rebalancer::Rebalancer;
use crate::stream::{StreamEnd, StreamFull, StreamSender};

/// Interval between reports of suspect groups without a leader. A group that can elect a leader has
/// one within seconds.
pub(crate) const SUSPECTS_TOLD_EVERY_MS: u64 = 30_000;

/// Longest pause between two steps: the lease protocol requires at least two steps a second
/// (leases.md).
const LONGEST_SLEEP_MS: u64 = 500;

/// Interval between searches for calls whose callers no longer wait.
const CANCEL_EVERY_MS: u64 = 500;

/// Longest time for which a stopping node hands over leaderships (R169 (shutdown within 10 s)).
const HAND_OVER: Duration = Duration::from_secs(3);

/// Maximum bytes of frames in one turn. A single longer frame is still taken, alone.
const BYTES_A_TURN: usize = 16 * 1024 * 1024;

/// Clocks of this machine.
#[derive(Clone, Copy)]
pub(crate) struct MachineClock {
    start: Instant,
}

impl MachineClock {
    pub(crate) fn new() -> MachineClock {
        MachineClock {
            start: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> StepTime {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        StepTime {
            monotonic_ms: u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX),
            wall_ms: u64::try_from(wall.as_millis()).unwrap_or(0),
        }
    }
}

/// The runner of a real node.
pub(crate) type Runner = NodeRunner<Driver>;

pub(crate) struct Driver {
    pub(crate) node: Node,
    pub(crate) clock: MachineClock,
    pub(crate) stopped: watch::Sender<Option<StopReason>>,
    /// The access control table that this node judges by.
    pub(crate) auth: watch::Sender<Option<Arc<AuthTable>>>,
    pub(crate) log_writer: Sender<LogJob>,
    pub(crate) gauges: Arc<LogGauges>,
    pub(crate) background: Sender<BackgroundJob>,
    // The keys are our own counters, so a client cannot cause collisions: a fast hash is safe.
    pub(crate) replies: HashMap<u64, ReplyTo, FxBuildHasher>,
    pub(crate) listeners: HashMap<u64, StreamSender, FxBuildHasher>,
    pub(crate) next_request: u64,
    /// When the next search for abandoned calls is due.
    pub(crate) next_cancel_ms: u64,
    /// Frame writer of each connected peer and channel.
    pub(crate) frame_writers: HashMap<(NodeId, Channel), FrameWriter>,
    /// Moves groups between nodes. `None`: the node runs alone.
    pub(crate) rebalancer: Option<Rebalancer>,
    pub(crate) registry: Option<UnboundedSender<RegistryEvent>>,
    /// Deadline of a stopping node, which ends then even if it still leads groups.
    pub(crate) stop_at_ms: Option<u64>,
    /// Tasks to wake at the end of the turn, when all results of the turn are in place. A task with
    /// several results is then woken once.
    pub(crate) wakers: Vec<Waker>,
    /// Write batch for the log thread. It is kept until the frames that need no sync have been
    /// sent.
    pub(crate) batch: Option<WriteBatch>,
    pub(crate) held: Vec<(Mark, HeldFrame)>,
    /// First inputs of the next step.
    pub(crate) inputs: Vec<Input>,
    /// Number of groups that the log lists as suspect: see [`Driver::note_suspects`].
    pub(crate) suspects: usize,
    /// When the next report about suspect groups is due.
    pub(crate) suspects_told_ms: u64,
    /// Why the node has ended. `Some`: no further turns.
    pub(crate) over: Option<String>,
}

impl Step for Driver {
    type Job = Job;

    /// Takes the queued jobs, steps the node and carries out its outputs.
    fn step(&mut self, jobs: &mut Vec<Job>) -> NextStep {
        for job in jobs.drain(..count_for_a_turn(jobs)) {
            if let Some(input) = self.input(job) {
                self.inputs.push(input);
            }
        }
        if self.over.is_some() {
            // The node has ended: calls that came with the order to end are not stepped, so no lock
            // is granted any more.
            return NextStep::Never;
        }
        let now = self.clock.now();
        self.cancel_abandoned(now.monotonic_ms);
        let outputs = self.node.step(now, self.inputs.drain(..));
        match self.finish(outputs) {
            // The next turn takes the remaining jobs at once.
            NextStep::Due { calls, .. } if !jobs.is_empty() => NextStep::Due {
                due: self.clock.start,
                calls,
            },
            next => next,
        }
    }

    /// Ends the node: publishes the reason, ends all streams and stops the other threads.
    fn end(mut self) {
        let why = self.over.take();
        let why = why.unwrap_or_else(|| "a turn broke off".to_owned());
        // The reason is published before any call fails because of it: the replies are dropped when
        // this function returns, the queued jobs later.
        self.stopped.send_replace(Some(StopReason {
            why: why.clone(),
            is_hung: self.node.has_hung_disk(),
        }));
        for listener in self.listeners.values() {
            listener.end(StreamEnd::Stopped);
        }
        let _ = self.log_writer.send(LogJob::End);
        if let Some(registry) = &self.registry {
            let _ = registry.send(RegistryEvent::Stop);
        }
        tracing::info!(why, "the node has ended");
    }
}

impl Driver {
    /// Cancels calls whose callers no longer wait, so that the node stops retrying them.
    fn cancel_abandoned(&mut self, now_ms: u64) {
        if now_ms < self.next_cancel_ms {
            return;
        }
        self.next_cancel_ms = now_ms + CANCEL_EVERY_MS;
        // Sorted, because the order of a hash map must not reach the node's inputs (determinism).
        let replies = self.replies.iter();
        let abandoned = replies.filter(|(_, reply)| reply.is_abandoned());
        let mut ids: Vec<u64> = abandoned.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        for id in ids {
            self.replies.remove(&id);
            let id = RequestId(id);
            self.inputs.push(Input::Cancel { id });
        }
    }

    /// Carries out the outputs of a step. Returns when the next turn is due.
    pub(crate) fn finish(&mut self, outputs: Vec<Output>) -> NextStep {
        for output in outputs {
            // Writes and frames go first: the log thread syncs while this thread delivers answers
            // and events.
            if !matches!(output, Output::Write(_) | Output::Send { .. }) {
                self.hand_over();
            }
            if let Some(why) = self.carry_out(output) {
                self.over = Some(why);
                return NextStep::Never;
            }
        }
        self.hand_over();
        if self.suspects > 0 {
            self.note_suspects();
        }
        for waker in self.wakers.drain(..) {
            waker.wake();
            // All results of this turn are in place: wake each task once.
        }
        let now = self.clock.now();
        if self.is_over(now) {
            self.over = Some("shutdown requested".to_owned());
            return NextStep::Never;
        }
        let mut sleep = self.node.wake_in().min(LONGEST_SLEEP_MS);
        if let Some(rebalancer) = &mut self.rebalancer {
            self.inputs
                .append(&mut rebalancer.turn(&self.node, now.monotonic_ms));
            sleep = sleep.min(rebalancer.wake_in(now.monotonic_ms));
        }
        if !self.inputs.is_empty() {
            sleep = 0;
        }
        NextStep::Due {
            due: self.clock.start + Duration::from_millis(now.monotonic_ms + sleep),
            calls: self.replies.len(),
        }
    }

    /// Removes replicas that have caught up from the list of suspects, which the log keeps across
    /// restarts.
    fn note_suspects(&mut self) {
        let left: Vec<_> = self.node.suspects().collect();
        let now = self.clock.now().monotonic_ms;
        if !left.is_empty() && now >= self.suspects_told_ms {
            self.suspects_told_ms = now + SUSPECTS_TOLD_EVERY_MS;
            tracing::error!(
                groups = left.len(),
                "the end of this node's log was lost, and some of its groups have not heard from a leader since, so \
                 this node does not vote in them. Start the other nodes. If all nodes run and this message repeats, or \
                 if too many nodes are permanently lost: stop all nodes, run `tenure cluster recover \
                 --others-are-lost` on a node whose log was not truncated, and `tenure cluster rejoin` on the others"
            );
        }
        if left.len() == self.suspects {
            return;
        }
        self.suspects = left.len();
        let note = MetaRecord {
            key: tenure_node::durable::SUSPECTS.to_vec(),
            value: tenure_node::durable::suspects_value(left),
            done: None,
        };
        // If the log thread has ended, the node ends too, and the group stays suspect.
        let _ = self.log_writer.send(LogJob::Note(note));
        if self.suspects == 0 {
            tracing::info!("all groups of this node have caught up: it votes again");
        }
    }

    fn input(&mut self, job: Job) -> Option<Input> {
        match job {
            Job::Call {
                request,
                timeout_ms,
                reply,
            } => {
                let id = self.next_request;
                self.next_request += 1;
                self.replies.insert(id, reply);
                Some(Input::Request {
                    id: RequestId(id),
                    request,
                    timeout_ms,
                })
            }
            Job::Listen {
                id,
                input,
                listener,
            } => {
                self.listeners.insert(id.0, listener);
                Some(input)
            }
            Job::Unlisten { id } => match self.listeners.remove(&id.0) {
                Some(StreamSender::Changes(..)) => Some(Input::Unwatch { id }),
                Some(_) => Some(Input::Unsubscribe { id }),
                None => None,
            },
            Job::Reached(reply) => {
                let _ = reply.send(());
                None
            }
            Job::Vitals(reply) => {
                // The log thread is not asked: it may hang, and this report must work then.
                let _ = reply.send(NodeMetrics {
                    status: self.node.status(),
                    log_files: self.gauges.files.load(Ordering::Relaxed),
                    log_bytes: self.gauges.bytes.load(Ordering::Relaxed),
                    syncs: self.gauges.syncs.read(),
                });
                None
            }
            Job::Input(input) => Some(input),
            Job::Lost {
                node,
                channel,
                frame_writer,
            } => {
                // A newer connection may already have replaced this writer.
                let now = self.frame_writers.get(&(node, channel));
                if now.is_some_and(|now| now.is(&frame_writer)) {
                    self.lose(node, channel);
                }
                None
            }
            Job::Connected {
                node,
                channel,
                frame_writer,
            } => {
                let before = self.frame_writers.insert((node, channel), frame_writer);
                self.bulk_lost(node, channel, before.is_some());
                None
            }
            Job::Disconnected { node, channel } => {
                let before = self.frame_writers.remove(&(node, channel));
                self.bulk_lost(node, channel, before.is_some());
                None
            }
            Job::View(view) => {
                if let Some(rebalancer) = &mut self.rebalancer {
                    rebalancer.plan_round(view);
                }
                None
            }
            Job::Inspect(reply) => {
                let _ = reply.send(self.node.status());
                None
            }
            Job::LedTerm(group, reply) => {
                let _ = reply.send(self.node.led_term(group));
                None
            }
            Job::State(group, reply) => {
                let _ = reply.send(self.led_state(group));
                None
            }
            Job::SystemApplied(reply) => {
                let _ = reply.send(self.node.system_applied());
                None
            }
            Job::Exclude(why) => {
                self.over.get_or_insert(why);
                None
            }
            Job::Stop => {
                let timeout = if self.registry.is_some() {
                    HAND_OVER
                } else {
                    Duration::ZERO
                };
                let timeout = u64::try_from(timeout.as_millis()).unwrap_or(0);
                self.stop_at_ms = Some(self.clock.now().monotonic_ms + timeout);
                Some(Input::Drain)
            }
        }
    }

    fn led_state(&mut self, group: GroupId) -> Option<LedState> {
        let term = self.node.led_term(group)?;
        let state = self.node.image_of(group)?;
        Some(LedState { term, state })
    }

    /// Returns whether a stopping node has nothing more to hand over, or no more time.
    fn is_over(&self, now: StepTime) -> bool {
        let Some(end) = self.stop_at_ms else {
            return false;
        };
        let leads = |node: &Node| {
            let groups = node.status().groups;
            let led = groups.iter().filter(|group| group.role == Role::Leader);
            // A group with a single voter cannot be handed over.
            led.into_iter()
                .any(|group| group.membership.voters.len() > 1)
        };
        now.monotonic_ms >= end || self.frame_writers.is_empty() || !leads(&self.node)
    }

    /// Enqueues a frame. A frame to a peer that is not connected is dropped; the node already
    /// knows, because it was informed when the connection broke.
    fn send(&mut self, to: NodeId, channel: Channel, frame: Bytes) {
        let Some(frame_writer) = self.frame_writers.get(&(to, channel)) else {
            // The channels connect independently: the bulk channel may not be connected yet.
            self.bulk_lost(to, channel, true);
            return;
        };
        if frame_writer.send(OutboundMessage::Frame(frame)).is_err() {
            self.lose(to, channel);
        }
    }

    /// Hands the write batch and the frames that depend on it to the log thread as one job. If no
    /// other job is queued after the sync, the log thread may step the node inline.
    fn hand_over(&mut self) {
        if self.batch.is_none() && self.held.is_empty() {
            return;
        }
        let turn = LogJob::Turn(self.batch.take(), std::mem::take(&mut self.held));
        // A log thread that has ended has already reported why.
        let _ = self.log_writer.send(turn);
    }

    /// Drops the connection to a peer that does not read fast enough.
    fn lose(&mut self, node: NodeId, channel: Channel) {
        self.frame_writers.remove(&(node, channel));
        self.bulk_lost(node, channel, true);
        if let Some(registry) = &self.registry
            && channel == Channel::Main
        {
            let _ = registry.send(RegistryEvent::Overflow { node });
        }
    }

    /// Informs the node about lost frames of the bulk channel, because a snapshot transfer would
    /// otherwise wait for them until it counts as stalled. For the main channel the node learns
    /// that the peer is lost.
    fn bulk_lost(&mut self, node: NodeId, channel: Channel, lost: bool) {
        if lost && channel == Channel::Bulk {
            self.inputs.push(Input::BulkLost { node });
        }
    }

    /// Carries out one output. Returns the reason when the node must end.
    fn carry_out(&mut self, output: Output) -> Option<String> {
        match output {
            Output::Write(batch) => {
                // A write with its frames is one job of the log thread: hand over the previous one
                // first.
                self.hand_over();
                self.batch = Some(batch);
            }
            Output::Answer {
                id,
                answer,
                request,
            } => {
                if let Some(reply) = self.replies.remove(&id.0) {
                    self.wakers.extend(reply.send(Reply { answer, request }));
                }
            }
            Output::Event { id, event } => {
                if let Some(listener) = self.listeners.get(&id.0)
                    && let Err(StreamFull) = listener.event(event, &mut self.wakers)
                {
                    self.listeners.remove(&id.0);
                    self.inputs.push(Input::Unsubscribe { id });
                }
            }
            Output::Change { id, change } => {
                if self
                    .listeners
                    .get(&id.0)
                    .is_some_and(|listener| !listener.change(change))
                {
                    self.listeners.remove(&id.0);
                    self.inputs.push(Input::Unwatch { id });
                }
            }
            Output::Closed { id, why } => {
                if let Some(listener) = self.listeners.remove(&id.0) {
                    listener.end(StreamEnd::Failed(why));
                }
            }
            Output::Auth(table) => {
                self.auth.send_replace(Some(table));
            }
            Output::SaveSnapshot(snapshot) => {
                let _ = self.background.send(BackgroundJob::Save(snapshot));
            }
            Output::EncodeSnapshot(image) => {
                let _ = self.background.send(BackgroundJob::Encode(image));
            }
            Output::Stop { why } => return Some(why),
            Output::Send {
                to,
                channel,
                after,
                frame,
            } => match after {
                DurableAfter::Nothing => self.send(to, channel, frame),
                DurableAfter::Persisted(after) => {
                    if let Some(frame_writer) = self.frame_writers.get(&(to, channel)).cloned() {
                        // The log thread sends the frame after the sync itself: one thread switch
                        // fewer for each acknowledgement.
                        let frame = HeldFrame {
                            to,
                            channel,
                            frame_writer,
                            frame,
                        };
                        self.held.push((after, frame));
                    }
                }
            },
            Output::Changed { id, result } => {
                if let Some(rebalancer) = &mut self.rebalancer {
                    rebalancer.changed(id, result);
                }
            }
        }
        None
    }
}

/// Returns how many of these jobs one turn takes: as many as fit into [`BYTES_A_TURN`], at least
/// one.
///
/// While the node handles a snapshot, many frames may queue up. In one turn they would become one
/// long write, and heartbeats would wait for its end.
fn count_for_a_turn(jobs: &[Job]) -> usize {
    let mut bytes = 0;
    let fits = |job: &&Job| {
        if let Job::Input(Input::Frame { bytes: frame, .. }) = job {
            bytes += frame.len();
        }
        bytes <= BYTES_A_TURN
    };
    let count = jobs.iter().take_while(fits).count();
    count.max(usize::from(!jobs.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: usize) -> Job {
        Job::Input(Input::Frame {
            from: NodeId::new(1).unwrap(),
            bytes: Bytes::from(vec![0; bytes]),
        })
    }

    /// Queued frames are taken in several turns of at least one frame; other jobs are all taken at
    /// once.
    #[test]
    fn a_turn_takes_a_bounded_amount_of_frames() {
        let third = BYTES_A_TURN / 3;
        let jobs = vec![
            frame(third),
            Job::Stop,
            frame(third),
            frame(third),
            frame(third),
        ];
        assert_eq!(count_for_a_turn(&jobs), 4);
        assert_eq!(count_for_a_turn(&jobs[4..]), 1);
        assert_eq!(count_for_a_turn(&[frame(BYTES_A_TURN + 1), Job::Stop]), 1);
        assert_eq!(count_for_a_turn(&[]), 0);
        let many: Vec<Job> = (0..10_000).map(|_| Job::Stop).collect();
        assert_eq!(count_for_a_turn(&many), 10_000);
    }
}
