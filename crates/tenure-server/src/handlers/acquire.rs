//! Acquire and AcquireStream: validation in the order of R17 (order of acquire checks), joining the
//! chunks of a stream (R18 (AcquireStream is one acquire)), and the response (R60–R63, E1–E5).

use prost::Message;
use tenure_core::command::WaitMode;
use tenure_core::outcome::Conflict;
use tenure_core::policy::Reason;
use tenure_core::value::{Fence, QueueTtl};
use tenure_node::{AcquireAnswer, AcquireRequest, Answer, ClientRequest, Deadlock};
use tenure_wire::v1;

use super::mismatch;
use crate::auth::Caller;
use crate::convert::{self, MAX_ENTRIES};
use crate::rpc::Outcome;
use crate::status::{Code, Failure};

/// Maximum number of entries of a whole stream (R18).
const MAX_STREAM_ENTRIES: usize = 65_536;
/// Maximum encoded size of a whole stream in bytes (R18).
const MAX_STREAM_BYTES: usize = 4 << 20;

/// Parses an Acquire: acquires, re-validates and releases paths of one namespace atomically.
pub(crate) fn acquire(caller: &Caller, wire: v1::AcquireRequest) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::Acquire(parse(caller, wire, MAX_ENTRIES)?))
}

/// Parses the joined chunks of an AcquireStream.
pub(crate) fn acquire_chunks(caller: &Caller, chunks: Chunks) -> Result<ClientRequest, Failure> {
    let request = parse(caller, chunks.finish()?, MAX_STREAM_ENTRIES)?;
    Ok(ClientRequest::Acquire(request))
}

pub(crate) fn acquired(outcome: Outcome<'_>) -> Result<v1::AcquireResponse, Failure> {
    match outcome.open()? {
        (Answer::Acquire(answer), caller) => Ok(respond(caller, answer)),
        (other, _) => Err(mismatch(&other)),
    }
}

/// Validates in the order of R17: the first mistake in that order is the one reported.
fn parse(
    caller: &Caller,
    wire: v1::AcquireRequest,
    most: usize,
) -> Result<AcquireRequest, Failure> {
    let owner = caller.owner(&wire.owner_id)?;
    let ttl = convert::ttl(wire.ttl_ms)?;
    let queue_ttl = QueueTtl::from_millis(wire.queue_ttl_ms)?;
    let key = caller.key(&wire.idempotency_key)?;
    convert::count(wire.requests.len() + wire.release_requests.len(), most)?;
    let mut requests = convert::requests(&wire.requests)?;
    let mut releases = convert::holds(&wire.release_requests)?;
    // Enum numbers come after all paths, including those of the releases.
    convert::request_enums(&mut requests, &wire.requests)?;
    convert::hold_enums(&mut releases, &wire.release_requests)?;
    let fence = Fence::supplied(wire.fencing_token)?;
    let holder = wire.holder.map(convert::holder).transpose()?;
    let wait = match (wire.no_wait, wire.ask) {
        (true, _) => WaitMode::No,
        (false, true) => WaitMode::QueueAndAsk,
        (false, false) => WaitMode::Queue,
    };
    let deadlock = if wire.refuse_deadlock {
        Deadlock::Refuse
    } else {
        Deadlock::Ignore
    };
    Ok(AcquireRequest {
        owner,
        ttl,
        queue_ttl,
        requests,
        releases,
        fence,
        key,
        wait,
        holder,
        deadlock,
    })
}

fn respond(caller: &Caller, answer: AcquireAnswer) -> v1::AcquireResponse {
    match answer {
        AcquireAnswer::Granted { namespace, fence } => v1::AcquireResponse {
            status: v1::AcquireStatus::Ok.into(),
            fencing_token: convert::fence_number(fence),
            namespace: namespace.map_or_else(String::new, |n| n.as_str().to_owned()),
            ..Default::default()
        },
        AcquireAnswer::Queued {
            conflict,
            lease_left_ms,
            fence,
            position,
        } => v1::AcquireResponse {
            status: v1::AcquireStatus::Queued.into(),
            fencing_token: convert::fence_number(fence),
            position,
            ..in_the_way(caller, &conflict, lease_left_ms)
        },
        AcquireAnswer::Conflict {
            conflict,
            lease_left_ms,
            deadlock,
        } => v1::AcquireResponse {
            status: v1::AcquireStatus::Conflict.into(),
            deadlock: deadlock
                .iter()
                .map(|owner| caller.shown(owner).into_owned())
                .collect(),
            ..in_the_way(caller, &conflict, lease_left_ms)
        },
        AcquireAnswer::Lost { path, missing } => v1::AcquireResponse {
            status: v1::AcquireStatus::Lost.into(),
            path: path.map_or_else(String::new, |path| path.as_str().to_owned()),
            reason: convert::missing_number(missing),
            ..Default::default()
        },
    }
}

/// Fills path, owner and reason of a conflict (R48 reported path and owner) and the blocker's
/// details (E4 blocker and queue position).
fn in_the_way(
    caller: &Caller,
    conflict: &Conflict,
    lease_left_ms: Option<u64>,
) -> v1::AcquireResponse {
    let owner = match (&conflict.blocker, conflict.reason) {
        (Some(blocker), _) if !caller.sees(&blocker.path) => convert::HIDDEN.to_owned(),
        (Some(blocker), _) => caller.shown(&blocker.owner).into_owned(),
        // R48: without a blocker, `owner` is the established capacity in decimal.
        (
            None,
            Reason::InvalidPermits {
                capacity: Some(capacity),
            },
        ) => capacity.to_string(),
        (None, _) => String::new(),
    };
    let current = match conflict.reason {
        Reason::StaleFence { current } => Some(current),
        _ => None,
    };
    v1::AcquireResponse {
        path: convert::path_out(caller, &conflict.path),
        owner,
        reason: convert::reason_number(conflict.reason),
        current_fencing_token: convert::fence_number(current),
        blocker: conflict
            .blocker
            .as_ref()
            .map(|b| convert::blocker_out(caller, b, lease_left_ms)),
        ..Default::default()
    }
}

/// Joins the chunks of an AcquireStream as they arrive (R18).
#[derive(Default)]
pub(crate) struct Chunks {
    whole: Option<v1::AcquireRequest>,
    bytes: usize,
}

impl Chunks {
    /// Adds the next chunk. Limits are checked here, so a stream that is too long is refused before
    /// all of it is in memory.
    pub(crate) fn push(&mut self, chunk: v1::AcquireRequest) -> Result<(), Failure> {
        self.bytes += chunk.encoded_len();
        if self.bytes > MAX_STREAM_BYTES {
            return Err(Failure::new(
                Code::ResourceExhausted,
                format!("the acquire stream is too large: the limit is {MAX_STREAM_BYTES} bytes"),
            ));
        }
        // Each chunk obeys the limit of a single message (R13 list length limits), the whole stream
        // its own limit.
        convert::count(
            chunk.requests.len() + chunk.release_requests.len(),
            MAX_ENTRIES,
        )?;
        let Some(whole) = &mut self.whole else {
            self.whole = Some(chunk);
            return Ok(());
        };
        convert::count(
            whole.requests.len()
                + whole.release_requests.len()
                + chunk.requests.len()
                + chunk.release_requests.len(),
            MAX_STREAM_ENTRIES,
        )?;
        agree("owner_id", &mut whole.owner_id, chunk.owner_id)?;
        agree("ttl_ms", &mut whole.ttl_ms, chunk.ttl_ms)?;
        agree(
            "fencing_token",
            &mut whole.fencing_token,
            chunk.fencing_token,
        )?;
        agree("queue_ttl_ms", &mut whole.queue_ttl_ms, chunk.queue_ttl_ms)?;
        agree(
            "idempotency_key",
            &mut whole.idempotency_key,
            chunk.idempotency_key,
        )?;
        agree("no_wait", &mut whole.no_wait, chunk.no_wait)?;
        agree("ask", &mut whole.ask, chunk.ask)?;
        agree(
            "refuse_deadlock",
            &mut whole.refuse_deadlock,
            chunk.refuse_deadlock,
        )?;
        agree("holder", &mut whole.holder, chunk.holder)?;
        whole.requests.extend(chunk.requests);
        whole.release_requests.extend(chunk.release_requests);
        Ok(())
    }

    fn finish(self) -> Result<v1::AcquireRequest, Failure> {
        self.whole.ok_or_else(|| {
            Failure::new(
                Code::InvalidArgument,
                "an acquire stream needs at least one chunk",
            )
        })
    }
}

/// Merges a scalar: any chunk may set it, but two chunks must not set different values.
fn agree<T: Default + PartialEq>(name: &str, whole: &mut T, chunk: T) -> Result<(), Failure> {
    if chunk == T::default() || chunk == *whole {
        return Ok(());
    }
    if *whole != T::default() {
        return Err(Failure::new(
            Code::InvalidArgument,
            format!("{name} has different values in two chunks of one stream"),
        ));
    }
    *whole = chunk;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(owner: &str, paths: usize) -> v1::AcquireRequest {
        v1::AcquireRequest {
            owner_id: owner.into(),
            ttl_ms: if owner.is_empty() { 0 } else { 1000 },
            requests: (0..paths)
                .map(|n| v1::LockRequest {
                    path: format!("t:/a/{n}"),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }
    }

    /// R18: lists are concatenated in order; a scalar may be set by one chunk.
    #[test]
    fn chunks_become_one_request() {
        let mut chunks = Chunks::default();
        chunks.push(chunk("amy", 2)).unwrap();
        chunks.push(chunk("", 1)).unwrap();
        let whole = chunks.finish().unwrap();
        assert_eq!(whole.owner_id, "amy");
        assert_eq!(whole.requests.len(), 3);
        assert_eq!(whole.requests[2].path, "t:/a/0");
    }

    /// R18: refuses contradicting scalars, too many entries, too many bytes, and a stream without
    /// chunks.
    #[test]
    fn bad_streams_are_refused() {
        let mut chunks = Chunks::default();
        chunks.push(chunk("amy", 1)).unwrap();
        assert_eq!(
            chunks.push(chunk("bob", 1)).unwrap_err().code,
            Code::InvalidArgument
        );
        assert_eq!(
            Chunks::default().finish().unwrap_err().code,
            Code::InvalidArgument
        );
        let too_many = Chunks::default().push(chunk("amy", 1025)).unwrap_err();
        assert_eq!(too_many.code, Code::InvalidArgument);
        let mut long = Chunks::default();
        let big = v1::AcquireRequest {
            idempotency_key: "k".repeat(3 << 20),
            ..Default::default()
        };
        long.push(big.clone()).unwrap();
        assert_eq!(long.push(big).unwrap_err().code, Code::ResourceExhausted);
    }

    /// R17: owner, ttl, queue ttl, key, count, paths, releases, enums: the first mistake is
    /// reported.
    #[test]
    fn checks_come_in_order() {
        let mut wire = v1::AcquireRequest {
            owner_id: String::new(),
            ttl_ms: 0,
            queue_ttl_ms: u64::MAX,
            idempotency_key: "k".repeat(2000),
            requests: vec![
                v1::LockRequest {
                    path: "bad".into(),
                    mode: 77,
                    ..Default::default()
                };
                1025
            ],
            release_requests: vec![v1::ReleaseRequest {
                path: "worse".into(),
                mode: 78,
            }],
            ..Default::default()
        };
        let expect = |part: &str, wire: &v1::AcquireRequest| {
            let failure = parse(&Caller::local(), wire.clone(), MAX_ENTRIES).unwrap_err();
            assert_eq!(failure.code, Code::InvalidArgument);
            assert!(
                failure.message.contains(part),
                "{part} is not in {}",
                failure.message
            );
        };
        expect("owner", &wire);
        wire.owner_id = "amy".into();
        expect("ttl of 0", &wire);
        wire.ttl_ms = 1;
        expect("queue ttl", &wire);
        wire.queue_ttl_ms = 0;
        expect("idempotency key", &wire);
        wire.idempotency_key.clear();
        expect("entries", &wire);
        wire.requests.truncate(1);
        expect("bad", &wire);
        wire.requests[0].path = "t:/a".into();
        expect("worse", &wire);
        wire.release_requests[0].path = "t:/b".into();
        expect("77", &wire);
        wire.requests[0].mode = 1;
        expect("78", &wire);
        wire.release_requests[0].mode = 0;
        assert!(parse(&Caller::local(), wire, MAX_ENTRIES).is_ok());
    }
}
