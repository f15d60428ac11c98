//! Encoding of operations, answers, fan-outs, events and watches between nodes.
//!
//! tenure-core encodes its own values; this module encodes only what surrounds them. Everything
//! starts with a version byte, and every decoder refuses trailing bytes.

#[cfg(test)]
mod tests;

use bytes::Bytes;
use tenure_core::codec::{DecodeError, Reader, Writer};
use tenure_core::command::{ReleaseCause, Selection};
use tenure_core::deadlock::WaitPosition;
use tenure_core::event::{ChangeKind, Event, LockChange};
use tenure_core::namespace_table::AffectedGroups;
use tenure_core::path::Path;
use tenure_core::query::{
    DumpCursor, DumpPage, Explanation, FenceCheck, HeldLock, Inspection, WaiterView, WaitsFor,
};
use tenure_core::system::{AfterChange, ChangeView};
use tenure_core::value::Holder;

use super::fanout::{Fanout, FanoutOp, FanoutResult};
use super::watch::{WatchMessage, WatchMessageKind};
use crate::codec::{CodecError, DecodeResult, VERSION};
use crate::group_op::{GroupOp, GroupOpResult, GroupQuery, QueryResult};
use crate::group_set::GroupSet;
use crate::{GroupId, ReplicaId};

type TakeBytes<T> = Result<T, DecodeError>;

fn write(content: impl FnOnce(&mut Writer)) -> Bytes {
    let mut out = Writer::append_to(Vec::with_capacity(128));
    out.byte(VERSION);
    content(&mut out);
    Bytes::from(out.into_bytes())
}

fn read<T>(bytes: &[u8], content: impl FnOnce(&mut Reader<'_>) -> TakeBytes<T>) -> DecodeResult<T> {
    let mut input = Reader::new(bytes);
    let value = input
        .version(VERSION)
        .and_then(|()| content(&mut input))
        .and_then(|value| input.finish().map(|()| value));
    value.map_err(|_| CodecError::Invalid("item"))
}

fn unknown<T>(of: &'static str, found: u8) -> TakeBytes<T> {
    Err(DecodeError::Tag { of, found })
}

pub(crate) fn encode_op(op: &GroupOp) -> Bytes {
    write(|out| match op {
        GroupOp::Command(command) => {
            out.byte(1);
            out.put(command);
        }
        GroupOp::System(command) => {
            out.byte(2);
            out.put(&**command);
        }
        GroupOp::Renew(renew) => {
            out.byte(3);
            out.put(renew);
        }
        GroupOp::Read(query) => {
            out.byte(4);
            put_query(out, query);
        }
    })
}

pub(crate) fn decode_op(bytes: &[u8]) -> DecodeResult<GroupOp> {
    read(bytes, |input| {
        Ok(match input.byte()? {
            1 => GroupOp::Command(input.take()?),
            2 => GroupOp::System(input.take()?),
            3 => GroupOp::Renew(input.take()?),
            4 => GroupOp::Read(take_query(input)?),
            found => return unknown("operation", found),
        })
    })
}

fn put_query(out: &mut Writer, query: &GroupQuery) {
    match query {
        GroupQuery::Assert {
            owner,
            fence,
            paths,
        } => {
            out.byte(1);
            out.put(owner);
            out.put(fence);
            out.list(paths);
        }
        GroupQuery::Inspect { route, path } => {
            out.byte(2);
            out.put(route);
            out.put(path);
        }
        GroupQuery::Blocking {
            route,
            owner,
            path,
            reason,
        } => {
            out.byte(3);
            out.put(route);
            out.put(owner);
            out.put(path);
            out.put(reason);
        }
        GroupQuery::Explain {
            route,
            owner,
            path,
            mode,
        } => {
            out.byte(4);
            out.put(route);
            out.put(owner);
            out.put(path);
            out.put(mode);
        }
        GroupQuery::Dump { after, page } => {
            out.byte(5);
            out.option(after.map(|DumpCursor(after)| after).as_ref());
            out.put(page);
        }
        GroupQuery::Edge { owner } => {
            out.byte(6);
            out.put(owner);
        }
        GroupQuery::Table { known } => {
            out.byte(7);
            out.option(known.as_ref());
        }
        GroupQuery::Policy { namespace } => {
            out.byte(8);
            out.put(namespace);
        }
        GroupQuery::Policies { after, page } => {
            out.byte(9);
            out.option(after.as_ref());
            out.put(page);
        }
        GroupQuery::Nothing => out.byte(10),
        GroupQuery::Born { namespace, owner } => {
            out.byte(11);
            out.put(namespace);
            out.put(owner);
        }
        GroupQuery::Change { change } => {
            out.byte(12);
            out.put(change);
        }
        GroupQuery::Claimed { claim } => {
            out.byte(13);
            out.put(&**claim);
        }
        GroupQuery::Ended { change } => {
            out.byte(14);
            out.put(change);
        }
    }
}

fn take_query(input: &mut Reader<'_>) -> TakeBytes<GroupQuery> {
    Ok(match input.byte()? {
        1 => GroupQuery::Assert {
            owner: input.take()?,
            fence: input.take()?,
            paths: input.list()?,
        },
        2 => GroupQuery::Inspect {
            route: input.take()?,
            path: input.take()?,
        },
        3 => GroupQuery::Blocking {
            route: input.take()?,
            owner: input.take()?,
            path: input.take()?,
            reason: input.take()?,
        },
        4 => GroupQuery::Explain {
            route: input.take()?,
            owner: input.take()?,
            path: input.take()?,
            mode: input.take()?,
        },
        5 => GroupQuery::Dump {
            after: input.option::<u64>()?.map(DumpCursor),
            page: input.take()?,
        },
        6 => GroupQuery::Edge {
            owner: input.take()?,
        },
        7 => GroupQuery::Table {
            known: input.option()?,
        },
        8 => GroupQuery::Policy {
            namespace: input.take()?,
        },
        9 => GroupQuery::Policies {
            after: input.option()?,
            page: input.take()?,
        },
        10 => GroupQuery::Nothing,
        11 => GroupQuery::Born {
            namespace: input.take()?,
            owner: input.take()?,
        },
        12 => GroupQuery::Change {
            change: input.take()?,
        },
        // Since rules 2.
        13 => GroupQuery::Claimed {
            claim: input.take()?,
        },
        14 => GroupQuery::Ended {
            change: input.take()?,
        },
        found => return unknown("query", found),
    })
}

pub(crate) fn encode_answer(answer: &GroupOpResult) -> Bytes {
    write(|out| match answer {
        GroupOpResult::Applied {
            outcome,
            lease_left_ms,
        } => {
            out.byte(1);
            out.put(outcome);
            out.option(lease_left_ms.as_ref());
        }
        GroupOpResult::System(outcome) => {
            out.byte(2);
            out.put(outcome);
        }
        GroupOpResult::Renewed(Ok(renewed)) => {
            out.byte(3);
            out.put(renewed);
        }
        GroupOpResult::Renewed(Err(missing)) => {
            out.byte(4);
            out.put(missing);
        }
        GroupOpResult::Found(found) => {
            out.byte(5);
            put_found(out, found);
        }
        GroupOpResult::NotHere { leader } => {
            out.byte(7);
            out.option(leader.map(ReplicaId::pack).as_ref());
        }
        GroupOpResult::Busy => out.byte(8),
        GroupOpResult::Unknown => out.byte(9),
        GroupOpResult::TooLong => out.byte(10),
    })
}

pub(crate) fn decode_answer(bytes: &[u8]) -> DecodeResult<GroupOpResult> {
    read(bytes, |input| {
        Ok(match input.byte()? {
            1 => GroupOpResult::Applied {
                outcome: input.take()?,
                lease_left_ms: input.option()?,
            },
            2 => GroupOpResult::System(input.take()?),
            3 => GroupOpResult::Renewed(Ok(input.take()?)),
            4 => GroupOpResult::Renewed(Err(input.take()?)),
            5 => GroupOpResult::Found(Box::new(take_found(input)?)),
            7 => GroupOpResult::NotHere {
                leader: input.option::<u64>()?.and_then(ReplicaId::unpack),
            },
            8 => GroupOpResult::Busy,
            9 => GroupOpResult::Unknown,
            10 => GroupOpResult::TooLong,
            found => return unknown("answer", found),
        })
    })
}

fn put_found(out: &mut Writer, found: &QueryResult) {
    match found {
        QueryResult::Assert(failed) => {
            out.byte(1);
            match failed {
                None => out.byte(0),
                Some((at, check)) => {
                    out.byte(1);
                    out.put(at);
                    put_check(out, *check);
                }
            }
        }
        QueryResult::Inspect(inspection) => {
            out.byte(2);
            out.option(inspection.writer.as_ref());
            out.list(&inspection.readers);
            out.list(&inspection.permit_holders);
            out.option(inspection.fence.as_ref());
            out.put(&inspection.waiters);
        }
        QueryResult::Blocking(blocking) => {
            out.byte(3);
            out.put(blocking);
        }
        QueryResult::Explain { explanation, left } => {
            out.byte(4);
            put_explanation(out, explanation);
            out.length(left.len());
            for one in left {
                out.option(one.as_ref());
            }
        }
        QueryResult::Dump(page) => {
            out.byte(5);
            put_locks(out, &page.locks);
            out.option(page.next.map(|DumpCursor(next)| next).as_ref());
        }
        QueryResult::Edge(edge) => {
            out.byte(6);
            out.option(edge.as_ref());
        }
        QueryResult::Table(table) => {
            out.byte(7);
            out.option(table.as_ref());
        }
        QueryResult::Policy {
            algorithm,
            explicit,
        } => {
            out.byte(8);
            out.put(algorithm);
            out.put(explicit);
        }
        QueryResult::Policies { rows, done } => {
            out.byte(9);
            out.list(rows);
            out.put(done);
        }
        QueryResult::Nothing => out.byte(10),
        QueryResult::Born(born) => {
            out.byte(11);
            out.option(born.as_ref());
        }
        QueryResult::Outdated { version } => {
            out.byte(12);
            out.put(version);
        }
        QueryResult::Claimed {
            rules,
            before,
            work,
        } => {
            out.byte(14);
            out.put(rules);
            out.option(before.as_ref());
            out.option(work.as_ref());
        }
        QueryResult::Ended(end) => {
            out.byte(15);
            out.option(end.as_ref());
        }
        QueryResult::Change(view) => {
            out.byte(13);
            match view {
                None => out.byte(0),
                Some(view) => {
                    out.byte(1);
                    out.put(&view.change);
                    out.put(&view.region);
                    out.put(&(view.reach == AffectedGroups::AllGroups));
                    out.put(&view.command);
                    put_then(out, &view.then);
                }
            }
        }
    }
}

fn take_found(input: &mut Reader<'_>) -> TakeBytes<QueryResult> {
    Ok(match input.byte()? {
        1 => QueryResult::Assert(match input.take::<bool>()? {
            false => None,
            true => Some((input.take()?, take_check(input)?)),
        }),
        2 => QueryResult::Inspect(Inspection {
            writer: input.option()?,
            readers: input.list()?,
            permit_holders: input.list()?,
            fence: input.option()?,
            waiters: input.take()?,
        }),
        3 => QueryResult::Blocking(input.take()?),
        4 => {
            let explanation = take_explanation(input)?;
            let count = input.length()?;
            let mut left = Vec::new();
            for _ in 0..count {
                left.push(input.option()?);
            }
            QueryResult::Explain { explanation, left }
        }
        5 => QueryResult::Dump(DumpPage {
            locks: take_locks(input)?,
            next: input.option::<u64>()?.map(DumpCursor),
        }),
        6 => QueryResult::Edge(input.option()?),
        7 => QueryResult::Table(input.option()?),
        8 => QueryResult::Policy {
            algorithm: input.take()?,
            explicit: input.take()?,
        },
        9 => QueryResult::Policies {
            rows: input.list()?,
            done: input.take()?,
        },
        10 => QueryResult::Nothing,
        11 => QueryResult::Born(input.option()?),
        12 => QueryResult::Outdated {
            version: input.take()?,
        },
        13 => QueryResult::Change(match input.take::<bool>()? {
            false => None,
            true => Some(ChangeView {
                change: input.take()?,
                region: input.take()?,
                reach: if input.take()? {
                    AffectedGroups::AllGroups
                } else {
                    AffectedGroups::OwnGroup
                },
                command: input.take()?,
                then: take_then(input)?,
            }),
        }),
        14 => QueryResult::Claimed {
            rules: input.take()?,
            before: input.option()?,
            work: input.option()?,
        },
        15 => QueryResult::Ended(input.option()?),
        found => return unknown("finding", found),
    })
}

fn put_check(out: &mut Writer, check: FenceCheck) {
    match check {
        FenceCheck::Valid => out.byte(0),
        FenceCheck::StaleOwner => out.byte(1),
        FenceCheck::StaleFence { current } => {
            out.byte(2);
            out.put(&current);
        }
    }
}

fn take_check(input: &mut Reader<'_>) -> TakeBytes<FenceCheck> {
    Ok(match input.byte()? {
        0 => FenceCheck::Valid,
        1 => FenceCheck::StaleOwner,
        2 => FenceCheck::StaleFence {
            current: input.take()?,
        },
        found => return unknown("fence check", found),
    })
}

fn put_explanation(out: &mut Writer, explanation: &Explanation) {
    out.put(&explanation.namespace);
    out.put(&explanation.algorithm);
    out.option(explanation.conflict.as_ref());
    out.list(&explanation.blockers);
    out.length(explanation.ahead.len());
    for waiter in &explanation.ahead {
        out.put(&waiter.waiter);
        out.put(&waiter.owner);
        out.put(&waiter.path);
        out.put(&waiter.mode);
        out.put(&waiter.waited_ms);
        out.option(waiter.holder.as_ref());
    }
    out.put(&explanation.position);
}

fn take_explanation(input: &mut Reader<'_>) -> TakeBytes<Explanation> {
    let (namespace, algorithm) = (input.take()?, input.take()?);
    let (conflict, blockers) = (input.option()?, input.list()?);
    let count = input.length()?;
    let mut ahead = Vec::new();
    for _ in 0..count {
        ahead.push(WaiterView {
            waiter: input.take()?,
            owner: input.take()?,
            path: input.take()?,
            mode: input.take()?,
            waited_ms: input.take()?,
            holder: input.option()?,
        });
    }
    Ok(Explanation {
        namespace,
        algorithm,
        conflict,
        blockers,
        ahead,
        position: input.take()?,
    })
}

fn put_locks(out: &mut Writer, locks: &[HeldLock]) {
    out.length(locks.len());
    for lock in locks {
        out.put(&lock.owner);
        out.put(&lock.namespace);
        out.put(&lock.path);
        out.put(&lock.mode);
        out.option(lock.fence.as_ref());
    }
}

fn take_locks(input: &mut Reader<'_>) -> TakeBytes<Vec<HeldLock>> {
    let count = input.length()?;
    let mut locks = Vec::new();
    for _ in 0..count {
        locks.push(HeldLock {
            owner: input.take()?,
            namespace: input.take()?,
            path: input.take()?,
            mode: input.take()?,
            fence: input.option()?,
        });
    }
    Ok(locks)
}

fn put_then(out: &mut Writer, then: &AfterChange) {
    match then {
        AfterChange::Decide => out.byte(0),
        AfterChange::Finish { version } => {
            out.byte(1);
            out.put(version);
        }
        AfterChange::FinishRefused { live } => {
            out.byte(2);
            out.put(live);
        }
    }
}

fn take_then(input: &mut Reader<'_>) -> TakeBytes<AfterChange> {
    Ok(match input.byte()? {
        0 => AfterChange::Decide,
        1 => AfterChange::Finish {
            version: input.take()?,
        },
        2 => AfterChange::FinishRefused {
            live: input.take()?,
        },
        found => return unknown("step of a change", found),
    })
}

pub(crate) fn encode_fanout(fanout: &Fanout, groups: &GroupSet) -> Bytes {
    write(|out| {
        out.put(&fanout.owner);
        out.put(&fanout.selection);
        match &fanout.what {
            FanoutOp::Renew(ttl) => {
                out.byte(1);
                out.put(ttl);
            }
            FanoutOp::ReleaseAll(ReleaseCause::Owner) => out.byte(2),
            FanoutOp::ReleaseAll(ReleaseCause::Killed) => out.byte(3),
            FanoutOp::Ask => out.byte(4),
            FanoutOp::Alive => out.byte(5),
            FanoutOp::List => out.byte(6),
            FanoutOp::WaitsFor { owners } => {
                out.byte(7);
                out.list(owners);
            }
            FanoutOp::Grants => out.byte(8),
            FanoutOp::Highest => out.byte(9),
            FanoutOp::Plan => out.byte(10),
            FanoutOp::Released {
                key,
                fingerprint,
                holds,
            } => {
                out.byte(11);
                out.put(key);
                out.put(fingerprint);
                out.list(holds);
            }
        }
        put_groups(out, groups);
    })
}

pub(crate) fn decode_fanout(bytes: &[u8]) -> DecodeResult<(Fanout, GroupSet)> {
    read(bytes, |input| {
        let owner = input.take()?;
        let selection: Selection = input.take()?;
        let what = match input.byte()? {
            1 => FanoutOp::Renew(input.take()?),
            2 => FanoutOp::ReleaseAll(ReleaseCause::Owner),
            3 => FanoutOp::ReleaseAll(ReleaseCause::Killed),
            4 => FanoutOp::Ask,
            5 => FanoutOp::Alive,
            6 => FanoutOp::List,
            7 => FanoutOp::WaitsFor {
                owners: input.list()?,
            },
            8 => FanoutOp::Grants,
            9 => FanoutOp::Highest,
            // Since rules 2.
            10 => FanoutOp::Plan,
            11 => FanoutOp::Released {
                key: input.take()?,
                fingerprint: input.take()?,
                holds: input.list()?,
            },
            found => return unknown("sweep", found),
        };
        let fanout = Fanout {
            owner,
            selection,
            what,
        };
        Ok((fanout, take_groups(input)?))
    })
}

fn put_groups(out: &mut Writer, groups: &GroupSet) {
    out.length(groups.len());
    for group in groups.iter() {
        out.put(&group.0);
    }
}

fn take_groups(input: &mut Reader<'_>) -> TakeBytes<GroupSet> {
    let groups: Vec<u32> = input.list()?;
    Ok(groups.into_iter().map(GroupId).collect())
}

pub(crate) fn encode_fanout_result(fanout_result: &FanoutResult) -> Bytes {
    write(|out| {
        put_groups(out, &fanout_result.groups);
        out.list(&fanout_result.renewed);
        out.put(&fanout_result.asked);
        out.put(&fanout_result.alive);
        put_locks(out, &fanout_result.locks);
        out.length(fanout_result.edges.len());
        for (owner, WaitsFor { place, owners }) in &fanout_result.edges {
            out.put(owner);
            out.put(&place.namespace);
            out.put(&place.waiter);
            out.list(owners);
        }
        out.list(&fanout_result.grants);
        out.option(fanout_result.highest.as_ref());
        out.put(&fanout_result.unknown);
        // What only newer questions are answered with.
        if !fanout_result.planned.is_empty() || !fanout_result.released.is_empty() {
            out.list(&fanout_result.planned);
            out.list(&fanout_result.released);
        }
    })
}

pub(crate) fn decode_fanout_result(bytes: &[u8]) -> DecodeResult<FanoutResult> {
    read(bytes, |input| {
        let groups = take_groups(input)?;
        let (renewed, asked, alive) = (input.list()?, input.take()?, input.take()?);
        let locks = take_locks(input)?;
        let count = input.length()?;
        let mut edges = Vec::new();
        for _ in 0..count {
            let owner = input.take()?;
            let place = WaitPosition {
                namespace: input.take()?,
                waiter: input.take()?,
            };
            let owners = input.list()?;
            edges.push((owner, WaitsFor { place, owners }));
        }
        let (grants, highest, unknown) = (input.list()?, input.option()?, input.take()?);
        let (planned, released) = match input.remaining() {
            0 => (Vec::new(), Vec::new()),
            _ => (input.list()?, input.list()?),
        };
        Ok(FanoutResult {
            groups,
            renewed,
            asked,
            alive,
            locks,
            edges,
            grants,
            highest,
            unknown,
            planned,
            released,
            too_long: false,
        })
    })
}

pub(crate) fn encode_events(events: &[Event]) -> Bytes {
    write(|out| out.list(events))
}

pub(crate) fn decode_events(bytes: &[u8]) -> DecodeResult<Vec<Event>> {
    read(bytes, |input| input.list())
}

pub(crate) fn encode_word(word: &WatchMessage) -> Bytes {
    write(|out| {
        out.put(&word.number);
        out.put(&word.group.0);
        out.put(&word.term);
        out.put(&word.count);
        out.byte(match word.kind {
            WatchMessageKind::Present => 0,
            WatchMessageKind::Changed => 1,
            WatchMessageKind::Over => 2,
            WatchMessageKind::Page => 3,
        });
        out.length(word.changes.len());
        for change in &word.changes {
            put_change(out, change);
        }
    })
}

pub(crate) fn decode_word(bytes: &[u8]) -> DecodeResult<WatchMessage> {
    read(bytes, |input| {
        let number = input.take()?;
        let group = GroupId(input.take()?);
        let term = input.take()?;
        let count = input.take()?;
        let kind = match input.byte()? {
            0 => WatchMessageKind::Present,
            1 => WatchMessageKind::Changed,
            2 => WatchMessageKind::Over,
            3 => WatchMessageKind::Page,
            found => return unknown("word", found),
        };
        let length = input.length()?;
        let mut changes = Vec::new();
        for _ in 0..length {
            changes.push(take_change(input)?);
        }
        Ok(WatchMessage {
            number,
            group,
            term,
            count,
            kind,
            changes,
        })
    })
}

fn put_change(out: &mut Writer, change: &LockChange) {
    out.put(&change.namespace);
    match change.kind {
        ChangeKind::Granted => out.byte(0),
        ChangeKind::Queued => out.byte(1),
        ChangeKind::Released => out.byte(2),
        ChangeKind::Expired => out.byte(3),
        ChangeKind::Killed => out.byte(4),
        ChangeKind::Dequeued => out.byte(5),
        ChangeKind::Asked => out.byte(6),
        ChangeKind::Policy { algorithm } => {
            out.byte(7);
            out.put(&algorithm);
        }
    }
    out.option(change.owner.as_ref());
    out.option(change.path.as_ref());
    out.option(change.mode.as_ref());
    out.option(change.fence.as_ref());
    out.option(change.holder.as_ref());
}

fn take_change(input: &mut Reader<'_>) -> TakeBytes<LockChange> {
    let namespace = input.take()?;
    let kind = match input.byte()? {
        0 => ChangeKind::Granted,
        1 => ChangeKind::Queued,
        2 => ChangeKind::Released,
        3 => ChangeKind::Expired,
        4 => ChangeKind::Killed,
        5 => ChangeKind::Dequeued,
        6 => ChangeKind::Asked,
        7 => ChangeKind::Policy {
            algorithm: input.take()?,
        },
        found => return unknown("change", found),
    };
    Ok(LockChange {
        namespace,
        kind,
        owner: input.option()?,
        path: input.option::<Path>()?,
        mode: input.option()?,
        fence: input.option()?,
        holder: input.option::<Holder>()?,
    })
}
