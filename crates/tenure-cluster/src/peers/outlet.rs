//! The way out of a connection: whoever has something for a peer writes it to the socket himself.
//!
//! What the socket does not take at once waits here, and all that comes after it, until the task of
//! the connection has written it. So a frame costs no change of thread unless the peer is slow, and
//! frames leave in the order in which they were given.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tenure_node::Channel;
use tokio::sync::mpsc;

use super::link::WRITE_AT_ONCE;
use super::seal::Sealer;

/// What travels on a connection.
#[derive(Clone, Debug)]
pub(crate) enum Parcel {
    /// From a node to a node.
    Frame(Bytes),
    /// From one mesh to the other: cards and orders.
    Talk(Bytes),
}

pub(super) const PING: u8 = 0;
pub(super) const FRAME: u8 = 1;
pub(super) const TALK: u8 = 2;

/// The connection is gone, or so far behind that it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

/// Where parcels for a peer go. The connection ends with the last handle.
#[derive(Clone)]
pub(crate) struct Outlet {
    line: Arc<Mutex<Line>>,
    wake: mpsc::Sender<()>,
}

/// The other end, which the task of the connection has.
pub(crate) struct Queue {
    line: Arc<Mutex<Line>>,
    pub(super) woken: mpsc::Receiver<()>,
}

struct Line {
    sealer: Sealer,
    /// The connection's own, for those who do not want to wait for its task.
    socket: Option<TcpStream>,
    /// Sealed, and not given to the socket yet.
    bytes: Vec<u8>,
    /// The task is writing what was here before: nobody else may.
    is_taken: bool,
    is_over: bool,
    most: usize,
}

fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The two ends for a lane. Without a socket all goes by way of the task.
pub(super) fn pair(channel: Channel, sealer: Sealer, socket: Option<TcpStream>) -> (Outlet, Queue) {
    // One wake-up is as good as many.
    let (wake, woken) = mpsc::channel(1);
    let line = Arc::new(Mutex::new(Line {
        sealer,
        socket,
        bytes: Vec::new(),
        is_taken: false,
        is_over: false,
        most: match channel {
            Channel::Main => 64 * 1024 * 1024,
            Channel::Bulk => 16 * 1024 * 1024,
        },
    }));
    let outlet = Outlet {
        line: Arc::clone(&line),
        wake,
    };
    (outlet, Queue { line, woken })
}

impl Outlet {
    /// Whether this is a handle to the same connection.
    pub(crate) fn is(&self, other: &Outlet) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }

    /// Sends a parcel, now or as soon as the peer takes it. Bounded: a peer that does not keep up
    /// loses its connection.
    pub(crate) fn send(&self, parcel: Parcel) -> Result<(), Lost> {
        let (kind, content) = match &parcel {
            Parcel::Frame(content) => (FRAME, content),
            Parcel::Talk(content) => (TALK, content),
        };
        if lock(&self.line).say(kind, content)? == Left::Much {
            // It may be awake already, or gone.
            let _ = self.wake.try_send(());
        }
        Ok(())
    }
}

/// Whether the task has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    Much,
}

impl Line {
    fn say(&mut self, kind: u8, content: &[u8]) -> Result<Left, Lost> {
        if self.is_over || self.bytes.len() + content.len() > self.most {
            return Err(Lost);
        }
        let is_first = self.bytes.is_empty() && !self.is_taken;
        let head = self.sealer.head(&[&[kind], content]);
        self.bytes.extend_from_slice(&head);
        self.bytes.push(kind);
        self.bytes.extend_from_slice(content);
        if !is_first {
            return Ok(Left::Nothing);
        }
        self.write()
    }

    /// Gives the socket as much as it takes without waiting.
    fn write(&mut self) -> Result<Left, Lost> {
        let Some(socket) = &mut self.socket else {
            return Ok(Left::Much);
        };
        let mut written = 0;
        let result = loop {
            if written == self.bytes.len() {
                break Ok(Left::Nothing);
            }
            match socket.write(&self.bytes[written..]) {
                Ok(0) => break Err(Lost),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(Left::Much),
                Err(_) => break Err(Lost),
            }
        };
        self.bytes.drain(..written);
        self.bytes.shrink_to(WRITE_AT_ONCE);
        if result.is_err() {
            self.end();
        }
        result
    }

    fn end(&mut self) {
        self.is_over = true;
        self.socket = None;
        self.bytes = Vec::new();
    }
}

impl Queue {
    /// Says that this node is alive.
    pub(super) fn ping(&self) -> Result<(), Lost> {
        lock(&self.line).say(PING, &[]).map(|_| ())
    }

    /// Takes what waits, to be written before anything else is. Says whether there was something; if
    /// not, everybody may write again.
    pub(super) fn take(&self, bytes: &mut Vec<u8>) -> bool {
        bytes.clear();
        bytes.shrink_to(8 * WRITE_AT_ONCE);
        let mut line = lock(&self.line);
        std::mem::swap(&mut line.bytes, bytes);
        line.is_taken = !bytes.is_empty();
        line.is_taken
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        lock(&self.line).end();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::super::seal::{HEAD, Opener};
    use super::*;
    use aws_lc_rs::hmac;

    fn key() -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[7; 32])
    }

    /// What arrived, frame by frame.
    fn frames(opener: &mut Opener, mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
            let length = Opener::length(head).unwrap();
            let (content, rest) = rest.split_at(length);
            opener.check(head, content).unwrap();
            assert_eq!(content[0], FRAME);
            found.push(content[1..].to_vec());
            bytes = rest;
        }
        found
    }

    fn frame(number: u32, length: usize) -> Vec<u8> {
        let mut frame = vec![0; length];
        frame[..4].copy_from_slice(&number.to_le_bytes());
        frame
    }

    /// What a slow peer has not taken is not overtaken, whoever writes it.
    #[test]
    fn frames_arrive_in_the_order_in_which_they_were_given() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut task = socket.try_clone().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (outlet, mut queue) = pair(Channel::Main, Sealer::new(key()), Some(socket));
        let mut given = Vec::new();
        let give = |given: &mut Vec<Vec<u8>>, length| {
            let frame = frame(given.len() as u32, length);
            outlet.send(Parcel::Frame(frame.clone().into())).unwrap();
            given.push(frame);
        };
        give(&mut given, 10);
        assert!(queue.woken.try_recv().is_err(), "the socket took it");
        while queue.woken.try_recv().is_err() {
            give(&mut given, 1 << 20);
        }
        give(&mut given, 10);
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            far.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut bytes = Vec::new();
        assert!(queue.take(&mut bytes));
        // The socket could take this now, but something is before it.
        give(&mut given, 10);
        task.set_nonblocking(false).unwrap();
        task.write_all(&bytes).unwrap();
        assert!(queue.take(&mut bytes));
        task.write_all(&bytes).unwrap();
        assert!(!queue.take(&mut bytes));
        give(&mut given, 10);
        assert!(queue.woken.try_recv().is_err(), "the socket took it");
        drop((queue, outlet, task));
        let arrived = reader.join().unwrap();
        assert!(frames(&mut Opener::new(key()), &arrived) == given);
    }

    /// Whoever writes to a connection that broke hears of it at once.
    #[test]
    fn a_broken_connection_is_news() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let broken = socket.try_clone().unwrap();
        let (outlet, _queue) = pair(Channel::Main, Sealer::new(key()), Some(socket));
        broken.shutdown(std::net::Shutdown::Write).unwrap();
        let frame = Parcel::Frame(Bytes::from_static(b"x"));
        assert_eq!(outlet.send(frame.clone()), Err(Lost));
        assert_eq!(outlet.send(frame), Err(Lost));
    }

    /// A peer that does not keep up loses its connection, not our memory.
    #[test]
    fn what_waits_is_bounded() {
        let (outlet, queue) = pair(Channel::Bulk, Sealer::new(key()), None);
        let frame = Bytes::from(vec![0; 1024 * 1024]);
        let sent = (0..100)
            .take_while(|_| outlet.send(Parcel::Frame(frame.clone())).is_ok())
            .count();
        assert_eq!(sent, 15);
        drop(queue);
        assert_eq!(outlet.send(Parcel::Frame(Bytes::new())), Err(Lost));
    }
}
