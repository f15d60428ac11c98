//! The load: clients that lock, that look, that watch, one that changes policies, and a fenced store.
//!
//! A client knows only its own clock and what reaches it. What happens to it becomes a
//! [`Fact`](crate::check::Fact); what it wants done becomes an [`Action`].

mod fenced_store;
mod lock_client;
mod namespace_mover;
mod nested_lock_client;
mod observer;
mod policy_client;
mod retry_client;
mod watcher;

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

/// What a client wants done.
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
    /// Whatever this client watched before, it does not any more.
    Watch {
        prefix: Namespace,
    },
    Store {
        write: StoreWrite,
        delay: SimTime,
    },
}

/// What a client has at hand while it acts.
pub(crate) struct Env<'a> {
    pub(crate) now: SimTime,
    pub(crate) plan: &'a RunPlan,
    pub(crate) checkers: &'a mut Checkers,
    pub(crate) trace: &'a mut Trace,
    pub(crate) counts: &'a mut Counts,
    pub(crate) actions: Vec<Action>,
    pub(crate) fault_phase: bool,
    /// Whose facts these are.
    pub(crate) seen_by: SeenBy,
}

/// Which checkers see what happens to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeenBy {
    /// All of them.
    All,
    /// Those that do not take an owner for one session, or a change of policy for the only one.
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

/// How clients behave in this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientHabits {
    /// What they lock and look at.
    pub(crate) paths: &'static [&'static str],
    /// Per mille of holds that are short.
    pub(crate) quick: u64,
    /// The longest pause between two sessions of a locker.
    pub(crate) rest_ms: u64,
    /// Per mille of leases that are let run to their end and taken up again about then.
    pub(crate) brink: u64,
    /// Per mille of events that reach their client seconds late.
    pub(crate) late_events: u64,
    /// Clients that want one lock after the other.
    pub(crate) nested_lock_clients: usize,
    /// Clients that use one owner again and again and send every call several times.
    pub(crate) repeaters: usize,
    /// Administrators that move the paths of those.
    pub(crate) changers: usize,
    /// The longest pause between two changes of the administrator that all runs have.
    pub(crate) policy_pause: SimTime,
    /// Per mille of renewals that name no namespace.
    pub(crate) wide: u64,
}

/// A request in a few words.
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

/// A client of one of these kinds.
pub(crate) struct SimClient {
    at: usize,
    random: SimRng,
    paused_until: SimTime,
    dead_until: SimTime,
    /// It wants nothing any more: dead for good, or gone home.
    pub(crate) retired: bool,
    role: ClientRole,
    /// Calls on the way, of this life or an earlier one.
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
}

impl ClientRole {
    fn seen_by(&self) -> SeenBy {
        match self {
            ClientRole::Repeater(_) | ClientRole::Changer(_) => SeenBy::Few,
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
                retired: false,
                role,
                asks: Vec::new(),
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
        clients
    }

    /// It dies for good, unless it only watches.
    pub(crate) fn retire(&mut self) {
        self.retired = !matches!(self.role, ClientRole::Watcher(_));
    }

    pub(crate) fn pause(&mut self, until: SimTime) {
        self.paused_until = self.paused_until.max(until);
    }

    /// It forgets everything; its owners are left to their leases.
    pub(crate) fn die(&mut self, until: SimTime) {
        if let ClientRole::Locker(locker) = &mut self.role {
            self.dead_until = until;
            locker.die();
        }
    }

    /// Whether it has anything on its mind that others should wait for.
    pub(crate) fn is_locker(&self) -> bool {
        matches!(self.role, ClientRole::Locker(_))
    }

    /// Locks that it got since the last time somebody asked, and the one it has.
    pub(crate) fn take_grants(&mut self) -> u64 {
        match &mut self.role {
            ClientRole::Locker(locker) => std::mem::take(&mut locker.grants) + locker.holds(),
            _ => 0,
        }
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
        }
    }

    /// If it only looks, it does so at once.
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
            // A paused client reads it when it goes on; a dead one never does. Either way it is as
            // if the answer were lost, which is harder for the cluster.
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

    /// A node closed what it listened to.
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
        if self.asks.len() > 64 {
            self.asks.remove(0);
        }
        id
    }
}

/// Every path there is, and how it is used.
pub(crate) const PATHS: [&str; 12] = [
    "t:/0", "t:/0/x", "t:/0/x/y", "t:/1", "t:/2/a", "u:/0/a", "u:/0/a", "u:/1/b", "p:/0/x",
    "q:/a/b", "q:/a/b/c", "s:/0/n",
];

pub(crate) fn path(text: &str) -> Path {
    Path::parse(text).expect("a path of ours")
}

/// How a path may be asked for.
fn modes(path: &Path) -> &'static [Mode] {
    match path.handler() {
        "t" | "u" => &[Mode::Write, Mode::Write, Mode::Read],
        _ => &[Mode::Write],
    }
}
