//! The shared-log protocol of `tenure-hosted`: several clients, one log that an engine keeps.
//!
//! The attempts, the observer, the replicas and the log are the shipped ones. The model adds what is around them:
//! requests that arrive late, answers that are lost, crashes, trims and the passing of time. Times are ages up to one
//! ttl, so time has no end in the model.
//!
//! Properties:
//!
//! 1. A client that believes to hold the lock holds it by the log. (So no two clients believe that at once.)
//! 2. A call is in the log at most once.
//! 3. From every state the clients can finish: a dead holder's lease can be ended, and a client that is behind can
//!    catch up.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use tenure_core::command::{
    Acquire, Command, Hold, Release, Request as Wanted, RequestKind, WaitMode,
};
use tenure_core::outcome::AcquireOutcome;
use tenure_core::path::Path;
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::space::RULES;
use tenure_core::value::{OwnerId, QueueTtl, Ttl};
use tenure_hosted::attempt::{Attempt, Fate, Rows};
use tenure_hosted::driver::{Append, Appended, Tail, Version};
use tenure_hosted::entry::{Call, LeaseKey};
use tenure_hosted::memory::MemoryLog;
use tenure_hosted::observer::Observer;
use tenure_hosted::replica::{CallOutcome, LogCopy};

use crate::explore::Model;
use crate::machine::{self, NOW};

/// The length of every lease, in ticks.
const TTL: u8 = 2;
/// A moment of an observer's clock.
const BASE: u64 = 1000;

/// A protection that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// An expiry does not depend on the row.
    ExpiresWithoutCondition,
    /// An observer counts from the sending of its read.
    CountsFromBeforeRead,
    /// A holder counts from the answer.
    CountsFromAnswer,
    /// A holder that has beaten does not read the log afterwards.
    BeatsWithoutRead,
    /// A writer without an answer writes its call again under another id.
    RetriesWithoutId,
    /// A writer whose place was trimmed writes its call again.
    WritesAgainAfterTrim,
    /// Entries go before the snapshot is there.
    TrimsBeforeSnapshot,
}

/// How far the search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Clients that want the lock once each.
    pub clients: u8,
    /// Clients that crash. A crashed client begins again under another owner.
    pub crashes: u8,
    /// Answers that are lost. The request may arrive late.
    pub losses: u8,
    /// Beats of all clients.
    pub beats: u8,
    /// Trims, by any client at any moment.
    pub trims: u8,
}

/// Model of the shared log.
pub struct SharedLog {
    bounds: Bounds,
    mistake: Option<Mistake>,
    path: Path,
    replicas: RefCell<Replicas>,
}

/// Interned replicas: equal states have one number.
#[derive(Default)]
struct Replicas {
    all: Vec<Rc<LogCopy>>,
    numbers: HashMap<Vec<u8>, u32>,
    /// What a part of the log does to a replica, and what an attempt learns from it.
    learned: HashMap<(u32, Attempt, Tail), (u32, Option<Fate>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    Idle,
    Acquiring,
    /// In the queue, by an acquire or beat that was sent so long ago.
    Waiting(u8),
    /// The lease is good for so long.
    Holding(u8),
    Releasing,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Acquire,
    Release,
    /// Of the lease of a client with this epoch.
    Expire(u8, u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Activity {
    None,
    Call(Kind, Attempt),
    Beat,
    Look,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum EngineCall {
    Append(Append),
    Read { from: u64, rows: Vec<LeaseKey> },
    Beat(Vec<LeaseKey>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Appended(Appended),
    Tail(Tail),
    /// Whether the row was there.
    Beaten(bool),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    /// The number of its owner, which a crash raises.
    life: u8,
    replica: u32,
    phase: Phase,
    activity: Activity,
    /// How long ago the activity began.
    began: u8,
    /// How long ago the last request was sent.
    sent: u8,
    request: Option<EngineCall>,
    answer: Option<Answer>,
    /// Rows of others, by client: the version, and how long it is known.
    seen: BTreeMap<LeaseKey, (Version, u8)>,
}

/// State of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    log: MemoryLog,
    /// What the whole log amounts to.
    truth: u32,
    clients: Vec<Client>,
    /// Requests that may still arrive and that no client waits for.
    late: Vec<EngineCall>,
    /// The calls that are in the log.
    calls: Vec<u64>,
    /// Entries up to this one are gone without a snapshot.
    dropped: u64,
    crashes: u8,
    losses: u8,
    beats: u8,
    trims: u8,
    fault: Option<&'static str>,
}

/// A step of the model: the client, and what happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A client sends its acquire.
    Acquires(u8),
    /// The engine handles the request of a client.
    Handled(u8),
    /// The engine handles a request that is late.
    HandledLate(u8),
    /// A client gets its answer.
    Answered(u8),
    /// A client gives up waiting for an answer; its request never arrives.
    Unanswered(u8),
    /// A client gives up waiting for an answer; its request may arrive later.
    Late(u8),
    /// A client sends a beat.
    Beats(u8),
    /// A client reads the log and the rows of others.
    Looks(u8),
    /// A client sends an expiry of the lease of another.
    Expires(u8, u8),
    /// A client sends its release.
    Releases(u8),
    /// A client crashes and begins again.
    Crashes(u8),
    /// A client stores a snapshot and removes entries.
    Trims(u8),
    /// Time passes.
    Tick,
}

impl SharedLog {
    /// Creates the model.
    pub fn new(bounds: Bounds, mistake: Option<Mistake>) -> SharedLog {
        SharedLog {
            bounds,
            mistake,
            path: machine::path("t:/a"),
            replicas: RefCell::default(),
        }
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn intern(&self, replica: LogCopy) -> u32 {
        let mut replicas = self.replicas.borrow_mut();
        let mut bytes = replica.snapshot();
        bytes.push(u8::from(replica.is_founded()));
        if let Some(number) = replicas.numbers.get(&bytes) {
            return *number;
        }
        let number = replicas.all.len() as u32;
        replicas.all.push(Rc::new(replica));
        replicas.numbers.insert(bytes, number);
        number
    }

    fn replica(&self, number: u32) -> Rc<LogCopy> {
        Rc::clone(&self.replicas.borrow().all[number as usize])
    }

    /// Applies a part of the log to a replica. `None`: it cannot be applied.
    fn learn(&self, number: &mut u32, attempt: &Attempt, tail: &Tail) -> Option<Fate> {
        let key = (*number, attempt.clone(), tail.clone());
        if let Some((after, fate)) = self.replicas.borrow().learned.get(&key) {
            *number = *after;
            return fate.clone();
        }
        let mut replica = LogCopy::clone(&self.replica(*number));
        let fate = attempt
            .learn(&mut replica, tail)
            .ok()
            .map(|learned| learned.fate);
        *number = self.intern(replica);
        let learned = (*number, fate.clone());
        self.replicas.borrow_mut().learned.insert(key, learned);
        fate
    }

    fn owner(at: usize, life: u8) -> OwnerId {
        machine::owner(&format!("{at}.{life}"))
    }

    fn key(&self, replica: &LogCopy, owner: OwnerId) -> LeaseKey {
        LeaseKey {
            owner,
            namespace: replica.system().table().namespace_of(&self.path),
        }
    }

    fn own_key(&self, state: &State, at: usize) -> LeaseKey {
        let client = &state.clients[at];
        let replica = self.replica(client.replica);
        self.key(&replica, Self::owner(at, client.life))
    }

    /// Whether a replica has the lease of a client.
    fn holds(&self, replica: &LogCopy, at: usize, life: u8) -> bool {
        let key = self.key(replica, Self::owner(at, life));
        replica.space().lease(&key.namespace, &key.owner).is_some()
    }

    fn acquire(&self, replica: &LogCopy, owner: OwnerId) -> (Call, Rows) {
        let key = self.key(replica, owner.clone());
        let acquire = Acquire {
            route: replica.system().table().route(&self.path),
            owner,
            ttl: Ttl::from_millis(u64::from(TTL)).expect("a constant of the model"),
            queue_ttl: QueueTtl::from_millis(0).expect("a constant of the model"),
            requests: vec![Wanted {
                path: self.path.clone(),
                mode: Mode::Write,
                state: RequestKind::New,
                permits: None,
            }],
            releases: Vec::new(),
            fence: None,
            key: None,
            wait: WaitMode::Queue,
            holder: None,
        };
        let call = Call::Acquire {
            acquire,
            refuse_deadlock: false,
        };
        let rows = Rows {
            raise: vec![key],
            ..Rows::default()
        };
        (call, rows)
    }

    fn release(&self, replica: &LogCopy, owner: OwnerId) -> (Call, Rows) {
        let key = self.key(replica, owner.clone());
        let holds = vec![Hold {
            path: self.path.clone(),
            mode: Mode::Write,
        }];
        let rows = Rows {
            remove: match replica.ends_with(&key, &holds) {
                true => vec![key],
                false => Vec::new(),
            },
            ..Rows::default()
        };
        let release = Command::Release(Release {
            route: replica.system().table().route(&self.path),
            owner,
            holds,
            key: None,
            whole: None,
        });
        let call = Call::Release {
            parts: vec![release],
            edge: None,
        };
        (call, rows)
    }

    /// The observer of a client, with what it has seen.
    fn observer(client: &Client) -> Observer {
        let mut observer = Observer::default();
        let rows: Vec<LeaseKey> = client.seen.keys().cloned().collect();
        // One row at a time would forget the others, so rows of one age are seen together, the
        // oldest first: a row that was seen before keeps its time.
        for age in (0..=TTL).rev() {
            let versions: Vec<Version> = client
                .seen
                .values()
                .map(|(version, known)| match *known >= age {
                    true => *version,
                    // A version that no row has.
                    false => Some(u64::MAX),
                })
                .collect();
            observer.see(&rows, &versions, BASE - u64::from(age));
        }
        observer
    }

    /// Sends the append of a call from the client's replica.
    fn send(&self, state: &mut State, at: usize) {
        let client = &mut state.clients[at];
        let observer = Self::observer(client);
        let Activity::Call(kind, attempt) = &mut client.activity else {
            return;
        };
        let replica = self.replica(client.replica);
        if !replica.is_founded() {
            client.request = Some(EngineCall::Read {
                from: replica.index() + 1,
                rows: Vec::new(),
            });
            client.sent = 0;
            return;
        }
        let owner = Self::owner(at, client.life);
        let kind = *kind;
        let appended = attempt.append(&replica, NOW, |replica| match kind {
            Kind::Acquire => Ok(self.acquire(replica, owner)),
            Kind::Release => Ok(self.release(replica, owner)),
            Kind::Expire(other, epoch) => {
                let mut ended = observer.ended(replica, BASE).into_iter();
                let number = format!("{other}.");
                let ended = ended.find(|ended| {
                    let is_theirs = ended.key.owner.as_str().starts_with(&number);
                    is_theirs && ended.expire.epoch == epoch
                });
                let Some(ended) = ended else {
                    return Err(());
                };
                let mut rows = Rows::default();
                match self.has(Mistake::ExpiresWithoutCondition) {
                    true => rows.remove.push(ended.key),
                    false => rows.unchanged.push((ended.key, ended.version)),
                }
                Ok((Call::Expire(vec![ended.expire]), rows))
            }
        });
        match appended {
            Ok(append) => {
                client.request = Some(EngineCall::Append(append));
                client.sent = 0;
            }
            // Nothing is left to expire.
            Err(()) => client.activity = Activity::None,
        }
    }

    fn begin(&self, state: &mut State, at: usize, kind: Kind) {
        let client = &mut state.clients[at];
        let number = match kind {
            Kind::Acquire => 0,
            Kind::Release => 1,
            Kind::Expire(_, epoch) => 2 + epoch,
        };
        let call = (at as u64) * 10_000 + u64::from(client.life) * 1000 + number;
        client.activity = Activity::Call(kind, Attempt::new(u128::from(call) * 2 + 2));
        client.began = 0;
        self.send(state, at);
    }

    /// The engine handles a request.
    fn handle(&self, state: &mut State, request: &EngineCall) -> Answer {
        match request {
            EngineCall::Append(append) => {
                let appended = state.log.append(append);
                if appended == Appended::Done {
                    let call = (append.id as u64 - 2) / 2;
                    if state.calls.contains(&call) {
                        state.fault = Some("a call is in the log twice");
                    }
                    state.calls.push(call);
                    state.calls.sort_unstable();
                    let tail = Tail {
                        entries: vec![(append.index, append.entry.clone())],
                        ..Tail::default()
                    };
                    let fate = self.learn(&mut state.truth, &Attempt::new(0), &tail);
                    if fate.is_none() {
                        state.fault = Some("the log cannot be applied");
                    }
                }
                Answer::Appended(appended)
            }
            EngineCall::Read { from, rows } => {
                let mut tail = state.log.read(*from, rows);
                tail.entries.retain(|(index, _)| *index > state.dropped);
                Answer::Tail(tail)
            }
            EngineCall::Beat(rows) => Answer::Beaten(state.log.beat(rows) == [true]),
        }
    }

    fn read_after(&self, state: &mut State, at: usize, rows: Vec<LeaseKey>) {
        let client = &mut state.clients[at];
        let from = self.replica(client.replica).index() + 1;
        client.request = Some(EngineCall::Read { from, rows });
        client.sent = 0;
    }

    /// A client gets an answer.
    fn answered(&self, state: &mut State, at: usize) {
        let client = &mut state.clients[at];
        let Some(answer) = client.answer.take() else {
            return;
        };
        let request = client.request.take();
        match (client.activity.clone(), answer) {
            (Activity::Call(..), Answer::Appended(Appended::Taken)) => {
                self.read_after(state, at, Vec::new());
            }
            (Activity::Call(..), Answer::Appended(Appended::Changed)) => {
                client.activity = Activity::None;
            }
            (Activity::Call(kind, attempt), Answer::Appended(Appended::Done)) => {
                let Some(EngineCall::Append(append)) = request else {
                    return;
                };
                let tail = Tail {
                    entries: vec![(append.index, append.entry)],
                    ..Tail::default()
                };
                self.learned(state, at, Some((kind, attempt)), &tail);
            }
            (Activity::Call(kind, attempt), Answer::Tail(tail)) => {
                self.learned(state, at, Some((kind, attempt)), &tail);
            }
            // A beat counts only if the row was there; the log tells why it was not.
            (Activity::Beat, Answer::Beaten(there)) => {
                if !there {
                    client.activity = Activity::Look;
                }
                if self.has(Mistake::BeatsWithoutRead) {
                    client.activity = Activity::None;
                    if let Phase::Holding(_) = client.phase {
                        client.phase = Phase::Holding(TTL - client.began);
                    }
                    return;
                }
                self.read_after(state, at, Vec::new());
            }
            (Activity::Beat, Answer::Tail(tail)) => {
                let began = client.began;
                if !self.learned(state, at, None, &tail) {
                    return;
                }
                let client = &mut state.clients[at];
                client.activity = Activity::None;
                let replica = self.replica(client.replica);
                let is_held = self.holds(&replica, at, client.life);
                client.phase = match (client.phase, is_held) {
                    (Phase::Holding(_) | Phase::Waiting(_), true) => Phase::Holding(TTL - began),
                    (Phase::Holding(_), false) => Phase::Over,
                    (Phase::Waiting(_), false) => Phase::Waiting(began),
                    (phase, _) => phase,
                };
            }
            (Activity::Look, Answer::Tail(tail)) => {
                let sent = client.sent;
                if !self.learned(state, at, None, &tail) {
                    return;
                }
                let client = &mut state.clients[at];
                client.activity = Activity::None;
                if let Some(EngineCall::Read { rows, .. }) = request {
                    let age = match self.has(Mistake::CountsFromBeforeRead) {
                        true => sent,
                        false => 0,
                    };
                    let mut observer = Self::observer(client);
                    observer.see(&rows, &tail.versions, BASE - u64::from(age));
                    let replica = self.replica(client.replica);
                    let mut seen = BTreeMap::new();
                    for (key, version) in rows.iter().zip(&tail.versions) {
                        // A row without a lease need not be remembered.
                        if let Some(left) = observer.left(&replica, key, BASE) {
                            let known = TTL - u8::try_from(left).unwrap_or(TTL).min(TTL);
                            seen.insert(key.clone(), (*version, known));
                        }
                    }
                    client.seen = seen;
                }
                let replica = self.replica(client.replica);
                let key = self.key(&replica, Self::owner(at, client.life));
                if let Phase::Waiting(ago) = client.phase {
                    client.phase = match self.holds(&replica, at, client.life) {
                        true => Phase::Holding(TTL - ago),
                        false if replica.needs_row(&key) => client.phase,
                        // It was granted and ended before it knew. A client asks again then; here it
                        // is finished.
                        false => Phase::Over,
                    };
                }
            }
            _ => {}
        }
    }

    /// A client applies a part of the log. Returns whether it could.
    fn learned(
        &self,
        state: &mut State,
        at: usize,
        call: Option<(Kind, Attempt)>,
        tail: &Tail,
    ) -> bool {
        let client = &mut state.clients[at];
        let (kind, attempt) = match &call {
            Some((kind, attempt)) => (Some(*kind), attempt.clone()),
            None => (None, Attempt::new(0)),
        };
        let Some(fate) = self.learn(&mut client.replica, &attempt, tail) else {
            // It cannot go on, and says so. It retries later.
            client.activity = Activity::None;
            return false;
        };
        let Some(kind) = kind else {
            return true;
        };
        let fate = match fate {
            Fate::Unknown if self.has(Mistake::WritesAgainAfterTrim) => Fate::Open,
            fate => fate,
        };
        match (fate, kind) {
            (Fate::Open, _) => self.send(state, at),
            (Fate::Unknown, Kind::Expire(..)) => client.activity = Activity::None,
            (Fate::Unknown, _) => {
                client.activity = Activity::None;
                client.phase = Phase::Over;
            }
            (Fate::Applied(outcome), Kind::Acquire) => {
                client.activity = Activity::None;
                let ago = match self.has(Mistake::CountsFromAnswer) {
                    true => 0,
                    false => client.began,
                };
                client.phase = match outcome {
                    CallOutcome::Acquire {
                        outcome: AcquireOutcome::Granted { .. },
                        ..
                    } => Phase::Holding(TTL - ago),
                    CallOutcome::Acquire {
                        outcome: AcquireOutcome::Queued(_),
                        ..
                    } => Phase::Waiting(ago),
                    _ => Phase::Over,
                };
            }
            (Fate::Applied(_), Kind::Release) => {
                client.activity = Activity::None;
                client.phase = Phase::Over;
            }
            (Fate::Applied(_), Kind::Expire(..)) => client.activity = Activity::None,
        }
        true
    }

    /// What a client does without an answer.
    fn unanswered(&self, state: &mut State, at: usize) {
        let client = &mut state.clients[at];
        client.answer = None;
        let was_append = matches!(client.request.take(), Some(EngineCall::Append(_)));
        match &mut client.activity {
            Activity::Call(_, attempt) => {
                if was_append && self.has(Mistake::RetriesWithoutId) {
                    // The same call, but the log does not show that.
                    let sent = attempt.append(&LogCopy::new(), NOW, |_| Err(()));
                    let id = sent.map_or(0, |sent| sent.id);
                    if id % 2 == 0 {
                        *attempt = Attempt::new(id + 1);
                    }
                }
                self.read_after(state, at, Vec::new());
            }
            Activity::Beat | Activity::Look => client.activity = Activity::None,
            Activity::None => {}
        }
    }

    /// Forgets what has no effect any more, so that states that behave alike are equal.
    fn tidy(&self, state: &mut State) {
        for client in &mut state.clients {
            if client.phase == Phase::Over && client.activity == Activity::None {
                client.replica = 0;
                (client.began, client.sent) = (0, 0);
            }
            if !matches!(client.phase, Phase::Waiting(_)) {
                client.seen.clear();
            }
            let counts = matches!(
                client.activity,
                Activity::Beat | Activity::Call(Kind::Acquire, _)
            );
            if !counts {
                client.began = 0;
            }
            if !self.has(Mistake::CountsFromBeforeRead) {
                client.sent = 0;
            }
        }
    }

    fn crash(&self, state: &mut State, at: usize) {
        let nothing = self.intern(LogCopy::new());
        let life = state.clients[at].life + 1;
        state.clients[at] = Client {
            life,
            replica: nothing,
            phase: Phase::Idle,
            activity: Activity::None,
            began: 0,
            sent: 0,
            request: None,
            answer: None,
            seen: BTreeMap::new(),
        };
    }
}

impl Model for SharedLog {
    type State = State;
    type Step = Step;

    fn first(&self) -> Vec<State> {
        let mut log = MemoryLog::default();
        let mut replica = LogCopy::new();
        let found = Attempt::new(1).append(&replica, NOW, |_| {
            let call = Call::Found {
                rules: RULES,
                prefix_segments: 1,
                default: Algorithm::RecursiveRw,
            };
            Ok::<_, ()>((call, Rows::default()))
        });
        let found = found.expect("the call is a constant");
        log.append(&found);
        let learned = Attempt::new(0).learn(&mut replica, &log.read(1, &[]));
        learned.expect("the first entry is readable");
        let truth = self.intern(replica);
        let client = Client {
            life: 0,
            replica: truth,
            phase: Phase::Idle,
            activity: Activity::None,
            began: 0,
            sent: 0,
            request: None,
            answer: None,
            seen: BTreeMap::new(),
        };
        vec![State {
            log,
            truth,
            clients: vec![client; usize::from(self.bounds.clients)],
            late: Vec::new(),
            calls: Vec::new(),
            dropped: 0,
            crashes: 0,
            losses: 0,
            beats: 0,
            trims: 0,
            fault: None,
        }]
    }

    fn next(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        let mut add = |step: Step, act: &dyn Fn(&mut State)| {
            let mut after = state.clone();
            act(&mut after);
            self.tidy(&mut after);
            steps.push((step, after));
        };
        for at in 0..state.clients.len() {
            let number = at as u8;
            let client = &state.clients[at];
            let is_free = client.activity == Activity::None;
            if is_free && client.phase == Phase::Idle {
                add(Step::Acquires(number), &|state| {
                    state.clients[at].phase = Phase::Acquiring;
                    self.begin(state, at, Kind::Acquire);
                });
            }
            // An acquire whose log could not be read is sent again; so is a release.
            if is_free && matches!(client.phase, Phase::Acquiring | Phase::Releasing) {
                let kind = match client.phase {
                    Phase::Acquiring => Kind::Acquire,
                    _ => Kind::Release,
                };
                add(Step::Looks(number), &|state| self.begin(state, at, kind));
            }
            if let (Some(request), None) = (&client.request, &client.answer) {
                add(Step::Handled(number), &|state| {
                    let answer = self.handle(state, request);
                    state.clients[at].answer = Some(answer);
                });
            }
            if client.answer.is_some() {
                add(Step::Answered(number), &|state| self.answered(state, at));
            }
            if client.request.is_some() && state.losses < self.bounds.losses {
                add(Step::Unanswered(number), &|state| {
                    state.losses += 1;
                    self.unanswered(state, at);
                });
                if client.answer.is_none()
                    && !matches!(client.request, Some(EngineCall::Read { .. }))
                {
                    add(Step::Late(number), &|state| {
                        state.losses += 1;
                        let late = state.clients[at].request.clone();
                        state.late.extend(late);
                        self.unanswered(state, at);
                    });
                }
            }
            let is_leased = matches!(client.phase, Phase::Waiting(_) | Phase::Holding(_));
            if is_free && is_leased && state.beats < self.bounds.beats {
                add(Step::Beats(number), &|state| {
                    state.beats += 1;
                    let key = self.own_key(state, at);
                    let client = &mut state.clients[at];
                    client.activity = Activity::Beat;
                    client.began = 0;
                    client.sent = 0;
                    client.request = Some(EngineCall::Beat(vec![key]));
                });
            }
            if is_free && matches!(client.phase, Phase::Waiting(_)) {
                let replica = self.replica(client.replica);
                add(Step::Looks(number), &|state| {
                    let mut rows = Vec::new();
                    for (other, them) in state.clients.iter().enumerate() {
                        let lives = (0..=them.life).filter(|life| {
                            // Of all others: also of the life before a crash.
                            let is_own = other == at && *life == them.life;
                            !is_own && self.holds(&replica, other, *life)
                        });
                        rows.extend(lives.map(|life| self.key(&replica, Self::owner(other, life))));
                    }
                    state.clients[at].activity = Activity::Look;
                    self.read_after(state, at, rows);
                });
                let ended = Self::observer(client).ended(&replica, BASE);
                for ended in ended {
                    let other = ended.key.owner.as_str().split('.').next();
                    let Some(other) = other.and_then(|other| other.parse().ok()) else {
                        continue;
                    };
                    add(Step::Expires(number, other), &|state| {
                        self.begin(state, at, Kind::Expire(other, ended.expire.epoch));
                    });
                }
            }
            if is_free && matches!(client.phase, Phase::Holding(_)) {
                add(Step::Releases(number), &|state| {
                    state.clients[at].phase = Phase::Releasing;
                    self.begin(state, at, Kind::Release);
                });
            }
            if client.phase != Phase::Over && state.crashes < self.bounds.crashes {
                add(Step::Crashes(number), &|state| {
                    state.crashes += 1;
                    let late = state.clients[at].request.clone();
                    if state.clients[at].answer.is_none()
                        && !matches!(late, Some(EngineCall::Read { .. }))
                    {
                        state.late.extend(late);
                    }
                    self.crash(state, at);
                });
            }
            let replica = self.replica(client.replica);
            let can_trim = client.phase != Phase::Over && replica.index() > 1.max(state.dropped);
            if can_trim && state.trims < self.bounds.trims {
                add(Step::Trims(number), &|state| {
                    state.trims += 1;
                    match self.has(Mistake::TrimsBeforeSnapshot) {
                        true => state.dropped = replica.index(),
                        false => state.log.trim(replica.index(), &replica.snapshot()),
                    }
                });
            }
        }
        for at in 0..state.late.len() {
            add(Step::HandledLate(at as u8), &|state| {
                let request = state.late.remove(at);
                self.handle(state, &request);
            });
        }
        add(Step::Tick, &|state| {
            for client in &mut state.clients {
                let older = |age: &mut u8| *age = (*age + 1).min(TTL);
                match &mut client.phase {
                    Phase::Waiting(ago) => older(ago),
                    Phase::Holding(left) => *left = left.saturating_sub(1),
                    Phase::Idle | Phase::Acquiring | Phase::Releasing | Phase::Over => {}
                }
                if client.activity != Activity::None {
                    older(&mut client.began);
                    older(&mut client.sent);
                }
                for (_, known) in client.seen.values_mut() {
                    older(known);
                }
            }
        });
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if let Some(fault) = state.fault {
            return Err(fault.to_owned());
        }
        let truth = self.replica(state.truth);
        for (at, client) in state.clients.iter().enumerate() {
            let believes = matches!(client.phase, Phase::Holding(left) if left > 0);
            if believes && !self.holds(&truth, at, client.life) {
                return Err(format!(
                    "client {at} believes to hold the lock, and does not"
                ));
            }
        }
        Ok(())
    }

    fn is_goal(&self, state: &State) -> Option<bool> {
        Some(
            state
                .clients
                .iter()
                .all(|client| client.phase == Phase::Over),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{explore, is_full};

    const BOUNDS: Bounds = Bounds {
        clients: 2,
        crashes: 0,
        losses: 1,
        beats: 1,
        trims: 0,
    };

    fn holds(bounds: Bounds) {
        let report = explore(&SharedLog::new(bounds, None), 30_000_000);
        eprintln!("shared log, {bounds:?}: {report}");
        assert_eq!(report.fault, None);
    }

    #[test]
    fn who_believes_to_hold_holds_when_an_answer_is_lost() {
        holds(Bounds {
            clients: if is_full() { 3 } else { 2 },
            ..BOUNDS
        });
    }

    #[test]
    fn who_believes_to_hold_holds_when_a_client_crashes() {
        holds(Bounds {
            crashes: 1,
            losses: u8::from(is_full()),
            beats: u8::from(is_full()),
            ..BOUNDS
        });
    }

    #[test]
    fn who_believes_to_hold_holds_when_the_log_is_trimmed() {
        holds(Bounds {
            trims: 1,
            beats: u8::from(is_full()),
            ..BOUNDS
        });
    }

    fn finds(bounds: Bounds, mistake: Mistake, why: &str) {
        let report = explore(&SharedLog::new(bounds, Some(mistake)), 30_000_000);
        eprintln!("shared log, {mistake:?}: {report}");
        let fault = report.fault.expect("the mistake is found");
        assert!(fault.why.contains(why), "{}", fault.why);
    }

    #[test]
    fn an_expiry_without_the_condition_ends_a_renewed_lease() {
        let bounds = Bounds {
            losses: 0,
            ..BOUNDS
        };
        finds(bounds, Mistake::ExpiresWithoutCondition, "believes");
    }

    #[test]
    fn a_ttl_counted_from_before_the_read_ends_early() {
        let bounds = Bounds {
            losses: 0,
            ..BOUNDS
        };
        finds(bounds, Mistake::CountsFromBeforeRead, "believes");
    }

    #[test]
    fn a_lease_counted_from_the_answer_lasts_too_long() {
        let bounds = Bounds {
            losses: 0,
            beats: 0,
            ..BOUNDS
        };
        finds(bounds, Mistake::CountsFromAnswer, "believes");
    }

    #[test]
    fn a_beat_without_a_read_misses_the_expiry() {
        let bounds = Bounds {
            losses: 0,
            ..BOUNDS
        };
        finds(bounds, Mistake::BeatsWithoutRead, "believes");
    }

    #[test]
    fn a_retry_without_the_id_writes_the_call_twice() {
        finds(BOUNDS, Mistake::RetriesWithoutId, "twice");
    }

    #[test]
    fn a_retry_after_a_trim_writes_the_call_twice() {
        let bounds = Bounds {
            beats: 0,
            trims: 1,
            ..BOUNDS
        };
        finds(bounds, Mistake::WritesAgainAfterTrim, "twice");
    }

    #[test]
    fn entries_that_go_before_the_snapshot_leave_a_client_behind() {
        let bounds = Bounds {
            losses: 0,
            beats: 0,
            trims: 1,
            ..BOUNDS
        };
        let why = "nothing that can happen";
        finds(bounds, Mistake::TrimsBeforeSnapshot, why);
    }
}
