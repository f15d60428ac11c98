//! A session: many operations at a time on one stream, which also carries events (E10: Session
//! stream).

use std::pin::Pin;

use tenure_wire::v1;
use tenure_wire::v1::session_request::Op;
use tenure_wire::v1::session_response::Result as Answer;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use super::{Answers, Service, convert};
use crate::driver::LogDriver;

/// Answers that may wait for the client to read them.
const BUFFER: usize = 1024;

type Requests = Pin<Box<dyn Stream<Item = v1::SessionRequest> + Send>>;

pub(super) fn run<D: LogDriver>(
    service: Service<D>,
    mut requests: Requests,
) -> Answers<v1::SessionResponse> {
    let (sender, answers) = mpsc::channel(BUFFER);
    let mut events = service.engine.subscribe();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                request = requests.next() => {
                    let Some(request) = request else { return };
                    // In a task of its own: an operation is never stopped halfway, and none waits
                    // for another.
                    let (service, sender) = (service.clone(), sender.clone());
                    tokio::spawn(async move {
                        let id = request.id;
                        let result = Some(answer(&service, request.op).await);
                        let _ = sender.send(Ok(v1::SessionResponse { id, result })).await;
                    });
                }
                event = events.recv() => {
                    let Some(event) = event else { return };
                    let result = Some(Answer::Event(convert::event_out(&event)));
                    let response = v1::SessionResponse { id: 0, result };
                    if sender.send(Ok(response)).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    Box::pin(ReceiverStream::new(answers))
}

async fn answer<D: LogDriver>(service: &Service<D>, op: Option<Op>) -> Answer {
    let answered = match op {
        Some(Op::Acquire(request)) => {
            let answer = service.acquire_one(*request).await;
            answer.map(|answer| Answer::Acquire(answer.into()))
        }
        Some(Op::Release(request)) => service.release_holds(request).await.map(Answer::Release),
        Some(Op::ReleaseAll(request)) => {
            service.release_owner(request).await.map(Answer::ReleaseAll)
        }
        Some(Op::Renew(request)) => service.renew_owner(request).await.map(Answer::Renew),
        Some(Op::AssertFencing(request)) => service
            .check_fence(request)
            .await
            .map(Answer::AssertFencing),
        None => Err(Status::invalid_argument(
            "a session request needs an operation",
        )),
    };
    answered.unwrap_or_else(|status| {
        let is_full =
            status.code() == tonic::Code::Unavailable && status.message() == super::owners::FULL;
        let detail = match is_full {
            true => v1::ErrorDetail::RetryWithoutKey,
            false => v1::ErrorDetail::Unspecified,
        };
        Answer::Error(v1::SessionError {
            code: status.code() as u32,
            message: status.message().to_owned(),
            detail: detail.into(),
        })
    })
}
