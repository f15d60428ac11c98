//! TCP relay between client and daemon: passes, delays, holds back, cuts or refuses the traffic.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tenure::Endpoint;

/// What happens to the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Passes in both directions.
    Passes,
    /// Passes, in each direction so much later.
    Late(Duration),
    /// Held back in both directions until it passes again. Connections stay open, and new ones are
    /// accepted: this is how a stopped process looks.
    Held,
    /// Only the daemon's traffic is held back: requests arrive, answers do not.
    AnswersHeld,
    /// New connections are closed at once.
    Closed,
}

/// A relay. Its threads end with its connections.
pub(crate) struct Relay {
    pub(crate) node: Endpoint,
    shared: Arc<Shared>,
}

struct Shared {
    target: Mutex<String>,
    traffic: Mutex<Traffic>,
    changed: Condvar,
    connections: Mutex<Vec<TcpStream>>,
    accepted: AtomicUsize,
    open: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Client,
    Daemon,
}

impl Relay {
    pub(crate) fn to(node: &Endpoint) -> Relay {
        Relay::at("127.0.0.1:0", node)
    }

    /// Listens on a given address.
    pub(crate) fn at(address: impl ToSocketAddrs, node: &Endpoint) -> Relay {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(node.to_string()),
            traffic: Mutex::new(Traffic::Passes),
            changed: Condvar::new(),
            connections: Mutex::default(),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        });
        let inner = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                inner.accepted.fetch_add(1, Ordering::Relaxed);
                if *inner.traffic.lock().unwrap() == Traffic::Closed {
                    continue;
                }
                let target = inner.target.lock().unwrap().clone();
                let Ok(daemon) = TcpStream::connect(target) else {
                    continue;
                };
                for socket in [&client, &daemon] {
                    socket.set_nodelay(true).unwrap();
                }
                inner.open.fetch_add(1, Ordering::Relaxed);
                pump(&client, &daemon, From::Client, &inner);
                pump(&daemon, &client, From::Daemon, &inner);
                inner.connections.lock().unwrap().extend([client, daemon]);
            }
        });
        Relay {
            node: Endpoint::new(address.ip().to_string(), address.port()),
            shared,
        }
    }

    pub(crate) fn set(&self, traffic: Traffic) {
        *self.shared.traffic.lock().unwrap() = traffic;
        self.shared.changed.notify_all();
    }

    /// Closes all present connections.
    pub(crate) fn cut(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Sends new connections to another node.
    pub(crate) fn aim(&self, node: &Endpoint) {
        *self.shared.target.lock().unwrap() = node.to_string();
    }

    /// Returns whether a client is connected.
    pub(crate) fn is_used(&self) -> bool {
        self.shared.open.load(Ordering::Relaxed) > 0
    }

    /// Returns how many connections it has accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }
}

/// Passes on one direction: one thread reads and dates, another waits and writes, so that a delay
/// does not limit the throughput.
fn pump(from: &TcpStream, to: &TcpStream, side: From, shared: &Arc<Shared>) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let shared = Arc::clone(shared);
    let (send, dated) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = [0; 16_384];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if send
                .send((Instant::now(), buffer[..count].to_vec()))
                .is_err()
            {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (read, bytes) in dated {
            let delay = shared.wait_until_passing(side);
            thread::sleep((read + delay).saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        if side == From::Client {
            shared.open.fetch_sub(1, Ordering::Relaxed);
        }
    });
}

impl Shared {
    /// Waits until the traffic of this side may pass; returns its delay.
    fn wait_until_passing(&self, side: From) -> Duration {
        let mut traffic = self.traffic.lock().unwrap();
        loop {
            let is_held = match *traffic {
                Traffic::Passes | Traffic::Closed => false,
                Traffic::Late(delay) => return delay,
                Traffic::Held => true,
                Traffic::AnswersHeld => side == From::Daemon,
            };
            if !is_held {
                return Duration::ZERO;
            }
            traffic = self.changed.wait(traffic).unwrap();
        }
    }
}
