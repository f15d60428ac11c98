//! Event delivery to subscribers on any node (R119–R124).
//!
//! ```text
//!   leader: new event ─▶ every node that follows the group ─▶ the owner's subscribers on that node
//! ```
//!
//! A node with a subscriber follows every group: it sends the leader the last sequence number that
//! it has seen and receives all later events. It does the same with every new leader, so no event
//! is lost or delivered twice.
//!
//! A new subscription also starts a fan-out for a GRANT that is older than the subscription and
//! still in force (R122: events are always delivered). Each group is asked as soon as it is
//! followed, so that a group without a leader does not delay the events of other groups.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_core::event::Event;
use tenure_core::query::EventsAfter;
use tenure_core::value::OwnerId;

use super::fanout::{Fanout, FanoutOp, FanoutScope};
use super::subscriptions::Subscriptions;
use super::{CallContext, CallEvent, CallKind, CallProgress};
use crate::codec::{DecodeResult, Reader, Writer, from_bytes};
use crate::config::Config;
use crate::group_set::GroupSet;
use crate::node::Node;
use crate::node::frames_item as item;
use crate::request::Answer;
use crate::{GroupId, NodeId, Output, StreamId};

/// Maximum concurrent fan-outs for older grants. Each asks every group, and a client that
/// subscribes to many owners must not use up the limit of calls.
const MAX_FANOUTS: usize = 16;
/// Maximum events in one item of a frame.
const EVENTS_AT_ONCE: usize = 256;
/// Maximum bytes of events sent to a node that starts to follow, because a connection accepts no
/// more at once. Older events are skipped, as if the group had not retained them.
const MOST_BYTES: usize = 32 * 1024 * 1024;
/// Timeout of the fan-out for older grants.
const GRANTS_TIMEOUT_MS: u64 = 10_000;

/// Event delivery of this node, as a follower and as a leader.
#[derive(Debug)]
pub(crate) struct Events {
    /// Streams by owner.
    subscriptions: Subscriptions,
    /// State of the subscriptions that are new: not all groups were asked for older grants, or
    /// duplicates are still possible.
    events_out: BTreeMap<Subscription, EventUpdate>,
    /// Subscriptions that still need a fan-out. May contain ended ones.
    unswept: VecDeque<Subscription>,
    /// Subscriptions whose remaining groups cannot be asked now; a later tick tries again.
    postponed: VecDeque<Subscription>,
    /// The number of running fan-outs for older grants.
    fanning_out: usize,
    /// Per group: the events that this node has seen, while it follows.
    following: Vec<Following>,
    /// Per group that this node leads: the nodes that follow it.
    followers: Vec<BTreeSet<NodeId>>,
}

/// An owner, and the stream that its events go to.
type Subscription = (OwnerId, StreamId);

#[derive(Debug)]
struct EventUpdate {
    /// Groups that were not yet asked for a grant older than the subscription.
    unswept: GroupSet,
    /// Ids of events that were delivered as ordinary events while fan-outs are pending; they are
    /// skipped in fan-out results.
    heard: BTreeSet<u64>,
    /// Ids of events that a fan-out delivered; they are skipped if they also arrive as ordinary
    /// events.
    fanout_result: BTreeSet<u64>,
}

#[derive(Clone, Debug, Default)]
struct Following {
    /// The last sequence number seen; `None` before the first message of a leader.
    seen: Option<u64>,
    /// The leader that sends us events, with its term.
    leader: Option<(u64, NodeId)>,
}

/// Consecutive events of one group: all that follow `after`, up to `last`.
#[derive(Debug)]
struct EventRun {
    /// The term of the leader that sends them.
    term: u64,
    after: u64,
    last: u64,
    events: Vec<Event>,
}

/// The internal call that searches for grants that are older than a subscription and still in
/// force.
pub(super) struct GrantsCall {
    subscription: Subscription,
    /// The groups that are asked.
    groups: GroupSet,
}

impl Events {
    pub(crate) fn new(config: &Config) -> Events {
        let count = config.cluster.group_count as usize + 1;
        Events {
            subscriptions: Subscriptions::new(config.seed),
            events_out: BTreeMap::new(),
            unswept: VecDeque::new(),
            postponed: VecDeque::new(),
            fanning_out: 0,
            following: vec![Following::default(); count],
            followers: vec![BTreeSet::new(); count],
        }
    }

    fn wanted(&self) -> bool {
        !self.subscriptions.is_empty()
    }
}

impl Node {
    pub(crate) fn subscribe(&mut self, id: StreamId, owner: OwnerId) {
        let first = !self.coordinator.events.wanted();
        let unswept = GroupSet::below(self.config.cluster.group_count);
        let events = &mut self.coordinator.events;
        if !events.subscriptions.insert(&owner, id) {
            return;
        }
        let subscription = (owner, id);
        events.unswept.push_back(subscription.clone());
        let events_out = EventUpdate {
            unswept,
            heard: BTreeSet::new(),
            fanout_result: BTreeSet::new(),
        };
        events.events_out.insert(subscription, events_out);
        if first {
            for at in 0..self.groups.len() {
                self.coordinator.events.following[at] = Following::default();
                self.follow_leader(group_at(at));
            }
        }
        self.fanout_grants();
    }

    pub(crate) fn unsubscribe(&mut self, id: StreamId) {
        let events = &mut self.coordinator.events;
        if !events.wanted() {
            return;
        }
        let events_out = &mut events.events_out;
        events.subscriptions.end(id, |owner| {
            if !events_out.is_empty() {
                events_out.remove(&(owner, id));
            }
        });
        if !events.wanted() {
            for following in &mut events.following {
                *following = Following::default();
            }
            for node in self.peers.others(self.me.node) {
                // An empty item ends all following.
                self.frames().say(node, item::FOLLOW, |_| {});
            }
        }
    }

    /// Follows a group at its current leader.
    pub(crate) fn follow_leader(&mut self, id: GroupId) {
        if !self.coordinator.events.wanted() {
            return;
        }
        let Some((term, leader)) = self.leadership_of(id) else {
            return;
        };
        let following = &mut self.coordinator.events.following[id.0 as usize];
        if following.leader == Some((term, leader)) {
            return;
        }
        let seen = following.seen;
        if leader == self.me.node {
            self.follow_here(id, seen);
        } else {
            self.send_follow(leader, &[(id, seen)]);
        }
    }

    fn send_follow(&mut self, to: NodeId, groups: &[(GroupId, Option<u64>)]) {
        self.frames().say(to, item::FOLLOW, |out| {
            for (group, seen) in groups {
                out.put(group);
                out.put(seen);
            }
        });
    }

    /// This node leads the group itself.
    fn follow_here(&mut self, id: GroupId, seen: Option<u64>) {
        let Some(run) = self.events_since(id, seen) else {
            return;
        };
        self.take_events(id, self.me.node, run);
    }

    /// Returns the events after a sequence number, from a group that this node leads.
    fn events_since(&self, id: GroupId, seen: Option<u64>) -> Option<EventRun> {
        let group = self.group_ref(id).filter(|group| group.is_led())?;
        let last = group.machine.last_event();
        let events = match seen.filter(|seen| *seen < last) {
            None => Vec::new(),
            Some(seen) => match group.machine.events_after(seen) {
                EventsAfter::Complete(events) | EventsAfter::Hole(events) => events,
            },
        };
        Some(EventRun {
            term: group.term(),
            after: seen.unwrap_or(last).min(last),
            last,
            events,
        })
    }

    /// Asks again for groups that are not followed yet or whose events were lost.
    pub(crate) fn follow_again(&mut self) {
        for at in 0..self.groups.len() {
            self.follow_leader(group_at(at));
        }
        let Events {
            unswept, postponed, ..
        } = &mut self.coordinator.events;
        unswept.append(postponed);
        self.fanout_grants();
    }

    pub(crate) fn follow_node(&mut self, node: NodeId) {
        self.events_peer_down(node);
        for at in 0..self.groups.len() {
            if self
                .leader_of(group_at(at))
                .is_some_and(|leader| leader.node == node)
            {
                self.follow_leader(group_at(at));
            }
        }
    }

    pub(crate) fn events_peer_down(&mut self, node: NodeId) {
        for following in &mut self.coordinator.events.following {
            if following.leader.is_some_and(|(_, leader)| leader == node) {
                following.leader = None;
            }
        }
        for followers in &mut self.coordinator.events.followers {
            followers.remove(&node);
        }
    }

    pub(crate) fn events_led(&mut self, id: GroupId) {
        self.coordinator.events.followers[id.0 as usize].clear();
        self.follow_leader(id);
    }

    pub(crate) fn events_not_led(&mut self, id: GroupId) {
        self.coordinator.events.followers[id.0 as usize].clear();
        let following = &mut self.coordinator.events.following[id.0 as usize];
        if following
            .leader
            .is_some_and(|(_, leader)| leader == self.me.node)
        {
            following.leader = None;
        }
    }

    pub(crate) fn receive_follow(
        &mut self,
        from: NodeId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        if content.is_empty() {
            for followers in &mut self.coordinator.events.followers {
                followers.remove(&from);
            }
            return Ok(());
        }
        while !content.is_empty() {
            let id = content.take()?;
            let seen = content.option()?;
            let Some(run) = self.events_since(id, seen) else {
                continue;
            };
            self.coordinator.events.followers[id.0 as usize].insert(from);
            self.send_events(from, id, &run);
        }
        Ok(())
    }

    /// Sends events, in several items where there are many.
    fn send_events(&mut self, to: NodeId, id: GroupId, run: &EventRun) {
        let encode = |events: &[Event]| {
            let mut out = Writer::versioned(128);
            out.list(events);
            out.into_bytes()
        };
        let mut parts = Vec::new();
        let mut bytes = 0;
        // Newest first, so that the size limit drops the oldest.
        for part in run.events.rchunks(EVENTS_AT_ONCE) {
            let encoded = encode(part);
            bytes += encoded.len();
            if bytes > MOST_BYTES {
                break;
            }
            let last = part.last().map_or(run.last, |event| event.sequence);
            parts.push((last, encoded));
        }
        match parts.first_mut() {
            Some((last, _)) => *last = run.last,
            None => parts.push((run.last, encode(&[]))),
        }
        let mut after = run.after;
        for (last, events) in parts.into_iter().rev() {
            self.frames().say(to, item::EVENTS, |out| {
                out.put(&id);
                out.number(run.term);
                out.number(after);
                out.number(last);
                out.raw(&events);
            });
            after = last;
        }
    }

    pub(crate) fn receive_events(
        &mut self,
        from: NodeId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let id = content.take()?;
        let (term, after, last) = (content.number()?, content.number()?, content.number()?);
        let events = from_bytes(content.rest())?;
        if id <= self.system() && self.coordinator.events.wanted() {
            let run = EventRun {
                term,
                after,
                last,
                events,
            };
            self.take_events(id, from, run);
        }
        Ok(())
    }

    fn take_events(&mut self, id: GroupId, leader: NodeId, run: EventRun) {
        let following = &mut self.coordinator.events.following[id.0 as usize];
        let first_word = following.seen.is_none();
        let seen = following.seen.unwrap_or(run.after);
        if run.after > seen {
            // Events were lost: ask for everything after the last one seen.
            following.leader = None;
            self.follow_leader(id);
            return;
        }
        following.leader = Some((run.term, leader));
        following.seen = Some(seen.max(run.last));
        for event in run.events {
            if event.sequence > seen {
                self.deliver(&event);
            }
        }
        if first_word {
            let Events {
                unswept, postponed, ..
            } = &mut self.coordinator.events;
            unswept.append(postponed);
            self.fanout_grants();
        }
    }

    /// Delivers an event of a group that this node leads.
    pub(crate) fn event_made(&mut self, id: GroupId, event: Event) {
        let followers = self.coordinator.events.followers[id.0 as usize].clone();
        let Some(term) = self.group_ref(id).map(|group| group.term()) else {
            return;
        };
        let run = EventRun {
            term,
            after: event.sequence.saturating_sub(1),
            last: event.sequence,
            events: vec![event],
        };
        for node in followers {
            self.send_events(node, id, &run);
        }
        if self.coordinator.events.wanted() {
            let me = self.me.node;
            let following = &self.coordinator.events.following[id.0 as usize];
            if following.leader == Some((term, me)) {
                self.take_events(id, me, run);
            }
        }
    }

    fn deliver(&mut self, event: &Event) {
        let Events {
            subscriptions,
            events_out,
            ..
        } = &mut self.coordinator.events;
        for id in subscriptions.streams_of(&event.owner) {
            if !events_out.is_empty()
                && let Some(events_out) = events_out.get_mut(&(event.owner.clone(), id))
            {
                if events_out.fanout_result.remove(&event.id) {
                    continue;
                }
                if !events_out.unswept.is_empty() {
                    events_out.heard.insert(event.id);
                }
            }
            let event = event.clone();
            self.outputs.push(Output::Event { id, event });
        }
    }

    /// Starts fan-outs for GRANTs that are older than a subscription and still in force. Each group
    /// is asked once it is followed; later grants arrive as ordinary events.
    fn fanout_grants(&mut self) {
        if self.coordinator.events.unswept.is_empty() {
            return;
        }
        let following = self.coordinator.events.following.iter().enumerate();
        let followed: GroupSet = following
            .filter(|(_, following)| following.seen.is_some())
            .map(|(at, _)| group_at(at))
            .collect();
        while self.coordinator.events.fanning_out < MAX_FANOUTS
            && let Some(subscription) = self.coordinator.events.unswept.pop_front()
        {
            let Some(events_out) = self.coordinator.events.events_out.get(&subscription) else {
                continue;
            };
            let groups = events_out.unswept.both(&followed);
            if groups.is_empty() {
                self.coordinator.events.postponed.push_back(subscription);
                continue;
            }
            self.coordinator.events.fanning_out += 1;
            let deadline = self.now_ms() + GRANTS_TIMEOUT_MS;
            let call = GrantsCall {
                subscription,
                groups,
            };
            self.begin(CallKind::Grants(Box::new(call)), deadline, None);
        }
        let unswept = &mut self.coordinator.events.unswept;
        if unswept.is_empty() && unswept.capacity() > 1024 {
            *unswept = VecDeque::new();
        }
    }

    pub(super) fn grants(
        &mut self,
        cx: &mut CallContext,
        call: &mut GrantsCall,
        happened: CallEvent,
    ) -> CallProgress {
        match happened {
            CallEvent::Start => {
                let fanout = Fanout::about(call.subscription.0.clone(), FanoutOp::Grants);
                self.fanout(cx, fanout, FanoutScope::ReachableOf(call.groups.clone()));
                CallProgress::Wait
            }
            CallEvent::FanoutResult(fanout_result) => {
                let mut grants = fanout_result.grants;
                grants.sort_by_key(|event| event.id);
                if let Some(events_out) = self
                    .coordinator
                    .events
                    .events_out
                    .get_mut(&call.subscription)
                {
                    events_out.unswept = events_out.unswept.without(&fanout_result.groups);
                    for event in grants {
                        if !events_out.heard.contains(&event.id)
                            && events_out.fanout_result.insert(event.id)
                        {
                            let id = call.subscription.1;
                            self.outputs.push(Output::Event { id, event });
                        }
                    }
                }
                CallProgress::ok(Answer::Done)
            }
            CallEvent::Op(..) | CallEvent::Table | CallEvent::Timer | CallEvent::Changed(_) => {
                CallProgress::Wait
            }
        }
    }

    pub(super) fn grants_ended(&mut self, call: &GrantsCall) {
        let events = &mut self.coordinator.events;
        events.fanning_out -= 1;
        if let Entry::Occupied(mut events_out) = events.events_out.entry(call.subscription.clone())
        {
            if !events_out.get().unswept.is_empty() {
                // Some groups could not be asked, or not in time: try again in a later tick.
                events.postponed.push_back(call.subscription.clone());
            } else if events_out.get().fanout_result.is_empty() {
                events_out.remove();
            } else {
                events_out.get_mut().heard = BTreeSet::new();
            }
        }
        self.fanout_grants();
    }
}

fn group_at(at: usize) -> GroupId {
    GroupId(u32::try_from(at).unwrap_or(u32::MAX))
}
