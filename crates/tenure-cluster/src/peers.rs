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
mod dial;
mod hello;
mod link;
mod mesh;
mod outlet;
mod seal;
mod survey;
mod talk;
mod tls;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use tenure_node::{ClusterConfig, Lane, Member, NodeId};
use tokio::sync::{mpsc, oneshot, watch};

use crate::card::Card;
use crate::driver::Clock;
use crate::identity::Identity;
use crate::inbox::Inbox;
use crate::journal::{Note, Write};
use crate::seat::Seat;

pub use hello::Versions;
pub(crate) use hello::{Hello, Refusal, Token, same_facts};
pub(crate) use mesh::Event;
pub use mesh::NodeInfo;
pub(crate) use outlet::{Outlet, Parcel};
#[cfg(test)]
pub(crate) use talk::Talk;
pub(crate) use talk::{Remembered, put_members, take_members};
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
    pub begin: Begin,
    /// How eagerly groups are moved.
    pub rules: crate::Rules,
    /// What it says it speaks: [`Versions::OURS`], except where another release is to be played.
    pub versions: Versions,
}

/// Whether a node with an empty directory begins a cluster (R167).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
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

    pub(crate) fn token(&self) -> Token {
        Token::new(&self.0)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// Whether a node belongs to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    NotYet,
    Yes,
    /// It never will as it is: another configuration is needed.
    Excluded(String),
}

/// What the thread starts with.
pub(crate) struct Start {
    pub(crate) options: PeerOptions,
    pub(crate) identity: Identity,
    pub(crate) card: Card,
    pub(crate) book: Vec<Card>,
    pub(crate) removed: BTreeSet<Member>,
    pub(crate) listener: TcpListener,
    pub(crate) socket: UdpSocket,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) seat: Arc<Seat>,
    pub(crate) journal: Sender<Write>,
    pub(crate) clock: Clock,
    pub(crate) joined: watch::Sender<Joined>,
}

/// What every task of the thread knows.
pub(crate) struct Home {
    pub(crate) token: Token,
    tls: Option<PeerTls>,
    pub(crate) facts: ClusterConfig,
    versions: Versions,
    pub(crate) identity: RefCell<Identity>,
    pub(crate) card: RefCell<Card>,
    pub(crate) card_changed: tokio::sync::Notify,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) seat: Arc<Seat>,
    pub(crate) journal: Sender<Write>,
    pub(crate) joined: watch::Sender<Joined>,
    connections: Cell<u64>,
    adopting: tokio::sync::Mutex<()>,
}

/// Runs the mesh until the node stops. Called on a thread of its own.
pub(crate) fn run(
    start: Start,
    events: (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, mesh::run(start, events));
        }
        Err(error) => tracing::error!(%error, "no event loop: this node meets nobody"),
    }
}

impl Home {
    fn new(start: &Start, events: mpsc::UnboundedSender<Event>) -> Rc<Home> {
        Rc::new(Home {
            token: start.options.token.token(),
            tls: start.options.tls.clone(),
            facts: start.identity.cluster.clone(),
            versions: start.options.versions,
            identity: RefCell::new(start.identity.clone()),
            card: RefCell::new(start.card.clone()),
            card_changed: tokio::sync::Notify::new(),
            events,
            inbox: Arc::clone(&start.inbox),
            seat: Arc::clone(&start.seat),
            journal: start.journal.clone(),
            joined: start.joined.clone(),
            connections: Cell::new(0),
            adopting: tokio::sync::Mutex::new(()),
        })
    }

    /// Tells the mesh. Once that is gone there is nobody left to mind.
    pub(crate) fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.set(self.connections.get() + 1);
        self.connections.get()
    }

    /// What this node says first on a connection.
    pub(crate) fn hello(
        &self,
        lane: Lane,
        connection: u64,
        wanted: Option<NodeId>,
    ) -> std::io::Result<Hello> {
        let mut nonce = [0; 32];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
        let hello = Hello::new(
            self.facts.clone(),
            self.identity.borrow().cluster_id,
            self.card.borrow().clone(),
            (lane, connection),
            wanted,
            nonce,
        );
        Ok(Hello {
            versions: self.versions,
            ..hello
        })
    }

    /// Makes sure that both belong to one cluster. A node that joins remembers which, durably,
    /// before it says anything more.
    pub(crate) async fn agree(&self, theirs: Option<u64>) -> Result<(), String> {
        let _one_at_a_time = self.adopting.lock().await;
        let ours = self.identity.borrow().cluster_id;
        match (ours, theirs) {
            (Some(_), None) => Ok(()),
            (None, None) => Err("neither node belongs to a cluster yet".to_owned()),
            (Some(ours), Some(theirs)) if ours == theirs => Ok(()),
            (Some(_), Some(_)) => Err(Refusal::Cluster.to_string()),
            (None, Some(theirs)) => {
                let identity = Identity {
                    cluster_id: Some(theirs),
                    ..self.identity.borrow().clone()
                };
                self.note(identity.record()).await?;
                *self.identity.borrow_mut() = identity;
                self.joined.send_replace(Joined::Yes);
                tracing::info!("this node has joined the cluster");
                Ok(())
            }
        }
    }

    /// Writes something about this node to its log and waits until it is durable.
    pub(crate) async fn note(&self, record: (&'static [u8], Vec<u8>)) -> Result<(), String> {
        let (done, written) = oneshot::channel();
        let note = Note {
            key: record.0,
            value: record.1,
            done: Some(done),
        };
        let gone = "this node is stopping";
        self.journal.send(Write::Note(note)).map_err(|_| gone)?;
        Ok(written.await.map_err(|_| gone)?)
    }
}
