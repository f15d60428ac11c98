//! Raft invariants, read from what nodes write: one vote per term, one leader per term, one content
//! per entry, and a majority of disks behind every committed entry.
//!
//! A disk is a node in one incarnation. An entry that it once stored counts for it, also after the
//! process died. A vote counts when it is durable; before that it cannot have left its node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use tenure_node::{
    GroupId, HardState, LogPosition, LogView, LogWrite, Mark, Membership, NodeId, ReplicaId,
    ReplicaStanding, Role, WriteBatch,
};
use xxhash_rust::xxh3::xxh3_64;

use super::{CheckResult, Relevance};

/// A node in one of its incarnations.
pub(super) type NodeDisk = (NodeId, u32);

/// Returns the disk of a replica.
pub(super) fn disk(member: ReplicaId) -> NodeDisk {
    (member.node, member.incarnation)
}

/// What every disk has stored, and the leaders and votes of every term.
#[derive(Default)]
pub(super) struct RaftInvariants {
    /// Written batches that are not durable yet.
    unsynced: BTreeMap<NodeDisk, VecDeque<UnsyncedBatch>>,
    votes: BTreeMap<(GroupId, NodeDisk, u64, u64), ReplicaId>,
    /// How many replicas of a group a disk had and removed. The next replica is a different voter.
    removed: BTreeMap<(GroupId, NodeDisk), u64>,
    leaders: BTreeMap<(GroupId, u64), NodeDisk>,
    contents: BTreeMap<(GroupId, LogPosition), u64>,
    stored: BTreeMap<(GroupId, LogPosition), BTreeSet<NodeDisk>>,
    /// The index of the snapshot or log base that a disk has of a group.
    bases: BTreeMap<(GroupId, NodeDisk), u64>,
    /// What each leader had applied after its last step, and the membership by which it led then.
    applied: BTreeMap<(GroupId, NodeDisk), (u64, Membership)>,
}

/// A batch that is not durable yet.
type UnsyncedBatch = (Mark, Vec<(GroupId, Stored)>);

/// A record that counts once it is durable.
enum Stored {
    State(HardState),
    Entry(LogPosition),
    Base(u64),
    Removed,
}

/// Results, each with the name of its checker.
pub(super) type InvariantNames = Vec<(&'static str, CheckResult)>;

impl RaftInvariants {
    /// A node emits a batch.
    pub(super) fn written(&mut self, of: NodeDisk, batch: &WriteBatch) -> InvariantNames {
        let mut findings = InvariantNames::new();
        let mut stored = Vec::new();
        for (group, record) in &batch.records {
            match record {
                LogWrite::Entries(entries) => {
                    for entry in entries {
                        let hash = xxh3_64(&entry.payload_bytes());
                        findings.push(("same entry", self.same(*group, entry.place, hash)));
                        stored.push((*group, Stored::Entry(entry.place)));
                    }
                }
                LogWrite::HardState(state) => stored.push((*group, Stored::State(*state))),
                LogWrite::Born(base) | LogWrite::Cut(base) | LogWrite::Installed(base) => {
                    stored.push((*group, Stored::Base(base.place.index)));
                }
                LogWrite::Removed => stored.push((*group, Stored::Removed)),
            }
        }
        let waiting = self.unsynced.entry(of).or_default();
        waiting.push_back((batch.mark, stored));
        findings
    }

    fn same(&mut self, group: GroupId, place: LogPosition, hash: u64) -> CheckResult {
        match *self.contents.entry((group, place)).or_insert(hash) {
            known if known == hash => Ok(Relevance::Checked),
            _ => Err(format!("entry {place:?} of {group} has two contents")),
        }
    }

    /// A node's batches up to a mark are durable.
    pub(super) fn durable(&mut self, of: NodeDisk, mark: Mark) -> InvariantNames {
        let mut findings = InvariantNames::new();
        while let Some(waiting) = self.unsynced.get_mut(&of)
            && waiting.front().is_some_and(|(first, _)| *first <= mark)
            && let Some((_, stored)) = waiting.pop_front()
        {
            for (group, stored) in stored {
                findings.push(("one vote", self.store(of, group, &stored)));
            }
        }
        findings
    }

    /// Whether a disk lacks a vote or an entry that was durable on it. Entries are compared only as
    /// long as the disk has had one replica of the group.
    pub(super) fn has_forgotten(&self, of: NodeDisk, found: &[LogView<'_>]) -> bool {
        found.iter().any(|log| {
            let replica = self.removed.get(&(log.group, of)).copied().unwrap_or(0);
            let first = (log.group, of, replica, 0);
            let last = (log.group, of, replica, u64::MAX);
            let newest = self.votes.range(first..=last).next_back();
            let end = log.entries.last().map_or(log.base, |entry| entry.place);
            let after = (Bound::Excluded((log.group, end)), Bound::Unbounded);
            let later = self.stored.range(after);
            let mut later = later.take_while(|((group, _), _)| *group == log.group);
            let lost = replica == 0 && later.any(|(_, disks)| disks.contains(&of));
            lost || newest.is_some_and(|((.., term), _)| *term > log.hard_state.term)
        })
    }

    /// A process starts with this state on its disk. All of it is durable, also what the dead
    /// process did not know to be.
    pub(super) fn starts(&mut self, of: NodeDisk, found: &LogView<'_>) -> InvariantNames {
        self.unsynced.remove(&of);
        let mut findings = InvariantNames::new();
        let state = Stored::State(found.hard_state);
        let entries = found.entries.iter();
        let entries = entries.map(|entry| Stored::Entry(entry.place));
        for stored in [state, Stored::Base(found.base.index)]
            .into_iter()
            .chain(entries)
        {
            findings.push(("one vote", self.store(of, found.group, &stored)));
        }
        findings
    }

    /// Records durable data. Fails if a voter has voted for two candidates in one term.
    fn store(&mut self, of: NodeDisk, group: GroupId, stored: &Stored) -> CheckResult {
        match stored {
            Stored::Entry(place) => {
                self.stored.entry((group, *place)).or_default().insert(of);
            }
            Stored::Base(index) => {
                let base = self.bases.entry((group, of)).or_default();
                *base = (*base).max(*index);
            }
            Stored::Removed => *self.removed.entry((group, of)).or_default() += 1,
            Stored::State(state) => {
                let Some(vote) = state.vote else {
                    return Ok(Relevance::Passed);
                };
                let replica = self.removed.get(&(group, of)).copied().unwrap_or(0);
                let voter = (group, of, replica, state.term);
                let first = *self.votes.entry(voter).or_insert(vote);
                if first != vote {
                    let (node, incarnation) = of;
                    return Err(format!(
                        "{node} (life {incarnation}) voted for {first} and for {vote} in term {} of {group}",
                        state.term
                    ));
                }
                return Ok(Relevance::Checked);
            }
        }
        Ok(Relevance::Passed)
    }

    /// A replica after a step. `applied` is the position of its last applied entry, if its log
    /// contains it.
    pub(super) fn stepped(
        &mut self,
        of: NodeDisk,
        replica: &ReplicaStanding<'_>,
        applied: Option<LogPosition>,
    ) -> InvariantNames {
        if replica.role != Role::Leader {
            self.applied.remove(&(replica.group, of));
            return InvariantNames::new();
        }
        let mut findings = vec![("one leader", self.leads(of, replica))];
        let now = (replica.applied, replica.membership.clone());
        let before = self.applied.insert((replica.group, of), now);
        // An entry that changes the membership was committed by the membership before it, so only
        // steps without such a change are checked.
        if let Some((before, by)) = before
            && before < replica.applied
            && by == *replica.membership
            && let Some(place) = applied
        {
            findings.push(("quorum", self.by_majority(replica, place)));
        }
        findings
    }

    /// Whether a leader has another membership than after its last step.
    pub(super) fn is_new_membership(&self, of: NodeDisk, replica: &ReplicaStanding<'_>) -> bool {
        replica.role == Role::Leader
            && self
                .applied
                .get(&(replica.group, of))
                .is_none_or(|(_, membership)| membership != replica.membership)
    }

    fn leads(&mut self, of: NodeDisk, replica: &ReplicaStanding<'_>) -> CheckResult {
        let (group, term) = (replica.group, replica.term);
        match *self.leaders.entry((group, term)).or_insert(of) {
            first if first == of => Ok(Relevance::Checked),
            (node, incarnation) => Err(format!(
                "{group} has two leaders in term {term}: {node} (life {incarnation}) and {} (life {})",
                of.0, of.1
            )),
        }
    }

    /// Whether a majority of the voters (of both halves of a joint membership) has an entry on
    /// disk.
    fn by_majority(&self, replica: &ReplicaStanding<'_>, place: LogPosition) -> CheckResult {
        let group = replica.group;
        let stored = self.stored.get(&(group, place));
        let has = |member: &&ReplicaId| {
            let disk = disk(**member);
            stored.is_some_and(|stored| stored.contains(&disk))
                || self.bases.get(&(group, disk)) >= Some(&place.index)
        };
        let membership = replica.membership;
        for voters in [&membership.voters, &membership.outgoing] {
            let count = voters.iter().filter(has).count();
            if !voters.is_empty() && count * 2 <= voters.len() {
                return Err(format!(
                    "{place:?} of {group} is applied and on the disks of {count} of {voters:?}"
                ));
            }
        }
        Ok(Relevance::Checked)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tenure_node::{Entry, Payload, SyncMode};

    use super::*;

    const GROUP: GroupId = GroupId(0);

    fn node(number: u32) -> NodeId {
        NodeId::new(number).unwrap()
    }

    fn batch(mark: u64, record: LogWrite) -> WriteBatch {
        WriteBatch {
            mark: Mark(mark),
            sync: SyncMode::Now,
            snapshots: Vec::new(),
            records: vec![(GROUP, record)],
        }
    }

    fn vote(mark: u64, term: u64, candidate: u32) -> WriteBatch {
        let vote = Some(crate::simulator::member(candidate as usize - 1, 1));
        let state = HardState {
            term,
            vote,
            ..HardState::default()
        };
        batch(mark, LogWrite::HardState(state))
    }

    fn objects(findings: &InvariantNames) -> bool {
        findings.iter().any(|(_, finding)| finding.is_err())
    }

    /// A vote counts when it is durable, and then permanently.
    #[test]
    fn a_disk_has_one_vote_in_a_term() {
        let mut checker = RaftInvariants::default();
        let of = (node(1), 1);
        checker.written(of, &vote(1, 7, 2));
        // The process dies before the sync: this vote never left its node.
        let found = LogView {
            group: GROUP,
            hard_state: HardState::default(),
            base: LogPosition::default(),
            entries: &[],
        };
        checker.starts(of, &found);
        checker.written(of, &vote(1, 7, 3));
        assert!(!objects(&checker.durable(of, Mark(1))));
        checker.written(of, &vote(2, 8, 2));
        assert!(!objects(&checker.durable(of, Mark(2))));
        checker.written(of, &vote(3, 7, 2));
        assert!(objects(&checker.durable(of, Mark(3))));
    }

    #[test]
    fn an_entry_has_one_content() {
        let mut checker = RaftInvariants::default();
        let entries = |payload: Payload| {
            let place = LogPosition { term: 3, index: 9 };
            batch(1, LogWrite::Entries(vec![Entry { place, payload }]))
        };
        let commands = Payload::Commands(bytes::Bytes::from_static(b"x"));
        assert!(!objects(
            &checker.written((node(1), 1), &entries(commands.clone()))
        ));
        assert!(!objects(&checker.written((node(2), 1), &entries(commands))));
        assert!(objects(
            &checker.written((node(3), 1), &entries(Payload::Empty))
        ));
    }

    /// Two of three disks are enough for an applied entry; one is not.
    #[test]
    fn what_is_applied_is_on_the_disks_of_a_majority() {
        let membership = Membership {
            voters: (0..3).map(|at| crate::simulator::member(at, 1)).collect(),
            ..Membership::default()
        };
        for (stored, bad) in [(1, true), (2, false)] {
            let mut checker = RaftInvariants::default();
            let leader = |applied| ReplicaStanding {
                group: GROUP,
                role: Role::Leader,
                term: 1,
                applied,
                membership: &membership,
            };
            let place = LogPosition { term: 1, index: 5 };
            let of = |number| (node(number), 1);
            checker.stepped(of(1), &leader(4), None);
            for number in 1..=stored {
                let payload = Payload::Empty;
                let entries = LogWrite::Entries(vec![Entry { place, payload }]);
                checker.written(of(number), &batch(1, entries));
                checker.durable(of(number), Mark(1));
            }
            assert_eq!(
                objects(&checker.stepped(of(1), &leader(5), Some(place))),
                bad
            );
        }
    }

    #[test]
    fn a_term_has_one_leader() {
        let membership = Membership::default();
        let leader = |term| ReplicaStanding {
            group: GROUP,
            role: Role::Leader,
            term,
            applied: 1,
            membership: &membership,
        };
        let mut checker = RaftInvariants::default();
        assert!(!objects(&checker.stepped((node(1), 1), &leader(3), None)));
        assert!(!objects(&checker.stepped((node(2), 1), &leader(4), None)));
        assert!(objects(&checker.stepped((node(2), 1), &leader(3), None)));
    }
}
