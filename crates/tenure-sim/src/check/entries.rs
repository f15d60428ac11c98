//! Raft log matching and leader completeness, read from what replicas apply.
//!
//! `committed`: all replicas of a group apply the same entry at the same index. `leader`: a replica
//! that starts to lead in a term has every entry that any replica applied in a lower term. (Applied
//! in a lower term, because an election of an old term may be won late, when a later leader has
//! already committed more.)

use std::collections::BTreeMap;

use tenure_node::replica_view::ReplicaView;
use tenure_node::{GroupId, Node, ReplicaId, Role};
use xxhash_rust::xxh3::xxh3_64;

use super::{CheckResult, Relevance};

/// The entries that were applied, and the progress of every replica.
#[derive(Default)]
pub(super) struct Entries {
    applied: BTreeMap<GroupId, BTreeMap<u64, SeenEntry>>,
    replicas: BTreeMap<(GroupId, ReplicaId), ReplicaProgress>,
}

/// An entry that a replica has applied.
struct SeenEntry {
    term: u64,
    hash: u64,
    by: ReplicaId,
    /// The lowest term of a replica at the time when it applied the entry.
    in_term: u64,
}

/// The progress of a replica after its last step.
#[derive(Clone, Copy, Default)]
struct ReplicaProgress {
    applied: u64,
    led: u64,
}

impl Entries {
    /// A process has started: its replicas apply again the entries after their snapshots.
    pub(super) fn started(&mut self, view: &ReplicaView) {
        let known = self.replicas.entry((view.group, view.member)).or_default();
        known.applied = view.applied;
    }

    /// Checks the entries that a replica has applied since its last step.
    pub(super) fn committed(&mut self, node: &Node, view: &ReplicaView) -> CheckResult {
        let known = self.replicas.entry((view.group, view.member)).or_default();
        let before = std::mem::replace(&mut known.applied, view.applied);
        if view.applied <= before {
            return Ok(Relevance::Passed);
        }
        let applied = self.applied.entry(view.group).or_default();
        let mut seen = Relevance::Passed;
        for index in before + 1..=view.applied {
            // Covered by an installed snapshot, or truncated in the same step.
            let Some(entry) = node.entry(view.group, index) else {
                continue;
            };
            let (term, hash) = (entry.place.term, xxh3_64(&entry.payload_bytes()));
            let first = applied.entry(index).or_insert(SeenEntry {
                term,
                hash,
                by: view.member,
                in_term: view.term,
            });
            if (first.term, first.hash) != (term, hash) {
                return Err(format!(
                    "{} has applied an entry {index} of term {term} in {}, {} another one of term {}",
                    view.member, view.group, first.by, first.term
                ));
            }
            first.in_term = first.in_term.min(view.term);
            seen = Relevance::Checked;
        }
        Ok(seen)
    }

    /// Checks that a new leader has all entries that were applied in lower terms.
    pub(super) fn leader(&mut self, node: &Node, view: &ReplicaView) -> CheckResult {
        let known = self.replicas.entry((view.group, view.member)).or_default();
        if view.role != Role::Leader || known.led == view.term {
            return Ok(Relevance::Passed);
        }
        known.led = view.term;
        let applied = self.applied.entry(view.group).or_default();
        for (index, entry) in applied.range(view.base + 1..) {
            let has = node.term_of(view.group, *index);
            if entry.in_term < view.term && has != Some(entry.term) {
                return Err(format!(
                    "{} leads {} in term {} without the entry {index} of term {}, which {} has applied",
                    view.member, view.group, view.term, entry.term, entry.by
                ));
            }
        }
        Ok(Relevance::Checked)
    }
}
