//! Conflict check: decides whether an acquire can be granted now, and finds what blocks it
//! (R40–R59, R79 (no overtaking)).
//!
//! The check only reads. For a new acquire it follows R47 (incurable findings come first): what
//! waiting cannot cure, over all paths; then earlier waiters; then, path by path, claims in the
//! order of R45 (order of conflict reasons) and stale fences. For a waiter, earlier waiters come
//! first, except before a lost HELD path (R88 (sweep order and reservation)).
//!
//! An owner's own claims never block it, but the counts in the tree include them. The check
//! subtracts the owner's own counts, which a session with many claims keeps by node.

use alloc::collections::BTreeSet;

use super::Space;
use super::namespaces::NamespaceState;
use super::queue::{BlockingWaiter, QueueBound, WantedAccess};
use super::sessions::Session;
use crate::command::{Acquire, Request, RequestKind};
use crate::path::Path;
use crate::policy::{Access, Algorithm, Missing, Mode, Position, Reason, excludes};
use crate::slab::Id;
use crate::tree::{PathNode, PathPosition, Side};
use crate::value::Fence;

/// What blocks a path. The owner is looked up only for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockingClaim {
    pub(super) reason: Reason,
    pub(super) position: Position,
    /// The mode of the claim; of claims below, one mode of their [`Side`].
    pub(super) mode: Mode,
    /// The claim's node; that of the wanted path, if claims below it block.
    pub(super) node: Id<PathNode>,
}

/// The decision on an acquire.
#[derive(Debug)]
pub(super) enum AcquireDecision {
    /// It can be granted.
    Free,
    /// It can be granted after its fence is replaced by a newer one (R88: sweep order and
    /// reservation).
    FreeButStale,
    /// The owner does not hold a path that it requested as HELD.
    Lost {
        path: Option<Path>,
        missing: Missing,
    },
    /// Waiting cannot cure it.
    Incurable { path: Path, reason: Reason },
    /// An earlier waiter blocks it; contains the latest such waiter.
    Behind(BlockingWaiter),
    /// A claim blocks one of its paths.
    Blocked {
        request: usize,
        blocking_claim: BlockingClaim,
    },
}

/// The requesting owner and its queue position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requester<'a> {
    pub(super) namespace: Id<NamespaceState>,
    pub(super) session: Option<Id<Session>>,
    pub(super) place: QueuePosition<'a>,
    /// The fence for its writes, if it is known already.
    pub(super) fence: Option<Fence>,
    pub(super) stale: StaleFence,
}

/// The queue position from which an owner requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum QueuePosition<'a> {
    /// The end of the queue: a new request.
    End,
    /// The position of the waiter with this number.
    Waiter(u64),
    /// The owner has a waiter with this number, but possibly for other paths: the position counts
    /// only for these pairs (R79).
    Again(u64, &'a BTreeSet<(&'a Path, Mode)>),
}

/// What to do with a fence that is not above the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StaleFence {
    /// Report a conflict (R68: caller-supplied tokens).
    Conflict,
    /// Replace it by a newer one, for waiters (R88).
    Replace,
}

impl Requester<'_> {
    /// Returns the bound up to which other waiters block a path (R79).
    pub(super) fn before(&self, request: &Request) -> QueueBound {
        let (number, own) = match self.place {
            QueuePosition::End => (u64::MAX, u64::MAX),
            QueuePosition::Waiter(own) => (own, own),
            QueuePosition::Again(own, pairs) if pairs.contains(&(&request.path, request.mode)) => {
                (own, own)
            }
            QueuePosition::Again(own, _) => (u64::MAX, own),
        };
        QueueBound { number, own }
    }
}

impl Space {
    /// Evaluates an acquire against the present state.
    pub(super) fn evaluate(&self, requester: Requester<'_>, acquire: &Acquire) -> AcquireDecision {
        let incurable = self.evaluate_permanent(requester, acquire);
        // A lost HELD path is reported at once. Other incurable findings of a queued acquire are
        // reported only when no waiter is ahead (R88), those of a new acquire at once (R47).
        let skipped = matches!(requester.place, QueuePosition::Waiter(_))
            && !matches!(incurable, Some(AcquireDecision::Lost { .. }));
        match incurable {
            Some(verdict) if !skipped => return verdict,
            incurable => {
                if let Some(ahead) = self.behind(requester, acquire) {
                    return AcquireDecision::Behind(ahead);
                }
                if let Some(verdict) = incurable {
                    return verdict;
                }
            }
        }
        self.evaluate_claims(requester, acquire)
    }

    /// Returns a finding that waiting cannot cure (R47, R50–R57).
    fn evaluate_permanent(
        &self,
        requester: Requester<'_>,
        acquire: &Acquire,
    ) -> Option<AcquireDecision> {
        let algorithm = acquire.route.algorithm;
        let alive = requester
            .session
            .is_some_and(|session| self.sessions[session].lease.is_some());
        let any_held = acquire
            .requests
            .iter()
            .any(|request| request.state == RequestKind::Held);
        if any_held && !alive {
            return Some(AcquireDecision::Lost {
                path: None,
                missing: Missing::Alive,
            });
        }
        for request in &acquire.requests {
            let verdict = match request.state {
                RequestKind::Held => self.evaluate_held(requester, request, algorithm),
                RequestKind::New if !algorithm.allows(request.mode) => {
                    Some(AcquireDecision::Incurable {
                        path: request.path.clone(),
                        reason: Reason::ReadLocksDisabled,
                    })
                }
                RequestKind::New if algorithm == Algorithm::Semaphore => {
                    self.evaluate_permits(requester, request)
                }
                RequestKind::New => None,
            };
            if verdict.is_some() {
                return verdict;
            }
        }
        None
    }

    fn evaluate_held(
        &self,
        requester: Requester<'_>,
        request: &Request,
        algorithm: Algorithm,
    ) -> Option<AcquireDecision> {
        let node = self.path_position(requester.namespace, &request.path).at;
        let own = |mode: Mode| {
            let claim = self.own_claim(requester.session?, node?, mode)?;
            Some(&self.claims[claim])
        };
        let lost = |missing| {
            Some(AcquireDecision::Lost {
                path: Some(request.path.clone()),
                missing,
            })
        };
        if algorithm == Algorithm::Semaphore {
            return match own(Mode::Write) {
                Some(claim) if claim.is_permit() => None,
                _ => lost(Missing::Semaphore),
            };
        }
        match request.mode {
            Mode::Write => {
                let Some(claim) = own(Mode::Write) else {
                    return lost(Missing::Write);
                };
                let Some(current) = claim.fence() else {
                    return lost(Missing::Fence);
                };
                match requester.fence {
                    Some(fence) if fence < current => Some(AcquireDecision::Incurable {
                        path: request.path.clone(),
                        reason: Reason::StaleFence { current },
                    }),
                    _ => None,
                }
            }
            Mode::Read if own(Mode::Read).is_some() || own(Mode::ReadTree).is_some() => None,
            Mode::ReadTree if own(Mode::ReadTree).is_some() => None,
            Mode::Read | Mode::ReadTree => lost(Missing::Read),
        }
    }

    fn evaluate_permits(
        &self,
        requester: Requester<'_>,
        request: &Request,
    ) -> Option<AcquireDecision> {
        let capacity = match request.permits {
            None => None,
            Some(permits) => match self.capacity(requester.namespace, &request.path) {
                Some(capacity) if capacity != permits => Some(capacity),
                _ => return None,
            },
        };
        Some(AcquireDecision::Incurable {
            path: request.path.clone(),
            reason: Reason::InvalidPermits { capacity },
        })
    }

    /// Returns the latest earlier waiter that blocks any NEW path (R79).
    fn behind(&self, requester: Requester<'_>, acquire: &Acquire) -> Option<BlockingWaiter> {
        if self.namespaces[requester.namespace].waiting_paths == 0 {
            return None;
        }
        let mut latest: Option<BlockingWaiter> = None;
        for request in new_requests(acquire) {
            let want = self.want(requester, acquire, request);
            let ahead = self.latest_ahead(want, requester.before(request));
            if let Some(ahead) = ahead
                && latest.is_none_or(|latest| latest.number < ahead.number)
                && !self.holds_enough(requester.session, want.path_position, request.mode)
            {
                latest = Some(ahead);
            }
        }
        latest
    }

    /// Converts a NEW path to the input of the search for blocking waiters.
    pub(super) fn want(
        &self,
        requester: Requester<'_>,
        acquire: &Acquire,
        request: &Request,
    ) -> WantedAccess {
        WantedAccess {
            path_position: self.path_position(requester.namespace, &request.path),
            access: Access {
                mode: request.mode,
                algorithm: acquire.route.algorithm,
            },
        }
    }

    /// Checks blocking claims and stale fences, path by path (R45).
    fn evaluate_claims(&self, requester: Requester<'_>, acquire: &Acquire) -> AcquireDecision {
        let algorithm = acquire.route.algorithm;
        let mut stale = false;
        for (index, request) in acquire.requests.iter().enumerate() {
            if request.state == RequestKind::Held {
                continue;
            }
            let path_position = self.path_position(requester.namespace, &request.path);
            let wanted = Access {
                mode: request.mode,
                algorithm,
            };
            if let Some(blocking_claim) =
                self.blocking_claim(requester.session, path_position, wanted)
            {
                return AcquireDecision::Blocked {
                    request: index,
                    blocking_claim,
                };
            }
            if let Some(fence) = requester.fence
                && let Some(current) =
                    self.stale(requester, request, path_position, algorithm, fence)
            {
                match requester.stale {
                    StaleFence::Conflict => {
                        return AcquireDecision::Incurable {
                            path: request.path.clone(),
                            reason: Reason::StaleFence { current },
                        };
                    }
                    StaleFence::Replace => stale = true,
                }
            }
        }
        if stale {
            AcquireDecision::FreeButStale
        } else {
            AcquireDecision::Free
        }
    }

    /// Returns the first claim that blocks one path (R45), if any.
    pub(super) fn blocking_claim(
        &self,
        session: Option<Id<Session>>,
        path_position: PathPosition,
        wanted: Access,
    ) -> Option<BlockingClaim> {
        // Ancestors first: R45 ranks ANCESTOR_LOCKED before all other blocking claims.
        for node in self.tree.upwards(path_position.above) {
            if !self.tree.is_vacant(node)
                && let Some(found) = self.blocking_at(session, node, wanted, Position::Above)
            {
                return Some(found);
            }
        }
        // Without a node there is no claim at the path or below it.
        let node = path_position.at?;
        if let Some(found) = self.blocking_at(session, node, wanted, Position::Same) {
            return Some(found);
        }
        Side::ALL.into_iter().find_map(|side| {
            let claims = self.tree.nodes[node].below[side as usize];
            if claims == 0 {
                return None;
            }
            let reason = excludes_below(wanted, side)?;
            // The counts include the owner's own claims, which never block it.
            let others = claims > self.own_below(session, node)[side as usize];
            others.then_some(BlockingClaim {
                reason,
                position: Position::Below,
                mode: side.modes()[0],
                node,
            })
        })
    }

    /// Returns the first claim at one node that blocks a path.
    fn blocking_at(
        &self,
        session: Option<Id<Session>>,
        node: Id<PathNode>,
        wanted: Access,
        position: Position,
    ) -> Option<BlockingClaim> {
        let mut full = None;
        for mode in Mode::ALL {
            // Claims of one mode at one node have one algorithm: the first stands for all.
            let Some(claim) = self.foreign_claim(session, node, mode) else {
                continue;
            };
            let reason = excludes(wanted, self.claims[claim].access(), position);
            let found = reason.map(|reason| BlockingClaim {
                reason,
                position,
                mode,
                node,
            });
            match reason {
                // The last reason at a path (R45).
                Some(Reason::SemaphoreFull) => full = found,
                Some(_) => return found,
                None => {}
            }
        }
        full.filter(|_| self.is_full(session, node))
    }

    /// Returns whether all permits of a path are taken, none of them by this owner (R53: one permit
    /// per owner).
    fn is_full(&self, session: Option<Id<Session>>, node: Id<PathNode>) -> bool {
        let holders = self.count_at(node, Mode::Write);
        if holders == 0 {
            return false;
        }
        let mine = session.and_then(|session| self.own_claim(session, node, Mode::Write));
        if mine.is_some() {
            return false;
        }
        let Some(holder) = self.claims_at(node, Mode::Write).next() else {
            return false;
        };
        let session = &self.sessions[self.claims[holder].session];
        let name = &self.namespaces[session.namespace].name;
        let path = self.tree.path(name, node);
        match self.capacity(session.namespace, &path) {
            Some(capacity) => holders >= capacity.get() as usize,
            // Unreachable: a permit holder has fixed the capacity. `true` is the safe result.
            None => true,
        }
    }

    /// Returns the stored fence, or the floor, that makes a NEW write's fence stale (R68, R72 token
    /// retention and floors).
    fn stale(
        &self,
        requester: Requester<'_>,
        request: &Request,
        path_position: PathPosition,
        algorithm: Algorithm,
        fence: Fence,
    ) -> Option<Fence> {
        if request.mode != Mode::Write || algorithm == Algorithm::Semaphore {
            return None;
        }
        let stored = self.stored_fence(requester.namespace, &request.path, path_position.at);
        let own = requester
            .session
            .zip(path_position.at)
            .is_some_and(|(session, node)| self.own_claim(session, node, Mode::Write).is_some());
        if own && stored == Some(fence) {
            return None;
        }
        // After a `Lift` the floor is above the stored fence; fences in between may have been
        // issued and lost.
        let floor = self.fence_floor(requester.namespace, &request.path);
        let highest = stored.max(Fence::from_number(floor))?;
        (fence <= highest).then_some(highest)
    }
}

/// Why claims of one side below a wanted path exclude it. The rule does not ask for their algorithm
/// there.
pub(super) fn excludes_below(wanted: Access, side: Side) -> Option<Reason> {
    side.modes().iter().find_map(|mode| {
        excludes(
            wanted,
            Access {
                mode: *mode,
                ..wanted
            },
            Position::Below,
        )
    })
}

/// The NEW requests of an acquire.
pub(super) fn new_requests(acquire: &Acquire) -> impl Iterator<Item = &Request> {
    acquire
        .requests
        .iter()
        .filter(|request| request.state == RequestKind::New)
}

/// The NEW (path, mode) pairs of an acquire.
pub(super) fn new_pairs(acquire: &Acquire) -> BTreeSet<(&Path, Mode)> {
    new_requests(acquire)
        .map(|request| (&request.path, request.mode))
        .collect()
}

/// The paths that an acquire writes, NEW or HELD.
pub(super) fn written_paths(acquire: &Acquire) -> impl Iterator<Item = &Path> {
    acquire
        .requests
        .iter()
        .filter(|request| request.mode == Mode::Write)
        .map(|request| &request.path)
}
