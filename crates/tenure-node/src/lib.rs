//! One replicated node of Tenure, as steps.

mod clock;
mod codec;
mod consensus;
mod identity;
mod random;

pub use codec::{CodecError, RecordKind, encode_record};
pub use consensus::{
    Base, Entry, HardState, Membership, MembershipChange, MembershipStep, Payload, Place,
};
pub use identity::{GroupId, Mark, Member, Moment, NodeId};

/// One write of a group to the node's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Entries; an index that exists and all behind it are replaced.
    Entries(Vec<Entry>),
    /// Term, vote and commit index.
    HardState(HardState),
    /// The log begins after this. Unless it is [`Base::BIRTH`], a snapshot of this index is durable.
    Base(Base),
    /// The replica is gone; everything written for its group may be forgotten.
    Removed,
}
