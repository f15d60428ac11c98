//! Log replay: builds a node's [`Recovery`] from the log and the snapshots on disk.

use crate::{GroupId, LogPosition, RecoveredBytes, Recovery, RecoveryError};
use bytes::Bytes;
use tenure_log::{Disk, Recovered, SnapshotError, Snapshots};

use super::{snapshot_id, suspects};

/// Why what a disk holds cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log's records do not make sense to the node.
    #[error("the records of the log cannot be decoded")]
    Records(#[from] RecoveryError),
    /// A snapshot cannot be read.
    #[error("a snapshot cannot be read")]
    Snapshot(#[from] SnapshotError),
    /// The log has a group number that is out of range.
    #[error("the log has group {0}, and this number is out of range")]
    Group(u64),
}

/// Gives what the log held to the node.
pub fn replay<D: Disk>(
    recovered: Recovered,
    snapshots: &Snapshots<D>,
) -> Result<Recovery, ReplayError> {
    let mut recovery = Recovery::new();
    let suspects = suspects::suspects(&recovered);
    for (id, held) in recovered.groups {
        let group = GroupId(u32::try_from(id).map_err(|_| ReplayError::Group(id))?);
        let place = |index, term| LogPosition { index, term };
        let remains = RecoveredBytes {
            hard_state: Bytes::from(held.state),
            base: held
                .base
                .map(|base| (place(base.index, base.term), Bytes::from(base.note))),
            entries: held
                .entries
                .into_iter()
                .map(|entry| (place(entry.index, entry.term), Bytes::from(entry.payload)))
                .collect(),
        };
        recovery.group(group, remains)?;
    }
    suspects::mark(&mut recovery, suspects);
    for (group, index) in recovery.snapshots() {
        let mut reader = snapshots.open(snapshot_id(group, index))?;
        let mut data = Vec::new();
        while let Some(chunk) = reader.next_chunk()? {
            data.extend_from_slice(chunk);
        }
        recovery.state(group, Bytes::from(data));
    }
    Ok(recovery)
}
