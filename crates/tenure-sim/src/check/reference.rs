//! The reference: every group's machine once more, fed with the committed entries in their order.
//!
//! ```text
//!   entries that replicas write ──▶ the first replica that has applied one ──▶ reference ──▶ Applied
//!                                                       every replica's state ══════╛
//! ```
//!
//! A replica that stands at an entry after a step has the state of the reference there, byte for byte; a snapshot
//! is read back as it was written; and the core's naive model, fed with the same commands, says the same. What
//! the reference applies is what the checkers of effects see: each command once, however often it is replicated.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_core::command::Command;
use tenure_core::event::{Event, EventIdStride};
use tenure_core::model::Model;
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::outcome::Applied;
use tenure_core::policy::Algorithm;
use tenure_core::space::{HashSeed, Space, SpaceLimits};
use tenure_core::system::{System, SystemApplied, SystemCommand};
use tenure_core::value::OwnerId;
use tenure_node::{
    GroupId, LogPosition, LogView, LogWrite, LoggedCommand, Node, Payload, Snapshot, WriteBatch,
    read_entry,
};
use xxhash_rust::xxh3::xxh3_64;

use super::consensus::{InvariantNames, NodeDisk};
use super::{CheckResult, Relevance};
use crate::plan::RunPlan;
use crate::time::SimTime;

/// See the module.
pub(super) struct Reference {
    groups: u32,
    limits: SpaceLimits,
    prefix_segments: usize,
    default_algorithm: Algorithm,
    /// The terms of the entries in each replica's log.
    logs: BTreeMap<(NodeDisk, GroupId), BTreeMap<u64, u64>>,
    /// When each entry was first written, and what it says.
    entries: BTreeMap<(GroupId, LogPosition), (SimTime, Payload)>,
    machines: BTreeMap<GroupId, ReferenceMachine>,
    /// Hashes of states that were compared, by index.
    states: BTreeMap<(GroupId, u64), u64>,
    /// Up to which entry each replica was compared.
    compared: BTreeMap<(NodeDisk, GroupId), u64>,
}

/// A group's machine in the reference.
struct ReferenceMachine {
    index: u64,
    channel: EventIdStride,
    machine: MachineKind,
}

enum MachineKind {
    /// The naive model knows no limits: it runs where there are the usual ones.
    Space(Box<Space>, Option<Box<Model>>),
    System(Box<System>),
}

/// An entry that is applied.
#[derive(Clone, Copy)]
pub(super) struct AppliedEntry {
    /// When it was proposed.
    pub(super) proposed: SimTime,
    pub(super) place: LogPosition,
    pub(super) group: GroupId,
}

/// One command that was applied.
pub(super) struct AppliedCommand<'a> {
    pub(super) at: AppliedEntry,
    pub(super) what: CommandResult<'a>,
}

/// By which machine, and what came of it.
pub(super) enum CommandResult<'a> {
    Space {
        command: &'a Command,
        applied: &'a Applied,
        space: &'a Space,
    },
    System {
        command: &'a SystemCommand,
        applied: &'a SystemApplied,
    },
}

impl Reference {
    pub(super) fn new(plan: &RunPlan) -> Reference {
        Reference {
            groups: plan.cluster.group_count,
            limits: plan.limits.space.clone(),
            prefix_segments: plan.cluster.prefix_segments,
            default_algorithm: plan.cluster.default_algorithm,
            logs: BTreeMap::new(),
            entries: BTreeMap::new(),
            machines: BTreeMap::new(),
            states: BTreeMap::new(),
            compared: BTreeMap::new(),
        }
    }

    /// A node wants a batch written.
    pub(super) fn written(&mut self, now: SimTime, of: NodeDisk, batch: &WriteBatch) {
        for (group, record) in &batch.records {
            let log = self.logs.entry((of, *group)).or_default();
            match record {
                LogWrite::Entries(entries) => {
                    for entry in entries {
                        let LogPosition { index, term } = entry.place;
                        log.split_off(&index);
                        log.insert(index, term);
                        let written = (now, entry.payload.clone());
                        let place = (*group, entry.place);
                        self.entries.entry(place).or_insert(written);
                    }
                }
                LogWrite::Born(_) | LogWrite::Installed(_) | LogWrite::Removed => log.clear(),
                LogWrite::Cut(_) | LogWrite::HardState(_) => {}
            }
        }
    }

    /// A process starts with what is on its disk.
    pub(super) fn starts(&mut self, now: SimTime, of: NodeDisk, found: &LogView<'_>) {
        self.compared.remove(&(of, found.group));
        let log = self.logs.entry((of, found.group)).or_default();
        log.clear();
        for entry in found.entries {
            log.insert(entry.place.index, entry.place.term);
            let written = (now, entry.payload.clone());
            let place = (found.group, entry.place);
            self.entries.entry(place).or_insert(written);
        }
    }

    /// Where the entry of an index is in a replica's log.
    pub(super) fn place(&self, of: NodeDisk, group: GroupId, index: u64) -> Option<LogPosition> {
        let term = *self.logs.get(&(of, group))?.get(&index)?;
        Some(LogPosition { term, index })
    }

    /// What a group's locks are now.
    pub(super) fn spaces(&self) -> impl Iterator<Item = &Space> {
        self.machines
            .values()
            .filter_map(|reference_machine| match &reference_machine.machine {
                MachineKind::Space(space, _) => Some(&**space),
                MachineKind::System(_) => None,
            })
    }

    /// A replica stands at an entry after a step. `see` is shown each command that nobody had applied before.
    pub(super) fn stepped(
        &mut self,
        of: NodeDisk,
        node: &Node,
        group: GroupId,
        applied: u64,
        mut see: impl FnMut(&AppliedCommand<'_>),
    ) -> InvariantNames {
        let before = self.compared.insert((of, group), applied);
        if before == Some(applied) {
            return InvariantNames::new();
        }
        let mut findings = InvariantNames::new();
        let mut reference_machine = match self.machines.remove(&group) {
            Some(reference_machine) => reference_machine,
            None => self.blank(group),
        };
        while reference_machine.index < applied {
            let next = reference_machine.index + 1;
            let entry = self
                .place(of, group, next)
                .and_then(|place| Some((place, self.entries.get(&(group, place))?)));
            let Some((place, (proposed, payload))) = entry else {
                break;
            };
            let at = AppliedEntry {
                proposed: *proposed,
                place,
                group,
            };
            findings.extend(reference_machine.apply(at, payload, &mut see));
            reference_machine.index = next;
        }
        if (applied.is_multiple_of(SAMPLED) || reference_machine.index < applied)
            && let Some((index, bytes)) = node.state_of(group)
        {
            findings.push((
                "state",
                self.same_state(of, group, index, &bytes, &mut reference_machine),
            ));
        }
        self.machines.insert(group, reference_machine);
        findings
    }

    fn same_state(
        &mut self,
        of: NodeDisk,
        group: GroupId,
        index: u64,
        bytes: &Bytes,
        reference_machine: &mut ReferenceMachine,
    ) -> CheckResult {
        let found = xxh3_64(bytes);
        if reference_machine.index < index {
            // It was given a state whose entries no log has any more: begin from there.
            reference_machine.restore(index, bytes);
            self.states.insert((group, index), found);
            return Ok(Relevance::Passed);
        }
        let known = if reference_machine.index == index {
            let expected = reference_machine.encode(bytes);
            Some(*self.states.entry((group, index)).or_insert(expected))
        } else {
            self.states.get(&(group, index)).copied()
        };
        match known {
            None => Ok(Relevance::Passed),
            Some(known) if known == found => Ok(Relevance::Checked),
            Some(_) => Err(format!(
                "{group} at {} (life {}) differs from the reference after entry {index}",
                of.0, of.1
            )),
        }
    }

    /// A replica saves its state: it is read back as it was written.
    pub(super) fn saved(&self, snapshot: &Snapshot) -> CheckResult {
        if !snapshot.index.is_multiple_of(SAMPLED) {
            return Ok(Relevance::Passed);
        }
        let written = &snapshot.data;
        let Some((head, state)) = written.split_first_chunk::<HEAD>() else {
            return Err(format!("a state of {} without a head", snapshot.group));
        };
        let again = if snapshot.group.0 < self.groups {
            let space = Space::decode_snapshot(state, HashSeed(1));
            space.map(|space| {
                space.check();
                space.encode_snapshot(head.to_vec())
            })
        } else {
            System::decode_snapshot(state).map(|system| system.encode_snapshot(head.to_vec()))
        };
        match again {
            Ok(again) if again == *written => Ok(Relevance::Checked),
            Ok(_) => Err(format!(
                "the state of {} at {} is written otherwise after it was read",
                snapshot.group, snapshot.index
            )),
            Err(error) => Err(format!(
                "the state of {} at {} cannot be read: {error}",
                snapshot.group, snapshot.index
            )),
        }
    }

    fn blank(&self, group: GroupId) -> ReferenceMachine {
        let channel = EventIdStride::new(group.0, self.groups + 1);
        let machine = if group.0 < self.groups {
            let mut space = Space::new(self.limits.clone(), HashSeed(0));
            space.number_events(channel);
            space.watch();
            let usual = self.limits == SpaceLimits::default();
            let model = usual.then(|| Box::new(Model::new()));
            MachineKind::Space(Box::new(space), model)
        } else {
            let table = NamespaceTable::new(self.prefix_segments, self.default_algorithm);
            let mut system = System::new(table);
            system.number_events(channel);
            MachineKind::System(Box::new(system))
        };
        let index = tenure_node::Base::BIRTH.index;
        ReferenceMachine {
            index,
            channel,
            machine,
        }
    }
}

/// States are compared, snapshots read back and invariants checked at every so many entries: what differs once differs for long,
/// and writing a state down takes longer than all else that the checkers do.
const SAMPLED: u64 = 4;

/// Version and machine come before what the machine writes.
const HEAD: usize = 2;

impl ReferenceMachine {
    fn apply(
        &mut self,
        at: AppliedEntry,
        payload: &Payload,
        see: &mut impl FnMut(&AppliedCommand<'_>),
    ) -> InvariantNames {
        let AppliedEntry { group, place, .. } = at;
        let (stamp, commands) = match read_entry(payload) {
            Ok(Some(entry)) => entry,
            Ok(None) => return InvariantNames::new(),
            Err(error) => {
                let what = format!("entry {place:?} of {group} cannot be read: {error}");
                return vec![("state", Err(what))];
            }
        };
        let mut findings = InvariantNames::new();
        for command in &commands {
            match (&mut self.machine, command) {
                (MachineKind::Space(space, model), LoggedCommand::Space(command)) => {
                    let applied = space.apply(stamp, command.clone());
                    if let Some(model) = model {
                        let expected = model.apply(stamp, command);
                        findings.push(("model", same_answer(at, command, &applied, &expected)));
                    }
                    let what = CommandResult::Space {
                        command,
                        applied: &applied,
                        space,
                    };
                    see(&AppliedCommand { at, what });
                }
                (MachineKind::System(system), LoggedCommand::System(command)) => {
                    let applied = system.apply(stamp, (**command).clone());
                    let applied = &applied;
                    let what = CommandResult::System { command, applied };
                    see(&AppliedCommand { at, what });
                }
                _ => {
                    let what = format!("entry {place:?} of {group} is for another machine");
                    findings.push(("state", Err(what)));
                }
            }
        }
        if let MachineKind::Space(space, _) = &self.machine
            && place.index.is_multiple_of(SAMPLED)
        {
            space.check();
        }
        findings
    }

    /// The hash of its state, with the head of another one.
    fn encode(&self, like: &Bytes) -> u64 {
        let head = like.get(..HEAD).unwrap_or_default().to_vec();
        xxh3_64(&match &self.machine {
            MachineKind::Space(space, _) => space.encode_snapshot(head),
            MachineKind::System(system) => system.encode_snapshot(head),
        })
    }

    /// Goes on from a state. The model cannot.
    fn restore(&mut self, index: u64, bytes: &Bytes) {
        let state = bytes.get(HEAD..).unwrap_or_default();
        self.index = index;
        match &mut self.machine {
            MachineKind::Space(space, model) => {
                if let Ok(read) = Space::decode_snapshot(state, HashSeed(0)) {
                    **space = read;
                    space.number_events(self.channel);
                    space.watch();
                }
                *model = None;
            }
            MachineKind::System(system) => {
                if let Ok(read) = System::decode_snapshot(state) {
                    **system = read;
                    system.number_events(self.channel);
                }
            }
        }
    }
}

/// The answer, and what each owner is told. Numbers of events are a machine's own.
fn same_answer(
    at: AppliedEntry,
    command: &Command,
    found: &Applied,
    model: &Applied,
) -> CheckResult {
    let told = |events: &[Event]| -> Vec<(OwnerId, _, _)> {
        let mut told: Vec<_> = events
            .iter()
            .map(|event| (event.owner.clone(), event.namespace.clone(), event.kind))
            .collect();
        told.sort();
        told
    };
    if found.outcome == model.outcome && told(&found.events) == told(&model.events) {
        return Ok(Relevance::Checked);
    }
    Err(format!(
        "entry {:?} of {}: {command:?} comes out as {:?} {:?}, by the model as {:?} {:?}",
        at.place, at.group, found.outcome, found.events, model.outcome, model.events
    ))
}
