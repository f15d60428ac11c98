//! What a leader keeps for its group, and loses with leadership: deadlines, endings under way, and
//! those who wait for a round. The steps are those of leases.md.

use tenure_core::command::{Command, Expire, RenewLease};
use tenure_core::lease;
use tenure_core::outcome::{AcquireOutcome, LeaseChange, LeaseNumber, Outcome, Renewed};
use tenure_core::path::Namespace;
use tenure_core::value::OwnerId;

use super::{Turn, Vouched};
use crate::GroupId;
use crate::batch::Batch;
use crate::consensus::Round;
use crate::leases::{Joined, Leases, Standing};
use crate::machine::{AnyCommand, Machine};
use crate::op::{Found, OpAnswer, Query, Ticket};
use crate::reads::{Rounds, Until};

/// A group with a waiter or a long lease is stamped at least this often (step 7).
const TICK_EVERY_MS: u64 = 60_000;

/// The leader's part in a group.
pub(crate) enum Lead {
    /// Somebody else's.
    Not,
    /// Elected, but the first entry of the term is not applied yet: nothing is decided.
    Waiting {
        /// The own term.
        term: u64,
        /// What came too early.
        early: Vec<Waiting>,
    },
    /// Step 1 is done.
    Leading(Box<Leading>),
}

/// One that waits for a round.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// A read.
    Read {
        ticket: Ticket,
        query: Query,
        expires: u64,
    },
    /// A renewal, counted with its lease while it waits.
    Renew {
        ticket: Ticket,
        renew: RenewLease,
        joined: Option<Joined>,
        expires: u64,
    },
    /// Some who want to know that this group's leader is here, by their common number.
    Vouch { number: u64 },
}

impl Waiting {
    /// The operation that waits too long; none where one just goes on asking.
    fn over(&self, reading: u64) -> Option<Ticket> {
        match self {
            Waiting::Read {
                ticket, expires, ..
            }
            | Waiting::Renew {
                ticket, expires, ..
            } => (*expires <= reading).then_some(*ticket),
            Waiting::Vouch { .. } => None,
        }
    }
}

impl Lead {
    pub(crate) fn join(&mut self, waiting: Waiting, machine: &Machine) {
        match self {
            Lead::Leading(leading) => leading.join(waiting, machine),
            Lead::Waiting { early, .. } => early.push(waiting),
            Lead::Not => {}
        }
    }

    pub(crate) fn join_renewal(
        &mut self,
        ticket: Ticket,
        renew: RenewLease,
        expires: u64,
        machine: &Machine,
    ) {
        let waiting = Waiting::Renew {
            ticket,
            renew,
            joined: None,
            expires,
        };
        self.join(waiting, machine);
    }

    /// Whether somebody waits for a round that has not started.
    pub(crate) fn has_work(&self) -> bool {
        match self {
            Lead::Leading(leading) => leading.rounds.wants_start(),
            Lead::Not | Lead::Waiting { .. } => false,
        }
    }

    /// Whether it leads, step 1 done, and every ending that it proposed is applied.
    pub(crate) fn has_ended_all(&self) -> bool {
        match self {
            Lead::Leading(leading) => leading.endings == leading.endings_applied,
            Lead::Not | Lead::Waiting { .. } => false,
        }
    }

    pub(crate) fn load(&self) -> usize {
        match self {
            Lead::Not => 0,
            Lead::Waiting { early, .. } => early.len(),
            Lead::Leading(leading) => leading.rounds.len(),
        }
    }

    pub(crate) fn start_round(&mut self, turn: &mut Turn) -> Option<Round> {
        match self {
            Lead::Leading(leading) => leading.rounds.start(&mut turn.rounds, turn.reading),
            Lead::Not | Lead::Waiting { .. } => None,
        }
    }

    /// See [`Rounds::confirmed_alone`].
    pub(crate) fn confirmed_alone(&mut self, index: u64) {
        if let Lead::Leading(leading) = self {
            leading.rounds.confirmed_alone(index);
        }
    }

    pub(crate) fn confirmed(&mut self, round: Round, index: u64) {
        if let Lead::Leading(leading) = self {
            leading.rounds.confirmed(round, index);
        }
    }

    /// Rounds that nobody answered are asked again; who waited too long leaves.
    pub(crate) fn tick(&mut self, turn: &mut Turn) {
        if let Lead::Leading(leading) = self {
            let reading = turn.reading;
            let over = |waiting: &Waiting| waiting.over(reading).is_some();
            for waiting in leading.rounds.tick(reading, over) {
                leading.leave(&waiting);
                if let Some(ticket) = waiting.over(reading) {
                    let answer = OpAnswer::NotHere { leader: None };
                    turn.answers.push((ticket, answer));
                }
            }
        }
    }

    /// Everybody who waits, when leadership is lost.
    pub(crate) fn clear(self) -> Vec<Waiting> {
        match self {
            Lead::Not => Vec::new(),
            Lead::Waiting { early, .. } => early,
            Lead::Leading(mut leading) => leading.rounds.clear(),
        }
    }

    /// What is left of the lease of whoever is in an acquire's way (E4).
    pub(crate) fn blocker_left(
        &self,
        machine: &Machine,
        namespace: &Namespace,
        outcome: &Outcome,
        reading: u64,
    ) -> Option<u64> {
        let Lead::Leading(leading) = self else {
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
        leading.left(machine, namespace, &blocker.owner, reading)
    }

    /// Whether an owner has renewed in the leader's memory since its lease was last set (R122).
    pub(crate) fn renewed_since_set(&self, lease: LeaseNumber) -> bool {
        match self {
            Lead::Leading(leading) => leading.leases.renewed_since_set(lease),
            Lead::Not | Lead::Waiting { .. } => false,
        }
    }

    /// The leader's lease time, if step 1 is done.
    pub(crate) fn lease_time(&self, reading: u64) -> Option<u64> {
        match self {
            Lead::Leading(leading) => Some(leading.lease_time(reading)),
            Lead::Not | Lead::Waiting { .. } => None,
        }
    }
}

/// See [`Lead::Leading`].
pub(crate) struct Leading {
    /// Lease time at step 1: the largest stamp applied.
    time_then: u64,
    /// The reading at step 1.
    reading_then: u64,
    leases: Leases,
    rounds: Rounds<Waiting>,
    /// How many endings were ever proposed by this leader, and how many of them are applied.
    endings: u64,
    endings_applied: u64,
    last_stamp: u64,
    /// The ending number of a tick that is under way.
    tick: Option<u64>,
}

impl Leading {
    /// Step 1: every lease gets its full time again, or what the log says is left.
    pub(crate) fn begin(machine: &Machine, reading: u64) -> Leading {
        let mut leases = Leases::default();
        let time = machine.time();
        if let Some(space) = machine.space() {
            for view in space.leases() {
                let left = lease::left(view.ttl, view.cover, time);
                leases.set(view.number, reading + left);
            }
        }
        Leading {
            time_then: time,
            reading_then: reading,
            leases,
            rounds: Rounds::default(),
            endings: 0,
            endings_applied: 0,
            last_stamp: reading,
            tick: None,
        }
    }

    /// Lease time: the largest stamp applied at step 1, plus the readings since.
    pub(crate) fn lease_time(&self, reading: u64) -> u64 {
        self.time_then + (reading - self.reading_then)
    }

    /// An entry was stamped now.
    pub(crate) fn stamped(&mut self, reading: u64) {
        self.last_stamp = reading;
    }

    /// Steps 2 and 7.
    pub(crate) fn due(&mut self, machine: &Machine, batch: &mut Batch, reading: u64) {
        let Some(space) = machine.space() else {
            return;
        };
        for lease in self.leases.due(reading, self.endings + 1) {
            self.endings += 1;
            let view = space.numbered_lease(lease);
            // What was applied was noted: the leases here are those of the space.
            let view = view.expect("a lease that has not ended is in the space");
            batch.push_ending(AnyCommand::Space(Command::Expire(Expire {
                namespace: view.namespace.clone(),
                owner: view.owner.clone(),
                epoch: view.epoch,
            })));
        }
        if self.tick.is_none() && self.wants_tick(space, reading) {
            self.endings += 1;
            self.tick = Some(self.endings);
            batch.push_ending(AnyCommand::Space(Command::Tick));
        }
    }

    fn wants_tick(&self, space: &tenure_core::space::Space, reading: u64) -> bool {
        let waiter_over = space
            .next_waiter_end()
            .is_some_and(|end| end <= self.lease_time(reading));
        waiter_over || (space.wants_ticks() && self.last_stamp + TICK_EVERY_MS <= reading)
    }

    /// When [`Leading::due`] has something to do.
    pub(crate) fn next_due(&self, machine: &Machine) -> Option<u64> {
        let space = machine.space()?;
        let lease = self.leases.next_due();
        let (mut waiter, mut stamp) = (None, None);
        if self.tick.is_none() {
            waiter = space
                .next_waiter_end()
                .map(|end| self.reading_then + end.saturating_sub(self.time_then));
            stamp = space
                .wants_ticks()
                .then_some(self.last_stamp + TICK_EVERY_MS);
        }
        [lease, waiter, stamp].into_iter().flatten().min()
    }

    /// Leases that an applied command set or ended.
    pub(crate) fn note(&mut self, changes: impl Iterator<Item = LeaseChange>, reading: u64) {
        for change in changes {
            match change {
                LeaseChange::Set { lease, ttl, .. } => {
                    self.leases.set(lease, reading + ttl.millis());
                }
                LeaseChange::Renewed { lease, ttl, .. } => {
                    self.leases.set_later(lease, reading + ttl.millis());
                }
                LeaseChange::Ended { lease } => self.leases.ended(lease),
            }
        }
    }

    /// So many more of the endings proposed here are applied.
    pub(crate) fn endings_applied(&mut self, count: u64) {
        self.endings_applied += count;
        if self.tick.is_some_and(|tick| tick <= self.endings_applied) {
            self.tick = None;
        }
    }

    pub(crate) fn join(&mut self, mut waiting: Waiting, machine: &Machine) {
        if let Waiting::Renew { renew, joined, .. } = &mut waiting {
            let lease = lease_of(machine, &renew.namespace, &renew.owner);
            *joined = lease.and_then(|lease| self.leases.renewal_joins(lease));
        }
        self.rounds.join(waiting, self.endings);
    }

    fn leave(&mut self, waiting: &Waiting) {
        if let Waiting::Renew {
            joined: Some(joined),
            ..
        } = waiting
        {
            self.leases.renewal_leaves(*joined);
        }
    }

    /// What is left of a lease; zero while its end is under way.
    pub(crate) fn left(
        &self,
        machine: &Machine,
        namespace: &Namespace,
        owner: &OwnerId,
        reading: u64,
    ) -> Option<u64> {
        let lease = lease_of(machine, namespace, owner)?;
        Some(match self.leases.standing(lease)? {
            Standing::Until(deadline) => deadline.saturating_sub(reading),
            Standing::Ending(_) => 0,
        })
    }

    /// Steps 4 and 5 for all that is confirmed and applied.
    pub(crate) fn answer_ripe(
        &mut self,
        id: GroupId,
        machine: &Machine,
        batch: &mut Batch,
        applied: u64,
        turn: &mut Turn,
    ) {
        // Whoever is held back while these are answered is looked at another time.
        for _ in 0..self.rounds.held() {
            let Some((waiting, until)) = self.rounds.ripe(applied, self.endings_applied) else {
                continue;
            };
            match waiting {
                Waiting::Vouch { number } => turn.vouched.push((number, id, Vouched::Yes)),
                Waiting::Read { ticket, query, .. } => {
                    let now = self.lease_time(turn.reading);
                    let answer = match machine.query(&query, now) {
                        Some(found) => {
                            let found = self.fill(machine, found, turn.reading);
                            OpAnswer::Found(Box::new(found))
                        }
                        // Asked of the wrong machine: only a broken peer does.
                        None => OpAnswer::NotHere { leader: None },
                    };
                    turn.answers.push((ticket, answer));
                }
                Waiting::Renew {
                    ticket,
                    renew,
                    joined,
                    expires,
                } => self.renew(
                    machine,
                    batch,
                    turn,
                    Confirmed {
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

    /// Adds what only the leader knows.
    fn fill(&self, machine: &Machine, found: Found, reading: u64) -> Found {
        match found {
            Found::Explain { explanation, .. } => {
                let namespace = &explanation.namespace;
                let left = explanation
                    .blockers
                    .iter()
                    .map(|blocker| self.left(machine, namespace, &blocker.owner, reading))
                    .collect();
                Found::Explain { explanation, left }
            }
            other => other,
        }
    }

    /// Step 4, confirmed and applied.
    fn renew(&mut self, machine: &Machine, batch: &mut Batch, turn: &mut Turn, asked: Confirmed) {
        let Confirmed {
            ticket,
            renew,
            joined,
            expires,
            until,
        } = asked;
        let Some(space) = machine.space() else {
            let answer = OpAnswer::NotHere { leader: None };
            turn.answers.push((ticket, answer));
            return;
        };
        let lease_time = self.lease_time(turn.reading);
        let view = space.renewal(&renew.namespace, &renew.owner);
        if let Ok(view) = &view
            && let Some(Standing::Ending(number)) = self.leases.standing(view.number)
        {
            // Its end was proposed: that entry decides, and then we look again.
            let waiting = Waiting::Renew {
                ticket,
                renew,
                joined,
                expires,
            };
            let endings = number.max(until.endings);
            self.rounds.hold(waiting, Until { endings, ..until });
            return;
        }
        match view {
            Err(missing) => {
                turn.answers.push((ticket, OpAnswer::Renewed(Err(missing))));
            }
            Ok(view) if lease::covered(view.ttl, view.cover, renew.ttl, lease_time) => {
                let deadline = turn.reading + renew.ttl.millis();
                self.leases.renew(view.number, deadline);
                let renewed = Renewed {
                    asked: view.asked_until > lease_time,
                    born: view.born,
                };
                turn.answers.push((ticket, OpAnswer::Renewed(Ok(renewed))));
            }
            Ok(_) => batch.push(ticket, AnyCommand::Space(Command::Renew(renew))),
        }
        if let Some(joined) = joined {
            self.leases.renewal_leaves(joined);
        }
    }
}

fn lease_of(machine: &Machine, namespace: &Namespace, owner: &OwnerId) -> Option<LeaseNumber> {
    let view = machine.space()?.lease(namespace, owner)?;
    Some(view.number)
}

struct Confirmed {
    ticket: Ticket,
    renew: RenewLease,
    joined: Option<Joined>,
    expires: u64,
    until: Until,
}
