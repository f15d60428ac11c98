//! The Release call: split by namespace; each part is atomic on its own (R97–R99).

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::codec::{Encode as _, Writer};
use tenure_core::command::{Command, Hold, Release, Whole};
use tenure_core::outcome::{Outcome, Refusal};
use tenure_core::path::Namespace;
use tenure_core::system::{self, KeyClaim, SystemCommand};
use tenure_core::value::Key;
use xxhash_rust::xxh3::xxh3_128;

use super::acquire::{FROZEN_RETRY_MS, refused};
use super::fanout::{Fanout, FanoutOp, FanoutResult, FanoutScope};
use super::{
    CallContext, CallEvent, CallProgress, failure_of, note_failure, odd_answer, with_effects,
};
use crate::group_op::{GroupOp, GroupOpResult};
use crate::node::Node;
use crate::request::{Answer, ClientRequest, Failure, ReleaseRequest, WaitEdge};

/// Maximum re-resolutions of one part after policy changes.
const MAX_MISSES: u8 = 8;

pub(super) struct ReleaseCall {
    /// A release.
    request: Box<ClientRequest>,
    /// Its first parts were sent.
    is_begun: bool,
    /// The part under way that removes the wait edge.
    edge: Option<u32>,
    /// The part under way that is about all holds, which then lie in one namespace.
    running: Option<u32>,
    /// Unfinished parts for single namespaces.
    parts: Vec<(u32, Vec<Hold>)>,
    /// Holds that must be resolved (again).
    unplaced: UnresolvedRelease,
    /// Holds that moved to another namespace, while all groups are asked whether they were
    /// released.
    moved: Vec<MovedHolds>,
    /// What goes with the key of a request.
    whole: Option<Whole>,
    misses: u8,
    /// Whether a hold that was sent alone was refused because its path is frozen.
    is_frozen: bool,
    /// Whether a part was applied.
    has_effects: bool,
    failure: Option<Failure>,
}

/// Holds in a namespace that may not know the key.
struct MovedHolds {
    /// The part that asks.
    part: u32,
    holds: Vec<Hold>,
    /// The version of the change that moved them: the answer covers this one and those before it.
    version: u64,
}

/// The part of a release that waits to be resolved.
enum UnresolvedRelease {
    All,
    Some(Vec<Hold>),
}

impl UnresolvedRelease {
    const NOTHING: UnresolvedRelease = UnresolvedRelease::Some(Vec::new());

    fn is_empty(&self) -> bool {
        matches!(self, UnresolvedRelease::Some(holds) if holds.is_empty())
    }

    fn join(&mut self, more: UnresolvedRelease) {
        match (&mut *self, more) {
            (UnresolvedRelease::Some(holds), UnresolvedRelease::Some(more)) => holds.extend(more),
            (UnresolvedRelease::Some(_), UnresolvedRelease::All) => *self = UnresolvedRelease::All,
            (UnresolvedRelease::All, _) => {}
        }
    }
}

impl ReleaseCall {
    pub(super) fn new(request: Box<ClientRequest>) -> ReleaseCall {
        let unplaced = match &*request {
            ClientRequest::Release(release) if release.holds.is_empty() => {
                UnresolvedRelease::NOTHING
            }
            _ => UnresolvedRelease::All,
        };
        ReleaseCall {
            unplaced,
            request,
            is_begun: false,
            edge: None,
            running: None,
            moved: Vec::new(),
            whole: None,
            parts: Vec::new(),
            misses: 0,
            is_frozen: false,
            has_effects: false,
            failure: None,
        }
    }

    pub(super) fn into_request(self) -> Box<ClientRequest> {
        self.request
    }

    /// Whether this part was under way, and the holds that it was about.
    fn take_part(&mut self, part: u32) -> Option<UnresolvedRelease> {
        if self.edge == Some(part) {
            self.edge = None;
            return Some(UnresolvedRelease::NOTHING);
        }
        if self.running == Some(part) {
            self.running = None;
            return Some(UnresolvedRelease::All);
        }
        let at = self.parts.iter().position(|(one, _)| *one == part)?;
        Some(UnresolvedRelease::Some(self.parts.swap_remove(at).1))
    }

    fn unplace(&mut self, holds: UnresolvedRelease) {
        self.unplaced.join(holds);
    }
}

fn request_key(request: &ClientRequest) -> Option<&Key> {
    match request {
        ClientRequest::Release(release) => release.key.as_ref(),
        _ => None,
    }
}

/// The content of a whole request, however it is split.
fn fingerprint(request: &ReleaseRequest) -> u128 {
    let mut out = Writer::new();
    request.owner.put(&mut out);
    out.list(&request.holds);
    xxh3_128(&out.into_bytes())
}

impl Node {
    pub(super) fn release(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReleaseCall,
        happened: CallEvent,
    ) -> CallProgress {
        match happened {
            CallEvent::Start | CallEvent::Table if !call.is_begun => {
                if request_key(&call.request).is_some() && !self.knows_forms() {
                    self.await_table(cx, 0);
                    return CallProgress::Wait;
                }
                call.is_begun = true;
                if let ClientRequest::Release(request) = &*call.request
                    && request.key.is_some()
                    && self.has_newer_forms()
                {
                    call.whole = Some(Whole {
                        fingerprint: fingerprint(request),
                        asked: None,
                    });
                }
                if let ClientRequest::Release(ReleaseRequest {
                    edge: WaitEdge::Remove,
                    owner,
                    ..
                }) = &*call.request
                {
                    let claim = call.whole.and_then(|whole| {
                        let key = request_key(&call.request)?;
                        Some(KeyClaim {
                            call: system::SystemCall::Release,
                            key: key.clone(),
                            fingerprint: whole.fingerprint,
                        })
                    });
                    let command = SystemCommand::ClearEdge {
                        owner: owner.clone(),
                        claim,
                    };
                    call.edge = Some(self.ask_system(cx, command));
                }
                self.release_parts(cx, call);
            }
            CallEvent::Start | CallEvent::Table | CallEvent::Timer => self.release_parts(cx, call),
            CallEvent::Op(answer) => self.released(cx, call, answer),
            CallEvent::FanoutResult(fanout_result) => self.asked_for_key(cx, call, &fanout_result),
            CallEvent::Changed(_) => {}
        }
        let open = call.edge.is_some()
            || !call.moved.is_empty()
            || call.running.is_some()
            || !call.parts.is_empty();
        if open || !call.unplaced.is_empty() {
            return CallProgress::Wait;
        }
        match call.failure.take() {
            Some(failure) if call.has_effects => CallProgress::fail(with_effects(failure)),
            Some(failure) => CallProgress::fail(failure),
            None => CallProgress::ok(Answer::Done),
        }
    }

    fn release_parts(&mut self, cx: &mut CallContext, call: &mut ReleaseCall) {
        if call.unplaced.is_empty() {
            return;
        }
        if !self.coordinator.resolve.is_loaded() {
            self.await_table(cx, 0);
            return;
        }
        let ClientRequest::Release(request) = &*call.request else {
            call.unplaced = UnresolvedRelease::NOTHING;
            note_failure(&mut call.failure, odd_answer());
            return;
        };
        let unplaced = std::mem::replace(&mut call.unplaced, UnresolvedRelease::NOTHING);
        let holds = match &unplaced {
            UnresolvedRelease::All => &request.holds,
            UnresolvedRelease::Some(holds) => holds,
        };
        let table = self.table();
        let mut names = holds.iter().map(|hold| table.name_of(&hold.path));
        let first = names.next();
        if names.all(|name| Some(name) == first) {
            if let Some(part) = self.release_part(cx, request, call.whole, holds) {
                match unplaced {
                    UnresolvedRelease::All => call.running = Some(part),
                    UnresolvedRelease::Some(holds) => call.parts.push((part, holds)),
                }
            }
            return;
        }
        // In the order of their names.
        let mut by_namespace: BTreeMap<Namespace, Vec<Hold>> = BTreeMap::new();
        for hold in holds {
            let namespace = table.namespace_of(&hold.path);
            by_namespace
                .entry(namespace)
                .or_default()
                .push(hold.clone());
        }
        for holds in by_namespace.into_values() {
            if let Some(part) = self.release_part(cx, request, call.whole, &holds) {
                call.parts.push((part, holds));
            }
        }
    }

    /// Releases holds of one namespace, if there are any.
    fn release_part(
        &mut self,
        cx: &mut CallContext,
        request: &ReleaseRequest,
        whole: Option<Whole>,
        holds: &[Hold],
    ) -> Option<u32> {
        let (route, group) = self.route(&holds.first()?.path);
        let command = Command::Release(Release {
            route,
            owner: request.owner.clone(),
            holds: holds.to_vec(),
            key: request.key.clone(),
            whole,
        });
        Some(self.ask(cx, group, GroupOp::Command(command)))
    }

    /// Paths of a keyed release lie in another namespace since the change of a version, and that namespace has
    /// not released them under the key: all groups are asked whether an earlier attempt was applied elsewhere.
    fn ask_for_key(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReleaseCall,
        holds: UnresolvedRelease,
        version: u64,
    ) {
        let (ClientRequest::Release(request), Some(whole)) = (&*call.request, call.whole) else {
            note_failure(&mut call.failure, odd_answer());
            return;
        };
        let Some(key) = request.key.clone() else {
            note_failure(&mut call.failure, odd_answer());
            return;
        };
        let holds = match holds {
            UnresolvedRelease::All => request.holds.clone(),
            UnresolvedRelease::Some(holds) => holds,
        };
        let what = FanoutOp::Released {
            key,
            fingerprint: whole.fingerprint,
            holds: holds.clone(),
        };
        let fanout = Fanout::about(request.owner.clone(), what);
        let part = self.fanout(cx, fanout, FanoutScope::All);
        call.moved.push(MovedHolds {
            part,
            holds,
            version,
        });
    }

    /// Skips holds that an earlier attempt released: a present hold on such a path was acquired
    /// later and must stay.
    fn asked_for_key(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReleaseCall,
        fanout_result: &FanoutResult,
    ) {
        let Some(at) = call.moved.iter().position(|moved| moved.part == cx.told) else {
            return;
        };
        let MovedHolds {
            mut holds, version, ..
        } = call.moved.swap_remove(at);
        if fanout_result.unknown || fanout_result.too_long {
            // Not all groups have answered, so "not released" is not known.
            note_failure(&mut call.failure, odd_answer());
            return;
        }
        let released: BTreeSet<&Hold> = fanout_result.released.iter().collect();
        holds.retain(|hold| !released.contains(hold));
        let (ClientRequest::Release(request), Some(whole)) = (&*call.request, call.whole) else {
            return;
        };
        // They lie in one namespace, which takes them as one part: the key is known there afterwards. If
        // they have been moved again meanwhile, the answer does not cover that change, and all are asked again.
        let whole = Some(Whole {
            asked: Some(version),
            ..whole
        });
        if let Some(part) = self.release_part(cx, request, whole, &holds) {
            call.parts.push((part, holds));
        }
    }

    /// Handles a part that is refused because one of its paths is frozen and not held. Other holds
    /// of the part may be released now, so each is sent alone. A single one waits for the change.
    fn release_one_by_one(
        &mut self,
        cx: &mut CallContext,
        call: &mut ReleaseCall,
        refused: UnresolvedRelease,
    ) {
        let ClientRequest::Release(request) = &*call.request else {
            return;
        };
        let holds = match &refused {
            UnresolvedRelease::All => &request.holds,
            UnresolvedRelease::Some(holds) => holds,
        };
        if holds.len() < 2 || call.is_frozen {
            call.is_frozen = true;
            call.unplace(refused);
            self.set_timer(cx, FROZEN_RETRY_MS);
            return;
        }
        for hold in holds.clone() {
            let holds = vec![hold];
            if let Some(part) = self.release_part(cx, request, call.whole, &holds) {
                call.parts.push((part, holds));
            }
        }
    }

    fn released(&mut self, cx: &mut CallContext, call: &mut ReleaseCall, answer: GroupOpResult) {
        let Some(holds) = call.take_part(cx.told) else {
            return;
        };
        if let Some(failure) = failure_of(&answer) {
            note_failure(&mut call.failure, failure);
            return;
        }
        match answer {
            GroupOpResult::System(_)
            | GroupOpResult::Applied {
                outcome: Outcome::Release(Ok(())),
                ..
            } => call.has_effects = true,
            GroupOpResult::Applied {
                outcome: Outcome::Release(Err(refusal)),
                ..
            } => {
                if let Some(failure) = refused(refusal) {
                    note_failure(&mut call.failure, failure);
                    return;
                }
                if let Refusal::Moved { version } = refusal {
                    self.ask_for_key(cx, call, holds, version);
                    return;
                }
                if let Refusal::Outdated { version } = refusal {
                    call.unplace(holds);
                    call.misses += 1;
                    if call.misses > MAX_MISSES {
                        call.unplaced = UnresolvedRelease::NOTHING;
                        note_failure(&mut call.failure, Failure::Aborted);
                    } else {
                        self.await_table(cx, version);
                    }
                    return;
                }
                self.release_one_by_one(cx, call, holds);
            }
            _ => note_failure(&mut call.failure, odd_answer()),
        }
    }
}
