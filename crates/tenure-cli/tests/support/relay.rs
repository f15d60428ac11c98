//! TCP relay between a client and the daemon that can stop forwarding: a network partition.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// Forwards bytes in both directions until it is stopped. Then connections stay open, as in a real
/// partition.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    /// Waits while nothing may pass.
    fn pass(&self) {
        let mut stopped = self.stopped.lock().unwrap();
        while *stopped {
            stopped = self.changed.wait(stopped).unwrap();
        }
    }

    fn set(&self, stopped: bool) {
        *self.stopped.lock().unwrap() = stopped;
        self.changed.notify_all();
    }
}

impl Relay {
    pub(crate) fn to(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let gate = Arc::new(Gate::default());
        let its = Arc::clone(&gate);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(target) else {
                    continue;
                };
                let both = [
                    (client.try_clone(), server.try_clone()),
                    (Ok(server), Ok(client)),
                ];
                for (from, to) in both {
                    let gate = Arc::clone(&its);
                    if let (Ok(from), Ok(to)) = (from, to) {
                        std::thread::spawn(move || copy(from, to, &gate));
                    }
                }
            }
        });
        Relay { address, gate }
    }

    /// Stops all traffic in both directions.
    pub(crate) fn stop(&self) {
        self.gate.set(true);
    }

    /// Resumes the traffic, including what was held back.
    pub(crate) fn go_on(&self) {
        self.gate.set(false);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Lets the threads see that their connections are gone.
        self.go_on();
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, gate: &Gate) {
    let mut bytes = [0u8; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        gate.pass();
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
