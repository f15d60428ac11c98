//! Persistent list of suspect replicas: they may have lost entries that they had acknowledged.
//!
//! If no crash explains why the log's end is missing, all replicas of the node with other voters
//! become suspect and take no part in elections ([`Recovery::suspect`]). Each stays suspect until
//! it has caught up, across any number of restarts. The first batch after the truncation carries
//! the list; until it is durable, the log reports the truncation again at every start.

use crate::{GroupId, Recovery};
use tenure_log::{Recovered, TooLong, TruncationKind};

/// The key of the node's record with the suspect groups. Its value: their numbers, 4 bytes each,
/// little-endian.
pub const SUSPECTS: &[u8] = b"suspects";

/// The value of the record for these groups.
pub fn suspects_value(groups: impl IntoIterator<Item = GroupId>) -> Vec<u8> {
    let numbers = groups.into_iter().map(|group| group.0.to_le_bytes());
    numbers.flatten().collect()
}

/// Puts the list into a batch, if there is one to be remembered. The first batch behind a suspicious cut must have it.
pub fn note_suspects(suspects: &[GroupId], batch: &mut tenure_log::Batch) -> Result<(), TooLong> {
    if suspects.is_empty() {
        return Ok(());
    }
    batch.node(SUSPECTS, &suspects_value(suspects.iter().copied()))
}

/// The groups that are suspect at this start.
pub fn suspects(recovered: &Recovered) -> Vec<GroupId> {
    let is_suspicious = |cut: &tenure_log::Truncation| cut.kind == TruncationKind::Suspicious;
    if recovered.cut.as_ref().is_some_and(is_suspicious) {
        let all = recovered.groups.keys();
        return all
            .filter_map(|id| u32::try_from(*id).ok().map(GroupId))
            .collect();
    }
    let listed = recovered.node.get(SUSPECTS).map_or(&[][..], Vec::as_slice);
    let numbers = listed.as_chunks::<4>().0.iter();
    numbers
        .map(|number| GroupId(u32::from_le_bytes(*number)))
        .collect()
}

/// Tells the node of them.
pub(crate) fn mark(recovery: &mut Recovery, suspects: Vec<GroupId>) {
    for group in suspects {
        recovery.suspect(group);
    }
}
