//! Peer connections and the registry of known peers.
//!
//! ```text
//!   node ──frames──▶ FrameWriter ═══TCP═══▶ listener ──▶ queue of the other node
//!            registry: known nodes, their connections, control messages
//! ```
//!
//! One thread with its own event loop does this work, with one exception: the thread that has a
//! frame writes it to the socket itself, as far as the socket accepts it without blocking. The rest
//! of the frame goes to this thread. No thread blocks on a peer; the node is informed when a
//! connection is established or lost.

mod accept;
mod connection;
mod control;
mod dial;
mod frame_mac;
mod frame_writer;
mod handshake;
mod handshake_slots;
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

use crate::driver::{MachineClock, Runner};
use crate::identity::NodeIdentity;
use crate::job::Job;
use crate::log_writer::{LogJob, MetaRecord};
use crate::next_start::{self, NextStart};
use crate::node_record::NodeRecord;

#[cfg(test)]
pub(crate) use control::ControlMessage;
pub(crate) use control::{put_members, take_members};
pub(crate) use dial::REDIAL_WITHIN;
pub(crate) use frame_writer::{FrameWriter, OutboundMessage};
pub use handshake::Versions;
pub(crate) use handshake::{HandshakeRefusal, Hello, TokenKey, same_facts};
use incarnations::{BelongsToCluster, IncarnationMark, Succession};
pub(crate) use persisted_state::{ClusterStanding, PersistedState, StateRecord};
pub use registry::NodeInfo;
pub(crate) use registry::RegistryEvent;
use rival_cluster::ClusterHistory;
pub(crate) use rival_cluster::{ClusterClaim, supersede};
#[cfg(test)]
pub(crate) use rival_cluster::{RivalCluster, RivalOutcome};
pub use tls::{PeerTls, PeerTlsError};

/// Settings for discovery of and connections to peers.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// The shared secret of all nodes. It is never sent (R168 (internal authentication)).
    pub token: Secret,
    /// TLS settings of peer connections. `None`: frames are authenticated but not encrypted.
    pub tls: Option<PeerTls>,
    /// Address on which the node listens for peers.
    pub listen: SocketAddr,
    /// Address that is advertised to peers, `host` and port. Port 0: the bound port.
    pub advertise: (String, u16),
    /// Address on which the node listens for gossip.
    pub gossip_listen: SocketAddr,
    /// Address that is advertised for gossip. `None`: determined from the route to a seed.
    pub gossip_advertise: Option<String>,
    /// Gossip addresses of other nodes, `host:port`. Names are resolved at each use.
    pub seeds: Vec<String>,
    /// Interval at which the node announces itself to its seeds.
    pub announce_every: std::time::Duration,
    /// Approximate number of nodes in the cluster.
    pub expected_nodes: u32,
    /// Maximum length of a gossip packet.
    pub max_packet: usize,
    /// Address that is advertised to clients.
    pub public: String,
    /// Whether this node may create a cluster (R167 (bootstrap decision)).
    pub begin: BootstrapMode,
    /// Id of the only cluster that this node may belong to. `None`: any.
    pub expected_cluster: Option<u64>,
    /// Settings for moving replicas and leaderships.
    pub rules: crate::PlacementRules,
    /// Protocol versions that the node announces: [`Versions::OURS`], except in tests that act as
    /// another release.
    pub versions: Versions,
}

/// Whether a node with an empty directory may create a cluster (R167).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootstrapMode {
    /// Joins the cluster of its seeds.
    Join,
    /// Creates a cluster unless one answers. Refuses to start if none does and a seed is silent.
    Bootstrap,
    /// Like `Bootstrap`, but silent seeds are no obstacle.
    Force,
}

/// The cluster token. `Debug` does not print it.
#[derive(Clone)]
pub struct Secret {
    token: Vec<u8>,
    other: Option<Vec<u8>>,
}

impl Secret {
    /// Creates a token from these bytes.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret {
            token: bytes.to_vec(),
            other: None,
        }
    }

    /// Also accepts another token from peers, so that the token can be changed node by node.
    #[must_use]
    pub fn or(mut self, other: &[u8]) -> Secret {
        self.other = Some(other.to_vec());
        self
    }

    pub(crate) fn token(&self) -> TokenKey {
        let token = TokenKey::new(&self.token);
        match &self.other {
            Some(other) => token.or(other),
            None => token,
        }
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
    /// It cannot join with its current configuration; the reason is a sentence for the operator.
    Excluded(String),
}

/// What a running node knows about its cluster, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterView {
    /// Id of the node's cluster.
    pub(crate) cluster: Option<u64>,
    /// Sentences about other clusters with the same token.
    pub(crate) rivals: Vec<String>,
    /// Sentences about nodes that are refused because of their data directory, this node included.
    pub(crate) problems: BTreeMap<NodeId, String>,
}

/// What the peers thread starts with.
pub(crate) struct PeersStart {
    pub(crate) options: PeerOptions,
    pub(crate) data_dir: PathBuf,
    pub(crate) identity: NodeIdentity,
    pub(crate) node_record: NodeRecord,
    pub(crate) peer_state: PersistedState,
    /// Nodes that may belong to the cluster that this node joins.
    pub(crate) hints: Vec<NodeRecord>,
    pub(crate) listener: TcpListener,
    pub(crate) socket: UdpSocket,
    pub(crate) runner: Arc<Runner>,
    pub(crate) log_writer: Sender<LogJob>,
    pub(crate) clock: MachineClock,
    pub(crate) joined: watch::Sender<ClusterMembership>,
    pub(crate) known: watch::Sender<ClusterView>,
}

/// Time limit for a query of the peers thread to its own node thread.
const OWN_NODE: std::time::Duration = std::time::Duration::from_millis(500);

/// State that all tasks of the peers thread share.
pub(crate) struct PeersContext {
    pub(crate) token: TokenKey,
    tls: Option<PeerTls>,
    pub(crate) facts: ClusterConfig,
    versions: Versions,
    pub(crate) identity: RefCell<NodeIdentity>,
    pub(crate) node_record: RefCell<NodeRecord>,
    pub(crate) node_record_changed: tokio::sync::Notify,
    pub(crate) events: mpsc::UnboundedSender<RegistryEvent>,
    pub(crate) runner: Arc<Runner>,
    pub(crate) log_writer: Sender<LogJob>,
    pub(crate) joined: watch::Sender<ClusterMembership>,
    pub(crate) known: watch::Sender<ClusterView>,
    data_dir: PathBuf,
    expected: Option<u64>,
    /// The cluster that a node without one has chosen to join.
    chosen: Cell<Option<u64>>,
    pub(crate) standing: RefCell<ClusterStanding>,
    /// The newest known incarnation of each other node number.
    pub(crate) incarnations: RefCell<BTreeMap<NodeId, IncarnationMark>>,
    connections: Cell<u64>,
    adopting: tokio::sync::Mutex<()>,
}

/// Runs the registry until the node stops. Blocks the calling thread.
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
        Err(error) => {
            tracing::error!(%error, "cannot start the event loop for peers: this node cannot connect to other nodes")
        }
    }
}

/// Completes the listener's half of a handshake with a node whose connection is refused afterwards.
pub(crate) async fn answer_hello(
    tls: Option<&PeerTls>,
    stream: tokio::net::TcpStream,
    mine: impl FnOnce(&Hello) -> Hello,
    token: &TokenKey,
    admit: impl AsyncFnOnce(Hello, Result<u8, HandshakeRefusal>) -> Result<u8, String>,
) {
    let shaken = async {
        let stream = tls::accepted(tls, stream).await?;
        connection::answer(stream, mine, token, admit).await
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

    /// Sends an event to the registry. Ignored after the registry has ended.
    pub(crate) fn tell(&self, event: RegistryEvent) {
        let _ = self.events.send(event);
    }

    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.set(self.connections.get() + 1);
        self.connections.get()
    }

    /// Returns what this node claims about its cluster's history. `None` before it has joined.
    pub(crate) async fn claim(&self) -> Option<ClusterClaim> {
        self.identity.borrow().cluster_id?;
        let (reply, answer) = oneshot::channel();
        self.runner.push(Job::SystemApplied(reply));
        // A node that has ended does not answer. The last known value is still a valid lower bound.
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

    /// Merges a claim about this cluster's history and writes it to the log if it is new.
    pub(crate) fn merge(&self, claim: &ClusterClaim) {
        let mut standing = self.standing.borrow_mut();
        if standing.merge(claim) {
            self.write([persisted_state::standing(&standing)]);
        }
    }

    /// Returns the first message of this node on a connection.
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

    /// Returns the newest known incarnation of a node number.
    pub(crate) fn known_life(&self, node: NodeId) -> Option<IncarnationMark> {
        self.incarnations.borrow().get(&node).copied()
    }

    /// Dates the birth of this node, which has no cluster yet, after every earlier incarnation of
    /// its number.
    pub(crate) fn born_after(&self, earlier_ms: u64) {
        let mut identity = self.identity.borrow_mut();
        identity.born_ms = identity.born_ms.max(earlier_ms.saturating_add(1));
        self.node_record.borrow_mut().born_ms = identity.born_ms;
    }

    /// Compares this node with the newest incarnation of its number that another node knows.
    pub(crate) fn succession(&self, known: &IncarnationMark) -> Succession {
        let belongs = BelongsToCluster::of(self.identity.borrow().cluster_id);
        known.compare(&self.node_record.borrow(), belongs)
    }

    /// Checks that neither side runs as an old incarnation of its number or on an older copy of its
    /// data. Both sides check both, so that each can report it to its operator.
    fn check_lives(&self, hello: &Hello) -> Result<(), HandshakeRefusal> {
        let node = hello.node_record.node();
        let theirs = self.known_life(node);
        let theirs = theirs
            .map(|known| known.check(&hello.node_record, BelongsToCluster::of(hello.cluster)));
        let belongs = BelongsToCluster::of(self.identity.borrow().cluster_id);
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

    /// Checks that both nodes belong to one cluster. A joining node makes its membership durable
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
                Err("the node has not chosen its cluster yet".to_owned())
            }
            (None, Some(theirs)) => {
                if let Some(Succession::New { after_ms }) =
                    hello.known.map(|known| self.succession(&known))
                {
                    self.born_after(after_ms);
                    return Err(
                        "the node renews its identity first, then it connects again".to_owned()
                    );
                }
                // The claim comes before the membership: what this node claims for the cluster must
                // not be shorter than the cluster's history. The log thread writes in order, so the
                // claim is durable before the identity.
                if let Some(claim) = &hello.claim {
                    self.merge(claim);
                }
                let identity = NodeIdentity {
                    cluster_id: Some(theirs),
                    ..self.identity.borrow().clone()
                };
                self.note(identity.record()).await?;
                *self.identity.borrow_mut() = identity;
                // Only now: until the membership is durable, the order to join must survive a
                // crash.
                if let Err(error) = NextStart::remove(&self.data_dir) {
                    tracing::warn!(%error, "cannot remove {}; the next start removes it", next_start::FILE);
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

    /// Writes a record about this node to its log and waits until it is durable.
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
            // A log thread that has ended has already reported why.
            let _ = self
                .log_writer
                .send(LogJob::Note(MetaRecord { key, value, done }));
        }
    }
}
