//! Observers: clients that mostly read. All their reads must fit into one linear history.

use tenure_core::path::{Namespace, Path};
use tenure_core::value::{Fence, Key, OwnerId};
use tenure_node::{Answer, ClientRequest, Failure};

use super::{Action, ClientContext, Env, modes, path};
use crate::check::ClientCall;
use crate::time::{MILLISECOND, SECOND, SimTime};

/// State of an observer.
#[derive(Default)]
pub(super) struct Observer {
    waits_until: SimTime,
    /// A holder that it saw, for later queries.
    seen: Option<ObservedHold>,
    /// A keyed call that may be repeated, and when it was first sent.
    keyed: Option<(ClientRequest, SimTime)>,
}

/// A writer, its path and its fence.
#[derive(Clone)]
struct ObservedHold {
    owner: OwnerId,
    path: Path,
    fence: Option<Fence>,
}

impl Observer {
    pub(super) fn wake(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if env.now < self.waits_until {
            return;
        }
        self.look(env, me);
        self.waits_until = env.now + 4 * SECOND;
        env.actions.push(Action::Wake(self.waits_until));
    }

    /// Sends a query, even if an answer is still pending.
    pub(super) fn look(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let which = me.random.pick(env.plan.habits.paths);
        let mut first_sent = None;
        // 0 increments the global counter; 6 to 8 disturb a holder and are rare; the others read.
        let request = match (me.random.below(16), &self.seen) {
            (0, _) => {
                let (request, sent) = match self.keyed.take() {
                    Some(keyed) => keyed,
                    None => {
                        let text = format!("o{}-{}", me.at, me.random.next());
                        let key = Key::new(&text).ok().flatten();
                        (ClientRequest::IncrFencingToken { key }, env.now)
                    }
                };
                self.keyed = Some((request.clone(), sent));
                first_sent = Some(sent);
                request
            }
            (1, _) => {
                let name = me.random.pick(&["p:/0", "q:/a/b", "s:/0"]);
                let namespace = Namespace::parse(name).expect("a namespace of ours");
                ClientRequest::GetNamespacePolicy { namespace }
            }
            (2 | 3, Some(hold)) => ClientRequest::IsOwnerAlive {
                owner: hold.owner.clone(),
                domains: Vec::new(),
            },
            (4 | 5, Some(hold)) => ClientRequest::ListOwnerLocks {
                owner: hold.owner.clone(),
                domains: Vec::new(),
            },
            // Half of its owners hold a second path, so that their lease goes on.
            (7 | 11, Some(hold)) if hold.path.as_str() == "t:/2/a" && me.random.chance(500) => {
                ClientRequest::Break {
                    path: hold.path.clone(),
                    owner: hold.owner.clone(),
                    fence: hold.fence,
                }
            }
            (6, Some(hold)) if me.random.chance(100) => ClientRequest::ForceRelease {
                victim: hold.owner.clone(),
                key: None,
            },
            (7, Some(hold)) if me.random.chance(200) => ClientRequest::Break {
                path: hold.path.clone(),
                owner: hold.owner.clone(),
                fence: hold.fence,
            },
            (8, Some(hold)) if me.random.chance(300) => ClientRequest::RequestRevoke {
                owner: hold.owner.clone(),
            },
            (9 | 10, _) => {
                let path = path(which);
                ClientRequest::Explain {
                    mode: me.random.pick(modes(&path)),
                    path,
                    owner: OwnerId::new("nobody").expect("a short name"),
                }
            }
            _ => ClientRequest::InspectPath { path: path(which) },
        };
        me.ask(env, request, first_sent, 3_000);
    }

    pub(super) fn answered(
        &mut self,
        env: &mut Env<'_>,
        me: &mut ClientContext<'_>,
        ask: &ClientCall,
        answer: &Result<Answer, Failure>,
    ) {
        if let (ClientRequest::IncrFencingToken { .. }, Ok(_)) = (&*ask.request, answer)
            // Half of the answered calls are repeated all the same, with the same key.
            && me.random.chance(500)
        {
            self.keyed = None;
        }
        if let (ClientRequest::InspectPath { path }, Ok(Answer::Inspect(found))) =
            (&*ask.request, answer)
            && let Some(owner) = &found.writer
        {
            self.seen = Some(ObservedHold {
                owner: owner.clone(),
                path: path.clone(),
                fence: found.fence,
            });
        }
        self.waits_until = env.now + me.random.between(20, 800) * MILLISECOND;
        env.actions.push(Action::Wake(self.waits_until));
    }
}
