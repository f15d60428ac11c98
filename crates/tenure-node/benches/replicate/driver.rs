//! The smallest real driver: a thread that steps a node, a thread that owns its log, channels for
//! peers. It keeps the contract of the crate and does nothing else.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure_core::policy::Algorithm;
use tenure_log::{
    Batch as LogBatch, Log, Options, RealDisk, SnapshotId, SpareDone, SpareJob, open,
};
use tenure_node::*;

use crate::trace;

/// A message to the thread that steps a node.
pub(crate) enum DriverMessage {
    Input(Input),
    /// Begin to generate load: see [`Load`].
    Load(Load),
    Stop,
}

/// Requests that are kept in flight, one a slot: each answer brings the slot's next.
pub(crate) struct Load {
    /// The group that decides a slot: only those that a node leads are its business.
    pub(crate) slots: Vec<GroupId>,
    /// The next request of a slot, and how many it has had.
    pub(crate) next: Arc<dyn Fn(usize, u64) -> ClientRequest + Send + std::marker::Sync>,
    pub(crate) count: Arc<AtomicU64>,
}

pub(crate) struct Running {
    pub(crate) inbox: Sender<DriverMessage>,
    thread: JoinHandle<Node>,
}

impl Running {
    pub(crate) fn stop(self) -> Node {
        let _ = self.inbox.send(DriverMessage::Stop);
        self.thread.join().expect("the node's thread ends well")
    }
}

pub(crate) struct Setup {
    pub(crate) member: ReplicaId,
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) groups: u32,
    pub(crate) born: Vec<ReplicaId>,
    pub(crate) directory: PathBuf,
    pub(crate) start: u64,
}

enum ToLog {
    Batch(WriteBatch),
    Frame(Mark, NodeId, Bytes),
    Spare(SpareDone),
    End,
}

/// A long job in the background; no thread waits for it.
enum BackgroundJob {
    Save(SnapshotImage),
    Encode(SnapshotImage),
    Spare(SpareJob<RealDisk>),
}

fn now(origin: Instant) -> StepTime {
    let since = origin.elapsed().as_millis();
    let monotonic_ms = u64::try_from(since).expect("a benchmark ends before the numbers do");
    StepTime {
        monotonic_ms,
        wall_ms: 1_700_000_000_000 + monotonic_ms,
    }
}

/// Opens the log, starts the node, and runs both until told to stop.
pub(crate) fn run(
    setup: Setup,
    inbox: Receiver<DriverMessage>,
    me: Sender<DriverMessage>,
    peers: Vec<(NodeId, Sender<DriverMessage>)>,
) -> Running {
    let opened = open(
        RealDisk::open(&setup.directory).expect("the directory is ours"),
        Options::default(),
    )
    .expect("the log was written by us");
    let mut recovery = Recovery::new();
    if opened.recovered.groups.is_empty() {
        for group in 0..=setup.groups {
            recovery.born(GroupId(group), setup.born.clone());
        }
    }
    for (group, held) in opened.recovered.groups {
        let group = GroupId(u32::try_from(group).expect("groups are small numbers"));
        let place = |index, term| LogPosition { term, index };
        let remains = RecoveredBytes {
            hard_state: held.state.into(),
            base: held
                .base
                .map(|base| (place(base.index, base.term), base.note.into())),
            entries: held
                .entries
                .into_iter()
                .map(|entry| (place(entry.index, entry.term), entry.payload.into()))
                .collect(),
        };
        recovery.group(group, remains).expect("what we wrote");
    }
    for (group, index) in recovery.snapshots() {
        let id = SnapshotId {
            group: u64::from(group.0),
            index,
        };
        let mut reader = opened.snapshots.open(id).expect("it was committed");
        let mut data = Vec::new();
        while let Some(chunk) = reader.next_chunk().expect("it is whole") {
            data.extend_from_slice(chunk);
        }
        recovery.state(group, data.into());
    }
    let origin = Instant::now();
    let config = Config {
        me: setup.member,
        cluster: ClusterConfig {
            group_count: setup.groups,
            prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        },
        limits: Limits {
            group_inflight: 1 << 20,
            ..Limits::default()
        },
        start: setup.start,
        seed: 7 + u64::from(setup.member.node.number()),
        nodes: setup.nodes,
    };
    let (node, outputs) = Node::start(config, recovery, now(origin)).expect("a good log");
    let (to_log, log_inbox) = channel();
    let (to_background, jobs) = channel();
    let (log, snapshots) = (opened.log, opened.snapshots);
    let background_thread = {
        let (me, to_log, snapshots) = (me.clone(), to_log.clone(), snapshots.clone());
        std::thread::spawn(move || tidy(&snapshots, &jobs, &me, &to_log))
    };
    let log_thread = {
        let (me, peers, to_background) = (me.clone(), peers.clone(), to_background.clone());
        let from = setup.member.node;
        std::thread::spawn(move || write(log, snapshots, log_inbox, me, peers, from, to_background))
    };
    let from = setup.member.node;
    let thread = std::thread::spawn(move || {
        let mut stepper = Stepper {
            node,
            origin,
            to_log,
            to_background,
            peers,
            from,
            load: None,
            had: Vec::new(),
            generated: Vec::new(),
        };
        stepper.take(outputs);
        stepper.run(&inbox);
        let Stepper {
            node,
            to_log,
            to_background,
            ..
        } = stepper;
        let _ = to_log.send(ToLog::End);
        drop(to_background);
        log_thread.join().expect("the log's thread ends well");
        background_thread
            .join()
            .expect("the chores' thread ends well");
        node
    });
    Running { inbox: me, thread }
}

struct Stepper {
    node: Node,
    origin: Instant,
    to_log: Sender<ToLog>,
    to_background: Sender<BackgroundJob>,
    peers: Vec<(NodeId, Sender<DriverMessage>)>,
    from: NodeId,
    load: Option<Load>,
    /// How many requests each slot has had.
    had: Vec<u64>,
    generated: Vec<Input>,
}

impl Stepper {
    fn run(&mut self, inbox: &Receiver<DriverMessage>) {
        let mut inputs = Vec::new();
        loop {
            let wait = if self.generated.is_empty() {
                self.node.wake_in()
            } else {
                0
            };
            match inbox.recv_timeout(Duration::from_millis(wait)) {
                Ok(first) => {
                    let mut told = Some(first);
                    while let Some(one) = told.take().or_else(|| inbox.try_recv().ok()) {
                        match one {
                            DriverMessage::Input(input) => inputs.push(input),
                            DriverMessage::Load(load) => self.begin(load),
                            DriverMessage::Stop => return,
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            inputs.append(&mut self.generated);
            let me = self.from.number();
            trace::note(|| format!("node {me} step    {}", kinds(&inputs)));
            let outputs = self.node.step(now(self.origin), inputs.drain(..));
            trace::note(|| format!("node {me} stepped {}", shown(&outputs)));
            self.take(outputs);
        }
    }

    fn begin(&mut self, load: Load) {
        let status = self.node.status();
        let led = |group: &GroupId| {
            let mut groups = status.groups.iter();
            groups.any(|one| one.group == *group && one.serves)
        };
        let mine: Vec<usize> = (0..load.slots.len())
            .filter(|slot| led(&load.slots[*slot]))
            .collect();
        self.had = vec![0; load.slots.len()];
        self.load = Some(load);
        for slot in mine {
            self.generate(slot);
        }
    }

    fn generate(&mut self, slot: usize) {
        if let Some(load) = &self.load {
            let request = (load.next)(slot, self.had[slot]);
            self.had[slot] += 1;
            self.generated.push(Input::Request {
                id: RequestId(self.had[slot] << 32 | slot as u64),
                request: Box::new(request),
                timeout_ms: 60_000,
            });
        }
    }

    fn take(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Write(batch) => {
                    let _ = self.to_log.send(ToLog::Batch(batch));
                }
                Output::Send {
                    to, after, frame, ..
                } => match after {
                    DurableAfter::Nothing => send(&self.peers, self.from, to, frame),
                    DurableAfter::Persisted(mark) => {
                        let _ = self.to_log.send(ToLog::Frame(mark, to, frame));
                    }
                },
                Output::SaveSnapshot(image) => {
                    let _ = self.to_background.send(BackgroundJob::Save(image));
                }
                Output::EncodeSnapshot(image) => {
                    let _ = self.to_background.send(BackgroundJob::Encode(image));
                }
                Output::Answer { id, answer, .. } => {
                    let answer = answer.expect("nothing fails in a benchmark");
                    if let Some(load) = &self.load {
                        assert!(
                            !matches!(answer, Answer::Acquire(AcquireAnswer::Queued { .. })),
                            "there is no contention"
                        );
                        load.count.fetch_add(1, Ordering::Relaxed);
                    }
                    self.generate((id.0 & u64::from(u32::MAX)) as usize);
                }
                Output::Stop { why } => panic!("{why}"),
                Output::Changed { .. }
                | Output::Event { .. }
                | Output::Change { .. }
                | Output::Auth(_)
                | Output::Closed { .. } => {}
            }
        }
    }
}

fn kinds(inputs: &[Input]) -> String {
    let count = |is: fn(&Input) -> bool| inputs.iter().filter(|input| is(input)).count();
    format!(
        "{} calls, {} frames, {} persisted, {} other",
        count(|input| matches!(input, Input::Request { .. })),
        count(|input| matches!(input, Input::Frame { .. })),
        count(|input| matches!(input, Input::Persisted { .. })),
        count(|input| matches!(input, Input::SnapshotSaved { .. })),
    )
}

fn shown(outputs: &[Output]) -> String {
    let mut text = String::new();
    let mut answers = 0;
    for output in outputs {
        match output {
            Output::Write(batch) => text += &format!(" write({} records)", batch.records.len()),
            Output::Send {
                to, after, frame, ..
            } => {
                let when = match after {
                    DurableAfter::Nothing => "now",
                    DurableAfter::Persisted(_) => "after sync",
                };
                text += &format!(" send({} {when} {} bytes)", to.number(), frame.len());
            }
            Output::SaveSnapshot(_) | Output::EncodeSnapshot(_) => text += " snapshot",
            Output::Answer { .. } => answers += 1,
            _ => {}
        }
    }
    format!("{answers} answers{text}")
}

fn send(peers: &[(NodeId, Sender<DriverMessage>)], from: NodeId, to: NodeId, bytes: Bytes) {
    if let Some((_, peer)) = peers.iter().find(|(node, _)| *node == to) {
        let _ = peer.send(DriverMessage::Input(Input::Frame { from, bytes }));
    }
}

/// The log's own thread: everything that came together becomes one batch and one sync.
fn write(
    mut log: tenure_log::FileLog<RealDisk>,
    snapshots: tenure_log::Snapshots<RealDisk>,
    inbox: Receiver<ToLog>,
    me: Sender<DriverMessage>,
    peers: Vec<(NodeId, Sender<DriverMessage>)>,
    from: NodeId,
    jobs: Sender<BackgroundJob>,
) {
    let mut batch = LogBatch::new();
    let mut held: VecDeque<(Mark, NodeId, Bytes)> = VecDeque::new();
    let mut durable = Mark(0);
    while let Ok(first) = inbox.recv() {
        let mut written = None;
        let mut must_sync = false;
        let mut told = Some(first);
        while let Some(one) = told.take().or_else(|| inbox.try_recv().ok()) {
            match one {
                ToLog::Batch(one) => {
                    for snapshot in one.snapshots {
                        save(&snapshots, &snapshot);
                    }
                    for (group, record) in &one.records {
                        put(&mut batch, u64::from(group.0), record);
                    }
                    must_sync |= one.sync == SyncMode::Now;
                    written = Some(one.mark);
                }
                ToLog::Frame(mark, to, frame) => held.push_back((mark, to, frame)),
                ToLog::Spare(done) => log.spare_done(done),
                ToLog::End => return,
            }
            if batch.bytes() > 4 << 20 {
                break;
            }
        }
        if let Some(mark) = written {
            let bytes = batch.bytes();
            log.append(&mut batch).expect("there is room");
            if must_sync {
                trace::note(|| format!("node {} sync    {bytes} bytes", from.number()));
                log.sync().expect("the disk is well");
                trace::note(|| format!("node {} synced", from.number()));
            }
            durable = mark;
            let _ = me.send(DriverMessage::Input(Input::Persisted { mark }));
        }
        // Also those that came when what they wait for was durable already.
        while held.front().is_some_and(|(wait, _, _)| *wait <= durable) {
            if let Some((_, to, frame)) = held.pop_front() {
                send(&peers, from, to, frame);
            }
        }
        if let Some(job) = log.spare_wanted() {
            let _ = jobs.send(BackgroundJob::Spare(job));
        }
    }
}

/// A thread for what takes long, as there is in the daemon.
fn tidy(
    snapshots: &tenure_log::Snapshots<RealDisk>,
    jobs: &Receiver<BackgroundJob>,
    me: &Sender<DriverMessage>,
    to_log: &Sender<ToLog>,
) {
    for job in jobs {
        match job {
            BackgroundJob::Save(image) => {
                save(snapshots, &image.encode());
                let _ = me.send(DriverMessage::Input(Input::SnapshotSaved {
                    group: image.group,
                    index: image.index,
                }));
            }
            BackgroundJob::Encode(image) => {
                let _ = me.send(DriverMessage::Input(Input::SnapshotEncoded(image.encode())));
            }
            BackgroundJob::Spare(job) => {
                let _ = to_log.send(ToLog::Spare(job.run()));
            }
        }
    }
}

fn save(snapshots: &tenure_log::Snapshots<RealDisk>, snapshot: &Snapshot) {
    let id = SnapshotId {
        group: u64::from(snapshot.group.0),
        index: snapshot.index,
    };
    let mut writer = snapshots.create(id).expect("there is room");
    writer.write(&snapshot.data).expect("there is room");
    writer.commit().expect("there is room");
}

fn put(batch: &mut LogBatch, group: u64, record: &LogWrite) {
    let base = |base: &Base| (base.place, base.membership.to_bytes());
    let done = match record {
        LogWrite::Born(at) => {
            let (place, note) = base(at);
            batch.begin(group, place.index, place.term, &note)
        }
        LogWrite::Cut(at) => {
            let (place, note) = base(at);
            batch.snapshot_taken(group, place.index, place.term, &note)
        }
        LogWrite::Installed(at) => {
            let (place, note) = base(at);
            batch.snapshot_installed(group, place.index, place.term, &note)
        }
        LogWrite::Entries(entries) => entries.iter().try_for_each(|entry| {
            let place = entry.place;
            batch.entry(group, place.index, place.term, &entry.payload_bytes())
        }),
        LogWrite::HardState(state) => batch.state(group, &state.to_bytes()),
        LogWrite::Removed => batch.remove(group),
    };
    done.expect("records of a node are far below the limits of a batch");
}
