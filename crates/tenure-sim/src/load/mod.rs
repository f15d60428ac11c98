//! Load: simulated clients and a fenced store.
//!
//! Lock clients, observers, watchers, policy clients and retry clients. A client knows only its own
//! clock and the messages that it receives. What happens to it becomes a
//! [`Fact`](crate::check::Fact) for the checkers; what it wants to do becomes an [`Action`] for the
//! simulator.

mod asserting_client;
mod fenced_store;
mod lock_client;
mod namespace_mover;
mod nested_lock_client;
mod observer;
mod policy_client;
mod retry_client;
mod watcher;

use std::collections::BTreeMap;

use tenure_core::event::Event;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Mode;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest, Failure};

use crate::check::{Checkers, ClientCall, Fact};
use crate::counts::Counts;
use crate::plan::RunPlan;
use crate::random::SimRng;
use crate::time::SimTime;
use crate::trace::Trace;

pub(crate) use fenced_store::{FencedStore, StoreWrite};

/// An action that a client requests from the simulator.
pub(crate) enum Action {
    Wake(SimTime),
    Ask {
        ask: u64,
        request: Box<ClientRequest>,
        timeout_ms: u64,
    },
    Subscribe {
        owner: OwnerId,
    },
    Unsubscribe {
        owner: OwnerId,
    },
    /// Starts a watch. It replaces the earlier watch of this client.
    Watch {
        prefix: Namespace,
    },
    Store {
        write: StoreWrite,
        delay: SimTime,
    },
}

/// What a client can access while it acts.
pub(crate) struct Env<'a> {
    pub(crate) now: SimTime,
    pub(crate) plan: &'a RunPlan,
    pub(crate) checkers: &'a mut Checkers,
    pub(crate) trace: &'a mut Trace,
    pub(crate) counts: &'a mut Counts,
    pub(crate) actions: Vec<Action>,
    pub(crate) fault_phase: bool,
    /// Which checkers see the facts of this client.
    pub(crate) seen_by: SeenBy,
}

/// Which checkers see the facts of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeenBy {
    /// All checkers.
    All,
    /// The checkers that allow an owner to be reused and policies to be changed concurrently.
    Few,
}

impl Env<'_> {
    fn fact(&mut self, fact: &Fact<'_>) {
        match self.seen_by {
            SeenBy::All => self.checkers.see(self.now, fact),
            SeenBy::Few => self.checkers.see_few(self.now, fact),
        }
    }

    fn ask(&mut self, client: usize, ask: &ClientCall, timeout_ms: u64) {
        self.counts.asks += 1;
        self.trace.say(
            self.now,
            format_args!("client {client}"),
            format_args!("asks #{} {}", ask.id, RequestSummary(&ask.request)),
        );
        self.fact(&Fact::Asked(ask));
        let request = ask.request.clone();
        self.actions.push(Action::Ask {
            ask: ask.id,
            request,
            timeout_ms,
        });
    }

    fn answered(&mut self, client: usize, ask: &ClientCall, answer: &Result<Answer, Failure>) {
        self.counts.answers += 1;
        self.trace.say(
            self.now,
            format_args!("client {client}"),
            format_args!("gets #{} {answer:?}", ask.id),
        );
        self.fact(&Fact::Answered(ask, answer));
    }
}

/// Client behaviour in this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientHabits {
    /// Paths that clients lock and read.
    pub(crate) paths: &'static [&'static str],
    /// Per mille of holds that are short.
    pub(crate) quick: u64,
    /// Longest pause between two sessions of a lock client, in milliseconds.
    pub(crate) rest_ms: u64,
    /// Per mille of leases that the client does not renew in time, and then renews or acquires
    /// again at about their end.
    pub(crate) brink: u64,
    /// Per mille of events that arrive seconds late.
    pub(crate) late_events: u64,
    /// Number of clients that hold one lock while they wait for the next.
    pub(crate) nested_lock_clients: usize,
    /// Number of clients that reuse one owner and send every call several times.
    pub(crate) repeaters: usize,
    /// Number of administrators that move the paths of the retry clients between namespaces.
    pub(crate) changers: usize,
    /// Number of clients that assert holds of several namespaces in one call.
    pub(crate) asserters: usize,
    /// Longest pause between two changes of the policy client.
    pub(crate) policy_pause: SimTime,
    /// Per mille of renewals without domains, which concern all groups.
    pub(crate) wide: u64,
}

/// Shows a request in one line of the trace.
struct RequestSummary<'a>(&'a ClientRequest);

impl std::fmt::Display for RequestSummary<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            ClientRequest::Acquire(acquire) => {
                write!(
                    out,
                    "acquire {} ttl {}",
                    acquire.owner,
                    acquire.ttl.millis()
                )?;
                for one in &acquire.requests {
                    write!(out, " {} {:?}", one.path, one.mode)?;
                }
                match &acquire.key {
                    Some(key) => write!(out, " key {}", key.as_str()),
                    None => Ok(()),
                }
            }
            ClientRequest::Release(release) => write!(out, "release {}", release.owner),
            ClientRequest::Renew { owner, ttl, .. } => {
                write!(out, "renew {owner} ttl {}", ttl.millis())
            }
            other => write!(out, "{other:?}"),
        }
    }
}

/// A simulated client of one role.
pub(crate) struct SimClient {
    at: usize,
    random: SimRng,
    paused_until: SimTime,
    dead_until: SimTime,
    /// Its scheduled wake-ups: how many there are for each time.
    wakes: BTreeMap<SimTime, u32>,
    /// Whether it is dead for good.
    pub(crate) retired: bool,
    role: ClientRole,
    /// Calls whose answer is pending, of this session or earlier ones.
    asks: Vec<ClientCall>,
    next_ask: u64,
}

enum ClientRole {
    Locker(Box<lock_client::LockClient>),
    Observer(observer::Observer),
    Admin(policy_client::PolicyClient),
    Watcher(watcher::Watcher),
    NestedLock(nested_lock_client::NestedLockClient),
    Repeater(retry_client::RetryClient),
    Changer(namespace_mover::NamespaceMover),
    Asserter(asserting_client::AssertingClient),
}

impl ClientRole {
    fn seen_by(&self) -> SeenBy {
        match self {
            ClientRole::Repeater(_) | ClientRole::Changer(_) | ClientRole::Asserter(_) => {
                SeenBy::Few
            }
            _ => SeenBy::All,
        }
    }
}

impl SimClient {
    pub(crate) fn all(plan: &RunPlan, random: &mut SimRng) -> Vec<SimClient> {
        let mut clients = Vec::new();
        let mut add = |role: ClientRole, random: &mut SimRng| {
            let at = clients.len();
            clients.push(SimClient {
                at,
                random: random.split(),
                paused_until: 0,
                dead_until: 0,
                wakes: BTreeMap::new(),
                retired: false,
                role,
                asks: Vec::new(),
                // Ranges of call numbers that do not overlap: numbers are unique in a run.
                next_ask: (at as u64 + 1) * 1_000_000,
            });
        };
        add(
            ClientRole::Admin(policy_client::PolicyClient::default()),
            random,
        );
        for _ in 0..plan.clients {
            let clock = random.between(905, 1095);
            add(
                ClientRole::Locker(Box::new(lock_client::LockClient::new(clock))),
                random,
            );
        }
        for _ in 0..plan.observers {
            add(ClientRole::Observer(observer::Observer::default()), random);
        }
        for _ in 0..plan.habits.nested_lock_clients {
            add(
                ClientRole::NestedLock(nested_lock_client::NestedLockClient::default()),
                random,
            );
        }
        // One watcher per handler with fixed policies, and one with another handler.
        for handler in ["t", "u", random.pick(&["p", "q", "s"])] {
            add(ClientRole::Watcher(watcher::Watcher::new(handler)), random);
        }
        for _ in 0..plan.habits.repeaters {
            let clock = random.between(905, 1095);
            add(
                ClientRole::Repeater(retry_client::RetryClient::new(clock)),
                random,
            );
        }
        for _ in 0..plan.habits.changers {
            add(
                ClientRole::Changer(namespace_mover::NamespaceMover::default()),
                random,
            );
        }
        for _ in 0..plan.habits.asserters {
            let asserter = asserting_client::AssertingClient::default();
            add(ClientRole::Asserter(asserter), random);
        }
        clients
    }

    /// Kills the client for good, unless it is a watcher.
    pub(crate) fn retire(&mut self) {
        self.retired = !matches!(self.role, ClientRole::Watcher(_));
    }

    pub(crate) fn pause(&mut self, until: SimTime) {
        self.paused_until = self.paused_until.max(until);
    }

    /// Kills the client until a time. It forgets everything; its owners' leases run out.
    pub(crate) fn die(&mut self, until: SimTime) {
        if let ClientRole::Locker(locker) = &mut self.role {
            self.dead_until = until;
            locker.die();
        }
    }

    /// Whether this is a lock client.
    pub(crate) fn is_locker(&self) -> bool {
        matches!(self.role, ClientRole::Locker(_))
    }

    /// Returns the number of locks that it got since the last call, plus one if it holds one now.
    pub(crate) fn take_grants(&mut self) -> u64 {
        match &mut self.role {
            ClientRole::Locker(locker) => std::mem::take(&mut locker.grants) + locker.holds(),
            _ => 0,
        }
    }

    /// Records that it wants to wake at a time. Returns false if enough wake-ups are scheduled for
    /// that time: every answer asks for the next deadline anew, so the wake-ups of a client would
    /// multiply. Two are enough: at the second it does what its first action has made due.
    pub(crate) fn wants_wake(&mut self, when: SimTime) -> bool {
        let scheduled = self.wakes.entry(when).or_default();
        *scheduled += 1;
        *scheduled <= 2
    }

    /// One of its wake-ups happens now.
    pub(crate) fn wakes_now(&mut self, now: SimTime) {
        self.wakes.remove(&now);
    }

    fn absent(&self, now: SimTime) -> bool {
        now < self.paused_until || now < self.dead_until
    }

    pub(crate) fn wake(&mut self, env: &mut Env<'_>) {
        env.seen_by = self.role.seen_by();
        if self.retired {
            return;
        }
        let absent_until = self.paused_until.max(self.dead_until);
        if env.now < absent_until {
            env.actions.push(Action::Wake(absent_until));
            return;
        }
        let mut me = ClientContext {
            at: self.at,
            random: &mut self.random,
            asks: &mut self.asks,
            next_ask: &mut self.next_ask,
        };
        match &mut self.role {
            ClientRole::Locker(locker) => locker.wake(env, &mut me),
            ClientRole::Observer(observer) => observer.wake(env, &mut me),
            ClientRole::Admin(admin) => admin.wake(env, &mut me),
            ClientRole::Watcher(watcher) => watcher.wake(env, &mut me),
            ClientRole::NestedLock(nested_lock_client) => nested_lock_client.wake(env, &mut me),
            ClientRole::Repeater(repeater) => repeater.wake(env, &mut me),
            ClientRole::Changer(changer) => changer.wake(env, &mut me),
            ClientRole::Asserter(asserter) => asserter.wake(env, &mut me),
        }
    }

    /// Sends a read at once, if this client is an observer.
    pub(crate) fn rush(&mut self, env: &mut Env<'_>) {
        if let ClientRole::Observer(observer) = &mut self.role
            && !self.retired
        {
            let mut me = ClientContext {
                at: self.at,
                random: &mut self.random,
                asks: &mut self.asks,
                next_ask: &mut self.next_ask,
            };
            observer.look(env, &mut me);
        }
    }

    pub(crate) fn answered(
        &mut self,
        env: &mut Env<'_>,
        ask: u64,
        answer: &Result<Answer, Failure>,
    ) {
        if self.absent(env.now) && !self.retired {
            // A paused client would read the answer when it resumes, a dead one never. Here both
            // lose it, which is harder for the cluster.
            return;
        }
        let Some(place) = self.asks.iter().position(|one| one.id == ask) else {
            return;
        };
        let ask = self.asks.swap_remove(place);
        env.seen_by = self.role.seen_by();
        env.answered(self.at, &ask, answer);
        if self.retired {
            return;
        }
        let mut me = ClientContext {
            at: self.at,
            random: &mut self.random,
            asks: &mut self.asks,
            next_ask: &mut self.next_ask,
        };
        match &mut self.role {
            ClientRole::Locker(locker) => locker.answered(env, &mut me, &ask, answer),
            ClientRole::Observer(observer) => observer.answered(env, &mut me, &ask, answer),
            ClientRole::Admin(admin) => admin.answered(env, &mut me, &ask, answer),
            ClientRole::NestedLock(nested_lock_client) => {
                nested_lock_client.answered(env, &mut me, &ask, answer)
            }
            ClientRole::Repeater(repeater) => repeater.answered(env, &mut me, &ask, answer),
            ClientRole::Changer(changer) => changer.answered(env, &mut me, &ask, answer),
            ClientRole::Asserter(asserter) => asserter.answered(env, &mut me, &ask, answer),
            ClientRole::Watcher(_) => {}
        }
    }

    pub(crate) fn told(&mut self, env: &mut Env<'_>, event: &Event) {
        if self.absent(env.now) || self.retired {
            return;
        }
        if let ClientRole::Locker(locker) = &mut self.role {
            let mut me = ClientContext {
                at: self.at,
                random: &mut self.random,
                asks: &mut self.asks,
                next_ask: &mut self.next_ask,
            };
            locker.told(env, &mut me, event);
        }
    }

    /// A node closed a stream of this client.
    pub(crate) fn closed(&mut self, env: &mut Env<'_>) {
        if let ClientRole::Watcher(watcher) = &mut self.role {
            let mut me = ClientContext {
                at: self.at,
                random: &mut self.random,
                asks: &mut self.asks,
                next_ask: &mut self.next_ask,
            };
            watcher.closed(env, &mut me);
        }
    }

    pub(crate) fn wrote(&mut self, env: &mut Env<'_>, write: &StoreWrite, accepted: bool) {
        let tally = &mut env.counts.store_writes;
        if accepted {
            tally.0 += 1
        } else {
            tally.1 += 1
        }
        let believes_since = match &self.role {
            ClientRole::Locker(locker) => locker.believes(env.now, &write.owner, write.fence),
            _ => None,
        };
        env.trace.say(
            env.now,
            format_args!("store"),
            format_args!(
                "{} {} {} accepted {accepted}",
                write.owner, write.path, write.fence
            ),
        );
        env.fact(&Fact::Wrote {
            owner: &write.owner,
            path: &write.path,
            fence: write.fence,
            accepted,
            believes_since,
        });
    }
}

/// The parts of a client that its role works with.
struct ClientContext<'a> {
    at: usize,
    random: &'a mut SimRng,
    asks: &'a mut Vec<ClientCall>,
    next_ask: &'a mut u64,
}

impl ClientContext<'_> {
    fn ask(
        &mut self,
        env: &mut Env<'_>,
        request: ClientRequest,
        first_sent: Option<SimTime>,
        timeout_ms: u64,
    ) -> u64 {
        *self.next_ask += 1;
        let ask = ClientCall {
            id: *self.next_ask,
            request: Box::new(request),
            sent: env.now,
            first_sent: first_sent.unwrap_or(env.now),
        };
        env.ask(self.at, &ask, timeout_ms);
        let id = ask.id;
        self.asks.push(ask);
        // Only the latest 64 calls are kept. Answers to older ones are ignored.
        if self.asks.len() > 64 {
            self.asks.remove(0);
        }
        id
    }
}

/// All paths of the load. `t` and `u`: fixed policies. `p` and `q`: changed by the policy client.
/// `s`: semaphore.
pub(crate) const PATHS: [&str; 12] = [
    "t:/0", "t:/0/x", "t:/0/x/y", "t:/1", "t:/2/a", "u:/0/a", "u:/0/a", "u:/1/b", "p:/0/x",
    "q:/a/b", "q:/a/b/c", "s:/0/n",
];

pub(crate) fn path(text: &str) -> Path {
    Path::parse(text).expect("a path of ours")
}

/// Returns the modes in which a path is acquired. `Write` twice: two of three requests write.
fn modes(path: &Path) -> &'static [Mode] {
    match path.handler() {
        "t" | "u" => &[Mode::Write, Mode::Write, Mode::Read],
        _ => &[Mode::Write],
    }
}
