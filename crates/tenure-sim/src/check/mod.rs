//! Judges. They see facts as clients see them, and states as replicas show them; they know neither
//! faults nor nodes. The first objection ends a run.

mod converge;
mod deadlocks;
mod durable;
mod entries;
mod events;
mod exclusion;
mod fences;
mod fifo;
mod leases;
mod linearizable;
mod memory;
mod owners;
mod releases;
mod watch;

use std::collections::BTreeMap;
use std::fmt;

use tenure_core::event::Event;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Mode;
use tenure_core::value::{Fence, OwnerId};
use tenure_node::observe::Promised;
use tenure_node::{Answer, ClientRequest, Failure, Member, Node, Snapshot, WatchEvent};

use crate::plan::Plan;
use crate::time::{SECOND, Time};

/// One call, as its client knows it.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Its number.
    pub(crate) id: u64,
    pub(crate) request: Box<ClientRequest>,
    pub(crate) sent: Time,
    /// When this request was sent for the first time, if it repeats one under its key.
    pub(crate) first_sent: Time,
}

/// What a client believes to hold, and until when.
#[derive(Clone, Debug)]
pub(crate) struct Belief {
    pub(crate) owner: OwnerId,
    pub(crate) holds: Vec<(Path, Mode)>,
    pub(crate) fence: Option<Fence>,
    /// When the request that it rests on was sent.
    pub(crate) sent: Time,
    /// True time at which the client, by its own clock, stops.
    pub(crate) until: Time,
}

/// One thing that happened to a client.
#[derive(Debug)]
pub(crate) enum Fact<'a> {
    /// It sends a call.
    Asked(&'a Ask),
    /// An answer reaches it.
    Answered(&'a Ask, &'a Result<Answer, Failure>),
    /// It begins to believe, or to believe longer.
    Believes(&'a Belief),
    /// It stops: released, lost, killed, given up.
    Stops(&'a OwnerId),
    /// Its write reached the store. If it still believes to hold the path: since a request of when.
    Wrote {
        owner: &'a OwnerId,
        path: &'a Path,
        fence: u64,
        accepted: bool,
        believes_since: Option<Time>,
    },
    /// Somebody listens to what an owner is told.
    Subscribed { stream: u64, owner: &'a OwnerId },
    /// Nobody does any more: hung up, or the node is gone.
    Unsubscribed(u64),
    /// A node told a listener something.
    Told { stream: u64, event: &'a Event },
    /// Somebody watches everything under a prefix.
    Watches { stream: u64, prefix: &'a Namespace },
    /// Nobody does any more.
    Unwatched(u64),
    /// A node showed somebody who watches something.
    Saw(u64, &'a WatchEvent),
    /// The storm is long over: nothing is late any more.
    Calm,
    /// All clients die.
    AllDie,
}

/// What a judge objects to.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which judge.
    pub judge: &'static str,
    /// When, in virtual microseconds.
    pub at: u64,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.at / SECOND, self.at % SECOND);
        write!(out, "{} at {whole}.{part:06}: {}", self.judge, self.what)
    }
}

/// All of them.
pub(crate) struct Judges {
    exclusion: exclusion::Exclusion,
    fences: fences::Fences,
    fifo: fifo::Fifo,
    durable: durable::Durable,
    linearizable: linearizable::Linearizable,
    leases: leases::Leases,
    watch: watch::Watch,
    owners: owners::Owners,
    events: events::Events,
    deadlocks: deadlocks::Deadlocks,
    converge: converge::Converge,
    entries: entries::Entries,
    memory: memory::Memory,
    pub(crate) verdict: Option<Violation>,
    pub(crate) judged: BTreeMap<&'static str, u64>,
}

/// What a judge says to a fact: whether it concerned it, or what is wrong.
type Finding = Result<Seen, String>;

/// Whether a judge had an opinion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Passed,
    Checked,
}

impl Judges {
    pub(crate) fn new(plan: &Plan) -> Judges {
        Judges {
            exclusion: exclusion::Exclusion::default(),
            fences: fences::Fences::default(),
            fifo: fifo::Fifo::default(),
            durable: durable::Durable::default(),
            linearizable: linearizable::Linearizable::default(),
            leases: leases::Leases::default(),
            watch: watch::Watch::default(),
            owners: owners::Owners::default(),
            events: events::Events::new(plan),
            deadlocks: deadlocks::Deadlocks::default(),
            converge: converge::Converge::default(),
            entries: entries::Entries::default(),
            memory: memory::Memory::default(),
            verdict: None,
            judged: BTreeMap::new(),
        }
    }

    /// Puts a fact before every judge.
    pub(crate) fn see(&mut self, now: Time, fact: &Fact<'_>) {
        let findings = [
            ("exclusion", self.exclusion.see(now, fact)),
            ("fences", self.fences.see(now, fact)),
            ("fifo", self.fifo.see(now, fact)),
            ("durable", self.durable.see(now, fact)),
            ("linearizable", self.linearizable.see(now, fact)),
            ("leases", self.leases.see(now, fact)),
            ("watch", self.watch.see(now, fact)),
            ("owners", self.owners.see(now, fact)),
            ("events", self.events.see(now, fact)),
            ("deadlocks", self.deadlocks.see(now, fact)),
        ];
        for (judge, finding) in findings {
            self.note(judge, now, finding);
        }
    }

    /// A replica shows its state.
    pub(crate) fn snapshot(&mut self, now: Time, of: Member, snapshot: &Snapshot) {
        let finding = self.converge.see(of, snapshot);
        self.note("converge", now, finding);
    }

    /// A process begins, with the replicas that its disk has.
    pub(crate) fn started(&mut self, now: Time, node: &Node) {
        for view in node.replicas() {
            self.entries.started(&view);
            let finding = self.memory.started(&view);
            self.note("memory", now, finding);
        }
    }

    /// A node has taken a turn.
    pub(crate) fn stepped(&mut self, now: Time, node: &Node) {
        for view in node.replicas() {
            let finding = self.entries.committed(node, &view);
            self.note("committed", now, finding);
            let finding = self.entries.leader(node, &view);
            self.note("leader", now, finding);
        }
    }

    /// A node says something that safety rests on.
    pub(crate) fn sent(&mut self, now: Time, node: &Node, promised: &Promised) {
        let finding = self.memory.sent(node, promised);
        self.note("memory", now, finding);
    }

    fn note(&mut self, judge: &'static str, now: Time, finding: Finding) {
        match finding {
            Ok(Seen::Passed) => {}
            Ok(Seen::Checked) => *self.judged.entry(judge).or_default() += 1,
            Err(what) => self.object(judge, now, what),
        }
    }

    /// An objection of somebody who has no file here: the driver, or the end of the run.
    pub(crate) fn object(&mut self, judge: &'static str, at: Time, what: String) {
        self.verdict.get_or_insert(Violation { judge, at, what });
    }

    /// The largest fence that any client was given for a path.
    pub(crate) fn highest(&self, path: &Path) -> u64 {
        self.linearizable.highest(path)
    }
}

/// Whose hold a call takes away, asked or not.
fn takes_from(request: &ClientRequest) -> Option<&OwnerId> {
    match request {
        ClientRequest::ForceRelease { victim, .. } => Some(victim),
        ClientRequest::Break { owner, .. } => Some(owner),
        _ => None,
    }
}

/// Changes of policy that may take holds away (R131): what rests on a request that was sent before
/// the end of one proves nothing, and what is believed when one begins may be gone.
#[derive(Default)]
struct Upheavals {
    open: BTreeMap<String, Time>,
    over: BTreeMap<String, Time>,
}

impl Upheavals {
    fn see(&mut self, now: Time, fact: &Fact<'_>) {
        match fact {
            Fact::Asked(ask) => {
                if let ClientRequest::SetNamespacePolicy { namespace, .. } = &*ask.request {
                    self.open.insert(namespace.handler().to_owned(), now);
                }
            }
            Fact::Answered(ask, Ok(Answer::Done)) => {
                if let ClientRequest::SetNamespacePolicy { namespace, .. } = &*ask.request {
                    self.open.remove(namespace.handler());
                    self.over.insert(namespace.handler().to_owned(), now);
                }
            }
            _ => {}
        }
    }

    /// Whether a belief in a path that rests on a request of `sent` may be void.
    fn shake(&self, path: &Path, sent: Time) -> bool {
        let handler = path.handler();
        // Those of `q` change routes, and are refused where anybody holds anything (R133).
        handler != "q"
            && (self.open.contains_key(handler)
                || self.over.get(handler).is_some_and(|over| sent <= *over))
    }
}
