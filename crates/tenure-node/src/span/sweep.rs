//! Owner-wide questions: one message a node, every group vouched for (R126–R130).
//!
//! ```text
//!   call ─▶ Sweep to every node ─▶ each group led there: one round ─▶ looked at ─▶ Swept
//!            └──────── groups that nobody vouched for are asked for again ────────┘
//! ```
//!
//! "Nothing there" is a claim about all groups, so each one must be vouched for by a leader that
//! was confirmed after the question. All questions of a turn share one round of each group.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tenure_core::command::{Ask, Command, Domain, ReleaseAll, ReleaseCause, Renew, Selection};
use tenure_core::event::Event;
use tenure_core::outcome::Outcome;
use tenure_core::path::Namespace;
use tenure_core::policy::Missing;
use tenure_core::query::{HeldLock, WaitsFor};
use tenure_core::value::{Fence, OwnerId, Ttl};

use super::forward::Origin;
use super::{CallId, Context, Happened};
use crate::codec::{Read, Reader};
use crate::group::Vouched;
use crate::groups::GroupSet;
use crate::node::Node;
use crate::node::frames_item as item;
use crate::op::{Op, OpAnswer};
use crate::span::wire;
use crate::{GroupId, Member, NodeId};

/// A node that has not answered after this is not waited for any longer.
const PATIENCE_MS: u64 = 2_000;

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
            | What::Grants => true,
            What::WaitsFor { .. } | What::Highest => false,
        }
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
    /// A part of it may have happened or not.
    pub(crate) unknown: bool,
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
        self.unknown |= other.unknown;
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
    asked: BTreeMap<u64, Asked>,
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
    call: CallId,
    sweep: Sweep,
    scope: Scope,
    /// Groups that must be vouched for.
    wanted: GroupSet,
    open: BTreeSet<NodeId>,
    since: u64,
    expires: u64,
    found: Swept,
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
    /// Leases for which a renewal is under way or done.
    renewing: Vec<(GroupId, Namespace)>,
    found: Swept,
}

impl Node {
    /// Starts a sweep for a call: [`Happened::Swept`] when every group in scope is vouched for.
    pub(super) fn sweep(&mut self, cx: Context, sweep: Sweep, scope: Scope) {
        let wanted = match &scope {
            Scope::All | Scope::Reachable => GroupSet::below(self.config.cluster.group_count),
            Scope::Groups(groups) => groups.clone(),
        };
        let id = self.span.next_number();
        let since = self.reading();
        self.span.sweeps.asked.insert(
            id,
            Asked {
                call: cx.id,
                sweep,
                scope,
                wanted,
                open: BTreeSet::new(),
                since,
                expires: cx.deadline,
                found: Swept::default(),
            },
        );
        self.ask_around(id);
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

    /// Asks the nodes that may lead what is not vouched for yet.
    fn ask_around(&mut self, id: u64) {
        let Some(asked) = self.span.sweeps.asked.get(&id) else {
            return;
        };
        let missing = asked.wanted.without(&asked.found.groups);
        let (sweep, left) = (
            asked.sweep.clone(),
            asked.expires.saturating_sub(self.reading()),
        );
        let mut targets: BTreeMap<NodeId, GroupSet> = BTreeMap::new();
        for group in missing.iter() {
            if let Some(leader) = self.known_leader(group)
                && !self.peers.is_down(leader.node)
            {
                targets.entry(leader.node).or_default().insert(group);
            }
        }
        let reading = self.reading();
        if let Some(asked) = self.span.sweeps.asked.get_mut(&id) {
            asked.open = targets.keys().copied().collect();
            asked.since = reading;
        }
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

    fn swept(&mut self, from: NodeId, id: u64, swept: Swept) {
        let Some(asked) = self.span.sweeps.asked.get_mut(&id) else {
            return;
        };
        if asked.open.remove(&from) {
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
        let no_more = asked.scope == Scope::Reachable && asked.open.is_empty();
        if (all || no_more || found_enough || (asked.found.unknown && asked.open.is_empty()))
            && let Some(asked) = self.span.sweeps.asked.remove(&id)
        {
            self.span
                .tell(asked.call, Happened::Swept(Box::new(asked.found)));
        }
    }

    /// With every tick: ask again for what is missing.
    pub(crate) fn retry_sweeps(&mut self) {
        let reading = self.reading();
        let ids: Vec<u64> = self.span.sweeps.asked.keys().copied().collect();
        for id in ids {
            let Some(asked) = self.span.sweeps.asked.get_mut(&id) else {
                continue;
            };
            if asked.expires <= reading {
                self.span.sweeps.asked.remove(&id);
                continue;
            }
            let patience_over = asked.since + PATIENCE_MS <= reading;
            let is_slow = patience_over && !asked.open.is_empty();
            if is_slow {
                // A release that is under way there may have happened or not.
                asked.found.unknown |= matches!(asked.sweep.what, What::ReleaseAll(_));
                asked.open.clear();
                self.sweep_complete(id);
            }
            if let Some(asked) = self.span.sweeps.asked.get(&id)
                && asked.open.is_empty()
            {
                self.ask_around(id);
            }
        }
        let local = &mut self.span.sweeps.local;
        local.retain(|_, local| local.expires + PATIENCE_MS > reading);
    }

    pub(crate) fn sweeps_peer_down(&mut self, node: NodeId) {
        let ids: Vec<u64> = self.span.sweeps.asked.keys().copied().collect();
        for id in ids {
            let Some(asked) = self.span.sweeps.asked.get_mut(&id) else {
                continue;
            };
            if asked.open.remove(&node) {
                asked.found.unknown |= matches!(asked.sweep.what, What::ReleaseAll(_));
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
            let lease = (group, namespace.clone());
            if local.renewing.contains(&lease) {
                continue;
            }
            let at = u32::try_from(local.renewing.len()).unwrap_or(u32::MAX);
            local.renewing.push(lease);
            let renew = Renew {
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
        let sweep = &local.sweep;
        let command = match &sweep.what {
            What::Renew(_) => return self.renew_here(number, id),
            What::ReleaseAll(cause) => Command::ReleaseAll(ReleaseAll {
                owner: sweep.owner.clone(),
                selection: sweep.selection.clone(),
                cause: *cause,
            }),
            What::Ask => Command::Ask(Ask {
                owner: sweep.owner.clone(),
            }),
            What::Alive | What::List | What::WaitsFor { .. } | What::Grants | What::Highest => {
                return;
            }
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
                    && let Some((_, namespace)) = local.renewing.get(at as usize)
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
                    && let Some((_, namespace)) = local.renewing.get(at as usize)
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
                // Certainly not done: the group is asked for again.
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
        } else {
            let swept = wire::encode_swept(&local.found);
            self.frames().say(local.from.node, item::SWEPT, |out| {
                out.number(u64::from(local.from.life));
                out.number(local.id);
                out.raw(&swept);
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
