//! Asserting client: holds paths of several namespaces under one owner, and asserts them together.
//!
//! AssertFencing over several namespaces asks several groups. The client asks for paths that it holds
//! and for one that it never holds, while administrators move that one to another group. The checker
//! `assertions` compares the answers with the applied entries.

use tenure_core::command::{Request, RequestKind, WaitMode};
use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::value::{Fence, OwnerId, QueueTtl, Ttl};
use tenure_node::{AcquireRequest, Answer, ClientRequest, Deadlock, Failure};

use super::{Action, ClientContext, Env, path};
use crate::check::ClientCall;
use crate::time::{MILLISECOND, SimTime};

/// Namespaces that only asserting clients use. Every owner locks a path of its own in them.
const OWN: [&str; 4] = ["w:/0", "w:/1", "w:/2", "w:/3"];
/// Paths that administrators move between groups. Asserting clients never hold them.
pub(super) const MOVING: [&str; 6] = ["r:/0/x", "r:/0/x/y", "v:/0/x", "v:/1/x", "v:/2/x", "v:/3/x"];

/// State of an asserting client.
#[derive(Default)]
pub(super) struct AssertingClient {
    owners: u64,
    /// The fence of all holds of the present owner: the client supplies it, because an assertion over
    /// several namespaces names one.
    fence: u64,
    calls: u64,
    /// The paths that the present owner has acquired.
    paths: Vec<Path>,
    /// The paths that it could have acquired.
    others: Vec<Path>,
    next: SimTime,
}

impl AssertingClient {
    pub(super) fn wake(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if env.now >= self.next {
            self.act(env, me);
            self.next = env.now + me.random.between(5, 300) * MILLISECOND;
        }
        env.actions.push(Action::Wake(self.next));
    }

    /// Acquires its paths under a new owner, then asserts them a number of times. The leases run out
    /// meanwhile, so that answers of both kinds are right at times.
    fn act(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if self.calls == 0 {
            self.owners += 1;
            self.fence = env.now / MILLISECOND;
            self.calls = me.random.between(5, 25);
            let own = |name| path(&format!("{name}/{}-{}", me.at, self.owners));
            let all: Vec<Path> = OWN.into_iter().map(own).collect();
            (self.paths, self.others) = all.into_iter().partition(|_| me.random.chance(700));
            for path in self.paths.clone() {
                let request = self.acquire(me, path);
                me.ask(env, request, None, 2_000);
            }
            return;
        }
        self.calls -= 1;
        // Mostly paths that it holds, so that the moving path alone makes the assertion fail.
        let mut paths = self.paths.clone();
        if me.random.chance(100) {
            paths.extend(self.others.iter().cloned());
        }
        if me.random.chance(700) || paths.is_empty() {
            paths.push(path(me.random.pick(&MOVING)));
        }
        let request = ClientRequest::AssertFencing {
            owner: self.owner(me),
            fence: fence(self.fence),
            paths,
        };
        me.ask(env, request, None, 2_000);
    }

    fn owner(&self, me: &ClientContext<'_>) -> OwnerId {
        OwnerId::new(&format!("w{}-{}", me.at, self.owners)).expect("a short name")
    }

    fn acquire(&self, me: &mut ClientContext<'_>, path: Path) -> ClientRequest {
        ClientRequest::Acquire(AcquireRequest {
            owner: self.owner(me),
            ttl: Ttl::from_millis(me.random.pick(&[1_000, 4_000, 15_000]))
                .expect("a length of ours"),
            queue_ttl: QueueTtl::from_millis(1_000).expect("a length of ours"),
            requests: vec![Request {
                path,
                mode: Mode::Write,
                state: RequestKind::New,
                permits: None,
            }],
            releases: Vec::new(),
            fence: fence(self.fence),
            key: None,
            wait: WaitMode::No,
            holder: None,
            deadlock: Deadlock::Ignore,
        })
    }

    pub(super) fn answered(
        &mut self,
        env: &mut Env<'_>,
        _me: &mut ClientContext<'_>,
        _ask: &ClientCall,
        _answer: &Result<Answer, Failure>,
    ) {
        env.actions.push(Action::Wake(self.next.max(env.now)));
    }
}

fn fence(number: u64) -> Option<Fence> {
    let number = i64::try_from(number).ok()?;
    Fence::supplied(number).ok().flatten()
}
