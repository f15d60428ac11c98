//! Volatile state of a group's leader: lease deadlines, pending endings, and waiters of ReadIndex
//! rounds. It is dropped when leadership is lost. The step numbers are those of leases.md.

use tenure_core::command::{Command, Expire, RenewLease};
use tenure_core::lease;
use tenure_core::outcome::{AcquireOutcome, LeaseChange, LeaseNumber, Outcome, Renewed};
use tenure_core::path::Namespace;
use tenure_core::query::HeldLock;
use tenure_core::value::OwnerId;

use super::{LeadershipCheck, StepContext};
use crate::GroupId;
use crate::batch::ProposalBatch;
use crate::consensus::ReadRound;
use crate::group_op::{GroupOpResult, GroupQuery, OpId, QueryResult};
use crate::leases::{JoinedRenewal, LeaseStanding, Leases};
use crate::read_index::{AppliedUntil, ReadIndexRounds};
use crate::state_machine::{AnyCommand, StateMachine};

/// A group with a waiter or a long lease gets an entry with a time stamp at least this often (step
/// 7).
const TICK_EVERY_MS: u64 = 60_000;

/// Endings that may be proposed and not applied yet. Very many leases may be due at once: they end
/// in the order of their deadlines, a batch after the other, with other work in between. A lease may
/// end late, never early.
const ENDINGS_AT_ONCE: u64 = 2048;

/// Whether this node leads a group, and the leader's state.
pub(crate) enum Leadership {
    /// This node does not lead the group.
    Not,
    /// Elected, but the first entry of the term is not applied yet: nothing is decided.
    Waiting {
        /// The own term.
        term: u64,
        /// Reads and renewals that were received before step 1.
        early: Vec<RoundWaiter>,
    },
    /// Step 1 is done.
    Leading(Box<LeaderState>),
}

/// A waiter of a ReadIndex round.
#[derive(Debug)]
pub(crate) enum RoundWaiter {
    /// A read.
    Read {
        ticket: OpId,
        query: GroupQuery,
        expires: u64,
    },
    /// A renewal, counted with its lease while it waits.
    Renew {
        ticket: OpId,
        renew: RenewLease,
        joined: Option<JoinedRenewal>,
        expires: u64,
    },
    /// Fan-outs of one step that need confirmed leadership, by their common number.
    ConfirmLeadership { number: u64 },
}

impl RoundWaiter {
    /// Returns the operation if its deadline has passed. A leadership check has no deadline.
    fn over(&self, now_ms: u64) -> Option<OpId> {
        match self {
            RoundWaiter::Read {
                ticket, expires, ..
            }
            | RoundWaiter::Renew {
                ticket, expires, ..
            } => (*expires <= now_ms).then_some(*ticket),
            RoundWaiter::ConfirmLeadership { .. } => None,
        }
    }
}

impl Leadership {
    pub(crate) fn join(&mut self, waiting: RoundWaiter, machine: &StateMachine) {
        match self {
            Leadership::Leading(leading) => leading.join(waiting, machine),
            Leadership::Waiting { early, .. } => early.push(waiting),
            Leadership::Not => {}
        }
    }

    pub(crate) fn join_renewal(
        &mut self,
        ticket: OpId,
        renew: RenewLease,
        expires: u64,
        machine: &StateMachine,
    ) {
        let waiting = RoundWaiter::Renew {
            ticket,
            renew,
            joined: None,
            expires,
        };
        self.join(waiting, machine);
    }

    /// Whether a waiter needs a round that has not started.
    pub(crate) fn has_work(&self) -> bool {
        match self {
            Leadership::Leading(leading) => leading.rounds.wants_start(),
            Leadership::Not | Leadership::Waiting { .. } => false,
        }
    }

    /// Whether this node leads, step 1 is done, and every ending that it proposed is applied.
    pub(crate) fn has_ended_all(&self) -> bool {
        match self {
            Leadership::Leading(leading) => leading.endings == leading.endings_applied,
            Leadership::Not | Leadership::Waiting { .. } => false,
        }
    }

    pub(crate) fn load(&self) -> usize {
        match self {
            Leadership::Not => 0,
            Leadership::Waiting { early, .. } => early.len(),
            Leadership::Leading(leading) => leading.rounds.len(),
        }
    }

    pub(crate) fn start_round(&mut self, turn: &mut StepContext) -> Option<ReadRound> {
        match self {
            Leadership::Leading(leading) => leading.rounds.start(&mut turn.rounds, turn.now_ms),
            Leadership::Not | Leadership::Waiting { .. } => None,
        }
    }

    /// See [`ReadIndexRounds::confirmed_alone`].
    pub(crate) fn confirmed_alone(&mut self, index: u64) {
        if let Leadership::Leading(leading) = self {
            leading.rounds.confirmed_alone(index);
        }
    }

    pub(crate) fn confirmed(&mut self, round: ReadRound, index: u64) {
        if let Leadership::Leading(leading) = self {
            leading.rounds.confirmed(round, index);
        }
    }

    /// Restarts rounds without an answer, and answers waiters whose deadline has passed.
    pub(crate) fn tick(&mut self, turn: &mut StepContext) {
        if let Leadership::Leading(leading) = self {
            let now_ms = turn.now_ms;
            let over = |waiting: &RoundWaiter| waiting.over(now_ms).is_some();
            for waiting in leading.rounds.tick(now_ms, over) {
                leading.leave(&waiting);
                if let Some(ticket) = waiting.over(now_ms) {
                    let answer = GroupOpResult::NotHere { leader: None };
                    turn.answers.push((ticket, answer));
                }
            }
        }
    }

    /// Returns all waiters when leadership is lost.
    pub(crate) fn clear(self) -> Vec<RoundWaiter> {
        match self {
            Leadership::Not => Vec::new(),
            Leadership::Waiting { early, .. } => early,
            Leadership::Leading(mut leading) => leading.rounds.clear(),
        }
    }

    /// Returns the remaining lease time of an acquire's blocker (E4: blocker and queue position).
    pub(crate) fn blocker_left(
        &self,
        machine: &StateMachine,
        namespace: &Namespace,
        outcome: &Outcome,
        now_ms: u64,
    ) -> Option<u64> {
        let Leadership::Leading(leading) = self else {
            return None;
        };
        let Outcome::Acquire(outcome) = outcome else {
            return None;
        };
        let conflict = match outcome {
            AcquireOutcome::Queued(queued) => &queued.conflict,
            AcquireOutcome::Conflict(conflict) => conflict,
            AcquireOutcome::Granted { .. }
            | AcquireOutcome::Lost { .. }
            | AcquireOutcome::Refused(_) => return None,
        };
        let blocker = conflict.blocker.as_ref()?;
        leading.left(machine, namespace, &blocker.owner, now_ms)
    }

    /// Whether an owner has renewed in the leader's memory since its lease was last set (R122:
    /// events are always delivered).
    pub(crate) fn renewed_since_set(&self, lease: LeaseNumber) -> bool {
        match self {
            Leadership::Leading(leading) => leading.leases.renewed_since_set(lease),
            Leadership::Not | Leadership::Waiting { .. } => false,
        }
    }

    /// The leader's lease time, if step 1 is done.
    pub(crate) fn lease_time(&self, now_ms: u64) -> Option<u64> {
        match self {
            Leadership::Leading(leading) => Some(leading.lease_time(now_ms)),
            Leadership::Not | Leadership::Waiting { .. } => None,
        }
    }
}

/// See [`Leadership::Leading`].
pub(crate) struct LeaderState {
    /// Lease time at step 1: the largest stamp applied.
    time_then: u64,
    /// Running time at step 1.
    then_ms: u64,
    leases: Leases,
    rounds: ReadIndexRounds<RoundWaiter>,
    /// How many endings were ever proposed by this leader, and how many of them are applied.
    endings: u64,
    endings_applied: u64,
    last_stamp: u64,
    /// The ending number of a tick that is under way.
    tick: Option<u64>,
}

impl LeaderState {
    /// Step 1: every lease gets its full time again, or the remaining time that the log records.
    pub(crate) fn begin(machine: &StateMachine, now_ms: u64) -> LeaderState {
        let mut leases = Leases::default();
        let time = machine.time();
        if let Some(space) = machine.space() {
            for view in space.leases() {
                let left = lease::left(view.ttl, view.cover, time);
                leases.set(view.number, now_ms + left);
            }
        }
        LeaderState {
            time_then: time,
            then_ms: now_ms,
            leases,
            rounds: ReadIndexRounds::default(),
            endings: 0,
            endings_applied: 0,
            last_stamp: now_ms,
            tick: None,
        }
    }

    /// Lease time: the largest stamp applied at step 1, plus the running time since.
    pub(crate) fn lease_time(&self, now_ms: u64) -> u64 {
        self.time_then + (now_ms - self.then_ms)
    }

    /// Records that an entry was stamped now.
    pub(crate) fn stamped(&mut self, now_ms: u64) {
        self.last_stamp = now_ms;
    }

    /// Steps 2 and 7.
    pub(crate) fn due(&mut self, machine: &StateMachine, batch: &mut ProposalBatch, now_ms: u64) {
        let Some(space) = machine.space() else {
            return;
        };
        let room = self.room_for_endings();
        for lease in self.leases.due(now_ms, self.endings + 1, room) {
            self.endings += 1;
            let view = space.numbered_lease(lease);
            // `note` follows every applied command, so the leases here are exactly those of the
            // space.
            let view = view.expect("a lease that has not ended is in the space");
            batch.push_ending(AnyCommand::Space(Command::Expire(Expire {
                namespace: view.namespace.clone(),
                owner: view.owner.clone(),
                epoch: view.epoch,
            })));
        }
        if self.tick.is_none() && self.wants_tick(space, now_ms) {
            self.endings += 1;
            self.tick = Some(self.endings);
            batch.push_ending(AnyCommand::Space(Command::Tick));
        }
    }

    fn room_for_endings(&self) -> usize {
        let open = self.endings - self.endings_applied;
        // At most 2048, so the cast is lossless.
        ENDINGS_AT_ONCE.saturating_sub(open) as usize
    }

    fn wants_tick(&self, space: &tenure_core::space::Space, now_ms: u64) -> bool {
        let waiter_over = space
            .next_waiter_end()
            .is_some_and(|end| end <= self.lease_time(now_ms));
        waiter_over
            || space.has_pending()
            || (space.wants_ticks() && self.last_stamp + TICK_EVERY_MS <= now_ms)
    }

    /// Returns when [`LeaderState::due`] next has work.
    pub(crate) fn next_due(&self, machine: &StateMachine) -> Option<u64> {
        let space = machine.space()?;
        let lease = self.leases.next_due();
        let lease = lease.filter(|_| self.room_for_endings() > 0);
        let (mut waiter, mut stamp) = (None, None);
        if self.tick.is_none() {
            if space.has_pending() {
                return Some(0);
            }
            waiter = space
                .next_waiter_end()
                .map(|end| self.then_ms + end.saturating_sub(self.time_then));
            stamp = space
                .wants_ticks()
                .then_some(self.last_stamp + TICK_EVERY_MS);
        }
        [lease, waiter, stamp].into_iter().flatten().min()
    }

    /// Updates deadlines with the leases that an applied command set or ended.
    pub(crate) fn note(&mut self, changes: impl Iterator<Item = LeaseChange>, now_ms: u64) {
        for change in changes {
            match change {
                LeaseChange::Set { lease, ttl, .. } => {
                    self.leases.set(lease, now_ms + ttl.millis());
                }
                LeaseChange::Renewed { lease, ttl, .. } => {
                    self.leases.set_later(lease, now_ms + ttl.millis());
                }
                LeaseChange::Ended { lease } => self.leases.ended(lease),
            }
        }
    }

    /// Counts applied endings that this leader proposed.
    pub(crate) fn endings_applied(&mut self, count: u64) {
        self.endings_applied += count;
        if self.tick.is_some_and(|tick| tick <= self.endings_applied) {
            self.tick = None;
        }
    }

    pub(crate) fn join(&mut self, mut waiting: RoundWaiter, machine: &StateMachine) {
        if let RoundWaiter::Renew { renew, joined, .. } = &mut waiting {
            let lease = lease_of(machine, &renew.namespace, &renew.owner);
            *joined = lease.and_then(|lease| self.leases.renewal_joins(lease));
        }
        self.rounds.join(waiting, self.endings);
    }

    fn leave(&mut self, waiting: &RoundWaiter) {
        if let RoundWaiter::Renew {
            joined: Some(joined),
            ..
        } = waiting
        {
            self.leases.renewal_leaves(*joined);
        }
    }

    /// Returns the remaining time of a lease; zero while its end is proposed.
    pub(crate) fn left(
        &self,
        machine: &StateMachine,
        namespace: &Namespace,
        owner: &OwnerId,
        now_ms: u64,
    ) -> Option<u64> {
        let lease = lease_of(machine, namespace, owner)?;
        Some(match self.leases.standing(lease)? {
            LeaseStanding::Until(deadline) => deadline.saturating_sub(now_ms),
            LeaseStanding::Ending(_) => 0,
        })
    }

    /// Steps 4 and 5: answers all waiters that are confirmed and whose index is applied.
    pub(crate) fn answer_ripe(
        &mut self,
        id: GroupId,
        machine: &StateMachine,
        batch: &mut ProposalBatch,
        applied: u64,
        turn: &mut StepContext,
    ) {
        // Counted once: a waiter that is held again during this loop is checked in a later step.
        for _ in 0..self.rounds.held() {
            let Some((waiting, until)) = self.rounds.ripe(applied, self.endings_applied) else {
                continue;
            };
            match waiting {
                RoundWaiter::ConfirmLeadership { number } => {
                    turn.leadership_confirmed
                        .push((number, id, LeadershipCheck::Yes))
                }
                RoundWaiter::Read { ticket, query, .. } => {
                    let now = self.lease_time(turn.now_ms);
                    let answer = match machine.query(&query, now) {
                        Some(found) => {
                            let found = self.fill(machine, found, turn.now_ms);
                            GroupOpResult::Found(Box::new(found))
                        }
                        // A query for the other kind of machine: only a faulty peer sends one.
                        None => GroupOpResult::NotHere { leader: None },
                    };
                    turn.answers.push((ticket, answer));
                }
                RoundWaiter::Renew {
                    ticket,
                    renew,
                    joined,
                    expires,
                } => self.renew(
                    machine,
                    batch,
                    turn,
                    ConfirmedReads {
                        ticket,
                        renew,
                        joined,
                        expires,
                        until,
                    },
                ),
            }
        }
    }

    /// Adds the remaining lease times, which only the leader knows.
    fn fill(&self, machine: &StateMachine, found: QueryResult, now_ms: u64) -> QueryResult {
        match found {
            QueryResult::Explain { explanation, .. } => {
                let namespace = &explanation.namespace;
                let left = explanation
                    .blockers
                    .iter()
                    .map(|blocker| self.left(machine, namespace, &blocker.owner, now_ms))
                    .collect();
                QueryResult::Explain { explanation, left }
            }
            QueryResult::Survey(mut page) => {
                for hold in &mut page.holds {
                    let HeldLock {
                        namespace, owner, ..
                    } = &hold.lock;
                    hold.left_ms = self.left(machine, namespace, owner, now_ms);
                }
                QueryResult::Survey(page)
            }
            other => other,
        }
    }

    /// Step 4: decides a renewal that is confirmed and whose index is applied.
    fn renew(
        &mut self,
        machine: &StateMachine,
        batch: &mut ProposalBatch,
        turn: &mut StepContext,
        asked: ConfirmedReads,
    ) {
        let ConfirmedReads {
            ticket,
            renew,
            joined,
            expires,
            until,
        } = asked;
        let Some(space) = machine.space() else {
            let answer = GroupOpResult::NotHere { leader: None };
            turn.answers.push((ticket, answer));
            return;
        };
        let lease_time = self.lease_time(turn.now_ms);
        let view = space.renewal(&renew.namespace, &renew.owner);
        if let Ok(view) = &view
            && let Some(LeaseStanding::Ending(number)) = self.leases.standing(view.number)
        {
            // `Expire` is proposed: the applied entry decides, and the renewal is evaluated after
            // it.
            let waiting = RoundWaiter::Renew {
                ticket,
                renew,
                joined,
                expires,
            };
            let endings = number.max(until.endings);
            self.rounds.hold(waiting, AppliedUntil { endings, ..until });
            return;
        }
        match view {
            Err(missing) => {
                turn.answers
                    .push((ticket, GroupOpResult::Renewed(Err(missing))));
            }
            Ok(view) if lease::covered(view.ttl, view.cover, renew.ttl, lease_time) => {
                let deadline = turn.now_ms + renew.ttl.millis();
                self.leases.renew(view.number, deadline);
                let renewed = Renewed {
                    asked: view.asked_until > lease_time,
                    born: view.born,
                };
                turn.answers
                    .push((ticket, GroupOpResult::Renewed(Ok(renewed))));
            }
            Ok(_) => batch.push(ticket, AnyCommand::Space(Command::Renew(renew))),
        }
        if let Some(joined) = joined {
            self.leases.renewal_leaves(joined);
        }
    }
}

fn lease_of(machine: &StateMachine, namespace: &Namespace, owner: &OwnerId) -> Option<LeaseNumber> {
    let view = machine.space()?.lease(namespace, owner)?;
    Some(view.number)
}

struct ConfirmedReads {
    ticket: OpId,
    renew: RenewLease,
    joined: Option<JoinedRenewal>,
    expires: u64,
    until: AppliedUntil,
}
