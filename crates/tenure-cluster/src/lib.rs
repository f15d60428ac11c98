//! Runtime of one node: threads, disk, clock and peer connections around the sans-I/O state machine
//! [`tenure_node::Node`].
//!
//! ```text
//!   transports ──▶ Handle ──▶ queue ──▶ node thread ──▶ log thread ──▶ disk
//!                          peers thread ◀──┤ └──────▶ background thread ──▶ snapshots, spare files
//!                other nodes ◀──▶ └──────────▶ queue
//! ```
//!
//! Two short cuts save thread switches. While the node thread sleeps, the thread that enqueues a
//! small job steps the node itself (flat combining, `node_runner.rs`). The thread that has a frame
//! for a peer writes it to the socket itself (`peers/frame_writer.rs`).
//!
//! This crate makes no lock decisions: the node makes them, this crate moves its inputs and
//! outputs. It knows nothing of gRPC, HTTP or users.

pub mod archive;
mod background;
mod bootstrap;
mod call_batch;
mod commit_queue;
mod directory;
#[cfg(test)]
mod disk_stall;
mod driver;
mod gossip;
mod handle;
mod identity;
mod job;
mod log_writer;
mod metrics;
mod next_start;
mod node_record;
mod node_runner;
pub mod offline;
mod peers;
mod placement_plan;
mod rebalancer;
#[cfg(test)]
mod recorded_compat;
mod reply_channel;
mod status_report;
mod stream;
mod sync;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod test_support;

// The test support names this crate as the tests outside of it do.
#[cfg(test)]
extern crate self as tenure_cluster;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tenure_log::{Log, OpenError, RealDisk, TruncationKind};
use tenure_node::{ClusterConfig, Config, GroupId, Limits, Mark, Node, NodeId, ReplicaId};
use tokio::sync::watch;

use bootstrap::Listeners;
use commit_queue::CommitQueue;
use driver::{Driver, MachineClock};
use identity::NodeIdentity;
use job::Job;
use log_writer::LogWriter;
use metrics::LogGauges;
use next_start::{NextStart, StartAction, StartReason};
use node_runner::NodeRunner;
use peers::{ClusterMembership, ClusterView, PersistedState};
use rebalancer::Rebalancer;

pub use bootstrap::BootstrapError;
pub use call_batch::{CallBatch, Completion, ReadView};
pub use handle::{Draining, Handle};
pub use identity::IdentityError;
pub use log_writer::{ReplayError, SyncPolicy};
pub use metrics::{BOUNDS_US, Histogram, HistogramSnapshot, NodeMetrics};
pub use peers::{BootstrapMode, NodeInfo, PeerOptions, PeerTls, PeerTlsError, Secret, Versions};
pub use placement_plan::PlacementRules;
pub use status_report::{ClusterReport, GroupReport, NodeReport};
pub use stream::{EventStream, StreamEnd};

/// Settings of a node that runs on this machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Data directory. The log and the snapshots are in its subdirectory `db`.
    pub data_dir: PathBuf,
    /// Number of this node (R162 (node ids)).
    pub node: NodeId,
    /// Name of this node for people.
    pub name: String,
    /// Settings that are fixed when the cluster is created (R161 (settings fixed per cluster)).
    pub cluster: ClusterConfig,
    /// Limits on queued and retained data.
    pub limits: Limits,
    /// Whether answers wait until the log is synced.
    pub durable: SyncPolicy,
    /// Peer settings. `None`: the node runs alone and never joins a cluster.
    pub peers: Option<PeerOptions>,
}

/// Reason why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be opened.
    #[error("cannot open the data directory {path}")]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The log is in use by another process, damaged, or written by an incompatible release.
    #[error("the log in {path} cannot be opened: {source}; {}", source.hint())]
    Log {
        /// Path of the log directory.
        path: PathBuf,
        /// Error of the log.
        source: OpenError,
    },
    /// The log contains a record that this release cannot decode.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The directory belongs to another node, or to a cluster with other fixed settings.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The node may not create or join a cluster, or cannot bind its peer sockets.
    #[error(transparent)]
    Begin(#[from] BootstrapError),
    /// The log cannot be written.
    #[error("the log cannot be written: {0}")]
    Write(String),
    /// The operating system refused a thread or random numbers.
    #[error("the operating system refused a thread or random numbers")]
    System(#[from] std::io::Error),
}

/// A running node and its threads.
pub struct RunningNode {
    handle: Handle,
    threads: Vec<JoinHandle<()>>,
    addresses: Option<(SocketAddr, SocketAddr)>,
    origin: DataOrigin,
}

/// How a node got its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOrigin {
    /// The directory already belonged to a cluster.
    Resumed,
    /// The node has created a new cluster.
    Founded,
    /// The directory is empty and the node joins an existing cluster.
    Joins,
}

impl RunningNode {
    /// Returns the handle for calls to this node.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns how the node got its data.
    pub fn origin(&self) -> DataOrigin {
        self.origin
    }

    /// Returns the addresses on which the node listens for peers and for gossip. `None`: it runs
    /// alone.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.addresses
    }

    /// Stops the node and waits for its threads. Answered calls are durable. A call in flight may
    /// or may not have taken effect.
    ///
    /// If the disk hangs, `stop` returns without closing the log: a process on a hung disk must be
    /// able to exit.
    pub fn stop(self) {
        self.handle.runner.push(Job::Stop);
        let mut threads = self.threads.into_iter();
        if let Some(node) = threads.next() {
            // A panic was already reported by the panic hook.
            let _ = node.join();
        }
        // The other threads may be blocked in a sync on a hung disk. The process must be able to
        // exit without them: every answered call is durable already.
        let begun = Instant::now();
        let mut left: Vec<JoinHandle<()>> = threads.collect();
        let is_hung = self
            .handle
            .stopped
            .borrow()
            .as_ref()
            .is_some_and(|one| one.is_hung);
        let longest = if is_hung { Duration::ZERO } else { LONGEST_END };
        while !left.is_empty() && begun.elapsed() < longest {
            left.retain(|thread| !thread.is_finished());
            thread::park_timeout(Duration::from_millis(1));
        }
        if !left.is_empty() {
            tracing::warn!("the log was not closed, because its disk does not respond");
        }
    }
}

/// Maximum time that `stop` waits for the other threads after the node thread has ended.
const LONGEST_END: Duration = Duration::from_secs(10);

/// Starts a node on its data directory: alone, as the creator of a cluster, or as a member of one.
///
/// Order of the durable steps: the `next_start` file of a node that waits to join, the node's
/// identity in the log (synced), then the removal of a carried-out `next_start` order. A crash
/// between any two of them leaves a state from which the next start continues.
pub fn start(options: Options) -> Result<RunningNode, StartError> {
    let place = options.data_dir.join("db");
    let in_directory = |source| StartError::Directory {
        path: place.clone(),
        source,
    };
    // The order is read before anything is created: an unreadable order or unfinished data must
    // stop the start and leave the directory unchanged.
    let order = NextStart::read(&options.data_dir).map_err(order_failed(&options.data_dir))?;
    let set_aside = directory::set_aside(&options.data_dir).map_err(in_directory)?;
    if !place.exists() {
        bootstrap::check_set_aside(&options.data_dir, order.as_ref(), &set_aside)?;
    }
    tenure_log::create_directory(&options.data_dir).map_err(in_directory)?;
    let disk = RealDisk::open(&place).map_err(in_directory)?;
    let opened = tenure_log::open(disk, tenure_log::Options::default()).map_err(|source| {
        StartError::Log {
            path: place.clone(),
            source,
        }
    })?;
    let (mut log, snapshots) = (opened.log, opened.snapshots);
    report_end(&place, &opened.recovered);
    let clock = MachineClock::new();
    // Sockets are bound before the bootstrap decision, which asks the seeds from these addresses.
    let listeners = options.peers.as_ref().map(Listeners::open).transpose()?;

    // Checks of the data, before any peer hears of this node.
    let peer_state = PersistedState::find(&opened.recovered.node)?;
    let known = NodeIdentity::find(&opened.recovered.node)?;
    if let Some(identity) = &known {
        identity.check(options.node, &options.cluster)?;
    }
    if let Some(why) = peer_state.stopped {
        return Err(BootstrapError::OlderCopy(why).into());
    }
    let expected = options.peers.as_ref().and_then(|one| one.expected_cluster);
    let (mut identity, origin, hints) = match known {
        Some(identity) if identity.cluster_id.is_some() => {
            check_membership(&identity, expected, &peer_state)?;
            (identity, DataOrigin::Resumed, Vec::new())
        }
        // A node that has not joined a cluster yet has no data to lose, so it decides anew at every
        // start.
        unjoined => {
            let me = ReplicaId::new(options.node, random()? as u32);
            let cluster = options.cluster.clone();
            let fresh = NodeIdentity::born(me, clock.now().wall_ms, cluster, None);
            let born = unjoined.unwrap_or(fresh);
            let decision = bootstrap::decide(&bootstrap::BootstrapFacts {
                data_dir: &options.data_dir,
                name: &options.name,
                peers: options.peers.as_ref(),
                listeners: listeners.as_ref(),
                born: &born,
                order: order.as_ref(),
                set_aside: &set_aside,
            })?;
            match decision {
                bootstrap::BootstrapDecision::Found => {
                    let identity = NodeIdentity {
                        cluster_id: Some(random()? | 1),
                        founder: true,
                        ..born
                    };
                    (identity, DataOrigin::Founded, Vec::new())
                }
                bootstrap::BootstrapDecision::Join(hints) => (born, DataOrigin::Joins, hints),
            }
        }
    };
    if origin == DataOrigin::Joins {
        // The file tells `tenure cluster init` that this node waits for a cluster.
        let waits = NextStart::new(StartAction::Join, StartReason::Waiting);
        let written = match order.as_ref().map(|order| order.what) {
            Some(StartAction::Join) => Ok(()),
            // A cluster has answered, so the order to create one is obsolete.
            Some(StartAction::Found | StartAction::FoundDespiteOldData) => {
                waits.write(&options.data_dir)
            }
            None => waits.write_new(&options.data_dir).map(drop),
        };
        written.map_err(order_failed(&options.data_dir))?;
    }
    // The start is counted durably before the node sends anything: a lower count later reveals an
    // older copy of the data (see `peers/incarnations.rs`).
    identity.starts += 1;
    let mut batch = tenure_log::Batch::new();
    let (key, value) = identity.record();
    // Same record as the identity: opening the log forgets the truncation with the first append, so
    // the list of suspect groups must be in that same record.
    let suspects = tenure_node::durable::suspects(&opened.recovered);
    batch
        .node(key, &value)
        .and_then(|()| tenure_node::durable::note_suspects(&suspects, &mut batch))
        .map_err(|error| StartError::Write(error.to_string()))?;
    log.append(&mut batch)
        .and_then(|_| log.sync())
        .map_err(|e| StartError::Write(e.to_string()))?;

    if origin != DataOrigin::Joins {
        // The order was carried out durably. After a crash before this line it is carried out
        // again.
        NextStart::remove(&options.data_dir).map_err(order_failed(&options.data_dir))?;
    }
    if let (DataOrigin::Founded, Some(id)) = (origin, identity.cluster_id) {
        tracing::info!(
            cluster = format!("{id:016x}"),
            "this node has created a cluster"
        );
    }
    // The creator writes the birth of all groups in one batch. If no group is in the log, the node
    // stopped before that write and has answered no call, so all groups can be created now.
    let is_new = identity.founder && opened.recovered.groups.is_empty();
    let mut recovery = log_writer::replay(opened.recovered, &snapshots)?;
    if is_new {
        for group in 0..=options.cluster.group_count {
            recovery.born(GroupId(group), vec![identity.me]);
        }
    }
    let me = identity.me;
    let known_nodes = peer_state
        .node_records
        .iter()
        .map(|node_record| node_record.member.node);
    let config = Config {
        me: identity.me,
        cluster: options.cluster,
        limits: options.limits,
        start: identity.starts,
        seed: random()?,
        nodes: known_nodes.chain([options.node]).collect(),
    };
    let (node, first) = Node::start(config, recovery, clock.now()).map_err(ReplayError::Records)?;

    let gauges = Arc::new(LogGauges::default());
    let stopped = watch::Sender::new(None);
    let auth = watch::Sender::new(None);
    let (log_writer, writes) = mpsc::channel();
    let (background, todo) = mpsc::channel();
    let registry_events = options
        .peers
        .is_some()
        .then(tokio::sync::mpsc::unbounded_channel);
    let rules = options.peers.as_ref().map(|peers| peers.rules.clone());
    let registry = registry_events.as_ref().map(|(sender, _)| sender.clone());
    let mut driver = Driver {
        node,
        clock,
        stopped: stopped.clone(),
        auth: auth.clone(),
        log_writer: log_writer.clone(),
        gauges: Arc::clone(&gauges),
        background: background.clone(),
        replies: HashMap::default(),
        listeners: HashMap::default(),
        wakers: Vec::new(),
        next_request: 1,
        next_cancel_ms: 0,
        frame_writers: HashMap::new(),
        rebalancer: rules.map(|rules| Rebalancer::new(rules, clock.now().monotonic_ms)),
        registry: registry.clone(),
        stop_at_ms: None,
        batch: None,
        held: Vec::new(),
        inputs: Vec::new(),
        suspects: suspects.len(),
        suspects_told_ms: clock.now().monotonic_ms + driver::SUSPECTS_TOLD_EVERY_MS,
        over: None,
    };
    let next = driver.finish(first);
    let runner = Arc::new(NodeRunner::new(driver, next));
    let log_writer_thread = {
        let log_writer = LogWriter {
            log,
            snapshots: snapshots.clone(),
            runner: Arc::clone(&runner),
            background,
            durable: options.durable,
            commits: CommitQueue::new(Mark(0)),
            turns: 0,
            gauges,
            #[cfg(test)]
            place: place.clone(),
            confirm_at: None,
        };
        spawn("tenure-log", move || log_writer.run(&writes))?
    };
    let background_thread = {
        let (runner, log_writer) = (Arc::clone(&runner), log_writer.clone());
        spawn("tenure-background", move || {
            background::run(&todo, &snapshots, &runner, &log_writer)
        })?
    };
    let mut threads = vec![log_writer_thread, background_thread];
    let mut addresses = None;
    let joined = watch::Sender::new(ClusterMembership::Yes);
    let known = watch::Sender::new(ClusterView {
        cluster: identity.cluster_id,
        ..ClusterView::default()
    });
    if let (Some(mut peers), Some(listeners), Some(events)) =
        (options.peers, listeners, registry_events)
    {
        if let Some(order) = order.filter(|_| origin == DataOrigin::Joins) {
            // Peers of the node's former cluster serve as seeds.
            let more = order.peers.into_iter().map(|peer| peer.gossip);
            let more = more.filter(|address| !address.is_empty());
            peers.seeds.extend(more);
            peers.seeds.dedup();
        }
        if identity.cluster_id.is_none() {
            joined.send_replace(ClusterMembership::NotYet);
        }
        addresses = Some((listeners.peers, listeners.gossip));
        let start = peers::PeersStart {
            node_record: listeners.node_record(&options.name, &peers, &identity),
            options: peers,
            identity,
            data_dir: options.data_dir,
            peer_state,
            hints,
            listener: listeners.listener,
            socket: listeners.socket,
            runner: Arc::clone(&runner),
            log_writer,
            clock,
            joined: joined.clone(),
            known: known.clone(),
        };
        threads.push(spawn("tenure-peers", move || peers::run(start, events))?);
    }
    threads.insert(0, {
        let runner = Arc::clone(&runner);
        spawn("tenure-node", move || runner.run())?
    });
    let handle = Handle {
        runner,
        stopped,
        auth,
        registry,
        joined,
        known,
        me,
        name: options.name.into(),
    };
    Ok(RunningNode {
        handle,
        threads,
        addresses,
        origin,
    })
}

/// Logs what recovery noticed at the end of a log that can still be opened.
fn report_end(place: &Path, recovered: &tenure_log::Recovered) {
    let place = place.display();
    if recovered.end_unreadable {
        tracing::warn!(
            %place,
            "the end marker of the log is damaged: missing files or a missing end cannot be detected"
        );
    }
    let Some(cut) = &recovered.cut else { return };
    let tenure_log::Truncation {
        file,
        offset,
        bytes,
        kind,
    } = cut;
    match kind {
        TruncationKind::Torn => tracing::warn!(
            %place, %file, offset, bytes,
            "the end of the log was truncated: the last write was incomplete. Nothing that a sync \
             had confirmed is lost"
        ),
        TruncationKind::Suspicious => tracing::error!(
            %place, %file, offset, bytes,
            "the end of the log was truncated, and no crash explains it: confirmed records may be \
             lost. Check the disk. In a cluster this node does not vote until a leader has brought \
             it up to date; to start again with an empty directory: tenure cluster rejoin. A single \
             node continues with the remaining data; to return to a backup: tenure cluster restore"
        ),
    }
}

/// Checks whether a node may continue in the cluster that its directory belongs to.
fn check_membership(
    identity: &NodeIdentity,
    expected: Option<u64>,
    peer_state: &PersistedState,
) -> Result<(), BootstrapError> {
    let ours = identity.cluster_id.unwrap_or(0);
    if let Some(expected) = expected.filter(|expected| *expected != ours) {
        let found = format!("the data directory belongs to cluster {ours:016x}");
        return Err(BootstrapError::Unexpected { expected, found });
    }
    match &peer_state.standing.gave_way_to {
        Some(rival) => Err(BootstrapError::GaveWay(rival.sentence(ours))),
        None => Ok(()),
    }
}

fn order_failed(data_dir: &std::path::Path) -> impl FnOnce(std::io::Error) -> BootstrapError {
    let path = data_dir.join(next_start::FILE);
    move |source| BootstrapError::Order { path, source }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(run)
}

fn random() -> std::io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}
