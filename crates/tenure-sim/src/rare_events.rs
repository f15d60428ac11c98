//! Rare events: situations in which bugs of replication and leases hide.
//!
//! A long run is worth little if these situations did not occur in it. So every run counts them and
//! prints all rows, and a run of enough virtual hours fails if a row is still zero
//! ([`missing_in`]).
//!
//! Events are recognized from what nodes write and apply, and from what clients see; no fault and
//! no checker knows of them. Counting draws no random numbers, so it does not change a run.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::command::{Command, ReleaseCause, WaitMode};
use tenure_core::event::ChangeKind;
use tenure_core::outcome::{
    AcquireOutcome, BreakOutcome, LeaseChange, Outcome, Refusal, Withdrawn,
};
use tenure_core::system::{ChangeBegun, ChangeDecided, RepeatedKey, SystemCommand, SystemOutcome};
use tenure_core::value::OwnerId;
use tenure_node::replica_view::ReplicaView;
use tenure_node::{
    AcquireAnswer, Answer, AssertAnswer, ClientRequest, GroupId, LogWrite, NodeId, ReplicaId,
    ReplicaStanding, Role, WriteBatch,
};

use crate::check::{AppliedCommand, CommandResult, Fact};
use crate::counts::Counts;
use crate::time::{SECOND, SimTime};

macro_rules! rare_events {
    ($($event:ident $hours:literal $name:literal;)*) => {
        /// A situation that every long run must have seen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum RareEvent {
            $(#[doc = $name] $event,)*
        }

        impl RareEvent {
            /// All rows, in the order in which they are printed.
            pub const ALL: &[RareEvent] = &[$(RareEvent::$event,)*];

            /// Returns the description of the row.
            pub fn name(self) -> &'static str {
                match self {
                    $(RareEvent::$event => $name,)*
                }
            }

            /// Returns the number of virtual hours in which it must happen at least once.
            pub fn hours(self) -> u64 {
                match self {
                    $(RareEvent::$event => $hours,)*
                }
            }
        }
    };
}

// The number is the row's budget in virtual hours.
rare_events! {
    // Membership and consensus.
    CrashInJoint 1000 "a member dies inside a joint configuration";
    LeaderCrashInJoint 1000 "a leader dies inside a joint configuration";
    StartInJoint 1000 "a process starts inside a joint configuration";
    ElectedInJoint 1000 "a leader is elected inside a joint configuration";
    AddedAgain 1000 "a replica is removed and added again on the same disk";
    VoterAgain 1000 "a replica that was removed and added again is a voter";
    LeaderRemoved 1000 "a leader has applied its own removal";
    LearnerDies 1000 "a learner dies before it is promoted";
    LoneVoter 1000 "a group has one voter";
    TwoVoters 1000 "a group has two voters";
    TwoLeaders 1000 "two replicas take themselves for the leader at the same time";
    LeadsAgain 1000 "a replica loses its leadership and leads again, in one process";
    TermLeap 1000 "a replica jumps over three terms or more";
    FrequentElections 1000 "a group has four leaders within five seconds";
    ReplacedTail 1000 "unconfirmed entries of a log are replaced";
    LongReplacedTail 1000 "five or more unconfirmed entries of a log are replaced";
    SnapshotOverLog 1000 "a snapshot replaces a log that has entries";
    CatchUp 1000 "a replica applies a hundred entries in one step";
    // Processes and disks.
    DeathInSync 1000 "a process dies during a sync";
    UnsentPromises 1000 "a process dies with acknowledgements that wait for the disk";
    MajorityDown 1000 "half of the nodes or more are down";
    AllDown 1000 "all nodes are down";
    RefusedDisk 1000 "a node refuses its damaged disk";
    TornTail 1000 "a log ends with a torn record";
    SuspectReplica 1000 "a replica may have lost entries and takes no part in elections";
    LeaderStops 1000 "a leader stops itself";
    // Leases and queues.
    ExpiryInTransfer 1000 "a lease expires within a second after a leadership transfer was requested";
    ExpiryAfterElection 1000 "a lease expires within two seconds after a leader was elected";
    LateExpire 1000 "an Expire arrives after its lease was renewed, replaced or released";
    LeaseOverLeaders 1000 "a lease outlives three leaders";
    LoggedRenewal 1000 "a renewal is written to the log";
    ManyGrants 1000 "one command grants to three owners";
    GrantAtPlaceEnd 1000 "a queue time ends and another waiter is granted in one command";
    WithdrawnTooLate 1000 "a waiter is withdrawn after it was granted";
    QueueFull 1000 "a queue is full";
    AskedToRelease 1000 "a waiter asks its blockers to release";
    BreakMisses 1000 "a break does not find the hold that it names";
    KilledHolds 1000 "a forced release ends holds";
    // Keys, routes and policies.
    RepeatedGrant 1000 "a keyed acquire is repeated after its grant";
    RepeatedRelease 1000 "a keyed release is repeated after it took effect";
    AnswersFull 1000 "an idempotency table is full";
    OldRoute 1000 "a call that was routed by an old namespace table is refused";
    FrozenRegion 1000 "a call reaches a frozen region";
    PolicyRefused 1000 "a policy change is refused because a path is held";
    PoliciesCollide 1000 "a policy change starts while another one runs";
    LeaderInChange 1000 "the system group gets a leader during a policy change";
    OpenRepeat 1000 "a cluster-wide call is repeated while its first attempt runs";
    SettledRepeat 1000 "a cluster-wide call is repeated after it was answered";
    PlannedAgain 1000 "a second attempt of an owner-wide release finds the plan of the first";
    // What clients see.
    Deadlock 1000 "an acquire is refused because of a deadlock";
    StaleAssertion 1000 "an assertion finds a stale owner or fence";
    WideAssertion 1000 "an assertion over several namespaces is answered";
}

/// Returns the rows and fault kinds that did not happen although the run was long enough.
pub fn missing_in(
    counts: &Counts,
    fault_kinds: impl IntoIterator<Item = &'static str>,
) -> Vec<&'static str> {
    let hours = counts.hours();
    let mut missing = Vec::new();
    for event in RareEvent::ALL {
        let seen = counts.rare.get(event.name()).copied().unwrap_or(0);
        if seen == 0 && hours >= event.hours() as f64 {
            missing.push(event.name());
        }
    }
    for kind in fault_kinds {
        if !counts.faults.contains_key(kind) && hours >= FAULT_HOURS {
            missing.push(kind);
        }
    }
    missing
}

/// Within so many virtual hours every kind of fault must strike.
const FAULT_HOURS: f64 = 1000.0;

/// A disk: a node in one incarnation.
type NodeDisk = (NodeId, u32);

/// Recognizes and counts rare events.
#[derive(Default)]
pub(crate) struct RareEvents {
    counts: BTreeMap<RareEvent, u64>,
    replicas: BTreeMap<(GroupId, NodeDisk), SeenReplica>,
    /// The replicas that lead at present, by their own account.
    leading: BTreeMap<GroupId, BTreeSet<NodeDisk>>,
    /// When the last four leaders of each group began.
    elections: BTreeMap<GroupId, Vec<SimTime>>,
    /// How many leaders each group had.
    leaders: BTreeMap<GroupId, u64>,
    transfers: BTreeMap<GroupId, SimTime>,
    /// The last index that each disk has written, per group.
    ends: BTreeMap<(GroupId, NodeDisk), u64>,
    /// The number of leaders that a group had when each lease was set.
    leases: BTreeMap<(GroupId, OwnerId), u64>,
    /// Policy changes that have started and not finished.
    changes: BTreeSet<u64>,
    /// The claims that have a plan.
    plans: BTreeSet<String>,
    system: Option<GroupId>,
}

/// A replica after its last step.
#[derive(Clone, Copy)]
struct SeenReplica {
    member: ReplicaId,
    role: Role,
    term: u64,
    applied: u64,
    /// Whether it has led in this process.
    led: bool,
    /// Whether an earlier replica of the group was on this disk.
    again: bool,
}

impl RareEvents {
    /// Creates the counters. The groups are numbered from 0; the system group is the last.
    pub(crate) fn new(groups: u32) -> RareEvents {
        RareEvents {
            system: Some(GroupId(groups)),
            ..RareEvents::default()
        }
    }

    /// Counts an event that was recognized elsewhere.
    pub(crate) fn add(&mut self, event: RareEvent) {
        *self.counts.entry(event).or_default() += 1;
    }

    fn add_if(&mut self, event: RareEvent, happened: bool) {
        if happened {
            self.add(event);
        }
    }

    /// Returns the counts by row; a row that did not happen is zero.
    pub(crate) fn totals(&self) -> BTreeMap<&'static str, u64> {
        let count = |event: &RareEvent| self.counts.get(event).copied().unwrap_or(0);
        RareEvent::ALL
            .iter()
            .map(|event| (event.name(), count(event)))
            .collect()
    }

    /// A leadership transfer was requested.
    pub(crate) fn transfer(&mut self, now: SimTime, group: GroupId) {
        self.transfers.insert(group, now);
    }

    /// A process is about to end. `up` nodes of `all` run after it.
    pub(crate) fn ends<'a>(
        &mut self,
        of: NodeDisk,
        standings: impl Iterator<Item = (ReplicaStanding<'a>, ReplicaView)>,
        (up, all): (usize, usize),
    ) {
        for (standing, view) in standings {
            let joint = standing.membership.is_joint();
            self.add_if(RareEvent::CrashInJoint, joint);
            self.add_if(
                RareEvent::LeaderCrashInJoint,
                joint && standing.role == Role::Leader,
            );
            let learner = standing.membership.learners.contains(&view.member);
            self.add_if(RareEvent::LearnerDies, learner);
        }
        self.add_if(RareEvent::MajorityDown, up * 2 <= all);
        self.add_if(RareEvent::AllDown, up == 0);
        for leading in self.leading.values_mut() {
            leading.remove(&of);
        }
        for ((_, disk), replica) in &mut self.replicas {
            if *disk == of {
                replica.led = false;
                replica.role = Role::Follower;
            }
        }
    }

    /// A process has started.
    pub(crate) fn started<'a>(&mut self, standings: impl Iterator<Item = ReplicaStanding<'a>>) {
        for standing in standings {
            self.add_if(RareEvent::StartInJoint, standing.membership.is_joint());
        }
    }

    /// A node emits a batch.
    pub(crate) fn written(&mut self, of: NodeDisk, batch: &WriteBatch) {
        for (group, record) in &batch.records {
            let end = self.ends.entry((*group, of)).or_default();
            let before = *end;
            let event = match record {
                LogWrite::Entries(entries) => {
                    let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
                        continue;
                    };
                    *end = last.place.index;
                    let replaced = (before + 1).saturating_sub(first.place.index);
                    self.add_if(RareEvent::LongReplacedTail, replaced >= 5);
                    (replaced > 0).then_some(RareEvent::ReplacedTail)
                }
                LogWrite::Installed(base) => {
                    *end = base.place.index;
                    (before > 1).then_some(RareEvent::SnapshotOverLog)
                }
                LogWrite::Born(base) => {
                    *end = base.place.index;
                    None
                }
                LogWrite::Removed => {
                    *end = 0;
                    None
                }
                LogWrite::Cut(_) | LogWrite::HardState(_) => None,
            };
            if let Some(event) = event {
                self.add(event);
            }
        }
    }

    /// A disk is read at a start: its log ends here.
    pub(crate) fn found(&mut self, of: NodeDisk, group: GroupId, end: u64) {
        self.ends.insert((group, of), end);
    }

    /// A replica was changed by a step.
    pub(crate) fn stepped(
        &mut self,
        now: SimTime,
        of: NodeDisk,
        standing: &ReplicaStanding<'_>,
        view: &ReplicaView,
    ) {
        let group = view.group;
        let known = self.replicas.get(&(group, of)).copied();
        let known = known.unwrap_or(SeenReplica {
            member: view.member,
            role: Role::Follower,
            term: view.term,
            applied: view.applied,
            led: false,
            again: false,
        });
        let membership = standing.membership;
        let other = known.member != view.member;
        let leads = view.role == Role::Leader;
        let begins = leads && (known.role != Role::Leader || known.term != view.term);
        let voter = membership.voters.contains(&view.member);
        self.add_if(RareEvent::AddedAgain, other);
        let again = known.again || other;
        self.add_if(RareEvent::VoterAgain, again && voter);
        self.add_if(RareEvent::TermLeap, !other && view.term >= known.term + 3);
        self.add_if(
            RareEvent::CatchUp,
            !other && view.applied >= known.applied + 100,
        );
        if begins {
            self.add_if(RareEvent::ElectedInJoint, membership.is_joint());
            self.add_if(RareEvent::LeadsAgain, known.led);
            self.elected(now, group);
        }
        // It gives up its leadership in the step that applies the removal.
        let led = known.role == Role::Leader && !other;
        let removed = !voter && !membership.is_joint();
        self.add_if(RareEvent::LeaderRemoved, led && removed);
        if leads {
            let joint = membership.is_joint();
            let voters = membership.voters.len();
            self.add_if(RareEvent::LoneVoter, begins && voters == 1 && !joint);
            self.add_if(RareEvent::TwoVoters, begins && voters == 2 && !joint);
        }
        let leading = self.leading.entry(group).or_default();
        let two = if leads {
            leading.insert(of) && leading.len() > 1
        } else {
            leading.remove(&of);
            false
        };
        self.add_if(RareEvent::TwoLeaders, two);
        let seen = SeenReplica {
            member: view.member,
            role: view.role,
            term: view.term,
            applied: view.applied,
            led: (known.led && !other) || leads,
            // Counted once: when it is a voter.
            again: again && !voter,
        };
        self.replicas.insert((group, of), seen);
    }

    fn elected(&mut self, now: SimTime, group: GroupId) {
        *self.leaders.entry(group).or_default() += 1;
        let recent = self.elections.entry(group).or_default();
        recent.push(now);
        if recent.len() > 4 {
            recent.remove(0);
        }
        let frequent = recent.len() == 4 && recent[0] + 5 * SECOND >= now;
        self.add_if(RareEvent::FrequentElections, frequent);
        let changing = self.system == Some(group) && !self.changes.is_empty();
        self.add_if(RareEvent::LeaderInChange, changing);
    }

    /// A command was applied for the first time.
    pub(crate) fn applied(&mut self, now: SimTime, step: &AppliedCommand<'_>) {
        match &step.what {
            CommandResult::Space {
                command,
                applied,
                space,
            } => {
                let group = step.at.group;
                for change in &applied.leases {
                    if let LeaseChange::Set { lease, .. } = change
                        && let Some(lease) = space.numbered_lease(*lease)
                    {
                        let leaders = self.leaders.get(&group).copied().unwrap_or(0);
                        self.leases.insert((group, lease.owner.clone()), leaders);
                    }
                }
                let owners = |kind: ChangeKind| {
                    let changes = applied
                        .changes
                        .iter()
                        .filter(move |change| change.kind == kind);
                    changes
                        .filter_map(|change| change.owner.as_ref())
                        .collect::<BTreeSet<_>>()
                };
                let granted = owners(ChangeKind::Granted);
                self.add_if(RareEvent::ManyGrants, granted.len() >= 3);
                let dequeued = owners(ChangeKind::Dequeued);
                let place_ended = dequeued.iter().any(|owner| !granted.contains(owner));
                self.add_if(
                    RareEvent::GrantAtPlaceEnd,
                    place_ended && !granted.is_empty(),
                );
                self.outcome(now, group, command, &applied.outcome, &applied.changes);
            }
            CommandResult::System { command, applied } => self.system(command, &applied.outcome),
        }
    }

    fn outcome(
        &mut self,
        now: SimTime,
        group: GroupId,
        command: &Command,
        outcome: &Outcome,
        changes: &[tenure_core::event::LockChange],
    ) {
        let does = |kind: ChangeKind, owner: &OwnerId| {
            let mut changes = changes.iter();
            changes.any(|change| change.kind == kind && change.owner.as_ref() == Some(owner))
        };
        let refusal = match outcome {
            Outcome::Acquire(AcquireOutcome::Refused(refusal)) => Some(*refusal),
            Outcome::Release(Err(refusal)) => Some(*refusal),
            Outcome::Break(broken) => match &**broken {
                BreakOutcome::Refused(refusal) => Some(*refusal),
                BreakOutcome::NotThatHold(_) => {
                    self.add(RareEvent::BreakMisses);
                    None
                }
                BreakOutcome::Broken => None,
            },
            _ => None,
        };
        match refusal {
            Some(Refusal::Outdated { .. } | Refusal::Moved { .. }) => self.add(RareEvent::OldRoute),
            Some(Refusal::Frozen { .. }) => self.add(RareEvent::FrozenRegion),
            Some(Refusal::AnswersFull) => self.add(RareEvent::AnswersFull),
            Some(Refusal::QueueFull) => self.add(RareEvent::QueueFull),
            Some(Refusal::KeyReused | Refusal::FencesUsedUp | Refusal::Quota { .. }) | None => {}
        }
        match (command, outcome) {
            (Command::Expire(expire), Outcome::Expired(ended)) => {
                self.add_if(RareEvent::LateExpire, !ended);
                if !ended {
                    return;
                }
                let transfer = self.transfers.get(&group);
                let in_transfer = transfer.is_some_and(|at| at + SECOND >= now);
                self.add_if(RareEvent::ExpiryInTransfer, in_transfer);
                let elected = self.elections.get(&group).and_then(|all| all.last());
                let after_election = elected.is_some_and(|at| at + 2 * SECOND >= now);
                self.add_if(RareEvent::ExpiryAfterElection, after_election);
                let set = self.leases.remove(&(group, expire.owner.clone()));
                let leaders = self.leaders.get(&group).copied().unwrap_or(0);
                let outlived = set.is_some_and(|set| leaders >= set + 3);
                self.add_if(RareEvent::LeaseOverLeaders, outlived);
            }
            (Command::Acquire(acquire), Outcome::Acquire(outcome)) => {
                let granted = matches!(outcome, AcquireOutcome::Granted { .. });
                let again =
                    acquire.key.is_some() && granted && !does(ChangeKind::Granted, &acquire.owner);
                self.add_if(RareEvent::RepeatedGrant, again);
                let asks = acquire.wait == WaitMode::QueueAndAsk
                    && changes
                        .iter()
                        .any(|change| change.kind == ChangeKind::Asked);
                self.add_if(RareEvent::AskedToRelease, asks);
            }
            (Command::Release(release), Outcome::Release(Ok(()))) => {
                let again = release.key.is_some() && !does(ChangeKind::Released, &release.owner);
                self.add_if(RareEvent::RepeatedRelease, again);
            }
            (Command::Renew(_), Outcome::Renew(Ok(_))) => self.add(RareEvent::LoggedRenewal),
            (Command::Withdraw(_), Outcome::Withdraw(Withdrawn::Granted { .. })) => {
                self.add(RareEvent::WithdrawnTooLate);
            }
            (Command::ReleaseAll(all), _) => {
                let killed =
                    all.cause == ReleaseCause::Killed && does(ChangeKind::Killed, &all.owner);
                self.add_if(RareEvent::KilledHolds, killed);
            }
            _ => {}
        }
    }

    fn system(&mut self, command: &SystemCommand, outcome: &SystemOutcome) {
        match (command, outcome) {
            (_, SystemOutcome::Begun(ChangeBegun::Started { change })) => {
                self.changes.insert(*change);
            }
            (_, SystemOutcome::Begun(ChangeBegun::Busy { .. })) => {
                self.add(RareEvent::PoliciesCollide);
            }
            (_, SystemOutcome::Decided(ChangeDecided::Refused { .. })) => {
                self.add(RareEvent::PolicyRefused);
            }
            (SystemCommand::Finish { change }, _) => {
                self.changes.remove(change);
            }
            (SystemCommand::Plan { claim, .. }, SystemOutcome::Planned(_)) => {
                let new = self.plans.insert(format!("{claim:?}"));
                self.add_if(RareEvent::PlannedAgain, !new);
            }
            (_, SystemOutcome::Repeated(RepeatedKey::Open)) => self.add(RareEvent::OpenRepeat),
            (_, SystemOutcome::Repeated(RepeatedKey::Answered(_))) => {
                self.add(RareEvent::SettledRepeat);
            }
            (_, SystemOutcome::Repeated(RepeatedKey::Full)) => self.add(RareEvent::AnswersFull),
            _ => {}
        }
    }

    /// A client sees an answer.
    pub(crate) fn see(&mut self, fact: &Fact<'_>) {
        let Fact::Answered(ask, Ok(answer)) = fact else {
            return;
        };
        match answer {
            Answer::Acquire(AcquireAnswer::Conflict { deadlock, .. }) => {
                self.add_if(RareEvent::Deadlock, !deadlock.is_empty());
            }
            Answer::AssertFencing(found) => {
                self.add_if(RareEvent::StaleAssertion, *found != AssertAnswer::Valid);
                if let ClientRequest::AssertFencing { paths, .. } = &*ask.request {
                    let roots: BTreeSet<_> =
                        paths.iter().map(tenure_core::path::Path::handler).collect();
                    self.add_if(RareEvent::WideAssertion, roots.len() > 1);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that did not happen is reported once the run is long enough, and not before.
    #[test]
    fn a_row_that_did_not_happen_is_missing_after_its_hours() {
        let mut counts = Counts {
            virtual_ms: 999 * 3_600_000,
            ..Counts::default()
        };
        assert!(missing_in(&counts, ["kill"]).is_empty());
        counts.virtual_ms = 1_000 * 3_600_000;
        assert_eq!(
            missing_in(&counts, ["kill"]).len(),
            RareEvent::ALL.len() + 1
        );
        for event in RareEvent::ALL {
            counts.rare.insert(event.name(), 1);
        }
        assert_eq!(missing_in(&counts, ["kill"]), ["kill"]);
        counts.faults.insert("kill", 1);
        assert!(missing_in(&counts, ["kill"]).is_empty());
    }

    #[test]
    fn there_are_at_least_25_rows_and_each_has_a_name_of_its_own() {
        let names: BTreeSet<_> = RareEvent::ALL.iter().map(|event| event.name()).collect();
        assert_eq!(names.len(), RareEvent::ALL.len());
        assert!(names.len() >= 25);
    }
}
