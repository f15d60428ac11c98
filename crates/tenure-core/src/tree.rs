//! Path tree: a trie of path segments with claims, waiters and per-subtree counts.
//!
//! One arena serves all namespaces. Each namespace has its own root, so nothing crosses its border
//! (R23: namespaces never conflict). A child is found by the hash of (parent, segment). A node
//! exists while there is a claim, a waiter or a child at it. State that most nodes do not have
//! (several claims, waiters) is stored apart in an [`NodeExtra`], so a plain held path costs one
//! small node.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use hashbrown::HashTable;

use crate::hash::Hasher;
use crate::path::{Namespace, Path};
use crate::policy::Mode;
use crate::segment::Segment;
use crate::slab::{NONE, Slab};
use crate::value::OwnerId;

/// A node: one path, or a prefix of one.
#[derive(Clone, Debug)]
pub(crate) struct PathNode {
    segment: Segment,
    pub(crate) parent: u32,
    first_child: u32,
    next_sibling: u32,
    previous_sibling: u32,
    /// The claim, if there is exactly one; several are in `claims_by_owner` of the extra.
    pub(crate) claim: u32,
    /// How many claims are strictly below, by [`Side`].
    pub(crate) below: SideCounts,
    extra: u32,
}

/// The children of a node in byte order. Built only for nodes with many children when a query needs
/// the first one.
#[derive(Clone, Debug)]
pub(crate) struct OrderedChildren {
    children: BTreeMap<Box<str>, u32>,
    /// Number of insertions and removals since it was last used.
    unused: usize,
}

/// Nodes with fewer children are scanned.
const FEW_CHILDREN: usize = 32;

/// State that few nodes have.
#[derive(Clone, Debug)]
pub(crate) struct NodeExtra {
    /// Claims, when there are several, by owner: writers or permits, readers, readers of the tree.
    pub(crate) claims_by_owner: [BTreeMap<OwnerId, u32>; 3],
    /// Waiters for exactly this path, by number: those for writing, reading, reading the tree.
    pub(crate) here: [BTreeMap<u64, (u32, u32)>; 3],
    /// Waiters for paths strictly below, by number, with how many such paths, by [`Side`].
    pub(crate) below: [BTreeMap<u64, (u32, u32)>; 2],
    /// Heads of the wait lists of waiters blocked at this node; `NONE` if empty.
    pub(crate) rings: [u32; RINGS],
    ordered: Option<Box<OrderedChildren>>,
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
            claims_by_owner: Default::default(),
            here: Default::default(),
            below: Default::default(),
            rings: [NONE; RINGS],
            ordered: None,
        }
    }

    /// Returns the waiters for exactly this path in one mode.
    pub(crate) fn line(&self, mode: Mode) -> &BTreeMap<u64, (u32, u32)> {
        &self.here[mode as usize]
    }

    fn is_empty(&self) -> bool {
        self.claims_by_owner.iter().all(BTreeMap::is_empty)
            && self.here.iter().all(BTreeMap::is_empty)
            && self.below.iter().all(BTreeMap::is_empty)
            && self.rings == [NONE; RINGS]
            && self.ordered.is_none()
    }
}

/// The position of a path in the tree, whether or not its node exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathPosition {
    /// The path's own node, if it exists.
    pub(crate) at: Option<u32>,
    /// The nearest existing node strictly above, `NONE` if there is none.
    pub(crate) above: u32,
}

/// All path nodes of a space.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: Slab<PathNode>,
    pub(crate) extras: Slab<NodeExtra>,
    children: HashTable<u32>,
    hasher: Hasher,
}

impl Tree {
    pub(crate) fn new(hasher: Hasher) -> Tree {
        Tree {
            nodes: Slab::new(),
            extras: Slab::new(),
            children: HashTable::new(),
            hasher,
        }
    }

    /// Creates the root of a namespace.
    pub(crate) fn plant(&mut self) -> u32 {
        self.nodes.insert(PathNode::new("", NONE))
    }

    /// Returns the position of a path without creating nodes.
    pub(crate) fn path_position<'a>(
        &self,
        root: u32,
        segments: impl Iterator<Item = &'a str>,
    ) -> PathPosition {
        let mut path_position = PathPosition {
            at: (root != NONE).then_some(root),
            above: NONE,
        };
        for segment in segments {
            let Some(parent) = path_position.at else {
                break;
            };
            path_position = PathPosition {
                at: self.child(parent, segment),
                above: parent,
            };
        }
        path_position
    }

    /// Returns the node of a path; creates it if needed.
    pub(crate) fn reach<'a>(&mut self, root: u32, segments: impl Iterator<Item = &'a str>) -> u32 {
        let mut at = root;
        for segment in segments {
            let hash = self.hasher.hash(at, segment.as_bytes());
            at = match self.child_by(hash, at, segment) {
                Some(child) => child,
                None => self.grow(hash, at, segment),
            };
        }
        at
    }

    fn child(&self, parent: u32, segment: &str) -> Option<u32> {
        let hash = self.hasher.hash(parent, segment.as_bytes());
        self.child_by(hash, parent, segment)
    }

    fn child_by(&self, hash: u64, parent: u32, segment: &str) -> Option<u32> {
        if self.nodes[parent].first_child == NONE {
            return None;
        }
        self.children
            .find(hash, |child| {
                let child = &self.nodes[*child];
                child.parent == parent && child.segment.as_bytes() == segment.as_bytes()
            })
            .copied()
    }

    fn grow(&mut self, hash: u64, parent: u32, segment: &str) -> u32 {
        let first = self.nodes[parent].first_child;
        let child = self.nodes.insert(PathNode {
            next_sibling: first,
            ..PathNode::new(segment, parent)
        });
        self.nodes[parent].first_child = child;
        if first != NONE {
            self.nodes[first].previous_sibling = child;
        }
        let Tree {
            nodes,
            children,
            hasher,
            ..
        } = self;
        children.insert_unique(hash, child, |other| {
            let other = &nodes[*other];
            hasher.hash(other.parent, other.segment.as_bytes())
        });
        self.reorder(parent, |ordered| {
            ordered.children.insert(segment.into(), child);
        });
        child
    }

    /// Updates the sorted children of a node, if there are any; drops them if no query has used
    /// them for a long time.
    fn reorder(&mut self, node: u32, change: impl FnOnce(&mut OrderedChildren)) {
        let extra = self.nodes[node].extra;
        if extra == NONE {
            return;
        }
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
    pub(crate) fn order_children(&mut self, node: u32) {
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
    pub(crate) fn ordered_children(&self, node: u32) -> Option<impl Iterator<Item = u32> + '_> {
        let ordered = self.extra(node)?.ordered.as_ref()?;
        Some(ordered.children.values().copied())
    }

    /// Returns whether a node has no claims and no waiters.
    pub(crate) fn is_vacant(&self, node: u32) -> bool {
        let node = &self.nodes[node];
        node.claim == NONE && node.extra == NONE
    }

    /// Returns whether a node has no claims, waiters or children.
    pub(crate) fn is_bare(&self, node: u32) -> bool {
        self.nodes[node].is_bare()
    }

    /// Removes a node and its ancestors as far as they are empty; the root stays.
    pub(crate) fn prune(&mut self, mut at: u32) {
        // The node may have been removed already, together with one below it.
        while let Some(node) = self.nodes.get(at) {
            if node.extra != NONE {
                self.settle_extra(at);
            }
            let node = &self.nodes[at];
            let (parent, next, previous) = (node.parent, node.next_sibling, node.previous_sibling);
            if parent == NONE || !node.is_bare() {
                return;
            }
            let hash = self.hasher.hash(parent, node.segment.as_bytes());
            if let Ok(entry) = self.children.find_entry(hash, |child| *child == at) {
                entry.remove();
            }
            match previous {
                NONE => self.nodes[parent].first_child = next,
                previous => self.nodes[previous].next_sibling = next,
            }
            if next != NONE {
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
    pub(crate) fn uproot(&mut self, root: u32) {
        self.nodes.remove(root);
    }

    pub(crate) fn extra(&self, node: u32) -> Option<&NodeExtra> {
        match self.nodes[node].extra {
            NONE => None,
            extra => self.extras.get(extra),
        }
    }

    pub(crate) fn extra_mut(&mut self, node: u32) -> &mut NodeExtra {
        if self.nodes[node].extra == NONE {
            self.nodes[node].extra = self.extras.insert(NodeExtra::new());
        }
        let extra = self.nodes[node].extra;
        &mut self.extras[extra]
    }

    /// Frees the extra of a node if it is empty.
    pub(crate) fn settle_extra(&mut self, node: u32) {
        let extra = self.nodes[node].extra;
        if extra != NONE && self.extras[extra].is_empty() {
            self.extras.remove(extra);
            self.nodes[node].extra = NONE;
        }
    }

    /// Iterates over the ancestors, nearest first.
    pub(crate) fn ancestors(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        self.upwards(self.nodes[node].parent)
    }

    /// Iterates over a node and its ancestors, nearest first; empty for `NONE`.
    pub(crate) fn upwards(&self, from: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = from;
        core::iter::from_fn(move || {
            if at == NONE {
                return None;
            }
            let node = at;
            at = self.nodes[node].parent;
            Some(node)
        })
    }

    pub(crate) fn is_below(&self, node: u32, above: u32) -> bool {
        self.ancestors(node).any(|ancestor| ancestor == above)
    }

    pub(crate) fn children(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.nodes[node].first_child;
        core::iter::from_fn(move || {
            if at == NONE {
                return None;
            }
            let child = at;
            at = self.nodes[child].next_sibling;
            Some(child)
        })
    }

    pub(crate) fn segment(&self, node: u32) -> &str {
        self.nodes[node].segment.as_str()
    }

    /// The path of a node in a namespace.
    pub(crate) fn path(&self, namespace: &Namespace, node: u32) -> Path {
        let mut segments: Vec<&str> = Vec::new();
        let mut length = namespace.as_str().len() + 2;
        for at in self.upwards(node) {
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
    fn new(segment: &str, parent: u32) -> PathNode {
        PathNode {
            segment: Segment::new(segment),
            parent,
            first_child: NONE,
            next_sibling: NONE,
            previous_sibling: NONE,
            claim: NONE,
            below: [0, 0],
            extra: NONE,
        }
    }

    fn is_bare(&self) -> bool {
        self.claim == NONE && self.extra == NONE && self.first_child == NONE
    }
}

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
                let path_position = tree.path_position(root, below_root(&namespace, &path));
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
        let nodes: Vec<u32> = names
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
        let path_position =
            |tree: &Tree, text| tree.path_position(root, below_root(&namespace, &parse(text)));
        assert_eq!(
            path_position(&tree, "h:/a/b/c"),
            PathPosition {
                at: None,
                above: near
            }
        );
        // Two levels are missing: what counts is the nearest one that exists.
        assert_eq!(
            path_position(&tree, "h:/a/b/c/d"),
            PathPosition {
                at: None,
                above: near
            }
        );
        tree.prune(near);
        assert_eq!(
            path_position(&tree, "h:/a/b/c"),
            PathPosition {
                at: None,
                above: root
            }
        );
        assert_eq!(tree.nodes.len(), 1);
    }
}
