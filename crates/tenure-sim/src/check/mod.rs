//! Checkers: each verifies one invariant.
//!
//! Checkers see facts as clients see them, the writes of nodes, and the states of replicas. They do
//! not know which faults are active. The first violation ends a run.

mod acknowledged;
mod assertions;
mod at_most_once;
mod break_holds;
mod client_view;
mod consensus;
mod converge;
mod deadlocks;
mod durable;
mod early_expiry;
mod entries;
mod events;
mod exclusion;
mod fence_order;
mod fences;
mod fifo;
mod leases;
mod linearizable;
mod owners;
mod reference;
mod releases;

mod watch;

use std::collections::BTreeMap;
use std::fmt;

use tenure_core::event::Event;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Mode;
use tenure_core::value::{Fence, OwnerId};
use tenure_node::replica_view::{ReplicaView, SentPromise};
use tenure_node::{
    Answer, ClientRequest, Failure, GroupId, Mark, Node, Recovery, ReplicaId, Role, Snapshot,
    WatchEvent, WriteBatch,
};

use crate::plan::RunPlan;
use crate::rare_events::RareEvents;
use crate::time::{SECOND, SimTime};

pub(crate) use reference::{AppliedCommand, CommandResult};

/// One call, as its client knows it.
#[derive(Clone, Debug)]
pub(crate) struct ClientCall {
    /// Its number, unique in a run.
    pub(crate) id: u64,
    pub(crate) request: Box<ClientRequest>,
    pub(crate) sent: SimTime,
    /// When this request was first sent. Differs from `sent` if it repeats a request under the same
    /// key.
    pub(crate) first_sent: SimTime,
}

/// What a client believes it holds, and until when.
#[derive(Clone, Debug)]
pub(crate) struct BelievedHold {
    pub(crate) owner: OwnerId,
    pub(crate) holds: Vec<(Path, Mode)>,
    pub(crate) fence: Option<Fence>,
    /// When the request that granted or renewed it was sent.
    pub(crate) sent: SimTime,
    /// True time at which the client, by its own clock, stops relying on it.
    pub(crate) until: SimTime,
}

/// One thing that happened to a client.
#[derive(Debug)]
pub(crate) enum Fact<'a> {
    /// The client sends a call.
    Asked(&'a ClientCall),
    /// The client receives an answer.
    Answered(&'a ClientCall, &'a Result<Answer, Failure>),
    /// The client starts to rely on a hold, or extends that time.
    Believes(&'a BelievedHold),
    /// The client no longer relies on its holds: released, lost, killed or abandoned.
    Stops(&'a OwnerId),
    /// The fenced store accepted or refused the client's write. `believes_since` is set if the
    /// client still believes it holds the path: when the request that this rests on was sent.
    Wrote {
        owner: &'a OwnerId,
        path: &'a Path,
        fence: u64,
        accepted: bool,
        believes_since: Option<SimTime>,
    },
    /// A client subscribes to the events of an owner.
    Subscribed { stream: u64, owner: &'a OwnerId },
    /// A subscription ended: closed by the client, or its node is gone.
    Unsubscribed(u64),
    /// A node sent an event to a subscriber.
    Told { stream: u64, event: &'a Event },
    /// A client watches everything under a prefix.
    Watches { stream: u64, prefix: &'a Namespace },
    /// A watch ended.
    Unwatched(u64),
    /// A node sent a change to a watcher.
    Saw(u64, &'a WatchEvent),
    /// The convergence phase begins. Messages of the fault phase have arrived by now.
    ConvergencePhase,
    /// All clients die.
    AllDie,
}

/// A violation of an invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The checker that reported it.
    pub checker: &'static str,
    /// Virtual time, in microseconds.
    pub at: u64,
    /// What happened, for people.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.at / SECOND, self.at % SECOND);
        write!(out, "{} at {whole}.{part:06}: {}", self.checker, self.what)
    }
}

/// All checkers, and the first violation.
pub(crate) struct Checkers {
    exclusion: exclusion::Exclusion,
    fences: fences::Fences,
    fifo: fifo::Fifo,
    durable: durable::DurableWrites,
    linearizable: linearizable::Linearizable,
    leases: leases::LeaseInvariant,
    watch: watch::WatchOrder,
    owners: owners::Owners,
    events: events::EventDelivery,
    deadlocks: deadlocks::Deadlocks,
    converge: converge::Convergence,
    entries: entries::Entries,
    memory: acknowledged::AcknowledgedLog,
    consensus: consensus::RaftInvariants,
    reference: reference::Reference,
    rising: fence_order::FenceOrder,
    early: early_expiry::EarlyExpiry,
    belief: client_view::ClientViews,
    once: at_most_once::AtMostOnce,
    assertions: assertions::Assertions,
    taken: break_holds::TakenHolds,
    pub(crate) rare: RareEvents,
    pub(crate) verdict: Option<Violation>,
    judged: Tally,
    /// Every replica as it was after its last step, by disk.
    seen: BTreeMap<consensus::NodeDisk, Vec<ReplicaView>>,
    /// The replicas that the present step has changed. Kept to reuse its memory.
    changed: Vec<ReplicaView>,
}

/// Counts by name. A linear search by address: the names are a few literals, and a checker is
/// counted a million times in a virtual hour. Equal literals may have two addresses, so
/// [`Tally::total`] adds them up.
#[derive(Default)]
struct Tally(Vec<(&'static str, u64)>);

impl Tally {
    fn add(&mut self, name: &'static str) {
        self.add_many(name, 1);
    }

    fn add_many(&mut self, name: &'static str, more: u64) {
        let known = self
            .0
            .iter_mut()
            .find(|(known, _)| std::ptr::eq(*known, name));
        match known {
            Some((_, count)) => *count += more,
            None => self.0.push((name, more)),
        }
    }

    fn total(&self) -> BTreeMap<&'static str, u64> {
        let mut total = BTreeMap::new();
        for (name, count) in &self.0 {
            *total.entry(*name).or_default() += count;
        }
        total
    }
}

/// The result of a check: whether it applied, or what is wrong.
type CheckResult = Result<Relevance, String>;

/// Whether a fact concerned a checker. `Checked` is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relevance {
    Passed,
    Checked,
}

impl Checkers {
    pub(crate) fn new(plan: &RunPlan) -> Checkers {
        Checkers {
            exclusion: exclusion::Exclusion::default(),
            fences: fences::Fences::default(),
            fifo: fifo::Fifo::default(),
            durable: durable::DurableWrites::default(),
            linearizable: linearizable::Linearizable::default(),
            leases: leases::LeaseInvariant::default(),
            watch: watch::WatchOrder::default(),
            owners: owners::Owners::default(),
            events: events::EventDelivery::new(plan),
            deadlocks: deadlocks::Deadlocks::default(),
            converge: converge::Convergence::default(),
            entries: entries::Entries::default(),
            memory: acknowledged::AcknowledgedLog::default(),
            consensus: consensus::RaftInvariants::default(),
            reference: reference::Reference::new(plan),
            rising: fence_order::FenceOrder::default(),
            early: early_expiry::EarlyExpiry::default(),
            belief: client_view::ClientViews::default(),
            once: at_most_once::AtMostOnce::default(),
            assertions: assertions::Assertions::default(),
            taken: break_holds::TakenHolds::default(),
            rare: RareEvents::new(plan.cluster.group_count),
            verdict: None,
            judged: Tally::default(),
            seen: BTreeMap::new(),
            changed: Vec::new(),
        }
    }

    /// Passes a fact to every checker.
    pub(crate) fn see(&mut self, now: SimTime, fact: &Fact<'_>) {
        let findings = [
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
        for (checker, finding) in findings {
            self.note(checker, now, finding);
        }
        self.see_few(now, fact);
    }

    /// Passes on a fact about a client that reuses its owner or changes policies concurrently. Only
    /// the checkers that allow this see it.
    pub(crate) fn see_few(&mut self, now: SimTime, fact: &Fact<'_>) {
        self.early.see(fact);
        self.rare.see(fact);
        self.once.see(fact);
        let exclusion = self.exclusion.see(now, fact);
        let belief = self.belief.see(now, fact, self.reference.spaces());
        let assertions = self.assertions.see(now, fact);
        let taken = self.taken.see(fact);
        for (checker, finding) in [
            ("exclusion", exclusion),
            ("belief", belief),
            ("assertions", assertions),
            ("taken", taken),
        ] {
            self.note(checker, now, finding);
        }
    }

    /// A replica saves a snapshot.
    pub(crate) fn snapshot(&mut self, now: SimTime, of: ReplicaId, snapshot: &Snapshot) {
        let finding = self.converge.see(of, snapshot);
        self.note("converge", now, finding);
        let finding = self.reference.saved(snapshot);
        self.note("restore", now, finding);
    }

    /// A process starts with this state on its disk.
    pub(crate) fn starts(&mut self, now: SimTime, member: ReplicaId, recovery: &Recovery) {
        let of = consensus::disk(member);
        self.seen.remove(&of);
        for found in recovery.found() {
            self.reference.starts(now, of, &found);
            let end = found.entries.last().map_or(found.base, |entry| entry.place);
            self.rare.found(of, found.group, end.index);
            let findings = self.consensus.starts(of, &found);
            self.note_all(now, findings);
        }
    }

    /// A node emits a write batch.
    pub(crate) fn written(&mut self, now: SimTime, member: ReplicaId, batch: &WriteBatch) {
        let of = consensus::disk(member);
        self.reference.written(now, of, batch);
        self.rare.written(of, batch);
        let findings = self.consensus.written(of, batch);
        self.note_all(now, findings);
    }

    /// A node's writes up to a mark are durable.
    pub(crate) fn durable(&mut self, now: SimTime, member: ReplicaId, mark: Mark) {
        let findings = self.consensus.durable(consensus::disk(member), mark);
        self.note_all(now, findings);
    }

    /// A node has taken a step. Its outputs are not executed yet. Only replicas whose role, term,
    /// position or membership has changed are checked: a step rarely concerns all of them.
    ///
    /// `effects` has a hash of what every command did that the step has applied.
    pub(crate) fn stepped(
        &mut self,
        now: SimTime,
        member: ReplicaId,
        node: &Node,
        effects: &[(GroupId, u64, u64)],
    ) {
        let of = consensus::disk(member);
        let mut seen = self.seen.remove(&of).unwrap_or_default();
        let mut changed = std::mem::take(&mut self.changed);
        changed.clear();
        for (at, (replica, view)) in node.standings().zip(node.replicas()).enumerate() {
            let unchanged =
                seen.get(at) == Some(&view) && !self.consensus.is_new_membership(of, &replica);
            if unchanged {
                continue;
            }
            let led = seen.get(at).is_some_and(|known| known.role == Role::Leader);
            let leads_now = view.role == Role::Leader && !led;
            match seen.get_mut(at) {
                Some(known) => *known = view,
                None => seen.push(view),
            }
            changed.push(view);
            self.rare.stepped(now, of, &replica, &view);
            let (group, applied) = (replica.group, replica.applied);
            let place = self.reference.place(of, group, applied);
            let mut findings = self.consensus.stepped(of, &replica, place);
            let (rising, early) = (&mut self.rising, &mut self.early);
            let (belief, once) = (&self.belief, &mut self.once);
            let (assertions, rare) = (&mut self.assertions, &mut self.rare);
            let taken = &mut self.taken;
            let mut seen_effects = Vec::new();
            findings.extend(
                self.reference
                    .stepped(of, node, group, applied, leads_now, |step| {
                        seen_effects.push(("rising", rising.applied(step)));
                        seen_effects.push(("lease time", early.applied(step)));
                        seen_effects.push(("belief", belief.applied(now, step)));
                        seen_effects.push(("once", once.applied(step)));
                        assertions.applied(now, step);
                        taken.applied(now, step);
                        rare.applied(now, step);
                    }),
            );
            findings.extend(seen_effects);
            self.note_all(now, findings);
        }
        for finding in self.reference.same_effects(of, effects) {
            self.note("outcome", now, finding);
        }
        for view in &changed {
            let finding = self.entries.committed(node, view);
            self.note("committed", now, finding);
            let finding = self.entries.leader(node, view);
            self.note("leader", now, finding);
        }
        self.changed = changed;
        self.seen.insert(of, seen);
    }

    /// Counts a check that was made outside this module.
    pub(crate) fn count(&mut self, checker: &'static str) {
        self.judged.add(checker);
    }

    /// Counts checks that were made in another run.
    pub(crate) fn count_more(&mut self, checker: &'static str, count: u64) {
        self.judged.add_many(checker, count);
    }

    /// Returns how many checks each checker has made.
    pub(crate) fn judged(&self) -> BTreeMap<&'static str, u64> {
        self.judged.total()
    }

    fn note_all(&mut self, now: SimTime, findings: consensus::InvariantNames) {
        for (checker, finding) in findings {
            self.note(checker, now, finding);
        }
    }

    /// A process has started with the replicas of its disk.
    pub(crate) fn started(&mut self, now: SimTime, node: &Node) {
        for view in node.replicas() {
            self.entries.started(&view);
            let finding = self.memory.started(&view);
            self.note("memory", now, finding);
        }
    }

    /// Whether the log of a disk lacks what its node has acknowledged, or a vote that it has given.
    pub(crate) fn has_forgotten(&self, member: ReplicaId, recovery: &Recovery) -> bool {
        let of = consensus::disk(member);
        let found: Vec<_> = recovery.found().collect();
        self.memory.has_forgotten(member, &found) || self.consensus.has_forgotten(of, &found)
    }

    /// A node sends a vote or an acknowledgement, on which safety depends.
    pub(crate) fn sent(&mut self, now: SimTime, node: &Node, promised: &SentPromise) {
        let finding = self.memory.sent(node, promised);
        self.note("memory", now, finding);
    }

    fn note(&mut self, checker: &'static str, now: SimTime, finding: CheckResult) {
        match finding {
            Ok(Relevance::Passed) => {}
            Ok(Relevance::Checked) => self.judged.add(checker),
            Err(what) => self.object(checker, now, what),
        }
    }

    /// Reports a violation that was found outside this module: by the driver or in the convergence
    /// phase. Only the first is kept.
    pub(crate) fn object(&mut self, checker: &'static str, at: SimTime, what: String) {
        self.verdict.get_or_insert(Violation { checker, at, what });
    }

    /// Returns the largest fence that a client received for a path.
    pub(crate) fn highest(&self, path: &Path) -> u64 {
        self.linearizable.highest(path)
    }
}

/// Returns the owner whose hold a call removes on behalf of another client.
fn takes_from(request: &ClientRequest) -> Option<&OwnerId> {
    match request {
        ClientRequest::ForceRelease { victim, .. } => Some(victim),
        ClientRequest::Break { owner, .. } => Some(owner),
        _ => None,
    }
}

/// Policy changes that may drop holds: R131 (SetNamespacePolicy clears on change). A belief that
/// rests on a request sent before the end of such a change may be void.
#[derive(Default)]
struct PolicyMoves {
    // By handler: when the pending change was sent, and when the last one was answered.
    open: BTreeMap<String, SimTime>,
    over: BTreeMap<String, SimTime>,
}

impl PolicyMoves {
    fn see(&mut self, now: SimTime, fact: &Fact<'_>) {
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
    fn shake(&self, path: &Path, sent: SimTime) -> bool {
        let handler = path.handler();
        // Changes under `q` and `r` alter routes. They are refused while a moving path is held:
        // R133 (route changes need drained paths).
        !matches!(handler, "q" | "r")
            && (self.open.contains_key(handler)
                || self.over.get(handler).is_some_and(|over| sent <= *over))
    }
}
