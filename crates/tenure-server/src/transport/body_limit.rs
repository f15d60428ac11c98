//! Limits for request bodies: memory and time.
//!
//! All bytes of a body count against the memory budget of the daemon, so that many clients that
//! send bodies slowly cannot exhaust the memory. A body whose first byte does not arrive soon, or
//! that does not arrive completely in time, fails with DEADLINE_EXCEEDED.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tonic::Status;

use super::memory_budget::Charge;

/// Time limit for the first byte of a body. A client that sends a head has its message ready.
pub(super) const FIRST_BYTE: Duration = Duration::from_secs(5);

/// The client disconnected before the body ended.
///
/// Replaces the error of HTTP/2: tonic treats a cancelled stream as ended, and would acquire the
/// chunks received so far (R18 AcquireStream is one acquire).
#[derive(Debug, thiserror::Error)]
#[error("the client disconnected before the request was complete: {0}")]
struct ClientGone(String);

/// A body with these limits.
pub(crate) struct LimitedBody<B> {
    inner: B,
    charge: Charge,
    time_limit: Duration,
    /// Created at the first wait: most bodies are complete when they are first polled.
    deadline: Option<BodyDeadline>,
    has_begun: bool,
}

struct BodyDeadline {
    began: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl<B> LimitedBody<B> {
    pub(crate) fn new(inner: B, charge: Charge, time_limit: Duration) -> LimitedBody<B> {
        LimitedBody {
            inner,
            charge,
            time_limit,
            deadline: None,
            has_begun: false,
        }
    }

    /// Sets the deadline of the whole body once its first byte has arrived.
    fn begin(&mut self) {
        self.has_begun = true;
        if let Some(deadline) = &mut self.deadline {
            let end = deadline.began + self.time_limit;
            deadline.sleep.as_mut().reset(end);
        }
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Buf::remaining);
                if bytes > 0 && !self.has_begun {
                    self.begin();
                }
                let grown = self.charge.grow(bytes);
                Poll::Ready(Some(grown.map(|()| frame).map_err(Into::into)))
            }
            Poll::Ready(Some(Err(cause))) => {
                let broken = ClientGone(cause.into().to_string());
                Poll::Ready(Some(Err(broken.into())))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let time_limit = if self.has_begun {
                    self.time_limit
                } else {
                    self.time_limit.min(FIRST_BYTE)
                };
                let deadline = self.deadline.get_or_insert_with(|| BodyDeadline {
                    began: Instant::now(),
                    sleep: Box::pin(tokio::time::sleep(time_limit)),
                });
                match deadline.sleep.as_mut().poll(cx) {
                    Poll::Ready(()) => {
                        let late = Status::deadline_exceeded(
                            "timed out: the request did not arrive in time",
                        );
                        Poll::Ready(Some(Err(late.into())))
                    }
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};
    use http_body_util::{BodyExt, StreamBody};

    use super::super::memory_budget::{ConnectionBudget, MemoryBudget};
    use super::*;

    fn charge() -> Charge {
        let budget = MemoryBudget::new(1 << 20);
        let connection = ConnectionBudget::open(&budget).unwrap();
        connection.charge(0).unwrap()
    }

    /// R18: tonic must not treat a disconnected client as the end of the stream.
    #[tokio::test]
    async fn a_request_that_is_cancelled_has_not_ended() {
        let cancelled = Status::cancelled("the client reset the stream");
        let frames = StreamBody::new(stream::iter([Err::<Frame<Bytes>, _>(cancelled)]));
        let mut body = LimitedBody::new(frames, charge(), Duration::MAX);
        let error = body.frame().await.unwrap().unwrap_err();
        let status = Status::from_error(error);
        assert_ne!(status.code(), tonic::Code::Cancelled);
        assert!(status.message().contains("disconnected before"), "{status}");
    }

    /// A body whose first byte does not come is given up early; one that has begun has all its time.
    #[tokio::test(start_paused = true)]
    async fn the_first_byte_must_come_soon() {
        let late_after = async |begin: Duration| {
            let first = async move {
                tokio::time::sleep(begin).await;
                Ok::<_, Status>(Frame::data(Bytes::from_static(b"x")))
            };
            let frames = stream::once(first).chain(stream::pending());
            let body = StreamBody::new(Box::pin(frames));
            let limit = Duration::from_secs(30);
            let mut body = LimitedBody::new(body, charge(), limit);
            let begun = Instant::now();
            while body.frame().await.unwrap().is_ok() {}
            begun.elapsed().as_secs()
        };
        assert_eq!(
            late_after(Duration::from_secs(60)).await,
            FIRST_BYTE.as_secs()
        );
        assert_eq!(late_after(Duration::from_secs(1)).await, 30);
    }
}
