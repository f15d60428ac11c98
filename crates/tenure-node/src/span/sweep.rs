//! Owner-wide questions: one message a node, every group vouched for (R126–R130).
//!
//! ```text
//!   call ─▶ Sweep to every node ─▶ each group led there: one round ─▶ looked at ─▶ Swept
//!            └──────── groups that nobody vouched for are asked for again ────────┘
//! ```
//!
//! "Nothing there" is a claim about all groups, so each one must be vouched for by a leader that
//! was confirmed after the question. All questions of a turn share one round of each group.
//!
//! Every time nodes are asked, they are asked under a new number, and an answer counts only under the
//! number of the last time: what a group says is taken into account once. A sweep ends with the call that
//! wants it, here and on the nodes that were asked.
//!
//! A long answer is sent in pages ([`PAGE_BYTES`]). The asking node fetches all but the first few.

use std::collections::BTreeMap;

use bytes::Bytes;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tenure_core::command::{
    AskRelease, Command, Domain, ReleaseAll, ReleaseCause, RenewLease, Selection,
};
use tenure_core::event::Event;
use tenure_core::outcome::Outcome;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Missing;
use tenure_core::query::{HeldLock, WaitsFor};
use tenure_core::space::Space;
use tenure_core::value::{Fence, Key, OwnerId, Ttl};

use super::forward::Origin;
use super::{Awaited, Context, Happened};
use crate::codec::{Read, Reader};
use crate::group::Vouched;
use crate::groups::GroupSet;
use crate::node::Node;
use crate::node::frames_item as item;
use crate::op::{Op, OpAnswer};
use crate::span::wire;
use crate::{GroupId, Member, NodeId};

/// A node that has not answered after this is not waited for any longer; the next time it gets twice as long.
const PATIENCE_MS: u64 = 2_000;

/// A renewal that cannot reach a group for so long fails: the leases in all others are extended by then, and
/// a caller that hears of it may name its namespaces, which makes it independent of the others (R130).
const RENEWAL_PATIENCE_MS: u64 = 2 * PATIENCE_MS;
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
pub(crate) struct Sweep {
    pub(crate) owner: OwnerId,
    pub(crate) selection: Selection,
    pub(crate) what: What,
}

/// What a sweep does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Extends every lease of the owner (R91).
    Renew(Ttl),
    /// Gives everything back (R100, R101).
    ReleaseAll(ReleaseCause),
    /// Sets the marker of R116.
    Ask,
    /// R118.
    Alive,
    /// R142.
    List,
    /// Whom these owners wait for (E5).
    WaitsFor { owners: Vec<OwnerId> },
    /// GRANTs that a new subscriber must still be told (R122).
    Grants,
    /// The highest fence minted (R75).
    Highest,
    /// In which groups the owner has something, and up to where their orders go. Since rules 2.
    Plan,
    /// Whether a release under this key was applied in whatever namespace before a change of routes moved
    /// these paths. A group that has frozen one of them for a change cannot say: until the change is over
    /// there, it takes releases by the routes before it. Since rules 2.
    Released {
        key: Key,
        fingerprint: u128,
        paths: Vec<Path>,
    },
}

impl What {
    /// Whether a space in which the sweep's owner has nothing has nothing to say.
    fn is_about_owner(&self) -> bool {
        match self {
            What::Renew(_)
            | What::ReleaseAll(_)
            | What::Ask
            | What::Alive
            | What::List
            | What::Plan
            | What::Grants => true,
            What::WaitsFor { .. } | What::Highest | What::Released { .. } => false,
        }
    }
}

impl What {
    /// Whether it acts, so that asking a node a second time could act a second time. A renewal does not
    /// count: it never shortens a lease, so a second one is harmless.
    fn acts(&self) -> bool {
        matches!(self, What::ReleaseAll(_) | What::Ask)
    }
}

impl Sweep {
    /// A sweep over all namespaces.
    pub(crate) fn about(owner: OwnerId, what: What) -> Sweep {
        Sweep {
            owner,
            selection: Selection::All,
            what,
        }
    }
}

/// Which groups a sweep must reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// As many as can be asked now (R75).
    Reachable,
    /// Those of these groups that can be asked now.
    ReachableOf(GroupSet),
    Groups(GroupSet),
}

/// What a sweep found, on one node or on all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Groups that are vouched for.
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
    /// Paths that were released before they were moved.
    pub(crate) released: Vec<Path>,
    /// A part of it may have happened or not.
    pub(crate) unknown: bool,
    /// The answer of a node is too long to be sent. Never sent itself.
    pub(crate) too_long: bool,
}

/// In the place of a birth: the lease lives, but a break or a policy change took a hold from it, and it was
/// not extended. No lease has this birth. 0.1.0 takes it for an extended lease, as it did before.
pub(super) const HOLD_TAKEN: u64 = 0;

impl Swept {
    fn merge(&mut self, other: Swept) {
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

/// One step of a sweep on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    sweep: u64,
    group: GroupId,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Act,
    /// The renewal of this number in [`Local::renewing`].
    Renew(u32),
}

/// The sweeps of this node: those that its calls wait for, and those that it carries out.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    /// By the number under which nodes were asked last.
    asked: BTreeMap<u64, Asked>,
    /// Long answers that other nodes fetch, by who asked and its number, oldest last.
    kept: Vec<Kept>,
    // Never iterated where order matters.
    local: HashMap<u64, Local, FxBuildHasher>,
    /// Those of `local` that began since groups were last asked to be vouched for.
    begun: Vec<u64>,
    vouching: HashMap<u64, Vouching, FxBuildHasher>,
}

/// Groups are being vouched for, for all sweeps of one turn at once.
#[derive(Debug)]
struct Vouching {
    sweeps: Vec<u64>,
    /// How many groups have not answered.
    open: usize,
}

/// A sweep that a call waits for.
#[derive(Debug)]
struct Asked {
    awaited: Awaited,
    sweep: Sweep,
    scope: Scope,
    /// Groups that must be vouched for.
    wanted: GroupSet,
    /// Nodes that have not answered, with what has come of a long answer.
    open: BTreeMap<NodeId, Vec<u8>>,
    begun: u64,
    /// When a node was last asked or heard, and how long it may take from then.
    since: u64,
    patience: u64,
    expires: u64,
    found: Swept,
}

/// A long answer that is fetched page by page.
#[derive(Debug)]
struct Kept {
    from: Member,
    id: u64,
    bytes: Bytes,
    until: u64,
}

/// A sweep over the groups that are led here.
#[derive(Debug)]
struct Local {
    /// Who asked: a node in one of its lives, and its number for it.
    from: Member,
    id: u64,
    sweep: Sweep,
    expires: u64,
    /// Groups that are not vouched for yet.
    unvouched: GroupSet,
    /// How many operations are under way.
    open: usize,
    /// Leases for which a renewal is under way or done; `None` where one was certainly not done.
    renewing: Vec<Option<(GroupId, Namespace)>>,
    found: Swept,
}

impl Node {
    /// Starts a sweep for a call: [`Happened::Swept`] when every group in scope is vouched for.
    pub(super) fn sweep(&mut self, cx: &mut Context, sweep: Sweep, scope: Scope) -> u32 {
        let wanted = match &scope {
            Scope::All | Scope::Reachable => GroupSet::below(self.config.cluster.group_count),
            Scope::Groups(groups) | Scope::ReachableOf(groups) => groups.clone(),
        };
        let now = self.reading();
        let awaited = cx.new_part();
        self.ask_around(Asked {
            awaited,
            sweep,
            scope,
            wanted,
            open: BTreeMap::new(),
            begun: now,
            since: now,
            patience: PATIENCE_MS,
            expires: cx.deadline,
            found: Swept::default(),
        });
        awaited.part
    }

    /// The groups that an owner-wide selection can be in.
    pub(super) fn scope_of(&mut self, selection: &Selection) -> Scope {
        let Selection::Only(domains) = selection else {
            return Scope::All;
        };
        let mut groups = GroupSet::default();
        for domain in domains {
            match domain {
                Domain::Handler(_) => return Scope::All,
                Domain::Namespace(namespace) => {
                    groups.insert(self.group_of(namespace));
                }
            }
        }
        Scope::Groups(groups)
    }

    /// Asks the nodes that may lead what is not vouched for yet, under a new number: answers to an earlier
    /// one do not count any more.
    fn ask_around(&mut self, mut asked: Asked) {
        let missing = asked.wanted.without(&asked.found.groups);
        let reading = self.reading();
        let left = asked.expires.saturating_sub(reading);
        let mut targets: BTreeMap<NodeId, GroupSet> = BTreeMap::new();
        for group in missing.iter() {
            if let Some(leader) = self.known_leader(group)
                && !self.peers.is_down(leader.node)
            {
                targets.entry(leader.node).or_default().insert(group);
            }
        }
        let id = self.span.next_number();
        asked.open = targets.keys().map(|node| (*node, Vec::new())).collect();
        asked.since = reading;
        let sweep = asked.sweep.clone();
        self.span.sweeps.asked.insert(id, asked);
        for (node, groups) in targets {
            if node == self.me.node {
                let me = self.me;
                self.sweep_here(me, id, sweep.clone(), groups, left);
            } else {
                self.frames().say(node, item::SWEEP, |out| {
                    out.number(id);
                    out.number(left);
                    out.raw(&wire::encode_sweep(&sweep, &groups));
                });
            }
        }
        self.sweep_complete(id);
    }

    pub(crate) fn receive_sweep(&mut self, from: Member, mut content: Reader) -> Read<()> {
        let id = content.number()?;
        let left = content.number()?;
        let (sweep, groups) = wire::decode_sweep(&content.rest())?;
        self.sweep_here(from, id, sweep, groups, left);
        Ok(())
    }

    pub(crate) fn receive_swept(&mut self, from: NodeId, mut content: Reader) -> Read<()> {
        let life = content.number()?;
        let id = content.number()?;
        let swept = wire::decode_swept(&content.rest())?;
        if life == u64::from(self.me.life) {
            self.swept(from, id, swept);
        }
        Ok(())
    }

    /// A page of a long answer: where it begins, how long the answer is, and its bytes. An answer of no
    /// length at all is one that is too long.
    pub(crate) fn receive_swept_page(&mut self, from: NodeId, mut content: Reader) -> Read<()> {
        let life = content.number()?;
        let id = content.number()?;
        let (at, length) = (content.number()?, content.number()?);
        let page = content.rest();
        if life != u64::from(self.me.life) {
            return Ok(());
        }
        let reading = self.reading();
        let Some(asked) = self.span.sweeps.asked.get_mut(&id) else {
            return Ok(());
        };
        let Some(got) = asked.open.get_mut(&from) else {
            return Ok(());
        };
        if length == 0 {
            let too_long = true;
            let swept = Swept {
                too_long,
                ..Swept::default()
            };
            self.swept(from, id, swept);
            return Ok(());
        }
        // Pages come in order. One that was lost is not waited for: the node is asked anew.
        if at != got.len() as u64 || page.is_empty() {
            return Ok(());
        }
        asked.since = reading;
        got.extend_from_slice(&page);
        let next = at + PAGES_UNDER_WAY * PAGE_BYTES as u64;
        if got.len() as u64 >= length {
            let swept = wire::decode_swept(got)?;
            self.swept(from, id, swept);
        } else if next < length {
            self.frames().say(from, item::SWEPT_NEXT, |out| {
                out.number(id);
                out.number(next);
            });
        }
        Ok(())
    }

    /// The node that asked wants a page of its answer.
    pub(crate) fn receive_swept_next(&mut self, from: Member, mut content: Reader) -> Read<()> {
        let id = content.number()?;
        let at = content.number()?;
        content.end()?;
        self.send_page(from, id, at);
        Ok(())
    }

    fn send_page(&mut self, from: Member, id: u64, at: u64) {
        let until = self.reading() + KEPT_MS;
        let kept = &mut self.span.sweeps.kept;
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
        self.frames().say(from.node, item::SWEPT_PAGE, |out| {
            out.number(u64::from(from.life));
            out.number(id);
            out.number(at);
            out.number(length as u64);
            out.raw(&page);
        });
    }

    fn swept(&mut self, from: NodeId, id: u64, swept: Swept) {
        let Some(asked) = self.span.sweeps.asked.get_mut(&id) else {
            return;
        };
        if asked.open.remove(&from).is_some() {
            asked.found.merge(swept);
            self.sweep_complete(id);
        }
    }

    /// Tells the call, if everything is known that it needs.
    fn sweep_complete(&mut self, id: u64) {
        let Some(asked) = self.span.sweeps.asked.get(&id) else {
            return;
        };
        let found_enough = asked.sweep.what == What::Alive && asked.found.alive;
        let all = asked.wanted.is_subset(&asked.found.groups);
        let no_more = asked.open.is_empty()
            && (matches!(asked.scope, Scope::Reachable | Scope::ReachableOf(_))
                || asked.found.unknown);
        if (all || no_more || found_enough || asked.found.too_long)
            && let Some(asked) = self.span.sweeps.asked.remove(&id)
        {
            self.span
                .tell(asked.awaited, Happened::Swept(Box::new(asked.found)));
        }
    }

    /// With every tick: ask again for what is missing, as long as the call wants it.
    pub(crate) fn retry_sweeps(&mut self) {
        let reading = self.reading();
        let ids: Vec<u64> = self.span.sweeps.asked.keys().copied().collect();
        for id in ids {
            let asked = self.span.sweeps.asked.get(&id);
            if asked.is_some_and(|asked| {
                asked.expires <= reading || !self.span.is_awaited(asked.awaited)
            }) {
                self.end_sweep(id);
            }
            let Some(asked) = self.span.sweeps.asked.get_mut(&id) else {
                continue;
            };
            let is_slow = asked.since + asked.patience <= reading && !asked.open.is_empty();
            if is_slow {
                // What is under way there may have happened or not.
                asked.found.unknown |= asked.sweep.what.acts();
                // An answer to this question counts no more, so the next one gets more time.
                asked.patience *= 2;
                let slow = std::mem::take(&mut asked.open);
                self.call_off(id, slow.into_keys());
                self.sweep_complete(id);
            }
            let sweeps = &mut self.span.sweeps;
            if let Some(asked) = sweeps.asked.get_mut(&id)
                && asked.open.is_empty()
            {
                let renews = matches!(asked.sweep.what, What::Renew(_));
                if renews && asked.begun + RENEWAL_PATIENCE_MS <= reading {
                    asked.found.unknown = true;
                    self.sweep_complete(id);
                } else if let Some(asked) = sweeps.asked.remove(&id) {
                    self.ask_around(asked);
                }
            }
        }
        let sweeps = &mut self.span.sweeps;
        sweeps
            .local
            .retain(|_, local| local.expires + PATIENCE_MS > reading);
        sweeps.kept.retain(|kept| kept.until > reading);
    }

    /// Nobody waits for this sweep any more: the nodes that were asked need not go on with it.
    fn end_sweep(&mut self, id: u64) {
        let Some(asked) = self.span.sweeps.asked.remove(&id) else {
            return;
        };
        self.call_off(id, asked.open.into_keys());
    }

    fn call_off(&mut self, id: u64, nodes: impl Iterator<Item = NodeId>) {
        let me = self.me;
        for node in nodes {
            if node == me.node {
                self.sweep_over(me, id);
            } else {
                self.frames()
                    .say(node, item::SWEEP_OVER, |out| out.number(id));
            }
        }
    }

    pub(crate) fn receive_sweep_over(&mut self, from: Member, mut content: Reader) -> Read<()> {
        let id = content.number()?;
        content.end()?;
        self.sweep_over(from, id);
        Ok(())
    }

    fn sweep_over(&mut self, from: Member, id: u64) {
        let sweeps = &mut self.span.sweeps;
        sweeps
            .local
            .retain(|_, local| (local.from, local.id) != (from, id));
        sweeps
            .kept
            .retain(|kept| (kept.from, kept.id) != (from, id));
    }

    pub(crate) fn sweeps_peer_down(&mut self, node: NodeId) {
        let ids: Vec<u64> = self.span.sweeps.asked.keys().copied().collect();
        for id in ids {
            let Some(asked) = self.span.sweeps.asked.get_mut(&id) else {
                continue;
            };
            if asked.open.remove(&node).is_some() {
                asked.found.unknown |= asked.sweep.what.acts();
                self.sweep_complete(id);
            }
        }
    }

    /// Carries a sweep out on the groups that are led here.
    fn sweep_here(&mut self, from: Member, id: u64, sweep: Sweep, groups: GroupSet, left_ms: u64) {
        let number = self.span.next_number();
        let expires = self.reading().saturating_add(left_ms.min(3_600_000));
        let leads = |group: &GroupId| self.group_ref(*group).is_some_and(|group| group.leads());
        let led: GroupSet = groups.iter().filter(leads).collect();
        let renewed: Vec<GroupId> = match sweep.what {
            What::Renew(_) => {
                let has = |group: &GroupId| self.has_owner(*group, &sweep.owner);
                led.iter().filter(has).collect()
            }
            _ => Vec::new(),
        };
        self.span.sweeps.local.insert(
            number,
            Local {
                from,
                id,
                sweep,
                expires,
                unvouched: led,
                // Kept open until all parts have begun.
                open: 1,
                renewing: Vec::new(),
                found: Swept::default(),
            },
        );
        self.span.sweeps.begun.push(number);
        for group in renewed {
            self.renew_here(number, group);
        }
        self.part_over(number);
    }

    /// Asks for all groups that the sweeps of this turn are about to be vouched for, each once.
    pub(crate) fn vouch_for_sweeps(&mut self) {
        let sweeps = &mut self.span.sweeps;
        if sweeps.begun.is_empty() {
            return;
        }
        let begun = std::mem::take(&mut sweeps.begun);
        let mut groups = GroupSet::default();
        for local in begun.iter().filter_map(|sweep| sweeps.local.get(sweep)) {
            groups.join(&local.unvouched);
        }
        if groups.is_empty() {
            return;
        }
        let number = self.span.next_number();
        self.span.sweeps.vouching.insert(
            number,
            Vouching {
                sweeps: begun,
                open: groups.len(),
            },
        );
        for id in groups.iter() {
            if let Some(Some(group)) = self.groups.get_mut(id.0 as usize) {
                group.vouch(number, &mut self.turn);
                self.activate(id);
            } else {
                self.turn.vouched.push((number, id, Vouched::No));
            }
        }
    }

    /// Groups are vouched for, or cannot be here: all sweeps that asked together are told. All that
    /// is told here belongs to one number.
    pub(crate) fn vouched(&mut self, told: &[(u64, GroupId, Vouched)]) {
        let number = told.first().map_or(0, |(number, ..)| *number);
        let Some(vouching) = self.span.sweeps.vouching.get_mut(&number) else {
            for &(number, group, vouched) in told {
                self.vouched_for_stranger(number, group, vouched);
            }
            return;
        };
        vouching.open -= told.len();
        let over = vouching.open == 0;
        let sweeps = std::mem::take(&mut vouching.sweeps);
        let all: GroupSet = told.iter().map(|(_, group, _)| *group).collect();
        let here = told.iter().filter(|(.., told)| *told == Vouched::Yes);
        let here: GroupSet = here.map(|(_, group, _)| *group).collect();
        for &sweep in &sweeps {
            let Some(local) = self.span.sweeps.local.get_mut(&sweep) else {
                continue;
            };
            let answered = local.unvouched.both(&all);
            if answered.is_empty() {
                continue;
            }
            local.unvouched = local.unvouched.without(&all);
            local.open += 1;
            self.look(sweep, &answered.both(&here));
            self.part_over(sweep);
        }
        if over {
            self.span.sweeps.vouching.remove(&number);
        } else if let Some(vouching) = self.span.sweeps.vouching.get_mut(&number) {
            vouching.sweeps = sweeps;
        }
    }

    fn act_here(&mut self, sweep: u64, group: GroupId, step: Step, op: Op) {
        let Some(local) = self.span.sweeps.local.get_mut(&sweep) else {
            return;
        };
        local.open += 1;
        let expires = local.expires;
        let part = Part { sweep, group, step };
        self.submit_here(Origin::Sweep(part), group, op, expires);
    }

    /// A renewal counts from its receipt: it joins the lease's next round at once, wherever the
    /// owner is seen to have one (leases.md, step 2).
    fn renew_here(&mut self, number: u64, group: GroupId) {
        let Some(local) = self.span.sweeps.local.get(&number) else {
            return;
        };
        let What::Renew(ttl) = local.sweep.what else {
            return;
        };
        let owner = local.sweep.owner.clone();
        let namespaces = self.leased_in(group, &owner, &local.sweep.selection);
        for namespace in namespaces {
            let Some(local) = self.span.sweeps.local.get_mut(&number) else {
                return;
            };
            let lease = Some((group, namespace.clone()));
            if local.renewing.contains(&lease) {
                continue;
            }
            let at = u32::try_from(local.renewing.len()).unwrap_or(u32::MAX);
            local.renewing.push(lease);
            let renew = RenewLease {
                namespace,
                owner: owner.clone(),
                ttl,
            };
            self.act_here(number, group, Step::Renew(at), Op::Renew(renew));
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

    /// A part of a sweep on this node has ended.
    pub(crate) fn sweep_part(&mut self, part: Part, answer: OpAnswer) {
        self.acted(part, answer);
        self.part_over(part.sweep);
    }

    fn has_owner(&self, group: GroupId, owner: &OwnerId) -> bool {
        self.group_ref(group)
            .and_then(|group| group.machine.space())
            .is_some_and(|space| space.has_owner(owner))
    }

    /// These groups are led here, confirmed after the question: now their state is the answer.
    fn look(&mut self, number: u64, groups: &GroupSet) {
        let Some(local) = self.span.sweeps.local.get_mut(&number) else {
            return;
        };
        let (sweep, found) = (&local.sweep, &mut local.found);
        let mut to_act = Vec::new();
        for id in groups.iter() {
            let Some(Some(group)) = self.groups.get(id.0 as usize) else {
                continue;
            };
            let (Some(space), Some(now)) = (
                group.machine.space(),
                group.lead().lease_time(self.turn.reading),
            ) else {
                continue;
            };
            if let What::Released { paths, .. } = &sweep.what
                && space.holds_back(paths)
            {
                continue;
            }
            found.groups.insert(id);
            if sweep.what.is_about_owner() && !space.has_owner(&sweep.owner) {
                continue;
            }
            match &sweep.what {
                // Whatever was acquired since the receipt is extended too.
                What::Renew(_) => to_act.push(id),
                What::ReleaseAll(_) | What::Ask => {
                    let namespaces = space.owner_namespaces(&sweep.owner);
                    if namespaces.iter().any(|one| selects(&sweep.selection, one)) {
                        to_act.push(id);
                    }
                }
                What::Alive => {
                    found.alive |= space.owner_alive(&sweep.owner, &sweep.selection, now);
                }
                What::List => {
                    let locks = space.owner_locks(&sweep.owner, &sweep.selection);
                    found.alive |= locks.alive;
                    found.locks.extend(locks.locks);
                }
                What::WaitsFor { owners } => {
                    for owner in owners {
                        let waits = space.waits_for(owner, now).into_iter();
                        let blocked = waits.filter(|waits| !waits.owners.is_empty());
                        found
                            .edges
                            .extend(blocked.map(|waits| (owner.clone(), waits)));
                    }
                }
                What::Grants => {
                    let mut grants = space.standing_grants(&sweep.owner, now);
                    grants.retain(|event| {
                        event.namespace.as_ref().is_none_or(|namespace| {
                            let lease = space.lease(namespace, &sweep.owner);
                            !lease.is_some_and(|lease| group.lead().renewed_since_set(lease.number))
                        })
                    });
                    found.grants.extend(grants);
                }
                What::Plan => {
                    let namespaces = space.owner_namespaces(&sweep.owner);
                    if namespaces.iter().any(|one| selects(&sweep.selection, one)) {
                        // Under rules 1 there is no order that could name what is there.
                        let until = match space.rules() {
                            0..2 => ReleaseAll::EVERYTHING,
                            _ => space.order(),
                        };
                        found.planned.push((id.0, until));
                    }
                }
                What::Released {
                    key,
                    fingerprint,
                    paths,
                } => {
                    let was_released =
                        |path: &&Path| space.was_released(key, *fingerprint, path, now);
                    let released = paths.iter().filter(was_released);
                    found.released.extend(released.cloned());
                }
                What::Highest => {
                    found.highest = found.highest.max(space.highest_minted());
                }
            }
        }
        for id in to_act {
            self.act(number, id);
        }
    }

    /// Does what a sweep is for in a group in which its owner has something.
    fn act(&mut self, number: u64, id: GroupId) {
        let Some(local) = self.span.sweeps.local.get(&number) else {
            return;
        };
        let space = self.group_ref(id).and_then(|group| group.machine.space());
        // Names what is there now: whatever is acquired before the entry is applied stays.
        let until = space.map(Space::order);
        let sweep = &local.sweep;
        let command = match &sweep.what {
            What::Renew(_) => return self.renew_here(number, id),
            What::ReleaseAll(cause) => Command::ReleaseAll(ReleaseAll {
                owner: sweep.owner.clone(),
                selection: sweep.selection.clone(),
                cause: *cause,
                until,
            }),
            What::Ask => Command::Ask(AskRelease {
                owner: sweep.owner.clone(),
            }),
            What::Alive
            | What::List
            | What::WaitsFor { .. }
            | What::Grants
            | What::Highest
            | What::Plan
            | What::Released { .. } => return,
        };
        let op = Op::Command(command);
        self.act_here(number, id, Step::Act, op);
    }

    fn acted(&mut self, part: Part, answer: OpAnswer) {
        let Some(local) = self.span.sweeps.local.get_mut(&part.sweep) else {
            return;
        };
        match answer {
            OpAnswer::Renewed(Ok(renewed)) => {
                local.found.asked |= renewed.asked;
                if let Step::Renew(at) = part.step
                    && let Some(Some((_, namespace))) = local.renewing.get(at as usize)
                {
                    let lease = (namespace.clone(), renewed.born);
                    local.found.renewed.push(lease);
                }
            }
            // Gone in between: for an owner-wide renewal that is no loss (R91).
            OpAnswer::Renewed(Err(Missing::Alive | Missing::OwnerSet)) => {}
            // The lease is there and not what its owner takes it for: the whole renewal is lost.
            OpAnswer::Renewed(Err(_)) => {
                if let Step::Renew(at) = part.step
                    && let Some(Some((_, namespace))) = local.renewing.get(at as usize)
                {
                    let lease = (namespace.clone(), HOLD_TAKEN);
                    local.found.renewed.push(lease);
                }
            }
            OpAnswer::Applied {
                outcome: Outcome::Touched(_),
                ..
            } => {}
            OpAnswer::NotHere { .. } | OpAnswer::Busy => {
                // Certainly not done: the group is asked for again. If it is not vouched for yet, this lease
                // is renewed when it is.
                if let Step::Renew(at) = part.step
                    && let Some(lease) = local.renewing.get_mut(at as usize)
                {
                    *lease = None;
                }
                local.found.groups.remove(part.group);
            }
            _ => local.found.unknown = true,
        }
    }

    fn part_over(&mut self, sweep: u64) {
        let Some(local) = self.span.sweeps.local.get_mut(&sweep) else {
            return;
        };
        local.open -= 1;
        if local.open > 0 || !local.unvouched.is_empty() {
            return;
        }
        let Some(local) = self.span.sweeps.local.remove(&sweep) else {
            return;
        };
        if local.from == self.me {
            self.swept(local.from.node, local.id, local.found);
            return;
        }
        let (from, id) = (local.from, local.id);
        let swept = wire::encode_swept(&local.found);
        if swept.len() <= PAGE_BYTES {
            self.frames().say(from.node, item::SWEPT, |out| {
                out.number(u64::from(from.life));
                out.number(id);
                out.raw(&swept);
            });
        } else if swept.len() <= LONGEST_ANSWER_BYTES {
            let until = self.reading() + KEPT_MS;
            let kept = &mut self.span.sweeps.kept;
            kept.insert(
                0,
                Kept {
                    from,
                    id,
                    bytes: swept,
                    until,
                },
            );
            kept.truncate(KEPT_ANSWERS);
            for page in 0..PAGES_UNDER_WAY {
                self.send_page(from, id, page * PAGE_BYTES as u64);
            }
        } else {
            self.frames().say(from.node, item::SWEPT_PAGE, |out| {
                for number in [u64::from(from.life), id, 0, 0] {
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
