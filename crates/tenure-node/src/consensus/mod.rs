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

/// Where an entry stands. Two entries at one index are the same entry iff their terms agree.
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
    /// Where it stands.
    pub place: LogPosition,
    /// What it says.
    pub payload: Payload,
}

impl Entry {
    /// What it says, as it is written to the log. For commands this is only another handle to the
    /// same memory.
    pub fn payload_bytes(&self) -> Bytes {
        codec::encode_payload(&self.payload)
    }
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: a leader's first entry, or a proposal that consensus refused.
    Empty,
    /// Commands for the group's machine, encoded.
    Commands(Bytes),
    /// A change of who replicates the group.
    Membership(MembershipChange),
}

/// What a replica must not forget: its term, its vote in it, and (as a hint) what is committed. Beside it,
/// which replica that is: what is left on disk of a removed replica is this record alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term it has seen.
    pub term: u64,
    /// Whom it voted for in that term.
    pub vote: Option<ReplicaId>,
    /// The highest index known to be committed; may be old after a crash.
    pub commit: u64,
    /// The number of the replica that all of this is about ([`ReplicaId::replica`]).
    pub replica: u64,
    /// Tombstone: this replica was removed and its log deleted. No replica with this number or a lower one
    /// is ever opened here again.
    pub removed: bool,
    /// For an empty replica that had a log under the same identity before, which only the rules of release
    /// 0.1.0 allow: where that log ended. It takes no state from before this place.
    pub floor: LogPosition,
}

impl HardState {
    /// As it is written to the log.
    pub fn to_bytes(&self) -> Bytes {
        codec::encode_hard_state(self)
    }
}

/// Who replicates a group. While `outgoing` is not empty, decisions need both majorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Those who vote.
    pub voters: Vec<ReplicaId>,
    /// Those who only listen.
    pub learners: Vec<ReplicaId>,
    /// The voters of the configuration that is being left.
    pub outgoing: Vec<ReplicaId>,
    /// Outgoing voters that become learners once the change is complete.
    pub learners_next: Vec<ReplicaId>,
}

impl Membership {
    /// Whether a change is half done.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// As it is written to the log, beside a base.
    pub fn to_bytes(&self) -> Bytes {
        codec::encode_membership(self)
    }

    /// Everybody who gets the log, each once, in order.
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

/// A change of membership. No steps at all means: leave the joint configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipChange {
    /// What changes, all at once.
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
    /// Whom it is about.
    pub(crate) fn member(self) -> ReplicaId {
        match self {
            Self::Voter(member) | Self::Learner(member) | Self::Remove(member) => member,
        }
    }
}

/// How additions name the new replica.
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
    /// Whether it may change who votes, given who votes now. A change that only adds or removes learners does not.
    pub(crate) fn changes_voters(&self, present: &Membership) -> bool {
        let votes = |member: &ReplicaId| {
            present.voters.contains(member) || present.outgoing.contains(member)
        };
        self.steps.iter().any(|step| match step {
            MembershipStep::Voter(_) => true,
            MembershipStep::Learner(member) | MembershipStep::Remove(member) => votes(member),
        })
    }

    /// The change with the identities of the replicas that it adds. `None` if it does not fit the present
    /// membership: then it changes nothing, the same on every replica.
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
                    // A node has one replica of a group: the old one must be out before a new one comes.
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

/// The state up to an entry, as far as consensus is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// The last entry that it includes.
    pub place: LogPosition,
    /// Who replicated the group at that point.
    pub membership: Membership,
}

impl Base {
    /// Where the log of a newly born group begins. Not zero, so that a replica that knows nothing
    /// always needs a snapshot and never has to guess the first membership.
    pub const BIRTH: LogPosition = LogPosition { term: 1, index: 1 };
}

/// A message between two replicas of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Who sends it.
    pub(crate) from: ReplicaId,
    /// For whom it is.
    pub(crate) to: ReplicaId,
    /// The sender's term; zero where the kind has none.
    pub(crate) term: u64,
    /// What it is.
    pub(crate) kind: MessageKind,
    /// Meaning depends on the kind, as does that of all numbers below.
    pub(crate) index: u64,
    /// The term of the entry at `index`.
    pub(crate) log_term: u64,
    /// The sender's commit index.
    pub(crate) commit: u64,
    /// The term of the entry at `commit`.
    pub(crate) commit_term: u64,
    /// Set where the answer is no.
    pub(crate) reject: Option<u64>,
    /// A follower asks for a snapshot of at least this index; zero if it does not.
    pub(crate) request_snapshot: u64,
    /// Entries to append.
    pub(crate) entries: Vec<Entry>,
    /// What identifies the round that this heartbeat belongs to, or the kind of an election.
    pub(crate) context: Bytes,
    /// The base of a snapshot; its data travels apart.
    pub(crate) snapshot: Option<Box<Base>>,
}

/// What a [`Message`] is.
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
    /// Would you vote for me?
    PreVote = 5,
    /// Answer to [`MessageKind::PreVote`].
    PreVoteAnswer = 6,
    /// The leader lives, and asks who follows.
    Heartbeat = 7,
    /// Answer to [`MessageKind::Heartbeat`].
    HeartbeatAnswer = 8,
    /// The state up to an index, instead of entries.
    Snapshot = 9,
    /// Take over now.
    TimeoutNow = 10,
    /// Please hand leadership over.
    TransferLeader = 11,
}

impl MessageKind {
    /// All of them, in order of their numbers.
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

    /// Whether it answers a message of the receiver, which therefore knows the sender.
    pub(crate) fn is_answer(self) -> bool {
        matches!(
            self,
            MessageKind::AppendAnswer
                | MessageKind::VoteAnswer
                | MessageKind::PreVoteAnswer
                | MessageKind::HeartbeatAnswer
        )
    }

    /// Whether only a leader says this, and only to a member.
    pub(crate) fn is_of_leader(self) -> bool {
        matches!(
            self,
            MessageKind::Append | MessageKind::Heartbeat | MessageKind::Snapshot
        )
    }
}

impl Message {
    /// Whether a non-empty append starts right behind `index` and has no gap. The library once
    /// acknowledged entries it did not have because of such a message; both ends check.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.kind != MessageKind::Append
            || self
                .entries
                .iter()
                .zip(self.index + 1..)
                .all(|(entry, expected)| entry.place.index == expected)
    }
}

/// Identifies one round of "do I still lead?". Never used twice, not even for a retry or by a
/// restarted process: acknowledgements are matched by these bytes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReadRound {
    /// Which node asks.
    pub(crate) node: NodeId,
    /// Drawn once per start of the process.
    pub(crate) nonce: u64,
    /// Counts the rounds of this process.
    pub(crate) number: u64,
}

/// Consensus has not taken a proposal; it is certain that nothing of it will ever happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProposalDropped;

/// What a replica wants done. Messages in `after` must wait until entries and hard state are durable.
/// Whoever does it leaves the lists empty: their room serves the next replica.
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
    /// May leave at once.
    pub(crate) messages: Vec<Message>,
    /// May leave when the writes are durable.
    pub(crate) after: Vec<Message>,
    /// Apply these, in order.
    pub(crate) committed: Vec<Entry>,
    /// Rounds that a quorum has confirmed: what was committed when they began.
    pub(crate) confirmed: Vec<(ReadRound, u64)>,
}

/// The part a replica plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follows, or waits for a leader.
    Follower,
    /// Wants to lead.
    Candidate,
    /// Leads.
    Leader,
}

/// How far a replica's log has come at one member, as the leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Everything up to this index is there.
    pub matched: u64,
    /// It was heard of since the last check.
    pub recent: bool,
}

/// All that the rest of the node may ask of consensus. Small, so that another one fits behind it.
pub(crate) trait Consensus {
    /// A tick of the clock, which counts them for all groups of the node.
    fn tick(&mut self, number: u64);
    /// A message from another replica. A malformed one is counted and dropped.
    fn receive(&mut self, message: Message);
    /// Stand for election now.
    fn campaign(&mut self);
    /// The leader's connection broke: do not wait for the timeout. The first in `rank` stands now.
    fn leader_is_gone(&mut self, rank: usize);
    /// Appends commands to the log; only a leader may.
    fn propose(&mut self, data: Bytes) -> Result<LogPosition, ProposalDropped>;
    /// Appends a change of membership; only a leader without an unfinished change may.
    fn change(&mut self, change: &MembershipChange) -> Result<LogPosition, ProposalDropped>;
    /// Whether it refrains from campaigning, because it could not write its own vote in time.
    fn hold_back(&mut self, yes: bool);
    /// Starts a round. It may be dropped without a word.
    fn read(&mut self, round: ReadRound);
    /// Hands leadership over, if the other is up to date in time.
    fn transfer(&mut self, to: ReplicaId);
    /// A connection to a peer broke: go back to probing.
    fn unreachable(&mut self, peer: ReplicaId);
    /// A snapshot reached its peer, or did not.
    fn snapshot_sent(&mut self, peer: ReplicaId, arrived: bool);
    /// Whether [`Consensus::take`] would find anything.
    fn has_work(&self) -> bool;
    /// Fills `work`, which comes empty, with what there is to do. False if there is nothing.
    fn take(&mut self, work: &mut Ready) -> bool;
    /// The writes of all work up to this number are durable.
    fn persisted(&mut self, number: u64);
    /// Entries up to this index are applied.
    fn applied(&mut self, index: u64);
    /// A committed change of membership takes effect.
    fn enact(&mut self, change: &MembershipChange, numbering: ReplicaNumbering) -> Membership;
    /// The part it plays.
    fn role(&self) -> Role;
    /// Its term.
    fn term(&self) -> u64;
    /// Who leads, as far as it knows.
    fn leader(&self) -> Option<ReplicaId>;
    /// Whether it alone decides: one voter, no change under way.
    fn is_alone(&self) -> bool;
    /// What is committed, if it leads and alone decides: then it needs no round to know.
    fn committed_alone(&self) -> Option<u64>;
    /// What its log holds.
    fn store(&self) -> &LogTail;
    /// What its log holds, to be compacted or given a snapshot.
    fn store_mut(&mut self) -> &mut LogTail;
    /// How far a member has come; leaders only.
    fn progress(&self, member: ReplicaId) -> Option<Progress>;
    /// Whether a majority of the voters (of both configurations, if joint) has acknowledged that the
    /// entries up to this index are committed; leaders only.
    fn quorum_knows_committed(&self, index: u64) -> bool;
    /// The snapshot that was received and accepted, and is installed by the next [`Consensus::take`].
    fn accepted_snapshot(&self) -> Option<LogPosition>;
}
