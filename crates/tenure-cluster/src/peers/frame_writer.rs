//! Frame writer: the thread that has a frame writes it to the non-blocking socket itself.
//!
//! Bytes that the socket does not accept are buffered, and so is everything after them, until the
//! task of the connection has written them. So a frame costs no thread switch unless the peer is
//! slow, and frames leave in the order of the `send` calls.
//!
//! One mutex protects buffer, frame counter and socket. `is_taken` extends its protection to the
//! task's writes, which happen outside the mutex: while it is set, all other threads only append.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tenure_node::Channel;
use tokio::sync::mpsc;

use super::connection::WRITE_AT_ONCE;
use super::frame_mac::MacWriter;

/// A message on a connection.
#[derive(Clone, Debug)]
pub(crate) enum OutboundMessage {
    /// Frame between two nodes.
    Frame(Bytes),
    /// Control message between two registries.
    Control(Bytes),
}

pub(super) const PING: u8 = 0;
pub(super) const FRAME: u8 = 1;
pub(super) const CONTROL: u8 = 2;

/// The connection is lost, or its buffer is full and it must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLost;

/// Sending side of a connection to a peer. The connection ends with the last clone.
#[derive(Clone)]
pub(crate) struct FrameWriter {
    line: Arc<Mutex<SendBuffer>>,
    wake: mpsc::Sender<()>,
}

/// The connection task's side.
pub(crate) struct FrameQueue {
    line: Arc<Mutex<SendBuffer>>,
    pub(super) woken: mpsc::Receiver<()>,
}

struct SendBuffer {
    sealer: MacWriter,
    /// Second handle of the connection's socket for direct writes. `None`: all writes go through
    /// the task.
    socket: Option<TcpStream>,
    /// Encoded frames that the socket has not accepted yet.
    bytes: Vec<u8>,
    /// The task is writing earlier bytes: other threads must not write to the socket.
    is_taken: bool,
    is_over: bool,
    most: usize,
}

fn lock(line: &Mutex<SendBuffer>) -> MutexGuard<'_, SendBuffer> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates both sides for a channel. Without a socket, all bytes go through the task.
pub(super) fn pair(
    channel: Channel,
    sealer: MacWriter,
    socket: Option<TcpStream>,
) -> (FrameWriter, FrameQueue) {
    // One pending wake-up is enough: the task takes the whole buffer.
    let (wake, woken) = mpsc::channel(1);
    let line = Arc::new(Mutex::new(SendBuffer {
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
    let frame_writer = FrameWriter {
        line: Arc::clone(&line),
        wake,
    };
    (frame_writer, FrameQueue { line, woken })
}

impl FrameWriter {
    /// Returns whether both belong to the same connection.
    pub(crate) fn is(&self, other: &FrameWriter) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }

    /// Sends a message, now or as soon as the peer accepts it. Fails if the connection is lost or
    /// its buffer is full: a peer that does not keep up loses its connection.
    pub(crate) fn send(&self, outbound: OutboundMessage) -> Result<(), ConnectionLost> {
        let (kind, content) = match &outbound {
            OutboundMessage::Frame(content) => (FRAME, content),
            OutboundMessage::Control(content) => (CONTROL, content),
        };
        if lock(&self.line).say(kind, content)? == WakeTask::Much {
            // The task may be awake already, or gone.
            let _ = self.wake.try_send(());
        }
        Ok(())
    }
}

/// Whether the task must be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeTask {
    Nothing,
    Much,
}

impl SendBuffer {
    fn say(&mut self, kind: u8, content: &[u8]) -> Result<WakeTask, ConnectionLost> {
        if self.is_over || self.bytes.len() + content.len() > self.most {
            return Err(ConnectionLost);
        }
        let is_first = self.bytes.is_empty() && !self.is_taken;
        let head = self.sealer.head(&[&[kind], content]);
        self.bytes.extend_from_slice(&head);
        self.bytes.push(kind);
        self.bytes.extend_from_slice(content);
        // Earlier bytes are still waiting, and the task has already been woken for them. Writing
        // now would reorder frames.
        if !is_first {
            return Ok(WakeTask::Nothing);
        }
        self.write()
    }

    /// Writes as much as the socket accepts without blocking.
    fn write(&mut self) -> Result<WakeTask, ConnectionLost> {
        let Some(socket) = &mut self.socket else {
            return Ok(WakeTask::Much);
        };
        let mut written = 0;
        let result = loop {
            if written == self.bytes.len() {
                break Ok(WakeTask::Nothing);
            }
            match socket.write(&self.bytes[written..]) {
                Ok(0) => break Err(ConnectionLost),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(WakeTask::Much),
                Err(_) => break Err(ConnectionLost),
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

impl FrameQueue {
    /// Sends a keep-alive message.
    pub(super) fn ping(&self) -> Result<(), ConnectionLost> {
        lock(&self.line).say(PING, &[]).map(|_| ())
    }

    /// Moves the buffered bytes to `bytes`; the task must write them before it calls this again.
    /// Returns `false` if there were none; then other threads may write to the socket again.
    pub(super) fn take(&self, bytes: &mut Vec<u8>) -> bool {
        bytes.clear();
        bytes.shrink_to(8 * WRITE_AT_ONCE);
        let mut line = lock(&self.line);
        std::mem::swap(&mut line.bytes, bytes);
        line.is_taken = !bytes.is_empty();
        line.is_taken
    }
}

impl Drop for FrameQueue {
    fn drop(&mut self) {
        lock(&self.line).end();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::super::frame_mac::{HEAD, MacReader};
    use super::*;
    use aws_lc_rs::hmac;

    fn key() -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[7; 32])
    }

    /// Decodes the received frames.
    fn frames(opener: &mut MacReader, mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
            let length = MacReader::length(head).unwrap();
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

    /// Frames that a slow peer has not accepted are not overtaken, whichever thread writes them.
    #[test]
    fn frames_arrive_in_the_order_in_which_they_were_given() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut task = socket.try_clone().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (frame_writer, mut queue) = pair(Channel::Main, MacWriter::new(key()), Some(socket));
        let mut given = Vec::new();
        let give = |given: &mut Vec<Vec<u8>>, length| {
            let frame = frame(given.len() as u32, length);
            frame_writer
                .send(OutboundMessage::Frame(frame.clone().into()))
                .unwrap();
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
        // The socket would accept this now, but earlier bytes are waiting.
        give(&mut given, 10);
        task.set_nonblocking(false).unwrap();
        task.write_all(&bytes).unwrap();
        assert!(queue.take(&mut bytes));
        task.write_all(&bytes).unwrap();
        assert!(!queue.take(&mut bytes));
        give(&mut given, 10);
        assert!(queue.woken.try_recv().is_err(), "the socket took it");
        drop((queue, frame_writer, task));
        let arrived = reader.join().unwrap();
        assert!(frames(&mut MacReader::new(key()), &arrived) == given);
    }

    /// Sending on a broken connection fails at once.
    #[test]
    fn a_broken_connection_is_news() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let broken = socket.try_clone().unwrap();
        let (frame_writer, _queue) = pair(Channel::Main, MacWriter::new(key()), Some(socket));
        broken.shutdown(std::net::Shutdown::Write).unwrap();
        let frame = OutboundMessage::Frame(Bytes::from_static(b"x"));
        assert_eq!(frame_writer.send(frame.clone()), Err(ConnectionLost));
        assert_eq!(frame_writer.send(frame), Err(ConnectionLost));
    }

    /// A peer that does not keep up loses its connection and does not exhaust our memory.
    #[test]
    fn what_waits_is_bounded() {
        let (frame_writer, queue) = pair(Channel::Bulk, MacWriter::new(key()), None);
        let frame = Bytes::from(vec![0; 1024 * 1024]);
        let sent = (0..100)
            .take_while(|_| {
                frame_writer
                    .send(OutboundMessage::Frame(frame.clone()))
                    .is_ok()
            })
            .count();
        assert_eq!(sent, 15);
        drop(queue);
        assert_eq!(
            frame_writer.send(OutboundMessage::Frame(Bytes::new())),
            Err(ConnectionLost)
        );
    }
}
