//! SetNamespacePolicy and DeleteNamespacePolicy: freeze, decide, apply (R131–R138).
//!
//! ```text
//!   Begin ─▶ Freeze in every group concerned ─▶ Decide ─▶ Change or Thaw in all of them ─▶ Finish
//! ```
//!
//! Every step is written down in the system group and harmless to repeat, so that any node can
//! carry a change on: the one that was asked, and whoever leads the system group finds what was
//! left behind and finishes it.

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

use super::forward::Origin;
use super::owner::{claim, repeated};
use super::{Awaited, Context, Happened, Progress, failure_of, odd_answer, with_effects};
use crate::GroupId;
use crate::node::Node;
use crate::op::{Found, Op, OpAnswer, Query};
use crate::request::{Answer, Certain, Failure};

/// One step of a change may take so long before it is asked for again.
const STEP_TIMEOUT_MS: u64 = 5_000;

pub(super) struct PolicyCall {
    namespace: Namespace,
    to: Option<Algorithm>,
    key: Option<Key>,
    /// The change that this call has begun: it begins no other.
    own: Option<u64>,
    /// Whether a change was begun, by this call or by an earlier attempt under its key.
    is_begun: bool,
    /// Whether the key is reserved already: then the call goes on as if it had none, and completes it.
    reserved: bool,
    /// The answer, once only the key is left to be completed.
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

/// The change is over, and nothing tells how.
fn unknown_end() -> Failure {
    Failure::Unavailable {
        why: "another node finished this change: read the policy to see how it ended",
        nothing_happened: Certain::No,
    }
}

/// How a change ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Every group has it.
    Committed,
    /// A live hold was in the way.
    Refused(Path, OwnerId),
    /// Somebody else finished it; the table tells how.
    Elsewhere,
}

/// The changes that this node carries on.
#[derive(Debug, Default)]
pub(crate) struct Drivers {
    running: BTreeMap<u64, Driver>,
    /// Steps that failed, to be done again with the next tick.
    again: BTreeSet<(u64, u32)>,
}

#[derive(Debug)]
struct Driver {
    stage: Stage,
    waiting: Vec<Awaited>,
    ended: Ended,
}

#[derive(Debug)]
enum Stage {
    /// Reading what is to be done.
    Looking,
    /// Telling the groups, and gathering what they report.
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
        cx: &mut Context,
        call: &mut PolicyCall,
        happened: Happened,
    ) -> Progress {
        match happened {
            Happened::Start | Happened::Table | Happened::Timer => self.begin_change(cx, call),
            Happened::Op(answer) => match call.completing.take() {
                Some(result) => Progress::Done(result),
                None => self.begun(cx, call, answer),
            },
            Happened::Changed(ended) => match (call.own, ended) {
                // It was another call's, and in the way.
                (None, _) => self.begin_change(cx, call),
                (Some(_), Ended::Committed) => self.change_done(cx, call, Ok(Answer::Done)),
                (Some(_), Ended::Refused(path, owner)) => {
                    self.change_refused(cx, call, &path, &owner)
                }
                // Another node has finished it. To begin again would undo what was decided since.
                (Some(change), Ended::Elsewhere) if self.has_newer_forms() => {
                    let system = self.system();
                    self.ask(cx, system, Op::Read(Query::Ended { change }));
                    Progress::Wait
                }
                (Some(_), Ended::Elsewhere) => Progress::fail(unknown_end()),
            },
            Happened::Swept(_) => Progress::Wait,
        }
    }

    fn change_refused(
        &mut self,
        cx: &mut Context,
        call: &mut PolicyCall,
        path: &Path,
        owner: &OwnerId,
    ) -> Progress {
        let why = format!(
            "{} still has a live lock: {owner} holds {path}",
            call.namespace
        );
        self.change_done(cx, call, Err(Failure::FailedPrecondition(why)))
    }

    fn begin_change(&mut self, cx: &mut Context, call: &mut PolicyCall) -> Progress {
        let command = SystemCommand::Begin {
            namespace: call.namespace.clone(),
            to: call.to,
            claim: call.claim().filter(|_| !call.reserved),
        };
        self.ask_system(cx, command);
        Progress::Wait
    }

    fn begun(&mut self, cx: &mut Context, call: &mut PolicyCall, answer: OpAnswer) -> Progress {
        if let Some(failure) = failure_of(&answer) {
            // The change of this call, or of an earlier attempt under its key, may be made.
            return Progress::fail(match call.is_begun {
                true => with_effects(failure),
                false => failure,
            });
        }
        match answer {
            OpAnswer::System(SystemOutcome::Begun(begun)) => match begun {
                ChangeBegun::Unchanged | ChangeBegun::Committed { .. } => {
                    self.change_done(cx, call, Ok(Answer::Done))
                }
                ChangeBegun::Started { change } => {
                    call.is_begun = true;
                    call.own = Some(change);
                    call.reserved = call.key.is_some();
                    self.drive(change, Some(cx.new_part()));
                    Progress::Wait
                }
                ChangeBegun::Busy { change } => {
                    call.own = None;
                    self.drive(change, Some(cx.new_part()));
                    Progress::Wait
                }
            },
            OpAnswer::System(SystemOutcome::Repeated(before)) => {
                call.is_begun |= before == RepeatedKey::Open;
                match (repeated(&before), before) {
                    (Some(failure), _) => Progress::fail(failure),
                    // The same call has begun elsewhere: which change is it?
                    (None, RepeatedKey::Open) => match call.claim().map(Box::new) {
                        Some(claim) if self.has_newer_forms() => {
                            let system = self.system();
                            self.ask(cx, system, Op::Read(Query::Claimed { claim }));
                            Progress::Wait
                        }
                        _ => self.begin_reserved(cx, call),
                    },
                    (None, _) => Progress::ok(Answer::Done),
                }
            }
            OpAnswer::Found(found) => match *found {
                Found::Claimed {
                    work: Some(KeyWork::Change(change)),
                    ..
                } => {
                    call.own = Some(change);
                    call.reserved = true;
                    self.drive(change, Some(cx.new_part()));
                    Progress::Wait
                }
                Found::Claimed {
                    before: Some(RepeatedKey::Open),
                    ..
                } => self.begin_reserved(cx, call),
                Found::Claimed {
                    before: Some(before),
                    ..
                } => match repeated(&before) {
                    Some(failure) => Progress::fail(failure),
                    None => Progress::ok(Answer::Done),
                },
                // It was refused meanwhile, so that a repeat is evaluated afresh (R102).
                Found::Claimed { before: None, .. } => self.begin_change(cx, call),
                Found::Ended(Some(ChangeEnd::Made)) => self.change_done(cx, call, Ok(Answer::Done)),
                Found::Ended(Some(ChangeEnd::Refused {
                    live: (path, owner),
                })) => self.change_refused(cx, call, &path, &owner),
                Found::Ended(None) => Progress::fail(unknown_end()),
                _ => Progress::fail(odd_answer()),
            },
            _ => Progress::fail(odd_answer()),
        }
    }

    /// The key was reserved under rules 1, which do not say for which change: repeating it converges (R135).
    fn begin_reserved(&mut self, cx: &mut Context, call: &mut PolicyCall) -> Progress {
        call.reserved = true;
        self.begin_change(cx, call)
    }

    /// Completes the key, if one is reserved, and answers.
    fn change_done(
        &mut self,
        cx: &mut Context,
        call: &mut PolicyCall,
        result: Result<Answer, Failure>,
    ) -> Progress {
        let Some(claim) = call.claim().filter(|_| call.reserved) else {
            return Progress::Done(result);
        };
        let command = SystemCommand::Complete {
            claim,
            answer: result.is_ok().then_some(system::SystemAnswer::Done),
            plan: None,
        };
        call.completing = Some(result);
        self.ask_system(cx, command);
        Progress::Wait
    }

    /// Carries a change on until it is over, whoever began it.
    pub(super) fn drive(&mut self, change: u64, waiting: Option<Awaited>) {
        if let Some(driver) = self.span.policy.running.get_mut(&change) {
            driver.waiting.extend(waiting);
            return;
        }
        self.span.policy.running.insert(
            change,
            Driver {
                stage: Stage::Looking,
                waiting: waiting.into_iter().collect(),
                ended: Ended::Elsewhere,
            },
        );
        self.look_at_change(change);
    }

    /// Whoever leads the system group finishes what was left behind.
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

    fn ask_for_change(&mut self, change: u64, part: u32, group: GroupId, op: Op) {
        let expires = self.reading() + STEP_TIMEOUT_MS;
        self.submit(Origin::Driver { change, part }, group, op, expires);
    }

    fn look_at_change(&mut self, change: u64) {
        if let Some(driver) = self.span.policy.running.get_mut(&change) {
            driver.stage = Stage::Looking;
        }
        let system = self.system();
        let op = Op::Read(Query::Change { change });
        self.ask_for_change(change, SYSTEM_PART, system, op);
    }

    pub(crate) fn driver_answer(&mut self, change: u64, part: u32, answer: OpAnswer) {
        let Some(driver) = self.span.policy.running.get_mut(&change) else {
            return;
        };
        let failed = failure_of(&answer).is_some();
        match (&mut driver.stage, answer) {
            // A step that may not have happened is simply done again, a little later: all of them
            // may be.
            (_, _) if failed => {
                self.span.policy.again.insert((change, part));
            }
            (Stage::Looking, OpAnswer::Found(found)) => match *found {
                Found::Change(Some(view)) => self.tell_groups(change, view),
                Found::Change(None) => self.change_over(change),
                _ => {
                    self.span.policy.again.insert((change, part));
                }
            },
            (Stage::Telling { open, report, .. }, OpAnswer::Applied { outcome, .. }) => {
                open.remove(&GroupId(part));
                if let Outcome::Frozen(found) = outcome {
                    *report = report.clone().merge(found);
                }
                if open.is_empty() {
                    self.groups_told(change);
                }
            }
            // Whatever was decided, by this node or another, is written down: look.
            (Stage::Deciding, OpAnswer::System(_)) => self.look_at_change(change),
            (Stage::Finishing, OpAnswer::System(_)) => self.change_over(change),
            _ => {}
        }
    }

    /// With every tick: what failed is done again.
    pub(crate) fn retry_changes(&mut self) {
        for (change, part) in std::mem::take(&mut self.span.policy.again) {
            let Some(driver) = self.span.policy.running.get(&change) else {
                continue;
            };
            match &driver.stage {
                Stage::Telling { view, .. } if part != SYSTEM_PART => {
                    let op = Op::Command(view.command.clone());
                    self.ask_for_change(change, part, GroupId(part), op);
                }
                Stage::Telling { .. } => {}
                Stage::Looking | Stage::Deciding | Stage::Finishing => {
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
        if let Some(driver) = self.span.policy.running.get_mut(&change) {
            driver.stage = Stage::Telling {
                view: Box::new(view),
                open: groups.clone(),
                report: FreezeReport {
                    live: None,
                    highest: None,
                },
            };
        }
        for group in groups {
            let op = Op::Command(command.clone());
            self.ask_for_change(change, group.0, group, op);
        }
    }

    fn groups_told(&mut self, change: u64) {
        let Some(driver) = self.span.policy.running.get_mut(&change) else {
            return;
        };
        let Stage::Telling { view, report, .. } = &driver.stage else {
            return;
        };
        let (command, stage) = match &view.then {
            AfterChange::Decide => {
                let report = report.clone();
                let decide = SystemCommand::Decide { change, report };
                (decide, Stage::Deciding)
            }
            AfterChange::Finish { .. } | AfterChange::FinishRefused { .. } => {
                (SystemCommand::Finish { change }, Stage::Finishing)
            }
        };
        match &view.then {
            AfterChange::Decide => {}
            AfterChange::Finish { .. } => driver.ended = Ended::Committed,
            AfterChange::FinishRefused {
                live: (path, owner),
            } => {
                driver.ended = Ended::Refused(path.clone(), owner.clone());
            }
        }
        driver.stage = stage;
        let system = self.system();
        self.ask_for_change(change, SYSTEM_PART, system, Op::System(Box::new(command)));
    }

    fn change_over(&mut self, change: u64) {
        if let Some(driver) = self.span.policy.running.remove(&change) {
            for awaited in driver.waiting {
                self.span
                    .tell(awaited, Happened::Changed(driver.ended.clone()));
            }
        }
    }
}
