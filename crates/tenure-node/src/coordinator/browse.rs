//! Lists for people, from all groups: the children of a prefix, the waiters, the history (E20–E22).
//!
//! One fan-out: each node merges what its groups contain, and the asking node merges the nodes. A
//! group that no leader answers for is left out and counted, so that an operator sees the rest.

use std::collections::BTreeMap;

use tenure_core::query::{ChildPage, HistoryPage, WaitPage};
use tenure_core::record_enum;
use tenure_core::value::OwnerId;

use super::fanout::{Fanout, FanoutOp, FanoutScope};
use super::{CallContext, CallEvent, CallProgress, odd_answer};
use crate::GroupId;
use crate::group_set::GroupSet;
use crate::node::Node;
use crate::request::{Answer, BrowseAnswer, BrowseQuery, BrowseResult, EffectCertainty, Failure};

record_enum! { BrowseQuery as "list" {
    1(prefix, after, page) => Children { prefix, after, page },
    2(page) => Waits { page },
    3(prefix, since, page) => History { prefix, since, page },
} }
record_enum! { BrowseResult as "listed" {
    1(page) => Children(page),
    2(page) => Waits(page),
    3(page) => History(page),
} }

pub(super) struct BrowseCall {
    query: BrowseQuery,
}

impl BrowseCall {
    pub(super) fn new(query: BrowseQuery) -> BrowseCall {
        BrowseCall { query }
    }
}

impl Node {
    pub(super) fn browse(
        &mut self,
        cx: &mut CallContext,
        call: &mut BrowseCall,
        happened: CallEvent,
    ) -> CallProgress {
        match happened {
            CallEvent::Start | CallEvent::Table | CallEvent::Timer => {
                if !self.knows_forms() {
                    self.await_table(cx, 0);
                    return CallProgress::Wait;
                }
                if !self.has_newer_forms() {
                    return CallProgress::fail(Failure::Unavailable {
                        why: "some nodes run an older release that cannot list locks: upgrade them",
                        nothing_happened: EffectCertainty::Yes,
                    });
                }
                let any_owner = OwnerId::new("-").expect("one byte is a valid owner id");
                let fanout = Fanout::about(any_owner, FanoutOp::Browse(call.query.clone()));
                self.fanout(cx, fanout, FanoutScope::Reachable);
                CallProgress::Wait
            }
            CallEvent::FanoutResult(found) => {
                let all = self.config.cluster.group_count;
                let answered = u32::try_from(found.groups.len()).unwrap_or(all);
                let mut result = match found.browsed {
                    Some(result) => *result,
                    None => empty(&call.query),
                };
                cut(&call.query, &mut result);
                CallProgress::ok(Answer::Browse(Box::new(BrowseAnswer {
                    result,
                    missing_groups: all.saturating_sub(answered),
                })))
            }
            CallEvent::Op(_) | CallEvent::Changed(_) => CallProgress::fail(odd_answer()),
        }
    }

    /// Reads groups whose leadership was confirmed after the question.
    pub(super) fn browse_groups(&mut self, number: u64, query: &BrowseQuery, groups: &GroupSet) {
        // What a full page has already shows what the other groups need not read.
        let mut bound = PageBound::default();
        for id in groups.iter() {
            let Some(result) = self.browse_group(id, query, &bound) else {
                continue;
            };
            let merged = self.add_browsed(number, id, result);
            if let Some(merged) = merged {
                cut(query, merged);
                bound = PageBound::of(query, merged);
            }
        }
    }

    fn browse_group(
        &mut self,
        id: GroupId,
        query: &BrowseQuery,
        bound: &PageBound,
    ) -> Option<BrowseResult> {
        let now_ms = self.turn.now_ms;
        let group = self.groups.get_mut(id.0 as usize)?.as_mut()?;
        let now = group.lead().lease_time(now_ms)?;
        let space = group.machine.space_mut()?;
        Some(match query {
            BrowseQuery::Children {
                prefix,
                after,
                page,
            } => {
                let mut page = space.children(
                    prefix.as_ref(),
                    after.as_deref(),
                    bound.last.as_deref(),
                    *page as usize,
                    now,
                );
                for held in page.children.iter_mut().flat_map(|one| &mut one.holders) {
                    held.lease_left_ms =
                        group.lease_left(&held.namespace, &held.hold.owner, now_ms);
                }
                BrowseResult::Children(page)
            }
            BrowseQuery::Waits { page } => BrowseResult::Waits(space.waits(*page as usize, now)),
            BrowseQuery::History {
                prefix,
                since,
                page,
            } => {
                let since = bound.since.max(*since);
                BrowseResult::History(space.history(prefix.as_ref(), since, *page as usize))
            }
        })
    }
}

/// What a full page excludes.
#[derive(Default)]
struct PageBound {
    /// No child after this name is on the page.
    last: Option<String>,
    /// No change before this time is on the page.
    since: u64,
}

impl PageBound {
    fn of(query: &BrowseQuery, merged: &BrowseResult) -> PageBound {
        let mut bound = PageBound::default();
        match (query, merged) {
            (BrowseQuery::Children { page, .. }, BrowseResult::Children(found))
                if found.children.len() >= *page as usize =>
            {
                bound.last = found.children.last().map(|child| child.name.clone());
            }
            (BrowseQuery::History { page, .. }, BrowseResult::History(found))
                if found.events.len() >= *page as usize =>
            {
                bound.since = found.events.first().map_or(0, |event| event.wall);
            }
            _ => {}
        }
        bound
    }
}

fn empty(query: &BrowseQuery) -> BrowseResult {
    match query {
        BrowseQuery::Children { .. } => BrowseResult::Children(ChildPage::default()),
        BrowseQuery::Waits { .. } => BrowseResult::Waits(WaitPage::default()),
        BrowseQuery::History { .. } => BrowseResult::History(HistoryPage::default()),
    }
}

/// Adds one result to another. The sum may be longer than a page: see [`cut`].
pub(super) fn merge(into: &mut Option<Box<BrowseResult>>, other: Option<Box<BrowseResult>>) {
    let Some(other) = other else {
        return;
    };
    let Some(into) = into else {
        *into = Some(other);
        return;
    };
    match (&mut **into, *other) {
        (BrowseResult::Children(into), BrowseResult::Children(other)) => {
            if !other.children.is_empty() {
                let both = into.children.drain(..).chain(other.children);
                let mut children = BTreeMap::new();
                for child in both {
                    match children.entry(child.name.clone()) {
                        std::collections::btree_map::Entry::Vacant(free) => {
                            free.insert(child);
                        }
                        std::collections::btree_map::Entry::Occupied(mut there) => {
                            let there = there.get_mut();
                            there.holds += child.holds;
                            there.waiters += child.waiters;
                            there.is_branch |= child.is_branch;
                            there.is_minimum |= child.is_minimum;
                            there.holders.extend(child.holders);
                        }
                    }
                }
                into.children = children.into_values().collect();
            }
            into.until = match (into.until.take(), other.until) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            };
        }
        (BrowseResult::Waits(into), BrowseResult::Waits(other)) => {
            into.waits.extend(other.waits);
            into.count += other.count;
        }
        (BrowseResult::History(into), BrowseResult::History(other)) => {
            into.events.extend(other.events);
            into.complete_since = into.complete_since.max(other.complete_since);
            into.is_cut |= other.is_cut;
        }
        // Only a faulty peer answers another question.
        _ => {}
    }
}

/// Orders a result and cuts it to one page.
fn cut(query: &BrowseQuery, result: &mut BrowseResult) {
    match (query, result) {
        (BrowseQuery::Children { page, .. }, BrowseResult::Children(found)) => {
            if let Some(until) = &found.until {
                found.children.retain(|child| child.name <= *until);
            }
            if found.children.len() > *page as usize {
                found.children.truncate(*page as usize);
                found.until = found.children.last().map(|child| child.name.clone());
            }
        }
        (BrowseQuery::Waits { page }, BrowseResult::Waits(found)) => {
            found
                .waits
                .sort_by_key(|wait| std::cmp::Reverse(wait.waiter.waited_ms));
            found.waits.truncate(*page as usize);
        }
        (BrowseQuery::History { page, .. }, BrowseResult::History(found)) => {
            // Stable: changes of one group stay in the order in which they were applied.
            found.events.sort_by_key(|event| event.wall);
            let most = *page as usize;
            if found.events.len() > most {
                found.events.drain(..found.events.len() - most);
            }
            // The other groups were not asked for older ones.
            found.is_cut |= found.events.len() >= most;
        }
        _ => {}
    }
}
