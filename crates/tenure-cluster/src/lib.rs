//! A node on a real machine: threads, disk and time around [`tenure_node::Node`].
//!
//! ```text
//!   faces ──▶ Handle ──▶ inbox ──▶ node thread ──▶ journal thread ──▶ disk
//!                                       └────────▶ chores thread ──▶ snapshots, spare files
//! ```
//!
//! What is deliberately absent: rules. Whatever is decided is decided by the node; this crate only
//! moves what goes in and comes out. It knows nothing of gRPC, HTTP or users.

mod calls;
mod chores;
mod driver;
mod handle;
mod identity;
mod inbox;
mod journal;
mod stream;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tenure_log::{Log, OpenError, RealDisk};
use tenure_node::{ClusterConfig, Config, GroupId, Limits, Node, NodeId};

use driver::{Clock, Driver};
use handle::Stopped;
use identity::Identity;
use inbox::{Inbox, Job};
use journal::Journal;

pub use calls::{Calls, Heard};
pub use handle::Handle;
pub use identity::IdentityError;
pub use journal::{Durable, ReplayError};
pub use stream::{Stream, StreamEnd};

/// What a node needs to run here.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its data is.
    pub data_dir: PathBuf,
    /// Which node it is.
    pub node: NodeId,
    /// Fixed at birth.
    pub cluster: ClusterConfig,
    /// How much may wait and be kept.
    pub limits: Limits,
    /// Whether answers wait for the disk.
    pub durable: Durable,
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
}

impl Running {
    /// How to reach it.
    pub fn handle(&self) -> &Handle {
        &self.handle
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

/// Starts a cluster of one node, or what is left of it in the data directory.
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

    let known = Identity::find(&opened.recovered.node)?;
    let is_new = known.is_none();
    let mut identity = match known {
        Some(identity) => {
            identity.check(options.node, &options.cluster)?;
            identity
        }
        None => Identity::born(options.node, random()? as u32, options.cluster.clone()),
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

    let mut recovery = journal::replay(opened.recovered, &snapshots)?;
    if is_new {
        for group in 0..=options.cluster.group_count {
            recovery.born(GroupId(group), vec![identity.me]);
        }
    }
    let clock = Clock::new();
    let config = Config {
        me: identity.me,
        cluster: options.cluster,
        limits: options.limits,
        start: identity.starts,
        seed: random()?,
        nodes: vec![options.node],
    };
    let (node, first) = Node::start(config, recovery, clock.now()).map_err(ReplayError::Records)?;

    let inbox = Arc::new(Inbox::default());
    let stopped = Arc::new(Stopped::default());
    let (journal, writes) = mpsc::channel();
    let (chores, todo) = mpsc::channel();
    let journal_thread = {
        let journal = Journal {
            log,
            snapshots: snapshots.clone(),
            inbox: Arc::clone(&inbox),
            chores: chores.clone(),
            durable: options.durable,
            turns: 0,
        };
        spawn("journal", move || journal.run(&writes))?
    };
    let chores_thread = {
        let (inbox, journal) = (Arc::clone(&inbox), journal.clone());
        spawn("chores", move || {
            chores::run(&todo, &snapshots, &inbox, &journal)
        })?
    };
    let node_thread = {
        let driver = Driver {
            node,
            clock,
            inbox: Arc::clone(&inbox),
            stopped: Arc::clone(&stopped),
            journal,
            chores,
            replies: HashMap::new(),
            listeners: HashMap::new(),
            wakers: Vec::new(),
            next_request: 1,
        };
        spawn("node", move || driver.run(first))?
    };
    let handle = Handle { inbox, stopped };
    Ok(Running {
        handle,
        threads: vec![node_thread, journal_thread, chores_thread],
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
