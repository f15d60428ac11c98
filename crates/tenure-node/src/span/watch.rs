//! Watches: everything that changes under a prefix, without a hole (E8).
//!
//! A watch is registered with the leader of every group and lives as long as all of them lead and
//! every word of theirs arrives: each numbers what it says. Anything else closes it; whoever
//! watches begins again with a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::event::LockChange;
use tenure_core::path::Namespace;

use crate::codec::{CodecError, Read, Reader};
use crate::node::Node;
use crate::node::frames_item as item;
use crate::request::{Certain, Failure};
use crate::span::wire;
use crate::{GroupId, Member, NodeId, Output, StreamId, WatchEvent, WatchStart};

/// A watch that not all groups have confirmed by then is closed.
const START_TIMEOUT_MS: u64 = 10_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Watches {
    streams: BTreeMap<StreamId, Watch>,
    /// Who watches the groups that are led here.
    served: BTreeMap<(Member, u64), Served>,
    last_number: u64,
}

impl Watches {
    pub(crate) fn new(first: u64) -> Watches {
        Watches {
            streams: BTreeMap::new(),
            served: BTreeMap::new(),
            last_number: first,
        }
    }
}

#[derive(Debug)]
struct Watch {
    number: u64,
    prefix: Namespace,
    start: WatchStart,
    since: u64,
    /// The leader of each group in its term, and how many of its words have come.
    heard: BTreeMap<GroupId, ((u64, NodeId), u64)>,
    missing: BTreeSet<GroupId>,
}

#[derive(Debug)]
struct Served {
    prefix: Namespace,
    /// How many words were said for each group.
    said: BTreeMap<GroupId, u64>,
}

/// What a leader says to a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) number: u64,
    pub(crate) group: GroupId,
    /// The term of who says it.
    pub(crate) term: u64,
    /// Counts what is said of this group to this watch, from zero.
    pub(crate) count: u64,
    pub(crate) kind: WordKind,
    pub(crate) changes: Vec<LockChange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordKind {
    /// What is there; the first word.
    Present,
    Changed,
    /// It does not lead any more.
    Over,
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
        self.span.watches.last_number += 1;
        let number = self.span.watches.last_number;
        let missing = (0..self.config.cluster.group_count).map(GroupId).collect();
        let since = self.reading();
        self.span.watches.streams.insert(
            id,
            Watch {
                number,
                prefix,
                start,
                since,
                heard: BTreeMap::new(),
                missing,
            },
        );
        self.register_watch(id);
    }

    /// Registers with the leaders that are known and have not answered yet.
    fn register_watch(&mut self, id: StreamId) {
        let Some(watch) = self.span.watches.streams.get(&id) else {
            return;
        };
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
                self.frames().say(leader, item::WATCH, |out| {
                    out.number(number);
                    out.byte(u8::from(start == WatchStart::Snapshot));
                    out.text(prefix.as_str());
                    out.count(groups.len());
                    for group in groups {
                        out.number(u64::from(group.0));
                    }
                });
            }
        }
    }

    pub(crate) fn receive_watch(&mut self, from: Member, mut content: Reader) -> Read<()> {
        let number = content.number()?;
        let start = match content.byte()? {
            0 => WatchStart::Changes,
            1 => WatchStart::Snapshot,
            2 => {
                self.span.watches.served.remove(&(from, number));
                return Ok(());
            }
            other => {
                return Err(CodecError::Unknown {
                    what: "watch start",
                    number: u64::from(other),
                });
            }
        };
        let prefix =
            Namespace::parse(&content.text()?).map_err(|_| CodecError::Invalid("prefix"))?;
        let count = content.count(1)?;
        for _ in 0..count {
            let group = GroupId(content.small()?);
            self.serve_watch(from, number, group, &prefix, start);
        }
        Ok(())
    }

    fn serve_watch(
        &mut self,
        from: Member,
        number: u64,
        id: GroupId,
        prefix: &Namespace,
        start: WatchStart,
    ) {
        let Some(group) = self.group(id).filter(|group| group.is_led()) else {
            return;
        };
        // What is there by the log, not by the leader's clock: an entry that is under way may still
        // grant a place whose time is over now, and its change must fit what was shown (E8).
        let now = group.machine.time();
        let term = group.term();
        let Some(space) = group.machine.space_mut() else {
            return;
        };
        space.watch();
        let changes = match start {
            WatchStart::Snapshot => space.watch_snapshot(prefix, now),
            WatchStart::Changes => Vec::new(),
        };
        let served = self
            .span
            .watches
            .served
            .entry((from, number))
            .or_insert_with(|| Served {
                prefix: prefix.clone(),
                said: BTreeMap::new(),
            });
        // Who asks again, because the first word was slow or lost, is told again; one count goes
        // through all words, so that nothing between the two can be missed.
        let said = served.said.entry(id).or_insert(0);
        let count = *said;
        *said += 1;
        self.say_watch(
            from,
            Word {
                number,
                group: id,
                term,
                count,
                kind: WordKind::Present,
                changes,
            },
        );
    }

    fn say_watch(&mut self, to: Member, word: Word) {
        if to == self.me {
            self.hear_watch(to.node, word);
        } else {
            let word = wire::encode_word(&word);
            self.frames().say(to.node, item::CHANGES, |out| {
                out.number(u64::from(to.life));
                out.raw(&word);
            });
        }
    }

    pub(crate) fn receive_changes(&mut self, from: NodeId, mut content: Reader) -> Read<()> {
        let life = content.number()?;
        let word = wire::decode_word(&content.rest())?;
        if life == u64::from(self.me.life) {
            self.hear_watch(from, word);
        }
        Ok(())
    }

    fn hear_watch(&mut self, from: NodeId, word: Word) {
        let streams = &mut self.span.watches.streams;
        let Some((id, watch)) = streams
            .iter_mut()
            .find(|(_, watch)| watch.number == word.number)
        else {
            if word.kind != WordKind::Over {
                self.stop_serving(from, word.number);
            }
            return;
        };
        let id = *id;
        let expected = watch.heard.get(&word.group).copied();
        let fits = match (word.kind, expected) {
            (WordKind::Present, None) => true,
            (WordKind::Present | WordKind::Changed, Some((leader, count))) => {
                leader == (word.term, from) && count == word.count
            }
            (WordKind::Changed, None) | (WordKind::Over, _) => false,
        };
        if !fits {
            self.close_watch(id);
            return;
        }
        watch
            .heard
            .insert(word.group, ((word.term, from), word.count + 1));
        let wants_start = watch.start == WatchStart::Snapshot;
        let was_missing = watch.missing.remove(&word.group);
        let complete = was_missing && watch.missing.is_empty() && wants_start;
        if word.kind == WordKind::Present && !was_missing {
            // Asked twice because the answer was slow: nothing new.
            return;
        }
        match word.kind {
            WordKind::Present if word.changes.is_empty() => {}
            WordKind::Present => {
                let change = WatchEvent::Present(word.changes);
                self.outputs.push(Output::Change { id, change });
            }
            WordKind::Changed | WordKind::Over => {
                for change in word.changes {
                    let change = WatchEvent::Changed(change);
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
            self.span.watches.served.remove(&(me, number));
            return;
        }
        self.frames().say(node, item::WATCH, |out| {
            out.number(number);
            out.byte(2);
        });
    }

    fn close_watch(&mut self, id: StreamId) {
        if let Some(watch) = self.span.watches.streams.remove(&id) {
            let leaders: BTreeSet<NodeId> =
                watch.heard.values().map(|((_, node), _)| *node).collect();
            for leader in leaders {
                self.stop_serving(leader, watch.number);
            }
            self.outputs.push(Output::Closed {
                id,
                why: Failure::Unavailable {
                    why: "the watch cannot go on without a hole: watch again with a snapshot",
                    nothing_happened: Certain::Yes,
                },
            });
        }
    }

    pub(crate) fn unwatch(&mut self, id: StreamId) {
        if let Some(watch) = self.span.watches.streams.remove(&id) {
            let mut nodes = self.peers.others(self.me.node);
            nodes.push(self.me.node);
            for node in nodes {
                self.stop_serving(node, watch.number);
            }
        }
    }

    /// Something changed in a group that is led here.
    pub(crate) fn change_made(&mut self, id: GroupId, change: LockChange) {
        let term = self.group_ref(id).map_or(0, |group| group.term());
        let mut words = Vec::new();
        for ((node, number), served) in &mut self.span.watches.served {
            if let Some(said) = served.said.get_mut(&id)
                && concerns(&served.prefix, &change)
            {
                words.push((*node, *number, *said));
                *said += 1;
            }
        }
        for (node, number, count) in words {
            let word = Word {
                number,
                group: id,
                term,
                count,
                kind: WordKind::Changed,
                changes: vec![change.clone()],
            };
            self.say_watch(node, word);
        }
    }

    /// A watch that waited for this leader registers with it.
    pub(crate) fn watches_led(&mut self, _id: GroupId) {
        let ids: Vec<StreamId> = self.span.watches.streams.keys().copied().collect();
        for id in ids {
            self.register_watch(id);
        }
    }

    pub(crate) fn watches_not_led(&mut self, id: GroupId) {
        let term = self.group_ref(id).map_or(0, |group| group.term());
        if let Some(space) = self.group(id).and_then(|group| group.machine.space_mut()) {
            space.unwatch();
        }
        let mut words = Vec::new();
        for ((node, number), served) in &mut self.span.watches.served {
            if let Some(count) = served.said.remove(&id) {
                words.push((*node, *number, count));
            }
        }
        for (node, number, count) in words {
            let word = Word {
                number,
                group: id,
                term,
                count,
                kind: WordKind::Over,
                changes: Vec::new(),
            };
            self.say_watch(node, word);
        }
    }

    /// Another leader than the one that speaks: whatever it did before is missed.
    pub(crate) fn watches_leader_changed(&mut self, group: GroupId) {
        let Some(leadership) = self.leadership_of(group) else {
            return;
        };
        let broken: Vec<StreamId> = self
            .span
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
        self.span
            .watches
            .served
            .retain(|(watcher, _), _| watcher.node != node);
        let broken: Vec<StreamId> = self
            .span
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
        let reading = self.reading();
        let waiting: Vec<(StreamId, u64)> = self
            .span
            .watches
            .streams
            .iter()
            .filter(|(_, watch)| !watch.missing.is_empty())
            .map(|(id, watch)| (*id, watch.since))
            .collect();
        for (id, since) in waiting {
            if since + START_TIMEOUT_MS <= reading {
                self.close_watch(id);
            } else {
                self.register_watch(id);
            }
        }
    }
}
