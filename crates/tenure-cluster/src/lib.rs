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
mod driver;
mod gossip;
mod handle;
mod identity;
mod inbox;
mod journal;
mod measure;
mod mover;
pub mod offline;
mod peers;
mod reconcile;
#[cfg(test)]
mod recorded;
mod report;
mod seat;
mod stream;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tenure_log::{Log, OpenError, RealDisk};
use tenure_node::{ClusterConfig, Config, GroupId, Limits, Mark, Member, Node, NodeId};
use tokio::sync::watch;

use begin::Doors;
use driver::{Clock, Driver};
use handle::Stopped;
use identity::Identity;
use inbox::{Inbox, Job};
use journal::Journal;
use mover::Mover;
use peers::{Joined, Remembered};
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
    #[error("the log in {path} cannot be opened: {source}")]
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
}

impl Running {
    /// How to reach it.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Where it listens for peers and for gossip, if it does.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.addresses
    }

    /// Ends it: what was answered is durable, what is under way may or may not have happened.
    pub fn stop(self) {
        self.handle.inbox.push(Job::Stop);
        for thread in self.threads {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// Starts a node on its data directory: alone, as the beginning of a cluster, or as one of many.
pub fn start(options: Options) -> Result<Running, StartError> {
    let place = options.data_dir.join("db");
    let in_directory = |source| StartError::Directory {
        path: place.clone(),
        source,
    };
    std::fs::create_dir_all(&place).map_err(in_directory)?;
    let disk = RealDisk::open(&place).map_err(in_directory)?;
    let opened = tenure_log::open(disk, tenure_log::Options::default()).map_err(|source| {
        StartError::Log {
            path: place.clone(),
            source,
        }
    })?;
    let (mut log, snapshots) = (opened.log, opened.snapshots);
    let clock = Clock::new();
    let doors = options.peers.as_ref().map(Doors::open).transpose()?;

    let known = Identity::find(&opened.recovered.node)?;
    let mut identity = match known {
        Some(identity) => {
            identity.check(options.node, &options.cluster)?;
            identity
        }
        None => {
            let me = Member {
                node: options.node,
                life: random()? as u32,
            };
            let cluster = options.cluster.clone();
            let born = Identity::born(me, clock.now().wall_ms, cluster, Some(random()? | 1));
            let founds = match (&options.peers, &doors) {
                (Some(peers), Some(doors)) => begin::founds(&options.name, peers, doors, &born)?,
                _ => true,
            };
            Identity {
                cluster_id: born.cluster_id.filter(|_| founds),
                founder: founds,
                ..born
            }
        }
    };
    identity.starts += 1;
    let mut batch = tenure_log::Batch::new();
    let (key, value) = identity.record();
    batch
        .node(key, &value)
        .map_err(|error| StartError::Write(error.to_string()))?;
    log.append(&mut batch)
        .and_then(|_| log.sync())
        .map_err(|e| StartError::Write(e.to_string()))?;

    let remembered = Remembered::find(&opened.recovered.node)?;
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
    let known_nodes = remembered.cards.iter().map(|card| card.member.node);
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
            syncs: Histogram::default(),
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
    if let (Some(peers), Some(doors), Some(events)) = (options.peers, doors, mesh_events) {
        if identity.cluster_id.is_none() {
            joined.send_replace(Joined::NotYet);
        }
        addresses = Some((doors.peers, doors.gossip));
        let start = peers::Start {
            card: doors.card(&options.name, &peers, &identity),
            options: peers,
            identity,
            book: remembered.cards,
            removed: remembered.removed.into_iter().collect(),
            listener: doors.listener,
            socket: doors.socket,
            inbox: Arc::clone(&inbox),
            seat: Arc::clone(&seat),
            journal,
            clock,
            joined: joined.clone(),
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
        me,
        name: options.name.into(),
    };
    Ok(Running {
        handle,
        threads,
        addresses,
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(run)
}

fn random() -> std::io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}
