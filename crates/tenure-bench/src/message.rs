//! Conversion between the requests and replies of a worker and the daemon's messages.

use tenure_wire::v1;
use tenure_wire::v1::session_request::Op;
use tenure_wire::v1::session_response::Result as Answer;

use crate::scenario::{LoadWorker, WorkerReply, WorkerRequest};

/// Lease time: longer than any run, so that no lease expires.
pub(crate) const TTL_MS: u64 = 600_000;

pub(crate) fn acquire(worker: &LoadWorker, ask: WorkerRequest) -> v1::AcquireRequest {
    v1::AcquireRequest {
        owner_id: worker.owner.clone(),
        ttl_ms: TTL_MS,
        requests: vec![v1::LockRequest {
            path: worker.path.clone(),
            ..Default::default()
        }],
        no_wait: ask == WorkerRequest::Take,
        queue_ttl_ms: if ask == WorkerRequest::Wait {
            TTL_MS
        } else {
            0
        },
        ..Default::default()
    }
}

pub(crate) fn release(worker: &LoadWorker) -> v1::ReleaseLocksRequest {
    v1::ReleaseLocksRequest {
        owner_id: worker.owner.clone(),
        requests: vec![v1::ReleaseRequest {
            path: worker.path.clone(),
            mode: 0,
        }],
        ..Default::default()
    }
}

pub(crate) fn renew(worker: &LoadWorker) -> v1::RenewRequest {
    v1::RenewRequest {
        owner_id: worker.owner.clone(),
        ttl_ms: TTL_MS,
        domains: vec![worker.namespace.clone()],
        ..Default::default()
    }
}

pub(crate) fn check(worker: &LoadWorker) -> v1::AssertFencingRequest {
    v1::AssertFencingRequest {
        owner_id: worker.owner.clone(),
        fencing_token: worker.fence,
        paths: vec![worker.path.clone()],
    }
}

pub(crate) fn op(worker: &LoadWorker, ask: WorkerRequest) -> Op {
    match ask {
        WorkerRequest::Take | WorkerRequest::Wait => Op::Acquire(acquire(worker, ask).into()),
        WorkerRequest::Release => Op::Release(release(worker)),
        WorkerRequest::Renew => Op::Renew(renew(worker)),
        WorkerRequest::Check => Op::AssertFencing(check(worker)),
    }
}

pub(crate) fn acquired(answer: &v1::AcquireResponse) -> WorkerReply {
    match answer.status() {
        v1::AcquireStatus::Ok => WorkerReply::Granted(answer.fencing_token),
        v1::AcquireStatus::Queued => WorkerReply::Queued,
        status @ (v1::AcquireStatus::Conflict | v1::AcquireStatus::Lost) => WorkerReply::Failed(
            format!("{} {}", status.as_str_name(), answer.reason().as_str_name()),
        ),
    }
}

pub(crate) fn renewed(answer: &v1::RenewResponse) -> WorkerReply {
    match answer.status() {
        v1::RenewStatus::Ok => WorkerReply::Done,
        v1::RenewStatus::Lost => WorkerReply::Failed(answer.reason().as_str_name().to_owned()),
    }
}

pub(crate) fn checked(answer: &v1::AssertFencingResponse) -> WorkerReply {
    match answer.status() {
        v1::AssertStatus::Ok => WorkerReply::Done,
        v1::AssertStatus::Fail => WorkerReply::Failed(answer.reason().as_str_name().to_owned()),
    }
}

/// Converts the response to an operation of a session. Events are handled elsewhere.
pub(crate) fn reply(answer: &Answer) -> WorkerReply {
    match answer {
        Answer::Acquire(answer) => acquired(answer),
        Answer::Release(_) | Answer::ReleaseAll(_) => WorkerReply::Done,
        Answer::Renew(answer) => renewed(answer),
        Answer::AssertFencing(answer) => checked(answer),
        Answer::Error(error) => WorkerReply::Failed(format!("{} {}", error.code, error.message)),
        Answer::Event(event) => WorkerReply::Failed(format!("an event with a number: {event:?}")),
    }
}
