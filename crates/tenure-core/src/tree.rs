//! Path tree: a trie of path segments with claims, waiters and per-subtree counts.
//!
//! One arena serves all namespaces. Each namespace has its own root, so nothing crosses its border
//! (R23 (namespaces never conflict)). A child is found by the hash of (parent, segment). A node
//! exists while there is a claim, a waiter or a child at it. State that most nodes do not have
//! (several claims, waiters) is stored apart in a [`NodeExtra`], so a plain held path costs one
//! small node.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Bound;

use crate::hash::Hasher;
use crate::path::{Namespace, Path};
use crate::policy::Mode;
use crate::segment::Segment;
use crate::sharded_table::ShardedTable;
use crate::slab::{Id, Slab};
use crate::space::{Claim, Waiter};
use crate::value::OwnerId;
use crate::wait_lists::WaitLink;

/// A node: one path, or a prefix of one.
#[derive(Clone, Debug)]
pub(crate) struct PathNode {
    segment: Segment,
    pub(crate) parent: Option<Id<PathNode>>,
    first_child: Option<Id<PathNode>>,
    next_sibling: Option<Id<PathNode>>,
    previous_sibling: Option<Id<PathNode>>,
    /// The claim, if there is exactly one; several are in `claims_by_owner` of the extra.
    pub(crate) claim: Option<Id<Claim>>,
    /// How many claims are strictly below, by [`Side`].
    pub(crate) below: SideCounts,
    extra: Option<Id<NodeExtra>>,
}

/// The children of a node in byte order. Built only for nodes with many children when a query needs
/// the first one.
#[derive(Clone, Debug)]
pub(crate) struct OrderedChildren {
    children: BTreeMap<Box<str>, Id<PathNode>>,
    /// Number of insertions and removals since it was last used.
    unused: usize,
}

/// Nodes with fewer children are scanned.
const FEW_CHILDREN: usize = 32;

/// State that few nodes have. A waiter needs one at every node above its path, where only `below`
/// is used, so the rest is boxed.
#[derive(Clone, Debug)]
pub(crate) struct NodeExtra {
    /// Claims, when there are several.
    claims_by_owner: Option<Box<ClaimsByOwner>>,
    /// Waiters for exactly this path, by number, each with the index of the path among its own:
    /// those for writing, reading, reading the tree.
    here: Option<Box<[PathQueue; 3]>>,
    /// Waiters for paths strictly below, by number, with how many such paths, by [`Side`].
    pub(crate) below: [PathQueue; 2],
    /// Heads of the wait lists of waiters blocked at this node.
    pub(crate) rings: [Option<Id<WaitLink>>; RINGS],
    /// No waiter in [`NodeRing::AmongOwn`] has more claims of its own below, by [`Side`].
    pub(crate) most_own: SideCounts,
    ordered: Option<Box<OrderedChildren>>,
}

const _: () = assert!(
    core::mem::size_of::<NodeExtra>() <= 88,
    "a level of a waiting path must stay cheap"
);

/// Claims by owner: writers or permits, readers, readers of the tree.
pub(crate) type ClaimsByOwner = [BTreeMap<OwnerId, Id<Claim>>; 3];

/// The waiters in one queue by number. Most queues have one.
#[derive(Clone, Debug)]
pub(crate) enum PathQueue {
    One(u64, QueuedPath),
    /// Never an empty map.
    #[expect(
        clippy::box_collection,
        reason = "there is one queue per level of a waiting path, so an empty one must be small"
    )]
    Others(Option<Box<BTreeMap<u64, QueuedPath>>>),
}

/// A waiter in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedPath {
    pub(crate) waiter: Id<Waiter>,
    /// The index of the path among the waiter's, or the number of its paths below.
    pub(crate) paths: u32,
}

impl PathQueue {
    const EMPTY: PathQueue = PathQueue::Others(None);

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, PathQueue::Others(None))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            PathQueue::One(..) => 1,
            PathQueue::Others(others) => others.as_ref().map_or(0, |others| others.len()),
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<QueuedPath> {
        match self {
            PathQueue::One(only, queued) => (*only == number).then_some(*queued),
            PathQueue::Others(others) => others.as_ref()?.get(&number).copied(),
        }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut QueuedPath> {
        match self {
            PathQueue::One(only, queued) => (*only == number).then_some(queued),
            PathQueue::Others(others) => others.as_mut()?.get_mut(&number),
        }
    }

    /// Adds a waiter that is not in the queue.
    pub(crate) fn insert(&mut self, number: u64, queued: QueuedPath) {
        match self {
            PathQueue::Others(None) => *self = PathQueue::One(number, queued),
            PathQueue::Others(Some(others)) => {
                others.insert(number, queued);
            }
            PathQueue::One(first, one) => {
                let both = [(*first, *one), (number, queued)];
                *self = PathQueue::Others(Some(Box::new(BTreeMap::from(both))));
            }
        }
    }

    pub(crate) fn remove(&mut self, number: u64) {
        match self {
            PathQueue::One(only, _) if *only == number => *self = PathQueue::EMPTY,
            PathQueue::One(..) | PathQueue::Others(None) => {}
            PathQueue::Others(Some(others)) => {
                others.remove(&number);
                if others.is_empty() {
                    *self = PathQueue::EMPTY;
                }
            }
        }
    }

    /// The waiters with smaller numbers, in order.
    pub(crate) fn before(
        &self,
        end: u64,
    ) -> impl DoubleEndedIterator<Item = (u64, QueuedPath)> + '_ {
        let (one, others) = match self {
            PathQueue::One(only, queued) => (Some((*only, *queued)), None),
            PathQueue::Others(others) => (None, others.as_ref().map(|all| all.range(..end))),
        };
        let others = others.into_iter().flatten();
        one.filter(|(only, _)| *only < end)
            .into_iter()
            .chain(others.map(|(number, queued)| (*number, *queued)))
    }

    /// All waiters, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, QueuedPath)> + '_ {
        self.before(u64::MAX)
    }
}

/// The claims, or waiters, below a node are counted on two sides: the conflict rule never tells the
/// two read modes apart there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Writes and permits.
    Writes = 0,
    /// Reads of either mode.
    Reads = 1,
}

/// A number of claims by [`Side`].
pub(crate) type SideCounts = [u32; 2];

impl Side {
    pub(crate) const ALL: [Side; 2] = [Side::Writes, Side::Reads];

    pub(crate) fn of(mode: Mode) -> Side {
        match mode {
            Mode::Write => Side::Writes,
            Mode::Read | Mode::ReadTree => Side::Reads,
        }
    }

    pub(crate) fn modes(self) -> &'static [Mode] {
        match self {
            Side::Writes => &[Mode::Write],
            Side::Reads => &[Mode::Read, Mode::ReadTree],
        }
    }
}

/// The wait lists of a node, by what blocks their waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRing {
    /// The writer, or the permits.
    Writer = 0,
    /// Readers of either kind.
    Readers = 1,
    /// Readers of the tree.
    Trees = 2,
    /// Writes below. The waiter has no claims of its own there.
    WritesBelow = 3,
    /// Reads below. The waiter has no claims of its own there.
    ReadsBelow = 4,
    /// Claims below, some of which are the waiter's own.
    AmongOwn = 5,
}

/// Number of wait lists per node.
pub(crate) const RINGS: usize = 6;

impl NodeExtra {
    fn new() -> NodeExtra {
        NodeExtra {
            claims_by_owner: None,
            here: None,
            below: [PathQueue::EMPTY; 2],
            rings: [None; RINGS],
            most_own: [0, 0],
            ordered: None,
        }
    }

    /// Returns the waiters for exactly this path in one mode.
    pub(crate) fn line(&self, mode: Mode) -> &PathQueue {
        const NO_WAITERS: &PathQueue = &PathQueue::EMPTY;
        let here = self.here.as_ref();
        here.map_or(NO_WAITERS, |here| &here[mode as usize])
    }

    pub(crate) fn line_mut(&mut self, mode: Mode) -> &mut PathQueue {
        let none = || Box::new([PathQueue::EMPTY; 3]);
        &mut self.here.get_or_insert_with(none)[mode as usize]
    }

    /// Returns the claims by owner, if there are several.
    pub(crate) fn claims_by_owner(&self) -> Option<&ClaimsByOwner> {
        self.claims_by_owner.as_deref()
    }

    pub(crate) fn claims_by_owner_mut(&mut self) -> &mut ClaimsByOwner {
        self.claims_by_owner.get_or_insert_default()
    }

    /// Frees the boxes that have become empty.
    fn shrink(&mut self) {
        if let Some(here) = &self.here
            && here.iter().all(PathQueue::is_empty)
        {
            self.here = None;
        }
        if let Some(claims) = &self.claims_by_owner
            && claims.iter().all(BTreeMap::is_empty)
        {
            self.claims_by_owner = None;
        }
    }

    fn is_empty(&self) -> bool {
        self.claims_by_owner.is_none()
            && self.here.is_none()
            && self.below.iter().all(PathQueue::is_empty)
            && self.rings == [None; RINGS]
            && self.ordered.is_none()
    }
}

/// The position of a path in the tree, whether or not its node exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathPosition {
    /// The path's own node, if it exists.
    pub(crate) at: Option<Id<PathNode>>,
    /// The nearest existing node strictly above.
    pub(crate) above: Option<Id<PathNode>>,
}

/// All path nodes of a space.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: Slab<PathNode>,
    pub(crate) extras: Slab<NodeExtra>,
    children: ShardedTable<Id<PathNode>>,
    hasher: Hasher,
}

impl Tree {
    pub(crate) fn hasher(&self) -> Hasher {
        self.hasher
    }

    pub(crate) fn new(hasher: Hasher) -> Tree {
        Tree {
            nodes: Slab::new(),
            extras: Slab::new(),
            children: ShardedTable::new(),
            hasher,
        }
    }

    /// Returns a copy for [`Tree::path`] alone.
    pub(crate) fn image(&mut self) -> Tree {
        Tree {
            nodes: self.nodes.image(),
            ..Tree::new(self.hasher)
        }
    }

    /// Creates the root of a namespace.
    pub(crate) fn plant(&mut self) -> Id<PathNode> {
        self.nodes.insert(PathNode::new("", None))
    }

    /// Returns the position of a path without creating nodes.
    pub(crate) fn path_position<'a>(
        &self,
        root: Option<Id<PathNode>>,
        segments: impl Iterator<Item = &'a str>,
    ) -> PathPosition {
        let mut path_position = PathPosition {
            at: root,
            above: None,
        };
        for segment in segments {
            let Some(parent) = path_position.at else {
                break;
            };
            path_position = PathPosition {
                at: self.child(parent, segment),
                above: Some(parent),
            };
        }
        path_position
    }

    /// Returns the node of a path; creates it if needed.
    pub(crate) fn reach<'a>(
        &mut self,
        root: Id<PathNode>,
        segments: impl Iterator<Item = &'a str>,
    ) -> Id<PathNode> {
        let mut at = root;
        for segment in segments {
            let hash = self.hasher.hash(at.number(), segment.as_bytes());
            at = match self.child_by(hash, at, segment) {
                Some(child) => child,
                None => self.grow(hash, at, segment),
            };
        }
        at
    }

    fn child(&self, parent: Id<PathNode>, segment: &str) -> Option<Id<PathNode>> {
        let hash = self.hasher.hash(parent.number(), segment.as_bytes());
        self.child_by(hash, parent, segment)
    }

    fn child_by(&self, hash: u64, parent: Id<PathNode>, segment: &str) -> Option<Id<PathNode>> {
        self.nodes[parent].first_child?;
        self.children
            .find(hash, |child| {
                let child = &self.nodes[*child];
                child.parent == Some(parent) && child.segment.as_bytes() == segment.as_bytes()
            })
            .copied()
    }

    fn grow(&mut self, hash: u64, parent: Id<PathNode>, segment: &str) -> Id<PathNode> {
        let first = self.nodes[parent].first_child;
        let child = self.nodes.insert(PathNode {
            next_sibling: first,
            ..PathNode::new(segment, Some(parent))
        });
        self.nodes[parent].first_child = Some(child);
        if let Some(first) = first {
            self.nodes[first].previous_sibling = Some(child);
        }
        let Tree {
            nodes,
            children,
            hasher,
            ..
        } = self;
        children.insert(hash, child, |other| {
            let other = &nodes[*other];
            let parent = other.parent.map_or(u32::MAX, Id::number);
            hasher.hash(parent, other.segment.as_bytes())
        });
        self.reorder(parent, |ordered| {
            ordered.children.insert(segment.into(), child);
        });
        child
    }

    /// Updates the sorted children of a node, if there are any; drops them if no query has used
    /// them for a long time.
    fn reorder(&mut self, node: Id<PathNode>, change: impl FnOnce(&mut OrderedChildren)) {
        let Some(extra) = self.nodes[node].extra else {
            return;
        };
        let there = &mut self.extras[extra].ordered;
        if let Some(ordered) = there {
            change(ordered);
            ordered.unused += 1;
            if ordered.children.is_empty() || ordered.unused > 64 + 4 * ordered.children.len() {
                *there = None;
            }
        }
    }

    /// Sorts the children of a node, if there are many.
    pub(crate) fn order_children(&mut self, node: Id<PathNode>) {
        let ordered = self
            .extra(node)
            .is_some_and(|extra| extra.ordered.is_some());
        if !ordered {
            if self.children(node).nth(FEW_CHILDREN).is_none() {
                return;
            }
            let children = self
                .children(node)
                .map(|child| (self.segment(child).into(), child))
                .collect();
            self.extra_mut(node).ordered = Some(Box::new(OrderedChildren {
                children,
                unused: 0,
            }));
        }
        if let Some(ordered) = &mut self.extra_mut(node).ordered {
            ordered.unused = 0;
        }
    }

    /// Returns the children of a node in byte order, if they are kept sorted.
    pub(crate) fn ordered_children(
        &self,
        node: Id<PathNode>,
    ) -> Option<impl Iterator<Item = Id<PathNode>> + '_> {
        let ordered = self.extra(node)?.ordered.as_ref()?;
        Some(ordered.children.values().copied())
    }

    /// Returns children of a node in byte order, after a name, at most so many. Sorts them first, if
    /// there are many.
    pub(crate) fn children_after(
        &mut self,
        node: Id<PathNode>,
        after: Option<&str>,
        most: usize,
    ) -> Vec<Id<PathNode>> {
        self.order_children(node);
        if let Some(ordered) = self.extra(node).and_then(|extra| extra.ordered.as_ref()) {
            let from = match after {
                Some(after) => Bound::Excluded(after),
                None => Bound::Unbounded,
            };
            let range = ordered.children.range::<str, _>((from, Bound::Unbounded));
            return range.take(most).map(|(_, child)| *child).collect();
        }
        let is_later =
            |child: &Id<PathNode>| after.is_none_or(|after| self.segment(*child) > after);
        let mut found: Vec<_> = self.children(node).filter(is_later).collect();
        found.sort_by(|one, two| self.segment(*one).cmp(self.segment(*two)));
        found.truncate(most);
        found
    }

    pub(crate) fn has_children(&self, node: Id<PathNode>) -> bool {
        self.nodes[node].first_child.is_some()
    }

    /// Returns whether a node has no claims and no waiters.
    pub(crate) fn is_vacant(&self, node: Id<PathNode>) -> bool {
        let node = &self.nodes[node];
        node.claim.is_none() && node.extra.is_none()
    }

    /// Returns whether a node has no claims, waiters or children.
    pub(crate) fn is_bare(&self, node: Id<PathNode>) -> bool {
        self.nodes[node].is_bare()
    }

    /// Removes a node and its ancestors as far as they are empty; the root stays.
    pub(crate) fn prune(&mut self, mut at: Id<PathNode>) {
        // The node may have been removed already, together with one below it.
        while let Some(node) = self.nodes.get(at) {
            if node.extra.is_some() {
                self.settle_extra(at);
            }
            let node = &self.nodes[at];
            let (parent, next, previous) = (node.parent, node.next_sibling, node.previous_sibling);
            let Some(parent) = parent.filter(|_| node.is_bare()) else {
                return;
            };
            let hash = self.hasher.hash(parent.number(), node.segment.as_bytes());
            self.children.remove(hash, |child| *child == at);
            match previous {
                None => self.nodes[parent].first_child = next,
                Some(previous) => self.nodes[previous].next_sibling = next,
            }
            if let Some(next) = next {
                self.nodes[next].previous_sibling = previous;
            }
            if let Some(gone) = self.nodes.remove(at) {
                self.reorder(parent, |ordered| {
                    ordered.children.remove(gone.segment.as_str());
                });
            }
            at = parent;
        }
    }

    /// Removes an empty root.
    pub(crate) fn uproot(&mut self, root: Id<PathNode>) {
        self.nodes.remove(root);
    }

    pub(crate) fn extra(&self, node: Id<PathNode>) -> Option<&NodeExtra> {
        self.nodes[node].extra.map(|extra| &self.extras[extra])
    }

    pub(crate) fn extra_mut(&mut self, node: Id<PathNode>) -> &mut NodeExtra {
        let extras = &mut self.extras;
        let extra = &mut self.nodes[node].extra;
        let extra = *extra.get_or_insert_with(|| extras.insert(NodeExtra::new()));
        &mut self.extras[extra]
    }

    /// Frees the extra of a node if it is empty.
    pub(crate) fn settle_extra(&mut self, node: Id<PathNode>) {
        if let Some(extra) = self.nodes[node].extra {
            let there = &mut self.extras[extra];
            there.shrink();
            if there.is_empty() {
                self.extras.remove(extra);
                self.nodes[node].extra = None;
            }
        }
    }

    /// Iterates over the ancestors, nearest first.
    pub(crate) fn ancestors(&self, node: Id<PathNode>) -> impl Iterator<Item = Id<PathNode>> + '_ {
        self.upwards(self.nodes[node].parent)
    }

    /// Iterates over a node and its ancestors, nearest first.
    pub(crate) fn upwards(
        &self,
        from: Option<Id<PathNode>>,
    ) -> impl Iterator<Item = Id<PathNode>> + '_ {
        core::iter::successors(from, |node| self.nodes[*node].parent)
    }

    pub(crate) fn is_below(&self, node: Id<PathNode>, above: Id<PathNode>) -> bool {
        self.ancestors(node).any(|ancestor| ancestor == above)
    }

    pub(crate) fn children(&self, node: Id<PathNode>) -> impl Iterator<Item = Id<PathNode>> + '_ {
        let first = self.nodes[node].first_child;
        core::iter::successors(first, |child| self.nodes[*child].next_sibling)
    }

    pub(crate) fn segment(&self, node: Id<PathNode>) -> &str {
        self.nodes[node].segment.as_str()
    }

    /// The path of a node in a namespace.
    pub(crate) fn path(&self, namespace: &Namespace, node: Id<PathNode>) -> Path {
        let mut segments: Vec<&str> = Vec::new();
        let mut length = namespace.as_str().len() + 2;
        for at in self.upwards(Some(node)) {
            let segment = self.nodes[at].segment.as_str();
            if !segment.is_empty() {
                length += segment.len() + 1;
                segments.push(segment);
            }
        }
        let mut text = String::with_capacity(length);
        text.push_str(namespace.as_str());
        if namespace.is_bare() {
            text.push_str(":/");
        }
        for segment in segments.iter().rev() {
            if !text.ends_with('/') {
                text.push('/');
            }
            text.push_str(segment);
        }
        Path::trusted(text)
    }
}

impl PathNode {
    fn new(segment: &str, parent: Option<Id<PathNode>>) -> PathNode {
        PathNode {
            segment: Segment::new(segment),
            parent,
            first_child: None,
            next_sibling: None,
            previous_sibling: None,
            claim: None,
            below: [0, 0],
            extra: None,
        }
    }

    fn is_bare(&self) -> bool {
        self.claim.is_none() && self.extra.is_none() && self.first_child.is_none()
    }
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    core::mem::size_of::<PathNode>() == 56,
    "a held path must stay cheap"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashSeed;
    use crate::segment::below_root;
    use alloc::string::ToString;

    fn parse(text: &str) -> Path {
        Path::parse(text).unwrap()
    }

    #[test]
    fn paths_are_found_and_come_back_as_they_were() {
        for (name, texts) in [
            ("h", ["h:/", "h:/a", "h:/a/b"]),
            ("h:/", ["h:/", "h:/a", "h:/a/b"]),
            ("h:/a", ["h:/a", "h:/a/b", "h:/a/b/c"]),
        ] {
            let namespace = Namespace::parse(name).unwrap();
            let mut tree = Tree::new(Hasher::new(HashSeed(0)));
            let root = tree.plant();
            for text in texts {
                let path = parse(text);
                let node = tree.reach(root, below_root(&namespace, &path));
                assert_eq!(tree.path(&namespace, node).to_string(), text);
                assert_eq!(tree.path(&namespace, node), path);
                let path_position = tree.path_position(Some(root), below_root(&namespace, &path));
                assert_eq!(path_position.at, Some(node));
            }
        }
    }

    #[test]
    fn many_children_are_kept_in_order_while_somebody_asks() {
        let mut tree = Tree::new(Hasher::new(HashSeed(0)));
        let root = tree.plant();
        let name = |number: u32| alloc::format!("{:03}-{}", number * 37 % 100, "x".repeat(30));
        let names: Vec<String> = (0..100).map(name).collect();
        let nodes: Vec<_> = names
            .iter()
            .map(|name| tree.reach(root, core::iter::once(name.as_str())))
            .collect();
        assert!(tree.ordered_children(root).is_none());
        tree.order_children(root);
        tree.prune(nodes[0]);
        tree.reach(root, core::iter::once("050-"));
        let order: Vec<&str> = tree
            .ordered_children(root)
            .unwrap()
            .map(|child| tree.segment(child))
            .collect();
        assert_eq!(order.len(), 100);
        assert!(order.is_sorted(), "{order:?}");
        for _ in 0..300 {
            let node = tree.reach(root, core::iter::once("more"));
            tree.prune(node);
        }
        assert!(tree.ordered_children(root).is_none(), "nobody asked for it");
        assert_eq!(tree.extras.len(), 0, "nothing is left of it");
    }

    #[test]
    fn a_missing_path_has_its_nearest_node_above() {
        let namespace = Namespace::parse("h:/a").unwrap();
        let mut tree = Tree::new(Hasher::new(HashSeed(0)));
        let root = tree.plant();
        let near = tree.reach(root, below_root(&namespace, &parse("h:/a/b")));
        let path_position = |tree: &Tree, text| {
            tree.path_position(Some(root), below_root(&namespace, &parse(text)))
        };
        assert_eq!(
            path_position(&tree, "h:/a/b/c"),
            PathPosition {
                at: None,
                above: Some(near)
            }
        );
        // Two levels are missing: what counts is the nearest one that exists.
        assert_eq!(
            path_position(&tree, "h:/a/b/c/d"),
            PathPosition {
                at: None,
                above: Some(near)
            }
        );
        tree.prune(near);
        assert_eq!(
            path_position(&tree, "h:/a/b/c"),
            PathPosition {
                at: None,
                above: Some(root)
            }
        );
        assert_eq!(tree.nodes.len(), 1);
    }
}
