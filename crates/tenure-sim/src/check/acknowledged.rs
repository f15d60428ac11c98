//! Raft vote safety: a replica does not forget entries that it acknowledged.
//!
//! It does not vote for a candidate whose log ends before its own, and its log is not shorter after
//! a restart.
//!
//! Replicas are distinguished by their whole identity. The end of a log may move back for one
//! reason only: a leader of a later term replaced an uncommitted part, and the replica acknowledged
//! that.

use std::collections::BTreeMap;

use tenure_node::replica_view::{ReplicaView, SafetyPromise, SentPromise};
use tenure_node::{GroupId, LogPosition, LogView, Node, ReplicaId};

use super::{CheckResult, Relevance};

/// The acknowledged end of every replica's log.
#[derive(Default)]
pub(super) struct AcknowledgedLog {
    /// The end of each replica's log as it last acknowledged it, and the term in which it did.
    ends: BTreeMap<(GroupId, ReplicaId), (u64, LogPosition)>,
    /// Where the logs of candidates ended, by term.
    candidates: BTreeMap<(GroupId, ReplicaId, u64), LogPosition>,
}

impl AcknowledgedLog {
    /// A process has started: its log must reach the acknowledged end.
    pub(super) fn started(&mut self, view: &ReplicaView) -> CheckResult {
        let Some((term, end)) = self.ends.get_mut(&(view.group, view.member)) else {
            return Ok(Relevance::Passed);
        };
        if view.last >= *end {
            return Ok(Relevance::Checked);
        }
        if view.term <= *term {
            return Err(format!(
                "{} of {} ends at {:?} after a restart, and has acknowledged {end:?} in term {term}",
                view.group, view.member, view.last
            ));
        }
        (*term, *end) = (view.term, view.last);
        Ok(Relevance::Checked)
    }

    /// Whether a disk lacks entries that one of its replicas has acknowledged.
    pub(super) fn has_forgotten(&self, member: ReplicaId, found: &[LogView<'_>]) -> bool {
        let mut known = self.ends.iter();
        known.any(|((group, replica), (term, end))| {
            if !replica.shares_disk(member) {
                return false;
            }
            let log = found.iter().find(|log| log.group == *group);
            log.is_some_and(|log| {
                let last = log.entries.last().map_or(log.base, |entry| entry.place);
                let same = log.hard_state.replica == replica.replica;
                same && last < *end && log.hard_state.term <= *term
            })
        })
    }

    /// A node sends a vote request, a vote or an acknowledgement.
    pub(super) fn sent(&mut self, node: &Node, promised: &SentPromise) -> CheckResult {
        let SentPromise {
            group,
            from,
            to,
            promise,
        } = *promised;
        match promise {
            SafetyPromise::AsksForVote { term, end } => {
                self.candidates.insert((group, from, term), end);
                Ok(Relevance::Passed)
            }
            SafetyPromise::Holds { term, index } => {
                let is_still = |view: ReplicaView| {
                    view.group == group && view.member == from && view.term == term
                };
                // The frame waited for the disk. Meanwhile the entry may have been replaced by a
                // later leader.
                let place = node
                    .term_of(group, index)
                    .map(|term| LogPosition { term, index })
                    .filter(|_| node.replicas().any(is_still));
                if let Some(place) = place {
                    let end = self.ends.entry((group, from)).or_insert((term, place));
                    if term > end.0 || place > end.1 {
                        *end = (term, place);
                    }
                }
                Ok(Relevance::Passed)
            }
            SafetyPromise::Votes { term } => {
                let candidate = self.candidates.get(&(group, to, term));
                // Entries acknowledged in the term of the vote may have arrived after the vote.
                let own = self.ends.get(&(group, from));
                let own = own.filter(|(acknowledged_in, _)| *acknowledged_in < term);
                match (candidate, own) {
                    (Some(theirs), Some((_, own))) if theirs < own => Err(format!(
                        "{from} votes in {group} for {to} of term {term}, whose log ends at {theirs:?}; its own \
                         ends at {own:?}"
                    )),
                    (Some(_), Some(_)) => Ok(Relevance::Checked),
                    _ => Ok(Relevance::Passed),
                }
            }
        }
    }
}
