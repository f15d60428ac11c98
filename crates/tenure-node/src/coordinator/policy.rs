//! SetNamespacePolicy and DeleteNamespacePolicy: a freeze, decide, apply protocol over several
//! groups (R131–R138).
//!
//! ```text
//!   Begin ─▶ Freeze in every affected group ─▶ Decide ─▶ Change or Thaw in all of them ─▶ Finish
//! ```
//!
//! Every step is recorded in the system group and harmless to repeat, so any node can drive a
//! change: normally the node that received the call. The leader of the system group finds
//! unfinished changes and completes them.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::codec::Encode as _;
use tenure_core::namespace_table::AffectedGroups;
use tenure_core::outcome::{FreezeReport, Outcome};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Algorithm;
use tenure_core::system::{
    self, AfterChange, ChangeBegun, ChangeEnd, ChangeView, KeyClaim, KeyWork, RepeatedKey,
    SystemCommand, SystemOutcome,
};
use tenure_core::value::{Key, OwnerId};

use super::forward::OpOrigin;
use super::owner_calls::{claim, repeated};
use super::{
    AwaitedPart, CallContext, CallEvent, CallProgress, failure_of, odd_answer, with_effects,
};
use crate::GroupId;
use crate::group_op::{GroupOp, GroupOpResult, GroupQuery, QueryResult};
use crate::node::Node;
use crate::request::{Answer, EffectCertainty, Failure};

/// Time after which an unanswered step of a change is repeated.
const STEP_TIMEOUT_MS: u64 = 5_000;

pub(super) struct PolicyCall {
    namespace: Namespace,
    to: Option<Algorithm>,
    key: Option<Key>,
    /// The change that this call has begun; it never begins another one.
    own: Option<u64>,
    /// Whether a change was begun, by this call or by an earlier attempt under its key.
    is_begun: bool,
    /// Whether the key is reserved already: then the call goes on as if it had none, and completes it.
    reserved: bool,
    /// The answer, while only the completion of the key is pending.
    completing: Option<Result<Answer, Failure>>,
}

impl PolicyCall {
    pub(super) fn new(namespace: Namespace, to: Option<Algorithm>, key: Option<Key>) -> PolicyCall {
        PolicyCall {
            namespace,
            to,
            key,
            own: None,
            is_begun: false,
            reserved: false,
            completing: None,
        }
    }

    fn claim(&self) -> Option<KeyClaim> {
        let kind = match self.to {
            Some(_) => system::SystemCall::SetNamespacePolicy,
            None => system::SystemCall::DeleteNamespacePolicy,
        };
        claim(kind, self.key.as_ref(), |out| {
            self.namespace.put(out);
            out.option(self.to.as_ref());
        })
    }
}

/// The failure for a change that has ended with an unknown result.
fn unknown_end() -> Failure {
    Failure::Unavailable {
        why: "another node finished this change: read the policy to see the result",
        nothing_happened: EffectCertainty::No,
    }
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PolicyEnd {
    /// Every affected group has applied it.
    Committed,
    /// A live hold prevents it.
    Refused(Path, OwnerId),
    /// Another node finished it; the namespace table shows the result.
    Elsewhere,
}

/// The changes that this node drives.
#[derive(Debug, Default)]
pub(crate) struct PolicyDrivers {
    running: BTreeMap<u64, PolicyDriver>,
    /// Failed steps, repeated with the next tick.
    again: BTreeSet<(u64, u32)>,
}

#[derive(Debug)]
struct PolicyDriver {
    stage: PolicyStage,
    waiting: Vec<AwaitedPart>,
    ended: PolicyEnd,
}

#[derive(Debug)]
enum PolicyStage {
    /// Reads the state of the change.
    Looking,
    /// Sends the current step to the groups and collects their reports.
    Telling {
        view: Box<ChangeView>,
        open: BTreeSet<GroupId>,
        report: FreezeReport,
    },
    Deciding,
    Finishing,
}

/// The part of a driver's operations that concerns the system group.
const SYSTEM_PART: u32 = u32::MAX;

impl Node {
    pub(super) fn policy(
        &mut self,
        cx: &mut CallContext,
        call: &mut PolicyCall,
        happened: CallEvent,
    ) -> CallProgress {
        match happened {
            CallEvent::Start | CallEvent::Table | CallEvent::Timer => self.begin_change(cx, call),
            CallEvent::Op(answer) => match call.completing.take() {
                Some(result) => CallProgress::Done(result),
                None => self.begun(cx, call, answer),
            },
            CallEvent::Changed(ended) => match (call.own, ended) {
                // That was another call's change, which had to end first.
                (None, _) => self.begin_change(cx, call),
                (Some(_), PolicyEnd::Committed) => self.change_done(cx, call, Ok(Answer::Done)),
                (Some(_), PolicyEnd::Refused(path, owner)) => {
                    self.change_refused(cx, call, &path, &owner)
                }
                // Another node has finished it. To begin again could undo later changes.
                (Some(change), PolicyEnd::Elsewhere) if self.has_newer_forms() => {
                    let system = self.system();
                    self.ask(cx, system, GroupOp::Read(GroupQuery::Ended { change }));
                    CallProgress::Wait
                }
                (Some(_), PolicyEnd::Elsewhere) => CallProgress::fail(unknown_end()),
            },
            CallEvent::FanoutResult(_) => CallProgress::Wait,
        }
    }

    fn change_refused(
        &mut self,
        cx: &mut CallContext,
        call: &mut PolicyCall,
        path: &Path,
        owner: &OwnerId,
    ) -> CallProgress {
        let why = format!(
            "the policy of {} cannot change while a lock is held in it: {owner} holds {path}",
            call.namespace
        );
        self.change_done(cx, call, Err(Failure::FailedPrecondition(why)))
    }

    fn begin_change(&mut self, cx: &mut CallContext, call: &mut PolicyCall) -> CallProgress {
        let command = SystemCommand::Begin {
            namespace: call.namespace.clone(),
            to: call.to,
            claim: call.claim().filter(|_| !call.reserved),
        };
        self.ask_system(cx, command);
        CallProgress::Wait
    }

    fn begun(
        &mut self,
        cx: &mut CallContext,
        call: &mut PolicyCall,
        answer: GroupOpResult,
    ) -> CallProgress {
        if let Some(failure) = failure_of(&answer) {
            // The change of this call, or of an earlier attempt under its key, may have been made.
            return CallProgress::fail(match call.is_begun {
                true => with_effects(failure),
                false => failure,
            });
        }
        match answer {
            GroupOpResult::System(SystemOutcome::Begun(begun)) => match begun {
                ChangeBegun::Unchanged | ChangeBegun::Committed { .. } => {
                    self.change_done(cx, call, Ok(Answer::Done))
                }
                ChangeBegun::Started { change } => {
                    call.is_begun = true;
                    call.own = Some(change);
                    call.reserved = call.key.is_some();
                    self.drive(change, Some(cx.new_part()));
                    CallProgress::Wait
                }
                ChangeBegun::Full => CallProgress::fail(Failure::ResourceExhausted(
                    "there are as many namespace policies as there may be: delete those that are not used (tenure policy ls)"
                        .to_owned(),
                )),
                ChangeBegun::Busy { change } => {
                    call.own = None;
                    self.drive(change, Some(cx.new_part()));
                    CallProgress::Wait
                }
            },
            GroupOpResult::System(SystemOutcome::Repeated(before)) => {
                call.is_begun |= before == RepeatedKey::Open;
                match (repeated(&before), before) {
                    (Some(failure), _) => CallProgress::fail(failure),
                    // Another attempt of the same call is at work: find out which change it began.
                    (None, RepeatedKey::Open) => match call.claim().map(Box::new) {
                        Some(claim) if self.has_newer_forms() => {
                            let system = self.system();
                            self.ask(cx, system, GroupOp::Read(GroupQuery::Claimed { claim }));
                            CallProgress::Wait
                        }
                        _ => self.begin_reserved(cx, call),
                    },
                    (None, _) => CallProgress::ok(Answer::Done),
                }
            }
            GroupOpResult::Found(found) => match *found {
                QueryResult::Claimed {
                    work: Some(KeyWork::Change(change)),
                    ..
                } => {
                    call.own = Some(change);
                    call.reserved = true;
                    self.drive(change, Some(cx.new_part()));
                    CallProgress::Wait
                }
                QueryResult::Claimed {
                    before: Some(RepeatedKey::Open),
                    ..
                } => self.begin_reserved(cx, call),
                QueryResult::Claimed {
                    before: Some(before),
                    ..
                } => match repeated(&before) {
                    Some(failure) => CallProgress::fail(failure),
                    None => CallProgress::ok(Answer::Done),
                },
                // It was refused meanwhile, so that a repeat is evaluated afresh (R102: keyed
                // requests apply once).
                QueryResult::Claimed { before: None, .. } => self.begin_change(cx, call),
                QueryResult::Ended(Some(ChangeEnd::Made)) => {
                    self.change_done(cx, call, Ok(Answer::Done))
                }
                QueryResult::Ended(Some(ChangeEnd::Refused {
                    live: (path, owner),
                })) => self.change_refused(cx, call, &path, &owner),
                QueryResult::Ended(None) => CallProgress::fail(unknown_end()),
                _ => CallProgress::fail(odd_answer()),
            },
            _ => CallProgress::fail(odd_answer()),
        }
    }

    /// The key was reserved under rules 1, which do not say for which change: repeating it
    /// converges (R135: policy changes reach every node).
    fn begin_reserved(&mut self, cx: &mut CallContext, call: &mut PolicyCall) -> CallProgress {
        call.reserved = true;
        self.begin_change(cx, call)
    }

    /// Completes the key, if one is reserved, and answers.
    fn change_done(
        &mut self,
        cx: &mut CallContext,
        call: &mut PolicyCall,
        result: Result<Answer, Failure>,
    ) -> CallProgress {
        let Some(claim) = call.claim().filter(|_| call.reserved) else {
            return CallProgress::Done(result);
        };
        let command = SystemCommand::Complete {
            claim,
            answer: result.is_ok().then_some(system::SystemAnswer::Done),
            plan: None,
        };
        call.completing = Some(result);
        self.ask_system(cx, command);
        CallProgress::Wait
    }

    /// Drives a change to its end, no matter which node began it.
    pub(super) fn drive(&mut self, change: u64, waiting: Option<AwaitedPart>) {
        if let Some(driver) = self.coordinator.policy.running.get_mut(&change) {
            driver.waiting.extend(waiting);
            return;
        }
        self.coordinator.policy.running.insert(
            change,
            PolicyDriver {
                stage: PolicyStage::Looking,
                waiting: waiting.into_iter().collect(),
                ended: PolicyEnd::Elsewhere,
            },
        );
        self.look_at_change(change);
    }

    /// On the leader of the system group: drives unfinished changes.
    pub(crate) fn resume_changes(&mut self) {
        let system = self.system();
        let Some(group) = self.group_ref(system).filter(|group| group.is_led()) else {
            return;
        };
        let changes: Vec<u64> = match group.machine.system() {
            Some(machine) => machine.changes().iter().map(|view| view.change).collect(),
            None => Vec::new(),
        };
        for change in changes {
            self.drive(change, None);
        }
    }

    fn ask_for_change(&mut self, change: u64, part: u32, group: GroupId, op: GroupOp) {
        let expires = self.now_ms() + STEP_TIMEOUT_MS;
        self.submit(OpOrigin::Driver { change, part }, group, op, expires);
    }

    fn look_at_change(&mut self, change: u64) {
        if let Some(driver) = self.coordinator.policy.running.get_mut(&change) {
            driver.stage = PolicyStage::Looking;
        }
        let system = self.system();
        let op = GroupOp::Read(GroupQuery::Change { change });
        self.ask_for_change(change, SYSTEM_PART, system, op);
    }

    pub(crate) fn driver_answer(&mut self, change: u64, part: u32, answer: GroupOpResult) {
        let Some(driver) = self.coordinator.policy.running.get_mut(&change) else {
            return;
        };
        let failed = failure_of(&answer).is_some();
        match (&mut driver.stage, answer) {
            // Every step is harmless to repeat, so one with an unknown outcome is repeated a little
            // later.
            (_, _) if failed => {
                self.coordinator.policy.again.insert((change, part));
            }
            (PolicyStage::Looking, GroupOpResult::Found(found)) => match *found {
                QueryResult::Change(Some(view)) => self.tell_groups(change, view),
                QueryResult::Change(None) => self.change_over(change),
                _ => {
                    self.coordinator.policy.again.insert((change, part));
                }
            },
            (PolicyStage::Telling { open, report, .. }, GroupOpResult::Applied { outcome, .. }) => {
                open.remove(&GroupId(part));
                if let Outcome::Frozen(found) = outcome {
                    *report = report.clone().merge(found);
                }
                if open.is_empty() {
                    self.groups_told(change);
                }
            }
            // The decision, by this node or another, is recorded in the system group: read it.
            (PolicyStage::Deciding, GroupOpResult::System(_)) => self.look_at_change(change),
            (PolicyStage::Finishing, GroupOpResult::System(_)) => self.change_over(change),
            _ => {}
        }
    }

    /// Runs with every tick: repeats failed steps.
    pub(crate) fn retry_changes(&mut self) {
        for (change, part) in std::mem::take(&mut self.coordinator.policy.again) {
            let Some(driver) = self.coordinator.policy.running.get(&change) else {
                continue;
            };
            match &driver.stage {
                PolicyStage::Telling { view, .. } if part != SYSTEM_PART => {
                    let op = GroupOp::Command(view.command.clone());
                    self.ask_for_change(change, part, GroupId(part), op);
                }
                PolicyStage::Telling { .. } => {}
                PolicyStage::Looking | PolicyStage::Deciding | PolicyStage::Finishing => {
                    self.look_at_change(change);
                }
            }
        }
    }

    fn tell_groups(&mut self, change: u64, view: ChangeView) {
        let groups: BTreeSet<GroupId> = match view.reach {
            AffectedGroups::OwnGroup => [self.group_of(&view.region.root)].into(),
            AffectedGroups::AllGroups => {
                (0..self.config.cluster.group_count).map(GroupId).collect()
            }
        };
        let command = view.command.clone();
        if let Some(driver) = self.coordinator.policy.running.get_mut(&change) {
            driver.stage = PolicyStage::Telling {
                view: Box::new(view),
                open: groups.clone(),
                report: FreezeReport {
                    live: None,
                    highest: None,
                },
            };
        }
        for group in groups {
            let op = GroupOp::Command(command.clone());
            self.ask_for_change(change, group.0, group, op);
        }
    }

    fn groups_told(&mut self, change: u64) {
        let Some(driver) = self.coordinator.policy.running.get_mut(&change) else {
            return;
        };
        let PolicyStage::Telling { view, report, .. } = &driver.stage else {
            return;
        };
        let (command, stage) = match &view.then {
            AfterChange::Decide => {
                let report = report.clone();
                let decide = SystemCommand::Decide { change, report };
                (decide, PolicyStage::Deciding)
            }
            AfterChange::Finish { .. } | AfterChange::FinishRefused { .. } => {
                (SystemCommand::Finish { change }, PolicyStage::Finishing)
            }
        };
        match &view.then {
            AfterChange::Decide => {}
            AfterChange::Finish { .. } => driver.ended = PolicyEnd::Committed,
            AfterChange::FinishRefused {
                live: (path, owner),
            } => {
                driver.ended = PolicyEnd::Refused(path.clone(), owner.clone());
            }
        }
        driver.stage = stage;
        let system = self.system();
        self.ask_for_change(
            change,
            SYSTEM_PART,
            system,
            GroupOp::System(Box::new(command)),
        );
    }

    fn change_over(&mut self, change: u64) {
        if let Some(driver) = self.coordinator.policy.running.remove(&change) {
            for awaited in driver.waiting {
                self.coordinator
                    .tell(awaited, CallEvent::Changed(driver.ended.clone()));
            }
        }
    }
}
