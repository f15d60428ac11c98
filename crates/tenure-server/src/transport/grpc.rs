//! gRPC streams (AcquireStream, Subscribe, Watch, Session) and the parts that all gRPC calls share:
//! deadlines and shutdown. Unary calls are in `grpc_connection.rs`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName};
use tenure_cluster::Handle;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::MESSAGE;
use super::h2_body::RequestBody;
use super::memory_budget::Charge;
use super::tcp::stopped;
use crate::audit::{Audit, AuditRecord};
use crate::auth::{self, AccessControl, Caller};
use crate::convert;
use crate::events::EventHub;
use crate::handlers::acquire::{Chunks, acquire_chunks, acquired};
use crate::handlers::{self, HEALTH_TIMEOUT};
use crate::rpc::{Facts, Outcome};
use crate::session::{Session, SessionContext};
use crate::status::Failure;
use crate::telemetry::{Rpc, Telemetry, Transport};

/// The streaming RPCs of the lock service.
#[derive(Clone)]
pub(crate) struct Grpc {
    pub(crate) node: Handle,
    pub(crate) events: EventHub,
    pub(crate) telemetry: Telemetry,
    pub(crate) access: AccessControl,
    /// Time limit of one call.
    pub(crate) timeout: Duration,
    /// Ends all streams when the daemon stops (R169 shutdown within 10 s).
    pub(crate) stop: watch::Receiver<bool>,
}

impl Grpc {
    /// Wraps a stream so that it ends with UNAVAILABLE when the daemon stops.
    pub(crate) fn until_stop<T: Send + 'static>(
        &self,
        stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> ResponseStream<T> {
        let stop = self.stop.clone();
        until(stream, async {
            stopped(stop).await;
            shutting_down()
        })
    }

    /// Wraps a stream so that it ends when the daemon stops, or when `judge` refuses the caller.
    fn while_allowed<T: Send + 'static>(
        &self,
        caller: &Caller,
        judge: impl Fn(&Caller) -> Result<(), Failure> + Send + 'static,
        stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> ResponseStream<T> {
        until(stream, self.ending(caller, judge))
    }

    /// Resolves to the last status of a stream: the daemon stops, or `judge` refuses the caller.
    fn ending<J>(
        &self,
        caller: &Caller,
        judge: J,
    ) -> impl Future<Output = Status> + Send + 'static + use<J>
    where
        J: Fn(&Caller) -> Result<(), Failure> + Send + 'static,
    {
        let (live, stop) = (self.access.follow(caller), self.stop.clone());
        async move {
            tokio::select! {
                () = stopped(stop) => shutting_down(),
                refused = live.refused(judge) => refused.into(),
            }
        }
    }

    /// Opens a session over a request body (E10: Session stream). The session is counted as one
    /// call that ends here; its operations are counted one by one.
    pub(super) fn session_of(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        requests: RequestBody,
        memory: Charge,
    ) -> Session<RequestBody> {
        let measured = self.telemetry.begin(Transport::Grpc, Rpc::Session, headers);
        measured.end_with(tonic::Code::Ok);
        let means = SessionContext {
            calls: self.node.calls(self.events.buffer()),
            node: self.node.clone(),
            telemetry: self.telemetry.clone(),
            timeout: deadline(headers, self.timeout),
            caller: self.access.follow(caller),
            // Each operation is judged by its own verb; the session ends with its caller.
            ending: Box::pin(self.ending(caller, |_| Ok(()))),
            memory,
        };
        Session::new(means, caller.clone(), requests)
    }

    /// Returns whether the node is ready (R145 Health needs a working quorum).
    pub(crate) async fn is_ready(&self) -> bool {
        let timeout = self.timeout.min(HEALTH_TIMEOUT);
        let ready = handlers::ask(&self.node, Box::new(ClientRequest::Health), timeout).await;
        matches!(ready, Ok(Answer::Ready))
    }

    /// Serves a streaming RPC. Returns UNIMPLEMENTED for others.
    pub(super) async fn stream<B>(
        &self,
        caller: &Caller,
        rpc: Rpc,
        request: http::Request<B>,
        deadline: Duration,
    ) -> http::Response<tonic::body::Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    {
        match rpc {
            Rpc::AcquireStream => {
                let acquire = service_fn(|request| self.acquire_stream(caller, request, deadline));
                messages().client_streaming(acquire, request).await
            }
            Rpc::Subscribe => {
                let subscribe = service_fn(|request| self.subscribe(caller, request));
                messages().server_streaming(subscribe, request).await
            }
            Rpc::Watch => {
                let watch = service_fn(|request| self.watch(caller, request));
                messages().server_streaming(watch, request).await
            }
            _ => Status::unimplemented("").into_http(),
        }
    }

    /// Serves AcquireStream. All chunks are collected first, so a stream that breaks off has no
    /// effect (R18 AcquireStream is one acquire).
    async fn acquire_stream(
        &self,
        caller: &Caller,
        request: Request<Streaming<v1::AcquireRequest>>,
        deadline: Duration,
    ) -> Result<Response<v1::AcquireResponse>, Status> {
        let headers = request.metadata().as_ref();
        let measured = self
            .telemetry
            .begin(Transport::Grpc, Rpc::AcquireStream, headers);
        let chunks = request.into_inner();
        let answer = self.collect_and_acquire(caller, chunks, deadline).await;
        let code = answer
            .as_ref()
            .map_or_else(Status::code, |_| tonic::Code::Ok);
        measured.end_with(code);
        answer.map(Response::new)
    }

    async fn collect_and_acquire(
        &self,
        caller: &Caller,
        mut stream: Streaming<v1::AcquireRequest>,
        deadline: Duration,
    ) -> Result<v1::AcquireResponse, Status> {
        let begun = Instant::now();
        let mut chunks = Chunks::default();
        let collected = async {
            while let Some(chunk) = stream.message().await? {
                chunks.push(chunk)?;
            }
            Ok::<_, Status>(())
        };
        match tokio::time::timeout(deadline, collected).await {
            Ok(collected) => collected?,
            Err(_) => {
                return Err(Status::deadline_exceeded(
                    "timed out: the chunks of the stream did not arrive in time",
                ));
            }
        }
        let request = Box::new(acquire_chunks(caller, chunks)?);
        let audit = auth::acts_as_another(caller, &request).map(|(owner, action)| {
            let mut record = AuditRecord::new(action, owner.as_str().to_owned());
            record.audit = Audit::Warn;
            record.caller = Some(caller.clone());
            record
        });
        let judged = auth::judge(caller, Rpc::AcquireStream.row().verb, &request)
            .and_then(|()| match audit {
                Some(_) => caller.recordable(),
                None => Ok(()),
            })
            .and_then(|()| auth::take_call(caller, &request));
        if let Err(denied) = judged {
            match audit {
                Some(record) => record.end::<()>(&Err(denied.clone())),
                None => caller.record_denied(Rpc::AcquireStream.name(), &denied),
            }
            return Err(denied.into());
        }
        // The time in which the chunks arrived is part of the deadline.
        let left = deadline.saturating_sub(begun.elapsed());
        let answer = handlers::ask(&self.node, request, left).await;
        let result = acquired(Outcome {
            answer,
            facts: Facts::default(),
            caller,
            node: &self.node,
        });
        if let Some(record) = audit {
            record.end(&result);
        }
        Ok(result?)
    }

    async fn subscribe(
        &self,
        caller: &Caller,
        request: Request<v1::SubscribeRequest>,
    ) -> Result<Response<ResponseStream<v1::Event>>, Status> {
        let headers = request.metadata().as_ref();
        let measured = self
            .telemetry
            .begin(Transport::Grpc, Rpc::Subscribe, headers);
        let owner = caller.other_owner(&request.get_ref().owner_id);
        let owner = owner.and_then(|owner| {
            auth::judge_owner(caller, &owner)?;
            Ok(owner)
        });
        measured.end(&owner);
        if let Err(denied) = &owner {
            caller.record_denied(Rpc::Subscribe.name(), denied);
        }
        let owner = owner?;
        let events = self.events.subscribe(caller, owner.clone())?;
        let viewer = caller.clone();
        let stream = events.map(move |event| match event {
            Ok(event) => Ok(convert::event_out(&viewer, &event)),
            Err(failure) => Err(failure.into()),
        });
        let judge = move |caller: &Caller| auth::judge_owner(caller, &owner);
        Ok(Response::new(self.while_allowed(caller, judge, stream)))
    }

    async fn watch(
        &self,
        caller: &Caller,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<ResponseStream<v1::LockChange>>, Status> {
        let headers = request.metadata().as_ref();
        let measured = self.telemetry.begin(Transport::Grpc, Rpc::Watch, headers);
        let request = request.get_ref();
        let prefix = convert::namespace(&request.prefix).and_then(|prefix| {
            auth::judge_watch(caller, &prefix)?;
            Ok(prefix)
        });
        measured.end(&prefix);
        if let Err(denied) = &prefix {
            caller.record_denied(Rpc::Watch.name(), denied);
        }
        let prefix = prefix?;
        let live = self.access.follow(caller);
        let changes = self.events.watch(live, prefix.clone(), request.snapshot)?;
        let stream = changes.map(|change| change.map_err(Status::from));
        let judge = move |caller: &Caller| auth::judge_watch(caller, &prefix);
        Ok(Response::new(self.while_allowed(caller, judge, stream)))
    }
}

/// tonic's codec with the message limit of the port. Responses are not limited.
fn messages<Q, A>() -> tonic::server::Grpc<ProstCodec<A, Q>>
where
    Q: prost::Message + Default + Send + 'static,
    A: prost::Message + Send + 'static,
{
    tonic::server::Grpc::new(ProstCodec::default())
        .max_decoding_message_size(MESSAGE)
        .max_encoding_message_size(usize::MAX)
}

/// The header with the client's deadline.
static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns the shorter of the client's deadline and `ours`.
pub(crate) fn deadline(headers: &HeaderMap, ours: Duration) -> Duration {
    let asked = headers.get(&GRPC_TIMEOUT);
    let asked = asked.and_then(|value| duration(value.to_str().ok()?));
    asked.map_or(ours, |asked| asked.min(ours))
}

/// Parses a `grpc-timeout` value: up to eight digits and a unit.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

fn shutting_down() -> Status {
    Status::unavailable("the node is shutting down: connect to another node")
}

/// Wraps a stream so that it ends with the status that `ending` resolves to.
fn until<T: Send + 'static>(
    stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ending: impl Future<Output = Status> + Send + 'static,
) -> ResponseStream<T> {
    Box::pin(Until {
        stream: Some(Box::pin(stream)),
        ending: Box::pin(ending),
    })
}

/// The stream of [`until`].
struct Until<S, E> {
    /// `None` after the final status was sent.
    stream: Option<Pin<Box<S>>>,
    ending: Pin<Box<E>>,
}

impl<T, S, E> Stream for Until<S, E>
where
    S: Stream<Item = Result<T, Status>>,
    E: Future<Output = Status>,
{
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.stream.is_none() {
            return Poll::Ready(None);
        }
        // First: a stream whose caller was refused must not go on because it always has items.
        if let Poll::Ready(status) = self.ending.as_mut().poll(cx) {
            self.stream = None;
            return Poll::Ready(Some(Err(status)));
        }
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(None);
        };
        stream.as_mut().poll_next(cx)
    }
}

/// The response stream of a streaming RPC.
pub(crate) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        assert_eq!(duration("250m"), Some(Duration::from_millis(250)));
        assert_eq!(duration("2S"), Some(Duration::from_secs(2)));
        assert_eq!(duration("1H"), Some(Duration::from_secs(3600)));
        for bad in ["", "S", "123456789S", "-1S", "1x", "1.5S"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
