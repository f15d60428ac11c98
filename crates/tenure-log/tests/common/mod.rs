//! Reference model of the log, and a workload for both.
//!
//! The workload is a pure function: batch `n` depends only on `n` and on the model before it. So a
//! test that has the model after some batch can compute every later one, also in another process.

#![allow(dead_code, reason = "each test program uses a part of this")]
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::collections::BTreeMap;

use tenure_log::{
    Batch, BatchNumber, Disk, FileLog, GroupId, Log, LogBase, LogBaseKind, LogError, Opened,
    Options, Recovered, RecoveredEntry, RecoveredGroup, SimDisk, SnapshotError, SnapshotId,
    Snapshots,
};

/// File sizes so small that rotation, freeing and reuse happen within a few batches.
pub(crate) const TINY: Options = Options {
    first_file: 6 << 10,
    file: 8 << 10,
    spares: 1,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Entry {
        group: GroupId,
        index: u64,
        term: u64,
        payload: Vec<u8>,
    },
    State {
        group: GroupId,
        state: Vec<u8>,
    },
    Begin {
        group: GroupId,
        index: u64,
    },
    Taken {
        group: GroupId,
        index: u64,
        term: u64,
    },
    Installed {
        group: GroupId,
        index: u64,
        term: u64,
    },
    Remove {
        group: GroupId,
    },
    Node {
        key: Vec<u8>,
        value: Vec<u8>,
    },
}

/// The expected content of a log, in plain lists and maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) batches: u64,
    pub(crate) groups: BTreeMap<GroupId, ModelGroup>,
    pub(crate) node: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelGroup {
    pub(crate) state: Vec<u8>,
    pub(crate) base: Option<LogBase>,
    pub(crate) entries: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl ModelGroup {
    pub(crate) fn last(&self) -> u64 {
        self.entries
            .keys()
            .next_back()
            .copied()
            .unwrap_or(self.first() - 1)
    }

    /// The index of the snapshot that is its base.
    pub(crate) fn snapshot(&self) -> Option<u64> {
        let base = self
            .base
            .as_ref()
            .filter(|base| base.kind == LogBaseKind::Snapshot);
        base.map(|base| base.index)
    }

    fn first(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| base.index) + 1
    }
}

/// The base that the workload writes.
fn base(kind: LogBaseKind, index: u64, term: u64) -> LogBase {
    LogBase {
        kind,
        index,
        term,
        note: format!("members at {index}").into_bytes(),
    }
}

impl Model {
    pub(crate) fn apply(&mut self, ops: &[Op]) {
        self.batches += 1;
        for op in ops {
            match op.clone() {
                Op::Entry {
                    group,
                    index,
                    term,
                    payload,
                } => {
                    let entries = &mut self.groups.entry(group).or_default().entries;
                    entries.retain(|&earlier, _| earlier < index);
                    entries.insert(index, (term, payload));
                }
                Op::State { group, state } => self.groups.entry(group).or_default().state = state,
                Op::Begin { group, index } => {
                    let group = self.groups.entry(group).or_default();
                    group.base = Some(base(LogBaseKind::Begin, index, 1));
                }
                Op::Taken { group, index, term } => {
                    let group = self.groups.entry(group).or_default();
                    group.base = Some(base(LogBaseKind::Snapshot, index, term));
                    group.entries.retain(|&entry, _| entry > index);
                }
                Op::Installed { group, index, term } => {
                    let group = self.groups.entry(group).or_default();
                    group.base = Some(base(LogBaseKind::Snapshot, index, term));
                    group.entries.clear();
                }
                Op::Remove { group } => {
                    self.groups.remove(&group);
                }
                Op::Node { key, value } => {
                    self.node.insert(key, value);
                }
            }
        }
    }

    /// Converts recovered content to a model.
    pub(crate) fn of(recovered: &Recovered) -> Model {
        let group = |held: &RecoveredGroup| ModelGroup {
            state: held.state.clone(),
            base: held.base.clone(),
            entries: held
                .entries
                .iter()
                .map(
                    |RecoveredEntry {
                         index,
                         term,
                         payload,
                     }| (*index, (*term, payload.clone())),
                )
                .collect(),
        };
        Model {
            batches: recovered.mark.0,
            groups: recovered
                .groups
                .iter()
                .map(|(&id, held)| (id, group(held)))
                .collect(),
            node: recovered.node.clone(),
        }
    }

    /// Returns the operations of the next batch.
    pub(crate) fn next_ops(&self, load: &Workload) -> Vec<Op> {
        let number = self.batches + 1;
        let mut rng = Rng::new(load.seed ^ number.wrapping_mul(0x9e37_79b9));
        let mut after = self.clone();
        let mut ops = Vec::new();
        for _ in 0..=rng.below(4) {
            let group = 1 + rng.below(load.groups);
            let held = after.groups.get(&group).cloned().unwrap_or_default();
            let op = match rng.below(20) {
                0..=9 if held == ModelGroup::default() && rng.below(2) == 0 => Op::Begin {
                    group,
                    index: 1 + rng.below(5),
                },
                0..=9 => {
                    // Usually the next index, sometimes an existing one.
                    let back = if rng.below(5) == 0 { rng.below(4) } else { 0 };
                    let index = (held.last() + 1).saturating_sub(back).max(held.first());
                    let payload = bytes(&mut rng, load.payload);
                    Op::Entry {
                        group,
                        index,
                        term: number,
                        payload,
                    }
                }
                10..=13 => Op::State {
                    group,
                    state: bytes(&mut rng, 24),
                },
                14..=17 => match held.entries.iter().next_back() {
                    // The groups keep different numbers of entries.
                    Some((&index, &(term, _))) if group == 1 || rng.below(3) > 0 => {
                        Op::Taken { group, index, term }
                    }
                    _ => match held.entries.iter().next() {
                        Some((&index, &(term, _))) => Op::Taken { group, index, term },
                        None => continue,
                    },
                },
                18 => {
                    let index = held.last() + 1 + rng.below(3);
                    Op::Installed {
                        group,
                        index,
                        term: number,
                    }
                }
                _ if rng.below(2) == 0 => Op::Remove { group },
                _ => Op::Node {
                    key: vec![b'k', rng.below(3) as u8],
                    value: bytes(&mut rng, 20),
                },
            };
            after.apply(std::slice::from_ref(&op));
            ops.push(op);
        }
        if ops.is_empty() {
            ops.push(Op::State {
                group: 1,
                state: number.to_le_bytes().to_vec(),
            });
        }
        ops
    }
}

/// The parameters of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) seed: u64,
    pub(crate) groups: u64,
    /// Maximum length of payloads.
    pub(crate) payload: u64,
}

/// A random generator with reproducible numbers.
pub(crate) use tenure_random::SplitMix64 as Rng;

/// Returns up to `most` random bytes.
pub(crate) fn bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    let length = rng.below(most + 1);
    (0..length).map(|_| rng.next() as u8).collect()
}

/// An error that ends a step of the workload.
#[derive(Debug)]
pub(crate) enum Stopped {
    Log(LogError),
    Snapshot(SnapshotError),
}

impl From<LogError> for Stopped {
    fn from(error: LogError) -> Stopped {
        Stopped::Log(error)
    }
}

impl From<SnapshotError> for Stopped {
    fn from(error: SnapshotError) -> Stopped {
        Stopped::Snapshot(error)
    }
}

/// Appends one batch as a correct driver does: snapshots are committed before a batch refers to
/// them.
pub(crate) fn append<D: Disk>(
    log: &mut FileLog<D>,
    snapshots: &Snapshots<D>,
    ops: &[Op],
) -> Result<BatchNumber, Stopped> {
    let mut batch = Batch::new();
    for op in ops {
        match op {
            Op::Entry {
                group,
                index,
                term,
                payload,
            } => {
                batch.entry(*group, *index, *term, payload).unwrap();
            }
            Op::State { group, state } => batch.state(*group, state).unwrap(),
            Op::Taken { group, index, term } => {
                write_snapshot(snapshots, *group, *index)?;
                let base = base(LogBaseKind::Snapshot, *index, *term);
                batch
                    .snapshot_taken(*group, *index, *term, &base.note)
                    .unwrap();
            }
            Op::Installed { group, index, term } => {
                write_snapshot(snapshots, *group, *index)?;
                let base = base(LogBaseKind::Snapshot, *index, *term);
                batch
                    .snapshot_installed(*group, *index, *term, &base.note)
                    .unwrap();
            }
            Op::Begin { group, index } => {
                let base = base(LogBaseKind::Begin, *index, 1);
                batch.begin(*group, *index, 1, &base.note).unwrap();
            }
            Op::Remove { group } => batch.remove(*group).unwrap(),
            Op::Node { key, value } => batch.node(key, value).unwrap(),
        }
    }
    Ok(log.append(&mut batch)?)
}

/// Removes the snapshots that `ops` made obsolete. Call it when they are durable.
pub(crate) fn retire<D: Disk>(
    snapshots: &Snapshots<D>,
    model: &Model,
    ops: &[Op],
) -> Result<(), Stopped> {
    for op in ops {
        if let Op::Taken { group, .. } | Op::Installed { group, .. } | Op::Remove { group } = op {
            match model.groups.get(group).and_then(ModelGroup::snapshot) {
                Some(index) => snapshots.retire_before(SnapshotId {
                    group: *group,
                    index,
                })?,
                None => snapshots.remove_group(*group)?,
            }
        }
    }
    Ok(())
}

fn write_snapshot<D: Disk>(
    snapshots: &Snapshots<D>,
    group: GroupId,
    index: u64,
) -> Result<(), SnapshotError> {
    let id = SnapshotId { group, index };
    let mut writer = snapshots.create(id)?;
    writer.write(&snapshot_bytes(id))?;
    writer.commit()?;
    Ok(())
}

/// The content of a snapshot in the workload.
pub(crate) fn snapshot_bytes(id: SnapshotId) -> Vec<u8> {
    let mut rng = Rng::new(id.group ^ (id.index << 8));
    bytes(&mut rng, 300)
}

/// Reads all bytes of a snapshot.
pub(crate) fn read_snapshot<D: Disk>(
    snapshots: &Snapshots<D>,
    id: SnapshotId,
) -> Result<Vec<u8>, SnapshotError> {
    let mut reader = snapshots.open(id)?;
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next_chunk()? {
        bytes.extend_from_slice(chunk);
    }
    Ok(bytes)
}

/// Checks that every snapshot that the log refers to exists and is whole.
pub(crate) fn check_snapshots<D: Disk>(opened: &Opened<D>) {
    for (&group, held) in &Model::of(&opened.recovered).groups {
        if let Some(index) = held.snapshot() {
            let id = SnapshotId { group, index };
            let bytes = read_snapshot(&opened.snapshots, id).unwrap();
            assert_eq!(
                bytes,
                snapshot_bytes(id),
                "the snapshot of group {group} at {index}"
            );
        }
    }
}

/// A crash that loses everything that was not synced.
pub(crate) fn lose_all(disk: &SimDisk) -> SimDisk {
    disk.crash(&mut || false)
}

/// Names on the disk that start with `prefix`, in order.
pub(crate) fn names(disk: &SimDisk, prefix: &str) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.retain(|name| name.starts_with(prefix));
    names.sort();
    names
}
