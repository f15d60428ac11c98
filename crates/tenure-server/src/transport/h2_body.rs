//! HTTP/2 bodies: request bodies as they arrive, response bodies as the client's flow control
//! allows.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use http_body::{Body, Frame};

/// The body of a request on an `h2` stream.
pub(crate) struct RequestBody {
    stream: RecvStream,
    data_is_over: bool,
}

impl RequestBody {
    pub(super) fn new(stream: RecvStream) -> RequestBody {
        RequestBody {
            stream,
            data_is_over: false,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.data_is_over {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // The data is consumed, so the client may send as much again. An error only
                    // says that the stream has ended.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.data_is_over = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx));
        Poll::Ready(trailers.map(|some| some.map(Frame::trailers)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

/// Waits for a future. Returns `None` if the client resets the stream first.
pub(super) async fn unless_reset<T>(
    waited: impl Future<Output = T>,
    respond: &mut SendResponse<Bytes>,
) -> Option<T> {
    let mut waited = Box::pin(waited);
    poll_fn(|cx| {
        if let Poll::Ready(result) = waited.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        respond.poll_reset(cx).map(|_| None)
    })
    .await
}

/// Waits for a response and sends it, unless the client resets the stream first.
pub(super) async fn answer(
    answer: impl Future<Output = Response<axum::body::Body>>,
    mut respond: SendResponse<Bytes>,
) {
    if let Some(response) = unless_reset(answer, &mut respond).await {
        send(response, respond).await;
    }
}

/// Sends a response as fast as the client's flow control allows.
pub(super) async fn send(response: Response<axum::body::Body>, mut respond: SendResponse<Bytes>) {
    if let Err(error) = try_send(response, &mut respond).await {
        tracing::debug!(%error, "cannot send a response: the client has disconnected");
    }
}

async fn try_send(
    response: Response<axum::body::Body>,
    respond: &mut SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let (head, mut body) = response.into_parts();
    let head = Response::from_parts(head, ());
    if body.is_end_stream() {
        respond.send_response(head, true)?;
        return Ok(());
    }
    let mut stream = respond.send_response(head, false)?;
    loop {
        let frame = poll_fn(|cx| {
            if let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(cx) {
                return Poll::Ready(Ok(frame));
            }
            stream.poll_reset(cx).map(left)
        });
        match frame.await? {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    if !data.is_empty() {
                        room(&mut stream).await?;
                    }
                    stream.send_data(data, false)?;
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        // Returns capacity that was reserved and not used to the other streams of
                        // the connection.
                        stream.reserve_capacity(0);
                        return stream.send_trailers(trailers);
                    }
                }
            },
            Some(Err(error)) => {
                tracing::debug!(%error, "the body of a response failed");
                stream.send_reset(Reason::INTERNAL_ERROR);
                return Ok(());
            }
            None => return stream.send_data(Bytes::new(), true),
        }
    }
}

/// Waits until the client's window has room. One byte is enough: `h2` buffers data beyond the
/// window.
async fn room(stream: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
    stream.reserve_capacity(1);
    while stream.capacity() == 0 {
        let more = poll_fn(|cx| {
            if let Poll::Ready(more) = stream.poll_capacity(cx) {
                return Poll::Ready(more.transpose().map(|more| more.is_some()));
            }
            stream.poll_reset(cx).map(left)
        });
        if !more.await? {
            return Err(Reason::CANCEL.into());
        }
    }
    Ok(())
}

/// Converts a reset by the client to an error.
fn left<T>(reset: Result<Reason, h2::Error>) -> Result<T, h2::Error> {
    Err(reset.map_or_else(|error| error, h2::Error::from))
}
