//! Log matching and leader completeness, from what replicas apply.
//!
//! `committed`: all replicas of a group that apply an entry at an index apply the same entry there.
//! `leader`: a replica that begins to lead in a term has every entry that any replica has applied in a
//! lower term. An election of an older term may be won late, when a later leader has decided more.

use std::collections::BTreeMap;

use tenure_node::replica_view::ReplicaView;
use tenure_node::{GroupId, Node, ReplicaId, Role};
use xxhash_rust::xxh3::xxh3_64;

use super::{CheckResult, Relevance};

/// See the module.
#[derive(Default)]
pub(super) struct Entries {
    applied: BTreeMap<GroupId, BTreeMap<u64, SeenEntry>>,
    replicas: BTreeMap<(GroupId, ReplicaId), ReplicaProgress>,
}

/// An entry that some replica has applied.
struct SeenEntry {
    term: u64,
    hash: u64,
    by: ReplicaId,
    /// The lowest term in which a replica was that has applied it.
    in_term: u64,
}

/// How far a replica was when it was last seen.
#[derive(Clone, Copy, Default)]
struct ReplicaProgress {
    applied: u64,
    led: u64,
}

impl Entries {
    /// A process begins: its replicas apply again what their snapshots do not cover.
    pub(super) fn started(&mut self, view: &ReplicaView) {
        let known = self.replicas.entry((view.group, view.member)).or_default();
        known.applied = view.applied;
    }

    /// What a replica has applied since it was last seen.
    pub(super) fn committed(&mut self, node: &Node, view: &ReplicaView) -> CheckResult {
        let known = self.replicas.entry((view.group, view.member)).or_default();
        let before = std::mem::replace(&mut known.applied, view.applied);
        if view.applied <= before {
            return Ok(Relevance::Passed);
        }
        let applied = self.applied.entry(view.group).or_default();
        let mut seen = Relevance::Passed;
        for index in before + 1..=view.applied {
            // Covered by a snapshot that was installed, or cut in the same turn.
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

    /// Whether a replica that has begun to lead has what it must have.
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
