//! Watch client: watches one handler, and restarts the watch from time to time.

use tenure_core::path::Namespace;

use super::{Action, ClientContext, Env};
use crate::time::{SECOND, SimTime};

/// State of a watch client.
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
        // A watch is restarted every 5 to 25 s, because its node may be gone without a notice.
        self.next = env.now + me.random.between(5 * SECOND, 25 * SECOND);
        env.actions.push(Action::Watch {
            prefix: self.prefix.clone(),
        });
        env.actions.push(Action::Wake(self.next));
    }

    /// The node closed the stream: restarts it soon.
    pub(super) fn closed(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        self.next = env.now + me.random.between(SECOND / 10, 2 * SECOND);
        env.actions.push(Action::Wake(self.next));
    }
}
