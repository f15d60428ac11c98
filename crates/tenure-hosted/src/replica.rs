//! A client's copy of the state: what the entries of the log amount to.
//!
//! The rules are those of `tenure-core`; this file only says in which order one call uses its two
//! machines. All replicas apply the same entries, so they agree on every outcome.

use tenure_core::codec::{Reader, Writer};
use tenure_core::command::{
    AskRelease, Command, Domain, Hold, Release, ReleaseAll, ReleaseCause, Selection, Whole,
    Withdraw,
};
use tenure_core::deadlock::Search;
use tenure_core::event::{Event, EventIdStride, LockChange};
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::outcome::{AcquireOutcome, Applied, BreakOutcome, Outcome, Refusal, Withdrawn};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Missing};
use tenure_core::query::HeldLock;
use tenure_core::space::{HashSeed, Space, SpaceLimits};
use tenure_core::system::{
    ChangeBegun, ChangeDecided, KeyClaim, RepeatedKey, System, SystemAnswer, SystemCommand,
    SystemOutcome,
};
use tenure_core::value::{OwnerId, Stamp};

use crate::entry::{Call, LeaseKey, LogEntry, UnreadableEntry, knows};

/// The version of a snapshot.
const VERSION: u8 = 1;

/// A copy of the state after some entry.
#[derive(Clone, Debug)]
pub struct LogCopy {
    index: u64,
    /// The state is that of a log whose first entry was applied.
    is_founded: bool,
    space: Space,
    system: System,
}

/// What one entry did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The result for its writer.
    pub outcome: CallOutcome,
    /// Events for owners, in order.
    pub events: Vec<Event>,
    /// Changes for watchers.
    pub changes: Vec<LockChange>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Of an acquire.
    Acquire {
        /// Granted, queued, in conflict, lost or refused.
        outcome: AcquireOutcome,
        /// The cycle that the wait would have closed, in wait order.
        deadlock: Vec<OwnerId>,
    },
    /// Of a release.
    Release(Result<(), Refusal>),
    /// Of a logged renewal: whether the owner was asked to release, or what is missing.
    Renew(Result<bool, Missing>),
    /// Of a break.
    Break(BreakOutcome),
    /// Of a change of a row: the live hold that prevents it.
    Policy(Result<(), (Path, OwnerId)>),
    /// Of a command of the system machine.
    System(SystemOutcome),
    /// The key cannot be used: it stands for another request, or there is no room.
    Key(RepeatedKey),
    /// Of everything else.
    Done,
}

impl Default for LogCopy {
    fn default() -> LogCopy {
        LogCopy::new()
    }
}

impl LogCopy {
    /// The state before the first entry.
    pub fn new() -> LogCopy {
        LogCopy::of(
            0,
            false,
            Space::new(SpaceLimits::default(), HashSeed(0)),
            System::new(NamespaceTable::new(1, Algorithm::RecursiveRw)),
        )
    }

    fn of(index: u64, is_founded: bool, mut space: Space, mut system: System) -> LogCopy {
        space.number_events(EventIdStride::new(0, 2));
        system.number_events(EventIdStride::new(1, 2));
        LogCopy {
            index,
            is_founded,
            space,
            system,
        }
    }

    /// The number of the last entry applied.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Whether the log has its first entry.
    pub fn is_founded(&self) -> bool {
        self.is_founded
    }

    /// The locks.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// What spans namespaces.
    pub fn system(&self) -> &System {
        &self.system
    }

    /// The largest lease time applied.
    pub fn time(&self) -> u64 {
        self.space.time().max(self.system.time())
    }

    /// Collects changes for watchers from now on.
    pub fn watch(&mut self) {
        self.space.watch();
    }

    /// Returns whether an owner has a lease or a queued request in a namespace: whether its beat
    /// row is needed.
    pub fn needs_row(&self, key: &LeaseKey) -> bool {
        let namespaces = self.space.owner_namespaces(&key.owner);
        namespaces.contains(&key.namespace)
    }

    /// Returns whether a release of these holds ends everything that an owner has in a namespace.
    /// Then its beat row can go with the release.
    pub fn ends_with(&self, key: &LeaseKey, holds: &[Hold]) -> bool {
        let only = Selection::Only(vec![Domain::Namespace(key.namespace.clone())]);
        let locks = self.space.owner_locks(&key.owner, &only).locks;
        let is_released = |lock: &HeldLock| {
            let same = |hold: &Hold| hold.path == lock.path && hold.mode == lock.mode;
            holds.iter().any(same)
        };
        let waits = self.space.waits_for(&key.owner, self.time());
        let waits_here = waits
            .iter()
            .any(|waits| waits.place.namespace == key.namespace);
        locks.iter().all(is_released) && !waits_here
    }

    /// Applies the next entry.
    ///
    /// # Errors
    ///
    /// [`UnreadableEntry`] if this release cannot apply it. The state is unchanged then.
    pub fn apply(&mut self, index: u64, entry: &LogEntry) -> Result<Done, UnreadableEntry> {
        if index != self.index + 1 {
            return Err(UnreadableEntry::Incomplete("an entry is missing"));
        }
        knows(entry.rules)?;
        let is_first = matches!(entry.call, Call::Found { .. });
        if is_first == self.is_founded {
            return Err(UnreadableEntry::Incomplete(
                "the settings are not in its first entry",
            ));
        }
        self.index = index;
        let mut effects = Effects::default();
        let outcome = self.call(entry.stamp, entry.call.clone(), &mut effects);
        Ok(Done {
            outcome,
            events: effects.events,
            changes: effects.changes,
        })
    }

    fn call(&mut self, stamp: Stamp, call: Call, effects: &mut Effects) -> CallOutcome {
        match call {
            Call::Found {
                rules,
                prefix_segments,
                default,
            } => {
                let table = NamespaceTable::new(prefix_segments as usize, default);
                let space = Space::new(SpaceLimits::default(), HashSeed(0));
                *self = LogCopy::of(self.index, true, space, System::new(table));
                self.lock(stamp, Command::Rules { number: rules }, effects);
                self.across(stamp, SystemCommand::Rules { number: rules }, effects);
                CallOutcome::Done
            }
            Call::Acquire {
                acquire,
                refuse_deadlock,
            } => {
                let owner = acquire.owner.clone();
                let namespace = acquire.route.namespace.clone();
                let outcome = match self.lock(stamp, Command::Acquire(acquire), effects) {
                    Outcome::Acquire(outcome) => outcome,
                    _ => return CallOutcome::Done,
                };
                match outcome {
                    AcquireOutcome::Queued(queued) if refuse_deadlock => {
                        self.refuse_deadlock(stamp, owner, namespace, *queued, effects)
                    }
                    outcome => CallOutcome::Acquire {
                        outcome,
                        deadlock: Vec::new(),
                    },
                }
            }
            Call::Release { parts, edge } => {
                if let Some(edge) = edge {
                    self.across(stamp, edge, effects);
                }
                let mut result = Ok(());
                for part in parts {
                    if let Command::Release(release) = part {
                        result = result.and(self.release(stamp, release, effects));
                    }
                }
                CallOutcome::Release(result)
            }
            Call::Renew { leases, claim } => self.renew(stamp, leases, claim, effects),
            Call::ReleaseAll {
                owner,
                selection,
                cause,
                edge,
                claim,
            } => {
                if let Err(before) = self.claim(stamp, claim.as_ref(), effects) {
                    return match before {
                        RepeatedKey::Answered(_) => CallOutcome::Done,
                        other => CallOutcome::Key(other),
                    };
                }
                match cause {
                    ReleaseCause::Killed => {
                        let kill = SystemCommand::Kill {
                            owner: owner.clone(),
                            claim: None,
                        };
                        self.across(stamp, kill, effects);
                    }
                    ReleaseCause::Owner if edge => {
                        let clear = SystemCommand::ClearEdge {
                            owner: owner.clone(),
                            claim: None,
                        };
                        self.across(stamp, clear, effects);
                    }
                    ReleaseCause::Owner => {}
                }
                let release = ReleaseAll {
                    owner,
                    selection,
                    cause,
                    until: Some(ReleaseAll::EVERYTHING),
                };
                self.lock(stamp, Command::ReleaseAll(release), effects);
                self.complete(stamp, claim, SystemAnswer::Done, effects);
                CallOutcome::Done
            }
            Call::Expire(leases) => {
                for lease in leases {
                    self.lock(stamp, Command::Expire(lease), effects);
                }
                CallOutcome::Done
            }
            Call::Tick => {
                self.lock(stamp, Command::Tick, effects);
                self.across(stamp, SystemCommand::Tick, effects);
                CallOutcome::Done
            }
            Call::Ask { owner } => {
                let ask = SystemCommand::Ask {
                    owner: owner.clone(),
                };
                self.across(stamp, ask, effects);
                self.lock(stamp, Command::Ask(AskRelease { owner }), effects);
                CallOutcome::Done
            }
            Call::Break(hold) => match self.lock(stamp, Command::Break(hold), effects) {
                Outcome::Break(outcome) => CallOutcome::Break(*outcome),
                _ => CallOutcome::Done,
            },
            Call::Policy {
                namespace,
                to,
                claim,
            } => self.change_policy(stamp, namespace, to, claim, effects),
            Call::System(command) => CallOutcome::System(self.across(stamp, command, effects)),
        }
    }

    /// Applies a command to the locks.
    fn lock(&mut self, stamp: Stamp, command: Command, effects: &mut Effects) -> Outcome {
        let Applied {
            outcome,
            events,
            changes,
            ..
        } = self.space.apply(stamp, command);
        effects.events.extend(events);
        effects.changes.extend(changes);
        outcome
    }

    /// Applies a command to the machine that spans namespaces.
    fn across(
        &mut self,
        stamp: Stamp,
        command: SystemCommand,
        effects: &mut Effects,
    ) -> SystemOutcome {
        let applied = self.system.apply(stamp, command);
        effects.events.extend(applied.events);
        applied.outcome
    }

    /// Withdraws a queued request that closes a cycle (E5: refuse on deadlock). The state does not
    /// change during the search, so every wait is seen as it is.
    fn refuse_deadlock(
        &mut self,
        stamp: Stamp,
        owner: OwnerId,
        namespace: Namespace,
        queued: tenure_core::outcome::Queued,
        effects: &mut Effects,
    ) -> CallOutcome {
        let now = self.time();
        let mut search = Search::new(owner.clone());
        loop {
            let round = search.round();
            if round.is_empty() {
                break;
            }
            for one in round {
                for waits in self.space.waits_for(&one, now) {
                    search.answer(&one, Some(&waits.place), waits.owners);
                }
            }
        }
        let Some(cycle) = search.cycle().map(<[OwnerId]>::to_vec) else {
            return CallOutcome::Acquire {
                outcome: AcquireOutcome::Queued(Box::new(queued)),
                deadlock: Vec::new(),
            };
        };
        let withdraw = Withdraw {
            namespace,
            owner,
            waiter: queued.waiter,
        };
        match self.lock(stamp, Command::Withdraw(withdraw), effects) {
            Outcome::Withdraw(Withdrawn::Granted { fence }) => CallOutcome::Acquire {
                outcome: AcquireOutcome::Granted { fence },
                deadlock: Vec::new(),
            },
            _ => CallOutcome::Acquire {
                outcome: AcquireOutcome::Conflict(Box::new(queued.conflict)),
                deadlock: cycle,
            },
        }
    }

    /// Releases holds of one namespace. If paths have moved there recently, holds that were released
    /// under the same key before the move are left out: a present hold on such a path was acquired
    /// later.
    fn release(
        &mut self,
        stamp: Stamp,
        mut release: Release,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        let moved = match self.lock(stamp, Command::Release(release.clone()), effects) {
            Outcome::Release(Err(Refusal::Moved { version })) => version,
            Outcome::Release(result) => return result,
            _ => return Ok(()),
        };
        let (Some(whole), Some(key)) = (release.whole, release.key.clone()) else {
            return Ok(());
        };
        let (space, now) = (&self.space, self.space.time());
        release
            .holds
            .retain(|hold| !space.was_released(&key, whole.fingerprint, hold, now));
        if release.holds.is_empty() {
            return Ok(());
        }
        release.whole = Some(Whole {
            asked: Some(moved),
            ..whole
        });
        match self.lock(stamp, Command::Release(release), effects) {
            Outcome::Release(result) => result,
            _ => Ok(()),
        }
    }

    fn renew(
        &mut self,
        stamp: Stamp,
        leases: Vec<tenure_core::command::RenewLease>,
        claim: Option<KeyClaim>,
        effects: &mut Effects,
    ) -> CallOutcome {
        let owner = leases.first().map(|lease| lease.owner.clone());
        if let Err(before) = self.claim(stamp, claim.as_ref(), effects) {
            // R105 (replays report present truth): OK only while the same leases exist.
            let (RepeatedKey::Answered(SystemAnswer::Renewed { leases, asked }), Some(owner)) =
                (&before, owner)
            else {
                return CallOutcome::Key(before);
            };
            let lives = |(namespace, born): &(Namespace, u64)| {
                let lease = self.space.lease(namespace, &owner);
                lease.is_some_and(|lease| lease.born == *born)
            };
            return CallOutcome::Renew(match leases.iter().all(lives) {
                true => Ok(*asked),
                false => Err(Missing::Alive),
            });
        }
        let mut result = match leases.is_empty() {
            true => Err(Missing::Alive),
            false => Ok(false),
        };
        let mut renewed_leases = Vec::new();
        for lease in leases {
            let namespace = lease.namespace.clone();
            match (
                self.lock(stamp, Command::Renew(lease), effects),
                &mut result,
            ) {
                (Outcome::Renew(Ok(renewed)), result) => {
                    renewed_leases.push((namespace, renewed.born));
                    if let Ok(asked) = result {
                        *asked |= renewed.asked;
                    }
                }
                (Outcome::Renew(Err(missing)), result) => *result = Err(missing),
                _ => {}
            }
        }
        if let Ok(asked) = result {
            let answer = SystemAnswer::Renewed {
                leases: renewed_leases,
                asked,
            };
            self.complete(stamp, claim, answer, effects);
        }
        CallOutcome::Renew(result)
    }

    /// Carries out all steps of a change of the namespace table at once: there is one group.
    fn change_policy(
        &mut self,
        stamp: Stamp,
        namespace: Namespace,
        to: Option<Algorithm>,
        claim: Option<KeyClaim>,
        effects: &mut Effects,
    ) -> CallOutcome {
        let begin = SystemCommand::Begin {
            namespace,
            to,
            claim,
        };
        let change = match self.across(stamp, begin, effects) {
            SystemOutcome::Begun(ChangeBegun::Started { change }) => change,
            SystemOutcome::Begun(_) => return CallOutcome::Policy(Ok(())),
            SystemOutcome::Repeated(RepeatedKey::Answered(_)) => {
                return CallOutcome::Policy(Ok(()));
            }
            SystemOutcome::Repeated(before) => return CallOutcome::Key(before),
            other => return CallOutcome::System(other),
        };
        let mut result = Ok(());
        // Freeze and decide; then change or thaw, and finish.
        while let Some(view) = self.system.change(change) {
            match self.lock(stamp, view.command, effects) {
                Outcome::Frozen(report) => {
                    let decide = SystemCommand::Decide { change, report };
                    if let SystemOutcome::Decided(ChangeDecided::Refused { live }) =
                        self.across(stamp, decide, effects)
                    {
                        result = Err(live);
                    }
                }
                _ => {
                    self.across(stamp, SystemCommand::Finish { change }, effects);
                }
            }
        }
        CallOutcome::Policy(result)
    }

    /// Reserves a key; fails if it was used before.
    fn claim(
        &mut self,
        stamp: Stamp,
        claim: Option<&KeyClaim>,
        effects: &mut Effects,
    ) -> Result<(), RepeatedKey> {
        let Some(claim) = claim else {
            return Ok(());
        };
        match self.across(stamp, SystemCommand::Claim(claim.clone()), effects) {
            // Only a call that failed leaves a key open: it had no effect.
            SystemOutcome::Repeated(RepeatedKey::Open) => Ok(()),
            SystemOutcome::Repeated(before) => Err(before),
            _ => Ok(()),
        }
    }

    fn complete(
        &mut self,
        stamp: Stamp,
        claim: Option<KeyClaim>,
        answer: SystemAnswer,
        effects: &mut Effects,
    ) {
        if let Some(claim) = claim {
            let complete = SystemCommand::Complete {
                claim,
                answer: Some(answer),
                plan: None,
            };
            self.across(stamp, complete, effects);
        }
    }

    /// Encodes the state. Equal states give equal bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.byte(VERSION);
        out.number(u64::from(self.space.rules()));
        out.number(self.index);
        out.slice(&self.space.encode_snapshot(Vec::new()));
        out.slice(&self.system.encode_snapshot(Vec::new()));
        out.into_bytes()
    }

    /// Decodes a state.
    ///
    /// # Errors
    ///
    /// [`UnreadableEntry`] if a newer release has written it, or if the bytes are no snapshot.
    pub fn restore(bytes: &[u8]) -> Result<LogCopy, UnreadableEntry> {
        let mut input = Reader::new(bytes);
        input.version(VERSION)?;
        knows(input.small()?)?;
        let index = input.number()?;
        let space = Space::decode_snapshot(input.slice()?, HashSeed(0))?;
        let system = System::decode_snapshot(input.slice()?)?;
        input.finish()?;
        Ok(LogCopy::of(index, true, space, system))
    }
}

#[derive(Default)]
struct Effects {
    events: Vec<Event>,
    changes: Vec<LockChange>,
}
