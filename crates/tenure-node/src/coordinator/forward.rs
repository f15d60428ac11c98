//! Request forwarding: sends one operation to the leader of its group, at most once (R106
//! forwarding is at most once, R163 any node serves any client).
//!
//! ```text
//!   submit ─▶ led by this node    ─▶ group
//!          ─▶ led by another node ─▶ frame ─▶ its group ─▶ answer
//!          ─▶ no leader known     ─▶ parked until there is one
//! ```
//!
//! An operation is sent again only if the first copy certainly had no effect (the other node said
//! so) or if a second application is harmless ([`GroupOp::may_repeat`]). Otherwise a lost answer
//! becomes [`GroupOpResult::Unknown`]. The refusal of a second copy also becomes `Unknown`, because
//! the first copy may have been applied. Nothing is sent again for a call that has ended.

use std::collections::BTreeMap;

use bytes::Bytes;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::{AwaitedPart, CallEvent};
use crate::budget::{Share, Shares, Urgency};
use crate::codec::{DecodeResult, Reader, from_bytes, to_bytes};
use crate::coordinator::fanout;
use crate::group_op::{GroupOp, GroupOpResult, OpId};
use crate::node::Node;
use crate::node::frames_item as item;
use crate::{GroupId, NodeId, ReplicaId};

/// Maximum redirections of an operation to another leader (R163).
const MAX_HOPS: u8 = 8;
/// A repeatable operation without an answer is sent again after this time.
const RESEND_AFTER_MS: u64 = 1500;

/// Maximum length of an operation or an answer. A longer frame would be refused by the peer and
/// break the connection for all groups.
const LONGEST_ITEM_BYTES: usize = 16 << 20;

/// The origin of an operation, which receives its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpOrigin {
    /// A part of a call on this node.
    Call(AwaitedPart),
    /// Another node, in this incarnation, under this number.
    Peer { from: ReplicaId, id: u64 },
    /// A fan-out that runs on this node.
    Fanout(fanout::FanoutPart),
    /// The copy of the namespace table.
    Table,
    /// The copy of the access control table.
    Auth,
    /// A driver of a policy change; the number is its group's.
    Driver { change: u64, part: u32 },
    /// The leader's own proposal to move its group to newer rules.
    Upgrade { group: GroupId },
}

#[derive(Debug)]
struct PendingOp {
    origin: OpOrigin,
    group: GroupId,
    expires: u64,
    hops: u8,
    /// Whether an earlier copy was sent and not answered. That copy may still take effect.
    is_repeated: bool,
    /// The receiver, time and bytes of the last copy, kept until the answer.
    sent: Option<Box<SentOp>>,
    /// The share of its group that it counts against.
    share: Option<Share>,
}

#[derive(Debug)]
struct SentOp {
    to: NodeId,
    at: u64,
    op: Bytes,
    may_repeat: bool,
}

/// The pending operations of this node.
#[derive(Debug)]
pub(crate) struct Forwarder {
    last_ticket: u64,
    // Never iterated where order matters: `tickets` sorts.
    pending: HashMap<OpId, PendingOp, FxBuildHasher>,
    parked: BTreeMap<GroupId, Vec<(OpId, GroupOp)>>,
    /// The operations of each principal in each group that this node leads.
    pub(crate) shares: Shares,
}

impl Forwarder {
    pub(crate) fn new(first: u64) -> Forwarder {
        Forwarder {
            last_ticket: first,
            pending: HashMap::default(),
            parked: BTreeMap::new(),
            shares: Shares::default(),
        }
    }

    pub(crate) fn load(&self) -> usize {
        self.pending.len()
    }

    fn remove(&mut self, ticket: OpId) -> Option<PendingOp> {
        let pending = self.pending.remove(&ticket)?;
        if let Some(share) = pending.share {
            self.shares.remove(share);
        }
        Some(pending)
    }

    fn tickets(&self, which: impl Fn(&PendingOp) -> bool) -> Vec<OpId> {
        let mut tickets: Vec<OpId> = self
            .pending
            .iter()
            .filter(|(_, pending)| which(pending))
            .map(|(ticket, _)| *ticket)
            .collect();
        tickets.sort_unstable();
        tickets
    }
}

impl Node {
    /// Submits an operation. The origin receives exactly one result.
    pub(crate) fn submit(&mut self, origin: OpOrigin, group: GroupId, op: GroupOp, expires: u64) {
        let ticket = self.ticket(origin, group, expires);
        self.carry(ticket, group, op, expires);
    }

    /// Like [`Node::submit`], but only on this node: if it does not lead the group, the result is
    /// [`GroupOpResult::NotHere`].
    pub(crate) fn submit_here(
        &mut self,
        origin: OpOrigin,
        group: GroupId,
        op: GroupOp,
        expires: u64,
    ) {
        if self.group_ref(group).is_some_and(|group| group.leads()) {
            self.submit(origin, group, op, expires);
            return;
        }
        let ticket = self.ticket(origin, group, expires);
        self.answered(ticket, GroupOpResult::NotHere { leader: None });
    }

    fn ticket(&mut self, origin: OpOrigin, group: GroupId, expires: u64) -> OpId {
        self.coordinator.forward.last_ticket += 1;
        let ticket = OpId(self.coordinator.forward.last_ticket);
        self.coordinator.forward.pending.insert(
            ticket,
            PendingOp {
                origin,
                group,
                expires,
                hops: 0,
                is_repeated: false,
                sent: None,
                share: None,
            },
        );
        ticket
    }

    /// Whether an operation may be sent again. Operations of a call that has ended or started over
    /// may not: they could have an effect that no answer reports. They are dropped here.
    fn is_wanted(&mut self, ticket: OpId) -> bool {
        let Some(pending) = self.coordinator.forward.pending.get(&ticket) else {
            return false;
        };
        let wanted = match pending.origin {
            OpOrigin::Call(awaited) => self.coordinator.is_awaited(awaited),
            _ => true,
        };
        if !wanted {
            self.coordinator.forward.remove(ticket);
        }
        wanted
    }

    fn carry(&mut self, ticket: OpId, id: GroupId, op: GroupOp, expires: u64) {
        if let Some(group) = self.group_ref(id).filter(|group| group.leads()) {
            let share = Share::of(id, &op);
            if self.is_full_for(&op) {
                self.answered(ticket, GroupOpResult::StateFull);
            } else if !self.has_room(group, Urgency::of_operation(&op))
                || share.is_some_and(|share| !self.has_share(group, share))
            {
                self.answered(ticket, GroupOpResult::Busy);
            } else if let Some(Some(group)) = self.groups.get_mut(id.0 as usize) {
                group.submit(ticket, op, expires, &mut self.turn);
                self.activate(id);
                let forward = &mut self.coordinator.forward;
                if let Some(share) = share
                    && let Some(pending) = forward.pending.get_mut(&ticket)
                    && pending.share.replace(share).is_none()
                {
                    forward.shares.add(share);
                }
            }
            return;
        }
        // These origins find the leader themselves; forwarding again could loop.
        if let Some(pending) = self.coordinator.forward.pending.get(&ticket)
            && matches!(
                pending.origin,
                OpOrigin::Peer { .. } | OpOrigin::Fanout(_) | OpOrigin::Upgrade { .. }
            )
        {
            self.answered(ticket, self.not_here(id));
            return;
        }
        match self.known_leader(id) {
            Some(leader) if leader.node != self.me.node && !self.peers.is_down(leader.node) => {
                self.send_op(ticket, id, leader.node, &op, expires);
            }
            _ => {
                let parked = self.coordinator.forward.parked.entry(id).or_default();
                parked.push((ticket, op));
            }
        }
    }

    pub(crate) fn known_leader(&self, id: GroupId) -> Option<ReplicaId> {
        let local = self.group_ref(id).and_then(|group| group.leader());
        local.or_else(|| self.peers.leader(id))
    }

    fn not_here(&self, id: GroupId) -> GroupOpResult {
        // The asking node looks for a node, so the number of the replica is left out.
        let leader = self.known_leader(id).map(|leader| leader.numbered(0));
        GroupOpResult::NotHere { leader }
    }

    fn send_op(&mut self, ticket: OpId, group: GroupId, to: NodeId, op: &GroupOp, expires: u64) {
        let bytes = Bytes::from(to_bytes(op));
        if bytes.len() > LONGEST_ITEM_BYTES {
            self.answered(ticket, GroupOpResult::TooLong);
            return;
        }
        let may_repeat = op.may_repeat();
        self.send_bytes(ticket, group, to, bytes.clone(), expires);
        let at = self.now_ms();
        if let Some(pending) = self.coordinator.forward.pending.get_mut(&ticket) {
            pending.sent = Some(Box::new(SentOp {
                to,
                at,
                op: bytes,
                may_repeat,
            }));
        }
    }

    fn send_bytes(&mut self, ticket: OpId, group: GroupId, to: NodeId, op: Bytes, expires: u64) {
        let left = expires.saturating_sub(self.now_ms());
        self.frames().say(to, item::FORWARD, |out| {
            out.number(ticket.0);
            out.put(&group);
            out.number(left);
            out.slice(&op);
        });
    }

    /// Handles an operation from a node that believes that this node leads the group.
    pub(crate) fn receive_forward(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let id = content.number()?;
        let group = content.take()?;
        let left = content.number()?;
        let op = from_bytes(content.slice()?)?;
        content.finish()?;
        if group > self.system() {
            return Ok(());
        }
        let expires = self.now_ms().saturating_add(left.min(3_600_000));
        let origin = OpOrigin::Peer { from, id };
        if self.has_room_for_calls(Urgency::of_operation(&op)) {
            self.submit(origin, group, op, expires);
        } else {
            let ticket = self.ticket(origin, group, expires);
            self.answered(ticket, GroupOpResult::Busy);
        }
        Ok(())
    }

    /// Handles the answer of another node.
    pub(crate) fn receive_answer(
        &mut self,
        from: NodeId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let incarnation = content.number()?;
        let ticket = OpId(content.number()?);
        if incarnation != u64::from(self.me.incarnation) {
            return Ok(());
        }
        let answer = from_bytes(content.slice()?)?;
        content.finish()?;
        let not_here = matches!(answer, GroupOpResult::NotHere { .. });
        if not_here && !self.is_wanted(ticket) {
            return Ok(());
        }
        let Some(pending) = self.coordinator.forward.pending.get_mut(&ticket) else {
            return Ok(());
        };
        // Only the latest receiver counts: an earlier one may have answered "not here" late.
        if pending.sent.as_ref().is_none_or(|sent| sent.to != from) {
            return Ok(());
        }
        if let GroupOpResult::NotHere { leader } = answer {
            let group = pending.group;
            pending.hops += 1;
            let expires = pending.expires;
            let give_up = pending.hops > MAX_HOPS || expires <= self.turn.now_ms;
            let sent = pending.sent.take();
            self.peers.forget_leader(group, from);
            let op = sent.and_then(|sent| from_bytes(&sent.op).ok());
            match (give_up, op) {
                (false, Some(op)) => match leader {
                    Some(leader) if leader.node != from && leader.node != self.me.node => {
                        self.send_op(ticket, group, leader.node, &op, expires);
                    }
                    _ => {
                        let parked = self.coordinator.forward.parked.entry(group).or_default();
                        parked.push((ticket, op));
                    }
                },
                _ => self.answered(ticket, GroupOpResult::NotHere { leader }),
            }
            return Ok(());
        }
        self.answered(ticket, answer);
        Ok(())
    }

    /// Delivers the result of an operation to its origin.
    pub(crate) fn answered(&mut self, ticket: OpId, answer: GroupOpResult) {
        let Some(pending) = self.coordinator.forward.remove(ticket) else {
            return;
        };
        let answer = match answer {
            // These results show that the last copy had no effect, but an earlier copy may have had
            // one.
            GroupOpResult::Busy
            | GroupOpResult::StateFull
            | GroupOpResult::NotHere { .. }
            | GroupOpResult::TooLong
                if pending.is_repeated =>
            {
                GroupOpResult::Unknown
            }
            answer => answer,
        };
        match pending.origin {
            OpOrigin::Call(awaited) => self.coordinator.tell(awaited, CallEvent::Op(answer)),
            OpOrigin::Peer { from, id } => {
                let mut answer = to_bytes(&answer);
                if answer.len() > LONGEST_ITEM_BYTES {
                    // A frame that is too long would break the connection, which all groups share.
                    answer = to_bytes(&GroupOpResult::TooLong);
                }
                self.frames().say(from.node, item::ANSWER, |out| {
                    out.number(u64::from(from.incarnation));
                    out.number(id);
                    out.slice(&answer);
                });
            }
            OpOrigin::Fanout(part) => self.fanout_part(part, answer),
            OpOrigin::Table => self.table_answer(answer),
            OpOrigin::Auth => self.auth_read(answer),
            OpOrigin::Driver { change, part } => self.driver_answer(change, part, answer),
            OpOrigin::Upgrade { group } => self.upgrade_ended(group),
        }
    }

    /// Handles an operation that had no effect here: it can be sent to another leader.
    pub(crate) fn returned(&mut self, ticket: OpId, op: GroupOp) {
        let now_ms = self.now_ms();
        if !self.is_wanted(ticket) {
            return;
        }
        let Some(pending) = self.coordinator.forward.pending.get_mut(&ticket) else {
            return;
        };
        pending.hops += 1;
        let (group, expires) = (pending.group, pending.expires);
        if pending.hops > MAX_HOPS || expires <= now_ms {
            self.answered(ticket, self.not_here(group));
            return;
        }
        self.carry(ticket, group, op, expires);
    }

    /// Resumes parked operations when a leader of the group is known.
    pub(crate) fn unpark(&mut self, id: GroupId) {
        let Some(parked) = self.coordinator.forward.parked.remove(&id) else {
            return;
        };
        let now_ms = self.now_ms();
        for (ticket, op) in parked {
            if !self.is_wanted(ticket) {
                continue;
            }
            let Some(pending) = self.coordinator.forward.pending.get(&ticket) else {
                continue;
            };
            let expires = pending.expires;
            if expires <= now_ms {
                self.answered(ticket, GroupOpResult::NotHere { leader: None });
            } else {
                self.carry(ticket, id, op, expires);
            }
        }
    }

    pub(crate) fn retry_parked(&mut self) {
        let groups: Vec<GroupId> = self.coordinator.forward.parked.keys().copied().collect();
        for id in groups {
            self.unpark(id);
        }
    }

    /// Sends repeatable operations without an answer again. All others wait for their deadline.
    pub(crate) fn resend_lost(&mut self) {
        let now_ms = self.now_ms();
        let overdue = self.coordinator.forward.tickets(|pending| {
            pending
                .sent
                .as_ref()
                .is_some_and(|sent| sent.at + RESEND_AFTER_MS <= now_ms)
                || pending.expires + RESEND_AFTER_MS <= now_ms
        });
        for ticket in overdue {
            if !self.is_wanted(ticket) {
                continue;
            }
            let Some(pending) = self.coordinator.forward.pending.get_mut(&ticket) else {
                continue;
            };
            let expired = pending.expires <= now_ms;
            match &pending.sent {
                Some(sent) if sent.may_repeat && !expired => self.send_again(ticket),
                // An answer may still arrive, but the origin's deadline has passed.
                Some(_) if expired => self.answered(ticket, GroupOpResult::Unknown),
                Some(_) | None => {}
            }
        }
    }

    fn send_again(&mut self, ticket: OpId) {
        let Some(pending) = self.coordinator.forward.pending.get_mut(&ticket) else {
            return;
        };
        let (group, expires) = (pending.group, pending.expires);
        if let Some(sent) = pending.sent.take()
            && let Ok(op) = from_bytes(&sent.op)
        {
            // No copy of a read has an effect.
            pending.is_repeated |= !matches!(op, GroupOp::Read(_));
            self.carry(ticket, group, op, expires);
        }
    }

    /// Handles a broken connection: the outcome of operations sent on it is unknown.
    pub(crate) fn forward_peer_down(&mut self, node: NodeId) {
        let lost = self
            .coordinator
            .forward
            .tickets(|pending| pending.sent.as_ref().is_some_and(|sent| sent.to == node));
        for ticket in lost {
            if !self.is_wanted(ticket) {
                continue;
            }
            let Some(pending) = self.coordinator.forward.pending.get(&ticket) else {
                continue;
            };
            if pending.sent.as_ref().is_some_and(|sent| sent.may_repeat) {
                self.send_again(ticket);
            } else {
                self.answered(ticket, GroupOpResult::Unknown);
            }
        }
    }
}
