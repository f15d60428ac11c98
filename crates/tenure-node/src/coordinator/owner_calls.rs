//! Calls about one owner in all its namespaces: Renew, ReleaseAll, ForceRelease, RequestRevoke,
//! IsOwnerAlive, ListOwnerLocks; and IncrFencingToken, which asks all reachable groups.
//!
//! A call with an idempotency key records its progress in the system group (R102–R105):
//!
//! ```text
//!   Renew:                     claim key ──────────────────────▶ renew ──────────▶ complete
//!   ReleaseAll, ForceRelease:  read key ─▶ find groups ─▶ store plan ─▶ end its items ─▶ complete
//! ```
//!
//! An attempt under a completed key has no effect. Before that, every attempt does the same work. A
//! second renewal is harmless (R77 (a renewal never shortens a lease)). Since rules 2, ReleaseAll
//! and ForceRelease end only what the first plan names, by lease births and queue positions that
//! are never reused. So the call has one effect, however late an attempt is.

use std::collections::BTreeMap;

use tenure_core::codec::{Encode as _, Writer};
use tenure_core::command::{Command, Domain, ReleaseAll, ReleaseCause, RenewLease, Selection};
use tenure_core::outcome::Outcome;
use tenure_core::path::Namespace;
use tenure_core::policy::Missing;
use tenure_core::query::OwnerLocks;
use tenure_core::system::{
    self, KeyClaim, KeyWork, ReleasePlan, ReleasePlanEffect, RepeatedKey, SystemCommand,
    SystemOutcome,
};
use tenure_core::value::{Fence, Key, OwnerId, Ttl};
use xxhash_rust::xxh3::xxh3_128;

use super::fanout::{self, Fanout, FanoutOp, FanoutResult, FanoutScope};
use super::{
    CallContext, CallEvent, CallProgress, failure_of, note_failure, odd_answer, with_effects,
};
use crate::GroupId;
use crate::group_op::{GroupOp, GroupOpResult, GroupQuery, QueryResult};
use crate::node::Node;
use crate::request::{Answer, ClientRequest, EffectCertainty, Failure, RenewAnswer, WaitEdge};

/// Retry delay for a plan that cannot name everything yet.
const NAMELESS_RETRY_MS: u64 = 200;

pub(super) struct OwnerCall {
    request: Box<ClientRequest>,
    phase: OwnerPhase,
    /// Unfinished renewals of named namespaces, and the results of the finished ones.
    renewals: BTreeMap<u32, Namespace>,
    renewed: Vec<(Namespace, u64)>,
    asked: bool,
    lost: Option<Missing>,
    /// A part was done, or KILLED was sent.
    has_effects: bool,
    /// The plan that this call carries out.
    plan: Option<ReleasePlan>,
    failure: Option<Failure>,
}

enum OwnerPhase {
    Start,
    /// Reading what is known of the key.
    Looking,
    /// Waits for the system group's answer on the key, the kill or the release request.
    Claiming,
    /// Finds the groups in which the owner has something.
    Finding(Selection),
    /// Stores the plan. With a key, the plan of an earlier attempt takes precedence.
    Planning(ReleasePlan),
    /// Ends what the plan names; counts the groups without an answer.
    Ending(usize),
    Acting,
    /// A repeated renewal: checks whether the leases that it extended still exist.
    Replaying {
        /// The number of the first part.
        first: u32,
        left: usize,
        asked: bool,
    },
    /// Removing the wait edge.
    Edge,
    Incrementing,
    Completing(Answer),
}

impl OwnerCall {
    pub(super) fn new(request: Box<ClientRequest>) -> OwnerCall {
        OwnerCall {
            request,
            phase: OwnerPhase::Start,
            renewals: BTreeMap::new(),
            renewed: Vec::new(),
            asked: false,
            lost: None,
            has_effects: false,
            plan: None,
            failure: None,
        }
    }

    pub(super) fn into_request(self) -> Box<ClientRequest> {
        self.request
    }

    /// The end of a call of which a part has failed.
    fn failed(&mut self) -> CallProgress {
        let failure = self.failure.take().unwrap_or_else(odd_answer);
        CallProgress::fail(match self.has_effects {
            true => with_effects(failure),
            false => failure,
        })
    }
}

/// The fingerprint of a keyed request: the same key for another one is refused (R103: key reuse
/// with other content).
pub(super) fn claim(
    call: system::SystemCall,
    key: Option<&Key>,
    content: impl FnOnce(&mut Writer),
) -> Option<KeyClaim> {
    let key = key?;
    let mut out = Writer::new();
    content(&mut out);
    Some(KeyClaim {
        call,
        key: key.clone(),
        fingerprint: xxh3_128(&out.into_bytes()),
    })
}

fn put_owner(out: &mut Writer, owner: &OwnerId, domains: &[Namespace]) {
    owner.put(out);
    let mut sorted: Vec<&Namespace> = domains.iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    for domain in sorted {
        domain.put(out);
    }
}

fn claim_of(request: &ClientRequest) -> Option<KeyClaim> {
    match request {
        ClientRequest::Renew {
            owner,
            ttl,
            domains,
            key,
        } => claim(system::SystemCall::Renew, key.as_ref(), |out| {
            ttl.put(out);
            put_owner(out, owner, domains);
        }),
        ClientRequest::ReleaseAll {
            owner,
            domains,
            edge,
            key,
        } => claim(system::SystemCall::ReleaseAll, key.as_ref(), |out| {
            out.byte(u8::from(*edge == WaitEdge::Remove));
            put_owner(out, owner, domains);
        }),
        ClientRequest::ForceRelease { victim, key } => {
            claim(system::SystemCall::ForceRelease, key.as_ref(), |out| {
                victim.put(out);
            })
        }
        ClientRequest::IncrFencingToken { key } => {
            claim(system::SystemCall::IncrFencingToken, key.as_ref(), |_| {})
        }
        _ => None,
    }
}

/// What a key that was used before means; `None` where the call goes on.
pub(super) fn repeated(repeated: &RepeatedKey) -> Option<Failure> {
    match repeated {
        RepeatedKey::KeyReused => Some(Failure::InvalidArgument(
            "this idempotency key was used for a different request: use a new key".to_owned(),
        )),
        RepeatedKey::Full => Some(Failure::AnswersFull),
        RepeatedKey::Answered(_) | RepeatedKey::Open => None,
    }
}

impl Node {
    pub(super) fn owner_wide(
        &mut self,
        cx: &mut CallContext,
        call: &mut OwnerCall,
        happened: CallEvent,
    ) -> CallProgress {
        match happened {
            CallEvent::Start | CallEvent::Table | CallEvent::Timer => match call.phase {
                OwnerPhase::Start => self.owner_start(cx, call),
                OwnerPhase::Looking => self.find(cx, call),
                _ => self.owner_act(cx, call),
            },
            CallEvent::Op(answer) => self.owner_answer(cx, call, answer),
            CallEvent::FanoutResult(fanout_result) => {
                self.owner_fanout_done(cx, call, *fanout_result)
            }
            CallEvent::Changed(_) => CallProgress::Wait,
        }
    }

    fn owner_start(&mut self, cx: &mut CallContext, call: &mut OwnerCall) -> CallProgress {
        let ends = matches!(
            *call.request,
            ClientRequest::ReleaseAll { .. } | ClientRequest::ForceRelease { .. }
        );
        let claim = claim_of(&call.request);
        if ends && !self.knows_forms() {
            self.await_table(cx, 0);
            return CallProgress::Wait;
        }
        if ends && self.has_newer_forms() {
            match claim {
                Some(claim) => {
                    call.phase = OwnerPhase::Looking;
                    let claim = Box::new(claim);
                    let system = self.system();
                    self.ask(cx, system, GroupOp::Read(GroupQuery::Claimed { claim }));
                    return CallProgress::Wait;
                }
                // KILLED must come after the plan is read: locks acquired later are not part of the
                // kill.
                None if matches!(*call.request, ClientRequest::ForceRelease { .. }) => {
                    return self.find(cx, call);
                }
                None => {}
            }
        }
        self.owner_claim(cx, call)
    }

    /// Reserves the key of a call, where it needs no plan or there can be none.
    fn owner_claim(&mut self, cx: &mut CallContext, call: &mut OwnerCall) -> CallProgress {
        let claim = claim_of(&call.request);
        let command = match &*call.request {
            ClientRequest::ForceRelease { victim, .. } => Some(SystemCommand::Kill {
                owner: victim.clone(),
                claim,
            }),
            ClientRequest::RequestRevoke { owner } => Some(SystemCommand::Ask {
                owner: owner.clone(),
            }),
            // The counter stores the answers of its own keys.
            ClientRequest::IncrFencingToken { .. } => None,
            _ => claim.map(SystemCommand::Claim),
        };
        match command {
            Some(command) => {
                call.phase = OwnerPhase::Claiming;
                self.ask_system(cx, command);
                CallProgress::Wait
            }
            None => self.owner_act(cx, call),
        }
    }

    /// What is known of the key of a ReleaseAll or ForceRelease.
    fn looked(
        &mut self,
        cx: &mut CallContext,
        call: &mut OwnerCall,
        found: QueryResult,
    ) -> CallProgress {
        let QueryResult::Claimed {
            rules,
            before,
            work,
        } = found
        else {
            return CallProgress::fail(odd_answer());
        };
        if rules < 2 {
            return self.owner_claim(cx, call);
        }
        if let Some(failure) = before.as_ref().and_then(repeated) {
            return CallProgress::fail(failure);
        }
        match (before, work) {
            (Some(RepeatedKey::Answered(_)), _) => CallProgress::ok(Answer::Done),
            (_, Some(KeyWork::Plan(plan))) => self.end_planned(cx, call, plan),
            _ => self.find(cx, call),
        }
    }

    /// Finds out in which groups the owner has something, and up to which place in their orders.
    fn find(&mut self, cx: &mut CallContext, call: &mut OwnerCall) -> CallProgress {
        if !self.coordinator.resolve.is_loaded() {
            call.phase = OwnerPhase::Looking;
            self.await_table(cx, 0);
            return CallProgress::Wait;
        }
        let (owner, domains) = match &*call.request {
            ClientRequest::ReleaseAll { owner, domains, .. } => (owner, domains.as_slice()),
            ClientRequest::ForceRelease { victim, .. } => (victim, &[][..]),
            _ => return CallProgress::fail(odd_answer()),
        };
        let selection = self.table().select(domains);
        let fanout = Fanout {
            owner: owner.clone(),
            selection: selection.clone(),
            what: FanoutOp::Plan,
        };
        let scope = self.scope_of(&selection);
        call.phase = OwnerPhase::Finding(selection);
        self.fanout(cx, fanout, scope);
        CallProgress::Wait
    }

    /// Stores the plan before anything ends. The KILLED event and the end of the wait edge belong
    /// to the same entry, so that both come with the plan that counts, once.
    fn plan(
        &mut self,
        cx: &mut CallContext,
        call: &mut OwnerCall,
        plan: ReleasePlan,
    ) -> CallProgress {
        let claim = claim_of(&call.request);
        let (owner, effect) = match &*call.request {
            ClientRequest::ReleaseAll { owner, edge, .. } => (
                owner.clone(),
                match edge {
                    WaitEdge::Remove => ReleasePlanEffect::ClearEdge,
                    WaitEdge::Keep => ReleasePlanEffect::None,
                },
            ),
            ClientRequest::ForceRelease { victim, .. } => (victim.clone(), ReleasePlanEffect::Kill),
            _ => return CallProgress::fail(odd_answer()),
        };
        call.phase = OwnerPhase::Planning(plan.clone());
        let command = match claim {
            Some(claim) => SystemCommand::Plan {
                claim,
                owner,
                plan,
                effect,
            },
            None => SystemCommand::Kill { owner, claim: None },
        };
        self.ask_system(cx, command);
        CallProgress::Wait
    }

    /// Ends what a plan names, in every group that it names.
    fn end_planned(
        &mut self,
        cx: &mut CallContext,
        call: &mut OwnerCall,
        plan: ReleasePlan,
    ) -> CallProgress {
        let (owner, cause) = match &*call.request {
            ClientRequest::ReleaseAll { owner, .. } => (owner.clone(), ReleaseCause::Owner),
            ClientRequest::ForceRelease { victim, .. } => (victim.clone(), ReleaseCause::Killed),
            _ => return CallProgress::fail(odd_answer()),
        };
        call.has_effects = true;
        call.plan = Some(plan.clone());
        if plan.groups.is_empty() {
            return self.complete(cx, call, Answer::Done);
        }
        call.phase = OwnerPhase::Ending(plan.groups.len());
        for (group, until) in plan.groups {
            let release = ReleaseAll {
                owner: owner.clone(),
                selection: plan.selection.clone(),
                cause,
                until: Some(until),
            };
            let op = GroupOp::Command(Command::ReleaseAll(release));
            self.ask(cx, GroupId(group), op);
        }
        CallProgress::Wait
    }

    fn owner_act(&mut self, cx: &mut CallContext, call: &mut OwnerCall) -> CallProgress {
        call.phase = OwnerPhase::Acting;
        if !self.coordinator.resolve.is_loaded() {
            self.await_table(cx, 0);
            return CallProgress::Wait;
        }
        let (owner, domains, what) = match &*call.request {
            ClientRequest::Renew {
                owner,
                ttl,
                domains,
                ..
            } => {
                let selection = self.table().select(domains);
                if let Some(named) = all_named(&selection) {
                    let (owner, ttl) = (owner.clone(), *ttl);
                    return self.renew_named(cx, call, owner, ttl, named);
                }
                (owner, domains.as_slice(), FanoutOp::Renew(*ttl))
            }
            ClientRequest::ReleaseAll { owner, domains, .. } => (
                owner,
                domains.as_slice(),
                FanoutOp::ReleaseAll(ReleaseCause::Owner),
            ),
            ClientRequest::ForceRelease { victim, .. } => {
                (victim, &[][..], FanoutOp::ReleaseAll(ReleaseCause::Killed))
            }
            ClientRequest::RequestRevoke { owner } => (owner, &[][..], FanoutOp::Ask),
            ClientRequest::IsOwnerAlive { owner, domains } => {
                (owner, domains.as_slice(), FanoutOp::Alive)
            }
            ClientRequest::ListOwnerLocks { owner, domains } => {
                (owner, domains.as_slice(), FanoutOp::List)
            }
            ClientRequest::IncrFencingToken { .. } => {
                let any_owner = OwnerId::new("-").expect("one byte is a valid owner id");
                let fanout = Fanout::about(any_owner, FanoutOp::Highest);
                self.fanout(cx, fanout, FanoutScope::Reachable);
                return CallProgress::Wait;
            }
            _ => return CallProgress::fail(odd_answer()),
        };
        let fanout = Fanout {
            owner: owner.clone(),
            selection: self.table().select(domains),
            what,
        };
        let scope = self.scope_of(&fanout.selection);
        self.fanout(cx, fanout, scope);
        CallProgress::Wait
    }

    /// Named namespaces need no fan-out: each has one group, whose own ReadIndex round confirms it
    /// (R90: Renew with domains).
    fn renew_named(
        &mut self,
        cx: &mut CallContext,
        call: &mut OwnerCall,
        owner: OwnerId,
        ttl: Ttl,
        named: Vec<Namespace>,
    ) -> CallProgress {
        for namespace in named {
            let group = self.group_of(&namespace);
            let renew = RenewLease {
                namespace: namespace.clone(),
                owner: owner.clone(),
                ttl,
            };
            let part = self.ask(cx, group, GroupOp::Renew(renew));
            call.renewals.insert(part, namespace);
        }
        CallProgress::Wait
    }

    fn owner_answer(
        &mut self,
        cx: &mut CallContext,
        call: &mut OwnerCall,
        answer: GroupOpResult,
    ) -> CallProgress {
        let part = cx.told;
        if let Some(failure) = failure_of(&answer) {
            note_failure(&mut call.failure, failure);
            call.renewals.remove(&part);
            return match call.renewals.is_empty() {
                true => call.failed(),
                false => CallProgress::Wait,
            };
        }
        match (&mut call.phase, answer) {
            (OwnerPhase::Claiming, GroupOpResult::System(outcome)) => {
                self.claimed(cx, call, outcome)
            }
            (OwnerPhase::Looking, GroupOpResult::Found(found)) => self.looked(cx, call, *found),
            (OwnerPhase::Planning(own), GroupOpResult::System(outcome)) => match outcome {
                SystemOutcome::Planned(plan) => self.end_planned(cx, call, plan),
                // A kill without a key.
                SystemOutcome::Fresh => {
                    let plan = own.clone();
                    self.end_planned(cx, call, plan)
                }
                SystemOutcome::Repeated(before) => match repeated(&before) {
                    Some(failure) => CallProgress::fail(failure),
                    None => CallProgress::ok(Answer::Done),
                },
                _ => CallProgress::fail(odd_answer()),
            },
            (
                OwnerPhase::Ending(left),
                GroupOpResult::Applied {
                    outcome: Outcome::Touched(_),
                    ..
                },
            ) => {
                *left -= 1;
                if *left > 0 {
                    return CallProgress::Wait;
                }
                self.complete(cx, call, Answer::Done)
            }
            (OwnerPhase::Acting, GroupOpResult::Renewed(renewed)) => {
                if let Some(namespace) = call.renewals.remove(&part) {
                    match renewed {
                        Ok(renewed) => {
                            call.has_effects = true;
                            call.asked |= renewed.asked;
                            call.renewed.push((namespace, renewed.born));
                        }
                        Err(missing) => call.lost = Some(missing),
                    }
                }
                if call.renewals.is_empty() {
                    self.renewals_over(cx, call)
                } else {
                    CallProgress::Wait
                }
            }
            (OwnerPhase::Replaying { first, left, asked }, GroupOpResult::Found(found)) => {
                let QueryResult::Born(born) = *found else {
                    return CallProgress::fail(odd_answer());
                };
                // The parts were asked for in the order of the leases.
                let expected = part
                    .checked_sub(*first)
                    .and_then(|at| call.renewed.get(at as usize));
                if born.is_none() || born != expected.map(|(_, born)| *born) {
                    return CallProgress::ok(Answer::Renew(RenewAnswer::Lost(Missing::Alive)));
                }
                *left -= 1;
                if *left == 0 {
                    return CallProgress::ok(Answer::Renew(RenewAnswer::Renewed { asked: *asked }));
                }
                CallProgress::Wait
            }
            (OwnerPhase::Edge, GroupOpResult::System(_)) => self.complete(cx, call, Answer::Done),
            (OwnerPhase::Incrementing, GroupOpResult::System(outcome)) => incremented(&outcome),
            (OwnerPhase::Completing(answer), GroupOpResult::System(_)) => {
                CallProgress::ok(std::mem::replace(answer, Answer::Done))
            }
            _ => CallProgress::fail(odd_answer()),
        }
    }

    fn claimed(
        &mut self,
        cx: &mut CallContext,
        call: &mut OwnerCall,
        outcome: SystemOutcome,
    ) -> CallProgress {
        let SystemOutcome::Repeated(before) = outcome else {
            // A kill or a request to release: its event is sent.
            call.has_effects = matches!(
                &*call.request,
                ClientRequest::ForceRelease { .. } | ClientRequest::RequestRevoke { .. }
            );
            return self.owner_act(cx, call);
        };
        if let Some(failure) = repeated(&before) {
            return CallProgress::fail(failure);
        }
        match before {
            RepeatedKey::Answered(system::SystemAnswer::Renewed { leases, asked }) => {
                // R105: OK only while the leases that it extended exist.
                if leases.is_empty() {
                    return CallProgress::ok(Answer::Renew(RenewAnswer::Renewed { asked }));
                }
                let ClientRequest::Renew { owner, .. } = &*call.request else {
                    return CallProgress::fail(odd_answer());
                };
                let owner = owner.clone();
                // What an earlier attempt has done under the key.
                call.has_effects = true;
                call.phase = OwnerPhase::Replaying {
                    first: cx.parts.last + 1,
                    left: leases.len(),
                    asked,
                };
                call.renewed = leases.clone();
                for (namespace, _) in leases {
                    let group = self.group_of(&namespace);
                    let query = GroupQuery::Born {
                        namespace,
                        owner: owner.clone(),
                    };
                    self.ask(cx, group, GroupOp::Read(query));
                }
                CallProgress::Wait
            }
            RepeatedKey::Answered(_) => CallProgress::ok(Answer::Done),
            RepeatedKey::Open | RepeatedKey::KeyReused | RepeatedKey::Full => {
                self.owner_act(cx, call)
            }
        }
    }

    fn owner_fanout_done(
        &mut self,
        cx: &mut CallContext,
        call: &mut OwnerCall,
        fanout_result: FanoutResult,
    ) -> CallProgress {
        if fanout_result.too_long {
            return CallProgress::fail(Failure::ResourceExhausted(
                "the answer is too long: select fewer namespaces".to_owned(),
            ));
        }
        if fanout_result.unknown {
            return CallProgress::fail(Failure::Unavailable {
                why: "a part of the cluster could not answer: other parts were done, repeat the request",
                nothing_happened: EffectCertainty::No,
            });
        }
        if let OwnerPhase::Finding(selection) = &mut call.phase {
            let mut groups = fanout_result.planned;
            let nameless = |(_, until): &(u32, u64)| *until == ReleaseAll::EVERYTHING;
            if groups.iter().any(nameless) && claim_of(&call.request).is_some() {
                // The owner has something in a group that is still by rules 1, where nothing names it. A plan
                // that is written down for later attempts must name what it ends: the group follows soon.
                call.phase = OwnerPhase::Looking;
                self.set_timer(cx, NAMELESS_RETRY_MS);
                return CallProgress::Wait;
            }
            groups.sort_unstable();
            let selection = std::mem::replace(selection, Selection::All);
            return self.plan(cx, call, ReleasePlan { selection, groups });
        }
        match &*call.request {
            ClientRequest::Renew { .. } => {
                call.has_effects = !fanout_result.renewed.is_empty();
                call.asked = fanout_result.asked;
                call.renewed = fanout_result.renewed;
                if call.renewed.is_empty() {
                    call.lost = Some(Missing::Alive);
                }
                let taken = |(_, born): &(_, u64)| *born == fanout::HOLD_TAKEN;
                if call.renewed.iter().any(taken) {
                    call.lost = Some(Missing::OwnerSet);
                }
                self.renewals_over(cx, call)
            }
            ClientRequest::ReleaseAll {
                owner,
                edge: WaitEdge::Remove,
                ..
            } => {
                let owner = owner.clone();
                call.has_effects = true;
                call.phase = OwnerPhase::Edge;
                self.ask_system(cx, SystemCommand::ClearEdge { owner, claim: None });
                CallProgress::Wait
            }
            ClientRequest::ReleaseAll { .. }
            | ClientRequest::ForceRelease { .. }
            | ClientRequest::RequestRevoke { .. } => {
                call.has_effects = true;
                self.complete(cx, call, Answer::Done)
            }
            ClientRequest::IsOwnerAlive { .. } => {
                CallProgress::ok(Answer::Truth(fanout_result.alive))
            }
            ClientRequest::ListOwnerLocks { .. } => {
                let mut locks = fanout_result.locks;
                locks.sort_by(|a, b| (&a.path, a.mode).cmp(&(&b.path, b.mode)));
                CallProgress::ok(Answer::OwnerLocks(OwnerLocks {
                    alive: fanout_result.alive,
                    locks,
                }))
            }
            ClientRequest::IncrFencingToken { .. } => {
                let claim = claim_of(&call.request);
                call.phase = OwnerPhase::Incrementing;
                let above = fanout_result
                    .highest
                    .filter(|fence| fence.number() < Fence::DRIVEN);
                self.ask_system(cx, SystemCommand::Increment { above, claim });
                CallProgress::Wait
            }
            _ => CallProgress::fail(odd_answer()),
        }
    }

    fn renewals_over(&mut self, cx: &mut CallContext, call: &mut OwnerCall) -> CallProgress {
        if call.failure.is_some() {
            return call.failed();
        }
        let answer = match call.lost {
            Some(missing) => RenewAnswer::Lost(missing),
            None => RenewAnswer::Renewed { asked: call.asked },
        };
        self.complete(cx, call, Answer::Renew(answer))
    }

    /// Remembers the answer of a keyed call, then gives it.
    fn complete(
        &mut self,
        cx: &mut CallContext,
        call: &mut OwnerCall,
        answer: Answer,
    ) -> CallProgress {
        let Some(claim) = claim_of(&call.request) else {
            return CallProgress::ok(answer);
        };
        let remembered = match &answer {
            Answer::Renew(RenewAnswer::Renewed { asked }) => Some(system::SystemAnswer::Renewed {
                leases: std::mem::take(&mut call.renewed),
                asked: *asked,
            }),
            // Only applied results are stored; a repeat is evaluated afresh (R102).
            Answer::Renew(RenewAnswer::Lost(_)) => None,
            _ => Some(system::SystemAnswer::Done),
        };
        call.phase = OwnerPhase::Completing(answer);
        self.ask_system(
            cx,
            SystemCommand::Complete {
                claim,
                answer: remembered,
                plan: call.plan.take(),
            },
        );
        CallProgress::Wait
    }
}

fn incremented(outcome: &SystemOutcome) -> CallProgress {
    match outcome {
        SystemOutcome::Number(fence) => CallProgress::ok(Answer::Number(*fence)),
        SystemOutcome::Repeated(before) => match (repeated(before), before) {
            (Some(failure), _) => CallProgress::fail(failure),
            (None, RepeatedKey::Answered(system::SystemAnswer::Number(fence))) => {
                CallProgress::ok(Answer::Number(*fence))
            }
            _ => CallProgress::fail(odd_answer()),
        },
        SystemOutcome::NumbersUsedUp => CallProgress::fail(Failure::ResourceExhausted(
            "the global counter has reached its maximum".to_owned(),
        )),
        _ => CallProgress::fail(odd_answer()),
    }
}

/// The namespaces of a selection, if it names each of them.
fn all_named(selection: &Selection) -> Option<Vec<Namespace>> {
    let Selection::Only(domains) = selection else {
        return None;
    };
    domains
        .iter()
        .map(|domain| match domain {
            Domain::Namespace(namespace) => Some(namespace.clone()),
            Domain::Handler(_) => None,
        })
        .collect()
}
