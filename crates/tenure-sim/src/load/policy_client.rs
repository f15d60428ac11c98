//! Policy client: changes namespace policies one after the other, with and without a change of
//! route, and repeats each until its result is known.

use tenure_core::path::Namespace;
use tenure_core::policy::Algorithm;
use tenure_node::{Answer, ClientRequest, Failure};

use super::{Action, ClientContext, Env};
use crate::check::ClientCall;
use crate::time::{SECOND, SimTime};

/// State of the policy client.
#[derive(Default)]
pub(super) struct PolicyClient {
    waits_until: SimTime,
    /// The change that has not succeeded yet.
    wanted: Option<ClientRequest>,
    /// Whether the semaphore namespace exists.
    semaphores: bool,
}

impl PolicyClient {
    pub(super) fn wake(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if env.now < self.waits_until {
            return;
        }
        if !env.fault_phase && self.wanted.is_none() {
            // No new changes in the convergence phase.
            env.actions.push(Action::Wake(env.now + 10 * SECOND));
            return;
        }
        let request = self.wanted.get_or_insert_with(|| {
            if !self.semaphores {
                return set("s:/0", Algorithm::Semaphore);
            }
            match me.random.below(4) {
                0 => set(
                    "p:/0",
                    me.random.pick(&[
                        Algorithm::RecursiveRw,
                        Algorithm::PointRw,
                        Algorithm::PointWrite,
                    ]),
                ),
                1 => set("q:/a/b", Algorithm::RecursiveRw),
                2 => ClientRequest::DeleteNamespacePolicy {
                    namespace: namespace("q:/a/b"),
                    key: None,
                },
                _ => set("p:/0", Algorithm::RecursiveRw),
            }
        });
        let request = request.clone();
        me.ask(env, request, None, 8_000);
        // Calls time out after 8 s. After 25 s no copy of this call is under way any more.
        self.waits_until = env.now + 25 * SECOND;
        env.actions.push(Action::Wake(self.waits_until));
    }

    pub(super) fn answered(
        &mut self,
        env: &mut Env<'_>,
        me: &mut ClientContext<'_>,
        ask: &ClientCall,
        answer: &Result<Answer, Failure>,
    ) {
        match answer {
            Ok(_) => {
                if let ClientRequest::SetNamespacePolicy {
                    algorithm: Algorithm::Semaphore,
                    ..
                } = &*ask.request
                {
                    self.semaphores = true;
                }
                self.wanted = None;
            }
            Err(Failure::FailedPrecondition(_)) => {
                self.wanted = None;
            }
            Err(_) => return,
        }
        let most = env.plan.habits.policy_pause;
        self.waits_until = env.now + me.random.between(most / 10, most);
        env.actions.push(Action::Wake(self.waits_until));
    }
}

fn namespace(name: &str) -> Namespace {
    Namespace::parse(name).expect("a namespace of ours")
}

fn set(name: &str, algorithm: Algorithm) -> ClientRequest {
    ClientRequest::SetNamespacePolicy {
        namespace: namespace(name),
        algorithm,
        key: None,
    }
}
