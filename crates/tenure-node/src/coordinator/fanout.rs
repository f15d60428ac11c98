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

use std::collections::{BTreeMap, BTreeSet};

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
use tenure_core::query::{HeldLock, WaitsFor};
use tenure_core::space::Space;
use tenure_core::value::{Fence, Key, OwnerId, Ttl};

use super::forward::OpOrigin;
use super::{AwaitedPart, CallContext, CallEvent};
use crate::codec::{DecodeResult, Reader};
use crate::coordinator::peer_codec;
use crate::group::LeadershipCheck;
use crate::group_op::{GroupOp, GroupOpResult};
use crate::group_set::GroupSet;
use crate::node::Node;
use crate::node::frames_item as item;
use crate::{GroupId, NodeId, ReplicaId};

/// A node that has not answered after this is not waited for any longer; the next time it gets twice as long.
const REPLY_TIMEOUT_MS: u64 = 2_000;

/// A renewal that cannot reach a group for so long fails: the leases in all others are extended by then, and
/// a caller that hears of it may name its namespaces, which makes it independent of the others (R130).
const RENEWAL_REPLY_TIMEOUT_MS: u64 = 2 * REPLY_TIMEOUT_MS;
/// An answer that is longer is sent in pages of this size.
const PAGE_BYTES: usize = 1 << 20;
/// So many pages are under way at a time.
const PAGES_UNDER_WAY: u64 = 4;
/// An answer that is longer than this is refused.
const LONGEST_ANSWER_BYTES: usize = 1 << 28;
/// So many answers wait to be fetched on one node; the oldest makes room for the next.
const KEPT_ANSWERS: usize = 8;
/// An answer of which no page is fetched for so long is forgotten.
const KEPT_MS: u64 = 10_000;

/// What is asked of every group in scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fanout {
    pub(crate) owner: OwnerId,
    pub(crate) selection: Selection,
    pub(crate) what: FanoutOp,
}

/// What a fan-out does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FanoutOp {
    /// Extends every lease of the owner (R91: Renew without domains).
    Renew(Ttl),
    /// Gives everything back (R100 ReleaseAll drops everything, R101 ForceRelease always notifies
    /// the victim).
    ReleaseAll(ReleaseCause),
    /// Sets the marker of R116 (revoke marker).
    Ask,
    /// R118 (IsOwnerAlive includes waiters).
    Alive,
    /// R142 (ListOwnerLocks lists live holds).
    List,
    /// Whom these owners wait for (E5: refuse on deadlock).
    WaitsFor { owners: Vec<OwnerId> },
    /// GRANTs that a new subscriber must still be told (R122: events are always delivered).
    Grants,
    /// The highest fence minted (R75: IncrFencingToken always grows).
    Highest,
    /// In which groups the owner has something, and up to where their orders go. Since rules 2.
    Plan,
    /// Which of these holds were released under this key, in any namespace. A group that has frozen one of
    /// the paths for a change cannot say: until the change is over there, it takes releases by the routes before
    /// it. Since rules 2.
    Released {
        key: Key,
        fingerprint: u128,
        holds: Vec<Hold>,
    },
}

impl FanoutOp {
    /// Whether a space in which the fan-out's owner has nothing has nothing to say.
    fn is_about_owner(&self) -> bool {
        match self {
            FanoutOp::Renew(_)
            | FanoutOp::ReleaseAll(_)
            | FanoutOp::Ask
            | FanoutOp::Alive
            | FanoutOp::List
            | FanoutOp::Plan
            | FanoutOp::Grants => true,
            FanoutOp::WaitsFor { .. } | FanoutOp::Highest | FanoutOp::Released { .. } => false,
        }
    }
}

impl FanoutOp {
    /// Whether it acts, so that asking a node a second time could act a second time. A renewal does not
    /// count: it never shortens a lease, so a second one is harmless.
    fn acts(&self) -> bool {
        matches!(self, FanoutOp::ReleaseAll(_) | FanoutOp::Ask)
    }
}

impl Fanout {
    /// A fan-out over all namespaces.
    pub(crate) fn about(owner: OwnerId, what: FanoutOp) -> Fanout {
        Fanout {
            owner,
            selection: Selection::All,
            what,
        }
    }
}

/// Which groups a fan-out must reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FanoutScope {
    All,
    /// As many as can be asked now (R75).
    Reachable,
    /// Those of these groups that can be asked now.
    ReachableOf(GroupSet),
    Groups(GroupSet),
}

/// What a fan-out found, on one node or on all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FanoutResult {
    /// Groups that are confirmed.
    pub(crate) groups: GroupSet,
    /// Leases that were extended, by their birth, and whether somebody asked.
    pub(crate) renewed: Vec<(Namespace, u64)>,
    pub(crate) asked: bool,
    pub(crate) alive: bool,
    pub(crate) locks: Vec<HeldLock>,
    pub(crate) edges: Vec<(OwnerId, WaitsFor)>,
    pub(crate) grants: Vec<Event>,
    pub(crate) highest: Option<Fence>,
    /// Groups in which the owner has something, and up to where their orders go.
    pub(crate) planned: Vec<(u32, u64)>,
    /// Holds that were released under the key.
    pub(crate) released: Vec<Hold>,
    /// A part of it may have happened or not.
    pub(crate) unknown: bool,
    /// The answer of a node is too long to be sent. Never sent itself.
    pub(crate) too_long: bool,
}

/// In the place of a birth: the lease lives, but a break or a policy change took a hold from it, and it was
/// not extended. No lease has this birth. 0.1.0 takes it for an extended lease, as it did before.
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
        self.unknown |= other.unknown;
        self.too_long |= other.too_long;
    }
}

/// One step of a fan-out on this node.
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

/// The fan-outs of this node: those that its calls wait for, and those that it carries out.
#[derive(Debug, Default)]
pub(crate) struct Fanouts {
    /// By the number under which nodes were asked last.
    asked: BTreeMap<u64, PendingFanout>,
    /// Long answers that other nodes fetch, by who asked and its number, oldest last.
    kept: Vec<KeptAnswer>,
    // Never iterated where order matters.
    local: HashMap<u64, LocalFanout, FxBuildHasher>,
    /// Those of `local` that began since groups were last asked to be confirmed.
    begun: Vec<u64>,
    confirming: HashMap<u64, LeadershipConfirmation, FxBuildHasher>,
}

/// Groups are being confirmed, for all fan-outs of one turn at once.
#[derive(Debug)]
struct LeadershipConfirmation {
    fanouts: Vec<u64>,
    /// How many groups have not answered.
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
    /// Nodes that have not answered, with what has come of a long answer.
    open: BTreeMap<NodeId, Vec<u8>>,
    begun: u64,
    /// When a node was last asked or heard, and how long it may take from then.
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

/// A fan-out over the groups that are led here.
#[derive(Debug)]
struct LocalFanout {
    /// Who asked: a node in one of its incarnations, and its number for it.
    from: ReplicaId,
    id: u64,
    fanout: Fanout,
    expires: u64,
    /// Groups that are not confirmed yet.
    unvouched: GroupSet,
    /// How many operations are under way.
    open: usize,
    /// Leases for which a renewal was begun, by the number of its step.
    renewing: Vec<(GroupId, Namespace)>,
    /// Those of them that are under way or done: all but those that were certainly not done.
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

    /// Asks the nodes that may lead what is not confirmed yet, under a new number: answers to an earlier
    /// one do not count any more.
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
                    out.raw(&peer_codec::encode_fanout(&fanout, &groups));
                });
            }
        }
        self.fanout_complete(id);
    }

    pub(crate) fn receive_fanout(
        &mut self,
        from: ReplicaId,
        mut content: Reader,
    ) -> DecodeResult<()> {
        let id = content.number()?;
        let left = content.number()?;
        let (fanout, groups) = peer_codec::decode_fanout(&content.rest())?;
        self.fanout_here(from, id, fanout, groups, left);
        Ok(())
    }

    pub(crate) fn receive_fanout_result(
        &mut self,
        from: NodeId,
        mut content: Reader,
    ) -> DecodeResult<()> {
        let incarnation = content.number()?;
        let id = content.number()?;
        let fanout_result = peer_codec::decode_fanout_result(&content.rest())?;
        if incarnation == u64::from(self.me.incarnation) {
            self.fanout_result(from, id, fanout_result);
        }
        Ok(())
    }

    /// A page of a long answer: where it begins, how long the answer is, and its bytes. An answer of no
    /// length at all is one that is too long.
    pub(crate) fn receive_fanout_page(
        &mut self,
        from: NodeId,
        mut content: Reader,
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
        // Pages come in order. One that was lost is not waited for: the node is asked anew.
        if at != got.len() as u64 || page.is_empty() {
            return Ok(());
        }
        asked.since = now_ms;
        got.extend_from_slice(&page);
        let next = at + PAGES_UNDER_WAY * PAGE_BYTES as u64;
        if got.len() as u64 >= length {
            let fanout_result = peer_codec::decode_fanout_result(got)?;
            self.fanout_result(from, id, fanout_result);
        } else if next < length {
            self.frames().say(from, item::FANOUT_NEXT, |out| {
                out.number(id);
                out.number(next);
            });
        }
        Ok(())
    }

    /// The node that asked wants a page of its answer.
    pub(crate) fn receive_fanout_next(
        &mut self,
        from: ReplicaId,
        mut content: Reader,
    ) -> DecodeResult<()> {
        let id = content.number()?;
        let at = content.number()?;
        content.end()?;
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

    /// Tells the call, if everything is known that it needs.
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

    /// With every tick: ask again for what is missing, as long as the call wants it.
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
                // What is under way there may have happened or not.
                asked.found.unknown |= asked.fanout.what.acts();
                // An answer to this question counts no more, so the next one gets more time.
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

    /// Nobody waits for this fan-out any more: the nodes that were asked need not go on with it.
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
        mut content: Reader,
    ) -> DecodeResult<()> {
        let id = content.number()?;
        content.end()?;
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

    /// Carries a fan-out out on the groups that are led here.
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
                // Kept open until all parts have begun.
                open: 1,
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

    /// Asks for all groups that the fan-outs of this turn are about to be confirmed, each once.
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

    /// Groups are confirmed, or cannot be here: all fan-outs that asked together are told. All that
    /// is told here belongs to one number.
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

    /// A renewal counts from its receipt: it joins the lease's next round at once, wherever the
    /// owner is seen to have one (leases.md, step 2).
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

    /// A part of a fan-out on this node has ended.
    pub(crate) fn fanout_part(&mut self, part: FanoutPart, answer: GroupOpResult) {
        self.acted(part, answer);
        self.part_over(part.fanout);
    }

    fn has_owner(&self, group: GroupId, owner: &OwnerId) -> bool {
        self.group_ref(group)
            .and_then(|group| group.machine.space())
            .is_some_and(|space| space.has_owner(owner))
    }

    /// These groups are led here, confirmed after the question: now their state is the answer.
    fn look(&mut self, number: u64, groups: &GroupSet) {
        let Some(local) = self.coordinator.fanouts.local.get_mut(&number) else {
            return;
        };
        let (fanout, found) = (&local.fanout, &mut local.found);
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
                // Whatever was acquired since the receipt is extended too.
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
                FanoutOp::WaitsFor { owners } => {
                    for owner in owners {
                        let waits = space.waits_for(owner, now).into_iter();
                        let blocked = waits.filter(|waits| !waits.owners.is_empty());
                        found
                            .edges
                            .extend(blocked.map(|waits| (owner.clone(), waits)));
                    }
                }
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
                        // Under rules 1 there is no order that could name what is there.
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

    /// Does what a fan-out is for in a group in which its owner has something.
    fn act(&mut self, number: u64, id: GroupId) {
        let Some(local) = self.coordinator.fanouts.local.get(&number) else {
            return;
        };
        let space = self.group_ref(id).and_then(|group| group.machine.space());
        // Names what is there now: whatever is acquired before the entry is applied stays.
        let until = space.map(Space::order);
        let fanout = &local.fanout;
        let command = match &fanout.what {
            FanoutOp::Renew(_) => return self.renew_here(number, id),
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
            | FanoutOp::WaitsFor { .. }
            | FanoutOp::Grants
            | FanoutOp::Highest
            | FanoutOp::Plan
            | FanoutOp::Released { .. } => return,
        };
        let op = GroupOp::Command(command);
        self.act_here(number, id, FanoutStep::Act, op);
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
            // Gone in between: for an owner-wide renewal that is no loss (R91).
            GroupOpResult::Renewed(Err(Missing::Alive | Missing::OwnerSet)) => {}
            // The lease is there and not what its owner takes it for: the whole renewal is lost.
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
                // Certainly not done: the group is asked for again. If it is not confirmed yet, this lease
                // is renewed when it is.
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
        let fanout_result = peer_codec::encode_fanout_result(&local.found);
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
                    bytes: fanout_result,
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

/// Whether a selection means this namespace (R126–R128).
pub(super) fn selects(selection: &Selection, namespace: &Namespace) -> bool {
    match selection {
        Selection::All => true,
        Selection::Only(domains) => domains.iter().any(|domain| match domain {
            Domain::Namespace(one) => one == namespace,
            Domain::Handler(handler) => handler.as_str() == namespace.handler(),
        }),
    }
}
