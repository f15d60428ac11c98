//! Acquire: resolve, place it in its group, and where asked for look for a deadlock (E5).

use tenure_core::command::{Acquire, Command, RequestKind, Withdraw};
use tenure_core::deadlock::Search;
use tenure_core::namespace_table::Unroutable;
use tenure_core::outcome::{AcquireOutcome, Outcome, Queued, Refusal, Withdrawn};
use tenure_core::path::{Namespace, Path};

use super::sweep::{Scope, Sweep, What};
use super::{Context, Happened, Progress, failure_of, odd_answer, with_effects};
use crate::node::Node;
use crate::op::{Op, OpAnswer};
use crate::request::{AcquireAnswer, AcquireRequest, Answer, ClientRequest, Deadlock, Failure};

/// A request that meets a policy change under way looks again after this.
pub(super) const FROZEN_RETRY_MS: u64 = 20;

pub(super) struct AcquireCall {
    /// An acquire.
    request: Box<ClientRequest>,
    deadlock: Deadlock,
    /// How often it was resolved by a table that was too old.
    misses: u8,
    phase: Phase,
}

enum Phase {
    Resolving,
    Placing {
        namespace: Namespace,
    },
    Searching {
        waits: Box<Waits>,
        search: Box<Search>,
    },
    Withdrawing {
        waits: Box<Waits>,
        cycle: Vec<tenure_core::value::OwnerId>,
    },
}

/// A place in line that is being looked at.
struct Waits {
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
            phase: Phase::Resolving,
        }
    }

    pub(super) fn into_request(self) -> Box<ClientRequest> {
        self.request
    }
}

/// What a refusal of a space means to the client; `None` for those that are tried again.
pub(super) fn refused(refusal: Refusal) -> Option<Failure> {
    Some(match refusal {
        Refusal::Outdated { .. } | Refusal::Frozen { .. } | Refusal::Moved { .. } => return None,
        Refusal::KeyReused => Failure::InvalidArgument(
            "this idempotency key was used for a different request".to_owned(),
        ),
        Refusal::AnswersFull => Failure::answers_full(),
        Refusal::QueueFull => {
            Failure::ResourceExhausted("the queue of this namespace is full".to_owned())
        }
        Refusal::FencesUsedUp => {
            Failure::ResourceExhausted("no fencing token is left in this namespace".to_owned())
        }
    })
}

impl Node {
    pub(super) fn acquire(
        &mut self,
        cx: &mut Context,
        call: &mut AcquireCall,
        happened: Happened,
    ) -> Progress {
        match happened {
            Happened::Start | Happened::Table | Happened::Timer => self.place(cx, call),
            Happened::Op(answer) => match &call.phase {
                Phase::Placing { namespace } => {
                    let namespace = namespace.clone();
                    self.placed(cx, call, namespace, answer)
                }
                Phase::Withdrawing { waits, cycle } => withdrawn(waits, cycle, &answer),
                Phase::Resolving | Phase::Searching { .. } => Progress::Wait,
            },
            Happened::Swept(swept) => {
                if let Phase::Searching { search, .. } = &mut call.phase {
                    for (owner, waits) in swept.edges {
                        search.answer(&owner, Some(&waits.place), waits.owners);
                    }
                }
                self.search_on(cx, call)
            }
            Happened::Changed(_) => Progress::Wait,
        }
    }

    fn place(&mut self, cx: &mut Context, call: &mut AcquireCall) -> Progress {
        cx.start_over();
        if !self.span.resolve.is_loaded() {
            self.await_table(cx, 0);
            return Progress::Wait;
        }
        let ClientRequest::Acquire(request) = &*call.request else {
            return Progress::fail(odd_answer());
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
                return Progress::ok(Answer::Acquire(AcquireAnswer::Granted {
                    namespace: None,
                    fence: None,
                }));
            }
            // The copy may be old: whoever is refused has been refused by the true table.
            Err(_) if call.misses == 0 => {
                call.misses = 1;
                let newer = self.table().version() + 1;
                self.await_table(cx, newer);
                return Progress::Wait;
            }
            Err(unroutable) => {
                return Progress::fail(Failure::InvalidArgument(unroutable_text(&unroutable)));
            }
        };
        let placing = Phase::Placing {
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
        call.phase = placing;
        self.ask(cx, group, Op::Command(Command::Acquire(command)));
        Progress::Wait
    }

    fn placed(
        &mut self,
        cx: &mut Context,
        call: &mut AcquireCall,
        namespace: Namespace,
        answer: OpAnswer,
    ) -> Progress {
        if let Some(failure) = failure_of(&answer) {
            return Progress::fail(failure);
        }
        let OpAnswer::Applied {
            outcome: Outcome::Acquire(outcome),
            lease_left_ms,
        } = answer
        else {
            return Progress::fail(odd_answer());
        };
        let answer = match outcome {
            AcquireOutcome::Granted { fence } => AcquireAnswer::Granted {
                namespace: Some(namespace),
                fence,
            },
            AcquireOutcome::Queued(queued) if call.deadlock == Deadlock::Refuse => {
                let ClientRequest::Acquire(AcquireRequest { owner, .. }) = &*call.request else {
                    return Progress::fail(odd_answer());
                };
                call.phase = Phase::Searching {
                    search: Box::new(Search::new(owner.clone())),
                    waits: Box::new(Waits {
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
        Progress::ok(Answer::Acquire(answer))
    }

    /// R32: resolved anew, once; a second miss has no effect either.
    fn tried(&mut self, cx: &mut Context, call: &mut AcquireCall, refusal: Refusal) -> Progress {
        if let Some(failure) = refused(refusal) {
            return Progress::fail(failure);
        }
        call.phase = Phase::Resolving;
        match refusal {
            Refusal::Outdated { version } => {
                call.misses += 1;
                if call.misses > 1 {
                    return Progress::fail(Failure::Aborted);
                }
                self.await_table(cx, version);
            }
            _ => self.set_timer(cx, FROZEN_RETRY_MS),
        }
        Progress::Wait
    }

    fn search_on(&mut self, cx: &mut Context, call: &mut AcquireCall) -> Progress {
        let ClientRequest::Acquire(AcquireRequest { owner, .. }) = &*call.request else {
            return Progress::fail(odd_answer());
        };
        let owner = owner.clone();
        let phase = std::mem::replace(&mut call.phase, Phase::Resolving);
        let Phase::Searching { waits, mut search } = phase else {
            call.phase = phase;
            return Progress::Wait;
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
            call.phase = Phase::Withdrawing { waits, cycle };
            self.ask(cx, group, Op::Command(command));
            return Progress::Wait;
        }
        if round.is_empty() {
            let answer = queued_answer(*waits.queued, waits.lease_left_ms);
            return Progress::ok(Answer::Acquire(answer));
        }
        call.phase = Phase::Searching { waits, search };
        self.sweep(
            cx,
            Sweep::about(owner, What::WaitsFor { owners: round }),
            Scope::All,
        );
        Progress::Wait
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

fn withdrawn(waits: &Waits, cycle: &[tenure_core::value::OwnerId], answer: &OpAnswer) -> Progress {
    if let Some(failure) = failure_of(answer) {
        // The place in line is still there, or was granted.
        return Progress::fail(with_effects(failure));
    }
    let OpAnswer::Applied {
        outcome: Outcome::Withdraw(withdrawn),
        ..
    } = answer
    else {
        return Progress::fail(odd_answer());
    };
    Progress::ok(Answer::Acquire(match withdrawn {
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
            "all paths of one acquire must lie in one namespace: {} is in {}, {} is in {}",
            first.0, first.1, other.0, other.1
        ),
    }
}

fn too_short(path: &Path) -> String {
    format!("{path} has fewer segments than the routing prefix: lock something below it")
}
