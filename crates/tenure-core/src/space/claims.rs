//! Claims: storage of one owner's hold on one path, and the effects of adding and removing it.

use alloc::boxed::Box;

use super::packed_claim::PackedClaim;
use super::sessions::{OwnBelow, Session};
use super::usage::Tally;
use super::{ClaimEnd, Space};
use crate::event::ChangeKind;
use crate::history::Noted;
use crate::path::Path;
use crate::policy::{Access, Algorithm, Mode};
use crate::slab::Id;
use crate::tree::{NodeExtra, NodeRing, PathNode, Side, SideCounts};
use crate::value::Fence;

/// One hold.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// Lease time at which it was first acquired.
    pub(super) since: u64,
    pub(super) terms: PackedClaim,
    pub(super) node: Id<PathNode>,
    pub(super) session: Id<Session>,
    pub(super) next: Option<Id<Claim>>,
    pub(super) previous: Option<Id<Claim>>,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    core::mem::size_of::<Claim>() == 32,
    "a held lock must stay cheap"
);

impl Claim {
    pub(super) fn mode(&self) -> Mode {
        self.terms.mode()
    }

    /// The algorithm under which it was acquired (R42: holds keep their algorithm).
    pub(super) fn algorithm(&self) -> Algorithm {
        self.terms.algorithm()
    }

    /// The stored fence of a write under an exclusive algorithm (R66: where tokens are stored).
    pub(super) fn fence(&self) -> Option<Fence> {
        self.terms.fence()
    }

    pub(super) fn access(&self) -> Access {
        Access {
            mode: self.mode(),
            algorithm: self.algorithm(),
        }
    }

    pub(super) fn is_permit(&self) -> bool {
        self.access().is_permit()
    }
}

/// Sessions with more claims than this keep counts of them by node; others are scanned.
const MANY: u32 = 64;

impl Space {
    /// Adds a claim, or updates the existing one.
    pub(super) fn add_claim(
        &mut self,
        session: Id<Session>,
        node: Id<PathNode>,
        terms: PackedClaim,
    ) {
        let mode = terms.mode();
        if let Some(there) = self.own_claim(session, node, mode) {
            let before = core::mem::replace(&mut self.claims[there].terms, terms);
            if let (Some(fence), None) = (before.fence(), terms.fence()) {
                // A write that became a permit (R43: conflicts between different algorithms): the
                // path's fence must not be forgotten (R71: tokens never go back).
                let namespace = self.sessions[session].namespace;
                let path = self.tree.path(&self.namespaces[namespace].name, node);
                self.leave_mark(namespace, &path, fence);
            }
            return;
        }
        let next = self.sessions[session].first_claim;
        let number = self.claims.insert(Claim {
            since: self.time,
            terms,
            node,
            session,
            next,
            previous: None,
        });
        if let Some(next) = next {
            self.claims[next].previous = Some(number);
        }
        self.sessions[session].first_claim = Some(number);
        self.sessions[session].claims += 1;
        self.use_more(session, Tally::HOLD);
        self.place(number);
        self.count(number, ClaimChange::Up);
    }

    /// Removes a claim, retains its fence, and marks the waiters that it blocked as pending. `path`
    /// is the claim's path, if the caller has it. The session may have no claims afterwards.
    pub(super) fn remove_claim(&mut self, number: Id<Claim>, path: Option<Path>, ending: ClaimEnd) {
        self.count(number, ClaimChange::Down);
        self.unplace(number);
        let Some(claim) = self.claims.remove(number) else {
            return;
        };
        self.use_less(claim.session, Tally::HOLD);
        match claim.previous {
            None => self.sessions[claim.session].first_claim = claim.next,
            Some(previous) => self.claims[previous].next = claim.next,
        }
        if let Some(next) = claim.next {
            self.claims[next].previous = claim.previous;
        }
        let session = &mut self.sessions[claim.session];
        session.claims -= 1;
        // The owner no longer holds all that its GRANT announced (R122: events are always
        // delivered).
        session.set_grant(None);
        let (namespace, waiter) = (session.namespace, session.waiter);
        // The owner's own holds affect its queued acquire, too (R79 no overtaking, R88 sweep order
        // and reservation).
        self.mark_pending(waiter);
        self.wake(&claim);

        if claim.fence().is_some() || claim.is_permit() || self.reports() {
            let path = path.unwrap_or_else(|| {
                let name = &self.namespaces[namespace].name;
                self.tree.path(name, claim.node)
            });
            if self.reports() {
                self.tell_claim(ending.change(), &claim, &path);
            }
            if claim.is_permit() {
                self.settle_capacity(namespace, &path);
            }
            if let Some(fence) = claim.fence() {
                self.leave_mark(namespace, &path, fence);
            }
        }
        self.tree.prune(claim.node);
    }

    /// A session's claim of one mode at a node.
    pub(super) fn own_claim(
        &self,
        session: Id<Session>,
        node: Id<PathNode>,
        mode: Mode,
    ) -> Option<Id<Claim>> {
        if let Some(only) = self.tree.nodes[node].claim {
            let claim = &self.claims[only];
            return (claim.session == session && claim.mode() == mode).then_some(only);
        }
        let claims_by_owner = &self.tree.extra(node)?.claims_by_owner()?[mode as usize];
        if claims_by_owner.is_empty() {
            return None;
        }
        claims_by_owner.get(&self.sessions[session].owner).copied()
    }

    /// The claim of one mode at a node whose owner is the smallest but not this session's (R46:
    /// smallest owner or path reported).
    pub(super) fn foreign_claim(
        &self,
        session: Option<Id<Session>>,
        node: Id<PathNode>,
        mode: Mode,
    ) -> Option<Id<Claim>> {
        self.foreign_claims(session, node, mode).next()
    }

    /// The claims of one mode at a node, but this session's, by owner (R46).
    pub(super) fn foreign_claims(
        &self,
        session: Option<Id<Session>>,
        node: Id<PathNode>,
        mode: Mode,
    ) -> impl Iterator<Item = Id<Claim>> + '_ {
        self.claims_at(node, mode)
            .filter(move |claim| Some(self.claims[*claim].session) != session)
    }

    /// The claims of one mode at a node, by owner.
    pub(super) fn claims_at(
        &self,
        node: Id<PathNode>,
        mode: Mode,
    ) -> impl Iterator<Item = Id<Claim>> + '_ {
        let only = self.tree.nodes[node].claim;
        let single = only.filter(|only| self.claims[*only].mode() == mode);
        let claims_by_owner = self
            .tree
            .extra(node)
            .and_then(NodeExtra::claims_by_owner)
            .map(|claims| claims[mode as usize].values().copied());
        single
            .into_iter()
            .chain(claims_by_owner.into_iter().flatten())
    }

    /// How many claims of one mode are at a node.
    pub(super) fn count_at(&self, node: Id<PathNode>, mode: Mode) -> usize {
        if let Some(only) = self.tree.nodes[node].claim {
            return usize::from(self.claims[only].mode() == mode);
        }
        self.tree
            .extra(node)
            .and_then(NodeExtra::claims_by_owner)
            .map_or(0, |claims| claims[mode as usize].len())
    }

    /// How many claims a session has strictly below a node.
    pub(super) fn own_below(&self, session: Option<Id<Session>>, node: Id<PathNode>) -> SideCounts {
        let mut counts = [0, 0];
        let Some(session) = session else {
            return counts;
        };
        if let Some(own) = self.sessions[session].own_below() {
            return own.get(&node).copied().unwrap_or(counts);
        }
        for claim in self.session_claims(session) {
            let claim = &self.claims[claim];
            if self.tree.is_below(claim.node, node) {
                counts[Side::of(claim.mode()) as usize] += 1;
            }
        }
        counts
    }

    /// The claims of a session, newest first.
    pub(super) fn session_claims(
        &self,
        session: Id<Session>,
    ) -> impl Iterator<Item = Id<Claim>> + '_ {
        let first = self.sessions[session].first_claim;
        core::iter::successors(first, |claim| self.claims[*claim].next)
    }

    /// Stores a claim at its node: inline if it is the only one, else in the map by owner.
    pub(super) fn place(&mut self, number: Id<Claim>) {
        let Claim { node, session, .. } = self.claims[number];
        let mode = self.claims[number].mode();
        let crowded = self
            .tree
            .extra(node)
            .and_then(NodeExtra::claims_by_owner)
            .is_some_and(|claims| claims.iter().any(|claims| !claims.is_empty()));
        let only = self.tree.nodes[node].claim.take();
        if only.is_none() && !crowded {
            self.tree.nodes[node].claim = Some(number);
            return;
        }
        if let Some(only) = only {
            let other = &self.claims[only];
            let (other_mode, owner) = (other.mode(), self.sessions[other.session].owner.clone());
            self.tree.extra_mut(node).claims_by_owner_mut()[other_mode as usize]
                .insert(owner, only);
        }
        let owner = self.sessions[session].owner.clone();
        self.tree.extra_mut(node).claims_by_owner_mut()[mode as usize].insert(owner, number);
    }

    fn unplace(&mut self, number: Id<Claim>) {
        let Claim { node, session, .. } = self.claims[number];
        let mode = self.claims[number].mode();
        if self.tree.nodes[node].claim == Some(number) {
            self.tree.nodes[node].claim = None;
            return;
        }
        let owner = &self.sessions[session].owner;
        let crowds = self.tree.extra_mut(node).claims_by_owner_mut();
        crowds[mode as usize].remove(owner);
        if crowds
            .iter()
            .map(alloc::collections::BTreeMap::len)
            .sum::<usize>()
            == 1
        {
            let last = crowds
                .iter_mut()
                .find_map(alloc::collections::BTreeMap::pop_first);
            if let Some((_, last)) = last {
                self.tree.nodes[node].claim = Some(last);
            }
        }
    }

    /// Counts a claim at the nodes above it, in total and for its own session.
    fn count(&mut self, number: Id<Claim>, step: ClaimChange) {
        let session = self.claims[number].session;
        let there = &mut self.sessions[session];
        match step {
            ClaimChange::Up if there.claims == MANY + 1 && there.own_below().is_none() => {
                self.index_own(session);
            }
            ClaimChange::Down if there.claims == MANY / 2 => there.set_own_below(None),
            ClaimChange::Up | ClaimChange::Down if there.own_below().is_none() => {}
            ClaimChange::Up | ClaimChange::Down => {
                let claim = &self.claims[number];
                self.count_own(session, claim.node, Side::of(claim.mode()), step);
            }
        }
        self.count_above(number, step);
    }

    /// Counts a claim at the nodes above it, in total.
    pub(super) fn count_above(&mut self, number: Id<Claim>, step: ClaimChange) {
        let node = self.claims[number].node;
        let side = Side::of(self.claims[number].mode());
        let mut at = self.tree.nodes[node].parent;
        while let Some(node) = at {
            let above = &mut self.tree.nodes[node];
            let below = &mut above.below[side as usize];
            match step {
                ClaimChange::Up => *below += 1,
                ClaimChange::Down => *below -= 1,
            }
            at = above.parent;
        }
    }

    fn count_own(
        &mut self,
        session: Id<Session>,
        node: Id<PathNode>,
        side: Side,
        step: ClaimChange,
    ) {
        let Some(own) = self.sessions[session].own_below_mut() else {
            return;
        };
        for above in self.tree.ancestors(node) {
            let counts = own.entry(above).or_default();
            let below = &mut counts[side as usize];
            match step {
                ClaimChange::Up => *below += 1,
                ClaimChange::Down => *below -= 1,
            }
            if *counts == [0, 0] {
                own.remove(&above);
            }
        }
    }

    /// Starts to count a session's own claims by node.
    pub(super) fn index_own(&mut self, session: Id<Session>) {
        let mut own = Box::new(OwnBelow::default());
        for claim in self.session_claims(session) {
            let claim = &self.claims[claim];
            for above in self.tree.ancestors(claim.node) {
                own.entry(above).or_default()[Side::of(claim.mode()) as usize] += 1;
            }
        }
        self.sessions[session].set_own_below(Some(own));
    }

    /// Returns whether a restored session with so many claims gets an index. At run time there is
    /// hysteresis: the index is built above `MANY` and dropped at `MANY / 2`.
    pub(super) fn wants_index(claims: u32) -> bool {
        claims > MANY
    }

    /// Marks as pending the waiters that a removed claim blocked, unless another claim at the same
    /// node still blocks them.
    fn wake(&mut self, gone: &Claim) {
        let node = gone.node;
        if self.tree.extra(node).is_some() {
            match gone.mode() {
                Mode::Write => self.flush(node, NodeRing::Writer),
                Mode::Read => self.wake_readers(node),
                Mode::ReadTree => {
                    self.wake_readers(node);
                    match self.count_at(node, Mode::ReadTree) {
                        0 => self.flush(node, NodeRing::Trees),
                        1 => self.mark_holder_pending(node, Mode::ReadTree),
                        _ => {}
                    }
                }
            }
        }
        // Waiters on a subtree are woken when its count reaches zero. Those that hold claims there
        // themselves (`AmongOwn`) never see zero: they are woken when no more claims are left than
        // one of them has itself. The number of a waiter's own claims does not grow while it
        // waits, and when it shrinks, the waiter is re-checked anyway.
        let side = Side::of(gone.mode()) as usize;
        let mut at = self.tree.nodes[node].parent;
        while let Some(node) = at {
            let above = &self.tree.nodes[node];
            let (parent, [writes, reads]) = (above.parent, above.below);
            if let Some(extra) = self.tree.extra(node) {
                let most_own = extra.most_own[side];
                // By rules 1 every removal wakes them, which matters to waiters that ask.
                let few = self.rules < 2 || [writes, reads][side] <= most_own;
                if writes == 0 {
                    self.flush(node, NodeRing::WritesBelow);
                }
                if reads == 0 {
                    self.flush(node, NodeRing::ReadsBelow);
                }
                if few {
                    self.flush(node, NodeRing::AmongOwn);
                }
            }
            at = parent;
        }
    }

    /// Wakes waiters that readers of a node blocked. With one reader left, only that reader's own
    /// waiter can proceed; all others are still blocked.
    fn wake_readers(&mut self, node: Id<PathNode>) {
        let mut owners = Mode::ALL[1..]
            .iter()
            .flat_map(|mode| self.claims_at(node, *mode))
            .map(|claim| self.claims[claim].session);
        match (owners.next(), owners.next(), owners.next()) {
            (None, _, _) => {
                drop(owners);
                self.flush(node, NodeRing::Readers);
            }
            (Some(only), None, _) => {
                drop(owners);
                self.mark_pending(self.sessions[only].waiter);
            }
            (Some(one), Some(two), None) if one == two => {
                drop(owners);
                self.mark_pending(self.sessions[one].waiter);
            }
            _ => {}
        }
    }

    fn mark_holder_pending(&mut self, node: Id<PathNode>, mode: Mode) {
        let holder = self.claims_at(node, mode).next();
        if let Some(claim) = holder {
            let session = self.claims[claim].session;
            self.mark_pending(self.sessions[session].waiter);
        }
    }

    /// Reports a change of a claim to watchers.
    fn tell_claim(&mut self, kind: ChangeKind, claim: &Claim, path: &Path) {
        let session = &self.sessions[claim.session];
        if self.history.is_kept() {
            let noted = Noted {
                kind,
                path: path.as_str(),
                owner: Some(&session.owner),
                mode: Some(claim.mode()),
                fence: claim.fence(),
                holder: None,
            };
            self.history.note(self.wall, &noted);
        }
        if !self.watching {
            return;
        }
        let change = crate::event::LockChange {
            namespace: self.namespaces[session.namespace].name.clone(),
            kind,
            owner: Some(session.owner.clone()),
            path: Some(path.clone()),
            mode: Some(claim.mode()),
            fence: claim.fence(),
            holder: session.holder().cloned(),
        };
        self.out.changes.push(change);
    }
}

/// Whether a claim comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimChange {
    Up,
    Down,
}
