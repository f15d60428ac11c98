//! The state machine of the system group, compared with a model made of lists (R75 IncrFencingToken
//! always grows, R98 Release and the wait edge, R101–R104, R107–R115, R131–R139).

use tenure_core::codec::{from_bytes, to_bytes};
use tenure_core::command::{Command, Region, Selection};
use tenure_core::event::{Event, EventKind};
use tenure_core::namespace_table::{
    AffectedGroups, NamespaceTable, TableChangePlan as RowPlan, TableChangeSteps,
};
use tenure_core::outcome::FreezeReport;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, BlockReason};
use tenure_core::system::*;
use tenure_core::value::{Fence, Key, OwnerId, Stamp, Ttl};

use crate::cluster_state::owner_id;
use crate::rng::Rng;

const REMEMBERED_MS: u64 = 300_000;

/// The model: lists of rows, changes, edges and answers.
struct ReferenceSystem {
    rules: u32,
    /// The pending work of reserved keys.
    works: Vec<(KeyClaim, KeyWork)>,
    ended: Vec<(u64, ChangeEnd)>,
    time: u64,
    rows: Vec<(Namespace, Algorithm)>,
    version: u64,
    changes: Vec<PendingCall>,
    begun: u64,
    edges: Vec<(OwnerId, Edge, u64)>,
    counter: u64,
    answers: Vec<(KeyClaim, Option<SystemAnswer>, u64)>,
    events: Vec<(OwnerId, EventKind)>,
}

#[derive(Clone)]
struct PendingCall {
    number: u64,
    namespace: Namespace,
    to: Option<Algorithm>,
    steps: TableChangeSteps,
    decided: Option<ChangeDecided>,
    /// The key of the call that started it.
    claim: Option<KeyClaim>,
    highest: Option<Fence>,
}

impl ReferenceSystem {
    fn new() -> ReferenceSystem {
        ReferenceSystem {
            rules: 1,
            works: Vec::new(),
            ended: Vec::new(),
            time: 0,
            rows: Vec::new(),
            version: 0,
            changes: Vec::new(),
            begun: 0,
            edges: Vec::new(),
            counter: 0,
            answers: Vec::new(),
            events: Vec::new(),
        }
    }

    fn table(&self) -> NamespaceTable {
        NamespaceTable::restore(
            1,
            Algorithm::RecursiveRw,
            self.version,
            self.rows.iter().cloned(),
        )
    }

    fn apply(&mut self, time: u64, command: &SystemCommand) -> SystemOutcome {
        self.time = self.time.max(time);
        self.events.clear();
        let now = self.time;
        self.answers.retain(|(.., until)| *until > now);
        self.edges.retain(|(.., until)| *until > now);
        let answers = &self.answers;
        // Pending work ends with the reservation of its key.
        self.works.retain(|(claim, _)| {
            let mut open = answers.iter().filter(|(_, answer, _)| answer.is_none());
            open.any(|(known, ..)| known == claim)
        });
        let claim = match command {
            SystemCommand::Begin { claim, .. }
            | SystemCommand::SetEdge { claim, .. }
            | SystemCommand::ClearEdge { claim, .. }
            | SystemCommand::Increment { claim, .. }
            | SystemCommand::Kill { claim, .. } => claim.clone(),
            SystemCommand::Claim(claim) => Some(claim.clone()),
            _ => None,
        };
        if let Some(repeated) = claim.as_ref().and_then(|claim| self.known(claim)) {
            return SystemOutcome::Repeated(repeated);
        }
        match command {
            SystemCommand::Begin { namespace, to, .. } => self.begin(namespace, *to, claim),
            SystemCommand::Decide { change, report } => self.decide(*change, report),
            SystemCommand::Finish { change } => {
                self.finish(*change);
                SystemOutcome::Done
            }
            SystemCommand::Plan {
                claim,
                owner,
                plan,
                effect,
            } => self.plan(claim, owner, plan, *effect),
            SystemCommand::Rules { number } => {
                self.rules = self.rules.max(*number);
                SystemOutcome::Done
            }
            SystemCommand::SetEdge {
                owner, edge, ttl, ..
            } => {
                self.edges.retain(|(who, ..)| who != owner);
                self.edges
                    .push((owner.clone(), edge.clone(), now + ttl.millis()));
                self.remember(claim, Some(SystemAnswer::Done));
                SystemOutcome::Done
            }
            SystemCommand::ClearEdge { owner, .. } => {
                self.edges.retain(|(who, ..)| who != owner);
                self.remember(claim, Some(SystemAnswer::Done));
                SystemOutcome::Done
            }
            SystemCommand::Increment { above, .. } => {
                let next = self.counter.max(above.map_or(0, Fence::number)) + 1;
                self.counter = next;
                let number = Fence::from_number(next).unwrap();
                self.remember(claim, Some(SystemAnswer::Number(number)));
                SystemOutcome::Number(number)
            }
            SystemCommand::Claim(_) => {
                self.remember(claim, None);
                SystemOutcome::Fresh
            }
            SystemCommand::Complete {
                claim,
                answer,
                plan,
            } => {
                let stands = |done: &ReleasePlan| {
                    let work = (claim.clone(), KeyWork::Plan(done.clone()));
                    self.works.contains(&work)
                };
                if plan.as_ref().is_none_or(stands) {
                    self.complete(claim, answer.clone());
                }
                SystemOutcome::Done
            }
            SystemCommand::Kill { owner, .. } => {
                self.edges.retain(|(who, ..)| who != owner);
                self.remember(claim, None);
                self.events.push((owner.clone(), EventKind::Killed));
                SystemOutcome::Fresh
            }
            SystemCommand::Ask { owner } => {
                self.events.push((owner.clone(), EventKind::Revoke));
                SystemOutcome::Done
            }
            SystemCommand::Lift { by } => {
                self.counter += by;
                self.version += by;
                self.begun += by;
                self.changes.retain(|under| under.decided.is_some());
                SystemOutcome::Done
            }
            SystemCommand::Tick => SystemOutcome::Done,
            SystemCommand::Auth(_) => {
                unreachable!("the generator makes none: `auth.rs` has its tests")
            }
        }
    }

    /// Ends a change. This also completes the key of the call that started it, whichever node ends
    /// it.
    fn finish(&mut self, change: u64) {
        let decided = |under: &PendingCall| under.number == change && under.decided.is_some();
        let Some(at) = self.changes.iter().position(decided) else {
            return;
        };
        let under = self.changes.remove(at);
        let end = match under.decided.unwrap() {
            ChangeDecided::Refused { live } => ChangeEnd::Refused { live },
            _ => ChangeEnd::Made,
        };
        if self.rules < 2 {
            return;
        }
        let its = |(_, work): &(KeyClaim, KeyWork)| *work == KeyWork::Change(change);
        let at_work = self.works.iter().any(its);
        self.works.retain(|work| !its(work));
        if let Some(claim) = under.claim {
            // A committed change is answered as long as any other answer; a refused one frees the
            // key.
            if end == ChangeEnd::Made {
                self.complete(&claim, Some(SystemAnswer::Done));
            } else if at_work {
                self.complete(&claim, None);
            }
        }
        self.ended.push((change, end));
    }

    /// Records a release plan. Only the first plan for a key has an effect.
    fn plan(
        &mut self,
        claim: &KeyClaim,
        owner: &OwnerId,
        plan: &ReleasePlan,
        effect: ReleasePlanEffect,
    ) -> SystemOutcome {
        let before = self.works.iter().find(|(known, _)| known == claim);
        match (self.known(claim), before) {
            (None, _) => {}
            (Some(RepeatedKey::Open), Some((_, KeyWork::Plan(first)))) => {
                return SystemOutcome::Planned(first.clone());
            }
            (Some(RepeatedKey::Open), _) => self.answers.retain(|(known, ..)| known != claim),
            (Some(repeated), _) => return SystemOutcome::Repeated(repeated),
        }
        self.remember(Some(claim.clone()), None);
        self.works
            .push((claim.clone(), KeyWork::Plan(plan.clone())));
        if effect != ReleasePlanEffect::None {
            self.edges.retain(|(who, ..)| who != owner);
        }
        if effect == ReleasePlanEffect::Kill {
            self.events.push((owner.clone(), EventKind::Killed));
        }
        SystemOutcome::Planned(plan.clone())
    }

    /// Returns what is known of a key that was used before: R102–R104 (scope of a key).
    fn known(&self, claim: &KeyClaim) -> Option<RepeatedKey> {
        let (before, answer, _) = self
            .answers
            .iter()
            .find(|(known, ..)| known.call == claim.call && known.key == claim.key)?;
        Some(if before.fingerprint != claim.fingerprint {
            RepeatedKey::KeyReused
        } else {
            answer
                .clone()
                .map_or(RepeatedKey::Open, RepeatedKey::Answered)
        })
    }

    fn remember(&mut self, claim: Option<KeyClaim>, answer: Option<SystemAnswer>) {
        let until = self.time + REMEMBERED_MS;
        self.answers
            .extend(claim.map(|claim| (claim, answer, until)));
    }

    /// Ends the reservation of a key. A stored answer never changes (R102).
    fn complete(&mut self, claim: &KeyClaim, answer: Option<SystemAnswer>) {
        let known = self
            .answers
            .iter()
            .position(|(known, ..)| known.call == claim.call && known.key == claim.key);
        match known {
            None => {
                if answer.is_some() {
                    self.remember(Some(claim.clone()), answer);
                }
            }
            Some(at) if self.answers[at].0 == *claim && self.answers[at].1.is_none() => {
                // A key with pending work is not freed.
                if answer.is_none() && self.works.iter().any(|(known, _)| known == claim) {
                    return;
                }
                self.works.retain(|(known, _)| known != claim);
                self.answers.remove(at);
                if answer.is_some() {
                    self.remember(Some(claim.clone()), answer);
                }
            }
            Some(_) => {}
        }
    }

    fn begin(
        &mut self,
        namespace: &Namespace,
        to: Option<Algorithm>,
        claim: Option<KeyClaim>,
    ) -> SystemOutcome {
        let related = |under: &&PendingCall| {
            under.namespace == *namespace
                || under.namespace.encloses(namespace)
                || namespace.encloses(&under.namespace)
        };
        if let Some(busy) = self.changes.iter().find(related) {
            return SystemOutcome::Begun(ChangeBegun::Busy {
                change: busy.number,
            });
        }
        match self.table().plan(namespace, to) {
            RowPlan::Unchanged => {
                self.remember(claim, Some(SystemAnswer::Done));
                SystemOutcome::Begun(ChangeBegun::Unchanged)
            }
            RowPlan::RowOnly => {
                let version = self.write(namespace, to);
                self.remember(claim, Some(SystemAnswer::Done));
                SystemOutcome::Begun(ChangeBegun::Committed { version })
            }
            RowPlan::Steps(steps) => {
                self.begun += 1;
                if let Some(claim) = claim.clone().filter(|_| self.rules >= 2) {
                    self.works.push((claim, KeyWork::Change(self.begun)));
                }
                self.remember(claim.clone(), None);
                self.changes.push(PendingCall {
                    claim: claim.filter(|_| self.rules >= 2),
                    number: self.begun,
                    namespace: namespace.clone(),
                    to,
                    steps,
                    decided: None,
                    highest: None,
                });
                SystemOutcome::Begun(ChangeBegun::Started { change: self.begun })
            }
        }
    }

    /// Decides a change. A live hold refuses a change that must not drop holds: R133 (route changes
    /// need drained paths), R138 (deleting a row in use).
    fn decide(&mut self, change: u64, report: &FreezeReport) -> SystemOutcome {
        let Some(at) = self.changes.iter().position(|under| under.number == change) else {
            return SystemOutcome::Decided(ChangeDecided::Unknown);
        };
        if let Some(decided) = &self.changes[at].decided {
            return SystemOutcome::Decided(decided.clone());
        }
        let under = self.changes[at].clone();
        let decided = match &report.live {
            Some(live) if under.steps.spares_holds() => {
                ChangeDecided::Refused { live: live.clone() }
            }
            _ => ChangeDecided::Committed {
                version: self.write(&under.namespace, under.to),
            },
        };
        self.changes[at].decided = Some(decided.clone());
        self.changes[at].highest = report.highest;
        SystemOutcome::Decided(decided)
    }

    fn write(&mut self, namespace: &Namespace, to: Option<Algorithm>) -> u64 {
        self.rows.retain(|(name, _)| name != namespace);
        self.rows
            .extend(to.map(|algorithm| (namespace.clone(), algorithm)));
        self.version += 1;
        self.version
    }
}

const NAMES: [&str; 6] = ["h", "h:/", "h:/a", "h:/a/b", "g:/a", "g:/a/b"];
const OWNERS: [&str; 3] = ["amy", "bob", "cid"];

fn name(text: &str) -> Namespace {
    Namespace::parse(text).unwrap()
}

fn claim(rng: &mut Rng, call: SystemCall) -> Option<KeyClaim> {
    rng.one_in(3).then(|| KeyClaim {
        call,
        key: Key::new(rng.pick(&["k", "m"])).unwrap().unwrap(),
        fingerprint: u128::from(rng.below(3) / 2),
    })
}

fn edge(rng: &mut Rng) -> Edge {
    Edge {
        blocker: owner_id(rng.pick(&OWNERS)),
        why: rng.maybe(|_| (Path::parse("h:/a").unwrap(), BlockReason::Queued)),
    }
}

fn command(rng: &mut Rng, begun: u64, rules: u32) -> SystemCommand {
    let owner = owner_id(rng.pick(&OWNERS));
    let change = begun.saturating_sub(rng.below(3));
    match rng.below(18) {
        0..3 => {
            let to = (!rng.one_in(3)).then(|| rng.pick(&Algorithm::ALL));
            let call = match to {
                Some(_) => SystemCall::SetNamespacePolicy,
                None => SystemCall::DeleteNamespacePolicy,
            };
            SystemCommand::Begin {
                namespace: name(rng.pick(&NAMES)),
                to,
                claim: claim(rng, call),
            }
        }
        3..6 => SystemCommand::Decide {
            change,
            report: FreezeReport {
                live: rng.one_in(3).then(|| (Path::parse("h:/a").unwrap(), owner)),
                highest: rng.maybe(|rng| Fence::from_number(1 + rng.below(100)).unwrap()),
            },
        },
        6..8 => SystemCommand::Finish { change },
        8 => SystemCommand::SetEdge {
            owner,
            edge: edge(rng),
            ttl: Ttl::from_millis(1 + rng.below(5_000)).unwrap(),
            claim: claim(rng, SystemCall::SetWaitEdge),
        },
        9 => SystemCommand::ClearEdge {
            owner,
            claim: claim(rng, SystemCall::ClearWaitEdge),
        },
        10 => SystemCommand::Increment {
            above: rng.maybe(|rng| Fence::from_number(1 + rng.below(1_000)).unwrap()),
            claim: claim(rng, SystemCall::IncrFencingToken),
        },
        11 => match claim(rng, SystemCall::ReleaseAll) {
            Some(claim) => SystemCommand::Claim(claim),
            None => SystemCommand::Tick,
        },
        12 => match claim(
            rng,
            rng.clone()
                .pick(&[SystemCall::ReleaseAll, SystemCall::ForceRelease]),
        ) {
            Some(claim) => SystemCommand::Complete {
                claim,
                answer: rng.maybe(|_| SystemAnswer::Done),
                plan: (rules >= 2 && rng.one_in(2)).then(|| ReleasePlan {
                    selection: Selection::All,
                    groups: vec![(3, rng.below(3))],
                }),
            },
            None => SystemCommand::Tick,
        },
        13 => SystemCommand::Kill {
            owner,
            claim: claim(rng, SystemCall::ForceRelease),
        },
        14 => SystemCommand::Ask { owner },
        15 if rules >= 2 => match claim(rng, SystemCall::ReleaseAll) {
            Some(claim) => SystemCommand::Plan {
                claim,
                owner,
                plan: ReleasePlan {
                    selection: Selection::All,
                    groups: vec![(3, rng.below(3))],
                },
                effect: rng.pick(&[
                    ReleasePlanEffect::None,
                    ReleasePlanEffect::ClearEdge,
                    ReleasePlanEffect::Kill,
                ]),
            },
            None => SystemCommand::Tick,
        },
        _ if rng.one_in(10) => SystemCommand::Lift { by: rng.below(10) },
        _ => SystemCommand::Tick,
    }
}

/// All outcomes and queries equal those of the model.
#[test]
fn the_system_machine_does_what_its_twin_does() {
    for seed in 0..1_500 {
        let mut rng = Rng::new(seed);
        let mut system = System::new(NamespaceTable::new(1, Algorithm::RecursiveRw));
        let mut twin = ReferenceSystem::new();
        let mut time = 1;
        let mut told: Vec<String> = Vec::new();
        for step in 0..60u64 {
            time += rng.pick(&[0, 1, 700, 4_000, 150_000]);
            let command = match (seed % 3, step) {
                // A third of the seeds each: old rules, new rules, and a change in the middle.
                (1, 0) | (2, 30) => SystemCommand::Rules { number: 2 },
                _ => command(&mut rng, twin.begun, twin.rules),
            };
            told.push(format!("{time} {command:?}"));
            let story = || told.join("\n");
            let applied = system.apply(Stamp { time, wall: 50 }, command.clone());
            let expected = twin.apply(time, &command);
            assert_eq!(
                applied.outcome,
                expected,
                "seed {seed}, step {step}:\n{}",
                story()
            );
            let events: Vec<(OwnerId, EventKind)> = applied
                .events
                .iter()
                .map(|event| (event.owner.clone(), event.kind))
                .collect();
            assert_eq!(
                events,
                twin.events,
                "seed {seed}, step {step}:\n{}",
                story()
            );
            assert_eq!(
                system.table(),
                &twin.table(),
                "seed {seed}, step {step}:\n{}",
                story()
            );
            for owner in OWNERS.map(owner_id) {
                let edge = twin
                    .edges
                    .iter()
                    .find(|(who, _, until)| *who == owner && *until > time);
                assert_eq!(system.edge(&owner, time), edge.map(|(_, edge, _)| edge));
            }
            assert_eq!(system.counter().map_or(0, Fence::number), twin.counter);
            let numbers: Vec<u64> = system.changes().iter().map(|view| view.change).collect();
            let under: Vec<u64> = twin.changes.iter().map(|under| under.number).collect();
            assert_eq!(numbers, under, "seed {seed}, step {step}:\n{}", story());
            for (view, under) in system.changes().iter().zip(&twin.changes) {
                carries_on(view, under);
            }
            for change in 0..=twin.begun {
                let end = twin.ended.iter().find(|(number, _)| *number == change);
                assert_eq!(system.change_end(change), end.map(|(_, end)| end));
            }
            for (claim, work) in &twin.works {
                let known = twin.known(claim) == Some(RepeatedKey::Open);
                assert_eq!(system.work(claim, time), known.then_some(work));
            }
            if rng.one_in(20) {
                let bytes = system.encode_snapshot(Vec::new());
                system = System::decode_snapshot(&bytes).unwrap();
                assert_eq!(system.encode_snapshot(Vec::new()), bytes);
            }
        }
    }
}

/// Checks the view of a pending change: it has everything that another node needs to continue it.
fn carries_on(view: &ChangeView, under: &PendingCall) {
    assert_eq!(view.region, under.steps.region);
    assert_eq!(view.reach, under.steps.reach);
    match (&view.command, &view.then, &under.decided) {
        (Command::Freeze(freeze), AfterChange::Decide, None) => {
            assert_eq!(freeze.change, under.number);
            assert_eq!(freeze.region, under.steps.region);
        }
        (
            Command::Thaw(thaw),
            AfterChange::FinishRefused { live },
            Some(ChangeDecided::Refused { live: found }),
        ) => {
            assert_eq!((thaw.change, live), (under.number, found));
        }
        (
            Command::Change(change),
            AfterChange::Finish { version },
            Some(ChangeDecided::Committed { version: made }),
        ) => {
            assert_eq!((change.change, version), (under.number, made));
            assert_eq!(change.version, *made);
            assert_eq!(change.clear, under.steps.clear);
            assert_eq!(change.algorithm, under.steps.algorithm);
            // R71 (tokens never go back): paths that move get fences above all that the groups
            // reported.
            let floor = under
                .highest
                .filter(|_| under.steps.reach == AffectedGroups::AllGroups);
            assert_eq!(change.floor, floor);
        }
        (command, then, decided) => panic!("{command:?} and {then:?} after {decided:?}"),
    }
}

struct SizeLimit {
    system: System,
    time: u64,
}

impl SizeLimit {
    fn new() -> SizeLimit {
        SizeLimit {
            system: System::new(NamespaceTable::new(1, Algorithm::RecursiveRw)),
            time: 1_000,
        }
    }

    fn apply(&mut self, command: SystemCommand) -> (SystemOutcome, Vec<Event>) {
        let applied = self.system.apply(
            Stamp {
                time: self.time,
                wall: 7,
            },
            command,
        );
        (applied.outcome, applied.events)
    }

    fn set_edge(&mut self, from: &str, to: &str, ttl: u64) {
        let edge = Edge {
            blocker: owner_id(to),
            why: None,
        };
        let ttl = Ttl::from_millis(ttl).unwrap();
        self.apply(SystemCommand::SetEdge {
            owner: owner_id(from),
            edge,
            ttl,
            claim: None,
        });
    }

    fn waits_for(&self, owner: &str) -> Option<&str> {
        self.system
            .edge(&owner_id(owner), self.time)
            .map(|edge| edge.blocker.as_str())
    }
}

/// R107 (wait edges): an owner has one edge, the newest, until its time is over. R108
/// (ClearWaitEdge always succeeds): also without an edge.
#[test]
fn an_owner_has_one_edge_for_a_time() {
    let mut room = SizeLimit::new();
    room.set_edge("amy", "bob", 1_000);
    room.set_edge("amy", "cid", 1_000);
    assert_eq!(room.waits_for("amy"), Some("cid"));
    room.time += 999;
    assert_eq!(room.waits_for("amy"), Some("cid"));
    // R114 (DetectCycle changes nothing): a query changes nothing.
    assert_eq!(room.waits_for("amy"), Some("cid"));
    room.time += 1;
    assert_eq!(room.waits_for("amy"), None);
    room.set_edge("amy", "bob", 1_000);
    for _ in 0..2 {
        let clear = SystemCommand::ClearEdge {
            owner: owner_id("amy"),
            claim: None,
        };
        assert_eq!(room.apply(clear).0, SystemOutcome::Done);
        assert_eq!(room.waits_for("amy"), None);
    }
}

/// R98 (Release and the wait edge): a release can remove the edge, with or without holds; this is
/// its command. R101 (ForceRelease always notifies the victim): force removes it too and always
/// emits an event, also for an unknown owner.
#[test]
fn force_tells_the_victim_and_ends_its_edge() {
    let mut room = SizeLimit::new();
    room.set_edge("amy", "bob", 60_000);
    room.apply(SystemCommand::ClearEdge {
        owner: owner_id("amy"),
        claim: None,
    });
    assert_eq!(room.waits_for("amy"), None);
    room.set_edge("amy", "bob", 60_000);
    let kill = |owner: &str| SystemCommand::Kill {
        owner: owner_id(owner),
        claim: None,
    };
    let (_, events) = room.apply(kill("amy"));
    assert_eq!(events[0].kind, EventKind::Killed);
    assert_eq!(events[0].namespace, None);
    assert_eq!(room.waits_for("amy"), None);
    let (_, events) = room.apply(kill("nobody"));
    assert_eq!(events.len(), 1);
}

/// R102: an attempt that takes longer than its key is stored does not complete a later attempt,
/// whose own plan is not carried out yet.
#[test]
fn an_earlier_plan_does_not_complete_a_later_one() {
    let mut room = SizeLimit::new();
    room.apply(SystemCommand::Rules { number: 2 });
    let claim = KeyClaim {
        call: SystemCall::ReleaseAll,
        key: Key::new("k1").unwrap().unwrap(),
        fingerprint: 7,
    };
    let plan = |until: u64| ReleasePlan {
        selection: Selection::All,
        groups: vec![(3, until)],
    };
    let begin = |until: u64| SystemCommand::Plan {
        claim: claim.clone(),
        owner: owner_id("amy"),
        plan: plan(until),
        effect: ReleasePlanEffect::None,
    };
    let complete = |until: u64| SystemCommand::Complete {
        claim: claim.clone(),
        answer: Some(SystemAnswer::Done),
        plan: Some(plan(until)),
    };
    assert_eq!(room.apply(begin(10)).0, SystemOutcome::Planned(plan(10)));
    room.time += REMEMBERED_MS;
    assert_eq!(room.apply(begin(20)).0, SystemOutcome::Planned(plan(20)));
    room.apply(complete(10));
    assert_eq!(room.apply(begin(30)).0, SystemOutcome::Planned(plan(20)));
    room.apply(complete(20));
    let answered = SystemOutcome::Repeated(RepeatedKey::Answered(SystemAnswer::Done));
    assert_eq!(room.apply(begin(30)).0, answered);
    // Its key is forgotten and not used again yet: the next call under it has its own effect.
    room.time += REMEMBERED_MS;
    room.apply(complete(20));
    assert_eq!(room.apply(begin(40)).0, SystemOutcome::Planned(plan(40)));
}

/// R115 (RequestRevoke sends an event): every request emits an event.
#[test]
fn asking_tells_the_owner_every_time() {
    let mut room = SizeLimit::new();
    let mut last = 0;
    for _ in 0..3 {
        let (outcome, events) = room.apply(SystemCommand::Ask {
            owner: owner_id("nobody"),
        });
        assert_eq!(outcome, SystemOutcome::Done);
        assert_eq!(events[0].kind, EventKind::Revoke);
        assert!(events[0].id > last);
        last = events[0].id;
    }
}

/// R110 (reasons that can block): an edge accepts exactly the seven reasons that a client may
/// report.
#[test]
fn edges_take_the_reasons_of_blockers() {
    let mut room = SizeLimit::new();
    for reason in [
        BlockReason::AncestorLocked,
        BlockReason::WriteLocked,
        BlockReason::ReadLocked,
        BlockReason::DescendantWriteLocked,
        BlockReason::DescendantReadLocked,
        BlockReason::SemaphoreFull,
        BlockReason::Queued,
    ] {
        let edge = Edge {
            blocker: owner_id("bob"),
            why: Some((Path::parse("h:/a").unwrap(), reason)),
        };
        let ttl = Ttl::from_millis(500).unwrap();
        let set = SystemCommand::SetEdge {
            owner: owner_id("amy"),
            edge: edge.clone(),
            ttl,
            claim: None,
        };
        room.apply(set);
        assert_eq!(room.system.edge(&owner_id("amy"), room.time), Some(&edge));
    }
}

/// R75 (IncrFencingToken always grows): every number is above all earlier ones and above the fences
/// that the groups minted. R104: two callers with one key get the same number.
#[test]
fn global_numbers_grow() {
    let mut room = SizeLimit::new();
    let key = |text: &str| {
        Some(KeyClaim {
            call: SystemCall::IncrFencingToken,
            key: Key::new(text).unwrap().unwrap(),
            fingerprint: 1,
        })
    };
    let number = |outcome: SystemOutcome| match outcome {
        SystemOutcome::Number(fence) => fence.number(),
        other => panic!("{other:?}"),
    };
    let first = number(
        room.apply(SystemCommand::Increment {
            above: None,
            claim: None,
        })
        .0,
    );
    let above = Fence::from_number(500);
    let second = number(
        room.apply(SystemCommand::Increment {
            above,
            claim: key("k"),
        })
        .0,
    );
    assert!(second > 500 && second > first);
    let again = room
        .apply(SystemCommand::Increment {
            above: None,
            claim: key("k"),
        })
        .0;
    let stored = SystemAnswer::Number(Fence::from_number(second).unwrap());
    assert_eq!(
        again,
        SystemOutcome::Repeated(RepeatedKey::Answered(stored))
    );
    let third = number(
        room.apply(SystemCommand::Increment {
            above: None,
            claim: key("m"),
        })
        .0,
    );
    assert!(third > second);
    // The result must stay usable as a supplied fence (R15 limit for supplied tokens), whatever was
    // reported or raised.
    let driven = Fence::from_number(1 << 52);
    let claim = None;
    let fourth = number(
        room.apply(SystemCommand::Increment {
            above: driven,
            claim,
        })
        .0,
    );
    assert_eq!(fourth, third + 1);
    room.apply(SystemCommand::Lift { by: u64::MAX });
    let claim = None;
    let last = number(
        room.apply(SystemCommand::Increment { above: None, claim })
            .0,
    );
    assert!(last > fourth && last < 1 << 52);
}

/// R135 (policy changes reach every node) depends on this: any node can continue a change that
/// another node started, in its three steps.
#[test]
fn a_change_goes_in_three_steps() {
    let mut room = SizeLimit::new();
    let begin = |to| SystemCommand::Begin {
        namespace: name("h:/a/b"),
        to,
        claim: None,
    };
    let (outcome, _) = room.apply(begin(Some(Algorithm::PointRw)));
    assert_eq!(
        outcome,
        SystemOutcome::Begun(ChangeBegun::Started { change: 1 })
    );
    let (outcome, _) = room.apply(begin(None));
    assert_eq!(
        outcome,
        SystemOutcome::Begun(ChangeBegun::Busy { change: 1 })
    );
    assert_eq!(room.system.table().row(&name("h:/a/b")), None);
    let view = room.system.change(1).unwrap();
    assert_eq!(
        view.region,
        Region {
            root: name("h:/a/b"),
            except: Vec::new()
        }
    );
    assert!(matches!(view.command, Command::Freeze(_)));
    let report = FreezeReport {
        live: None,
        highest: Fence::from_number(9),
    };
    let (outcome, _) = room.apply(SystemCommand::Decide { change: 1, report });
    assert_eq!(
        outcome,
        SystemOutcome::Decided(ChangeDecided::Committed { version: 1 })
    );
    assert_eq!(
        room.system.table().row(&name("h:/a/b")),
        Some(Algorithm::PointRw)
    );
    let Command::Change(change) = room.system.change(1).unwrap().command else {
        panic!("a decided change is applied");
    };
    // R71: above all fences that the groups reported.
    assert_eq!(change.floor, Fence::from_number(9));
    room.apply(SystemCommand::Finish { change: 1 });
    assert_eq!(room.system.change(1), None);
    // R137 (deleting a missing row): allowed.
    let delete = SystemCommand::Begin {
        namespace: name("g"),
        to: None,
        claim: None,
    };
    assert_eq!(
        room.apply(delete).0,
        SystemOutcome::Begun(ChangeBegun::Unchanged)
    );
}

/// A client that may set policies cannot add rows without a limit; rows that exist can still change
/// and go.
#[test]
fn the_number_of_policies_is_limited() {
    let mut system = System::new(NamespaceTable::new(1, Algorithm::RecursiveRw));
    system.apply(Stamp::default(), SystemCommand::Rules { number: 2 });
    let mut begin = |name: &str, to: Option<Algorithm>| {
        let command = SystemCommand::Begin {
            namespace: Namespace::parse(name).unwrap(),
            to,
            claim: None,
        };
        system.apply(Stamp::default(), command).outcome
    };
    let same = Some(Algorithm::RecursiveRw);
    for number in 0..4096 {
        let begun = begin(&format!("t:/{number}"), same);
        assert!(
            matches!(begun, SystemOutcome::Begun(ChangeBegun::Committed { .. })),
            "{number}: {begun:?}"
        );
    }
    let full = SystemOutcome::Begun(ChangeBegun::Full);
    assert_eq!(begin("t:/more", same), full);
    assert_eq!(from_bytes(&to_bytes(&full)), Ok(full.clone()));
    let unchanged = SystemOutcome::Begun(ChangeBegun::Unchanged);
    assert_eq!(begin("t:/7", same), unchanged);
    let started = begin("t:/7", Some(Algorithm::PointRw));
    assert!(matches!(
        started,
        SystemOutcome::Begun(ChangeBegun::Started { .. })
    ));
}
