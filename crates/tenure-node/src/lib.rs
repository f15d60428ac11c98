//! One replicated node of Tenure, as steps.
//!
//! ```text
//!                 ┌──────────────────────────── Node ────────────────────────────┐
//!   requests ───▶ │ span: calls, routing, sweeps ──▶ group: batch, entry, apply  │ ───▶ answers, events
//!   frames ─────▶ │                                   ├ leases, rounds           │ ───▶ frames
//!   persisted ──▶ │                                   └ consensus (Raft)         │ ───▶ writes
//!                 └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! There is no thread here, no socket, no file, no clock and no randomness: time and a seed come
//! in, and equal inputs give equal outputs. The same node runs under real drivers and under the
//! simulator.
//!
//! # What a driver owes
//!
//! **Starting.** Make a [`Recovery`]: give it what the log held for each group
//! ([`Recovery::group`]), then the snapshots it asks for ([`Recovery::snapshots`],
//! [`Recovery::state`]). On an empty disk call [`Recovery::born`] for each group that this node
//! takes part in from birth. Then [`Node::start`]. The identity in [`Config::me`] belongs to the
//! data directory: a directory that was lost means a new [`ReplicaId::incarnation`]. A node that lost a part
//! of its log must not be started under its old incarnation.
//!
//! **Stepping.** Call [`Node::step`] with the time and all inputs that are at hand: one call is one
//! turn, and everything waiting for a group in it becomes one entry, everything to be written one
//! batch, everything for a peer one frame. Call it again not later than [`Node::wake_in`] says, and
//! at least twice a second, with no inputs if there are none.
//!
//! **Writing.** [`Output::Write`] batches are written in order, each atomically. When a batch and
//! all before it are durable, [`Input::Persisted`] reports its mark; several may be reported by the
//! last one. A batch with [`SyncMode::Lazy`] needs no sync of its own, but counts as durable only when
//! it is. A [`LogWrite::Cut`] stands on a snapshot that was saved by [`Output::SaveSnapshot`] and
//! reported by [`Input::SnapshotSaved`]; a [`LogWrite::Installed`] on one that comes with its batch in
//! [`WriteBatch::snapshots`] and must be durable *before* the batch is written. Older snapshots of the
//! group may be deleted when the batch is durable.
//! A write or sync that fails is never tried again: [`Input::WriteFailed`], and the node is over.
//!
//! **Sending.** [`Output::Send`] frames leave in the order given, per peer and lane; one with
//! [`DurableAfter::Persisted`] leaves when that mark is durable and not before, and when the node is sure
//! to be told of the mark before it is told of any answer. Frames may be lost; a driver that knows
//! that it lost some says so with [`Input::PeerDown`], or with [`Input::BulkLost`] on that lane. A frame that arrives twice or late is
//! recognised and does no harm.
//!
//! **Answering.** Each [`Input::Request`] gets exactly one [`Output::Answer`], unless it is
//! cancelled or the node stops first. Answers rest only on what is durable on a quorum.
//!
//! **Stopping.** After [`Output::Stop`] nothing more comes out. [`Input::Drain`] hands leaderships
//! over first. A node may be dropped at any time; that is a crash, and loses nothing acknowledged.

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
mod random;
mod read_index;
mod recovery;
pub mod replica_view;
mod request;
mod snapshot;
mod state_machine;

use bytes::Bytes;
use tenure_core::event::{Event, LockChange};
use tenure_core::path::Namespace;
use tenure_core::value::OwnerId;

pub use codec::CodecError;
pub use config::{ClusterConfig, Config, Limits};
pub use consensus::{
    Base, Entry, HardState, LogPosition, Membership, MembershipChange, MembershipStep, Payload,
    Progress, Role,
};
pub use identity::{GroupId, Mark, NodeId, ReplicaId, StepTime};
pub use inspect::{LogView, LoggedCommand, ReplicaStanding, read_entry};
pub use node::{GroupStatus, MAX_BATCH_BYTES, Node, Status};
pub use recovery::{RecoveredBytes, Recovery, RecoveryError};
pub use request::{
    AcquireAnswer, AcquireRequest, Answer, AssertAnswer, ClientRequest, Deadlock, EffectCertainty,
    ExplainAnswer, Failure, ReleaseRequest, RenewAnswer, WaitEdge,
};

pub use snapshot::lift;

/// Names a request among those of one process; the driver chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a subscription or a watch among those of one process; the driver chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// All that can happen to a node.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client's call. Answered once, before `timeout_ms` have passed or with a failure then.
    Request {
        /// Its name, not in use.
        id: RequestId,
        /// What is asked.
        request: Box<ClientRequest>,
        /// How long the client waits.
        timeout_ms: u64,
    },
    /// The client is gone: no answer is wanted. What was asked may still happen.
    Cancel {
        /// Which call.
        id: RequestId,
    },
    /// Somebody wants the events of an owner (R119: Subscribe delivers from now on). A stream may
    /// be for many, for each of them once in its incarnation.
    Subscribe {
        /// Where they go.
        id: StreamId,
        /// Whose events.
        owner: OwnerId,
    },
    /// Somebody wants to see the changes under a prefix (E8: Watch lock changes).
    Watch {
        /// Its name, not in use.
        id: StreamId,
        /// Under what.
        prefix: Namespace,
        /// Whether to begin with what is there.
        start: WatchStart,
    },
    /// Nobody wants the events of a stream any more, whosever they are.
    Unsubscribe {
        /// Where they went.
        id: StreamId,
    },
    /// A watch is over.
    Unwatch {
        /// Which.
        id: StreamId,
    },
    /// A frame from a peer whose identity is proven.
    Frame {
        /// Who sent it.
        from: NodeId,
        /// Its bytes.
        bytes: Bytes,
    },
    /// A connection to a peer stands (again).
    PeerUp {
        /// Which.
        node: NodeId,
    },
    /// A connection broke: frames may be lost, and if it led something, that is news.
    PeerDown {
        /// Which.
        node: NodeId,
    },
    /// Frames on the bulk channel to a peer were lost: transfers to it begin anew.
    BulkLost {
        /// To whom.
        node: NodeId,
    },
    /// Which nodes there are, this one included, as far as the driver knows.
    Cluster {
        /// All of them.
        nodes: Vec<NodeId>,
    },
    /// Every batch up to this mark is durable.
    Persisted {
        /// The mark.
        mark: Mark,
    },
    /// A write or sync failed. The node is over (R145: Health needs a working quorum).
    WriteFailed {
        /// What happened.
        why: String,
    },
    /// A snapshot is durable.
    SnapshotSaved {
        /// Of which group.
        group: GroupId,
        /// Up to which entry.
        index: u64,
    },
    /// The log wants to free the file in which this group's oldest entries are: make a snapshot.
    CutLog {
        /// Which group.
        group: GroupId,
    },
    /// Change who replicates a group; the leader's node must be asked. Answered by [`Output::Changed`].
    Change {
        /// Its name, chosen by the driver.
        id: RequestId,
        /// Which group.
        group: GroupId,
        /// What is to change.
        change: MembershipChange,
    },
    /// Hand a group over to another voter, if this node leads it.
    Transfer {
        /// Which group.
        group: GroupId,
        /// To whom.
        to: ReplicaId,
    },
    /// Hand every group over that this node leads; it is about to stop.
    Drain,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchStart {
    /// With what happens next.
    Changes,
    /// With the present holds and waiters.
    Snapshot,
}

/// All that a node wants done. See the contract above for the order.
#[derive(Clone, Debug)]
pub enum Output {
    /// Write this to the log.
    Write(WriteBatch),
    /// Send this to a peer.
    Send {
        /// To whom.
        to: NodeId,
        /// On which stream.
        channel: Channel,
        /// Not before this.
        after: DurableAfter,
        /// The bytes.
        frame: Bytes,
    },
    /// Save this beside the log, then report [`Input::SnapshotSaved`].
    SaveSnapshot(Snapshot),
    /// A call is answered.
    Answer {
        /// Which.
        id: RequestId,
        /// How.
        answer: Result<Answer, Failure>,
        /// What is left of the request: memory is freed best where it was found.
        request: Option<Box<ClientRequest>>,
    },
    /// A membership change was decided.
    Changed {
        /// Which.
        id: RequestId,
        /// How.
        result: Result<Membership, ChangeRefused>,
    },
    /// An event for a subscriber (R119–R124).
    Event {
        /// Which subscription.
        id: StreamId,
        /// What happened.
        event: Event,
    },
    /// A change for a watch (E8).
    Change {
        /// Which watch.
        id: StreamId,
        /// What is seen.
        change: WatchEvent,
    },
    /// A subscription or watch cannot go on.
    Closed {
        /// Which.
        id: StreamId,
        /// Why.
        why: Failure,
    },
    /// The node is over; nothing follows.
    Stop {
        /// Why.
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
    #[error("another change of this group is under way")]
    Busy,
    /// A learner has not caught up yet (R165: pace of membership changes).
    #[error("the learner has not caught up yet")]
    Behind,
    /// The node to be added is not known to have the rules that the group applies by.
    #[error(
        "the node to be added has not announced the rules of this group: start a newer release there"
    )]
    OlderRelease,
    /// It makes no sense for the present membership.
    #[error("the change does not fit the present membership")]
    Senseless,
}

/// What a watch sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// Holds and waiters that were there when the watch began: those of a group in one piece, so that
    /// a buffer for changes need not be as large as everything that is held.
    Present(Vec<LockChange>),
    /// All that was there has been told.
    SnapshotEnd,
    /// Something changed.
    Changed(LockChange),
}

/// On which of a peer's streams a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Everything that somebody waits for.
    Main,
    /// Snapshots: large, patient, with flow control of its own (R170: large transfers complete).
    Bulk,
}

/// What has to be durable before a frame may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DurableAfter {
    /// Nothing.
    Nothing,
    /// Everything up to this mark. A vote or an acknowledgement that leaves earlier can be lost
    /// with a crash and given twice.
    Persisted(Mark),
}

/// One atomic write to the log.
#[derive(Clone, Debug)]
pub struct WriteBatch {
    /// Reported when it is durable.
    pub mark: Mark,
    /// Whether it needs a sync of its own.
    pub sync: SyncMode,
    /// Snapshots that must be durable before the batch is written.
    pub snapshots: Vec<Snapshot>,
    /// What is written, in order.
    pub records: Vec<(GroupId, LogWrite)>,
}

/// Whether a batch must be synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncMode {
    /// It must.
    Now,
    /// It may wait for the next one.
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
    /// The replica is gone; everything written for its group before this record may be forgotten.
    /// A hard state follows it: that must be kept.
    Removed,
}

/// The state of a group up to an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Of which group.
    pub group: GroupId,
    /// Up to which entry.
    pub index: u64,
    /// The state, encoded.
    pub data: Bytes,
}
