//! One Raft replica of one group, on TiKV's `raft` crate.
//!
//! Known pitfalls of the library, and how this module avoids them: appends are checked for gaps
//! when they are sent and when they arrive; election timeouts come from our own generator after
//! every change of term or role; a joint configuration is left by an explicit proposal; a read
//! context is never used twice; `batch_append` is off, because proposals are batched before they
//! get here.

use bytes::Bytes;
use raft::eraftpb;
use raft::{RawNode, ReadOnlyOption, SnapshotStatus, StateRole};

use super::{
    Consensus, Entry, HardState, LogPosition, LogTail, Membership, MembershipChange, Message,
    MessageKind, Progress, ProposalDropped, ReadRound, Ready, ReplicaNumbering, Role, convert,
};
use crate::ReplicaId;
use tenure_random::SplitMix64;

/// A leader that hears nothing for this many ticks steps down; a follower campaigns after one to two of these.
pub(crate) const ELECTION_TICKS: usize = 10;
/// Ticks between two heartbeats of a leader.
pub(crate) const HEARTBEAT_TICKS: usize = 2;
const _: () = assert!(HEARTBEAT_TICKS * 5 <= ELECTION_TICKS);

const MAX_MESSAGE_BYTES: u64 = 512 * 1024;
const MAX_IN_FLIGHT: usize = 128;
const MAX_UNCOMMITTED_BYTES: u64 = 8 * 1024 * 1024;
const MAX_COMMITTED_BYTES: u64 = 1024 * 1024;
/// The votes of so many terms may be among what a suspect replica has lost. It has lost at most what one
/// sync made durable, and a term takes at least an election timeout, so this covers a sync of
/// more than a minute.
const SUSPECT_TERMS: u64 = 64;
/// A replica keeps room for so many messages.
const KEPT_MESSAGES: usize = 8;

/// One Raft replica; see the module documentation.
pub(crate) struct Replica {
    raw: RawNode<LogTail>,
    me: ReplicaId,
    random: SplitMix64,
    /// The term and role for which the election timeout was last drawn.
    drawn_for: (u64, StateRole),
    /// A snapshot that is not durable yet: until then the library knows neither what is applied nor
    /// the entries before it, and must not be made to look.
    installing: Option<u64>,
    /// See [`Consensus::hold_back`].
    held_back: bool,
    /// Set while the replica may lack entries that it acknowledged before, until it has caught up
    /// with a leader of this term or a later one: see [`RestoredState::suspect`].
    suspect_until: Option<u64>,
    /// Messages that broke the rule of contiguous appends, in either direction.
    malformed: u64,
}

impl Replica {
    pub(crate) fn new(
        me: ReplicaId,
        mut store: LogTail,
        applied: u64,
        random: SplitMix64,
    ) -> Replica {
        let config = raft::Config {
            id: store.ids.id(me),
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied,
            max_size_per_msg: MAX_MESSAGE_BYTES,
            max_inflight_msgs: MAX_IN_FLIGHT,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            // Followers learn of a commit with the next append or heartbeat, which halves the
            // number of messages. Membership changes are still broadcast at once, and so is every
            // commit after `announce_commits`.
            skip_bcast_commit: true,
            batch_append: false,
            max_uncommitted_size: MAX_UNCOMMITTED_BYTES,
            max_committed_size_per_ready: MAX_COMMITTED_BYTES,
            ..raft::Config::default()
        };
        let silent = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, store, &silent)
            .expect("the settings are constant and the store in memory does not fail");
        let mut replica = Replica {
            // Not yet drawn for anything.
            drawn_for: (u64::MAX, StateRole::Follower),
            raw,
            me,
            random,
            installing: None,
            held_back: false,
            suspect_until: None,
            malformed: 0,
        };
        replica.draw_timeout();
        replica
    }

    /// Excludes the replica from elections until it has caught up with a leader: see
    /// [`RestoredState::suspect`].
    pub(crate) fn doubt(&mut self) {
        self.suspect_until = Some(self.raw.raft.term);
        self.clear_doubt();
    }

    /// Broadcasts every commit to the followers at once. For a group that is rarely written and
    /// read on every node.
    pub(crate) fn announce_commits(&mut self) {
        self.raw.skip_bcast_commit(false);
    }

    /// How many messages were dropped because their entries were not contiguous.
    pub(crate) fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Replaces the election timeout by one from our own generator. The library draws timeouts from
    /// the system's randomness, which would make runs with equal seeds differ. It draws at every
    /// change of term or role, so this runs after each.
    fn draw_timeout(&mut self) {
        let now = (self.raw.raft.term, self.raw.raft.state);
        if now != self.drawn_for {
            self.drawn_for = now;
            let spread = self.random.below(ELECTION_TICKS as u64);
            let spread = usize::try_from(spread).unwrap_or(0);
            self.raw
                .raft
                .set_randomized_election_timeout(ELECTION_TICKS + spread);
        }
    }

    /// Whether the replica is empty: no entries and no state.
    pub(crate) fn is_empty(&self) -> bool {
        self.raw.store().last_index() == 0
    }

    /// Whether the replica may campaign. The library makes a single voter leader as soon as it
    /// campaigns, and asserts that its log is durable at that moment. With other voters, the vote
    /// requests wait for the disk.
    fn may_stand(&self) -> bool {
        let raft = &self.raw.raft;
        let log = &raft.raft_log;
        raft.state == StateRole::Leader || !self.is_alone() || log.persisted == log.last_index()
    }

    /// Whether a snapshot may replace the local state: its membership must contain this replica,
    /// and it must include at least what this identity had before its log was deleted.
    fn takes(&self, message: &Message) -> bool {
        message.snapshot.as_ref().is_some_and(|base| {
            base.membership.everybody().contains(&self.me)
                && base.place >= self.raw.store().hard_state().floor
        })
    }

    /// Whether the replica must not campaign now. A single voter always may: no other replica could
    /// win.
    fn refrains(&self) -> bool {
        self.held_back && self.raw.raft.state != StateRole::Leader && !self.is_alone()
    }

    /// Whether the replica is excluded from elections because it may have lost acknowledged
    /// entries.
    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect_until.is_some()
    }

    /// Ends the exclusion when an entry is committed of a leader that was elected without this
    /// replica after it came back. By the properties of Raft the log then contains everything that
    /// was committed before. A single voter is cleared at once: no other replica could know more.
    fn clear_doubt(&mut self) {
        let Some(term) = self.suspect_until else {
            return;
        };
        let log = &self.raw.raft.raft_log;
        let caught_up = log.term(log.committed).is_ok_and(|found| found >= term);
        let alone = self.is_alone() && !self.raw.store().changes_voters_behind(log.applied);
        if caught_up || alone {
            self.suspect_until = None;
        }
    }

    fn propose_entry(&mut self, entry: eraftpb::Entry) -> Result<LogPosition, ProposalDropped> {
        // On a follower the library would forward the proposal by itself, and its outcome could not
        // be tracked.
        if self.raw.raft.state != StateRole::Leader {
            return Err(ProposalDropped);
        }
        let message = convert::proposal(entry, self.raw.raft.id);
        self.raw.raft.step(message).map_err(|_| ProposalDropped)?;
        self.draw_timeout();
        Ok(LogPosition {
            term: self.raw.raft.term,
            index: self.raw.raft.raft_log.last_index(),
        })
    }

    fn messages_out(&mut self, mut messages: Vec<eraftpb::Message>, out: &mut Vec<Message>) {
        for message in messages.drain(..) {
            if let Some(message) = convert::message_out(message, &self.raw.store().ids) {
                if message.is_contiguous() {
                    out.push(message);
                } else {
                    self.malformed += 1;
                }
            }
        }
        // The library gives its message list away; return the allocation to it.
        if self.raw.raft.msgs.capacity() == 0 && messages.capacity() <= KEPT_MESSAGES {
            self.raw.raft.msgs = messages;
        }
    }
}

impl Consensus for Replica {
    fn tick(&mut self, number: u64) {
        // All leaders of a node send heartbeats in the same ticks, independent of when they were
        // elected: fewer, larger frames, and fewer wake-ups on all nodes.
        let phase = number % HEARTBEAT_TICKS as u64;
        let early = self.raw.raft.state == StateRole::Leader
            && self.raw.raft.heartbeat_elapsed() as u64 != phase;
        self.clear_doubt();
        if self.installing.is_some() || early || !self.may_stand() {
            return;
        }
        let refrains = self.refrains() || self.is_suspect();
        let raft = &mut self.raw.raft;
        if refrains && raft.election_elapsed + 1 >= raft.randomized_election_timeout() {
            // This replica must not campaign, but it treats the leader as gone, so that it votes
            // for others.
            raft.election_elapsed = raft.election_elapsed.max(ELECTION_TICKS);
            return;
        }
        self.raw.tick();
        self.draw_timeout();
    }

    fn hold_back(&mut self, yes: bool) {
        self.held_back = yes;
    }

    fn receive(&mut self, mut message: Message) {
        if message.to != self.me || !message.is_contiguous() {
            self.malformed += u64::from(message.to == self.me);
            return;
        }
        match message.kind {
            // Also as one of two voters: the other one may lack entries that were committed before the
            // group had only two. See docs/formats/log.md.
            MessageKind::Vote | MessageKind::PreVote | MessageKind::TimeoutNow
                if self.is_suspect() =>
            {
                return;
            }
            MessageKind::TimeoutNow
                if self.installing.is_some() || !self.may_stand() || self.refrains() =>
            {
                return;
            }
            // A replica without a log has acknowledged nothing, so its vote proves nothing. No
            // correctly made configuration needs it.
            MessageKind::Vote | MessageKind::PreVote if self.is_empty() => return,
            MessageKind::Snapshot if !self.takes(&message) => return,
            MessageKind::Heartbeat if message.commit > self.raw.raft.raft_log.last_index() => {
                // The leader counts an acknowledgement of a predecessor under the same identity,
                // which this replica never gave. With this commit index the library would panic.
                message.commit = 0;
            }
            _ => {}
        }
        let ids = &mut self.raw.mut_store().ids;
        if message.kind.is_answer() && ids.known(message.from).is_none() {
            // Neither a present nor a former member: the library would refuse it.
            return;
        }
        // The library refuses answers of removed members, which is harmless.
        let message = convert::message_in(message, ids);
        let _ = self.raw.step(message);
        self.clear_doubt();
        self.draw_timeout();
    }

    fn campaign(&mut self) {
        self.clear_doubt();
        let barred = self.is_suspect() || self.refrains() || !self.may_stand();
        if self.installing.is_some() || barred {
            return;
        }
        let _ = self.raw.campaign();
        self.draw_timeout();
    }

    fn leader_is_gone(&mut self, rank: usize) {
        if self.raw.raft.state == StateRole::Leader || !self.raw.raft.promotable() {
            return;
        }
        // Check-quorum makes a follower ignore votes while it believes in a leader; every follower
        // that saw the connection break forgets the leader here, so it answers pre-votes at once.
        self.raw.raft.leader_id = raft::INVALID_ID;
        if self.is_suspect() {
            return;
        }
        if rank == 0 {
            self.campaign();
        }
        if self.raw.raft.state != StateRole::Candidate && self.raw.raft.state != StateRole::Leader {
            // The others may see the break a little later than the first, which then asks again;
            // if it is gone too, the next in rank follows. All at once would split the vote.
            let timeout = self.raw.raft.randomized_election_timeout();
            let wait = HEARTBEAT_TICKS * (rank + 1);
            self.raw.raft.election_elapsed = timeout.saturating_sub(wait);
        }
    }

    fn propose(&mut self, data: Bytes) -> Result<LogPosition, ProposalDropped> {
        self.propose_entry(convert::commands(data))
    }

    fn change(&mut self, change: &MembershipChange) -> Result<LogPosition, ProposalDropped> {
        if self.raw.raft.has_pending_conf() {
            return Err(ProposalDropped);
        }
        self.propose_entry(convert::membership_entry(change))
    }

    fn read(&mut self, round: ReadRound) {
        if self.raw.raft.state == StateRole::Leader {
            self.raw.read_index(convert::round_in(round));
        }
    }

    fn transfer(&mut self, to: ReplicaId) {
        let to = self.raw.store().ids.known(to);
        if let (StateRole::Leader, Some(to)) = (self.raw.raft.state, to) {
            self.raw.transfer_leader(to);
        }
    }

    fn unreachable(&mut self, peer: ReplicaId) {
        if let Some(peer) = self.raw.store().ids.known(peer) {
            self.raw.report_unreachable(peer);
        }
    }

    fn snapshot_sent(&mut self, peer: ReplicaId, arrived: bool) {
        let status = if arrived {
            SnapshotStatus::Finish
        } else {
            SnapshotStatus::Failure
        };
        if let Some(peer) = self.raw.store().ids.known(peer) {
            self.raw.report_snapshot(peer, status);
        }
    }

    fn has_work(&self) -> bool {
        self.raw.has_ready()
    }

    fn take(&mut self, work: &mut Ready) -> bool {
        if !self.raw.has_ready() {
            return false;
        }
        let mut ready = self.raw.ready();
        work.number = ready.number();
        work.must_sync = ready.must_sync();
        let confirmed = ready.take_read_states().into_iter();
        work.confirmed.extend(
            confirmed
                .filter_map(|state| Some((convert::round_out(&state.request_ctx)?, state.index))),
        );
        self.messages_out(ready.take_messages(), &mut work.messages);
        self.messages_out(ready.take_persisted_messages(), &mut work.after);
        work.snapshot = None;
        if !ready.snapshot().is_empty() {
            let base = convert::base_out(ready.snapshot(), &self.raw.store().ids);
            self.raw.mut_store().install(base.clone());
            self.installing = Some(base.place.index);
            work.snapshot = Some(base);
        }
        let entries = ready.take_entries();
        work.entries.extend(entries.iter().map(convert::entry_out));
        self.raw.mut_store().append(entries.into_iter());
        let store = self.raw.store();
        work.hard_state = ready
            .hs()
            .map(|state| convert::hard_state_out(state, store.hard_state(), &store.ids));
        if let Some(state) = work.hard_state {
            self.raw.mut_store().set_hard_state(state);
        }
        let committed = ready.take_committed_entries();
        work.committed
            .extend(committed.into_iter().map(convert::entry_own));
        self.raw.advance_append_async(ready);
        true
    }

    fn persisted(&mut self, number: u64) {
        self.raw.on_persist_ready(number);
        self.draw_timeout();
    }

    fn applied(&mut self, index: u64) {
        self.raw.advance_apply_to(index);
        if self.installing.is_some_and(|installed| installed <= index) {
            self.installing = None;
        }
    }

    fn enact(&mut self, change: &MembershipChange, numbering: ReplicaNumbering) -> Membership {
        // A change that does not fit the present membership has no effect, on every replica alike.
        if let Some(change) = change.resolve(self.raw.store().membership(), numbering) {
            let change = convert::change_in(&change, &mut self.raw.mut_store().ids);
            if let Ok(state) = self.raw.apply_conf_change(&change) {
                let membership = convert::membership_out(&state, &self.raw.store().ids);
                self.raw.mut_store().set_membership(membership);
            }
        }
        let raft = &mut self.raw.raft;
        if raft.state == StateRole::Leader && !raft.promotable() {
            // This leader is no longer a voter. The library would stay leader and panic at the next
            // acknowledgement, because it no longer tracks its own progress. So broadcast the
            // commit and step down; the others elect a leader.
            raft.bcast_append();
            let term = raft.term;
            raft.become_follower(term, raft::INVALID_ID);
        }
        self.draw_timeout();
        self.raw.store().membership().clone()
    }

    fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    fn term(&self) -> u64 {
        self.raw.raft.term
    }

    fn leader(&self) -> Option<ReplicaId> {
        self.raw.store().ids.member(self.raw.raft.leader_id)
    }

    fn is_alone(&self) -> bool {
        self.raw.raft.prs().is_singleton() && self.raw.raft.promotable()
    }

    fn committed_alone(&self) -> Option<u64> {
        let raft = &self.raw.raft;
        let knows = raft.state == StateRole::Leader && raft.commit_to_current_term();
        (knows && self.is_alone()).then_some(raft.raft_log.committed)
    }

    fn store(&self) -> &LogTail {
        self.raw.store()
    }

    fn store_mut(&mut self) -> &mut LogTail {
        self.raw.mut_store()
    }

    fn progress(&self, member: ReplicaId) -> Option<Progress> {
        let id = self.raw.store().ids.known(member)?;
        let progress = self.raw.raft.prs().get(id)?;
        Some(Progress {
            matched: progress.matched,
            recent: progress.recent_active,
        })
    }

    fn quorum_knows_committed(&self, index: u64) -> bool {
        let raft = &self.raw.raft;
        let knows = |member: &&ReplicaId| {
            let id = self.raw.store().ids.known(**member);
            let progress = id.and_then(|id| raft.prs().get(id));
            let known = if **member == self.me {
                raft.raft_log.committed
            } else {
                progress.map_or(0, |one| one.committed_index)
            };
            known >= index
        };
        let membership = self.raw.store().membership();
        [&membership.voters, &membership.outgoing]
            .into_iter()
            .all(|voters| {
                voters.is_empty() || voters.iter().filter(knows).count() * 2 > voters.len()
            })
    }

    fn accepted_snapshot(&self) -> Option<LogPosition> {
        let snapshot = self.raw.raft.raft_log.unstable.snapshot.as_ref()?;
        let metadata = snapshot.get_metadata();
        Some(LogPosition {
            term: metadata.term,
            index: metadata.index,
        })
    }
}

/// The state of a replica as recovered at start.
#[derive(Debug)]
pub(crate) struct RestoredState {
    /// The base of its log.
    pub(crate) base: super::Base,
    /// Its hard state.
    pub(crate) hard_state: HardState,
    /// Its log.
    pub(crate) entries: Vec<Entry>,
}

impl RestoredState {
    /// Returns the initial replica of a new group.
    pub(crate) fn newborn(membership: Membership) -> RestoredState {
        RestoredState {
            base: super::Base {
                place: super::Base::BIRTH,
                membership,
            },
            hard_state: HardState {
                term: super::Base::BIRTH.term,
                commit: super::Base::BIRTH.index,
                ..HardState::default()
            },
            entries: Vec::new(),
        }
    }

    /// Marks a replica that may have lost acknowledged entries or a vote. It restarts in a later
    /// term in which it has voted for itself, so that it cannot vote twice in a term whose vote it
    /// lost. See docs/formats/log.md for the argument.
    pub(crate) fn suspect(&mut self, me: ReplicaId) {
        self.hard_state.term += SUSPECT_TERMS;
        self.hard_state.vote = Some(me);
    }

    /// Whether the log shows no other voter since the base.
    pub(crate) fn is_alone(&self, me: ReplicaId) -> bool {
        let members = &self.base.membership;
        let changes_voters = |entry: &Entry| match &entry.payload {
            super::Payload::Membership(change) => change.changes_voters(members),
            super::Payload::Empty | super::Payload::Commands(_) => false,
        };
        members.voters == [me] && !members.is_joint() && !self.entries.iter().any(changes_voters)
    }

    /// Whether the replica has no log and no state; it may have a term and a vote.
    pub(crate) fn is_blank(&self) -> bool {
        self.base.place.index == 0 && self.entries.is_empty()
    }

    /// Opens the replica. The stored commit index is only a hint: it may be older or newer than the
    /// log.
    pub(crate) fn open(mut self, me: ReplicaId, random: SplitMix64) -> Replica {
        let last = self.base.place.index + self.entries.len() as u64;
        self.hard_state.commit = self
            .hard_state
            .commit
            .clamp(self.base.place.index, last.max(self.base.place.index));
        let applied = self.base.place.index;
        let store = LogTail::new(self.base, self.hard_state, self.entries);
        Replica::new(me, store, applied, random)
    }
}
