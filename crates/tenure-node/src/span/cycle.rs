//! Who waits for whom, across groups: DetectCycle (R111) and Explain (E7). Both only read.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::deadlock::{Step, Walk};
use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::query::Explanation;
use tenure_core::system::Edge;
use tenure_core::value::OwnerId;

use super::forward::Origin;
use super::sweep::{Scope, Sweep, What};
use super::{Context, Happened, Progress, failure_of, odd_answer};
use crate::GroupId;
use crate::node::Node;
use crate::op::{Found, Op, OpAnswer, Query};
use crate::request::{Answer, ExplainAnswer};

/// How deep Explain follows what blockers wait for.
const EXPLAIN_DEPTH: usize = 16;

pub(super) enum CycleCall {
    Detect { walk: Walk, asked: Asked },
    Explain(Box<ExplainCall>),
}

/// What the walk is waiting for, about its last owner.
pub(super) enum Asked {
    Edge,
    Blocking(OwnerId),
    Alive(OwnerId),
    Queue,
}

pub(super) struct ExplainCall {
    path: Path,
    mode: Mode,
    owner: OwnerId,
    found: Option<(Explanation, Vec<Option<u64>>)>,
    waits: BTreeMap<OwnerId, Vec<OwnerId>>,
    seen: BTreeSet<OwnerId>,
    depth: usize,
}

impl CycleCall {
    pub(super) fn detect(start: OwnerId, max_depth: u32) -> CycleCall {
        CycleCall::Detect {
            walk: Walk::new(start, max_depth),
            asked: Asked::Edge,
        }
    }

    pub(super) fn explain(path: Path, mode: Mode, owner: OwnerId) -> CycleCall {
        CycleCall::Explain(Box::new(ExplainCall {
            path,
            mode,
            owner,
            found: None,
            waits: BTreeMap::new(),
            seen: BTreeSet::new(),
            depth: 0,
        }))
    }
}

impl Node {
    pub(super) fn cycle(
        &mut self,
        cx: Context,
        call: &mut CycleCall,
        happened: Happened,
    ) -> Progress {
        if let Happened::Op(_, answer) = &happened
            && let Some(failure) = failure_of(answer)
        {
            return Progress::fail(failure);
        }
        if !self.span.resolve.is_loaded() {
            self.await_table(cx, 0);
            return Progress::Wait;
        }
        match call {
            CycleCall::Detect { walk, asked } => self.walk(cx, walk, asked, happened),
            CycleCall::Explain(call) => self.explain(cx, call, happened),
        }
    }

    fn read_of(&mut self, cx: Context, group: GroupId, query: Query) {
        let origin = Origin::Call {
            call: cx.id,
            part: 0,
        };
        self.submit(origin, group, Op::Read(query), cx.deadline);
    }

    fn walk(
        &mut self,
        cx: Context,
        walk: &mut Walk,
        asked: &mut Asked,
        happened: Happened,
    ) -> Progress {
        match happened {
            Happened::Op(_, OpAnswer::Found(found)) => match (*found, &asked) {
                (Found::Edge(Some(Edge { blocker, why })), Asked::Edge) => {
                    match why {
                        Some((path, reason)) => {
                            let (route, group) = self.route(&path);
                            let query = Query::Blocking {
                                route,
                                owner: blocker.clone(),
                                path: path.clone(),
                                reason,
                            };
                            *asked = Asked::Blocking(blocker);
                            self.read_of(cx, group, query);
                        }
                        None => {
                            *asked = Asked::Alive(blocker.clone());
                            self.sweep(cx, Sweep::about(blocker, What::Alive), Scope::All);
                        }
                    }
                    return Progress::Wait;
                }
                (Found::Edge(None), Asked::Edge) => return self.walk_queue(cx, walk, asked),
                (Found::Blocking(true), Asked::Blocking(blocker)) => {
                    walk.answer(Some(blocker.clone()));
                }
                (Found::Blocking(false), Asked::Blocking(_)) => {
                    return self.walk_queue(cx, walk, asked);
                }
                (Found::Outdated { version }, Asked::Blocking(_)) => {
                    *asked = Asked::Edge;
                    self.await_table(cx, version);
                    return Progress::Wait;
                }
                _ => return Progress::fail(odd_answer()),
            },
            Happened::Op(..) => return Progress::fail(odd_answer()),
            Happened::Swept(swept) => match &asked {
                Asked::Alive(blocker) if swept.alive => walk.answer(Some(blocker.clone())),
                Asked::Alive(_) => return self.walk_queue(cx, walk, asked),
                Asked::Queue => walk.answer(nearest(&swept.edges)),
                Asked::Edge | Asked::Blocking(_) => return Progress::Wait,
            },
            Happened::Start | Happened::Table | Happened::Timer | Happened::Changed(_) => {}
        }
        match walk.next() {
            Step::Done(found) => Progress::ok(Answer::DetectCycle(found)),
            Step::Ask(owner) => {
                *asked = Asked::Edge;
                let system = self.system();
                self.read_of(cx, system, Query::Edge { owner });
                Progress::Wait
            }
        }
    }

    /// No edge of a client stands: what does the queue say (R107)?
    fn walk_queue(&mut self, cx: Context, walk: &Walk, asked: &mut Asked) -> Progress {
        let Step::Ask(owner) = walk.next() else {
            return Progress::Wait;
        };
        *asked = Asked::Queue;
        let what = What::WaitsFor {
            owners: vec![owner.clone()],
        };
        self.sweep(cx, Sweep::about(owner, what), Scope::All);
        Progress::Wait
    }

    fn explain(&mut self, cx: Context, call: &mut ExplainCall, happened: Happened) -> Progress {
        match happened {
            Happened::Start | Happened::Table | Happened::Timer => {
                let (route, group) = self.route(&call.path);
                let query = Query::Explain {
                    route,
                    owner: call.owner.clone(),
                    path: call.path.clone(),
                    mode: call.mode,
                };
                self.read_of(cx, group, query);
                Progress::Wait
            }
            Happened::Op(_, OpAnswer::Found(found)) => match *found {
                Found::Explain { explanation, left } => {
                    let blockers = explanation.blockers.iter().map(|one| one.owner.clone());
                    let ahead = explanation.ahead.iter().map(|one| one.owner.clone());
                    let first: BTreeSet<OwnerId> = blockers.chain(ahead).collect();
                    call.waits
                        .insert(call.owner.clone(), first.iter().cloned().collect());
                    call.found = Some((explanation, left));
                    self.explain_on(cx, call, first)
                }
                Found::Outdated { version } => {
                    self.await_table(cx, version);
                    Progress::Wait
                }
                _ => Progress::fail(odd_answer()),
            },
            Happened::Swept(swept) => {
                let mut next = BTreeSet::new();
                for (owner, waits_for) in swept.edges {
                    next.extend(waits_for.iter().cloned());
                    call.waits.entry(owner).or_default().extend(waits_for);
                }
                self.explain_on(cx, call, next)
            }
            Happened::Op(..) | Happened::Changed(_) => Progress::fail(odd_answer()),
        }
    }

    fn explain_on(
        &mut self,
        cx: Context,
        call: &mut ExplainCall,
        next: BTreeSet<OwnerId>,
    ) -> Progress {
        let owners: Vec<OwnerId> = next
            .into_iter()
            .filter(|owner| *owner != call.owner && call.seen.insert(owner.clone()))
            .collect();
        call.depth += 1;
        if !owners.is_empty() && call.depth <= EXPLAIN_DEPTH {
            let sweep = Sweep::about(call.owner.clone(), What::WaitsFor { owners });
            self.sweep(cx, sweep, Scope::All);
            return Progress::Wait;
        }
        let Some((explanation, left)) = call.found.take() else {
            return Progress::fail(odd_answer());
        };
        let cycle = cycle_through(&call.owner, &call.waits);
        call.waits.remove(&call.owner);
        Progress::ok(Answer::Explain(Box::new(ExplainAnswer {
            explanation,
            left,
            waits: std::mem::take(&mut call.waits).into_iter().collect(),
            cycle,
        })))
    }
}

/// One edge of those that the queues know: any is true, the smallest is the same everywhere.
fn nearest(edges: &[(OwnerId, Vec<OwnerId>)]) -> Option<OwnerId> {
    edges.iter().flat_map(|(_, to)| to).min().cloned()
}

/// The owners of a shortest cycle through one, in wait order; empty if there is none.
fn cycle_through(start: &OwnerId, waits: &BTreeMap<OwnerId, Vec<OwnerId>>) -> Vec<OwnerId> {
    let mut search = tenure_core::deadlock::Search::new(start.clone());
    loop {
        let round = search.round();
        if round.is_empty() {
            break;
        }
        for owner in round {
            let to = waits.get(&owner).cloned().unwrap_or_default();
            search.answer(&owner, to);
        }
    }
    search.cycle().map(<[OwnerId]>::to_vec).unwrap_or_default()
}
