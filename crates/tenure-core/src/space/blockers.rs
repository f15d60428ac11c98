//! Blocker reporting: the owner and path of R46 (smallest owner or path reported) and R48 (reported
//! path and owner), and the details shown to users (E4: blocker and queue position).

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::iter::Peekable;
use core::ops::ControlFlow;

use super::Space;
use super::claims::Claim;
use super::conflict::{BlockingClaim, Requester, excludes_below, new_requests};
use super::queue::{Waiter, WaiterPosition};
use super::sessions::Session;
use crate::command::{Acquire, Request};
use crate::namespace_table::parent_name;
use crate::outcome::{Blocker, Conflict};
use crate::path::Path;
use crate::policy::{Access, Algorithm, Mode, Position, Reason, excludes};
use crate::slab::Id;
use crate::tree::{PathNode, Side, SideCounts};

/// Queue positions are counted up to this number (E4).
pub(super) const POSITION_END: usize = 1000;

impl Space {
    /// Converts a blocking claim to a conflict.
    pub(super) fn conflict(
        &self,
        session: Option<Id<Session>>,
        requested: &Path,
        blocking_claim: BlockingClaim,
    ) -> Conflict {
        let BlockingClaim { node, mode, .. } = blocking_claim;
        let claim = match (blocking_claim.position, mode) {
            (Position::Below, mode) => self.first_below(session, node, Side::of(mode)),
            (Position::Same, Mode::Read | Mode::ReadTree) => self.smallest_reader(session, node),
            (Position::Above | Position::Same, mode) => self.foreign_claim(session, node, mode),
        };
        let blocker = claim.map(|claim| self.blocker(claim));
        Conflict {
            reason: blocking_claim.reason,
            path: blocker
                .as_ref()
                .map_or_else(|| requested.clone(), |blocker| blocker.path.clone()),
            blocker,
        }
    }

    /// Describes a claim as a blocker.
    pub(super) fn blocker(&self, claim: Id<Claim>) -> Blocker {
        let claim = &self.claims[claim];
        let session = &self.sessions[claim.session];
        Blocker {
            owner: session.owner.clone(),
            path: self
                .tree
                .path(&self.namespaces[session.namespace].name, claim.node),
            mode: claim.mode(),
            fence: claim.fence(),
            held_ms: self.time.saturating_sub(claim.since),
            holder: session.holder().cloned(),
        }
    }

    /// Returns the conflict with earlier waiters: the earliest blocking one, and the first of its
    /// NEW paths, in its order, that excludes one of the request's (R48).
    pub(super) fn conflict_behind(
        &self,
        requester: Requester<'_>,
        acquire: &Acquire,
    ) -> Option<Conflict> {
        let mut footprint = Footprint::new(acquire.route.algorithm);
        let mut earliest: Option<(u64, Id<Waiter>)> = None;
        for request in new_requests(acquire) {
            let want = self.want(requester, acquire, request);
            if let Some(ahead) = self.earliest_ahead(want, requester.before(request))
                && !self.holds_enough(requester.session, want.path_position, want.access.mode)
            {
                footprint.add(request);
                earliest = Some(earliest.map_or(ahead, |earlier| earlier.min(ahead)));
            }
        }
        let (_, id) = earliest?;
        let waiter = &self.waiters[id];
        let (path, mode) = match self.first_in_line(requester, acquire, id) {
            Some(found) => found,
            None => {
                let mut theirs = new_requests(&waiter.request);
                let excluded = theirs.find(|theirs| footprint.excludes(theirs))?;
                (excluded.path.clone(), excluded.mode)
            }
        };
        Some(Conflict {
            reason: Reason::Queued,
            path: path.clone(),
            blocker: Some(self.waiting_blocker(waiter, path, mode)),
        })
    }

    /// Returns the first path of a waiter that excludes the only NEW path of an acquire, if the
    /// lines at and above that path show it: a waiter may want many paths. `None` if the waiter
    /// wants paths below, which lines do not name.
    fn first_in_line(
        &self,
        requester: Requester<'_>,
        acquire: &Acquire,
        id: Id<Waiter>,
    ) -> Option<(Path, Mode)> {
        let waiter = &self.waiters[id];
        let mut wanted = new_requests(acquire);
        let (Some(only), None) = (wanted.next(), wanted.next()) else {
            return None;
        };
        let mut first: Option<usize> = None;
        for (at, line) in self.lines(self.want(requester, acquire, only)) {
            if line.get(waiter.number).is_none() {
                continue;
            }
            let WaiterPosition::Here(node, mode) = at else {
                return None;
            };
            let index = self.part_in_line(node, mode, waiter.number)?;
            first = Some(first.map_or(index, |first| first.min(index)));
        }
        let part = waiter.parts.get(first?)?;
        let name = &self.namespaces[requester.namespace].name;
        Some((self.tree.path(name, part.node), part.mode))
    }

    /// Describes a waiter as a blocker.
    fn waiting_blocker(&self, waiter: &Waiter, path: Path, mode: Mode) -> Blocker {
        Blocker {
            owner: self.sessions[waiter.session].owner.clone(),
            path,
            mode,
            fence: None,
            held_ms: self.time.saturating_sub(waiter.since),
            holder: waiter.request.holder.as_deref().cloned(),
        }
    }

    /// Returns 1 + the number of blocking earlier waiters, counted up to 1000 (E4).
    pub(super) fn position(&self, requester: Requester<'_>, acquire: &Acquire) -> u32 {
        if self.namespaces[requester.namespace].waiting_paths == 0 {
            return 1;
        }
        let mut wanted = new_requests(acquire);
        let counted = match (wanted.next(), wanted.next()) {
            (Some(only), None) => {
                let want = self.want(requester, acquire, only);
                if self.holds_enough(requester.session, want.path_position, want.access.mode) {
                    Some(0)
                } else {
                    self.count_ahead(want, requester.before(only))
                }
            }
            _ => None,
        };
        let ahead = counted.unwrap_or_else(|| self.ahead(requester, acquire, POSITION_END).len());
        // At most 1001, so the cast is lossless.
        ahead.min(POSITION_END) as u32 + 1
    }

    /// Returns the earliest blocking waiters, at most `limit`.
    pub(super) fn ahead(
        &self,
        requester: Requester<'_>,
        acquire: &Acquire,
        limit: usize,
    ) -> BTreeSet<(u64, Id<Waiter>)> {
        let mut found = BTreeSet::new();
        for request in new_requests(acquire) {
            let want = self.want(requester, acquire, request);
            if !self.holds_enough(requester.session, want.path_position, want.access.mode) {
                self.all_ahead(want, requester.before(request), limit, &mut found);
            }
        }
        found
    }

    /// Calls `visit` for every claim that blocks a NEW path of an acquire: path by path, in the
    /// order of R45 (order of conflict reasons) and R46.
    pub(super) fn each_blocker(
        &self,
        requester: Requester<'_>,
        acquire: &Acquire,
        visit: &mut dyn FnMut(Id<Claim>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let session = requester.session;
        for request in new_requests(acquire) {
            let path_position = self.path_position(requester.namespace, &request.path);
            let wanted = Access {
                mode: request.mode,
                algorithm: acquire.route.algorithm,
            };
            let held = |claim: Id<Claim>| self.claims[claim].access();
            for node in self.tree.upwards(path_position.above) {
                for mode in Mode::ALL {
                    for claim in self.foreign_claims(session, node, mode) {
                        if excludes(wanted, held(claim), Position::Above).is_some() {
                            visit(claim)?;
                        }
                    }
                }
            }
            let Some(node) = path_position.at else {
                continue;
            };
            let first = self.blocking_claim(session, path_position, wanted);
            let full = first.is_some_and(|first| first.reason == Reason::SemaphoreFull);
            let writers = self.foreign_claims(session, node, Mode::Write);
            for claim in writers.chain(self.readers(session, node)) {
                match excludes(wanted, held(claim), Position::Same) {
                    Some(Reason::SemaphoreFull) if !full => {}
                    Some(_) => visit(claim)?,
                    None => {}
                }
            }
            for side in Side::ALL {
                if excludes_below(wanted, side).is_some() {
                    self.each_below(session, node, side, visit)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the foreign readers of either mode at a node, by owner, each owner once.
    fn readers(
        &self,
        session: Option<Id<Session>>,
        node: Id<PathNode>,
    ) -> impl Iterator<Item = Id<Claim>> + '_ {
        let owner = |claim: &Id<Claim>| &self.sessions[self.claims[*claim].session].owner;
        // Both are in the order of their owners.
        let mut reads = self.foreign_claims(session, node, Mode::Read).peekable();
        let mut trees = self
            .foreign_claims(session, node, Mode::ReadTree)
            .peekable();
        core::iter::from_fn(move || {
            let order = match (reads.peek(), trees.peek()) {
                (Some(read), Some(tree)) => owner(read).cmp(owner(tree)),
                (_, None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
            };
            if order != Ordering::Less {
                let tree = trees.next();
                if order == Ordering::Greater {
                    return tree;
                }
            }
            reads.next()
        })
    }

    fn smallest_reader(
        &self,
        session: Option<Id<Session>>,
        node: Id<PathNode>,
    ) -> Option<Id<Claim>> {
        let owner = |claim: &Id<Claim>| &self.sessions[self.claims[*claim].session].owner;
        [Mode::Read, Mode::ReadTree]
            .into_iter()
            .filter_map(|mode| self.foreign_claim(session, node, mode))
            .min_by(|one, two| owner(one).cmp(owner(two)))
    }

    /// Returns the foreign claim on the smallest path below a node (R46).
    fn first_below(
        &self,
        session: Option<Id<Session>>,
        node: Id<PathNode>,
        side: Side,
    ) -> Option<Id<Claim>> {
        let own = self.own_counts(session, node);
        let mut at = node;
        loop {
            let place = self.first_place(at, session, side, &own)?;
            if place.inside {
                at = place.node;
                continue;
            }
            return match side {
                Side::Writes => self.foreign_claim(session, place.node, Mode::Write),
                Side::Reads => self.smallest_reader(session, place.node),
            };
        }
    }

    /// Sorts the children of the nodes in which [`Space::conflict`] will search for the first.
    pub(super) fn order_for(
        &mut self,
        session: Option<Id<Session>>,
        blocking_claim: BlockingClaim,
    ) {
        if blocking_claim.position != Position::Below {
            return;
        }
        let (node, side) = (blocking_claim.node, Side::of(blocking_claim.mode));
        let own = self.own_counts(session, node);
        let mut at = node;
        loop {
            self.tree.order_children(at);
            match self.first_place(at, session, side, &own) {
                Some(place) if place.inside => at = place.node,
                _ => return,
            }
        }
    }

    /// The first place directly below a node with foreign claims of one side.
    fn first_place(
        &self,
        node: Id<PathNode>,
        session: Option<Id<Session>>,
        side: Side,
        own: &OwnCounts,
    ) -> Option<ChildOrSubtree<'_>> {
        let places = |child| self.places_at(child, session, side, own);
        let Some(children) = self.tree.ordered_children(node) else {
            let all = self.tree.children(node).flat_map(places);
            return all.min_by(|one, two| one.order().cmp(two.order()));
        };
        let mut first: Option<ChildOrSubtree<'_>> = None;
        for child in children {
            // From here on, names and their subtrees sort after the place found.
            let segment = self.tree.segment(child);
            if first
                .as_ref()
                .is_some_and(|first| segment.bytes().gt(first.order()))
            {
                break;
            }
            let earliest = places(child).into_iter();
            first = first
                .into_iter()
                .chain(earliest)
                .min_by(|one, two| one.order().cmp(two.order()));
        }
        first
    }

    /// Visits the foreign claims of one side below a node, by path, then owner.
    fn each_below(
        &self,
        session: Option<Id<Session>>,
        node: Id<PathNode>,
        side: Side,
        visit: &mut dyn FnMut(Id<Claim>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let counts = self.own_counts(session, node);
        self.descend(node, session, side, &counts, visit)
    }

    /// Visits the places below a node in byte order. `a` sorts before `a-b`, and `a-b` before
    /// `a/c`: so a node and its subtree are two separate places in the order.
    fn descend(
        &self,
        node: Id<PathNode>,
        session: Option<Id<Session>>,
        side: Side,
        own: &OwnCounts,
        visit: &mut dyn FnMut(Id<Claim>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // An explicit stack of sorted places, deepest last: paths have up to 256 segments.
        let mut stack = Vec::new();
        stack.push(self.places_below(node, session, side, own));
        while let Some(places) = stack.last_mut() {
            let Some(place) = self.next_place(places, session, side, own) else {
                stack.pop();
                continue;
            };
            if place.inside {
                stack.push(self.places_below(place.node, session, side, own));
                continue;
            }
            match side {
                Side::Writes => {
                    for claim in self.foreign_claims(session, place.node, Mode::Write) {
                        visit(claim)?;
                    }
                }
                Side::Reads => {
                    for claim in self.readers(session, place.node) {
                        visit(claim)?;
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// The places directly below a node with foreign claims of one side.
    fn places_below(
        &self,
        node: Id<PathNode>,
        session: Option<Id<Session>>,
        side: Side,
        own: &OwnCounts,
    ) -> PlacesBelow<'_> {
        if let Some(children) = self.tree.ordered_children(node) {
            let children: Box<dyn Iterator<Item = Id<PathNode>> + '_> = Box::new(children);
            return PlacesBelow {
                children: Some(children.peekable()),
                places: Vec::new(),
            };
        }
        let children = self.tree.children(node);
        let mut places: Vec<ChildOrSubtree<'_>> = children
            .flat_map(|child| self.places_at(child, session, side, own))
            .collect();
        places.sort_by(|one, two| two.order().cmp(one.order()));
        PlacesBelow {
            children: None,
            places,
        }
    }

    /// Returns the next place. Sorted children are read one by one, because the caller stops early.
    fn next_place<'a>(
        &'a self,
        below: &mut PlacesBelow<'a>,
        session: Option<Id<Session>>,
        side: Side,
        own: &OwnCounts,
    ) -> Option<ChildOrSubtree<'a>> {
        while let Some(children) = &mut below.children
            && let Some(child) = children.peek().copied()
        {
            let segment = self.tree.segment(child);
            // A subtree comes after names that only begin like it, and before all others.
            if let Some(place) = below.places.last()
                && place.order().lt(segment.bytes())
            {
                break;
            }
            children.next();
            for place in self.places_at(child, session, side, own) {
                let places = &below.places;
                let at = places.partition_point(|other| other.order().gt(place.order()));
                below.places.insert(at, place);
            }
        }
        below.places.pop()
    }

    /// Returns a node with a foreign claim of one side, and its subtree if it has one.
    fn places_at(
        &self,
        node: Id<PathNode>,
        session: Option<Id<Session>>,
        side: Side,
        own: &OwnCounts,
    ) -> impl IntoIterator<Item = ChildOrSubtree<'_>> + use<'_> {
        let mut modes = side.modes().iter();
        let here = modes.any(|mode| self.foreign_claim(session, node, *mode).is_some());
        let below = self.tree.nodes[node].below;
        let own = self.own_count(own, session, node);
        let strangers = below[side as usize] > own[side as usize];
        let segment = self.tree.segment(node);
        let place = |inside| ChildOrSubtree {
            segment,
            inside,
            node,
        };
        let here = here.then(|| place(false));
        here.into_iter().chain(strangers.then(|| place(true)))
    }

    /// A session's own claims below a node, counted by node where the session keeps no counts itself.
    fn own_counts(&self, session: Option<Id<Session>>, node: Id<PathNode>) -> OwnCounts {
        let mut counts = OwnCounts::new();
        let Some(session) = session else {
            return counts;
        };
        if self.sessions[session].own_below().is_some() {
            return counts;
        }
        for claim in self.session_claims(session) {
            let claim = &self.claims[claim];
            if !self.tree.is_below(claim.node, node) {
                continue;
            }
            for above in self.tree.ancestors(claim.node) {
                if above == node {
                    break;
                }
                counts.entry(above).or_default()[Side::of(claim.mode()) as usize] += 1;
            }
        }
        counts
    }

    fn own_count(
        &self,
        counts: &OwnCounts,
        session: Option<Id<Session>>,
        node: Id<PathNode>,
    ) -> SideCounts {
        match session {
            Some(session) if self.sessions[session].own_below().is_some() => {
                self.own_below(Some(session), node)
            }
            _ => counts.get(&node).copied().unwrap_or_default(),
        }
    }

    /// Returns the present holder of a path, for a break that named another one: its writer, a
    /// permit holder or a reader (E9: Break one hold).
    pub(super) fn present_holder(&self, node: Option<Id<PathNode>>) -> Option<Id<Claim>> {
        let node = node?;
        self.foreign_claim(None, node, Mode::Write)
            .or_else(|| self.smallest_reader(None, node))
    }
}

type OwnCounts = BTreeMap<Id<PathNode>, SideCounts>;

/// The places directly below a node, in byte order.
struct PlacesBelow<'a> {
    /// The rest of the sorted children, if the node keeps them sorted.
    children: Option<Peekable<Box<dyn Iterator<Item = Id<PathNode>> + 'a>>>,
    /// Places that were read already, in descending order.
    places: Vec<ChildOrSubtree<'a>>,
}

/// A child of a node, or the subtree below that child.
struct ChildOrSubtree<'a> {
    segment: &'a str,
    inside: bool,
    node: Id<PathNode>,
}

/// Returns the first NEW path of one acquire, in its order, that excludes one of the other's.
pub(super) fn first_excluding<'a>(theirs: &'a Acquire, ours: &Acquire) -> Option<&'a Request> {
    let mut footprint = Footprint::new(ours.route.algorithm);
    for request in new_requests(ours) {
        footprint.add(request);
    }
    new_requests(theirs).find(|theirs| footprint.excludes(theirs))
}

impl ChildOrSubtree<'_> {
    fn order(&self) -> impl Iterator<Item = u8> + '_ {
        let slash = self.inside.then_some(b'/');
        self.segment.bytes().chain(slash)
    }
}

/// The paths of a request, indexed to find which paths of another one exclude them (R44: when two
/// requests exclude each other).
struct Footprint<'a> {
    algorithm: Algorithm,
    /// By mode.
    paths: [BTreeSet<&'a str>; 3],
}

impl<'a> Footprint<'a> {
    fn new(algorithm: Algorithm) -> Footprint<'a> {
        Footprint {
            algorithm,
            paths: Default::default(),
        }
    }

    fn add(&mut self, request: &'a Request) {
        self.paths[request.mode as usize].insert(request.path.as_str());
    }

    fn excludes(&self, theirs: &Request) -> bool {
        let path = theirs.path.as_str();
        let access = |mode| Access {
            mode,
            algorithm: self.algorithm,
        };
        Mode::ALL.into_iter().any(|mode| {
            let ours = &self.paths[mode as usize];
            let meets = |position| excludes(access(theirs.mode), access(mode), position).is_some();
            let mut above = core::iter::successors(parent_name(path), |name| parent_name(name));
            (meets(Position::Same) && ours.contains(path))
                || (meets(Position::Above) && above.any(|name| ours.contains(name)))
                || (meets(Position::Below) && has_below(ours, path))
        })
    }
}

/// Whether a set has a path strictly below one.
fn has_below(set: &BTreeSet<&str>, path: &str) -> bool {
    let mut prefix = alloc::string::String::from(path);
    if !prefix.ends_with('/') {
        prefix.push('/');
    }
    let first = set
        .range::<str, _>((
            core::ops::Bound::Excluded(prefix.as_str()),
            core::ops::Bound::Unbounded,
        ))
        .next();
    first.is_some_and(|first| first.starts_with(prefix.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_below_comes_after_what_only_begins_alike() {
        let place = |segment, inside| ChildOrSubtree {
            segment,
            inside,
            node: Id::new(0).unwrap(),
        };
        let mut places = [
            place("a", true),
            place("a-b", false),
            place("a", false),
            place("a0", true),
        ];
        places.sort_by(|one, two| one.order().cmp(two.order()));
        let order: Vec<(&str, bool)> = places
            .iter()
            .map(|place| (place.segment, place.inside))
            .collect();
        assert_eq!(
            order,
            [("a", false), ("a-b", false), ("a", true), ("a0", true)]
        );
    }
}
