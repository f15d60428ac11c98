//! What a node says about its replicas when a peer asks for the whole picture.

use std::collections::BTreeMap;

use tenure_core::codec::{DecodeError, Encode, Reader, Writer};
use tenure_node::{ReplicaId, Status};

use crate::peers::{NodeInfo, put_members, take_members};

/// One node's part of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Whose.
    pub member: ReplicaId,
    /// Its release; empty, if it does not say: release 0.1.0 does not.
    pub release: String,
    /// The newest rules that it knows; zero, if it does not say.
    pub rules: u32,
    /// Every replica it has.
    pub groups: Vec<GroupReport>,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// Of which group.
    pub group: u32,
    /// Whether it leads and serves.
    pub leads: bool,
    /// Its term.
    pub term: u64,
    /// The rules that it applies by; zero, if its node does not say.
    pub rules: u32,
    /// The last entry applied.
    pub applied: u64,
    /// Who votes.
    pub voters: Vec<ReplicaId>,
    /// Who only listens.
    pub learners: Vec<ReplicaId>,
    /// Whether a change of voters is half done.
    pub changing: bool,
    /// Entries that the slowest voter is behind, as far as a leader knows.
    pub lag: u64,
    /// Holds in its space.
    pub holds: u64,
    /// Waiters in its space.
    pub waiters: u64,
}

/// The whole picture, as far as it could be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterReport {
    /// Who was asked.
    pub asked: ReplicaId,
    /// Every node it knows.
    pub nodes: Vec<NodeInfo>,
    /// What those said that answered in time.
    pub reports: Vec<NodeReport>,
}

impl NodeReport {
    pub(crate) fn new(member: ReplicaId, status: Status) -> NodeReport {
        let group = |group: tenure_node::GroupStatus| {
            let voters = &group.membership.voters;
            let matched = |voter: &ReplicaId| {
                let known = group.progress.iter().find(|(one, _)| one == voter);
                known.map_or(0, |(_, progress)| progress.matched)
            };
            let lag = if group.serves {
                let behind = voters
                    .iter()
                    .map(|voter| group.last - matched(voter).min(group.last));
                behind.max().unwrap_or(0)
            } else {
                0
            };
            GroupReport {
                group: group.group.0,
                leads: group.serves,
                term: group.term,
                rules: group.rules,
                applied: group.applied,
                changing: group.membership.is_joint(),
                lag,
                holds: group.counts.as_ref().map_or(0, |counts| counts.claims),
                waiters: group.counts.as_ref().map_or(0, |counts| counts.waiters),
                voters: group.membership.voters,
                learners: group.membership.learners,
            }
        };
        NodeReport {
            member,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            rules: tenure_core::space::RULES,
            groups: status.groups.into_iter().map(group).collect(),
        }
    }
}

impl NodeReport {
    /// What release 0.1.0 does not understand of it.
    pub(crate) fn edition(&self) -> Edition {
        Edition {
            member: self.member,
            release: self.release.clone(),
            rules: self.rules,
            groups: self
                .groups
                .iter()
                .map(|one| (one.group, one.rules))
                .collect(),
        }
    }

    /// Adds what was said apart.
    pub(crate) fn complete(&mut self, edition: Edition) {
        self.release = edition.release;
        self.rules = edition.rules;
        let rules: BTreeMap<u32, u32> = edition.groups.into_iter().collect();
        for group in &mut self.groups {
            group.rules = rules.get(&group.group).copied().unwrap_or(0);
        }
    }
}

/// The part of a report that release 0.1.0 does not understand: it is said apart, before the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edition {
    pub(crate) member: ReplicaId,
    pub(crate) release: String,
    pub(crate) rules: u32,
    /// The rules of each of its replicas, by the number of the group.
    pub(crate) groups: Vec<(u32, u32)>,
}

impl Encode for Edition {
    fn put(&self, out: &mut Writer) {
        out.number(self.member.pack());
        out.text(&self.release);
        out.number(u64::from(self.rules));
        out.length(self.groups.len());
        for (group, rules) in &self.groups {
            out.number(u64::from(*group));
            out.number(u64::from(*rules));
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Edition, DecodeError> {
        let member = ReplicaId::unpack(input.number()?).ok_or(DecodeError::Number)?;
        let (release, rules) = (input.text()?.to_owned(), input.small()?);
        let count = input.length()?;
        let groups = (0..count)
            .map(|_| Ok((input.small()?, input.small()?)))
            .collect::<Result<_, DecodeError>>()?;
        Ok(Edition {
            member,
            release,
            rules,
            groups,
        })
    }
}

impl Encode for NodeReport {
    fn put(&self, out: &mut Writer) {
        out.number(self.member.pack());
        out.list(&self.groups);
    }

    fn take(input: &mut Reader<'_>) -> Result<NodeReport, DecodeError> {
        Ok(NodeReport {
            member: ReplicaId::unpack(input.number()?).ok_or(DecodeError::Number)?,
            release: String::new(),
            rules: 0,
            groups: input.list()?,
        })
    }
}

impl Encode for GroupReport {
    fn put(&self, out: &mut Writer) {
        out.number(u64::from(self.group));
        out.byte(u8::from(self.leads) | u8::from(self.changing) << 1);
        for number in [self.term, self.applied, self.lag, self.holds, self.waiters] {
            out.number(number);
        }
        put_members(out, self.voters.iter().copied());
        put_members(out, self.learners.iter().copied());
    }

    fn take(input: &mut Reader<'_>) -> Result<GroupReport, DecodeError> {
        let (group, flags) = (input.small()?, input.byte()?);
        Ok(GroupReport {
            group,
            leads: flags & 1 != 0,
            changing: flags & 2 != 0,
            rules: 0,
            term: input.number()?,
            applied: input.number()?,
            lag: input.number()?,
            holds: input.number()?,
            waiters: input.number()?,
            voters: take_members(input)?,
            learners: take_members(input)?,
        })
    }
}
