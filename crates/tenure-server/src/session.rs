//! Session: many operations in flight on one stream (E10). Same rules, same results as unary calls.
//!
//! Requests are handled as they come and answered as they end. Events of every owner that the
//! session has used arrive on the same stream, with id 0.

use std::collections::HashSet;

use futures_util::Stream;
use http::HeaderMap;
use tenure_wire::v1;
use tenure_wire::v1::session_request::Op;
use tenure_wire::v1::session_response::Result as Answer;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::convert;
use crate::events::Events;
use crate::handlers::{Call, Handlers};
use crate::status::{Code, Failure};
use crate::telemetry::{Face, Rpc, Telemetry};

/// Operations of one session that are under way; further requests wait in the connection.
const IN_FLIGHT: usize = 4096;

/// Serves one session. The stream ends when the client ends its side and everything is answered.
pub(crate) fn run(
    handlers: Handlers,
    events: Events,
    telemetry: Telemetry,
    call: Call,
    requests: Streaming<v1::SessionRequest>,
) -> impl Stream<Item = v1::SessionResponse> + Send {
    let (responses, stream) = mpsc::channel(IN_FLIGHT);
    tokio::spawn(serve(
        handlers, events, telemetry, call, requests, responses,
    ));
    ReceiverStream::new(stream)
}

async fn serve(
    handlers: Handlers,
    events: Events,
    telemetry: Telemetry,
    call: Call,
    mut requests: Streaming<v1::SessionRequest>,
    responses: mpsc::Sender<v1::SessionResponse>,
) {
    let mut owners = HashSet::new();
    let mut listening = tokio::task::JoinSet::new();
    // A request that breaks off, or cannot be read, ends the session; its operations still finish.
    while let Ok(Some(request)) = requests.message().await {
        // A slot is kept for each answer, so that a client which does not read is not read either.
        let Ok(slot) = responses.clone().reserve_owned().await else {
            return;
        };
        if let Some(owner) = owner_of(&request)
            && !owners.contains(owner)
            && let Ok(id) = convert::owner(owner)
        {
            owners.insert(owner.to_owned());
            let mut stream = Box::pin(events.subscribe(id));
            let responses = responses.clone();
            listening.spawn(async move {
                while let Some(event) = stream.next().await {
                    let result = match event {
                        Ok(event) => Answer::Event(convert::event_out(&event)),
                        Err(failure) => error(failure),
                    };
                    let response = v1::SessionResponse {
                        id: 0,
                        result: Some(result),
                    };
                    if responses.send(response).await.is_err() {
                        return;
                    }
                }
            });
        }
        let (handlers, telemetry) = (handlers.clone(), telemetry.clone());
        tokio::spawn(async move {
            let id = request.id;
            let measured =
                rpc_of(&request).map(|rpc| telemetry.begin(Face::Grpc, rpc, &HeaderMap::new()));
            let result = answer(&handlers, call, request).await;
            if let Some(measured) = measured {
                measured.end(&result);
            }
            let result = result.unwrap_or_else(error);
            slot.send(v1::SessionResponse {
                id,
                result: Some(result),
            });
        });
    }
    // Answers under way have their slots; events end with the session.
    listening.abort_all();
}

async fn answer(
    handlers: &Handlers,
    call: Call,
    request: v1::SessionRequest,
) -> Result<Answer, Failure> {
    if request.id == 0 {
        return Err(Failure::new(
            Code::InvalidArgument,
            "id 0 is for events: number from 1",
        ));
    }
    match request.op {
        Some(Op::Acquire(acquire)) => handlers.acquire(call, acquire).await.map(Answer::Acquire),
        Some(Op::Release(release)) => handlers.release(call, release).await.map(Answer::Release),
        Some(Op::ReleaseAll(all)) => handlers
            .release_all(call, all)
            .await
            .map(Answer::ReleaseAll),
        Some(Op::Renew(renew)) => handlers.renew(call, renew).await.map(Answer::Renew),
        Some(Op::AssertFencing(assert)) => handlers
            .assert_fencing(call, assert)
            .await
            .map(Answer::AssertFencing),
        None => Err(Failure::new(
            Code::InvalidArgument,
            "the request names no operation",
        )),
    }
}

fn rpc_of(request: &v1::SessionRequest) -> Option<Rpc> {
    Some(match request.op.as_ref()? {
        Op::Acquire(_) => Rpc::Acquire,
        Op::Release(_) => Rpc::Release,
        Op::ReleaseAll(_) => Rpc::ReleaseAll,
        Op::Renew(_) => Rpc::Renew,
        Op::AssertFencing(_) => Rpc::AssertFencing,
    })
}

fn owner_of(request: &v1::SessionRequest) -> Option<&str> {
    match request.op.as_ref()? {
        Op::Acquire(acquire) => Some(&acquire.owner_id),
        Op::Renew(renew) => Some(&renew.owner_id),
        Op::Release(_) | Op::ReleaseAll(_) | Op::AssertFencing(_) => None,
    }
}

fn error(failure: Failure) -> Answer {
    Answer::Error(v1::SessionError {
        code: i32::from(failure.code.grpc()).unsigned_abs(),
        message: failure.message,
    })
}
