//! Raft with changes of membership and replica identities, as small as the properties allow.
//!
//! The rules follow `tenure-node/src/consensus/replica.rs`, `group.rs`, `coordinator/membership.rs`, `coordinator/replica_removal.rs` and the Raft
//! library: a configuration takes effect when its entry is applied; a leader proposes a change when the one before is
//! applied; a refused vote carries the commit index. What is not in it makes elections rarer, not safer: timeouts,
//! pre-votes, check-quorum, hand-over.
//!
//! An append reaches its replica in one step with all entries of the leader. Votes and acknowledgements are messages that
//! arrive late, more than once, or never. A node that is away is one that takes no steps; a crash loses what is not
//! durable: role, votes, progress, and the commit index that was not written.
//!
//! Two models use it. *Replica identity* (docs/design/replica-identity.md): a replica is removed and added again. *Membership
//! bookkeeping*: requests that are lost and repeated, a joint configuration, a founder that takes in others, a change of
//! leader in the middle.
//!
//! Properties:
//!
//! 1. At most one leader per term, and a leader has every entry that was committed in an earlier term.
//! 2. One place of the log has one committed entry: no two quorums decide without each other.
//! 3. At most one change of membership is under way.
//! 4. A leader without a change under way takes the next one, and leaves a joint configuration that it finds.
//! 5. Deleting a removed replica never takes away a vote that is needed to elect a leader; with the last change widely known,
//!    the loss of any minority node leaves a group that can elect one.
//!
//! A late vote of a removed replica cannot be counted for its successor: a candidate's configuration does not change while it
//! stands, and it stands once in a term. What can happen is that the successor answers for its predecessor
//! ([`Mistake::AnswersForPredecessor`]).

use crate::explore::Model;

/// A replica: node and number of the entry that added it (0: there from the beginning).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u8, pub u8);

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A protection that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A replica that is added again has the identity of the removed one, and votes while it is empty (release 0.1.0).
    SameIdentity,
    /// A removed replica is deleted as soon as the leader has applied the removal.
    DeletedEarly,
    /// A new replica answers what is addressed to its predecessor, also while it is empty.
    AnswersForPredecessor,
    /// The commit index is not written together with a change of membership.
    CommitNotWritten,
    /// A leader proposes a change while another one is not applied.
    TwoChangesAtOnce,
    /// Several steps take effect at once, without a joint configuration.
    NoJointConfiguration,
    /// A change that was asked for stays open when its leader loses the leadership.
    LostChangeStaysOpen,
    /// Only the leader that proposed a joint configuration leaves it.
    LeftByProposerOnly,
}

/// What an operator asks for, by node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberChange {
    /// Add a replica as a learner.
    Add(u8),
    /// Make a learner a voter.
    Promote(u8),
    /// Remove a replica.
    Remove(u8),
    /// Promote one and remove another in one step, by a joint configuration.
    Swap(u8, u8),
}

/// A scene.
#[derive(Clone, Debug)]
pub struct Raft {
    /// Voters of the beginning, which are there from the first entry on; the first one leads in term 1.
    pub voters: Vec<u8>,
    /// Learners of the beginning.
    pub learners: Vec<u8>,
    /// How many nodes there are.
    pub nodes: u8,
    /// What is asked for, each so often as it is listed.
    pub requests: Vec<MemberChange>,
    /// Whether requests come in the order of the list.
    pub in_order: bool,
    /// No election beyond this term.
    pub last_term: u8,
    /// Crashes.
    pub crashes: u8,
    /// Votes and acknowledgements that arrive late or never; all others arrive at once.
    pub late: u8,
    /// A protection that is taken out.
    pub mistake: Option<Mistake>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Change {
    Add(u8),
    Promote(Id),
    Remove(Id),
    Swap(Id, Id),
    Leave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Entry {
    term: u8,
    change: Option<Change>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Config {
    voters: Vec<Id>,
    learners: Vec<Id>,
    outgoing: Vec<Id>,
}

impl Config {
    fn everybody(&self) -> Vec<Id> {
        let mut all = self.voters.clone();
        all.extend(&self.learners);
        all.extend(&self.outgoing);
        all.sort_unstable();
        all.dedup();
        all
    }

    fn electors(&self) -> Vec<Id> {
        let mut all = self.voters.clone();
        all.extend(&self.outgoing);
        all.sort_unstable();
        all.dedup();
        all
    }

    fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    fn has_quorum(&self, yes: impl Fn(Id) -> bool) -> bool {
        [&self.voters, &self.outgoing].into_iter().all(|voters| {
            voters.is_empty() || voters.iter().filter(|one| yes(**one)).count() * 2 > voters.len()
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Progress {
    id: Id,
    matched: u8,
    /// The commit index that it has acknowledged.
    known: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Role {
    Follower,
    Candidate(Vec<Id>),
    Leader {
        progress: Vec<Progress>,
        changed_at: u8,
        removed_at: u8,
        /// Whether it proposed the joint configuration that is in force.
        proposed: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Replica {
    id: Id,
    log: Vec<Entry>,
    term: u8,
    vote: Option<Id>,
    commit: u8,
    /// The commit index on disk.
    durable: u8,
    role: Role,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Node {
    replica: Option<Replica>,
    /// The number of the last replica that was deleted here.
    tombstone: Option<u8>,
    /// A change that was asked for here and is not answered.
    asked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Vote {
        term: u8,
        from: Id,
        to: Id,
    },
    Acknowledged {
        term: u8,
        from: Id,
        to: Id,
        matched: u8,
        known: u8,
    },
}

/// State of the model: replicas with their logs and votes, and messages under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: Vec<Node>,
    messages: Vec<Message>,
    /// Requests that are left, as bits.
    requests: u8,
    crashes: u8,
    /// Answers that may still be late.
    late: u8,
    /// All that was ever committed.
    committed: Vec<Entry>,
    /// In which term each of these entries was committed.
    committed_in: Vec<u8>,
    /// Who led in each term.
    leaders: Vec<(u8, Id)>,
    fault: Option<&'static str>,
}

/// A step.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are what a reader of a path sees")]
pub enum Step {
    Campaigns(Id),
    IsAnsweredLate(Box<Step>),
    AsksForVote(Id, Id),
    GetsVote(Id, Id),
    Appends(Id, Id),
    GetsAcknowledgement(Id, Id),
    Proposes(Id, MemberChange),
    LeavesJoint(Id),
    Deletes(Id),
    Restarts(Id),
}

/// A replica that is left after a loss.
struct Left<'a> {
    id: Id,
    log: &'a [Entry],
    commit: u8,
    config: Config,
}

impl Left<'_> {
    /// Whether a replica votes in its configuration.
    fn may_ask(&self, id: Id) -> bool {
        self.config.voters.contains(&id) || self.config.outgoing.contains(&id)
    }
}

fn last(log: &[Entry]) -> (u8, usize) {
    (log.last().map_or(0, |entry| entry.term), log.len())
}

fn is_change(entry: &Entry) -> bool {
    entry.change.is_some()
}

impl Raft {
    fn first_config(&self) -> Config {
        let ids = |nodes: &[u8]| nodes.iter().map(|node| Id(*node, 0)).collect();
        Config {
            voters: ids(&self.voters),
            learners: ids(&self.learners),
            outgoing: Vec::new(),
        }
    }

    fn enact(&self, config: &mut Config, change: Change, index: u8) {
        match change {
            Change::Add(node) => {
                let number = match self.mistake {
                    Some(Mistake::SameIdentity) => 0,
                    _ => index,
                };
                // A node has one replica: otherwise the change is void.
                if !config.everybody().iter().any(|one| one.0 == node) {
                    config.learners.push(Id(node, number));
                }
            }
            Change::Promote(id) => {
                if config.learners.contains(&id) {
                    config.learners.retain(|one| *one != id);
                    config.voters.push(id);
                }
            }
            Change::Remove(id) => {
                config.learners.retain(|one| *one != id);
                config.voters.retain(|one| *one != id);
            }
            Change::Swap(comes, goes) => {
                if self.mistake != Some(Mistake::NoJointConfiguration) {
                    config.outgoing = config.voters.clone();
                }
                config.learners.retain(|one| *one != comes);
                config.voters.retain(|one| *one != goes && *one != comes);
                config.voters.push(comes);
            }
            Change::Leave => config.outgoing.clear(),
        }
        config.voters.sort_unstable();
        config.learners.sort_unstable();
    }

    /// The configuration after the first entries of a log.
    fn config(&self, log: &[Entry], applied: u8) -> Config {
        let mut config = self.first_config();
        for (at, entry) in log.iter().take(usize::from(applied)).enumerate() {
            if let Some(change) = entry.change {
                self.enact(&mut config, change, at as u8 + 1);
            }
        }
        config
    }

    fn own_config(&self, replica: &Replica) -> Config {
        self.config(&replica.log, replica.commit)
    }

    /// A higher commit index: what is committed is remembered, and membership is applied.
    fn commit(&self, state: &mut State, node: u8, to: u8) {
        let Some(replica) = state.nodes[usize::from(node)].replica.as_mut() else {
            return;
        };
        if to <= replica.commit {
            return;
        }
        let before = self.config(&replica.log, replica.commit);
        let new = usize::from(replica.commit)..usize::from(to);
        let changes = replica.log[new.clone()].iter().any(is_change);
        replica.commit = to;
        if changes && self.mistake != Some(Mistake::CommitNotWritten) {
            replica.durable = to;
        }
        for at in 0..usize::from(to) {
            match state.committed.get(at) {
                Some(entry) if *entry != replica.log[at] => {
                    state.fault = Some("two different entries are committed in one place");
                }
                Some(_) => {}
                None => {
                    state.committed.push(replica.log[at]);
                    state.committed_in.push(replica.term);
                }
            }
        }
        if !changes {
            return;
        }
        let after = self.config(&replica.log, to);
        let me = replica.id;
        let is_voter = after.electors().contains(&me);
        let commit = replica.commit;
        if let Role::Leader {
            progress,
            changed_at,
            removed_at,
            proposed,
        } = &mut replica.role
        {
            let members = after.everybody();
            let gone = before.everybody().iter().any(|one| !members.contains(one));
            *changed_at = commit;
            if gone {
                *removed_at = commit;
            }
            *proposed &= after.is_joint();
            progress.retain(|one| members.contains(&one.id));
            for member in members {
                if !progress.iter().any(|one| one.id == member) {
                    progress.push(Progress {
                        id: member,
                        matched: 0,
                        known: 0,
                    });
                }
            }
            progress.sort_unstable();
            if !is_voter {
                replica.role = Role::Follower;
            }
        }
        let leads = matches!(replica.role, Role::Leader { .. });
        if !after.is_joint() || !leads && self.mistake != Some(Mistake::LostChangeStaysOpen) {
            state.nodes[usize::from(node)].asked = false;
        }
    }

    /// A replica is no leader or candidate any more.
    fn step_down(&self, node: &mut Node) {
        if let Some(replica) = node.replica.as_mut() {
            replica.role = Role::Follower;
        }
        if self.mistake != Some(Mistake::LostChangeStaysOpen) {
            node.asked = false;
        }
    }

    fn see_term(&self, node: &mut Node, term: u8) {
        let Some(replica) = node.replica.as_mut() else {
            return;
        };
        if term > replica.term {
            replica.term = term;
            replica.vote = None;
            self.step_down(node);
        }
    }

    fn lead(&self, state: &mut State, node: u8) {
        let Some(replica) = state.nodes[usize::from(node)].replica.as_mut() else {
            return;
        };
        let (id, term) = (replica.id, replica.term);
        // A candidate may win by a late vote when a later term has committed something: it cannot commit anything.
        let earlier = state.committed_in.iter().zip(&state.committed);
        let mut earlier = earlier.enumerate().filter(|(_, (one, _))| **one < term);
        if earlier.any(|(at, (_, entry))| replica.log.get(at) != Some(entry)) {
            state.fault = Some("a leader lacks what was committed");
        }
        if state.leaders.iter().any(|one| one.0 == term && one.1 != id) {
            state.fault = Some("two leaders in one term");
        }
        state.leaders.push((term, id));
        replica.log.push(Entry { term, change: None });
        let first = replica.log.len() as u8;
        let config = self.config(&replica.log, replica.commit);
        let progress = config.everybody().into_iter().map(|id| Progress {
            id,
            matched: 0,
            known: 0,
        });
        replica.role = Role::Leader {
            progress: progress.collect(),
            // Its predecessors' removals are not known to be known: its first entry stands for them.
            changed_at: first,
            removed_at: first,
            proposed: false,
        };
        self.count(state, node);
    }

    /// The leader commits what a quorum has.
    fn count(&self, state: &mut State, node: u8) {
        loop {
            let Some(replica) = state.nodes[usize::from(node)].replica.as_ref() else {
                return;
            };
            let Role::Leader { progress, .. } = &replica.role else {
                return;
            };
            let config = self.own_config(replica);
            let length = replica.log.len() as u8;
            let has = |index: u8| {
                config.has_quorum(|id| {
                    let there = |one: &Progress| one.id == id && one.matched >= index;
                    id == replica.id && length >= index || progress.iter().any(there)
                })
            };
            let next = (replica.commit + 1..=length).rev().find(|index| {
                has(*index) && replica.log[usize::from(*index) - 1].term == replica.term
            });
            match next {
                Some(index) => self.commit(state, node, index),
                None => return,
            }
        }
    }

    /// Whether a leader has applied an entry of its own term.
    fn is_led(replica: &Replica) -> bool {
        let log = &replica.log[..usize::from(replica.commit)];
        matches!(replica.role, Role::Leader { .. })
            && log.last().is_some_and(|entry| entry.term == replica.term)
    }

    fn is_pending(replica: &Replica) -> bool {
        replica.log[usize::from(replica.commit)..]
            .iter()
            .any(is_change)
    }

    fn removals_are_known(&self, replica: &Replica) -> bool {
        let Role::Leader {
            progress,
            removed_at,
            ..
        } = &replica.role
        else {
            return false;
        };
        self.own_config(replica).has_quorum(|id| {
            let known = progress.iter().find(|one| one.id == id);
            let known = known.map_or(0, |one| one.known);
            let known = if id == replica.id {
                replica.commit
            } else {
                known
            };
            known >= *removed_at
        })
    }

    /// Whether a change may be proposed, as `Node::begin_membership` decides.
    fn propose(&self, state: &State, node: u8, request: MemberChange) -> Option<Change> {
        let here = &state.nodes[usize::from(node)];
        let replica = here.replica.as_ref()?;
        let config = self.own_config(replica);
        if !Raft::is_led(replica) || config.is_joint() {
            return None;
        }
        let busy = here.asked || Raft::is_pending(replica);
        if busy && self.mistake != Some(Mistake::TwoChangesAtOnce) {
            return None;
        }
        let everybody = config.everybody();
        let on = |node: u8| everybody.iter().copied().find(|one| one.0 == node);
        let caught_up = |id: Id| {
            let Role::Leader {
                progress,
                changed_at,
                ..
            } = &replica.role
            else {
                return false;
            };
            let added = id.1.max(*changed_at);
            let there = |one: &Progress| one.id == id && one.matched >= added;
            config.learners.contains(&id) && progress.iter().any(there)
        };
        match request {
            MemberChange::Add(node) => (on(node).is_none() && self.removals_are_known(replica))
                .then_some(Change::Add(node)),
            MemberChange::Promote(node) => {
                let id = on(node).filter(|id| caught_up(*id))?;
                Some(Change::Promote(id))
            }
            MemberChange::Remove(node) => {
                let id = on(node).filter(|id| *id != replica.id)?;
                Some(Change::Remove(id))
            }
            MemberChange::Swap(comes, goes) => {
                let comes = on(comes).filter(|id| caught_up(*id))?;
                let goes = on(goes).filter(|id| *id != replica.id)?;
                Some(Change::Swap(comes, goes))
            }
        }
    }

    fn append_own(&self, state: &mut State, node: u8, change: Change) {
        if let Some(replica) = state.nodes[usize::from(node)].replica.as_mut() {
            let term = replica.term;
            replica.log.push(Entry {
                term,
                change: Some(change),
            });
            if self.mistake != Some(Mistake::CommitNotWritten) {
                replica.durable = replica.commit;
            }
        }
        self.count(state, node);
    }

    /// What a replica deletes leaves its number.
    fn delete(&self, node: &mut Node) {
        if let Some(replica) = node.replica.take() {
            node.tombstone = Some(replica.id.1);
        }
        node.asked = false;
    }

    /// Whether what is for this replica reaches one on its node, which is opened if need be.
    fn addressed(&self, node: &mut Node, id: Id, is_append: bool) -> bool {
        let present = node.replica.as_ref().map(|replica| replica.id.1);
        if present == Some(id.1) {
            return true;
        }
        if self.mistake == Some(Mistake::AnswersForPredecessor)
            && present.is_some_and(|one| one > id.1)
        {
            return true;
        }
        let past =
            present.is_some_and(|one| one > id.1) || node.tombstone.is_some_and(|one| one >= id.1);
        let past = past && self.mistake != Some(Mistake::SameIdentity);
        if past || !is_append {
            return false;
        }
        self.delete(node);
        node.replica = Some(Replica {
            id,
            log: Vec::new(),
            term: 0,
            vote: None,
            commit: 0,
            durable: 0,
            role: Role::Follower,
        });
        true
    }

    /// A refused vote tells the commit index; `node` learns it if its log has that entry.
    fn learn_commit(&self, state: &mut State, node: u8, log: &[Entry], commit: u8) {
        let Some(replica) = state.nodes[usize::from(node)].replica.as_ref() else {
            return;
        };
        if commit <= replica.commit || matches!(replica.role, Role::Leader { .. }) {
            return;
        }
        let at = usize::from(commit) - 1;
        let same =
            replica.log.get(at).map(|entry| entry.term) == log.get(at).map(|entry| entry.term);
        if !same || replica.log.len() <= at {
            return;
        }
        let changes = replica.log[usize::from(replica.commit)..=at]
            .iter()
            .any(is_change);
        let stands = matches!(replica.role, Role::Candidate(_));
        self.commit(state, node, commit);
        if changes && stands {
            self.step_down(&mut state.nodes[usize::from(node)]);
        }
    }

    fn ask_for_vote(&self, state: &State, from: u8, to: Id) -> Option<State> {
        let mut after = state.clone();
        let candidate = state.nodes[usize::from(from)].replica.clone()?;
        let there = &mut after.nodes[usize::from(to.0)];
        if !self.addressed(there, to, false) {
            return None;
        }
        let may_be_empty = matches!(
            self.mistake,
            Some(Mistake::SameIdentity | Mistake::AnswersForPredecessor)
        );
        let voter = there.replica.as_ref()?;
        if voter.log.is_empty() && !may_be_empty || voter.term > candidate.term {
            return None;
        }
        self.see_term(there, candidate.term);
        let voter = there.replica.as_mut()?;
        let free = voter.vote.is_none_or(|one| one == candidate.id);
        let up_to_date = last(&candidate.log) >= last(&voter.log);
        if free && up_to_date && voter.role == Role::Follower {
            voter.vote = Some(candidate.id);
            after.messages.push(Message::Vote {
                term: candidate.term,
                from: to,
                to: candidate.id,
            });
        } else {
            let (log, commit) = (voter.log.clone(), voter.commit);
            self.learn_commit(&mut after, to.0, &candidate.log, candidate.commit);
            self.learn_commit(&mut after, from, &log, commit);
        }
        Some(after)
    }

    fn append(&self, state: &State, from: u8, to: Id) -> Option<State> {
        let mut after = state.clone();
        let leader = state.nodes[usize::from(from)].replica.clone()?;
        let there = &mut after.nodes[usize::from(to.0)];
        if leader.commit == 0 || !self.addressed(there, to, true) {
            return None;
        }
        let before = state.nodes[usize::from(to.0)].replica.as_ref();
        if before.map(|before| before.id) != there.replica.as_ref().map(|now| now.id) {
            // The first append only opens a replica: entries do not fit an empty log, and the state comes later.
            self.check_deletion(state, &mut after);
            return Some(after);
        }
        if there.replica.as_ref()?.term > leader.term {
            return None;
        }
        self.see_term(there, leader.term);
        let replica = there.replica.as_mut()?;
        if matches!(replica.role, Role::Candidate(_)) {
            replica.role = Role::Follower;
        }
        let length = leader.log.len();
        // A longer log that begins with the leader's entries stays: a late append takes nothing away.
        let extends = replica.log.len() >= length && replica.log[..length] == leader.log[..];
        let mut writes = false;
        if !extends {
            let same = replica.log.iter().zip(&leader.log);
            let same = same.take_while(|(one, two)| one == two).count();
            writes = leader.log[same..].iter().any(is_change);
            replica.log = leader.log.clone();
        }
        self.commit(&mut after, to.0, leader.commit.min(length as u8));
        let replica = after.nodes[usize::from(to.0)].replica.as_mut()?;
        if writes && self.mistake != Some(Mistake::CommitNotWritten) {
            replica.durable = replica.commit;
        }
        let replica = after.nodes[usize::from(to.0)].replica.as_ref()?;
        after.messages.push(Message::Acknowledged {
            term: leader.term,
            from: to,
            to: leader.id,
            matched: length as u8,
            known: replica.commit,
        });
        Some(after)
    }

    fn receive(&self, state: &State, message: Message) -> (Step, State) {
        let mut after = state.clone();
        match message {
            Message::Vote { from, to, .. } => {
                let mut won = false;
                if let Some(replica) = after.nodes[usize::from(to.0)].replica.as_mut() {
                    let config = self.config(&replica.log, replica.commit);
                    if let Role::Candidate(votes) = &mut replica.role {
                        votes.push(from);
                        votes.sort_unstable();
                        won = config.has_quorum(|id| votes.contains(&id));
                    }
                }
                if won {
                    self.lead(&mut after, to.0);
                }
                (Step::GetsVote(to, from), after)
            }
            Message::Acknowledged {
                from,
                to,
                matched,
                known,
                ..
            } => {
                if let Some(replica) = after.nodes[usize::from(to.0)].replica.as_mut()
                    && let Role::Leader { progress, .. } = &mut replica.role
                    && let Some(one) = progress.iter_mut().find(|one| one.id == from)
                {
                    one.matched = one.matched.max(matched);
                    one.known = one.known.max(known);
                }
                self.count(&mut after, to.0);
                (Step::GetsAcknowledgement(to, from), after)
            }
        }
    }

    /// The answer to a message arrives at once, or is late.
    fn answer(&self, before: &State, step: Step, mut after: State, steps: &mut Vec<(Step, State)>) {
        if after.messages.len() == before.messages.len() {
            steps.push((step, after));
            return;
        }
        if after.late > 0 {
            let mut late = after.clone();
            late.late -= 1;
            self.tidy(&mut late);
            // Not worth it where the answer would change nothing.
            if late.messages.len() > before.messages.len() {
                steps.push((Step::IsAnsweredLate(Box::new(step.clone())), late));
            }
        }
        if let Some(message) = after.messages.pop() {
            after = self.receive(&after, message).1;
        }
        steps.push((step, after));
    }

    /// Forgets messages that would change nothing: that is what duplicates do, too.
    fn tidy(&self, state: &mut State) {
        let nodes = &state.nodes;
        state.messages.retain(|message| {
            let (term, to) = match message {
                Message::Vote { term, to, .. } | Message::Acknowledged { term, to, .. } => {
                    (term, to)
                }
            };
            let Some(replica) = &nodes[usize::from(to.0)].replica else {
                return false;
            };
            if replica.id != *to || replica.term != *term {
                return false;
            }
            match (message, &replica.role) {
                (Message::Vote { from, .. }, Role::Candidate(votes)) => !votes.contains(from),
                (
                    Message::Acknowledged {
                        from,
                        matched,
                        known,
                        ..
                    },
                    Role::Leader { progress, .. },
                ) => {
                    let news = |one: &Progress| {
                        one.id == *from && (one.matched < *matched || one.known < *known)
                    };
                    progress.iter().any(news)
                }
                _ => false,
            }
        });
        state.messages.sort_unstable();
        state.messages.dedup();
    }

    /// Whether the nodes that are left can elect a leader: some replica that is a voter of its own configuration gets the
    /// votes that it needs. They tell each other what is committed first.
    fn can_elect(&self, state: &State, lost: Option<u8>) -> bool {
        let mut left: Vec<Left<'_>> = Vec::new();
        for (at, node) in state.nodes.iter().enumerate() {
            if let Some(replica) = &node.replica
                && lost != Some(at as u8)
                && !replica.log.is_empty()
            {
                // All of them may restart before.
                left.push(Left {
                    id: replica.id,
                    log: &replica.log,
                    commit: replica.durable,
                    config: self.config(&replica.log, replica.durable),
                });
            }
        }
        let wins = |one: &Left<'_>, left: &[Left<'_>]| {
            one.may_ask(one.id)
                && one.config.has_quorum(|voter| {
                    let grants =
                        |other: &Left<'_>| other.id == voter && last(one.log) >= last(other.log);
                    left.iter().any(grants)
                })
        };
        loop {
            if left.iter().any(|one| wins(one, &left)) {
                return true;
            }
            let mut learned = None;
            for (at, one) in left.iter().enumerate() {
                for other in &left {
                    let meets = other.may_ask(one.id) && other.may_ask(other.id)
                        || one.may_ask(other.id) && one.may_ask(one.id);
                    let index = usize::from(other.commit);
                    if meets
                        && other.commit > one.commit
                        && one.log.len() >= index
                        && one.log[index - 1].term == other.log[index - 1].term
                    {
                        learned = Some((at, other.commit));
                    }
                }
            }
            let Some((at, commit)) = learned else {
                return false;
            };
            left[at].commit = commit;
            left[at].config = self.config(left[at].log, commit);
        }
    }

    /// Whether the group can elect a leader, also after the loss of a node that it must survive. The last change of
    /// membership counts from when a majority of its voters knows durably that it is committed: before that, the loss of
    /// the one node that knows can leave the others with the configuration before it.
    fn survives(&self, state: &State) -> bool {
        let log = &state.committed;
        let config = self.config(log, log.len() as u8);
        let changed = log.iter().rposition(is_change).map_or(0, |at| at + 1);
        let knows = |id: Id| {
            let replica = state.nodes[usize::from(id.0)].replica.as_ref();
            let replica = replica.filter(|replica| replica.id == id);
            replica.is_some_and(|replica| usize::from(replica.durable) >= changed)
        };
        let widely_known = config.has_quorum(knows);
        self.losses(state)
            .filter(|lost| lost.is_none() || widely_known)
            .all(|lost| self.can_elect(state, lost))
    }

    /// Nodes whose loss leaves a majority of the newest configuration, and no loss at all.
    fn losses(&self, state: &State) -> impl Iterator<Item = Option<u8>> {
        let config = self.config(&state.committed, state.committed.len() as u8);
        let losses = (0..self.nodes).map(Some).chain([None]);
        losses.filter(move |lost| config.has_quorum(|id| *lost != Some(id.0)))
    }

    /// Deleting a replica must not take a vote away that is still needed.
    fn check_deletion(&self, before: &State, after: &mut State) {
        let missed =
            |lost: &Option<u8>| self.can_elect(before, *lost) && !self.can_elect(after, *lost);
        if self.losses(before).any(|lost| missed(&lost)) {
            after.fault = Some("the vote of a deleted replica is missed: no leader can be elected");
        }
    }
}

impl Model for Raft {
    type State = State;
    type Step = Step;

    fn first(&self) -> Vec<State> {
        let log = vec![Entry {
            term: 1,
            change: None,
        }];
        let members = self.first_config().everybody();
        let mut nodes = vec![Node::default(); usize::from(self.nodes)];
        for id in &members {
            let progress = members.iter().map(|id| Progress {
                id: *id,
                matched: 1,
                known: 1,
            });
            let leads = id.0 == self.voters[0];
            nodes[usize::from(id.0)].replica = Some(Replica {
                id: *id,
                log: log.clone(),
                term: 1,
                vote: Some(Id(self.voters[0], 0)),
                commit: 1,
                durable: 1,
                role: if leads {
                    Role::Leader {
                        progress: progress.collect(),
                        changed_at: 1,
                        removed_at: 1,
                        proposed: false,
                    }
                } else {
                    Role::Follower
                },
            });
        }
        vec![State {
            nodes,
            messages: Vec::new(),
            requests: ((1_u16 << self.requests.len()) - 1) as u8,
            crashes: self.crashes,
            late: self.late,
            committed: log,
            committed_in: vec![1],
            leaders: vec![(1, Id(self.voters[0], 0))],
            fault: None,
        }]
    }

    fn next(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        let begin = steps.len();
        for (at, node) in state.nodes.iter().enumerate() {
            let at = at as u8;
            let Some(replica) = &node.replica else {
                continue;
            };
            let config = self.own_config(replica);
            let me = replica.id;
            let leads = matches!(replica.role, Role::Leader { .. });
            let may_stand = config.electors().contains(&me) && !replica.log.is_empty();
            if !leads && may_stand && replica.term < self.last_term {
                let mut after = state.clone();
                let here = &mut after.nodes[usize::from(at)];
                self.step_down(here);
                if let Some(replica) = here.replica.as_mut() {
                    replica.term += 1;
                    replica.vote = Some(me);
                    replica.role = Role::Candidate(vec![me]);
                }
                if config.has_quorum(|id| id == me) {
                    self.lead(&mut after, at);
                }
                steps.push((Step::Campaigns(me), after));
            }
            if let Role::Candidate(votes) = &replica.role {
                for to in config.electors() {
                    if to != me
                        && !votes.contains(&to)
                        && let Some(after) = self.ask_for_vote(state, at, to)
                    {
                        self.answer(state, Step::AsksForVote(me, to), after, steps);
                    }
                }
            }
            if leads {
                for to in config.everybody() {
                    if to != me
                        && let Some(after) = self.append(state, at, to)
                    {
                        self.answer(state, Step::Appends(me, to), after, steps);
                    }
                }
                self.lead_steps(state, at, replica, &config, steps);
            }
            if state.crashes > 0 && !replica.log.is_empty() {
                let mut after = state.clone();
                after.crashes -= 1;
                let here = &mut after.nodes[usize::from(at)];
                if let Some(replica) = here.replica.as_mut() {
                    replica.commit = replica.durable.max(1);
                    replica.role = Role::Follower;
                }
                here.asked = false;
                steps.push((Step::Restarts(me), after));
            }
        }
        for message in &state.messages {
            steps.push(self.receive(state, *message));
        }
        for (_, after) in &mut steps[begin..] {
            self.tidy(after);
        }
        // A message that changed nothing is no step.
        let mut at = begin;
        while at < steps.len() {
            if steps[at].1 == *state {
                steps.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if let Some(fault) = state.fault {
            return Err(fault.to_owned());
        }
        for node in &state.nodes {
            let Some(replica) = &node.replica else {
                continue;
            };
            if !Raft::is_led(replica) {
                continue;
            }
            let open = replica.log[usize::from(replica.commit)..].iter();
            if open.filter(|entry| is_change(entry)).count() > 1 {
                return Err("two changes are under way".to_owned());
            }
            let joint = self.own_config(replica).is_joint();
            if Raft::is_pending(replica) {
                continue;
            }
            if node.asked && !joint {
                return Err("a leader without a change under way refuses the next one".to_owned());
            }
            if joint && !self.may_leave(replica) {
                return Err("no leader leaves the joint configuration".to_owned());
            }
        }
        if !self.survives(state) {
            return Err("no leader can be elected".to_owned());
        }
        Ok(())
    }
}

impl Raft {
    fn may_leave(&self, replica: &Replica) -> bool {
        let proposed = matches!(replica.role, Role::Leader { proposed: true, .. });
        proposed || self.mistake != Some(Mistake::LeftByProposerOnly)
    }

    fn lead_steps(
        &self,
        state: &State,
        at: u8,
        replica: &Replica,
        config: &Config,
        steps: &mut Vec<(Step, State)>,
    ) {
        let me = replica.id;
        for (bit, request) in self.requests.iter().enumerate() {
            let bit = 1_u8 << bit;
            let turn = !self.in_order || state.requests & (bit - 1) == 0;
            if state.requests & bit == 0 || !turn {
                continue;
            }
            if let Some(change) = self.propose(state, at, *request) {
                let mut after = state.clone();
                after.requests &= !bit;
                after.nodes[usize::from(at)].asked = true;
                if let Some(replica) = after.nodes[usize::from(at)].replica.as_mut()
                    && let Role::Leader { proposed, .. } = &mut replica.role
                {
                    *proposed = true;
                }
                self.append_own(&mut after, at, change);
                steps.push((Step::Proposes(me, *request), after));
            }
        }
        let is_led = Raft::is_led(replica);
        if is_led && config.is_joint() && !Raft::is_pending(replica) && self.may_leave(replica) {
            let mut after = state.clone();
            self.append_own(&mut after, at, Change::Leave);
            steps.push((Step::LeavesJoint(me), after));
        }
        // A "no" waits for a round that shows that the leader leads still: one that was deposed does not know the present
        // members.
        let follows = |id: Id| {
            let there = state.nodes[usize::from(id.0)].replica.as_ref();
            there.is_some_and(|there| there.id == id && there.term == replica.term)
        };
        if !is_led || !config.has_quorum(follows) {
            return;
        }
        // The leader's "no" to a replica that is no member. One with a removal that is not widely known waits.
        if !self.removals_are_known(replica) && self.mistake != Some(Mistake::DeletedEarly) {
            return;
        }
        for (there, node) in state.nodes.iter().enumerate() {
            if let Some(other) = &node.replica
                && !config.everybody().contains(&other.id)
                && !matches!(other.role, Role::Leader { .. })
            {
                let mut after = state.clone();
                self.delete(&mut after.nodes[there]);
                self.check_deletion(state, &mut after);
                steps.push((Step::Deletes(other.id), after));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{explore, is_full};

    /// Node 1 is replaced by node 2, and comes back; in the larger scene it also votes again.
    fn comes_back(mistake: Option<Mistake>) -> Raft {
        let mut requests = vec![
            MemberChange::Promote(2),
            MemberChange::Remove(1),
            MemberChange::Add(1),
        ];
        if is_full() {
            requests.push(MemberChange::Promote(1));
        }
        Raft {
            voters: vec![3, 0, 1],
            learners: vec![2],
            nodes: 4,
            requests,
            in_order: true,
            last_term: 2,
            crashes: u8::from(is_full()),
            late: 1,
            mistake,
        }
    }

    fn holds(name: &str, raft: &Raft) {
        let report = explore(raft, 60_000_000);
        eprintln!("{name}: {report}");
        assert_eq!(report.fault, None);
    }

    fn finds(raft: &Raft, part: &str) {
        let report = explore(raft, 60_000_000);
        eprintln!("{:?}: {report}", raft.mistake);
        let fault = report.fault.expect("the mistake is found");
        assert!(fault.why.contains(part), "{}", fault.why);
    }

    #[test]
    fn a_replica_that_comes_back_is_another_one() {
        holds("removed and added again", &comes_back(None));
    }

    #[test]
    fn an_identity_that_is_used_again_loses_committed_entries() {
        finds(&comes_back(Some(Mistake::SameIdentity)), "lacks");
    }

    #[test]
    fn a_replica_that_answers_for_its_predecessor_loses_committed_entries() {
        finds(&comes_back(Some(Mistake::AnswersForPredecessor)), "lacks");
    }

    #[test]
    fn a_removed_replica_that_is_deleted_early_may_be_missed() {
        finds(
            &comes_back(Some(Mistake::DeletedEarly)),
            "vote of a deleted",
        );
    }

    /// A founder takes in two others.
    fn founder(mistake: Option<Mistake>) -> Raft {
        Raft {
            voters: vec![0],
            learners: vec![1, 2],
            nodes: 3,
            requests: vec![MemberChange::Promote(1), MemberChange::Promote(2)],
            in_order: false,
            last_term: if is_full() { 4 } else { 3 },
            crashes: 1,
            late: if is_full() { 2 } else { 1 },
            mistake,
        }
    }

    /// One of three is replaced by another in one step; the request is repeated.
    fn swap(late: u8, crashes: u8, mistake: Option<Mistake>) -> Raft {
        Raft {
            voters: vec![0, 1, 2],
            learners: vec![3],
            nodes: 4,
            requests: vec![MemberChange::Swap(3, 2), MemberChange::Swap(3, 2)],
            in_order: true,
            last_term: 2,
            crashes,
            late,
            mistake,
        }
    }

    #[test]
    fn a_founder_takes_in_others() {
        holds("founder", &founder(None));
    }

    #[test]
    fn a_joint_change_is_finished_by_any_leader() {
        holds("swap, one crash", &swap(0, 1, None));
        holds("swap, one late answer", &swap(1, 0, None));
        if is_full() {
            holds("swap, both", &swap(1, 1, None));
        }
    }

    #[test]
    fn a_founder_that_forgets_what_is_decided_elects_itself() {
        finds(&founder(Some(Mistake::CommitNotWritten)), "two leaders");
    }

    #[test]
    fn two_changes_at_once_are_found() {
        finds(&comes_back(Some(Mistake::TwoChangesAtOnce)), "two changes");
    }

    #[test]
    fn a_change_in_one_step_has_disjoint_quorums() {
        finds(
            &swap(0, 1, Some(Mistake::NoJointConfiguration)),
            "two leaders",
        );
    }

    #[test]
    fn a_lost_change_that_stays_open_blocks_the_next_one() {
        let raft = Raft {
            requests: vec![MemberChange::Swap(3, 2)],
            last_term: 3,
            ..swap(0, 0, Some(Mistake::LostChangeStaysOpen))
        };
        finds(&raft, "refuses");
    }

    #[test]
    fn a_joint_configuration_that_only_its_proposer_leaves_stays() {
        finds(&swap(0, 1, Some(Mistake::LeftByProposerOnly)), "joint");
    }
}
