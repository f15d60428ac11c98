//! Clients that only look: what they read must fit into one history.

use tenure_core::path::Namespace;
use tenure_core::value::{Key, OwnerId};
use tenure_node::{Answer, ClientRequest, Failure};

use super::{Action, Env, Me, PATHS, path};
use crate::check::Ask;
use crate::time::{MILLISECOND, SECOND, Time};

/// See the module.
#[derive(Default)]
pub(super) struct Observer {
    waits_until: Time,
    /// A holder it saw, to ask about.
    seen: Option<OwnerId>,
    /// A keyed call that may be repeated.
    keyed: Option<(ClientRequest, Time)>,
}

impl Observer {
    pub(super) fn wake(&mut self, env: &mut Env<'_>, me: &mut Me<'_>) {
        if env.now < self.waits_until {
            return;
        }
        let which = me.random.pick(&PATHS);
        let mut first_sent = None;
        let request = match (me.random.below(10), &self.seen) {
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
            (2, Some(owner)) => ClientRequest::IsOwnerAlive {
                owner: owner.clone(),
                domains: Vec::new(),
            },
            (3, Some(owner)) => ClientRequest::ListOwnerLocks {
                owner: owner.clone(),
                domains: Vec::new(),
            },
            (4, Some(owner)) if me.random.chance(100) => ClientRequest::ForceRelease {
                victim: owner.clone(),
                key: None,
            },
            _ => ClientRequest::InspectPath { path: path(which) },
        };
        me.ask(env, request, first_sent, 3_000);
        self.waits_until = env.now + 4 * SECOND;
        env.actions.push(Action::Wake(self.waits_until));
    }

    pub(super) fn answered(
        &mut self,
        env: &mut Env<'_>,
        me: &mut Me<'_>,
        ask: &Ask,
        answer: &Result<Answer, Failure>,
    ) {
        if let (ClientRequest::IncrFencingToken { .. }, Ok(_)) = (&*ask.request, answer)
            && me.random.chance(500)
        {
            self.keyed = None;
        }
        if let Ok(Answer::Inspect(found)) = answer {
            self.seen = found.writer.clone().or_else(|| self.seen.take());
        }
        self.waits_until = env.now + me.random.between(20, 800) * MILLISECOND;
        env.actions.push(Action::Wake(self.waits_until));
    }
}
