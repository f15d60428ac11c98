//! Events to subscribers on any node (R119–R124).
//!
//! ```text
//!   leader: event made ─▶ every node that follows the group ─▶ the owner's subscribers there
//! ```
//!
//! A node with a subscriber follows every group: it tells the leader the last sequence it has seen,
//! gets what came after, and then everything that is made. Under a new leader it does the same, so
//! nothing is lost and nothing is told twice. A new subscription is followed by a sweep for the
//! GRANT that came before it and still stands (R122): over each group as soon as that group is followed, so
//! that a group without a leader holds back no event of another.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_core::event::Event;
use tenure_core::query::EventsAfter;
use tenure_core::value::OwnerId;

use super::subscriptions::Subscriptions;
use super::sweep::{Scope, Sweep, What};
use super::{Context, Happened, Kind, Progress};
use crate::codec::{Read, Reader};
use crate::config::Config;
use crate::groups::GroupSet;
use crate::node::Node;
use crate::node::frames_item as item;
use crate::request::Answer;
use crate::span::wire;
use crate::{GroupId, NodeId, Output, StreamId};

/// So many sweeps for standing grants run at once: each asks every group, and a client that
/// subscribes for many owners must not use up the budget of calls.
const MAX_SWEEPING: usize = 16;
/// How long the sweep for standing grants may take.
const GRANTS_TIMEOUT_MS: u64 = 10_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Events {
    /// Whose events go where.
    subscriptions: Subscriptions,
    /// What is special about the few that are new or were told something as such.
    news: BTreeMap<Subscription, News>,
    /// Those for whom groups are to be swept, and some that are gone.
    unswept: VecDeque<Subscription>,
    /// Those for whom only groups are left that cannot be asked now; a later tick looks again.
    postponed: VecDeque<Subscription>,
    /// How many sweeps for standing grants are under way.
    sweeping: usize,
    /// For each group: what this node has seen of it, while it follows.
    following: Vec<Following>,
    /// For each group that is led here: the nodes that follow it.
    followers: Vec<BTreeSet<NodeId>>,
}

/// An owner, and the stream that its events go to.
type Subscription = (OwnerId, StreamId);

#[derive(Debug)]
struct News {
    /// Groups that were not swept yet for a grant that came before the subscription.
    unswept: GroupSet,
    /// What was told by the way of all events while groups are to be swept, to be left out of the sweeps. By
    /// their ids.
    heard: BTreeSet<u64>,
    /// What a sweep told, to be left out should it come by the way of all events, too. By their ids.
    swept: BTreeSet<u64>,
}

#[derive(Clone, Debug, Default)]
struct Following {
    /// The last sequence seen; `None` before the first word of a leader.
    seen: Option<u64>,
    /// The leadership that tells us what is made, and its term.
    leader: Option<(u64, NodeId)>,
}

/// Consecutive events of one group: all that follow `after`, up to `last`.
#[derive(Debug)]
struct Run {
    /// The term of the leader that tells them.
    term: u64,
    after: u64,
    last: u64,
    events: Vec<Event>,
}

/// The internal call that looks for standing grants.
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
            news: BTreeMap::new(),
            unswept: VecDeque::new(),
            postponed: VecDeque::new(),
            sweeping: 0,
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
        let first = !self.span.events.wanted();
        let unswept = GroupSet::below(self.config.cluster.group_count);
        let events = &mut self.span.events;
        if !events.subscriptions.insert(&owner, id) {
            return;
        }
        let subscription = (owner, id);
        events.unswept.push_back(subscription.clone());
        let news = News {
            unswept,
            heard: BTreeSet::new(),
            swept: BTreeSet::new(),
        };
        events.news.insert(subscription, news);
        if first {
            for at in 0..self.groups.len() {
                self.span.events.following[at] = Following::default();
                self.follow_leader(group_at(at));
            }
        }
        self.sweep_grants();
    }

    pub(crate) fn unsubscribe(&mut self, id: StreamId) {
        let events = &mut self.span.events;
        if !events.wanted() {
            return;
        }
        let news = &mut events.news;
        events.subscriptions.end(id, |owner| {
            if !news.is_empty() {
                news.remove(&(owner, id));
            }
        });
        if !events.wanted() {
            for following in &mut events.following {
                *following = Following::default();
            }
            for node in self.peers.others(self.me.node) {
                // Nothing is followed any more.
                self.frames().say(node, item::FOLLOW, |_| {});
            }
        }
    }

    /// Follows a group at its present leader.
    pub(crate) fn follow_leader(&mut self, id: GroupId) {
        if !self.span.events.wanted() {
            return;
        }
        let Some((term, leader)) = self.leadership_of(id) else {
            return;
        };
        let following = &mut self.span.events.following[id.0 as usize];
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
                out.number(u64::from(group.0));
                out.maybe(*seen);
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

    /// The events behind a sequence, from a group that is led here.
    fn events_since(&self, id: GroupId, seen: Option<u64>) -> Option<Run> {
        let group = self.group_ref(id).filter(|group| group.is_led())?;
        let last = group.machine.last_event();
        let events = match seen.filter(|seen| *seen < last) {
            None => Vec::new(),
            Some(seen) => match group.machine.events_after(seen) {
                EventsAfter::Complete(events) | EventsAfter::Hole(events) => events,
            },
        };
        Some(Run {
            term: group.term(),
            after: seen.unwrap_or(last).min(last),
            last,
            events,
        })
    }

    /// What is not followed yet, or was lost on the way, is asked for again.
    pub(crate) fn follow_again(&mut self) {
        for at in 0..self.groups.len() {
            self.follow_leader(group_at(at));
        }
        let Events {
            unswept, postponed, ..
        } = &mut self.span.events;
        unswept.append(postponed);
        self.sweep_grants();
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
        for following in &mut self.span.events.following {
            if following.leader.is_some_and(|(_, leader)| leader == node) {
                following.leader = None;
            }
        }
        for followers in &mut self.span.events.followers {
            followers.remove(&node);
        }
    }

    pub(crate) fn events_led(&mut self, id: GroupId) {
        self.span.events.followers[id.0 as usize].clear();
        self.follow_leader(id);
    }

    pub(crate) fn events_not_led(&mut self, id: GroupId) {
        self.span.events.followers[id.0 as usize].clear();
        let following = &mut self.span.events.following[id.0 as usize];
        if following
            .leader
            .is_some_and(|(_, leader)| leader == self.me.node)
        {
            following.leader = None;
        }
    }

    pub(crate) fn receive_follow(&mut self, from: NodeId, mut content: Reader) -> Read<()> {
        if content.is_empty() {
            for followers in &mut self.span.events.followers {
                followers.remove(&from);
            }
            return Ok(());
        }
        while !content.is_empty() {
            let id = GroupId(content.small()?);
            let seen = content.maybe()?;
            let Some(run) = self.events_since(id, seen) else {
                continue;
            };
            self.span.events.followers[id.0 as usize].insert(from);
            self.send_events(from, id, &run);
        }
        Ok(())
    }

    fn send_events(&mut self, to: NodeId, id: GroupId, run: &Run) {
        let events = wire::encode_events(&run.events);
        self.frames().say(to, item::EVENTS, |out| {
            out.number(u64::from(id.0));
            out.number(run.term);
            out.number(run.after);
            out.number(run.last);
            out.raw(&events);
        });
    }

    pub(crate) fn receive_events(&mut self, from: NodeId, mut content: Reader) -> Read<()> {
        let id = GroupId(content.small()?);
        let (term, after, last) = (content.number()?, content.number()?, content.number()?);
        let events = wire::decode_events(&content.rest())?;
        if id <= self.system() && self.span.events.wanted() {
            let run = Run {
                term,
                after,
                last,
                events,
            };
            self.take_events(id, from, run);
        }
        Ok(())
    }

    fn take_events(&mut self, id: GroupId, leader: NodeId, run: Run) {
        let following = &mut self.span.events.following[id.0 as usize];
        let first_word = following.seen.is_none();
        let seen = following.seen.unwrap_or(run.after);
        if run.after > seen {
            // Something was lost on the way: ask for what follows the last one seen.
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
            } = &mut self.span.events;
            unswept.append(postponed);
            self.sweep_grants();
        }
    }

    /// An event was made by a group that is led here.
    pub(crate) fn event_made(&mut self, id: GroupId, event: Event) {
        let followers = self.span.events.followers[id.0 as usize].clone();
        let Some(term) = self.group_ref(id).map(|group| group.term()) else {
            return;
        };
        let run = Run {
            term,
            after: event.sequence.saturating_sub(1),
            last: event.sequence,
            events: vec![event],
        };
        for node in followers {
            self.send_events(node, id, &run);
        }
        if self.span.events.wanted() {
            let me = self.me.node;
            let following = &self.span.events.following[id.0 as usize];
            if following.leader == Some((term, me)) {
                self.take_events(id, me, run);
            }
        }
    }

    fn deliver(&mut self, event: &Event) {
        let Events {
            subscriptions,
            news,
            ..
        } = &mut self.span.events;
        for id in subscriptions.streams_of(&event.owner) {
            if !news.is_empty()
                && let Some(news) = news.get_mut(&(event.owner.clone(), id))
            {
                if news.swept.remove(&event.id) {
                    continue;
                }
                if !news.unswept.is_empty() {
                    news.heard.insert(event.id);
                }
            }
            let event = event.clone();
            self.outputs.push(Output::Event { id, event });
        }
    }

    /// Which GRANT came before the subscription and still stands? Asked of each group once it is followed:
    /// what it grants later comes by the way of all events.
    fn sweep_grants(&mut self) {
        if self.span.events.unswept.is_empty() {
            return;
        }
        let following = self.span.events.following.iter().enumerate();
        let followed: GroupSet = following
            .filter(|(_, following)| following.seen.is_some())
            .map(|(at, _)| group_at(at))
            .collect();
        while self.span.events.sweeping < MAX_SWEEPING
            && let Some(subscription) = self.span.events.unswept.pop_front()
        {
            let Some(news) = self.span.events.news.get(&subscription) else {
                continue;
            };
            let groups = news.unswept.both(&followed);
            if groups.is_empty() {
                self.span.events.postponed.push_back(subscription);
                continue;
            }
            self.span.events.sweeping += 1;
            let deadline = self.reading() + GRANTS_TIMEOUT_MS;
            let call = GrantsCall {
                subscription,
                groups,
            };
            self.begin(Kind::Grants(Box::new(call)), deadline, None);
        }
        let unswept = &mut self.span.events.unswept;
        if unswept.is_empty() && unswept.capacity() > 1024 {
            *unswept = VecDeque::new();
        }
    }

    pub(super) fn grants(
        &mut self,
        cx: &mut Context,
        call: &mut GrantsCall,
        happened: Happened,
    ) -> Progress {
        match happened {
            Happened::Start => {
                let sweep = Sweep::about(call.subscription.0.clone(), What::Grants);
                self.sweep(cx, sweep, Scope::ReachableOf(call.groups.clone()));
                Progress::Wait
            }
            Happened::Swept(swept) => {
                let mut grants = swept.grants;
                grants.sort_by_key(|event| event.id);
                if let Some(news) = self.span.events.news.get_mut(&call.subscription) {
                    news.unswept = news.unswept.without(&swept.groups);
                    for event in grants {
                        if !news.heard.contains(&event.id) && news.swept.insert(event.id) {
                            let id = call.subscription.1;
                            self.outputs.push(Output::Event { id, event });
                        }
                    }
                }
                Progress::ok(Answer::Done)
            }
            Happened::Op(..) | Happened::Table | Happened::Timer | Happened::Changed(_) => {
                Progress::Wait
            }
        }
    }

    pub(super) fn grants_ended(&mut self, call: &GrantsCall) {
        let events = &mut self.span.events;
        events.sweeping -= 1;
        if let Entry::Occupied(mut news) = events.news.entry(call.subscription.clone()) {
            if !news.get().unswept.is_empty() {
                // Some groups could not be asked, or not in time: look again, but not at once.
                events.postponed.push_back(call.subscription.clone());
            } else if news.get().swept.is_empty() {
                news.remove();
            } else {
                news.get_mut().heard = BTreeSet::new();
            }
        }
        self.sweep_grants();
    }
}

fn group_at(at: usize) -> GroupId {
    GroupId(u32::try_from(at).unwrap_or(u32::MAX))
}
