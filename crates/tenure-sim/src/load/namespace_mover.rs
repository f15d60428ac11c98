//! Namespace mover: an administrator that moves paths of the retry clients and of the asserting
//! clients to a namespace of their own and back.
//!
//! It gives every change a key and sends it to several nodes. There are two of them, and their
//! changes overlap.

use tenure_core::path::Namespace;
use tenure_core::policy::Algorithm;
use tenure_core::value::Key;
use tenure_node::{Answer, ClientRequest, Failure};

use super::asserting_client::MOVING;
use super::{Action, ClientContext, Env};
use crate::check::ClientCall;
use crate::time::{MILLISECOND, SECOND, SimTime};

/// How often a change is sent before the client gives it up.
const COPIES: u32 = 5;

/// State of a namespace mover.
#[derive(Default)]
pub(super) struct NamespaceMover {
    keys: u64,
    change: Option<PendingMove>,
    next: SimTime,
}

struct PendingMove {
    request: ClientRequest,
    copies: u32,
    ids: Vec<u64>,
}

impl NamespaceMover {
    pub(super) fn wake(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if env.now >= self.next {
            self.act(env, me);
        }
        env.actions
            .push(Action::Wake(self.next.max(env.now + MILLISECOND)));
    }

    fn act(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if !env.fault_phase && self.change.is_none() {
            // No new changes in the convergence phase.
            self.next = env.now + 10 * SECOND;
            return;
        }
        if self.change.is_none() {
            self.keys += 1;
            let key = Key::new(&format!("m{}-{}", me.at, self.keys));
            let key = key.ok().flatten();
            let name = me.random.pick(&MOVING);
            let namespace = Namespace::parse(name).expect("a namespace of ours");
            let request = if me.random.chance(500) {
                ClientRequest::SetNamespacePolicy {
                    namespace,
                    // The algorithm that is in effect already: paths move, and no holds are dropped
                    // (R133 route changes need drained paths).
                    algorithm: Algorithm::RecursiveRw,
                    key,
                }
            } else {
                ClientRequest::DeleteNamespacePolicy { namespace, key }
            };
            self.change = Some(PendingMove {
                request,
                copies: 0,
                ids: Vec::new(),
            });
        }
        let Some(change) = &mut self.change else {
            return;
        };
        if change.copies >= COPIES {
            self.change = None;
            self.next = env.now + SECOND;
            return;
        }
        change.copies += 1;
        let id = me.ask(env, change.request.clone(), None, 5_000);
        change.ids.push(id);
        let pause = me.random.pick(&[5, 100, 2_000]);
        self.next = env.now + me.random.between(1, pause) * MILLISECOND;
        if change.copies >= COPIES {
            self.next = env.now + 6 * SECOND;
        }
    }

    pub(super) fn answered(
        &mut self,
        env: &mut Env<'_>,
        me: &mut ClientContext<'_>,
        ask: &ClientCall,
        answer: &Result<Answer, Failure>,
    ) {
        let over = matches!(answer, Ok(_) | Err(Failure::FailedPrecondition(_)));
        let mine = self.change.as_ref();
        if over && mine.is_some_and(|change| change.ids.contains(&ask.id)) {
            self.change = None;
            self.next = env.now + me.random.between(10, 3_000) * MILLISECOND;
            env.actions.push(Action::Wake(self.next));
        }
    }
}
