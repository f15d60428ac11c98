//! Wait queue: FIFO waiters, each parked on one blocker.
//!
//! ```text
//! acquire ──blocked──▶ join ──▶ [waiters, by number] ──freed──▶ grant ──▶ GRANT
//!                                      └── timed out, cancelled, replaced ──▶ leave
//! ```
//!
//! A waiter is queued at the node of each path that it wants, and counted in the queues of all
//! nodes above. A new request finds the waiters that block it at its own path and the nodes above
//! it (R79: no overtaking).
//!
//! Each waiter is parked on *one* blocker: the latest earlier waiter that excludes it, or a claim.
//! While that blocker exists, no other change can make the waiter grantable, so no other change
//! re-checks it. When the blocker goes, all waiters parked on it are re-checked in order (see
//! `wake.rs`). Waiters for the same path form a chain, each parked on the one before, so a
//! hand-over re-checks one waiter, however many are queued.
//!
//! A waiter leaves at its `end`: `acquire.rs` computes it from the queue ttl, and
//! `Space::pass_time` removes the waiter.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Space;
use super::conflict::{BlockingClaim, excludes_below, new_requests};
use super::idempotency::ScopedKey;
use super::namespaces::NamespaceState;
use super::sessions::Session;
use super::usage::Tally;
use crate::command::{Acquire, RequestKind, WaitMode};
use crate::event::{ChangeKind, LockChange};
use crate::history::{History, Noted};
use crate::path::Path;
use crate::policy::{Access, Algorithm, Mode, Position, excludes};
use crate::segment::below_root;
use crate::slab::Id;
use crate::tree::{NodeRing, PathNode, PathPosition, PathQueue, QueuedPath, Side};
use crate::value::{Fence, OwnerId};
use crate::wait_lists::WaitLink;

/// A queued acquire (R81: queueing has no effect).
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    /// Its number in the queue: smaller ones come first.
    pub(super) number: u64,
    pub(super) session: Id<Session>,
    pub(super) request: Box<Acquire>,
    /// The fence reserved for it, or the supplied one.
    pub(super) fence: Option<Fence>,
    pub(super) since: u64,
    pub(super) end: u64,
    pub(super) parts: Vec<WantedPath>,
    /// The sum of the levels of its paths, which its memory is proportional to.
    pub(super) levels: u64,
    /// Its link in the wait list of its blocker.
    pub(super) link: Id<WaitLink>,
    /// The owners that it has asked to release (E2: ask blockers to release).
    pub(super) asked: BTreeSet<OwnerId>,
    /// The remembered answers that refer to it (R105: replays report present truth).
    pub(super) answers: Vec<ScopedKey>,
}

/// One path that a waiter wants to take.
#[derive(Clone, Debug)]
pub(super) struct WantedPath {
    pub(super) node: Id<PathNode>,
    pub(super) mode: Mode,
    /// Wait list of the waiters that this path blocks, if there is one.
    pub(super) blocks: Option<Id<WaitLink>>,
    /// The same for waiters that ask their blockers (E2): they are re-checked when this path is
    /// granted, because then the blocker is a new claim whose owner must be asked.
    pub(super) blocks_asking: Option<Id<WaitLink>>,
}

/// An earlier waiter that blocks a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockingWaiter {
    pub(super) number: u64,
    pub(super) waiter: Id<Waiter>,
    pub(super) at: WaiterPosition,
}

/// The position of a blocking waiter, relative to the wanted path.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaiterPosition {
    /// It wants this node (the path's own or one above) in this mode.
    Here(Id<PathNode>, Mode),
    /// It wants a path below the path's node, for writing or for reading.
    Below(Id<PathNode>, Side),
}

impl WaiterPosition {
    /// Identifies the line.
    pub(super) fn line(self) -> (Id<PathNode>, u8) {
        match self {
            WaiterPosition::Here(node, mode) => (node, mode as u8),
            WaiterPosition::Below(node, side) => (node, 3 + side as u8),
        }
    }
}

/// The part of the queue that is ahead of a request (R79).
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueBound {
    pub(super) number: u64,
    /// The number of the owner's own waiter, which never blocks it.
    pub(super) own: u64,
}

impl QueueBound {
    pub(super) fn latest(self, line: &PathQueue) -> Option<(u64, Id<Waiter>)> {
        line.before(self.number)
            .rev()
            .find(|(number, _)| *number != self.own)
            .map(|(number, queued)| (number, queued.waiter))
    }

    pub(super) fn all(self, line: &PathQueue) -> impl Iterator<Item = (u64, Id<Waiter>)> + '_ {
        line.before(self.number)
            .filter(move |(number, _)| *number != self.own)
            .map(|(number, queued)| (number, queued.waiter))
    }
}

/// A wanted path, as input of the search for blocking waiters.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedAccess {
    pub(super) path_position: PathPosition,
    pub(super) access: Access,
}

impl Space {
    /// Returns the latest earlier waiter that blocks a path.
    pub(super) fn latest_ahead(
        &self,
        want: WantedAccess,
        before: QueueBound,
    ) -> Option<BlockingWaiter> {
        self.lines(want)
            .into_iter()
            .filter_map(|(at, line)| {
                let (number, waiter) = before.latest(line)?;
                Some(BlockingWaiter { number, waiter, at })
            })
            .max_by_key(|blocking_waiter| blocking_waiter.number)
    }

    /// Returns the earliest waiter that blocks a path.
    pub(super) fn earliest_ahead(
        &self,
        want: WantedAccess,
        before: QueueBound,
    ) -> Option<(u64, Id<Waiter>)> {
        self.lines(want)
            .into_iter()
            .filter_map(|(_, line)| before.all(line).next())
            .min()
    }

    /// Adds the earlier waiters that block a path to a set, at most `limit` in all.
    pub(super) fn all_ahead(
        &self,
        want: WantedAccess,
        before: QueueBound,
        limit: usize,
        found: &mut BTreeSet<(u64, Id<Waiter>)>,
    ) {
        for (_, line) in self.lines(want) {
            // The `limit` smallest of the union are among the `limit` smallest of each queue.
            for ahead in before.all(line).take(limit) {
                found.insert(ahead);
            }
            while found.len() > limit {
                found.pop_last();
            }
        }
    }

    /// Returns the number of earlier waiters that block a single path, if they are all in one queue
    /// and so can be counted without visiting each.
    pub(super) fn count_ahead(&self, want: WantedAccess, before: QueueBound) -> Option<usize> {
        let lines = self.lines(want);
        match lines.as_slice() {
            [] => Some(0),
            [(_, line)] if before.number == u64::MAX => {
                Some(line.len() - usize::from(line.get(before.own).is_some()))
            }
            _ => None,
        }
    }

    /// Returns the queues of waiters that exclude a wanted path (R44: when two requests exclude
    /// each other), each with its position.
    pub(super) fn lines(&self, want: WantedAccess) -> Vec<(WaiterPosition, &PathQueue)> {
        let mut found: Vec<(WaiterPosition, &PathQueue)> = Vec::new();
        let WantedAccess {
            path_position,
            access,
        } = want;
        let above = self.tree.upwards(path_position.above);
        let nodes = above.map(|node| (node, Position::Above));
        for (node, position) in nodes.chain(path_position.at.map(|node| (node, Position::Same))) {
            let Some(extra) = self.tree.extra(node) else {
                continue;
            };
            for mode in Mode::ALL {
                // All waiters of a namespace have its algorithm.
                if excludes(access, Access { mode, ..access }, position).is_some() {
                    found.push((WaiterPosition::Here(node, mode), extra.line(mode)));
                }
            }
            for side in Side::ALL {
                if position == Position::Same && excludes_below(access, side).is_some() {
                    let line = &extra.below[side as usize];
                    found.push((WaiterPosition::Below(node, side), line));
                }
            }
        }
        found.retain(|(_, line)| !line.is_empty());
        found
    }

    /// Returns whether an owner's own holds on a path exempt it from yielding to waiters (R79).
    pub(super) fn holds_enough(
        &self,
        session: Option<Id<Session>>,
        path_position: PathPosition,
        mode: Mode,
    ) -> bool {
        let Some(session) = session else {
            return false;
        };
        if self.sessions[session].claims == 0 {
            return false;
        }
        let holds = |node: Id<PathNode>, mode: Mode| self.own_claim(session, node, mode);
        if let Some(node) = path_position.at {
            let enough = match mode {
                Mode::Write => holds(node, Mode::Write).is_some(),
                Mode::Read => Mode::ALL.iter().any(|mode| holds(node, *mode).is_some()),
                Mode::ReadTree => {
                    holds(node, Mode::Write).is_some() || holds(node, Mode::ReadTree).is_some()
                }
            };
            if enough {
                return true;
            }
        }
        self.tree.upwards(path_position.above).any(|above| {
            holds(above, Mode::Write)
                .is_some_and(|claim| self.claims[claim].access().covers_below())
                || (mode != Mode::Write && holds(above, Mode::ReadTree).is_some())
        })
    }

    /// Queues a waiter at its paths. The caller parks it.
    pub(super) fn join(&mut self, session: Id<Session>, waiter: Waiter) -> Id<Waiter> {
        let (number, end, link) = (waiter.number, waiter.end, waiter.link);
        let namespace = self.sessions[session].namespace;
        let id = self.waiters.insert(waiter);
        self.links.assign(link, id);
        self.sessions[session].waiter = Some(id);
        self.ends.insert((end, number, id));
        let mut parts: Vec<WantedPath> = Vec::new();
        let mut levels = 0;
        let request = core::mem::take(&mut self.waiters[id].request.requests);
        let mut seen: BTreeSet<(Id<PathNode>, Mode)> = BTreeSet::new();
        for wanted in request
            .iter()
            .filter(|request| request.state == RequestKind::New)
        {
            let node = self.reach(namespace, &wanted.path);
            let mode = wanted.mode;
            if seen.insert((node, mode)) {
                let index = u32::try_from(parts.len()).unwrap_or(u32::MAX);
                levels += self.enqueue(node, mode, number, id, index);
                parts.push(WantedPath {
                    node,
                    mode,
                    blocks: None,
                    blocks_asking: None,
                });
                self.settle_capacity(namespace, &wanted.path);
            }
        }
        let state = &mut self.namespaces[namespace];
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        state.waiting_paths += count;
        state.waiting_levels += levels;
        self.use_more(session, Tally::waiting(count));
        self.waiting_levels += levels;
        self.waiters[id].levels = levels;
        self.waiters[id].request.requests = request;
        self.waiters[id].parts = parts;
        id
    }

    /// Puts the paths of a waiter in the order of its request, which was replaced by one for the same
    /// paths in another order.
    pub(super) fn reorder_parts(&mut self, id: Id<Waiter>) {
        let waiter = &self.waiters[id];
        let (number, namespace) = (waiter.number, self.sessions[waiter.session].namespace);
        let mut order: Vec<usize> = Vec::new();
        let mut seen: BTreeSet<usize> = BTreeSet::new();
        for wanted in new_requests(&waiter.request) {
            let node = self.path_position(namespace, &wanted.path).at;
            let index = node.and_then(|node| self.part_in_line(node, wanted.mode, number));
            order.extend(index.filter(|index| seen.insert(*index)));
        }
        if order.is_sorted() {
            return;
        }
        let waiter = &mut self.waiters[id];
        waiter.parts = order.iter().map(|at| waiter.parts[*at].clone()).collect();
        let places = waiter.parts.iter().map(|part| (part.node, part.mode));
        let places: Vec<_> = places.collect();
        for ((node, mode), index) in places.into_iter().zip(0..) {
            let line = self.tree.extra_mut(node).line_mut(mode);
            if let Some(queued) = line.get_mut(number) {
                queued.paths = index;
            }
        }
    }

    /// Returns the number of levels of the path.
    fn enqueue(
        &mut self,
        node: Id<PathNode>,
        mode: Mode,
        number: u64,
        waiter: Id<Waiter>,
        index: u32,
    ) -> u64 {
        let here = QueuedPath {
            waiter,
            paths: index,
        };
        self.tree
            .extra_mut(node)
            .line_mut(mode)
            .insert(number, here);
        let side = Side::of(mode) as usize;
        let mut levels = 1;
        let mut at = self.tree.nodes[node].parent;
        while let Some(above) = at {
            let line = &mut self.tree.extra_mut(above).below[side];
            match line.get_mut(number) {
                Some(queued) => queued.paths += 1,
                None => line.insert(number, QueuedPath { waiter, paths: 1 }),
            }
            levels += 1;
            at = self.tree.nodes[above].parent;
        }
        levels
    }

    /// Removes one path of a waiter from the queues. Waiters parked on it stay parked.
    fn unqueue(&mut self, part: &WantedPath, number: u64) {
        self.tree
            .extra_mut(part.node)
            .line_mut(part.mode)
            .remove(number);
        let side = Side::of(part.mode) as usize;
        let mut at = self.tree.nodes[part.node].parent;
        while let Some(above) = at {
            let line = &mut self.tree.extra_mut(above).below[side];
            if let Some(queued) = line.get_mut(number) {
                queued.paths -= 1;
                if queued.paths == 0 {
                    line.remove(number);
                }
            }
            self.tree.settle_extra(above);
            at = self.tree.nodes[above].parent;
        }
    }

    /// Removes a waiter from all indexes and returns it. Other waiters are still parked on its
    /// paths: the caller must dissolve those lists or hand them over to claims.
    pub(super) fn take_waiter(&mut self, id: Id<Waiter>) -> Option<Waiter> {
        let waiter = self.waiters.remove(id)?;
        self.links.destroy(waiter.link);
        self.ends.remove(&(waiter.end, waiter.number, id));
        self.pending.remove(&(waiter.number, id));
        let session = &mut self.sessions[waiter.session];
        session.waiter = None;
        let namespace = session.namespace;
        let count = u32::try_from(waiter.parts.len()).unwrap_or(0);
        let state = &mut self.namespaces[namespace];
        state.waiting_paths -= count;
        state.waiting_levels -= waiter.levels;
        self.use_less(waiter.session, Tally::waiting(count));
        self.waiting_levels -= waiter.levels;
        for parked in self.routes.frozen.values_mut() {
            parked.waiters.remove(&(waiter.number, id));
        }
        for part in &waiter.parts {
            self.unqueue(part, waiter.number);
        }
        Some(waiter)
    }

    /// Removes a waiter without a grant: marks its answers as gone and the waiters parked on it as
    /// pending.
    pub(super) fn leave(&mut self, id: Id<Waiter>) -> Option<Waiter> {
        let waiter = self.take_waiter(id)?;
        for key in &waiter.answers {
            self.answers.gone(key);
        }
        for part in &waiter.parts {
            self.pass_on(part, waiter.number);
        }
        self.tell_waiter(&waiter, ChangeKind::Dequeued);
        self.leave_paths(&waiter);
        Some(waiter)
    }

    /// Frees the nodes and capacities that only this waiter kept alive.
    pub(super) fn leave_paths(&mut self, waiter: &Waiter) {
        let namespace = self.sessions[waiter.session].namespace;
        if waiter.request.route.algorithm == Algorithm::Semaphore {
            for wanted in &waiter.request.requests {
                self.settle_capacity(namespace, &wanted.path);
            }
        }
        for part in &waiter.parts {
            self.tree.prune(part.node);
        }
    }

    /// Parks the waiters behind one path of a waiter that has left on the waiter before it in the
    /// same line, which excludes them just as well. Without one they are re-checked.
    fn pass_on(&mut self, part: &WantedPath, number: u64) {
        let line = self.tree.extra(part.node);
        let line = line.map(|extra| extra.line(part.mode));
        let earlier = line.and_then(|line| line.before(number).next_back());
        let Some((_, earlier)) = earlier else {
            self.dissolve(part.blocks);
            self.dissolve(part.blocks_asking);
            return;
        };
        let parts = &mut self.waiters[earlier.waiter].parts;
        let there = &mut parts[earlier.paths as usize];
        for (from, to) in [
            (part.blocks, &mut there.blocks),
            (part.blocks_asking, &mut there.blocks_asking),
        ] {
            match (from, *to) {
                (Some(from), Some(to)) => {
                    self.links.splice(from, to);
                    self.links.destroy(from);
                }
                (Some(_), None) => *to = from,
                (None, _) => {}
            }
        }
    }

    /// Marks all waiters of a list as pending and removes the list.
    pub(super) fn dissolve(&mut self, head: Option<Id<WaitLink>>) {
        let Some(head) = head else {
            return;
        };
        for waiter in self.links.waiters(head) {
            let link = self.waiters[waiter].link;
            self.links.leave(link);
            self.mark_pending(Some(waiter));
        }
        self.links.destroy(head);
    }

    /// Marks all waiters of one list of a node as pending.
    pub(super) fn flush(&mut self, node: Id<PathNode>, ring: NodeRing) {
        let Some(extra) = self.tree.extra(node) else {
            return;
        };
        if extra.rings[ring as usize].is_some() {
            let extra = self.tree.extra_mut(node);
            if ring == NodeRing::AmongOwn {
                extra.most_own = [0, 0];
            }
            let head = extra.rings[ring as usize].take();
            self.dissolve(head);
            self.tree.settle_extra(node);
        }
    }

    /// Marks a waiter to be re-checked before this command ends.
    pub(super) fn mark_pending(&mut self, id: Option<Id<Waiter>>) {
        if let Some(id) = id
            && let Some(waiter) = self.waiters.get(id)
        {
            self.pending.insert((waiter.number, id));
        }
    }

    /// Parks a waiter on an earlier one.
    pub(super) fn park_on_waiter(&mut self, id: Id<Waiter>, ahead: BlockingWaiter) {
        let asks = self.waiters[id].request.wait == WaitMode::QueueAndAsk;
        let part = match ahead.at {
            WaiterPosition::Here(node, mode) => self.part_in_line(node, mode, ahead.number),
            WaiterPosition::Below(node, side) => {
                let mut parts = self.waiters[ahead.waiter].parts.iter();
                parts.position(|part| {
                    Side::of(part.mode) == side && self.tree.is_below(part.node, node)
                })
            }
        };
        let Some(part) = part else {
            return;
        };
        let link = self.waiters[id].link;
        let part = &mut self.waiters[ahead.waiter].parts[part];
        let head = if asks {
            &mut part.blocks_asking
        } else {
            &mut part.blocks
        };
        let head = *head.get_or_insert_with(|| self.links.create());
        self.links.join(link, head);
    }

    /// Returns the index of the path with which a waiter is in a line.
    pub(super) fn part_in_line(
        &self,
        node: Id<PathNode>,
        mode: Mode,
        number: u64,
    ) -> Option<usize> {
        let queued = self.tree.extra(node)?.line(mode).get(number)?;
        Some(queued.paths as usize)
    }

    /// Parks a waiter on the claim that blocks it.
    pub(super) fn park_on_claim(&mut self, id: Id<Waiter>, blocking_claim: BlockingClaim) {
        let session = Some(self.waiters[id].session);
        let node = blocking_claim.node;
        let ring = match (blocking_claim.position, blocking_claim.mode) {
            (Position::Above | Position::Same, Mode::Write) => NodeRing::Writer,
            (Position::Above, Mode::Read | Mode::ReadTree) => NodeRing::Trees,
            (Position::Same, Mode::Read | Mode::ReadTree) => NodeRing::Readers,
            (Position::Below, mode) => {
                let side = Side::of(mode);
                match (self.own_below(session, node)[side as usize], side) {
                    (0, Side::Writes) => NodeRing::WritesBelow,
                    (0, Side::Reads) => NodeRing::ReadsBelow,
                    (own, _) => {
                        let most = &mut self.tree.extra_mut(node).most_own[side as usize];
                        *most = own.max(*most);
                        NodeRing::AmongOwn
                    }
                }
            }
        };
        let link = self.waiters[id].link;
        let head = self.ring(node, ring);
        self.links.join(link, head);
    }

    /// Returns the head of a wait list of a node; creates it if needed.
    pub(super) fn ring(&mut self, node: Id<PathNode>, ring: NodeRing) -> Id<WaitLink> {
        let head = &mut self.tree.extra_mut(node).rings[ring as usize];
        *head.get_or_insert_with(|| self.links.create())
    }

    /// Returns the node of a path in a namespace; creates it if needed.
    pub(super) fn reach(&mut self, namespace: Id<NamespaceState>, path: &Path) -> Id<PathNode> {
        let state = &mut self.namespaces[namespace];
        let root = *state.root.get_or_insert_with(|| self.tree.plant());
        self.tree.reach(root, below_root(&state.name, path))
    }

    /// Returns the position of a path in its namespace's tree.
    pub(super) fn path_position(&self, namespace: Id<NamespaceState>, path: &Path) -> PathPosition {
        let state = &self.namespaces[namespace];
        self.tree
            .path_position(state.root, below_root(&state.name, path))
    }

    /// Reports a change of all paths of a waiter to the history and to watchers.
    pub(super) fn tell_waiter(&mut self, waiter: &Waiter, kind: ChangeKind) {
        let owner = &self.sessions[waiter.session].owner;
        note(&mut self.history, self.wall, owner, waiter, kind);
        self.tell_watchers(waiter, kind);
    }

    /// Adds a change of all paths of a present waiter to the history.
    pub(super) fn note_waiter(&mut self, id: Id<Waiter>, kind: ChangeKind) {
        let waiter = &self.waiters[id];
        let owner = &self.sessions[waiter.session].owner;
        note(&mut self.history, self.wall, owner, waiter, kind);
    }

    pub(super) fn tell_watchers(&mut self, waiter: &Waiter, kind: ChangeKind) {
        if !self.watching {
            return;
        }
        let session = &self.sessions[waiter.session];
        for wanted in &waiter.request.requests {
            if wanted.state == RequestKind::New {
                self.out.changes.push(LockChange {
                    namespace: self.namespaces[session.namespace].name.clone(),
                    kind,
                    owner: Some(session.owner.clone()),
                    path: Some(wanted.path.clone()),
                    mode: Some(wanted.mode),
                    fence: waiter.fence.filter(|_| wanted.mode == Mode::Write),
                    holder: waiter.request.holder.as_deref().cloned(),
                });
            }
        }
    }
}

fn note(history: &mut History, wall: u64, owner: &OwnerId, waiter: &Waiter, kind: ChangeKind) {
    if !history.is_kept() {
        return;
    }
    for wanted in new_requests(&waiter.request) {
        let noted = Noted {
            kind,
            path: wanted.path.as_str(),
            owner: Some(owner),
            mode: Some(wanted.mode),
            fence: None,
            holder: match kind {
                ChangeKind::Queued => waiter.request.holder.as_deref(),
                _ => None,
            },
        };
        history.note(wall, &noted);
    }
}
