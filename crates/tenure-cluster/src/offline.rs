//! Offline operations on a data directory: restore a backup, recover when the other nodes are lost
//! permanently, rejoin after damage, initialize.
//!
//! A restored or recovered directory is the start of a *new* cluster: new incarnation, new cluster
//! id, one voter (R164 (replication factor): fewer voters only on an operator's order). Nodes of
//! the old cluster cannot connect to it by mistake; further nodes join with empty directories.
//!
//! The new cluster does not know which fences were granted after its state was saved. So every
//! counter and fence floor is raised by 2^40 plus an amount that grows with the wall clock: two
//! clusters from one backup must not grant the same fences.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_log::{Disk, FileLog, Log, OpenError, Opened, RealDisk};
use tenure_node::durable::{RestoreError, write_restored};
use tenure_node::{
    ClusterConfig, Config, GroupId, Input, Limits, LogPosition, Node, NodeId, Output, ReplicaId,
    StepTime,
};

use crate::archive::SavedGroup;
use crate::directory::{self, BEFORE_RECOVER, DAMAGED, LIVE, STAGING, UNFINISHED};
use crate::identity::{IdentityError, NodeIdentity};
use crate::log_writer::{ReplayError, replay};
use crate::next_start::{self, NextStart, StartAction, StartReason};
use crate::node_record::NodeRecord;
use crate::peers::{ClusterStanding, PersistedState, persisted_state, supersede};
use crate::random;

/// Minimum by which counters and floors are raised: more than any cluster grants between a backup
/// and its end.
const LEAST_LIFT: u64 = 1 << 40;
/// Additional raise per millisecond since [`LIFT_FROM_MS`]: more fences than one namespace grants
/// in a millisecond. A backup may be restored twice, and the first restored cluster has granted
/// fences in between; only the time distinguishes the two restores.
const LIFT_PER_MS: u64 = 256;
/// Start of the year 2026, UTC.
const LIFT_FROM_MS: u64 = 1_767_225_600_000;
/// Number of checks of a daemon that has just been started, and the pause between them.
const STARTING_LOOKS: usize = 10;
const STARTING_PAUSE: Duration = Duration::from_millis(100);
/// Upper limit of steps for a node that only applies its log. A node that needs more never
/// finishes.
const MOST_TURNS: usize = 100_000;

/// Reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A file or directory cannot be created, moved or read.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The log cannot be opened; a node may be running on it.
    #[error("the log in {path} cannot be opened: {source}")]
    Log {
        /// Path of the log directory.
        path: PathBuf,
        /// Error of the log.
        source: OpenError,
    },
    /// The directory already contains data.
    #[error("{0} is not empty: give an empty directory for the new cluster")]
    NotEmpty(PathBuf),
    /// The directory contains no data of a node.
    #[error("{0} has no data of a node: check --data-dir")]
    Nothing(PathBuf),
    /// The log contains records that cannot be decoded.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The identity in the directory cannot be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The state of a group cannot be decoded, or its counters cannot be raised far enough.
    #[error("the state of group {group} cannot be read: {why}")]
    State {
        /// Number of the group.
        group: u32,
        /// Reason.
        why: String,
    },
    /// The directories belong to different clusters.
    #[error("{0} belongs to another cluster: give directories of one cluster only")]
    Other(PathBuf),
    /// The directory already belongs to a cluster, so none can be created.
    #[error("no cluster was created: the data directory already belongs to cluster {0:016x}")]
    Belongs(u64),
    /// A daemon that belongs to a cluster runs on the directory.
    #[error("no cluster was created: the daemon that runs on {0} is already in a cluster")]
    Runs(PathBuf),
    /// The directory contains data of an earlier incarnation.
    #[error(
        "no cluster was created: {0} shows that this node was in a cluster before. To join it again, run: tenure \
         cluster rejoin. To create a new cluster and forget the old locks, add --forget-old-data"
    )]
    OldData(PathBuf),
    /// The cluster of this directory did not stop in favour of another one.
    #[error(
        "nothing was changed: the cluster of this data directory has met no other cluster with the same token"
    )]
    NothingToDecide,
    /// The clock of this machine is wrong.
    #[error(
        "the clock of this machine is before 2026: set it first. New fencing tokens are derived from the time, so \
         that they are greater than all earlier ones, even if the same backup was restored before"
    )]
    Clock,
    /// The new data cannot be written.
    #[error("cannot write the new data: {0}")]
    Write(String),
}

/// What [`recover`] found, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredData {
    /// Fixed settings of the cluster.
    pub facts: ClusterConfig,
    /// The node whose directory it was.
    pub node: NodeId,
    /// Groups that were found in no directory and start empty.
    pub lost: Vec<u32>,
}

/// Creates a data directory from the states of a backup: the start of a new cluster. Nodes of the
/// original cluster stop when they meet it, if the backup contains that cluster's id.
pub fn restore(
    data_dir: &Path,
    node: NodeId,
    facts: &ClusterConfig,
    groups: Vec<SavedGroup>,
    old_cluster: Option<u64>,
) -> Result<(), OfflineError> {
    restore_at(data_dir, node, facts, groups, old_cluster, wall_ms())
}

fn restore_at(
    data_dir: &Path,
    node: NodeId,
    facts: &ClusterConfig,
    groups: Vec<SavedGroup>,
    old_cluster: Option<u64>,
    now_ms: u64,
) -> Result<(), OfflineError> {
    let db = data_dir.join(LIVE);
    if db.exists() {
        return Err(OfflineError::NotEmpty(db));
    }
    tenure_log::create_directory(data_dir).map_err(at(data_dir))?;
    discard_staging(data_dir)?;
    // The new cluster supersedes the old one: nodes of the old cluster that come back must stop
    // serving, even if their history is longer.
    let standing = ClusterStanding {
        supersedes: old_cluster.into_iter().collect(),
        ..ClusterStanding::default()
    };
    stage(data_dir, node, facts, groups, &standing, now_ms)?;
    // If the restored data is lost later, this order prevents the node from creating another
    // cluster. The first start on the data removes it.
    let order = NextStart::new(StartAction::Join, StartReason::Restore);
    order.write(data_dir).map_err(at(data_dir))?;
    directory::rename(data_dir, STAGING, LIVE).map_err(at(data_dir))
}

/// Continues with the data of these directories of one cluster when the other nodes are lost
/// permanently. The first directory becomes the start of a new cluster; its old data stays beside
/// it.
///
/// Crash safety: at every moment `db` is the complete old data or the complete new data, or it is
/// missing and `db.new` shows that a recovery was interrupted. In the last case a node refuses to
/// start, and this function can be called again.
pub fn recover(data_dir: &Path, also: &[PathBuf]) -> Result<RecoveredData, OfflineError> {
    put_back(data_dir)?;
    // The lock is held until the new data is in place, so that no daemon starts on the old data
    // meanwhile.
    let (identity, peer_state, mut best, _held) = extract(data_dir)?;
    for other in also {
        let (found, _, groups, _) = extract(other)?;
        if found.cluster_id != identity.cluster_id || found.cluster != identity.cluster {
            return Err(OfflineError::Other(other.clone()));
        }
        for (group, (place, saved)) in groups {
            // The replica with the last entry (highest term, then index) contains every committed
            // entry.
            if best.get(&group).is_none_or(|(known, _)| *known < place) {
                best.insert(group, (place, saved));
            }
        }
    }
    let facts = identity.cluster.clone();
    let lost: Vec<u32> = (0..=facts.group_count)
        .filter(|group| !best.contains_key(group))
        .collect();
    let mut groups: Vec<SavedGroup> = best.into_values().map(|(_, saved)| saved).collect();
    groups.extend(empty_states(&facts, &lost)?);
    discard_staging(data_dir)?;
    // The new cluster supersedes the old one: nodes of the old cluster that come back must stop
    // serving, even if their history is longer.
    let mut standing = ClusterStanding {
        members: peer_state.standing.members + 1,
        supersedes: peer_state.standing.supersedes,
        ..ClusterStanding::default()
    };
    supersede(&mut standing.supersedes, identity.cluster_id.as_slice());
    let (node, now_ms) = (identity.me.node, wall_ms());
    stage(data_dir, node, &facts, groups, &standing, now_ms)?;
    let order = NextStart::new(StartAction::Join, StartReason::Recover)
        .of(identity.cluster_id, &peer_state.node_records);
    order.write(data_dir).map_err(at(data_dir))?;
    let aside = directory::free_name(data_dir, BEFORE_RECOVER);
    if directory::exchange(data_dir, STAGING, LIVE).map_err(at(data_dir))? {
        directory::rename(data_dir, STAGING, &aside).map_err(at(data_dir))?;
    } else {
        directory::rename(data_dir, LIVE, &aside).map_err(at(data_dir))?;
        directory::rename(data_dir, STAGING, LIVE).map_err(at(data_dir))?;
    }
    Ok(RecoveredData {
        facts,
        node: identity.me.node,
        lost,
    })
}

/// Sets damaged data aside, so that the node joins again, empty and as a new incarnation. Returns
/// the path of the old data.
pub fn rejoin(data_dir: &Path) -> Result<PathBuf, OfflineError> {
    let db = data_dir.join(LIVE);
    if db.exists() {
        // The lock is held until the data has moved, so that no daemon starts on it meanwhile.
        let (known, _held) = last_known(&db)?;
        discard_staging(data_dir)?;
        let order = order_to_rejoin(data_dir, known);
        // The order comes before the move: after a crash in between, the node still has its old
        // data.
        order.write(data_dir).map_err(at(data_dir))?;
        let aside = directory::free_name(data_dir, DAMAGED);
        directory::rename(data_dir, LIVE, &aside).map_err(at(data_dir))?;
        return Ok(data_dir.join(aside));
    }
    // An earlier release or an interrupted command has already moved the data.
    discard_staging(data_dir)?;
    let set_aside = directory::set_aside(data_dir).map_err(at(data_dir))?;
    let found = [DAMAGED, BEFORE_RECOVER]
        .into_iter()
        .filter_map(|kind| directory::newest(data_dir, kind).ok().flatten())
        .next();
    let newest = found.or_else(|| set_aside.into_iter().next_back());
    let aside = newest.ok_or_else(|| OfflineError::Nothing(data_dir.to_owned()))?;
    let (known, _held) = last_known(&aside)?;
    let order = order_to_rejoin(data_dir, known);
    order.write(data_dir).map_err(at(data_dir))?;
    Ok(aside)
}

/// Orders the next start on an empty directory, or the daemon that waits on it, to create a
/// cluster.
pub fn found(data_dir: &Path, old_data: OldData) -> Result<(), OfflineError> {
    tenure_log::create_directory(data_dir).map_err(at(data_dir))?;
    let db = data_dir.join(LIVE);
    let read = || NextStart::read(data_dir).map_err(at(&data_dir.join(next_start::FILE)));
    let mut order = read()?;
    if db.exists() {
        let mut opened = open(&db);
        for _ in 0..STARTING_LOOKS {
            let starts = matches!(
                opened,
                Err(OfflineError::Log {
                    source: OpenError::Locked { .. },
                    ..
                })
            ) && order.is_none();
            if !starts {
                break;
            }
            // A daemon that has just been started writes its order a moment later if it waits for a
            // cluster.
            std::thread::sleep(STARTING_PAUSE);
            order = read()?;
            opened = open(&db);
        }
        match opened {
            Ok(opened) => {
                let identity = NodeIdentity::find(&opened.recovered.node)?;
                if let Some(id) = identity.and_then(|identity| identity.cluster_id) {
                    return Err(OfflineError::Belongs(id));
                }
            }
            // A daemon runs on it. It waits for a cluster if it has written an order; otherwise it
            // has one.
            Err(OfflineError::Log {
                source: OpenError::Locked { .. },
                ..
            }) if order.is_some() => {}
            Err(OfflineError::Log {
                source: OpenError::Locked { .. },
                ..
            }) => return Err(OfflineError::Runs(data_dir.to_owned())),
            Err(error) => return Err(error),
        }
    }
    let set_aside = directory::set_aside(data_dir).map_err(at(data_dir))?;
    let was_in_a_cluster = order.is_some_and(|order| order.forbids_founding());
    let what = match old_data {
        OldData::Forget => StartAction::FoundDespiteOldData,
        OldData::Keep if was_in_a_cluster || !set_aside.is_empty() => {
            let found = set_aside.into_iter().next();
            return Err(OfflineError::OldData(
                found.unwrap_or_else(|| data_dir.join(next_start::FILE)),
            ));
        }
        OldData::Keep => StartAction::Found,
    };
    let order = NextStart::new(what, StartReason::Init);
    order.write(data_dir).map_err(at(data_dir))
}

/// Whether data of an earlier incarnation may be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldData {
    /// It may not.
    Keep,
    /// It may; locks in it can then be granted again.
    Forget,
}

/// Returns whether the daemon that waits on this directory, or the next one, is ordered to create a
/// cluster.
pub fn is_ordered_to_found(data_dir: &Path) -> bool {
    let order = NextStart::read(data_dir);
    matches!(order, Ok(Some(order)) if order.what != StartAction::Join)
}

/// Decides in favour of the cluster of this directory, which stopped for another one. Returns the
/// id of the other cluster.
pub fn keep(data_dir: &Path) -> Result<u64, OfflineError> {
    let db = data_dir.join(LIVE);
    if !db.exists() {
        return Err(OfflineError::Nothing(data_dir.to_owned()));
    }
    let opened = open(&db)?;
    let mut standing = PersistedState::find(&opened.recovered.node)?.standing;
    let rival = standing
        .gave_way_to
        .take()
        .ok_or(OfflineError::NothingToDecide)?;
    supersede(&mut standing.supersedes, &[rival.cluster]);
    let failed = |error: &dyn std::fmt::Display| OfflineError::Write(error.to_string());
    let mut log = opened.log;
    let mut batch = tenure_log::Batch::new();
    let (key, value) = persisted_state::standing(&standing);
    // The log reports a suspicious truncation only until the next append, which may be this one.
    let suspects = tenure_node::durable::suspects(&opened.recovered);
    batch
        .node(&key, &value)
        .and_then(|()| tenure_node::durable::note_suspects(&suspects, &mut batch))
        .map_err(|error| failed(&error))?;
    log.append(&mut batch).map_err(|error| failed(&error))?;
    log.sync().map_err(|error| failed(&error))?;
    Ok(rival.cluster)
}

/// Returns the order to join again. A node that has not joined since the last such order knows less
/// than that order contains, so the old values are kept.
fn order_to_rejoin(data_dir: &Path, (old_cluster, node_records): LastKnown) -> NextStart {
    let order =
        NextStart::new(StartAction::Join, StartReason::Rejoin).of(old_cluster, &node_records);
    match NextStart::read(data_dir) {
        Ok(Some(before)) if old_cluster.is_none() && before.forbids_founding() => NextStart {
            old_cluster: before.old_cluster,
            peers: before.peers,
            ..order
        },
        _ => order,
    }
}

/// The cluster that a directory belonged to, and the nodes that it knew.
type LastKnown = (Option<u64>, Vec<NodeRecord>);

/// Keeps the lock of a directory, so that no daemon starts on it.
enum HeldData {
    Log(#[expect(dead_code, reason = "keeps the directory locked")] Box<FileLog<RealDisk>>),
    Lock(#[expect(dead_code, reason = "keeps the directory locked")] <RealDisk as Disk>::Lock),
}

/// Returns what a directory's log says about its cluster, or nothing if the log cannot be read.
/// Fails if a node runs on it.
fn last_known(db: &Path) -> Result<(LastKnown, HeldData), OfflineError> {
    match open(db) {
        Ok(opened) => {
            let records = &opened.recovered.node;
            let identity = NodeIdentity::find(records).ok().flatten();
            let node_records =
                PersistedState::find(records).map(|peer_state| peer_state.node_records);
            let cluster = identity.and_then(|identity| identity.cluster_id);
            let known = (cluster, node_records.unwrap_or_default());
            Ok((known, HeldData::Log(Box::new(opened.log))))
        }
        Err(
            error @ OfflineError::Log {
                source: OpenError::Locked { .. },
                ..
            },
        ) => Err(error),
        // The data is damaged, which is why it is set aside.
        Err(error) => {
            let lock = RealDisk::open(db).and_then(|disk| disk.lock());
            let lock = lock.map_err(at(db))?.ok_or(error)?;
            Ok(((None, Vec::new()), HeldData::Lock(lock)))
        }
    }
}

/// Moves the live data back after a recovery that was interrupted between two renames.
fn put_back(data_dir: &Path) -> Result<(), OfflineError> {
    let db = data_dir.join(LIVE);
    let newest = directory::newest(data_dir, BEFORE_RECOVER).map_err(at(data_dir))?;
    let staging = data_dir.join(STAGING);
    let (Some(newest), true) = (newest, staging.exists()) else {
        return Ok(());
    };
    if db.exists() {
        // Unreadable data may be the newest there is, so it is an error and not replaced.
        let opened = open(&db)?;
        let identity = NodeIdentity::find(&opened.recovered.node)?;
        let has_cluster = identity.is_some_and(|identity| identity.cluster_id.is_some());
        if has_cluster || !opened.recovered.groups.is_empty() {
            return Ok(());
        }
        // An empty directory that a daemon created meanwhile.
        let aside = directory::free_name(data_dir, UNFINISHED);
        directory::rename(data_dir, LIVE, &aside).map_err(at(data_dir))?;
    }
    std::fs::rename(&newest, &db).map_err(at(&newest))?;
    directory::sync(data_dir).map_err(at(data_dir))
}

/// Moves unfinished data aside. It is never deleted: after an exchange it may be the only copy.
fn discard_staging(data_dir: &Path) -> Result<(), OfflineError> {
    if data_dir.join(STAGING).exists() {
        let aside = directory::free_name(data_dir, UNFINISHED);
        directory::rename(data_dir, STAGING, &aside).map_err(at(data_dir))?;
    }
    Ok(())
}

fn open(db: &Path) -> Result<Opened<RealDisk>, OfflineError> {
    let disk = RealDisk::open(db).map_err(at(db))?;
    tenure_log::open(disk, options()).map_err(|source| OfflineError::Log {
        path: db.to_owned(),
        source,
    })
}

fn options() -> tenure_log::Options {
    tenure_log::Options::default()
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> OfflineError {
    let path = path.to_owned();
    move |source| OfflineError::Io { path, source }
}

fn wall_ms() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(wall.unwrap_or_default().as_millis()).unwrap_or(0)
}

/// Returns by how much counters and floors are raised at this time. A state whose numbers would
/// overflow is refused later.
fn lift_at(now_ms: u64) -> Result<u64, OfflineError> {
    let since_ms = now_ms
        .checked_sub(LIFT_FROM_MS)
        .ok_or(OfflineError::Clock)?;
    Ok(since_ms
        .saturating_mul(LIFT_PER_MS)
        .saturating_add(LEAST_LIFT))
}

type GroupStates = BTreeMap<u32, (LogPosition, SavedGroup)>;

/// Applies all entries in a directory's log, committed or not, and returns the states of its
/// groups.
fn extract(
    data_dir: &Path,
) -> Result<(NodeIdentity, PersistedState, GroupStates, HeldData), OfflineError> {
    let db = data_dir.join(LIVE);
    if !db.exists() {
        return Err(OfflineError::Nothing(data_dir.to_owned()));
    }
    let opened = open(&db)?;
    let peer_state = PersistedState::find(&opened.recovered.node)?;
    let identity = NodeIdentity::find(&opened.recovered.node)?
        .ok_or_else(|| OfflineError::Nothing(data_dir.to_owned()))?;
    let mut recovery = replay(opened.recovered, &opened.snapshots)?;
    recovery.take_over(identity.me);
    let last: BTreeMap<GroupId, LogPosition> = recovery
        .groups()
        .filter_map(|group| Some((group, recovery.last(group)?)))
        .collect();
    let node = run(identity.me, &identity.cluster, recovery)?;
    let mut states = GroupStates::new();
    for (group, place) in last {
        let (index, state) = node.state_of(group).ok_or_else(|| OfflineError::State {
            group: group.0,
            why: "the log has no replica of it".to_owned(),
        })?;
        let saved = SavedGroup {
            group: group.0,
            index,
            state,
        };
        states.insert(group.0, (place, saved));
    }
    Ok((
        identity,
        peer_state,
        states,
        HeldData::Log(Box::new(opened.log)),
    ))
}

/// Returns the states of empty groups.
fn empty_states(facts: &ClusterConfig, lost: &[u32]) -> Result<Vec<SavedGroup>, OfflineError> {
    let me = ReplicaId::new(
        NodeId::new(1).unwrap_or_else(|| unreachable!("one is not zero")),
        1,
    );
    let mut recovery = tenure_node::Recovery::new();
    for group in lost {
        recovery.born(GroupId(*group), vec![me]);
    }
    let node = run(me, facts, recovery)?;
    let state = |group: &u32| {
        let (index, state) = node.state_of(GroupId(*group))?;
        let group = *group;
        Some(SavedGroup {
            group,
            index,
            state,
        })
    };
    Ok(lost.iter().filter_map(state).collect())
}

/// Runs a single node in memory until it has applied its whole log.
fn run(
    me: ReplicaId,
    facts: &ClusterConfig,
    recovery: tenure_node::Recovery,
) -> Result<Node, OfflineError> {
    let config = Config {
        me,
        cluster: facts.clone(),
        limits: Limits::default(),
        start: 1,
        seed: random().map_err(at(Path::new("/dev/urandom")))?,
        nodes: vec![me.node],
    };
    let moment = |turn: usize| StepTime {
        monotonic_ms: turn as u64,
        wall_ms: 0,
    };
    let (mut node, mut outputs) =
        Node::start(config, recovery, moment(0)).map_err(ReplayError::Records)?;
    for turn in 1..MOST_TURNS {
        let persisted = outputs.iter().rev().find_map(|output| match output {
            Output::Write(batch) => Some(Input::Persisted { mark: batch.mark }),
            _ => None,
        });
        let is_done = persisted.is_none()
            && node.status().groups.iter().all(|group| {
                // Each group has elected itself and has applied its log and the first entry of its
                // own term.
                group.serves && group.applied == group.last
            });
        if is_done {
            return Ok(node);
        }
        outputs = node.step(moment(turn), persisted);
    }
    Err(OfflineError::Write("the log cannot be applied".to_owned()))
}

/// Writes data for a new node durably into the staging directory.
fn stage(
    data_dir: &Path,
    node: NodeId,
    facts: &ClusterConfig,
    groups: Vec<SavedGroup>,
    standing: &ClusterStanding,
    now_ms: u64,
) -> Result<(), OfflineError> {
    let failed = |error: &dyn std::fmt::Display| OfflineError::Write(error.to_string());
    let lift = lift_at(now_ms)?;
    let db = data_dir.join(STAGING);
    let opened = open(&db)?;
    let (mut log, snapshots) = (opened.log, opened.snapshots);
    let drawn = || random().map_err(at(Path::new("/dev/urandom")));
    let me = ReplicaId::new(node, drawn()? as u32);
    let identity = NodeIdentity::born(me, now_ms, facts.clone(), Some(drawn()? | 1));
    for SavedGroup {
        group,
        index,
        state,
        ..
    } in groups
    {
        let id = GroupId(group);
        write_restored(&mut log, &snapshots, me, id, index, &state, lift).map_err(|error| {
            match error {
                RestoreError::State(error) => OfflineError::State {
                    group,
                    why: error.to_string(),
                },
                RestoreError::Write(error) => failed(&error),
            }
        })?;
    }
    let mut batch = tenure_log::Batch::new();
    // The identity comes last: a directory without an identity belongs to no node.
    let (key, value) = identity.record();
    batch.node(key, &value).map_err(|error| failed(&error))?;
    let (key, value) = persisted_state::standing(standing);
    batch.node(&key, &value).map_err(|error| failed(&error))?;
    log.append(&mut batch).map_err(|error| failed(&error))?;
    log.sync().map_err(|error| failed(&error))?;
    directory::sync(&db).map_err(at(&db))?;
    directory::sync(data_dir).map_err(at(data_dir))
}

#[cfg(test)]
mod tests {
    use tenure_core::space::{HashSeed, Space};

    use super::*;

    fn facts() -> ClusterConfig {
        ClusterConfig {
            group_count: 1,
            prefix_segments: 1,
            default_algorithm: tenure_core::policy::Algorithm::RecursiveRw,
        }
    }

    /// Returns how many fences a restored group can still grant.
    fn room(data_dir: &Path) -> u64 {
        let (_, _, states, _) = extract(data_dir).unwrap();
        let (_, saved) = &states[&0];
        let space = Space::decode_snapshot(&saved.state[2..], HashSeed(0)).unwrap();
        space.lift_room()
    }

    /// A restored cluster grants fences until it is lost. The next cluster from the same backup
    /// must not grant them again.
    #[test]
    fn two_restores_of_one_backup_give_out_different_fences() {
        let data = tempfile::tempdir().unwrap();
        let groups = empty_states(&facts(), &[0, 1]).unwrap();
        let node = NodeId::new(1).unwrap();
        let restored = |name: &str, now_ms: u64| {
            let directory = data.path().join(name);
            restore_at(&directory, node, &facts(), groups.clone(), None, now_ms)
                .map(|()| room(&directory))
        };
        let second = 1000;
        let now = LIFT_FROM_MS + 365 * 24 * 3600 * second;
        let first = restored("first", now).unwrap();
        let next = restored("next", now + second).unwrap();
        assert!(first >= next + 100_000, "{first} {next}");
        // A clock that was never set would raise by less than an earlier restore did.
        assert!(matches!(restored("unset", 0), Err(OfflineError::Clock)));
        // A state that cannot be raised far enough is refused: it would grant old fences again.
        let late = restored("late", u64::MAX);
        assert!(matches!(late, Err(OfflineError::State { .. })), "{late:?}");
    }

    /// First file of a log.
    const FIRST: &str = "log-00000000000000000001";

    fn restored(data_dir: &Path) {
        let groups = empty_states(&facts(), &[0, 1]).unwrap();
        let node = NodeId::new(1).unwrap();
        restore_at(data_dir, node, &facts(), groups, Some(5), LIFT_FROM_MS).unwrap();
    }

    fn write(db: &Path, items: &[(Vec<u8>, Vec<u8>)]) {
        let mut log = open(db).unwrap().log;
        let mut batch = tenure_log::Batch::new();
        for (key, value) in items {
            batch.node(key, value).unwrap();
        }
        log.append(&mut batch).unwrap();
        log.sync().unwrap();
    }

    /// Unreadable data is not empty data: an older state must not replace it.
    #[test]
    fn a_recovery_refuses_to_replace_data_that_it_cannot_read() {
        let data = tempfile::tempdir().unwrap();
        restored(data.path());
        recover(data.path(), &[]).unwrap();
        let at = |name: &str| data.path().join(name);
        assert!(at("db.before-recover.0").exists());
        std::fs::create_dir(at(STAGING)).unwrap();
        std::fs::remove_file(at(LIVE).join(FIRST)).unwrap();
        assert!(matches!(open(&at(LIVE)), Err(OfflineError::Log { .. })));
        let refused = recover(data.path(), &[]);
        assert!(
            matches!(refused, Err(OfflineError::Log { .. })),
            "{refused:?}"
        );
        assert!(at("db.before-recover.0").exists() && !at("db.unfinished.0").exists());
    }

    /// No daemon starts on data that is about to move, even if it is damaged.
    #[test]
    fn data_that_is_set_aside_is_locked_until_it_has_moved() {
        for damaged in [false, true] {
            let data = tempfile::tempdir().unwrap();
            restored(data.path());
            let db = data.path().join(LIVE);
            if damaged {
                std::fs::remove_file(db.join(FIRST)).unwrap();
            }
            let is_locked = || {
                let opened = open(&db);
                let Err(OfflineError::Log { source, .. }) = opened else {
                    return false;
                };
                matches!(source, OpenError::Locked { .. })
            };
            let (known, held) = last_known(&db).unwrap();
            assert_eq!(known.0.is_none(), damaged);
            assert!(is_locked(), "damaged: {damaged}");
            drop(held);
            assert!(!is_locked(), "damaged: {damaged}");
        }
        let data = tempfile::tempdir().unwrap();
        restored(data.path());
        let (.., _held) = extract(data.path()).unwrap();
        assert!(recover(data.path(), &[]).is_err(), "it is held already");
    }

    /// A node that was set aside and has not joined yet knows no other node: the peers in the
    /// earlier order are kept.
    #[test]
    fn a_second_rejoin_keeps_the_known_nodes() {
        let data = tempfile::tempdir().unwrap();
        restored(data.path());
        let db = data.path().join(LIVE);
        let known = crate::node_record::tests::node_record(2, 2);
        write(&db, &[persisted_state::node_record(&known)]);
        rejoin(data.path()).unwrap();
        let first = NextStart::read(data.path()).unwrap().unwrap();
        assert_eq!(first.peers.len(), 1);
        // The daemon was started and has not found a cluster yet.
        let me = ReplicaId::new(NodeId::new(1).unwrap(), 3);
        let (key, value) = NodeIdentity::born(me, 1, facts(), None).record();
        write(&db, &[(key.to_vec(), value)]);
        rejoin(data.path()).unwrap();
        let second = NextStart::read(data.path()).unwrap().unwrap();
        assert_eq!(second.peers, first.peers);
        assert_eq!(second.old_cluster, first.old_cluster);
    }

    /// `keep` writes the first batch after a suspicious truncation. The log then forgets the
    /// truncation, so the suspect groups are written in the same batch.
    #[test]
    fn a_decision_behind_a_suspicious_cut_notes_the_suspects() {
        use crate::peers::{RivalCluster, RivalOutcome};

        let data = tempfile::tempdir().unwrap();
        let db = data.path().join(LIVE);
        tenure_log::create_directory(data.path()).unwrap();
        let rival = RivalCluster {
            cluster: 9,
            number: 2,
            node: "tenure-1".to_owned(),
            address: String::new(),
            claim: None,
            verdict: RivalOutcome::GivesWay,
        };
        let standing = ClusterStanding {
            gave_way_to: Some(rival),
            ..ClusterStanding::default()
        };
        write(&db, &[persisted_state::standing(&standing)]);
        let mut log = open(&db).unwrap().log;
        let mut batch = tenure_log::Batch::new();
        for (group, index) in [(0, 1), (1, 1), (1, 2)] {
            batch.entry(group, index, 1, b"a command").unwrap();
            log.append(&mut batch).unwrap();
        }
        log.sync().unwrap();
        drop(log);
        let names = std::fs::read_dir(&db).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let newest = names.filter(|name| name.starts_with("log-")).max();
        let newest = db.join(newest.unwrap());
        let mut bytes = std::fs::read(&newest).unwrap();
        let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes[last] ^= 1;
        std::fs::write(&newest, bytes).unwrap();

        assert_eq!(keep(data.path()).unwrap(), 9);
        let opened = open(&db).unwrap();
        assert_eq!(opened.recovered.cut, None);
        let all = [GroupId(0), GroupId(1)];
        assert_eq!(tenure_node::durable::suspects(&opened.recovered), all);
    }
}
