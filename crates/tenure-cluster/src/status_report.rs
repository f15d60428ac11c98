//! Status report of a node: its replicas, as sent to a peer that collects the status of the
//! cluster.

use std::collections::BTreeMap;

use tenure_core::codec::{DecodeError, Encode, Reader, Writer};
use tenure_node::{ReplicaId, Status};

use crate::peers::{NodeInfo, put_members, take_members};

/// Report of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The reporting node.
    pub member: ReplicaId,
    /// Its release. Empty if unknown: release 0.1.0 does not send it.
    pub release: String,
    /// The newest rules number that it supports. Zero if unknown.
    pub rules: u32,
    /// All its replicas.
    pub groups: Vec<GroupReport>,
}

/// Report of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// Number of the group.
    pub group: u32,
    /// Whether the replica leads and serves.
    pub leads: bool,
    /// Its term.
    pub term: u64,
    /// The rules number that it applies. Zero if unknown.
    pub rules: u32,
    /// Index of the last applied entry.
    pub applied: u64,
    /// Voters of the group.
    pub voters: Vec<ReplicaId>,
    /// Learners of the group.
    pub learners: Vec<ReplicaId>,
    /// Whether a joint membership change is in progress.
    pub changing: bool,
    /// Number of entries that the slowest voter is behind. Zero if the replica does not lead.
    pub lag: u64,
    /// Number of holds in the group.
    pub holds: u64,
    /// Number of waiters in the group.
    pub waiters: u64,
}

/// Status of the whole cluster, as far as its nodes answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterReport {
    /// The node that was asked.
    pub asked: ReplicaId,
    /// All nodes that it knows.
    pub nodes: Vec<NodeInfo>,
    /// Reports of the nodes that answered in time.
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
    /// Returns the part of the report that release 0.1.0 cannot decode.
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

    /// Adds the part that was sent separately.
    pub(crate) fn complete(&mut self, edition: Edition) {
        self.release = edition.release;
        self.rules = edition.rules;
        let rules: BTreeMap<u32, u32> = edition.groups.into_iter().collect();
        for group in &mut self.groups {
            group.rules = rules.get(&group.group).copied().unwrap_or(0);
        }
    }
}

/// The part of a report that release 0.1.0 cannot decode. It is sent separately, before the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edition {
    pub(crate) member: ReplicaId,
    pub(crate) release: String,
    pub(crate) rules: u32,
    /// Rules number of each replica, by group number.
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
