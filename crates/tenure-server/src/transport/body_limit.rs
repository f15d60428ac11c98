//! Limits for request bodies: total memory and time.
//!
//! Bodies up to [`FREE`] are not counted. The part above that counts against one budget of the
//! whole daemon, so that many clients that send large bodies slowly cannot exhaust the memory. A
//! body that does not arrive in time fails with DEADLINE_EXCEEDED.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;
use tonic::Status;

/// The first bytes of each body that are not counted.
const FREE: usize = 64 << 10;

/// Memory budget in bytes, shared by all bodies.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    left: AtomicUsize,
}

impl BodyBudget {
    pub(crate) fn new(bytes: usize) -> Arc<BodyBudget> {
        Arc::new(BodyBudget {
            left: AtomicUsize::new(bytes),
        })
    }

    fn take(&self, bytes: usize) -> bool {
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(bytes)
            })
            .is_ok()
    }
}

/// The part of the budget that one body uses. Returned when dropped.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<BodyBudget>,
    seen: usize,
    taken: usize,
}

impl BudgetShare {
    pub(crate) fn new(budget: &Arc<BodyBudget>) -> BudgetShare {
        BudgetShare {
            budget: Arc::clone(budget),
            seen: 0,
            taken: 0,
        }
    }

    /// Counts more bytes of the body. Fails with UNAVAILABLE if the budget is exhausted.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        self.seen += bytes;
        let counted = self.seen.saturating_sub(FREE);
        let more = counted - self.taken;
        if more > 0 && !self.budget.take(more) {
            return Err(Status::unavailable(
                "too many large requests are being received: try again",
            ));
        }
        self.taken = counted;
        Ok(())
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.budget.left.fetch_add(self.taken, Ordering::Relaxed);
        }
    }
}

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
    share: BudgetShare,
    time_limit: Duration,
    /// Created at the first wait: most bodies are complete when they are first polled.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> LimitedBody<B> {
    pub(crate) fn new(inner: B, budget: &Arc<BodyBudget>, time_limit: Duration) -> LimitedBody<B> {
        LimitedBody {
            inner,
            share: BudgetShare::new(budget),
            time_limit,
            deadline: None,
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
                let grown = self.share.grow(bytes);
                Poll::Ready(Some(grown.map(|()| frame).map_err(Into::into)))
            }
            Poll::Ready(Some(Err(cause))) => {
                let broken = ClientGone(cause.into().to_string());
                Poll::Ready(Some(Err(broken.into())))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let time_limit = self.time_limit;
                let deadline = self
                    .deadline
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep(time_limit)));
                match deadline.as_mut().poll(cx) {
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
    use futures_util::stream;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    /// R18: tonic must not treat a disconnected client as the end of the stream.
    #[tokio::test]
    async fn a_request_that_is_cancelled_has_not_ended() {
        let cancelled = Status::cancelled("the client reset the stream");
        let frames = StreamBody::new(stream::iter([Err::<Frame<Bytes>, _>(cancelled)]));
        let mut body = LimitedBody::new(frames, &BodyBudget::new(0), Duration::MAX);
        let error = body.frame().await.unwrap().unwrap_err();
        let status = Status::from_error(error);
        assert_ne!(status.code(), tonic::Code::Cancelled);
        assert!(status.message().contains("disconnected before"), "{status}");
    }

    #[test]
    fn only_what_is_large_counts_and_all_of_it_comes_back() {
        let budget = BodyBudget::new(100);
        let mut small = BudgetShare::new(&budget);
        small.grow(FREE).unwrap();
        let mut large = BudgetShare::new(&budget);
        large.grow(FREE + 60).unwrap();
        assert_eq!(small.grow(41).unwrap_err().code(), tonic::Code::Unavailable);
        large.grow(40).unwrap();
        drop(large);
        small.grow(0).unwrap();
        drop(small);
        assert_eq!(budget.left.load(Ordering::Relaxed), 100);
    }
}
