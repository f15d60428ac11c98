//! Release: split by namespace, each part atomic on its own (R97–R99).

use std::collections::BTreeMap;

use tenure_core::command::{Command, Hold, Release};
use tenure_core::outcome::{Outcome, Refusal};
use tenure_core::path::Namespace;
use tenure_core::system::SystemCommand;

use super::acquire::{FROZEN_RETRY_MS, refused};
use super::forward::Origin;
use super::{Context, Happened, Progress, failure_of, odd_answer};
use crate::node::Node;
use crate::op::{Op, OpAnswer};
use crate::request::{Answer, Failure, ReleaseRequest, WaitEdge};

/// The part that removes the wait edge.
const EDGE: u32 = u32::MAX;
/// A part is resolved anew so often; more changes of one namespace in one call are not worth more.
const MAX_MISSES: u8 = 8;

pub(super) struct ReleaseCall {
    request: ReleaseRequest,
    /// What is under way, by part.
    parts: Vec<(u32, Vec<Hold>)>,
    /// What has to be resolved (again).
    unplaced: Vec<Hold>,
    next_part: u32,
    misses: u8,
    failure: Option<Failure>,
}

impl ReleaseCall {
    pub(super) fn new(mut request: ReleaseRequest) -> ReleaseCall {
        ReleaseCall {
            unplaced: std::mem::take(&mut request.holds),
            request,
            parts: Vec::with_capacity(1),
            next_part: 0,
            misses: 0,
            failure: None,
        }
    }
}

impl Node {
    pub(super) fn release(
        &mut self,
        cx: Context,
        call: &mut ReleaseCall,
        happened: Happened,
    ) -> Progress {
        match happened {
            Happened::Start => {
                if call.request.edge == WaitEdge::Remove {
                    let command = SystemCommand::ClearEdge {
                        owner: call.request.owner.clone(),
                        claim: None,
                    };
                    let (system, origin) = (
                        self.system(),
                        Origin::Call {
                            call: cx.id,
                            part: EDGE,
                        },
                    );
                    call.parts.push((EDGE, Vec::new()));
                    self.submit(origin, system, Op::System(Box::new(command)), cx.deadline);
                }
                self.release_parts(cx, call);
            }
            Happened::Table | Happened::Timer => self.release_parts(cx, call),
            Happened::Op(part, answer) => self.released(cx, call, part, answer),
            Happened::Swept(_) | Happened::Changed(_) => {}
        }
        if !call.parts.is_empty() || !call.unplaced.is_empty() {
            return Progress::Wait;
        }
        match call.failure.take() {
            Some(failure) => Progress::fail(failure),
            None => Progress::ok(Answer::Done),
        }
    }

    fn release_parts(&mut self, cx: Context, call: &mut ReleaseCall) {
        if call.unplaced.is_empty() {
            return;
        }
        if !self.span.resolve.is_loaded() {
            self.await_table(cx, 0);
            return;
        }
        let unplaced = std::mem::take(&mut call.unplaced);
        let table = self.table();
        let mut names = unplaced.iter().map(|hold| table.name_of(&hold.path));
        let first = names.next();
        if names.all(|name| Some(name) == first) {
            self.release_part(cx, call, unplaced);
            return;
        }
        // In the order of their names.
        let mut by_namespace: BTreeMap<Namespace, Vec<Hold>> = BTreeMap::new();
        for hold in unplaced {
            let namespace = self.table().namespace_of(&hold.path);
            by_namespace.entry(namespace).or_default().push(hold);
        }
        for holds in by_namespace.into_values() {
            self.release_part(cx, call, holds);
        }
    }

    /// Releases holds of one namespace.
    fn release_part(&mut self, cx: Context, call: &mut ReleaseCall, holds: Vec<Hold>) {
        let Some(first) = holds.first() else { return };
        let (route, group) = self.route(&first.path);
        let command = Command::Release(Release {
            route,
            owner: call.request.owner.clone(),
            holds: holds.clone(),
            key: call.request.key.clone(),
        });
        let part = call.next_part;
        call.next_part += 1;
        call.parts.push((part, holds));
        let origin = Origin::Call { call: cx.id, part };
        self.submit(origin, group, Op::Command(command), cx.deadline);
    }

    fn released(&mut self, cx: Context, call: &mut ReleaseCall, part: u32, answer: OpAnswer) {
        let Some(at) = call.parts.iter().position(|(one, _)| *one == part) else {
            return;
        };
        let (_, holds) = call.parts.swap_remove(at);
        if let Some(failure) = failure_of(&answer) {
            call.failure = Some(failure);
            return;
        }
        match answer {
            OpAnswer::System(_) if part == EDGE => {}
            OpAnswer::Applied {
                outcome: Outcome::Release(Ok(())),
                ..
            } => {}
            OpAnswer::Applied {
                outcome: Outcome::Release(Err(refusal)),
                ..
            } => {
                if let Some(failure) = refused(refusal) {
                    call.failure = Some(failure);
                    return;
                }
                call.unplaced.extend(holds);
                call.misses += 1;
                match refusal {
                    Refusal::Outdated { .. } if call.misses > MAX_MISSES => {
                        call.unplaced.clear();
                        call.failure = Some(Failure::Aborted);
                    }
                    Refusal::Outdated { version } => self.await_table(cx, version),
                    _ => self.set_timer(cx, FROZEN_RETRY_MS),
                }
            }
            _ => call.failure = Some(odd_answer()),
        }
    }
}
