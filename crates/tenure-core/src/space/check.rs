//! Invariant checker: verifies a space between two commands.
//!
//! It compares every count and index with a recount, and verifies the two guarantees themselves: no
//! two claims conflict, and no waiter could be granted.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::Space;
use super::conflict::AcquireDecision;
use super::policy_change::FrozenRegion;
use super::sessions::TakenHolds;
use super::usage::Tally;
use crate::lease::SHORT_LEASE_MS;
use crate::policy::Mode;
use crate::segment::below_root;
use crate::slab::Id;
use crate::tree::{PathNode, Side, SideCounts};

/// Up to so many claims are compared pair by pair.
const PAIRED: u32 = 300;

impl Space {
    /// Verifies all invariants by recounting. Panics if one is violated.
    pub fn check(&self) {
        assert!(
            self.pending.is_empty() || self.rules >= 2,
            "a freed waiter was not looked at"
        );
        self.check_claims();
        self.check_tree();
        self.check_sessions();
        self.check_queue();
        self.check_memory();
        self.check_usage();
        self.check_exclusion();
        self.check_waiting();
        self.check_taken();
    }

    fn check_claims(&self) {
        let mut placed = 0;
        for (number, node) in self.tree.nodes.iter() {
            if let Some(claim) = node.claim {
                placed += 1;
                assert_eq!(self.claims[claim].node, number, "claim at another node");
            }
            let Some(extra) = self.tree.extra(number) else {
                continue;
            };
            let crowd = extra.claims_by_owner().into_iter().flatten();
            let claims_by_owner: usize = crowd.map(BTreeMap::len).sum();
            assert!(claims_by_owner != 1, "a crowd of one");
            assert!(
                claims_by_owner == 0 || node.claim.is_none(),
                "alone and in a crowd"
            );
            for mode in Mode::ALL {
                let crowd = extra.claims_by_owner().map(|crowd| &crowd[mode as usize]);
                for (owner, claim) in crowd.into_iter().flatten() {
                    placed += 1;
                    let claim = &self.claims[*claim];
                    assert_eq!(claim.node, number, "crowded at another node");
                    assert_eq!(claim.mode(), mode, "crowded under another mode");
                    assert_eq!(
                        self.sessions[claim.session].owner, *owner,
                        "another's claim"
                    );
                }
            }
        }
        assert_eq!(placed, self.claims.len(), "claims and places differ");
    }

    fn check_tree(&self) {
        let mut below: BTreeMap<_, SideCounts> = BTreeMap::new();
        for (_, claim) in self.claims.iter() {
            for above in self.tree.ancestors(claim.node) {
                below.entry(above).or_default()[Side::of(claim.mode()) as usize] += 1;
            }
        }
        for (number, node) in self.tree.nodes.iter() {
            let counted = below.get(&number).copied().unwrap_or_default();
            assert_eq!(node.below, counted, "counts drifted");
            if let Some(parent) = node.parent {
                assert!(
                    !self.tree.is_bare(number),
                    "a node with nothing at it or below"
                );
                let siblings = self.tree.children(parent);
                assert_eq!(
                    siblings.filter(|child| *child == number).count(),
                    1,
                    "lost child"
                );
            }
        }
        let mut roots = 0;
        for (_, state) in self.namespaces.iter() {
            if let Some(root) = state.root {
                roots += 1;
                self.check_names(root);
            }
        }
        let parentless = self
            .tree
            .nodes
            .iter()
            .filter(|(_, node)| node.parent.is_none());
        assert_eq!(parentless.count(), roots, "a root without a namespace");
        let extras = self
            .tree
            .nodes
            .iter()
            .filter(|(node, _)| self.tree.extra(*node).is_some());
        assert_eq!(
            extras.count() as u32,
            self.tree.extras.len(),
            "extras leaked"
        );
    }

    /// Every node is found by its name.
    fn check_names(&self, root: Id<PathNode>) {
        let (_, state) = self
            .namespaces
            .iter()
            .find(|(_, state)| state.root == Some(root))
            .expect("the namespace of a root");
        let mut open = alloc::vec![root];
        while let Some(node) = open.pop() {
            let path = self.tree.path(&state.name, node);
            let path_position = self
                .tree
                .path_position(Some(root), below_root(&state.name, &path));
            assert_eq!(path_position.at, Some(node), "a node that is not found");
            open.extend(self.tree.children(node));
        }
    }

    fn check_sessions(&self) {
        let mut claims = 0;
        let mut long = 0;
        let mut by_namespace: BTreeMap<_, u32> = BTreeMap::new();
        for (number, session) in self.sessions.iter() {
            *by_namespace.entry(session.namespace).or_default() += 1;
            let own: Vec<_> = self.session_claims(number).collect();
            assert_eq!(
                own.len() as u32,
                session.claims,
                "claims of a session miscounted"
            );
            claims += session.claims;
            for claim in own {
                assert_eq!(
                    self.claims[claim].session, number,
                    "another session's claim"
                );
            }
            assert_eq!(
                session.claims > 0,
                session.lease.is_some(),
                "lease without claims"
            );
            assert!(
                session.claims > 0 || session.waiter.is_some(),
                "an empty session"
            );
            long += u32::from(
                session
                    .lease
                    .is_some_and(|lease| lease.ttl.millis() > SHORT_LEASE_MS),
            );
            assert_eq!(
                self.sessions.find(session.namespace, &session.owner),
                Some(number)
            );
            assert!(
                self.sessions.of_owner(&session.owner).contains(&number),
                "unchained"
            );
            if let Some(index) = session.own_below() {
                let mut recount: BTreeMap<_, SideCounts> = BTreeMap::new();
                for claim in self.session_claims(number) {
                    let claim = &self.claims[claim];
                    for above in self.tree.ancestors(claim.node) {
                        recount.entry(above).or_default()[Side::of(claim.mode()) as usize] += 1;
                    }
                }
                assert_eq!(index.len(), recount.len(), "own claims miscounted");
                for (node, counts) in recount {
                    assert_eq!(index.get(&node), Some(&counts), "own claims miscounted");
                }
            }
        }
        assert_eq!(claims, self.claims.len(), "claims without a session");
        assert_eq!(long, self.long_leases, "long leases miscounted");
        let leases = u32::try_from(self.leases().count()).unwrap_or(u32::MAX);
        assert_eq!(leases, self.leases, "leases miscounted");
        for (number, state) in self.namespaces.iter() {
            let counted = by_namespace.get(&number).copied().unwrap_or(0);
            assert_eq!(
                state.sessions, counted,
                "sessions of a namespace miscounted"
            );
        }
    }

    fn check_queue(&self) {
        let mut standing: BTreeSet<(_, Mode, u64)> = BTreeSet::new();
        let mut below: BTreeMap<(_, bool, u64), u32> = BTreeMap::new();
        let mut waiting: BTreeMap<_, u32> = BTreeMap::new();
        let mut levels: BTreeMap<_, u64> = BTreeMap::new();
        for (id, waiter) in self.waiters.iter() {
            let session = &self.sessions[waiter.session];
            assert_eq!(
                session.waiter,
                Some(id),
                "a waiter that its session does not know"
            );
            assert!(
                self.ends.contains(&(waiter.end, waiter.number, id)),
                "an end is missing"
            );
            *waiting.entry(session.namespace).or_default() += waiter.parts.len() as u32;
            let depths = waiter
                .parts
                .iter()
                .map(|part| self.tree.upwards(Some(part.node)).count());
            assert_eq!(
                depths.sum::<usize>() as u64,
                waiter.levels,
                "levels miscounted"
            );
            *levels.entry(session.namespace).or_default() += waiter.levels;
            for part in &waiter.parts {
                assert!(
                    standing.insert((part.node, part.mode, waiter.number)),
                    "twice at a place"
                );
                for above in self.tree.ancestors(part.node) {
                    *below
                        .entry((above, part.mode == Mode::Write, waiter.number))
                        .or_default() += 1;
                }
            }
        }
        assert_eq!(self.ends.len() as u32, self.waiters.len(), "ends of nobody");
        for (number, state) in self.namespaces.iter() {
            let counted = waiting.get(&number).copied().unwrap_or(0);
            assert_eq!(state.waiting_paths, counted, "waiting paths miscounted");
            let counted = levels.get(&number).copied().unwrap_or(0);
            assert_eq!(state.waiting_levels, counted, "waiting levels miscounted");
        }
        assert_eq!(self.waiting_levels, levels.values().sum::<u64>());
        for (node, _) in self.tree.nodes.iter() {
            let Some(extra) = self.tree.extra(node) else {
                continue;
            };
            for mode in Mode::ALL {
                for (number, queued) in extra.line(mode).iter() {
                    assert!(standing.remove(&(node, mode, number)), "a ghost in line");
                    let part = &self.waiters[queued.waiter].parts[queued.paths as usize];
                    assert!(part.node == node && part.mode == mode, "a wrong index");
                }
            }
            for (side, writes) in [(0, true), (1, false)] {
                for (number, queued) in extra.below[side].iter() {
                    let counted = below.remove(&(node, writes, number));
                    assert_eq!(counted, Some(queued.paths), "lines below miscounted");
                }
            }
        }
        assert!(standing.is_empty() && below.is_empty(), "missing in line");
    }

    /// Counts what each principal has in each namespace again.
    fn check_usage(&self) {
        let mut totals: BTreeMap<_, Tally> = BTreeMap::new();
        let mut scoped: BTreeMap<(_, &str), Tally> = BTreeMap::new();
        for (_, session) in self.sessions.iter() {
            let waiter = session.waiter.map(|waiter| &self.waiters[waiter]);
            let waiting = waiter.map_or(0, |waiter| waiter.parts.len() as u32);
            let add = |tally: &mut Tally| {
                tally.held += session.claims;
                tally.waiting += waiting;
                tally.owners += 1;
            };
            add(totals.entry(session.namespace).or_default());
            if let Some(scope) = crate::auth::scope_of(session.owner.as_str()) {
                add(scoped.entry((session.namespace, scope)).or_default());
            }
        }
        for (number, state) in self.namespaces.iter() {
            let total = totals.get(&number).copied().unwrap_or_default();
            assert_eq!(state.tally, total, "the usage of a namespace is miscounted");
        }
        for (_, session) in self.sessions.iter() {
            if let Some(scope) = crate::auth::scope_of(session.owner.as_str()) {
                let tally = self.tally_of(session.namespace, &session.owner);
                let counted = scoped[&(session.namespace, scope)];
                assert_eq!(tally, counted, "the usage of a principal is miscounted");
            }
        }
        assert_eq!(self.usage.len(), scoped.len(), "an account of no owner");
    }

    fn check_memory(&self) {
        let mut marks: BTreeMap<_, u32> = BTreeMap::new();
        for (namespace, rest, fence, idle) in self.marks.iter() {
            assert!(idle, "a mark is always idle");
            *marks.entry(namespace).or_default() += 1;
            assert!(
                fence.number() <= self.namespaces[namespace].high,
                "high below a mark"
            );
            let path = self.namespaces[namespace].name.path(rest);
            let node = self.path_position(namespace, &path).at;
            let writer = node.and_then(|node| self.claims_at(node, Mode::Write).next());
            let fenced = writer.is_some_and(|claim| self.claims[claim].fence().is_some());
            assert!(!fenced, "a mark beside a fenced writer");
        }
        let mut capacities: BTreeMap<_, u32> = BTreeMap::new();
        for (namespace, _, _, _) in self.capacities.iter() {
            *capacities.entry(namespace).or_default() += 1;
        }
        for (number, state) in self.namespaces.iter() {
            assert_eq!(state.marks, marks.get(&number).copied().unwrap_or(0));
            assert_eq!(
                state.capacities,
                capacities.get(&number).copied().unwrap_or(0)
            );
            assert!(state.floor <= state.high, "the floor overtook the counter");
            assert_eq!(
                self.namespaces.find(&state.name),
                Some(number),
                "a namespace not found"
            );
        }
        for (_, claim) in self.claims.iter() {
            let namespace = self.sessions[claim.session].namespace;
            let high = self.namespaces[namespace].high;
            assert!(
                claim.fence().is_none_or(|fence| fence.number() <= high),
                "high below a claim"
            );
            let fenced = claim.mode() == Mode::Write && !claim.is_permit();
            assert_eq!(
                claim.fence().is_some(),
                fenced,
                "fences are for exclusive writes"
            );
        }
        assert!(self.marks.idle() <= self.limits.marks, "too many marks");
    }

    /// No two claims of different owners conflict, compared pair by pair.
    fn check_exclusion(&self) {
        if self.claims.len() > PAIRED {
            return;
        }
        let covers = |mode: Mode, recursive: bool| match mode {
            Mode::Write => recursive,
            Mode::Read => false,
            Mode::ReadTree => true,
        };
        for (_, one) in self.claims.iter() {
            for (_, two) in self.claims.iter() {
                let (here, there) = (&self.sessions[one.session], &self.sessions[two.session]);
                if one.session == two.session || here.namespace != there.namespace {
                    continue;
                }
                if one.mode() != Mode::Write && two.mode() != Mode::Write {
                    continue;
                }
                if one.is_permit() && two.is_permit() {
                    continue;
                }
                assert_ne!(one.node, two.node, "two owners on one path");
                if covers(one.mode(), one.algorithm().is_recursive()) {
                    let below = self.tree.is_below(two.node, one.node);
                    assert!(!below, "an owner below another's covering claim");
                }
            }
        }
    }

    /// A hold ended by force has no claim.
    fn check_taken(&self) {
        for (number, session) in self.sessions.iter() {
            for (path, mode) in session.taken().into_iter().flat_map(TakenHolds::keys) {
                let node = self.path_position(session.namespace, path).at;
                let there = node.and_then(|node| self.own_claim(number, node, *mode));
                assert!(there.is_none(), "{} still holds {path}", session.owner);
            }
        }
    }

    /// Every waiter is blocked (or frozen) and is in exactly one wait list.
    fn check_waiting(&self) {
        let mut parked_on: Vec<_> = Vec::new();
        for (node, _) in self.tree.nodes.iter() {
            if let Some(extra) = self.tree.extra(node) {
                for head in extra.rings.iter().flatten() {
                    parked_on.extend(self.links.waiters(*head));
                }
            }
        }
        for (_, waiter) in self.waiters.iter() {
            for part in &waiter.parts {
                for head in [part.blocks, part.blocks_asking].into_iter().flatten() {
                    parked_on.extend(self.links.waiters(head));
                }
            }
        }
        let parked = self
            .routes
            .frozen
            .values()
            .flat_map(|FrozenRegion { waiters, .. }| waiters);
        let pending: BTreeSet<_> = self.pending.iter().map(|(_, id)| *id).collect();
        // These may still be in the list of a former blocker.
        parked_on.retain(|id| !pending.contains(id));
        let mut parked: BTreeSet<_> = parked.map(|(_, id)| *id).collect();
        parked.extend(pending);
        parked_on.extend(&parked);
        parked_on.sort_unstable();
        let all: Vec<_> = self.waiters.iter().map(|(id, _)| id).collect();
        assert_eq!(parked_on, all, "waiters must hang on exactly one thing");
        for (id, waiter) in self.waiters.iter() {
            if parked.contains(&id) {
                continue;
            }
            let verdict = self.evaluate(self.waiter_requester(id), &waiter.request);
            assert!(
                matches!(
                    verdict,
                    AcquireDecision::Behind(_) | AcquireDecision::Blocked { .. }
                ),
                "waiter {} of {} could go on: {verdict:?}",
                waiter.number,
                self.sessions[waiter.session].owner,
            );
        }
    }
}
