//! Calls that need one answer of one group, or one of each of a few: AssertFencing, InspectPath,
//! IsBlocking, DumpLocks, policies, edges, Break, Health.

use tenure_core::codec::Encode as _;
use tenure_core::command::{BreakLock, Command, Route};
use tenure_core::outcome::{BreakOutcome, Outcome, Refusal};
use tenure_core::path::Path;
use tenure_core::query::{DumpCursor, FenceCheck};
use tenure_core::system::{self, Edge, SystemCommand, SystemOutcome};
use tenure_core::value::{Fence, OwnerId};

use super::acquire::{FROZEN_RETRY_MS, refused};
use super::owner::{claim, repeated};
use super::{Context, Happened, Progress, failure_of, odd_answer};
use crate::GroupId;
use crate::node::Node;
use crate::op::{Found, Op, OpAnswer, Query};
use crate::request::{Answer, AssertAnswer, Certain, ClientRequest, Failure};

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
}

impl ReadCall {
    pub(super) fn new(request: Box<ClientRequest>) -> ReadCall {
        ReadCall {
            request,
            misses: 0,
            parts: Vec::new(),
            failed: None,
            group: GroupId(0),
        }
    }

    pub(super) fn into_request(self) -> Box<ClientRequest> {
        self.request
    }
}

impl Node {
    pub(super) fn read(
        &mut self,
        cx: &mut Context,
        call: &mut ReadCall,
        happened: Happened,
    ) -> Progress {
        match happened {
            Happened::Start | Happened::Table | Happened::Timer => self.read_start(cx, call),
            Happened::Op(answer) => match failure_of(&answer) {
                Some(failure) => Progress::fail(failure),
                None => self.read_answer(cx, call, answer),
            },
            Happened::Swept(_) | Happened::Changed(_) => Progress::Wait,
        }
    }

    fn ask_one(&mut self, cx: &mut Context, group: GroupId, op: Op) -> Progress {
        self.ask(cx, group, op);
        Progress::Wait
    }

    /// Begins, or begins anew: then no answer to an earlier round counts.
    fn read_start(&mut self, cx: &mut Context, call: &mut ReadCall) -> Progress {
        cx.start_over();
        let system = self.system();
        match &*call.request {
            ClientRequest::GetNamespacePolicy { namespace } => {
                let namespace = namespace.clone();
                self.ask_one(cx, system, Op::Read(Query::Policy { namespace }))
            }
            ClientRequest::ListNamespacePolicies { after, page } => {
                let query = Query::Policies {
                    after: after.clone(),
                    page: page_of(*page),
                };
                self.ask_one(cx, system, Op::Read(query))
            }
            // R145 (healthy storage): a node whose writes hang cannot serve, whatever its peers answer.
            ClientRequest::Health if self.has_slow_disk() => Progress::fail(Failure::Unavailable {
                why: "the disk is slow: writes of the log take longer than an election timeout",
                nothing_happened: Certain::Yes,
            }),
            ClientRequest::Health => self.ask_one(cx, system, Op::Read(Query::Nothing)),
            ClientRequest::Confirm { group } if *group > system => {
                Progress::fail(Failure::InvalidArgument("there is no such group".into()))
            }
            ClientRequest::Confirm { group } => {
                let group = *group;
                self.ask_one(cx, group, Op::Read(Query::Nothing))
            }
            ClientRequest::SetWaitEdge { .. } | ClientRequest::ClearWaitEdge { .. } => {
                match edge_command(&call.request) {
                    Some(command) => self.ask_one(cx, system, Op::System(Box::new(command))),
                    None => Progress::fail(odd_answer()),
                }
            }
            ClientRequest::DumpLocks { cursor, page } => match dump_position(cursor) {
                Some((group, _)) if group.0 >= self.config.cluster.group_count => bad_cursor(),
                Some((group, after)) => {
                    call.group = group;
                    let page = page_of(*page);
                    self.ask_one(cx, group, Op::Read(Query::Dump { after, page }))
                }
                None => bad_cursor(),
            },
            _ if !self.span.resolve.is_loaded() => {
                self.await_table(cx, 0);
                Progress::Wait
            }
            ClientRequest::AssertFencing {
                owner,
                fence,
                paths,
            } => {
                let (Some(fence), false) = (*fence, paths.is_empty()) else {
                    return Progress::ok(Answer::AssertFencing(AssertAnswer::Valid));
                };
                call.parts.clear();
                call.failed = None;
                if let [path] = &paths[..] {
                    let (route, group) = self.route(path);
                    let query = Query::Assert {
                        owner: owner.clone(),
                        fence,
                        paths: vec![(route, path.clone())],
                    };
                    let part = self.ask(cx, group, Op::Read(query));
                    call.parts.reserve_exact(1);
                    call.parts.push((part, Vec::new()));
                    return Progress::Wait;
                }
                for (group, query, places) in self.assertions(owner, fence, paths) {
                    let part = self.ask(cx, group, Op::Read(query));
                    call.parts.push((part, places));
                }
                Progress::Wait
            }
            ClientRequest::InspectPath { path } => {
                let (route, group) = self.route(path);
                let path = path.clone();
                self.ask_one(cx, group, Op::Read(Query::Inspect { route, path }))
            }
            ClientRequest::IsBlocking {
                path,
                owner,
                reason,
            } => {
                let (route, group) = self.route(path);
                let query = Query::Blocking {
                    route,
                    owner: owner.clone(),
                    path: path.clone(),
                    reason: *reason,
                };
                self.ask_one(cx, group, Op::Read(query))
            }
            ClientRequest::Break { path, owner, fence } => {
                let (route, group) = self.route(path);
                let command = Command::Break(BreakLock {
                    route,
                    path: path.clone(),
                    owner: owner.clone(),
                    fence: *fence,
                });
                self.ask_one(cx, group, Op::Command(command))
            }
            _ => Progress::fail(odd_answer()),
        }
    }

    /// One question a group, about all its paths at once (R73): with the places of these in the list.
    fn assertions(
        &mut self,
        owner: &OwnerId,
        fence: Fence,
        paths: &[Path],
    ) -> Vec<(GroupId, Query, Vec<usize>)> {
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
            let query = Query::Assert {
                owner: owner.clone(),
                fence,
                paths: paths.collect(),
            };
            Some((list.first()?.0, query, places))
        };
        of_group.filter_map(question).collect()
    }

    fn read_answer(&mut self, cx: &mut Context, call: &mut ReadCall, answer: OpAnswer) -> Progress {
        match answer {
            OpAnswer::Found(found) => self.read_found(cx, call, *found),
            OpAnswer::System(SystemOutcome::Repeated(before)) => match repeated(&before) {
                Some(failure) => Progress::fail(failure),
                None => Progress::ok(Answer::Done),
            },
            OpAnswer::System(_) => Progress::ok(Answer::Done),
            OpAnswer::Applied {
                outcome: Outcome::Break(outcome),
                ..
            } => match *outcome {
                BreakOutcome::Refused(refusal) => self.read_refused(cx, call, refusal),
                BreakOutcome::Broken | BreakOutcome::NotThatHold(_) => {
                    Progress::ok(Answer::Break(outcome))
                }
            },
            _ => Progress::fail(odd_answer()),
        }
    }

    fn read_refused(
        &mut self,
        cx: &mut Context,
        call: &mut ReadCall,
        refusal: Refusal,
    ) -> Progress {
        if let Some(failure) = refused(refusal) {
            return Progress::fail(failure);
        }
        match refusal {
            Refusal::Outdated { version } => self.read_outdated(cx, call, version),
            _ => {
                self.set_timer(cx, FROZEN_RETRY_MS);
                Progress::Wait
            }
        }
    }

    fn read_outdated(&mut self, cx: &mut Context, call: &mut ReadCall, version: u64) -> Progress {
        call.misses += 1;
        if call.misses > MAX_MISSES {
            return Progress::fail(Failure::Aborted);
        }
        cx.start_over();
        self.await_table(cx, version);
        Progress::Wait
    }

    fn read_found(&mut self, cx: &mut Context, call: &mut ReadCall, found: Found) -> Progress {
        let answer = match found {
            Found::Outdated { version } => return self.read_outdated(cx, call, version),
            Found::Assert(failed) => return asserted(call, cx.told, failed),
            Found::Inspect(inspection) => Answer::Inspect(Box::new(inspection)),
            Found::Blocking(blocking) => Answer::Truth(blocking),
            Found::Policy {
                algorithm,
                explicit,
            } => Answer::Policy {
                algorithm,
                explicit,
            },
            Found::Policies { rows, done } => Answer::Policies { rows, done },
            Found::Nothing => Answer::Ready,
            Found::Dump(page) => {
                let next = match page.next {
                    Some(cursor) => dump_cursor(call.group, Some(cursor)),
                    None if call.group.0 + 1 < self.config.cluster.group_count => {
                        dump_cursor(GroupId(call.group.0 + 1), None)
                    }
                    None => Vec::new(),
                };
                Answer::Dump {
                    locks: page.locks,
                    next,
                }
            }
            Found::Edge(_)
            | Found::Table(_)
            | Found::Explain { .. }
            | Found::Born(_)
            | Found::Claimed { .. }
            | Found::Ended(_)
            | Found::Change(_) => {
                return Progress::fail(odd_answer());
            }
        };
        Progress::ok(answer)
    }
}

/// The first failure in the order of the request decides (R73).
fn asserted(call: &mut ReadCall, part: u32, failed: Option<(u32, FenceCheck)>) -> Progress {
    let Some(at) = call.parts.iter().position(|(one, _)| *one == part) else {
        return Progress::Wait;
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
        return Progress::Wait;
    }
    let ClientRequest::AssertFencing { paths, .. } = &*call.request else {
        return Progress::fail(odd_answer());
    };
    let answer = match call
        .failed
        .and_then(|(at, check)| Some((paths.get(at)?, check)))
    {
        Some((path, FenceCheck::StaleFence { .. })) => AssertAnswer::StaleFence(path.clone()),
        Some((path, FenceCheck::StaleOwner)) => AssertAnswer::StaleOwner(path.clone()),
        Some((_, FenceCheck::Valid)) | None => AssertAnswer::Valid,
    };
    Progress::ok(Answer::AssertFencing(answer))
}

fn page_of(page: u32) -> u32 {
    match page {
        0 => 64,
        page => page.min(512),
    }
}

fn bad_cursor() -> Progress {
    Progress::fail(Failure::InvalidArgument(
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
