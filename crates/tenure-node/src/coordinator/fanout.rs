//! Fan-out: one question to all groups in scope, one message per node, every group confirmed
//! (R126–R130).
//!
//! ```text
//!   call ─▶ message to every node ─▶ each group led there: one ReadIndex round ─▶ read ─▶ answer
//!            └────────────── groups that no leader confirmed are asked again ──────────────┘
//! ```
//!
//! "The owner has nothing" is a statement about all groups, so each group must be confirmed by its
//! leader after the question was received. All questions of one step share one ReadIndex round per
//! group.
//!
//! Every attempt to ask the nodes has a new number, and an answer counts only under the number of
//! the latest attempt: the answer of a group is counted once. A fan-out ends with the call that
//! started it, on this node and on the nodes that were asked.
//!
//! A long answer is sent in pages ([`PAGE_BYTES`]). The asking node fetches all but the first few.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tenure_core::command::{
    AskRelease, Command, Domain, Hold, ReleaseAll, ReleaseCause, RenewLease, Selection,
};
use tenure_core::event::Event;
use tenure_core::outcome::Outcome;
use tenure_core::path::Namespace;
use tenure_core::policy::Missing;
use tenure_core::query::{EdgeDetail, HeldLock, WaitsFor};
use tenure_core::space::Space;
use tenure_core::value::{Fence, Key, OwnerId, Ttl};
use tenure_core::{record, record_enum};

use super::forward::OpOrigin;
use super::{AwaitedPart, CallContext, CallEvent, browse};
use crate::codec::{DecodeResult, Encode, Reader, VERSION, Writer, from_bytes, to_bytes};
use crate::group::LeadershipCheck;
use crate::group_op::{GroupOp, GroupOpResult};
use crate::group_set::GroupSet;
use crate::node::Node;
use crate::node::frames_item as item;
use crate::request::{BrowseQuery, BrowseResult};
use crate::{GroupId, NodeId, ReplicaId};

/// Time after which a node without an answer is asked again; the next attempt waits twice as long.
const REPLY_TIMEOUT_MS: u64 = 2_000;

/// A renewal that cannot reach a group for this long fails. The leases in all other groups are
/// extended by then, and a caller that gets the failure can name its namespaces, which makes it
/// independent of unreachable groups (R130: cost of owner-wide calls).
const RENEWAL_REPLY_TIMEOUT_MS: u64 = 2 * REPLY_TIMEOUT_MS;
/// Page size of long answers.
const PAGE_BYTES: usize = 1 << 20;
/// Maximum pages in flight.
const PAGES_UNDER_WAY: u64 = 4;
/// Maximum length of an answer; a longer one is refused.
const LONGEST_ANSWER_BYTES: usize = 1 << 28;
/// Maximum answers that one node keeps for fetching; the oldest is dropped for the next.
const KEPT_ANSWERS: usize = 8;
/// A kept answer is dropped if no page is fetched for this long.
const KEPT_MS: u64 = 10_000;

/// How much one step reads for questions about wait-for edges: an owner that a group does not know
/// costs one, an edge [`EDGE_COST`]. Reading goes on in the next step.
const EDGE_WORK: usize = 8192;
const EDGE_COST: usize = 4;
/// Owners whose edges are read together.
const EDGE_OWNERS: usize = 256;
/// Up to so many owners get all their edges: the owners of a suspected cycle, whose every edge must
/// be seen again.
const FEW_OWNERS: usize = 64;
/// Maximum edges of one answer. A search follows fewer in all.
const EDGES: usize = 8192;

/// A question to every group in scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fanout {
    pub(crate) owner: OwnerId,
    pub(crate) selection: Selection,
    pub(crate) what: FanoutOp,
}

/// The operation of a fan-out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FanoutOp {
    /// Extends every lease of the owner (R91: Renew without domains).
    Renew(Ttl),
    /// Releases everything (R100 ReleaseAll drops everything, R101 ForceRelease always notifies the
    /// victim).
    ReleaseAll(ReleaseCause),
    /// Sets the revoke marker (R116: revoke marker).
    Ask,
    /// R118 (IsOwnerAlive includes waiters).
    Alive,
    /// R142 (ListOwnerLocks lists live holds).
    List,
    /// The owners that these owners wait for (E5: refuse on deadlock).
    WaitsFor { owners: Vec<OwnerId> },
    /// GRANTs that a new subscriber has not received and that are still in force (R122: events are
    /// always delivered).
    Grants,
    /// The highest fence minted (R75: IncrFencingToken always grows).
    Highest,
    /// The groups in which the owner has claims or waiters, with the current order number of each.
    /// Since rules 2.
    Plan,
    /// Which of these holds were released under this key, in any namespace. A group that has frozen
    /// one of the paths for a policy change cannot answer: until the change ends there, it accepts
    /// releases by the earlier routes. Since rules 2.
    Released {
        key: Key,
        fingerprint: u128,
        holds: Vec<Hold>,
    },
    /// A list for people (E20–E22). Since rules 2.
    Browse(BrowseQuery),
}

record! { Fanout { owner, selection, what } }
record_enum! { FanoutOp as "fan-out" {
    1(ttl) => Renew(ttl),
    2 => ReleaseAll(ReleaseCause::Owner),
    3 => ReleaseAll(ReleaseCause::Killed),
    4 => Ask,
    5 => Alive,
    6 => List,
    7(owners) => WaitsFor { owners },
    8 => Grants,
    9 => Highest,
    // Since rules 2.
    10 => Plan,
    11(key, fingerprint, holds) => Released { key, fingerprint, holds },
    12(query) => Browse(query),
} }

impl FanoutOp {
    /// Whether a space without anything of the owner contributes nothing to the answer.
    fn is_about_owner(&self) -> bool {
        match self {
            FanoutOp::Renew(_)
            | FanoutOp::ReleaseAll(_)
            | FanoutOp::Ask
            | FanoutOp::Alive
            | FanoutOp::List
            | FanoutOp::Plan
            | FanoutOp::Grants => true,
            FanoutOp::WaitsFor { .. }
            | FanoutOp::Highest
            | FanoutOp::Released { .. }
            | FanoutOp::Browse(_) => false,
        }
    }
}

impl FanoutOp {
    /// Whether it has an effect that a second attempt could repeat. A renewal does not count: it
    /// never shortens a lease, so a second one is harmless.
    fn acts(&self) -> bool {
        matches!(self, FanoutOp::ReleaseAll(_) | FanoutOp::Ask)
    }
}

impl Fanout {
    /// Creates a fan-out over all namespaces.
    pub(crate) fn about(owner: OwnerId, what: FanoutOp) -> Fanout {
        Fanout {
            owner,
            selection: Selection::All,
            what,
        }
    }
}

/// The groups that a fan-out must reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FanoutScope {
    All,
    /// All groups that are reachable now (R75: IncrFencingToken always grows).
    Reachable,
    /// Those of these groups that are reachable now.
    ReachableOf(GroupSet),
    Groups(GroupSet),
}

/// The result of a fan-out, from one node or combined from all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FanoutResult {
    /// Groups whose leader was confirmed.
    pub(crate) groups: GroupSet,
    /// Leases that were extended, by their birth.
    pub(crate) renewed: Vec<(Namespace, u64)>,
    pub(crate) asked: bool,
    pub(crate) alive: bool,
    pub(crate) locks: Vec<HeldLock>,
    pub(crate) edges: Vec<(OwnerId, WaitsFor)>,
    pub(crate) grants: Vec<Event>,
    pub(crate) highest: Option<Fence>,
    /// Groups in which the owner has claims or waiters, with the order number of each.
    pub(crate) planned: Vec<(u32, u64)>,
    /// Holds that were released under the key.
    pub(crate) released: Vec<Hold>,
    /// A list for people.
    pub(crate) browsed: Option<Box<BrowseResult>>,
    /// Whether the outcome of a part is unknown.
    pub(crate) unknown: bool,
    /// Whether the answer of a node is too long. Not part of the encoding.
    pub(crate) too_long: bool,
}

impl Encode for FanoutResult {
    fn put(&self, out: &mut Writer) {
        out.put(&self.groups);
        out.put(&self.renewed);
        out.put(&self.asked);
        out.put(&self.alive);
        out.put(&self.locks);
        out.put(&self.edges);
        out.put(&self.grants);
        out.put(&self.highest);
        out.put(&self.unknown);
        // Answers to operations of rules 2, which release 0.1.0 does not ask for.
        if !self.planned.is_empty() || !self.released.is_empty() || self.browsed.is_some() {
            out.put(&self.planned);
            out.put(&self.released);
        }
        if let Some(browsed) = &self.browsed {
            out.put(browsed);
        }
    }
    fn take(input: &mut Reader<'_>) -> DecodeResult<FanoutResult> {
        let mut result = FanoutResult {
            groups: input.take()?,
            renewed: input.take()?,
            asked: input.take()?,
            alive: input.take()?,
            locks: input.take()?,
            edges: input.take()?,
            grants: input.take()?,
            highest: input.take()?,
            unknown: input.take()?,
            ..FanoutResult::default()
        };
        if !input.is_empty() {
            result.planned = input.take()?;
            result.released = input.take()?;
        }
        if !input.is_empty() {
            result.browsed = Some(input.take()?);
        }
        Ok(result)
    }
}

/// Used instead of a birth: the lease is alive but was not extended, because Break or a policy
/// change took a hold from it. No lease has this birth. Release 0.1.0 treats it as an extended
/// lease, as it always did.
pub(super) const HOLD_TAKEN: u64 = 0;

impl FanoutResult {
    fn merge(&mut self, other: FanoutResult) {
        self.groups.join(&other.groups);
        self.renewed.extend(other.renewed);
        self.asked |= other.asked;
        self.alive |= other.alive;
        self.locks.extend(other.locks);
        self.edges.extend(other.edges);
        self.grants.extend(other.grants);
        self.highest = self.highest.max(other.highest);
        self.planned.extend(other.planned);
        self.released.extend(other.released);
        browse::merge(&mut self.browsed, other.browsed);
        self.unknown |= other.unknown;
        self.too_long |= other.too_long;
    }
}

/// One operation of a fan-out on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FanoutPart {
    fanout: u64,
    group: GroupId,
    step: FanoutStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FanoutStep {
    Act,
    /// The renewal of this number in [`LocalFanout::renewing`].
    Renew(u32),
}

/// The fan-outs of this node: those that its calls wait for, and those that it executes for itself
/// and for peers.
#[derive(Debug, Default)]
pub(crate) struct Fanouts {
    /// Fan-outs that calls wait for, by the number of the latest attempt.
    asked: BTreeMap<u64, PendingFanout>,
    /// Long answers that other nodes fetch, oldest last.
    kept: Vec<KeptAnswer>,
    // Never iterated where order matters.
    local: HashMap<u64, LocalFanout, FxBuildHasher>,
    /// Fan-outs in `local` that began since the last leadership check.
    begun: Vec<u64>,
    /// Questions about wait-for edges that are being read, oldest first.
    reading: VecDeque<EdgeRead>,
    /// What the present step may still read for them.
    edge_work: usize,
    confirming: HashMap<u64, LeadershipConfirmation, FxBuildHasher>,
}

/// A question about wait-for edges, to one confirmed group.
#[derive(Debug)]
struct EdgeRead {
    fanout: u64,
    group: GroupId,
    /// How many of its owners were read.
    done: usize,
}

/// A leadership check that all fan-outs of one step share.
#[derive(Debug)]
struct LeadershipConfirmation {
    fanouts: Vec<u64>,
    /// The number of groups without a result.
    open: usize,
}

/// A fan-out that a call waits for.
#[derive(Debug)]
struct PendingFanout {
    awaited: AwaitedPart,
    fanout: Fanout,
    scope: FanoutScope,
    /// Groups that must be confirmed.
    wanted: GroupSet,
    /// Nodes that have not answered, with the received part of a long answer.
    open: BTreeMap<NodeId, Vec<u8>>,
    begun: u64,
    /// When a node was last asked or heard from, and the timeout from then.
    since: u64,
    timeout: u64,
    expires: u64,
    found: FanoutResult,
}

/// A long answer that is fetched page by page.
#[derive(Debug)]
struct KeptAnswer {
    from: ReplicaId,
    id: u64,
    bytes: Bytes,
    until: u64,
}

/// A fan-out over the groups that this node leads.
#[derive(Debug)]
struct LocalFanout {
    /// The asking node in its incarnation, and its number of the fan-out.
    from: ReplicaId,
    id: u64,
    fanout: Fanout,
    expires: u64,
    /// Groups that are not confirmed yet.
    unvouched: GroupSet,
    /// The number of unfinished operations.
    open: usize,
    /// The number of wait-for edges found.
    edges: usize,
    /// Leases for which a renewal was started, indexed by the number of the step.
    renewing: Vec<(GroupId, Namespace)>,
    /// Leases in `renewing` without those whose renewal certainly had no effect.
    renewed: BTreeSet<(GroupId, Namespace)>,
    found: FanoutResult,
}

impl Node {
    /// Starts a fan-out for a call: [`CallEvent::FanoutResult`] when every group in scope is confirmed.
    pub(super) fn fanout(
        &mut self,
        cx: &mut CallContext,
        fanout: Fanout,
        scope: FanoutScope,
    ) -> u32 {
        let wanted = match &scope {
            FanoutScope::All | FanoutScope::Reachable => {
                GroupSet::below(self.config.cluster.group_count)
            }
            FanoutScope::Groups(groups) | FanoutScope::ReachableOf(groups) => groups.clone(),
        };
        let now = self.now_ms();
        let awaited = cx.new_part();
        self.ask_around(PendingFanout {
            awaited,
            fanout,
            scope,
            wanted,
            open: BTreeMap::new(),
            begun: now,
            since: now,
            timeout: REPLY_TIMEOUT_MS,
            expires: cx.deadline,
            found: FanoutResult::default(),
        });
        awaited.part
    }

    /// The groups that an owner-wide selection can be in.
    pub(super) fn scope_of(&mut self, selection: &Selection) -> FanoutScope {
        let Selection::Only(domains) = selection else {
            return FanoutScope::All;
        };
        let mut groups = GroupSet::default();
        for domain in domains {
            match domain {
                Domain::Handler(_) => return FanoutScope::All,
                Domain::Namespace(namespace) => {
                    groups.insert(self.group_of(namespace));
                }
            }
        }
        FanoutScope::Groups(groups)
    }

    /// Asks the known leaders of all unconfirmed groups, under a new number. Answers to earlier
    /// numbers no longer count.
    fn ask_around(&mut self, mut asked: PendingFanout) {
        let missing = asked.wanted.without(&asked.found.groups);
        let now_ms = self.now_ms();
        let left = asked.expires.saturating_sub(now_ms);
        let mut targets: BTreeMap<NodeId, GroupSet> = BTreeMap::new();
        for group in missing.iter() {
            if let Some(leader) = self.known_leader(group)
                && !self.peers.is_down(leader.node)
            {
                targets.entry(leader.node).or_default().insert(group);
            }
        }
        let id = self.coordinator.next_number();
        asked.open = targets.keys().map(|node| (*node, Vec::new())).collect();
        asked.since = now_ms;
        let fanout = asked.fanout.clone();
        self.coordinator.fanouts.asked.insert(id, asked);
        for (node, groups) in targets {
            if node == self.me.node {
                let me = self.me;
                self.fanout_here(me, id, fanout.clone(), groups, left);
            } else {
                self.frames().say(node, item::FANOUT, |out| {
                    out.number(id);
                    out.number(left);
                    out.byte(VERSION);
                    out.put(&fanout);
                    out.put(&groups);
                });
            }
        }
        self.fanout_complete(id);
    }

    pub(crate) fn receive_fanout(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let id = content.number()?;
        let left = content.number()?;
        let (fanout, groups) = from_bytes(content.rest())?;
        self.fanout_here(from, id, fanout, groups, left);
        Ok(())
    }

    pub(crate) fn receive_fanout_result(
        &mut self,
        from: NodeId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let incarnation = content.number()?;
        let id = content.number()?;
        let fanout_result = from_bytes(content.rest())?;
        if incarnation == u64::from(self.me.incarnation) {
            self.fanout_result(from, id, fanout_result);
        }
        Ok(())
    }

    /// Handles a page of a long answer: its offset, the length of the answer, and the bytes. Length
    /// zero means that the answer is too long.
    pub(crate) fn receive_fanout_page(
        &mut self,
        from: NodeId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let incarnation = content.number()?;
        let id = content.number()?;
        let (at, length) = (content.number()?, content.number()?);
        let page = content.rest();
        if incarnation != u64::from(self.me.incarnation) {
            return Ok(());
        }
        let now_ms = self.now_ms();
        let Some(asked) = self.coordinator.fanouts.asked.get_mut(&id) else {
            return Ok(());
        };
        let Some(got) = asked.open.get_mut(&from) else {
            return Ok(());
        };
        if length == 0 {
            let too_long = true;
            let fanout_result = FanoutResult {
                too_long,
                ..FanoutResult::default()
            };
            self.fanout_result(from, id, fanout_result);
            return Ok(());
        }
        // Pages arrive in order. After a lost page the node is asked again from the start.
        if at != got.len() as u64 || page.is_empty() {
            return Ok(());
        }
        asked.since = now_ms;
        got.extend_from_slice(page);
        let next = at + PAGES_UNDER_WAY * PAGE_BYTES as u64;
        if got.len() as u64 >= length {
            let fanout_result = from_bytes(got)?;
            self.fanout_result(from, id, fanout_result);
        } else if next < length {
            self.frames().say(from, item::FANOUT_NEXT, |out| {
                out.number(id);
                out.number(next);
            });
        }
        Ok(())
    }

    /// Handles a request of the asking node for the next page.
    pub(crate) fn receive_fanout_next(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let id = content.number()?;
        let at = content.number()?;
        content.finish()?;
        self.send_page(from, id, at);
        Ok(())
    }

    fn send_page(&mut self, from: ReplicaId, id: u64, at: u64) {
        let until = self.now_ms() + KEPT_MS;
        let kept = &mut self.coordinator.fanouts.kept;
        let place = kept.iter().position(|one| (one.from, one.id) == (from, id));
        let Some(place) = place else {
            return;
        };
        kept[place].until = until;
        let length = kept[place].bytes.len();
        let Some(start) = usize::try_from(at).ok().filter(|at| *at < length) else {
            return;
        };
        let end = length.min(start + PAGE_BYTES);
        let page = kept[place].bytes.slice(start..end);
        if end == length {
            kept.remove(place);
        }
        self.frames().say(from.node, item::FANOUT_PAGE, |out| {
            out.number(u64::from(from.incarnation));
            out.number(id);
            out.number(at);
            out.number(length as u64);
            out.raw(&page);
        });
    }

    fn fanout_result(&mut self, from: NodeId, id: u64, fanout_result: FanoutResult) {
        let Some(asked) = self.coordinator.fanouts.asked.get_mut(&id) else {
            return;
        };
        if asked.open.remove(&from).is_some() {
            asked.found.merge(fanout_result);
            self.fanout_complete(id);
        }
    }

    /// Delivers the result to the call, if it is complete.
    fn fanout_complete(&mut self, id: u64) {
        let Some(asked) = self.coordinator.fanouts.asked.get(&id) else {
            return;
        };
        let found_enough = asked.fanout.what == FanoutOp::Alive && asked.found.alive;
        let all = asked.wanted.is_subset(&asked.found.groups);
        let no_more = asked.open.is_empty()
            && (matches!(
                asked.scope,
                FanoutScope::Reachable | FanoutScope::ReachableOf(_)
            ) || asked.found.unknown);
        if (all || no_more || found_enough || asked.found.too_long)
            && let Some(asked) = self.coordinator.fanouts.asked.remove(&id)
        {
            self.coordinator.tell(
                asked.awaited,
                CallEvent::FanoutResult(Box::new(asked.found)),
            );
        }
    }

    /// Runs with every tick: asks again for missing groups, as long as the call waits.
    pub(crate) fn retry_fanouts(&mut self) {
        let now_ms = self.now_ms();
        let ids: Vec<u64> = self.coordinator.fanouts.asked.keys().copied().collect();
        for id in ids {
            let asked = self.coordinator.fanouts.asked.get(&id);
            if asked.is_some_and(|asked| {
                asked.expires <= now_ms || !self.coordinator.is_awaited(asked.awaited)
            }) {
                self.end_fanout(id);
            }
            let Some(asked) = self.coordinator.fanouts.asked.get_mut(&id) else {
                continue;
            };
            let is_slow = asked.since + asked.timeout <= now_ms && !asked.open.is_empty();
            if is_slow {
                // The outcome of operations on that node is unknown.
                asked.found.unknown |= asked.fanout.what.acts();
                // Answers to this attempt no longer count, so the next one gets more time.
                asked.timeout *= 2;
                let slow = std::mem::take(&mut asked.open);
                self.call_off(id, slow.into_keys());
                self.fanout_complete(id);
            }
            let fanouts = &mut self.coordinator.fanouts;
            if let Some(asked) = fanouts.asked.get_mut(&id)
                && asked.open.is_empty()
            {
                let renews = matches!(asked.fanout.what, FanoutOp::Renew(_));
                if renews && asked.begun + RENEWAL_REPLY_TIMEOUT_MS <= now_ms {
                    asked.found.unknown = true;
                    self.fanout_complete(id);
                } else if let Some(asked) = fanouts.asked.remove(&id) {
                    self.ask_around(asked);
                }
            }
        }
        let fanouts = &mut self.coordinator.fanouts;
        fanouts
            .local
            .retain(|_, local| local.expires + REPLY_TIMEOUT_MS > now_ms);
        fanouts.kept.retain(|kept| kept.until > now_ms);
    }

    /// Ends a fan-out whose call has ended, here and on the nodes that were asked.
    fn end_fanout(&mut self, id: u64) {
        let Some(asked) = self.coordinator.fanouts.asked.remove(&id) else {
            return;
        };
        self.call_off(id, asked.open.into_keys());
    }

    fn call_off(&mut self, id: u64, nodes: impl Iterator<Item = NodeId>) {
        let me = self.me;
        for node in nodes {
            if node == me.node {
                self.fanout_over(me, id);
            } else {
                self.frames()
                    .say(node, item::FANOUT_OVER, |out| out.number(id));
            }
        }
    }

    pub(crate) fn receive_fanout_over(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let id = content.number()?;
        content.finish()?;
        self.fanout_over(from, id);
        Ok(())
    }

    fn fanout_over(&mut self, from: ReplicaId, id: u64) {
        let fanouts = &mut self.coordinator.fanouts;
        fanouts
            .local
            .retain(|_, local| (local.from, local.id) != (from, id));
        fanouts
            .kept
            .retain(|kept| (kept.from, kept.id) != (from, id));
    }

    pub(crate) fn fanouts_peer_down(&mut self, node: NodeId) {
        let ids: Vec<u64> = self.coordinator.fanouts.asked.keys().copied().collect();
        for id in ids {
            let Some(asked) = self.coordinator.fanouts.asked.get_mut(&id) else {
                continue;
            };
            if asked.open.remove(&node).is_some() {
                asked.found.unknown |= asked.fanout.what.acts();
                self.fanout_complete(id);
            }
        }
    }

    /// Executes a fan-out on the groups that this node leads.
    fn fanout_here(
        &mut self,
        from: ReplicaId,
        id: u64,
        fanout: Fanout,
        groups: GroupSet,
        left_ms: u64,
    ) {
        let number = self.coordinator.next_number();
        let expires = self.now_ms().saturating_add(left_ms.min(3_600_000));
        let leads = |group: &GroupId| self.group_ref(*group).is_some_and(|group| group.leads());
        let led: GroupSet = groups.iter().filter(leads).collect();
        let renewed: Vec<GroupId> = match fanout.what {
            FanoutOp::Renew(_) => {
                let has = |group: &GroupId| self.has_owner(*group, &fanout.owner);
                led.iter().filter(has).collect()
            }
            _ => Vec::new(),
        };
        self.coordinator.fanouts.local.insert(
            number,
            LocalFanout {
                from,
                id,
                fanout,
                expires,
                unvouched: led,
                // One extra, so that the fan-out stays open until all parts have started.
                open: 1,
                edges: 0,
                renewing: Vec::new(),
                renewed: BTreeSet::new(),
                found: FanoutResult::default(),
            },
        );
        self.coordinator.fanouts.begun.push(number);
        for group in renewed {
            self.renew_here(number, group);
        }
        self.part_over(number);
    }

    /// Starts one leadership check per group for all fan-outs of this step.
    pub(crate) fn confirm_for_fanouts(&mut self) {
        let fanouts = &mut self.coordinator.fanouts;
        if fanouts.begun.is_empty() {
            return;
        }
        let begun = std::mem::take(&mut fanouts.begun);
        let mut groups = GroupSet::default();
        for local in begun.iter().filter_map(|fanout| fanouts.local.get(fanout)) {
            groups.join(&local.unvouched);
        }
        if groups.is_empty() {
            return;
        }
        let number = self.coordinator.next_number();
        self.coordinator.fanouts.confirming.insert(
            number,
            LeadershipConfirmation {
                fanouts: begun,
                open: groups.len(),
            },
        );
        for id in groups.iter() {
            if let Some(Some(group)) = self.groups.get_mut(id.0 as usize) {
                group.confirm_leadership(number, &mut self.turn);
                self.activate(id);
            } else {
                self.turn
                    .leadership_confirmed
                    .push((number, id, LeadershipCheck::No));
            }
        }
    }

    /// Handles results of leadership checks, all of the same number, for all fan-outs that share
    /// the check.
    pub(crate) fn leadership_confirmed(&mut self, told: &[(u64, GroupId, LeadershipCheck)]) {
        let number = told.first().map_or(0, |(number, ..)| *number);
        let Some(confirming) = self.coordinator.fanouts.confirming.get_mut(&number) else {
            for &(number, group, leadership_confirmed) in told {
                self.confirmed_for_stranger(number, group, leadership_confirmed);
            }
            return;
        };
        confirming.open -= told.len();
        let over = confirming.open == 0;
        let fanouts = std::mem::take(&mut confirming.fanouts);
        let all: GroupSet = told.iter().map(|(_, group, _)| *group).collect();
        let here = told
            .iter()
            .filter(|(.., told)| *told == LeadershipCheck::Yes);
        let here: GroupSet = here.map(|(_, group, _)| *group).collect();
        for &fanout in &fanouts {
            let Some(local) = self.coordinator.fanouts.local.get_mut(&fanout) else {
                continue;
            };
            let answered = local.unvouched.both(&all);
            if answered.is_empty() {
                continue;
            }
            local.unvouched = local.unvouched.without(&all);
            local.open += 1;
            self.look(fanout, &answered.both(&here));
            self.part_over(fanout);
        }
        if over {
            self.coordinator.fanouts.confirming.remove(&number);
        } else if let Some(confirming) = self.coordinator.fanouts.confirming.get_mut(&number) {
            confirming.fanouts = fanouts;
        }
    }

    fn act_here(&mut self, fanout: u64, group: GroupId, step: FanoutStep, op: GroupOp) {
        let Some(local) = self.coordinator.fanouts.local.get_mut(&fanout) else {
            return;
        };
        local.open += 1;
        let expires = local.expires;
        let part = FanoutPart {
            fanout,
            group,
            step,
        };
        self.submit_here(OpOrigin::Fanout(part), group, op, expires);
    }

    /// Starts renewals of the owner's leases in a group before leadership is confirmed. A renewal
    /// counts from its receipt, so it must join the lease's next ReadIndex round at once
    /// (leases.md, step 2).
    fn renew_here(&mut self, number: u64, group: GroupId) {
        let Some(local) = self.coordinator.fanouts.local.get(&number) else {
            return;
        };
        let FanoutOp::Renew(ttl) = local.fanout.what else {
            return;
        };
        let owner = local.fanout.owner.clone();
        let namespaces = self.leased_in(group, &owner, &local.fanout.selection);
        for namespace in namespaces {
            let Some(local) = self.coordinator.fanouts.local.get_mut(&number) else {
                return;
            };
            let lease = (group, namespace.clone());
            if !local.renewed.insert(lease.clone()) {
                continue;
            }
            let at = u32::try_from(local.renewing.len()).unwrap_or(u32::MAX);
            local.renewing.push(lease);
            let renew = RenewLease {
                namespace,
                owner: owner.clone(),
                ttl,
            };
            self.act_here(number, group, FanoutStep::Renew(at), GroupOp::Renew(renew));
        }
    }

    fn leased_in(&self, group: GroupId, owner: &OwnerId, selection: &Selection) -> Vec<Namespace> {
        let space = self
            .group_ref(group)
            .and_then(|group| group.machine.space());
        let Some(space) = space else {
            return Vec::new();
        };
        let mut namespaces = space.owner_namespaces(owner);
        namespaces.retain(|namespace| {
            selects(selection, namespace) && space.lease(namespace, owner).is_some()
        });
        namespaces
    }

    /// Handles the result of one operation of a local fan-out.
    pub(crate) fn fanout_part(&mut self, part: FanoutPart, answer: GroupOpResult) {
        self.acted(part, answer);
        self.part_over(part.fanout);
    }

    fn has_owner(&self, group: GroupId, owner: &OwnerId) -> bool {
        self.group_ref(group)
            .and_then(|group| group.machine.space())
            .is_some_and(|space| space.has_owner(owner))
    }

    /// Reads groups whose leadership was confirmed after the question: their state is the answer.
    fn look(&mut self, number: u64, groups: &GroupSet) {
        let Some(local) = self.coordinator.fanouts.local.get_mut(&number) else {
            return;
        };
        let (fanout, found) = (&local.fanout, &mut local.found);
        if let FanoutOp::Browse(query) = &fanout.what {
            let query = query.clone();
            return self.browse_groups(number, &query, groups);
        }
        let mut to_act = Vec::new();
        for id in groups.iter() {
            let Some(Some(group)) = self.groups.get(id.0 as usize) else {
                continue;
            };
            let (Some(space), Some(now)) = (
                group.machine.space(),
                group.lead().lease_time(self.turn.now_ms),
            ) else {
                continue;
            };
            if matches!(fanout.what, FanoutOp::WaitsFor { .. }) {
                to_act.push(id);
                continue;
            }
            if let FanoutOp::Released { holds, .. } = &fanout.what
                && space.holds_back(holds.iter().map(|hold| &hold.path))
            {
                continue;
            }
            found.groups.insert(id);
            if fanout.what.is_about_owner() && !space.has_owner(&fanout.owner) {
                continue;
            }
            match &fanout.what {
                // Also extends leases that were created since the receipt.
                FanoutOp::Renew(_) => to_act.push(id),
                FanoutOp::ReleaseAll(_) | FanoutOp::Ask => {
                    let namespaces = space.owner_namespaces(&fanout.owner);
                    if namespaces.iter().any(|one| selects(&fanout.selection, one)) {
                        to_act.push(id);
                    }
                }
                FanoutOp::Alive => {
                    found.alive |= space.owner_alive(&fanout.owner, &fanout.selection, now);
                }
                FanoutOp::List => {
                    let locks = space.owner_locks(&fanout.owner, &fanout.selection);
                    found.alive |= locks.alive;
                    found.locks.extend(locks.locks);
                }
                // Read in slices: see `act`; and above.
                FanoutOp::WaitsFor { .. } | FanoutOp::Browse(_) => {}
                FanoutOp::Grants => {
                    let mut grants = space.standing_grants(&fanout.owner, now);
                    grants.retain(|event| {
                        event.namespace.as_ref().is_none_or(|namespace| {
                            let lease = space.lease(namespace, &fanout.owner);
                            !lease.is_some_and(|lease| group.lead().renewed_since_set(lease.number))
                        })
                    });
                    found.grants.extend(grants);
                }
                FanoutOp::Plan => {
                    let namespaces = space.owner_namespaces(&fanout.owner);
                    if namespaces.iter().any(|one| selects(&fanout.selection, one)) {
                        // Rules 1 have no order number that could name the present claims.
                        let until = match space.rules() {
                            0..2 => ReleaseAll::EVERYTHING,
                            _ => space.order(),
                        };
                        found.planned.push((id.0, until));
                    }
                }
                FanoutOp::Released {
                    key,
                    fingerprint,
                    holds,
                } => {
                    let was_released =
                        |hold: &&Hold| space.was_released(key, *fingerprint, hold, now);
                    let released = holds.iter().filter(was_released);
                    found.released.extend(released.cloned());
                }
                FanoutOp::Highest => {
                    found.highest = found.highest.max(space.highest_minted());
                }
            }
        }
        for id in to_act {
            self.act(number, id);
        }
    }

    /// Submits the operation of a fan-out to a group in which the owner has something.
    fn act(&mut self, number: u64, id: GroupId) {
        let Some(local) = self.coordinator.fanouts.local.get(&number) else {
            return;
        };
        let space = self.group_ref(id).and_then(|group| group.machine.space());
        // Names only what exists now: claims acquired before the entry is applied stay.
        let until = space.map(Space::order);
        let fanout = &local.fanout;
        let command = match &fanout.what {
            FanoutOp::Renew(_) => return self.renew_here(number, id),
            FanoutOp::WaitsFor { .. } => return self.begin_edges(number, id),
            FanoutOp::ReleaseAll(cause) => Command::ReleaseAll(ReleaseAll {
                owner: fanout.owner.clone(),
                selection: fanout.selection.clone(),
                cause: *cause,
                until,
            }),
            FanoutOp::Ask => Command::Ask(AskRelease {
                owner: fanout.owner.clone(),
            }),
            FanoutOp::Alive
            | FanoutOp::List
            | FanoutOp::Grants
            | FanoutOp::Highest
            | FanoutOp::Plan
            | FanoutOp::Released { .. }
            | FanoutOp::Browse(_) => return,
        };
        let op = GroupOp::Command(command);
        self.act_here(number, id, FanoutStep::Act, op);
    }

    /// Adds what was found in a confirmed group to a local fan-out. Returns what it has found so
    /// far.
    pub(super) fn add_browsed(
        &mut self,
        number: u64,
        group: GroupId,
        result: BrowseResult,
    ) -> Option<&mut BrowseResult> {
        let local = self.coordinator.fanouts.local.get_mut(&number)?;
        local.found.groups.insert(group);
        browse::merge(&mut local.found.browsed, Some(Box::new(result)));
        local.found.browsed.as_deref_mut()
    }

    fn begin_edges(&mut self, fanout: u64, group: GroupId) {
        let fanouts = &mut self.coordinator.fanouts;
        if let Some(local) = fanouts.local.get_mut(&fanout) {
            local.open += 1;
            fanouts.reading.push_back(EdgeRead {
                fanout,
                group,
                done: 0,
            });
        }
    }

    /// Starts a step: it may read so many edges.
    pub(crate) fn allow_edges(&mut self) {
        self.coordinator.fanouts.edge_work = EDGE_WORK;
    }

    /// Whether edges are left to read in the next step.
    pub(crate) fn has_edges_to_read(&self) -> bool {
        !self.coordinator.fanouts.reading.is_empty()
    }

    /// Reads wait-for edges, as many as this step may. The groups were confirmed before, and a later
    /// state contains everything that was true at that moment.
    pub(crate) fn read_edges(&mut self) {
        while self.coordinator.fanouts.edge_work > 0 {
            let Some(mut read) = self.coordinator.fanouts.reading.pop_front() else {
                return;
            };
            if self.read_some_edges(&mut read) {
                self.part_over(read.fanout);
            } else {
                self.coordinator.fanouts.reading.push_front(read);
            }
        }
    }

    /// Reads the edges of the next owners; returns whether the group is done.
    fn read_some_edges(&mut self, read: &mut EdgeRead) -> bool {
        let fanouts = &mut self.coordinator.fanouts;
        // The call has ended: nothing more is read for it.
        let Some(local) = fanouts.local.get_mut(&read.fanout) else {
            return true;
        };
        let FanoutOp::WaitsFor { owners } = &local.fanout.what else {
            return true;
        };
        let group = self.groups.get(read.group.0 as usize);
        let group = group.and_then(|group| group.as_ref());
        let space = group.and_then(|group| {
            let now = group.lead().lease_time(self.turn.now_ms)?;
            Some((group.machine.space()?, now))
        });
        // Not led any more: the group is asked again.
        let Some((space, now)) = space else {
            return true;
        };
        let detail = if owners.len() > FEW_OWNERS {
            EdgeDetail::Reachable
        } else {
            EdgeDetail::All
        };
        let some = owners[read.done..].iter().take(EDGE_OWNERS);
        read.done += some.len();
        let mut work = some.len();
        let known: Vec<OwnerId> = some
            .filter(|owner| space.has_owner(owner))
            .cloned()
            .collect();
        let most = EDGES.saturating_sub(local.edges);
        for (owner, waits) in space.waits_of(&known, now, detail, most) {
            work += EDGE_COST * (1 + waits.owners.len());
            local.edges += waits.owners.len();
            if !waits.owners.is_empty() {
                local.found.edges.push((owner, waits));
            }
        }
        fanouts.edge_work = fanouts.edge_work.saturating_sub(work);
        if read.done < owners.len() && local.edges < EDGES {
            return false;
        }
        local.found.groups.insert(read.group);
        true
    }

    fn acted(&mut self, part: FanoutPart, answer: GroupOpResult) {
        let Some(local) = self.coordinator.fanouts.local.get_mut(&part.fanout) else {
            return;
        };
        match answer {
            GroupOpResult::Renewed(Ok(renewed)) => {
                local.found.asked |= renewed.asked;
                if let FanoutStep::Renew(at) = part.step
                    && let Some((_, namespace)) = local.renewing.get(at as usize)
                {
                    let lease = (namespace.clone(), renewed.born);
                    local.found.renewed.push(lease);
                }
            }
            // The lease ended in between: for an owner-wide renewal that is no loss (R91).
            GroupOpResult::Renewed(Err(Missing::Alive | Missing::OwnerSet)) => {}
            // The lease exists but lost a hold: the whole renewal is answered as lost.
            GroupOpResult::Renewed(Err(_)) => {
                if let FanoutStep::Renew(at) = part.step
                    && let Some((_, namespace)) = local.renewing.get(at as usize)
                {
                    let lease = (namespace.clone(), HOLD_TAKEN);
                    local.found.renewed.push(lease);
                }
            }
            GroupOpResult::Applied {
                outcome: Outcome::Touched(_),
                ..
            } => {}
            GroupOpResult::NotHere { .. } | GroupOpResult::Busy => {
                // No effect: the group is asked again. If it is not confirmed yet, this lease is
                // renewed when it is.
                if let FanoutStep::Renew(at) = part.step
                    && let Some(lease) = local.renewing.get(at as usize)
                {
                    local.renewed.remove(lease);
                }
                local.found.groups.remove(part.group);
            }
            _ => local.found.unknown = true,
        }
    }

    fn part_over(&mut self, fanout: u64) {
        let Some(local) = self.coordinator.fanouts.local.get_mut(&fanout) else {
            return;
        };
        local.open -= 1;
        if local.open > 0 || !local.unvouched.is_empty() {
            return;
        }
        let Some(local) = self.coordinator.fanouts.local.remove(&fanout) else {
            return;
        };
        if local.from == self.me {
            self.fanout_result(local.from.node, local.id, local.found);
            return;
        }
        let (from, id) = (local.from, local.id);
        let fanout_result = to_bytes(&local.found);
        if fanout_result.len() <= PAGE_BYTES {
            self.frames().say(from.node, item::FANOUT_RESULT, |out| {
                out.number(u64::from(from.incarnation));
                out.number(id);
                out.raw(&fanout_result);
            });
        } else if fanout_result.len() <= LONGEST_ANSWER_BYTES {
            let until = self.now_ms() + KEPT_MS;
            let kept = &mut self.coordinator.fanouts.kept;
            kept.insert(
                0,
                KeptAnswer {
                    from,
                    id,
                    bytes: fanout_result.into(),
                    until,
                },
            );
            kept.truncate(KEPT_ANSWERS);
            for page in 0..PAGES_UNDER_WAY {
                self.send_page(from, id, page * PAGE_BYTES as u64);
            }
        } else {
            self.frames().say(from.node, item::FANOUT_PAGE, |out| {
                for number in [u64::from(from.incarnation), id, 0, 0] {
                    out.number(number);
                }
            });
        }
    }
}

/// Whether a selection includes this namespace (R126–R128).
pub(super) fn selects(selection: &Selection, namespace: &Namespace) -> bool {
    match selection {
        Selection::All => true,
        Selection::Only(domains) => domains.iter().any(|domain| match domain {
            Domain::Namespace(one) => one == namespace,
            Domain::Handler(handler) => handler.as_str() == namespace.handler(),
        }),
    }
}
