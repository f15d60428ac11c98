//! Conflict resolution between two clusters with the same token: which one continues.
//!
//! Both would grant the same locks. So when a node proves the token and names another cluster, each
//! side compares the claims of that handshake: an operator's order wins, then the longer history.
//! The other cluster stops; without a winner both stop. The same two claims give mirrored results.
//! No clock is involved, because a machine that lost its disk often has a wrong clock too.

use std::cmp::Ordering;

use tenure_core::codec::{DecodeError, Encode, Reader, Writer};

/// Maximum number of clusters that a cluster supersedes by an operator's order; the oldest are
/// dropped.
pub(crate) const MOST_SUPERSEDED: usize = 32;

/// Length of a cluster's history. Ordered by members first, then by applied entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClusterHistory {
    /// Number of members ever seen; each incarnation of a node counts.
    pub(crate) members: u64,
    /// Applied entries of the system group.
    pub(crate) applied: u64,
}

/// What a node claims about its cluster in the handshake. Covered by the proofs of both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterClaim {
    pub(crate) history: ClusterHistory,
    /// Clusters that an operator gave up for this one (`recover`, `keep`).
    pub(crate) supersedes: Vec<u64>,
}

/// Consequence for our cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RivalOutcome {
    /// Our cluster continues; the other one must stop.
    GoesOn,
    /// Our cluster stops; the other one continues.
    GivesWay,
    /// Neither may grant locks until an operator has decided.
    Undecided,
}

/// Another cluster with our token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RivalCluster {
    pub(crate) cluster: u64,
    /// Number of the node that was met; its name and address for people.
    pub(crate) number: u32,
    pub(crate) node: String,
    /// Peer address of that node.
    pub(crate) address: String,
    /// Its claim. Each node that learns of the rival decides by its own knowledge of our history.
    pub(crate) claim: Option<ClusterClaim>,
    pub(crate) verdict: RivalOutcome,
}

/// Decides between two clusters. A node of the first release makes no claim: its history is
/// unknown.
///
/// An operator's order has precedence over the history.
pub(crate) fn decide(
    (our_cluster, ours): (u64, Option<&ClusterClaim>),
    (their_cluster, theirs): (u64, Option<&ClusterClaim>),
) -> RivalOutcome {
    let supersedes = |claim: Option<&ClusterClaim>, cluster| {
        claim.is_some_and(|claim| claim.supersedes.contains(&cluster))
    };
    match (
        supersedes(ours, their_cluster),
        supersedes(theirs, our_cluster),
    ) {
        (true, false) => return RivalOutcome::GoesOn,
        (false, true) => return RivalOutcome::GivesWay,
        (true, true) => return RivalOutcome::Undecided,
        (false, false) => {}
    }
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        return RivalOutcome::Undecided;
    };
    match ours.history.cmp(&theirs.history) {
        Ordering::Greater => RivalOutcome::GoesOn,
        Ordering::Less => RivalOutcome::GivesWay,
        Ordering::Equal => RivalOutcome::Undecided,
    }
}

impl RivalCluster {
    /// Returns the sentence for the operator, with the commands that decide.
    pub(crate) fn sentence(&self, ours: u64) -> String {
        let met = format!(
            "another cluster has the same token: {} belongs to cluster {:016x}, this node to {ours:016x}",
            self.node, self.cluster
        );
        let rest = match self.verdict {
            RivalOutcome::GoesOn => {
                "this cluster continues; on the nodes of the other one stop the daemon and run: \
                 tenure cluster rejoin"
            }
            RivalOutcome::GivesWay => {
                "the other cluster has the longer history, so this node has stopped serving; stop the \
                 daemon, then run tenure cluster rejoin to join the other cluster, or tenure cluster \
                 keep to keep this one. If both clusters have stopped, run tenure cluster keep on every \
                 node of one of them, and tenure cluster rejoin on every node of the other one"
            }
            RivalOutcome::Undecided => {
                "neither cluster has the longer history, so this node has stopped serving; stop the \
                 daemon, then run tenure cluster keep on every node of the cluster to keep, and tenure \
                 cluster rejoin on every node of the other one"
            }
        };
        format!("{met}; {rest}")
    }
}

impl Encode for ClusterHistory {
    fn put(&self, out: &mut Writer) {
        out.number(self.members);
        out.number(self.applied);
    }

    fn take(input: &mut Reader<'_>) -> Result<ClusterHistory, DecodeError> {
        Ok(ClusterHistory {
            members: input.number()?,
            applied: input.number()?,
        })
    }
}

impl Encode for ClusterClaim {
    fn put(&self, out: &mut Writer) {
        out.put(&self.history);
        out.length(self.supersedes.len());
        for cluster in &self.supersedes {
            out.number(*cluster);
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<ClusterClaim, DecodeError> {
        let history = input.take()?;
        let count = input.length()?;
        if count > MOST_SUPERSEDED {
            return Err(DecodeError::Inconsistent(
                "too many clusters are superseded",
            ));
        }
        let supersedes = (0..count)
            .map(|_| input.number())
            .collect::<Result<_, _>>()?;
        Ok(ClusterClaim {
            history,
            supersedes,
        })
    }
}

impl Encode for RivalCluster {
    fn put(&self, out: &mut Writer) {
        out.number(self.cluster);
        out.number(u64::from(self.number));
        out.text(&self.node);
        out.byte(match self.verdict {
            RivalOutcome::GoesOn => 0,
            RivalOutcome::GivesWay => 1,
            RivalOutcome::Undecided => 2,
        });
        out.text(&self.address);
        out.option(self.claim.as_ref());
    }

    fn take(input: &mut Reader<'_>) -> Result<RivalCluster, DecodeError> {
        let (cluster, number) = (input.number()?, input.small()?);
        let node = input.text()?.to_owned();
        let verdict = match input.byte()? {
            0 => RivalOutcome::GoesOn,
            1 => RivalOutcome::GivesWay,
            2 => RivalOutcome::Undecided,
            found => {
                return Err(DecodeError::Tag {
                    of: "verdict",
                    found,
                });
            }
        };
        Ok(RivalCluster {
            cluster,
            number,
            node,
            verdict,
            address: input.text()?.to_owned(),
            claim: input.option()?,
        })
    }
}

/// Adds clusters to a list of superseded ones and keeps the newest. Returns whether one was new.
pub(crate) fn supersede(known: &mut Vec<u64>, more: &[u64]) -> bool {
    let before = known.len();
    for cluster in more {
        if !known.contains(cluster) {
            known.push(*cluster);
        }
    }
    let grown = known.len() > before;
    if known.len() > MOST_SUPERSEDED {
        known.drain(..known.len() - MOST_SUPERSEDED);
    }
    grown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(members: u64, applied: u64, supersedes: &[u64]) -> ClusterClaim {
        ClusterClaim {
            history: ClusterHistory { members, applied },
            supersedes: supersedes.to_vec(),
        }
    }

    /// R161 (settings fixed per cluster): at most one of two clusters continues, whichever side
    /// decides.
    #[test]
    fn both_sides_decide_alike() {
        let claims = [
            claim(1, 5, &[]),
            claim(3, 2, &[]),
            claim(3, 9, &[]),
            claim(1, 1, &[2]),
            claim(9, 9, &[1]),
        ];
        for one in &claims {
            for other in &claims {
                let here = decide((1, Some(one)), (2, Some(other)));
                let there = decide((2, Some(other)), (1, Some(one)));
                let mirrored = match here {
                    RivalOutcome::GoesOn => RivalOutcome::GivesWay,
                    RivalOutcome::GivesWay => RivalOutcome::GoesOn,
                    RivalOutcome::Undecided => RivalOutcome::Undecided,
                };
                assert_eq!(there, mirrored, "{one:?} {other:?}");
            }
        }
        let (small, large) = (claim(1, 900, &[]), claim(3, 2, &[]));
        assert_eq!(
            decide((1, Some(&small)), (2, Some(&large))),
            RivalOutcome::GivesWay
        );
        assert_eq!(
            decide((1, Some(&large)), (2, Some(&large))),
            RivalOutcome::Undecided
        );
        // An operator's order counts more than any history.
        let kept = claim(1, 1, &[2]);
        assert_eq!(
            decide((1, Some(&kept)), (2, Some(&large))),
            RivalOutcome::GoesOn
        );
        // A node of the first release sends no history.
        assert_eq!(
            decide((1, Some(&large)), (2, None)),
            RivalOutcome::Undecided
        );
        assert_eq!(decide((1, Some(&kept)), (2, None)), RivalOutcome::GoesOn);
    }

    #[test]
    fn the_list_of_superseded_clusters_is_bounded() {
        let mut known = Vec::new();
        for cluster in 1..=100 {
            assert!(supersede(&mut known, &[cluster]));
            assert!(!supersede(&mut known, &[cluster]));
        }
        assert_eq!(known.len(), MOST_SUPERSEDED);
        assert_eq!(known.last(), Some(&100));
    }
}
