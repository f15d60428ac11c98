//! Session: many operations in flight on one stream (E10). Same rules, same results as unary calls.
//!
//! ```text
//!   requests ──▶ parse ──▶ Calls ──▶ node ──▶ answers, events ──▶ responses
//! ```
//!
//! The stream of responses is the whole session: whoever polls it reads what has come, hands it to
//! the node and takes what the node has said. So a session costs no task and no channel of its own,
//! and a client that does not read its answers is not read either. Events of every owner that the
//! session has used arrive on the same stream, with id 0.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::Stream;
use tenure_cluster::{Calls, Heard};
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;
use tenure_wire::v1::session_request::Op;
use tenure_wire::v1::session_response::Result as Response;
use tonic::Streaming;

use crate::convert;
use crate::events;
use crate::handlers::{self, Call, Handlers, wire};
use crate::status::{Code, Failure};
use crate::telemetry::{Face, Rpc, Telemetry};

/// Operations of one session that are under way; further requests wait in the connection.
const IN_FLIGHT: usize = 4096;

/// One session. The stream ends when the client ends its side and everything is answered.
pub(crate) struct Session {
    calls: Calls,
    telemetry: Telemetry,
    call: Call,
    /// `None` when the client has ended its side, or sent what cannot be read.
    requests: Option<Streaming<v1::SessionRequest>>,
    owners: HashSet<String>,
    slots: Slots,
    /// Heard, the last first.
    heard: Vec<Heard>,
    /// Answered without the node, the last first.
    refused: Vec<v1::SessionResponse>,
}

impl Session {
    pub(crate) fn new(
        handlers: &Handlers,
        telemetry: Telemetry,
        call: Call,
        event_buffer: usize,
        requests: Streaming<v1::SessionRequest>,
    ) -> Session {
        Session {
            calls: handlers.node().calls(event_buffer),
            telemetry,
            call,
            requests: Some(requests),
            owners: HashSet::new(),
            slots: Slots::default(),
            heard: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Reads what has come, as far as there is room.
    fn read(&mut self, cx: &mut Context<'_>) {
        while let Some(requests) = &mut self.requests
            && self.slots.used < IN_FLIGHT
        {
            match Pin::new(requests).poll_next(cx) {
                Poll::Ready(Some(Ok(request))) => self.take(request),
                // A request that breaks off, or cannot be read, ends the session; its operations
                // still finish.
                Poll::Ready(Some(Err(_)) | None) => self.requests = None,
                Poll::Pending => break,
            }
        }
        self.refused.reverse();
        self.calls.flush();
    }

    fn take(&mut self, request: v1::SessionRequest) {
        let id = request.id;
        if let Some(owner) = owner_of(&request)
            && !self.owners.contains(owner)
            && let Ok(listened) = convert::owner(owner)
        {
            self.owners.insert(owner.to_owned());
            self.calls.listen(listened);
        }
        match parse(request) {
            Ok((kind, request)) => {
                let slot = self.slots.take(id, kind);
                self.calls.push(slot, request, self.call.timeout);
            }
            Err(failure) => self.refused.push(response(id, error(failure))),
        }
    }

    fn say(&mut self, heard: Heard) -> Option<v1::SessionResponse> {
        match heard {
            Heard::Answer { tag, answer } => {
                let UnderWay { id, kind, begun } = self.slots.give_back(tag)?;
                let result = match answer {
                    Ok(answer) => respond(kind, *answer),
                    Err(failure) => Err(handlers::failure(failure)),
                };
                self.telemetry
                    .record(Face::Grpc, kind.rpc(), begun, &result);
                Some(response(id, result.unwrap_or_else(error)))
            }
            Heard::Event(event) => Some(response(0, Response::Event(convert::event_out(&event)))),
            Heard::Ended(end) => Some(response(0, error(events::ended(end)))),
        }
    }
}

impl Stream for Session {
    type Item = Result<v1::SessionResponse, tonic::Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let session = &mut *self;
        loop {
            if let Some(response) = session.refused.pop() {
                return Poll::Ready(Some(Ok(response)));
            }
            while let Some(heard) = session.heard.pop() {
                if let Some(response) = session.say(heard) {
                    return Poll::Ready(Some(Ok(response)));
                }
            }
            session.read(cx);
            let ended = session.requests.is_none() && session.slots.used == 0;
            if session.calls.poll(cx, &mut session.heard).is_ready() {
                session.heard.reverse();
            } else if session.refused.is_empty() {
                return if ended {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                };
            }
        }
    }
}

/// What kind of answer an operation gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Acquire,
    Release,
    ReleaseAll,
    Renew,
    AssertFencing,
}

impl Kind {
    fn rpc(self) -> Rpc {
        match self {
            Kind::Acquire => Rpc::Acquire,
            Kind::Release => Rpc::Release,
            Kind::ReleaseAll => Rpc::ReleaseAll,
            Kind::Renew => Rpc::Renew,
            Kind::AssertFencing => Rpc::AssertFencing,
        }
    }
}

/// An operation under way, under the client's id.
struct UnderWay {
    id: u64,
    kind: Kind,
    begun: Instant,
}

/// Operations under way. Ids are the client's business, so two may have the same one.
#[derive(Default)]
struct Slots {
    slots: Vec<Option<UnderWay>>,
    free: Vec<u64>,
    used: usize,
}

impl Slots {
    fn take(&mut self, id: u64, kind: Kind) -> u64 {
        self.used += 1;
        let begun = Instant::now();
        let operation = Some(UnderWay { id, kind, begun });
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = operation;
                slot
            }
            None => {
                self.slots.push(operation);
                self.slots.len() as u64 - 1
            }
        }
    }

    fn give_back(&mut self, slot: u64) -> Option<UnderWay> {
        let held = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.used -= 1;
        Some(held)
    }
}

fn parse(request: v1::SessionRequest) -> Result<(Kind, ClientRequest), Failure> {
    if request.id == 0 {
        return Err(Failure::new(
            Code::InvalidArgument,
            "id 0 is for events: number from 1",
        ));
    }
    Ok(match request.op {
        Some(Op::Acquire(acquire)) => (Kind::Acquire, wire::acquire(acquire)?),
        Some(Op::Release(release)) => (Kind::Release, wire::release(release)?),
        Some(Op::ReleaseAll(all)) => (Kind::ReleaseAll, wire::release_all(all)?),
        Some(Op::Renew(renew)) => (Kind::Renew, wire::renew(renew)?),
        Some(Op::AssertFencing(assert)) => (Kind::AssertFencing, wire::assert_fencing(assert)?),
        None => {
            return Err(Failure::new(
                Code::InvalidArgument,
                "the request names no operation",
            ));
        }
    })
}

fn respond(kind: Kind, answer: Answer) -> Result<Response, Failure> {
    Ok(match kind {
        Kind::Acquire => Response::Acquire(wire::acquired(answer)?),
        Kind::Release => Response::Release(wire::released(&answer)?),
        Kind::ReleaseAll => Response::ReleaseAll(wire::released(&answer)?),
        Kind::Renew => Response::Renew(wire::renewed(&answer)?),
        Kind::AssertFencing => Response::AssertFencing(wire::asserted(&answer)?),
    })
}

fn response(id: u64, result: Response) -> v1::SessionResponse {
    v1::SessionResponse {
        id,
        result: Some(result),
    }
}

fn owner_of(request: &v1::SessionRequest) -> Option<&str> {
    match request.op.as_ref()? {
        Op::Acquire(acquire) => Some(&acquire.owner_id),
        Op::Renew(renew) => Some(&renew.owner_id),
        Op::Release(_) | Op::ReleaseAll(_) | Op::AssertFencing(_) => None,
    }
}

fn error(failure: Failure) -> Response {
    Response::Error(v1::SessionError {
        code: i32::from(failure.code.grpc()).unsigned_abs(),
        message: failure.message,
    })
}
