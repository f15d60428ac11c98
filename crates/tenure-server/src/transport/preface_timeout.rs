//! Preface timeout: closes connections that send nothing, or stop within their first bytes.
//!
//! The HTTP version is known when the first bytes differ from the HTTP/2 preface or complete it.
//! Until then no other timeout applies; afterwards HTTP/1's header timeout or HTTP/2's pings do.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose first bytes must arrive within a time limit.
pub(crate) struct PrefaceTimeout<I> {
    inner: I,
    /// `None` once the HTTP version is known.
    waiting: Option<PrefaceWait>,
}

struct PrefaceWait {
    seen: usize,
    deadline: Pin<Box<Sleep>>,
}

impl<I> PrefaceTimeout<I> {
    pub(crate) fn new(inner: I, time_limit: Duration) -> PrefaceTimeout<I> {
        PrefaceTimeout {
            inner,
            waiting: Some(PrefaceWait {
                seen: 0,
                deadline: Box::pin(tokio::time::sleep(time_limit)),
            }),
        }
    }
}

/// Returns how many bytes of the preface have arrived, or `None` once the version is known.
fn matched(seen: usize, new: &[u8]) -> Option<usize> {
    let rest = &PREFACE[seen..];
    let seen = seen + new.len();
    (new.len() < rest.len() && rest.starts_with(new)).then_some(seen)
}

impl<I: AsyncRead + Unpin> AsyncRead for PrefaceTimeout<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        let Some(waiting) = &mut self.waiting else {
            return read;
        };
        match read {
            Poll::Ready(read) => {
                match matched(waiting.seen, &buf.filled()[before..]) {
                    Some(seen) => waiting.seen = seen,
                    None => self.waiting = None,
                }
                Poll::Ready(read)
            }
            Poll::Pending => waiting.deadline.as_mut().poll(cx).map(|()| {
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "timed out: the first request did not arrive in time",
                ))
            }),
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for PrefaceTimeout<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_known_at_the_first_difference_or_at_the_end_of_the_preface() {
        assert_eq!(matched(0, b"P"), Some(1));
        assert_eq!(matched(1, b"OST /v1"), None);
        assert_eq!(matched(1, b"RI * HTTP"), Some(10));
        assert_eq!(matched(0, PREFACE), None);
        assert_eq!(matched(20, &PREFACE[20..23]), Some(23));
        assert_eq!(matched(20, b"\r\n\r\nmore"), None);
        assert_eq!(matched(0, b"GET /"), None);
    }
}
