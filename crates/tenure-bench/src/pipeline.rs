//! Pipelining driver: one thread, many requests in flight over non-blocking sockets.
//!
//! Each turn reads all answers that have arrived and sends all requests that follow in one write.
//! So a busy client makes few system calls and leaves the CPU to the server.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::BenchError;
use crate::scenario::{LoadPlan, LoadScript, LoadWorker, Measured, WorkerReply, WorkerRequest};

/// The run fails if nothing arrives for this long.
const SILENCE: Duration = Duration::from_secs(30);

/// A protocol with many requests in flight.
pub(crate) trait Wire {
    /// Appends the first bytes of a new connection. Workers start when [`Wire::is_ready`] is true.
    fn hello(&mut self, out: &mut Vec<u8>);

    /// Returns whether workers may start.
    fn is_ready(&self) -> bool;

    /// Appends a request.
    fn ask(&mut self, worker: &LoadWorker, ask: WorkerRequest, out: &mut Vec<u8>);

    /// Decodes complete answers at the front of `input` and returns how many bytes they have.
    /// Replies of the protocol itself (acknowledgements, pings) are appended to `out`.
    fn answers(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        each: &mut dyn FnMut(u32, WorkerReply),
    ) -> Result<usize, String>;

    /// Moves bytes that may be sent now from `pending` to `out`. Protocols with flow control keep
    /// the rest.
    fn release(&mut self, pending: &mut Vec<u8>, out: &mut Vec<u8>) {
        out.append(pending);
    }
}

struct Connection<W> {
    wire: W,
    stream: TcpStream,
    scratch: Vec<u8>,
    input: Vec<u8>,
    /// Requests that flow control has not admitted yet.
    pending: Vec<u8>,
    /// Bytes that are not written to the socket yet.
    out: Vec<u8>,
    begun: bool,
    workers: Vec<u32>,
}

/// Runs a plan. `wire` creates the protocol of each connection.
pub(crate) fn run<W: Wire>(
    plan: LoadPlan,
    server: SocketAddr,
    mut wire: impl FnMut() -> W,
) -> Result<Measured, BenchError> {
    let mut connections = Vec::new();
    let count = plan.connections.clamp(1, plan.in_flight.max(1));
    for number in 0..count {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut connection = Connection {
            wire: wire(),
            stream,
            scratch: vec![0; 64 << 10],
            input: Vec::new(),
            pending: Vec::new(),
            out: Vec::new(),
            begun: false,
            workers: (number..plan.in_flight).step_by(count as usize).collect(),
        };
        connection.wire.hello(&mut connection.out);
        connections.push(connection);
    }
    let in_flight = plan.in_flight;
    let mut script = LoadScript::new(plan);
    let mut workers: Vec<LoadWorker> = Vec::new();
    let mut first = Vec::new();
    for number in 0..in_flight {
        let (worker, ask) = script.worker(number);
        workers.push(worker);
        first.push(ask);
    }
    let mut heard = Instant::now();
    while !script.is_over() {
        if wait(&connections)? {
            heard = Instant::now();
        } else if heard.elapsed() > SILENCE {
            return Err(BenchError::Silence(SILENCE));
        }
        for connection in &mut connections {
            connection.turn(&mut script, &mut workers, &first)?;
        }
    }
    Ok(script.finish())
}

/// Waits until a socket is readable, or writable if it has output. Returns `false` after one second
/// without either.
fn wait<W>(connections: &[Connection<W>]) -> Result<bool, BenchError> {
    let mut wanted: Vec<PollFd<'_>> = connections
        .iter()
        .map(|connection| {
            let mut flags = PollFlags::IN;
            if !connection.out.is_empty() {
                flags |= PollFlags::OUT;
            }
            PollFd::new(&connection.stream, flags)
        })
        .collect();
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let found = poll(&mut wanted, Some(&second)).map_err(std::io::Error::from)?;
    Ok(found > 0)
}

impl<W: Wire> Connection<W> {
    fn turn(
        &mut self,
        script: &mut LoadScript,
        workers: &mut [LoadWorker],
        first: &[WorkerRequest],
    ) -> Result<(), BenchError> {
        self.read()?;
        let mut replies = Vec::new();
        let used = self
            .wire
            .answers(&self.input, &mut self.out, &mut |worker, reply| {
                replies.push((worker, reply));
            })
            .map_err(BenchError::Protocol)?;
        self.input.drain(..used);
        if !self.begun && self.wire.is_ready() {
            self.begun = true;
            for number in &self.workers {
                let at = *number as usize;
                self.wire.ask(&workers[at], first[at], &mut self.pending);
            }
        }
        for (number, reply) in replies {
            let Some(worker) = workers.get_mut(number as usize) else {
                return Err(BenchError::Protocol(format!("an answer to lane {number}")));
            };
            if let Some(ask) = script.next(worker, reply).map_err(BenchError::Refused)? {
                self.wire.ask(worker, ask, &mut self.pending);
            }
        }
        self.wire.release(&mut self.pending, &mut self.out);
        self.write()
    }

    fn read(&mut self) -> Result<(), BenchError> {
        loop {
            match self.stream.read(&mut self.scratch) {
                Ok(0) => return Err(BenchError::Closed),
                Ok(count) => {
                    self.input.extend_from_slice(&self.scratch[..count]);
                    if count < self.scratch.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write(&mut self) -> Result<(), BenchError> {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(count) => {
                    self.out.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
