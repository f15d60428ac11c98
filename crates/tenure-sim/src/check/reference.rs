//! Reference execution: the state machine of every group, applied once more from the committed
//! entries in order.
//!
//! ```text
//!   entries that replicas write ──▶ the first replica that applies one ──▶ reference ──▶ Applied
//!                                                   state of every replica ═════╛
//! ```
//!
//! - After a step, a replica's state equals the reference at the same index, byte for byte.
//! - A snapshot that is decoded and encoded again is unchanged.
//! - The naive model of `tenure-core`, which applies the same commands, gives the same answers.
//!
//! The checkers of effects see what the reference applies: each command once, however often it is
//! replicated.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_core::command::Command;
use tenure_core::event::{Event, EventIdStride};
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::outcome::Applied;
use tenure_core::policy::Algorithm;
use tenure_core::space::{HashSeed, Space, SpaceLimits};
use tenure_core::system::{System, SystemApplied, SystemCommand};
use tenure_core::value::OwnerId;
use tenure_node::{
    GroupId, LogPosition, LogView, LogWrite, LoggedCommand, Node, Payload, Snapshot, WriteBatch,
    effect_hash, read_entry,
};
use tenure_reference::Model;
use xxhash_rust::xxh3::xxh3_64;

use super::consensus::{InvariantNames, NodeDisk};
use super::{CheckResult, Relevance};
use crate::plan::RunPlan;
use crate::time::SimTime;

/// The reference machines, and the logs of all replicas.
pub(super) struct Reference {
    groups: u32,
    limits: SpaceLimits,
    prefix_segments: usize,
    default_algorithm: Algorithm,
    /// The terms of the entries in each replica's log.
    logs: BTreeMap<(NodeDisk, GroupId), BTreeMap<u64, u64>>,
    /// When each entry was first written, and its payload.
    entries: BTreeMap<(GroupId, LogPosition), (SimTime, Payload)>,
    machines: BTreeMap<GroupId, ReferenceMachine>,
    /// Hashes of compared states, by index.
    states: BTreeMap<(GroupId, u64), u64>,
    /// Hashes of what each command of an entry did, by index.
    effects: BTreeMap<(GroupId, u64), Vec<u64>>,
    /// The index up to which each replica was compared.
    compared: BTreeMap<(NodeDisk, GroupId), u64>,
}

/// The reference state machine of a group.
struct ReferenceMachine {
    index: u64,
    /// Length of its state when it was last encoded.
    size: usize,
    channel: EventIdStride,
    machine: MachineKind,
}

enum MachineKind {
    /// The naive model has no limits, so it runs only with the default limits.
    Space(Box<Space>, Option<Box<Model>>),
    System(Box<System>),
}

/// Identity of an applied entry.
#[derive(Clone, Copy)]
pub(crate) struct AppliedEntry {
    /// When it was first written by its proposer.
    pub(crate) proposed: SimTime,
    pub(crate) place: LogPosition,
    pub(crate) group: GroupId,
}

/// One applied command.
pub(crate) struct AppliedCommand<'a> {
    pub(crate) at: AppliedEntry,
    pub(crate) what: CommandResult<'a>,
}

/// The command and its result, by kind of state machine.
pub(crate) enum CommandResult<'a> {
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
            effects: BTreeMap::new(),
            compared: BTreeMap::new(),
        }
    }

    /// A node emits a batch.
    pub(super) fn written(&mut self, now: SimTime, of: NodeDisk, batch: &WriteBatch) {
        for (group, record) in &batch.records {
            let log = self.logs.entry((of, *group)).or_default();
            match record {
                LogWrite::Entries(entries) => {
                    for entry in entries {
                        let LogPosition { index, term } = entry.place;
                        // A new entry at an index replaces all later ones.
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

    /// A process starts with this state on its disk.
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

    /// Returns the position of the entry at an index of a replica's log.
    pub(super) fn place(&self, of: NodeDisk, group: GroupId, index: u64) -> Option<LogPosition> {
        let term = *self.logs.get(&(of, group))?.get(&index)?;
        Some(LogPosition { term, index })
    }

    /// Returns the lock state machines of all groups.
    pub(super) fn spaces(&self) -> impl Iterator<Item = &Space> {
        self.machines
            .values()
            .filter_map(|reference_machine| match &reference_machine.machine {
                MachineKind::Space(space, _) => Some(&**space),
                MachineKind::System(_) => None,
            })
    }

    /// A replica has taken a step. Applies the entries that no replica had applied before, passes
    /// each command to `see`, and compares the states.
    pub(super) fn stepped(
        &mut self,
        of: NodeDisk,
        node: &Node,
        group: GroupId,
        applied: u64,
        leads_now: bool,
        mut see: impl FnMut(&AppliedCommand<'_>),
    ) -> InvariantNames {
        let before = self.compared.insert((of, group), applied);
        if before == Some(applied) && !leads_now {
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
            // The replica's log lacks the entry: it was covered by an installed snapshot.
            let Some((place, (proposed, payload))) = entry else {
                break;
            };
            let at = AppliedEntry {
                proposed: *proposed,
                place,
                group,
            };
            let effects = self.effects.entry((group, next)).or_default();
            findings.extend(reference_machine.apply(at, payload, effects, &mut see));
            reference_machine.index = next;
        }
        let was_installed = self.place(of, group, applied).is_none();
        if (applied.is_multiple_of(reference_machine.sampled())
            || before.is_none()
            || leads_now
            || was_installed
            || reference_machine.index < applied)
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

    /// Compares what a replica's commands did with what the reference did, at every entry: outcome,
    /// events and leases of each command.
    pub(super) fn same_effects(
        &self,
        of: NodeDisk,
        found: &[(GroupId, u64, u64)],
    ) -> Vec<CheckResult> {
        let entries = found.chunk_by(|one, two| (one.0, one.1) == (two.0, two.1));
        entries
            .map(|entry| {
                let (group, index, _) = entry[0];
                // The reference has skipped the entry by a snapshot.
                let Some(known) = self.effects.get(&(group, index)) else {
                    return Ok(Relevance::Passed);
                };
                if known.iter().eq(entry.iter().map(|(.., hash)| hash)) {
                    return Ok(Relevance::Checked);
                }
                Err(format!(
                    "{group} at {} (incarnation {}): the commands of entry {index} do something else than in the reference",
                    of.0, of.1
                ))
            })
            .collect()
    }

    /// Compares the state of a replica with the reference at the same index.
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
            // The replica installed a snapshot whose entries are in no log: continue from it.
            reference_machine.restore(index, bytes);
            self.states.insert((group, index), found);
            return Ok(Relevance::Passed);
        }
        let known = if reference_machine.index == index {
            reference_machine.size = bytes.len();
            let expected = reference_machine.encode(bytes);
            Some(*self.states.entry((group, index)).or_insert(expected))
        } else {
            self.states.get(&(group, index)).copied()
        };
        match known {
            None => Ok(Relevance::Passed),
            Some(known) if known == found => Ok(Relevance::Checked),
            Some(_) => Err(format!(
                "{group} at {} (incarnation {}) differs from the reference after entry {index}",
                of.0, of.1
            )),
        }
    }

    /// Checks that a saved snapshot can be decoded and is encoded the same again.
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

    /// Creates the state machine of a group without entries.
    fn blank(&self, group: GroupId) -> ReferenceMachine {
        let channel = EventIdStride::new(group.0, self.groups + 1);
        let machine = if group.0 < self.groups {
            let mut space = Space::new(self.limits.clone(), HashSeed(0));
            space.number_events(channel);
            space.watch();
            let batch = self.limits.batch;
            let usual = SpaceLimits {
                batch,
                ..SpaceLimits::default()
            };
            let is_usual = self.limits == usual;
            let model = is_usual.then(|| Box::new(Model::with_batch(batch as usize)));
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
            size: 0,
            channel,
            machine,
        }
    }
}

/// States are compared, snapshots decoded and invariants checked at every fourth entry. A
/// difference persists, and encoding a state takes longer than all other checks.
const SAMPLED: u64 = 4;

/// Large states are compared less often: after one entry for each of so many bytes, so that the
/// cost per entry does not grow with the state. In between:
///
/// - What every entry does is compared on every replica ([`Reference::same_effects`]). So a difference
///   that is not found has had no effect on any command.
/// - The whole state is compared at the first step of a process, when a replica starts to lead, and
///   when it has installed a snapshot. So a replica that answers reads starts from an equal state.
/// - A difference persists until the next comparison, unless commands without another effect remove
///   it. All states are compared at the end of a run.
const BYTES_PER_ENTRY: usize = 256;
const MOST_SAMPLED: u64 = 256;

/// Length of the header before the machine's own bytes: version and kind of machine.
const HEAD: usize = 2;

impl ReferenceMachine {
    /// Returns the number of entries from one comparison of states to the next.
    fn sampled(&self) -> u64 {
        let entries = (self.size / BYTES_PER_ENTRY) as u64;
        entries.next_power_of_two().clamp(SAMPLED, MOST_SAMPLED)
    }

    /// Applies an entry, to the model as well if there is one.
    fn apply(
        &mut self,
        at: AppliedEntry,
        payload: &Payload,
        effects: &mut Vec<u64>,
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
                    effects.push(effect_hash(
                        &applied.outcome,
                        &applied.events,
                        &applied.leases,
                    ));
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
                    effects.push(effect_hash(&applied.outcome, &applied.events, &[]));
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
        // Verifies the internal invariants of the space; panics if one is broken.
        if let MachineKind::Space(space, _) = &self.machine
            && place.index.is_multiple_of(SAMPLED)
        {
            space.check();
        }
        findings
    }

    /// Returns the hash of the state, with the header of another encoding.
    fn encode(&self, like: &Bytes) -> u64 {
        let head = like.get(..HEAD).unwrap_or_default().to_vec();
        xxh3_64(&match &self.machine {
            MachineKind::Space(space, _) => space.encode_snapshot(head),
            MachineKind::System(system) => system.encode_snapshot(head),
        })
    }

    /// Replaces the state by a snapshot. The model is dropped, because it cannot load one.
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

/// Compares the outcome and the events per owner. Event ids are not compared, because the model
/// numbers its own.
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
