//! Checker of idempotency keys: a key has at most one effect, no matter how often and to which
//! nodes its call is sent: R102 (keyed requests apply once).
//!
//! A change of the namespace table without a key has a call of its own: a node that makes a change a
//! second time on behalf of one call, without the key, is found by counting.
//!
//! The checker reads applied log entries. An effect is a grant, a release, a change of the
//! namespace table, a token of IncrFencingToken, or a ForceRelease. An answer is not an effect: a
//! repeat may be answered without one.

use std::collections::BTreeMap;

use tenure_core::command::Command;
use tenure_core::event::ChangeKind;
use tenure_core::path::Namespace;
use tenure_core::policy::Algorithm;
use tenure_core::system::{
    ChangeBegun, ChangeDecided, KeyClaim, SystemCall, SystemCommand, SystemOutcome,
};
use tenure_core::value::{Key, OwnerId};
use tenure_node::{ClientRequest, LogPosition};

use super::reference::{AppliedCommand, CommandResult};
use super::{CheckResult, Fact, Relevance};

/// The log position of the effect of every key.
#[derive(Default)]
pub(super) struct AtMostOnce {
    granted: BTreeMap<(Namespace, Key), LogPosition>,
    released: BTreeMap<(Namespace, Key), LogPosition>,
    system: BTreeMap<(SystemCall, Key), LogPosition>,
    /// Pending changes of the namespace table, by number, with the key of the call that started
    /// them.
    changes: BTreeMap<u64, KeyClaim>,
    /// Pending changes without a key.
    unkeyed: BTreeMap<u64, TableChange>,
    /// For each change of the namespace table: how many calls without a key asked for it, and how
    /// many took effect.
    table: BTreeMap<TableChange, (u64, u64)>,
}

/// A namespace, and its new policy; `None` deletes it.
type TableChange = (Namespace, Option<Algorithm>);

impl AtMostOnce {
    pub(super) fn see(&mut self, fact: &Fact<'_>) {
        let Fact::Asked(ask) = fact else {
            return;
        };
        let change = match &*ask.request {
            ClientRequest::SetNamespacePolicy {
                namespace,
                algorithm,
                key: None,
            } => (namespace.clone(), Some(*algorithm)),
            ClientRequest::DeleteNamespacePolicy {
                namespace,
                key: None,
            } => (namespace.clone(), None),
            _ => return,
        };
        self.table.entry(change).or_default().0 += 1;
    }

    /// A change without a key took effect.
    fn unkeyed(&mut self, step: &AppliedCommand<'_>, change: &TableChange) -> CheckResult {
        let (asked, made) = self.table.entry(change.clone()).or_default();
        *made += 1;
        if made <= asked {
            return Ok(Relevance::Checked);
        }
        Err(format!(
            "{} to {:?} is changed without a key by entry {:?}: {made} times for {asked} calls",
            change.0, change.1, step.at.place
        ))
    }

    pub(super) fn applied(&mut self, step: &AppliedCommand<'_>) -> CheckResult {
        match &step.what {
            CommandResult::Space {
                command, applied, ..
            } => {
                // Only changes of the calling owner count: the time stamp of an entry also ends
                // waiters of other owners.
                let does = |kind: ChangeKind, owner: &OwnerId| {
                    let mut changes = applied.changes.iter();
                    changes
                        .any(|change| change.kind == kind && change.owner.as_ref() == Some(owner))
                };
                match command {
                    Command::Acquire(acquire) => match &acquire.key {
                        Some(key) if does(ChangeKind::Granted, &acquire.owner) => {
                            let key = (acquire.route.namespace.clone(), key.clone());
                            first(&mut self.granted, key, step)
                        }
                        _ => Ok(Relevance::Passed),
                    },
                    Command::Release(release) => match &release.key {
                        Some(key) if does(ChangeKind::Released, &release.owner) => {
                            let key = (release.route.namespace.clone(), key.clone());
                            first(&mut self.released, key, step)
                        }
                        _ => Ok(Relevance::Passed),
                    },
                    _ => Ok(Relevance::Passed),
                }
            }
            CommandResult::System { command, applied } => {
                self.system(step, command, &applied.outcome)
            }
        }
    }

    fn system(
        &mut self,
        step: &AppliedCommand<'_>,
        command: &SystemCommand,
        outcome: &SystemOutcome,
    ) -> CheckResult {
        let claim = match (command, outcome) {
            (
                SystemCommand::Begin {
                    namespace,
                    to,
                    claim,
                },
                SystemOutcome::Begun(ChangeBegun::Started { change }),
            ) => {
                // Its effect is decided by a later command.
                match claim {
                    Some(claim) => {
                        self.changes.insert(*change, claim.clone());
                    }
                    None => {
                        self.unkeyed.insert(*change, (namespace.clone(), *to));
                    }
                }
                return Ok(Relevance::Passed);
            }
            (
                SystemCommand::Begin {
                    namespace,
                    to,
                    claim,
                },
                SystemOutcome::Begun(ChangeBegun::Committed { .. }),
            ) => match claim {
                Some(claim) => Some(claim.clone()),
                None => return self.unkeyed(step, &(namespace.clone(), *to)),
            },
            (
                SystemCommand::Decide { change, .. },
                SystemOutcome::Decided(ChangeDecided::Committed { .. }),
            ) => {
                if let Some(change) = self.unkeyed.remove(change) {
                    return self.unkeyed(step, &change);
                }
                self.changes.remove(change)
            }
            (SystemCommand::Increment { claim, .. }, SystemOutcome::Number(_)) => claim.clone(),
            (SystemCommand::Kill { claim, .. }, SystemOutcome::Fresh) => claim.clone(),
            _ => None,
        };
        match claim {
            Some(claim) => first(&mut self.system, (claim.call, claim.key), step),
            None => Ok(Relevance::Passed),
        }
    }
}

/// Records an effect. Fails if the key already had one.
fn first<K: Ord + std::fmt::Debug>(
    effects: &mut BTreeMap<K, LogPosition>,
    key: K,
    step: &AppliedCommand<'_>,
) -> CheckResult {
    let what = format!("{key:?}");
    match effects.insert(key, step.at.place) {
        None => Ok(Relevance::Checked),
        Some(before) => Err(format!(
            "{what} takes effect by entry {before:?} and again by entry {:?} of {}",
            step.at.place, step.at.group
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tenure_core::command::{Acquire, Request, RequestKind, Route, WaitMode};
    use tenure_core::path::Path;
    use tenure_core::policy::Mode;
    use tenure_core::space::{HashSeed, Space, SpaceLimits};
    use tenure_core::system::SystemApplied;
    use tenure_core::value::{QueueTtl, Stamp, Ttl};
    use tenure_node::GroupId;

    use super::super::reference::AppliedEntry;
    use super::*;

    fn at(index: u64) -> AppliedEntry {
        AppliedEntry {
            proposed: index,
            place: LogPosition { term: 1, index },
            group: GroupId(0),
        }
    }

    fn key() -> Key {
        Key::new("k").unwrap().unwrap()
    }

    fn acquire() -> Command {
        Command::Acquire(Acquire {
            route: Route {
                namespace: Namespace::parse("t:/a").unwrap(),
                algorithm: Algorithm::RecursiveRw,
                version: 0,
            },
            owner: OwnerId::new("amy").unwrap(),
            ttl: Ttl::from_millis(9_000).unwrap(),
            queue_ttl: QueueTtl::from_millis(9_000).unwrap(),
            requests: vec![Request {
                path: Path::parse("t:/a").unwrap(),
                mode: Mode::Write,
                state: RequestKind::New,
                permits: None,
            }],
            releases: Vec::new(),
            fence: None,
            key: Some(key()),
            wait: WaitMode::Queue,
            holder: None,
        })
    }

    fn space() -> Space {
        let mut space = Space::new(SpaceLimits::default(), HashSeed(1));
        space.watch();
        space
    }

    /// Applies a keyed acquire and passes the result to the checker.
    fn apply(checker: &mut AtMostOnce, space: &mut Space, index: u64) -> CheckResult {
        let stamp = Stamp {
            time: index,
            wall: 0,
        };
        let command = acquire();
        let applied = space.apply(stamp, command.clone());
        let what = CommandResult::Space {
            command: &command,
            applied: &applied,
            space,
        };
        checker.applied(&AppliedCommand {
            at: at(index),
            what,
        })
    }

    /// R102: a repeat without a change is no effect; a second grant is one.
    #[test]
    fn a_keyed_acquire_is_granted_once() {
        let (mut checker, mut first) = (AtMostOnce::default(), space());
        assert_eq!(apply(&mut checker, &mut first, 1), Ok(Relevance::Checked));
        assert_eq!(apply(&mut checker, &mut first, 2), Ok(Relevance::Passed));
        // A space that does not know the key grants it again.
        assert!(apply(&mut checker, &mut space(), 3).is_err());
    }

    /// R102: a refused change leaves its key unused; a committed one does not.
    #[test]
    fn a_keyed_policy_takes_effect_once() {
        let mut checker = AtMostOnce::default();
        let mut see = |index: u64, command: &SystemCommand, outcome: SystemOutcome| {
            let events = Vec::new();
            let applied = &SystemApplied { outcome, events };
            let what = CommandResult::System { command, applied };
            checker.applied(&AppliedCommand {
                at: at(index),
                what,
            })
        };
        let begin = SystemCommand::Begin {
            namespace: Namespace::parse("t:/a/b").unwrap(),
            to: Some(Algorithm::PointRw),
            claim: Some(KeyClaim {
                call: SystemCall::SetNamespacePolicy,
                key: key(),
                fingerprint: 1,
            }),
        };
        let decide = |change| SystemCommand::Decide {
            change,
            report: tenure_core::outcome::FreezeReport {
                live: None,
                highest: None,
            },
        };
        let started = |change| SystemOutcome::Begun(ChangeBegun::Started { change });
        let live = (Path::parse("t:/a/b").unwrap(), OwnerId::new("amy").unwrap());
        let refused = SystemOutcome::Decided(ChangeDecided::Refused { live });
        let made = |version| SystemOutcome::Decided(ChangeDecided::Committed { version });
        assert_eq!(see(1, &begin, started(1)), Ok(Relevance::Passed));
        assert_eq!(see(2, &decide(1), refused), Ok(Relevance::Passed));
        assert_eq!(see(3, &begin, started(2)), Ok(Relevance::Passed));
        assert_eq!(see(4, &decide(2), made(1)), Ok(Relevance::Checked));
        // The same decision, repeated by another node.
        assert_eq!(see(5, &decide(2), made(1)), Ok(Relevance::Passed));
        assert_eq!(see(6, &begin, started(3)), Ok(Relevance::Passed));
        assert!(see(7, &decide(3), made(2)).is_err());
    }
}
