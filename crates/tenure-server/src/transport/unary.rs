//! Body of a unary gRPC call: fast path for one message that arrives in one piece.
//!
//! All other bodies (in pieces, two messages, too long, malformed) go to tonic's decoder, together
//! with the bytes read so far. So only one implementation decides what is malformed.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::Frame;
use http_body_util::BodyExt;
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder, Streaming};

use super::{MESSAGE, framing};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request body whose beginning is read.
pub(super) struct PeekedBody<B> {
    seen: Bytes,
    /// The frame after `seen`, if it was read.
    next: Option<Result<Frame<Bytes>, BoxError>>,
    /// The unread part; `None` when the body has ended.
    rest: Option<B>,
}

impl<B> PeekedBody<B>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    /// Wraps a body of which nothing is read yet.
    pub(super) fn new(body: B) -> PeekedBody<B> {
        PeekedBody {
            seen: Bytes::new(),
            next: None,
            rest: Some(body),
        }
    }

    /// Reads the first frames until the body ends or a second frame arrives. Cancel-safe: progress
    /// is kept in `self`.
    pub(super) async fn read(&mut self) {
        while let Some(rest) = &mut self.rest {
            match rest.frame().await {
                Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
                Some(Ok(frame)) if frame.is_data() && self.seen.is_empty() => {
                    self.seen = frame.into_data().unwrap_or_default();
                    if rest.is_end_stream() {
                        self.rest = None;
                    }
                }
                Some(frame) => {
                    self.next = Some(frame.map_err(Into::into));
                    return;
                }
                None => self.rest = None,
            }
        }
    }

    /// Returns the message if it has arrived and is the whole body.
    pub(super) fn message(&self) -> Option<&[u8]> {
        let (message, end) = framing::first(&self.seen).ok()??;
        let is_all = self.rest.is_none() && self.next.is_none() && end == self.seen.len();
        is_all.then_some(message)
    }

    /// Waits for the whole body and returns its message, or the status of a malformed one.
    pub(super) async fn wait(self) -> Result<Bytes, Status> {
        let mut messages = Streaming::new_request(AsBytes, self, None, Some(MESSAGE));
        let message = messages.message().await?;
        let message = message.ok_or_else(|| Status::internal("Missing request message."))?;
        // Also reads the rest, so that a malformed end is an error.
        messages.trailers().await?;
        Ok(message)
    }
}

/// Decoder that returns the bytes of a message undecoded.
struct AsBytes;

impl Decoder for AsBytes {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}

impl<B> http_body::Body for PeekedBody<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.seen.is_empty() {
            let seen = std::mem::take(&mut self.seen);
            return Poll::Ready(Some(Ok(Frame::data(seen))));
        }
        if let Some(next) = self.next.take() {
            return Poll::Ready(Some(next));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx).map_err(Into::into),
            None => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::StreamBody;

    use super::*;

    async fn peek(pieces: &[&'static [u8]]) -> (Option<Vec<u8>>, Result<Vec<u8>, tonic::Code>) {
        let frames = pieces
            .iter()
            .map(|piece| Ok::<_, Status>(Frame::data(Bytes::from_static(piece))));
        let body = StreamBody::new(stream::iter(frames.collect::<Vec<_>>()));
        let mut peeked = PeekedBody::new(body);
        peeked.read().await;
        let message = peeked.message().map(<[u8]>::to_vec);
        let waited = peeked.wait().await;
        (
            message,
            waited
                .map(|bytes| bytes.to_vec())
                .map_err(|status| status.code()),
        )
    }

    /// One complete message takes the fast path. All else is waited for, and no byte of it is lost.
    #[tokio::test]
    async fn one_whole_message_is_taken_and_all_else_is_waited_for() {
        let whole: &[u8] = &[0, 0, 0, 0, 2, 7, 8];
        let message = || vec![7, 8];
        assert_eq!(peek(&[whole]).await, (Some(message()), Ok(message())));
        assert_eq!(peek(&[whole, &[]]).await, (Some(message()), Ok(message())));
        for in_pieces in [
            &[&whole[..5], &whole[5..]][..],
            &[&whole[..1], &whole[1..3], &whole[3..]],
            // Of two messages the first counts.
            &[whole, whole],
        ] {
            assert_eq!(
                peek(in_pieces).await,
                (None, Ok(message())),
                "{in_pieces:?}"
            );
        }
        let (internal, too_long) = (tonic::Code::Internal, tonic::Code::OutOfRange);
        for (odd, code) in [
            (&[][..], internal),
            (&[&whole[..6]], internal),
            (&[whole, &whole[..3]], internal),
            (&[&[1, 0, 0, 0, 0]], internal),
            (&[&[2, 0, 0, 0, 0]], internal),
            (&[&[0, 0, 64, 0, 1]], too_long),
        ] {
            assert_eq!(peek(odd).await, (None, Err(code)), "{odd:?}");
        }
    }
}
