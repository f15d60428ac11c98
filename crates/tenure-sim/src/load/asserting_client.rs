//! Asserting client: holds paths of several namespaces under one owner, and asserts them together.
//!
//! AssertFencing over several namespaces asks several groups. The client asks for paths that it holds
//! and for one that it never holds, while administrators move that one to another group. The checker
//! `assertions` compares the answers with the applied entries.

use tenure_core::command::{Request, RequestKind, WaitMode};
use tenure_core::policy::Mode;
use tenure_core::value::{Fence, OwnerId, QueueTtl, Ttl};
use tenure_node::{AcquireRequest, Answer, ClientRequest, Deadlock, Failure};

use super::{Action, ClientContext, Env, path};
use crate::check::ClientCall;
use crate::time::{MILLISECOND, SimTime};

/// Paths that only asserting clients lock, each in a namespace of its own.
const OWN: [&str; 4] = ["w:/0/a", "w:/1/a", "w:/2/a", "w:/3/a"];
/// Paths that administrators move. Asserting clients never hold them.
const MOVING: [&str; 2] = ["r:/0/x", "r:/0/x/y"];

/// State of an asserting client.
#[derive(Default)]
pub(super) struct AssertingClient {
    owners: u64,
    /// The fence of all holds of the present owner: the client supplies it, because an assertion over
    /// several namespaces names one.
    fence: u64,
    calls: u64,
    /// The paths that the present owner has acquired.
    paths: Vec<&'static str>,
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
            self.paths = OWN.into_iter().filter(|_| me.random.chance(700)).collect();
            for name in self.paths.clone() {
                let request = self.acquire(me, name);
                me.ask(env, request, None, 2_000);
            }
            return;
        }
        self.calls -= 1;
        // Mostly paths that it holds, so that the moving path alone makes the assertion fail.
        let mut paths = self.paths.clone();
        if me.random.chance(200) {
            paths = OWN.into_iter().filter(|_| me.random.chance(600)).collect();
        }
        if me.random.chance(700) || paths.is_empty() {
            paths.push(me.random.pick(&MOVING));
        }
        let request = ClientRequest::AssertFencing {
            owner: self.owner(me),
            fence: fence(self.fence),
            paths: paths.into_iter().map(path).collect(),
        };
        me.ask(env, request, None, 2_000);
    }

    fn owner(&self, me: &ClientContext<'_>) -> OwnerId {
        OwnerId::new(&format!("w{}-{}", me.at, self.owners)).expect("a short name")
    }

    fn acquire(&self, me: &mut ClientContext<'_>, name: &str) -> ClientRequest {
        ClientRequest::Acquire(AcquireRequest {
            owner: self.owner(me),
            ttl: Ttl::from_millis(me.random.pick(&[1_000, 4_000, 15_000]))
                .expect("a length of ours"),
            queue_ttl: QueueTtl::from_millis(1_000).expect("a length of ours"),
            requests: vec![Request {
                path: path(name),
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
