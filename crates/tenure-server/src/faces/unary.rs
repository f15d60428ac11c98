//! The calls that clients make all day, over gRPC without the machinery for streams.
//!
//! Such a request is a body with one message, which is nearly always there at once, and its answer is
//! another. What is unusual (compressed, in two messages, too long, broken) goes to tonic with the bytes
//! that were read, so there is one place that judges it.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use prost::Message;
use tenure_node::{Answer, ClientRequest};
use tonic::Status;

use super::MESSAGE;
use super::streams::Received;
use crate::handlers::wire;
use crate::session::Session;
use crate::status::Failure;
use crate::telemetry::Rpc;

/// The length of what precedes a message: a flag and the length.
const PREFIX: usize = 5;

/// A call that is served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Common {
    Acquire,
    Release,
    Renew,
    AssertFencing,
}

impl Common {
    /// The call of this name, if it is one of these.
    pub(super) fn named(method: &str) -> Option<Common> {
        Some(match method {
            "Acquire" => Common::Acquire,
            "Release" => Common::Release,
            "Renew" => Common::Renew,
            "AssertFencing" => Common::AssertFencing,
            _ => return None,
        })
    }

    pub(super) fn rpc(self) -> Rpc {
        match self {
            Common::Acquire => Rpc::Acquire,
            Common::Release => Rpc::Release,
            Common::Renew => Rpc::Renew,
            Common::AssertFencing => Rpc::AssertFencing,
        }
    }

    /// What a message asks. Nothing, if it is no message of this call.
    pub(super) fn parse(self, message: &[u8]) -> Option<Result<ClientRequest, Failure>> {
        match self {
            Common::Acquire => parse(message, wire::acquire),
            Common::Release => parse(message, wire::release),
            Common::Renew => parse(message, wire::renew),
            Common::AssertFencing => parse(message, wire::assert_fencing),
        }
    }

    /// The answer of the node as a message.
    pub(super) fn respond(self, answer: Answer) -> Result<Bytes, Failure> {
        Ok(match self {
            Common::Acquire => encode(&wire::acquired(answer)?),
            Common::Release => encode(&wire::released(&answer)?),
            Common::Renew => encode(&wire::renewed(&answer)?),
            Common::AssertFencing => encode(&wire::asserted(&answer)?),
        })
    }
}

fn parse<Q: Message + Default>(
    message: &[u8],
    parse: fn(Q) -> Result<ClientRequest, Failure>,
) -> Option<Result<ClientRequest, Failure>> {
    Some(parse(Q::decode(message).ok()?))
}

fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    if length == 0 {
        return Bytes::from_static(&[0; PREFIX]);
    }
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    bytes.freeze()
}

/// A request's body of which the beginning, or all, is read.
pub(super) struct Peeked<B> {
    seen: Bytes,
    /// Nothing, when all is seen.
    rest: Option<B>,
    broken: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl<B> Peeked<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// A body of which nothing is read yet.
    pub(super) fn new(body: B) -> Peeked<B> {
        Peeked {
            seen: Bytes::new(),
            rest: Some(body),
            broken: None,
        }
    }

    /// Reads a body that comes in one piece; of others, the first two.
    pub(super) async fn read(&mut self) {
        while let Some(rest) = &mut self.rest {
            match rest.frame().await.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) if self.seen.is_empty() => {
                    self.seen = data;
                    if rest.is_end_stream() {
                        self.rest = None;
                    }
                }
                Some(Ok(Ok(data))) if data.is_empty() => {}
                Some(Ok(Ok(data))) => {
                    self.seen = [std::mem::take(&mut self.seen), data].concat().into();
                    return;
                }
                // Trailers of a request say nothing here.
                Some(Ok(Err(_))) => {}
                Some(Err(error)) => {
                    self.broken = Some(error.into());
                    self.rest = None;
                }
                None => self.rest = None,
            }
        }
    }

    /// The message, if there is just one and it is whole.
    pub(super) fn message(&self) -> Option<&[u8]> {
        let (&[0, a, b, c, d], message) = self.seen.split_first_chunk()? else {
            return None;
        };
        let whole = self.rest.is_none() && self.broken.is_none();
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        (whole && message.len() == length && length <= MESSAGE).then_some(message)
    }
}

impl<B> http_body::Body for Peeked<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if !self.seen.is_empty() {
            let seen = std::mem::take(&mut self.seen);
            return Poll::Ready(Some(Ok(Frame::data(seen))));
        }
        if let Some(broken) = self.broken.take() {
            return Poll::Ready(Some(Err(broken)));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(Into::into))),
            None => Poll::Ready(None),
        }
    }
}

/// The body of an answer.
pub(crate) enum Answered {
    /// A message, then that all is well.
    One(Bytes),
    /// The message is sent.
    Trailers,
    /// That is sent, too.
    End,
    /// A session, which is its own answer.
    Session(Box<Session<Received>>),
    /// Whatever else is served on the port.
    Other(Body),
}

impl Answered {
    /// An answer of gRPC that begins well.
    pub(super) fn begin(self) -> Response<Answered> {
        let mut response = Response::new(self);
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, grpc);
        response
    }
}

impl http_body::Body for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let (frame, next) = match &mut *self {
            Answered::One(message) => (Frame::data(std::mem::take(message)), Answered::Trailers),
            Answered::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                (Frame::trailers(trailers), Answered::End)
            }
            Answered::End => return Poll::Ready(None),
            Answered::Session(session) => return Pin::new(session.as_mut()).poll_frame(cx),
            Answered::Other(body) => return Pin::new(body).poll_frame(cx),
        };
        *self = next;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answered::One(_) | Answered::Trailers => false,
            Answered::End => true,
            Answered::Session(session) => session.is_end_stream(),
            Answered::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Answered::Other(body) => body.size_hint(),
            _ => http_body::SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::StreamBody;

    use super::*;

    async fn peek(pieces: &[&'static [u8]]) -> (Option<Vec<u8>>, Vec<u8>) {
        let frames = pieces
            .iter()
            .map(|piece| Ok::<_, Status>(Frame::data(Bytes::from_static(piece))));
        let body = StreamBody::new(stream::iter(frames.collect::<Vec<_>>()));
        let mut peeked = Peeked::new(body);
        peeked.read().await;
        let message = peeked.message().map(<[u8]>::to_vec);
        (message, peeked.collect().await.unwrap().to_bytes().to_vec())
    }

    /// Whatever is not one whole plain message is handed on, and nothing of it is lost.
    #[tokio::test]
    async fn one_whole_message_is_taken_and_all_else_is_handed_on() {
        let whole: &[u8] = &[0, 0, 0, 0, 2, 7, 8];
        assert_eq!(peek(&[whole]).await, (Some(vec![7, 8]), whole.to_vec()));
        assert_eq!(peek(&[whole, &[]]).await.0, Some(vec![7, 8]));
        for odd in [
            &[][..],
            &[&whole[..5], &whole[5..]],
            &[&whole[..1], &whole[1..3], &whole[3..]],
            &[&whole[..6]],
            &[whole, whole],
            &[&[1, 0, 0, 0, 0]],
        ] {
            assert_eq!(peek(odd).await, (None, odd.concat()), "{odd:?}");
        }
    }
}
