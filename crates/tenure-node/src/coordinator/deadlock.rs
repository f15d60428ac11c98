//! Wait-for graph across groups: DetectCycle (R111: DetectCycle walks wait edges) and Explain (E7:
//! Explain a lock request). Both calls only read.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::deadlock::{Search, WaitPosition, Walk, WalkStep};
use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::query::{Explanation, WaitsFor};
use tenure_core::system::Edge;
use tenure_core::value::OwnerId;

use super::fanout::{Fanout, FanoutOp, FanoutScope};
use super::{CallContext, CallEvent, CallProgress, failure_of, odd_answer};
use crate::GroupId;
use crate::group_op::{GroupOp, GroupOpResult, GroupQuery, QueryResult};
use crate::node::Node;
use crate::request::{Answer, ExplainAnswer};

/// How deep Explain follows the waits of blockers.
const EXPLAIN_DEPTH: usize = 16;
/// Of how many owners Explain reads the waits, nearest first.
const EXPLAIN_OWNERS: usize = 1024;
/// How many waits Explain reads; with more it goes no deeper.
const EXPLAIN_EDGES: usize = 8192;

pub(super) enum DetectCycleCall {
    Detect { walk: Walk, asked: WalkQuestion },
    Explain(Box<ExplainCall>),
}

/// The pending question of the walk about its last owner.
pub(super) enum WalkQuestion {
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
    /// The owners that the owner waits for, or would wait for.
    first: BTreeSet<OwnerId>,
    waits: EdgeReads,
    /// Waits seen in the first pass, if it found a cycle. A wait that is seen again in the second
    /// pass also existed in between, when the explanation was read.
    before: Option<EdgeReads>,
    seen: BTreeSet<OwnerId>,
    edges: usize,
    depth: usize,
}

type EdgeReads = BTreeMap<OwnerId, Vec<WaitsFor>>;

impl DetectCycleCall {
    pub(super) fn detect(start: OwnerId, max_depth: u32) -> DetectCycleCall {
        DetectCycleCall::Detect {
            walk: Walk::new(start, max_depth),
            asked: WalkQuestion::Edge,
        }
    }

    pub(super) fn explain(path: Path, mode: Mode, owner: OwnerId) -> DetectCycleCall {
        DetectCycleCall::Explain(Box::new(ExplainCall {
            path,
            mode,
            owner,
            found: None,
            first: BTreeSet::new(),
            waits: BTreeMap::new(),
            before: None,
            seen: BTreeSet::new(),
            edges: 0,
            depth: 0,
        }))
    }
}

impl Node {
    pub(super) fn cycle(
        &mut self,
        cx: &mut CallContext,
        call: &mut DetectCycleCall,
        happened: CallEvent,
    ) -> CallProgress {
        if let CallEvent::Op(answer) = &happened
            && let Some(failure) = failure_of(answer)
        {
            return CallProgress::fail(failure);
        }
        if !self.coordinator.resolve.is_loaded() {
            self.await_table(cx, 0);
            return CallProgress::Wait;
        }
        match call {
            DetectCycleCall::Detect { walk, asked } => self.walk(cx, walk, asked, happened),
            DetectCycleCall::Explain(call) => self.explain(cx, call, happened),
        }
    }

    fn read_of(&mut self, cx: &mut CallContext, group: GroupId, query: GroupQuery) {
        self.ask(cx, group, GroupOp::Read(query));
    }

    fn walk(
        &mut self,
        cx: &mut CallContext,
        walk: &mut Walk,
        asked: &mut WalkQuestion,
        happened: CallEvent,
    ) -> CallProgress {
        match happened {
            CallEvent::Op(GroupOpResult::Found(found)) => match (*found, &asked) {
                (QueryResult::Edge(Some(Edge { blocker, why })), WalkQuestion::Edge) => {
                    match why {
                        Some((path, reason)) => {
                            let (route, group) = self.route(&path);
                            let query = GroupQuery::Blocking {
                                route,
                                owner: blocker.clone(),
                                path: path.clone(),
                                reason,
                            };
                            *asked = WalkQuestion::Blocking(blocker);
                            self.read_of(cx, group, query);
                        }
                        None => {
                            *asked = WalkQuestion::Alive(blocker.clone());
                            self.fanout(
                                cx,
                                Fanout::about(blocker, FanoutOp::Alive),
                                FanoutScope::All,
                            );
                        }
                    }
                    return CallProgress::Wait;
                }
                (QueryResult::Edge(None), WalkQuestion::Edge) => {
                    return self.walk_queue(cx, walk, asked);
                }
                (QueryResult::Blocking(true), WalkQuestion::Blocking(blocker)) => {
                    walk.answer(Some((blocker.clone(), None)));
                }
                (QueryResult::Blocking(false), WalkQuestion::Blocking(_)) => {
                    return self.walk_queue(cx, walk, asked);
                }
                (QueryResult::Outdated { version }, WalkQuestion::Blocking(_)) => {
                    *asked = WalkQuestion::Edge;
                    self.await_table(cx, version);
                    return CallProgress::Wait;
                }
                _ => return CallProgress::fail(odd_answer()),
            },
            CallEvent::Op(..) => return CallProgress::fail(odd_answer()),
            CallEvent::FanoutResult(fanout_result) => match &asked {
                WalkQuestion::Alive(blocker) if fanout_result.alive => {
                    walk.answer(Some((blocker.clone(), None)));
                }
                WalkQuestion::Alive(_) => return self.walk_queue(cx, walk, asked),
                WalkQuestion::Queue => walk.answer(nearest(&fanout_result.edges)),
                WalkQuestion::Edge | WalkQuestion::Blocking(_) => return CallProgress::Wait,
            },
            CallEvent::Start | CallEvent::Table | CallEvent::Timer | CallEvent::Changed(_) => {}
        }
        match walk.next() {
            WalkStep::Done(found) => CallProgress::ok(Answer::DetectCycle(found)),
            WalkStep::Ask(owner) => {
                *asked = WalkQuestion::Edge;
                let system = self.system();
                self.read_of(cx, system, GroupQuery::Edge { owner });
                CallProgress::Wait
            }
        }
    }

    /// The client has set no wait edge: ask the queues (R107: wait edges).
    fn walk_queue(
        &mut self,
        cx: &mut CallContext,
        walk: &Walk,
        asked: &mut WalkQuestion,
    ) -> CallProgress {
        let WalkStep::Ask(owner) = walk.next() else {
            return CallProgress::Wait;
        };
        *asked = WalkQuestion::Queue;
        let what = FanoutOp::WaitsFor {
            owners: vec![owner.clone()],
        };
        self.fanout(cx, Fanout::about(owner, what), FanoutScope::All);
        CallProgress::Wait
    }

    fn explain(
        &mut self,
        cx: &mut CallContext,
        call: &mut ExplainCall,
        happened: CallEvent,
    ) -> CallProgress {
        match happened {
            CallEvent::Start | CallEvent::Table | CallEvent::Timer => self.explain_first(cx, call),
            CallEvent::Op(GroupOpResult::Found(found)) => match *found {
                QueryResult::Explain { explanation, left } => {
                    let blockers = explanation.blockers.iter().map(|one| one.owner.clone());
                    let ahead = explanation.ahead.iter().map(|one| one.owner.clone());
                    call.first = blockers.chain(ahead).collect();
                    call.found = Some((explanation, left));
                    let next = call.first.clone();
                    self.explain_on(cx, call, next)
                }
                QueryResult::Outdated { version } => {
                    self.await_table(cx, version);
                    CallProgress::Wait
                }
                _ => CallProgress::fail(odd_answer()),
            },
            CallEvent::FanoutResult(fanout_result) => {
                let mut next = BTreeSet::new();
                for (owner, waits) in fanout_result.edges {
                    call.edges += waits.owners.len();
                    next.extend(waits.owners.iter().cloned());
                    call.waits.entry(owner).or_default().push(waits);
                }
                self.explain_on(cx, call, next)
            }
            CallEvent::Op(..) | CallEvent::Changed(_) => CallProgress::fail(odd_answer()),
        }
    }

    fn explain_first(&mut self, cx: &mut CallContext, call: &ExplainCall) -> CallProgress {
        let (route, group) = self.route(&call.path);
        let query = GroupQuery::Explain {
            route,
            owner: call.owner.clone(),
            path: call.path.clone(),
            mode: call.mode,
        };
        self.read_of(cx, group, query);
        CallProgress::Wait
    }

    fn explain_on(
        &mut self,
        cx: &mut CallContext,
        call: &mut ExplainCall,
        next: BTreeSet<OwnerId>,
    ) -> CallProgress {
        let room = EXPLAIN_OWNERS.saturating_sub(call.seen.len());
        let owners: Vec<OwnerId> = next
            .into_iter()
            .filter(|owner| *owner != call.owner && call.seen.insert(owner.clone()))
            .take(room)
            .collect();
        call.depth += 1;
        if !owners.is_empty() && call.depth <= EXPLAIN_DEPTH && call.edges < EXPLAIN_EDGES {
            let fanout = Fanout::about(call.owner.clone(), FanoutOp::WaitsFor { owners });
            self.fanout(cx, fanout, FanoutScope::All);
            return CallProgress::Wait;
        }
        let cycle = call.cycle();
        if !cycle.is_empty() && call.before.is_none() {
            call.before = Some(std::mem::take(&mut call.waits));
            call.seen.clear();
            call.edges = 0;
            call.depth = 0;
            return self.explain_first(cx, call);
        }
        let Some((explanation, left)) = call.found.take() else {
            return CallProgress::fail(odd_answer());
        };
        let waits = std::mem::take(&mut call.waits).into_iter();
        let owners = |waits: Vec<WaitsFor>| waits.into_iter().flat_map(|one| one.owners).collect();
        CallProgress::ok(Answer::Explain(Box::new(ExplainAnswer {
            explanation,
            left,
            waits: waits.map(|(owner, all)| (owner, owners(all))).collect(),
            cycle,
        })))
    }
}

impl ExplainCall {
    /// Returns the owners of a shortest cycle through the owner in question, in wait order; empty
    /// if there is none.
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

    /// Whether a wait was also seen in the first pass, if there was one.
    fn stood(&self, owner: &OwnerId, place: &WaitPosition, blocker: &OwnerId) -> bool {
        let Some(before) = &self.before else {
            return true;
        };
        let mut waits = before.get(owner).into_iter().flatten();
        waits.any(|waits| waits.place == *place && waits.owners.contains(blocker))
    }
}

/// Picks one of the queues' edges. Any is correct; the smallest makes the result deterministic.
fn nearest(edges: &[(OwnerId, WaitsFor)]) -> Option<(OwnerId, Option<WaitPosition>)> {
    let each = |waits: &'_ WaitsFor| {
        let place = Some(waits.place.clone());
        waits.owners.iter().min().cloned().map(|to| (to, place))
    };
    edges.iter().filter_map(|(_, waits)| each(waits)).min()
}
