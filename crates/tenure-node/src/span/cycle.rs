//! Who waits for whom, across groups: DetectCycle (R111) and Explain (E7). Both only read.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::deadlock::{Search, WaitPosition, Walk, WalkStep};
use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::query::{Explanation, WaitsFor};
use tenure_core::system::Edge;
use tenure_core::value::OwnerId;

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
    /// Whom the owner waits for, or would.
    first: BTreeSet<OwnerId>,
    waits: Waits,
    /// What was seen of others before, when there seemed to be a cycle. Those waits that are seen
    /// again were there when the explanation was read, in between.
    before: Option<Waits>,
    seen: BTreeSet<OwnerId>,
    depth: usize,
}

type Waits = BTreeMap<OwnerId, Vec<WaitsFor>>;

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
            first: BTreeSet::new(),
            waits: BTreeMap::new(),
            before: None,
            seen: BTreeSet::new(),
            depth: 0,
        }))
    }
}

impl Node {
    pub(super) fn cycle(
        &mut self,
        cx: &mut Context,
        call: &mut CycleCall,
        happened: Happened,
    ) -> Progress {
        if let Happened::Op(answer) = &happened
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

    fn read_of(&mut self, cx: &mut Context, group: GroupId, query: Query) {
        self.ask(cx, group, Op::Read(query));
    }

    fn walk(
        &mut self,
        cx: &mut Context,
        walk: &mut Walk,
        asked: &mut Asked,
        happened: Happened,
    ) -> Progress {
        match happened {
            Happened::Op(OpAnswer::Found(found)) => match (*found, &asked) {
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
                    walk.answer(Some((blocker.clone(), None)));
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
                Asked::Alive(blocker) if swept.alive => {
                    walk.answer(Some((blocker.clone(), None)));
                }
                Asked::Alive(_) => return self.walk_queue(cx, walk, asked),
                Asked::Queue => walk.answer(nearest(&swept.edges)),
                Asked::Edge | Asked::Blocking(_) => return Progress::Wait,
            },
            Happened::Start | Happened::Table | Happened::Timer | Happened::Changed(_) => {}
        }
        match walk.next() {
            WalkStep::Done(found) => Progress::ok(Answer::DetectCycle(found)),
            WalkStep::Ask(owner) => {
                *asked = Asked::Edge;
                let system = self.system();
                self.read_of(cx, system, Query::Edge { owner });
                Progress::Wait
            }
        }
    }

    /// No edge of a client stands: what does the queue say (R107)?
    fn walk_queue(&mut self, cx: &mut Context, walk: &Walk, asked: &mut Asked) -> Progress {
        let WalkStep::Ask(owner) = walk.next() else {
            return Progress::Wait;
        };
        *asked = Asked::Queue;
        let what = What::WaitsFor {
            owners: vec![owner.clone()],
        };
        self.sweep(cx, Sweep::about(owner, what), Scope::All);
        Progress::Wait
    }

    fn explain(
        &mut self,
        cx: &mut Context,
        call: &mut ExplainCall,
        happened: Happened,
    ) -> Progress {
        match happened {
            Happened::Start | Happened::Table | Happened::Timer => self.explain_first(cx, call),
            Happened::Op(OpAnswer::Found(found)) => match *found {
                Found::Explain { explanation, left } => {
                    let blockers = explanation.blockers.iter().map(|one| one.owner.clone());
                    let ahead = explanation.ahead.iter().map(|one| one.owner.clone());
                    call.first = blockers.chain(ahead).collect();
                    call.found = Some((explanation, left));
                    let next = call.first.clone();
                    self.explain_on(cx, call, next)
                }
                Found::Outdated { version } => {
                    self.await_table(cx, version);
                    Progress::Wait
                }
                _ => Progress::fail(odd_answer()),
            },
            Happened::Swept(swept) => {
                let mut next = BTreeSet::new();
                for (owner, waits) in swept.edges {
                    next.extend(waits.owners.iter().cloned());
                    call.waits.entry(owner).or_default().push(waits);
                }
                self.explain_on(cx, call, next)
            }
            Happened::Op(..) | Happened::Changed(_) => Progress::fail(odd_answer()),
        }
    }

    fn explain_first(&mut self, cx: &mut Context, call: &ExplainCall) -> Progress {
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

    fn explain_on(
        &mut self,
        cx: &mut Context,
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
        let cycle = call.cycle();
        if !cycle.is_empty() && call.before.is_none() {
            call.before = Some(std::mem::take(&mut call.waits));
            call.seen.clear();
            call.depth = 0;
            return self.explain_first(cx, call);
        }
        let Some((explanation, left)) = call.found.take() else {
            return Progress::fail(odd_answer());
        };
        let waits = std::mem::take(&mut call.waits).into_iter();
        let owners = |waits: Vec<WaitsFor>| waits.into_iter().flat_map(|one| one.owners).collect();
        Progress::ok(Answer::Explain(Box::new(ExplainAnswer {
            explanation,
            left,
            waits: waits.map(|(owner, all)| (owner, owners(all))).collect(),
            cycle,
        })))
    }
}

impl ExplainCall {
    /// The owners of a shortest cycle through the one that is asked about, in wait order; empty if
    /// there is none.
    fn cycle(&self) -> Vec<OwnerId> {
        let mut search = Search::new(self.owner.clone());
        loop {
            let round = search.round();
            if round.is_empty() {
                break;
            }
            for owner in round {
                if owner == self.owner {
                    search.answer(&owner, None, self.first.iter().cloned());
                }
                for waits in self.waits.get(&owner).into_iter().flatten() {
                    let stands = |blocker: &&OwnerId| self.stood(&owner, &waits.place, blocker);
                    let owners = waits.owners.iter().filter(stands);
                    search.answer(&owner, Some(&waits.place), owners.cloned());
                }
            }
        }
        search.cycle().map(<[OwnerId]>::to_vec).unwrap_or_default()
    }

    /// Whether a wait was seen before, too, if anything was.
    fn stood(&self, owner: &OwnerId, place: &WaitPosition, blocker: &OwnerId) -> bool {
        let Some(before) = &self.before else {
            return true;
        };
        let mut waits = before.get(owner).into_iter().flatten();
        waits.any(|waits| waits.place == *place && waits.owners.contains(blocker))
    }
}

/// One edge of those that the queues know: any is true, the smallest is the same everywhere.
fn nearest(edges: &[(OwnerId, WaitsFor)]) -> Option<(OwnerId, Option<WaitPosition>)> {
    let each = |waits: &'_ WaitsFor| {
        let place = Some(waits.place.clone());
        waits.owners.iter().min().cloned().map(|to| (to, place))
    };
    edges.iter().filter_map(|(_, waits)| each(waits)).min()
}
