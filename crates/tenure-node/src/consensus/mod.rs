//! Raft behind a narrow interface: one replica of one group as a state machine without I/O.
//!
//! ```text
//!   tick, receive, propose, change, read, persisted ──▶ Replica ──take──▶ Ready
//! ```
//!
//! All other modules use only the types of this file; only the submodules name the Raft library.
//! The library's own parser never sees bytes from a socket or a disk: messages and entries arrive
//! as these types, decoded by [`codec`].
//!
//! [`Consensus::take`] runs the library's ready/advance cycle in one call, so a caller can never be
//! between the two.

mod convert;
mod id_interner;
mod replica;
mod store;
#[cfg(test)]
mod tests;

use bytes::Bytes;

use crate::{NodeId, ReplicaId, codec};

pub(crate) use replica::{ELECTION_TICKS, Replica, RestoredState};
pub(crate) use store::{EntriesSize, LogTail};

/// A position in a group's log. Two entries at one index are the same entry iff their terms are
/// equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// The term of the leader that proposed it.
    pub term: u64,
    /// Its index in the group's log.
    pub index: u64,
}

/// One entry of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its position in the log.
    pub place: LogPosition,
    /// Its content.
    pub payload: Payload,
}

impl Entry {
    /// Returns the content as it is written to the log. For commands this shares the memory of the
    /// entry.
    pub fn payload_bytes(&self) -> Bytes {
        codec::encode_payload(&self.payload)
    }
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: a leader's first entry, or a proposal that consensus refused.
    Empty,
    /// Encoded commands for the group's state machine.
    Commands(Bytes),
    /// A membership change.
    Membership(MembershipChange),
}

/// Raft hard state: term, vote, and (as a hint) commit index. It also contains the replica number,
/// because this record is all that stays on disk of a removed replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term it has seen.
    pub term: u64,
    /// The replica that it voted for in that term.
    pub vote: Option<ReplicaId>,
    /// The highest index known to be committed; may be old after a crash.
    pub commit: u64,
    /// The number of this replica ([`ReplicaId::replica`]).
    pub replica: u64,
    /// Tombstone: this replica was removed and its log deleted. No replica with this number or a lower one
    /// is ever opened here again.
    pub removed: bool,
    /// For an empty replica that had a log under the same identity before, which only the rules of release
    /// 0.1.0 allow: where that log ended. It takes no state from before this place.
    pub floor: LogPosition,
}

impl HardState {
    /// Returns the encoding that is written to the log.
    pub fn to_bytes(&self) -> Bytes {
        codec::encode_hard_state(self)
    }
}

/// The members of a group. While `outgoing` is not empty (joint consensus), decisions need both
/// majorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Replicas that vote.
    pub voters: Vec<ReplicaId>,
    /// Replicas that receive the log and do not vote.
    pub learners: Vec<ReplicaId>,
    /// The voters of the configuration that is being left.
    pub outgoing: Vec<ReplicaId>,
    /// Outgoing voters that become learners once the change is complete.
    pub learners_next: Vec<ReplicaId>,
}

impl Membership {
    /// Whether the configuration is joint: a change is not complete.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns the encoding that is written to the log with a base.
    pub fn to_bytes(&self) -> Bytes {
        codec::to_bytes(self).into()
    }

    /// Returns every replica that receives the log, each once, in order.
    pub fn everybody(&self) -> Vec<ReplicaId> {
        let mut all: Vec<ReplicaId> = self
            .voters
            .iter()
            .chain(&self.learners)
            .chain(&self.outgoing)
            .chain(&self.learners_next)
            .copied()
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// A membership change. Without steps it means: leave the joint configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipChange {
    /// The steps, which take effect together.
    pub steps: Vec<MembershipStep>,
}

/// One part of a [`MembershipChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipStep {
    /// Promote this learner to a voter.
    Voter(ReplicaId),
    /// Demote this voter to a learner; or, with the replica number 0, add a replica on this node in this
    /// incarnation as a learner. The new replica's number is the index of the entry ([`ReplicaId::replica`]).
    Learner(ReplicaId),
    /// Remove this replica.
    Remove(ReplicaId),
}

impl MembershipStep {
    /// Returns the replica that the step concerns.
    pub(crate) fn member(self) -> ReplicaId {
        match self {
            Self::Voter(member) | Self::Learner(member) | Self::Remove(member) => member,
        }
    }
}

/// How a membership change numbers the replicas that it adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaNumbering {
    /// By the rules of release 0.1.0 every replica has the number 0: one that is removed and added again
    /// has the same identity.
    None,
    /// The number is the index of the entry that adds the replica. A committed entry has one index, so the
    /// identity is never used twice in its group, and every replica that applies the entry agrees on it.
    ByIndex(u64),
}

impl MembershipChange {
    /// Whether the change may affect the set of voters, given the present membership. A change that
    /// only adds or removes learners does not.
    pub(crate) fn changes_voters(&self, present: &Membership) -> bool {
        let votes = |member: &ReplicaId| {
            present.voters.contains(member) || present.outgoing.contains(member)
        };
        self.steps.iter().any(|step| match step {
            MembershipStep::Voter(_) => true,
            MembershipStep::Learner(member) | MembershipStep::Remove(member) => votes(member),
        })
    }

    /// Returns the change with the identities of the added replicas filled in. `None` if it does
    /// not fit the present membership: then it has no effect, on every replica alike.
    pub(crate) fn resolve(
        &self,
        present: &Membership,
        numbering: ReplicaNumbering,
    ) -> Option<MembershipChange> {
        let ReplicaNumbering::ByIndex(index) = numbering else {
            return Some(self.clone());
        };
        let mut members = present.everybody();
        let mut steps = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let is_present = members.contains(&step.member());
            steps.push(match *step {
                MembershipStep::Learner(member) if !is_present => {
                    // A node has at most one replica of a group: the old one must be removed before
                    // a new one is added.
                    let occupied = members.iter().any(|one| one.shares_disk(member));
                    if member.replica != 0 || occupied {
                        return None;
                    }
                    let added = member.numbered(index);
                    members.push(added);
                    MembershipStep::Learner(added)
                }
                MembershipStep::Voter(_) if !is_present => return None,
                step => step,
            });
        }
        Some(MembershipChange { steps })
    }
}

/// Raft metadata of a snapshot: the last included entry and the membership at that point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// The last entry that it includes.
    pub place: LogPosition,
    /// The membership at that entry.
    pub membership: Membership,
}

impl Base {
    /// The base of a new group's log. It is not zero, so that an empty replica always needs a
    /// snapshot and never has to guess the first membership.
    pub const BIRTH: LogPosition = LogPosition { term: 1, index: 1 };
}

/// A message between two replicas of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The sender.
    pub(crate) from: ReplicaId,
    /// The receiver.
    pub(crate) to: ReplicaId,
    /// The sender's term; zero where the kind has none.
    pub(crate) term: u64,
    /// The kind of message.
    pub(crate) kind: MessageKind,
    /// Meaning depends on the kind, as does that of all numbers below.
    pub(crate) index: u64,
    /// The term of the entry at `index`.
    pub(crate) log_term: u64,
    /// The sender's commit index.
    pub(crate) commit: u64,
    /// The term of the entry at `commit`.
    pub(crate) commit_term: u64,
    /// Set if the answer is a refusal.
    pub(crate) reject: Option<u64>,
    /// A follower asks for a snapshot of at least this index; zero if it does not.
    pub(crate) request_snapshot: u64,
    /// Entries to append.
    pub(crate) entries: Vec<Entry>,
    /// The ReadIndex round of a heartbeat, or the kind of an election.
    pub(crate) context: Bytes,
    /// The base of a snapshot; the data is sent in chunks.
    pub(crate) snapshot: Option<Box<Base>>,
}

/// The kind of a [`Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum MessageKind {
    /// Entries from the leader.
    Append = 1,
    /// Answer to [`MessageKind::Append`].
    AppendAnswer = 2,
    /// A request for a vote.
    Vote = 3,
    /// Answer to [`MessageKind::Vote`].
    VoteAnswer = 4,
    /// Asks whether the receiver would vote, before the sender raises its term.
    PreVote = 5,
    /// Answer to [`MessageKind::PreVote`].
    PreVoteAnswer = 6,
    /// Heartbeat of the leader.
    Heartbeat = 7,
    /// Answer to [`MessageKind::Heartbeat`].
    HeartbeatAnswer = 8,
    /// A snapshot instead of entries.
    Snapshot = 9,
    /// Asks the receiver to campaign at once (leadership transfer).
    TimeoutNow = 10,
    /// Asks the leader to transfer leadership.
    TransferLeader = 11,
}

impl MessageKind {
    /// All kinds, in order of their numbers.
    pub(crate) const ALL: [MessageKind; 11] = [
        MessageKind::Append,
        MessageKind::AppendAnswer,
        MessageKind::Vote,
        MessageKind::VoteAnswer,
        MessageKind::PreVote,
        MessageKind::PreVoteAnswer,
        MessageKind::Heartbeat,
        MessageKind::HeartbeatAnswer,
        MessageKind::Snapshot,
        MessageKind::TimeoutNow,
        MessageKind::TransferLeader,
    ];

    /// Whether it answers a message of the receiver; then the receiver knows the sender.
    pub(crate) fn is_answer(self) -> bool {
        matches!(
            self,
            MessageKind::AppendAnswer
                | MessageKind::VoteAnswer
                | MessageKind::PreVoteAnswer
                | MessageKind::HeartbeatAnswer
        )
    }

    /// Whether only a leader sends it, and only to members.
    pub(crate) fn is_of_leader(self) -> bool {
        matches!(
            self,
            MessageKind::Append | MessageKind::Heartbeat | MessageKind::Snapshot
        )
    }
}

impl Message {
    /// Whether a non-empty append starts directly after `index` and has no gap. The library once
    /// acknowledged entries that it did not have because of such a message, so sender and receiver
    /// both check.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.kind != MessageKind::Append
            || self
                .entries
                .iter()
                .zip(self.index + 1..)
                .all(|(entry, expected)| entry.place.index == expected)
    }
}

/// Identifies one ReadIndex round. Never used twice, not even for a retry or by a restarted
/// process, because acknowledgements are matched by these bytes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReadRound {
    /// The node that started the round.
    pub(crate) node: NodeId,
    /// Drawn once per start of the process.
    pub(crate) nonce: u64,
    /// Counts the rounds of this process.
    pub(crate) number: u64,
}

/// Consensus did not accept a proposal; it will never take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProposalDropped;

/// Work that a replica hands out. Messages in `after` must wait until entries and hard state are
/// durable. The caller drains the lists and reuses them for the next replica.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    /// Report this number with [`Consensus::persisted`] once the writes are durable.
    pub(crate) number: u64,
    /// Install first: it replaces log and state.
    pub(crate) snapshot: Option<Base>,
    /// Write these; an existing index and all behind it are replaced.
    pub(crate) entries: Vec<Entry>,
    /// Write this, with the entries.
    pub(crate) hard_state: Option<HardState>,
    /// Whether the writes must be synced; a mere commit index need not be.
    pub(crate) must_sync: bool,
    /// Messages that may be sent at once.
    pub(crate) messages: Vec<Message>,
    /// Messages that may be sent when the writes are durable.
    pub(crate) after: Vec<Message>,
    /// Apply these, in order.
    pub(crate) committed: Vec<Entry>,
    /// ReadIndex rounds that a quorum has confirmed, with the commit index at their start.
    pub(crate) confirmed: Vec<(ReadRound, u64)>,
}

/// The Raft role of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follower or learner, with or without a known leader.
    Follower,
    /// Candidate in an election or a pre-vote.
    Candidate,
    /// Leader.
    Leader,
}

/// Replication progress of one member, as the leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The member has all entries up to this index.
    pub matched: u64,
    /// Whether the leader heard from it since the last quorum check.
    pub recent: bool,
}

/// The interface between the node and consensus. Kept small, so that another implementation can
/// replace it.
pub(crate) trait Consensus {
    /// Advances the Raft clock by one tick; `number` counts the ticks of the node.
    fn tick(&mut self, number: u64);
    /// Handles a message from another replica. A malformed one is counted and dropped.
    fn receive(&mut self, message: Message);
    /// Starts an election now.
    fn campaign(&mut self);
    /// Reacts to a broken connection to the leader without waiting for the election timeout. The
    /// replica with rank 0 campaigns now.
    fn leader_is_gone(&mut self, rank: usize);
    /// Appends commands to the log; only a leader may.
    fn propose(&mut self, data: Bytes) -> Result<LogPosition, ProposalDropped>;
    /// Appends a change of membership; only a leader without an unfinished change may.
    fn change(&mut self, change: &MembershipChange) -> Result<LogPosition, ProposalDropped>;
    /// Sets whether the replica refrains from campaigning, because its disk is too slow to write
    /// its own vote in time.
    fn hold_back(&mut self, yes: bool);
    /// Starts a ReadIndex round. The library may drop it silently.
    fn read(&mut self, round: ReadRound);
    /// Transfers leadership, if the target catches up in time.
    fn transfer(&mut self, to: ReplicaId);
    /// Goes back to probing a peer whose connection broke.
    fn unreachable(&mut self, peer: ReplicaId);
    /// Reports whether a snapshot reached its peer.
    fn snapshot_sent(&mut self, peer: ReplicaId, arrived: bool);
    /// Whether [`Consensus::take`] would find anything.
    fn has_work(&self) -> bool;
    /// Fills the empty `work` with pending work. Returns false if there is none.
    fn take(&mut self, work: &mut Ready) -> bool;
    /// Reports that the writes of all work up to this number are durable.
    fn persisted(&mut self, number: u64);
    /// Reports that entries up to this index are applied.
    fn applied(&mut self, index: u64);
    /// Puts a committed membership change into effect and returns the new membership.
    fn enact(&mut self, change: &MembershipChange, numbering: ReplicaNumbering) -> Membership;
    /// Returns the role.
    fn role(&self) -> Role;
    /// Returns the term.
    fn term(&self) -> u64;
    /// Returns the known leader.
    fn leader(&self) -> Option<ReplicaId>;
    /// Whether this replica is the only voter and no membership change is unfinished.
    fn is_alone(&self) -> bool;
    /// Returns the commit index if this replica leads and is the only voter: then a read needs no
    /// round.
    fn committed_alone(&self) -> Option<u64>;
    /// Returns the log.
    fn store(&self) -> &LogTail;
    /// Returns the log, to compact it or to offer a snapshot.
    fn store_mut(&mut self) -> &mut LogTail;
    /// Returns the progress of a member; leaders only.
    fn progress(&self, member: ReplicaId) -> Option<Progress>;
    /// Whether a majority of the voters (of both configurations, if joint) has acknowledged that the
    /// entries up to this index are committed; leaders only.
    fn quorum_knows_committed(&self, index: u64) -> bool;
    /// The snapshot that was received and accepted, and is installed by the next [`Consensus::take`].
    fn accepted_snapshot(&self) -> Option<LogPosition>;
}
