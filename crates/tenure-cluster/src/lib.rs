//! A node on a real machine: threads, disk, time and other nodes around [`tenure_node::Node`].
//!
//! ```text
//!   faces ──▶ Handle ──▶ inbox ──▶ node thread ──▶ journal thread ──▶ disk
//!                        peers thread ◀──┤ └──────▶ chores thread ──▶ snapshots, spare files
//!              other nodes ◀──▶ └──────────▶ inbox
//! ```
//!
//! While the node's thread sleeps, whoever brings something small takes its turn (`seat.rs`), and
//! whoever has a frame for a peer writes it (`peers/outlet.rs`).
//!
//! What is deliberately absent: rules. Whatever is decided is decided by the node; this crate only
//! moves what goes in and comes out. It knows nothing of gRPC, HTTP or users.

mod answer;
pub mod archive;
mod begin;
mod calls;
mod card;
mod chores;
mod directory;
mod driver;
mod gossip;
mod handle;
mod identity;
mod inbox;
mod journal;
mod measure;
mod mover;
pub mod offline;
mod order;
mod peers;
mod reconcile;
#[cfg(test)]
mod recorded;
mod report;
mod seat;
#[cfg(test)]
mod stall;
mod stream;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tenure_log::{Log, OpenError, RealDisk, TruncationKind};
use tenure_node::{ClusterConfig, Config, GroupId, Limits, Mark, Node, NodeId, ReplicaId};
use tokio::sync::watch;

use begin::Doors;
use driver::{Clock, Driver};
use handle::Stopped;
use identity::Identity;
use inbox::{Inbox, Job};
use journal::Journal;
use measure::LogGauges;
use mover::Mover;
use order::{Because, Order, What};
use peers::{Book, Joined, Known};
use seat::Seat;

pub use begin::BeginError;
pub use calls::{Calls, Heard, Sight};
pub use handle::{Draining, Handle};
pub use identity::IdentityError;
pub use journal::{Durable, ReplayError};
pub use measure::{BOUNDS_US, Durations, Histogram, Vitals};
pub use peers::{Begin, NodeInfo, PeerOptions, PeerTls, PeerTlsError, Secret, Versions};
pub use reconcile::Rules;
pub use report::{GroupReport, Report, Survey};
pub use stream::{Stream, StreamEnd};

/// What a node needs to run here.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its data is.
    pub data_dir: PathBuf,
    /// Which node it is.
    pub node: NodeId,
    /// What it is called.
    pub name: String,
    /// Fixed at birth.
    pub cluster: ClusterConfig,
    /// How much may wait and be kept.
    pub limits: Limits,
    /// Whether answers wait for the disk.
    pub durable: Durable,
    /// How it meets other nodes; `None`: it never will.
    pub peers: Option<PeerOptions>,
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be opened.
    #[error("cannot open the data directory {path}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What it holds is in use, damaged, or of another release.
    #[error("the log in {path} cannot be opened: {source}; {}", source.hint())]
    Log {
        /// Which directory.
        path: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// It holds something that the node does not understand.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// It belongs to another node, or to a cluster with other facts.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// It may not begin a cluster, or cannot listen for its peers.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// It cannot be written.
    #[error("the log cannot be written: {0}")]
    Write(String),
    /// The operating system gives no thread or no random numbers.
    #[error("the operating system refuses")]
    System(#[from] std::io::Error),
}

/// A running node and its threads.
pub struct Running {
    handle: Handle,
    threads: Vec<JoinHandle<()>>,
    addresses: Option<(SocketAddr, SocketAddr)>,
    origin: Origin,
}

/// How a node came to its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Its directory belonged to a cluster already.
    Resumed,
    /// It has founded a cluster.
    Founded,
    /// It has no data yet and joins a cluster.
    Joins,
}

impl Running {
    /// How to reach it.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// How it came to its data.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Where it listens for peers and for gossip, if it does.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.addresses
    }

    /// Ends it: what was answered is durable, what is under way may or may not have happened.
    pub fn stop(self) {
        self.handle.inbox.push(Job::Stop);
        let mut threads = self.threads.into_iter();
        if let Some(node) = threads.next() {
            // A thread that panicked has said so already.
            let _ = node.join();
        }
        // The others wait for the disk, which may hang: the end of the process does not wait for it. What was
        // answered is durable without them.
        let begun = Instant::now();
        let mut left: Vec<JoinHandle<()>> = threads.collect();
        let longest = if self.handle.stopped.is_hung() {
            Duration::ZERO
        } else {
            LONGEST_END
        };
        while !left.is_empty() && begun.elapsed() < longest {
            left.retain(|thread| !thread.is_finished());
            thread::park_timeout(Duration::from_millis(1));
        }
        if !left.is_empty() {
            tracing::warn!("the log is not closed: its disk hangs");
        }
    }
}

/// The threads of a node that has ended have so long to write what is left.
const LONGEST_END: Duration = Duration::from_secs(10);

/// Starts a node on its data directory: alone, as the beginning of a cluster, or as one of many.
pub fn start(options: Options) -> Result<Running, StartError> {
    let place = options.data_dir.join("db");
    let in_directory = |source| StartError::Directory {
        path: place.clone(),
        source,
    };
    let order = Order::read(&options.data_dir).map_err(order_failed(&options.data_dir))?;
    let set_aside = directory::set_aside(&options.data_dir).map_err(in_directory)?;
    if !place.exists() {
        begin::check_set_aside(&options.data_dir, order.as_ref(), &set_aside)?;
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
    let clock = Clock::new();
    let doors = options.peers.as_ref().map(Doors::open).transpose()?;

    let book = Book::find(&opened.recovered.node)?;
    let known = Identity::find(&opened.recovered.node)?;
    if let Some(identity) = &known {
        identity.check(options.node, &options.cluster)?;
    }
    if let Some(why) = book.stopped {
        return Err(BeginError::OlderCopy(why).into());
    }
    let expected = options.peers.as_ref().and_then(|one| one.expected_cluster);
    let (mut identity, origin, hints) = match known {
        Some(identity) if identity.cluster_id.is_some() => {
            check_membership(&identity, expected, &book)?;
            (identity, Origin::Resumed, Vec::new())
        }
        // A node that has not found a cluster yet has nothing that it could lose.
        unjoined => {
            let me = ReplicaId::new(options.node, random()? as u32);
            let cluster = options.cluster.clone();
            let fresh = Identity::born(me, clock.now().wall_ms, cluster, None);
            let born = unjoined.unwrap_or(fresh);
            let decision = begin::decide(&begin::Beginning {
                data_dir: &options.data_dir,
                name: &options.name,
                peers: options.peers.as_ref(),
                doors: doors.as_ref(),
                born: &born,
                order: order.as_ref(),
                set_aside: &set_aside,
            })?;
            match decision {
                begin::Decision::Found => {
                    let identity = Identity {
                        cluster_id: Some(random()? | 1),
                        founder: true,
                        ..born
                    };
                    (identity, Origin::Founded, Vec::new())
                }
                begin::Decision::Join(hints) => (born, Origin::Joins, hints),
            }
        }
    };
    if origin == Origin::Joins {
        // From here on the directory says that the node waits.
        let waits = Order::new(What::Join, Because::Waiting);
        let written = match order.as_ref().map(|order| order.what) {
            Some(What::Join) => Ok(()),
            // An order to found ends here: a cluster has answered.
            Some(What::Found | What::FoundDespiteOldData) => waits.write(&options.data_dir),
            None => waits.write_new(&options.data_dir).map(drop),
        };
        written.map_err(order_failed(&options.data_dir))?;
    }
    identity.starts += 1;
    let mut batch = tenure_log::Batch::new();
    let (key, value) = identity.record();
    // In the same record as the first word of this start: the log forgets the cut with it.
    let suspects = tenure_journal::suspects(&opened.recovered);
    batch
        .node(key, &value)
        .and_then(|()| tenure_journal::note_suspects(&suspects, &mut batch))
        .map_err(|error| StartError::Write(error.to_string()))?;
    log.append(&mut batch)
        .and_then(|_| log.sync())
        .map_err(|e| StartError::Write(e.to_string()))?;

    if origin != Origin::Joins {
        // What it ordered has happened, durably.
        Order::remove(&options.data_dir).map_err(order_failed(&options.data_dir))?;
    }
    if let (Origin::Founded, Some(id)) = (origin, identity.cluster_id) {
        tracing::info!(
            cluster = format!("{id:016x}"),
            "this node has founded a cluster"
        );
    }
    // All births are one write: a founder that has nothing was stopped before it, and has
    // promised nothing to anybody.
    let is_new = identity.founder && opened.recovered.groups.is_empty();
    let mut recovery = journal::replay(opened.recovered, &snapshots)?;
    if is_new {
        for group in 0..=options.cluster.group_count {
            recovery.born(GroupId(group), vec![identity.me]);
        }
    }
    let me = identity.me;
    let known_nodes = book.cards.iter().map(|card| card.member.node);
    let config = Config {
        me: identity.me,
        cluster: options.cluster,
        limits: options.limits,
        start: identity.starts,
        seed: random()?,
        nodes: known_nodes.chain([options.node]).collect(),
    };
    let (node, first) = Node::start(config, recovery, clock.now()).map_err(ReplayError::Records)?;

    let inbox = Arc::new(Inbox::default());
    let gauges = Arc::new(LogGauges::default());
    let stopped = Arc::new(Stopped::default());
    let (journal, writes) = mpsc::channel();
    let (chores, todo) = mpsc::channel();
    let mesh_events = options
        .peers
        .is_some()
        .then(tokio::sync::mpsc::unbounded_channel);
    let rules = options.peers.as_ref().map(|peers| peers.rules.clone());
    let mesh = mesh_events.as_ref().map(|(sender, _)| sender.clone());
    let seat = Seat::new(Driver {
        node,
        clock,
        inbox: Arc::clone(&inbox),
        stopped: Arc::clone(&stopped),
        journal: journal.clone(),
        gauges: Arc::clone(&gauges),
        chores: chores.clone(),
        replies: HashMap::default(),
        listeners: HashMap::default(),
        wakers: Vec::new(),
        next_request: 1,
        next_cancel_ms: 0,
        outlets: HashMap::new(),
        mover: rules.map(|rules| Mover::new(rules, clock.now().monotonic_ms)),
        mesh: mesh.clone(),
        stop_at_ms: None,
        jobs: Vec::new(),
        batch: None,
        held: Vec::new(),
        inputs: Vec::new(),
        due_ms: 0,
        suspects: suspects.len(),
        suspects_told_ms: clock.now().monotonic_ms + driver::SUSPECTS_TOLD_EVERY_MS,
        over: None,
    });
    let journal_thread = {
        let journal = Journal {
            log,
            snapshots: snapshots.clone(),
            inbox: Arc::clone(&inbox),
            seat: Arc::clone(&seat),
            chores,
            durable: options.durable,
            held: VecDeque::new(),
            synced: Mark(0),
            turns: 0,
            gauges,
            #[cfg(test)]
            place: place.clone(),
            confirm_at: None,
        };
        spawn("journal", move || journal.run(&writes))?
    };
    let chores_thread = {
        let (inbox, journal) = (Arc::clone(&inbox), journal.clone());
        spawn("chores", move || {
            chores::run(&todo, &snapshots, &inbox, &journal)
        })?
    };
    let mut threads = vec![journal_thread, chores_thread];
    let mut addresses = None;
    let joined = watch::Sender::new(Joined::Yes);
    let known = watch::Sender::new(Known {
        cluster: identity.cluster_id,
        ..Known::default()
    });
    if let (Some(mut peers), Some(doors), Some(events)) = (options.peers, doors, mesh_events) {
        if let Some(order) = order.filter(|_| origin == Origin::Joins) {
            // Nodes of the cluster that it was in are as good as seeds.
            let more = order.peers.into_iter().map(|peer| peer.gossip);
            let more = more.filter(|address| !address.is_empty());
            peers.seeds.extend(more);
            peers.seeds.dedup();
        }
        if identity.cluster_id.is_none() {
            joined.send_replace(Joined::NotYet);
        }
        addresses = Some((doors.peers, doors.gossip));
        let start = peers::Start {
            card: doors.card(&options.name, &peers, &identity),
            options: peers,
            identity,
            data_dir: options.data_dir,
            book,
            hints,
            listener: doors.listener,
            socket: doors.socket,
            inbox: Arc::clone(&inbox),
            seat: Arc::clone(&seat),
            journal,
            clock,
            joined: joined.clone(),
            known: known.clone(),
        };
        threads.push(spawn("peers", move || peers::run(start, events))?);
    }
    threads.insert(0, {
        let seat = Arc::clone(&seat);
        spawn("node", move || seat.run(first))?
    });
    let handle = Handle {
        inbox,
        seat,
        stopped,
        mesh,
        joined,
        known,
        me,
        name: options.name.into(),
    };
    Ok(Running {
        handle,
        threads,
        addresses,
        origin,
    })
}

/// Says what was odd about the end of a log that could be opened all the same.
fn report_end(place: &Path, recovered: &tenure_log::Recovered) {
    let place = place.display();
    if recovered.end_unreadable {
        tracing::warn!(
            %place,
            "the end marker of the log is damaged: lost files and a lost end would not be noticed"
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
            "the end of the log was cut off: a write that was not finished. Nothing that a sync \
             had confirmed is lost"
        ),
        TruncationKind::Suspicious => tracing::error!(
            %place, %file, offset, bytes,
            "the end of the log was cut off, and no crash explains it: records that were confirmed \
             may be lost. Check the disk. One of several nodes takes no part in elections until a \
             leader has brought it up to date; for a new start: tenure cluster rejoin. The only \
             node goes on with what it has; to go back to a backup: tenure cluster restore"
        ),
    }
}

/// Whether a node may go on in the cluster that its directory belongs to.
fn check_membership(
    identity: &Identity,
    expected: Option<u64>,
    book: &Book,
) -> Result<(), BeginError> {
    let ours = identity.cluster_id.unwrap_or(0);
    if let Some(expected) = expected.filter(|expected| *expected != ours) {
        let found = format!("the data directory belongs to cluster {ours:016x}");
        return Err(BeginError::Unexpected { expected, found });
    }
    match &book.standing.gave_way_to {
        Some(rival) => Err(BeginError::GaveWay(rival.sentence(ours))),
        None => Ok(()),
    }
}

fn order_failed(data_dir: &std::path::Path) -> impl FnOnce(std::io::Error) -> BeginError {
    let path = data_dir.join(order::FILE);
    move |source| BeginError::Order { path, source }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(run)
}

fn random() -> std::io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}
