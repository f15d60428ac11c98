//! Who waits for whom: the walks for cycles, as steps over any source of edges.
//!
//! Neither walk knows where edges come from. [`Walk`] follows the one edge that an owner's client
//! has set (R111). [`Search`] follows every edge that the queues know, in rounds, so that one message
//! per node and round is enough (E5). Both only read (R114).
//!
//! ```text
//! loop { match walk.next() { Step::Ask(owner) => walk.answer(edge of owner), Step::Done(found) => … } }
//! ```

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use crate::value::OwnerId;

/// The deepest walk (R112).
pub const MAX_DEPTH: u32 = 64;

/// What a walk found (R111).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detection {
    /// The edges end.
    None,
    /// A cycle, its owners in wait order.
    Found(Vec<OwnerId>),
    /// The walk went as deep as allowed; the owners it visited.
    Truncated(Vec<OwnerId>),
}

/// What a walk needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Whom this owner waits for, if that still stands.
    Ask(OwnerId),
    /// The walk is over.
    Done(Detection),
}

/// The walk of `DetectCycle`: one edge an owner (R111, R112).
#[derive(Clone, Debug)]
pub struct Walk {
    chain: Vec<OwnerId>,
    limit: usize,
    done: Option<Detection>,
}

impl Walk {
    /// A walk that starts at an owner; a depth of zero means the default.
    pub fn new(start: OwnerId, max_depth: u32) -> Walk {
        let depth = match max_depth {
            0 => MAX_DEPTH,
            depth => depth.min(MAX_DEPTH),
        };
        Walk {
            chain: vec![start],
            limit: depth as usize + 1,
            done: None,
        }
    }

    /// What is needed next.
    pub fn next(&self) -> Step {
        match (&self.done, self.chain.last()) {
            (Some(found), _) => Step::Done(found.clone()),
            (None, Some(last)) => Step::Ask(last.clone()),
            (None, None) => Step::Done(Detection::None),
        }
    }

    /// Whom the owner asked for waits for: `None` without an edge, or if the edge is stale.
    pub fn answer(&mut self, blocker: Option<OwnerId>) {
        if self.done.is_some() {
            return;
        }
        let Some(blocker) = blocker else {
            self.done = Some(Detection::None);
            return;
        };
        if let Some(at) = self.chain.iter().position(|seen| *seen == blocker) {
            self.done = Some(Detection::Found(self.chain[at..].to_vec()));
        } else if self.chain.len() >= self.limit {
            self.done = Some(Detection::Truncated(self.chain.clone()));
        } else {
            self.chain.push(blocker);
        }
    }
}

/// The most owners that a [`Search`] visits.
pub const MAX_SEARCHED: usize = 4096;

/// The search for a cycle through one owner, over all edges (E5). Breadth first: it finds a shortest one.
#[derive(Clone, Debug)]
pub struct Search {
    start: OwnerId,
    // From whom an owner was reached first.
    reached_from: BTreeMap<OwnerId, OwnerId>,
    frontier: BTreeSet<OwnerId>,
    waiting: BTreeSet<OwnerId>,
    cycle: Option<Vec<OwnerId>>,
}

impl Search {
    /// A search for cycles through this owner.
    pub fn new(start: OwnerId) -> Search {
        Search {
            frontier: BTreeSet::from([start.clone()]),
            waiting: BTreeSet::new(),
            reached_from: BTreeMap::new(),
            cycle: None,
            start,
        }
    }

    /// The owners whose edges are needed for the next round; none when the search is over.
    pub fn round(&mut self) -> Vec<OwnerId> {
        if self.cycle.is_some() {
            return Vec::new();
        }
        self.waiting = core::mem::take(&mut self.frontier);
        self.waiting.iter().cloned().collect()
    }

    /// Whom one owner of the round waits for. May be called several times for an owner (one a group).
    pub fn answer(&mut self, owner: &OwnerId, waits_for: impl IntoIterator<Item = OwnerId>) {
        if self.cycle.is_some() || !self.waiting.contains(owner) {
            return;
        }
        for blocker in waits_for {
            if blocker == self.start {
                self.cycle = Some(self.chain_to(owner));
                return;
            }
            if !self.reached_from.contains_key(&blocker) && self.reached_from.len() < MAX_SEARCHED {
                self.reached_from.insert(blocker.clone(), owner.clone());
                self.frontier.insert(blocker);
            }
        }
    }

    /// The cycle's owners in wait order, from the start, if one was found.
    pub fn cycle(&self) -> Option<&[OwnerId]> {
        self.cycle.as_deref()
    }

    fn chain_to(&self, last: &OwnerId) -> Vec<OwnerId> {
        let mut chain = vec![last.clone()];
        let mut at = last;
        while let Some(before) = self.reached_from.get(at) {
            chain.push(before.clone());
            at = before;
        }
        chain.reverse();
        chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(text: &str) -> OwnerId {
        OwnerId::new(text).unwrap()
    }

    fn walk(edges: &[(&str, &str)], start: &str, depth: u32) -> Detection {
        let mut walk = Walk::new(owner(start), depth);
        loop {
            match walk.next() {
                Step::Done(found) => return found,
                Step::Ask(asked) => {
                    let edge = edges.iter().find(|(from, _)| owner(from) == asked);
                    walk.answer(edge.map(|(_, to)| owner(to)));
                }
            }
        }
    }

    fn owners(list: &[&str]) -> Vec<OwnerId> {
        list.iter().map(|text| owner(text)).collect()
    }

    #[test]
    fn r111_a_walk_finds_its_own_cycle_or_the_one_it_runs_into() {
        let edges = [("a", "b"), ("b", "c"), ("c", "a")];
        assert_eq!(
            walk(&edges, "a", 0),
            Detection::Found(owners(&["a", "b", "c"]))
        );
        let tail = [("s", "a"), ("a", "b"), ("b", "a")];
        assert_eq!(walk(&tail, "s", 0), Detection::Found(owners(&["a", "b"])));
        assert_eq!(walk(&[("a", "b")], "a", 0), Detection::None);
        assert_eq!(
            walk(&[("a", "a")], "a", 0),
            Detection::Found(owners(&["a"]))
        );
    }

    #[test]
    fn r111_a_walk_stops_after_its_depth_and_one_owner() {
        let edges = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")];
        assert_eq!(
            walk(&edges, "a", 2),
            Detection::Truncated(owners(&["a", "b", "c"]))
        );
        assert_eq!(
            walk(&edges, "a", 3),
            Detection::Found(owners(&["a", "b", "c", "d"]))
        );
    }

    #[test]
    fn e5_a_search_finds_a_shortest_cycle_among_many_edges() {
        let edges = [
            ("a", "x"),
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("x", "y"),
            ("b", "a"),
        ];
        let mut search = Search::new(owner("a"));
        loop {
            let round = search.round();
            if round.is_empty() {
                break;
            }
            for asked in round {
                let to = edges.iter().filter(|(from, _)| owner(from) == asked);
                search.answer(&asked, to.map(|(_, to)| owner(to)).collect::<Vec<_>>());
            }
        }
        assert_eq!(search.cycle(), Some(&owners(&["a", "b"])[..]));
    }
}
