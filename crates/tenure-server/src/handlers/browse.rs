//! Lists for people: ListChildren, ListWaits and History (E20–E22).
//!
//! A caller sees what it may observe. Of a child that it may observe only in part it sees the name,
//! which leads to that part, and no counts.

use std::collections::HashMap;

use tenure_core::auth::{Target, Verb};
use tenure_core::event::ChangeKind;
use tenure_core::path::{Namespace, Path};
use tenure_core::query::{Child, HistoryEvent};
use tenure_node::{Answer, BrowseAnswer, BrowseQuery, BrowseResult, ClientRequest};
use tenure_wire::v1;

use super::deadlock::names;
use super::{internal, mismatch};
use crate::auth::{self, Caller};
use crate::convert;
use crate::rpc::{Facts, Outcome, ValidCall};
use crate::status::Failure;

const PAGE: u32 = 64;
const LONGEST_PAGE: u32 = 512;
const HISTORY_PAGE: u32 = 256;
const LONGEST_HISTORY: u32 = 2048;

fn page(asked: u32, default: u32, most: u32) -> u32 {
    match asked {
        0 => default,
        asked => asked.min(most),
    }
}

fn prefix(text: &str) -> Result<Option<Namespace>, Failure> {
    match text {
        "" => Ok(None),
        text => convert::namespace(text).map(Some),
    }
}

fn asked(query: BrowseQuery, prefix: String, exact: bool) -> ValidCall {
    ValidCall {
        request: Box::new(ClientRequest::Browse(query)),
        facts: Facts {
            list: Some(Box::new((prefix, exact))),
            ..Facts::default()
        },
    }
}

fn of_list(outcome: &Outcome<'_>) -> (String, bool) {
    let list = outcome.facts.list.as_deref();
    list.cloned().unwrap_or_default()
}

fn opened(outcome: Outcome<'_>) -> Result<(BrowseAnswer, &Caller), Failure> {
    match outcome.open()? {
        (Answer::Browse(answer), caller) => Ok((*answer, caller)),
        (other, _) => Err(mismatch(&other)),
    }
}

/// Parses a request for the children of a prefix.
pub(crate) fn children(
    caller: &Caller,
    request: v1::ListChildrenRequest,
) -> Result<ValidCall, Failure> {
    let at = prefix(&request.prefix)?;
    if let Some(prefix) = &at {
        auth::judge_watch(caller, prefix)?;
    }
    let query = BrowseQuery::Children {
        prefix: at,
        after: (!request.after.is_empty()).then_some(request.after),
        page: page(request.page, PAGE, LONGEST_PAGE),
    };
    Ok(asked(query, request.prefix, false))
}

pub(crate) fn children_listed(outcome: Outcome<'_>) -> Result<v1::ListChildrenResponse, Failure> {
    let (prefix, _) = of_list(&outcome);
    let (answer, caller) = opened(outcome)?;
    let BrowseResult::Children(found) = answer.result else {
        return Err(internal(&"another list than asked for"));
    };
    let children = found.children.iter();
    Ok(v1::ListChildrenResponse {
        children: children
            .filter_map(|child| child_out(caller, &prefix, child))
            .collect(),
        done: found.until.is_none(),
        next: found.until.unwrap_or_default(),
        missing_groups: answer.missing_groups,
    })
}

fn child_out(caller: &Caller, prefix: &str, child: &Child) -> Option<v1::Child> {
    let path = child_path(prefix, &child.name);
    let at = Namespace::parse(&path).ok()?;
    auth::judge_watch(caller, &at).ok()?;
    let sees_all = caller.may(Verb::Observe, Target::Below(&at));
    let holders = child.holders.iter();
    Some(v1::Child {
        name: child.name.clone(),
        path,
        holds: if sees_all { child.holds } else { 0 },
        waiters: if sees_all { child.waiters } else { 0 },
        branch: child.is_branch,
        minimum: child.is_minimum,
        partial: !sees_all,
        holders: holders
            .filter(|held| caller.observes(&held.hold.path))
            .map(|held| convert::blocker_out(caller, &held.hold, held.lease_left_ms))
            .collect(),
    })
}

/// Returns the path of a child: what a client sends to see the children of it.
fn child_path(prefix: &str, name: &str) -> String {
    match prefix {
        "" => name.to_owned(),
        prefix if !prefix.contains(':') => format!("{prefix}:/{name}"),
        prefix if prefix.ends_with('/') => format!("{prefix}{name}"),
        prefix => format!("{prefix}/{name}"),
    }
}

/// Parses a request for the waiters.
pub(crate) fn waits(_: &Caller, request: v1::ListWaitsRequest) -> Result<ValidCall, Failure> {
    let query = BrowseQuery::Waits {
        page: page(request.page, PAGE, LONGEST_PAGE),
    };
    Ok(asked(query, String::new(), false))
}

pub(crate) fn waits_listed(outcome: Outcome<'_>) -> Result<v1::ListWaitsResponse, Failure> {
    let (answer, caller) = opened(outcome)?;
    let BrowseResult::Waits(found) = answer.result else {
        return Err(internal(&"another list than asked for"));
    };
    let waits = found.waits.iter();
    let waits = waits.filter(|wait| caller.observes(&wait.waiter.path));
    Ok(v1::ListWaitsResponse {
        waits: waits
            .map(|wait| v1::Wait {
                owner: caller.shown(&wait.waiter.owner).into_owned(),
                holder: wait.waiter.holder.as_ref().map(convert::holder_out),
                path: wait.waiter.path.as_str().to_owned(),
                mode: convert::mode_number(wait.waiter.mode),
                waited_ms: wait.waiter.waited_ms,
                paths: wait.paths,
                blockers: names(caller, &wait.blockers),
            })
            .collect(),
        count: match caller.may(Verb::Observe, Target::Everything) {
            true => found.count,
            false => 0,
        },
        missing_groups: answer.missing_groups,
    })
}

/// Parses a request for the history of a prefix.
pub(crate) fn history(caller: &Caller, request: v1::HistoryRequest) -> Result<ValidCall, Failure> {
    let at = prefix(&request.prefix)?;
    if let Some(prefix) = &at {
        auth::judge_watch(caller, prefix)?;
    }
    let query = BrowseQuery::History {
        prefix: at,
        since: request.since_ms,
        page: page(request.page, HISTORY_PAGE, LONGEST_HISTORY),
    };
    Ok(asked(query, request.prefix, request.exact))
}

pub(crate) fn history_listed(outcome: Outcome<'_>) -> Result<v1::HistoryResponse, Failure> {
    let (prefix, exact) = of_list(&outcome);
    let exact = exact.then_some(prefix);
    let (answer, caller) = opened(outcome)?;
    let BrowseResult::History(found) = answer.result else {
        return Err(internal(&"another list than asked for"));
    };
    let is_wanted = |event: &&HistoryEvent| {
        exact.as_ref().is_none_or(|exact| *exact == event.path) && sees(caller, event)
    };
    let events: Vec<v1::HistoryEvent> = found
        .events
        .iter()
        .filter(is_wanted)
        .map(|event| event_out(caller, event))
        .collect();
    Ok(v1::HistoryResponse {
        spans: spans(&events),
        events,
        complete_since_ms: found.complete_since,
        cut: found.is_cut,
        missing_groups: answer.missing_groups,
    })
}

fn sees(caller: &Caller, event: &HistoryEvent) -> bool {
    match Path::parse(&event.path) {
        Ok(path) => caller.observes(&path),
        Err(_) => Namespace::parse(&event.path)
            .is_ok_and(|name| caller.may(Verb::Observe, Target::Below(&name))),
    }
}

fn event_out(caller: &Caller, event: &HistoryEvent) -> v1::HistoryEvent {
    let kind = match event.kind {
        ChangeKind::Granted => v1::ChangeKind::Granted,
        ChangeKind::Queued => v1::ChangeKind::Queued,
        ChangeKind::Released => v1::ChangeKind::Released,
        ChangeKind::Expired => v1::ChangeKind::Expired,
        ChangeKind::Killed => v1::ChangeKind::Killed,
        ChangeKind::Dequeued => v1::ChangeKind::Dequeued,
        ChangeKind::Asked => v1::ChangeKind::Asked,
        ChangeKind::Policy { .. } => v1::ChangeKind::Policy,
    };
    let owner = event.owner.as_ref();
    v1::HistoryEvent {
        at_ms: event.wall,
        kind: kind.into(),
        path: event.path.clone(),
        owner: owner.map_or_else(String::new, |owner| caller.shown(owner).into_owned()),
        mode: event.mode.map_or(0, convert::mode_number),
        fence: convert::fence_number(event.fence),
        holder: event.holder.as_ref().map(convert::holder_out),
    }
}

/// Pairs changes: one span from the request over the grant to the end.
fn spans(events: &[v1::HistoryEvent]) -> Vec<v1::HistorySpan> {
    let mut spans: Vec<v1::HistorySpan> = Vec::new();
    // The span of each owner, path and mode that has not ended.
    let mut open: HashMap<(&str, &str, i32), usize> = HashMap::new();
    for event in events {
        let key = (event.owner.as_str(), event.path.as_str(), event.mode);
        let is_end = match event.kind() {
            v1::ChangeKind::Queued | v1::ChangeKind::Granted => false,
            v1::ChangeKind::Released
            | v1::ChangeKind::Expired
            | v1::ChangeKind::Killed
            | v1::ChangeKind::Dequeued => true,
            _ => continue,
        };
        let at = *open.entry(key).or_insert_with(|| {
            spans.push(v1::HistorySpan {
                path: event.path.clone(),
                owner: event.owner.clone(),
                mode: event.mode,
                ..Default::default()
            });
            spans.len() - 1
        });
        let Some(span) = spans.get_mut(at) else {
            continue;
        };
        if event.fence != 0 {
            span.fence = event.fence;
        }
        if event.holder.is_some() {
            span.holder.clone_from(&event.holder);
        }
        if is_end {
            span.ended_ms = event.at_ms;
            span.end = event.kind;
            open.remove(&key);
        } else if event.kind() == v1::ChangeKind::Queued {
            span.queued_ms = event.at_ms;
        } else if span.granted_ms == 0 {
            span.granted_ms = event.at_ms;
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ms: u64, owner: &str, kind: v1::ChangeKind) -> v1::HistoryEvent {
        v1::HistoryEvent {
            at_ms,
            kind: kind.into(),
            path: "t:/a".to_owned(),
            owner: owner.to_owned(),
            ..Default::default()
        }
    }

    /// A hold whose beginning is not in the ring any more has an end and no beginning.
    #[test]
    fn changes_become_spans() {
        use v1::ChangeKind::*;
        let events = [
            event(1, "old", Released),
            event(2, "amy", Granted),
            event(3, "bob", Queued),
            event(4, "cid", Queued),
            event(5, "amy", Asked),
            event(6, "amy", Expired),
            event(7, "bob", Granted),
            event(8, "cid", Dequeued),
            event(9, "bob", Released),
            event(10, "bob", Granted),
        ];
        let spans = spans(&events);
        let short: Vec<_> = spans
            .iter()
            .map(|span| {
                let times = (span.queued_ms, span.granted_ms, span.ended_ms);
                (span.owner.as_str(), times, span.end())
            })
            .collect();
        assert_eq!(
            short,
            [
                ("old", (0, 0, 1), Released),
                ("amy", (0, 2, 6), Expired),
                ("bob", (3, 7, 9), Released),
                ("cid", (4, 0, 8), Dequeued),
                ("bob", (0, 10, 0), Unspecified),
            ]
        );
    }

    #[test]
    fn the_path_of_a_child_leads_to_its_children() {
        assert_eq!(child_path("", "vol"), "vol");
        assert_eq!(child_path("vol", "a"), "vol:/a");
        assert_eq!(child_path("vol", ""), "vol:/");
        assert_eq!(child_path("vol:/", "a"), "vol:/a");
        assert_eq!(child_path("vol:/a", "b"), "vol:/a/b");
    }
}
