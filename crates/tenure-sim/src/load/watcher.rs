//! A client that watches one handler: now and then it hangs up and begins again.

use tenure_core::path::Namespace;

use super::{Action, ClientContext, Env};
use crate::time::{SECOND, SimTime};

/// See the module.
pub(super) struct Watcher {
    prefix: Namespace,
    next: SimTime,
}

impl Watcher {
    pub(super) fn new(handler: &str) -> Watcher {
        Watcher {
            prefix: Namespace::parse(handler).expect("a handler of ours"),
            next: 0,
        }
    }

    pub(super) fn wake(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if env.now < self.next {
            return;
        }
        // Its node may be gone without a word: a connection says so, but not always.
        self.next = env.now + me.random.between(5 * SECOND, 25 * SECOND);
        env.actions.push(Action::Watch {
            prefix: self.prefix.clone(),
        });
        env.actions.push(Action::Wake(self.next));
    }

    /// The stream was closed: it must begin again.
    pub(super) fn closed(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        self.next = env.now + me.random.between(SECOND / 10, 2 * SECOND);
        env.actions.push(Action::Wake(self.next));
    }
}
