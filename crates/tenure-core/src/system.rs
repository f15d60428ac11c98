//! State machine of the system group: the state that spans groups.
//!
//! It keeps the namespace table and its pending changes, the wait edges that clients set, the
//! counter of IncrFencingToken, the idempotency table of cluster-wide calls, the KILLED and REVOKE
//! events of ForceRelease and RequestRevoke, and the access control table.
//!
//! ```text
//! Begin ──▶ freeze the groups ──▶ Decide ──▶ the groups apply it, or thaw ──▶ Finish
//! ```
//!
//! The messages that a change must send to its groups in each phase are part of the state
//! ([`System::change`]), so any node can continue a change. Overlapping changes run one after the
//! other.

mod command;
mod idempotency;
mod snapshot;
mod table_changes;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

pub use command::{
    ChangeBegun, ChangeDecided, ChangeEnd, Edge, KeyClaim, KeyWork, ReleasePlan, ReleasePlanEffect,
    RepeatedKey, SystemAnswer, SystemApplied, SystemCall, SystemCommand, SystemOutcome,
};
pub(crate) use snapshot::{put_table, take_table};
pub use table_changes::{AfterChange, ChangeView};

use self::idempotency::SystemIdempotency;
use self::table_changes::PendingChanges;
use crate::auth::AuthTable;
use crate::event::{Event, EventIdStride, EventKind};
use crate::event_log::EventLog;
use crate::namespace_table::NamespaceTable;
use crate::query::EventsAfter;
use crate::space::FIRST_RULES;
use crate::value::{Fence, OwnerId, Stamp, Ttl};

/// Remembered answers; beyond it keyed calls are refused (R102: keyed requests apply once).
const ANSWERS: u32 = 65_536;
/// Events kept for 30 s; beyond it the oldest is dropped.
const EVENTS: u32 = 65_536;
/// Wait edges; beyond it the one that ends first is dropped. They are advisory (R107: wait edges).
const EDGES: usize = 65_536;

/// The state machine of the system group.
#[derive(Clone, Debug)]
pub struct System {
    rules: u32,
    time: u64,
    wall: u64,
    table: NamespaceTable,
    changes: PendingChanges,
    // With the lease time at which it ends.
    edges: BTreeMap<OwnerId, (Edge, u64)>,
    edge_ends: BTreeSet<(u64, OwnerId)>,
    counter: u64,
    answers: SystemIdempotency,
    events: EventLog,
    auth: AuthTable,
}

impl System {
    /// Creates a machine without edges or answers.
    pub fn new(table: NamespaceTable) -> System {
        System {
            rules: FIRST_RULES,
            time: 0,
            wall: 0,
            table,
            changes: PendingChanges::default(),
            edges: BTreeMap::new(),
            edge_ends: BTreeSet::new(),
            counter: 0,
            answers: SystemIdempotency::new(ANSWERS),
            events: EventLog::new(EVENTS),
            auth: AuthTable::default(),
        }
    }

    /// Sets the ids that the group's events get (R121: event ids). The stride belongs to the group
    /// and is not part of the state: set it after `new` and after decoding a snapshot.
    pub fn number_events(&mut self, stride: EventIdStride) {
        self.events.stride = stride;
    }

    /// Applies one command. The same commands in the same order give the same machine on every
    /// replica.
    pub fn apply(&mut self, stamp: Stamp, command: SystemCommand) -> SystemApplied {
        self.pass_time(stamp);
        let mut events = Vec::new();
        let outcome = match command {
            SystemCommand::Begin {
                namespace,
                to,
                claim,
            } => self.begin(&namespace, to, claim),
            SystemCommand::Decide { change, report } => {
                SystemOutcome::Decided(self.changes.decide(&mut self.table, change, report))
            }
            SystemCommand::Finish { change } => {
                self.finish(change);
                SystemOutcome::Done
            }
            SystemCommand::SetEdge {
                owner,
                edge,
                ttl,
                claim,
            } => self.once(claim, SystemAnswer::Done, |system| {
                system.set_edge(owner, edge, ttl);
                SystemOutcome::Done
            }),
            SystemCommand::ClearEdge { owner, claim } => {
                self.once(claim, SystemAnswer::Done, |system| {
                    system.clear_edge(&owner);
                    SystemOutcome::Done
                })
            }
            SystemCommand::Increment { above, claim } => self.increment(above, claim),
            SystemCommand::Claim(claim) => match self.answers.reserve(claim, self.time) {
                Ok(()) => SystemOutcome::Fresh,
                Err(repeated) => SystemOutcome::Repeated(repeated),
            },
            SystemCommand::Plan {
                claim,
                owner,
                plan,
                effect,
            } => self.plan(claim, owner, plan, effect, &mut events),
            SystemCommand::Complete {
                claim,
                answer,
                plan,
            } => {
                if !self.has_another_plan(&claim, plan) {
                    self.answers.complete(claim, answer, self.time);
                }
                SystemOutcome::Done
            }
            SystemCommand::Kill { owner, claim } => self.kill(owner, claim, &mut events),
            SystemCommand::Ask { owner } => {
                events.push(self.event(owner, EventKind::Revoke));
                SystemOutcome::Done
            }
            SystemCommand::Tick => SystemOutcome::Done,
            SystemCommand::Lift { by } => {
                self.lift(by);
                SystemOutcome::Done
            }
            SystemCommand::Rules { number } => {
                self.rules = self.rules.max(number);
                SystemOutcome::Done
            }
            SystemCommand::Auth(command) => SystemOutcome::Auth(self.auth.apply(*command)),
        };
        SystemApplied { outcome, events }
    }

    /// Returns the namespace table.
    pub fn table(&self) -> &NamespaceTable {
        &self.table
    }

    /// Returns the access control table.
    pub fn auth(&self) -> &AuthTable {
        &self.auth
    }

    /// Returns one pending change.
    pub fn change(&self, change: u64) -> Option<ChangeView> {
        self.changes.view(change)
    }

    /// Returns all pending changes, oldest first. Any node may continue one.
    pub fn changes(&self) -> Vec<ChangeView> {
        self.changes.views()
    }

    /// Returns the wait edge that an owner's client has set (R107).
    pub fn edge(&self, owner: &OwnerId, now: u64) -> Option<&Edge> {
        self.edges
            .get(owner)
            .filter(|(_, end)| *end > now)
            .map(|(edge, _)| edge)
    }

    /// Returns the last global number issued (R75: IncrFencingToken always grows).
    pub fn counter(&self) -> Option<Fence> {
        Fence::from_number(self.counter)
    }

    /// Looks up a key without claiming it; `None` if it is fresh.
    pub fn lookup(&self, claim: &KeyClaim, now: u64) -> Option<RepeatedKey> {
        self.answers.repeated(claim, now.max(self.time))
    }

    /// Returns the work in progress under a key.
    pub fn work(&self, claim: &KeyClaim, now: u64) -> Option<&KeyWork> {
        self.answers.work(claim, now.max(self.time))
    }

    /// Returns the result of a change, if it is one of the latest.
    pub fn change_end(&self, change: u64) -> Option<&ChangeEnd> {
        self.changes.ended.get(&change)
    }

    /// Returns the events after a sequence number.
    pub fn events_after(&self, sequence: u64) -> EventsAfter {
        self.events.after(sequence)
    }

    /// Returns the sequence number of the last event.
    pub fn last_event(&self) -> u64 {
        self.events.sequence
    }

    /// Returns the largest lease time applied.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Returns the rules number in force.
    pub fn rules(&self) -> u32 {
        self.rules
    }

    fn pass_time(&mut self, stamp: Stamp) {
        self.time = self.time.max(stamp.time);
        self.wall = stamp.wall;
        self.answers.forget(self.time);
        self.events.forget(self.time);
        for _ in 0..16 {
            match self.edge_ends.first() {
                Some((end, _)) if *end <= self.time => self.drop_first_edge(),
                _ => break,
            }
        }
    }

    fn begin(
        &mut self,
        namespace: &crate::path::Namespace,
        to: Option<crate::policy::Algorithm>,
        claim: Option<KeyClaim>,
    ) -> SystemOutcome {
        if let Some(claim) = &claim
            && let Some(repeated) = self.answers.repeated(claim, self.time)
        {
            return SystemOutcome::Repeated(repeated);
        }
        let most_rows = match self.rules {
            ..2 => usize::MAX,
            _ => table_changes::MAX_POLICIES,
        };
        let table = &mut self.table;
        let begun = self.changes.begin(table, namespace, to, most_rows);
        if let Some(claim) = claim {
            match begun {
                ChangeBegun::Unchanged | ChangeBegun::Committed { .. } => {
                    self.answers
                        .complete(claim, Some(SystemAnswer::Done), self.time);
                }
                ChangeBegun::Started { change } if self.rules >= 2 => {
                    if let Some(underway) = self.changes.underway.get_mut(&change) {
                        underway.claim = Some(claim.clone());
                    }
                    self.answers
                        .begin(claim, KeyWork::Change(change), self.time);
                }
                ChangeBegun::Started { .. } => {
                    // Cannot fail: the lookup above found room and no other use of the key.
                    let _ = self.answers.reserve(claim, self.time);
                }
                ChangeBegun::Busy { .. } | ChangeBegun::Full => {}
            }
        }
        SystemOutcome::Begun(begun)
    }

    /// Finishes a change that all groups have applied. The first `Finish` also completes the key of
    /// the call that began the change, so that a repeat of the call learns the result without a
    /// second change.
    fn finish(&mut self, change: u64) {
        let Some((end, claim)) = self.changes.finish(change) else {
            return;
        };
        if self.rules < 2 {
            return;
        }
        match (claim, &end) {
            (Some(claim), ChangeEnd::Made) => {
                self.answers
                    .complete(claim, Some(SystemAnswer::Done), self.time);
            }
            (Some(claim), ChangeEnd::Refused { .. }) => self.answers.give_up(&claim, change),
            (None, _) => {}
        }
        self.changes.remember(change, end);
    }

    fn plan(
        &mut self,
        claim: KeyClaim,
        owner: OwnerId,
        plan: ReleasePlan,
        effect: ReleasePlanEffect,
        events: &mut Vec<Event>,
    ) -> SystemOutcome {
        match self.answers.repeated(&claim, self.time) {
            None => {}
            Some(RepeatedKey::Open) => {
                if let Some(KeyWork::Plan(first)) = self.answers.work(&claim, self.time) {
                    return SystemOutcome::Planned(first.clone());
                }
            }
            Some(repeated) => return SystemOutcome::Repeated(repeated),
        }
        self.answers
            .begin(claim, KeyWork::Plan(plan.clone()), self.time);
        if effect != ReleasePlanEffect::None {
            self.clear_edge(&owner);
        }
        if effect == ReleasePlanEffect::Kill {
            events.push(self.event(owner, EventKind::Killed));
        }
        SystemOutcome::Planned(plan)
    }

    /// Returns whether a key no longer stands for the plan that was carried out: the call took so
    /// long that its key was forgotten. By now the key may stand for another plan, whose leases
    /// have not ended yet; or it is unused, and an answer stored under it would be given to the
    /// next call.
    fn has_another_plan(&self, claim: &KeyClaim, done: Option<ReleasePlan>) -> bool {
        let present = self.answers.work(claim, self.time);
        done.is_some_and(|done| present != Some(&KeyWork::Plan(done)))
    }

    /// Runs a call that completes at once, unless its key shows that it ran before.
    fn once(
        &mut self,
        claim: Option<KeyClaim>,
        answer: SystemAnswer,
        act: impl FnOnce(&mut System) -> SystemOutcome,
    ) -> SystemOutcome {
        if let Some(claim) = &claim
            && let Some(repeated) = self.answers.repeated(claim, self.time)
        {
            return SystemOutcome::Repeated(repeated);
        }
        let outcome = act(self);
        if let Some(claim) = claim {
            self.answers.complete(claim, Some(answer), self.time);
        }
        outcome
    }

    /// Issues a number above all issued numbers and all known minted fences that are not driven
    /// (R75).
    fn increment(&mut self, above: Option<Fence>, claim: Option<KeyClaim>) -> SystemOutcome {
        let minted = above
            .map(Fence::number)
            .filter(|minted| *minted < Fence::DRIVEN);
        let number = self.counter.max(minted.unwrap_or(0)) + 1;
        let Some(fence) = Fence::from_number(number).filter(|_| number < Fence::SUPPLIED_END)
        else {
            return SystemOutcome::NumbersUsedUp;
        };
        self.once(claim, SystemAnswer::Number(fence), |system| {
            system.counter = number;
            SystemOutcome::Number(fence)
        })
    }

    fn kill(
        &mut self,
        owner: OwnerId,
        claim: Option<KeyClaim>,
        events: &mut Vec<Event>,
    ) -> SystemOutcome {
        if let Some(claim) = claim
            && let Err(repeated) = self.answers.reserve(claim, self.time)
        {
            return SystemOutcome::Repeated(repeated);
        }
        self.clear_edge(&owner);
        events.push(self.event(owner, EventKind::Killed));
        SystemOutcome::Fresh
    }

    fn set_edge(&mut self, owner: OwnerId, edge: Edge, ttl: Ttl) {
        self.clear_edge(&owner);
        let end = self.time.saturating_add(ttl.millis());
        self.edge_ends.insert((end, owner.clone()));
        self.edges.insert(owner, (edge, end));
        while self.edges.len() > EDGES {
            self.drop_first_edge();
        }
    }

    fn clear_edge(&mut self, owner: &OwnerId) {
        if let Some((_, end)) = self.edges.remove(owner) {
            self.edge_ends.remove(&(end, owner.clone()));
        }
    }

    fn drop_first_edge(&mut self) {
        if let Some((_, owner)) = self.edge_ends.pop_first() {
            self.edges.remove(&owner);
        }
    }

    fn event(&mut self, owner: OwnerId, kind: EventKind) -> Event {
        self.events.push(self.time, self.wall, owner, None, kind)
    }

    /// Returns the largest useful argument of [`SystemCommand::Lift`].
    pub fn lift_room(&self) -> u64 {
        (Fence::DRIVEN - 1).saturating_sub(self.counter)
    }

    fn lift(&mut self, by: u64) {
        // These counters have no upper limit of their own; the bound keeps them far from overflow.
        let by = by.min(Fence::MINTED_END);
        let end = Fence::DRIVEN - 1;
        self.counter = self.counter.saturating_add(by).min(end).max(self.counter);
        self.table.lift(by);
        self.auth.lift(by);
        self.changes.lift(by);
        self.events.sequence = self.events.sequence.saturating_add(by);
    }
}
