//! One replicated Tenure node as a deterministic state machine without I/O.
//!
//! ```text
//!                ┌────────────────────────── Node ───────────────────────────┐
//!   requests ──▶ │ coordinator: calls, routing ─▶ group: batch, entry, apply │ ──▶ answers, events
//!   frames ────▶ │                                 ├ leases, ReadIndex       │ ──▶ frames
//!   persisted ─▶ │                                 └ consensus (Raft)        │ ──▶ writes
//!                └───────────────────────────────────────────────────────────┘
//! ```
//!
//! This crate has no threads, sockets, files, clocks or randomness of its own: the driver supplies
//! the time and a seed, and equal inputs give equal outputs. The same code runs under real drivers
//! and under the simulator.
//!
//! # The driver's contract
//!
//! **Starting.** Create a [`Recovery`]: pass it the log contents of each group
//! ([`Recovery::group`]), then the snapshots that it asks for ([`Recovery::snapshots`],
//! [`Recovery::state`]). On an empty disk call [`Recovery::born`] for each group of which this node
//! is a founding member. Then call [`Node::start`]. The identity in [`Config::me`] belongs to the
//! data directory: a lost directory means a new [`ReplicaId::incarnation`]. A node that lost a part
//! of its log must not be started under its old incarnation.
//!
//! **Stepping.** Call [`Node::step`] with the time and all available inputs. One call is one step:
//! all commands for a group become one entry, all writes one batch, and everything for a peer at
//! most three frames (immediate, after the writes, bulk), unless a size limit splits them. Call it
//! again no later than [`Node::wake_in`] says: within half a second, with no inputs if needed.
//!
//! **Writing.** Write [`Output::Write`] batches in order, each atomically. When a batch and all
//! before it are durable, report its mark with [`Input::Persisted`]; the last mark covers all
//! earlier ones. A batch with [`SyncMode::Lazy`] needs no sync of its own, but counts as durable
//! only after a sync. A [`LogWrite::Cut`] refers to a snapshot that was saved by
//! [`Output::SaveSnapshot`] and reported by [`Input::SnapshotSaved`]. A [`LogWrite::Installed`]
//! refers to a snapshot that comes with its batch in [`WriteBatch::snapshots`] and must be durable
//! *before* the batch is written. Encoding a large snapshot takes long, so a thread of its own
//! should call [`SnapshotImage::encode`]. Older snapshots of the group may be deleted when the batch is
//! durable. Never retry a failed write or sync: report [`Input::WriteFailed`], and the node stops.
//!
//! **Sending.** [`Output::Send`] frames leave in the given order, per peer and channel. A frame
//! with [`DurableAfter::Persisted`] leaves only after that mark is durable, and the node must
//! receive the mark before it receives any answer to the frame. Frames may be lost; a driver that
//! knows of a loss reports [`Input::PeerDown`], or [`Input::BulkLost`] for the bulk channel. A
//! frame that arrives twice or late is recognised and harmless.
//!
//! **Answering.** Each [`Input::Request`] gets exactly one [`Output::Answer`], unless it is
//! cancelled or the node stops first. Answers depend only on state that is durable on a quorum.
//!
//! **Stopping.** After [`Output::Stop`] the node has no further output. [`Input::Drain`] hands
//! leaderships over first. A node may be dropped at any time: this is a crash, and loses nothing
//! that was acknowledged.

mod batch;
mod budget;
mod clock;
mod codec;
mod config;
mod consensus;
mod coordinator;
mod deadline_heap;
pub mod durable;
mod group;
mod group_op;
mod group_set;
mod identity;
mod inspect;
mod leases;
mod node;
pub mod placement;
mod read_index;
mod recovery;
pub mod replica_view;
mod request;
mod snapshot;
mod state_machine;

use std::sync::Arc;

use bytes::Bytes;
use tenure_core::event::{Event, LockChange};
use tenure_core::path::Namespace;
use tenure_core::value::OwnerId;

pub use config::{ClusterConfig, Config, Limits};
pub use consensus::{
    Base, Entry, HardState, LogPosition, Membership, MembershipChange, MembershipStep, Payload,
    Progress, Role,
};
pub use identity::{GroupId, Mark, NodeId, ReplicaId, StepTime};
#[cfg(feature = "check")]
pub use inspect::effect_hash;
pub use inspect::{LogView, LoggedCommand, ReplicaStanding, read_entry};
pub use node::{GroupStatus, MAX_BATCH_BYTES, Node, Status};
pub use recovery::{RecoveredBytes, Recovery, RecoveryError};
pub use request::{
    AcquireAnswer, AcquireRequest, Answer, AssertAnswer, BrowseAnswer, BrowseQuery, BrowseResult,
    ClientRequest, Deadlock, EffectCertainty, ExplainAnswer, Failure, ReleaseRequest, RenewAnswer,
    WaitEdge,
};

pub use snapshot::{SnapshotImage, lift};

/// Identifies a request within one process. Chosen by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Identifies a subscription or a watch within one process. Chosen by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// An input of [`Node::step`].
#[derive(Clone, Debug)]
pub enum Input {
    /// A client's call. It is answered exactly once, at the latest with a failure after
    /// `timeout_ms`.
    Request {
        /// Its id; must not be in use.
        id: RequestId,
        /// The request.
        request: Box<ClientRequest>,
        /// How long the client waits.
        timeout_ms: u64,
    },
    /// The client is gone and no answer is wanted. The request may still take effect.
    Cancel {
        /// The call to cancel.
        id: RequestId,
    },
    /// Subscribes to the events of an owner (R119: Subscribe delivers from now on). One stream may
    /// subscribe to many owners, to each of them once.
    Subscribe {
        /// The stream that receives the events.
        id: StreamId,
        /// The owner.
        owner: OwnerId,
    },
    /// Starts a watch of all changes under a prefix (E8: Watch lock changes).
    Watch {
        /// Its id; must not be in use.
        id: StreamId,
        /// The prefix.
        prefix: Namespace,
        /// Whether the watch begins with a snapshot.
        start: WatchStart,
    },
    /// Ends all subscriptions of a stream.
    Unsubscribe {
        /// The stream.
        id: StreamId,
    },
    /// The reader of a paced watch has taken a [`WatchEvent::Present`]. A watch whose reader does not
    /// take them gets no more of its snapshot, and is closed after a while.
    WatchRead {
        /// The stream.
        id: StreamId,
    },
    /// Ends a watch.
    Unwatch {
        /// The stream.
        id: StreamId,
    },
    /// A frame from an authenticated peer.
    Frame {
        /// The sender.
        from: NodeId,
        /// Its bytes.
        bytes: Bytes,
    },
    /// A connection to a peer was established or restored.
    PeerUp {
        /// The peer.
        node: NodeId,
    },
    /// A connection to a peer broke: frames may be lost. Followers of groups that the peer leads
    /// campaign without waiting for the election timeout.
    PeerDown {
        /// The peer.
        node: NodeId,
    },
    /// Frames on the bulk channel to a peer were lost: transfers to it start over.
    BulkLost {
        /// The peer.
        node: NodeId,
    },
    /// The nodes of the cluster that the driver knows, this one included.
    Cluster {
        /// All of them.
        nodes: Vec<NodeId>,
    },
    /// Every batch up to this mark is durable.
    Persisted {
        /// The mark.
        mark: Mark,
    },
    /// A write or sync failed. The node stops (R145: Health needs a working quorum).
    WriteFailed {
        /// The error text.
        why: String,
    },
    /// A snapshot is durable.
    SnapshotSaved {
        /// The group.
        group: GroupId,
        /// The index of the last entry that the snapshot includes.
        index: u64,
    },
    /// The result of [`Output::EncodeSnapshot`].
    SnapshotEncoded(Snapshot),
    /// The log needs to free the file with this group's oldest entries: the group makes a snapshot.
    CutLog {
        /// The group.
        group: GroupId,
    },
    /// Changes the membership of a group. Only the node of the leader accepts it. Answered by
    /// [`Output::Changed`].
    Change {
        /// Its id, chosen by the driver.
        id: RequestId,
        /// The group.
        group: GroupId,
        /// The change.
        change: MembershipChange,
    },
    /// Transfers leadership of a group to another voter, if this node leads it.
    Transfer {
        /// The group.
        group: GroupId,
        /// The new leader.
        to: ReplicaId,
    },
    /// Transfers leadership of every group that this node leads; the node is about to stop.
    Drain,
}

/// How a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchStart {
    /// With the next change.
    Changes,
    /// With the present holds and waiters.
    Snapshot,
    /// With the present holds and waiters, as fast as the reader takes them: it answers every
    /// [`WatchEvent::Present`] with [`Input::WatchRead`].
    PacedSnapshot,
}

/// An output of [`Node::step`]. The crate documentation defines the order in which a driver handles
/// them.
#[derive(Clone, Debug)]
pub enum Output {
    /// Write this to the log.
    Write(WriteBatch),
    /// Send this to a peer.
    Send {
        /// The receiver.
        to: NodeId,
        /// The channel to the peer.
        channel: Channel,
        /// What must be durable before the frame is sent.
        after: DurableAfter,
        /// The bytes.
        frame: Bytes,
    },
    /// Encode this, save it beside the log, then report [`Input::SnapshotSaved`].
    SaveSnapshot(SnapshotImage),
    /// Encode this, then report [`Input::SnapshotEncoded`].
    EncodeSnapshot(SnapshotImage),
    /// A call is answered.
    Answer {
        /// Its id.
        id: RequestId,
        /// The answer, or why there is none.
        answer: Result<Answer, Failure>,
        /// The request, returned so that the thread that allocated it also frees it.
        request: Option<Box<ClientRequest>>,
    },
    /// A membership change was decided.
    Changed {
        /// Its id.
        id: RequestId,
        /// The new membership, or why the change did not begin.
        result: Result<Membership, ChangeRefused>,
    },
    /// An event for a subscriber (R119–R124).
    Event {
        /// The stream that subscribed.
        id: StreamId,
        /// The event.
        event: Event,
    },
    /// A change for a watch (E8).
    Change {
        /// The stream of the watch.
        id: StreamId,
        /// The change.
        change: WatchEvent,
    },
    /// A subscription or watch was closed by the node.
    Closed {
        /// The stream.
        id: StreamId,
        /// The reason.
        why: Failure,
    },
    /// This node's copy of the access control table is another one from now on. Must be in use
    /// before the frames that follow are sent.
    Auth(std::sync::Arc<tenure_core::auth::AuthTable>),
    /// The node has stopped; this is its last output.
    Stop {
        /// The reason.
        why: String,
    },
}

/// Why a membership change did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum ChangeRefused {
    /// This node does not lead the group.
    #[error("this node does not lead the group")]
    NotLeader,
    /// Another change is under way.
    #[error("another membership change of this group is in progress")]
    Busy,
    /// A learner has not caught up yet (R165: pace of membership changes).
    #[error("the learner has not caught up yet")]
    Behind,
    /// The node to be added is not known to have the rules that the group applies by.
    #[error(
        "the node to be added does not support the rules number of this group: start a newer release there"
    )]
    OlderRelease,
    /// The change does not fit the present membership.
    #[error("the change does not match the current membership")]
    Senseless,
}

/// One item of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// Holds and waiters that existed when the watch began. Each group sends its own as one item,
    /// so that a buffer that counts items need not be as large as the number of holds.
    Present(Vec<LockChange>),
    /// The snapshot is complete; only changes follow.
    SnapshotEnd,
    /// Something changed. All watches of a node share the value.
    Changed(Arc<LockChange>),
}

/// The channel to a peer on which a frame is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Consensus, operations and answers: everything that is latency-sensitive.
    Main,
    /// Snapshots: large and not urgent, with flow control of its own (R170: large transfers
    /// complete).
    Bulk,
}

/// What must be durable before a frame may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DurableAfter {
    /// Nothing.
    Nothing,
    /// Everything up to this mark. If a vote or an acknowledgement were sent earlier, a crash could
    /// erase it from disk, and the node could then vote again or lose an acknowledged entry.
    Persisted(Mark),
}

/// One atomic write to the log.
#[derive(Clone, Debug)]
pub struct WriteBatch {
    /// The mark to report with [`Input::Persisted`] when the batch is durable.
    pub mark: Mark,
    /// Whether it needs a sync of its own.
    pub sync: SyncMode,
    /// Snapshots that must be durable before the batch is written.
    pub snapshots: Vec<Snapshot>,
    /// The records, in order.
    pub records: Vec<(GroupId, LogWrite)>,
}

/// Whether a batch must be synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncMode {
    /// It must be synced before its mark is reported, without waiting for later batches.
    Now,
    /// It may wait for the sync of a later batch.
    Lazy,
}

/// One write of a group to the node's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogWrite {
    /// The group is born on this node: its log begins behind [`Base::BIRTH`], with an empty state.
    Born(Box<Base>),
    /// A snapshot of the group's own state is durable: entries up to it are no longer needed, those
    /// behind it stay.
    Cut(Box<Base>),
    /// A snapshot from a peer takes the place of all entries of the group.
    Installed(Box<Base>),
    /// Entries; an index that exists and all behind it are replaced.
    Entries(Vec<Entry>),
    /// Term, vote and commit index.
    HardState(HardState),
    /// The replica was removed; everything written for its group before this record may be dropped.
    /// The hard state that follows must be kept: it is the tombstone.
    Removed,
}

/// The state of a group up to an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The group.
    pub group: GroupId,
    /// The index of the last entry that the snapshot includes.
    pub index: u64,
    /// The state, encoded.
    pub data: Bytes,
}
