//! Session stream: many operations in flight on one gRPC stream (E10: Session stream). Rules and
//! results are those of unary calls.
//!
//! ```text
//!   requests ──▶ parse ──▶ CallBatch ──▶ node ──▶ answers, events ──▶ responses
//! ```
//!
//! The response body drives the whole session: each poll reads the requests that have arrived,
//! submits them to the node as one batch and encodes all completions. So a session needs no task
//! and no channel of its own. It also gives back-pressure: while the client does not read
//! responses, the body is not polled and no requests are read. Events of every owner that the
//! session has used arrive on the same stream, with id 0.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;
use prost::Message;
use tenure_cluster::{CallBatch, Completion, Handle};
use tenure_core::value::OwnerId;
use tenure_node::ClientRequest;
use tenure_wire::v1;
use tenure_wire::v1::session_response::Result as Response;
use tonic::Status;

use crate::auth::{Caller, LiveCaller};
use crate::convert;
use crate::events;
use crate::handlers;
use crate::in_flight::InFlight;
use crate::rpc::{self, Facts, Outcome, ValidCall};
use crate::status::{Code, Failure};
use crate::telemetry::{Rpc, Telemetry, Transport};
use crate::transport::framing::{self, Unreadable};
use crate::transport::memory_budget::Charge;

/// Maximum number of operations in flight per session. Further requests stay in the connection,
/// where HTTP/2 flow control holds the client back.
const IN_FLIGHT: usize = 4096;

/// Memory of an operation in flight besides its message.
const OPERATION: usize = 512;

/// Size of a response chunk: from here on the session sends before it reads more.
const PIECE: usize = 32 << 10;

/// The parts of the daemon that a session uses.
pub(crate) struct SessionContext {
    pub(crate) calls: CallBatch,
    pub(crate) node: Handle,
    pub(crate) telemetry: Telemetry,
    /// Time limit of one operation.
    pub(crate) timeout: Duration,
    /// The caller, with its present rights.
    pub(crate) caller: LiveCaller,
    /// Resolves to the last status when the daemon stops (R169 shutdown within 10 s), or when the
    /// caller's credentials are no longer valid.
    pub(crate) ending: Pin<Box<dyn Future<Output = Status> + Send>>,
    /// Memory of the operations in flight.
    pub(crate) memory: Charge,
}

/// One session. It ends when the client has closed its side and every operation is answered.
pub(crate) struct Session<B> {
    means: SessionContext,
    requests: SessionRequests<B>,
    /// Keyed by slot, not by the client's id: a client may use the same id twice.
    slots: InFlight<PendingOp>,
    /// Buffer for the completions of one poll; kept to reuse its memory.
    heard: Vec<Completion>,
    /// Encoded responses that are not sent yet. A `Vec`, not a `BytesMut`: prost writes every field
    /// by itself, and a `Vec` appends a byte with a quarter of the instructions.
    responses: Vec<u8>,
    is_over: bool,
    /// The caller as of the last poll.
    caller: Caller,
}

impl<B> Session<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    pub(crate) fn new(means: SessionContext, caller: Caller, requests: B) -> Session<B> {
        Session {
            caller,
            means,
            requests: SessionRequests::new(requests),
            slots: InFlight::default(),
            heard: Vec::new(),
            responses: Vec::new(),
            is_over: false,
        }
    }

    /// Reads the requests that have arrived, up to the limits, and submits them as one batch.
    fn read(&mut self, cx: &mut Context<'_>) {
        let now = Instant::now();
        // Every request is judged by the rights that the caller has when it is read. A caller whose
        // credentials are no longer valid has none: `ending` ends the session.
        if let Ok(caller) = self.means.caller.current() {
            self.caller = caller.clone();
        } else {
            return;
        }
        while self.slots.len() < IN_FLIGHT && self.responses.len() < PIECE {
            if let Some(operation) = self.requests.next(&self.caller) {
                if let Some(operation) = self.read_view(operation, now) {
                    self.take(operation, now);
                }
            } else if self.requests.poll_more(cx).is_pending() || self.requests.are_over() {
                break;
            }
        }
        self.means.calls.flush();
    }

    /// Answers consecutive AssertFencing requests directly from the node's read view, without a
    /// call. Returns the first operation that needs a call. With operations in flight this is
    /// skipped: the node steps for those anyway, and answers the fence checks in the same step.
    fn read_view(&mut self, first: Operation, now: Instant) -> Option<Operation> {
        if self.slots.len() > 0 || !first.is_fence_check() {
            return Some(first);
        }
        let SessionContext {
            calls,
            node,
            telemetry,
            ..
        } = &self.means;
        let (requests, responses) = (&mut self.requests, &mut self.responses);
        let caller = &self.caller;
        let mut next = Some(first);
        calls.read_view(|mut sight| {
            let took = now.elapsed();
            while responses.len() < PIECE
                && let Some(Operation {
                    id,
                    asked: Ok((rpc, asked)),
                    ..
                }) = &mut next
                && *rpc == Rpc::AssertFencing
                && let Some(answer) = sight.answer(&asked.request)
            {
                let outcome = Outcome {
                    answer: Ok(answer),
                    facts: std::mem::take(&mut asked.facts),
                    caller,
                    node,
                };
                let result = rpc::respond_operation(*rpc, outcome);
                telemetry.record(Transport::Grpc, *rpc, took, &result);
                put(responses, *id, result.unwrap_or_else(error));
                next = requests.next(caller);
            }
        });
        next
    }

    fn take(&mut self, Operation { id, asked, bytes }: Operation, now: Instant) {
        // Counted until it is answered: while the node hangs, operations must not pile up without a
        // limit.
        let asked = asked.and_then(|asked| match self.means.memory.grow(bytes) {
            Ok(()) => Ok(asked),
            Err(full) => Err(Failure::new(Code::Unavailable, full.message())),
        });
        match asked {
            Ok((rpc, ValidCall { request, facts })) => {
                if let Some(owner) = owner_of(&request) {
                    self.means.calls.listen(owner);
                }
                let slot = self.slots.take(PendingOp {
                    id,
                    rpc,
                    facts,
                    begun: now,
                    bytes,
                });
                self.means.calls.push(slot, request, self.means.timeout);
            }
            Err(failure) => self.respond(id, error(failure)),
        }
    }

    fn say(&mut self, heard: Completion, now: Instant) {
        match heard {
            Completion::Answer { tag, answer, .. } => {
                let Some(call) = self.slots.give_back(tag) else {
                    return;
                };
                self.means.memory.shrink(call.bytes);
                let outcome = Outcome {
                    answer: answer.map_err(handlers::failure),
                    facts: call.facts,
                    caller: &self.caller,
                    node: &self.means.node,
                };
                let result = rpc::respond_operation(call.rpc, outcome);
                let took = now.saturating_duration_since(call.begun);
                let telemetry = &self.means.telemetry;
                telemetry.record(Transport::Grpc, call.rpc, took, &result);
                self.respond(call.id, result.unwrap_or_else(error));
            }
            Completion::Event(event) => {
                let event = convert::event_out(&self.caller, &event);
                self.respond(0, Response::Event(event))
            }
            Completion::Ended(end) => self.respond(0, error(events::ended(end))),
        }
    }

    fn respond(&mut self, id: u64, result: Response) {
        put(&mut self.responses, id, result);
    }

    /// Encodes all completions until a chunk is full or no more arrive. Pending if there is nothing
    /// to send; ready without responses when the session has ended.
    fn go_on(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.read(cx);
            let ended = self.requests.are_over() && self.slots.len() == 0;
            let mut heard = std::mem::take(&mut self.heard);
            let silent = self.means.calls.poll(cx, &mut heard).is_pending();
            let now = Instant::now();
            for heard in heard.drain(..) {
                self.say(heard, now);
            }
            self.heard = heard;
            if self.responses.len() >= PIECE || (silent && !self.responses.is_empty()) {
                return Poll::Ready(());
            }
            if silent {
                self.is_over = ended;
                return if ended {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                };
            }
        }
    }
}

impl<B> http_body::Body for Session<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let session = &mut *self;
        if session.is_over {
            return Poll::Ready(None);
        }
        let mut last = Status::ok("");
        // `ending` is polled only when the session is idle: responses that are ready are sent
        // first.
        if session.go_on(cx).is_pending() {
            last = ready!(session.means.ending.as_mut().poll(cx));
            session.is_over = true;
        }
        if !session.responses.is_empty() {
            // The next chunk is probably about as long.
            let next = Vec::with_capacity(session.responses.len());
            let piece = Bytes::from(std::mem::replace(&mut session.responses, next));
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let mut trailers = HeaderMap::new();
        // Cannot fail: the message has no bytes that a header must not contain.
        let _ = last.add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

/// Incremental decoder of the session's requests.
struct SessionRequests<B> {
    /// `None` after the client has closed its side or sent bytes that cannot be decoded.
    body: Option<B>,
    bytes: BytesMut,
}

impl<B> SessionRequests<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    fn new(body: B) -> SessionRequests<B> {
        SessionRequests {
            body: Some(body),
            bytes: BytesMut::new(),
        }
    }

    fn are_over(&self) -> bool {
        self.body.is_none()
    }

    /// Returns the next operation if all of its message has arrived.
    fn next(&mut self, caller: &Caller) -> Option<Operation> {
        next(caller, &mut self.bytes).unwrap_or_else(|Unreadable| {
            self.body = None;
            self.bytes.clear();
            None
        })
    }

    /// Waits for more bytes. Ready at once if the request body has ended.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(());
        };
        match ready!(Pin::new(body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.bytes.extend_from_slice(&data);
                }
            }
            // A broken request body ends the session, but its operations still finish.
            Some(Err(_)) | None => self.body = None,
        }
        Poll::Ready(())
    }
}

/// A decoded request with the client's id.
struct Operation {
    id: u64,
    asked: Result<(Rpc, ValidCall), Failure>,
    /// Memory that it occupies while it is in flight.
    bytes: usize,
}

impl Operation {
    fn is_fence_check(&self) -> bool {
        matches!(self.asked, Ok((Rpc::AssertFencing, _)))
    }
}

/// Decodes and removes the first message, if all of it has arrived.
fn next(caller: &Caller, bytes: &mut BytesMut) -> Result<Option<Operation>, Unreadable> {
    let Some((message, end)) = framing::first(bytes)? else {
        return Ok(None);
    };
    let request = v1::SessionRequest::decode(message).map_err(|_| Unreadable)?;
    let in_flight = OPERATION + message.len();
    bytes.advance(end);
    Ok(Some(Operation {
        id: request.id,
        asked: parse(caller, request),
        bytes: in_flight,
    }))
}

/// Appends one response message.
fn put(responses: &mut Vec<u8>, id: u64, result: Response) {
    let result = Some(result);
    framing::put(responses, &v1::SessionResponse { id, result });
}

/// An operation in flight with the client's id.
struct PendingOp {
    id: u64,
    rpc: Rpc,
    facts: Facts,
    begun: Instant,
    bytes: usize,
}

fn parse(caller: &Caller, request: v1::SessionRequest) -> Result<(Rpc, ValidCall), Failure> {
    let wrong = |text| Failure::new(Code::InvalidArgument, text);
    if request.id == 0 {
        return Err(wrong("id 0 is reserved for events: use ids from 1"));
    }
    let op = request.op;
    let op = op.ok_or_else(|| wrong("the request has no operation"))?;
    let (rpc, asked) = rpc::parse_operation(caller, op);
    Ok((rpc, asked?))
}

/// Returns the owner whose events the session receives from now on.
fn owner_of(request: &ClientRequest) -> Option<&OwnerId> {
    match request {
        ClientRequest::Acquire(acquire) => Some(&acquire.owner),
        ClientRequest::Renew { owner, .. } => Some(owner),
        _ => None,
    }
}

fn error(failure: Failure) -> Response {
    Response::Error(v1::SessionError {
        code: i32::from(failure.code.grpc()).unsigned_abs(),
        message: failure.message,
        detail: failure.detail.into(),
    })
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::*;

    /// A message may arrive in any number of pieces.
    #[test]
    fn requests_are_found_wherever_they_are_cut() {
        let mut sent = Vec::new();
        for id in [1, 2] {
            let message = v1::SessionRequest { id, op: None }.encode_to_vec();
            sent.push(0);
            sent.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
            sent.extend_from_slice(&message);
        }
        let mut bytes = BytesMut::new();
        let mut found = Vec::new();
        for byte in sent {
            bytes.put_u8(byte);
            while let Ok(Some(asked)) = next(&Caller::local(), &mut bytes) {
                found.push(asked.id);
            }
        }
        assert_eq!(found, [1, 2]);
        assert!(bytes.is_empty());
    }

    #[test]
    fn what_is_compressed_or_too_long_or_no_message_cannot_be_read() {
        for bytes in [
            &[1, 0, 0, 0, 0][..],
            &[0, 255, 0, 0, 0],
            &[0, 0, 0, 0, 1, 255],
        ] {
            let found = next(&Caller::local(), &mut BytesMut::from(bytes));
            assert!(found.is_err(), "{bytes:?}");
        }
    }
}
