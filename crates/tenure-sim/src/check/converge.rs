//! State machine safety: replicas that have applied the same entries have the same state, byte for
//! byte. Compared by their snapshots.

use std::collections::BTreeMap;

use tenure_node::{GroupId, ReplicaId, Snapshot};
use xxhash_rust::xxh3::xxh3_64;

use super::{CheckResult, Relevance};

/// Hash of the snapshot at every index, and the replica that saved it.
#[derive(Default)]
pub(super) struct Convergence {
    seen: BTreeMap<(GroupId, u64), (ReplicaId, u64)>,
}

impl Convergence {
    pub(super) fn see(&mut self, of: ReplicaId, snapshot: &Snapshot) -> CheckResult {
        let hash = xxh3_64(&snapshot.data);
        match self
            .seen
            .insert((snapshot.group, snapshot.index), (of, hash))
        {
            None => Ok(Relevance::Passed),
            Some((_, before)) if before == hash => Ok(Relevance::Checked),
            Some((other, _)) => Err(format!(
                "{} of {of} differs from that of {other} after entry {}",
                snapshot.group, snapshot.index
            )),
        }
    }
}
