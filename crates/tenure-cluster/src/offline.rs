//! What an operator does to a data directory while no node runs on it: restore a backup, go on
//! without a lost majority, start anew after damage.
//!
//! Both a restored and a recovered directory are the beginning of a *new* cluster: a new life, a new
//! number for the cluster, one voter. Nodes of the old one cannot meet it by mistake, and others
//! join it with empty directories, as many as there shall be. Neither knows what was given out since
//! the state it has, so every counter and floor is raised by 2^40 (R164).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tenure_log::{Log, OpenError, RealDisk};
use tenure_node::{
    ClusterConfig, Config, GroupId, HardState, Input, Limits, Member, Membership, Moment, Node,
    NodeId, Output, Place,
};

use crate::archive::SavedGroup;
use crate::identity::{Identity, IdentityError};
use crate::journal::{ReplayError, replay, save};
use crate::random;

/// By how much counters and floors are raised.
const LIFT: u64 = 1 << 40;
/// A node that has only to apply its log is done after so many turns, or never.
const MOST_TURNS: usize = 100_000;

/// Why a directory is left as it was.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// Files cannot be made, moved or read.
    #[error("{path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The log cannot be opened; a node may be running on it.
    #[error("the log in {path} cannot be opened: {source}")]
    Log {
        /// Which directory.
        path: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// There is something already.
    #[error("{0} is not empty: name a directory for the new cluster that is")]
    NotEmpty(PathBuf),
    /// There is nothing.
    #[error("{0} holds no data of a node")]
    Nothing(PathBuf),
    /// What it holds makes no sense.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Nor does its identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A state cannot be read.
    #[error("the state of group {group} cannot be read: {why}")]
    State {
        /// Which group.
        group: u32,
        /// Why.
        why: String,
    },
    /// The directories are of different clusters.
    #[error("{0} belongs to another cluster")]
    Other(PathBuf),
    /// The new directory cannot be written.
    #[error("cannot write the new data: {0}")]
    Write(String),
}

/// What a directory was found to hold, for a report to the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Facts of the cluster.
    pub facts: ClusterConfig,
    /// The node whose directory it was.
    pub node: NodeId,
    /// Groups that were found nowhere and begin empty.
    pub lost: Vec<u32>,
}

/// Makes a data directory from the states of a backup: the beginning of a new cluster.
pub fn restore(
    data_dir: &Path,
    node: NodeId,
    facts: &ClusterConfig,
    groups: Vec<SavedGroup>,
) -> Result<(), OfflineError> {
    let db = data_dir.join("db");
    if db.exists() {
        return Err(OfflineError::NotEmpty(db));
    }
    write(&db, node, facts, groups)
}

/// Goes on with what these directories of one cluster hold, when the other nodes are lost for good:
/// the first becomes the beginning of a new cluster, its old data stays beside it.
pub fn recover(data_dir: &Path, also: &[PathBuf]) -> Result<Recovered, OfflineError> {
    let (identity, mut best) = extract(data_dir)?;
    for other in also {
        let (found, groups) = extract(other)?;
        if found.cluster_id != identity.cluster_id || found.cluster != identity.cluster {
            return Err(OfflineError::Other(other.clone()));
        }
        for (group, (place, saved)) in groups {
            // Who has more has everything that the others have.
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
    let db = data_dir.join("db");
    let fresh = data_dir.join("db.new");
    if fresh.exists() {
        remove(&fresh)?;
    }
    write(&fresh, identity.me.node, &facts, groups)?;
    set_aside(data_dir, "db.before-recover")?;
    rename(&fresh, &db)?;
    Ok(Recovered {
        facts,
        node: identity.me.node,
        lost,
    })
}

/// After damage: the old data is set aside, and the node joins again, empty and in a new life.
/// Returns where the old data is.
pub fn rejoin(data_dir: &Path) -> Result<PathBuf, OfflineError> {
    let db = data_dir.join("db");
    if !db.exists() {
        return Err(OfflineError::Nothing(data_dir.to_owned()));
    }
    // Whoever runs on it holds its lock.
    let disk = RealDisk::open(&db).map_err(at(&db))?;
    if let Err(source @ OpenError::Locked { .. }) = tenure_log::open(disk, options()) {
        return Err(OfflineError::Log { path: db, source });
    }
    set_aside(data_dir, "db.damaged")
}

fn options() -> tenure_log::Options {
    tenure_log::Options::default()
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> OfflineError {
    let path = path.to_owned();
    move |source| OfflineError::Io { path, source }
}

/// Gives a directory another name beside its old one, durably.
fn rename(from: &Path, to: &Path) -> Result<(), OfflineError> {
    let renamed = std::fs::rename(from, to).and_then(|()| {
        let above = to.parent().unwrap_or(Path::new("."));
        std::fs::File::open(above)?.sync_all()
    });
    renamed.map_err(at(from))
}

fn remove(path: &Path) -> Result<(), OfflineError> {
    std::fs::remove_dir_all(path).map_err(at(path))
}

fn set_aside(data_dir: &Path, name: &str) -> Result<PathBuf, OfflineError> {
    let free = (0..)
        .map(|number| data_dir.join(format!("{name}.{number}")))
        .find(|path| !path.exists());
    let aside = free.unwrap_or_else(|| data_dir.join(name));
    rename(&data_dir.join("db"), &aside)?;
    Ok(aside)
}

type States = BTreeMap<u32, (Place, SavedGroup)>;

/// Applies everything that a directory's log holds, decided or not, and takes the states.
fn extract(data_dir: &Path) -> Result<(Identity, States), OfflineError> {
    let db = data_dir.join("db");
    if !db.exists() {
        return Err(OfflineError::Nothing(data_dir.to_owned()));
    }
    let disk = RealDisk::open(&db).map_err(at(&db))?;
    let opened = tenure_log::open(disk, options()).map_err(|source| OfflineError::Log {
        path: db.clone(),
        source,
    })?;
    let identity = Identity::find(&opened.recovered.node)?
        .ok_or_else(|| OfflineError::Nothing(data_dir.to_owned()))?;
    let mut recovery = replay(opened.recovered, &opened.snapshots)?;
    recovery.take_over(identity.me);
    let last: BTreeMap<GroupId, Place> = recovery
        .groups()
        .filter_map(|group| Some((group, recovery.last(group)?)))
        .collect();
    let node = run(identity.me, &identity.cluster, recovery)?;
    let mut states = States::new();
    for (group, place) in last {
        let (index, state) = node.state_of(group).ok_or_else(|| OfflineError::State {
            group: group.0,
            why: "it has no replica".to_owned(),
        })?;
        let saved = SavedGroup {
            group: group.0,
            index,
            state,
        };
        states.insert(group.0, (place, saved));
    }
    Ok((identity, states))
}

/// The states of groups that have nothing.
fn empty_states(facts: &ClusterConfig, lost: &[u32]) -> Result<Vec<SavedGroup>, OfflineError> {
    let me = Member::new(
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

/// Runs a lone node in memory until it has applied all it has.
fn run(
    me: Member,
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
    let moment = |turn: usize| Moment {
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
                // Each has elected itself, and applied what its log had and its own first entry.
                group.serves && group.applied == group.last
            });
        if is_done {
            return Ok(node);
        }
        outputs = node.step(moment(turn), persisted);
    }
    Err(OfflineError::Write("the log cannot be applied".to_owned()))
}

/// Writes a directory that a node can be started on.
fn write(
    db: &Path,
    node: NodeId,
    facts: &ClusterConfig,
    groups: Vec<SavedGroup>,
) -> Result<(), OfflineError> {
    let failed = |error: &dyn std::fmt::Display| OfflineError::Write(error.to_string());
    let disk = RealDisk::open(db).map_err(at(db))?;
    let opened = tenure_log::open(disk, options()).map_err(|source| OfflineError::Log {
        path: db.to_owned(),
        source,
    })?;
    let (mut log, snapshots) = (opened.log, opened.snapshots);
    let drawn = || random().map_err(at(Path::new("/dev/urandom")));
    let me = Member::new(node, drawn()? as u32);
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let born_ms = u64::try_from(wall.as_millis()).unwrap_or(0);
    let identity = Identity::born(me, born_ms, facts.clone(), Some(drawn()? | 1));
    let membership = Membership {
        voters: vec![me],
        ..Membership::default()
    };
    let note = membership.to_bytes();
    let mut batch = tenure_log::Batch::new();
    for saved in groups {
        let group = GroupId(saved.group);
        // A state without entries behind it always has a snapshot, also that of a group at birth.
        let index = saved.index + 1;
        let state: Bytes =
            tenure_node::lift(&saved.state, LIFT).map_err(|error| OfflineError::State {
                group: saved.group,
                why: error.to_string(),
            })?;
        let snapshot = tenure_node::Snapshot {
            group,
            index,
            data: state,
        };
        save(&snapshots, &snapshot).map_err(|error| failed(&error))?;
        let hard_state = HardState {
            term: 1,
            commit: index,
            ..HardState::default()
        };
        let id = u64::from(saved.group);
        batch
            .snapshot_installed(id, index, 1, &note)
            .and_then(|()| batch.state(id, &hard_state.to_bytes()))
            .map_err(|error| failed(&error))?;
        log.append(&mut batch).map_err(|error| failed(&error))?;
    }
    // The identity comes last: a directory without one is no node's.
    let (key, value) = identity.record();
    batch.node(key, &value).map_err(|error| failed(&error))?;
    log.append(&mut batch).map_err(|error| failed(&error))?;
    log.sync().map_err(|error| failed(&error))?;
    Ok(())
}
