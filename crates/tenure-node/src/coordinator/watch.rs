//! Watches: all changes under a path prefix, without gaps (E8: Watch lock changes).
//!
//! A watch is registered with the leader of every group. Each leader numbers its messages. A change
//! of leader or a gap in the numbers closes the watch; the client then starts a new one with a
//! snapshot.
//!
//! Paging: the holds of a group can be more than a connection takes at once. The leader sends a
//! page, keeps the rest of the snapshot and the changes since, and continues when the watcher asks
//! for the next page. A watcher of release 0.1.0 knows no pages: it gets everything in one piece,
//! or its watch is closed.
//!
//! Cost: a snapshot takes time in proportion to the group, so a leader builds them within an
//! allowance per tick; a watcher that is not served asks again. The pages that wait for all
//! watchers together are limited. A watcher asks for pages only as fast as its reader takes them. A
//! change is one value that all watchers of a node share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tenure_core::event::LockChange;
use tenure_core::path::Namespace;
use tenure_core::{record, record_enum};

use crate::codec::{DecodeError, DecodeResult, Reader, from_bytes, to_bytes};
use crate::node::Node;
use crate::node::frames_item as item;
use crate::request::{EffectCertainty, Failure};
use crate::{GroupId, NodeId, Output, ReplicaId, StreamId, WatchEvent, WatchStart};

/// A watch that not all groups have confirmed by then is closed.
const START_TIMEOUT_MS: u64 = 10_000;
/// A page of a snapshot.
const PAGE_BYTES: usize = 512 * 1024;
/// Changes that may wait behind a snapshot; a watcher that is slower starts again.
const MOST_WAITING: usize = 4096;
/// Pages that the reader of a paced watch may leave unread before no more are asked for.
const MOST_UNREAD: usize = 8;
/// Paced watches of this node that may have parts of their snapshots at the same time; others wait.
const MOST_STARTING: usize = 16;
/// Holds and waiters that a leader copies into snapshots per tick: about a fifth of its time. A
/// larger group is copied at once, and the next one waits longer.
const COPIED_PER_TICK: i64 = 50_000;
/// Entries in the pages that wait for all watchers. The pages of a single group may be more.
const MOST_UNSENT: usize = 200_000;
/// A snapshot in one piece is at most this long.
const MOST_IN_ONE_PIECE: usize = 16 * 1024 * 1024;

/// The watches of this node, and those that it serves as a leader.
#[derive(Debug)]
pub(crate) struct Watches {
    streams: BTreeMap<StreamId, WatchState>,
    by_number: BTreeMap<u64, StreamId>,
    /// Entries that may be copied into snapshots until the next tick; negative after a large group.
    allowance: i64,
    /// Watches, of this node and of peers, on groups that this node leads.
    served: BTreeMap<(ReplicaId, u64), ServedWatch>,
    /// Watches of peers that support pages.
    paged: BTreeSet<(ReplicaId, u64)>,
    last_number: u64,
}

impl Watches {
    pub(crate) fn new(first: u64) -> Watches {
        Watches {
            streams: BTreeMap::new(),
            by_number: BTreeMap::new(),
            allowance: COPIED_PER_TICK,
            served: BTreeMap::new(),
            paged: BTreeSet::new(),
            last_number: first,
        }
    }

    /// Counts the entries in pages that wait to be asked for.
    fn unsent(&self) -> usize {
        let waiting = self
            .served
            .values()
            .flat_map(|served| served.waiting.values());
        waiting.flat_map(|paging| &paging.pages).map(Vec::len).sum()
    }

    /// Returns whether a watch must wait before it asks for its snapshot.
    fn must_wait(&self, watch: &WatchState) -> bool {
        let is_starting = |watch: &&WatchState| {
            let has_begun = !watch.heard.is_empty() && !watch.missing.is_empty();
            watch.is_paced && (has_begun || watch.unread > 0)
        };
        watch.is_paced
            && (watch.unread >= MOST_UNREAD
                || (watch.heard.is_empty()
                    && self.streams.values().filter(is_starting).count() >= MOST_STARTING))
    }

    fn remove(&mut self, id: StreamId) -> Option<WatchState> {
        let watch = self.streams.remove(&id)?;
        self.by_number.remove(&watch.number);
        Some(watch)
    }
}

#[derive(Debug)]
struct WatchState {
    number: u64,
    prefix: Namespace,
    start: WatchStart,
    since: u64,
    /// Per group the leader with its term, and the number of its messages received.
    heard: BTreeMap<GroupId, ((u64, NodeId), u64)>,
    missing: BTreeSet<GroupId>,
    /// Whether the reader says when it has taken a page.
    is_paced: bool,
    /// Pages that the reader of a paced watch has not taken yet.
    unread: usize,
    /// Leaders to ask for the next page of a group when the reader has taken some.
    next_pages: VecDeque<(NodeId, GroupId)>,
}

#[derive(Debug)]
struct ServedWatch {
    prefix: Namespace,
    /// Per group the number of messages sent.
    said: BTreeMap<GroupId, u64>,
    /// Snapshots whose next page the watcher has not asked for yet.
    waiting: BTreeMap<GroupId, Paging>,
}

/// The unsent pages of a snapshot, and the changes since.
#[derive(Debug)]
struct Paging {
    pages: VecDeque<Vec<LockChange>>,
    changes: Vec<Arc<LockChange>>,
}

/// A message of a leader to a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchMessage {
    pub(crate) number: u64,
    pub(crate) group: GroupId,
    /// The term of the leader.
    pub(crate) term: u64,
    /// Number of the message for this group and watch, from zero.
    pub(crate) count: u64,
    pub(crate) kind: WatchMessageKind,
    pub(crate) changes: Vec<LockChange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchMessageKind {
    /// The snapshot, or its last page.
    Present,
    /// A page of the snapshot; the next follows on request.
    Page,
    Changed,
    /// The sender no longer leads the group.
    Over,
}

record! { WatchMessage { number, group, term, count, kind, changes } }
record_enum! { WatchMessageKind as "watch message" {
    0 => Present, 1 => Changed, 2 => Over, 3 => Page,
} }

/// Returns the approximate encoded size of a change.
fn bytes_of(change: &LockChange) -> usize {
    let path = change.path.as_ref().map_or(0, |path| path.as_str().len());
    let owner = change.owner.as_ref().map_or(0, |name| name.as_str().len());
    let holder = change.holder.as_ref().map_or(0, |who| {
        let labels = who
            .labels
            .iter()
            .map(|(key, value)| key.len() + value.len());
        who.name.len() + who.host.len() + who.purpose.len() + labels.sum::<usize>()
    });
    64 + change.namespace.as_str().len() + path + owner + holder
}

/// Cuts a snapshot into pages; there is at least one.
fn pages_of(changes: Vec<LockChange>) -> VecDeque<Vec<LockChange>> {
    let mut pages = VecDeque::new();
    let (mut page, mut bytes) = (Vec::new(), 0);
    for change in changes {
        let more = bytes_of(&change);
        if bytes + more > PAGE_BYTES && !page.is_empty() {
            pages.push_back(std::mem::take(&mut page));
            bytes = 0;
        }
        bytes += more;
        page.push(change);
    }
    pages.push_back(page);
    pages
}

/// Whether a change concerns a prefix: it happened in a namespace below it, or on a path below it.
fn concerns(prefix: &Namespace, change: &LockChange) -> bool {
    if *prefix == change.namespace || prefix.encloses(&change.namespace) {
        return true;
    }
    change
        .path
        .as_ref()
        .is_some_and(|path| prefix.contains(path))
}

impl Node {
    pub(crate) fn watch(&mut self, id: StreamId, prefix: Namespace, start: WatchStart) {
        self.coordinator.watches.last_number += 1;
        let number = self.coordinator.watches.last_number;
        let missing = (0..self.config.cluster.group_count).map(GroupId).collect();
        let since = self.now_ms();
        let is_paced = start == WatchStart::PacedSnapshot;
        let start = match start {
            WatchStart::PacedSnapshot => WatchStart::Snapshot,
            start => start,
        };
        self.coordinator.watches.streams.insert(
            id,
            WatchState {
                number,
                prefix,
                start,
                is_paced,
                since,
                heard: BTreeMap::new(),
                missing,
                unread: 0,
                next_pages: VecDeque::new(),
            },
        );
        self.coordinator.watches.by_number.insert(number, id);
        self.register_watch(id);
    }

    /// Registers a watch with all known leaders that have not answered yet.
    fn register_watch(&mut self, id: StreamId) {
        let watches = &self.coordinator.watches;
        let Some(watch) = watches.streams.get(&id) else {
            return;
        };
        if watches.must_wait(watch) {
            return;
        }
        let (number, prefix, start) = (watch.number, watch.prefix.clone(), watch.start);
        let missing = watch.missing.clone();
        let mut by_leader: BTreeMap<NodeId, Vec<GroupId>> = BTreeMap::new();
        for group in missing {
            if let Some(leader) = self.leader_of(group) {
                by_leader.entry(leader.node).or_default().push(group);
            }
        }
        for (leader, groups) in by_leader {
            if leader == self.me.node {
                let me = self.me;
                for group in groups {
                    self.serve_watch(me, number, group, &prefix, start);
                }
            } else {
                if start == WatchStart::Snapshot {
                    self.frames().say(leader, item::WATCH_PAGES, |out| {
                        out.number(number);
                        out.put(&None::<GroupId>);
                    });
                }
                self.frames().say(leader, item::WATCH, |out| {
                    out.number(number);
                    out.byte(u8::from(start == WatchStart::Snapshot));
                    out.put(&prefix);
                    out.put(&groups);
                });
            }
        }
    }

    pub(crate) fn receive_watch(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let number = content.number()?;
        let start = match content.byte()? {
            0 => WatchStart::Changes,
            1 => WatchStart::Snapshot,
            2 => {
                self.coordinator.watches.served.remove(&(from, number));
                self.coordinator.watches.paged.remove(&(from, number));
                return Ok(());
            }
            found => {
                let of = "watch start";
                return Err(DecodeError::Tag { of, found });
            }
        };
        let prefix: Namespace = content.take()?;
        let groups: Vec<GroupId> = content.take()?;
        for group in groups {
            self.serve_watch(from, number, group, &prefix, start);
        }
        Ok(())
    }

    fn serve_watch(
        &mut self,
        from: ReplicaId,
        number: u64,
        id: GroupId,
        prefix: &Namespace,
        start: WatchStart,
    ) {
        let key = (from, number);
        let served = self.coordinator.watches.served.get(&key);
        if served.is_some_and(|served| served.waiting.contains_key(&id)) {
            // The watcher asked again because the pages take long: continue with them.
            return;
        }
        let (allowance, unsent) = (
            self.coordinator.watches.allowance,
            self.coordinator.watches.unsent(),
        );
        let Some(group) = self.group(id).filter(|group| group.is_led()) else {
            return;
        };
        // Uses the time of the log, not of the leader's clock: a pending entry may still grant a
        // waiter whose time is over now, and that change must fit the snapshot (E8).
        let now = group.machine.time();
        let Some(space) = group.machine.space_mut() else {
            return;
        };
        let mut copied = 0;
        let changes = match start {
            WatchStart::Snapshot | WatchStart::PacedSnapshot => {
                let counts = space.counts();
                copied = usize::try_from(counts.claims + counts.waiters).unwrap_or(usize::MAX);
                // The watcher asks again.
                if allowance <= 0 || (unsent > 0 && unsent + copied > MOST_UNSENT) {
                    return;
                }
                space.watch();
                space.watch_snapshot(prefix, now)
            }
            WatchStart::Changes => {
                space.watch();
                Vec::new()
            }
        };
        let copied = i64::try_from(copied).unwrap_or(i64::MAX);
        self.coordinator.watches.allowance = allowance.saturating_sub(copied);
        let served = self
            .coordinator
            .watches
            .served
            .entry((from, number))
            .or_insert_with(|| ServedWatch {
                prefix: prefix.clone(),
                said: BTreeMap::new(),
                waiting: BTreeMap::new(),
            });
        // A watcher that asks again, because the first message was slow or lost, gets the snapshot
        // again. The count continues over both, so that the watcher notices anything lost in
        // between.
        served.said.entry(id).or_insert(0);
        if from != self.me && !self.coordinator.watches.paged.contains(&key) {
            let bytes: usize = changes.iter().map(bytes_of).sum();
            if bytes > MOST_IN_ONE_PIECE {
                self.refuse_watch(key, id);
            } else {
                self.say_watch(key, id, WatchMessageKind::Present, changes);
            }
            return;
        }
        let paging = Paging {
            pages: pages_of(changes),
            changes: Vec::new(),
        };
        served.waiting.insert(id, paging);
        self.say_page(key, id);
    }

    /// Sends the next page of a snapshot, and after the last page the changes since.
    fn say_page(&mut self, key: (ReplicaId, u64), id: GroupId) {
        let Some(served) = self.coordinator.watches.served.get_mut(&key) else {
            return;
        };
        let Some(paging) = served.waiting.get_mut(&id) else {
            return;
        };
        let page = paging.pages.pop_front().unwrap_or_default();
        if !paging.pages.is_empty() {
            self.say_watch(key, id, WatchMessageKind::Page, page);
            return;
        }
        let changes = std::mem::take(&mut paging.changes);
        served.waiting.remove(&id);
        self.say_watch(key, id, WatchMessageKind::Present, page);
        for change in changes {
            self.say_change(key, id, &change);
        }
    }

    /// Sends a change of a group to a watch. A watch of this node gets the shared value.
    fn say_change(
        &mut self,
        (to, number): (ReplicaId, u64),
        id: GroupId,
        change: &Arc<LockChange>,
    ) {
        if to != self.me {
            let changes = vec![LockChange::clone(change)];
            self.say_watch((to, number), id, WatchMessageKind::Changed, changes);
            return;
        }
        let term = self.group_ref(id).map_or(0, |group| group.term());
        let watches = &mut self.coordinator.watches;
        let served = watches.served.get_mut(&(to, number));
        let Some(said) = served.and_then(|served| served.said.get_mut(&id)) else {
            return;
        };
        let count = *said;
        *said += 1;
        let Some(&stream) = watches.by_number.get(&number) else {
            self.stop_serving(to.node, number);
            return;
        };
        let watch = watches.streams.get_mut(&stream);
        let heard = watch.and_then(|watch| watch.heard.get_mut(&id));
        match heard {
            Some(heard) if *heard == ((term, to.node), count) => {
                heard.1 += 1;
                let change = WatchEvent::Changed(Arc::clone(change));
                self.outputs.push(Output::Change { id: stream, change });
            }
            _ => self.close_watch(stream),
        }
    }

    /// Handles the news that the reader of a watch has taken a page.
    pub(crate) fn watch_read(&mut self, id: StreamId) {
        let now_ms = self.now_ms();
        let Some(watch) = self.coordinator.watches.streams.get_mut(&id) else {
            return;
        };
        watch.unread = watch.unread.saturating_sub(1);
        // The reader makes progress, however slow.
        watch.since = now_ms;
        let number = watch.number;
        if watch.unread < MOST_UNREAD
            && let Some((leader, group)) = watch.next_pages.pop_front()
        {
            self.ask_page(leader, number, group);
        }
    }

    /// Closes the watch of a peer.
    fn refuse_watch(&mut self, key: (ReplicaId, u64), id: GroupId) {
        self.say_watch(key, id, WatchMessageKind::Over, Vec::new());
        if let Some(served) = self.coordinator.watches.served.get_mut(&key) {
            served.said.remove(&id);
            served.waiting.remove(&id);
        }
    }

    /// Handles a watcher's message that it supports pages or wants the next one.
    pub(crate) fn receive_watch_pages(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let number = content.number()?;
        match content.option()? {
            None => {
                self.coordinator.watches.paged.insert((from, number));
            }
            Some(group) => self.say_page((from, number), group),
        }
        Ok(())
    }

    /// Sends the next message about a group to a watch.
    fn say_watch(
        &mut self,
        (to, number): (ReplicaId, u64),
        id: GroupId,
        kind: WatchMessageKind,
        changes: Vec<LockChange>,
    ) {
        let term = self.group_ref(id).map_or(0, |group| group.term());
        let served = self.coordinator.watches.served.get_mut(&(to, number));
        let Some(said) = served.and_then(|served| served.said.get_mut(&id)) else {
            return;
        };
        let count = *said;
        *said += 1;
        let word = WatchMessage {
            number,
            group: id,
            term,
            count,
            kind,
            changes,
        };
        if to == self.me {
            self.hear_watch(to.node, word);
        } else {
            self.frames().say(to.node, item::CHANGES, |out| {
                out.number(u64::from(to.incarnation));
                out.raw(&to_bytes(&word));
            });
        }
    }

    pub(crate) fn receive_changes(
        &mut self,
        from: NodeId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let incarnation = content.number()?;
        let word = from_bytes(content.rest())?;
        if incarnation == u64::from(self.me.incarnation) {
            self.hear_watch(from, word);
        }
        Ok(())
    }

    /// Asks the leader for the next page of a group.
    fn ask_page(&mut self, leader: NodeId, number: u64, group: GroupId) {
        if leader == self.me.node {
            let me = self.me;
            self.say_page((me, number), group);
            return;
        }
        self.frames().say(leader, item::WATCH_PAGES, |out| {
            out.number(number);
            out.put(&Some(group));
        });
    }

    fn hear_watch(&mut self, from: NodeId, word: WatchMessage) {
        let now_ms = self.now_ms();
        let watches = &mut self.coordinator.watches;
        let id = watches.by_number.get(&word.number).copied();
        let watch = id.and_then(|id| Some((id, watches.streams.get_mut(&id)?)));
        let Some((id, watch)) = watch else {
            if word.kind != WatchMessageKind::Over {
                self.stop_serving(from, word.number);
            }
            return;
        };
        let expected = watch.heard.get(&word.group).copied();
        let fits = match (word.kind, expected) {
            (WatchMessageKind::Present | WatchMessageKind::Page, None) => true,
            (
                WatchMessageKind::Present | WatchMessageKind::Page | WatchMessageKind::Changed,
                Some((leader, count)),
            ) => leader == (word.term, from) && count == word.count,
            (WatchMessageKind::Changed, None) | (WatchMessageKind::Over, _) => false,
        };
        if !fits {
            self.close_watch(id);
            return;
        }
        watch
            .heard
            .insert(word.group, ((word.term, from), word.count + 1));
        let wants_start = watch.start == WatchStart::Snapshot;
        let group = word.group;
        let was_missing = if word.kind == WatchMessageKind::Page {
            // Pages of a large snapshot over a slow line may take long.
            watch.since = now_ms;
            watch.missing.contains(&group)
        } else {
            watch.missing.remove(&group)
        };
        let complete = was_missing && watch.missing.is_empty() && wants_start;
        let is_shown = was_missing && !word.changes.is_empty();
        if is_shown && watch.is_paced && word.kind != WatchMessageKind::Changed {
            watch.unread += 1;
        }
        if word.kind == WatchMessageKind::Page {
            let may_ask = watch.unread < MOST_UNREAD;
            if !may_ask {
                watch.next_pages.push_back((from, group));
            }
            if is_shown {
                let change = WatchEvent::Present(word.changes);
                self.outputs.push(Output::Change { id, change });
            }
            if may_ask {
                self.ask_page(from, word.number, group);
            }
            return;
        }
        if word.kind == WatchMessageKind::Present && !was_missing {
            // A duplicate answer, because we asked twice: ignore it.
            return;
        }
        match word.kind {
            WatchMessageKind::Present if word.changes.is_empty() => {}
            WatchMessageKind::Present => {
                let change = WatchEvent::Present(word.changes);
                self.outputs.push(Output::Change { id, change });
            }
            WatchMessageKind::Page | WatchMessageKind::Changed | WatchMessageKind::Over => {
                for change in word.changes {
                    let change = WatchEvent::Changed(Arc::new(change));
                    self.outputs.push(Output::Change { id, change });
                }
            }
        }
        if complete {
            let change = WatchEvent::SnapshotEnd;
            self.outputs.push(Output::Change { id, change });
        }
    }

    fn stop_serving(&mut self, node: NodeId, number: u64) {
        if node == self.me.node {
            let me = self.me;
            self.coordinator.watches.served.remove(&(me, number));
            return;
        }
        self.frames().say(node, item::WATCH, |out| {
            out.number(number);
            out.byte(2);
        });
    }

    fn close_watch(&mut self, id: StreamId) {
        if let Some(watch) = self.coordinator.watches.remove(id) {
            let leaders: BTreeSet<NodeId> =
                watch.heard.values().map(|((_, node), _)| *node).collect();
            for leader in leaders {
                self.stop_serving(leader, watch.number);
            }
            self.outputs.push(Output::Closed {
                id,
                why: Failure::Unavailable {
                    why: "changes were lost, so the watch has ended: start a new watch with a snapshot",
                    nothing_happened: EffectCertainty::Yes,
                },
            });
        }
    }

    pub(crate) fn unwatch(&mut self, id: StreamId) {
        if let Some(watch) = self.coordinator.watches.remove(id) {
            let mut nodes = self.peers.others(self.me.node);
            nodes.push(self.me.node);
            for node in nodes {
                self.stop_serving(node, watch.number);
            }
        }
    }

    /// Sends a change of a group that this node leads to its watches.
    pub(crate) fn change_made(&mut self, id: GroupId, change: LockChange) {
        let change = Arc::new(change);
        let (mut now, mut slow) = (Vec::new(), Vec::new());
        for (key, served) in &mut self.coordinator.watches.served {
            if !served.said.contains_key(&id) || !concerns(&served.prefix, &change) {
                continue;
            }
            match served.waiting.get_mut(&id) {
                None => now.push(*key),
                Some(paging) if paging.changes.len() >= MOST_WAITING => slow.push(*key),
                Some(paging) => paging.changes.push(Arc::clone(&change)),
            }
        }
        for key in now {
            self.say_change(key, id, &change);
        }
        for key in slow {
            self.refuse_watch(key, id);
        }
    }

    /// Registers waiting watches with a new leader.
    pub(crate) fn watches_led(&mut self, _id: GroupId) {
        let ids: Vec<StreamId> = self.coordinator.watches.streams.keys().copied().collect();
        for id in ids {
            self.register_watch(id);
        }
    }

    pub(crate) fn watches_not_led(&mut self, id: GroupId) {
        if let Some(space) = self.group(id).and_then(|group| group.machine.space_mut()) {
            space.unwatch();
        }
        let served = self.coordinator.watches.served.iter();
        let told = served.filter(|(_, served)| served.said.contains_key(&id));
        let told: Vec<(ReplicaId, u64)> = told.map(|(key, _)| *key).collect();
        for key in told {
            self.refuse_watch(key, id);
        }
    }

    /// Closes watches when a group has a new leader: changes in between would be missed.
    pub(crate) fn watches_leader_changed(&mut self, group: GroupId) {
        let Some(leadership) = self.leadership_of(group) else {
            return;
        };
        let broken: Vec<StreamId> = self
            .coordinator
            .watches
            .streams
            .iter()
            .filter(|(_, watch)| {
                watch
                    .heard
                    .get(&group)
                    .is_some_and(|(heard, _)| *heard < leadership)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in broken {
            self.close_watch(id);
        }
    }

    pub(crate) fn watches_peer_down(&mut self, node: NodeId) {
        self.coordinator
            .watches
            .served
            .retain(|(watcher, _), _| watcher.node != node);
        self.coordinator
            .watches
            .paged
            .retain(|(watcher, _)| watcher.node != node);
        let broken: Vec<StreamId> = self
            .coordinator
            .watches
            .streams
            .iter()
            .filter(|(_, watch)| watch.heard.values().any(|((_, leader), _)| *leader == node))
            .map(|(id, _)| *id)
            .collect();
        for id in broken {
            self.close_watch(id);
        }
    }

    pub(crate) fn tick_watches(&mut self) {
        let now_ms = self.now_ms();
        let watches = &mut self.coordinator.watches;
        watches.allowance = (watches.allowance + COPIED_PER_TICK).min(COPIED_PER_TICK);
        let waiting: Vec<(StreamId, u64)> = self
            .coordinator
            .watches
            .streams
            .iter()
            .filter(|(_, watch)| !watch.missing.is_empty() || watch.unread > 0)
            .map(|(id, watch)| (*id, watch.since))
            .collect();
        for (id, since) in waiting {
            if since + START_TIMEOUT_MS <= now_ms {
                self.close_watch(id);
            } else {
                self.register_watch(id);
            }
        }
    }
}
