//! Deadlock detection: cycle searches over a wait-for graph, written as sans-I/O state machines.
//!
//! Neither search knows where edges come from. [`Walk`] follows one edge per owner: the one that
//! its client has set, or one that the queues know (R111 (DetectCycle walks wait edges)).
//! [`Search`] follows every edge that the queues know, in rounds, so that one message per node and
//! round is enough (E5 (refuse on deadlock)). Both only read (R114 (DetectCycle changes nothing)).
//!
//! ```text
//! loop { match walk.next() { Ask(owner) => walk.answer(edge of owner), Done(found) => … } }
//! ```
//!
//! Edges are read one after the other. A wait may end before the next edge is read, so a cycle
//! found in one pass may never have existed. A cycle counts (R113 (deadlock queries are
//! linearizable)) only if all its waits are seen a second time, after the last of them was seen for
//! the first time: then all of them existed at the moment in between. Two observations are of the
//! same wait if their [`WaitPosition`] is equal. A blocker that has stopped blocking a queue
//! position cannot block it again, because later requests do not overtake (R79 (no overtaking)). So
//! a blocker that is found in both passes has blocked the whole time.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use crate::path::Namespace;
use crate::value::OwnerId;

/// Maximum depth of a walk (R112: depth limit of DetectCycle).
pub const MAX_DEPTH: u32 = 64;

/// The result of a walk (R111).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detection {
    /// The walk reached an owner that does not wait: no cycle.
    None,
    /// A cycle, its owners in wait order.
    Found(Vec<OwnerId>),
    /// The walk reached its maximum depth. Contains the owners visited.
    Truncated(Vec<OwnerId>),
}

/// The next input that a walk needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalkStep {
    /// The present wait edge of this owner.
    Ask(OwnerId),
    /// The walk is finished.
    Done(Detection),
}

/// Identifies one wait. A position is never reused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitPosition {
    /// The namespace of the waiter.
    pub namespace: Namespace,
    /// The waiter's number in that namespace.
    pub waiter: u64,
}

/// One observed wait: the waiting owner, its position and the blocker. An edge set by a client has
/// no position.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WaitEdgeSeen {
    owner: OwnerId,
    place: Option<WaitPosition>,
    blocker: OwnerId,
}

/// Returns the owners of a cycle in wait order.
fn owners(cycle: &[WaitEdgeSeen]) -> Vec<OwnerId> {
    cycle.iter().map(|wait| wait.owner.clone()).collect()
}

/// The walk of `DetectCycle`: one edge per owner (R111, R112). It repeats the walk to confirm a
/// cycle.
#[derive(Clone, Debug)]
pub struct Walk {
    start: OwnerId,
    limit: usize,
    chain: Vec<WaitEdgeSeen>,
    /// The cycle that the previous pass found.
    seen: BTreeSet<WaitEdgeSeen>,
    done: Option<Detection>,
}

impl Walk {
    /// Creates a walk that starts at an owner; a depth of zero means the default.
    pub fn new(start: OwnerId, max_depth: u32) -> Walk {
        let depth = match max_depth {
            0 => MAX_DEPTH,
            depth => depth.min(MAX_DEPTH),
        };
        Walk {
            start,
            limit: depth as usize + 1,
            chain: Vec::new(),
            seen: BTreeSet::new(),
            done: None,
        }
    }

    /// Returns the next input needed, or the result.
    pub fn next(&self) -> WalkStep {
        match &self.done {
            Some(found) => WalkStep::Done(found.clone()),
            None => WalkStep::Ask(self.last().clone()),
        }
    }

    fn last(&self) -> &OwnerId {
        self.chain.last().map_or(&self.start, |wait| &wait.blocker)
    }

    /// Supplies the edge of the requested owner: its blocker, and its position if the edge comes
    /// from a queue. `None` if there is no edge or it is stale.
    pub fn answer(&mut self, edge: Option<(OwnerId, Option<WaitPosition>)>) {
        if self.done.is_some() {
            return;
        }
        let Some((blocker, place)) = edge else {
            self.done = Some(Detection::None);
            return;
        };
        self.chain.push(WaitEdgeSeen {
            owner: self.last().clone(),
            place,
            blocker,
        });
        let closes = self
            .chain
            .iter()
            .position(|wait| wait.owner == *self.last());
        if let Some(at) = closes {
            let cycle = self.chain.split_off(at);
            let waits: BTreeSet<WaitEdgeSeen> = cycle.iter().cloned().collect();
            if self.seen == waits {
                self.done = Some(Detection::Found(owners(&cycle)));
            } else {
                self.seen = waits;
                self.chain.clear();
            }
        } else if self.chain.len() >= self.limit {
            self.done = Some(Detection::Truncated(owners(&self.chain)));
        }
    }
}

/// Maximum number of owners that a [`Search`] visits.
pub const MAX_SEARCHED: usize = 4096;

/// Maximum number of edges that a [`Search`] follows. A search that needs more ends without a
/// result: its owner waits, and its lease and its time in the queue end as always.
pub const MAX_EDGES: usize = 16_384;

/// Breadth-first search for a cycle through one owner, over all edges (E5). It finds a shortest
/// cycle. It reads the waits of that cycle again to confirm it, and starts over if one of them has
/// ended.
#[derive(Clone, Debug)]
pub struct Search {
    start: OwnerId,
    // The wait by which each owner was reached first.
    reached_by: BTreeMap<OwnerId, WaitEdgeSeen>,
    frontier: BTreeSet<OwnerId>,
    waiting: BTreeSet<OwnerId>,
    // How many edges were followed, also before the search started over.
    edges: usize,
    suspected: Option<Suspected>,
    cycle: Option<Vec<OwnerId>>,
}

/// A cycle whose waits were each seen once.
#[derive(Clone, Debug)]
struct Suspected {
    owners: Vec<OwnerId>,
    /// The waits not yet seen a second time.
    waits: BTreeSet<WaitEdgeSeen>,
    asked: bool,
}

impl Search {
    /// Creates a search for cycles through this owner.
    pub fn new(start: OwnerId) -> Search {
        Search {
            frontier: BTreeSet::from([start.clone()]),
            waiting: BTreeSet::new(),
            reached_by: BTreeMap::new(),
            edges: 0,
            suspected: None,
            cycle: None,
            start,
        }
    }

    /// Returns the owners whose edges are needed for the next round; empty when the search is
    /// finished.
    pub fn round(&mut self) -> Vec<OwnerId> {
        if self.cycle.is_some() {
            return Vec::new();
        }
        match &mut self.suspected {
            Some(suspected) if !suspected.asked => {
                suspected.asked = true;
                return suspected.owners.clone();
            }
            Some(suspected) if suspected.waits.is_empty() => {
                self.cycle = Some(core::mem::take(&mut suspected.owners));
                return Vec::new();
            }
            Some(_) => {
                let edges = self.edges;
                *self = Search::new(self.start.clone());
                self.edges = edges;
            }
            None => {}
        }
        if self.edges >= MAX_EDGES {
            return Vec::new();
        }
        self.waiting = core::mem::take(&mut self.frontier);
        self.waiting.iter().cloned().collect()
    }

    /// Supplies the edges of one waiter of an owner of the round. Called once per waiter of the
    /// owner.
    pub fn answer(
        &mut self,
        owner: &OwnerId,
        place: Option<&WaitPosition>,
        waits_for: impl IntoIterator<Item = OwnerId>,
    ) {
        let waits = waits_for.into_iter().map(|blocker| WaitEdgeSeen {
            owner: owner.clone(),
            place: place.cloned(),
            blocker,
        });
        if let Some(suspected) = &mut self.suspected {
            // Answers of the round that found the cycle do not confirm it; they may be older than
            // its last wait.
            for wait in waits.filter(|_| suspected.asked) {
                suspected.waits.remove(&wait);
            }
            return;
        }
        if !self.waiting.contains(owner) {
            return;
        }
        for wait in waits {
            self.edges += 1;
            if wait.blocker == self.start {
                self.suspect(wait);
                return;
            }
            if !self.reached_by.contains_key(&wait.blocker) && self.reached_by.len() < MAX_SEARCHED
            {
                self.frontier.insert(wait.blocker.clone());
                self.reached_by.insert(wait.blocker.clone(), wait);
            }
        }
    }

    /// Returns the owners of the cycle in wait order, beginning with the start, if one was found.
    pub fn cycle(&self) -> Option<&[OwnerId]> {
        self.cycle.as_deref()
    }

    fn suspect(&mut self, last: WaitEdgeSeen) {
        let mut chain = vec![last];
        while let Some(before) = chain
            .last()
            .and_then(|wait| self.reached_by.get(&wait.owner))
        {
            chain.push(before.clone());
        }
        chain.reverse();
        self.suspected = Some(Suspected {
            owners: owners(&chain),
            waits: chain.into_iter().collect(),
            asked: false,
        });
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
                WalkStep::Done(found) => return found,
                WalkStep::Ask(asked) => {
                    let edge = edges.iter().find(|(from, _)| owner(from) == asked);
                    walk.answer(edge.map(|(_, to)| (owner(to), None)));
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
                search.answer(&asked, None, to.map(|(_, to)| owner(to)));
            }
        }
        assert_eq!(search.cycle(), Some(&owners(&["a", "b"])[..]));
    }

    /// E5: a search that meets very many edges ends.
    #[test]
    fn e5_a_search_follows_a_limited_number_of_edges() {
        let mut search = Search::new(owner("a"));
        let mut rounds = 0;
        let mut asked = 0;
        loop {
            let round = search.round();
            if round.is_empty() {
                break;
            }
            rounds += 1;
            for one in round {
                asked += 1;
                // Each owner waits for a hundred others, and none waits for the start.
                let to = (0..100).map(|number| owner(&alloc::format!("{}.{number}", one.as_str())));
                search.answer(&one, None, to);
            }
        }
        assert_eq!(search.cycle(), None);
        assert!(
            asked <= 1 + 100 + MAX_SEARCHED,
            "{asked} owners, {rounds} rounds"
        );
    }

    fn place(waiter: u64) -> WaitPosition {
        WaitPosition {
            namespace: Namespace::parse("t:/1").unwrap(),
            waiter,
        }
    }

    /// R113: a walk that meets other waits the second time has found nothing yet.
    #[test]
    fn r113_a_walk_goes_the_same_way_twice() {
        let answer = |walk: &mut Walk, blocker: &str, waiter: u64| {
            walk.answer(Some((owner(blocker), Some(place(waiter)))));
        };
        let mut walk = Walk::new(owner("a"), 0);
        answer(&mut walk, "b", 1);
        answer(&mut walk, "a", 2);
        assert_eq!(walk.next(), WalkStep::Ask(owner("a")), "seen once");
        answer(&mut walk, "b", 3);
        answer(&mut walk, "a", 2);
        assert_eq!(walk.next(), WalkStep::Ask(owner("a")), "a waits anew");
        answer(&mut walk, "b", 3);
        answer(&mut walk, "a", 2);
        assert_eq!(
            walk.next(),
            WalkStep::Done(Detection::Found(owners(&["a", "b"])))
        );
        let mut walk = Walk::new(owner("a"), 0);
        answer(&mut walk, "b", 1);
        answer(&mut walk, "a", 2);
        walk.answer(None);
        assert_eq!(
            walk.next(),
            WalkStep::Done(Detection::None),
            "a waits no more"
        );
    }

    /// E5: waits of which one was over before another began are no cycle; the search goes on.
    #[test]
    fn e5_a_search_believes_in_waits_that_it_sees_twice() {
        let answer = |search: &mut Search, who: &str, waiter: u64, to: &[&str]| {
            search.answer(&owner(who), Some(&place(waiter)), owners(to));
        };
        let suspicion = || {
            let mut search = Search::new(owner("a"));
            assert_eq!(search.round(), owners(&["a"]));
            answer(&mut search, "a", 1, &["b", "c"]);
            assert_eq!(search.round(), owners(&["b", "c"]));
            answer(&mut search, "b", 2, &["a"]);
            // The rest of the round in which it was found proves nothing.
            answer(&mut search, "a", 1, &["b"]);
            assert_eq!(search.round(), owners(&["a", "b"]));
            assert_eq!(search.cycle(), None, "seen once");
            search
        };
        let mut search = suspicion();
        answer(&mut search, "b", 2, &["a"]);
        answer(&mut search, "a", 1, &["b", "c"]);
        assert_eq!(search.round(), owners(&[]));
        assert_eq!(search.cycle(), Some(&owners(&["a", "b"])[..]));

        for (waiter, to) in [(1, "c"), (3, "b")] {
            let mut search = suspicion();
            answer(&mut search, "b", 2, &["a"]);
            answer(&mut search, "a", waiter, &[to]);
            assert_eq!(search.round(), owners(&["a"]), "from the start again");
            assert_eq!(search.cycle(), None);
            answer(&mut search, "a", waiter, &["c"]);
            assert_eq!(search.round(), owners(&["c"]));
            assert_eq!(search.round(), owners(&[]), "c waits for nobody");
            assert_eq!(search.cycle(), None);
        }
    }
}
