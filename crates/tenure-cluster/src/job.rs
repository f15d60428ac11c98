//! Jobs of the node: the items of the queue of its [`NodeRunner`](crate::node_runner::NodeRunner).

use std::task::Waker;

use tenure_node::{
    Answer, Channel, ClientRequest, Failure, GroupId, Input, NodeId, SnapshotImage, Status,
    StreamId,
};
use tokio::sync::oneshot;

use crate::call_batch::TaggedReply;
use crate::metrics::NodeMetrics;
use crate::peers::FrameWriter;
use crate::placement_plan::PlacementView;
use crate::reply_channel::Sender;
use crate::stream::StreamSender;

/// A request to the node thread.
pub(crate) enum Job {
    /// A client's call.
    Call {
        request: Box<ClientRequest>,
        timeout_ms: u64,
        reply: ReplyTo,
    },
    /// Starts the subscription or watch in `input`.
    Listen {
        id: StreamId,
        input: Input,
        listener: StreamSender,
    },
    /// Ends a subscription or watch.
    Unlisten { id: StreamId },
    /// Replies when all jobs before this one have been taken.
    Reached(oneshot::Sender<()>),
    /// An input for the node, passed on unchanged.
    Input(Input),
    /// Requests the node's metrics.
    Vitals(oneshot::Sender<NodeMetrics>),
    /// A connection to a peer was established: its frames go to this writer from now on.
    Connected {
        node: NodeId,
        channel: Channel,
        frame_writer: FrameWriter,
    },
    /// The connection to a peer was lost: its frames are dropped.
    Disconnected { node: NodeId, channel: Channel },
    /// A frame that waited for a sync found its send queue full or closed.
    Lost {
        node: NodeId,
        channel: Channel,
        frame_writer: FrameWriter,
    },
    /// The cluster view from which the rebalancer plans the groups that this node leads.
    View(PlacementView),
    /// Requests the node's status.
    Inspect(oneshot::Sender<Status>),
    /// Requests the term in which this node leads a group (backup).
    LedTerm(GroupId, oneshot::Sender<Option<u64>>),
    /// Requests the state of a group that this node leads (backup).
    State(GroupId, oneshot::Sender<Option<LedState>>),
    /// Requests the index of the last applied entry of the system group (handshake).
    SystemApplied(oneshot::Sender<u64>),
    /// The node ends at once, without a hand-over: its cluster stopped for a rival cluster, or its
    /// data is an older copy.
    Exclude(String),
    /// Transfers leaderships to other nodes, then ends the node.
    Stop,
}

/// State of a group at its serving leader.
pub(crate) struct LedState {
    /// Term of the leadership.
    pub(crate) term: u64,
    pub(crate) state: SnapshotImage,
}

/// The result of a call.
pub(crate) struct Reply {
    pub(crate) answer: Result<Answer, Failure>,
    /// The request travels back, because the allocator frees memory fastest on the thread that
    /// allocated it.
    pub(crate) request: Option<Box<ClientRequest>>,
}

/// Destination of an answer. Dropping it without an answer reports that the node has stopped.
pub(crate) enum ReplyTo {
    /// A caller that waits for this one answer.
    One(Sender<Reply>),
    /// The completion queue of a call batch.
    Tagged(TaggedReply),
}

impl ReplyTo {
    /// Returns whether the caller no longer waits.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            ReplyTo::One(one) => one.is_abandoned(),
            ReplyTo::Tagged(tagged) => tagged.is_abandoned(),
        }
    }

    /// Delivers the result. Returns the waker of the task that waits; the caller wakes it at the end
    /// of the turn.
    pub(crate) fn send(self, reply: Reply) -> Option<Waker> {
        match self {
            ReplyTo::One(one) => one.send(reply),
            ReplyTo::Tagged(tagged) => tagged.send(reply),
        }
    }
}
