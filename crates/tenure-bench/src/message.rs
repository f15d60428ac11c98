//! The daemon's messages: what a lane asks as requests, and answers as replies.

use tenure_wire::v1;
use tenure_wire::v1::session_request::Op;
use tenure_wire::v1::session_response::Result as Answer;

use crate::scenario::{Ask, Lane, Reply};

/// Leases outlive every run.
pub(crate) const TTL_MS: u64 = 600_000;

pub(crate) fn acquire(lane: &Lane, ask: Ask) -> v1::AcquireRequest {
    v1::AcquireRequest {
        owner_id: lane.owner.clone(),
        ttl_ms: TTL_MS,
        requests: vec![v1::LockRequest {
            path: lane.path.clone(),
            ..Default::default()
        }],
        no_wait: ask == Ask::Take,
        queue_ttl_ms: if ask == Ask::Wait { TTL_MS } else { 0 },
        ..Default::default()
    }
}

pub(crate) fn release(lane: &Lane) -> v1::ReleaseLocksRequest {
    v1::ReleaseLocksRequest {
        owner_id: lane.owner.clone(),
        requests: vec![v1::ReleaseRequest {
            path: lane.path.clone(),
            mode: 0,
        }],
        ..Default::default()
    }
}

pub(crate) fn renew(lane: &Lane) -> v1::RenewRequest {
    v1::RenewRequest {
        owner_id: lane.owner.clone(),
        ttl_ms: TTL_MS,
        domains: vec![lane.namespace.clone()],
        ..Default::default()
    }
}

pub(crate) fn check(lane: &Lane) -> v1::AssertFencingRequest {
    v1::AssertFencingRequest {
        owner_id: lane.owner.clone(),
        fencing_token: lane.fence,
        paths: vec![lane.path.clone()],
    }
}

pub(crate) fn op(lane: &Lane, ask: Ask) -> Op {
    match ask {
        Ask::Take | Ask::Wait => Op::Acquire(acquire(lane, ask)),
        Ask::Release => Op::Release(release(lane)),
        Ask::Renew => Op::Renew(renew(lane)),
        Ask::Check => Op::AssertFencing(check(lane)),
    }
}

pub(crate) fn acquired(answer: &v1::AcquireResponse) -> Reply {
    match answer.status() {
        v1::AcquireStatus::Ok => Reply::Granted(answer.fencing_token),
        v1::AcquireStatus::Queued => Reply::Queued,
        status @ (v1::AcquireStatus::Conflict | v1::AcquireStatus::Lost) => Reply::Failed(format!(
            "{} {}",
            status.as_str_name(),
            answer.reason().as_str_name()
        )),
    }
}

pub(crate) fn renewed(answer: &v1::RenewResponse) -> Reply {
    match answer.status() {
        v1::RenewStatus::Ok => Reply::Done,
        v1::RenewStatus::Lost => Reply::Failed(answer.reason().as_str_name().to_owned()),
    }
}

pub(crate) fn checked(answer: &v1::AssertFencingResponse) -> Reply {
    match answer.status() {
        v1::AssertStatus::Ok => Reply::Done,
        v1::AssertStatus::Fail => Reply::Failed(answer.reason().as_str_name().to_owned()),
    }
}

/// The answer to one operation of a session; events are not among them.
pub(crate) fn reply(answer: &Answer) -> Reply {
    match answer {
        Answer::Acquire(answer) => acquired(answer),
        Answer::Release(_) | Answer::ReleaseAll(_) => Reply::Done,
        Answer::Renew(answer) => renewed(answer),
        Answer::AssertFencing(answer) => checked(answer),
        Answer::Error(error) => Reply::Failed(format!("{} {}", error.code, error.message)),
        Answer::Event(event) => Reply::Failed(format!("an event with a number: {event:?}")),
    }
}
