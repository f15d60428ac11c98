//! Replica of one Raft group: proposes, applies and answers operations.
//!
//! ```text
//!   submit ──▶ batch ──▶ entry ──▶ log, peers ──committed──▶ state machine ──▶ answer
//!     └─ renew, read ──▶ ReadIndex round ──confirmed, applied──▶ new deadline, or read ──▶ answer
//! ```
//!
//! Lease deadlines are in the leader's memory: most renewals write no entry (leases.md, step 4). A
//! leader proposes and answers nothing before it has applied the first entry of its term (step 1).
//! A group keeps its proposals by log position, also without leadership: the entry applied at that
//! position shows whether the proposal was committed.

mod leader;

use std::collections::VecDeque;

use bytes::Bytes;
use tenure_core::codec::DecodeError;
use tenure_core::command::Command;
use tenure_core::event::{Event, LockChange};
use tenure_core::outcome::Outcome;
use tenure_core::path::Namespace;
use tenure_core::space::{Effects, RULES};
use tenure_core::value::{OwnerId, Stamp};

use crate::batch::{EntryDecoder, ProposalBatch, ProposedCommands};
use crate::consensus::{
    Consensus, Entry, LogPosition, Membership, MembershipChange, Message, Payload, Ready, Replica,
    ReplicaNumbering, Role,
};
use crate::coordinator::LeaderSilence;
use crate::group_op::{GroupOp, GroupOpResult, OpId};
use crate::read_index::RoundCounter;
use crate::state_machine::{AnyCommand, AnyOutcome, StateMachine};
use crate::{GroupId, LogWrite, NodeId, ReplicaId};

use leader::Leadership;
pub(crate) use leader::RoundWaiter;

/// From this rules number on, every added replica gets an identity of its own.
const NUMBERED_REPLICAS: u32 = 2;

/// Maximum iterations of [`Group::settle`] in one step, so that one busy group does not delay the
/// others. The rest is done in the next step.
const WORK_PER_TURN: usize = 16;

/// Maximum length of an entry. The log refuses longer ones, which would stop the node. The largest
/// request of a client is a third of it.
const MAX_PROPOSAL_BYTES: usize = 12 * 1024 * 1024;

/// Everything that one step of the node collects from its groups.
#[derive(Debug)]
pub(crate) struct StepContext {
    pub(crate) now_ms: u64,
    pub(crate) wall: u64,
    pub(crate) rounds: RoundCounter,
    pub(crate) writes: Vec<(GroupId, LogWrite)>,
    pub(crate) must_sync: bool,
    /// For each [`Ready`] of a replica the number of writes after which it is durable.
    pub(crate) numbers: Vec<(usize, WrittenWork)>,
    pub(crate) messages: Vec<(GroupId, Message)>,
    pub(crate) after: Vec<(GroupId, Message)>,
    pub(crate) answers: Vec<(OpId, GroupOpResult)>,
    /// Results of leadership checks, with the number of the check.
    pub(crate) leadership_confirmed: Vec<(u64, GroupId, LeadershipCheck)>,
    /// Operations that had no effect here and can be sent to another leader.
    pub(crate) returned: Vec<(OpId, GroupOp)>,
    pub(crate) events_out: Vec<(GroupId, GroupEvent)>,
    /// The node must stop, for this reason.
    pub(crate) stop: Option<String>,
    /// Reusable buffer, empty between commands.
    effects: Effects,
    /// Reusable buffer for encoding an entry.
    scratch: Vec<u8>,
    /// Reusable [`Ready`], empty between groups.
    work: Ready,
}

/// The [`Ready`] of a replica that a batch contains. A replica that was removed and added again is
/// a different one: a write of its predecessor must not be reported to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenWork {
    pub(crate) group: GroupId,
    pub(crate) replica: u64,
    pub(crate) number: u64,
}

impl StepContext {
    pub(crate) fn new(rounds: RoundCounter, now_ms: u64, wall: u64) -> StepContext {
        StepContext {
            now_ms,
            wall,
            rounds,
            writes: Vec::new(),
            must_sync: false,
            numbers: Vec::new(),
            messages: Vec::new(),
            after: Vec::new(),
            answers: Vec::new(),
            leadership_confirmed: Vec::new(),
            returned: Vec::new(),
            events_out: Vec::new(),
            stop: None,
            effects: Effects::default(),
            scratch: Vec::new(),
            work: Ready::default(),
        }
    }
}

/// An event of a group for the rest of the node.
#[derive(Clone, Debug)]
pub(crate) enum GroupEvent {
    /// This node leads the group and step 1 is done.
    Led,
    /// This node no longer leads the group.
    NotLed,
    /// The known leader or its term changed.
    Leader,
    /// An event for the subscribers of an owner; only on the leader.
    Event(Event),
    /// A change for watches; only on the leader.
    Change(Box<LockChange>),
    /// The namespace table or the changes of it under way may have changed.
    System,
    /// The membership has changed.
    Membership,
    /// A snapshot from a peer replaced the state.
    Installed,
}

/// One Raft group on this node: replica, state machine and pending work.
pub(crate) struct Group {
    pub(crate) id: GroupId,
    /// Counts the replicas that this process has opened.
    number: u64,
    pub(crate) me: ReplicaId,
    pub(crate) replica: Replica,
    pub(crate) machine: StateMachine,
    pub(crate) applied: LogPosition,
    /// Entries and hashes of what their commands did, for [`Node::take_effects`](crate::Node::take_effects).
    #[cfg(feature = "check")]
    pub(crate) effects_seen: Vec<(u64, u64)>,
    batch: ProposalBatch,
    proposed: VecDeque<Proposed>,
    /// How many commands are in `proposed`.
    proposed_commands: usize,
    lead: Leadership,
    known: (u64, Role, Option<ReplicaId>),
    /// Writes that are not yet reported durable.
    unsynced: usize,
    /// The decoded state of a snapshot that consensus has accepted and will install, and its bytes,
    /// which are saved with the batch that installs it.
    arrived: Option<ArrivedMessages>,
    /// Where the log on disk begins, and how large the state was there.
    pub(crate) cut_at: u64,
    pub(crate) state_bytes: usize,
    /// The bytes of the state that was installed in this step.
    pub(crate) installed_data: Option<Bytes>,
    /// Index of the last applied membership change or, if later, of the entry with which this
    /// node's leadership began.
    pub(crate) changed_at: u64,
    /// The same for changes that removed a member.
    pub(crate) removed_at: u64,
    /// Removed members that get a hint once a majority knows that the removal is committed.
    pub(crate) to_hint: Vec<ReplicaId>,
    /// The last change of membership in the log, applied or not.
    change_written: u64,
    /// The members when this node last led and checked.
    members: Vec<ReplicaId>,
    /// A snapshot whose installation is not durable yet: the number of its work, and its index.
    installing: Option<(u64, u64)>,
    pub(crate) silence: LeaderSilence,
    /// The namespace named last by the entries of other leaders; the next entry most likely names
    /// the same.
    namespace: Option<Namespace>,
    /// Committed entries that are applied in the next step: see [`Group::carry_out`].
    backlog: Vec<Entry>,
}

struct ArrivedMessages {
    place: LogPosition,
    machine: StateMachine,
    data: Bytes,
}

struct Proposed {
    place: LogPosition,
    commands: ProposedCommands,
}

impl Group {
    pub(crate) fn new(
        id: GroupId,
        number: u64,
        me: ReplicaId,
        replica: Replica,
        machine: StateMachine,
    ) -> Group {
        let applied = replica.store().base().place;
        Group {
            id,
            number,
            me,
            known: (replica.term(), Role::Follower, None),
            machine,
            applied,
            #[cfg(feature = "check")]
            effects_seen: Vec::new(),
            batch: ProposalBatch::default(),
            proposed: VecDeque::new(),
            proposed_commands: 0,
            lead: Leadership::Not,
            unsynced: 0,
            arrived: None,
            cut_at: applied.index,
            state_bytes: 0,
            installed_data: None,
            changed_at: 0,
            removed_at: 0,
            to_hint: Vec::new(),
            change_written: replica.store().last_change(),
            members: replica.store().membership().everybody(),
            replica,
            installing: None,
            silence: LeaderSilence::default(),
            namespace: None,
            backlog: Vec::new(),
        }
    }

    /// Whether this node leads the group and step 1 is done.
    pub(crate) fn is_led(&self) -> bool {
        matches!(self.lead, Leadership::Leading(_))
    }

    /// Whether this node leads the group, even before step 1: submitted operations wait here.
    pub(crate) fn leads(&self) -> bool {
        self.replica.role() == Role::Leader
    }

    pub(crate) fn leader(&self) -> Option<ReplicaId> {
        self.replica.leader()
    }

    pub(crate) fn term(&self) -> u64 {
        self.replica.term()
    }

    /// Returns members that were removed since the last check.
    pub(crate) fn gone_members(&self) -> Vec<ReplicaId> {
        let now = self.membership().everybody();
        let gone = self.members.iter().filter(|member| !now.contains(member));
        gone.copied().collect()
    }

    pub(crate) fn remember_members(&mut self) {
        self.members = self.membership().everybody();
    }

    pub(crate) fn membership(&self) -> &Membership {
        self.replica.store().membership()
    }

    /// Whether [`Group::settle`] has work.
    pub(crate) fn has_work(&self) -> bool {
        self.replica.has_work() || !self.batch.is_empty() || self.lead.has_work()
    }

    /// This node's rank in the order in which voters campaign after the leader's node failed. The
    /// order differs by group, so that one node does not take over all groups.
    pub(crate) fn rank_after(&self, gone: NodeId) -> usize {
        let voters = &self.membership().voters;
        let left: Vec<ReplicaId> = voters
            .iter()
            .copied()
            .filter(|member| member.node != gone)
            .collect();
        let Some(at) = left.iter().position(|member| *member == self.me) else {
            return left.len();
        };
        let first = self.id.0 as usize % left.len().max(1);
        (at + left.len() - first) % left.len()
    }

    /// Returns a number that orders voters, differently for each group.
    pub(crate) fn rank_of(&self, member: ReplicaId) -> usize {
        let voters = &self.membership().voters;
        let at = voters.iter().position(|voter| *voter == member);
        at.map_or(0, |at| (at + self.id.0 as usize) % voters.len())
    }

    /// Returns the amount of pending work, for backpressure (R151: backpressure per group).
    pub(crate) fn load(&self) -> usize {
        self.batch.len() + self.proposed_commands + self.lead.load()
    }

    /// Accepts an operation. It is answered exactly once, through [`StepContext::answers`].
    pub(crate) fn submit(
        &mut self,
        ticket: OpId,
        op: GroupOp,
        expires: u64,
        turn: &mut StepContext,
    ) {
        self.notice_role(turn);
        if self.replica.role() != Role::Leader {
            turn.returned.push((ticket, op));
            return;
        }
        match op {
            GroupOp::Command(command) => self.batch.push(ticket, AnyCommand::Space(command)),
            GroupOp::System(command) => self.batch.push(ticket, AnyCommand::System(command)),
            GroupOp::Renew(renew) => {
                self.lead
                    .join_renewal(ticket, renew, expires, &self.machine);
            }
            GroupOp::Read(query) => {
                let waiting = RoundWaiter::Read {
                    ticket,
                    query,
                    expires,
                };
                self.lead.join(waiting, &self.machine);
            }
        }
    }

    /// Starts a leadership check; the result is in [`StepContext::leadership_confirmed`] after the
    /// next ReadIndex round.
    pub(crate) fn confirm_leadership(&mut self, number: u64, turn: &mut StepContext) {
        self.notice_role(turn);
        if self.replica.role() != Role::Leader {
            turn.leadership_confirmed
                .push((number, self.id, LeadershipCheck::No));
            return;
        }
        self.lead
            .join(RoundWaiter::ConfirmLeadership { number }, &self.machine);
    }

    /// Returns the state machine if a read may use it without a round: this replica is the only
    /// voter, and all committed entries and proposed endings are applied (leases.md, step 5).
    pub(crate) fn confirmed_at_once(&self) -> Option<&StateMachine> {
        let committed = self.replica.committed_alone()?;
        let leads_still = self.known.0 == self.replica.term();
        let is_applied = committed <= self.applied.index && self.lead.has_ended_all();
        (leads_still && is_applied).then_some(&self.machine)
    }

    pub(crate) fn receive(&mut self, message: Message) {
        if message.kind.is_of_leader() && message.term >= self.replica.term() {
            self.silence = LeaderSilence::default();
        }
        self.replica.receive(message);
    }

    /// Accepts a complete snapshot from a leader. Consensus may refuse it and keep one that another
    /// leader sent in the same step.
    pub(crate) fn receive_state(
        &mut self,
        message: Message,
        place: LogPosition,
        machine: StateMachine,
        data: Bytes,
    ) {
        self.receive(message);
        if self.replica.accepted_snapshot() == Some(place) {
            self.arrived = Some(ArrivedMessages {
                place,
                machine,
                data,
            });
        }
    }

    /// Whether a write is not durable yet.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.unsynced > 0
    }

    /// Whether a majority durably knows that every removal is committed. Then no election can
    /// depend on a removed member.
    pub(crate) fn removals_are_known(&self) -> bool {
        self.replica.quorum_knows_committed(self.removed_at)
    }

    pub(crate) fn tick(&mut self, number: u64, turn: &mut StepContext) {
        self.replica.tick(number);
        if self.leads() {
            self.silence = LeaderSilence::default();
        } else {
            self.silence.tick();
        }
        self.lead.tick(turn);
    }

    /// Proposes a membership change, if no other one is unfinished.
    pub(crate) fn change_membership(&mut self, change: &MembershipChange) -> Option<LogPosition> {
        self.replica.change(change).ok()
    }

    /// Reports that the writes of a step are durable.
    pub(crate) fn persisted(&mut self, written: WrittenWork) {
        if written.replica != self.number {
            return;
        }
        let number = written.number;
        self.unsynced -= 1;
        self.replica.persisted(number);
        if let Some((installed_by, index)) = self.installing
            && installed_by <= number
        {
            self.installing = None;
            self.replica.applied(index);
        }
    }

    /// Proposes, writes, applies and answers until the group has no more work or used up its share
    /// of this step.
    pub(crate) fn settle(&mut self, turn: &mut StepContext) -> MoreWork {
        self.apply_backlog(turn);
        for _ in 0..WORK_PER_TURN {
            self.notice_role(turn);
            self.due(turn);
            self.propose(turn);
            self.start_round(turn);
            let mut work = std::mem::take(&mut turn.work);
            let more = self.replica.take(&mut work);
            if more {
                self.carry_out(&mut work, turn);
            }
            turn.work = work;
            if turn.stop.is_some() {
                return MoreWork::Done;
            }
            let waiting = self.batch.len();
            self.answer_ripe(turn);
            if !more {
                self.notice_role(turn);
                // `answer_ripe` may have added a renewal that must be logged; if so, loop to
                // propose it.
                if self.batch.len() <= waiting {
                    return if self.backlog.is_empty() {
                        MoreWork::Done
                    } else {
                        MoreWork::More
                    };
                }
            }
        }
        MoreWork::More
    }

    /// Handles a [`Ready`]: collects its writes and messages, and applies its committed entries.
    ///
    /// A follower that has something to write applies the committed entries in the next step: the
    /// leader waits for the follower's write, which should not wait for the apply.
    fn carry_out(&mut self, work: &mut Ready, turn: &mut StepContext) {
        self.apply_backlog(turn);
        let mut wrote = false;
        if let Some(base) = work.snapshot.take() {
            self.install(base.place, turn);
            self.installing = Some((work.number, base.place.index));
            turn.writes
                .push((self.id, LogWrite::Installed(Box::new(base))));
            wrote = true;
        }
        let is_change = |entry: &Entry| matches!(entry.payload, Payload::Membership(_));
        let change = work.entries.iter().rev().find(|entry| is_change(entry));
        let has_change = change.is_some();
        self.change_written = change.map_or(self.change_written, |entry| entry.place.index);
        let changes_members = work.committed.iter().any(is_change);
        wrote |= !work.entries.is_empty();
        // A commit index alone is a hint and not worth a write of its own. Membership changes are
        // the exception: after a restart the replica must know which of them are committed.
        // Together with a new change it stores that the previous one is committed; otherwise a
        // founder could elect itself. For a committed change it stores the commit; otherwise it
        // would count on members that may be gone for good. The leader relies on this, so the
        // acknowledgement must not be sent before the write is durable.
        let commits_change = self.change_written > self.applied.index
            && work
                .hard_state
                .is_some_and(|state| state.commit >= self.change_written);
        let changes_members = changes_members || commits_change;
        turn.must_sync |= changes_members;
        let hint = (has_change || changes_members).then(|| self.replica.store().hard_state());
        if let Some(state) = work.hard_state.or(hint)
            && (wrote || work.must_sync || changes_members)
        {
            turn.writes.push((self.id, LogWrite::HardState(state)));
            wrote = true;
        }
        if !work.entries.is_empty() {
            // After the hard state: a long step is split into several batches, and no entry may be
            // durable before its term is.
            let entries = std::mem::take(&mut work.entries);
            turn.writes.push((self.id, LogWrite::Entries(entries)));
        }
        turn.must_sync |= work.must_sync;
        if wrote {
            self.unsynced += 1;
            let written = WrittenWork {
                group: self.id,
                replica: self.number,
                number: work.number,
            };
            turn.numbers.push((turn.writes.len(), written));
        // Nothing to write, and no earlier write is pending: already durable.
        } else if self.unsynced == 0 {
            self.replica.persisted(work.number);
        }
        let id = self.id;
        let tag = |message| (id, message);
        turn.messages.extend(work.messages.drain(..).map(tag));
        turn.after.extend(work.after.drain(..).map(tag));
        self.notice_role(turn);
        for (round, index) in work.confirmed.drain(..) {
            self.lead.confirmed(round, index);
        }
        // Membership changes and a leader's own entries are applied at once: the leader has to
        // answer clients, and the write above records a change as committed.
        if wrote && !changes_members && !self.leads() {
            self.backlog.append(&mut work.committed);
            return;
        }
        for entry in work.committed.drain(..) {
            self.apply(entry, turn);
            if turn.stop.is_some() {
                return;
            }
        }
    }

    fn apply_backlog(&mut self, turn: &mut StepContext) {
        let mut backlog = std::mem::take(&mut self.backlog);
        for entry in backlog.drain(..) {
            if turn.stop.is_none() {
                self.apply(entry, turn);
            }
        }
        // Keep the allocation.
        self.backlog = backlog;
    }

    /// Starts a ReadIndex round if there are waiters.
    fn start_round(&mut self, turn: &mut StepContext) {
        if !self.lead.has_work() {
            return;
        }
        if let Some(index) = self.replica.committed_alone() {
            // The only voter needs no confirmation.
            self.lead.confirmed_alone(index);
        } else if let Some(round) = self.lead.start_round(turn) {
            self.replica.read(round);
        }
    }

    /// Detects a change of role, term or leader, and reports it once.
    fn notice_role(&mut self, turn: &mut StepContext) {
        let now = (
            self.replica.term(),
            self.replica.role(),
            self.replica.leader(),
        );
        if now == self.known {
            return;
        }
        let before = std::mem::replace(&mut self.known, now);
        let led_before = before.1 == Role::Leader;
        if led_before && (now.1 != Role::Leader || now.0 != before.0) {
            self.step_down(turn);
        }
        if now.1 == Role::Leader
            && !matches!(
                self.lead,
                Leadership::Waiting { .. } | Leadership::Leading(_)
            )
        {
            self.lead = Leadership::Waiting {
                term: now.0,
                early: Vec::new(),
            };
        }
        if (now.0, now.2) != (before.0, before.2) {
            turn.events_out.push((self.id, GroupEvent::Leader));
        }
    }

    /// Step 6: returns all waiters and unproposed operations, which other leaders can handle.
    /// Proposals stay in `proposed`, because they may still be committed.
    fn step_down(&mut self, turn: &mut StepContext) {
        let was_led = self.is_led();
        for waiting in std::mem::replace(&mut self.lead, Leadership::Not).clear() {
            match waiting {
                RoundWaiter::Read { ticket, query, .. } => {
                    turn.returned.push((ticket, GroupOp::Read(query)));
                }
                RoundWaiter::Renew { ticket, renew, .. } => {
                    turn.returned.push((ticket, GroupOp::Renew(renew)));
                }
                RoundWaiter::ConfirmLeadership { number } => {
                    turn.leadership_confirmed
                        .push((number, self.id, LeadershipCheck::No));
                }
            }
        }
        turn.returned.extend(self.batch.clear());
        if was_led {
            turn.events_out.push((self.id, GroupEvent::NotLed));
        }
    }

    /// Step 2: proposes due endings before any other work of the step.
    pub(crate) fn due(&mut self, turn: &mut StepContext) {
        if let Leadership::Leading(leading) = &mut self.lead {
            leading.due(&self.machine, &mut self.batch, turn.now_ms);
        }
    }

    /// Returns a time not later than when [`Group::due`] next has work.
    pub(crate) fn next_due(&self) -> Option<u64> {
        match &self.lead {
            Leadership::Leading(leading) => leading.next_due(&self.machine),
            Leadership::Not | Leadership::Waiting { .. } => None,
        }
    }

    fn propose(&mut self, turn: &mut StepContext) {
        let Leadership::Leading(leading) = &mut self.lead else {
            return;
        };
        let rules = self.machine.rules();
        if rules < RULES {
            // Every replica must be able to decode an entry. This is checked here and not on
            // submission: before step 1 the machine may not have applied the entry that raises the
            // rules number.
            for ticket in self.batch.take_unknown(rules) {
                let answer = GroupOpResult::NotHere { leader: None };
                turn.answers.push((ticket, answer));
            }
        }
        while !self.batch.is_empty() {
            let stamp = Stamp {
                time: leading.lease_time(turn.now_ms),
                wall: turn.wall,
            };
            let (bytes, mut commands) = self.batch.next(stamp, rules, &mut turn.scratch);
            if bytes.len() > MAX_PROPOSAL_BYTES
                && let Some((Some(ticket), _)) =
                    commands.commands.pop_if(|(ticket, _)| ticket.is_some())
            {
                // The batch closes an entry after the command that fills it, so the last command is
                // the long one.
                turn.answers.push((ticket, GroupOpResult::TooLong));
                self.batch.put_back(commands);
                continue;
            }
            match self.replica.propose(bytes) {
                Ok(place) => {
                    leading.stamped(turn.now_ms);
                    self.proposed_commands += commands.commands.len();
                    self.proposed.push_back(Proposed { place, commands });
                }
                Err(_dropped) => {
                    // A leadership transfer is in progress, or too much is uncommitted: retry
                    // later.
                    self.batch.put_back(commands);
                    return;
                }
            }
        }
    }

    fn apply(&mut self, entry: Entry, turn: &mut StepContext) {
        assert_eq!(
            entry.place.index,
            self.applied.index + 1,
            "entries are applied in order, each once"
        );
        let own = self.take_own(entry.place, turn);
        match entry.payload {
            Payload::Empty => {}
            Payload::Commands(bytes) => {
                match own {
                    Some(own) => self.apply_own(own, turn),
                    None => self.apply_read(&bytes, turn).unwrap_or_else(|error| {
                        turn.stop = Some(format!(
                            "{} cannot read its committed entry {}: {error}",
                            self.id, entry.place.index
                        ));
                    }),
                }
                if turn.stop.is_some() {
                    return;
                }
                if matches!(self.machine, StateMachine::System(_)) {
                    turn.events_out.push((self.id, GroupEvent::System));
                }
            }
            Payload::Membership(change) => {
                let before = self.membership().everybody();
                let numbering = self.numbering(entry.place.index);
                let after = self.replica.enact(&change, numbering).everybody();
                self.changed_at = entry.place.index;
                if before.iter().any(|member| !after.contains(member)) {
                    self.removed_at = entry.place.index;
                }
                turn.events_out.push((self.id, GroupEvent::Membership));
            }
        }
        self.applied = entry.place;
        self.replica.applied(entry.place.index);
        self.begin_leading(entry.place.term, turn);
    }

    /// Returns how a membership change at this index numbers the replicas that it adds.
    pub(crate) fn numbering(&self, index: u64) -> ReplicaNumbering {
        if self.machine.rules() >= NUMBERED_REPLICAS {
            ReplicaNumbering::ByIndex(index)
        } else {
            ReplicaNumbering::None
        }
    }

    /// Step 1: starts to lead when the first entry of the own term is applied.
    fn begin_leading(&mut self, applied_term: u64, turn: &mut StepContext) {
        let Leadership::Waiting { term, early } = &mut self.lead else {
            return;
        };
        if *term != applied_term {
            return;
        }
        let early = std::mem::take(early);
        let mut leading = leader::LeaderState::begin(&self.machine, turn.now_ms);
        for waiting in early {
            leading.join(waiting, &self.machine);
        }
        self.lead = Leadership::Leading(Box::new(leading));
        // A new leader does not know which changes of earlier leaders a majority knows, so it
        // counts from its own first entry.
        self.changed_at = self.applied.index;
        self.removed_at = self.applied.index;
        turn.events_out.push((self.id, GroupEvent::Led));
    }

    /// Returns our proposal at this log position, if the entry is ours. Proposals that lost their
    /// position to a later leader are returned as never committed.
    fn take_own(&mut self, place: LogPosition, turn: &mut StepContext) -> Option<ProposedCommands> {
        let front = self.proposed.front()?;
        if front.place == place {
            return self.pop_proposed();
        }
        // Terms never decrease along a log: after an entry of a later term no entry of an earlier
        // term can follow.
        while let Some(front) = self.proposed.front()
            && front.place.term < place.term
        {
            self.resolve_front(ProposalFate::NeverHappened, turn);
        }
        None
    }

    fn pop_proposed(&mut self) -> Option<ProposedCommands> {
        let commands = self.proposed.pop_front()?.commands;
        self.proposed_commands -= commands.commands.len();
        Some(commands)
    }

    fn resolve_front(&mut self, fate: ProposalFate, turn: &mut StepContext) {
        let Some(lost) = self.pop_proposed() else {
            return;
        };
        for (ticket, command) in lost.commands {
            match (ticket, fate) {
                (Some(ticket), ProposalFate::NeverHappened) => {
                    turn.returned.push((ticket, command.into_op()));
                }
                (Some(ticket), ProposalFate::Unknown) => {
                    turn.answers.push((ticket, GroupOpResult::Unknown))
                }
                (None, _) => {}
            }
        }
    }

    /// Answers all proposals with an unknown outcome, as if the node had crashed. Used when the
    /// disk stalls: the node applies nothing that it has not written, so it cannot learn the
    /// outcome soon.
    pub(crate) fn give_up_proposals(&mut self, turn: &mut StepContext) {
        while !self.leads() && !self.proposed.is_empty() {
            self.resolve_front(ProposalFate::Unknown, turn);
        }
    }

    /// Applies an entry that was proposed here.
    fn apply_own(&mut self, own: ProposedCommands, turn: &mut StepContext) {
        let (stamp, endings) = (own.stamp, own.endings);
        for (ticket, command) in own.into_written() {
            let namespace = match &command {
                AnyCommand::Space(command) if ticket.is_some() => decided_in(command),
                AnyCommand::Space(_) | AnyCommand::System(_) => None,
            };
            let Some(outcome) = self.apply_command(stamp, command, turn) else {
                return;
            };
            let Some(ticket) = ticket else { continue };
            let answer = match outcome {
                AnyOutcome::Space(outcome) => GroupOpResult::Applied {
                    lease_left_ms: namespace.and_then(|namespace| {
                        let machine = &self.machine;
                        self.lead
                            .blocker_left(machine, &namespace, &outcome, turn.now_ms)
                    }),
                    outcome,
                },
                AnyOutcome::System(outcome) => GroupOpResult::System(outcome),
            };
            turn.answers.push((ticket, self.as_renewal(answer)));
        }
        if let Leadership::Leading(leading) = &mut self.lead {
            leading.endings_applied(endings);
        }
    }

    /// Applies an entry of another leader, decoding command by command.
    fn apply_read(&mut self, bytes: &[u8], turn: &mut StepContext) -> Result<(), DecodeError> {
        let mut entry = EntryDecoder::new(bytes, self.namespace.take())?;
        while let Some(command) = entry.next()? {
            if self.apply_command(entry.stamp, command, turn).is_none() {
                break;
            }
        }
        self.namespace = entry.into_namespace();
        Ok(())
    }

    /// Applies one command; returns `None` if the command is for the other kind of machine.
    fn apply_command(
        &mut self,
        stamp: Stamp,
        command: AnyCommand,
        turn: &mut StepContext,
    ) -> Option<AnyOutcome> {
        let effects = &mut turn.effects;
        let Some(outcome) = self.machine.apply(stamp, command, effects) else {
            turn.stop = Some(format!(
                "{}: the log has a command of another kind of group",
                self.id
            ));
            return None;
        };
        #[cfg(feature = "check")]
        self.effects_seen.push((
            self.applied.index + 1,
            match &outcome {
                AnyOutcome::Space(outcome) => {
                    crate::inspect::effect_hash(outcome, &effects.events, &effects.leases)
                }
                AnyOutcome::System(outcome) => {
                    crate::inspect::effect_hash(outcome, &effects.events, &[])
                }
            },
        ));
        if let Leadership::Leading(leading) = &mut self.lead {
            leading.note(effects.leases.drain(..), turn.now_ms);
            let id = self.id;
            if !effects.events.is_empty() || !effects.changes.is_empty() {
                let events = effects.events.drain(..).map(GroupEvent::Event);
                let changes = effects.changes.drain(..);
                let changes = changes.map(|change| GroupEvent::Change(Box::new(change)));
                turn.events_out
                    .extend(events.chain(changes).map(|events_out| (id, events_out)));
            }
        }
        effects.clear();
        if self.machine.rules() > RULES {
            // The other replicas apply the following entries by rules that this release does not
            // know.
            turn.stop = Some(format!(
                "{} uses rules number {}, and this release supports numbers up to {RULES}: start a newer release",
                self.id,
                self.machine.rules()
            ));
            return None;
        }
        Some(outcome)
    }

    /// Converts the answer of a logged renewal to that of an unlogged one.
    fn as_renewal(&self, answer: GroupOpResult) -> GroupOpResult {
        match answer {
            GroupOpResult::Applied {
                outcome: Outcome::Renew(renewed),
                ..
            } => GroupOpResult::Renewed(renewed),
            other => other,
        }
    }

    fn answer_ripe(&mut self, turn: &mut StepContext) {
        if let Leadership::Leading(leading) = &mut self.lead {
            let (id, applied) = (self.id, self.applied.index);
            leading.answer_ripe(id, &self.machine, &mut self.batch, applied, turn);
        }
    }

    /// Replaces the state by a snapshot. The outcome of proposals that it covers is unknown.
    fn install(&mut self, place: LogPosition, turn: &mut StepContext) {
        match self.arrived.take() {
            Some(arrived) if arrived.place == place => {
                self.machine = arrived.machine;
                self.installed_data = Some(arrived.data);
                self.applied = place;
                while let Some(front) = self.proposed.front() {
                    let covered = front.place.index <= place.index;
                    if !covered && front.place.term >= place.term {
                        break;
                    }
                    let fate = if covered {
                        ProposalFate::Unknown
                    } else {
                        ProposalFate::NeverHappened
                    };
                    self.resolve_front(fate, turn);
                }
                turn.events_out.push((self.id, GroupEvent::Installed));
            }
            _ => {
                turn.stop = Some(format!(
                    "{}: the snapshot of entry {} to install is missing",
                    self.id, place.index
                ));
            }
        }
    }

    /// Answers all pending work when the replica is removed from this node.
    pub(crate) fn close(mut self, turn: &mut StepContext) {
        self.step_down(turn);
        while !self.proposed.is_empty() {
            self.resolve_front(ProposalFate::Unknown, turn);
        }
    }

    /// Returns the remaining time of a lease, if this node leads the group.
    pub(crate) fn lease_left(
        &self,
        namespace: &Namespace,
        owner: &OwnerId,
        now_ms: u64,
    ) -> Option<u64> {
        match &self.lead {
            Leadership::Leading(leading) => leading.left(&self.machine, namespace, owner, now_ms),
            Leadership::Not | Leadership::Waiting { .. } => None,
        }
    }

    pub(crate) fn lead(&self) -> &Leadership {
        &self.lead
    }
}

/// Returns the namespace of an acquire, to look up the blocker's remaining lease time (E4: blocker
/// and queue position).
fn decided_in(command: &Command) -> Option<Namespace> {
    match command {
        Command::Acquire(acquire) => Some(acquire.route.namespace.clone()),
        Command::AcquireWithin(within) => Some(within.acquire.route.namespace.clone()),
        _ => None,
    }
}

/// The outcome of a proposal that was not applied here as its own entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProposalFate {
    /// Another entry has its log position: it was never committed.
    NeverHappened,
    /// A snapshot covers its log position.
    Unknown,
}

/// Whether a ReadIndex round confirmed that this node leads the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeadershipCheck {
    Yes,
    /// Another node leads the group, or no node does.
    No,
}

/// Whether a group has more work for the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoreWork {
    Done,
    More,
}
