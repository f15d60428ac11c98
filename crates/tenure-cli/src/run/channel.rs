//! What wrapper and keeper tell each other, over a pair of sockets that keeps messages whole.
//!
//! The end of the other side is news too: [`Channel::receive`] returns `None`.

use std::ffi::OsString;
use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::schedule::Lease;
use super::tree::End;

/// The longest message: the child's extra environment is the only long one.
const LONGEST: usize = 256 << 10;

/// From the wrapper to the keeper.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The lock is held: start the child with these variables; those without value are removed.
    /// The locked descriptor of a lock file comes along (K38).
    Start(Vec<(OsString, Option<OsString>)>),
    /// Pass this signal on: TERM, INT, HUP and QUIT to the group, the others to the child (C3).
    Signal(i32),
    /// Let a stopped group go on; it gets the terminal back where the wrapper has it.
    Continue,
    /// A renewal was confirmed.
    Lease(Lease),
    /// The lock is lost: the text says how.
    Lost(String),
    /// Somebody asks for the lock: the text says who and why.
    Asked(String),
    /// All is over; leave what is left alone.
    Done,
}

/// From the keeper to the wrapper.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The child runs.
    Started(u32),
    /// It could not be started: the operating system's error.
    Failed(i32),
    /// It was stopped by this signal (C19).
    Stopped(i32),
    /// The end of the tree was begun because no renewal came in time, or was ordered.
    Ending(Cause),
    /// It is over: how the child ended, and why.
    Over(End, Cause),
}

/// Why the child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// By itself.
    Itself,
    /// The lock was lost.
    Lost,
    /// It gave way to a release request.
    GaveWay,
}

/// One end of the pair.
pub(crate) struct Channel {
    socket: OwnedFd,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Channel {
    /// A connected pair; neither end is inherited by an exec.
    pub(crate) fn pair() -> io::Result<(Channel, Channel)> {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Channel { socket: a }, Channel { socket: b }))
    }

    pub(crate) fn send(&self, message: &impl Message) -> io::Result<()> {
        self.send_with(message, None)
    }

    /// Sends a message, with a descriptor if there is one.
    pub(crate) fn send_with(
        &self,
        message: &impl Message,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        loop {
            // A dead peer is an error value here, not a signal.
            let flags = SendFlags::NOSIGNAL;
            match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes one message and its descriptor; `None` when the other side is gone.
    pub(crate) fn receive<M: Message>(&self) -> io::Result<Option<(M, Option<OwnedFd>)>> {
        let mut bytes = vec![0u8; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let length = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match recvmsg(
                &self.socket,
                &mut parts,
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => break received.bytes,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => break 0,
                Err(errno) => return Err(errno.into()),
            }
        };
        let mut fd = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                fd = fds.last();
            }
        }
        if length == 0 {
            return Ok(None);
        }
        match M::take(&bytes[..length]) {
            Some(message) => Ok(Some((message, fd))),
            None => Err(io::Error::other(
                "wrapper and keeper do not understand each other",
            )),
        }
    }
}

/// What can be sent: a tag and a payload.
pub(crate) trait Message: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(bytes: &[u8]) -> Option<Self>;
}

impl Message for Order {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Order::Start(variables) => {
                out.push(b's');
                for (name, value) in variables {
                    out.push(if value.is_some() { b'=' } else { b'-' });
                    out.extend_from_slice(name.as_bytes());
                    out.push(0);
                    out.extend_from_slice(value.as_deref().unwrap_or_default().as_bytes());
                    out.push(0);
                }
            }
            Order::Signal(signal) => put_number(out, b'k', i64::from(*signal)),
            Order::Continue => out.push(b'c'),
            Order::Lease(lease) => {
                out.push(b'l');
                out.extend_from_slice(&nanos(lease.safe_until).to_le_bytes());
                out.extend_from_slice(&nanos(lease.ttl).to_le_bytes());
            }
            Order::Lost(text) => put_text(out, b'x', text),
            Order::Asked(text) => put_text(out, b'a', text),
            Order::Done => out.push(b'd'),
        }
    }

    fn take(bytes: &[u8]) -> Option<Order> {
        let (tag, rest) = bytes.split_first()?;
        Some(match tag {
            b's' => Order::Start(take_variables(rest)?),
            b'k' => Order::Signal(i32::try_from(take_number(rest)?).ok()?),
            b'c' => Order::Continue,
            b'l' => {
                let (until, ttl) = rest.split_at_checked(8)?;
                Order::Lease(Lease {
                    safe_until: Duration::from_nanos(u64::from_le_bytes(until.try_into().ok()?)),
                    ttl: Duration::from_nanos(u64::from_le_bytes(ttl.try_into().ok()?)),
                })
            }
            b'x' => Order::Lost(String::from_utf8_lossy(rest).into_owned()),
            b'a' => Order::Asked(String::from_utf8_lossy(rest).into_owned()),
            b'd' => Order::Done,
            _ => return None,
        })
    }
}

impl Message for Report {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Report::Started(pid) => put_number(out, b'p', i64::from(*pid)),
            Report::Failed(errno) => put_number(out, b'f', i64::from(*errno)),
            Report::Stopped(signal) => put_number(out, b't', i64::from(*signal)),
            Report::Ending(cause) => put_number(out, b'e', cause.number()),
            Report::Over(end, cause) => {
                let (kind, value) = match end {
                    End::Exited(code) => (0, *code),
                    End::Killed(signal) => (1, *signal),
                };
                put_number(
                    out,
                    b'o',
                    cause.number() << 40 | kind << 32 | i64::from(value),
                );
            }
        }
    }

    fn take(bytes: &[u8]) -> Option<Report> {
        let (tag, rest) = bytes.split_first()?;
        let number = take_number(rest)?;
        Some(match tag {
            b'p' => Report::Started(u32::try_from(number).ok()?),
            b'f' => Report::Failed(i32::try_from(number).ok()?),
            b't' => Report::Stopped(i32::try_from(number).ok()?),
            b'e' => Report::Ending(Cause::from_number(number)?),
            b'o' => {
                let value = i32::try_from(number & 0xffff_ffff).ok()?;
                let end = if number >> 32 & 1 == 0 {
                    End::Exited(value)
                } else {
                    End::Killed(value)
                };
                Report::Over(end, Cause::from_number(number >> 40)?)
            }
            _ => return None,
        })
    }
}

impl Cause {
    fn number(self) -> i64 {
        match self {
            Cause::Itself => 0,
            Cause::Lost => 1,
            Cause::GaveWay => 2,
        }
    }

    fn from_number(number: i64) -> Option<Cause> {
        [Cause::Itself, Cause::Lost, Cause::GaveWay]
            .into_iter()
            .find(|cause| cause.number() == number)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn put_number(out: &mut Vec<u8>, tag: u8, number: i64) {
    out.push(tag);
    out.extend_from_slice(&number.to_le_bytes());
}

fn take_number(bytes: &[u8]) -> Option<i64> {
    Some(i64::from_le_bytes(bytes.try_into().ok()?))
}

fn put_text(out: &mut Vec<u8>, tag: u8, text: &str) {
    out.push(tag);
    // A message must fit; what is cut off is only words.
    out.extend_from_slice(&text.as_bytes()[..text.len().min(LONGEST / 2)]);
}

type Variables = Vec<(OsString, Option<OsString>)>;

fn take_variables(mut bytes: &[u8]) -> Option<Variables> {
    let mut variables = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        let mut parts = rest.splitn(3, |byte| *byte == 0);
        let name = OsString::from_vec(parts.next()?.to_vec());
        let value = OsString::from_vec(parts.next()?.to_vec());
        variables.push((name, (*kind == b'=').then_some(value)));
        bytes = parts.next()?;
    }
    Some(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_reports_arrive_whole() {
        let (wrapper, keeper) = Channel::pair().unwrap();
        let variables = vec![
            ("TENURE_FENCE".into(), Some("7".into())),
            ("TENURE_FD".into(), None),
        ];
        for order in [
            Order::Start(variables),
            Order::Start(Vec::new()),
            Order::Signal(15),
            Order::Continue,
            Order::Lease(Lease {
                safe_until: Duration::from_nanos(5),
                ttl: Duration::from_secs(30),
            }),
            Order::Lost("gone".into()),
            Order::Asked("by amy".into()),
            Order::Done,
        ] {
            wrapper.send(&order).unwrap();
            assert_eq!(keeper.receive::<Order>().unwrap().unwrap().0, order);
        }
        for report in [
            Report::Started(4711),
            Report::Failed(2),
            Report::Stopped(20),
            Report::Ending(Cause::Lost),
            Report::Over(End::Killed(9), Cause::GaveWay),
            Report::Over(End::Exited(255), Cause::Itself),
        ] {
            keeper.send(&report).unwrap();
            assert_eq!(wrapper.receive::<Report>().unwrap().unwrap().0, report);
        }
        drop(wrapper);
        assert!(keeper.receive::<Order>().unwrap().is_none());
    }

    #[test]
    fn a_descriptor_comes_along() {
        let (wrapper, keeper) = Channel::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        wrapper
            .send_with(&Order::Start(Vec::new()), Some(file.as_fd()))
            .unwrap();
        let (_, fd) = keeper.receive::<Order>().unwrap().unwrap();
        let sent = rustix::fs::fstat(&file).unwrap();
        let received = rustix::fs::fstat(fd.unwrap()).unwrap();
        assert_eq!(sent.st_ino, received.st_ino);
    }
}
