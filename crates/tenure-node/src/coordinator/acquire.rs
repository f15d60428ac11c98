//! The Acquire call: resolves the namespace, submits the request to its group, and on request
//! refuses to wait in a deadlock (E5: refuse on deadlock).

use tenure_core::auth::scope_of;
use tenure_core::command::{Acquire, AcquireWithin, Command, RequestKind, Withdraw};
use tenure_core::deadlock::Search;
use tenure_core::limits::{LimitKind, QuotaScope};
use tenure_core::namespace_table::Unroutable;
use tenure_core::outcome::{AcquireOutcome, Outcome, Queued, Refusal, Withdrawn};
use tenure_core::path::{Namespace, Path};

use super::fanout::{Fanout, FanoutOp, FanoutScope};
use super::{CallContext, CallEvent, CallProgress, failure_of, odd_answer, with_effects};
use crate::group_op::{GroupOp, GroupOpResult};
use crate::node::Node;
use crate::request::{AcquireAnswer, AcquireRequest, Answer, ClientRequest, Deadlock, Failure};

/// A request that meets an unfinished policy change is retried after this time.
pub(super) const FROZEN_RETRY_MS: u64 = 20;

pub(super) struct AcquireCall {
    /// An acquire.
    request: Box<ClientRequest>,
    deadlock: Deadlock,
    /// How often it was resolved by an outdated table.
    misses: u8,
    phase: AcquirePhase,
}

enum AcquirePhase {
    Resolving,
    Placing {
        namespace: Namespace,
    },
    Searching {
        waits: Box<QueuedWait>,
        search: Box<Search>,
    },
    Withdrawing {
        waits: Box<QueuedWait>,
        cycle: Vec<tenure_core::value::OwnerId>,
    },
}

/// A queued wait that is being checked for a deadlock.
struct QueuedWait {
    namespace: Namespace,
    queued: Box<Queued>,
    lease_left_ms: Option<u64>,
}

impl AcquireCall {
    pub(super) fn new(request: Box<ClientRequest>, deadlock: Deadlock) -> AcquireCall {
        AcquireCall {
            request,
            deadlock,
            misses: 0,
            phase: AcquirePhase::Resolving,
        }
    }

    pub(super) fn into_request(self) -> Box<ClientRequest> {
        self.request
    }
}

/// Returns the failure for a refusal of a space; `None` if the request is retried.
pub(super) fn refused(refusal: Refusal) -> Option<Failure> {
    Some(match refusal {
        Refusal::Outdated { .. } | Refusal::Frozen { .. } | Refusal::Moved { .. } => return None,
        Refusal::KeyReused => Failure::InvalidArgument(
            "this idempotency key was used for a different request: use a new key".to_owned(),
        ),
        Refusal::AnswersFull => Failure::AnswersFull,
        Refusal::QueueFull => Failure::ResourceExhausted(
            "the queue of this namespace is full: try again later".to_owned(),
        ),
        // Only acquires have quotas, and `over_quota` words them.
        Refusal::Quota { .. } => odd_answer(),
        Refusal::FencesUsedUp => Failure::ResourceExhausted(
            "the fencing tokens of this namespace are used up".to_owned(),
        ),
    })
}

impl Node {
    pub(super) fn acquire(
        &mut self,
        cx: &mut CallContext,
        call: &mut AcquireCall,
        happened: CallEvent,
    ) -> CallProgress {
        match happened {
            CallEvent::Start | CallEvent::Table | CallEvent::Timer => self.place(cx, call),
            CallEvent::Op(answer) => match &call.phase {
                AcquirePhase::Placing { namespace } => {
                    let namespace = namespace.clone();
                    self.placed(cx, call, namespace, answer)
                }
                AcquirePhase::Withdrawing { waits, cycle } => withdrawn(waits, cycle, &answer),
                AcquirePhase::Resolving | AcquirePhase::Searching { .. } => CallProgress::Wait,
            },
            CallEvent::FanoutResult(fanout_result) => {
                if let AcquirePhase::Searching { search, .. } = &mut call.phase {
                    for (owner, waits) in fanout_result.edges {
                        search.answer(&owner, Some(&waits.place), waits.owners);
                    }
                }
                self.search_on(cx, call)
            }
            CallEvent::Changed(_) => CallProgress::Wait,
        }
    }

    fn place(&mut self, cx: &mut CallContext, call: &mut AcquireCall) -> CallProgress {
        cx.start_over();
        if !self.coordinator.resolve.is_loaded() {
            self.await_table(cx, 0);
            return CallProgress::Wait;
        }
        let ClientRequest::Acquire(request) = &*call.request else {
            return CallProgress::fail(odd_answer());
        };
        let new = |state| move |one: &&tenure_core::command::Request| one.state == state;
        let taken = request.requests.iter().filter(new(RequestKind::New));
        let held = request.requests.iter().filter(new(RequestKind::Held));
        let others = held
            .map(|one| &one.path)
            .chain(request.releases.iter().map(|hold| &hold.path));
        let decisive = self.table().decisive(taken.map(|one| &one.path), others);
        let (route, group) = match decisive {
            Ok(Some(path)) => self.route(path),
            Ok(None) => {
                return CallProgress::ok(Answer::Acquire(AcquireAnswer::Granted {
                    namespace: None,
                    fence: None,
                }));
            }
            // The cached table may be outdated: refuse only after reading the current one.
            Err(_) if call.misses == 0 => {
                call.misses = 1;
                let newer = self.table().version() + 1;
                self.await_table(cx, newer);
                return CallProgress::Wait;
            }
            Err(unroutable) => {
                return CallProgress::fail(Failure::InvalidArgument(unroutable_text(&unroutable)));
            }
        };
        let placing = AcquirePhase::Placing {
            namespace: route.namespace.clone(),
        };
        let command = Acquire {
            route,
            owner: request.owner.clone(),
            ttl: request.ttl,
            queue_ttl: request.queue_ttl,
            requests: request.requests.clone(),
            releases: request.releases.clone(),
            fence: request.fence,
            key: request.key.clone(),
            wait: request.wait,
            holder: request.holder.clone().map(Box::new),
        };
        let quota = self.coordinator.auth.quota(&command);
        let command = match quota {
            Some(quota) => Command::AcquireWithin(Box::new(AcquireWithin {
                acquire: command,
                quota,
            })),
            None => Command::Acquire(command),
        };
        call.phase = placing;
        self.ask(cx, group, GroupOp::Command(command));
        CallProgress::Wait
    }

    fn placed(
        &mut self,
        cx: &mut CallContext,
        call: &mut AcquireCall,
        namespace: Namespace,
        answer: GroupOpResult,
    ) -> CallProgress {
        if let Some(failure) = failure_of(&answer) {
            return CallProgress::fail(failure);
        }
        let GroupOpResult::Applied {
            outcome: Outcome::Acquire(outcome),
            lease_left_ms,
        } = answer
        else {
            return CallProgress::fail(odd_answer());
        };
        let answer = match outcome {
            AcquireOutcome::Granted { fence } => AcquireAnswer::Granted {
                namespace: Some(namespace),
                fence,
            },
            AcquireOutcome::Queued(queued) if call.deadlock == Deadlock::Refuse => {
                let ClientRequest::Acquire(AcquireRequest { owner, .. }) = &*call.request else {
                    return CallProgress::fail(odd_answer());
                };
                call.phase = AcquirePhase::Searching {
                    search: Box::new(Search::new(owner.clone())),
                    waits: Box::new(QueuedWait {
                        namespace,
                        queued,
                        lease_left_ms,
                    }),
                };
                return self.search_on(cx, call);
            }
            AcquireOutcome::Queued(queued) => queued_answer(*queued, lease_left_ms),
            AcquireOutcome::Conflict(conflict) => AcquireAnswer::Conflict {
                conflict,
                lease_left_ms,
                deadlock: Vec::new(),
            },
            AcquireOutcome::Lost { path, missing } => AcquireAnswer::Lost { path, missing },
            AcquireOutcome::Refused(refusal) => return self.tried(cx, call, refusal),
        };
        CallProgress::ok(Answer::Acquire(answer))
    }

    /// Resolves again after the first miss (R32). A second miss fails, without an effect.
    fn tried(
        &mut self,
        cx: &mut CallContext,
        call: &mut AcquireCall,
        refusal: Refusal,
    ) -> CallProgress {
        if let Refusal::Quota {
            scope,
            limit,
            value,
        } = refusal
        {
            return CallProgress::fail(over_quota(call, scope, limit, value));
        }
        if let Some(failure) = refused(refusal) {
            return CallProgress::fail(failure);
        }
        call.phase = AcquirePhase::Resolving;
        match refusal {
            Refusal::Outdated { version } => {
                call.misses += 1;
                if call.misses > 1 {
                    return CallProgress::fail(Failure::Aborted);
                }
                self.await_table(cx, version);
            }
            _ => self.set_timer(cx, FROZEN_RETRY_MS),
        }
        CallProgress::Wait
    }

    fn search_on(&mut self, cx: &mut CallContext, call: &mut AcquireCall) -> CallProgress {
        let ClientRequest::Acquire(AcquireRequest { owner, .. }) = &*call.request else {
            return CallProgress::fail(odd_answer());
        };
        let owner = owner.clone();
        let phase = std::mem::replace(&mut call.phase, AcquirePhase::Resolving);
        let AcquirePhase::Searching { waits, mut search } = phase else {
            call.phase = phase;
            return CallProgress::Wait;
        };
        let round = search.round();
        if let Some(cycle) = search.cycle() {
            let cycle = cycle.to_vec();
            let group = self.group_of(&waits.namespace);
            let command = Command::Withdraw(Withdraw {
                namespace: waits.namespace.clone(),
                owner,
                waiter: waits.queued.waiter,
            });
            call.phase = AcquirePhase::Withdrawing { waits, cycle };
            self.ask(cx, group, GroupOp::Command(command));
            return CallProgress::Wait;
        }
        if round.is_empty() {
            let answer = queued_answer(*waits.queued, waits.lease_left_ms);
            return CallProgress::ok(Answer::Acquire(answer));
        }
        call.phase = AcquirePhase::Searching { waits, search };
        self.fanout(
            cx,
            Fanout::about(owner, FanoutOp::WaitsFor { owners: round }),
            FanoutScope::All,
        );
        CallProgress::Wait
    }
}

/// Words the refusal of an acquire that would exceed a quota: whose, which, and who raises it.
fn over_quota(call: &AcquireCall, scope: QuotaScope, limit: LimitKind, value: u64) -> Failure {
    let (ClientRequest::Acquire(request), AcquirePhase::Placing { namespace }) =
        (&*call.request, &call.phase)
    else {
        return odd_answer();
    };
    let (whose, of) = match scope {
        QuotaScope::Own => {
            let principal = scope_of(request.owner.as_str()).unwrap_or("anonymous");
            (principal.to_owned(), principal)
        }
        QuotaScope::Total => ("all principals together".to_owned(), "total"),
    };
    let what = match limit {
        LimitKind::Paths => "held and waiting paths",
        LimitKind::Waiting => "waiting paths",
        _ => "owners",
    };
    let name = limit.name();
    let place = tenure_core::text::shell_quoted(namespace.as_str());
    Failure::OverQuota {
        limit,
        text: format!(
            "the quota `{name}` is used up: {whose} may have {value} {what} in {}: release some, or an administrator raises it with `tenure auth limit {of} {name}=NUMBER {place}`",
            namespace.as_str().escape_debug(),
        ),
    }
}

fn queued_answer(queued: Queued, lease_left_ms: Option<u64>) -> AcquireAnswer {
    AcquireAnswer::Queued {
        conflict: Box::new(queued.conflict),
        lease_left_ms,
        fence: queued.fence,
        position: queued.position,
    }
}

fn withdrawn(
    waits: &QueuedWait,
    cycle: &[tenure_core::value::OwnerId],
    answer: &GroupOpResult,
) -> CallProgress {
    if let Some(failure) = failure_of(answer) {
        // The waiter may still be queued, or was granted.
        return CallProgress::fail(with_effects(failure));
    }
    let GroupOpResult::Applied {
        outcome: Outcome::Withdraw(withdrawn),
        ..
    } = answer
    else {
        return CallProgress::fail(odd_answer());
    };
    CallProgress::ok(Answer::Acquire(match withdrawn {
        Withdrawn::Granted { fence } => AcquireAnswer::Granted {
            namespace: Some(waits.namespace.clone()),
            fence: *fence,
        },
        Withdrawn::Withdrawn | Withdrawn::Gone => AcquireAnswer::Conflict {
            conflict: Box::new(waits.queued.conflict.clone()),
            lease_left_ms: waits.lease_left_ms,
            deadlock: cycle.to_vec(),
        },
    }))
}

fn unroutable_text(unroutable: &Unroutable) -> String {
    match unroutable {
        Unroutable::TooShort(path) => too_short(path),
        Unroutable::Apart { first, other } => format!(
            "all paths of one acquire must be in one namespace: {} is in {}, {} is in {}",
            first.0, first.1, other.0, other.1
        ),
    }
}

fn too_short(path: &Path) -> String {
    format!("{path} has fewer segments than routing_prefix_segments: lock a path below it")
}
