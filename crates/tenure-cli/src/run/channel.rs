//! Messages between wrapper and supervisor over a `SOCK_SEQPACKET` pair, which keeps message
//! boundaries.
//!
//! If the other process has ended, [`Channel::receive`] returns `None`.

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
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, sendmsg, socketpair,
};

use super::process_tree::ProcessEnd;
use super::schedule::ChildLease;
use super::task::SupervisorTask;

/// Limit for one message. Only the additional environment of the child is long.
const LONGEST: usize = 256 << 10;
/// The most descriptors per message, and so the most locks per run.
pub(crate) const MOST_DESCRIPTORS: usize = 64;

/// Messages from the wrapper to the supervisor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SupervisorCommand {
    /// All locks are held: start the child with these variables. The message carries the locked
    /// descriptors of lock files: K38 (inherit the locked descriptor).
    Start(SupervisorTask, Variables),
    /// Forward this signal: TERM, INT, HUP and QUIT to the process group, others to the child: C3
    /// (environment of the child).
    Signal(i32),
    /// Continue a stopped process group.
    Continue,
    /// A renewal was confirmed.
    Lease(ChildLease),
    /// The lock is lost, with a description.
    Lost(String),
    /// Another client asks for the lock: the action, and a description.
    Asked(OnAsk, String),
    /// The run has ended. The supervisor exits and leaves other processes alone.
    Done,
}

/// Variables of the child's environment, in the order in which they are set.
pub(crate) type Variables = Vec<(OsString, VariableValue)>;

/// The value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VariableValue {
    /// This text.
    Text(OsString),
    /// Unset: an inherited value must not be mistaken for one of this run.
    Removed,
    /// The number of the next descriptor in the message.
    Descriptor,
}

/// What happens to the child when another client asks for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnAsk {
    Term,
    Notify,
    Ignore,
}

/// Messages from the supervisor to the wrapper.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SupervisorReport {
    /// The child runs, with its pid.
    Started(u32),
    /// The child could not be started, with the `errno`.
    Failed(i32),
    /// The child was stopped by this signal: C19 (job control on terminals).
    Stopped(i32),
    /// The run has ended: how the child ended, and why.
    Over(ProcessEnd, ChildEndCause),
}

/// Why the child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildEndCause {
    /// It ended by itself.
    Itself,
    /// The lock was lost.
    Lost,
    /// A release request ended it.
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
    /// Creates a connected pair. Both ends are closed by `exec`.
    pub(crate) fn pair() -> io::Result<(Channel, Channel)> {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Channel { socket: a }, Channel { socket: b }))
    }

    pub(crate) fn send(&self, message: &impl ChannelMessage) -> io::Result<()> {
        self.send_with(message, &[])
    }

    /// Sends a message, or drops it if the receiver has too many unread ones.
    pub(crate) fn try_send(&self, message: &impl ChannelMessage) {
        let _ = self.send_flagged(message, &[], SendFlags::DONTWAIT);
    }

    /// Sends a message with descriptors.
    pub(crate) fn send_with(
        &self,
        message: &impl ChannelMessage,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.send_flagged(message, fds, SendFlags::empty())
    }

    fn send_flagged(
        &self,
        message: &impl ChannelMessage,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other(
                "too many file descriptors for one message",
            ));
        }
        loop {
            // A dead peer must be an error here, not SIGPIPE.
            let flags = flags | SendFlags::NOSIGNAL;
            match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns the length of the next message, or zero if the other side is gone.
    ///
    /// Most messages have a few bytes. A buffer for the longest one would have to be cleared for
    /// each of them.
    fn next_length(&self) -> io::Result<usize> {
        loop {
            match recv(
                &self.socket,
                &mut [0u8; 0],
                RecvFlags::PEEK | RecvFlags::TRUNC,
            ) {
                Ok((_, length)) => return Ok(length),
                // The other process ended with unread messages. The kernel reports that once,
                // before the messages that it sent: they are still in the queue.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Receives one message with its descriptors; `None` if the other side is gone.
    pub(crate) fn receive<M: ChannelMessage>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let mut bytes = vec![0u8; self.next_length()?];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
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
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        if length == 0 {
            return Ok(None);
        }
        match M::take(&bytes[..length]) {
            Some(message) => Ok(Some((message, descriptors))),
            None => Err(io::Error::other(
                "an unknown message between tenure and its supervisor process",
            )),
        }
    }
}

/// A message: a tag and a payload.
pub(crate) trait ChannelMessage: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(bytes: &[u8]) -> Option<Self>;
}

impl ChannelMessage for SupervisorCommand {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            SupervisorCommand::Start(task, variables) => {
                out.push(b's');
                task.put(out);
                for (name, value) in variables {
                    let (kind, text): (u8, &[u8]) = match value {
                        VariableValue::Text(text) => (b'=', text.as_bytes()),
                        VariableValue::Removed => (b'-', b""),
                        VariableValue::Descriptor => (b'#', b""),
                    };
                    out.push(kind);
                    out.extend_from_slice(name.as_bytes());
                    out.push(0);
                    out.extend_from_slice(text);
                    out.push(0);
                }
            }
            SupervisorCommand::Signal(signal) => put_number(out, b'k', i64::from(*signal)),
            SupervisorCommand::Continue => out.push(b'c'),
            SupervisorCommand::Lease(lease) => {
                out.push(b'l');
                out.extend_from_slice(&nanos(lease.safe_until).to_le_bytes());
                out.extend_from_slice(&nanos(lease.ttl).to_le_bytes());
            }
            SupervisorCommand::Lost(text) => put_text(out, b'x', text),
            SupervisorCommand::Asked(action, text) => {
                out.push(b'a');
                put_text(out, action.letter(), text);
            }
            SupervisorCommand::Done => out.push(b'd'),
        }
    }

    fn take(bytes: &[u8]) -> Option<SupervisorCommand> {
        let (tag, rest) = bytes.split_first()?;
        Some(match tag {
            b's' => {
                let (task, rest) = SupervisorTask::take(rest)?;
                SupervisorCommand::Start(task, take_variables(rest)?)
            }
            b'k' => SupervisorCommand::Signal(i32::try_from(take_number(rest)?).ok()?),
            b'c' => SupervisorCommand::Continue,
            b'l' => {
                let (until, ttl) = rest.split_at_checked(8)?;
                SupervisorCommand::Lease(ChildLease {
                    safe_until: Duration::from_nanos(u64::from_le_bytes(until.try_into().ok()?)),
                    ttl: Duration::from_nanos(u64::from_le_bytes(ttl.try_into().ok()?)),
                })
            }
            b'x' => SupervisorCommand::Lost(String::from_utf8_lossy(rest).into_owned()),
            b'a' => {
                let (action, text) = rest.split_first()?;
                let text = String::from_utf8_lossy(text).into_owned();
                SupervisorCommand::Asked(OnAsk::from_letter(*action)?, text)
            }
            b'd' => SupervisorCommand::Done,
            _ => return None,
        })
    }
}

impl ChannelMessage for SupervisorReport {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            SupervisorReport::Started(pid) => put_number(out, b'p', i64::from(*pid)),
            SupervisorReport::Failed(errno) => put_number(out, b'f', i64::from(*errno)),
            SupervisorReport::Stopped(signal) => put_number(out, b't', i64::from(*signal)),
            SupervisorReport::Over(end, cause) => {
                let (kind, value) = match end {
                    ProcessEnd::Exited(code) => (0, *code),
                    ProcessEnd::Killed(signal) => (1, *signal),
                };
                put_number(
                    out,
                    b'o',
                    cause.number() << 40 | kind << 32 | i64::from(value),
                );
            }
        }
    }

    fn take(bytes: &[u8]) -> Option<SupervisorReport> {
        let (tag, rest) = bytes.split_first()?;
        let number = take_number(rest)?;
        Some(match tag {
            b'p' => SupervisorReport::Started(u32::try_from(number).ok()?),
            b'f' => SupervisorReport::Failed(i32::try_from(number).ok()?),
            b't' => SupervisorReport::Stopped(i32::try_from(number).ok()?),
            b'o' => {
                let value = i32::try_from(number & 0xffff_ffff).ok()?;
                let end = if number >> 32 & 1 == 0 {
                    ProcessEnd::Exited(value)
                } else {
                    ProcessEnd::Killed(value)
                };
                SupervisorReport::Over(end, ChildEndCause::from_number(number >> 40)?)
            }
            _ => return None,
        })
    }
}

impl OnAsk {
    fn letter(self) -> u8 {
        match self {
            OnAsk::Term => b't',
            OnAsk::Notify => b'n',
            OnAsk::Ignore => b'i',
        }
    }

    fn from_letter(letter: u8) -> Option<OnAsk> {
        [OnAsk::Term, OnAsk::Notify, OnAsk::Ignore]
            .into_iter()
            .find(|action| action.letter() == letter)
    }
}

impl ChildEndCause {
    fn number(self) -> i64 {
        match self {
            ChildEndCause::Itself => 0,
            ChildEndCause::Lost => 1,
            ChildEndCause::GaveWay => 2,
        }
    }

    fn from_number(number: i64) -> Option<ChildEndCause> {
        [
            ChildEndCause::Itself,
            ChildEndCause::Lost,
            ChildEndCause::GaveWay,
        ]
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
    // The message must fit. Only text for people is cut off.
    out.extend_from_slice(&text.as_bytes()[..text.len().min(LONGEST / 2)]);
}

fn take_variables(mut bytes: &[u8]) -> Option<Variables> {
    let mut variables = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        let mut parts = rest.splitn(3, |byte| *byte == 0);
        let name = OsString::from_vec(parts.next()?.to_vec());
        let text = OsString::from_vec(parts.next()?.to_vec());
        let value = match kind {
            b'=' => VariableValue::Text(text),
            b'-' => VariableValue::Removed,
            b'#' => VariableValue::Descriptor,
            _ => return None,
        };
        variables.push((name, value));
        bytes = parts.next()?;
    }
    Some(variables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::task::{Descriptor, OnDeath, OnLost};
    use rustix::process::Pid;

    fn task(terminal: Option<i32>) -> SupervisorTask {
        SupervisorTask {
            words: 70_000,
            on_lost: OnLost::Notify,
            grace: Duration::from_millis(1_500),
            on_death: OnDeath::Wait,
            descriptor: Descriptor::Inherited,
            terminal,
            tells_child: terminal.is_some(),
            joins: terminal.and_then(Pid::from_raw),
            heartbeat: Duration::from_secs(5),
        }
    }

    #[test]
    fn orders_and_reports_arrive_whole() {
        let (wrapper, supervisor) = Channel::pair().unwrap();
        let variables = vec![
            ("TENURE_FENCE".into(), VariableValue::Text("7".into())),
            ("TENURE_URL".into(), VariableValue::Removed),
            ("TENURE_FD".into(), VariableValue::Descriptor),
        ];
        for order in [
            SupervisorCommand::Start(task(Some(2)), variables),
            SupervisorCommand::Start(task(None), Vec::new()),
            SupervisorCommand::Signal(15),
            SupervisorCommand::Continue,
            SupervisorCommand::Lease(ChildLease {
                safe_until: Duration::from_nanos(5),
                ttl: Duration::from_secs(30),
            }),
            SupervisorCommand::Lost("gone".into()),
            SupervisorCommand::Asked(OnAsk::Term, "by amy".into()),
            SupervisorCommand::Asked(OnAsk::Ignore, String::new()),
            SupervisorCommand::Done,
        ] {
            wrapper.send(&order).unwrap();
            assert_eq!(
                supervisor
                    .receive::<SupervisorCommand>()
                    .unwrap()
                    .unwrap()
                    .0,
                order
            );
        }
        for report in [
            SupervisorReport::Started(4711),
            SupervisorReport::Failed(2),
            SupervisorReport::Stopped(20),
            SupervisorReport::Over(ProcessEnd::Killed(9), ChildEndCause::GaveWay),
            SupervisorReport::Over(ProcessEnd::Exited(255), ChildEndCause::Itself),
        ] {
            supervisor.send(&report).unwrap();
            assert_eq!(
                wrapper.receive::<SupervisorReport>().unwrap().unwrap().0,
                report
            );
        }
        drop(wrapper);
        assert!(supervisor.receive::<SupervisorCommand>().unwrap().is_none());
    }

    /// A report that was sent before the supervisor ended is read, though the supervisor left a
    /// message of the wrapper unread.
    #[test]
    fn the_last_report_survives_unread_messages() {
        let (wrapper, supervisor) = Channel::pair().unwrap();
        wrapper.send(&SupervisorCommand::Continue).unwrap();
        supervisor.send(&SupervisorReport::Failed(2)).unwrap();
        drop(supervisor);
        let (report, _) = wrapper.receive::<SupervisorReport>().unwrap().unwrap();
        assert_eq!(report, SupervisorReport::Failed(2));
        assert!(wrapper.receive::<SupervisorReport>().unwrap().is_none());
    }

    /// K38: one descriptor per lock file, in order.
    #[test]
    fn descriptors_come_along() {
        let (wrapper, supervisor) = Channel::pair().unwrap();
        let files: Vec<_> = (0..MOST_DESCRIPTORS)
            .map(|_| tempfile::tempfile().unwrap())
            .collect();
        let fds: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        let order = SupervisorCommand::Start(task(None), Vec::new());
        wrapper.send_with(&order, &fds).unwrap();
        let (_, received) = supervisor.receive::<SupervisorCommand>().unwrap().unwrap();
        let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
        let sent: Vec<_> = fds.into_iter().map(inode).collect();
        let received: Vec<_> = received.iter().map(|fd| inode(fd.as_fd())).collect();
        assert_eq!(sent, received);
    }
}
