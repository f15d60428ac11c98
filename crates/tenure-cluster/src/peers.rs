//! The other nodes: connections to them, and what is known of them.
//!
//! ```text
//!   node ──frames──▶ Outlet ═══TCP═══▶ listener ──▶ inbox of the other node
//!            mesh: who there is, which pairs stand, who is told what
//! ```
//!
//! One thread with its own event loop does all of it, except that whoever has a frame writes it to the
//! socket himself where that takes it. Nobody waits for a peer: the rest goes to this thread, and the
//! node hears of connections that stand or broke.

mod accept;
mod connection;
mod control;
mod dial;
mod frame_mac;
mod frame_writer;
mod handshake;
mod incarnations;
pub(crate) mod persisted_state;
mod registry;
mod rival_cluster;
mod status;
mod tls;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use tenure_node::{Channel, ClusterConfig, NodeId};
use tokio::sync::{mpsc, oneshot, watch};

use crate::driver::MachineClock;
use crate::identity::NodeIdentity;
use crate::inbox::{Inbox, Job};
use crate::log_writer::{LogJob, MetaRecord};
use crate::next_start::{self, NextStart};
use crate::node_record::NodeRecord;
use crate::node_runner::NodeRunner;

#[cfg(test)]
pub(crate) use control::ControlMessage;
pub(crate) use control::{put_members, take_members};
pub(crate) use dial::REDIAL_WITHIN;
pub(crate) use frame_writer::{FrameWriter, OutboundMessage};
pub use handshake::Versions;
pub(crate) use handshake::{HandshakeRefusal, Hello, TokenKey, same_facts};
use incarnations::{IncarnationCheck, IncarnationMark, Succession};
pub(crate) use persisted_state::{ClusterStanding, PersistedState, StateRecord};
pub use registry::NodeInfo;
pub(crate) use registry::RegistryEvent;
use rival_cluster::ClusterHistory;
pub(crate) use rival_cluster::{ClusterClaim, supersede};
#[cfg(test)]
pub(crate) use rival_cluster::{RivalCluster, RivalOutcome};
pub use tls::{PeerTls, PeerTlsError};

/// How a node finds and meets the others.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// What all nodes know and never send (R168).
    pub token: Secret,
    /// How connections of peers are encrypted; `None` leaves them readable, though nobody can change
    /// what they carry.
    pub tls: Option<PeerTls>,
    /// Where peers are listened to.
    pub listen: SocketAddr,
    /// Where peers are told to come, `host:port`; port 0 means the one that was bound.
    pub advertise: (String, u16),
    /// Where gossip is listened to.
    pub gossip_listen: SocketAddr,
    /// Where gossip is told to come; `None` finds out by itself.
    pub gossip_advertise: Option<String>,
    /// Gossip addresses of others, `host:port`, resolved anew each time.
    pub seeds: Vec<String>,
    /// How often the seeds are told of this node.
    pub announce_every: std::time::Duration,
    /// How many nodes there will be, about.
    pub expected_nodes: u32,
    /// The longest gossip packet.
    pub max_packet: usize,
    /// What clients are told.
    pub public: String,
    /// Whether this node begins a cluster (R167).
    pub begin: BootstrapMode,
    /// The only cluster that this node may belong to; `None`: any.
    pub expected_cluster: Option<u64>,
    /// How eagerly groups are moved.
    pub rules: crate::PlacementRules,
    /// What it says it speaks: [`Versions::OURS`], except where another release is to be played.
    pub versions: Versions,
}

/// Whether a node with an empty directory begins a cluster (R167).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootstrapMode {
    /// It joins the one that its seeds know.
    Join,
    /// It begins one, unless its seeds know one; if no seed answers, it does not start.
    Bootstrap,
    /// It begins one even if no seed answers.
    Force,
}

/// The cluster's token. Never printed.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Keeps these bytes.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(bytes.to_vec())
    }

    pub(crate) fn token(&self) -> TokenKey {
        TokenKey::new(&self.0)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// Whether a node belongs to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClusterMembership {
    NotYet,
    Yes,
    /// It never will as it is: another configuration is needed.
    Excluded(String),
}

/// What is known of a node's cluster while it runs, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterView {
    /// Which cluster the node belongs to.
    pub(crate) cluster: Option<u64>,
    /// Other clusters with the same token, in sentences.
    pub(crate) rivals: Vec<String>,
    /// Nodes whose connections are refused because of their data directory, or this node's own, in
    /// sentences.
    pub(crate) problems: BTreeMap<NodeId, String>,
}

/// What the thread starts with.
pub(crate) struct PeersStart {
    pub(crate) options: PeerOptions,
    pub(crate) data_dir: PathBuf,
    pub(crate) identity: NodeIdentity,
    pub(crate) node_record: NodeRecord,
    pub(crate) peer_state: PersistedState,
    /// Nodes that may be in the cluster that this node is to join.
    pub(crate) hints: Vec<NodeRecord>,
    pub(crate) listener: TcpListener,
    pub(crate) socket: UdpSocket,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) runner: Arc<NodeRunner>,
    pub(crate) log_writer: Sender<LogJob>,
    pub(crate) clock: MachineClock,
    pub(crate) joined: watch::Sender<ClusterMembership>,
    pub(crate) known: watch::Sender<ClusterView>,
}

/// A node waits no longer for what its own node thread has applied.
const OWN_NODE: std::time::Duration = std::time::Duration::from_millis(500);

/// What every task of the thread knows.
pub(crate) struct PeersContext {
    pub(crate) token: TokenKey,
    tls: Option<PeerTls>,
    pub(crate) facts: ClusterConfig,
    versions: Versions,
    pub(crate) identity: RefCell<NodeIdentity>,
    pub(crate) node_record: RefCell<NodeRecord>,
    pub(crate) node_record_changed: tokio::sync::Notify,
    pub(crate) events: mpsc::UnboundedSender<RegistryEvent>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) runner: Arc<NodeRunner>,
    pub(crate) log_writer: Sender<LogJob>,
    pub(crate) joined: watch::Sender<ClusterMembership>,
    pub(crate) known: watch::Sender<ClusterView>,
    data_dir: PathBuf,
    expected: Option<u64>,
    /// The cluster that a node without one has chosen to join.
    chosen: Cell<Option<u64>>,
    pub(crate) standing: RefCell<ClusterStanding>,
    /// The newest life that is known of each other node number.
    pub(crate) incarnations: RefCell<BTreeMap<NodeId, IncarnationMark>>,
    connections: Cell<u64>,
    adopting: tokio::sync::Mutex<()>,
}

/// Runs the registry until the node stops. Called on a thread of its own.
pub(crate) fn run(
    start: PeersStart,
    events: (
        mpsc::UnboundedSender<RegistryEvent>,
        mpsc::UnboundedReceiver<RegistryEvent>,
    ),
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, registry::run(start, events));
        }
        Err(error) => tracing::error!(%error, "no event loop: this node meets nobody"),
    }
}

/// The listener's half of a handshake with a node that is sent away after it.
pub(crate) async fn answer_hello(
    tls: Option<&PeerTls>,
    stream: tokio::net::TcpStream,
    mine: impl FnOnce(&Hello) -> Hello,
    token: &TokenKey,
    admit: impl AsyncFnOnce(Hello, Result<u8, HandshakeRefusal>) -> Result<u8, String>,
) {
    let shaken = async {
        let (reader, writer) = tls::accepted(tls, stream).await?;
        connection::answer(reader, writer, mine, token, admit).await
    };
    if let Err(error) = shaken.await {
        tracing::debug!("incoming connection: {error}");
    }
}

impl PeersContext {
    fn new(start: &PeersStart, events: mpsc::UnboundedSender<RegistryEvent>) -> Rc<PeersContext> {
        Rc::new(PeersContext {
            token: start.options.token.token(),
            tls: start.options.tls.clone(),
            facts: start.identity.cluster.clone(),
            versions: start.options.versions,
            identity: RefCell::new(start.identity.clone()),
            node_record: RefCell::new(start.node_record.clone()),
            node_record_changed: tokio::sync::Notify::new(),
            events,
            inbox: Arc::clone(&start.inbox),
            runner: Arc::clone(&start.runner),
            log_writer: start.log_writer.clone(),
            joined: start.joined.clone(),
            known: start.known.clone(),
            data_dir: start.data_dir.clone(),
            expected: start.options.expected_cluster,
            chosen: Cell::new(None),
            standing: RefCell::new(start.peer_state.standing.clone()),
            incarnations: RefCell::default(),
            connections: Cell::new(0),
            adopting: tokio::sync::Mutex::new(()),
        })
    }

    /// Tells the registry. Once that is gone there is nobody left to mind.
    pub(crate) fn tell(&self, event: RegistryEvent) {
        let _ = self.events.send(event);
    }

    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.set(self.connections.get() + 1);
        self.connections.get()
    }

    /// What this node says of its cluster: nothing, before it has one.
    pub(crate) async fn claim(&self) -> Option<ClusterClaim> {
        self.identity.borrow().cluster_id?;
        let (reply, answer) = oneshot::channel();
        self.inbox.push(Job::SystemApplied(reply));
        // A node that has ended does not answer; what was known last is still true.
        if let Ok(Ok(applied)) = tokio::time::timeout(OWN_NODE, answer).await {
            self.merge(&ClusterClaim {
                history: ClusterHistory {
                    applied,
                    ..ClusterHistory::default()
                },
                ..ClusterClaim::default()
            });
        }
        Some(self.standing.borrow().claim())
    }

    /// Takes in what is known of this cluster's history, and remembers it.
    pub(crate) fn merge(&self, claim: &ClusterClaim) {
        let mut standing = self.standing.borrow_mut();
        if standing.merge(claim) {
            self.write([persisted_state::standing(&standing)]);
        }
    }

    /// What this node says first on a connection.
    pub(crate) async fn hello(
        &self,
        channel: Channel,
        connection: u64,
        wanted: Option<NodeId>,
    ) -> std::io::Result<Hello> {
        let mut nonce = [0; 32];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
        let hello = Hello::new(
            self.facts.clone(),
            self.identity.borrow().cluster_id,
            self.node_record.borrow().clone(),
            (channel, connection),
            wanted,
            nonce,
        );
        Ok(Hello {
            versions: self.versions,
            claim: self.claim().await,
            known: wanted.and_then(|node| self.known_life(node)),
            ..hello
        })
    }

    /// The newest life that is known of a node number.
    pub(crate) fn known_life(&self, node: NodeId) -> Option<IncarnationMark> {
        self.incarnations.borrow().get(&node).copied()
    }

    /// Dates the birth of this node, which has no cluster yet, after that of every earlier incarnation of its number.
    pub(crate) fn born_after(&self, earlier_ms: u64) {
        let mut identity = self.identity.borrow_mut();
        identity.born_ms = identity.born_ms.max(earlier_ms.saturating_add(1));
        self.node_record.borrow_mut().born_ms = identity.born_ms;
    }

    /// What this node is, by the newest life of its number that another one knows.
    pub(crate) fn succession(&self, known: &IncarnationMark) -> Succession {
        let belongs = IncarnationCheck::of(self.identity.borrow().cluster_id);
        known.compare(&self.node_record.borrow(), belongs)
    }

    /// Makes sure that neither side runs on an earlier incarnation of its number, or on an older copy of its data.
    /// Both sides check both, so that each can say it to its operator.
    fn check_lives(&self, hello: &Hello) -> Result<(), HandshakeRefusal> {
        let node = hello.node_record.node();
        let theirs = self.known_life(node);
        let theirs = theirs
            .map(|known| known.check(&hello.node_record, IncarnationCheck::of(hello.cluster)));
        let belongs = IncarnationCheck::of(self.identity.borrow().cluster_id);
        let ours = hello
            .known
            .map(|known| known.check(&self.node_record.borrow(), belongs));
        if let Some(Err(refusal)) = &ours {
            self.tell(RegistryEvent::Outdated {
                by: node,
                refusal: refusal.clone(),
            });
        } else if let Some(Err(refusal)) = &theirs {
            self.tell(RegistryEvent::Problem {
                node,
                refusal: refusal.clone(),
            });
        }
        ours.unwrap_or(Ok(()))?;
        theirs.unwrap_or(Ok(()))
    }

    /// Makes sure that both belong to one cluster. A node that joins remembers which, durably,
    /// before it says anything more.
    pub(crate) async fn agree(&self, hello: &Hello) -> Result<(), String> {
        let _one_at_a_time = self.adopting.lock().await;
        let ours = self.identity.borrow().cluster_id;
        if ours == hello.cluster || ours.is_none() || hello.cluster.is_none() {
            self.check_lives(hello)
                .map_err(|refusal| refusal.to_string())?;
        }
        match (ours, hello.cluster) {
            (Some(_), None) => Ok(()),
            (None, None) => Err("neither node belongs to a cluster yet".to_owned()),
            (Some(ours), Some(theirs)) if ours == theirs => {
                if let Some(claim) = &hello.claim {
                    self.merge(claim);
                }
                Ok(())
            }
            (Some(_), Some(_)) => Err(HandshakeRefusal::Cluster.to_string()),
            (None, Some(theirs)) if self.chosen.get() != Some(theirs) => {
                self.tell(RegistryEvent::Candidate(Box::new(hello.clone())));
                Err("it has not chosen its cluster yet".to_owned())
            }
            (None, Some(theirs)) => {
                if let Some(Succession::New { after_ms }) =
                    hello.known.map(|known| self.succession(&known))
                {
                    self.born_after(after_ms);
                    return Err("it dates its birth again and connects again".to_owned());
                }
                // Before this node speaks for the cluster: what it claims must not be shorter than what the
                // cluster has done. The log writer writes in order, so this is durable before the next record is.
                if let Some(claim) = &hello.claim {
                    self.merge(claim);
                }
                let identity = NodeIdentity {
                    cluster_id: Some(theirs),
                    ..self.identity.borrow().clone()
                };
                self.note(identity.record()).await?;
                *self.identity.borrow_mut() = identity;
                // Only now: until the membership is durable the order to join must survive a crash.
                if let Err(error) = NextStart::remove(&self.data_dir) {
                    tracing::warn!(%error, "{} stays; the next start removes it", next_start::FILE);
                }
                self.known.send_modify(|known| known.cluster = Some(theirs));
                self.joined.send_replace(ClusterMembership::Yes);
                tracing::info!(
                    cluster = format!("{theirs:016x}"),
                    "this node has joined the cluster"
                );
                Ok(())
            }
        }
    }

    /// Writes something about this node to its log and waits until it is durable.
    pub(crate) async fn note(&self, record: (&[u8], Vec<u8>)) -> Result<(), String> {
        let (done, written) = oneshot::channel();
        let note = MetaRecord {
            key: record.0.to_vec(),
            value: record.1,
            done: Some(done),
        };
        let gone = "this node is stopping";
        self.log_writer.send(LogJob::Note(note)).map_err(|_| gone)?;
        Ok(written.await.map_err(|_| gone)?)
    }

    /// Writes records to the log without waiting for them.
    pub(crate) fn write(&self, items: impl IntoIterator<Item = StateRecord>) {
        for (key, value) in items {
            let done = None;
            // A journal that is gone has said why already.
            let _ = self
                .log_writer
                .send(LogJob::Note(MetaRecord { key, value, done }));
        }
    }
}
