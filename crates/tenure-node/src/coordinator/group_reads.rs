//! Calls that need one answer of one group, or of each of a few groups: AssertFencing, InspectPath,
//! IsBlocking, DumpLocks, policies, wait edges, Break, Health.

use tenure_core::codec::Encode as _;
use tenure_core::command::{BreakLock, Command, Route};
use tenure_core::outcome::{BreakOutcome, Outcome, Refusal};
use tenure_core::path::Path;
use tenure_core::query::{DumpCursor, FenceCheck, HoldView, WaiterView};
use tenure_core::system::{self, Edge, SystemCommand, SystemOutcome};
use tenure_core::value::{Fence, OwnerId};

use super::acquire::{FROZEN_RETRY_MS, refused};
use super::owner_calls::{claim, repeated};
use super::{CallContext, CallEvent, CallProgress, failure_of, odd_answer};
use crate::GroupId;
use crate::group_op::{GroupOp, GroupOpResult, GroupQuery, QueryResult};
use crate::node::Node;
use crate::request::{Answer, AssertAnswer, ClientRequest, EffectCertainty, Failure};

/// A read is resolved anew so often when the table changes under it.
const MAX_MISSES: u8 = 8;

pub(super) struct ReadCall {
    request: Box<ClientRequest>,
    misses: u8,
    /// For AssertFencing: which of the paths each part is about. No places mean all, in their order.
    parts: Vec<(u32, Vec<usize>)>,
    /// The first path that failed, by its place in the request.
    failed: Option<(usize, FenceCheck)>,
    /// For DumpLocks: which group is being read.
    group: GroupId,
    /// For DumpLocks and surveys: what the page has so far. A page goes on with the next group while it
    /// has room, so that few holds in many groups are one page. The waiters are `None` if a group does
    /// not report them.
    holds: Vec<HoldView>,
    waiters: Option<Vec<WaiterView>>,
}

impl ReadCall {
    pub(super) fn new(request: Box<ClientRequest>) -> ReadCall {
        ReadCall {
            request,
            misses: 0,
            parts: Vec::new(),
            failed: None,
            group: GroupId(0),
            holds: Vec::new(),
            waiters: None,
        }
    }

    pub(super) fn into_request(self) -> Box<ClientRequest> {
        self.request
    }
}

impl Node {
    pub(super) fn read(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReadCall,
        happened: CallEvent,
    ) -> CallProgress {
        match happened {
            CallEvent::Start | CallEvent::Table | CallEvent::Timer => self.read_start(cx, call),
            CallEvent::Op(answer) => match failure_of(&answer) {
                Some(failure) => CallProgress::fail(failure),
                None => self.read_answer(cx, call, answer),
            },
            CallEvent::FanoutResult(_) | CallEvent::Changed(_) => CallProgress::Wait,
        }
    }

    fn ask_one(&mut self, cx: &mut CallContext, group: GroupId, op: GroupOp) -> CallProgress {
        self.ask(cx, group, op);
        CallProgress::Wait
    }

    /// Begins, or begins anew: then no answer to an earlier round counts.
    fn read_start(&mut self, cx: &mut CallContext, call: &mut ReadCall) -> CallProgress {
        cx.start_over();
        let system = self.system();
        match &*call.request {
            ClientRequest::GetNamespacePolicy { namespace } => {
                let namespace = namespace.clone();
                self.ask_one(cx, system, GroupOp::Read(GroupQuery::Policy { namespace }))
            }
            ClientRequest::ListNamespacePolicies { after, page } => {
                let query = GroupQuery::Policies {
                    after: after.clone(),
                    page: page_of(*page),
                };
                self.ask_one(cx, system, GroupOp::Read(query))
            }
            // R145 (healthy storage): a node whose writes hang cannot serve, whatever its peers answer.
            ClientRequest::Health if self.has_slow_disk() => {
                CallProgress::fail(Failure::Unavailable {
                    why: "the disk is slow: writes of the log take longer than an election timeout",
                    nothing_happened: EffectCertainty::Yes,
                })
            }
            ClientRequest::Health => self.ask_one(cx, system, GroupOp::Read(GroupQuery::Nothing)),
            ClientRequest::Confirm { group } if *group > system => {
                CallProgress::fail(Failure::InvalidArgument("the group does not exist".into()))
            }
            ClientRequest::Confirm { group } => {
                let group = *group;
                self.ask_one(cx, group, GroupOp::Read(GroupQuery::Nothing))
            }
            ClientRequest::SetWaitEdge { .. } | ClientRequest::ClearWaitEdge { .. } => {
                match edge_command(&call.request) {
                    Some(command) => self.ask_one(cx, system, GroupOp::System(Box::new(command))),
                    None => CallProgress::fail(odd_answer()),
                }
            }
            ClientRequest::DumpLocks { cursor, page }
            | ClientRequest::Survey { cursor, page, .. } => match dump_position(cursor) {
                Some((group, _)) if group.0 >= self.config.cluster.group_count => bad_cursor(),
                Some(position) => {
                    let page = page_of(*page);
                    (call.holds, call.waiters) = (Vec::new(), Some(Vec::new()));
                    self.ask_dump_page(cx, call, position, page)
                }
                None => bad_cursor(),
            },
            _ if !self.coordinator.resolve.is_loaded() => {
                self.await_table(cx, 0);
                CallProgress::Wait
            }
            ClientRequest::AssertFencing {
                owner,
                fence,
                paths,
            } => {
                let (Some(fence), false) = (*fence, paths.is_empty()) else {
                    return CallProgress::ok(Answer::AssertFencing(AssertAnswer::Valid));
                };
                call.parts.clear();
                call.failed = None;
                if let [path] = &paths[..] {
                    let (route, group) = self.route(path);
                    let query = GroupQuery::Assert {
                        owner: owner.clone(),
                        fence,
                        paths: vec![(route, path.clone())],
                    };
                    let part = self.ask(cx, group, GroupOp::Read(query));
                    call.parts.reserve_exact(1);
                    call.parts.push((part, Vec::new()));
                    return CallProgress::Wait;
                }
                for (group, query, places) in self.assertions(owner, fence, paths) {
                    let part = self.ask(cx, group, GroupOp::Read(query));
                    call.parts.push((part, places));
                }
                CallProgress::Wait
            }
            ClientRequest::InspectPath { path } => {
                let (route, group) = self.route(path);
                let path = path.clone();
                self.ask_one(
                    cx,
                    group,
                    GroupOp::Read(GroupQuery::Inspect { route, path }),
                )
            }
            ClientRequest::IsBlocking {
                path,
                owner,
                reason,
            } => {
                let (route, group) = self.route(path);
                let query = GroupQuery::Blocking {
                    route,
                    owner: owner.clone(),
                    path: path.clone(),
                    reason: *reason,
                };
                self.ask_one(cx, group, GroupOp::Read(query))
            }
            ClientRequest::Break { path, owner, fence } => {
                let (route, group) = self.route(path);
                let command = Command::Break(BreakLock {
                    route,
                    path: path.clone(),
                    owner: owner.clone(),
                    fence: *fence,
                });
                self.ask_one(cx, group, GroupOp::Command(command))
            }
            _ => CallProgress::fail(odd_answer()),
        }
    }

    /// One question a group, about all its paths at once (R73: AssertFencing checks owner and
    /// token): with the places of these in the list.
    fn assertions(
        &mut self,
        owner: &OwnerId,
        fence: Fence,
        paths: &[Path],
    ) -> Vec<(GroupId, GroupQuery, Vec<usize>)> {
        let mut by_group: Vec<(GroupId, usize, Route)> = Vec::with_capacity(paths.len());
        for (at, path) in paths.iter().enumerate() {
            let (route, group) = self.route(path);
            by_group.push((group, at, route));
        }
        by_group.sort_by_key(|(group, ..)| *group);
        let of_group = by_group.chunk_by(|(one, ..), (two, ..)| one == two);
        let question = |list: &[(GroupId, usize, Route)]| {
            let places = list.iter().map(|(_, at, _)| *at).collect();
            let paths = list
                .iter()
                .map(|(_, at, route)| (route.clone(), paths[*at].clone()));
            let query = GroupQuery::Assert {
                owner: owner.clone(),
                fence,
                paths: paths.collect(),
            };
            Some((list.first()?.0, query, places))
        };
        of_group.filter_map(question).collect()
    }

    fn read_answer(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReadCall,
        answer: GroupOpResult,
    ) -> CallProgress {
        match answer {
            GroupOpResult::Found(found) => self.read_found(cx, call, *found),
            GroupOpResult::System(SystemOutcome::Repeated(before)) => match repeated(&before) {
                Some(failure) => CallProgress::fail(failure),
                None => CallProgress::ok(Answer::Done),
            },
            GroupOpResult::System(_) => CallProgress::ok(Answer::Done),
            GroupOpResult::Applied {
                outcome: Outcome::Break(outcome),
                ..
            } => match *outcome {
                BreakOutcome::Refused(refusal) => self.read_refused(cx, call, refusal),
                BreakOutcome::Broken | BreakOutcome::NotThatHold(_) => {
                    CallProgress::ok(Answer::Break(outcome))
                }
            },
            _ => CallProgress::fail(odd_answer()),
        }
    }

    fn read_refused(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReadCall,
        refusal: Refusal,
    ) -> CallProgress {
        if let Some(failure) = refused(refusal) {
            return CallProgress::fail(failure);
        }
        match refusal {
            Refusal::Outdated { version } => self.read_outdated(cx, call, version),
            _ => {
                self.set_timer(cx, FROZEN_RETRY_MS);
                CallProgress::Wait
            }
        }
    }

    fn read_outdated(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReadCall,
        version: u64,
    ) -> CallProgress {
        call.misses += 1;
        if call.misses > MAX_MISSES {
            return CallProgress::fail(Failure::Aborted);
        }
        cx.start_over();
        self.await_table(cx, version);
        CallProgress::Wait
    }

    fn read_found(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReadCall,
        found: QueryResult,
    ) -> CallProgress {
        let answer = match found {
            QueryResult::Outdated { version } => return self.read_outdated(cx, call, version),
            QueryResult::Assert(failed) => return asserted(call, cx.told, failed),
            QueryResult::Inspect(inspection) => Answer::Inspect(Box::new(inspection)),
            QueryResult::Blocking(blocking) => Answer::Truth(blocking),
            QueryResult::Policy {
                algorithm,
                explicit,
            } => Answer::Policy {
                algorithm,
                explicit,
            },
            QueryResult::Policies { rows, done } => Answer::Policies { rows, done },
            QueryResult::Nothing => Answer::Ready,
            QueryResult::Dump(found) => {
                let waiters = match &*call.request {
                    ClientRequest::Survey { .. } => None,
                    _ => Some(Vec::new()),
                };
                let holds = found.locks.into_iter().map(|lock| HoldView {
                    lock,
                    held_ms: None,
                    left_ms: None,
                    holder: None,
                    permits: None,
                });
                return self.page_found(cx, call, holds.collect(), waiters, found.next);
            }
            QueryResult::Survey(found) => {
                return self.page_found(cx, call, found.holds, found.waiters, found.next);
            }
            QueryResult::Edge(_)
            | QueryResult::Table(_)
            | QueryResult::Explain { .. }
            | QueryResult::Born(_)
            | QueryResult::Claimed { .. }
            | QueryResult::Ended(_)
            | QueryResult::Auth(_)
            | QueryResult::Change(_) => {
                return CallProgress::fail(odd_answer());
            }
        };
        CallProgress::ok(answer)
    }

    /// Asks a group for its part of a page of DumpLocks or of a survey.
    fn ask_dump_page(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReadCall,
        (group, after): (GroupId, Option<DumpCursor>),
        page: u32,
    ) -> CallProgress {
        call.group = group;
        let query = match &*call.request {
            ClientRequest::Survey { below, .. } if self.has_newer_forms() => {
                let below = below.clone();
                GroupQuery::Survey { below, after, page }
            }
            // An older release has no details.
            _ => GroupQuery::Dump { after, page },
        };
        self.ask_one(cx, group, GroupOp::Read(query))
    }

    /// Adds what one group has to the page. The page ends when it is full, when a group has more than
    /// one query looks at, or after the last group.
    fn page_found(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReadCall,
        holds: Vec<HoldView>,
        waiters: Option<Vec<WaiterView>>,
        next: Option<DumpCursor>,
    ) -> CallProgress {
        let (page, below) = match &*call.request {
            ClientRequest::DumpLocks { page, .. } => (*page, None),
            ClientRequest::Survey { page, below, .. } => (*page, below.clone()),
            _ => return CallProgress::fail(odd_answer()),
        };
        let is_below = |hold: &HoldView| {
            let path = &hold.lock.path;
            let holds = |below: &Path| below == path || below.is_ancestor_of(path);
            below.as_ref().is_none_or(holds)
        };
        call.holds.extend(holds.into_iter().filter(is_below));
        // The waiters of one group are not known: then those of the page are not.
        call.waiters = match (call.waiters.take(), waiters) {
            (Some(mut all), Some(more)) => {
                all.extend(more);
                Some(all)
            }
            _ => None,
        };
        let found = call.holds.len() + call.waiters.as_ref().map_or(0, Vec::len);
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        let room = page_of(page).saturating_sub(found);
        let next_group = GroupId(call.group.0 + 1);
        let has_more_groups = next_group.0 < self.config.cluster.group_count;
        let next = match next {
            Some(cursor) => dump_cursor(call.group, Some(cursor)),
            None if has_more_groups && room > 0 => {
                return self.ask_dump_page(cx, call, (next_group, None), room);
            }
            None if has_more_groups => dump_cursor(next_group, None),
            None => Vec::new(),
        };
        let holds = std::mem::take(&mut call.holds);
        CallProgress::ok(match &*call.request {
            ClientRequest::Survey { .. } => Answer::Survey {
                holds,
                waiters: call.waiters.take(),
                next,
            },
            _ => Answer::Dump {
                locks: holds.into_iter().map(|hold| hold.lock).collect(),
                next,
            },
        })
    }
}

/// The first failure in the order of the request decides (R73).
fn asserted(call: &mut ReadCall, part: u32, failed: Option<(u32, FenceCheck)>) -> CallProgress {
    let Some(at) = call.parts.iter().position(|(one, _)| *one == part) else {
        return CallProgress::Wait;
    };
    let (_, places) = call.parts.swap_remove(at);
    if let Some((at, check)) = failed {
        let at = at as usize;
        let place = match places[..] {
            [] => Some(at),
            _ => places.get(at).copied(),
        };
        if let Some(place) = place
            && call.failed.is_none_or(|(first, _)| place < first)
        {
            call.failed = Some((place, check));
        }
    }
    if !call.parts.is_empty() {
        return CallProgress::Wait;
    }
    let ClientRequest::AssertFencing { paths, .. } = &*call.request else {
        return CallProgress::fail(odd_answer());
    };
    let failed = call.failed;
    let failed = failed.and_then(|(at, check)| Some((paths.get(at)?, check)));
    CallProgress::ok(Answer::AssertFencing(AssertAnswer::of(failed)))
}

fn page_of(page: u32) -> u32 {
    match page {
        0 => 64,
        page => page.min(512),
    }
}

fn bad_cursor() -> CallProgress {
    CallProgress::fail(Failure::InvalidArgument(
        "this cursor was not issued by the server".to_owned(),
    ))
}

const CURSOR_VERSION: u8 = 1;

fn dump_cursor(group: GroupId, after: Option<DumpCursor>) -> Vec<u8> {
    let mut bytes = vec![CURSOR_VERSION];
    bytes.extend_from_slice(&group.0.to_le_bytes());
    if let Some(DumpCursor(after)) = after {
        bytes.extend_from_slice(&after.to_le_bytes());
    }
    bytes
}

fn dump_position(cursor: &[u8]) -> Option<(GroupId, Option<DumpCursor>)> {
    if cursor.is_empty() {
        return Some((GroupId(0), None));
    }
    let (version, rest) = cursor.split_first()?;
    let (group, rest) = rest.split_first_chunk::<4>()?;
    if *version != CURSOR_VERSION {
        return None;
    }
    let after = match rest {
        [] => None,
        rest => Some(DumpCursor(u64::from_le_bytes(rest.try_into().ok()?))),
    };
    Some((GroupId(u32::from_le_bytes(*group)), after))
}

fn edge_command(request: &ClientRequest) -> Option<SystemCommand> {
    Some(match request {
        ClientRequest::SetWaitEdge {
            owner,
            blocker,
            why,
            ttl,
            key,
        } => SystemCommand::SetEdge {
            owner: owner.clone(),
            edge: Edge {
                blocker: blocker.clone(),
                why: why.clone(),
            },
            ttl: *ttl,
            claim: claim(system::SystemCall::SetWaitEdge, key.as_ref(), |out| {
                owner.put(out);
                blocker.put(out);
                ttl.put(out);
                out.option(why.as_ref());
            }),
        },
        ClientRequest::ClearWaitEdge { owner, key } => SystemCommand::ClearEdge {
            owner: owner.clone(),
            claim: claim(system::SystemCall::ClearWaitEdge, key.as_ref(), |out| {
                owner.put(out);
            }),
        },
        _ => return None,
    })
}
